// What weir_owner needs: decisions on keys that this node owns, and levels that nodes tell each other.
#include "owner_nif.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "clock/clock.hpp"
#include "term.hpp"
#include "weir/owner_levels.hpp"
#include "weir/owners.hpp"

namespace weir::nif {

namespace {

// Of one call: a batch of questions, a message of levels, the members of a cluster.
constexpr unsigned kItems = 512, kLevels = 1024, kNodes = 4096;
// Questions times nodes that are weighed on a normal scheduler, about 100 us.
constexpr std::size_t kManyWeights = 1 << 15;
constexpr int kTimeslice = 5;  // percent of a slice, of a full batch

// {NodeId, ...}, none of them twice.
bool get_nodes(ErlNifEnv* env, ERL_NIF_TERM term, std::vector<NodeId>& nodes) {
  int arity;
  const ERL_NIF_TERM* elements;
  if (!enif_get_tuple(env, term, &arity, &elements) || static_cast<unsigned>(arity) > kNodes) return false;
  nodes.resize(static_cast<std::size_t>(arity));
  for (int i = 0; i < arity; ++i)
    if (!enif_get_uint(env, elements[i], &nodes[static_cast<std::size_t>(i)].v)) return false;
  return true;
}

bool get_key_hash(ErlNifEnv* env, ERL_NIF_TERM term, KeyHash& key) noexcept {
  ErlNifUInt64 value;
  if (!enif_get_uint64(env, term, &value) || value == 0) return false;
  key = {value};
  return true;
}

ERL_NIF_TERM make_binary(ErlNifEnv* env, const std::string& bytes) {
  ERL_NIF_TERM term;
  std::copy(bytes.begin(), bytes.end(), enif_make_new_binary(env, bytes.size(), &term));
  return term;
}

// [{Place, Levels}] of the places that have some; nodes count from 1 in Erlang.
ERL_NIF_TERM make_told(ErlNifEnv* env, const std::vector<std::string>& told) {
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (std::size_t i = told.size(); i-- > 0;) {
    if (told[i].empty()) continue;
    const ERL_NIF_TERM place = enif_make_uint64(env, i + 1);
    list = enif_make_list_cell(env, enif_make_tuple2(env, place, make_binary(env, told[i])), list);
  }
  return list;
}

struct Item {
  LimiterId number;
  KeyHash key;
  KeyHash before;  // 0, or what the key's level here is to be carried from
  Tokens hits;
};

// KeyHash | {KeyHash, Before}
bool get_key_hashes(ErlNifEnv* env, ERL_NIF_TERM term, Item& item) noexcept {
  int arity;
  const ERL_NIF_TERM* hashes;
  if (!enif_get_tuple(env, term, &arity, &hashes)) return get_key_hash(env, term, item.key);
  return arity == 2 && get_key_hash(env, hashes[0], item.key) && get_key_hash(env, hashes[1], item.before);
}

// [{Number, KeyHash | {KeyHash, Before}, Hits}], at most kItems.
bool get_items(ErlNifEnv* env, ERL_NIF_TERM list, std::vector<Item>& items) {
  for (ERL_NIF_TERM head, tail; enif_get_list_cell(env, list, &head, &tail); list = tail) {
    int arity;
    const ERL_NIF_TERM* parts;
    Item item;
    if (items.size() == kItems || !enif_get_tuple(env, head, &arity, &parts) || arity != 3 ||
        !enif_get_uint(env, parts[0], &item.number.v) || item.number.v == 0 || !get_key_hashes(env, parts[1], item) ||
        get_hits(env, parts[2], item.hits) != 0)
      return false;
    items.push_back(item);
  }
  return enif_is_empty_list(env, list);
}

// {Allowed, Limit, Remaining, ResetMs, RetryMs, Tat, Reason}
ERL_NIF_TERM make_outcome(ErlNifEnv* env, const Answered& answered, Tokens hits, Nanos now) noexcept {
  const Decision decision = answered.decision(hits, now);
  return enif_make_tuple7(env, decision.allowed ? atoms.true_ : atoms.false_,
                          enif_make_int64(env, answered.policy.capacity.v), enif_make_int64(env, decision.remaining.v),
                          make_ms(env, decision.reset), make_ms(env, decision.retry),
                          enif_make_int64(env, (now + decision.reset).v), make_reason(answered.reason));
}

// From this node's own decision: what it denies now, it denies next time without being asked.
void learn(const Item& item, const Answered& answered, KnownLevels::Stamp stamp, Nanos now) noexcept {
  if (answered.reason != Answered::Reason::limit &&
      !(answered.reason == Answered::Reason::ok && answered.remaining(now).v == 0))
    return;
  const Nanos debt = answered.reset(now);
  state->known.learn(item.number, item.key, stamp, {now, now, debt, debt});
}

// owner_decide([{Number, KeyHash | {KeyHash, Before}, Hits}], Nodes, Self) -> {[Outcome | unknown | Place of the
// owner], [{Place, Levels}]}: decides what the node at the place Self owns (0: nothing). The levels are those to be
// told to who stands by.
ERL_NIF_TERM decide(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  std::vector<NodeId> nodes;
  std::vector<Item> items;
  unsigned self;
  if (!get_items(env, argv[0], items) || !get_nodes(env, argv[1], nodes) || nodes.empty() ||
      !enif_get_uint(env, argv[2], &self) || self > nodes.size())
    return enif_make_badarg(env);
  if (items.size() * nodes.size() > kManyWeights && enif_thread_type() != ERL_NIF_THR_DIRTY_CPU_SCHEDULER)
    return enif_schedule_nif(env, "owner_decide", ERL_NIF_DIRTY_JOB_CPU_BOUND, guarded<decide>, argc, argv);
  std::vector<ERL_NIF_TERM> answers;
  std::vector<std::string> told(nodes.size());
  const KnownLevels::Stamp stamp = state->known.stamp();
  const Nanos now = clock_now();
  bool births = false;
  for (const Item& item : items) {
    const Owners owners = owners_of(nodes, item.key);
    const Registry::Ref ref = state->registry.find_number(item.number);
    if (!ref || !ref.limiter->owned()) {
      answers.push_back(atoms.unknown);
    } else if (owners.first + 1 != self) {
      answers.push_back(enif_make_uint64(env, owners.first + 1));
    } else {
      if (item.before.v != 0) Registry::carry(ref, item.before, item.key, now);
      const Answered answered = Registry::ask(ref, item.key, item.hits, now, stripe());
      answers.push_back(make_outcome(env, answered, item.hits, now));
      births = births || answered.allowed;
      learn(item, answered, stamp, now);
      const OwnerLevel level{item.number, item.key, now + answered.reset(now)};
      if (answered.allowed && owners.second != Owners::kNobody && level.valid())
        append_level(told[owners.second], level);
    }
  }
  if (births) wake_reader(env);
  enif_consume_timeslice(env, std::max(1, static_cast<int>(items.size() * kTimeslice / kItems)));
  const auto size = static_cast<unsigned>(answers.size());
  return enif_make_tuple2(env, enif_make_list_from_array(env, answers.data(), size), make_told(env, told));
}

// owner_stamp() -> Stamp: for owner_learn, read before a question is sent.
ERL_NIF_TERM stamp(ErlNifEnv* env, int, const ERL_NIF_TERM[]) { return enif_make_uint64(env, state->known.stamp()); }

// owner_learn([{Number, KeyHash, Limit, Remaining, ResetMs}], Stamp, SentNs) -> ok: what owners said of keys that have
// no token left for a question like that one.
ERL_NIF_TERM learn_told(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 stamp;
  ErlNifSInt64 sent;
  if (!enif_get_uint64(env, argv[1], &stamp) || !enif_get_int64(env, argv[2], &sent) || sent <= 0)
    return enif_make_badarg(env);
  const Nanos now = clock_now();
  unsigned items = 0;
  ERL_NIF_TERM list = argv[0];
  for (ERL_NIF_TERM head, tail; items < kItems && enif_get_list_cell(env, list, &head, &tail); list = tail, ++items) {
    int arity;
    const ERL_NIF_TERM* parts;
    LimiterId number;
    KeyHash key;
    ErlNifSInt64 limit, remaining, reset;
    if (!enif_get_tuple(env, head, &arity, &parts) || arity != 5 || !enif_get_uint(env, parts[0], &number.v) ||
        !get_key_hash(env, parts[1], key) || !enif_get_int64(env, parts[2], &limit) ||
        !enif_get_int64(env, parts[3], &remaining) || !enif_get_int64(env, parts[4], &reset))
      return enif_make_badarg(env);
    const Registry::Ref ref = state->registry.find_number(number);
    if (!ref || !ref.limiter->owned()) continue;
    state->known.learn(number, key, stamp, ref.limiter->brief().policy, {{limit}, {remaining}, reset}, {sent}, now);
  }
  if (!enif_is_empty_list(env, list)) return enif_make_badarg(env);
  enif_consume_timeslice(env, std::max(1, static_cast<int>(items * kTimeslice / kItems)));
  return atoms.ok;
}

// owner_forget(KeyHash | all) -> ok
ERL_NIF_TERM forget(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  KeyHash key;
  if (get_key_hash(env, argv[0], key))
    state->known.forget(key);
  else if (argv[0] == atoms.all)
    state->known.forget_all();
  else
    return enif_make_badarg(env);
  return atoms.ok;
}

// owner_rank(KeyHash, Nodes) -> {Place, PlaceOfSecond}; 0 is nobody
ERL_NIF_TERM rank(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  std::vector<NodeId> nodes;
  KeyHash key;
  if (!get_key_hash(env, argv[0], key) || !get_nodes(env, argv[1], nodes)) return enif_make_badarg(env);
  const Owners owners = owners_of(nodes, key);
  // (kNobody + 1 is 0.)
  return enif_make_tuple2(env, enif_make_uint64(env, owners.first + 1), enif_make_uint64(env, owners.second + 1));
}

// owner_raise(Levels) -> ok: keys that lie lower are brought up to these.
ERL_NIF_TERM raise(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  std::string_view bytes;
  if (!get_bytes(env, argv[0], bytes)) return enif_make_badarg(env);
  const Nanos now = clock_now();
  const bool levels = for_each_level(bytes, kLevels, [&](const OwnerLevel& level) {
    const Registry::Ref ref = state->registry.find_number(level.limiter);
    if (!ref || !ref.limiter->owned() || !level.plausible(ref.limiter->terms().policy, now)) return;
    Registry::set_level(ref, level.key, level.tat, false, now);
  });
  if (!levels) return enif_make_badarg(env);
  enif_consume_timeslice(env,
                         std::max(1, static_cast<int>(bytes.size() * kTimeslice / (kLevels * OwnerLevel::kBytes))));
  return atoms.ok;
}

// owner_levels(Nodes, Self, Changed, joined | left) -> [{Place, Levels}]. Dirty: looks at all keys, about 20 ns each.
ERL_NIF_TERM levels(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  OwnersChange change;
  if (!get_nodes(env, argv[0], change.nodes) || !enif_get_uint(env, argv[1], &change.self.v) ||
      !enif_get_uint(env, argv[2], &change.changed.v) || (argv[3] != atoms.joined && argv[3] != atoms.left))
    return enif_make_badarg(env);
  change.joined = argv[3] == atoms.joined;
  std::vector<std::string> told(change.nodes.size());
  state->registry.for_each_replicated(true, clock_now(), [&](LimiterId limiter, std::span<Table::Entry> entries) {
    for (const Table::Entry& entry : entries) {
      const OwnerLevel level{limiter, entry.key, entry.tat};
      if (level.valid()) change.for_each_heir(entry.key, [&](std::size_t place) { append_level(told[place], level); });
    }
  });
  return make_told(env, told);
}

}  // namespace

const std::array<ErlNifFunc, 7> owner_functions = {{
    {"owner_decide", 3, guarded<decide>, 0},
    {"owner_stamp", 0, guarded<stamp>, 0},
    {"owner_learn", 3, guarded<learn_told>, 0},
    {"owner_forget", 1, guarded<forget>, 0},
    {"owner_rank", 2, guarded<rank>, 0},
    {"owner_raise", 1, guarded<raise>, 0},
    {"owner_levels", 4, guarded<levels>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
}};

}  // namespace weir::nif
