%% @doc Bytes a key, as the operating system counts them: each variant in a VM of its own, grown from empty.
%%
%% What is reported is the growth of the resident set (Linux: /proc/self/status) since everything was loaded and the
%% first keys had been inserted, divided by the keys.
-module(bench_memory).

-export([main/1]).

-define(MILLION, 1000000).
-define(STEP, 100000).
%% Inserted before the first reading: buffers that grow with use are not the keys'.
-define(WARM, 20000).

%% Appends the section's head, or the variant's row, to the file.
-spec main([string()]) -> ok.
main(["heads", File]) ->
    Heads = ["", "at 1M keys", "by its own account", "worst, 1M to 4M", "at 4M"],
    ok = file:write_file(File, ["\n## Memory\n\nBytes a key by the growth of the resident set, each variant in a VM of its own, "
                                "keys such as `<<\"user:123456\">>`.\nFor weir also while the table grows on, read at every "
                                "100,000 keys.\n\n", bench_report:table(Heads, [])]);
main([Name, Length, File]) ->
    {ok, _} = application:ensure_all_started(weir),
    {Variant, Title, Top} = variant(Name, Length),
    Args = make(Variant),
    ok = bench_limits:fill(Variant, Args, 0, ?WARM - 1),
    Before = resident(),
    bench_report:say("memory: ~s", [Title]),
    ok = bench_limits:fill(Variant, Args, ?WARM, ?WARM + ?MILLION - 1),
    AtMillion = resident() - Before,
    Account = account(Variant, Args),
    Grown = [{(grow(Variant, Args, Keys) - Before) / Keys, Keys}
             || Keys <- lists:seq(?MILLION + ?STEP, Top * ?MILLION, ?STEP)],
    Row = [Title, bench_report:number(AtMillion / ?MILLION), Account | more(Grown, AtMillion / ?MILLION)],
    ok = file:write_file(File, ["| ", lists:join(" | ", Row), " |\n"], [append]).

%% ---- internal ----

variant("check", "quick") -> {check, "weir, scope local", 1};
variant("check", _) -> {check, "weir, scope local", 4};
variant("window", _) -> {window, bench_loops:title(window), 1};
variant("atomics", _) -> {atomics, bench_loops:title(atomics), 1};
variant("bucket", _) -> {bucket, bench_loops:title(bucket), 1}.

make(check) ->
    ok = weir:put_limiter(bench_memory, #{rate => {1, day}, burst => 5, max_keys => 5 * ?MILLION}),
    {bench_memory, 0, 0};
make(Variant) ->
    bench_limits:make(Variant, bench_limits:plenty(?MILLION)).

grow(Variant, Args, Keys) ->
    ok = bench_limits:fill(Variant, Args, ?WARM + Keys - ?STEP, ?WARM + Keys - 1),
    resident().

more([], _) -> ["", ""];
more(Grown, AtMillion) ->
    {Worst, At} = lists:max([{AtMillion, ?MILLION} | Grown]),
    {Last, _} = lists:last(Grown),
    [[bench_report:number(Worst), " at ", bench_report:million(At), "M"], bench_report:number(Last)].

%% What the table says of itself; the cells of the atomics are outside of theirs.
account(check, _) ->
    [#{memory_bytes := Bytes, keys := Keys}] = weir_table:stats(),
    bench_report:number(Bytes / Keys);
account(_, {Table, _, _}) ->
    bench_report:number(ets:info(Table, memory) * erlang:system_info(wordsize) / ets:info(Table, size)).

resident() ->
    lists:foreach(fun erlang:garbage_collect/1, processes()),
    {ok, Status} = file:read_file("/proc/self/status"),
    {match, [KiB]} = re:run(Status, "VmRSS:\\s*([0-9]+) kB", [{capture, all_but_first, binary}]),
    binary_to_integer(KiB) * 1024.
