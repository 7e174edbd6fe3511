// Shows R02, R07 of doc/requirements.md.
// The key table under many callers: what is admitted is exact while others make it grow, expire, evict, change and
// close; and no caller is ever denied for what a neighbour in its line did.
//
// Each test is a number of rounds, WEIR_ROUNDS (default 1000; a few dozen are enough under a sanitizer). Threads count
// faults and the test's own thread asserts: Catch2's assertions are for one thread.
#include <fmt/core.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "threads.hpp"
#include "weir/table.hpp"

namespace weir {
namespace {

using test::kBase;

constexpr Nanos kSecond{1'000'000'000};
constexpr Nanos kHour{3'600'000'000'000};
constexpr unsigned kThreads = 8;

using test::Barrier;
using test::round_count;
using test::run_threads;

// splitmix64: different numbers, different hashes.
KeyHash key_of(std::uint64_t family, std::uint64_t i) {
  std::uint64_t z = (family << 40) + i + 1;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return {(z ^ z >> 31) | 1};
}
// Keys that share the home line, whatever the size of the segment.
KeyHash neighbour(std::uint64_t i) { return {key_of(9, i).v << 32 | 0x5000'0001}; }

Terms terms_of(Policy policy, std::uint32_t version = 0) { return {policy, version, policy, {}}; }

// One caller's view of a table.
struct Caller {
  Table& table;
  Table::Generation generation;
  Terms terms;
  Nanos now;

  bool allows(KeyHash key, std::int64_t hits = 1) const {
    Decision decision;
    return table.decide(generation, terms, key, {hits}, now, decision) == Status::ok && decision.allowed;
  }
  // Decided, and denied.
  bool denies(KeyHash key, std::int64_t hits = 1) const {
    Decision decision;
    return table.decide(generation, terms, key, {hits}, now, decision) == Status::ok && !decision.allowed;
  }
  bool clears(KeyHash key) const { return table.reset(generation, terms, key, now) == Status::ok; }
  void sweep(unsigned segments, Table::Cursor& cursor) const {
    if (table.sweep(generation, terms, now, cursor, segments)) cursor = 0;
  }
  std::int64_t tokens() const {
    std::int64_t sum = 0;
    table.for_each(terms, now, [&](KeyHash, const Tat& state) { sum += state.level(terms.policy, now).v; });
    return sum;
  }
};

// ---- exactly c ----

struct Traffic {
  const char* name;
  std::int64_t max_keys;
  std::uint64_t fresh;  // other keys that each thread asks for beside each question for the round's key
  bool time_moves;      // by one interval between rounds, so that the others' keys of the round before are dead
  bool sweeps;
};

// One round as thread `id` sees it: what was admitted of the round's key, and of others.
struct Admitted {
  std::int64_t hot = 0;
  std::int64_t others = 0;
};

Admitted ask_until_denied(const Traffic& traffic, const Caller& caller, unsigned id, KeyHash hot, std::uint64_t& fresh,
                          Table::Cursor& cursor) {
  Admitted mine;
  for (unsigned denials = 0; denials < 3;) {
    caller.allows(hot) ? ++mine.hot : ++denials;
    for (std::uint64_t i = 0; i < traffic.fresh; ++i) mine.others += caller.allows(key_of(1 + id, ++fresh));
    if (traffic.sweeps && id % 4 == 0) caller.sweep(1, cursor);
  }
  return mine;
}

// In each round eight threads ask for one key until it is denied, and for fresh keys of one token in between. Admitted:
// exactly c; where keys are evicted, all that was admitted is in the table or counted as evicted.
void exactly_the_capacity(const Traffic& traffic) {
  constexpr std::int64_t kCapacity = 20;
  Arena arena;
  Table table(arena);
  const auto generation = table.open(traffic.max_keys, 0);
  Barrier barrier(kThreads);
  std::atomic<std::int64_t> hot_sum{0};
  std::atomic<std::int64_t> others_sum{0};
  std::int64_t total = 0;  // thread 0's, like the next: it judges while the others wait
  std::vector<std::string> faults;
  const std::uint64_t rounds = round_count();

  run_threads(kThreads, [&](unsigned id) {
    Caller caller{table, generation, terms_of({{kCapacity}, kSecond}), kBase};
    std::uint64_t fresh = 0;
    Table::Cursor cursor = 0;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      if (traffic.time_moves) caller.now = caller.now + kSecond;
      barrier.wait();
      const Admitted mine = ask_until_denied(traffic, caller, id, key_of(0, round), fresh, cursor);
      hot_sum += mine.hot;
      others_sum += mine.others;
      barrier.wait();
      if (id != 0) continue;
      const std::int64_t hot = hot_sum.exchange(0);
      total += hot + others_sum.exchange(0);
      const TableStats stats = table.stats();
      const bool evicts = stats.evicted_keys > 0;
      if (evicts ? hot < kCapacity : hot != kCapacity) faults.push_back(fmt::format("round {}: {}", round, hot));
      if (traffic.time_moves || (!evicts && round + 1 < rounds)) continue;
      const std::int64_t lost = total - caller.tokens() - stats.evicted_tokens;
      if (lost != 0) faults.push_back(fmt::format("round {}: {} tokens neither held nor evicted", round, lost));
    }
  });
  INFO(traffic.name << ": " << faults.size() << " faults, the first: " << (faults.empty() ? "" : faults.front()));
  CHECK(faults.empty());
  CHECK((traffic.fresh == 0 || table.stats().keys > 0));
  CHECK((table.stats().evicted_keys > 0) == (traffic.max_keys < 1000));
}

TEST_CASE("table: eight threads on one key are admitted exactly c times", "[table][threads]") {
  exactly_the_capacity({"quiet", 1'000'000, 0, false, false});
}
TEST_CASE("table: exactly c while the table grows", "[table][threads]") {
  exactly_the_capacity({"growing", 1'000'000, 2, false, false});
}
TEST_CASE("table: exactly c while others expire, are swept and replaced", "[table][threads]") {
  exactly_the_capacity({"expiring", 1'000'000, 2, true, true});
}
TEST_CASE("table: exactly c and the evicted tokens, as counted", "[table][threads]") {
  for (const std::int64_t max_keys : {1, 20, 200}) exactly_the_capacity({"evicting", max_keys, 1, false, false});
}
TEST_CASE("table: exactly c and the evicted tokens, while the evicting table is swept", "[table][threads]") {
  exactly_the_capacity({"evicting and swept", 100, 1, false, true});
}

// ---- neighbours ----

// Keys of one home line (more of them than it has slots, so they also live in second lines and move), asked by threads
// that know what the answer must be: what they ask is their own. The shared line is all that could go wrong.
struct Neighbours {
  static constexpr std::int64_t kAskers = 4;
  static constexpr std::int64_t kCapacity = kAskers;
  Arena arena;
  Table table{arena};
  Table::Generation generation = table.open(1'000'000, 0);
  Caller caller{table, generation, terms_of({{kCapacity}, kSecond}), kBase};
  std::atomic<std::int64_t> wrong_denials{0};
  std::atomic<std::int64_t> wrong_admissions{0};

  // All askers share the key, each holds at most one token of it: the level before a question is at most kAskers - 1.
  void ask_shared(KeyHash key) {
    wrong_denials += !caller.allows(key);
    caller.clears(key);
  }
  // Nobody else asks for this key.
  void fill_own(KeyHash key) {
    wrong_denials += !caller.allows(key, kCapacity);
    wrong_admissions += !caller.denies(key);
    caller.clears(key);
  }
  // A key that is dead for everybody else as soon as it is there: its slot is free for any insert.
  void leave_dead(KeyHash key) {
    Caller earlier = caller;
    earlier.now = caller.now - Tokens{kCapacity} * kSecond;
    earlier.allows(key, kCapacity);
  }
};

TEST_CASE("table: nobody is denied for a neighbour in the line, nor admitted", "[table][threads]") {
  Neighbours n;
  const KeyHash full = neighbour(0);
  REQUIRE(n.caller.allows(full, Neighbours::kCapacity));
  const std::uint64_t rounds = round_count() * 100;
  Barrier barrier(kThreads);
  run_threads(kThreads, [&](unsigned id) {
    Table::Cursor cursor = 0;
    barrier.wait();
    for (std::uint64_t i = 0; i < rounds; ++i) {
      if (id < Neighbours::kAskers) {
        n.ask_shared(neighbour(1));
      } else if (id < 6) {
        n.fill_own(neighbour(10 + id));
      } else if (id == 6) {
        n.fill_own(neighbour(100 + i % 8));
      } else {
        n.leave_dead(neighbour(200 + i % 16));
        n.wrong_admissions += !n.caller.denies(full);
        if (i % 64 == 0) n.caller.sweep(1, cursor);
      }
    }
  });
  CHECK(n.wrong_denials == 0);
  CHECK(n.wrong_admissions == 0);
  CHECK(n.table.stats().evicted_keys == 0);
}

TEST_CASE("table: nobody is denied or admitted wrongly while segments are rebuilt under them", "[table][threads]") {
  const std::uint64_t tables = round_count() / 100 + 1;
  for (std::uint64_t t = 0; t < tables; ++t) {
    Neighbours n;
    std::array<KeyHash, 16> full;
    for (std::size_t i = 0; i < full.size(); ++i) {
      full[i] = key_of(30 + t, i);
      REQUIRE(n.caller.allows(full[i], Neighbours::kCapacity));
    }
    run_threads(kThreads, [&](unsigned id) {
      for (std::uint64_t i = 0; i < 2000; ++i) {
        if (id < Neighbours::kAskers) {
          n.ask_shared(key_of(31 + t, i / 100));
          n.wrong_admissions += !n.caller.denies(full[i % full.size()]);
        } else {
          n.wrong_denials += !n.caller.allows(key_of(1000 + id, t << 20 | i));  // growth
        }
      }
    });
    REQUIRE(n.wrong_denials == 0);
    REQUIRE(n.wrong_admissions == 0);
    REQUIRE(n.table.stats().evicted_keys == 0);
    REQUIRE(n.table.stats().keys >= 8000);
  }
}

// ---- changes ----

// Versions of a limiter: the capacity never falls, the interval goes to and fro, so that a TAT read under the wrong
// version is wrong by a factor of 3600.
class Changes {
 public:
  static constexpr unsigned kVersions = 50;  // fewer than a directory word can tell apart
  explicit Changes(std::uint32_t first) {
    for (unsigned v = 0; v < kVersions; ++v) {
      const Policy policy{{20 + v}, v % 2 == 0 ? kSecond : kHour};
      const Policy before = v == 0 ? policy : terms_[v - 1].policy;
      terms_[v] = {policy, first + v, before, kBase};
    }
  }
  const Terms& current() const { return terms_[now_.load()]; }
  const Terms& last() const { return terms_[kVersions - 1]; }
  bool ended() const { return now_.load() + 1 == kVersions; }
  void next() { now_.fetch_add(1); }

 private:
  std::array<Terms, kVersions> terms_;
  std::atomic<unsigned> now_{0};
};

// Asks under the terms that it read last, as a batch does, until the table calls them stale.
class Asker {
 public:
  Asker(Table& table, Table::Generation generation, const Changes& changes)
      : table_(table), generation_(generation), changes_(changes), terms_(&changes.current()) {}

  bool allows(KeyHash key) {
    Decision decision;
    ask([&] { return table_.decide(generation_, *terms_, key, {1}, kBase, decision); });
    return decision.allowed;
  }
  void clear(KeyHash key) {
    ask([&] { return table_.reset(generation_, *terms_, key, kBase); });
  }

 private:
  template <class Question>
  void ask(Question question) {
    while (question() != Status::ok) terms_ = &changes_.current();
  }

  Table& table_;
  Table::Generation generation_;
  const Changes& changes_;
  const Terms* terms_;
};

TEST_CASE("table: a limiter that changes under traffic admits what its last capacity says", "[table][threads]") {
  constexpr unsigned kDeciders = 4;
  const std::uint64_t tables = round_count() / 100 + 1;
  for (std::uint64_t t = 0; t < tables; ++t) {
    Arena arena;
    Table table(arena);
    Changes changes(0xffffffe0);  // wraps on the way
    const auto generation = table.open(1'000'000, changes.current().version);
    Asker filler(table, generation, changes);
    // One large segment: the longest conversion that a question can meet.
    for (std::uint64_t i = 0; i < 1500; ++i) REQUIRE(filler.allows(key_of(50, i)));
    constexpr std::size_t kHot = 4;
    std::array<std::atomic<std::int64_t>, kHot> admitted{};
    std::atomic<std::int64_t> wrong_denials{0};
    std::array<std::atomic<std::uint64_t>, kDeciders> progress{};
    std::atomic<unsigned> working{kDeciders};

    run_threads(kDeciders + 1, [&](unsigned id) {
      if (id == kDeciders) {  // changes the limiter, converts all of it, waits until everybody has decided under it
        while (!changes.ended()) {
          changes.next();
          Table::Cursor cursor = 0;
          while (!table.convert(generation, changes.current(), cursor, 1)) {
          }
          std::array<std::uint64_t, kDeciders> seen;
          for (unsigned i = 0; i < kDeciders; ++i) seen[i] = progress[i].load();
          for (unsigned i = 0; i < kDeciders; ++i)
            while (progress[i].load() < seen[i] + 2 && working == kDeciders) std::this_thread::yield();
        }
        return;
      }
      Asker asker(table, generation, changes);
      const KeyHash own = key_of(60, t << 8 | id);
      for (bool last_turn = false; !last_turn; progress[id].fetch_add(1)) {
        last_turn = changes.ended();
        // Most questions are denials, which take no lock: who waits for a lock can't be in the midst of a conversion.
        for (std::uint64_t i = 1; i <= 20; ++i) {
          wrong_denials += !asker.allows(own);
          if (i % 5 == 0) asker.clear(own);
          for (int k = 0; k < 100 + 10 * static_cast<int>(id); ++k)
            for (std::size_t h = 0; h < kHot; ++h)
              if (asker.allows(key_of(61, h))) admitted[h] += 1;
        }
        std::this_thread::yield();  // the changer waits for everybody's turn
      }
      working.fetch_sub(1);
    });
    CHECK(wrong_denials == 0);  // five hits of a key of one's own, where the capacity is 20 or more
    for (const auto& one : admitted) CHECK(one == changes.last().policy.capacity.v);
    CHECK(table.stats().evicted_keys == 0);
  }
}

// A segment that is split at the moment when it should be converted must not be left behind: the next change could
// never be carried out there.
TEST_CASE("table: changes reach every segment while the table grows", "[table][threads]") {
  const std::uint64_t tables = round_count() / 100 + 2;
  for (std::uint64_t t = 0; t < tables; ++t) {
    Arena arena;
    Table table(arena);
    Changes changes(0);
    const auto generation = table.open(1'000'000, 0);
    std::atomic<unsigned> working{2};
    run_threads(3, [&](unsigned id) {
      if (id == 2) {
        while (!changes.ended() && working == 2) {
          changes.next();
          Table::Cursor cursor = 0;
          while (!table.convert(generation, changes.current(), cursor, 1)) {
          }
        }
        return;
      }
      Asker asker(table, generation, changes);
      for (std::uint64_t i = 0; i < 30'000 && !changes.ended(); ++i) asker.allows(key_of(2000 + 2 * t + id, i));
      working.fetch_sub(1);
    });
    // Every segment is of the last version: none refuses its terms.
    Table::Cursor cursor = 0;
    while (!table.convert(generation, changes.current(), cursor, 1)) {
    }
    Decision decision;
    std::int64_t refused = 0;
    for (std::uint64_t i = 0; i < 20'000; ++i)
      refused += table.decide(generation, changes.current(), key_of(9000, i), {1}, kBase, decision) != Status::ok;
    CHECK(refused == 0);
    CHECK(table.validate() == nullptr);
  }
}

// ---- closing ----

// Deciders of a table that closes under them are told so; whoever comes with a generation of before never gets
// anything, and never takes anything from those of the new one.
TEST_CASE("table: closes while it is asked, and opens anew under those who come too late", "[table][threads]") {
  constexpr std::int64_t kCapacity = 20;
  const Terms terms = terms_of({{kCapacity}, kSecond});
  constexpr unsigned kDeciders = 4;
  const std::uint64_t rounds = round_count() / 10 + 1;
  Arena arena;
  Table table(arena);
  std::atomic<Table::Generation> current{table.open(100'000, 0)};
  std::atomic<std::int64_t> admitted{0};
  std::atomic<std::int64_t> faults{0};
  std::atomic<std::uint64_t> questions{0};
  Barrier barrier(kDeciders + 1);

  run_threads(kDeciders + 1, [&](unsigned id) {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const Table::Generation generation = current.load();
      const KeyHash hot = key_of(70, round % 3);  // the same keys as in rounds before: what is stale would be found
      barrier.wait();
      if (id < kDeciders) {
        Decision decision;
        std::uint64_t i = 0;
        for (Table::Cursor cursor = 0;; ++i) {
          const Status status = table.decide(generation, terms, hot, {1}, kBase, decision);
          if (status == Status::gone) break;
          admitted += decision.allowed;
          questions.fetch_add(1);
          table.decide(generation, terms, key_of(71 + id, i % 2000), {1}, kBase, decision);
          if (id == 0) table.sweep(generation, terms, kBase, cursor, 1);
          if (id == 1) table.convert(generation, terms, cursor, 1);
        }
        Tat state;
        faults += table.peek(generation, terms, hot, kBase, state) != Status::gone;
        faults += table.reset(generation, terms, hot, kBase) != Status::gone;
      } else {
        const std::uint64_t asked = questions.load() + 200 + round % 7 * 100;
        while (questions.load() < asked) std::this_thread::yield();
        faults += !table.begin_close();
        while (!table.close_some(1)) {
        }
        faults += table.bytes() != 0;
        // At once the next: deciders of the last generation may still be on their way.
        current.store(table.open(round % 2 == 0 ? 50 : 100'000, 0));
      }
      barrier.wait();
      if (id == kDeciders) {
        // Until the first eviction a key is admitted c times; only tables of 100000 keys are sure not to evict.
        if (round % 2 == 0) faults += admitted.load() > kCapacity;
        admitted.store(0);
      }
      barrier.wait();
      // The table is open and empty, and nobody of the generation before left anything in it.
      if (id == 0) {
        const Caller caller{table, current.load(), terms, kBase};
        faults += caller.tokens() != 0 || table.stats().keys != 0;
        faults += caller.allows(hot, kCapacity) != true || !caller.denies(hot) || !caller.clears(hot);
      } else if (id == 1) {
        Decision decision;
        for (int i = 0; i < 20; ++i)
          faults += table.decide(generation, terms, hot, {1}, kBase, decision) != Status::gone;
      }
    }
  });
  CHECK(faults == 0);
  REQUIRE(table.begin_close());
  while (!table.close_some(1)) {
  }
  CHECK(table.stats().memory_bytes == 0);
}

// Two tables hand segments to and fro through their arena; callers of each must never see the other's keys.
TEST_CASE("table: a segment that changed hands is never taken for one's own", "[table][threads]") {
  const Terms terms = terms_of({{2}, kSecond});
  const std::uint64_t rounds = round_count() * 2;
  Arena arena;
  Table filled(arena);  // every key full
  Table light(arena);   // every key at most once: never denied
  std::atomic<Table::Generation> in_light{light.open(100'000, 0)};
  std::atomic<bool> ended{false};
  std::atomic<std::int64_t> faults{0};
  const auto close = [](Table& table) {
    table.begin_close();
    while (!table.close_some(1)) {
    }
  };
  run_threads(4, [&](unsigned id) {
    if (id == 0) {
      for (std::uint64_t round = 0; round < rounds; ++round) {
        close(light);
        const auto in_filled = filled.open(100'000, 0);
        const Caller caller{filled, in_filled, terms, kBase};
        for (std::uint64_t i = 0; i < 4; ++i) faults += !caller.allows(key_of(90, i), 2);
        close(filled);
        in_light.store(light.open(100'000, 0));
      }
      ended.store(true);
      return;
    }
    while (!ended.load()) {
      const KeyHash key = key_of(90, id);
      const Table::Generation generation = in_light.load();
      Decision decision;
      if (light.decide(generation, terms, key, {1}, kBase, decision) == Status::ok) {
        faults += !decision.allowed;
        light.reset(generation, terms, key, kBase);
      }
    }
  });
  CHECK(faults == 0);
}

}  // namespace
}  // namespace weir
