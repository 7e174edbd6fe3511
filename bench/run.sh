#!/bin/sh
# Runs all benchmarks and writes the report to _build/bench/report.md, which is also printed.
#
#   bench/run.sh                       all, some 6 minutes
#   bench/run.sh quick                 the same in a minute or two, to see that it runs: its figures are rough
#   bench/run.sh [quick] PART...       only these: decisions, latency, memory, http, queue, exact, join, stalls, receive
#
# Environment
#   WEIR_EBIN     of another version of weir that is to be measured (join)
#   WEIR_BEFORE   of another version of weir that is measured in turns with this one (receive)
#
# Let nothing else run on the machine; bench/README.md says what is measured and how to read it.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
use_prepared
cd "$root"

WEIR_BENCH_COMMAND="bench/run.sh $*"
WEIR_BENCH_LOAD=$(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || echo unknown)
WEIR_BENCH_COMMIT=$(git describe --always --dirty 2>/dev/null || echo unknown)
export WEIR_BENCH_COMMAND WEIR_BENCH_LOAD WEIR_BENCH_COMMIT

length=full
if [ "${1:-}" = quick ]; then
  length=quick
  shift
fi
[ $# -gt 0 ] || set -- decisions memory latency http queue exact join stalls receive

out=$root/_build/bench
mkdir -p "$out/ebin"
step "building weir" rebar3 as server compile
step "building the benchmarks" erlc -Werror +debug_info -pa "$root/bench" -o "$out/ebin" bench/*.erl

# in_vm MODULE ARGUMENT...: Module:main([Argument]) in a VM of its own; its failure is ours, and that of a process linked to it.
in_vm() {
  module=$1
  shift
  erl -noinput -boot no_dot_erlang -kernel logger_level critical -pa "${WEIR_EBIN:-$root/_build/server/lib/weir/ebin}" "$out/ebin" -eval "
    {_, Reference} = spawn_monitor(fun() -> ok = $module:main(init:get_plain_arguments()) end),
    receive
      {'DOWN', Reference, process, _, normal} -> halt(0);
      {'DOWN', Reference, process, _, Reason} -> io:format(standard_error, \"~p~n\", [Reason]), halt(1)
    end." -extra "$@"
}

rm -f "$out"/*.part
in_vm bench_report "$out/0.part"
for part in "$@"; do
  say "measuring: $part"
  case $part in
    decisions) in_vm bench_decisions "$length" "$out/1.part" ;;
    latency) in_vm bench_latency "$length" "$out/2.part" ;;
    memory)
      if [ -r /proc/self/status ]; then
        in_vm bench_memory heads "$out/3.part"
        for variant in check window atomics bucket; do
          in_vm bench_memory "$variant" "$length" "$out/3.part"
        done
      else
        say "left out: it reads /proc"
      fi
      ;;
    http) in_vm bench_http "$length" "$root/bench" "$out/4.part" ;;
    queue) in_vm bench_queue "$length" "$out/5.part" ;;
    exact) in_vm bench_exact "$length" "$out/6.part" ;;
    join) in_vm bench_join "$length" "$out/8.part" ;;
    stalls) ERL_FLAGS="${ERL_FLAGS:-} +S 2" in_vm bench_stalls "$length" "$out/7.part" ;;
    receive) in_vm bench_receive "$length" "$out/9.part" ;;
    *) fail "no such part: $part (decisions, latency, memory, http, queue, exact, join, stalls, receive)" ;;
  esac
done
cat "$out"/*.part >"$out/report.md"
cat "$out/report.md"
say "written to $out/report.md"
