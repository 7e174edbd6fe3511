%% @private
%% @doc Decides limiters of `scope => exact': each key on one node.
%%
%% ```
%% callers --- weir_ask -->  +------------+  --- asks -->  weir_owner of the keys' owners
%%         <-- outcomes ---  | weir_owner |  <-- answers --
%%                           +------------+  --- told -->  weir_owner of who stands by
%% '''
%%
%% All decisions of a node pass through this process, those of its own callers too: what it decided before a moment is known
%% at that moment, so that a handover can be exact. It gathers questions until its mailbox is empty (512 at most), decides
%% in one call of the NIF what this node owns, and sends the rest on in one message an owner. Of what it admits it tells the levels to
%% the node that stands by for the key, before it answers; who asked raises its own table as well.
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
%% Asks wait in the mailbox. Past `?MAX_QUEUE' messages, or `?MAX_OUT' questions without an answer, callers are told to decide alone.
-module(weir_owner).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, leave/1, owners/1, sharing/0, count/2, counts/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([ask/0]).

%% In monotonic milliseconds.
-type ms() :: integer().
%% A caller's question: its place among those of the call. The answers are {Alias, Place, Outcome}.
-type ask() :: {Place :: pos_integer(), weir_nif:limiter_number(), weir_nif:owned_key(), Hits :: pos_integer(), Deadline :: ms()}.

-define(BATCH, 512).
-define(MAX_QUEUE, 10000).
-define(MAX_OUT, 16384).
-define(TICK_MS, 250).
-define(AGAIN_MS, 5).
%% How long the end waits for answers that are on their way.
-define(FINISH_MS, 500).
%% 1024 levels: kLevels of c_src/nif/owner_nif.cpp.
-define(MAX_LEVELS, 20480).
-define(NONE_OWNED, {owned, 0, 0, 0}).

%% Another node with which keys are shared out; `since' is when it came.
-record(other, {id :: weir_members:id(), monitor :: reference(), since :: ms()}).
%% `nodes' are the numbers of those that share the keys out, sorted, and `names' whose these are; `place' is this node's among them,
%% 0 while it doesn't serve. `awaited' are nodes whose welcome is awaited, and when they last gave a sign. `asks' are waiting for
%% the mailbox to be empty, `sent' for another node, `waiting' for the next attempt. `giving' are handovers under way.
-record(state, {phase = joining :: joining | serving | leaving, node = node() :: node(), others = #{} :: #{node() => #other{}},
                nodes = {} :: tuple(), names = {} :: tuple(), place = 0 :: non_neg_integer(),
                awaited = #{} :: #{node() => ms()}, greeted = #{} :: #{node() => true},
                asks = [] :: [{reference(), ask()}], count = 0 :: non_neg_integer(), others_handled = 0 :: non_neg_integer(),
                sent = #{} :: #{pos_integer() => {node(), [{reference(), ask()}]}}, batch = 1 :: pos_integer(),
                waiting = [] :: [{reference(), ask()}], timer = none :: none | reference(), out = 0 :: non_neg_integer(),
                giving = #{} :: #{reference() => {pid(), {joined | left, node()} | {leave, gen_server:from()}}},
                seen :: ms(), patience = 2000 :: pos_integer()}).

-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% This node owns nothing any more: when this returns, the others have all levels that it had (or Timeout has passed). From then on
%% it asks them, until it has left the cluster.
-spec leave(pos_integer()) -> ok.
leave(Timeout) ->
    try gen_server:call(?MODULE, leave, Timeout)
    catch exit:_ -> ok
    end.

%% Who owns a key and who stands by, as this node sees it.
-spec owners(weir_nif:key_hash()) -> #{owner => node(), second => node()}.
owners(KeyHash) ->
    case row(owners, {owners, {}, {}}) of
        {_, {}, {}} ->
            #{};
        {_, Nodes, Names} ->
            {First, Second} = weir_nif:owner_rank(KeyHash, Nodes),
            maps:from_list([{owner, element(First, Names)}] ++ [{second, element(Second, Names)} || Second > 0])
    end.

%% That share the keys out, as this node sees it.
-spec sharing() -> [node()].
sharing() ->
    {_, _, Names} = row(owners, {owners, {}, {}}),
    tuple_to_list(Names).

%% Decisions asked of other nodes, made for other nodes, and made by callers here because no owner answered in time.
-spec count(asked | answered | here, non_neg_integer()) -> ok.
count(_What, 0) ->
    ok;
count(What, Count) ->
    Place = case What of asked -> 2; answered -> 3; here -> 4 end,
    _ = try ets:update_counter(weir_members, owned, {Place, Count}, ?NONE_OWNED)
        catch error:badarg -> stopping
        end,
    ok.

-spec counts() -> #{asked | answered | here => non_neg_integer()}.
counts() ->
    {_, Asked, Answered, Here} = row(owned, ?NONE_OWNED),
    #{asked => Asked, answered => Answered, here => Here}.

%% In weir_members' table, which goes when weir stops.
row(Key, Default) ->
    try ets:lookup(weir_members, Key) of
        [Row] -> Row;
        [] -> Default
    catch error:badarg -> Default
    end.

%% ---- callbacks ----

-spec init([]) -> {ok, #state{}}.
init([]) ->
    _ = process_flag(trap_exit, true),
    _ = process_flag(message_queue_data, off_heap),
    {ok, #{peer_timeout := Patience}} = weir_cluster_options:get(),
    _ = erlang:send_after(?TICK_MS, self(), tick),
    {ok, join(#state{seen = now_ms(), patience = Patience})}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {noreply, #state{}}
                                                        | {reply, term(), #state{}, 0} | {noreply, #state{}, 0}.
handle_call(leave, From, State) ->
    more(leaving(From, State));
handle_call({weir_owner, 1, Node, What}, _From, State) ->
    case is_atom(Node) andalso weir_members:is_member(Node) of
        true ->
            {Reply, New} = given(What, Node, State),
            reply(Reply, New);
        false ->
            reply(not_a_member, State)
    end;
handle_call(_, _From, State) ->
    reply(unknown, State).

-spec handle_cast(term(), #state{}) -> {noreply, #state{}} | {noreply, #state{}, 0}.
handle_cast(_, State) ->
    more(State).

-spec handle_info(term(), #state{}) -> {noreply, #state{}} | {noreply, #state{}, 0}.
handle_info(timeout, State) ->
    more(decide(State));
handle_info({weir_ask, Alias, Asks}, #state{asks = Before, count = Count} = State) when is_reference(Alias), length(Asks) > 0 ->
    All = [{Alias, Ask} || Ask <- lists:reverse(Asks), is_ask(Ask)],
    more(State#state{asks = All ++ Before, count = Count + length(All)});
handle_info({weir_owner, 1, Node, What}, State) ->
    case is_atom(Node) andalso Node =/= node() andalso weir_members:is_member(Node) of
        true -> more(heard(What, Node, looked(State)));
        false -> more(State)
    end;
handle_info(tick, State) ->
    _ = erlang:send_after(?TICK_MS, self(), tick),
    more(tick(looked(State)));
handle_info({timeout, Timer, again}, #state{timer = Timer, waiting = Waiting, asks = Asks, count = Count} = State) ->
    more(State#state{timer = none, waiting = [], asks = Asks ++ Waiting, count = Count + length(Waiting)});
handle_info({'DOWN', Monitor, process, _, Reason}, #state{giving = Giving} = State) when is_map_key(Monitor, Giving) ->
    {{_, What}, Rest} = maps:take(Monitor, Giving),
    more(gave(What, Reason, State#state{giving = Rest}));
handle_info({'DOWN', Monitor, process, {?MODULE, Node}, _}, #state{others = Others} = State) ->
    case Others of
        #{Node := #other{monitor = Monitor}} -> more(remove(Node, State));
        #{} -> more(State)
    end;
handle_info(_, State) ->
    more(State).

is_ask({_, Number, KeyHash, Hits, Deadline}) ->
    is_integer(Number) andalso Number > 0 andalso Number =< 16#ffffffff andalso is_integer(Deadline)
        andalso is_hash(KeyHash)
        andalso is_integer(Hits) andalso Hits > 0 andalso Hits < 1 bsl 63;
is_ask(_) ->
    false.

is_hash({KeyHash, Before}) -> is_hash(KeyHash) andalso is_hash(Before);
is_hash(KeyHash) -> is_integer(KeyHash) andalso KeyHash > 0 andalso KeyHash =< 16#ffffffffffffffff.

%% While keys are carried over after a rotation of the secret, the hash of before comes with it.
hash({KeyHash, _Before}) -> KeyHash;
hash(KeyHash) -> KeyHash.

%% What other nodes have decided by now reaches those who asked: it is counted there.
-spec terminate(term(), #state{}) -> ok.
terminate(_Reason, State) ->
    finish(State, now_ms() + ?FINISH_MS).

finish(#state{sent = Sent}, _Until) when map_size(Sent) =:= 0 ->
    ok;
finish(State, Until) ->
    receive {weir_owner, 1, Node, {answers, _, _} = Answers} -> finish(heard(Answers, Node, State), Until)
    after max(0, Until - now_ms()) -> ok
    end.

%% Questions are gathered until nothing else is in the mailbox, or they are enough, or other messages enough.
more(#state{others_handled = Handled} = State) ->
    case gathered(State#state{others_handled = Handled + 1}) of
        #state{count = 0} = Decided -> {noreply, Decided#state{others_handled = 0}};
        Gathered -> {noreply, Gathered, 0}
    end.

reply(Reply, State) ->
    case more(State) of
        {noreply, New} -> {reply, Reply, New};
        {noreply, New, 0} -> {reply, Reply, New, 0}
    end.

gathered(#state{count = Count, others_handled = Handled} = State) when Count >= ?BATCH; Count > 0, Handled > ?BATCH ->
    gathered(decide(State));
gathered(State) -> State.

%% ---- decisions ----

%% The oldest of those that were gathered. A caller whose time is over has gone.
decide(#state{asks = Asks} = State) ->
    {Batch, Rest} = split(lists:reverse(Asks)),
    Taken = looked(State#state{asks = lists:reverse(Rest), count = length(Rest), others_handled = 0}),
    Now = now_ms(),
    {message_queue_len, Length} = process_info(self(), message_queue_len),
    case [Asked || {_, {_, _, _, _, Deadline}} = Asked <- Batch, Deadline > Now] of
        [] -> Taken;
        Due when Length > ?MAX_QUEUE -> refuse(Due, Taken);
        Due -> decided(Due, weir_nif:owner_decide([item(Asked) || Asked <- Due], nodes_of(Taken), Taken#state.place), Taken)
    end.

split(Asks) when length(Asks) > ?BATCH -> lists:split(?BATCH, Asks);
split(Asks) -> {Asks, []}.

item({_, {_, Number, KeyHash, Hits, _}}) -> {Number, KeyHash, Hits}.

%% The NIF wants one at least; nobody is served from it then.
nodes_of(#state{nodes = {}}) -> {0};
nodes_of(#state{nodes = Nodes}) -> Nodes.

%% Past the limit, callers decide alone.
refuse(Due, State) ->
    _ = [answer(Asked, here) || Asked <- Due],
    State.

decided(Due, {Outcomes, Told}, State) ->
    ok = tell(Told, State),
    maps:fold(fun ask/3, State, sort(Due, Outcomes, #{})).

%% Answers what is decided; the rest by the places of its owners. What isn't known here is deleted: the caller will see.
sort([Asked | Due], [Place | Outcomes], Groups) when is_integer(Place) ->
    sort(Due, Outcomes, Groups#{Place => [Asked | maps:get(Place, Groups, [])]});
sort([Asked | Due], [Outcome | Outcomes], Groups) ->
    ok = case Outcome of
             unknown -> answer(Asked, here);
             _ -> answer(Asked, Outcome)
         end,
    sort(Due, Outcomes, Groups);
sort([], [], Groups) ->
    Groups.

answer({Alias, {Place, _, _, _, _}}, Outcome) ->
    Alias ! {Alias, Place, Outcome},
    ok.

%% What the node owns and doesn't decide, because it is joining, waits.
ask(Place, Asks, #state{names = Names, others = Others} = State) ->
    case Place =< tuple_size(Names) andalso element(Place, Names) of
        Node when is_map_key(Node, Others) -> ask_node(Node, lists:reverse(Asks), State);
        _ -> wait(lists:reverse(Asks), State)
    end.

ask_node(_Node, Asks, #state{out = Out} = State) when Out + length(Asks) > ?MAX_OUT ->
    refuse(Asks, State);
ask_node(Node, Asks, #state{batch = Batch, sent = Sent, out = Out} = State) ->
    case say(Node, {asks, Batch, [item(Asked) || Asked <- Asks]}) of
        ok ->
            ok = count(asked, length(Asks)),
            State#state{batch = Batch + 1, sent = Sent#{Batch => {Node, Asks}}, out = Out + length(Asks)};
        _ ->
            wait(Asks, State)
    end.

wait([], State) ->
    State;
wait(Asks, #state{waiting = Waiting, out = Out} = State) when Out + length(Asks) + length(Waiting) > ?MAX_OUT ->
    refuse(Asks, State);
wait(Asks, #state{waiting = Waiting, timer = none} = State) ->
    State#state{waiting = Waiting ++ Asks, timer = erlang:start_timer(?AGAIN_MS, self(), again)};
wait(Asks, #state{waiting = Waiting} = State) ->
    State#state{waiting = Waiting ++ Asks}.

%% The levels of what was admitted, to who stands by.
tell(Told, #state{names = Names}) ->
    _ = [say(element(Place, Names), {told, Levels}) || {Place, Levels} <- Told],
    ok.

%% Another node may be slow to read; this process isn't made to wait for it.
say(Node, What) ->
    erlang:send({?MODULE, Node}, {?MODULE, 1, node(), What}, [nosuspend, noconnect]).

%% ---- what other nodes say ----

heard({asks, Batch, Items}, Node, #state{place = Place} = State) when is_integer(Batch), length(Items) =< ?BATCH ->
    try weir_nif:owner_decide(Items, nodes_of(State), Place) of
        {Outcomes, Told} ->
            ok = tell(Told, State),
            Answers = [case is_integer(Outcome) of true -> not_yet; false -> Outcome end || Outcome <- Outcomes],
            _ = say(Node, {answers, Batch, Answers}),
            ok = count(answered, length([Answer || Answer <- Answers, is_tuple(Answer)])),
            State
    catch error:badarg -> State
    end;
heard({answers, Batch, Answers}, Node, #state{sent = Sent} = State) when length(Answers) =< ?BATCH ->
    case Sent of
        #{Batch := {Node, Asks}} when length(Asks) =:= length(Answers) ->
            answered(lists:zip(Asks, Answers), took(Batch, Asks, State));
        #{} ->
            State
    end;
heard({told, Levels}, _Node, State) ->
    ok = raise(Levels),
    State;
heard(hello, Node, State) ->
    hello(Node, State);
heard(_, _Node, State) ->
    State.

took(Batch, Asks, #state{sent = Sent, out = Out} = State) ->
    State#state{sent = maps:remove(Batch, Sent), out = Out - length(Asks)}.

%% What the owner doesn't know of may be new here, or deleted in a moment: it is asked again.
answered(Answered, State) ->
    Good = [{Asked, Outcome} || {Asked, Outcome} <- Answered, is_outcome(Outcome)],
    _ = [answer(Asked, Outcome) || {Asked, Outcome} <- Good],
    ok = raise(<< <<Number:32/little, (hash(KeyHash)):64/little, Tat:64/little>>
                  || {{_, {_, Number, KeyHash, _, _}}, {_, _, _, _, _, Tat, _}} <- Good >>),
    wait([Asked || {Asked, Outcome} <- Answered, not is_outcome(Outcome)], State).

is_outcome({Allowed, Limit, Remaining, ResetMs, RetryMs, Tat, Reason}) ->
    is_atom(Reason) andalso is_boolean(Allowed) andalso is_integer(Limit) andalso is_integer(Remaining) andalso Remaining >= 0 andalso is_integer(ResetMs)
        andalso (RetryMs =:= infinity orelse is_integer(RetryMs)) andalso (Allowed orelse RetryMs > 0) andalso is_integer(Tat);
is_outcome(_) ->
    false.

raise(Levels) when is_binary(Levels), byte_size(Levels) =< ?MAX_LEVELS, byte_size(Levels) rem 20 =:= 0 ->
    weir_nif:owner_raise(Levels);
raise(_) ->
    ok.

%% By calls, one after the other, of another node's weir_handover.
given({levels, Levels}, Node, #state{awaited = Awaited} = State) ->
    ok = raise(Levels),
    case Awaited of
        #{Node := _} -> {ok, State#state{awaited = Awaited#{Node := now_ms()}}};
        #{} -> {ok, State}
    end;
given(welcome, Node, #state{others = Others, phase = serving} = State) when not is_map_key(Node, Others) ->
    %% It went on without a break, and this node did its work meanwhile.
    Added = add(Node, State),
    #other{id = Id} = maps:get(Node, Added#state.others),
    {ok, give({joined, Node}, Id, [Node], Added)};
given(welcome, Node, State) ->
    {ok, welcomed(Node, add(Node, State))};
given(bye, Node, State) ->
    {ok, remove(Node, State)};
given(_, _Node, State) ->
    {unknown, State}.

%% ---- who shares the keys out ----

%% From the start, or once more: with all that are there, and nothing of its own until each of them has said welcome.
join(State) ->
    Nodes = weir_members:connected(),
    Now = now_ms(),
    Joining = lists:foldl(fun add/2, State#state{phase = joining, greeted = #{}}, Nodes),
    _ = [say(Node, hello) || Node <- Nodes],
    serving(shared(Joining#state{awaited = maps:from_list([{Node, Now} || Node <- Nodes]),
                                 greeted = maps:from_list([{Node, true} || Node <- Nodes])})).

serving(#state{phase = joining, awaited = Awaited} = State) when map_size(Awaited) =:= 0 ->
    shared(State#state{phase = serving});
serving(State) ->
    State.

add(Node, #state{others = Others} = State) when is_map_key(Node, Others) ->
    State;
add(Node, #state{others = Others} = State) ->
    Other = #other{id = weir_members:node_id(Node), monitor = erlang:monitor(process, {?MODULE, Node}), since = now_ms()},
    shared(State#state{others = Others#{Node => Other}}).

%% What it was asked is asked of another. Where it stood by, or who stood by owns now, another one is to stand by.
remove(Node, #state{others = Others} = State0) when is_map_key(Node, Others) ->
    State = give_up(Node, State0),
    {#other{id = Id, monitor = Monitor}, Rest} = maps:take(Node, Others),
    true = erlang:demonitor(Monitor, [flush]),
    {Back, Sent} = lists:partition(fun({_, {To, _}}) -> To =:= Node end, maps:to_list(State#state.sent)),
    Asks = lists:append([Asks || {_, {_, Asks}} <- Back]),
    Removed = shared(State#state{others = Rest, sent = maps:from_list(Sent), out = State#state.out - length(Asks),
                                 greeted = maps:remove(Node, State#state.greeted)}),
    welcomed(Node, wait(Asks, give({left, Node}, Id, maps:keys(Rest), Removed)));
remove(Node, State) ->
    welcomed(Node, State).

%% Levels that were on their way to it are old when it comes back.
give_up(Node, #state{giving = Giving} = State) ->
    Over = [{Monitor, Pid} || {Monitor, {Pid, {joined, To}}} <- maps:to_list(Giving), To =:= Node],
    _ = [true = erlang:demonitor(Monitor, [flush]) andalso exit(Pid, kill) || {Monitor, Pid} <- Over],
    State#state{giving = maps:without([Monitor || {Monitor, _} <- Over], Giving)}.

welcomed(Node, #state{awaited = Awaited} = State) ->
    serving(State#state{awaited = maps:remove(Node, Awaited)}).

%% It takes part from now on, and gets the levels of its keys. That it says hello again means that something of it was lost.
hello(Node, #state{phase = joining, others = Others, awaited = Awaited} = State) when not is_map_key(Node, Others) ->
    hello(Node, add(Node, State#state{awaited = Awaited#{Node => now_ms()}}));
hello(Node, State) ->
    Added = add(Node, State),
    #other{id = Id} = maps:get(Node, Added#state.others),
    greet(Node, give({joined, Node}, Id, [Node], Added)).

greet(Node, #state{greeted = Greeted, phase = Phase} = State) when is_map_key(Node, Greeted); Phase =:= leaving ->
    State;
greet(Node, #state{greeted = Greeted} = State) ->
    _ = say(Node, hello),
    State#state{greeted = Greeted#{Node => true}}.

%% One handover of a kind and node at a time.
give(_What, _Id, [], State) ->
    State;
give({left, _}, _Id, _To, #state{phase = leaving} = State) ->
    State;
give({How, _} = What, Id, To, #state{giving = Giving, phase = Phase} = State) ->
    case lists:keymember(What, 2, maps:values(Giving)) of
        true ->
            State;
        false ->
            Last = case {How, Phase} of
                       {left, _} -> none;
                       {joined, leaving} -> bye;
                       {joined, _} -> welcome
                   end,
            {Pid, Monitor} = weir_handover:start(To, scan(How, Id, State), Last),
            State#state{giving = Giving#{Monitor => {Pid, What}}}
    end.

scan(How, Id, #state{nodes = Nodes, names = Names, node = Self}) ->
    SelfId = weir_members:node_id(Self),
    fun() -> [{element(Place, Names), Levels} || {Place, Levels} <- weir_nif:owner_levels(Nodes, SelfId, Id, How)] end.

%% (A node that didn't get its levels says hello again.)
gave({leave, From}, _Reason, State) ->
    gen_server:reply(From, ok),
    State;
gave(_, normal, State) ->
    State;
gave({How, Node}, Reason, State) ->
    ?LOG_NOTICE(#{what => levels_not_told, because_of => {How, Node}, why => Reason}),
    State.

leaving(From, #state{others = Others} = State) when map_size(Others) =:= 0 ->
    gen_server:reply(From, ok),
    State;
leaving(From, #state{others = Others, giving = Giving, node = Self} = State) ->
    Left = shared(State#state{phase = leaving, awaited = #{}}),
    {Pid, Monitor} = weir_handover:start(maps:keys(Others), scan(left, weir_members:node_id(Self), Left), bye),
    Left#state{giving = Giving#{Monitor => {Pid, {leave, From}}}}.

%% Sorted, so that places are the same for explanations whatever came first.
shared(#state{others = Others, phase = Phase, node = Self} = State) ->
    Own = [{weir_members:node_id(Self), Self} || Phase =/= leaving],
    {Ids, Names} = lists:unzip(lists:sort(Own ++ [{Id, Node} || {Node, #other{id = Id}} <- maps:to_list(Others)])),
    Nodes = list_to_tuple(Ids),
    _ = try ets:insert(weir_members, {owners, Nodes, list_to_tuple(Names)})
        catch error:badarg -> stopping
        end,
    Place = case Phase of
                serving -> place(Self, Names, 1);
                _ -> 0
            end,
    State#state{nodes = Nodes, names = list_to_tuple(Names), place = Place}.

place(Self, [Self | _], Place) -> Place;
place(Self, [_ | Names], Place) -> place(Self, Names, Place + 1).

%% ---- time ----

%% Held up for so long that others may do without this node by now.
looked(#state{seen = Seen, patience = Patience, phase = Phase, others = Others} = State) ->
    Now = now_ms(),
    Looked = State#state{seen = Now},
    case Now - Seen > Patience div 2 andalso Phase =/= leaving andalso map_size(Others) > 0 of
        true -> join(Looked#state{others = maps:map(fun(_, Other) -> Other#other{since = Now} end, Others)});
        false -> Looked
    end.

tick(State) ->
    Connected = weir_members:connected(),
    Now = now_ms(),
    Silent = silent(State, Now),
    Gone = [Node || Node <- maps:keys(State#state.others), not lists:member(Node, Connected) orelse lists:member(Node, Silent)],
    Left = alone(lists:foldl(fun remove/2, State, Gone)),
    Waited = lists:foldl(fun welcomed/2, Left, awaited_for(Left#state.patience, Now, Left)),
    %% It may not have heard.
    _ = [say(Node, hello) || Node <- awaited_for(2 * ?TICK_MS, Now, Waited)],
    meet([Node || Node <- Connected, not is_map_key(Node, Waited#state.others)], named(given_up(Now, Waited))).

awaited_for(Ms, Now, #state{awaited = Awaited}) ->
    [Node || {Node, At} <- maps:to_list(Awaited), Now - At > Ms].

%% Who left the cluster decides alone.
alone(#state{phase = leaving} = State) ->
    case weir_members:has_left() of
        true -> shared(State#state{phase = serving});
        false -> State
    end;
alone(State) ->
    State.

%% A node may get its name after weir was started.
named(#state{node = Node} = State) when Node =:= node() -> State;
named(State) -> join(State#state{node = node()}).

%% Questions whose callers have all gone: the node doesn't answer.
given_up(Now, #state{sent = Sent} = State) ->
    Over = [{Batch, Asks} || {Batch, {_, Asks}} <- maps:to_list(Sent),
                             lists:all(fun({_, {_, _, _, _, Deadline}}) -> Deadline < Now end, Asks)],
    lists:foldl(fun({Batch, Asks}, Known) -> took(Batch, Asks, Known) end, State, Over).

%% Members that are connected, and not (any more) among those that share keys out. While this node joins, it waits for them too.
meet([], State) ->
    State;
meet(Nodes, #state{phase = joining} = State) ->
    Now = now_ms(),
    _ = [say(Node, hello) || Node <- Nodes],
    lists:foldl(fun(Node, #state{awaited = Awaited, greeted = Greeted} = Known) ->
                        (add(Node, Known))#state{awaited = Awaited#{Node => Now}, greeted = Greeted#{Node => true}}
                end, State, Nodes);
meet(Nodes, #state{phase = serving} = State) ->
    Speaking = Nodes -- unheard(Nodes, State#state.patience),
    _ = [say(Node, hello) || Node <- Speaking],
    State;
meet(_Nodes, State) ->
    State.

%% Of whom nothing came for so long, by the frames that weir_replica gets.
silent(#state{others = Others, patience = Patience}, Now) ->
    Old = [Node || {Node, #other{since = Since}} <- maps:to_list(Others), Now - Since > Patience],
    unheard(Old, Patience).

unheard([], _Patience) ->
    [];
unheard(Nodes, Patience) ->
    Traffic = weir_members:traffic(),
    Now = weir_clock:now(),
    [Node || Node <- Nodes, Now - maps:get(heard_ns, maps:get(Node, Traffic, #{heard_ns => 0})) > Patience * 1000000].

now_ms() ->
    erlang:monotonic_time(millisecond).
