%% @doc What a decision of scope exact costs on two real nodes, beside one call of another kind that does the same work on the owner.
%%
%% Both nodes are processes of this machine and talk over loopback. The variants take turns, a slice of time each, with so many
%% callers at once; every call is timed. What is compared are medians over the slices of each slice's p50, p99 and calls a second.
-module(bench_exact).

-behaviour(gen_server).

-export([main/1, slice/4, local/1]).
-export([start_server/0, init/1, handle_call/3, handle_cast/2]).

-define(SLICE_MS, 200).
-define(KEYS, 1000).
-define(MANY, 100).

%% Writes the section of the report to the file.
-spec main([string()]) -> ok.
main([Length, File]) ->
    Rounds = case Length of "quick" -> 5; _ -> 25 end,
    Other = two_nodes(),
    ok = weir:put_limiter(bench_exact, #{rate => {1, second}, burst => 1000000000, scope => exact, timeout => 10000}),
    ok = known(Other, <<"bench_exact">>),
    [There, Here] = [list_to_tuple(keys(Node)) || Node <- [Other, node()]],
    Variants = [{"weir, the owner is the other node", fun(Key) -> weir:check(bench_exact, Key) end, There},
                {"`erpc:call` of `weir:check/2`, scope local", fun(Key) -> erpc:call(Other, ?MODULE, local, [Key]) end, There},
                {"`gen_server:call`, which does it", fun(Key) -> gen_server:call({?MODULE, Other}, Key) end, There},
                {"weir, the owner is this node", fun(Key) -> weir:check(bench_exact, Key) end, Here}],
    Sections = [section(Callers, Variants, Rounds) || Callers <- [1, 16, 128]],
    Many = many(There, Rounds),
    Denied = [denied(Callers, Other, Rounds) || Callers <- [1, 64]],
    ok = file:write_file(File, ["\n## One owner a key\n\nTwo nodes on loopback, microseconds a call and calls a second of all callers; "
                                "medians of ", integer_to_list(Rounds), " slices of ", integer_to_list(?SLICE_MS),
                                " ms, the variants in turn. Ratios are to `erpc:call`.\n" | Sections] ++
                        ["\n`weir:check_many/1` of ", integer_to_list(?MANY), " keys of the other node, one caller: ", bench_report:number(Many),
                         " us a decision.\n",
                         "\n### A flood of exhausted keys\n\nThe owner is the other node; CPU of both nodes' processes.\n" | Denied]).

two_nodes() ->
    _ = os:cmd("epmd -daemon"),
    {ok, _} = net_kernel:start([list_to_atom("weir_bench" ++ os:getpid() ++ "@127.0.0.1"), longnames]),
    Cookie = list_to_atom("bench" ++ integer_to_list(rand:uniform(1 bsl 60))),
    true = erlang:set_cookie(Cookie),
    Paths = lists:append([["-pa", Path] || Path <- code:get_path(), filename:basename(Path) =:= "ebin"]),
    {ok, _, Other} = peer:start_link(#{name => peer:random_name("weir_bench"), host => "127.0.0.1", longnames => true,
                                       args => ["-setcookie", atom_to_list(Cookie), "-kernel", "logger_level", "critical" | Paths]}),
    [{ok, _} = erpc:call(Node, application, ensure_all_started, [weir]) || Node <- [Other, node()]],
    [ok = erpc:call(Node, weir, put_limiter, [bench_local, #{rate => {1, second}, burst => 1000000000, scope => local}]) || Node <- [Other]],
    ok = erpc:call(Other, ?MODULE, start_server, []),
    Other.

%% Until each has both for owners.
known(Other, Name) ->
    Owners = [maps:get(owner, weir:explain(bench_exact, Key), none) || Key <- lists:seq(1, 50)],
    case {erpc:call(Other, weir_specs, is_known, [Name]), length(lists:usort(Owners))} of
        {true, 2} -> ok;
        _ -> receive after 50 -> known(Other, Name) end
    end.

keys(Owner) ->
    lists:sublist([Key || Key <- lists:seq(1, 4 * ?KEYS), maps:get(owner, weir:explain(bench_exact, Key)) =:= Owner], ?KEYS).

%% ---- on the other node

-spec local(term()) -> weir:answer().
local(Key) ->
    weir:check(bench_local, Key).

-spec start_server() -> ok.
start_server() ->
    {ok, _} = gen_server:start({local, ?MODULE}, ?MODULE, [], []),
    ok.

-spec init([]) -> {ok, none}.
init([]) -> {ok, none}.

-spec handle_call(term(), gen_server:from(), none) -> {reply, weir:answer(), none}.
handle_call(Key, _From, none) -> {reply, local(Key), none}.

-spec handle_cast(term(), none) -> {noreply, none}.
handle_cast(_, none) -> {noreply, none}.

%% ---- measuring

section(Callers, Variants, Rounds) ->
    bench_report:say("owners: ~b callers", [Callers]),
    %% The first round warms up.
    Results = [{Title, slice(Call, Keys, Callers, ?SLICE_MS)} || _ <- lists:seq(0, Rounds), {Title, Call, Keys} <- Variants],
    Of = [{Title, medians([R || {T, R} <- lists:nthtail(length(Variants), Results), T =:= Title])} || {Title, _, _} <- Variants],
    {_, Plain} = lists:nth(2, Of),
    ["\n", bench_report:table([[integer_to_list(Callers), " at once"], "p50, us", "p99, us", "calls a second", "p50", "p99", "throughput"],
                              [row(Title, Medians, Plain) || {Title, Medians} <- Of])].

medians(Results) ->
    [bench_report:median([lists:nth(Place, R) || R <- Results]) || Place <- [1, 2, 3]].

row(Title, [P50, P99, Rate] = Medians, Plain) ->
    [Title, bench_report:number(P50), bench_report:number(P99), integer_to_list(round(Rate))
     | [bench_report:ratio(A, B) || {A, B} <- lists:zip(Medians, Plain)]].

%% [p50, p99, calls a second]
-spec slice(fun((term()) -> weir:answer()), tuple(), pos_integer(), pos_integer()) -> [number()].
slice(Call, Keys, Callers, Ms) ->
    Until = erlang:monotonic_time(nanosecond) + Ms * 1000000,
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), calls(Call, Keys, N, Until, [])} end) || N <- lists:seq(1, Callers)],
    Times = lists:sort(lists:append([receive {Pid, Some} -> Some end || Pid <- Pids])),
    Count = length(Times),
    [lists:nth(1 + Count div 2, Times) / 1000, lists:nth(1 + Count * 99 div 100, Times) / 1000, Count * 1000 / Ms].

