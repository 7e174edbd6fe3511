%% @doc The limiters that are compared: the same policies for every variant, and a check that each is a limiter at all.
-module(bench_limits).

-export([make/2, fill/4, held/1, verify/0, plenty/1, spent/0]).

-export_type([policy/0]).

%% {Capacity, IntervalNs}: one token comes back in each interval.
-type policy() :: {Capacity :: pos_integer(), IntervalNs :: pos_integer()}.

%% Long enough that no window ends and no token comes back during a run.
-define(WEEK_MS, 604800000).

%% Never runs out during a run, and long enough that no key expires between two hits, or while a million are inserted: a
%% key that has expired is swept, and would be inserted anew. (A bucket may last 36 years at most, so either the burst or
%% the interval must give way: of a million keys even the most popular one is hit less often than a single key.)
-spec plenty(pos_integer()) -> policy().
plenty(Population) when Population =< 1000 -> {1000000000, 1000000000};
plenty(_) -> {19000000, 60000000000}.

%% One hit a week: after the first, all are denied.
-spec spent() -> policy().
spent() -> {1, ?WEEK_MS * 1000000}.

%% A limiter of the variant's kind. Those of weir of one policy are one limiter: its variants share the keys.
-spec make(bench_loops:variant(), policy()) -> bench_loops:args().
make(Variant, Policy) when Variant =:= check; Variant =:= many; Variant =:= many_built ->
    {weir_limiter(Policy), 0, 0};
make(window, {Capacity, _}) ->
    {peers_window:new(), ?WEEK_MS, Capacity};
make(atomics, {Capacity, IntervalNs}) ->
    {peers_atomics:new(), IntervalNs, Capacity * IntervalNs};
make(bucket, {Capacity, IntervalNs}) ->
    {peers_bucket:new(), 1000000 / IntervalNs, Capacity};
make(server, {Capacity, IntervalNs}) ->
    {peers_server:new(), IntervalNs, Capacity * IntervalNs};
make(_, _) ->
    {bench_none, 0, 0}.

%% Hits each of the keys From..To once, so that no variant inserts while it is measured. A few keys at a time: the heap of
%% the process stays small, beside a table whose memory is measured.
-spec fill(bench_loops:variant(), bench_loops:args(), non_neg_integer(), non_neg_integer()) -> ok.
fill(Variant, Args, From, To) when From =< To ->
    Last = min(To, From + 99),
    Keys = list_to_tuple([bench_keys:key(N) || N <- lists:seq(From, Last)]),
    _ = bench_loops:run(one_by_one(Variant), Args, Keys, 1, tuple_size(Keys)),
    fill(Variant, Args, Last + 1, To);
fill(_, _, _, _) ->
    ok.

%% How many keys a limiter of weir holds.
-spec held(bench_loops:args()) -> non_neg_integer().
held({Limiter, _, _}) ->
    Name = atom_to_binary(Limiter),
    hd([Keys || #{name := N, keys := Keys} <- weir_table:stats(), N =:= Name]).

%% Every variant must allow exactly five of twenty hits of a key, and another key must not notice.
-spec verify() -> ok.
verify() ->
    Policy = {5, ?WEEK_MS * 1000000},
    lists:foreach(fun(Variant) -> verify(Variant, make(Variant, Policy)) end,
                  [check, window, atomics, bucket, server]),
    verify_many(make(many, Policy)).

%% ---- internal ----

verify(Variant, Args) ->
    {_, Allowed} = bench_loops:run(Variant, Args, {<<"verify">>}, 1, 20),
    {_, Other} = bench_loops:run(Variant, Args, {<<"another">>}, 1, 1),
    expect(Variant, {5, 1}, {Allowed, Other}).

%% (The key is new: `check' has used up the other ones of the same limiter.)
verify_many({Limiter, _, _} = Args) ->
    Answers = weir:check_many(lists:duplicate(20, {Limiter, <<"verify many">>, 1})),
    expect(many, 5, length([allow || {allow, _} <- Answers])),
    {_, Allowed} = bench_loops:run(many_built, Args, list_to_tuple(lists:duplicate(100, <<"built">>)), 1, 100),
    expect(many_built, 5, Allowed).

expect(_, Value, Value) -> ok;
expect(Variant, Expected, Got) -> error({not_a_limiter, Variant, {expected, Expected}, {got, Got}}).

one_by_one(many) -> check;
one_by_one(many_built) -> check;
one_by_one(Variant) -> Variant.

weir_limiter({Capacity, IntervalNs}) ->
    Name = case Capacity of
               1 -> bench_spent;
               5 -> bench_verify;
               _ -> bench_plenty
           end,
    ok = weir:put_limiter(Name, #{rate => {1, {IntervalNs div 1000000000, second}}, burst => Capacity,
                                  max_keys => 2000000}),
    Name.
