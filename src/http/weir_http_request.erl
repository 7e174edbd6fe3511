%% @doc What every resource does alike: methods, bodies, and the way from an outcome to a response.
%%
%% A resource is a function from a request to `{Status, Fields, Body}'. It refuses by `weir_http_error:refuse/3,4'. Anything
%% else that it raises is a fault of weir: the client is told 500 without details, and the log gets the class, the kind of
%% reason and the stack trace without arguments, because arguments hold keys, and keys are people's addresses and logins.
%%
%% Runs in cowboy's process of the request; keeps nothing.
-module(weir_http_request).

-include_lib("kernel/include/logger.hrl").

-export([answer/4, body/1, json/0, max_body_bytes/0]).

-export_type([outcome/0]).

-type outcome() :: {cowboy:http_status(), cowboy:http_headers(), iodata()}.

-define(MAX_BODY_BYTES, 65536).
%% A body must have come whole within this time, however it trickles. Below the connection's idle timeout, so that the
%% client is told 408 rather than cut off.
-define(BODY_TIMEOUT_MS, 10000).

%% @doc Bytes of a request's body, at most.
-spec max_body_bytes() -> pos_integer().
max_body_bytes() -> ?MAX_BODY_BYTES.

%% @doc Fields of a JSON answer. What a limiter says is old when it is said: no cache may keep it.
-spec json() -> cowboy:http_headers().
json() ->
    #{<<"content-type">> => <<"application/json">>, <<"cache-control">> => <<"no-store">>}.

%% @doc Answers a request by a resource that knows these methods; the value is what cowboy's `init/2' returns.
-spec answer(cowboy_req:req(), State, Methods :: [binary()], fun((cowboy_req:req()) -> outcome())) ->
    {ok, cowboy_req:req(), State}.
answer(Req, State, Methods, Resource) ->
    {Status, Fields, Body} =
        case lists:member(cowboy_req:method(Req), Methods) of
            true -> outcome(Req, Resource);
            false -> not_allowed(Req, Methods)
        end,
    {ok, cowboy_req:reply(Status, Fields, Body, Req), State}.

outcome(Req, Resource) ->
    try
        Resource(Req)
    catch
        throw:{refused, Error} ->
            refused(Error);
        Class:Reason:Stack ->
            ?LOG_ERROR(#{what => http_request_failed, method => cowboy_req:method(Req), resource => cowboy_req:path(Req),
                         class => Class, reason => kind(Reason), stack => [bare(Frame) || Frame <- Stack]}),
            refused(weir_http_error:new(500, internal, "weir failed to answer; its log says more"))
    end.

refused({Status, _} = Error) ->
    {Status, json(), weir_http_error:body(Error)}.

not_allowed(Req, Methods) ->
    Message = [cowboy_req:method(Req), " is not a method of ", cowboy_req:path(Req)],
    {Status, Fields, Body} = refused(weir_http_error:new(405, method_not_allowed, Message)),
    {Status, Fields#{<<"allow">> => lists:join(<<", ">>, Methods)}, Body}.

kind(Reason) when is_atom(Reason) -> Reason;
kind(Reason) when is_tuple(Reason), tuple_size(Reason) > 0, is_atom(element(1, Reason)) -> element(1, Reason);
kind(_) -> other.

bare({Module, Function, Arguments, Info}) when is_list(Arguments) ->
    {Module, Function, length(Arguments), proplists:delete(error_info, Info)};
bare({Module, Function, Arity, Info}) ->
    {Module, Function, Arity, proplists:delete(error_info, Info)}.

%% @doc The whole body; refuses one that is too long (413), too slow (408) or compressed (415).
%%
%% `Content-Type' is not looked at: there is one format, and `curl -d' calls everything a form.
-spec body(cowboy_req:req()) -> binary().
body(Req) ->
    case cowboy_req:header(<<"content-encoding">>, Req, <<"identity">>) of
        <<"identity">> -> ok;
        _ -> weir_http_error:refuse(415, unsupported_encoding, "the body must come without a content-encoding")
    end,
    case cowboy_req:body_length(Req) of
        Length when is_integer(Length), Length > ?MAX_BODY_BYTES -> too_large();
        _ -> read(Req)
    end.

%% One byte more than is allowed is asked for, so that "too long" and "too slow" can be told apart.
read(Req) ->
    case cowboy_req:read_body(Req, #{length => ?MAX_BODY_BYTES + 1, period => ?BODY_TIMEOUT_MS}) of
        {ok, Body, _} when byte_size(Body) =< ?MAX_BODY_BYTES -> Body;
        {more, Body, _} when byte_size(Body) =< ?MAX_BODY_BYTES ->
            weir_http_error:refuse(408, too_slow, "the body did not come in time");
        {_, _, _} -> too_large()
    end.

-spec too_large() -> no_return().
too_large() ->
    weir_http_error:refuse(413, too_large, ["a body may have ", integer_to_binary(?MAX_BODY_BYTES), " bytes at most"]).
