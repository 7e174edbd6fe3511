// Shows R12, R43, R44, R45 of doc/requirements.md.
// The registry: names, aliases, changes, deletion and handles, alone and while threads decide.
#include "weir/registry.hpp"

#include <atomic>
#include <map>
#include <new>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"

using namespace weir;

namespace {

constexpr Nanos kNow{1'800'000'000'000'000'000};
constexpr Nanos kSecond{1'000'000'000};
constexpr Policy kFive{{5}, kSecond};

KeyHash name(std::uint64_t n) { return {0x9e3779b97f4a7c15 * (n + 1)}; }

Registry::Put put(Registry& registry, std::uint64_t n, const Policy& policy = kFive, LimiterOptions options = {}) {
  return registry.put("limiter " + std::to_string(n), name(n), policy, options, kNow);
}

bool allows(Registry::Ref ref, std::uint64_t key, Nanos now = kNow) {
  return Registry::decide(ref, {key}, {1}, now, 0).allowed;
}

void maintain_all(Registry& registry, Nanos now) {
  for (int passes = 0; passes < 2; ++passes)
    while (!registry.maintain(now, 4)) {
    }
}

}  // namespace

TEST_CASE("registry: a limiter is found by name and by alias, and no longer once removed", "[registry]") {
  Registry registry(2);
  REQUIRE_FALSE(registry.find(name(1)));
  REQUIRE(put(registry, 1) == Registry::Put::created);
  const Registry::Ref ref = registry.find(name(1));
  REQUIRE(ref);
  REQUIRE_FALSE(registry.find_alias(77));
  REQUIRE(registry.set_alias(name(1), 77));
  REQUIRE(registry.find_alias(77) == ref);
  REQUIRE_FALSE(registry.set_alias(name(2), 78));

  REQUIRE(allows(ref, 9));
  REQUIRE(registry.remove(name(1)));
  REQUIRE_FALSE(registry.remove(name(1)));
  REQUIRE_FALSE(registry.find(name(1)));
  REQUIRE_FALSE(registry.find_alias(77));
}

TEST_CASE("registry: who holds a removed limiter is answered as on_error says, and counted as failed", "[registry]") {
  for (const bool deny : {false, true}) {
    Registry registry(2);
    LimiterOptions options;
    options.deny_on_error = deny;
    put(registry, 1, kFive, options);
    const Registry::Ref ref = registry.find(name(1));
    registry.remove(name(1));
    const Decision decision = Registry::decide(ref, {9}, {1}, kNow, 0);
    REQUIRE(decision.allowed == !deny);
    REQUIRE(decision.remaining.v == 0);
    REQUIRE(ref.limiter->counts().failed == 1);
    Tat state;
    Terms terms;
    REQUIRE_FALSE(Registry::peek(ref, {9}, kNow, state, terms));
  }
}

TEST_CASE("registry: a name made again begins anew, in recycled memory, and old references stay gone", "[registry]") {
  Registry registry(2);
  put(registry, 1);
  const Registry::Ref old = registry.find(name(1));
  for (int i = 0; i < 5; ++i) REQUIRE(allows(old, 9));
  REQUIRE_FALSE(allows(old, 9));
  registry.remove(name(1));
  maintain_all(registry, kNow);
  put(registry, 2, {{1}, kSecond});
  const Registry::Ref fresh = registry.find(name(2));
  REQUIRE(fresh.limiter == old.limiter);
  REQUIRE(fresh.generation != old.generation);
  REQUIRE(fresh.limiter->counts().denied == 0);
  REQUIRE(allows(fresh, 9));
  REQUIRE_FALSE(allows(fresh, 9));
  REQUIRE(allows(old, 9));  // gone: fails open
}

TEST_CASE("registry: a change carries levels over; a second one waits for the first", "[registry]") {
  Registry registry(2);
  put(registry, 1);
  const Registry::Ref ref = registry.find(name(1));
  for (int i = 0; i < 4; ++i) REQUIRE(allows(ref, 9));
  REQUIRE(put(registry, 1, {{2}, kSecond}) == Registry::Put::changed);
  REQUIRE(put(registry, 1, {{3}, kSecond}) == Registry::Put::busy);
  REQUIRE_FALSE(allows(ref, 9));  // 4 of 5 became 2 of 2
  while (!registry.convert(name(1), 1)) {
  }
  REQUIRE(put(registry, 1, {{3}, kSecond}) == Registry::Put::changed);
  REQUIRE(allows(ref, 9));
  REQUIRE_FALSE(allows(ref, 9));
  LimiterOptions other;
  other.max_keys = 5;
  maintain_all(registry, kNow);
  REQUIRE(put(registry, 1, kFive, other) == Registry::Put::fixed);
}

TEST_CASE("registry: shadow answers denials as admissions and counts them", "[registry]") {
  Registry registry(2);
  LimiterOptions options;
  options.shadow = true;
  put(registry, 1, {{1}, kSecond}, options);
  const Registry::Ref ref = registry.find(name(1));
  REQUIRE(allows(ref, 9));
  REQUIRE(allows(ref, 9));
  REQUIRE(ref.limiter->counts().allowed == 1);
  REQUIRE(ref.limiter->counts().shadow_denied == 1);
}

TEST_CASE("registry: a transient limiter goes when nobody holds it and its keys have expired, not before",
          "[registry]") {
  Registry registry(2);
  LimiterOptions options;
  options.transient = true;
  put(registry, 1, kFive, options);
  const Registry::Ref ref = registry.find(name(1));
  REQUIRE(registry.retain(ref));
  REQUIRE(allows(ref, 9));
  maintain_all(registry, kNow + kSecond + kSecond);
  REQUIRE(registry.find(name(1)));  // held
  REQUIRE(allows(ref, 9, kNow + kSecond + kSecond));
  registry.release(ref);
  maintain_all(registry, kNow + kSecond + kSecond);
  REQUIRE(registry.find(name(1)));  // its key has a level
  maintain_all(registry, kNow + Tokens{9} * kSecond);
  REQUIRE_FALSE(registry.find(name(1)));
  REQUIRE_FALSE(registry.retain(ref));
  registry.release(ref);  // of a limiter that is gone: nothing
}

TEST_CASE("registry: an asker decides and counts as the registry does", "[registry]") {
  Registry registry(2);
  put(registry, 1);
  const Registry::Ref ref = registry.find(name(1));
  {
    Asker asker(ref, 1);
    for (int i = 0; i < 5; ++i) REQUIRE(asker.ask({9}, {1}, kNow).allowed);
    put(registry, 1, {{6}, kSecond});
    while (!registry.convert(name(1), 1)) {
    }  // the terms that the asker has read are stale now
    REQUIRE(asker.ask({9}, {1}, kNow).allowed);
    const Answered denied = asker.ask({9}, {1}, kNow);
    REQUIRE_FALSE(denied.allowed);
    REQUIRE(denied.policy.capacity == Tokens{6});
    REQUIRE(ref.limiter->counts().allowed == 0);  // counted at the end
  }
  REQUIRE(ref.limiter->counts().allowed == 6);
  REQUIRE(ref.limiter->counts().denied == 1);
}

TEST_CASE("registry: there is a most of limiters, and removing makes room at once", "[registry]") {
  Registry registry(1);
  LimiterOptions small;
  small.max_keys = 1;
  for (std::uint64_t n = 0; n < Registry::kMaxLimiters; ++n)
    if (put(registry, n, kFive, small) != Registry::Put::created) FAIL("limiter " << n << " was refused");
  REQUIRE(put(registry, Registry::kMaxLimiters, kFive, small) == Registry::Put::too_many);
  // Transient ones have room of their own, and take none from those that have names.
  LimiterOptions transient = small;
  transient.transient = true;
  const std::uint64_t first = Registry::kMaxLimiters + 1;
  for (std::uint64_t n = first; n < first + Registry::kMaxTransient; ++n)
    if (put(registry, n, kFive, transient) != Registry::Put::created) FAIL("policy " << n << " was refused");
  REQUIRE(put(registry, 1'000'000, kFive, transient) == Registry::Put::too_many);
  for (std::uint64_t n = 0; n < Registry::kMaxLimiters; n += 511) REQUIRE(registry.find(name(n)));
  for (std::uint64_t n = first; n < first + Registry::kMaxTransient; n += 511) REQUIRE(registry.find(name(n)));
  REQUIRE(registry.remove(name(7)));
  REQUIRE(put(registry, Registry::kMaxLimiters, kFive, small) == Registry::Put::created);
  REQUIRE_FALSE(registry.find(name(7)));
  REQUIRE(registry.list().size() == Registry::kMaxLimiters + Registry::kMaxTransient);
  maintain_all(registry, kNow);  // nobody holds the transient ones
  REQUIRE(registry.list().size() == Registry::kMaxLimiters);
  registry.remove_all();
  REQUIRE(registry.empty());
}

TEST_CASE("registry: where no limiter more may be made, those that are there lose nothing", "[registry]") {
  Registry registry(1);
  LimiterOptions transient;
  transient.transient = true;
  transient.max_keys = 1;
  put(registry, 1);
  const Registry::Ref ref = registry.find(name(1));
  for (int i = 0; i < 4; ++i) REQUIRE(allows(ref, 9));
  for (std::uint64_t n = 0; n < Registry::kMaxTransient; ++n)
    if (put(registry, 1000 + n, kFive, transient) != Registry::Put::created) FAIL("policy " << n << " was refused");
  for (std::uint64_t n = 900; n < 910; ++n) {
    CHECK(put(registry, n, kFive, transient) == Registry::Put::too_many);
    CHECK_FALSE(registry.find(name(n)));
  }
  // Whoever has a limiter is answered as before, may change it, and may make others with names.
  CHECK(registry.find(name(1)) == ref);
  CHECK(allows(ref, 9));
  CHECK_FALSE(allows(ref, 9));
  CHECK(put(registry, 1, {{7}, kSecond}) == Registry::Put::changed);
  CHECK(allows(ref, 9));
  CHECK(put(registry, 2) == Registry::Put::created);
  CHECK(put(registry, 1000, {{9}, kSecond}, transient) == Registry::Put::changed);
  CHECK(ref.limiter->counts().failed == 0);
  CHECK(registry.list().size() == Registry::kMaxTransient + 2);
}

TEST_CASE("registry: one name made and deleted again and again is each time another limiter", "[registry]") {
  Registry registry(1);
  std::vector<Registry::Ref> gone;
  std::set<std::uint64_t> places;
  for (std::uint64_t round = 0; round < 2000; ++round) {
    REQUIRE(put(registry, 1, {{static_cast<std::int64_t>(round % 3 + 1)}, kSecond}) == Registry::Put::created);
    if (round % 2 == 0) registry.set_alias(name(1), 77);
    const Registry::Ref ref = registry.find(name(1));
    REQUIRE(ref);
    REQUIRE(static_cast<bool>(registry.find_alias(77)) == (round % 2 == 0));
    places.insert(reinterpret_cast<std::uintptr_t>(ref.limiter));
    for (std::uint64_t hits = 0; hits < round % 3 + 1; ++hits) REQUIRE(allows(ref, 9));
    REQUIRE_FALSE(allows(ref, 9));
    REQUIRE(ref.limiter->counts().denied == 1);
    for (const Registry::Ref& old : gone) {
      Tat state;
      Terms terms;
      REQUIRE_FALSE(Registry::peek(old, {9}, kNow, state, terms));
      REQUIRE_FALSE(registry.retain(old));
    }
    gone.push_back(ref);
    if (gone.size() > 8) gone.erase(gone.begin());
    REQUIRE(registry.remove(name(1)));
    if (round % 5 == 0) maintain_all(registry, kNow);
  }
  CHECK(places.size() < 10);  // what is deleted comes back
}

// Names of all kinds, made and removed in turn past many rebuilds of the index.
TEST_CASE("registry: what is found is what a map would find", "[registry]") {
  test::for_cases([](test::Rng& rng) {
    Registry registry(1);
    LimiterOptions options;
    options.max_keys = 10;
    std::map<std::uint64_t, std::pair<std::uint32_t, std::uint64_t>> model;  // of a name: its number and its alias
    const auto check = [&](std::uint64_t n) {
      const auto known = model.find(n);
      const Registry::Ref ref = registry.find(name(n));
      REQUIRE(static_cast<bool>(ref) == (known != model.end()));
      if (known == model.end()) return;
      if (known->second.first != 0) REQUIRE(registry.find_number({known->second.first}) == ref);
      if (known->second.second != 0) REQUIRE(registry.find_alias(known->second.second) == ref);
    };
    for (int step = 0; step < 400; ++step) {
      const auto n = static_cast<std::uint64_t>(test::draw(rng, 0, 60));
      const auto what = test::draw(rng, 0, 9);
      if (what < 4 && !model.contains(n)) {
        options.number = {test::chance(rng, 50) ? static_cast<std::uint32_t>(n + 1) : 0};
        REQUIRE(put(registry, n, kFive, options) == Registry::Put::created);
        model[n] = {options.number.v, 0};
      } else if (what < 6) {
        REQUIRE(registry.remove(name(n)) == (model.erase(n) == 1));
      } else if (what < 8 && model.contains(n)) {
        model[n].second = 1000 + 100 * n + static_cast<std::uint64_t>(test::draw(rng, 0, 3));
        REQUIRE(registry.set_alias(name(n), model[n].second));
      } else if (what == 8) {
        registry.maintain(kNow, 2);
      }
      check(n);
    }
    for (std::uint64_t n = 0; n <= 60; ++n) check(n);
    REQUIRE(registry.list().size() == model.size());
  });
}

// The walk over keys holds no lock of the registry's: whoever makes, finds or deletes limiters meanwhile isn't held up,
// also from inside of the walk.
TEST_CASE("registry: limiters are made, changed and deleted during a walk over keys", "[registry]") {
  Registry registry(1);
  LimiterOptions options;
  options.number = {5};
  REQUIRE(put(registry, 1, kFive, options) == Registry::Put::created);
  const Registry::Ref ref = registry.find(name(1));
  for (std::uint64_t key = 1; key <= 5000; ++key) REQUIRE(allows(ref, key * 0x9e3779b97f4a7c15));
  std::size_t seen = 0;
  bool once = true;
  registry.for_each_replicated(false, kNow, [&](LimiterId number, std::span<const Table::Entry> entries) {
    REQUIRE(number == LimiterId{5});
    seen += entries.size();
    // A question to a key of the same segment, and a change of everything.
    for (const Table::Entry& entry : entries) REQUIRE(allows(ref, entry.key.v));
    if (!std::exchange(once, false)) return;
    REQUIRE(put(registry, 2) == Registry::Put::created);
    REQUIRE(put(registry, 1, {{5}, Nanos{kSecond.v * 2}}, options) == Registry::Put::changed);
    while (!registry.convert(name(1), 1)) {
    }
    registry.maintain(kNow, 4);
  });
  REQUIRE(seen == 5000);
  // A visitor that throws leaves nothing locked.
  const auto boom = [](LimiterId, std::span<const Table::Entry>) { throw std::bad_alloc(); };
  REQUIRE_THROWS_AS(registry.for_each_replicated(false, kNow, boom), std::bad_alloc);
  for (std::uint64_t key = 1; key <= 5000; ++key) Registry::decide(ref, {key * 0x9e3779b97f4a7c15}, {1}, kNow, 0);
  REQUIRE(registry.remove(name(1)));
  registry.for_each_replicated(false, kNow,
                               [&](LimiterId, std::span<const Table::Entry>) { FAIL("a deleted limiter"); });
}

TEST_CASE("registry: births that didn't fit are looked for where they were, once", "[registry][admissions]") {
  Registry registry(1);
  registry.replication().births.open(true);
  LimiterOptions options;
  options.number = {5};
  put(registry, 1, {{1'000'000}, kSecond}, options);
  const Registry::Ref ref = registry.find(name(1));
  // Distinct keys, so that none joins another's entry; what comes after the first ring is dropped.
  const auto key = [](std::uint64_t i) { return KeyHash{(i + 1) * 0x9e3779b97f4a7c15}; };
  const std::uint64_t count = Admissions::kRing + 3000;
  for (std::uint64_t i = 0; i < count; ++i) REQUIRE(Registry::decide(ref, key(i), {1}, kNow, 0).allowed);
  CHECK(registry.replication().births.dropped() == 3000);
  CHECK(registry.replication().births.overflowed());
  std::set<std::uint64_t> seen;
  const auto collect = [&](std::size_t most) {
    return registry.for_each_dropped(kNow, most, [&](LimiterId, std::span<const Table::Entry> entries) {
      for (const Table::Entry& entry : entries) CHECK(seen.insert(entry.key.v).second);
    });
  };
  REQUIRE_FALSE(collect(1));  // in parts
  CHECK(seen.size() < count / 2);
  REQUIRE(collect(SIZE_MAX));
  for (std::uint64_t i = Admissions::kRing; i < count; ++i) REQUIRE(seen.contains(key(i).v));
  seen.clear();
  REQUIRE(collect(SIZE_MAX));
  CHECK(seen.empty());
  // Few drops, few keys.
  registry.replication().births.drain(SIZE_MAX, [](const Admission&) {});
  for (std::uint64_t i = 0; i < Admissions::kRing; ++i) Registry::decide(ref, key(count + i), {1}, kNow, 0);
  Registry::decide(ref, key(7), {1}, kNow, 0);
  REQUIRE(collect(SIZE_MAX));
  CHECK(seen.size() <= Table::kMaxSlots);
  CHECK(seen.contains(key(7).v));
  registry.drop_all();
  seen.clear();
  REQUIRE(collect(SIZE_MAX));
  CHECK(seen.size() == count + Admissions::kRing);
}

// A large table has segments that are smaller than the ranges in which drops are noted.
TEST_CASE("registry: births that didn't fit are looked for in all segments of their range", "[registry][admissions]") {
  Registry registry(1);
  registry.replication().births.open(true);
  LimiterOptions options;
  options.number = {5};
  options.max_keys = 16'000'000;
  put(registry, 1, {{1'000'000}, kSecond}, options);
  const Registry::Ref ref = registry.find(name(1));
  const auto key = [](std::uint64_t i) {
    return KeyHash{std::uint64_t{77} << 54 | (i + 1) * 0x9e3779b97f4a7c15 >> 10};
  };
  for (std::uint64_t i = 0; i < Admissions::kRing; ++i) allows(ref, (i + 1) * 0x9e3779b97f4a7c15);
  constexpr std::uint64_t kCount = 20'000;
  for (std::uint64_t i = 0; i < kCount; ++i) REQUIRE(allows(ref, key(i).v));
  REQUIRE(registry.replication().births.dropped() == kCount);
  for (const std::size_t most : {std::size_t{1}, std::size_t{SIZE_MAX}}) {
    std::set<std::uint64_t> seen;
    bool all = false;
    for (int steps = 0; !all && steps < 1000; ++steps)
      all = registry.for_each_dropped(kNow, most, [&](LimiterId, std::span<const Table::Entry> entries) {
        for (const Table::Entry& entry : entries) CHECK(seen.insert(entry.key.v).second);
      });
    REQUIRE(all);
    std::size_t missing = 0;
    for (std::uint64_t i = 0; i < kCount; ++i) missing += seen.contains(key(i).v) ? 0 : 1;
    CHECK(missing == 0);
    registry.drop_all();
  }
}

// Whoever walks holds a limiter by the generation that it had; meanwhile it may have gone, and another one come there.
TEST_CASE("registry: drops of a limiter that took another one's place during a walk are kept",
          "[registry][admissions]") {
  Registry registry(1);
  registry.replication().births.open(true);
  LimiterOptions options;
  for (std::uint32_t n = 1; n <= 2; ++n) {
    options.number = {n};
    put(registry, n, {{1'000'000}, kSecond}, options);
  }
  const Registry::Ref first = registry.find(name(1)), second = registry.find(name(2));
  REQUIRE(allows(first, 7));
  REQUIRE(allows(second, 8));
  registry.drop_all();
  std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
  const auto collect = [&](bool replaces) {
    return registry.for_each_dropped(kNow, SIZE_MAX, [&](LimiterId number, std::span<const Table::Entry> entries) {
      for (const Table::Entry& entry : entries) seen.emplace(number.v, entry.key.v);
      if (!std::exchange(replaces, false)) return;
      REQUIRE(registry.remove(name(2)));
      maintain_all(registry, kNow);
      options.number = {3};
      put(registry, 3, {{1'000'000}, kSecond}, options);
      REQUIRE(registry.find(name(3)).limiter == second.limiter);
      REQUIRE(allows(registry.find(name(3)), 9));
      registry.drop_all();
    });
  };
  collect(true);
  bool all = false;
  for (int walks = 0; !all && walks < 10; ++walks) all = collect(false);
  CHECK(all);
  CHECK(seen.contains({3, 9}));
  CHECK_FALSE(seen.contains({3, 8}));
}

TEST_CASE("registry: names found while others come and go are the right ones", "[registry][threads]") {
  Registry registry(4);
  constexpr std::uint64_t kStable = 1000;
  put(registry, kStable, {{1'000'000'000}, {1}});
  registry.set_alias(name(kStable), 4242);
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> asked{0}, missed{0};
  std::atomic<unsigned> began{0};
  std::vector<std::thread> readers;
  for (unsigned t = 0; t < 3; ++t)
    readers.emplace_back([&, t] {
      std::int64_t mine = 0;
      for (std::uint64_t i = 0; !stop.load(); ++i) {
        const Registry::Ref ref = i % 2 != 0 ? registry.find(name(kStable)) : registry.find_alias(4242);
        if (!ref)
          ++missed;
        else if (Registry::decide(ref, {i}, {1}, kNow, t).allowed)
          ++mine;
        if (const Registry::Ref coming = registry.find(name(i % 8))) Registry::decide(coming, {i}, {1}, kNow, t);
        if (i == 0) ++began;
      }
      asked += mine;
    });
  // On a busy machine all rounds may be over before a reader runs for the first time.
  while (began != readers.size()) std::this_thread::yield();
  for (int round = 0; round < 300; ++round) {
    const auto n = static_cast<std::uint64_t>(round % 8);
    if (!registry.remove(name(n))) put(registry, n);
    put(registry, kStable, {{1'000'000'000}, {round % 2 + 1}});
    registry.maintain(kNow, 8);
    while (!registry.convert(name(kStable), 8)) {
    }
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  REQUIRE(missed == 0);
  REQUIRE(asked > 0);
  const Counts counts = registry.find(name(kStable)).limiter->counts();
  REQUIRE(counts.allowed == asked);
  REQUIRE(counts.failed == 0);
}
