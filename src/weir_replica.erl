%% @private
%% @doc Runs this node's machine: brings it births, frames and time, and carries out what it answers.
%%
%% ```
%% weir_nif's rings --- weir_births -->  +--------------+  --- frames -->  weir_peer, one a node
%% other nodes ------- weir_frame ---->  | weir_replica |
%% weir_members -- registered, ... --->  +--------------+  --- answers ->  who asks first (large_hits => claim)
%% '''
%%
%% It waits for nobody but weir_members, when it starts. The machine is attached to the node's tables and outlives this process:
%% while it is down decisions go on, and births wait in the rings.
%%
%% Frames are gathered until the mailbox is empty, another message comes, or they are enough (`?BATCH', `?BATCH_BYTES'); then the
%% machine takes them in one step, or in a few that are short. So the order of all that a node says is kept.
%%
%% The rest waits in the mailbox. Past `?MAX_QUEUE' messages those of data are dropped and counted as shed, past twice as many all
%% frames, until half of it is left: the machines repair what is missing.
-module(weir_replica).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, registered/1, unregistered/1, renew/0, put_limiter/1, drain/1, push/0, ask/4, reset/4, stop/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(MAX_QUEUE, 10000).
-define(BATCH, 256).
-define(BATCH_BYTES, 65536).
%% Messages between two looks at the queue's length.
-define(LOOK_EVERY, 64).
%% The machine is looked after at least this often, also when time was stopped or moved by a test.
-define(MAX_SLEEP_MS, 500).
-define(CALL_MS, 5000).
%% Between two looks at what was lost, of which the log tells.
-define(LOSSES_MS, 10000).

%% What a frame must show to be taken for one of its sender: nothing, under protocol 1; what this node told the sender and nobody else;
%% or whatever it shows it isn't, as its sender wasn't accepted as a member.
-type door() :: open | closed | <<_:64>>.

-record(state, {machine :: weir_machine:machine(), self = weir_roster_core:id(node()) :: weir_roster_core:id(),
                peers = #{} :: #{weir_roster_core:id() => {node(), pid()}}, doors = #{} :: #{weir_roster_core:id() => door()},
                %% Gathered, the last one first.
                frames = [] :: [{weir_machine:node_id(), binary()}], count = 0 :: non_neg_integer(), bytes = 0 :: non_neg_integer(),
                timer = none :: none | {soon | reference(), AtNs :: integer()},
                ticket = 1 :: pos_integer(), asked = #{} :: #{Ticket :: pos_integer() => gen_server:from()},
                handled = 0 :: non_neg_integer(), shed = none :: none | data | all,
                lost = #{} :: #{atom() => non_neg_integer()}}).

-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% A node belongs to the cluster from now on; said again, it does no harm.
-spec registered(node()) -> ok.
registered(Node) ->
    gen_server:cast(?MODULE, {registered, Node}).

-spec unregistered(node()) -> ok.
unregistered(Node) ->
    gen_server:cast(?MODULE, {unregistered, Node}).

%% This node may have another incarnation now: then the machine starts again, and copies the others' state. Else it only sees to it
%% that it has the members that there are.
-spec renew() -> ok.
renew() ->
    gen_server:cast(?MODULE, renew).

%% The limiter of that name, as it stands in the registry, or is gone from there. When this process is down it will look there
%% itself.
-spec put_limiter(binary()) -> ok.
put_limiter(Name) ->
    try gen_server:call(?MODULE, {limiter, Name}, ?CALL_MS)
    catch exit:_ -> ok
    end.

%% Sends what the others don't know, and waits until it is on its way: for so long at most.
-spec drain(pos_integer()) -> ok.
drain(Timeout) ->
    try gen_server:call(?MODULE, drain, Timeout) of
        Peers ->
            Until = erlang:monotonic_time(millisecond) + Timeout,
            _ = [weir_peer:flush(Peer, max(0, Until - erlang:monotonic_time(millisecond))) || Peer <- Peers],
            ok
    catch exit:_ -> ok
    end.

%% Sends what the others don't know, and doesn't wait.
-spec push() -> ok.
push() ->
    gen_server:cast(?MODULE, push).

%% Asks the other nodes before so many hits are admitted; `unknown' if that takes longer.
-spec ask(pos_integer(), weir_machine:key_hash(), pos_integer(), TimeoutMs :: pos_integer()) -> boolean() | unknown.
ask(Limiter, KeyHash, Hits, Timeout) ->
    try gen_server:call(?MODULE, {ask, Limiter, KeyHash, Hits}, Timeout)
    catch exit:_ -> unknown
    end.

