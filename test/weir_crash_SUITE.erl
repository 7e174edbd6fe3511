%% Processes of weir's that end on one node or on several, at the moment when it hurts: all see each other again, and nothing that
%% was admitted is lost. (In order, one after the other, they end in weir_cluster_SUITE:processes_crash.)
%% Shows R32 of doc/requirements.md.
-module(weir_crash_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [start/1, stop/1, call/4, node_of/1, see_each_other/1, wait_until/2, members/1]).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [end_is_heard_late, hellos_are_lost, run_is_not_told].

init_per_testcase(_, Config) ->
    [{peers, start(2)} | Config].

end_per_testcase(_, Config) ->
    stop(proplists:get_value(peers, Config)).

%% Both nodes hear that the other's process ended when its successor has said hello already: signals of two processes have no order.
end_is_heard_late(Config) ->
    [A, B] = Peers = proplists:get_value(peers, Config),
    [late(P, Q) || {P, Q} <- [{A, B}, {B, A}]],
    [_ = call(P, sys, get_state, [weir_members]) || P <- Peers],
    see_each_other(Peers),
    %% And each hears the other's end again.
    true = call(A, ?MODULE, end_weir, []),
    wait_until(missed, fun() -> members(B) =:= #{node_of(A) => away} end).

late(Peer, Other) ->
    true = call(Peer, ?MODULE, late_down, [node_of(Other)]).

%% The same, and what they say thereupon finds nobody.
hellos_are_lost(Config) ->
    [A, B] = Peers = proplists:get_value(peers, Config),
    Pids = [call(P, ?MODULE, without_name, []) || P <- Peers],
    [true = call(P, ?MODULE, late_down, [node_of(Q), Pid]) || {P, Q, Pid} <- lists:zip3(Peers, [B, A], Pids)],
    [_ = call(P, sys, get_state, [Pid]) || {P, Pid} <- lists:zip(Peers, Pids)],
    ?assertEqual([#{node_of(B) => away}, #{node_of(A) => away}], [members(P) || P <- Peers]),
    [true = call(P, erlang, register, [weir_members, Pid]) || {P, Pid} <- lists:zip(Peers, Pids)],
    see_each_other(Peers).

%% weir_members ended when it had taken another run, and hadn't told weir_replica of it.
run_is_not_told(Config) ->
    [A, B] = Peers = proplists:get_value(peers, Config),
    #{incarnation := Run} = call(A, weir_members, status, []),
    true = call(A, ets, insert, [weir_members, {incarnation, Run + 1}]),
    true = call(A, erlang, exit, [call(A, erlang, whereis, [weir_members]), kill]),
    wait_until(renewed, fun() -> call(A, weir_members, machine, []) =:= Run + 1 end),
    see_each_other(Peers),
    wait_until(told, fun() -> #{members := #{} = Of} = call(B, weir_members, status, []), Run + 1 =:= maps:get(incarnation, maps:get(node_of(A), Of)) end).

%% ---- on the nodes

late_down(Node) ->
    late_down(Node, whereis(weir_members)).

%% As the monitor of the other's process would say it.
late_down(Node, Pid) ->
    [Monitor] = [Ref || #{Node := Ref} <- tuple_to_list(sys:get_state(Pid)), is_reference(Ref)],
    Pid ! {'DOWN', Monitor, process, {weir_members, Node}, killed},
    true.

without_name() ->
    Pid = whereis(weir_members),
    true = unregister(weir_members),
    Pid.

end_weir() ->
    exit(whereis(weir_sup), kill).
