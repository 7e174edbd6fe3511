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
%% highest that they know of it. The machine takes frames of no run that wasn't accepted here.
%%
%% What must outlive this process is in a table of the supervisor's.
-module(weir_members).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([status/0, forget/1, node_id/1]).
-export([start_link/0, make_table/1, start/0, take_limiters/0, machine/0, machine/1]).
-export([others/0, connected/0, away/0, looked_for/0, is_member/1, terms/1, token/1]).
-export([leave/1, has_left/0, phase/0, ready_since/0, ready/0, traffic/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([id/0, status/0, member/0]).

-type id() :: 0..16#ffffffff.
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

%% How long a start waits for the answers of nodes that run weir, as far as one can see.
-define(START_MS, 1000).
%% Until a hello is said again to a node that reads nothing.
-define(AGAIN_MS, 200).
-define(CHECK_MS, 1000).
%% Between two hellos to a member, one drawn by chance: what some have missed, as that a node left, reaches all. And to one of
%% those that are away though they are connected.
-define(GREET_MS, 5000).
%% How long a node's leaving is remembered, so that nobody who missed it brings the node back; and of how many, the last.
-define(KEEP_LEFT_MS, 86400000).
-define(MAX_LEFT, 1024).
%% For so long a node that stopped in order goes on counting: it may only be started again, and its last records are still handed on.
%% Two members see its end at the same time, but for less.
-define(STOPPED_MS, 5000).
-define(DRAIN_MS, 3000).
-define(MAX_MEMBERS, 4096).
-define(MAX_INCARNATION, (1 bsl 62)).

%% `away_since' is monotonic milliseconds, `none' while the node is connected and runs weir. Of those that are `met' or `confirmed'
%% (by members) or `stopping' the table has also a row {id, Id}: they are registered. `heard' and `stopped' are only looked for.
-record(member, {node :: node(), id :: id(), standing = met :: met | confirmed | heard | stopping | stopped,
                 incarnation = 0 :: non_neg_integer(), away_since = none :: none | integer(),
                 terms = none :: none | weir_hello:terms()}).

%% `awaited' are the nodes whose answer the start waits for, `asked' who waits for its end.
-record(state, {phase = starting :: starting | ready | left, awaited = #{} :: #{node() => true}, asked = [] :: [term()],
                highest = 0 :: non_neg_integer(), joining = false :: boolean(), limiters = [] :: [term()],
                watched = #{} :: #{node() => reference()}, monitors = #{} :: #{reference() => node()},
                hearsay = weir_hearsay:new() :: weir_hearsay:hearsay()}).

%% @doc How membership stands, as this node sees it.
-spec status() -> status().
status() ->
    Now = erlang:monotonic_time(millisecond),
    Members = maps:from_list([{Member#member.node, about(Member, Now)} || Member <- counted()]),
    #{node => node(), state => state_of(phase(), map_size(Members)), incarnation => own(incarnation, 0), members => Members,
      looked_for => looked_for() -- maps:keys(Members), refused => refused(), rotating_ms => weir_secret:rotation_left_ms()}.

about(#member{id = Id, incarnation = Incarnation, away_since = Since, terms = Terms}, Now) ->
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
    maps:from_list([{Node, weir_hello:text(Reason)} || [Node, Reason] <- match({{refused, '$1'}, '$2'})]).

%% @doc Tells all members that a node is gone for good, for one that could not do so itself ({@link weir:leave/0}): it counts no more.
%% If it comes back after all, it is a member again. The node is one that is registered, and away.
-spec forget(node()) -> ok | {error, connected | unknown}.
forget(Node) ->
    gen_server:call(?MODULE, {forget, Node}, infinity).

%% @doc The number by which the machines know a node: a hash of its name's text. (That of an atom is the VM's own, under which of
%% 4000 host names that differ in two letters 1000 are left.)
-spec node_id(node()) -> id().
node_id(Node) ->
    erlang:phash2(atom_to_binary(Node), 1 bsl 32).

%% @private
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @private
%% @doc The table belongs to the caller. The id of the secret is in a fun, so that it is in no log.
-spec make_table(fun(() -> weir_secret:id())) -> ok.
make_table(SecretId) ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}, {read_concurrency, true}]),
    true = ets:insert(?MODULE, [{secret, SecretId()}, {before, none}, {phase, starting}, {node, node()},
                                {tokens, crypto:strong_rand_bytes(16)},
                                {readiness, {starting, erlang:monotonic_time(millisecond)}}]),
    ok.

%% @private
%% @doc This node's incarnation, and whether it is to copy the others' state. Waits for the others' answers, a second at most.
-spec start() -> #{incarnation := pos_integer(), joining := boolean()}.
start() ->
    try gen_server:call(?MODULE, start, infinity)
    catch exit:{noproc, _} -> #{incarnation => own(incarnation, 1), joining => true}
    end.

%% @private
%% @doc What the others told of limiters when this node started; once.
-spec take_limiters() -> [weir_registry:entry()].
take_limiters() ->
    try gen_server:call(?MODULE, take_limiters, infinity)
    catch exit:{noproc, _} -> []
    end.

%% @private
%% @doc The other nodes that are registered, connected or not.
-spec others() -> [{node(), id()}].
others() ->
    [{Node, Id} || #member{node = Node, id = Id} <- counted()].

%% @private
-spec connected() -> [node()].
connected() ->
    [Node || #member{node = Node, away_since = none} <- counted()].

%% @private
-spec away() -> [node()].
away() ->
    [Node || #member{node = Node, away_since = Since} <- counted(), Since =/= none].

%% @private
%% @doc The nodes that this one wants to be connected to.
-spec looked_for() -> [node()].
looked_for() ->
    [Node || own(phase, starting) =/= left, #member{node = Node} <- rows()].

%% @private
-spec is_member(node()) -> boolean().
is_member(Node) ->
    is_registered(lookup(Node)).

%% @private
%% @doc How to talk to a member, and the run of it that was accepted; `none' of one that hasn't said hello, or is refused.
-spec terms(node()) -> {Incarnation :: non_neg_integer(), weir_hello:terms() | none}.
terms(Node) ->
    case lookup(Node) of
        #member{incarnation = Incarnation, terms = Terms} -> {Incarnation, Terms};
        none -> {0, none}
    end.

%% @private
%% @doc What a node has to put into its frames for this one, to be known by.
-spec token(node()) -> <<_:64>>.
token(Node) ->
    <<Token:8/binary, _/binary>> = crypto:mac(hmac, sha256, own(tokens, <<>>), atom_to_binary(Node)),
    Token.

%% @private
%% @doc The incarnation that the machine was made with.
-spec machine() -> none | pos_integer().
machine() ->
    own(machine, none).

%% @private
-spec machine(pos_integer()) -> ok.
machine(Incarnation) ->
    true = ets:insert(?MODULE, {machine, Incarnation}),
    ok.

%% @private
-spec phase() -> starting | ready | left.
phase() ->
    own(phase, starting).

%% @private
%% @doc See weir_ready. (Before weir has started, and after: it starts.)
-spec ready_since() -> {ready | starting, MonotonicMs :: integer()}.
ready_since() ->
    own(readiness, {starting, erlang:monotonic_time(millisecond)}).

%% @private
-spec ready() -> ok.
ready() ->
    _ = try ets:insert(?MODULE, {readiness, {ready, erlang:monotonic_time(millisecond)}})
        catch error:badarg -> stopping
        end,
    ok.

%% @private
%% @doc Sends the others what they don't know of this node's births, and tells them to do without it. After a `bye' they forget it,
%% after a `stop' they look for it. It takes `DrainMs' at most for each of the two things that are sent.
-spec leave(bye | {stop, DrainMs :: pos_integer()}) -> ok.
leave(How) ->
    gen_server:call(?MODULE, {leave, How}, infinity).

%% @private
-spec has_left() -> boolean().
has_left() ->
    phase() =:= left.

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
    Nodes = nodes(),
    State = lists:foldl(fun watch/2, #state{phase = phase()}, Nodes),
    case State#state.phase of
        starting ->
            _ = erlang:send_after(?START_MS, self(), started),
            {ok, started(say_hello(Nodes, State#state{awaited = maps:from_list([{Node, true} || Node <- Nodes])}))};
        _ ->
            %% (The process before may have ended when it had taken another run, and hadn't said so.)
            ok = weir_replica:renew(),
            {ok, missed(say_hello(Nodes, State))}
    end.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {noreply, #state{}}.
handle_call(Request, From, #state{phase = Phase, awaited = Awaited, asked = Asked} = State)
  when Phase =:= starting; map_size(Awaited) > 0 ->
    {noreply, State#state{asked = [{Request, From} | Asked]}};
handle_call(Request, _From, State) ->
    {Reply, New} = answer(Request, State),
    {reply, Reply, New}.

answer(start, #state{joining = Joining} = State) ->
    {#{incarnation => own(incarnation, 1), joining => Joining}, State};
answer({leave, How}, State) ->
    {ok, left(How, State)};
answer({forget, Node}, State) ->
    case lookup(Node) of
        #member{away_since = none} -> {{error, connected}, State};
        #member{incarnation = Incarnation} ->
            {ok, say_hello(connected(), remove(Node, remember_left(Node, Incarnation, State)))};
        none -> {{error, unknown}, State}
    end;
answer(take_limiters, #state{limiters = Limiters} = State) ->
    {Limiters, State#state{limiters = []}};
answer({rotation, 1, What, Id}, State) ->
    rotated(What, Id, false, State);
answer({rotation, 1, What, Id, force}, State) ->
    rotated(What, Id, true, State);
answer(_, State) ->
    {unknown, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({?MODULE, Envelope, Kind, #{node := Node} = Told}, #state{phase = Phase} = State)
  when is_atom(Node), Node =/= node(), Phase =/= left ->
    {noreply, told(Kind, Node, weir_hello:terms(Envelope, Told), Told, State)};
handle_info({nodeup, Node}, State) ->
    {noreply, say_hello([Node], watch(Node, named(State)))};
handle_info({'DOWN', Monitor, process, _, _}, State) ->
    {noreply, down(Monitor, State)};
handle_info(started, #state{phase = starting} = State) ->
    {noreply, started(State#state{awaited = #{}})};
handle_info(introduced, State) ->
    {noreply, introduced(State#state{awaited = #{}})};
handle_info({hello, Node}, State) ->
    {noreply, say_hello([Node], State)};
handle_info(greet, State) ->
    _ = erlang:send_after(?GREET_MS, self(), greet),
    {noreply, say_hello(one_of(connected()) ++ one_of(silent()), State)};
handle_info(check, State) ->
    _ = erlang:send_after(?CHECK_MS, self(), check),
    {noreply, check(missed(named(State)))};
handle_info(_, State) ->
    {noreply, State}.

%% Members that are away though there is a connection: weir has ended there, or one of the two missed the other's hello.
silent() ->
    Up = maps:from_list([{Node, up} || Node <- nodes()]),
    [Node || Node <- away(), is_map_key(Node, Up)].

one_of([]) -> [];
one_of(Nodes) -> [lists:nth(rand:uniform(length(Nodes)), Nodes)].

%% ---- the start ----

%% Over when all answered who can.
started(#state{phase = starting, awaited = Awaited, highest = Highest} = State) when map_size(Awaited) =:= 0 ->
    true = ets:insert(?MODULE, [{incarnation, max(erlang:system_time(millisecond), Highest + 1)}, {phase, ready}]),
    _ = erlang:send_after(?START_MS, self(), introduced),
    introduced(say_hello(nodes(), confirm(State#state{phase = ready, awaited = maps:from_list([{Node, true} || Node <- connected()])})));
started(State) ->
    State.

%% All know this run that can: its first frames ask for a copy, and would be refused by those that haven't heard of it.
introduced(#state{phase = ready, awaited = Awaited, asked = Asked} = State) when map_size(Awaited) =:= 0 ->
    lists:foldr(fun({Request, From}, Now) ->
                        {Reply, Then} = answer(Request, Now),
                        _ = gen_server:reply(From, Reply),
                        Then
                end, State#state{asked = []}, Asked);
introduced(State) ->
    State.

%% A node may get its name after weir was started. To the others it is another then.
named(#state{phase = ready} = State) ->
    case own(node, node()) of
        Node when Node =:= node() ->
            State;
        _ ->
            true = ets:insert(?MODULE, [{node, node()}, {incarnation, own(incarnation, 0) + 1}]),
            ok = weir_replica:renew(),
            State
    end;
named(State) ->
    State.

%% ---- hello ----

say_hello(_Nodes, #state{phase = left} = State) ->
    State;
say_hello([], State) ->
    State;
say_hello(Nodes, State) ->
    Told = about_all(),
    _ = [say(hello, Node, Told) || Node <- Nodes],
    State.

%% What all are told alike. Members are named with how long they have been away: what all know only from each other is to be forgotten
%% all the same.
about_all() ->
    Now = erlang:monotonic_time(millisecond),
    Rows = rows(),
    #{node => node(), id => node_id(node()), incarnation => own(incarnation, 0), secret => own(secret, none), before => own(before, none),
      versions => weir_hello:versions(), features => weir_hello:features(),
      members => [{Node, away(Since, Now)} || #member{node = Node, away_since = Since} = Member <- Rows, is_registered(Member)],
      left => [{Node, Incarnation} || [Node, Incarnation] <- match({{left, '$1'}, '$2', '_'})],
      stopped => [{Node, Incarnation} || #member{node = Node, incarnation = Incarnation, standing = stopped} <- Rows]}.

%% Another node may be slow to read; this process isn't made to wait for it.
say(Kind, Node, ToAll) ->
    Told = ToAll#{yours => incarnation_of(Node), token => token(Node)},
    case erlang:send({?MODULE, Node}, {?MODULE, weir_hello:envelope(), Kind, Told}, [nosuspend, noconnect]) of
        nosuspend ->
            _ = erlang:send_after(?AGAIN_MS, self(), {hello, Node}),
            ok;
        _ ->
            ok
    end.

incarnation_of(Node) ->
    case {lookup(Node), ets:lookup(?MODULE, {left, Node})} of
        {#member{incarnation = Incarnation}, _} -> Incarnation;
        {none, [{_, Incarnation, _}]} -> Incarnation;
        {none, []} -> 0
    end.

%% (A farewell needs no protocol in common.)
told(Kind, Node, _Terms, #{incarnation := Incarnation}, State)
  when Kind =:= bye orelse Kind =:= stop, is_integer(Incarnation), Incarnation < ?MAX_INCARNATION ->
    awaited(Node, farewell(Kind, lookup(Node), Incarnation, State));
told(_Kind, Node, {refused, Reason}, _Told, State) ->
    awaited(Node, refuse(Node, Reason, State));
told(Kind, Node, {ok, Terms}, Told, State) when Kind =:= hello; Kind =:= welcome ->
    case weir_hello:judge(Told, known(Node)) of
        ok -> answered(Node, Told, accept(Kind, Node, Terms, Told, State));
        stale -> State;
        behind -> awaited(Node, behind(Kind, Node, Told, State));
        next -> awaited(Node, follow(Kind, Node, Terms, Told, State));
        {refused, Reason} -> awaited(Node, refuse(Node, Reason, State))
    end;
told(_Kind, _Node, _Terms, _Told, State) ->
    State.

%% (What it says may be of the time before it knew this run.)
answered(Node, #{yours := Yours}, #state{phase = ready} = State) ->
    case Yours >= own(incarnation, 0) of
        true -> awaited(Node, State);
        false -> State
    end;
answered(Node, _Told, State) ->
    awaited(Node, State).

awaited(Node, #state{phase = starting, awaited = Awaited} = State) ->
    started(State#state{awaited = maps:remove(Node, Awaited)});
awaited(Node, #state{awaited = Awaited} = State) ->
    introduced(State#state{awaited = maps:remove(Node, Awaited)}).

known(Node) ->
    Id = node_id(Node),
    Next = fun() -> case weir_secret:next() of {ok, Next} -> Next; {error, _} -> none end end,
    #{secret => own(secret, none), before => own(before, none), next => Next, id => Id, same => same(Node, Id),
      incarnation => incarnation_of(Node), alone => phase() =:= ready andalso counted() =:= []}.

%% Another node of the same number, this one among them.
same(Node, Id) ->
    case {node_id(node()), own({id, Id}, Node)} of
        {Id, _} -> node();
        {_, Node} -> none;
        {_, Other} -> Other
    end.

%% ---- rotation of the secret ----

rotated(ready, Id, Force, State) ->
    case own(secret, none) of
        Id -> {ok, State};
        _ -> {weir_secret:ready(Id, Force), State}
    end;
rotated(switch, Id, Force, State) ->
    switch(Id, Force, State);
rotated(_, _Id, _Force, State) ->
    {unknown, State}.

%% Said again when all have switched, it greets those that didn't follow.
switch(Id, Force, State) ->
    Own = own(secret, none),
    case Own =:= Id orelse weir_secret:rotate(Id, Force) of
        true ->
            {ok, say_hello(nodes(), State)};
        ok ->
            true = ets:insert(?MODULE, [{secret, Id}, {before, Own}]),
            %% Under another hash, keys of `scope => exact' have other owners: these are to know all that there is.
            ok = weir_replica:push(),
            ?LOG_NOTICE(#{what => secret_rotated}),
            {ok, say_hello(nodes(), State)};
        {error, _} = Error ->
            {Error, State}
    end.

%% The other has switched.
follow(Kind, Node, Terms, #{secret := Id} = Told, State) ->
    %% It has been decided on; to wait for the last rotation's end would keep this node out.
    case switch(Id, true, State) of
        {ok, Switched} -> accept(Kind, Node, Terms, Told, Switched);
        {{error, Message}, _} -> refuse(Node, {rotation, Message}, State)
    end.

%% The other hasn't, and will when it hears this: it stays a member if it was one.
behind(Kind, Node, Told, State) ->
    true = ets:insert(?MODULE, {{refused, Node}, behind}),
    greeted(Kind, Node, Told, State).

%% A member stays registered, as it may go on limiting where this node doesn't see it: it is away, and its frames are not taken.
refuse(Node, Reason, State) ->
    case ets:lookup(?MODULE, {refused, Node}) of
        [{_, Reason}] ->
            ok;
        _ ->
            true = ets:insert(?MODULE, {{refused, Node}, Reason}),
            ?LOG_ERROR(#{what => member_refused, node => Node, why => weir_hello:text(Reason)})
    end,
    case lookup(Node) of
        #member{terms = none} -> went_away(Node, State);
        #member{} = Member ->
            put_member(Member#member{terms = none}),
            ok = weir_replica:registered(Node),
            went_away(Node, State);
        none -> State
    end.

%% ---- members ----

accept(Kind, Node, Terms, #{incarnation := Incarnation, yours := Yours, members := Members, left := Left} = Told, State0) ->
    true = ets:delete(?MODULE, {refused, Node}),
    State1 = join(Node, Incarnation, Terms, watch(Node, State0)),
    State2 = lists:foldl(fun(Gone, S) -> has_gone(bye, Gone, S) end, State1, lists:sublist(Left, ?MAX_LEFT)),
    ok = forget_left(),
    State3 = lists:foldl(fun(Gone, S) -> has_gone(stop, Gone, S) end, State2, stopped(Told)),
    State4 = has_heard_of(Node, Incarnation, Members, State3),
    greeted(Kind, Node, Told, joins(Incarnation, highest(Yours, State4))).

stopped(#{stopped := Stopped}) when length(Stopped) =< ?MAX_MEMBERS -> Stopped;
stopped(#{}) -> [].

%% Who runs already, when this node starts, has what is to be copied. Of nodes that start together the first one to be ready has
%% nobody to copy from, also if its machine is made a moment later.
joins(Incarnation, #state{phase = starting, joining = Joining} = State) ->
    State#state{joining = Joining orelse Incarnation =/= 0};
joins(_Incarnation, State) ->
    State.

%% Who starts is told all limiters with the answer, so that it comes up with those of the others and not those of its own
%% configuration.
greeted(hello, Node, #{incarnation := 0}, #state{phase = ready} = State) ->
    ok = say(welcome, Node, (about_all())#{limiters => weir_registry:entries()}),
    State;
greeted(hello, Node, _Told, State) ->
    ok = say(welcome, Node, about_all()),
    State;
greeted(welcome, _Node, #{limiters := Limiters}, #state{phase = starting, limiters = Before} = State) when length(Limiters) >= 0 ->
    State#state{limiters = Limiters ++ Before};
greeted(_Kind, _Node, _Told, State) ->
    State.

join(Node, Incarnation, Terms, #state{hearsay = Hearsay} = State) ->
    is_member(Node) orelse ?LOG_NOTICE(#{what => member_joined, node => Node}),
    Known = incarnation_of(Node),
    true = ets:delete(?MODULE, {left, Node}),
    ok = put_member(#member{node = Node, id = node_id(Node), incarnation = max(Known, Incarnation), terms = Terms}),
    ok = weir_replica:registered(Node),
    %% (Said with each hello: what the other heard before it knew this node as a member, it didn't take.)
    ok = weir_registry:joined(Node),
    State#state{hearsay = weir_hearsay:forget(Node, Hearsay)}.

%% Known to a member, and perhaps out of reach: it is looked for, and counts if enough members name it. One that is starting says
%% nothing by what it doesn't know yet.
has_heard_of(Member, Incarnation, Named, #state{hearsay = Hearsay} = State) ->
    Most = forget_after(),
    Now = erlang:monotonic_time(millisecond),
    Room = ets:info(?MODULE, size) < 4 * ?MAX_MEMBERS,
    News = [Node || {Node, AwayMs} <- Named, is_atom(Node), Node =/= node(), is_integer(AwayMs), AwayMs >= 0, AwayMs < Most,
                    looks_for(lookup(Node), Node, Now - AwayMs, Room)],
    Said = State#state{hearsay = weir_hearsay:said(Member, News, Hearsay)},
    case {State#state.phase, Incarnation} of
        {ready, Run} when Run =/= 0 -> confirm(Said);
        _ -> Said
    end.

%% Whether what is said of a node is news.
looks_for(#member{standing = Standing, away_since = Before} = Member, _Node, Since, _Room) when Standing =:= heard; Standing =:= confirmed ->
    put_member(Member#member{away_since = max(Before, Since)}),
    true;
looks_for(#member{standing = stopped, away_since = Stopped} = Member, _Node, Since, _Room) when Since > Stopped + ?STOPPED_MS ->
    %% It was met after it stopped: it is back.
    put_member(Member#member{standing = heard, away_since = Since}),
    true;
looks_for(#member{}, _Node, _Since, _Room) ->
    false;
looks_for(none, Node, Since, Room) ->
    Id = node_id(Node),
    News = Room andalso same(Node, Id) =:= none andalso not ets:member(?MODULE, {left, Node}),
    _ = News andalso put_member(#member{node = Node, id = Id, standing = heard, away_since = Since}),
    News.

confirm(#state{hearsay = Hearsay} = State) ->
    Ready = [Node || #member{node = Node, away_since = none, incarnation = Run} <- counted(), Run =/= 0],
    lists:foreach(fun count_too/1, [lookup(Node) || Node <- weir_hearsay:confirmed(Ready, Hearsay)]),
    State.

%% (Said again of one that counts: the machine forgets by its own clock.)
count_too(#member{node = Node, id = Id, standing = Standing} = Member) when Standing =:= heard; Standing =:= confirmed ->
    case same(Node, Id) of
        none ->
            put_member(Member#member{standing = confirmed}),
            ok = weir_replica:registered(Node);
        _ ->
            ok
    end;
count_too(_) ->
    ok.

%% Another member has heard it leave or stop, and not this node.
has_gone(How, {Node, Incarnation}, State) when is_atom(Node), Node =/= node(), is_integer(Incarnation), Incarnation < ?MAX_INCARNATION ->
    case lookup(Node) of
        #member{incarnation = Known, away_since = Since, standing = Standing} = Member
          when Known =< Incarnation, Since =/= none, {How, Standing} =/= {stop, stopped} ->
            gone(How, Member, Incarnation, State);
        _ ->
            State
    end;
has_gone(_How, _, State) ->
    State.

%% (Not one of a run before, that was overtaken.)
farewell(How, #member{node = Node, incarnation = Known} = Member, Incarnation, State) when Incarnation >= Known ->
    ?LOG_NOTICE(#{what => case How of bye -> member_left; stop -> member_stopped end, node => Node}),
    case How of
        bye ->
            gone(bye, Member, Incarnation, State);
        stop ->
            put_member(Member#member{standing = stopping, away_since = erlang:monotonic_time(millisecond)}),
            State
    end;
farewell(_How, _, _Incarnation, State) ->
    State.

%% One that stopped in order, some seconds ago, sent what it had admitted, and admits nothing: no side of a partition has to reckon with it. It is looked
%% for, as it may be back in a moment, and may not know where the others are.
gone(bye, #member{node = Node}, Incarnation, State) ->
    remove(Node, remember_left(Node, Incarnation, State));
gone(stop, #member{node = Node, id = Id, incarnation = Known} = Member, Incarnation, State) ->
    true = ets:delete(?MODULE, {id, Id}),
    put_member(Member#member{standing = stopped, incarnation = max(Known, Incarnation), terms = none}),
    ok = weir_replica:unregistered(Node),
    State.

remember_left(Node, Incarnation, State) ->
    true = ets:insert(?MODULE, {{left, Node}, max(Incarnation, incarnation_of(Node)), erlang:monotonic_time(millisecond)}),
    State.

%% Of too many the earliest.
forget_left() ->
    Now = erlang:monotonic_time(millisecond),
    Left = lists:sort([{At, Node} || [Node, At] <- match({{left, '$1'}, '_', '$2'})]),
    Old = [Node || {At, Node} <- Left, Now - At > ?KEEP_LEFT_MS],
    Few = [Node || {_, Node} <- lists:sublist(Left, max(0, length(Left) - ?MAX_LEFT))],
    lists:foreach(fun(Node) -> ets:delete(?MODULE, {left, Node}) end, Old ++ Few).

remove(Node, #state{hearsay = Hearsay} = State) ->
    case lookup(Node) of
        #member{id = Id} = Member ->
            true = ets:delete(?MODULE, {member, Node}),
            _ = is_registered(Member) andalso ets:delete(?MODULE, {id, Id}),
            ok = weir_traffic:forget(Node),
            ok = weir_replica:unregistered(Node);
        none ->
            ok
    end,
    State#state{hearsay = weir_hearsay:forget(Node, Hearsay)}.

%% Somebody knows a later run of this node: the clock was set back. This one is made later still.
highest(Yours, #state{phase = starting, highest = Highest} = State) ->
    State#state{highest = max(Highest, Yours)};
highest(Yours, State) ->
    case own(incarnation, 0) of
        Own when Yours > Own ->
            true = ets:insert(?MODULE, {incarnation, Yours + 1}),
            ok = weir_replica:renew(),
            say_hello(nodes(), State);
        _ ->
            State
    end.

%% What the others don't know of this node's births is sent, then they are told. Later hellos are not answered.
left(_How, #state{phase = left} = State) ->
    State;
left(How, #state{phase = ready} = State) ->
    {Kind, DrainMs} = case How of bye -> {bye, ?DRAIN_MS}; {stop, Ms} -> {stop, Ms} end,
    ok = weir_owner:leave(DrainMs),
    ok = weir_replica:drain(DrainMs),
    Told = about_all(),
    _ = [say(Kind, Node, Told) || Node <- connected()],
    true = ets:insert(?MODULE, {phase, left}),
    lists:foldl(fun(#member{node = Node}, S) -> remove(Node, S) end, State#state{phase = left}, rows()).

%% ---- connections ----

%% A monitor of the other's process of this name tells when weir stops there, too. (There is a connection: the monitor doesn't
%% wait for one.)
watch(Node, #state{watched = Watched, monitors = Monitors} = State) ->
    case not is_map_key(Node, Watched) andalso lists:member(Node, nodes()) of
        true ->
            Monitor = erlang:monitor(process, {?MODULE, Node}),
            State#state{watched = Watched#{Node => Monitor}, monitors = Monitors#{Monitor => Node}};
        false ->
            State
    end.

%% The process that follows it there says hello, and that may have come before this message, as signals of two processes have no
%% order. So this node says hello as well: if somebody is there, it answers, and is watched again.
down(Monitor, #state{monitors = Monitors, watched = Watched} = State) when is_map_key(Monitor, Monitors) ->
    {Node, Rest} = maps:take(Monitor, Monitors),
    Gone = went_away(Node, awaited(Node, State#state{monitors = Rest, watched = maps:remove(Node, Watched)})),
    say_hello([Node || is_member(Node), lists:member(Node, nodes())], Gone);
down(_Monitor, State) ->
    State.

went_away(Node, #state{hearsay = Hearsay} = State) ->
    case lookup(Node) of
        #member{away_since = none} = Member -> put_member(Member#member{away_since = erlang:monotonic_time(millisecond)});
        _ -> ok
    end,
    State#state{hearsay = weir_hearsay:silent(Node, Hearsay)}.

%% Those whose connection went while this process didn't look.
missed(State) ->
    Up = maps:from_list([{Node, up} || Node <- nodes()]),
    lists:foldl(fun went_away/2, State, [Node || Node <- connected(), not is_map_key(Node, Up)]).

check(State) ->
    Now = erlang:monotonic_time(millisecond),
    Most = forget_after(),
    ok = forget_left(),
    Up = maps:from_list([{Node, up} || Node <- nodes()]),
    _ = [true = ets:delete(?MODULE, {refused, Node}) || [Node, _] <- match({{refused, '$1'}, '$2'}), not is_map_key(Node, Up)],
    _ = [weir_traffic:forget(Node) || Node <- maps:keys(traffic()), not is_member(Node)],
    Over = [Node || #member{node = Node, away_since = Since} <- rows(), Since =/= none, Now - Since > Most],
    _ = [?LOG_NOTICE(#{what => member_forgotten, node => Node}) || Node <- Over],
    Stopped = [Member || #member{standing = stopping, away_since = Since} = Member <- rows(), Now - Since > ?STOPPED_MS],
    lists:foldl(fun remove/2, lists:foldl(fun(Member, S) -> gone(stop, Member, 0, S) end, State, Stopped), Over).

%% ---- the table ----

own(What, Default) ->
    try ets:lookup_element(?MODULE, What, 2)
    catch error:badarg -> Default
    end.

lookup(Node) ->
    own({member, Node}, none).

put_member(#member{node = Node, id = Id} = Member) ->
    true = ets:insert(?MODULE, [{{member, Node}, Member} | [{{id, Id}, Node} || is_registered(Member)]]),
    ok.

is_registered(#member{standing = Standing}) -> Standing =/= heard andalso Standing =/= stopped;
is_registered(none) -> false.

rows() ->
    [Member || [Member] <- match({{member, '_'}, '$1'})].

counted() ->
    [Member || Member <- rows(), is_registered(Member)].

match(Pattern) ->
    try ets:match(?MODULE, Pattern)
    catch error:badarg -> []
    end.

%% As the machine's.
forget_after() ->
    {ok, #{forget_after := Ms}} = weir_cluster_options:get(),
    Ms.
