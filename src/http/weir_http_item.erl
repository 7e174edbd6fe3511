%% @doc What `POST /v1/check' asks: one item, or a list of them. Pure.
%%
%% An item is `{"limiter": Name, "key": Key, "hits": Hits}'; `hits' may be left out and is then 1. A name that is not one of
%% these, or that is given twice, is refused: it is a typing error that would otherwise count under the wrong key.
-module(weir_http_item).

-export([parse/1, max_items/0, max_name_bytes/0]).

-export_type([item/0]).

-type item() :: {Limiter :: binary(), weir_http_key:key(), Hits :: pos_integer()}.

-define(MAX_ITEMS, 1000).
-define(MAX_NAME_BYTES, 255).
-define(MAX_HITS, 16#7FFFFFFFFFFFFFFF).

%% @doc Items in one request, at most.
-spec max_items() -> pos_integer().
max_items() -> ?MAX_ITEMS.

%% @doc Bytes of a limiter's name, at most.
-spec max_name_bytes() -> pos_integer().
max_name_bytes() -> ?MAX_NAME_BYTES.

%% @doc The question in a body. Any bytes may be given; nothing is counted here.
-spec parse(binary()) -> {ok, {one, item()} | {many, [item()]}} | {error, weir_http_error:error()}.
parse(Body) ->
    case weir_http_json:decode(Body) of
        {ok, Value} -> weir_http_error:guard(fun() -> question(Value) end);
        {error, Error} -> {error, Error}
    end.

question({Fields}) -> {one, item(Fields, [])};
question(List) when is_list(List) ->
    case length(List) =< ?MAX_ITEMS of
        true -> {many, items(List, 0)};
        false -> weir_http_error:refuse(413, too_many_items, ["a list may have ", integer_to_binary(?MAX_ITEMS), " items at most"])
    end;
question(_) ->
    weir_http_error:refuse(400, bad_field, "the body must be an object, or a list of objects").

items([], _Position) -> [];
items([{Fields} | Rest], Position) -> [item(Fields, [Position]) | items(Rest, Position + 1)];
items([_ | _], Position) -> wrong([Position], "must be an object").

item(Fields, Path) -> item(Fields, Path, undefined, undefined, undefined).

item([{<<"limiter">>, Name} | Rest], Path, undefined, Key, Hits) -> item(Rest, Path, {Name}, Key, Hits);
item([{<<"key">>, Key} | Rest], Path, Name, undefined, Hits) -> item(Rest, Path, Name, {Key}, Hits);
item([{<<"hits">>, Hits} | Rest], Path, Name, Key, undefined) -> item(Rest, Path, Name, Key, {Hits});
item([{Field, _} | _], Path, _, _, _) -> unexpected(Field, Path);
item([], Path, undefined, _, _) -> wrong([<<"limiter">> | Path], "is missing");
item([], Path, _, undefined, _) -> wrong([<<"key">> | Path], "is missing");
item([], Path, {Name}, {Key}, Hits) ->
    {name(Name, [<<"limiter">> | Path]), weir_http_key:from_json(Key, [<<"key">> | Path]), hits(Hits, [<<"hits">> | Path])}.

name(Name, _Path) when is_binary(Name), Name =/= <<>>, byte_size(Name) =< ?MAX_NAME_BYTES -> Name;
name(_, Path) -> wrong(Path, "must be a limiter's name: a string of 1 to 255 bytes").

hits(undefined, _Path) -> 1;
hits({Hits}, _Path) when is_integer(Hits), Hits > 0, Hits =< ?MAX_HITS -> Hits;
hits(_, Path) -> wrong(Path, "must be a positive integer below 2^63").

-spec unexpected(binary(), weir_http_error:path()) -> no_return().
unexpected(Field, Path) ->
    case lists:member(Field, [<<"limiter">>, <<"key">>, <<"hits">>]) of
        true -> wrong([Field | Path], "is given twice");
        false ->
            At = weir_http_error:path([weir_http_error:cut(Field) | Path]),
            weir_http_error:refuse(400, bad_field, ["there is no field \"", At, "\": there are limiter, key and hits"],
                                   #{field => At})
    end.

-spec wrong(weir_http_error:path(), iodata()) -> no_return().
wrong(Path, What) ->
    Field = weir_http_error:path(Path),
    weir_http_error:refuse(400, bad_field, [Field, $\s, What], #{field => Field}).
