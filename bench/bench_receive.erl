%% @doc What a frame of another node costs the node that takes it: processor time of its whole VM.
%%
%% The receiver is a node with weir as it is. The senders are nodes with weir as well, which the receiver took for members; then a
%% process of this module takes the place of their weir_replica, so that each sends as many frames of as many records as the setting
%% says, at full speed or at a pace. They talk to the receiver alone, and otherwise do what a replica does: heartbeats, repair.
%%
%% A round: all senders make their frames, then send them, then wait until the receiver has taken the last one. Its processor time is
%% that of its threads, by the kernel; they don't spin for work (`+sbwt none'). With WEIR_BEFORE another version is measured in turns.
-module(bench_receive).

-export([main/1]).
%% On the nodes.
-export([limiter/1, be_sender/2, turn/1, sender/3, applied/0]).

-define(LIMITER, bench_receive).
-define(KEYS, 100000).
-define(DEADLINE_MS, 60000).
-define(STEP, 7919).
-define(SPREAD, 16#9e3779b97f4a7c15).

%% `senders' of those that there are; `frames' of each sender a round.
-type setting() :: {Title :: string(), Senders :: one | all, Frames :: pos_integer(), Records :: pos_integer(), Pace :: full | pos_integer()}.

-record(set, {title :: string(), receiver :: {pid(), node()}, pid :: string(), senders :: [{pid(), node()}]}).

-spec main([string()]) -> ok.
main([Length, File]) ->
    {Senders, Rounds} = case Length of
                            "quick" -> {10, 5};
                            _ -> {30, 25}
                        end,
    _ = os:cmd("epmd -daemon"),
    Now = filename:dirname(code:which(weir)),
    Sets = [set(Title, Ebin, Senders) || {Title, Ebin} <- [{"weir", Now} | [{"before", Before} || Before <- before()]]],
    Tables = [table(Setting, Sets, Senders, Rounds) || Setting <- settings()],
    [ok = peer:stop(Control) || #set{receiver = Receiver, senders = Others} <- Sets, {Control, _} <- [Receiver | Others]],
    ok = file:write_file(File, ["\n## Receiving\n\nProcessor time of the node that receives; ", integer_to_list(Senders), " senders, ",
                                integer_to_list(?KEYS), " keys, medians of ", integer_to_list(Rounds), " rounds.\n\n" | Tables]).

before() ->
    case os:getenv("WEIR_BEFORE", "") of
        "" -> [];
        Ebin -> [Ebin]
    end.

-spec settings() -> [setting()].
settings() ->
    [{"one sender, 64 records a frame, full speed", one, 200, 64, full},
     {"one sender, one record a frame, full speed", one, 4000, 1, full},
     {"all senders, one record a frame, full speed", all, 200, 1, full},
     {"all senders, one record a frame, 400 frames a second each", all, 200, 1, 400},
     {"all senders, one record a frame, 40 frames a second each", all, 20, 1, 40}].

table({Title, Whose, Frames, Records, Pace}, Sets, Senders, Rounds) ->
    bench_report:say("receiving: ~ts", [Title]),
    Count = case Whose of one -> 1; all -> Senders end,
    %% The first round warms up.
    All = [{Set#set.title, measured(Set, lists:sublist(Set#set.senders, Count), {Frames, Records, Pace})}
           || _ <- lists:seq(0, Rounds), Set <- Sets],
    Results = lists:nthtail(length(Sets), All),
    Of = [{T, [bench_report:median([element(Place, R) || {Is, R} <- Results, Is =:= T]) || Place <- [1, 2, 3]]}
          || #set{title = T} <- Sets],
    {_, [First | _]} = hd(Of),
    [bench_report:table([Title, "CPU, us a frame", "CPU, us a record", "frames a second", "CPU, to the first row"],
                        [[T, bench_report:number(Us), bench_report:number(PerRecord), integer_to_list(round(Rate)), bench_report:ratio(Us, First)]
                         || {T, [Us, PerRecord, Rate]} <- Of]), "\n"].

%% Microseconds of processor time a frame and a record, and frames a second.
measured(#set{receiver = Receiver, pid = Pid}, Senders, {Frames, Records, _} = Round) ->
    ok = together(Senders, {make, Round}),
    Before = on(Receiver, ?MODULE, applied, []),
    Cpu = cpu_ns(Pid),
    Start = erlang:monotonic_time(nanosecond),
    ok = together(Senders, go),
    Took = erlang:monotonic_time(nanosecond) - Start,
    Used = cpu_ns(Pid) - Cpu,
    All = length(Senders) * Frames,
    Applied = on(Receiver, ?MODULE, applied, []) - Before,
    Applied =:= All * Records orelse error({not_applied, All * Records, Applied}),
    {Used / All / 1000, Used / All / Records / 1000, All * 1.0e9 / Took}.

together(Senders, What) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), on(Sender, ?MODULE, turn, [What])} end) || Sender <- Senders],
    [ok = receive {Pid, Answer} -> Answer end || Pid <- Pids],
    ok.

%% Of all threads, those that have ended not counted.
cpu_ns(Pid) ->
    lists:sum([case file:read_file(File) of
                   {ok, Line} -> binary_to_integer(hd(binary:split(Line, <<" ">>)));
                   {error, _} -> 0
               end || File <- filelib:wildcard("/proc/" ++ Pid ++ "/task/*/schedstat")]).

%% ---- nodes ----

set(Title, Ebin, Count) ->
    bench_report:say("receiving: ~b nodes of ~ts", [Count + 1, Title]),
    Cookie = "receive" ++ integer_to_list(rand:uniform(1 bsl 60)),
    Receiver = node_of(Ebin, Cookie, ["+S", "2"]),
    Senders = [node_of(Ebin, Cookie, ["+S", "1"]) || _ <- lists:seq(1, Count)],
    {ok, _} = on(Receiver, application, ensure_all_started, [weir]),
    [begin
         {ok, _} = on(Sender, application, ensure_all_started, [weir]),
         true = on(Sender, net_kernel, connect_node, [element(2, Receiver)])
     end || Sender <- Senders],
    ok = until(members, fun() -> lists:all(fun({Node, With}) -> map_size(maps:get(members, on(Node, weir_members, status, []))) >= With end,
                                           [{Receiver, Count} | [{Sender, 1} || Sender <- Senders]])
                        end),
    Limiter = on(Receiver, ?MODULE, limiter, [?LIMITER]),
    [ok = on(Sender, ?MODULE, be_sender, [element(2, Receiver), Limiter]) || Sender <- Senders],
    #set{title = Title, receiver = Receiver, pid = on(Receiver, os, getpid, []), senders = Senders}.

node_of(Ebin, Cookie, Args) ->
    Paths = lists:append([["-pa", Path] || Path <- [Ebin, filename:dirname(code:which(?MODULE))]]),
    {ok, Control, Node} = peer:start(#{name => peer:random_name("weir_receive"), host => "127.0.0.1", longnames => true,
                                       connection => standard_io, wait_boot => ?DEADLINE_MS,
                                       args => ["-setcookie", Cookie, "-kernel", "logger_level", "critical", "+sbwt", "none",
                                                "+sbwtdcpu", "none", "+sbwtdio", "none" | Args ++ Paths]}),
    {Control, Node}.

