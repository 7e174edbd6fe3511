%% @doc `POST /v1/check': decides, and counts what is allowed.
%%
%% One item answers 200 or 429, with the fields of {@link weir_http_fields}. A list answers 200 and a list in the same
%% order, each decided on its own in one call; without the fields, which have no way to say which item they mean.
%%
%% This is the path that services wait for: no `cowboy_rest', no process, no message; the answer is put together by hand.
-module(weir_http_check).

-behaviour(cowboy_handler).

-export([init/2]).

%% @private
-spec init(cowboy_req:req(), State) -> {ok, cowboy_req:req(), State}.
init(Req, State) ->
    weir_http_request:answer(Req, State, [<<"POST">>], fun check/1).

check(Req) ->
    case weir_http_item:parse(weir_http_request:body(Req)) of
        {ok, {one, Item}} -> one(Item);
        {ok, {many, Items}} -> many(Items);
        {error, Error} -> throw({refused, Error})
    end.

one({Limiter, Key, Hits} = Item) ->
    try weir:decide(Limiter, Key, Hits) of
        Answer ->
            Fields = maps:merge(weir_http_request:json(), weir_http_limiters:fields(Limiter, Answer)),
            {status(Answer), Fields, text(Answer)}
    catch
        error:badarg:Stack -> blame([{[], Item}], Stack)
    end.

many(Items) ->
    try weir:decide_many(Items) of
        Answers -> {200, weir_http_request:json(), [$[, lists:join($,, [text(Answer) || Answer <- Answers]), $]]}
    catch
        error:badarg:Stack ->
            Positions = lists:seq(0, length(Items) - 1),
            blame(lists:zip([[Position] || Position <- Positions], Items), Stack)
    end.

status(#{allowed := true}) -> 200;
status(#{allowed := false}) -> 429.

text(#{allowed := Allowed, limit := Limit, remaining := Remaining, reset_ms := ResetMs, retry_ms := RetryMs}) ->
    [allowed(Allowed), integer_to_binary(Limit),
     <<",\"remaining\":">>, integer_to_binary(Remaining),
     <<",\"reset_ms\":">>, integer_to_binary(ResetMs),
     <<",\"retry_ms\":">>, retry(RetryMs), $}].

allowed(true) -> <<"{\"allowed\":true,\"limit\":">>;
allowed(false) -> <<"{\"allowed\":false,\"limit\":">>.

retry(infinity) -> <<"null">>;
retry(Ms) -> integer_to_binary(Ms).

%% Types and ranges are right, so what weir refuses is nearly always a limiter that isn't there. To look for it now costs
%% nothing where there is nothing to blame.
-spec blame([{weir_http_error:path(), weir_http_item:item()}], erlang:stacktrace()) -> no_return().
blame(Items, Stack) ->
    case [{Path, Limiter} || {Path, {Limiter, _, _}} <- Items, not weir_specs:is_known(Limiter)] of
        [{Path, Limiter} | _] ->
            weir_http_limiters:unknown(Limiter, #{field => weir_http_error:path([<<"limiter">> | Path])});
        [] ->
            weir_http_error:refuse(400, bad_request, weir_error:explain(badarg, Stack))
    end.
