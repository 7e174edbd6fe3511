%% What goes wrong with nodes that limit together: real ones, processes of the system, through faults that are rare, long or many
%% at once. (weir_cluster_SUITE has the faults one by one.) A scenario a test; each says the most that may be admitted, and why.
%%
%% The bounds hold however slow the machine is, because load comes in rounds (weir_rounds): N nodes that hear each other admit at
%% most c + N * checks of a round.
%%
%% A side of a partition (open) is such a set of nodes of its own, and who dies takes its unsent births along, at most slack/N.
%% Keys have ?C tokens, and unless a test says otherwise they come back a day apart: none does during a test.
%%
%%   WEIR_ROUNDS     rounds of several_faults (10)
%%   WEIR_SEED       its seed (a new one each time, which is printed)
%% Shows R34 of doc/requirements.md.
-module(weir_nemesis_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, add/2, kill/1, terminate/1, suspend/1, resume/1, restart/2, cut/2, heal/2, checks/4, everywhere/4,
                       see_each_other/1, denied_by_all/3, node_of/1, wait_until/2, members/1, machine_live/1]).
-import(weir_rounds, [rounds/4, rounds_until_denied/3, told/3, agree/3, births/3, within/4, repair_is_small/3, repair_is_small/4]).
-import(weir_cluster_SUITE, [start_all/2, keep/1, put_everywhere/3, settle/1, at_once/2, same_limiters/1]).

