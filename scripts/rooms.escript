#!/usr/bin/env escript
%% Looks whether a call goes one way: fails when Erlang modules or folders of c_src depend on each other in a circle, or when a
%% module calls the NIF that weir_nif doesn't list.
%%
%%   scripts/rooms.escript EBIN...      run from the checkout; EBIN holds compiled modules
%%
%% Of modules, calls and funs count, by xref; messages don't. Of folders, #include "..." counts: headers of include/weir, and those
%% named from c_src on (lab/thesis/wire.hpp) or lying beside.

main([]) ->
    io:format(standard_error, "scripts/rooms.escript: name the folders of compiled modules, as in _build/server/lib/weir/ebin~n", []),
    halt(2);
main(Ebins) ->
    Modules = modules(Ebins),
    Callers = lists:sort([Caller || {Caller, weir_nif} <- Modules]),
    Listed = lists:sort(listed(Ebins)),
    Wrong = circles("modules", Modules) ++ circles("folders", folders())
        ++ [io_lib:format("~s calls weir_nif, and isn't among its callers(): list it there, or call by a module that is", [M]) || M <- Callers -- Listed]
        ++ [io_lib:format("~s doesn't call weir_nif, which lists it among its callers()", [M]) || M <- Listed -- Callers],
    io:format("weir_nif is called by ~s~n", [lists:join(", ", [atom_to_list(M) || M <- Callers])]),
    [io:format(standard_error, "~ts~n", [Text]) || Text <- Wrong],
    halt(case Wrong of [] -> 0; _ -> 1 end).

%% {Caller, Callee} of the modules that lie there.
modules(Ebins) ->
    {ok, _} = xref:start(?MODULE),
    ok = xref:set_default(?MODULE, [{warnings, false}, {verbose, false}]),
    [{ok, _} = xref:add_directory(?MODULE, Ebin) || Ebin <- Ebins],
    {ok, Own} = xref:q(?MODULE, "AM"),
    {ok, Calls} = xref:q(?MODULE, "strict ME"),
    [Call || {Caller, Callee} = Call <- Calls, lists:member(Caller, Own), lists:member(Callee, Own)].

%% weir_nif says who may call it: -callers([...]).
listed(Ebins) ->
    [Beam | _] = [Path || Ebin <- Ebins, Path <- [filename:join(Ebin, "weir_nif.beam")], filelib:is_regular(Path)],
    {ok, {weir_nif, [{attributes, Attributes}]}} = beam_lib:chunks(Beam, [attributes]),
    proplists:get_value(callers, Attributes, []).

%% {Folder, Folder that it includes from}, "include/weir" among them.
folders() ->
    Files = filelib:wildcard("c_src/**/*.{cpp,hpp}") ++ filelib:wildcard("include/weir/*.hpp"),
    lists:usort([{From, To} || File <- Files, Include <- includes(File),
                               From <- [filename:dirname(File)], To <- [target(From, Include)], To =/= From, not core(From, To)]).

%% What a library's header declares, its .cpp defines: one room.
core("c_src/core", "include/weir") -> true;
core(_, _) -> false.

includes(File) ->
    {ok, Text} = file:read_file(File),
    case re:run(Text, "^#include \"([^\"]+)\"", [global, multiline, {capture, all_but_first, list}]) of
        {match, Found} -> [Include || [Include] <- Found];
        nomatch -> []
    end.

target(From, Include) ->
    Paths = [filename:join(Root, Include) || Root <- [From, "c_src", "include"]],
    case [Path || Path <- Paths, filelib:is_regular(Path)] of
        [Path | _] -> filename:dirname(Path);
        [] -> "?" ++ Include
    end.

circles(What, Edges) ->
    Graph = digraph:new(),
    [digraph:add_vertex(Graph, Vertex) || {A, B} <- Edges, Vertex <- [A, B]],
    [digraph:add_edge(Graph, A, B) || {A, B} <- Edges],
    Circles = digraph_utils:cyclic_strong_components(Graph),
    io:format("~b ~s, ~b edges, ~b circles~n", [digraph:no_vertices(Graph), What, length(Edges), length(Circles)]),
    [io_lib:format("a circle of ~s:~n~ts", [What, [io_lib:format("  ~s -> ~s~n", [A, B]) || {A, B} <- Edges, lists:member(A, Circle), lists:member(B, Circle)]])
     || Circle <- Circles].
