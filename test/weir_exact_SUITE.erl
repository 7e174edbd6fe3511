%% Limiters of scope exact on real nodes: never more than the bucket is admitted, whoever asks where, and whichever nodes come, leave or
%% are stopped meanwhile; what a crash may cost; what is decided when the owner doesn't answer.
%%
%% Buckets give back a token an hour, so none comes back during a test. Load is callers that ask again and again on every node; what
%% is left of the bucket after it is then asked for, all of it: exactly c were admitted in the end. Where the owner is to answer,
%% timeouts are long, since a slow machine isn't what is tested.
%% Shows R36 and R37 of doc/requirements.md.
-module(weir_exact_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [add/2, call/4, kill/1, suspend/1, resume/1, cut/2, heal/2, see_each_other/1, node_of/1, wait_until/2]).
-import(weir_cluster_SUITE, [keep/1, put_everywhere/3, same_limiters/1, erase_peers/0]).

-define(KEY, <<"alice">>).
-define(EXTERNAL, #{alice => [1, 2]}).
%% Callers a node.
-define(CALLERS, 8).
-define(C, 300).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [{group, bucket}, {group, changes}, {group, faults}, {group, limits}].

groups() ->
    [{bucket, [], [three_nodes, five_nodes, alone, batches, explained, counted, reset_holds_everywhere, scope_is_fixed, changed_limiter]},
     {changes, [], [owner_leaves, rolling_restart, node_joins, all_at_once, secret_rotated]},
     {faults, [], [owner_killed, process_crashes, owner_suspended, held_up, partition_open, partition_closed]},
     {limits, [], [flooded, malformed, unknown_at_the_owner, deleted_under_load, many_waiting]}].

end_per_testcase(_, _Config) ->
    weir_cluster:stop(erase_peers()).

%% ---- the bucket

three_nodes(_) -> on_all_nodes(start_all(3)).
five_nodes(_) -> on_all_nodes(start_all(5)).

%% By each function, hits of 1 and mixed, of keys of both kinds: c and no more.
on_all_nodes(Peers) ->
    ok = put_everywhere(Peers, login, spec(?C)),
    [begin
         Key = {How, Form, Most},
         Asked = case Form of native -> Key; external -> #{Key => []} end,
         Admitted = everywhere(Peers, fun() -> ask_many(How, login, Asked, ?CALLERS, ?C, Most) end),
         ?assertEqual({Key, ?C}, {Key, Admitted + rest(Peers, login, Asked)}),
         ?assertEqual({Key, 0}, {Key, everywhere(Peers, fun() -> ask_many(How, login, Asked, 1, 10, 1) end)})
     end || How <- [check, decide, check_many, decide_many], Form <- [native, external], Most <- [1, 7]],
    ?assertEqual(0, fallbacks(Peers)).

%% Without distribution, and with nobody else there.
alone(_) ->
    ok = weir_test:stop(),
    {ok, _} = application:ensure_all_started(weir),
    ok = weir:put_limiter(login, spec(?C)),
    ?assertEqual(?C, ask_many(check, login, ?KEY, ?CALLERS, ?C, 1)),
    ?assertMatch(#{scope := exact, owner := Node, nodes := #{live := 1}} when Node =:= node(), weir:explain(login, ?KEY)),
    ok = weir_test:stop(),
    on_all_nodes(start_all(1)).

%% In order, mixed with others, longer than a call of the NIF, one key more than once.
batches(_) ->
    [A | _] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(2)),
    ok = put_everywhere(Peers, here, #{rate => {1, day}, scope => local}),
    Items = [Item || I <- lists:seq(1, 700), Item <- [{login, I, 1}, {here, I, 1}, {login, #{I => x}, 1}, {login, I, 2}]],
    {Allowed, Denied} = lists:partition(fun({_, Answer}) -> element(1, Answer) =:= allow end,
                                        lists:zip(Items, call(A, weir, check_many, [Items]))),
    ?assertEqual([Item || {_, _, 1} = Item <- Items], [Item || {Item, _} <- Allowed]),
    ?assertEqual([Item || {_, _, 2} = Item <- Items], [Item || {Item, _} <- Denied]),
    ?assert(lists:all(fun(#{limit := 2, remaining := 0, allowed := true}) -> true; (_) -> false end,
                      call(A, weir, decide_many, [[{login, I, 1} || I <- lists:seq(1, 700)]]))),
    %% Nothing is asked of any owner when one is wrong.
    ?assertError(_, call(A, weir, check_many, [[{login, new, 1}, {login, new, 0}]])),
    ?assertMatch({allow, 1}, call(A, weir, check, [login, new])),
    ?assertMatch({deny, infinity}, call(A, weir, check, [login, new, 3])),
    ?assertEqual(0, fallbacks(Peers)).

%% All agree on the two; keys are spread over the nodes.
explained(_) ->
    Peers = start_all(3),
    Nodes = lists:sort([node_of(P) || P <- Peers]),
    ok = put_everywhere(Peers, login, spec(?C)),
    ok = agree(Peers),
    [begin
         [{Owner, Second}] = lists:usort([{O, S} || P <- Peers, #{owner := O, second := S, scope := exact} <- [explain(P, Key)]]),
         ?assert(Owner =/= Second)
     end || Key <- [?KEY, ?EXTERNAL, 5, {a, "b"}]],
    ?assertEqual(Nodes, lists:usort([maps:get(owner, explain(hd(Peers), Key)) || Key <- lists:seq(1, 50)])).

counted(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, spec(?C)),
    ok = agree(Peers),
    Keys = lists:seq(1, 100),
    Elsewhere = length([there || Key <- Keys, maps:get(owner, explain(A, Key)) =:= node_of(B)]),
    [{allow, _} = call(A, weir, check, [login, Key]) || Key <- Keys],
    ?assertEqual({Elsewhere, 0, 0}, counts(A)),
    ?assertEqual({0, Elsewhere, 0}, counts(B)),
    %% Who decides counts.
    ?assertEqual([100 - Elsewhere, Elsewhere], [metric(P, weir_allowed_total, [<<"login">>]) || P <- Peers]).

counts(Peer) ->
    list_to_tuple([metric(Peer, Name, []) || Name <- [weir_exact_asked_total, weir_exact_answered_total, weir_exact_fallback_total]]).

%% Whoever says so, and whatever the owner or who stands by had been told.
reset_holds_everywhere(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(?C)),
    [begin
         ?assertEqual(?C, rest(Peers, login, Key)),
         ok = call(P, weir, reset, [login, Key]),
         ?assertEqual(?C, rest(lists:reverse(Peers), login, Key)),
         ok = call(P, weir, reset, [login, Key]),
         wait_until(reset, fun() -> lists:all(fun(Q) -> remaining(Q, Key) =:= ?C end, Peers) end)
     end || P <- Peers, Key <- [?KEY, ?EXTERNAL]].

scope_is_fixed(_) ->
    [A] = start_all(1),
    ok = call(A, weir, put_limiter, [login, spec(?C)]),
    ?assertError(_, call(A, weir, put_limiter, [login, (spec(?C))#{scope => cluster}])),
    ?assertError(_, call(A, weir, compile, [spec(?C)])),
    ok = call(A, weir, put_limiter, [login, (spec(?C))#{partition => closed}]).

%% Levels are carried over on all nodes.
changed_limiter(_) ->
    [A, B, _] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(?C)),
    ?C = rest(Peers, login, ?KEY),
    ok = call(B, weir, put_limiter, [login, #{rate => {1, hour}, burst => ?C + 50, scope => exact, timeout => 20000}]),
    wait_until(changed, fun() -> lists:all(fun(P) -> limit(P) =:= ?C + 50 end, Peers) end),
    ?assertEqual(50, rest([A], login, ?KEY)).

%% ---- changes of the nodes

%% Asked on the others: who left decides alone.
owner_leaves(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(20000)),
    ok = agree(Peers),
    Owner = owner(Peers, ?KEY),
    Others = Peers -- [Owner],
    ok = load(Others),
    ok = call(Owner, weir, leave, []),
    ok = go_on(Others),
    ?assertNotEqual(node_of(Owner), node_of(owner(Others, ?KEY))),
    exactly(20000, Others, unload(Others), Others).

%% Callers on the node that is stopped are answered by the others, until there is no limiter.
rolling_restart(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(20000)),
    ok = agree(Peers),
    ok = load(Peers),
    [begin
         ok = call(P, application, stop, [weir]),
         ok = go_on(Peers -- [P]),
         {ok, _} = call(P, application, ensure_all_started, [weir]),
         ok = agree(Peers),
         ok = go_on(Peers)
     end || P <- Peers],
    exactly(20000, Peers, unload(Peers), Peers).

%% Five join; with each, keys change their owners.
node_joins(_) ->
    [A, B] = start_all(2),
    ok = put_everywhere([A, B], login, spec(20000)),
    ok = agree([A, B]),
    ok = load([A, B]),
    Peers = lists:foldl(fun(_, Before) ->
                                New = keep(add(Before, #{})),
                                ok = load([New]),
                                ok = agree([New | Before]),
                                ok = go_on([New | Before]),
                                [New | Before]
                        end, [A, B], lists:seq(1, 3)),
    exactly(20000, Peers, unload(Peers), Peers).

%% One leaves for good, one is restarted and one joins, at the same time.
all_at_once(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(20000)),
    ok = agree(Peers),
    ok = load([A, B]),
    Self = self(),
    Restart = spawn_link(fun() ->
                                 ok = call(B, application, stop, [weir]),
                                 {ok, _} = call(B, application, ensure_all_started, [weir]),
                                 Self ! {self(), done}
                         end),
    Leave = spawn_link(fun() ->
                               ok = call(C, weir, leave, []),
                               Self ! {self(), done}
                       end),
    D = keep(add([A, B], #{})),
    [receive {Pid, done} -> ok end || Pid <- [Restart, Leave]],
    ok = agree([A, B, D]),
    ok = load([D]),
    ok = go_on([A, B, D]),
    exactly(20000, [A, B, D], unload([A, B, D]), [A, B, D]).

%% Keys have other owners then, which were told all when the nodes switched.
secret_rotated(_) ->
    Peers = [keep(P) || P <- weir_cluster:start(3, #{env => #{secret => <<"the old secret of this test">>,
                                                               next_secret => <<"the new secret of this test">>}})],
    ok = agree(Peers),
    ok = put_everywhere(Peers, login, spec(?C)),
    Keys = lists:seq(1, 20),
    [[{allow, _} = call(P, weir, check, [login, Key, 50]) || P <- Peers] || Key <- Keys],
    Owners = [maps:get(owner, explain(hd(Peers), Key)) || Key <- Keys],
    ok = call(hd(Peers), weir, rotate_secret, []),
    ?assertNotEqual(Owners, [maps:get(owner, explain(hd(Peers), Key)) || Key <- Keys]),
    ok = weir_cluster_SUITE:settle(Peers),
    ?assertEqual([?C - 150 || _ <- Keys], [rest([lists:last(Peers)], login, Key) || Key <- Keys]),
    ?assertEqual([0 || _ <- Keys], [rest(Peers, login, Key) || Key <- Keys]).

%% ---- faults

%% At most what the callers had under way is admitted twice (its levels reached nobody), or counted and not heard of.
owner_killed(_) ->
    Peers = start_all(4),
    ok = put_everywhere(Peers, login, spec(20000)),
    ok = agree(Peers),
    Last = lists:foldl(fun(_, Alive) ->
                               Owner = owner(Alive, ?KEY),
                               Others = Alive -- [Owner],
                               ok = load(Others),
                               kill(Owner),
                               ok = go_on(Others),
                               put(killed, unload(Others) + erase_number(killed)),
                               Others
                       end, Peers, [first, second]),
    Admitted = erase_number(killed) + rest(Last, login, ?KEY),
    ct:pal("~b admitted of 20000", [Admitted]),
    UnderWay = ?CALLERS * (3 + 2),
    ?assertMatch(N when N >= 20000 - UnderWay andalso N =< 20000 + UnderWay, Admitted).

%% Its decisions were told: nothing is admitted twice. What it hadn't answered is asked, and counts, again.
process_crashes(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(20000)),
    ok = agree(Peers),
    ok = load(Peers),
    [begin
         Pid = call(P, erlang, whereis, [weir_owner]),
         true = call(P, erlang, exit, [Pid, kill]),
         wait_until(restarted, fun() -> lists:member(call(P, erlang, whereis, [weir_owner]), [undefined, Pid]) =:= false end),
         ok = agree(Peers),
         ok = go_on(Peers)
     end || P <- Peers],
    Admitted = unload(Peers) + rest(Peers, login, ?KEY),
    ?assertMatch(N when N >= 20000 - 3 * 3 * ?CALLERS andalso N =< 20000, Admitted).

%% While it doesn't answer, callers get the replicated decision at the end of their time; then another one owns its keys. When it
%% goes on it is one of them again.
owner_suspended(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, (spec(?C))#{timeout => 200}),
    ok = agree(Peers),
    Owner = owner(Peers, ?KEY),
    [A, B] = Others = Peers -- [Owner],
    suspend(Owner),
    ?assertMatch({allow, _}, call(A, weir, check, [login, ?KEY])),
    ?assertMatch(#{allowed := true}, call(B, weir, decide, [login, ?KEY, 1])),
    ?assert(fallbacks(Others) >= 2),
    ok = agree(Others),
    Before = fallbacks(Others),
    ok = put_everywhere(Others, long, spec(?C)),
    ?assertEqual(?C, rest(Others, long, ?KEY)),
    ?assertEqual(Before, fallbacks(Others)),
    resume(Owner),
    see_each_other(Peers),
    ok = agree(Peers),
    wait_until(limiters, fun() -> same_limiters(Peers) end),
    ?assertEqual(0, rest(Peers, long, ?KEY)).

%% A node that was held up, shorter than the others bear, takes part again only when all have said so: it asks meanwhile.
held_up(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(20000)),
    ok = agree(Peers),
    Owner = owner(Peers, ?KEY),
    ok = load(Peers),
    [begin
         suspend(Owner),
         wait_until(missed, fun() -> away_for(hd(Peers -- [Owner]), Owner) > 1300 end),
         resume(Owner),
         ok = go_on(Peers),
         ok = agree(Peers)
     end || _ <- [once, again]],
    exactly(20000, Peers, unload(Peers), Peers).

%% Each side has an owner of its own and the whole bucket; together again they owe.
partition_open(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(?C)),
    ok = agree(Peers),
    cut([A], [B, C]),
    ok = agree([A]),
    ok = agree([B, C]),
    ?assertEqual([?C, ?C], [rest(Side, login, ?KEY) || Side <- [[A], [B, C]]]),
    heal([A], [B, C]),
    see_each_other(Peers),
    ok = agree(Peers),
    ?assertEqual(0, rest(Peers, login, ?KEY)),
    wait_until(debt, fun() -> [2 * ?C] =:= lists:usort([maps:get(level, explain(P, ?KEY)) || P <- Peers]) end).

partition_closed(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, (spec(?C))#{partition => closed}),
    ok = agree(Peers),
    cut([A], [B, C]),
    ok = agree([A]),
    ok = agree([B, C]),
    wait_until(noticed, fun() -> [1, 2, 2] =:= [weir_cluster:machine_live(P) || P <- Peers] end),
    ?assertEqual([0, ?C], [rest(Side, login, ?KEY) || Side <- [[A], [B, C]]]),
    heal([A], [B, C]),
    see_each_other(Peers),
    ok = agree(Peers),
    ?assertEqual(0, rest(Peers, login, ?KEY)).

%% ---- limits

%% Whatever waits there: it answers in the end, and the bucket holds. Past the limit callers decide alone at once, and are counted.
flooded(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, spec(?C)),
    ok = agree(Peers),
    Pid = call(A, erlang, whereis, [weir_owner]),
    ok = call(A, ?MODULE, flood, [200000]),
    ?assertEqual(?C, everywhere([B], fun() -> ask_many(check, login, ?KEY, ?CALLERS, ?C, 1) end)),
    %% More than it takes. (Of another key: that this one is denied is known.)
    ok = call(A, sys, suspend, [weir_owner]),
    Asker = fun() -> exit({answer, weir:check(login, another)}) end,
    {_, Monitor} = {Asker, call(A, ?MODULE, in_background, [Asker])},
    ok = call(A, ?MODULE, flood, [20000]),
    ok = call(A, sys, resume, [weir_owner]),
    ?assertMatch({allow, _}, call(A, ?MODULE, answer_of, [Monitor])),
    ?assertEqual(Pid, call(A, erlang, whereis, [weir_owner])),
    ?assert(fallbacks([A]) >= 1).

flood(Count) ->
    _ = [weir_owner ! {something, I} || I <- lists:seq(1, Count)],
    ok.

in_background(Fun) ->
    Self = self(),
    Collector = spawn(fun() ->
                              {_, Monitor} = spawn_monitor(Fun),
                              Self ! started,
                              receive {'DOWN', Monitor, _, _, {answer, Answer}} -> receive {what, From} -> From ! {self(), Answer} end end
                      end),
    receive started -> Collector end.

answer_of(Collector) ->
    Collector ! {what, self()},
    receive {Collector, Answer} -> Answer end.

%% Nothing of it crashes the process, makes an owner, or changes a level.
malformed(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, spec(?C)),
    ok = agree(Peers),
    Pid = call(A, erlang, whereis, [weir_owner]),
    Number = weir_limiter:number(<<"login">>),
    Hash = call(A, weir_table, key_hash, [?KEY]),
    Bad = [x, [], [a | b], -1, <<>>, <<1>>, binary:copy(<<255>>, 20), binary:copy(<<0>>, 20 * 2000), 1 bsl 200, {}, [{Number, Hash}],
           [{Number, Hash, 0}], [{Number, 0, 1}], [{0, Hash, 1}], [{1 bsl 40, Hash, 1}], lists:duplicate(600, {Number, Hash, 1})],
    Said = [{What, Value} || What <- [asks, answers, told, levels, hello], Value <- Bad] ++
        [{What, Batch, Value} || What <- [asks, answers], Batch <- [1, x], Value <- Bad] ++ Bad,
    [_ = call(A, erlang, send, [weir_owner, Message])
     || Node <- [node_of(B), 'x@y', 5], What <- Said, Message <- [{weir_owner, 1, Node, What}, {weir_owner, 2, Node, What}]],
    [_ = call(A, erlang, send, [weir_owner, {weir_ask, call(A, erlang, make_ref, []), Asks}])
     || Asks <- Bad ++ [[X] || X <- Bad] ++ [[{1, Number, Hash, 1, soon}], [{1, Number, 1 bsl 64, 1, 0}]]],
    [?assertNotEqual(ok, call(A, gen_server, call, [weir_owner, Request]))
     || Request <- [{weir_owner, 1, Node, What} || Node <- ['x@y', 5], What <- [welcome, bye, {levels, <<>>}]] ++
            [{weir_owner, 1, node_of(B), What} || What <- Said, not is_levels(What)] ++ Bad],
    ok = call(A, gen_server, call, [weir_owner, {weir_owner, 1, node_of(B), {levels, x}}]),
    ?assertEqual(Pid, call(A, erlang, whereis, [weir_owner])),
    ok = agree(Peers),
    ?assertEqual(?C, rest(Peers, login, ?KEY)).

is_levels({levels, _}) -> true;
is_levels(_) -> false.

%% It isn't asked in vain: the answer comes once it knows.
unknown_at_the_owner(_) ->
    Peers = start_all(3),
    [begin
         Name = {hidden, I},
         ok = call(hd(Peers), weir, put_limiter, [name(Name), spec(?C)]),
         ?assertEqual(?C, lists:sum([call(P, ?MODULE, ask_when_known, [name(Name), ?C]) || P <- Peers]))
     end || I <- lists:seq(1, 10)],
    ?assertEqual(0, fallbacks(Peers)).

name({hidden, I}) -> <<"hidden", (integer_to_binary(I))/binary>>.

ask_when_known(Name, Count) ->
    wait_until(Name, fun() -> weir_specs:is_known(Name) end),
    ask_many(check, Name, ?KEY, ?CALLERS, Count, 1).

%% Callers are answered or told that there is no such limiter, and nobody waits for the end of a long time.
deleted_under_load(_) ->
    [A, B, C] = Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(300000)),
    ok = agree(Peers),
    ok = load(Peers),
    ok = go_on(Peers),
    ok = call(A, weir, delete_limiter, [login]),
    ok = wait_until(deleted, fun() -> lists:all(fun(P) -> call(P, weir, limiters, []) =:= #{} end, Peers) end),
    [?assertError(_, call(P, weir, check, [login, ?KEY])) || P <- Peers],
    _ = unload(Peers),
    ok = put_everywhere([B, C, A], login, spec(?C)),
    ?assertEqual(?C, rest(Peers, login, ?KEY)).

%% More questions than may wait for a node that doesn't answer: the rest is decided at once.
many_waiting(_) ->
    Peers = start_all(2),
    ok = put_everywhere(Peers, login, (spec(?C))#{timeout => 5000}),
    ok = agree(Peers),
    Owner = owner(Peers, ?KEY),
    [Other] = Peers -- [Owner],
    ok = call(Owner, sys, suspend, [weir_owner]),
    Answers = call(Other, weir, check_many, [lists:duplicate(40000, {login, ?KEY, 1})]),
    ?assertEqual(40000, length(Answers)),
    ?assertEqual(40000, fallbacks([Other])),
    #{out := Out} = call(Other, ?MODULE, waiting, []),
    ?assert(Out =< 16384),
    ok = call(Owner, sys, resume, [weir_owner]),
    wait_until(settled, fun() -> #{out => 0, waiting => 0} =:= call(Other, ?MODULE, waiting, []) end).

waiting() ->
    maps:with([out, waiting], core_counts()).

%% Questions sent to that node, without an answer.
sent_to(Node) ->
    maps:get(Node, maps:get(sent, core_counts()), 0).

core_counts() ->
    weir_owner_core:counts(element(2, sys:get_state(weir_owner))).

%% ---- asking

spec(Capacity) ->
    #{rate => {1, hour}, burst => Capacity, scope => exact, timeout => 20000}.

%% Count questions by each of so many processes at once, of 1 to Most hits; the hits that were admitted.
ask_many(How, Limiter, Key, Callers, Count, Most) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), asked(How, Limiter, Key, Count, Most)} end) || _ <- lists:seq(1, Callers)],
    lists:sum([receive {Pid, Admitted} -> Admitted end || Pid <- Pids]).

asked(How, Limiter, Key, Count, Most) ->
    Items = [{Limiter, Key, 1 + I rem Most} || I <- lists:seq(1, Count)],
    lists:sum([Hits || {{_, _, Hits}, true} <- lists:zip(Items, answers(How, Items))]).

answers(check, Items) -> [element(1, weir:check(L, K, H)) =:= allow || {L, K, H} <- Items];
answers(decide, Items) -> [maps:get(allowed, weir:decide(L, K, H)) || {L, K, H} <- Items];
answers(check_many, Items) -> [element(1, Answer) =:= allow || Answer <- weir:check_many(Items)];
answers(decide_many, Items) -> [Allowed || #{allowed := Allowed} <- weir:decide_many(Items)].

everywhere(Peers, Fun) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), weir_cluster:eval(P, Fun)} end) || P <- Peers],
    lists:sum([receive {Pid, Admitted} -> Admitted end || Pid <- Pids]).

%% What is left of the bucket.
rest(Peers, Limiter, Key) ->
    everywhere(Peers, fun() -> rest_here(Limiter, Key) end).

rest_here(Limiter, Key) ->
    case length([allowed || true <- answers(check_many, lists:duplicate(200, {Limiter, Key, 1}))]) of
        0 -> 0;
        Some -> Some + rest_here(Limiter, Key)
    end.

%% A call that is under way while weir stops on its node may have been counted and not answered, or answered by `on_error' and not
%% counted: one for each caller there, each time.
exactly(Capacity, Loaded, Admitted, Peers) ->
    Rest = rest(Peers, login, ?KEY),
    Unsure = lists:sum([call(P, ?MODULE, load_unsure, []) || P <- Loaded]),
    ct:pal("~b admitted under load, ~b after it; ~b calls while weir stopped", [Admitted, Rest, Unsure]),
    ?assert(Admitted > 0),
    ?assertMatch({Sum, _, _} when abs(Capacity - Sum) =< Unsure, {Admitted + Rest, Capacity, Unsure}),
    ?assertEqual(0, rest(Peers, login, ?KEY)).

%% ---- load: callers that ask, with a millisecond's rest, until they are told to stop

load(Peers) ->
    _ = [ok = call(P, ?MODULE, start_load, []) || P <- Peers],
    ok.

%% What they admitted in all.
unload(Peers) ->
    lists:sum([call(P, ?MODULE, stop_load, []) || P <- Peers]).

%% Each node answers questions that are asked from now on.
go_on(Peers) ->
    Before = [asked_so_far(P) || P <- Peers],
    wait_until(goes_on, fun() -> lists:all(fun({P, Count}) -> asked_so_far(P) > Count + 3 * ?CALLERS end, lists:zip(Peers, Before)) end).

asked_so_far(Peer) ->
    call(Peer, ?MODULE, load_asked, []).

start_load() ->
    Counters = counters:new(3, []),
    Pids = [spawn(fun() -> ask_on(Counters, true) end) || _ <- lists:seq(1, ?CALLERS)],
    persistent_term:put(load, {Counters, Pids}).

load_asked() ->
    {Counters, _} = persistent_term:get(load),
    counters:get(Counters, 2).

%% Times that a caller was answered, and then was not.
load_unsure() ->
    {Counters, _} = persistent_term:get(load),
    counters:get(Counters, 3).

stop_load() ->
    {Counters, Pids} = persistent_term:get(load),
    Monitors = [{erlang:monitor(process, Pid), Pid ! stop} || Pid <- Pids],
    _ = [receive {'DOWN', Monitor, _, _, normal} -> ok end || {Monitor, _} <- Monitors],
    counters:get(Counters, 1).

ask_on(Counters, Before) ->
    %% (Not while weir is stopped there.)
    Answer = try weir:check(login, ?KEY)
             catch error:badarg -> stopped
             end,
    Answered = Answer =/= stopped,
    _ = is_tuple(Answer) andalso element(1, Answer) =:= allow andalso counters:add(Counters, 1, 1),
    _ = Before andalso not Answered andalso counters:add(Counters, 3, 1),
    counters:add(Counters, 2, 1),
    receive stop -> ok
    after 1 -> ask_on(Counters, Answered)
    end.

%% ---- nodes

owner(Peers, Key) ->
    #{owner := Node} = explain(hd(Peers), Key),
    hd([P || P <- Peers, node_of(P) =:= Node]).

%% These, and no others, share keys out on all of them, and each has been given its keys.
agree(Peers) ->
    Nodes = lists:sort([node_of(P) || P <- Peers]),
    wait_until({agree, Nodes}, fun() -> lists:all(fun(P) -> call(P, ?MODULE, shares, []) =:= {serving, Nodes} end, Peers) end).

shares() ->
    try {ets:lookup(weir_roster, owners), sys:get_state(weir_owner)} of
        {[{owners, _, Names}], State} -> {weir_owner_core:phase(element(2, State)), lists:sort(tuple_to_list(Names))}
    catch _:_ -> starting
    end.

away_for(Peer, Other) ->
    call(Peer, ?MODULE, silence, [node_of(Other)]).

silence(Node) ->
    #{Node := #{heard_ns := Heard}} = weir_members:traffic(),
    (weir_clock:now() - Heard) div 1000000.

explain(Peer, Key) -> call(Peer, weir, explain, [login, Key]).

remaining(Peer, Key) -> maps:get(remaining, call(Peer, weir, peek, [login, Key])).

limit(Peer) -> maps:get(limit, call(Peer, weir, peek, [login, other])).

fallbacks(Peers) -> lists:sum([metric(P, weir_exact_fallback_total, []) || P <- Peers]).

metric(Peer, Name, Labels) ->
    {_, _, _, _, Series} = lists:keyfind(Name, 1, call(Peer, weir_metrics, metrics, [])),
    proplists:get_value(Labels, Series, 0).

start_all(Count) ->
    Peers = [keep(P) || P <- weir_cluster:start(Count)],
    ok = agree(Peers),
    Peers.

erase_number(Name) ->
    case erase(Name) of
        undefined -> 0;
        Number -> Number
    end.
