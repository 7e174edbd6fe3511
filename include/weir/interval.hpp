// interval: a token bucket as busy intervals, for keys whose births arrive late and out of order (from other nodes).
//
// A birth keeps the bucket busy for T, the emission interval. Births that overlap or touch form one busy interval;
// where in it each of them began can't make a difference any more, so only its start and its number of births are kept.
//
//        s1      s1 + n1*T           s2           s2 + n2*T = TAT
//   -----|#######|-------------------|############|------------------> time
//        {s1, n1}      idle (gap)    {s2, n2}
//
// Layout: a count, then up to kIntervalCap + 1 slots of 16 bytes {start, count} in time order, inline; no heap. (The
// last slot is used only inside `insert`.) Slots past `size()` are never written nor read, so an empty set costs
// nothing to make.
//
// INVARIANT: counts >= 1, starts >= 0, s_i + n_i*T < s_{i+1}, the last end <= kTimeMax, at most kIntervalCap intervals
// (`valid` checks it). It holds for one emission interval T: after a change of limiter, call `change`.
//
// TAT = s_last + n_last*T = max over s of (s + T * number of births >= s): the same whatever the order of insertion. Up
// to the cap, sets under `merge` are a commutative monoid. They are not idempotent: a set merged with itself counts
// twice (duplicates are for the replica to reject).
//
// Past the cap: two neighbours {s1, n1}, {s2, n2} are fused to {s2 - n1*T, n1 + n2}, those for which n1 * gap is least:
// the earlier births are moved later, until they touch the later ones. The end and so the TAT stay; only births that
// arrive later, but are older than s2, can notice.
//
// Error: none up to the cap. Past it, the TAT is never too early (it only denies more), and it is too late by at most
//   - the weight of the births that came out of order (older than one inserted before) since the key was last idle,
//   - for a merge, the greater of both sets' own errors and, in addition, the weight of the lighter set.
// Two things make the TAT too early, with or without a cap: a birth that comes more than a horizon late misses what was
// dropped meanwhile; a reset that comes after younger births were fused with older ones drops these younger births too.
//
// Thread safety: a value; the table guards it. Complexity: tat, level, decide and a newest birth constant (no loop, no
// division but for the level); late births, compact, resets and changes linear in size() <= 32; merge and the fusion of
// a 33rd interval at most 32 scans over 64 intervals.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "weir/fold.hpp"
#include "weir/tat.hpp"
#include "weir/units.hpp"

namespace weir {

// `count` births that keep the bucket busy from `start` on, for count * T.
struct Interval {
  Nanos start;
  Tokens count;

  constexpr Nanos end(const Policy& policy) const noexcept { return start + count * policy.interval; }
  friend constexpr bool operator==(const Interval&, const Interval&) = default;
};

static_assert(sizeof(Interval) == 16, "the table keeps a key's only interval inline, in 16 bytes");

inline constexpr std::size_t kIntervalCap = 32;

class IntervalSet {
 public:
  IntervalSet() noexcept {}  // not defaulted: `IntervalSet{}` would then clear all slots
  IntervalSet(const IntervalSet& other) noexcept { assign(other.items(), other.size_); }
  IntervalSet& operator=(const IntervalSet& other) noexcept {
    if (this != &other) assign(other.items(), other.size_);
    return *this;
  }

  // The set of intervals that `intervals()` of another one returned. REQUIRES: valid(policy, stored).
  static IntervalSet from(std::span<const Interval> stored) noexcept {
    assert(stored.size() <= kIntervalCap);
    IntervalSet set;
    set.assign(stored.data(), stored.size());
    return set;
  }
  // Whether `stored` keeps the invariant, whatever its values: for bytes from outside.
  static bool valid(const Policy& policy, std::span<const Interval> stored) noexcept;

