%% @private
%% @doc Makes, changes and deletes limiters, one at a time, and sees to it that all nodes have the same.
%%
%% The limiters themselves live in the NIF, their specifications in an ETS table of the supervisor's: this process may
%% crash without a decision being missed, and finds both when it comes back.
%%
%% Each limiter has a version: a counter, raised by each change, and a hash of the specification. So the last change wins, of
%% two at the same time one on all nodes, and the same change made on several nodes is one. What was deleted leaves a tombstone
%% with a version for a day. A change goes to all connected members at once; what one misses it gets from a digest of the versions
%% that each node sends to one other every two seconds, and at each hello.
%%
%% Limiters of the configuration have the counter 0, and those of the other nodes go before them: a node that comes back doesn't
%% undo what was changed meanwhile.
-module(weir_registry).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, make_table/0, put/2, configure/2, delete/1, specs/0, spec/1, compile/1, pairs/1]).
-export([entries/0, entry/1, replicated/1, joined/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([entry/0]).

%% A limiter as nodes tell each other of it; of a deleted one, when that was (Unix time).
-type entry() :: {Name :: binary(), weir_limiter:spec() | {deleted, AtMs :: non_neg_integer()}, version()}.
-type version() :: pos_integer().

%% A change walks the limiter's table: about 20 ns a key.
-define(TIMEOUT, 60000).
-define(PROTOCOL, 1).
%% The counter's unit in a version, which has 32 bits: a million changes of one name.
-define(CHANGE, 4096).
-define(MAX_VERSION, 16#ffffffff).
-define(GOSSIP_MS, 2000).
-define(KEEP_DELETED_MS, 86400000).
-define(MAX_DELETED, 16384).
%% Entries a message.
-define(PART, 256).

%% Who is being told everything, by the monitor of the process that does it; entries that could not be made here.
-record(state, {telling = #{} :: #{reference() => node()}, unfit = #{} :: #{binary() => version()}}).

-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% The table of specifications; belongs to the caller.
-spec make_table() -> ok.
make_table() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

-spec put(weir_limiter:name(), weir_limiter:spec()) -> ok | {error, Message :: binary()}.
put(Name, Spec) ->
    named(put, Name, Spec).

%% As it stands in a configuration: in a cluster that has such a limiter, or deleted it, the cluster's word counts.
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

-spec specs() -> #{binary() => weir_limiter:spec()}.
specs() ->
    maps:from_list([{Name, Spec} || {Name, #{} = Spec, _} <- entries()]).

-spec spec(binary()) -> {ok, weir_limiter:spec()} | error.
spec(Name) ->
    case entry(Name) of
        {_, #{} = Spec, _} -> {ok, Spec};
        _ -> error
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
    case weir_nif:handle(Name) of
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

%% ---- for the other nodes, and this one's machine ----

-spec entries() -> [entry()].
entries() ->
    try ets:tab2list(?MODULE)
    catch error:badarg -> []
    end.

-spec entry(binary()) -> entry() | none.
entry(Name) ->
    try ets:lookup(?MODULE, Name) of
        [Entry] -> Entry;
        [] -> none
    catch error:badarg -> none
    end.

%% What the machine is to know of it. Others may still send births of one that was deleted, and send them again until they are
%% taken: as long as there is a tombstone, the machine has a limiter in whose place everything is over at once.
-spec replicated(entry()) -> {Number :: pos_integer(), weir_machine:terms()} | none.
replicated({Name, #{scope := Scope} = Spec, Version}) when Scope =/= local ->
    {ok, Compiled} = weir_limiter:parse(Spec),
    {weir_limiter:number(Name), weir_limiter:terms(Compiled, Version)};
replicated({Name, {deleted, _}, Version}) ->
    {weir_limiter:number(Name), #{capacity => 1, interval_ns => 1000, version => Version}};
replicated({_, #{scope := local}, _}) ->
    none.

%% A node belongs to the cluster, or is reached again.
-spec joined(node()) -> ok.
joined(Node) ->
    gen_server:cast(?MODULE, {joined, Node}).

%% ---- callbacks ----

%% Limiters of the configuration are made here, unless the other nodes told of them; after a crash those that are there stay
%% as they are.
-spec init([]) -> {ok, #state{}} | {stop, term()}.
init([]) ->
    ok = settle(),
    _ = erlang:send_after(?GOSSIP_MS, self(), gossip),
    State = merge(weir_members:take_limiters(), #state{}),
    case pairs(application:get_env(weir, limiters, #{})) of
        {ok, Limiters} -> make(Limiters, State);
        {error, Reason} -> {stop, Reason}
    end.

%% A crash may have come between a change in the NIF and its entry in the table: what the table says was promised, the rest
%% undone.
settle() ->
    _ = [weir_nif:delete(Name) || {Name, _, _, _, _, _} <- weir_nif:stats(), spec(Name) =:= error,
                                  {ok, Name} =:= weir_limiter:name(Name)],
    _ = [put_nif(Name, Compiled, false) || {Name, #{} = Spec, _} <- entries(), {ok, Compiled} <- [weir_limiter:parse(Spec)]],
    ok.

make([], State) ->
    {ok, State};
make([{Name, Spec} | Limiters], State) ->
    case make_one(Name, Spec) of
        ok -> make(Limiters, State);
        {error, Message} -> {stop, {bad_limiter, Name, Message}}
    end.

make_one(Name, Spec) ->
    case {weir_limiter:name(Name), weir_limiter:parse(Spec)} of
        {{ok, Binary}, {ok, Compiled}} ->
            case entry(Binary) of
                none -> put_named(Name, Binary, Compiled, version(0, Compiled));
                Entry -> differs(Entry, Compiled)
            end;
        {{error, _} = Error, _} -> Error;
        {_, {error, _} = Error} -> Error
    end.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({put, Name, Binary, Compiled}, _From, State) ->
    {reply, changed(Name, Binary, Compiled), State};
handle_call({configure, Name, Binary, Compiled}, _From, State) ->
    Reply = case entry(Binary) of
                none -> told(Binary, put_named(Name, Binary, Compiled, version(0, Compiled)));
                Entry ->
                    case weir_members:others() of
                        [] -> changed(Name, Binary, Compiled);
                        _ -> differs(Entry, Compiled)
                    end
            end,
    {reply, Reply, State};
handle_call({delete, Name}, _From, State) ->
    case entry(Name) of
        {_, #{}, Version} -> {reply, told(Name, delete(Name, Version)), State};
        _ -> {reply, unknown_limiter, State}
    end;
handle_call({compile, Name, Compiled}, _From, State) ->
    {reply, put_nif(Name, Compiled, true), State};
handle_call(_, _From, State) ->
    {reply, {error, <<"unknown request">>}, State}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({joined, Node}, State) ->
    ok = say(Node, {digest, digest()}),
    {noreply, State};
handle_cast(_, State) ->
    {noreply, State}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(gossip, State) ->
    _ = erlang:send_after(?GOSSIP_MS, self(), gossip),
    ok = bury(),
    ok = gossip(weir_members:connected()),
    {noreply, State};
handle_info({?MODULE, ?PROTOCOL, Node, Told}, State) ->
    case is_atom(Node) andalso weir_members:is_member(Node) of
        true -> {noreply, hear(Told, Node, State)};
        false -> {noreply, State}
    end;
handle_info({'DOWN', Monitor, process, _, _}, #state{telling = Telling} = State) ->
    {noreply, State#state{telling = maps:remove(Monitor, Telling)}};
handle_info(_, State) ->
    {noreply, State}.

%% ---- changes ----

%% The same again is no change, on however many nodes it is said.
changed(Name, Binary, #{spec := Spec} = Compiled) ->
    case entry(Binary) of
        {_, Spec, _} ->
            _ = is_atom(Name) andalso weir_nif:alias(Name, Binary),
            ok;
        {_, _, Version} when Version > ?MAX_VERSION - ?CHANGE ->
            {error, <<"this limiter was changed a million times, which is the most: give it another name">>};
        {_, _, Version} ->
            told(Binary, put_named(Name, Binary, Compiled, version(Version div ?CHANGE + 1, Compiled)));
        none ->
            told(Binary, put_named(Name, Binary, Compiled, version(1, Compiled)))
    end.

version(Counter, #{spec := Spec}) ->
    Counter * ?CHANGE + 1 + erlang:phash2(Spec, ?CHANGE - 1).

differs({_, Spec, _}, #{spec := Spec}) ->
    ok;
differs({Name, _, _}, _Compiled) ->
    ?LOG_WARNING(#{what => limiter_not_as_configured, limiter => Name,
                   why => <<"it was changed or deleted while weir ran here or on other nodes, and that counts: weir:put_limiter/2 changes it">>}).

put_named(Name, Binary, #{spec := Spec} = Compiled, Version) ->
    case put_nif(Binary, Compiled, false) of
        ok ->
            _ = is_atom(Name) andalso weir_nif:alias(Name, Binary),
            keep({Binary, Spec, Version});
        {error, _} = Error ->
            Error
    end.

delete(Name, Version) ->
    keep({Name, {deleted, erlang:system_time(millisecond)}, (Version div ?CHANGE + 1) * ?CHANGE + 1}).

keep({Name, What, _} = Entry) ->
    true = ets:insert(?MODULE, Entry),
    _ = is_tuple(What) andalso weir_nif:delete(Name),
    weir_replica:put_limiter(Name).

put_nif(Name, #{capacity := Capacity, interval_ns := IntervalNs, max_keys := MaxKeys, shadow := Shadow,
                on_error := OnError, spec := Spec} = Compiled, Transient) ->
    Replicated = case Spec of
                     #{scope := local} -> local;
                     #{partition := Partition} -> {weir_limiter:number(Name), Partition, weir_limiter:large_hits(Spec)}
                 end,
    case weir_nif:put(Name, Capacity, IntervalNs, MaxKeys, Shadow, OnError =:= deny, Transient, Replicated) of
        created ->
            ok;
        changed ->
            convert(Name);
        busy ->
            ok = convert(Name),
            put_nif(Name, Compiled, Transient);
        fixed ->
            {error, <<"max_keys and scope are chosen when a limiter is made: delete the limiter first, or keep them">>};
        same_number ->
            {error, <<"another limiter has the same number, a hash of its name: choose another name">>};
        too_many when Transient ->
            {error, <<"there are 16384 policies of weir:compile/1 in use already, which is the most: let go of some, "
                      "or give what many requests share a name with weir:put_limiter/2">>};
        too_many ->
            {error, <<"there are 16384 limiters already, which is the most: delete some first">>}
    end.

%% Carries the levels over, a few segments of the table at a time.
convert(Name) ->
    case weir_nif:convert(Name) of
        more -> convert(Name);
        done -> ok
    end.

%% ---- the other nodes ----

told(Name, ok) ->
    Entry = entry(Name),
    lists:foreach(fun(Node) -> say(Node, {entries, [Entry], false}) end, weir_members:connected());
told(_Name, {error, _} = Error) ->
    Error.

%% What doesn't get through now does so after a digest.
say(Node, What) ->
    _ = erlang:send({?MODULE, Node}, {?MODULE, ?PROTOCOL, node(), What}, [nosuspend, noconnect]),
    ok.

gossip([]) -> ok;
gossip(Nodes) -> say(lists:nth(rand:uniform(length(Nodes)), Nodes), {digest, digest()}).

%% Of what exists: a limiter that one has and another deleted shows as well.
digest() ->
    erlang:md5(term_to_binary(lists:sort([{Name, Version} || {Name, #{}, Version} <- entries()]))).

hear({digest, Digest}, Node, State) ->
    case digest() of
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
            {_, Monitor} = spawn_monitor(fun() -> tell(entries(), Answer, Node, Self) end),
            State#state{telling = Telling#{Monitor => Node}}
    end.

%% The answer is asked for with the last part.
tell(Entries, Answer, Node, Self) when length(Entries) =< ?PART ->
    erlang:send({?MODULE, Node}, {?MODULE, ?PROTOCOL, Self, {entries, Entries, Answer}}, [noconnect]);
tell(Entries, Answer, Node, Self) ->
    {Part, Rest} = lists:split(?PART, Entries),
    _ = erlang:send({?MODULE, Node}, {?MODULE, ?PROTOCOL, Self, {entries, Part, false}}, [noconnect]),
    tell(Rest, Answer, Node, Self).

merge(Entries, State) ->
    lists:foldl(fun merge_one/2, State, Entries).

merge_one({Name, Spec, Version} = Entry, State)
  when is_binary(Name), is_integer(Version), Version >= 1, Version =< ?MAX_VERSION ->
    case entry(Name) of
        none -> take(Entry, State);
        {_, _, Old} when Version > Old -> take(Entry, State);
        {_, #{} = Other, Version} when is_map(Spec), Other =/= Spec ->
            %% Two changes at the same time whose hashes are the same: all nodes find the same way out.
            take({Name, max(Spec, Other), min(Version + ?CHANGE, ?MAX_VERSION)}, State);
        _ -> State
    end;
merge_one(_, State) ->
    State.

take({Name, {deleted, At}, _} = Entry, State) when is_integer(At) ->
    case erlang:system_time(millisecond) - At > ?KEEP_DELETED_MS andalso entry(Name) =:= none of
        true ->
            State;
        false ->
            ok = keep(Entry),
            State
    end;
take({Name, Spec, Version}, State) ->
    case {weir_limiter:name(Name), weir_limiter:parse(Spec)} of
        {{ok, Name}, {ok, Compiled}} -> unfit(Name, Version, put_over(Name, Compiled, Version), State);
        {{error, _} = Error, _} -> unfit(Name, Version, Error, State);
        {_, {error, _} = Error} -> unfit(Name, Version, Error, State)
    end.

%% What can't be changed in a limiter may be otherwise in one that was deleted and made again elsewhere.
put_over(Name, Compiled, Version) ->
    case put_named(Name, Name, Compiled, Version) of
        {error, _} ->
            _ = weir_nif:delete(Name),
            put_named(Name, Name, Compiled, Version);
        ok ->
            ok
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
    Deleted = lists:sort([{At, Name} || {Name, {deleted, At}, _} <- entries()]),
    Old = [Name || {At, Name} <- Deleted, Now - At > ?KEEP_DELETED_MS],
    TooMany = [Name || {_, Name} <- lists:sublist(Deleted, max(0, length(Deleted) - ?MAX_DELETED))],
    lists:foreach(fun(Name) ->
                          true = ets:delete(?MODULE, Name),
                          weir_replica:put_limiter(Name)
                  end, Old ++ TooMany).
