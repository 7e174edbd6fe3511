%% Starts the gate. weir is started before it, because gate.app.src names it among the applications.
-module(gate_app).
-behaviour(application).
-export([start/2, stop/1]).

-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Args) ->
    case gate_sup:start_link() of
        {ok, Pid} -> {ok, Pid};
        ignore -> {error, ignored};
        {error, Reason} -> {error, Reason}
    end.

-spec stop(term()) -> ok.
stop(_State) ->
    ok.