%% Births of the key before that time count no more, here and on all nodes. When this returns `ok', no check here counts
%% them; elsewhere neither, if the others answer in WaitMs. The machine makes a record of it, which reaches those that are
%% away or are not told here later. The message is what nodes of before such records go by, and what is waited for.
-spec reset(pos_integer(), weir_machine:key_hash(), TimeNs :: non_neg_integer(), WaitMs :: non_neg_integer()) ->
          ok | {error, too_many_resets | unavailable}.
reset(Limiter, KeyHash, Time, WaitMs) ->
    try gen_server:call(?MODULE, {reset, Limiter, KeyHash, Time}, ?CALL_MS) of
        true -> tell_reset({weir_reset, 1, Limiter, KeyHash, Time}, WaitMs);
        false -> {error, too_many_resets};
        unknown -> {error, unavailable}
    catch exit:_ -> {error, unavailable}
    end.

tell_reset(Reset, WaitMs) ->
    _ = case {weir_roster:connected(), WaitMs} of
            {[], _} -> ok;
            {Nodes, 0} -> [erlang:send({?MODULE, Node}, Reset, [nosuspend, noconnect]) || Node <- Nodes];
            {Nodes, _} -> gen_server:multi_call(Nodes, ?MODULE, Reset, WaitMs)
        end,
    ok.

%% For the end of the application: the tables are this node's own again.
-spec stop() -> ok.
stop() ->
    case weir_machine:attached() of
        {ok, _} -> weir_machine:detach();
        none -> ok
    end.

%% ---- callbacks ----

-spec init([]) -> {ok, #state{}}.
init([]) ->
    _ = process_flag(trap_exit, true),
    _ = process_flag(message_queue_data, off_heap),
    %% Births wait in rings that a busy node fills in milliseconds: in the queue of the runnable, this process goes first.
    _ = process_flag(priority, high),
    _ = erlang:send_after(?LOSSES_MS, self(), losses),
    #{incarnation := Incarnation, joining := Joining} = weir_roster:await_start(),
    case {weir_machine:attached(), weir_roster:machine_run()} of
        {{ok, Machine}, Incarnation} -> {ok, taken(Machine, #{})};
        {_, none} -> {ok, made(Incarnation, Joining, #{})};
        {_, _} -> {ok, made(Incarnation, true, #{})}
    end.

%% Who asks at this moment gets no answer in time, and decides alone.
%%
%% What the machine before had not sent, the next one doesn't know: it is sent now, by the run that it belongs to. The senders stay,
%% so that it goes before what the next run says; but not under another name of this node.
renewed(Incarnation, #state{self = Self} = State) ->
    #state{peers = Peers} = Pushed = push(State),
    _ = cancel(Pushed),
    Kept = case weir_roster_core:id(node()) of
               Self -> Peers;
               _ ->
                   _ = [true = unlink(Peer) andalso exit(Peer, kill) || {_, Peer} <- maps:values(Peers)],
                   #{}
           end,
    made(Incarnation, true, Kept).

%% Limiters that change meanwhile are brought by the registry once the machine is attached, or found there after that.
made(Incarnation, Joining, Peers) ->
    Self = weir_roster_core:id(node()),
    {ok, Options} = weir_cluster_options:get(),
    Machine = weir_machine:new(maps:merge(weir_cluster_options:machine(Options),
                                          #{self => Self, members => [Self | [Id || {_, Id} <- weir_roster:others()]],
                                            incarnation => Incarnation, joining => Joining andalso weir_roster:others() =/= [],
                                            seed => Self, start => weir_clock:now()})),
    ok = weir_roster:set_machine_run(Incarnation),
    taken(Machine, Peers).

taken(Machine, Peers) ->
    State = #state{machine = Machine, peers = Peers},
    Limited = lists:foldl(fun put_limiter/2, State, weir_specs:entries()),
    ok = attach(Machine),
    Members = lists:foldl(fun({Node, _}, S) -> add(Node, S) end, Limited, weir_roster:others()),
    run(births, lists:foldl(fun put_limiter/2, Members, weir_specs:entries())).

%% A node without a name never has others: its births are nobody's business, and cost nothing. (When it gets one, a machine is
%% made anew.)
attach(Machine) ->
    case is_alive() of
        true -> weir_machine:attach(Machine, self());
        false -> ok
    end.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {noreply, #state{}}.
handle_call(Request, From, State) ->
    answer(Request, From, take(State)).

answer({ask, Limiter, KeyHash, Hits}, From, #state{ticket = Ticket, asked = Asked} = State) ->
    {noreply, run({ask, Ticket, Limiter, KeyHash, Hits}, State#state{ticket = Ticket + 1, asked = Asked#{Ticket => From}})};
answer({limiter, Name}, _From, State) ->
    {reply, ok, case weir_specs:entry(Name) of
                    none -> drop(weir_limiter:number(Name), State);
                    Entry -> put_limiter(Entry, State)
                end};
answer({reset, Limiter, KeyHash, Time}, _From, State) ->
    {Taken, Then} = take_reset(Limiter, KeyHash, Time, State),
    {reply, Taken, run(births, Then)};
answer({weir_reset, 1, _, _, _} = Reset, _From, State) ->
    {reply, ok, handle(Reset, State)};
answer(drain, _From, #state{peers = Peers} = State) ->
    {reply, [Peer || {_, Peer} <- maps:values(Peers)], push(State)};
answer(_, _From, State) ->
    {reply, unknown, State}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(Request, State) ->
    {noreply, do(Request, take(State))}.

do({registered, Node}, State) ->
    add(Node, State);
do({unregistered, Node}, State) ->
    remove(Node, State);
do(push, State) ->
    push(State);
do(renew, State) ->
    #{incarnation := Incarnation} = weir_roster:await_start(),
    case weir_roster:machine_run() of
        Incarnation -> reconciled(State);
        _ -> renewed(Incarnation, State)
    end;
do(_, State) ->
    State.

%% weir_members may have ended when it had changed its table, and hadn't said so.
reconciled(#state{peers = Peers} = State) ->
    Others = [Node || {Node, _} <- weir_roster:others()],
    Gone = [Node || {Node, _} <- maps:values(Peers)] -- Others,
    lists:foldl(fun add/2, lists:foldl(fun remove/2, State, Gone), Others).

-spec handle_info(term(), #state{}) -> {noreply, #state{}} | {noreply, #state{}, 0}.
handle_info(timeout, State) ->
    {noreply, take(State)};
handle_info({weir_frame, 1, From, Kind, Frame}, State) when is_binary(Frame) ->
    gather(look_at_queue(arrived(From, open, Kind, Frame, State)));
handle_info({weir_frame, 2, From, Token, Kind, Frame}, State) when is_binary(Token), is_binary(Frame) ->
    gather(look_at_queue(arrived(From, Token, Kind, Frame, State)));
handle_info(Message, State) ->
    {noreply, look_at_queue(handle(Message, take(State)))}.

handle({weir_reset, 1, Limiter, KeyHash, Time}, #state{machine = Machine} = State)
  when is_integer(Limiter), is_integer(KeyHash), is_integer(Time) ->
    %% What another node says may be out of range; then it resets nothing.
    _ = try weir_machine:reset(Machine, Limiter, KeyHash, Time, weir_clock:now(), told)
        catch error:badarg -> false
        end,
    run(births, State);
handle(weir_births, State) ->
    run(births, State);
handle(losses, #state{machine = Machine, lost = Before} = State) ->
    _ = erlang:send_after(?LOSSES_MS, self(), losses),
    State#state{lost = tell_losses(Before, maps:with(maps:keys(losses()), weir_machine:stats(Machine)))};
handle({timeout, Timer, wake}, #state{timer = {Timer, _}} = State) ->
    run(tick, State#state{timer = none});
handle({soon, At}, #state{timer = {soon, At}} = State) ->
    run(tick, max(At, weir_clock:now()), State#state{timer = none});
handle({'EXIT', Peer, _}, #state{peers = Peers} = State) ->
    _ = [self() ! {registered, Node} || {Node, Dead} <- maps:values(Peers), Dead =:= Peer],
    State#state{peers = maps:filter(fun(_, {_, Pid}) -> Pid =/= Peer end, Peers)};
handle({registered, Node}, State) ->
    case weir_roster:is_member(Node) of
        true -> add(Node, State);
        false -> State
    end;
handle(_, State) ->
    State.

arrived(From, Shown, Kind, Frame, #state{peers = Peers, doors = Doors} = State) ->
    case {Peers, Doors} of
        {#{From := {Node, _}}, #{From := Shown}} ->
            frame(Node, From, Kind, Frame, State);
        {#{From := {Node, _}}, _} ->
            ok = weir_traffic:count(Node, refused, 1),
            State;
        _ ->
            State
    end.

frame(Node, _From, Kind, Frame, #state{shed = Shed} = State) when Shed =:= all; Shed =:= Kind ->
    ok = weir_traffic:heard(Node, 1, byte_size(Frame), weir_clock:now()),
    ok = weir_traffic:count(Node, shed, 1),
    State;
frame(_Node, From, _Kind, Frame, #state{frames = Frames, count = Count, bytes = Bytes} = State) ->
    State#state{frames = [{From, Frame} | Frames], count = Count + 1, bytes = Bytes + byte_size(Frame)}.

%% ---- frames ----

gather(#state{count = Count, bytes = Bytes} = State) when Count >= ?BATCH; Bytes >= ?BATCH_BYTES -> {noreply, take(State)};
gather(#state{count = 0} = State) -> {noreply, State};
gather(State) -> {noreply, State, 0}.

%% What was gathered. (Nothing else has happened since: each sender is still there.)
take(#state{count = 0} = State) ->
    State;
take(#state{frames = Frames, peers = Peers} = State) ->
    Now = weir_clock:now(),
    _ = maps:foreach(fun(From, {Count, Bytes}) ->
                             {Node, _} = map_get(From, Peers),
                             ok = weir_traffic:heard(Node, Count, Bytes, Now)
                     end, heard(Frames, #{})),
    sleep(take(lists:reverse(Frames), State#state{frames = [], count = 0, bytes = 0})).

take([], State) ->
    State;
take(Frames, #state{machine = Machine} = State) ->
    {Effects, Left} = weir_machine:take(Machine, Frames, weir_clock:now()),
    take(Left, execute(Effects, State)).

heard([], Heard) ->
    Heard;
heard([{From, Frame} | Frames], Heard) ->
    {Count, Bytes} = maps:get(From, Heard, {0, 0}),
    heard(Frames, Heard#{From => {Count + 1, Bytes + byte_size(Frame)}}).

%% ---- members, limiters ----

add(Node, #state{peers = Peers, self = Self} = State) ->
    Id = weir_roster_core:id(Node),
    case Peers of
        #{Id := {_, Peer}} ->
            introduce(Node, Id, Peer, run({registered, Id}, State));
        #{} ->
            {ok, Peer} = weir_peer:start_link(Node, Self),
            introduce(Node, Id, Peer, run({registered, Id}, State#state{peers = Peers#{Id => {Node, Peer}}}))
    end.

%% As membership has it by now.
introduce(Node, Id, Peer, #state{doors = Doors} = State) ->
    {Incarnation, Terms} = weir_roster:terms(Node),
    ok = weir_peer:talk(Peer, Terms),
    Door = case Terms of
               none -> closed;
               #{protocol := 1} -> open;
               #{} -> weir_roster:token(Node)
           end,
    run({incarnation, Id, Incarnation}, State#state{doors = Doors#{Id => Door}}).

remove(Node, #state{peers = Peers, doors = Doors} = State) ->
    Id = weir_roster_core:id(Node),
    case maps:take(Id, Peers) of
        {{_, Peer}, Rest} ->
            true = unlink(Peer),
            true = exit(Peer, kill),
            run({unregistered, Id}, State#state{peers = Rest, doors = maps:remove(Id, Doors)});
        error ->
            run({unregistered, Id}, State)
    end.

put_limiter(Entry, #state{machine = Machine} = State) ->
    case weir_specs:replicated(Entry) of
        {Id, Terms} -> execute(weir_machine:put_limiter(Machine, Id, Terms, weir_clock:now()), State);
        none -> State
    end.

%% (The registry tells of a limiter a moment after it can be asked for.)
take_reset(Limiter, KeyHash, Time, #state{machine = Machine} = State) ->
    Reset = fun() -> weir_machine:reset(Machine, Limiter, KeyHash, Time, weir_clock:now(), own) end,
    case Reset() of
        unknown ->
            Put = lists:foldl(fun put_limiter/2, State, [Entry || {Name, _, _} = Entry <- weir_specs:entries(), weir_limiter:number(Name) =:= Limiter]),
            {Reset(), Put};
        Taken ->
            {Taken, State}
    end.

push(#state{machine = Machine} = State) ->
    execute(weir_machine:push(Machine, weir_clock:now()), run(births, State)).

drop(Id, #state{machine = Machine} = State) ->
    ok = weir_machine:drop_limiter(Machine, Id),
    State.

%% ---- steps ----

run(Event, State) ->
    run(Event, weir_clock:now(), State).

run(Event, Now, #state{machine = Machine} = State) ->
    sleep(execute(weir_machine:step(Machine, Event, Now), State)).

execute([], State) ->
    State;
execute([{send, To, Frame, Kind} | Effects], #state{peers = Peers} = State) ->
    ok = send(To, Frame, Kind, Peers),
    execute(Effects, State);
execute([{answer, Ticket, Allowed} | Effects], #state{asked = Asked} = State) ->
    case maps:take(Ticket, Asked) of
        {From, Rest} ->
            _ = gen_server:reply(From, Allowed),
            execute(Effects, State#state{asked = Rest});
        error ->
            execute(Effects, State)
    end.

send([], _Frame, _Kind, _Peers) ->
    ok;
send([To | Others], Frame, Kind, Peers) ->
    ok = send(To, Frame, Kind, Peers),
    send(Others, Frame, Kind, Peers);
send(To, Frame, Kind, Peers) ->
    case Peers of
        #{To := {_, Peer}} -> weir_peer:send(Peer, Kind, Frame);
        #{} -> ok
    end.

%% An early wake-up does no harm: the timer stays while it isn't later than what the machine wants.
%%
%% Timers count in milliseconds, and frames may be due sooner. Waited for like that they would be a millisecond or two late,
%% which costs at high rates; instead the machine's time goes ahead, by less than a millisecond.
sleep(#state{machine = Machine, timer = Timer} = State) ->
    Now = weir_clock:now(),
    At = min(weir_machine:wake(Machine), Now + ?MAX_SLEEP_MS * 1000000),
    case Timer of
        {_, Set} when Set =< At ->
            State;
        _ when At - Now < 1000000 ->
            _ = cancel(State),
            self() ! {soon, At},
            State#state{timer = {soon, At}};
        _ ->
            _ = cancel(State),
            State#state{timer = {erlang:start_timer((At - Now) div 1000000, self(), wake), At}}
    end.

cancel(#state{timer = {Timer, _}}) when is_reference(Timer) -> erlang:cancel_timer(Timer);
cancel(#state{}) -> ok.

%% ---- losses ----

%% What the operator should know of, by the machine's counter.
losses() ->
    #{copies_abandoned => <<"no other node gave a copy of its state: this one doesn't know what was admitted before it started. Are the others "
                            "starting as well, or is their clock or this one's wrong?">>,
      dropped => <<"a node was out of reach for so long that not all admissions could be kept for it: it admits more than it should once "
                   "it is back. See piece_keys and log_bytes in doc/cluster.md">>,
      lost_own_records => <<"admissions of this node went lost when it took another node's state: keys may be admitted more than they should">>}.

%% A new machine counts from 0.
tell_losses(Before, Now) ->
    _ = [?LOG_WARNING(#{what => births_lost, why => Why, counter => Name, count => map_get(Name, Now) - maps:get(Name, Before, 0)})
         || {Name, Why} <- maps:to_list(losses()), map_get(Name, Now) > maps:get(Name, Before, 0)],
    Now.

%% ---- floods ----

look_at_queue(#state{handled = Handled} = State) when Handled < ?LOOK_EVERY ->
    State#state{handled = Handled + 1};
look_at_queue(#state{shed = Before} = State) ->
    {message_queue_len, Length} = process_info(self(), message_queue_len),
    Shed = shed(Length, Before),
    Before =:= none andalso Shed =/= none andalso
        ?LOG_WARNING(#{what => frames_shed, why => <<"more frames come from the other nodes than this one can take">>,
                       waiting => Length}),
    State#state{handled = 0, shed = Shed}.

shed(Length, _) when Length > 2 * ?MAX_QUEUE -> all;
shed(Length, none) when Length > ?MAX_QUEUE -> data;
shed(Length, Before) when Length > ?MAX_QUEUE div 2 -> Before;
shed(_, _) -> none.
