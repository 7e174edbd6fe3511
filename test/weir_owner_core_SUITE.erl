%% The owners' pure half, message by message: its limits, and what it does with questions and answers that are late or no good.
%% Shows R56 of doc/requirements.md, beside weir_owner_prop_SUITE.
-module(weir_owner_core_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(MOST, 16384).
-define(KEY, 16#8c0ffee123456789).

all() ->
    [waiting_has_a_limit, late_questions_are_not_decided, a_full_mailbox_is_refused, what_leaves_says_bye_last, what_owners_said_goes_with_them,
     serves_when_all_said_welcome, decides_nothing_once_it_leaves, decides_nothing_until_it_has_stopped, gives_to_who_comes_while_it_leaves, gives_to_who_says_hello,
     greets_whom_it_meets, levels_have_a_form, levels_are_taken, answers_have_a_form].

%% A node that joins has nobody to ask: what its callers want waits, but not more than fits.
waiting_has_a_limit(_) ->
    Own = place_of(a@x, joining()),
    Full = lists:foldl(fun(Batch, Core) ->
                               Asked = asked(512, Batch, 5000),
                               {Decides, [{decide, {own, Asked}, _, _, 0}]} = handle({decide, Asked, 0}, 100, Core),
                               {Waits, Effects} = handle({decided, {own, Asked}, [Own || _ <- Asked], []}, 100, Decides),
                               ?assertEqual([], [E || {answer, _, _} = E <- Effects]),
                               Waits
                       end, joining(), lists:seq(1, ?MOST div 512)),
    ?assertMatch(#{waiting := ?MOST}, weir_owner_core:counts(Full)),
    [One] = asked(1, 99, 5000),
    {Decides, _} = handle({decide, [One], 0}, 100, Full),
    {Refused, Effects} = handle({decided, {own, [One]}, [Own], []}, 100, Decides),
    ?assertEqual([{answer, One, here}], Effects),
    ?assertMatch(#{waiting := ?MOST}, weir_owner_core:counts(Refused)).

%% Whoever asked has gone by then.
late_questions_are_not_decided(_) ->
    [Late, InTime] = asked(1, 1, 100) ++ asked(1, 2, 101),
    {_, Effects} = handle({decide, [Late, InTime], 0}, 100, serving()),
    ?assertMatch([{decide, {own, [InTime]}, [_], _, _}], Effects),
    ?assertMatch({_, []}, handle({decide, [Late], 0}, 100, serving())).

a_full_mailbox_is_refused(_) ->
    [One] = asked(1, 1, 5000),
    ?assertMatch({_, [{decide, _, _, _, _}]}, handle({decide, [One], 10000}, 100, serving())),
    ?assertMatch({_, [{answer, One, here}]}, handle({decide, [One], 10001}, 100, serving())).

%% All have the levels before one of them is told that this node is gone.
what_leaves_says_bye_last(_) ->
    {Leaving, Effects} = handle({leave, from, [b@x, c@x]}, 200, serving()),
    ?assertMatch([{give, {leave, from}, [b@x, c@x], _, _, [{left, _}], none}], [E || E <- Effects, element(1, E) =:= give]),
    {Gave, Next} = handle({gave, {leave, from}, normal}, 300, Leaving),
    ?assertMatch([{give, {bye, from}, [b@x, c@x], _, _, [], bye}], [E || E <- Next, element(1, E) =:= give]),
    ?assertEqual([], [E || {reply, from, _} = E <- Effects ++ Next]),
    {_, Last} = handle({gave, {bye, from}, normal}, 400, Gave),
    ?assertEqual([{reply, from, ok}], Last).

%% A key that one of them denied may have another owner now, who knows of a reset.
what_owners_said_goes_with_them(_) ->
    Forgets = fun(Message) -> lists:member({forget, all}, element(2, handle(Message, 200, serving()))) end,
    ?assertEqual([true, true, true], [Forgets(M) || M <- [{down, c@x}, {call, from, c@x, bye}, {member, d@x, hello}]]),
    ?assertEqual([false, false], [Forgets(M) || M <- [{member, c@x, hello}, {member, c@x, {told, <<>>}}]]).

serves_when_all_said_welcome(_) ->
    {One, _} = handle({call, from, b@x, welcome}, 50, joining()),
    ?assertEqual(joining, weir_owner_core:phase(One)),
    ?assertEqual(0, decides_from(One)),
    {All, _} = handle({call, from, c@x, welcome}, 60, One),
    ?assertEqual(serving, weir_owner_core:phase(All)),
    ?assertEqual(place_of(a@x, All), decides_from(All)).

decides_nothing_once_it_leaves(_) ->
    {Leaving, _} = handle({leave, from, [b@x, c@x]}, 200, serving()),
    ?assertEqual(0, decides_from(Leaving)),
    ?assertEqual([b@x, c@x], lists:sort(weir_owner_core:sharing(Leaving))).

%% Nobody is a member then, but callers are still there. One that left for good goes on alone.
decides_nothing_until_it_has_stopped(_) ->
    {Leaving, _} = handle({leave, from, [b@x, c@x]}, 200, serving()),
    Seen = #{node => a@x, connected => [], unheard => [], left => stop},
    {Stopping, []} = handle({tick, Seen}, 300, Leaving),
    ?assertEqual(0, decides_from(Stopping)),
    ?assertEqual([b@x, c@x], lists:sort(weir_owner_core:sharing(Stopping))),
    {Alone, _} = handle({tick, Seen#{left := bye}}, 300, Leaving),
    ?assertEqual([a@x], weir_owner_core:sharing(Alone)),
    ?assertEqual(place_of(a@x, Alone), decides_from(Alone)).

gives_to_who_comes_while_it_leaves(_) ->
    Id = weir_members:node_id(d@x),
    {_, Before} = handle({leave, from, [b@x, c@x, d@x]}, 200, serving()),
    ?assertMatch([{give, {leave, from}, [b@x, c@x, d@x], _, _, [{left, _}, {joined, Id}], none}], gives(Before)),
    %% Or that says hello in the midst of it: what is under way begins anew.
    {Leaving, _} = handle({leave, from, [b@x, c@x]}, 200, serving()),
    {_, Midst} = handle({member, d@x, hello}, 300, Leaving),
    ?assertMatch([{give, {leave, from}, [b@x, c@x, d@x], _, _, [{left, _}, {joined, Id}], none}], gives(Midst)),
    ?assert(lists:member({stop_giving, {leave, from}}, Midst)).

gives_to_who_says_hello(_) ->
    Id = weir_members:node_id(d@x),
    {_, Effects} = handle({member, d@x, hello}, 200, serving()),
    ?assertMatch([{give, {joined, d@x}, [d@x], _, _, [{joined, Id}], welcome}], gives(Effects)).

%% Those that were cut off. One of which nothing is heard is not greeted: it wouldn't hear it.
greets_whom_it_meets(_) ->
    Seen = #{node => a@x, connected => [b@x, c@x, d@x, e@x], unheard => [e@x], left => no},
    {_, Effects} = handle({tick, Seen}, 200, serving()),
    ?assertEqual([d@x], [Node || {say, Node, hello} <- Effects]).

levels_are_taken(_) ->
    One = <<1:32/little, ?KEY:64/little, 5:64/little>>,
    ?assertMatch({_, [{raise, One}, {reply, from, ok}]}, handle({call, from, b@x, {levels, One}}, 50, joining())).

levels_have_a_form(_) ->
    Raised = fun(Levels) -> [L || {raise, L} <- element(2, handle({member, b@x, {told, Levels}}, 200, serving()))] end,
    One = <<1:32/little, ?KEY:64/little, 5:64/little>>,
    Most = binary:copy(One, 1024),
    ?assertEqual([One], Raised(One)),
    ?assertEqual([Most], Raised(Most)),
    [?assertEqual([], Raised(Bad)) || Bad <- [<<>>, <<One/binary, 0>>, <<Most/binary, One/binary>>, not_levels]].

%% One that isn't an outcome is no answer: the question is asked again.
answers_have_a_form(_) ->
    Good = {true, 10, 9, 0, 0, 5, ok},
    Told = fun(Answer) ->
                   [One] = asked(1, 1, 5000),
                   {Decides, _} = handle({decide, [One], 0}, 100, serving()),
                   Place = place_of(b@x, Decides),
                   {Asks, [{ask, b@x, Batch, [_]}]} = handle({decided, {own, [One]}, [Place], []}, 100, Decides),
                   {Sent, []} = handle({sent, Batch, {1, 1}}, 100, Asks),
                   {Got, Effects} = handle({member, b@x, {answers, Batch, [Answer]}}, 110, Sent),
                   {[Outcome || {answer, _, Outcome} <- Effects], maps:get(waiting, weir_owner_core:counts(Got))}
           end,
    ?assertEqual({[Good], 0}, Told(Good)),
    [?assertEqual({Bad, {[], 1}}, {Bad, Told(Bad)})
     || Bad <- [not_yet, unknown, {true, 10, 11, 0, 0, 5, ok}, {true, 10, -1, 0, 0, 5, ok}, {false, 10, 0, 0, 0, 5, limited},
                {true, 1 bsl 60, 0, 0, 0, 5, ok}, {true, 10, 9, -1, 0, 5, ok}, {yes, 10, 9, 0, 0, 5, ok}, {true, 10, 9, 0, 0, 5, "ok"}]].

%% ---- a core

gives(Effects) -> [E || E <- Effects, element(1, E) =:= give].

%% By which place among the owners it decides; 0 if it decides nothing.
decides_from(Core) ->
    [One] = asked(1, 1, 5000),
    {_, [{decide, _, _, _, Place}]} = handle({decide, [One], 0}, 100, Core),
    Place.

handle(Message, Now, Core) -> weir_owner_core:handle(Message, Now, Core).

joining() ->
    Core = weir_owner_core:new(#{node => a@x, now => 0, peer_timeout => 2000}),
    element(1, handle({look, [b@x, c@x]}, 0, Core)).

serving() ->
    Welcomed = lists:foldl(fun(Node, Core) -> element(1, handle({call, from, Node, welcome}, 50, Core)) end, joining(), [b@x, c@x]),
    serving = weir_owner_core:phase(Welcomed),
    Welcomed.

asked(Count, Batch, Deadline) ->
    [{make_ref(), {Batch * 1000 + Place, 1, ?KEY, 1, Deadline}} || Place <- lists:seq(1, Count)].

place_of(Node, Core) ->
    Names = weir_owner_core:sharing(Core),
    length(lists:takewhile(fun(Name) -> Name =/= Node end, Names)) + 1.
