%% A real node in the service of `weir-lab run --real': weir, and this process, which the driver (c_src/lab/real) talks to over
%% the file descriptors 3 and 4. It asks requests of weir when they are due, tells what was decided and when, and several times
%% a second how the node stands. It ends the node when the driver's pipe ends.
%%
%% What is said is described in channel.hpp. Numbers are little-endian, times nanoseconds.
%%
%% It knows how long messages between nodes take by sending some, one to each other node a second.
-module(weir_lab_node).

-export([start/0]).

-define(REPORT_MS, 200).
-define(PING_MS, 1000).
-define(MAX_DELAYS, 64).
-define(SEE_MS, 60000).
-define(LIMITER, lab).

-type counts() :: #{atom() => non_neg_integer()}.

-record(state, {port :: port(), zero = none :: none | integer(), claims = false :: boolean(),
                requests = queue:new() :: queue:queue(binary()), answers = [] :: iolist(),
                restless = 0 :: non_neg_integer(), spoken = none :: none | counts(), delays = [] :: [non_neg_integer()],
                %% What was counted before the start, of a node that is there from the start.
                before = #{} :: counts()}).

-spec start() -> pid().
start() ->
    spawn(fun run/0).

%% Whatever goes wrong ends the node, and the driver says so.
run() ->
    _ = process_flag(priority, high),
    true = register(?MODULE, self()),
    try
        Port = open_port({fd, 3, 4}, [binary, {packet, 4}, eof]),
        true = port_command(Port, <<$L, (weir_lab_epmd:listen_port()):16/little>>),
        loop(#state{port = Port})
    catch Class:Reason:Stack ->
        io:format(standard_error, "~p: ~p ~p~n~p~n", [node(), Class, Reason, Stack]),
        halt(1)
    end.

loop(State0) ->
    #state{port = Port} = State = told(fire(State0)),
    receive
        {Port, {data, Message}} -> loop(message(Message, State));
        {Port, eof} -> halt(0);
        {ping, SentNs} -> loop(delayed(SentNs, State));
        {answer, Answer} -> loop(State#state{answers = [Answer | State#state.answers]});
        report -> loop(report(State));
        ping -> loop(ping(State))
    after wait(State) ->
        loop(State)
    end.

%% ---- the driver's messages ----

message(<<$J, Expected:32/little, Others/binary>>, #state{port = Port} = State) ->
    Claims = configure(),
    %% At the beginning weir starts alone on all nodes, which then meet. One that returns meets the others first, and starts with
    %% what they have; those that were killed meanwhile it doesn't wait for.
    Meet = fun() -> [_ = net_kernel:connect_node(node_of(Other)) || <<Other:32/little>> <= Others] end,
    Start = fun() -> {ok, _} = application:ensure_all_started(weir) end,
    _ = [Do() || Do <- case Expected of 1 -> [Meet, Start]; _ -> [Start, Meet] end],
    ok = see(Expected, erlang:monotonic_time(millisecond) + ?SEE_MS),
    %% What a decision needs is loaded now, and not while the first ones are timed: ten VMs that load at once take tens of milliseconds.
    #{allowed := true} = weir:peek(?LIMITER, warm),
    true = port_command(Port, <<$R>>),
    State#state{claims = Claims};
message(<<$S, Zero:64/little-signed>>, State) ->
    self() ! report,
    self() ! ping,
    Now = weir_clock:now(),
    State#state{zero = Zero, restless = Now, before = case Now < Zero of true -> counts(); false -> #{} end};
message(<<$Q, Requests/binary>>, #state{requests = Queue} = State) ->
    State#state{requests = queue:in(Requests, Queue)}.

%% (The names of the lab's nodes are as many as there are nodes.)
node_of(Number) ->
    list_to_atom("lab" ++ integer_to_list(Number) ++ "@127.0.0.1").

%% Weir, before it starts; true if hits ask the other nodes first.
configure() ->
    {ok, [[Capacity, IntervalNs, Partition, LargeHits, FlushAfter, PeerTimeout]]} = init:get_argument(weir_lab_limiter),
    _ = application:load(weir),
    %% A token in so many nanoseconds, exactly: a thousand million of them in as many seconds.
    Spec = #{rate => {1000000000, {list_to_integer(IntervalNs), second}}, burst => list_to_integer(Capacity), scope => cluster,
             partition => lists:nth(list_to_integer(Partition) + 1, [open, share, closed]),
             large_hits => lists:nth(list_to_integer(LargeHits) + 1, [admit, claim]),
             flush_after => case list_to_integer(FlushAfter) of 0 -> infinity; Ms -> Ms end},
    ok = application:set_env(weir, limiters, #{?LIMITER => Spec}),
    ok = application:set_env(weir, cluster, #{peer_timeout => list_to_integer(PeerTimeout)}),
    LargeHits =:= "1".

%% Until so many nodes limit together, this one too.
see(Expected, Until) ->
    {ok, Machine} = weir_machine:attached(),
    case weir_machine:live(Machine) >= Expected andalso weir_machine:quiet(Machine) andalso not weir_machine:copying(Machine) of
        true -> ok;
        false when Expected =:= 1 -> ok;
        false ->
            erlang:monotonic_time(millisecond) < Until orelse error({sees_too_few, weir_members:status()}),
            receive after 20 -> see(Expected, Until) end
    end.

%% ---- requests ----

%% All that are due.
fire(#state{zero = none} = State) ->
    State;
fire(#state{requests = Queue, zero = Zero} = State) ->
    case queue:out(Queue) of
        {empty, _} ->
            State;
        {{value, Requests}, Rest} ->
            case due(Requests, Zero, State) of
                {<<>>, Next} -> fire(Next#state{requests = Rest});
                {Left, Next} -> Next#state{requests = queue:in_r(Left, Rest)}
            end
    end.

due(<<Index:32/little, Due:64/little-signed, Hits:32/little, Length:16/little, Key:Length/binary, Rest/binary>> = All, Zero, State) ->
    case weir_clock:now() of
        Now when Now < Zero + Due -> {All, State};
        Now -> due(Rest, Zero, ask(Index, Now, Key, Hits, State))
    end;
due(<<>>, _Zero, State) ->
    {<<>>, State}.

%% One that asks the other nodes first may take a while; the others don't wait for it.
ask(Index, Now, Key, Hits, #state{claims = true} = State) when Hits > 1 ->
    Self = self(),
    _ = spawn_link(fun() -> Self ! {answer, answer(Index, Now, weir:check(?LIMITER, Key, Hits))} end),
    State;
ask(Index, Now, Key, Hits, #state{answers = Answers} = State) ->
    State#state{answers = [answer(Index, Now, weir:check(?LIMITER, Key, Hits)) | Answers]}.

answer(Index, Now, {allow, _}) -> <<Index:32/little, Now:64/little-signed, 1>>;
answer(Index, Now, {deny, _}) -> <<Index:32/little, Now:64/little-signed, 0>>.

told(#state{answers = []} = State) ->
    State;
told(#state{port = Port, answers = Answers} = State) ->
    true = port_command(Port, [$A | lists:reverse(Answers)]),
    State#state{answers = []}.

%% Milliseconds until the next one is due.
wait(#state{requests = Queue, zero = Zero}) ->
    case queue:peek(Queue) of
        {value, <<_:32, Due:64/little-signed, _/binary>>} when Zero =/= none ->
            max(0, (Zero + Due - weir_clock:now() + 999999) div 1000000);
        _ ->
            infinity
    end.

%% ---- how the node stands ----

report(#state{port = Port, before = Before, spoken = Spoken, delays = Delays} = State) ->
    _ = erlang:send_after(?REPORT_MS, self(), report),
    Now = weir_clock:now(),
    {ok, Machine} = weir_machine:attached(),
    #{state := Held, fixed := Fixed} = weir_machine:held(Machine),
    Quiet = weir_machine:quiet(Machine) andalso not weir_machine:copying(Machine),
    Counts = maps:map(fun(What, Count) -> Count - maps:get(What, Before, 0) end, counts()),
    Speaks = maps:with([data, repair, records], Counts),
    Restless = case Quiet andalso Speaks =:= Spoken of
                   true -> State#state.restless;
                   false -> Now
               end,
    true = port_command(Port, [<<$W, Now:64/little, Restless:64/little, (case Quiet of true -> 1; false -> 0 end):8>>,
                               [<<(maps:get(What, Counts)):64/little>>
                                || What <- [data_bytes, data, repair_bytes, repair, heartbeat_bytes, heartbeats, received]],
                               <<Held:64/little, Fixed:64/little, (maps:get(records, Counts)):64/little>>,
                               [<<Us:32/little>> || Us <- Delays]]),
    State#state{spoken = Speaks, restless = Restless, delays = []}.

counts() ->
    {ok, Machine} = weir_machine:attached(),
    #{records_sent := Records} = weir_machine:stats(Machine),
    Traffic = maps:values(weir_members:traffic()),
    Sum = fun(What) -> lists:sum([maps:get(What, Of) || Of <- Traffic]) end,
    [RepairBytes, Repair] = [Sum(What) || What <- [sent_repair_bytes, sent_repair_frames]],
    [HeartbeatBytes, Heartbeats] = [Sum(What) || What <- [sent_heartbeat_bytes, sent_heartbeat_frames]],
    #{data_bytes => Sum(sent_bytes) - RepairBytes - HeartbeatBytes, data => Sum(sent_frames) - Repair - Heartbeats,
      repair_bytes => RepairBytes, repair => Repair, heartbeat_bytes => HeartbeatBytes, heartbeats => Heartbeats,
      received => Sum(received_frames), records => Records}.

ping(State) ->
    _ = erlang:send_after(?PING_MS, self(), ping),
    _ = [erlang:send({?MODULE, Node}, {ping, weir_clock:now()}, [nosuspend, noconnect]) || Node <- nodes()],
    State.

%% (What waited while this node joined says nothing.)
delayed(SentNs, #state{delays = Delays, zero = Zero} = State) when Zero =/= none, length(Delays) < ?MAX_DELAYS ->
    State#state{delays = [min(16#ffffffff, max(0, weir_clock:now() - SentNs) div 1000) | Delays]};
delayed(_SentNs, State) ->
    State.
