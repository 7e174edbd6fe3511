// The rings between the threads that admit and the replica. R31.
#include "weir/admissions.hpp"

#include <algorithm>
#include <map>
#include <semaphore>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "weir/registry.hpp"

namespace weir::test {
namespace {

constexpr std::size_t kAll = SIZE_MAX;

Admission birth(std::uint64_t key, std::int64_t hits = 1) { return {{1}, {key}, {hits}, {1000}, {2000}}; }

}  // namespace

TEST_CASE("births come out in their order, as many as asked for", "[admissions]") {
  Admissions births(2);
  births.push(0, birth(1));
  CHECK(births.empty());  // nobody reads
  births.open(true);
  for (std::uint64_t key = 1; key <= 100; ++key) births.push(0, birth(key));
  std::vector<std::uint64_t> seen;
  const auto note = [&](const Admission& admission) { seen.push_back(admission.key.v); };
  births.drain(30, note);
  CHECK(seen.size() == 30);
  CHECK_FALSE(births.empty());
  births.drain(kAll, note);
  REQUIRE(seen.size() == 100);
  CHECK(std::is_sorted(seen.begin(), seen.end()));
  CHECK(births.empty());
}

TEST_CASE("what doesn't fit is counted and told, once", "[admissions]") {
  Admissions births(1);
  births.open(true);
  for (std::size_t i = 0; i < Admissions::kRing + 5; ++i) births.push(0, birth(i + 1));
  CHECK(births.dropped() == 5);
  CHECK(births.overflowed());
  CHECK_FALSE(births.overflowed());
  std::uint64_t last = 0;
  births.drain(kAll, [&](const Admission& admission) { last = admission.key.v; });
  CHECK(last == Admissions::kRing);
  births.push(0, birth(7));
  CHECK_FALSE(births.empty());
}

TEST_CASE("one of many who find the reader asleep wakes it", "[admissions]") {
  Admissions births(2);
  CHECK_FALSE(births.wakes());
  births.open(true);
  CHECK_FALSE(births.wakes());  // awake at first
  births.awake(false);
  CHECK(births.wakes());
  CHECK_FALSE(births.wakes());
}

TEST_CASE("no birth and no wake-up gets lost between threads", "[admissions][threads]") {
  constexpr unsigned kThreads = 4;  // two of them share the last ring
  constexpr std::uint64_t kEach = 20'000;
  Admissions births(kThreads - 1);
  births.open(true);
  std::counting_semaphore<> wake(0);
  std::map<std::uint64_t, std::uint64_t> last;
  std::uint64_t taken = 0;
  bool in_order = true;
  std::thread reader([&] {
    while (taken + births.dropped() < kThreads * kEach) {
      births.awake(true);
      births.drain(kAll, [&](const Admission& admission) {
        const std::uint64_t writer = admission.key.v >> 32;
        in_order = in_order && admission.key.v > last[writer];
        last[writer] = admission.key.v;
        ++taken;
      });
      births.awake(false);
      if (births.empty() && taken + births.dropped() < kThreads * kEach) wake.acquire();
    }
  });
  std::vector<std::thread> writers;
  for (unsigned t = 0; t < kThreads; ++t) {
    writers.emplace_back([&, t] {
      for (std::uint64_t i = 1; i <= kEach; ++i) {
        births.push(std::min(t, kThreads - 2), birth((std::uint64_t{t} << 32) + i));
        if (births.wakes()) wake.release();
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  wake.release();  // what a full ring dropped last wakes nobody
  reader.join();
  CHECK(in_order);
  CHECK(taken + births.dropped() == kThreads * kEach);
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
