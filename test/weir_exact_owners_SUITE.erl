%% What owners, backup owners and those who ask do for each other, where nobody else makes good for it: limiters of scope exact on
%% real nodes. Shows R36 of doc/requirements.md.
%%
%% A node that admits less of a bucket than its share tells nobody by way of the replica. So the levels here are below it, and
%% callers are on nodes that are to know nothing: what a node knows of a key, it knows from the messages that are tested.
-module(weir_exact_owners_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [add/2, call/4, kill/1, suspend/1, resume/1, see_each_other/1, node_of/1, wait_until/2]).
-import(weir_cluster_SUITE, [keep/1, put_everywhere/3, erase_peers/0]).
-import(weir_exact_SUITE, [start_all/1, spec/1, owner/2, agree/1, rest/3, explain/2, fallbacks/1, metric/3]).

-define(KEY, <<"alice">>).
-define(C, 300).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [told_before_the_answer, a_long_handover, held_up_with_questions, questions_to_an_owner_that_dies, no_more_questions_than_allowed,
     strangers, late_answers].

end_per_testcase(_, _Config) ->
    weir_cluster:stop(erase_peers()).

%% The backup owner knows what the owner admitted, and when that one dies, so does the next one.
told_before_the_answer(_) ->
    Peers = start_all(4),
    ok = put_everywhere(Peers, login, spec(?C)),
    [First, Second, Third, Last] = ranked(Peers, ?KEY),
    40 = length([allowed || _ <- lists:seq(1, 40), {allow, _} <- [call(Last, weir, check, [login, ?KEY])]]),
    ?assertEqual([40, 40, 0], [level(P) || P <- [First, Second, Third]]),
    kill(First),
    %% (Who owns it now tells who is to be its backup.)
    ok = agree([Second, Third, Last]),
    wait_until(told, fun() -> level(Third) =:= 40 end),
    kill(Second),
    ok = agree([Third, Last]),
    ?assertEqual(?C - 40, rest([Last], login, ?KEY)),
    ?assertEqual(0, fallbacks([Last])).

