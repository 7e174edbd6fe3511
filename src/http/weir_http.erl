%% @doc The HTTP service: a supervisor, started by `weir_sup' when the application's environment has `http'.
%%
%% ```
%% weir_sup
%%  +- weir_http            (one_for_one)
%%      +- weir_http_listener   owns the listener in ranch's tree: opens it, watches it, drains it
%% ranch_sup
%%  +- ranch_listener_sup   acceptors, connections, requests
%% '''
%%
%% A request that fails takes nothing with it. A connection that fails takes its own requests. When the listener dies,
%% weir_http_listener notices, dies and is started again, with a new listener; decisions by `weir:check/2' go on.
-module(weir_http).

-behaviour(supervisor).

-export([start_link/1, port/0, init/1]).

%% @doc Starts the service; fails, having logged why and what to change, when it can't listen.
-spec start_link(weir_http_options:given()) -> supervisor:startlink_ret().
start_link(Options) ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, Options).

%% @doc The port that is listened to.
-spec port() -> inet:port_number().
port() ->
    weir_http_listener:port().

%% @private
-spec init(weir_http_options:given()) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(Options) ->
    Listener = #{id => weir_http_listener,
                 start => {weir_http_listener, start_link, [Options]},
                 shutdown => weir_http_listener:shutdown_ms(Options)},
    {ok, {#{strategy => one_for_one, intensity => 5, period => 60}, [Listener]}}.
