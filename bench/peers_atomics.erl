%% @doc A peer: ETS finds the key's atomics, and a compare-and-exchange loop on them is a GCRA cell. Exact under
%% concurrency; the same decisions as weir's token bucket. Denials write nothing.
%%
%% A row is {Key, Atomics}; the atomics hold the theoretical arrival time in monotonic nanoseconds.
-module(peers_atomics).

-export([new/0, hit/4]).

-spec new() -> ets:table().
new() ->
    ets:new(?MODULE, [set, public, {read_concurrency, true}, {write_concurrency, true}, {decentralized_counters, true}]).

%% `IntervalNs' gives one token back, `SpanNs' the whole bucket: capacity * IntervalNs.
-spec hit(ets:table(), term(), IntervalNs :: pos_integer(), SpanNs :: pos_integer()) ->
          {allow, non_neg_integer()} | {deny, pos_integer()}.
hit(Table, Key, IntervalNs, SpanNs) ->
    case ets:lookup(Table, Key) of
        [{_, Cell}] ->
            Now = erlang:monotonic_time(nanosecond),
            decide(Cell, atomics:get(Cell, 1), Now, IntervalNs, SpanNs);
        [] ->
            Cell = atomics:new(1, []),
            ok = atomics:put(Cell, 1, erlang:monotonic_time(nanosecond)),
            _ = ets:insert_new(Table, {Key, Cell}),
            hit(Table, Key, IntervalNs, SpanNs)
    end.

decide(Cell, Tat, Now, IntervalNs, SpanNs) ->
    Next = max(Tat, Now) + IntervalNs,
    case Now + SpanNs - Next of
        Slack when Slack >= 0 ->
            case atomics:compare_exchange(Cell, 1, Tat, Next) of
                ok -> {allow, Slack div IntervalNs};
                Newer -> decide(Cell, Newer, Now, IntervalNs, SpanNs)
            end;
        Slack ->
            {deny, (999999 - Slack) div 1000000}
    end.
