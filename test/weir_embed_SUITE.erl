%% Applications that embed weir: the samples of examples/, built and started as their users would, in processes of their own.
%%
%% Each sample lets one address log in until it is denied, and then tells what its node loaded and started. Neither may know
%% of a web server, and nothing may listen.
%% Shows R17, R49 of doc/requirements.md.
-module(weir_embed_SUITE).
-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([otp_application/1, mix_project/1, mix_tests/1, cluster_application/1, a_copied_checkout_builds/1]).

-define(SERVER_APPS, [cowboy, cowlib, ranch, prometheus]).

%% How often the samples' limiter lets one address in at once.
-define(BURST, 5).

suite() ->
    [{timetrap, {minutes, 5}}].

all() ->
    [otp_application, mix_project, mix_tests, cluster_application, a_copied_checkout_builds].

otp_application(Config) ->
    Build = filename:join(?config(priv_dir, Config), "otp_app"),
    Folder = filename:join([root(), "examples", "otp_app"]),
    Env = [{"REBAR_BASE_DIR", Build}],
    {0, _} = run(Folder, Env, "rebar3", ["compile"]),
    Paths = filelib:wildcard(filename:join([Build, "default", "*", "*", "ebin"])),
    Ask = "{ok, _} = application:ensure_all_started(shop), Login = fun shop:login/1, " ++ report() ++ ", halt().",
    {0, Output} = run(Folder, Env, "erl", ["-noshell", "-pa" | Paths] ++ ["-eval", Ask]),
    #{sockets := Sockets} = Report = parse(Output),
    embeds_weir_alone(shop, Report),
    ?assertEqual(0, Sockets).

mix_project(Config) ->
    Build = filename:join(?config(priv_dir, Config), "mix_app"),
    Folder = filename:join([root(), "examples", "mix_app"]),
    Rebar = os:find_executable("rebar3"),
    Env = [{"MIX_REBAR3", Rebar}, {"MIX_BUILD_PATH", Build}, {"MIX_ENV", "prod"}, {"MIX_HOME", Build}],
    {0, _} = run(Folder, Env, "mix", ["compile"]),
    %% The same question as to the Erlang sample, in Erlang: what differs is how weir got there.
    Ask = "Login = fun 'Elixir.Shop':login/1, " ++ report() ++ ".",
    Elixir = "{:ok, tokens, _} = :erl_scan.string(String.to_charlist(System.fetch_env!(\"ASK\"))); "
             "{:ok, exprs} = :erl_parse.parse_exprs(tokens); :erl_eval.exprs(exprs, [])",
    {0, Output} = run(Folder, [{"ASK", Ask} | Env], "mix", ["run", "--no-compile", "-e", Elixir]),
    %% (Its sockets are not counted: mix itself holds one, by which it locks its build.)
    embeds_weir_alone(shop_ex, parse(Output)).

%% The project's own tests: weir's errors as Elixir shows them, by rescue and in the log of a crash.
mix_tests(Config) ->
    Build = filename:join(?config(priv_dir, Config), "mix_tests"),
    Folder = filename:join([root(), "examples", "mix_app"]),
    Env = [{"MIX_REBAR3", os:find_executable("rebar3")}, {"MIX_BUILD_PATH", Build}, {"MIX_ENV", "test"},
           {"MIX_HOME", Build}],
    {Status, Output} = run(Folder, Env, "mix", ["test"]),
    ?assertMatch({0, {match, _}}, {Status, re:run(Output, "3 tests, 0 failures")}).

%% Three nodes find each other and hold one limit: as many visits are welcome as one node would admit, wherever they are. (With a port
%% mapper of their own, which ends with them, so that other nodes of those names don't matter.)
cluster_application(Config) ->
    Build = filename:join(?config(priv_dir, Config), "cluster_app"),
    Folder = filename:join([root(), "examples", "cluster_app"]),
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, FreePort} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Env = [{"REBAR_BASE_DIR", Build}, {"ERL_EPMD_PORT", integer_to_list(FreePort)}],
    {0, Output} = run(Folder, Env, "sh", ["run.sh"]),
    {match, Answers} = re:run(Output, "^([a-z]+)@localhost: (.*)$", [global, multiline, {capture, all_but_first, list}]),
    ?assertEqual(["one", "three", "two", "one", "three", "two"], [Node || [Node, _] <- Answers]),
    {Allowed, [Denied]} = lists:split(?BURST, [Answer || [_, Answer] <- Answers]),
    ?assertEqual(lists:duplicate(?BURST, "welcome"), Allowed),
    ?assertMatch("{come_back_in_ms," ++ _, Denied),
    {_, _} = run(Folder, Env, "epmd", ["-kill"]).

