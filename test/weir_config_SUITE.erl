%% Limiters that are configured otherwise on each node: real nodes, restarted one by one as a deploy does it.
%%
%% What must hold is the same in each scenario: the specification that counts is in force on all nodes, and all say where it
%% comes from. Nodes of an older release are played by the messages that they send.
%% Shows R52, R53 and R54 of doc/requirements.md.
-module(weir_config_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [start/2, call/4, cut/2, heal/2, join/1, see_each_other/1, node_of/1, wait_until/2]).

-define(KEY, <<"alice">>).
-define(CASES, 100).

suite() ->
    [{timetrap, {minutes, 5}}].

all() ->
    [{group, source}, {group, deploys}, {group, entries}, {group, advice}].

groups() ->
    [{source, [], [merges_agree, last_start_counts, sources_of_others_are_checked]},
     {deploys, [], [deployed_one_by_one, deployed_a_hundred_times, put_in_between, deleted_in_between, put_of_the_same,
                    deployed_during_a_partition, same_millisecond, clock_an_hour_behind, config_version_counts, bad_config_versions,
                    children, child_of_a_later_code, scope_deployed, registry_crashes]},
     {entries, [], [older_version_undoes_nothing, two_specifications_of_one_version, strangers_change_nothing, made_anew_elsewhere,
                    older_release_beside]},
     {advice, [], [small_limits_are_advised]}].

init_per_testcase(_, Config) -> Config.

end_per_testcase(Case, Config) ->
    weir_cluster_SUITE:end_per_testcase(Case, Config).

%% ---- which entry counts

%% Nodes that merge the same entries in any order, then each other's, all have the same; of known sources the one that counts,
%% under the greatest version that any node told of it.
merges_agree(_) ->
    ?assert(proper:quickcheck(prop_merges_agree(), [{numtests, 2000}, {to_file, user}, noshrink])).

prop_merges_agree() ->
    ?FORALL({Entries, Seeds}, {non_empty(list(entry())), vector(3, integer())},
            begin
                Nodes = [merged(shuffled(Entries, Seed)) || Seed <- Seeds],
                Agreed = exchanged(Nodes, 6),
                length(lists:usort(Agreed)) =:= 1 andalso counts(hd(Agreed), Entries)
            end).

entry() ->
    ?LET({Counter, Rate, Source}, {range(0, 5), range(1, 5), source()},
         begin
             Spec = #{rate => {Rate, hour}},
             case Source of
                 deleted -> {<<"login">>, {deleted, 7}, weir_source:version(Counter + 1, {deleted, 7}), unknown};
                 {put, _, _} -> {<<"login">>, Spec, weir_source:version(Counter + 1, Spec), Source};
                 _ -> {<<"login">>, Spec, weir_source:version(Counter, Spec), Source}
             end
         end).

source() ->
    oneof([unknown, deleted, {put, node_name(), range(1, 3)}, {configured, range(0, 2), range(1, 3), node_name()}]).

node_name() -> oneof([<<"a">>, <<"b">>]).

shuffled(Entries, Seed) ->
    [Entry || {_, Entry} <- lists:sort([{erlang:phash2({Seed, I}), Entry} || {I, Entry} <- lists:zip(lists:seq(1, length(Entries)), Entries)])].

merged([First | Entries]) ->
    lists:foldl(fun(Theirs, Own) -> weir_source:merge(Own, Theirs) end, First, Entries).

exchanged(Nodes, 0) ->
    Nodes;
exchanged(Nodes, Rounds) ->
    exchanged([lists:foldl(fun(Theirs, Own) -> weir_source:merge(Own, Theirs) end, Node, Nodes) || Node <- Nodes], Rounds - 1).

counts({_, _, _, Source}, Entries) ->
    Known = [S || {_, _, _, S} <- Entries, S =/= unknown],
    case {length(Known) =:= length(Entries), [S || {put, _, _} = S <- Known]} of
        {false, _} -> true;
        {true, []} -> Source =:= lists:max(Known);
        {true, Puts} -> lists:member(Source, Puts)
    end.

