// Units: strong types for time, tokens and key hashes, and the policy that a fold is computed under.
//
// Every quantity that crosses a function boundary in weir's core is one of these. They have no implicit conversions, so
// a token count can't be passed where nanoseconds are meant; the raw value is always `.v`.
//
//   Nanos    int64 nanoseconds: a Unix time or a duration (the arithmetic of both is the same)
//   Tokens   int64 whole tokens: hits, levels, capacities
//   KeyHash  uint64 SipHash-1-3 of limiter key; 0 is reserved for "no key"
//
// Ranges: a Unix time is < 2^61 until the year 2043 and < 2^62 until 2116; a policy's capacity * interval is <= 2^60,
// so time + capacity * interval never overflows. `kTimeMax` = 2^62 - 1 bounds every stored time; the two bits above it
// are free for the table's locks and marks.
//
// Thread safety: values. Complexity: all constant.
#pragma once

#include <compare>
#include <cstdint>

namespace weir {

struct Nanos {
  std::int64_t v = 0;
  friend constexpr auto operator<=>(const Nanos&, const Nanos&) = default;
  friend constexpr Nanos operator+(Nanos a, Nanos b) noexcept { return {a.v + b.v}; }
  friend constexpr Nanos operator-(Nanos a, Nanos b) noexcept { return {a.v - b.v}; }
};

struct Tokens {
  std::int64_t v = 0;
  friend constexpr auto operator<=>(const Tokens&, const Tokens&) = default;
  friend constexpr Tokens operator+(Tokens a, Tokens b) noexcept { return {a.v + b.v}; }
  friend constexpr Tokens operator-(Tokens a, Tokens b) noexcept { return {a.v - b.v}; }
};

// REQUIRES: the product fits (the callers' bounds: tokens <= capacity, or checked against kTimeMax first).
constexpr Nanos operator*(Tokens n, Nanos each) noexcept { return {n.v * each.v}; }

struct KeyHash {
  std::uint64_t v = 0;
  friend constexpr auto operator<=>(const KeyHash&, const KeyHash&) = default;
};

// The latest time that a state may hold (year 2116). Inserting what would go beyond is refused, not wrapped.
inline constexpr Nanos kTimeMax{(std::int64_t{1} << 62) - 1};
// The longest span (capacity * interval) of a policy: 2^60 ns, 36 years.
inline constexpr Nanos kSpanMax{std::int64_t{1} << 60};
// "Never": the retry time of hits above the capacity.
inline constexpr Nanos kNever{INT64_MAX};

// ceil(a / b). REQUIRES: a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return a / b + (a % b != 0); }

// What a token bucket is allowed: at most `capacity` tokens at once, one given back each `interval`.
// INVARIANT: capacity >= 1, interval >= 1 ns, capacity * interval <= kSpanMax.
struct Policy {
  Tokens capacity{1};
  Nanos interval{1};

  constexpr Nanos span() const noexcept { return capacity * interval; }
  constexpr bool valid() const noexcept {
    return capacity.v >= 1 && interval.v >= 1 && capacity.v <= kSpanMax.v / interval.v;
  }
  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

// A request admitted (or recorded) at `time`, costing `weight` tokens. REQUIRES: weight >= 1.
struct Birth {
  Nanos time;
  Tokens weight{1};
};

// The answer to one question. `remaining` >= 0; `reset` is the time until the bucket is full again; `retry` is 0 when
// allowed and kNever when the hits exceed the capacity.
struct Decision {
  bool allowed = false;
  Tokens remaining;
  Nanos reset;
  Nanos retry;
};

}  // namespace weir
