%% What README.md and doc/ show is run: fenced blocks of Erlang and Elixir, curl lines, and child specifications within the text. Names
%% of functions, files and make's targets must exist.
%%
%% A block of Erlang is evaluated as it stands, with weir started and the limiters of config/sys.config there; if it is a piece of
%% configuration, weir is started with it. Nothing is marked: a block that shouldn't be run has another language, or none.
%% Shows R20 of doc/requirements.md.
-module(weir_readme_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-behaviour(supervisor).

-define(DEADLINE_MS, 10000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [erlang_blocks, first_use_in_erlang, first_use_in_elixir, curl_lines, child_specifications, functions_exist, links_lead_somewhere,
     targets_exist].

init_per_suite(Config) ->
    [{ok, _} = application:ensure_all_started(Server) || Server <- [cowboy, prometheus]],
    Config.

end_per_suite(_) ->
    ok.

init_per_testcase(_, Config) ->
    ok = weir_test:start(#{limiters => configured_limiters()}),
    Config.

end_per_testcase(_, _) ->
    weir_test:stop().

configured_limiters() ->
    {ok, [Applications]} = file:consult(filename:join([weir_test:root(), "config", "sys.config"])),
    proplists:get_value(limiters, proplists:get_value(weir, Applications)).

%% ---- Erlang

erlang_blocks(_) ->
    Blocks = [{File, Line, Text} || File <- pages(), {Line, "erlang", Text} <- blocks(File)],
    ?assert(Blocks =/= []),
    [try configured(evaluate(Text))
     catch Class:Reason:Stack -> ct:fail("~ts:~b: ~tp~n~ts~n~tp", [File, Line, {Class, Reason}, Text, Stack])
     end || {File, Line, Text} <- Blocks].

%% The final full stop may be missing, as in a piece of something larger.
evaluate(Text) ->
    Trimmed = string:trim(Text),
    Stopped = case lists:suffix(".", Trimmed) of true -> Trimmed; false -> Trimmed ++ "." end,
    {ok, Tokens, _} = erl_scan:string(Stopped),
    {ok, Exprs} = erl_parse:parse_exprs(Tokens),
    {value, Value, _} = erl_eval:exprs(Exprs, []),
    Value.

configured([{weir, _} = Weir | _]) ->
    configured(Weir);
configured({weir, Env}) when is_list(Env) ->
    Given = maps:from_list(Env),
    %% Any free port will do.
    Http = [{http, (maps:get(http, Given))#{port => 0}} || is_map_key(http, Given)],
    ok = weir_test:start(maps:merge(Given, maps:from_list(Http)));
configured(_) ->
    ok.

%% "The sixth within a minute": five proceed.
first_use_in_erlang(_) ->
    [Text] = [Text || {_, "erlang", Text} <- blocks(readme()), string:find(Text, "weir:put_limiter") =/= nomatch],
    ?assertEqual([proceed, proceed, proceed, proceed, proceed, {retry_after, 12000}],
                 [evaluate(patient(Text, "scope => exact", "timeout => 20000")) || _ <- lists:seq(1, 6)]).

%% A busy machine may take longer to answer than the default timeout: then the question is decided here, too.
patient(Text, Before, Option) ->
    Patient = string:replace(Text, Before, [Before, ", ", Option]),
    ?assertEqual(3, length(Patient)),
    unicode:characters_to_list(Patient).

%% ---- Elixir

first_use_in_elixir(_) ->
    [Text] = [Text || {_, "elixir", Text} <- blocks(readme()), string:find(Text, ":weir.put_limiter") =/= nomatch],
    [Child] = spans(readme(), "^\\{:weir, limiters:"),
    Patient = patient(Text, "scope: :exact", "timeout: 20_000"),
    Script = "{:ok, _} = Application.ensure_all_started(:weir)\n"
             ":ok = :weir_clock.freeze(1_700_000_000_000_000_000)\n"
             "text = System.fetch_env!(\"TEXT\")\n"
             "for _ <- 1..6, do: IO.puts(\"answer: #{inspect(elem(Code.eval_string(text), 0))}\")\n"
             ":ok = :weir.delete_limiter(:login)\n"
             "{child, _} = Code.eval_string(System.fetch_env!(\"CHILD\"))\n"
             "{:ok, _} = Supervisor.start_link([child], strategy: :one_for_one)\n"
             "IO.puts(\"answer: #{inspect(:weir.check(:login, \"key\"))}\")\n",
    Elixir = os:find_executable("elixir"),
    ?assertNotEqual({false, "elixir is not installed"}, {Elixir, "elixir is not installed"}),
    Port = open_port({spawn_executable, Elixir},
                     [{args, ["-pa", weir_test:ebin(), "-e", Script]}, {env, [{"TEXT", Patient}, {"CHILD", Child}, {"LC_ALL", "C.UTF-8"}]},
                      exit_status, stderr_to_stdout, binary, hide]),
    {Status, Output} = collect(Port, []),
    ?assertMatch({0, _}, {Status, Output}),
    {match, Answers} = re:run(Output, "^answer: (.*)$", [global, multiline, {capture, all_but_first, list}]),
    ?assertEqual(lists:duplicate(5, [":proceed"]) ++ [["{:retry_after, 12000}"], ["{:allow, 4}"]], Answers).

collect(Port, Sofar) ->
    receive
        {Port, {data, Data}} -> collect(Port, [Sofar, Data]);
        {Port, {exit_status, Status}} -> {Status, iolist_to_binary(Sofar)}
    end.

%% ---- curl

%% Every curl line answers; README's is allowed five times, and the sixth is told when to come back.
curl_lines(_) ->
    Lines = [{File, Line} || File <- pages(), {_, "sh", Text} <- blocks(File), "curl " ++ _ = Line <- string:lexemes(Text, "\n")],
    ?assertMatch([_ | _], [Line || {File, Line} <- Lines, File =:= readme()]),
    [begin
         ok = weir_test:start(#{limiters => configured_limiters(), http => #{ip => "127.0.0.1", port => 0}}),
         Answers = [curl(Line) || _ <- lists:seq(1, 6)],
         [?assertMatch({L, {Status, _}} when Status =:= 200; Status =:= 201; Status =:= 429, {L, Answer}) || L <- [Line], Answer <- Answers],
         File =:= readme() andalso first_curl(Answers)
     end || {File, Line} <- Lines].

first_curl(Answers) ->
    ?assertEqual([200, 200, 200, 200, 200, 429], [Status || {Status, _} <- Answers]),
    {429, Denied} = lists:last(Answers),
    ?assertMatch({match, _}, re:run(Denied, "^retry-after: 12\r?$", [caseless, multiline])).

%% What curl would send: -d makes it a POST of a form, unless a header says otherwise.
curl(Line) ->
    Asked = options(tl(words(Line)), #{method => "GET", headers => [], body => "", url => none}),
    #{method := Method, headers := Headers, body := Body, url := Url} = Asked,
    #{path := Path} = uri_string:parse(Url),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, weir_http:port(), [binary, {active, false}]),
    ok = gen_tcp:send(Socket, [Method, " ", Path, query(Url), " HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nconnection: close\r\naccept: */*\r\n",
                               [[H, "\r\n"] || H <- Headers],
                               [["content-length: ", integer_to_list(iolist_size(Body)), "\r\n"] || Body =/= ""], "\r\n", Body]),
    Answer = receive_all(Socket, []),
    {match, [Status]} = re:run(Answer, "^HTTP/1.1 ([0-9]{3})", [{capture, all_but_first, list}]),
    {list_to_integer(Status), Answer}.

query(Url) ->
    case uri_string:parse(Url) of
        #{query := Query} -> ["?", Query];
        #{} -> []
    end.

receive_all(Socket, Sofar) ->
    case gen_tcp:recv(Socket, 0, ?DEADLINE_MS) of
        {ok, Data} -> receive_all(Socket, [Sofar, Data]);
        {error, closed} -> iolist_to_binary(Sofar)
    end.

options([], #{headers := Headers, body := [_ | _]} = Asked) ->
    Typed = lists:any(fun(H) -> string:prefix(string:lowercase(H), "content-type:") =/= nomatch end, Headers),
    Asked#{headers := [["content-type: application/x-www-form-urlencoded"] || not Typed] ++ Headers};
options([], Asked) ->
    Asked;
options([Flag | Rest], Asked) when Flag =:= "-i"; Flag =:= "-s"; Flag =:= "-sS"; Flag =:= "-v"; Flag =:= "-f" ->
    options(Rest, Asked);
options([Flag, Body | Rest], #{method := Method} = Asked) when Flag =:= "-d"; Flag =:= "--data" ->
    options(Rest, Asked#{body := Body, method := case Method of "GET" -> "POST"; _ -> Method end});
options(["-X" ++ Joined, Body | Rest], Asked) when Joined =/= "" ->
    options([Body | Rest], Asked#{method := Joined});
options(["-X", Method | Rest], Asked) ->
    options(Rest, Asked#{method := Method});
options(["-H", Header | Rest], #{headers := Headers} = Asked) ->
    options(Rest, Asked#{headers := Headers ++ [Header]});
options(["http" ++ _ = Url | Rest], #{url := none} = Asked) ->
    options(Rest, Asked#{url := Url}).

%% The words of a line of shell: blanks part them, quotes keep them together.
words(Line) ->
    {match, Words} = re:run(Line, "'([^']*)'|\"([^\"]*)\"|([^\\s'\"]+)", [global, {capture, all_but_first, list}]),
    [lists:append(Groups) || Groups <- Words].

%% ---- the text

%% supervisor's callback: the children are given.
init(Children) ->
    {ok, {#{}, Children}}.

%% `{weir, #{limiters => ...}}' within the text, as a child of a supervisor that knows {Module, Args} only by child_spec/1.
child_specifications(_) ->
    Specs = spans(readme(), "^\\{weir, #\\{limiters"),
    ?assert(Specs =/= []),
    [begin
         ok = weir_test:stop(),
         {weir, Opts} = evaluate(Spec),
         {ok, Sup} = supervisor:start_link(?MODULE, [weir:child_spec(Opts)]),
         ?assertEqual(maps:size(maps:get(limiters, Opts)), maps:size(weir:limiters())),
         [?assertMatch({allow, _}, weir:check(Name, key)) || Name <- maps:keys(maps:get(limiters, Opts))],
         true = unlink(Sup),
         true = exit(Sup, shutdown)
     end || Spec <- Specs].

%% weir:check_many/1, weir_clock:freeze/1 ...
functions_exist(_) ->
    Named = lists:usort([{list_to_atom(M), list_to_atom(F), list_to_integer(A)}
                         || File <- pages(), [M, F, A] <- matches(read(File), "\\b(weir[a-z_]*):([a-z_]+)/([0-9])")]),
    ?assert(length(Named) >= 4),
    ?assertEqual([], [MFA || {M, F, A} = MFA <- Named,
                             not (code:ensure_loaded(M) =:= {module, M} andalso erlang:function_exported(M, F, A))]).

links_lead_somewhere(_) ->
    Links = [{File, Link} || File <- pages(), [Link] <- matches(read(File), "\\]\\(([^)#:]+)(?:#[^)]*)?\\)")],
    ?assert(length(Links) > 10),
    ?assertEqual([], [{File, Link} || {File, Link} <- Links, not exists(filename:join(filename:dirname(File), Link))]).

exists(Path) ->
    filelib:is_file(Path).

targets_exist(_) ->
    Makefile = read(filename:join(weir_test:root(), "Makefile")),
    Targets = [T || [T] <- matches(Makefile, "^([a-z-]+):")],
    Named = lists:usort([T || [T] <- matches(read(readme()), "(?:`|^    )make ([a-z-]+)")]),
    ?assert(lists:member("run", Named)),
    ?assert(lists:member("test", Named)),
    ?assertEqual([], Named -- Targets).

%% ---- pages

readme() ->
    filename:join(weir_test:root(), "README.md").

pages() ->
    [readme() | filelib:wildcard(filename:join([weir_test:root(), "doc", "**", "*.md"]))].

read(File) ->
    {ok, Bytes} = file:read_file(File),
    unicode:characters_to_list(Bytes).

%% The fenced blocks of a page that name a language: {Line, Language, Text}.
blocks(File) ->
    blocks(lists:zip(lists:seq(1, length(lines(File))), lines(File)), none, []).

lines(File) ->
    string:split(read(File), "\n", all).

blocks([], none, Blocks) ->
    lists:reverse(Blocks);
blocks([{N, "```" ++ Language} | Lines], none, Blocks) ->
    blocks(Lines, {N, string:trim(Language), []}, Blocks);
blocks([{_, "```" ++ _} | Lines], {N, Language, Text}, Blocks) ->
    blocks(Lines, none, [{N, Language, lists:flatten(lists:join("\n", lists:reverse(Text)))} || Language =/= ""] ++ Blocks);
blocks([{_, Line} | Lines], {N, Language, Text}, Blocks) ->
    blocks(Lines, {N, Language, [Line | Text]}, Blocks);
blocks([_ | Lines], none, Blocks) ->
    blocks(Lines, none, Blocks).

%% The pieces of code within the text that match.
spans(File, Regexp) ->
    Text = re:replace(read(File), "^```.*?^```$", "", [global, multiline, dotall, unicode, {return, list}]),
    [Flat || [Span] <- matches(Text, "`([^`]+)`"),
             Flat <- [lists:flatten(string:replace(Span, "\n", " ", all))], re:run(Flat, Regexp, [unicode]) =/= nomatch].

matches(Text, Regexp) ->
    case re:run(Text, Regexp, [global, multiline, unicode, {capture, all_but_first, list}]) of
        {match, Matches} -> Matches;
        nomatch -> []
    end.
