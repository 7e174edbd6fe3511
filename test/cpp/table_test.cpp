// Shows R04, R05, R06, R40, R41 of doc/requirements.md.
// The key table against a map, one caller at a time: any operations on any keys, full tables, hashes made to collide,
// growth and what it costs, expiry and what it gives back. (table_threads_test.cpp: many callers.)
#include "weir/table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "table_model.hpp"

namespace weir {
namespace {

using test::chance;
using test::draw;
using test::kBase;
using test::ModelledTable;
using test::pick;
using test::Rng;

constexpr Nanos kSecond{1'000'000'000};

[[noreturn]] void fail(const char* what) {
  FAIL(what);
  std::abort();  // FAIL has thrown
}

// ---- keys ----

enum class Shape { scattered, same_home, same_lines, same_top, consecutive, same_low_half };

// Different hashes of a shape. Two keys of `same_lines` have both of their lines in common in a table of one segment of
// any size (so eight of them fill both); the index of the second line comes from the top of hash * golden ratio.
std::vector<KeyHash> draw_keys(Rng& rng, Shape shape, std::int64_t count) {
  std::unordered_map<std::uint64_t, bool> seen;
  std::vector<KeyHash> keys;
  const std::uint64_t low = rng() >> 32;
  const std::uint64_t top = rng() << 32;
  while (static_cast<std::int64_t>(keys.size()) < count) {
    std::uint64_t hash = rng();
    if (shape == Shape::same_home) hash = (hash & 0xffffffff00000000) | low;
    if (shape == Shape::same_top) hash = (hash & 0x00000000ffffffff) | top;
    if (shape == Shape::consecutive) hash = top + keys.size();
    if (shape == Shape::same_low_half) hash = (hash & 0xffffffff'80000000) | (low & 0x7fffffff);
    if (shape == Shape::same_lines) {
      // hash = mixed / golden ratio, with the upper half of `mixed` given; then the low half is near `low` by search.
      constexpr std::uint64_t kInverse = 0xf1de83e19937733d;  // of 0x9e3779b97f4a7c15 modulo 2^64
      hash = (top | hash >> 32) * kInverse;
      if ((hash & 0xffffffff) >> 23 != low >> 23) continue;
    }
    if (hash != 0 && seen.emplace(hash, true).second) keys.push_back({hash});
  }
  return keys;
}

Shape draw_shape(Rng& rng) {
  return pick(rng, {Shape::scattered, Shape::scattered, Shape::scattered, Shape::same_home, Shape::same_lines,
                    Shape::same_top, Shape::consecutive, Shape::same_low_half});
}

// As test::draw_policy, and the longest spans that there are.
Policy draw_policy(Rng& rng) {
  if (chance(rng, 90)) return test::draw_policy(rng);
  return pick(rng, {Policy{{1}, kSpanMax}, Policy{{kSpanMax.v}, {1}}, Policy{{1 << 20}, {std::int64_t{1} << 40}},
                    Policy{{1}, {1}}});
}

// ---- against the map ----

void step(Rng& rng, ModelledTable& table, const std::vector<KeyHash>& keys) {
  const KeyHash key = keys[static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(keys.size()) - 1))];
  const Policy policy = table.policy();
  const auto what = draw(rng, 1, 1000);
  if (what <= 800) {
    const std::int64_t most = chance(rng, 80) ? 1 + policy.capacity.v / 4 : policy.capacity.v;
    table.decide(key, {chance(rng, 98) ? draw(rng, 1, most) : policy.capacity.v + draw(rng, 1, 5)});
  } else if (what <= 840) {
    table.peek(key);
  } else if (what <= 855) {
    table.walk_some();
  } else if (what <= 865) {
    table.take(key);
  } else if (what <= 880) {
    table.set_level(key, {draw(rng, 0, policy.capacity.v)}, chance(rng, 50));
  } else if (what <= 910) {
    table.reset(key);
  } else if (what <= 950) {
    const auto most = pick<std::int64_t>(rng, {0, 1, 3, policy.capacity.v});
    table.advance(test::draw_span(rng, policy, std::min(most, kSpanMax.v / policy.interval.v)));
  } else if (what <= 970) {
    table.sweep_some(static_cast<unsigned>(draw(rng, 1, 3)));
  } else if (what <= 985) {
    table.convert_some(static_cast<unsigned>(draw(rng, 1, 3)));
  } else if (what <= 990) {
    table.change(chance(rng, 50) ? draw_policy(rng)
                                 : Policy{{draw(rng, 1, std::min<std::int64_t>(200, kSpanMax.v / policy.interval.v))},
                                          policy.interval});
  } else if (what <= 993) {
    table.sweep_all();
  } else if (what <= 996) {
    table.ask_with_wrong_terms(key);
  } else if (what <= 998) {
    table.check_all();
  } else {
    table.reopen(draw_policy(rng), pick<std::int64_t>(rng, {1, 2, 5, 50, 1000, 1'000'000}),
                 static_cast<std::uint32_t>(rng()), key);
  }
}

TEST_CASE("table: answers as a map does, whatever is asked of whichever keys", "[table]") {
  std::int64_t evicted = 0;
  std::int64_t largest = 0;
  test::for_cases([&](Rng& rng) {
    const Shape shape = draw_shape(rng);
    const std::int64_t most = shape == Shape::same_lines ? 12 : chance(rng, 90) ? 300 : 4000;
    const std::vector<KeyHash> keys = draw_keys(rng, shape, draw(rng, 1, most));
    const auto max_keys = pick<std::int64_t>(rng, {1, 2, 4, 10, 100, 1000, 1'000'000, 1'000'000});
    const Nanos start = pick(rng, {kBase, Nanos{0}, Nanos{(std::int64_t{1} << 61) - 1}, Nanos{1}});
    ModelledTable table(draw_policy(rng), max_keys, static_cast<std::uint32_t>(rng()), start, fail);
    for (const KeyHash key : keys) table.decide(key, {1});
    const std::int64_t steps = draw(rng, 1, 400);
    for (std::int64_t i = 0; i < steps; ++i) step(rng, table, keys);
    table.check_all();
    table.sweep_all();
    evicted += table.stats().evicted_keys;
    largest = std::max(largest, table.stats().keys);
  });
  if (test::case_count() >= 100) {
    CHECK(evicted > 0);
    CHECK(largest > 1000);
  }
}

TEST_CASE("table: each of 200 changes of the limiter is followed, past the wrap of the version", "[table]") {
  Rng rng(test::environment("WEIR_SEED", 7));
  const std::vector<KeyHash> keys = draw_keys(rng, Shape::scattered, 5000);
  ModelledTable table({{100}, kSecond}, 100'000, 0xffffffff - 100, kBase, fail);
  for (const KeyHash key : keys) table.decide(key, {draw(rng, 1, 100)});
  for (int change = 0; change < 200; ++change) {
    table.advance(kSecond);
    table.change({{draw(rng, 50, 200)}, pick(rng, {kSecond, Nanos{kSecond.v * 3}})});
    for (int i = 0; i < 20; ++i) table.decide(keys[static_cast<std::size_t>(draw(rng, 0, 4999))], {draw(rng, 1, 30)});
    if (chance(rng, 50)) table.convert_some(3);
    if (change % 20 == 0) table.ask_with_wrong_terms(keys[0]);
  }
  table.check_all();
}

TEST_CASE("table: hits above the capacity leave no key behind", "[table]") {
  Arena arena;
  Table table(arena);
  const auto generation = table.open(1000, 0);
  const Terms terms{{{5}, kSecond}, 0, {}, {}};
  for (std::uint64_t key = 1; key <= 100; ++key) {
    Decision decision;
    REQUIRE(table.decide(generation, terms, {key << 40}, {6}, kBase, decision) == Status::ok);
    REQUIRE_FALSE(decision.allowed);
    REQUIRE(decision.retry == kNever);
    REQUIRE(decision.remaining.v == 5);
  }
  CHECK(table.stats().keys == 0);
}

// ---- who is evicted ----

// Four keys of one home line in a table for four: a new key of that home takes a dead key's slot, or the slot of the
// key with the lowest level, since nothing else lies nearby.
TEST_CASE("table: the evicted key has the lowest level of its line", "[table]") {
  test::for_cases([](Rng& rng) {
    const Policy policy = test::draw_policy(rng);
    Arena arena;
    Table table(arena);
    const auto generation = table.open(Table::kSlots, 0);
    const Terms terms{policy, 0, policy, {}};
    struct Key {
      KeyHash hash;
      Tat state;
    };
    std::array<Key, Table::kSlots> line;
    Nanos now = kBase;
    std::int64_t evicted_keys = 0;
    std::int64_t evicted_tokens = 0;
    const auto fresh = [&] { return KeyHash{(rng() & 0xffffffff00000000) | std::uint64_t{7} << 26 | 1}; };
    const auto decide = [&](Key& key, Tokens hits) {
      Decision answer;
      REQUIRE(table.decide(generation, terms, key.hash, hits, now, answer) == Status::ok);
      const Decision expected = key.state.decide(policy, hits, now);
      REQUIRE(answer.allowed == expected.allowed);
      REQUIRE(answer.remaining == expected.remaining);
      return answer.allowed;
    };
    for (Key& key : line) {
      key.hash = fresh();
      REQUIRE(decide(key, {draw(rng, 1, policy.capacity.v)}));
    }
    for (int i = 0; i < 100; ++i) {
      if (chance(rng, 10)) now = now + test::draw_span(rng, policy, 2);
      if (chance(rng, 50)) {
        decide(line[static_cast<std::size_t>(draw(rng, 0, Table::kSlots - 1))], {draw(rng, 1, 3)});
        continue;
      }
      Key* const lowest = std::min_element(
          line.begin(), line.end(), [](const Key& a, const Key& b) { return a.state.value() < b.state.value(); });
      const bool tie = std::count_if(line.begin(), line.end(),
                                     [&](const Key& key) { return key.state.value() == lowest->state.value(); }) > 1;
      if (tie) continue;  // either may go
      const Tokens level = lowest->state.level(policy, now);
      const bool any_dead = lowest->state.value() <= now;
      Key incoming{fresh(), {}};
      REQUIRE(decide(incoming, {draw(rng, 1, policy.capacity.v)}));
      if (!any_dead) {
        ++evicted_keys;
        evicted_tokens += level.v;
      }
      *lowest = incoming;  // of several dead keys another may have made room: they are all alike
      REQUIRE(table.stats().evicted_keys == evicted_keys);
      REQUIRE(table.stats().evicted_tokens == evicted_tokens);
      REQUIRE(table.stats().keys == Table::kSlots);
      for (const Key& key : line) {
        Tat state;
        REQUIRE(table.peek(generation, terms, key.hash, now, state) == Status::ok);
        REQUIRE(std::max(state.value(), now) == std::max(key.state.value(), now));
      }
    }
  });
}

// ---- many keys ----

struct Sum {
  std::int64_t keys = 0;
  std::int64_t tokens = 0;
};

Sum sum_of(Table& table, const Terms& terms, Nanos now) {
  Sum sum;
  table.for_each(terms, now, [&](KeyHash, const Tat& state) {
    ++sum.keys;
    sum.tokens += state.level(terms.policy, now).v;
  });
  return sum;
}

// Key i of a run of scattered keys, without a list of them (splitmix64: a bijection).
KeyHash scattered(std::uint64_t i) {
  std::uint64_t z = i * 0x9e3779b97f4a7c15 + 0x1234567;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return {(z ^ z >> 31) == 0 ? 1 : z ^ z >> 31};
}

std::int64_t most_keys() {
  return static_cast<std::int64_t>(test::environment("WEIR_KEYS", test::case_count() >= 10'000 ? 4'000'000 : 500'000));
}

TEST_CASE("table: hashes made to collide are stored, evicted and counted; nothing is lost unseen", "[table]") {
  for (const Shape shape : {Shape::same_home, Shape::same_top, Shape::consecutive, Shape::same_low_half}) {
    Rng rng(11);
    Arena arena;
    Table table(arena);
    constexpr std::int64_t kCount = 4000;
    const auto generation = table.open(100'000, 0);
    const Terms terms{{{3}, kSecond}, 0, {}, {}};
    for (const KeyHash key : draw_keys(rng, shape, kCount)) {
      Decision decision;
      REQUIRE(table.decide(generation, terms, key, {2}, kBase, decision) == Status::ok);
      REQUIRE(decision.allowed);
    }
    const Sum sum = sum_of(table, terms, kBase);
    const TableStats stats = table.stats();
    CHECK(sum.keys + stats.evicted_keys == kCount);
    CHECK(sum.tokens + stats.evicted_tokens == 2 * kCount);
    CHECK(stats.keys == sum.keys);
    CHECK(sum.keys >= 1000);  // a segment that can't be split holds this many at least
    fmt::print("table: shape {}: {} of {} keys kept in {} KiB\n", static_cast<int>(shape), sum.keys, kCount,
               stats.memory_bytes / 1024);
  }
}

TEST_CASE("table: grown from empty it keeps every key, in at most 24 bytes each", "[table]") {
  const std::int64_t count = most_keys();
  Arena arena;
  Table table(arena);
  const auto generation = table.open(16'000'000, 5);
  const Terms terms{{{10}, kSecond}, 5, {}, {}};
  double least = 1e9;
  double worst = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Decision decision;
    table.decide(generation, terms, scattered(static_cast<std::uint64_t>(i)), {i % 10 + 1}, kBase, decision);
    if (!decision.allowed) FAIL("a fresh key was denied");
    const std::int64_t keys = i + 1;
    if (keys >= 100'000 && keys % std::max<std::int64_t>(count / 40, 1) == 0) {
      const double each = static_cast<double>(table.stats().memory_bytes) / static_cast<double>(keys);
      least = std::min(least, each);
      worst = std::max(worst, each);
      REQUIRE(table.stats().memory_bytes <= 24 * keys);
    }
  }
  CHECK(table.stats().keys == count);
  CHECK(table.stats().evicted_keys == 0);
  fmt::print("table: 100000 to {} keys: {:.1f} to {:.1f} bytes a key (directory included)\n", count, least, worst);

  std::vector<bool> seen(static_cast<std::size_t>(count));
  std::unordered_map<std::uint64_t, std::int64_t> index;
  index.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) index.emplace(scattered(static_cast<std::uint64_t>(i)).v, i);
  std::int64_t visits = 0;
  table.for_each(terms, kBase, [&](KeyHash key, const Tat& state) {
    const auto known = index.find(key.v);
    if (known == index.end()) FAIL("for_each: a key that nobody inserted");
    const auto i = known->second;
    if (seen[static_cast<std::size_t>(i)]) FAIL("for_each: a key twice");
    seen[static_cast<std::size_t>(i)] = true;
    if (state.level(terms.policy, kBase).v != i % 10 + 1) FAIL("for_each: another state");
    ++visits;
  });
  CHECK(visits == count);
}

TEST_CASE("table: what has expired is swept away and its memory given back", "[table]") {
  const std::int64_t count = most_keys() / 2;
  Arena arena;
  Table table(arena);
  const auto generation = table.open(16'000'000, 0);
  const Terms terms{{{10}, kSecond}, 0, {}, {}};
  Decision decision;
  const auto insert = [&](std::int64_t from, std::int64_t to, Nanos now) {
    for (std::int64_t i = from; i < to; ++i) {
      table.decide(generation, terms, scattered(static_cast<std::uint64_t>(i)), {i % 10 + 1}, now, decision);
      if (!decision.allowed) FAIL("a fresh key was denied");
    }
  };
  const auto sweep = [&](Nanos now) {
    Table::Cursor cursor = 0;
    while (!table.sweep(generation, terms, now, cursor, 7)) {
    }
  };
  insert(0, count, kBase);
  const std::int64_t full = table.stats().memory_bytes;
  sweep(kBase);
  CHECK(table.stats().keys == count);  // nothing has died
  CHECK(table.stats().memory_bytes <= full);

  sweep(kBase + Tokens{5} * kSecond);  // half of them
  CHECK(table.stats().keys == count / 2);
  CHECK(sum_of(table, terms, kBase + Tokens{5} * kSecond).keys == count / 2);
  const std::int64_t half = table.stats().memory_bytes;
  CHECK(half < full * 3 / 4);

  sweep(kBase + Tokens{10} * kSecond);  // the rest
  CHECK(table.stats().keys == 0);
  const std::int64_t empty = table.stats().memory_bytes;
  fmt::print("table: {} keys: {:.1f} bytes each; half expired: {:.1f}; all expired: {:.1f} (one page a segment)\n",
             count, static_cast<double>(full) / static_cast<double>(count),
             static_cast<double>(half) / static_cast<double>(count),
             static_cast<double>(empty) / static_cast<double>(count));
  // One page a segment stays, and a segment was split only when its 8 pages were full.
  CHECK(empty < full / 3);

  // Grown anew, into the segments that are there.
  insert(count, 2 * count, kBase + Tokens{20} * kSecond);
  CHECK(table.stats().keys == count);
  CHECK(table.stats().memory_bytes <= 24 * count);

  REQUIRE(table.begin_close());
  while (!table.close_some(100)) {
  }
  CHECK(table.stats().memory_bytes == 0);
}

TEST_CASE("table: the slots of dead keys are taken by new ones, without a sweep", "[table]") {
  constexpr std::int64_t kCount = 100'000;
  Arena arena;
  Table table(arena);
  const auto generation = table.open(16'000'000, 0);
  const Terms terms{{{1}, kSecond}, 0, {}, {}};
  std::int64_t first = 0;
  for (std::int64_t wave = 0; wave < 8; ++wave) {
    const Nanos now = kBase + Tokens{wave} * kSecond;
    Decision decision;
    for (std::int64_t i = 0; i < kCount; ++i)
      table.decide(generation, terms, scattered(static_cast<std::uint64_t>(wave * kCount + i)), {1}, now, decision);
    REQUIRE(sum_of(table, terms, now).keys == kCount);
    if (wave == 0) first = table.stats().memory_bytes;
  }
  // Eight times the keys passed through; a quarter of them would not fit if dead ones stayed.
  CHECK(table.stats().memory_bytes < first * 2);
  CHECK(table.stats().evicted_keys == 0);
}

TEST_CASE("table: max_keys scattered keys fit almost all; beyond it the number stands", "[table]") {
  for (const std::int64_t max_keys : {100, 1000, 10'000, 60'000, 100'000, 131'072, 200'000}) {
    Arena arena;
    Table table(arena);
    const auto generation = table.open(max_keys, 0);
    const Terms terms{{{10}, kSecond}, 0, {}, {}};
    Decision decision;
    for (std::int64_t i = 0; i < max_keys; ++i)
      table.decide(generation, terms, scattered(static_cast<std::uint64_t>(i)), {2}, kBase, decision);
    INFO("max_keys " << max_keys);
    const std::int64_t early = table.stats().evicted_keys;
    CHECK(early <= max_keys / 1000);
    for (std::int64_t i = max_keys; i < 2 * max_keys; ++i)
      table.decide(generation, terms, scattered(static_cast<std::uint64_t>(i)), {1}, kBase, decision);
    const TableStats stats = table.stats();
    const Sum sum = sum_of(table, terms, kBase);
    CHECK(sum.keys == stats.keys);
    CHECK(stats.evicted_keys == 2 * max_keys - stats.keys);
    CHECK(sum.tokens + stats.evicted_tokens == 3 * max_keys);
    CHECK(stats.keys == max_keys);
    fmt::print("table: max_keys {}: {} evicted before it was met, {} keys at last, {:.1f} bytes each\n", max_keys,
               early, stats.keys, static_cast<double>(stats.memory_bytes) / static_cast<double>(stats.keys));
  }
}

// Somebody who mints keys must not get exhausted ones their tokens back: these stay while keys of lower level lie
// nearby, also in tables so thin that an exhausted key has its lines to itself.
TEST_CASE("table: a flood of keys of one hit drives no exhausted key out", "[table]") {
  constexpr std::int64_t kCapacity = 100;
  for (const std::int64_t max_keys : {100, 300, 1000, 5000, 20'000}) {
    Arena arena;
    Table table(arena);
    const auto generation = table.open(max_keys, 0);
    const Terms terms{{{kCapacity}, kSecond}, 0, {}, {}};
    Decision decision;
    std::uint64_t next = 0;
    const std::int64_t exhausted = max_keys / 5;
    for (std::int64_t i = 0; i < max_keys; ++i)
      table.decide(generation, terms, scattered(next++), {i < exhausted ? kCapacity : 1}, kBase, decision);
    REQUIRE(table.stats().evicted_keys <= max_keys / 1000);
    for (std::int64_t i = 0; i < 5 * max_keys; ++i)
      table.decide(generation, terms, scattered(next++), {1}, kBase, decision);
    std::int64_t lost = 0;
    for (std::int64_t i = 0; i < exhausted; ++i) {
      Tat state;
      REQUIRE(table.peek(generation, terms, scattered(static_cast<std::uint64_t>(i)), kBase, state) == Status::ok);
      lost += state.level(terms.policy, kBase).v != kCapacity;
    }
    INFO("max_keys " << max_keys);
    CHECK(lost == 0);
    CHECK(table.stats().keys == max_keys);
    CHECK(table.stats().evicted_keys >= 5 * max_keys);
  }
}

// ---- keys in the order of their hashes, as copies and handovers bring them ----

std::vector<KeyHash> many_scattered(std::int64_t count) {
  std::vector<KeyHash> keys;
  for (std::int64_t i = 0; i < count; ++i) keys.push_back(scattered(static_cast<std::uint64_t>(i)));
  return keys;
}

std::vector<KeyHash> sorted_by(std::vector<KeyHash> keys, std::uint64_t (*order)(std::uint64_t)) {
  std::stable_sort(keys.begin(), keys.end(), [&](KeyHash a, KeyHash b) { return order(a.v) < order(b.v); });
  return keys;
}

TEST_CASE("table: keys that come in the order of their hashes are all kept, and as small", "[table]") {
  const std::int64_t count = most_keys() / 2;
  const std::vector<KeyHash> keys = many_scattered(count);
  struct Order {
    const char* name;
    std::vector<KeyHash> keys;
  };
  const std::array<Order, 6> orders = {{
      {"random", keys},
      {"ascending", sorted_by(keys, [](std::uint64_t hash) { return hash; })},
      {"descending", sorted_by(keys, [](std::uint64_t hash) { return ~hash; })},
      {"by the 64 segments of a replica", sorted_by(keys, [](std::uint64_t hash) { return hash >> 58; })},
      {"as a replica's sweep tells them",
       sorted_by(keys, [](std::uint64_t hash) { return hash >> 58 << 32 | (~hash & 0xffffffff); })},
      {"as another table's walk tells them",
       sorted_by(keys, [](std::uint64_t hash) { return hash >> 54 << 32 | (hash & 0xffffffff); })},
  }};
  for (const Order& order : orders) {
    Arena arena;
    Table table(arena);
    // As few as a limiter may have that is to hold these.
    const auto generation = table.open(count + count / 50, 0);
    const Terms terms{{{10}, kSecond}, 0, {}, {}};
    const auto began = std::chrono::steady_clock::now();
    for (const KeyHash key : order.keys)
      if (table.set_level(generation, terms, key, kBase + kSecond, false, kBase) != Status::ok) FAIL("not stored");
    const auto took = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count();
    const TableStats stats = table.stats();
    INFO(order.name);
    CHECK(stats.keys == count);
    CHECK(stats.evicted_keys == 0);
    CHECK(stats.memory_bytes <= 26 * count);
    const char* const wrong = table.validate();
    CHECK((wrong == nullptr ? "" : wrong) == std::string());
    fmt::print("table: {} keys, {}: {:.0f} ns and {:.1f} bytes each\n", count, order.name,
               took / static_cast<double>(count), static_cast<double>(stats.memory_bytes) / static_cast<double>(count));
  }
}

// ---- limits and what comes back ----

TEST_CASE("table: keys of one segment never take more pages than the limiter may have", "[table]") {
  Rng rng(5);
  for (const std::int64_t max_keys : {1, 100, 1000, 2000}) {
    Arena arena;
    Table table(arena);
    const auto generation = table.open(max_keys, 0);
    const Terms terms{{{3}, kSecond}, 0, {}, {}};
    // More of them than there is room for, all in one segment.
    for (const KeyHash key : draw_keys(rng, Shape::same_top, 4000)) {
      Decision decision;
      REQUIRE(table.decide(generation, terms, key, {1}, kBase, decision) == Status::ok);
    }
    // A page for 160 keys, two to begin with, and what splits need while they divide nothing.
    std::int64_t bits = 2;
    while (1024 << (bits - 2) < max_keys) ++bits;
    CHECK(table.bytes() <= (max_keys / 160 + 2 + bits) * 4096);
    CHECK(table.validate() == nullptr);
  }
}

TEST_CASE("table: pages of keys that were reset come back, and segments that emptied are one again", "[table]") {
  const std::int64_t count = 200'000;
  Arena arena;
  Table table(arena);
  const auto generation = table.open(1'000'000, 0);
  const Terms terms{{{10}, kSecond}, 0, {}, {}};
  Decision decision;
  for (std::int64_t i = 0; i < count; ++i)
    table.decide(generation, terms, scattered(static_cast<std::uint64_t>(i)), {1}, kBase, decision);
  const std::int64_t full = table.bytes();
  for (std::int64_t i = 0; i < count; ++i)
    if (i % 10 != 0) table.reset(generation, terms, scattered(static_cast<std::uint64_t>(i)), kBase);
  const auto sweep = [&](Nanos now) {
    Table::Cursor cursor = 0;
    while (!table.sweep(generation, terms, now, cursor, 3)) {
    }
    REQUIRE(table.validate() == nullptr);
  };
  for (int pass = 0; pass < 4; ++pass) sweep(kBase);
  CHECK(table.stats().keys == count / 10);
  CHECK(table.bytes() < full / 4);
  const std::int64_t tenth = table.bytes();
  for (int pass = 0; pass < 12; ++pass) sweep(kBase + kSecond);
  CHECK(table.stats().keys == 0);
  CHECK(table.bytes() == 4096);
  fmt::print("table: {} keys in {} KiB; a tenth of them in {} KiB; none in {} KiB\n", count, full / 1024, tenth / 1024,
             table.bytes() / 1024);
}

TEST_CASE("table: a table for millions of keys costs a page and a word until it has some", "[table]") {
  Arena arena;
  Table table(arena);
  table.open(Table::kMaxKeys, 0);
  CHECK(table.stats().memory_bytes == 4096 + 8);
}

TEST_CASE("table: a walk after a change tells every level as of the new terms", "[table]") {
  Arena arena;
  Table table(arena);
  const auto generation = table.open(100'000, 0);
  const Terms old{{{10}, kSecond}, 0, {}, {}};
  Decision decision;
  for (std::uint64_t i = 0; i < 5000; ++i) table.decide(generation, old, scattered(i), {4}, kBase, decision);
  // Nobody has converted anything when the walk begins.
  const Terms changed{{{10}, Nanos{kSecond.v * 60}}, 1, old.policy, kBase};
  std::int64_t keys = 0;
  table.for_each(changed, kBase, [&](KeyHash, const Tat& state) {
    ++keys;
    if (state.level(changed.policy, kBase) != Tokens{4}) FAIL("a level of the old terms");
  });
  CHECK(keys == 5000);
  // Terms of before are none any more.
  keys = 0;
  table.for_each(old, kBase, [&](KeyHash, const Tat&) { ++keys; });
  CHECK(keys == 0);
}

TEST_CASE("table: tables of one arena are independent, and reuse what another gave back", "[table]") {
  Arena arena;
  Table a(arena);
  Table b(arena);
  const Terms terms{{{3}, kSecond}, 0, {}, {}};
  auto in_a = a.open(100'000, 0);
  const auto in_b = b.open(100'000, 0);
  Decision decision;
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t i = 0; i < 5000; ++i) {
      REQUIRE(a.decide(in_a, terms, scattered(i), {3}, kBase, decision) == Status::ok);
      if (!decision.allowed) FAIL("a table that was opened is not empty");
      b.decide(in_b, terms, scattered(i + 1000 * static_cast<std::uint64_t>(round)), {1}, kBase, decision);
    }
    REQUIRE(a.begin_close());
    while (!a.close_some(1)) {
    }
    in_a = a.open(100'000, 0);
    REQUIRE(sum_of(a, terms, kBase).keys == 0);
  }
  CHECK(sum_of(b, terms, kBase).keys == 9000);
  CHECK(b.stats().evicted_keys == 0);
}

}  // namespace
}  // namespace weir
