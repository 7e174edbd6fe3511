// Shows R02, R04 of doc/requirements.md.
// The key table of interval sets: against a map of them, whatever is asked; blocks of the heap, which states of several
// intervals own, balanced through moves, growth, expiry, eviction and failure; and many callers at once.
//
// Threads count faults and the test's own thread asserts: Catch2's assertions are for one thread.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <new>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "heap.hpp"
#include "threads.hpp"
#include "weir/interval.hpp"
#include "weir/table.hpp"

namespace weir {
namespace {

using test::chance;
using test::draw;
using test::kBase;
using test::pick;
using test::Rng;
using IntervalTable = Table<IntervalCell>;

constexpr Nanos kSecond{1'000'000'000};
constexpr unsigned kThreads = 8;

// splitmix64: different numbers, different hashes.
KeyHash key_of(std::uint64_t family, std::uint64_t i) {
  std::uint64_t z = (family << 40) + i + 1;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return {(z ^ z >> 31) | 1};
}

bool expired(const IntervalSet& state, const Policy& policy, Nanos now) {
  IntervalSet left = state;
  left.compact(policy, now);
  return left.empty();
}

// ---- against a map ----

// A table and a map that are asked the same. What the table evicts is taken from the map when the counters say so:
// exactly one key a time, and with the tokens that were counted.
class Modelled {
 public:
  Modelled(Policy policy, std::int64_t max_keys) : terms_{policy, 0, policy, {}} {
    generation_ = table_.open(max_keys, 0);
  }

  const Policy& policy() const { return terms_.policy; }
  const IntervalTable& table() const { return table_; }
  void advance(Nanos by) { now_ = now_ + by; }

  void decide(KeyHash key, Tokens hits) {
    IntervalSet& state = model_[key.v];
    const Decision expected = state.decide(terms_.policy, hits, now_);
    if (expected.allowed) state.compact(terms_.policy, now_);
    Decision answer;
    REQUIRE(table_.decide(generation_, terms_, key, hits, now_, answer) == Status::ok);
    REQUIRE(answer.allowed == expected.allowed);
    REQUIRE(answer.remaining == expected.remaining);
    REQUIRE(answer.reset == expected.reset);
    REQUIRE(answer.retry == expected.retry);
    if (state.empty()) model_.erase(key.v);
    follow_evictions();
  }

  void peek(KeyHash key) {
    IntervalSet state;
    REQUIRE(table_.peek(generation_, terms_, key, now_, state) == Status::ok);
    state.compact(terms_.policy, now_);
    IntervalSet expected = model_.contains(key.v) ? model_[key.v] : IntervalSet{};
    if (expected.empty()) model_.erase(key.v);
    expected.compact(terms_.policy, now_);
    REQUIRE(state == expected);
  }

  void reset(KeyHash key) {
    REQUIRE(table_.reset(generation_, terms_, key, now_) == Status::ok);
    model_.erase(key.v);
    peek(key);
  }

  void sweep_some() {
    if (table_.sweep(generation_, terms_, now_, sweep_cursor_, 1)) sweep_cursor_ = 0;
  }
  void sweep_all() {
    convert_all();
    std::size_t cursor = 0;
    while (!table_.sweep(generation_, terms_, now_, cursor, 1)) {
    }
    check_all();
    REQUIRE(table_.stats().keys == static_cast<std::int64_t>(model_.size()));
  }

  // The dead leave first: under a longer horizon they would be alive again, if nobody had taken their slots.
  void change(Policy policy) {
    sweep_all();
    terms_ = {policy, terms_.version + 1, terms_.policy, now_};
    for (auto& [key, state] : model_) state.change(terms_.before, terms_.policy, now_);
    std::erase_if(model_, [](const auto& entry) { return entry.second.empty(); });
  }
  void convert_all() {
    std::size_t cursor = 0;
    while (!table_.convert(generation_, terms_, cursor, 1)) {
    }
  }

  // Every key that isn't dead is visited once, in the model's state, and no other.
  void check_all() {
    convert_all();
    std::erase_if(model_, [&](const auto& entry) { return expired(entry.second, terms_.policy, now_); });
    std::unordered_set<std::uint64_t> seen;
    table_.for_each(terms_, now_, [&](KeyHash key, const IntervalSet& state) {
      REQUIRE(seen.insert(key.v).second);
      REQUIRE(model_.contains(key.v));
      REQUIRE(state == model_[key.v]);
      most_intervals_ = std::max(most_intervals_, state.size());
    });
    REQUIRE(seen.size() == model_.size());
  }

  std::size_t most_intervals() const { return most_intervals_; }

 private:
  void follow_evictions() {
    const TableStats stats = table_.stats();
    const std::int64_t keys = stats.evicted_keys - evicted_keys_;
    const std::int64_t tokens = stats.evicted_tokens - evicted_tokens_;
    evicted_keys_ = stats.evicted_keys;
    evicted_tokens_ = stats.evicted_tokens;
    if (keys == 0) {
      REQUIRE(tokens == 0);
      return;
    }
    convert_all();
    std::unordered_set<std::uint64_t> kept;
    table_.for_each(terms_, now_, [&](KeyHash key, const IntervalSet&) { kept.insert(key.v); });
    std::erase_if(model_, [&](const auto& entry) { return expired(entry.second, terms_.policy, now_); });
    std::int64_t lost = 0;
    REQUIRE(keys == 1);
    REQUIRE(kept.size() + 1 == model_.size());
    std::erase_if(model_, [&](const auto& entry) {
      if (kept.contains(entry.first)) return false;
      lost += entry.second.level(terms_.policy, now_).v;
      return true;
    });
    REQUIRE(lost == tokens);
    REQUIRE(kept.size() == model_.size());
  }

  Arena arena_;
  IntervalTable table_{arena_};
  std::unordered_map<std::uint64_t, IntervalSet> model_;
  IntervalTable::Generation generation_ = 0;
  Terms terms_;
  Nanos now_ = kBase;
  std::int64_t evicted_keys_ = 0;
  std::int64_t evicted_tokens_ = 0;
  std::size_t most_intervals_ = 0;
  std::size_t sweep_cursor_ = 0;
};

// `calm`: below the rate, so that sets have many intervals; else mostly busy.
void step(Rng& rng, Modelled& table, std::uint64_t family, std::int64_t keys, bool calm) {
  const KeyHash key = key_of(family, static_cast<std::uint64_t>(draw(rng, 1, keys)));
  const Policy policy = table.policy();
  const auto what = draw(rng, 1, 1000);
  if (what <= 600 && calm) {
    table.advance(test::draw_span(rng, policy, 3));
    table.decide(key, {1});
  } else if (what <= 600) {
    table.decide(key, {chance(rng, 98) ? draw(rng, 1, 1 + policy.capacity.v / 8) : policy.capacity.v + 1});
  } else if (what <= 660) {
    table.peek(key);
  } else if (what <= 664) {
    table.reset(key);
  } else if (what <= 960) {
    const std::int64_t most = chance(rng, 98) ? 3 : 3 * policy.capacity.v;
    table.advance(test::draw_span(rng, policy, std::min(most, kSpanMax.v / policy.interval.v)));
  } else if (what <= 985) {
    table.sweep_some();
  } else if (what <= 992) {
    // Often with the same T: then the intervals stay.
    const Policy to = test::draw_policy(rng);
    table.change(chance(rng, 50) ? to : Policy{to.capacity, policy.interval});
  } else if (what <= 996) {
    table.sweep_all();
  } else {
    table.check_all();
  }
}

TEST_CASE("interval table: answers as a map of sets does, whatever is asked", "[table][interval]") {
  std::size_t most_intervals = 0;
  std::int64_t evicted = 0;
  std::int64_t largest = 0;
  test::for_cases([&](Rng& rng) {
    const std::int64_t keys = pick<std::int64_t>(rng, {1, 2, 4, 30, 300, 3000});
    Modelled table(test::draw_policy(rng), pick<std::int64_t>(rng, {1, 2, 10, 100, 1'000'000, 1'000'000}));
    const auto family = static_cast<std::uint64_t>(draw(rng, 1, 1 << 20));
    for (std::int64_t i = 1; i <= keys; ++i) table.decide(key_of(family, static_cast<std::uint64_t>(i)), {1});
    const std::int64_t steps = draw(rng, 1, 500);
    const bool calm = chance(rng, 50);
    for (std::int64_t i = 0; i < steps; ++i) step(rng, table, family, keys, calm);
    table.check_all();
    table.sweep_all();
    most_intervals = std::max(most_intervals, table.most_intervals());
    evicted += table.table().stats().evicted_keys;
    largest = std::max(largest, table.table().stats().keys);
  });
  if (test::case_count() >= 100) {
    CHECK(most_intervals == kIntervalCap);
    CHECK(evicted > 0);
    CHECK(largest > 1000);
  }
}

TEST_CASE("interval table: nobody is evicted before max_keys, however the keys fall", "[table][interval]") {
  const Policy policy{{2}, kSecond};
  const Terms terms{policy, 0, policy, {}};
  // About one key in a million doesn't fit into its segment although that has had a page more: it must be split then.
  const std::uint64_t tables = test::case_count() / 3 + 1;
  std::uint64_t family = test::environment("WEIR_SEED", 100);
  for (std::uint64_t t = 0; t < tables; ++t, ++family) {
    constexpr std::int64_t kKeys = 20'000;
    Arena arena;
    IntervalTable table(arena);
    const auto generation = table.open(2 * kKeys, 0);
    Decision decision;
    for (std::uint64_t i = 0; i < kKeys; ++i)
      REQUIRE(table.decide(generation, terms, key_of(family, i), {1}, kBase, decision) == Status::ok);
    INFO("keys of family " << family);
    REQUIRE(table.stats().evicted_keys == 0);
    REQUIRE(table.stats().keys == kKeys);
  }
}

// ---- the heap ----

// Whether there is anything to be seen of the heap; says so if not.
bool heap_watched() {
  if (!test::kHeapWatched) WARN("the heap can't be watched under this sanitizer");
  return test::kHeapWatched;
}

// A table of keys that are asked now and then, so that their sets have several intervals, and its view of the heap.
struct Spiller {
  static constexpr Policy kPolicy{{20}, kSecond};
  Arena arena;
  IntervalTable table{arena};
  IntervalTable::Generation generation;
  Terms terms{kPolicy, 0, kPolicy, {}};
  Nanos now = kBase;
  std::int64_t rest;  // of memory_bytes, beside pages and heap

  explicit Spiller(std::int64_t max_keys = 1'000'000)
      : generation(table.open(max_keys, 0)), rest(table.stats().memory_bytes - table.bytes()) {}

  Decision ask(KeyHash key) {
    Decision decision;
    const test::CountedHeap counted;
    const Status status = table.decide(generation, terms, key, {1}, now, decision);
    if (status != Status::ok) FAIL("the table is open");
    return decision;
  }
  // Each of the keys has `births` births more, each an interval.
  void fill(std::uint64_t keys, int births) {
    for (int birth = 0; birth < births; ++birth, now = now + kSecond + kSecond)
      for (std::uint64_t i = 0; i < keys; ++i) ask(key_of(3, i));
  }
  void sweep() {
    std::size_t cursor = 0;
    while (!table.sweep(generation, terms, now, cursor, 1)) {
    }
  }
  static std::int64_t blocks() { return test::CountedHeap::blocks(); }
  std::int64_t bytes() const { return table.stats().memory_bytes - table.bytes() - rest; }
  IntervalSet state(KeyHash key) {
    IntervalSet state;
    REQUIRE(table.peek(generation, terms, key, now, state) == Status::ok);
    return state;
  }
  // A block each for states of two intervals or more, none for others.
  void check() {
    std::int64_t spilled = 0, least = 0;
    table.for_each(terms, now, [&](KeyHash, const IntervalSet& state) {
      if (state.size() < 2) return;
      ++spilled;
      least += static_cast<std::int64_t>(state.size() * sizeof(Interval));
    });
    CHECK(blocks() == spilled);
    CHECK(bytes() >= least);
    CHECK(bytes() <= 4 * least + IntervalCell::kBlockOverhead * spilled);
  }
};

TEST_CASE("interval table: a state of one interval needs no heap, others one block each", "[table][interval]") {
  if (!heap_watched()) return;
  Spiller s;
  s.fill(5000, 1);
  CHECK(s.table.stats().keys == 5000);
  CHECK(s.blocks() == 0);
  CHECK(s.bytes() == 0);
  for (int births = 2; births <= 9; ++births) {
    s.fill(5000, 1);
    s.check();
    CHECK(s.blocks() == 5000);
  }
  for (std::uint64_t i = 0; i < 5000; i += 2)
    REQUIRE(s.table.reset(s.generation, s.terms, key_of(3, i), s.now) == Status::ok);
  CHECK(s.blocks() == 2500);
  s.check();
}

TEST_CASE("interval table: blocks come back when states expire, are taken, or shrink to one", "[table][interval]") {
  if (!heap_watched()) return;
  Spiller s;
  s.fill(3000, 6);
  const auto most = s.bytes();
  CHECK(s.blocks() == 3000);

  SECTION("swept") {
    s.now = s.now + Spiller::kPolicy.span() + IntervalSet::horizon(Spiller::kPolicy);
    s.sweep();
    CHECK(s.table.stats().keys == 0);
    CHECK(s.blocks() == 0);
    CHECK(s.bytes() == 0);
  }
  SECTION("old intervals leave with the next birth") {
    s.now = s.now + IntervalSet::horizon(Spiller::kPolicy);
    s.fill(3000, 1);
    CHECK(s.table.stats().keys == 3000);
    CHECK(s.blocks() == 0);
    CHECK(s.bytes() == 0);
  }
  SECTION("the dead make way for new keys") {
    s.now = s.now + Spiller::kPolicy.span() + IntervalSet::horizon(Spiller::kPolicy);
    for (std::uint64_t i = 0; i < 20'000; ++i) s.ask(key_of(4, i));
    s.check();
    CHECK(s.bytes() < most);
  }
  SECTION("a change of the emission interval leaves one interval") {
    s.terms = {{{20}, {kSecond.v / 2}}, 1, Spiller::kPolicy, s.now - kSecond - kSecond};
    std::size_t cursor = 0;
    while (!s.table.convert(s.generation, s.terms, cursor, 1)) {
    }
    CHECK(s.state(key_of(3, 0)).size() == 1);
    CHECK(s.blocks() == 0);
    CHECK(s.bytes() == 0);
  }
  SECTION("closed, in slices") {
    REQUIRE(s.table.begin_close());
    while (!s.table.close_some(1)) {
    }
    CHECK(s.blocks() == 0);
    CHECK(s.table.stats().memory_bytes == 0);
  }
}

TEST_CASE("interval table: evicting frees what the evicted key had", "[table][interval]") {
  if (!heap_watched()) return;
  Spiller s(50);
  s.fill(200, 4);
  CHECK(s.table.stats().evicted_keys > 0);
  s.check();
  CHECK(s.blocks() < 200);
}

TEST_CASE("interval table: a table that goes takes its blocks along", "[table][interval]") {
  if (!heap_watched()) return;
  {
    Spiller s;
    s.fill(3000, 3);
    CHECK(s.blocks() == 3000);
  }
  CHECK(test::CountedHeap::blocks() == 0);
}

TEST_CASE("interval table: without memory nothing changes, and shrinking doesn't need any", "[table][interval]") {
  if (!heap_watched()) return;
  Spiller s;
  const KeyHash key = key_of(5, 1);
  std::size_t failures = 0;
  for (int birth = 1; birth <= 18; ++birth, s.now = s.now + kSecond + kSecond) {
    const IntervalSet before = s.state(key);
    const auto bytes = s.bytes();
    Decision decision;
    try {
      const test::FailingHeap failing;
      const test::CountedHeap counted;
      (void)s.table.decide(s.generation, s.terms, key, {1}, s.now, decision);
    } catch (const std::bad_alloc&) {
      ++failures;
      REQUIRE(s.state(key) == before);
      REQUIRE(s.bytes() == bytes);
      REQUIRE(s.blocks() == static_cast<std::int64_t>(before.size() > 1));
      REQUIRE(s.table.stats().keys == 1);
      REQUIRE(s.ask(key).allowed);
    }
    REQUIRE(s.state(key).size() == std::min<std::size_t>(before.size() + 1, 21));
  }
  CHECK(failures == 5);  // at 2, 3, 5, 9 and 17 intervals

  // All but two or three intervals are too old by now; the block could be smaller.
  const auto bytes = s.bytes();
  s.now = s.now + IntervalSet::horizon(Spiller::kPolicy) - Tokens{6} * kSecond;
  {
    const test::FailingHeap failing;
    Decision decision;
    REQUIRE(s.table.decide(s.generation, s.terms, key, {1}, s.now, decision) == Status::ok);
    CHECK(decision.allowed);
  }
  const std::size_t size = s.state(key).size();
  CHECK(size > 1);
  CHECK(size * 4 <= 32);
  CHECK(s.bytes() == bytes);
  s.now = s.now + kSecond + kSecond;
  CHECK(s.ask(key).allowed);
  CHECK(s.bytes() < bytes);
  s.check();
}

TEST_CASE("interval table: an arena may be shared with tables of another cell", "[table][interval]") {
  Arena arena;
  const Policy policy{{3}, kSecond};
  const Terms terms{policy, 0, policy, {}};
  Decision decision;
  for (int turn = 0; turn < 5; ++turn) {
    IntervalTable sets(arena);
    Table<TatCell> tats(arena);
    const auto g1 = sets.open(100'000, 0);
    const auto g2 = tats.open(100'000, 0);
    for (const std::int64_t wait : {0, 2}) {
      const Nanos now = kBase + Tokens{wait} * kSecond;
      for (std::uint64_t i = 0; i < 10'000; ++i) {
        REQUIRE(sets.decide(g1, terms, key_of(6, i), {1}, now, decision) == Status::ok);
        REQUIRE(decision.remaining == Tokens{2});
        REQUIRE(tats.decide(g2, terms, key_of(6, i), {1}, now, decision) == Status::ok);
        REQUIRE(decision.remaining == Tokens{2});
      }
    }
  }
}

// ---- many callers ----

using test::Barrier;
using test::round_count;
using test::run_threads;

TEST_CASE("interval table: eight threads on one key are admitted exactly c times", "[table][interval][threads]") {
  constexpr std::int64_t kCapacity = 20;
  const Policy policy{{kCapacity}, kSecond};
  const Terms terms{policy, 0, policy, {}};
  Arena arena;
  IntervalTable table(arena);
  const auto generation = table.open(1'000'000, 0);
  Barrier barrier(kThreads);
  std::vector<std::atomic<std::int64_t>> admitted(round_count());
  run_threads(kThreads, [&](unsigned) {
    for (std::uint64_t round = 0; round < admitted.size(); ++round) {
      barrier.wait();
      Decision decision{true, {}, {}, {}};
      while (decision.allowed) {
        if (table.decide(generation, terms, key_of(7, round), {1}, kBase, decision) != Status::ok) break;
        admitted[round] += decision.allowed;
      }
    }
  });
  for (std::uint64_t round = 0; round < admitted.size(); ++round) {
    INFO("round " << round);
    REQUIRE(admitted[round] == kCapacity);
  }
}

// Rounds of frozen time. In each, every thread asks every key `asks` times, and for keys of its own that make the table
// grow; one sweeps. As all hits of a round are alike, how many are admitted doesn't depend on the order: a set asked
// 8 * asks times in a row must admit as many, and be left in the same state.
struct Crowd {
  static constexpr std::uint64_t kKeys = 60;
  static constexpr std::uint64_t kFresh = 60;
  Policy policy{{400}, kSecond};
  Terms terms{policy, 0, policy, {}};
  Arena arena;
  IntervalTable table{arena};
  IntervalTable::Generation generation = table.open(1'000'000, 0);
  Nanos now = kBase;
  std::array<std::int64_t, kKeys> asks{};
  std::array<std::atomic<std::int64_t>, kKeys> admitted{};
  std::array<IntervalSet, kKeys> model;
  std::atomic<std::int64_t> faults{0};
  std::size_t most_intervals = 0;
  std::int64_t denied = 0;

  bool ask(KeyHash key) {
    Decision decision;
    const test::CountedHeap counted;
    if (table.decide(generation, terms, key, {1}, now, decision) != Status::ok) ++faults;
    return decision.allowed;
  }
  void prepare(Rng& rng) {
    for (std::int64_t& each : asks) each = !chance(rng, 10) ? 0 : chance(rng, 95) ? draw(rng, 1, 6) : 60;
    now = now + test::draw_span(rng, policy, 12);
  }
  void take_part(unsigned id, std::uint64_t round, std::size_t& cursor) {
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      const std::uint64_t key = (i + id * 7) % kKeys;
      for (std::int64_t n = 0; n < asks[key]; ++n) admitted[key] += ask(key_of(8, key));
      faults += !ask(key_of(10 + id, round * kFresh + i % kFresh));
      if (id == 0 && i % 8 == 0 && table.sweep(generation, terms, now, cursor, 1)) cursor = 0;
    }
  }
  void judge() {
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      std::int64_t expected = 0;
      for (std::int64_t n = 0; n < asks[key] * kThreads; ++n) {
        const bool allowed = model[key].decide(policy, {1}, now).allowed;
        if (allowed) model[key].compact(policy, now);
        expected += allowed;
        denied += !allowed;
      }
      faults += admitted[key].exchange(0) != expected;
      most_intervals = std::max(most_intervals, model[key].size());
      IntervalSet state;
      const bool same = table.peek(generation, terms, key_of(8, key), now, state) == Status::ok && state == model[key];
      faults += !same && !expired(model[key], policy, now);
    }
  }
};

TEST_CASE("interval table: many keys are exact while sets spill, shrink, move and expire",
          "[table][interval][threads]") {
  {
    Crowd crowd;
    Barrier barrier(kThreads);
    const std::uint64_t rounds = round_count() / 10 + 60;
    run_threads(kThreads, [&](unsigned id) {
      Rng rng(test::environment("WEIR_SEED", 11));
      std::size_t cursor = 0;
      for (std::uint64_t round = 0; round < rounds; ++round) {
        if (id == 0) crowd.prepare(rng);
        barrier.wait();
        crowd.take_part(id, round, cursor);
        barrier.wait();
        if (id == 0) crowd.judge();
      }
    });
    CHECK(crowd.faults == 0);
    CHECK(crowd.most_intervals > 4);
    CHECK(crowd.denied > 0);
    CHECK((test::CountedHeap::blocks() > 0) == test::kHeapWatched);
  }
  CHECK(test::CountedHeap::blocks() == 0);
}

}  // namespace
}  // namespace weir
