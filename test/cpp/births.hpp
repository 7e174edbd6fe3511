// births: the specification that the folds are tested against.
//
// `Births` is a list of single births (one entry for births of the same request) and answers every question from the
// definition, in 128 bits, with no state but the list: TAT = max over s of (s + T * number of births >= s).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "weir/interval.hpp"
#include "weir/units.hpp"

namespace weir::test {

__extension__ using Int128 = __int128;

class Births {
 public:
  std::size_t size() const { return births_.size(); }
  Nanos newest() const { return births_.empty() ? Nanos{0} : births_.back().time; }

  void add(Birth birth) {
    const auto later = [](const Birth& a, const Birth& b) { return a.time < b.time; };
    births_.insert(std::upper_bound(births_.begin(), births_.end(), birth, later), birth);
  }
  void add(const Births& other) {
    for (const Birth& birth : other.births_) add(birth);
  }
  void add(std::span<const Interval> intervals) {
    for (const Interval& interval : intervals) add({interval.start, interval.count});
  }

  Int128 tat(const Policy& policy) const {
    Int128 tat = 0;
    Int128 since = 0;
    for (auto birth = births_.rbegin(); birth != births_.rend(); ++birth) {
      since += birth->weight.v;
      tat = std::max(tat, Int128{birth->time.v} + policy.interval.v * since);
    }
    return tat;
  }
  Int128 level(const Policy& policy, Nanos now) const {
    const Int128 left = tat(policy) - now.v;
    return left <= 0 ? 0 : (left + policy.interval.v - 1) / policy.interval.v;
  }
  bool admits(const Policy& policy, Tokens hits, Nanos now) const {
    return level(policy, now) + hits.v <= policy.capacity.v;
  }

  // The periods in which the bucket is never idle. REQUIRES: tat(policy) fits into 64 bits.
  std::vector<Interval> busy(const Policy& policy) const {
    std::vector<Interval> periods;
    for (const Birth& birth : births_) {
      if (periods.empty() || birth.time > periods.back().end(policy)) {
        periods.push_back({birth.time, birth.weight});
      } else {
        periods.back().count = periods.back().count + birth.weight;
      }
    }
    return periods;
  }

  // Keeps the births of those busy periods that `keep(interval)` says.
  template <class Keep>
  void keep_periods(const Policy& policy, Keep keep) {
    std::vector<Birth> kept;
    auto birth = births_.begin();
    for (const Interval& period : busy(policy)) {
      for (; birth != births_.end() && birth->time <= period.end(policy); ++birth) {
        if (keep(period)) kept.push_back(*birth);
      }
    }
    births_ = std::move(kept);
  }

  void compact(const Policy& policy, Nanos now) {
    const Nanos oldest = now - Tokens{2} * policy.span();
    keep_periods(policy, [&](const Interval& period) { return period.end(policy) >= oldest; });
  }
  void reset_before(const Policy& policy, Nanos at) {
    keep_periods(policy, [&](const Interval& period) { return period.start >= at; });
  }
  void reset() { births_.clear(); }

  // Under a new T: the level, at most the new capacity, born at `at`. Under the same T: the births, unless they are
  // more than fit; then those of the period busy at `at` that had died by then (they end at `at`), and a full bucket at
  // `at`.
  void change(const Policy& from, const Policy& to, Nanos at) {
    const Int128 carried = std::min<Int128>(level(from, at), to.capacity.v);
    if (from.interval != to.interval) {
      reset();
    } else if (tat(to) > Int128{at.v} + to.span().v) {
      Tokens died;
      for (const Interval& period : busy(to)) {
        if (period.start < at && period.end(to) >= at) died = {(at - period.start).v / to.interval.v};
      }
      keep_periods(to, [&](const Interval& period) { return period.end(to) < at; });
      if (died.v > 0) add({at - died * to.interval, died});
    } else {
      return;
    }
    if (carried > 0) add({at, {static_cast<std::int64_t>(carried)}});
  }

 private:
  std::vector<Birth> births_;  // in time order
};

}  // namespace weir::test
