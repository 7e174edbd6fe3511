%% A cluster of weir_owner_core in simulated time: nodes that join, leave, stop, die, are paused and cut off, on a network that
%% delays, and drops what is under way on a link that breaks. What the shell does besides is done here by a model: a table of levels
%% a node, handovers as they are in weir_handover, callers.
%%
%% Tokens never come back. A level is the number of hits admitted, and stands in the place of the TAT; what is counted as admitted is
%% every decision, whether its caller hears of it or not.
%%
%% The laws:
%% - Joins, leaves, stops and starts, at any time and with messages under way: never above c.
%% - Nodes paused for however long, one at a time, with the others at rest: never above c.
%% - Deaths and joins, one at a time, with the others at rest: above c by no more than the dead one had admitted and its backup owner
%%   hadn't been told.
%% - Whatever happens: at most one bucket more for each death, pause or cut.
%% - When it is over, all nodes share the keys out alike and serve, and each question of each key is answered by its owner.
-module(weir_owner_laws).

-include_lib("proper/include/proper.hrl").

-export([prop_changes/0, prop_pauses/0, prop_deaths/0, prop_faults/0, run/2, holds/2]).

-define(C, 20).
-define(PATIENCE, 2000).
-define(TICK, 250).
-define(CALL, 5000).
-define(KEYS, {16#8c0ffee123456789, 16#0123456789abcdef, 16#fedcba9876543210}).
-define(NUMBER, 1).

%% `calm' is when the next fault of a law of one at a time may be; `lost' is what deaths may have cost.
%% `inbox' is what came while it was paused; `run' tells its lives apart; `last_pause' is from when until when it was paused last.
-record(node, {core, run, levels = #{}, paused = none, last_pause = {0, 0}, inbox = [], monitors = #{}, gives = #{}, leaves = false, left = false}).
-record(world, {now = 0, nodes = #{}, queue = gb_trees:empty(), count = 0, last = #{}, cut = #{}, delay, random, admitted = #{},
                answers = #{}, faults = 0, born = 0, law, calm = 0, lost = #{}}).

%% ---- properties

prop_changes() -> prop(changes, [wait, wait, ask, ask, ask, burst, join, leave, stop]).
prop_pauses() -> prop(pauses, [wait, ask, burst, pause]).
prop_deaths() -> prop(deaths, [wait, ask, ask, burst, kill, join]).
prop_faults() -> prop(faults, [wait, wait, ask, ask, burst, join, leave, stop, kill, pause, cut, heal]).

prop(Law, Kinds) ->
    ?FORALL({Setting, Commands}, {setting(), resize(40, list(command(Kinds)))},
            begin
                World = run(Setting#{law => Law}, Commands),
                ?WHENFAIL(io:format("~p admitted ~p, faults ~b~n", [Law, World#world.admitted, World#world.faults]), holds(Law, World))
            end).

setting() ->
    ?LET({Nodes, Delay, Seed}, {range(1, 4), oneof([0, 1, 20, 100]), range(1, 1000000)}, #{nodes => Nodes, delay => Delay, seed => Seed}).

command(Kinds) -> ?LET(Kind, oneof(Kinds), command_of(Kind)).

command_of(wait) -> {wait, oneof([1, 5, 30, 200, 700, 2500, 6000])};
command_of(ask) -> {ask, range(1, 8), range(1, 3), range(1, 3)};
command_of(burst) -> {burst, range(1, 8), range(1, 3)};
command_of(pause) -> {pause, range(1, 8), oneof([300, 900, 1100, 1900, 2100, 2600, 4000, 9000])};
command_of(cut) -> {cut, range(1, 8), range(1, 8)};
command_of(Kind) when Kind =:= leave; Kind =:= stop; Kind =:= kill -> {Kind, range(1, 8)};
command_of(Kind) -> Kind.

holds(Law, #world{admitted = Admitted, faults = Faults, lost = Lost} = World) ->
    Most = fun(Key) ->
                   case Law of
                       changes -> ?C;
                       pauses -> ?C;
                       deaths -> ?C + maps:get(Key, Lost, 0);
                       faults -> ?C * (1 + Faults)
                   end
           end,
    lists:all(fun({Key, N}) -> N =< Most(Key) end, maps:to_list(Admitted)) andalso settles(World).

%% All are there and at rest: each serves with all, and answers.
settles(World) ->
    Quiet = for(15000, heal(World)),
    Names = lists:sort([Name || {Name, #node{left = false}} <- maps:to_list(Quiet#world.nodes)]),
    Alike = [{serving, Names} || _ <- Names] =:=
        [{weir_owner_core:phase(Core), lists:sort(weir_owner_core:sharing(Core))}
         || {_, #node{core = Core, left = false}} <- maps:to_list(Quiet#world.nodes)],
    Before = maps:size(Quiet#world.answers),
    Asked = for(3000, lists:foldl(fun({Name, Key}, W) -> ask(Name, Key, 1, W) end, Quiet,
                                  [{Name, Key} || Name <- Names, Key <- tuple_to_list(?KEYS)])),
    Alike andalso maps:size(Asked#world.answers) - Before =:= length(Names) * tuple_size(?KEYS).

%% ---- a run

-spec run(map(), list()) -> #world{}.
run(#{nodes := Count, delay := Delay, seed := Seed, law := Law}, Commands) ->
    World = #world{delay = Delay, random = rand:seed_s(exsss, Seed), law = Law},
    Started = for(3000, lists:foldl(fun(_, W) -> born(W) end, World, lists:seq(1, Count))),
    lists:foldl(fun command/2, Started, Commands).

command({wait, Ms}, World) -> for(Ms, World);
command({ask, I, K, Hits}, World) -> with(I, fun(Name) -> ask(Name, element(K, ?KEYS), Hits, World) end, World);
command({burst, I, K}, World) ->
    with(I, fun(Name) -> lists:foldl(fun(_, W) -> ask(Name, element(K, ?KEYS), 1, W) end, World, lists:seq(1, 15)) end, World);
command(Command, #world{law = deaths, calm = Calm, now = Now} = World) when Now < Calm, Command =:= join orelse element(1, Command) =:= kill ->
    World;
command(join, #world{nodes = Nodes, now = Now} = World) when map_size(Nodes) < 6 -> born(World#world{calm = Now + 4000});
command(join, World) -> World;
command({How, I}, World) when How =:= leave; How =:= stop ->
    %% (With the last one all is forgotten.)
    case staying(World) of
        [_, _ | _] = Names ->
            Name = lists:nth(1 + I rem length(Names), Names),
            told(Name, {leaves, {How, Name}}, changed(Name, fun(Node) -> Node#node{leaves = true} end, World));
        _ -> World
    end;
command({kill, I}, #world{now = Now} = World) ->
    with(I, fun(Name) -> gone(Name, fault(lost(Name, World#world{calm = Now + 4000}))) end, World);
command({pause, _, _}, #world{law = pauses, calm = Calm, now = Now} = World) when Now < Calm -> World;
command({pause, I, Ms}, #world{now = Now} = World) ->
    with(I, fun(Name) -> pause(Name, Ms, World#world{calm = Now + Ms + 4000}) end, World);
command({cut, I, J}, World) ->
    with(I, fun(A) -> with(J, fun(B) when A =:= B -> World; (B) -> cut(A, B, fault(World)) end, World) end, World);
command(heal, World) -> heal(World).

%% Those that may be given something.
staying(#world{nodes = Nodes}) ->
    lists:sort([Name || {Name, #node{leaves = false}} <- maps:to_list(Nodes)]).

%% What it admitted, and the next owner doesn't know of, because the message is under way.
lost(Name, #world{nodes = Nodes, lost = Lost, queue = Queue} = World) ->
    Saying = [Key || {arrives, From, _, _, {member, _, {told, Levels}}} <- gb_trees:values(Queue), From =:= Name,
                     <<_:32/little, Key:64/little, _:64/little>> <= Levels],
    #{Name := #node{levels = Levels}} = Nodes,
    Rest = lists:sort([{weir_members:node_id(Other), Node#node.levels} || {Other, Node} <- maps:to_list(Nodes), Other =/= Name]),
    World#world{lost = maps:fold(fun(Key, Level, L) ->
                                         Next = case Rest of
                                                    [] -> 0;
                                                    _ ->
                                                        {Place, _} = weir_nif:owner_rank(Key, list_to_tuple([Id || {Id, _} <- Rest])),
                                                        maps:get(Key, element(2, lists:nth(Place, Rest)), 0)
                                                end,
                                         L#{Key => maps:get(Key, L, 0) + max(0, Level - Next)}
                                 end, Lost, case Rest of [] -> Levels; _ -> maps:with(Saying, Levels) end)}.

fault(#world{faults = Faults} = World) -> World#world{faults = Faults + 1}.

with(I, Do, #world{nodes = Nodes} = World) ->
    case lists:sort([Name || {Name, #node{left = false}} <- maps:to_list(Nodes)]) of
        [] -> World;
        Names -> Do(lists:nth(1 + I rem length(Names), Names))
    end.

born(#world{born = Born, nodes = Nodes, now = Now} = World) ->
    Name = list_to_atom("node" ++ integer_to_list(Born + 1) ++ "@owner_laws"),
    Core = weir_owner_core:new(#{node => Name, now => Now, peer_timeout => ?PATIENCE}),
    Node = #node{core = Core, run = Born + 1},
    New = World#world{born = Born + 1, nodes = Nodes#{Name => Node}},
    tick(Name, step({look, connected(Name, New)}, Name, New)).

tick(Name, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{run = Run}} -> later(?TICK, {message, Name, Run, tick}, World);
        #{} -> World
    end.

ask(Name, Key, Hits, #world{now = Now, count = Count} = World) ->
    told(Name, {asks, {Count + 1, {1, ?NUMBER, Key, Hits, Now + 2500}}}, World#world{count = Count + 1}).

%% It is in its mailbox, now.
told(Name, Message, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{run = Run}} -> happens({message, Name, Run, Message}, World);
        #{} -> World
    end.

gone(Name, #world{nodes = Nodes} = World) ->
    Left = World#world{nodes = maps:remove(Name, Nodes)},
    lists:foldl(fun(Other, W) -> down(Other, Name, W) end, Left, maps:keys(Left#world.nodes)).

%% Messages under way between the two are lost with the connection.
cut(A, B, #world{cut = Cut} = World) ->
    Broken = World#world{cut = Cut#{{A, B} => true, {B, A} => true}, queue = dropped(A, B, World#world.queue)},
    down(B, A, down(A, B, Broken)).

dropped(A, B, Queue) ->
    gb_trees:from_orddict([{At, Event} || {At, Event} <- gb_trees:to_list(Queue), not between(A, B, Event)]).

between(A, B, {arrives, From, To, _, _}) -> {From, To} =:= {A, B} orelse {From, To} =:= {B, A};
between(_, _, _) -> false.

heal(World) -> World#world{cut = #{}}.

down(Name, Other, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{monitors = Monitors} = Node} ->
            Lost = lists:foldl(fun(Give, W) -> give_failed(Name, Give, Other, W) end, World, maps:keys(Node#node.gives)),
            case Monitors of
                #{Other := true} -> told(Name, {down, Other}, Lost);
                #{} -> Lost
            end;
        #{} -> World
    end.

pause(Name, Ms, #world{nodes = Nodes, now = Now} = World) ->
    case Nodes of
        #{Name := #node{paused = none} = Node} ->
            later(Ms, {resume, Name, Node#node.run}, fault(World#world{nodes = Nodes#{Name := Node#node{paused = Now}}}));
        #{} -> World
    end.

%% ---- time

for(Ms, #world{now = Now} = World) -> until(Now + Ms, World).

until(End, #world{queue = Queue} = World) ->
    case gb_trees:is_empty(Queue) of
        true -> World#world{now = End};
        false ->
            {{At, _}, Event, Rest} = gb_trees:take_smallest(Queue),
            case At > End of
                true -> World#world{now = End};
                false -> until(End, happens(Event, World#world{now = At, queue = Rest}))
            end
    end.

later(Ms, Event, #world{now = Now} = World) -> at(Now + Ms, Event, World).

at(Time, Event, #world{queue = Queue, count = Count} = World) ->
    World#world{queue = gb_trees:insert({Time, Count}, Event, Queue), count = Count + 1}.

happens({arrives, From, To, Run, Message}, World) ->
    case reachable(From, To, World) of
        true -> happens({message, To, Run, Message}, World);
        false -> World
    end;
happens({message, Name, Run, Message}, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{run = Run, paused = none}} -> takes(Message, Name, World);
        #{Name := #node{run = Run, inbox = Inbox} = Node} ->
            World#world{nodes = Nodes#{Name := Node#node{inbox = Inbox ++ [Message]}}};
        #{} -> World
    end;
happens({resume, Name, Run}, #world{nodes = Nodes, now = Now} = World) ->
    case Nodes of
        #{Name := #node{run = Run, inbox = Inbox, paused = Since} = Node} ->
            Awake = World#world{nodes = Nodes#{Name := Node#node{paused = none, last_pause = {Since, Now}, inbox = []}}},
            lists:foldl(fun(Message, W) -> happens({message, Name, Run, Message}, W) end, Awake, Inbox);
        #{} -> World
    end.

%% ---- the network

connected(Name, #world{nodes = Nodes} = World) ->
    case Nodes of
        #{Name := #node{left = true}} -> [];
        #{} -> [Other || {Other, #node{left = false}} <- maps:to_list(Nodes), Other =/= Name, reachable(Name, Other, World)]
    end.

reachable(A, B, #world{cut = Cut, nodes = Nodes}) ->
    is_map_key(A, Nodes) andalso is_map_key(B, Nodes) andalso not is_map_key({A, B}, Cut).

%% In order on each link; a message to oneself arrives at once. True if it was sent.
send(From, To, Message, #world{nodes = Nodes, last = Last, now = Now, delay = Most, random = Random} = World) ->
    case reachable(From, To, World) of
        false ->
            {false, World};
        true ->
            {Delay, Next} = rand:uniform_s(Most + 1, Random),
            Time = max(Now + Delay - 1, maps:get({From, To}, Last, 0)),
            #node{run = Run} = maps:get(To, Nodes),
            {true, at(Time, {arrives, From, To, Run, Message}, World#world{random = Next, last = Last#{{From, To} => Time}})}
    end.

%% ---- a node: what weir_owner does

takes(tick, Name, World) ->
    Looked = looked(Name, World),
    tick(Name, step({tick, seen(Name, Looked)}, Name, Looked));
takes({asks, Asked}, Name, World) ->
    step({decide, [Asked], 0}, Name, looked(Name, World));
takes({member, From, _} = Message, Name, World) ->
    case lists:member(From, connected(Name, World)) of
        true -> step(Message, Name, looked(Name, World));
        false -> World
    end;
takes({call, {_, From, _} = Who, Node, What}, Name, World) ->
    case lists:member(From, connected(Name, World)) of
        true -> step({call, Who, Node, What}, Name, World);
        false -> replied(Who, not_a_member, Name, World)
    end;
takes({leaves, Who}, Name, World) -> step({leave, Who, connected(Name, World)}, Name, World);
takes({next, Give, To, Reply}, Name, World) -> give_next(Name, Give, To, Reply, World);
takes({scan, Give}, Name, World) -> give_scanned(Name, Give, World);
takes(Message, Name, World) -> step(Message, Name, World).

looked(Name, #world{nodes = Nodes, now = Now} = World) ->
    #node{core = Core} = maps:get(Name, Nodes),
    case weir_owner_core:held_up(Now, Core) of
        true -> step({look, connected(Name, World)}, Name, World);
        false -> World
    end.

%% Frames come twice a second from who isn't paused. Right after a pause of one's own nobody was heard since it began.
seen(Name, #world{nodes = Nodes, now = Now} = World) ->
    Connected = connected(Name, World),
    #node{left = Left, last_pause = {Paused, Resumed}} = maps:get(Name, Nodes),
    Unheard = [Other || Other <- Connected,
                        case maps:get(Other, Nodes) of
                            #node{paused = Since} when is_integer(Since) -> Now - Since > ?PATIENCE;
                            #node{} -> Now - Resumed < 100 andalso Now - Paused > ?PATIENCE
                        end],
    #{node => Name, connected => Connected, unheard => Unheard, left => case Left of true -> bye; false -> no end}.

step(Message, Name, #world{nodes = Nodes, now = At} = World) ->
    case Nodes of
        #{Name := #node{core = Core} = Node} ->
            {New, Effects} = weir_owner_core:handle(Message, At, Core),
            lists:foldl(fun(Effect, #world{nodes = Now} = W) when is_map_key(Name, Now) -> execute(Effect, Name, W);
                           (_, W) -> W
                        end, World#world{nodes = Nodes#{Name := Node#node{core = New}}}, Effects);
        #{} -> World
    end.

execute(look, Name, World) -> step({look, connected(Name, World)}, Name, World);
execute({say, To, What}, Name, World) -> element(2, send(Name, To, {member, Name, What}, World));
execute({reply, From, Reply}, Name, World) -> replied(From, Reply, Name, World);
execute({answer, _Asked, here}, _Name, World) -> World;
execute({answer, {Alias, _}, Outcome}, _Name, #world{answers = Answers} = World) -> World#world{answers = Answers#{Alias => Outcome}};
execute({ask, To, Batch, Items}, Name, World) ->
    {Sent, Said} = send(Name, To, {member, Name, {asks, Batch, Items}}, World),
    step({sent, Batch, case Sent of true -> {0, 1}; false -> failed end}, Name, Said);
execute({decide, Whose, Items, Ids, Place}, Name, World) ->
    {Outcomes, Told, Decided} = lists:foldl(fun(Item, {Os, Ts, W}) ->
                                                    {O, T, W1} = decide(Item, Ids, Place, Name, W),
                                                    {Os ++ [O], Ts ++ T, W1}
                                            end, {[], [], World}, Items),
    step({decided, Whose, Outcomes, Told}, Name, Decided);
execute({raise, Levels}, Name, World) -> raise(Name, [{Key, Level} || <<_:32/little, Key:64/little, Level:64/little>> <= Levels], World);
execute({again, Asked}, Name, World) -> step({decide, Asked, 0}, Name, looked(Name, World));
execute({again_in, Ms}, Name, #world{nodes = Nodes} = World) ->
    #node{run = Run} = maps:get(Name, Nodes),
    later(Ms, {message, Name, Run, again}, World);
execute({monitor, Other}, Name, World) ->
    Watched = changed(Name, fun(#node{monitors = M} = Node) -> Node#node{monitors = M#{Other => true}} end, World),
    case reachable(Name, Other, World) of
        true -> Watched;
        false -> later(0, {message, Name, (maps:get(Name, World#world.nodes))#node.run, {down, Other}}, Watched)
    end;
execute({demonitor, Other}, Name, World) ->
    changed(Name, fun(#node{monitors = M} = Node) -> Node#node{monitors = maps:remove(Other, M)} end, World);
execute({give, What, To, Ids, Names, Scans, Last}, Name, #world{count = Count} = World) ->
    Begun = changed(Name, fun(#node{gives = G} = Node) -> Node#node{gives = G#{Count => {What, To, {Ids, Names, Scans}, Last, #{}}}} end,
                    World#world{count = Count + 1}),
    later(1, {message, Name, (maps:get(Name, World#world.nodes))#node.run, {scan, Count}}, Begun);
execute({stop_giving, What}, Name, World) ->
    changed(Name, fun(#node{gives = G} = Node) -> Node#node{gives = maps:filter(fun(_, Give) -> element(1, Give) =/= What end, G)} end, World);
execute(_Other, _Name, World) ->
    World.

changed(Name, Change, #world{nodes = Nodes} = World) ->
    World#world{nodes = Nodes#{Name := Change(maps:get(Name, Nodes))}}.

decide({_, Key, Hits}, Ids, Place, Name, #world{nodes = Nodes, admitted = Admitted} = World) ->
    {First, Second} = weir_nif:owner_rank(Key, Ids),
    Level = maps:get(Key, (maps:get(Name, Nodes))#node.levels, 0),
    case {First =:= Place, Level + Hits =< ?C} of
        {false, _} -> {First, [], World};
        {true, false} -> {{false, ?C, max(0, ?C - Level), 1000, 1000, Level, limited}, [], World};
        {true, true} ->
            After = Level + Hits,
            %% (Who has left decides alone.)
            Counted = case maps:get(Name, Nodes) of
                          #node{left = true} -> World;
                          #node{} -> World#world{admitted = maps:update_with(Key, fun(N) -> N + Hits end, Hits, Admitted)}
                      end,
            {{true, ?C, ?C - After, 1000, 0, After, ok},
             [{Second, <<?NUMBER:32/little, Key:64/little, After:64/little>>} || Second > 0],
             raise(Name, [{Key, After}], Counted)}
    end.

raise(Name, Levels, World) ->
    changed(Name, fun(#node{levels = Before} = Node) ->
                          Node#node{levels = lists:foldl(fun({Key, Level}, L) -> L#{Key => max(Level, maps:get(Key, L, 0))} end, Before, Levels)}
                  end, World).

%% ---- handovers, as weir_handover and owner_levels of the NIF do them

%% (The process looks at the table a moment after it was started.)
give_scanned(Name, Give, #world{nodes = Nodes} = World) ->
    case maps:get(Name, Nodes, gone) of
        #node{gives = #{Give := {What, To, {Ids, Names, Scans}, Last, _}} = Gives, levels = Levels} ->
            Self = weir_members:node_id(Name),
            Told = [{element(Place, Names), Level} || {Key, _} = Level <- maps:to_list(Levels), {How, Changed} <- Scans, Place <- to_tell(How, Key, Ids, Self, Changed)],
            Calls = maps:from_list([{N, [{levels, << <<?NUMBER:32/little, Key:64/little, Level:64/little>> || {M, {Key, Level}} <- Told, M =:= N >>}]
                                     ++ [Last || Last =/= none]} || N <- To]),
            Scanned = changed(Name, fun(Node) -> Node#node{gives = Gives#{Give := {What, To, none, Last, Calls}}} end, World),
            lists:foldl(fun(N, W) -> give_next(Name, Give, N, ok, W) end, Scanned, To);
        _ -> World
    end.

to_tell(joined, Key, Ids, _Self, Changed) ->
    {First, Second} = weir_nif:owner_rank(Key, Ids),
    [Place || Place <- [First, Second], Place > 0, element(Place, Ids) =:= Changed];
to_tell(left, Key, Ids, Self, Changed) ->
    {First, Second} = weir_nif:owner_rank(Key, Ids),
    Held = First > 0 andalso (Second =:= 0 orelse heavier(Changed, element(Second, Ids), Key)),
    Own = Held andalso Self =:= Changed andalso heavier(Changed, element(First, Ids), Key),
    [First || Own] ++ [Second || Held, Second > 0, Own orelse element(First, Ids) =:= Self].

heavier(A, B, Key) -> A =/= B andalso element(1, weir_nif:owner_rank(Key, {A, B})) =:= 1.

give_next(Name, Give, To, Reply, #world{nodes = Nodes} = World) ->
    case maps:get(Name, Nodes, gone) of
        #node{gives = #{Give := {What, All, Of, Last, Calls}} = Gives} when is_map_key(To, Calls) ->
            case {Reply, maps:get(To, Calls)} of
                {ok, [Call | Rest]} ->
                    Calling = changed(Name, fun(Node) -> Node#node{gives = Gives#{Give := {What, All, Of, Last, Calls#{To := Rest}}}} end, World),
                    case send(Name, To, {call, {Give, Name, To}, Name, Call}, Calling) of
                        {true, Sent} -> Sent;
                        {false, Failed} -> give_ended(Name, Give, To, failed, Failed)
                    end;
                {ok, []} -> give_ended(Name, Give, To, normal, World);
                _ -> give_ended(Name, Give, To, failed, World)
            end;
        _ -> World
    end.

give_failed(Name, Give, To, World) -> give_ended(Name, Give, To, failed, World).

give_ended(Name, Give, To, Result, #world{nodes = Nodes} = World) ->
    case maps:get(Name, Nodes, gone) of
        #node{run = Run, gives = #{Give := {What, All, Of, Last, Calls}} = Gives} when is_map_key(To, Calls) ->
            Left = maps:remove(To, Calls),
            Of1 = case Result of normal -> Of; failed -> failed end,
            case map_size(Left) of
                0 ->
                    Reason = case Of1 of failed -> {shutdown, not_told}; _ -> normal end,
                    Ended = changed(Name, fun(Node) -> Node#node{gives = maps:remove(Give, Gives)} end, World),
                    happens({message, Name, Run, {gave, What, Reason}}, Ended);
                _ ->
                    changed(Name, fun(Node) -> Node#node{gives = Gives#{Give := {What, All, Of1, Last, Left}}} end, World)
            end;
        _ -> World
    end.

%% To a handover of another node, or to who asked this one to leave.
replied({leave, Name}, ok, Name, World) ->
    changed(Name, fun(Node) -> Node#node{left = true} end, World);
replied({stop, Name}, ok, Name, World) ->
    gone(Name, World);
replied({Give, From, To}, Reply, Name, World) ->
    element(2, send(Name, From, {next, Give, To, Reply}, World)).
