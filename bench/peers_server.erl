%% @doc A peer, for reference: one process that owns all buckets, asked by `gen_server:call'. Exact, and one decision at a
%% time for the whole node. The state is a map of Key to its theoretical arrival time.
-module(peers_server).

-behaviour(gen_server).

-export([new/0, hit/4]).
-export([init/1, handle_call/3, handle_cast/2]).

-spec new() -> pid().
new() ->
    {ok, Server} = gen_server:start_link(?MODULE, [], []),
    Server.

-spec hit(pid(), term(), IntervalNs :: pos_integer(), SpanNs :: pos_integer()) ->
          {allow, non_neg_integer()} | {deny, pos_integer()}.
hit(Server, Key, IntervalNs, SpanNs) ->
    gen_server:call(Server, {hit, Key, IntervalNs, SpanNs}, infinity).

-spec init([]) -> {ok, map()}.
init([]) ->
    {ok, #{}}.

-spec handle_call({hit, term(), pos_integer(), pos_integer()}, gen_server:from(), map()) -> {reply, term(), map()}.
handle_call({hit, Key, IntervalNs, SpanNs}, _From, Tats) ->
    Now = erlang:monotonic_time(nanosecond),
    Next = max(maps:get(Key, Tats, Now), Now) + IntervalNs,
    case Now + SpanNs - Next of
        Slack when Slack >= 0 -> {reply, {allow, Slack div IntervalNs}, Tats#{Key => Next}};
        Slack -> {reply, {deny, (999999 - Slack) div 1000000}, Tats}
    end.

-spec handle_cast(term(), map()) -> {noreply, map()}.
handle_cast(_, Tats) ->
    {noreply, Tats}.
