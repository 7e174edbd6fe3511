%% Clusters of weir_members_core in simulated time: nodes that start, leave, stop, crash, are cut off from each other and forgotten,
%% whose clocks are set back, whose process of members alone is killed between two effects, and whose secret is rotated.
%%
%% A node is a table of rows, which lives as long as weir runs there, a process that has a core, and a model of weir_replica, which
%% knows whom it was told of. The network is that of the VM. What one process sends to another comes in order; what its successor
%% sends has no order with that, so that an end may be heard of after the next hello. A connection ends on one side up to some seconds
%% before it does on the other. Its first message comes after `nodeup'.
%%
%% The laws, of which the last four are asked when the last fault is over:
%% - run:       a node's incarnations ascend. What anybody knows of it never goes back, and nobody takes two runs for one.
%% - left:      who knows that a node left, takes it back for its own hello only.
%% - named:     a node that this one hasn't met counts only if at least half of the connected members that are ready name it.
%% - number:    no two registered nodes have the same number.
%% - joins:     a run that starts and meets one that is ready is to copy its state.
%% - answered:  who waits for the end of a start gets an answer within two START_MS.
%% - meet:      after ?MEET_MS all live nodes of one secret are connected members of each other, of the right run, and each replica knows
%%              the members that its table has. Nobody counts a node that left and is still there.
%% - forgotten: after two FORGET_MS more, nobody knows anybody else.
%% - rest:      then in each GREET_MS each node says two hellos at most, and no row changes.
-module(weir_members_laws).

-include_lib("proper/include/proper.hrl").

-export([prop_laws/0, run/2, broken/1]).

%% Of weir_members.
-define(START_MS, 1000).
-define(AGAIN_MS, 200).
-define(CHECK_MS, 1000).
-define(GREET_MS, 5000).
-define(FORGET_MS, 30000).
%% Eight times GREET_MS.
-define(MEET_MS, 40000).
%% The last two have the same number.
-define(NAMES, {'a@members.laws', 'b@members.laws', 'c@members.laws', 'd@members.laws', 'm39237@members.laws', 'm39793@members.laws'}).
-define(GHOSTS, {'ghost1@members.laws', 'ghost2@members.laws'}).
-define(STRANGER, <<"stranger">>).

%% A life of weir on a node: `run' tells them apart. `gen' is the process of members, `none' if there is none; `bound' are the monitors
%% of it. `dies' is after how many effects it is killed. `asked' is since when the replica waits for the end of the start; `machine' and
%% `peers' are what it knows. `met' are the runs that were met under an incarnation, `named' is what members named in their last
%% hello, `current' the message that is handled; `joins' says that the start met a node that was ready, `yours' is the
%% latest run of this node that others said they know.
-record(node, {run = none, rows = #{}, gen = none, core, watched = #{}, bound = [], dies = none, asked = none, machine = none,
               peers = #{}, met = #{}, named = #{}, current = none, joins = false, yours = 0}).
%% `vms' are nodes whose VM runs. `views' are the connections as each side sees them; `last' is when the last message of a channel
%% comes. `broken' are the laws that were broken, `used' the names that ever ran, `said' counts hellos.
-record(world, {now = 0, queue = gb_trees:empty(), count = 0, random, delay, last = #{}, nodes = #{}, vms = #{}, views = #{}, cut = #{},
                offsets = #{}, strangers = #{}, lies = #{}, secret = 0, broken = [], used = #{}, said = 0}).

%% ---- properties

prop_laws() ->
    ?FORALL({Setting, Stories}, {setting(), resize(40, list(story()))},
            begin
                Broken = broken(run(Setting, lists:append(Stories))),
                ?WHENFAIL(io:format("~p~n", [Broken]), Broken =:= [])
            end).

setting() ->
    ?LET({Nodes, Delay, Seed}, {range(2, 4), oneof([0, 1, 20, 100, 400]), range(1, 1000000)}, #{nodes => Nodes, delay => Delay, seed => Seed}).

%% Single commands, and what seldom comes together by chance.
story() ->
    frequency([{12, [command()]},
               {1, ?LET(I, node_number(), [{isolate, I}, {restart, I, oneof([app, vm]), -100000}])},
               {1, ?LET(I, node_number(), [{isolate, I}, {restart, I, oneof([app, vm]), -100000}, {wait, 1500}, {rotate, I}])},
               {1, ?LET({I, J}, {node_number(), node_number()}, [{cut, I, J}, {restart, I, app, 0}])}]).

command() ->
    frequency([{6, {wait, oneof([1, 30, 200, 900, 1500, 4000, 7000, 20000])}}, {8, {start, node_number()}}, {3, {crash, node_number()}},
               {2, {stop, node_number(), oneof([app, vm])}}, {2, {leave, node_number()}}, {2, {end_app, node_number()}},
               {4, {restart, node_number(), oneof([app, vm]), oneof([0, 0, -5, -100000, -200000, 300000])}}, {2, {isolate, node_number()}},
               {4, {kill, node_number(), oneof([now, 0, 1, 2, 3, 4, 5, 7, 9])}}, {4, {cut, node_number(), node_number()}}, {3, heal},
               {2, {forget, node_number(), node_number()}},
               {1, {stranger, node_number(), boolean()}}, {2, {lie, node_number(), range(1, 2)}}, {2, {rotate, node_number()}}, {1, deploy}]).

node_number() -> frequency([{12, range(1, 4)}, {1, range(5, 6)}]).

-spec broken(#world{}) -> [term()].
broken(#world{broken = Broken}) -> lists:usort(Broken).

%% ---- a run

-spec run(map(), list()) -> #world{}.
run(#{nodes := Count, delay := Delay, seed := Seed}, Commands) ->
    World = #world{delay = Delay, random = rand:seed_s(exsss, Seed)},
    Started = for(1500, lists:foldl(fun(I, W) -> command({start, I}, W) end, World, lists:seq(1, Count))),
    settled(lists:foldl(fun command/2, Started, Commands)).

settled(World) ->
    Met = for(?MEET_MS, command(heal, World#world{lies = #{}, nodes = maps:map(fun(_, N) -> N#node{dies = none} end, World#world.nodes)})),
    Quiet = for(2 * ?FORGET_MS, all_meet(waiting(Met))),
    at_rest(Quiet, for(2 * ?GREET_MS, forgotten(Quiet#world{said = 0}))).

waiting(#world{nodes = Nodes, now = Now} = World) ->
    broken([{answered, Name} || {Name, #node{asked = Since}} <- maps:to_list(Nodes), Since =/= none, Now - Since > 2 * ?START_MS], World).

%% Nodes of which one has the number of another are not to meet.
all_meet(#world{nodes = Nodes} = World) ->
    Live = [{Name, Node} || {Name, Node} <- maps:to_list(Nodes), lives(Node)],
    broken([{meet, A, B, maps:get({member, B}, Rows, none)}
            || {A, #node{rows = Rows}} <- Live, {B, #node{rows = #{incarnation := Run}} = Other} <- Live, A =/= B, alike(Rows, Other),
               not rivals(World, A, B), not met(maps:get({member, B}, Rows, none), Run)]
           ++ [{machine, A} || {A, #node{rows = #{incarnation := Run}, machine = Machine}} <- Live, Machine =/= Run]
           ++ [{peers, A, maps:keys(Peers), registered(Rows)} || {A, #node{rows = Rows, peers = Peers}} <- Live,
                                                                 maps:keys(Peers) -- registered(Rows) =/= registered(Rows) -- maps:keys(Peers)]
           ++ [{left_counts, A, B} || {A, #node{rows = Rows}} <- Live, {B, #node{rows = #{phase := left}}} <- maps:to_list(Nodes),
                                      lists:member(B, registered(Rows)), not rivals(World, A, B)], World).

lives(#node{rows = #{phase := ready}, gen = Gen}) -> Gen =/= none;
lives(#node{}) -> false.

alike(#{secret := Secret}, #node{rows = #{secret := Other}}) -> (Secret =:= ?STRANGER) =:= (Other =:= ?STRANGER).

rivals(#world{used = Used}, A, B) ->
    is_map_key(element(5, ?NAMES), Used) andalso is_map_key(element(6, ?NAMES), Used)
        andalso [X || X <- [A, B], X =:= element(5, ?NAMES) orelse X =:= element(6, ?NAMES)] =/= [].

met(#{standing := met, away_since := none, incarnation := Known, terms := #{}}, Run) -> Known =:= Run;
met(_, _) -> false.

registered(Rows) -> [Node || {{member, Node}, Member} <- maps:to_list(Rows), weir_roster_core:is_registered(Member)].

forgotten(#world{nodes = Nodes} = World) ->
    Live = [Name || {Name, Node} <- maps:to_list(Nodes), lives(Node)],
    broken([{forgotten, A, B} || {A, #node{rows = Rows} = Node} <- maps:to_list(Nodes), lives(Node), {member, B} <- maps:keys(Rows),
                                 not lists:member(B, Live) orelse not alike(Rows, map_get(B, Nodes)), not rivals(World, A, B)]
           ++ [{forgotten, A, B} || {A, #node{rows = Rows}} <- maps:to_list(Nodes), {refused, B} <- maps:keys(Rows), not lists:member(B, up(A, World))],
           World).

%% (Their number is no row.)
at_rest(#world{nodes = Before}, #world{nodes = After, said = Said} = World) ->
    Rows = fun(Nodes) -> maps:map(fun(_, #node{rows = Rows}) -> Rows end, Nodes) end,
    Most = 2 * 3 * map_size(After),
    Rivals = rivals(World, element(5, ?NAMES), a),
    broken([{rest, Said} || Said > Most] ++ [rows_at_rest || Rows(Before) =/= Rows(After), not Rivals], World).

broken(Laws, #world{broken = Broken} = World) -> World#world{broken = Laws ++ Broken}.

%% ---- commands

command({wait, Ms}, World) -> for(Ms, World);
command({start, I}, World) -> starts(name(I), World);
command({crash, I}, World) -> vm_ends(name(I), World);
command({stop, I, What}, World) ->
    Name = name(I),
    Ended = app_ends(Name, step({call, {stopped, Name}, {leave, {stop, 1000}}}, Name, World)),
    case What of app -> Ended; vm -> later(300, {vm_ends, Name, vm(Name, Ended)}, Ended) end;
command({leave, I}, World) -> step({call, {left, name(I)}, {leave, bye}}, name(I), World);
command({end_app, I}, World) -> app_ends(name(I), World);
command({kill, I, now}, World) -> killed(name(I), World);
command({kill, I, Effects}, World) -> change(name(I), fun(Node) -> Node#node{dies = Effects} end, World);
command({cut, I, J}, World) when I =/= J -> cut(name(I), name(J), World);
command({cut, _, _}, World) -> World;
command(heal, #world{cut = Cut} = World) ->
    lists:foldl(fun({A, B}, W) -> later(random(1, 2000), {connect, A, B}, W) end, World#world{cut = #{}}, maps:keys(Cut));
command({restart, I, What, Offset}, World) ->
    command({start, I}, command({clock, I, Offset}, case What of app -> app_ends(name(I), World); vm -> vm_ends(name(I), World) end));
command({isolate, I}, World) -> lists:foldl(fun(J, W) -> command({cut, I, J}, W) end, World, lists:seq(1, 6));
command({clock, I, Offset}, #world{offsets = Offsets} = World) -> World#world{offsets = Offsets#{name(I) => Offset}};
command({forget, I, J}, World) -> step({call, {forgets, name(I)}, {forget, name(J)}}, name(I), World);
command({stranger, I, Is}, #world{strangers = Strangers} = World) -> World#world{strangers = Strangers#{name(I) => Is}};
command({lie, I, Ghost}, #world{lies = Lies} = World) -> World#world{lies = Lies#{name(I) => element(Ghost, ?GHOSTS)}};
command({rotate, I}, World) -> rotates(name(I), World);
command(deploy, #world{nodes = Nodes, secret = Secret} = World) ->
    %% When the operator sees that all have the next one. It is what they are configured with then, and there is another one to come.
    case lists:usort([Now || #node{rows = #{secret := Now}} <- maps:values(Nodes), Now =/= ?STRANGER]) =:= [id(Secret + 1)] of
        true -> World#world{secret = Secret + 1};
        false -> World
    end.

name(I) -> element(I, ?NAMES).

id(Secret) -> <<Secret:64>>.

%% What a node is configured with to come next.
next(Name, #world{nodes = Nodes, secret = Secret}) ->
    case Nodes of
        #{Name := #node{rows = #{secret := ?STRANGER}}} -> none;
        #{} -> id(Secret + 1)
    end.

%% As weir_rotation asks: not while a member is away. What is said to the others may be lost.
rotates(Name, #world{nodes = Nodes, secret = Secret} = World) ->
    case Nodes of
        #{Name := #node{rows = Rows, gen = Gen}} when Gen =/= none ->
            Members = [Member || {{member, _}, Member} <- maps:to_list(Rows), weir_roster_core:is_registered(Member)],
            Switch = {rotation, 1, switch, id(Secret + 1)},
            case [away || #{away_since := Since} <- Members, Since =/= none] of
                [] -> lists:foldl(fun(#{node := Node}, W) -> send(Name, Gen, Node, {step, {call, {rotates, Name}, Switch}}, W) end,
                                  step({call, {rotates, Name}, Switch}, Name, World), Members);
                _ -> World
            end;
        #{} -> World
    end.

%% ---- nodes

starts(Name, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{run = Run}} when Run =/= none -> World;
        #{} -> begins(Name, connects(Name, World))
    end.

%% (A run has a number, which is its first moment's as well.)
begins(Name, #world{count = Run, nodes = Nodes, used = Used, strangers = Strangers, secret = Secret} = World) ->
    Id = case Strangers of #{Name := true} -> ?STRANGER; #{} -> id(Secret) end,
    Rows = #{secret => Id, before => none, phase => starting, node => Name},
    Begun = World#world{count = Run + 1, used = Used#{Name => true}, nodes = Nodes#{Name => #node{run = Run, rows = Rows}}},
    asks(Name, process(Name, Begun)).

%% The VM starts, if it doesn't run, and connects to all others that it can reach.
connects(Name, #world{vms = Vms} = World) when is_map_key(Name, Vms) -> World;
connects(Name, #world{vms = Vms, count = Count} = World) ->
    Others = maps:keys(Vms),
    lists:foldl(fun(Other, W) -> connect(Name, Other, W) end, World#world{vms = Vms#{Name => Count}, count = Count + 1}, Others).

vm(Name, #world{vms = Vms}) -> maps:get(Name, Vms, none).

vm_ends(Name, #world{vms = Vms} = World) when is_map_key(Name, Vms) ->
    Ended = app_ends(Name, World),
    Gone = lists:foldl(fun(Other, W) -> lost(Other, Name, 0, disconnected(Name, Other, W)) end, Ended, maps:keys(Vms) -- [Name]),
    Gone#world{vms = maps:remove(Name, Vms)};
vm_ends(_Name, World) -> World.

app_ends(Name, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{run = Run}} when Run =/= none ->
            Ended = process_ends(Name, World),
            Ended#world{nodes = (Ended#world.nodes)#{Name := #node{}}};
        #{} -> World
    end.

%% The supervisor starts it again; who waited for an answer asks again.
killed(Name, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{gen = Gen}} when Gen =/= none -> asks(Name, process(Name, process_ends(Name, World)));
        #{} -> World
    end.

process(Name, #world{count = Gen, nodes = Nodes} = World) ->
    Node = maps:get(Name, Nodes),
    Rows = maps:fold(fun({left, _} = Key, {Incarnation, At}, All) -> [{Key, Incarnation, At} | All];
                        (Key, Value, All) -> [{Key, Value} | All]
                     end, [], Node#node.rows),
    Core = weir_members_core:new(Rows, #{forget_after => ?FORGET_MS}),
    Joins = Node#node.joins andalso map_get(phase, Node#node.rows) =/= starting,
    New = Node#node{yours = 0, gen = Gen, core = Core, watched = #{}, bound = [], dies = none, named = #{}, joins = Joins},
    Begun = step(start, Name, World#world{count = Gen + 1, nodes = Nodes#{Name := New}}),
    Checked = later(?CHECK_MS, {own, Name, Gen, check}, Begun),
    later(?GREET_MS, {own, Name, Gen, greet}, Checked).

process_ends(Name, #world{nodes = Nodes} = World) ->
    case maps:get(Name, Nodes) of
        #node{gen = none} -> World;
        #node{gen = Gen, bound = Bound} = Node ->
            lists:foldl(fun({Ref, From}, W) -> send(Name, Gen, From, {ended, Ref}, W) end,
                        World#world{nodes = Nodes#{Name := Node#node{gen = none, core = none, bound = []}}}, Bound)
    end.

%% The replica, when it starts or has to renew; when it waits already, its call was lost.
asks(Name, #world{nodes = Nodes, now = Now} = World) ->
    case Nodes of
        #{Name := #node{run = Run, machine = none}} ->
            step({call, {start, Run}, start}, Name, change(Name, fun(Node) -> Node#node{asked = Now} end, World));
        #{Name := #node{run = Run, asked = Since}} when Since =/= none ->
            step({call, {start, Run}, start}, Name, change(Name, fun(Node) -> Node#node{asked = Now} end, World));
        #{} -> World
    end.

change(Name, Change, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{run = Run} = Node} when Run =/= none -> World#world{nodes = Nodes#{Name := Change(Node)}};
        #{} -> World
    end.

%% ---- connections

cut(A, B, #world{cut = Cut, random = Random} = World) ->
    {Draw, Next} = rand:uniform_s(4, Random),
    Later = case Draw of 1 -> 7000; 2 -> 400; _ -> 0 end,
    {First, Second} = case rand:uniform_s(2, Next) of {1, _} -> {A, B}; {2, _} -> {B, A} end,
    lost(Second, First, Later, disconnected(First, Second, World#world{cut = Cut#{{min(A, B), max(A, B)} => true}, random = Next})).

%% The other side notices it now, or later.
lost(Name, Other, 0, World) -> disconnected(Name, Other, World);
lost(Name, Other, Ms, #world{views = Views} = World) ->
    later(Ms, {lost, Name, Other, maps:get({Name, Other}, Views, none)}, World).

%% All monitors say so, and nothing comes any more that was sent.
disconnected(Name, Other, #world{views = Views, nodes = Nodes} = World) when is_map_key({Name, Other}, Views) ->
    Down = World#world{views = maps:remove({Name, Other}, Views)},
    case Nodes of
        #{Name := #node{gen = Gen, watched = #{Other := Ref}, bound = Bound} = Node} when Gen =/= none ->
            Left = Node#node{bound = [B || {_, From} = B <- Bound, From =/= Other]},
            happens({message, Name, {ended, Ref}}, Down#world{nodes = Nodes#{Name := Left}});
        #{} -> Down
    end;
disconnected(_Name, _Other, World) -> World.

connect(A, B, #world{vms = Vms, cut = Cut, views = Views} = World) ->
    case is_map_key(A, Vms) andalso is_map_key(B, Vms) andalso not is_map_key({min(A, B), max(A, B)}, Cut) of
        true ->
            case Views of
                #{{A, B} := Link, {B, A} := Link} -> World;
                #{} -> connected(A, B, disconnected(B, A, disconnected(A, B, World)))
            end;
        false -> World
    end.

connected(A, B, #world{views = Views, count = Link} = World) ->
    Up = World#world{views = Views#{{A, B} => Link, {B, A} => Link}, count = Link + 1},
    lists:foldl(fun({Here, There}, W) ->
                        {At, Drawn} = soon(W),
                        at(At, {up, Here, There, Link}, Drawn#world{last = (Drawn#world.last)#{{Link, Here} => At}})
                end, Up, [{A, B}, {B, A}]).

%% In order from each process, and after `nodeup'; lost if the connection isn't that one any more.
send(From, Gen, To, Message, #world{views = Views, last = Last} = World) ->
    case Views of
        #{{From, To} := Link} ->
            {Soon, Drawn} = soon(World),
            At = lists:max([Soon, maps:get({Link, To}, Last, 0), maps:get({Gen, To}, Last, 0)]),
            at(At, {arrives, From, To, Link, Message}, Drawn#world{last = Last#{{Gen, To} => At}});
        #{} -> World
    end.

soon(#world{now = Now, delay = Most, random = Random} = World) ->
    {Delay, Next} = rand:uniform_s(Most + 1, Random),
    {Now + Delay - 1, World#world{random = Next}}.

up(Name, #world{views = Views}) -> [Other || {Here, Other} <- maps:keys(Views), Here =:= Name].

%% ---- time

for(Ms, #world{now = Now} = World) -> until(Now + Ms, World).

until(End, #world{queue = Queue} = World) ->
    case gb_trees:is_empty(Queue) orelse gb_trees:smallest(Queue) of
        {{At, _}, _} when At =< End ->
            {{At, _}, Event, Rest} = gb_trees:take_smallest(Queue),
            until(End, happens(Event, World#world{now = max(At, World#world.now), queue = Rest}));
        _ -> World#world{now = End}
    end.

later({random, Least, Most}, Event, #world{random = Random} = World) ->
    {Draw, Next} = rand:uniform_s(Most - Least, Random),
    later(Least + Draw, Event, World#world{random = Next});
later(Ms, Event, #world{now = Now} = World) -> at(Now + Ms, Event, World).

random(Least, Most) -> {random, Least, Most}.

at(Time, Event, #world{queue = Queue, count = Count} = World) ->
    World#world{queue = gb_trees:insert({Time, Count}, Event, Queue), count = Count + 1}.

happens({arrives, From, To, Link, Message}, #world{views = Views} = World) ->
    case Views of
        #{{To, From} := Link} -> happens({message, To, {From, Message}}, World);
        #{} -> World
    end;
happens({message, Name, {From, {monitor, Ref}}}, #world{nodes = Nodes, count = Count} = World) ->
    case Nodes of
        #{Name := #node{gen = Gen, bound = Bound} = Node} when Gen =/= none ->
            World#world{nodes = Nodes#{Name := Node#node{bound = [{Ref, From} | Bound]}}};
        #{} -> send(Name, Count, From, {ended, Ref}, World#world{count = Count + 1})
    end;
happens({message, Name, {_, {ended, Ref}}}, World) -> happens({message, Name, {ended, Ref}}, World);
happens({message, Name, {ended, Ref}}, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{watched = Watched} = Node} ->
            case [Other || {Other, Its} <- maps:to_list(Watched), Its =:= Ref] of
                [Other] -> step({down, Other}, Name, World#world{nodes = Nodes#{Name := Node#node{watched = maps:remove(Other, Watched)}}});
                [] -> World
            end;
        #{} -> World
    end;
happens({message, Name, {_, {step, {told, Kind, Envelope, Told, _}}}}, World) ->
    step({told, Kind, Envelope, Told, next(Name, World)}, Name, World);
happens({message, Name, {_, {step, Message}}}, World) -> step(Message, Name, World);
happens({own, Name, Gen, Message}, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{gen = Gen}} -> own(Message, Name, Gen, World);
        #{} -> World
    end;
happens({up, Name, Other, Link}, #world{views = Views} = World) ->
    case Views of
        #{{Name, Other} := Link} -> step({nodeup, Other}, Name, World);
        #{} -> World
    end;
happens({connect, A, B}, World) -> connect(A, B, World);
happens({lost, Name, Other, Link}, #world{views = Views} = World) ->
    case Views of
        #{{Name, Other} := Link} -> disconnected(Name, Other, World);
        #{} -> World
    end;
happens({vm_ends, Name, Vm}, #world{vms = Vms} = World) ->
    case Vms of
        #{Name := Vm} -> vm_ends(Name, World);
        #{} -> World
    end.

%% What weir_members does with its timers.
own(check, Name, Gen, World) -> step(check, Name, later(?CHECK_MS, {own, Name, Gen, check}, World));
own(greet, Name, Gen, World) -> step(greet, Name, later(?GREET_MS, {own, Name, Gen, greet}, World));
own(renew, Name, _Gen, World) -> step({call, {start, (maps:get(Name, World#world.nodes))#node.run}, start}, Name, World);
own(Message, Name, _Gen, World) -> step(Message, Name, World).

%% ---- a step

step(Message, Name, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{gen = Gen, dies = Dies} = Node} when Gen =/= none ->
            {New, Effects} = weir_members_core:handle(Message, seen(Name, Node, World), Node#node.core),
            Handled = World#world{nodes = Nodes#{Name := Node#node{core = New, current = Message, dies = none}}},
            case Dies of
                none -> executed(Effects, Name, Gen, Handled);
                _ -> killed(Name, executed(lists:sublist(Effects, Dies), Name, Gen, Handled))
            end;
        #{} -> World
    end.

executed(Effects, Name, Gen, World) ->
    lists:foldl(fun(Effect, #world{nodes = Nodes} = W) ->
                        case Nodes of
                            #{Name := #node{gen = Gen}} -> execute(Effect, Name, W);
                            #{} -> W
                        end
                end, World, Effects).

%% Each node has monotonic clocks of its own. No two runs begin at the same time of the system's.
seen(Name, #node{run = Run}, #world{now = Now, offsets = Offsets} = World) ->
    #{now => Now + erlang:phash2(Name, 1000000), clock => 4096 * (1000000 + Now + maps:get(Name, Offsets, 0)) + Run rem 4096, node => Name,
      up => up(Name, World)}.

execute({put, Rows}, Name, World) -> lists:foldl(fun(Row, W) -> put_row(Row, Name, W) end, World, Rows);
execute({delete, Key}, Name, World) -> change(Name, fun(#node{rows = Rows} = Node) -> Node#node{rows = maps:remove(Key, Rows)} end, World);
execute({say, Kind, To, Told}, Name, World) -> say(Kind, To, Told, Name, World);
execute({welcome, To, Told}, Name, World) -> say(welcome, To, Told#{limiters => []}, Name, World);
execute({call, From, Call}, Name, World) -> step({call, From, Call}, Name, World);
execute({reply, {start, Run}, Reply}, Name, World) -> made(Run, Reply, Name, World);
execute({switch, Id, _Force, Then}, Name, World) ->
    Result = case next(Name, World) of Id -> ok; _ -> {error, <<"another">>} end,
    step({switched, Id, Result, Then}, Name, World);
execute({watch, Other}, Name, #world{count = Ref, nodes = Nodes} = World) ->
    #node{gen = Gen, watched = Watched} = maps:get(Name, Nodes),
    Watching = change(Name, fun(Node) -> Node#node{watched = Watched#{Other => Ref}} end, World#world{count = Ref + 1}),
    case lists:member(Other, up(Name, World)) of
        true -> send(Name, Gen, Other, {monitor, Ref}, Watching);
        false -> later(0, {message, Name, {ended, Ref}}, Watching)
    end;
execute({later, Ms, Message}, Name, #world{nodes = Nodes} = World) ->
    later(Ms, {own, Name, (maps:get(Name, Nodes))#node.gen, Message}, World);
execute(renew, Name, #world{nodes = Nodes} = World) ->
    #node{gen = Gen} = maps:get(Name, Nodes),
    later(0, {own, Name, Gen, renew}, World);
execute({registered, Other}, Name, World) -> change(Name, fun(#node{peers = Peers} = Node) -> Node#node{peers = Peers#{Other => true}} end, World);
execute({unregistered, Other}, Name, World) -> change(Name, fun(#node{peers = Peers} = Node) -> Node#node{peers = maps:remove(Other, Peers)} end, World);
execute({joined, Other}, Name, World) -> accepted(Other, Name, World);
execute(_Other, _Name, World) -> World.

%% A replica that starts, makes a new machine, or is told to look again, goes by the members that the table has.
made(Run, #{incarnation := Incarnation, joining := Joining}, Name, #world{now = Now, nodes = Nodes} = World) ->
    case maps:get(Name, Nodes) of
        #node{run = Run, asked = Since, rows = Rows, machine = Machine, joins = Joins} = Node ->
            Peers = maps:from_list([{Other, true} || Other <- registered(Rows)]),
            broken([{answered, Name, Now - Since} || Since =/= none, Now - Since > 2 * ?START_MS] ++ [{joins, Name} || Machine =:= none, Joins =/= Joining],
                   World#world{nodes = Nodes#{Name := Node#node{machine = Incarnation, asked = none, peers = Peers}}});
        #node{} -> World
    end.

%% One in twenty finds the other's buffer full, and is said again.
say(Kind, To, Told, Name, #world{nodes = Nodes, random = Random, said = Said, lies = Lies} = World) ->
    #node{gen = Gen, run = Run} = maps:get(Name, Nodes),
    Members = maps:get(members, Told) ++ [{Ghost, 0} || #{Name := Ghost} <- [Lies]],
    Message = {told, Kind, 1, Told#{members => Members, run => Run, token => <<0:64>>}, none},
    case rand:uniform_s(20, Random) of
        {1, Next} -> later(?AGAIN_MS, {own, Name, Gen, {hello, To}}, World#world{random = Next});
        {_, Next} -> send(Name, Gen, To, {step, Message}, World#world{random = Next, said = Said + 1})
    end.

%% ---- laws of each row

put_row({{left, Node}, Incarnation, At}, Name, World) -> put_row({{left, Node}, {Incarnation, At}}, Name, World);
put_row({Key, Value}, Name, #world{nodes = Nodes} = World) ->
    #node{rows = Rows} = Node = maps:get(Name, Nodes),
    Judged = broken([{Law, Name, Key, Value} || Law <- judge(Key, Value, Node)], World),
    change(Name, fun(_) -> silent(Key, Value, Node#node{rows = Rows#{Key => Value}}) end, Judged).

judge({member, Other}, #{incarnation := Run, standing := Standing, id := Id} = Member, #node{rows = Rows, current = Current} = Node) ->
    Before = maps:get({member, Other}, Rows, #{incarnation => 0, standing => none}),
    {Left, _} = maps:get({left, Other}, Rows, {0, 0}),
    Itself = case Current of {told, Kind, _, #{node := Other}, _} -> Kind =:= hello orelse Kind =:= welcome; _ -> switched(Other, Current) end,
    [run || Run < max(Left, map_get(incarnation, Before)), Standing =:= met]
        ++ [left || is_map_key({left, Other}, Rows), not Itself]
        ++ [named || Standing =:= confirmed, map_get(standing, Before) =/= confirmed, not named(Other, Node)]
        ++ [number || weir_roster_core:is_registered(Member), {{member, Third}, #{id := Its} = Known} <- maps:to_list(Rows), Its =:= Id, Third =/= Other,
                      weir_roster_core:is_registered(Known)];
judge(incarnation, Run, #node{rows = Rows, yours = Yours}) -> [run || Run =< max(Yours, maps:get(incarnation, Rows, 0))];
judge(_, _, _) -> [].

switched(Other, {switched, _, _, {follow, _, Other, _, _}}) -> true;
switched(_, _) -> false.

named(Other, #node{rows = Rows, named = Named}) ->
    Ready = [Node || {{member, Node}, #{away_since := none, incarnation := Run} = Member} <- maps:to_list(Rows), Run =/= 0,
                     weir_roster_core:is_registered(Member)],
    Naming = [Node || Node <- Ready, lists:member(Other, maps:get(Node, Named, []))],
    Ready =/= [] andalso 2 * length(Naming) >= length(Ready).

%% Of who is away, what it named counts no more.
silent({member, Other}, #{away_since := Since}, #node{named = Named} = Node) when Since =/= none -> Node#node{named = maps:remove(Other, Named)};
silent(_, _, Node) -> Node.

accepted(Other, Name, #world{nodes = Nodes} = World) ->
    #node{current = Current, named = Named, met = Met, joins = Joins, rows = #{phase := Phase}, yours = Before} = Node = maps:get(Name, Nodes),
    #{incarnation := Incarnation, members := Members, run := Run, yours := Yours} =
        case Current of {told, _, _, Told, _} -> Told; {switched, _, _, {follow, _, _, _, Told}} -> Told end,
    Names = [Third || {Third, AwayMs} <- Members, AwayMs < ?FORGET_MS],
    Twice = [{two_runs_of, Other, Incarnation, Name} || Incarnation =/= 0, maps:get({Other, Incarnation}, Met, Run) =/= Run],
    Accepted = Node#node{yours = max(Before, Yours), named = Named#{Other => Names}, met = Met#{{Other, Incarnation} => Run},
                         joins = Joins orelse (Phase =:= starting andalso Incarnation =/= 0)},
    broken(Twice, World#world{nodes = Nodes#{Name := Accepted}}).
