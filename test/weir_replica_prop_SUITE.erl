%% The laws of replicas, whatever the network does and whoever dies (weir_replica_laws); and the laws of a CRDT that the thesis'
%% designs break (weir_thesis_laws).
%%
%% WEIR_CASES sets the number of cases of each property (default 300).
-module(weir_replica_prop_SUITE).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(TYPE, weir_replica_tokens).
-define(NOW, 1700000000000000000).
-define(KEY, 16#8c0ffee123456789).
-define(OTHER_KEY, 16#0123456789abcdef).

suite() ->
    [{timetrap, {hours, 1}}].

all() ->
    [schedules_that_once_failed, replicas_keep_the_laws, nodes_admit_what_one_bucket_would, one_node_decides_as_the_specification,
     bad_frames_do_no_harm, records_come_in_any_order, designs_of_the_thesis_break_laws, designs_of_the_thesis_keep_laws,
     many_processes_share_a_machine, long_steps_answer_alike, wrong_arguments_are_explained].

init_per_suite(Config) ->
    File = filename:join([weir_test:root(), "bench", "thesis_lists.erl"]),
    {ok, thesis_lists, Beam} = compile:file(File, [binary]),
    {module, thesis_lists} = code:load_binary(thesis_lists, File, Beam),
    Config.

end_per_suite(_) ->
    _ = code:purge(thesis_lists),
    true = code:delete(thesis_lists),
    ok.

replicas_keep_the_laws(_) -> holds(weir_replica_laws:prop_faults(?TYPE), 300).
nodes_admit_what_one_bucket_would(_) -> holds(weir_replica_laws:prop_one_bucket(?TYPE)).
one_node_decides_as_the_specification(_) -> holds(weir_replica_laws:prop_alone(?TYPE)).
bad_frames_do_no_harm(_) -> holds(weir_replica_laws:prop_bad_frames(?TYPE)).
records_come_in_any_order(_) -> holds(prop_any_order()).

holds(Property) ->
    holds(Property, 60).

holds(Property, MaxSize) ->
    weir_test:holds(Property, [{max_size, MaxSize}]).

%% ---- schedules that broke a law before the replica was mended

schedules_that_once_failed(_) ->
    [?assert(weir_replica_laws:holds(?TYPE, {maps:merge(setting(), Setting), Commands}), Name) || {Name, Setting, Commands} <- schedules()].

setting() ->
    #{nodes => 2, seed => 0, flush => false, limits => roomy, coalesce => 0, skews => [0], partition => open, large_hits => admit}.

lossy(Percent) -> {weather, #{loss => Percent, duplicate => 0, delay => 0}}.
slow(Ms) -> {weather, #{loss => 0, duplicate => 0, delay => Ms}}.

schedules() ->
    Small = {2, ?KEY, 1},
    [{"a node whose segments are true for different records is a donor all the same",
      #{limits => tiny, flush => true, seed => 1},
      [{crash, 1}, {wait, 1336}, {crash, 2}, {wait, 406}, join, {wait, 2500}, {crash, 3}, {wait, 12007}, {return, 3}, {wait, 12902},
       {wait, 201}, {ask, 3, {1, ?KEY, 1}}, {wait, 60}, lossy(10), {wait, 30}, join, {wait, 6200}, {ask, 3, {2, ?KEY, 1}},
       {wait, 1}, {return, 1}, {ask, 3, {2, ?KEY, 1}}, {wait, 6000}, {crash, 3}]},
     {"a record that reached no survivor is given up at last",
      #{}, [{crash, 1}, {ask, 2, {1, ?OTHER_KEY, 20}}, join, {crash, 2}]},
     {"a chunk of which the copy has a part isn't counted on top of it",
      #{nodes => 3, large_hits => claim},
      [slow(400), join, {cut, [1, 3, 2]}, {wait, 6000}, {ask, 2, Small}, {ask, 2, {2, ?KEY, 2}}, {ask, 1, {1, ?OTHER_KEY, 21}},
       {ask, 1, Small}]},
     {"nor is one left out of which a segment has the last record, and not the first",
      #{nodes => 4, seed => 326},
      [{wait, 5}, join, {wait, 6000}, {wait, 200}, {wait, 200}, {wait, 200}, {weather, #{delay => 60, duplicate => 0, loss => 40}},
       {wait, 2500}, {wait, 6000}, {ask, 1, Small}, {wait, 6000}, {crash, 4}, {wait, 30}, join, {wait, 2500}, {wait, 700}, {wait, 30},
       {wait, 1}, {wait, 30}, {crash, 2}, {ask, 5, Small}, {forget, 2}, {wait, 30}, {ask, 5, Small}, {wait, 200}]},
     {"the last record of a run that restarted at once reaches all",
      #{}, [{ask, 2, Small}, {crash, 2}, {return, 2}]},
     {"also one that reached some before the crash",
      #{nodes => 3, coalesce => 20}, [lossy(40), {ask, 2, Small}, {wait, 30}, {crash, 2}, {return, 2}]},
     {"a record beyond a hole that nobody can fill reaches all",
      #{}, [{wait, 30}, lossy(40), {ask, 2, Small}, join, {ask, 2, Small}, {crash, 2}]},
     {"and so do several",
      #{nodes => 4, seed => 2}, [lossy(40), {ask, 3, {1, ?KEY, 12}}, {wait, 1}, {ask, 3, Small}, {crash, 3}]},
     {"a copy from a node that never heard of a dead run doesn't end that run",
      #{nodes => 4}, [join, {ask, 4, {1, ?KEY, 10}}, {crash, 4}, {return, 4}]},
     {"a copy takes no record of a dead run from who has it",
      #{nodes => 5, seed => 11},
      [{wait, 5000}, {cut, [3, 2]}, {ask, 3, Small}, {ask, 5, Small}, {wait, 2505}, join, {cut, [2, 3, 4]}, {ask, 3, Small},
       {wait, 1}, {crash, 3}, {crash, 5}]},
     {"a record that reaches most late reaches all",
      #{nodes => 5, coalesce => 20, seed => 34},
      [{crash, 2}, {cut, [1, 5]}, {weather, #{loss => 10, duplicate => 0, delay => 400}}, {wait, 6}, {ask, 5, {1, ?OTHER_KEY, 10}},
       {wait, 6000}, {crash, 5}, {return, 5}, {wait, 1}, {ask, 5, Small}, {cut, [1, 5, 3, 4]},
       {weather, #{loss => 40, duplicate => 30, delay => 400}}, {wait, 6000}]},
     {"two that join copy from each other in vain, and agree in the end",
      #{}, [{crash, 1}, join, {ask, 2, Small}, {crash, 2}, {return, 2}]},
     {"two sides that lack each other's records, with logs cut short, don't copy from each other for ever",
      #{limits => tiny, seed => 1},
      [join, join, {cut, [3, 1]}, slow(60), {ask, 4, {1, ?KEY, 5}}, join, {ask, 3, Small}, {ask, 2, {1, ?KEY, 26}}, {wait, 6000},
       {ask, 1, Small}]},
     {"births admitted while joining are looked for at others before a copy costs them",
      #{nodes => 4, limits => tiny}, [join, {ask, 5, {1, ?KEY, 50}}, {ask, 5, Small}, {ask, 5, {1, ?KEY, 1}}]},
     {"a dead run's record beyond a hole that is in no log any more reaches all",
      #{nodes => 4, limits => tiny, seed => 9},
      [lossy(40), {ask, 1, {1, ?KEY, 12}}, {crash, 1}, {wait, 6000}, {ask, 2, Small}, {ask, 2, {1, ?KEY, 9}}, {crash, 2}]},
     {"runs that some have forgotten don't keep a copy from being taken",
      #{flush => true},
      [{ask, 2, Small}, {crash, 2}, {return, 2}, join, join, {crash, 1}, {return, 1}, {cut, [1, 3]}, {wait, 60000},
       {weather, #{loss => 0, duplicate => 30, delay => 0}}, join, {ask, 4, {1, ?KEY, 1}}, {crash, 4}]},
     {"a record of a dead run that was parked while all joined reaches all",
      #{nodes => 3, seed => 4},
      [{wait, 6000}, {wait, 1}, {wait, 30}, {crash, 2}, {wait, 1}, {wait, 200}, {wait, 6000}, {wait, 700}, {wait, 2500},
       join, {wait, 700}, {wait, 30}, {wait, 1}, {wait, 200}, {wait, 30}, {wait, 30}, {wait, 30}, {wait, 200}, {crash, 1},
       {wait, 200}, {wait, 5}, {wait, 2500}, {wait, 700}, {crash, 3}, {crash, 4}, {wait, 2500}, {wait, 1}, {wait, 1},
       {wait, 1}, {wait, 30}, {wait, 5}, {wait, 6000}, {return, 4}, {wait, 2500},
       {weather, #{delay => 400, duplicate => 0, loss => 40}}, {return, 3}, join, {wait, 700},
       {ask, 3, {2, 10092565532873418633, 1}}, {wait, 5}, {wait, 5}, {crash, 3}, {wait, 2500}, {wait, 200},
       {ask, 4, {2, 10092565532873418633, 1}}, {wait, 1}, {wait, 1}, join,
       {weather, #{delay => 60, duplicate => 30, loss => 0}}, {wait, 6000},
       {weather, #{delay => 400, duplicate => 30, loss => 0}}, {wait, 6000}, {wait, 6000}]}].

%% ---- the merge of interval sets, as the replica does it: commutative and associative

%% Three nodes' records come to two others in two orders.
prop_any_order() ->
    ?FORALL({Births, Seeds}, {non_empty(resize(25, list({range(1, 3), range(0, 30000), range(1, 5)}))), {range(0, 1000), range(0, 1000)}},
            begin
                Frames = lists:append([frames(Sender, [{Time, Hits} || {S, Time, Hits} <- Births, S =:= Sender]) || Sender <- [1, 2, 3]]),
                [One, Other] = [received(Node, shuffled(Seed, Frames)) || {Node, Seed} <- lists:zip([4, 5], tuple_to_list(Seeds))],
                All = [{?NOW + Time * 1000000, Hits} || {_, Time, Hits} <- Births],
                One =:= Other andalso One =:= ?TYPE:fold(large(), All)
            end).

large() -> #{capacity => 1000, interval_ns => 2000000000, flush_after => 1}.

start(Self) ->
    Machine = weir_machine:new(#{self => Self, members => [1, 2, 3, 4, 5], start => ?NOW, coalesce_most => 0,
                                 peer_timeout => 1 bsl 60}),
    [] = weir_machine:put_limiter(Machine, 1, large(), ?NOW),
    Machine.

%% What it sends when it is asked at these times and ticks after each, and at last (for the second of two asks at one time).
frames(Sender, Asks) ->
    Machine = start(Sender),
    Step = fun(Event, Time) -> [{Sender, Frame} || {send, _, Frame, data} <- weir_machine:step(Machine, Event, Time)] end,
    lists:append([Step({ask, 1, 1, ?KEY, Hits}, ?NOW + Time * 1000000) ++ Step(tick, ?NOW + Time * 1000000 + 1)
                  || {Time, Hits} <- lists:sort(Asks)]) ++ Step(tick, ?NOW + 30500000000).

shuffled(Seed, List) ->
    [Item || {_, Item} <- lists:sort([{erlang:phash2({Seed, I}), Item} || {I, Item} <- lists:zip(lists:seq(1, length(List)), List)])].

received(Self, Frames) ->
    Machine = start(Self),
    [weir_machine:step(Machine, {arrival, From, Frame}, ?NOW + 31000000000) || {From, Frame} <- Frames],
    weir_machine:published(Machine, 1, ?KEY).

%% ---- the designs of the thesis

%% By exactly these examples.
designs_of_the_thesis_break_laws(_) ->
    [?assertNot(weir_thesis_laws:check(Design, Law, weir_thesis_laws:counterexample(Design, Law)), {Design, Law})
     || Design <- weir_thesis_laws:designs(), Law <- weir_thesis_laws:breaks(Design)].

designs_of_the_thesis_keep_laws(_) ->
    [holds(weir_thesis_laws:prop(Design, Law))
     || Design <- weir_thesis_laws:designs(), Law <- weir_thesis_laws:laws(), weir_thesis_laws:holds(Design, Law)].

%% ---- the machine as a resource

%% One at a time, and none is lost: a thousand asks admit the capacity.
many_processes_share_a_machine(_) ->
    Machine = weir_machine:new(#{self => 1, members => [1], start => ?NOW}),
    [] = weir_machine:put_limiter(Machine, 1, #{capacity => 500, interval_ns => 1000000000}, ?NOW),
    Ask = fun(I) -> [{answer, I, Allowed}] = weir_machine:step(Machine, {ask, I, 1, ?KEY, 1}, ?NOW), Allowed end,
    Answers = lists:append(weir_test:concurrently(10, fun(I) -> [Ask(I * 1000 + J) || J <- lists:seq(1, 100)] end)),
    ?assertEqual({500, 500}, {length([A || true = A <- Answers]), length([A || false = A <- Answers])}),
    ?assertEqual([{?NOW, 500}], lists:sort(weir_machine:published(Machine, 1, ?KEY) ++ weir_machine:unsent(Machine, 1, ?KEY))).

%% Frames and states beyond what a normal scheduler works on: many keys, sent in large frames, then copied.
long_steps_answer_alike(_) ->
    Keys = [1 + (I * 16#9e3779b97f4a7c15) rem (1 bsl 64 - 1) || I <- lists:seq(1, 5000)],
    New = fun(Self, Options) ->
                  Machine = weir_machine:new(Options#{self => Self, members => [1, 2, 3], start => ?NOW}),
                  [] = weir_machine:put_limiter(Machine, 1, #{capacity => 3, interval_ns => 1000000000000}, ?NOW),
                  Machine
          end,
    [One, Two] = [New(Self, #{}) || Self <- [1, 2]],
    Sent = lists:append([weir_machine:step(One, {ask, I, 1, Key, 1}, ?NOW) || {I, Key} <- lists:zip(lists:seq(1, 5000), Keys)])
        ++ weir_machine:step(One, tick, ?NOW + 30000000),
    Frames = [Frame || {send, _, Frame, data} <- Sent],
    ?assert(lists:any(fun(Frame) -> byte_size(Frame) > 8192 end, Frames)),
    ?assertEqual([], lists:append([weir_machine:step(Two, {arrival, 1, Frame}, ?NOW + 40000000) || Frame <- Frames])),
    Three = New(3, #{joining => true}),
    converse({3, Three}, {1, One}, weir_machine:step(Three, tick, ?NOW + 50000000), 1000),
    ?assertNot(weir_machine:copying(Three)),
    [?assertEqual([{?NOW, 1}], weir_machine:published(Machine, 1, Key)) || Machine <- [One, Two, Three], Key <- Keys],
    [?assertEqual([{1, 1, 5000}], [Entry || {_, _, Upto} = Entry <- weir_machine:vector(Machine), Upto > 0]) || Machine <- [One, Two, Three]].

%% What one sent is brought to the other, whose answers are brought back, until nobody says anything; all at one time.
converse({From, _} = Speaker, {To, Machine} = Listener, Effects, Turns) when Turns > 0 ->
    case lists:append([weir_machine:step(Machine, {arrival, From, Frame}, ?NOW + 60000000) || {send, Whom, Frame, repair} <- Effects,
                                                                                              lists:member(To, lists:flatten([Whom]))]) of
        [] -> ok;
        Answers -> converse(Listener, Speaker, Answers, Turns - 1)
    end.

wrong_arguments_are_explained(_) ->
    Config = #{self => 1, members => [1, 2], start => ?NOW},
    Machine = weir_machine:new(Config),
    Wrong = [{fun() -> weir_machine:new(maps:remove(self, Config)) end, "self"},
             {fun() -> weir_machine:new(Config#{members := [2]}) end, "members"},
             {fun() -> weir_machine:new(Config#{neighbours => [3]}) end, "neighbours"},
             {fun() -> weir_machine:new(Config#{neighbours => [1]}) end, "neighbour"},
             {fun() -> weir_machine:new(Config#{members := [1 | 2]}) end, "members"},
             {fun() -> weir_machine:new(Config#{incarnation => 0}) end, "incarnation"},
             {fun() -> weir_machine:new(Config#{heartbeat_interval => 1}) end, "heartbeat_interval"},
             {fun() -> weir_machine:new(Config#{pieces => 0}) end, "pieces"},
             {fun() -> weir_machine:new(Config#{joining => maybe}) end, "joining"},
             {fun() -> weir_machine:new(Config#{tempo => 1}) end, "tempo"},
             {fun() -> weir_machine:new([]) end, "map"},
             {fun() -> weir_machine:put_limiter(Machine, 1, #{capacity => 1}, ?NOW) end, "interval_ns"},
             {fun() -> weir_machine:put_limiter(Machine, 1, #{capacity => 1 bsl 31, interval_ns => 1 bsl 31}, ?NOW) end, "2^60"},
             {fun() -> weir_machine:put_limiter(Machine, 1, #{capacity => 1, interval_ns => 1, partition => ajar}, ?NOW) end, "partition"},
             {fun() -> weir_machine:put_limiter(Machine, -1, #{capacity => 1, interval_ns => 1}, ?NOW) end, "limiter"},
             {fun() -> weir_machine:step(Machine, tock, ?NOW) end, "event"},
             {fun() -> weir_machine:step(Machine, {ask, 1, 1, 0, 1}, ?NOW) end, "key_hash"},
             {fun() -> weir_machine:step(Machine, {ask, 1, 1, 1, 0}, ?NOW) end, "hits"},
             {fun() -> weir_machine:step(Machine, {arrival, 2, "frame"}, ?NOW) end, "frame"},
             {fun() -> weir_machine:step(Machine, {registered, 1 bsl 32}, ?NOW) end, "node"},
             {fun() -> weir_machine:step(Machine, tick, 1 bsl 61) end, "now"},
             {fun() -> weir_machine:step(make_ref(), tick, ?NOW) end, "machine"},
             {fun() -> weir_machine:wake(self()) end, "machine"},
             {fun() -> weir_machine:vector(make_ref()) end, "machine"},
             {fun() -> weir_machine:published(Machine, 1, 1 bsl 64) end, "key_hash"}],
    [weir_test:fault(Fun, [Word]) || {Fun, Word} <- Wrong].
