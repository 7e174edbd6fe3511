%% @doc Which nodes limit together.
%%
%% The members are the nodes of the Erlang cluster that run weir under the same secret. When two nodes are connected, each says
%% hello to the other's process of this name (weir_hello says what); from then on both are <em>registered</em> with each other, and
%% stay so while they can't reach each other: until one leaves ({@link weir:leave/0}) or stops in order, is told to be gone
%% ({@link forget/1}), or was away for `forget_after'. Nodes that members name, and that this node hasn't met, count when enough
%% members do (weir_hearsay). Which of the registered nodes are <em>live</em>, the machine sees by their heartbeats.
%%
%% Refused, logged once, and named by {@link status/0} with what to do about it: nodes that speak no version of the protocol that
%% this node speaks, hold another secret, or have a number (a hash of the name) that another member has already. A member that is
%% refused stays registered, as one that is away: it may well go on limiting.
%%
%% Members that are away, and those that stopped, are connected to again and again (weir_connector). Nodes without weir don't answer,
%% and are left alone.
%%
%% <em>A rotation of the secret</em> ({@link weir:rotate_secret/0}) is asked for once all members have the next one. A node that
%% has switched says hello to all, so that those that missed it follow.
%%
%% <em>Incarnations</em>, one a start of weir, ascend also when the clock was set back: those that greet a node tell it the
%% highest that they know of it, and it takes a later one. The machine takes frames of no run that wasn't accepted here.
%%
%% The rules are weir_members_core's: this process brings it messages and what it sees, and executes what it answers. What must
%% outlive the process, and what others read without asking it, is in the table of weir_roster.
-module(weir_members).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([status/0, forget/1, node_id/1]).
-export([start_link/0, leave/1, traffic/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, format_status/1]).

-export_type([id/0, status/0, member/0]).

-type id() :: weir_roster_core:id().
-type ms() :: non_neg_integer().
%% `clock_offset_ns' is how far its clock is ahead of this node's, missing until it is measured; `quarantined' says that its births
%% are refused, as they lie too far in the future.
-type member() :: #{id := id(), state := connected | away, incarnation := non_neg_integer(), away_ms := ms(),
                    protocol := none | pos_integer(), quarantined := boolean(), clock_offset_ns => integer(),
                    round_trip_ns => integer()}.
%% `alone': this node has no name, or nobody else is there. `left': see weir:leave/0. `looked_for' are nodes that don't count: they
%% stopped in order, or too few members name them. `rotating_ms': for so long levels are still carried over from the secret before.
-type status() :: #{node := node(), state := starting | alone | member | left, incarnation := non_neg_integer(),
                    members := #{node() => member()}, looked_for := [node()], refused := #{node() => binary()}, rotating_ms := ms()}.

%% Until a hello is said again to a node that reads nothing.
-define(AGAIN_MS, 200).
-define(CHECK_MS, 1000).
%% Between two hellos to members, one after the other: what some have missed, as that a node left, reaches all. And as often to one
%% of those that are away though they are connected.
-define(GREET_MS, 5000).

