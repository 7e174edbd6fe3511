%% @doc The keys of the workloads, and the order in which they are asked for.
%%
%% A sequence is a tuple of binaries such as `<<"user:123456">>', one for each request, laid out in the order of use: a
%% request's key was parsed a moment ago and is in the cache, whatever the table is. All variants and all processes read
%% the same sequence, in `persistent_term', so that nothing of it is copied or collected while time is measured. The
%% generator's seed is fixed: every run asks for the same keys.
-module(bench_keys).

-export([workloads/0, title/1, population/1, prepare/2, sequence/1, batches/1, key/1]).

-export_type([workload/0]).

-type workload() :: hot | thousand | million | zipf.

-define(BATCH, 100).

-spec workloads() -> [workload()].
workloads() -> [hot, thousand, million, zipf].

-spec title(workload()) -> string().
title(hot) -> "1 hot key";
title(thousand) -> "1k keys";
title(million) -> "1M uniform";
title(zipf) -> "1M Zipf".

%% How many keys the tables hold while the workload runs.
-spec population(workload()) -> pos_integer().
population(hot) -> 1;
population(thousand) -> 1000;
population(million) -> 1000000;
population(zipf) -> 1000000.

-spec key(non_neg_integer()) -> binary().
key(N) ->
    Digits = integer_to_binary(N),
    <<"user:", Digits/binary>>.

%% Makes the sequence, and the batches of 100 items for `Limiters', which are asked for by limiter.
-spec prepare(workload(), [atom()]) -> ok.
prepare(Workload, Limiters) ->
    _ = rand:seed(exsss, {20, 11, 5}),
    Sequence = list_to_tuple([key(N) || N <- draws(Workload)]),
    persistent_term:put({?MODULE, Workload}, Sequence),
    lists:foreach(fun(Limiter) ->
                          Batches = list_to_tuple(batches(Limiter, tuple_to_list(Sequence))),
                          persistent_term:put({?MODULE, Workload, Limiter}, Batches)
                  end, Limiters).

-spec sequence(workload()) -> tuple().
sequence(Workload) -> persistent_term:get({?MODULE, Workload}).

-spec batches({workload(), atom()}) -> tuple().
batches({Workload, Limiter}) -> persistent_term:get({?MODULE, Workload, Limiter}).

%% ---- internal ----

%% Lengths are multiples of the batch. The short ones stay in the first two levels of the cache. Uniform means each key
%% equally often, in random order: a key that is left out might expire. So long that the processor doesn't learn it: with 4000
%% draws it foresaw in which slot of its line a key lies.
draws(hot) -> lists:duplicate(1000, 0);
draws(thousand) -> lists:append([shuffled(1000) || _ <- lists:seq(1, 16)]);
draws(million) -> shuffled(1000000);
draws(zipf) ->
    Sums = zipf_sums(1000000),
    [zipf(rand:uniform() * element(1000000, Sums), Sums, 1, 1000000) || _ <- lists:seq(1, 1000000)].

shuffled(N) ->
    [K || {_, K} <- lists:sort([{rand:uniform(), K} || K <- lists:seq(0, N - 1)])].

%% Zipf with s = 1: the key of rank k is asked for in proportion to 1/k. Exact: by bisecting the cumulative sums.
zipf_sums(N) ->
    {Sums, _} = lists:mapfoldl(fun(K, Sum) -> {Sum + 1 / K, Sum + 1 / K} end, 0.0, lists:seq(1, N)),
    list_to_tuple(Sums).

zipf(_X, _Sums, Low, Low) -> Low - 1;
zipf(X, Sums, Low, High) ->
    Middle = (Low + High) div 2,
    case element(Middle, Sums) < X of
        true -> zipf(X, Sums, Middle + 1, High);
        false -> zipf(X, Sums, Low, Middle)
    end.

batches(_Limiter, []) -> [];
batches(Limiter, Keys) ->
    {Batch, Rest} = lists:split(?BATCH, Keys),
    [[{Limiter, Key, 1} || Key <- Batch] | batches(Limiter, Rest)].
