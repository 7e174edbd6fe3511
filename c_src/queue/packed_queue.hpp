// packed_queue: the thesis' queue of {time-of-birth, time-of-death} in a few bytes a birth, its merge and its analysis.
//
// The design is that of Henriksson & Bennhage, "Trading performance for precision in a CRDT-based rate-limiting system"
// (2021), section 4.2: a user's queue holds an element for each admitted request. It is born when the request is
// admitted and dies when the token comes back, one T (emission interval) after the element before it. Listings 4.1-4.3
// are `refill` and `merge`, 4.5 is `frequent`, equation 4.2 is `append`.
//
// What of the listings is repaired here:
//   4.1  it removes the head while its death lies in the *future*. Removed is what has died: death <= now.
//   4.5  it compares a *period* with a frequency threshold and sends above it. Sent is what is quicker: period <
//        threshold.
//   4.2  (the equation) two births of one node in one millisecond are one element to every other node, and add a T at
//        each meeting. `append` bears an element at least a millisecond after the one before it.
//
// In bytes, little-endian:
//
//       0        1         2        4         8        12           20        28
//       +--------+---------+--------+---------+--------+------------+---------+-----------------+------------------+
//       | 1      | w       | 0      | births  | runs   | base       | T       | births x w      | runs x 12        |
//       | version| u8, 1-4 | u16    | u32     | u32    | i64 ms     | i64 ns  | ms from base    | u32 index,       |
//       |        |         |        |         |        | first birth|         | in w bytes each | i64 ns its death |
//       +--------+---------+--------+---------+--------+------------+---------+-----------------+------------------+
//
// Inside a run each death is one T after the one before, so only its first is written. While the bucket is in use there
// is a single run: 1,000 births within a minute are 2,040 bytes (w = 2), within 4.6 hours 3,040 (w = 3). At worst, each
// birth after all before it have died, a birth costs w + 12 bytes.
//
// INVARIANTS (checked of all bytes that come in): births ascend, equal ones are allowed; each death is at least one T
// after the one before, which the equation and listing 4.3 keep; births are from 1970 on, deaths <= kTimeMax; at most
// kMaxBirths; the last birth is less than 2^32 ms (49.7 days) after the first. The form is canonical (base is the first
// birth, w the least that fits, runs as long as can be), so equal queues are equal bytes.
//
// Exactness: a queue of whole numbers; nothing is rounded. Thread safety: values. The `memory` that a queue is made
// with must outlive it. Every function that reports an error leaves its output unspecified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "weir/units.hpp"

namespace weir::thesis {

// A Unix time or a duration in whole milliseconds: what the thesis' births are counted in.
struct Millis {
  std::int64_t v = 0;
  friend constexpr auto operator<=>(const Millis&, const Millis&) = default;
  constexpr Nanos nanos() const noexcept { return {v * 1'000'000}; }
};

struct Element {
  Millis birth;
  Nanos death;
  friend constexpr bool operator==(const Element&, const Element&) = default;
};

enum class QueueError : std::uint8_t {
  none,
  malformed,        // bytes that aren't a packed queue
  unlike_interval,  // queues of different T
  too_many,         // more than kMaxBirths
  too_long,         // births more than 49.7 days apart
  too_late,         // a time before 1970, or a death after kTimeMax
  out_of_order,     // an element born before the last one, or that dies less than T after it
};

inline constexpr std::uint32_t kMaxBirths = 1 << 20;
inline constexpr Millis kMaxSpan{UINT32_MAX};
inline constexpr Millis kMaxBirth{kTimeMax.v / 1'000'000};

using Bytes = std::span<const std::byte>;
using Births = std::span<const std::uint32_t>;  // in ms after a base

// What the first bytes say. Reading it checks them, and that the length is right, but not the elements: constant time.
struct QueueHead {
  std::uint32_t births = 0;
  std::uint32_t runs = 0;
  unsigned width = 1;
  Millis base;
  Nanos interval;

  static std::optional<QueueHead> read(Bytes bytes) noexcept;
};

// Leaves new numbers uninitialized: they are about to be written, and writing them twice is a third of unpacking.
template <class T>
struct RawAllocator : std::pmr::polymorphic_allocator<T> {
  using std::pmr::polymorphic_allocator<T>::polymorphic_allocator;
  template <class U>
  struct rebind {
    using other = RawAllocator<U>;
  };
  template <class U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};

template <class T>
using RawVector = std::vector<T, RawAllocator<T>>;

// Elements whose deaths are T apart.
struct Run {
  std::uint32_t index;  // of the first one
  std::int64_t death;   // its death, in ns
  friend bool operator==(const Run&, const Run&) = default;
};

struct Range {
  std::size_t begin, end;
};
// What lies between ranges: visit(begin, end). REQUIRES: they ascend.
template <class Visit>
void each_part(std::size_t size, std::span<const Range> ranges, Visit visit) {
  std::size_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (at < begin) visit(at, begin);
    at = end;
  }
  if (at < size) visit(at, size);
}

