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
%% Who owns what, and what is said to whom, is weir_owner_core's: this process brings it messages and the time, and executes what it
%% answers.
%%
%% Asks wait in the mailbox. Past 10,000 messages there (`?MAX_QUEUE' of weir_owner_core) callers are told to decide alone.
-module(weir_owner).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, leave/1, owners/1, sharing/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([ask/0]).

-type ms() :: weir_owner_core:ms().
%% A caller's question: its place among those of the call. The answers are {Alias, Place, Outcome}.
-type ask() :: {Place :: pos_integer(), weir_nif:limiter_number(), weir_nif:owned_key(), Hits :: pos_integer(), Deadline :: ms()}.

-define(BATCH, 512).
-define(TICK_MS, 250).
%% How long the end waits for answers that are on their way.
-define(FINISH_MS, 500).

%% `asks' are waiting for the mailbox to be empty; `giving' are handovers under way.
-record(state, {core :: weir_owner_core:state(), patience :: pos_integer(), monitors = #{} :: #{node() => reference()},
                asks = [] :: [weir_owner_core:asked()], count = 0 :: non_neg_integer(), others_handled = 0 :: non_neg_integer(),
                giving = #{} :: #{reference() => {pid(), weir_owner_core:giving()}}}).

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
    case weir_roster:owners() of
        {{}, {}} ->
            #{};
        {Nodes, Names} ->
            {First, Second} = weir_nif:owner_rank(KeyHash, Nodes),
            maps:from_list([{owner, element(First, Names)}] ++ [{second, element(Second, Names)} || Second > 0])
    end.

%% That share the keys out, as this node sees it.
-spec sharing() -> [node()].
sharing() ->
    {_, Names} = weir_roster:owners(),
    tuple_to_list(Names).

%% ---- callbacks ----

-spec init([]) -> {ok, #state{}}.
init([]) ->
    _ = process_flag(trap_exit, true),
    _ = process_flag(message_queue_data, off_heap),
    {ok, #{peer_timeout := Patience}} = weir_cluster_options:get(),
    _ = erlang:send_after(?TICK_MS, self(), tick),
    Core = weir_owner_core:new(#{node => node(), now => now_ms(), peer_timeout => Patience}),
    {ok, look(#state{core = Core, patience = Patience})}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {noreply, #state{}} | {noreply, #state{}, 0} | {reply, term(), #state{}}
                                                        | {reply, term(), #state{}, 0}.
handle_call(leave, From, State) ->
    more(step({leave, From, weir_roster:connected()}, State));
handle_call({weir_owner, 1, Node, What}, From, State) ->
    case is_atom(Node) andalso (Node =:= node() orelse weir_roster:is_member(Node)) of
        true -> more(step({call, From, Node, What}, State));
        false -> reply(not_a_member, State)
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
    case is_atom(Node) andalso Node =/= node() andalso weir_roster:is_member(Node) of
        true -> more(step({member, Node, What}, looked(State)));
        false -> more(State)
    end;
handle_info(tick, State) ->
    _ = erlang:send_after(?TICK_MS, self(), tick),
    Looked = looked(State),
    more(step({tick, seen(Looked)}, Looked));
handle_info(again, State) ->
    more(step(again, State));
handle_info({'DOWN', Monitor, process, _, Reason}, #state{giving = Giving} = State) when is_map_key(Monitor, Giving) ->
    {{_, What}, Rest} = maps:take(Monitor, Giving),
    more(step({gave, What, Reason}, State#state{giving = Rest}));
handle_info({'DOWN', Monitor, process, {?MODULE, Node}, _}, #state{monitors = Monitors} = State) ->
    case Monitors of
        #{Node := Monitor} -> more(step({down, Node}, State));
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

%% What other nodes have decided by now reaches those who asked: it is counted there.
-spec terminate(term(), #state{}) -> ok.
terminate(_Reason, State) ->
    finish(State, now_ms() + ?FINISH_MS).

finish(#state{core = Core} = State, Until) ->
    case weir_owner_core:counts(Core) of
        #{sent := Sent} when map_size(Sent) =:= 0 ->
            ok;
        #{} ->
            receive {weir_owner, 1, Node, {answers, _, _} = Answers} -> finish(step({member, Node, Answers}, State), Until)
            after max(0, Until - now_ms()) -> ok
            end
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
gathered(State) ->
    State.

decide(#state{asks = Asks} = State) ->
    {Batch, Rest} = split(lists:reverse(Asks)),
    Taken = looked(State#state{asks = lists:reverse(Rest), count = length(Rest), others_handled = 0}),
    {message_queue_len, Length} = process_info(self(), message_queue_len),
    step({decide, Batch, Length}, Taken).

split(Asks) when length(Asks) > ?BATCH -> lists:split(?BATCH, Asks);
split(Asks) -> {Asks, []}.

%% ---- steps ----

step(Message, #state{core = Core} = State) ->
    {New, Effects} = weir_owner_core:handle(Message, now_ms(), Core),
    lists:foldl(fun execute/2, State#state{core = New}, Effects).

look(State) ->
    step({look, weir_roster:connected()}, State).

looked(#state{core = Core} = State) ->
    case weir_owner_core:held_up(now_ms(), Core) andalso weir_roster:left() =/= stop of
        true -> look(State);
        false -> State
    end.

execute(look, State) ->
    look(State);
execute({say, Node, What}, State) ->
    _ = say(Node, What),
    State;
execute({reply, From, Reply}, State) ->
    ok = gen_server:reply(From, Reply),
    State;
execute({answer, {Alias, {Place, _, _, _, _}}, Outcome}, State) ->
    Alias ! {Alias, Place, Outcome},
    State;
execute({ask, Node, Batch, Items}, State) ->
    Since = {weir_nif:owner_stamp(), weir_clock:now()},
    case say(Node, {asks, Batch, Items}) of
        ok ->
            ok = weir_roster:count_owned(asked, length(Items)),
            step({sent, Batch, Since}, State);
        _ ->
            step({sent, Batch, failed}, State)
    end;
execute({decide, {own, _} = Whose, Items, Nodes, Place}, State) ->
    {Outcomes, Told} = weir_nif:owner_decide(Items, Nodes, Place),
    step({decided, Whose, Outcomes, Told}, State);
execute({decide, Whose, Items, Nodes, Place}, State) ->
    %% (Another node's may be malformed: nothing of such a batch is decided.)
    try weir_nif:owner_decide(Items, Nodes, Place) of
        {Outcomes, Told} -> step({decided, Whose, Outcomes, Told}, State)
    catch error:badarg -> State
    end;
execute({raise, Levels}, State) ->
    ok = weir_nif:owner_raise(Levels),
    State;
execute({learn, Told, {Stamp, SentNs}}, State) ->
    ok = weir_nif:owner_learn(Told, Stamp, SentNs),
    State;
execute({forget, What}, State) ->
    ok = weir_nif:owner_forget(What),
    State;
execute({sharing, Nodes, Names}, State) ->
    ok = weir_roster:set_owners(Nodes, Names),
    State;
execute({count, What, Count}, State) ->
    ok = weir_roster:count_owned(What, Count),
    State;
execute({again, Asked}, #state{asks = Asks, count = Count} = State) ->
    State#state{asks = Asks ++ Asked, count = Count + length(Asked)};
execute({again_in, Ms}, State) ->
    _ = erlang:send_after(Ms, self(), again),
    State;
execute({monitor, Node}, #state{monitors = Monitors} = State) ->
    State#state{monitors = Monitors#{Node => erlang:monitor(process, {?MODULE, Node})}};
execute({demonitor, Node}, #state{monitors = Monitors} = State) ->
    {Monitor, Rest} = maps:take(Node, Monitors),
    true = erlang:demonitor(Monitor, [flush]),
    State#state{monitors = Rest};
execute({give, What, To, Nodes, Names, Scans, Last}, #state{giving = Giving} = State) ->
    Self = weir_roster_core:id(node()),
    Scan = fun() -> [{element(Place, Names), Levels}
                     || {How, Changed} <- Scans, {Place, Levels} <- weir_nif:owner_levels(Nodes, Self, Changed, How)] end,
    {Pid, Monitor} = weir_handover:start(To, Scan, Last),
    State#state{giving = Giving#{Monitor => {Pid, What}}};
execute({stop_giving, What}, #state{giving = Giving} = State) ->
    Over = [{Monitor, Pid} || {Monitor, {Pid, Is}} <- maps:to_list(Giving), Is =:= What],
    _ = [true = erlang:demonitor(Monitor, [flush]) andalso exit(Pid, kill) || {Monitor, Pid} <- Over],
    State#state{giving = maps:without([Monitor || {Monitor, _} <- Over], Giving)};
execute({not_told, {How, Node}, Reason}, State) ->
    ?LOG_NOTICE(#{what => levels_not_told, because_of => {How, Node}, why => Reason}),
    State.

%% Another node may be slow to read; this process isn't made to wait for it.
say(Node, What) ->
    erlang:send({?MODULE, Node}, {?MODULE, 1, node(), What}, [nosuspend, noconnect]).

seen(#state{patience = Patience}) ->
    Connected = weir_roster:connected(),
    #{node => node(), connected => Connected, unheard => unheard(Connected, Patience), left => weir_roster:left()}.

%% Of whom nothing came for so long, by the frames that weir_replica gets.
unheard(Nodes, Patience) ->
    Traffic = weir_traffic:all(),
    Now = weir_clock:now(),
    [Node || Node <- Nodes, Now - maps:get(heard_ns, maps:get(Node, Traffic, #{heard_ns => 0})) > Patience * 1000000].

now_ms() ->
    erlang:monotonic_time(millisecond).
