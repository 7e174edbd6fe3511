%% The API of weir, as its documentation tells it: what is answered, to the token and to the nanosecond. Time stands still and is
%% moved by hand.
%% Shows R01, R07, R08, R11, R47 of doc/requirements.md.
-module(weir_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(MS, 1000000).
-define(SECOND, 1000000000).
-define(MINUTE, (60 * ?SECOND)).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_bucket_empties_and_fills, time_of_each_token, retry_is_exact, hits_are_weights, hits_beyond_the_capacity,
     one_hit_is_the_default, atoms_and_binaries_name_one_limiter, atoms_beyond_latin1_name_limiters, decide_tells_the_headers,
     peek_looks_only, reset_fills_one_bucket, explain_tells_why, shadow_admits_and_counts, options_have_defaults,
     rates_of_every_unit,
     batches_keep_their_order, batches_equal_single_calls, long_batches, batches_of_long_keys, reasons, batches_are_validated_first, batches_of_any_keys,
     every_type_is_a_key_of_its_own, equal_terms_are_one_key, integers_at_the_edges, keys_at_the_length_limits,
     other_nodes_know_keys_alike,
     equal_policies_share_state, handles_serve_wherever_names_do, policies_outlive_handles_while_keys_live,
     policies_without_handles_and_keys_go, handles_end_with_the_application,
     bursts_change, rates_change, changes_keep_fractions, changes_add_up, changes_reach_every_key, other_options_change,
     deleted_limiters_are_gone, limiters_are_listed, metrics_add_up, time_is_ours].

init_per_testcase(_, Config) ->
    ok = weir_test:start(),
    Config.

end_per_testcase(_, _) ->
    weir_test:stop().

%% ---- buckets

