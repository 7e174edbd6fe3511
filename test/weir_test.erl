%% What weir's suites have in common: weir started with time standing still, exceptions taken apart, work done by many
%% processes at once, other nodes.
-module(weir_test).

-include_lib("stdlib/include/assert.hrl").

%% weir in this node.
-export([start/0, start/1, stop/0, t0/0, stats/1]).
%% What is wrong.
-export([fault/1, fault/2, fault/3, raised/1]).
%% Properties.
-export([holds/1, holds/2]).
%% Many at once, and waiting.
-export([concurrently/2, wait_until/2, wait_until/3]).
%% Other nodes, other copies.
-export([start_peer/1, stop_peer/1, code_paths/0, root/0, ebin/0, copy_ebin/1, other_nif_module/1]).

-define(DEADLINE_MS, 20000).

%% Where time is stopped: any moment will do. It isn't a whole millisecond, so that rounding shows.
t0() -> 1700000000000000123.

%% Starts weir anew, without configuration or with this one, and stops time.
start() ->
    start(#{}).

start(Env) ->
    ok = stop(),
    _ = application:load(weir),
    [ok = application:set_env(weir, Name, Value) || {Name, Value} <- maps:to_list(Env)],
    {ok, _} = application:ensure_all_started(weir),
    weir_clock:freeze(t0()).

stop() ->
    _ = code:ensure_loaded(weir_nif) =:= {module, weir_nif} andalso weir_clock:thaw(),
    case application:stop(weir) of
        ok -> ok;
        {error, {not_started, weir}} -> ok
    end,
    [ok = application:unset_env(weir, Name) || {Name, _} <- application:get_all_env(weir)],
    ok.

stats(Name) ->
    [Stats] = [S || #{name := N} = S <- weir_table:stats(), N =:= Name],
    Stats.

%% The explanation of the `badarg' that Fun raises: a sentence.
fault(Fun) ->
    fault(Fun, [], none).

%% ... in which each of Words occurs.
fault(Fun, Words) ->
    fault(Fun, Words, none).

%% ... and neither in it nor in the exception, however it is printed, does Secret occur.
fault(Fun, Words, Secret) ->
    {Class, Reason, Stack} = raised(Fun),
    ?assertEqual({error, badarg}, {Class, Reason}),
    Text = weir_error:explain(Reason, Stack),
    ?assert(is_binary(Text)),
    ?assert(string:length(Text) > 15),
    ?assertEqual(Text, unicode:characters_to_binary(maps:get(general, weir_error:format_error(Reason, Stack)))),
    [?assertMatch({W, _, [_ | _]}, {W, Text, [found || string:find(Text, W) =/= nomatch]}) || W <- Words],
    %% Shells and loggers print the same.
    Printed = unicode:characters_to_binary(erl_error:format_exception(Class, Reason, Stack)),
    ?assertNotEqual(nomatch, string:find(Printed, hd(string:lexemes(Text, "\n")))),
    [?assert(is_integer(Arity)) || {weir, _, Arity, _} <- Stack],
    hides(Secret, [Text, Printed, io_lib:format("~0tp", [Stack])]),
    Text.

%% The exception that Fun raises.
raised(Fun) ->
    try Fun() of
        Answer -> error({answered_instead_of_raising, Answer})
    catch
        Class:Reason:Stack -> {Class, Reason, Stack}
    end.

hides(none, _Texts) ->
    ok;
hides(Secret, Texts) ->
    [?assertEqual(nomatch, string:find(unicode:characters_to_binary(T), Secret)) || T <- Texts],
    ok.

%% WEIR_CASES cases of a property, or as many as the options say (numtests: 300); what PropEr prints goes to the log.
holds(Property) ->
    holds(Property, []).

holds(Property, Opts) ->
    Cases = [{numtests, list_to_integer(Cases)} || Cases <- [os:getenv("WEIR_CASES")], Cases =/= false],
    Print = fun(Format, Args) -> io:format(Format, Args) end,
    ?assertEqual(true, proper:quickcheck(Property, Cases ++ Opts ++ [{numtests, 300}, {on_output, Print}])).

%% The results of Fun(1) to Fun(N), run at the same time in processes of their own.
concurrently(N, Fun) ->
    Self = self(),
    Workers = [spawn_monitor(fun() -> receive go -> Self ! {self(), Fun(I)} end end) || I <- lists:seq(1, N)],
    [Pid ! go || {Pid, _} <- Workers],
    [result(Worker) || Worker <- Workers].

result({Pid, Monitor}) ->
    receive
        {Pid, Result} -> true = demonitor(Monitor, [flush]), Result;
        {'DOWN', Monitor, _, _, Reason} -> error({worker_died, Reason})
    after ?DEADLINE_MS * 2 ->
        error({worker_hangs, process_info(Pid, [current_stacktrace, messages])})
    end.

%% Waits for the condition, and fails with its name after a while.
wait_until(What, Condition) ->
    wait_until(What, Condition, ?DEADLINE_MS).

wait_until(What, Condition, Ms) ->
    wait(What, Condition, erlang:monotonic_time(millisecond) + Ms).

wait(What, Condition, Deadline) ->
    case Condition() of
        true -> ok;
        false ->
            erlang:monotonic_time(millisecond) < Deadline orelse error({never_came_true, What}),
            %% (What is waited for may be done by other programs, which need this machine's cores.)
            receive after 1 -> ok end,
            wait(What, Condition, Deadline)
    end.

%% Another node, a process of the system that is talked to over its standard input and output. It has this node's code.
start_peer(Args) ->
    {ok, Peer, _} = peer:start_link(#{connection => standard_io,
                                      args => Args ++ lists:append([["-pa", P] || P <- code_paths()])}),
    Peer.

stop_peer(Peer) ->
    peer:stop(Peer).

code_paths() ->
    [Path || Path <- code:get_path(), Path =/= ".", not lists:prefix(code:lib_dir(), Path)] ++
        [filename:dirname(code:which(?MODULE))].

%% The source tree: the tests run from a copy, so the way there leads over a folder that has what only it has.
root() ->
    root(filename:dirname(proplists:get_value(source, ?MODULE:module_info(compile)))).

root(Folder) ->
    Marks = [filename:join(Folder, "rebar.config"), filename:join([Folder, "include", "weir", "units.hpp"])],
    case lists:all(fun filelib:is_regular/1, Marks) of
        true -> Folder;
        false when Folder =/= "/" -> root(filename:dirname(Folder))
    end.

ebin() ->
    filename:dirname(code:which(weir)).

%% A copy of the application in Folder/weir, without the NIF; answers its ebin.
copy_ebin(Folder) ->
    Ebin = filename:join([Folder, "weir", "ebin"]),
    ok = filelib:ensure_dir(filename:join(Ebin, "x")),
    [{ok, _} = file:copy(F, filename:join(Ebin, filename:basename(F)))
     || F <- filelib:wildcard(filename:join(ebin(), "*"))],
    Ebin.

%% weir_nif as it would be compiled from a source with another `abi', or that loads its library from `library'.
other_nif_module(Changes) ->
    {ok, {weir_nif, [{abstract_code, {raw_abstract_v1, Forms}}]}} = beam_lib:chunks(code:which(weir_nif), [abstract_code]),
    Changed = [changed(Form, Changes) || Form <- Forms],
    ?assertNotEqual(Forms, Changed),
    {ok, weir_nif, Beam} = compile:forms(Changed, [debug_info]),
    Beam.

changed({function, Line, load, 0, Clauses}, Changes) ->
    {function, Line, load, 0, [change_clause(C, Changes) || C <- Clauses]};
changed(Form, _Changes) ->
    Form.

%% load() -> erlang:load_nif(filename:join(priv_dir(), "weir_nif"), ?ABI).
change_clause({clause, Line, [], [], [{call, L, LoadNif, [Path, Abi]}]}, Changes) ->
    NewPath = case Changes of
                  #{library := Library} -> {string, L, Library};
                  #{} -> Path
              end,
    NewAbi = case Changes of
                 #{abi := Number} -> {integer, L, Number};
                 #{} -> Abi
             end,
    {clause, Line, [], [], [{call, L, LoadNif, [NewPath, NewAbi]}]}.
