%% The API of weir, as its documentation tells it: what is answered, to the token and to the nanosecond. Time stands still and is
%% moved by hand.
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
     batches_keep_their_order, batches_equal_single_calls, long_batches, batches_are_validated_first, batches_of_any_keys,
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
    ?assertEqual(#{allowed => false, limit => 5, remaining => 5, reset_ms => 0, retry_ms => infinity},
                 weir:decide(login, key, 6)),
    ?assertEqual({allow, 0}, weir:check(login, key, 5)),
    ?assertEqual({deny, infinity}, weir:check(login, key, 6)).

one_hit_is_the_default(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    ?assertEqual({allow, 4}, weir:check(login, key)),
    ?assertEqual({allow, 3}, weir:check(login, key, 1)).

%% ---- names

atoms_and_binaries_name_one_limiter(_) ->
    ?assertNot(weir_limiter:known(login)),
    _ = weir_test:fault(fun() -> weir:check(login, key) end),
    ok = weir:put_limiter(<<"login">>, #{rate => {5, minute}}),
    ?assert(weir_limiter:known(login)),
    ?assert(weir_limiter:known(<<"login">>)),
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
     end || Atom <- ['żółw', 'été', '日本', ' ', 'a b', true, undefined, []  | [list_to_atom(lists:duplicate(255, $a))]],
            is_atom(Atom)].

%% ---- decide, peek, reset, explain, shadow

decide_tells_the_headers(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    ?assertEqual(#{allowed => true, limit => 5, remaining => 4, reset_ms => 12000, retry_ms => 0}, weir:decide(login, key, 1)),
    ?assertEqual(#{allowed => true, limit => 5, remaining => 1, reset_ms => 48000, retry_ms => 0}, weir:decide(login, key, 3)),
    ?assertEqual(#{allowed => false, limit => 5, remaining => 1, reset_ms => 48000, retry_ms => 12000},
                 weir:decide(login, key, 2)),
    ok = weir_clock:advance(?SECOND + 1),
    %% Rounded up, so that who comes then isn't early; a token that has come back in part is not there yet.
    ?assertEqual(#{allowed => false, limit => 5, remaining => 1, reset_ms => 47000, retry_ms => 11000},
                 weir:decide(login, key, 2)),
    ?assertEqual([#{allowed => true, limit => 5, remaining => 0, reset_ms => 59000, retry_ms => 0},
                  #{allowed => false, limit => 5, remaining => 0, reset_ms => 59000, retry_ms => 11000}],
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
    ?assertMatch(#{limiter := <<"login">>, scope := local, algorithm := token_bucket, capacity := 8, limit := 8,
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
    ?assertEqual(#{rate => {5, minute}, burst => 5, algorithm => token_bucket, scope => local, on_error => allow,
                   shadow => false, max_keys => 1000000}, Spec),
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
    ?assertEqual([#{allowed => true, limit => 2, remaining => 0, reset_ms => 60000, retry_ms => 0},
                  #{allowed => true, limit => 3, remaining => 1, reset_ms => 40000, retry_ms => 0}],
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
     [a], term_to_binary([a], [deterministic, {minor_version, 2}]), term_to_binary([a])].

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
                       {"text", lists:reverse("txet")}, {"text", [$t, $e, $x, $t]}]].

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
    {Asker, Monitor} = spawn_monitor(fun() -> receive ask -> catch weir:peek(no_limiter, Key) end,
                                              catch weir_table:peek(<<"no limiter">>, Key),
                                              Self ! {self(), weir_table_external(Key)} end),
    Asker ! ask,
    receive
        {Asker, Bytes} -> true = demonitor(Monitor, [flush]), Bytes
    end.

weir_table_external(Key) ->
    Self = self(),
    ok = application:ensure_started(crypto),
    {ok, _} = application:ensure_all_started(weir),
    ok = weir:put_limiter(traced, #{rate => {1, day}}),
    Asker = spawn_link(fun() -> receive ask -> _ = weir:check(traced, Key), Self ! asked end end),
    1 = erlang:trace_pattern({weir_nif, check_external, 3}, true, [local]),
    1 = erlang:trace(Asker, true, [call]),
    Asker ! ask,
    receive
        {trace, Asker, call, {weir_nif, check_external, [_, Bytes, _]}} -> Bytes
    after 5000 -> error(not_hashed_by_its_external_format)
    end.