a_bucket_empties_and_fills(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    ?assertEqual([{allow, 4}, {allow, 3}, {allow, 2}, {allow, 1}, {allow, 0}, {deny, 12000}, {deny, 12000}],
                 [weir:check(login, key) || _ <- lists:seq(1, 7)]),
    ?assertEqual({allow, 4}, weir:check(login, other)),
    ok = weir_clock:advance(?MINUTE),
    ?assertEqual({allow, 4}, weir:check(login, key)),
    %% A bucket never holds more than it can.
    ok = weir_clock:advance(100 * ?MINUTE),
    ?assertEqual({allow, 4}, weir:check(login, key)).

time_of_each_token(_) ->
    ok = weir:put_limiter(api, #{rate => {10, second}, burst => 3}),
    _ = weir:check(api, key, 3),
    [begin
         ok = weir_clock:advance(100 * ?MS - 1),
         ?assertEqual({deny, 1}, weir:check(api, key)),
         ok = weir_clock:advance(1),
         ?assertEqual({allow, 0}, weir:check(api, key)),
         ?assertEqual({deny, 100}, weir:check(api, key))
     end || _ <- lists:seq(1, 20)].

%% The time that is told is when the same hits are allowed, rounded up to a millisecond, and not a nanosecond before.
retry_is_exact(_) ->
    [retry_is_exact(Rate, Burst, Hits, After)
     || {Rate, Burst} <- [{{5, minute}, 5}, {{7, second}, 10}, {{3, {7, hour}}, 4}, {{999, second}, 50}, {{1, day}, 3}],
        Hits <- [1, 2, Burst - 1, Burst], Hits =< Burst, After <- [0, 1, 333333]].

retry_is_exact(Rate, Burst, Hits, After) ->
    Limiter = weir:compile(#{rate => Rate, burst => Burst}),
    Key = {Rate, Hits, After},
    {allow, 0} = weir:check(Limiter, Key, Burst),
    ok = weir_clock:advance(After),
    #{tat_ns := Tat, now_ns := Now, interval_ns := T} = weir:explain(Limiter, Key),
    Wait = Tat - Now - (Burst - Hits) * T,
    Ms = (Wait + ?MS - 1) div ?MS,
    ?assertEqual({deny, Ms}, weir:check(Limiter, Key, Hits)),
    ?assertMatch(#{allowed := false, retry_ms := Ms}, weir:decide(Limiter, Key, Hits)),
    ok = weir_clock:advance(Wait - 1),
    ?assertEqual({deny, 1}, weir:check(Limiter, Key, Hits)),
    ok = weir_clock:advance(1),
    ?assertMatch({allow, _}, weir:check(Limiter, Key, Hits)).

hits_are_weights(_) ->
    ok = weir:put_limiter(bytes, #{rate => {100, second}}),
    ?assertEqual({allow, 60}, weir:check(bytes, key, 40)),
    ?assertEqual({deny, 10}, weir:check(bytes, key, 61)),
    %% A denial counts nothing: less still passes.
    ?assertEqual({allow, 0}, weir:check(bytes, key, 60)),
    ?assertEqual({deny, 1000}, weir:check(bytes, key, 100)).

hits_beyond_the_capacity(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    [?assertEqual({deny, infinity}, weir:check(login, key, Hits)) || Hits <- [6, 1000, 1 bsl 60, 1 bsl 62 - 1]],
    ?assertEqual([{deny, infinity}], weir:check_many([{login, key, 6}])),
    ?assertEqual(#{allowed => false, limit => 5, remaining => 5, reset_ms => 0, retry_ms => infinity, reason => limited},
                 weir:decide(login, key, 6)),
    ?assertEqual({allow, 0}, weir:check(login, key, 5)),
    ?assertEqual({deny, infinity}, weir:check(login, key, 6)).

one_hit_is_the_default(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    ?assertEqual({allow, 4}, weir:check(login, key)),
    ?assertEqual({allow, 3}, weir:check(login, key, 1)).

%% ---- names

atoms_and_binaries_name_one_limiter(_) ->
    ?assertNot(weir_specs:is_known(login)),
    _ = weir_test:fault(fun() -> weir:check(login, key) end),
    ok = weir:put_limiter(<<"login">>, #{rate => {5, minute}}),
    ?assert(weir_specs:is_known(login)),
    ?assert(weir_specs:is_known(<<"login">>)),
    ?assertEqual([{allow, 4}, {allow, 3}, {allow, 2}],
                 [weir:check(login, key), weir:check(<<"login">>, key), weir:check(login, key)]),
    ?assertEqual([{allow, 1}, {allow, 0}], weir:check_many([{<<"login">>, key, 1}, {login, key, 1}])),
    %% Changed under its other name.
    ok = weir:put_limiter(login, #{rate => {6, minute}}),
    ?assertEqual([<<"login">>], maps:keys(weir:limiters())),
    ?assertEqual({allow, 0}, weir:check(<<"login">>, key)),
    ok = weir:delete_limiter(login),
    [weir_test:fault(fun() -> weir:check(Name, key) end, ["login"]) || Name <- [login, <<"login">>]],
    ok = weir:put_limiter(login, #{rate => {2, minute}}),
    ?assertEqual([{allow, 1}, {allow, 0}], [weir:check(<<"login">>, key), weir:check(login, key)]).

atoms_beyond_latin1_name_limiters(_) ->
    [begin
         Name = atom_to_binary(Atom),
         ok = weir:put_limiter(Atom, #{rate => {5, minute}}),
         ?assertEqual([{allow, 4}, {allow, 3}], [weir:check(Atom, key), weir:check(Name, key)]),
         ?assert(maps:is_key(Name, weir:limiters())),
         ?assertMatch(#{limiter := Name}, weir:explain(Atom, key))
     end || Atom <- ['żółw', 'été', '日本', ' ', 'a b', true, undefined, list_to_atom(lists:duplicate(255, $a))]].

%% ---- decide, peek, reset, explain, shadow

decide_tells_the_headers(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    ?assertEqual(#{allowed => true, limit => 5, remaining => 4, reset_ms => 12000, retry_ms => 0, reason => ok},
                 weir:decide(login, key, 1)),
    ?assertEqual(#{allowed => true, limit => 5, remaining => 1, reset_ms => 48000, retry_ms => 0, reason => ok},
                 weir:decide(login, key, 3)),
    ?assertEqual(#{allowed => false, limit => 5, remaining => 1, reset_ms => 48000, retry_ms => 12000, reason => limited},
                 weir:decide(login, key, 2)),
    ok = weir_clock:advance(?SECOND + 1),
    %% Rounded up, so that who comes then isn't early; a token that has come back in part is not there yet.
    ?assertEqual(#{allowed => false, limit => 5, remaining => 1, reset_ms => 47000, retry_ms => 11000, reason => limited},
                 weir:decide(login, key, 2)),
    ?assertEqual([#{allowed => true, limit => 5, remaining => 0, reset_ms => 59000, retry_ms => 0, reason => ok},
                  #{allowed => false, limit => 5, remaining => 0, reset_ms => 59000, retry_ms => 11000, reason => limited}],
                 weir:decide_many([{login, key, 1}, {login, key, 1}])).

peek_looks_only(_) ->
    ok = weir:put_limiter(login, #{rate => {2, minute}}),
    Full = #{allowed => true, limit => 2, remaining => 2, reset_ms => 0, retry_ms => 0},
    [?assertEqual(Full, weir:peek(login, Key)) || Key <- [key, key, [list], #{map => 1}]],
    ?assertMatch(#{keys := 0, allowed := 0, denied := 0}, weir_test:stats(<<"login">>)),
    {allow, 0} = weir:check(login, key, 2),
    [?assertEqual(#{allowed => false, limit => 2, remaining => 0, reset_ms => 60000, retry_ms => 30000}, weir:peek(login, key))
     || _ <- [1, 2]],
    ok = weir_clock:advance(30 * ?SECOND),
    ?assertEqual(#{allowed => true, limit => 2, remaining => 1, reset_ms => 30000, retry_ms => 0}, weir:peek(login, key)),
    ?assertMatch(#{keys := 1, allowed := 1, denied := 0}, weir_test:stats(<<"login">>)).

reset_fills_one_bucket(_) ->
    ok = weir:put_limiter(login, #{rate => {2, minute}}),
    Keys = [key, <<"other">>, [an, external, one], {1, 2, 3, 4}],
    [{allow, 0} = weir:check(login, Key, 2) || Key <- Keys],
    [begin
         ?assertMatch({deny, _}, weir:check(login, Key)),
         ?assertEqual(ok, weir:reset(login, Key)),
         ?assertEqual({allow, 0}, weir:check(login, Key, 2))
     end || Key <- Keys],
    ?assertEqual(ok, weir:reset(login, never_seen)),
    ?assertMatch(#{remaining := 2}, weir:peek(login, never_seen)).

explain_tells_why(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}, burst => 8, max_keys => 1000, on_error => deny}),
    T0 = weir_test:t0(),
    _ = weir:check(login, key, 3),
    ok = weir_clock:advance(?SECOND),
    Explained = weir:explain(login, key),
    ?assertMatch(#{limiter := <<"login">>, scope := cluster, algorithm := token_bucket, capacity := 8, limit := 8,
                   interval_ns := 12000000000, shadow := false, on_error := deny, level := 3, remaining := 5,
                   allowed := true, retry_ms := 0, reset_ms := 35000},
                 Explained),
    ?assertEqual({T0 + ?SECOND, T0 + 36 * ?SECOND}, {maps:get(now_ns, Explained), maps:get(tat_ns, Explained)}),
    #{table := Table} = Explained,
    ?assertMatch(#{keys := 1, max_keys := 1000, evicted_keys := 0, evicted_tokens := 0}, Table),
    ?assert(maps:get(memory_bytes, Table) > 0),
    %% It counts nothing, and knows keys that were never seen.
    ?assertEqual(Explained, weir:explain(<<"login">>, key)),
    ?assertMatch(#{level := 0, remaining := 8, reset_ms := 0}, weir:explain(login, [other])).

shadow_admits_and_counts(_) ->
    Spec = #{rate => {2, minute}},
    ok = weir:put_limiter(login, Spec#{shadow => true}),
    ?assertEqual([{allow, 1}, {allow, 0}, {allow, 0}, {allow, 0}], [weir:check(login, key) || _ <- lists:seq(1, 4)]),
    ?assertMatch({allow, _}, weir:check(login, key, 100)),
    ?assertMatch(#{allowed := true, retry_ms := 0}, weir:decide(login, key, 1)),
    ?assertMatch([{allow, 0}], weir:check_many([{login, key, 1}])),
    ?assertMatch(#{allowed := 2, denied := 0, shadow_denied := 5}, weir_test:stats(<<"login">>)),
    ?assertMatch(#{shadow := true, level := 2}, weir:explain(login, key)),
    %% Nothing beyond the capacity was counted: when the shadow ends, it is as if it had never admitted more.
    ok = weir:put_limiter(login, Spec),
    ?assertEqual({deny, 30000}, weir:check(login, key)).

options_have_defaults(_) ->
    {ok, #{capacity := 5, interval_ns := 12000000000, spec := Spec}} = weir_limiter:parse(#{rate => {5, minute}}),
    ?assertEqual(#{rate => {5, minute}, burst => 5, algorithm => token_bucket, scope => cluster, on_error => allow,
                   shadow => false, max_keys => 1000000, partition => open, large_hits => admit, timeout => 100,
                   flush_after => infinity}, Spec),
    ?assertMatch({ok, #{spec := Spec}}, weir_limiter:parse(Spec)).

rates_of_every_unit(_) ->
    [?assertMatch({_, {ok, #{interval_ns := T}}}, {Rate, weir_limiter:parse(#{rate => Rate, burst => 1})})
     || {Rate, T} <- [{{1, second}, ?SECOND}, {{1, minute}, ?MINUTE}, {{1, hour}, 60 * ?MINUTE}, {{1, day}, 1440 * ?MINUTE},
                      {{5, {10, minute}}, 2 * ?MINUTE}, {{3, second}, 333333333}, {{1000000, second}, 1000},
                      {{3, {2, second}}, 666666667}, {{1, {7, day}}, 7 * 1440 * ?MINUTE}]].

%% ---- batches

batches_keep_their_order(_) ->
    ok = weir:put_limiter(two, #{rate => {2, minute}}),
    ok = weir:put_limiter(three, #{rate => {3, minute}}),
    ?assertEqual([], weir:check_many([])),
    ?assertEqual([], weir:decide_many([])),
    %% One key several times: each is decided after the one before it.
    ?assertEqual([{allow, 1}, {allow, 0}, {allow, 0}, {deny, 20000}, {deny, 30000}, {allow, 1}],
                 weir:check_many([{two, a, 1}, {three, a, 3}, {two, a, 1}, {three, a, 1}, {two, a, 1}, {two, b, 1}])),
    ?assertEqual([#{allowed => true, limit => 2, remaining => 0, reset_ms => 60000, retry_ms => 0, reason => ok},
                  #{allowed => true, limit => 3, remaining => 1, reset_ms => 40000, retry_ms => 0, reason => ok}],
                 weir:decide_many([{two, b, 1}, {three, b, 2}])).

batches_equal_single_calls(_) ->
    Spec = #{rate => {20, minute}, burst => 10},
    [ok = weir:put_limiter(Name, Spec) || Name <- [batched, single]],
    rand:seed(exsss, {1, 2, 3}),
    [begin
         Asked = [{rand:uniform(20), rand:uniform(11)} || _ <- lists:seq(1, rand:uniform(1200))],
         Batched = weir:decide_many([{batched, K, H} || {K, H} <- Asked]),
         ?assertEqual([weir:decide(single, K, H) || {K, H} <- Asked], Batched),
         ok = weir_clock:advance(rand:uniform(9 * ?SECOND))
     end || _ <- lists:seq(1, 20)].

%% One call of the NIF takes 512 items; nobody should notice.
long_batches(_) ->
    ok = weir:put_limiter(many, #{rate => {700, day}}),
    [begin
         Answers = weir:check_many([{many, {N, hot}, 1} || _ <- lists:seq(1, N)]),
         Allowed = min(N, 700),
         ?assertEqual([{allow, 700 - I} || I <- lists:seq(1, Allowed)], lists:sublist(Answers, Allowed)),
         ?assertEqual(lists:duplicate(N - Allowed, {deny, 86400000 div 700 + 1}), lists:nthtail(Allowed, Answers)),
         Own = weir:decide_many([{many, {N, I}, I rem 701 + 1} || I <- lists:seq(1, N)]),
         ?assertEqual([max(0, 700 - I rem 701 - 1) || I <- lists:seq(1, N), I rem 701 < 700],
                      [R || #{allowed := true, remaining := R} <- Own])
     end || N <- [1, 511, 512, 513, 1024, 1025, 5000]].

%% A malformed item raises before any is counted, wherever it is.
%% Nor that a call ends early where keys are long: one that hashed 512 keys of 64 KB would hold a scheduler up for 10 ms.
batches_of_long_keys(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    Items = [{login, <<I, 0:(65535 * 8)>>, 1} || I <- lists:seq(1, 100)],
    ?assertMatch({long, _, Rest} when length(Rest) =:= 99, weir_nif:check_many(Items, false)),
    ?assertEqual([{allow, 4} || _ <- Items], weir:check_many(Items)),
    ?assertEqual([3], lists:usort([Left || #{remaining := Left} <- weir:decide_many(Items)])),
    ?assertMatch(#{allowed := 200}, weir_test:stats(<<"login">>)).

%% What is decided can be told apart: the last token, a denial that is let pass, an answer by on_error.
reasons(_) ->
    ok = weir:put_limiter(strict, #{rate => {1, minute}}),
    ok = weir:put_limiter(lenient, #{rate => {1, minute}, shadow => true}),
    Reason = fun(Limiter) -> #{allowed := Allowed, remaining := Left, reason := Reason} = weir:decide(Limiter, key, 1), {Allowed, Left, Reason} end,
    ?assertEqual([{true, 0, ok}, {false, 0, limited}], [Reason(strict) || _ <- [1, 2]]),
    ?assertEqual([{true, 0, ok}, {true, 0, shadow}], [Reason(lenient) || _ <- [1, 2]]),
    ?assertMatch([#{reason := limited}, #{reason := shadow}], weir:decide_many([{strict, key, 1}, {lenient, key, 1}])),
    ?assertNot(maps:is_key(reason, weir:peek(strict, key))).

batches_are_validated_first(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    Good = fun(N) -> [{login, {good, I}, 1} || I <- lists:seq(1, N)] end,
    [begin
         Items = Good(At) ++ [Bad | Good(2000 - At)],
         Words = ["item " ++ integer_to_list(At) ++ " " | Word],
         [weir_test:fault(fun() -> Call(Items) end, Words) || Call <- [fun weir:check_many/1, fun weir:decide_many/1]]
     end || At <- [0, 1, 511, 512, 513, 1023, 1024, 1999, 2000],
            {Bad, Word} <- [{{login, key, 0}, ["hits"]}, {{login, key, -1}, ["hits"]}, {{nologin, key, 1}, ["nologin"]},
                            {{<<"nologin">>, key, 1}, ["nologin"]}, {{login, key}, ["{Limiter, Key, Hits}"]},
                            {login, ["{Limiter, Key, Hits}"]}, {{login, binary:copy(<<0>>, 65537), 1}, ["65536"]},
                            {{login, [list], 0}, ["hits"]}, {{login, [binary:copy(<<0>>, 65537)], 1}, ["65536"]}]],
    %% ... also among terms that the NIF doesn't hash, and limiters that it hasn't met by this atom.
    ok = weir:put_limiter(<<"met_late">>, #{rate => {5, minute}}),
    _ = weir_test:fault(fun() -> weir:check_many([{met_late, [list], 1} | Good(1000)] ++ [{login, #{}, 0}]) end, ["item 1001 "]),
    ?assertMatch(#{allowed := 0, denied := 0, keys := 0}, weir_test:stats(<<"login">>)),
    ?assertMatch(#{allowed := 0, denied := 0, keys := 0}, weir_test:stats(<<"met_late">>)).

batches_of_any_keys(_) ->
    [ok = weir:put_limiter(Name, #{rate => {2, day}}) || Name <- [<<"ones">>, <<"others">>]],
    Keys = distinct_keys(),
    Items = [{Name, Key, 1} || Key <- Keys, Name <- [ones, <<"others">>, others]],
    Expected = [Answer || _ <- Keys, Answer <- [{allow, 1}, {allow, 1}, {allow, 0}]],
    ?assertEqual(Expected, weir:check_many(Items)),
    %% The same keys as alone.
    ?assertEqual([{allow, 0} || _ <- Keys], [weir:check(ones, Key) || Key <- Keys]).

%% ---- keys

every_type_is_a_key_of_its_own(_) ->
    ok = weir:put_limiter(once, #{rate => {1, day}}),
    Keys = distinct_keys(),
    ?assertEqual([], [Key || Key <- Keys, weir:check(once, Key) =/= {allow, 0}]),
    ?assertEqual([], [Key || Key <- Keys, weir:check(once, Key) =/= {deny, 86400000}]).

distinct_keys() ->
    Port = hd(erlang:ports()),
    [1, 1.0, <<"1">>, '1', "1", {1}, {1.0}, {<<"1">>}, {'1'}, {"1"}, [1], [[1]], [{1}], {[1]},
     {1, 2, 3, 4}, {1, 2, 3}, {1, 2, 34}, {12, 3, 4}, [1, 2, 3, 4], {{1, 2}, {3, 4}}, {{1, 2, 3, 4}}, {{1, 2}, 3, 4},
     {{1}, {2, 3, 4}}, {{1}}, {{{1}}}, {{{{1}}}}, {{{{{1}}}}}, {}, {{}}, {{}, {}}, [], <<>>, '', {<<>>}, {''}, {[]},
     {<<"a">>, <<"bc">>}, {<<"ab">>, <<"c">>}, {<<"abc">>}, {<<"abc">>, <<>>}, {<<>>, <<"abc">>}, <<"abc">>, abc, "abc",
     {a, bc}, {ab, c}, {abc}, {a, <<"bc">>}, {<<"a">>, bc},
     <<1:1>>, <<1:7>>, <<1:9>>, <<1>>, <<0>>, <<0, 0>>, 0, 0.5, -1, -1.0,
     #{}, #{a => 1}, #{a => 1.0}, #{1 => a}, #{a => #{a => 1}}, maps:from_list([{I, I} || I <- lists:seq(1, 100)]),
     self(), Port, list_to_pid("<0.1.0>"), fun erlang:length/1, fun lists:reverse/1,
     true, false, undefined, null, <<"true">>, 'żółw', <<"żółw"/utf8>>, "żółw", 'été', <<"été"/utf8>>, <<"été">>,
     {127, 0, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, 65535, 32512, 1}, <<127, 0, 0, 1>>, <<"127.0.0.1">>,
     {<<"user">>, {1, 2, 3, 4}}, {user, {1, 2, 3, 4}}, {{1, 2, 3, 4}, user},
     %% The external format of a key, and that as a binary.
     [a], term_to_binary([a], [deterministic, {minor_version, 2}]), term_to_binary([a], [{minor_version, 1}])].

%% What is one term is one key, however it was made.
equal_terms_are_one_key(_) ->
    ok = weir:put_limiter(once, #{rate => {1, day}}),
    Large = crypto:strong_rand_bytes(1000),
    Many = [{I, I} || I <- lists:seq(1, 200)],
    [begin
         ?assertEqual(A, B),
         ?assertEqual({{allow, 0}, {deny, 86400000}}, {weir:check(once, A), weir:check(once, B)})
     end || {A, B} <- [{binary:part(Large, 17, 40), binary:copy(binary:part(Large, 17, 40))},
                       {maps:from_list(Many), maps:from_list(lists:reverse(Many))},
                       {#{a => 1, b => 2}, maps:put(a, 1, #{b => 2})},
                       {{binary:part(Large, 1, 3), x}, {binary:copy(binary:part(Large, 1, 3)), x}},
                       {binary_to_atom(<<"made">>), made},
                       {1 bsl 100, list_to_integer(integer_to_list(1 bsl 100))},
                       {"text", lists:reverse("txet")}, {"list", [$l, $i, $s, $t]}]].

integers_at_the_edges(_) ->
    ok = weir:put_limiter(once, #{rate => {1, day}}),
    Keys = lists:usort([Sign * ((1 bsl Bits) + Off) || Bits <- [0, 8, 31, 32, 59, 60, 62, 63, 64, 65, 127], Off <- [-1, 0, 1],
                                                       Sign <- [1, -1]]),
    ?assertEqual([], [Key || Key <- Keys, weir:check(once, Key) =/= {allow, 0}]),
    ?assertEqual([], [Key || Key <- Keys, weir:check(once, Key) =/= {deny, 86400000}]),
    ?assertEqual([], [Key || Key <- Keys, weir:check(once, {Key}) =/= {allow, 0}]),
    ?assertEqual([], [Key || Key <- Keys, weir:check(once, {Key}) =/= {deny, 86400000}]).

%% Tuples change from one way of hashing to the other somewhere here, and keys end at 65536 bytes.
keys_at_the_length_limits(_) ->
    ok = weir:put_limiter(once, #{rate => {1, day}}),
    Bytes = fun(N) -> binary:copy(<<"k">>, N) end,
    Keys = [Bytes(N) || N <- [1, 7, 8, 9, 255, 256, 511, 512, 513, 4095, 65535, 65536]] ++
        [{Bytes(N)} || N <- lists:seq(480, 520)] ++ [{Bytes(N), Bytes(N)} || N <- lists:seq(240, 260)] ++
        [list_to_tuple(lists:seq(1, N)) || N <- lists:seq(50, 62)] ++ [{Bytes(65000)}, [Bytes(65000)], lists:duplicate(65000, 1)] ++
        [lists:foldl(fun(_, Inner) -> {Inner} end, 1, lists:seq(1, N)) || N <- [10, 100, 1000]],
    ?assertEqual([], [Key || Key <- Keys, weir:check(once, Key) =/= {allow, 0}]),
    ?assertEqual([], [Key || Key <- Keys, weir:check(once, Key) =/= {deny, 86400000}]),
    [weir_test:fault(fun() -> weir:check(once, Key) end, ["65536"])
     || Key <- [Bytes(65537), Bytes(1000000), {Bytes(65537)}, [Bytes(65537)], lists:seq(1, 70000), {Bytes(40000), Bytes(40000)}]].

%% A node that has met other atoms, in another order, hashes every key alike if it has the secret.
other_nodes_know_keys_alike(_) ->
    Sources = ["'k_one'", "{'k_one', 'k_two'}", "{'k_two', <<\"x\">>, {1,2,3,4}}", "<<\"binary\">>", "1.5", "18446744073709551615",
               "{{'k_three'}, 'k_one', -1}", "'\x{17c}\x{f3}\x{142}w'", "#{'k_b' => 1, 'k_a' => 2, 'k_c' => 3}", "['k_two', 'k_one']",
               "[#{'k_c' => 'k_a'}]", "'\x{65e5}'", "maps:from_list([{{'k_d', I}, I} || I <- lists:seq(1, 20)])"],
    Secret = <<"0123456789abcdef">>,
    ok = weir_nif:set_secret(Secret),
    Here = [known_as(Source) || Source <- Sources],
    ?assertEqual(length(Sources), length(lists:usort(Here))),
    Peer = weir_test:start_peer([]),
    try
        %% Other atoms first, and the same ones backwards.
        _ = [peer:call(Peer, erlang, list_to_atom, ["k_" ++ integer_to_list(I)]) || I <- lists:seq(1, 500)],
        _ = [peer:call(Peer, erlang, list_to_atom, [A]) || A <- ["k_d", "k_c", "k_b", "k_three", "k_two", "k_a", "k_one"]],
        {ok, _} = peer:call(Peer, application, ensure_all_started, [weir]),
        ok = peer:call(Peer, weir_nif, set_secret, [Secret]),
        ?assertEqual(Here, [peer:call(Peer, ?MODULE, known_as, [Source]) || Source <- Sources]),
        ok = peer:call(Peer, weir_nif, set_secret, [<<"another secret!!">>]),
        There = peer:call(Peer, ?MODULE, known_as, ["'k_one'"]),
        ?assertNotEqual(hd(Here), There)
    after
        weir_test:stop_peer(Peer)
    end.

%% What a key is known by: its hash, or for terms that aren't hashed as they are, the bytes that are hashed instead.
known_as(Source) ->
    {ok, Tokens, _} = erl_scan:string(Source ++ "."),
    {ok, Exprs} = erl_parse:parse_exprs(Tokens),
    {value, Key, _} = erl_eval:exprs(Exprs, []),
    case weir_table:key_hash(Key) of
        Hash when is_integer(Hash) -> Hash;
        other_key -> external_bytes(Key)
    end.

external_bytes(Key) ->
    Self = self(),
    ok = weir:put_limiter(traced, #{rate => {1, day}}),
    Asker = spawn_link(fun() -> receive ask -> Self ! {answer, weir:check(traced, Key)} end end),
    1 = erlang:trace_pattern({weir_nif, check_external, 3}, true, [local]),
    1 = erlang:trace(Asker, true, [call]),
    Asker ! ask,
    {allow, 0} = receive {answer, Answer} -> Answer end,
    ok = weir:delete_limiter(traced),
    receive
        {trace, Asker, call, {weir_nif, check_external, [_, Bytes, _]}} -> Bytes
    after 5000 ->
        error(not_hashed_by_its_external_format)
    end.

%% ---- compiled policies

equal_policies_share_state(_) ->
    Minute = weir:compile(#{rate => {60, minute}, burst => 3}),
    Second = weir:compile(#{rate => {1, second}, burst => 3, on_error => allow}),
    Larger = weir:compile(#{rate => {1, second}, burst => 4}),
    Shadow = weir:compile(#{rate => {1, second}, burst => 3, shadow => true}),
    ok = weir:put_limiter(named, #{rate => {1, second}, burst => 3}),
    ?assertEqual([{allow, 2}, {allow, 1}, {allow, 0}, {deny, 1000}],
                 [weir:check(Limiter, key) || Limiter <- [Minute, Second, Minute, Second]]),
    ?assertEqual([{allow, 3}, {allow, 2}, {allow, 2}], [weir:check(Limiter, key) || Limiter <- [Larger, Shadow, named]]),
    ?assertEqual([<<"named">>], maps:keys(weir:limiters())).

handles_serve_wherever_names_do(_) ->
    Handle = weir:compile(#{rate => {3, minute}}),
    ?assertEqual({allow, 2}, weir:check(Handle, key)),
    ?assertMatch(#{remaining := 1}, weir:decide(Handle, key, 1)),
    ?assertMatch(#{remaining := 1}, weir:peek(Handle, key)),
    ?assertMatch(#{level := 2, capacity := 3}, weir:explain(Handle, key)),
    ?assertEqual([{allow, 0}, {allow, 2}], weir:check_many([{Handle, key, 1}, {Handle, [external], 1}])),
    ?assertMatch([#{allowed := false, retry_ms := 20000}], weir:decide_many([{Handle, key, 1}])),
    ?assertEqual(ok, weir:reset(Handle, key)),
    %% In other processes, and when it has been in a message or a table.
    ?assertEqual([{allow, 2}], weir_test:concurrently(1, fun(_) -> weir:check(Handle, key) end)),
    Table = ets:new(handles, []),
    true = ets:insert(Table, {handle, Handle}),
    ?assertEqual({allow, 1}, weir:check(ets:lookup_element(Table, handle, 2), key)).

policies_outlive_handles_while_keys_live(_) ->
    Spec = #{rate => {3, minute}},
    Name = with_handle(Spec, fun(Handle) -> {allow, 1} = weir:check(Handle, key, 2) end),
    ok = weir_sweeper:sweep(),
    ?assertMatch(#{keys := 1}, weir_test:stats(Name)),
    ?assertMatch(#{remaining := 1}, weir:peek(weir:compile(Spec), key)),
    ok = weir_clock:advance(40 * ?SECOND - 1),
    ok = weir_sweeper:sweep(),
    ?assertMatch(#{remaining := 2}, weir:peek(weir:compile(Spec), key)).

policies_without_handles_and_keys_go(_) ->
    Spec = #{rate => {3, minute}},
    Count = fun() -> length(weir_table:stats()) end,
    _ = with_handle(Spec, fun(Handle) ->
                                  {allow, 2} = weir:check(Handle, key),
                                  ok = weir_clock:advance(?MINUTE),
                                  ok = weir_sweeper:sweep(),
                                  %% No key is left, but somebody may still ask.
                                  ?assertEqual(1, Count()),
                                  ?assertEqual({allow, 1}, weir:check(Handle, key, 2))
                          end),
    ok = weir_sweeper:sweep(),
    ?assertEqual(1, Count()),
    ok = weir_clock:advance(?MINUTE),
    gone(Count, 0),
    %% A thousand policies that came with calls.
    _ = with_handle(Spec, fun(_) -> [{allow, 0} = weir:check(weir:compile(#{rate => {1, {N, hour}}}), key) || N <- lists:seq(1, 1000)] end),
    ?assertEqual(1001, Count()),
    ok = weir_clock:advance(1000 * 60 * ?MINUTE),
    gone(Count, 0).

gone(Count, Left) ->
    weir_test:wait_until(collected, fun() -> ok = weir_sweeper:sweep(), Count() =:= Left end).

%% Runs Fun(Handle) in a process that then ends, and the handles it held with it; answers the policy's name in the statistics.
with_handle(Spec, Fun) ->
    Before = [N || #{name := N} <- weir_table:stats()],
    {Pid, Monitor} = spawn_monitor(fun() -> _ = Fun(weir:compile(Spec)), exit(normal) end),
    receive {'DOWN', Monitor, _, Pid, Reason} -> ?assertEqual(normal, Reason) end,
    hd([N || #{name := N} <- weir_table:stats()] -- Before).

%% When weir has been stopped and started again there are no limiters, and an old handle is none.
handles_end_with_the_application(_) ->
    Handle = weir:compile(#{rate => {3, minute}, on_error => allow}),
    {allow, 2} = weir:check(Handle, key),
    ok = weir_test:start(),
    ok = weir:put_limiter(other, #{rate => {3, minute}, on_error => deny}),
    [weir_test:fault(fun() -> Ask(Handle) end, ["compile"])
     || Ask <- [fun(H) -> weir:check(H, key) end, fun(H) -> weir:check_many([{H, key, 1}]) end, fun(H) -> weir:peek(H, key) end,
                fun(H) -> weir:decide(H, key, 1) end, fun(H) -> weir:reset(H, key) end, fun(H) -> weir:explain(H, key) end]],
    ?assertMatch(#{allowed := 0, denied := 0, failed := 0, keys := 0}, weir_test:stats(<<"other">>)).

%% ---- changed limiters

bursts_change(_) ->
    Rate = {5, minute},
    ok = weir:put_limiter(login, #{rate => Rate, burst => 5}),
    [{allow, _} = weir:check(login, Key, Hits) || {Key, Hits} <- [{one, 1}, {three, 3}, {five, 5}]],
    Remaining = fun() -> [maps:get(remaining, weir:peek(login, Key)) || Key <- [none, one, three, five]] end,
    ok = weir:put_limiter(login, #{rate => Rate, burst => 10}),
    ?assertEqual([10, 9, 7, 5], Remaining()),
    ok = weir:put_limiter(login, #{rate => Rate, burst => 2}),
    ?assertEqual([2, 1, 0, 0], Remaining()),
    ?assertEqual([{deny, 12000}, {deny, 12000}], [weir:check(login, Key) || Key <- [three, five]]),
    %% What was above the smaller burst is forgiven for good.
    ok = weir:put_limiter(login, #{rate => Rate, burst => 10}),
    ?assertEqual([10, 9, 8, 8], Remaining()),
    ok = weir_clock:advance(12 * ?SECOND),
    ?assertEqual([10, 10, 9, 9], Remaining()).

rates_change(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}, burst => 5}),
    {allow, 1} = weir:check(login, key, 4),
    ok = weir_clock:advance(12 * ?SECOND),
    %% Level 3, and the next token after a second instead of 12.
    ok = weir:put_limiter(login, #{rate => {1, second}, burst => 5}),
    ?assertMatch(#{remaining := 2, reset_ms := 3000}, weir:peek(login, key)),
    ok = weir_clock:advance(?SECOND),
    ?assertMatch(#{remaining := 3, reset_ms := 2000}, weir:peek(login, key)),
    %% Slower again, with less room.
    ok = weir:put_limiter(login, #{rate => {1, hour}, burst => 2}),
    ?assertMatch(#{remaining := 0, reset_ms := 7200000, retry_ms := 3600000}, weir:peek(login, key)),
    ?assertEqual({deny, 3600000}, weir:check(login, key)),
    ok = weir:put_limiter(login, #{rate => {1, second}, burst => 100}),
    ?assertMatch(#{remaining := 98, reset_ms := 2000}, weir:peek(login, key)).

%% The same rate: the token that has come back in part goes on coming.
changes_keep_fractions(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}, burst => 5}),
    {allow, 0} = weir:check(login, key, 5),
    ok = weir_clock:advance(7 * ?SECOND),
    ok = weir:put_limiter(login, #{rate => {5, minute}, burst => 6}),
    ?assertMatch(#{remaining := 1, reset_ms := 53000}, weir:peek(login, key)),
    ok = weir:put_limiter(login, #{rate => {10, {2, minute}}, burst => 6, on_error => deny}),
    ?assertMatch(#{remaining := 1, reset_ms := 53000}, weir:peek(login, key)).

%% More changes than versions are told apart in memory, with time passing.
changes_add_up(_) ->
    ok = weir:put_limiter(login, #{rate => {1, second}, burst => 1000}),
    {allow, 0} = weir:check(login, key, 1000),
    [begin
         ok = weir:put_limiter(login, #{rate => {1, {I rem 7 + 1, second}}, burst => 1000}),
         ok = weir_clock:advance((I rem 7 + 1) * ?SECOND),
         ?assertMatch({I, #{remaining := I}}, {I, weir:peek(login, key)})
     end || I <- lists:seq(1, 200)].

changes_reach_every_key(_) ->
    Keys = lists:seq(1, 20000),
    ok = weir:put_limiter(login, #{rate => {10, minute}}),
    Hits = fun(Key) -> Key rem 10 + 1 end,
    _ = weir:check_many([{login, Key, Hits(Key)} || Key <- Keys]),
    Levels = fun() -> [maps:get(level, weir:explain(login, Key)) || Key <- Keys] end,
    ok = weir:put_limiter(login, #{rate => {1, hour}, burst => 7}),
    ?assertEqual([min(7, Hits(Key)) || Key <- Keys], Levels()),
    ok = weir:put_limiter(login, #{rate => {1, second}, burst => 70}),
    ?assertEqual([min(7, Hits(Key)) || Key <- Keys], Levels()),
    ?assertMatch(#{keys := 20000}, weir_test:stats(<<"login">>)).

other_options_change(_) ->
    Spec = #{rate => {2, minute}},
    ok = weir:put_limiter(login, Spec),
    {allow, 0} = weir:check(login, key, 2),
    ok = weir:put_limiter(login, Spec#{shadow => true, on_error => deny}),
    ?assertMatch(#{<<"login">> := #{shadow := true, on_error := deny}}, weir:limiters()),
    ?assertEqual({allow, 0}, weir:check(login, key)),
    %% max_keys is chosen when a limiter is made.
    _ = weir_test:fault(fun() -> weir:put_limiter(login, Spec#{max_keys => 10}) end, ["max_keys"]),
    ?assertMatch(#{<<"login">> := #{shadow := true, max_keys := 1000000}}, weir:limiters()),
    ok = weir:put_limiter(login, Spec),
    ?assertMatch(#{shadow := false, on_error := allow}, weir:explain(login, key)),
    ?assertEqual({deny, 30000}, weir:check(login, key)).

deleted_limiters_are_gone(_) ->
    Spec = #{rate => {2, minute}},
    [ok = weir:put_limiter(Name, Spec) || Name <- [login, other]],
    {allow, 1} = weir:check(login, key),
    {allow, 1} = weir:check(other, key),
    ?assertEqual(ok, weir:delete_limiter(login)),
    [weir_test:fault(Ask, ["login"])
     || Ask <- [fun() -> weir:check(login, key) end, fun() -> weir:decide(login, key, 1) end, fun() -> weir:peek(login, key) end,
                fun() -> weir:reset(login, key) end, fun() -> weir:explain(login, key) end,
                fun() -> weir:check_many([{other, key, 1}, {login, key, 1}]) end,
                fun() -> weir:decide_many([{login, key, 1}]) end, fun() -> weir:delete_limiter(login) end]],
    ?assertEqual([<<"other">>], maps:keys(weir:limiters())),
    ?assertEqual([<<"other">>], [N || #{name := N} <- weir_table:stats()]),
    ?assertEqual({allow, 0}, weir:check(other, key)),
    %% One of the same name starts from nothing, with other max_keys if it likes.
    ok = weir:put_limiter(login, Spec#{max_keys => 10}),
    ?assertMatch(#{keys := 0, allowed := 0, max_keys := 10}, weir_test:stats(<<"login">>)),
    ?assertEqual({allow, 1}, weir:check(login, key)).

limiters_are_listed(_) ->
    ?assertEqual(#{}, weir:limiters()),
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    ok = weir:put_limiter(<<"api">>, #{rate => {5, {10, second}}, burst => 7, scope => local, algorithm => token_bucket,
                                       on_error => deny, shadow => true, max_keys => 99, partition => share,
                                       large_hits => claim, timeout => 50, flush_after => 1000}),
    All = weir:limiters(),
    ?assertEqual(#{<<"login">> => #{rate => {5, minute}, burst => 5, algorithm => token_bucket, scope => cluster,
                                    on_error => allow, shadow => false, max_keys => 1000000, partition => open,
                                    large_hits => admit, timeout => 100, flush_after => infinity},
                   <<"api">> => #{rate => {5, {10, second}}, burst => 7, algorithm => token_bucket, scope => local,
                                  on_error => deny, shadow => true, max_keys => 99, partition => share,
                                  large_hits => claim, timeout => 50, flush_after => 1000}}, All),
    %% What is listed can be put.
    [ok = weir:put_limiter(Name, Spec) || {Name, Spec} <- maps:to_list(All)],
    ?assertEqual(All, weir:limiters()).

%% ---- metrics, time

metrics_add_up(_) ->
    [ok = weir:put_limiter(Name, #{rate => {10, minute}}) || Name <- [a, b]],
    ok = weir:put_limiter(c, #{rate => {1, minute}, shadow => true}),
    _ = [weir:check(a, 1) || _ <- lists:seq(1, 15)],
    _ = weir:check_many([{b, I rem 3, 4} || I <- lists:seq(1, 9)]),
    _ = weir:decide_many([{N, x, 1} || N <- [a, b, c, c, c]]),
    _ = weir:decide(a, y, 11),
    _ = [weir:peek(a, I) || I <- lists:seq(1, 10)],
    Metrics = weir_metrics:metrics(),
    Value = fun(Name, Labels) ->
                    {_, _, _, _, Values} = lists:keyfind(Name, 1, Metrics),
                    proplists:get_value(Labels, Values)
            end,
    Of = fun(Name) -> [Value(Name, [Limiter]) || Limiter <- [<<"a">>, <<"b">>, <<"c">>]] end,
    ?assertEqual([11, 7, 1], Of(weir_allowed_total)),
    ?assertEqual([6, 3, 0], Of(weir_denied_total)),
    ?assertEqual([0, 0, 2], Of(weir_shadow_denied_total)),
    ?assertEqual([0, 0, 0], Of(weir_failed_total)),
    ?assertEqual([2, 4, 1], Of(weir_keys)),
    ?assertEqual([1000000, 1000000, 1000000], Of(weir_max_keys)),
    [?assertEqual([0, 0, 0], Of(Name)) || Name <- [weir_evicted_keys_total, weir_evicted_tokens_total]],
    [?assert(Bytes > 0) || Bytes <- Of(weir_memory_bytes)],
    ?assert(is_float(Value(weir_clock_offset_seconds, []))),
    ?assert(is_integer(Value(weir_clock_steps_total, []))),
    Names = [Name || {Name, _, _, _, _} <- Metrics],
    ?assertEqual(lists:usort(Names), lists:sort(Names)),
    [begin
         ?assert(lists:member(Kind, [counter, gauge])),
         ?assertEqual({Name, Kind =:= counter}, {Name, lists:suffix("_total", atom_to_list(Name))}),
         ?assert(byte_size(Help) > 5),
         [?assertEqual(length(Labels), length(L)) || {L, _} <- Values],
         ?assertEqual(length(Values), length(lists:ukeysort(1, Values)))
     end || {Name, Kind, Help, Labels, Values} <- Metrics].

time_is_ours(_) ->
    T0 = weir_test:t0(),
    ?assertEqual(T0, weir_clock:now()),
    ?assertMatch(#{frozen := true}, weir_clock:info()),
    ok = weir_clock:advance(5),
    ?assertEqual(T0 + 5, weir_clock:now()),
    ok = weir_clock:advance(0),
    ok = weir_clock:freeze(T0 - 1000),
    ?assertEqual([T0 - 1000], lists:usort([weir_clock:now() || _ <- lists:seq(1, 1000)])),
    %% For the whole node.
    ?assertEqual([T0 - 1000], lists:usort(weir_test:concurrently(8, fun(_) -> weir_clock:now() end))),
    ok = weir_clock:thaw(),
    ?assertMatch(#{frozen := false}, weir_clock:info()),
    Times = [weir_clock:now() || _ <- lists:seq(1, 10000)],
    ?assertEqual(lists:sort(Times), Times),
    %% Unix time: nearer to the system's than any mistake of unit or epoch would be.
    ?assert(abs(weir_clock:now() - os:system_time(nanosecond)) < 60 * ?SECOND),
    [?assertError(badarg, Wrong()) || Wrong <- [fun() -> weir_clock:freeze(-1) end, fun() -> weir_clock:freeze(1.0) end,
                                                fun() -> weir_clock:freeze(1 bsl 62) end, fun() -> weir_clock:advance(-1) end]].
