%% @doc The thesis' queue of {time-of-birth, time-of-death}, packed into a binary: its merge and its frequency analysis.
%%
%% This is not what weir's own limiters keep, which is intervals, but the replicated queue of
%% Henriksson and Bennhage, "Trading performance for precision in a CRDT-based rate-limiting system" (2021), section 4.2,
%% for those who compare the two or already live with it.
%%
%% A queue belongs to one user. Its elements are `{BirthMs, DeathNs}': a request was admitted at `BirthMs' (Unix time,
%% milliseconds), and its token comes back at `DeathNs' (Unix time, nanoseconds). T, the emission interval, is the time in
%% which one token comes back. Births ascend, equal ones are allowed; each death is at least T after the one before.
%%
%% Queues are binaries of one form only: equal queues are equal binaries. They may be stored and sent to other nodes; bytes
%% that are no queue are refused by every function. A birth costs 1 to 4 bytes, a queue 40 more, and each time that the
%% bucket was idle 12 more; the layout is in c_src/queue/packed_queue.hpp.
%%
%% ```
%% Second = 1000000000,
%% A = weir_queue:append(weir_queue:append(weir_queue:new(Second), 1700000000000), 1700000000250),
%% B = weir_queue:append(weir_queue:new(Second), 1700000000100),
%% {Merged, Updates} = weir_queue:merge(A, B, true),
%% [{1700000000000, 1700000001000000000},
%%  {1700000000100, 1700000002000000000},
%%  {1700000000250, 1700000003000000000}] = weir_queue:to_list(Merged),
%% 2 = weir_queue:size(Updates)
%% '''
%%
%% Limits: 1,048,576 births a queue, the first and the last at most 49.7 days apart; deaths until the year 2116. Past a limit,
%% and for arguments of other types, functions raise `badarg'; {@link weir_error:explain/2} says in a sentence what is wrong.
%%
%% Cost: about 2 ns a birth and 0.4 us a call; a birth that found the bucket idle costs 15 ns, not much less than in a list. What takes
%% longer than 100 us (32,000 births) runs on a dirty scheduler.
-module(weir_queue).

-export([new/1, from_list/2, to_list/1, append/2, refill/2, merge/3, analyse/3, size/1]).

-export_type([queue/0, element/0, ms/0, ns/0]).

-type queue() :: binary().
-type ms() :: non_neg_integer().
-type ns() :: non_neg_integer().
-type element() :: {BirthMs :: ms(), DeathNs :: ns()}.

%% @doc An empty queue for a T from 1 ns to 2^60 ns.
-spec new(IntervalNs :: pos_integer()) -> queue().
new(IntervalNs) ->
    ok_or_raise(weir_nif:queue_new(IntervalNs)).

%% @doc The queue of these elements, oldest first.
-spec from_list(IntervalNs :: pos_integer(), [element()]) -> queue().
from_list(IntervalNs, Elements) ->
    Empty = new(IntervalNs),
    try length(Elements) of
        Length -> ok_or_raise(weir_nif:queue_from_list(Empty, Elements, Length))
    catch
        error:badarg -> raise(bad_list)
    end.

%% @doc The elements, oldest first.
-spec to_list(queue()) -> [element()].
to_list(Queue) ->
    ok_or_raise(weir_nif:queue_to_list(Queue)).

%% @doc Admits a request at `NowMs': Equation 4.2.
%%
%% The element is born at `NowMs', or a millisecond after the last one if that isn't earlier: births of one node must differ,
%% for equal births of two nodes are taken for the same request. It dies T after the last one, or T after its own birth if
%% the queue was empty or dead by then. Whether there is room is the caller's question: `size(refill(Queue, Now)) < Capacity'.
-spec append(queue(), NowMs :: ms()) -> queue().
append(Queue, NowMs) ->
    ok_or_raise(weir_nif:queue_append(Queue, NowMs)).

%% @doc Drops the elements that are dead, those with `DeathNs =< NowNs': Listing 4.1.
-spec refill(queue(), NowNs :: ns()) -> queue().
refill(Queue, NowNs) ->
    ok_or_raise(weir_nif:queue_refill(Queue, NowNs)).

%% @doc Merges two queues of the same T: Listings 4.2 and 4.3.
%%
%% The births of both in order. If `IntoLocalState', a birth that is in both is one element, with the larger death; if not,
%% both are kept, for elements that arrive for a neighbour's delta state are known to be others. Each death is then at least
%% T after the one before it. Nothing is refilled. `Updates' has those elements of `Merged' that are new to `Local' or have
%% another death there: what the neighbours' delta states are to be merged with.
-spec merge(Local :: queue(), Other :: queue(), IntoLocalState :: boolean()) -> {Merged :: queue(), Updates :: queue()}.
merge(Local, Other, IntoLocalState) when is_boolean(IntoLocalState) ->
    ok_or_raise(weir_nif:queue_merge(Local, Other, IntoLocalState));
merge(_, _, _) ->
    raise(bad_into).

%% @doc Frequency analysis: the neighbours whose delta state is to be sent now, in the order given: Listing 4.5.
%%
%% Those for whom the last `Window' births, the one just admitted included, came at a mean period below `ThresholdMs': the
%% time since the first of them, divided by `Window'. Delta states with fewer births are not due. Looks at two births of each
%% delta state; of its bytes only the head is verified. At most 1024 neighbours.
%%
%% ```
%% Due = weir_queue:analyse([{Node, maps:get(User, Delta)} || {Node, Delta} <- Deltas], 33, 2400)
%% '''
-spec analyse([{Neighbour, queue()}], Window :: pos_integer(), ThresholdMs :: ms()) -> [Neighbour].
analyse(Deltas, Window, ThresholdMs) ->
    ok_or_raise(weir_nif:queue_analyse(Deltas, Window, ThresholdMs)).

%% @doc The number of births. Constant time.
-spec size(queue()) -> non_neg_integer().
size(Queue) ->
    ok_or_raise(weir_nif:queue_size(Queue)).

%% ---- internal ----

ok_or_raise(Wrong) when is_atom(Wrong) -> raise(Wrong);
ok_or_raise(Result) -> Result.

%% Without the arguments: they may be megabytes.
-spec raise(atom()) -> no_return().
raise(Wrong) ->
    erlang:error(badarg, none, [{error_info, #{module => weir_error, cause => {message, message(Wrong)}}}]).

message(malformed) -> "the bytes are not a queue of weir_queue: make one with new/1 or from_list/2";
message(unlike_interval) -> "the queues have different emission intervals: both sides must come from the same limiter";
message(too_many) -> "a queue holds at most 1048576 births, and at most 1024 neighbours are analysed at once";
message(too_long) -> "births would be more than 2^32 ms (49.7 days) apart: refill the queue first";
message(too_late) -> "a time is before 1970 or after 2116, or isn't an integer: births are in ms, deaths and now of refill in ns";
message(out_of_order) -> "elements come oldest first, and each dies at least T after the one before";
message(bad_item) -> "elements are {BirthMs, DeathNs}, delta states {Neighbour, Queue}";
message(bad_list) -> "elements and delta states come in a proper list";
message(bad_interval) -> "the emission interval is an integer from 1 to 2^60 nanoseconds";
message(bad_window) -> "the window is an integer from 1 to 2^32-1 births";
message(bad_threshold) -> "the threshold is an integer from 0 to 2^32-1 milliseconds";
message(bad_into) -> "whether to merge into the local state is true or false".
