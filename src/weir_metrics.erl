%% @doc All of weir's metrics: one table of name, kind, help and labels, and their values as of now.
-module(weir_metrics).

-export([metrics/0]).

-export_type([metric/0]).

-type metric() :: {Name :: atom(), counter | gauge, Help :: binary(), Labels :: [atom()],
                   [{LabelValues :: [binary()], number()}]}.

%% @doc Every metric with its values. Costs about a microsecond a limiter.
-spec metrics() -> [metric()].
metrics() ->
    Stats = with_machine(weir_table:stats()),
    [{Name, Kind, Help, [limiter], [{[Limiter], maps:get(Key, S)} || #{name := Limiter} = S <- Stats]}
     || {Name, Kind, Help, Key} <- limiter_metrics()] ++
        [{Name, Kind, Help, [], [{[], maps:get(Key, Clock)}]}
         || Clock <- [clock()], {Name, Kind, Help, Key} <- clock_metrics()] ++
        [{Name, Kind, Help, [], [{[], maps:get(Key, Machine)}]}
         || #{} = Machine <- [weir_report:machine()], {Name, Kind, Help, Key} <- machine_metrics()] ++
        [{Name, gauge, Help, [limiter], [{[Limiter], maps:get(Key, Most)} || {Limiter, Most} <- weir_report:exceeded()]}
         || {Name, Help, Key} <- overshoot_metrics()] ++
        [{Name, Kind, Help, [], [{[], maps:get(Key, Owned)}]}
         || Owned <- [weir_roster:owned()], {Name, Kind, Help, Key} <- owner_metrics()] ++
        [{Name, Kind, Help, [node], [{[Node], maps:get(Key, Traffic)} || {Node, Traffic} <- weir_report:traffic()]}
         || {Name, Kind, Help, Key} <- traffic_metrics()] ++
        peer_metrics(weir_report:peers()).

%% The memory of a limiter is that of its table, and what the machine holds of its keys.
with_machine(Stats) ->
    Bytes = weir_report:bytes([Limiter || #{name := Limiter} <- Stats]),
    [S#{memory_bytes := Table + maps:get(Limiter, Bytes, 0)} || #{name := Limiter, memory_bytes := Table} = S <- Stats].

limiter_metrics() ->
    [{weir_allowed_total, counter, <<"Decisions that allowed">>, allowed},
     {weir_denied_total, counter, <<"Decisions that denied">>, denied},
     {weir_shadow_denied_total, counter,
      <<"Decisions that would have denied, but the limiter is in shadow">>, shadow_denied},
     {weir_failed_total, counter, <<"Decisions that weir could not make, answered as on_error says">>, failed},
     {weir_keys, gauge, <<"Keys held, expired ones included until they are swept">>, keys},
     {weir_max_keys, gauge, <<"Keys that the limiter may hold">>, max_keys},
     {weir_evicted_keys_total, counter, <<"Keys that were evicted from a full table">>, evicted_keys},
     {weir_evicted_tokens_total, counter, <<"Tokens that the evicted keys had used">>, evicted_tokens},
     {weir_memory_bytes, gauge, <<"Memory of the limiter's keys: its table, and what is kept of them for other nodes">>, memory_bytes}].

clock_metrics() ->
    [{weir_clock_offset_seconds, gauge, <<"weir's clock less the system's, at the last comparison">>, offset},
     {weir_clock_steps_total, counter, <<"Steps of the system's clock that weir's has slewed after">>, steps}].

machine_metrics() ->
    [{weir_nodes_live, gauge, <<"Nodes that limit together now, this one too">>, live},
     {weir_nodes_registered, gauge, <<"Nodes that belong to the cluster, those out of reach too">>, registered},
     {weir_records_sent_total, counter, <<"Records of admitted births that were made, each sent to all other nodes">>, records_sent},
     {weir_records_applied_total, counter, <<"Records of other nodes that were counted">>, records_applied},
     {weir_records_duplicate_total, counter, <<"Records that came again, and were not counted again">>, duplicates},
     {weir_records_refused_total, counter, <<"Records that could not be counted, for the time being">>, refused},
     {weir_records_repaired_total, counter, <<"Records and chunks that were sent again on demand">>, repaired},
     {weir_births_dropped_total, counter, <<"Admitted requests that did not fit on the way to the replicator">>, dropped_births},
     {weir_rescans_total, counter, <<"Times that tables were compared with the replicator after such drops">>, rescans},
     {weir_rescanned_keys_total, counter, <<"Keys compared by these rescans">>, rescanned_keys},
     {weir_state_copies_total, counter, <<"Copies of another node's state that were taken">>, copies},
     {weir_state_copies_abandoned_total, counter, <<"Copies of another node's state that no node gave, so that this node went on without">>,
      copies_abandoned},
     {weir_told_keys_total, counter, <<"Keys whose unsent tokens were told to the next node, each time">>, told},
     {weir_estates_total, counter, <<"Keys whose unsent tokens this node published for a node that died">>, estates},
     {weir_lost_copies_total, counter, <<"Copies of other nodes' unsent tokens that there was no room for">>, lost_copies},
     {weir_shelved_records_total, counter, <<"Records of limiters that this node didn't know yet when they came">>, shelved},
     {weir_shelved_records_lost_total, counter, <<"Of these, those that there was no room for">>, lost_shelved},
     {weir_dropped_records_total, counter, <<"Own records that this node could not keep for nodes out of reach">>, dropped},
     {weir_lost_records_total, counter, <<"Own records that were gone when a copy needed them">>, lost_own_records}].

overshoot_metrics() ->
    [{weir_overshoot_tokens, <<"The most that a key was found above its capacity when births of other nodes became known">>, exceeded},
     {weir_overshoot_expected_tokens, <<"What arrivals and delay let expect of that at that moment">>, expected}].

owner_metrics() ->
    [{weir_exact_asked_total, counter, <<"Decisions of scope exact that other nodes, the keys' owners, were asked for">>, asked},
     {weir_exact_answered_total, counter, <<"Decisions of scope exact that were made for other nodes, as the keys' owner">>, answered},
     {weir_exact_fallback_total, counter,
      <<"Decisions of scope exact that were made on what this node knows, as no owner answered in time">>, here}].

traffic_metrics() ->
    [{weir_peer_sent_frames_total, counter, <<"Frames sent to the node">>, sent_frames},
     {weir_peer_sent_bytes_total, counter, <<"Bytes of these">>, sent_bytes},
     {weir_peer_sent_repair_frames_total, counter, <<"Of the frames sent, those that repair what was lost">>, sent_repair_frames},
     {weir_peer_sent_heartbeat_frames_total, counter, <<"Of the frames sent, signs of life">>, sent_heartbeat_frames},
     {weir_peer_received_frames_total, counter, <<"Frames that came from the node">>, received_frames},
     {weir_peer_received_bytes_total, counter, <<"Bytes of these">>, received_bytes},
     {weir_peer_dropped_frames_total, counter, <<"Frames for the node that were dropped: no connection, or a full outbox">>,
      dropped_frames},
     {weir_peer_refused_frames_total, counter,
      <<"Frames in the node's name that were not taken: it hasn't said hello, is refused, or didn't send them">>, refused_frames},
     {weir_peer_shed_frames_total, counter, <<"Frames of the node that were dropped unread, as too many waited">>, shed_frames}].

peer_metrics(Peers) ->
    [{weir_peer_clock_offset_seconds, gauge, <<"How far the node's clock is ahead of this one's, as estimated by round trips">>, [node],
      [{[atom_to_binary(Node)], Offset / 1.0e9} || {Node, #{clock_offset_ns := Offset}} <- Peers]},
     {weir_peer_quarantined, gauge, <<"1 while the node's births are refused, as its clock is too far ahead">>, [node],
      [{[atom_to_binary(Node)], case Quarantined of true -> 1; false -> 0 end} || {Node, #{quarantined := Quarantined}} <- Peers]}].

clock() ->
    #{offset_ns := Offset, steps := Steps} = weir_clock:info(),
    #{offset => Offset / 1.0e9, steps => Steps}.
