%% Nodes whose distribution goes over TLS, set up by the lines of doc/cluster.md: commands, files and flags are taken from that
%% page. Shows R32 of doc/requirements.md.
-module(weir_tls_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, see_each_other/1, denied_by_all/3, node_of/1, checks/4]).
-import(weir_cluster_SUITE, [start_all/2, put_everywhere/3, settle/1]).

-define(KEY, <<"alice">>).
-define(C, 30).
-define(PAGE_FOLDER, "/etc/weir/tls").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [limit_together, strangers_are_not_let_in].

init_per_suite(Config) ->
    Authority = folder(Config, "authority"),
    [_, _] = Commands = blocks("sh"),
    [ok = run(Authority, C) || C <- Commands],
    [{authority, Authority} | Config].

end_per_suite(_) -> ok.

init_per_testcase(_, Config) -> Config.

end_per_testcase(Case, Config) ->
    weir_cluster_SUITE:end_per_testcase(Case, Config).

%% Turn by turn two nodes admit what one limiter would, and their connection is TLS.
limit_together(Config) ->
    [A, B] = Peers = start_all(2, #{args => flags(?config(authority, Config))}),
    ok = put_everywhere(Peers, login, #{rate => {?C, {?C, day}}}),
    Admitted = [begin
                    Count = checks(P, login, ?KEY, 5),
                    settle(Peers),
                    Count
                end || _ <- lists:seq(1, ?C div 5), P <- Peers],
    ?assertEqual(?C, lists:sum(Admitted)),
    denied_by_all(Peers, login, ?KEY),
    [?assertMatch([_ | _], [S || S <- call(P, supervisor, which_children, [ssl_dist_sup])]) || P <- Peers],
    [?assertEqual([node_of(Q)], call(P, erlang, nodes, [])) || {P, Q} <- [{A, B}, {B, A}]].

%% Who knows the cookie and has no certificate, or one of another authority, or speaks no TLS, is kept out; nobody notices.
strangers_are_not_let_in(Config) ->
    Authority = ?config(authority, Config),
    [A, B] = Peers = start_all(2, #{args => flags(Authority)}),
    Other = folder(Config, "other"),
    [ok = run(Other, C) || C <- blocks("sh")],
    Without = folder(Config, "without"),
    {ok, _} = file:copy(filename:join(Authority, "ca.pem"), filename:join(Without, "ca.pem")),
    None = "[{server, [{verify, verify_none}]}, {client, [{cacertfile, \"" ++ filename:join(Without, "ca.pem") ++ "\"}, "
           "{verify, verify_peer}]}].",
    [begin
         [Stranger] = start_all(1, #{args => Args, weir => false}),
         ?assertEqual({What, false}, {What, call(Stranger, net_kernel, connect_node, [node_of(A)])}),
         ?assertEqual({What, false}, {What, call(A, net_kernel, connect_node, [node_of(Stranger)])}),
         ?assertEqual([], call(Stranger, erlang, nodes, []))
     end || {What, Args} <- [{other_authority, flags(Other)}, {no_certificate, flags(Without, None)}, {no_tls, never()}]],
    see_each_other(Peers),
    [?assertEqual([node_of(Q)], call(P, erlang, nodes, [])) || {P, Q} <- [{A, B}, {B, A}]].

%% ---- the page

flags(Folder) ->
    [Options] = blocks("erlang"),
    flags(Folder, in_folder(Options, Folder)).

flags(Folder, Options) ->
    ok = file:write_file(filename:join(Folder, "dist.config"), Options),
    [Flags] = blocks(""),
    never() ++ string:lexemes(in_folder(Flags, Folder), " \n").

never() ->
    ["-kernel", "dist_auto_connect", "never", "prevent_overlapping_partitions", "false"].

in_folder(Text, Folder) ->
    lists:flatten(string:replace(Text, ?PAGE_FOLDER, Folder, all)).

%% The section's fenced blocks of a language.
blocks(Language) ->
    {ok, Page} = file:read_file(filename:join([weir_test:root(), "doc", "cluster.md"])),
    [_, After] = string:split(Page, "\n## Distribution over TLS\n"),
    [Section | _] = string:split(After, "\n## "),
    {match, Found} = re:run(Section, "^```([a-z]*)\n(.*?)^```$", [global, multiline, dotall, {capture, all_but_first, list}]),
    [Text || [L, Text] <- Found, L =:= Language].

%% With the host of these nodes.
run(Folder, Command) ->
    Here = re:replace(Command, "^host=.*$", "host=127.0.0.1", [multiline, {return, list}]),
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-ec", Here]}, {cd, Folder}, exit_status, stderr_to_stdout, binary, hide]),
    {0, _} = weir_readme_SUITE:collect(Port, []),
    ok.

folder(Config, Name) ->
    Folder = filename:join(?config(priv_dir, Config), Name),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    Folder.