-define(KEY, <<"alice">>).
-define(C, 300).
-define(SLOW, #{rate => {?C, {?C, day}}}).
%% Checks on a node in a round.
-define(AT_ONCE, (weir_rounds:at_once())).
%% The most hits of a large one, where all are asked for one.
-define(LARGE, 60).
%% Of a node that is cut off.
-define(ALONE, 30).
-define(LIGHT, ["-kernel", "dist_auto_connect", "never", "prevent_overlapping_partitions", "false",
                "+S", "1", "+SDio", "1", "+A", "1", "+sbwt", "none"]).

suite() ->
    [{timetrap, {minutes, 8}}].

all() ->
    [{group, clocks}, {group, partitions}, {group, restarts}, {group, loads}, several_faults].

groups() ->
    [{clocks, [], [clock_steps, clock_an_hour_forth_and_back, started_an_hour_ahead, quarantine_ends]},
     {partitions, [], [healed_by_chunks, one_side_needs_several_chunks, both_sides_need_several_chunks,
                       limiter_changed_on_both_sides, overlapping_partitions]},
     {restarts, [], [applications_restart_in_turn, nodes_restart_in_turn]},
     {loads, [], [joins_under_heavy_load, large_hits_in_turn, large_hits_at_once]}].

init_per_testcase(_, Config) -> Config.

end_per_testcase(Case, Config) ->
    weir_cluster_SUITE:end_per_testcase(Case, Config).

%% ---- clocks

%% 50 ms back and forth, while a bucket fills from which a token comes back each 100 ms. What the others see of such a step is
%% slewed; all of it at once would be a token a bucket.
clock_steps(_) ->
    {[A, B, C] = Peers, Clock} = weir_fake_clock:one_of_three(0),
    ok = put_everywhere(Peers, login, #{rate => {10, second}, burst => ?C}),
    Before = counts([A, B]),
    [begin
         Key = {step, I},
         Start = erlang:monotonic_time(microsecond),
         First = rounds(Peers, login, Key, 10),
         weir_fake_clock:step(C, Clock, Ms),
         Rest = rounds_until_denied(Peers, login, Key),
         Passed = erlang:monotonic_time(microsecond) - Start,
         %% 10 a second, and 1 % more by a clock that is slewed.
         Refilled = ceil(Passed * 1.01 / 100000),
         within({step, I}, ?C, ?C + Refilled + 1 + 3 * ?AT_ONCE, First + Rest),
         agree(Peers, login, Key)
     end || {I, Ms} <- [{1, -50}, {2, 0}, {3, 50}, {4, 0}]],
    repair_is_small(steps, Peers, 1),
    no_leaks(Before, #{}).

%% An hour, followed at 1 %: after some seconds a node is some ten milliseconds ahead of the others, after an hour back again as
%% much nearer. Nothing is refused for it.
clock_an_hour_forth_and_back(_) ->
    {[A, B, C] = Peers, Clock} = weir_fake_clock:one_of_three(0),
    ok = put_everywhere(Peers, login, #{rate => {10, second}, burst => ?C}),
    Before = counts([A, B]),
    Start = erlang:monotonic_time(microsecond),
    First = rounds(Peers, login, ?KEY, 10),
    weir_fake_clock:step(C, Clock, 3600000),
    ?assertMatch(#{offset_ns := Behind} when Behind < -3500000000000, call(C, weir_clock, info, [])),
    Second = rounds(Peers, login, ?KEY, 5),
    weir_fake_clock:step(C, Clock, 0),
    Rest = rounds_until_denied(Peers, login, ?KEY),
    Passed = erlang:monotonic_time(microsecond) - Start,
    within(hour, ?C, ?C + ceil(Passed * 1.01 / 100000) + 1 + 3 * ?AT_ONCE, First + Second + Rest),
    agree(Peers, login, ?KEY),
    ?assertEqual([0, 0, 0], [refused(P) || P <- Peers]),
    repair_is_small(hour, Peers, 1),
    no_leaks(Before, #{}).

%% A node whose clock is wrong by an hour when it starts: its births lie too far ahead, so the others refuse them, and count them
%% as refused. So it is a side of its own: twice the bucket. (Births an hour ago are no trouble: it counts those of the others.)
%% Started with the right clock it takes part again; its earlier run is forgotten.
started_an_hour_ahead(_) ->
    {[A, B, C] = Peers, Clock} = weir_fake_clock:one_of_three(3600000),
    ok = put_everywhere(Peers, login, ?SLOW),
    Before = counts([A, B]),
    Ahead = admitted_ahead(C, [A, B]),
    Right = rounds_until_denied([A, B], login, ?KEY),
    More = lists:sum(everywhere(Peers, login, ?KEY, ?C)),
    within(ahead, ?C, 2 * ?C + 3 * ?AT_ONCE, Ahead + Right + More),
    [wait_until(offset, fun() -> clock_offset(P, C) > 3590000000000 end) || P <- [A, B]],
    weir_fake_clock:set(Clock, 0),
    terminate(C),
    New = keep(restart(C, [A, B])),
    All = [A, B, New],
    see_each_other(All),
    ready([New]),
    denied_by_all(All, login, ?KEY),
    agree(All, login, ?KEY),
    Refused = refused(A),
    within(bob, ?C, ?C + 3 * ?AT_ONCE, rounds_until_denied(All, login, <<"bob">>)),
    agree(All, login, <<"bob">>),
    ?assertEqual(Refused, refused(A)),
    repair_is_small(ahead, All, 2),
    no_leaks(Before, #{origins => 1}).

%% Ten seconds ahead is the bound. A node just past it is in quarantine, and when its clock is back within the bound what was
%% refused is repaired: nothing is missing.
quarantine_ends(_) ->
    {[A, B, C] = Peers, Clock} = weir_fake_clock:one_of_three(10050),
    ok = put_everywhere(Peers, login, ?SLOW),
    Before = counts([A, B]),
    Ahead = admitted_ahead(C, [A, B]),
    weir_fake_clock:step(C, Clock, 5000),
    Rest = rounds_until_denied([A, B], login, ?KEY),
    within(quarantine, ?C, 2 * ?C + 3 * ?AT_ONCE, Ahead + Rest),
    agree(Peers, login, ?KEY),
    [?assertEqual(Ahead + Rest, births(P, login, ?KEY)) || P <- Peers],
    within(bob, ?C, ?C + 3 * ?AT_ONCE, rounds_until_denied(Peers, login, <<"bob">>)),
    repair_is_small(quarantine, Peers, 2),
    no_leaks(Before, #{}).

%% Two thirds of the bucket, which is more than a node's share: told, and refused by all.
admitted_ahead(Peer, Others) ->
    Admitted = checks(Peer, login, ?KEY, 2 * ?C div 3),
    wait_until(refused, fun() -> lists:all(fun(P) -> refused(P) > 0 end, Others) end),
    Admitted.

%% ---- partitions

%% Many keys on both sides of a cut: within the limits of a chunk everything is known everywhere afterwards, to the token.
healed_by_chunks(_) ->
    {Peers, Before} = outlasted(3, 5000, 5000),
    one_each(Peers, 10000),
    ?assert(lists:sum([stat(chunks_applied, P) || P <- Peers]) > 0),
    ?assertEqual([0, 0, 0], [stat(lost_own_records, P) || P <- Peers]),
    no_leaks(Before, #{state => 10000 * 400}).

%% More keys than a chunk holds, on one side.
one_side_needs_several_chunks(_) ->
    {Peers, Before} = outlasted(3, 40000, 2000),
    one_each(Peers, 42000),
    ?assert(lists:sum([stat(chunks_applied, P) || P <- Peers]) > 2),
    ?assertEqual([0, 0, 0], [stat(lost_own_records, P) || P <- Peers]),
    ?assertEqual([0, 0, 0], [stat(dropped, P) || P <- Peers]),
    no_leaks(Before, #{state => 42000 * 400}).

%% And on both: 34,000 keys lost half of their births when a chunk ended at 16384 keys.
both_sides_need_several_chunks(_) ->
    {Peers, Before} = outlasted(2, 34000, 34000),
    one_each(Peers, 68000),
    ?assertEqual([0, 0], [stat(lost_own_records, P) || P <- Peers]),
    no_leaks(Before, #{state => 68000 * 400}).

%% One node and the others, cut off from each other, admit a hit of so many keys each; then they heal, and come to rest in
%% agreement.
outlasted(Count, Left, Right) ->
    [A | Others] = Peers = start_all(Count, #{}),
    %% Two tokens: each hit is told at once, on each side.
    ok = put_everywhere(Peers, pairs, #{rate => {2, {2, day}}}),
    Before = counts(Peers),
    cut([A], Others),
    %% (Who still takes one of the others for live keeps its records for that one, in a log that is too short for all.)
    wait_until(noticed, fun() -> [machine_live(P) || P <- Peers] =:= [1 | [Count - 1 || _ <- Others]] end),
    Left = call(A, ?MODULE, ask_each, [pairs, 1, Left]),
    Share = Right div length(Others),
    [Share = call(P, ?MODULE, ask_each, [pairs, Left + I * Share + 1, Left + (I + 1) * Share])
     || {I, P} <- lists:zip(lists:seq(0, length(Others) - 1), Others)],
    heal([A], Others),
    see_each_other(Peers),
    wait_until(agreed, fun() -> 1 =:= length(lists:usort([call(P, ?MODULE, digest, [pairs, Left + Right]) || P <- Peers])) end),
    settle(Peers),
    repair_is_small({outlasted, Count, Left, Right}, Peers, 1, Left * (Count - 1) + Right),
    {Peers, Before}.

%% Of two tokens of each key one is used, as all count, in their tables too.
one_each(Peers, Keys) ->
    Ones = lists:duplicate(Keys, 1),
    [?assertEqual(Ones, call(P, ?MODULE, births_of_each, [pairs, Keys])) || P <- Peers],
    [wait_until(levels, fun() -> Ones =:= call(P, ?MODULE, levels, [pairs, Keys]) end) || P <- Peers].

%% Another change on each side of a cut. After it one of them holds everywhere; what was used is used: each side admits at most
%% its own burst less what was used before, and when they are together again nobody admits anything.
limiter_changed_on_both_sides(_) ->
    [A, B, C] = Peers = start_all(3, #{}),
    ok = put_everywhere(Peers, login, ?SLOW),
    Used = 60,
    Used = rounds(Peers, login, ?KEY, Used div (3 * ?AT_ONCE)),
    %% (Those above a node's share of the slack are told; all others are too when the limiter changes.)
    Before = counts(Peers),
    cut([A], [B, C]),
    wait_until(noticed, fun() -> [1, 2, 2] =:= [machine_live(P) || P <- Peers] end),
    ok = call(A, weir, put_limiter, [login, (?SLOW)#{burst => ?C + 60}]),
    ok = call(B, weir, put_limiter, [login, (?SLOW)#{burst => ?C + 30}]),
    wait_until(changed, fun() -> same_limiters([B, C]) end),
    Left = rounds_until_denied([A], login, ?KEY),
    Right = rounds_until_denied([B, C], login, ?KEY),
    %% A node that is cut off lacks what the others had not sent: less than a share of each, which are thirds of the slack.
    Unsent = 2 * ?C div 3,
    within(left, ?C + 60 - Used, ?C + 60 - Used + Unsent + ?AT_ONCE, Left),
    within(right, ?C + 30 - Used, ?C + 30 - Used + Unsent + 2 * ?AT_ONCE, Right),
    heal([A], [B, C]),
    see_each_other(Peers),
    wait_until(same, fun() -> same_limiters(Peers) end),
    denied_by_all(Peers, login, ?KEY),
    ?assertEqual([0, 0, 0], everywhere(Peers, login, ?KEY, 10)),
    settle(Peers),
    %% The debt stays: a greater burst is more for all by what exceeds what was used. (What came of the other side under its own
    %% terms counts where it was received: as much as the bursts differ may be counted or not.)
    ok = put_everywhere(Peers, login, (?SLOW)#{burst => 4 * ?C}),
    wait_until(changed, fun() -> same_limiters(Peers) end),
    More = 4 * ?C - Used - Left - Right,
    Again = [begin settle(Peers), lists:sum(everywhere(Peers, login, ?KEY, ?AT_ONCE)) end
             || _ <- lists:seq(1, 4 * ?C div (3 * ?AT_ONCE))],
    denied_by_all(Peers, login, ?KEY),
    within(more, More, More + 60 + 3 * ?AT_ONCE, lists:sum(Again)),
    repair_is_small(changed, Peers, 1),
    no_leaks(Before, #{}).

%% As distribution is by default: all connect to all, and global breaks up connections until no node sees another that a third one
%% can't. Each may be alone for a time, with the whole bucket, and all find together again.
overlapping_partitions(_) ->
    Peers = [A, B | _] = start_all(5, #{args => ["+S", "1", "+sbwt", "none"], connect_all => true}),
    ok = put_everywhere(Peers, login, ?SLOW),
    Before = counts(Peers),
    cut([A], [B]),
    %% More than the one link is lost.
    wait_until(separated, fun() -> lists:sum([away(P) || P <- Peers]) > 2 end),
    First = lists:sum(everywhere(Peers, login, ?KEY, ?C div 2)),
    heal([A], [B]),
    see_each_other(Peers),
    settle(Peers),
    %% From here on they have what is left of one bucket, if anything.
    Rest = rounds_until_denied(Peers, login, ?KEY),
    within(overlapping, ?C, max(?C, First) + 5 * ?AT_ONCE, First + Rest),
    agree(Peers, login, ?KEY),
    repair_is_small(overlapping, Peers, 4),
    no_leaks(Before, #{tables => 4}).

away(Peer) ->
    length([away || away <- maps:values(members(Peer))]).

%% ---- restarts

%% weir is stopped and started on one node after the other, while the others are asked all the time: nothing is lost, as who stops
%% sends what the others don't know, and who starts is asked when it has copied their state. So c, as if nothing happened.
applications_restart_in_turn(_) ->
    Peers = start_all(3, #{}),
    ok = put_everywhere(Peers, login, ?SLOW),
    Before = counts(Peers),
    Peers = lists:reverse(in_turn(Peers, fun(P, _) ->
                                                 ok = call(P, application, stop, [weir]),
                                                 {ok, _} = call(P, application, ensure_all_started, [weir]),
                                                 P
                                         end)),
    %% (What ran before is remembered for a minute.)
    no_leaks(Before, #{origins => 3}).

%% The same with the whole VM, ended by a signal.
nodes_restart_in_turn(_) ->
    Peers = start_all(3, #{}),
    ok = put_everywhere(Peers, login, ?SLOW),
    All = in_turn(Peers, fun(P, Others) ->
                                 terminate(P),
                                 keep(restart(P, Others))
                         end),
    [?assertEqual(3, maps:get(registered, counts_of(P))) || P <- All].

in_turn(Peers, Restart) ->
    {All, Admitted} = lists:foldl(fun(Peer, {Now, Sum}) ->
                                          Others = Now -- [Peer],
                                          Load = load(Others),
                                          New = Restart(Peer, Others),
                                          Meanwhile = loaded(Load),
                                          see_each_other([New | Others]),
                                          ready([New]),
                                          {[New | Others], Sum + Meanwhile + rounds([New | Others], login, ?KEY, 1)}
                                  end, {Peers, 0}, Peers),
    within(restarted, ?C, ?C + 3 * ?AT_ONCE, Admitted + rounds_until_denied(All, login, ?KEY)),
    agree(All, login, ?KEY),
    ?assertEqual([0, 0, 0], everywhere(All, login, ?KEY, 10)),
    repair_is_small(restarted, All, 3),
    All.

%% Rounds until told to stop, and one at least; a fifth of the bucket at most, so that something is left for the next.
load(Peers) ->
    Self = self(),
    spawn_monitor(fun() -> Self ! {self(), load(Peers, rounds(Peers, login, ?KEY, 1))} end).

load(Peers, Admitted) ->
    Full = Admitted >= ?C div 5,
    receive stop -> Admitted
    after case Full of true -> infinity; false -> 0 end -> load(Peers, Admitted + rounds(Peers, login, ?KEY, 1))
    end.

loaded({Pid, Monitor}) ->
    Pid ! stop,
    receive
        {Pid, Admitted} -> true = demonitor(Monitor, [flush]), Admitted;
        {'DOWN', Monitor, _, _, Reason} -> error({load_ended, Reason})
    end.

%% ---- loads

%% A node joins while 1500 keys are asked for all the time, 50,000 times a second, until they are used up, and one more in rounds.
joins_under_heavy_load(_) ->
    Keys = 1500,
    Peers = [A | _] = start_all(3, #{}),
    ok = put_everywhere(Peers, login, ?SLOW),
    Before = counts(Peers),
    Start = erlang:monotonic_time(microsecond),
    Pids = [call(P, ?MODULE, start_asking, [login, Keys, 50000 div 3]) || P <- Peers],
    Half = Keys * ?C div 2,
    First = rounds(Peers, login, ?KEY, 10),
    wait_until(half, fun() -> lists:sum([N || {_, N} <- asked(Peers, Pids, asked)]) > Half end),
    New = keep(add(Peers, #{})),
    All = Peers ++ [New],
    see_each_other(All),
    ready([New]),
    Joined = [call(New, ?MODULE, start_asking, [login, Keys, 50000 div 3])],
    %% Had it copied nothing, or counted twice what it copied, it would be c more or less.
    within(joined, ?C, ?C + 4 * ?AT_ONCE, First + rounds_until_denied(All, login, ?KEY)),
    wait_until(used_up, fun() -> 0 =:= call(A, ?MODULE, allowed, [login, Keys]) end),
    Asked = asked(All, Pids ++ Joined, asked),
    Passed = erlang:monotonic_time(microsecond) - Start,
    Admitted = asked(All, Pids ++ Joined, stop),
    settle(All),
    Sums = lists:foldl(fun(Counts, Sofar) -> lists:zipwith(fun erlang:'+'/2, Counts, Sofar) end,
                       lists:duplicate(Keys, 0), Admitted),
    ct:pal("~b checks a second; of ~b tokens ~b admitted, of a key ~b to ~b",
           [lists:sum([N || {N, _} <- Asked]) * 1000000 div Passed, Keys * ?C, lists:sum(Sums), lists:min(Sums), lists:max(Sums)]),
    %% What comes too much of these is what is admitted within a delay. Each of it is known to all, and nothing else: to the token.
    [?assertEqual({node_of(P), Sums}, {node_of(P), call(P, ?MODULE, births_of_each, [login, asked, Keys])}) || P <- All],
    ?assert(lists:min(Sums) >= ?C),
    [?assertEqual(0, call(P, ?MODULE, allowed, [login, Keys])) || P <- All],
    repair_is_small(joined, All, 1),
    no_leaks(Before, #{state => Keys * 1000, registered => 1, origins => 1, ets => 10, processes => 10}).

asked(Peers, Pids, What) ->
    [call(P, ?MODULE, tell_asking, [Pid, What]) || {P, Pid} <- lists:zip(Peers, Pids)].

%% Hits from 1 to all of the bucket, one request at a time, the next when all have heard what is told of it: what others have not
%% sent is less than (N-1)/N of the slack, so that is the most that a large hit can exceed by, once.
large_hits_in_turn(_) ->
    Peers = start_all(3, #{}),
    ok = put_everywhere(Peers, login, ?SLOW),
    Over = [begin
                Key = {in_turn, I},
                Sum = lists:sum([begin
                                     Admitted = call(P, ?MODULE, ask_hits, [login, Key, I * 1000 + J, 1, ?C]),
                                     told(Peers, login, Key),
                                     Admitted
                                 end || J <- lists:seq(1, 8), P <- Peers]),
                within(Key, 1, ?C + 2 * ?C div 3, Sum),
                Sum - ?C
            end || I <- lists:seq(1, 10)],
    ct:pal("large_hits => admit, 3 nodes, in turn: over c = ~b by ~w", [?C, Over]).

%% The same on all nodes at the same time, 3 and 10 of them. A node that admits at once exceeds by the one hit that it is asked for
%% before it hears anything: N hits of a round. A node that asks first exceeds by less, however much it is asked for: hits up to the
%% share are admitted unasked, by all nodes at the same time, so that each may have admitted less than two shares before it tells, and
%% all of them less than c too much. (0 to 80 were seen.)
large_hits_at_once(_) ->
    [begin
         Peers = start_all(N, #{args => ?LIGHT}),
         ok = put_everywhere(Peers, admit, (?SLOW)#{large_hits => admit}),
         ok = put_everywhere(Peers, claim, (?SLOW)#{large_hits => claim, timeout => 20000}),
         [within({admit, N}, 1, ?C + N * ?LARGE,
                 lists:sum([all_at_once(Peers, admit, {at_once, I}, Round, 1, ?LARGE) || Round <- lists:seq(1, 12)])) || I <- lists:seq(1, 4)],
         [within({claim, N}, 1, 2 * ?C, all_at_once(Peers, claim, {at_once, I}, 1, 15, ?C)) || I <- lists:seq(1, 8)],
         weir_cluster_SUITE:end_per_testcase(large_hits_at_once, [])
     end || N <- [3, 10]].

%% So many requests of 1 to Most hits on each node.
all_at_once(Peers, Limiter, Key, Round, Count, Most) ->
    Admitted = at_once(lists:zip(Peers, lists:seq(1, length(Peers))),
                       fun({P, I}) -> call(P, ?MODULE, ask_hits, [Limiter, Key, erlang:phash2({Key, Round, I}), Count, Most]) end),
    told(Peers, Limiter, Key),
    lists:sum(Admitted).

%% ---- several faults at once

%% Five nodes, two or three of which suffer something at the same time, while the others are asked; then all are well again,
%% agree, and deny what was used up. In the end nothing is left of it.
several_faults(_) ->
    Seed = number("WEIR_SEED", erlang:system_time(millisecond)),
    Rounds = number("WEIR_ROUNDS", 10),
    ct:pal("WEIR_SEED=~b WEIR_ROUNDS=~b", [Seed, Rounds]),
    ct:timetrap({seconds, 120 + 60 * Rounds}),
    _ = rand:seed(exsss, Seed),
    Peers = start_all(5, #{args => ?LIGHT}),
    ok = put_everywhere(Peers, login, ?SLOW),
    %% (What a first round costs once is no leak.)
    Started = faults(Peers, 0),
    Before = counts(Started),
    Ended = lists:foldl(fun(Round, Now) -> faults(Now, Round) end, Started, lists:seq(1, Rounds)),
    %% Runs that are over are known for a minute: at most three a round, and 15 of a node.
    Most = #{origins => min(3 * Rounds, 75), state => Rounds * 20000, atoms => 1000},
    Survivors = [Counted || {{_, P} = Counted, P} <- lists:zip(Before, Ended)],
    ct:pal("survivors: ~p", [[node_of(P) || {_, P} <- Survivors]]),
    no_leaks(Survivors, Most),
    [?assertEqual(5, maps:get(registered, counts_of(P))) || P <- Ended].

number(Name, Default) ->
    list_to_integer(os:getenv(Name, integer_to_list(Default))).

%% The nodes afterwards, in the same order.
faults(Peers, Round) ->
    Key = {round, Round},
    {Hit, Others} = lists:split(1 + rand:uniform(2), shuffled(Peers)),
    Faults = [{random([kill, terminate, suspend, cut, flap, crash]), P} || P <- Hit],
    ct:pal("round ~b: ~p", [Round, [{Fault, node_of(P)} || {Fault, P} <- Faults]]),
    First = rounds(Peers, login, Key, 2),
    [inflict(Fault, P, Peers -- [P]) || {Fault, P} <- Faults],
    Second = rounds(Others, login, Key, 4),
    Alone = lists:sum([checks(P, login, Key, ?ALONE) || {cut, P} <- Faults]),
    [mend(Fault, P, Peers -- [P]) || {Fault, P} <- Faults],
    Dead = [P || {Fault, P} <- Faults, Fault =:= kill orelse Fault =:= terminate],
    Now = lists:foldl(fun(P, Running) -> [keep(restart(P, Running)) | Running] end, Peers -- Dead, Dead),
    weir_cluster:join(Now),
    ready(Now),
    Third = rounds_until_denied(Now, login, Key),
    %% c; what the sides admitted beyond what the others knew; of the dead what they had not told, less than a share each.
    Most = ?C + Alone + length(Dead) * ?C div 5 + 5 * ?AT_ONCE,
    within({Faults, Key}, ?C, Most, First + Second + Alone + Third),
    agree(Now, login, Key),
    repair_is_small({Round, [Fault || {Fault, _} <- Faults]}, Now, 3 * (Round + 1)),
    [hd([Q || Q <- Now, node_of(Q) =:= node_of(P)]) || P <- Peers].

shuffled(List) ->
    [X || {_, X} <- lists:sort([{rand:uniform(), X} || X <- List])].

random(List) ->
    lists:nth(rand:uniform(length(List)), List).

inflict(kill, Peer, _) -> kill(Peer);
inflict(terminate, Peer, _) -> terminate(Peer);
inflict(suspend, Peer, _) -> suspend(Peer);
inflict(cut, Peer, Others) -> refuse(Peer, Others, wrong_cookie);
inflict(flap, Peer, Others) -> refuse(Peer, Others, wrong_cookie), refuse(Peer, Others, call(Peer, erlang, get_cookie, []));
inflict(crash, Peer, _) ->
    case call(Peer, weir_cluster_SUITE, pid_of, [random([weir_replica, weir_members, weir_registry, weir_peer])]) of
        Pid when is_pid(Pid) -> call(Peer, erlang, exit, [Pid, kill]);
        _ -> started_again_at_this_moment
    end.

mend(suspend, Peer, _) -> resume(Peer);
mend(cut, Peer, Others) -> refuse(Peer, Others, call(Peer, erlang, get_cookie, []));
mend(_, _, _) -> well.

%% Breaks the connections of one node; the next ones need this cookie. (weir_cluster:cut/2 asks both sides, and some don't answer
%% now.)
refuse(Peer, Others, Cookie) ->
    [begin
         true = call(Peer, erlang, set_cookie, [node_of(P), Cookie]),
         call(Peer, erlang, disconnect_node, [node_of(P)])
     end || P <- Others].

clock_offset(Peer, Other) ->
    #{peers := Peers} = call(Peer, weir, explain, [login, ?KEY]),
    lists:sum([Offset || #{node := Node, clock_offset_ns := Offset} <- Peers, Node =:= node_of(Other)]).

%% They know what the others know, as they say themselves.
ready(Peers) ->
    wait_until(ready, fun() -> lists:all(fun(P) -> call(P, weir_ready, check, []) =:= ready end, Peers) end).

%% ---- counting

%% (Nodes that have told nothing yet are counted as if they had.)
counts(Peers) ->
    [{module, ?MODULE} = call(P, code, ensure_loaded, [?MODULE]) || P <- Peers],
    [{Counts#{origins => max(Registered, Origins)}, P}
     || P <- Peers, #{registered := Registered, origins := Origins} = Counts <- [counts_of(P)]].

counts_of(Peer) ->
    call(Peer, weir_cluster, counts, []).

%% Nothing grew by more than that since it was counted. (Machines forget by and by; atoms come with code that is loaded when first
%% used, and two tables with OTP's look-up of host names.)
no_leaks(Before, Most) ->
    Allowed = maps:merge(#{atoms => 300, processes => 5, ports => 2, ets => 2, tables => 2, state => 50000, registered => 0,
                           origins => 0}, Most),
    [try wait_until(shrunk, fun() -> [] =:= grown(Counts, P, Allowed) end)
     catch error:{never_came_true, shrunk} -> ?assertEqual({node_of(P), []}, {node_of(P), grown(Counts, P, Allowed)})
     end || {Counts, P} <- Before].

%% By how much, what is above its limit.
grown(Counts, Peer, Allowed) ->
    Now = counts_of(Peer),
    Grown = [{What, maps:get(What, Now) - maps:get(What, Counts)} || What <- maps:keys(Allowed)],
    [{What, By} || {What, By} <- Grown, By > maps:get(What, Allowed)].

stat(Name, Peer) ->
    maps:get(Name, call(Peer, weir_report, machine, [])).

refused(Peer) ->
    stat(refused, Peer).

%% ---- on the nodes

%% One hit of each key; how many were admitted.
ask_each(Limiter, From, To) ->
    length([I || I <- lists:seq(From, To), element(1, weir:check(Limiter, {key, I})) =:= allow]).

%% Tokens in use, by the table.
levels(Limiter, Keys) ->
    [maps:get(limit, D) - maps:get(remaining, D) || I <- lists:seq(1, Keys), D <- [weir:peek(Limiter, {key, I})]].

%% Of those the machine knows of, and not by this node alone.
births_of_each(Limiter, Keys) ->
    births_of_each(Limiter, key, Keys).

births_of_each(Limiter, Kind, Keys) ->
    [lists:sum([N || {_, N} <- weir_rounds:published(Limiter, {Kind, I})]) || I <- lists:seq(1, Keys)].

digest(Limiter, Keys) ->
    erlang:phash2(births_of_each(Limiter, Keys)).

%% Requests of 1 to so many hits, drawn with that seed; tokens admitted.
ask_hits(Limiter, Key, Seed, Count, Most) ->
    _ = rand:seed(exsss, Seed),
    lists:sum([Hits || _ <- lists:seq(1, Count), Hits <- [rand:uniform(Most)],
                       element(1, weir:check(Limiter, Key, Hits)) =:= allow]).

%% A process that asks for so many keys in turn, so many times a second.
start_asking(Limiter, Keys, Rate) ->
    Counts = counters:new(Keys, []),
    spawn(fun() -> asking({Limiter, Keys, Counts, Rate, erlang:monotonic_time(millisecond)}, 0) end).

asking({_, Keys, Counts, _, _} = Load, Asked) ->
    receive
        {From, asked} ->
            From ! {self(), {Asked, lists:sum(counted(Keys, Counts))}},
            asking(Load, Asked);
        {From, stop} ->
            From ! {self(), counted(Keys, Counts)}
    after 5 ->
        asking(Load, ask_what_is_due(Load, Asked))
    end.

%% (Who comes late doesn't make good for it at once.)
ask_what_is_due({Limiter, Keys, Counts, Rate, Start}, Asked) ->
    Due = Rate * (erlang:monotonic_time(millisecond) - Start) div 1000,
    Last = Asked + min(Due - Asked, Rate div 50),
    [element(1, weir:check(Limiter, {asked, 1 + I rem Keys})) =:= allow andalso counters:add(Counts, 1 + I rem Keys, 1)
     || I <- lists:seq(Asked, Last - 1)],
    max(Asked, Last).

counted(Keys, Counts) ->
    [counters:get(Counts, I) || I <- lists:seq(1, Keys)].

tell_asking(Pid, What) ->
    Pid ! {self(), What},
    receive {Pid, Answer} -> Answer end.

%% Of how many of these keys a hit would be admitted.
allowed(Limiter, Keys) ->
    length([I || I <- lists:seq(1, Keys), maps:get(allowed, weir:peek(Limiter, {asked, I}))]).