  std::span<const Interval> intervals() const noexcept { return {items(), size_}; }
  const Interval* begin() const noexcept { return items(); }
  const Interval* end() const noexcept { return items() + size_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

  // The number of births. REQUIRES: the set is valid.
  Tokens weight() const noexcept {
    Tokens sum;
    for (const Interval& interval : *this) sum = sum + interval.count;
    return sum;
  }

  // The time at which the bucket is full again; 0 for a key never seen.
  Nanos tat(const Policy& policy) const noexcept { return size_ == 0 ? Nanos{0} : last().end(policy); }
  Tokens level(const Policy& policy, Nanos now) const noexcept { return cell(policy).level(policy, now); }
  Tokens slack(const Policy& policy, Nanos now) const noexcept { return cell(policy).slack(policy, now); }

  // Births older than two full buckets can't matter: what is dropped ended before any birth that may still come, so it
  // could touch none of them.
  static constexpr Nanos horizon(const Policy& policy) noexcept { return policy.span() + policy.span(); }

  // Counts a birth without deciding. False (unchanged) if the set's end would pass kTimeMax.
  // REQUIRES: birth.weight >= 1, 0 <= birth.time <= kTimeMax.
  bool insert(const Policy& policy, Birth birth) noexcept {
    if (size_ != 0 && birth.time < last().start) return insert_late(policy, birth);
    const Nanos base = std::max(tat(policy), birth.time);
    std::int64_t busy = 0;
    if (__builtin_mul_overflow(birth.weight.v, policy.interval.v, &busy) || busy > (kTimeMax - base).v) return false;
    append(policy, birth);
    return true;
  }

  // Adds the births of `other`. False (unchanged) if the set's end would pass kTimeMax. `other` may be this set.
  bool merge(const Policy& policy, const IntervalSet& other) noexcept;

  bool admits(const Policy& policy, Tokens hits, Nanos now) const noexcept {
    return cell(policy).admits(policy, hits, now);
  }

  // Admits or denies, and counts what was admitted. A denial changes nothing. An own birth counts as the newest: when
  // `now` is behind the start of the last interval (another node's clock runs ahead), the birth is put there, which
  // errs to deny, by at most that skew. REQUIRES: hits >= 1, 0 <= now < 2^61.
  Decision decide(const Policy& policy, Tokens hits, Nanos now) noexcept {
    const Decision decision = cell(policy).decide(policy, hits, now);
    if (!decision.allowed) return decision;
    // What is beyond the horizon is dropped before anything is moved: that costs no exactness.
    if (size_ == kIntervalCap && now > tat(policy)) compact(policy, now);
    append(policy, {now, hits});
    return decision;
  }

  // Whether `decide` would admit, and else when; remaining and reset are those of the state as it stands.
  Decision peek(const Policy& policy, Tokens hits, Nanos now) const noexcept {
    return cell(policy).peek(policy, hits, now);
  }

  // Fuses intervals until there are at most so many. REQUIRES: most >= 1.
  void fuse(const Policy& policy, std::size_t most) noexcept;
  // Drops the intervals that ended more than a horizon ago.
  void compact(const Policy& policy, Nanos now) noexcept;

  // The level of `from` at `at`, carried over to `to`: at most the new capacity. With T changed, what is left is that
  // level, born at `at`. With T unchanged the intervals stay as they are (TAT included), unless the TAT is beyond
  // at + c*T: then the interval that is busy at `at` is cut there, later ones are dropped, and TAT = at + c*T.
  // REQUIRES: 0 <= at < 2^61.
  void change(const Policy& from, const Policy& to, Nanos at) noexcept;

  // Drops the intervals that begin before `at`, whole: what was fused with earlier births can't be told from them.
  void reset_before(Nanos at) noexcept;
  void reset() noexcept { size_ = 0; }
  IntervalSet since(Nanos at) const noexcept {
    IntervalSet set = *this;
    set.reset_before(at);
    return set;
  }

  friend bool operator==(const IntervalSet& a, const IntervalSet& b) noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  Interval* items() noexcept { return std::launder(reinterpret_cast<Interval*>(bytes_)); }
  const Interval* items() const noexcept { return std::launder(reinterpret_cast<const Interval*>(bytes_)); }
  const Interval& last() const noexcept { return items()[size_ - 1]; }
  Tat cell(const Policy& policy) const noexcept { return Tat{tat(policy)}; }

  void assign(const Interval* first, std::size_t count) noexcept {
    if (count != 0) std::memcpy(bytes_, first, count * sizeof(Interval));
    size_ = count;
  }
  // REQUIRES: the end that results is <= kTimeMax.
  void append(const Policy& policy, Birth birth) noexcept {
    if (size_ != 0 && birth.time <= tat(policy)) {
      Interval& newest = items()[size_ - 1];
      newest.count = newest.count + birth.weight;
      return;
    }
    std::construct_at(items() + size_++, Interval{birth.time, birth.weight});
    if (size_ > kIntervalCap) shrink(policy);
  }
  bool insert_late(const Policy& policy, Birth birth) noexcept;
  void shrink(const Policy& policy) noexcept;
  void erase_front(std::size_t count) noexcept;

  std::size_t size_ = 0;
  alignas(Interval) std::byte bytes_[(kIntervalCap + 1) * sizeof(Interval)];
};

static_assert(Fold<IntervalSet>);
static_assert(std::is_trivially_destructible_v<IntervalSet>, "a set owns nothing");

}  // namespace weir
