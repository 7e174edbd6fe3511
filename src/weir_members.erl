%% @doc Which nodes limit together.
%%
%% The members are the nodes of the Erlang cluster that run weir under the same secret. When two nodes are connected, each says
%% hello to the other's process of this name; from then on both are <em>registered</em> with each other, and stay so while they
%% can't reach each other: until one leaves ({@link weir:leave/0}), or was away for `forget_after'. Which of the registered nodes
%% are <em>live</em>, the machine sees by their heartbeats.
%%
%% Refused, logged once, and named by {@link status/0} with what to do about it: nodes that speak another version of the protocol,
%% hold another secret, or have a number (a hash of the name) that another member has already.
%%
%% A member that is away is connected to again and again, from one to thirty seconds apart, so that a partition heals without
%% anybody's doing. Nodes without weir don't answer, and are left alone.
%%
%% <em>A rotation of the secret</em> ({@link weir:rotate_secret/0}) is asked for once all members have the next one. A node that
%% has switched says hello to all, so that those that missed it follow.
%%
%% <em>Incarnations</em>, one a start of weir, ascend also when the clock was set back: those that greet a node tell it the
%% highest that they know of it.
%%
%% What must outlive this process is in a table of the supervisor's.
-module(weir_members).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([status/0, node_id/1]).
-export([rotate/1]).
-export([start_link/0, options/0, make_table/1, start/0, take_limiters/0, machine/0, machine/1, others/0, connected/0, is_member/1]).
-export([leave/0, has_left/0, ready_since/0, ready/0]).
-export([count/3, heard/3, traffic/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([id/0, status/0, member/0]).

-type id() :: 0..16#ffffffff.
-type ms() :: non_neg_integer().
-type member() :: #{id := id(), state := connected | away, incarnation := non_neg_integer(), away_ms := ms()}.
%% `alone': this node has no name, or nobody else is there. `left': see weir:leave/0.
%% `rotating_ms': for so long levels are still carried over from the secret before.
-type status() :: #{node := node(), state := starting | alone | member | left, incarnation := non_neg_integer(),
                    members := #{node() => member()}, refused := #{node() => binary()}, rotating_ms := ms()}.

-define(PROTOCOL, 1).
%% How long a start waits for the answers of nodes that run weir, as far as one can see.
-define(START_MS, 1000).
%% Until a hello is said again to a node that reads nothing.
-define(AGAIN_MS, 200).
-define(MIN_PAUSE_MS, 1000).
-define(MAX_PAUSE_MS, 30000).
-define(CHECK_MS, 1000).
%% How long a node's leaving is remembered, so that nobody who missed it brings the node back.
-define(KEEP_LEFT_MS, 86400000).
-define(PEER_TIMEOUT_MS, 2000).
-define(FORGET_AFTER_MS, 3600000).
%% Below the least, a moment's pause of a node would count as its absence; the most is a year.
-define(LEAST_MS, 1000).
-define(MOST_MS, 31536000000).
-define(DRAIN_MS, 3000).
-define(MAX_MEMBERS, 4096).
%% How long the others have to answer in a rotation of the secret.
-define(ROTATE_MS, 5000).
-define(MAX_INCARNATION, (1 bsl 62)).

%% `away_since' is monotonic milliseconds, `none' while the node is connected and runs weir.
-record(member, {node :: node(), id :: id(), incarnation = 0 :: non_neg_integer(), away_since = none :: none | integer()}).

%% `awaited' are the nodes whose answer the start waits for, `asked' who waits for its end.
-record(state, {phase = starting :: starting | ready | left, awaited = #{} :: #{node() => true}, asked = [] :: [gen_server:from()],
                highest = 0 :: non_neg_integer(), joining = false :: boolean(), limiters = [] :: [term()],
                watched = #{} :: #{node() => reference()}, monitors = #{} :: #{reference() => node()},
                failures = #{} :: #{node() => non_neg_integer()}, attempts = #{} :: #{reference() => node()}}).

%% @doc How membership stands, as this node sees it.
-spec status() -> status().
status() ->
    Now = erlang:monotonic_time(millisecond),
    Members = maps:from_list([{Node, #{id => Id, state => state(Since), incarnation => Incarnation, away_ms => away(Since, Now)}}
                              || #member{node = Node, id = Id, incarnation = Incarnation, away_since = Since} <- rows()]),
    #{node => node(), state => phase(map_size(Members)), incarnation => own(incarnation, 0), members => Members,
      refused => refused(), rotating_ms => weir_secret:rotation_left_ms()}.

phase(Others) ->
    case own(phase, starting) of
        ready when Others =:= 0 -> alone;
        ready -> member;
        Phase -> Phase
    end.

state(none) -> connected;
state(_) -> away.

away(none, _Now) -> 0;
away(Since, Now) -> max(0, Now - Since).

refused() ->
    maps:from_list([{Node, text(Reason)} || [Node, Reason] <- match({{refused, '$1'}, '$2'})]).

%% @doc The number by which the machines know a node: a hash of its name's text. (That of an atom is the VM's own, under which of
%% 4000 host names that differ in two letters 1000 are left.)
-spec node_id(node()) -> id().
node_id(Node) ->
    erlang:phash2(atom_to_binary(Node), 1 bsl 32).

%% @private
%% @doc Takes the next secret into use, on all members. The message of an error is a sentence.
%%
%% Nothing changes unless all are there and have it. Then this node is the first: whoever doesn't hear of it now, learns it by its
%% next hello.
-spec rotate(Force :: boolean()) -> ok | {error, Message :: binary()}.
rotate(Force) ->
    case weir_secret:next() of
        {ok, Id} ->
            case [Node || #member{node = Node, away_since = Since} <- rows(), Since =/= none] of
                [] -> switch_all(Id, Force, ask([node() | connected()], rotation(ready, Id, Force)));
                Away -> {error, message("nothing was changed: out of reach is ~ts", [names(Away)])}
            end;
        {error, Message} ->
            {error, Message}
    end.

switch_all(Id, Force, []) ->
    Others = connected(),
    case ask([node()], rotation(switch, Id, Force)) of
        [] ->
            case ask(Others, rotation(switch, Id, Force)) of
                [] -> ok;
                Wrong ->
                    {error, message("keys are hashed under the next secret from now on, but not everywhere. ~ts", [sentences(Wrong)])}
            end;
        Wrong ->
            {error, message("nothing was changed. ~ts", [sentences(Wrong)])}
    end;
switch_all(_Id, _Force, Wrong) ->
    {error, message("nothing was changed. ~ts", [sentences(Wrong)])}.

rotation(What, Id, false) -> {rotation, 1, What, Id};
rotation(What, Id, true) -> {rotation, 1, What, Id, force}.

%% What is wrong on which node; what speaks no such protocol answers `unknown'.
ask(Nodes, Request) ->
    Here = [{node(), gen_server:call(?MODULE, Request, ?ROTATE_MS)} || lists:member(node(), Nodes)],
    {Replies, Silent} = gen_server:multi_call(Nodes -- [node()], ?MODULE, Request, ?ROTATE_MS),
    [{Node, Why} || {Node, {error, Why}} <- Here ++ Replies, is_binary(Why)]
        ++ [{Node, <<"its version of weir knows of no rotation">>} || {Node, unknown} <- Replies]
        ++ [{Node, <<"it doesn't answer">>} || Node <- Silent].

sentences(Wrong) ->
    lists:join("; ", [[atom_to_list(Node), ": ", Why] || {Node, Why} <- Wrong]).

names(Nodes) ->
    lists:join(", ", [atom_to_list(Node) || Node <- Nodes]).

%% @private
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @private
%% @doc What is configured, in milliseconds. The message of an error is a sentence for whoever wrote the configuration.
-spec options() -> {ok, #{peer_timeout := ms(), forget_after := ms()}} | {error, Message :: binary()}.
options() ->
    Defaults = #{peer_timeout => ?PEER_TIMEOUT_MS, forget_after => ?FORGET_AFTER_MS},
    case application:get_env(weir, cluster, #{}) of
        #{} = Given ->
            Options = maps:merge(Defaults, Given),
            Good = fun(Ms) -> is_integer(Ms) andalso Ms >= ?LEAST_MS andalso Ms =< ?MOST_MS end,
            case maps:keys(Options) -- maps:keys(Defaults) =:= [] andalso lists:all(Good, maps:values(Options)) of
                true -> {ok, Options};
                false -> {error, message("cluster is a map of peer_timeout and forget_after, each from ~b to ~b milliseconds, got ~0tP",
                                         [?LEAST_MS, ?MOST_MS, Given, 20])}
            end;
        Other ->
            {error, message("cluster is a map, as in #{peer_timeout => 2000}, got ~0tP", [Other, 12])}
    end.

%% @private
%% @doc The table belongs to the caller. The id of the secret is in a fun, so that it is in no log.
-spec make_table(fun(() -> weir_secret:id())) -> ok.
make_table(SecretId) ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}, {read_concurrency, true}]),
    true = ets:insert(?MODULE, [{secret, SecretId()}, {before, none}, {phase, starting}, {node, node()},
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
%% @doc The other members, connected or not.
-spec others() -> [{node(), id()}].
others() ->
    [{Node, Id} || #member{node = Node, id = Id} <- rows()].

%% @private
-spec connected() -> [node()].
connected() ->
    [Node || #member{node = Node, away_since = none} <- rows()].

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
-spec is_member(node()) -> boolean().
is_member(Node) ->
    lookup(Node) =/= none.

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
-spec leave() -> ok.
leave() ->
    gen_server:call(?MODULE, leave, infinity).

%% @private
-spec has_left() -> boolean().
has_left() ->
    own(phase, starting) =:= left.

%% @private
%% @doc Counts what was sent to a node (a frame of so many bytes), or dropped.
-spec count(node(), {sent, weir_peer:kind()} | dropped | shed, non_neg_integer()) -> ok.
count(Node, {sent, data}, Bytes) -> counted(Node, [{2, 1}, {3, Bytes}]);
count(Node, {sent, repair}, Bytes) -> counted(Node, [{2, 1}, {3, Bytes}, {9, 1}, {10, Bytes}]);
count(Node, {sent, heartbeat}, Bytes) -> counted(Node, [{2, 1}, {3, Bytes}, {11, 1}, {12, Bytes}]);
count(Node, dropped, Frames) -> counted(Node, [{6, Frames}]);
count(Node, shed, Frames) -> counted(Node, [{7, Frames}]).

%% @private
%% @doc A frame of so many bytes came from a node, now.
-spec heard(node(), non_neg_integer(), Now :: non_neg_integer()) -> ok.
heard(Node, Bytes, Now) ->
    counted(Node, [{4, 1}, {5, Bytes}, {8, 0, -1, Now}]).

counted(Node, Changes) ->
    Row = {{traffic, Node}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    _ = try ets:update_counter(?MODULE, {traffic, Node}, Changes, Row)
        catch error:badarg -> stopping
        end,
    ok.

%% @private
-spec traffic() -> #{node() => #{atom() => non_neg_integer()}}.
traffic() ->
    maps:from_list([{Node, #{sent_frames => FramesOut, sent_bytes => BytesOut, received_frames => FramesIn,
                             received_bytes => BytesIn, dropped_frames => Dropped, shed_frames => Shed, heard_ns => Heard,
                             sent_repair_frames => Repair, sent_repair_bytes => RepairBytes,
                             sent_heartbeat_frames => Beats, sent_heartbeat_bytes => BeatBytes}}
                    || [Node, FramesOut, BytesOut, FramesIn, BytesIn, Dropped, Shed, Heard, Repair, RepairBytes, Beats, BeatBytes]
                           <- match({{traffic, '$1'}, '$2', '$3', '$4', '$5', '$6', '$7', '$8', '$9', '$10', '$11', '$12'})]).

%% ---- callbacks ----

%% @private
-spec init([]) -> {ok, #state{}}.
init([]) ->
    ok = net_kernel:monitor_nodes(true),
    _ = erlang:send_after(?CHECK_MS, self(), check),
    Nodes = nodes(),
    State = lists:foldl(fun watch/2, #state{phase = own(phase, starting)}, Nodes),
    case State#state.phase of
        starting ->
            _ = erlang:send_after(?START_MS, self(), started),
            {ok, started(say_hello(Nodes, State#state{awaited = maps:from_list([{Node, true} || Node <- Nodes])}))};
        _ ->
            {ok, reconnect(say_hello(Nodes, State))}
    end.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {noreply, #state{}}.
handle_call(Request, From, #state{phase = starting, asked = Asked} = State) ->
    {noreply, State#state{asked = [{Request, From} | Asked]}};
handle_call(Request, _From, State) ->
    {Reply, New} = answer(Request, State),
    {reply, Reply, New}.

answer(start, #state{joining = Joining} = State) ->
    {#{incarnation => own(incarnation, 1), joining => Joining}, State};
answer(leave, State) ->
    {ok, left(State)};
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
handle_info({?MODULE, Protocol, Kind, #{node := Node} = Told}, State) when is_atom(Node), Node =/= node() ->
    {noreply, told(Protocol, Kind, Node, Told, State)};
handle_info({nodeup, Node}, State) ->
    {noreply, say_hello([Node], watch(Node, named(State)))};
handle_info({'DOWN', Monitor, process, _, _}, State) ->
    {noreply, down(Monitor, State)};
handle_info(started, State) ->
    {noreply, started(State#state{awaited = #{}})};
handle_info({hello, Node}, State) ->
    {noreply, say_hello([Node], State)};
handle_info({connect, Node}, State) ->
    {noreply, connect(Node, State)};
handle_info(check, State) ->
    _ = erlang:send_after(?CHECK_MS, self(), check),
    {noreply, check(named(State))};
handle_info(_, State) ->
    {noreply, State}.

%% ---- the start ----

%% Over when all answered who can.
started(#state{phase = starting, awaited = Awaited, highest = Highest, asked = Asked} = State) when map_size(Awaited) =:= 0 ->
    true = ets:insert(?MODULE, [{incarnation, max(erlang:system_time(millisecond), Highest + 1)}, {phase, ready}]),
    Ready = say_hello(nodes(), State#state{phase = ready, asked = []}),
    lists:foldr(fun({Request, From}, Now) ->
                        {Reply, Then} = answer(Request, Now),
                        _ = gen_server:reply(From, Reply),
                        Then
                end, Ready, Asked);
started(State) ->
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
say_hello(Nodes, State) ->
    _ = [say(hello, Node, #{}) || Node <- Nodes],
    State.

%% Another node may be slow to read; this process isn't made to wait for it.
say(Kind, Node, More) ->
    Told = maps:merge(More, #{node => node(), id => node_id(node()), incarnation => own(incarnation, 0), secret => own(secret, none),
                              before => own(before, none), yours => incarnation_of(Node), members => known_members(Node), left => known_left()}),
    case erlang:send({?MODULE, Node}, {?MODULE, ?PROTOCOL, Kind, Told}, [nosuspend, noconnect]) of
        nosuspend ->
            _ = erlang:send_after(?AGAIN_MS, self(), {hello, Node}),
            ok;
        _ ->
            ok
    end.

%% With how long they have been away: what all know only from each other is to be forgotten all the same.
known_members(But) ->
    Now = erlang:monotonic_time(millisecond),
    [{Node, away(Since, Now)} || #member{node = Node, away_since = Since} <- rows(), Node =/= But].

known_left() ->
    [{Node, Incarnation} || [Node, Incarnation, _] <- match({{left, '$1'}, '$2', '$3'})].

incarnation_of(Node) ->
    case {lookup(Node), match({{left, Node}, '$1', '_'})} of
        {#member{incarnation = Incarnation}, _} -> Incarnation;
        {none, [[Incarnation]]} -> Incarnation;
        {none, []} -> 0
    end.

told(_Protocol, _Kind, _Node, _Told, #state{phase = left} = State) ->
    State;
told(?PROTOCOL, bye, Node, #{incarnation := Incarnation}, State) when is_integer(Incarnation), Incarnation < ?MAX_INCARNATION ->
    case is_member(Node) of
        true ->
            ?LOG_NOTICE(#{what => member_left, node => Node}),
            awaited(Node, forget(Node, remember_left(Node, Incarnation, State)));
        false ->
            awaited(Node, State)
    end;
told(?PROTOCOL, Kind, Node, Told, State) when Kind =:= hello; Kind =:= welcome ->
    case judge(Node, Told) of
        ok -> awaited(Node, accept(Kind, Node, Told, State));
        stale -> State;
        behind -> awaited(Node, behind(Kind, Node, Told, State));
        next -> awaited(Node, follow(Kind, Node, Told, State));
        {refused, Reason} -> awaited(Node, refuse(Node, Reason, State))
    end;
told(?PROTOCOL, _Kind, _Node, _Told, State) ->
    State;
told(Protocol, _Kind, Node, _Told, State) ->
    awaited(Node, refuse(Node, {protocol, Protocol}, State)).

awaited(Node, #state{phase = starting, awaited = Awaited} = State) ->
    started(State#state{awaited = maps:remove(Node, Awaited)});
awaited(_Node, State) ->
    State.

judge(Node, #{id := Id, incarnation := Incarnation, secret := Secret, yours := Yours, members := Members, left := Left} = Told)
  when is_integer(Incarnation), Incarnation >= 0, Incarnation < ?MAX_INCARNATION,
       is_integer(Yours), Yours >= 0, Yours < ?MAX_INCARNATION, length(Members) =< ?MAX_MEMBERS, length(Left) >= 0 ->
    Same = [Other || {Other, OtherId} <- [{node(), node_id(node())} | others()], OtherId =:= Id, Other =/= Node],
    Known = incarnation_of(Node),
    case {node_id(Node) =:= Id, secret(Secret, maps:get(before, Told, none))} of
        {false, _} -> {refused, malformed};
        {_, unknown} -> {refused, secret};
        {_, early} -> {refused, early};
        _ when Same =/= [] -> {refused, {number, hd(Same)}};
        %% Said before it started again, or before it left.
        _ when Incarnation =/= 0, Incarnation < Known -> stale;
        {_, current} -> ok;
        {_, Other} -> Other
    end;
judge(_Node, _Told) ->
    {refused, malformed}.

%% How another's secret stands to this node's. A node that is with others follows nobody who wasn't with them before.
secret(Theirs, Before) ->
    Own = own(secret, none),
    case Theirs =:= own(before, none) of
        _ when Theirs =:= Own -> current;
        true -> behind;
        false ->
            case weir_secret:next() of
                {ok, Theirs} when Before =:= Own -> next;
                {ok, Theirs} -> case {own(phase, starting), others()} of {ready, []} -> next; _ -> early end;
                _ -> unknown
            end
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
follow(Kind, Node, #{secret := Id} = Told, State) ->
    %% It has been decided on; to wait for the last rotation's end would keep this node out.
    case switch(Id, true, State) of
        {ok, Switched} -> accept(Kind, Node, Told, Switched);
        {{error, Message}, _} -> refuse(Node, {rotation, Message}, State)
    end.

%% The other hasn't, and will when it hears this: it stays a member if it was one.
behind(Kind, Node, Told, State) ->
    true = ets:insert(?MODULE, {{refused, Node}, behind}),
    greeted(Kind, Node, Told, State).

refuse(Node, Reason, State) ->
    case ets:lookup(?MODULE, {refused, Node}) of
        [{_, Reason}] ->
            ok;
        _ ->
            true = ets:insert(?MODULE, {{refused, Node}, Reason}),
            ?LOG_ERROR(#{what => member_refused, node => Node, why => text(Reason)})
    end,
    forget(Node, State).

text(secret) ->
    <<"it hashes keys under another secret: give all nodes the same `secret' in weir's configuration, or the same cookie before weir "
      "starts">>;
text(early) ->
    <<"it hashes keys under what is next_secret here: call weir:rotate_secret() when all nodes have that">>;
text(behind) ->
    <<"it hashes keys under the secret before the last rotation: give it the one of the others as `next_secret', and call "
      "weir:rotate_secret() there">>;
text({rotation, Message}) ->
    message("it hashes keys under the next secret, which this node can't take into use: ~ts", [Message]);
text({protocol, Protocol}) ->
    message("it speaks version ~0tP of the protocol, this node ~b: run versions of weir on both that have one in common",
            [Protocol, 5, ?PROTOCOL]);
text({number, Other}) ->
    message("its name has the same number as that of ~ts: give it another name", [Other]);
text(malformed) ->
    <<"what it says can't be understood: run the same version of weir on both">>.

message(Format, Args) ->
    unicode:characters_to_binary(io_lib:format(Format, Args)).

%% ---- members ----

accept(Kind, Node, #{incarnation := Incarnation, yours := Yours, members := Members, left := Left} = Told, State0) ->
    true = ets:delete(?MODULE, {refused, Node}),
    State1 = join(Node, Incarnation, watch(Node, State0)),
    State2 = lists:foldl(fun has_left/2, State1, Left),
    State3 = lists:foldl(fun has_heard_of/2, State2, Members),
    greeted(Kind, Node, Told, joins(Incarnation, highest(Yours, State3))).

%% Who runs already, when this node starts, has what is to be copied. Of nodes that start together the first one to be ready has
%% nobody to copy from, also if its machine is made a moment later.
joins(Incarnation, #state{phase = starting, joining = Joining} = State) ->
    State#state{joining = Joining orelse Incarnation =/= 0};
joins(_Incarnation, State) ->
    State.

%% Who starts is told all limiters with the answer, so that it comes up with those of the others and not those of its own
%% configuration.
greeted(hello, Node, #{incarnation := 0}, #state{phase = ready} = State) ->
    ok = say(welcome, Node, #{limiters => weir_registry:entries()}),
    State;
greeted(hello, Node, _Told, State) ->
    ok = say(welcome, Node, #{}),
    State;
greeted(welcome, _Node, #{limiters := Limiters}, #state{phase = starting, limiters = Before} = State) when length(Limiters) >= 0 ->
    State#state{limiters = Limiters ++ Before};
greeted(_Kind, _Node, _Told, State) ->
    State.

join(Node, Incarnation, State) ->
    Before = lookup(Node),
    Known = incarnation_of(Node),
    true = ets:delete(?MODULE, {left, Node}),
    true = put_member(#member{node = Node, id = node_id(Node), incarnation = max(Known, Incarnation)}),
    Before =:= none andalso ?LOG_NOTICE(#{what => member_joined, node => Node}),
    ok = weir_replica:registered(Node),
    ok = weir_registry:joined(Node),
    State#state{failures = maps:remove(Node, State#state.failures)}.

%% Known to another member, and perhaps out of reach: it counts, and it is looked for.
has_heard_of({Node, AwayMs}, State) when is_atom(Node), Node =/= node(), is_integer(AwayMs), AwayMs >= 0 ->
    Taken = lists:keymember(node_id(Node), 2, [{node(), node_id(node())} | others()]),
    Few = ets:info(?MODULE, size) < 4 * ?MAX_MEMBERS,
    case not Taken andalso Few andalso AwayMs < forget_after() andalso match({{left, Node}, '$1', '_'}) =:= [] of
        true ->
            Since = erlang:monotonic_time(millisecond) - AwayMs,
            true = put_member(#member{node = Node, id = node_id(Node), away_since = Since}),
            ok = weir_replica:registered(Node),
            connect_soon(Node, State);
        false ->
            State
    end;
has_heard_of(_, State) ->
    State.

has_left({Node, Incarnation}, State) when is_atom(Node), Node =/= node(), is_integer(Incarnation) ->
    case lookup(Node) of
        %% Another has heard it leave, and not this node.
        #member{incarnation = Known, away_since = Since} when Known =< Incarnation, Since =/= none ->
            forget(Node, remember_left(Node, Incarnation, State));
        _ ->
            State
    end;
has_left(_, State) ->
    State.

remember_left(Node, Incarnation, State) ->
    true = ets:insert(?MODULE, {{left, Node}, max(Incarnation, incarnation_of(Node)), erlang:monotonic_time(millisecond)}),
    State.

forget(Node, State) ->
    case is_member(Node) of
        true ->
            true = ets:delete(?MODULE, {member, Node}),
            true = ets:delete(?MODULE, {traffic, Node}),
            ok = weir_replica:unregistered(Node),
            State#state{failures = maps:remove(Node, State#state.failures)};
        false ->
            State
    end.

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
left(#state{phase = left} = State) ->
    State;
left(#state{phase = ready} = State) ->
    ok = weir_owner:leave(?DRAIN_MS),
    ok = weir_replica:drain(?DRAIN_MS),
    Others = others(),
    _ = [say(bye, Node, #{}) || {Node, _} <- Others],
    true = ets:insert(?MODULE, {phase, left}),
    lists:foldl(fun({Node, _}, S) -> forget(Node, S) end, State#state{phase = left}, Others).

%% ---- signs of life, connections ----

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

down(Monitor, #state{monitors = Monitors, watched = Watched} = State) when is_map_key(Monitor, Monitors) ->
    {Node, Rest} = maps:take(Monitor, Monitors),
    went_away(Node, awaited(Node, State#state{monitors = Rest, watched = maps:remove(Node, Watched)}));
down(Monitor, #state{attempts = Attempts} = State) when is_map_key(Monitor, Attempts) ->
    {Node, Rest} = maps:take(Monitor, Attempts),
    connect_soon(Node, State#state{attempts = Rest});
down(_Monitor, State) ->
    State.

went_away(Node, State) ->
    case lookup(Node) of
        #member{away_since = none} = Member ->
            true = put_member(Member#member{away_since = erlang:monotonic_time(millisecond)}),
            connect_soon(Node, State);
        _ ->
            State
    end.

reconnect(State) ->
    Out = [Node || {Node, _} <- others(), not lists:member(Node, nodes())],
    lists:foldl(fun(Node, S) -> connect_soon(Node, went_away(Node, S)) end, State, Out).

%% One attempt at a time and node, later and later, never at the same moment as the other side.
connect_soon(Node, #state{failures = Failures} = State) ->
    case is_member(Node) andalso not lists:member(Node, nodes()) of
        true ->
            Failed = maps:get(Node, Failures, 0),
            Pause = min(?MAX_PAUSE_MS, ?MIN_PAUSE_MS bsl min(Failed, 5)),
            _ = erlang:send_after(Pause div 2 + rand:uniform(Pause), self(), {connect, Node}),
            State#state{failures = Failures#{Node => Failed + 1}};
        false ->
            State
    end.

connect(Node, #state{attempts = Attempts, phase = Phase} = State) ->
    Wanted = Phase =/= left andalso is_member(Node) andalso not lists:member(Node, nodes()),
    case Wanted andalso not lists:member(Node, maps:values(Attempts)) of
        true ->
            {_, Monitor} = spawn_monitor(fun() -> net_kernel:connect_node(Node) end),
            State#state{attempts = Attempts#{Monitor => Node}};
        false ->
            State
    end.

check(State) ->
    Now = erlang:monotonic_time(millisecond),
    _ = [true = ets:delete(?MODULE, {left, Node})
         || [Node, _, At] <- match({{left, '$1'}, '$2', '$3'}), Now - At > ?KEEP_LEFT_MS],
    Up = nodes(),
    _ = [true = ets:delete(?MODULE, {refused, Node})
         || [Node, _] <- match({{refused, '$1'}, '$2'}), not lists:member(Node, Up)],
    _ = [true = ets:delete(?MODULE, {traffic, Node}) || Node <- maps:keys(traffic()), not is_member(Node)],
    Over = [Node || #member{node = Node, away_since = Since} <- rows(), Since =/= none, Now - Since > forget_after()],
    _ = [?LOG_NOTICE(#{what => member_forgotten, node => Node}) || Node <- Over],
    lists:foldl(fun forget/2, State, Over).

%% ---- the table ----

own(What, Default) ->
    try ets:lookup_element(?MODULE, What, 2)
    catch error:badarg -> Default
    end.

lookup(Node) ->
    own({member, Node}, none).

put_member(#member{node = Node} = Member) ->
    true = ets:insert(?MODULE, {{member, Node}, Member}).

rows() ->
    [Member || [Member] <- match({{member, '_'}, '$1'})].

match(Pattern) ->
    try ets:match(?MODULE, Pattern)
    catch error:badarg -> []
    end.

%% As the machine's.
forget_after() ->
    {ok, #{forget_after := Ms}} = options(),
    Ms.
