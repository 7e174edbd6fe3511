%% Two releases side by side: this tree, and the last commit before the protocol had versions, built by the suite. Real nodes of both
%% limit together, while all of them are upgraded one after the other, or downgraded, under load.
%%
%% Load comes in rounds (weir_rounds), so the bounds are those of one release, however slow the machine is. Repair is counted on all
%% nodes.
%%
%%   WEIR_BEFORE     the other release: a commit, or a folder in which it is built (faa5ac5)
%%
%% Run by `scripts/check.sh versions'. Shows R57 of doc/requirements.md.
-module(weir_versions_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4, terminate/1, restart/2, options/2, see_each_other/1, denied_by_all/3, node_of/1, wait_until/2]).
-import(weir_cluster_SUITE, [start_all/2, keep/1]).
-import(weir_rounds, [limited/4, agree/3, repair_is_small/3, repair/4]).

-define(BEFORE, "faa5ac5").
-define(KEY, <<"alice">>).
-define(C, 300).
-define(SLOW, #{rate => {?C, {?C, day}}}).
%% An option that only the later release knows.
-define(TO_COME, #{rate => {2, {2, day}}, to_come => 5}).

suite() ->
    [{timetrap, {minutes, 10}}].

all() ->
    [upgrade, downgrade, limiter_of_the_later_release].

init_per_suite(Config) ->
    Root = weir_test:root(),
    Before = case os:getenv("WEIR_BEFORE", ?BEFORE) of
                 "/" ++ _ = Folder -> Folder;
                 Commit -> built(Root, Commit)
             end,
    [{before, filename:join(Before, "ebin")}, {later, later(filename:join([Root, "_build", "versions", "later"]))} | Config].

end_per_suite(_Config) -> ok.

end_per_testcase(Case, Config) ->
    weir_cluster_SUITE:end_per_testcase(Case, Config).

%% The commit's tree in _build/versions, compiled there; its application.
built(Root, Commit) ->
    Folder = filename:join([Root, "_build", "versions", Commit]),
    Script = "set -e; mkdir -p \"$2\"; [ -e \"$2/rebar.config\" ] || git -C \"$1\" archive \"$3\" | tar -x -C \"$2\"; cd \"$2\"; rebar3 compile",
    Port = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", Script, "build", Root, Folder, Commit]}, exit_status, binary, stderr_to_stdout]),
    case told_by(Port, <<>>) of
        {0, _} -> filename:join([Folder, "_build", "default", "lib", "weir"]);
        {Status, Said} -> ct:fail("~ts can't be built (~b): ~ts", [Commit, Status, Said])
    end.

told_by(Port, Said) ->
    receive
        {Port, {data, More}} -> told_by(Port, <<Said/binary, More/binary>>);
        {Port, {exit_status, Status}} -> {Status, Said}
    end.

%% This tree's weir_limiter, with one option more.
later(Folder) ->
    {ok, {weir_limiter, [{abstract_code, {raw_abstract_v1, Forms}}]}} = beam_lib:chunks(code:which(weir_limiter), [abstract_code]),
    {Head, Rest} = lists:splitwith(fun(Form) -> element(1, Form) =/= function end, Forms),
    Renamed = [case Form of {function, Line, parse, 1, Clauses} -> {function, Line, parse_known, 1, Clauses}; _ -> Form end || Form <- Rest],
    {ok, weir_limiter, Beam} = compile:forms([Form || Form <- Head, not is_spec_of_parse(Form)] ++ [form(
        "parse(#{to_come := Option} = Spec) -> "
        "  case parse_known(maps:remove(to_come, Spec)) of "
        "    {ok, #{spec := Known} = Compiled} -> {ok, Compiled#{spec := Known#{to_come => Option}}}; "
        "    Error -> Error "
        "  end; "
        "parse(Spec) -> parse_known(Spec).")] ++ [Form || Form <- Renamed, not is_spec_of_parse(Form)], []),
    File = filename:join(Folder, "weir_limiter.beam"),
    ok = filelib:ensure_dir(File),
    ok = file:write_file(File, Beam),
    Folder.

is_spec_of_parse({attribute, _, spec, {{parse, 1}, _}}) -> true;
is_spec_of_parse(_) -> false.

form(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, Form} = erl_parse:parse_form(Tokens),
    Form.

%% Whatever the others have on their paths, but another weir.
release(before, Config) -> #{paths => (weir_test:code_paths() -- [weir_test:ebin()]) ++ [?config(before, Config)]};
release(later, Config) -> #{paths => weir_test:code_paths() ++ [?config(later, Config)]}.

%% ---- the tests

upgrade(Config) -> replaced(before, later, Config).

downgrade(Config) -> replaced(later, before, Config).

%% Three nodes, each restarted with the other release, while all that are there are asked.
replaced(From, To, Config) ->
    Peers = start_all(3, release(From, Config)),
    ok = put_everywhere(Peers, login, ?SLOW),
    All = weir_nemesis_SUITE:in_turn(Peers, fun(P, Others) ->
                                                    terminate(P),
                                                    New = keep(restart(options(P, release(To, Config)), Others)),
                                                    see_each_other([New | Others]),
                                                    together([New | Others], node_of(New)),
                                                    New
                                            end),
    repair_is_small(replaced, All, 3).

%% A bucket that begins while releases are mixed is one for all.
together(Peers, Key) ->
    _ = limited(Peers, login, Key, ?C),
    agree(Peers, login, Key),
    denied_by_all(Peers, login, Key).

%% In the midst of an upgrade a limiter is made that the nodes of before can't parse. They don't count it, and nothing else suffers;
%% once they are of the later release they know what was used.
limiter_of_the_later_release(Config) ->
    [A, B, C] = start_all(1, release(later, Config)) ++ start_all(2, release(before, Config)),
    weir_cluster:join([A, B, C]),
    ok = put_everywhere([A, B, C], login, ?SLOW),
    ok = call(A, weir, put_limiter, [later, ?TO_COME]),
    %% Each hit is a record. A node asks for what it lacks every other second.
    Keys = asked_until(fun() -> lists:all(fun(P) -> heartbeats(P, A) > 60 end, [B, C]) end, A, 0),
    ct:pal("~b records of a limiter that is not known to two nodes", [Keys]),
    %% (Not asserted: the release of before asks for all that it refuses again and again, and is given it.)
    _ = repair(later, [A, B, C], 1, 0),
    together([A, B, C], ?KEY),
    All = lists:foldl(fun(P, Now) ->
                              terminate(P),
                              New = keep(restart(options(P, release(later, Config)), Now -- [P])),
                              see_each_other([New | Now -- [P]]),
                              [New | Now -- [P]]
                      end, [A, B, C], [B, C]),
    wait_until(known, fun() -> lists:all(fun(P) -> knows(P, <<"later">>) end, All) end),
    [wait_until({used, node_of(P)}, fun() -> Keys =:= call(P, ?MODULE, used, [later, Keys]) end) || P <- All],
    denied_by_all(All, login, ?KEY).

asked_until(Enough, Peer, Keys) ->
    case Enough() of
        true -> Keys;
        false ->
            20 = call(Peer, weir_nemesis_SUITE, ask_each, [later, Keys + 1, Keys + 20]),
            receive after 100 -> ok end,
            asked_until(Enough, Peer, Keys + 20)
    end.

heartbeats(Peer, From) ->
    maps:get(received_frames, maps:get(node_of(From), call(Peer, weir_members, traffic, []), #{received_frames => 0})).

used(Limiter, Keys) ->
    length([I || I <- lists:seq(1, Keys), #{limit := L, remaining := R} <- [weir:peek(Limiter, {key, I})], L - R =:= 1]).

%% (What a limiter's entry says beside its specification is another thing in each release.)
put_everywhere(Peers, Name, Spec) ->
    ok = call(hd(Peers), weir, put_limiter, [Name, Spec]),
    wait_until({limiter, Name}, fun() -> lists:all(fun(P) -> knows(P, atom_to_binary(Name)) end, Peers) end).

knows(Peer, Name) ->
    is_map_key(Name, call(Peer, weir, limiters, [])).
