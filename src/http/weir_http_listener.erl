%% @doc Owns the HTTP listener: opens it, watches it, and drains it when weir stops.
%%
%% The listener itself lives in ranch's supervision tree, as `cowboy:start_clear/3' puts it there. This process dies when
%% the listener does, and closes it when it ends, so that the two come and go together.
%%
%% To drain is: accept no more connections; wait until no connection has a running request, or until `drain_ms' have
%% passed; close everything. Cowboy's connections answer as supervisors of their requests, so they can simply be asked: no
%% request pays for it by a counter. (A counter would also be wrong for requests that are killed when their client leaves.)
-module(weir_http_listener).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/1, port/0, shutdown_ms/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(REF, weir_http).
-define(DRAIN_POLL_MS, 10).
%% To close the connections that are left: ranch waits for them as long as this.
-define(CLOSE_MS, 5000).
-define(BACKLOG, 1024).
-define(ACCEPTORS, 10).
%% A connection without a request, and between two requests.
-define(KEEPALIVE_MS, 60000).
%% A connection with a request, from which nothing comes.
-define(IDLE_MS, 30000).
-define(MAX_KEEPALIVE, 1000000).
-define(MAX_STREAMS, 100).

-record(listener, {monitor :: reference(), drain_ms :: non_neg_integer()}).

%% @doc Opens the listener.
-spec start_link(weir_http_options:given()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Options, []).

%% @doc The port that is listened to; asks ranch, so it may be called from anywhere while the service runs.
-spec port() -> inet:port_number().
port() ->
    case ranch:get_port(?REF) of
        Port when is_integer(Port) -> Port
    end.

%% @doc The time that a supervisor must give this process to end.
-spec shutdown_ms(weir_http_options:given()) -> pos_integer().
shutdown_ms(Options) ->
    weir_http_options:drain_ms(Options) + ?CLOSE_MS + 1000.

%% @private
-spec init(weir_http_options:given()) -> {ok, #listener{}} | {stop, {shutdown, term()}}.
init(Given) ->
    _ = process_flag(trap_exit, true),
    case weir_http_options:parse(Given) of
        {ok, Options} -> open(Options);
        {error, Message} -> give_up(bad_option, Message)
    end.

open(#{ip := Ip, port := Port, max_connections := MaxConnections, drain_ms := DrainMs}) ->
    case missing() of
        [] ->
            ok = weir_http_metrics:register(),
            Socket = [{ip, Ip}, {port, Port}, {backlog, ?BACKLOG}],
            %% Ranch 2 counts connections by supervisor of connections: with one of them the maximum is the maximum.
            Transport = #{socket_opts => Socket, num_acceptors => ?ACCEPTORS, num_conns_sups => 1,
                          max_connections => MaxConnections, shutdown => ?CLOSE_MS},
            opened(listen(Socket, Transport), Ip, Port, DrainMs);
        Missing ->
            give_up(not_started, io_lib:format("HTTP needs these applications, which are not started: ~s",
                                               [lists:join(", ", Missing)]))
    end.

%% They are optional applications of weir: who embeds it need not have them.
missing() ->
    [Name || {Name, Process} <- [{"cowboy", cowboy_sup}, {"prometheus", prometheus_sup}], whereis(Process) =:= undefined]
        ++ [Name || {Name, Module} <- [{"jiffy", jiffy}], code:ensure_loaded(Module) =/= {module, Module}].

%% The port is tried first. Ranch would report the failure too, but in three crash reports, among which our one sentence
%% would be lost. (Should another program take the port in between, ranch's reports come, and the sentence after them.)
listen(Socket, Transport) ->
    case gen_tcp:listen(0, [{reuseaddr, true} | Socket]) of
        {ok, Probe} ->
            ok = gen_tcp:close(Probe),
            start(Transport);
        {error, Reason} ->
            {error, Reason}
    end.

start(Transport) ->
    Protocol = #{env => #{dispatch => cowboy_router:compile([{'_', routes()}])},
                 request_timeout => ?KEEPALIVE_MS, idle_timeout => ?IDLE_MS,
                 max_keepalive => ?MAX_KEEPALIVE, max_concurrent_streams => ?MAX_STREAMS},
    case cowboy:start_clear(?REF, Transport, Protocol) of
        {error, {already_started, _}} ->
            %% Of a predecessor that was killed.
            _ = cowboy:stop_listener(?REF),
            cowboy:start_clear(?REF, Transport, Protocol);
        Result ->
            Result
    end.

routes() ->
    [{"/v1/check", weir_http_check, []},
     {"/v1/limiters", weir_http_limiters, []},
     {"/v1/limiters/:name", weir_http_limiters, []},
     {"/v1/explain", weir_http_explain, []},
     {"/healthz", weir_http_health, []},
     {"/metrics", weir_http_metrics, []},
     {'_', weir_http_missing, []}].

opened({ok, Pid}, Ip, _Port, DrainMs) ->
    ?LOG_NOTICE(#{what => http_listening, ip => list_to_binary(inet:ntoa(Ip)), port => port()}),
    {ok, #listener{monitor = monitor(process, Pid), drain_ms = DrainMs}};
opened({error, Reason}, Ip, Port, _DrainMs) ->
    give_up(Reason, io_lib:format("weir can't serve HTTP at ~s: ~s. Another address is set by WEIR_HTTP_PORT (the port), "
                                  "or by {weir, [{http, #{ip => ..., port => ...}}]} in sys.config",
                                  [at(Ip, Port), because(Reason)])).

at(Ip, Port) when tuple_size(Ip) =:= 8 -> io_lib:format("[~s]:~b", [inet:ntoa(Ip), Port]);
at(Ip, Port) -> io_lib:format("~s:~b", [inet:ntoa(Ip), Port]).

because(eaddrinuse) -> "the port is taken by another program";
because(eacces) -> "this user may not open the port";
because(eaddrnotavail) -> "this machine doesn't have the address";
because(Reason) -> io_lib:format("~0p", [Reason]).

%% The message is for the one who started weir; the reason, for the supervisor, stays short.
give_up(Reason, Message) ->
    ?LOG_ERROR(#{what => http_not_started, reason => Reason, message => iolist_to_binary(Message)}),
    {stop, {shutdown, {http_not_started, Reason}}}.

%% @private
-spec handle_call(term(), gen_server:from(), #listener{}) -> {reply, {error, unknown_call}, #listener{}}.
handle_call(_Call, _From, Listener) ->
    {reply, {error, unknown_call}, Listener}.

%% @private
-spec handle_cast(term(), #listener{}) -> {noreply, #listener{}}.
handle_cast(_Cast, Listener) ->
    {noreply, Listener}.

%% @private
-spec handle_info(term(), #listener{}) -> {noreply, #listener{}} | {stop, term(), #listener{}}.
handle_info({'DOWN', Monitor, process, _, Reason}, #listener{monitor = Monitor} = Listener) ->
    {stop, {listener_died, Reason}, Listener};
handle_info(_Message, Listener) ->
    {noreply, Listener}.

%% @private
-spec terminate(term(), #listener{}) -> ok.
terminate({listener_died, _}, _Listener) ->
    ok;
terminate(_Reason, #listener{drain_ms = DrainMs}) ->
    drain(DrainMs),
    _ = cowboy:stop_listener(?REF),
    ok.

%% In a process of its own, so that a connection which doesn't answer can't hold up the end.
drain(Ms) ->
    {Pid, Monitor} = spawn_monitor(fun() -> _ = ranch:suspend_listener(?REF), wait_for_requests() end),
    receive
        {'DOWN', Monitor, process, Pid, _} -> ok
    after Ms ->
        exit(Pid, kill),
        receive {'DOWN', Monitor, process, Pid, _} -> ok end,
        ?LOG_WARNING(#{what => http_drain_cut, after_ms => Ms})
    end.

wait_for_requests() ->
    case lists:any(fun running/1, ranch:procs(?REF, connections)) of
        false -> ok;
        true -> receive after ?DRAIN_POLL_MS -> wait_for_requests() end
    end.

running(Connection) ->
    try
        supervisor:which_children(Connection) =/= []
    catch
        exit:_ -> false
    end.
