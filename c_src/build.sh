#!/bin/sh
# Builds priv/weir_nif.so with CMake; rebar3's compile hook runs it, also where weir is a dependency (rebar3, mix).
#
#   sh c_src/build.sh          build, or find within a second that nothing changed
#   sh c_src/build.sh clean    remove what it built
#
# Environment
#   WEIR_CMAKE_ARGS   more arguments for CMake, e.g. "-DWEIR_SANITIZE=address"; each set has a build folder of its own
#                     (one that names CMAKE_BUILD_TYPE or WEIR_SANITIZE keeps the library's symbols)
#   WEIR_NIF_OUT      the folder to put weir_nif.so in (default priv, beside this source)
#   WEIR_NIF_BUILD    the folder to build in (default _build/nif, beside this source)
#   ERL_NIF_INCLUDE   the folder of erl_nif.h (default: the one of the `erl` on the PATH)
#   CXX, CXXFLAGS     as CMake takes them
set -eu

# The physical path: a checkout under several names (_checkouts/weir) is one.
root=$(cd "$(dirname "$0")/.." && pwd -P)
out=${WEIR_NIF_OUT:-$root/priv}
build=${WEIR_NIF_BUILD:-$root/_build/nif}

fail() {
  echo "weir: cannot build its NIF: $1" >&2
  exit 1
}

if [ "${1:-build}" = clean ]; then
  rm -rf "$build" "$build"-*
  rm -f "$out/weir_nif.so"
  exit 0
fi

command -v cmake >/dev/null || fail "cmake was not found (Debian: apt-get install cmake)"
command -v make >/dev/null || command -v ninja >/dev/null || fail "make was not found (Debian: apt-get install make)"
command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
  fail "no C++20 compiler was found (Debian: apt-get install g++)"
if [ -z "${ERL_NIF_INCLUDE:-}" ]; then
  command -v erl >/dev/null || fail "erl is not on the PATH (Debian: apt-get install erlang-base erlang-dev)"
  ERL_NIF_INCLUDE=$(erl -noshell -eval 'io:put_chars(filename:join([code:root_dir(), "usr", "include"])), halt().')
fi
[ -e "$ERL_NIF_INCLUDE/erl_nif.h" ] ||
  fail "no erl_nif.h in $ERL_NIF_INCLUDE (Debian: apt-get install erlang-dev)"

# CMake remembers what it was told once and where, so other arguments, or a copied checkout, must not meet an old cache.
args="$root ${WEIR_CMAKE_ARGS:-} ${CXX:-} ${CXXFLAGS:-} $ERL_NIF_INCLUDE"
build=$build-$(printf '%s' "$args" | cksum | cut -d' ' -f1)
mkdir -p "$build" "$out" || fail "cannot write to $build and $out"

# Two builds at once (a project and its tests) would tread on each other's objects.
if command -v flock >/dev/null; then
  exec 9>"$build/lock"
  flock 9
fi

log=$build/build.log
# shellcheck disable=SC2086 # the arguments are words
if ! { cmake -S "$root" -B "$build" -DWEIR_NIF=ON -DERL_NIF_INCLUDE="$ERL_NIF_INCLUDE" -DWEIR_PRIV="$build/out" \
         ${WEIR_CMAKE_ARGS:-} &&
       cmake --build "$build" --parallel "${WEIR_JOBS:-2}" --target weir_nif; } >"$log" 2>&1; then
  cat "$log" >&2
  fail "see above, or $log"
fi

# Without symbols it has 0.6 MB, not 10. Those who debug find them in the build folder, or name a build type.
made=$build/out/weir_nif.so
case ${WEIR_CMAKE_ARGS:-} in
  *CMAKE_BUILD_TYPE* | *WEIR_SANITIZE*) ;;
  *) ! strip -S -x -o "$build/stripped.so" "$made" 2>/dev/null || made=$build/stripped.so ;;
esac

# Renamed into place: a running node has the old file mapped and must keep it whole.
if ! cmp -s "$made" "$out/weir_nif.so"; then
  cp "$made" "$out/.weir_nif.so.$$"
  mv -f "$out/.weir_nif.so.$$" "$out/weir_nif.so"
fi
