%% Exactness under concurrency: while time stands still a bucket of c tokens admits c, however many processes ask, on however many
%% schedulers, and whatever else happens to its table meanwhile. A round is one key; each test runs a thousand.
%%
%% A full table may throw a key out. Then it admits more by exactly the tokens that were thrown out with it, and those are counted:
%%
%%   admitted(key) = level(key) + evicted(key)            sum over keys: admitted = levels + evicted_tokens
%% Shows R02 of doc/requirements.md.
-module(weir_frozen_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(ROUNDS, 1000).
-define(ASKERS, 8).
%% Fresh keys that one process makes: all of them fit into a table.
-define(MOST, 300000).
-define(DAY, 86400000000000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [admits_exactly_the_capacity, after_each_reset, while_the_table_grows, while_keys_expire, while_the_table_evicts,
     while_other_options_change, while_others_come_and_go, weights_fill_exactly, every_function_at_once, over_again_as_time_passes,
     on_many_schedulers].

init_per_testcase(_, Config) ->
    ok = weir_test:start(),
    Config.

end_per_testcase(_, _) ->
    weir_test:stop().

admits_exactly_the_capacity(_) ->
    %% Until several were admitted in one round: else they might have come one after the other. A thousand rounds bring hundreds.
    weir_test:wait_until(rounds_shared, fun() ->
                                                ok = weir_test:start(),
                                                ok = weir:put_limiter(login, #{rate => {100, day}}),
                                                Shared = rounds(100, fun(Round) -> {login, {round, Round}} end, fun single/3),
                                                Shared > 0 orelse erlang:system_info(schedulers_online) =:= 1
                                        end),
    ?assertMatch(#{allowed := 100 * ?ROUNDS, failed := 0, keys := ?ROUNDS}, weir_test:stats(<<"login">>)).

after_each_reset(_) ->
    ok = weir:put_limiter(login, #{rate => {100, day}}),
    _ = rounds(100, fun(_) -> {login, key} end, fun single/3, fun(_) -> ok = weir:reset(login, key) end),
    ?assertMatch(#{allowed := 100 * ?ROUNDS, failed := 0, keys := 1}, weir_test:stats(<<"login">>)).

%% Others' fresh keys make the table grow and split under the askers.
while_the_table_grows(_) ->
    ok = weir:put_limiter(login, #{rate => {20, day}}),
    {allow, 19} = weir:check(login, first),
    #{memory_bytes := Before} = weir_test:stats(<<"login">>),
    Grown = meanwhile(2, fun(Other, N) when N =< ?MOST -> {allow, 19} = weir:check(login, {fresh, Other, N}), 1;
                            (_, _) -> true = erlang:yield(), 0
                         end,
                      fun() -> rounds(20, fun(Round) -> {login, {round, Round}} end, fun single/3) end),
    Keys = 1 + Grown + ?ROUNDS,
    ?assertMatch(#{keys := Keys, allowed := Allowed, evicted_keys := 0, failed := 0} when Allowed =:= 20 * ?ROUNDS + Grown + 1,
                 weir_test:stats(<<"login">>)),
    ?assert(maps:get(memory_bytes, weir_test:stats(<<"login">>)) > 10 * Before).

%% Keys that have expired are swept, and taken over by fresh ones, beside those that haven't.
while_keys_expire(_) ->
    ok = weir:put_limiter(login, #{rate => {20, day}}),
    Generation = lists:seq(1, 20000),
    Fill = fun(Name) -> [{allow, _} = A || A <- weir:check_many([{login, {Name, I}, I rem 20 + 1} || I <- Generation])] end,
    _ = Fill(old),
    %% Half of them: who used up to ten tokens has none in use any more.
    ok = weir_clock:advance(?DAY div 2),
    ?assert(meanwhile(2, fun(1, _) -> ok = weir_sweeper:sweep(), 0;
                            (2, N) when N =< ?MOST -> {allow, 19} = weir:check(login, {fresh, N}), 1;
                            (2, _) -> true = erlang:yield(), 0
                         end,
                      fun() -> rounds(20, fun(Round) -> {login, {round, Round}} end, fun single/3) end) > 0),
    ?assertEqual([max(0, I rem 20 + 1 - 10) || I <- Generation], [maps:get(level, weir:explain(login, {old, I})) || I <- Generation]),
    ?assertMatch(#{evicted_keys := 0, failed := 0}, weir_test:stats(<<"login">>)),
    ok = weir_clock:advance(?DAY),
    ok = weir_sweeper:sweep(),
    ?assertMatch(#{keys := 0}, weir_test:stats(<<"login">>)).

%% The table is full of keys that used more than the one asked for, which is then thrown out again and again.
while_the_table_evicts(_) ->
    C = 20,
    ok = weir:put_limiter(login, #{rate => {C, day}, max_keys => 400}),
    _ = weir:check_many([{login, {filler, I}, C} || I <- lists:seq(1, 2000)]),
    Self = self(),
    Fresh = meanwhile(2, fun(Other, N) -> {allow, 0} = weir:check(login, {fresh, Other, N}, C), 1 end,
                      fun() -> Self ! {admitted, ask_in_rounds(fun(Round) -> {login, {round, Round}} end, fun single/3)} end),
    Admitted = receive {admitted, Sums} -> Sums end,
    Level = fun(Key) -> maps:get(level, weir:explain(login, Key)) end,
    Hot = [{N, Level({round, Round})} || {Round, N} <- Admitted],
    ?assertEqual([], [Bad || {N, L} = Bad <- Hot, N < C orelse L > C]),
    #{keys := Keys, evicted_tokens := Evicted, allowed := Allowed, failed := 0} = weir_test:stats(<<"login">>),
    HotAdmitted = lists:sum([N || {N, _} <- Hot]),
    ?assertEqual(2000 + Fresh + HotAdmitted, Allowed),
    %% Each of the others holds its c tokens, or nothing and was thrown out with them.
    HotHeld = length([L || {_, L} <- Hot, L > 0]),
    HotLevels = lists:sum([L || {_, L} <- Hot]),
    ?assertEqual((2000 + Fresh) * C + HotAdmitted, (Keys - HotHeld) * C + HotLevels + Evicted),
    ct:pal("~b fresh keys; admitted above capacity: ~b; evicted tokens ~b", [Fresh, HotAdmitted - C * ?ROUNDS, Evicted]),
    %% It did happen, or nothing was shown.
    ?assert(HotAdmitted > C * ?ROUNDS).

%% What isn't the rate or the burst changes nothing; nor do changes of other limiters.
while_other_options_change(_) ->
    Spec = #{rate => {20, day}},
    [ok = weir:put_limiter(Name, Spec) || Name <- [login, other]],
    Changes = meanwhile(2, fun(1, N) -> ok = weir:put_limiter(login, Spec#{on_error => element(N rem 2 + 1, {allow, deny})}), 1;
                              (2, N) ->
                                   {_, _} = weir:check(other, N),
                                   ok = weir:put_limiter(other, #{rate => {N rem 5 + 1, hour}, burst => N rem 7 + 1}), 1
                           end,
                        fun() -> rounds(20, fun(Round) -> {login, {round, Round}} end, fun single/3) end),
    ?assert(Changes > 0),
    ?assertMatch(#{allowed := 20 * ?ROUNDS, failed := 0}, weir_test:stats(<<"login">>)).

%% Making and deleting limiters lays the names out anew, while they are being looked up.
while_others_come_and_go(_) ->
    ok = weir:put_limiter(login, #{rate => {20, day}}),
    ?assert(meanwhile(2, fun(Other, N) ->
                                 Name = <<"passing ", (integer_to_binary(Other))/binary, (integer_to_binary(N rem 100))/binary>>,
                                 ok = weir:put_limiter(Name, #{rate => {1, day}}),
                                 {allow, 0} = weir:check(Name, key),
                                 ok = weir:delete_limiter(Name),
                                 1
                         end,
                      fun() -> rounds(20, fun(Round) -> {login, {round, Round}} end, fun single/3) end) > 0),
    ?assertMatch(#{allowed := 20 * ?ROUNDS, failed := 0}, weir_test:stats(<<"login">>)).

%% Hits of different sizes: whoever asks for one until it is denied leaves no token over, and none is given twice.
weights_fill_exactly(_) ->
    ok = weir:put_limiter(bytes, #{rate => {1000, day}}),
    Sizes = {1, 2, 3, 5, 7, 11, 101, 13},
    _ = rounds(1000, fun(Round) -> {bytes, {round, Round}} end,
           fun(Limiter, Key, Asker) -> weighty(Limiter, Key, element(Asker, Sizes), 0) end).

weighty(Limiter, Key, Hits, Admitted) ->
    case weir:check(Limiter, Key, Hits) of
        {allow, _} -> weighty(Limiter, Key, Hits, Admitted + Hits);
        {deny, _} when Hits > 1 -> weighty(Limiter, Key, Hits div 2, Admitted);
        {deny, _} -> Admitted
    end.

%% check, check_many, decide and decide_many, by name, by its other name and by a handle's.
every_function_at_once(_) ->
    Handle = weir:compile(#{rate => {50, day}}),
    ok = weir:put_limiter(login, #{rate => {50, day}}),
    Ways = {fun single/3, fun batch/3, fun decision/3, fun decisions/3},
    Ask = fun(Limiter, Key, Asker) -> (element(Asker rem 4 + 1, Ways))(Limiter, Key, Asker) end,
    _ = rounds(50, fun(Round) -> {element(Round rem 3 + 1, {Handle, login, <<"login">>}), [external, Round]} end, Ask),
    _ = rounds(50, fun(Round) -> {element(Round rem 3 + 1, {Handle, login, <<"login">>}), {192, 0, 2, Round}} end, Ask).

%% The same key while time goes on between the rounds: each time what came back is admitted, no more and no less.
over_again_as_time_passes(_) ->
    ok = weir:put_limiter(login, #{rate => {20, day}}),
    T = ?DAY div 20,
    Back = fun(Round) -> Round rem 20 + 1 end,
    %% Rounds go in pairs: a nanosecond before a token comes back, and when it does.
    Wait = fun(1) -> ok;
              (Round) when Round rem 2 =:= 0 -> ok = weir_clock:advance(Back(Round) * T - 1);
              (_) -> ok = weir_clock:advance(1)
           end,
    Expected = [{1, 20} | [{Round, case Round rem 2 of 0 -> Back(Round) - 1; 1 -> 1 end} || Round <- lists:seq(2, ?ROUNDS)]],
    ?assertEqual(Expected, ask_in_rounds(fun(_) -> {login, key} end, fun single/3, Wait)).

%% More schedulers than the machine has cores: the system stops them where it likes, also within a decision.
on_many_schedulers(_) ->
    Peer = weir_test:start_peer(["+S", "8:8"]),
    try
        ?assertEqual(8, peer:call(Peer, erlang, system_info, [schedulers_online])),
        ?assertEqual(ok, peer:call(Peer, ?MODULE, on_this_node, [], 90000))
    after
        weir_test:stop_peer(Peer)
    end.

on_this_node() ->
    [begin
         ok = weir_test:start(),
         Test()
     end || Test <- [fun() -> admits_exactly_the_capacity([]) end, fun() -> while_the_table_grows([]) end,
                     fun() -> every_function_at_once([]) end]],
    weir_test:stop().

%% ---- asking: until denied, how many were allowed

single(Limiter, Key, _) ->
    count(fun() -> weir:check(Limiter, Key) end, 0).

count(Ask, Admitted) ->
    case Ask() of
        {allow, _} -> count(Ask, Admitted + 1);
        {deny, Ms} when Ms > 0 -> Admitted
    end.

batch(Limiter, Key, _) ->
    Answers = weir:check_many(lists:duplicate(7, {Limiter, Key, 1})),
    more(length([A || {allow, A} <- Answers]), fun() -> batch(Limiter, Key, 0) end).

decision(Limiter, Key, _) ->
    case weir:decide(Limiter, Key, 1) of
        #{allowed := true} -> 1 + decision(Limiter, Key, 0);
        #{allowed := false, remaining := 0} -> 0
    end.

decisions(Limiter, Key, _) ->
    Answers = weir:decide_many(lists:duplicate(5, {Limiter, Key, 1})),
    more(length([A || #{allowed := true} = A <- Answers]), fun() -> decisions(Limiter, Key, 0) end).

more(0, _) -> 0;
more(N, Again) -> N + Again().

%% Eight processes ask for each round's key at the same time; together they are admitted C. Answers in how many rounds several of them
%% were admitted.
rounds(C, KeyOf, Ask) ->
    rounds(C, KeyOf, Ask, fun(_) -> ok end).

rounds(C, KeyOf, Ask, Prepare) ->
    Rounds = asked_in_rounds(KeyOf, Ask, Prepare),
    ?assertEqual([], [Wrong || {_, Column} = Wrong <- Rounds, lists:sum(Column) =/= C]),
    length([shared || {_, Column} <- Rounds, length([N || N <- Column, N > 0]) > 1]).

%% What was admitted in each round: [{Round, Sum}].
ask_in_rounds(KeyOf, Ask) ->
    ask_in_rounds(KeyOf, Ask, fun(_) -> ok end).

ask_in_rounds(KeyOf, Ask, Prepare) ->
    [{Round, lists:sum(Column)} || {Round, Column} <- asked_in_rounds(KeyOf, Ask, Prepare)].

%% The askers wait for each other twice a round: when the one before is over, so that the first of them may prepare the next one, and
%% when that is done.
asked_in_rounds(KeyOf, Ask, Prepare) ->
    Arrived = barrier(),
    Rounds = lists:seq(1, ?ROUNDS),
    Lists = weir_test:concurrently(?ASKERS, fun(Asker) -> [ask_in(R, Asker, Arrived, KeyOf, Ask, Prepare) || R <- Rounds] end),
    lists:zip(Rounds, columns(Lists)).

ask_in(Round, Asker, Arrived, KeyOf, Ask, Prepare) ->
    meet(Arrived, 2 * Round - 1),
    _ = Asker =:= 1 andalso Prepare(Round),
    {Limiter, Key} = KeyOf(Round),
    meet(Arrived, 2 * Round),
    Ask(Limiter, Key, Asker).

%% Waiting by looking again and again gets everybody going at the same instant; but where schedulers share a core, those who
%% look keep the others from arriving: there a process tells all to go on.
barrier() ->
    case erlang:system_info(schedulers_online) > erlang:system_info(logical_processors_available) of
        false -> atomics:new(1, []);
        true -> spawn_link(fun gather/0)
    end.

gather() ->
    Here = [receive {arrived, Pid} -> Pid end || _ <- lists:seq(1, ?ASKERS)],
    [Pid ! {go_on, self()} || Pid <- Here],
    gather().

meet(Barrier, _Times) when is_pid(Barrier) ->
    Barrier ! {arrived, self()},
    receive {go_on, Barrier} -> ok end;
meet(Arrived, Times) ->
    ok = atomics:add(Arrived, 1, 1),
    all_there(Arrived, Times * ?ASKERS).

all_there(Arrived, All) ->
    case atomics:get(Arrived, 1) of
        N when N >= All -> ok;
        _ -> true = erlang:yield(), all_there(Arrived, All)
    end.

columns([[] | _]) -> [];
columns(Lists) -> [[hd(L) || L <- Lists] | columns([tl(L) || L <- Lists])].

%% Runs Main while N others repeat Other(I, 1), Other(I, 2) ...; answers the sum of what these returned. All have begun before Main.
meanwhile(N, Other, Main) ->
    Stop = counters:new(2, []),
    Self = self(),
    Workers = [spawn_monitor(fun() -> Self ! {self(), repeat(Other, I, Stop)} end) || I <- lists:seq(1, N)],
    weir_test:wait_until(others_at_work, fun() -> counters:get(Stop, 2) >= N end),
    _ = Main(),
    counters:add(Stop, 1, 1),
    lists:sum([receive
                   {Pid, Sum} -> true = demonitor(Monitor, [flush]), Sum;
                   {'DOWN', Monitor, _, _, Reason} -> error({other_died, Reason})
               end || {Pid, Monitor} <- Workers]).

repeat(Other, I, Stop) ->
    First = Other(I, 1),
    counters:add(Stop, 2, 1),
    repeat(Other, I, Stop, 2, First).

repeat(Other, I, Stop, N, Sum) ->
    case counters:get(Stop, 1) of
        0 -> repeat(Other, I, Stop, N + 1, Sum + Other(I, N));
        _ -> Sum
    end.
