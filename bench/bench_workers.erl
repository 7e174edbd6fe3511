%% @doc Processes that run slices of a variant, and tell how long they took.
%%
%% A worker runs chunks of decisions until its slice is over and times each chunk. For one process the chunks' times are what is
%% reported, as a median: a chunk is a good deal shorter than the time slice that the kernel takes away for somebody else, so
%% most chunks are whole, and the median is the undisturbed cost. For several processes it is decisions over time.
-module(bench_workers).

-export([start/1, stop/1, slice/4]).

-export_type([work/0, result/0]).

%% Sequence is what bench_keys:sequence/1 or batches/1 takes.
-type work() :: {bench_loops:variant(), bench_loops:args(), {keys | batches, term()}}.
%% Nanoseconds a decision of each chunk (of all workers), decisions a second of all workers together, decisions, of which
%% allowed.
-type result() :: {[float()], float(), non_neg_integer(), non_neg_integer()}.

-spec start(pos_integer()) -> [pid()].
start(Count) ->
    [spawn_link(fun wait/0) || _ <- lists:seq(1, Count)].

-spec stop([pid()]) -> ok.
stop(Workers) ->
    lists:foreach(fun(Worker) -> unlink(Worker), exit(Worker, kill) end, Workers).

%% Runs the work in all workers for `Ms'. `Round' decides where in the sequence they begin, alike for all variants.
-spec slice([pid()], work(), non_neg_integer(), pos_integer()) -> result().
slice(Workers, Work, Round, Ms) ->
    Until = erlang:monotonic_time(nanosecond) + Ms * 1000000,
    Asked = [begin
                 Tag = make_ref(),
                 Worker ! {run, self(), Tag, Work, Round * 8 + N, Until},
                 Tag
             end || {N, Worker} <- lists:zip(lists:seq(0, length(Workers) - 1), Workers)],
    Done = [receive {Tag, Result} -> Result end || Tag <- Asked],
    {lists:append([Chunks || {Chunks, _, _, _} <- Done]),
     lists:sum([1.0e9 * Count / Ns || {_, Ns, Count, _} <- Done]),
     lists:sum([Count || {_, _, Count, _} <- Done]),
     lists:sum([Allowed || {_, _, _, Allowed} <- Done])}.

%% ---- internal ----

wait() ->
    receive
        {run, From, Tag, {Variant, Args, Source}, Place, Until} ->
            Keys = keys(Source),
            First = 1 + (Place * 7919 * 100) rem tuple_size(Keys),
            Start = erlang:monotonic_time(nanosecond),
            {Chunks, End, Allowed} = chunks(Variant, Args, Keys, First, chunk(Variant), Until, Start, [], 0),
            From ! {Tag, {Chunks, End - Start, length(Chunks) * chunk(Variant), Allowed}},
            wait()
    end.

keys({keys, Workload}) -> bench_keys:sequence(Workload);
keys({batches, Which}) -> bench_keys:batches(Which).

%% At least one chunk, whatever happens.
chunks(Variant, Args, Keys, I, N, Until, T0, Chunks, Allowed) ->
    {I1, A} = bench_loops:run(Variant, Args, Keys, I, N),
    case erlang:monotonic_time(nanosecond) of
        T1 when T1 < Until -> chunks(Variant, Args, Keys, I1, N, Until, T1, [(T1 - T0) / N | Chunks], Allowed + A);
        T1 -> {[(T1 - T0) / N | Chunks], T1, Allowed + A}
    end.

%% Decisions between two looks at the clock.
chunk(server) -> 500;
chunk(_) -> 2000.
