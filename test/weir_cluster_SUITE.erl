%% Nodes that limit together: real ones, processes of the system, through crashes, partitions and changes. A scenario a test.
%%
%% Bounds. Keys have c tokens that come back so slowly that none does during a test (a day each), and checks are of one hit. With
%% all births known everywhere all nodes deny, and what was admitted is at least c. Above c it is what nodes admitted while news
%% were under way: the sum of all unsent never exceeds the slack as the senders knew it, so at worst each node uses up once what
%% the others had in flight, bounded here by what the scenario states.
%% Shows R32 of doc/requirements.md.
-module(weir_cluster_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [start/1, start/2, stop/1, add/2, call/4, kill/1, suspend/1, resume/1, restart/2, cut/2, heal/2, checks/4,
                       everywhere/4, see_each_other/1, denied_by_all/3, node_of/1, wait_until/2, members/1, machine_live/1]).
-import(weir_rounds, [within/4, limited/4, limited/5, repair_is_small/3, repair_is_small/4]).

-define(KEY, <<"alice">>).
-define(C, 300).
-define(SLOW, #{rate => {?C, {?C, day}}}).
%% (A process starts in a second, but here some share two cores with other work.)
suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [{group, members}, {group, limits}, {group, limiters}, {group, faults}, {group, partitions}].

groups() ->
    [{members, [], [alone, join_and_leave, started_after_the_others, bad_configurations, other_secret, other_protocol, malformed_hellos, same_number,
                    first_to_be_ready, later_incarnation, nodes_without_weir, forgotten, with_the_defaults_of_distribution]},
     {limits, [], [one_limit_over_three_nodes, flooded, one_node_after_the_other, local_is_local, explained, metrics, large_hits_ask,
                   large_hits_of_batches_ask, flushed_after]},
     {limiters, [], [limiters_reach_all, late_joiner_has_limiters, same_change_is_none, changes_at_the_same_time,
                     deleted_stays_deleted, deleted_under_load, fixed_options, configuration_gives_way]},
     {faults, [], [killed_while_a_bucket_fills, killed_node_returns, stopped_in_order, processes_crash, suspended_peer,
                   flood_of_frames, outbox_is_bounded, restarts_leave_nothing]},
     {partitions, [], [partition_open, partition_share, partition_closed, flapping_link, joins_under_load]}].

init_per_testcase(_, Config) -> Config.

%% Nodes of a failed test must not go on.
end_per_testcase(_, _Config) ->
    [stop([P]) || P <- erase_peers()],
    ok.

%% ---- members

%% Without distribution there is a machine that has nobody to tell.
alone(_) ->
    ok = weir_test:stop(),
    {ok, _} = application:ensure_all_started(weir),
    ?assertMatch(#{state := alone, members := Members} when map_size(Members) =:= 0, weir_members:status()),
    ok = weir:put_limiter(login, #{rate => {5, hour}}),
    ?assertEqual(5, weir_cluster:ask_many(login, ?KEY, 9)),
    ?assertMatch(#{scope := cluster, nodes := #{live := 1, registered := 1}, peers := []}, weir:explain(login, ?KEY)),
    %% Nobody is told of births.
    ?assertEqual(none, weir_machine:attached()),
    ok = weir_test:stop().

join_and_leave(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    %% Below its share: the others don't know of these. Whoever leaves tells them.
    7 = checks(C, login, ?KEY, 7),
    ok = call(C, weir, leave, []),
    wait_until(left, fun() -> members(A) =:= #{node_of(B) => connected} andalso members(B) =:= #{node_of(A) => connected} end),
    ?assertEqual([2, 2], [maps:get(registered, call(P, weir_report, machine, [])) || P <- [A, B]]),
    ?assertMatch(#{state := left}, call(C, weir_members, status, [])),
    wait_until(told, fun() -> lists:all(fun(P) -> remaining(P) =:= ?C - 7 end, [A, B]) end),
    %% It decides on, and is not asked back.
    ?assertEqual(?C - 7, checks(C, login, ?KEY, ?C)),
    ok = call(C, net_kernel, monitor_nodes, [true]),
    _ = call(C, erlang, send, [weir_members, {nodeup, node_of(A)}]),
    _ = call(C, sys, get_state, [weir_members]),
    ?assertEqual(#{node_of(B) => connected}, members(A)),
    %% Started again, it is one of them.
    ok = call(C, application, stop, [weir]),
    {ok, _} = call(C, application, ensure_all_started, [weir]),
    see_each_other(Peers).

started_after_the_others(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, ?SLOW),
    Before = lists:sum(everywhere(Peers, login, ?KEY, ?C)),
    ?assert(Before >= ?C),
    denied_by_all(Peers, login, ?KEY),
    C = keep(add(Peers, #{})),
    see_each_other([A, B, C]),
    %% It copied the state when it says that it is ready: the first thing that it then says is no.
    wait_until(ready, fun() -> call(C, weir_ready, check, []) =:= ready end),
    ?assertEqual(0, checks(C, login, ?KEY, 10)).

%% What is wrong with a configuration is said in a sentence, without what must stay secret.
bad_configurations(_) ->
    ok = weir_test:stop(),
    Absent = filename:join(["nowhere", "secret"]),
    [begin
         _ = application:load(weir),
         ok = application:set_env(weir, Key, Value),
         {error, {{bad_config, Key, Message}, _}} = application:start(weir),
         ?assertNotEqual({Value, nomatch}, {Value, string:find(Message, Word)}),
         ?assertEqual(nomatch, string:find(Message, "hidden")),
         ok = application:unset_env(weir, Key)
     end || {Key, Value, Word} <- [{secret, <<"hidden">>, "16"}, {secret, "a hidden list of characters", "binary"},
                                   {secret, {file, Absent}, "no such file"}, {secret, {env, "WEIR_NO_SUCH_SECRET"}, "WEIR_NO_SUCH"},
                                   {secret, {file, []}, "secret"}, {cluster, [], "map"}, {carry_ms, -1, "milliseconds"}, {carry_ms, infinity, "milliseconds"},
                                   {carry_ms, 1 bsl 60, "milliseconds"}, {cluster, #{peer_timeout => 0}, "1000"},
                                   {cluster, #{timeout => 5000}, "forget_after"}]].

%% Refused by both, with what to do; nothing of it gets into the machine, and keys are limited by each.
other_secret(_) ->
    [A] = start_all(1, #{env => #{secret => <<"0123456789abcdef">>}}),
    [B] = start_all(1, #{env => #{secret => <<"0123456789abcdeg">>}}),
    true = call(A, net_kernel, connect_node, [node_of(B)]),
    wait_until(refused, fun() -> refused(A, B) =/= none andalso refused(B, A) =/= none end),
    [?assertNotEqual(nomatch, string:find(refused(P, Q), "secret")) || {P, Q} <- [{A, B}, {B, A}]],
    [?assertMatch(#{live := 1, registered := 1}, call(P, weir_report, machine, [])) || P <- [A, B]],
    %% With the same they get on.
    [begin
         ok = call(P, application, stop, [weir]),
         ok = call(P, application, set_env, [weir, secret, <<"one secret for all">>])
     end || P <- [A, B]],
    [{ok, _} = call(P, application, ensure_all_started, [weir]) || P <- [A, B]],
    see_each_other([A, B]),
    ?assertEqual([none, none], [refused(A, B), refused(B, A)]).

other_protocol(_) ->
    [A] = start_all(1),
    [Plain] = start_all(1, #{weir => false}),
    true = call(A, net_kernel, connect_node, [node_of(Plain)]),
    _ = call(A, erlang, send, [weir_members, {weir_members, 99, hello, #{node => node_of(Plain)}}]),
    wait_until(refused, fun() -> refused(A, Plain) =/= none end),
    ?assertNotEqual(nomatch, string:find(refused(A, Plain), "99")),
    ?assertEqual(#{}, members(A)).

%% Any term may come from another node: nothing of it crashes a process or makes a member.
malformed_hellos(_) ->
    [A] = start_all(1),
    Pids = pids(A),
    Good = call(A, ?MODULE, a_hello, ['x@y']),
    [begin
         _ = call(A, erlang, send, [weir_members, {weir_members, 1, Kind, Bad}]),
         ?assertEqual(#{}, members(A))
     end || Kind <- [hello, welcome, bye, what],
            Bad <- [maps:put(Key, Value, Good) || Key <- maps:keys(Good), Value <- [-1, <<>>, [a | b], 1 bsl 200]] ++
                       [maps:remove(Key, Good) || Key <- maps:keys(Good)] ++ [#{}, none]],
    [_ = call(A, erlang, send, [Name, Message])
     || Name <- [weir_members, weir_registry, weir_replica],
        Message <- [{weir_registry, 1, node(), {digest, <<>>}}, {weir_registry, 1, 5, {entries, x, y}}, {weir_frame, 1, 5, data, <<>>},
                    {weir_frame, 1, x, data, y}, {weir_frame, 2, 5}, {timeout, make_ref(), wake}, {nodeup, 5, 6}, hello]],
    ?assertMatch(#{state := alone}, status(A)),
    ?assertEqual(Pids, pids(A)).

%% Of nodes that start together one is the first to be ready. What others say to it from then on, before its machine is made, must
%% not make it copy from them: all would copy from each other.
first_to_be_ready(_) ->
    [A] = start_all(1),
    Hello = call(A, ?MODULE, a_hello, ['other@elsewhere']),
    _ = call(A, erlang, send, [weir_members, {weir_members, 1, hello, Hello}]),
    wait_until(member, fun() -> is_map_key('other@elsewhere', members(A)) end),
    ?assertMatch(#{joining := false}, call(A, weir_roster, await_start, [])).

same_number(_) ->
    [A] = start_all(1),
    {One, Two} = call(A, ?MODULE, names_of_one_number, []),
    Hello = fun(Node) -> call(A, erlang, send, [weir_members, {weir_members, 1, hello, call(A, ?MODULE, a_hello, [Node])}]) end,
    _ = Hello(One),
    wait_until(member, fun() -> is_map_key(One, members(A)) end),
    %% (Who isn't connected is soon no longer named.)
    wait_until(refused, fun() ->
                                _ = Hello(Two),
                                string:find(maps:get(Two, maps:get(refused, status(A)), ""), atom_to_list(One)) =/= nomatch
                        end),
    ?assertEqual([One], maps:keys(members(A))).

%% Of some hundred thousand names two have the same number of 32 bits.
names_of_one_number() ->
    names_of_one_number(1, #{}).

names_of_one_number(I, Names) ->
    Name = list_to_atom("n" ++ integer_to_list(I) ++ "@elsewhere"),
    Id = weir_members:node_id(Name),
    case Names of
        #{Id := Other} -> {Other, Name};
        #{} -> names_of_one_number(I + 1, Names#{Id => Name})
    end.

%% The clock of a node was set back while it was down: those that know it tell it which run comes next.
later_incarnation(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, ?SLOW),
    Future = 3 * erlang:system_time(millisecond),
    %% B is told that A's run was a much later one.
    [begin
         ok = call(A, application, stop, [weir]),
         Hello = maps:put(incarnation, Run, call(B, ?MODULE, a_hello, [node_of(A)])),
         _ = call(B, erlang, send, [weir_members, {weir_members, 1, hello, Hello}]),
         wait_until(known, fun() -> incarnation_seen(B, A) =:= Run end),
         %% It hears so as it starts, or only later.
         Connected orelse call(A, erlang, disconnect_node, [node_of(B)]),
         {ok, _} = call(A, application, ensure_all_started, [weir]),
         _ = call(A, net_kernel, connect_node, [node_of(B)]),
         see_each_other(Peers),
         %% (What is admitted at the moment when one machine follows the other, neither tells.)
         wait_until(later, fun() -> #{incarnation := Later} = status(A), Later > Run andalso call(A, weir_roster, machine_run, []) =:= Later end),
         ok = put_everywhere(Peers, login, ?SLOW),
         _ = limited(Peers, login, {key, Run}, ?C),
         denied_by_all(Peers, login, {key, Run})
     end || {Run, Connected} <- [{Future, true}, {2 * Future, false}]].

nodes_without_weir(_) ->
    [A] = start_all(1),
    [Plain] = start_all(1, #{weir => false}),
    true = call(A, net_kernel, connect_node, [node_of(Plain)]),
    B = keep(add([A, Plain], #{})),
    see_each_other([A, B]),
    ?assertEqual(#{node_of(B) => connected}, members(A)),
    ?assertEqual(#{}, maps:get(refused, status(A))).

forgotten(_) ->
    Env = #{cluster => #{forget_after => 3000}},
    [A, B, C] = start_all(3, #{env => Env}),
    Before = call(A, weir_cluster, counts, []),
    kill(C),
    wait_until(forgotten, fun() -> members(A) =:= #{node_of(B) => connected} andalso members(B) =:= #{node_of(A) => connected} end),
    wait_until(forgotten_by_machines,
               fun() -> [2, 2] =:= [maps:get(registered, call(P, weir_report, machine, [])) || P <- [A, B]] end),
    wait_until(nothing_left, fun() -> maps:get(ets, call(A, weir_cluster, counts, [])) =< maps:get(ets, Before) end),
    %% It may come back.
    New = keep(restart(C, [A, B])),
    see_each_other([A, B, New]).

%% As an application is started that changes nothing: nodes connect all to all, and global cuts nodes off that not all see.
with_the_defaults_of_distribution(_) ->
    [A, B, C] = Peers = start_all(3, #{args => []}),
    ok = put_everywhere(Peers, login, ?SLOW),
    cut([A], [B]),
    wait_until(missed, fun() -> lists:member(away, maps:values(members(A))) end),
    heal([A], [B]),
    see_each_other(Peers),
    settled_total([A, B, C], login, ?KEY).

%% ---- limits

one_limit_over_three_nodes(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    settled_total(Peers, login, ?KEY),
    ?assertEqual([0, 0, 0], everywhere(Peers, login, ?KEY, 10)).

%% All they can, at once: each may have used up the bucket before it hears anything. All deny until that is paid back.
flooded(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    Counts = everywhere(Peers, login, ?KEY, 2 * ?C),
    ?assertEqual([], [N || N <- Counts, N > ?C]),
    Count = lists:sum(Counts),
    denied_by_all(Peers, login, ?KEY),
    ?assertEqual([0, 0, 0], everywhere(Peers, login, ?KEY, 10)),
    %% What was too much, all see.
    settle(Peers),
    Exceeded = Count - ?C,
    [?assertMatch(#{level := Count, overshoot := #{exceeded := Exceeded, worst := 0}}, explain(P)) || P <- Peers],
    [?assertEqual(Exceeded, metric(P, weir_overshoot_tokens, [<<"login">>])) || P <- Peers].

%% One after the other, with time for the news: what one limiter admits, exactly.
one_node_after_the_other(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    Admitted = [begin
                    Count = checks(lists:nth(1 + I rem 3, Peers), login, ?KEY, 20),
                    settle(Peers),
                    Count
                end || I <- lists:seq(1, ?C div 20 + 10)],
    ?assertEqual(?C, lists:sum(Admitted)),
    denied_by_all(Peers, login, ?KEY).

local_is_local(_) ->
    Peers = start_all(2),
    ok = put_everywhere(Peers, here, #{rate => {10, {10, day}}, scope => local}),
    ?assertEqual([10, 10], everywhere(Peers, here, ?KEY, 20)),
    ?assertMatch(#{scope := local}, call(hd(Peers), weir, explain, [here, ?KEY])).

explained(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, (?SLOW)#{partition => share}),
    3 = checks(A, login, ?KEY, 3),
    wait_until(clocks_known, fun() -> lists:all(fun(#{clock_offset_ns := _}) -> true; (_) -> false end, maps:get(peers, explain(A))) end),
    #{unsent := 3, share := Share, nodes := #{live := 3, registered := 3}, scope := cluster, partition := share,
      peers := Others} = explain(A),
    ?assertEqual((?C - 3) div 3, Share),
    ?assertEqual(lists:sort([node_of(B), node_of(C)]), [Node || #{node := Node} <- Others]),
    ?assertMatch(#{overshoot := #{worst := Worst, exceeded := 0, expected := Expected}} when Worst =:= 2 * (?C - 3) andalso Expected >= 2,
                 explain(A)),
    [?assert(is_integer(Ms) andalso is_integer(RoundTrip)) || #{staleness_ms := Ms, round_trip_ns := RoundTrip} <- Others],
    ?assertMatch(#{unsent := 0}, explain(B)),
    %% A handle is nobody else's.
    ?assertMatch(#{scope := local}, call(A, ?MODULE, explain_compiled, [])).

metrics(_) ->
    [A, B] = start_all(2),
    wait_until(heartbeats, fun() -> metric(A, weir_peer_received_frames_total, [atom_to_binary(node_of(B))]) > 0 end),
    ?assertEqual([2, 2], [metric(A, Name, []) || Name <- [weir_nodes_live, weir_nodes_registered]]),
    ?assert(metric(A, weir_peer_sent_bytes_total, [atom_to_binary(node_of(B))]) > 0).

%% Half of a bucket and more, asked on two nodes at the same moment: both can't have it.
large_hits_ask(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, bulk, (?SLOW)#{large_hits => claim, timeout => 5000}),
    Hits = ?C div 2 + 1,
    [?assertEqual(1, length([allowed || {allow, _} <- at_once([A, B, C], fun(P) -> call(P, weir, check, [bulk, Key, Hits]) end)]))
     || Key <- [<<"one">>, <<"two">>, <<"three">>, #{by => <<"its external format">>}]],
    ?assertMatch(#{allowed := false}, call(A, weir, decide, [bulk, <<"one">>, Hits])),
    #{allowed := true, remaining := Remaining} = call(B, weir, decide, [bulk, <<"four">>, Hits]),
    %% (The machine's time may be ahead by less than a millisecond, and the birth with it: then one less remains for so long.)
    ?assert(lists:member(?C - Hits - Remaining, [0, 1]), Remaining),
    %% Without the process that asks, each decides alone.
    [ok = call(P, supervisor, terminate_child, [weir_sup, weir_replica]) || P <- Peers],
    ?assertMatch({allow, _}, call(A, weir, check, [bulk, <<"five">>, Hits])).

%% The same in batches: they ask for what is above the share, and decide the rest as ever.
large_hits_of_batches_ask(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, bulk, (?SLOW)#{large_hits => claim, timeout => 5000}),
    ok = put_everywhere(Peers, small, #{rate => {5, day}, scope => local}),
    Hits = ?C div 2 + 1,
    Keys = [<<"one">>, two, {3, 3}, #{by => <<"its external format">>}],
    Items = [{small, two, 1}] ++ [{bulk, Key, Hits} || Key <- Keys] ++ [{bulk, few, 2}],
    [FromA, FromB] = at_once([A, B], fun(P) -> call(P, weir, check_many, [Items]) end),
    ?assertEqual([{allow, 4}, {allow, 4}], [hd(FromA), hd(FromB)]),
    [?assertMatch({_, [{allow, Left}, {deny, Ms}]} when is_integer(Ms) andalso Left =< ?C - Hits,
                  {Key, lists:sort([X, Y])})
     || {Key, X, Y} <- lists:zip3(Keys, large(FromA), large(FromB))],
    [?assertMatch({allow, _}, lists:last(Answers)) || Answers <- [FromA, FromB]],
    %% With the fields of responses' headers.
    Decide = [{bulk, {decide, I}, Hits} || I <- lists:seq(1, 700)],
    [DecidedA, DecidedB] = at_once([A, B], fun(P) -> call(P, weir, decide_many, [Decide]) end),
    ?assertEqual(700, length([both || {#{allowed := X}, #{allowed := Y}} <- lists:zip(DecidedA, DecidedB), X =/= Y])),
    [?assertMatch(#{limit := ?C, remaining := Left, retry_ms := 0} when Left =< ?C - Hits, D)
     || #{allowed := true} = D <- DecidedA],
    %% One batch that wants more of a key than there is: it is admitted once.
    Twice = [{bulk, twice, Hits}, {bulk, twice, Hits}],
    ?assertMatch([{allow, _}, {deny, _}], lists:sort(call(A, weir, check_many, [Twice]))),
    %% Without the process that asks, each decides alone.
    [ok = call(P, supervisor, terminate_child, [weir_sup, weir_replica]) || P <- Peers],
    ?assertMatch([{allow, _}, {allow, _}], [hd(call(P, weir, check_many, [[{bulk, alone, Hits}]])) || P <- Peers]).

large([_ | Answers]) -> lists:droplast(Answers).

%% One hit of many is far below the share: it is told all the same.
flushed_after(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, (?SLOW)#{flush_after => 50}),
    1 = checks(A, login, ?KEY, 1),
    wait_until(told, fun() -> remaining(B) =:= ?C - 1 end).

%% ---- limiters

limiters_reach_all(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = call(A, weir, put_limiter, [login, ?SLOW]),
    wait_until(there, fun() -> same_limiters(Peers) andalso knows(C, <<"login">>) end),
    ?assert(call(B, weir, limiters, []) =/= #{}),
    %% Changed on another, with the level carried over.
    ?C = checks(A, login, ?KEY, 2 * ?C),
    denied_by_all(Peers, login, ?KEY),
    ok = call(B, weir, put_limiter, [login, #{rate => {?C, {?C, day}}, burst => ?C + 60}]),
    wait_until(changed, fun() -> same_limiters(Peers) andalso [60, 60, 60] =:= [remaining(P) || P <- Peers] end),
    %% And deleted on a third; a call after that raises.
    ok = call(C, weir, delete_limiter, [login]),
    wait_until(deleted, fun() -> [#{}, #{}, #{}] =:= [call(P, weir, limiters, []) || P <- Peers] end),
    ?assertError(badarg, rethrow(A, weir, check, [login, ?KEY])),
    %% The others still are in agreement: what was said of the deleted one holds nothing up.
    ok = put_everywhere(Peers, other, ?SLOW),
    _ = limited(Peers, other, ?KEY, ?C),
    denied_by_all(Peers, other, ?KEY).

late_joiner_has_limiters(_) ->
    [A] = start_all(1),
    [ok = call(A, weir, put_limiter, [integer_to_binary(I), #{rate => {I, hour}}]) || I <- lists:seq(1, 600)],
    ok = call(A, weir, delete_limiter, [<<"600">>]),
    %% Started while connected: it comes up with them, unless the answer takes more than the second that a start waits.
    B = keep(add([A], #{})),
    wait_until(limiters, fun() -> same_limiters([A, B]) end),
    %% Connected after its start: they come.
    [C] = start_all(1),
    weir_cluster:join(C, [A, B]),
    wait_until(limiters, fun() -> same_limiters([A, B, C]) end),
    ?assertEqual(599, map_size(call(C, weir, limiters, []))).

same_change_is_none(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    Version = version(hd(Peers), <<"login">>),
    _ = at_once(Peers, fun(P) -> call(P, weir, put_limiter, [<<"login">>, ?SLOW]) end),
    ok = put_everywhere(Peers, other, ?SLOW),
    ?assertEqual([Version, Version, Version], [version(P, <<"login">>) || P <- Peers]).

changes_at_the_same_time(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    [begin
         _ = at_once([{P, N} || {P, N} <- lists:zip(Peers, [1, 2, 3])],
                     fun({P, N}) -> call(P, weir, put_limiter, [login, #{rate => {10 * Round + N, hour}}]) end),
         wait_until(same, fun() -> same_limiters(Peers) end)
     end || Round <- lists:seq(1, 5)],
    %% Of two sides, too.
    cut([A], [B, C]),
    ok = call(A, weir, put_limiter, [login, #{rate => {7, hour}}]),
    ok = call(B, weir, put_limiter, [login, #{rate => {8, hour}}]),
    heal([A], [B, C]),
    see_each_other(Peers),
    wait_until(same, fun() -> same_limiters(Peers) end),
    #{<<"login">> := #{rate := {N, hour}}} = call(A, weir, limiters, []),
    ?assert(lists:member(N, [7, 8])),
    ?assertEqual(version(A, <<"login">>), version(C, <<"login">>)).

%% Out of reach when it was deleted, it doesn't bring it back.
deleted_stays_deleted(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    cut([A], [B, C]),
    ok = call(B, weir, delete_limiter, [login]),
    heal([A], [B, C]),
    see_each_other(Peers),
    wait_until(deleted, fun() -> [#{}, #{}, #{}] =:= [call(P, weir, limiters, []) || P <- Peers] end).

%% What one side still admits of it is of no use to the other, and must not be asked for for ever.
deleted_under_load(_) ->
    [A, B, C] = Peers = start_all(3),
    [ok = put_everywhere(Peers, Name, #{rate => {3, hour}}) || Name <- [login, other]],
    Busy = [call(P, ?MODULE, busy, [[login, other]]) || P <- Peers],
    ok = call(A, weir, delete_limiter, [other]),
    cut([A], [B, C]),
    ok = call(B, weir, delete_limiter, [login]),
    Applied = fun(P) -> maps:get(records_applied, call(P, weir_report, machine, [])) end,
    Before = Applied(C),
    wait_until(news, fun() -> Applied(C) > Before orelse not knows(C, <<"login">>) end),
    heal([A], [B, C]),
    see_each_other(Peers),
    wait_until(deleted, fun() -> [#{}, #{}, #{}] =:= [call(P, weir, limiters, []) || P <- Peers] end),
    {dictionary, [{asked, Missed}]} = call(A, erlang, process_info, [hd(Busy), dictionary]),
    [true = call(P, erlang, exit, [Pid, kill]) || {P, Pid} <- lists:zip(Peers, Busy)],
    settle(Peers),
    %% Made again it begins anew.
    ok = put_everywhere(Peers, login, ?SLOW),
    settled_total(Peers, login, {busy, 1}),
    repair_is_small(deleted, Peers, 1, 2 * Missed).

%% A process that asks for ever.
busy(Limiters) ->
    spawn(fun() -> busy(Limiters, 1) end).

busy(Limiters, N) ->
    _ = put(asked, N),
    _ = [catch weir:check(Limiter, {busy, N}) || Limiter <- Limiters, _ <- [1, 2, 3]],
    receive after 1 -> busy(Limiters, N + 1) end.

fixed_options(_) ->
    [A] = start_all(1),
    ok = call(A, weir, put_limiter, [login, ?SLOW]),
    [?assertError(badarg, rethrow(A, weir, put_limiter, [login, maps:merge(?SLOW, Change)]))
     || Change <- [#{scope => local}, #{max_keys => 7}]],
    ?assertError(badarg, rethrow(A, weir, compile, [(?SLOW)#{scope => cluster}])),
    ?assertEqual(?C, checks(A, login, ?KEY, 2 * ?C)).

%% A node that starts again with what its configuration says finds it changed meanwhile.
configuration_gives_way(_) ->
    Env = #{env => #{limiters => #{login => #{rate => {5, hour}}}}},
    [A, B] = Peers = start_all(2, Env),
    ok = call(A, weir, put_limiter, [login, #{rate => {9, hour}}]),
    wait_until(changed, fun() -> same_limiters(Peers) andalso rate(B) =:= {9, hour} end),
    stop([B]),
    New = keep(restart(B, [A])),
    see_each_other([A, New]),
    wait_until(taken, fun() -> [{9, hour}, {9, hour}] =:= [rate(A), rate(New)] end),
    %% As with a child of the user's supervisor.
    {ok, _} = call(New, weir_child, start_link, [#{limiters => #{login => #{rate => {5, hour}}}}]),
    ?assertEqual([{9, hour}, {9, hour}], [rate(A), rate(New)]).

%% ---- faults

%% What the dead node had not sent is lost, once: at most slack/N, and what no frame had carried yet; each of the two others may
%% use that up, and what the others had in flight.
killed_while_a_bucket_fills(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    First = in_turns([A, B, C], 0, 9),
    Lost = checks(C, login, ?KEY, 10),
    kill(C),
    Later = in_turns([A, B], 0, 2 * ?C div 10),
    denied_by_all([A, B], login, ?KEY),
    %% Nobody admits while news are on their way. What may come too much: what the dead node had not sent, a node's share of
    %% what was left, and the last turn's.
    within(killed, ?C, ?C + Lost + ?C div 3 + 10, First + Lost + Later),
    wait_until(missed, fun() -> [2, 2] =:= [machine_live(P) || P <- [A, B]] end),
    repair_is_small(killed, [A, B], 1).

killed_node_returns(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    kill(C),
    _ = everywhere([A, B], login, ?KEY, ?C),
    denied_by_all([A, B], login, ?KEY),
    New = keep(restart(C, [A, B])),
    wait_until(ready, fun() -> call(New, weir_ready, check, []) =:= ready end),
    ?assertEqual(0, checks(New, login, ?KEY, 10)),
    %% It takes part again.
    Other = <<"bob">>,
    _ = limited([A, B, New], login, Other, ?C),
    denied_by_all([A, B, New], login, Other),
    repair_is_small(returned, [A, B, New], 2).

%% What was below the share is sent before weir stops: nothing is lost by an update, a node after the other.
stopped_in_order(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    Counts = [begin
                  10 = checks(P, login, ?KEY, 10),
                  ok = call(P, application, stop, [weir]),
                  {ok, _} = call(P, application, ensure_all_started, [weir]),
                  see_each_other(Peers),
                  10
              end || P <- Peers],
    wait_until(known_to_all, fun() -> lists:all(fun(P) -> remaining(P) =:= ?C - lists:sum(Counts) end, Peers) end),
    repair_is_small(stopped, Peers, 3).

%% Each process of the cluster's part is killed, on each node: decisions go on, and all is well again.
processes_crash(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    [begin
         Key = {Name, I},
         Before = lists:sum(everywhere(Peers, login, Key, ?C div 10)),
         Old = call(P, ?MODULE, pid_of, [Name]),
         true = call(P, erlang, exit, [Old, kill]),
         During = checks(P, login, Key, 5),
         wait_until({back, Name}, fun() -> is_pid(New = call(P, ?MODULE, pid_of, [Name])) andalso New =/= Old end),
         ?assertEqual(5, During),
         see_each_other(Peers),
         _ = limited(Peers, login, Key, ?C, Before + During),
         denied_by_all(Peers, login, Key)
     end || {I, P} <- lists:zip([1, 2, 3], Peers), Name <- [weir_replica, weir_members, weir_registry, weir_peer]],
    repair_is_small(crashed, Peers, 12),
    ok = put_everywhere(Peers, other, ?SLOW).

%% A node that doesn't read: the others limit on, and among themselves at once.
suspended_peer(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    suspend(C),
    _ = limited([A, B], login, ?KEY, ?C),
    denied_by_all([A, B], login, ?KEY),
    wait_until(missed, fun() -> [2, 2] =:= [machine_live(P) || P <- [A, B]] end),
    %% More keys than its connections' buffers hold: the outbox takes and drops, and nobody waits.
    _ = at_once([A, B], fun(P) -> call(P, ?MODULE, many_keys, [login, 20000]) end),
    resume(C),
    see_each_other(Peers),
    denied_by_all(Peers, login, ?KEY),
    settle(Peers),
    repair_is_small(suspended, Peers, 1).

%% More frames than it can take, of bytes that mean nothing: it drops them and counts them, and goes on.
flood_of_frames(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, ?SLOW),
    ok = call(A, sys, suspend, [weir_replica]),
    true = call(A, ?MODULE, flood, [node_of(B), 50000]),
    ok = call(A, sys, resume, [weir_replica]),
    wait_until(drained, fun() -> {message_queue_len, 0} =:= call(A, ?MODULE, queue_of, [weir_replica]) end),
    #{shed_frames := Shed} = maps:get(node_of(B), call(A, weir_members, traffic, [])),
    ?assert(Shed > 20000),
    see_each_other(Peers),
    settled_total(Peers, login, ?KEY).

flood(From, Count) ->
    Frame = {weir_frame, 2, weir_members:node_id(From), weir_roster:token(From), data, <<0, 1, 2, 3>>},
    lists:foreach(fun(_) -> whereis(weir_replica) ! Frame end, lists:seq(1, Count)),
    true.

queue_of(Name) ->
    process_info(whereis(Name), message_queue_len).

%% What a node without a connection isn't sent is dropped at once; what one doesn't read is kept up to the limits, the oldest go first.
outbox_is_bounded(_) ->
    [A, B] = start_all(2),
    [C] = start_all(1, #{weir => false}),
    Dropped = fun(Node) -> maps:get(dropped_frames, maps:get(Node, call(A, weir_members, traffic, []), #{dropped_frames => 0})) end,
    %% It clears away what was counted of nodes that are no members.
    ok = call(A, sys, suspend, [weir_members]),
    Elsewhere = 'weir@elsewhere.test',
    Lost = call(A, ?MODULE, sender, [Elsewhere]),
    [ok = call(A, weir_peer, send, [Lost, Kind, <<"frame">>]) || Kind <- [data, repair, heartbeat]],
    ok = call(A, weir_peer, flush, [Lost, 5000]),
    ?assertEqual(2, Dropped(Elsewhere)),
    %% (C has no process to take it in, and is stopped: the connection's buffer fills.)
    true = call(A, net_kernel, connect_node, [node_of(C)]),
    suspend(C),
    Stuck = call(A, ?MODULE, sender, [node_of(C)]),
    Frames = 200,
    ok = call(A, ?MODULE, send_frames, [Stuck, Frames, 1 bsl 18]),
    ?assertEqual(timeout, call(A, weir_peer, flush, [Stuck, 100])),
    wait_until(dropped, fun() -> Dropped(node_of(C)) > 0 end),
    ?assert(call(A, ?MODULE, bytes_in_outbox, [Stuck]) =< 1 bsl 24),
    %% To others it goes on.
    Count = received(B, A),
    wait_until(heartbeats, fun() -> received(B, A) > Count end),
    resume(C),
    ?assertEqual(ok, call(A, weir_peer, flush, [Stuck, 20000])).

%% A sender that no replica owns.
sender(Node) ->
    {ok, Peer} = weir_peer:start_link(Node, 1),
    true = unlink(Peer),
    ok = weir_peer:talk(Peer, #{protocol => 1, token => none, features => []}),
    Peer.

send_frames(Peer, Count, Bytes) ->
    Frame = binary:copy(<<0>>, Bytes),
    lists:foreach(fun(_) -> ok = weir_peer:send(Peer, data, Frame) end, lists:seq(1, Count)).

%% Of data: the last but three of its state.
bytes_in_outbox(Peer) ->
    State = sys:get_state(Peer),
    lists:sum([element(4, Outbox) || Outbox <- tuple_to_list(State), is_tuple(Outbox), element(1, Outbox) =:= outbox]).

received(Peer, From) ->
    maps:get(received_frames, maps:get(node_of(From), call(Peer, weir_members, traffic, []), #{received_frames => 0})).

settled_total(Peers, Limiter, Key) ->
    settled_total(Peers, Limiter, Key, 0).

%% Asked on all at once, a few on each, until all deny, each time when all news have come: all that is left of the bucket. Before
%% each time at most c are admitted, as what is unsent never exceeds the slack; so too much is at most what comes in the last.
settled_total(Peers, Limiter, Key, Used) ->
    AtOnce = 10,
    Count = settled_rounds(fun() -> lists:sum(everywhere(Peers, Limiter, Key, AtOnce)) end, Peers, Used),
    within({settled, Limiter, Key}, ?C, ?C + length(Peers) * AtOnce - 1, Count),
    denied_by_all(Peers, Limiter, Key).

settled_rounds(Ask, Peers, Count) ->
    case Ask() of
        0 ->
            Count;
        Admitted ->
            settle(Peers),
            settled_rounds(Ask, Peers, Count + Admitted)
    end.

restarts_leave_nothing(_) ->
    [A, B] = start_all(2),
    ok = put_everywhere([A, B], login, ?SLOW),
    Round = fun(Peer) ->
                    New = keep(restart(Peer, [A, B])),
                    see_each_other([A, B, New]),
                    _ = everywhere([A, B, New], login, ?KEY, 5),
                    kill(New),
                    wait_until(away, fun() -> not lists:member(node_of(New), call(A, erlang, nodes, [])) end),
                    New
            end,
    [Started] = start_all(1),
    kill(Started),
    First = Round(Started),
    Before = call(A, weir_cluster, counts, []),
    Rounds = 20,
    _ = lists:foldl(fun(_, Peer) -> Round(Peer) end, First, lists:seq(1, Rounds)),
    %% (Processes that connect or tell come and go.)
    wait_until(nothing_left, fun() ->
                                     After = call(A, weir_cluster, counts, []),
                                     lists:all(fun({What, Most}) -> maps:get(What, After) - maps:get(What, Before) =< Most end,
                                               [{processes, 5}, {ets, 2}, {atoms, 100}, {state, 100000}])
                             end),
    ?assertEqual(3, maps:get(registered, call(A, weir_report, machine, []))).

%% ---- partitions

%% Each side has the whole bucket, which its nodes share.
partition_open(_) ->
    [A, B, C] = Peers = cut_off(open),
    ?assertEqual(?C, checks(A, login, ?KEY, 2 * ?C)),
    Right = limited([B, C], login, ?KEY, ?C),
    healed(A, [B, C], Peers, 2 * ?C + Right).

%% Each side counts its hits as if the other did the same: one of three nodes has a third, two have two thirds, and what passes
%% before the machine has seen it (here, what is asked at once).
partition_share(_) ->
    [A, B, C] = Peers = cut_off(share),
    AtOnce = 10,
    Left = in_portions([A], AtOnce),
    Right = in_portions([B, C], AtOnce),
    within(left, ?C div 3, ?C div 3 + AtOnce, Left),
    within(right, 2 * ?C div 3, 2 * ?C div 3 + 2 * AtOnce, Right),
    %% Together again they have what is left, if anything: all the same.
    heal([A], [B, C]),
    see_each_other(Peers),
    wait_until(same, fun() -> [max(0, ?C - Left - Right)] =:= lists:usort([remaining(P) || P <- Peers]) end),
    repair_is_small(share, Peers, 1, 2 * Left + Right).

%% The key asked on one of the nodes after the other, until all deny for a while.
in_portions(Peers, AtOnce) ->
    lists:sum([begin
                   Admitted = lists:sum([checks(P, login, ?KEY, AtOnce) || P <- Peers]),
                   settle(Peers),
                   Admitted
               end || _ <- lists:seq(1, ?C div AtOnce)]).

%% The smaller side denies.
partition_closed(_) ->
    [A, B, C] = Peers = cut_off(closed),
    ?assertEqual(0, checks(A, login, ?KEY, ?C)),
    Right = limited([B, C], login, ?KEY, ?C),
    healed(A, [B, C], Peers, Right).

%% Cut and mended again before it can be noticed, while a bucket fills: what was lost with each connection is repaired.
flapping_link(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, ?SLOW),
    Count = lists:sum([begin
                           cut([A], [B, C]),
                           Some = lists:sum([lists:sum(everywhere(Peers, login, ?KEY, 1)) || _ <- lists:seq(1, ?C div 20)]),
                           heal([A], [B, C]),
                           true = call(A, net_kernel, connect_node, [node_of(B)]),
                           Some
                       end || _ <- lists:seq(1, 5)]),
    see_each_other(Peers),
    ?assertEqual(3 * 5 * (?C div 20), Count),
    settle(Peers),
    settled_total(Peers, login, ?KEY, Count),
    repair_is_small(flapping, Peers, 5).

%% Nobody is told twice of what was admitted while a node copied the state.
joins_under_load(_) ->
    [A, B] = start_all(2),
    ok = put_everywhere([A, B], login, ?SLOW),
    Busy = [call(P, ?MODULE, busy, [[login]]) || P <- [A, B]],
    200 = checks(A, login, ?KEY, 200),
    C = keep(add([A, B], #{})),
    see_each_other([A, B, C]),
    wait_until(copied, fun() -> not copying(C) end),
    [true = call(P, erlang, exit, [Pid, kill]) || {P, Pid} <- lists:zip([A, B], Busy)],
    settle([A, B, C]),
    %% Some of the 200 may be below A's share yet.
    Known = remaining(C),
    within(known, ?C - 200, ?C - 200 + (?C - 200) div 2 + 1, Known),
    settled_total([A, B, C], login, ?KEY, 200),
    repair_is_small(joined, [A, B, C], 1).

%% One node and the two others, once both sides have noticed.
cut_off(Policy) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, (?SLOW)#{partition => Policy}),
    cut([A], [B, C]),
    wait_until(noticed, fun() -> [1, 2, 2] =:= [machine_live(P) || P <- Peers] end),
    Peers.

%% All know all: the bucket is overdrawn, and everybody denies. Each birth is a record to whoever missed it.
healed(One, Others, All, Missed) ->
    heal([One], Others),
    see_each_other(All),
    denied_by_all(All, login, ?KEY),
    ?assertEqual([0, 0, 0], everywhere(All, login, ?KEY, 10)),
    settle(All),
    repair_is_small(healed, All, 1, Missed).

%% ---- helpers

%% Started nodes are ended by end_per_testcase, whatever happens to the test.
start_all(Count) ->
    start_all(Count, #{}).

start_all(Count, Options) ->
    [keep(P) || P <- start(Count, Options)].

keep(Peer) ->
    put(peers, [Peer | erase_peers()]),
    Peer.

erase_peers() ->
    case erase(peers) of
        undefined -> [];
        Peers -> Peers
    end.

put_everywhere(Peers, Name, Spec) ->
    ok = call(hd(Peers), weir, put_limiter, [Name, Spec]),
    wait_until({limiter, Name}, fun() -> lists:all(fun(P) -> knows(P, atom_to_binary(Name)) end, Peers) andalso same_limiters(Peers) end),
    %% Tables have it a moment before machines do, which lose what is admitted in between.
    lists:foreach(fun(P) -> call(P, sys, get_state, [weir_registry]) end, Peers).

knows(Peer, Name) ->
    is_map_key(Name, call(Peer, weir, limiters, [])).

same_limiters([First | Others]) ->
    Limiters = call(First, weir, limiters, []),
    lists:all(fun(P) -> call(P, weir, limiters, []) =:= Limiters end, Others).

version(Peer, Name) ->
    {_, _, Version} = call(Peer, weir_specs, entry, [Name]),
    Version.

rate(Peer) ->
    #{<<"login">> := #{rate := Rate}} = call(Peer, weir, limiters, []),
    Rate.

remaining(Peer) ->
    maps:get(remaining, call(Peer, weir, peek, [login, ?KEY])).

explain(Peer) ->
    call(Peer, weir, explain, [login, ?KEY]).

explain_compiled() ->
    weir:explain(weir:compile(#{rate => {5, minute}}), ?KEY).

status(Peer) ->
    call(Peer, weir_members, status, []).

refused(Peer, Other) ->
    maps:get(node_of(Other), maps:get(refused, status(Peer)), none).

incarnation_seen(Peer, Other) ->
    #{members := #{} = Members} = status(Peer),
    case Members of
        #{} -> maps:get(incarnation, maps:get(node_of(Other), Members, #{incarnation => 0}))
    end.

copying(Peer) ->
    call(Peer, ?MODULE, is_copying, []).

is_copying() ->
    {ok, Machine} = weir_machine:attached(),
    weir_machine:copying(Machine).

%% Until all that was admitted is in the machines, none has anything to send, and none is without a record that another has:
%% nothing is on its way then.
settle(Peers) ->
    wait_until(settled, fun() ->
                                {Quiet, Vectors} = lists:unzip([call(P, ?MODULE, stands, []) || P <- Peers]),
                                lists:all(fun(Q) -> Q end, Quiet) andalso length(lists:usort(Vectors)) =:= 1
                        end).

%% (Once weir_replica answers, it has taken what was admitted before.)
stands() ->
    _ = sys:get_state(weir_replica),
    {ok, Machine} = weir_machine:attached(),
    {weir_machine:quiet(Machine), lists:sort([Entry || {_, _, Upto} = Entry <- weir_machine:vector(Machine), Upto > 0])}.

pids(Peer) ->
    [call(Peer, erlang, whereis, [Name]) || Name <- [weir_members, weir_registry, weir_replica]].

%% A process of weir's; of the senders, the first.
pid_of(weir_peer) ->
    {links, Links} = process_info(whereis(weir_replica), links),
    hd([P || P <- Links, is_pid(P), proc_lib:initial_call(P) =:= {weir_peer, init, ['Argument__1']}] ++ [none]);
pid_of(Name) ->
    whereis(Name).

a_hello(Node) ->
    #{node => Node, id => weir_members:node_id(Node), incarnation => 1, secret => ets:lookup_element(weir_roster, secret, 2), yours => 0,
      members => [], left => []}.

metric(Peer, Name, Labels) ->
    Metrics = call(Peer, weir_metrics, metrics, []),
    {_, _, _, _, Series} = lists:keyfind(Name, 1, Metrics),
    proplists:get_value(Labels, Series, 0).

at_once(Items, Fun) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), Fun(Item)} end) || Item <- Items],
    [receive {Pid, Result} -> Result end || Pid <- Pids].

%% Ten at a time, one node after the other, each when all know what was sent.
in_turns(_Peers, Admitted, 0) ->
    Admitted;
in_turns([Peer | Others] = Peers, Admitted, Turns) ->
    More = checks(Peer, login, ?KEY, 10),
    wait_until(told, fun() -> length(lists:usort([published(P) || P <- Peers])) =:= 1 end),
    in_turns(Others ++ [Peer], Admitted + More, Turns - 1).

published(Peer) ->
    #{level := Level, unsent := Unsent} = call(Peer, weir, explain, [login, ?KEY]),
    Level - Unsent.

many_keys(Limiter, Count) ->
    [weir:check(Limiter, {I, Hit}) || I <- lists:seq(1, Count), Hit <- [1, 2]],
    ok.

rethrow(Peer, Module, Function, Args) ->
    try call(Peer, Module, Function, Args)
    catch error:{badarg, _} -> error(badarg);
          error:badarg -> error(badarg)
    end.
