%% @private
%% @doc The process in which a method of discovery looks for nodes.
%%
%% It may wait for a name server or hang in somebody's code: weir_discovery, which it is linked to and reports to, goes on. An
%% exception of the method is a failed lookup. Failed lookups are repeated with growing pauses, unless the method says when.
-module(weir_discovery_finder).

-behaviour(gen_server).

-export([start_link/2, backoff/3]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2, terminate/2, format_status/1]).

-export_type([report/0]).

%% Names as the method gave them, or why it has none.
-type report() :: {found, Finder :: pid(), {ok, [term()]} | {error, Message :: binary()}}.

-define(MIN_PAUSE_MS, 500).
-define(MAX_PAUSE_MS, 30000).
%% Timers take no more than 2^32 - 1 ms.
-define(MAX_TIMER_MS, 4294967295).
-define(SHOWN, 16).

-define(IS_NEXT(Next), (Next =:= infinity orelse Next =:= backoff orelse is_integer(Next) andalso Next >= 1)).

-record(state, {server :: pid(), module :: module(), method :: term(), timer = none :: reference() | none,
                failures = 0 :: non_neg_integer()}).

%% @doc Starts to look. `Method' is what the module's init/1 answered; reports go to the caller.
-spec start_link(module(), Method :: term()) -> {ok, pid()}.
start_link(Module, Method) ->
    {ok, _} = gen_server:start_link(?MODULE, {self(), Module, Method}, []).

%% @doc The pause after so many failures in a row: doubled each time, and spread so that nodes which failed together don't
%% come back together.
-spec backoff(Failures :: pos_integer(), MinMs :: pos_integer(), MaxMs :: pos_integer()) -> pos_integer().
backoff(Failures, Min, Max) ->
    Pause = min(Max, Min bsl min(Failures - 1, 20)),
    (Pause + 1) div 2 + rand:uniform((Pause + 1) div 2).

%% ---- callbacks ----

-spec init({pid(), module(), term()}) -> {ok, #state{}, {continue, lookup}}.
init({Server, Module, Method}) ->
    %% So that terminate/2 is called.
    _ = process_flag(trap_exit, true),
    {ok, #state{server = Server, module = Module, method = Method}, {continue, lookup}}.

-spec handle_continue(lookup, #state{}) -> {noreply, #state{}}.
handle_continue(lookup, State) ->
    {noreply, lookup(State)}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, unknown, #state{}}.
handle_call(_, _From, State) ->
    {reply, unknown, State}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({timeout, Timer, lookup}, #state{timer = Timer} = State) ->
    {noreply, lookup(State#state{timer = none})};
handle_info(Message, #state{module = Module, method = Method} = State) ->
    case erlang:function_exported(Module, handle_info, 2) of
        true -> {noreply, take(fun() -> Module:handle_info(Message, Method) end, State)};
        false -> {noreply, State}
    end.

-spec terminate(term(), #state{}) -> term().
terminate(_Reason, #state{module = Module, method = Method}) ->
    erlang:function_exported(Module, terminate, 1) andalso Module:terminate(Method).

%% A method's state may hold secrets.
-spec format_status(gen_server:format_status()) -> gen_server:format_status().
format_status(Status) ->
    maps:map(fun(state, #state{} = State) -> State#state{method = hidden};
                (_, Other) -> Other
             end, Status).

%% ---- internal ----

lookup(#state{module = Module, method = Method} = State) ->
    take(fun() -> Module:lookup(Method) end, State).

take(Fun, State) ->
    try Fun() of
        {ok, Names, Next, Method} when length(Names) >= 0, ?IS_NEXT(Next) ->
            pause(Next, report({ok, Names}, State#state{method = Method, failures = 0}));
        {error, Why, Next, Method} when ?IS_NEXT(Next) -> failed(Why, Next, State#state{method = Method});
        {ignore, Method} -> State#state{method = Method};
        _ -> failed(<<"the method answered something else than the behaviour weir_discovery asks for">>, backoff, State)
    catch
        Class:Why:Stack -> failed({Class, kind(Why), where(Stack)}, backoff, State)
    end.

failed(Why, Next, #state{failures = Failures} = State) ->
    pause(Next, report({error, text(Why)}, State#state{failures = Failures + 1})).

report(What, #state{server = Server} = State) ->
    Server ! {found, self(), What},
    State.

pause(backoff, #state{failures = Failures} = State) ->
    pause(backoff(max(1, Failures), ?MIN_PAUSE_MS, ?MAX_PAUSE_MS), State);
pause(Next, #state{timer = Timer} = State) ->
    _ = Timer =/= none andalso erlang:cancel_timer(Timer),
    case Next of
        infinity -> State#state{timer = none};
        Ms -> State#state{timer = erlang:start_timer(min(Ms, ?MAX_TIMER_MS), self(), lookup)}
    end.

%% Without arguments and values, which may hold secrets.
kind(Why) when is_atom(Why) -> Why;
kind(Why) when is_tuple(Why), is_atom(element(1, Why)) -> element(1, Why);
kind(_) -> unknown.

where([{Module, Function, Args, _} | _]) when is_list(Args) -> {Module, Function, length(Args)};
where([{Module, Function, Arity, _} | _]) -> {Module, Function, Arity};
where([]) -> unknown.

text(Why) when is_binary(Why) -> Why;
text(Why) -> weir_error:sentence("~0tP", [Why, ?SHOWN]).
