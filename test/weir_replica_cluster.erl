%% A cluster of replicas in simulated time: machines, the network between them, and what it does to frames.
%%
%% Nothing here is random: what happens to a frame follows from the schedule's seed, the link and the time, so a schedule that
%% fails fails again, and stays the same where a command is taken out of it.
%%
%% Time is in nanoseconds; a node's clock is the cluster's time plus its skew. Births are kept as the specification needs them:
%% of each limiter and key who admitted what, when (by the node's clock) and in which of its lives.
-module(weir_replica_cluster).

-export([new/2, ask/4, run/2, weather/2, cut/2, heal/1, crash/2, return/2, join/1, forget/2]).
-export([now/1, nodes/1, machine/2, clock/2, births/1, crashed/1, dead/1, sent/1, answers/1, feed/4]).

-export_type([cluster/0, birth/0, weather/0]).

-define(MS, 1000000).
-define(START, 1700000000000000000).
%% More steps than any schedule has use for: who gets here asks for ticks without end.
-define(MOST_STEPS, 300000).

-record(node, {machine, incarnation = 1, skew = 0, wake}).
-record(cluster, {setting, now = ?START, nodes = #{}, dead = #{}, forgotten = [], crashed = [], queue, order = 0, steps = 0,
                  weather = #{loss => 0, duplicate => 0, delay => 1}, side = [], births = #{}, waiting = #{}, tickets = 0,
                  answers = [], sent = #{data => 0, repair => 0, heartbeat => 0}, watch}).

-opaque cluster() :: #cluster{}.
-type birth() :: {Node :: pos_integer(), Incarnation :: pos_integer(), Time :: integer(), Hits :: pos_integer()}.
%% Percent of the frames that are lost and that come twice, and the milliseconds that a frame takes at most.
-type weather() :: #{loss := 0..100, duplicate := 0..100, delay := non_neg_integer()}.

%% Watch(Cluster, Node) is called after each step that can have changed what the node has published.
new(#{nodes := N} = Setting, Watch) ->
    Members = lists:seq(1, N),
    Cluster = #cluster{setting = Setting, watch = Watch, queue = gb_trees:empty()},
    lists:foldl(fun(Id, C) -> start(Id, Members, 1, false, C) end, Cluster, Members).

now(#cluster{now = Now}) -> Now.
nodes(#cluster{nodes = Nodes}) -> maps:keys(Nodes).
machine(Id, #cluster{nodes = Nodes}) -> (maps:get(Id, Nodes))#node.machine.
clock(Id, #cluster{now = Now, nodes = Nodes}) -> Now + (maps:get(Id, Nodes))#node.skew.
%% #{{Limiter, Key} => [birth()]}, the newest first.
births(#cluster{births = Births}) -> Births.
%% The runs that ended, and what they had counted: [{Node, Incarnation, Stats}].
crashed(#cluster{crashed = Crashed}) -> Crashed.
%% Nodes that are down and may return.
dead(#cluster{dead = Dead}) -> maps:keys(Dead).
%% Frames that were sent, by what they are for.
sent(#cluster{sent = Sent}) -> Sent.
%% [{Ticket, Allowed}], the last first.
answers(#cluster{answers = Answers}) -> Answers.

%% ---- commands; what can't be done (an ask of a node that is down) isn't

ask(Id, {Limiter, Key, Hits}, Watched, #cluster{tickets = Tickets, waiting = Waiting} = C) when is_map_key(Id, C#cluster.nodes) ->
    Ticket = Tickets + 1,
    Asked = C#cluster{tickets = Ticket, waiting = Waiting#{Ticket => {Limiter, Key, Hits}}},
    step(Id, {ask, Ticket, Limiter, Key, Hits}, Watched, Asked);
ask(_Id, _Ask, _Watched, C) ->
    C.

weather(Weather, C) -> C#cluster{weather = Weather}.

%% The nodes of Side and the others don't hear each other until heal/1. What is on its way arrives.
cut(Side, C) -> C#cluster{side = Side}.
heal(C) -> C#cluster{side = []}.

crash(Id, #cluster{nodes = Nodes, dead = Dead, crashed = Crashed} = C) when is_map_key(Id, Nodes) ->
    {#node{incarnation = Incarnation, machine = Machine}, Rest} = maps:take(Id, Nodes),
    C#cluster{nodes = Rest, dead = Dead#{Id => Incarnation},
              crashed = [{Id, Incarnation, weir_machine:stats(Machine)} | Crashed]};
crash(_Id, C) ->
    C.

return(Id, #cluster{dead = Dead} = C) when is_map_key(Id, Dead) ->
    {Incarnation, Rest} = maps:take(Id, Dead),
    start(Id, members(C), Incarnation + 1, true, C#cluster{dead = Rest});
return(_Id, C) ->
    C.

%% A node that was never there before.
join(#cluster{setting = #{most := Most}} = C) ->
    case length(members(C)) + length(C#cluster.forgotten) of
        Known when Known < Most ->
            Id = Known + 1,
            Told = lists:foldl(fun(Node, Acc) -> step(Node, {registered, Id}, false, Acc) end, C, maps:keys(C#cluster.nodes)),
            start(Id, members(C) ++ [Id], 1, true, Told);
        _ ->
            C
    end.

%% A node that is down has left for good.
forget(Id, #cluster{nodes = Nodes, dead = Dead, forgotten = Forgotten} = C) when is_map_key(Id, Dead) ->
    Left = C#cluster{dead = maps:remove(Id, Dead), forgotten = [Id | Forgotten]},
    lists:foldl(fun(Node, Acc) -> step(Node, {unregistered, Id}, false, Acc) end, Left, maps:keys(Nodes));
forget(_Id, C) ->
    C.

%% A frame that no node sent.
feed(From, To, Frame, C) ->
    step(To, {arrival, From, Frame}, true, C).

members(#cluster{nodes = Nodes, dead = Dead}) ->
    lists:sort(maps:keys(Nodes) ++ maps:keys(Dead)).

start(Id, Members, Incarnation, Joining, #cluster{setting = Setting, now = Now, nodes = Nodes} = C) ->
    #{options := Options, limiters := Limiters, skews := Skews} = Setting,
    Skew = lists:nth(1 + Id rem length(Skews), Skews) * ?MS,
    Machine = weir_machine:new(Options#{self => Id, members => Members, incarnation => Incarnation, joining => Joining,
                                        start => Now + Skew, seed => seed(Setting, Id)}),
    [[] = weir_machine:put_limiter(Machine, Limiter, Terms, Now + Skew) || {Limiter, Terms} <- Limiters],
    Node = #node{machine = Machine, incarnation = Incarnation, skew = Skew, wake = weir_machine:wake(Machine) - Skew},
    C#cluster{nodes = Nodes#{Id => Node}}.

%% Timers of nodes are spread by their seeds.
seed(#{seed := Seed}, Id) -> erlang:phash2({Seed, Id}, 1000).

%% ---- time

%% All that is due up to now and in the next Ms milliseconds.
run(Ms, #cluster{now = Now} = C) ->
    run_until(Now + Ms * ?MS, C).

run_until(End, #cluster{queue = Queue, now = Now} = C) ->
    {Wake, Sleeper} = next_wake(C),
    case gb_trees:is_empty(Queue) of
        false ->
            {{Time, _} = Place, {From, To, Frame, Traffic}} = gb_trees:smallest(Queue),
            if Time =< End, Time =< Wake ->
                    Rest = C#cluster{queue = gb_trees:delete(Place, Queue), now = max(Now, Time)},
                    run_until(End, arrive(From, To, Frame, Traffic, Rest));
               true ->
                    wake(Wake, Sleeper, End, C)
            end;
        true ->
            wake(Wake, Sleeper, End, C)
    end.

wake(Wake, Sleeper, End, #cluster{now = Now} = C) when Wake =< End ->
    run_until(End, step(Sleeper, tick, false, C#cluster{now = max(Now, Wake)}));
wake(_Wake, _Sleeper, End, C) ->
    C#cluster{now = End}.

%% An atom is later than all numbers.
next_wake(#cluster{nodes = Nodes}) ->
    maps:fold(fun(Id, #node{wake = Wake}, Next) -> min({Wake, Id}, Next) end, {never, none}, Nodes).

arrive(From, To, Frame, Traffic, #cluster{nodes = Nodes} = C) when is_map_key(To, Nodes) ->
    step(To, {arrival, From, Frame}, Traffic =/= heartbeat, C);
arrive(_From, _To, _Frame, _Traffic, C) ->
    C.

step(_Id, _Event, _Watched, #cluster{steps = Steps}) when Steps > ?MOST_STEPS ->
    throw({law, ends, too_many_steps});
step(Id, Event, Watched, #cluster{nodes = Nodes, now = Now, steps = Steps, watch = Watch} = C) ->
    #node{machine = Machine, skew = Skew} = Node = maps:get(Id, Nodes),
    Effects = weir_machine:step(Machine, Event, Now + Skew),
    Wake = weir_machine:wake(Machine) - Skew,
    Stepped = C#cluster{nodes = Nodes#{Id := Node#node{wake = Wake}}, steps = Steps + 1},
    Done = lists:foldl(fun(Effect, Acc) -> execute(Id, Node, Effect, Acc) end, Stepped, Effects),
    _ = Watched andalso Watch(Done, Id),
    Done.

execute(Id, #node{incarnation = Incarnation, skew = Skew}, {answer, Ticket, Allowed}, C) ->
    #cluster{waiting = Waiting, births = Births, answers = Answers, now = Now} = C,
    {{Limiter, Key, Hits}, Rest} = maps:take(Ticket, Waiting),
    Answered = C#cluster{waiting = Rest, answers = [{Ticket, Allowed} | Answers]},
    case Allowed of
        true ->
            Birth = {Id, Incarnation, Now + Skew, Hits},
            Answered#cluster{births = maps:update_with({Limiter, Key}, fun(Others) -> [Birth | Others] end, [Birth], Births)};
        false ->
            Answered
    end;
execute(Id, Node, {send, To, Frame, Traffic}, C) when is_integer(To) ->
    execute(Id, Node, {send, [To], Frame, Traffic}, C);
execute(Id, _Node, {send, All, Frame, Traffic}, #cluster{sent = Sent} = C) ->
    Counted = C#cluster{sent = maps:update_with(Traffic, fun(N) -> N + length(All) end, Sent)},
    lists:foldl(fun(To, Acc) -> transmit(Id, To, Frame, Traffic, Acc) end, Counted, All).

%% ---- the network

transmit(From, To, Frame, Traffic, #cluster{now = Now, weather = Weather, side = Side, setting = #{seed := Seed}} = C) ->
    #{loss := Loss, duplicate := Duplicate, delay := Delay} = Weather,
    Chance = fun(Of, Range) -> erlang:phash2({Of, Seed, From, To, Now, Traffic}, Range) end,
    Apart = lists:member(From, Side) =/= lists:member(To, Side),
    case Apart orelse Chance(loss, 100) < Loss of
        true ->
            C;
        false ->
            Once = enqueue(Now + Chance(delay, Delay * 1000 + 1) * 1000, {From, To, Frame, Traffic}, C),
            case Chance(duplicate, 100) < Duplicate of
                true -> enqueue(Now + Chance(again, 4 * Delay * 1000 + 1) * 1000, {From, To, Frame, Traffic}, Once);
                false -> Once
            end
    end.

enqueue(Time, What, #cluster{queue = Queue, order = Order} = C) ->
    C#cluster{queue = gb_trees:insert({Time, Order}, What, Queue), order = Order + 1}.
