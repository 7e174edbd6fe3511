// origins: see include/weir/origins.hpp.
#include "weir/origins.hpp"

#include <algorithm>

namespace weir {

bool contains(std::span<const Range> ranges, std::uint64_t seq) noexcept {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& range) { return range.first <= seq && seq <= range.last; });
}

bool Origin::seen(std::uint64_t seq) const noexcept { return seq <= upto || contains(beyond, seq); }

bool Origin::mark(std::uint64_t seq) {
  if (seen(seq)) return false;
  if (seq == upto + 1) {
    advance(seq);
    return true;
  }
  const auto after = std::find_if(beyond.begin(), beyond.end(), [&](const Range& range) { return range.first > seq; });
  const bool joins_after = after != beyond.end() && after->first == seq + 1;
  const bool joins_before = after != beyond.begin() && std::prev(after)->last + 1 == seq;
  if (joins_before && joins_after) {
    std::prev(after)->last = after->last;
    beyond.erase(after);
  } else if (joins_before) {
    std::prev(after)->last = seq;
  } else if (joins_after) {
    after->first = seq;
  } else {
    if (beyond.size() >= kBeyondMax) return false;
    beyond.insert(after, {seq, seq});
  }
  known = std::max(known, seq);
  return true;
}

bool Origin::mark(const Range& range) {
  // Those that it overlaps or touches become one with it.
  const auto first =
      std::find_if(beyond.begin(), beyond.end(), [&](const Range& has) { return has.last + 1 >= range.first; });
  const auto last = std::find_if(first, beyond.end(), [&](const Range& has) { return has.first > range.last + 1; });
  Range all = range;
  if (first != last) {
    all = {std::min(first->first, range.first), std::max(std::prev(last)->last, range.last)};
  } else if (beyond.size() >= kBeyondMax && range.first > upto + 1) {
    return false;
  }
  beyond.insert(beyond.erase(first, last), all);
  advance(upto);
  known = std::max(known, range.last);
  return true;
}

void Origin::forget_beyond(std::uint64_t last) {
  std::erase_if(beyond, [&](const Range& range) { return range.last > last; });
}

void Origin::advance(std::uint64_t seq) {
  upto = std::max(upto, seq);
  while (!beyond.empty() && beyond.front().first <= upto + 1) {
    upto = std::max(upto, beyond.front().last);
    beyond.erase(beyond.begin());
  }
  known = std::max(known, upto);
  if (beyond.empty()) std::vector<Range>().swap(beyond);
}

std::vector<Range> Origin::missing() const {
  std::vector<Range> ranges;
  std::uint64_t next = upto + 1;
  for (const Range& range : beyond) {
    if (ranges.size() == kRangesMax) return ranges;
    ranges.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= known && ranges.size() < kRangesMax) ranges.push_back({next, known});
  return ranges;
}

Origin* Origins::find(const OriginId& id) noexcept {
  const auto at = std::lower_bound(list_.begin(), list_.end(), id,
                                   [](const Origin& origin, const OriginId& wanted) { return origin.id < wanted; });
  return at != list_.end() && at->id == id ? &*at : nullptr;
}

Origin& Origins::add(const OriginId& id) {
  if (Origin* const found = find(id)) return *found;
  const auto at = std::lower_bound(list_.begin(), list_.end(), id,
                                   [](const Origin& origin, const OriginId& wanted) { return origin.id < wanted; });
  Origin origin;
  origin.id = id;
  origin.via = id.node;
  return *list_.insert(at, std::move(origin));
}

void Origins::erase(const OriginId& id) noexcept {
  std::erase_if(list_, [&](const Origin& origin) { return origin.id == id; });
}

void Origins::forget(const OriginId& last) noexcept {
  std::erase_if(list_, [&](const Origin& origin) {
    return origin.id.node == last.node && origin.id.incarnation <= last.incarnation;
  });
}

std::size_t Origins::held() const noexcept {
  std::size_t bytes = list_.capacity() * sizeof(Origin);
  for (const Origin& origin : list_) bytes += origin.beyond.capacity() * sizeof(Range);
  return bytes;
}

}  // namespace weir
