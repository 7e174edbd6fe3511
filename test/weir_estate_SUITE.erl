%% What a node had admitted and not sent is known after a kill -9, on real nodes.
-module(weir_estate_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, checks/4, kill/1, restart/2, see_each_other/1, start/1, stop/1, wait_until/2]).

-define(KEY, <<"alice">>).
%% A third of it is a node's share: a burst below that is not sent.
-define(C, 1000).
-define(BURST, 200).
%% Fewer than c/256 tokens are never waited for.
-define(UNTOLD, 3).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [killed, killed_and_started_again].

end_per_testcase(_, _Config) ->
    stop(erase(peers)),
    ok.

killed(_) ->
    [A, B, C] = nodes_with_limiter(),
    ?assertEqual(?BURST, checks(A, login, ?KEY, ?BURST)),
    wait_until(told, fun() -> told(A) > 0 andalso quiet(A) end),
    ?assertEqual([?C, ?C], [remaining(P) || P <- [B, C]]),
    kill(A),
    wait_until(inherited, fun() -> lists:all(fun(P) -> remaining(P) =< ?C - ?BURST + ?UNTOLD end, [B, C]) end),
    ?assertEqual([true, true], [remaining(P) >= ?C - ?BURST || P <- [B, C]]),
    %% One of the two was told; the other one doesn't publish what it hears.
    ?assertEqual(1, lists:sum([maps:get(estates, stats(P)) || P <- [B, C]])).

%% The run that comes after the killed one knows it too.
killed_and_started_again(_) ->
    [A, B, C] = nodes_with_limiter(),
    ?assertEqual(?BURST, checks(A, login, ?KEY, ?BURST)),
    wait_until(told, fun() -> told(A) > 0 andalso quiet(A) end),
    kill(A),
    New = restart(A, [B, C]),
    put(peers, [New, B, C]),
    see_each_other([New, B, C]),
    wait_until(inherited, fun() -> lists:all(fun(P) -> remaining(P) =< ?C - ?BURST + ?UNTOLD end, [New, B, C]) end),
    ?assertEqual([true, true, true], [remaining(P) >= ?C - ?BURST || P <- [New, B, C]]).

nodes_with_limiter() ->
    Peers = start(3),
    put(peers, Peers),
    see_each_other(Peers),
    ok = call(hd(Peers), weir, put_limiter, [login, #{rate => {?C, day}, burst => ?C}]),
    wait_until(limiter, fun() -> lists:all(fun(P) -> is_map_key(<<"login">>, call(P, weir, limiters, [])) end, Peers) end),
    %% Tables have it a moment before machines do, which lose what is admitted in between.
    lists:foreach(fun(P) -> call(P, sys, get_state, [weir_registry]) end, Peers),
    Peers.

remaining(Peer) ->
    maps:get(remaining, call(Peer, weir, peek, [login, ?KEY])).

told(Peer) ->
    maps:get(told, stats(Peer)).

%% Since the last look nothing more was told.
quiet(Peer) ->
    Told = told(Peer),
    call(Peer, timer, sleep, [300]),
    Told =:= told(Peer).

stats(Peer) ->
    call(Peer, weir_report, machine, []).
