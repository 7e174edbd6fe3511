%% @private
%% @doc Tells other nodes the levels of keys of `scope => exact' limiters, when a change of nodes gives keys other owners; then ends.
%%
%% A message of levels is applied before the next one is sent, so that a slow node has one waiting and the link stays free for
%% questions. What is said last (`welcome', `bye') arrives when all levels are there. It exits `normal' only if everybody took all.
-module(weir_handover).

-export([start/3]).

-export_type([told/0, last/0]).

-type told() :: [{node(), Levels :: binary()}].
-type last() :: welcome | bye | none.

%% kLevels of c_src/nif/owner_nif.cpp, of 20 bytes each.
-define(PART, 20480).
%% Until a node that takes nothing is given up.
-define(CALL_MS, 5000).

%% To each of the nodes, at once, what Scan finds for it, and the last word.
-spec start([node()], fun(() -> told()), last()) -> {pid(), Monitor :: reference()}.
start(Nodes, Scan, Last) ->
    spawn_monitor(fun() ->
                          %% One node's failure is not the others', but who ends this process ends all.
                          _ = process_flag(trap_exit, true),
                          Told = Scan(),
                          Monitors = [spawn_opt(fun() -> tell(Node, iolist_to_binary(proplists:get_all_values(Node, Told)), Last) end, [link, monitor])
                                      || Node <- Nodes],
                          case [Node || {Node, Monitor} <- lists:zip(Nodes, Monitors), not ended(Monitor)] of
                              [] -> ok;
                              Missed -> exit({shutdown, {not_told, Missed}})
                          end
                  end).

ended({_, Monitor}) ->
    receive {'DOWN', Monitor, process, _, Reason} -> Reason =:= normal end.

%% A node that isn't there, or ends meanwhile, is no fault.
tell(Node, Levels, Last) ->
    try told(Node, Levels, Last)
    catch exit:_ -> exit({shutdown, {not_told, Node}})
    end.

told(Node, <<Part:?PART/binary, Levels/binary>>, Last) when byte_size(Levels) > 0 ->
    ok = call(Node, {levels, Part}),
    told(Node, Levels, Last);
told(Node, Levels, Last) ->
    _ = Levels =:= <<>> orelse (ok = call(Node, {levels, Levels})),
    _ = Last =:= none orelse (ok = call(Node, Last)),
    ok.

call(Node, What) ->
    case gen_server:call({weir_owner, Node}, {weir_owner, 1, node(), What}, ?CALL_MS) of
        ok -> ok;
        Refused -> exit(Refused)
    end.
