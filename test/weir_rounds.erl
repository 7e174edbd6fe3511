%% Load in rounds, and what may be admitted then: bounds that hold however slow the machine is, and that can fail.
%%
%% A round is so many checks on each node at once. The next one begins when all that is due has been told (`told'): at that point the
%% unsent births of all nodes together fit into the slack, so only what one round admits can come too much:
%%
%%     admitted <= c + N * checks of a round,  for N nodes that hear each other
%%
%% Nodes that don't hear each other would admit N * c: each is asked until it denies. `within' prints what was admitted, and how far
%% from the bound that is.
-module(weir_rounds).

-include_lib("stdlib/include/assert.hrl").

%% Asking.
-export([at_once/0, rounds/4, rounds_until_denied/3, told/3, agree/3, births/3]).
%% Judging.
-export([within/4, limited/4, limited/5, repair_is_small/3, repair_is_small/4, repair/4]).
%% On the nodes.
-export([known/2, published/2, unsent/2]).

-import(weir_cluster, [call/4, everywhere/4, node_of/1, wait_until/2]).

%% Checks on a node in a round.
-define(AT_ONCE, 5).
%% Bytes of a record that has a frame of its own (measured: 27 of a birth), and between two nodes after a change of membership (120
%% to 380).
-define(RECORD, 27).
-define(CHANGE, 500).

at_once() -> ?AT_ONCE.

%% So many rounds of a key. How many were admitted.
rounds(_Peers, _Limiter, _Key, 0) ->
    0;
rounds(Peers, Limiter, Key, Count) ->
    Admitted = lists:sum(everywhere(Peers, Limiter, Key, ?AT_ONCE)),
    told(Peers, Limiter, Key),
    Admitted + rounds(Peers, Limiter, Key, Count - 1).

%% Until a check is denied: then that node knows of c births.
rounds_until_denied(Peers, Limiter, Key) ->
    case rounds(Peers, Limiter, Key, 1) of
        Admitted when Admitted < length(Peers) * ?AT_ONCE -> Admitted;
        Admitted -> Admitted + rounds_until_denied(Peers, Limiter, Key)
    end.

%% All of these nodes know the same births, but for those below each one's share of the slack.
told(Peers, Limiter, Key) ->
    Known = fun() -> [call(P, ?MODULE, known, [Limiter, Key]) || P <- Peers] end,
    try wait_until(told, fun() -> Now = Known(), not lists:member(due, Now) andalso length(lists:usort(Now)) =:= 1 end)
    catch error:{never_came_true, told} ->
            error({never_told, [{node_of(P), call(P, weir, explain, [Limiter, Key])} || P <- Peers]})
    end.

%% All of these nodes know the same births of the key.
agree(Peers, Limiter, Key) ->
    wait_until({agree, Limiter, Key},
               fun() -> 1 =:= length(lists:usort([call(P, ?MODULE, published, [Limiter, Key]) || P <- Peers])) end).

births(Peer, Limiter, Key) ->
    lists:sum([N || {_, N} <- call(Peer, ?MODULE, published, [Limiter, Key]) ++ call(Peer, ?MODULE, unsent, [Limiter, Key])]).

%% ---- judging

within(What, Least, Most, Count) ->
    ct:pal("~0p: ~b, of ~b to ~b: ~b below the most", [What, Count, Least, Most, Most - Count]),
    ?assertMatch({_, _, _, N} when N >= Least andalso N =< Most, {What, Least, Most, Count}).

%% A key of which so much is left (what was admitted before included) is asked for in rounds: its nodes share the bucket. Answers what
%% was admitted.
limited(Peers, Limiter, Key, Capacity) ->
    limited(Peers, Limiter, Key, Capacity, 0).

limited(Peers, Limiter, Key, Capacity, Before) ->
    Admitted = rounds_until_denied(Peers, Limiter, Key),
    within({Limiter, Key}, Capacity, Capacity + length(Peers) * ?AT_ONCE, Before + Admitted),
    Admitted.

%% Repair takes less than twice the bytes of the data, on all of these nodes together. Data is also what nobody was there to be told:
%% so many records, each of a node that missed it. Each change of membership (a node that starts, returns, or is out of reach for a
%% while) costs a little besides: vectors and digests between all nodes, and a copy of the few keys that there are.
repair_is_small(What, Peers, Changes) ->
    repair_is_small(What, Peers, Changes, 0).

repair_is_small(What, Peers, Changes, Missed) ->
    {Repair, Most} = repair(What, Peers, Changes, Missed),
    ?assertMatch({_, N, M} when N =< M, {What, Repair, Most}).

%% The same, printed only.
repair(What, Peers, Changes, Missed) ->
    {Sent, Repair} = traffic(Peers),
    Data = Sent + Missed * ?RECORD,
    Most = 2 * Data + Changes * length(Peers) * length(Peers) * ?CHANGE,
    ct:pal("~0p: ~b bytes of repair for ~b of data, sent or missed: ~.2f; ~b changes, at most ~b",
           [What, Repair, Data, Repair / max(1, Data), Changes, Most]),
    {Repair, Most}.

%% Bytes that these nodes sent, to each other and others, since they started.
traffic(Peers) ->
    Rows = [Row || P <- Peers, Row <- maps:values(call(P, weir_members, traffic, []))],
    [Sent, Repair, Heartbeats] = [lists:sum([maps:get(What, Row, 0) || Row <- Rows])
                                  || What <- [sent_bytes, sent_repair_bytes, sent_heartbeat_bytes]],
    {Sent - Repair - Heartbeats, Repair}.

%% ---- on the nodes

%% How many births have been told to all, once the machine has seen all that was admitted here; `due' while some are to be sent.
%% (Not the level: after a node was taken for dead, others may count unsent births of it by its estate, of which its buddy hears more
%% while it lives.)
known(Limiter, Key) ->
    try gen_server:call(weir_replica, look) of
        _ ->
            case weir:explain(Limiter, Key) of
                #{unsent := Unsent, share := Share} when Unsent < Share -> lists:sum([N || {_, N} <- published(Limiter, Key)]);
                #{} -> due
            end
    catch exit:_ -> due
    end.

published(Limiter, Key) ->
    intervals(fun weir_machine:published/3, Limiter, Key).

unsent(Limiter, Key) ->
    intervals(fun weir_machine:unsent/3, Limiter, Key).

intervals(Which, Limiter, Key) ->
    {ok, Machine} = weir_machine:attached(),
    {ok, Name} = weir_limiter:name(Limiter),
    Which(Machine, weir_limiter:number(Name), weir_table:key_hash(Key)).
