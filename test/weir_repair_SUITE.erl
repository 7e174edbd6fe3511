%% Resets on real nodes: seen by all, also by those that were away, and never `ok' when they failed.
-module(weir_repair_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, checks/4, cut/2, heal/2, join/1, machine_live/1, see_each_other/1, start/1, stop/1,
                       wait_until/2]).

-define(KEY, <<"alice">>).
-define(LIMITS, #{rate => {5, hour}, burst => 5}).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [reset_is_seen_by_others, reset_waits_for_others, reset_reaches_who_was_away, a_reset_that_failed_is_no_ok].

end_per_testcase(_, _Config) ->
    case erase(peers) of
        undefined -> ok;
        Peers -> [stop([P]) || P <- Peers]
    end,
    ok.

reset_is_seen_by_others(_) ->
    [A, B] = Peers = nodes_with_limiter(),
    ?assertEqual(5, checks(A, login, ?KEY, 9)),
    wait_until(denied_there, fun() -> remaining(B) =:= 0 end),
    ok = call(A, weir, reset, [login, ?KEY]),
    ?assertEqual(5, remaining(A)),
    wait_until(reset_there, fun() -> remaining(B) =:= 5 end),
    Again = fun(P) ->
                    Admitted = checks(P, login, ?KEY, 1),
                    weir_rounds:told(Peers, login, ?KEY),
                    Admitted
            end,
    ?assertEqual(5, lists:sum([Again(P) || P <- Peers ++ Peers ++ Peers ++ Peers])).

%% With scope exact a reset returns when the other nodes have taken it.
reset_waits_for_others(_) ->
    [A, B] = nodes_with_limiter(),
    ok = call(A, weir, put_limiter, [payments, #{rate => {5, {5, day}}, scope => exact, timeout => 20000}]),
    wait_until(limiter, fun() -> call(B, weir_specs, is_known, [payments]) end),
    ok = call(B, sys, suspend, [weir_replica]),
    Self = self(),
    Reset = spawn_link(fun() -> Self ! {self(), call(A, weir, reset, [payments, ?KEY])} end),
    wait_until(asked, fun() -> call(B, ?MODULE, resets_wait, []) =:= 1 end),
    receive {Reset, Early} -> ct:fail({returned_before, Early})
    after 0 -> ok
    end,
    ok = call(B, sys, resume, [weir_replica]),
    ?assertEqual(ok, receive {Reset, Answer} -> Answer end).

resets_wait() ->
    {messages, Messages} = process_info(whereis(weir_replica), messages),
    length([Reset || {'$gen_call', _, {weir_reset, 1, _, _, _} = Reset} <- Messages]).

reset_reaches_who_was_away(_) ->
    [A, B] = nodes_with_limiter(),
    ?assertEqual(5, checks(A, login, ?KEY, 9)),
    wait_until(denied_there, fun() -> remaining(B) =:= 0 end),
    cut([A], [B]),
    wait_until(away, fun() -> [machine_live(P) || P <- [A, B]] =:= [1, 1] end),
    ok = call(A, weir, reset, [login, ?KEY]),
    ?assertEqual({5, 0}, {remaining(A), remaining(B)}),
    heal([A], [B]),
    see_each_other([A, B]),
    wait_until(reset_there, fun() -> remaining(B) =:= 5 end),
    weir_rounds:repair_is_small(reset, [A, B], 1).

%% One more than max_resets, of keys that nobody knows.
a_reset_that_failed_is_no_ok(_) ->
    [A, _B] = nodes_with_limiter(),
    ?assertEqual({ok, {error, too_many_resets}}, call(A, ?MODULE, reset_many, [65536])),
    ?assertEqual(ok, call(A, weir, reset, [login, 1])),
    ok = call(A, sys, suspend, [weir_sup]),
    true = call(A, erlang, exit, [call(A, erlang, whereis, [weir_replica]), kill]),
    ?assertEqual({error, unavailable}, call(A, weir, reset, [login, 1])),
    ok = call(A, sys, resume, [weir_sup]).

reset_many(Count) ->
    Results = [weir:reset(login, I) || I <- lists:seq(1, Count)],
    {hd(lists:usort(Results)), weir:reset(login, Count + 1)}.

nodes_with_limiter() ->
    Peers = start(2),
    put(peers, Peers),
    join(Peers),
    [ok = call(P, weir, put_limiter, [login, ?LIMITS]) || P <- Peers],
    Peers.

remaining(Peer) ->
    maps:get(remaining, call(Peer, weir, peek, [login, ?KEY])).