on({Control, _}, Module, Function, Arguments) ->
    peer:call(Control, Module, Function, Arguments, ?DEADLINE_MS).

until(What, Condition) -> until(What, Condition, erlang:monotonic_time(millisecond) + ?DEADLINE_MS).

until(What, Condition, Deadline) ->
    case Condition() of
        true -> ok;
        false ->
            erlang:monotonic_time(millisecond) < Deadline orelse error({never_came_true, What}),
            receive after 50 -> until(What, Condition, Deadline) end
    end.

%% ---- on the receiver ----

%% Of weir as it is, or of an older one that this one is measured beside.
either({Module, Function}, {OldModule, OldFunction}, Arguments) ->
    {module, _} = code:ensure_loaded(weir),
    _ = code:ensure_loaded(Module),
    case erlang:function_exported(Module, Function, length(Arguments)) of
        true -> apply(Module, Function, Arguments);
        false -> apply(OldModule, OldFunction, Arguments)
    end.

%% Whatever is admitted makes a record, as a node's share is one token.
-spec limiter(weir:limiter()) -> {weir_machine:limiter_id(), weir_machine:terms()}.
limiter(Name) ->
    ok = weir:put_limiter(Name, #{rate => {1, second}, burst => 2}),
    Entry = either({weir_specs, entry}, {weir_registry, entry}, [atom_to_binary(Name)]),
    {_, _} = either({weir_specs, replicated}, {weir_registry, replicated}, [Entry]).

-spec applied() -> non_neg_integer().
applied() ->
    {ok, Machine} = weir_machine:attached(),
    maps:get(records_applied, weir_machine:stats(Machine)).

%% ---- on a sender ----

-spec be_sender(node(), {weir_machine:limiter_id(), weir_machine:terms()}) -> ok.
be_sender(Receiver, Limiter) ->
    ok = sys:suspend(weir_replica),
    true = unregister(weir_replica),
    true = register(weir_replica, spawn(?MODULE, sender, [Receiver, Limiter, weir_members:node_id(node())])),
    ok.

-spec turn({make, {pos_integer(), pos_integer(), full | pos_integer()}} | go) -> ok.
turn(What) ->
    Monitor = monitor(process, weir_replica),
    weir_replica ! {What, self()},
    receive
        done -> demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, _, _, Reason} -> error(Reason)
    end.

