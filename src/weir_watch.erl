%% @private
%% @doc Says in the log what an operator should know of the cluster, once when it begins and once when it is over.
%%
%% It looks at the machine, and waits for it if it is busy: nobody waits for this process, and nothing is missed without it but
%% lines of the log. What is to be said is decided by {@link judge/2}, which is pure.
-module(weir_watch).

-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, judge/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([facts/0, known/0]).

-define(LOOK_MS, 5000).
%% Pairs of limiter and member that were warned of: past it, no more are.
-define(MAX_WARNED, 4096).
%% Names in a line of the log.
-define(MAX_NAMES, 10).

%% Nodes that are live and registered, this one too, and those that aren't connected; of each other node how its clock stands;
%% of each replicated limiter the time in which its bucket fills (of none, if no clock differs by a millisecond).
-type facts() :: #{live := pos_integer(), registered := pos_integer(), away := [node()],
                   peers := [{node(), #{quarantined := boolean(), clock_offset_ns => integer(), round_trip_ns => integer()}}],
                   horizons := [{Limiter :: binary(), Ns :: pos_integer()}]}.
%% What was said already.
-type known() :: #{minority := boolean(), quarantined := [node()], skewed := #{{Limiter :: binary(), node()} => true}}.
-type line() :: {logger:level(), map()}.

-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-spec init([]) -> {ok, known()}.
init([]) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    {ok, #{minority => false, quarantined => [], skewed => #{}}}.

-spec handle_call(term(), gen_server:from(), known()) -> {reply, unknown, known()}.
handle_call(_, _From, Known) ->
    {reply, unknown, Known}.

-spec handle_cast(term(), known()) -> {noreply, known()}.
handle_cast(_, Known) ->
    {noreply, Known}.

-spec handle_info(term(), known()) -> {noreply, known()}.
handle_info(look, Known) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    {noreply, look(weir_report:cluster(), Known)};
handle_info(_, Known) ->
    {noreply, Known}.

look(none, Known) ->
    Known;
look(Facts, Known) ->
    {Now, Lines} = judge(Facts, Known),
    lists:foreach(fun({Level, Report}) -> ?LOG(Level, Report) end, Lines),
    Now.

%% @doc What is to be said of these facts, and what was said then.
-spec judge(facts(), known()) -> {known(), [line()]}.
judge(Facts, #{minority := Minority, quarantined := Quarantined, skewed := Skewed}) ->
    {IsMinority, Few} = minority(Facts, Minority),
    {AreQuarantined, Apart} = quarantined(Facts, Quarantined),
    {AreSkewed, Skews} = skewed(Facts, Skewed),
    {#{minority => IsMinority, quarantined => AreQuarantined, skewed => AreSkewed}, Few ++ Apart ++ Skews}.

minority(#{live := Live, registered := Registered, away := Away}, Before) ->
    case {2 * Live =< Registered, Before} of
        {true, false} ->
            {true, [{error, #{what => half_of_the_nodes_are_away, live => Live, registered => Registered,
                              away => some(Away),
                              why => <<"limiters with `partition => closed' deny on this side, and under `share' it has its part of the "
                                       "limit. Connect the nodes again. Those that are gone for good are to be forgotten: "
                                       "weir_members:forget(Node), once, on any node; or set `leave_on_stop' in `cluster', so that nodes "
                                       "that are replaced leave">>}}]};
        {false, true} ->
            {false, [{notice, #{what => most_nodes_are_back, live => Live, registered => Registered}}]};
        {Same, _} ->
            {Same, []}
    end.

quarantined(#{peers := Peers}, Before) ->
    Now = [Node || {Node, #{quarantined := true}} <- Peers],
    Begun = [{warning, #{what => quarantine_begins, node => Node, clock_offset_ns => maps:get(clock_offset_ns, About, unknown),
                         why => <<"its births lie too far in the future (`future_bound'), and are not counted until its clock is right">>}}
             || {Node, #{quarantined := true} = About} <- Peers, not lists:member(Node, Before)],
    {Now, Begun ++ [{notice, #{what => quarantine_ends, node => Node}} || Node <- Before -- Now]}.

%% (The measured offset is wrong by half the round trip at most.)
skewed(#{peers := Peers, horizons := Horizons}, Before) ->
    Nodes = maps:from_list(Peers),
    Known = maps:filter(fun({_, Node}, _) -> is_map_key(Node, Nodes) end, Before),
    ShortestFirst = lists:keysort(2, Horizons),
    lists:foldl(fun({Node, #{clock_offset_ns := Offset, round_trip_ns := Trip}}, {All, Lines}) ->
                        Least = max(0, abs(Offset) - Trip div 2),
                        New = [Limiter || {Limiter, _} <- lists:takewhile(fun({_, Horizon}) -> Horizon =< Least end, ShortestFirst),
                                          not is_map_key({Limiter, Node}, All)],
                        warned(Node, Offset, lists:sublist(New, max(0, ?MAX_WARNED - map_size(All))), All, Lines);
                   (_, Result) -> Result
                end, {Known, []}, Peers).

warned(_Node, _Offset, [], All, Lines) ->
    {All, Lines};
warned(Node, Offset, New, All, Lines) ->
    Line = #{what => clocks_differ_by_more_than_a_bucket, node => Node, clock_offset_ns => Offset, limiters => some(New),
             why => <<"a bucket of these limiters fills in less time than the clocks are apart: the node that is behind has a bucket of its "
                      "own, the one ahead takes the others'. Set the clocks">>},
    {maps:merge(All, maps:from_list([{{Limiter, Node}, true} || Limiter <- New])), Lines ++ [{warning, Line}]}.

some(Names) ->
    case lists:split(min(?MAX_NAMES, length(Names)), lists:sort(Names)) of
        {First, []} -> First;
        {First, Rest} -> First ++ [{and_more, length(Rest)}]
    end.
