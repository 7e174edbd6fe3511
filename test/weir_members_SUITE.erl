%% Who is a member: what nodes say in hellos, who counts as registered, whose frames are taken, what an operator is told.
%% Shows R57 to R61 of doc/requirements.md.
-module(weir_members_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [add/2, call/4, kill/1, terminate/1, suspend/1, resume/1, restart/2, cut/2, checks/4, everywhere/4,
                       see_each_other/1, node_of/1, wait_until/2, members/1, machine_live/1]).
-import(weir_cluster_SUITE, [start_all/1, start_all/2, keep/1, put_everywhere/3, status/1, refused/2, received/2]).

-define(KEY, <<"alice">>).
-define(CLOSED, #{rate => {300, {300, day}}, partition => closed}).
-define(GHOST, 'ghost@elsewhere.test').

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [{group, pure}, {group, alone}, {group, hellos}, {group, registered}, {group, frames}].

groups() ->
    [{pure, [], [any_hello_is_judged, versions_in_common, half_of_the_members_confirm, options_are_those_of_the_page,
                 wrong_options_are_explained, what_an_operator_is_told]},
     {alone, [], [secrets_of_sixteen_bytes, a_newline_is_no_secret, a_device_for_a_secret, not_ready_while_it_copies]},
     {hellos, [], [spoken_to_as_it_speaks, no_version_in_common, the_left_are_few]},
     {registered, [], [refused_but_registered, replaced_under_new_names, leaves_on_stop, comes_back_after_a_stop, gone_for_good,
                       made_up_by_one, restarted_in_a_partition, left_stays_left]},
     {frames, [], [frames_of_others, frames_of_runs_to_come, clocks_are_shown, quarantine_is_shown, senders_come_back, heartbeats_pass_data]}].

init_per_testcase(_, Config) -> Config.

end_per_testcase(Case, Config) ->
    weir_cluster_SUITE:end_per_testcase(Case, Config).

%% ---- pure

%% Whatever is said: an answer, and never one that makes a member of what isn't well formed.
any_hello_is_judged(_) ->
    Own = #{id => 5, secret => <<1:64>>, before => <<0:64>>, next => fun() -> <<2:64>> end, alone => false, same => none, incarnation => 7},
    Good = #{id => 5, incarnation => 7, secret => <<1:64>>, before => none, yours => 0, members => [], left => [],
             versions => {1, 2}, features => [<<"x">>], token => <<9:64>>},
    ?assertEqual({{ok, #{protocol => 2, token => <<9:64>>, features => [<<"x">>]}}, ok}, {weir_hello:terms(1, Good), weir_hello:judge(Good, Own)}),
    [?assertEqual({What, Verdict}, {What, weir_hello:judge(maps:merge(Good, What), maps:merge(Own, Known))})
     || {What, Known, Verdict} <- [{#{incarnation => 6}, #{}, stale}, {#{incarnation => 0}, #{}, ok}, {#{secret => <<0:64>>}, #{}, behind},
                                   {#{secret => <<2:64>>, before => <<1:64>>}, #{}, next}, {#{secret => <<2:64>>}, #{}, {refused, early}},
                                   {#{secret => <<2:64>>}, #{alone => true}, next}, {#{secret => <<3:64>>}, #{}, {refused, secret}},
                                   {#{id => 4}, #{}, {refused, malformed}}, {#{}, #{same => b@c}, {refused, {number, b@c}}}]],
    Property = ?FORALL({Key, Value, Envelope}, {elements(maps:keys(Good)), any_value(), oneof([1, 2, term()])},
                       begin
                           Told = Good#{Key => Value},
                           case {weir_hello:terms(Envelope, Told), weir_hello:judge(Told, Own)} of
                               {{ok, #{protocol := P, token := T, features := F}}, _} ->
                                   lists:member(P, [1, 2]) andalso (P =:= 1 orelse byte_size(T) =:= 8)
                                       andalso lists:all(fun is_binary/1, F);
                               {{refused, Reason}, _} ->
                                   is_binary(weir_hello:text(Reason))
                           end
                       end),
    ?assert(proper:quickcheck(Property, [{numtests, 500}, {to_file, user}])).

any_value() ->
    oneof([term(), integer(), {integer(), integer()}, binary(), list(binary()), [a | b], 1 bsl 200, lists:duplicate(65, <<"f">>)]).

versions_in_common(_) ->
    [?assertEqual({Versions, Agreed}, {Versions, weir_hello:agreed(Versions)})
     || {Versions, Agreed} <- [{{1, 1}, {ok, 1}}, {{1, 2}, {ok, 2}}, {{2, 2}, {ok, 2}}, {{1, 9}, {ok, 2}}, {{2, 9}, {ok, 2}}, {{3, 9}, none}]],
    %% A node from before there were versions says only its one.
    ?assertEqual({ok, #{protocol => 1, token => none, features => []}}, weir_hello:terms(1, #{})),
    ?assertEqual({refused, {protocol, {99, 99}}}, weir_hello:terms(99, #{})),
    ?assertMatch({refused, malformed}, weir_hello:terms(1, #{versions => {1, 2}})),
    %% What it understands beyond is not to be judged here.
    ?assertMatch({ok, #{features := [<<"to come">>]}}, weir_hello:terms(1, #{versions => {1, 5}, token => <<1:64>>, features => [<<"to come">>]})).

half_of_the_members_confirm(_) ->
    Said = fun(Pairs) -> lists:foldl(fun({By, Named}, H) -> weir_hearsay:said(By, Named, H) end, weir_hearsay:new(), Pairs) end,
    Confirmed = fun(Members, Pairs) -> lists:sort(weir_hearsay:confirmed(Members, Said(Pairs))) end,
    %% A name that one of three has made up; a node on the other side of a cut, which all name that are here.
    ?assertEqual([x], Confirmed([a, b, c], [{a, [x, y]}, {b, [x]}, {c, []}])),
    ?assertEqual([x], Confirmed([a], [{a, [x]}])),
    ?assertEqual([x, y], Confirmed([a, b], [{a, [x, y]}])),
    ?assertEqual([], Confirmed([], [{a, [x]}])),
    %% Only what is said by those that are there, and only what they said last.
    ?assertEqual([], Confirmed([b], [{a, [x]}])),
    ?assertEqual([y], Confirmed([a], [{a, [x]}, {a, [y]}])),
    ?assertEqual([], weir_hearsay:confirmed([a], weir_hearsay:silent(a, Said([{a, [x]}])))),
    ?assertEqual([], weir_hearsay:confirmed([a], weir_hearsay:forget(x, Said([{a, [x]}])))).

%% The page's rows: | `name` | unit | default | meaning |
options_are_those_of_the_page(_) ->
    {ok, Page} = file:read_file(filename:join([weir_test:root(), "doc", "cluster.md"])),
    Rows = [list_to_tuple(Found)
            || Line <- binary:split(Page, <<"\n">>, [global]),
               {match, Found} <- [re:run(Line, "^\\| `(\\w+)` \\| (ms|keys|bytes|number|boolean) \\| (\\S+) \\| (\\d+ to \\d+|true, false) \\| \\S",
                                         [{capture, all_but_first, binary}])]],
    Range = fun(boolean, _, _) -> <<"true, false">>;
               (_, Least, Most) -> iolist_to_binary(io_lib:format("~b to ~b", [Least, Most]))
            end,
    Table = [{atom_to_binary(Name), atom_to_binary(Unit), iolist_to_binary(io_lib:format("~p", [Default])), Range(Unit, Least, Most)}
             || {Name, Unit, Least, Most, Default} <- weir_cluster_options:table()],
    ?assertEqual(lists:sort(Table), lists:sort(Rows)),
    %% What nobody configures are the defaults of the machine itself.
    {ok, Options} = weir_cluster_options:check(#{}),
    {Times, Limits} = weir_machine:limits(),
    ?assertEqual(maps:from_list([{Name, Default} || {Name, _, Default} <- Times ++ Limits]), weir_cluster_options:machine(Options)).

wrong_options_are_explained(_) ->
    [begin
         {error, Message} = weir_cluster_options:check(Given),
         [?assertNotEqual({Word, Message, nomatch}, {Word, Message, string:find(Message, Word)}) || Word <- Words]
     end || {Given, Words} <- [{#{peer_timout => 5000}, ["peer_timout", "did you mean peer_timeout"]}, {#{log_bytes => -1}, ["log_bytes", "0 to", "bytes"]},
                               {#{leave_on_stop => 1}, ["leave_on_stop", "true or false"]}, {#{max_keys => 0}, ["1 to"]},
                               {#{heartbeat_interval => 1500}, ["half of peer_timeout"]}, {#{peer_timeout => 999}, ["1000 to", "milliseconds"]},
                               {#{<<"max_keys">> => 5}, ["did you mean max_keys"]}, {5, ["map"]}]],
    ?assertMatch({ok, #{max_keys := 5, peer_timeout := 2000}}, weir_cluster_options:check(#{max_keys => 5})).

%% Once when it begins, once when it is over.
what_an_operator_is_told(_) ->
    Known = #{minority => false, quarantined => [], skewed => #{}},
    Well = #{live => 4, registered => 4, away => [], peers => [{b, #{quarantined => false}}], horizons => [{<<"login">>, 1000}]},
    Say = fun(Facts, Before) ->
                  {After, Lines} = weir_watch:judge(maps:merge(Well, Facts), Before),
                  {After, [{Level, maps:get(what, Report)} || {Level, Report} <- Lines]}
          end,
    ?assertEqual({Known, []}, Say(#{}, Known)),
    Few = #{live => 2, away => [c, d]},
    {Minority, [{error, half_of_the_nodes_are_away}]} = Say(Few, Known),
    ?assertEqual({Minority, []}, Say(Few, Minority)),
    ?assertEqual({Minority, []}, Say(Few#{live => 1}, Minority)),
    ?assertEqual({Known, [{notice, most_nodes_are_back}]}, Say(#{live => 3}, Minority)),
    Ahead = #{peers => [{b, #{quarantined => true, clock_offset_ns => 900, round_trip_ns => 10}}]},
    {Apart, [{warning, quarantine_begins}]} = Say(Ahead, Known),
    ?assertEqual({Apart, []}, Say(Ahead, Apart)),
    ?assertEqual({Known, [{notice, quarantine_ends}]}, Say(#{}, Apart)),
    %% Each limiter and member once, and not for what the measuring may be wrong by.
    Skew = fun(Offset) -> #{peers => [{b, #{quarantined => false, clock_offset_ns => Offset, round_trip_ns => 10}}]} end,
    ?assertMatch({_, []}, Say(Skew(1004), Known)),
    {Warned, [{warning, clocks_differ_by_more_than_a_bucket}]} = Say(Skew(-1005), Known),
    ?assertEqual({Warned, []}, Say(Skew(5000), Warned)),
    More = (Skew(5000))#{horizons => [{<<"login">>, 1000}, {<<"api">>, 4000}, {<<"slow">>, 6000}]},
    ?assertMatch({_, [{warning, _}]}, Say(More, Warned)).

%% ---- one node

secrets_of_sixteen_bytes(_) ->
    ?assertMatch({error, {bad_config, secret, _}}, with_secret(<<"123456789012345">>)),
    ?assertMatch({ok, _}, with_secret(<<"1234567890123456">>)).

a_newline_is_no_secret(Config) ->
    File = filename:join(?config(priv_dir, Config), "secret"),
    Ids = [begin
               ok = file:write_file(File, ["a secret of many bytes", End]),
               {ok, Id} = with_secret({file, File}),
               Id
           end || End <- ["", "\n", "\n\n"]],
    ?assertMatch([Id, Id, Other] when Id =/= Other, Ids).

%% (With what is read of it.)
a_device_for_a_secret(_) ->
    ?assertMatch({ok, _}, with_secret({file, "/dev/zero"})).

with_secret(Secret) ->
    ok = weir_test:stop(),
    {ok, _} = application:ensure_all_started(crypto),
    _ = application:load(weir),
    ok = application:set_env(weir, secret, Secret),
    try application:start(weir) of
        ok -> {ok, ets:lookup_element(weir_roster, secret, 2)};
        {error, {Why, _}} -> {error, Why}
    after weir_test:stop()
    end.

%% A machine that waits for a copy which nobody gives: 503, until it has gone.
not_ready_while_it_copies(_) ->
    ok = weir_test:stop(),
    _ = application:load(weir),
    ok = application:set_env(weir, http, #{port => 0}),
    {ok, _} = application:ensure_all_started(cowboy),
    {ok, _} = application:ensure_all_started(prometheus),
    {ok, _} = application:ensure_all_started(weir),
    Machine = weir_machine:new(#{self => 1, members => [1, 2], joining => true, start => weir_clock:now()}),
    ok = weir_machine:attach(Machine, self()),
    ?assertEqual({wait, <<"copies what the other nodes know">>}, weir_ready:check()),
    {503, Fields, Body} = weir_http_SUITE:request("GET", "/healthz"),
    ?assertMatch(#{<<"retry-after">> := <<"1">>}, Fields),
    ?assertNotEqual(nomatch, string:find(Body, "copies what the other nodes know")),
    ok = weir_machine:detach(),
    ?assertMatch({200, _, _}, weir_http_SUITE:request("GET", "/healthz")),
    ok = weir_test:stop().

%% ---- hellos

%% Nodes of other releases, played by processes that say what those say: a node of release 0.1 as it was before there were versions,
%% and one that speaks more than this.
spoken_to_as_it_speaks(_) ->
    [A] = start_all(1),
    [Old, New] = [player(A) || _ <- [1, 2]],
    ok = say(Old, A, #{}),
    ok = say(New, A, #{versions => {1, 7}, token => <<"12345678">>, features => [<<"to come">>]}),
    wait_until(members, fun() -> lists:sort(maps:values(members(A))) =:= [connected, connected] end),
    Protocols = maps:map(fun(_, #{protocol := P}) -> P end, maps:get(members, status(A))),
    ?assertEqual(#{node_of(Old) => 1, node_of(New) => 2}, Protocols),
    Self = call(A, weir_members, node_id, [node_of(A)]),
    wait_until(frame, fun() -> [] =/= [x || {weir_frame, 1, From, heartbeat, _} <- heard(Old), From =:= Self] end),
    wait_until(frame, fun() -> [] =/= [x || {weir_frame, 2, From, <<"12345678">>, heartbeat, _} <- heard(New), From =:= Self] end),
    ?assertEqual([], [F || F <- heard(Old), element(1, F) =:= weir_frame, element(2, F) =/= 1]),
    %% Both understand its hello: the older one by what it knows of it.
    [begin
         {weir_members, 1, Kind, Told} = hd([M || M <- heard(P), element(1, M) =:= weir_members]),
         ?assert(lists:member(Kind, [hello, welcome])),
         ?assertMatch(#{node := _, id := _, incarnation := _, secret := _, before := _, yours := _, members := _, left := _,
                        versions := {1, 2}, features := [_ | _], token := <<_:64>>}, Told)
     end || P <- [Old, New]],
    %% Frames of the older one are taken as they are.
    ok = frame(Old, A, fun(From) -> {weir_frame, 1, From, data, <<1, 1>>} end),
    wait_until(taken, fun() -> received(A, Old) > 0 end).

no_version_in_common(_) ->
    [A] = start_all(1),
    P = player(A),
    ok = say(P, A, #{versions => {3, 7}, token => <<"12345678">>}),
    wait_until(refused, fun() -> refused(A, P) =/= none end),
    [?assertNotEqual(nomatch, string:find(refused(A, P), Word)) || Word <- ["3 to 7", "1 to 2"]],
    ?assertEqual(#{}, members(A)).

%% Those that left are remembered, but not more than fit.
the_left_are_few(_) ->
    [A, B] = start_all(2),
    Names = [list_to_atom("gone" ++ integer_to_list(I) ++ "@elsewhere.test") || I <- lists:seq(1, 1100)],
    [begin
         true = call(A, ?MODULE, tell, [(hello_of(B, A))#{members => [{Name, 0} || Name <- Some]}]),
         true = call(A, ?MODULE, tell, [(hello_of(B, A))#{left => [{Name, 5} || Name <- Some]}])
     end || Some <- [lists:sublist(Names, 550), lists:nthtail(550, Names)]],
    ?assertEqual(1024, call(A, ?MODULE, count_rows, [{{left, '_'}, '_', '_'}])),
    ?assertEqual(#{node_of(B) => connected}, members(A)).

%% ---- who counts

%% Members that turn out to speak nothing in common count on: `closed' denies.
refused_but_registered(_) ->
    [A, B, C] = start_all(3),
    ok = put_everywhere([A, B, C], login, ?CLOSED),
    ?assertEqual(1, checks(A, login, ?KEY, 1)),
    %% (They would say hello as they are, at any moment.)
    [ok = call(P, sys, suspend, [weir_members]) || P <- [B, C]],
    [true = call(A, ?MODULE, tell, [(hello_of(P, A))#{versions => {7, 9}}]) || P <- [B, C, B, C]],
    wait_until(minority, fun() -> checks(A, login, ?KEY, 1) =:= 0 end),
    ?assertMatch(#{registered := 3}, call(A, weir_report, machine, [])),
    ?assertEqual(#{node_of(B) => away, node_of(C) => away}, members(A)),
    ?assertEqual([2, 2], [maps:get(registered, call(A, weir_report, cluster, [])) - 1, length(maps:keys(maps:get(refused, status(A))))]),
    %% They say hello as they are.
    [ok = call(P, sys, resume, [weir_members]) || P <- [B, C]],
    [_ = call(P, erlang, send, [weir_members, {hello, node_of(A)}]) || P <- [B, C]],
    see_each_other([A, B, C]),
    wait_until(back, fun() -> checks(A, login, ?KEY, 1) =:= 1 end).

%% As by a Deployment: one node after the other is stopped in order, and another one comes under a new name.
replaced_under_new_names(_) ->
    New = replace_all(start_all(3), #{}),
    ?assertEqual([3, 3, 3], [maps:get(registered, call(P, weir_report, machine, [])) || P <- New]),
    ?assertEqual([1, 1, 1], everywhere(New, login, <<"new">>, 1)),
    [?assertEqual(3, length(maps:get(looked_for, status(P)))) || P <- [hd(New)]].

leaves_on_stop(_) ->
    Options = #{env => #{cluster => #{leave_on_stop => true}}},
    New = replace_all(start_all(3, Options), Options),
    ?assertEqual([1, 1, 1], everywhere(New, login, <<"new">>, 1)),
    [?assertMatch({#{looked_for := []}, 2}, {status(P), maps:size(members(P))}) || P <- New].

replace_all(Old, Options) ->
    ok = put_everywhere(Old, login, ?CLOSED),
    lists:foldl(fun(P, [P | Others]) ->
                        Now = Others ++ [keep(add(Others, Options))],
                        see_each_other(Now),
                        terminate(P),
                        wait_until(stopped, fun() -> lists:all(fun(Q) -> maps:size(members(Q)) =:= 2 end, Now) end),
                        wait_until(machines, fun() -> [] =:= [Q || Q <- Now, maps:get(registered, call(Q, weir_report, machine, [])) =/= 3] end),
                        Now
                end, Old, Old).

%% It is looked for: it need not know where the others are. Here weir alone was stopped, and then the node.
comes_back_after_a_stop(_) ->
    [A, B] = start_all(2),
    ok = call(B, application, stop, [weir]),
    wait_until(stopped, fun() -> {#{}, [node_of(B)]} =:= {members(A), maps:get(looked_for, status(A))} end),
    ?assertMatch(#{registered := 1}, call(A, weir_report, machine, [])),
    _ = call(B, erlang, disconnect_node, [node_of(A)]),
    {ok, _} = call(B, application, ensure_all_started, [weir]),
    see_each_other([A, B]),
    ?assertEqual([], maps:get(looked_for, status(A))).

%% A node that was killed counts, until an operator says that it is gone. All hear of it.
gone_for_good(_) ->
    [A, B, C, D] = start_all(4),
    ok = put_everywhere([A, B, C, D], login, ?CLOSED),
    [kill(P) || P <- [C, D]],
    wait_until(minority, fun() -> [0, 0] =:= everywhere([A, B], login, ?KEY, 1) end),
    ?assertEqual({error, connected}, call(A, weir_members, forget, [node_of(B)])),
    ?assertEqual({error, unknown}, call(A, weir_members, forget, [?GHOST])),
    ok = call(A, weir_members, forget, [node_of(D)]),
    wait_until(majority, fun() -> [1, 1] =:= everywhere([A, B], login, ?KEY, 1) end),
    ?assertEqual([3, 3], [maps:get(registered, call(P, weir_report, machine, [])) || P <- [A, B]]).

%% One of three members names a node that there isn't: it is looked for, and counts nowhere.
made_up_by_one(_) ->
    [A, B, C] = start_all(3),
    D = keep(add([A, B, C], #{})),
    see_each_other([A, B, C, D]),
    true = call(D, ?MODULE, tell, [(hello_of(A, D))#{members => [{?GHOST, 0}]}]),
    wait_until(heard, fun() -> maps:get(looked_for, status(D)) =:= [?GHOST] end),
    ?assertEqual(lists:sort([node_of(P) || P <- [A, B, C]]), lists:sort(maps:keys(members(D)))),
    ?assertMatch(#{registered := 4}, call(D, weir_report, machine, [])),
    %% By a second one it counts.
    [A1, B1] = [(hello_of(P, D))#{members => [{?GHOST, 0}]} || P <- [A, B]],
    true = call(D, ?MODULE, tell_both, [A1, B1]),
    wait_until(confirmed, fun() -> maps:get(?GHOST, members(D), none) =:= away end),
    wait_until(machine, fun() -> maps:get(registered, call(D, weir_report, machine, [])) =:= 5 end).

%% Both nodes of a side start again, one after the other: they know that they are half.
restarted_in_a_partition(_) ->
    [A, B, C, D] = start_all(4),
    ok = put_everywhere([A, B, C, D], login, ?CLOSED),
    cut([A, B], [C, D]),
    wait_until(minority, fun() -> [0, 0] =:= everywhere([A, B], login, ?KEY, 1) end),
    kill(B),
    B2 = keep(restart(B, [A])),
    see_each_other([A, B2]),
    wait_until(knows, fun() -> [4, 4] =:= [maps:get(registered, call(P, weir_report, machine, [])) || P <- [A, B2]] end),
    kill(A),
    A2 = keep(restart(A, [B2])),
    see_each_other([A2, B2]),
    wait_until(knows, fun() -> [4, 4] =:= [maps:get(registered, call(P, weir_report, machine, [])) || P <- [A2, B2]] end),
    wait_until(minority, fun() -> [0, 0] =:= everywhere([A2, B2], login, ?KEY, 1) end).

%% A member that missed the farewell doesn't bring back who left.
left_stays_left(_) ->
    [A, B, C] = start_all(3),
    ok = call(C, weir, leave, []),
    wait_until(left, fun() -> members(A) =:= #{node_of(B) => connected} end),
    true = call(A, ?MODULE, tell, [(hello_of(B, A))#{members => [{node_of(C), 0}]}]),
    ?assertMatch(#{members := M, looked_for := []} when map_size(M) =:= 1, status(A)),
    %% Nor is a farewell heard that an earlier run of a node said.
    Bye = (hello_of(B, A))#{incarnation => 1},
    _ = call(A, erlang, send, [weir_members, {weir_members, 1, bye, Bye}]),
    _ = call(A, sys, get_state, [weir_members]),
    ?assertEqual(#{node_of(B) => connected}, members(A)).

%% ---- frames

%% In another's name: not taken, and counted. With what only that one was told, it is.
frames_of_others(_) ->
    [A, B, C] = start_all(3),
    wait_until(frames, fun() -> received(A, B) > 0 end),
    Refused = fun(Node) -> maps:get(refused_frames, maps:get(Node, call(A, weir_members, traffic, []), #{refused_frames => 0})) end,
    Before = Refused(node_of(B)),
    Malformed = fun() -> maps:get(malformed, call(A, weir_report, machine, [])) end,
    Id = call(A, weir_members, node_id, [node_of(B)]),
    [_ = call(C, erlang, send, [{weir_replica, node_of(A)}, Frame])
     || Frame <- [{weir_frame, 1, Id, data, <<9>>}, {weir_frame, 2, Id, <<0:64>>, data, <<9>>},
                  {weir_frame, 2, Id, call(A, weir_roster, token, [node_of(C)]), data, <<9>>}]],
    wait_until(refused, fun() -> Refused(node_of(B)) =:= Before + 3 end),
    ?assertEqual(0, Malformed()),
    _ = call(B, erlang, send, [{weir_replica, node_of(A)},
                               {weir_frame, 2, Id, call(A, weir_roster, token, [node_of(B)]), data, <<9>>}]),
    wait_until(taken, fun() -> Malformed() =:= 1 end),
    see_each_other([A, B, C]).

%% One frame of a run that nobody has met, and all of that node's births would be refused from then on.
frames_of_runs_to_come(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, #{rate => {300, {300, day}}}),
    Id = call(A, weir_members, node_id, [node_of(B)]),
    Token = call(A, weir_roster, token, [node_of(B)]),
    %% A frame of run 2^63 without items.
    _ = call(B, erlang, send, [{weir_replica, node_of(A)},
                               {weir_frame, 2, Id, Token, data, <<1, (binary:copy(<<16#80>>, 9))/binary, 1>>}]),
    wait_until(refused, fun() -> maps:get(refused, call(A, weir_report, machine, [])) =:= 1 end),
    Admitted = checks(B, login, ?KEY, 200),
    wait_until(told, fun() -> maps:get(level, call(A, weir, explain, [login, ?KEY])) >= Admitted div 2 end),
    ?assertEqual(1, maps:get(refused, call(A, weir_report, machine, []))).

clocks_are_shown(_) ->
    [A, B] = start_all(2),
    About = fun() -> maps:get(node_of(B), maps:get(members, status(A))) end,
    wait_until(measured, fun() -> is_map_key(clock_offset_ns, About()) end),
    ?assertMatch(#{quarantined := false, protocol := 2, clock_offset_ns := Offset, round_trip_ns := Trip}
                   when abs(Offset) < 1000000000 andalso Trip >= 0, About()),
    Label = atom_to_binary(node_of(B)),
    ?assertEqual(0, weir_cluster_SUITE:metric(A, weir_peer_quarantined, [Label])),
    ?assert(is_float(weir_cluster_SUITE:metric(A, weir_peer_clock_offset_seconds, [Label]))),
    Node = node_of(B),
    ?assertMatch(#{live := 2, registered := 2, away := [], peers := [{Node, #{}}]}, call(A, weir_report, cluster, [])).

quarantine_is_shown(_) ->
    {[A, B, C] = Peers, Clock} = weir_fake_clock:one_of_three(10050),
    ok = put_everywhere(Peers, login, #{rate => {300, {300, day}}}),
    Shown = fun() -> [maps:get(quarantined, maps:get(node_of(C), maps:get(members, status(P)))) || P <- [A, B]] end,
    Gauge = fun() -> weir_cluster_SUITE:metric(A, weir_peer_quarantined, [atom_to_binary(node_of(C))]) end,
    ?assertEqual({[false, false], 0}, {Shown(), Gauge()}),
    _ = checks(C, login, ?KEY, 200),
    wait_until(quarantined, fun() -> Shown() =:= [true, true] end),
    %% What clocks are compared with: the times in which buckets fill, of limiters that there are.
    ok = call(A, weir, put_limiter, [short, #{rate => {5, second}}]),
    wait_until(measured, fun() -> lists:sort(maps:get(horizons, call(A, weir_report, cluster, []))) =:=
                                      [{<<"login">>, 300 * 86400 * 1000000000}, {<<"short">>, 1000000000}] end),
    ok = call(A, weir, delete_limiter, [short]),
    wait_until(deleted, fun() -> [L || {L, _} <- maps:get(horizons, call(A, weir_report, cluster, []))] =:= [<<"login">>] end),
    ?assertEqual(1, Gauge()),
    weir_fake_clock:step(C, Clock, 5000),
    wait_until(over, fun() -> Shown() =:= [false, false] end),
    ?assertEqual(0, Gauge()).

senders_come_back(_) ->
    [A, B] = start_all(2),
    Sender = call(A, weir_cluster_SUITE, pid_of, [weir_peer]),
    %% (A hello would bring it, too.)
    ok = call(A, sys, suspend, [weir_members]),
    true = call(A, erlang, exit, [Sender, kill]),
    wait_until(another, fun() -> not lists:member(call(A, weir_cluster_SUITE, pid_of, [weir_peer]), [Sender, none]) end),
    Count = received(B, A),
    wait_until(frames, fun() -> received(B, A) > Count end),
    ok = call(A, sys, resume, [weir_members]).

%% A node that takes nothing for a while: when it does again, a heartbeat comes before the data that waits.
heartbeats_pass_data(_) ->
    [A] = start_all(1),
    P = player(A),
    suspend(P),
    Sender = call(A, weir_cluster_SUITE, sender, [node_of(P)]),
    ok = call(A, weir_cluster_SUITE, send_frames, [Sender, 200, 1 bsl 18]),
    ?assertEqual(timeout, call(A, weir_peer, flush, [Sender, 100])),
    ok = call(A, weir_peer, send, [Sender, heartbeat, <<"alive">>]),
    ok = call(A, weir_peer, send, [Sender, data, <<"last">>]),
    resume(P),
    ?assertEqual(ok, call(A, weir_peer, flush, [Sender, 20000])),
    Of = fun() -> [{Kind, Frame} || {weir_frame, 1, 1, Kind, Frame} <- heard(P)] end,
    wait_until(all, fun() -> lists:member({data, <<"last">>}, Of()) end),
    After = lists:dropwhile(fun(F) -> F =/= {heartbeat, <<"alive">>} end, Of()),
    ?assert(length(After) > 10).

%% ---- helpers

%% A node that runs no weir, connected to Peer. Processes of weir's names keep what comes.
player(Peer) ->
    [P] = start_all(1, #{weir => false}),
    true = call(Peer, net_kernel, connect_node, [node_of(P)]),
    [true = call(P, ?MODULE, play, [Name]) || Name <- [weir_members, weir_replica]],
    P.

play(Name) ->
    Self = self(),
    Pid = spawn(fun() -> true = register(Name, self()), Self ! {playing, self()}, keep_all([]) end),
    receive {playing, Pid} -> true end.

keep_all(Messages) ->
    receive
        {all, From} -> From ! {self(), lists:reverse(Messages)}, keep_all(Messages);
        {weir_frame, 1, From, Kind, Frame} when byte_size(Frame) > 1000 ->
            keep_all([{weir_frame, 1, From, Kind, {bytes, byte_size(Frame)}} | Messages]);
        Message ->
            keep_all([Message | Messages])
    end.

heard(Player) ->
    lists:append([call(Player, ?MODULE, kept, [Name]) || Name <- [weir_members, weir_replica]]).

kept(Name) ->
    Pid = whereis(Name),
    Pid ! {all, self()},
    receive {Pid, Messages} -> Messages end.

%% A hello of a player, of the form of the first release and with more in it.
say(Player, Peer, More) ->
    Hello = maps:merge(call(Peer, weir_cluster_SUITE, a_hello, [node_of(Player)]), More),
    _ = call(Player, erlang, send, [{weir_members, node_of(Peer)}, {weir_members, 1, hello, Hello}]),
    ok.

frame(Player, Peer, Frame) ->
    _ = call(Player, erlang, send, [{weir_replica, node_of(Peer)}, Frame(call(Peer, weir_members, node_id, [node_of(Player)]))]),
    ok.

%% What Peer says to Other as it is, but that it names nobody.
hello_of(Peer, Other) ->
    (call(Peer, weir_cluster_SUITE, a_hello, [node_of(Peer)]))#{
        incarnation => maps:get(incarnation, status(Peer)), versions => {1, 2}, token => call(Peer, weir_roster, token, [node_of(Other)])}.

tell(Hello) ->
    weir_members ! {weir_members, 1, hello, Hello},
    _ = sys:get_state(weir_members),
    true.

tell_both(One, Other) ->
    _ = [weir_members ! {weir_members, 1, hello, Hello} || Hello <- [One, Other]],
    true.

count_rows(Pattern) ->
    length(ets:match_object(weir_roster, Pattern)).
