%% @private
%% @doc Who owns which keys of `scope => exact', and who decides, gives and asks what: the pure half of weir_owner.
%%
%% {@link handle/3} takes a message and the time and says what is to be done, in order. Three effects have an answer, which is to be
%% handled at once, before any other message: `decide' ({decided, ...}), `ask' ({sent, ...}), and `look' ({look, ...}). Who drives it
%% asks {@link held_up/2} before each message that may have it decide, and says {look, ...} first when it is.
%%
%% <em>Who owns.</em> Each node holds the set of nodes that share the keys out, and a key belongs to the heaviest of them (include/weir/owners.hpp).
%% A node decides a key only while it is `serving' and owns it by its own set. Else it says `not_yet', and who asked asks again a few
%% milliseconds later, by what its own set says then. Two nodes that are in each other's sets never own the same key.
%%
%% - Who starts is `joining': it says hello to all members, and each takes it into its set (from which moment it no longer
%%   decides the keys that go over), gives it the levels of its keys, and says welcome. When all have, it serves.
%% - Who leaves or stops decides nothing any more, gives the levels of its keys to those that come after it, and says bye. With
%%   that they take it out of their sets, and decide what was its.
%% - Who dies, or isn't heard for `peer_timeout', is taken out. Who stood by goes on with the levels that it was told.
%% - Who finds that it was itself held up for half of that time may have been taken out: it is joining once more.
%% - Two serving nodes that meet (a healed partition) say hello to each other, and go on meanwhile.
%%
%% Past `?MAX_OUT' questions without an answer, callers are told to decide alone.
-module(weir_owner_core).

-export([new/1, handle/3, held_up/2, sharing/1, phase/1, counts/1]).

-export_type([state/0, message/0, effect/0, ms/0, asked/0, since/0, giving/0]).

%% In monotonic milliseconds.
-type ms() :: integer().
%% A caller's question, and whom the answer is for.
-type asked() :: {reference(), {Place :: pos_integer(), weir_nif:limiter_number(), weir_nif:owned_key(), Hits :: pos_integer(),
                                Deadline :: ms()}}.
%% Of the moment before a question was sent: for weir_nif:owner_learn/3.
-type since() :: {Stamp :: non_neg_integer(), SentNs :: integer()}.
%% `leave' is the levels, `bye' the last word, when all have them.
-type giving() :: {joined | left, node()} | {leave | bye, gen_server:from()}.
%% Whom a decision is for.
-type whose() :: {own, [asked()]} | {theirs, node(), Batch :: integer()}.
%% `connected' are members; `unheard' are those of them of whom nothing came for `peer_timeout'; `left': this node has left,
%% for good or to be stopped.
-type seen() :: #{node := node(), connected := [node()], unheard := [node()], left := no | bye | stop}.
-type message() :: {look, [node()]} | {member, node(), term()} | {call, gen_server:from(), node(), term()} | {leave, gen_server:from(), Connected :: [node()]}
                 | {decide, [asked()], QueueLength :: non_neg_integer()} | {decided, whose(), [term()], [{pos_integer(), binary()}]}
                 | {sent, Batch :: pos_integer(), since() | failed} | again | {down, node()} | {gave, giving(), Reason :: term()}
                 | {tick, seen()}.
-type effect() :: look
                | {say, node(), term()} | {reply, gen_server:from(), term()} | {answer, asked(), weir_nif:outcome() | here}
                | {ask, node(), Batch :: pos_integer(), [{weir_nif:limiter_number(), weir_nif:owned_key(), pos_integer()}]}
                | {decide, whose(), Items :: list(), Nodes :: tuple(), Place :: non_neg_integer()}
                | {raise, Levels :: binary()} | {learn, list(), since()} | {forget, weir_nif:key_hash() | all}
                | {sharing, Nodes :: tuple(), Names :: tuple()} | {count, asked | answered, pos_integer()}
                | {again, [asked()]} | {again_in, ms()} | {monitor, node()} | {demonitor, node()}
                | {give, giving(), [node()], Nodes :: tuple(), Names :: tuple(), [{joined | left, Changed :: weir_roster_core:id()}],
                   weir_handover:last()}
                | {stop_giving, giving()} | {not_told, giving(), Reason :: term()}.

-define(BATCH, 512).
-define(MAX_QUEUE, 10000).
-define(MAX_OUT, 16384).
-define(HELLO_MS, 500).
-define(AGAIN_MS, 5).
%% 1024 levels: kLevels of c_src/nif/owner_nif.cpp.
-define(MAX_LEVELS, 20480).

%% Another node with which keys are shared out; `since' is when it came.
-record(other, {id :: weir_roster_core:id(), since :: ms()}).
%% `nodes' are the numbers of those that share the keys out, sorted, and `names' whose these are; `place' is this node's among them,
%% 0 while it doesn't serve. `awaited' are nodes whose welcome is awaited, and when they last gave a sign. `sent' are questions to
%% other nodes, `waiting' is for the next attempt. `giving' are handovers under way; `fresh' came when this node was leaving already,
%% `again': levels did; `leavers' are others that are leaving, `parted' said bye and are still connected; `gone' wait for handovers
%% to newcomers to end.
-record(state, {phase = joining :: joining | serving | leaving, node :: node(), others = #{} :: #{node() => #other{}},
                nodes = {} :: tuple(), names = {} :: tuple(), place = 0 :: non_neg_integer(),
                awaited = #{} :: #{node() => ms()}, greeted = #{} :: #{node() => true},
                sent = #{} :: #{pos_integer() => {node(), [asked()], since() | unsent}}, batch = 1 :: pos_integer(),
                waiting = [] :: [asked()], out = 0 :: non_neg_integer(), giving = [] :: [giving()], fresh = [] :: [node()],
                leavers = [] :: [node()], parted = [] :: [node()], again = false :: boolean(), gone = [] :: [gen_server:from()],
                seen :: ms(), patience :: pos_integer(), now :: ms(), effects = [] :: [effect()]}).
