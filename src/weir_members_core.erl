%% @private
%% @doc Who is a member: the rules of weir_members, without a clock, a table or a message. Pure.
%%
%% {@link handle/3} takes a message and what is seen at that moment (the time, this node's name, the nodes that it is connected to),
%% and says what is to be done, in order. Each effect is carried out before the next one, and before the next message:
%%
%% - `put' and `delete' change rows of the table. Others read them, and {@link new/2} makes the state of them when the process starts
%%   again. They come before any effect that makes somebody look.
%% - `call' is a call that waited for the end of the start. It is handled at once, as if it came now.
%% - `switch' has an answer, {switched, Id, Result, Then}, which is handled at once.
%%
%% As these two change what the others would have been asked for, they are the last effects of a message.
%%
%% <em>The start.</em> Each node that is connected is greeted and `awaited', until it answers, its end is seen, or ?START_MS have
%% passed. Then this run gets its incarnation, later than all that anybody has told of, and all are greeted once more. When they
%% have answered, or ?START_MS have passed again, this node is introduced: calls are answered from then on.
%%
%% What is asked of others is here. weir_hello judges what a node says of itself; weir_standing says who counts then, after weir_hearsay
%% for what members say of others; weir_roster_core keeps it.
-module(weir_members_core).

-export([new/2, handle/3, reads_next/2, shown/1]).

-export_type([state/0, message/0, effect/0, seen/0, then/0, ms/0]).

-type ms() :: weir_roster_core:ms().
-type seen() :: weir_standing:seen().
-type call() :: start | take_limiters | {leave, bye | {stop, pos_integer()}} | {forget, node()} | {rotation, 1, ready | switch, weir_secret:id()}
              | {rotation, 1, ready | switch, weir_secret:id(), force}.
%% `Next' of a hello is the id of the next secret, if it was asked for ({@link reads_next/2}).
-type message() :: start | {told, Kind :: term(), Envelope :: term(), Told :: map(), Next :: none | weir_secret:id()}
                 | {call, gen_server:from(), call() | term()} | {nodeup, node()} | {down, node()} | started | introduced
                 | {hello, node()} | greet | check
                 | {switched, weir_secret:id(), ok | {error, binary()}, then()}.
%% What follows a switch to the next secret.
-type then() :: {reply, gen_server:from()} | {follow, hello | welcome, node(), weir_hello:terms(), Told :: map()}.
%% `say' with the token for that node; `welcome' with all limiters, too. `ready' and `switch' ask weir_secret. `joined' is for
%% weir_registry; `registered', `unregistered', `renew' and `push' for weir_replica.
-type effect() :: {put, [tuple()]} | {delete, term()}
                | {say, hello | welcome | bye | stop, node(), map()} | {welcome, node(), map()}
                | {reply, gen_server:from(), term()} | {call, gen_server:from(), term()}
                | {ready, gen_server:from(), weir_secret:id(), Force :: boolean()} | {switch, weir_secret:id(), Force :: boolean(), then()}
                | {registered, node()} | {unregistered, node()} | renew | push | {drain, pos_integer()}
                | {joined, node()} | {forget_traffic, node()} | {watch, node()} | {later, pos_integer(), started | introduced}
                | {log, notice | error, map()}.

%% How long a start waits for the answers of nodes that run weir, as far as one can see.
-define(START_MS, 1000).
-define(DRAIN_MS, 3000).
-define(MAX_MEMBERS, 4096).
-define(MAX_TOLD_LEFT, 1024).
-define(MAX_INCARNATION, (1 bsl 62)).
-define(SPREAD, (1 bsl 16)).

%% `awaited' are the nodes whose answer the start waits for, `asked' who waits for its end, and `due' those for whom it has come.
%% `highest' is the latest run that others knew of, `limiters' what they told of these. `watched' are nodes whose end will be seen,
%% `greeted' those that it was the turn of, connected and silent. Effects are gathered in the roster.
-record(state, {phase :: starting | ready | left, node :: node(), secret :: weir_secret:id(), before :: none | weir_secret:id(),
                incarnation :: non_neg_integer(), joining :: boolean(), farewell :: bye | stop, forget_after :: pos_integer(),
                roster :: weir_roster_core:roster(), awaited = #{} :: #{node() => true}, asked = [] :: [{gen_server:from(), term()}],
                due = [] :: [{gen_server:from(), term()}], highest = 0 :: non_neg_integer(), limiters = [] :: [term()],
                watched = #{} :: #{node() => true}, greeted = {none, none} :: {node() | none, node() | none}, seen :: seen() | none}).
-opaque state() :: #state{}.

%% @doc From the rows of the table; a first process finds {secret, Id} and {node, Node} there. `start' is to be handled next.
-spec new([tuple()], #{forget_after := pos_integer()}) -> state().
new(Rows, #{forget_after := Ms}) ->
    Own = fun(Key, Default) -> case lists:keyfind(Key, 1, Rows) of {_, Value} -> Value; false -> Default end end,
    #state{phase = Own(phase, starting), node = Own(node, nonode@nohost), secret = Own(secret, <<0:64>>), before = Own(before, none),
           incarnation = Own(incarnation, 0), joining = Own(joining, false), farewell = Own(farewell, bye),
           forget_after = Ms, roster = weir_roster_core:restore(Rows), seen = none}.

-spec handle(message(), seen(), state()) -> {state(), [effect()]}.
handle(Message, Seen, State) ->
    #state{roster = Roster, due = Due} = New = on(Message, State#state{seen = Seen}),
    {Effects, Done} = weir_roster_core:effects(Roster),
    {New#state{roster = Done, due = []}, Effects ++ [{call, From, Call} || {From, Call} <- Due]}.

%% @doc Whether what the next secret is matters for a hello.
-spec reads_next(Told :: map(), state()) -> boolean().
reads_next(Told, #state{secret = Secret, before = Before}) ->
    case Told of
        #{secret := Theirs} -> Theirs =/= Secret andalso Theirs =/= Before;
        #{} -> false
    end.

%% @doc For logs: without what tells secrets apart.
-spec shown(state()) -> state().
shown(State) -> State#state{secret = <<0:64>>, before = none}.

%% ---- messages ----

on(start, #state{phase = starting} = State) ->
    Later = do({later, ?START_MS, started}, lists:foldl(fun watch/2, State, up(State))),
    started(say_hello(up(State), Later#state{awaited = maps:from_list([{Node, true} || Node <- up(State)])}));
on(start, State) ->
    %% (The process before may have ended when it had taken another run, and hadn't said so.)
    roster(fun weir_standing:missed/2, say_hello(up(State), do(renew, lists:foldl(fun watch/2, State, up(State)))));
on({call, From, Call}, #state{phase = Phase, awaited = Awaited, asked = Asked} = State) when Phase =:= starting; map_size(Awaited) > 0 ->
    State#state{asked = [{From, Call} | Asked]};
on({call, From, Call}, State) ->
    answer(Call, From, State);
on({told, Kind, Envelope, #{node := Node} = Told, Next}, #state{phase = Phase, seen = #{node := Self}} = State)
  when is_atom(Node), Node =/= Self, Phase =/= left ->
    told(Kind, Node, weir_hello:terms(Envelope, Told), Told, Next, State);
%% Who says hello to a node that has left hasn't heard so, or took it for the farewell of a run before.
on({told, hello, _, #{node := Node} = Told, _}, #state{phase = left, seen = #{node := Self}} = State) when is_atom(Node), Node =/= Self ->
    part([Node], overtakes(Told, State));
on({nodeup, Node}, State) -> say_hello([Node], watch(Node, named(State)));
on({down, Node}, State) -> down(Node, State);
on(started, #state{phase = starting} = State) -> started(State#state{awaited = #{}});
on(introduced, State) -> introduced(State#state{awaited = #{}});
on({hello, Node}, #state{phase = left} = State) -> part([Node], State);
on({hello, Node}, State) -> say_hello([Node], State);
on(greet, #state{roster = Roster, seen = Seen, greeted = {Connected, Silent}} = State) ->
    One = in_turn(weir_roster_core:connected(Roster), Connected),
    Other = in_turn(weir_standing:silent(Seen, Roster), Silent),
    say_hello([Node || Node <- [One, Other], Node =/= none], State#state{greeted = {One, Other}});
on(check, #state{forget_after = Most} = State) ->
    roster(fun(Seen, R) -> weir_standing:check(Most, Seen, weir_standing:missed(Seen, R)) end, named(State));
on({switched, Id, Result, Then}, State) -> switched(Id, Result, Then, State);
on(_, State) -> State.

answer(start, From, #state{incarnation = Incarnation, joining = Joining} = State) ->
    do({reply, From, #{incarnation => max(1, Incarnation), joining => Joining}}, State);
answer({leave, How}, From, State) ->
    do({reply, From, ok}, leave(How, State));
answer({forget, Node}, From, #state{roster = Roster} = State) ->
    case weir_roster_core:lookup(Node, Roster) of
        #{away_since := none} -> do({reply, From, {error, connected}}, State);
        #{incarnation := Incarnation} ->
            Gone = roster(fun(Seen, R) -> weir_standing:gone_for_good(Node, Incarnation, Seen, R) end, State),
            do({reply, From, ok}, say_hello(weir_roster_core:connected(Roster), Gone));
        none -> do({reply, From, {error, unknown}}, State)
    end;
answer(take_limiters, From, #state{limiters = Limiters} = State) ->
    do({reply, From, Limiters}, State#state{limiters = []});
answer({rotation, 1, What, Id}, From, State) -> rotated(What, Id, false, From, State);
answer({rotation, 1, What, Id, force}, From, State) -> rotated(What, Id, true, From, State);
answer(_, From, State) -> do({reply, From, unknown}, State).

%% The node after that one, or the first.
in_turn([], _Last) -> none;
in_turn(Nodes, Last) ->
    case [Node || Node <- Nodes, Node > Last, Last =/= none] of
        [] -> lists:min(Nodes);
        Rest -> lists:min(Rest)
    end.

%% ---- the start ----

%% Over when all answered who can.
started(#state{phase = starting, awaited = Awaited, highest = Highest, seen = #{clock := Clock}, roster = Roster} = State)
  when map_size(Awaited) =:= 0 ->
    Run = case Clock > Highest of true -> Clock; false -> later_than(Highest, State) end,
    Ready = do({put, [{incarnation, Run}, {joining, State#state.joining}, {phase, ready}]}, State#state{phase = ready, incarnation = Run}),
    Waits = Ready#state{awaited = maps:from_list([{Node, true} || Node <- weir_roster_core:connected(Roster)])},
    introduced(say_hello(up(State), roster(fun weir_standing:confirm/2, do({later, ?START_MS, introduced}, Waits))));
started(State) ->
    State.

%% All know this run that can: its first frames ask for a copy, and would be refused by those that haven't heard of it.
introduced(#state{phase = ready, awaited = Awaited, asked = Asked} = State) when map_size(Awaited) =:= 0 ->
    State#state{asked = [], due = lists:reverse(Asked)};
introduced(State) ->
    State.

%% A node may get its name after weir was started. To the others it is another then.
named(#state{phase = ready, node = Node, incarnation = Run, seen = #{node := Named}} = State) when Node =/= Named ->
    do(renew, do({put, [{node, Named}, {incarnation, Run + 1}]}, State#state{node = Named, incarnation = Run + 1}));
named(State) ->
    State.

awaited(Node, #state{phase = starting, awaited = Awaited} = State) -> started(State#state{awaited = maps:remove(Node, Awaited)});
awaited(Node, #state{awaited = Awaited} = State) -> introduced(State#state{awaited = maps:remove(Node, Awaited)}).

%% ---- hellos ----

say_hello(_Nodes, #state{phase = left} = State) -> State;
say_hello([], State) -> State;
say_hello(Nodes, State) ->
    Told = about_all(State),
    lists:foldl(fun(Node, S) -> say(hello, Node, Told, S) end, State, Nodes).

%% What all are told alike.
about_all(#state{incarnation = Incarnation, secret = Secret, before = Before, roster = Roster, seen = #{node := Node, now := Now}}) ->
    (weir_roster_core:told(Now, Roster))#{node => Node, id => weir_roster_core:id(Node), incarnation => Incarnation, secret => Secret, before => Before,
                                     versions => weir_hello:versions(), features => weir_hello:features()}.

say(Kind, Node, ToAll, State) -> do({say, Kind, Node, for(Node, ToAll, State)}, State).

for(Node, ToAll, #state{roster = Roster}) -> ToAll#{yours => weir_roster_core:incarnation(Node, Roster)}.

%% (A farewell needs no protocol in common.)
told(Kind, Node, _Terms, #{incarnation := Incarnation}, _Next, State)
  when Kind =:= bye orelse Kind =:= stop, is_integer(Incarnation), Incarnation < ?MAX_INCARNATION ->
    awaited(Node, roster(fun(Seen, R) -> weir_standing:farewell(Kind, Node, Incarnation, Seen, R) end, State));
told(Kind, Node, {refused, Reason}, _Told, _Next, State) ->
    awaited(Node, refused(Kind, Node, Reason, State));
told(Kind, Node, {ok, Terms}, Told, Next, State) when Kind =:= hello; Kind =:= welcome ->
    case weir_hello:judge(Told, known(Node, Next, State)) of
        ok -> answered(Node, Told, accept(Kind, Node, Terms, Told, State));
        %% Of a run before that was overtaken; or of this one, which doesn't know that others know of a later one.
        stale -> say_hello([Node || Kind =:= hello], State);
        behind -> awaited(Node, behind(Kind, Node, Told, State));
        %% It has been decided on; to wait for the last rotation's end would keep this node out.
        next -> switch(map_get(secret, Told), true, {follow, Kind, Node, Terms, Told}, State);
        {refused, Reason} -> awaited(Node, refused(Kind, Node, Reason, State))
    end;
told(_Kind, _Node, _Terms, _Told, _Next, State) ->
    State.

%% (What it says may be of the time before it knew this run.)
answered(_Node, #{yours := Yours}, #state{phase = ready, incarnation = Own} = State) when Yours < Own -> State;
answered(Node, _Told, State) -> awaited(Node, State).

known(Node, Next, #state{secret = Secret, before = Before, phase = Phase, roster = Roster, seen = Seen}) ->
    Id = weir_roster_core:id(Node),
    #{secret => Secret, before => Before, next => fun() -> Next end, id => Id, same => weir_standing:same(Node, Id, Seen, Roster),
      incarnation => weir_roster_core:incarnation(Node, Roster), alone => Phase =:= ready andalso weir_roster_core:registered(Roster) =:= []}.

%% It may be that the other still counts this node, by what an earlier process of it had said. It is answered, so that it refuses, too.
refused(Kind, Node, Reason, State) ->
    Refused = roster(fun(Seen, R) -> weir_standing:refused(Node, Reason, Seen, R) end, State),
    case Kind of
        hello -> say(welcome, Node, about_all(Refused), Refused);
        _ -> Refused
    end.

accept(Kind, Node, Terms, #{incarnation := Incarnation, yours := Yours, left := Left} = Told, State0) ->
    State1 = roster(fun(_, R) -> weir_standing:joined(Node, Incarnation, Terms, weir_roster_core:pardon(Node, R)) end, watch(Node, State0)),
    State2 = roster(fun(#{now := Now} = Seen, R) ->
                            Without = lists:foldl(fun(Gone, Rest) -> weir_standing:has_gone(bye, Gone, Seen, Rest) end, R,
                                                  lists:sublist(Left, ?MAX_TOLD_LEFT)),
                            lists:foldl(fun(Gone, Rest) -> weir_standing:has_gone(stop, Gone, Seen, Rest) end,
                                        weir_roster_core:forget_left({before, Now}, Without), stopped(Told))
                    end, State1),
    greeted(Kind, Node, Told, joins(Incarnation, highest(Yours, heard_of(Node, Told, State2)))).

%% One that is starting says nothing by what it doesn't know yet.
heard_of(Member, #{incarnation := Incarnation, members := Named}, #state{forget_after = Most} = State) ->
    Said = roster(fun(Seen, R) -> weir_standing:heard_of(Member, Named, Most, Seen, R) end, State),
    case Said of
        #state{phase = ready} when Incarnation =/= 0 -> roster(fun weir_standing:confirm/2, Said);
        _ -> Said
    end.

stopped(#{stopped := Stopped}) when length(Stopped) =< ?MAX_MEMBERS -> Stopped;
stopped(#{}) -> [].

%% Who runs already, when this node starts, has what is to be copied. Of nodes that start together the first one to be ready has
%% nobody to copy from, also if its machine is made a moment later.
joins(Incarnation, #state{phase = starting, joining = Joining} = State) -> State#state{joining = Joining orelse Incarnation =/= 0};
joins(_Incarnation, State) -> State.

%% Who starts is told all limiters with the answer, so that it comes up with those of the others and not those of its own
%% configuration.
greeted(hello, Node, #{incarnation := 0}, #state{phase = ready} = State) ->
    do({welcome, Node, for(Node, about_all(State), State)}, State);
greeted(hello, Node, _Told, State) ->
    say(welcome, Node, about_all(State), State);
greeted(welcome, _Node, #{limiters := Limiters}, #state{phase = starting, limiters = Before} = State) when length(Limiters) >= 0 ->
    State#state{limiters = Limiters ++ Before};
greeted(_Kind, _Node, _Told, State) ->
    State.

%% Somebody knows a later run of this node: the clock was set back. This one is made later still.
highest(Yours, #state{phase = starting, highest = Highest} = State) ->
    State#state{highest = max(Highest, Yours)};
highest(Yours, #state{incarnation = Own} = State) when Yours > Own ->
    say_hello(up(State), do(renew, takes(later_than(Yours, State), State)));
highest(_Yours, State) ->
    State.

takes(Run, State) -> do({put, [{incarnation, Run}]}, State#state{incarnation = Run}).

%% A run between that one and this may have heard the same from a node that this one hasn't met, so the next number may be taken.
%% What the clock says tells the two apart.
later_than(Run, #state{seen = #{clock := Clock}}) -> Run + 1 + (Clock band (?SPREAD - 1)).

%% ---- rotation of the secret ----

rotated(ready, Id, _Force, From, #state{secret = Id} = State) -> do({reply, From, ok}, State);
rotated(ready, Id, Force, From, State) -> do({ready, From, Id, Force}, State);
rotated(switch, Id, Force, From, State) -> switch(Id, Force, {reply, From}, State);
rotated(_, _Id, _Force, From, State) -> do({reply, From, unknown}, State).

%% Said again when all have switched, it greets those that didn't follow.
switch(Id, _Force, Then, #state{secret = Id} = State) -> then(Then, ok, say_hello(up(State), State));
switch(Id, Force, Then, State) -> do({switch, Id, Force, Then}, State).

%% Under another hash, keys of `scope => exact' have other owners: these are to know all that there is.
switched(Id, ok, Then, #state{secret = Own} = State) ->
    Switched = do({put, [{secret, Id}, {before, Own}]}, State#state{secret = Id, before = Own}),
    then(Then, ok, say_hello(up(State), do({log, notice, #{what => secret_rotated}}, do(push, Switched))));
switched(_Id, {error, _} = Error, Then, State) ->
    then(Then, Error, State).

then({reply, From}, Result, State) -> do({reply, From, Result}, State);
then({follow, Kind, Node, Terms, Told}, ok, State) -> awaited(Node, accept(Kind, Node, Terms, Told, State));
then({follow, Kind, Node, _, _}, {error, Message}, State) -> awaited(Node, refused(Kind, Node, {rotation, Message}, State)).

%% The other hasn't, and will when it hears this: it stays a member if it was one. If it knows a later run of this node, it takes this
%% hello for an old one; so that comes first.
behind(Kind, Node, #{yours := Yours} = Told, State) ->
    greeted(Kind, Node, Told, highest(Yours, roster(fun(_, R) -> weir_roster_core:refuse(Node, behind, R) end, State))).

%% ---- the end ----

%% What the others don't know of this node's births is sent, then they are told.
leave(_How, #state{phase = left} = State) ->
    State;
leave(How, #state{roster = Roster} = State) ->
    {Farewell, DrainMs} = case How of bye -> {bye, ?DRAIN_MS}; {stop, Ms} -> {stop, Ms} end,
    Parted = part(weir_roster_core:connected(Roster), do({drain, DrainMs}, State#state{farewell = Farewell})),
    Left = do({put, [{farewell, Farewell}, {phase, left}]}, Parted#state{phase = left}),
    roster(fun(_, R) -> lists:foldl(fun(#{node := Node}, Rest) -> weir_standing:remove(Node, Rest) end, R, weir_roster_core:members(R)) end, Left).

overtakes(#{yours := Yours}, #state{incarnation = Own} = State) when is_integer(Yours), Yours > Own, Yours < ?MAX_INCARNATION ->
    takes(later_than(Yours, State), State);
overtakes(_Told, State) ->
    State.

part(Nodes, #state{farewell = Farewell} = State) ->
    Told = about_all(State),
    lists:foldl(fun(Node, S) -> say(Farewell, Node, Told, S) end, State, Nodes).

%% ---- connections ----

%% The end of the other's process of this name tells when weir stops there, too.
watch(Node, #state{watched = Watched} = State) ->
    case not is_map_key(Node, Watched) andalso lists:member(Node, up(State)) of
        true -> do({watch, Node}, State#state{watched = Watched#{Node => true}});
        false -> State
    end.

%% The process that follows it there says hello, and that may have come before this message, as signals of two processes have no
%% order. So this node says hello as well: if somebody is there, it answers, and is watched again.
down(Node, #state{watched = Watched} = State) ->
    Gone = roster(fun(Seen, R) -> weir_standing:went_away(Node, Seen, R) end, awaited(Node, State#state{watched = maps:remove(Node, Watched)})),
    Member = weir_roster_core:is_registered(weir_roster_core:lookup(Node, Gone#state.roster)),
    say_hello([Node || Member, lists:member(Node, up(State))], Gone).

%% ---- effects ----

do(Effect, State) -> roster(fun(_, R) -> weir_roster_core:do(Effect, R) end, State).

roster(Change, #state{roster = Roster, seen = Seen} = State) -> State#state{roster = Change(Seen, Roster)}.

up(#state{seen = #{up := Up}}) -> Up.
