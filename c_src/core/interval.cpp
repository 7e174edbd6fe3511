// interval: the parts of IntervalSet that are off the path of an ordinary decision. See include/weir/interval.hpp.
#include "weir/interval.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace weir {
namespace {

// A number of births times a gap is below 2^62 * 2^62.
__extension__ using Wide = unsigned __int128;

void shift(Interval* first, const Interval* last, Interval* to) noexcept {
  std::memmove(to, first, static_cast<std::size_t>(last - first) * sizeof(Interval));
}

// What it costs to move the births of `a` later until they touch `b`.
Wide move_cost(const Policy& policy, const Interval& a, const Interval& b) noexcept {
  const Nanos gap = b.start - a.end(policy);
  return static_cast<Wide>(a.count.v) * static_cast<Wide>(gap.v);
}

// Fuses neighbours, the cheapest first (of equals the oldest), until `most` are left; returns how many are.
// A fused interval begins later than its first part did and ends where its second part did, so it stays apart from the
// neighbours on both sides: no fusion causes another.
std::size_t fuse_to(std::size_t most, const Policy& policy, Interval* items, std::size_t size) noexcept {
  for (; size > most; --size) {
    std::size_t best = 0;
    Wide least = move_cost(policy, items[0], items[1]);
    for (std::size_t i = 1; i + 1 < size; ++i) {
      const Wide cost = move_cost(policy, items[i], items[i + 1]);
      if (cost < least) {
        least = cost;
        best = i;
      }
    }
    const Interval earlier = items[best];
    const Interval later = items[best + 1];
    items[best] = {later.start - earlier.count * policy.interval, earlier.count + later.count};
    shift(items + best + 2, items + size, items + best + 1);
  }
  return size;
}

// Adds the births of `next`, which begins inside the busy time that ends at `end`. False if that would pass kTimeMax.
bool extend(const Policy& policy, const Interval& next, Tokens& count, Nanos& end) noexcept {
  const Nanos busy = next.count * policy.interval;
  if (busy > kTimeMax - end) return false;
  count = count + next.count;
  end = end + busy;
  return true;
}

}  // namespace

bool IntervalSet::valid(const Policy& policy, std::span<const Interval> stored) noexcept {
  if (stored.size() > kIntervalCap) return false;
  Nanos free_from{-1};
  for (const Interval& interval : stored) {
    if (interval.start <= free_from || interval.start > kTimeMax || interval.count.v < 1) return false;
    if (interval.count.v > (kTimeMax - interval.start).v / policy.interval.v) return false;
    free_from = interval.end(policy);
  }
  return true;
}

bool IntervalSet::insert_late(const Policy& policy, Birth birth) noexcept {
  Interval* const list = items();
  std::size_t first = size_;  // the intervals [first, last) become one with the birth
  while (first > 0 && list[first - 1].start > birth.time) --first;
  std::size_t last = first;

  Interval fused{birth.time, {0}};
  Nanos end = birth.time;
  if (first > 0 && birth.time <= list[first - 1].end(policy)) {
    fused = list[--first];
    end = fused.end(policy);
  }
  if (birth.weight.v > (kTimeMax - end).v / policy.interval.v) return false;
  fused.count = fused.count + birth.weight;
  end = end + birth.weight * policy.interval;
  for (; last < size_ && list[last].start <= end; ++last) {
    if (!extend(policy, list[last], fused.count, end)) return false;
  }

  shift(list + last, list + size_, list + first + 1);
  list[first] = fused;
  size_ = size_ + 1 - (last - first);
  if (size_ > kIntervalCap) shrink(policy);
  return true;
}

bool IntervalSet::merge(const Policy& policy, const IntervalSet& other) noexcept {
  // Both in time order first, then one pass: the outcome can't depend on which set is which.
  std::array<Interval, 2 * kIntervalCap> all;
  std::merge(begin(), this->end(), other.begin(), other.end(), all.begin(),
             [](const Interval& a, const Interval& b) { return a.start < b.start; });
  const std::size_t total = size_ + other.size_;
  std::size_t kept = 0;
  Nanos end{-1};
  for (std::size_t i = 0; i < total; ++i) {
    const Interval next = all[i];
    if (next.start > end) {
      all[kept++] = next;
      end = next.end(policy);
    } else if (!extend(policy, next, all[kept - 1].count, end)) {
      return false;
    }
  }
  assign(all.data(), fuse_to(kIntervalCap, policy, all.data(), kept));
  return true;
}

void IntervalSet::shrink(const Policy& policy) noexcept { fuse(policy, kIntervalCap); }

void IntervalSet::fuse(const Policy& policy, std::size_t most) noexcept {
  size_ = fuse_to(most, policy, items(), size_);
}

void IntervalSet::erase_front(std::size_t count) noexcept {
  if (count == 0) return;
  shift(items() + count, items() + size_, items());
  size_ -= count;
}

void IntervalSet::compact(const Policy& policy, Nanos now) noexcept {
  const Nanos oldest = now - horizon(policy);
  std::size_t gone = 0;
  while (gone < size_ && items()[gone].end(policy) < oldest) ++gone;
  erase_front(gone);
}

void IntervalSet::reset_before(Nanos at) noexcept {
  std::size_t gone = 0;
  while (gone < size_ && items()[gone].start < at) ++gone;
  erase_front(gone);
}

void IntervalSet::change(const Policy& from, const Policy& to, Nanos at) noexcept {
  if (from.interval != to.interval) {
    // The old intervals mean nothing under another T.
    const Tokens carried = std::min(level(from, at), to.capacity);
    reset();
    if (carried.v > 0) append(to, {at, carried});
    return;
  }
  if (tat(to) <= at + to.span()) return;
  std::size_t kept = 0;
  while (items()[kept].end(to) < at) ++kept;  // stops: the last one ends after `at`
  // The busy time before `at` is kept in whole births, so that late births still find it busy; its start moves later by
  // less than T. Births of the future are dropped into the full bucket.
  const Tokens died{std::max<std::int64_t>(0, (at - items()[kept].start).v) / to.interval.v};
  items()[kept] = {at - died * to.interval, died + to.capacity};
  size_ = kept + 1;
}

}  // namespace weir
