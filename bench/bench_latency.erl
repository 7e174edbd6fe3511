%% @doc How long single calls of weir:check/3 take while its table grows, and while it loses a million keys.
%%
%% One process calls an empty NIF and then weir:check/3 for each key, with a reading of the clock before, between and
%% behind; so both figures contain one reading, and both see the same interruptions: what the machine and the scheduler do
%% to an empty NIF is not weir's. Nothing else may disturb: keys are made, and the heap is collected, between chunks, when
%% nothing is timed; a chunk into which a collection falls all the same is counted. Times go into counters that were
%% allocated before. The process has the normal priority, and the sweeper runs as always.
-module(bench_latency).

-export([main/1]).

-define(CHUNK, 8192).
%% Words: a chunk's keys and answers fit many times over.
-define(HEAP, 1000000).
-define(QUANTILES, [{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}]).

-spec main([string()]) -> ok.
main([Length, File]) ->
    {ok, _} = application:ensure_all_started(weir),
    {Growth, Expiring} = case Length of
                             "quick" -> {1000000, 200000};
                             _ -> {5000000, 1000000}
                         end,
    Rows = lists:append([in_process(fun() -> rest(Growth) end),
                         in_process(fun() -> growth(Growth) end),
                         in_process(fun() -> expiry(Expiring) end)]),
    Heads = ["", "calls" | [Name || {Name, _} <- ?QUANTILES]] ++ ["max", "chunks with a GC"],
    ok = file:write_file(File, ["\n## How long a call takes\n\nNanoseconds; each figure contains one reading "
                                "of the clock. The goal is a max below 1 ms (1000000).\n\n", bench_report:table(Heads, Rows)]).

%% ---- scenarios ----

%% A thousand keys that are there, nothing else going on.
rest(Calls) ->
    bench_report:say("latency at rest", []),
    ok = weir:put_limiter(bench_rest, #{rate => {1, second}, burst => 1000000000}),
    H = new(),
    repeat(bench_rest, (Calls + ?CHUNK - 1) div ?CHUNK, H),
    weir:delete_limiter(bench_rest),
    rows("at rest, 1k keys", H).

%% Every call brings a new key.
growth(Keys) ->
    bench_report:say("latency while the table grows from 0 to ~b keys", [Keys]),
    ok = weir:put_limiter(bench_growth, #{rate => {1, day}, burst => 5, max_keys => 2 * Keys}),
    H = new(),
    grow(bench_growth, 0, Keys, H),
    Held = held(bench_growth),
    Held =:= Keys orelse error({keys_lost, Keys, Held, weir_table:stats()}),
    weir:delete_limiter(bench_growth),
    _ = [weir_sweeper:sweep() || _ <- [once, twice]],
    rows(io_lib:format("0 to ~bM keys", [Keys div 1000000]), H).

%% Keys that were hit once expire after a second; a thousand others are called all the time, and never do.
expiry(Keys) ->
    bench_report:say("latency while ~b keys expire", [Keys]),
    ok = weir:put_limiter(bench_expiry, #{rate => {1, second}, burst => 1000000, max_keys => 2 * Keys}),
    ok = bench_limits:fill(check, {bench_expiry, 0, 0}, 1000, Keys + 999),
    held(bench_expiry) >= Keys * 9 div 10 orelse error({expired_too_soon, held(bench_expiry)}),
    H = new(),
    shrink(bench_expiry, erlang:monotonic_time(second) + 60, H),
    weir:delete_limiter(bench_expiry),
    rows(io_lib:format("~bk keys expire", [Keys div 1000]), H).

repeat(_Limiter, 0, _H) -> ok;
repeat(Limiter, Chunks, H) ->
    chunk(Limiter, [N rem 1000 || N <- lists:seq(1, ?CHUNK)], H),
    repeat(Limiter, Chunks - 1, H).

grow(Limiter, From, Keys, H) when From < Keys ->
    chunk(Limiter, lists:seq(From, min(Keys, From + ?CHUNK) - 1), H),
    grow(Limiter, From + ?CHUNK, Keys, H);
grow(_, _, _, _) ->
    ok.

shrink(Limiter, Deadline, H) ->
    repeat(Limiter, 1, H),
    case held(Limiter) > 1000 of
        false -> ok;
        true ->
            erlang:monotonic_time(second) < Deadline orelse error({not_swept, held(Limiter)}),
            shrink(Limiter, Deadline, H)
    end.

held(Limiter) -> bench_limits:held({Limiter, 0, 0}).

%% ---- measuring ----

in_process(Scenario) ->
    Self = self(),
    Tag = make_ref(),
    _ = spawn_opt(fun() -> Self ! {Tag, Scenario()} end, [link, {min_heap_size, ?HEAP}]),
    receive {Tag, Rows} -> Rows end.

chunk(Limiter, Numbers, {_, _, Collected} = H) ->
    Keys = list_to_tuple([bench_keys:key(N) || N <- Numbers]),
    true = erlang:garbage_collect(),
    calls(Limiter, Keys, 1, H),
    {garbage_collection, Facts} = process_info(self(), garbage_collection),
    counters:add(Collected, 1, min(1, proplists:get_value(minor_gcs, Facts))).

calls(_Limiter, Keys, I, _H) when I > tuple_size(Keys) -> ok;
calls(Limiter, Keys, I, {Empty, Check, _} = H) ->
    Key = element(I, Keys),
    T0 = erlang:monotonic_time(nanosecond),
    ok = weir_nif:nothing(Limiter, Key, 1),
    T1 = erlang:monotonic_time(nanosecond),
    {allow, _} = weir:check(Limiter, Key, 1),
    T2 = erlang:monotonic_time(nanosecond),
    bench_histogram:add(Empty, T1 - T0),
    bench_histogram:add(Check, T2 - T1),
    calls(Limiter, Keys, I + 1, H).

new() -> {bench_histogram:new(), bench_histogram:new(), counters:new(1, [])}.

rows(Title, {Empty, Check, Collected}) ->
    GCs = integer_to_list(counters:get(Collected, 1)),
    [row([Title, ", weir:check/3"], Check, GCs), row([Title, ", empty NIF beside it"], Empty, GCs)].

row(Title, H, GCs) ->
    [Title, integer_to_list(bench_histogram:count(H))]
        ++ [integer_to_list(bench_histogram:quantile(H, Q)) || {_, Q} <- ?QUANTILES]
        ++ [integer_to_list(bench_histogram:max(H)), GCs].
