// Shows R12 of doc/requirements.md.
// The registry: names, aliases, changes, deletion and handles, alone and while threads decide.
#include "weir/registry.hpp"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

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
    REQUIRE(asker.capacity() == Tokens{5});
    for (int i = 0; i < 5; ++i) REQUIRE(asker.decide({9}, {1}, kNow).allowed);
    put(registry, 1, {{6}, kSecond});
    while (!registry.convert(name(1), 1)) {
    }  // the terms that the asker has read are stale now
    REQUIRE(asker.decide({9}, {1}, kNow).allowed);
    REQUIRE_FALSE(asker.decide({9}, {1}, kNow).allowed);
    REQUIRE(asker.capacity() == Tokens{6});
    REQUIRE(ref.limiter->counts().allowed == 0);  // counted at the end
  }
  REQUIRE(ref.limiter->counts().allowed == 6);
  REQUIRE(ref.limiter->counts().denied == 1);
}

TEST_CASE("registry: there is a most of limiters, and removing makes room", "[registry]") {
  Registry registry(1);
  LimiterOptions small;
  small.max_keys = 1;
  for (std::uint64_t n = 0; n < Registry::kMaxLimiters; ++n)
    if (put(registry, n, kFive, small) != Registry::Put::created) FAIL("limiter " << n << " was refused");
  REQUIRE(put(registry, Registry::kMaxLimiters, kFive, small) == Registry::Put::too_many);
  REQUIRE(registry.find(name(0)));
  REQUIRE(registry.find(name(Registry::kMaxLimiters - 1)));
  REQUIRE(registry.remove(name(7)));
  maintain_all(registry, kNow);
  REQUIRE(put(registry, Registry::kMaxLimiters, kFive, small) == Registry::Put::created);
  REQUIRE(registry.list().size() == Registry::kMaxLimiters);
}

TEST_CASE("registry: names found while others come and go are the right ones", "[registry][threads]") {
  Registry registry(4);
  constexpr std::uint64_t kStable = 1000;
  put(registry, kStable, {{1'000'000'000}, {1}});
  registry.set_alias(name(kStable), 4242);
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> asked{0}, missed{0};
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
      }
      asked += mine;
    });
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