%% Whatever the hash of the specifications, in both orders.
last_start_counts(_) ->
    [begin
         Older = {<<"login">>, spec(Old), weir_source:version(0, spec(Old)), {configured, 0, 1000, <<"b">>}},
         Newer = {<<"login">>, spec(New), weir_source:version(0, spec(New)), {configured, 0, 1001, <<"a">>}},
         {_, Spec, Version, {configured, 0, 1001, <<"a">>}} = weir_source:merge(Older, Newer),
         ?assertEqual(spec(New), Spec),
         ?assertEqual({<<"login">>, Spec, Version, {configured, 0, 1001, <<"a">>}}, weir_source:merge(Newer, Older)),
         ?assert(Version > element(3, Older))
     end || Old <- lists:seq(1, 30), New <- lists:seq(1, 30), Old =/= New].

spec(N) -> #{rate => {N, hour}}.

sources_of_others_are_checked(_) ->
    [?assert(weir_source:is_source(Good)) || Good <- [{put, <<"a">>, 0}, {configured, 0, 1, <<"a">>}, {configured, 1 bsl 53, 1 bsl 60, <<"a">>}]],
    [?assertNot(weir_source:is_source(Bad))
     || Bad <- [unknown, {put, a, 1}, {put, <<"a">>, -1}, {put, <<"a">>, 1.0}, {configured, 0, 1 bsl 61, <<"a">>}, {configured, 0, 1, a},
                {configured, -1, 1, <<"a">>}, {configured, 0, 1, binary:copy(<<"a">>, 1025)}, {put, <<"a">>}, [], put]],
    [?assert(is_binary(weir_source:text(S)))
     || S <- [unknown, {put, <<"a">>, 1 bsl 60}, {configured, 3, 1700000000000, <<255>>}, {configured, 0, 0, <<"a">>}]].

%% ---- deploys

%% The way everybody deploys: each node stopped and started with the new configuration, one after the other.
deployed_one_by_one(_) ->
    Peers = nodes_with(3, 50),
    lists:foldl(fun(Rate, Now) -> deployed(Now, Rate) end, Peers, [5, 7, 50]).

deployed(Peers, Rate) ->
    New = lists:foldl(fun(I, Now) ->
                              Peer = lists:nth(I, Now),
                              Others = lists:delete(Peer, Now),
                              weir_cluster:stop_node(Peer),
                              Again = keep(weir_cluster:restart(weir_cluster:options(Peer, env(Rate)), Others)),
                              see_each_other([Again | Others]),
                              lists:sublist(Now, I - 1) ++ [Again] ++ lists:nthtail(I, Now)
                      end, Peers, lists:seq(1, length(Peers))),
    in_force(New, Rate),
    configured_by(lists:last(New), New),
    New.

%% Any rate: which one counts must not depend on a hash of it. (weir is restarted, not the VM.)
deployed_a_hundred_times(_) ->
    Peers = nodes_with(3, 50),
    Rates = [rand:uniform(100000) || _ <- lists:seq(1, 100)],
    ct:log("rates: ~w", [Rates]),
    [begin
         [restart_weir(Peer, env(Rate)) || Peer <- Peers],
         in_force(Peers, Rate)
     end || Rate <- Rates],
    configured_by(lists:last(Peers), Peers).

