%% @doc `/v1/limiters' and `/v1/limiters/{name}': the limiters that there are, and their change at run time.
%%
%% A GET answers what a PUT of the same path accepts.
-module(weir_http_limiters).

-behaviour(cowboy_handler).

-export([init/2, fields/2, unknown/2]).

%% @private
-spec init(cowboy_req:req(), State) -> {ok, cowboy_req:req(), State}.
init(Req, State) ->
    case cowboy_req:binding(name, Req) of
        undefined ->
            weir_http_request:answer(Req, State, [<<"GET">>, <<"HEAD">>], fun list/1);
        Name ->
            Methods = [<<"GET">>, <<"HEAD">>, <<"PUT">>, <<"DELETE">>],
            weir_http_request:answer(Req, State, Methods, fun(_) -> one(cowboy_req:method(Req), named(Name), Req) end)
    end.

%% @doc The RateLimit fields of an answer by this limiter; none if it was deleted since.
-spec fields(binary(), weir_http_fields:answer()) -> cowboy:http_headers().
fields(Limiter, Answer) ->
    case spec(Limiter) of
        {ok, Spec} -> weir_http_fields:fields(weir_http_fields:policy(Limiter, Spec), Answer);
        error -> #{}
    end.

%% @doc Refuses a request that names a limiter which isn't there.
-spec unknown(binary(), weir_http_error:at()) -> no_return().
unknown(Name, At) ->
    weir_http_error:refuse(404, unknown_limiter, ["there is no limiter \"", weir_http_error:cut(Name), $"], At).

list(_Req) ->
    Specs = [{Name, weir_http_spec:to_json(Spec)} || {Name, Spec} <- lists:sort(maps:to_list(weir:limiters()))],
    Sources = [{Name, {lists:sort(maps:to_list(Source))}} || {Name, Source} <- lists:sort(maps:to_list(weir:sources()))],
    {200, weir_http_request:json(), weir_http_json:encode({[{<<"limiters">>, {Specs}}, {<<"sources">>, {Sources}}]})}.

one(<<"PUT">>, Name, Req) -> put_limiter(utf8(Name), weir_http_request:body(Req));
one(<<"DELETE">>, Name, _Req) -> delete(Name);
one(_Get, Name, _Req) -> shown(200, Name).

put_limiter(Name, Body) ->
    case weir_http_spec:parse(Body) of
        {ok, Spec} ->
            Known = weir_specs:is_known(Name),
            try
                ok = weir:put_limiter(Name, Spec)
            catch
                error:badarg:Stack -> weir_http_error:refuse(400, bad_limiter, weir_error:explain(badarg, Stack))
            end,
            shown(case Known of true -> 200; false -> 201 end, Name);
        {error, Error} ->
            throw({refused, Error})
    end.

delete(Name) ->
    try weir:delete_limiter(Name) of
        ok -> {204, #{}, <<>>}
    catch
        error:badarg -> unknown(Name, #{})
    end.

shown(Status, Name) ->
    case spec(Name) of
        {ok, Spec} -> {Status, weir_http_request:json(), weir_http_json:encode(weir_http_spec:to_json(Spec))};
        error -> unknown(Name, #{})
    end.

spec(Name) ->
    weir_specs:spec(Name).

%% The name outlives the request, so it must not hold on to the request's bytes.
named(Name) when byte_size(Name) =< 255 ->
    binary:copy(Name);
named(_) ->
    weir_http_error:refuse(400, bad_name, "a limiter's name has 1 to 255 bytes").

%% JSON has no other names, so nobody could ask such a limiter over HTTP.
utf8(Name) ->
    case unicode:characters_to_binary(Name) of
        Name -> Name;
        _ -> weir_http_error:refuse(400, bad_name, "a limiter's name must be UTF-8")
    end.
