%% @private
%% @doc The NIF's entries, and nothing else. The modules of `callers' below call it, each its own part; others call these.
%%
%% Every entry names its worst case. Errors of the caller come back as atoms, which the callers turn into `badarg' with an
%% explanation; `badarg' from here is a fault of weir's own.
-module(weir_nif).

%% scripts/rooms.escript holds it true.
-callers([weir_app, weir_clock, weir_limiters, weir_machine, weir_owner, weir_queue, weir_secret, weir_sweeper, weir_table]).

-export([check/3, check/4, decide/4, check_many/2, decide_many/2, batch_add/3, batch_check/2, batch_decide/2]).
-export([peek/3, explain/3, reset/3, key_hash/2]).
-export([owner_decide/3, owner_stamp/0, owner_learn/3, owner_forget/1, owner_rank/2, owner_raise/1, owner_levels/4]).
-export([put/8, alias/2, convert/1, delete/1, delete_all/0, maintain/0, handle/1, stats/0, set_secret/1,
         rotate_secret/3, rotation_left/0]).
-export([clock_now/0, clock_tick/0, clock_freeze/1, clock_advance/1, clock_thaw/0, clock_info/0]).
-export([queue_new/1, queue_from_list/3, queue_to_list/1, queue_append/2, queue_refill/2, queue_merge/3, queue_analyse/3,
         queue_size/1]).
-export([replica_new/8, replica_step/3, replica_take/3, replica_put_limiter/4, replica_wake/1, replica_intervals/4, replica_vector/1,
         replica_stats/1, replica_held/1, replica_look/1, replica_clock/2, replica_quarantined/2, replica_overshoot/4, replica_most_exceeded/2,
         replica_push/2, replica_drop_limiter/2, replica_reset/6, replica_attach/2, replica_attached/0, replica_detach/0,
         replica_births/0,
         replica_bytes/2]).
-export([nothing/0, nothing/3]).

-export_type([limiter/0, wrong/0, how/0, answer/0, decision/0, look/0, reason/0, ask/0, limiter_number/0, key_hash/0, owned_key/0, outcome/0,
              table_stats/0, wrong_queue/0, event/0, effect/0]).

-on_load(load/0).

%% Raised together with kAbi in c_src/nif/nif.cpp, which refuses to load under another number.
-define(ABI, 7).
-define(NOT_LOADED, erlang:nif_error(weir_nif_not_loaded)).

-type limiter() :: atom() | binary() | reference().
-type wrong() :: unknown_limiter | other_key | long_key | bad_hits.
%% Bits: 1, the key is a term's external format; 2, it is decided here what other nodes are to be asked first.
-type how() :: 0..3.
-type answer() :: {allow, non_neg_integer()} | {deny, pos_integer() | infinity}.
-type look() :: #{allowed := boolean(), limit := pos_integer(), remaining := non_neg_integer(),
                  reset_ms := non_neg_integer(), retry_ms := non_neg_integer() | infinity}.
-type reason() :: ok | limited | shadow | error | partition.
-type decision() :: #{allowed := boolean(), limit := pos_integer(), remaining := non_neg_integer(),
                      reset_ms := non_neg_integer(), retry_ms := non_neg_integer() | infinity, reason := reason()}.
-type table_stats() :: {Keys :: non_neg_integer(), MaxKeys :: pos_integer(), EvictedKeys :: non_neg_integer(),
                        EvictedTokens :: non_neg_integer(), Bytes :: non_neg_integer()}.
%% What other nodes are to decide first: hits above this node's share under `large_hits => claim', and all hits of limiters of
%% `scope => exact'.
-type ask() :: {claim | owner, Number :: limiter_number(), owned_key()}.
%% While keys are carried over after a rotation of the secret, owners are told the hash of before as well.
-type owned_key() :: key_hash() | {key_hash(), Before :: key_hash()}.
-type limiter_number() :: 1..16#ffffffff.
%% The owner's answer; the TAT is the key's after it.
-type outcome() :: {Allowed :: boolean(), Limit :: pos_integer(), Remaining :: non_neg_integer(), ResetMs :: non_neg_integer(),
                    RetryMs :: non_neg_integer() | infinity, TatNs :: non_neg_integer(), reason()}.
-type wrong_queue() :: malformed | unlike_interval | too_many | too_long | too_late | out_of_order.
-type item() :: {limiter(), term(), pos_integer()} | {limiter(), binary(), pos_integer(), external}.
%% `{asks, _}': there are `ask()' among the answers.
-type some(T) :: [T] | {asks, [T | ask()]}.
-type long() :: {long, Batch :: reference(), Rest :: [item()]}.
-type wrong_item() :: {error, Index :: non_neg_integer(), wrong() | bad_item}.

