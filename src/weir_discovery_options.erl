%% @private
%% @doc The options of the ways of discovery: the map beside a method's name in weir's environment. Pure.
-module(weir_discovery_options).

-export([parse/3]).
%% Kinds of values.
-export([text/1, milliseconds/1, seconds/1, flag/1]).

-export_type([option/0]).

%% An option's name, its default, its kind, and what it must be, in words. A kind answers the value as it is used. What is
%% given for a secret option stands in no message.
-type option() :: {Name :: atom(), required | {default, term()} | {secret, Default :: term()},
                   fun((term()) -> {ok, term()} | error), What :: string()}.

%% An hour, in milliseconds: who polls more rarely may as well not.
-define(MAX_MS, 3600000).

%% @doc The options with their defaults, or a sentence that says which one is wrong.
-spec parse(Method :: atom(), map() | term(), [option()]) -> {ok, #{atom() => term()}} | {error, Message :: binary()}.
parse(Method, Given, Options) when is_map(Given) ->
    Names = [element(1, O) || O <- Options],
    case maps:keys(maps:without(Names, Given)) of
        [] -> values(Method, Given, Options, #{});
        [Unknown | _] ->
            {error, weir_error:sentence("discovery by ~s has no option ~0tP: there are ~s",
                             [Method, Unknown, 12, lists:join(", ", [atom_to_list(N) || N <- Names])])}
    end;
parse(Method, Given, _Options) ->
    {error, weir_error:sentence("discovery by ~s takes a map of options, as in {~s, #{...}}, not ~0tP", [Method, Method, Given, 12])}.

values(_Method, _Given, [], Values) ->
    {ok, Values};
values(Method, Given, [{Name, Default, Kind, What} | Options], Values) ->
    case {Given, Default} of
        {#{Name := Value}, _} ->
            case Kind(Value) of
                {ok, Used} -> values(Method, Given, Options, Values#{Name => Used});
                error -> {error, weir_error:sentence("discovery by ~s: ~s must be ~ts~ts", [Method, Name, What, was(Value, Default)])}
            end;
        {_, required} ->
            {error, weir_error:sentence("discovery by ~s: ~s is missing; it must be ~ts", [Method, Name, What])};
        {_, {_, Value}} ->
            values(Method, Given, Options, Values#{Name => Value})
    end.

was(_Value, {secret, _}) -> "";
was(Value, _) -> io_lib:format(", not ~0tP", [Value, 12]).

%% @doc A string or binary that isn't empty, as a string.
-spec text(term()) -> {ok, string()} | error.
text(Text) when is_binary(Text); is_list(Text) ->
    try unicode:characters_to_list(Text) of
        [_ | _] = String -> {ok, String};
        _ -> error
    catch
        error:badarg -> error
    end;
text(_) ->
    error.

-spec milliseconds(term()) -> {ok, pos_integer()} | error.
milliseconds(Ms) when is_integer(Ms), Ms >= 1, Ms =< ?MAX_MS -> {ok, Ms};
milliseconds(_) -> error.

-spec seconds(term()) -> {ok, pos_integer()} | error.
seconds(S) when is_integer(S), S >= 1, S * 1000 =< ?MAX_MS -> {ok, S};
seconds(_) -> error.

-spec flag(term()) -> {ok, boolean()} | error.
flag(Flag) when is_boolean(Flag) -> {ok, Flag};
flag(_) -> error.
