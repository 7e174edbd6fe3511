%% @doc Finds the other nodes, and connects to them.
%%
%% weir replicates among the nodes of the Erlang cluster. An application that embeds it has a cluster or does without; who runs
%% weir by itself says in its environment where the nodes are found:
%%
%% ```
%% {weir, [{discovery, {list, #{nodes => ["weir@10.0.0.1", "weir@10.0.0.2"]}}}]}   % also dns, file, etcd
%% '''
%%
%% or `none' (default), or `{Module, Options}' with a module of this behaviour. Nodes found are connected to, again and again
%% until they answer; nodes no longer found are no longer tried, but nobody is disconnected. When a lookup fails, the nodes found
%% before stay.
%%
%% The method runs in a process of its own (weir_discovery_finder), and so does each attempt to connect: this one never waits.
%% Limits: 1024 nodes at a time, 10,000 names ever (weir_discovery_names), 16 attempts at a time.
-module(weir_discovery).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([status/0, start_link/0, start_link/1, child_spec/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([config/0, status/0, next/0, answer/1]).

-type config() :: none | {list | dns | file | etcd | module(), Options :: map()}.
%% When to look again: `backoff' is after half a second at first, then later and later.
-type next() :: Ms :: pos_integer() | infinity | backoff.
-type answer(State) :: {ok, [Name :: binary() | string() | atom()], next(), State} | {error, Message :: term(), next(), State}.
%% `error' is the last one, with Unix time in milliseconds, until a lookup succeeds. `atoms' were made of names found since the
%% VM started; `untried' are found and neither connected nor have they failed to be. The four counts grow; the rest says how it is
%% now.
-type status() :: #{method := atom(), found := [node()], connected := [node()], untried := non_neg_integer(),
                    refused := weir_discovery_names:refused(), error := none | {Message :: binary(), AtMs :: non_neg_integer()},
                    lookups := non_neg_integer(), failed_lookups := non_neg_integer(),
                    attempts := non_neg_integer(), failed_attempts := non_neg_integer(), atoms := non_neg_integer()}.

%% Checks the options, and starts nothing. The message of an error is a sentence for whoever wrote the configuration.
-callback init(Options :: map()) -> {ok, State :: term()} | {error, Message :: unicode:chardata()}.
%% Looks for nodes; may wait.
-callback lookup(State) -> answer(State).
%% Any message to the process in which lookup/1 is called: news, for instance.
-callback handle_info(Message :: term(), State) -> answer(State) | {ignore, State}.
%% Called when weir stops, and waited for a few seconds.
-callback terminate(State :: term()) -> term().
-optional_callbacks([handle_info/2, terminate/1]).

-define(MAX_ATTEMPTS, 16).
%% Between attempts at one node. A node that comes back after long looks for this one itself.
-define(MIN_PAUSE_MS, 500).
-define(MAX_PAUSE_MS, 30000).
%% Until the finder is started again after a crash, and until it is seen again whether this node has a name.
-define(PAUSE_MS, 1000).
%% The finder may have to take this node off a register; then it is killed.
-define(STOP_MS, 4000).
%% Changes are gathered for this long, and logged together.
-define(LOG_MS, 1000).
-define(LOGGED, 10).

%% Where it is with a node: `due' waits for one of the few attempts at a time.
-record(target, {state = due :: connected | due | connecting | {waiting, reference()}, failures = 0 :: non_neg_integer()}).

%% The options are in a fun, so that what they hold of secrets is in no log.
-record(state, {method :: atom(), module :: module(), options :: fun(() -> map()), finder = none :: pid() | none,
                targets = #{} :: #{node() => #target{}},
                %% What was found while this node has no name, and when that is looked at again.
                nameless = none :: none | {[term()], reference()},
                attempts = #{} :: #{reference() => {pid(), node()}},
                refused = #{} :: weir_discovery_names:refused(),
                error = none :: none | {binary(), non_neg_integer()},
                counts = #{lookups => 0, failed_lookups => 0, attempts => 0, failed_attempts => 0} :: #{atom() => non_neg_integer()},
                changes = #{} :: #{atom() => [term()]}}).

%% @doc How discovery stands.
-spec status() -> status().
status() ->
    try gen_server:call(?MODULE, status)
    catch exit:{noproc, _} ->
        #{method => none, found => [], connected => [], untried => 0, refused => #{}, error => none, lookups => 0, failed_lookups => 0,
          attempts => 0, failed_attempts => 0, atoms => weir_discovery_names:atoms_made()}
    end.

%% @private
%% @doc For weir's supervisor. (The configuration is not among the arguments: supervisors log them, and it may hold secrets.)
-spec child_spec() -> supervisor:child_spec().
child_spec() ->
    #{id => ?MODULE, start => {?MODULE, start_link, []}, shutdown => ?STOP_MS + 1000}.

%% @private
-spec start_link() -> {ok, pid()} | ignore | {error, term()}.
start_link() ->
    start_link(application:get_env(weir, discovery, none)).

%% @private
-spec start_link(config() | term()) -> {ok, pid()} | ignore | {error, term()}.
start_link(none) ->
    ignore;
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% ---- callbacks ----

%% @private
-spec init(term()) -> {ok, #state{}} | {stop, {bad_config, discovery, Message :: binary()}}.
init({Method, Options}) when is_atom(Method), is_map(Options) ->
    _ = process_flag(trap_exit, true),
    Module = module(Method),
    case start(Module, Options) of
        {ok, Finder} ->
            ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
            {ok, #state{method = Method, module = Module, options = fun() -> Options end, finder = Finder}};
        {error, Message} ->
            {stop, {bad_config, discovery, unicode:characters_to_binary(Message)}}
    end;
init({Method, _Options}) when is_atom(Method) ->
    {stop, {bad_config, discovery, weir_error:sentence(
        "discovery by ~s takes a map of options, as in {~s, #{...}}", [Method, Method])}};
init(_Config) ->
    {stop, {bad_config, discovery, <<"discovery is none, or {Method, Options} with list, dns, file, etcd or a module of your own "
                                     "as method and a map of options, as in {list, #{nodes => [\"weir@10.0.0.1\"]}}">>}}.

module(list) -> weir_discovery_list;
module(dns) -> weir_discovery_dns;
module(file) -> weir_discovery_file;
module(etcd) -> weir_discovery_etcd;
module(Module) -> Module.

start(Module, Options) ->
    case code:ensure_loaded(Module) of
        {module, _} ->
            case erlang:function_exported(Module, init, 1) andalso erlang:function_exported(Module, lookup, 1) of
                true -> find(Module, Module:init(Options));
                false -> {error, io_lib:format("the module ~s can't discover nodes: it has no init/1 and lookup/1", [Module])}
            end;
        {error, _} ->
            {error, io_lib:format("there is no method of discovery called ~s: there are list, dns, file, etcd, and modules of "
                                  "your own, but no such module is there", [Module])}
    end.

find(Module, {ok, Method}) -> weir_discovery_finder:start_link(Module, Method);
find(_Module, {error, _} = Error) -> Error.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call(status, _From, #state{method = Method, targets = Targets, refused = Refused, error = Error, counts = Counts} = State) ->
    Status = #{method => Method, found => lists:sort(maps:keys(Targets)), connected => nodes_in(connected, Targets),
               untried => length([Is || #target{state = Is, failures = 0} <- maps:values(Targets), Is =:= due orelse Is =:= connecting]),
               refused => Refused, error => Error, atoms => weir_discovery_names:atoms_made()},
    {reply, maps:merge(Status, Counts), State};
handle_call(_, _From, State) ->
    {reply, unknown, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(Message, State) ->
    {noreply, attempt(handle(Message, State))}.

handle({found, Finder, {ok, Names}}, #state{finder = Finder} = State) ->
    found(Names, count(lookups, State));
handle({found, Finder, {error, Message}}, #state{finder = Finder} = State) ->
    wrong(Message, count(failed_lookups, count(lookups, State)));
handle({timeout, Timer, {again, Node}}, #state{targets = Targets} = State) ->
    case Targets of
        #{Node := #target{state = {waiting, Timer}} = Target} -> put_target(Node, Target#target{state = due}, State);
        #{} -> State
    end;
handle({'DOWN', Monitor, process, _, _}, #state{attempts = Attempts} = State) when is_map_key(Monitor, Attempts) ->
    {{_, Node}, Rest} = maps:take(Monitor, Attempts),
    attempted(Node, State#state{attempts = Rest});
handle({nodeup, Node, _}, #state{targets = Targets} = State) when is_map_key(Node, Targets) ->
    connected(Node, State);
handle({nodedown, Node, _}, #state{targets = Targets} = State) when is_map_key(Node, Targets) ->
    lost(Node, State);
handle({'EXIT', Finder, Why}, #state{finder = Finder} = State) ->
    _ = erlang:start_timer(?PAUSE_MS, self(), find),
    wrong(weir_error:sentence("the process that looks for nodes died: ~0tP", [Why, 12]), State#state{finder = none});
handle({timeout, _, find}, #state{finder = none, module = Module, options = Options} = State) ->
    case start(Module, Options()) of
        {ok, Finder} -> State#state{finder = Finder};
        {error, Message} ->
            _ = erlang:start_timer(?PAUSE_MS, self(), find),
            wrong(unicode:characters_to_binary(Message), State)
    end;
handle({timeout, Timer, named}, #state{nameless = {Names, Timer}} = State) ->
    found(Names, State);
handle({timeout, _, log}, State) ->
    log(State),
    State#state{changes = #{}};
handle(_, State) ->
    State.

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_Reason, #state{finder = Finder, attempts = Attempts}) ->
    _ = [exit(Pid, kill) || {Pid, _} <- maps:values(Attempts)],
    stop_finder(Finder).

stop_finder(none) ->
    ok;
stop_finder(Finder) ->
    true = exit(Finder, shutdown),
    receive
        {'EXIT', Finder, _} -> ok
    after ?STOP_MS ->
        true = exit(Finder, kill),
        ok
    end.

%% ---- what was found ----

found(Names, #state{targets = Old, refused = OldRefused} = State) ->
    {Naming, {Nodes, Refused}} = sift(Names, Old),
    Others = lists:delete(node(), Nodes),
    Added = [Node || Node <- Others, not is_map_key(Node, Old)],
    Gone = maps:without(Others, Old),
    _ = [erlang:cancel_timer(Timer) || #target{state = {waiting, Timer}} <- maps:values(Gone)],
    Up = nodes(connected),
    New = maps:from_list([{Node, #target{state = case lists:member(Node, Up) of true -> connected; false -> due end}}
                          || Node <- Added]),
    Changed = changed(added, Added, changed(removed, maps:keys(Gone), State)),
    named(Naming, Names, news(OldRefused, Changed#state{targets = maps:merge(maps:with(Others, Old), New), refused = Refused})).

sift(Names, Old) ->
    case weir_discovery_names:naming() of
        not_alive ->
            {not_alive, {[], #{}}};
        Naming ->
            Keep = sets:from_list([atom_to_binary(Node) || Node <- [node() | maps:keys(Old)]], [{version, 2}]),
            {Naming, weir_discovery_names:sift(Names, Keep, Naming)}
    end.

%% A node may get its name after weir was started.
named(not_alive, Names, State) ->
    wrong(<<"this node has no name, and so can't connect to others: start it with -name weir@ADDRESS">>,
          State#state{nameless = {Names, erlang:start_timer(?PAUSE_MS, self(), named)}});
named(_Naming, _Names, #state{error = none} = State) ->
    State#state{nameless = none};
named(_Naming, _Names, State) ->
    changed(error, [none], State#state{nameless = none, error = none}).

wrong(Message, #state{error = Old} = State) ->
    %% The same again is no news.
    Again = case Old of {Message, _} -> []; _ -> [Message] end,
    changed(error, Again, State#state{error = {Message, weir_clock:now() div 1000000}}).

news(Old, #state{refused = New} = State) ->
    case maps:keys(New) =:= maps:keys(Old) of
        true -> State;
        false -> changed(refused, [New], State)
    end.

%% ---- connecting ----

connected(Node, #state{targets = Targets} = State) ->
    case Targets of
        #{Node := #target{state = connected}} -> State;
        #{Node := #target{state = Was}} ->
            _ = is_tuple(Was) andalso erlang:cancel_timer(element(2, Was)),
            changed(connected, [Node], put_target(Node, #target{state = connected}, State))
    end.

lost(Node, State) ->
    changed(lost, [Node], again(Node, #target{failures = 1}, State)).

%% What came of it is seen in the list of nodes: the answer of an attempt may be older than a `nodedown'.
attempted(Node, #state{targets = Targets} = State) ->
    Up = lists:member(Node, nodes(connected)),
    case Targets of
        #{Node := _} when Up -> connected(Node, State);
        #{Node := #target{state = connecting, failures = Failures} = Target} ->
            Unreachable = [Node || Failures =:= 0],
            changed(unreachable, Unreachable,
                    again(Node, Target#target{failures = Failures + 1}, count(failed_attempts, State)));
        #{} -> State
    end.

again(Node, #target{failures = Failures} = Target, State) ->
    Pause = weir_discovery_finder:backoff(Failures, ?MIN_PAUSE_MS, ?MAX_PAUSE_MS),
    put_target(Node, Target#target{state = {waiting, erlang:start_timer(Pause, self(), {again, Node})}}, State).

%% Nodes that failed least go first, so that many which hang don't keep out the one that would answer.
attempt(#state{attempts = Attempts, targets = Targets} = State) ->
    case ?MAX_ATTEMPTS - map_size(Attempts) of
        Free when Free > 0 ->
            Due = lists:sort([{Failures, Node} || {Node, #target{state = due, failures = Failures}} <- maps:to_list(Targets)]),
            lists:foldl(fun({_, Node}, S) -> attempt(Node, S) end, State, lists:sublist(Due, Free));
        _ ->
            State
    end.

%% (An attempt at a node that was removed and found again may be under way: the second one waits for the same answer.)
attempt(Node, #state{attempts = Attempts, targets = Targets} = State) ->
    {Pid, Monitor} = spawn_monitor(fun() -> net_kernel:connect_node(Node) end),
    Target = maps:get(Node, Targets),
    count(attempts, put_target(Node, Target#target{state = connecting}, State#state{attempts = Attempts#{Monitor => {Pid, Node}}})).

put_target(Node, Target, #state{targets = Targets} = State) ->
    State#state{targets = Targets#{Node => Target}}.

nodes_in(Which, Targets) ->
    lists:sort([Node || {Node, #target{state = Is}} <- maps:to_list(Targets), Is =:= Which]).

%% ---- counting and logging ----

count(What, #state{counts = Counts} = State) ->
    State#state{counts = maps:update_with(What, fun(N) -> N + 1 end, Counts)}.

%% However much changes, there is one line a second.
changed(_What, [], State) ->
    State;
changed(What, Things, #state{changes = Changes} = State) ->
    _ = map_size(Changes) =:= 0 andalso erlang:start_timer(?LOG_MS, self(), log),
    State#state{changes = maps:update_with(What, fun(Old) -> Things ++ Old end, Things, Changes)}.

log(#state{method = Method, changes = Changes, targets = Targets}) ->
    Report = maps:map(fun(_, Things) -> first(lists:usort(Things)) end, Changes),
    Level = case [What || What <- [error, refused, lost, unreachable], is_map_key(What, Changes), Changes =/= #{error => [none]}] of
                [] -> notice;
                _ -> warning
            end,
    ?LOG(Level, Report#{what => discovery, method => Method, found_nodes => map_size(Targets),
                        connected_nodes => length(nodes_in(connected, Targets))}).

first(Things) when length(Things) =< ?LOGGED -> Things;
first(Things) -> lists:sublist(Things, ?LOGGED) ++ [{more, length(Things) - ?LOGGED}].
