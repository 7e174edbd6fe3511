#!/usr/bin/env escript
%% The program behind scripts/mutants.sh, which says how it is used.
%%
%%   read     test/mutants/*.txt
%%   place    find where each old text stands: exactly once
%%   sync     bring the copy up to date with the source; the checkout is read now, and never changed
%%   build    the C++ tests, and the application with its NIF, without a fault
%%   look     the named tests exist, and pass without a fault
%%   try      each mutant: put it in, build, run its tests until the deadline, take it out
-mode(compile).

-define(HOME, "_build/mutants").
-define(TREE, ?HOME "/tree").
-define(CPP, ?HOME "/cpp").
-define(LOGS, ?HOME "/logs").
-define(EBIN, ?TREE "/_build/test/lib/weir/ebin").
%% What is copied.
-define(SOURCES, ["CMakeLists.txt", "VERSION", "rebar.config", "rebar.config.script",
                  "c_src", "config", "include", "src", "test"]).
%% Seconds. A mutant that makes its tests hang is killed by these.
-define(BUILD_MOST, 1800).
-define(CATCH2_MOST, 60).
-define(CT_MOST, 300).

main(Args) ->
    Options = options(Args, #{ids => [], pattern => none, all => false, list => false}),
    Start = erlang:monotonic_time(millisecond),
    Mutants = chosen(Options, [place(M) || M <- read_all()]),
    say("~b mutants, ~b of them listed as equivalent", [length(Mutants), length(equivalent(Mutants))]),
    case Options of
        #{list := true} -> [io:format("~s  ~s: ~s~n", [Id, Path, Breaks])
                            || #{id := Id, path := Path, breaks := Breaks} <- Mutants];
        _ -> finish(run(to_run(Options, Mutants), Options), equivalent(Mutants), Start)
    end.

options([], Options) -> Options;
options(["-k", Pattern | Rest], Options) -> options(Rest, Options#{pattern := Pattern});
options(["-a" | Rest], Options) -> options(Rest, Options#{all := true});
options(["-l" | Rest], Options) -> options(Rest, Options#{list := true});
options(["-" ++ _ = Unknown | _], _) -> fail("there is no option ~s; see the head of scripts/mutants.sh", [Unknown]);
options([Id | Rest], #{ids := Ids} = Options) -> options(Rest, Options#{ids := Ids ++ [Id]}).

chosen(#{ids := [], pattern := none}, Mutants) -> Mutants;
chosen(#{ids := [], pattern := Pattern}, Mutants) ->
    Matches = fun(Text) -> re:run(Text, Pattern, [{capture, none}]) =:= match end,
    some([M || #{id := Id, path := Path} = M <- Mutants, Matches(Id) orelse Matches(Path)], Pattern);
chosen(#{ids := Ids}, Mutants) -> lists:append([some([M || #{id := I} = M <- Mutants, I =:= Id], Id) || Id <- Ids]).

some([], What) -> fail("no mutant is called ~s", [What]);
some(Mutants, _) -> Mutants.

%% Those that are equivalent can be run by their names, to see that they still are.
to_run(#{ids := [_ | _]}, Mutants) -> Mutants;
to_run(_, Mutants) -> Mutants -- equivalent(Mutants).

equivalent(Mutants) -> [M || #{equivalent := _} = M <- Mutants].

%% Reading.

read_all() ->
    Mutants = lists:append([read(File) || File <- lists:sort(filelib:wildcard("test/mutants/*.txt"))]),
    Ids = [Id || #{id := Id} <- Mutants],
    case Ids -- lists:usort(Ids) of
        [] -> Mutants;
        [Twice | _] -> fail("two mutants are called ~s", [Twice])
    end.

%% A line that isn't indented begins an entry; empty lines and lines with a # in front are passed over.
read(File) ->
    {ok, Bytes} = file:read_file(File),
    Lines = [L || L <- string:split(binary_to_list(Bytes), "\n", all), string:trim(L) =/= "", hd(L) =/= $#],
    [complete(File, M) || M <- entries(File, Lines, [])].

entries(_, [], Done) -> lists:reverse(Done);
entries(File, ["  " ++ Field | Rest], [Mutant | Done]) -> entries(File, Rest, [field(File, Field, Mutant) | Done]);
entries(_, [Id | Rest], Done) -> entries(undefined_unless(Id), Rest, [#{id => string:trim(Id), tests => []} | Done]).

undefined_unless(" " ++ _ = Line) -> fail("a field belongs to no mutant: ~s", [Line]);
undefined_unless(Id) -> Id.

field(_, "file " ++ Text, M) -> M#{file => string:trim(Text)};
field(_, "in " ++ Text, M) -> M#{in => string:trim(Text)};
field(_, "breaks " ++ Text, M) -> M#{breaks => string:trim(Text)};
field(_, "catch2 " ++ Text, #{tests := Tests} = M) -> M#{tests := Tests ++ [{catch2, string:trim(Text)}]};
field(_, "ct " ++ Text, #{tests := Tests} = M) -> M#{tests := Tests ++ [ct(C) || C <- string:lexemes(Text, " ")]};
field(_, "equivalent " ++ Text, M) -> M#{equivalent => string:trim(Text)};
field(_, "- " ++ Text, M) -> M#{old => lines(maps:get(old, M, ""), Text)};
field(_, "+", M) -> M#{new => maps:get(new, M, "")};
field(_, "+ " ++ Text, M) -> M#{new => lines(maps:get(new, M, ""), Text)};
field(_, Other, #{id := Id}) -> fail("~s: what is \"~s\"?", [Id, Other]).

lines("", Line) -> Line;
lines(Lines, Line) -> Lines ++ "\n" ++ Line.

ct(Name) ->
    [Suite, Case] = string:split(Name, ":"),
    {ct, {Suite, Case}}.

complete(File, #{file := _, breaks := _, old := _, new := _, tests := [_ | _]} = M) -> M#{table => File};
complete(File, #{file := _, breaks := _, old := _, new := _, equivalent := _} = M) -> M#{table => File};
complete(File, #{id := Id}) -> fail("~s: ~s needs file, breaks, -, +, and catch2 or ct (or equivalent)", [File, Id]).

%% Placing. Spaces and line ends are as good as each other, so that a formatter doesn't matter; and a file may be a pattern, so
%% that it doesn't matter in which of some files the code stands.

place(#{id := Id, file := Pattern, old := Old} = Mutant) ->
    Paths = filelib:wildcard(Pattern),
    Found = [{Path, At, Length} || Path <- Paths, {At, Length} <- places(Path, Mutant)],
    case Found of
        [{Path, At, Length}] -> Mutant#{path => Path, at => At, length => Length};
        [] -> fail("~s: this stands nowhere in ~s~s: ~s", [Id, Pattern, where(Mutant), Old]);
        _ -> fail("~s: this stands ~b times in ~s~s: ~s", [Id, length(Found), Pattern, where(Mutant), Old])
    end.

where(#{in := In}) -> " after \"" ++ In ++ "\" (up to the end of that function)";
where(_) -> "".

places(Path, #{old := Old} = Mutant) ->
    {ok, Text} = file:read_file(Path),
    [{At, Length} || {From, To} <- ranges(Path, Text, Mutant), {At, Length} <- matches(Text, Old), At >= From, At + Length =< To].

ranges(Path, Text, #{in := In}) -> [{At, function_end(Path, Text, At)} || {At, _} <- matches(Text, In)];
ranges(_, Text, _) -> [{0, byte_size(Text)}].

function_end(Path, Text, At) ->
    End = case filename:extension(Path) of ".erl" -> "\\.\n(\n|$)"; _ -> "\n}" end,
    case re:run(Text, End, [{offset, At}]) of
        {match, [{Last, Length} | _]} -> Last + Length;
        nomatch -> byte_size(Text)
    end.

matches(Text, Words) ->
    Escaped = [re:replace(W, "[^A-Za-z0-9_]", "\\\\&", [global, {return, list}]) || W <- string:lexemes(Words, " \n")],
    case re:run(Text, lists:append(lists:join("\\s+", Escaped)), [global, {capture, first}]) of
        {match, All} -> [Place || [Place] <- All];
        nomatch -> []
    end.

mutated(Text, #{at := At, length := Length, new := New}) ->
    <<Before:At/binary, _:Length/binary, After/binary>> = Text,
    [Before, New, After].

%% Preparing.

run([], _) -> [];
run(Mutants, Options) ->
    ok = filelib:ensure_dir(?LOGS "/x"),
    sync(),
    {Cpp, Erl} = lists:partition(fun(#{path := Path}) -> filename:extension(Path) =/= ".erl" end, Mutants),
    [fail("~s: a mutant of C++ is shown to Catch2 tests only", [Id]) || #{id := Id, tests := T} <- Cpp, {ct, _} <- T],
    [fail("~s: a mutant of Erlang is shown to Common Test only", [Id]) || #{id := Id, tests := T} <- Erl, {catch2, _} <- T],
    %% Those of one file one after another: each other change of file compiles one file more.
    Sorted = lists:sort(fun(#{path := A}, #{path := B}) -> A =< B end, Cpp),
    Total = length(Mutants),
    lists:append(cpp(Sorted, Options, Total), erl(Erl, length(Cpp), Total)).

%% Written only where it differs: what is as it was needs no building.
sync() ->
    Files = [F || Top <- ?SOURCES, F <- files(Top)],
    [begin
         {ok, Bytes} = file:read_file(F),
         write(filename:join(?TREE, F), Bytes)
     end || F <- Files],
    Gone = [F || Top <- ?SOURCES, F <- files(filename:join(?TREE, Top))] -- [filename:join(?TREE, F) || F <- Files],
    [ok = file:delete(F) || F <- Gone].

files(Path) ->
    case file:list_dir(Path) of
        {ok, Names} -> lists:append([files(filename:join(Path, Name)) || Name <- Names]);
        {error, _} -> [Path || filelib:is_regular(Path)]
    end.

write(File, Bytes) ->
    Wanted = iolist_to_binary(Bytes),
    case file:read_file(File) of
        {ok, Wanted} -> ok;
        _ ->
            ok = filelib:ensure_dir(File),
            ok = file:write_file(File, Wanted)
    end.

%% C++: one build folder; a mutant costs one object (or, in a header, more) and a link.

cpp([], _, _) -> [];
cpp(Mutants, Options, Total) ->
    say("building the C++ tests without a fault", []),
    ok = must("configure", "cmake -S " ?TREE " -B " ?CPP " -DWEIR_TESTS=ON -DWEIR_NIF=OFF -DCMAKE_BUILD_TYPE=Mutants"
                           " '-DCMAKE_CXX_FLAGS_MUTANTS=-O1 -g0 -DNDEBUG'"),
    ok = must("build", build()),
    say("running their tests without a fault", []),
    Specs = lists:usort([spec(M, Options) || M <- Mutants]),
    Usual = maps:from_list([{Spec, usual(Spec)} || Spec <- Specs]),
    [try_cpp(M, maps:get(spec(M, Options), Usual), Options, {N, Total}) || {N, M} <- numbered(Mutants)].

build() -> "cmake --build " ?CPP " --parallel " ++ os:getenv("WEIR_JOBS", "1") ++ " --target weir_test".

spec(_, #{all := true}) -> "~[none]";
spec(#{tests := Tests}, _) -> lists:append(lists:join(",", [quoted(Name) || {catch2, Name} <- Tests])).

%% A tag as it is; of a name what means something to Catch2 is escaped.
quoted("[" ++ _ = Tag) -> Tag;
quoted(Name) -> re:replace(Name, "[\\\\,\\[\\]\"]", "\\\\&", [global, {return, list}]).

%% How long they take when nothing is broken.
usual(Spec) ->
    case sh("usual", catch2(Spec), ?CT_MOST) of
        {0, Took} ->
            {ok, Output} = file:read_file(log("usual")),
            case re:run(Output, "in [1-9][0-9]* test cases?\\)", [{capture, none}]) of
                match -> Took;
                nomatch -> fail("no Catch2 test is called ~s", [Spec])
            end;
        _ -> fail("without any mutant this fails: ~s (see ~s)", [catch2(Spec), log("usual")])
    end.

catch2(Spec) -> ?CPP "/weir_test --abort " ++ single_quoted(Spec).

single_quoted(Text) -> "'" ++ lists:append(string:replace(Text, "'", "'\\''", all)) ++ "'".

try_cpp(#{id := Id, path := Path} = Mutant, Usual, Options, Progress) ->
    Start = erlang:monotonic_time(millisecond),
    File = filename:join(?TREE, Path),
    {ok, Sound} = file:read_file(File),
    write(File, mutated(Sound, Mutant)),
    Result = case sh(Id, build(), ?BUILD_MOST) of
                 {0, _} -> verdict(Id, sh(Id, catch2(spec(Mutant, Options)), ?CATCH2_MOST + 10 * Usual div 1000));
                 _ -> {broken, "does not build, see " ++ log(Id)}
             end,
    write(File, Sound),
    told(Mutant, Result, Start, Progress).

%% Erlang: the module is compiled into the copy's ebin, and out again.

erl([], _, _) -> [];
erl(Mutants, Done, Total) ->
    say("building the application without a fault", []),
    %% A run that was cut short may have left a module with its fault.
    _ = [file:delete(beam(Source)) || Source <- filelib:wildcard(?HOME "/erl/*.erl")],
    %% (Suites call each other. Common Test compiles only those that it is to run.)
    ok = must("rebar3", "cd " ?TREE " && rebar3 as test compile"
                        " && erlc +debug_info -I include -o test test/*.erl test/mutants/mutants_ct.erl"),
    say("running its suites without a fault", []),
    Cases = lists:usort([C || #{tests := Tests} <- Mutants, {ct, C} <- Tests]),
    Suites = lists:usort([S || {S, _} <- Cases]),
    [sound(S, [C || {In, _} = C <- Cases, In =:= S]) || S <- Suites],
    [try_erl(M, {Done + N, Total}) || {N, M} <- numbered(Mutants)].

%% (Twice, if need be: another load on the machine may take some answer longer than a test waits for it.)
sound(Suite, Cases) ->
    Passes = fun() -> element(1, sh(Suite, run_ct(Cases), 4 * ?CT_MOST)) =:= 0 end,
    case Passes() orelse Passes() of
        true -> ok;
        false -> fail("without any mutant cases of ~s fail (see ~s)", [Suite, log(Suite)])
    end.

try_erl(#{id := Id, path := Path, tests := Tests} = Mutant, Progress) ->
    Start = erlang:monotonic_time(millisecond),
    Source = filename:join([?HOME, "erl", filename:basename(Path)]),
    Beam = beam(Path),
    {ok, Text} = file:read_file(filename:join(?TREE, Path)),
    write(Source, mutated(Text, Mutant)),
    {ok, Sound} = file:read_file(Beam),
    Compile = "erlc +debug_info -I " ?TREE "/include -I " ?TREE "/src -o " ?EBIN " " ++ Source,
    Result = case sh(Id, Compile, ?CT_MOST) of
                 {0, _} -> verdict(Id, sh(Id, run_ct([C || {ct, C} <- Tests]), ?CT_MOST));
                 _ -> {broken, "does not compile, see " ++ log(Id)}
             end,
    ok = file:write_file(Beam, Sound),
    told(Mutant, Result, Start, Progress).

beam(Source) -> filename:join(?EBIN, filename:basename(Source, ".erl") ++ ".beam").

run_ct(Cases) ->
    Test = filename:absname(?TREE "/test"),
    Words = lists:append([" " ++ S ++ ":" ++ C || {S, C} <- Cases]),
    "mkdir -p " ?HOME "/ct && erl -noshell -pa " ++ Test ++ " " ++ filename:absname(?EBIN)
        ++ " -run mutants_ct main " ++ Test ++ " " ?HOME "/ct" ++ Words.

%% What came of it.

verdict(_, {0, _}) -> survived;
verdict(_, {Status, _}) when Status =:= 124; Status =:= 137 -> {killed, "(hangs)"};
verdict(Id, _) -> {killed, by(Id)}.

%% The first test that failed: with Catch2 its name stands above, between two lines.
by(Id) ->
    {ok, Output} = file:read_file(log(Id)),
    Options = [global, multiline, {capture, [1], list}],
    All = fun(Text, Pattern) -> case re:run(Text, Pattern, Options) of {match, Found} -> Found; nomatch -> [] end end,
    [Before | _] = string:split(Output, "FAILED:"),
    case {All(Before, "^-{79}\n((?:[^ .\n-][^\n]*\n)+)"), All(Output, "^(\\S+ failed on line \\d+\nReason: [^\n]+)")} of
        {[_ | _] = Names, _} -> "by " ++ one_line(hd(lists:last(Names)));
        {_, [[Reason] | _]} -> one_line(Reason);
        _ -> "see " ++ log(Id)
    end.

one_line(Text) -> lists:append(lists:join(" ", string:lexemes(Text, " \n"))).

told(#{id := Id, breaks := Breaks} = Mutant, Result, Start, {N, Total}) ->
    Seconds = (erlang:monotonic_time(millisecond) - Start) / 1000,
    Text = case Result of
               survived -> "SURVIVED " ++ Id ++ ": " ++ Breaks;
               {killed, By} -> "killed   " ++ Id ++ " " ++ By;
               {broken, Why} -> "BROKEN   " ++ Id ++ " " ++ Why
           end,
    io:format("[~b/~b] ~5.1f s  ~ts~n", [N, Total, Seconds, Text]),
    {Mutant, Result}.

finish(Results, Equivalent, Start) ->
    Is = fun(What) -> [M || {M, R} <- Results, R =:= What orelse (is_tuple(R) andalso element(1, R) =:= What)] end,
    Survived = Is(survived) -- Equivalent,
    Broken = Is(broken),
    Tables = lists:usort([T || {#{table := T}, _} <- Results]),
    Of = fun(Table, Mutants) -> length([M || #{table := T} = M <- Mutants, T =:= Table]) end,
    [io:format("  ~-32s ~3b killed, ~b survived, ~b equivalent~n",
               [filename:basename(T), Of(T, Is(killed)), Of(T, Survived), Of(T, Equivalent)]) || T <- Tables],
    io:format("~b killed, ~b survived, ~b broken, ~b equivalent, in ~b s~n",
              [length(Is(killed)), length(Survived), length(Broken), length(Equivalent),
               (erlang:monotonic_time(millisecond) - Start) div 1000]),
    halt(case Survived ++ Broken of [] -> 0; _ -> 1 end).

%% Programs.

must(What, Command) ->
    case sh(What, Command, ?BUILD_MOST) of
        {0, _} -> ok;
        _ -> fail("that failed: ~s (the log: ~s)", [Command, log(What)])
    end.

%% {exit status, milliseconds}. Past the deadline all that it started is killed with it.
sh(What, Command, Seconds) ->
    Start = erlang:monotonic_time(millisecond),
    Logged = "exec >'" ++ log(What) ++ "' 2>&1 </dev/null; " ++ Command,
    Port = open_port({spawn_executable, os:find_executable("timeout")},
                     [exit_status, {env, [{"ESCRIPT_NAME", false}]},
                      {args, ["-s", "KILL", integer_to_list(Seconds), "sh", "-c", Logged]}]),
    receive {Port, {exit_status, Status}} -> {Status, erlang:monotonic_time(millisecond) - Start} end.

log(What) -> ?LOGS "/" ++ What ++ ".log".

numbered(List) -> lists:zip(lists:seq(1, length(List)), List).

say(Format, Args) -> io:format("==> " ++ Format ++ "~n", Args).

fail(Format, Args) ->
    io:format(standard_error, "weir: " ++ Format ++ "~n", Args),
    halt(1).