-type node_id() :: 0..16#ffffffff.
-type key_hash() :: 1..16#ffffffffffffffff.
-type event() :: {ask, Ticket :: non_neg_integer(), Limiter :: non_neg_integer(), key_hash(), Hits :: pos_integer()}
               | {arrival, From :: node_id(), Frame :: binary()}
               | tick
               | births
               | {registered, node_id()}
               | {unregistered, node_id()}
               | {incarnation, node_id(), Incarnation :: non_neg_integer()}.
-type effect() :: {answer, Ticket :: non_neg_integer(), Allowed :: boolean()}
                | {send, To :: node_id() | [node_id()], Frame :: binary(), data | repair | heartbeat}.

-spec load() -> ok | {error, {atom(), string()}}.
load() ->
    erlang:load_nif(filename:join(priv_dir(), "weir_nif"), ?ABI).

%% A module that is loaded from outside of its application, as `erl -pa' does, has no priv_dir.
priv_dir() ->
    case code:priv_dir(weir) of
        {error, bad_name} ->
            filename:join(filename:dirname(filename:dirname(code:which(?MODULE))), "priv");
        Dir ->
            Dir
    end.

%% Typically 50 ns. Worst: a key of 64 KB, 30 us; an insert that splits a segment of the table, 150 us.
-spec check(limiter(), term(), pos_integer()) -> answer() | ask() | wrong().
check(_Limiter, _Key, _Hits) -> ?NOT_LOADED.
-spec check(limiter(), term(), pos_integer(), how()) -> answer() | ask() | wrong().
check(_Limiter, _Key, _Hits, _How) -> ?NOT_LOADED.
-spec decide(limiter(), term(), pos_integer(), how()) -> decision() | ask() | wrong().
decide(_Limiter, _Key, _Hits, _How) -> ?NOT_LOADED.

%% Items of four, with an external format for a key, only if Mixed. At most 512 items or 64 KB of keys per call, 50 us. A list
%% that is longer is decoded into a batch, with nothing counted.
-spec check_many([item()], Mixed :: boolean()) -> some(answer()) | long() | wrong_item() | bad_list.
check_many(_Items, _Mixed) -> ?NOT_LOADED.
-spec decide_many([item()], Mixed :: boolean()) -> some(decision()) | long() | wrong_item() | bad_list.
decide_many(_Items, _Mixed) -> ?NOT_LOADED.
%% The next part of the list: as long as the above. One process at a time.
-spec batch_add(Batch :: reference(), [item()], Mixed :: boolean()) -> done | long() | wrong_item() | bad_list.
batch_add(_Batch, _Items, _Mixed) -> ?NOT_LOADED.
%% The answers of one part, as it was added, counted from 0: 40 us.
-spec batch_check(Batch :: reference(), Part :: non_neg_integer()) -> some(answer()) | done.
batch_check(_Batch, _Part) -> ?NOT_LOADED.
-spec batch_decide(Batch :: reference(), Part :: non_neg_integer()) -> some(decision()) | done.
batch_decide(_Batch, _Part) -> ?NOT_LOADED.

%% As `check'.
-spec peek(limiter(), term(), how()) -> look() | wrong().
peek(_Limiter, _Key, _How) -> ?NOT_LOADED.
-spec explain(limiter(), term(), how()) ->
          {look(), Level :: non_neg_integer(), TatNs :: integer(), NowNs :: integer(), IntervalNs :: pos_integer(),
           Shadow :: boolean(), OnError :: allow | deny, table_stats()} | wrong().
explain(_Limiter, _Key, _How) -> ?NOT_LOADED.
%% Of a replicated limiter, the replica and the other nodes are still to be told.
%% A key has a second hash for some time after a rotation of the secret.
-spec reset(limiter(), term(), how()) ->
          ok | {replicated, Number :: pos_integer(), [key_hash()], NowNs :: non_neg_integer()} | wrong().
reset(_Limiter, _Key, _How) -> ?NOT_LOADED.
-spec key_hash(term(), how()) -> pos_integer() | wrong().
key_hash(_Key, _How) -> ?NOT_LOADED.

