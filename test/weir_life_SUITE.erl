%% weir's life: starting and stopping, its processes' crashes, its configuration, somebody else's supervisor, and its NIF being loaded
%% again while it is in use.
%%
%% What loads or unloads the NIF happens on a node of its own.
%% Shows R05, R13, R14, R15, R50 of doc/requirements.md.
-module(weir_life_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-behaviour(supervisor).

-define(PROCESSES, [weir_clock, weir_registry, weir_sweeper]).
-define(SPEC, #{rate => {5, minute}}).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [stopping_leaves_nothing, stopping_gives_memory_back, deleting_gives_memory_back, each_start_is_new,
     processes_may_crash, the_registry_crashes_during_a_change, levels_survive_crashes,
     limiters_from_the_configuration, bad_configurations, unknown_keys_of_the_environment, after_a_failed_start,
     in_a_supervisor, in_two_supervisors, weir_comes_and_goes_under_a_supervisor, a_child_makes_nothing_twice,
     bad_options_in_a_supervisor,
     the_nif_is_loaded_again, the_nif_is_loaded_from_elsewhere, another_abi_is_refused, the_nif_is_unloaded].

init_per_testcase(_, Config) ->
    ok = weir_test:start(),
    Config.

end_per_testcase(_, _) ->
    weir_test:stop().

%% ---- start and stop

stopping_leaves_nothing(_) ->
    ok = weir_test:stop(),
    Tables = ets:all(),
    ok = weir_test:start(#{limiters => #{login => ?SPEC}}),
    [?assert(is_pid(whereis(Name))) || Name <- [weir_sup | ?PROCESSES]],
    Handle = weir:compile(?SPEC),
    _ = weir:check_many([{Limiter, Key, 1} || Limiter <- [login, Handle], Key <- lists:seq(1, 5000)]),
    Own = [Pid || Pid <- processes(), process_info(Pid, group_leader) =:= process_info(whereis(weir_sup), group_leader)],
    ?assert(length(Own) >= 1 + length(?PROCESSES)),
    ok = weir_test:stop(),
    [?assertEqual(undefined, whereis(Name)) || Name <- [weir_sup | ?PROCESSES]],
    weir_test:wait_until(processes_gone, fun() -> not lists:any(fun is_process_alive/1, Own) end),
    ?assertEqual([], ets:all() -- Tables),
    ?assertEqual([], weir_table:stats()),
    ?assertEqual(#{}, weir:limiters()),
    _ = weir_test:fault(fun() -> weir:check(login, 1) end, ["not started"]).

each_start_is_new(_) ->
    ok = weir:put_limiter(login, ?SPEC),
    {allow, 0} = weir:check(login, key, 5),
    First = weir_table:key_hash(key),
    ok = weir_test:start(),
    ?assertEqual(#{}, weir:limiters()),
    ok = weir:put_limiter(login, ?SPEC),
    ?assertEqual({allow, 4}, weir:check(login, key)),
    %% ... and its secret: nobody can tell from an earlier run's memory who came.
    ?assertNotEqual(First, weir_table:key_hash(key)).

%% Each turn takes some 5 MB; twenty of them would be seen.
stopping_gives_memory_back(_) ->
    on_a_node(fill_and_stop, []).

fill_and_stop() ->
    Turn = fun() ->
                   {ok, _} = application:ensure_all_started(weir),
                   ok = weir:put_limiter(login, ?SPEC),
                   fill(login, 200000),
                   #{memory_bytes := Bytes} = weir_test:stats(<<"login">>),
                   ?assert(Bytes > 3000000),
                   ok = application:stop(weir)
           end,
    does_not_grow(Turn).

deleting_gives_memory_back(_) ->
    on_a_node(fill_and_delete, []).

fill_and_delete() ->
    {ok, _} = application:ensure_all_started(weir),
    ok = weir_clock:freeze(weir_test:t0()),
    Delete = fun() ->
                     ok = weir:put_limiter(login, ?SPEC),
                     fill(login, 200000),
                     ok = weir:delete_limiter(login),
                     ok = weir_sweeper:sweep()
             end,
    does_not_grow(Delete),
    %% ... and so do keys that expire.
    ok = weir:put_limiter(login, ?SPEC),
    {allow, 4} = weir:check(login, only),
    #{memory_bytes := Least} = weir_test:stats(<<"login">>),
    fill(login, 200000),
    ok = weir_clock:advance(60000000000),
    ok = weir_sweeper:sweep(),
    ?assertMatch(#{keys := 0, memory_bytes := Bytes} when Bytes < 100 * Least, weir_test:stats(<<"login">>)).

fill(Limiter, N) ->
    [_ = weir:check_many([{Limiter, {K, I}, 1} || I <- lists:seq(1, 1000)]) || K <- lists:seq(1, N div 1000)],
    ok.

%% Five turns to warm up, twenty to show.
does_not_grow(Turn) ->
    Resident = fun(Times) ->
                       [Turn() || _ <- lists:seq(1, Times)],
                       true = erlang:garbage_collect(),
                       {ok, Statm} = file:read_file("/proc/self/statm"),
                       4096 * binary_to_integer(lists:nth(2, binary:split(Statm, <<" ">>, [global])))
               end,
    Before = Resident(5),
    After = Resident(20),
    io:format("after twenty turns more: ~b bytes more are resident~n", [After - Before]),
    %% (-2.7 to -1 million were seen.)
    ?assertMatch({B, A} when A - B < 5000000, {Before, After}).

%% ---- crashes

%% Checks go on while each of the processes is killed, and none of them fails.
processes_may_crash(_) ->
    ok = weir_test:start(#{limiters => #{configured => ?SPEC}}),
    ok = weir:put_limiter(login, #{rate => {1000000, day}}),
    ok = weir:put_limiter(configured, #{rate => {7, minute}}),
    {allow, 6} = weir:check(configured, key),
    Specs = weir:limiters(),
    Done = counters:new(1, []),
    [killed | Counts] =
        weir_test:concurrently(
          5,
          fun(1) -> [kill(Name) || Name <- ?PROCESSES], counters:add(Done, 1, 1), killed;
             (I) -> ask_until(Done, I, 0)
          end),
    ?assert(lists:all(fun(N) -> N > 0 end, Counts)),
    ?assertMatch(#{failed := 0, denied := 0}, weir_test:stats(<<"login">>)),
    %% Limiters are as they were, also where the configuration says otherwise, and can be changed.
    ?assertEqual(Specs, weir:limiters()),
    ?assertEqual({allow, 5}, weir:check(configured, key)),
    ok = weir:put_limiter(login, #{rate => {2, minute}}),
    ?assertEqual({allow, 1}, weir:check(login, new)),
    ok = weir:delete_limiter(configured).

ask_until(Done, I, N) ->
    {allow, _} = weir:check(login, {I, N}),
    [{allow, _}, {allow, _}] = weir:check_many([{<<"login">>, {many, I, N}, 1}, {login, [I | N], 2}]),
    case counters:get(Done, 1) of
        0 -> ask_until(Done, I, N + 1);
        _ -> N + 1
    end.

%% Kills a registered process, and waits for the next of its name.
kill(Name) ->
    Old = whereis(Name),
    true = exit(Old, kill),
    weir_test:wait_until({restarted, Name}, fun() ->
                                                    New = whereis(Name),
                                                    is_pid(New) andalso New =/= Old andalso sys:get_state(Name) =/= undefined
                                            end).

levels_survive_crashes(_) ->
    ok = weir:put_limiter(login, ?SPEC),
    Handle = weir:compile(?SPEC),
    [{allow, _} = weir:check(Limiter, Key, Key) || Limiter <- [login, Handle], Key <- lists:seq(1, 5)],
    [kill(Name) || Name <- ?PROCESSES],
    ?assertEqual(lists:seq(4, 0, -1), [maps:get(remaining, weir:peek(login, Key)) || Key <- lists:seq(1, 5)]),
    ?assertEqual(lists:seq(4, 0, -1), [maps:get(remaining, weir:peek(Handle, Key)) || Key <- lists:seq(1, 5)]),
    ?assertEqual(weir_test:t0(), weir_clock:now()).

%% The limiter is then as the list of limiters says, and it can be changed once more.
the_registry_crashes_during_a_change(_) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}, burst => 5}),
    Keys = 200000,
    [_ = weir:check_many([{login, {K, I}, I rem 5 + 1} || I <- lists:seq(1, 1000)]) || K <- lists:seq(1, Keys div 1000)],
    Capacity = fun() -> maps:get(capacity, weir:explain(login, none)) end,
    [begin
         Changer = spawn(fun() -> catch weir:put_limiter(login, #{rate => {5, minute}, burst => Burst}) end),
         weir_test:wait_until(changed, fun() -> Capacity() =:= Burst end),
         kill(weir_registry),
         weir_test:wait_until(gone, fun() -> not is_process_alive(Changer) end),
         #{<<"login">> := #{burst := Listed}} = weir:limiters(),
         ?assertEqual(Capacity(), Listed)
     end || Burst <- [10, 9, 8]],
    ok = weir:put_limiter(login, #{rate => {1, minute}, burst => 3}),
    ?assertEqual([min(3, I rem 5 + 1) || I <- lists:seq(1, 1000)],
                 [maps:get(level, weir:explain(login, {77, I})) || I <- lists:seq(1, 1000)]).

%% ---- configuration

limiters_from_the_configuration(_) ->
    [begin
         ok = weir_test:start(#{limiters => Limiters}),
         ?assertEqual([<<"api">>, <<"login">>], lists:sort(maps:keys(weir:limiters()))),
         ?assertEqual([{allow, 4}, {allow, 3}], [weir:check(login, key), weir:check(<<"login">>, key)]),
         ?assertEqual({allow, 199}, weir:check(api, key))
     end || Limiters <- [#{login => ?SPEC, <<"api">> => #{rate => {100, second}, burst => 200}},
                         [{<<"login">>, ?SPEC}, {api, #{rate => {100, second}, burst => 200}}]]],
    ok = weir_test:start(#{limiters => #{}}),
    ?assertEqual(#{}, weir:limiters()).

bad_configurations(_) ->
    ok = weir_test:stop(),
    [begin
         ok = application:set_env(weir, limiters, Limiters),
         {error, Reason} = application:start(weir),
         names(Words, Reason),
         ?assertEqual(undefined, whereis(weir_sup))
     end || {Limiters, Words} <-
                [{#{login => #{rate => {5, fortnight}}}, ["login", "fortnight", "second, minute, hour, day"]},
                 {#{a => ?SPEC, b => #{rate => {0, minute}}, c => ?SPEC}, ["bad_limiter,b", "positive integer"]},
                 {#{login => #{rate => {5, minute}, brust => 5}}, ["login", "brust", "burst"]},
                 {#{login => [{rate, {5, minute}}]}, ["login", "map"]},
                 {#{<<"compiled:x">> => ?SPEC}, ["compiled:"]},
                 {#{"login" => ?SPEC}, ["login", "atom or a binary"]},
                 {[{login, ?SPEC}, api], ["api", "{Name, Spec}"]},
                 {[{login, ?SPEC} | api], ["limiters", "map or a list"]},
                 {[{login, ?SPEC, more}], ["login", "{Name, Spec}"]},
                 {login, ["limiters", "map or a list"]},
                 {<<>>, ["limiters", "map or a list"]}]].

%% A misspelt key must not start a node that limits nothing, or that hashes under the cookie. Values are in no message.
unknown_keys_of_the_environment(_) ->
    ok = weir_test:stop(),
    [begin
         ok = application:set_env(weir, Key, "value of a key"),
         {error, {{bad_config, Key, Message}, _}} = Error = application:start(weir),
         names(Words, Message),
         ?assertEqual(nomatch, string:find(io_lib:format("~tp", [Error]), "value of a key")),
         ?assertEqual(undefined, whereis(weir_sup)),
         ok = application:unset_env(weir, Key)
     end || {Key, Words} <-
                [{limiter, ["limiter: did you mean limiters?"]}, {secert, ["secert: did you mean secret?"]},
                 {clusterr, ["did you mean cluster?"]}, {next_secert, ["did you mean next_secret?"]},
                 {discover, ["did you mean discovery?"]}, {https, ["did you mean http?"]},
                 {limit, ["did you mean limiters?"]}, {'Secret', ["did you mean secret?"]},
                 {frobnicate, ["there is no frobnicate", "limiters, ", "secret"]}]],
    %% What OTP itself may keep there.
    ok = application:set_env(weir, included_applications, []),
    ok = application:start(weir).

names(Words, Reason) ->
    Text = lists:flatten(io_lib:format("~tw ~tp", [Reason, Reason])),
    [?assertMatch({W, _, [_ | _]}, {W, Text, [found || string:find(Text, W) =/= nomatch]}) || W <- Words].

%% The limiters before the bad one are gone again, and a better configuration starts.
after_a_failed_start(_) ->
    ok = weir_test:stop(),
    ok = application:set_env(weir, limiters, [{good, ?SPEC}, {bad, #{}}]),
    {error, _} = application:start(weir),
    ?assertEqual([], weir_table:stats()),
    _ = weir_test:fault(fun() -> weir:check(good, key) end, ["not started"]),
    ok = application:set_env(weir, limiters, [{good, ?SPEC}]),
    ok = application:start(weir),
    ok = weir_clock:freeze(weir_test:t0()),
    ?assertEqual({allow, 4}, weir:check(good, key)).

%% ---- somebody else's supervisor

%% supervisor's callback: the children are given.
init(Children) ->
    {ok, {#{strategy => one_for_one, intensity => 1, period => 10}, Children}}.

in_a_supervisor(_) ->
    [begin
         ok = weir_test:stop(),
         {ok, Sup} = supervisor:start_link(?MODULE, [weir:child_spec(Opts)]),
         ok = weir_clock:freeze(weir_test:t0()),
         ?assertEqual([{allow, 4}, {allow, 3}], [weir:check(login, key), weir:check(<<"login">>, key)]),
         ?assertMatch([{weir, Child, worker, [weir_child]}] when is_pid(Child), supervisor:which_children(Sup)),
         %% Restarting it makes the limiter that somebody deleted, and leaves the levels of the others.
         ok = weir:delete_limiter(api),
         ok = supervisor:terminate_child(Sup, weir),
         ?assertMatch({ok, Child} when is_pid(Child), supervisor:restart_child(Sup, weir)),
         ?assertEqual({allow, 2}, weir:check(login, key)),
         ?assertEqual({allow, 0}, weir:check(api, key)),
         stop_supervisor(Sup)
     end || Opts <- [#{limiters => #{login => ?SPEC, api => #{rate => {1, day}}}},
                     [{limiters, #{login => ?SPEC, api => #{rate => {1, day}}}}],
                     #{limiters => [{login, ?SPEC}, {<<"api">>, #{rate => {1, day}}}]},
                     [{limiters, [{login, ?SPEC}, {<<"api">>, #{rate => {1, day}}}]}]]],
    %% No limiters, from the start of an application that will make some later.
    [begin
         {ok, Sup} = supervisor:start_link(?MODULE, [weir:child_spec(Opts)]),
         stop_supervisor(Sup)
     end || Opts <- [#{}, [], #{limiters => #{}}, [{limiters, []}]]].

%% Two applications of one node, each with limiters of its own and one in common: the later one's word counts, levels stay.
in_two_supervisors(_) ->
    {ok, One} = supervisor:start_link(?MODULE, [weir:child_spec(#{limiters => #{common => ?SPEC, one => ?SPEC}})]),
    {allow, 1} = weir:check(common, key, 4),
    {ok, Two} = supervisor:start_link(?MODULE, [weir:child_spec([{limiters, #{<<"common">> => #{rate => {10, minute}}, two => ?SPEC}}])]),
    ?assertEqual([<<"common">>, <<"one">>, <<"two">>], lists:sort(maps:keys(weir:limiters()))),
    ?assertEqual({allow, 5}, weir:check(common, key)),
    stop_supervisor(One),
    ?assertEqual({allow, 4}, weir:check(common, key)),
    ?assertEqual({allow, 4}, weir:check(one, key)),
    stop_supervisor(Two).

%% A child's limiters are there again after weir was stopped, or crashed, and started. The supervisor, which allows one
%% restart, has nothing to do; and while weir is not there, the child does next to nothing.
weir_comes_and_goes_under_a_supervisor(_) ->
    {ok, Sup} = supervisor:start_link(?MODULE, [weir:child_spec(#{limiters => #{login => ?SPEC, api => ?SPEC}})]),
    [{weir, Child, _, _}] = supervisor:which_children(Sup),
    [begin
         ok = weir:delete_limiter(api),
         ok = End(),
         _ = weir_test:fault(fun() -> weir:check(login, key) end, ["not started"]),
         ok = application:start(weir),
         weir_test:wait_until(made_again,
                              fun() -> lists:sort(maps:keys(weir:limiters())) =:= [<<"api">>, <<"login">>] end),
         ?assertEqual([{allow, 4}, {allow, 3}], [weir:check(login, key), weir:check(<<"login">>, key)])
     end || End <- [fun() -> application:stop(weir) end, fun crash/0, fun() -> application:stop(weir) end]],
    ok = application:stop(weir),
    {reductions, Before} = process_info(Child, reductions),
    receive after 500 -> ok end,
    {reductions, After} = process_info(Child, reductions),
    ?assert(After - Before < 5000),
    %% A limiter that can't be made again is not the end of the others, nor of the child.
    ok = application:set_env(weir, limiters, #{api => #{rate => {1, day}, max_keys => 5}}),
    ok = application:start(weir),
    weir_test:wait_until(made_again, fun() -> weir_specs:is_known(login) end),
    ?assertMatch(#{<<"api">> := #{max_keys := 5}}, weir:limiters()),
    ?assertMatch([{weir, Child, _, _}], supervisor:which_children(Sup)),
    stop_supervisor(Sup).

%% weir's supervisor is killed, and the application with it.
crash() ->
    true = exit(whereis(weir_sup), kill),
    weir_test:wait_until(ended, fun() -> not lists:keymember(weir, 1, application:which_applications()) end).

%% While weir goes on, what was deleted or changed since stays so, whichever of weir's processes crashes.
a_child_makes_nothing_twice(_) ->
    {ok, Sup} = supervisor:start_link(?MODULE, [weir:child_spec(#{limiters => #{login => ?SPEC, api => ?SPEC}})]),
    [{weir, Child, _, _}] = supervisor:which_children(Sup),
    {allow, 1} = weir:check(login, key, 4),
    ok = weir:delete_limiter(api),
    ok = weir:put_limiter(login, #{rate => {7, minute}}),
    [kill(Name) || Name <- ?PROCESSES],
    %% Longer than it would wait if it thought that weir was gone.
    receive after 100 -> ok end,
    _ = sys:get_state(Child),
    ?assertMatch(#{<<"login">> := #{rate := {7, minute}}}, weir:limiters()),
    ?assertEqual([<<"login">>], maps:keys(weir:limiters())),
    ?assertEqual({allow, 2}, weir:check(login, key)),
    ?assertMatch([{weir, Child, _, _}], supervisor:which_children(Sup)),
    stop_supervisor(Sup).

%% From OTP 26 on start_link takes the exit of what failed to start.
exited() ->
    list_to_integer(erlang:system_info(otp_release)) >= 26 orelse receive {'EXIT', _, _} -> ok end.

bad_options_in_a_supervisor(_) ->
    process_flag(trap_exit, true),
    [begin
         {error, Reason} = supervisor:start_link(?MODULE, [weir:child_spec(Opts)]),
         exited(),
         names(Words, Reason),
         %% A reason, not a crash.
         ?assertMatch({shutdown, {failed_to_start_child, weir, What}} when element(1, What) =/= 'EXIT', Reason)
     end || {Opts, Words} <-
                [{#{limiters => #{login => #{rate => {0, minute}}}}, ["login", "positive integer"]},
                 {[{limiters, [{good, ?SPEC}, {login, #{}}]}], ["login", "rate is missing"]},
                 {#{limits => #{}}, ["limits"]}, {[{limits, []}], ["limits"]}, {#{limiters => #{}, http => #{}}, ["http"]},
                 {#{limiters => login}, ["limiters", "map or a list"]}, {#{limiters => [login]}, ["login", "{Name, Spec}"]},
                 {[limiters], ["limiters"]}, {limiters, ["limiters"]}, {[{limiters, []} | more], ["more"]}]],
    process_flag(trap_exit, false).

stop_supervisor(Sup) ->
    true = unlink(Sup),
    Monitor = monitor(process, Sup),
    true = exit(Sup, shutdown),
    receive {'DOWN', Monitor, _, _, shutdown} -> ok end.

%% ---- the NIF, loaded again

the_nif_is_loaded_again(_) ->
    on_a_node(load_again, []).

%% ... while others ask. Limiters, levels and handles are those of before.
load_again() ->
    {Handle, Expected} = prepare(),
    Done = counters:new(1, []),
    [loaded | Counts] =
        weir_test:concurrently(
          4,
          fun(1) ->
                  [begin
                       {module, weir_nif} = load(I),
                       _ = code:purge(weir_nif),
                       ?assertEqual(Expected, levels(Handle))
                   end || I <- lists:seq(1, 10)],
                  counters:add(Done, 1, 1),
                  loaded;
             (I) -> ask_until(Done, I, 0)
          end),
    ?assert(lists:all(fun(N) -> N > 0 end, Counts)),
    still_works(Handle).

load(I) when I rem 2 =:= 0 ->
    code:load_file(weir_nif);
load(_) ->
    {weir_nif, Binary, File} = code:get_object_code(weir_nif),
    code:load_binary(weir_nif, File, Binary).

%% Three limiters, one by a handle, with keys that have levels.
prepare() ->
    {ok, _} = application:ensure_all_started(weir),
    ok = weir_clock:freeze(weir_test:t0()),
    ok = weir:put_limiter(login, #{rate => {100000000, day}}),
    ok = weir:put_limiter(<<"five">>, ?SPEC),
    Handle = weir:compile(#{rate => {10, hour}}),
    [{allow, _} = weir:check(Limiter, Key, 3) || Limiter <- [five, Handle], Key <- [a, [b], {1, 2, 3, 4}]],
    {Handle, levels(Handle)}.

levels(Handle) ->
    [maps:get(level, weir:explain(Limiter, Key)) || Limiter <- [five, <<"five">>, Handle], Key <- [a, [b], {1, 2, 3, 4}, none]].

%% Everything that a library takes over from the one before it is used once.
still_works(Handle) ->
    ok = weir_clock:freeze(weir_test:t0()),
    ?assertEqual({allow, 1}, weir:check(five, a)),
    ?assertEqual([{allow, 6}, {allow, 1}], weir:check_many([{Handle, a, 1}, {<<"five">>, [b], 1}])),
    ?assertMatch(#{remaining := 6}, weir:peek(weir:compile(#{rate => {10, hour}}), a)),
    ok = weir:put_limiter(five, #{rate => {5, minute}, burst => 6}),
    ok = weir:put_limiter(new, ?SPEC),
    ?assertEqual({allow, 4}, weir:check(new, a)),
    ?assertEqual({allow, 1}, weir:check(five, a)),
    ok = weir:delete_limiter(new),
    %% Handles of before are dropped by the library that is there now.
    _ = [begin
             {Pid, Monitor} = spawn_monitor(fun() -> [weir:compile(#{rate => {N, minute}}) || N <- lists:seq(1, 50)] end),
             receive {'DOWN', Monitor, _, Pid, normal} -> ok end
         end || _ <- lists:seq(1, 10)],
    weir_test:wait_until(collected, fun() -> ok = weir_sweeper:sweep(), length(weir_table:stats()) =:= 3 end),
    ok = application:stop(weir),
    ?assertEqual([], weir_table:stats()),
    {ok, _} = application:ensure_all_started(weir),
    ok = weir:put_limiter(five, ?SPEC),
    ?assertEqual({allow, 4}, weir:check(five, a)),
    ok.

the_nif_is_loaded_from_elsewhere(Config) ->
    Copies = [filename:join([?config(priv_dir, Config), Name, "weir_nif"]) || Name <- ["first", "second"]],
    on_a_node(load_from_elsewhere, [Copies]).

%% Each copy is a library of its own, with its own data; state goes from hand to hand, and the one before is closed.
load_from_elsewhere(Copies) ->
    {Handle, Expected} = prepare(),
    Original = code:which(weir_nif),
    [begin
         ok = filelib:ensure_dir(Copy),
         {ok, _} = file:copy(filename:join(code:priv_dir(weir), "weir_nif.so"), Copy ++ ".so"),
         {module, weir_nif} = code:load_binary(weir_nif, Original, weir_test:other_nif_module(#{library => Copy})),
         ok = weir_clock:freeze(weir_test:t0()),
         ?assertEqual(Expected, levels(Handle)),
         _ = code:purge(weir_nif),
         ?assertEqual(Expected, levels(Handle)),
         %% The library is this copy: the system has the file mapped.
         {ok, Maps} = file:read_file("/proc/self/maps"),
         ?assertNotEqual(nomatch, binary:match(Maps, unicode:characters_to_binary(Copy)))
     end || Copy <- Copies],
    still_works(Handle).

another_abi_is_refused(_) ->
    on_a_node(load_another_abi, []).

%% ... and the one that is there goes on.
load_another_abi() ->
    {Handle, Expected} = prepare(),
    File = code:which(weir_nif),
    [begin
         ?assertEqual({error, on_load_failure}, code:load_binary(weir_nif, File, weir_test:other_nif_module(#{abi => Abi}))),
         ?assertEqual(Expected, levels(Handle))
     end || Abi <- [0, 1, 4711, -1]],
    _ = code:purge(weir_nif),
    {module, weir_nif} = code:load_file(weir_nif),
    ?assertEqual(Expected, levels(Handle)),
    still_works(Handle).

the_nif_is_unloaded(_) ->
    on_a_node(unload, []).

%% Everything is gone then, and comes anew; handles of before are none, and dropping them touches nothing of what is there now.
unload() ->
    Self = self(),
    {Holder, Monitor} = spawn_monitor(fun() ->
                                              {Handle, _} = prepare(),
                                              Self ! held,
                                              receive try_it -> _ = weir_test:fault(fun() -> weir:check(Handle, a) end) end
                                      end),
    receive held -> ok end,
    ok = application:stop(weir),
    true = code:delete(weir_nif),
    _ = code:purge(weir_nif),
    {ok, _} = application:ensure_all_started(weir),
    ok = weir:put_limiter(five, ?SPEC),
    ?assertEqual({allow, 4}, weir:check(five, a)),
    New = weir:compile(?SPEC),
    Holder ! try_it,
    receive {'DOWN', Monitor, _, _, Reason} -> ?assertEqual(normal, Reason) end,
    ok = weir_sweeper:sweep(),
    ?assertEqual({allow, 3}, weir:check(five, a)),
    ?assertEqual({allow, 4}, weir:check(New, a)),
    ok.

%% Runs a function of this suite on a node of its own.
on_a_node(Function, Args) ->
    Peer = weir_test:start_peer(["-kernel", "logger_level", "none"]),
    try
        _ = peer:call(Peer, ?MODULE, Function, Args, 50000)
    after
        weir_test:stop_peer(Peer)
    end.
