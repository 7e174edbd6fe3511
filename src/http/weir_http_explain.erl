%% @doc `GET /v1/explain?limiter=login&ip=1.2.3.4': what a limiter knows of a key. Counts nothing.
%%
%% The key is given by exactly one of `key' (a string), `ip' (an address), `int' (an integer) and `json' (any key as
%% `POST /v1/check' takes it).
-module(weir_http_explain).

-behaviour(cowboy_handler).

-export([init/2, query/1]).

-define(MAX_INTEGER_DIGITS, 40).

%% @private
-spec init(cowboy_req:req(), State) -> {ok, cowboy_req:req(), State}.
init(Req, State) ->
    weir_http_request:answer(Req, State, [<<"GET">>, <<"HEAD">>], fun explain/1).

explain(Req) ->
    {Limiter, Key} = asked(cowboy_req:qs(Req)),
    try weir:explain(Limiter, Key) of
        Explanation -> {200, weir_http_request:json(), weir_http_json:encode(plain(Explanation))}
    catch
        error:badarg:Stack ->
            case weir_specs:is_known(Limiter) of
                true -> weir_http_error:refuse(400, bad_query, weir_error:explain(badarg, Stack));
                false -> weir_http_limiters:unknown(Limiter, #{query => <<"limiter">>})
            end
    end.

asked(Text) ->
    case query(Text) of
        {ok, Asked} -> Asked;
        {error, Error} -> throw({refused, Error})
    end.

%% @doc Limiter and key of a query string. Pure; any bytes may be given.
-spec query(binary()) -> {ok, {binary(), weir_http_key:key()}} | {error, weir_http_error:error()}.
query(Text) ->
    weir_http_error:guard(
        fun() ->
            Parameters = try cow_qs:parse_qs(Text)
                         catch error:_ -> weir_http_error:refuse(400, bad_query, "the query has a bad percent-encoding")
                         end,
            limiter_and_key(Parameters)
        end).

limiter_and_key(Parameters) ->
    case lists:partition(fun({Name, _}) -> Name =:= <<"limiter">> end, Parameters) of
        {[{_, Limiter}], [{Name, Value}]}
                when is_binary(Limiter), Limiter =/= <<>>, byte_size(Limiter) =< 255, is_binary(Value) ->
            {Limiter, key(Name, Value)};
        {[_], [_]} -> wrong(<<"limiter">>, "needs a value of 1 to 255 bytes, and the key needs one");
        {[_], _} -> wrong(<<"key">>, "must be given once, as key, ip, int or json");
        {_, _} -> wrong(<<"limiter">>, "must be given once")
    end.

key(<<"key">>, Value) -> Value;
key(<<"ip">>, Value) ->
    case weir_http_key:ip(Value) of
        {ok, Address} -> Address;
        error -> wrong(<<"ip">>, "must be an IPv4 address (four decimal numbers without leading zeros) or an IPv6 address")
    end;
key(<<"int">>, Value) when byte_size(Value) =< ?MAX_INTEGER_DIGITS ->
    try binary_to_integer(Value)
    catch error:badarg -> wrong(<<"int">>, "must be an integer")
    end;
key(<<"int">>, _) ->
    wrong(<<"int">>, "is too long");
key(<<"json">>, Value) ->
    case weir_http_json:decode(Value) of
        {ok, Key} -> weir_http_key:from_json(Key, [<<"json">>]);
        {error, Error} -> throw({refused, Error})
    end;
key(Name, _) ->
    Parameter = weir_http_error:cut(Name),
    weir_http_error:refuse(400, bad_query, ["there is no parameter \"", Parameter, "\": there are limiter, key, ip, int and json"],
                           #{query => Parameter}).

-spec wrong(binary(), iodata()) -> no_return().
wrong(Parameter, What) ->
    weir_http_error:refuse(400, bad_query, [Parameter, $\s, What], #{query => Parameter}).

plain(Map) when is_map(Map) -> {[{Name, plain(Value)} || {Name, Value} <- lists:sort(maps:to_list(Map))]};
plain(infinity) -> null;
plain(List) when is_list(List) -> [plain(Element) || Element <- List];
plain(Tuple) when is_tuple(Tuple) -> [plain(Element) || Element <- tuple_to_list(Tuple)];
plain(Value) -> Value.