%% At most 512 items: as long as as many checks, and 3 ns an item and node; more than 100 us on a dirty scheduler. Nodes are known
%% by their places from 1 on, Self 0 owns nothing. The second list is levels to be told to who stands by.
-spec owner_decide([{limiter_number(), owned_key(), Hits :: pos_integer()}], Nodes :: tuple(), Self :: non_neg_integer()) ->
          {[outcome() | unknown | Owner :: pos_integer()], [{Second :: pos_integer(), Levels :: binary()}]}.
owner_decide(_Items, _Nodes, _Self) -> ?NOT_LOADED.
%% What owners said of keys that have no token left; at most 512. The stamp and the time are those before the questions were sent;
%% nothing is learnt of what was forgotten since. 50 us.
-spec owner_learn([{limiter_number(), key_hash(), Limit :: pos_integer(), Remaining :: non_neg_integer(), ResetMs :: non_neg_integer()}],
                  Stamp :: non_neg_integer(), SentNs :: pos_integer()) -> ok.
owner_learn(_Told, _Stamp, _SentNs) -> ?NOT_LOADED.
-spec owner_stamp() -> non_neg_integer().
owner_stamp() -> ?NOT_LOADED.
-spec owner_forget(key_hash() | all) -> ok.
owner_forget(_KeyHash) -> ?NOT_LOADED.
-spec owner_rank(key_hash(), Nodes :: tuple()) -> {Owner :: non_neg_integer(), Second :: non_neg_integer()}.
owner_rank(_Key, _Nodes) -> ?NOT_LOADED.
%% At most 1024 levels, of 20 bytes: 50 us.
-spec owner_raise(Levels :: binary()) -> ok.
owner_raise(_Levels) -> ?NOT_LOADED.
%% Dirty: looks at all keys of limiters of `scope => exact'.
-spec owner_levels(Nodes :: tuple(), Self :: node_id(), Changed :: node_id(), joined | left) ->
          [{Whom :: pos_integer(), Levels :: binary()}].
owner_levels(_Nodes, _Self, _Changed, _How) -> ?NOT_LOADED.

%% Worst: a microsecond for the registry's mutex; `put' of a limiter that doubles the index of names, 2 ms with 16384.
-spec put(Name :: binary(), Capacity :: pos_integer(), IntervalNs :: pos_integer(), MaxKeys :: pos_integer(),
          Shadow :: boolean(), DenyOnError :: boolean(), Transient :: boolean(),
          local | {Number :: 1..16#ffffffff, open | share | closed, admit | claim | owner}) ->
          created | changed | busy | fixed | too_many | same_number.
put(_Name, _Capacity, _IntervalNs, _MaxKeys, _Shadow, _DenyOnError, _Transient, _Replicated) -> ?NOT_LOADED.
-spec alias(atom(), Name :: binary()) -> boolean().
alias(_Atom, _Name) -> ?NOT_LOADED.
-spec delete(Name :: binary()) -> boolean().
delete(_Name) -> ?NOT_LOADED.
-spec delete_all() -> ok.
delete_all() -> ?NOT_LOADED.
-spec handle(Name :: binary()) -> reference() | unknown_limiter.
handle(_Name) -> ?NOT_LOADED.
-spec set_secret(<<_:128>>) -> ok | busy.
set_secret(_Secret) -> ?NOT_LOADED.
%% From now on keys are hashed under this one, and each is carried over when it is asked for next, for so long at most. `busy',
%% and for how many milliseconds more: keys are still carried over from the rotation before; forced, what wasn't carried over by
%% now is forgotten. Some 100 us with thousands of limiters.
-spec rotate_secret(<<_:128>>, MostNs :: non_neg_integer(), Force :: boolean()) -> ok | {busy, LeftMs :: pos_integer()}.
rotate_secret(_Secret, _MostNs, _Force) -> ?NOT_LOADED.
%% For how many milliseconds keys of some limiter will still be carried over.
-spec rotation_left() -> non_neg_integer().
rotation_left() -> ?NOT_LOADED.

%% Four segments of a table per call, up to ten where tables are small: 60 us, 200 us if all must be rebuilt.
-spec convert(Name :: binary()) -> done | more.
convert(_Name) -> ?NOT_LOADED.
-spec maintain() -> done | more.
maintain() -> ?NOT_LOADED.

%% Dirty: a millisecond with thousands of limiters.
-spec stats() -> [{Name :: binary(), Allowed :: non_neg_integer(), Denied :: non_neg_integer(),
                   ShadowDenied :: non_neg_integer(), Failed :: non_neg_integer(), table_stats()}].
stats() -> ?NOT_LOADED.

%% Under 2 us.
-spec clock_now() -> non_neg_integer().
clock_now() -> ?NOT_LOADED.
-spec clock_tick() -> ok.
clock_tick() -> ?NOT_LOADED.
-spec clock_freeze(non_neg_integer()) -> ok.
clock_freeze(_Ns) -> ?NOT_LOADED.
-spec clock_advance(non_neg_integer()) -> ok.
clock_advance(_Ns) -> ?NOT_LOADED.
-spec clock_thaw() -> ok.
clock_thaw() -> ?NOT_LOADED.
-spec clock_info() -> {Source :: atom(), Hertz :: float(), OffsetNs :: integer(), WorstOffsetNs :: integer(),
                       ErrorNs :: integer(), Ticks :: non_neg_integer(), Steps :: non_neg_integer(),
                       Frozen :: boolean()}.
clock_info() -> ?NOT_LOADED.

%% Up to 100 us on a normal scheduler: 32,000 births in one run, 2,900 with a run each. Larger queues, of up to 2^20 births,
%% go to a dirty scheduler: two of 2^19 births merge in 8 to 16 ms, 64 to 86 ms with a run each.
-spec queue_append(binary(), NowMs :: non_neg_integer()) -> binary() | wrong_queue().
queue_append(_Queue, _NowMs) -> ?NOT_LOADED.
-spec queue_refill(binary(), NowNs :: integer()) -> binary() | wrong_queue().
queue_refill(_Queue, _NowNs) -> ?NOT_LOADED.
-spec queue_merge(binary(), binary(), IntoLocalState :: boolean()) ->
          {Merged :: binary(), Updates :: binary()} | wrong_queue().
queue_merge(_Local, _Other, _IntoLocalState) -> ?NOT_LOADED.
%% The same, for 4,000 elements.
-spec queue_from_list(Empty :: binary(), [{non_neg_integer(), non_neg_integer()}], Length :: non_neg_integer()) ->
          binary() | wrong_queue() | bad_item.
queue_from_list(_Empty, _Elements, _Length) -> ?NOT_LOADED.
-spec queue_to_list(binary()) -> [{non_neg_integer(), non_neg_integer()}] | wrong_queue().
queue_to_list(_Queue) -> ?NOT_LOADED.
%% At most 1024 queues: 17 us when they are in the cache.
-spec queue_analyse([{Neighbour, binary()}], Window :: pos_integer(), ThresholdMs :: non_neg_integer()) ->
          [Neighbour] | malformed | too_many | bad_item | bad_list | bad_window | bad_threshold.
queue_analyse(_Deltas, _Window, _ThresholdMs) -> ?NOT_LOADED.
%% Under 1 us.
-spec queue_new(IntervalNs :: pos_integer()) -> binary() | bad_interval.
queue_new(_IntervalNs) -> ?NOT_LOADED.
-spec queue_size(binary()) -> non_neg_integer() | malformed.
queue_size(_Queue) -> ?NOT_LOADED.

%% Of a replica. Who finds it busy goes to a dirty scheduler and waits there.
%%
%% A step: 1 to 2 us for a decision, a record or a heartbeat. On a normal scheduler at most: a frame of 4 KB of records or
%% a tick over 1024 keys, both 100 us; before it 2048 births of the tables, 0.5 ms; a decision that finds 4096 keys
%% waiting to be sent sends them, 1.5 ms. Larger frames, repair, ticks of replicas that hold more, and a part of a rescan
%% (1.5 ms) go to a dirty scheduler.
-spec replica_step(reference(), event(), NowNs :: non_neg_integer()) -> [effect()].
replica_step(_Replica, _Event, _NowNs) -> ?NOT_LOADED.
%% One step of as many frames as some 100 us take, one at least, and the frames that are left. A long frame, as above, is taken alone.
-spec replica_take(reference(), [{node_id(), Frame :: binary()}, ...], NowNs :: non_neg_integer()) ->
          {[effect()], Left :: [{node_id(), Frame :: binary()}]}.
replica_take(_Replica, _Frames, _NowNs) -> ?NOT_LOADED.
-spec replica_new({node_id(), Incarnation :: pos_integer()}, Members :: [node_id()],
                  Neighbours :: [node_id()], Joining :: boolean(), Seed :: non_neg_integer(), StartNs :: non_neg_integer(),
                  Times :: tuple(), Limits :: tuple()) -> reference().
replica_new(_Self, _Members, _Neighbours, _Joining, _Seed, _StartNs, _Times, _Limits) -> ?NOT_LOADED.
%% Dirty: a change of a limiter looks at all keys.
-spec replica_put_limiter(reference(), Limiter :: non_neg_integer(), Terms :: tuple(), NowNs :: non_neg_integer()) ->
          [effect()].
replica_put_limiter(_Replica, _Limiter, _Terms, _NowNs) -> ?NOT_LOADED.
%% Dirty: linear in what is kept for nodes that are away.
-spec replica_held(reference()) -> {State :: non_neg_integer(), Fixed :: non_neg_integer()}.
replica_held(_Replica) -> ?NOT_LOADED.
%% Dirty: 1 us per limiter.
-spec replica_bytes(reference(), [Limiter :: non_neg_integer()]) -> [non_neg_integer()].
replica_bytes(_Replica, _Limiters) -> ?NOT_LOADED.
%% Under 2 us; linear in the number of nodes, and of claims under way.
-spec replica_wake(reference()) -> integer() | infinity.
replica_wake(_Replica) -> ?NOT_LOADED.
-spec replica_intervals(reference(), published | unsent | inherited, Limiter :: non_neg_integer(), key_hash()) ->
          [{StartNs :: non_neg_integer(), Births :: pos_integer()}].
replica_intervals(_Replica, _Which, _Limiter, _Key) -> ?NOT_LOADED.
-spec replica_vector(reference()) -> [{node_id(), Incarnation :: pos_integer(), Upto :: non_neg_integer()}].
replica_vector(_Replica) -> ?NOT_LOADED.
-spec replica_stats(reference()) -> [non_neg_integer()].
replica_stats(_Replica) -> ?NOT_LOADED.
-spec replica_look(reference()) ->
          {Quiet :: boolean(), Copying :: boolean(), Live :: pos_integer(), Registered :: pos_integer()}.
replica_look(_Replica) -> ?NOT_LOADED.
-spec replica_clock(reference(), node_id()) -> {OffsetNs :: integer(), RoundTripNs :: integer()} | unknown.
replica_clock(_Replica, _Peer) -> ?NOT_LOADED.

-spec replica_quarantined(reference(), node_id()) -> boolean().
replica_quarantined(_Replica, _Peer) -> ?NOT_LOADED.
-spec replica_overshoot(reference(), Limiter :: non_neg_integer(), KeyHash :: pos_integer(), NowNs :: non_neg_integer()) ->
          {Expected :: non_neg_integer(), Worst :: non_neg_integer(), Exceeded :: non_neg_integer()}.
replica_overshoot(_Replica, _Limiter, _KeyHash, _NowNs) -> ?NOT_LOADED.
-spec replica_most_exceeded(reference(), Limiter :: non_neg_integer()) ->
          {Expected :: non_neg_integer(), Worst :: non_neg_integer(), Exceeded :: non_neg_integer()}.
replica_most_exceeded(_Replica, _Limiter) -> ?NOT_LOADED.

%% Dirty: look at all keys.
-spec replica_push(reference(), NowNs :: non_neg_integer()) -> [effect()].
replica_push(_Replica, _NowNs) -> ?NOT_LOADED.
-spec replica_drop_limiter(reference(), Limiter :: non_neg_integer()) -> ok.
replica_drop_limiter(_Replica, _Limiter) -> ?NOT_LOADED.
%% Under 2 us; after births of the tables 0.5 ms, during a rescan 1.5 ms.
-spec replica_reset(reference(), Limiter :: non_neg_integer(), key_hash(), TimeNs :: non_neg_integer(), NowNs :: non_neg_integer(),
                    Own :: boolean()) ->
          boolean() | unknown.
replica_reset(_Replica, _Limiter, _Key, _TimeNs, _NowNs, _Own) -> ?NOT_LOADED.
-spec replica_attach(reference(), pid()) -> ok.
replica_attach(_Replica, _Reader) -> ?NOT_LOADED.
-spec replica_attached() -> reference() | none.
replica_attached() -> ?NOT_LOADED.
-spec replica_detach() -> ok.
replica_detach() -> ?NOT_LOADED.
%% Of all time: births that didn't fit into a ring, and what was looked for therefore.
-spec replica_births() -> {Dropped :: non_neg_integer(), Rescans :: non_neg_integer(), Keys :: non_neg_integer()}.
replica_births() -> ?NOT_LOADED.

%% What a call of a NIF costs: for benchmarks.
-spec nothing() -> ok.
nothing() -> ?NOT_LOADED.
-spec nothing(term(), term(), term()) -> ok.
nothing(_A, _B, _C) -> ?NOT_LOADED.
