#!/bin/sh
# Three nodes of the gate on this machine, and a visitor who tries one after the other: five times welcome, whichever he asks.
set -eu
cd "$(dirname "$0")"
ERL_EPMD_ADDRESS=127.0.0.1
export ERL_EPMD_ADDRESS
build=${REBAR_BASE_DIR:-_build}/default
rebar3 compile >/dev/null

# node NAME EXPRESSION
node() {
  exec erl -noinput -sname "$1@localhost" -setcookie "gate" -kernel inet_dist_use_interface '{127,0,0,1}' -config config/sys \
    -pa "$build"/lib/*/ebin "$build"/checkouts/*/ebin -eval "{ok, _} = application:ensure_all_started(gate), $2."
}
(node two ok) &
two=$!
(node three ok) &
three=$!
trap 'kill "$two" "$three" 2>/dev/null || :' EXIT
(node one "gate:tour(3)")
# Told to by the first, they stop.
wait
