%% The hash secret is rotated, and no limit is forgotten: on one node, and on a cluster of real ones. R35, R46.
%%
%% Buckets of c tokens that come back so slowly that none does during a test; where a key's level is known on all nodes, it is the
%% same after the rotation, to the token.
-module(weir_rotate_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, cut/2, heal/2, kill/1, restart/2, checks/4, everywhere/4, see_each_other/1, denied_by_all/3,
                       node_of/1, wait_until/2, members/1]).
-import(weir_cluster_SUITE, [start_all/2, keep/1, put_everywhere/3, remaining/1, settle/1, in_turns/3, refused/2, copying/1]).
-import(weir_rounds, [within/4, limited/4, limited/5]).

-define(KEY, <<"alice">>).
-define(C, 300).
-define(SLOW, #{rate => {?C, {?C, day}}}).
-define(OLD, <<"the old secret of the test">>).
-define(NEW, <<"the new secret of the test">>).
-define(ENV, #{secret => ?OLD, next_secret => ?NEW}).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [{group, alone}, {group, cluster}].

groups() ->
    [{alone, [], [levels_are_kept, kept_until_it_is_over, bounded_and_forced, batches, resets, many_processes, nothing_to_rotate_to,
                  secrets_stay_secret]},
     {cluster, [], [kept_on_three_nodes, kept_by_new_owners, full_buckets_stay_full_under_load, while_a_bucket_fills,
                    a_reset_is_of_both_hashes,
                    a_member_cannot_follow, away_during_the_switch, restarted_in_the_midst, with_the_new_secret_only]}].

init_per_testcase(_, Config) -> Config.

end_per_testcase(_, Config) ->
    ok = weir_cluster_SUITE:end_per_testcase(none, Config),
    weir_test:stop().

%% ---- one node

%% Of every form of key, of limiters by name, by handle, and replicated.
levels_are_kept(_) ->
    ok = weir_test:start(?ENV),
    ok = weir:put_limiter(here, #{rate => {10, hour}, scope => local}),
    ok = weir:put_limiter(shared, #{rate => {10, hour}}),
    Handle = weir:compile(#{rate => {10, minute}}),
    Keys = [<<"bytes">>, atom, 7, 1 bsl 63, 0.5, {10, 0, 0, 1}, {<<"user">>, 7}, #{another => form}, <<>>],
    Asked = [{Limiter, Key, 1 + N rem 9} || Limiter <- [here, shared, Handle], {N, Key} <- lists:enumerate(Keys)],
    [{allow, _} = weir:check(Limiter, Key, Hits) || {Limiter, Key, Hits} <- Asked],
    Hash = weir_table:key_hash(atom),
    ok = weir:rotate_secret(),
    ?assertNotEqual(Hash, weir_table:key_hash(atom)),
    %% Whoever comes first: a look, an explanation, a decision.
    [?assertEqual({Key, Hits}, {Key, level(Limiter, Key, Hits rem 3)}) || {Limiter, Key, Hits} <- Asked],
    [?assertMatch({allow, Left} when Left =:= 9 - Hits, weir:check(Limiter, Key, 1)) || {Limiter, Key, Hits} <- Asked, Hits < 9],
    ?assertEqual([{allow, 9}], lists:usort([weir:check(L, fresh, 1) || L <- [here, shared, Handle]])),
    %% Each key is in its table once.
    [?assertMatch(#{keys := N} when N =:= length(Keys) + 1, weir_test:stats(Name)) || Name <- [<<"here">>, <<"shared">>]].

level(Limiter, Key, 0) ->
    #{limit := Limit, remaining := Remaining} = weir:peek(Limiter, Key),
    Limit - Remaining;
level(Limiter, Key, 1) ->
    maps:get(level, weir:explain(Limiter, Key));
level(Limiter, Key, 2) ->
    {deny, _} = weir:check(Limiter, Key, 10),
    #{limit := Limit, remaining := Remaining} = weir:decide(Limiter, Key, 10),
    Limit - Remaining.

%% Another rotation has to wait until all that could be carried over has been; then nothing is left of the one before.
kept_until_it_is_over(_) ->
    ok = weir_test:start(?ENV),
    ok = weir:put_limiter(login, #{rate => {10, hour}}),
    [{allow, _} = weir:check(login, {user, N}, 5) || N <- lists:seq(1, 50)],
    ok = weir:rotate_secret(),
    %% To what is in use, it is none.
    ok = weir:rotate_secret(),
    #{rotating_ms := Left} = weir_members:status(),
    ?assertEqual(2 * 3600000, Left),
    ok = application:set_env(weir, next_secret, <<"a third secret of the test">>),
    {error, Busy} = weir:rotate_secret(),
    ?assertNotEqual(nomatch, string:find(Busy, "7201 s")),
    [{allow, 4} = weir:check(login, {user, N}, 1) || N <- lists:seq(1, 25)],
    weir_clock:advance(2 * 3600000000000 + 1),
    ok = weir_sweeper:sweep(),
    ?assertMatch(#{keys := 0}, weir_test:stats(<<"login">>)),
    ?assertMatch(#{rotating_ms := 0}, weir_members:status()),
    {allow, 4} = weir:check(login, {user, 1}, 6),
    ok = weir:rotate_secret(),
    {allow, 3} = weir:check(login, {user, 1}, 1),
    ?assertMatch(#{keys := 1}, weir_test:stats(<<"login">>)).

%% A limiter whose bucket takes years to refill doesn't keep the next rotation waiting for years, and after a leak none does.
bounded_and_forced(_) ->
    ok = weir_test:start((?ENV)#{carry_ms => 3600000}),
    ok = weir:put_limiter(yearly, #{rate => {365, {365, day}}, burst => 365}),
    ok = weir:put_limiter(quick, #{rate => {10, second}}),
    {allow, 360} = weir:check(yearly, ?KEY, 5),
    {allow, 360} = weir:check(yearly, other, 5),
    ok = weir:rotate_secret(),
    ?assertMatch(#{rotating_ms := 3600000}, weir_members:status()),
    {allow, 355} = weir:check(yearly, ?KEY, 5),
    ok = application:set_env(weir, next_secret, <<"a third secret of the test">>),
    {error, Busy} = weir:rotate_secret(),
    ?assertNotEqual(nomatch, string:find(Busy, "force")),
    ok = weir:rotate_secret(#{force => true}),
    %% What was carried is carried again, the rest is forgotten.
    {allow, 350} = weir:check(yearly, ?KEY, 5),
    {allow, 360} = weir:check(yearly, other, 5),
    %% Past the bound nothing is carried any more.
    weir_clock:advance(3600000000000 + 1),
    ok = weir_sweeper:sweep(),
    ?assertMatch(#{rotating_ms := 0}, weir_members:status()),
    {allow, 345} = weir:check(yearly, ?KEY, 5),
    ok = weir:rotate_secret(#{force => false}),
    [weir_test:fault(fun() -> weir:rotate_secret(Wrong) end, ["force"])
     || Wrong <- [#{force => 1}, #{forced => true}, [], #{force => true, x => 1}]].

batches(_) ->
    ok = weir_test:start(?ENV),
    ok = weir:put_limiter(login, #{rate => {10, hour}}),
    Items = [{login, Key, 2} || N <- lists:seq(1, 1500), Key <- [case N rem 2 of 0 -> {user, N}; 1 -> [user, N] end]],
    ?assertEqual([{allow, 8}], lists:usort(weir:check_many(Items))),
    ok = weir:rotate_secret(),
    ?assertEqual([{allow, 6}], lists:usort(weir:check_many(Items))),
    ?assertEqual([4], lists:usort([Left || #{remaining := Left} <- weir:decide_many(Items)])).

resets(_) ->
    ok = weir_test:start(?ENV),
    ok = weir:put_limiter(login, #{rate => {10, hour}}),
    {allow, 0} = weir:check(login, ?KEY, 10),
    ok = weir:rotate_secret(),
    ok = weir:reset(login, ?KEY),
    {allow, 0} = weir:check(login, ?KEY, 10),
    {deny, _} = weir:check(login, ?KEY).

%% All at once, on keys that have some left: what is admitted is what was.
many_processes(_) ->
    ok = weir_test:start(?ENV),
    ok = weir:put_limiter(login, #{rate => {?C, hour}}),
    Keys = [{user, N} || N <- lists:seq(1, 200)],
    [{allow, _} = weir:check(login, Key, ?C - 10) || Key <- Keys],
    Ask = fun(_) -> [Key || _ <- lists:seq(1, 20), Key <- Keys, element(1, weir:check(login, Key)) =:= allow] end,
    {Rotated, Admitted} = with_a_rotation(fun() -> weir_test:concurrently(8, Ask) end),
    ?assertEqual(ok, Rotated),
    Count = length(lists:append(Admitted)),
    %% A question that was hashed before the rotation and decided after it may find its key carried away.
    within(rotated, 200 * 10, 200 * 10 + 8, Count).

with_a_rotation(Fun) ->
    Self = self(),
    _ = spawn_link(fun() -> Self ! {rotated, weir:rotate_secret()} end),
    Result = Fun(),
    receive {rotated, Rotated} -> {Rotated, Result} end.

nothing_to_rotate_to(_) ->
    ok = weir_test:start(#{secret => ?OLD}),
    Hash = weir_table:key_hash(?KEY),
    [begin
         Next =:= none orelse application:set_env(weir, next_secret, Next),
         {error, Message} = weir:rotate_secret(),
         ?assertMatch({_, [_ | _]}, {Message, [found || string:find(Message, Word) =/= nomatch]}),
         ?assertEqual(nomatch, string:find(Message, "hidden")),
         ?assertEqual(Hash, weir_table:key_hash(?KEY))
     end || {Next, Word} <- [{none, "next_secret"}, {<<"hidden">>, "16"}, {"hidden", "next_secret is a binary"},
                             {{file, "/nowhere/secret"}, "no such file"}, {{env, "WEIR_NO_SUCH_SECRET"}, "WEIR_NO_SUCH"}]],
    %% The secret in use: it is done.
    ok = application:set_env(weir, next_secret, ?OLD),
    ok = weir:rotate_secret(),
    ?assertEqual(Hash, weir_table:key_hash(?KEY)),
    ok = application:stop(weir),
    weir_test:fault(fun() -> weir:rotate_secret() end, ["not started"]).

%% In no log, not when a process crashes; in no table and no process' state.
secrets_stay_secret(Config) ->
    Next = filename:join(proplists:get_value(priv_dir, Config), "next"),
    ok = file:write_file(Next, [?NEW, $\n]),
    ok = weir_test:start(#{secret => {file, Next}, next_secret => {file, Next ++ "2"}}),
    ok = file:write_file(Next ++ "2", [?OLD, $\n]),
    ok = logger:set_primary_config(level, all),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{to => self()}}),
    ok = weir:rotate_secret(),
    Names = [weir_members, weir_registry, weir_replica, weir_sweeper, weir_sup],
    Seen = [[sys:get_status(Name) || Name <- Names], [ets:tab2list(T) || T <- ets:all(), is_atom(ets:info(T, name)), weir_table(T)],
            weir_members:status()],
    Pid = whereis(weir_members),
    Monitor = monitor(process, Pid),
    _ = sys:replace_state(Pid, fun(_) -> broken end),
    _ = catch gen_server:call(Pid, {rotation, 1, switch, <<"12345678">>}),
    receive {'DOWN', Monitor, _, _, _} -> ok end,
    ok = logger:remove_handler(?MODULE),
    ok = logger:set_primary_config(level, notice),
    Logged = logged(),
    ?assertNotEqual([], Logged),
    Derived = [binary_part(crypto:mac(hmac, sha256, <<"weir 1: keys">>, S), 0, 16) || S <- [?OLD, ?NEW]],
    Text = lists:flatten(io_lib:format("~w ~p", [[Seen, Logged], [Seen, Logged]])),
    [?assertEqual(nomatch, string:find(Text, lists:flatten(Form)))
     || Secret <- [?OLD, ?NEW | Derived], Form <- [binary_to_list(Secret), lists:join(",", [integer_to_list(B) || <<B>> <= Secret])]].

weir_table(Table) ->
    lists:prefix("weir", atom_to_list(ets:info(Table, name))) andalso ets:info(Table, protection) =/= private.

log(Event, #{config := #{to := Pid}}) ->
    Pid ! {logged, Event},
    ok.

logged() ->
    receive {logged, Event} -> [Event | logged()]
    after 0 -> []
    end.

%% ---- the cluster

%% What all know of a key, and what one of them only, is as before; on nodes that were asked and on those that weren't.
kept_on_three_nodes(_) ->
    [A, B, C] = Peers = start_all(3, #{env => ?ENV}),
    ok = put_everywhere(Peers, login, ?SLOW),
    7 = checks(A, login, few, 7),
    _ = everywhere(Peers, login, ?KEY, ?C),
    denied_by_all(Peers, login, ?KEY),
    Half = lists:sum([checks(P, login, half, ?C div 6) || P <- Peers]),
    settle(Peers),
    ok = call(B, weir, rotate_secret, []),
    ?assertEqual([0, 0, 0], everywhere(Peers, login, ?KEY, 10)),
    %% What only some knew, all are told.
    [wait_until({told, Key, Left}, fun() -> [Left, Left, Left] =:= [left(P, Key) || P <- Peers] end)
     || {Key, Left} <- [{half, ?C - Half}, {few, ?C - 7}]],
    _ = limited(Peers, login, half, ?C, Half),
    denied_by_all(Peers, login, half),
    %% All births are there, under the new hash, and are the same on all.
    settle(Peers),
    [?assertEqual(1, length(lists:usort([call(P, ?MODULE, published, [Key]) || P <- Peers]))) || Key <- [?KEY, half]],
    [?assertMatch(#{rotating_ms := Left} when Left > 0, call(P, weir_members, status, [])) || P <- Peers],
    ?assertEqual(ok, call(C, weir, rotate_secret, [])).

left(Peer, Key) ->
    maps:get(remaining, call(Peer, weir, peek, [login, Key])).

published(Key) ->
    {ok, Machine} = weir_machine:attached(),
    weir_machine:published(Machine, weir_limiter:number(<<"login">>), weir_table:key_hash(Key)).

%% Nearly all keys have another owner under the new hash, who decides on all that was admitted before.
kept_by_new_owners(_) ->
    Peers = start_all(3, #{env => ?ENV}),
    ok = weir_exact_SUITE:agree(Peers),
    ok = put_everywhere(Peers, one, #{rate => {10, {10, day}}, scope => exact}),
    Keys = [Key || N <- lists:seq(1, 30), Key <- [{user, N}, [user, N]]],
    Ask = fun(Count) ->
                  [lists:sum([checks(lists:nth(1 + (I + N) rem 3, Peers), one, Key, 1) || N <- lists:seq(1, Count)])
                   || {I, Key} <- lists:zip(lists:seq(1, length(Keys)), Keys)]
          end,
    ?assertEqual([4], lists:usort(Ask(4))),
    Owners = owners(hd(Peers), Keys),
    ok = call(hd(Peers), weir, rotate_secret, []),
    ?assertNotEqual(Owners, owners(hd(Peers), Keys)),
    settle(Peers),
    ?assertEqual([6], lists:usort(Ask(9))).

owners(Peer, Keys) ->
    [maps:get(owner, call(Peer, weir, explain, [one, Key])) || Key <- Keys].

full_buckets_stay_full_under_load(_) ->
    [A | _] = Peers = start_all(3, #{env => ?ENV}),
    ok = put_everywhere(Peers, login, ?SLOW),
    Keys = [{user, N} || N <- lists:seq(1, 40)],
    [_ = call(A, weir, check, [login, Key, ?C]) || Key <- Keys],
    [denied_by_all(Peers, login, Key) || Key <- Keys],
    settle(Peers),
    Self = self(),
    [Hash] = lists:usort(hashes(Peers)),
    Pids = [spawn_link(fun() -> Self ! {self(), call(P, ?MODULE, ask_for_a_while, [Keys, Hash])} end) || P <- Peers],
    ok = call(A, weir, rotate_secret, []),
    Admitted = [receive {Pid, Count} -> Count end || Pid <- Pids],
    %% Of each process at most the one question that was under way at the switch.
    within(switched, 0, 3 * 4, lists:sum(Admitted)),
    [denied_by_all(Peers, login, Key) || Key <- Keys].

%% Until the secret is another one, and some rounds more.
ask_for_a_while(Keys, Hash) ->
    lists:sum(weir_test:concurrently(4, fun(_) -> ask_until_rotated(Keys, Hash, 0) end)).

ask_until_rotated(Keys, Hash, Admitted) ->
    Round = fun() -> length([Key || Key <- Keys, element(1, weir:check(login, Key)) =:= allow]) end,
    case weir_table:key_hash(?KEY) of
        Hash -> ask_until_rotated(Keys, Hash, Admitted + Round());
        _ -> Admitted + lists:sum([Round() || _ <- lists:seq(1, 20)])
    end.

while_a_bucket_fills(_) ->
    [A, B, C] = Peers = start_all(3, #{env => ?ENV}),
    ok = put_everywhere(Peers, login, ?SLOW),
    First = in_turns(Peers, 0, 10),
    %% One after the other: a moment at which some have switched.
    {ok, Id} = call(A, weir_secret, next, []),
    ok = call(A, gen_server, call, [weir_members, {rotation, 1, switch, Id}]),
    Second = in_turns([B, A, C], 0, 5),
    ok = call(A, weir, rotate_secret, []),
    Last = in_turns(Peers, 0, 2 * ?C div 10),
    denied_by_all(Peers, login, ?KEY),
    within(filled, ?C, ?C + ?C div 10, First + Second + Last).

a_reset_is_of_both_hashes(_) ->
    [A, B] = Peers = start_all(2, #{env => ?ENV}),
    ok = put_everywhere(Peers, login, ?SLOW),
    _ = everywhere(Peers, login, ?KEY, ?C),
    denied_by_all(Peers, login, ?KEY),
    ok = call(A, weir, rotate_secret, []),
    ok = call(B, weir, reset, [login, ?KEY]),
    wait_until(reset, fun() -> [?C, ?C] =:= [remaining(P) || P <- Peers] end).

%% Nothing changes, and the error names who.
a_member_cannot_follow(_) ->
    [A, B] = start_all(2, #{env => ?ENV}),
    [C] = start_all(1, #{env => #{secret => ?OLD}}),
    Peers = [A, B, C],
    ok = weir_cluster:join(Peers),
    Hashes = hashes(Peers),
    refuses(A, node_of(C), "next_secret"),
    ok = call(C, application, set_env, [weir, next_secret, <<"yet another secret of the test">>]),
    refuses(A, node_of(C), "another"),
    ok = call(C, application, set_env, [weir, next_secret, ?NEW]),
    cut([B], [A, C]),
    wait_until(away, fun() -> maps:get(node_of(B), members(A)) =:= away end),
    refuses(A, node_of(B), "out of reach"),
    ?assertEqual(Hashes, hashes(Peers)),
    heal([B], [A, C]),
    see_each_other(Peers),
    ok = call(A, weir, rotate_secret, []),
    [Hash] = lists:usort(hashes(Peers)),
    ?assertNotEqual([Hash], lists:usort(Hashes)).

refuses(Peer, Node, Word) ->
    {error, Message} = call(Peer, weir, rotate_secret, []),
    [?assertNotEqual({W, Message, nomatch}, {W, Message, string:find(Message, W)})
     || W <- [atom_to_list(Node), Word, "nothing was changed"]].

hashes(Peers) ->
    [call(P, weir_table, key_hash, [?KEY]) || P <- Peers].

%% It went between question and switch; back again, it follows, and knows what it knew.
away_during_the_switch(_) ->
    [A, B, C] = Peers = start_all(3, #{env => ?ENV}),
    ok = put_everywhere(Peers, login, ?SLOW),
    _ = limited(Peers, login, ?KEY, ?C),
    denied_by_all(Peers, login, ?KEY),
    settle(Peers),
    cut([C], [A, B]),
    {ok, Id} = call(A, weir_secret, next, []),
    [ok = call(P, gen_server, call, [weir_members, {rotation, 1, switch, Id}]) || P <- [A, B]],
    ?assertEqual([0, 0, 0], everywhere(Peers, login, ?KEY, 10)),
    ?assertEqual(?C, checks(C, login, other, 2 * ?C)),
    _ = limited([A, B], login, other, ?C),
    heal([C], [A, B]),
    see_each_other(Peers),
    wait_until(follows, fun() -> length(lists:usort(hashes(Peers))) =:= 1 end),
    wait_until(none_refused, fun() -> [none, none] =:= [refused(P, C) || P <- [A, B]] end),
    [denied_by_all(Peers, login, Key) || Key <- [?KEY, other]],
    ?assertEqual([0, 0, 0], everywhere(Peers, login, ?KEY, 10)),
    %% (What came of it under the hash of before is carried when it is asked for.)
    wait_until(united, fun() -> [0, 0, 0] = [left(P, other) || P <- Peers],
                                length(lists:usort([call(P, ?MODULE, published, [other]) || P <- Peers])) =:= 1
                       end).

%% Killed, and started again with the configuration of before: it follows at its first hello, and copies what there is, also of
%% keys that nobody asked for since.
restarted_in_the_midst(_) ->
    [A, B, C] = Peers = start_all(3, #{env => ?ENV}),
    ok = put_everywhere(Peers, login, ?SLOW),
    [_ = everywhere(Peers, login, Key, ?C) || Key <- [?KEY, other]],
    [denied_by_all(Peers, login, Key) || Key <- [?KEY, other]],
    settle(Peers),
    kill(C),
    {ok, Id} = call(A, weir_secret, next, []),
    [ok = call(P, gen_server, call, [weir_members, {rotation, 1, switch, Id}]) || P <- [A, B]],
    ?assertEqual([0, 0], everywhere([A, B], login, ?KEY, 10)),
    New = keep(restart(C, [A, B])),
    All = [A, B, New],
    see_each_other(All),
    ?assertEqual(1, length(lists:usort(hashes(All)))),
    wait_until(copied, fun() -> not copying(New) andalso remaining(New) =:= 0 andalso left(New, other) =:= 0 end),
    [?assertEqual([0, 0, 0], everywhere(All, login, Key, 10)) || Key <- [?KEY, other]].

%% Before the rotation it is refused, and the others don't follow it; afterwards it is one of them, with what they were asked for
%% since. Who has the old secret alone is refused until it is given the other, and so is a stranger.
with_the_new_secret_only(_) ->
    [A, B] = start_all(2, #{env => ?ENV}),
    [C] = start_all(1, #{env => #{secret => ?NEW}}),
    [Late] = start_all(1, #{env => #{secret => ?OLD}}),
    [Stranger] = start_all(1, #{env => #{secret => <<"a secret of someone else">>}}),
    ok = weir_cluster:join([A, B]),
    Hashes = hashes([A, B]),
    true = call(C, net_kernel, connect_node, [node_of(A)]),
    wait_until(early, fun() -> is_binary(refused(A, C)) end),
    ?assertNotEqual(nomatch, string:find(refused(A, C), "rotate_secret")),
    ?assertEqual(Hashes, hashes([A, B])),
    ok = put_everywhere([A, B], login, ?SLOW),
    _ = everywhere([A, B], login, ?KEY, ?C),
    denied_by_all([A, B], login, ?KEY),
    ok = call(A, weir, rotate_secret, []),
    ?assertEqual([0, 0], everywhere([A, B], login, ?KEY, 10)),
    weir_cluster:stop_node(C),
    New = keep(weir_cluster:add([A, B], #{env => #{secret => ?NEW}})),
    see_each_other([A, B, New]),
    wait_until(copied, fun() -> not copying(New) andalso remaining(New) =:= 0 end),
    [begin
         true = call(P, net_kernel, connect_node, [node_of(A)]),
         wait_until(refused, fun() -> is_binary(refused(A, P)) andalso is_binary(refused(P, A)) end),
         ?assertNotEqual(nomatch, string:find(refused(A, P), "secret"))
     end || P <- [Late, Stranger]],
    ok = call(Late, application, set_env, [weir, next_secret, ?NEW]),
    ok = call(Late, weir, rotate_secret, []),
    weir_cluster:join([A, B, New, Late]),
    ?assertEqual(none, refused(A, Late)),
    ?assert(is_binary(refused(A, Stranger))).
