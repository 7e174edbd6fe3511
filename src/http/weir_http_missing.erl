%% @doc Every path that is none: 404, in the form of the other errors.
-module(weir_http_missing).

-behaviour(cowboy_handler).

-export([init/2]).

%% @private
-spec init(cowboy_req:req(), State) -> {ok, cowboy_req:req(), State}.
init(Req, State) ->
    weir_http_request:answer(Req, State, [cowboy_req:method(Req)], fun missing/1).

-spec missing(cowboy_req:req()) -> no_return().
missing(_Req) ->
    weir_http_error:refuse(404, not_found, "there is no such path; doc/http.md lists those that there are").
