// Shows R02, R07 of doc/requirements.md.
// No token is lost or made while everything happens to a limiter at once: threads decide, the table grows, is swept,
// shrunk and merged, the limiter changes all the time, keys are carried over from their hash of before, levels are set,
// other limiters come and go, and walks go over the keys. T is so long that nothing drains, and capacities only grow:
// what was admitted is in the table, or was taken out of it, or is counted as evicted.
#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "threads.hpp"
#include "weir/registry.hpp"

namespace weir::test {
namespace {

constexpr Nanos kHour{3'600'000'000'000};
constexpr KeyHash kName{11};
constexpr unsigned kDeciders = 3;
constexpr unsigned kShared = 8;  // the stripe of all others
constexpr std::uint64_t kCarried = 30'000;
constexpr std::uint64_t kStable = 2000;

KeyHash key_of(std::uint64_t family, std::uint64_t i) {
  std::uint64_t z = (family << 40) + i + 1;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return {(z ^ z >> 31) | 1};
}

// Keys with the same home line in a segment of any size, and the same upper bits: all but four of the crowd's keys are
// in their second lines.
constexpr std::uint64_t kCrowds = 64;
constexpr std::uint64_t kCrowd = 12;
KeyHash crowded(std::uint64_t crowd, std::uint64_t i) {
  const std::uint64_t of = key_of(9, crowd).v;
  return {(of & 0xffff0000'ffffffff) | (i + 1) << 32};
}

struct Account {
  std::int64_t admitted = 0;  // by the registry, which tells them
  std::int64_t fast = 0;      // by try_decide
  std::int64_t set = 0;
  std::int64_t taken = 0;
  std::int64_t failed = 0;
  std::int64_t carried_denials = 0;
  std::int64_t second_rounds = 0;  // crowds of which each key was answered the fast way
  std::int64_t crowd_rounds = 0;
};

struct World {
  explicit World(std::int64_t max_keys) {
    options.number = {5};
    options.max_keys = max_keys;
    registry.replication().births.open(true);
    REQUIRE(registry.put("limiter", kName, policy(0), options, kBase) == Registry::Put::created);
    ref = registry.find(kName);
  }

  // Capacities that only grow; the interval goes to and fro.
  static Policy policy(std::uint64_t change) {
    return {{static_cast<std::int64_t>(100 + change)}, Tokens{change % 2 == 0 ? 1 : 2} * kHour};
  }
  Table& table() { return ref.limiter->table(); }
  bool allows(KeyHash key, unsigned stripe) { return Registry::decide(ref, key, {1}, kBase, stripe).allowed; }
  template <class Question>
  Terms ask(Account& mine, Question question) {
    for (;;) {
      const Terms terms = ref.limiter->terms();
      const Status status = question(terms);
      if (status == Status::stale) continue;
      mine.failed += status != Status::ok;
      return terms;
    }
  }
  void take(KeyHash key, Account& mine) {
    Tat was;
    const Terms terms = ask(mine, [&](const Terms& of) { return table().take(ref.generation, of, key, kBase, was); });
    mine.taken += was.level(terms.policy, kBase).v;
  }
  void set(KeyHash key, std::int64_t level, bool exactly, Account& mine) {
    ask(mine, [&](const Terms& of) {
      return table().set_level(ref.generation, of, key, kBase + Tokens{level} * of.policy.interval, exactly, kBase);
    });
  }

  Registry registry{kShared + 1};
  LimiterOptions options;
  Registry::Ref ref;
};

class Decider {
 public:
  Decider(World& world, unsigned id) : world_(world), id_(id), rng_(id + 1) {}

  void step() {
    const auto what = draw(rng_, 1, 100);
    if (what <= 25) {
      mine.admitted += world_.allows(key_of(1, rng_() % 64), id_);
    } else if (what <= 55) {
      mine.admitted += world_.allows(fresh(next_++), id_);
      // Segments fill, split, empty and merge.
      if (next_ - taken_ > 10'000)
        while (taken_ + 500 < next_) world_.take(fresh(taken_++), mine);
    } else if (what <= 75) {
      carry(rng_() % kCarried);
    } else if (what <= 95) {
      ask_crowd(rng_() % kCrowds);
    } else {
      const KeyHash key = key_of(20 + id_, levels_++);
      world_.set(key, 3, false, mine);
      world_.set(key, 1, false, mine);  // it has more
      mine.set += 3;
    }
  }

  Account mine;

 private:
  KeyHash fresh(std::uint64_t i) const { return key_of(10 + id_, i); }
  void carry(std::uint64_t i) {
    Registry::carry(world_.ref, key_of(2, i), key_of(3, i), kBase);
    const bool admitted = world_.allows(key_of(3, i), id_);
    mine.admitted += admitted;
    mine.carried_denials += !admitted;
  }
  void ask_crowd(std::uint64_t crowd) {
    bool fast = true;
    const std::uint64_t from = rng_();
    for (std::uint64_t i = 0; i < kCrowd; ++i) {
      const KeyHash key = crowded(crowd, (from + i) % kCrowd);
      const Limiter::Brief brief = world_.ref.limiter->brief();
      const Ruling ruling =
          world_.table().try_decide(world_.ref.generation, brief.policy, brief.version, key, {1}, kBase);
      mine.fast += ruling.verdict == Verdict::admitted;
      if (ruling.verdict != Verdict::unsure) continue;
      fast = false;
      mine.admitted += world_.allows(key, id_);
    }
    ++mine.crowd_rounds;
    mine.second_rounds += fast;
  }

  World& world_;
  unsigned id_;
  Rng rng_;
  std::uint64_t next_ = 0, taken_ = 0, levels_ = 0;
};

// Changes the limiter again and again, and waits for each change to be carried out.
std::uint64_t change_until(World& world, const std::atomic<unsigned>& working) {
  std::uint64_t changes = 0;
  while (working != 0) {
    while (world.registry.put("limiter", kName, World::policy(changes + 1), world.options, kBase) ==
           Registry::Put::busy)
      world.registry.convert(kName, 4);
    ++changes;
    while (!world.registry.convert(kName, 4)) {
    }
  }
  return changes;
}

// Other limiters are made, asked and deleted, in recycled memory; the registry's upkeep goes on.
void maintain_until(World& world, const std::atomic<unsigned>& working) {
  for (std::uint64_t i = 0; working != 0; ++i) {
    const KeyHash name{100 + i % 8};
    if (!world.registry.remove(name)) world.registry.put(std::to_string(i), name, {{5}, kHour}, {}, kBase);
    if (const Registry::Ref other = world.registry.find(name))
      for (std::uint64_t key = 0; key < 50; ++key) Registry::decide(other, key_of(4, key), {1}, kBase, kShared);
    for (int slices = 0; slices < 4; ++slices) world.registry.maintain(kBase, 8);
  }
}

struct Walks {
  std::int64_t told = 0;     // hits that came out of the rings
  std::int64_t carries = 0;  // that were told
  std::int64_t walks = 0;
  std::int64_t missed = 0, twice = 0;  // of the keys that stay
};

void drain(World& world, Walks& walks) {
  world.registry.replication().births.drain(SIZE_MAX, [&](const Admission& birth) { walks.told += birth.hits.v; });
  walks.carries += static_cast<std::int64_t>(world.registry.replication().carries.take(SIZE_MAX).size());
}

Walks walk_until(World& world, const std::atomic<unsigned>& working) {
  Walks walks;
  std::unordered_map<std::uint64_t, int> stay;
  for (std::uint64_t i = 0; i < kStable; ++i) stay[key_of(5, i).v] = 0;
  while (working != 0) {
    for (auto& [key, seen] : stay) seen = 0;
    world.registry.for_each_replicated(false, kBase, [&](LimiterId, std::span<const Table::Entry> entries) {
      for (const Table::Entry& entry : entries)
        if (const auto known = stay.find(entry.key.v); known != stay.end()) ++known->second;
      drain(world, walks);
    });
    ++walks.walks;
    for (const auto& [key, seen] : stay) {
      walks.missed += seen == 0;
      walks.twice += seen > 1;
    }
    world.registry.for_each_dropped(kBase, 10'000, [](LimiterId, std::span<const Table::Entry>) {});
  }
  return walks;
}

void tokens_are_conserved(std::int64_t max_keys) {
  World world(max_keys);
  Account all;
  for (std::uint64_t i = 0; i < kStable; ++i) all.admitted += world.allows(key_of(5, i), kShared);
  for (std::uint64_t i = 0; i < kCarried; ++i)
    for (std::uint64_t hits = 0; hits < i % 3 + 1; ++hits) all.admitted += world.allows(key_of(2, i), kShared);
  world.registry.begin_carrying(kBase, kHour);

  const std::uint64_t steps = round_count() * 120;  // a crowd is twelve questions
  std::atomic<unsigned> working{kDeciders};
  std::vector<Account> accounts(kDeciders);
  std::uint64_t changes = 0;
  Walks walks;
  run_threads(kDeciders + 3, [&](unsigned id) {
    if (id == kDeciders) return void(changes = change_until(world, working));
    if (id == kDeciders + 1) return maintain_until(world, working);
    if (id == kDeciders + 2) return void(walks = walk_until(world, working));
    Decider decider(world, id);
    for (std::uint64_t i = 0; i < steps; ++i) decider.step();
    accounts[id] = decider.mine;
    working.fetch_sub(1);
  });
  for (const Account& each : accounts) {
    all.admitted += each.admitted;
    all.fast += each.fast;
    all.set += each.set;
    all.taken += each.taken;
    all.failed += each.failed;
    all.carried_denials += each.carried_denials;
    all.second_rounds += each.second_rounds;
    all.crowd_rounds += each.crowd_rounds;
  }
  drain(world, walks);

  for (int passes = 0; passes < 2; ++passes)
    while (!world.registry.maintain(kBase, 8)) {
    }
  const Terms terms = world.ref.limiter->terms();
  std::int64_t keys = 0, held = 0;
  world.table().for_each(terms, kBase, [&](KeyHash, const Tat& state) {
    ++keys;
    held += state.level(terms.policy, kBase).v;
  });
  const TableStats stats = world.table().stats();
  const char* const wrong = world.table().validate();
  INFO("max_keys " << max_keys);
  CHECK((wrong == nullptr ? "" : wrong) == std::string());
  CHECK(all.admitted + all.fast + all.set == held + all.taken + stats.evicted_tokens);
  CHECK(stats.keys == keys);
  CHECK(all.failed == 0);
  CHECK(walks.told + static_cast<std::int64_t>(world.registry.replication().births.dropped()) == all.admitted);
  CHECK(all.second_rounds > 0);
  if (stats.evicted_keys == 0) {
    CHECK(walks.missed == 0);
    CHECK(all.carried_denials == 0);
  }
  CHECK(walks.twice == 0);
  CHECK((stats.evicted_keys > 0) == (max_keys < 100'000));
  fmt::print(
      "conserve: max_keys {}: {} admitted, {} of {} crowds all the fast way (two thirds of their keys in second "
      "lines), {} changes, {} walks, {} carries told, {} evicted\n",
      max_keys, all.admitted + all.fast, all.second_rounds, all.crowd_rounds, changes, walks.walks, walks.carries,
      stats.evicted_keys);
}

}  // namespace

TEST_CASE("conserve: no token is lost or made while everything happens at once", "[table][registry][threads]") {
  tokens_are_conserved(1'000'000);
}
TEST_CASE("conserve: nor where keys are evicted all the time", "[table][registry][threads]") {
  tokens_are_conserved(20'000);
}

}  // namespace weir::test
