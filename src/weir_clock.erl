%% @doc The one source of time: Unix nanoseconds that never run backwards (doc/clock.md).
%%
%% The process only keeps the clock on the system's time, a few times a second. Reading needs no process.
-module(weir_clock).

-behaviour(gen_server).

-export([now/0, info/0]).
%% For tests.
-export([freeze/1, advance/1, thaw/0]).
-export([start_link/0, init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([ns/0]).

%% Unix time or a duration, in nanoseconds.
-type ns() :: non_neg_integer().

-define(TICK_MS, 200).

%% @doc Unix time in nanoseconds.
-spec now() -> ns().
now() ->
    weir_nif:clock_now().

%% @doc How the clock stands: its counter (`tsc', `cntvct' or `monotonic') and that one's rate, its offset from the
%% system's time at the last comparison and at worst, how sure the measurement was, comparisons made, steps of the
%% system's time noticed, and whether a test has frozen it.
-spec info() -> #{source := atom(), hertz := float(), offset_ns := integer(), worst_offset_ns := integer(),
                  error_ns := integer(), ticks := non_neg_integer(), steps := non_neg_integer(), frozen := boolean()}.
info() ->
    {Source, Hertz, Offset, Worst, Error, Ticks, Steps, Frozen} = weir_nif:clock_info(),
    #{source => Source, hertz => Hertz, offset_ns => Offset, worst_offset_ns => Worst, error_ns => Error,
      ticks => Ticks, steps => Steps, frozen => Frozen}.

%% @doc Stops time at `Ns', for the whole node. For tests: a bucket's behaviour over hours can be seen in microseconds.
-spec freeze(ns()) -> ok.
freeze(Ns) ->
    weir_nif:clock_freeze(Ns).

%% @doc Moves a frozen clock on.
-spec advance(ns()) -> ok.
advance(Ns) ->
    weir_nif:clock_advance(Ns).

%% @doc Back to real time. After this, and only then, time may have run backwards.
-spec thaw() -> ok.
thaw() ->
    weir_nif:clock_thaw().

%% ---- callbacks ----

%% @private
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @private
-spec init([]) -> {ok, none}.
init([]) ->
    {ok, tick()}.

%% @private
-spec handle_call(term(), gen_server:from(), none) -> {reply, unknown, none}.
handle_call(_, _From, State) ->
    {reply, unknown, State}.

%% @private
-spec handle_cast(term(), none) -> {noreply, none}.
handle_cast(_, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), none) -> {noreply, none}.
handle_info(tick, _State) ->
    {noreply, tick()};
handle_info(_, State) ->
    {noreply, State}.

tick() ->
    ok = weir_nif:clock_tick(),
    _ = erlang:send_after(?TICK_MS, self(), tick),
    none.
