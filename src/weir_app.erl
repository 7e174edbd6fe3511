%% @private
-module(weir_app).

-behaviour(application).

-export([start/2, stop/1]).

-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Args) ->
    case code:ensure_loaded(weir_nif) of
        {module, weir_nif} ->
            ok = clean(),
            %% Keys of one node are nobody else's business, so each start takes a secret of its own.
            ok = weir_nif:set_secret(crypto:strong_rand_bytes(16)),
            started(weir_sup:start_link());
        {error, Reason} ->
            {error, {nif_not_loaded, Reason, "is priv/weir_nif.so there and built for this machine and OTP? rebuild weir, "
                                             "and look above for what the loader said"}}
    end.

%% A limiter of the configuration may be wrong when others are made already, and there is no stop/1 after a failed start.
started({error, _} = Error) ->
    ok = clean(),
    Error;
started(Started) ->
    Started.

-spec stop(term()) -> ok.
stop(_State) ->
    clean().

%% The NIF outlives the application.
clean() ->
    ok = weir_nif:delete_all(),
    weir_sweeper:sweep().
