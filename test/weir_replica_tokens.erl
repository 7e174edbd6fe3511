%% Replicated token buckets, for weir_replica_laws: which limiters and asks there are, and the specification.
%%
%% A state is a list of {Start, Births} in time order: what weir_machine:published/3 answers. The specification is the fold of
%% all births into busy intervals, by hand, without a cap.
-module(weir_replica_tokens).

-behaviour(weir_replica_laws).

-include_lib("proper/include/proper.hrl").

-export([limiters/1, ask/0, unit_ask/0, fold/2, at_most/3, covers/3, same/3, admits/4]).

%% Intervals that a state holds at most: past it births are moved, and states are equal in their TAT only.
-define(CAP, 32).
-define(MS, 1000000).

%% A large limiter, which keeps births to itself for a while, and a small one, which sends each: both with a horizon (2cT) beyond
%% all schedules, so that nothing is forgotten in them. A quick one forgets.
limiters(#{flush := Flush, partition := Partition, large_hits := LargeHits}) ->
    Common = #{partition => Partition, large_hits => LargeHits, flush_after => case Flush of true -> 1500 * ?MS; false -> 0 end},
    [{1, Common#{capacity => 60, interval_ns => 2000 * ?MS + 1}},
     {2, Common#{capacity => 4, interval_ns => 31000 * ?MS}}].

ask() ->
    ?LET({Limiter, Key}, {range(1, 2), key()}, {Limiter, Key, hits(Limiter)}).

unit_ask() ->
    {range(1, 2), key(), 1}.

key() ->
    oneof([16#8c0ffee123456789, 16#0123456789abcdef, 16#8c0ffee1aaaaaaaa]).

hits(1) -> frequency([{4, 1}, {3, range(1, 8)}, {1, range(1, 60)}]);
hits(2) -> frequency([{4, 1}, {1, range(1, 4)}]).

%% Births are {Time, Weight}.
fold(#{interval_ns := T}, Births) ->
    fuse(T, lists:sort(Births)).

fuse(T, [{S1, N1}, {S2, N2} | Later]) when S2 =< S1 + N1 * T -> fuse(T, [{S1, N1 + N2} | Later]);
fuse(T, [First | Later]) -> [First | fuse(T, Later)];
fuse(_T, []) -> [].

%% Whether a state can have come from some of these births, each counted once: it has no more of them from any time on.
at_most(#{interval_ns := T} = Terms, State, Births) when length(State) < ?CAP ->
    tat(T, State) =< tat(T, fold(Terms, Births)) andalso
        lists:all(fun({Start, _}) -> weight(State, Start) =< weight(Births, Start) end, State);
at_most(_Terms, State, Births) ->
    weight(State, 0) =< weight(Births, 0).

%% A birth lies in the interval that begins before it, which has lost its time: what ends after it counts.
covers(#{interval_ns := T} = Terms, State, Births) ->
    tat(T, State) >= tat(T, fold(Terms, Births)) andalso
        lists:all(fun({Time, _}) -> lists:sum([N || {Start, N} <- State, Start + N * T >= Time]) >= weight(Births, Time) end, Births).

same(#{interval_ns := T}, State, Other) when length(State) >= ?CAP; length(Other) >= ?CAP ->
    tat(T, State) =:= tat(T, Other) andalso weight(State, 0) =:= weight(Other, 0);
same(_Terms, State, Other) ->
    State =:= Other.

%% The decision of one bucket that knows all births.
admits(#{capacity := C, interval_ns := T} = Terms, Births, Hits, Now) ->
    max(0, tat(T, fold(Terms, Births)) - Now) + Hits * T =< C * T.

%% TAT = max over births s of s + T * (number of births >= s), by definition.
tat(T, State) ->
    lists:max([0 | [Start + T * weight(State, Start) || {Start, _} <- State]]).

weight(State, From) ->
    lists:sum([N || {Start, N} <- State, Start >= From]).
