%% @private
%% @doc Sends frames to one node, and never waits for it.
%%
%% The distribution suspends who sends to a node that doesn't read. This process alone meets that, and it isn't suspended: what
%% the node doesn't take stays in an outbox, and is offered again a few milliseconds later. One that is full loses its oldest
%% frames, counted as dropped; what is sent to a node without a connection is dropped at once. The machine repairs both.
%%
%% To a node that hasn't said hello, or is refused, it sends nothing: as if there were no connection.
%%
%% Of signs of life only the newest is kept, and it goes first: that others wait must not make this node look dead.
%%
%% It belongs to the weir_replica that started it, and ends with it.
-module(weir_peer).

-behaviour(gen_server).

-export([start_link/2, talk/2, send/3, flush/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([kind/0]).

-type kind() :: data | repair | heartbeat.

%% Of data, and as much of repair: a copy of the state comes as thousands of frames at once, and must not cost the data behind it.
-define(MAX_FRAMES, 16384).
-define(MAX_BYTES, 16777216).
%% Until a node that took nothing is offered it again.
-define(PAUSE_MS, 5).

-record(outbox, {frames = queue:new() :: queue:queue(binary()), count = 0 :: non_neg_integer(), bytes = 0 :: non_neg_integer()}).
-record(state, {node :: node(), self :: weir_roster_core:id(), terms = none :: none | weir_hello:terms(), heartbeat = none :: none | binary(),
                repair = #outbox{} :: #outbox{}, data = #outbox{} :: #outbox{}, timer = none :: none | reference(),
                flushing = [] :: [gen_server:from()]}).

%% Self is the number by which the other node knows this one.
-spec start_link(node(), weir_roster_core:id()) -> {ok, pid()} | {error, term()}.
start_link(Node, Self) ->
    gen_server:start_link(?MODULE, {Node, Self}, []).

%% Under which protocol it sends from now on, and with what in its frames.
-spec talk(pid(), none | weir_hello:terms()) -> ok.
talk(Peer, Terms) ->
    gen_server:cast(Peer, {talk, Terms}).

-spec send(pid(), kind(), binary()) -> ok.
send(Peer, Kind, Frame) ->
    gen_server:cast(Peer, {Kind, Frame}).

%% Waits until nothing is left to send.
-spec flush(pid(), timeout()) -> ok | timeout.
flush(Peer, Timeout) ->
    try gen_server:call(Peer, flush, Timeout)
    catch exit:_ -> timeout
    end.

%% ---- callbacks ----

-spec init({node(), weir_roster_core:id()}) -> {ok, #state{}}.
init({Node, Self}) ->
    _ = process_flag(message_queue_data, off_heap),
    {ok, #state{node = Node, self = Self}}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {noreply, #state{}} | {reply, unknown, #state{}}.
handle_call(flush, From, #state{flushing = Flushing} = State) ->
    {noreply, offer(State#state{flushing = [From | Flushing]})};
handle_call(_, _From, State) ->
    {reply, unknown, State}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({talk, Terms}, State) ->
    {noreply, State#state{terms = Terms}};
handle_cast({heartbeat, Frame}, State) ->
    {noreply, offer(State#state{heartbeat = Frame})};
handle_cast({data, Frame}, #state{node = Node, data = Data} = State) ->
    {noreply, offer(State#state{data = put(Frame, Data, Node)})};
handle_cast({repair, Frame}, #state{node = Node, repair = Repair} = State) ->
    {noreply, offer(State#state{repair = put(Frame, Repair, Node)})};
handle_cast(_, State) ->
    {noreply, State}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({timeout, Timer, again}, #state{timer = Timer} = State) ->
    {noreply, offer(State#state{timer = none})};
handle_info(_, State) ->
    {noreply, State}.

%% ---- internal ----

put(Frame, #outbox{frames = Frames, count = Count, bytes = Bytes}, Node) ->
    cut(#outbox{frames = queue:in(Frame, Frames), count = Count + 1, bytes = Bytes + byte_size(Frame)}, Node).

cut(#outbox{count = Count, bytes = Bytes} = Outbox, _Node) when Count =< ?MAX_FRAMES, Bytes =< ?MAX_BYTES ->
    Outbox;
cut(Outbox, Node) ->
    weir_traffic:count(Node, dropped, 1),
    cut(rest(Outbox), Node).

rest(#outbox{frames = Frames, count = Count, bytes = Bytes}) ->
    {{value, Frame}, Rest} = queue:out(Frames),
    #outbox{frames = Rest, count = Count - 1, bytes = Bytes - byte_size(Frame)}.

%% While a pause lasts, the node took nothing a moment ago.
offer(#state{timer = none} = State) ->
    offer_next(State);
offer(State) ->
    State.

offer_next(#state{heartbeat = Frame} = State) when Frame =/= none ->
    offer(heartbeat, Frame, State#state{heartbeat = none}, State);
offer_next(#state{repair = #outbox{count = Count} = Repair} = State) when Count > 0 ->
    offer(repair, queue:get(Repair#outbox.frames), State#state{repair = rest(Repair)}, State);
offer_next(#state{data = #outbox{count = Count} = Data} = State) when Count > 0 ->
    offer(data, queue:get(Data#outbox.frames), State#state{data = rest(Data)}, State);
offer_next(#state{flushing = Flushing} = State) ->
    _ = [gen_server:reply(From, ok) || From <- Flushing],
    State#state{flushing = []}.

offer(Kind, Frame, Sent, #state{node = Node} = State) ->
    case offered(Node, message(Kind, Frame, State)) of
        ok ->
            weir_traffic:count(Node, {sent, Kind}, byte_size(Frame)),
            offer_next(Sent);
        nosuspend ->
            State#state{timer = erlang:start_timer(?PAUSE_MS, self(), again)};
        noconnect ->
            #state{repair = #outbox{count = Repair}, data = #outbox{count = Data}} = State,
            _ = Repair + Data > 0 andalso weir_traffic:count(Node, dropped, Repair + Data),
            offer_next(State#state{heartbeat = none, repair = #outbox{}, data = #outbox{}})
    end.

offered(_Node, none) -> noconnect;
offered(Node, Message) -> erlang:send({weir_replica, Node}, Message, [nosuspend, noconnect]).

message(_Kind, _Frame, #state{terms = none}) -> none;
message(Kind, Frame, #state{terms = #{protocol := 1}, self = Self}) -> {weir_frame, 1, Self, Kind, Frame};
message(Kind, Frame, #state{terms = #{token := Token}, self = Self}) -> {weir_frame, 2, Self, Token, Kind, Frame}.
