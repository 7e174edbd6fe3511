%% @doc How long a node takes to join beside another that knows many keys, and what waits for it meanwhile.
%%
%% Two nodes on loopback. The first admits a token of each of so many keys, and the second hears of all. Then weir is stopped on
%% the second and started again. Meanwhile both are asked without a pause what an operator asks: whether they are ready, for their
%% metrics, to explain a key. The longest answer is what the probe of a load balancer has to bear.
%%
%% Only public functions of weir are called, so that an earlier version can be measured with the same file (WEIR_EBIN).
-module(bench_join).

-export([main/1]).
%% On the nodes.
-export([use/1, probe/0, asked/1, wrong/1]).

-define(LIMITER, bench_join).
-define(BATCH, 500).
-define(DEADLINE_MS, 600000).

-spec main([string()]) -> ok.
main([Length, File]) ->
    Sizes = case Length of
                "quick" -> [10000, 100000];
                _ -> [100000, 300000, 1000000]
            end,
    _ = os:cmd("epmd -daemon"),
    ok = file:write_file(File, ["\n## Joining\n\nweir is started again on one of two nodes, of which the other knows so many keys of "
                                "`scope => cluster`. Both are asked for their readiness, their metrics and an explanation meanwhile. Wrongly "
                                "admitted: keys that had a token more than was left, on the node that joined, asked at once when it was ready.\n\n",
                                bench_report:table(["keys", "ready after, s", "longest answer there, ms", "and on the other node, ms",
                                                    "MB sent to it", "keys evicted", "wrongly admitted"],
                                                   [row(Keys) || Keys <- Sizes])]).

row(Keys) ->
    bench_report:say("a node joins beside ~b keys", [Keys]),
    Cookie = "join" ++ integer_to_list(rand:uniform(1 bsl 60)),
    [First, Second] = Nodes = [node_of(Cookie) || _ <- [1, 2]],
    [{ok, _} = on(Node, application, ensure_all_started, [weir]) || Node <- Nodes],
    true = on(First, net_kernel, connect_node, [element(2, Second)]),
    ok = until(members, fun() -> [1, 1] =:= [map_size(maps:get(members, on(Node, weir_members, status, []))) || Node <- Nodes] end),
    ok = on(First, weir, put_limiter, [?LIMITER, #{rate => {2, {2, day}}, burst => 2, max_keys => 4000000}]),
    ok = until(limiter, fun() -> is_map_key(atom_to_binary(?LIMITER), on(Second, weir, limiters, [])) end),
    ok = on(First, ?MODULE, use, [Keys]),
    ok = until(heard, fun() -> metric(weir_records_applied_total, Second) >= Keys end),
    ok = on(Second, application, stop, [weir]),
    Sent = sent(First),
    Evicted = evicted(First),
    Probes = [on(Node, ?MODULE, probe, []) || Node <- Nodes],
    Start = now_us(),
    {ok, _} = on(Second, application, ensure_all_started, [weir]),
    ok = until(ready, fun() -> on(Second, weir_ready, check, []) =:= ready end),
    Ready = now_us() - Start,
    Wrong = on(Second, ?MODULE, wrong, [Keys]),
    [Here, There] = [on(Node, ?MODULE, asked, [Probe]) || {Node, Probe} <- lists:zip(Nodes, Probes)],
    Bytes = sent(First) - Sent,
    Lost = evicted(First) - Evicted + evicted(Second),
    [ok = peer:stop(Control) || {Control, _} <- Nodes],
    [integer_to_list(Keys), bench_report:number(Ready / 1.0e6), bench_report:number(There / 1000), bench_report:number(Here / 1000),
     bench_report:number(Bytes / 1.0e6), integer_to_list(Lost), integer_to_list(Wrong)].

node_of(Cookie) ->
    Paths = lists:append([["-pa", Path] || Path <- code:get_path(), filename:basename(Path) =:= "ebin"]),
    {ok, Control, Node} = peer:start(#{name => peer:random_name("weir_join"), host => "127.0.0.1", longnames => true,
                                       connection => standard_io, wait_boot => ?DEADLINE_MS,
                                       args => ["-setcookie", Cookie, "-kernel", "logger_level", "critical", "+S", "2" | Paths]}),
    {Control, Node}.

on({Control, _}, Module, Function, Arguments) ->
    peer:call(Control, Module, Function, Arguments, ?DEADLINE_MS).

metric(Name, Node) ->
    lists:sum([Value || {Metric, _, _, _, Values} <- on(Node, weir_metrics, metrics, []), Metric =:= Name, {_, Value} <- Values]).

sent(Node) ->
    lists:sum([Bytes || #{sent_bytes := Bytes} <- maps:values(on(Node, weir_members, traffic, []))]).

evicted(Node) -> metric(weir_evicted_keys_total, Node).

until(What, Condition) -> until(What, Condition, now_us() + ?DEADLINE_MS * 1000).

until(What, Condition, Deadline) ->
    case Condition() of
        true -> ok;
        false ->
            now_us() < Deadline orelse error({never_came_true, What}),
            receive after 10 -> until(What, Condition, Deadline) end
    end.

now_us() -> erlang:monotonic_time(microsecond).

%% ---- on the nodes ----

-spec use(pos_integer()) -> ok.
use(Keys) ->
    batches(Keys, 1, fun(Answers) -> [] = [Wrong || Wrong <- Answers, Wrong =/= {allow, 1}] end).

%% Of how many keys two tokens are given, where one is left.
-spec wrong(pos_integer()) -> non_neg_integer().
wrong(Keys) ->
    Counter = counters:new(1, []),
    ok = batches(Keys, 2, fun(Answers) -> counters:add(Counter, 1, length([1 || {allow, _} <- Answers])) end),
    counters:get(Counter, 1).

batches(Keys, Hits, Look) ->
    lists:foreach(fun(From) ->
                          Look(weir:check_many([{?LIMITER, Key, Hits} || Key <- lists:seq(From, min(Keys, From + ?BATCH - 1))]))
                  end, lists:seq(1, Keys, ?BATCH)).

%% Asks until it is asked for the longest answer, in microseconds.
-spec probe() -> pid().
probe() -> spawn(fun() -> probe(0) end).

probe(Longest) ->
    Times = [element(1, timer:tc(fun() -> catch Ask() end))
             || Ask <- [fun weir_ready:check/0, fun weir_metrics:metrics/0, fun() -> weir:explain(?LIMITER, 1) end]],
    receive
        {longest, From} -> From ! {self(), Longest}
    after 1 ->
            probe(lists:max([Longest | Times]))
    end.

-spec asked(pid()) -> non_neg_integer().
asked(Probe) ->
    Probe ! {longest, self()},
    receive {Probe, Longest} -> Longest end.
