// Shows R05, R07, R40 of doc/requirements.md.
// The key table at its edges: merges beside splits and walks, directories that grow while the table closes and opens,
// tables for a handful of keys, keys in the order of their hashes in a table that is full, keys that are dead at once.
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "threads.hpp"
#include "weir/table.hpp"

namespace weir::test {
namespace {

constexpr Nanos kHour{3'600'000'000'000};

KeyHash key_of(std::uint64_t family, std::uint64_t i) {
  std::uint64_t z = (family << 40) + i + 1;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return {(z ^ z >> 31) | 1};
}

std::string what_is_wrong(const Table& table) {
  const char* const wrong = table.validate();
  return wrong == nullptr ? "" : wrong;
}

void close(Table& table) {
  table.begin_close();
  while (!table.close_some(1)) {
  }
}

std::int64_t tokens_of(Table& table, const Terms& terms, Nanos now) {
  std::int64_t sum = 0;
  table.for_each(terms, now, [&](KeyHash, const Tat& state) { sum += state.level(terms.policy, now).v; });
  return sum;
}

}  // namespace

// Two threads fill a part of the table each and empty it again, three sweep, so that segments split and merge all the
// time, and segments' memory goes to and fro between them. Walks meet the keys that stay, and each once.
TEST_CASE("table: a walk beside splits and merges meets each key that stays, once", "[table][threads]") {
  constexpr std::uint64_t kStay = 300;
  Arena arena;
  Table table(arena);
  const auto generation = table.open(1'000'000, 0);
  const Terms terms{{{5}, kHour}, 0, {}, {}};
  std::unordered_map<std::uint64_t, int> stay;
  Decision decision;
  for (std::uint64_t i = 0; i < kStay; ++i) {
    stay[key_of(1, i).v] = 0;
    table.decide(generation, terms, key_of(1, i), {1}, kBase, decision);
  }
  std::atomic<unsigned> working{2};
  std::atomic<std::int64_t> faults{0}, largest{0}, merged{0};
  const std::uint64_t rounds = round_count() / 50 + 1;
  run_threads(6, [&](unsigned id) {
    if (id < 2) {
      for (std::uint64_t round = 0; round < rounds; ++round) {
        // All over the table, or in a part of it, which is then deep.
        const auto key = [&](std::uint64_t i) {
          const KeyHash scattered = key_of(10 + id, i);
          return round % 2 == 0 ? scattered : KeyHash{scattered.v >> 5 | (std::uint64_t{id} + 7) << 59};
        };
        Ruling ruling;
        for (std::uint64_t i = 0; i < 8000; ++i)
          faults += table.decide(generation, terms, key(i), {1}, kBase, ruling) != Status::ok ||
                    ruling.verdict != Verdict::admitted;
        if (table.bytes() > largest) largest = table.bytes();
        for (std::uint64_t i = 0; i < 8000; ++i) {
          Tat was;
          faults += table.take(generation, terms, key(i), kBase, was) != Status::ok || was.value() == Nanos{0};
        }
      }
      --working;
    } else if (id < 5) {
      std::int64_t before = 0;
      for (Table::Cursor cursor = 0; working != 0;) {
        if (table.sweep(generation, terms, kBase, cursor, id)) cursor = 0;
        merged += table.bytes() < before;
        before = table.bytes();
      }
    } else {
      while (working != 0) {
        for (auto& [key, seen] : stay) seen = 0;
        table.for_each(terms, kBase, [&](KeyHash key, const Tat&) {
          if (const auto known = stay.find(key.v); known != stay.end()) ++known->second;
        });
        for (const auto& [key, seen] : stay) faults += seen != 1;
      }
    }
  });
  CHECK(faults == 0);
  CHECK(table.stats().evicted_keys == 0);
  CHECK(table.stats().keys == kStay);
  CHECK(what_is_wrong(table) == "");
  for (int pass = 0; pass < 12; ++pass)
    for (Table::Cursor cursor = 0; !table.sweep(generation, terms, kBase, cursor, 8);) {
    }
  CHECK(what_is_wrong(table) == "");
  CHECK(table.bytes() <= 16 * 4096);
  CHECK(largest > 64 * 4096);
  CHECK(merged > 0);
  CHECK(tokens_of(table, terms, kBase) == kStay);
}

// Inserts go on in tables that have closed meanwhile, with directories that others use by now: of this table or of
// another one in the arena. Small tables can't make their directories as large as these keys ask for.
TEST_CASE("table: directories grow while tables close and open anew", "[table][threads]") {
  const Terms terms{{{5}, kHour}, 0, {}, {}};
  const std::uint64_t rounds = round_count() / 10 + 1;
  Arena arena;
  Table table(arena), other(arena);
  std::atomic<Table::Generation> current{table.open(1'000'000, 0)};
  std::atomic<bool> ended{false};
  std::atomic<std::int64_t> faults{0};
  std::atomic<std::uint64_t> questions{0};
  run_threads(5, [&](unsigned id) {
    if (id == 4) {
      for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::uint64_t asked = questions.load() + 2000 + round % 5 * 3000;
        while (questions.load() < asked) std::this_thread::yield();
        close(table);
        faults += table.bytes() != 0 || table.stats().keys != 0;
        current.store(table.open(round % 3 == 0 ? 1000 : 1'000'000, 0));
      }
      ended = true;
      return;
    }
    if (id == 3) {  // takes the directories and segments that the others give back
      while (!ended) {
        const auto generation = other.open(1'000'000, 0);
        Decision decision;
        for (std::uint64_t i = 0; i < 6000; ++i) {
          faults += other.decide(generation, terms, key_of(3, i), {5}, kBase, decision) != Status::ok;
          faults += !decision.allowed;
        }
        faults += other.stats().keys != 6000 || other.validate() != nullptr;
        close(other);
      }
      return;
    }
    for (std::uint64_t round = 0; !ended; ++round) {
      const Table::Generation generation = current.load();
      Ruling ruling;
      Table::Cursor cursor = 0;
      for (std::uint64_t i = 0; i < 20'000 && !ended; ++i) {
        // Half of them in one deep corner of the table.
        const std::uint64_t scattered = key_of(id, i).v;
        const KeyHash key{i % 2 == 0 ? scattered : (scattered & 0xffffffff) | std::uint64_t{id} << 62};
        const Status status = table.decide(generation, terms, key, {1}, kBase, ruling);
        ++questions;
        if (status == Status::gone) break;
        faults += status != Status::ok;
        if (i % 64 == 0) table.sweep(generation, terms, kBase, cursor, 1);
      }
    }
  });
  CHECK(faults == 0);
  CHECK(what_is_wrong(table) == "");
  close(table);
  CHECK(table.stats().memory_bytes == 0);
}

