%% weir_queue against the thesis' linked lists (bench/thesis_lists.erl): the same elements, whatever is merged.
%%
%% WEIR_CASES sets the number of cases of each property (default 300).
%% Shows R21 of doc/requirements.md.
-module(weir_queue_SUITE).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(START_MS, 1770000000000).
-define(MS, 1000000).

suite() ->
    [{timetrap, {hours, 1}}].

all() ->
    [merges_are_the_lists, analyses_are_the_lists, refills_are_the_lists, appends_are_the_lists, the_thesis_example,
     equal_queues_are_equal_binaries, large_queues_are_merged_alike, large_lists_go_there_and_back, any_bytes_are_answered,
     wrong_arguments_are_explained, limits_are_explained].

init_per_suite(Config) ->
    {ok, thesis_lists, Beam} = compile:file(filename:join([weir_test:root(), "bench", "thesis_lists.erl"]), [binary, report]),
    {module, thesis_lists} = code:load_binary(thesis_lists, "thesis_lists", Beam),
    Config.

end_per_suite(_) ->
    _ = code:purge(thesis_lists),
    true = code:delete(thesis_lists),
    ok.

merges_are_the_lists(_) -> holds(prop_merge()).
analyses_are_the_lists(_) -> holds(prop_analyse()).
refills_are_the_lists(_) -> holds(prop_refill()).
appends_are_the_lists(_) -> holds(prop_append()).
any_bytes_are_answered(_) -> holds(prop_bytes()).

holds(Property) ->
    weir_test:holds(Property, [{max_size, 60}]).

%% ---- properties

prop_merge() ->
    ?FORALL({T, IntoLocal}, {interval(), boolean()},
            ?FORALL({Local, Other}, two_lists(T),
                    begin
                        {Merged, Updates} = weir_queue:merge(weir_queue:from_list(T, Local), weir_queue:from_list(T, Other), IntoLocal),
                        Expected = thesis_lists:merge(T, Local, Other, IntoLocal),
                        same(Expected, {weir_queue:to_list(Merged), weir_queue:to_list(Updates)})
                            andalso same(weir_queue:from_list(T, element(1, Expected)), Merged)
                            andalso same(length(element(2, Expected)), weir_queue:size(Updates))
                    end)).