%% More keys than one message holds: the node that joins gets the level of each that it owns or is to know.
a_long_handover(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, spec(10)),
    Keys = lists:seq(1, 6000),
    [{allow, 9} = Answer || Some <- parts(Keys), Answer <- call(A, weir, check_many, [[{login, Key, 1} || Key <- Some]])],
    C = keep(add(Peers, #{})),
    ok = agree([A, B, C]),
    wait_until(limiter, fun() -> call(C, weir_specs, is_known, [<<"login">>]) end),
    Known = call(C, ?MODULE, known, [login, Keys, node_of(C)]),
    %% Of three nodes, it is the first or the second for two keys in three.
    ?assert(length(Known) > 3500),
    ?assertEqual([], [{Key, Level} || {Key, Level} <- Known, Level =/= 1]).

known(Limiter, Keys, Node) ->
    [{Key, maps:get(level, Explained)} || Key <- Keys, #{owner := O, second := S} = Explained <- [weir:explain(Limiter, Key)],
                                          O =:= Node orelse S =:= Node].

parts([]) -> [];
parts(List) -> {Part, Rest} = lists:split(min(500, length(List)), List), [Part | parts(Rest)].

%% What was asked of it before it was held up it finds when it goes on. By then another one has given the bucket away.
held_up_with_questions(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(?C)),
    Owner = owner(Peers, ?KEY),
    [A, B] = Others = Peers -- [Owner],
    Before = metric(Owner, weir_allowed_total, [<<"login">>]),
    suspend(Owner),
    Asking = [call(A, ?MODULE, asker, [login, ?KEY]) || _ <- lists:seq(1, 20)],
    wait_until(asked, fun() -> waiting_for(A, Owner) =:= 20 end),
    ok = agree(Others),
    [{allow, _} = call(A, ?MODULE, answer_of, [Pid]) || Pid <- Asking],
    ?assertEqual(?C - 20, rest([B], login, ?KEY)),
    resume(Owner),
    see_each_other(Peers),
    ok = agree(Peers),
    ?assertEqual(Before, metric(Owner, weir_allowed_total, [<<"login">>])),
    ?assertEqual(0, rest(Peers, login, ?KEY)).

%% They are asked of the next one at once: nobody waits for the end of the timeout, and decides alone.
questions_to_an_owner_that_dies(_) ->
    Peers = start_all(3),
    ok = put_everywhere(Peers, login, spec(?C)),
    Owner = owner(Peers, ?KEY),
    [A, _] = Others = Peers -- [Owner],
    ok = call(Owner, sys, suspend, [weir_owner]),
    Asking = [call(A, ?MODULE, asker, [login, ?KEY]) || _ <- lists:seq(1, 20)],
    wait_until(asked, fun() -> waiting_for(A, Owner) =:= 20 end),
    kill(Owner),
    [{allow, _} = call(A, ?MODULE, answer_of, [Pid]) || Pid <- Asking],
    ok = agree(Others),
    ?assertEqual(?C - 20, rest(Others, login, ?KEY)),
    ?assertEqual(0, fallbacks(Others)).

%% 16384 questions may be under way; who comes then decides alone at once.
no_more_questions_than_allowed(_) ->
    Peers = start_all(2),
    ok = put_everywhere(Peers, login, spec(?C)),
    Owner = owner(Peers, ?KEY),
    [Other] = Peers -- [Owner],
    ok = call(Owner, sys, suspend, [weir_owner]),
    Asking = [call(Other, ?MODULE, in_background, [weir, check_many, [lists:duplicate(512, {login, ?KEY, 1})]]) || _ <- lists:seq(1, 40)],
    wait_until(all_asked, fun() -> fallbacks([Other]) + waiting_for(Other, Owner) >= 40 * 512 end),
    ?assertEqual(16384, waiting_for(Other, Owner)),
    ok = call(Owner, sys, resume, [weir_owner]),
    ?assertEqual([512], lists:usort([length(call(Other, ?MODULE, answer_of, [Pid])) || Pid <- Asking])),
    wait_until(settled, fun() -> waiting_for(Other, Owner) =:= 0 end).

%% A node with another secret is connected, and runs weir; it is no member, and nothing that it says counts.
strangers(_) ->
    [A, B] = Peers = start_all(2),
    ok = put_everywhere(Peers, login, spec(?C)),
    Stranger = keep(add(Peers, #{env => #{secret => <<"a secret that the others don't have">>}})),
    wait_until(refused, fun() -> maps:is_key(node_of(Stranger), maps:get(refused, call(A, weir_members, status, []))) end),
    Hash = call(A, weir_table, key_hash, [?KEY]),
    Far = call(A, weir_clock, now, []) + 3600000000000 * 100,
    Level = <<(weir_limiter:number(<<"login">>)):32/little, Hash:64/little, Far:64/little>>,
    To = {weir_owner, node_of(A)},
    [_ = call(Stranger, erlang, send, [To, {weir_owner, 1, node_of(Stranger), What}]) || What <- [hello, {told, Level}]],
    ?assertEqual([not_a_member], lists:usort([call(Stranger, gen_server, call, [To, {weir_owner, 1, node_of(Stranger), What}])
                                              || What <- [{levels, Level}, welcome, bye, {forget, Hash}]])),
    ?assertEqual(lists:sort([node_of(P) || P <- Peers]), lists:sort(call(A, weir_owner, sharing, []))),
    ?assertEqual(0, maps:get(level, call(A, weir, explain, [login, ?KEY]))),
    %% (The same is heard of a member.)
    _ = call(B, erlang, send, [To, {weir_owner, 1, node_of(B), {told, Level}}]),
    wait_until(told, fun() -> maps:get(level, call(A, weir, explain, [login, ?KEY])) =:= 100 end).

%% An answer that comes with the end of the time is thrown away: a caller has nothing in its mailbox that it didn't ask for.
late_answers(_) ->
    Peers = start_all(2),
    ok = put_everywhere(Peers, login, (spec(1000000000))#{rate => {1, second}, timeout => 1}),
    Owner = owner(Peers, ?KEY),
    [Other] = Peers -- [Owner],
    ?assertEqual(0, call(Other, ?MODULE, left_behind, [login, ?KEY, 300, 100])),
    Late = fallbacks([Other]),
    ct:pal("~b of 30000 late", [Late]),
    ?assert(Late > 0 andalso Late < 30000).

%% Messages that so many callers find after so many questions each.
left_behind(Limiter, Key, Callers, Count) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), [found || _ <- lists:seq(1, Count), after_check(Limiter, Key) > 0]} end)
            || _ <- lists:seq(1, Callers)],
    length(lists:append([receive {Pid, Found} -> Found end || Pid <- Pids])).

after_check(Limiter, Key) ->
    _ = weir:check(Limiter, Key),
    {message_queue_len, Length} = process_info(self(), message_queue_len),
    Length.

%% ---- asking in the background

asker(Limiter, Key) ->
    in_background(weir, check, [Limiter, Key]).

in_background(Module, Function, Args) ->
    spawn(fun() ->
                  Answer = apply(Module, Function, Args),
                  receive {what, From} -> From ! {self(), Answer} end
          end).

answer_of(Pid) ->
    Pid ! {what, self()},
    receive {Pid, Answer} -> Answer end.

%% ---- looking

%% The nodes, the heaviest for the key first.
ranked([], _Key) -> [];
ranked(Peers, Key) ->
    Hash = call(hd(Peers), weir_table, key_hash, [Key]),
    {Place, _} = call(hd(Peers), weir_nif, owner_rank, [Hash, list_to_tuple([weir_members:node_id(node_of(P)) || P <- Peers])]),
    First = lists:nth(Place, Peers),
    [First | ranked(Peers -- [First], Key)].

level(Peer) -> maps:get(level, explain(Peer, ?KEY)).

%% Questions that one node has sent to another and that have no answer yet.
waiting_for(Peer, Other) ->
    call(Peer, weir_exact_SUITE, sent_to, [node_of(Other)]).
