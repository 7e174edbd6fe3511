%% @doc A limiter's specification, and what it is compiled to.
%%
%% Pure: nothing here knows which limiters exist.
%%
%% ```
%% #{rate => {5, minute},           % 5 tokens a minute; also {5, {10, minute}}: 5 in ten minutes
%%   burst => 5,                    % the capacity c; as much as the rate's N if not given
%%   algorithm => token_bucket,
%%   scope => cluster,              % the nodes of the cluster together; local: each node for itself; exact: one
%%                                % node decides a key (doc/cluster.md)
%%   on_error => allow,             % the answer when weir itself fails, or deny
%%   shadow => false,               % true: denials are counted, and answered as admissions
%%   max_keys => 1000000,           % then the least-used key of those near the new one is evicted
%%   partition => open,             % what a side of a partition does: goes on; or share, or closed (doc/cluster.md)
%%   large_hits => admit,           % hits above this node's share pass at once; or claim: the other nodes are asked
%%   timeout => 100,                % for so many milliseconds at most claim, or exact, waits
%%   flush_after => infinity}       % after so many milliseconds at most the other nodes are told of a hit
%% '''
%%
%% The last four count for `scope => cluster' and `exact' only, `large_hits' for `cluster'.
-module(weir_limiter).

-export([parse/1, name/1, compiled_name/1, number/1, terms/2, large_hits/1, advice/2]).

-export_type([spec/0, name/0, unit/0, rate/0, compiled/0]).

-type unit() :: second | minute | hour | day.
-type rate() :: {N :: pos_integer(), unit() | {K :: pos_integer(), unit()}}.
-type spec() :: #{rate := rate(), burst => pos_integer(), algorithm => token_bucket, scope => local | cluster | exact,
                  on_error => allow | deny, shadow => boolean(), max_keys => pos_integer(),
                  partition => open | share | closed, large_hits => admit | claim,
                  timeout => Ms :: pos_integer(), flush_after => Ms :: pos_integer() | infinity}.
-type name() :: atom() | binary().
%% `spec' has every option; `interval_ns' is the emission interval T.
-type compiled() :: #{capacity := pos_integer(), interval_ns := pos_integer(), max_keys := pos_integer(),
                      shadow := boolean(), on_error := allow | deny, spec := spec()}.

%% A bucket must be full again within 2^60 ns, so that its times fit 62 bits for the next 80 years.
-define(MAX_SPAN_NS, (1 bsl 60)).
-define(MAX_KEYS, (1 bsl 28)).
-define(MAX_NAME_BYTES, 255).
-define(MAX_TIMEOUT_MS, 60000).
-define(MAX_FLUSH_AFTER_MS, 86400000).
-define(COMPILED, "compiled:").

%% @doc Checks a specification and compiles it. The message of an error is a sentence for whoever wrote the specification:
%% it names the option, says what it should be, and what it was.
-spec parse(spec() | term()) -> {ok, compiled()} | {error, Message :: binary()}.
parse(Spec) when is_map(Spec) ->
    try
        ok = no_unknown(maps:keys(Spec) -- options()),
        {N, PeriodNs} = rate(maps:get(rate, Spec, missing)),
        Burst = positive(burst, maps:get(burst, Spec, N)),
        only(algorithm, token_bucket, Spec),
        Cluster = cluster(Spec),
        OnError = one_of(on_error, [allow, deny], Spec, allow),
        Shadow = one_of(shadow, [true, false], Spec, false),
        MaxKeys = positive(max_keys, maps:get(max_keys, Spec, 1000000)),
        MaxKeys =< ?MAX_KEYS orelse
            fail("max_keys is at most ~b (2^28), got ~b: spread the keys over several limiters", [?MAX_KEYS, MaxKeys]),
        IntervalNs = interval(N, PeriodNs),
        span(Burst, IntervalNs),
        {ok, #{capacity => Burst, interval_ns => IntervalNs, max_keys => MaxKeys, shadow => Shadow, on_error => OnError,
               spec => Cluster#{rate => maps:get(rate, Spec), burst => Burst, algorithm => token_bucket,
                                on_error => OnError, shadow => Shadow, max_keys => MaxKeys}}}
    catch
        throw:{bad_spec, Message} -> {error, Message}
    end;
