%% What the nodes of weir_soak_SUITE do: each has a process that asks, and says what it holds.
%%
%% Asked are, by all nodes together:
%% - a million keys one after the other (the cold stream), all within a period, each time by another node;
%% - the same keys by Zipf's law, so many a second;
%% - for each 20 of these one of 10,000 keys of scope exact.
-module(weir_soak_load).

%% On the nodes.
-export([start/1, stop/0, census/0, exceeded/0, known/2, look/2]).

-export_type([load/0, census/0]).

%% `slot': which of so many nodes this one is, from 0. `start_ms': of the run, by the system's clock.
-type load() :: #{slot := non_neg_integer(), nodes := pos_integer(), start_ms := integer(), keys := pos_integer(),
                  period_ms := pos_integer(), zipf_per_second := pos_integer()}.
%% Bytes of `weir' (tables and machine), of the Erlang VM, of the process of the system; numbers of the others.
-type census() :: #{atom() => non_neg_integer()}.

-define(TICK_MS, 20).
%% A node that was held up for longer doesn't make good for it.
-define(LATE_MS, 200).
-define(BATCH, 500).
-define(EXACT_KEYS, 10000).
-define(EXACT_OF, 20).

-spec start(load()) -> ok.
start(Load) ->
    Counts = counters:new(2, []),
    ok = persistent_term:put(?MODULE, Counts),
    Pid = spawn(fun() -> asking(Load, Counts, erlang:system_time(millisecond)) end),
    true = register(?MODULE, Pid),
    ok.

-spec stop() -> ok.
stop() ->
    Monitor = monitor(process, ?MODULE),
    catch ?MODULE ! stop,
    receive {'DOWN', Monitor, _, _, _} -> ok end.

asking(Load, Counts, Last) ->
    receive stop -> ok
    after ?TICK_MS ->
            Now = erlang:system_time(millisecond),
            From = max(Last, Now - ?LATE_MS),
            Zipf = zipf(Load, From, Now),
            Exact = [{soak_exact, Key rem ?EXACT_KEYS, 1} || Key <- lists:sublist(Zipf, length(Zipf) div ?EXACT_OF)],
            ask([{soak, Key, 1} || Key <- cold(Load, From, Now) ++ Zipf] ++ Exact, Counts),
            asking(Load, Counts, Now)
    end.

%% Each key once a period. In the next one the node beside asks for it.
cold(#{slot := Slot, nodes := Nodes, start_ms := Start, keys := Keys, period_ms := Period}, From, Now) ->
    [1 + P rem Keys || P <- lists:seq((From - Start) * Keys div Period, (Now - Start) * Keys div Period - 1),
                       (P rem Keys + P div Keys) rem Nodes =:= Slot].

%% (Of an exponent near 1: the logarithm of the rank is evenly spread.)
zipf(#{nodes := Nodes, keys := Keys, zipf_per_second := Rate}, From, Now) ->
    Count = Rate * Now div (1000 * Nodes) - Rate * From div (1000 * Nodes),
    [trunc(math:exp(rand:uniform() * math:log(Keys))) || _ <- lists:seq(1, Count)].

ask([], _Counts) ->
    ok;
ask(Items, Counts) ->
    {Now, Later} = lists:split(min(?BATCH, length(Items)), Items),
    Allowed = length([allowed || {allow, _} <- weir:check_many(Now)]),
    ok = counters:add(Counts, 1, length(Now)),
    ok = counters:add(Counts, 2, Allowed),
    ask(Later, Counts).

-spec census() -> census().
census() ->
    {ok, Machine} = weir_machine:attached(),
    #{state := State, fixed := Fixed} = weir_machine:held(Machine),
    Stats = weir_table:stats(),
    Traffic = maps:values(weir_members:traffic()),
    {Asked, Allowed} = counted(persistent_term:get(?MODULE, none)),
    Counts = maps:with([atoms, tables, processes, ports, registered, origins], weir_cluster:counts()),
    maps:merge(Counts#{weir => State + Fixed + sum(memory_bytes, Stats), vm => erlang:memory(total), rss => rss(), state => State,
                       keys => sum(keys, Stats), asked => Asked, allowed => Allowed,
                       refused_frames => sum(refused_frames, Traffic), shed_frames => sum(shed_frames, Traffic),
                       dropped_frames => sum(dropped_frames, Traffic), sent_bytes => sum(sent_bytes, Traffic),
                       repair_bytes => sum(sent_repair_bytes, Traffic)},
               weir_report:machine()).

%% By how many tokens a key of the load was above its capacity at most.
-spec exceeded() -> non_neg_integer().
exceeded() ->
    lists:max([0 | [Most || {<<"soak">>, #{exceeded := Most}} <- weir_report:exceeded()]]).

%% Births of the key that came and went in records, once the machine has seen all that was admitted here; `due' while some are to be sent.
-spec known(weir:limiter(), weir:key()) -> non_neg_integer() | due.
known(Limiter, Key) ->
    try gen_server:call(weir_replica, look) of
        _ ->
            case weir:explain(Limiter, Key) of
                #{unsent := Unsent, share := Share} when Unsent < Share -> lists:sum([N || {_, N} <- weir_rounds:published(Limiter, Key)]);
                #{} -> due
            end
    catch exit:_ -> due
    end.

%% What the node knows of a key, and of the others.
-spec look(weir:limiter(), weir:key()) -> map().
look(Limiter, Key) ->
    {ok, Machine} = weir_machine:attached(),
    #{published => weir_rounds:published(Limiter, Key), unsent => weir_rounds:unsent(Limiter, Key),
      vector => weir_machine:vector(Machine), machine => weir_report:machine(), quiet => weir_machine:quiet(Machine),
      members => weir_members:status(), traffic => weir_members:traffic(), queue => process_info(whereis(weir_replica), message_queue_len)}.

sum(What, Maps) -> lists:sum([maps:get(What, Map, 0) || Map <- Maps]).

counted(none) -> {0, 0};
counted(Counts) -> {counters:get(Counts, 1), counters:get(Counts, 2)}.

rss() ->
    {ok, Status} = file:read_file("/proc/self/status"),
    {match, [KiB]} = re:run(Status, "VmRSS:\\s*([0-9]+) kB", [{capture, all_but_first, binary}]),
    binary_to_integer(KiB) * 1024.
