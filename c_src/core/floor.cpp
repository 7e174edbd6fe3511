// floor: see include/weir/floor.hpp.
#include "weir/floor.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace weir {
namespace {

using Ranges = std::vector<Range>;

Ranges seen(const Floor& floor, const OriginId& id) {
  Ranges ranges;
  if (const std::uint64_t upto = floor.upto_of(id); upto != 0) ranges.push_back({1, upto});
  for (const NackItem& late : floor.beyond) {
    if (late.origin == id) ranges.insert(ranges.end(), late.ranges.begin(), late.ranges.end());
  }
  return ranges;
}

Ranges in_both(const Ranges& xs, const Ranges& ys) {
  Ranges ranges;
  for (const Range& x : xs) {
    for (const Range& y : ys) {
      const Range both{std::max(x.first, y.first), std::min(x.last, y.last)};
      if (both.first <= both.last) ranges.push_back(both);
    }
  }
  return ranges;
}

std::uint64_t beyond(const Origin& origin) noexcept {
  std::uint64_t count = 0;
  for (const Range& range : origin.beyond) count += range.last - range.first + 1;
  return count;
}

}  // namespace

std::uint64_t Floor::upto_of(const OriginId& origin) const noexcept {
  std::uint64_t most = 0;
  for (const VectorEntry& entry : upto) {
    const bool forgotten =
        entry.upto == kForgotten && entry.origin.node == origin.node && entry.origin.incarnation >= origin.incarnation;
    if (entry.origin == origin || forgotten) most = std::max(most, entry.upto);
  }
  return most;
}

bool Floor::covers(const OriginId& origin, std::uint64_t seq) const noexcept {
  return seq <= upto_of(origin) || std::any_of(beyond.begin(), beyond.end(), [&](const NackItem& item) {
           return item.origin == origin && contains(item.ranges, seq);
         });
}

bool Floor::reaches(const OriginId& origin, std::uint64_t seq) const noexcept {
  return upto_of(origin) >= seq || std::any_of(beyond.begin(), beyond.end(), [&](const NackItem& item) {
           return item.origin == origin && !item.ranges.empty() && item.ranges.back().last >= seq;
         });
}

bool Floor::divides(const OriginId& origin, std::uint64_t from, std::uint64_t to) const noexcept {
  const std::uint64_t begin = std::max(from, upto_of(origin));
  if (begin >= to) return false;
  const std::uint64_t covered = begin - from + late(origin, begin, to);
  return covered != 0 && covered != to - from;
}

std::uint64_t Floor::late(const OriginId& origin, std::uint64_t from, std::uint64_t to) const noexcept {
  std::uint64_t count = 0;
  for (const NackItem& item : beyond) {
    if (item.origin != origin) continue;
    for (const Range& range : item.ranges) {
      const std::uint64_t first = std::max(from + 1, range.first);
      const std::uint64_t last = std::min(to, range.last);
      if (first <= last) count += last - first + 1;
    }
  }
  return count;
}

Floor Floor::joined(const Floor& other) const {
  std::map<OriginId, Origin> both;
  for (const Floor* const each : std::array<const Floor*, 2>{this, &other}) {
    for (const VectorEntry& entry : each->upto) both[entry.origin].advance(entry.upto);
  }
  for (const Floor* const each : std::array<const Floor*, 2>{this, &other}) {
    for (const NackItem& item : each->beyond) {
      for (const Range& range : item.ranges) both[item.origin].mark(range);
    }
  }
  Floor floor;
  for (const auto& [id, origin] : both) {
    floor.upto.push_back({id, origin.upto});
    if (!origin.beyond.empty()) floor.beyond.push_back({id, origin.beyond});
  }
  return floor;
}

bool operator==(const Floor& x, const Floor& y) noexcept {
  return x.upto == y.upto && std::equal(x.beyond.begin(), x.beyond.end(), y.beyond.begin(), y.beyond.end(),
                                        [](const NackItem& one, const NackItem& other) {
                                          return one.origin == other.origin && one.ranges == other.ranges;
                                        });
}

