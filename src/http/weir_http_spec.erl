%% @doc A limiter's specification in JSON, both ways. Pure.
%%
%% ```
%% {"rate": [5, "minute"], "burst": 5}                  #{rate => {5, minute}, burst => 5}
%% {"rate": [100, [10, "minute"]], "shadow": true}      #{rate => {100, {10, minute}}, shadow => true}
%% '''
%%
%% Words become atoms by the tables below and in no other way. Here the form is checked; whether the limiter can be had is
%% for `weir:put_limiter/2' to say.
-module(weir_http_spec).

-export([parse/1, to_json/1]).

-define(UNITS, [{<<"second">>, second}, {<<"minute">>, minute}, {<<"hour">>, hour}, {<<"day">>, day}]).
-define(ALGORITHMS, [{<<"token_bucket">>, token_bucket}, {<<"sliding_log">>, sliding_log},
                     {<<"sliding_window">>, sliding_window}, {<<"fixed_window">>, fixed_window},
                     {<<"leaky_bucket">>, leaky_bucket}]).
-define(SCOPES, [{<<"local">>, local}, {<<"cluster">>, cluster}, {<<"exact">>, exact}]).
-define(ON_ERROR, [{<<"allow">>, allow}, {<<"deny">>, deny}]).
-define(PARTITION, [{<<"open">>, open}, {<<"share">>, share}, {<<"closed">>, closed}]).
-define(LARGE_HITS, [{<<"admit">>, admit}, {<<"claim">>, claim}]).
%% In the order in which they are shown.
-define(FIELDS, [rate, burst, algorithm, scope, on_error, shadow, max_keys, partition, large_hits, timeout, flush_after]).

%% @doc The specification in a body. Any bytes may be given.
-spec parse(binary()) -> {ok, map()} | {error, weir_http_error:error()}.
parse(Body) ->
    case weir_http_json:decode(Body) of
        {ok, {Fields}} -> weir_http_error:guard(fun() -> spec(Fields, #{}) end);
        {ok, _} -> {error, weir_http_error:new(400, bad_field, "the body must be an object: {\"rate\": [5, \"minute\"]}")};
        {error, Error} -> {error, Error}
    end.

spec([], #{rate := _} = Spec) ->
    Spec;
spec([], _) ->
    wrong(<<"rate">>, "is missing: [5, \"minute\"], or [5, [10, \"minute\"]]");
spec([{Name, Value} | Rest], Spec) ->
    {Field, Type} = field(Name),
    case Spec of
        #{Field := _} -> wrong(Name, "is given twice");
        #{} -> spec(Rest, Spec#{Field => value(Type, Value, Name)})
    end.

field(<<"rate">>) -> {rate, rate};
field(<<"burst">>) -> {burst, positive};
field(<<"algorithm">>) -> {algorithm, {word, ?ALGORITHMS}};
field(<<"scope">>) -> {scope, {word, ?SCOPES}};
field(<<"on_error">>) -> {on_error, {word, ?ON_ERROR}};
field(<<"shadow">>) -> {shadow, boolean};
field(<<"max_keys">>) -> {max_keys, positive};
field(<<"partition">>) -> {partition, {word, ?PARTITION}};
field(<<"large_hits">>) -> {large_hits, {word, ?LARGE_HITS}};
field(<<"timeout">>) -> {timeout, positive};
field(<<"flush_after">>) -> {flush_after, positive};
field(Name) ->
    Field = weir_http_error:cut(Name),
    Known = lists:join(", ", [atom_to_list(Known) || Known <- ?FIELDS]),
    weir_http_error:refuse(400, bad_field, ["there is no field \"", Field, "\": there are ", Known], #{field => Field}).

value(rate, [N, Unit], Name) -> {value(positive, N, <<Name/binary, "[0]">>), unit(Unit, <<Name/binary, "[1]">>)};
value(rate, _, Name) -> wrong(Name, "must be [tokens, unit], as [5, \"minute\"] or [5, [10, \"minute\"]]");
value(positive, N, _Name) when is_integer(N), N > 0 -> N;
value(positive, _, Name) -> wrong(Name, "must be a positive integer");
value(boolean, Flag, _Name) when is_boolean(Flag) -> Flag;
value(boolean, _, Name) -> wrong(Name, "must be true or false");
value({word, Table}, Word, Name) ->
    case lists:keyfind(Word, 1, Table) of
        {_, Atom} -> Atom;
        false -> wrong(Name, ["must be one of ", lists:join(", ", [Known || {Known, _} <- Table])])
    end.

unit([K, Unit], Name) -> {value(positive, K, <<Name/binary, "[0]">>), value({word, ?UNITS}, Unit, <<Name/binary, "[1]">>)};
unit(Unit, Name) -> value({word, ?UNITS}, Unit, Name).

-spec wrong(binary(), iodata()) -> no_return().
wrong(Field, What) ->
    weir_http_error:refuse(400, bad_field, [Field, $\s, What], #{field => Field}).

%% @doc What {@link parse/1} would make this specification of. (`flush_after' that never comes is left out.)
-spec to_json(map()) -> {[{atom(), term()}]}.
to_json(Spec) ->
    {[{Field, plain(maps:get(Field, Spec))} || Field <- ?FIELDS, is_map_key(Field, Spec), maps:get(Field, Spec) =/= infinity]}.

plain({N, Unit}) -> [N, plain(Unit)];
plain(Value) -> Value.
