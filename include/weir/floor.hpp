// floor: what copied segments are true for, and which of two states is the better one.
//
//   A node's vector says which records it has (origins.hpp). A segment that was copied has those that its donor had,
//   and these may be more: that is the segment's floor. It is looked at until the vector says as much.
//
//     seq            1 2 3 4 5 6 7 8 9 ..
//     vector         # # # # . # # . .        a record that comes now is noted as seen by the whole node; of a segment
//     floor of 17    # # # # # # # # .        whose floor covers it, it is not counted again
//
//   A run that is over and forgotten stands in a floor with kForgotten: all of it, and of all earlier runs of its node.
//
// Guarantee: `is_ahead` orders the states of all nodes alike, so that no two nodes take each other's in turn.
//
// Thread safety: none. Complexity: a look-up is linear in the runs of a floor; `common` in runs and ranges of all
// floors that differ; floors are kept for a moment after a copy, and there are at most 64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "weir/frame.hpp"
#include "weir/keys.hpp"
#include "weir/origins.hpp"
#include "weir/units.hpp"

namespace weir {

struct Floor {
  std::vector<VectorEntry> upto;
  std::vector<NackItem> beyond;  // ranges above that, apart

  std::uint64_t upto_of(const OriginId& origin) const noexcept;
  // Whether it covers that record.
  bool covers(const OriginId& origin, std::uint64_t seq) const noexcept;
  // Whether it covers that record or a later one.
  bool reaches(const OriginId& origin, std::uint64_t seq) const noexcept;
  // Whether it covers some of the records (from, to], and not all of them.
  bool divides(const OriginId& origin, std::uint64_t from, std::uint64_t to) const noexcept;
  // How many of the records (from, to] it has by `beyond`.
  std::uint64_t late(const OriginId& origin, std::uint64_t from, std::uint64_t to) const noexcept;
  // What one or the other covers.
  Floor joined(const Floor& other) const;
  friend bool operator==(const Floor& x, const Floor& y) noexcept;
};

// Of segments.
class Floors {
 public:
  bool empty() const noexcept { return floors_.empty(); }
  void clear() noexcept { floors_.clear(); }
  void set(std::uint8_t segment, Floor floor) { floors_[segment] = std::move(floor); }
  // Null if the segment has none.
  const Floor* find(std::uint8_t segment) const noexcept;
  // Those of another copy replace those that are here.
  void replace(const Floors& others);
  // Those that say nothing that a node doesn't have by its vector go.
  void drop(const Origins& origins, const OriginId& self);

  // Whether the floor of the key's segment covers that record; that one, or a later one.
  bool covers(KeyHash key, const OriginId& origin, std::uint64_t seq) const noexcept {
    const Floor* const floor = floor_of(key);
    return floor != nullptr && floor->covers(origin, seq);
  }
  bool reaches(KeyHash key, const OriginId& origin, std::uint64_t seq) const noexcept {
    const Floor* const floor = floor_of(key);
    return floor != nullptr && floor->reaches(origin, seq);
  }
  // Whether any covers it.
  bool any_covers(const OriginId& origin, std::uint64_t seq) const noexcept;
  // Whether any covers some of the records (from, to], and not all of them.
  bool any_divides(const OriginId& origin, std::uint64_t from, std::uint64_t to) const noexcept;

  // Of neighbours that are alike the first: segments of one answer are true for the same records. Valid until a floor
  // is set or dropped.
  std::vector<const Floor*> unlike() const;
  // What all are true for.
  Floor common() const;

 private:
  const Floor* floor_of(KeyHash key) const noexcept {
    return floors_.empty() ? nullptr : find(static_cast<std::uint8_t>(Keys::segment_of(key)));
  }

  std::map<std::uint8_t, Floor> floors_;  // by segment
};

// Whether a state that is true for `theirs`, with the records `kept` added to it, is better than `ours`, that of node
// `self`. States are compared from the first run on that tells them apart, but for runs that either has forgotten
// (`forgotten(run)`): nodes forget at different times. One that loses own births of `self` is not better in its own
// run.
bool is_ahead(const Floor& theirs, Origins kept, const Origins& ours, const OriginId& self, bool loses,
              const std::function<bool(const OriginId&)>& forgotten);

}  // namespace weir
