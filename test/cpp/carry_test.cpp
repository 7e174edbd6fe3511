// Keys that go by another hash after a rotation of the secret: in the registry, and in replicas. R35, R46.
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cluster.hpp"
#include "heap.hpp"
#include "threads.hpp"
#include "weir/registry.hpp"

namespace weir::test {
namespace {

constexpr Policy kTen{{10}, {1'000'000'000}};
constexpr KeyHash kBefore{0x1111111111111111};
constexpr KeyHash kAfter{0xeeeeeeeeeeeeeeee};  // in another segment

ReplicatedTerms terms(std::int64_t capacity, Nanos interval) {
  ReplicatedTerms made;
  made.policy = {{capacity}, interval};
  return made;
}

struct Node {
  Registry registry{9};
  Registry::Ref ref;
  explicit Node(const Policy& policy, std::uint32_t number = 42) {
    LimiterOptions options;
    options.number = {number};
    registry.replication().births.open(true);
    REQUIRE(registry.put("limiter", {11}, policy, options, kBase) == Registry::Put::created);
    ref = registry.find({11});
  }
  bool allows(KeyHash key, std::int64_t hits = 1, Nanos now = kBase, unsigned stripe = 0) const {
    return Registry::decide(ref, key, {hits}, now, stripe).allowed;
  }
  std::int64_t level(KeyHash key, Nanos now = kBase) const {
    Tat state;
    Terms of;
    REQUIRE(Registry::peek(ref, key, now, state, of));
    return state.level(of.policy, now).v;
  }
  std::vector<Carry> told() { return registry.replication().carries.take(SIZE_MAX); }
};

}  // namespace

TEST_CASE("a level is carried once, and added to what is there", "[carry][registry]") {
  Node node(kTen);
  REQUIRE(node.allows(kBefore, 4));
  Registry::carry(node.ref, kBefore, kAfter, kBase);
  CHECK(node.level(kAfter) == 4);
  CHECK(node.level(kBefore) == 0);
  CHECK(node.ref.limiter->table().stats().keys == 1);
  Registry::carry(node.ref, kBefore, kAfter, kBase);
  CHECK(node.level(kAfter) == 4);
  // What came late under the hash of before; a level that has drained; a key by the same hash.
  REQUIRE(node.allows(kBefore, 3));
  Registry::carry(node.ref, kBefore, kAfter, kBase + Nanos{1'000'000'000});
  CHECK(node.level(kAfter, kBase + Nanos{1'000'000'000}) == 5);
  REQUIRE(node.allows(kBefore, 3));
  Registry::carry(node.ref, kBefore, kAfter, kBase + Nanos{60'000'000'000});
  CHECK(node.level(kAfter, kBase + Nanos{60'000'000'000}) == 0);
  Registry::carry(node.ref, kAfter, kAfter, kBase);
  CHECK(node.level(kAfter) == 6);

  const std::vector<Carry> told = node.told();
  REQUIRE(told.size() == 2);
  CHECK(told[0].limiter == LimiterId{42});
  CHECK(std::pair(told[1].before, told[1].key) == std::pair(kBefore, kAfter));
  CHECK(told[1].tat == kBase + Nanos{6'000'000'000});  // 4 of which one has drained, and 2
  CHECK(node.registry.replication().carries.empty());
}

TEST_CASE("a limiter that changes while a level is carried keeps it", "[carry][registry]") {
  Node node(kTen);
  REQUIRE(node.allows(kBefore, 8));
  LimiterOptions options;
  options.number = {42};
  REQUIRE(node.registry.put("limiter", {11}, {{5}, {7'000'000'000}}, options, kBase) == Registry::Put::changed);
  Registry::carry(node.ref, kBefore, kAfter, kBase);
  CHECK(node.level(kAfter) == 5);
}

TEST_CASE("a level that finds no memory under its new hash stays under that of before", "[carry][registry]") {
  if (!kHeapWatched) return;
  for (const bool owned : {false, true}) {
    CAPTURE(owned);
    Registry registry(1);
    const auto put = [&](std::uint64_t name, bool is_owned) {
      LimiterOptions options;
      options.number = {static_cast<std::uint32_t>(name)};
      options.owned = is_owned;
      REQUIRE(registry.put("limiter", {name}, kTen, options, kBase) == Registry::Put::created);
      return registry.find({name});
    };
    const Registry::Ref ref = put(1, owned);
    // No segment is left in what the arena has mapped.
    for (std::uint64_t name = 2; name <= Arena::kChunkSegments; ++name) put(name, false);
    const auto level = [&](KeyHash key) {
      Tat state;
      Terms of;
      REQUIRE(Registry::peek(ref, key, kBase, state, of));
      return state.level(of.policy, kBase).v;
    };
    const auto hash = [](std::uint64_t i) { return KeyHash{(i + 1) * 0x9e3779b97f4a7c15}; };
    // Keys that the segment takes, and such as it can't take.
    std::vector<KeyHash> there, refused;
    there.reserve(3000);
    refused.reserve(100);
    {
      const FailingHeap none;
      for (std::uint64_t i = 0; refused.size() < 100; ++i) {
        const std::int64_t failed = ref.limiter->counts().failed;
        Registry::decide(ref, hash(i), {4}, kBase, 0);
        std::vector<KeyHash>& to = ref.limiter->counts().failed == failed ? there : refused;
        to.push_back(hash(i));
      }
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < refused.size(); ++i) {
      {
        const FailingHeap none;
        Registry::carry(ref, there[i], refused[i], kBase);
      }
      const std::int64_t left = level(there[i]);
      kept += left == 4;
      // (The slot that was left may have made room.)
      REQUIRE(left + level(refused[i]) == 4);
      Registry::carry(ref, there[i], refused[i], kBase);
      REQUIRE(level(there[i]) == 0);
      REQUIRE(level(refused[i]) == 4);
    }
    CHECK(kept > 0);
  }
}

TEST_CASE("each limiter carries for as long as its births matter, and no longer than is asked for",
          "[carry][registry]") {
  Registry registry(1);
  const Nanos minute{60'000'000'000};
  const auto put = [&](std::uint64_t name, const Policy& policy) {
    REQUIRE(registry.put("limiter " + std::to_string(name), {name}, policy, {}, kBase) != Registry::Put::too_many);
    return registry.find({name}).limiter;
  };
  const Limiter* const quick = put(1, {{10}, {1000}});
  const Limiter* const slow = put(2, {{10}, minute});
  const Limiter* const yearly = put(3, {{365}, {86'400'000'000'000}});
  CHECK(registry.carried_until() == Nanos{0});
  CHECK(quick->carry_until() == Nanos{0});

  const Nanos hour = Tokens{60} * minute;
  registry.begin_carrying(kBase, hour);
  CHECK(quick->carry_until() == kBase + minute);
  CHECK(slow->carry_until() == kBase + Tokens{20} * minute);
  CHECK(yearly->carry_until() == kBase + hour);
  CHECK(registry.carried_until() == kBase + hour);
  // One that is made now may exist on other nodes.
  CHECK(put(4, {{10}, minute})->carry_until() == kBase + Tokens{20} * minute);
  put(1, {{10}, minute});
  CHECK(quick->carry_until() == kBase + Tokens{20} * minute);

  const auto maintain = [&](Nanos now) {
    for (int passes = 0; passes < 2; ++passes)
      while (!registry.maintain(now, 4)) {
      }
  };
  maintain(kBase + Tokens{59} * minute);
  CHECK(registry.carried_until() == kBase + hour);
  maintain(kBase + hour);
  CHECK(registry.carried_until() == Nanos{0});
  CHECK(put(5, {{10}, minute})->carry_until() == Nanos{0});
  registry.begin_carrying(kBase, hour);
  registry.end_carrying();
  CHECK(registry.carried_until() == Nanos{0});
  CHECK(yearly->carry_until() == Nanos{0});
}

TEST_CASE("carries that nobody takes are told to be lost, those of local limiters are told to nobody",
          "[carry][registry]") {
  Node local(kTen, 0);
  REQUIRE(local.allows(kBefore, 4));
  Registry::carry(local.ref, kBefore, kAfter, kBase);
  CHECK(local.level(kAfter) == 4);
  CHECK(local.told().empty());

  Carries carries;
  for (std::size_t i = 0; i < Carries::kMost; ++i) carries.push({{1}, kBefore, {1}, kBase});
  CHECK_FALSE(carries.overflowed());
  carries.push({{1}, kBefore, {1}, kBase});
  CHECK(carries.overflowed());
  CHECK_FALSE(carries.overflowed());
  CHECK(carries.take(10).size() == 10);
  CHECK(carries.take(SIZE_MAX).size() == Carries::kMost - 10);
  CHECK(carries.empty());
  carries.push({{1}, kBefore, {2}, kBase});
  carries.clear();
  CHECK(carries.empty());
  CHECK(carries.take(SIZE_MAX).empty());
}

// Between the moment that a level is taken and that it is added the limiter may change, which halves or doubles it.
TEST_CASE("a level that is carried while its limiter changes keeps its tokens", "[carry][registry][threads]") {
  Node node(Policy{{1000}, {1'000'000'000}});
  REQUIRE(node.allows(kBefore, 300));
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> carried{0};
  std::int64_t wrong = 0;
  std::int64_t refused = 0;
  run_threads(2, [&](unsigned id) {
    if (id == 0) {
      KeyHash at = kBefore;
      KeyHash to = kAfter;
      for (; !over; std::swap(at, to)) {
        Registry::carry(node.ref, at, to, kBase);
        wrong += node.level(to) != 300 ? 1 : 0;
        ++carried;
      }
      return;
    }
    LimiterOptions options;
    options.number = {42};
    for (std::uint64_t change = 0; change < 5 * round_count(); ++change) {
      const Nanos interval{change % 2 == 0 ? 2'000'000'000 : 1'000'000'000};
      const std::uint64_t before = carried;
      refused += node.registry.put("limiter", {11}, {{1000}, interval}, options, kBase) != Registry::Put::changed;
      while (!node.registry.convert({11}, 1)) {
      }
      while (carried == before) std::this_thread::yield();
    }
    over = true;
  });
  CHECK(wrong == 0);
  CHECK(refused == 0);
}

// All threads ask for the same keys, each of which has some tokens left under its hash of before: exactly these are
// admitted, and each key is told once.
TEST_CASE("threads that carry at the same time admit what is left, no more", "[carry][registry][threads]") {
  constexpr unsigned kThreads = 8;
  constexpr std::uint64_t kKeys = 16;
  const Policy policy{{20}, {3'600'000'000'000}};
  Node node(policy);
  Barrier barrier(kThreads);
  std::atomic<std::int64_t> admitted{0};
  std::int64_t wrong = 0;
  std::size_t carried = 0;
  const std::uint64_t rounds = round_count() / 4;
  const auto hash = [](std::uint64_t round, std::uint64_t key, std::uint64_t secret) {
    return KeyHash{((round * kKeys + key) * 2 + secret + 1) * 0x9e3779b97f4a7c15};
  };
  run_threads(kThreads, [&](unsigned id) {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      for (std::uint64_t key = id; key < kKeys; key += kThreads) {
        node.allows(hash(round, key, 0), 15, kBase, id);
        if (key % 2 == 0) node.allows(hash(round, key, 1), 2, kBase, id);  // from another node
      }
      barrier.wait();
      for (std::uint64_t turn = 0; turn < kKeys * 3; ++turn) {
        const std::uint64_t key = (turn + id) % kKeys;
        Registry::carry(node.ref, hash(round, key, 0), hash(round, key, 1), kBase);
        admitted += node.allows(hash(round, key, 1), 1, kBase, id) ? 1 : 0;
      }
      barrier.wait();
      if (id == 0) {
        wrong += admitted.exchange(0) != kKeys / 2 * (5 + 3) ? 1 : 0;
        carried += node.told().size();
        node.registry.replication().births.drain(SIZE_MAX, [](const Admission&) {});
        while (!node.registry.maintain(kBase, 4)) {
        }
      }
      barrier.wait();
    }
  });
  CHECK(wrong == 0);
  CHECK(carried == rounds * kKeys);
}

TEST_CASE("births under two hashes are united, and the table is told", "[carry][replica]") {
  for_cases([](Rng& rng) {
    const Policy policy = draw_policy(rng);
    ReplicaConfig config;
    config.members = {{0}, {1}};
    config.neighbours = {{1}};
    config.start = kBase;
    Replica replica(config);
    replica.tell_levels();
    Effects effects;
    replica.put_limiter(kLimiter, terms(policy.capacity.v, policy.interval), kBase, effects);
    Births births;  // of the key, whatever its hash
    Nanos now = kBase;
    FrameWriter frame(1);
    std::uint64_t seq = 0;
    for (int i = 0; i < 12; ++i) {
      now = now + draw_span(rng, policy, 2);
      const KeyHash key = chance(rng, 50) ? kBefore : kAfter;
      const Tokens hits{draw(rng, 1, 2)};
      switch (draw(rng, 0, 2)) {
        case 0: {  // admitted by the table
          births.add({now, hits});
          replica.admitted({kLimiter, key, hits, now, kTimeMax}, now);
          break;
        }
        case 1: {  // late, from the other node
          const Interval birth{now - std::min(now - kBase, draw_span(rng, policy, 2)), hits};
          frame.record({{1}, 1}, false, ++seq, {kLimiter, 1, key}, {&birth, 1});
          births.add({birth.start, birth.count});
          const Bytes bytes = frame.take();
          replica.step(Arrival{{1}, bytes}, now, effects);
          frame = FrameWriter(1);
          break;
        }
        default: {
          static_cast<void>(replica.take_levels());
          const bool known = !replica.published(kLimiter, kBefore).empty() ||
                             !replica.unsent(kLimiter, kBefore).empty() ||
                             !replica.published(kLimiter, kAfter).empty() || !replica.unsent(kLimiter, kAfter).empty();
          const Nanos table = now + draw_span(rng, policy, 9);
          replica.carry({kLimiter, kBefore, kAfter, table}, now);
          CHECK(replica.published(kLimiter, kBefore).empty());
          CHECK(replica.unsent(kLimiter, kBefore).empty());
          IntervalSet all = replica.published(kLimiter, kAfter);
          REQUIRE(all.merge(policy, replica.unsent(kLimiter, kAfter)));
          const auto tat = static_cast<std::int64_t>(births.tat(policy));
          CHECK(all.tat(policy) == Nanos{tat});
          if (known && tat != table.v && std::max(tat, table.v) > now.v) {
            // Raised to what it is, or lowered to it.
            const std::vector<Level> levels = replica.take_levels();
            REQUIRE_FALSE(levels.empty());
            CHECK(levels[0].key == kAfter);
            CHECK(levels[0].tat == Nanos{tat});
            CHECK(levels[0].exactly == (tat < table.v));
          }
        }
      }
    }
  });
}

TEST_CASE("a reset under the hash of before holds under that of now", "[carry][replica]") {
  Cluster cluster(2, terms(10, ms(3'600'000)));
  REQUIRE(cluster.admits(0, kBefore, {4}));
  cluster.run_for(ms(100));
  REQUIRE(cluster.at(0).reset(kLimiter, kBefore, cluster.now(), cluster.now(), false));
  cluster.at(0).carry({kLimiter, kBefore, kAfter, {0}}, cluster.now());
  REQUIRE(cluster.admits(0, kAfter, {10}));
  REQUIRE_FALSE(cluster.admits(0, kAfter));
  // On a node that was told of it under the new hash alone, births under the old one go when they are carried.
  REQUIRE(cluster.admits(1, kBefore, {3}));
  cluster.run_for(ms(100));
  REQUIRE(cluster.at(1).reset(kLimiter, kAfter, cluster.now(), cluster.now(), false));
  cluster.at(1).carry({kLimiter, kBefore, kAfter, {0}}, cluster.now());
  CHECK(cluster.at(1).published(kLimiter, kAfter).empty());
  CHECK(cluster.at(1).unsent(kLimiter, kAfter).empty());
}

namespace {

// Nodes that switch and carry when they like, through loss, jitter, partitions and state copies.
struct Rotation {
  struct Pair {
    KeyHash before, after;
  };
  Cluster cluster;
  Rng& rng;
  std::vector<Pair> keys;
  std::set<std::uint32_t> switched;

  Rotation(Rng& of, const ReplicatedTerms& under)
      : cluster(4, under, static_cast<std::uint64_t>(draw(of, 1, 1 << 30))), rng(of) {
    for (std::uint64_t k = 1; k <= 6; ++k) keys.push_back({{k * 0x9e3779b97f4a7c15}, {k * 0xc2b2ae3d27d4eb4f}});
  }
  void carry(std::uint32_t node, const Pair& key) {
    cluster.at(node).carry({kLimiter, key.before, key.after, {0}}, cluster.now());
  }
  void ask() {
    const auto node = static_cast<std::uint32_t>(draw(rng, 0, 3));
    if (!cluster.up(node)) return;
    const Pair& key = keys[static_cast<std::size_t>(draw(rng, 0, 5))];
    if (!switched.contains(node)) {
      cluster.ask(node, key.before);
      if (chance(rng, 2)) switched.insert(node);
      return;
    }
    carry(node, key);
    cluster.ask(node, key.after);
  }
  void ask_for(int requests) {
    for (int i = 0; i < requests; ++i) {
      ask();
      cluster.run_for(ms(draw(rng, 1, 20)));
    }
  }
  // Everybody asks for all until nothing comes under the old hashes any more.
  void end() {
    for (int i = 0; i < 3; ++i) {
      cluster.run_for(ms(20'000));
      for (std::uint32_t node = 0; node < 4; ++node)
        for (const Pair& key : keys) carry(node, key);
    }
  }
  // Of all nodes, what is unsent and what node 0 has of the others', and what was admitted.
  std::pair<std::int64_t, std::int64_t> known_and_admitted(const Pair& key) {
    std::int64_t known = cluster.at(0).published(kLimiter, key.after).weight().v;
    for (std::uint32_t node = 0; node < 4; ++node) known += cluster.at(node).unsent(kLimiter, key.after).weight().v;
    std::int64_t admitted = 0;
    for (const KeyHash hash : {key.before, key.after})
      for (const Interval& period : cluster.admitted[hash.v].busy({{1}, {1}})) admitted += period.count.v;
    return {known, admitted};
  }
  bool alike(const Pair& key) {
    for (std::uint32_t node = 1; node < 4; ++node)
      if (!(cluster.at(node).published(kLimiter, key.after) == cluster.at(0).published(kLimiter, key.after)))
        return false;
    return true;
  }
};

}  // namespace

TEST_CASE("whenever nodes carry a key, all hold the union of its births, each once", "[carry][replica]") {
  for (std::uint64_t seed = 1; seed <= case_count(300) / 10; ++seed) {
    Rng rng(seed);
    CAPTURE(seed);
    Rotation rotation(rng, terms(60, ms(3'600'000)));
    rotation.cluster.network = {ms(5), ms(30), 15, 10};
    rotation.ask_for(250);
    if (chance(rng, 50)) {
      rotation.cluster.partition({0, 1});
      rotation.ask_for(400);
      rotation.cluster.heal();
    }
    rotation.ask_for(50);
    rotation.end();
    for (const auto& key : rotation.keys) {
      const auto [known, admitted] = rotation.known_and_admitted(key);
      CHECK(known == admitted);
      CHECK(rotation.alike(key));
      for (std::uint32_t node = 0; node < 4; ++node)
        CHECK(rotation.cluster.at(node).published(kLimiter, key.before).empty());
    }
  }
}

TEST_CASE("state copies in the midst of a rotation count no birth twice", "[carry][replica]") {
  std::uint64_t copies = 0;
  for (std::uint64_t seed = 1; seed <= case_count(300) / 10; ++seed) {
    Rng rng(seed);
    CAPTURE(seed);
    Rotation rotation(rng, terms(60, ms(3'600'000)));
    // So lossy that segments of a copy come from several answers, and several donors.
    rotation.cluster.network = {ms(5), ms(30), 30, 10};
    rotation.ask_for(200);
    rotation.cluster.run_for(ms(3000));
    rotation.cluster.crash(3);
    rotation.ask_for(100);
    rotation.cluster.start(3);
    rotation.switched.erase(3);
    rotation.ask_for(200);
    rotation.cluster.network = {ms(5), ms(30), 5, 10};
    rotation.end();
    copies += rotation.cluster.at(3).stats().copies;
    for (const auto& key : rotation.keys) {
      const auto [known, admitted] = rotation.known_and_admitted(key);
      CHECK(known <= admitted);
      CHECK(known >= admitted - 60 / 4 - 1);  // what the node that crashed had not sent
      CHECK(rotation.alike(key));
    }
  }
  CHECK(copies > 0);
}

}  // namespace weir::test
