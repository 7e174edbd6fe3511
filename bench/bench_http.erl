%% @doc What the wire costs: wrk against weir's HTTP on loopback, and the same decisions by function call in the same VM.
%%
%% wrk runs on the same machine and takes its share of it: the figures are of server and client together.
-module(bench_http).

-export([main/1]).

-define(CONNECTIONS, "16").

-spec main([string()]) -> ok.
main([Length, Scripts, File]) ->
    Seconds = case Length of
                  "quick" -> 3;
                  _ -> 10
              end,
    application:load(weir),
    ok = application:set_env(weir, http, #{ip => "127.0.0.1", port => 0}),
    {ok, _} = application:ensure_all_started(weir),
    ok = weir:put_limiter(bench_http, #{rate => {1, second}, burst => 1000000000}),
    Wire = [wire(Title, Items, Script, Path, Seconds, Scripts)
            || {Title, Items, Script, Path} <- [{"GET /healthz (cowboy alone)", 1, "health.lua", "/healthz"},
                                                {"POST /v1/check", 1, "check.lua", "/"},
                                                {"POST /v1/check, a list of 100", 100, "check.lua", "/"}]],
    Calls = [call("weir:check/3 in process", fun(Key) -> {allow, _} = weir:check(bench_http, Key, 1) end),
             call("weir:decide/3 in process", fun(Key) -> #{allowed := true} = weir:decide(bench_http, Key, 1) end)],
    Heads = ["", "requests/s", "decisions/s", "us a decision", "p50 ms", "p99 ms", "max ms"],
    ok = file:write_file(File, ["\n## HTTP\n\n`wrk -t1 -c", ?CONNECTIONS, "`, keep-alive, ", integer_to_list(Seconds),
                                " s each, on the same machine; below it the same decisions from one process.\n\n",
                                bench_report:table(Heads, Wire ++ Calls)]).

%% ---- internal ----

wire(Title, Items, Script, Path, Seconds, Scripts) ->
    bench_report:say("HTTP: ~s", [Title]),
    Url = ["http://127.0.0.1:", integer_to_list(weir_http:port()), Path],
    Command = ["wrk -t1 -c", ?CONNECTIONS, " -d", integer_to_list(Seconds), "s -s '", filename:join(Scripts, Script), "' ",
               Url, " -- ", integer_to_list(Items), " 2>&1"],
    Output = os:cmd(binary_to_list(iolist_to_binary(Command))),
    case re:run(Output, "RESULT (\\d+) (\\d+) (\\d+) (\\d+) (\\d+) (\\d+)", [{capture, all_but_first, list}]) of
        {match, Numbers} ->
            [Requests, Us, 0, P50, P99, Max] = [list_to_integer(N) || N <- Numbers],
            Rate = Requests / Us * 1.0e6,
            [Title, bench_report:number(Rate), decisions(Path, Rate * Items), us(Path, Rate * Items)
            | [bench_report:number(T / 1000) || T <- [P50, P99, Max]]];
        nomatch ->
            error({wrk_failed, Output})
    end.

decisions("/healthz", _) -> "";
decisions(_, Rate) -> bench_report:number(Rate).

us("/healthz", _) -> "";
us(_, Rate) -> bench_report:number(1.0e6 / Rate).

call(Title, Decide) ->
    Keys = [bench_keys:key(N) || N <- lists:seq(0, 999)],
    Rate = bench_report:median([1.0e9 / time(Decide, Keys) || _ <- lists:seq(1, 1000)]),
    [Title, "", bench_report:number(Rate), bench_report:number(1.0e6 / Rate), "", "", ""].

%% Nanoseconds a decision.
time(Decide, Keys) ->
    Start = erlang:monotonic_time(nanosecond),
    lists:foreach(Decide, Keys),
    (erlang:monotonic_time(nanosecond) - Start) / length(Keys).
