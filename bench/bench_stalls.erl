%% @doc How long one call takes at most while something large goes on in the same VM: millions of keys arrive, nodes join and leave,
%% limiters are made, changed and deleted, the secret is rotated.
%%
%% Three callers, each a process of its own, work all the time: weir:check/3 of a limiter that nothing happens to, an empty NIF,
%% and, once a millisecond, weir:compile/1 of a policy that exists. The first two read the clock once a call, and a call lasts from
%% the end of the one before: whatever keeps a caller waiting is in its figures, also when it sat behind a scheduler that was
%% held up. What the empty NIF suffers as well may be the machine's doing.
%%
%% Beside them, `erlang:system_monitor/2' names each process that held a scheduler for 2 ms or more, and /proc says for how long
%% the schedulers' threads waited for a core: on a machine with fewer cores than work, they hold a scheduler while they don't run.
%%
%% Only public functions of weir are called, so that an earlier version can be measured with the same file. The other nodes are VMs
%% of their own, niced. weir_stall_SUITE runs the same scenes.
-module(bench_stalls).

-export([main/1]).
%% For the suite.
-export([start/1, fill/1, stop/1, scenes/0, scene/2, longest/2, events/2]).

-export_type([options/0, state/0, result/0, event/0]).

-type options() :: #{keys := pos_integer(), limiters := pos_integer(), nodes := pos_integer(), least_ms := pos_integer()}.
-opaque state() :: #{options := options(), peers := [{pid(), node()}]}.
-type caller() :: check | compile | empty.
%% Whose it was: of a process of weir's; of the calling processes, in weir's code; of the empty NIF's; a garbage collection of one of
%% them; another's.
-type whose() :: weir | call | empty | gc | other.
-type event() :: {whose(), Ms :: non_neg_integer(), What :: term()}.
-opaque result() :: #{callers := #{caller() => bench_histogram:histogram()}, events := [event()], waited_ms := non_neg_integer(),
                      ms := non_neg_integer()}.

-define(LONG_MS, 2).
-define(DEADLINE_MS, 60000).
-define(POLICY, #{rate => {7, second}, burst => 7}).
%% Nothing expires during a run, and a rotation of the secret carries everything over.
-define(RATE, {5, hour}).
-define(BATCH, 500).

-spec main([string()]) -> ok.
main([Length, File]) ->
    Options = case Length of
                  "quick" -> #{keys => 500000, limiters => 3000, nodes => 2, least_ms => 2000};
                  _ -> #{keys => 2000000, limiters => 12000, nodes => 3, least_ms => 6000}
              end,
    State = start(Options),
    Results = [begin
                   bench_report:say("~ts", [title(Scene, State)]),
                   {title(Scene, State), scene(Scene, State)}
               end || Scene <- [quiet, fill | scenes()]],
    ok = stop(State),
    ok = file:write_file(File, ["\n## What holds a call up\n\nMicroseconds from the end of the call before to the end of this one, ",
                                integer_to_list(erlang:system_info(schedulers_online)), " schedulers.\n\n", calls(Results),
                                "\nHow often a process held a scheduler for ", integer_to_list(?LONG_MS), " ms or more, and the longest (ms): ",
                                "of weir's processes, of the two callers in weir's code, of the empty NIF's, of these when they collected "
                                "garbage, and of others. All schedulers' threads together waited so long for a core (ms).\n\n",
                                long(Results), "\nThose of weir's processes:\n\n", listed(Results)]).

%% ---- scenes ----

%% What happens once the keys are there, in this order: the rotation needs that nobody is missed, who was killed is.
-spec scenes() -> [atom()].
scenes() -> [nodes, make, limiters, policies, change, rotation, killed].

title(quiet, _) -> "nothing";
title(fill, #{options := #{keys := Keys}}) -> io_lib:format("2 x ~s keys arrive", [short(Keys)]);
title(nodes, #{options := #{nodes := Nodes}}) -> io_lib:format("~b nodes join and leave", [Nodes]);
title(make, #{options := #{limiters := Limiters}}) -> io_lib:format("~b limiters are made", [Limiters]);
title(limiters, #{options := #{limiters := Limiters}}) -> io_lib:format("made and deleted beside ~b", [Limiters]);
title(policies, _) -> "policies come and go";
title(change, #{options := #{keys := Keys}}) -> io_lib:format("limiters of ~s keys change", [short(Keys)]);
title(rotation, _) -> "the secret is rotated";
title(killed, _) -> "nodes join and are killed".

short(Keys) when Keys rem 1000000 =:= 0 -> io_lib:format("~bM", [Keys div 1000000]);
short(Keys) -> io_lib:format("~bk", [Keys div 1000]).

play(quiet, State) -> for_a_while(State, fun nothing/1);
play(fill, State) -> fill(State);
play(nodes, State) -> join_and_leave(State);
play(make, #{options := #{limiters := Limiters}}) -> make(1, Limiters);
play(limiters, State) -> for_a_while(State, fun made_and_deleted/1);
play(policies, State) -> for_a_while(State, fun policy/1);
play(change, State) -> for_a_while(State, fun change/1);
play(rotation, State) -> rotation(State);
play(killed, State) -> killed(State).

nothing(_) -> receive after 100 -> ok end.

-spec fill(state()) -> ok.
fill(#{options := #{keys := Keys}}) ->
    lists:foreach(fun(Limiter) -> fill(Limiter, 0, Keys) end, [stalls_exact, stalls_cluster]).

fill(Limiter, From, Keys) when From < Keys ->
    Answers = weir:check_many([{Limiter, N, 1} || N <- lists:seq(From, min(Keys, From + ?BATCH) - 1)]),
    [] = [Wrong || Wrong <- Answers, Wrong =/= {allow, 4}],
    fill(Limiter, From + ?BATCH, Keys);
fill(_, _, _) ->
    ok.

%% Each joins, then each leaves.
join_and_leave(#{peers := Peers} = State) ->
    lists:foreach(fun(Peer) -> join(Peer), settled(State) end, Peers),
    lists:foreach(fun(Peer) -> leave(Peer), settled(State) end, Peers).

%% Two at once, and gone without a word: what was theirs goes to others when they are missed.
killed(#{peers := Peers} = State) ->
    Two = lists:sublist(Peers, 2),
    lists:foreach(fun join/1, Two),
    settled(State),
    [ok = peer:stop(Control) || {Control, _} <- Two],
    ok = until(gone, fun() -> lists:all(fun({_, Node}) -> member(Node) =/= connected end, Two) end),
    settled(State).

join({Control, Node}) ->
    true = peer:call(Control, net_kernel, connect_node, [node()]),
    {ok, _} = peer:call(Control, application, ensure_all_started, [weir], ?DEADLINE_MS),
    until({joins, Node}, fun() -> member(Node) =:= connected end).

leave({Control, Node}) ->
    ok = peer:call(Control, weir, leave, [], ?DEADLINE_MS),
    ok = peer:call(Control, application, stop, [weir], ?DEADLINE_MS),
    until({leaves, Node}, fun() -> member(Node) =:= none end).

member(Node) ->
    case weir_members:status() of
        #{members := #{Node := #{state := State}}} -> State;
        _ -> none
    end.

%% (Not awaited but measured: levels are given, copies are made.)
settled(#{options := #{least_ms := Ms}}) ->
    receive after Ms div 2 -> ok end.

make(From, To) when From =< To ->
    ok = weir:put_limiter(name(From), #{rate => {From, second}, burst => From, scope => local}),
    make(From + 1, To);
make(_, _) ->
    ok.

name(N) -> <<"stalls ", (integer_to_binary(N))/binary>>.

made_and_deleted(N) ->
    Name = <<"stalls churn ", (integer_to_binary(N rem 50))/binary>>,
    Scope = element(1 + N rem 3, {local, cluster, exact}),
    ok = weir:put_limiter(Name, #{rate => {1, second}, burst => 1 + N rem 1000, scope => Scope}),
    [{allow, _} = weir:check(Name, Key) || Key <- lists:seq(1, 10)],
    ok = weir:delete_limiter(Name).

%% Its one key has a level for less than a millisecond.
policy(N) ->
    Burst = 1 + N rem 5000,
    {allow, _} = weir:check(weir:compile(#{rate => {2000 + Burst, second}, burst => Burst}), N),
    ok.

change(N) ->
    [ok = weir:put_limiter(Limiter, spec(Scope, 5 + (N + 1) rem 2)) || {Limiter, Scope} <- replicated()],
    ok.

rotation(State) ->
    ok = weir:rotate_secret(),
    for_a_while(State, fun(N) ->
                               %% Carried over by who asks for them.
                               From = N * ?BATCH rem 1000000,
                               _ = weir:check_many([{stalls_cluster, Key, 1} || Key <- lists:seq(From, From + ?BATCH - 1)]),
                               ok
                       end).

for_a_while(#{options := #{least_ms := Ms}}, Act) ->
    again(Act, 0, now_ms() + Ms).

again(Act, N, Until) ->
    ok = Act(N),
    case now_ms() < Until of
        true -> again(Act, N + 1, Until);
        false -> ok
    end.

%% ---- the nodes ----

%% This VM gets a name and weir, others get ready.
-spec start(options()) -> state().
start(#{nodes := Nodes} = Options) ->
    _ = os:cmd("epmd -daemon"),
    {ok, _} = net_kernel:start([list_to_atom("weir_stalls" ++ os:getpid() ++ "@127.0.0.1"), longnames]),
    Cookie = "stalls" ++ integer_to_list(rand:uniform(1 bsl 60)),
    true = erlang:set_cookie(list_to_atom(Cookie)),
    Peers = [peer(Cookie) || _ <- lists:seq(1, Nodes)],
    ok = configure(fun application:load/1, fun application:set_env/3),
    {ok, _} = application:ensure_all_started(weir),
    ok = weir:put_limiter(stalls_mine, #{rate => {1, second}, burst => 1000000000, scope => local}),
    [ok = weir:put_limiter(Limiter, spec(Scope, 5)) || {Limiter, Scope} <- replicated()],
    #{options => Options, peers => Peers}.

replicated() -> [{stalls_exact, exact}, {stalls_cluster, cluster}].

spec(Scope, Burst) -> #{rate => ?RATE, burst => Burst, scope => Scope, max_keys => 4000000}.

peer(Cookie) ->
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    Paths = lists:append([["-pa", Path] || Path <- code:get_path(), filename:basename(Path) =:= "ebin"]),
    {ok, Control, Node} = peer:start(#{name => peer:random_name("weir_stalls"), host => "127.0.0.1", longnames => true,
                                       connection => standard_io, wait_boot => ?DEADLINE_MS,
                                       exec => {os:find_executable("nice"), ["-n", "15", Erl]},
                                       args => ["-setcookie", Cookie, "-kernel", "logger_level", "critical", "+S", "1", "+SDcpu", "1"
                                               | Paths]}),
    ok = configure(fun(App) -> peer:call(Control, application, load, [App]) end,
                   fun(App, Name, Value) -> peer:call(Control, application, set_env, [App, Name, Value]) end),
    {Control, Node}.

configure(Load, Set) ->
    _ = Load(weir),
    ok = Set(weir, secret, <<"the old secret of the stalls">>),
    ok = Set(weir, next_secret, <<"the new secret of the stalls">>).

-spec stop(state()) -> ok.
stop(#{peers := Peers}) ->
    _ = [catch peer:stop(Control) || {Control, _} <- Peers],
    ok = application:stop(weir),
    net_kernel:stop().

until(What, Condition) -> until(What, Condition, now_ms() + ?DEADLINE_MS).

until(What, Condition, Deadline) ->
    case Condition() of
        true -> ok;
        false ->
            now_ms() < Deadline orelse error({never_came_true, What}),
            receive after 20 -> until(What, Condition, Deadline) end
    end.

now_ms() -> erlang:monotonic_time(millisecond).

%% ---- measuring ----

-spec scene(atom(), state()) -> result().
scene(Scene, State) ->
    Callers = [{Name, H, spawn_link(fun() -> caller(Name, H) end)} || Name <- [check, compile, empty], H <- [bench_histogram:new()]],
    Watcher = watch(maps:from_list([{Pid, Name} || {Name, _, Pid} <- Callers])),
    Waited = waited_ms(),
    Start = now_ms(),
    _ = play(Scene, State),
    Ms = now_ms() - Start,
    WaitedMs = waited_ms() - Waited,
    [Pid ! stop || {_, _, Pid} <- Callers],
    Events = watched(Watcher),
    #{callers => maps:from_list([{Name, H} || {Name, H, _} <- Callers]), events => Events, waited_ms => WaitedMs, ms => Ms}.

%% The longest call, in nanoseconds.
-spec longest(caller(), result()) -> non_neg_integer().
longest(Caller, #{callers := Callers}) ->
    #{Caller := H} = Callers,
    bench_histogram:max(H).

-spec events(whose(), result()) -> [event()].
events(Whose, #{events := Events}) ->
    lists:reverse(lists:keysort(2, [Event || {W, _, _} = Event <- Events, W =:= Whose])).

caller(compile, H) ->
    Start = now_ns(),
    Handle = weir:compile(?POLICY),
    bench_histogram:add(H, now_ns() - Start),
    %% The next one finds the policy there.
    receive stop -> ok after 1 -> caller(compile, H) end,
    Handle;
caller(Name, H) ->
    calls(Name, H, now_ns()).

calls(Name, H, Start) ->
    End = chunk(Name, 1000, H, Start),
    receive stop -> ok after 0 -> calls(Name, H, End) end.

chunk(_Name, 0, _H, Start) ->
    Start;
chunk(Name, N, H, Start) ->
    ok = call(Name, N),
    End = now_ns(),
    bench_histogram:add(H, End - Start),
    chunk(Name, N - 1, H, End).

call(check, N) ->
    {allow, _} = weir:check(stalls_mine, N, 1),
    ok;
call(empty, N) ->
    weir_nif:nothing(stalls_mine, N, 1).

now_ns() -> erlang:monotonic_time(nanosecond).

%% ---- who holds a scheduler ----

watch(Callers) ->
    Self = self(),
    Ready = make_ref(),
    Pid = spawn_opt(fun() ->
                            _ = erlang:system_monitor(self(), [{long_schedule, ?LONG_MS}, {long_gc, ?LONG_MS}]),
                            Self ! Ready,
                            watching(Callers, #{}, [])
                    end, [link, {priority, high}]),
    receive Ready -> Pid end.

watched(Watcher) ->
    Watcher ! {stop, self()},
    receive {Watcher, Events} -> Events end.

%% A collection is told of before the end of the time in which it fell.
watching(Callers, Collecting, Events) ->
    receive
        {monitor, Pid, long_gc, Facts} ->
            watching(Callers, Collecting#{Pid => proplists:get_value(timeout, Facts)}, Events);
        {monitor, Pid, long_schedule, Facts} ->
            Ms = proplists:get_value(timeout, Facts),
            GcMs = maps:get(Pid, Collecting, 0),
            {Whose, What} = whose(Pid, GcMs * 2 > Ms, Facts, Callers),
            watching(Callers, maps:remove(Pid, Collecting), [{Whose, Ms, What} | Events]);
        {stop, From} ->
            _ = erlang:system_monitor(undefined),
            From ! {self(), lists:reverse(Events)}
    end.

whose(Pid, Collected, Facts, Callers) ->
    Locations = [L || Key <- [in, out], {_, _, _} = L <- [proplists:get_value(Key, Facts)]],
    Facing = case is_pid(Pid) andalso process_info(Pid, [registered_name, initial_call, dictionary]) of
                 [{registered_name, Name}, {initial_call, Initial}, {dictionary, Dictionary}] ->
                     {Name, proplists:get_value('$initial_call', Dictionary, Initial)};
                 _ -> {[], gone}
             end,
    What = {Facing, Locations, case Collected of true -> gc; false -> work end},
    {case Callers of
         #{Pid := empty} when not Collected -> empty;
         #{Pid := _} when Collected -> gc;
         #{Pid := _} -> call;
         #{} ->
             case is_weirs(Facing) orelse lists:any(fun({M, _, _}) -> weirs(M) end, Locations) of
                 true -> weir;
                 false -> other
             end
     end, What}.

is_weirs({Name, {Module, _, _}}) -> is_atom(Name) andalso weirs(Name) orelse weirs(Module);
is_weirs({Name, gone}) -> is_atom(Name) andalso weirs(Name).

weirs(Atom) -> Atom =:= weir orelse lists:prefix("weir_", atom_to_list(Atom)).

%% What the scheduler's threads could have run but had no core for, by Linux' account. 0 where there is none.
waited_ms() ->
    lists:sum([waited_ns(Task) || Task <- filelib:wildcard("/proc/self/task/*")]) div 1000000.

waited_ns(Task) ->
    case {file:read_file(filename:join(Task, "comm")), file:read_file(filename:join(Task, "schedstat"))} of
        {{ok, Name}, {ok, Text}} ->
            case re:run(Name, "^(erts_sched_|[0-9]+_scheduler)") of
                {match, _} -> binary_to_integer(lists:nth(2, string:lexemes(string:trim(Text), " ")));
                nomatch -> 0
            end;
        _ -> 0
    end.

%% ---- the report ----

calls(Results) ->
    Heads = ["while", "of", "calls", "p50", "p99", "p99.9", "max"],
    bench_report:table(Heads, [call_row(Title, Name, Callers)
                               || {Title, #{callers := Callers}} <- Results, Name <- [check, compile, empty]]).

call_row(Title, Name, Callers) ->
    #{Name := H} = Callers,
    [Title, case Name of check -> "weir:check/3"; compile -> "weir:compile/1"; empty -> "empty NIF" end,
     integer_to_list(bench_histogram:count(H))
     | [bench_report:number(Ns / 1000) || Ns <- [bench_histogram:quantile(H, Q) || Q <- [0.5, 0.99, 0.999]] ++ [bench_histogram:max(H)]]].

long(Results) ->
    Heads = ["while", "s", "weir's", "callers'", "empty NIF's", "GC", "others'", "waited"],
    bench_report:table(Heads, [[Title, bench_report:number(Ms / 1000)
                                | [held(events(Whose, Result)) || Whose <- [weir, call, empty, gc, other]]] ++ [integer_to_list(Waited)]
                               || {Title, #{ms := Ms, waited_ms := Waited} = Result} <- Results]).

held([]) -> "0";
held([{_, Longest, _} | _] = Events) -> io_lib:format("~b, ~b", [length(Events), Longest]).

%% The five longest of each scene.
listed(Results) ->
    [io_lib:format("- ~ts: ~b ms, ~0p~n", [Title, Ms, What])
     || {Title, Result} <- Results, {_, Ms, What} <- lists:sublist(events(weir, Result), 5)].
