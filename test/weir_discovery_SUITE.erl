%% Discovery, with real nodes, files, name servers (dnsmasq) and etcd, all on loopback.
%%
%% Discovery runs in this node, which is given a name, or in peers. A server lives as long as the test that started it: its
%% shell kills it when the pipe from here is closed, however that came about.
-module(weir_discovery_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").
-include_lib("public_key/include/public_key.hrl").

-behaviour(weir_discovery).

-compile([export_all, nowarn_export_all]).

-define(COOKIE, "weir_discovery_suite").
%% As in weir_discovery_names and weir_discovery.
-define(MAX_NODES, 1024).
-define(MAX_ATOMS, 10000).
-define(MAX_ATTEMPTS, 16).
%% Until etcd must have started.
-define(ETCD_MS, 60000).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [bad_options, etcd_without_eetcd, none_is_nothing, names, names_for_each_kind_of_node,
     list_connects, lost_nodes_come_back, hanging_nodes_delay_nobody, more_hanging_nodes_than_attempts, node_without_a_name,
     dns_addresses, dns_ipv6, dns_srv, dns_failures, hostile_dns,
     file_changes, broken_files, hostile_file,
     etcd_register, etcd_away, etcd_dead_nodes_and_next_endpoints, hostile_etcd, etcd_with_tls, etcd_leaves_nothing,
     under_a_supervisor, own_method, own_method_fails, own_method_hangs, crashed_finder, failures_are_logged_once, page].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(ssl),
    %% (A peer of a node without a name starts no epmd, nor does net_kernel:start.)
    _ = os:cmd(filename:join([code:root_dir(), "erts-" ++ erlang:system_info(version), "bin", "epmd"]) ++ " -daemon"),
    {ok, _} = net_kernel:start([list_to_atom(peer:random_name("ct") ++ "@127.0.0.1"), longnames]),
    true = erlang:set_cookie(node(), list_to_atom(?COOKIE)),
    Config.

end_per_suite(_Config) ->
    ok = application:set_env(kernel, net_setuptime, 7),
    net_kernel:stop().

end_per_testcase(_Case, _Config) ->
    case whereis(weir_discovery) of
        undefined -> ok;
        Pid -> gen_server:stop(Pid)
    end.

%% ---- configuration

bad_options(_) ->
    _ = process_flag(trap_exit, true),
    [begin
         {error, {bad_config, discovery, Message}} = weir_discovery:start_link(Given),
         ?assert(is_binary(Message)),
         [?assertMatch({_, _, {_, _}}, {Given, Message, binary:match(Message, iolist_to_binary(Word))}) || Word <- Words],
         ?assertEqual({Given, nomatch}, {Given, binary:match(Message, <<"s3cret">>)})
     end || {Given, Words} <-
                [{sometimes, ["none", "list, dns, file, etcd"]},
                 {{list, [a@b]}, ["map of options", "list"]},
                 {{"list", #{}}, ["none", "{list, #{nodes"]},
                 {{lits, #{}}, ["lits", "list, dns, file, etcd"]},
                 {{lists, #{}}, ["lists", "init/1"]},
                 {{list, #{}}, ["nodes is missing", "weir@10.0.0.1"]},
                 {{list, #{nodes => ["weir"]}}, ["nodes must be", "weir"]},
                 {{list, #{nodes => ["weir@h" | "x"]}}, ["nodes must be"]},
                 {{list, #{nodes => [], node => 1}}, ["no option node", "nodes"]},
                 {{file, #{}}, ["path is missing"]},
                 {{file, #{path => ""}}, ["path must be"]},
                 {{file, #{path => "x", interval_ms => 0}}, ["interval_ms", "from 1", "not 0"]},
                 {{dns, #{}}, ["name is missing"]},
                 {{dns, #{name => "a b"}}, ["name must be", "a b"]},
                 {{dns, #{name => lists:duplicate(300, $a)}}, ["name must be"]},
                 {{dns, #{name => "x.y", type => txt}}, ["type must be a, aaaa or srv", "txt"]},
                 {{dns, #{name => "x.y", prefix => "we@ir"}}, ["prefix"]},
                 {{dns, #{name => "x.y", nameservers => []}}, ["nameservers"]},
                 {{dns, #{name => "x.y", nameservers => [{"127.0.0.1", 0}]}}, ["nameservers"]},
                 {{dns, #{name => "x.y", nameservers => [{{1, 2, 3, 999}, 53}]}}, ["nameservers"]},
                 {{dns, #{name => "x.y", min_interval_ms => 5000, max_interval_ms => 1000}}, ["min_interval_ms", "5000", "1000"]},
                 {{dns, #{name => "x.y", timeout_ms => infinity}}, ["timeout_ms"]},
                 {{etcd, #{}}, ["endpoints is missing"]},
                 {{etcd, #{endpoints => []}}, ["endpoints"]},
                 {{etcd, #{endpoints => ["http://127.0.0.1:2379"]}}, ["endpoints", "Host:Port"]},
                 {{etcd, #{endpoints => ["h:1"], ttl_s => 1}}, ["ttl_s", "from 2"]},
                 {{etcd, #{endpoints => ["h:1"], timeout_ms => 5}}, ["timeout_ms", "from 100"]},
                 {{etcd, #{endpoints => ["h:1"], user => "me"}}, ["user and password"]},
                 {{etcd, #{endpoints => ["h:1"], password => "s3cret"}}, ["user and password"]},
                 {{etcd, #{endpoints => ["h:1"], user => "me", password => {"s3cret"}}}, ["password must be"]},
                 {{etcd, #{endpoints => ["h:1"], tls => []}}, ["cacertfile", "verify_none"]},
                 {{etcd, #{endpoints => ["h:1"], tls => true}}, ["tls must be"]},
                 {{?MODULE, #{refuse => true}}, ["this suite refuses"]}]].

%% As an application that embeds weir, and does not have it. (The path may have it in more than one folder: here it does.)
etcd_without_eetcd(Config) ->
    Copy = filename:join(?config(priv_dir, Config), "eetcd.beam"),
    {ok, _} = file:copy(code:which(eetcd), Copy),
    {Peer, _} = peer(["-pa", filename:dirname(Copy)]),
    [hide(Peer, Module) || Module <- [eetcd, gun]],
    {error, {bad_config, discovery, Message}} =
        peer:call(Peer, gen_server, start, [weir_discovery, {etcd, #{endpoints => ["127.0.0.1:2379"]}}, []]),
    [?assertMatch({_, {_, _}}, {Message, binary:match(Message, Word)}) || Word <- [<<"{eetcd, \"0.3.6\"}">>, <<"another method">>]],
    peer:stop(Peer).

hide(Peer, Module) ->
    case peer:call(Peer, code, which, [Module]) of
        non_existing ->
            ok;
        File ->
            true = peer:call(Peer, code, del_path, [filename:dirname(File)]),
            hide(Peer, Module)
    end.

none_is_nothing(_) ->
    ?assertEqual(ignore, weir_discovery:start_link(none)),
    ok = application:unset_env(weir, discovery),
    ?assertEqual(ignore, weir_discovery:start_link()),
    #{start := {Module, Function, []}} = weir_discovery:child_spec(),
    ?assertEqual(ignore, Module:Function()),
    ?assertMatch(#{method := none, found := [], connected := [], error := none}, weir_discovery:status()).

%% ---- names

names(_) ->
    Long = lists:duplicate(250, $h),
    [?assertEqual({Good, {ok, iolist_to_binary(Good)}}, {Good, weir_discovery_names:parse(Good)})
     || Good <- ["weir@10.0.0.1", <<"weir@h">>, "w-e_1@weir-0.weir.default.svc.cluster.local", "weir@::1", "weir@2001:db8::1",
                 "weir@2001:db8::192.0.2.1", "WEIR@Host", "1@2", "abcd@" ++ Long]],
    ?assertEqual({ok, <<"a@b">>}, weir_discovery_names:parse(a@b)),
    [?assertEqual({Bad, error}, {Bad, weir_discovery_names:parse(Bad)})
     || Bad <- ["", "weir", "@", "weir@", "@h", "we ir@h", "weir@h ", " weir@h", "weir@h\n", "weir\n@h", "weir@h@h", "weir@-h", "weir@h-",
                "weir@h.", "weir@.h", "weir@[::1]", "weir@::g", "weir@fe80::1%eth0", "weir@1:2", "weir@h:4369", "wéir@h", [120, 64, 1234],
                "weir@h/..", "weir@h;rm", "abcde@" ++ Long, <<"weir@", 0, "h">>, <<"weir@", 255>>, 7, {a, b}, [a], ["a@b" | c], []]].

names_for_each_kind_of_node(_) ->
    Names = ["a@10.0.0.1", "a@h.x", "a@h", "a@::1", "a@2001:db8::192.0.2.1"],
    [?assertEqual({Naming, Usable}, {Naming, [atom_to_list(N) || N <- element(1, weir_discovery_names:sift(Names, sets:new(), Naming))]})
     || {Naming, Usable} <- [{#{domain => longnames, ipv6 => false}, ["a@10.0.0.1", "a@h.x"]},
                             {#{domain => shortnames, ipv6 => false}, ["a@h"]},
                             {#{domain => longnames, ipv6 => true}, ["a@10.0.0.1", "a@2001:db8::192.0.2.1", "a@::1", "a@h.x"]}]],
    {[], Refused} = weir_discovery_names:sift(["a@h", "a@h", "x y", z], sets:new(), #{domain => longnames, ipv6 => false}),
    ?assertEqual(#{unusable => {1, <<"<<\"a@h\">>">>}, malformed => {2, <<"\"x y\"">>}}, Refused).

%% ---- list

list_connects(_) ->
    {One, OneNode} = peer([]),
    {Two, TwoNode} = peer([]),
    Late = peer:random_name("late"),
    LateNode = node_of(Late),
    start({list, #{nodes => [OneNode, atom_to_binary(TwoNode), atom_to_list(LateNode), node(), OneNode]}}),
    await_connected([OneNode, TwoNode]),
    wait_until(late_node_tried, fun() -> maps:get(failed_attempts, status()) > 1 end),
    ?assertEqual(lists:sort([OneNode, TwoNode, LateNode]), maps:get(found, status())),
    {Three, LateNode} = peer(Late, []),
    await_connected([OneNode, TwoNode, LateNode]),
    ?assertMatch(#{method := list, error := none, refused := #{} = Refused} when map_size(Refused) =:= 0, status()),
    [peer:stop(Peer) || Peer <- [One, Two, Three]].

lost_nodes_come_back(_) ->
    Name = peer:random_name("back"),
    {First, Node} = peer(Name, []),
    start({list, #{nodes => [Node]}}),
    await_connected([Node]),
    peer:stop(First),
    await_connected([]),
    ?assertEqual([Node], maps:get(found, status())),
    {Second, Node} = peer(Name, []),
    await_connected([Node]),
    %% Somebody disconnects it. (Perhaps it is the first to connect again.)
    true = erlang:monitor_node(Node, true),
    true = erlang:disconnect_node(Node),
    receive {nodedown, Node} -> ok end,
    wait_until(connected_again, fun() -> lists:member(Node, nodes(connected)) andalso maps:get(connected, status()) =:= [Node] end),
    peer:stop(Second).

%% They accept the connection, and say nothing for a minute. All attempts but one hang, and that one is enough.
hanging_nodes_delay_nobody(_) ->
    ok = application:set_env(kernel, net_setuptime, 60),
    {Peer, Node} = peer([]),
    Hanging = hanging_nodes(?MAX_ATTEMPTS - 1),
    start({list, #{nodes => [Node | Hanging]}}),
    await_connected([Node]),
    ?assertMatch(#{failed_attempts := 0, attempts := ?MAX_ATTEMPTS}, status()),
    %% (That node's own attempt ends a moment after it is connected.)
    wait_until(one_ended, fun() -> length(attempts()) =:= ?MAX_ATTEMPTS - 1 end),
    %% Nor do they delay the end.
    Attempts = attempts(),
    ok = gen_server:stop(weir_discovery),
    ?assertEqual([], [Pid || Pid <- Attempts, is_process_alive(Pid)]),
    peer:stop(Peer).

%% Every node has its first attempt before another one has its second, though that is due long before the last ones' turn. Attempts
%% that begin at once are traced in any order.
more_hanging_nodes_than_attempts(_) ->
    ok = application:set_env(kernel, net_setuptime, 1),
    {Peer, Node} = peer("zz" ++ peer:random_name(), []),
    Hanging = hanging_nodes(2 * ?MAX_ATTEMPTS + 4),
    ?assert(Node > lists:max(Hanging)),
    start({?MODULE, #{lookup => fun() -> {ok, [], infinity} end}}),
    _ = erlang:trace(whereis(weir_discovery), true, [call, set_on_spawn]),
    _ = erlang:trace_pattern({net_kernel, connect_node, 1}, true, []),
    _ = finder() ! {names, [Node | Hanging]},
    await_connected([Node]),
    ?assertEqual(lists:sort([Node | Hanging]), lists:usort(tried(length(Hanging) + ?MAX_ATTEMPTS))),
    _ = erlang:trace_pattern({net_kernel, connect_node, 1}, false, []),
    peer:stop(Peer).

tried(0) -> [];
tried(Count) -> receive {trace, _, call, {net_kernel, connect_node, [Node]}} -> [Node | tried(Count - 1)] end.

%% The processes that wait for a connection.
attempts() ->
    [Pid || Pid <- processes(), {monitored_by, By} <- [process_info(Pid, monitored_by)], lists:member(whereis(weir_discovery), By)].

node_without_a_name(_) ->
    {ok, Peer, _} = peer:start_link(#{connection => standard_io, args => code_args()}),
    {Found, Node} = peer([]),
    start(Peer, {list, #{nodes => [Node]}}),
    wait_until(error_told, fun() -> maps:get(error, status(Peer)) =/= none end),
    #{error := {Message, _}, found := []} = status(Peer),
    ?assertMatch({_, _}, binary:match(Message, <<"-name">>)),
    %% It gets one.
    {ok, _} = peer:call(Peer, net_kernel, start, [[node_of(peer:random_name("named")), longnames]]),
    true = peer:call(Peer, erlang, set_cookie, [list_to_atom(?COOKIE)]),
    wait_until(connected, fun() -> maps:get(connected, status(Peer)) =:= [Node] end),
    ?assertMatch(#{error := none}, status(Peer)),
    [peer:stop(P) || P <- [Peer, Found]].

%% ---- dns

%% The record points elsewhere, and then at the node.
dns_addresses(_) ->
    {Peer, Node} = peer([]),
    Prefix = hd(string:lexemes(atom_to_list(Node), "@")),
    Port = free_port(udp),
    Elsewhere = dnsmasq(Port, ["--host-record=nodes.weir.test,127.0.0.7", "--host-record=nodes.weir.test,127.0.0.8"]),
    start(dns(Port, #{name => "nodes.weir.test.", prefix => Prefix})),
    Others = [list_to_atom(Prefix ++ "@127.0.0." ++ N) || N <- ["7", "8"]],
    wait_until(found, fun() -> maps:get(found, status()) =:= Others end),
    ?assertMatch(#{connected := []}, status()),
    stop_server(Elsewhere),
    Here = dnsmasq(Port, ["--host-record=nodes.weir.test,127.0.0.1"]),
    await_connected([Node]),
    ?assertMatch(#{found := [Node], error := none}, status()),
    %% When it's gone from there too, it stays connected.
    stop_server(Here),
    Empty = dnsmasq(Port, ["--host-record=nodes.weir.test,::1"]),
    wait_until(nobody_found, fun() -> maps:get(found, status()) =:= [] end),
    ?assert(lists:member(Node, nodes(connected))),
    stop_server(Empty),
    peer:stop(Peer).

%% To a node without IPv6 such a name is of no use; to one with it it is.
dns_ipv6(_) ->
    Ipv6 = ["-proto_dist", "inet6_tcp"],
    Name = peer:random_name("six"),
    {Peer, Node} = peer(Name, "::1", Ipv6),
    {Seeker, _} = peer(peer:random_name("seeker"), "::1", Ipv6),
    Port = free_port(udp),
    Server = dnsmasq(Port, ["--host-record=nodes.weir.test,::1"]),
    Config = dns(Port, #{name => <<"nodes.weir.test">>, type => aaaa, prefix => Name}),
    start(Seeker, Config),
    wait_until(connected, fun() -> maps:get(connected, status(Seeker)) =:= [Node] end),
    start(Config),
    wait_until(refused, fun() -> maps:get(refused, status()) =/= #{} end),
    ?assertMatch(#{found := [], refused := #{unusable := {1, _}}}, status()),
    stop_server(Server),
    [peer:stop(P) || P <- [Peer, Seeker]].

dns_srv(_) ->
    Short = fun(N) ->
                {ok, Pid, At} = peer:start_link(#{name => N, host => "localhost", longnames => false, connection => standard_io,
                                                  args => code_args()}),
                {Pid, At}
            end,
    Name = peer:random_name("srv"),
    {Peer, Node} = Short(Name),
    {Seeker, _} = Short(peer:random_name("seeker")),
    Port = free_port(udp),
    Server = dnsmasq(Port, ["--srv-host=_epmd._tcp.weir.test,LocalHost,4369", "--srv-host=_epmd._tcp.weir.test,h.x,4369"]),
    start(Seeker, dns(Port, #{name => "_epmd._tcp.weir.test", type => srv, prefix => Name})),
    wait_until(connected, fun() -> maps:get(connected, status(Seeker)) =:= [Node] end),
    ?assertMatch(#{found := [Node], refused := #{unusable := {1, _}}}, status(Seeker)),
    stop_server(Server),
    [peer:stop(P) || P <- [Peer, Seeker]].

%% NXDOMAIN, SERVFAIL, no answer, and nobody there are errors, each told from the others; what was found stays.
dns_failures(_) ->
    Port = free_port(udp),
    First = dnsmasq(Port, ["--host-record=nodes.weir.test,127.0.0.7"]),
    start(dns(Port, #{name => "nodes.weir.test", timeout_ms => 200})),
    Found = ['weir@127.0.0.7'],
    wait_until(found, fun() -> maps:get(found, status()) =:= Found end),
    stop_server(First),
    [begin
         Server = Start(),
         wait_until(Word, fun() -> told(Word) end),
         ?assertEqual({Word, Found}, {Word, maps:get(found, status())}),
         stop_server(Server)
     end || {Start, Word} <- [{fun() -> dnsmasq(Port, ["--host-record=other.weir.test,127.0.0.7"]) end, "NXDOMAIN"},
                              {fun() -> answering(Port, fun(Query) -> answer(Query, 2, []) end) end, "SERVFAIL"},
                              {fun() -> answering(Port, fun(Query) -> answer(Query, 5, []) end) end, "REFUSED"},
                              {fun() -> answering(Port, fun(_) -> <<>> end) end, "could not be asked"},
                              {fun() -> answering(Port, fun(_) -> none end) end, "in time"}]],
    Last = dnsmasq(Port, ["--host-record=nodes.weir.test,127.0.0.9"]),
    wait_until(well_again, fun() -> maps:get(found, status()) =:= ['weir@127.0.0.9'] end),
    ?assertMatch(#{error := none}, status()),
    stop_server(Last).

told(Word) ->
    case status() of
        #{error := {Message, _}} -> binary:match(Message, list_to_binary(Word)) =/= nomatch;
        #{error := none} -> false
    end.

%% Targets with blanks, zeros, 300 letters, capital letters, and answers cut short.
hostile_dns(_) ->
    Port = free_port(udp),
    Targets = [[<<"a b">>, <<"x">>], [<<0, 255>>, <<"x">>], [binary:copy(<<"l">>, 63) || _ <- lists:seq(1, 4)], [<<"Good">>, <<"eXample">>],
               [<<"-x">>, <<"y">>], [<<"a@b">>, <<"x">>]],
    Cut = fun(Query) -> Whole = answer(Query, 0, Targets), binary:part(Whole, 0, rand:uniform(byte_size(Whole)) - 1) end,
    Server = answering(Port, fun(Query) -> answer(Query, 0, Targets) end),
    start(dns(Port, #{name => "nodes.weir.test", type => srv, timeout_ms => 200})),
    wait_until(found, fun() -> maps:get(found, status()) =:= ['weir@good.example'] end),
    ?assertMatch(#{refused := #{malformed := {5, _}}}, status()),
    stop_server(Server),
    Atoms = erlang:system_info(atom_count),
    Cutting = answering(Port, Cut),
    #{lookups := Before} = status(),
    wait_until(cut_answers, fun() -> maps:get(lookups, status()) > Before + 3 end),
    ?assert(erlang:system_info(atom_count) - Atoms < 100),
    ?assertEqual([], maps:get(found, status()) -- ['weir@good.example', 'weir@']),
    stop_server(Cutting).

%% ---- file

file_changes(Config) ->
    {One, OneNode} = peer([]),
    {Two, TwoNode} = peer([]),
    Path = filename:join(?config(priv_dir, Config), "nodes"),
    start({file, #{path => Path, interval_ms => 20}}),
    wait_until(missing_file_told, fun() -> told("no such file") end),
    rewrite(Path, ["# nodes\r\n\n  ", atom_to_list(OneNode), "\t# the first\r\n"]),
    await_connected([OneNode]),
    ?assertMatch(#{found := [OneNode], error := none}, status()),
    %% In place, too.
    ok = file:write_file(Path, [atom_to_list(OneNode), "\n", atom_to_list(TwoNode)]),
    await_connected(lists:sort([OneNode, TwoNode])),
    rewrite(Path, atom_to_list(TwoNode)),
    wait_until(one_left, fun() -> maps:get(found, status()) =:= [TwoNode] end),
    ?assert(lists:member(OneNode, nodes(connected))),
    rewrite(Path, ""),
    wait_until(none_left, fun() -> maps:get(found, status()) =:= [] end),
    [peer:stop(Peer) || Peer <- [One, Two]].

broken_files(Config) ->
    Path = filename:join(?config(priv_dir, Config), "broken"),
    Found = ['a@127.0.0.7', 'b@127.0.0.7'],
    rewrite(Path, "a@127.0.0.7\nb@127.0.0.7\n"),
    start({file, #{path => Path, interval_ms => 20}}),
    wait_until(found, fun() -> maps:get(found, status()) =:= Found end),
    [begin
         Break(),
         wait_until({told, Word}, fun() -> told(Word) end),
         ?assertEqual({Word, Found}, {Word, maps:get(found, status())})
     end || {Word, Break} <-
                [{"line 3 ", fun() -> rewrite(Path, "c@127.0.0.7\n\nnot a name # really\n") end},
                 {"line 2 ", fun() -> rewrite(Path, ["c@127.0.0.7\nd@", lists:duplicate(300, $d), "\n"]) end},
                 {"line 1 ", fun() -> rewrite(Path, <<0, 255, 254>>) end},
                 {"which is the most", fun() -> rewrite(Path, lists:duplicate(600000, $\n)) end},
                 {"no such file", fun() -> ok = file:delete(Path) end},
                 {"not a file", fun() -> ok = file:make_dir(Path) end}]],
    ok = file:del_dir(Path),
    rewrite(Path, "c@127.0.0.7"),
    wait_until(well_again, fun() -> maps:get(found, status()) =:= ['c@127.0.0.7'] end).

rewrite(Path, Text) ->
    ok = file:write_file(Path ++ ".new", Text),
    ok = file:rename(Path ++ ".new", Path).

%% In a node of its own: atoms are for ever. A flood does not push out the node that was known, and ends at the limit of atoms.
hostile_file(Config) ->
    {Peer, _} = peer([]),
    {Known, KnownNode} = peer("zzz" ++ peer:random_name(), []),
    Path = filename:join(?config(priv_dir, Config), "hostile"),
    rewrite(Path, atom_to_list(KnownNode)),
    start(Peer, {file, #{path => Path, interval_ms => 20}}),
    wait_until(connected, fun() -> maps:get(connected, status(Peer)) =:= [KnownNode] end),
    Flood = fun(Round, Count) ->
                rewrite(Path, [[atom_to_list(KnownNode), "\n"],
                               [io_lib:format("n~b_~b@127.0.0.1~n", [Round, I]) || I <- lists:seq(1, Count)]]),
                wait_until({flood, Round}, fun() -> seen(status(Peer), Round) end)
            end,
    Flood(1, 5000),
    #{refused := #{too_many_nodes := {Left, _}}, found := Found, connected := [KnownNode]} = status(Peer),
    ?assertEqual({?MAX_NODES, 5001 - ?MAX_NODES}, {length(Found), Left}),
    ?assert(lists:member(KnownNode, Found)),
    %% (By now all code is loaded that brings atoms of its own.)
    #{atoms := Before} = status(Peer),
    AllBefore = peer:call(Peer, erlang, system_info, [atom_count]),
    [Flood(Round, 1100) || Round <- lists:seq(2, 11)],
    #{atoms := After, refused := #{too_many_atoms := _}, connected := [KnownNode]} = status(Peer),
    ?assertEqual(?MAX_ATOMS, After),
    AllAfter = peer:call(Peer, erlang, system_info, [atom_count]),
    ?assert(AllAfter - AllBefore =< After - Before + 200),
    [peer:stop(P) || P <- [Peer, Known]].

%% Has it come to the names of this round? (The last finds no more atoms.)
seen(#{found := Found, refused := Refused}, Round) ->
    Prefix = "n" ++ integer_to_list(Round) ++ "_",
    lists:any(fun(Node) -> lists:prefix(Prefix, atom_to_list(Node)) end, Found)
        orelse case Refused of
                   #{too_many_atoms := {_, Example}} -> binary:match(Example, list_to_binary(Prefix)) =/= nomatch;
                   #{} -> false
               end.

%% ---- etcd

%% Three nodes register and find each other; one that stops is off the register, and nobody is disconnected.
etcd_register(Config) ->
    {Server, Endpoint} = etcd(Config),
    Peers = [{First, FirstNode}, {Second, SecondNode}, {Third, ThirdNode}] = [peer([]) || _ <- [1, 2, 3]],
    [start(Peer, {etcd, #{endpoints => [Endpoint]}}) || {Peer, _} <- Peers],
    Nodes = [Node || {_, Node} <- Peers],
    [wait_until({connected, Node}, fun() -> maps:get(connected, status(Peer)) =:= lists:sort(Nodes -- [Node]) end)
     || {Peer, Node} <- Peers],
    ok = peer:call(Third, gen_server, stop, [weir_discovery]),
    [wait_until(off_the_register, fun() -> maps:get(found, status(Peer)) =:= [Other] end)
     || {Peer, Other} <- [{First, SecondNode}, {Second, FirstNode}]],
    ?assert(lists:member(ThirdNode, peer:call(First, erlang, nodes, []))),
    start(Third, {etcd, #{endpoints => [Endpoint]}}),
    wait_until(back, fun() -> maps:get(found, status(First)) =:= lists:sort([SecondNode, ThirdNode]) end),
    [peer:stop(Peer) || {Peer, _} <- Peers],
    stop_server(Server).

%% Killed, and started again without its data: the nodes stay connected meanwhile, and register again.
etcd_away(Config) ->
    {Server, "127.0.0.1:" ++ Port = Endpoint} = etcd(Config),
    Peers = [{First, FirstNode}, {Second, SecondNode}] = [peer([]) || _ <- [1, 2]],
    Options = {etcd, #{endpoints => [Endpoint], ttl_s => 2}},
    [start(Peer, Options) || {Peer, _} <- Peers],
    wait_until(connected, fun() -> maps:get(connected, status(First)) =:= [SecondNode]
                                       andalso maps:get(connected, status(Second)) =:= [FirstNode] end),
    stop_server(Server),
    [wait_until(failure_told, fun() -> #{error := E, failed_lookups := N} = status(Peer), E =/= none andalso N > 1 end)
     || {Peer, _} <- Peers],
    ?assertMatch(#{connected := [SecondNode], found := [SecondNode]}, status(First)),
    {Again, Endpoint} = etcd(Config, list_to_integer(Port)),
    %% One who wasn't there before learns of both.
    start(Options),
    await_connected(lists:sort([FirstNode, SecondNode])),
    [wait_until(well, fun() -> #{error := E, found := F} = status(Peer), E =:= none andalso F =:= lists:sort([node(), Other]) end)
     || {Peer, Other} <- [{First, SecondNode}, {Second, FirstNode}]],
    [peer:stop(Peer) || {Peer, _} <- Peers],
    stop_server(Again).

%% A killed node's lease runs out. Of two endpoints the one that answers is enough.
etcd_dead_nodes_and_next_endpoints(Config) ->
    {Server, Endpoint} = etcd(Config),
    {First, FirstNode} = peer([]),
    {Peer, Node} = peer([]),
    Options = {etcd, #{endpoints => ["127.0.0.1:" ++ integer_to_list(free_port(tcp)), Endpoint], ttl_s => 2}},
    start(First, Options),
    start(Options),
    await_connected([FirstNode]),
    start(Peer, Options),
    await_connected(lists:sort([FirstNode, Node])),
    true = unlink(Peer),
    Monitor = monitor(process, Peer),
    ok = peer:cast(Peer, erlang, halt, [0, [{flush, false}]]),
    receive {'DOWN', Monitor, process, Peer, _} -> ok end,
    %% The other one's lease began earlier, and would be over if it weren't kept alive.
    wait_until(off_the_register, fun() -> maps:get(found, status()) =:= [FirstNode] end),
    peer:stop(First),
    stop_server(Server).

%% Others write whatever they like under the prefix.
hostile_etcd(Config) ->
    {Server, Endpoint} = etcd(Config),
    {Peer, PeerNode} = peer([]),
    start(Peer, {etcd, #{endpoints => [Endpoint], prefix => "/p/"}}),
    start({etcd, #{endpoints => [Endpoint], prefix => "/p/"}}),
    await_connected([PeerNode]),
    wait_until(open, fun() -> element(1, eetcd:open(hostile, [Endpoint])) =:= ok end),
    %% (etcd takes 128 keys at a time.)
    Put = fun(Names) ->
              Ops = [eetcd_op:put(eetcd_kv:with_value(eetcd_kv:with_key(eetcd_kv:new(), <<"/p/", N/binary>>), <<"x">>)) || N <- Names],
              {ok, #{succeeded := true}} = eetcd_kv:txn(hostile, [], Ops, [])
          end,
    Put([<<"a b@c">>, <<>>, binary:copy(<<"x">>, 300), <<"x@", (binary:copy(<<"h">>, 300))/binary>>, <<0, 255>>]),
    [Put([<<"f", (integer_to_binary(I * 100 + J))/binary, "@127.0.0.1">> || J <- lists:seq(1, 100)]) || I <- lists:seq(1, 50)],
    wait_until(flooded, fun() -> case maps:get(refused, status(Peer)) of
                                     #{too_many_nodes := {N, _}} -> N =:= 5002 - ?MAX_NODES;
                                     #{} -> false
                                 end
                        end),
    #{refused := #{malformed := {5, _}}, connected := [Here], found := Found} = status(Peer),
    ?assertEqual(node(), Here),
    ?assertEqual(?MAX_NODES - 1, length(Found)),
    ok = eetcd:close(hostile),
    peer:stop(Peer),
    stop_server(Server).

etcd_with_tls(Config) ->
    Folder = ?config(priv_dir, Config),
    [CaFile, CertFile, KeyFile] = certificates(Folder),
    {Server, Endpoint} = etcd(Config, free_port(tcp), ["--cert-file", CertFile, "--key-file", KeyFile]),
    %% Nobody that it knows.
    [OtherCa, _, _] = certificates(filename:join(Folder, "other")),
    start({etcd, #{endpoints => [Endpoint], tls => [{cacertfile, OtherCa}]}}),
    wait_until(refused, fun() -> told("unknown_ca") end),
    ok = gen_server:stop(weir_discovery),
    {Peer, Node} = peer([]),
    [start(P, {etcd, #{endpoints => [Endpoint], tls => [{cacertfile, CaFile}]}}) || P <- [self, Peer]],
    await_connected([Node]),
    peer:stop(Peer),
    stop_server(Server).

%% A root, a server's certificate for 127.0.0.1, and its key, in files.
certificates(Folder) ->
    Ip = #'Extension'{extnID = ?'id-ce-subjectAltName', extnValue = [{iPAddress, <<127, 0, 0, 1>>}], critical = false},
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(
        #{server_chain => #{root => [{key, {namedCurve, secp256r1}}], intermediates => [],
                            peer => [{key, {namedCurve, secp256r1}}, {extensions, [Ip]}]},
          client_chain => #{root => [{key, {namedCurve, secp256r1}}], intermediates => [], peer => [{key, {namedCurve, secp256r1}}]}}),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    {KeyType, Key} = proplists:get_value(key, Server),
    [begin
         File = filename:join(Folder, Name),
         ok = file:write_file(File, public_key:pem_encode([{Type, Der, not_encrypted} || {Type, Der} <- Entries])),
         File
     end || {Name, Entries} <- [{"ca.pem", [{'Certificate', Root} || Root <- proplists:get_value(cacerts, Client)]},
                                {"cert.pem", [{'Certificate', proplists:get_value(cert, Server)}]},
                                {"key.pem", [{KeyType, Key}]}]].

%% However it ends, no connection to etcd is left, and no process.
etcd_leaves_nothing(Config) ->
    {Server, Endpoint} = etcd(Config),
    {ok, _} = application:ensure_all_started(eetcd),
    Options = {etcd, #{endpoints => [Endpoint], ttl_s => 2}},
    Quiet = fun() -> supervisor:which_children(eetcd_conn_sup) =:= [] andalso supervisor:which_children(gun_sup) =:= [] end,
    Connected = fun() -> maps:get(lookups, status()) > 0 andalso maps:get(error, status()) =:= none end,
    wait_until(quiet, Quiet),
    Before = processes(),
    start(Options),
    wait_until(connected, Connected),
    ?assertNot(Quiet()),
    ok = gen_server:stop(weir_discovery),
    ?assert(Quiet()),
    _ = process_flag(trap_exit, true),
    {ok, Pid} = weir_discovery:start_link(Options),
    wait_until(connected, Connected),
    %% The finder is killed: another one begins a session of its own.
    true = exit(finder(), kill),
    wait_until(connected_again, fun() -> maps:get(lookups, status()) > 1 andalso maps:get(error, status()) =:= none end),
    wait_until(one_connection, fun() -> length(supervisor:which_children(gun_sup)) =:= 1 end),
    true = exit(Pid, kill),
    wait_until(quiet, Quiet),
    wait_until(no_process_left, fun() -> ours(processes() -- Before) =:= [] end),
    stop_server(Server).

ours(Pids) ->
    [Info || Pid <- Pids, Info <- [process_info(Pid, [current_function, initial_call, dictionary])], Info =/= undefined,
             string:find(io_lib:format("~w", [Info]), "weir_discovery") =/= nomatch, Pid =/= self()].

finder() ->
    {links, Links} = process_info(whereis(weir_discovery), links),
    [Finder] = [P || P <- Links, is_pid(P), {dictionary, D} <- [process_info(P, dictionary)],
                     proplists:get_value('$initial_call', D) =:= {weir_discovery_finder, init, 1}],
    Finder.

%% ---- methods of one's own: this module is one

%% (Also the callback of a supervisor.)
init(Children) when is_list(Children) -> {ok, {#{intensity => 0}, Children}};
init(#{refuse := true}) -> {error, "this suite refuses"};
init(#{lookup := Lookup} = Options) when is_function(Lookup, 0) -> {ok, Options}.

lookup(#{lookup := Lookup} = Options) ->
    case Lookup() of
        {ok, Names, Next} -> {ok, Names, Next, Options};
        {error, Why, Next} -> {error, Why, Next, Options};
        Other -> Other
    end.

handle_info({names, Names}, Options) -> {ok, Names, infinity, Options};
handle_info(_, Options) -> {ignore, Options}.

terminate(#{test := Test}) -> Test ! terminated;
terminate(_) -> ok.

%% As weir starts it; supervisors print what they start their children with.
under_a_supervisor(_) ->
    _ = process_flag(trap_exit, true),
    Secret = "s3cret",
    try
        ok = application:set_env(weir, discovery, {etcd, #{endpoints => ["h:1"], user => "me", password => Secret, ttl_s => never}}),
        {error, Reason} = supervisor:start_link(?MODULE, [weir_discovery:child_spec()]),
        Text = lists:flatten(io_lib:format("~0tp", [Reason])),
        ?assertNotEqual(nomatch, string:find(Text, "ttl_s must be seconds from 2 to 3600, not never")),
        ?assertEqual(nomatch, string:find(Text, Secret)),
        ok = application:set_env(weir, discovery, {etcd, #{endpoints => ["127.0.0.1:1"], user => "me", password => Secret}}),
        {ok, Sup} = supervisor:start_link(?MODULE, [weir_discovery:child_spec()]),
        wait_until(told, fun() -> told("127.0.0.1:1") end),
        Finder = finder(),
        Shown = [io_lib:format("~0tp", [Term]) || Term <- [supervisor:get_childspec(Sup, weir_discovery), status(),
                                                           sys:get_status(weir_discovery), sys:get_state(weir_discovery),
                                                           sys:get_status(Finder), sys:get_state(Finder)]],
        ?assertEqual(nomatch, string:find(lists:flatten(Shown), Secret)),
        true = exit(Sup, shutdown),
        receive {'EXIT', Sup, shutdown} -> ok end,
        ?assertEqual([undefined, undefined], [process_info(Finder), whereis(weir_discovery)])
    after
        ok = application:unset_env(weir, discovery)
    end.

own_method(_) ->
    {Peer, Node} = peer([]),
    start({?MODULE, #{lookup => fun() -> {ok, [], infinity} end, test => self()}}),
    wait_until(looked, fun() -> maps:get(lookups, status()) =:= 1 end),
    ?assertMatch(#{method := ?MODULE, found := []}, status()),
    _ = finder() ! noise,
    _ = finder() ! {names, [Node]},
    await_connected([Node]),
    ?assertMatch(#{lookups := 2}, status()),
    ok = gen_server:stop(weir_discovery),
    receive terminated -> ok end,
    peer:stop(Peer).

%% Exceptions, nonsense and errors alike keep what was found.
own_method_fails(_) ->
    Answers = ets:new(answers, [public]),
    true = ets:insert(Answers, {answer, {ok, ["a@127.0.0.7"], 10}}),
    start({?MODULE, #{lookup => fun() -> case ets:lookup_element(Answers, answer, 2) of
                                             {raise, Class} -> erlang:raise(Class, oops, []);
                                             Answer -> Answer
                                         end
                                end}}),
    [begin
         true = ets:insert(Answers, {answer, Answer}),
         wait_until({told, Word}, fun() -> told(Word) end),
         ?assertMatch(#{found := ['a@127.0.0.7']}, status()),
         true = ets:insert(Answers, {answer, {ok, ["a@127.0.0.7"], 10}}),
         wait_until(well_again, fun() -> maps:get(error, status()) =:= none andalso maps:get(found, status()) =:= ['a@127.0.0.7'] end)
     end || {Answer, Word} <- [{{raise, error}, "error,oops"}, {{raise, exit}, "oops"}, {{raise, throw}, "oops"},
                               {nonsense, "behaviour"}, {{ok, not_a_list, 10}, "behaviour"},
                               {{ok, [], 0}, "behaviour"}, {{error, why, soon}, "behaviour"}, {{error, {why, 7}, 10}, "{why,7}"},
                               {{error, <<"because">>, backoff}, "because"}]].

%% Its process is not the one that answers, and stopping does not wait for ever.
own_method_hangs(_) ->
    Test = self(),
    start({?MODULE, #{lookup => fun() -> Test ! {looking, self()}, receive never -> ok end end}}),
    Finder = receive {looking, Pid} -> Pid end,
    ?assertMatch(#{lookups := 0, found := []}, status()),
    Monitor = monitor(process, Finder),
    ok = gen_server:stop(weir_discovery),
    receive {'DOWN', Monitor, process, Finder, killed} -> ok end.

crashed_finder(_) ->
    {Peer, Node} = peer([]),
    start({?MODULE, #{lookup => fun() -> {ok, [Node], infinity} end}}),
    await_connected([Node]),
    true = exit(finder(), kill),
    wait_until(told, fun() -> told("killed") end),
    ?assertMatch(#{connected := [Node], found := [Node]}, status()),
    wait_until(well_again, fun() -> #{lookups := N, error := E} = status(), N =:= 2 andalso E =:= none end),
    peer:stop(Peer).

%% A lookup fails thousands of times, and a node can't be reached: one line each.
failures_are_logged_once(_) ->
    Lines = ets:new(lines, [public, duplicate_bag]),
    ok = logger:add_handler(?MODULE, ?MODULE, #{lines => Lines}),
    try
        start({?MODULE, #{lookup => fun() -> {error, <<"always the same">>, 1} end}}),
        wait_until(failed_often, fun() -> maps:get(failed_lookups, status()) > 2500 andalso ets:lookup(Lines, error) =/= [] end),
        ?assertEqual([{error, [<<"always the same">>]}], ets:lookup(Lines, error)),
        ok = gen_server:stop(weir_discovery),
        Node = node_of(peer:random_name("nobody")),
        start({list, #{nodes => [Node]}}),
        wait_until(tried_often, fun() -> maps:get(failed_attempts, status()) > 3 andalso ets:lookup(Lines, unreachable) =/= [] end),
        ?assertEqual([{unreachable, [Node]}], ets:lookup(Lines, unreachable)),
        ?assertEqual([{added, [Node]}], ets:lookup(Lines, added))
    after
        ok = logger:remove_handler(?MODULE)
    end.

%% logger's callback.
log(#{msg := {report, #{what := discovery} = Report}}, #{lines := Lines}) ->
    true = ets:insert(Lines, maps:to_list(Report));
log(_, _) ->
    true.

%% ---- the page

%% Every configuration on it is one that discovery starts with.
page(_) ->
    {ok, Text} = file:read_file(filename:join([weir_test:root(), "doc", "discovery.md"])),
    {match, Blocks} = re:run(Text, "^```erlang\n(.*?)^```$", [global, multiline, dotall, {capture, all_but_first, list}]),
    Configs = [Config || [Block] <- Blocks, {weir, [{discovery, Config}]} <- [evaluate(string:trim(Block))]],
    ?assertEqual([list, dns, dns, file, etcd, etcd], [Method || {Method, _} <- Configs]),
    [begin
         start(Config),
         wait_until({looked, Config}, fun() -> maps:get(lookups, status()) > 0 end),
         ok = gen_server:stop(weir_discovery)
     end || {Method, _} = Config <- Configs, Method =:= list orelse Method =:= file],
    Modules = #{list => weir_discovery_list, dns => weir_discovery_dns, file => weir_discovery_file, etcd => weir_discovery_etcd},
    [?assertMatch({{ok, _}, _}, {(maps:get(Method, Modules)):init(Options), Options}) || {Method, Options} <- Configs].

evaluate(Block) ->
    Stopped = case lists:suffix(".", Block) of true -> Block; false -> Block ++ "." end,
    {ok, Tokens, _} = erl_scan:string(Stopped),
    {ok, Exprs} = erl_parse:parse_exprs(Tokens),
    {value, Value, _} = erl_eval:exprs(Exprs, []),
    Value.

%% ---- discovery here and elsewhere

start(Config) ->
    start(self, Config).

%% (Not linked to the caller: calls to peers come from short-lived processes.)
start(self, Config) ->
    {ok, _} = gen_server:start({local, weir_discovery}, weir_discovery, Config, []),
    ok;
start(Peer, Config) ->
    {ok, _} = peer:call(Peer, gen_server, start, [{local, weir_discovery}, weir_discovery, Config, []], 30000),
    ok.

status() -> weir_discovery:status().

status(Peer) -> peer:call(Peer, weir_discovery, status, []).

await_connected(Nodes) ->
    wait_until({connected, Nodes}, fun() -> maps:get(connected, status()) =:= lists:sort(Nodes) end),
    ?assertEqual([], Nodes -- nodes(connected)).

wait_until(What, Condition) ->
    weir_test:wait_until(What, Condition).

%% ---- nodes

peer(Args) ->
    peer(peer:random_name("peer"), Args).

peer(Name, Args) ->
    peer(Name, "127.0.0.1", Args).

%% Controlled over its standard input and output, so that it is connected to nobody.
peer(Name, Host, Args) ->
    {ok, Peer, Node} = peer:start_link(#{name => Name, host => Host, longnames => true, connection => standard_io,
                                         args => Args ++ code_args()}),
    {Peer, Node}.

code_args() ->
    %% Nodes that connect by themselves, to others' others, would hide what discovery does; and global would cut them apart.
    ["-setcookie", ?COOKIE, "-connect_all", "false" | lists:append([["-pa", P] || P <- weir_test:code_paths()])].

node_of(Name) ->
    list_to_atom(Name ++ "@127.0.0.1").

%% Nodes that epmd knows, where connections are accepted and nothing is said.
hanging_nodes(Count) ->
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {backlog, 100}]),
    {ok, Port} = inet:port(Listener),
    Names = ["hang" ++ integer_to_list(I) ++ "_" ++ peer:random_name() || I <- lists:seq(1, Count)],
    [ok = register_at_epmd(Name, Port) || Name <- Names],
    [node_of(Name) || Name <- Names].

%% For as long as the connection to epmd is open, that is, as the test runs.
register_at_epmd(Name, Port) ->
    {ok, Epmd} = gen_tcp:connect({127, 0, 0, 1}, 4369, [binary, {active, false}]),
    Alive = <<120, Port:16, 77, 0, 6:16, 5:16, (length(Name)):16, (list_to_binary(Name))/binary, 0:16>>,
    ok = gen_tcp:send(Epmd, <<(byte_size(Alive)):16, Alive/binary>>),
    {ok, <<118, 0, _/binary>>} = gen_tcp:recv(Epmd, 0, 5000),
    ok.

%% ---- servers

dns(Port, Options) ->
    {dns, maps:merge(#{nameservers => [{"127.0.0.1", Port}], min_interval_ms => 50, max_interval_ms => 50}, Options)}.

dnsmasq(Port, Args) ->
    Server = start_server("dnsmasq", ["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=",
                                      "--pid-file=", "--port=" ++ integer_to_list(Port), "--listen-address=127.0.0.1",
                                      "--bind-interfaces", "--local=/test/" | Args]),
    Options = [{nameservers, [{{127, 0, 0, 1}, Port}]}, {timeout, 100}, {retry, 1}],
    wait_until({dnsmasq, Args}, fun() -> case inet_res:resolve("ready.test", in, a, Options) of
                                             {error, nxdomain} -> true;
                                             {error, {nxdomain, _}} -> true;
                                             _ -> false
                                         end
                                end),
    Server.

%% A name server that answers as Fun says.
answering(Port, Fun) ->
    {ok, Socket} = gen_udp:open(Port, [binary, {ip, {127, 0, 0, 1}}, {active, false}]),
    Pid = spawn_link(fun() -> receive go -> ok = inet:setopts(Socket, [{active, true}]), answer_all(Socket, Fun) end end),
    ok = gen_udp:controlling_process(Socket, Pid),
    Pid ! go,
    Pid.

answer_all(Socket, Fun) ->
    receive
        {udp, Socket, Address, Port, Query} ->
            _ = [ok = gen_udp:send(Socket, Address, Port, Answer) || Answer <- [Fun(Query)], Answer =/= none],
            answer_all(Socket, Fun);
        stop ->
            gen_udp:close(Socket)
    end.

%% SRV records to these targets (lists of labels), valid for a second.
answer(<<Id:16, _:80, Question/binary>>, Code, Targets) ->
    Records = [<<16#C00C:16, 33:16, 1:16, 1:32, (byte_size(T) + 6):16, 0:16, 0:16, 4369:16, T/binary>>
               || Labels <- Targets, T <- [<<(<< <<(byte_size(L)), L/binary>> || L <- Labels >>)/binary, 0>>]],
    iolist_to_binary([<<Id:16, (16#8180 bor Code):16, 1:16, (length(Targets)):16, 0:32>>, Question | Records]).

etcd(Config) ->
    etcd(Config, free_port(tcp)).

etcd(Config, Port) ->
    etcd(Config, Port, []).

%% Without data. It is waited for until it answers, as it starts when the disk has taken its files: on a busy one that takes longer
%% than discovery waits for an answer, whose pauses between lookups then add up.
etcd(Config, Port, Tls) ->
    Folder = filename:join(?config(priv_dir, Config), "etcd" ++ integer_to_list(erlang:unique_integer([positive]))),
    Url = case Tls of [] -> "http"; _ -> "https" end ++ "://127.0.0.1:" ++ integer_to_list(Port),
    PeerUrl = "http://127.0.0.1:" ++ integer_to_list(free_port(tcp)),
    Server = start_server("etcd", ["--data-dir", Folder, "--listen-client-urls", Url, "--advertise-client-urls", Url,
                                   "--listen-peer-urls", PeerUrl, "--initial-advertise-peer-urls", PeerUrl,
                                   "--initial-cluster", "default=" ++ PeerUrl | Tls]),
    weir_test:wait_until({etcd, Port}, fun() -> healthy(case Tls of [] -> gen_tcp; _ -> ssl end, Port) end, ?ETCD_MS),
    {Server, "127.0.0.1:" ++ integer_to_list(Port)}.

healthy(Transport, Port) ->
    Options = [binary, {active, false} | [{verify, verify_none} || Transport =:= ssl]],
    case Transport:connect({127, 0, 0, 1}, Port, Options, 1000) of
        {ok, Socket} ->
            ok = Transport:send(Socket, <<"GET /health HTTP/1.0\r\n\r\n">>),
            Answer = received(Transport, Socket),
            ok = Transport:close(Socket),
            binary:match(Answer, <<"\"true\"">>) =/= nomatch;
        {error, _} ->
            false
    end.

received(Transport, Socket) ->
    case Transport:recv(Socket, 0, 1000) of
        {ok, Some} -> <<Some/binary, (received(Transport, Socket))/binary>>;
        {error, _} -> <<>>
    end.

start_server(Command, Args) ->
    Path = os:find_executable(Command, os:getenv("PATH") ++ ":/usr/sbin"),
    ?assertNotEqual({Command, false}, {Command, Path}),
    Guard = "exec 2>/dev/null 3<&0; \"$@\" </dev/null >/dev/null 2>&1 & pid=$!; read -r _ <&3; kill -9 $pid; wait $pid; exit 0",
    open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", Guard, "guard", Path | Args]}, exit_status, binary, hide]).

%% Returns when it is gone.
stop_server(Pid) when is_pid(Pid) ->
    Monitor = monitor(process, Pid),
    Pid ! stop,
    receive {'DOWN', Monitor, process, Pid, _} -> ok end;
stop_server(Port) ->
    true = port_command(Port, "stop\n"),
    receive {Port, {exit_status, 0}} -> ok end.

free_port(udp) ->
    {ok, Socket} = gen_udp:open(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_udp:close(Socket),
    Port;
free_port(tcp) ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.
