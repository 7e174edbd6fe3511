%% Misuse, each kind with its answer: an exception whose explanation names the fault and gives no key away, or a decision that was
%% promised for it. Never a crash, and never silence.
%% Shows R06, R09, R10, R12, R14, R41, R45, R50 of doc/requirements.md.
-module(weir_misuse_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [wrong_hits, wrong_limiters, wrong_names, wrong_keys, wrong_lists, wrong_items, items_of_four, keys_stay_secret,
     frames_name_the_function, explanations_are_binaries,
     specs_of_wrong_types, unknown_options, impossible_rates, impossible_spans, what_does_not_exist_yet, bad_specs_change_nothing,
     weir_is_not_started, too_many_limiters, too_many_policies, churn, a_full_table, the_smallest_table, deleted_under_callers, changed_under_callers,
     the_nif_is_missing, the_nif_is_garbage, the_nif_is_of_another_version, other_nif_names].

init_per_testcase(_, Config) ->
    ok = weir_test:start(),
    ok = weir:put_limiter(login, #{rate => {5, minute}}),
    Config.

end_per_testcase(_, _) ->
    weir_test:stop().

%% Nobody was counted, and the limiter still works.
unharmed() ->
    ?assertMatch(#{allowed := 0, denied := 0, failed := 0, keys := 0}, weir_test:stats(<<"login">>)),
    ?assertEqual({allow, 4}, weir:check(login, unharmed)).

%% ---- arguments

wrong_hits(_) ->
    [weir_test:fault(fun() -> Ask(Hits) end, ["hits", "integer"])
     || Hits <- [0, -1, -(1 bsl 63), 1 bsl 63, 1 bsl 64, 1 bsl 64 + 1, 1 bsl 1000, 1.0, 0.5, '1', <<"1">>, "1", [], {1}, #{}, self(),
                 infinity, undefined],
        Ask <- [fun(H) -> weir:check(login, key, H) end, fun(H) -> weir:decide(login, key, H) end,
                fun(H) -> weir:check(login, [key], H) end, fun(H) -> weir:check(<<"login">>, {1, 2, 3, 4}, H) end,
                fun(H) -> weir:check_many([{login, key, H}]) end, fun(H) -> weir:decide_many([{login, key, H}]) end]],
    unharmed(),
    %% More than a bucket holds is a question with an answer.
    ?assertEqual({deny, infinity}, weir:check(login, key, 6)),
    ?assertEqual({deny, infinity}, weir:check(login, key, 1 bsl 62)),
    ?assertEqual({deny, infinity}, weir:check(login, key, 1 bsl 63 - 1)),
    ?assertEqual([{deny, infinity}], weir:check_many([{login, key, 1 bsl 63 - 1}])),
    ?assertMatch(#{retry_ms := infinity, remaining := 5}, weir:decide(login, key, 1 bsl 63 - 1)).

wrong_limiters(_) ->
    [begin
         [weir_test:fault(fun() -> Ask(Limiter) end, ["limiter"]) || Ask <- questions()]
     end || Limiter <- [nologin, <<"nologin">>, <<>>, '', <<"login", 0>>, <<"Login">>, 'Login', 1, 1.5, "login", [login], {login},
                        #{}, self(), make_ref(), <<1:3>>, binary:copy(<<"login">>, 100000), list_to_atom(lists:duplicate(255, $ż)),
                        <<"compiled:capacity=5">>, undefined, null, 1 bsl 70]],
    _ = weir_test:fault(fun() -> weir:check(nologin, key) end, ["nologin", "weir:put_limiter/2"]),
    _ = weir_test:fault(fun() -> weir:check("login", key) end, ["atom or a binary", "weir:compile/1"]),
    unharmed().

questions() ->
    [fun(L) -> weir:check(L, key) end, fun(L) -> weir:check(L, key, 2) end, fun(L) -> weir:decide(L, key, 1) end,
     fun(L) -> weir:check(L, [key]) end, fun(L) -> weir:peek(L, key) end, fun(L) -> weir:reset(L, key) end,
     fun(L) -> weir:explain(L, key) end, fun(L) -> weir:check_many([{login, key, 1}, {L, key, 1}]) end,
     fun(L) -> weir:decide_many([{L, key, 1}]) end].

wrong_names(_) ->
    Spec = #{rate => {5, minute}},
    [begin
         _ = weir_test:fault(fun() -> weir:put_limiter(Name, Spec) end, Words),
         _ = weir_test:fault(fun() -> weir:delete_limiter(Name) end, Words)
     end || {Name, Words} <- [{<<>>, ["1 to 255 bytes", "0"]}, {'', ["1 to 255 bytes"]}, {binary:copy(<<"n">>, 256), ["255", "256"]},
                              {list_to_atom(lists:duplicate(200, $ż)), ["255", "400"]},
                              {binary:copy(<<"n">>, 1000000), ["255", "1000000"]},
                              {<<"compiled:">>, ["compiled:"]}, {'compiled:x', ["compiled:"]}, {1, ["atom or a binary"]},
                              {"login", ["atom or a binary"]}, {{login}, ["atom or a binary"]}, {<<1:3>>, ["atom or a binary"]},
                              {#{}, ["atom or a binary"]}, {make_ref(), ["atom or a binary"]}]],
    ?assertEqual([<<"login">>], maps:keys(weir:limiters())),
    %% These are names like any other.
    [begin
         ok = weir:put_limiter(Name, Spec),
         ?assertEqual({allow, 4}, weir:check(Name, key)),
         ok = weir:delete_limiter(Name)
     end || Name <- [binary:copy(<<"n">>, 255), <<0>>, <<255, 254>>, <<"a/b?c d\n">>, 'compiled', <<"compiled">>, <<"Compiled:x">>]].

wrong_keys(_) ->
    Long = binary:copy(<<"x">>, 1000000),
    [weir_test:fault(Ask, ["65536"])
     || Key <- [Long, binary:part(Long, 0, 65537), {Long}, {a, {Long}}, [Long], #{Long => 1}, lists:duplicate(70000, $x), 1 bsl 600000],
        Ask <- [fun() -> weir:check(login, Key) end, fun() -> weir:decide(login, Key, 1) end, fun() -> weir:peek(login, Key) end,
                fun() -> weir:reset(login, Key) end, fun() -> weir:explain(login, Key) end,
                fun() -> weir:check_many([{login, key, 1}, {login, Key, 1}]) end]],
    unharmed(),
    %% As long as they may be, and as short.
    [?assertEqual({allow, 4}, weir:check(login, Key)) || Key <- [binary:part(Long, 0, 65536), <<>>, '', {}, [], #{}, 0]].

wrong_lists(_) ->
    [[weir_test:fault(fun() -> Call(Items) end, ["list"]) || Call <- [fun weir:check_many/1, fun weir:decide_many/1]]
     || Items <- [not_a_list, {login, key, 1}, #{}, <<>>, 1, self(), [{login, key, 1} | tail], [{login, key, 1} | {login, key, 1}],
                  lists:duplicate(511, {login, key, 1}) ++ tail, lists:duplicate(512, {login, key, 1}) ++ tail,
                  lists:duplicate(2000, {login, key, 1}) ++ tail, [{login, [external], 1} | tail]]],
    unharmed().

wrong_items(_) ->
    [[weir_test:fault(fun() -> Call([{login, key, 1}, Item]) end, ["item 1 ", "{Limiter, Key, Hits}"])
      || Call <- [fun weir:check_many/1, fun weir:decide_many/1]]
     || Item <- [login, {}, {login}, {login, key}, [login, key, 1], #{limiter => login}, <<>>, 1, list_to_tuple(lists:seq(1, 100))]],
    unharmed().

%% Not three, so not an item, whatever the fourth is.
items_of_four(_) ->
    [[weir_test:fault(fun() -> finishes(fun() -> Call([{login, key, 1}, {login, Key, 1, Fourth}]) end) end,
                      ["item 1 ", "{Limiter, Key, Hits}"])
      || Call <- [fun weir:check_many/1, fun weir:decide_many/1]]
     || Key <- [<<"binary">>, atom, 1, [list], #{}], Fourth <- [external, native, 1, <<>>]],
    unharmed().

%% Fun's answer or exception. It may be one that never comes, in a process that doesn't listen; that is killed.
finishes(Fun) ->
    {Pid, Monitor} = spawn_monitor(fun() -> exit(try {answer, Fun()} catch C:R:S -> {raised, C, R, S} end) end),
    receive
        {'DOWN', Monitor, _, _, {answer, Answer}} -> Answer;
        {'DOWN', Monitor, _, _, {raised, Class, Reason, Stack}} -> erlang:raise(Class, Reason, Stack)
    after 5000 ->
        exit(Pid, kill),
        error(never_answers)
    end.

%% Keys are names of people: they don't belong into logs, and exceptions end there.
keys_stay_secret(_) ->
    Secret = "tell.nobody@example.org",
    Binary = list_to_binary(Secret),
    Long = binary:copy(Binary, 4000),
    [weir_test:fault(Ask, [], Secret)
     || Key <- [Binary, list_to_atom(Secret), Secret, {Binary}, {user, {Binary, 1}}, [Binary], #{Binary => Binary}],
        Ask <- [fun() -> weir:check(login, Key, 0) end, fun() -> weir:check(nologin, Key) end, fun() -> weir:check("login", Key) end,
                fun() -> weir:decide(login, Key, -1) end, fun() -> weir:decide(nologin, Key, 1) end,
                fun() -> weir:peek(nologin, Key) end, fun() -> weir:reset(nologin, Key) end, fun() -> weir:explain(nologin, Key) end,
                fun() -> weir:check_many([{login, Key, 1}, {login, Key, 0}]) end,
                fun() -> weir:check_many([{login, Key, 1}, {nologin, Key, 1}]) end,
                fun() -> weir:check_many([{login, Key, 1}, {login, Key}]) end,
                fun() -> weir:check_many([{login, Key, 1} | {login, Key, 1}]) end,
                fun() -> weir:decide_many([{login, Key, 1}, Key]) end,
                fun() -> weir:decide_many({login, Key, 1}) end,
                fun() -> weir:check_many(lists:duplicate(1000, {login, Key, 1}) ++ [{login, {Key, Long}, 1}]) end]],
    [weir_test:fault(fun() -> weir:check(login, Key) end, ["65536"], Secret) || Key <- [Long, [Long], {Long, Long}]],
    unharmed().

%% The top frame is the function that was called, without its arguments: shells print "in function weir:check/3".
frames_name_the_function(_) ->
    Spec = #{rate => {5, minute}},
    Bad = #{rate => {0, minute}},
    Calls = [{{check, 3}, fun() -> weir:check(nologin, key) end}, {{check, 3}, fun() -> weir:check(login, key, 0) end},
             {{check, 3}, fun() -> weir:check(login, [key], 0) end},
             {{decide, 3}, fun() -> weir:decide(nologin, key, 1) end},
             {{check_many, 1}, fun() -> weir:check_many([{nologin, key, 1}]) end},
             {{check_many, 1}, fun() -> weir:check_many(nolist) end},
             {{decide_many, 1}, fun() -> weir:decide_many([{login, key}]) end},
             {{peek, 2}, fun() -> weir:peek(nologin, key) end}, {{reset, 2}, fun() -> weir:reset(nologin, key) end},
             {{explain, 2}, fun() -> weir:explain(nologin, key) end},
             {{put_limiter, 2}, fun() -> weir:put_limiter(login, Bad) end},
             {{delete_limiter, 1}, fun() -> weir:delete_limiter(nologin) end},
             {{delete_limiter, 1}, fun() -> weir:delete_limiter(1) end},
             {{compile, 1}, fun() -> weir:compile(Bad) end}],
    [frame_is(Called, Call) || {Called, Call} <- Calls],
    ok = weir_test:stop(),
    [frame_is(Called, Call)
     || {Called, Call} <- [{{check, 3}, fun() -> weir:check(login, key) end},
                           {{put_limiter, 2}, fun() -> weir:put_limiter(login, Spec) end},
                           {{leave, 0}, fun() -> weir:leave() end}]].

frame_is({Name, Arity}, Call) ->
    {error, badarg, [{Module, Function, Args, Info} | _] = Stack} = weir_test:raised(Call),
    ?assertEqual({weir, Name, Arity}, {Module, Function, Args}),
    ?assertMatch(#{module := weir_error, cause := _}, proplists:get_value(error_info, Info)),
    Printed = unicode:characters_to_binary(erl_error:format_exception(error, badarg, Stack)),
    In = lists:concat(["weir:", Name, "/", Arity]),
    ?assertMatch({_, _, [_ | _]}, {In, Printed, [found || string:find(Printed, In) =/= nomatch]}).

%% Elixir wants a binary where Erlang takes any text.
explanations_are_binaries(_) ->
    [begin
         {error, Reason, Stack} = weir_test:raised(Call),
         ?assertMatch(#{general := Text} when is_binary(Text), weir_error:format_error(Reason, Stack))
     end || Call <- [fun() -> weir:check(nologin, key) end, fun() -> weir:check("nologin", key) end,
                     fun() -> weir:check(<<"ż"/utf8>>, key) end, fun() -> weir:check(<<255>>, key) end,
                     fun() -> weir:check(login, key, 0) end,
                     fun() -> weir:check_many([{login, key, 1}, {nologin, key, 1}]) end,
                     fun() -> weir:put_limiter(login, #{}) end, fun() -> weir:compile(5) end]],
    [?assertMatch(#{general := Text} when is_binary(Text), weir_error:format_error(badarg, Stack))
     || Stack <- [[], [{weir, check, 3, []}], [{weir, check, 3, [{error_info, #{cause => {strange, "ż"}}}]}]]].

%% ---- specifications

specs_of_wrong_types(_) ->
    [bad_spec(Spec, Words)
     || {Spec, Words} <-
            [{[{rate, {5, minute}}], ["map"]}, {rate, ["map"]}, {{5, minute}, ["map"]}, {5, ["map"]}, {<<>>, ["map"]},
             {#{}, ["rate"]}, {#{burst => 5}, ["rate"]}] ++
            [{#{rate => Rate}, ["rate"]}
             || Rate <- [5, minute, {5}, {minute, 5}, {5, minute, 1}, [5, minute], {0, minute}, {-5, minute}, {5.0, minute},
                         {<<"5">>, minute}, {five, minute}, {5, "minute"}, {5, <<"minute">>}, {5, minutes}, {5, week}, {5, 60},
                         {5, {minute}}, {5, {0, minute}}, {5, {-1, minute}}, {5, {1.5, minute}}, {5, {1, week}},
                         {5, {minute, 1}}, {5, {1, {2, minute}}}, #{n => 5}]] ++
            [{#{rate => {5, minute}, burst => Burst}, ["burst", "positive integer"]}
             || Burst <- [0, -1, 1.0, five, <<"5">>, infinity, undefined, []]] ++
            [{#{rate => {5, minute}, timeout => Ms}, ["timeout", "1 to 60000"]} || Ms <- [0, -1, 60001, 100.0, infinity, <<"5">>]] ++
            [{#{rate => {5, minute}, flush_after => Ms}, ["flush_after", "1 to 86400000"]} || Ms <- [0, 86400001, never]] ++
            [{#{rate => {5, minute}, max_keys => Max}, ["max_keys"]}
             || Max <- [0, -1, 1.0, infinity, <<>>, 1 bsl 28 + 1, 1 bsl 64]] ++
            [{#{rate => {5, minute}, on_error => OnError}, ["on_error", "allow or deny"]}
             || OnError <- [crash, true, <<"allow">>, "deny", undefined]] ++
            [{#{rate => {5, minute}, shadow => Shadow}, ["shadow", "true or false"]} || Shadow <- [1, yes, <<"true">>, undefined]]],
    %% The most is taken.
    [?assertMatch({ok, #{spec := #{timeout := Ms, flush_after := Flush}}},
                  weir_limiter:parse(#{rate => {5, minute}, timeout => Ms, flush_after => Flush}))
     || {Ms, Flush} <- [{1, 1}, {60000, 86400000}]].

bad_spec(Spec, Words) ->
    [weir_test:fault(Ask, Words) || Ask <- [fun() -> weir:put_limiter(login, Spec) end, fun() -> weir:put_limiter(new, Spec) end,
                                            fun() -> weir:compile(Spec) end]],
    {error, Message} = weir_limiter:parse(Spec),
    ?assert(is_binary(Message)).

unknown_options(_) ->
    [bad_spec(#{rate => {5, minute}, Option => 1}, [Name])
     || {Option, Name} <- [{bursts, "bursts"}, {<<"burst">>, "burst"}, {"rate", "rate"}, {1, "1"}, {{x}, "{x}"},
                           {limit, "limit"}]],
    [bad_spec(#{rate => {5, minute}, Option => 1}, [Hint])
     || {Option, Hint} <- [{bursts, "there is no option bursts: did you mean burst?"}, {brust, "did you mean burst?"},
                           {<<"burst">>, "did you mean burst?"}, {'Burst', "did you mean burst?"},
                           {rates, "did you mean rate?"}, {max, "did you mean max_keys?"},
                           {on_eror, "did you mean on_error?"}, {timout, "did you mean timeout?"},
                           {window, "the options are rate, burst"}]].

impossible_rates(_) ->
    %% From 1 us between tokens on anything goes; below, what a whole number of nanoseconds comes within 0.1 % of.
    [?assertMatch({Rate, {ok, _}}, {Rate, weir_limiter:parse(#{rate => Rate})})
     || Rate <- [{1000000, second}, {999999, second}, {999001, second}, {2000000, second}, {10000000, second}, {1000000000, second},
                 {60000000000, minute}, {1 bsl 20, second}, {3000000, second}]],
    [bad_spec(#{rate => Rate}, ["rate", "Count"])
     || Rate <- [{3000000001, second}, {1500000000, second}, {700000000, second}, {2000000001, second}, {1 bsl 70, second},
                 {30000000, second}, {400000000, second}]].

impossible_spans(_) ->
    Years36 = 1 bsl 60,
    [?assertMatch({ok, #{capacity := C, interval_ns := T}} when C * T =< Years36, weir_limiter:parse(Spec))
     || Spec <- [#{rate => {1, {13000, day}}}, #{rate => {1, second}, burst => Years36 div 1000000000},
                 #{rate => {1000000000, second}, burst => Years36}]],
    [bad_spec(Spec, ["burst", "36"])
     || Spec <- [#{rate => {1, {13400, day}}}, #{rate => {1, second}, burst => Years36 div 1000000000 + 1},
                 #{rate => {1000000000, second}, burst => Years36 + 1}, #{rate => {5, minute}, burst => 1 bsl 62},
                 #{rate => {5, minute}, burst => 1 bsl 64}, #{rate => {5, minute}, burst => 1 bsl 2000},
                 #{rate => {1, {1 bsl 100, day}}}]],
    %% What just fits works to its last token, and its times don't overflow.
    Widest = weir:compile(#{rate => {1000000000, second}, burst => Years36}),
    ?assertEqual({allow, 0}, weir:check(Widest, key, Years36)),
    ?assertEqual({deny, 1}, weir:check(Widest, key)),
    ?assertEqual({deny, Years36 div 1000000 + 1}, weir:check(Widest, key, Years36)),
    ?assertEqual({deny, infinity}, weir:check(Widest, key, Years36 + 1)),
    Slowest = weir:compile(#{rate => {1, {13000, day}}}),
    ?assertEqual([{allow, 0}, {deny, 13000 * 86400000}], [weir:check(Slowest, key) || _ <- [1, 2]]).

what_does_not_exist_yet(_) ->
    bad_spec(#{rate => {5, minute}, scope => galaxy}, ["scope", "local", "cluster", "exact", "galaxy"]),
    bad_spec(#{rate => {5, minute}, algorithm => sliding_log}, ["algorithm", "token_bucket", "sliding_log"]),
    bad_spec(#{rate => {5, minute}, algorithm => <<"token_bucket">>}, ["algorithm"]).

bad_specs_change_nothing(_) ->
    {allow, 0} = weir:check(login, key, 5),
    Before = weir:limiters(),
    bad_spec(#{rate => {10, minute}, burst => 0}, ["burst"]),
    _ = weir_test:fault(fun() -> weir:put_limiter(login, #{rate => {10, minute}, max_keys => 5}) end, ["max_keys"]),
    ?assertEqual(Before, weir:limiters()),
    ?assertEqual({deny, 12000}, weir:check(login, key)).

%% ---- circumstances

weir_is_not_started(_) ->
    Handle = weir:compile(#{rate => {5, minute}}),
    ok = weir_test:stop(),
    [weir_test:fault(fun() -> Ask(login) end, ["not started", "application:ensure_all_started(weir)"]) || Ask <- questions()],
    [weir_test:fault(Ask, ["not started"])
     || Ask <- [fun() -> weir:put_limiter(login, #{rate => {5, minute}}) end, fun() -> weir:delete_limiter(login) end,
                fun() -> weir:compile(#{rate => {5, minute}}) end, fun() -> weir:check(Handle, key) end]],
    ?assertEqual(#{}, weir:limiters()),
    ?assertEqual([], weir_table:stats()),
    ?assertNot(weir_specs:is_known(login)).

too_many_limiters(_) ->
    Spec = #{rate => {5, minute}, max_keys => 100},
    Name = fun(I) -> <<"limiter ", (integer_to_binary(I))/binary>> end,
    Fits = 16384 - 1,
    [ok = weir:put_limiter(Name(I), Spec) || I <- lists:seq(1, Fits)],
    weir_test:fault(fun() -> weir:put_limiter(<<"one more">>, Spec) end, ["16384"]),
    ?assertEqual(16384, maps:size(weir:limiters())),
    %% Policies that come with the call have room of their own.
    ?assertEqual({allow, 4}, weir:check(weir:compile(Spec), key)),
    %% Those that are there work and can be changed; a deleted one makes room at once.
    ?assertEqual([{allow, 4}, {allow, 3}], [weir:check(Name(Fits), key), weir:check(Name(Fits), key)]),
    ok = weir:put_limiter(Name(1), Spec#{burst => 7}),
    ?assertEqual([{allow, 4} || _ <- lists:seq(2, Fits - 1)], weir:check_many([{Name(I), key, 1} || I <- lists:seq(2, Fits - 1)])),
    ok = weir:delete_limiter(Name(1)),
    ok = weir:put_limiter(<<"one more">>, Spec),
    ?assertEqual({allow, 4}, weir:check(<<"one more">>, key)).

%% Users' data may say what is compiled: they use up neither the limiters that have names, nor each other's.
too_many_policies(_) ->
    Spec = fun(Burst) -> #{rate => {5, minute}, burst => Burst, max_keys => 100} end,
    Handles = [weir:compile(Spec(Burst)) || Burst <- lists:seq(1, 16384)],
    weir_test:fault(fun() -> weir:compile(Spec(20000)) end, ["16384", "weir:compile/1"]),
    ok = weir:put_limiter(<<"named">>, Spec(5)),
    ?assertEqual({allow, 4}, weir:check(<<"named">>, key)),
    %% One that is held already is no more than a look.
    ?assertEqual({allow, 6}, weir:check(weir:compile(Spec(7)), key)),
    ?assertEqual({allow, 16383}, weir:check(lists:last(Handles), key)).

%% Limiters that are made and deleted faster than their memory is given back.
churn(_) ->
    Spec = #{rate => {5, minute}},
    [begin
         ok = weir:put_limiter(<<"churn">>, Spec),
         {allow, 4} = weir:check(<<"churn">>, key),
         ok = weir:delete_limiter(<<"churn">>)
     end || _ <- lists:seq(1, 20000)],
    ?assertEqual({allow, 4}, weir:check(login, key)).

%% Decisions go on in a full table; what had to make way is counted, to the token.
a_full_table(_) ->
    Max = 500,
    ok = weir:put_limiter(small, #{rate => {3, day}, max_keys => Max}),
    Hits = fun(Key) -> Key rem 3 + 1 end,
    Answers = [weir:check(small, Key, Hits(Key)) || Key <- lists:seq(1, 20000)],
    ?assertEqual([], [A || A <- Answers, element(1, A) =/= allow]),
    #{keys := Keys, evicted_keys := EvictedKeys, evicted_tokens := EvictedTokens, allowed := 20000, failed := 0} =
        weir_test:stats(<<"small">>),
    ?assert(Keys =< Max + Max div 20),
    ?assertEqual(20000, Keys + EvictedKeys),
    Held = lists:sum([maps:get(level, weir:explain(small, Key)) || Key <- lists:seq(1, 20000)]),
    ?assertEqual(lists:sum([Hits(Key) || Key <- lists:seq(1, 20000)]), Held + EvictedTokens),
    %% Those with the most to lose were spared: they are a third of all, but most of those who are left.
    Levels = [maps:get(level, weir:explain(small, Key)) || Key <- lists:seq(1, 20000)],
    Count = fun(Level) -> length([L || L <- Levels, L =:= Level]) end,
    ?assert(Count(3) > 2 * (Count(1) + Count(2))),
    %% When they have expired there is room again.
    ok = weir_clock:advance(86400 * 1000000000),
    ok = weir_sweeper:sweep(),
    ?assertMatch(#{keys := 0}, weir_test:stats(<<"small">>)),
    _ = [weir:check(small, {new, Key}) || Key <- lists:seq(1, 100)],
    ?assertMatch(#{keys := 100, evicted_keys := EvictedKeys}, weir_test:stats(<<"small">>)).

the_smallest_table(_) ->
    ok = weir:put_limiter(tiny, #{rate => {2, day}, max_keys => 1}),
    ?assertEqual([{allow, 1}, {allow, 0}, {deny, 43200000}], [weir:check(tiny, a) || _ <- [1, 2, 3]]),
    [?assertEqual({allow, 1}, weir:check(tiny, Key)) || Key <- lists:seq(1, 1000)],
    ?assertEqual([{allow, 1} || _ <- lists:seq(1, 1000)], weir:check_many([{tiny, {batch, Key}, 1} || Key <- lists:seq(1, 1000)])),
    #{keys := Keys, evicted_keys := Evicted} = weir_test:stats(<<"tiny">>),
    ?assertEqual(2001, Keys + Evicted).

%% Eight processes ask a limiter that comes and goes: each answer is a decision or says that there is no such limiter. (That of a
%% reset may be that it is to be tried again: it was of the limiter before.)
deleted_under_callers(_) ->
    Spec = #{rate => {3, day}, max_keys => 2000},
    Left = counters:new(1, []),
    Fates = weir_test:concurrently(
              9,
              fun(9) ->
                      _ = [begin
                               ok = weir:put_limiter(fleeting, Spec#{on_error => lists:nth(I rem 2 + 1, [allow, deny])}),
                               I rem 3 =:= 0 andalso weir_sweeper:sweep(),
                               ok = weir:delete_limiter(fleeting)
                           end || I <- lists:seq(1, 200)],
                      counters:add(Left, 1, 1),
                      done;
                 (I) ->
                      ask_until(Left, I, #{})
              end),
    Seen = lists:usort(lists:append([maps:keys(F) || F <- Fates, is_map(F)])),
    ct:pal("~tp", [Seen]),
    ?assertEqual([], Seen -- [allow, deny, unknown_limiter, {error, unavailable}]),
    ?assert(lists:member(unknown_limiter, Seen)),
    ?assert(lists:member(allow, Seen)),
    ok = weir_sweeper:sweep(),
    ?assertEqual([<<"login">>], [N || #{name := N} <- weir_table:stats()]),
    unharmed().

ask_until(Done, I, Seen) ->
    case counters:get(Done, 1) of
        0 -> ask_until(Done, I, lists:foldl(fun(F, S) -> S#{F => true} end, Seen, fates(I, map_size(Seen))));
        _ -> Seen
    end.

fates(I, N) ->
    Key = {I, N, rand:uniform(5)},
    [fate(fun() -> weir:check(fleeting, Key) end), fate(fun() -> weir:check(<<"fleeting">>, Key, 2) end),
     fate(fun() -> hd(weir:check_many([{fleeting, [Key], 1}, {<<"fleeting">>, Key, 1}])) end),
     fate(fun() -> weir:decide(fleeting, Key, 1) end), fate(fun() -> weir:peek(fleeting, Key) end),
     fate(fun() -> weir:explain(fleeting, Key) end), fate(fun() -> weir:reset(fleeting, Key) end),
     fate(fun() -> lists:last(weir:decide_many([{fleeting, J, 1} || J <- lists:seq(1, 600)])) end)].

fate(Ask) ->
    try Ask() of
        ok -> allow;
        {allow, Left} when Left >= 0, Left < 3 -> allow;
        {deny, Ms} when Ms > 0 -> deny;
        #{allowed := true, limit := 3} -> allow;
        #{allowed := false, retry_ms := Ms} when Ms > 0 -> deny;
        Other -> Other
    catch
        error:badarg:Stack ->
            case string:find(weir_error:explain(badarg, Stack), "there is no limiter called") of
                nomatch -> {badarg, weir_error:explain(badarg, Stack)};
                _ -> unknown_limiter
            end;
        Class:Reason:Stack -> {Class, Reason, Stack}
    end.

%% ... and one that is changed all the time: nobody is told more than the largest bucket ever held.
changed_under_callers(_) ->
    Done = counters:new(1, []),
    ok = weir:put_limiter(restless, #{rate => {1, day}, burst => 4}),
    [changes | Answers] =
        weir_test:concurrently(
          8,
          fun(1) ->
                  [ok = weir:put_limiter(restless, #{rate => {N rem 5 + 1, day}, burst => N rem 7 + 1}) || N <- lists:seq(1, 500)],
                  counters:add(Done, 1, 1),
                  changes;
             (I) -> ask_restless(Done, I, 0, [])
          end),
    ?assertEqual([], [A || A <- lists:append(Answers), not plausible(A)]).

ask_restless(Done, I, N, Strange) ->
    New = [A || A <- [weir:check(restless, {I, N rem 50}) | weir:check_many([{restless, {I, K}, 1} || K <- lists:seq(1, 20)])],
                not plausible(A)],
    case counters:get(Done, 1) of
        0 -> ask_restless(Done, I, N + 1, New ++ Strange);
        _ -> Strange
    end.

plausible({allow, Left}) -> Left >= 0 andalso Left < 7;
plausible({deny, Ms}) -> Ms > 0 andalso Ms =< 7 * 86400000;
plausible(_) -> false.

%% ---- a NIF that does not load

the_nif_is_missing(Config) ->
    without_nif(Config, missing, fun(_Priv) -> ok end, ["weir_nif"]).

the_nif_is_garbage(Config) ->
    without_nif(Config, garbage,
                fun(Priv) -> ok = file:write_file(filename:join(Priv, "weir_nif.so"), binary:copy(<<"garbage">>, 1000)) end,
                ["weir_nif"]).

%% The library is this one, but the module was built for another.
the_nif_is_of_another_version(Config) ->
    without_nif(Config, version,
                fun(Priv) ->
                        {ok, _} = file:copy(filename:join(code:priv_dir(weir), "weir_nif.so"), filename:join(Priv, "weir_nif.so")),
                        Beam = weir_test:other_nif_module(#{abi => 4711}),
                        ok = file:write_file(filename:join([filename:dirname(Priv), "ebin", "weir_nif.beam"]), Beam)
                end,
                ["weir_nif"]).

%% A node with a copy of weir whose NIF doesn't load: it starts nothing, and says why.
without_nif(Config, Case, Prepare, Words) ->
    Ebin = weir_test:copy_ebin(filename:join(?config(priv_dir, Config), Case)),
    Priv = filename:join(filename:dirname(Ebin), "priv"),
    ok = filelib:ensure_dir(filename:join(Priv, "x")),
    ok = Prepare(Priv),
    {ok, Peer, _} = peer:start_link(#{connection => standard_io, args => ["-pa", Ebin, "-kernel", "logger_level", "none"]}),
    try
        {error, {weir, Reason}} = peer:call(Peer, application, ensure_all_started, [weir]),
        Text = lists:flatten(io_lib:format("~tp", [Reason])),
        [?assertMatch({W, _, [_ | _]}, {W, Text, [found || string:find(Text, W) =/= nomatch]})
         || W <- ["nif_not_loaded", "priv/weir_nif.so", "rebuild" | Words]],
        ?assertNot(lists:keymember(weir, 1, peer:call(Peer, application, which_applications, []))),
        %% Who asks all the same isn't let through.
        ?assertError(_, peer:call(Peer, weir, check, [login, <<"key">>])),
        %% What is left of it is repaired by a working library, without a new node.
        ok = file:delete(filename:join(Ebin, "weir_nif.beam")),
        {ok, _} = file:copy(code:which(weir_nif), filename:join(Ebin, "weir_nif.beam")),
        _ = file:delete(filename:join(Priv, "weir_nif.so")),
        {ok, _} = file:copy(filename:join(code:priv_dir(weir), "weir_nif.so"), filename:join(Priv, "weir_nif.so")),
        {ok, _} = peer:call(Peer, application, ensure_all_started, [weir]),
        ok = peer:call(Peer, weir, put_limiter, [login, #{rate => {5, minute}}]),
        ?assertEqual({allow, 4}, peer:call(Peer, weir, check, [login, <<"key">>]))
    after
        weir_test:stop_peer(Peer)
    end.

%% What the NIF is given by others than weir's own modules is refused, not trusted.
other_nif_names(_) ->
    [?assertError(badarg, Call())
     || Call <- [fun() -> weir_nif:put(<<"x">>, 0, 1, 1, false, false, false, local) end,
                 fun() -> weir_nif:put(<<"x">>, 1, 0, 1, false, false, false, local) end,
                 fun() -> weir_nif:put(<<"x">>, 1 bsl 40, 1 bsl 40, 1, false, false, false, local) end,
                 fun() -> weir_nif:put(<<"x">>, 1, 1, 0, false, false, false, local) end,
                 fun() -> weir_nif:put(<<"x">>, 1, 1, 1 bsl 40, false, false, false, local) end,
                 fun() -> weir_nif:put(<<>>, 1, 1, 1, false, false, false, local) end,
                 fun() -> weir_nif:put(binary:copy(<<"x">>, 256), 1, 1, 1, false, false, false, local) end,
                 fun() -> weir_nif:put(x, 1, 1, 1, false, false, false, local) end,
                 fun() -> weir_nif:put(<<"x">>, 1, 1, 1, 0, false, false, local) end,
                 fun() -> weir_nif:put(<<"x">>, 1, 1, 1, false, false, false, global) end,
                 fun() -> weir_nif:put(<<"x">>, 1, 1, 1, false, false, false, {0, open, admit}) end,
                 fun() -> weir_nif:put(<<"x">>, 1, 1, 1, false, false, false, {1, ajar, admit}) end,
                 fun() -> weir_nif:alias(<<"x">>, <<"x">>) end, fun() -> weir_nif:convert(x) end,
                 fun() -> weir_nif:delete(x) end, fun() -> weir_nif:set_secret(<<"short">>) end,
                 fun() -> weir_nif:set_secret(secret) end]],
    ?assertEqual(busy, weir_nif:set_secret(<<"0123456789abcdef">>)),
    unharmed().
