%% The gate. On any node:  gate:visit(alice).  Five times a minute in all, wherever that is.
-module(gate).
-export([visit/1, tour/1]).

-define(VISITOR, alice).
-define(POLL_MS, 20).
-define(DEADLINE_MS, 60000).

-spec visit(term()) -> welcome | {come_back_in_ms, pos_integer() | infinity}.
visit(Who) ->
    case weir:check(visits, Who) of
        {allow, _Remaining} -> welcome;
        {deny, Ms} -> {come_back_in_ms, Ms}
    end.

%% What run.sh shows: once so many nodes are together, one visitor tries one after the other.
-spec tour(pos_integer()) -> ok.
tour(Count) ->
    wait_until(fun() -> length(connected()) =:= Count - 1 end),
    Nodes = lists:sort([node() | connected()]),
    lists:foreach(fun(Node) -> io:format("~s: ~0p~n", [Node, erpc:call(Node, ?MODULE, visit, [?VISITOR])]), told(Nodes) end,
                  Nodes ++ Nodes),
    lists:foreach(fun(Node) -> erpc:cast(Node, init, stop, []) end, Nodes).

connected() ->
    #{members := Members} = weir_members:status(),
    [Node || {Node, #{state := connected}} <- maps:to_list(Members)].

%% The others hear of a visit within a millisecond or so. The tour waits for it, so that it tells the same story on any machine.
told(Nodes) ->
    wait_until(fun() -> 1 =:= length(lists:usort([maps:get(remaining, erpc:call(N, weir, peek, [visits, ?VISITOR])) || N <- Nodes])) end).

wait_until(Condition) ->
    wait_until(Condition, erlang:monotonic_time(millisecond) + ?DEADLINE_MS).

wait_until(Condition, Deadline) ->
    case Condition() of
        true -> ok;
        false ->
            erlang:monotonic_time(millisecond) < Deadline orelse error(it_takes_too_long),
            receive after ?POLL_MS -> wait_until(Condition, Deadline) end
    end.
