%% The laws of a replica (state and vector), in simulated time: one harness for all states that weir replicates.
%%
%% A schedule is a setting and a list of commands: asks, time that passes, loss, duplication, delay and with it reordering,
%% partitions, crashes, returns, joins. What must hold, whatever happens:
%%
%%   once       at any time, on any node, a key's births (published, inherited and its own unsent ones) are at most those that nodes
%%              admitted
%%   ends       after the last fault all live nodes come to rest within a bounded time, and then send signs of life only
%%   same       they then hold the same published births, unless a node had to let go of own ones for a copy (about one in ten
%%              thousand of these schedules then ends with a node that still has them, decision 0007), or births of a node that
%%              crashed can be had from nobody any more
%%   complete   of what nodes admitted that did not crash nothing is missing: it is published or still unsent, and with
%%              flush_after it is published. Births of a crashed node may be missing, and records that were counted as lost
%%              because a log was cut short
%%
%% A type of state adds generators of its limiters and asks and a specification, which folds births by brute force.
-module(weir_replica_laws).

-include_lib("proper/include/proper.hrl").

-export([prop_faults/1, prop_one_bucket/1, prop_alone/1, prop_bad_frames/1, holds/2]).

-export_type([state/0, terms/0]).

-type state() :: term().
-type terms() :: weir_machine:terms().
-type births() :: [{Time :: integer(), Weight :: pos_integer()}].

%% The limiters of a setting.
-callback limiters(Setting :: map()) -> [{Limiter :: non_neg_integer(), terms()}].
%% Generators of {Limiter, KeyHash, Hits}: any, and of one hit.
-callback ask() -> proper_types:type().
-callback unit_ask() -> proper_types:type().
%% The specification: the state after these births. A state is a list of births too: those it stands for.
-callback fold(terms(), births()) -> state().
%% Whether the state can come from some of the births, each counted once.
-callback at_most(terms(), state(), births()) -> boolean().
%% Whether none of the births is missing in the state, as far as that can be told.
-callback covers(terms(), state(), births()) -> boolean().
%% Whether two states are the same, as far as their bounds promise.
-callback same(terms(), state(), state()) -> boolean().
%% What one limiter that knows all births decides.
-callback admits(terms(), births(), Hits :: pos_integer(), Now :: integer()) -> boolean().

-define(CLUSTER, weir_replica_cluster).
%% Seconds in which a cluster without faults must come to rest, and those in which it must then stay there.
-define(REST_S, 90).
-define(STAY_S, 3).

%% ---- properties

%% Schedules with faults.
prop_faults(Type) ->
    ?FORALL({Setting, Commands}, {setting(), list(command(Type))}, holds(Type, {Setting, Commands})).

%% Whether the laws hold in this schedule; says which doesn't.
holds(Type, {Setting, Commands}) ->
    judged({Setting, Commands}, fun() -> all_laws(Type, Setting, Commands) end).

%% Without faults and delay, and with hits of 1, the nodes together admit what one bucket would admit, and never more.
prop_one_bucket(Type) ->
    ?FORALL({Setting, Commands}, {calm_setting(), list(calm_command(Type))},
            judged({Setting, Commands}, fun() -> one_bucket(Type, Setting, Commands) end)).

