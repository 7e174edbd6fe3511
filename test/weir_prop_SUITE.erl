%% Properties: whatever is asked, in whatever order, weir's answers are those of a brute force that keeps every birth.
%%
%% The brute force (DESIGN's fold, the slow way): a key is the list of its births, one for each token that was admitted, with its time.
%%
%%   TAT   = max over births s of s + T * (number of births >= s)         0 without births
%%   level = max(0, ceil((TAT - now) / T))          admitted iff level + hits =< c
%%
%% A changed limiter: at the same T births go on, and what of them exceeds the new c is cut; at another T the level is born anew, up to
%% the new c, at the time of the change. A reset forgets the births.
%%
%% WEIR_CASES sets the number of cases of each property (default 300).
%% Shows R01, R47 of doc/requirements.md.
-module(weir_prop_SUITE).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(MS, 1000000).

suite() ->
    [{timetrap, {hours, 1}}].

all() ->
    [answers_are_the_brute_forces, batches_are_the_brute_forces, many_keys_are_the_brute_forces, parsed_specs_are_sound].

init_per_testcase(_, Config) ->
    ok = weir_test:start(),
    Config.

end_per_testcase(_, _) ->
    weir_test:stop().

answers_are_the_brute_forces(_) -> holds(prop_answers()).
batches_are_the_brute_forces(_) -> holds(prop_batches()).
many_keys_are_the_brute_forces(_) -> holds(prop_many_keys()).
parsed_specs_are_sound(_) -> holds(prop_specs()).

holds(Property) ->
    weir_test:holds(Property, [{max_size, 60}]).

%% ---- one limiter, some keys, every function

prop_answers() ->
    ?FORALL({Spec, Commands}, {spec(), list(command())},
            begin
                ok = weir:put_limiter(limited, Spec),
                ok = weir_clock:freeze(weir_test:t0()),
                Result = run(Commands, model(Spec)),
                ok = weir:delete_limiter(limited),
                Result
            end).

prop_batches() ->
    ?FORALL({Spec, Batches}, {spec(), list({non_neg_advance(), list({key(), hits()})})},
            begin
                ok = weir:put_limiter(limited, Spec),
                ok = weir_clock:freeze(weir_test:t0()),
                Result = run([C || {Advance, Items} <- Batches, C <- [{advance, Advance}, {many, Items}]], model(Spec)),
                ok = weir:delete_limiter(limited),
                Result
            end).

%% So many keys that the table grows, with changes, sweeps and time in between.
prop_many_keys() ->
    ?FORALL({Spec, Rounds}, {spec(), resize(6, list({range(1, 3000), hits(), oneof([change(), {advance, advance()}, sweep])}))},
            begin
                ok = weir:put_limiter(limited, Spec),
                ok = weir_clock:freeze(weir_test:t0()),
                Commands = [C || {N, Hits, Then} <- Rounds, C <- [{many, [{{key, I}, I rem Hits + 1} || I <- lists:seq(1, N)]}, Then]],
                Result = run(Commands ++ [{look, {key, I}} || I <- lists:seq(1, 3000, 7)], model(Spec)),
                ok = weir:delete_limiter(limited),
                Result
            end).

run([], _Model) ->
    true;
run([Command | Commands], Model) ->
    {Expected, Next} = brute(Command, Model),
    case real(Command) of
        Expected -> run(Commands, Next);
        Got -> io:format("~p in ~p:~nexpected ~p~n     got ~p~n", [Command, Model, Expected, Got]), false
    end.

real({check, Key, Hits}) -> weir:check(limited, Key, Hits);
real({decide, Key, Hits}) -> weir:decide(<<"limited">>, Key, Hits);
real({many, Items}) -> weir:check_many([{limited, Key, Hits} || {Key, Hits} <- Items]);
real({decide_many, Items}) -> weir:decide_many([{limited, Key, Hits} || {Key, Hits} <- Items]);
real({peek, Key}) -> weir:peek(limited, Key);
real({look, Key}) -> maps:with([level, capacity, interval_ns, now_ns, remaining, reset_ms, retry_ms], weir:explain(limited, Key));
real({reset, Key}) -> weir:reset(limited, Key);
real({advance, Ns}) -> weir_clock:advance(Ns);
real({change, Spec}) -> weir:put_limiter(limited, Spec);
real(sweep) -> weir_sweeper:sweep().

%% ---- the brute force

model(Spec) ->
    {C, T} = terms(Spec),
    #{now => weir_test:t0(), c => C, t => T, births => #{}}.

%% c and T, told from the specification without weir's help.
terms(#{rate := {N, Per}} = Spec) ->
    {maps:get(burst, Spec, N), round_div(ns(Per), N)}.

ns({K, Unit}) -> K * ns(Unit);
ns(Unit) -> maps:get(Unit, #{second => 1, minute => 60, hour => 3600, day => 86400}) * 1000000000.

round_div(A, B) -> (2 * A + B) div (2 * B).

brute({check, Key, Hits}, Model) ->
    {Decision, Next} = decided(Key, Hits, Model),
    {answer(Decision), Next};
brute({decide, Key, Hits}, Model) ->
    {Decision, Next} = decided(Key, Hits, Model),
    {with_reason(Decision), Next};
brute({many, Items}, Model) ->
    {Decisions, Next} = all_decided(Items, Model),
    {[answer(D) || D <- Decisions], Next};
brute({decide_many, Items}, Model) ->
    {Decisions, Next} = all_decided(Items, Model),
    {[with_reason(D) || D <- Decisions], Next};
brute({peek, Key}, Model) ->
    {judged(Key, 1, Model), Model};
brute({look, Key}, #{c := C, t := T, now := Now} = Model) ->
    Seen = maps:with([remaining, reset_ms, retry_ms], judged(Key, 1, Model)),
    {Seen#{level => level(Key, Model), capacity => C, interval_ns => T, now_ns => Now}, Model};
brute({reset, Key}, #{births := Births} = Model) ->
    {ok, Model#{births := maps:remove(Key, Births)}};
brute({advance, Ns}, #{now := Now} = Model) ->
    {ok, Model#{now := Now + Ns}};
brute({change, Spec}, #{births := Births} = Model) ->
    {C, T} = terms(Spec),
    {ok, Model#{c := C, t := T, births := maps:map(fun(Key, _) -> carried_over(Key, C, T, Model) end, Births)}};
brute(sweep, Model) ->
    {ok, Model}.

all_decided(Items, Model) ->
    lists:mapfoldl(fun({Key, Hits}, M) -> decided(Key, Hits, M) end, Model, Items).

decided(Key, Hits, #{now := Now, births := Births} = Model) ->
    case judged(Key, Hits, Model) of
        #{allowed := false} = Denied ->
            {Denied, Model};
        #{allowed := true} ->
            Own = maps:get(Key, Births, []),
            Next = Model#{births := Births#{Key => lists:duplicate(Hits, Now) ++ Own}},
            {(seen(Key, Next))#{allowed => true, retry_ms => 0}, Next}
    end.

%% Without counting.
judged(Key, Hits, #{c := C, t := T, now := Now} = Model) ->
    Seen = seen(Key, Model),
    case level(Key, Model) + Hits =< C of
        true -> Seen#{allowed => true, retry_ms => 0};
        false when Hits > C -> Seen#{allowed => false, retry_ms => infinity};
        false -> Seen#{allowed => false, retry_ms => ms(max(tat(Key, Model), Now) + Hits * T - C * T - Now)}
    end.

seen(Key, #{c := C, now := Now} = Model) ->
    #{limit => C, remaining => C - level(Key, Model), reset_ms => ms(max(0, tat(Key, Model) - Now))}.

level(Key, #{t := T, now := Now} = Model) ->
    max(0, ceil_div(tat(Key, Model) - Now, T)).

%% Newest first, so each birth's rank is the number of births that are as late or later.
tat(Key, #{births := Births, t := T}) ->
    Own = lists:reverse(lists:sort(maps:get(Key, Births, []))),
    lists:max([0 | [Birth + Rank * T || {Birth, Rank} <- lists:zip(Own, lists:seq(1, length(Own)))]]).

carried_over(Key, C, T, #{t := T, now := Now, births := Births} = Model) ->
    case tat(Key, Model) =< Now + C * T of
        true -> maps:get(Key, Births);
        false -> lists:duplicate(C, Now)
    end;
carried_over(Key, C, _T, #{now := Now} = Model) ->
    lists:duplicate(min(C, level(Key, Model)), Now).

with_reason(#{allowed := true} = Decision) -> Decision#{reason => ok};
with_reason(#{allowed := false} = Decision) -> Decision#{reason => limited}.

answer(#{allowed := true, remaining := Remaining}) -> {allow, Remaining};
answer(#{allowed := false, retry_ms := Retry}) -> {deny, Retry}.

ms(Ns) -> ceil_div(Ns, ?MS).

ceil_div(A, B) when A > 0 -> (A + B - 1) div B;
ceil_div(A, B) -> -(-A div B).

%% ---- generators

command() ->
    frequency([{8, {check, key(), hits()}}, {3, {decide, key(), hits()}}, {2, {peek, key()}}, {2, {look, key()}},
               {1, {reset, key()}}, {6, {advance, advance()}}, {2, change()}, {1, sweep},
               {1, {many, list({key(), hits()})}}, {1, {decide_many, list({key(), hits()})}}]).

change() ->
    {change, spec()}.

key() ->
    oneof([a, <<"b">>, {192, 0, 2, 1}, [external], #{map => 1}, 1.0]).

hits() ->
    frequency([{6, 1}, {3, range(1, 6)}, {1, range(1, 30)}]).

%% Intervals that divide well and badly, and bursts around the sizes of hits.
spec() ->
    ?LET({Rate, Burst, OnError},
         {oneof([{5, minute}, {1, second}, {10, second}, {3, second}, {7, {13, second}}, {1, {1, hour}}, {999, second}]),
          oneof([default, range(1, 25)]), oneof([allow, deny])},
         case Burst of
             default when element(1, Rate) < 30 -> #{rate => Rate, on_error => OnError};
             default -> #{rate => Rate, burst => 30, on_error => OnError};
             _ -> #{rate => Rate, burst => Burst, on_error => OnError}
         end).

%% Around whole intervals of some of the rates, where decisions turn.
advance() ->
    ?LET({Whole, Times, Off},
         {oneof([1, 100 * ?MS, 333333333, 1000 * ?MS, 12000 * ?MS, 1001001, 1857142857, 3600000 * ?MS]), range(0, 6), oneof([-1, 0, 1])},
         max(0, Whole * Times + Off)).

non_neg_advance() ->
    advance().

%% ---- specifications

%% What parse accepts keeps its promises; what it refuses, it explains; nothing crashes it.
prop_specs() ->
    ?FORALL(Spec, any_spec(),
            case weir_limiter:parse(Spec) of
                {ok, #{capacity := C, interval_ns := T, spec := Full} = Parsed} ->
                    {C, T} =:= terms(Spec) andalso C >= 1 andalso T >= 1 andalso C * T =< 1 bsl 60 andalso accurate(Spec, T)
                        andalso weir_limiter:parse(Full) =:= {ok, Parsed};
                {error, Message} ->
                    is_binary(Message) andalso string:length(Message) > 15 andalso not fine(Spec)
            end).

%% Below a microsecond, T is within 0.1 % of what was asked for.
accurate(#{rate := {N, Per}}, T) ->
    T >= 1000 orelse abs(T * N - ns(Per)) * 1000 =< ns(Per).

%% A specification that must be accepted.
fine(#{rate := {N, Per}} = Spec) when is_integer(N), N >= 1, N =< 1000000 ->
    Known = case Per of
                {K, Unit} -> is_integer(K) andalso K >= 1 andalso K =< 1000 andalso lists:member(Unit, [second, minute, hour, day]);
                Unit -> lists:member(Unit, [second, minute, hour, day])
            end,
    Known andalso maps:keys(Spec) -- [rate, burst] =:= [] andalso burst_fits(Spec);
fine(_) ->
    false.

burst_fits(#{burst := Burst} = Spec) ->
    is_integer(Burst) andalso Burst >= 1 andalso Burst * element(2, terms(Spec)) =< 1 bsl 60;
burst_fits(#{rate := {N, _}} = Spec) ->
    N * element(2, terms(Spec)) =< 1 bsl 60.

any_spec() ->
    ?LET({Rate, Options}, {frequency([{8, rate()}, {1, any()}]), list(option())}, maps:merge(maps:from_list(Options), #{rate => Rate})).

rate() ->
    {frequency([{6, range(1, 2000000)}, {2, range(1, 1 bsl 40)}, {1, integer()}]),
     frequency([{6, unit()}, {4, {range(1, 2000), unit()}}, {1, {integer(), unit()}}, {1, {unit(), unit()}}])}.

unit() ->
    oneof([second, minute, hour, day]).

option() ->
    frequency([{8, {burst, frequency([{6, range(1, 1000000)}, {1, range(1, 1 bsl 62)}, {1, any()}])}},
               {1, {max_keys, oneof([range(1, 1000000), any()])}}, {1, {oneof([shadow, on_error, scope, algorithm, other]), any()}}]).
