// The rings between the threads that admit and the replica. R31, R43, R44.
#include "weir/admissions.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <semaphore>
#include <thread>
#include <vector>

#include "births.hpp"
#include "cases.hpp"
#include "catch.hpp"
#include "weir/interval.hpp"
#include "weir/registry.hpp"

namespace weir::test {
namespace {

constexpr std::size_t kAll = SIZE_MAX;
constexpr Nanos kInterval{100};

Admission birth(std::uint64_t key, std::int64_t hits = 1, std::int64_t time = 1000) {
  return {{1}, {key}, {hits}, {time}, {time + 1000}};
}

void push(Admissions& births, const Admission& admission, unsigned stripe = 0, bool urgent = false) {
  births.push(stripe, admission, kInterval, urgent);
}

std::vector<Admission> drained(Admissions& births, std::size_t most = kAll) {
  std::vector<Admission> taken;
  births.drain(most, [&](const Admission& admission) { taken.push_back(admission); });
  return taken;
}

}  // namespace

TEST_CASE("births come out in their order, as many as asked for", "[admissions]") {
  Admissions births(2);
  push(births, birth(1));
  CHECK(births.empty());  // nobody reads
  births.open(true);
  for (std::uint64_t key = 1; key <= 100; ++key) push(births, birth(key));
  std::vector<Admission> seen = drained(births, 30);
  CHECK(seen.size() == 30);
  CHECK_FALSE(births.empty());
  const std::vector<Admission> rest = drained(births);
  seen.insert(seen.end(), rest.begin(), rest.end());
  REQUIRE(seen.size() == 100);
  CHECK(std::is_sorted(seen.begin(), seen.end(), [](const auto& a, const auto& b) { return a.key < b.key; }));
  CHECK(births.empty());
}

TEST_CASE("a key under load takes one entry until that is taken", "[admissions]") {
  Admissions births(1);
  births.open(true);
  // While the bucket is busy by the entry's own births: two until 1200, three until 1300, four until 1400.
  push(births, birth(7, 2, 1000));
  push(births, birth(7, 1, 1200));
  push(births, birth(8, 1, 1200));
  push(births, birth(7, 1, 1300));
  push(births, birth(7, 1, 1401));  // later: in an entry of its own
  push(births, birth(7, 1, 1400));  // earlier than the last entry
  std::vector<Admission> seen = drained(births);
  REQUIRE(seen.size() == 4);
  CHECK(seen[0].hits == Tokens{4});
  CHECK(seen[0].time == Nanos{1000});
  CHECK(seen[0].tat == Nanos{2300});
  CHECK(seen[1].key == KeyHash{8});
  CHECK(seen[2].hits == Tokens{1});
  CHECK(seen[3].hits == Tokens{1});
  // What was taken is joined by nobody.
  push(births, birth(7, 1, 1402));
  seen = drained(births);
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].hits == Tokens{1});
  // Nor is one of another limiter, or what would overflow.
  push(births, birth(7, INT64_MAX, 2000));
  push(births, birth(7, 1, 2001));
  Admission other = birth(7, 1, 2001);
  other.limiter = {2};
  push(births, other);
  CHECK(drained(births).size() == 3);
}

TEST_CASE("however births of a key arrive, the intervals that they make are the same", "[admissions]") {
  for_cases([](Rng& rng) {
    const Policy policy{{1000}, kInterval};
    Admissions births(1);
    births.open(true);
    IntervalSet single, joined;
    std::int64_t now = 1000;
    const auto take = [&] {
      births.drain(static_cast<std::size_t>(draw(rng, 1, 5)), [&](const Admission& admission) {
        REQUIRE(joined.insert(policy, {admission.time, admission.hits}));
      });
    };
    for (int i = 0; i < 200; ++i) {
      now += draw(rng, 0, 150);
      const Tokens hits{draw(rng, 1, 3)};
      REQUIRE(single.insert(policy, {{now}, hits}));
      if (single.size() == kIntervalCap) break;  // from there on the order matters
      push(births, birth(5, hits.v, now));
      if (chance(rng, 10)) take();
    }
    while (!births.empty()) take();
    REQUIRE(joined.weight() == single.weight());
    REQUIRE((single.size() == kIntervalCap || joined == single));
  });
}

