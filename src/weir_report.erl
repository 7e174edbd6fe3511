%% @private
%% @doc How limits stand over the nodes: for {@link weir:explain/2} and metrics. Reads tables and the machine, asks no process.
-module(weir_report).

-export([explain/3, traffic/0, peers/0, cluster/0, machine/0, exceeded/0, bytes/1]).

%% Clocks that differ by less are not compared with limiters: reading those of thousands costs milliseconds.
-define(LEAST_SKEW_NS, 1000000).

%% What the cluster adds to the explanation of a key. `unsent' are tokens that this node admitted and no other knows, `share' the
%% most they may be before they are sent; `nodes' that are heard of now and those that belong to the cluster; of each other node
%% how long ago its last frame came, and how its clock stands to this one's; `overshoot' how many tokens beyond the capacity may
%% be admitted because births of other nodes are on their way (`expected': what arrives within one delay, twice, by the arrivals of
%% the last second, `worst': if each node were asked for all that is left within one delay), and have been (`exceeded'). Under
%% `scope => exact' also the key's `owner' and the `second', which stands by, as this node sees it.
%% With a name: its `source' (weir_source), and `advice' if there is any (weir_limiter).
%% The table's `memory_bytes' are with what the machine holds of its keys.
-spec explain(weir:limiter(), weir:key(), map()) -> map().
explain(Limiter, Key, Explained) ->
    case {spec(Limiter), weir_machine:attached()} of
        {none, _} ->
            #{scope => local};
        {{Name, #{scope := local}}, _} ->
            sourced(Name, #{scope => local});
        {{Name, #{scope := Scope, partition := Partition} = Spec}, {ok, Machine}} ->
            #{table := #{memory_bytes := Bytes} = Table} = Explained,
            #{Name := Beside} = bytes([Name]),
            Of = #{scope => Scope, partition => Partition, nodes => nodes_of(Machine), peers => peers(Machine),
                   table => Table#{memory_bytes := Bytes + Beside}},
            KeyHash = weir_table:key_hash(Key),
            maps:merge(advised(Spec, Of, sourced(Name, owners(Scope, KeyHash, Of))), unsent(Machine, weir_limiter:number(Name), KeyHash, Spec, Explained));
        {{Name, #{scope := Scope, partition := Partition}}, none} ->
            sourced(Name, owners(Scope, weir_table:key_hash(Key),
                                 #{scope => Scope, partition => Partition, nodes => #{live => 1, registered => 1}, peers => []}))
    end.

%% (It may have been deleted meanwhile.)
sourced(Name, Of) ->
    case weir_specs:source(Name) of
        {ok, Source} -> Of#{source => Source};
        error -> Of
    end.

advised(Spec, #{nodes := #{live := Live}}, Of) ->
    case weir_limiter:advice(Spec, Live) of
        none -> Of;
        Advice -> Of#{advice => Advice}
    end.

%% Which node decides the key, and which one stands by.
owners(exact, KeyHash, Of) -> maps:merge(Of, weir_owner:owners(KeyHash));
owners(_, _KeyHash, Of) -> Of.

%% A limiter without a name, or deleted meanwhile, is nobody else's.
spec(Limiter) when is_reference(Limiter) ->
    none;
spec(Limiter) ->
    {ok, Name} = weir_limiter:name(Limiter),
    case weir_specs:spec(Name) of
        {ok, Spec} -> {Name, Spec};
        error -> none
    end.

nodes_of(Machine) ->
    #{live => weir_machine:live(Machine), registered => weir_machine:registered(Machine)}.

unsent(Machine, Number, Hash, Spec, #{capacity := Capacity, level := Level}) ->
    N = case Spec of
            #{partition := open} -> weir_machine:live(Machine);
            #{} -> weir_machine:registered(Machine)
        end,
    #{unsent => lists:sum([Births || {_, Births} <- weir_machine:unsent(Machine, Number, Hash)]),
      share => max(1, max(0, Capacity - Level) div N),
      overshoot => weir_machine:overshoot(Machine, Number, Hash, weir_clock:now())}.

peers(Machine) ->
    Now = weir_clock:now(),
    Traffic = weir_traffic:all(),
    [maps:merge(#{node => Node, staleness_ms => staleness(Node, Traffic, Now)}, clock(weir_machine:clock(Machine, Id)))
     || {Node, Id} <- lists:sort(weir_roster:others())].

%% How each other node's clock stands, and whether it is in quarantine.
-spec peers() -> [{node(), #{quarantined := boolean(), clock_offset_ns => integer(), round_trip_ns => integer()}}].
peers() ->
    [{Node, weir_machine:peer(Id)} || {Node, Id} <- lists:sort(weir_roster:others())].

%% What weir_watch looks at.
-spec cluster() -> weir_watch:facts() | none.
cluster() ->
    case weir_machine:attached() of
        {ok, Machine} ->
            Peers = peers(),
            Skewed = lists:any(fun({_, About}) -> abs(maps:get(clock_offset_ns, About, 0)) >= ?LEAST_SKEW_NS end, Peers),
            (nodes_of(Machine))#{away => weir_roster:away(), peers => Peers, horizons => [H || Skewed, H <- horizons()]};
        none ->
            none
    end.

%% In what time the bucket of each replicated limiter fills. (What was deleted has terms, too.)
horizons() ->
    [{Name, Capacity * Interval}
     || {Name, #{}, _} = Entry <- weir_specs:entries(),
        {_, #{capacity := Capacity, interval_ns := Interval}} <- [weir_specs:replicated(Entry)]].

staleness(Node, Traffic, Now) ->
    case Traffic of
        #{Node := #{heard_ns := Heard}} when Heard > 0 -> max(0, Now - Heard) div 1000000;
        #{} -> infinity
    end.

clock(unknown) -> #{};
clock({Offset, RoundTrip}) -> #{clock_offset_ns => Offset, round_trip_ns => RoundTrip}.

%% Frames and bytes of each other node.
-spec traffic() -> [{Node :: binary(), #{atom() => non_neg_integer()}}].
traffic() ->
    [{atom_to_binary(Node), Traffic} || {Node, Traffic} <- lists:sort(maps:to_list(weir_traffic:all()))].

%% Of each replicated limiter, the most that any of its keys was found above the capacity, and what was expected then.
-spec exceeded() -> [{Limiter :: binary(), weir_machine:overshoot()}].
exceeded() ->
    case weir_machine:attached() of
        {ok, Machine} ->
            [{Name, weir_machine:most_exceeded(Machine, weir_limiter:number(Name))}
             || {Name, #{scope := Scope}, _} <- lists:sort(weir_specs:entries()), Scope =/= local];
        none ->
            []
    end.

%% What the machine holds of the keys of limiters, beside their tables.
-spec bytes([Limiter :: binary()]) -> #{Limiter :: binary() => non_neg_integer()}.
bytes(Names) ->
    Replicated = [Name || Name <- Names, {_, #{scope := Scope}, _} <- [weir_specs:entry(Name)], Scope =/= local],
    case weir_machine:attached() of
        {ok, Machine} ->
            Bytes = weir_machine:bytes(Machine, [weir_limiter:number(Name) || Name <- Replicated]),
            maps:from_list(lists:zip(Replicated, Bytes));
        none ->
            #{}
    end.

%% What the machine counted, and the nodes that it knows.
-spec machine() -> #{atom() => non_neg_integer()} | none.
machine() ->
    case weir_machine:attached() of
        {ok, Machine} ->
            #{live := Live, registered := Registered} = nodes_of(Machine),
            maps:merge((weir_machine:stats(Machine))#{live => Live, registered => Registered}, weir_machine:births());
        none ->
            none
    end.
