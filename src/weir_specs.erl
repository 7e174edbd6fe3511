%% @private
%% @doc The specifications of this node's limiters, in a table of the supervisor's that outlives weir_registry.
%%
%% weir_registry and weir_limiters change it, others read it. An entry is a limiter's specification, or that it was deleted,
%% with its version and source (weir_source). What this node's configuration says is kept beside, as it may turn out to count
%% only when other nodes have told what they know. The rows:
%%
%% ```
%% {Name, What, Version, Source}          what counts
%% {{configured, Name}, Spec, Source}     what this node's configuration says
%% {{advised, Name}}                      the log has said that another scope is better
%% {started, Ms, ConfigVersion}           this node's time of start, and the number of its configuration
%% '''
-module(weir_specs).

%% Limiters.
-export([specs/0, spec/1, is_known/1, sources/0, source/1, entries/0, entry/1, told/1, replicated/1]).
%% The table, for those who change it.
-export([make_table/0, is_there/0, rows/0, row/1, insert/1, delete/1]).
-export([begin_with/1, started/0, config_version/0, configured/1, configure/3, advised/1, unadvised/1]).

-export_type([entry/0, told/0, row/0]).

%% A limiter; of a deleted one, when that was (Unix time).
-type entry() :: {Name :: binary(), weir_source:what(), weir_source:version()}.
%% As nodes tell each other of it. Releases that know no sources skip the second kind.
-type told() :: entry() | {source, Name :: binary(), weir_source:version(), weir_source:source()}.
-type row() :: weir_source:entry().

%% ---- limiters ----

%% @doc Those that exist.
-spec specs() -> #{binary() => weir_limiter:spec()}.
specs() ->
    maps:from_list([{Name, Spec} || {Name, #{} = Spec, _, _} <- rows()]).

-spec spec(binary()) -> {ok, weir_limiter:spec()} | error.
spec(Name) ->
    case row(Name) of
        {_, #{} = Spec, _, _} -> {ok, Spec};
        _ -> error
    end.

%% @doc Is there a limiter of this name?
-spec is_known(weir_limiter:name()) -> boolean().
is_known(Name) ->
    case weir_limiter:name(Name) of
        {ok, Binary} -> spec(Binary) =/= error;
        {error, _} -> false
    end.

-spec sources() -> #{binary() => weir_source:shown()}.
sources() ->
    maps:from_list([{Name, weir_source:map(Source)} || {Name, #{}, _, Source} <- rows()]).

-spec source(binary()) -> {ok, weir_source:shown()} | error.
source(Name) ->
    case row(Name) of
        {_, #{}, _, Source} -> {ok, weir_source:map(Source)};
        _ -> error
    end.

%% @doc All that other nodes are told, tombstones too.
-spec entries() -> [told()].
entries() ->
    told(rows()).

-spec entry(binary()) -> entry() | none.
entry(Name) ->
    case row(Name) of
        {_, What, Version, _} -> {Name, What, Version};
        none -> none
    end.

%% @doc Rows as other nodes are told of them: those of known sources twice.
-spec told([row()]) -> [told()].
told(Rows) ->
    [{Name, What, Version} || {Name, What, Version, _} <- Rows]
        ++ [{source, Name, Version, Source} || {Name, _, Version, Source} <- Rows, Source =/= unknown].

%% @doc What the machine is to know of it. Others may still send births of one that was deleted, and send them again until they are
%% taken: as long as there is a tombstone, the machine has a limiter in whose place everything is over at once.
-spec replicated(told()) -> {Number :: pos_integer(), weir_machine:terms()} | none.
replicated({Name, #{scope := Scope} = Spec, Version}) when Scope =/= local ->
    {ok, Compiled} = weir_limiter:parse(Spec),
    {weir_limiter:number(Name), weir_limiter:terms(Compiled, Version)};
replicated({Name, {deleted, _}, Version}) ->
    {weir_limiter:number(Name), #{capacity => 1, interval_ns => 1000, version => Version}};
replicated({_, #{scope := local}, _}) ->
    none;
replicated({source, _, _, _}) ->
    none.

%% ---- the table ----

%% @doc It belongs to the caller.
-spec make_table() -> ok.
make_table() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

%% @doc Whether weir is started, and isn't being stopped.
-spec is_there() -> boolean().
is_there() ->
    ets:whereis(?MODULE) =/= undefined.

-spec rows() -> [row()].
rows() ->
    try ets:match_object(?MODULE, {'_', '_', '_', '_'})
    catch error:badarg -> []
    end.

-spec row(binary()) -> row() | none.
row(Name) ->
    try ets:lookup(?MODULE, Name) of
        [Row] -> Row;
        [] -> none
    catch error:badarg -> none
    end.

-spec insert(row()) -> ok.
insert(Row) ->
    true = ets:insert(?MODULE, Row),
    ok.

-spec delete(binary()) -> ok.
delete(Name) ->
    true = ets:delete(?MODULE, Name),
    ok.

%% @doc When and with what configuration this node started, unless that is known. Whatever starts after others is later than
%% they are, whatever the clocks say.
-spec begin_with(ConfigVersion :: non_neg_integer()) -> ok.
begin_with(ConfigVersion) ->
    Latest = lists:max([0 | [weir_source:started(Source) || {_, _, _, Source} <- rows()]]),
    _ = ets:insert_new(?MODULE, {started, max(erlang:system_time(millisecond), Latest + 1), ConfigVersion}),
    ok.

-spec started() -> UnixMs :: non_neg_integer().
started() ->
    ets:lookup_element(?MODULE, started, 2).

-spec config_version() -> non_neg_integer().
config_version() ->
    ets:lookup_element(?MODULE, started, 3).

%% @doc What this node's configuration says of a limiter.
-spec configured(binary()) -> {weir_limiter:spec(), weir_source:source()} | none.
configured(Name) ->
    case ets:lookup(?MODULE, {configured, Name}) of
        [{_, Spec, Source}] -> {Spec, Source};
        [] -> none
    end.

-spec configure(binary(), weir_limiter:spec(), weir_source:source()) -> ok.
configure(Name, Spec, Source) ->
    true = ets:insert(?MODULE, {{configured, Name}, Spec, Source}),
    ok.

%% @doc True the first time for a limiter.
-spec advised(binary()) -> boolean().
advised(Name) ->
    ets:insert_new(?MODULE, {{advised, Name}}).

-spec unadvised(binary()) -> ok.
unadvised(Name) ->
    true = ets:delete(?MODULE, {advised, Name}),
    ok.
