%% @doc What a refused request is told: an HTTP status and one JSON object, of the same form everywhere:
%%
%% ```
%% {"error": {"code": "bad_field",
%%            "message": "[3].hits must be a positive integer below 2^63",
%%            "at": {"field": "[3].hits"}}}
%% '''
%%
%% `code' is for programs and stable, `message' is for people and is not. `at' says where, when there is a where: a
%% `field' of the body, a place in its text (`byte', `line', `column', each from 1), or a parameter of the `query'.
%%
%% The parsers refuse by {@link refuse/4}, which throws; {@link guard/1} is the other end, and turns the throw into a
%% value. Pure: no process, no state.
-module(weir_http_error).

-export([new/3, new/4, refuse/3, refuse/4, guard/1, body/1, path/1, cut/1]).

-export_type([error/0, at/0, path/0]).

-type status() :: 400..599.
-type at() :: #{field => binary(), query => binary(), byte => pos_integer(), line => pos_integer(), column => pos_integer()}.
-type error() :: {status(), #{code := atom(), message := binary(), at => at()}}.
%% Innermost step first; integers are positions in a list, from 0.
-type path() :: [binary() | non_neg_integer()].

%% @doc An error without a place.
-spec new(status(), Code :: atom(), Message :: iodata()) -> error().
new(Status, Code, Message) ->
    {Status, #{code => Code, message => iolist_to_binary(Message)}}.

%% @doc An error with a place, unless that is empty.
-spec new(status(), Code :: atom(), Message :: iodata(), at()) -> error().
new(Status, Code, Message, At) when map_size(At) =:= 0 ->
    new(Status, Code, Message);
new(Status, Code, Message, At) ->
    {Status, #{code => Code, message => iolist_to_binary(Message), at => At}}.

%% @doc Gives up on the request in hand; caught by {@link guard/1} or by `weir_http_request'.
-spec refuse(status(), Code :: atom(), Message :: iodata()) -> no_return().
refuse(Status, Code, Message) ->
    throw({refused, new(Status, Code, Message)}).

%% @doc As {@link refuse/3}, with a place.
-spec refuse(status(), Code :: atom(), Message :: iodata(), at()) -> no_return().
refuse(Status, Code, Message, At) ->
    throw({refused, new(Status, Code, Message, At)}).

%% @doc Runs a parser: its value, or the error by which it refused.
-spec guard(fun(() -> Value)) -> {ok, Value} | {error, error()}.
guard(Parser) ->
    try
        {ok, Parser()}
    catch
        throw:{refused, Error} -> {error, Error}
    end.

%% @doc The JSON text of an error.
-spec body(error()) -> iodata().
body({_Status, Error}) ->
    At = [{at, members([field, query, byte, line, column], At)} || #{at := At} <- [Error]],
    {Members} = members([code, message], Error),
    jiffy:encode({[{error, {Members ++ At}}]}, [force_utf8]).

members(Order, Map) ->
    {[{Name, maps:get(Name, Map)} || Name <- Order, is_map_key(Name, Map)]}.

%% @doc A path as people write it: `[3].key.tuple[1]'. The empty path is the body itself.
-spec path(path()) -> binary().
path(Path) ->
    iolist_to_binary(lists:foldl(fun step/2, [], lists:reverse(Path))).

step(Position, Before) when is_integer(Position) -> [Before, $[, integer_to_binary(Position), $]];
step(Field, []) -> [Field];
step(Field, Before) -> [Before, $., Field].

%% @doc A name from outside, cut to a length that is fit for a message.
-spec cut(binary()) -> binary().
cut(Name) when byte_size(Name) =< 64 -> Name;
cut(Name) -> <<(binary:part(Name, 0, 64))/binary, "...">>.
