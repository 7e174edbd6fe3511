#!/bin/bash
# The checks, one function each.
#
#   scripts/check.sh                what every change must pass (named in `all` below)
#   scripts/check.sh long           the same at length, and what takes too long for every change
#   scripts/check.sh NAME...        some of them: format tidy xref dialyzer tests asan tsan fuzz clock aarch64 nif_asan
#   scripts/check.sh fmt            formats the C++ in place
#
# Environment
#   FUZZ_SECONDS   for each fuzzer (10; long: 600)       CLOCK_SECONDS  for the clock (5; long: 60)
#   WEIR_CASES     cases of each property (long: 10000)  WEIR_JOBS      parallel compilers (one a core)
#   WEIR_ROUNDS    of several faults at once on nodes (10; long: 100)
#   TSAN_TESTS     the Catch2 tests to run under ThreadSanitizer ([threads])
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
use_prepared
cd "$root"
jobs=${WEIR_JOBS:-$(nproc)}
all=(format tidy xref dialyzer tests asan tsan fuzz)

cpp_files() {
  find include c_src test bench \( -name '*.hpp' -o -name '*.cpp' \) -type f | sort
}

# configure FOLDER CMAKE_ARGUMENT...
configure() {
  local build=$1
  shift
  configure_in "$build" -DWEIR_NIF=OFF -DWEIR_WERROR=ON "$@"
}

# build FOLDER CMAKE_ARGUMENT...
build() {
  configure "$@"
  cmake --build "$1" --parallel "$jobs"
}

check_fmt() {
  cpp_files | xargs clang-format -i
}

check_format() {
  cpp_files | xargs clang-format --dry-run --Werror
}

check_tidy() {
  configure _build/tidy -DCMAKE_CXX_COMPILER=clang++ -DWEIR_NIF=ON -DWEIR_LAB=ON -DWEIR_PRIV="$root/_build/tidy/priv"
  find c_src -name '*.cpp' | sort | xargs -P "$jobs" -n 1 clang-tidy -p _build/tidy --quiet
}

check_xref() {
  rebar3 xref
  rebar3 as server xref
}

check_dialyzer() {
  rebar3 as server dialyzer
}

check_tests() {
  scripts/test.sh
}

check_asan() {
  build _build/asan -DWEIR_TESTS=ON -DWEIR_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo
  _build/asan/weir_test
}

check_tsan() {
  build _build/tsan -DWEIR_TESTS=ON -DWEIR_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo
  setarch -R _build/tsan/weir_test "${TSAN_TESTS:-[threads]}"
}

check_fuzz() {
  local seconds=${FUZZ_SECONDS:-10} fuzzer found=0
  build _build/fuzz -DWEIR_FUZZ=ON -DWEIR_SANITIZE=address,undefined -DCMAKE_CXX_COMPILER=clang++
  for fuzzer in _build/fuzz/*_fuzz; do
    local name=${fuzzer##*/}
    echo "$name for $seconds s"
    mkdir -p "_build/fuzz/corpus/$name"
    "$fuzzer" -max_total_time="$seconds" -print_final_stats=1 -timeout=10 -rss_limit_mb=2048 \
      -artifact_prefix="_build/fuzz/$name-" "_build/fuzz/corpus/$name"
    found=$((found + 1))
  done
  [ "$found" -gt 0 ]
}

# Against CLOCK_REALTIME on every core; says so and fails when the clock ran apart or backwards.
check_clock() {
  build _build/cpp -DWEIR_TESTS=ON
  _build/cpp/clock_check "${CLOCK_SECONDS:-5}"
}

# The C++ tests as an aarch64 machine runs them. Compiled without CMake, which would find this machine's fmt and Catch2 with all
# of its other headers; both are used as headers here (Catch2 2), so links to them in a folder of their own are enough.
check_aarch64() {
  local out=_build/aarch64
  rm -rf "$out"
  mkdir -p "$out/include" "$out/o"
  ln -s /usr/include/fmt /usr/include/catch2 /usr/include/nlohmann "$out/include/"
  find c_src/core c_src/thesis c_src/lab test/cpp -name '*.cpp' ! -path c_src/lab/main.cpp | sort | xargs -P "$jobs" -I{} sh -c '
    aarch64-linux-gnu-g++ -std=c++20 -O2 -Wall -Wextra -Werror -DFMT_HEADER_ONLY -Iinclude -Ic_src -Ic_src/thesis -isystem "$1/include" \
      -c "$2" -o "$1/o/$(basename "$2" .cpp).o"' sh "$out" {}
  aarch64-linux-gnu-g++ -static "$out"/o/*.o -o "$out/weir_test"
  qemu-aarch64 "$out/weir_test"
}

# Common Test with a NIF that AddressSanitizer watches, inside the BEAM. Suites that start other programs have no place there.
check_nif_asan() {
  local lib=$root/_build/nif_asan/lib/weir
  rebar3 as test compile
  rm -rf "$lib"
  mkdir -p "$lib/ebin" _build/nif_asan/logs
  cp _build/test/lib/weir/ebin/* "$lib/ebin/"
  WEIR_CMAKE_ARGS="-DWEIR_SANITIZE=address -DCMAKE_BUILD_TYPE=RelWithDebInfo" WEIR_NIF_OUT=$lib/priv sh c_src/build.sh
  local suites
  suites=$(find test -maxdepth 1 -name '*_SUITE.erl' ! -name weir_embed_SUITE.erl ! -name weir_release_SUITE.erl ! -name weir_lab_SUITE.erl \
             ! -name weir_discovery_SUITE.erl ! -name weir_nemesis_SUITE.erl ! -name weir_tls_SUITE.erl \
             -exec basename {} .erl \; | sort | tr '\n' ' ')
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 LD_PRELOAD=$(gcc -print-file-name=libasan.so) WEIR_SUITES=$suites \
    erl -noshell -pa "$lib/ebin" -eval '
      Suites = [list_to_atom(S) || S <- string:lexemes(os:getenv("WEIR_SUITES"), " ")],
      {Ok, Failed, {Skipped, Auto}} = ct:run_test([{dir, "test"}, {suite, Suites}, {logdir, "_build/nif_asan/logs"}]),
      io:format("~b passed, ~b failed, ~b skipped~n", [Ok, Failed, Skipped + Auto]),
      halt(case Ok > 0 andalso Failed + Skipped + Auto =:= 0 of true -> 0; false -> 1 end).'
}

names=("$@")
if [ $# = 0 ]; then
  names=("${all[@]}")
elif [ "$1" = long ]; then
  export WEIR_CASES=${WEIR_CASES:-10000} WEIR_ROUNDS=${WEIR_ROUNDS:-100} FUZZ_SECONDS=${FUZZ_SECONDS:-600} CLOCK_SECONDS=${CLOCK_SECONDS:-60} WEIR_LONG=1
  names=("${all[@]}" clock aarch64 nif_asan)
fi

for name in "${names[@]}"; do
  declare -F "check_$name" >/dev/null || fail "there is no check \"$name\""
  # Their output is what is asked for here, so it is shown, not logged away. (A function called in a condition would go on
  # past its failures, hence the subshell of its own.)
  say "$name"
  start=$SECONDS
  set +e
  (set -e; "check_$name")
  status=$?
  set -e
  [ "$status" = 0 ] || fail "the check \"$name\" failed after $((SECONDS - start)) s"
  say "$name: well, after $((SECONDS - start)) s"
done
