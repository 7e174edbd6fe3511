%% The release, as an operator meets it: built by scripts/release.sh, started and stopped as a process of its own.
%% Shows R19 of doc/requirements.md.
-module(weir_release_SUITE).
-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([answers_and_stops_on_a_signal/1, listens_to_nothing_but_http/1, takes_another_configuration/1,
         refuses_a_configuration_that_is_not_there/1, names_the_taken_port/1, holds_what_it_needs_and_no_more/1,
         brings_its_shared_libraries/1]).

%% The C library and its parts: these are the machine's.
-define(LIBC, ["linux-vdso", "linux-gate", "ld-linux", "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so",
               "libresolv.so", "libutil.so"]).

suite() ->
    [{timetrap, {minutes, 5}}].

all() ->
    [answers_and_stops_on_a_signal, listens_to_nothing_but_http, takes_another_configuration,
     refuses_a_configuration_that_is_not_there, names_the_taken_port, holds_what_it_needs_and_no_more,
     brings_its_shared_libraries].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(inets),
    Root = root(filename:dirname(proplists:get_value(source, ?MODULE:module_info(compile)))),
    {0, _} = await_exit(start(filename:join([Root, "scripts", "release.sh"]), [], [])),
    [{release, filename:join([Root, "_build", "server", "rel", "weir"])} | Config].

end_per_suite(_Config) ->
    ok.

%% (Not SIGINT: where the tests run in the background of a script it is ignored from the start, and a shell may not undo that.)
answers_and_stops_on_a_signal(Config) ->
    [begin
         Port = free_port(),
         Weir = start_weir(Config, [{"WEIR_HTTP_PORT", integer_to_list(Port)}]),
         await_http(Port, Weir),
         ?assertEqual(200, check(Port, "login")),
         signal(Signal, Weir),
         {Status, Output} = await_exit(Weir),
         ?assertEqual({Signal, 0}, {Signal, Status}),
         ?assertEqual(nomatch, binary:match(Output, <<"level=error">>))
     end || Signal <- ["TERM", "HUP"]].

listens_to_nothing_but_http(Config) ->
    Port = free_port(),
    Weir = start_weir(Config, [{"WEIR_HTTP_PORT", integer_to_list(Port)}]),
    await_http(Port, Weir),
    {os_pid, Shell} = erlang:port_info(Weir, os_pid),
    ?assertEqual([Port], lists:usort(lists:append([listening(Pid) || Pid <- descendants(Shell)]))),
    signal("TERM", Weir),
    {0, _} = await_exit(Weir).