-opaque state() :: #state{}.

%% To be told {look, Connected} first.
-spec new(#{node := node(), now := ms(), peer_timeout := pos_integer()}) -> state().
new(#{node := Node, now := Now, peer_timeout := Patience}) ->
    #state{node = Node, seen = Now, now = Now, patience = Patience}.

-spec handle(message(), ms(), state()) -> {state(), [effect()]}.
handle(Message, Now, State) ->
    #state{effects = Effects} = New = on(Message, State#state{now = Now}),
    {New#state{effects = []}, lists:reverse(Effects)}.

%% For so long that others may do without this node by now: it is to look who is there, and joins once more.
-spec held_up(ms(), state()) -> boolean().
held_up(Now, #state{seen = Seen, patience = Patience, phase = Phase, others = Others}) ->
    Now - Seen > Patience div 2 andalso Phase =/= leaving andalso map_size(Others) > 0.

-spec sharing(state()) -> [node()].
sharing(#state{names = Names}) -> tuple_to_list(Names).

-spec phase(state()) -> joining | serving | leaving.
phase(#state{phase = Phase}) -> Phase.

%% Questions without an answer: to each node, and those that wait for the next attempt.
-spec counts(state()) -> #{sent := #{node() => pos_integer()}, out := non_neg_integer(), waiting := non_neg_integer()}.
counts(#state{sent = Sent, out = Out, waiting = Waiting}) ->
    #{sent => lists:foldl(fun({Node, Asks, _}, To) -> maps:update_with(Node, fun(N) -> N + length(Asks) end, length(Asks), To) end,
                          #{}, maps:values(Sent)),
      out => Out, waiting => length(Waiting)}.

%% ---- internal ----

on({look, Connected}, #state{others = Others, now = Now} = State) ->
    join(Connected, State#state{others = maps:map(fun(_, Other) -> Other#other{since = Now} end, Others)});
on({member, Node, What}, State) -> heard(What, Node, looked(State));
on({call, From, Node, What}, State) -> given(What, From, Node, State);
on({leave, From, Connected}, State) -> leaving(From, Connected, State);
on({decide, Batch, Length}, State) -> decide(Batch, Length, looked(State));
on({decided, Whose, Outcomes, Told}, State) -> decided(Whose, Outcomes, tell(Told, State));
on({sent, Batch, Since}, State) -> sent(Batch, Since, State);
on(again, #state{waiting = Waiting} = State) -> do({again, Waiting}, State#state{waiting = []});
on({down, Node}, State) -> remove(Node, State);
on({gave, What, Reason}, State) -> gave(What, Reason, State);
on({tick, Seen}, State) -> tick(Seen, looked(State)).

do(Effect, #state{effects = Effects} = State) ->
    State#state{effects = [Effect | Effects]}.

say(Node, What, State) ->
    do({say, Node, What}, State).

looked(#state{now = Now} = State) ->
    State#state{seen = Now}.

%% ---- questions of this node's callers ----

decide(Batch, Length, #state{now = Now} = State) ->
    case [Asked || {_, {_, _, _, _, Deadline}} = Asked <- Batch, Deadline > Now] of
        [] -> State;
        Due when Length > ?MAX_QUEUE -> refuse(Due, State);
        Due -> do({decide, {own, Due}, [item(Asked) || Asked <- Due], nodes_of(State), State#state.place}, State)
    end.

item({_, {_, Number, KeyHash, Hits, _}}) -> {Number, KeyHash, Hits}.

%% One at least; nobody is served from it then.
nodes_of(#state{nodes = {}}) -> {0};
nodes_of(#state{nodes = Nodes}) -> Nodes.

%% Past the limit, callers decide alone.
refuse(Due, State) ->
    lists:foldl(fun(Asked, Known) -> do({answer, Asked, here}, Known) end, State, Due).

decided({own, Due}, Outcomes, State) ->
    {Groups, Answered} = sort(Due, Outcomes, #{}, State),
    maps:fold(fun ask/3, Answered, Groups);
decided({theirs, Node, Batch}, Outcomes, State) ->
    Answers = [case is_integer(Outcome) of true -> not_yet; false -> Outcome end || Outcome <- Outcomes],
    Said = say(Node, {answers, Batch, Answers}, State),
    case length([Answer || Answer <- Answers, is_tuple(Answer)]) of
        0 -> Said;
        Count -> do({count, answered, Count}, Said)
    end.

%% Answers what is decided; the rest by the places of its owners. What isn't known here is deleted: the caller will see.
sort([Asked | Due], [Place | Outcomes], Groups, State) when is_integer(Place) ->
    sort(Due, Outcomes, Groups#{Place => [Asked | maps:get(Place, Groups, [])]}, State);
sort([Asked | Due], [unknown | Outcomes], Groups, State) ->
    sort(Due, Outcomes, Groups, do({answer, Asked, here}, State));
sort([Asked | Due], [Outcome | Outcomes], Groups, State) ->
    sort(Due, Outcomes, Groups, do({answer, Asked, Outcome}, State));
sort([], [], Groups, State) ->
    {Groups, State}.

%% What the node owns and doesn't decide, because it is joining, waits.
ask(Place, Asks, #state{names = Names, others = Others} = State) ->
    case Place =< tuple_size(Names) andalso element(Place, Names) of
        Node when is_map_key(Node, Others) -> ask_node(Node, lists:reverse(Asks), State);
        _ -> wait(lists:reverse(Asks), State)
    end.

ask_node(_Node, Asks, #state{out = Out} = State) when Out + length(Asks) > ?MAX_OUT ->
    refuse(Asks, State);
ask_node(Node, Asks, #state{batch = Batch, sent = Sent, out = Out} = State) ->
    do({ask, Node, Batch, [item(Asked) || Asked <- Asks]},
       State#state{batch = Batch + 1, sent = Sent#{Batch => {Node, Asks, unsent}}, out = Out + length(Asks)}).

sent(Batch, Since, #state{sent = Sent} = State) ->
    case Sent of
        #{Batch := {_, Asks, unsent}} when Since =:= failed -> wait(Asks, took(Batch, Asks, State));
        #{Batch := {Node, Asks, unsent}} -> State#state{sent = Sent#{Batch := {Node, Asks, Since}}};
        #{} -> State
    end.

wait([], State) ->
    State;
wait(Asks, #state{waiting = Waiting, out = Out} = State) when Out + length(Asks) + length(Waiting) > ?MAX_OUT ->
    refuse(Asks, State);
wait(Asks, #state{waiting = []} = State) ->
    do({again_in, ?AGAIN_MS}, State#state{waiting = Asks});
wait(Asks, #state{waiting = Waiting} = State) ->
    State#state{waiting = Waiting ++ Asks}.

%% The levels of what was admitted, to who stands by.
tell(Told, #state{names = Names} = State) ->
    lists:foldl(fun({Place, Levels}, Known) -> say(element(Place, Names), {told, Levels}, Known) end, State, Told).

%% ---- what other nodes say ----

heard({asks, Batch, Items}, Node, #state{place = Place} = State) when is_integer(Batch), length(Items) =< ?BATCH ->
    do({decide, {theirs, Node, Batch}, Items, nodes_of(State), Place}, State);
heard({answers, Batch, Answers}, Node, #state{sent = Sent} = State) when length(Answers) =< ?BATCH ->
    case Sent of
        #{Batch := {Node, Asks, Since}} when length(Asks) =:= length(Answers) ->
            answered(lists:zip(Asks, Answers), Since, took(Batch, Asks, State));
        #{} ->
            State
    end;
heard({told, Levels}, _Node, State) ->
    raise(Levels, State);
heard(hello, Node, #state{leavers = Leavers} = State) ->
    hello(Node, State#state{leavers = Leavers -- [Node]});
heard(leaving, Node, #state{others = Others, leavers = Leavers} = State) when is_map_key(Node, Others) ->
    without_leavers(State#state{leavers = [Node | Leavers -- [Node]]});
heard(_, _Node, State) ->
    State.

took(Batch, Asks, #state{sent = Sent, out = Out} = State) ->
    State#state{sent = maps:remove(Batch, Sent), out = Out - length(Asks)}.

%% What the owner doesn't know of may be new here, or deleted in a moment: it is asked again.
answered(Answered, Since, State) ->
    Good = [{Asked, Outcome} || {Asked, Outcome} <- Answered, is_outcome(Outcome)],
    Said = lists:foldl(fun({Asked, Outcome}, Known) -> do({answer, Asked, Outcome}, Known) end, State, Good),
    Raised = raise(<< <<Number:32/little, (hash(KeyHash)):64/little, Tat:64/little>>
                      || {{_, {_, Number, KeyHash, _, _}}, {_, _, _, _, _, Tat, _}} <- Good >>, Said),
    Denied = [{Number, hash(KeyHash), Limit, Remaining, ResetMs}
              || {{_, {_, Number, KeyHash, _, _}}, {_, Limit, Remaining, ResetMs, _, _, _} = Outcome} <- Good, tells_a_denial(Outcome)],
    Learnt = case Denied of
                 [] -> Raised;
                 _ -> do({learn, Denied, Since}, Raised)
             end,
    wait([Asked || {Asked, Outcome} <- Answered, not is_outcome(Outcome)], Learnt).

%% While keys are carried over after a rotation of the secret, the hash of before comes with it.
hash({KeyHash, _Before}) -> KeyHash;
hash(KeyHash) -> KeyHash.

is_outcome({Allowed, Limit, Remaining, ResetMs, RetryMs, Tat, Reason}) ->
    is_atom(Reason) andalso is_boolean(Allowed) andalso is_integer(Limit) andalso Limit < 1 bsl 60 andalso is_integer(Remaining)
        andalso Remaining >= 0 andalso Remaining =< Limit andalso is_integer(ResetMs) andalso ResetMs >= 0 andalso ResetMs < 1 bsl 60
        andalso (RetryMs =:= infinity orelse is_integer(RetryMs)) andalso (Allowed orelse RetryMs > 0) andalso is_integer(Tat);
is_outcome(_) ->
    false.

%% What was denied, or was the last of it: the next one is denied as well.
tells_a_denial({Allowed, _, Remaining, _, _, _, Reason}) ->
    (Reason =:= limited andalso not Allowed) orelse (Reason =:= ok andalso Remaining =:= 0).

raise(<<>>, State) ->
    State;
raise(Levels, State) when is_binary(Levels), byte_size(Levels) =< ?MAX_LEVELS, byte_size(Levels) rem 20 =:= 0 ->
    do({raise, Levels}, State);
raise(_, State) ->
    State.

%% By calls, one after the other, of another node's weir_handover; `forget' also by this node.
given({levels, Levels}, From, Node, #state{awaited = Awaited, now = Now} = State) ->
    Raised = (do({reply, From, ok}, raise(Levels, State)))#state{again = State#state.again orelse Levels =/= <<>>},
    case Awaited of
        #{Node := _} -> Raised#state{awaited = Awaited#{Node := Now}};
        #{} -> Raised
    end;
given(welcome, From, Node, #state{others = Others, phase = serving} = State) when not is_map_key(Node, Others) ->
    %% It went on without a break, and this node did its work meanwhile.
    do({reply, From, ok}, give({joined, Node}, weir_roster_core:id(Node), [Node], add(Node, State)));
given(welcome, From, Node, State) ->
    do({reply, From, ok}, welcomed(Node, add(Node, State)));
given(bye, From, Node, #state{parted = Parted} = State) ->
    do({reply, From, ok}, remove(Node, State#state{parted = [Node | Parted -- [Node]]}));
given({forget, KeyHash}, From, _Node, State) when is_integer(KeyHash), KeyHash > 0, KeyHash =< 16#ffffffffffffffff ->
    do({reply, From, ok}, do({forget, KeyHash}, State));
given(_, From, _Node, State) ->
    do({reply, From, unknown}, State).

%% ---- who shares the keys out ----

%% From the start, or once more: with all that are there, and nothing of its own until each of them has said welcome.
join(Nodes, #state{now = Now} = State) ->
    Joining = lists:foldl(fun add/2, State#state{phase = joining, greeted = #{}, seen = Now}, Nodes),
    Said = lists:foldl(fun(Node, Known) -> say(Node, hello, Known) end, Joining, Nodes),
    serving(shared(Said#state{awaited = maps:from_list([{Node, Now} || Node <- Nodes]),
                              greeted = maps:from_list([{Node, true} || Node <- Nodes])})).

serving(#state{phase = joining, awaited = Awaited} = State) when map_size(Awaited) =:= 0 ->
    shared(State#state{phase = serving});
serving(State) ->
    State.

add(Node, #state{others = Others} = State) when is_map_key(Node, Others) ->
    State;
add(Node, #state{others = Others, parted = Parted, now = Now} = State) ->
    Other = #other{id = weir_roster_core:id(Node), since = Now},
    shared(do({monitor, Node}, State#state{others = Others#{Node => Other}, parted = Parted -- [Node]})).

%% What it was asked is asked of another. Where it stood by, or who stood by owns now, another one is to stand by.
remove(Node, #state{others = Others} = State0) when is_map_key(Node, Others) ->
    State = do({demonitor, Node}, give_up(Node, State0)),
    {#other{id = Id}, Rest} = maps:take(Node, Others),
    {Back, Sent} = lists:partition(fun({_, {To, _, _}}) -> To =:= Node end, maps:to_list(State#state.sent)),
    Asks = lists:append([Asks || {_, {_, Asks, _}} <- Back]),
    Removed = shared(State#state{others = Rest, sent = maps:from_list(Sent), out = State#state.out - length(Asks),
                                 greeted = maps:remove(Node, State#state.greeted), leavers = State#state.leavers -- [Node]}),
    welcomed(Node, wait(Asks, left_again(give({left, Node}, Id, maps:keys(Rest), Removed))));
remove(Node, State) ->
    welcomed(Node, State).

%% Levels that were on their way to it are old when it comes back.
give_up(Node, #state{giving = Giving} = State) ->
    case lists:member({joined, Node}, Giving) of
        true -> do({stop_giving, {joined, Node}}, State#state{giving = Giving -- [{joined, Node}]});
        false -> State
    end.

welcomed(Node, #state{awaited = Awaited} = State) ->
    serving(State#state{awaited = maps:remove(Node, Awaited)}).

%% It takes part from now on, and gets the levels of its keys. That it says hello again means that something of it was lost.
hello(Node, #state{phase = joining, others = Others, awaited = Awaited, now = Now} = State) when not is_map_key(Node, Others) ->
    hello(Node, add(Node, State#state{awaited = Awaited#{Node => Now}}));
hello(Node, #state{phase = leaving, others = Others, giving = Giving, fresh = Fresh} = State)
  when not is_map_key(Node, Others) ->
    case lists:keymember(leave, 1, Giving) orelse lists:keymember(bye, 1, Giving) of
        true -> left_again(without_leavers(add(Node, State#state{fresh = [Node | Fresh]})));
        false -> give({joined, Node}, weir_roster_core:id(Node), [Node], add(Node, State))
    end;
hello(Node, State) ->
    greet(Node, give({joined, Node}, weir_roster_core:id(Node), [Node], add(Node, State))).

greet(Node, #state{greeted = Greeted, phase = Phase} = State) when is_map_key(Node, Greeted); Phase =:= leaving ->
    State;
greet(Node, #state{greeted = Greeted} = State) ->
    say(Node, hello, State#state{greeted = Greeted#{Node => true}}).

%% One handover of a kind and node at a time.
give(_What, _Id, [], State) ->
    State;
give({left, _}, _Id, _To, #state{phase = leaving} = State) ->
    State;
give({How, _} = What, Id, To, #state{giving = Giving, phase = Phase, nodes = Nodes, names = Names} = State) ->
    case lists:member(What, Giving) of
        true ->
            State;
        false ->
            Last = case {How, Phase} of
                       {left, _} -> none;
                       {joined, leaving} -> bye;
                       {joined, _} -> welcome
                   end,
            do({give, What, To, Nodes, Names, [{How, Id}], Last}, State#state{giving = [What | Giving]})
    end.

%% (A node that didn't get its levels says hello again.)
gave({How, From} = What, _Reason, #state{giving = Giving, gone = Gone, again = Again, others = Others, nodes = Nodes, names = Names} = State)
  when How =:= leave; How =:= bye ->
    Rest = State#state{giving = Giving -- [What]},
    Stayers = has_stayers(State),
    if
        Again, Stayers ->
            give_all(From, Rest);
        map_size(Others) > 0, How =:= leave ->
            do({give, {bye, From}, maps:keys(Others), Nodes, Names, [], bye}, Rest#state{giving = [{bye, From} | Rest#state.giving]});
        true ->
            gone(Rest#state{gone = [From | Gone]})
    end;
gave(What, normal, #state{giving = Giving} = State) ->
    gone(State#state{giving = Giving -- [What]});
gave(What, Reason, #state{giving = Giving} = State) ->
    gone(do({not_told, What, Reason}, State#state{giving = Giving -- [What]})).

%% Whoever asked this node to leave is answered when nothing is under way any more.
gone(#state{giving = [], gone = Gone} = State) ->
    lists:foldl(fun(From, Known) -> do({reply, From, ok}, Known) end, State#state{gone = []}, Gone);
gone(State) ->
    State.

%% (Also to those that have only just come, and haven't said hello yet: they would find nobody who knows the levels.)
leaving(From, Connected, #state{others = Others} = State) ->
    Fresh = [Node || Node <- Connected, not is_map_key(Node, Others)],
    case maps:keys(Others) ++ Fresh of
        [] ->
            do({reply, From, ok}, State);
        All ->
            Known = lists:foldl(fun add/2, State#state{phase = leaving, awaited = #{}, fresh = Fresh}, Fresh),
            Said = lists:foldl(fun(Node, Saying) -> say(Node, leaving, Saying) end, Known, All),
            give_all(From, without_leavers(shared(Said)))
    end.

%% Two that leave don't give each other what both would have to give away again, unless there is nobody else: one of them may hear
%% of a newcomer in time.
without_leavers(#state{phase = leaving, leavers = Leavers} = State) ->
    case has_stayers(State) of
        true -> lists:foldl(fun remove/2, State, Leavers);
        false -> State
    end;
without_leavers(State) ->
    State.

has_stayers(#state{others = Others, leavers = Leavers}) ->
    maps:keys(Others) -- Leavers =/= [].

%% What this node owned, to who comes after it, and to the fresh all that they are to know. Nobody is said bye to before all have
%% their levels: of several that leave at once, one may be given levels that are for the next one, and pass them on first.
give_all(From, #state{others = Others, node = Self, nodes = Nodes, names = Names, giving = Giving, fresh = Fresh} = State) ->
    Scans = [{left, weir_roster_core:id(Self)} | [{joined, weir_roster_core:id(Node)} || Node <- Fresh, is_map_key(Node, Others)]],
    do({give, {leave, From}, maps:keys(Others), Nodes, Names, Scans, none}, State#state{giving = [{leave, From} | Giving], again = false}).

%% Several leave at once: what this node gave to one that has gone as well, or was given by it, others are to have.
left_again(#state{phase = leaving, giving = Giving, others = Others} = State) ->
    lists:foldl(fun({How, From} = What, #state{giving = Known} = Again) when How =:= leave; How =:= bye ->
                        Stopped = do({stop_giving, What}, Again#state{giving = Known -- [What]}),
                        case map_size(Others) of
                            0 -> gone(Stopped#state{gone = [From | Stopped#state.gone]});
                            _ -> give_all(From, Stopped)
                        end;
                   (_, Again) ->
                        gone(Again)
                end, gone(State), Giving);
left_again(State) ->
    State.

%% Sorted, so that places are the same for explanations whatever came first. What owners said of keys was of the owners before.
shared(#state{others = Others, phase = Phase, node = Self} = State) ->
    Own = [{weir_roster_core:id(Self), Self} || Phase =/= leaving],
    {Ids, Names} = lists:unzip(lists:sort(Own ++ [{Id, Node} || {Node, #other{id = Id}} <- maps:to_list(Others)])),
    Nodes = list_to_tuple(Ids),
    Place = case Phase of
                serving -> place(Self, Names, 1);
                _ -> 0
            end,
    do({sharing, Nodes, list_to_tuple(Names)},
       do({forget, all}, State#state{nodes = Nodes, names = list_to_tuple(Names), place = Place})).

place(Self, [Self | _], Place) -> Place;
place(Self, [_ | Names], Place) -> place(Self, Names, Place + 1).

%% ---- time ----

tick(#{node := Name}, #state{node = Node} = State) when Name =/= Node ->
    %% A node may get its name after weir was started.
    do(look, State#state{node = Name});
%% The others own the keys now, and callers wait for them until they are told that weir has stopped. (Nobody is a member any more:
%% alone this node would decide beside them.)
tick(#{left := stop}, State) ->
    given_up(State);
tick(#{connected := Connected, unheard := Unheard, left := Left}, #state{others = Others, now = Now, patience = Patience} = State) ->
    Silent = [Node || {Node, #other{since = Since}} <- maps:to_list(Others), Now - Since > Patience, lists:member(Node, Unheard)],
    Gone = [Node || Node <- maps:keys(Others), not lists:member(Node, Connected) orelse lists:member(Node, Silent)],
    There = alone(Left, lists:foldl(fun remove/2, State, Gone)),
    Waited = lists:foldl(fun welcomed/2, There, awaited_for(Patience, There)),
    %% It may not have heard.
    Said = lists:foldl(fun(Node, Known) -> say(Node, hello, Known) end, Waited, awaited_for(?HELLO_MS, Waited)),
    Parted = [Node || Node <- Said#state.parted, lists:member(Node, Connected)],
    meet([Node || Node <- Connected -- Parted, not is_map_key(Node, Said#state.others)], Unheard, given_up(Said#state{parted = Parted})).

awaited_for(Ms, #state{awaited = Awaited, now = Now}) ->
    [Node || {Node, At} <- maps:to_list(Awaited), Now - At > Ms].

%% Who left the cluster decides alone.
alone(bye, #state{phase = leaving} = State) -> shared(State#state{phase = serving});
alone(_, State) -> State.

%% Questions whose callers have all gone: the node doesn't answer.
given_up(#state{sent = Sent, now = Now} = State) ->
    Over = [{Batch, Asks} || {Batch, {_, Asks, _}} <- maps:to_list(Sent),
                             lists:all(fun({_, {_, _, _, _, Deadline}}) -> Deadline < Now end, Asks)],
    lists:foldl(fun({Batch, Asks}, Known) -> took(Batch, Asks, Known) end, State, Over).

%% Members that are connected, and not (any more) among those that share keys out. While this node joins, it waits for them too.
%% (Not those that have said bye: a leaving node gives levels to who says hello, and can't end before that has ended.)
meet([], _Unheard, State) ->
    State;
meet(Nodes, _Unheard, #state{phase = joining, now = Now} = State) ->
    lists:foldl(fun(Node, #state{awaited = Awaited, greeted = Greeted} = Known) ->
                        say(Node, hello, add(Node, Known#state{awaited = Awaited#{Node => Now}, greeted = Greeted#{Node => true}}))
                end, State, Nodes);
meet(Nodes, Unheard, #state{phase = serving} = State) ->
    lists:foldl(fun(Node, Known) -> say(Node, hello, Known) end, State, Nodes -- Unheard);
meet(_Nodes, _Unheard, State) ->
    State.