prop_analyse() ->
    ?FORALL({T, Window, ThresholdMs}, {interval(), range(1, 8), oneof([0, 1, range(0, 3000), 16#ffffffff])},
            ?FORALL(Lists, list(births(T)),
                    begin
                        Deltas = lists:zip(lists:seq(1, length(Lists)), Lists),
                        Packed = [{I, weir_queue:from_list(T, L)} || {I, L} <- Deltas],
                        Newest = [{I, lists:reverse(L)} || {I, L} <- Deltas],
                        Due = weir_queue:analyse(Packed, Window, ThresholdMs),
                        same(thesis_lists:frequent(Deltas, Window, ThresholdMs), Due)
                            andalso same(thesis_lists:frequent_newest_first(Newest, Window, ThresholdMs), Due)
                    end)).

prop_refill() ->
    ?FORALL(T, interval(),
            ?FORALL({List, More}, {births(T), choose(-2, 2)},
                    lists:all(fun(Now) ->
                                      same(thesis_lists:refill(List, Now),
                                             weir_queue:to_list(weir_queue:refill(weir_queue:from_list(T, List), Now)))
                              end, [0 | [Death + More || {_, Death} <- List]]))).

%% As a node does it: refilled first. In the lists' own unit, a millisecond.
prop_append() ->
    ?FORALL({TMs, Waits}, {range(1, 2000), list(oneof([0, 1, range(0, 5000)]))},
            begin
                {_, List, Packed} =
                    lists:foldl(fun(Wait, {Now, L, Q}) ->
                                        {Now + Wait, thesis_lists:append(TMs, thesis_lists:refill(L, Now + Wait), Now + Wait),
                                         weir_queue:append(weir_queue:refill(Q, (Now + Wait) * ?MS), Now + Wait)}
                                end, {?START_MS, [], weir_queue:new(TMs * ?MS)}, Waits),
                same([{B, D * ?MS} || {B, D} <- List], weir_queue:to_list(Packed))
            end).

%% Whatever the bytes, each function answers or raises badarg.
prop_bytes() ->
    ?FORALL({Bytes, Q}, {oneof([binary(), damaged()]), ?LET(L, births(?MS), weir_queue:from_list(?MS, L))},
            lists:all(fun(Fun) -> try _ = Fun(), true catch error:badarg -> true end end,
                      [fun() -> Bytes = weir_queue:from_list(interval_of(Bytes), weir_queue:to_list(Bytes)) end,
                       fun() -> weir_queue:merge(Bytes, Q, true) end, fun() -> weir_queue:merge(Q, Bytes, false) end,
                       fun() -> weir_queue:refill(Bytes, ?START_MS * ?MS) end, fun() -> weir_queue:append(Bytes, ?START_MS) end,
                       fun() -> weir_queue:analyse([{n, Bytes}], 2, 100) end, fun() -> weir_queue:size(Bytes) end])).

same(Expected, Expected) ->
    true;
same(Expected, Got) ->
    io:format("expected ~p~n     got ~p~n", [Expected, Got]),
    false.

%% ---- generators

interval() -> oneof([1, 7, ?MS, 142857143, 1000000000]).

births(T) ->
    ?LET({Spread, Idle, Start, Steps}, {oneof([1, 3, 1000, 100000, 20000000]), oneof([0, 10, 100]), range(0, 3), list({range(1, 5), fraction(), range(1, 100), fraction()})},
         walk(T, Spread, Idle, ?START_MS + Start, (?START_MS * ?MS) + Start * T, Steps)).

fraction() -> float(0.0, 1.0).

%% A fifth of the births is equal to the one before; Idle percent of them found the bucket idle.
walk(_T, _Spread, _Idle, _Birth, _Death, []) -> [];
walk(T, Spread, Idle, Birth, Death, [{Step, Far, Chance, Long} | Steps]) ->
    NextBirth = case Step of 1 -> Birth; _ -> Birth + 1 + round(Far * (Spread - 1)) end,
    NextDeath = Death + T + case Chance =< Idle of true -> round(Long * 3 * T); false -> 0 end,
    [{Birth, Death} | walk(T, Spread, Idle, NextBirth, NextDeath, Steps)].

%% Two queues of their own, or one and a part of it with later deaths.
two_lists(T) ->
    oneof([{births(T), births(T)},
           ?LET({List, Marks}, {births(T), vector(200, range(1, 100))}, {List, later(T, 0, List, Marks)})]).

later(T, Later, [{Birth, Death} | List], [Mark | Marks]) ->
    Now = case Mark =< 5 of true -> Later + T; false -> Later end,
    case Mark =< 60 of
        true -> [{Birth, Death + Now} | later(T, Now, List, Marks)];
        false -> later(T, Now, List, Marks)
    end;
later(_, _, _, _) ->
    [].

damaged() ->
    ?LET({List, At, With}, {births(?MS), non_neg_integer(), byte()},
         begin
             Queue = weir_queue:from_list(?MS, List),
             <<Before:(At rem byte_size(Queue))/binary, _, After/binary>> = Queue,
             <<Before/binary, With, After/binary>>
         end).

interval_of(<<_:20/binary, T:64/signed-little, _/binary>>) -> T;
interval_of(_) -> 1.

%% ---- cases

the_thesis_example(_) ->
    A = weir_queue:from_list(20, [{1, 21}, {3, 41}, {5, 61}]),
    B = weir_queue:from_list(20, [{2, 22}, {4, 42}]),
    {Merged, Updates} = weir_queue:merge(A, B, true),
    ?assertEqual([{1, 21}, {2, 41}, {3, 61}, {4, 81}, {5, 101}], weir_queue:to_list(Merged)),
    ?assertEqual([{2, 41}, {3, 61}, {4, 81}, {5, 101}], weir_queue:to_list(Updates)).

equal_queues_are_equal_binaries(_) ->
    Births = [?START_MS + 60 * I || I <- lists:seq(1, 1000)],
    Appended = lists:foldl(fun(Birth, Q) -> weir_queue:append(Q, Birth) end, weir_queue:new(1000 * ?MS), Births),
    Elements = weir_queue:to_list(Appended),
    ?assertEqual(Births, [Birth || {Birth, _} <- Elements]),
    ?assertEqual(Appended, weir_queue:from_list(1000 * ?MS, Elements)),
    ?assertEqual(40 + 2 * 1000, byte_size(Appended)),
    ?assertEqual(1000, weir_queue:size(Appended)),
    %% Two halves, each in a form of its own, are the whole; and a part of a binary is as good as a binary.
    {Even, Odd} = lists:partition(fun({Birth, _}) -> Birth rem 120 =:= 0 end, Elements),
    Halves = [begin
                  <<_, Part/binary>> = <<0, (weir_queue:from_list(1000 * ?MS, Half))/binary>>,
                  Part
              end || Half <- [Even, Odd]],
    {Whole, _} = apply(weir_queue, merge, Halves ++ [true]),
    ?assertEqual(Appended, Whole),
    %% Nothing new: the local queue itself.
    ?assertEqual({Appended, weir_queue:new(1000 * ?MS)}, weir_queue:merge(Appended, hd(Halves), true)),
    ?assertEqual(weir_queue:new(1000 * ?MS), weir_queue:refill(Appended, 1 bsl 62)),
    ?assertEqual(Appended, weir_queue:refill(Appended, 0)).

%% Around the size at which a call moves to a dirty scheduler, and far above.
large_queues_are_merged_alike(_) ->
    T = 10 * ?MS,
    [begin
         A = busy(N, T, Idle, 1),
         B = busy(N, T, Idle, 2),
         Packed = [weir_queue:from_list(T, L) || L <- [A, B]],
         [begin
              {Merged, Updates} = apply(weir_queue, merge, Packed ++ [IntoLocal]),
              ?assertEqual(thesis_lists:merge(T, A, B, IntoLocal), {weir_queue:to_list(Merged), weir_queue:to_list(Updates)})
          end || IntoLocal <- [true, false]],
         {_, Half} = lists:nth(N div 2, A),
         ?assertEqual(thesis_lists:refill(A, Half), weir_queue:to_list(weir_queue:refill(hd(Packed), Half))),
         ?assertEqual(N + 1, weir_queue:size(weir_queue:append(hd(Packed), ?START_MS + 3 * N)))
     end || {N, Idle} <- [{15994, 0}, {15995, 0}, {100000, 0}, {1454, 1}, {1455, 1}, {20000, 1}]],
    ok.

large_lists_go_there_and_back(_) ->
    [begin
         List = busy(N, T, 0, 1),
         ?assertEqual(List, weir_queue:to_list(weir_queue:from_list(T, List)))
     end || N <- [3998, 3999, 4000, 4001, 200000], T <- [1, 10 * ?MS]],
    ok.

busy(N, T, Idle, Node) ->
    [{?START_MS + 3 * I + erlang:phash2({Node, I}, 3), ?START_MS * ?MS + I * (T + Idle)} || I <- lists:seq(1, N)].

wrong_arguments_are_explained(_) ->
    Q = weir_queue:new(1000),
    [weir_test:fault(fun() -> weir_queue:new(T) end, ["interval"]) || T <- [0, -1, 1 bsl 60 + 1, 1 bsl 80, 1.0, a]],
    [weir_test:fault(Fun, ["not a queue"])
     || Bad <- [<<>>, <<1>>, a, [], <<Q/binary, 0>>, <<1:1>>, binary:part(Q, 0, 27)],
        Fun <- [fun() -> weir_queue:merge(Bad, Q, true) end, fun() -> weir_queue:merge(Q, Bad, false) end,
                fun() -> weir_queue:refill(Bad, 1) end, fun() -> weir_queue:append(Bad, 1) end, fun() -> weir_queue:size(Bad) end,
                fun() -> weir_queue:to_list(Bad) end, fun() -> weir_queue:analyse([{n, Q}, {m, Bad}], 1, 1) end]],
    _ = weir_test:fault(fun() -> weir_queue:merge(Q, weir_queue:new(1001), true) end, ["emission interval"]),
    _ = weir_test:fault(fun() -> weir_queue:merge(Q, Q, yes) end, ["true or false"]),
    [weir_test:fault(fun() -> weir_queue:from_list(1000, Bad) end, ["{BirthMs, DeathNs}"])
     || Bad <- [[a], [{1}], [{1, 2, 3}], [{1, a}], [{1.0, 2}], [{1, 2000}, 1], [{1 bsl 64, 1}]]],
    [weir_test:fault(fun() -> weir_queue:from_list(1000, Bad) end, ["list"]) || Bad <- [a, [{1, 2000} | a], {1, 2}]],
    [weir_test:fault(fun() -> weir_queue:from_list(1000, Bad) end, ["oldest first"])
     || Bad <- [[{2, 1000}, {1, 2000}], [{1, 1000}, {2, 1999}]]],
    [weir_test:fault(fun() -> weir_queue:append(Q, Bad) end, ["1970"]) || Bad <- [-1, 1 bsl 62, 1 bsl 70, a, 1.0]],
    [weir_test:fault(fun() -> weir_queue:refill(Q, Bad) end, ["ns"]) || Bad <- [1 bsl 63, a, 1.0]],
    [weir_test:fault(fun() -> weir_queue:analyse(Bad, 1, 1) end, ["{Neighbour, Queue}"]) || Bad <- [[Q], [{n}], [{n, Q, 1}]]],
    [weir_test:fault(fun() -> weir_queue:analyse(Bad, 1, 1) end, ["list"]) || Bad <- [a, Q, [{n, Q} | b]]],
    [weir_test:fault(fun() -> weir_queue:analyse([{n, Q}], Bad, 1) end, ["window"]) || Bad <- [0, -1, 1 bsl 32, a]],
    [weir_test:fault(fun() -> weir_queue:analyse([{n, Q}], 1, Bad) end, ["threshold"]) || Bad <- [-1, 1 bsl 32, a]],
    ok.

limits_are_explained(_) ->
    Q = weir_queue:append(weir_queue:new(1000), 0),
    _ = weir_test:fault(fun() -> weir_queue:append(Q, 1 bsl 32) end, ["49.7 days"]),
    Late = weir_queue:from_list(1000, [{1 bsl 32, 1 bsl 50}]),
    _ = weir_test:fault(fun() -> weir_queue:merge(Q, Late, true) end, ["49.7 days"]),
    End = weir_queue:from_list(1000, [{1, 1 bsl 62 - 1}]),
    _ = weir_test:fault(fun() -> weir_queue:merge(End, Q, false), weir_queue:merge(End, End, false) end, ["2116"]),
    Many = [{I, I * 1000} || I <- lists:seq(1, 1 bsl 20)],
    Full = weir_queue:from_list(1000, Many),
    ?assertEqual(1 bsl 20, weir_queue:size(Full)),
    _ = weir_test:fault(fun() -> weir_queue:from_list(1000, [{0, 0} | Many]) end, ["1048576"]),
    _ = weir_test:fault(fun() -> weir_queue:append(Full, 1 bsl 21) end, ["1048576"]),
    _ = weir_test:fault(fun() -> weir_queue:merge(Full, Full, false) end, ["1048576"]),
    ?assertEqual({Full, weir_queue:new(1000)}, weir_queue:merge(Full, Full, true)),
    ?assertEqual(1024, length(weir_queue:analyse([{I, Q} || I <- lists:seq(1, 1024)], 1, 1))),
    _ = weir_test:fault(fun() -> weir_queue:analyse([{I, Q} || I <- lists:seq(1, 1025)], 1, 1) end, ["1024"]),
    ok.
