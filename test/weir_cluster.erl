%% A cluster of real nodes for tests: processes of the system with weir, that talk to each other over the distribution on loopback.
%%
%% Each is controlled over its standard input and output, so that this node belongs to no cluster and sees them also when they
%% don't see each other. They connect by weir's doing alone (dist_auto_connect never), unless a test says otherwise. A link is
%% cut by changing the cookie that one side expects of the other, then breaking the connection.
-module(weir_cluster).

-include_lib("stdlib/include/assert.hrl").

%% Nodes.
-export([start/1, start/2, add/2, add/3, stop/1, stop_node/1, kill/1, terminate/1, suspend/1, resume/1, restart/2, options/1,
         options/2, node_of/1, call/4, eval/2]).
%% Links.
-export([join/1, join/2, cut/2, heal/2, see_each_other/1]).
%% Deciding.
-export([checks/4, everywhere/4, admitted/1, denied_by_all/3, members/1, machine_live/1]).
-export([wait_until/2, wait_until/3]).
%% On the nodes.
-export([ask_many/3, os_pid/0, counts/0]).

-export_type([peer/0]).

-record(peer, {name :: string(), node :: node(), control :: pid(), os_pid :: string(), args :: map()}).
-type peer() :: #peer{}.

-define(COOKIE, "weir_cluster_SUITE").
-define(CALL_MS, 30000).
-define(DEADLINE_MS, 30000).
%% A node starts within a second, on a machine that has nothing else to do.
-define(BOOT_MS, 60000).

