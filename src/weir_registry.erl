%% @private
%% @doc Makes, changes and deletes limiters, one at a time.
%%
%% The limiters themselves live in the NIF, their specifications in an ETS table of the supervisor's: this process may
%% crash without a decision being missed, and finds both when it comes back.
-module(weir_registry).

-behaviour(gen_server).

-export([start_link/0, make_table/0, put/2, delete/1, specs/0, spec/1, compile/1, pairs/1]).
-export([init/1, handle_call/3, handle_cast/2]).

%% A change walks the limiter's table: about 20 ns a key.
-define(TIMEOUT, 60000).

-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% The table of specifications; belongs to the caller.
-spec make_table() -> ok.
make_table() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

-spec put(weir_limiter:name(), weir_limiter:spec()) -> ok | {error, Message :: binary()}.
put(Name, Spec) ->
    case {weir_limiter:name(Name), weir_limiter:parse(Spec)} of
        {{ok, Binary}, {ok, Compiled}} -> call({put, Name, Binary, Compiled});
        {{error, _} = Error, _} -> Error;
        {_, {error, _} = Error} -> Error
    end.

-spec delete(weir_limiter:name()) -> ok | unknown_limiter | {error, Message :: binary()}.
delete(Name) ->
    case weir_limiter:name(Name) of
        {ok, Binary} -> call({delete, Binary});
        {error, _} = Error -> Error
    end.

-spec specs() -> #{binary() => weir_limiter:spec()}.
specs() ->
    try maps:from_list(ets:tab2list(?MODULE))
    catch error:badarg -> #{}
    end.

-spec spec(binary()) -> {ok, weir_limiter:spec()} | error.
spec(Name) ->
    try ets:lookup(?MODULE, Name) of
        [{_, Spec}] -> {ok, Spec};
        [] -> error
    catch error:badarg -> error
    end.

%% A handle on the one limiter of all policies that decide alike.
-spec compile(weir_limiter:spec()) -> {ok, reference()} | {error, Message :: binary()}.
compile(Spec) ->
    case weir_limiter:parse(Spec) of
        {ok, Compiled} -> handle(weir_limiter:compiled_name(Compiled), Compiled);
        {error, _} = Error -> Error
    end.

handle(Name, Compiled) ->
    case weir_nif:handle(Name) of
        unknown_limiter ->
            case call({compile, Name, Compiled}) of
                %% Nobody held it yet, so it may have been collected meanwhile.
                ok -> handle(Name, Compiled);
                {error, _} = Error -> Error
            end;
        Handle ->
            {ok, Handle}
    end.

call(Request) ->
    try gen_server:call(?MODULE, Request, ?TIMEOUT)
    catch exit:{noproc, _} -> {error, <<"weir is not started: call application:ensure_all_started(weir)">>}
    end.

%% The limiters of a configuration or child specification, as a list. Their names and specifications are not looked at.
-spec pairs(term()) -> {ok, [{term(), term()}]} | {error, {bad_config, limiters, Message :: binary()}
                                                        | {bad_limiter, term(), Message :: binary()}}.
pairs(Limiters) when is_map(Limiters) ->
    {ok, maps:to_list(Limiters)};
pairs(Limiters) when length(Limiters) >= 0 ->  % a proper list
    case [Other || Other <- Limiters, not (is_tuple(Other) andalso tuple_size(Other) =:= 2)] of
        [] -> {ok, Limiters};
        [Other | _] -> {error, {bad_limiter, Other, <<"limiters are {Name, Spec}">>}}
    end;
pairs(_) ->
    {error, {bad_config, limiters, <<"limiters is a map or a list of {Name, Spec}">>}}.

%% ---- callbacks ----

%% Limiters of the configuration are made here; after a crash those that are there stay as they are.
-spec init([]) -> {ok, none} | {stop, term()}.
init([]) ->
    ok = settle(),
    case pairs(application:get_env(weir, limiters, #{})) of
        {ok, Limiters} -> make(Limiters);
        {error, Reason} -> {stop, Reason}
    end.

%% A crash may have come between a change in the NIF and its entry in the table: what the table says was promised, the rest
%% undone.
settle() ->
    _ = [weir_nif:delete(Name) || {Name, _, _, _, _, _} <- weir_nif:stats(), spec(Name) =:= error,
                                  {ok, Name} =:= weir_limiter:name(Name)],
    _ = [put_nif(Name, Compiled, false) || {Name, Spec} <- ets:tab2list(?MODULE), {ok, Compiled} <- [weir_limiter:parse(Spec)]],
    ok.

make([]) ->
    {ok, none};
make([{Name, Spec} | Limiters]) ->
    case make(Name, Spec) of
        ok -> make(Limiters);
        {error, Message} -> {stop, {bad_limiter, Name, Message}}
    end.

make(Name, Spec) ->
    case {weir_limiter:name(Name), weir_limiter:parse(Spec)} of
        {{ok, Binary}, {ok, Compiled}} ->
            case spec(Binary) of
                {ok, _} -> ok;
                error -> put_named(Name, Binary, Compiled)
            end;
        {{error, _} = Error, _} -> Error;
        {_, {error, _} = Error} -> Error
    end.

-spec handle_call(term(), gen_server:from(), none) -> {reply, term(), none}.
handle_call({put, Name, Binary, Compiled}, _From, State) ->
    {reply, put_named(Name, Binary, Compiled), State};
handle_call({delete, Name}, _From, State) ->
    true = ets:delete(?MODULE, Name),
    Reply = case weir_nif:delete(Name) of
                true -> ok;
                false -> unknown_limiter
            end,
    {reply, Reply, State};
handle_call({compile, Name, Compiled}, _From, State) ->
    {reply, put_nif(Name, Compiled, true), State};
handle_call(_, _From, State) ->
    {reply, {error, <<"unknown request">>}, State}.

-spec handle_cast(term(), none) -> {noreply, none}.
handle_cast(_, State) ->
    {noreply, State}.

%% ---- internal ----

put_named(Name, Binary, #{spec := Spec} = Compiled) ->
    case put_nif(Binary, Compiled, false) of
        ok ->
            true = ets:insert(?MODULE, {Binary, Spec}),
            _ = is_atom(Name) andalso weir_nif:alias(Name, Binary),
            ok;
        {error, _} = Error ->
            Error
    end.

put_nif(Name, #{capacity := Capacity, interval_ns := IntervalNs, max_keys := MaxKeys, shadow := Shadow,
                on_error := OnError} = Compiled, Transient) ->
    case weir_nif:put(Name, Capacity, IntervalNs, MaxKeys, Shadow, OnError =:= deny, Transient, local) of
        created ->
            ok;
        changed ->
            convert(Name);
        busy ->
            ok = convert(Name),
            put_nif(Name, Compiled, Transient);
        fixed ->
            {error, <<"max_keys is chosen when a limiter is made: delete the limiter first, or keep max_keys">>};
        too_many ->
            {error, <<"there are 16384 limiters already, which is the most: delete some first">>}
    end.

%% Carries the levels over, a few segments of the table at a time.
convert(Name) ->
    case weir_nif:convert(Name) of
        more -> convert(Name);
        done -> ok
    end.
