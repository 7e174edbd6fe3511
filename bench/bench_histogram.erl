%% @doc A histogram of durations in preallocated counters: adding to it allocates nothing.
%%
%% Exact to the nanosecond up to 4095, from there on 1/64 of the value: each doubling has 64 slots. A quantile is the upper
%% end of its slot; the maximum is kept exactly. For one writer.
-module(bench_histogram).

-export([new/0, add/2, count/1, quantile/2, max/1]).

-export_type([histogram/0]).

-opaque histogram() :: counters:counters_ref().

-define(EXACT, 4096).
-define(PART, 64).
%% Up to 2^40 ns, and one more slot for the maximum.
-define(SLOTS, (?EXACT + 28 * ?PART)).
-define(MAX, (?SLOTS + 1)).

-spec new() -> histogram().
new() ->
    counters:new(?MAX, [atomics]).

-spec add(histogram(), non_neg_integer()) -> ok.
add(H, Ns) ->
    counters:add(H, 1 + slot(Ns), 1),
    case counters:get(H, ?MAX) of
        Max when Ns > Max -> counters:put(H, ?MAX, Ns);
        _ -> ok
    end.

-spec count(histogram()) -> non_neg_integer().
count(H) ->
    lists:sum([counters:get(H, I) || I <- lists:seq(1, ?SLOTS)]).

-spec quantile(histogram(), float()) -> non_neg_integer().
quantile(H, Q) ->
    min(quantile(H, 0, max(1, ceil(count(H) * Q))), ?MODULE:max(H)).

-spec max(histogram()) -> non_neg_integer().
max(H) ->
    counters:get(H, ?MAX).

%% ---- internal ----

slot(Ns) when Ns < ?EXACT -> Ns;
slot(Ns) -> slot(Ns, 0).

%% Halved until it is in 64..127 of the units of its doubling.
slot(Ns, Doubling) when Ns < 2 * ?EXACT -> ?EXACT + min(27, Doubling) * ?PART + (Ns - ?EXACT) div ?PART;
slot(Ns, Doubling) -> slot(Ns bsr 1, Doubling + 1).

upper(Slot) when Slot < ?EXACT -> Slot;
upper(Slot) ->
    Doubling = (Slot - ?EXACT) div ?PART,
    Part = (Slot - ?EXACT) rem ?PART,
    ((?EXACT + (Part + 1) * ?PART) bsl Doubling) - 1.

quantile(H, Slot, Left) ->
    case Left - counters:get(H, 1 + Slot) of
        Still when Still > 0 -> quantile(H, Slot + 1, Still);
        _ -> upper(Slot)
    end.