// Each key is evicted all the time, also while it is asked the fast way.
TEST_CASE("table: keys of a handful are asked while they are evicted", "[table][threads]") {
  for (std::int64_t max_keys = 1; max_keys <= 8; ++max_keys) {
    for (const bool crowded : {false, true}) {
      const Terms terms{{{1'000'000'000}, {1000}}, 0, {}, {}};
      Arena arena;
      Table table(arena);
      const auto generation = table.open(max_keys, 0);
      std::atomic<std::int64_t> admitted{0}, faults{0};
      run_threads(4, [&](unsigned id) {
        Rng rng(id);
        std::int64_t mine = 0;
        Table::Cursor cursor = 0;
        for (std::uint64_t i = 0; i < round_count() * 3; ++i) {
          const KeyHash scattered = key_of(1, rng() % 24);
          const KeyHash key = crowded ? KeyHash{(scattered.v & 0xffffffff00000000) | 77} : scattered;
          const Tokens hits{static_cast<std::int64_t>(rng() % 3 + 1)};
          Ruling ruling = table.try_decide(generation, terms.policy, 0, key, hits, kBase);
          if (ruling.verdict == Verdict::unsure)
            faults += table.decide(generation, terms, key, hits, kBase, ruling) != Status::ok;
          faults += ruling.verdict != Verdict::admitted;
          mine += hits.v;
          if (i % 128 == 0 && table.sweep(generation, terms, kBase, cursor, 1)) cursor = 0;
        }
        admitted += mine;
      });
      const TableStats stats = table.stats();
      CAPTURE(max_keys, crowded);
      CHECK(faults == 0);
      CHECK(admitted == tokens_of(table, terms, kBase) + stats.evicted_tokens);
      CHECK(what_is_wrong(table) == "");
      CHECK(stats.evicted_keys > 0);
      CHECK(stats.keys >= 1);
      // A key whose lines are both empty finds nobody to evict: each thread may be in the midst of that in each line.
      CHECK(stats.keys <= max_keys + table.bytes() / 64);
    }
  }
}

TEST_CASE("table: a million keys in the order of their hashes, evicted, while the limiter changes", "[table]") {
  constexpr std::uint64_t kCount = 1'000'000;
  for (const bool ascending : {true, false}) {
    Arena arena;
    Table table(arena);
    const auto generation = table.open(100'000, 0);
    Terms terms{{{100}, kHour}, 0, {}, {}};
    std::int64_t admitted = 0, refused = 0;
    Table::Cursor sweeps = 0;
    for (std::uint64_t i = 0; i < kCount; ++i) {
      const std::uint64_t at = ascending ? i : kCount - 1 - i;
      const KeyHash key{at * (UINT64_MAX / kCount) + at % 997 + 1};
      Ruling ruling;
      const Tokens hits{static_cast<std::int64_t>(i % 5 + 1)};
      refused += table.decide(generation, terms, key, hits, kBase, ruling) != Status::ok;
      admitted += ruling.verdict == Verdict::admitted ? hits.v : 0;
      if (i % 1000 == 0 && table.sweep(generation, terms, kBase, sweeps, 1)) sweeps = 0;
      if (i % 9000 != 0) continue;
      for (Table::Cursor cursor = 0; !table.convert(generation, terms, cursor, 8);) {
      }
      const Policy to{{terms.policy.capacity.v + 1}, terms.version % 2 == 0 ? kHour + kHour : kHour};
      terms = {to, terms.version + 1, terms.policy, kBase};
    }
    for (Table::Cursor cursor = 0; !table.convert(generation, terms, cursor, 8);) {
    }
    CAPTURE(ascending);
    CHECK(refused == 0);
    CHECK(admitted == tokens_of(table, terms, kBase) + table.stats().evicted_tokens);
    // A key whose lines are empty, and those nearby too, finds nobody to evict.
    CHECK(table.stats().keys >= 100'000);
    CHECK(table.stats().keys <= 100'000 + table.bytes() / 64);
    CHECK(table.stats().keys + table.stats().evicted_keys == kCount);
    CHECK(what_is_wrong(table) == "");
  }
}

TEST_CASE("table: the largest table there is takes keys of every prefix, however deep", "[table]") {
  Arena arena;
  Table table(arena);
  const auto generation = table.open(Table::kMaxKeys, 0);
  const Terms terms{{{5}, kHour}, 0, {}, {}};
  Ruling ruling;
  // In one corner each: the directory grows until a segment of it holds what it can.
  std::int64_t count = 0;
  for (const std::uint64_t corner : {std::uint64_t{0}, UINT64_MAX << 32})
    for (std::uint64_t i = 0; i < 20'000; ++i, ++count) {
      const KeyHash key{corner | (key_of(1, i).v & 0xfff'ffff'ffff) | 1};
      REQUIRE(table.decide(generation, terms, key, {1}, kBase, ruling) == Status::ok);
      REQUIRE(ruling.verdict == Verdict::admitted);
    }
  CHECK(tokens_of(table, terms, kBase) + table.stats().evicted_tokens == count);
  CHECK(what_is_wrong(table) == "");
  close(table);
  CHECK(table.stats().memory_bytes == 0);
}

TEST_CASE("table: keys that are dead at once leave nothing behind", "[table]") {
  Arena arena;
  Table table(arena);
  const auto generation = table.open(10'000, 0);
  const Terms terms{{{3}, {1}}, 0, {}, {}};
  Ruling ruling;
  Nanos now = kBase;
  for (std::uint64_t i = 0; i < 300'000; ++i) {
    now = now + Nanos{static_cast<std::int64_t>(i % 2)};
    REQUIRE(table.decide(generation, terms, key_of(1, i), {1}, now, ruling) == Status::ok);
    REQUIRE(ruling.verdict == Verdict::admitted);
  }
  CHECK(table.stats().evicted_keys == 0);
  CHECK(what_is_wrong(table) == "");
  for (int pass = 0; pass < 12; ++pass)
    for (Table::Cursor cursor = 0; !table.sweep(generation, terms, now + Nanos{1}, cursor, 8);) {
    }
  CHECK(table.stats().keys == 0);
  CHECK(table.bytes() == 4096);
  CHECK(what_is_wrong(table) == "");
}

}  // namespace weir::test
