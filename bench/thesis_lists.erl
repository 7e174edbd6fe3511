%% @doc The thesis' queue as it has it, a linked list of {time-of-birth, time-of-death}: what weir_queue is measured against.
%%
%% The listings of section 4.2 as an Erlang programmer would write them: one pass, accumulators reversed at the end, elements
%% that don't change are not made anew, and once nothing more can change what is left is taken as it is. Repaired as
%% c_src/queue/packed_queue.hpp says. Births and deaths are integers; all deaths and T have one unit, all births another or
%% the same. Lists are oldest first, as merging needs them, where it isn't said otherwise.
-module(thesis_lists).

-export([merge/4, refill/2, append/3, frequent/3, frequent_newest_first/3]).

-export_type([queue/0]).

-type queue() :: [{Birth :: integer(), Death :: integer()}].

%% Listings 4.2 and 4.3, and the elements that are new to the local queue or have a new death.
-spec merge(T :: pos_integer(), queue(), queue(), IntoLocalState :: boolean()) -> {Merged :: queue(), Updates :: queue()}.
merge(T, Local, Other, true) -> into_local(T, Local, Other, 0, [], []);
merge(T, Local, Other, false) -> into_delta(T, Local, Other, 0, [], []).

%% Next: the least death that the next element can have.
into_local(T, [{BL, DL} = L | Local], [{BO, _} | _] = Other, Next, M, U) when BL < BO ->
    case DL >= Next of
        true -> into_local(T, Local, Other, DL + T, [L | M], U);
        false -> E = {BL, Next}, into_local(T, Local, Other, Next + T, [E | M], [E | U])
    end;
into_local(T, [{BL, _} | _] = Local, [{BO, DO} = O | Other], Next, M, U) when BO < BL ->
    case DO >= Next of
        true -> into_local(T, Local, Other, DO + T, [O | M], [O | U]);
        false -> E = {BO, Next}, into_local(T, Local, Other, Next + T, [E | M], [E | U])
    end;
into_local(T, [{BL, DL} = L | Local], [{_, DO} = O | Other], Next, M, U) ->
    if DL >= Next, DL >= DO -> into_local(T, Local, Other, DL + T, [L | M], U);
       DO >= Next -> into_local(T, Local, Other, DO + T, [O | M], [O | U]);
       true -> E = {BL, Next}, into_local(T, Local, Other, Next + T, [E | M], [E | U])
    end;
into_local(T, Local, [], Next, M, U) ->
    rest_of_local(T, Local, Next, M, U);
into_local(T, [], Other, Next, M, U) ->
    rest_of_other(T, Other, Next, M, U).

into_delta(T, [{BL, DL} = L | Local], [{BO, _} | _] = Other, Next, M, U) when BL < BO ->
    case DL >= Next of
        true -> into_delta(T, Local, Other, DL + T, [L | M], U);
        false -> E = {BL, Next}, into_delta(T, Local, Other, Next + T, [E | M], [E | U])
    end;
into_delta(T, [_ | _] = Local, [{BO, DO} = O | Other], Next, M, U) ->
    case DO >= Next of
        true -> into_delta(T, Local, Other, DO + T, [O | M], [O | U]);
        false -> E = {BO, Next}, into_delta(T, Local, Other, Next + T, [E | M], [E | U])
    end;
into_delta(T, Local, [], Next, M, U) ->
    rest_of_local(T, Local, Next, M, U);
into_delta(T, [], Other, Next, M, U) ->
    rest_of_other(T, Other, Next, M, U).

rest_of_local(T, [{B, D} | Local], Next, M, U) when D < Next ->
    E = {B, Next},
    rest_of_local(T, Local, Next + T, [E | M], [E | U]);
rest_of_local(_T, Local, _Next, M, U) ->
    {lists:reverse(M, Local), lists:reverse(U)}.

rest_of_other(T, [{B, D} | Other], Next, M, U) when D < Next ->
    E = {B, Next},
    rest_of_other(T, Other, Next + T, [E | M], [E | U]);
rest_of_other(_T, Other, _Next, M, U) ->
    {lists:reverse(M, Other), lists:reverse(U, Other)}.

%% Listing 4.1.
-spec refill(queue(), Now :: integer()) -> queue().
refill([{_, Death} | Queue], Now) when Death =< Now -> refill(Queue, Now);
refill(Queue, _Now) -> Queue.

%% Equation 4.2, of a queue that was refilled; births and deaths have one unit.
-spec append(T :: pos_integer(), queue(), Now :: integer()) -> queue().
append(T, [], Now) ->
    [{Now, Now + T}];
append(T, Queue, Now) ->
    {Birth, Death} = lists:last(Queue),
    Queue ++ [{max(Now, Birth + 1), Death + T}].

%% Listing 4.5: the neighbours whose delta state comes quicker than the threshold.
-spec frequent([{Neighbour, queue()}], Window :: pos_integer(), Threshold :: non_neg_integer()) -> [Neighbour].
frequent(Deltas, Window, Threshold) ->
    [Neighbour || {Neighbour, Queue} <- Deltas, quicker(Queue, Window, Threshold)].

quicker(Queue, Window, Threshold) ->
    case length(Queue) - Window of
        Before when Before >= 0 ->
            [{Earliest, _} | _] = Last = lists:nthtail(Before, Queue),
            {Latest, _} = lists:last(Last),
            Latest - Earliest < Threshold * Window;
        _ ->
            false
    end.

%% The same of lists that are newest first: the analysis stops at the window's end, and merging must reverse.
-spec frequent_newest_first([{Neighbour, queue()}], Window :: pos_integer(), Threshold :: non_neg_integer()) -> [Neighbour].
frequent_newest_first(Deltas, Window, Threshold) ->
    Most = Threshold * Window,
    [Neighbour || {Neighbour, [{Latest, _} | _] = Queue} <- Deltas, within(Queue, Window, Latest - Most)].

%% Is the N-th birth later than After? Not if there is none.
within([{Birth, _} | _], 1, After) -> Birth > After;
within([_ | Queue], N, After) -> within(Queue, N - 1, After);
within([], _N, _After) -> false.