-spec sender(node(), {weir_machine:limiter_id(), weir_machine:terms()}, weir_roster_core:id()) -> no_return().
sender(Receiver, {Id, Terms}, Self) ->
    Other = weir_members:node_id(Receiver),
    #{incarnation := Incarnation} = either({weir_roster, await_start}, {weir_members, start}, []),
    {_, #{protocol := 2, token := Token}} = either({weir_roster, terms}, {weir_members, terms}, [Receiver]),
    Machine = weir_machine:new(#{self => Self, members => [Self, Other], start => weir_clock:now(), incarnation => Incarnation, coalesce_most => 0,
                                 log_bytes => 1 bsl 26}),
    [] = weir_machine:put_limiter(Machine, Id, Terms, weir_clock:now()),
    Send = fun(Kind, Frame) -> erlang:send({weir_replica, Receiver}, {weir_frame, 2, Self, Token, Kind, Frame}) end,
    sends(#{machine => Machine, limiter => Id, receiver => Receiver, send => Send, key => Self rem ?KEYS,
            %% Of a frame: the version of the format, the run.
            header => 1 + varint_bytes(Incarnation)}).

sends(#{machine := Machine, send := Send, receiver := Receiver} = State) ->
    Wait = max(0, (weir_machine:wake(Machine) - weir_clock:now()) div 1000000),
    receive
        {{make, {Frames, Records, Pace}}, From} ->
            {Made, Key} = make(Frames, Records, [], State),
            From ! done,
            %% (A sign of life would tell of records that are still here, and they would be asked for.)
            receive {go, Again} -> ok end,
            ok = go(Made, Pace, Send),
            %% Whatever it is asked last, it answers when the frames are taken.
            unknown = gen_server:call({weir_replica, Receiver}, bench, infinity),
            Again ! done,
            sends(State#{key := Key});
        {weir_frame, 2, Other, _, _, Frame} ->
            ok = sent(weir_machine:step(Machine, {arrival, Other, Frame}, weir_clock:now()), Send),
            sends(State);
        _ ->
            sends(State)
    after Wait ->
        ok = sent(weir_machine:step(Machine, tick, weir_clock:now()), Send),
        sends(State)
    end.

sent(Effects, Send) ->
    _ = [Send(Kind, Frame) || {send, _, Frame, Kind} <- Effects],
    ok.

make(0, _, Made, #{key := Key}) ->
    {lists:reverse(Made), Key};
make(Frames, Records, Made, #{key := Key, machine := Machine, limiter := Limiter, header := Size} = State) ->
    {[<<Header:Size/binary, _/binary>> | _] = Singles, Next} = singles(Records, Key, Machine, Limiter, []),
    Frame = iolist_to_binary([Header | [Record || <<_:Size/binary, Record/binary>> <- Singles]]),
    make(Frames - 1, Records, [Frame | Made], State#{key := Next}).

%% So many frames of one record each: what is admitted is sent at once. (A key that was used up goes without.)
singles(0, Key, _Machine, _Limiter, Made) ->
    {Made, Key};
singles(Records, Key, Machine, Limiter, Made) ->
    Next = (Key + ?STEP) rem ?KEYS,
    Hash = 1 + (Next + 1) * ?SPREAD rem (1 bsl 64 - 1),
    case weir_machine:step(Machine, {ask, 1, Limiter, Hash, 1}, weir_clock:now()) of
        [{answer, 1, false}] -> singles(Records, Next, Machine, Limiter, Made);
        [{answer, 1, true}, {send, _, Frame, data}] -> singles(Records - 1, Next, Machine, Limiter, [Frame | Made]);
        [{answer, 1, true}] -> error(the_receiver_is_away)
    end.

%% As many frames a second as the pace says.
go(Frames, full, Send) -> lists:foreach(fun(Frame) -> Send(data, Frame) end, Frames);
go(Frames, Pace, Send) -> paced(Frames, Send, 1000000 div Pace, now_us()).

paced([], _Send, _Each, _Due) ->
    ok;
paced([Frame | Frames], Send, Each, Due) ->
    receive after max(0, Due - now_us()) div 1000 -> ok end,
    Send(data, Frame),
    paced(Frames, Send, Each, Due + Each).

now_us() -> erlang:monotonic_time(microsecond).

varint_bytes(Value) when Value < 128 -> 1;
varint_bytes(Value) -> 1 + varint_bytes(Value bsr 7).
