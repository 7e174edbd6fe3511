%% Frames that are taken many at a time: with the same end as one by one, in the order in which each sender sent them.
-module(weir_receive_SUITE).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, checks/4, node_of/1, wait_until/2]).

-define(NOW, 1700000000000000000).

suite() ->
    [{timetrap, {minutes, 5}}].

all() ->
    [many_as_one_by_one, steps_are_short, long_frames_go_alone, wrong_frames_are_explained, calls_wait_for_frames,
     forged_frames_harm_no_others].

init_per_testcase(_, Config) -> Config.

end_per_testcase(Case, Config) ->
    weir_cluster_SUITE:end_per_testcase(Case, Config).

%% ---- the machine

%% Also if some come twice, are malformed, or are from nowhere.
many_as_one_by_one(_) ->
    weir_test:holds(prop_many_as_one_by_one()).

prop_many_as_one_by_one() ->
    ?FORALL({Asks, Bad, Seed}, {list({range(2, 4), range(1, 6), range(1, 5)}), list({range(2, 9), binary()}), integer()},
            begin
                Good = lists:append([frames(Sender, [{Key, Hits} || {S, Key, Hits} <- Asks, S =:= Sender]) || Sender <- [2, 3, 4]]),
                All = [Frame || {_, Frame} <- lists:sort([{erlang:phash2({Seed, Frame}), Frame} || Frame <- Good ++ Bad])] ++ lists:sublist(Good, 3),
                One = start(1),
                [weir_machine:step(One, {arrival, From, Frame}, ?NOW + 1000) || {From, Frame} <- All],
                Other = start(1),
                All =:= [] orelse taken(Other, All),
                seen(One) =:= seen(Other)
            end).

seen(Machine) ->
    {weir_machine:vector(Machine), maps:with([records_applied, duplicates, malformed, refused], weir_machine:stats(Machine)),
     [weir_machine:published(Machine, 1, Key) || Key <- lists:seq(1, 6)]}.

%% So many each time.
taken(_, []) -> [];
taken(Machine, Frames) ->
    {_, Left} = weir_machine:take(Machine, Frames, ?NOW + 1000),
    ?assertEqual(Left, lists:nthtail(length(Frames) - length(Left), Frames)),
    [length(Frames) - length(Left) | taken(Machine, Left)].

