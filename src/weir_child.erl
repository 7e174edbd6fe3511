%% @private
%% @doc The child `{weir, Opts}' of somebody else's supervisor: sees to it that the limiters of `Opts' are there
%% whenever weir is.
%%
%% The start makes them, after starting weir if need be; what is wrong with `Opts' is the start's error. When weir is
%% stopped, or crashes, the child goes on and waits. Once weir is started it makes its limiters again: within 10 ms
%% after a short absence, within a second after a long one. It doesn't start weir itself, and it doesn't end with weir:
%% a supervisor that restarted it would start what was stopped on purpose. While weir runs it does nothing, so that
%% what is changed or deleted stays so.
%%
%% A limiter that can't be made again is tried again five times, then logged.
-module(weir_child).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(LEAST_PAUSE_MS, 10).
-define(MOST_PAUSE_MS, 1000).
-define(TRIES, 5).

-type limiters() :: [{term(), term()}].

%% `weir' is the monitor of weir's supervisor, none while weir isn't there. `missing' are the limiters that are still
%% to be made.
-record(state, {limiters :: limiters(), weir = none :: none | reference(), missing = [] :: limiters(),
                timer = none :: none | reference(), pause = ?LEAST_PAUSE_MS :: pos_integer(),
                tries = ?TRIES :: non_neg_integer()}).

%% (All that may fail is done by the supervisor: its child's errors would be logged as crashes.)
-spec start_link(term()) -> {ok, pid()} | {error, term()}.
start_link(Opts) ->
    case options(Opts) of
        {ok, Limiters} -> start_weir(Limiters);
        {error, _} = Error -> Error
    end.

options(Opts) when is_map(Opts) ->
    case maps:keys(Opts) -- [limiters] of
        [] -> weir_registry:pairs(maps:get(limiters, Opts, []));
        Unknown -> {error, {unknown_options, Unknown}}
    end;
options(Opts) ->
    try maps:from_list(Opts) of
        Map -> options(Map)
    catch
        error:badarg -> {error, {bad_options, Opts}}
    end.

start_weir(Limiters) ->
    case application:ensure_all_started(weir) of
        {ok, _} -> make_first(Limiters);
        {error, _} = Error -> Error
    end.

make_first(Limiters) ->
    case make(Limiters) of
        [] -> start_process(gen_server:start_link(?MODULE, Limiters, []));
        [{{Name, _}, Message} | _] -> {error, {bad_limiter, Name, Message}}
    end.

start_process({ok, Pid}) -> {ok, Pid};
start_process({error, _} = Error) -> Error.

%% Those that couldn't be made, and why.
make(Limiters) ->
    [{Limiter, Message} || Limiter <- Limiters, {error, Message} <- [make_one(Limiter)]].

make_one({Name, Spec}) ->
    try weir_registry:configure(Name, Spec)
    catch exit:_ -> {error, <<"the registry ended while it was asked">>}
    end.

%% ---- callbacks ----

-spec init(limiters()) -> {ok, #state{}}.
init(Limiters) ->
    {ok, #state{limiters = Limiters, weir = erlang:monitor(process, weir_sup)}}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, {error, unknown_call}, #state{}}.
handle_call(_, _From, State) ->
    {reply, {error, unknown_call}, State}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({'DOWN', Weir, process, _, _}, #state{weir = Weir, limiters = Limiters} = State) ->
    {noreply, later(State#state{weir = none, missing = Limiters, pause = ?LEAST_PAUSE_MS, tries = ?TRIES})};
handle_info({timeout, Timer, again}, #state{timer = Timer} = State) ->
    {noreply, again(State#state{timer = none})};
handle_info(_, State) ->
    {noreply, State}.

%% ---- internal ----

later(#state{timer = Old, pause = Pause} = State) ->
    _ = Old =/= none andalso erlang:cancel_timer(Old),
    State#state{timer = erlang:start_timer(Pause, self(), again), pause = min(?MOST_PAUSE_MS, 2 * Pause)}.

again(#state{weir = none} = State) ->
    case whereis(weir_registry) of
        undefined -> later(State);
        _ -> make_missing(State#state{weir = erlang:monitor(process, weir_sup), pause = ?LEAST_PAUSE_MS})
    end;
again(State) ->
    make_missing(State).

make_missing(#state{missing = Missing, tries = Tries} = State) ->
    case make(Missing) of
        [] ->
            State#state{missing = []};
        Failed when Tries > 0 ->
            later(State#state{missing = [Limiter || {Limiter, _} <- Failed], tries = Tries - 1});
        Failed ->
            _ = [?LOG_ERROR(#{what => limiter_of_child_not_made_again, limiter => Name, why => Message})
                 || {{Name, _}, Message} <- Failed],
            State#state{missing = []}
    end.
