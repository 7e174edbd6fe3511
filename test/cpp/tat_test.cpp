// Shows R01 of doc/requirements.md.
// Tat against the fold over single births, in time order (where it is exact), and at the edges of its range.
#include "weir/tat.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "births.hpp"
#include "cases.hpp"
#include "catch.hpp"

namespace weir {
namespace {

using test::Births;
using test::chance;
using test::draw;
using test::Int128;
using test::kBase;
using test::Rng;

constexpr Nanos kSecond{1'000'000'000};

// What a decision must be by definition, given the births before it.
Decision specified(const Births& births, const Policy& policy, Tokens hits, Nanos now, Births& after) {
  Decision decision;
  decision.allowed = births.admits(policy, hits, now);
  after = births;
  if (decision.allowed) after.add({now, hits});
  const Int128 tat = after.tat(policy);
  const Int128 slack = policy.capacity.v - after.level(policy, now);
  decision.remaining = {static_cast<std::int64_t>(slack < 0 ? 0 : slack)};
  decision.reset = {tat <= now.v ? 0 : static_cast<std::int64_t>(tat - now.v)};
  if (hits > policy.capacity) {
    decision.retry = kNever;
  } else if (!decision.allowed) {
    const Int128 retry = tat + Int128{hits.v} * policy.interval.v - policy.span().v - now.v;
    decision.retry = {static_cast<std::int64_t>(retry)};
  }
  return decision;
}

void require_same(const Decision& a, const Decision& b) {
  REQUIRE(a.allowed == b.allowed);
  REQUIRE(a.remaining.v == b.remaining.v);
  REQUIRE(a.reset.v == b.reset.v);
  REQUIRE(a.retry.v == b.retry.v);
}

void require_same(const Tat& cell, const Births& births, const Policy& policy, Nanos now) {
  REQUIRE(cell.level(policy, now).v == static_cast<std::int64_t>(births.level(policy, now)));
  REQUIRE(cell.slack(policy, now).v == static_cast<std::int64_t>(policy.capacity.v - births.level(policy, now)));
}

// Denied until retry - 1 ns, admitted at retry, if no one else asks.
void require_exact_retry(const Tat& cell, const Policy& policy, Tokens hits, Nanos now) {
  const Decision denied = cell.peek(policy, hits, now);
  REQUIRE_FALSE(denied.allowed);
  REQUIRE(denied.retry.v > 0);
  if (hits > policy.capacity) {
    REQUIRE(denied.retry == kNever);
    return;
  }
  REQUIRE_FALSE(cell.admits(policy, hits, now + denied.retry - Nanos{1}));
  REQUIRE(cell.admits(policy, hits, now + denied.retry));
}

TEST_CASE("tat: equals the fold over single births that come in time order", "[tat]") {
  std::uint64_t decisions = 0;
  std::uint64_t denials = 0;
  test::for_cases([&](Rng& rng) {
    Policy policy = test::draw_policy(rng);
    Tat cell;
    Births births;
    Nanos now = kBase;
    for (int step = 0; step < 60; ++step) {
      now = now + test::draw_span(rng, policy, test::pick<std::int64_t>(rng, {0, 0, 1, 3, policy.capacity.v}));
      const Tokens hits{draw(rng, 1, chance(rng, 80) ? 1 + policy.capacity.v / 4 : 2 * policy.capacity.v)};
      const auto what = draw(rng, 1, 100);
      if (what <= 75) {
        Births after;
        const Decision expected = specified(births, policy, hits, now, after);
        const Tat before = cell;
        const Decision peeked = cell.peek(policy, hits, now);
        REQUIRE(peeked.allowed == expected.allowed);
        REQUIRE(peeked.retry == expected.retry);
        // What is left is told of the state as it stands: the hits of a peek are not counted.
        REQUIRE(peeked.remaining.v == std::max<std::int64_t>(0, cell.slack(policy, now).v));
        REQUIRE(peeked.reset.v == std::max<std::int64_t>(0, (cell.value() - now).v));
        REQUIRE(cell.admits(policy, hits, now) == expected.allowed);
        require_same(cell.decide(policy, hits, now), expected);
        if (!expected.allowed) {
          REQUIRE(cell.value() == before.value());
          require_exact_retry(cell, policy, hits, now);
          ++denials;
        }
        ++decisions;
        births = std::move(after);
      } else if (what <= 85) {
        REQUIRE(cell.insert(policy, {now, hits}));
        births.add({now, hits});
      } else if (what <= 90) {
        cell.reset();
        births.reset();
      } else if (what <= 95) {
        cell.compact(policy, now);
      } else {
        const Policy to = chance(rng, 50) ? test::draw_policy(rng) : Policy{{draw(rng, 1, 200)}, policy.interval};
        cell.change(policy, to, now);
        births.change(policy, to, now);
        policy = to;
      }
      require_same(cell, births, policy, now);
    }
  });
  CHECK(denials > 0);
  CHECK(denials < decisions);
}

TEST_CASE("tat: a birth older than one before adds its full weight: late, never early", "[tat]") {
  test::for_cases([](Rng& rng) {
    const Policy policy = test::draw_policy(rng);
    Tat cell;
    Births births;
    Int128 out_of_order = 0;
    for (int i = 0; i < 40; ++i) {
      const Birth birth{kBase + test::draw_span(rng, policy, 60), {draw(rng, 1, 3)}};
      if (birth.time < births.newest()) out_of_order += birth.weight.v;
      births.add(birth);
      REQUIRE(cell.insert(policy, birth));
      const Int128 excess = cell.value().v - births.tat(policy);
      REQUIRE(excess >= 0);
      REQUIRE(excess <= out_of_order * policy.interval.v);
    }
  });
}

TEST_CASE("tat: exactly the capacity is admitted at one time", "[tat]") {
  const Policy policy{{5}, kSecond};
  Tat cell;
  for (std::int64_t left = 4; left >= 0; --left) {
    const Decision decision = cell.decide(policy, {1}, kBase);
    CHECK(decision.allowed);
    CHECK(decision.remaining.v == left);
    CHECK(decision.retry.v == 0);
  }
  const Decision sixth = cell.decide(policy, {1}, kBase);
  CHECK_FALSE(sixth.allowed);
  CHECK(sixth.remaining.v == 0);
  CHECK(sixth.retry == kSecond);
  CHECK(sixth.reset.v == 5 * kSecond.v);
  CHECK_FALSE(cell.decide(policy, {1}, kBase + kSecond - Nanos{1}).allowed);
  CHECK(cell.decide(policy, {1}, kBase + kSecond).allowed);
}

TEST_CASE("tat: hits above the capacity are never admitted and change nothing", "[tat]") {
  const Policy policy{{5}, kSecond};
  Tat cell;
  for (const Tokens hits : {Tokens{6}, Tokens{1'000'000}, Tokens{INT64_MAX}}) {
    const Decision decision = cell.decide(policy, hits, kBase);
    CHECK_FALSE(decision.allowed);
    CHECK(decision.retry == kNever);
    CHECK(decision.remaining.v == 5);
    CHECK(decision.reset.v == 0);
    CHECK(cell.value().v == 0);
  }
  CHECK(cell.decide(policy, {5}, kBase).allowed);
}

TEST_CASE("tat: recorded births may go into debt, which is paid at the rate", "[tat]") {
  const Policy policy{{3}, kSecond};
  Tat cell;
  REQUIRE(cell.insert(policy, {kBase, {10}}));
  CHECK(cell.level(policy, kBase).v == 10);
  CHECK(cell.slack(policy, kBase).v == -7);
  const Decision denied = cell.peek(policy, {1}, kBase);
  CHECK(denied.remaining.v == 0);
  CHECK(denied.retry.v == 8 * kSecond.v);
  require_exact_retry(cell, policy, {1}, kBase);
}

TEST_CASE("tat: a birth that would pass the end of time is refused and changes nothing", "[tat]") {
  const Policy policy{{1000}, kSecond};
  const std::int64_t fits = (kTimeMax - kBase).v / kSecond.v;
  Tat cell;
  CHECK_FALSE(cell.insert(policy, {kBase, {fits + 1}}));
  CHECK_FALSE(cell.insert(policy, {kBase, {INT64_MAX}}));
  CHECK(cell.value().v == 0);
  CHECK(cell.insert(policy, {kBase, {fits}}));
  CHECK(cell.value() <= kTimeMax);
  const Tat full = cell;
  CHECK_FALSE(cell.insert(policy, {kBase, {1}}));
  CHECK(cell.value() == full.value());
  CHECK_FALSE(cell.insert({{1}, {1}}, {kTimeMax, {1}}));
  Tat ends_exactly;
  CHECK(ends_exactly.insert({{1}, {1}}, {kTimeMax - Nanos{1}, {1}}));
  CHECK(ends_exactly.value() == kTimeMax);
}

TEST_CASE("tat: the longest spans and the latest times don't overflow", "[tat]") {
  const std::int64_t span = kSpanMax.v;
  const Nanos latest{(std::int64_t{1} << 61) - 1};
  for (const Policy policy :
       {Policy{{span}, {1}}, Policy{{1}, {span}}, Policy{{1 << 20}, {std::int64_t{1} << 40}}, Policy{{1}, {1}}}) {
    REQUIRE(policy.valid());
    for (const Nanos now : {Nanos{0}, kBase, latest}) {
      Tat cell;
      const Decision all = cell.decide(policy, policy.capacity, now);
      CHECK(all.allowed);
      CHECK(all.remaining.v == 0);
      CHECK(all.reset == policy.span());
      CHECK(cell.level(policy, now) == policy.capacity);
      require_exact_retry(cell, policy, {1}, now);
      require_exact_retry(cell, policy, policy.capacity, now);
      CHECK(cell.peek(policy, policy.capacity, now).retry == policy.span());
    }
  }
  CHECK_FALSE(Policy{{span + 1}, {1}}.valid());
  CHECK_FALSE(Policy{{2}, {span}}.valid());
}

TEST_CASE("tat: a changed limiter takes the level over, at most a full bucket", "[tat]") {
  const Policy from{{10}, kSecond};
  Tat cell;
  REQUIRE(cell.decide(from, {8}, kBase).allowed);
  const Nanos later = kBase + Nanos{kSecond.v / 2};  // 7.5 tokens: a level of 8

  Tat same = cell;
  same.change(from, {{20}, kSecond}, later);
  CHECK(same.value() == cell.value());

  Tat smaller = cell;
  smaller.change(from, {{3}, kSecond}, later);
  CHECK(smaller.value() == later + Tokens{3} * kSecond);

  Tat slower = cell;
  slower.change(from, {{10}, Tokens{60} * kSecond}, later);
  CHECK(slower.level({{10}, Tokens{60} * kSecond}, later).v == 8);
  CHECK(slower.value() == later + Tokens{480} * kSecond);

  Tat idle = cell;
  idle.change(from, {{3}, Nanos{7}}, kBase + Tokens{8} * kSecond);
  CHECK(idle.level({{3}, Nanos{7}}, kBase + Tokens{8} * kSecond).v == 0);
}

}  // namespace
}  // namespace weir