put_in_between(_) ->
    [A, B, C] = Peers = nodes_with(3, 50),
    [log_on(P) || P <- Peers],
    restart_weir(A, env(5)),
    in_force(Peers, 5),
    ok = call(B, weir, put_limiter, [login, #{rate => {9, hour}}]),
    in_force(Peers, 9),
    [restart_weir(P, env(5)) || P <- [B, C, A]],
    in_force(Peers, 9),
    [restart_weir(P, env(7)) || P <- Peers],
    in_force(Peers, 9),
    Of = atom_to_binary(node_of(B)),
    same_source(Peers, fun(#{by := put, node := Node, at_ms := _}) -> Node =:= Of; (_) -> false end),
    %% Each node says what it follows, and why: A's deploy, the change, and what its own configuration is worth.
    [wait_until({logged, What, node_of(P)}, fun() -> lists:keymember(What, 1, logged(P)) end)
     || P <- Peers, What <- [limiter_follows, limiter_not_as_configured]],
    [?assertMatch(#{follows := _, why := _}, Report) || P <- Peers, {_, Report} <- logged(P)].

%% A deletion is a change by a call.
deleted_in_between(_) ->
    [A, B, C] = Peers = nodes_with(3, 50),
    ok = call(A, weir, delete_limiter, [login]),
    wait_until(deleted, fun() -> [#{}, #{}, #{}] =:= [call(P, weir, limiters, []) || P <- Peers] end),
    [restart_weir(P, env(5)) || P <- [B, C, A]],
    quiet(Peers),
    ?assertEqual([#{}, #{}, #{}], [call(P, weir, limiters, []) || P <- Peers]),
    ok = call(A, weir, put_limiter, [login, #{rate => {8, hour}}]),
    in_force(Peers, 8).

%% Nothing changes, but from then on it counts more than a configuration. Its keys' levels stay.
put_of_the_same(_) ->
    [A, B, _] = Peers = nodes_with(3, 50),
    {allow, _} = call(A, weir, check, [login, ?KEY, 20]),
    Before = call(A, weir_specs, entry, [<<"login">>]),
    ok = call(A, weir, put_limiter, [login, #{rate => {50, hour}}]),
    same_source(Peers, fun(#{by := By}) -> By =:= put end),
    ?assertEqual([Before, Before, Before], [call(P, weir_specs, entry, [<<"login">>]) || P <- Peers]),
    ?assertMatch(#{level := 20}, call(A, weir, explain, [login, ?KEY])),
    restart_weir(B, env(5)),
    in_force(Peers, 50).

%% Both sides are deployed to while they can't reach each other.
deployed_during_a_partition(_) ->
    [A, B, C] = Peers = nodes_with(3, 50),
    lists:foldl(fun({First, Last}, _) ->
                        cut([A], [B, C]),
                        restart_weir(A, env(First)),
                        [restart_weir(P, env(Last)) || P <- [C, B]],
                        heal([A], [B, C]),
                        connected(A, [B, C]),
                        in_force(Peers, Last),
                        configured_by(B, Peers)
                end, none, [{5, 7}, {7, 5}, {11, 10}, {10, 11}]),
    %% The side that restarted last with what was there before it, too.
    cut([A], [B, C]),
    restart_weir(A, env(12)),
    [restart_weir(P, env(11)) || P <- [B, C]],
    heal([A], [B, C]),
    connected(A, [B, C]),
    in_force(Peers, 11),
    configured_by(C, Peers).

%% Nodes that start apart at the same moment: the greater name's, on both.
same_millisecond(_) ->
    [begin
         Peers = [started_at(1700000000000, hd(nodes_with(1, Rate))) || Rate <- Rates],
         join(Peers),
         {_, Rate} = lists:max([{node_of(P), Rate} || {P, Rate} <- lists:zip(Peers, Rates)]),
         in_force(Peers, Rate),
         [A, B] = sources(Peers),
         ?assertEqual(A, B),
         ?assertMatch(#{by := configured, at_ms := 1700000000000}, A)
     end || Rates <- [[5, 7], [7, 5]]].

started_at(Ms, Peer) ->
    weir_cluster:eval(Peer, fun() -> moved(Ms) end),
    Peer.

moved(Ms) ->
    [{Name, Spec, Version, {configured, 0, _, Node}}] = ets:lookup(weir_specs, <<"login">>),
    true = ets:insert(weir_specs, [{Name, Spec, Version, {configured, 0, Ms, Node}}, {{configured, Name}, Spec, {configured, 0, Ms, Node}}]).

%% What starts beside others is later than they are, whatever its clock says. What starts apart has nothing but its clock.
clock_an_hour_behind(_) ->
    Behind = #{os_env => [weir_fake_clock:preload(), {"FAKETIME", "-1h"}, {"FAKETIME_DONT_FAKE_MONOTONIC", "1"},
                          {"DONT_FAKE_MONOTONIC", "1"}]},
    [A, B] = nodes_with(2, 50),
    C = keep(weir_cluster:add([A, B], maps:merge(env(5), Behind))),
    Peers = [A, B, C],
    see_each_other(Peers),
    ?assert(call(C, os, system_time, [millisecond]) < os:system_time(millisecond) - 3000000),
    in_force(Peers, 5),
    restart_weir(A, env(7)),
    in_force(Peers, 7),
    restart_weir(C, env(6)),
    in_force(Peers, 6).

%% It beats the time of start, in any order; none is less than any.
config_version_counts(_) ->
    [A, B, C] = Peers = nodes_with(3, 50),
    restart_weir(A, versioned(2, 5)),
    in_force(Peers, 5),
    restart_weir(B, versioned(1, 7)),
    restart_weir(C, env(8)),
    quiet(Peers),
    in_force(Peers, 5),
    same_source(Peers, fun(#{config_version := 2}) -> true; (_) -> false end),
    [restart_weir(P, versioned(3, 9)) || P <- [C, B]],
    in_force(Peers, 9),
    restart_weir(A, versioned(2, 5)),
    quiet(Peers),
    in_force(Peers, 9).

bad_config_versions(_) ->
    [begin
         ok = weir_test:stop(),
         ok = application:set_env(weir, config_version, Bad),
         {error, {{bad_config, config_version, Message}, _}} = application:start(weir),
         ?assertMatch({match, _}, re:run(Message, "config_version is an integer"))
     end || Bad <- [0, -1, 1.5, "7", <<"7">>, (1 bsl 53) + 1, undefined_]],
    ok = weir_test:stop(),
    ok = application:set_env(weir, config_version, 1 bsl 53),
    ok = application:start(weir),
    ok = weir_test:stop().

%% Limiters of a child of somebody else's supervisor are configured as those of sys.config are.
children(_) ->
    [A, B, C] = Peers = start_all(3, #{}),
    [with_child(P, 50) || P <- Peers],
    in_force(Peers, 50),
    lists:foldl(fun(Rate, _) ->
                        [begin without_child(P), restart_weir(P, #{}), with_child(P, Rate) end || P <- [B, C, A]],
                        in_force(Peers, Rate)
                end, none, [5, 7, 6]),
    %% A child that its supervisor starts again doesn't make its limiter newer than what was deployed meanwhile.
    without_child(A),
    restart_weir(A, #{}),
    with_child(A, 8),
    in_force(Peers, 8),
    with_child(C, 6),
    quiet(Peers),
    in_force(Peers, 8),
    ok = call(B, weir, put_limiter, [login, #{rate => {9, hour}}]),
    in_force(Peers, 9),
    with_child(A, 10),
    quiet(Peers),
    in_force(Peers, 9).

%% New code brings another child to a running node: it is the last one.
child_of_a_later_code(_) ->
    [A, B] = Peers = nodes_with(2, 50),
    with_child(A, 5),
    in_force(Peers, 5),
    with_child(B, 7),
    in_force(Peers, 7).

%% In place of the child that was there.
with_child(Peer, Rate) ->
    without_child(Peer),
    ok = weir_cluster:eval(Peer, fun() -> start_child(Rate) end).

start_child(Rate) ->
    {ok, Child} = weir_child:start_link(#{limiters => #{login => #{rate => {Rate, hour}}}}),
    true = unlink(Child),
    true = register(child, Child),
    ok.

without_child(Peer) ->
    true = call(Peer, erlang, apply, [fun() -> whereis(child) =:= undefined orelse exit(whereis(child), kill) end, []]),
    wait_until(no_child, fun() -> call(Peer, erlang, whereis, [child]) =:= undefined end).

%% What can't be changed in a limiter can be deployed: it is made anew on all nodes.
scope_deployed(_) ->
    Peers = nodes_with(3, 50),
    [restart_weir(P, limiters(#{rate => {50, hour}, scope => exact, max_keys => 1000})) || P <- Peers],
    wait_until(exact, fun() -> lists:all(fun(P) -> is_exact(P) end, Peers) end),
    ?assertEqual(50, lists:sum([weir_cluster:checks(P, login, ?KEY, 50) || P <- Peers])).

is_exact(Peer) ->
    case call(Peer, weir, limiters, []) of
        #{<<"login">> := #{scope := exact, max_keys := 1000}} -> true;
        #{} -> false
    end.

%% What a crash of the process finds there stays, with its source.
registry_crashes(_) ->
    [A, B] = Peers = nodes_with(2, 50),
    restart_weir(A, env(5)),
    in_force(Peers, 5),
    Sources = sources(Peers),
    [true = call(P, erlang, apply, [fun() -> exit(whereis(weir_registry), kill) end, []]) || P <- Peers],
    [wait_until(back, fun() -> is_pid(call(P, erlang, whereis, [weir_registry])) end) || P <- Peers],
    in_force(Peers, 5),
    ?assertEqual(Sources, sources(Peers)),
    restart_weir(B, env(6)),
    in_force(Peers, 6).

%% ---- entries of other nodes

older_version_undoes_nothing(_) ->
    [A, B, C] = Peers = start_all(3, #{}),
    ok = call(A, weir, put_limiter, [login, #{rate => {5, hour}}]),
    in_force(Peers, 5),
    Older = call(A, weir_specs, entries, []),
    ok = call(B, weir, put_limiter, [login, #{rate => {6, hour}}]),
    in_force(Peers, 6),
    Entries = [call(P, weir_specs, entries, []) || P <- Peers],
    [told(C, P, Told) || P <- Peers, Told <- [Older, [E || {_, _, _} = E <- Older]]],
    ?assertEqual(Entries, [call(P, weir_specs, entries, []) || P <- Peers]),
    in_force(Peers, 6).

%% Two changes whose hash is the same: the greater, under a version above both, whichever was there first.
two_specifications_of_one_version(_) ->
    [A, B] = Peers = start_all(2, #{}),
    ok = call(A, weir, put_limiter, [login, #{rate => {5, hour}}]),
    in_force(Peers, 5),
    [begin
         {Name, Had, Version} = call(A, weir_specs, entry, [<<"login">>]),
         told(B, A, [{Name, Had#{rate := {Rate, hour}}, Version}]),
         {Name, Counts, Next} = call(A, weir_specs, entry, [Name]),
         ?assertEqual({max(Had#{rate := {Rate, hour}}, Had), true}, {Counts, Next > Version})
     end || Rate <- [6, 4]],
    in_force(Peers, 6),
    wait_until(same, fun() -> length(lists:usort([call(P, weir_specs, entry, [<<"login">>]) || P <- Peers])) =:= 1 end).

%% A connected node that is no member, as it has another secret.
strangers_change_nothing(_) ->
    [A, _] = Peers = start_all(2, #{}),
    ok = call(A, weir, put_limiter, [login, #{rate => {5, hour}}]),
    in_force(Peers, 5),
    [C] = start_all(1, #{env => #{secret => <<"another secret of 16 bytes">>, limiters => #{other => #{rate => {1, hour}}}}}),
    [true = call(C, net_kernel, connect_node, [node_of(P)]) || P <- Peers],
    [wait_until(refused, fun() -> is_map_key(node_of(C), maps:get(refused, call(P, weir_members, status, []))) end) || P <- Peers],
    {Name, Spec, Version} = call(A, weir_specs, entry, [<<"login">>]),
    [told(C, P, [{Name, Spec#{rate := {6, hour}}, Version + 4096}, {<<"more">>, Spec, 5000}]) || P <- Peers],
    in_force(Peers, 5),
    ?assertEqual([[<<"login">>], [<<"login">>]], [maps:keys(call(P, weir, limiters, [])) || P <- Peers]).

%% Deleted and made again with another max_keys while a node was out of reach: there it has to be made anew, too.
made_anew_elsewhere(_) ->
    [A, B, C] = Peers = start_all(3, #{}),
    ok = call(A, weir, put_limiter, [login, #{rate => {5, hour}}]),
    in_force(Peers, 5),
    5 = weir_cluster:checks(A, login, ?KEY, 9),
    cut([A], [B, C]),
    ok = call(B, weir, delete_limiter, [login]),
    ok = call(B, weir, put_limiter, [login, #{rate => {6, hour}, max_keys => 1000}]),
    heal([A], [B, C]),
    see_each_other(Peers),
    in_force(Peers, 6),
    ?assertMatch([#{max_keys := 1000}, #{max_keys := 1000}, #{max_keys := 1000}],
                 [maps:get(<<"login">>, call(P, weir, limiters, [])) || P <- Peers]),
    [?assertMatch(#{table := #{max_keys := 1000}}, call(P, weir, explain, [login, ?KEY])) || P <- Peers].

%% A node of a release without sources. C plays it: it tells entries without them.
older_release_beside(_) ->
    [A, B, C] = Peers = nodes_with(3, 50),
    Old = [call(C, weir_specs, entry, [<<"login">>])],
    restart_weir(A, env(5)),
    in_force(Peers, 5),
    Echo = [call(C, weir_specs, entry, [<<"login">>])],
    restart_weir(B, env(7)),
    in_force(Peers, 7),
    Sources = sources(Peers),
    %% What it repeats late undoes nothing.
    [told(C, P, Told) || P <- [A, B], Told <- [Old, Echo, Old]],
    in_force(Peers, 7),
    ?assertEqual(Sources, sources(Peers)),
    %% What it changes reaches all, and is a change by a call.
    {Name, Spec, Version} = call(A, weir_specs, entry, [<<"login">>]),
    [told(C, P, [{Name, Spec#{rate := {9, hour}}, Version + 4096}]) || P <- Peers],
    in_force(Peers, 9),
    restart_weir(A, env(5)),
    in_force(Peers, 9),
    ?assertMatch(#{by := unknown}, hd(sources([B]))),
    %% What was heard from it first, and then from the node that configured it: the source is learned.
    Next = {Name, Spec#{rate := {11, hour}}, Version + 8192},
    told(C, B, [Next]),
    Source = {configured, 0, 1700000000000, <<"c">>},
    told(C, B, [Next, {source, Name, Version + 8192, Source}]),
    wait_until(learned, fun() -> maps:get(by, hd(sources([B]))) =:= configured end),
    %% ... and that it is older than what A started with last, which counts again.
    in_force(Peers, 5).

%% ---- advice

%% Once, on the node where it was put; explained everywhere.
small_limits_are_advised(_) ->
    [A, B, _] = Peers = start_all(3, #{}),
    [log_on(P) || P <- Peers],
    Put = fun(Name, Spec) -> ok = call(A, weir, put_limiter, [Name, maps:merge(#{rate => {5, hour}}, Spec)]) end,
    Put(login, #{}),
    Put(login, #{burst => 4}),
    Put(login, #{burst => 5}),
    Put(enough, #{burst => 6}),
    Put(local, #{scope => local}),
    Put(exact, #{scope => exact}),
    ?assertMatch([{_, #{limiter := <<"login">>, why := _}}], [Log || {limiter_small_for_its_nodes, _} = Log <- logged(A)]),
    wait_until(everywhere, fun() -> map_size(call(B, weir, limiters, [])) =:= 4 end),
    ?assertEqual([], [Log || {limiter_small_for_its_nodes, _} = Log <- logged(B)]),
    #{advice := Advice} = call(B, weir, explain, [login, ?KEY]),
    ?assertMatch({match, _}, re:run(Advice, "a burst of 5 on 3 nodes .* scope => exact")),
    [?assertNot(is_map_key(advice, call(B, weir, explain, [Name, ?KEY]))) || Name <- [enough, local, exact]].

%% ---- helpers

%% So many nodes, each configured with this many an hour.
nodes_with(Count, Rate) ->
    start_all(Count, env(Rate)).

env(Rate) -> limiters(#{rate => {Rate, hour}}).

limiters(Spec) -> #{env => #{limiters => #{login => Spec}}}.

versioned(ConfigVersion, Rate) ->
    #{env := Env} = env(Rate),
    #{env => Env#{config_version => ConfigVersion}}.

start_all(Count, Options) ->
    [keep(P) || P <- start(Count, Options)].

keep(Peer) -> weir_cluster_SUITE:keep(Peer).

%% weir is stopped, configured otherwise, and started: a deploy without the VM's start. (The connections stay.)
restart_weir(Peer, Options) ->
    ok = call(Peer, application, stop, [weir]),
    [ok = call(Peer, application, unset_env, [weir, Key]) || Key <- [limiters, config_version]],
    [ok = call(Peer, application, set_env, [weir, Key, Value]) || {Key, Value} <- maps:to_list(maps:get(env, Options, #{}))],
    ok = call(Peer, application, start, [weir]).

connected(Peer, Others) ->
    wait_until({connected, node_of(Peer)},
               fun() ->
                       _ = [call(Peer, net_kernel, connect_node, [node_of(P)]) || P <- Others],
                       lists:all(fun(P) -> lists:member(node_of(P), call(Peer, erlang, nodes, [])) end, Others)
               end),
    see_each_other([Peer | Others]).

in_force(Peers, Rate) ->
    wait_until({in_force, Rate, fun() -> [rate(P) || P <- Peers] end}, fun() -> lists:all(fun(P) -> rate(P) =:= Rate end, Peers) end).

rate(Peer) ->
    case call(Peer, weir, limiters, []) of
        #{<<"login">> := #{rate := {Rate, hour}}} -> Rate;
        #{} -> none
    end.

sources(Peers) ->
    [maps:get(<<"login">>, call(P, weir, sources, []), none) || P <- Peers].

%% All say the same, and explain it.
same_source(Peers, Is) ->
    wait_until(source, fun() ->
                               [Source | _] = All = sources(Peers),
                               lists:usort(All) =:= [Source] andalso Is(Source)
                       end),
    [?assertMatch({_, #{source := Source}}, {Source, call(P, weir, explain, [login, ?KEY])}) || P <- Peers, Source <- [hd(sources([P]))]].

configured_by(Peer, Peers) ->
    Of = atom_to_binary(node_of(Peer)),
    same_source(Peers, fun(#{by := By, node := Node}) -> {By, Node} =:= {configured, Of} end).

%% Nodes that have nothing left to tell each other: their digests agree, and the mailboxes are empty.
quiet(Peers) ->
    wait_until(quiet, fun() -> length(lists:usort([digests(P) || P <- Peers])) =:= 1 end).

digests(Peer) ->
    _ = call(Peer, sys, get_state, [weir_registry]),
    lists:sort(call(Peer, weir_specs, entries, [])).

%% From tells To, as one process of weir_registry tells the other; and To has heard it.
told(From, To, Entries) ->
    _ = call(From, erlang, send, [{weir_registry, node_of(To)}, {weir_registry, 1, node_of(From), {entries, Entries, false}}]),
    _ = call(From, sys, get_state, [{weir_registry, node_of(To)}]),
    ok.

%% ---- what a node logs

log_on(Peer) ->
    ok = call(Peer, logger, set_primary_config, [level, notice]),
    weir_cluster:eval(Peer, fun start_log/0).

start_log() ->
    Self = self(),
    Pid = spawn(fun() -> true = register(?MODULE, self()), Self ! ready, log_loop([]) end),
    receive ready -> ok end,
    _ = logger:remove_handler(default),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{to => Pid}, level => notice}).

log_loop(Reports) ->
    receive
        {report, Report} -> log_loop([Report | Reports]);
        {ask, Pid} -> Pid ! {reports, lists:reverse(Reports)}, log_loop(Reports)
    end.

%% logger's callback.
log(#{msg := {report, #{what := What} = Report}}, #{config := #{to := Pid}}) when
      What =:= limiter_follows; What =:= limiter_not_as_configured; What =:= limiter_small_for_its_nodes ->
    Pid ! {report, {What, Report}};
log(_, _) ->
    ok.

logged(Peer) ->
    weir_cluster:eval(Peer, fun() -> ?MODULE ! {ask, self()}, receive {reports, Reports} -> Reports end end).
