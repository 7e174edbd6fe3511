%% The gate's supervisor. Its child makes the limiter; that is one for all nodes, whichever starts first.
-module(gate_sup).
-behaviour(supervisor).
-export([start_link/0, init/1]).

-spec start_link() -> supervisor:startlink_ret().
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    {ok, {#{strategy => one_for_one}, [weir:child_spec(#{limiters => #{visits => #{rate => {5, minute}}}})]}}.
