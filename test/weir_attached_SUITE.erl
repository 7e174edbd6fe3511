%% The attached replica: what the tables admit reaches the machine, what the machine learns reaches the tables. R31, R43, R44.
-module(weir_attached_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(NUMBER, 7).
-define(TERMS, #{capacity => 10, interval_ns => interval(10)}).
-define(KEY, <<"alice">>).

suite() -> [{timetrap, {seconds, 60}}].

all() ->
    [births_reach_the_machine, births_of_others_reach_the_table, woken_once, one_attached_at_a_time, evicted_levels_come_back,
     alone_until_the_first_comes, lost_births_are_found_again, lost_births_count_once, a_side_denies, claims_are_asked, claims_of_others_count, resets_hold, numbers_are_unique, many_processes,
     nothing_without_a_machine, changes_carry_over].

init_per_testcase(_, Config) ->
    ok = weir_test:stop(),
    {ok, _} = application:ensure_all_started(weir),
    ok = weir_machine:detach(),
    Config.

end_per_testcase(_, _) ->
    ok = weir_machine:detach(),
    ok = application:stop(weir).

%% ---- the tests

births_reach_the_machine(_) ->
    {Me, _} = start([1, 2]),
    [{allow, _} = check() || _ <- lists:seq(1, 2)],
    %% With two nodes the share of a slack of 8 is 4: these wait. Of 7 it is 3.
    ?assertEqual([], sends(step(Me, births))),
    ?assertEqual(2, weight(weir_machine:unsent(Me, ?NUMBER, hash()))),
    {allow, _} = check(),
    ?assertMatch([{2, _, data}], sends(settle(Me))),
    ?assertEqual(3, weight(weir_machine:published(Me, ?NUMBER, hash()))).

births_of_others_reach_the_table(_) ->
    {Me, Other} = start([1, 2]),
    [feed(Me, Frame) || {1, Frame, data} <- asked(Other, 8)],
    ?assertMatch(#{remaining := 2}, weir:peek(<<"cluster">>, ?KEY)),
    ?assertEqual([true, true, false], [element(1, check()) =:= allow || _ <- lists:seq(1, 3)]).

woken_once(_) ->
    {Me, _} = start([1, 2]),
    flush(),
    [check() || _ <- lists:seq(1, 5)],
    ?assertEqual(1, flush()),
    _ = step(Me, births),
    check(),
    ?assertEqual(1, flush()),
    %% No birth, no message: a denial.
    _ = step(Me, births),
    [check() || _ <- lists:seq(1, 9)],
    _ = step(Me, births),
    flush(),
    {deny, _} = check(),
    ?assertEqual(0, flush()).

one_attached_at_a_time(_) ->
    {Me, Other} = start([1, 2]),
    ?assertEqual({ok, Me}, weir_machine:attached()),
    ok = weir_machine:attach(Other, self()),
    ?assertEqual({ok, Other}, weir_machine:attached()),
    check(),
    _ = step(Me, births),
    ?assertEqual(0, weight(weir_machine:unsent(Me, ?NUMBER, hash()))),
    _ = step(Other, births),
    ?assertEqual(1, weight(weir_machine:unsent(Other, ?NUMBER, hash()))),
    ?assertError(badarg, weir_machine:attach(Me, <<"pid">>)),
    ok = weir_machine:detach(),
    ?assertEqual(none, weir_machine:attached()).

%% A table that lost a key has its level again with the key's next birth.
evicted_levels_come_back(_) ->
    {Me, _} = start([1, 2]),
    [check() || _ <- lists:seq(1, 10)],
    _ = step(Me, births),
    {replicated, ?NUMBER, _, _} = weir_nif:reset(<<"cluster">>, ?KEY, 0),
    {allow, 9} = check(),
    _ = step(Me, births),
    ?assertMatch({deny, _}, check()).

%% A node that has nobody to tell keeps its keys' levels in its tables alone; the first one that comes hears of them.
alone_until_the_first_comes(_) ->
    Me = weir_machine:new(#{self => 1, members => [1], start => now_ns(), coalesce_most => 0}),
    put_replicated(<<"cluster">>, ?NUMBER, 10),
    [] = weir_machine:put_limiter(Me, ?NUMBER, ?TERMS, now_ns()),
    ok = weir_machine:attach(Me, self()),
    _ = step(Me, births),
    flush(),
    [{allow, _} = check() || _ <- lists:seq(1, 4)],
    ?assertEqual(0, flush()),
    _ = step(Me, births),
    ?assertEqual([0], weir_machine:bytes(Me, [?NUMBER])),
    Known = fun() -> weight(weir_machine:published(Me, ?NUMBER, hash())) + weight(weir_machine:unsent(Me, ?NUMBER, hash())) end,
    ?assertEqual(0, Known()),
    _ = step(Me, {registered, 2}),
    until(fun() -> _ = step(Me, births), Known() =:= 4 end),
    {allow, 5} = check(),
    until(fun() -> _ = step(Me, births), Known() =:= 5 end),
    ?assertEqual(5, maps:get(level, weir:explain(<<"cluster">>, ?KEY))).

%% Births of more keys than a ring has entries: nothing is lost in the end. (Those of one key join.)
lost_births_are_found_again(_) ->
    {Me, _} = start([1, 2]),
    Keys = 10000,
    put_replicated(<<"many">>, 8, 10),
    [] = weir_machine:put_limiter(Me, 8, #{capacity => 10, interval_ns => interval(10)}, now_ns()),
    [{allow, _} = weir:check(<<"many">>, Key) || _ <- [1, 2], Key <- lists:seq(1, Keys)],
    Known = fun() -> lists:sum([known(Me, 8, Key) || Key <- lists:seq(1, Keys)]) end,
    until(fun() -> _ = step(Me, births), Known() >= 2 * Keys end),
    _ = settle(Me),
    ?assertEqual(2 * Keys, Known()).

%% Also where the step that looks for them began before they were admitted, as one may that waits for its turn.
lost_births_count_once(_) ->
    {Me, _} = start([1, 2]),
    Keys = 10000,
    put_replicated(<<"many">>, 8, 10),
    [] = weir_machine:put_limiter(Me, 8, #{capacity => 10, interval_ns => interval(10)}, now_ns()),
    Before = now_ns(),
    [{allow, 9} = weir:check(<<"many">>, {key, I}) || I <- lists:seq(1, Keys)],
    Known = fun(I) -> known(Me, 8, {key, I}) end,
    until(fun() -> _ = weir_machine:step(Me, births, Before), lists:all(fun(I) -> Known(I) > 0 end, lists:seq(1, Keys)) end),
    ?assertEqual([], [{I, N} || I <- lists:seq(1, Keys), N <- [Known(I)], N =/= 1]).

%% The smaller side of a partition, under `closed'.
a_side_denies(_) ->
    {Me, _} = start([1, 2, 3], #{partition => closed, large_hits => admit}),
    ?assertMatch({allow, _}, check()),
    _ = weir_machine:step(Me, tick, now_ns() + 3000000000),
    ?assertEqual(1, weir_machine:live(Me)),
    ?assertEqual({deny, 1000}, check()).

claims_are_asked(_) ->
    {Me, Other} = start([1, 2], #{partition => open, large_hits => claim}),
    ?assertEqual({claim, ?NUMBER, hash()}, weir_nif:check(<<"cluster">>, ?KEY, 6)),
    ?assertEqual({allow, 9}, weir_nif:check(<<"cluster">>, ?KEY, 1)),
    ?assertEqual({allow, 3}, weir_nif:check(<<"cluster">>, ?KEY, 6, 2)),
    _ = step(Me, births),
    %% Asked as the shell asks: decided when the other has answered, and counted in the table.
    Asked = step(Me, {ask, 1, ?NUMBER, hash(), 3}),
    Acks = [Ack || {2, Frame, data} <- sends(Asked), {1, Ack, data} <- sends(step(Other, {arrival, 1, Frame}))],
    ?assertEqual([{answer, 1, true}], [Answer || Ack <- Acks, {answer, _, _} = Answer <- feed(Me, Ack)]),
    ?assertMatch(#{remaining := 0}, weir:peek(<<"cluster">>, ?KEY)).

claims_of_others_count(_) ->
    {Me, Other} = start([1, 2], #{partition => open, large_hits => claim}),
    [feed(Me, Frame) || {1, Frame, data} <- asked(Other, 8)],
    ?assertMatch(#{remaining := 2}, weir:peek(<<"cluster">>, ?KEY)),
    %% The claim is over after a while without news.
    _ = weir_machine:step(Me, tick, now_ns() + 1500000000),
    ?assertMatch(#{remaining := 10}, weir:peek(<<"cluster">>, ?KEY)).

%% A reset key stays so, whoever tells of births before it; those after it count.
resets_hold(_) ->
    {Me, Other} = start([1, 2]),
    Old = asked(Other, 4),
    [check() || _ <- lists:seq(1, 6)],
    _ = settle(Me),
    {replicated, ?NUMBER, [Hash], Time} = weir_nif:reset(<<"cluster">>, ?KEY, 0),
    ?assertEqual(hash(), Hash),
    ?assert(weir_machine:reset(Me, ?NUMBER, Hash, Time, now_ns(), own)),
    [feed(Me, Frame) || {1, Frame, data} <- Old],
    {allow, 9} = check(),
    _ = settle(Me),
    ?assertMatch(#{remaining := 9}, weir:peek(<<"cluster">>, ?KEY)),
    ?assertNot(weir_machine:reset(Me, ?NUMBER, Hash, now_ns() + 3600000000000, now_ns(), own)),
    ?assertEqual(unknown, weir_machine:reset(Me, 99, Hash, Time, now_ns(), told)),
    ?assertError(badarg, weir_machine:reset(Me, ?NUMBER, 0, Time, now_ns(), told)).

numbers_are_unique(_) ->
    put_replicated(<<"one">>, 9, 10),
    ?assertEqual(same_number, weir_nif:put(<<"two">>, 10, 1000000, 1000, false, false, false, {9, open, admit})),
    ?assertEqual(fixed, weir_nif:put(<<"one">>, 10, 1000000, 1000, false, false, false, {10, open, admit})),
    true = weir_nif:delete(<<"one">>),
    ?assertEqual(created, weir_nif:put(<<"two">>, 10, 1000000, 1000, false, false, false, {9, open, admit})).

%% Births of many processes, on all schedulers, while the machine steps: each is told once.
many_processes(_) ->
    {Me, _} = start([1, 2]),
    put_replicated(<<"wide">>, 8, 1 bsl 16),
    [] = weir_machine:put_limiter(Me, 8, #{capacity => 1 bsl 16, interval_ns => interval(1 bsl 16)}, now_ns()),
    Workers = [spawn_monitor(fun() -> [{allow, _} = weir:check(<<"wide">>, N rem 10) || N <- lists:seq(1, 3000)] end) || _ <- lists:seq(1, 8)],
    Stepper = fun Step([]) -> ok;
                  Step(Left) ->
                      _ = step(Me, births),
                      receive {'DOWN', Ref, process, Pid, normal} -> Step(Left -- [{Pid, Ref}]) after 0 -> Step(Left) end
              end,
    Stepper(Workers),
    _ = settle(Me),
    ?assertEqual(24000, lists:sum([known(Me, 8, Key) || Key <- lists:seq(0, 9)])).

nothing_without_a_machine(_) ->
    put_replicated(<<"cluster">>, ?NUMBER, 10),
    flush(),
    [check() || _ <- lists:seq(1, 10)],
    ?assertMatch({deny, _}, check()),
    ?assertEqual(0, flush()).

changes_carry_over(_) ->
    {Me, _} = start([1, 2]),
    [check() || _ <- lists:seq(1, 4)],
    changed = weir_nif:put(<<"cluster">>, 20, 3600000000000, 1000000, false, false, false, {?NUMBER, open, admit}),
    done = weir_nif:convert(<<"cluster">>),
    _ = weir_machine:put_limiter(Me, ?NUMBER, #{capacity => 20, interval_ns => 3600000000000, version => 2}, now_ns()),
    ?assertMatch(#{remaining := 16}, weir:peek(<<"cluster">>, ?KEY)),
    ?assertEqual(4, weight(weir_machine:published(Me, ?NUMBER, hash()))).

%% ---- helpers

start(Members) ->
    start(Members, #{partition => open, large_hits => admit}).

%% This node's machine, attached, and another's, which has the same members. Both have the limiter.
start(Members, #{partition := Partition, large_hits := Large} = Options) ->
    [Me, Other] = [weir_machine:new(#{self => Self, members => Members, start => now_ns(), coalesce_most => 0}) || Self <- [1, 2]],
    put_replicated(<<"cluster">>, ?NUMBER, 10, Partition, Large),
    [[] = weir_machine:put_limiter(M, ?NUMBER, maps:merge(?TERMS, Options), now_ns()) || M <- [Me, Other]],
    %% They have heard of each other.
    [feed_to(Other, 1, Frame) || {_, Frame, _} <- sends(step(Me, tick))],
    ok = weir_machine:attach(Me, self()),
    _ = step(Me, births),
    {Me, Other}.

put_replicated(Name, Number, Capacity) ->
    put_replicated(Name, Number, Capacity, open, admit).

put_replicated(Name, Number, Capacity, Partition, Large) ->
    created = weir_nif:put(Name, Capacity, interval(Capacity), 1000000, false, false, false, {Number, Partition, Large}).

%% So long that nothing comes back during a test, whatever the bucket: what doesn't fit into a ring is found again by its level.
interval(_Capacity) -> 3600000000000.

check() -> weir:check(<<"cluster">>, ?KEY).

hash() -> weir_nif:key_hash(?KEY, 0).

now_ns() -> weir_nif:clock_now().

step(Machine, Event) -> weir_machine:step(Machine, Event, now_ns()).

feed(Machine, Frame) -> feed_to(Machine, 2, Frame).

feed_to(Machine, From, Frame) -> step(Machine, {arrival, From, Frame}).

%% Frames of a machine that admitted so many hits at once.
asked(Machine, Hits) ->
    Effects = step(Machine, {ask, 1, ?NUMBER, hash(), Hits}),
    sends(Effects ++ step(Machine, tick)).

sends(Effects) ->
    [{To, Frame, Traffic} || {send, Whom, Frame, Traffic} <- Effects, Traffic =/= heartbeat, To <- lists:flatten([Whom])].

%% Steps until nothing more comes.
settle(Machine) ->
    lists:append([step(Machine, births) || _ <- lists:seq(1, 50)]).

%% Births of a key that a machine knows.
known(Machine, Limiter, Key) ->
    Hash = weir_table:key_hash(Key),
    weight(weir_machine:published(Machine, Limiter, Hash)) + weight(weir_machine:unsent(Machine, Limiter, Hash)).

weight(Intervals) -> lists:sum([Births || {_, Births} <- Intervals]).

flush() -> receive weir_births -> 1 + flush() after 0 -> 0 end.

until(Done) ->
    case Done() of
        true -> ok;
        false -> until(Done)
    end.
