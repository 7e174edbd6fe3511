%% @private
%% @doc The options of `cluster' in weir's environment: each with its unit, the least and the most that it may be, and its default.
%% The table of doc/cluster.md ("Options") is this one, with what each means; a test compares them. Pure, but for {@link get/0}.
-module(weir_cluster_options).

-export([table/0, get/0, check/1, machine/1]).

-export_type([options/0]).

-type options() :: #{peer_timeout := pos_integer(), forget_after := pos_integer(), leave_on_stop := boolean(),
                     atom() => non_neg_integer() | boolean()}.
-type option() :: {Name :: atom(), Unit :: ms | keys | bytes | number | boolean, Least :: non_neg_integer(), Most :: pos_integer(),
                   Default :: non_neg_integer() | boolean()}.

%% Below the least, a moment's pause of a node would count as its absence; the most is a year.
-define(LEAST_PATIENCE_MS, 1000).
-define(MOST_MS, 31536000000).
%% Ages of records are counted in 16 bits (history.hpp).
-define(MOST_KEPT_MS, 3600000).
-define(MOST_KEYS, 1 bsl 32).
-define(MOST_BYTES, 1 bsl 36).

%% @doc All options. Those that the machine has, have its defaults.
-spec table() -> [option()].
table() ->
    {Times, Limits} = weir_machine:limits(),
    [{leave_on_stop, boolean, 0, 1, false} |
     [{Name, ms, least(Name, Least), most(Name), Default div 1000000} || {Name, Least, Default} <- Times] ++
         [{Name, unit(Name), Least, most(Name), Default} || {Name, Least, Default} <- Limits]].

least(Name, _) when Name =:= peer_timeout; Name =:= forget_after -> ?LEAST_PATIENCE_MS;
least(_, LeastNs) -> LeastNs div 1000000.

unit(Name) when Name =:= max_keys; Name =:= piece_keys; Name =:= max_resets; Name =:= max_tells; Name =:= max_estates -> keys;
unit(Name) when Name =:= max_claims; Name =:= pieces -> number;
unit(_) -> bytes.

most(keep_others) -> ?MOST_KEPT_MS;
most(Name) ->
    {Times, _} = weir_machine:limits(),
    case {lists:keymember(Name, 1, Times), unit(Name)} of
        {true, _} -> ?MOST_MS;
        {_, bytes} -> ?MOST_BYTES;
        _ -> ?MOST_KEYS
    end.

%% @doc What is configured, and the defaults of what isn't. The message of an error is a sentence for whoever wrote the
%% configuration.
-spec get() -> {ok, options()} | {error, Message :: binary()}.
get() ->
    check(application:get_env(weir, cluster, #{})).

-spec check(term()) -> {ok, options()} | {error, Message :: binary()}.
check(#{} = Given) ->
    Table = table(),
    Known = [Name || {Name, _, _, _, _} <- Table],
    case [Name || Name <- maps:keys(Given), not lists:member(Name, Known)] of
        [Unknown | _] -> {error, weir_error:sentence("cluster has no option ~ts", [weir_options:unknown(Unknown, Known)])};
        [] -> values(maps:to_list(Given), Table, maps:merge(maps:from_list([{N, D} || {N, _, _, _, D} <- Table]), Given))
    end;
check(Other) ->
    {error, weir_error:sentence("cluster is a map, as in #{peer_timeout => 2000}, got ~0tP", [Other, 12])}.

values([], _Table, #{heartbeat_interval := Heartbeat, peer_timeout := Timeout}) when 2 * Heartbeat > Timeout ->
    {error, weir_error:sentence("heartbeat_interval is at most half of peer_timeout, or nodes that are well would be taken for away: got ~b and ~b ms",
                    [Heartbeat, Timeout])};
values([], _Table, Options) ->
    {ok, Options};
values([{Name, Value} | Given], Table, Options) ->
    {_, Unit, Least, Most, _} = lists:keyfind(Name, 1, Table),
    case good(Unit, Value, Least, Most) of
        true -> values(Given, Table, Options);
        false -> {error, weir_error:sentence("~ts of cluster is ~ts, got ~0tP", [Name, range(Unit, Least, Most), Value, 12])}
    end.

good(boolean, Value, _, _) -> is_boolean(Value);
good(_, Value, Least, Most) -> is_integer(Value) andalso Value >= Least andalso Value =< Most.

range(boolean, _, _) -> "true or false";
range(ms, Least, Most) -> io_lib:format("from ~b to ~b milliseconds", [Least, Most]);
range(number, Least, Most) -> io_lib:format("from ~b to ~b", [Least, Most]);
range(Unit, Least, Most) -> io_lib:format("from ~b to ~b ~s", [Least, Most, Unit]).

%% @doc What of these options is the machine's, in its units.
-spec machine(options()) -> #{atom() => non_neg_integer()}.
machine(Options) ->
    {Times, Limits} = weir_machine:limits(),
    maps:merge(maps:map(fun(_, Ms) -> Ms * 1000000 end, maps:with([Name || {Name, _, _} <- Times], Options)),
               maps:with([Name || {Name, _, _} <- Limits], Options)).
