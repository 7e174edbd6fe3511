%% @private
-module(weir_app).

-behaviour(application).

-export([start/2, prep_stop/1, stop/1]).

%% How long a stop waits until the other nodes have the levels of the keys that this one owns, and then until they have been sent
%% what they don't know.
-define(DRAIN_MS, 1000).

%% All keys of weir's environment. The modules that read them say what they hold.
-define(KEYS, [limiters, config_version, http, discovery, cluster, secret, next_secret, carry_ms]).

-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Args) ->
    case code:ensure_loaded(weir_nif) of
        {module, weir_nif} ->
            ok = clean(),
            with_keys([Key || {Key, _} <- application:get_all_env(weir)] -- [included_applications | ?KEYS]);
        {error, Reason} ->
            {error, {nif_not_loaded, Reason, "is priv/weir_nif.so there and built for this machine and OTP? rebuild weir, "
                                             "and look above for what the loader said"}}
    end.

%% A misspelt key would start a node without limiters, or with the cookie for a secret. (included_applications is OTP's
%% own.)
with_keys([]) ->
    with_options(weir_cluster_options:get());
with_keys([Key | _]) ->
    Message = io_lib:format("in weir's configuration there is no ~ts", [weir_options:unknown(Key, ?KEYS)]),
    {error, {bad_config, Key, unicode:characters_to_binary(Message)}}.

with_options({ok, _}) -> with_version(weir_registry:config_version());
with_options({error, Message}) -> {error, {bad_config, cluster, Message}}.

with_version({ok, _}) -> with_carrying(weir_secret:carry_ms());
with_version({error, Message}) -> {error, {bad_config, config_version, Message}}.

with_carrying({ok, _}) -> with_secret(weir_secret:load());
with_carrying({error, Message}) -> {error, {bad_config, carry_ms, Message}}.

with_secret({ok, Id}) ->
    started(weir_sup:start_link(fun() -> Id end));
with_secret({error, Message}) ->
    {error, {bad_config, secret, Message}}.

%% A limiter of the configuration may be wrong when others are made already, and there is no stop/1 after a failed start.
started({error, _} = Error) ->
    ok = clean(),
    Error;
started(Started) ->
    Started.

-spec prep_stop(State) -> State.
prep_stop(State) ->
    {ok, #{leave_on_stop := Leaves}} = weir_cluster_options:get(),
    _ = try weir_members:leave(case Leaves of true -> bye; false -> {stop, ?DRAIN_MS} end)
        catch exit:_ -> gone
        end,
    State.

-spec stop(term()) -> ok.
stop(_State) ->
    clean().

%% The NIF outlives the application.
clean() ->
    ok = weir_replica:stop(),
    ok = weir_nif:delete_all(),
    weir_sweeper:sweep().
