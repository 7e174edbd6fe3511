%% @doc All of weir's metrics: one table of name, kind, help and labels, and their values as of now.
-module(weir_metrics).

-export([metrics/0]).

-export_type([metric/0]).

-type metric() :: {Name :: atom(), counter | gauge, Help :: binary(), Labels :: [atom()],
                   [{LabelValues :: [binary()], number()}]}.

%% @doc Every metric with its values. Costs about a microsecond a limiter.
-spec metrics() -> [metric()].
metrics() ->
    Stats = weir_table:stats(),
    [{Name, Kind, Help, [limiter], [{[Limiter], maps:get(Key, S)} || #{name := Limiter} = S <- Stats]}
     || {Name, Kind, Help, Key} <- limiter_metrics()] ++
        [{Name, Kind, Help, [], [{[], maps:get(Key, Clock)}]}
         || Clock <- [clock()], {Name, Kind, Help, Key} <- clock_metrics()].

limiter_metrics() ->
    [{weir_allowed_total, counter, <<"Decisions that allowed">>, allowed},
     {weir_denied_total, counter, <<"Decisions that denied">>, denied},
     {weir_shadow_denied_total, counter,
      <<"Decisions that would have denied, but the limiter is in shadow">>, shadow_denied},
     {weir_failed_total, counter, <<"Decisions that weir could not make, answered as on_error says">>, failed},
     {weir_keys, gauge, <<"Keys held, expired ones included until they are swept">>, keys},
     {weir_max_keys, gauge, <<"Keys that the limiter may hold">>, max_keys},
     {weir_evicted_keys_total, counter, <<"Keys that made way for others in a full table">>, evicted_keys},
     {weir_evicted_tokens_total, counter, <<"Tokens in use of the keys that made way">>, evicted_tokens},
     {weir_memory_bytes, gauge, <<"Memory of the limiter's table">>, memory_bytes}].

clock_metrics() ->
    [{weir_clock_offset_seconds, gauge, <<"weir's clock less the system's, at the last comparison">>, offset},
     {weir_clock_steps_total, counter, <<"Steps of the system's clock that weir's has slewed after">>, steps}].

clock() ->
    #{offset_ns := Offset, steps := Steps} = weir_clock:info(),
    #{offset => Offset / 1.0e9, steps => Steps}.
