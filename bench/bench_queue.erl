%% @doc The thesis' queue: merging and frequency analysis, as linked lists in Erlang (thesis_lists) and packed (weir_queue).
%%
%% Each setting has as many different queues as hold some 200,000 births, and takes them in turn: with the same two again and
%% again, a processor learns by heart which birth comes first. They lie in persistent terms, so that no collection copies
%% them. Every variant has a process of its own, with the heap that processes have by default, and the processes take turns,
%% a chunk of calls each. Merged queues become a node's state: what one chunk merged is kept until the next one has. What it
%% costs to merge and forget is measured beside it. All variants' results are compared before anything is timed.
-module(bench_queue).

-export([main/1]).

-define(SIZES, [10, 100, 1000, 10000]).
-define(NEIGHBOURS, 29).
-define(THRESHOLD_MS, 2400).
-define(START_MS, 1770000000000).
%% Births in all queues of a setting, and what a chunk is about, in births. How much a chunk keeps decides what the collector has to
%% copy, so the lists' figure with kept results changes with it; the one of forgotten results doesn't.
-define(BIRTHS, 200000).
-define(CHUNK, 20000).

%% Writes the section of the report to the file.
-spec main([string()]) -> ok.
main([Length, File]) ->
    {ok, _} = application:ensure_all_started(weir),
    Rounds = case Length of "quick" -> 15; _ -> 150 end,
    _ = rand:seed(exsss, 20210601),
    Settings = [{busy, Size, Size} || Size <- ?SIZES] ++ [{busy, 1000, 33}, {hours, 1000, 1000}, {idle, 1000, 1000}],
    Merges = [merges(Kind, Size, Other, Rounds) || {Kind, Size, Other} <- Settings],
    Analyses = [analyses(Size, Rounds) || Size <- ?SIZES],
    ok = file:write_file(File, [text(), bench_report:table(merge_heads(), Merges), analysis_text(),
                                bench_report:table(analysis_heads(), Analyses)]).

%% ---- merging

merges(Kind, Size, OtherSize, Rounds) ->
    bench_report:say("merging queues of ~b and ~b births, ~s", [Size, OtherSize, title(Kind)]),
    Interval = interval_ms(Size),
    Births = Size + OtherSize,
    Pairs = [{queue(Kind, Interval, Size), queue(Kind, Interval, OtherSize)} || _ <- lists:seq(1, max(2, ?BIRTHS div Births))],
    Packed = [{pack(Interval, A), pack(Interval, B)} || {A, B} <- Pairs],
    lists:foreach(fun({Lists, Binaries}) -> same_merge(Interval, Lists, Binaries) end,
                  lists:zip(lists:sublist(Pairs, 20), lists:sublist(Packed, 20))),
    InLists = fun({A, B}) -> thesis_lists:merge(Interval, A, B, true) end,
    Variants = [{lists, keep(lists, Pairs), InLists, kept},
                {forgotten, keep(forgotten, Pairs), InLists, forgotten},
                {packed, keep(packed, Packed), fun({A, B}) -> weir_queue:merge(A, B, true) end, kept}],
    #{lists := Lists, forgotten := Forgotten, packed := InPacked} = measure(Variants, max(1, ?CHUNK div Births), Rounds),
    ListBytes = mean([bytes(A) || {A, _} <- Pairs]),
    PackedBytes = mean([byte_size(A) || {A, _} <- Packed]),
    [[integer_to_list(Size), " and ", integer_to_list(OtherSize), ", ", title(Kind)],
     cell(Lists, Births), cell(Forgotten, Births), cell(InPacked, Births), ratio(Forgotten, InPacked), ratio(Lists, InPacked),
     bench_report:number(ListBytes), bench_report:number(PackedBytes), bench_report:ratio(ListBytes, PackedBytes)].

same_merge(Interval, {A, B}, {PackedA, PackedB}) ->
    {Merged, Updates} = thesis_lists:merge(Interval, A, B, true),
    {pack(Interval, Merged), pack(Interval, Updates)} =:= weir_queue:merge(PackedA, PackedB, true)
        orelse error({merged_differently, A, B}).

merge_heads() ->
    ["births", "lists", "lists, forgotten", "packed", "faster than lists, forgotten", "than lists", "lists, bytes",
     "packed, bytes", "smaller"].

text() ->
    "\n## The thesis' queue\n\nLinked lists of `{Birth, Death}` in Erlang (`bench/thesis_lists.erl`) and `weir_queue`, medians of all "
    "chunks (fastest chunk), and the ratios of both. Merging into the local state, with the updates: nanoseconds a birth of both queues, collections included; "
    "results are kept for a while, as a node's state is, or forgotten at once. "
    "Busy: births within a minute, one run. Within hours: 3.6 s apart. Idle: each birth found the bucket empty, and is a run of "
    "its own. Bytes are those of one queue: `erts_debug:flat_size/1` in bytes, and `byte_size/1`.\n\n".

%% ---- analysis

