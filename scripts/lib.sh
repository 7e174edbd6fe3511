# Shared by the scripts of this folder; sourced, not run. POSIX sh and bash.
#
# step "text" COMMAND...   one line of progress; the command's output goes to a log, which is shown when it fails
# use_prepared             puts the folder of prepared Erlang applications into ERL_LIBS, if there is one
# configure_in FOLDER ARGUMENT...   cmake for this source in a build folder, also in a copied or moved checkout

root=${root:-$(cd "$(dirname "$0")/.." && pwd)}
logs=$root/_build/logs
prepared=$root/_build/debian/lib

say() {
  printf '==> %s\n' "$*"
}

fail() {
  printf 'weir: %s\n' "$*" >&2
  exit 1
}

step() {
  title=$1
  shift
  say "$title"
  mkdir -p "$logs"
  log=$logs/$(printf '%s' "$title" | tr -c 'A-Za-z0-9\n' '_' | cut -c1-60).log
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 60 "$log" >&2
    fail "that failed: $* (the whole log: $log)"
  fi
}

use_prepared() {
  if [ -d "$prepared" ]; then
    ERL_LIBS=$prepared${ERL_LIBS:+:$ERL_LIBS}
    export ERL_LIBS
  fi
}

# CMake refuses a cache that was made in another folder. What was built there is of no use here.
configure_in() {
  folder=$1
  shift
  made_in=$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' "$folder/CMakeCache.txt" 2>/dev/null) || made_in=
  case $made_in in
    '' | "$(cd "$folder" && pwd)" | "$(cd "$folder" && pwd -P)") ;;
    *) rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles" ;;
  esac
  cmake -S "$root" -B "$folder" "$@"
}

# Debian 12 runs without a locale, and Elixir and rebar3 want UTF-8 file names.
LC_ALL=${LC_ALL:-C.UTF-8}
LANG=${LANG:-C.UTF-8}
export LC_ALL LANG