%% So many nodes that run weir and know each other.
start(Count) ->
    start(Count, #{}).

%% Options: env (weir's), args (the VM's), os_env (the process'), connect_all, cookie, paths (of the code), weir (false: not started).
start(Count, Options) ->
    Peers = [one(peer:random_name("weir" ++ integer_to_list(I)), Options) || I <- lists:seq(1, Count)],
    maps:get(weir, Options, true) andalso join(Peers),
    Peers.

%% One more node, which finds the others connected when weir starts there.
add(Peers, Options) ->
    add(Peers, peer:random_name("weir"), Options).

add(Peers, Name, Options) ->
    Peer = one(Name, Options#{weir => false}),
    [true = call(Peer, net_kernel, connect_node, [P#peer.node]) || P <- Peers],
    maps:get(weir, Options, true) andalso start_weir(Peer#peer{args = Options}),
    Peer#peer{args = Options}.

one(Name, Options) ->
    Args = maps:get(args, Options, ["-kernel", "dist_auto_connect", "never", "prevent_overlapping_partitions", "false"]),
    {ok, Control, Node} =
        peer:start(#{name => Name, host => "127.0.0.1", longnames => true, connection => standard_io,
                     env => maps:get(os_env, Options, []), wait_boot => ?BOOT_MS,
                     args => ["-setcookie", maps:get(cookie, Options, ?COOKIE),
                              "-connect_all", atom_to_list(maps:get(connect_all, Options, false)),
                              "-kernel", "logger_level", maps:get(log, Options, "critical")]
                         ++ Args ++ lists:append([["-pa", P] || P <- maps:get(paths, Options, weir_test:code_paths())])}),
    Peer = #peer{name = Name, node = Node, control = Control, args = Options,
                 os_pid = peer:call(Control, os, getpid, [])},
    maps:get(weir, Options, true) andalso start_weir(Peer),
    Peer.

start_weir(#peer{args = Options} = Peer) ->
    _ = call(Peer, application, load, [weir]),
    [ok = call(Peer, application, set_env, [weir, Key, Value]) || {Key, Value} <- maps:to_list(maps:get(env, Options, #{}))],
    {ok, _} = call(Peer, application, ensure_all_started, [weir]),
    Peer.

stop(Peers) ->
    lists:foreach(fun stop_node/1, Peers).

stop_node(#peer{control = Control}) ->
    catch peer:stop(Control),
    ok.

%% As the kernel's out-of-memory killer does it.
kill(Peer) ->
    end_by("KILL", Peer).

%% As who stops a service does it: the VM stops its applications in order.
terminate(Peer) ->
    end_by("TERM", Peer).

end_by(Signal, #peer{os_pid = Pid, control = Control}) ->
    Monitor = monitor(process, Control),
    _ = os:cmd("kill -" ++ Signal ++ " " ++ Pid),
    receive {'DOWN', Monitor, _, _, _} -> ok end.

%% Stopped by the system: it neither reads nor ends.
suspend(#peer{os_pid = Pid}) ->
    os:cmd("kill -STOP " ++ Pid).

resume(#peer{os_pid = Pid}) ->
    os:cmd("kill -CONT " ++ Pid).

%% A node of the same name, connected to the others as weir starts.
restart(#peer{name = Name, args = Options}, Others) ->
    add(Others, Name, Options).

%% The options that it was started with, and those that it is to be restarted with.
options(#peer{args = Options}) -> Options.

options(Peer, Options) -> Peer#peer{args = Options}.

node_of(#peer{node = Node}) -> Node.

call(#peer{control = Control}, Module, Function, Args) ->
    peer:call(Control, Module, Function, Args, ?CALL_MS).

eval(Peer, Fun) ->
    call(Peer, erlang, apply, [Fun, []]).

%% ---- links

%% Connects all, and waits until all are members of all.
join(Peers) ->
    [_ = call(P, net_kernel, connect_node, [Q#peer.node]) || P <- Peers, Q <- Peers, P#peer.name < Q#peer.name],
    see_each_other(Peers).

join(Peer, Others) ->
    [true = call(Peer, net_kernel, connect_node, [P#peer.node]) || P <- Others],
    see_each_other([Peer | Others]).

%% All are connected members of all, and take part in each other's limits.
see_each_other(Peers) ->
    try wait_until(see_each_other, fun() -> lists:all(fun(P) -> sees(P, Peers) end, Peers) end)
    catch error:{never_came_true, see_each_other} ->
            error({never_see_each_other, [{P#peer.node, machine_live(P), call(P, weir_members, status, [])} || P <- Peers]})
    end.

sees(Peer, Peers) ->
    Members = members(Peer),
    Others = [P#peer.node || P <- Peers, P =/= Peer],
    lists:all(fun(Node) -> maps:get(Node, Members, none) =:= connected end, Others) andalso machine_live(Peer) >= length(Peers).

members(Peer) ->
    #{members := Members} = call(Peer, weir_members, status, []),
    maps:map(fun(_, #{state := State}) -> State end, Members).

machine_live(Peer) ->
    case call(Peer, weir_report, machine, []) of
        #{live := Live} -> Live;
        none -> 0
    end.

%% Between each of the one side and each of the other.
cut(Left, Right) ->
    [begin
         true = call(P, erlang, set_cookie, [Q#peer.node, wrong_cookie]),
         true = call(Q, erlang, set_cookie, [P#peer.node, other_wrong_cookie]),
         _ = call(P, erlang, disconnect_node, [Q#peer.node])
     end || P <- Left, Q <- Right],
    wait_until({cut, [P#peer.node || P <- Left]},
               fun() -> lists:all(fun({P, Q}) -> not lists:member(Q#peer.node, call(P, erlang, nodes, [])) end,
                                  [{P, Q} || P <- Left, Q <- Right] ++ [{Q, P} || P <- Left, Q <- Right])
               end).

%% The link works again; connecting is left to weir.
heal(Left, Right) ->
    [begin
         Cookie = list_to_atom(?COOKIE),
         true = call(P, erlang, set_cookie, [Q#peer.node, Cookie]),
         true = call(Q, erlang, set_cookie, [P#peer.node, Cookie])
     end || P <- Left, Q <- Right],
    ok.

%% ---- deciding

%% So many checks of a key on one node, one after the other; how many were admitted.
checks(Peer, Limiter, Key, Count) ->
    call(Peer, ?MODULE, ask_many, [Limiter, Key, Count]).

%% The same on all nodes at once; what each admitted.
everywhere(Peers, Limiter, Key, Count) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), checks(P, Limiter, Key, Count)} end) || P <- Peers],
    [receive {Pid, Admitted} -> Admitted end || Pid <- Pids].

admitted(Counts) -> lists:sum(Counts).

%% Waits until no node would admit the key.
denied_by_all(Peers, Limiter, Key) ->
    wait_until({denied_by_all, Limiter, Key},
               fun() -> lists:all(fun(P) -> not maps:get(allowed, call(P, weir, peek, [Limiter, Key])) end, Peers) end).

wait_until(What, Condition) ->
    wait_until(What, Condition, erlang:monotonic_time(millisecond) + ?DEADLINE_MS).

%% (With a pause: what is asked are other processes of this machine, which need its cores.)
wait_until(What, Condition, Deadline) ->
    case Condition() of
        true -> ok;
        false ->
            erlang:monotonic_time(millisecond) < Deadline orelse error({never_came_true, What}),
            receive after 20 -> ok end,
            wait_until(What, Condition, Deadline)
    end.

%% ---- on the nodes

ask_many(Limiter, Key, Count) ->
    length([allowed || _ <- lists:seq(1, Count), element(1, weir:check(Limiter, Key)) =:= allow]).

os_pid() -> os:getpid().

%% What must not grow.
counts() ->
    {ok, Machine} = weir_machine:attached(),
    #{atoms => erlang:system_info(atom_count), processes => erlang:system_info(process_count),
      ets => ets:info(weir_roster, size), tables => length(ets:all()), ports => length(erlang:ports()),
      state => maps:get(state, weir_machine:held(Machine)), registered => weir_machine:registered(Machine),
      origins => length(weir_machine:vector(Machine))}.
