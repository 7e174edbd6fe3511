%% @private
%% @doc Makes, changes and deletes limiters, one at a time, and sees to it that all nodes have the same.
%%
%% The limiters themselves live in the NIF, their specifications in a table of the supervisor's (weir_specs): this
%% process may crash without a decision being missed, and finds both when it comes back.
%%
%% Each limiter has a version and a source, by which all nodes find the same one that counts (weir_source). What was deleted
%% leaves a tombstone with a version for a day. A change goes to all connected members at once; what one misses it gets from
%% digests that each node sends to one other every two seconds, and at each hello.
%%
%% This node's configuration is an entry like those of others: a deploy of another one takes effect on all nodes, and doesn't
%% undo what was changed by a call.
-module(weir_registry).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, put/2, configure/2, delete/1, compile/1, pairs/1, config_version/0, joined/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% A change walks the limiter's table: about 20 ns a key.
-define(TIMEOUT, 60000).
-define(PROTOCOL, 1).
-define(MAX_VERSION, 16#ffffffff).
-define(GOSSIP_MS, 2000).
-define(KEEP_DELETED_MS, 86400000).
-define(MAX_DELETED, 16384).
%% What JSON takes.
-define(MAX_CONFIG_VERSION, (1 bsl 53)).
%% Entries a message.
-define(PART, 256).

%% Who is being told everything, by the monitor of the process that does it; entries that could not be made here.
-record(state, {telling = #{} :: #{reference() => node()}, unfit = #{} :: #{binary() => weir_source:version()}}).

-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-spec put(weir_limiter:name(), weir_limiter:spec()) -> ok | {error, Message :: binary()}.
put(Name, Spec) ->
    named(put, Name, Spec).

%% As it stands in a configuration: in a cluster a change or deletion by a call counts more, and so does the configuration
%% of a node that started later. A node without others does as it is told.
-spec configure(weir_limiter:name(), weir_limiter:spec()) -> ok | {error, Message :: binary()}.
configure(Name, Spec) ->
    named(configure, Name, Spec).

named(How, Name, Spec) ->
    case {weir_limiter:name(Name), weir_limiter:parse(Spec)} of
        {{ok, Binary}, {ok, Compiled}} -> call({How, Name, Binary, Compiled});
        {{error, _} = Error, _} -> Error;
        {_, {error, _} = Error} -> Error
    end.

-spec delete(weir_limiter:name()) -> ok | unknown_limiter | {error, Message :: binary()}.
delete(Name) ->
    case weir_limiter:name(Name) of
        {ok, Binary} -> call({delete, Binary});
        {error, _} = Error -> Error
    end.

%% A handle on the one limiter of all policies that decide alike.
-spec compile(weir_limiter:spec()) -> {ok, reference()} | {error, Message :: binary()}.
compile(#{scope := Scope}) when Scope =:= cluster; Scope =:= exact ->
    {error, <<"a policy that comes with the call is of scope local: for another scope make a limiter with weir:put_limiter/2">>};
compile(Spec) ->
    case weir_limiter:parse(local(Spec)) of
        {ok, Compiled} -> handle(weir_limiter:compiled_name(Compiled), Compiled);
        {error, _} = Error -> Error
    end.

local(#{} = Spec) -> maps:merge(#{scope => local}, Spec);
local(Spec) -> Spec.

handle(Name, Compiled) ->
    case weir_limiters:handle(Name) of
        unknown_limiter ->
            case call({compile, Name, Compiled}) of
                %% Nobody held it yet, so it may have been collected meanwhile.
                ok -> handle(Name, Compiled);
                {error, _} = Error -> Error
            end;
        Handle ->
            {ok, Handle}
    end.

call(Request) ->
    try gen_server:call(?MODULE, Request, ?TIMEOUT)
    catch exit:{noproc, _} -> {error, <<"weir is not started: call application:ensure_all_started(weir)">>}
    end.

%% The limiters of a configuration or child specification, as a list. Their names and specifications are not looked at.
-spec pairs(term()) -> {ok, [{term(), term()}]} | {error, {bad_config, limiters, Message :: binary()}
                                                        | {bad_limiter, term(), Message :: binary()}}.
pairs(Limiters) when is_map(Limiters) ->
    {ok, maps:to_list(Limiters)};
pairs(Limiters) when length(Limiters) >= 0 ->  % a proper list
    case [Other || Other <- Limiters, not (is_tuple(Other) andalso tuple_size(Other) =:= 2)] of
        [] -> {ok, Limiters};
        [Other | _] -> {error, {bad_limiter, Other, <<"limiters are {Name, Spec}">>}}
    end;
pairs(_) ->
    {error, {bad_config, limiters, <<"limiters is a map or a list of {Name, Spec}">>}}.

%% The number of this node's configuration; 0 if it has none.
-spec config_version() -> {ok, non_neg_integer()} | {error, Message :: binary()}.
config_version() ->
    case application:get_env(weir, config_version) of
        undefined -> {ok, 0};
        {ok, N} when is_integer(N), N >= 1, N =< ?MAX_CONFIG_VERSION -> {ok, N};
        {ok, Other} ->
            Message = io_lib:format("config_version is an integer from 1 to 2^53, got ~0tP", [Other, 12]),
            {error, unicode:characters_to_binary(Message)}
    end.

%% ---- for the other nodes, and this one's machine ----

%% A node belongs to the cluster, or is reached again.
-spec joined(node()) -> ok.
joined(Node) ->
    gen_server:cast(?MODULE, {joined, Node}).

%% ---- callbacks ----

%% Limiters of the configuration are made here, once the other nodes have told of theirs; after a crash those that are there
%% stay as they are.
-spec init([]) -> {ok, #state{}} | {stop, term()}.
init([]) ->
    ok = weir_limiters:settle(),
    _ = erlang:send_after(?GOSSIP_MS, self(), gossip),
    State = merge(weir_roster:take_limiters(), #state{}),
    {ok, ConfigVersion} = config_version(),
    ok = weir_specs:begin_with(ConfigVersion),
    case pairs(application:get_env(weir, limiters, #{})) of
        {ok, Limiters} -> make(Limiters, State);
        {error, Reason} -> {stop, Reason}
    end.

make(Limiters, State) ->
    case make_all(Limiters, []) of
        {ok, Made} ->
            ok = tell(Made),
            {ok, State};
        {stop, _} = Stop ->
            Stop
    end.

make_all([], Made) ->
    {ok, Made};
make_all([{Name, Spec} | Limiters], Made) ->
    case {weir_limiter:name(Name), weir_limiter:parse(Spec)} of
        {{ok, Binary}, {ok, Compiled}} ->
            case weir_limiters:configured(Name, Binary, Compiled) of
                ok -> make_all(Limiters, [Binary | Made]);
                {error, Message} -> {stop, {bad_limiter, Name, Message}}
            end;
        {{error, Message}, _} -> {stop, {bad_limiter, Name, Message}};
        {_, {error, Message}} -> {stop, {bad_limiter, Name, Message}}
    end.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({put, Name, Binary, Compiled}, _From, State) ->
    Reply = weir_limiters:put(Name, Binary, Compiled),
    _ = Reply =:= ok andalso weir_limiters:advise(Binary, Compiled, length(weir_roster:others()) + 1),
    ok = tell([Binary]),
    {reply, Reply, State};
handle_call({configure, Name, Binary, Compiled}, _From, State) ->
    Reply = weir_limiters:configure(weir_roster:others() =:= [], Name, Binary, Compiled),
    ok = tell([Binary]),
    {reply, Reply, State};
handle_call({delete, Name}, _From, State) ->
    Reply = weir_limiters:delete(Name),
    ok = tell([Name]),
    {reply, Reply, State};
handle_call({compile, Name, Compiled}, _From, State) ->
    {reply, weir_limiters:compile(Name, Compiled), State};
handle_call(_, _From, State) ->
    {reply, {error, <<"unknown request">>}, State}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({joined, Node}, State) ->
    ok = say_digests(Node),
    {noreply, State};
handle_cast(_, State) ->
    {noreply, State}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(gossip, State) ->
    _ = erlang:send_after(?GOSSIP_MS, self(), gossip),
    ok = bury(),
    ok = gossip(weir_roster:connected()),
    {noreply, State};
handle_info({?MODULE, ?PROTOCOL, Node, Told}, State) ->
    case is_atom(Node) andalso weir_roster:is_member(Node) of
        true -> {noreply, hear(Told, Node, State)};
        false -> {noreply, State}
    end;
handle_info({'DOWN', Monitor, process, _, _}, #state{telling = Telling} = State) ->
    {noreply, State#state{telling = maps:remove(Monitor, Telling)}};
handle_info(_, State) ->
    {noreply, State}.

%% ---- the other nodes ----

tell(Names) ->
    Rows = [Row || Name <- Names, Row <- [weir_specs:row(Name)], Row =/= none],
    lists:foreach(fun(Node) -> tell_parts(Rows, fun(Part, _) -> say(Node, {entries, weir_specs:told(Part), false}) end) end,
                  weir_roster:connected()).

%% Tells a part at a time; the second argument is whether it is the last.
tell_parts(Rows, Tell) when length(Rows) =< ?PART ->
    Tell(Rows, true);
tell_parts(Rows, Tell) ->
    {Part, Rest} = lists:split(?PART, Rows),
    _ = Tell(Part, false),
    tell_parts(Rest, Tell).

%% What doesn't get through now does so after a digest.
say(Node, What) ->
    _ = erlang:send({?MODULE, Node}, {?MODULE, ?PROTOCOL, node(), What}, [nosuspend, noconnect]),
    ok.

gossip([]) -> ok;
gossip(Nodes) -> say_digests(lists:nth(rand:uniform(length(Nodes)), Nodes)).

%% Releases that know no sources skip the second.
say_digests(Node) ->
    ok = say(Node, {digest, digest()}),
    say(Node, {source_digest, source_digest()}).

%% Of what exists: a limiter that one has and another deleted shows as well.
digest() ->
    erlang:md5(term_to_binary(lists:sort([{Name, Version} || {Name, #{}, Version, _} <- weir_specs:rows()]))).

source_digest() ->
    erlang:md5(term_to_binary(lists:sort([{Name, Version, Source} || {Name, #{}, Version, Source} <- weir_specs:rows()]))).

hear({digest, Digest}, Node, State) ->
    case digest() of
        Digest -> State;
        _ -> tell_all(Node, true, State)
    end;
hear({source_digest, Digest}, Node, State) ->
    case source_digest() of
        Digest -> State;
        _ -> tell_all(Node, true, State)
    end;
hear({entries, Entries, Answer}, Node, State) when length(Entries) >= 0, is_boolean(Answer) ->
    Merged = merge(Entries, State),
    case Answer of
        true -> tell_all(Node, false, Merged);
        false -> Merged
    end;
hear(_, _Node, State) ->
    State.

%% By a process of its own, which may have to wait until the other reads: one at a time for a node.
tell_all(Node, Answer, #state{telling = Telling} = State) ->
    case lists:member(Node, maps:values(Telling)) of
        true ->
            State;
        false ->
            Self = node(),
            Tell = fun(Part, Last) -> tell_slowly(Part, Answer andalso Last, Node, Self) end,
            {_, Monitor} = spawn_monitor(fun() -> tell_parts(weir_specs:rows(), Tell) end),
            State#state{telling = Telling#{Monitor => Node}}
    end.

%% The answer is asked for with the last part.
tell_slowly(Rows, Answer, Node, Self) ->
    erlang:send({?MODULE, Node}, {?MODULE, ?PROTOCOL, Self, {entries, weir_specs:told(Rows), Answer}}, [noconnect]).

%% Entries, and beside them the sources of those that have one.
merge(Told, State) ->
    Sources = maps:from_list([{{Name, Version}, Source} || {source, Name, Version, Source} <- Told, weir_source:is_source(Source)]),
    lists:foldl(fun({Name, What, Version}, S)
                      when is_binary(Name), is_integer(Version), Version >= 1, Version =< ?MAX_VERSION ->
                        merge_one({Name, What, Version, maps:get({Name, Version}, Sources, unknown)}, S);
                   (_, S) ->
                        S
                end, State, Told).

merge_one({Name, What, _, _} = Theirs, State) ->
    case weir_specs:row(Name) of
        none when is_map(What) -> take(none, weir_limiters:with_own(Theirs), State);
        none -> take_deleted(Theirs, State);
        Row ->
            case weir_limiters:with_own(weir_source:merge(Row, Theirs)) of
                Row -> State;
                New -> take(Row, New, State)
            end
    end.

take_deleted({_, {deleted, At}, _, _} = Theirs, State) when is_integer(At) ->
    case erlang:system_time(millisecond) - At > ?KEEP_DELETED_MS of
        true -> State;
        false -> take(none, Theirs, State)
    end;
take_deleted(_, State) ->
    State.

take(Row, {Name, {deleted, At}, Version, _} = New, State) when is_integer(At) ->
    unfit(Name, Version, weir_limiters:take(Row, New, none), State);
take(Row, {Name, Spec, Version, _} = New, State) ->
    case {weir_limiter:name(Name), weir_limiter:parse(Spec)} of
        {{ok, Name}, {ok, Compiled}} -> unfit(Name, Version, weir_limiters:take(Row, New, Compiled), State);
        {{error, _} = Error, _} -> unfit(Name, Version, Error, State);
        {_, {error, _} = Error} -> unfit(Name, Version, Error, State)
    end.

unfit(Name, _Version, ok, #state{unfit = Unfit} = State) ->
    State#state{unfit = maps:remove(Name, Unfit)};
unfit(Name, Version, {error, Message}, #state{unfit = Unfit} = State) ->
    maps:get(Name, Unfit, none) =:= Version orelse
        ?LOG_ERROR(#{what => limiter_of_other_node_refused, limiter => Name, why => Message}),
    State#state{unfit = Unfit#{Name => Version}}.

%% Tombstones that have done their duty, or are too many.
bury() ->
    Now = erlang:system_time(millisecond),
    Deleted = lists:sort([{At, Name} || {Name, {deleted, At}, _, _} <- weir_specs:rows()]),
    Old = [Name || {At, Name} <- Deleted, Now - At > ?KEEP_DELETED_MS],
    TooMany = [Name || {_, Name} <- lists:sublist(Deleted, max(0, length(Deleted) - ?MAX_DELETED))],
    lists:foreach(fun weir_limiters:forget/1, Old ++ TooMany).
