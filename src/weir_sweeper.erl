%% @private
%% @doc Clears expired keys, gives memory back, and finishes what deleting and changing limiters left to do.
%%
%% Once a second it goes through all tables, a few segments per millisecond: some 6 % of a core while it lasts, a second
%% for five million keys. If it stops, nothing is decided wrongly: new keys take the slots of expired ones in any case.
%% Memory of deleted limiters then comes back only as others are made.
-module(weir_sweeper).

-behaviour(gen_server).

-export([start_link/0, sweep/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(PAUSE_MS, 1).
-define(PASS_MS, 1000).

-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% A whole pass, now.
-spec sweep() -> ok.
sweep() ->
    %% A pass may be under way: the second one has seen all tables from their beginning.
    ok = pass(),
    pass().

-spec init([]) -> {ok, none}.
init([]) ->
    {ok, next(?PASS_MS)}.

-spec handle_call(term(), gen_server:from(), none) -> {reply, unknown, none}.
handle_call(_, _From, State) ->
    {reply, unknown, State}.

-spec handle_cast(term(), none) -> {noreply, none}.
handle_cast(_, State) ->
    {noreply, State}.

-spec handle_info(term(), none) -> {noreply, none}.
handle_info(maintain, _State) ->
    case weir_nif:maintain() of
        more -> {noreply, next(?PAUSE_MS)};
        done -> {noreply, next(?PASS_MS)}
    end;
handle_info(_, State) ->
    {noreply, State}.

next(Ms) ->
    _ = erlang:send_after(Ms, self(), maintain),
    none.

pass() ->
    case weir_nif:maintain() of
        more -> pass();
        done -> ok
    end.
