// counter: a user's token bucket as the thesis' counters (section 3.1, listings 3.1, 3.2 and 3.4).
//
//   limit      what the user may have consumed up to now     consumed = sum of counts
//   refilled   when the limit was last raised                admitted while consumed < limit
//   counts     what each node admitted, by its position among the members
//
// The limit is kept times T (the emission interval), so that a part of a token is a part of T and nothing is rounded.
//
// Merging takes the greater count of each node and the greater limit with its refill time stamp: commutative in the
// counts, associative and idempotent; of two buckets with equal limits and different time stamps each keeps its own.
//
// The faults of listing 3.1, kept as `Refill::fractional` and `Refill::integer`:
//   - a limit with fractions admits request c + 1 at once: just after c requests, limit = c + 0.001 > consumed = c;
//   - a limit of whole tokens forgets the fraction whenever it adds a token: the user gets less than the rate;
//   - neither is capped: a bucket that is never empty gets up to c tokens each time that it is asked, so who comes each
//     c * T once saves them up without end.
// `Refill::whole` adds whole tokens, moves the time stamp on by just these, and caps the limit at consumed + c (then
// the bucket is full, and stamped now). On one node it decides as Tat does: admit iff TAT - now <= (c - 1) * T.
//
// A returning node counts from 0 again, and what it admits hides behind what the others have of it, until it hears of
// that itself: the thesis' counter has this fault too.
//
// Counts are numbers of 1, 2 or 4 bytes: as many as the greatest of the user's needs.
//
// Thread safety: a value. Complexity: linear in the number of nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "weir/units.hpp"

namespace weir::thesis {

enum class Refill : std::uint8_t { whole, fractional, integer };

class Counts {
 public:
  // Calls visit(pointer to the first) of numbers of this width.
  template <class Visit>
  auto visit(Visit visit) const {
    const void* const first = bytes_.data();
    if (width_ == 1) return visit(static_cast<const std::uint8_t*>(first));
    if (width_ == 2) return visit(static_cast<const std::uint16_t*>(first));
    return visit(static_cast<const std::uint32_t*>(first));
  }
  std::size_t size() const noexcept { return bytes_.size() / width_; }
  bool empty() const noexcept { return bytes_.empty(); }
  std::uint32_t operator[](std::size_t i) const noexcept {
    return visit([&](auto* first) { return std::uint32_t{first[i]}; });
  }
  void set(std::size_t i, std::uint32_t value) {
    widen(value);
    std::memcpy(&bytes_[i * width_], &value, width_);  // little-endian (wire.hpp)
  }
  // What is new is 0. No block is larger than needed.
  void grow(std::size_t size);
  std::size_t heap() const noexcept { return bytes_.capacity(); }
  void prefetch() const noexcept { __builtin_prefetch(bytes_.data()); }
  friend bool operator==(const Counts& a, const Counts& b) noexcept;

 private:
  void widen(std::uint32_t value);

  std::vector<std::byte> bytes_;
  std::uint32_t width_ = 1;
};

class CounterState {
 public:
  // A user not seen before; its first request fills the bucket.
  CounterState() = default;

  // Whether `hits` are admitted at `now` by the node at position `node`; if so they are counted. REQUIRES: hits >= 1.
  bool consume(const Policy& policy, Nanos now, Tokens hits = {1}, std::size_t node = 0, Refill how = Refill::whole);
  // True if this changed. REQUIRES: limit and refilled in 0 .. kTimeMax.
  bool merge(Nanos limit, Nanos refilled, std::span<const std::uint32_t> counts);
  bool merge(const CounterState& other) {
    std::vector<std::uint32_t> counts;
    for (std::size_t i = 0; i < other.counts_.size(); ++i) counts.push_back(other.counts_[i]);
    return merge(other.limit_, other.refilled_, counts);
  }

  Nanos limit() const noexcept { return limit_; }
  Nanos refilled() const noexcept { return refilled_; }
  const Counts& counts() const noexcept { return counts_; }
  Tokens consumed() const noexcept;
  bool empty() const noexcept { return counts_.empty(); }
  void prefetch() const noexcept { counts_.prefetch(); }
  // Bytes on the heap.
  std::size_t heap() const noexcept { return counts_.heap(); }

 private:
  void refill(const Policy& policy, Nanos now, Refill how) noexcept;

  Nanos limit_{0};
  Nanos refilled_{0};
  Counts counts_;
};

}  // namespace weir::thesis
