%% Processes of weir's that end on one node or on several, at the moment when it hurts: all see each other again, and nothing that
%% was admitted is lost. (In order, one after the other, they end in weir_cluster_SUITE:processes_crash.)
%% Shows R32 of doc/requirements.md.
-module(weir_crash_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [start/1, stop/1, call/4, kill/1, node_of/1, see_each_other/1, wait_until/2, members/1]).

-define(C, 300).
-define(KEYS, 100).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [end_is_heard_late, hellos_are_lost, run_is_not_told, replica_is_not_told, unsent_of_the_run_before, admitted_alone_in_the_run_before].

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
    true = call(A, ets, insert, [weir_roster, {incarnation, Run + 1}]),
    true = call(A, erlang, exit, [call(A, erlang, whereis, [weir_members]), kill]),
    wait_until(renewed, fun() -> call(A, weir_roster, machine_run, []) =:= Run + 1 end),
    see_each_other(Peers),
    wait_until(told, fun() ->
                             #{members := Members} = call(B, weir_members, status, []),
                             Run + 1 =:= maps:get(incarnation, maps:get(node_of(A), Members))
                     end).

%% The same, when it had forgotten a node.
replica_is_not_told(Config) ->
    [A, B] = proplists:get_value(peers, Config),
    kill(B),
    wait_until(away, fun() -> members(A) =:= #{node_of(B) => away} end),
    true = call(A, ets, delete, [weir_roster, {member, node_of(B)}]),
    ?assertMatch(#{registered := 2}, call(A, weir_report, machine, [])),
    true = call(A, erlang, exit, [call(A, erlang, whereis, [weir_members]), kill]),
    wait_until(told, fun() -> maps:get(registered, call(A, weir_report, machine, [])) =:= 1 end).

%% A node that hears of a later run of its own begins one that is later still: what the machine before had not sent is told, once. One token of each
%% key is less than what a node tells its neighbour for the case of its death.
unsent_of_the_run_before(Config) ->
    [A, B] = Peers = proplists:get_value(peers, Config),
    ok = put_everywhere(A, Peers),
    #{incarnation := Run} = call(A, weir_members, status, []),
    ok = call(A, ?MODULE, one_of_each, []),
    ?assertEqual([?C], left_on(B)),
    ok = heard_of_run(B, A, Run + 1000),
    told_once(Peers, Run + 1000).

%% The same, but it is alone as yet, and hears of the later run from the first node that it meets.
admitted_alone_in_the_run_before(Config) ->
    [A, B] = Peers = proplists:get_value(peers, Config),
    ok = put_everywhere(A, Peers),
    ok = call(A, application, stop, [weir]),
    _ = call(A, erlang, disconnect_node, [node_of(B)]),
    {ok, _} = call(A, application, ensure_all_started, [weir]),
    ok = put_everywhere(A, [A]),
    #{incarnation := Run} = call(A, weir_members, status, []),
    ok = call(A, ?MODULE, one_of_each, []),
    ok = heard_of_run(B, A, Run + 1000),
    _ = call(A, net_kernel, connect_node, [node_of(B)]),
    told_once(Peers, Run + 1000).

put_everywhere(Peer, Peers) ->
    ok = call(Peer, weir, put_limiter, [login, #{rate => {?C, {?C, day}}}]),
    wait_until(limiter, fun() -> lists:all(fun(P) -> is_map_key(<<"login">>, call(P, weir, limiters, [])) end, Peers) end),
    %% Tables have it a moment before machines do.
    lists:foreach(fun(P) -> call(P, sys, get_state, [weir_registry]) end, Peers).

%% As another run of that node would have said it. (With what this run puts into its frames: they are taken by what it had said.)
heard_of_run(Peer, Of, Run) ->
    call(Peer, ?MODULE, says_hello, [node_of(Of), Run, call(Of, weir_roster, token, [node_of(Peer)])]).

%% All know one token of each key, and no more when nothing is on its way. (The run is a later one than was heard of.)
told_once([A | _] = Peers, Run) ->
    wait_until(renewed, fun() -> call(A, weir_roster, machine_run, []) > Run end),
    [wait_until({told, node_of(P)}, fun() -> left_on(P) =:= [?C - 1] end) || P <- Peers],
    see_each_other(Peers),
    wait_until(quiet, fun() -> lists:all(fun(P) -> call(P, ?MODULE, quiet, []) end, Peers) end),
    ?assertEqual([[?C - 1], [?C - 1]], [left_on(P) || P <- Peers]).

%% What is left of the keys, each number once.
left_on(Peer) ->
    call(Peer, ?MODULE, left, []).

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

says_hello(Node, Run, Token) ->
    Hello = #{node => Node, id => weir_members:node_id(Node), incarnation => Run, secret => ets:lookup_element(weir_roster, secret, 2),
              yours => 0, members => [], left => [], versions => weir_hello:versions(), features => [], token => Token},
    weir_members ! {weir_members, weir_hello:envelope(), hello, Hello},
    ok.

one_of_each() ->
    [{allow, _} = weir:check(login, {key, I}) || I <- lists:seq(1, ?KEYS)],
    ok.

left() ->
    lists:usort([maps:get(remaining, weir:peek(login, {key, I})) || I <- lists:seq(1, ?KEYS)]).

quiet() ->
    _ = sys:get_state(weir_replica),
    {ok, Machine} = weir_machine:attached(),
    weir_machine:quiet(Machine) andalso not weir_machine:copying(Machine).