start(Self) ->
    Machine = weir_machine:new(#{self => Self, members => [1, 2, 3, 4], start => ?NOW, coalesce_most => 0}),
    [] = weir_machine:put_limiter(Machine, 1, #{capacity => 3, interval_ns => 1000000000000}, ?NOW),
    Machine.

%% A frame for each that is admitted.
frames(Sender, Asks) ->
    Machine = start(Sender),
    [{Sender, Frame} || {Key, Hits} <- Asks,
                        {send, _, Frame, data} <- weir_machine:step(Machine, {ask, 1, 1, Key, Hits}, ?NOW)].

%% By their bytes: 4 KB, 64 more for each frame. One is taken, whatever its length.
steps_are_short(_) ->
    [{_, Frame}] = frames(2, [{7, 1}]),
    Each = 4096 div (64 + byte_size(Frame)),
    ?assertEqual([Each, Each, 1], taken(start(1), lists:duplicate(2 * Each + 1, {2, Frame}))),
    ?assertEqual([4, 1], taken(start(1), lists:duplicate(5, {2, binary:copy(<<1>>, 1024 - 64)}))),
    ?assertEqual([1, 1], taken(start(1), lists:duplicate(2, {2, binary:copy(<<1>>, 4096)}))).

%% On a dirty scheduler: large ones, and those that are answered at length.
long_frames_go_alone(_) ->
    [{_, Frame}] = frames(2, [{7, 1}]),
    Asks = <<1, 1, 8, 0:64>>,
    Large = binary:copy(<<1>>, 5000),
    ?assertEqual([2, 1, 1, 1, 2],
                 taken(start(1), [{2, Frame}, {2, Frame}, {3, Asks}, {3, Large}, {3, Asks}, {2, Frame}, {2, Frame}])).

wrong_frames_are_explained(_) ->
    Machine = start(1),
    Wrong = [{fun() -> weir_machine:take(Machine, [], ?NOW) end, "event"},
             {fun() -> weir_machine:take(Machine, [{2, <<>>} | {2, <<>>}], ?NOW) end, "event"},
             {fun() -> weir_machine:take(Machine, [{2, <<>>}, {3, "frame"}], ?NOW) end, "frame"},
             {fun() -> weir_machine:take(Machine, [{2, <<>>}, {-1, <<>>}], ?NOW) end, "node"},
             {fun() -> weir_machine:take(Machine, [{2, <<>>}, {2, <<>>, 3}], ?NOW) end, "event"},
             {fun() -> weir_machine:take(Machine, [{2, <<>>}], 1 bsl 61) end, "now"},
             {fun() -> weir_machine:take(make_ref(), [{2, <<>>}], ?NOW) end, "machine"}],
    [weir_test:fault(Fun, [Word]) || {Fun, Word} <- Wrong],
    %% Nothing of these was taken.
    ?assertEqual(0, maps:get(malformed, weir_machine:stats(Machine))).

%% ---- the process

%% What a node sent before it asks something is taken before the answer; more than one batch of it.
calls_wait_for_frames(_) ->
    [A, B] = weir_cluster_SUITE:start_all(2),
    #{received_frames := Before} = traffic(B, A),
    ok = call(A, ?MODULE, say, [node_of(B), lists:duplicate(300, frame(B, A, <<9>>))]),
    ?assertEqual(300, maps:get(malformed, machine(B))),
    ?assert(maps:get(received_frames, traffic(B, A)) >= Before + 300),
    weir_cluster:see_each_other([A, B]).

%% Frames in the name of another, and malformed ones, are counted for whom they are of; between them an honest node is heard.
forged_frames_harm_no_others(_) ->
    [A, B, C] = Peers = weir_cluster_SUITE:start_all(3),
    ok = call(A, weir, put_limiter, [login, #{rate => {1, day}, burst => 3}]),
    wait_until(limiter, fun() -> lists:all(fun(P) -> call(P, weir_specs, is_known, [<<"login">>]) end, Peers) end),
    #{refused_frames := Refused} = traffic(B, A),
    Id = call(B, weir_members, node_id, [node_of(A)]),
    Forged = {weir_frame, 2, Id, call(B, weir_roster, token, [node_of(C)]), data, <<9>>},
    Malformed = frame(B, C, <<9>>),
    [begin
         1 = checks(A, login, Key, 1),
         ok = call(C, ?MODULE, say, [node_of(B), [Forged, Malformed]])
     end || Key <- lists:seq(1, 50)],
    wait_until(heard, fun() -> maps:get(records_applied, machine(B)) >= 50 end),
    ?assertEqual({50, Refused + 50}, {maps:get(malformed, machine(B)), maps:get(refused_frames, traffic(B, A))}),
    [?assertMatch(#{remaining := 2}, call(B, weir, peek, [login, Key])) || Key <- lists:seq(1, 50)].

%% As To takes it from From.
frame(To, From, Bytes) ->
    {weir_frame, 2, call(To, weir_members, node_id, [node_of(From)]), call(To, weir_roster, token, [node_of(From)]), data, Bytes}.

traffic(At, From) -> maps:get(node_of(From), call(At, weir_members, traffic, [])).

machine(Peer) -> call(Peer, weir_report, machine, []).

%% On a node: the messages, and a question after them.
say(To, Messages) ->
    lists:foreach(fun(Message) -> erlang:send({weir_replica, To}, Message) end, Messages),
    unknown = gen_server:call({weir_replica, To}, anything),
    ok.
