%% Runs some cases of Common Test for scripts/mutants.escript:  erl ... -run mutants_ct main TEST_DIR LOG_DIR SUITE:CASE...
%%
%% Each case runs once, in the first group that has it, as Common Test finds it only there. Exit status 0 when all passed.
-module(mutants_ct).

-export([main/1]).

-spec main([string()]) -> no_return().
main([Dir, Logs | Names]) ->
    Cases = [list_to_tuple([list_to_atom(W) || W <- string:lexemes(Name, ":")]) || Name <- Names],
    Suites = lists:usort([S || {S, _} <- Cases]),
    Terms = lists:append([terms(Dir, S, [C || {In, C} <- Cases, In =:= S]) || S <- Suites]),
    {Passed, Failed, {Skipped, Auto}} = ct:run_testspec([{logdir, Logs} | Terms]),
    io:format("~b passed, ~b failed, ~b skipped~n", [Passed, Failed, Skipped + Auto]),
    halt(case {Passed, Failed + Skipped + Auto} of {N, 0} when N >= length(Cases) -> 0; _ -> 1 end).

terms(Dir, Suite, Cases) ->
    {ok, Suite, Binary} = compile:file(filename:join(Dir, Suite), [binary]),
    {module, Suite} = code:load_binary(Suite, "", Binary),
    Groups = case erlang:function_exported(Suite, groups, 0) of true -> Suite:groups(); false -> [] end,
    Placed = [{place(Case, Suite:all(), Groups), Case} || Case <- Cases],
    [term(Dir, Suite, Place, [C || {P, C} <- Placed, P =:= Place]) || Place <- lists:usort([P || {P, _} <- Placed])].

term(Dir, Suite, direct, Cases) -> {cases, Dir, Suite, Cases};
term(Dir, Suite, Group, Cases) -> {groups, Dir, Suite, Group, {cases, Cases}}.

place(Case, All, Groups) ->
    case [Name || {Name, _, Its} <- Groups, lists:member(Case, Its)] of
        [Group | _] -> Group;
        [] ->
            lists:member(Case, All) orelse error({no_such_case, Case}),
            direct
    end.