%% A node that is alone decides as the specification does.
prop_alone(Type) ->
    ?FORALL({Setting, Commands}, {calm_setting(), list(frequency([{3, {ask, 1, Type:ask()}}, {1, {wait, range(0, 40000)}}]))},
            judged({Setting, Commands}, fun() -> alone(Type, Setting#{nodes := 1, skews := [0]}, Commands) end)).

%% Frames of random bytes, cut short, or with bytes changed: refused or applied, they do no more than a sound frame could.
prop_bad_frames(Type) ->
    ?FORALL({Asks, Spoilt}, {non_empty(list(Type:ask())), list(spoilt())},
            judged({Asks, Spoilt}, fun() -> bad_frames(Type, Asks, Spoilt) end)).

judged(Schedule, Laws) ->
    try
        Laws()
    catch
        throw:{law, Law, Details} ->
            io:format("The law ~p is broken by~n~p~n~p~n", [Law, Schedule, Details]),
            false
    end.

broken(Law, Details) -> throw({law, Law, Details}).

%% ---- generators

setting() ->
    ?LET({Nodes, Seed, Flush, Limits, Coalesce, Skews, Partition, LargeHits},
         {range(2, 5), range(0, 1000000), boolean(), frequency([{2, roomy}, {1, tight}, {1, tiny}]), oneof([0, 20]),
          frequency([{2, [0]}, {1, [0, 7, -12, 50]}]), frequency([{4, open}, {1, share}, {1, closed}]),
          frequency([{3, admit}, {1, claim}])},
         #{nodes => Nodes, seed => Seed, flush => Flush, limits => Limits, coalesce => Coalesce, skews => Skews,
           partition => Partition, large_hits => LargeHits}).

calm_setting() ->
    ?LET({Nodes, Seed, Flush}, {range(1, 5), range(0, 1000000), boolean()},
         #{nodes => Nodes, seed => Seed, flush => Flush, limits => roomy, coalesce => 0, skews => [0], partition => open,
           large_hits => admit}).

%% Most schedules last some seconds, some a minute: shorter and longer than each time of the protocol but forget_after.
command(Type) ->
    frequency([{14, {ask, node_id(), Type:ask()}}, {7, {wait, wait()}}, {2, {weather, weather()}},
               {1, {cut, list(node_id())}}, {1, heal}, {1, {crash, node_id()}}, {2, {return, node_id()}}, {1, join}, {1, {forget, node_id()}}]).

calm_command(Type) ->
    frequency([{5, {ask, node_id(), Type:unit_ask()}}, {1, {ask_often, range(1, 40), Type:unit_ask()}}, {1, {wait, range(0, 20000)}}]).

node_id() -> range(1, 6).

wait() -> oneof([1, 5, 30, 200, 700, 2500, 6000]).

weather() ->
    ?LET({Loss, Duplicate, Delay}, {oneof([0, 10, 40]), oneof([0, 30]), oneof([0, 1, 60, 400])},
         #{loss => Loss, duplicate => Duplicate, delay => Delay}).

spoilt() ->
    oneof([{bytes, binary()}, {version_and_bytes, binary()}, {cut, range(0, 100)}, {change, range(0, 100), byte()},
           {append, binary()}]).

%% ---- running a schedule

%% Limits of the logs, so tight that they are cut short and chunks dropped. A record has about 20 bytes.
options(roomy) -> #{};
options(tight) -> #{log_bytes => 200, pinned_bytes => 100, others_bytes => 200, piece_keys => 2, pieces => 2};
options(tiny) -> #{log_bytes => 50, pinned_bytes => 0, others_bytes => 30, piece_keys => 1, pieces => 1}.

cluster(Type, #{limits := Limits, coalesce := Coalesce} = Setting, Watch) ->
    Options = (options(Limits))#{coalesce_most => Coalesce * 1000000, peer_timeout => 1200000000},
    ?CLUSTER:new(Setting#{options => Options, limiters => Type:limiters(Setting), most => 6}, Watch).

do({ask, Node, Ask}, C) -> ?CLUSTER:ask(Node, Ask, true, C);
do({ask_often, Times, {_, _, _} = Ask}, C) -> round_robin(Times, Ask, C);
do({wait, Ms}, C) -> ?CLUSTER:run(Ms, C);
do({weather, Weather}, C) -> ?CLUSTER:weather(Weather, C);
do({cut, Side}, C) -> ?CLUSTER:cut(Side, C);
do(heal, C) -> ?CLUSTER:heal(C);
do({crash, Node}, C) -> ?CLUSTER:crash(Node, C);
do({return, Node}, C) -> ?CLUSTER:return(Node, C);
do({forget, Node}, C) -> ?CLUSTER:forget(Node, C);
do(join, C) -> ?CLUSTER:join(C).

%% Frames that take no time arrive before the next command.
do_all(Commands, C) ->
    lists:foldl(fun(Command, Acc) -> ?CLUSTER:run(0, do(Command, Acc)) end, C, Commands).

round_robin(Times, Ask, C) ->
    Nodes = ?CLUSTER:nodes(C),
    lists:foldl(fun(I, Acc) -> ?CLUSTER:run(0, ?CLUSTER:ask(lists:nth(1 + I rem length(Nodes), Nodes), Ask, true, Acc)) end,
                C, lists:seq(1, Times)).

all_laws(Type, Setting, Commands) ->
    Limiters = maps:from_list(Type:limiters(Setting)),
    [erase(Place) || {{looked_at, _, _} = Place, _} <- get()],
    Faulty = do_all(Commands, cluster(Type, Setting, fun(C, Node) -> once(Type, Limiters, Node, C) end)),
    Calm = ?CLUSTER:weather(#{loss => 0, duplicate => 0, delay => 1}, ?CLUSTER:heal(Faulty)),
    Rested = rest(Type, Limiters, Setting, ?CLUSTER:run(3000, Calm), ?REST_S),
    stays_at_rest(Rested),
    [complete(Type, Limiters, Setting, Subject, Rested) || ?CLUSTER:nodes(Rested) =/= [], Subject <- subjects(Rested)],
    true.

subjects(C) ->
    maps:keys(?CLUSTER:births(C)).

published(Node, {Limiter, Key}, C) ->
    weir_machine:published(?CLUSTER:machine(Node, C), Limiter, Key).

inherited(Node, {Limiter, Key}, C) ->
    weir_machine:inherited(?CLUSTER:machine(Node, C), Limiter, Key).

weight(Births) ->
    lists:sum([Count || {_Time, Count} <- Births]).

unsent(Node, {Limiter, Key}, C) ->
    weir_machine:unsent(?CLUSTER:machine(Node, C), Limiter, Key).

%% ---- the laws

%% A state that was looked at before needn't be again: births only become more.
once(Type, Limiters, Node, C) ->
    maps:foreach(fun({Limiter, _} = Subject, Births) ->
                         State = published(Node, Subject, C),
                         case put({looked_at, Node, Subject}, State) of
                             State -> ok;
                             _ -> Type:at_most(maps:get(Limiter, Limiters), State, plain(Births))
                                      orelse broken(once, {node, Node, Subject, State, admitted, Births})
                         end,
                         %% (The times of what was inherited are rounded up.)
                         All = State ++ inherited(Node, Subject, C) ++ unsent(Node, Subject, C),
                         weight(All) =< weight(plain(Births)) orelse broken(once, {node, Node, Subject, all, All, admitted, Births})
                 end, ?CLUSTER:births(C)).

plain(Births) ->
    [{Time, Hits} || {_Node, _Incarnation, Time, Hits} <- Births].

rest(Type, Limiters, Setting, C, Seconds) ->
    case unrest(Type, Limiters, Setting, C) of
        [] -> C;
        Unrest when Seconds =< 0 -> broken(ends_and_same, Unrest ++ [{Node, seen(Node, C)} || Node <- ?CLUSTER:nodes(C)]);
        _ -> rest(Type, Limiters, Setting, ?CLUSTER:run(1000, C), Seconds - 1)
    end.

%% What is not as it must be in the end.
unrest(Type, Limiters, #{flush := Flush} = Setting, C) ->
    Nodes = ?CLUSTER:nodes(C),
    [{not_quiet, N} || N <- Nodes, not weir_machine:quiet(?CLUSTER:machine(N, C))] ++
        [{unsent, N, Subject, Births} || Flush, Subject <- subjects(C), N <- Nodes, [_ | _] = Births <- [unsent(N, Subject, C)]] ++
        [{differ, Subject, N, Other} || lost(C) =:= 0, Subject <- subjects(C), {N, Other} <- neighbours(Nodes),
                                        not alike(Type, Limiters, Subject, N, Other, C), not went_with_its_node(Setting, Subject, C)].

neighbours([]) -> [];
neighbours([_ | Later] = Nodes) -> lists:zip(lists:droplast(Nodes), Later).

alike(Type, Limiters, {Limiter, _} = Subject, Node, Other, C) ->
    Type:same(maps:get(Limiter, Limiters), published(Node, Subject, C), published(Other, Subject, C)).

%% Of a run that crashed some births are where no other node can get them any more: a record that no log has, as logs are cut short, or
%% a part of a copy whose donor died, where nobody else could give one. Who has them in one segment is right, and the others can't know.
went_with_its_node(#{limits := Limits}, Subject, C) ->
    Admitted = maps:get(Subject, ?CLUSTER:births(C)),
    Vectors = [weir_machine:vector(?CLUSTER:machine(N, C)) || N <- ?CLUSTER:nodes(C)],
    Abandoned = lists:any(fun(N) -> maps:get(copies_abandoned, stats(N, C)) > 0 end, ?CLUSTER:nodes(C)),
    Gone = fun(Last) -> Limits =/= roomy andalso not lists:any(fun(Vector) -> lists:member(Last, Vector) end, Vectors) end,
    lists:any(fun({Node, Incarnation, #{records_sent := Sent}}) ->
                      lists:any(fun({By, In, _, _}) -> {By, In} =:= {Node, Incarnation} end, Admitted)
                          andalso (Abandoned orelse Gone({Node, Incarnation, Sent}))
              end, ?CLUSTER:crashed(C)).

%% All that was sent is signs of life, and all that was published stays.
stays_at_rest(C) ->
    %% A digest of the last news may still be due. A run that ended is in digests for 45 s (kDeadInDigests), and a node may
    %% hear of the end as late as another forgets it (kKeepDead, 60 s).
    Settle = case ?CLUSTER:crashed(C) of
                 [] -> 5000;
                 _ -> 110000
             end,
    Still = ?CLUSTER:run(Settle, C),
    Later = ?CLUSTER:run(?STAY_S * 1000, Still),
    Sent = fun(At) -> maps:without([heartbeat], ?CLUSTER:sent(At)) end,
    Sent(Still) =:= Sent(Later) orelse broken(heartbeats_only, {Sent(Still), Sent(Later)}),
    States = fun(At) -> [{N, S, published(N, S, At)} || N <- ?CLUSTER:nodes(At), S <- subjects(At)] end,
    States(C) =:= States(Later) orelse broken(stays, {States(C), States(Later)}).

%% Nothing is missing but what may be.
complete(Type, Limiters, #{flush := Flush} = Setting, {Limiter, _} = Subject, C) ->
    Terms = maps:get(Limiter, Limiters),
    Nodes = ?CLUSTER:nodes(C),
    Crashed = [{Node, Incarnation} || {Node, Incarnation, _Stats} <- ?CLUSTER:crashed(C)],
    Admitted = maps:get(Subject, ?CLUSTER:births(C)),
    {OfCrashed, OfLive} = lists:partition(fun({Node, Incarnation, _, _}) -> lists:member({Node, Incarnation}, Crashed) end, Admitted),
    Published = published(hd(Nodes), Subject, C),
    Held = Type:fold(Terms, Published ++ lists:append([unsent(N, Subject, C) || N <- Nodes])),
    Details = {Subject, published, Published, held, Held, admitted, Admitted, crashed, Crashed},
    Type:at_most(Terms, Held, plain(Admitted)) orelse broken(once, Details),
    CutShort = cut_short(Setting, C),
    if CutShort -> ok;
       OfCrashed =:= [] -> Type:same(Terms, Held, Type:fold(Terms, plain(Admitted))) orelse broken(complete, Details);
       true -> Type:covers(Terms, Held, plain(OfLive)) orelse broken(complete, Details)
    end,
    Flush andalso (Type:same(Terms, Held, Published) orelse broken(flushed, Details)).

%% A log that was cut short has lost births for good: own records that a node had to let go of, or others' whose origin crashed.
cut_short(#{limits := Limits}, C) ->
    lost(C) > 0 orelse (Limits =/= roomy andalso ?CLUSTER:crashed(C) =/= []).

lost(C) ->
    All = [stats(N, C) || N <- ?CLUSTER:nodes(C)] ++ [Stats || {_, _, Stats} <- ?CLUSTER:crashed(C)],
    lists:sum([Lost || #{lost_own_records := Lost} <- All]).

stats(Node, C) ->
    weir_machine:stats(?CLUSTER:machine(Node, C)).

seen(Node, C) ->
    Machine = ?CLUSTER:machine(Node, C),
    #{vector => weir_machine:vector(Machine), copying => weir_machine:copying(Machine), live => weir_machine:live(Machine),
      stats => maps:filter(fun(_, Count) -> Count > 0 end, weir_machine:stats(Machine)),
      published => [{Subject, published(Node, Subject, C)} || Subject <- subjects(C)]}.

%% ---- without faults

one_bucket(Type, Setting, Commands) ->
    Limiters = maps:from_list(Type:limiters(Setting)),
    Start = ?CLUSTER:weather(#{loss => 0, duplicate => 0, delay => 0}, cluster(Type, Setting, fun(_, _) -> ok end)),
    {_, _} = lists:foldl(fun(Command, {C, Central}) -> bucket_step(Type, Limiters, Command, C, Central) end, {Start, #{}}, Commands),
    true.

bucket_step(Type, Limiters, {ask_often, Times, {_, _, _} = Ask}, C, Central) ->
    Nodes = ?CLUSTER:nodes(C),
    Asks = [{ask, lists:nth(1 + I rem length(Nodes), Nodes), Ask} || I <- lists:seq(1, Times)],
    lists:foldl(fun(One, {Acc, Bucket}) -> bucket_step(Type, Limiters, One, Acc, Bucket) end, {C, Central}, Asks);
bucket_step(Type, Limiters, {ask, Node, {Limiter, Key, Hits}} = Command, C, Central) ->
    Now = ?CLUSTER:now(C),
    Terms = maps:get(Limiter, Limiters),
    Subject = {Limiter, Key},
    Before = maps:get(Subject, ?CLUSTER:births(C), []),
    Asked = do_all([Command], C),
    After = maps:get(Subject, ?CLUSTER:births(Asked), []),
    Bucket = maps:get(Subject, Central, []),
    Next = case lists:member(Node, ?CLUSTER:nodes(C)) andalso Type:admits(Terms, Bucket, Hits, Now) of
               true -> Central#{Subject => [{Now, Hits} | Bucket]};
               false -> Central
           end,
    After =:= Before orelse Type:admits(Terms, plain(Before), Hits, Now)
        orelse broken(no_overshoot, {Subject, Now, After}),
    length(After) =< length(maps:get(Subject, Next, [])) orelse broken(not_more_than_one_bucket, {Subject, After}),
    {Asked, Next};
bucket_step(_Type, _Limiters, Command, C, Central) ->
    {do_all([Command], C), Central}.

alone(Type, Setting, Commands) ->
    Limiters = maps:from_list(Type:limiters(Setting)),
    _ = lists:foldl(
          fun({ask, Node, {Limiter, Key, Hits} = Ask}, C) ->
                  Births = plain(maps:get({Limiter, Key}, ?CLUSTER:births(C), [])),
                  Asked = ?CLUSTER:ask(Node, Ask, false, C),
                  [{_, Allowed} | _] = ?CLUSTER:answers(Asked),
                  Allowed =:= Type:admits(maps:get(Limiter, Limiters), Births, Hits, ?CLUSTER:now(C))
                      orelse broken(decides, {Ask, Allowed, Births}),
                  Asked;
             (Command, C) ->
                  do(Command, C)
          end, cluster(Type, Setting, fun(_, _) -> ok end), Commands),
    true.

%% ---- bad frames

%% Node 1's frames, spoilt, come to node 2, which has births of its own. A machine is made by hand here, for its frames.
bad_frames(Type, Asks, Spoilt) ->
    Setting = #{flush => true, partition => open, large_hits => admit},
    Now = 1700000000000000000,
    [Sender, Receiver] = Machines = [weir_machine:new(#{self => Self, members => [1, 2, 3], start => Now}) || Self <- [1, 2]],
    [[] = weir_machine:put_limiter(Machine, Limiter, Terms, Now) || Machine <- Machines, {Limiter, Terms} <- Type:limiters(Setting)],
    Frames = lists:append([[Frame || {send, _, Frame, _} <- weir_machine:step(Sender, {ask, 1, Limiter, Key, Hits}, Now)]
                           || {Limiter, Key, Hits} <- Asks])
        ++ [Frame || {send, _, Frame, _} <- weir_machine:step(Sender, tick, Now + 3000000000)],
    [weir_machine:step(Receiver, {ask, 1, Limiter, Key, Hits}, Now) || {Limiter, Key, Hits} <- Asks],
    [bad_frame(spoil(How, Frame), Asks, Receiver, Now) || How <- Spoilt, Frame <- Frames],
    [feed_whole(Frame, Receiver, Now) || Frame <- Frames],
    true.

bad_frame(Frame, Asks, Receiver, Now) ->
    States = fun() -> [weir_machine:published(Receiver, Limiter, Key) || {Limiter, Key, _} <- Asks] end,
    Malformed = fun() -> maps:get(malformed, weir_machine:stats(Receiver)) end,
    {Before, Count} = {States(), Malformed()},
    _ = weir_machine:step(Receiver, {arrival, 1, Frame}, Now),
    Malformed() =:= Count orelse States() =:= Before orelse broken(malformed_changes_nothing, Frame),
    _ = weir_machine:step(Receiver, {arrival, 9, Frame}, Now),
    _ = weir_machine:step(Receiver, {ask, 2, 1, 1, 1}, Now),
    ok.

feed_whole(Frame, Receiver, Now) ->
    _ = weir_machine:step(Receiver, {arrival, 1, Frame}, Now),
    ok.

spoil({bytes, Bytes}, _Frame) -> Bytes;
spoil({version_and_bytes, Bytes}, _Frame) -> <<1, 1, Bytes/binary>>;
spoil({append, Bytes}, Frame) -> <<Frame/binary, Bytes/binary>>;
spoil({cut, Percent}, Frame) -> binary:part(Frame, 0, byte_size(Frame) * Percent div 101);
spoil({change, Percent, Byte}, Frame) ->
    At = byte_size(Frame) * Percent div 101,
    <<Before:At/binary, _, After/binary>> = Frame,
    <<Before/binary, Byte, After/binary>>.
