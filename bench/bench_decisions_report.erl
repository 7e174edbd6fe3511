%% @doc The tables of {@link bench_decisions}.
-module(bench_decisions_report).

-export([text/1]).

-type results() :: #{{admitted | denied, bench_keys:workload(), pos_integer(), bench_loops:variant()} =>
                         #{chunks := [float()], rates := [float()]}}.

-spec text(results()) -> iodata().
text(Results) ->
    ["\n## What a decision costs\n\n"
     "One process, nanoseconds a decision: median of all chunks (fastest chunk); then times an empty NIF call, and times\n"
     "`ets:update_counter`. The loop's own cost is in every figure, the empty NIF's included.\n",
     [["\n### ", string:titlecase(atom_to_list(Outcome)), "\n\n", cost(Outcome, Results)] || Outcome <- [admitted, denied]],
     "\n## Decisions a second\n\nMillions a second, all processes together: median of the slices.\n",
     [["\n### ", string:titlecase(atom_to_list(Outcome)), "\n\n", rate(Outcome, Results)] || Outcome <- [admitted, denied]],
     "\n## Goals\n\n", goals(Results)].

%% ---- internal ----

cost(Outcome, Results) ->
    Workloads = bench_keys:workloads(),
    bench_report:table(["" | [bench_keys:title(W) || W <- Workloads]],
                       [[bench_loops:title(V) | [cost(Outcome, W, V, Results) || W <- Workloads]]
                        || V <- bench_loops:variants()]).

cost(Outcome, Workload, Variant, Results) ->
    case Results of
        #{{Outcome, Workload, 1, Variant} := #{chunks := Chunks}} ->
            Ns = bench_report:median(Chunks),
            [bench_report:number(Ns), " (", bench_report:number(lists:min(Chunks)), ")",
             case Variant of
                 loop -> "";
                 _ -> [" ", bench_report:ratio(Ns, ns(Outcome, Workload, nothing, Results)),
                       " ", bench_report:ratio(Ns, ns(Outcome, Workload, window, Results))]
             end];
        _ ->
            "-"
    end.

rate(Outcome, Results) ->
    Settings = [{W, P} || W <- bench_keys:workloads(), P <- [1, 2, 8]],
    bench_report:table(["" | [[bench_keys:title(W), ", ", integer_to_list(P)] || {W, P} <- Settings]],
                       [[bench_loops:title(V) | [rate(Outcome, W, P, V, Results) || {W, P} <- Settings]]
                        || V <- bench_loops:variants(), V =/= loop]).

rate(Outcome, Workload, Processes, Variant, Results) ->
    case Results of
        #{{Outcome, Workload, Processes, Variant} := #{rates := Rates}} ->
            bench_report:million(bench_report:median(Rates));
        _ ->
            "-"
    end.

goals(Results) ->
    Net = fun(W, V) -> ns(admitted, W, V, Results) - ns(admitted, W, loop, Results) end,
    Check = fun(Outcome) ->
                    [bench_report:ratio(ns(Outcome, hot, check, Results), ns(Outcome, hot, nothing, Results)),
                     " hot, ",
                     bench_report:ratio(ns(Outcome, thousand, check, Results), ns(Outcome, thousand, nothing, Results)),
                     " 1k keys"]
            end,
    Batch = fun(W, V) -> [bench_report:number(1000 / ns(admitted, W, V, Results)), " M/s"] end,
    Faster = fun(W) -> bench_report:ratio(ns(admitted, W, window, Results), ns(admitted, W, check, Results)) end,
    bench_report:table(
      ["", "goal", "measured"],
      [["check/3 in the cache, clock and hash included, admitted", "<= 4x an empty NIF call", Check(admitted)],
       ["the same, denied", "<= 4x", Check(denied)],
       ["the same, admitted, 1k keys, less the loop on both sides", "",
        bench_report:ratio(Net(thousand, check), Net(thousand, nothing))],
       ["check/3 against `ets:update_counter` windows, 1k keys", ">= 5x faster", Faster(thousand)],
       ["the same, 1M keys uniform", ">= 3.5x faster", Faster(million)],
       ["batch of 100, 1 hot key, a core", ">= 30 M/s", Batch(hot, many)],
       ["batch of 100, 1k keys, a core", ">= 30 M/s", Batch(thousand, many)],
       ["batch of 100, 1M keys uniform, a core", ">= 20 M/s", Batch(million, many)],
       ["batch of 100, 1k keys, list built and answers read", "", Batch(thousand, many_built)],
       ["batch of 100, 1M keys, list built and answers read", "", Batch(million, many_built)]]).

ns(Outcome, Workload, Variant, Results) ->
    #{{Outcome, Workload, 1, Variant} := #{chunks := Chunks}} = Results,
    bench_report:median(Chunks).