TEST_CASE("what doesn't fit is counted and told", "[admissions]") {
  Admissions births(1);
  births.open(true);
  for (std::size_t i = 0; i < Admissions::kRing; ++i) REQUIRE(births.push(0, birth(i + 1), kInterval, false));
  for (std::size_t i = 0; i < 5; ++i) REQUIRE_FALSE(births.push(0, birth(1'000'000 + i), kInterval, false));
  CHECK(births.dropped() == 5);
  births.overflow();
  CHECK(births.overflowed());
  CHECK_FALSE(births.overflowed());
  CHECK(drained(births).back().key == KeyHash{Admissions::kRing});
  push(births, birth(7));
  CHECK_FALSE(births.empty());
}

TEST_CASE("one of many who find the reader asleep wakes it", "[admissions]") {
  Admissions births(2);
  CHECK_FALSE(births.wakes());
  births.open(true);
  CHECK_FALSE(births.wakes());  // awake at first
  CHECK(births.rests(false));
  CHECK(births.wakes());
  CHECK_FALSE(births.wakes());
}

TEST_CASE("while it polls, only what is urgent wakes the reader", "[admissions]") {
  Admissions births(2);
  births.open(true);
  births.awake();
  CHECK(births.rests(true));
  push(births, birth(1));
  CHECK_FALSE(births.wakes());
  push(births, birth(2), 0, true);
  CHECK(births.wakes());
  CHECK_FALSE(births.wakes());
  // What came while it was at work: it goes on if it would miss that.
  births.awake();
  push(births, birth(3));
  CHECK(births.rests(true));
  births.awake();
  push(births, birth(4), 0, true);
  CHECK_FALSE(births.rests(true));
  births.awake();
  CHECK_FALSE(births.rests(false));  // there is something
  drained(births);
  births.awake();
  CHECK(births.rests(false));
  // A ring that is half full is urgent.
  births.awake();
  CHECK(births.rests(true));
  for (std::size_t i = 0; i < Admissions::kRing / 2; ++i) push(births, birth(i + 1));
  CHECK_FALSE(births.wakes());
  push(births, birth(5'000'000));
  CHECK(births.wakes());
}

