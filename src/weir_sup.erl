%% @private
%% @doc weir's supervisor.
%%
%% ```
%% weir_sup (one_for_one)           owns the tables of specifications and of members
%%  |- weir_clock                   compares the clock with the system's; without it the clock runs on at its rate
%%  |- weir_members                 knows the nodes that limit together; without it nobody joins
%%  |- weir_connector               connects to those that are away; without it a partition lasts
%%  |- weir_registry                makes and changes limiters; without it decisions go on
%%  |- weir_replica                 tells the other nodes of births; without it each node decides on what it knows
%%  |    `- weir_peer, one per node sends frames; ends with weir_replica, and is started again by it
%%  |- weir_owner                   decides keys of `scope => exact'; without it each node decides on what it knows
%%  |    `- weir_handover           tells other nodes levels, and ends
%%  |- weir_watch                   says in the log what is wrong with the cluster; without it nothing is missed but that
%%  |- weir_sweeper                 clears expired keys; without it new ones take their slots
%%  |- weir_discovery (if configured)  finds nodes; without it those that are connected stay so
%%  `- weir_http (if configured)    a supervisor: listener and its connections
%% '''
%%
%% weir_child, the child `{weir, Opts}' of others' supervisors, is not in this tree: it makes its limiters again when
%% weir is back.
%%
%% Tables, limiters and the machine live in the NIF and survive every process here; specifications and members survive all
%% but the supervisor itself.
-module(weir_sup).

-behaviour(supervisor).

-export([start_link/1, init/1]).

-spec start_link(fun(() -> weir_secret:id())) -> {ok, pid()} | {error, term()}.
start_link(SecretId) ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, SecretId).

-spec init(fun(() -> weir_secret:id())) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(SecretId) ->
    ok = weir_specs:make_table(),
    ok = weir_roster:make_table(SecretId),
    ok = weir_traffic:make_table(),
    Workers = [#{id => Module, start => {Module, start_link, []}}
               || Module <- [weir_clock, weir_members, weir_connector, weir_registry, weir_replica, weir_owner, weir_watch,
                                weir_sweeper]],
    {ok, {#{strategy => one_for_one, intensity => 5, period => 10},
          Workers ++ [weir_discovery:child_spec()] ++ http(application:get_env(weir, http))}}.

http(undefined) ->
    [];
http({ok, Options}) ->
    case code:ensure_loaded(weir_http) of
        {module, _} ->
            ok;
        {error, _} ->
            error({no_http, "weir is configured to serve HTTP, but was built without it: build with the profile `server', "
                            "or remove `http' from weir's configuration"})
    end,
    [#{id => weir_http, start => {weir_http, start_link, [with_port(Options, os:getenv("WEIR_HTTP_PORT"))]},
       type => supervisor, shutdown => infinity}].

%% The environment overrides the configured port. Whether it is one, weir_http judges; a text that is no number it reports as
%% it stands.
with_port(Options, Unset) when Unset =:= false; Unset =:= "" ->
    Options;
with_port(Options, Text) ->
    case string:to_integer(Text) of
        {Port, ""} -> Options#{port => Port};
        _ -> Options#{port => Text}
    end.
