%% @doc `GET /healthz': 200 while this node decides. It asks the limiters, so a node whose tables are gone answers 500.
-module(weir_http_health).

-behaviour(cowboy_handler).

-export([init/2]).

%% @private
-spec init(cowboy_req:req(), State) -> {ok, cowboy_req:req(), State}.
init(Req, State) ->
    weir_http_request:answer(Req, State, [<<"GET">>, <<"HEAD">>], fun health/1).

health(_Req) ->
    Limiters = maps:size(weir:limiters()),
    {200, weir_http_request:json(), weir_http_json:encode({[{status, ok}, {version, version()}, {limiters, Limiters}]})}.

version() ->
    case application:get_key(weir, vsn) of
        {ok, Version} -> list_to_binary(Version);
        undefined -> null
    end.
