// origins: which records a node has, of every run of every node: the version vector, and what came beyond its edge.
//
//   seq   1 2 3 4 5 6 7 8 9 ..         upto = 4, beyond = {[6,7]}, known = 9: 5, 8 and 9 are missing
//         # # # # . # # . .
//
// One entry an origin (a node and its incarnation), never one a key. A record that was seen is refused for good: this
// is what makes replication idempotent although the states are not.
//
// Thread safety: none. Complexity: find is a binary search over the origins; mark linear in `beyond` (<= kBeyondMax).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weir/frame.hpp"
#include "weir/machine.hpp"

namespace weir {

// Out-of-order ranges that are remembered of an origin; a record that would make one more is treated as lost.
inline constexpr std::size_t kBeyondMax = 256;

// What is told of an origin may be ahead of what it said itself last by so many records. More don't exist.
inline constexpr std::uint64_t kNumbersAhead = std::uint64_t{1} << 20;

struct Origin {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  OriginId id;
  std::uint64_t upto = 0;
  std::uint64_t known = 0;    // the highest number that is known to exist
  std::uint64_t head = 0;     // as it said itself last
  std::uint64_t stable = 0;   // all that the origin holds for live have them up to here
  std::vector<Range> beyond;  // ascending, apart by more than 1, all above upto + 1
  NodeId via;                 // who told of it last
  Nanos repair_at = kNever;   // when to ask for what is missing
  std::uint32_t attempts = 0;
  std::uint64_t asked = 0;      // what is missing up to here was asked for
  bool given_up = false;        // nobody who can be reached has what is missing
  bool held_off = false;        // what is missing was refused, as from the future: it is tried one record at a time
  std::uint64_t unfit = kNone;  // a chunk of which a part is here already, by what it follows,
  Nanos unfit_at;               // and when it came first
  Nanos dead_since = kNever;    // its node has a later incarnation, or has left

  bool seen(std::uint64_t seq) const noexcept;
  // Notes that `seq` was applied. False if it was seen before, or if there is no room to remember it.
  bool mark(std::uint64_t seq);
  // Notes that all of `range` are there (a state copy). False if there is no room to remember them.
  bool mark(const Range& range);
  // Forgets what it was said to have beyond that number: there is no such record.
  void forget_beyond(std::uint64_t last);
  // All up to `seq` are there (a chunk, a state copy).
  void advance(std::uint64_t seq);
  bool complete() const noexcept { return upto >= known; }
  // What was asked for came, or won't: what is missing now is asked for without waiting for that.
  void ask_anew() noexcept {
    attempts = 0;
    asked = 0;
  }
  // What is missing, at most kRangesMax ranges.
  std::vector<Range> missing() const;
};

bool contains(std::span<const Range> ranges, std::uint64_t seq) noexcept;

class Origins {
 public:
  Origin* find(const OriginId& id) noexcept;
  const Origin* find(const OriginId& id) const noexcept { return const_cast<Origins*>(this)->find(id); }
  Origin& add(const OriginId& id);
  void erase(const OriginId& id) noexcept;
  // This run of a node and all before it.
  void forget(const OriginId& last) noexcept;

  auto begin() noexcept { return list_.begin(); }
  auto end() noexcept { return list_.end(); }
  auto begin() const noexcept { return list_.begin(); }
  auto end() const noexcept { return list_.end(); }
  std::size_t size() const noexcept { return list_.size(); }
  std::size_t held() const noexcept;

 private:
  std::vector<Origin> list_;  // by id
};

}  // namespace weir
