%% Five nodes for an hour, with a million keys, while nodes are killed, stopped, started again and replaced, limiters are made,
%% changed and deleted, and one link flaps: memory stays flat, nothing is leaked, and hot keys are admitted within what
%% doc/cluster.md says ("What fails").
%%
%% The load (weir_soak_load) goes on all the time. The soak goes in turns. In each turn one node suffers one fault, limiters come and
%% go, and one hot key is asked for on all nodes in rounds (weir_rounds), until it is denied. So the most that may be admitted of it is
%% known (`most'). The first two nodes live through it all; the link between them flaps. On the second one weir is sometimes stopped and
%% started. The others come and go.
%%
%% What the nodes hold is looked at each 10 seconds. The second and the last quarter of the run are compared: the nodes that lived
%% through both, and the others at the same age.
%%
%%   SOAK_MINUTES    60; a turn takes a fortieth of it
%%   SOAK_SEED       of the link's flapping (a new one each time, which is printed)
%%
%% Run by `scripts/check.sh soak' (`make soak'). Shows R66 of doc/requirements.md.
-module(weir_soak_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, kill/1, terminate/1, restart/2, add/2, cut/2, heal/2, node_of/1, wait_until/2, wait_until/3, members/1]).
-import(weir_cluster_SUITE, [start_all/2, keep/1, put_everywhere/3]).
-import(weir_nemesis_SUITE, [ready/1, counts/1, no_leaks/2]).
-import(weir_rounds, [agree/3, at_once/0]).

-define(NODES, 5).
%% Of a run that is too short for so many, as many as these rates allow.
-define(KEYS, 1000000).
-define(COLD_PER_SECOND, 4000).
-define(ZIPF_PER_SECOND, 1500).
%% Tokens of a hot key, of which none comes back during the run, and of one of the load, of which all come back in a ninth of it.
-define(HOT, 300).
-define(C, 20).
-define(TURNS, 40).
-define(FAULTS, [kill, terminate, replace, restart_weir]).
%% Limiters that come and go in a turn, and keys of each.
-define(CHURN, 10).
-define(CHURN_KEYS, 100).
%% Until all know what is told, beside all that goes on.
-define(TOLD_MS, 60000).
-define(SAMPLE_MS, 10000).
-define(LIGHT, ["-kernel", "dist_auto_connect", "never", "prevent_overlapping_partitions", "false",
                "+S", "1", "+SDio", "1", "+A", "1", "+sbwt", "none"]).
%% Nodes that are gone for good are forgotten within a turn or two.
-define(FORGET_AFTER_MS, 60000).
%% While a dead node still counts, pins are kept for it, and so all later ones of the link that flaps: more than the default of 256 KiB.
-define(PINNED_BYTES, 4 bsl 20).
%% The last quarter's mean exceeds the second's by no more than: so many hundredths, and so much (bytes; numbers).
-define(MARGINS, [{weir, 10, 2 bsl 20}, {vm, 10, 4 bsl 20}, {rss, 15, 8 bsl 20},
                  {processes, 0, 5}, {tables, 0, 2}, {ports, 0, 3}]).
%% Names of nodes that replace others are atoms; each node hears of each.
-define(ATOMS, 50).
-define(ATOMS_A_NAME, 4).
%% Nothing of this load reaches a limit of the machine.
-define(ZERO, [malformed, evicted_keys, dropped, lost_copies, lost_own_records, lost_shelved, copies_abandoned, shed_frames]).

suite() ->
    [{timetrap, {minutes, 2 * minutes() + 10}}].

all() -> [soak].

init_per_testcase(_, Config) -> Config.

end_per_testcase(Case, Config) ->
    weir_cluster_SUITE:end_per_testcase(Case, Config).

minutes() -> list_to_integer(os:getenv("SOAK_MINUTES", "60")).

