%% @doc What a decision costs: variants x workloads x outcome x processes, interleaved.
%%
%% For each setting the variants take turns, a slice each, round after round, so that what disturbs the machine for a
%% while disturbs all of them. Admitted and denied are settings of their own; a slice with a single answer of the other
%% kind fails the run (but for the bucket's lost hits there is no reason for one).
-module(bench_decisions).

-export([main/1]).

-define(OUTCOMES, [admitted, denied]).
-define(PROCESSES, [1, 2, 8]).

%% Writes the section of the report to the file.
-spec main([string()]) -> ok.
main([Length, File]) ->
    {ok, _} = application:ensure_all_started(weir),
    ok = bench_limits:verify(),
    bench_report:say("every variant allows 5 of 20 hits at a limit of 5", []),
    Names = [bench_plenty, bench_spent],
    lists:foreach(fun(Workload) -> bench_keys:prepare(Workload, Names) end, bench_keys:workloads()),
    Results = maps:from_list(lists:append([outcome(Outcome, plan(Length)) || Outcome <- ?OUTCOMES])),
    ok = file:write_file(File, bench_decisions_report:text(Results)).

%% {Rounds, milliseconds a slice} for one process and for several.
plan("quick") -> #{one => {3, 20}, several => {2, 20}};
plan(_) -> #{one => {15, 60}, several => {7, 60}}.

outcome(Outcome, Plan) ->
    lists:append([population(Outcome, Workloads, Plan) || Workloads <- [[hot], [thousand], [million, zipf]]]).

%% The workloads share what their keys were inserted into.
population(Outcome, [Workload | _] = Workloads, Plan) ->
    Variants = [Variant || Variant <- bench_loops:variants(),
                           Variant =/= server orelse lists:member(Workload, [hot, thousand])],
    All = [{Variant, args(Variant, Outcome, bench_keys:population(Workload))} || Variant <- Variants],
    Results = [setting(Outcome, W, Processes, All, Plan) || W <- Workloads, Processes <- ?PROCESSES],
    %% Had keys come and gone, the figures would be of something else.
    Held = bench_limits:held(proplists:get_value(check, All)),
    Held =:= bench_keys:population(Workload) orelse error({keys_lost, Workload, Held}),
    lists:foreach(fun({Variant, Args}) -> drop(Variant, Args) end, All),
    lists:append(Results).

args(Variant, Outcome, Population) ->
    Args = bench_limits:make(Variant, policy(Outcome, Population)),
    ok = bench_limits:fill(Variant, Args, 0, Population - 1),
    Args.

policy(admitted, Population) -> bench_limits:plenty(Population);
policy(denied, _) -> bench_limits:spent().

drop(server, {Server, _, _}) -> gen_server:stop(Server);
drop(Variant, {Table, _, _}) when Variant =:= window; Variant =:= atomics; Variant =:= bucket -> true = ets:delete(Table);
drop(check, {Limiter, _, _}) -> weir:delete_limiter(Limiter);
drop(_, _) -> ok.

%% [{{Outcome, Workload, Processes, Variant}, #{chunks, rates}}]
setting(Outcome, Workload, Processes, All, Plan) ->
    {Rounds, Ms} = maps:get(case Processes of 1 -> one; _ -> several end, Plan),
    Workers = bench_workers:start(Processes),
    bench_report:say("~s, ~s, ~b processes", [Outcome, bench_keys:title(Workload), Processes]),
    Slices = [{Variant, slice(Workers, Outcome, Workload, Variant, Args, Round, Ms)}
              || Round <- lists:seq(1, Rounds), {Variant, Args} <- All],
    ok = bench_workers:stop(Workers),
    [{{Outcome, Workload, Processes, Variant},
      #{chunks => lists:append([Chunks || {V, {Chunks, _}} <- Slices, V =:= Variant]),
        rates => [Rate || {V, {_, Rate}} <- Slices, V =:= Variant]}}
     || {Variant, _} <- All].

slice(Workers, Outcome, Workload, Variant, Args, Round, Ms) ->
    Work = {Variant, Args, source(Variant, Workload, Args)},
    {Chunks, Rate, Count, Allowed} = bench_workers:slice(Workers, Work, Round, Ms),
    Expected = expected(Variant, Outcome, Count),
    Allowed =:= Expected orelse error({wrong_answers, Variant, Outcome, Workload, Allowed, Expected}),
    {Chunks, Rate}.

source(many, Workload, {Limiter, _, _}) -> {batches, {Workload, Limiter}};
source(_, Workload, _) -> {keys, Workload}.

expected(Variant, _, Count) when Variant =:= loop; Variant =:= nothing -> Count;
expected(_, admitted, Count) -> Count;
expected(_, denied, _) -> 0.
