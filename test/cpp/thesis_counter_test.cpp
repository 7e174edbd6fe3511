// The thesis' counter on one node against Tat, its merge, and what the faults of listing 3.1 do.
#include "cases.hpp"
#include "catch.hpp"
#include "lab/thesis/counter.hpp"
#include "lab/thesis/queue.hpp"
#include "weir/tat.hpp"

namespace weir {
namespace {

using test::chance;
using test::draw;
using test::for_cases;
using test::kBase;
using test::pick;
using test::Rng;
using thesis::CounterState;
using thesis::QueueState;
using thesis::Refill;

constexpr Nanos kMilli{1'000'000};
constexpr Nanos kSecond{1'000'000'000};

std::vector<std::uint32_t> counts_of(const CounterState& state) {
  std::vector<std::uint32_t> counts;
  for (std::size_t i = 0; i < state.counts().size(); ++i) counts.push_back(state.counts()[i]);
  return counts;
}

int count_admitted(const Policy& policy, Refill how, CounterState& state, Nanos from, Nanos step, int requests) {
  int admitted = 0;
  for (int i = 0; i < requests; ++i) {
    const Nanos now = from + Tokens{i} * step;
    if (state.consume(policy, now, {1}, 0, how)) ++admitted;
  }
  return admitted;
}

TEST_CASE("one node's counter and queue decide as a token bucket does, request for request", "[thesis]") {
  // 34 schedules a case: 10,200 with the cases of an ordinary run.
  for_cases([](Rng& rng) {
    for (int schedule = 0; schedule < 34; ++schedule) {
      const Policy policy{{pick<std::int64_t>(rng, {1, 2, 3, 5, 17, 100})},
                          {pick<std::int64_t>(rng, {1, 1'000, 999'983, 1'000'000, 33'333'333, 10'000'000'000})}};
      Tat exact;
      CounterState counter;
      QueueState queue;
      Nanos now = kBase;
      for (int request = 0; request < 60; ++request) {
        const Nanos pause = Tokens{draw(rng, 0, 3)} * policy.interval;
        const Nanos steps = chance(rng, 50) ? Nanos{0} : Tokens{pause.v / kMilli.v + draw(rng, 0, 2)} * kMilli;
        now = now + steps;
        const Tokens hits{chance(rng, 80) ? 1 : draw(rng, 1, 6)};
        const bool allowed = exact.decide(policy, hits, now).allowed;
        REQUIRE(counter.consume(policy, now, hits) == allowed);
        REQUIRE(queue.accept(policy, now, hits) == allowed);
        REQUIRE(queue.level(policy, now) == exact.level(policy, now));
      }
    }
  });
}

TEST_CASE("listing 3.1 with a fractional limit admits one request too many at once", "[thesis]") {
  const Policy policy{{5}, kSecond};
  CounterState literal;
  CounterState repaired;
  REQUIRE(count_admitted(policy, Refill::fractional, literal, kBase, kMilli, 100) == 6);
  REQUIRE(count_admitted(policy, Refill::whole, repaired, kBase, kMilli, 100) == 5);
}

TEST_CASE("listing 3.1 with whole tokens forgets their fractions", "[thesis]") {
  const Policy policy{{5}, kSecond};
  CounterState literal;
  CounterState repaired;
  REQUIRE(count_admitted(policy, Refill::integer, literal, kBase, {0}, 5) == 5);
  REQUIRE(count_admitted(policy, Refill::whole, repaired, kBase, {0}, 5) == 5);
  // 22.5 tokens come in 30 steps of 0.75 s.
  const Nanos step{750'000'000};
  REQUIRE(count_admitted(policy, Refill::integer, literal, kBase + step, step, 30) == 15);
  REQUIRE(count_admitted(policy, Refill::whole, repaired, kBase + step, step, 30) == 22);
}

TEST_CASE("listing 3.1 lets a slow user save up more than the capacity", "[thesis]") {
  const Policy policy{{5}, kSecond};
  for (const Refill how : {Refill::fractional, Refill::integer, Refill::whole}) {
    CounterState state;
    REQUIRE(count_admitted(policy, how, state, kBase, Tokens{10} * kSecond, 11) == 11);
    const int burst = count_admitted(policy, how, state, kBase + Tokens{110} * kSecond, {0}, 100);
    // 5 to begin with and 5 each 10 s, of which 11 were used.
    REQUIRE(burst == (how == Refill::whole ? 5 : 5 + 11 * 5 - 11));
  }
}

TEST_CASE("merging buckets takes the greater counts, and the greater limit with its time stamp", "[thesis]") {
  const Policy policy{{5}, kSecond};
  CounterState a;
  CounterState b;
  REQUIRE(a.consume(policy, kBase, {2}, 0));
  REQUIRE(b.consume(policy, kBase, {1}, 0));
  REQUIRE(b.consume(policy, kBase, {1}, 2));
  REQUIRE(b.consume(policy, kBase + Tokens{7} * kSecond, {1}, 2));
  REQUIRE(a.merge(b));
  REQUIRE(counts_of(a) == std::vector<std::uint32_t>{2, 0, 2});
  REQUIRE(a.limit() == b.limit());
  REQUIRE(a.refilled() == kBase + Tokens{7} * kSecond);
  REQUIRE_FALSE(a.merge(b));
  REQUIRE_FALSE(a.merge(a));
  REQUIRE(b.merge(a));
  REQUIRE(b.consumed() == a.consumed());
  REQUIRE(a.consumed().v == 4);
}

TEST_CASE("counts do not depend on the order of merges", "[thesis]") {
  for_cases([](Rng& rng) {
    const Policy policy{{draw(rng, 1, 20)}, kSecond};
    std::vector<CounterState> states(4);
    for (int i = 0; i < 40; ++i) {
      const auto node = static_cast<std::size_t>(draw(rng, 0, 3));
      states[node].consume(policy, kBase + Nanos{draw(rng, 0, 20) * kSecond.v}, {1}, node);
    }
    CounterState forth;
    CounterState back;
    for (std::size_t i = 0; i < 4; ++i) forth.merge(states[i]);
    for (std::size_t i = 4; i-- > 0;) back.merge(states[i]);
    REQUIRE(forth.counts() == back.counts());
    REQUIRE(forth.limit() == back.limit());
  });
}

}  // namespace
}  // namespace weir