soak(_) ->
    Seed = list_to_integer(os:getenv("SOAK_SEED", integer_to_list(erlang:system_time(millisecond)))),
    Ms = minutes() * 60000,
    [A, B | _] = Peers = start_all(?NODES, #{args => ?LIGHT, env => #{cluster => #{forget_after => ?FORGET_AFTER_MS, pinned_bytes => ?PINNED_BYTES}}}),
    %% What is known of a key is kept for twice the time in which its bucket fills. For so long the cold stream takes for all keys: the
    %% nodes hold all of them from the second quarter on.
    Period = Ms div 9 * 2,
    Keys = min(?KEYS, ?COLD_PER_SECOND * Period div 1000),
    Spec = #{rate => {?C, {Period div 2000, second}}, max_keys => 2 * ?KEYS, flush_after => 2000},
    ok = put_everywhere(Peers, soak, Spec),
    ok = put_everywhere(Peers, soak_exact, #{rate => {10, minute}, scope => exact}),
    ok = put_everywhere(Peers, hot, #{rate => {?HOT, {?HOT, day}}}),
    Load = #{nodes => ?NODES, start_ms => erlang:system_time(millisecond), keys => Keys, period_ms => Period,
             zipf_per_second => ?ZIPF_PER_SECOND},
    [asks(P, Slot, Load) || {Slot, P} <- numbered(Peers)],
    Sampler = spawn_link(fun() -> sampler(Peers, now_ms()) end),
    Link = spawn_link(fun() -> _ = rand:seed(exsss, Seed), flaps(A, B) end),
    say("~b minutes, ~b keys, SOAK_SEED=~b", [minutes(), Keys, Seed]),
    Run = #{ms => Ms, start => now_ms(), load => Load, spec => Spec, sampler => Sampler, link => Link},
    %% (What a first turn costs once is no leak.)
    {Started, First} = turn(1, Peers, Run),
    Before = counts([A, B]),
    {Ended, Turns} = turns(2, Started, Run, [First]),
    held(Link),
    [ok = call(P, weir_soak_load, stop, []) || P <- Ended],
    Samples = asked(Sampler, samples),
    asked(Sampler, stop),
    report(Samples, Turns, [A, B]),
    ?assertEqual([], [{turn, Turn} || {_, _, Sum, Most} = Turn <- Turns, Most =:= told_too_late orelse Sum < ?HOT orelse Sum > Most]
                         ++ [{grown, Row} || Row <- grown(quarters(Samples, Ms), [node_of(A), node_of(B)], length(Turns))]
                         ++ [{not_zero, Node, What, N}
                             || {_, Node, Census} <- last_of_each(Samples), What <- ?ZERO, N <- [maps:get(What, Census)], N > 0]),
    wait_until(forgotten, fun() -> [] =:= [P || P <- Ended, maps:get(registered, call(P, weir_cluster, counts, [])) > ?NODES] end,
               now_ms() + 2 * ?FORGET_AFTER_MS),
    %% (What is held of keys was judged by quarters: after the first turn it had only begun to fill.)
    no_leaks(Before, #{atoms => ?ATOMS + ?ATOMS_A_NAME * length(Turns) + 300, origins => ?NODES, tables => 4, state => infinity}).

%% ---- turns

turns(I, Peers, #{start := Start, ms := Ms} = Run, Turns) ->
    case now_ms() - Start < Ms of
        true ->
            {Now, Turn} = turn(I, Peers, Run),
            turns(I + 1, Now, Run, [Turn | Turns]);
        false ->
            {Peers, lists:reverse(Turns)}
    end.

%% The nodes afterwards, in the same order, and what was admitted of the turn's key.
turn(I, Peers, #{sampler := Sampler, link := Link, load := Load} = Run) ->
    Fault = lists:nth(1 + I rem length(?FAULTS), ?FAULTS),
    Hit = hit(Fault, I, Peers),
    Key = {turn, I},
    First = rounds(Peers, Key, 2),
    ended(Fault, Hit),
    Others = Peers -- [Hit],
    Sampler ! {peers, Others},
    churn(I, Others, Run),
    Second = rounds(Others, Key, 4),
    New = back(Fault, Hit, Others),
    Now = [case P of Hit -> New; _ -> P end || P <- Peers],
    held(Link),
    weir_cluster:join(Now),
    ready(Now),
    [asks(New, Slot, Load) || {Slot, P} <- numbered(Now), P =:= New],
    Sampler ! {peers, Now},
    Link ! flap,
    Sum = rounds_until_denied(Now, Key, First + Second),
    Late = get(late) =:= Key,
    Late orelse agree(Now, hot, Key),
    paced(I, Run),
    {Now, {I, Fault, Sum, case Late of true -> told_too_late; false -> most(Fault) end}}.

%% As in weir_rounds. But here nodes that live are taken for dead, as one link is cut for longer than `peer_timeout': the others then
%% count by their estates what they have not sent. So the births of records are compared, and not levels.
rounds(_Peers, _Key, 0) ->
    0;
rounds(Peers, Key, Count) ->
    Admitted = lists:sum(weir_cluster:everywhere(Peers, hot, Key, at_once())),
    get(late) =:= Key orelse told(Peers, Key),
    Admitted + rounds(Peers, Key, Count - 1).

%% A key that isn't told in time is not waited for again, and fails the run in the end: how it goes on is of interest.
told(Peers, Key) ->
    try wait_until(told, fun() -> told_to_all(Peers, Key) end, now_ms() + ?TOLD_MS)
    catch error:{never_came_true, told} ->
            put(late, Key),
            say("~p: not told in time", [Key]),
            [ct:log("~p: ~p", [node_of(P), catch_all(fun() -> call(P, weir_soak_load, look, [hot, Key]) end, gone)]) || P <- Peers]
    end.

told_to_all(Peers, Key) ->
    Known = [call(P, weir_soak_load, known, [hot, Key]) || P <- Peers],
    not lists:member(due, Known) andalso length(lists:usort(Known)) =:= 1.

%% All that is left. Where frames take 20 ms or longer, nodes take some births to be on their way and deny a little too early; a moment
%% later they admit the rest.
rounds_until_denied(Peers, Key, Before) ->
    rounds_until_denied(Peers, Key, Before, now_ms() + ?TOLD_MS).

rounds_until_denied(Peers, Key, Sum, Deadline) ->
    Admitted = rounds(Peers, Key, 1),
    case Admitted > 0 orelse Sum < ?HOT andalso now_ms() < Deadline of
        true -> rounds_until_denied(Peers, Key, Sum + Admitted, Deadline);
        false -> Sum
    end.

%% Those that come and go, in turn. On the second node weir is started again, in the same VM.
hit(restart_weir, _, [_, B | _]) -> B;
hit(_, I, [_, _ | Others]) -> lists:nth(1 + I rem length(Others), Others).

ended(kill, Peer) -> kill(Peer);
ended(replace, Peer) -> kill(Peer);
ended(terminate, Peer) -> terminate(Peer);
ended(restart_weir, Peer) ->
    ok = call(Peer, weir_soak_load, stop, []),
    ok = call(Peer, application, stop, [weir]).

back(replace, Hit, Others) ->
    keep(add(Others, weir_cluster:options(Hit)));
back(restart_weir, Hit, _) ->
    {ok, _} = call(Hit, application, ensure_all_started, [weir]),
    Hit;
back(_, Hit, Others) ->
    keep(restart(Hit, Others)).

%% c, and
%% - what a round admits while its news are under way;
%% - of a node that is killed what it had not told, less than a share of the least number of nodes that it may have seen;
%% - the two nodes whose link flaps count one node less than there are, so their shares are greater: all shares together are at most
%%   (n - 2) / n + 2 / (n - 1) of the slack, which is a sixth more than the slack for n = 4.
most(Fault) ->
    Lost = case lists:member(Fault, [kill, replace]) of
               true -> ?HOT div (?NODES - 1);
               false -> 0
           end,
    ?HOT + ?NODES * at_once() + Lost + ?HOT div 6.

%% Limiters are made on one node, changed on another, asked for, and deleted on a third; that of the load gets another burst now and
%% then, so that its million keys are carried over.
churn(I, [First, Second | _] = Peers, #{spec := Spec}) ->
    Names = [<<"churn_", (integer_to_binary(I))/binary, "_", (integer_to_binary(J))/binary>> || J <- lists:seq(1, ?CHURN)],
    Known = fun(There) ->
                    wait_until({churned, I}, fun() -> lists:all(fun(P) -> There =:= [is_map_key(N, call(P, weir, limiters, [])) || N <- Names] end, Peers) end)
            end,
    [ok = call(First, weir, put_limiter, [N, #{rate => {10, hour}}]) || N <- Names],
    Known([true || _ <- Names]),
    [ok = call(Second, weir, put_limiter, [N, #{rate => {20, hour}, burst => 5}]) || N <- Names],
    [_ = weir_cluster:everywhere(Peers, N, {churn, J}, 2) || {J, N} <- numbered(Names)],
    [call(P, ?MODULE, ask_each, [N, ?CHURN_KEYS]) || P <- Peers, N <- Names],
    [ok = call(lists:last(Peers), weir, delete_limiter, [N]) || N <- Names],
    Known([false || _ <- Names]),
    I rem length(?FAULTS) =:= 0 andalso (ok = call(First, weir, put_limiter, [soak, Spec#{burst => ?C + I div length(?FAULTS) rem 2}])).

%% On a node. (The limiter may not be there yet, or be gone.)
ask_each(Name, Keys) ->
    length([Key || Key <- lists:seq(1, Keys), {allow, _} <- [catch weir:check(Name, {each, Key})]]).

asks(Peer, Slot, Load) ->
    ok = call(Peer, weir_soak_load, start, [Load#{slot => Slot}]).

paced(I, #{start := Start, ms := Ms}) ->
    receive after max(0, Start + I * Ms div ?TURNS - now_ms()) -> ok end.

%% ---- the link that flaps

%% For a moment or for longer than `peer_timeout'; weir connects again by itself. Who asks for it has it held together for a while.
flaps(A, B) ->
    cut([A], [B]),
    pause(500 + rand:uniform(5500)),
    heal([A], [B]),
    wait_until(connected, fun() -> connected(A, B) andalso connected(B, A) end, now_ms() + 60000),
    holding(3000 + rand:uniform(7000)),
    flaps(A, B).

pause(Ms) -> receive after Ms -> ok end.

holding(Ms) ->
    receive {From, hold} ->
            From ! {self(), held},
            receive flap -> holding(Ms) end
    after Ms -> ok
    end.

connected(P, Q) ->
    connected =:= maps:get(node_of(Q), catch_all(fun() -> members(P) end, #{}), none).

held(Link) ->
    Link ! {self(), hold},
    receive {Link, held} -> ok end.

%% ---- what the nodes hold

%% (One that is asked while it ends doesn't answer.)
sampler(Peers, Start) -> sampler(Peers, Start, Start, []).

sampler(Peers, Start, Next, Samples) ->
    receive
        {peers, Now} -> sampler(Now, Start, Next, Samples);
        {From, samples} -> From ! {self(), lists:reverse(Samples)}, sampler(Peers, Start, Next, Samples);
        {From, stop} -> From ! {self(), stopped}
    after max(0, Next - now_ms()) ->
            At = now_ms() - Start,
            Counted = [{At, node_of(P), C#{age_ms => Age}}
                       || P <- Peers, {C, Age} <- [catch_all(fun() -> {call(P, weir_soak_load, census, []), age_ms(P)} end, none)]],
            At div 60000 > (At - ?SAMPLE_MS) div 60000 andalso progress(At div 60000, Counted),
            sampler(Peers, Start, Next + ?SAMPLE_MS, lists:reverse(Counted) ++ Samples)
    end.

age_ms(Peer) ->
    {Ms, _} = call(Peer, erlang, statistics, [wall_clock]),
    Ms.

asked(Pid, What) ->
    Pid ! {self(), What},
    receive {Pid, Answer} -> Answer end.

catch_all(Fun, Otherwise) ->
    try Fun() catch _:_ -> Otherwise end.

progress(Minute, Counted) ->
    All = fun(What) -> [maps:get(What, C) || {_, _, C} <- Counted] end,
    say("minute ~b: MB of weir ~w, of the VM ~w, resident ~w; keys ~w; atoms ~w; ETS ~w; processes ~w; frames refused ~w; asked ~w",
        [Minute, mb(All(weir)), mb(All(vm)), mb(All(rss)), All(keys), All(atoms), All(tables), All(processes), All(refused_frames), All(asked)]).

mb(Bytes) -> [round(B / (1 bsl 20)) || B <- Bytes].

say(Format, Args) ->
    ct:log(Format, Args),
    io:format(user, Format ++ "~n", Args).

%% ---- judging

quarters(Samples, Ms) ->
    Of = fun(I) -> [{Node, C} || {At, Node, C} <- Samples, At >= (I - 1) * Ms div 4, At < I * Ms div 4] end,
    {Of(2), Of(4)}.

%% What is more in the last quarter than in the second, by more than its margin.
grown({Second, Last}, Stable, Turns) ->
    [Row || {_, What, Before, After} = Row <- rows({Second, Last}, Stable),
            {W, Percent, Much} <- [{atoms, 0, ?ATOMS + ?ATOMS_A_NAME * Turns} | ?MARGINS], W =:= What,
            After > Before * (100 + Percent) / 100 + Much].

%% The means of both, of each node that lived through them, and of the others at ages, in half minutes, that occur in both.
rows({Second, Last}, Stable) ->
    What = [atoms | [W || {W, _, _} <- ?MARGINS]],
    [{Node, W, mean(W, of_node(Node, Second)), mean(W, of_node(Node, Last))} || Node <- Stable, W <- What]
        ++ [{restarted, W, Before, After} || W <- What, {Before, After} <- aged(W, others(Stable, Second), others(Stable, Last))].

of_node(Node, Samples) -> [C || {N, C} <- Samples, N =:= Node].

others(Stable, Samples) -> [C || {N, C} <- Samples, not lists:member(N, Stable)].

aged(What, Second, Last) ->
    Ages = [Age || Age <- ages(Second), lists:member(Age, ages(Last))],
    Mean = fun(Samples) -> average([mean(What, [C || C <- Samples, age(C) =:= Age]) || Age <- Ages]) end,
    [{Mean(Second), Mean(Last)} || Ages =/= []].

ages(Samples) -> lists:usort([age(C) || C <- Samples]).

age(#{age_ms := Ms}) -> Ms div 30000.

mean(What, Samples) -> average([maps:get(What, C) || C <- Samples]).

average(Numbers) -> lists:sum(Numbers) / length(Numbers).

last_of_each(Samples) ->
    maps:values(maps:from_list([{Node, Sample} || {_, Node, _} = Sample <- Samples])).

report(Samples, Turns, Stable) ->
    {_, _, #{sent_bytes := Sent, repair_bytes := Repair}} = lists:last([S || {_, N, _} = S <- Samples, N =:= node_of(hd(Stable))]),
    [say("~p ~p: second quarter ~b, last quarter ~b", [Node, What, round(Before), round(After)])
     || {Node, What, Before, After} <- rows(quarters(Samples, minutes() * 60000), [node_of(P) || P <- Stable])],
    [say("~p: ~b turns, above c by ~w, at most ~b", [Fault, length(Sums), [Sum - ?HOT || Sum <- Sums], most(Fault) - ?HOT])
     || Fault <- ?FAULTS, Sums <- [[Sum || {_, F, Sum, _} <- Turns, F =:= Fault]]],
    [say("~p: ~0p; the load's keys above c by ~b at most", [Node, maps:without([vm, rss, weir], Census), Over])
     || {_, Node, Census} <- last_of_each(Samples), P <- Stable, node_of(P) =:= Node, Over <- [call(P, weir_soak_load, exceeded, [])]],
    say("the first node sent ~b bytes to the nodes that it knows now, ~b of them repair", [Sent, Repair]).

numbered(List) -> lists:zip(lists:seq(0, length(List) - 1), List).

now_ms() -> erlang:monotonic_time(millisecond).