%% Window and threshold of the thesis' Table 4.2: a node's share of the capacity.
analyses(Size, Rounds) ->
    bench_report:say("frequency analysis of ~b delta states of ~b births", [?NEIGHBOURS, Size]),
    Window = max(1, Size div (?NEIGHBOURS + 1)),
    Users = [[{Node, queue(busy, interval_ms(Size), Size)} || Node <- lists:seq(1, ?NEIGHBOURS)]
             || _ <- lists:seq(1, max(2, ?BIRTHS div (?NEIGHBOURS * Size)))],
    Newest = [[{Node, lists:reverse(Queue)} || {Node, Queue} <- User] || User <- Users],
    Packed = [[{Node, pack(interval_ms(Size), Queue)} || {Node, Queue} <- User] || User <- Users],
    lists:foreach(fun({Old, New, Binaries}) -> same_analysis(Old, New, Binaries, Window) end, lists:zip3(Users, Newest, Packed)),
    Variants = [{oldest, keep(oldest, Users), fun(User) -> thesis_lists:frequent(User, Window, ?THRESHOLD_MS) end, forgotten},
                {newest, keep(newest, Newest), fun(User) -> thesis_lists:frequent_newest_first(User, Window, ?THRESHOLD_MS) end, forgotten},
                {packed, keep(packed, Packed), fun(User) -> weir_queue:analyse(User, Window, ?THRESHOLD_MS) end, forgotten}],
    #{oldest := Oldest, newest := New, packed := InPacked} = measure(Variants, max(2, 2 * ?CHUNK div (Size + 1000)), Rounds),
    [[integer_to_list(Size), ", window ", integer_to_list(Window)],
     cell(Oldest, 1), cell(New, 1), cell(InPacked, 1), ratio(Oldest, InPacked), ratio(New, InPacked)].

same_analysis(Oldest, Newest, Packed, Window) ->
    Due = weir_queue:analyse(Packed, Window, ?THRESHOLD_MS),
    Due =:= thesis_lists:frequent(Oldest, Window, ?THRESHOLD_MS) orelse error({analysed_differently, oldest, Oldest}),
    Due =:= thesis_lists:frequent_newest_first(Newest, Window, ?THRESHOLD_MS) orelse error({analysed_differently, newest, Newest}).

analysis_heads() ->
    ["births each", "lists, oldest first", "lists, newest first", "packed", "faster than oldest first", "than newest first"].

analysis_text() ->
    ["\nFrequency analysis of a user's ", integer_to_list(?NEIGHBOURS), " delta states in one call, nanoseconds a call. Merging and "
     "refilling need lists that are oldest first; newest first is what analysis alone would choose.\n\n"].

%% ---- queues

title(busy) -> "busy";
title(hours) -> "within hours";
title(idle) -> "idle".

%% The refill rate of the thesis' Table 4.1, 0.001c tokens a second.
interval_ms(Size) -> 1000000 div Size.

queue(Kind, Interval, Size) -> queue(Kind, Interval, apart(Kind, Size), Size, ?START_MS, ?START_MS, []).

queue(_Kind, _Interval, _Apart, 0, _Birth, _Death, Elements) ->
    lists:reverse(Elements);
queue(Kind, Interval, Apart, Left, Birth, Death, Elements) ->
    B = Birth + rand:uniform(Apart),
    D = Death + Interval + idle(Kind, Interval),
    queue(Kind, Interval, Apart, Left - 1, B, D, [{B, D} | Elements]).

apart(hours, _Size) -> 7200;
apart(_, Size) -> 120000 div Size.

idle(idle, Interval) -> rand:uniform(2 * Interval);
idle(_, _Interval) -> 0.

pack(IntervalMs, Queue) ->
    weir_queue:from_list(IntervalMs * 1000000, [{Birth, Death * 1000000} || {Birth, Death} <- Queue]).

bytes(List) -> erts_debug:flat_size(List) * erlang:system_info(wordsize).

mean(Numbers) -> lists:sum(Numbers) / length(Numbers).

keep(Name, Items) ->
    Key = {?MODULE, Name},
    ok = persistent_term:put(Key, list_to_tuple(Items)),
    Key.

%% ---- measuring

%% #{variant => {median, fastest}}, nanoseconds a call
measure(Variants, Calls, Rounds) ->
    Workers = [{Name, spawn_link(fun() -> worker(persistent_term:get(Key), Call, Keep, []) end)}
               || {Name, Key, Call, Keep} <- Variants],
    Chunks = [{Name, chunk(Worker, Round * Calls, Calls)} || Round <- lists:seq(0, Rounds), {Name, Worker} <- Workers],
    lists:foreach(fun({_, Worker}) -> Worker ! stop end, Workers),
    maps:from_list([begin
                        All = [Ns || {N, Ns} <- Chunks, N =:= Name],
                        {Name, {bench_report:median(All), lists:min(All)}}
                    end || {Name, _} <- Workers]).

cell({Median, Fastest}, Each) ->
    [bench_report:number(Median / Each), " (", bench_report:number(Fastest / Each), ")"].

%% Of the medians, and of the fastest chunks.
ratio({Median, Fastest}, {OtherMedian, OtherFastest}) ->
    [bench_report:ratio(Median, OtherMedian), " (", bench_report:ratio(Fastest, OtherFastest), ")"].

chunk(Worker, From, Calls) ->
    Worker ! {self(), From, Calls},
    receive {Worker, Ns} -> Ns / Calls end.

worker(Items, Call, Keep, Kept) ->
    receive
        {Owner, From, Calls} ->
            Start = erlang:monotonic_time(nanosecond),
            Results = calls(Items, From, Calls, Call, Keep, []),
            Owner ! {self(), erlang:monotonic_time(nanosecond) - Start},
            worker(Items, Call, Keep, Results);
        stop ->
            Kept
    end.

calls(_Items, _At, 0, _Call, _Keep, Kept) ->
    Kept;
calls(Items, At, Left, Call, Keep, Kept) ->
    Result = Call(element(At rem tuple_size(Items) + 1, Items)),
    calls(Items, At + 1, Left - 1, Call, Keep, case Keep of kept -> [Result | Kept]; forgotten -> Kept end).