// Elements that are about to be packed: births without some ranges, and their runs. Lives no longer than they do.
class Slice {
 public:
  // `from` is the index that the first birth has for the runs.
  Slice(Nanos interval, Millis base, Births births, std::span<const Range> without, std::span<const Run> runs,
        std::uint32_t from = 0) noexcept;

  bool empty() const noexcept { return count_ == 0; }
  std::size_t packed_size() const noexcept;
  void pack(std::byte* out) const noexcept;  // exactly packed_size()

 private:
  Nanos interval_;
  Millis base_;
  Births births_;
  std::span<const Range> without_;
  std::span<const Run> runs_;
  std::uint32_t from_;
  std::uint32_t count_ = 0;
  std::uint32_t first_ = 0;
  unsigned width_ = 1;
};

// A queue in working form, unpacked.
class Queue {
 public:
  // REQUIRES: 1 ns <= interval <= kSpanMax.
  explicit Queue(Nanos interval, std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : interval_(interval), births_(memory), runs_(memory) {}

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(births_.size()); }
  bool empty() const noexcept { return births_.empty(); }
  Nanos interval() const noexcept { return interval_; }
  // Equal births, deaths and T.
  friend bool operator==(const Queue& a, const Queue& b) noexcept {
    return a.interval_ == b.interval_ && a.base_ == b.base_ && a.births_ == b.births_ && a.runs_ == b.runs_;
  }

  // The elements in order: visit(Element).
  template <class Visit>
  void each(Visit visit) const;

  // Adds an element at the end, as it is. Amortized constant.
  QueueError push(const Element& element);
  // Equation 4.2: admits a request at `now`. It is born then, or a millisecond after the last element if that isn't
  // earlier, and dies T after the last death, or after its own birth if the queue was empty or dead by then.
  QueueError append(Millis now);
  // Listing 4.1: the number of elements at the head that are dead at `now`. O(runs).
  std::uint32_t dead(Nanos now) const noexcept;

  // Replaces this queue. O(births + runs).
  QueueError unpack(Bytes bytes);
  // Elements from index `from` on, to be packed. REQUIRES: from <= size().
  Slice slice(std::uint32_t from = 0) const noexcept;

 private:
  std::int64_t last_death() const noexcept;  // REQUIRES: not empty
  std::uint32_t run_end(std::size_t run) const noexcept;
  std::size_t first_run(std::uint32_t from) const noexcept;  // the run that element `from` is in

  Nanos interval_;
  Millis base_;  // the first birth; 0 if there is none
  RawVector<std::uint32_t> births_;
  RawVector<Run> runs_;
};

// Listings 4.2 and 4.3, from bytes. `merged` has the births of both in order; of equal ones the other's first, but into
// the local state a birth of both is one element, with the larger death. Then a death is at least T after the one
// before it. `updates` has those elements of `merged` that the local queue had not, or had with another death: what the
// neighbours' delta states must learn. REQUIRES: `run` is called once, and what it was given lives as long as this.
// O(births + runs), about 2 ns a birth with few runs, 15 with a run each (reading and packing included).
class Merge {
 public:
  enum class Into : std::uint8_t { local_state, delta_state };

  explicit Merge(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : inputs_(memory), births_(memory), runs_(memory), update_runs_(memory), kept_(memory) {}

  QueueError run(Bytes local, Bytes other, Into into);
  Slice merged() const noexcept { return {interval_, base_, births_, {}, runs_}; }
  Slice updates() const noexcept { return {interval_, base_, births_, kept_, update_runs_}; }

 private:
  Nanos interval_;
  Millis base_;
  RawVector<std::uint32_t> inputs_, births_;
  RawVector<Run> runs_, update_runs_;
  std::pmr::vector<Range> kept_;  // merged elements that are as they were in the local queue
};

// Listing 4.5: have the last `window` births, the newest included, come at a mean period below `threshold`? As there,
// the time since the window's first birth is divided by `window`. A queue with fewer births is never frequent. Looks at
// two births, whatever the size; nullopt if the head is malformed. REQUIRES: window >= 1, 0 <= threshold <= kMaxSpan.
std::optional<bool> frequent(Bytes packed, std::uint32_t window, Millis threshold) noexcept;

template <class Visit>
void Queue::each(Visit visit) const {
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    std::int64_t death = runs_[run].death;
    for (std::uint32_t i = runs_[run].index; i < run_end(run); ++i, death += interval_.v)
      visit(Element{{base_.v + births_[i]}, {death}});
  }
}

}  // namespace weir::thesis