parse(Spec) ->
    {error, weir_error:sentence("a limiter is specified by a map like #{rate => {5, minute}}, got ~ts", [short(Spec)])}.

%% @doc The name as the binary that it is known by: `login' and `<<"login">>' are one limiter.
-spec name(name() | term()) -> {ok, binary()} | {error, Message :: binary()}.
name(Name) when is_atom(Name) ->
    name(atom_to_binary(Name));
name(<<?COMPILED, _/binary>>) ->
    {error, <<"names that begin with \"compiled:\" are weir's own: choose another">>};
name(Name) when is_binary(Name), byte_size(Name) >= 1, byte_size(Name) =< ?MAX_NAME_BYTES ->
    {ok, Name};
name(Name) when is_binary(Name) ->
    {error, weir_error:sentence("a limiter's name has 1 to ~b bytes, got ~b", [?MAX_NAME_BYTES, byte_size(Name)])};
name(Name) ->
    {error, weir_error:sentence("a limiter's name is an atom or a binary, got ~ts", [short(Name)])}.

%% @private
%% @doc The name under which {@link weir:compile/1} keeps a policy: the same for policies that decide alike.
-spec compiled_name(compiled()) -> binary().
compiled_name(#{capacity := Capacity, interval_ns := IntervalNs, max_keys := MaxKeys, shadow := Shadow,
                on_error := OnError}) ->
    weir_error:sentence(?COMPILED "capacity=~b,interval_ns=~b,max_keys=~b,shadow=~s,on_error=~s",
            [Capacity, IntervalNs, MaxKeys, Shadow, OnError]).

%% @private
%% @doc The number by which the machines know a limiter of this name; 0 is none.
-spec number(binary()) -> pos_integer().
number(Name) ->
    1 + erlang:phash2(Name, (1 bsl 32) - 2).

%% @private
%% @doc What the machine is told of a limiter, in its units.
-spec terms(compiled(), Version :: pos_integer()) -> weir_machine:terms().
terms(#{capacity := Capacity, interval_ns := IntervalNs, spec := Spec}, Version) ->
    #{partition := Partition, timeout := Timeout, flush_after := FlushAfter} = Spec,
    #{capacity => Capacity, interval_ns => IntervalNs, version => Version, partition => Partition, large_hits => large_hits(Spec),
      claim_timeout => Timeout * 1000000,
      flush_after => case FlushAfter of infinity -> 0; Ms -> Ms * 1000000 end}.

