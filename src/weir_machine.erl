%% @private
%% @doc The typed face of a replica: one node's part of limiters that many nodes hold together.
%%
%% A replica has no clock, no socket and no process. Who runs it brings it time and frames, step by step, and carries out
%% the effects that it answers:
%%
%% ```
%% Machine = weir_machine:new(#{self => 1, members => [1, 2, 3], start => Now}),
%% [] = weir_machine:put_limiter(Machine, 7, #{capacity => 100, interval_ns => 1000000000}, Now),
%% [{answer, 1, true}] = weir_machine:step(Machine, {ask, 1, 7, KeyHash, 1}, Now),
%% Effects = weir_machine:step(Machine, tick, weir_machine:wake(Machine))
%% '''
%%
%% Nodes and limiters are numbers, the same on all nodes. Times are Unix times in nanoseconds by the node's own clock; a time
%% before the last step's counts as the last step's. A handle may be used by many processes, one step at a time: who finds it
%% busy waits, without holding up a scheduler. Wrong arguments raise `badarg' with an explanation; frames may be any bytes.
-module(weir_machine).

-export([new/1, put_limiter/4, push/2, drop_limiter/2, reset/6, step/3, take/3, wake/1]).
-export([attach/2, attached/0, detach/0]).
-export([births/0, bytes/2, published/3, unsent/3, inherited/3, vector/1, stats/1, held/1, quiet/1, copying/1, live/1, registered/1, clock/2, quarantined/2, peer/1, limits/0,
         overshoot/4, most_exceeded/2]).

-export_type([machine/0, config/0, terms/0, event/0, effect/0, node_id/0, key_hash/0, overshoot/0, ns/0]).

-opaque machine() :: reference().
-type ns() :: non_neg_integer().
-type node_id() :: 0..16#ffffffff.
-type limiter_id() :: 0..16#ffffffff.
-type key_hash() :: 1..16#ffffffffffffffff.
-type event() :: weir_nif:event().
-type effect() :: weir_nif:effect().
%% What isn't given is as in include/weir/replica.hpp. Neighbours are the members that it can talk to: all, if not given.
%% `joining' says that the node copies the state of another before it takes part in repair.
-type config() :: #{self := node_id(), members := [node_id()], start := ns(),
                    neighbours => [node_id()], incarnation => pos_integer(), joining => boolean(),
                    seed => non_neg_integer(),
                    gossip_interval | heartbeat_interval | peer_timeout | forget_after | keep_others | future_bound
                    | coalesce_most | long_delay | tell_window => ns(),
                    max_keys | pieces => pos_integer(),
                    max_parked | max_claims | max_resets | max_shelved | max_tells | max_estates | log_bytes | others_bytes | pinned_bytes | piece_keys => non_neg_integer()}.
%% A limiter changes when it is put again with a greater version. `flush_after' 0 is never.
-type terms() :: #{capacity := pos_integer(), interval_ns := pos_integer(), version => pos_integer(),
                   partition => open | share | closed, large_hits => admit | claim | owner,
                   flush_after => ns(), claim_timeout => ns()}.

%% Tokens.
-type overshoot() :: #{expected := non_neg_integer(), worst := non_neg_integer(), exceeded := non_neg_integer()}.

%% Name, the least that it may be, and its default: in the order in which the NIF expects them.
-define(TIMES, [{gossip_interval, 1000000, 300000000}, {heartbeat_interval, 1000000, 500000000},
                {peer_timeout, 0, 2000000000}, {forget_after, 0, 3600000000000}, {keep_others, 0, 5000000000},
                {future_bound, 0, 10000000000}, {coalesce_most, 0, 20000000}, {long_delay, 0, 20000000},
                {tell_window, 1000000, 100000000}]).
-define(LIMITS, [{max_keys, 1, 1 bsl 22}, {max_parked, 0, 1 bsl 20}, {max_claims, 0, 1024},
                 {max_resets, 0, 1 bsl 16}, {max_shelved, 0, 1 bsl 20}, {max_tells, 0, 1 bsl 16}, {max_estates, 0, 1 bsl 16},
                 {log_bytes, 0, 1 bsl 20}, {others_bytes, 0, 1 bsl 20}, {pinned_bytes, 0, 1 bsl 20},
                 {piece_keys, 0, 1 bsl 20}, {pieces, 1, 256}]).