%% CMake's cache knows the folder that it was made in. A checkout that is copied or moved with what was built in it, as
%% by `COPY . .' of an image, builds all the same. (With weir's scripts and a library of one line, which takes no
%% minutes.)
a_copied_checkout_builds(Config) ->
    Old = filename:join([?config(priv_dir, Config), "old", "weir"]),
    [begin
         To = filename:join(Old, File),
         ok = filelib:ensure_dir(To),
         {ok, _} = file:copy(filename:join(root(), File), To)
     end || File <- ["c_src/build.sh", "scripts/lib.sh"]],
    ok = file:write_file(filename:join(Old, "CMakeLists.txt"),
                         "cmake_minimum_required(VERSION 3.16)\nproject(tiny LANGUAGES CXX)\n"
                         "add_library(weir_nif MODULE tiny.cpp)\n"
                         "set_target_properties(weir_nif PROPERTIES PREFIX \"\" "
                         "LIBRARY_OUTPUT_DIRECTORY \"${WEIR_PRIV}\")\n"
                         "add_executable(weir_test main.cpp)\n"),
    ok = file:write_file(filename:join(Old, "tiny.cpp"), "int tiny() { return 1; }\n"),
    ok = file:write_file(filename:join(Old, "main.cpp"), "int main() { return 0; }\n"),
    Builds = [{"sh", ["c_src/build.sh"]},
              {"sh", ["-c", "set -e; root=$PWD; . scripts/lib.sh; configure_in _build/cpp; "
                            "cmake --build _build/cpp --target weir_test"]}],
    [?assertMatch({0, _}, run(Old, [], Command, Args)) || {Command, Args} <- Builds],
    Copy = filename:join([?config(priv_dir, Config), "new", "weir"]),
    ok = filelib:ensure_dir(Copy),
    {0, _} = run(Old, [], "cp", ["-R", Old, Copy]),
    ok = file:rename(Old, Old ++ " is gone"),
    ok = file:write_file(filename:join(Copy, "tiny.cpp"), "int tiny() { return 2; }\n"),
    [?assertMatch({0, _}, run(Copy, [], Command, Args)) || {Command, Args} <- Builds].

embeds_weir_alone(App, #{answers := Answers, started := Started, loaded := Loaded}) ->
    {Allowed, [Denied]} = lists:split(?BURST, Answers),
    ?assertEqual(lists:duplicate(?BURST, welcome), Allowed),
    ?assertMatch({come_back_in_ms, Ms} when Ms > 0 andalso Ms =< 12_000, Denied),
    ?assert(lists:member(App, Started)),
    ?assert(lists:member(weir, Started)),
    ?assertEqual([], [A || A <- ?SERVER_APPS, lists:member(A, Started) orelse lists:member(A, Loaded)]).

%% Erlang source that asks the limiter once more than it allows, and prints an answer for parse/1.
report() ->
    lists:concat(
        ["Answers = [Login({192, 0, 2, 1}) || _ <- lists:seq(0, ", ?BURST, ")], ",
         "io:format(\"~nreport: ~0p.~n\", [#{answers => Answers, ",
         "started => [A || {A, _, _} <- application:which_applications()], ",
         "loaded => [A || {A, _, _} <- application:loaded_applications()], ",
         "sockets => length([P || P <- erlang:ports(), erlang:port_info(P, name) =:= {name, \"tcp_inet\"}])}])"]).

parse(Output) ->
    {match, [Text]} = re:run(Output, "^report: (.*)$", [multiline, {capture, all_but_first, list}]),
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, Term} = erl_parse:parse_term(Tokens),
    Term.

%% Runs a command to its end, without the Erlang libraries of this run; answers {ExitStatus, Output}.
run(Folder, Env, Command, Args) ->
    Cleared = [{"ERL_LIBS", false}, {"ERL_FLAGS", false}, {"ERL_AFLAGS", false}, {"REBAR_PROFILE", false} | Env],
    Port = open_port({spawn_executable, os:find_executable(Command)},
                     [{args, Args}, {cd, Folder}, {env, Cleared}, exit_status, stderr_to_stdout, binary, hide]),
    {Status, Output} = collect(Port, []),
    ct:pal("~ts ~tp~nstatus ~p~n~ts", [Command, Args, Status, Output]),
    {Status, Output}.

collect(Port, Sofar) ->
    receive
        {Port, {data, Data}} -> collect(Port, [Sofar, Data]);
        {Port, {exit_status, Status}} -> {Status, iolist_to_binary(Sofar)}
    end.

%% The source tree: Common Test compiles a copy, so the way there leads over the one who knows it, the current folder of the
%% build or one of its parents.
root() ->
    root(filename:dirname(proplists:get_value(source, ?MODULE:module_info(compile)))).

root(Folder) ->
    case filelib:is_regular(filename:join([Folder, "examples", "mix_app", "mix.exs"])) of
        true -> Folder;
        false when Folder =/= "/" -> root(filename:dirname(Folder))
    end.
