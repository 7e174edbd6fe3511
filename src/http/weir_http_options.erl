%% @doc The options of the HTTP service: the map under `http' in weir's environment. Pure.
%%
%% - `ip' (default "127.0.0.1") and `port' (default 8080; 0 lets the system choose): where to listen.
%% - `max_connections' (default 10000): further ones wait in the system's queue.
%% - `drain_ms' (default 5000): how long running requests may take to finish when weir stops.
-module(weir_http_options).

-export([parse/1, drain_ms/1]).

-export_type([given/0, options/0]).

-type given() :: #{ip => string() | binary() | inet:ip_address(), port => inet:port_number(),
                   max_connections => pos_integer(), drain_ms => non_neg_integer()}.
-type options() :: #{ip := inet:ip_address(), port := inet:port_number(),
                     max_connections := pos_integer(), drain_ms := non_neg_integer()}.

-define(DEFAULTS, #{ip => {127, 0, 0, 1}, port => 8080, max_connections => 10000, drain_ms => 5000}).
%% Supervisors and receive timeouts take no more; nobody waits an hour for a stop.
-define(MAX_DRAIN_MS, 3600000).

%% @doc The options with their defaults, or a sentence that says which one is wrong.
-spec parse(map()) -> {ok, options()} | {error, iodata()}.
parse(Given) ->
    case maps:keys(maps:without(maps:keys(?DEFAULTS), Given)) of
        [] ->
            Options = maps:merge(?DEFAULTS, Given),
            check([ip, port, max_connections, drain_ms], Options);
        [Unknown | _] ->
            {error, io_lib:format("http has no option ~0p: there are ip, port, max_connections and drain_ms", [Unknown])}
    end.

%% @doc The option `drain_ms' of options that need not be valid: the default, where they are not.
-spec drain_ms(map()) -> non_neg_integer().
drain_ms(Given) ->
    case parse(Given) of
        {ok, #{drain_ms := Ms}} -> Ms;
        {error, _} -> maps:get(drain_ms, ?DEFAULTS)
    end.

check([], Options) ->
    {ok, Options};
check([Name | Rest], Options) ->
    Given = maps:get(Name, Options),
    case value(Name, Given) of
        {ok, Value} -> check(Rest, Options#{Name := Value});
        {error, What} -> {error, io_lib:format("http's ~s must be ~s, not ~0p", [Name, What, Given])}
    end.

value(ip, Ip) -> address(Ip);
value(port, Port) when is_integer(Port), Port >= 0, Port =< 65535 -> {ok, Port};
value(port, _) -> {error, "a port from 0 to 65535"};
value(max_connections, N) when is_integer(N), N > 0 -> {ok, N};
value(max_connections, _) -> {error, "a positive integer"};
value(drain_ms, Ms) when is_integer(Ms), Ms >= 0, Ms =< ?MAX_DRAIN_MS -> {ok, Ms};
value(drain_ms, _) -> {error, "milliseconds from 0 to 3600000"}.

address(Ip) when is_tuple(Ip) ->
    case inet:is_ip_address(Ip) of
        true -> {ok, Ip};
        false -> no_address()
    end;
address(Ip) when is_binary(Ip); is_list(Ip) ->
    try inet:parse_strict_address(unicode:characters_to_list(Ip)) of
        {ok, Address} -> {ok, Address};
        {error, _} -> no_address()
    catch
        error:_ -> no_address()
    end;
address(_) ->
    no_address().

no_address() ->
    {error, "an IP address such as \"127.0.0.1\""}.
