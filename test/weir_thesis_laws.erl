%% The laws of a CRDT (section 3.4.1 of the thesis), and which of them its counter and its queue break.
%%
%% A state-based CRDT's merge is commutative, associative and idempotent, and every update is an inflation: a state merged with
%% what it became is what it became. Then replicas that have seen the same updates are equal, whatever came when and how often.
%% A rate limiter adds time: refill as of the same moment should not depend on whether it came before or after a merge. And each request counts: two that two nodes
%% admit take two tokens.
%%
%% Each law is a property of a design; where a design breaks it, `counterexample/2' is what PropEr found and shrank.
%%
%% The counter is listings 3.1 to 3.4 with a refill rate of 1 token per unit of time, refilled as the thesis does it. The queue is
%% bench/thesis_lists.erl, repaired where the listings don't work at all. Both capacities are 3, the queue's T is 10.
-module(weir_thesis_laws).

-include_lib("proper/include/proper.hrl").

-export([designs/0, laws/0, breaks/1, holds/2, prop/2, counterexample/2, check/3]).

-define(CAPACITY, 3).
-define(T, 10).

designs() -> [counter, queue].

laws() -> [commutative, associative, idempotent, consume_inflates, refill_inflates, refill_is_of_time, refill_commutes,
          each_counts].

breaks(Design) -> [Law || Law <- laws(), counterexample(Design, Law) =/= none].
holds(Design, Law) -> counterexample(Design, Law) =:= none.

%% Found by PropEr, shrunk, and read in the comment.
%%
%% Two nodes meet the user at different times: equal limits, and each keeps its own refill timestamp for good.
counterexample(counter, commutative) -> {bucket(#{}, 3, 0), bucket(#{}, 3, 1)};
%% The same, in whole: asked between, a bucket gains; asked late, the gain is cut at the capacity.
counterexample(counter, refill_is_of_time) -> {bucket(#{}, 3, 0), 1, 4};
%% Of equal limits the own timestamp is kept: refilled after the merge, the bucket gains nothing; before it, a token.
counterexample(counter, refill_commutes) -> {bucket(#{}, 3, 1), bucket(#{}, 3, 0), 1};
counterexample(counter, _) -> none;
%% A refill drops the dead, and a neighbour that has not dropped them yet brings them back: states don't only grow.
counterexample(queue, refill_inflates) -> {[{0, 10}], 10};
counterexample(queue, consume_inflates) -> {[{0, 10}], 10};
%% What was dropped can't push later births' deaths any more: {1, 20} and {1, 11}, a token too much (data set D).
counterexample(queue, refill_commutes) -> {[{0, 10}], [{1, 11}], 10};
%% Requests of one moment are taken for one request.
counterexample(queue, each_counts) -> 0;
counterexample(queue, _) -> none.

bucket(Counts, Limit, Stamp) -> #{counts => Counts, limit => Limit, stamp => Stamp}.

%% ---- the laws

prop(Design, Law) ->
    ?FORALL(Example, example(Design, Law), check(Design, Law, Example)).

check(Design, commutative, {A, B}) -> merge(Design, A, B) =:= merge(Design, B, A);
check(Design, associative, {A, B, C}) -> merge(Design, merge(Design, A, B), C) =:= merge(Design, A, merge(Design, B, C));
check(Design, idempotent, A) -> merge(Design, A, A) =:= A;
check(Design, consume_inflates, {A, Now}) -> inflates(Design, A, consume(Design, A, Now));
check(Design, refill_inflates, {A, Now}) -> inflates(Design, A, refill(Design, A, Now));
check(Design, refill_is_of_time, {A, Soon, Later}) -> refill(Design, refill(Design, A, Soon), Later) =:= refill(Design, A, Later);
check(Design, refill_commutes, {A, B, Now}) ->
    refill(Design, merge(Design, A, B), Now) =:= merge(Design, refill(Design, A, Now), refill(Design, B, Now));

check(Design, each_counts, Now) ->
    [A, B] = [named(Node, consume(Design, born(Design, Now), Now)) || Node <- [a, b]],
    used(Design, merge(Design, A, B)) =:= 2.

used(counter, #{counts := Counts}) -> lists:sum(maps:values(Counts));
used(queue, Queue) -> length(Queue).

inflates(Design, Before, After) ->
    merge(Design, Before, After) =:= After andalso merge(Design, After, Before) =:= After.

example(Design, commutative) -> {state(Design), state(Design)};
example(Design, associative) -> {state(Design), state(Design), state(Design)};
example(Design, idempotent) -> state(Design);
example(Design, refill_is_of_time) -> ?LET({A, Soon, More}, {state(Design), moment(), range(0, 20)}, {A, Soon, Soon + More});
example(Design, refill_commutes) -> {state(Design), state(Design), moment()};
example(_Design, each_counts) -> moment();
example(Design, _Inflates) -> {state(Design), moment()}.

%% ---- the designs

merge(counter, #{counts := Mine, limit := Limit} = A, #{counts := Theirs, limit := Other, stamp := OtherStamp}) ->
    Counts = maps:fold(fun(Node, Count, Acc) -> maps:update_with(Node, fun(N) -> max(N, Count) end, Count, Acc) end, Mine, Theirs),
    case Other > Limit of
        true -> A#{counts := Counts, limit := Other, stamp := OtherStamp};
        false -> A#{counts := Counts}
    end;
merge(queue, A, B) ->
    element(1, thesis_lists:merge(?T, A, B, true)).

refill(counter, #{limit := Limit, stamp := Stamp} = A, Now) when Now > Stamp ->
    A#{limit := Limit + min(Now - Stamp, ?CAPACITY), stamp := Now};
refill(counter, A, _Now) ->
    A;
refill(queue, Queue, Now) ->
    thesis_lists:refill(Queue, Now).

consume(counter, A, Now) ->
    #{counts := Counts} = Refilled = refill(counter, A, Now),
    Refilled#{counts := maps:update_with(local, fun(N) -> N + 1 end, 1, Counts)};
consume(queue, Queue, Now) ->
    %% At its births, time has come to the last one at least.
    At = lists:max([Now | [Birth || {Birth, _} <- Queue]]),
    thesis_lists:append(?T, refill(queue, Queue, At), At).

%% ---- states that a node can come to: a user is met, asks come, time passes, other nodes' states come

state(Design) ->
    ?LET({Start, Steps}, {moment(), list(step())}, lived(Design, Start, Steps)).

step() ->
    frequency([{4, {consume, oneof([a, b]), range(0, 25)}}, {1, {refill, range(0, 25)}},
               {1, {meet, moment(), list({consume, oneof([a, b]), range(0, 25)})}}]).

lived(Design, Start, Steps) ->
    {State, _} = lists:foldl(fun(Step, {A, Now}) -> live(Design, Step, A, Now) end, {born(Design, Start), Start}, Steps),
    State.

live(Design, {consume, Node, Gap}, A, Now) -> {named(Node, consume(Design, A, Now + Gap)), Now + Gap};
live(Design, {refill, Gap}, A, Now) -> {refill(Design, A, Now + Gap), Now + Gap};
live(Design, {meet, Start, Steps}, A, Now) -> {merge(Design, A, lived(Design, Start, Steps)), Now}.

born(counter, Start) -> bucket(#{}, ?CAPACITY, Start);
born(queue, _Start) -> [].

%% consume/3 counts for a node without a name.
named(Node, #{counts := #{local := Count} = Counts} = A) ->
    A#{counts := maps:update_with(Node, fun(N) -> N + Count end, Count, maps:remove(local, Counts))};
named(_Node, A) ->
    A.

moment() -> range(0, 40).