calls(Call, Keys, N, Until, Times) ->
    Start = erlang:monotonic_time(nanosecond),
    {allow, _} = Call(element(1 + N rem tuple_size(Keys), Keys)),
    case erlang:monotonic_time(nanosecond) of
        End when End < Until -> calls(Call, Keys, N + 7, Until, [End - Start | Times]);
        End -> [End - Start | Times]
    end.

%% By each way in turn: what weir does, and a message to the owner for each, as it was before denials were known where they are asked for.
denied(Callers, Other, Rounds) ->
    Limiter = {bench_denied, <<"bench_denied">>},
    ok = weir:put_limiter(bench_denied, #{rate => {1, hour}, burst => 1, scope => exact, timeout => 10000}),
    ok = known(Other, <<"bench_denied">>),
    Keys = list_to_tuple(lists:sublist(keys(Other), 200)),
    _ = [weir:check(bench_denied, Key) || Key <- tuple_to_list(Keys), _ <- [first, second]],
    Ways = [{"asked of the owner", fun(Key) -> asked(Limiter, Key) end}, {"denied here", fun(Key) -> weir:check(bench_denied, Key) end}],
    Results = [{Title, flood(Call, Keys, Callers, Other)} || _ <- lists:seq(0, Rounds), {Title, Call} <- Ways],
    [Asked, Here] = [bench_report:median([Us || {T, Us} <- lists:nthtail(2, Results), T =:= Title]) || {Title, _} <- Ways],
    ["\n", bench_report:table([[integer_to_list(Callers), " at once"], "CPU, us a decision", "less by"],
                              [["asked of the owner", bench_report:number(Asked), ""],
                               ["denied here", bench_report:number(Here), bench_report:ratio(Asked, Here)]])].

asked({Limiter, Name}, Key) ->
    #{allowed := false, retry_ms := Ms} = weir_exact:decide(Limiter, Key, 1, {weir_limiter:number(Name), weir_table:key_hash(Key)}),
    {deny, Ms}.

%% Microseconds of CPU a decision.
flood(Call, Keys, Callers, Other) ->
    Nodes = [os:getpid(), erpc:call(Other, os, getpid, [])],
    Before = lists:sum([cpu_us(Pid) || Pid <- Nodes]),
    Until = erlang:monotonic_time(millisecond) + ?SLICE_MS,
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), floods(Call, Keys, N, Until, 0)} end) || N <- lists:seq(1, Callers)],
    Count = lists:sum([receive {Pid, Some} -> Some end || Pid <- Pids]),
    (lists:sum([cpu_us(Pid) || Pid <- Nodes]) - Before) / Count.

floods(Call, Keys, N, Until, Count) ->
    _ = [{deny, _} = Call(element(1 + (N + I) rem tuple_size(Keys), Keys)) || I <- lists:seq(1, 16)],
    case erlang:monotonic_time(millisecond) < Until of
        true -> floods(Call, Keys, N + 16, Until, Count + 16);
        false -> Count + 16
    end.

%% Of all threads, in ticks of 10 ms.
cpu_us(Pid) ->
    {ok, Stat} = file:read_file(["/proc/", Pid, "/stat"]),
    [_, Fields] = string:split(Stat, ") ", trailing),
    [User, System] = lists:sublist(string:lexemes(Fields, " "), 12, 2),
    (binary_to_integer(User) + binary_to_integer(System)) * 10000.

many(Keys, Rounds) ->
    Items = [{bench_exact, element(I, Keys), 1} || I <- lists:seq(1, ?MANY)],
    bench_report:median([begin
                             {Us, Answers} = timer:tc(fun() -> weir:check_many(Items) end),
                             ?MANY = length([allowed || {allow, _} <- Answers]),
                             Us / ?MANY
                         end || _ <- lists:seq(1, 40 * Rounds)]).
