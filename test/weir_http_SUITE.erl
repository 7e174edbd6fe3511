%% weir over HTTP: real sockets, the real limiter, time frozen where answers are compared.
%% Shows R09, R11, R18, R20 of doc/requirements.md.
-module(weir_http_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-define(DEADLINE_MS, 10000).
%% Any Unix time will do, in nanoseconds.
-define(FROZEN, 1700000000000000000).

all() ->
    [allowed_then_denied, denied_for_ever, a_list_is_decided_in_one_go, typed_keys_are_erlang_terms, one_key_over_both_doors,
     hostile_bodies_are_refused, nothing_is_counted_when_one_item_is_wrong, unknown_limiter, methods_and_paths,
     limiters_come_and_go, sources_are_shown, bad_limiters_are_explained, strange_names, explain, health, metrics, examples_of_the_page_hold, requests_in_a_row,
     bodies_in_pieces, keys_stay_out_of_the_log, running_requests_finish, running_requests_are_cut_in_the_end,
     a_taken_port_is_explained, bad_options_are_explained, the_listener_comes_back].

%% Ranch gives up after two crashes of listeners within seconds. One is killed here, so that an earlier run's must not count.
init_per_suite(Config) ->
    _ = [application:stop(Application) || Application <- [weir, cowboy, ranch]],
    {ok, _} = application:ensure_all_started(cowboy),
    {ok, _} = application:ensure_all_started(prometheus),
    Config.

end_per_suite(_) -> ok.

init_per_testcase(_, Config) ->
    ok = start(#{port => 0}),
    ok = weir_clock:freeze(?FROZEN),
    Config.

end_per_testcase(_, _) ->
    _ = weir_clock:thaw(),
    _ = application:stop(weir),
    ok.

start(Http) ->
    _ = application:load(weir),
    ok = application:set_env(weir, http, Http),
    ok = application:set_env(weir, limiters, #{<<"login">> => #{rate => {5, minute}},
                                               <<"two">> => #{rate => {2, minute}, burst => 2}}),
    application:start(weir).

%% ---- decisions

allowed_then_denied(_) ->
    Ask = fun() -> check(<<"{\"limiter\":\"login\",\"key\":\"a\"}">>) end,
    [begin
         {200, Fields, Body} = Ask(),
         Level = 5 - Left,
         Text = io_lib:format("{\"allowed\":true,\"limit\":5,\"remaining\":~b,\"reset_ms\":~b,\"retry_ms\":0}", [Left, Level * 12000]),
         ?assertEqual(iolist_to_binary(Text), Body),
         ?assertMatch(#{<<"content-type">> := <<"application/json">>, <<"cache-control">> := <<"no-store">>,
                        <<"ratelimit-policy">> := <<"\"login\";q=5;w=60">>}, Fields),
         ?assertEqual(iolist_to_binary(["\"login\";r=", integer_to_list(Left), ";t=12"]), maps:get(<<"ratelimit">>, Fields)),
         ?assertNot(is_map_key(<<"retry-after">>, Fields))
     end || Left <- [4, 3, 2, 1, 0]],
    {429, Fields, Body} = Ask(),
    ?assertEqual(<<"{\"allowed\":false,\"limit\":5,\"remaining\":0,\"reset_ms\":60000,\"retry_ms\":12000}">>, Body),
    ?assertMatch(#{<<"retry-after">> := <<"12">>, <<"ratelimit">> := <<"\"login\";r=0;t=12">>}, Fields),
    ok = weir_clock:freeze(?FROZEN + 11000000001),
    {429, Later, _} = Ask(),
    ?assertMatch(#{<<"retry-after">> := <<"1">>}, Later),
    ok = weir_clock:freeze(?FROZEN + 12000000000),
    ?assertMatch({200, _, _}, Ask()).

denied_for_ever(_) ->
    {429, Fields, Body} = check(<<"{\"limiter\":\"login\",\"key\":\"a\",\"hits\":6}">>),
    ?assertEqual(<<"{\"allowed\":false,\"limit\":5,\"remaining\":5,\"reset_ms\":0,\"retry_ms\":null}">>, Body),
    ?assertNot(is_map_key(<<"retry-after">>, Fields)).

a_list_is_decided_in_one_go(_) ->
    Item = <<"{\"limiter\":\"two\",\"key\":\"a\"}">>,
    {200, Fields, Body} = check([$[, lists:join($,, lists:duplicate(3, Item)), $]]),
    ?assertMatch([#{<<"allowed">> := true, <<"remaining">> := 1}, #{<<"allowed">> := true, <<"remaining">> := 0},
                  #{<<"allowed">> := false, <<"retry_ms">> := 30000}], json(Body)),
    ?assertNot(is_map_key(<<"ratelimit">>, Fields)),
    ?assertMatch({200, _, <<"[]">>}, check(<<"[]">>)).

typed_keys_are_erlang_terms(_) ->
    [begin
         {200, _, _} = check(["{\"limiter\":\"login\",\"key\":", Text, "}"]),
         ?assertMatch({Term, #{remaining := 4}}, {Term, weir:peek(login, Term)})
     end || {Text, Term} <- [{"\"1.2.3.4\"", <<"1.2.3.4">>}, {"{\"ip\":\"1.2.3.4\"}", {1, 2, 3, 4}},
                             {"{\"ip\":\"::1\"}", {0, 0, 0, 0, 0, 0, 0, 1}}, {"42", 42}, {"\"42\"", <<"42">>}, {"\"\"", <<>>},
                             {"{\"tuple\":[\"u\",{\"ip\":\"1.2.3.4\"}]}", {<<"u">>, {1, 2, 3, 4}}},
                             {"123456789012345678901234567890", 123456789012345678901234567890}]].

one_key_over_both_doors(_) ->
    {allow, 4} = weir:check(login, {1, 2, 3, 4}),
    {200, _, Body} = check(<<"{\"limiter\":\"login\",\"key\":{\"ip\":\"1.2.3.4\"},\"hits\":2}">>),
    ?assertMatch(#{<<"remaining">> := 2}, json(Body)),
    ?assertEqual({allow, 1}, weir:check(login, {1, 2, 3, 4})).

hostile_bodies_are_refused(_) ->
    Max = weir_http_request:max_body_bytes(),
    [?assertMatch({What, Status, #{<<"error">> := #{<<"code">> := Code}}}, {What, Got, json(Body)}) || {What, Status, Code, {Got, _, Body}} <-
        [{"not JSON", 400, <<"bad_json">>, check(<<"{\"limiter\":}">>)},
         {"nothing", 400, <<"bad_json">>, check(<<>>)},
         {"zero hits", 400, <<"bad_field">>, check(<<"{\"limiter\":\"login\",\"key\":1,\"hits\":0}">>)},
         {"2^63 hits", 400, <<"bad_field">>, check(<<"{\"limiter\":\"login\",\"key\":1,\"hits\":9223372036854775808}">>)},
         {"too long", 413, <<"too_large">>, check(binary:copy(<<" ">>, Max + 1))},
         {"long enough", 400, <<"bad_json">>, check(binary:copy(<<" ">>, Max))},
         {"too many", 413, <<"too_many_items">>, check([$[, lists:join($,, lists:duplicate(1001, "1")), $]])},
         {"zipped", 415, <<"unsupported_encoding">>,
          request("POST", "/v1/check", ["content-encoding: gzip\r\n"], <<31, 139>>)}]],
    {400, _, Body} = check(<<"{\"limiter\": \"login\",\n \"key\": nope}">>),
    ?assertMatch(#{<<"error">> := #{<<"at">> := #{<<"line">> := 2, <<"column">> := 9, <<"byte">> := 30}}}, json(Body)),
    ?assertMatch(#{remaining := 5}, weir:peek(login, 1)).

nothing_is_counted_when_one_item_is_wrong(_) ->
    Good = "{\"limiter\":\"login\",\"key\":\"a\"}",
    {404, _, Unknown} = check(["[", Good, ",{\"limiter\":\"nope\",\"key\":\"a\"}]"]),
    ?assertMatch(#{<<"error">> := #{<<"code">> := <<"unknown_limiter">>, <<"at">> := #{<<"field">> := <<"[1].limiter">>}}},
                 json(Unknown)),
    {400, _, Wrong} = check(["[", Good, ",{\"limiter\":\"login\",\"key\":null}]"]),
    ?assertMatch(#{<<"error">> := #{<<"at">> := #{<<"field">> := <<"[1].key">>}}}, json(Wrong)),
    ?assertMatch(#{remaining := 5}, weir:peek(login, <<"a">>)).

unknown_limiter(_) ->
    {404, _, Body} = check(<<"{\"limiter\":\"nope\",\"key\":\"a\"}">>),
    ?assertMatch(#{<<"error">> := #{<<"code">> := <<"unknown_limiter">>, <<"at">> := #{<<"field">> := <<"limiter">>}}}, json(Body)).

%% ---- resources

methods_and_paths(_) ->
    [?assertMatch({Method, Path, {405, #{<<"allow">> := Allow}, _}}, {Method, Path, request(Method, Path)})
     || {Method, Path, Allow} <- [{"GET", "/v1/check", <<"POST">>}, {"PUT", "/v1/check", <<"POST">>},
                                  {"PUT", "/v1/limiters", <<"GET, HEAD">>}, {"POST", "/healthz", <<"GET, HEAD">>},
                                  {"PATCH", "/v1/limiters/x", <<"GET, HEAD, PUT, DELETE">>},
                                  {"DELETE", "/metrics", <<"GET, HEAD">>}, {"POST", "/v1/explain", <<"GET, HEAD">>}]],
    [?assertMatch({Path, {404, _, _}}, {Path, request("GET", Path)}) || Path <- ["/", "/v1", "/v2/check", "/v1/check/x"]],
    ?assertMatch({200, _, <<>>}, request("HEAD", "/healthz")).

limiters_come_and_go(_) ->
    Path = "/v1/limiters/new",
    ?assertMatch({404, _, _}, request("GET", Path)),
    ?assertMatch({404, _, _}, request("DELETE", Path)),
    {201, _, Body} = request("PUT", Path, [], <<"{\"rate\":[5,[10,\"minute\"]],\"burst\":7,\"on_error\":\"deny\",\"shadow\":false}">>),
    ?assertMatch(#{<<"rate">> := [5, [10, <<"minute">>]], <<"burst">> := 7, <<"on_error">> := <<"deny">>}, json(Body)),
    ?assertMatch(#{<<"new">> := #{rate := {5, {10, minute}}, burst := 7, on_error := deny}}, weir:limiters()),
    {200, _, Body} = request("GET", Path),
    {200, _, Body} = request("PUT", Path, [], Body),
    {200, _, All} = request("GET", "/v1/limiters"),
    ?assertMatch(#{<<"limiters">> := #{<<"new">> := _, <<"login">> := #{<<"rate">> := [5, <<"minute">>]}}}, json(All)),
    {200, Fields, _} = check(<<"{\"limiter\":\"new\",\"key\":1}">>),
    ?assertMatch(#{<<"ratelimit-policy">> := <<"\"new\";q=7;w=840">>}, Fields),
    {200, _, _} = request("PUT", Path, [], <<"{\"rate\":[3,\"second\"]}">>),
    {200, Changed, _} = check(<<"{\"limiter\":\"new\",\"key\":2}">>),
    ?assertMatch(#{<<"ratelimit-policy">> := <<"\"new\";q=3;w=1">>}, Changed),
    ?assertMatch({204, _, <<>>}, request("DELETE", Path)),
    ?assertMatch({404, _, _}, request("GET", Path)),
    ?assertMatch({404, _, _}, check(<<"{\"limiter\":\"new\",\"key\":1}">>)).

bad_limiters_are_explained(_) ->
    [begin
         {400, _, Body} = request("PUT", "/v1/limiters/bad", [], Spec),
         #{<<"error">> := #{<<"code">> := Got, <<"message">> := Message}} = json(Body),
         ?assertEqual({Spec, Code}, {Spec, Got}),
         ?assertMatch({Spec, [_ | _]}, {Spec, binary:matches(Message, Word)})
     end || {Spec, Code, Word} <-
                [{<<"{\"rate\":[0,\"minute\"]}">>, <<"bad_field">>, <<"rate[0]">>},
                 {<<"{\"rate\":[5,\"minute\"],\"burts\":5}">>, <<"bad_field">>, <<"burts">>},
                 {<<"{\"rate\":[5,\"minute\"],\"algorithm\":\"sliding_log\"}">>, <<"bad_limiter">>, <<"algorithm">>},
                 {<<"{\"rate\":[300000000,\"second\"]}">>, <<"bad_limiter">>, <<"rate">>},
                 {<<"{\"rate\":">>, <<"bad_json">>, <<"line 1, column 9">>}]],
    ?assertNot(is_map_key(<<"bad">>, weir:limiters())).

%% A name may be any bytes: in a path percent-encoded, in RateLimit as weir_http_fields says.
strange_names(_) ->
    {201, _, _} = request("PUT", "/v1/limiters/a%2Fb%22%C3%A9", [], <<"{\"rate\":[5,\"minute\"]}">>),
    {200, Fields, _} = check(<<"{\"limiter\":\"a/b\\\"", 195, 169, "\",\"key\":1}">>),
    ?assertMatch(#{<<"ratelimit">> := <<"\"a/b\\\"%C3%A9\";r=4;t=12">>}, Fields),
    {200, _, _} = request("GET", "/v1/limiters/a%2Fb%22%C3%A9"),
    [?assertMatch({Name, {400, _, _}}, {Name, request("PUT", "/v1/limiters/" ++ Name, [], <<"{\"rate\":[5,\"minute\"]}">>)})
     || Name <- [lists:duplicate(256, $x), "%FF", "compiled:x"]].

%% Where a limiter comes from.
sources_are_shown(_) ->
    {201, _, _} = request("PUT", "/v1/limiters/new", [], <<"{\"rate\":[5,\"minute\"]}">>),
    {200, _, Body} = request("GET", "/v1/limiters"),
    Node = atom_to_binary(node()),
    #{<<"limiters">> := Limiters, <<"sources">> := Sources} = json(Body),
    ?assertEqual(maps:keys(Limiters), maps:keys(Sources)),
    ?assertMatch(#{<<"login">> := #{<<"by">> := <<"configured">>, <<"node">> := Node, <<"at_ms">> := _},
                   <<"new">> := #{<<"by">> := <<"put">>, <<"node">> := Node, <<"at_ms">> := _}}, Sources),
    #{<<"new">> := Put, <<"login">> := Configured} = Sources,
    [begin
         {200, _, Explained} = request("GET", "/v1/explain?key=a&limiter=" ++ Name),
         ?assertMatch(#{<<"source">> := Source}, json(Explained))
     end || {Name, Source} <- [{"new", Put}, {"login", Configured}]],
    ok = application:stop(weir),
    ok = application:set_env(weir, config_version, 7),
    ok = start(#{port => 0}),
    ok = application:unset_env(weir, config_version),
    {200, _, Again} = request("GET", "/v1/limiters"),
    ?assertMatch(#{<<"sources">> := #{<<"login">> := #{<<"config_version">> := 7}}}, json(Again)).

explain(_) ->
    {allow, 3} = weir:check(login, {1, 2, 3, 4}, 2),
    {200, _, Body} = request("GET", "/v1/explain?limiter=login&ip=1.2.3.4"),
    ?assertMatch(#{<<"limiter">> := <<"login">>, <<"capacity">> := 5, <<"level">> := 2, <<"remaining">> := 3,
                   <<"scope">> := <<"cluster">>, <<"algorithm">> := <<"token_bucket">>, <<"shadow">> := false,
                   <<"table">> := #{}}, json(Body)),
    {200, _, Same} = request("GET", "/v1/explain?limiter=login&json=%7B%22ip%22:%221.2.3.4%22%7D"),
    ?assertMatch(#{<<"remaining">> := 3}, json(Same)),
    {200, _, Other} = request("GET", "/v1/explain?limiter=login&key=1.2.3.4"),
    ?assertMatch(#{<<"remaining">> := 5}, json(Other)),
    ?assertMatch({404, _, _}, request("GET", "/v1/explain?limiter=nope&key=a")),
    ?assertMatch({400, _, _}, request("GET", "/v1/explain?limiter=login")),
    ?assertMatch({400, _, _}, request("GET", "/v1/explain?limiter=login&key=%zz")).

health(_) ->
    {200, _, Body} = request("GET", "/healthz"),
    ?assertMatch(#{<<"status">> := <<"ok">>, <<"limiters">> := 2}, json(Body)).

metrics(_) ->
    {200, _, _} = check(<<"{\"limiter\":\"login\",\"key\":\"a\"}">>),
    {200, Fields, Page} = request("GET", "/metrics"),
    ?assertMatch(<<"text/plain", _/binary>>, maps:get(<<"content-type">>, Fields)),
    [begin
         Text = atom_to_binary(Name),
         ?assertMatch({Name, [_]}, {Name, binary:matches(Page, [<<"# TYPE ", Text/binary, " ", (atom_to_binary(Kind))/binary, "\n">>])}),
         [?assertMatch({Name, Values, [_ | _]}, {Name, Values, binary:matches(Page, [<<"\n", Text/binary>>])}) || {Values, _} <- Series]
     end || {Name, Kind, _Help, _Labels, Series} <- weir_metrics:metrics()],
    ?assertMatch([_ | _], binary:matches(Page, [<<"limiter=\"login\"">>])),
    %% A name that isn't UTF-8, which put_limiter/2 takes, doesn't spoil the page: Prometheus would refuse all of it.
    ok = weir:put_limiter(<<255>>, #{rate => {5, minute}}),
    {200, _, WithName} = request("GET", "/metrics"),
    ?assertEqual(WithName, unicode:characters_to_binary(WithName)),
    ?assertMatch([_ | _], binary:matches(WithName, [<<"limiter=\"", 255/utf8, "\"">>])),
    %% A registry of its own: nothing of the VM's, which the library's default registry has.
    ?assertEqual(nomatch, binary:match(Page, [<<"erlang_vm">>])).

%% doc/http.md, block by block: a request, an empty line, and what is answered.
examples_of_the_page_hold(_) ->
    {ok, Page} = file:read_file(page(filename:dirname(code:which(?MODULE)))),
    {match, Blocks} = re:run(Page, "^```http\n(.*?)\n\n(.*?)\n```$", [global, multiline, dotall, {capture, all_but_first, binary}]),
    ?assert(length(Blocks) >= 8),
    [example(binary:split(Request, <<"\n">>, [global]), binary:split(Response, <<"\n">>, [global])) || [Request, Response] <- Blocks].

example([Line | Body], [Status | Rest]) ->
    [Method, Path] = binary:split(Line, <<" ">>),
    {Fields, Text} = lists:partition(fun(<<C, _/binary>>) -> C >= $A andalso C =< $Z end, Rest),
    {Got, GotFields, GotText} = request(binary_to_list(Method), Path, [], Body),
    ?assertEqual({Line, Body, binary_to_integer(Status), Text}, {Line, Body, Got, [GotText || GotText =/= <<>>]}),
    Expected = maps:from_list([{string:lowercase(Name), Value} || [Name, Value] <- [binary:split(F, <<": ">>) || F <- Fields]]),
    Names = [<<"ratelimit">>, <<"ratelimit-policy">>, <<"retry-after">>],
    ?assertEqual({Line, Body, Expected}, {Line, Body, maps:with(Names, GotFields)}).

page(Folder) ->
    Page = filename:join([Folder, "doc", "http.md"]),
    case filelib:is_regular(Page) of
        true -> Page;
        false -> ?assertNotEqual(Folder, filename:dirname(Folder)), page(filename:dirname(Folder))
    end.

%% ---- connections

requests_in_a_row(_) ->
    Socket = connect(),
    One = raw("POST", "/v1/check", [], <<"{\"limiter\":\"login\",\"key\":\"row\"}">>),
    ok = gen_tcp:send(Socket, lists:duplicate(6, One)),
    %% Cowboy runs requests that were sent together side by side, so any of the six may be the one that is denied.
    Statuses = [element(1, receive_response(Socket, "POST")) || _ <- lists:seq(1, 6)],
    ?assertEqual([200, 200, 200, 200, 200, 429], lists:sort(Statuses)),
    ok = gen_tcp:close(Socket).

bodies_in_pieces(_) ->
    Max = weir_http_request:max_body_bytes(),
    Head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
    Chunk = fun(Bytes) -> [integer_to_binary(iolist_size(Bytes), 16), "\r\n", Bytes, "\r\n"] end,
    Small = connect(),
    ok = gen_tcp:send(Small, [Head, Chunk("{\"limiter\":\"log"), Chunk("in\",\"key\":1}"), "0\r\n\r\n"]),
    ?assertMatch({200, _, _}, receive_response(Small, "POST")),
    Large = connect(),
    ok = gen_tcp:send(Large, [Head, [Chunk(binary:copy(<<" ">>, 1000)) || _ <- lists:seq(0, Max, 1000)], "0\r\n\r\n"]),
    ?assertMatch({413, _, _}, receive_response(Large, "POST")),
    ok = gen_tcp:close(Small),
    ok = gen_tcp:close(Large).

%% As a handler of cowboy, this suite fails with a key in its hands.
init(Req, State) ->
    weir_http_request:answer(Req, State, [<<"GET">>], fun(_) -> erlang:raise(error, {badkey, <<"secret-key">>},
                                                                            [{?MODULE, init, [<<"secret-key">>], []}]) end).

keys_stay_out_of_the_log(_) ->
    ok = cowboy:set_env(weir_http, dispatch, cowboy_router:compile([{'_', [{"/fail", ?MODULE, []}]}])),
    ok = log_to(self()),
    {500, _, Body} = request("GET", "/fail"),
    Event = logged(http_request_failed),
    ok = logger:remove_handler(?MODULE),
    ?assertMatch(#{reason := badkey, stack := [{?MODULE, init, 1, []}]}, Event),
    [?assertEqual(nomatch, string:find(Text, "secret")) || Text <- [Body, iolist_to_binary(io_lib:format("~p", [Event]))]],
    ?assertMatch(#{<<"error">> := #{<<"code">> := <<"internal">>}}, json(Body)).

%% ---- start and stop

running_requests_finish(_) ->
    Port = weir_http:port(),
    {Socket, Rest} = half_a_request(Port),
    Self = self(),
    Stopper = spawn_link(fun() -> Self ! {self(), application:stop(weir)} end),
    ok = until(fun() -> refused(Port) end),
    ok = gen_tcp:send(Socket, Rest),
    {Status, _, _} = receive_response(Socket, "POST"),
    ?assertEqual(200, Status),
    receive {Stopper, Stopped} -> ?assertEqual(ok, Stopped) after ?DEADLINE_MS -> ct:fail(not_stopped) end,
    ?assertEqual({error, closed}, gen_tcp:recv(Socket, 0, ?DEADLINE_MS)).

running_requests_are_cut_in_the_end(_) ->
    ok = application:stop(weir),
    ok = start(#{port => 0, drain_ms => 50}),
    {Socket, _Rest} = half_a_request(weir_http:port()),
    ok = log_to(self()),
    ok = application:stop(weir),
    ?assertMatch(#{after_ms := 50}, logged(http_drain_cut)),
    ok = logger:remove_handler(?MODULE),
    ?assertEqual({error, closed}, gen_tcp:recv(Socket, 0, ?DEADLINE_MS)).

%% Returns when the server is reading the body.
half_a_request(Port) ->
    Socket = connect(Port),
    Body = <<"{\"limiter\":\"login\",\"key\":\"half\"}">>,
    Whole = iolist_to_binary(raw("POST", "/v1/check", [], Body)),
    Size = byte_size(Whole) - 5,
    <<First:Size/binary, Rest/binary>> = Whole,
    ok = gen_tcp:send(Socket, First),
    ok = until(fun() -> lists:any(fun(Connection) -> supervisor:which_children(Connection) =/= [] end,
                                  ranch:procs(weir_http, connections)) end),
    {Socket, Rest}.

a_taken_port_is_explained(_) ->
    ok = application:stop(weir),
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    ok = log_to(self()),
    ?assertMatch({error, _}, start(#{port => Port})),
    #{reason := eaddrinuse, message := Message} = logged(http_not_started),
    ok = logger:remove_handler(?MODULE),
    [?assertMatch({Word, [_ | _]}, {Word, binary:matches(Message, Word)})
     || Word <- [integer_to_binary(Port), <<"taken">>, <<"WEIR_HTTP_PORT">>, <<"sys.config">>]],
    ok = gen_tcp:close(Taken),
    ok = start(#{port => Port}),
    ?assertEqual(Port, weir_http:port()).

bad_options_are_explained(_) ->
    ok = application:stop(weir),
    ok = log_to(self()),
    ?assertMatch({error, _}, start(#{prot => 8080})),
    #{reason := bad_option, message := Message} = logged(http_not_started),
    ok = logger:remove_handler(?MODULE),
    ?assertMatch([_ | _], binary:matches(Message, <<"prot">>)).

the_listener_comes_back(_) ->
    [begin
         Before = whereis(weir_http_listener),
         exit(Victim, kill),
         ok = until(fun() -> is_pid(whereis(weir_http_listener)) andalso whereis(weir_http_listener) =/= Before andalso
                                 is_answered(fun() -> request("GET", "/healthz") end) end)
     end || Find <- [fun() -> whereis(weir_http_listener) end, fun listener_sup/0], Victim <- [Find()]],
    ?assertMatch([{weir_http_listener, _, worker, _}], supervisor:which_children(weir_http)).

listener_sup() ->
    [Pid] = [Pid || {{ranch_listener_sup, weir_http}, Pid, _, _} <- supervisor:which_children(ranch_sup)],
    Pid.

is_answered(Request) ->
    try element(1, Request()) =:= 200
    catch _:_ -> false
    end.

%% ---- a small client

check(Body) -> request("POST", "/v1/check", [], Body).

request(Method, Path) -> request(Method, Path, [], <<>>).

request(Method, Path, Fields, Body) ->
    Socket = connect(),
    ok = gen_tcp:send(Socket, raw(Method, Path, Fields, Body)),
    Response = receive_response(Socket, Method),
    ok = gen_tcp:close(Socket),
    Response.

raw(Method, Path, Fields, Body) ->
    [Method, " ", Path, " HTTP/1.1\r\nhost: localhost\r\n", Fields, "content-length: ", integer_to_binary(iolist_size(Body)),
     "\r\n\r\n", Body].

connect() -> connect(weir_http:port()).

connect(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {packet, http_bin}], ?DEADLINE_MS),
    Socket.

receive_response(Socket, Method) ->
    ok = inet:setopts(Socket, [{packet, http_bin}]),
    {ok, {http_response, {1, 1}, Status, _}} = gen_tcp:recv(Socket, 0, ?DEADLINE_MS),
    Fields = receive_fields(Socket, #{}),
    ok = inet:setopts(Socket, [{packet, raw}]),
    case Fields of
        #{<<"content-length">> := <<"0">>} -> {Status, Fields, <<>>};
        #{<<"content-length">> := Length} when Method =/= "HEAD" ->
            {ok, Body} = gen_tcp:recv(Socket, binary_to_integer(Length), ?DEADLINE_MS),
            {Status, Fields, Body};
        #{} -> {Status, Fields, <<>>}
    end.

receive_fields(Socket, Fields) ->
    case gen_tcp:recv(Socket, 0, ?DEADLINE_MS) of
        {ok, {http_header, _, Name, _, Value}} -> receive_fields(Socket, Fields#{field_name(Name) => Value});
        {ok, http_eoh} -> Fields
    end.

field_name(Name) when is_atom(Name) -> string:lowercase(atom_to_binary(Name));
field_name(Name) -> string:lowercase(Name).

refused(Port) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [], ?DEADLINE_MS) of
        {error, econnrefused} -> true;
        %% It was still in the queue of the port that was being closed.
        {error, econnreset} -> false;
        {ok, Socket} -> ok = gen_tcp:close(Socket), false
    end.

json(Text) -> jiffy:decode(Text, [return_maps]).

%% ---- waiting and listening

until(Condition) -> until(Condition, erlang:monotonic_time(millisecond) + ?DEADLINE_MS).

until(Condition, Deadline) ->
    case Condition() of
        true -> ok;
        false ->
            ?assert(erlang:monotonic_time(millisecond) < Deadline),
            receive after 5 -> until(Condition, Deadline) end
    end.

%% Reports of the service reach the test as messages.
log_to(Pid) ->
    logger:add_handler(?MODULE, ?MODULE, #{config => #{to => Pid}, level => notice}).

log(#{msg := {report, #{what := What} = Report}}, #{config := #{to := Pid}}) ->
    Pid ! {logged, What, Report},
    ok;
log(_, _) ->
    ok.

logged(What) ->
    receive {logged, What, Report} -> Report
    after ?DEADLINE_MS -> ct:fail({not_logged, What})
    end.
