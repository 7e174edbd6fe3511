%% @doc Markdown, numbers, and what the figures were measured on.
-module(bench_report).

-export([main/1, machine/0, table/2, number/1, ratio/2, million/1, median/1, say/2]).

%% Writes the report's head.
-spec main([string()]) -> ok.
main([File]) ->
    {ok, _} = application:ensure_all_started(weir),
    ok = file:write_file(File, ["# Benchmarks\n\n", machine()]).

%% What was measured on what, and how.
-spec machine() -> iodata().
machine() ->
    Facts = [{"machine", [first_line("/proc/cpuinfo", "model name"), ", ",
                          integer_to_list(erlang:system_info(logical_processors)), " CPUs, ", memory()]},
             {"system", string:trim(os:cmd("uname -srm"))},
             {"Erlang", ["OTP ", erlang:system_info(otp_release), ", erts ", erlang:system_info(version), ", ",
                         atom_to_list(erlang:system_info(emu_flavor)), ", ",
                         integer_to_list(erlang:system_info(schedulers_online)), " schedulers"]},
             {"weir's clock", atom_to_list(maps:get(source, weir_clock:info()))},
             {"commit", os:getenv("WEIR_BENCH_COMMIT", "unknown")},
             {"command", os:getenv("WEIR_BENCH_COMMAND", "bench/run.sh")},
             {"load before the start (1, 5, 15 min)", os:getenv("WEIR_BENCH_LOAD", "unknown")},
             {"date", calendar:system_time_to_rfc3339(erlang:system_time(second), [{offset, "Z"}])}],
    table(["", ""], [[Name, Value] || {Name, Value} <- Facts]).

-spec table([iodata()], [[iodata()]]) -> iodata().
table(Heads, Rows) ->
    Rule = ["---" | ["---:" || _ <- tl(Heads)]],
    [row(Heads), row(Rule), [row(Row) || Row <- Rows]].

%% Three digits that matter.
-spec number(number()) -> iodata().
number(X) when X >= 100 -> integer_to_list(round(X));
number(X) when X >= 10 -> float_to_list(X * 1.0, [{decimals, 1}]);
number(X) -> float_to_list(X * 1.0, [{decimals, 2}]).

-spec ratio(number(), number()) -> iodata().
ratio(A, B) -> [number(A / B), "x"].

-spec million(number()) -> iodata().
million(X) -> number(X / 1.0e6).

-spec median([number(), ...]) -> number().
median(Numbers) ->
    lists:nth((length(Numbers) + 1) div 2, lists:sort(Numbers)).

%% Progress, on standard error: the report is a file.
-spec say(io:format(), [term()]) -> ok.
say(Format, Arguments) ->
    io:format(standard_error, "  " ++ Format ++ "~n", Arguments).

%% ---- internal ----

row(Cells) -> ["| ", lists:join(" | ", Cells), " |\n"].

first_line(File, Field) ->
    case file:read_file(File) of
        {ok, Text} ->
            case re:run(Text, [Field, "\\s*:\\s*(.*)"], [{capture, all_but_first, binary}]) of
                {match, [Value]} -> Value;
                nomatch -> "unknown"
            end;
        {error, _} ->
            "unknown"
    end.

memory() ->
    case first_line("/proc/meminfo", "MemTotal") of
        "unknown" -> "memory unknown";
        KiB -> io_lib:format("~.1f GiB", [binary_to_integer(hd(binary:split(KiB, <<" ">>))) / 1048576])
    end.