const Floor* Floors::find(std::uint8_t segment) const noexcept {
  const auto at = floors_.find(segment);
  return at == floors_.end() ? nullptr : &at->second;
}

void Floors::replace(const Floors& others) {
  for (const auto& [segment, floor] : others.floors_) floors_[segment] = floor;
}

void Floors::drop(const Origins& origins, const OriginId& self) {
  const auto reached = [&](const OriginId& id, std::uint64_t upto) {
    const Origin* const origin = origins.find(id);
    return id == self || origin == nullptr || origin->upto >= upto;
  };
  std::erase_if(floors_, [&](const auto& entry) {
    const Floor& floor = entry.second;
    return std::all_of(floor.upto.begin(), floor.upto.end(),
                       [&](const VectorEntry& says) { return reached(says.origin, says.upto); }) &&
           std::all_of(floor.beyond.begin(), floor.beyond.end(), [&](const NackItem& item) {
             return item.ranges.empty() || reached(item.origin, item.ranges.back().last);
           });
  });
}

bool Floors::any_covers(const OriginId& origin, std::uint64_t seq) const noexcept {
  return std::any_of(floors_.begin(), floors_.end(),
                     [&](const auto& entry) { return entry.second.covers(origin, seq); });
}

bool Floors::any_divides(const OriginId& origin, std::uint64_t from, std::uint64_t to) const noexcept {
  return std::any_of(floors_.begin(), floors_.end(),
                     [&](const auto& entry) { return entry.second.divides(origin, from, to); });
}

std::vector<const Floor*> Floors::unlike() const {
  std::vector<const Floor*> apart;
  for (const auto& [segment, floor] : floors_) {
    if (apart.empty() || !(floor == *apart.back())) apart.push_back(&floor);
  }
  return apart;
}

Floor Floors::common() const {
  const std::vector<const Floor*> apart = unlike();
  std::map<OriginId, Ranges> in_all;
  for (const Floor* const floor : apart) {
    for (const VectorEntry& entry : floor->upto) in_all.try_emplace(entry.origin);
    for (const NackItem& item : floor->beyond) in_all.try_emplace(item.origin);
  }
  for (auto& [id, ranges] : in_all) {
    for (const Floor* const floor : apart) {
      ranges = floor == apart.front() ? seen(*floor, id) : in_both(ranges, seen(*floor, id));
    }
  }
  Floor floor;
  for (const auto& [id, ranges] : in_all) {
    Origin origin;
    for (const Range& range : ranges) range.first == 1 ? origin.advance(range.last) : void(origin.mark(range));
    floor.upto.push_back({id, origin.upto});
    if (!origin.beyond.empty()) floor.beyond.push_back({id, origin.beyond});
  }
  return floor;
}

// What is gone from all logs can't be had beside what the donor lacks: two nodes that lack each other's births would
// change places for ever, or until all had lost something. So all nodes judge states alike, by their vectors, compared
// from the first origin on: who is behind takes the state of who is ahead, never the other way round.
bool is_ahead(const Floor& theirs, Origins kept, const Origins& ours, const OriginId& self, bool loses,
              const std::function<bool(const OriginId&)>& forgotten) {
  std::set<OriginId> runs{self};
  for (const Origin& origin : ours) runs.insert(origin.id);
  for (const VectorEntry& entry : theirs.upto) runs.insert(entry.origin);
  for (const NackItem& item : theirs.beyond) {
    for (const Range& range : item.ranges) kept.add(item.origin).mark(range);
  }
  for (const OriginId& id : runs) {
    if (id == self) {
      if (loses) return false;
      continue;
    }
    const std::uint64_t upto = theirs.upto_of(id);
    if (upto == kForgotten || forgotten(id)) continue;
    Origin& then = kept.add(id);
    then.advance(upto);
    const Origin* const origin = ours.find(id);
    const std::pair has =
        origin == nullptr ? std::pair<std::uint64_t, std::uint64_t>{} : std::pair{origin->upto, beyond(*origin)};
    const std::pair would_have{then.upto, beyond(then)};
    if (would_have != has) return would_have > has;
  }
  return false;
}

}  // namespace weir
