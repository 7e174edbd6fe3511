%% @doc The inner loops: N decisions of one variant, over a sequence of keys, as few instructions around each as can be.
%%
%% Every variant has the same loop (one macro), looks at every answer and counts what was allowed, and is called by a fully
%% qualified call, as an application would. The loop itself is a variant too, so that its cost is known.
-module(bench_loops).

-export([variants/0, title/1, run/5]).

-export_type([variant/0, args/0]).

-type variant() :: loop | nothing | check | many | many_built | window | atomics | bucket | server.
%% What the variant's function takes beside the key; unused ones are 0.
-type args() :: {term(), term(), term()}.

-define(BATCH, 100).
-define(KEY, element(I, Keys)).
-define(LOOP(Name, Call, Allowed, Denied),
        Name(_X, _Y, _Z, _Keys, I, 0, A) -> {I, A};
        Name(X, Y, Z, Keys, I, N, A) when I > tuple_size(Keys) -> Name(X, Y, Z, Keys, 1, N, A);
        Name(X, Y, Z, Keys, I, N, A) ->
            case Call of
                Allowed -> Name(X, Y, Z, Keys, I + 1, N - 1, A + 1);
                Denied -> Name(X, Y, Z, Keys, I + 1, N - 1, A)
            end).

-spec variants() -> [variant()].
variants() -> [loop, nothing, check, many, many_built, window, atomics, bucket, server].

-spec title(variant()) -> string().
title(loop) -> "the loop alone";
title(nothing) -> "empty NIF, 3 arguments";
title(check) -> "weir:check/3";
title(many) -> "weir:check_many/1, lists of 100 at hand";
title(many_built) -> "weir:check_many/1, list built and answers read";
title(window) -> "ets:update_counter windows";
title(atomics) -> "ets:lookup + atomics GCRA";
title(bucket) -> "ets token bucket (loses hits)";
title(server) -> "gen_server:call".

%% `N' decisions from the `I'th key of the sequence; a multiple of 100. Returns the next index and how many were allowed.
-spec run(variant(), args(), tuple(), pos_integer(), pos_integer()) -> {pos_integer(), non_neg_integer()}.
run(loop, {X, Y, Z}, Keys, I, N) -> loop(X, Y, Z, Keys, I, N, 0);
run(nothing, {X, Y, Z}, Keys, I, N) -> nothing(X, Y, Z, Keys, I, N, 0);
run(check, {X, Y, Z}, Keys, I, N) -> check(X, Y, Z, Keys, I, N, 0);
run(many, _, Batches, I, N) -> many(Batches, I, N div ?BATCH, 0);
run(many_built, {X, _, _}, Keys, I, N) -> many_built(X, Keys, I, N div ?BATCH, 0);
run(window, {X, Y, Z}, Keys, I, N) -> window(X, Y, Z, Keys, I, N, 0);
run(atomics, {X, Y, Z}, Keys, I, N) -> atomics(X, Y, Z, Keys, I, N, 0);
run(bucket, {X, Y, Z}, Keys, I, N) -> bucket(X, Y, Z, Keys, I, N, 0);
run(server, {X, Y, Z}, Keys, I, N) -> server(X, Y, Z, Keys, I, N, 0).

?LOOP(loop, ?KEY, Key when is_binary(Key), _).
?LOOP(nothing, weir_nif:nothing(X, ?KEY, 1), ok, _).
?LOOP(check, weir:check(X, ?KEY, 1), {allow, _}, {deny, _}).
?LOOP(window, peers_window:hit(X, ?KEY, Y, Z), {allow, _}, {deny, _}).
?LOOP(atomics, peers_atomics:hit(X, ?KEY, Y, Z), {allow, _}, {deny, _}).
?LOOP(bucket, peers_bucket:hit(X, ?KEY, Y, Z), {allow, _}, {deny, _}).
?LOOP(server, peers_server:hit(X, ?KEY, Y, Z), {allow, _}, {deny, _}).

%% Only the call: of the answers the first is looked at, and stands for the batch (a workload's answers are all alike).
many(_Batches, I, 0, A) -> {I, A};
many(Batches, I, N, A) when I > tuple_size(Batches) -> many(Batches, 1, N, A);
many(Batches, I, N, A) ->
    case weir:check_many(element(I, Batches)) of
        [{allow, _} | _] -> many(Batches, I + 1, N - 1, A + ?BATCH);
        [{deny, _} | _] -> many(Batches, I + 1, N - 1, A)
    end.

%% All that a caller does: the items are put into a list, every answer is looked at.
many_built(_X, _Keys, I, 0, A) -> {I, A};
many_built(X, Keys, I, N, A) when I + ?BATCH - 1 > tuple_size(Keys) -> many_built(X, Keys, 1, N, A);
many_built(X, Keys, I, N, A) ->
    Answers = weir:check_many(items(X, Keys, I + ?BATCH - 1, I, [])),
    many_built(X, Keys, I + ?BATCH, N - 1, allowed(Answers, A)).

items(_X, _Keys, I, First, Items) when I < First -> Items;
items(X, Keys, I, First, Items) -> items(X, Keys, I - 1, First, [{X, ?KEY, 1} | Items]).

allowed([], A) -> A;
allowed([{allow, _} | Answers], A) -> allowed(Answers, A + 1);
allowed([{deny, _} | Answers], A) -> allowed(Answers, A).