%% @private
%% @doc Who decides what: this node, the others in part, or the key's owner.
-spec large_hits(spec()) -> admit | claim | owner.
large_hits(#{scope := exact}) -> owner;
large_hits(#{large_hits := LargeHits}) -> LargeHits.

%% @private
%% @doc What to consider about this limiter on so many nodes, as a sentence; `none' if there is nothing to say. With a capacity
%% below two tokens a node, each admission is told to all the others, so that one more node costs one more message.
-spec advice(spec(), Nodes :: pos_integer()) -> none | binary().
advice(#{scope := cluster, burst := Burst}, Nodes) when Nodes > 1, Burst < 2 * Nodes ->
    weir_error:sentence("a burst of ~b on ~b nodes is less than two per node: each admission is told to all other nodes, and callers on several "
            "nodes at once get more than the burst (13 to 17 of 10 on five nodes). With scope => exact they get the burst, and a "
            "decision waits for another node, the key's owner, in ~b of ~b cases", [Burst, Nodes, Nodes - 1, Nodes]);
advice(_Spec, _Nodes) ->
    none.

%% ---- internal ----

options() ->
    [rate, burst, algorithm, scope, on_error, shadow, max_keys, partition, large_hits, timeout, flush_after].

cluster(Spec) ->
    #{scope => one_of(scope, [cluster, local, exact], Spec, cluster),
      partition => one_of(partition, [open, share, closed], Spec, open),
      large_hits => one_of(large_hits, [admit, claim], Spec, admit),
      timeout => ms(timeout, maps:get(timeout, Spec, 100), ?MAX_TIMEOUT_MS),
      flush_after => flush_after(maps:get(flush_after, Spec, infinity))}.

flush_after(infinity) -> infinity;
flush_after(Ms) -> ms(flush_after, Ms, ?MAX_FLUSH_AFTER_MS).

ms(_Option, Ms, Most) when is_integer(Ms), Ms >= 1, Ms =< Most -> Ms;
ms(Option, Ms, Most) -> fail("~s is from 1 to ~b milliseconds, got ~ts", [Option, Most, short(Ms)]).

no_unknown([]) ->
    ok;
no_unknown([Option | _]) ->
    fail("there is no option ~ts", [weir_options:unknown(Option, options())]).

rate({N, Per}) when is_integer(N), N >= 1 ->
    {N, period(Per)};
rate(missing) ->
    fail("rate is missing: give {N, Unit}, as in rate => {5, minute}", []);
rate(Rate) ->
    fail("rate is {N, Unit} with N a positive integer, as in {5, minute}, got ~ts", [short(Rate)]).

period({K, Unit}) when is_integer(K), K >= 1, is_atom(Unit) -> K * period(Unit);
period(second) -> 1000000000;
period(minute) -> 60 * period(second);
period(hour) -> 60 * period(minute);
period(day) -> 24 * period(hour);
period(Unit) -> fail("the unit of rate is second, minute, hour, day, or {K, Unit}, got ~ts", [short(Unit)]).

%% T = period / N, to the nearest nanosecond. From 1 us on that is less than 0.1 % off; below, it may be too much.
interval(N, PeriodNs) ->
    IntervalNs = (PeriodNs + N div 2) div N,
    IntervalNs >= 1000 orelse (IntervalNs >= 1 andalso abs(IntervalNs * N - PeriodNs) * 1000 =< PeriodNs) orelse
        fail("rate is too fast to be timed in nanoseconds within 0.1 %: one token each ~.3f ns. Count in units of 1000 "
             "hits: a thousandth of N, and a hit for every 1000", [PeriodNs / N]),
    IntervalNs.

span(Burst, IntervalNs) ->
    Burst * IntervalNs =< ?MAX_SPAN_NS orelse
        fail("burst takes ~b years to come back at this rate, and 36 is the most: lower burst, or count in larger units, "
             "a token for every ~b of yours",
             [Burst * IntervalNs div (365 * period(day)), Burst * IntervalNs div ?MAX_SPAN_NS + 1]).

positive(_Option, Value) when is_integer(Value), Value >= 1 -> Value;
positive(Option, Value) -> fail("~s is a positive integer, got ~ts", [Option, short(Value)]).

one_of(Option, Values, Spec, Default) ->
    Value = maps:get(Option, Spec, Default),
    lists:member(Value, Values) orelse
        fail("~s is ~ts, got ~ts", [Option, lists:join(" or ", [atom_to_list(V) || V <- Values]), short(Value)]),
    Value.

only(Option, Only, Spec) ->
    case maps:get(Option, Spec, Only) of
        Only -> ok;
        Other -> fail("~s is ~s in this version of weir, got ~ts", [Option, Only, short(Other)])
    end.

-spec fail(io:format(), [term()]) -> no_return().
fail(Format, Args) ->
    throw({bad_spec, weir_error:sentence(Format, Args)}).

short(Term) ->
    io_lib:format("~0tP", [Term, 12]).