-define(OTHERS, [self, members, start, neighbours, incarnation, joining, seed]).
-define(TERMS, [capacity, interval_ns, version, partition, large_hits, flush_after, claim_timeout]).
-define(STATS, [records_sent, records_applied, duplicates, nacks, repaired, chunks_applied, copies, lost_own_records,
                malformed, refused, evicted_keys, forgotten_births, absences, copies_abandoned, shelved, lost_shelved, told, estates, lost_copies,
                dropped]).

-define(NO_MACHINE, "the machine is not one of weir_machine:new/1").
-define(WORD, 16#ffffffff).
-define(LONG, 16#ffffffffffffffff).
-define(DURATION, 1 bsl 60).
-define(NOW, (1 bsl 61) - 1).

%% @doc The times (nanoseconds) and the limits (numbers) of a configuration: the least that each may be, and its default.
-spec limits() -> {Times :: [{atom(), non_neg_integer(), ns()}], Limits :: [{atom(), non_neg_integer(), non_neg_integer()}]}.
limits() -> {?TIMES, ?LIMITS}.

%% @doc A replica that knows nothing yet. The last handle's end is its own.
-spec new(config()) -> machine().
new(Config) ->
    checked(fun() -> create(Config) end).

create(Config) when is_map(Config) ->
    known(Config, [Name || {Name, _, _} <- ?TIMES ++ ?LIMITS] ++ ?OTHERS),
    Self = integer(self, Config, 0, ?WORD, required),
    Members = nodes(members, Config, required),
    lists:member(Self, Members) orelse wrong("members holds the node itself, ~b", [Self]),
    Neighbours = nodes(neighbours, Config, Members -- [Self]),
    lists:member(Self, Neighbours) andalso wrong("a node is not its own neighbour: ~b", [Self]),
    Neighbours -- Members =:= [] orelse wrong("neighbours are members; these aren't: ~0p", [Neighbours -- Members]),
    weir_nif:replica_new({Self, integer(incarnation, Config, 1, ?LONG, 1)},
                         Members, Neighbours, one_of(joining, Config, [false, true]), integer(seed, Config, 0, ?LONG, 0),
                         integer(start, Config, 0, ?NOW, required), integers(?TIMES, Config), integers(?LIMITS, Config));
create(Config) ->
    wrong("a configuration is a map, not ~0tP", [Config, 8]).

%% @doc Makes a limiter, or changes it if the version is greater than the one it has.
-spec put_limiter(machine(), limiter_id(), terms(), Now :: ns()) -> [effect()].
put_limiter(Machine, Limiter, Terms, Now) ->
    checked(fun() ->
                    weir_nif:replica_put_limiter(reference(Machine), within(limiter, Limiter, 0, ?WORD), terms(Terms), now(Now))
            end).

terms(Terms) when is_map(Terms) ->
    known(Terms, ?TERMS),
    Capacity = integer(capacity, Terms, 1, ?DURATION, required),
    Interval = integer(interval_ns, Terms, 1, ?DURATION, required),
    Capacity * Interval =< ?DURATION orelse wrong("capacity times interval_ns is at most 2^60 ns (36 years)", []),
    {Capacity, Interval, integer(version, Terms, 1, ?WORD, 1), one_of(partition, Terms, [open, share, closed]),
     one_of(large_hits, Terms, [admit, claim, owner]), integer(flush_after, Terms, 0, ?DURATION, 0),
     integer(claim_timeout, Terms, 0, ?DURATION, 100000000)};
terms(Terms) ->
    wrong("terms are a map, not ~0tP", [Terms, 8]).

%% @doc Sends what is unsent of all keys.
-spec push(machine(), Now :: ns()) -> [effect()].
push(Machine, Now) ->
    checked(fun() -> weir_nif:replica_push(reference(Machine), now(Now)) end).

%% @doc Forgets a limiter and its keys.
-spec drop_limiter(machine(), limiter_id()) -> ok.
drop_limiter(Machine, Limiter) ->
    checked(fun() -> weir_nif:replica_drop_limiter(reference(Machine), within(limiter, Limiter, 0, ?WORD)) end).

%% @doc Births of the key before `Time' count no more on this node, whoever tells of them. False if that can't be: `Time' lies in
%% the far future, or too many keys were reset; `unknown' if there is no such limiter. With `own' the other nodes learn of it by a
%% record that the next step sends; `told' is for what another node said.
-spec reset(machine(), limiter_id(), key_hash(), Time :: ns(), Now :: ns(), own | told) -> boolean() | unknown.
reset(Machine, Limiter, Key, Time, Now, Whose) when Whose =:= own; Whose =:= told ->
    checked(fun() ->
                    weir_nif:replica_reset(reference(Machine), within(limiter, Limiter, 0, ?WORD), within(key_hash, Key, 1, ?LONG),
                                           within(time, Time, 0, ?NOW), now(Now), Whose =:= own)
            end).

%% @doc From now on this machine and the node's replicated limiters are one: before each step it takes the births that
%% the tables admitted, after it the tables get the levels that others' births have raised. When births wait, `Pid' gets
%% the message `weir_births', once, and is to make a step (`births', or any other). While births come, {@link wake/1} is
%% 2 ms after the last step, and only an urgent one sends the message: one of a key near its share, or one into a ring
%% that is half full. While no other node is registered, nothing is taken. The machine stays attached when `Pid' ends:
%% its successor finds it with {@link attached/0}, and attaches it again for itself.
-spec attach(machine(), pid()) -> ok.
attach(Machine, Pid) when is_pid(Pid), node(Pid) =:= node() ->
    checked(fun() -> weir_nif:replica_attach(reference(Machine), Pid) end);
attach(_Machine, Pid) ->
    raise(io_lib:format("births are told to a process of this node, not to ~0tP", [Pid, 8])).

-spec attached() -> {ok, machine()} | none.
attached() ->
    case weir_nif:replica_attached() of
        none -> none;
        Machine -> {ok, Machine}
    end.

%% @doc Births are told to no machine any more: replicated limiters are this node's alone.
-spec detach() -> ok.
detach() -> weir_nif:replica_detach().

%% @doc One step. A ticket comes back with the answer, in this step or (hits that ask the other nodes first) in a later one.
-spec step(machine(), event(), Now :: ns()) -> [effect()].
step(Machine, Event, Now) ->
    try
        weir_nif:replica_step(Machine, Event, Now)
    catch
        error:badarg -> raise(what_is_wrong(Machine, Event, Now))
    end.

%% @doc One step of frames, as if of an `arrival' each: of as many from the front as take some 100 us, and at least one. The others
%% come back, to be given to the next step. What the frames make due is sent together. A malformed one is counted, and does nothing.
-spec take(machine(), [{node_id(), Frame :: binary()}, ...], Now :: ns()) -> {[effect()], Left :: [{node_id(), Frame :: binary()}]}.
take(Machine, Frames, Now) ->
    try
        weir_nif:replica_take(Machine, Frames, Now)
    catch
        error:badarg ->
            Wrong = [What || Event <- arrivals(Frames), What <- [what_is_wrong(Machine, Event, Now)], What =/= ?NO_MACHINE],
            raise(hd(Wrong ++ [?NO_MACHINE]))
    end.

arrivals(Frames) when length(Frames) > 0 -> [list_to_tuple([arrival | tuple_to_list(Frame)]) || Frame <- Frames, is_tuple(Frame)];
arrivals(Frames) -> [Frames].

what_is_wrong(Machine, Event, Now) ->
    try
        _ = reference(Machine),
        _ = now(Now),
        event(Event)
    of
        ok -> ?NO_MACHINE
    catch
        throw:{wrong, Message} -> Message
    end.

event({ask, Ticket, Limiter, Key, Hits}) ->
    _ = within(ticket, Ticket, 0, ?LONG),
    _ = within(limiter, Limiter, 0, ?WORD),
    _ = within(key_hash, Key, 1, ?LONG),
    _ = within(hits, Hits, 1, (1 bsl 63) - 1),
    ok;
event({arrival, From, Frame}) ->
    is_binary(Frame) orelse wrong("a frame is a binary, not ~0tP", [Frame, 8]),
    _ = within(node, From, 0, ?WORD),
    ok;
event({Membership, Node}) when Membership =:= registered; Membership =:= unregistered ->
    _ = within(node, Node, 0, ?WORD),
    ok;
event({incarnation, Node, Incarnation}) ->
    _ = within(node, Node, 0, ?WORD),
    _ = within(incarnation, Incarnation, 0, ?LONG),
    ok;
event(Plain) when Plain =:= tick; Plain =:= births ->
    ok;
event(Event) ->
    wrong("there is no such event: ~0tP", [Event, 8]).

%% @doc When the next `tick' is due: at this time or, if it has passed, now.
-spec wake(machine()) -> integer() | infinity.
wake(Machine) ->
    of_machine(Machine, fun weir_nif:replica_wake/1).

%% @doc The busy intervals of a key that other nodes know or have been sent.
-spec published(machine(), limiter_id(), key_hash()) -> [{Start :: ns(), Births :: pos_integer()}].
published(Machine, Limiter, Key) ->
    intervals(published, Machine, Limiter, Key).

%% @doc Those of own births that no other node knows yet.
-spec unsent(machine(), limiter_id(), key_hash()) -> [{Start :: ns(), Births :: pos_integer()}].
unsent(Machine, Limiter, Key) ->
    intervals(unsent, Machine, Limiter, Key).

%% @doc Births of nodes that died, which count here because another node told of them in their place.
-spec inherited(machine(), limiter_id(), key_hash()) -> [{Start :: ns(), Births :: pos_integer()}].
inherited(Machine, Limiter, Key) ->
    intervals(inherited, Machine, Limiter, Key).

intervals(Which, Machine, Limiter, Key) ->
    checked(fun() ->
                    weir_nif:replica_intervals(reference(Machine), Which, within(limiter, Limiter, 0, ?WORD),
                                               within(key_hash, Key, 1, ?LONG))
            end).

%% @doc Of each run of each node, up to which record all are here.
-spec vector(machine()) -> [{node_id(), Incarnation :: pos_integer(), Upto :: non_neg_integer()}].
vector(Machine) ->
    of_machine(Machine, fun weir_nif:replica_vector/1).

%% @doc What was counted, as named in include/weir/replica.hpp; `dropped' are own records that went because of a limit.
-spec stats(machine()) -> #{atom() => non_neg_integer()}.
stats(Machine) ->
    maps:from_list(lists:zip(?STATS, of_machine(Machine, fun weir_nif:replica_stats/1))).

%% @doc Bytes: what grows with keys and traffic, and what each node of the cluster costs.
-spec held(machine()) -> #{state := non_neg_integer(), fixed := non_neg_integer()}.
held(Machine) ->
    {State, Fixed} = of_machine(Machine, fun weir_nif:replica_held/1),
    #{state => State, fixed => Fixed}.

%% @doc What the keys of each limiter take of that.
-spec bytes(machine(), [limiter_id()]) -> [non_neg_integer()].
bytes(Machine, Limiters) ->
    checked(fun() ->
                    weir_nif:replica_bytes(reference(Machine), [within(limiter, Id, 0, ?WORD) || Id <- Limiters])
            end).

%% @doc On the way from the tables to the attached machine: births that didn't fit into a ring, how often the search for
%% them came to its end, and how many keys it compared.
-spec births() -> #{dropped_births := non_neg_integer(), rescans := non_neg_integer(),
                    rescanned_keys := non_neg_integer()}.
births() ->
    {Dropped, Rescans, Keys} = weir_nif:replica_births(),
    #{dropped_births => Dropped, rescans => Rescans, rescanned_keys => Keys}.

%% @doc Whether nothing waits to be sent and nothing is known to be missing.
-spec quiet(machine()) -> boolean().
quiet(Machine) -> look(1, Machine).

%% @doc Whether a copy of another node's state is under way.
-spec copying(machine()) -> boolean().
copying(Machine) -> look(2, Machine).

%% @doc The number of nodes that take part now, this one too.
-spec live(machine()) -> pos_integer().
live(Machine) -> look(3, Machine).

%% @doc The number of members.
-spec registered(machine()) -> pos_integer().
registered(Machine) -> look(4, Machine).

look(Place, Machine) ->
    element(Place, of_machine(Machine, fun weir_nif:replica_look/1)).

%% @doc The estimated offset of a peer's clock from this node's, and the round trip; unknown before the first echo.
-spec clock(machine(), node_id()) -> {OffsetNs :: integer(), RoundTripNs :: integer()} | unknown.
clock(Machine, Peer) ->
    checked(fun() -> weir_nif:replica_clock(reference(Machine), within(node, Peer, 0, ?WORD)) end).

%% @doc Whether the peer's births are refused, because they lay further in the future than `future_bound'.
-spec quarantined(machine(), node_id()) -> boolean().
quarantined(Machine, Peer) ->
    checked(fun() -> weir_nif:replica_quarantined(reference(Machine), within(node, Peer, 0, ?WORD)) end).

%% @doc How another node stands to the attached machine, if there is one: the offset of its clock and the round trip are missing
%% before the first echo.
-spec peer(node_id()) -> #{quarantined := boolean(), clock_offset_ns => integer(), round_trip_ns => integer()}.
peer(Peer) ->
    case attached() of
        none ->
            #{quarantined => false};
        {ok, Machine} ->
            About = #{quarantined => quarantined(Machine, Peer)},
            case clock(Machine, Peer) of
                unknown -> About;
                {Offset, RoundTrip} -> About#{clock_offset_ns => Offset, round_trip_ns => RoundTrip}
            end
    end.

%% @doc How far the key may be admitted beyond its capacity at this moment, and is (replica.hpp says what each number means).
-spec overshoot(machine(), limiter_id(), key_hash(), NowNs :: non_neg_integer()) -> overshoot().
overshoot(Machine, Limiter, Key, Now) ->
    named(checked(fun() ->
                          weir_nif:replica_overshoot(reference(Machine), within(limiter, Limiter, 0, ?WORD),
                                                     within(key_hash, Key, 1, ?LONG), within(now, Now, 0, ?NOW))
                  end)).

%% @doc The most that any key of the limiter exceeded its capacity, with what was expected then.
-spec most_exceeded(machine(), limiter_id()) -> overshoot().
most_exceeded(Machine, Limiter) ->
    named(checked(fun() -> weir_nif:replica_most_exceeded(reference(Machine), within(limiter, Limiter, 0, ?WORD)) end)).

named({Expected, Worst, Exceeded}) ->
    #{expected => Expected, worst => Worst, exceeded => Exceeded}.

%% ---- internal ----

of_machine(Machine, Entry) ->
    checked(fun() -> Entry(reference(Machine)) end).

%% What is wrong becomes a `badarg' with an explanation.
checked(Do) ->
    try
        Do()
    catch
        throw:{wrong, Message} -> raise(Message);
        error:badarg -> raise(?NO_MACHINE)
    end.

-spec raise(io_lib:chars()) -> no_return().
raise(Message) ->
    erlang:error(badarg, none, [{error_info, #{module => weir_error, cause => {message, Message}}}]).

-spec wrong(io:format(), [term()]) -> no_return().
wrong(Format, Args) ->
    throw({wrong, io_lib:format(Format, Args)}).

reference(Machine) when is_reference(Machine) -> Machine;
reference(Machine) -> wrong("a machine comes from weir_machine:new/1; got ~0tP", [Machine, 8]).

now(Now) -> within(now, Now, 0, ?NOW).

within(_Name, Value, Least, Most) when is_integer(Value), Value >= Least, Value =< Most -> Value;
within(Name, Value, Least, Most) -> wrong("~s is an integer from ~b to ~b, not ~0tP", [Name, Least, Most, Value, 8]).

integer(Name, Map, Least, Most, Default) ->
    case {Map, Default} of
        {#{Name := Value}, _} -> within(Name, Value, Least, Most);
        {#{}, required} -> wrong("~s must be given and is missing", [Name]);
        {#{}, _} -> Default
    end.

integers(Names, Map) ->
    list_to_tuple([integer(Name, Map, Least, ?DURATION, Default) || {Name, Least, Default} <- Names]).

%% The first is the default.
one_of(Name, Map, [Default | _] = Values) ->
    Value = maps:get(Name, Map, Default),
    lists:member(Value, Values) orelse wrong("~s is one of ~0p, not ~0tP", [Name, Values, Value, 8]),
    Value.

nodes(Name, Map, Default) ->
    case {Map, Default} of
        {#{Name := Nodes}, _} when is_list(Nodes), length(Nodes) =< 4096 -> lists:usort([within(node, N, 0, ?WORD) || N <- Nodes]);
        {#{Name := Nodes}, _} -> wrong("~s is a list of at most 4096 nodes, not ~0tP", [Name, Nodes, 8]);
        {#{}, required} -> wrong("~s must be given and is missing", [Name]);
        {#{}, _} -> Default
    end.

known(Map, Names) ->
    case maps:keys(Map) -- Names of
        [] -> ok;
        [Unknown | _] -> wrong("there is no option ~0tP; there are ~0p", [Unknown, 8, lists:sort(Names)])
    end.
