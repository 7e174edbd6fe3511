%% Nothing large that goes on holds a call up: neither nodes that join and leave, nor limiters that are made, changed and deleted by
%% the thousands, nor a rotation of the secret, with a million keys each of `scope => exact' and `scope => cluster'.
%%
%% The house asserts no timing in a test, for a busy machine fails it. This one does, because what it looks for has no other sign:
%% a walk over all keys under a mutex that normal schedulers take as well, or a NIF that is accounted as less than it takes. Both
%% were there, and passed all other tests. Therefore it isn't in the folder of `make test'; `scripts/check.sh stall' runs it (and
%% `long'), with the scenes of bench/bench_stalls.erl, which describes what is measured. The bounds are generous. What an empty NIF
%% suffers beside a check, five times over, is put down to the machine; but who holds a scheduler holds the empty NIF up as
%% well, so that the other bounds are fixed: 951dcff exceeds them, and this version has a third of them.
-module(weir_stall_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(KEYS, 1000000).
%% Of a check; of weir:compile/1 (951dcff: 240 ms); of the time for which a process of weir's holds a scheduler (176 ms).
-define(CALL_MS, 50).
-define(COMPILE_MS, 100).
-define(HELD_MS, 100).
-define(TIMES, 5).

suite() ->
    [{timetrap, {minutes, 5}}].

%% In this order: the rotation of the secret needs that nobody is missed, and who is killed is.
all() ->
    bench_stalls:scenes().

init_per_suite(Config) ->
    State = bench_stalls:start(#{keys => ?KEYS, limiters => 12000, nodes => 3, least_ms => 4000}),
    ok = bench_stalls:fill(State),
    [{stalls, State} | Config].

end_per_suite(Config) ->
    bench_stalls:stop(proplists:get_value(stalls, Config)).

nodes(Config) -> holds(nodes, Config).
make(Config) -> holds(make, Config).
limiters(Config) -> holds(limiters, Config).
policies(Config) -> holds(policies, Config).
change(Config) -> holds(change, Config).
rotation(Config) -> holds(rotation, Config).
killed(Config) -> holds(killed, Config).

holds(Scene, Config) ->
    Result = bench_stalls:scene(Scene, proplists:get_value(stalls, Config)),
    Empty = ms(empty, Result),
    Held = longest(bench_stalls:events(empty, Result)),
    Weirs = bench_stalls:events(weir, Result),
    ct:pal("~p: check ~b ms, compile ~b ms, empty NIF ~b ms (~b ms on a scheduler); of weir's processes ~0p",
           [Scene, ms(check, Result), ms(compile, Result), Empty, Held, lists:sublist(Weirs, 5)]),
    ?assert(ms(check, Result) =< max(?CALL_MS, ?TIMES * Empty)),
    ?assert(ms(compile, Result) =< ?COMPILE_MS),
    ?assertEqual([], [Event || {_, Ms, _} = Event <- Weirs, Ms > ?HELD_MS]).

ms(Caller, Result) -> bench_stalls:longest(Caller, Result) div 1000000.

longest([]) -> 0;
longest([{_, Ms, _} | _]) -> Ms.
