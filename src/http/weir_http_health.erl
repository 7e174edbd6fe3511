%% @doc `GET /healthz': 200 while this node decides. It asks the limiters, so a node whose tables are gone answers 500; one that
%% has just started and does not know yet what the others know answers 503.
-module(weir_http_health).

-behaviour(cowboy_handler).

-export([init/2]).

%% @private
-spec init(cowboy_req:req(), State) -> {ok, cowboy_req:req(), State}.
init(Req, State) ->
    weir_http_request:answer(Req, State, [<<"GET">>, <<"HEAD">>], fun health/1).

health(_Req) ->
    Limiters = maps:size(weir:limiters()),
    About = [{version, version()}, {limiters, Limiters}],
    case weir_ready:check() of
        ready -> answer(200, #{}, [{status, ok} | About]);
        {wait, Why} -> answer(503, #{<<"retry-after">> => <<"1">>}, [{status, starting}, {waits_for, Why} | About])
    end.

answer(Status, Fields, Body) ->
    {Status, maps:merge(weir_http_request:json(), Fields), weir_http_json:encode({Body})}.

version() ->
    case application:get_key(weir, vsn) of
        {ok, Version} -> list_to_binary(Version);
        undefined -> null
    end.
