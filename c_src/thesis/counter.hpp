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
// Thread safety: a value. Complexity: linear in the number of nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weir/units.hpp"

namespace weir::thesis {

enum class Refill : std::uint8_t { whole, fractional, integer };

class CounterState {
 public:
  // A user not seen before; its first request fills the bucket.
  CounterState() = default;

  // Whether `hits` are admitted at `now` by the node at position `node`; if so they are counted. REQUIRES: hits >= 1.
  bool consume(const Policy& policy, Nanos now, Tokens hits = {1}, std::size_t node = 0, Refill how = Refill::whole);
  // True if this changed.
  bool merge(const CounterState& other);

  // For buckets that come from the wire: a bucket of `nodes` counts of 0, keeping the memory; then a node's count.
  // REQUIRES: limit and refilled in 0 .. kTimeMax; node < nodes.
  void reset(Nanos limit, Nanos refilled, std::size_t nodes);
  void set(std::size_t node, std::uint32_t count) noexcept { counts_[node] = count; }

  Nanos limit() const noexcept { return limit_; }
  Nanos refilled() const noexcept { return refilled_; }
  std::span<const std::uint32_t> counts() const noexcept { return counts_; }
  Tokens consumed() const noexcept;
  bool empty() const noexcept { return counts_.empty(); }
  void prefetch() const noexcept { __builtin_prefetch(counts_.data()); }
  // Bytes on the heap.
  std::size_t heap() const noexcept { return counts_.capacity() * sizeof(std::uint32_t); }

 private:
  void refill(const Policy& policy, Nanos now, Refill how) noexcept;
  void grow(std::size_t nodes);

  Nanos limit_{0};
  Nanos refilled_{0};
  std::vector<std::uint32_t> counts_;
};

}  // namespace weir::thesis
