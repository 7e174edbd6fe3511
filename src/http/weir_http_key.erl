%% @doc Keys as JSON writes them, and the Erlang terms that they are. Pure.
%%
%% | JSON | Erlang |
%% |---|---|
%% | `"abc"' | `<<"abc">>' (UTF-8) |
%% | `42' | `42' |
%% | `{"ip": "1.2.3.4"}' | `{1,2,3,4}' |
%% | `{"ip": "::1"}' | `{0,0,0,0,0,0,0,1}' |
%% | `{"tuple": ["login", {"ip": "1.2.3.4"}]}' | `{<<"login">>, {1,2,3,4}}' |
%%
%% So an Erlang service and an HTTP client can share a key. Atoms and floats have no form: atoms must not be made from
%% input, and 1 and 1.0 are one number in JSON but two keys in Erlang.
-module(weir_http_key).

-export([from_json/2, ip/1, max_elements/0, max_nesting/0]).

-export_type([key/0]).

-type key() :: binary() | integer() | inet:ip_address() | tuple().

-define(MAX_ELEMENTS, 32).
-define(MAX_NESTING, 4).
%% "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255"
-define(MAX_IP_BYTES, 45).

%% @doc Elements of one tuple, at most.
-spec max_elements() -> pos_integer().
max_elements() -> ?MAX_ELEMENTS.

%% @doc Tuples inside one another, at most.
-spec max_nesting() -> pos_integer().
max_nesting() -> ?MAX_NESTING.

%% @doc The term of a decoded key; refuses (throws) with the path of what is wrong.
-spec from_json(weir_http_json:value(), weir_http_error:path()) -> key().
from_json(Value, Path) ->
    term(Value, Path, 0).

term(String, _Path, _Depth) when is_binary(String) -> String;
term(Integer, _Path, _Depth) when is_integer(Integer) -> Integer;
term({[{<<"ip">>, Address}]}, Path, _Depth) -> address(Address, [<<"ip">> | Path]);
term({[{<<"tuple">>, Elements}]}, Path, Depth) -> tuple(Elements, [<<"tuple">> | Path], Depth + 1);
term(_, Path, _Depth) ->
    wrong(Path, "must be a string, an integer, {\"ip\": \"...\"} or {\"tuple\": [...]}").

tuple(_, Path, Depth) when Depth > ?MAX_NESTING ->
    wrong(Path, ["is nested too deep: ", integer_to_binary(?MAX_NESTING), " tuples at most"]);
tuple(Elements, Path, Depth) when is_list(Elements), Elements =/= [] ->
    case length(Elements) =< ?MAX_ELEMENTS of
        true -> list_to_tuple(elements(Elements, 0, Path, Depth));
        false -> wrong(Path, ["has too many elements: ", integer_to_binary(?MAX_ELEMENTS), " at most"])
    end;
tuple(_, Path, _Depth) ->
    wrong(Path, "must be a list of at least one key").

elements([], _Position, _Path, _Depth) -> [];
elements([Element | Rest], Position, Path, Depth) ->
    [term(Element, [Position | Path], Depth) | elements(Rest, Position + 1, Path, Depth)].

address(Text, Path) when is_binary(Text) ->
    case ip(Text) of
        {ok, Address} -> Address;
        error -> wrong(Path, "must be an IPv4 address (four decimal numbers without leading zeros) or an IPv6 address")
    end;
address(_, Path) ->
    wrong(Path, "must be a string").

%% @doc An IP address from its text. IPv4 must be as it is printed: readers disagree whether `010.0.0.1' is 10.0.0.1 or
%% 8.0.0.1, and a limiter must not count one client under two keys. A zone (`fe80::1%eth0') is no part of an address.
-spec ip(binary()) -> {ok, inet:ip_address()} | error.
ip(Text) when byte_size(Text) =< ?MAX_IP_BYTES ->
    String = binary_to_list(Text),
    case inet:parse_strict_address(String) of
        {ok, V4} when tuple_size(V4) =:= 4 ->
            case inet:ntoa(V4) of
                String -> {ok, V4};
                _ -> error
            end;
        {ok, V6} when tuple_size(V6) =:= 8 ->
            case lists:member($%, String) of
                false -> {ok, V6};
                true -> error
            end;
        {error, einval} ->
            error
    end;
ip(_) ->
    error.

-spec wrong(weir_http_error:path(), iodata()) -> no_return().
wrong(Path, What) ->
    Field = weir_http_error:path(Path),
    weir_http_error:refuse(400, bad_field, [Field, $\s, What], #{field => Field}).
