%% What is known to be denied is denied on the node that is asked, without a message to the key's owner: until a reset, a change of
%% the limiter, or another owner makes it untrue. Real nodes. Shows R55 of doc/requirements.md.
%%
%% Buckets give back a token an hour, so none comes back during a test, and a node asks its owner again after two seconds: what a
%% case counts are questions asked of other nodes while thousands are denied.
-module(weir_exact_known_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, suspend/1, resume/1, node_of/1, wait_until/2, see_each_other/1]).
-import(weir_cluster_SUITE, [put_everywhere/3, erase_peers/0]).
-import(weir_exact_SUITE, [start_all/1, spec/1, owner/2, agree/1, rest/3, explain/2, metric/3]).

-define(KEY, <<"alice">>).
-define(C, 300).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [a_flood_is_denied_here, answered_alike, a_reset_is_known_before_it_returns, a_reset_says_whom_it_missed, resets_under_a_flood,
     a_change_is_known, made_anew, in_shadow, another_secret].

end_per_testcase(_, _Config) ->
    weir_cluster:stop(erase_peers()).

%% On the nodes that don't own the key and on the one that does; by itself and in lists; of keys of both forms.
a_flood_is_denied_here(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(?C)),
    [begin
         ?assertEqual(?C, rest([hd(Peers)], login, Key)),
         [begin
              {deny, Ms} = call(P, weir, check, [login, Key]),
              Before = asked(P),
              {Us, Denied} = call(P, timer, tc, [?MODULE, flood, [login, Key, 20000]]),
              ?assertEqual(20000, Denied),
              %% Once more every two seconds, and no more.
              ?assert(asked(P) - Before =< 1 + Us div 1500000),
              {deny, Later} = call(P, weir, check, [login, Key]),
              ?assert(Later =< Ms + 1000 andalso Later > Ms - 60000)
          end || P <- Peers]
     end || Key <- [?KEY, #{alice => 1}]].

%% A denial that is known has the form and the numbers of the owner's, whichever function asks.
answered_alike(_) ->
    Peers = start_all(2),
    ok = put_everywhere(Peers, login, spec(10)),
    Owner = owner(Peers, ?KEY),
    [Other] = Peers -- [Owner],
    {allow, 3} = call(Other, weir, check, [login, ?KEY, 7]),
    #{remaining := 3, limit := 10, allowed := false, reason := limited} = Told = call(Other, weir, decide, [login, ?KEY, 4]),
    Before = {asked(Other), denied(Other)},
    Known = call(Other, weir, decide, [login, ?KEY, 4]),
    ?assertEqual(lists:sort(maps:keys(Told)), lists:sort(maps:keys(Known))),
    [?assertEqual({K, maps:get(K, Told)}, {K, maps:get(K, Known)}) || K <- [allowed, limit, remaining, reason]],
    [?assert(abs(maps:get(K, Told) - maps:get(K, Known)) < 60000) || K <- [reset_ms, retry_ms]],
    #{retry_ms := RetryMs} = Known,
    [{deny, A}, {deny, infinity}] = call(Other, weir, check_many, [[{login, ?KEY, 4}, {login, ?KEY, 11}]]),
    ?assert(abs(A - RetryMs) < 60000),
    [#{allowed := false, reason := limited}] = call(Other, weir, decide_many, [[{login, ?KEY, 5}]]),
    {Asked, Denied} = Before,
    %% (If the machine was slow, it was asked again.)
    ?assert(asked(Other) - Asked + denied(Other) - Denied >= 4),
    %% What may be admitted is asked for.
    ?assertMatch({allow, 0}, call(Other, weir, check, [login, ?KEY, 3])).

%% Reset on any node, asked on all at once: nobody denies by what was known before.
a_reset_is_known_before_it_returns(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(5)),
    [begin
         Key = {Round, node_of(P)},
         5 = rest(Peers, login, Key),
         [{deny, _} = call(Q, weir, check, [login, Key]) || Q <- Peers],
         ok = call(P, weir, reset, [login, Key]),
         [?assertMatch({allow, _}, call(Q, weir, check, [login, Key])) || Q <- Peers]
     end || Round <- lists:seq(1, 20), P <- Peers].

a_reset_says_whom_it_missed(_) ->
    [A | Others] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, (spec(5))#{timeout => 200}),
    [B | _] = Others,
    ok = call(B, sys, suspend, [weir_owner]),
    ?assertEqual({error, {not_reached, [node_of(B)]}}, call(A, weir, reset, [login, ?KEY])),
    ok = call(B, sys, resume, [weir_owner]),
    ?assertEqual(ok, call(A, weir, reset, [login, ?KEY])).

%% While callers on all nodes drain the bucket, it is reset again and again: after each one the first answers allow.
resets_under_a_flood(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(50)),
    ok = weir_exact_SUITE:load(Peers),
    [begin
         P = lists:nth(1 + Round rem 3, Peers),
         wait_until(denied, fun() -> lists:all(fun(Q) -> element(1, call(Q, weir, check, [login, ?KEY])) =:= deny end, Peers) end),
         ok = weir_exact_SUITE:go_on(Peers),
         Before = admitted(Peers),
         ok = call(P, weir, reset, [login, ?KEY]),
         wait_until(drained, fun() -> admitted(Peers) - Before >= 50 end),
         %% Nobody goes on denying by what it was told before.
         ok = weir_exact_SUITE:go_on(Peers),
         ?assertEqual(0, rest(Peers, login, ?KEY))
     end || Round <- lists:seq(1, 10)],
    _ = weir_exact_SUITE:unload(Peers).

admitted(Peers) -> lists:sum([call(P, ?MODULE, load_admitted, []) || P <- Peers]).

load_admitted() ->
    {Counters, _} = persistent_term:get(load),
    counters:get(Counters, 1).

%% More tokens, or a rate at which they are soon back.
a_change_is_known(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(10)),
    10 = rest(Peers, login, ?KEY),
    [{deny, _} = call(P, weir, check, [login, ?KEY]) || P <- Peers],
    ok = call(B, weir, put_limiter, [login, spec(20)]),
    wait_until(changed, fun() -> lists:all(fun(P) -> weir_exact_SUITE:limit(P) =:= 20 end, Peers) end),
    [?assertMatch({allow, _}, call(P, weir, check, [login, ?KEY])) || P <- [A, B, C]],
    17 - 10 = rest(Peers, login, ?KEY),
    [{deny, _} = call(P, weir, check, [login, ?KEY]) || P <- Peers],
    ok = call(B, weir, put_limiter, [login, (spec(20))#{rate => {100, second}}]),
    wait_until(back, fun() -> lists:all(fun(P) -> element(1, call(P, weir, check, [login, ?KEY])) =:= allow end, Peers) end).

made_anew(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(10)),
    10 = rest(Peers, login, ?KEY),
    [{deny, _} = call(P, weir, check, [login, ?KEY]) || P <- Peers],
    ok = call(A, weir, delete_limiter, [login]),
    wait_until(deleted, fun() -> lists:all(fun(P) -> call(P, weir, limiters, []) =:= #{} end, Peers) end),
    ok = put_everywhere([C, B, A], login, spec(10)),
    ?assertEqual(10, rest(Peers, login, ?KEY)).

%% There what would be denied is let pass, and counted; also when it was denied until now.
in_shadow(_) ->
    Peers = start_all(2),
    ok = put_everywhere(Peers, login, spec(10)),
    10 = rest(Peers, login, ?KEY),
    [{deny, _} = call(P, weir, check, [login, ?KEY]) || P <- Peers],
    ok = put_everywhere(Peers, login, (spec(10))#{shadow => true}),
    [?assertMatch(#{allowed := true, reason := shadow}, call(P, weir, decide, [login, ?KEY, 1])) || P <- Peers, _ <- [first, second]],
    ok = put_everywhere(Peers, login, spec(10)),
    [?assertMatch(#{allowed := false, reason := limited}, call(P, weir, decide, [login, ?KEY, 1])) || P <- Peers].

another_secret(_) ->
    Peers = [weir_cluster_SUITE:keep(P) || P <- weir_cluster:start(3, #{env => #{secret => <<"the old secret of this test">>,
                                                                              next_secret => <<"the new secret of this test">>}})],
    ok = agree(Peers),
    ok = put_everywhere(Peers, login, spec(10)),
    10 = rest(Peers, login, ?KEY),
    ok = call(hd(Peers), weir, rotate_secret, []),
    ?assertEqual(0, rest(Peers, login, ?KEY)),
    ok = call(hd(Peers), weir, reset, [login, ?KEY]),
    ?assertEqual(10, rest(Peers, login, ?KEY)).

%% ---- on the nodes

flood(Limiter, Key, Count) ->
    length([denied || _ <- lists:seq(1, Count), element(1, weir:check(Limiter, Key)) =:= deny]).

%% ---- looking

asked(Peer) -> metric(Peer, weir_exact_asked_total, []).
denied(Peer) -> metric(Peer, weir_denied_total, [<<"login">>]).
