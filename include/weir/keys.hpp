// keys: the replicated keys of a node: their states in few bytes, and a map of them in segments.
//
// A key's state holds two interval sets: `published`, what the other nodes know or have been sent, and `unsent`, own
// births that they don't know yet. The node decides on their union, whose TAT is kept: an own birth is the newest, so
// admitting moves the TAT and appends to `unsent`; only a received record (or a birth of the past) looks at both sets.
//
// Most keys have one interval in each set, which lies in the state itself:
//
//   StoredSet, 16 bytes:   count > 0   {start, count}         one interval
//                          count = 0   empty
//                          count < 0   {pointer, -size}       `size` intervals on the heap, in a block of as many, or
//                          one more
//
//   Keys: 64 segments by the upper bits of the key's hash, each an open-addressing table of states
//   (linear probing, erased by shifting back, grown by an eighth). Their order depends on nothing but the keys and the
//   order of insertion, so all that walks over them is deterministic; segments are the unit of state copies.
//
// Thread safety: none (a replica's own). Complexity: constant expected; a growth is linear in its segment.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "weir/interval.hpp"
#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

class StoredSet {
 public:
  StoredSet() noexcept = default;
  StoredSet(StoredSet&& other) noexcept
      : start_(std::exchange(other.start_, 0)), count_(std::exchange(other.count_, 0)) {}
  StoredSet& operator=(StoredSet&& other) noexcept {
    std::swap(start_, other.start_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~StoredSet() { clear(); }

  bool empty() const noexcept { return count_ == 0; }
  // The set of a key that has one interval lies here; others are copied from their block.
  IntervalSet load() const noexcept {
    IntervalSet set;
    if (count_ == 0) return set;
    const Interval one{{start_}, {count_}};
    return count_ > 0 ? IntervalSet::from({&one, 1}) : IntervalSet::from({block(), size()});
  }
  // Both return by how many bytes the heap block grew.
  std::ptrdiff_t store(const IntervalSet& set);
  std::ptrdiff_t clear() noexcept;

  Tokens weight() const noexcept;
  // The time at which its last busy interval ends; 0 if empty.
  Nanos tat(const Policy& policy) const noexcept {
    if (count_ == 0) return {0};
    return count_ > 0 ? Interval{{start_}, {count_}}.end(policy) : block()[size() - 1].end(policy);
  }
  Nanos oldest() const noexcept { return {count_ < 0 ? block()[0].start.v : start_}; }
  // Adds a birth that is not older than any interval's start; false if there is no room here: use load and store.
  bool append(const Policy& policy, Birth birth) noexcept {
    if (count_ == 0) {
      start_ = birth.time.v;
      count_ = birth.weight.v;
      return true;
    }
    if (count_ < 0 || birth.time.v < start_ || birth.time > tat(policy)) return false;
    count_ += birth.weight.v;
    return true;
  }

  std::size_t heap_bytes() const noexcept { return count_ < 0 ? capacity(size()) * sizeof(Interval) : 0; }

 private:
  static std::size_t capacity(std::size_t size) noexcept;
  std::size_t size() const noexcept { return static_cast<std::size_t>(-count_); }
  Interval* block() const noexcept { return reinterpret_cast<Interval*>(start_); }

  std::int64_t start_ = 0;
  std::int64_t count_ = 0;
};

static_assert(sizeof(StoredSet) == 16);

// How many tokens arrived lately, as a sliding window of two counted periods.
//
// Tokens are counted in units of a 1024th of the capacity, so that a bucket that fills within a period fits into 11
// bits; what is less than a unit counts as one as often as it is large (the time decides, so that it is the same in
// each run). A count that is 1024 periods old is taken for a new one: that errs to a higher rate, for one period.
class ArrivalRate {
 public:
  // `period` and `capacity` are the same in all calls.
  void count(Tokens tokens, Tokens capacity, Nanos now, Nanos period) noexcept;
  Tokens per_second(Tokens capacity, Nanos now, Nanos period) const noexcept;

 private:
  static constexpr std::int64_t kUnits = 1024;
  static constexpr std::uint32_t kMost = 2 * kUnits - 1;
  static std::uint32_t number(Nanos now, Nanos period) noexcept {
    return static_cast<std::uint32_t>(now.v / period.v) % kUnits;
  }

  std::uint32_t period_ : 10 = 0;
  std::uint32_t previous_ : 11 = 0;
  std::uint32_t current_ : 11 = 0;
};

static_assert(sizeof(ArrivalRate) == 4);

struct KeyState {
  KeyHash key;  // 0: an empty place of the table
  Nanos tat;    // of the union of both sets, and of what else the replica counts
  StoredSet published;
  StoredSet unsent;
  ArrivalRate own_rate;     // admitted here
  ArrivalRate remote_rate;  // received
  LimiterId limiter;
  bool due = false;  // its unsent waits in the next frame

  IntervalSet all(const Policy& policy) const noexcept;
};

static_assert(sizeof(KeyState) == 64, "keys that are touched once should cost little");

class Keys {
 public:
  static constexpr std::size_t kSegments = 64;
  static std::size_t segment_of(KeyHash key) noexcept { return key.v >> 58; }

  // Null if there is none. Pointers are valid until the next insertion or erasure in the key's segment.
  KeyState* find(LimiterId limiter, KeyHash key) noexcept;
  KeyState& find_or_insert(LimiterId limiter, KeyHash key);
  void erase(LimiterId limiter, KeyHash key) noexcept;

  std::size_t size() const noexcept { return size_; }
  std::size_t size(std::size_t segment) const noexcept { return segments_[segment].used; }
  // `grown` is what StoredSet::store and clear returned for sets of these keys.
  void account(std::ptrdiff_t grown) noexcept { heap_ += grown; }
  std::size_t held() const noexcept;

  // Calls `visit(state)` for each key of a segment; those for which it returns false are erased.
  template <class Visit>
  void sweep(std::size_t segment, Visit visit) {
    Segment& part = segments_[segment];
    // Backwards, so that what an erasure shifts back has been visited. (What it shifts from the start of the table to
    // its end is left to the next sweep.)
    for (std::size_t i = part.places.size(); i-- > 0;) {
      if (part.places[i].key.v != 0 && !visit(part.places[i])) erase_at(part, i);
    }
  }
  // Calls `visit(state)` for keys of the segment that `key` belongs to, from where it would lie on, at most `most`.
  template <class Visit>
  void for_some(LimiterId limiter, KeyHash key, std::size_t most, Visit visit) {
    Segment& part = segments_[segment_of(key)];
    const std::size_t places = part.places.size();
    std::size_t at = places == 0 ? 0 : home(part, limiter, key);
    for (std::size_t i = 0; i < places && most > 0; ++i) {
      if (part.places[at].key.v != 0) {
        visit(part.places[at]);
        --most;
      }
      at = at + 1 == places ? 0 : at + 1;
    }
  }
  template <class Visit>
  void for_each(std::size_t segment, Visit visit) const {
    for (const KeyState& state : segments_[segment].places) {
      if (state.key.v != 0) visit(state);
    }
  }

 private:
  struct Segment {
    std::vector<KeyState> places;
    std::size_t used = 0;
  };

  static std::size_t home(const Segment& part, LimiterId limiter, KeyHash key) noexcept;
  static std::size_t place_of(const Segment& part, LimiterId limiter, KeyHash key) noexcept;
  void erase_at(Segment& part, std::size_t place) noexcept;
  static void grow(Segment& part);

  std::array<Segment, kSegments> segments_;
  std::size_t size_ = 0;
  std::ptrdiff_t heap_ = 0;  // bytes of the sets' blocks
};

}  // namespace weir
