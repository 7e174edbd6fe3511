%% @doc The limiters that are compared: the same policies for every variant, and a check that each is a limiter at all.
-module(bench_limits).

-export([make/2, fill/4, verify/0, plenty/0, spent/0]).

-export_type([policy/0]).

%% {Capacity, IntervalNs}: one token comes back in each interval.
-type policy() :: {Capacity :: pos_integer(), IntervalNs :: pos_integer()}.

%% Long enough that no window ends and no token comes back during a run.
-define(WEEK_MS, 604800000).

%% Never runs out: a million tokens a second, a trillion at first.
-spec plenty() -> policy().
plenty() -> {1000000000000, 1000}.

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

weir_limiter({Capacity, IntervalNs} = Policy) ->
    Name = weir_name(Policy),
    Rate = case IntervalNs of
               1000 -> {1000000, second};
               _ -> {1, {IntervalNs div 1000000000, second}}
           end,
    ok = weir:put_limiter(Name, #{rate => Rate, burst => Capacity, max_keys => 2000000}),
    Name.

weir_name({1, _}) -> bench_spent;
weir_name({5, _}) -> bench_verify;
weir_name(_) -> bench_plenty.
