%% @doc Whether this node knows what the others know, so that requests may be sent to it.
%%
%% A node that has just started decides at once, but on an empty table: until it has found the others and copied their state, it
%% admits what they would deny. Load balancers should wait for it (`GET /healthz' answers 503 until then), and so may an
%% application. Once ready it stays so: decisions never depend on it.
%%
%% It waits for others that don't answer, and for a copy that nobody gives, for half a minute at most.
-module(weir_ready).

-export([check/0]).

-define(MOST_MS, 30000).

%% @doc Costs a few microseconds; once ready, one look into a table.
-spec check() -> ready | {wait, Why :: binary()}.
check() ->
    case weir_roster:ready_since() of
        {ready, _} -> ready;
        {starting, Since} -> judge(Since)
    end.

judge(Since) ->
    Late = erlang:monotonic_time(millisecond) - Since > ?MOST_MS,
    case waits_for([fun members/0, fun discovery/0, fun state/0, fun owners/0]) of
        {wait, _} = Wait when not Late ->
            Wait;
        _ ->
            ok = weir_roster:set_ready(),
            ready
    end.

waits_for([]) ->
    ready;
waits_for([Part | Parts]) ->
    case Part() of
        ready -> waits_for(Parts);
        {wait, _} = Wait -> Wait
    end.

members() ->
    case weir_roster:phase() of
        starting -> {wait, <<"asks the connected nodes who belongs to the cluster">>};
        _ -> ready
    end.

discovery() ->
    case weir_discovery:status() of
        #{method := none} -> ready;
        #{lookups := 0} -> {wait, <<"looks for the other nodes">>};
        #{untried := 0} -> ready;
        #{untried := Count} -> {wait, <<"connects to ", (integer_to_binary(Count))/binary, " nodes that were found">>}
    end.

%% (The first frame of a node says how far its records go; what is missing then is asked for.)
state() ->
    Traffic = weir_traffic:all(),
    Unheard = [Node || Node <- weir_roster:connected(),
                       case Traffic of #{Node := #{heard_ns := Heard}} -> Heard =:= 0; #{} -> true end],
    case {weir_machine:attached(), Unheard} of
        {none, _} -> ready;
        {{ok, _}, [_ | _]} -> {wait, <<"waits for the first news of the other nodes">>};
        {{ok, Machine}, []} ->
            case weir_machine:quiet(Machine) of
                true -> ready;
                false -> {wait, <<"copies what the other nodes know">>}
            end
    end.

%% Of keys of `scope => exact'.
owners() ->
    case weir_roster:connected() -- weir_owner:sharing() of
        [] -> ready;
        [_ | _] -> {wait, <<"shares keys out among itself and the other nodes">>}
    end.