takes_another_configuration(Config) ->
    Port = free_port(),
    File = filename:join(?config(priv_dir, Config), "other.config"),
    ok = file:write_file(File, io_lib:format("~p.~n", [[{weir, [{limiters, #{only => #{rate => {1, hour}}}},
                                                                {http, #{port => Port}}]}]])),
    Weir = start_weir(Config, [{"WEIR_CONFIG", File}, {"WEIR_HTTP_PORT", ""}]),
    await_http(Port, Weir),
    ?assertEqual([200, 429], [check(Port, "only"), check(Port, "only")]),
    ?assertEqual(404, check(Port, "login")),
    signal("TERM", Weir),
    {0, _} = await_exit(Weir).

refuses_a_configuration_that_is_not_there(Config) ->
    [begin
         {Status, Output} = await_exit(start_weir(Config, [{"WEIR_CONFIG", File}])),
         ?assertEqual(2, Status),
         ?assertMatch({_, _}, binary:match(Output, list_to_binary(File)))
     end || File <- ["/nowhere/weir.config", "/etc/passwd"]].

names_the_taken_port(Config) ->
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    Dump = filename:join(?config(priv_dir, Config), "taken.dump"),
    Weir = start_weir(Config, [{"WEIR_HTTP_PORT", integer_to_list(Port)}, {"ERL_CRASH_DUMP", Dump}]),
    {Status, Output} = await_exit(Weir),
    ?assertNotEqual(0, Status),
    ?assertMatch({_, _}, binary:match(Output, integer_to_binary(Port))),
    ok = gen_tcp:close(Taken).

holds_what_it_needs_and_no_more(Config) ->
    Names = [hd(string:split(filename:basename(F), "-")) || F <- filelib:wildcard(filename:join([release(Config), "lib", "*"]))],
    Needed = ["cowboy", "cowlib", "crypto", "jiffy", "kernel", "prometheus", "ranch", "sasl", "ssl", "stdlib", "weir"],
    ?assertEqual([], Needed -- Names),
    Foreign = ["rabbit", "common_test", "proper", "rebar", "compiler", "mnesia", "wx"],
    ?assertEqual([], [N || N <- Names, F <- Foreign, lists:prefix(F, N)]),
    %% Symbols are for those who debug: with them it would be 10 MB.
    [Nif] = filelib:wildcard(filename:join([release(Config), "lib", "weir-*", "priv", "weir_nif.so"])),
    ?assertMatch(Size when Size < 2000000, filelib:file_size(Nif)).

%% Each library that something in the release links is in it, or is part of the C library.
brings_its_shared_libraries(Config) ->
    Release = release(Config),
    Binaries = filelib:wildcard(filename:join([Release, "erts-*", "bin", "*"])) ++
        filelib:wildcard(filename:join([Release, "lib", "*", "priv", "**", "*.so"])),
    Linked = lists:usort(lists:append([linked(B) || B <- Binaries])),
    ?assert(lists:any(fun(L) -> lists:prefix("libcrypto", L) end, Linked)),
    Missing = [L || L <- Linked, not lists:any(fun(C) -> lists:prefix(C, filename:basename(L)) end, ?LIBC),
                    not filelib:is_regular(filename:join([Release, "syslib", L]))],
    ?assertEqual([], Missing).

linked(Binary) ->
    {_, Output} = await_exit(start(os:find_executable("ldd"), [Binary], [])),
    case re:run(Output, "^\\s+(\\S+) =>", [global, multiline, {capture, all_but_first, list}]) of
        {match, Found} -> lists:append(Found);
        nomatch -> []
    end.

%% The commands of these stories.

release(Config) ->
    ?config(release, Config).

%% (Tests that run under nohup have SIGHUP ignored, and so would weir.)
start_weir(Config, Env) ->
    start(os:find_executable("env"), ["--default-signal=HUP", filename:join([release(Config), "bin", "weir"])], Env).

start(Command, Args, Env) ->
    open_port({spawn_executable, Command}, [{args, Args}, {env, Env}, exit_status, stderr_to_stdout, binary, hide]).

signal(Signal, Weir) ->
    {os_pid, Pid} = erlang:port_info(Weir, os_pid),
    {0, _} = await_exit(start(os:find_executable("kill"), ["-" ++ Signal, integer_to_list(Pid)], [])).

await_exit(Port) ->
    await_exit(Port, []).

await_exit(Port, Sofar) ->
    receive
        {Port, {data, Data}} ->
            await_exit(Port, [Sofar, Data]);
        {Port, {exit_status, Status}} ->
            ct:log("status ~p~n~ts", [Status, Sofar]),
            {Status, iolist_to_binary(Sofar)}
    end.

%% Until it answers; the suite's timetrap is the deadline. A weir that ended instead says why.
await_http(Port, Weir) ->
    receive
        {Weir, {exit_status, Status}} -> error({ended, Status})
    after 20 ->
        case httpc:request(get, {url(Port, "/healthz"), []}, [], []) of
            {ok, {{_, 200, _}, _, _}} -> ok;
            {error, _} -> await_http(Port, Weir)
        end
    end.

check(Port, Limiter) ->
    Body = "{\"limiter\": \"" ++ Limiter ++ "\", \"key\": \"192.0.2.1\"}",
    {ok, {{_, Status, _}, _, _}} = httpc:request(post, {url(Port, "/v1/check"), [], "application/json", Body}, [], []),
    Status.

url(Port, Path) ->
    "http://127.0.0.1:" ++ integer_to_list(Port) ++ Path.

free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

descendants(Pid) ->
    Children = [list_to_integer(C) || F <- filelib:wildcard(lists:concat(["/proc/", Pid, "/task/*/children"])),
                                      C <- string:lexemes(contents(F), " \n")],
    [Pid | lists:append([descendants(C) || C <- Children])].

%% The TCP ports that a process listens on: its sockets, looked up among those of state 0A.
listening(Pid) ->
    Links = [L || F <- filelib:wildcard(lists:concat(["/proc/", Pid, "/fd/*"])), {ok, L} <- [file:read_link(F)]],
    Lines = lists:append([string:lexemes(contents(F), "\n") || F <- ["/proc/net/tcp", "/proc/net/tcp6"]]),
    [list_to_integer(lists:last(string:split(Local, ":", all)), 16)
     || Line <- Lines, [_, Local, _, "0A", _, _, _, _, _, Inode | _] <- [string:lexemes(Line, " ")],
        lists:member("socket:[" ++ Inode ++ "]", Links)].

contents(File) ->
    case file:read_file(File) of
        {ok, Bytes} -> binary_to_list(Bytes);
        {error, _} -> ""
    end.

root(Folder) ->
    case filelib:is_regular(filename:join([Folder, "scripts", "release.sh"])) of
        true -> Folder;
        false when Folder =/= "/" -> root(filename:dirname(Folder))
    end.
