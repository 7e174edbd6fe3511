#!/bin/bash
# The checks, one function each.
#
#   scripts/check.sh                what every change must pass (named in `all` below)
#   scripts/check.sh long           the same at length, and what takes too long for every change
#   scripts/check.sh NAME...        some of them: format tidy xref rooms dialyzer tests asan tsan fuzz clock stall versions aarch64 musl nif_asan
#                                   mutants soak
#   scripts/check.sh fmt            formats the C++ in place
#
# Environment
#   FUZZ_SECONDS   for each fuzzer (10; long: 600)       CLOCK_SECONDS  for the clock (5; long: 60)
#   WEIR_CASES     cases of each property (long: 10000)  WEIR_JOBS      parallel compilers (one a core)
#   WEIR_ROUNDS    of several faults at once on nodes (10; long: 100)
#   SOAK_MINUTES   of the soak (60)
#   TSAN_TESTS     the Catch2 tests to run under ThreadSanitizer ([threads])
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
use_prepared
cd "$root"
jobs=${WEIR_JOBS:-$(nproc)}
all=(format tidy xref rooms dialyzer tests asan tsan fuzz)

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

# No circles among modules, or among folders of C++; and who calls the NIF.
check_rooms() {
  rebar3 as server compile
  scripts/rooms.escript _build/server/lib/weir/ebin
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
  find c_src/core c_src/queue c_src/lab test/cpp -name '*.cpp' ! -path c_src/lab/command/main.cpp | sort | xargs -P "$jobs" -I{} sh -c '
    aarch64-linux-gnu-g++ -std=c++20 -O2 -Wall -Wextra -Werror -DFMT_HEADER_ONLY -Iinclude -Ic_src -isystem "$1/include" \
      -c "$2" -o "$1/o/$(basename "$2" .cpp).o"' sh "$out" {}
  aarch64-linux-gnu-g++ -static "$out"/o/*.o -o "$out/weir_test"
  qemu-aarch64 "$out/weir_test"
}

# nif_in LIB NAME=VALUE...   weir as an application in LIB, with a NIF that is built under these variables
nif_in() {
  local lib=$1
  shift
  rebar3 as test compile
  rm -rf "$lib"
  mkdir -p "$lib/ebin"
  cp _build/test/lib/weir/ebin/* "$lib/ebin/"
  env "$@" WEIR_NIF_OUT="$lib/priv" sh c_src/build.sh
}

# suites LIB SUITES COMMAND...   Common Test, run by COMMAND, which is erl or something that starts it; of the folder $SUITES_IN (test)
suites() {
  local lib=$1 names=$2
  shift 2
  mkdir -p "$lib/logs"
  WEIR_SUITES=$names WEIR_SUITES_IN=${SUITES_IN:-test} WEIR_LOGS=$lib/logs "$@" -noshell -pa "$lib/ebin" -eval '
    Suites = [list_to_atom(S) || S <- string:lexemes(os:getenv("WEIR_SUITES"), " ")],
    {Ok, Failed, {Skipped, Auto}} = ct:run_test([{dir, os:getenv("WEIR_SUITES_IN")}, {suite, Suites}, {logdir, os:getenv("WEIR_LOGS")}]),
    io:format("~b passed, ~b failed, ~b skipped~n", [Ok, Failed, Skipped + Auto]),
    halt(case Ok > 0 andalso Failed + Skipped + Auto =:= 0 of true -> 0; false -> 1 end).'
}

# Common Test with a NIF that AddressSanitizer watches, inside the BEAM. Suites that start other programs have no place there.
check_nif_asan() {
  local lib=$root/_build/nif_asan/lib/weir names
  nif_in "$lib" WEIR_CMAKE_ARGS="-DWEIR_SANITIZE=address -DCMAKE_BUILD_TYPE=RelWithDebInfo"
  names=$(find test -maxdepth 1 -name '*_SUITE.erl' ! -name weir_embed_SUITE.erl ! -name weir_release_SUITE.erl ! -name weir_lab_SUITE.erl \
            ! -name weir_discovery_SUITE.erl ! -name weir_nemesis_SUITE.erl ! -name weir_tls_SUITE.erl \
            -exec basename {} .erl \; | sort | tr '\n' ' ')
  suites "$lib" "$names" env ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:quarantine_size_mb=4 LD_PRELOAD="$(gcc -print-file-name=libasan.so)" erl
}

# Whether the tests notice small faults. Numbers of cases would only make it longer.
check_mutants() {
  env -u WEIR_CASES -u WEIR_ROUNDS -u WEIR_LONG scripts/mutants.sh
}

# How long calls are held up while something large goes on. Timing is asserted, so let nothing else run on the machine.
# WEIR_EBIN: of another version of weir that is to be looked at.
check_stall() {
  local lib=$root/_build/stall
  rebar3 compile
  mkdir -p "$lib/ebin"
  erlc -Werror -pa bench -o "$lib/ebin" bench/bench_stalls.erl bench/bench_histogram.erl bench/bench_report.erl
  SUITES_IN=test/long suites "$lib" weir_stall_SUITE erl +S 2 -pa "${WEIR_EBIN:-$root/_build/default/lib/weir/ebin}"
}

# Nodes of this tree beside those of an earlier release, which the suite builds. WEIR_BEFORE: another one than it names.
check_versions() {
  local lib=$root/_build/versions
  rebar3 as test compile
  mkdir -p "$lib/ebin"
  erlc -Werror +debug_info -o "$lib/ebin" test/weir_{test,cluster,cluster_SUITE,nemesis_SUITE,rounds}.erl
  SUITES_IN=test/long suites "$lib" weir_versions_SUITE erl -pa "$root/_build/test/lib/weir/ebin"
}

# Five nodes for an hour, with a million keys, faults all the time, and a link that flaps: memory, leaks, and what is admitted.
# WEIR_EBIN: of another version of weir that is to be looked at.
check_soak() {
  local lib=$root/_build/soak
  rebar3 as test compile
  mkdir -p "$lib/ebin"
  erlc -Werror +debug_info -o "$lib/ebin" test/weir_{test,cluster,cluster_SUITE,nemesis_SUITE,rounds}.erl test/long/weir_soak_load.erl
  SUITES_IN=test/long suites "$lib" weir_soak_SUITE erl -pa "${WEIR_EBIN:-$root/_build/test/lib/weir/ebin}"
}

# The NIF for musl, the C library of Alpine's images, in an emulator for musl: it is loaded, decides, and passes the suites
# that need no NIF but weir's own and no other program of this machine.
check_musl() {
  local musl=$root/_build/musl lib=$root/_build/musl/lib/weir
  local erl=$musl/root/bin/erl
  [ -e "$musl/made" ] || fail "there is no Erlang for musl: run scripts/musl.sh"
  nif_in "$lib" CXX="$musl/bin/musl-c++" \
    WEIR_CMAKE_ARGS="-DCMAKE_CXX_COMPILER_AR=$musl/bin/musl-ar -DCMAKE_CXX_COMPILER_RANLIB=$musl/bin/musl-ranlib"
  "$erl" -noshell -pa "$lib/ebin" -eval '
    {ok, _} = application:ensure_all_started(weir),
    ok = weir:put_limiter(login, #{rate => {5, minute}, burst => 5}),
    Answers = [weir:check(login, {192,0,2,7}) || _ <- lists:seq(1, 6)],
    io:format("~s: ~0p~n", [erlang:system_info(system_architecture), Answers]),
    [{allow, 4}, {allow, 3}, {allow, 2}, {allow, 1}, {allow, 0}, {deny, _}] = Answers,
    halt().'
  # Peers are started by the name `erl`. Numbers of cases change nothing that a C library is asked for.
  suites "$lib" "weir_SUITE weir_attached_SUITE weir_cluster_SUITE weir_exact_SUITE weir_frozen_SUITE weir_life_SUITE \
    weir_misuse_SUITE weir_prop_SUITE weir_queue_SUITE weir_replica_prop_SUITE weir_rotate_SUITE" \
    env PATH="$musl/root/bin:$PATH" WEIR_CASES=100 "$erl"
}

names=("$@")
if [ $# = 0 ]; then
  names=("${all[@]}")
elif [ "$1" = long ]; then
  export WEIR_CASES=${WEIR_CASES:-10000} WEIR_ROUNDS=${WEIR_ROUNDS:-100} FUZZ_SECONDS=${FUZZ_SECONDS:-600} CLOCK_SECONDS=${CLOCK_SECONDS:-60} WEIR_LONG=1
  names=("${all[@]}" clock stall versions aarch64 musl nif_asan mutants soak)
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
