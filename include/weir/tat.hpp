// tat: a token bucket as one number, for limiters whose births all come from this node.
//
// Layout: one int64, the theoretical arrival time (TAT) of GCRA (ITU-T I.371): the time at which the bucket is full
// again. 0 is the state of a key never seen; any TAT <= now is equal to it.
//
//     now             TAT                      level = ceil((TAT - now) / T)
//      |---T---|---T---|
//
// Exact when births come in time order, as a node's own do. A birth older than one already inserted can't be told from
// a new one: it adds its full weight at TAT, which errs to deny. `interval.hpp` is the fold without that restriction.
//
// Thread safety: a value; the table guards it. Complexity: constant; one 64-bit division where a level is asked.
#pragma once

#include <algorithm>

#include "weir/fold.hpp"
#include "weir/units.hpp"

namespace weir {

class Tat {
 public:
  constexpr Tat() noexcept = default;
  constexpr explicit Tat(Nanos value) noexcept : value_(value) {}

  constexpr Nanos value() const noexcept { return value_; }

  // Births beyond this age don't matter: a TAT in the past says all that is to be said.
  static constexpr Nanos horizon(const Policy&) noexcept { return {0}; }

  // Counts a birth without deciding. False (unchanged) if the TAT would pass kTimeMax.
  // REQUIRES: birth.weight >= 1, 0 <= birth.time <= kTimeMax.
  constexpr bool insert(const Policy& policy, Birth birth) noexcept {
    const Nanos base = std::max(value_, birth.time);
    if (birth.weight.v > (kTimeMax - base).v / policy.interval.v) return false;
    value_ = base + birth.weight * policy.interval;
    return true;
  }

  constexpr Tokens level(const Policy& policy, Nanos now) const noexcept {
    return {value_ <= now ? 0 : ceil_div((value_ - now).v, policy.interval.v)};
  }
  constexpr Tokens slack(const Policy& policy, Nanos now) const noexcept {
    return policy.capacity - level(policy, now);
  }
  constexpr void compact(const Policy&, Nanos now) noexcept {
    if (value_ <= now) value_ = {0};
  }

  // Would `hits` be admitted at `now`? Equal to level + hits <= capacity for whole tokens, without the division:
  // max(0, TAT - now) + hits * T <= c * T. REQUIRES: hits >= 1.
  constexpr bool admits(const Policy& policy, Tokens hits, Nanos now) const noexcept {
    return hits <= policy.capacity && std::max(value_, now) - now <= (policy.capacity - hits) * policy.interval;
  }

  // Counts the hits if they are admitted; whether they were. REQUIRES: hits >= 1, 0 <= now < 2^61.
  constexpr bool take(const Policy& policy, Tokens hits, Nanos now) noexcept {
    if (!admits(policy, hits, now)) return false;
    value_ = std::max(value_, now) + hits * policy.interval;
    return true;
  }

  // Admits or denies, and counts what was admitted. A denial changes nothing. REQUIRES: hits >= 1, 0 <= now < 2^61.
  constexpr Decision decide(const Policy& policy, Tokens hits, Nanos now) noexcept {
    return take(policy, hits, now) ? allowed(policy, now) : denied(policy, hits, now);
  }

  // Whether `decide` would admit, and when if not; nothing is counted, so `remaining` and `reset` are those of before.
  constexpr Decision peek(const Policy& policy, Tokens hits, Nanos now) const noexcept {
    return admits(policy, hits, now) ? allowed(policy, now) : denied(policy, hits, now);
  }

  // The level of `from` at `at`, carried over to `to`: at most the new capacity (DESIGN section 2, "a changed
  // limiter"). With the interval unchanged the fraction of a token is kept.
  constexpr void change(const Policy& from, const Policy& to, Nanos at) noexcept {
    if (value_ <= at) return;
    const Nanos cap = at + to.span();
    value_ = from.interval == to.interval ? std::min(value_, cap)
                                          : at + std::min(level(from, at), to.capacity) * to.interval;
  }

  constexpr void reset() noexcept { value_ = {0}; }

  // What is to be said of hits that were admitted, and of hits that were not.
  constexpr Decision allowed(const Policy& policy, Nanos now) const noexcept {
    return {
        true, {std::max<std::int64_t>(0, slack(policy, now).v)}, {std::max<std::int64_t>(0, (value_ - now).v)}, {0}};
  }
  constexpr Decision denied(const Policy& policy, Tokens hits, Nanos now) const noexcept {
    const Nanos base = std::max(value_, now);
    const Nanos retry = hits > policy.capacity ? kNever : base - now - (policy.capacity - hits) * policy.interval;
    return {false, {std::max<std::int64_t>(0, slack(policy, now).v)}, base - now, retry};
  }

 private:
  Nanos value_{0};
};

static_assert(Fold<Tat>);
static_assert(sizeof(Tat) == 8, "a local key costs one 8-byte cell beside its hash");

}  // namespace weir