-record(state, {core :: weir_members_core:state(), watched = #{} :: #{node() => reference()}}).

%% @doc How membership stands, as this node sees it.
-spec status() -> status().
status() ->
    Now = erlang:monotonic_time(millisecond),
    Members = maps:from_list([{Node, about(Member, Now)} || #{node := Node} = Member <- weir_roster:members()]),
    #{node => node(), state => state_of(weir_roster:phase(), map_size(Members)), incarnation => weir_roster:incarnation(), members => Members,
      looked_for => weir_roster:looked_for() -- maps:keys(Members), refused => refused(), rotating_ms => weir_secret:rotation_left_ms()}.

about(#{id := Id, incarnation := Incarnation, away_since := Since, terms := Terms}, Now) ->
    maps:merge(weir_machine:peer(Id), #{id => Id, state => state(Since), incarnation => Incarnation, away_ms => away(Since, Now),
                                       protocol => protocol(Terms)}).

state_of(ready, 0) -> alone;
state_of(ready, _) -> member;
state_of(Phase, _) -> Phase.

state(none) -> connected;
state(_) -> away.

away(none, _Now) -> 0;
away(Since, Now) -> max(0, Now - Since).

protocol(none) -> none;
protocol(#{protocol := Protocol}) -> Protocol.

refused() ->
    maps:map(fun(_, Reason) -> weir_hello:text(Reason) end, weir_roster:refused()).

%% @doc Tells all members that a node is gone for good, for one that could not do so itself ({@link weir:leave/0}): it counts no more.
%% If it comes back after all, it is a member again. The node is one that is registered, and away.
-spec forget(node()) -> ok | {error, connected | unknown}.
forget(Node) ->
    gen_server:call(?MODULE, {forget, Node}, infinity).

%% @doc The number by which the machines know a node: a hash of its name's text. (That of an atom is the VM's own, under which of
%% 4000 host names that differ in two letters 1000 are left.)
-spec node_id(node()) -> id().
node_id(Node) ->
    weir_roster_core:id(Node).

%% @private
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @private
%% @doc Sends the others what they don't know of this node's births, and tells them to do without it. After a `bye' they forget it,
%% after a `stop' they look for it. It takes `DrainMs' at most for each of the two things that are sent.
-spec leave(bye | {stop, DrainMs :: pos_integer()}) -> ok.
leave(How) ->
    gen_server:call(?MODULE, {leave, How}, infinity).

%% @private
-spec traffic() -> #{node() => #{atom() => non_neg_integer()}}.
traffic() ->
    weir_traffic:all().

%% ---- callbacks ----

%% @private
-spec init([]) -> {ok, #state{}}.
init([]) ->
    ok = net_kernel:monitor_nodes(true),
    _ = erlang:send_after(?CHECK_MS, self(), check),
    _ = erlang:send_after(?GREET_MS, self(), greet),
    {ok, #{forget_after := Ms}} = weir_cluster_options:get(),
    {ok, step(start, #state{core = weir_members_core:new(weir_roster:rows(), #{forget_after => Ms})})}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {noreply, #state{}}.
handle_call(Request, From, #state{} = State) ->
    {noreply, step({call, From, Request}, State)}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({?MODULE, Envelope, Kind, #{} = Told}, #state{core = Core} = State) ->
    Next = case weir_members_core:reads_next(Told, Core) andalso weir_secret:next() of
               {ok, Id} -> Id;
               _ -> none
           end,
    {noreply, step({told, Kind, Envelope, Told, Next}, State)};
handle_info({'DOWN', Monitor, process, {?MODULE, Node}, _}, #state{watched = Watched} = State) ->
    case Watched of
        #{Node := Monitor} -> {noreply, step({down, Node}, State#state{watched = maps:remove(Node, Watched)})};
        #{} -> {noreply, State}
    end;
handle_info({nodeup, Node}, State) ->
    {noreply, step({nodeup, Node}, State)};
handle_info({hello, Node}, State) ->
    {noreply, step({hello, Node}, State)};
handle_info(After, State) when After =:= started; After =:= introduced ->
    {noreply, step(After, State)};
handle_info(greet, State) ->
    _ = erlang:send_after(?GREET_MS, self(), greet),
    {noreply, step(greet, State)};
handle_info(check, State) ->
    _ = erlang:send_after(?CHECK_MS, self(), check),
    Checked = step(check, State),
    _ = [weir_traffic:forget(Node) || Node <- maps:keys(traffic()), not weir_roster:is_member(Node)],
    {noreply, Checked};
handle_info(_, State) ->
    {noreply, State}.

%% @private
-spec format_status(gen_server:format_status()) -> gen_server:format_status().
format_status(Status) ->
    maps:map(fun(state, #state{core = Core} = State) -> State#state{core = weir_members_core:shown(Core)};
                (_, Value) -> Value
             end, Status).

%% ---- steps ----

step(Message, #state{core = Core} = State) ->
    Seen = #{now => erlang:monotonic_time(millisecond), clock => erlang:system_time(millisecond), node => node(), up => nodes()},
    {New, Effects} = weir_members_core:handle(Message, Seen, Core),
    lists:foldl(fun execute/2, State#state{core = New}, Effects).

execute({call, From, Request}, State) ->
    step({call, From, Request}, State);
execute({switch, Id, Force, Then}, State) ->
    step({switched, Id, weir_secret:rotate(Id, Force), Then}, State);
%% The process of this name there. (There is a connection: the monitor doesn't wait for one.)
execute({watch, Node}, #state{watched = Watched} = State) ->
    State#state{watched = Watched#{Node => erlang:monitor(process, {?MODULE, Node})}};
execute(Effect, State) ->
    ok = do(Effect),
    State.

do({put, Rows}) -> weir_roster:put(Rows);
do({delete, Key}) -> weir_roster:delete(Key);
do({say, Kind, Node, Told}) -> say(Kind, Node, Told);
do({welcome, Node, Told}) -> say(welcome, Node, Told#{limiters => weir_specs:entries()});
do({reply, From, Reply}) -> gen_server:reply(From, Reply);
do({ready, From, Id, Force}) -> gen_server:reply(From, weir_secret:ready(Id, Force));
do({registered, Node}) -> weir_replica:registered(Node);
do({unregistered, Node}) -> weir_replica:unregistered(Node);
do(renew) -> weir_replica:renew();
do(push) -> weir_replica:push();
do({drain, Ms}) ->
    ok = weir_owner:leave(Ms),
    weir_replica:drain(Ms);
do({joined, Node}) -> weir_registry:joined(Node);
do({forget_traffic, Node}) -> weir_traffic:forget(Node);
do({later, Ms, Message}) ->
    _ = erlang:send_after(Ms, self(), Message),
    ok;
do({log, notice, Report}) -> ?LOG_NOTICE(Report);
do({log, error, Report}) -> ?LOG_ERROR(Report).

%% Another node may be slow to read; this process isn't made to wait for it.
say(Kind, Node, Told) ->
    Message = {?MODULE, weir_hello:envelope(), Kind, Told#{token => weir_roster:token(Node)}},
    case erlang:send({?MODULE, Node}, Message, [nosuspend, noconnect]) of
        nosuspend ->
            _ = erlang:send_after(?AGAIN_MS, self(), {hello, Node}),
            ok;
        _ ->
            ok
    end.