// (A test that fails must not hang: the reader waits for a deadline, and says so.)
TEST_CASE("no birth and no wake-up gets lost between threads", "[admissions][threads]") {
  constexpr unsigned kThreads = 4;  // two of them share the last ring
  constexpr std::uint64_t kEach = 20'000;
  for (const bool urgent : {false, true}) {
    Admissions births(kThreads - 1);
    births.open(true);
    std::counting_semaphore<> wake(0);
    std::map<std::uint64_t, std::uint64_t> last;
    std::uint64_t taken = 0;
    bool in_order = true;
    bool overslept = false;
    std::atomic<bool> written{false};
    std::thread reader([&] {
      while (taken + births.dropped() < kThreads * kEach && !overslept) {
        births.awake();
        births.drain(kAll, [&](const Admission& admission) {
          const std::uint64_t writer = admission.key.v >> 32;
          // (Twice when it was taken between two births of it.)
          in_order = in_order && admission.key.v >= last[writer];
          last[writer] = admission.key.v;
          taken += static_cast<std::uint64_t>(admission.hits.v);
        });
        if (!births.rests(false) || taken + births.dropped() >= kThreads * kEach) continue;
        const bool over = written.load();
        if (!wake.try_acquire_for(std::chrono::seconds(10))) overslept = over || !births.empty();
      }
    });
    std::vector<std::thread> writers;
    for (unsigned t = 0; t < kThreads; ++t) {
      writers.emplace_back([&, t] {
        for (std::uint64_t i = 1; i <= kEach; ++i) {
          // Half of them join the one before.
          push(births, birth((std::uint64_t{t} << 32) + i / 2 + 1), std::min(t, kThreads - 2), urgent);
          if (births.wakes()) wake.release();
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    written = true;
    wake.release();  // what a full ring dropped last wakes nobody
    reader.join();
    CHECK_FALSE(overslept);
    CHECK(taken + births.dropped() == kThreads * kEach);
    CHECK(in_order);
  }
}

TEST_CASE("a replicated limiter tells what it admits, and takes levels", "[registry][admissions]") {
  Registry registry(2);
  registry.replication().births.open(true);
  LimiterOptions options;
  options.number = {42};
  options.deny_in_minority = true;
  const Policy policy{{10}, {1'000'000'000}};
  const Nanos now{1'700'000'000'000'000'000};
  REQUIRE(registry.put("cluster", {11}, policy, options, now) == Registry::Put::created);
  const Registry::Ref ref = registry.find({11});
  REQUIRE(registry.find_number({42}) == ref);
  const KeyHash key{0x123456789abcdef1};
  std::vector<Admission> told;
  const auto tell = [&] {
    told.clear();
    registry.replication().births.drain(kAll, [&](const Admission& admission) { told.push_back(admission); });
  };

  CHECK(Registry::decide(ref, key, {3}, now, 0).allowed);
  tell();
  REQUIRE(told.size() == 1);
  CHECK(told[0].limiter == LimiterId{42});
  CHECK(told[0].hits == Tokens{3});
  CHECK(told[0].tat == now + Nanos{3'000'000'000});

  // Raised by others' births, never lowered, unless it is said to be exact.
  const Nanos nine = now + Nanos{9'000'000'000};
  CHECK(Registry::set_level(ref, key, nine, false, now));
  CHECK(Registry::set_level(ref, key, now + Nanos{2'000'000'000}, false, now));
  CHECK_FALSE(Registry::decide(ref, key, {2}, now, 0).allowed);
  tell();
  CHECK(told.empty());
  CHECK(Registry::set_level(ref, key, now + Nanos{2'000'000'000}, true, now));
  CHECK(Registry::decide(ref, key, {8}, now, 0).allowed);
  CHECK(Registry::set_level(ref, {77}, now, false, now));  // nothing to hold
  CHECK(ref.limiter->table().stats().keys == 1);

  registry.replication().minority = true;
  CHECK(Registry::decide(ref, {5}, {1}, now, 0).retry == Nanos{1'000'000'000});
  registry.replication().minority = false;
  CHECK(Registry::decide(ref, {5}, {1}, now, 0).allowed);

  CHECK(registry.put("other", {12}, policy, options, now) == Registry::Put::same_number);
  REQUIRE(registry.remove({11}));
  CHECK_FALSE(registry.find_number({42}));
}

TEST_CASE("hits above the share are to be asked about, if the limiter wants it", "[registry][admissions]") {
  Registry registry(1);
  LimiterOptions options;
  options.number = {42};
  options.claims = true;
  const Nanos now{1'700'000'000'000'000'000};
  REQUIRE(registry.put("cluster", {11}, {{10}, {1'000'000'000}}, options, now) == Registry::Put::created);
  const Registry::Ref ref = registry.find({11});
  CHECK_FALSE(Registry::claims(ref, {5}, {10}, now));  // alone
  registry.replication().nodes = 3;
  CHECK_FALSE(Registry::claims(ref, {5}, {3}, now));
  CHECK(Registry::claims(ref, {5}, {4}, now));
  CHECK_FALSE(Registry::claims(ref, {5}, {11}, now));  // never
  REQUIRE(Registry::decide(ref, {5}, {8}, now, 0).allowed);
  CHECK_FALSE(Registry::claims(ref, {5}, {1}, now));
  CHECK(Registry::claims(ref, {5}, {2}, now));
  CHECK_FALSE(Registry::claims(ref, {5}, {3}, now));  // denied as it is
}

}  // namespace weir::test
