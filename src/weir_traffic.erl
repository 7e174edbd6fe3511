%% @private
%% @doc Frames and bytes to and from each other node, counted where they pass. The table belongs to the supervisor.
-module(weir_traffic).

-export([make_table/0, count/3, heard/4, forget/1, all/0]).

%% Where each stands in a node's row.
-define(FRAMES_OUT, 2).
-define(BYTES_OUT, 3).
-define(FRAMES_IN, 4).
-define(BYTES_IN, 5).
-define(DROPPED, 6).
-define(SHED, 7).
-define(HEARD, 8).
-define(REPAIR_FRAMES, 9).
-define(REPAIR_BYTES, 10).
-define(BEAT_FRAMES, 11).
-define(BEAT_BYTES, 12).
-define(REFUSED, 13).

%% The caller is its owner.
-spec make_table() -> ok.
make_table() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}, {read_concurrency, true}]),
    ok.

%% @doc Counts what was sent to a node (a frame of so many bytes) or dropped, and what of its frames was shed or refused unread.
-spec count(node(), {sent, data | repair | heartbeat} | dropped | shed | refused, non_neg_integer()) -> ok.
count(Node, {sent, data}, Bytes) -> add(Node, [{?FRAMES_OUT, 1}, {?BYTES_OUT, Bytes}]);
count(Node, {sent, repair}, Bytes) ->
    add(Node, [{?FRAMES_OUT, 1}, {?BYTES_OUT, Bytes}, {?REPAIR_FRAMES, 1}, {?REPAIR_BYTES, Bytes}]);
count(Node, {sent, heartbeat}, Bytes) ->
    add(Node, [{?FRAMES_OUT, 1}, {?BYTES_OUT, Bytes}, {?BEAT_FRAMES, 1}, {?BEAT_BYTES, Bytes}]);
count(Node, dropped, Frames) -> add(Node, [{?DROPPED, Frames}]);
count(Node, shed, Frames) -> add(Node, [{?SHED, Frames}]);
count(Node, refused, Frames) -> add(Node, [{?REFUSED, Frames}]).

%% @doc So many frames, of so many bytes together, came from a node, the last of them now.
-spec heard(node(), pos_integer(), non_neg_integer(), Now :: non_neg_integer()) -> ok.
heard(Node, Frames, Bytes, Now) ->
    add(Node, [{?FRAMES_IN, Frames}, {?BYTES_IN, Bytes}, {?HEARD, 0, -1, Now}]).

add(Node, Changes) ->
    _ = try ets:update_counter(?MODULE, Node, Changes, {Node, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
        catch error:badarg -> stopping
        end,
    ok.

-spec forget(node()) -> ok.
forget(Node) ->
    true = ets:delete(?MODULE, Node),
    ok.

-spec all() -> #{node() => #{atom() => non_neg_integer()}}.
all() ->
    Rows = try ets:tab2list(?MODULE)
           catch error:badarg -> []
           end,
    maps:from_list([{Node, #{sent_frames => FramesOut, sent_bytes => BytesOut, received_frames => FramesIn,
                             received_bytes => BytesIn, dropped_frames => Dropped, shed_frames => Shed, heard_ns => Heard,
                             sent_repair_frames => Repair, sent_repair_bytes => RepairBytes, sent_heartbeat_frames => Beats,
                             sent_heartbeat_bytes => BeatBytes, refused_frames => Refused}}
                    || {Node, FramesOut, BytesOut, FramesIn, BytesIn, Dropped, Shed, Heard, Repair, RepairBytes, Beats, BeatBytes,
                        Refused} <- Rows]).
