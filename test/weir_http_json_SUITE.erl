%% What HTTP clients send and are sent, without a socket: JSON, keys, limiters, response fields. All of it is pure.
%% Shows R10 of doc/requirements.md.
-module(weir_http_json_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

all() ->
    [bad_json_has_a_place, json_is_limited, items_are_read, bad_items_name_the_field, keys_are_terms, bad_keys_name_the_field,
     addresses_have_one_form, limiters_are_read, bad_limiters_name_the_field, queries_are_read, bad_queries_name_the_parameter,
     names_become_no_atoms, fields_are_written, fields_know_when_to_be_silent, integers_stay_in_range, options_are_checked,
     any_bytes_are_answered, near_json_is_answered, items_survive_json, limiters_survive_json, names_survive_fields,
     windows_agree].

%% ---- JSON

bad_json_has_a_place(_) ->
    [?assertMatch({Text, {error, {400, #{code := bad_json, at := #{byte := Byte, line := Line, column := Column}}}}},
                  {Text, weir_http_json:decode(Text)})
     || {Text, Byte, Line, Column} <- [{<<>>, 1, 1, 1}, {<<"{">>, 2, 1, 2}, {<<"{\"a\":}">>, 6, 1, 6},
                                       {<<"[1,\n2,\n x]">>, 9, 3, 2}, {<<"{} {}">>, 4, 1, 4}, {<<"nul">>, 1, 1, 1},
                                       {<<"\n\"", 255, "\"">>, 3, 2, 2}, {<<"[1 2]">>, 4, 1, 4}]],
    {error, {400, #{message := Message}}} = weir_http_json:decode(<<"{\"a\":}">>),
    ?assertEqual(<<"bad JSON at line 1, column 6: this character is not expected here">>, Message).

json_is_limited(_) ->
    Depth = weir_http_json:max_depth(),
    ?assertMatch({ok, _}, weir_http_json:decode(nested(Depth))),
    ?assertMatch({error, {400, #{code := bad_json, at := #{byte := Byte}}}} when Byte =:= Depth + 1,
                 weir_http_json:decode(nested(Depth + 1))),
    ?assertMatch({ok, _}, weir_http_json:decode(iolist_to_binary([$", lists:duplicate(100, $[), "\\\"[\""]))),
    Digits = weir_http_json:max_digits(),
    ?assertMatch({ok, _}, weir_http_json:decode(digits(Digits))),
    ?assertMatch({error, {400, #{code := bad_json, at := #{byte := 1}}}}, weir_http_json:decode(digits(Digits + 1))),
    ?assertMatch({ok, _}, weir_http_json:decode(<<$", (digits(Digits + 1))/binary, $">>)),
    ?assertMatch({error, {400, #{code := bad_json}}}, weir_http_json:decode(<<"1e999">>)).

nested(Depth) -> iolist_to_binary([lists:duplicate(Depth, $[), lists:duplicate(Depth, $])]).

digits(N) -> binary:copy(<<"9">>, N).

%% ---- items

items_are_read(_) ->
    ?assertEqual({ok, {one, {<<"login">>, <<"a">>, 1}}}, weir_http_item:parse(<<"{\"limiter\":\"login\",\"key\":\"a\"}">>)),
    ?assertEqual({ok, {one, {<<"login">>, 7, 3}}}, weir_http_item:parse(<<"{\"hits\":3,\"key\":7,\"limiter\":\"login\"}">>)),
    ?assertEqual({ok, {many, []}}, weir_http_item:parse(<<"[]">>)),
    ?assertEqual({ok, {many, [{<<"l">>, <<>>, 1}, {<<"m">>, <<"k">>, 16#7FFFFFFFFFFFFFFF}]}},
                 weir_http_item:parse(<<"[{\"limiter\":\"l\",\"key\":\"\"},"
                                        "{\"limiter\":\"m\",\"key\":\"k\",\"hits\":9223372036854775807}]">>)),
    Max = weir_http_item:max_items(),
    ?assertMatch({ok, {many, [_ | _]}}, weir_http_item:parse(items(Max))),
    ?assertMatch({error, {413, #{code := too_many_items}}}, weir_http_item:parse(items(Max + 1))).

items(N) ->
    iolist_to_binary([$[, lists:join($,, lists:duplicate(N, <<"{\"limiter\":\"l\",\"key\":1}">>)), $]]).

bad_items_name_the_field(_) ->
    [?assertMatch({Text, {error, {400, #{code := bad_field, message := Message, at := #{field := Field}}}}},
                  {Text, weir_http_item:parse(Text)})
     || {Text, Field, Message} <-
            [{<<"{\"key\":1}">>, <<"limiter">>, <<"limiter is missing">>},
             {<<"{\"limiter\":\"l\"}">>, <<"key">>, <<"key is missing">>},
             {<<"{\"limiter\":\"\",\"key\":1}">>, <<"limiter">>, <<"limiter must be a limiter's name: a string of 1 to 255 bytes">>},
             {<<"[{\"limiter\":\"l\",\"key\":1},{\"limiter\":\"l\",\"key\":1,\"hits\":0}]">>, <<"[1].hits">>,
              <<"[1].hits must be a positive integer below 2^63">>},
             {<<"{\"limiter\":\"l\",\"key\":1,\"hits\":null}">>, <<"hits">>, <<"hits must be a positive integer below 2^63">>},
             {<<"{\"limiter\":\"l\",\"key\":1,\"hits\":1.0}">>, <<"hits">>, <<"hits must be a positive integer below 2^63">>},
             {<<"{\"limiter\":\"l\",\"key\":1,\"hits\":-1}">>, <<"hits">>, <<"hits must be a positive integer below 2^63">>},
             {<<"{\"limiter\":\"l\",\"key\":1,\"hits\":9223372036854775808}">>, <<"hits">>,
              <<"hits must be a positive integer below 2^63">>},
             {<<"[{\"limiter\":\"l\",\"key\":1,\"cost\":2}]">>, <<"[0].cost">>,
              <<"there is no field \"[0].cost\": there are limiter, key and hits">>},
             {<<"{\"limiter\":\"l\",\"key\":1,\"key\":2}">>, <<"key">>, <<"key is given twice">>},
             {<<"[[]]">>, <<"[0]">>, <<"[0] must be an object">>}]],
    ?assertMatch({error, {400, #{code := bad_field}}}, weir_http_item:parse(<<"\"login\"">>)),
    ?assertMatch({error, {400, #{code := bad_field}}},
                 weir_http_item:parse(iolist_to_binary(["{\"limiter\":\"", digits(256), "\",\"key\":1}"]))).

%% ---- keys

keys_are_terms(_) ->
    [?assertEqual({Text, {ok, Term}}, {Text, key(Text)})
     || {Text, Term} <- [{<<"\"a\"">>, <<"a">>}, {<<"-7">>, -7}, {<<"\"\\u0000\"">>, <<0>>},
                         {<<"{\"ip\":\"1.2.3.4\"}">>, {1, 2, 3, 4}},
                         {<<"{\"ip\":\"::1\"}">>, {0, 0, 0, 0, 0, 0, 0, 1}},
                         {<<"{\"ip\":\"2001:DB8::1\"}">>, {16#2001, 16#DB8, 0, 0, 0, 0, 0, 1}},
                         {<<"{\"ip\":\"::ffff:1.2.3.4\"}">>, {0, 0, 0, 0, 0, 16#FFFF, 16#0102, 16#0304}},
                         {<<"{\"tuple\":[\"login\",{\"ip\":\"1.2.3.4\"},5]}">>, {<<"login">>, {1, 2, 3, 4}, 5}},
                         {<<"{\"tuple\":[{\"tuple\":[1]}]}">>, {{1}}}]].

bad_keys_name_the_field(_) ->
    Elements = weir_http_key:max_elements(),
    [?assertMatch({Text, {error, {400, #{code := bad_field, at := #{field := Field}}}}}, {Text, key(Text)})
     || {Text, Field} <- [{<<"1.5">>, <<"key">>}, {<<"null">>, <<"key">>}, {<<"true">>, <<"key">>}, {<<"[]">>, <<"key">>},
                          {<<"{}">>, <<"key">>}, {<<"{\"atom\":\"x\"}">>, <<"key">>},
                          {<<"{\"ip\":\"1.2.3.4\",\"ip\":\"1.2.3.4\"}">>, <<"key">>},
                          {<<"{\"ip\":7}">>, <<"key.ip">>}, {<<"{\"ip\":\"1.2.3\"}">>, <<"key.ip">>},
                          {<<"{\"tuple\":[]}">>, <<"key.tuple">>}, {<<"{\"tuple\":\"x\"}">>, <<"key.tuple">>},
                          {<<"{\"tuple\":[1,{\"ip\":\"x\"}]}">>, <<"key.tuple[1].ip">>},
                          {tuples(weir_http_key:max_nesting() + 1), <<"key.tuple[0].tuple[0].tuple[0].tuple[0].tuple">>},
                          {iolist_to_binary(["{\"tuple\":[", lists:join($,, lists:duplicate(Elements + 1, "1")), "]}"]),
                           <<"key.tuple">>}]],
    ?assertMatch({ok, {{{{1}}}}}, key(tuples(weir_http_key:max_nesting()))).

tuples(0) -> <<"1">>;
tuples(N) -> <<"{\"tuple\":[", (tuples(N - 1))/binary, "]}">>.

key(Text) ->
    {ok, Value} = weir_http_json:decode(Text),
    weir_http_error:guard(fun() -> weir_http_key:from_json(Value, [<<"key">>]) end).

addresses_have_one_form(_) ->
    [?assertEqual({Text, error}, {Text, weir_http_key:ip(Text)})
     || Text <- [<<"010.0.0.1">>, <<"0x1.2.3.4">>, <<"1.2.3.256">>, <<"fe80::1%lo">>, <<" 1.2.3.4">>, <<>>, <<"1">>,
                 <<255, 254>>, digits(1000)]].

%% ---- limiters

limiters_are_read(_) ->
    [?assertEqual({Text, {ok, Spec}}, {Text, weir_http_spec:parse(Text)})
     || {Text, Spec} <- [{<<"{\"rate\":[5,\"minute\"]}">>, #{rate => {5, minute}}},
                         {<<"{\"rate\":[5,[10,\"day\"]],\"burst\":9}">>, #{rate => {5, {10, day}}, burst => 9}},
                         {<<"{\"shadow\":true,\"on_error\":\"deny\",\"rate\":[1,\"second\"],\"scope\":\"cluster\","
                            "\"algorithm\":\"sliding_log\",\"max_keys\":8}">>,
                          #{rate => {1, second}, shadow => true, on_error => deny, scope => cluster,
                            algorithm => sliding_log, max_keys => 8}}]].

bad_limiters_name_the_field(_) ->
    [?assertMatch({Text, {error, {400, #{code := bad_field, at := #{field := Field}}}}}, {Text, weir_http_spec:parse(Text)})
     || {Text, Field} <- [{<<"{}">>, <<"rate">>}, {<<"{\"rate\":5}">>, <<"rate">>}, {<<"{\"rate\":[5]}">>, <<"rate">>},
                          {<<"{\"rate\":[0,\"minute\"]}">>, <<"rate[0]">>}, {<<"{\"rate\":[5,\"week\"]}">>, <<"rate[1]">>},
                          {<<"{\"rate\":[5,[0,\"day\"]]}">>, <<"rate[1][0]">>},
                          {<<"{\"rate\":[5,[1,[2,\"day\"]]]}">>, <<"rate[1][1]">>},
                          {<<"{\"rate\":[5,\"day\"],\"burst\":1.5}">>, <<"burst">>},
                          {<<"{\"rate\":[5,\"day\"],\"shadow\":1}">>, <<"shadow">>},
                          {<<"{\"rate\":[5,\"day\"],\"scope\":\"galaxy\"}">>, <<"scope">>},
                          {<<"{\"rate\":[5,\"day\"],\"brust\":5}">>, <<"brust">>},
                          {<<"{\"rate\":[5,\"day\"],\"rate\":[5,\"day\"]}">>, <<"rate">>}]],
    ?assertMatch({error, {400, #{code := bad_field}}}, weir_http_spec:parse(<<"[]">>)).

%% ---- queries

queries_are_read(_) ->
    [?assertEqual({Text, {ok, {<<"l">>, Key}}}, {Text, weir_http_explain:query(Text)})
     || {Text, Key} <- [{<<"limiter=l&key=a%20b">>, <<"a b">>}, {<<"ip=1.2.3.4&limiter=l">>, {1, 2, 3, 4}},
                        {<<"limiter=l&int=-5">>, -5}, {<<"limiter=l&key=">>, <<>>},
                        {<<"limiter=l&json=%7B%22tuple%22%3A%5B1%5D%7D">>, {1}}]].

bad_queries_name_the_parameter(_) ->
    [?assertMatch({Text, {error, {400, #{code := bad_query, at := #{query := Name}}}}}, {Text, weir_http_explain:query(Text)})
     || {Text, Name} <- [{<<>>, <<"limiter">>}, {<<"limiter=l">>, <<"key">>}, {<<"limiter=l&key=a&ip=1.2.3.4">>, <<"key">>},
                         {<<"limiter=l&limiter=m&key=a">>, <<"limiter">>}, {<<"limiter=&key=a">>, <<"limiter">>},
                         {<<"limiter=l&ip=x">>, <<"ip">>}, {<<"limiter=l&int=x">>, <<"int">>},
                         {<<"limiter=l&int=", (digits(50))/binary>>, <<"int">>}, {<<"limiter=l&kee=a">>, <<"kee">>}]],
    ?assertMatch({error, {400, #{code := bad_query}}}, weir_http_explain:query(<<"limiter=l&key=%zz">>)),
    ?assertMatch({error, {400, #{code := bad_json}}}, weir_http_explain:query(<<"limiter=l&json=%7B">>)),
    ?assertMatch({error, {400, #{code := bad_field}}}, weir_http_explain:query(<<"limiter=l&json=null">>)).

names_become_no_atoms(_) ->
    Word = <<"weir_http_no_atom_", (integer_to_binary(erlang:unique_integer([positive])))/binary>>,
    Texts = [["{\"", Word, "\":1}"], ["{\"limiter\":\"", Word, "\",\"key\":\"", Word, "\"}"],
             ["{\"limiter\":\"l\",\"key\":{\"", Word, "\":1}}"], ["{\"rate\":[1,\"", Word, "\"]}"],
             ["{\"rate\":[1,\"day\"],\"scope\":\"", Word, "\"}"]],
    [begin
         _ = weir_http_item:parse(iolist_to_binary(Text)),
         _ = weir_http_spec:parse(iolist_to_binary(Text))
     end || Text <- Texts],
    _ = weir_http_explain:query(<<Word/binary, "=", Word/binary, "&limiter=", Word/binary>>),
    ?assertError(badarg, binary_to_existing_atom(Word)).

%% ---- response fields

fields_are_written(_) ->
    Policy = weir_http_fields:policy(<<"login">>, #{rate => {5, minute}}),
    ?assertEqual(#{<<"ratelimit-policy">> => <<"\"login\";q=5;w=60">>, <<"ratelimit">> => <<"\"login\";r=4;t=12">>},
                 fields(Policy, answer(true, 5, 4, 12000, 0))),
    ?assertEqual(#{<<"ratelimit-policy">> => <<"\"login\";q=5;w=60">>, <<"ratelimit">> => <<"\"login\";r=0;t=8">>,
                   <<"retry-after">> => <<"8">>},
                 fields(Policy, answer(false, 5, 0, 55100, 7100))),
    %% Three hits wanted, two there: the next token comes in 5 s, the third in 17 s.
    ?assertEqual(#{<<"ratelimit-policy">> => <<"\"api\";q=4;w=48">>, <<"ratelimit">> => <<"\"api\";r=2;t=5">>,
                   <<"retry-after">> => <<"17">>},
                 fields(weir_http_fields:policy(<<"api">>, #{rate => {5, minute}, burst => 4}), answer(false, 4, 2, 17000, 17000))),
    ?assertMatch(#{<<"ratelimit-policy">> := <<"\"x\";q=7;w=1">>},
                 fields(weir_http_fields:policy(<<"x">>, #{rate => {7, second}}), answer(true, 7, 6, 143, 0))),
    ?assertMatch(#{<<"ratelimit-policy">> := <<"\"x\";q=1;w=201600">>},
                 fields(weir_http_fields:policy(<<"x">>, #{rate => {3, {7, day}}, burst => 1}), answer(true, 1, 0, 1, 0))).

fields_know_when_to_be_silent(_) ->
    Policy = weir_http_fields:policy(<<"l">>, #{rate => {5, minute}}),
    %% More than the capacity: never, and the bucket is full.
    ?assertEqual(#{<<"ratelimit-policy">> => <<"\"l\";q=5;w=60">>, <<"ratelimit">> => <<"\"l\";r=5">>},
                 fields(Policy, answer(false, 5, 5, 0, infinity))),
    %% An answer by on_error.
    ?assertEqual(#{<<"ratelimit-policy">> => <<"\"l\";q=5;w=60">>, <<"ratelimit">> => <<"\"l\";r=0">>},
                 fields(Policy, answer(true, 5, 0, 0, 0))).

integers_stay_in_range(_) ->
    Huge = 16#3FFFFFFFFFFFFFFF,
    Policy = weir_http_fields:policy(<<"l">>, #{rate => {1, second}, burst => Huge}),
    ?assertEqual(#{<<"ratelimit-policy">> => <<"\"l\";q=999999999999999;w=999999999999999">>,
                   <<"ratelimit">> => <<"\"l\";r=999999999999999;t=1">>},
                 fields(Policy, answer(true, Huge, Huge - 1, 1000, 0))).

answer(Allowed, Limit, Remaining, ResetMs, RetryMs) ->
    #{allowed => Allowed, limit => Limit, remaining => Remaining, reset_ms => ResetMs, retry_ms => RetryMs}.

fields(Policy, Answer) ->
    maps:map(fun(_, Field) -> iolist_to_binary(Field) end, weir_http_fields:fields(Policy, Answer)).

options_are_checked(_) ->
    ?assertMatch({ok, #{ip := {127, 0, 0, 1}, port := 8080}}, weir_http_options:parse(#{})),
    ?assertMatch({ok, #{ip := {0, 0, 0, 0, 0, 0, 0, 1}, port := 0}}, weir_http_options:parse(#{ip => "::1", port => 0})),
    ?assertMatch({ok, #{ip := {10, 0, 0, 1}}}, weir_http_options:parse(#{ip => <<"10.0.0.1">>})),
    [begin
         {error, Message} = weir_http_options:parse(Bad),
         ?assertNotEqual(nomatch, string:find(unicode:characters_to_binary(Message), Word))
     end || {Bad, Word} <- [{#{prot => 1}, "prot"}, {#{port => 65536}, "port"}, {#{port => "80"}, "port"},
                            {#{ip => "localhost"}, "ip"}, {#{ip => {1, 2}}, "ip"}, {#{ip => [a]}, "ip"}, {#{ip => 7}, "ip"},
                            {#{max_connections => 0}, "max_connections"}, {#{drain_ms => -1}, "drain_ms"}]].

%% ---- properties

any_bytes_are_answered(_) ->
    holds(?FORALL(Bytes, binary(), answered(Bytes))).

near_json_is_answered(_) ->
    holds(?FORALL({Text, Cuts}, {json_text(), list({non_neg_integer(), byte()})}, answered(lists:foldl(fun cut/2, Text, Cuts)))).

%% Overwrites a byte.
cut(_, <<>>) -> <<>>;
cut({Place, Byte}, Text) ->
    At = Place rem byte_size(Text),
    <<Before:At/binary, _, After/binary>> = Text,
    <<Before/binary, Byte, After/binary>>.

answered(Bytes) ->
    lists:all(fun well_formed/1, [weir_http_json:decode(Bytes), weir_http_item:parse(Bytes), weir_http_spec:parse(Bytes),
                                  weir_http_explain:query(Bytes), weir_http_explain:query(<<"limiter=l&json=", Bytes/binary>>)]).

well_formed({ok, _}) -> true;
well_formed({error, {Status, #{code := Code, message := Message}} = Error}) ->
    {[{<<"error">>, {[{<<"code">>, _}, {<<"message">>, _} | _]}}]} = jiffy:decode(weir_http_error:body(Error)),
    lists:member(Status, [400, 413]) andalso is_atom(Code) andalso is_binary(Message).

items_survive_json(_) ->
    holds(?FORALL(Items, list({name(), key(), pos_integer()}),
                  weir_http_item:parse(iolist_to_binary(jiffy:encode([item_json(Item) || Item <- Items]))) =:= {ok, {many, Items}})).

item_json({Limiter, Key, Hits}) ->
    {[{limiter, Limiter}, {key, key_json(Key)}, {hits, Hits}]}.

key_json({A, B, C, D} = Ip) when is_integer(A), is_integer(B), is_integer(C), is_integer(D) ->
    {[{ip, list_to_binary(inet:ntoa(Ip))}]};
key_json(Tuple) when is_tuple(Tuple) -> {[{tuple, [key_json(Element) || Element <- tuple_to_list(Tuple)]}]};
key_json(Key) -> Key.

limiters_survive_json(_) ->
    holds(?FORALL(Spec, spec(),
                  weir_http_spec:parse(iolist_to_binary(weir_http_json:encode(weir_http_spec:to_json(Spec)))) =:= {ok, Spec})).

%% A String of RFC 9651, and the name comes back from it.
names_survive_fields(_) ->
    holds(?FORALL(Name, non_empty(binary()),
                  begin
                      String = weir_http_fields:name(Name),
                      Size = byte_size(String) - 2,
                      <<$", Inner:Size/binary, $">> = String,
                      lists:all(fun(C) -> C >= 16#20 andalso C < 16#7F end, binary_to_list(Inner)) andalso
                          decode(unescape(Inner)) =:= Name
                  end)).

unescape(<<$\\, C, Rest/binary>>) when C =:= $\\; C =:= $" -> <<C, (unescape(Rest))/binary>>;
unescape(<<C, Rest/binary>>) when C =/= $\\, C =/= $" -> <<C, (unescape(Rest))/binary>>;
unescape(<<>>) -> <<>>.

decode(<<$%, A, B, Rest/binary>>) -> <<(binary_to_integer(<<A, B>>, 16)), (decode(Rest))/binary>>;
decode(<<C, Rest/binary>>) -> <<C, (decode(Rest))/binary>>;
decode(<<>>) -> <<>>.

%% For every state of a bucket and every number of hits: t is at least 1 and never later than Retry-After, and Retry-After is
%% never too early.
windows_agree(_) ->
    holds(?FORALL({Tokens, Unit, Burst, Seed, Hits}, {range(1, 2000), unit(), range(1, 2000), non_neg_integer(), range(1, 2000)},
                  begin
                      IntervalNs = unit_ns(Unit) div Tokens,
                      DebtNs = Seed * 7919 rem (Burst * IntervalNs + 1),
                      Answer = bucket(Burst, IntervalNs, DebtNs, Hits),
                      Policy = weir_http_fields:policy(<<"l">>, #{rate => {Tokens, Unit}, burst => Burst}),
                      agree(fields(Policy, Answer), Answer)
                  end)).

bucket(Burst, IntervalNs, DebtNs, Hits) ->
    After = DebtNs + Hits * IntervalNs,
    Allowed = After =< Burst * IntervalNs,
    Left = case Allowed of true -> After; false -> DebtNs end,
    RetryMs = if Allowed -> 0; Hits > Burst -> infinity; true -> ceiling(After - Burst * IntervalNs, 1000000) end,
    answer(Allowed, Burst, max(0, Burst - ceiling(Left, IntervalNs)), ceiling(Left, 1000000), RetryMs).

agree(#{<<"ratelimit">> := Field} = Fields, #{remaining := Remaining, retry_ms := RetryMs}) ->
    [<<"\"l\"">>, <<"r=", R/binary>> | Window] = binary:split(Field, <<";">>, [global]),
    T = case Window of [<<"t=", Text/binary>>] -> binary_to_integer(Text); [] -> none end,
    Retry = case Fields of #{<<"retry-after">> := Seconds} -> binary_to_integer(Seconds); #{} -> none end,
    binary_to_integer(R) =:= Remaining andalso (T =:= none orelse T >= 1) andalso
        (Retry =:= none orelse (T =/= none andalso T =< Retry) orelse T =:= none) andalso
        (is_integer(RetryMs) andalso RetryMs > 0) =:= is_integer(Retry) andalso (Retry =:= none orelse Retry * 1000 >= RetryMs).

ceiling(N, D) -> (N + D - 1) div D.

unit_ns({K, Unit}) -> K * unit_ns(Unit);
unit_ns(second) -> 1000000000;
unit_ns(minute) -> 60 * unit_ns(second);
unit_ns(hour) -> 60 * unit_ns(minute);
unit_ns(day) -> 24 * unit_ns(hour).

holds(Property) ->
    ?assert(proper:quickcheck(Property, [{numtests, 1000}, {max_size, 60}, quiet])).

%% ---- generators

name() -> ?LET(N, range(1, 20), text(N)).

text(N) -> ?LET(Characters, vector(N, oneof([range($a, $z), range(16#A0, 16#2FF)])), unicode:characters_to_binary(Characters)).

key() -> ?SIZED(Size, nested_key(min(3, Size))).

nested_key(0) -> oneof([integer(), name(), {range(0, 255), range(0, 255), range(0, 255), range(0, 255)}]);
nested_key(Depth) ->
    oneof([nested_key(0), ?SUCHTHAT(Tuple, ?LET(Elements, ?LET(N, range(1, 5), vector(N, nested_key(Depth - 1))), list_to_tuple(Elements)),
                             tuple_size(Tuple) =/= 4)]).

unit() ->
    Unit = oneof([second, minute, hour, day]),
    oneof([Unit, {range(1, 30), Unit}]).

spec() ->
    ?LET({Rate, Options},
         {{pos_integer(), unit()},
          list(oneof([{burst, pos_integer()}, {shadow, boolean()}, {scope, oneof([local, cluster, exact])},
                      {on_error, oneof([allow, deny])}, {algorithm, oneof([token_bucket, leaky_bucket])},
                      {max_keys, pos_integer()}]))},
         maps:put(rate, Rate, maps:from_list(Options))).

json_text() ->
    ?LET(Value, oneof([resize(5, json(3)),
                       ?LET(Items, list({name(), key(), pos_integer()}), [item_json(Item) || Item <- Items]),
                       ?LET(Spec, spec(), weir_http_spec:to_json(Spec))]),
         iolist_to_binary(jiffy:encode(Value))).

json(0) -> oneof([null, boolean(), integer(), float(), name()]);
json(Depth) ->
    Field = oneof([<<"limiter">>, <<"key">>, <<"hits">>, <<"ip">>, <<"tuple">>, <<"rate">>, <<"burst">>, <<"scope">>, name()]),
    oneof([json(0), list(json(Depth - 1)), ?LET(Members, list({Field, json(Depth - 1)}), {Members})]).
