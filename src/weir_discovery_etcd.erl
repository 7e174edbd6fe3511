%% @doc Discovery by etcd: `{etcd, #{endpoints => ["10.0.0.5:2379"]}}'. Needs the application eetcd.
%%
%% Each node registers itself, as the key `prefix' followed by its name, under a lease that it keeps alive; it watches the keys
%% of the prefix, and finds the nodes that are registered.
%%
%% - `endpoints': etcd's addresses, `"Host:Port"'; one is used at a time, the next when it fails.
%% - `prefix' (default "/weir/nodes/"): clusters that share an etcd have different ones.
%% - `ttl_s' (default 15): a node that dies is off the register after this time; one that stops, at once.
%% - `user', `password': where etcd asks for them.
%% - `tls': a list of options of {@link ssl:connect/3}; `cacertfile' (or `cacerts') is needed unless it has
%%   `{verify, verify_none}'. Without `tls' the connection is not encrypted.
%% - `timeout_ms' (default 5000) for each request.
%%
%% While etcd is away the nodes found before stay, and connected. When it is back, with or without its data, the node is
%% registered again under a new lease, and the register is read anew.
%%
%% A session is one connection, one lease, one watch. Whatever fails ends it, and the next lookup begins another. eetcd's
%% connections belong to its own supervisor; so that none is left over, whatever happens to the finder, a process is opened
%% with it that closes it.
-module(weir_discovery_etcd).

-behaviour(weir_discovery).

-export([init/1, lookup/1, handle_info/2, terminate/1]).

-type session() :: #{guard := pid(), name := reference(), lease := integer(), watch := map(), timer := reference(),
                     names := [binary()]}.
-type state() :: #{endpoints := [string(), ...], prefix := binary(), ttl_s := pos_integer(), timeout_ms := pos_integer(),
                   %% In a fun, so that it is in no log.
                   secrets := fun(() -> {Options :: list(), tcp | tls, TlsOptions :: list()}),
                   session := none | session(), rescan := none | reference()}.

%% Of the register this many keys are read (a megabyte or so): many more than nodes are connected to, so that the surplus is
%% reported, and a flood doesn't hide the nodes that are known.
-define(MAX_KEYS, 16384).
%% News come in bursts, when many nodes start: the register is read this much later, once.
-define(RESCAN_MS, 100).
%% Stopping doesn't wait longer for the lease to be revoked.
-define(REVOKE_MS, 1000).
-define(CONNECT_MS, 2000).
%% eetcd refuses shorter ones.
-define(MIN_TIMEOUT_MS, 100).
-define(MIN_TTL_S, 2).

%% @private
-spec init(map()) -> {ok, state()} | {error, binary()}.
init(Given) ->
    case weir_discovery_options:parse(etcd, Given, options()) of
        {ok, #{tls := Tls, user := User, password := Password} = Values} ->
            case {trusts(Tls), (User =:= none) =:= (Password =:= none), available()} of
                {false, _, _} -> wrong("tls needs cacertfile or cacerts, to know etcd by; or {verify, verify_none}");
                {_, false, _} -> wrong("user and password are given both or neither");
                {_, _, {error, Message}} -> wrong(Message);
                {true, true, ok} -> {ok, state(Values)}
            end;
        {error, _} = Error ->
            Error
    end.

wrong(Message) ->
    {error, weir_error:sentence("discovery by etcd: ~ts", [Message])}.

options() ->
    Text = fun weir_discovery_options:text/1,
    [{endpoints, required, fun endpoints/1, "a list of \"Host:Port\", such as [\"10.0.0.5:2379\"]"},
     {prefix, {default, <<"/weir/nodes/">>}, fun prefix/1, "the beginning of the keys, such as \"/weir/nodes/\""},
     {ttl_s, {default, 15}, fun ttl/1, "seconds from 2 to 3600"},
     {user, {default, none}, Text, "a user's name"},
     {password, {secret, none}, Text, "a string"},
     {tls, {secret, none}, fun tls/1, "a list of options of ssl:connect/3"},
     {timeout_ms, {default, 5000}, fun timeout/1, "milliseconds from 100 to 3600000"}].

endpoints(Given) when length(Given) >= 1 ->  % a proper list
    Parsed = [endpoint(Endpoint) || Endpoint <- Given],
    case lists:member(error, Parsed) of
        true -> error;
        false -> {ok, Parsed}
    end;
endpoints(_) ->
    error.

endpoint(Given) ->
    case weir_discovery_options:text(Given) of
        {ok, Text} ->
            case re:run(Text, "^[A-Za-z0-9._-]+:[0-9]{1,5}$", [dollar_endonly, {capture, none}]) of
                match -> Text;
                nomatch -> error
            end;
        error ->
            error
    end.

prefix(Given) ->
    case weir_discovery_options:text(Given) of
        {ok, Text} -> {ok, unicode:characters_to_binary(Text)};
        error -> error
    end.

ttl(S) when is_integer(S), S < ?MIN_TTL_S -> error;
ttl(S) -> weir_discovery_options:seconds(S).

timeout(Ms) when is_integer(Ms), Ms < ?MIN_TIMEOUT_MS -> error;
timeout(Ms) -> weir_discovery_options:milliseconds(Ms).

tls(Options) when length(Options) >= 0 -> {ok, Options};
tls(_) -> error.

trusts(none) ->
    true;
trusts(Tls) ->
    proplists:get_value(verify, Tls) =:= verify_none orelse lists:any(fun(Name) -> proplists:is_defined(Name, Tls) end,
                                                                      [cacertfile, cacerts]).

available() ->
    case application:ensure_all_started(eetcd) of
        {ok, _} ->
            %% Later versions are called differently.
            _ = code:ensure_loaded(eetcd),
            case erlang:function_exported(eetcd, open, 5) of
                true -> ok;
                false -> {error, "this version of eetcd is not the one it needs: take {eetcd, \"0.3.6\"}"}
            end;
        {error, Reason} ->
            {error, io_lib:format("it needs the application eetcd, which can't be started (~0tP): add {eetcd, \"0.3.6\"} to the "
                                  "dependencies and eetcd to the release, or choose another method", [Reason, 12])}
    end.

state(#{endpoints := Endpoints, prefix := Prefix, ttl_s := Ttl, timeout_ms := Timeout, user := User, password := Password,
        tls := Tls}) ->
    Options = [{connect_timeout, ?CONNECT_MS} | [Option || {_, Value} = Option <- [{name, User}, {password, Password}], Value =/= none]],
    {Transport, TlsOptions} = case Tls of
                                  none -> {tcp, []};
                                  _ -> {tls, [{verify, verify_peer} || not proplists:is_defined(verify, Tls)] ++ Tls}
                              end,
    #{endpoints => Endpoints, prefix => Prefix, ttl_s => Ttl, timeout_ms => Timeout,
      secrets => fun() -> {Options, Transport, TlsOptions} end, session => none, rescan => none}.

%% @private
-spec lookup(state()) -> weir_discovery:answer(state()).
lookup(#{session := #{names := Names}} = State) ->
    {ok, Names, infinity, State};
lookup(#{endpoints := [Endpoint | Others]} = State) ->
    case is_alive() andalso begin_session(Endpoint, State) of
        {ok, #{names := Names} = Session} -> {ok, Names, infinity, State#{session := Session}};
        {error, Message} -> {error, Message, backoff, State#{endpoints := Others ++ [Endpoint]}};
        false -> {error, <<"this node has no name to register: start it with -name weir@ADDRESS">>, backoff, State}
    end.

%% @private
-spec handle_info(term(), state()) -> weir_discovery:answer(state()) | {ignore, state()}.
handle_info({timeout, Timer, keep_alive}, #{session := #{timer := Timer}} = State) ->
    keep_alive(State);
handle_info({timeout, Timer, rescan}, #{rescan := Timer} = State) ->
    rescan(State#{rescan := none});
handle_info(Message, #{session := #{watch := #{stream_ref := Stream} = Watch}} = State) ->
    case result(fun() -> eetcd_watch:watch_stream(Watch, Message) end) of
        %% Some ends of a stream eetcd doesn't tell from others' messages.
        unknown when element(3, Message) =:= Stream -> over(watch_ended, State);
        unknown -> {ignore, State};
        Watched -> watched(Watched, State)
    end;
handle_info(_Message, State) ->
    {ignore, State}.

%% @private
-spec terminate(state()) -> ok.
terminate(#{session := none}) ->
    ok;
terminate(#{session := #{guard := Guard, name := Name, lease := Lease}}) ->
    _ = result(fun() -> eetcd_lease:revoke(eetcd:with_timeout(eetcd:new(Name), ?REVOKE_MS), Lease) end),
    close(Guard).

%% ---- a session ----

begin_session(Endpoint, State) ->
    case open(Endpoint, State) of
        {ok, Guard, Name} ->
            case result(fun() -> register_and_watch(Guard, Name, State) end) of
                {ok, Session} -> {ok, Session};
                {error, Reason} -> ok = close(Guard), failed(Endpoint, Reason)
            end;
        {error, Reason} ->
            failed(Endpoint, Reason)
    end.

failed(Endpoint, Reason) ->
    {error, weir_error:sentence("etcd at ~ts: ~0tP", [Endpoint, Reason, 16])}.

register_and_watch(Guard, Name, #{prefix := Prefix, ttl_s := Ttl} = State) ->
    Context = context(Name, State),
    {ok, #{'ID' := Lease}} = eetcd_lease:grant(Context, Ttl),
    Self = atom_to_binary(node()),
    Own = eetcd_kv:with_value(eetcd_kv:with_key(Context, <<Prefix/binary, Self/binary>>), Self),
    {ok, _} = eetcd_kv:put(eetcd_kv:with_lease(Own, Lease)),
    {ok, Names, Revision} = read(Name, State),
    %% From the revision after the one that was read: no change falls between.
    Keys = eetcd_watch:with_prefix(eetcd_watch:with_key(eetcd_watch:new(), Prefix)),
    {ok, Watch, _} = eetcd_watch:watch(Name, eetcd_watch:with_start_revision(Keys, Revision + 1)),
    {ok, #{guard => Guard, name => Name, lease => Lease, watch => Watch, timer => keep_alive_later(State), names => Names}}.

%% The names that are registered, and the revision of etcd's data for which that is so.
read(Name, #{prefix := Prefix} = State) ->
    Keys = eetcd_kv:with_prefix(eetcd_kv:with_key(context(Name, State), Prefix)),
    {ok, #{kvs := Pairs, header := #{revision := Revision}}} =
        eetcd_kv:get(eetcd_kv:with_limit(eetcd_kv:with_keys_only(Keys), ?MAX_KEYS)),
    {ok, [binary:part(Key, byte_size(Prefix), byte_size(Key) - byte_size(Prefix)) || #{key := Key} <- Pairs], Revision}.

context(Name, #{timeout_ms := Timeout}) ->
    eetcd:with_timeout(eetcd:new(Name), Timeout).

keep_alive_later(#{ttl_s := Ttl}) ->
    erlang:start_timer(Ttl * 1000 div 3, self(), keep_alive).

keep_alive(#{session := #{name := Name, lease := Lease} = Session} = State) ->
    case result(fun() -> eetcd_lease:keep_alive_once(Name, Lease) end) of
        {ok, _} -> {ignore, State#{session := Session#{timer := keep_alive_later(State)}}};
        {error, Reason} -> over(Reason, State)
    end.

rescan(#{session := none} = State) ->
    {ignore, State};
rescan(#{session := #{name := Name} = Session} = State) ->
    case result(fun() -> read(Name, State) end) of
        {ok, Names, _} -> {ok, Names, infinity, State#{session := Session#{names := Names}}};
        {error, Reason} -> over(Reason, State)
    end.

%% What changed is not looked at: the register is small, and read as a whole.
watched({more, Watch}, #{session := Session} = State) ->
    {ignore, State#{session := Session#{watch := Watch}}};
watched({ok, _, #{canceled := true} = Response}, State) ->
    over({watch_cancelled, maps:get(cancel_reason, Response, unknown)}, State);
watched({ok, #{unprocessed := Rest} = Watch, _}, #{session := Session, rescan := Pending} = State) ->
    Timer = case Pending of
                none -> erlang:start_timer(?RESCAN_MS, self(), rescan);
                _ -> Pending
            end,
    Watching = State#{session := Session#{watch := Watch}, rescan := Timer},
    #{http2_pid := Connection, stream_ref := Stream} = Watch,
    case Rest of
        <<>> -> {ignore, Watching};
        _ -> watched(result(fun() -> eetcd_watch:watch_stream(Watch, {gun_data, Connection, Stream, nofin, <<>>}) end), Watching)
    end;
watched({error, Reason}, State) ->
    over(Reason, State).

over(Reason, #{session := #{guard := Guard}, endpoints := [Endpoint | Others]} = State) ->
    ok = close(Guard),
    {error, Message} = failed(Endpoint, Reason),
    {error, Message, backoff, State#{session := none, endpoints := Others ++ [Endpoint]}}.

%% eetcd raises where an answer is none that it expects. What it raises may hold what it was given, so it is not shown.
result(Fun) ->
    try
        Fun()
    catch
        error:{badmatch, {error, Reason}} -> {error, Reason};
        throw:{error, Reason} -> {error, Reason};
        Class:_ -> {error, {unexpected_answer, Class}}
    end.

%% ---- connections ----

open(Endpoint, #{secrets := Secrets}) ->
    Finder = self(),
    Name = make_ref(),
    {Guard, Monitor} = spawn_monitor(fun() -> guard(Finder, Name, Endpoint, Secrets()) end),
    receive
        {Guard, opened} ->
            true = demonitor(Monitor, [flush]),
            {ok, Guard, Name};
        {Guard, {error, Reason}} ->
            true = demonitor(Monitor, [flush]),
            {error, Reason};
        {'DOWN', Monitor, process, _, _} ->
            {error, <<"eetcd is not running">>}
    end.

%% Opens the connection, and closes it on demand or when the finder is gone.
guard(Finder, Name, Endpoint, {Options, Transport, TlsOptions}) ->
    Monitor = monitor(process, Finder),
    case eetcd:open(Name, [Endpoint], Options, Transport, by_address(Transport, Endpoint) ++ TlsOptions) of
        {ok, Connection} ->
            Finder ! {self(), opened},
            receive
                close -> ok;
                {'DOWN', Monitor, process, _, _} -> ok
            end,
            supervisor:terminate_child(eetcd_conn_sup, Connection);
        {error, Reason} ->
            Finder ! {self(), {error, Reason}}
    end.

%% ssl, given an address as text, looks for a host of that name in the certificate; this looks for the address.
by_address(tls, Endpoint) ->
    case inet:parse_ipv4strict_address(hd(string:split(Endpoint, ":"))) of
        {ok, Ip} ->
            Bytes = list_to_binary(tuple_to_list(Ip)),
            [{customize_hostname_check, [{match_fun, fun({dns_id, _}, {iPAddress, Given}) -> iolist_to_binary(Given) =:= Bytes;
                                                        (_, _) -> default
                                                     end}]}];
        {error, _} ->
            []
    end;
by_address(tcp, _Endpoint) ->
    [].

%% Waits until it is closed.
close(Guard) ->
    Monitor = monitor(process, Guard),
    Guard ! close,
    receive
        {'DOWN', Monitor, process, _, _} -> ok
    end.
