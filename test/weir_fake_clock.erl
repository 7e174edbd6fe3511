%% A node with a system's clock that a test can set, by libfaketime. (Its monotonic clock is this machine's.)
-module(weir_fake_clock).

-include_lib("stdlib/include/assert.hrl").

-export([one_of_three/1, step/3, set/2, preload/0]).

-import(weir_cluster, [call/4, wait_until/2]).

%% Three nodes, the last of which has such a clock, so many milliseconds ahead; and the file that it is set by.
one_of_three(Ms) ->
    File = filename:join(filename:dirname(code:which(?MODULE)), "clock-" ++ os:getpid()),
    set(File, Ms),
    OsEnv = [preload(), {"FAKETIME_TIMESTAMP_FILE", File}, {"FAKETIME_NO_CACHE", "1"}, {"FAKETIME_DONT_FAKE_MONOTONIC", "1"},
             {"DONT_FAKE_MONOTONIC", "1"}],
    [A, B] = weir_cluster_SUITE:start_all(2, #{}),
    [C] = weir_cluster_SUITE:start_all(1, #{os_env => OsEnv}),
    weir_cluster:join([A, B, C]),
    Off = call(C, os, system_time, [millisecond]) - os:system_time(millisecond),
    ?assertMatch({_, Error} when abs(Error) < 60000, {Off, Off - Ms}),
    {[A, B, C], File}.

%% Sets it, and waits until weir has noticed.
step(Peer, File, Ms) ->
    #{steps := Before} = call(Peer, weir_clock, info, []),
    set(File, Ms),
    wait_until({step, Ms}, fun() -> maps:get(steps, call(Peer, weir_clock, info, [])) > Before end).

%% (Renamed, as it is read at any moment.)
set(File, Ms) ->
    ok = file:write_file(File ++ ".new", io_lib:format("~s~.3f", [["+" || Ms >= 0], Ms / 1000])),
    ok = file:rename(File ++ ".new", File).

%% Beside what this node was started with, as a sanitizer.
preload() ->
    {"LD_PRELOAD", lists:append(lists:join(":", [Before || Before <- [os:getenv("LD_PRELOAD")], Before =/= false] ++ [libfaketime()]))}.

%% Where it lies differs by architecture and system.
libfaketime() ->
    Found = [F || Pattern <- ["/usr/lib/*/faketime", "/usr/lib64/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime"],
                  F <- filelib:wildcard(Pattern ++ "/libfaketimeMT.so.1")],
    Found =/= [] orelse ct:fail("no libfaketime: scripts/bootstrap.sh test brings it"),
    hd(Found).
