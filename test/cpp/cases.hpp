// cases: what the property tests have in common.
//
// A property runs WEIR_CASES cases (default: few, so that a test run is quick); case i draws from a generator that
// starts at WEIR_SEED + i. To see a failed case again: WEIR_SEED=<the number printed> WEIR_CASES=1.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>

#include "catch.hpp"
#include "weir/units.hpp"

namespace weir::test {

using Rng = std::mt19937_64;

inline std::int64_t draw(Rng& rng, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(rng);
}
inline bool chance(Rng& rng, int percent) { return draw(rng, 1, 100) <= percent; }
template <class T>
T pick(Rng& rng, std::initializer_list<T> from) {
  return from.begin()[draw(rng, 0, static_cast<std::int64_t>(from.size()) - 1)];
}

inline std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}
inline std::uint64_t case_count(std::uint64_t otherwise = 300) { return environment("WEIR_CASES", otherwise); }

template <class Test>
void for_cases(Test test) {
  const std::uint64_t first = environment("WEIR_SEED", 20260101);
  const std::uint64_t count = case_count();
  for (std::uint64_t seed = first; seed - first < count; ++seed) {
    INFO("again: WEIR_SEED=" << seed << " WEIR_CASES=1");
    Rng rng(seed);
    test(rng);
  }
}

// Limiters from one token each nanosecond to two a day, with small and large buckets.
inline Policy draw_policy(Rng& rng) {
  return {{pick<std::int64_t>(rng, {1, 2, 3, 5, 10, 40, 100, 1000})},
          {pick<std::int64_t>(rng, {1, 2, 7, 1000, 999'983, 1'000'000'000, 43'200'000'000'000})}};
}
// Some time in 2026.
inline constexpr Nanos kBase{1'770'000'000'000'000'000};

// A span of up to `most` emission intervals, often whole ones: equal times, and births that just touch, matter.
inline Nanos draw_span(Rng& rng, const Policy& policy, std::int64_t most) {
  const Nanos whole = Tokens{draw(rng, 0, most)} * policy.interval;
  return chance(rng, 50) ? whole : whole + Nanos{draw(rng, 0, policy.interval.v - 1)};
}

}  // namespace weir::test
