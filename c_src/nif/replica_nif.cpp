// The replica machine as a resource: one step at a time, effects as terms.
//
// A replica is single-threaded, so the resource has a mutex. An entry that finds it taken doesn't wait on a normal
// scheduler: it goes to a dirty one and waits there. So do steps that may take long (`long_step`): a large frame, one
// that asks for repair or brings it, a tick of a replica that holds much.
//
// The last handle's garbage collection destroys the replica where it happens: about 10 ns a key.
#include "replica_nif.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "clock/clock.hpp"
#include "term.hpp"
#include "weir/node.hpp"

namespace weir::nif {

namespace {

// Beyond these a step goes to a dirty scheduler. A frame of records takes about 100 us for 4 KB (200 records); a tick
// looks at a 64th of the keys, may send the unsent births of all of them, and may copy the log.
constexpr std::size_t kLargeFrame = 4096;
constexpr std::size_t kManyKeys = 1024;
// Of many frames, one call takes as many as come to a large one, each with so much on top of its bytes.
constexpr std::size_t kFrameCost = 64;
constexpr std::size_t kLongLog = 16384;
// A process' time slice: so much of it as a step took is taken off. (A step that takes Node::kBirths is half of one.)
constexpr std::int64_t kTimeslice = 1'000'000;

constexpr ErlNifUInt64 kDurationMax = std::uint64_t{1} << 60;
constexpr ErlNifSInt64 kNowMax = (std::int64_t{1} << 61) - 1;

ErlNifResourceType* replica_type = nullptr;

struct Machine {
  explicit Machine(const ReplicaConfig& config) : node(config, state->registry) {
    mutex = enif_mutex_create(const_cast<char*>("weir_replica"));
    if (mutex == nullptr) throw std::bad_alloc();
  }
  ~Machine() { enif_mutex_destroy(mutex); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  ErlNifMutex* mutex;
  Node node;
  Effects effects;  // scratch
  Replica& replica() noexcept { return node.replica(); }
};

// Memory of the resource, which the emulator allocates before there is a machine in it.
struct Slot {
  std::optional<Machine> machine;
};

void drop_replica(ErlNifEnv*, void* object) noexcept { static_cast<Slot*>(object)->~Slot(); }

class Locked {
 public:
  // Waits only if `wait`; else it may come out without the lock.
  Locked(Machine& machine, bool wait) noexcept : machine_(&machine) {
    if (wait) {
      enif_mutex_lock(machine.mutex);
    } else if (enif_mutex_trylock(machine.mutex) != 0) {
      machine_ = nullptr;
    }
  }
  ~Locked() {
    if (machine_ != nullptr) enif_mutex_unlock(machine_->mutex);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  explicit operator bool() const noexcept { return machine_ != nullptr; }

 private:
  Machine* machine_;
};

Machine* get_machine(ErlNifEnv* env, ERL_NIF_TERM term) noexcept {
  void* object;
  return enif_get_resource(env, term, replica_type, &object) ? &*static_cast<Slot*>(object)->machine : nullptr;
}

bool is_attached(const Machine& machine) noexcept {
  const auto* const slot = static_cast<const Slot*>(state->replica.load(std::memory_order_acquire));
  return slot != nullptr && &*slot->machine == &machine;
}

// Entries that need the machine: F(env, machine, argv), on this scheduler if the machine is free, else on a dirty one.
using Use = ERL_NIF_TERM(ErlNifEnv*, Machine&, const ERL_NIF_TERM[]);

bool on_dirty_scheduler() noexcept { return enif_thread_type() == ERL_NIF_THR_DIRTY_CPU_SCHEDULER; }

template <Use* F>
ERL_NIF_TERM with_machine(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  Machine* const machine = get_machine(env, argv[0]);
  if (machine == nullptr) return enif_make_badarg(env);
  if (const Locked lock(*machine, on_dirty_scheduler()); lock) return F(env, *machine, argv);
  return enif_schedule_nif(env, "replica", ERL_NIF_DIRTY_JOB_CPU_BOUND, guarded<with_machine<F>>, argc, argv);
}

// Decoding.

bool get_node(ErlNifEnv* env, ERL_NIF_TERM term, NodeId& node) noexcept {
  unsigned value;
  if (!enif_get_uint(env, term, &value)) return false;
  node.v = value;
  return true;
}

bool get_limiter_id(ErlNifEnv* env, ERL_NIF_TERM term, LimiterId& id) noexcept {
  unsigned value;
  if (!enif_get_uint(env, term, &value)) return false;
  id.v = value;
  return true;
}

bool get_key_hash(ErlNifEnv* env, ERL_NIF_TERM term, KeyHash& key) noexcept {
  ErlNifUInt64 value;
  if (!enif_get_uint64(env, term, &value) || value == 0) return false;
  key.v = value;
  return true;
}

bool get_now(ErlNifEnv* env, ERL_NIF_TERM term, Nanos& now) noexcept {
  ErlNifSInt64 value;
  if (!enif_get_int64(env, term, &value) || value < 0 || value > kNowMax) return false;
  now.v = value;
  return true;
}

bool get_duration(ErlNifEnv* env, ERL_NIF_TERM term, Nanos& duration) noexcept {
  ErlNifUInt64 value;
  if (!enif_get_uint64(env, term, &value) || value > kDurationMax) return false;
  duration.v = static_cast<std::int64_t>(value);
  return true;
}

bool get_size(ErlNifEnv* env, ERL_NIF_TERM term, std::size_t least, std::size_t& size) noexcept {
  ErlNifUInt64 value;
  if (!enif_get_uint64(env, term, &value) || value < least || value > kDurationMax) return false;
  size = static_cast<std::size_t>(value);
  return true;
}

// A list in ascending order, without duplicates.
bool get_nodes(ErlNifEnv* env, ERL_NIF_TERM list, std::vector<NodeId>& nodes) {
  for (ERL_NIF_TERM head; enif_get_list_cell(env, list, &head, &list);) {
    NodeId node;
    if (!get_node(env, head, node) || (!nodes.empty() && node <= nodes.back()) || nodes.size() == kVectorMax)
      return false;
    nodes.push_back(node);
  }
  return enif_is_empty_list(env, list);
}

// {Gossip, Heartbeat, PeerTimeout, ForgetAfter, KeepOthers, FutureBound, CoalesceMost, LongDelay, TellWindow} in ns
bool get_times(ErlNifEnv* env, ERL_NIF_TERM term, ReplicaConfig& config) noexcept {
  constexpr Nanos kLeast{1'000'000};  // of what comes again and again
  int arity;
  const ERL_NIF_TERM* times;
  return enif_get_tuple(env, term, &arity, &times) && arity == 9 &&
         get_duration(env, times[0], config.gossip_interval) && config.gossip_interval >= kLeast &&
         get_duration(env, times[1], config.heartbeat_interval) && config.heartbeat_interval >= kLeast &&
         get_duration(env, times[2], config.peer_timeout) && get_duration(env, times[3], config.forget_after) &&
         get_duration(env, times[4], config.keep_others) && get_duration(env, times[5], config.future_bound) &&
         get_duration(env, times[6], config.coalesce_most) && get_duration(env, times[7], config.long_delay) &&
         get_duration(env, times[8], config.tell_window) && config.tell_window >= kLeast;
}

// {MaxKeys, MaxParked, MaxClaims, MaxResets, MaxShelved, MaxTells, MaxEstates, LogBytes, OthersBytes, PinnedBytes,
// PieceKeys, Pieces}
bool get_limits(ErlNifEnv* env, ERL_NIF_TERM term, ReplicaConfig& config) noexcept {
  int arity;
  const ERL_NIF_TERM* sizes;
  HistoryLimits& history = config.history;
  return enif_get_tuple(env, term, &arity, &sizes) && arity == 12 && get_size(env, sizes[0], 1, config.max_keys) &&
         get_size(env, sizes[1], 0, config.max_parked) && get_size(env, sizes[2], 0, config.max_claims) &&
         get_size(env, sizes[3], 0, config.max_resets) && get_size(env, sizes[4], 0, config.max_shelved) &&
         get_size(env, sizes[5], 0, config.max_tells) && get_size(env, sizes[6], 0, config.max_estates) &&
         get_size(env, sizes[7], 0, history.log_bytes) && get_size(env, sizes[8], 0, history.others_bytes) &&
         get_size(env, sizes[9], 0, history.pinned_bytes) && get_size(env, sizes[10], 0, history.piece_keys) &&
         get_size(env, sizes[11], 1, history.pieces);
}

// replica_new({Self, Incarnation}, Members, Neighbours, Joining, Seed, Start, Times, Limits) -> Replica
ERL_NIF_TERM create(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  ReplicaConfig config;
  int arity;
  const ERL_NIF_TERM* self;
  ErlNifUInt64 incarnation, seed;
  if (!enif_get_tuple(env, argv[0], &arity, &self) || arity != 2 || !get_node(env, self[0], config.self) ||
      !enif_get_uint64(env, self[1], &incarnation) || incarnation == 0 || !get_nodes(env, argv[1], config.members) ||
      !get_nodes(env, argv[2], config.neighbours) || (argv[3] != atoms.true_ && argv[3] != atoms.false_) ||
      !enif_get_uint64(env, argv[4], &seed) || !get_now(env, argv[5], config.start) ||
      !get_times(env, argv[6], config) || !get_limits(env, argv[7], config))
    return enif_make_badarg(env);
  config.incarnation = incarnation;
  config.seed = seed;
  config.joining = argv[3] == atoms.true_;
  const auto& members = config.members;
  const auto& neighbours = config.neighbours;
  if (!std::binary_search(members.begin(), members.end(), config.self) ||
      std::binary_search(neighbours.begin(), neighbours.end(), config.self) ||
      !std::includes(members.begin(), members.end(), neighbours.begin(), neighbours.end()))
    return enif_make_badarg(env);
  void* const memory = enif_alloc_resource(replica_type, sizeof(Slot));
  if (memory == nullptr) throw std::bad_alloc();
  auto* const slot = new (memory) Slot;
  ERL_NIF_TERM made = 0;
  try {
    slot->machine.emplace(config);
    made = enif_make_resource(env, slot);
  } catch (...) {
    enif_release_resource(slot);
    throw;
  }
  enif_release_resource(slot);
  return made;
}

// Effects.

ERL_NIF_TERM make_traffic(Traffic traffic) noexcept {
  switch (traffic) {
    case Traffic::data:
      return atoms.data;
    case Traffic::repair:
      return atoms.repair;
    default:
      return atoms.heartbeat;
  }
}

// [{answer, Ticket, Allowed} | {send, To | [To], Frame, Traffic}], the answers first. Sends of one frame are together.
ERL_NIF_TERM make_effects(ErlNifEnv* env, const Effects& effects) {
  std::vector<ERL_NIF_TERM> made;
  made.reserve(effects.answers.size() + effects.sends.size());
  for (const Answer& answer : effects.answers) {
    made.push_back(enif_make_tuple3(env, atoms.answer, enif_make_uint64(env, answer.ticket),
                                    answer.allowed ? atoms.true_ : atoms.false_));
  }
  std::vector<ERL_NIF_TERM> to;
  for (std::size_t i = 0; i < effects.sends.size();) {
    const Send& first = effects.sends[i];
    to.clear();
    for (; i < effects.sends.size(); ++i) {
      const Send& send = effects.sends[i];
      if (send.frame != first.frame || send.traffic != first.traffic) break;
      to.push_back(enif_make_uint(env, send.to.v));
    }
    const Bytes& bytes = effects.frames[first.frame];
    ERL_NIF_TERM frame;
    std::copy_n(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                enif_make_new_binary(env, bytes.size(), &frame));
    const ERL_NIF_TERM whom =
        to.size() == 1 ? to[0] : enif_make_list_from_array(env, to.data(), static_cast<unsigned>(to.size()));
    made.push_back(enif_make_tuple4(env, atoms.send, whom, frame, make_traffic(first.traffic)));
  }
  return enif_make_list_from_array(env, made.data(), static_cast<unsigned>(made.size()));
}

// Steps.

bool get_event(ErlNifEnv* env, ERL_NIF_TERM term, Event& event) {
  if (term == atoms.tick || term == atoms.births) {  // births come before any step
    event = Tick{};
    return true;
  }
  int arity;
  const ERL_NIF_TERM* parts;
  if (!enif_get_tuple(env, term, &arity, &parts) || arity == 0) return false;
  if (parts[0] == atoms.ask && arity == 5) {
    Ask ask;
    ErlNifUInt64 ticket;
    if (!enif_get_uint64(env, parts[1], &ticket) || !get_limiter_id(env, parts[2], ask.limiter) ||
        !get_key_hash(env, parts[3], ask.key) || get_hits(env, parts[4], ask.hits) != 0)
      return false;
    ask.ticket = ticket;
    event = ask;
    return true;
  }
  if (parts[0] == atoms.arrival && arity == 3) {
    Arrival arrival;
    std::string_view bytes;
    if (!get_node(env, parts[1], arrival.from) || !get_bytes(env, parts[2], bytes)) return false;
    arrival.frame = std::as_bytes(std::span(bytes));
    event = arrival;
    return true;
  }
  NodeId node;
  if (arity < 2 || !get_node(env, parts[1], node)) return false;
  if (ErlNifUInt64 run; parts[0] == atoms.incarnation && arity == 3 && enif_get_uint64(env, parts[2], &run)) {
    event = Introduced{node, run};
  } else if (parts[0] == atoms.registered && arity == 2) {
    event = Registered{node};
  } else if (parts[0] == atoms.unregistered && arity == 2) {
    event = Unregistered{node};
  } else {
    return false;
  }
  return true;
}

// A step, between the tables if the machine is attached to them.
template <class Action>
auto step_node(ErlNifEnv* env, Machine& machine, Nanos now, Action action) {
  if (!is_attached(machine)) return machine.node.step_alone(now, action);
  auto result = machine.node.step_attached(now, clock_now, action);
  if (machine.node.again()) wake_again(env);
  return result;
}

bool long_frame(std::span<const std::byte> frame) noexcept { return frame.size() > kLargeFrame || is_repair(frame); }

bool long_step(const Event& event, const Machine& machine) noexcept {
  const Replica& replica = machine.node.replica();
  if (machine.node.rescans() || replica.moves_segments()) return true;
  if (std::holds_alternative<Ask>(event)) return false;
  if (std::holds_alternative<Tick>(event) && replica.wake() > machine.node.last()) return false;  // births alone
  if (const auto* const arrival = std::get_if<Arrival>(&event)) return long_frame(arrival->frame);
  return replica.keys() > kManyKeys || replica.log_bytes() > kLongLog;
}

// Steps follow each other without a pause while births come: accounted as less than they take, they hold a scheduler
// for long.
void consume_timeslice(ErlNifEnv* env, std::int64_t took) noexcept {
  enif_consume_timeslice(env, static_cast<int>(std::clamp<std::int64_t>(took * 100 / kTimeslice, 1, 100)));
}

// replica_step(Replica, Event, Now) -> Effects
ERL_NIF_TERM step(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  Machine* const machine = get_machine(env, argv[0]);
  Event event;
  Nanos now;
  if (machine == nullptr || !get_event(env, argv[1], event) || !get_now(env, argv[2], now))
    return enif_make_badarg(env);
  const bool dirty = on_dirty_scheduler();
  {
    const Locked lock(*machine, dirty);
    if (lock) machine->node.begin(now);
    if (lock && (dirty || !long_step(event, *machine))) {
      machine->effects.clear();
      const std::int64_t start = enif_monotonic_time(ERL_NIF_NSEC);
      const ERL_NIF_TERM effects = step_node(env, *machine, now, [&](Replica& replica, Nanos time) {
        replica.step(event, time, machine->effects);
        return make_effects(env, machine->effects);
      });
      if (!dirty) consume_timeslice(env, enif_monotonic_time(ERL_NIF_NSEC) - start);
      return effects;
    }
  }
  return enif_schedule_nif(env, "replica_step", ERL_NIF_DIRTY_JOB_CPU_BOUND, guarded<step>, argc, argv);
}

bool get_arrival(ErlNifEnv* env, ERL_NIF_TERM term, Arrival& arrival) noexcept {
  int arity;
  const ERL_NIF_TERM* parts;
  std::string_view bytes;
  if (!enif_get_tuple(env, term, &arity, &parts) || arity != 2 || !get_node(env, parts[0], arrival.from) ||
      !get_bytes(env, parts[1], bytes))
    return false;
  arrival.frame = std::as_bytes(std::span(bytes));
  return true;
}

// The frames of one call: from the front of `list`, which is what is left of it after that. A long frame is alone.
// False if something isn't a frame.
bool get_arrivals(ErlNifEnv* env, ERL_NIF_TERM& list, std::vector<Arrival>& arrivals) {
  std::size_t cost = 0;
  ERL_NIF_TERM head, tail;
  for (; enif_get_list_cell(env, list, &head, &tail); list = tail) {
    Arrival arrival;
    if (!get_arrival(env, head, arrival)) return false;
    cost += kFrameCost + arrival.frame.size();
    if (!arrivals.empty() && (cost > kLargeFrame || long_frame(arrivals.back().frame) || long_frame(arrival.frame)))
      return true;
    arrivals.push_back(arrival);
  }
  return enif_is_empty_list(env, list);
}

// replica_take(Replica, [{From, Frame}], Now) -> {Effects, Left}: one step of as many of them as take some 100 us,
// and the others. At least one is taken.
ERL_NIF_TERM take(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  Machine* const machine = get_machine(env, argv[0]);
  ERL_NIF_TERM left = argv[1];
  std::vector<Arrival> arrivals;
  Nanos now;
  if (machine == nullptr || !get_arrivals(env, left, arrivals) || arrivals.empty() || !get_now(env, argv[2], now))
    return enif_make_badarg(env);
  const bool dirty = on_dirty_scheduler();
  if (const Locked lock(*machine, dirty); lock && (dirty || !long_step(arrivals.front(), *machine))) {
    machine->effects.clear();
    const std::int64_t start = enif_monotonic_time(ERL_NIF_NSEC);
    const ERL_NIF_TERM effects = step_node(env, *machine, now, [&](Replica& replica, Nanos time) {
      for (const Arrival& arrival : arrivals) {
        if (const auto subject = first_subject(arrival.frame)) replica.prefetch(subject->limiter, subject->key);
      }
      for (const Arrival& arrival : arrivals) replica.take(arrival, time, machine->effects);
      replica.send_due(time, machine->effects);
      return make_effects(env, machine->effects);
    });
    if (!dirty) consume_timeslice(env, enif_monotonic_time(ERL_NIF_NSEC) - start);
    return enif_make_tuple2(env, effects, left);
  }
  return enif_schedule_nif(env, "replica_take", ERL_NIF_DIRTY_JOB_CPU_BOUND, guarded<take>, argc, argv);
}

bool get_terms(ErlNifEnv* env, ERL_NIF_TERM term, ReplicatedTerms& terms) noexcept {
  int arity;
  const ERL_NIF_TERM* parts;
  ErlNifSInt64 capacity, interval;
  if (!enif_get_tuple(env, term, &arity, &parts) || arity != 7 || !enif_get_int64(env, parts[0], &capacity) ||
      !enif_get_int64(env, parts[1], &interval) || !enif_get_uint(env, parts[2], &terms.version) ||
      terms.version == 0 || !get_duration(env, parts[5], terms.flush_after) ||
      !get_duration(env, parts[6], terms.claim_timeout))
    return false;
  terms.policy = {{capacity}, {interval}};
  if (parts[3] != atoms.open && parts[3] != atoms.share && parts[3] != atoms.closed) return false;
  if (parts[4] != atoms.admit && parts[4] != atoms.claim && parts[4] != atoms.owner) return false;
  terms.partition = parts[3] == atoms.open    ? Partition::open
                    : parts[3] == atoms.share ? Partition::share
                                              : Partition::closed;
  terms.large_hits = parts[4] == atoms.admit   ? LargeHits::admit
                     : parts[4] == atoms.claim ? LargeHits::claim
                                               : LargeHits::owner;
  return terms.policy.valid();
}

// replica_put_limiter(Replica, Id, {Capacity, Interval, Version, Partition, LargeHits, FlushAfter, ClaimTimeout}, Now)
// -> Effects. Always dirty: a change looks at all keys.
ERL_NIF_TERM put_limiter(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  LimiterId id;
  ReplicatedTerms terms;
  Nanos now;
  if (!get_limiter_id(env, argv[1], id) || !get_terms(env, argv[2], terms) || !get_now(env, argv[3], now))
    return enif_make_badarg(env);
  machine.effects.clear();
  // The births that come first are of the terms before.
  return step_node(env, machine, now, [&](Replica& replica, Nanos time) {
    replica.put_limiter(id, terms, time, machine.effects);
    return make_effects(env, machine.effects);
  });
}

// replica_push(Replica, Now) -> Effects. Dirty, as it looks at all keys.
ERL_NIF_TERM push(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  Nanos now;
  if (!get_now(env, argv[1], now)) return enif_make_badarg(env);
  machine.effects.clear();
  return step_node(env, machine, now, [&](Replica& replica, Nanos time) {
    replica.push(time, machine.effects);
    return make_effects(env, machine.effects);
  });
}

// replica_drop_limiter(Replica, Id) -> ok. Dirty, as it looks at all keys.
ERL_NIF_TERM drop_limiter(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  LimiterId id;
  if (!get_limiter_id(env, argv[1], id)) return enif_make_badarg(env);
  machine.replica().drop_limiter(id);
  return atoms.ok;
}

// replica_reset(Replica, Limiter, Key, Time, Now, Own) -> true | false | unknown
ERL_NIF_TERM reset(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  LimiterId limiter;
  KeyHash key;
  Nanos time, now;
  if (!get_limiter_id(env, argv[1], limiter) || !get_key_hash(env, argv[2], key) || !get_now(env, argv[3], time) ||
      !get_now(env, argv[4], now) || (argv[5] != atoms.true_ && argv[5] != atoms.false_))
    return enif_make_badarg(env);
  return step_node(env, machine, now, [&](Replica& replica, Nanos at) {
    if (!replica.knows(limiter)) return atoms.unknown;
    return replica.reset(limiter, key, time, at, argv[5] == atoms.true_) ? atoms.true_ : atoms.false_;
  });
}

// replica_attach(Replica, Pid) -> ok: the tables' births go to this replica, and Pid is told of them.
ERL_NIF_TERM attach(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  ErlNifPid reader;
  void* object;
  if (!enif_get_local_pid(env, argv[1], &reader) || !enif_get_resource(env, argv[0], replica_type, &object))
    return enif_make_badarg(env);
  void* before;
  {
    const std::lock_guard lock(state->attach_mutex);
    enif_keep_resource(object);
    before = state->replica.exchange(object);
    state->reader = reader;
  }
  if (before != nullptr) enif_release_resource(before);
  machine.node.attach(before != object);
  wake_again(env);
  return atoms.ok;
}

// replica_attached() -> Replica | none
ERL_NIF_TERM attached(ErlNifEnv* env, int, const ERL_NIF_TERM[]) {
  const std::lock_guard lock(state->attach_mutex);
  void* const object = state->replica.load();
  return object == nullptr ? atoms.none : enif_make_resource(env, object);
}

ERL_NIF_TERM detach(ErlNifEnv*, int, const ERL_NIF_TERM[]) {
  detach_replica(*state);
  return atoms.ok;
}

// Observing.

// A time of kNever is `infinity`.
ERL_NIF_TERM make_time(ErlNifEnv* env, Nanos time) noexcept {
  return time == kNever ? atoms.infinity : enif_make_int64(env, time.v);
}

ERL_NIF_TERM wake(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM[]) {
  return make_time(env, machine.node.wake());
}

ERL_NIF_TERM make_intervals(ErlNifEnv* env, const IntervalSet& set) {
  std::array<ERL_NIF_TERM, kIntervalCap> made;
  unsigned size = 0;
  for (const Interval& interval : set) {
    made[size++] =
        enif_make_tuple2(env, enif_make_int64(env, interval.start.v), enif_make_int64(env, interval.count.v));
  }
  return enif_make_list_from_array(env, made.data(), size);
}

// replica_intervals(Replica, published | unsent | inherited, Limiter, Key) -> [{Start, Count}]
ERL_NIF_TERM intervals(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  LimiterId limiter;
  KeyHash key;
  if (!get_limiter_id(env, argv[2], limiter) || !get_key_hash(env, argv[3], key)) return enif_make_badarg(env);
  if (argv[1] == atoms.published) return make_intervals(env, machine.replica().published(limiter, key));
  if (argv[1] == atoms.unsent) return make_intervals(env, machine.replica().unsent(limiter, key));
  if (argv[1] == atoms.inherited) return make_intervals(env, machine.replica().inherited(limiter, key));
  return enif_make_badarg(env);
}

ERL_NIF_TERM vector(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM[]) {
  std::vector<ERL_NIF_TERM> made;
  for (const VectorEntry& entry : machine.replica().vector()) {
    made.push_back(enif_make_tuple3(env, enif_make_uint(env, entry.origin.node.v),
                                    enif_make_uint64(env, entry.origin.incarnation),
                                    enif_make_uint64(env, entry.upto)));
  }
  return enif_make_list_from_array(env, made.data(), static_cast<unsigned>(made.size()));
}

// In the order of ReplicaStats, then what History dropped; weir_machine.erl names them.
ERL_NIF_TERM stats(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM[]) {
  const ReplicaStats seen = machine.replica().stats();
  const std::array<std::uint64_t, 20> counts = {
      seen.records_sent, seen.records_applied,  seen.duplicates,   seen.nacks,
      seen.repaired,     seen.chunks_applied,   seen.copies,       seen.lost_own_records,
      seen.malformed,    seen.refused,          seen.evicted_keys, seen.forgotten_births,
      seen.absences,     seen.copies_abandoned, seen.shelved,      seen.lost_shelved,
      seen.told,         seen.estates,          seen.lost_copies,  machine.replica().dropped()};
  std::array<ERL_NIF_TERM, counts.size()> made;
  std::transform(counts.begin(), counts.end(), made.begin(),
                 [env](std::uint64_t count) { return enif_make_uint64(env, count); });
  return enif_make_list_from_array(env, made.data(), static_cast<unsigned>(made.size()));
}
static_assert(sizeof(ReplicaStats) == 19 * sizeof(std::uint64_t),
              "a counter more: name it here and in weir_machine.erl");

// replica_held(Replica) -> {State, Fixed}. Linear in what is kept for peers that are away.
ERL_NIF_TERM held(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM[]) {
  const Held bytes = machine.replica().held();
  return enif_make_tuple2(env, enif_make_uint64(env, bytes.state), enif_make_uint64(env, bytes.fixed));
}

// replica_bytes(Replica, [Limiter]) -> [Bytes], what the keys of each take
ERL_NIF_TERM bytes_of(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  std::vector<ERL_NIF_TERM> made;
  ERL_NIF_TERM list = argv[1];
  for (ERL_NIF_TERM head; enif_get_list_cell(env, list, &head, &list);) {
    LimiterId limiter;
    if (!get_limiter_id(env, head, limiter)) return enif_make_badarg(env);
    made.push_back(enif_make_uint64(env, machine.replica().held(limiter)));
  }
  return enif_make_list_from_array(env, made.data(), static_cast<unsigned>(made.size()));
}

// replica_look(Replica) -> {Quiet, Copying, Live, Registered}
ERL_NIF_TERM look(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM[]) {
  const Replica& replica = machine.replica();
  return enif_make_tuple4(env, replica.quiet() ? atoms.true_ : atoms.false_,
                          replica.copying() ? atoms.true_ : atoms.false_, enif_make_uint64(env, replica.live()),
                          enif_make_uint64(env, replica.registered()));
}

// replica_clock(Replica, Peer) -> {Offset, RoundTrip} | unknown
ERL_NIF_TERM clock_of(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  NodeId peer;
  if (!get_node(env, argv[1], peer)) return enif_make_badarg(env);
  const auto clock = machine.replica().clock_of(peer);
  if (!clock) return atoms.unknown;
  return enif_make_tuple2(env, enif_make_int64(env, clock->first.v), enif_make_int64(env, clock->second.v));
}

// replica_quarantined(Replica, Peer) -> true | false
ERL_NIF_TERM quarantined(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  NodeId peer;
  if (!get_node(env, argv[1], peer)) return enif_make_badarg(env);
  return machine.replica().quarantined(peer) ? atoms.true_ : atoms.false_;
}

// replica_births() -> {DroppedByRings, Rescans, KeysLookedAt}
ERL_NIF_TERM births(ErlNifEnv* env, int, const ERL_NIF_TERM[]) {
  return enif_make_tuple3(
      env, enif_make_uint64(env, state->births().dropped()),
      enif_make_uint64(env, state->registry.replication().rescans.load(std::memory_order_relaxed)),
      enif_make_uint64(env, state->registry.replication().rescanned_keys.load(std::memory_order_relaxed)));
}

// {Expected, Worst, Exceeded}
ERL_NIF_TERM make_overshoot(ErlNifEnv* env, const Overshoot& overshoot) {
  return enif_make_tuple3(env, enif_make_int64(env, overshoot.expected.v), enif_make_int64(env, overshoot.worst.v),
                          enif_make_int64(env, overshoot.exceeded.v));
}

// replica_overshoot(Replica, Limiter, Key, Now) -> {Expected, Worst, Exceeded}
ERL_NIF_TERM overshoot(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  LimiterId limiter;
  KeyHash key;
  Nanos now;
  if (!get_limiter_id(env, argv[1], limiter) || !get_key_hash(env, argv[2], key) || !get_now(env, argv[3], now))
    return enif_make_badarg(env);
  return make_overshoot(env, machine.replica().overshoot(limiter, key, now));
}

// replica_most_exceeded(Replica, Limiter) -> {Expected, Worst, Exceeded}
ERL_NIF_TERM most_exceeded(ErlNifEnv* env, Machine& machine, const ERL_NIF_TERM argv[]) {
  LimiterId limiter;
  if (!get_limiter_id(env, argv[1], limiter)) return enif_make_badarg(env);
  return make_overshoot(env, machine.replica().most_exceeded(limiter));
}

}  // namespace

void detach_replica(State& of) noexcept {
  of.births().open(false);
  void* object;
  {
    const std::lock_guard lock(of.attach_mutex);
    object = of.replica.exchange(nullptr);
  }
  if (object == nullptr) return;
  of.carries().clear();
  enif_release_resource(object);
}

bool open_replica_type(ErlNifEnv* env, ErlNifResourceFlags flags) noexcept {
  replica_type = enif_open_resource_type(env, nullptr, "weir_replica", drop_replica, flags, nullptr);
  return replica_type != nullptr;
}

const std::array<ErlNifFunc, 22> replica_functions = {{
    {"replica_new", 8, guarded<create>, 0},
    {"replica_step", 3, guarded<step>, 0},
    {"replica_take", 3, guarded<take>, 0},
    {"replica_put_limiter", 4, guarded<with_machine<put_limiter>>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"replica_wake", 1, guarded<with_machine<wake>>, 0},
    {"replica_intervals", 4, guarded<with_machine<intervals>>, 0},
    {"replica_vector", 1, guarded<with_machine<vector>>, 0},
    {"replica_stats", 1, guarded<with_machine<stats>>, 0},
    {"replica_held", 1, guarded<with_machine<held>>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"replica_bytes", 2, guarded<with_machine<bytes_of>>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"replica_look", 1, guarded<with_machine<look>>, 0},
    {"replica_clock", 2, guarded<with_machine<clock_of>>, 0},
    {"replica_quarantined", 2, guarded<with_machine<quarantined>>, 0},
    {"replica_overshoot", 4, guarded<with_machine<overshoot>>, 0},
    {"replica_most_exceeded", 2, guarded<with_machine<most_exceeded>>, 0},
    {"replica_push", 2, guarded<with_machine<push>>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"replica_drop_limiter", 2, guarded<with_machine<drop_limiter>>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"replica_reset", 6, guarded<with_machine<reset>>, 0},
    {"replica_attach", 2, guarded<with_machine<attach>>, 0},
    {"replica_attached", 0, guarded<attached>, 0},
    {"replica_births", 0, guarded<births>, 0},
    {"replica_detach", 0, guarded<detach>, 0},
}};

}  // namespace weir::nif
