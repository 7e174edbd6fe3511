// cell: how a fold's state lies in a slot of the key table.
//
// A cell type says how many slots a 64-byte line has, how many payload words a slot has beside hash and TAT, when a
// state is dead, and how to load, store and dispose of one. The TAT is always beside the hash, because a denial reads
// nothing else; the table keeps the top bits of it (a state's times are <= kTimeMax, 62 bits).
//
//   TatCell       tat0 tat1 tat2 tat3 | hash0 hash1 hash2 hash3                          the TAT is the state
//   IntervalCell  tat0 tat1 | hash0 hash1 | a0 b0 | a1 b1                                a, b: the payload
//                   b = 0                          no interval
//                   b < 2^62                       the only interval: a its start, b its count
//                   top bit of b, k << 8 | size    a is the address of a heap block of 2^k intervals, `size` in use
//
// The first word of a line, tat0, holds the line's lock, for every cell type: a caller with a stale address may lock a
// line that has since become another type's, and must then neither miss that type's lock nor write its other words.
//
// INVARIANT: a payload word is 0 in a slot that holds no key, so `store` never mistakes leftovers for a block. A block
// has one owner, its slot; who moves a slot moves the words and clears the old ones.
//
// What `store` and `dispose` return is by how many heap bytes a state grew (or shrank): the table keeps the sum.
//
// Thread safety: called under the line's lock. Complexity: load and store linear in the intervals, <= 32. Exceptions:
// `store` may throw bad_alloc when a state has more intervals than its slot has room for, and has changed nothing then.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>

#include "weir/interval.hpp"
#include "weir/tat.hpp"
#include "weir/units.hpp"

namespace weir {

template <class Cell>
struct alignas(64) CellLine {
  std::array<std::atomic<std::uint64_t>, Cell::kSlots> tat;
  std::array<std::atomic<std::uint64_t>, Cell::kSlots> hash;
  std::array<std::array<std::atomic<std::uint64_t>, Cell::kPayload>, Cell::kSlots> payload;
};

// A local limiter's cell: the TAT is the state.
struct TatCell {
  using State = Tat;
  static constexpr unsigned kSlots = 4;
  static constexpr unsigned kPayload = 0;
  static constexpr unsigned kMoves = 2;

  static bool dead(const Policy&, Nanos tat, Nanos now) noexcept { return tat <= now; }
  template <class Payload>
  static State load(Nanos tat, const Payload&) noexcept {
    return State(tat);
  }
  static Nanos tat(const Policy&, const State& state) noexcept { return state.value(); }
  template <class Payload>
  static std::int64_t store(const State&, Payload&) noexcept {
    return 0;
  }
  template <class Payload>
  static std::int64_t dispose(Payload&) noexcept {
    return 0;
  }
};

// An empty array of atomics would still take a byte.
template <>
struct alignas(64) CellLine<TatCell> {
  std::array<std::atomic<std::uint64_t>, 4> tat;
  std::array<std::atomic<std::uint64_t>, 4> hash;
  static inline std::array<std::array<std::atomic<std::uint64_t>, 0>, 4> payload;
};

// The cell of a limiter whose births also come late, from other nodes: a state outlives its TAT by the horizon.
struct IntervalCell {
  using State = IntervalSet;
  using Payload = std::array<std::atomic<std::uint64_t>, 2>;
  static constexpr unsigned kSlots = 2;
  static constexpr unsigned kPayload = 2;
  // With half the slots in a line, twice the moves look at about as many lines.
  static constexpr unsigned kMoves = 4;
  // What an allocation costs beside its contents: 16 bytes with the usual allocators, for blocks of 16 * 2^k bytes.
  static constexpr std::int64_t kBlockOverhead = 16;

  // As IntervalSet::compact: what ended before the horizon. TAT 0 is left when a change of limiter emptied the set.
  static bool dead(const Policy& policy, Nanos tat, Nanos now) noexcept {
    return tat == Nanos{0} || tat < now - State::horizon(policy);
  }
  static Nanos tat(const Policy& policy, const State& state) noexcept { return state.tat(policy); }

  static State load(Nanos, const Payload& payload) noexcept {
    const std::uint64_t b = payload[1].load(std::memory_order_relaxed);
    if (b == 0) return {};
    if ((b & kSpilled) != 0) return State::from({block(payload), b & 0xff});
    const Interval only{{static_cast<std::int64_t>(payload[0].load(std::memory_order_relaxed))},
                        {static_cast<std::int64_t>(b)}};
    return State::from({&only, 1});
  }

  static std::int64_t store(const State& state, Payload& payload) {
    if (state.size() > 1) return spill(state, payload);
    const std::int64_t freed = dispose(payload);
    if (!state.empty()) {
      payload[0].store(static_cast<std::uint64_t>(state.begin()->start.v), std::memory_order_relaxed);
      payload[1].store(static_cast<std::uint64_t>(state.begin()->count.v), std::memory_order_relaxed);
    }
    return freed;
  }

  static std::int64_t dispose(Payload& payload) noexcept {
    const std::uint64_t b = payload[1].load(std::memory_order_relaxed);
    const std::int64_t freed = (b & kSpilled) != 0 ? heap_bytes(capacity_of(b)) : 0;
    if (freed != 0) ::operator delete(block(payload));
    payload[0].store(0, std::memory_order_relaxed);
    payload[1].store(0, std::memory_order_relaxed);
    return -freed;
  }

 private:
  static constexpr std::uint64_t kSpilled = std::uint64_t{1} << 63;

  static std::size_t capacity_of(std::uint64_t b) noexcept { return std::size_t{1} << (b >> 8 & 0xff); }
  static std::int64_t heap_bytes(std::size_t capacity) noexcept {
    return static_cast<std::int64_t>(capacity * sizeof(Interval)) + kBlockOverhead;
  }
  static Interval* block(const Payload& payload) noexcept {
    return reinterpret_cast<Interval*>(payload[0].load(std::memory_order_relaxed));
  }

  // Keeps the block that is there while the set fits and fills more than a quarter, so that a set that gains and loses
  // an interval in turn doesn't allocate each time.
  static std::int64_t spill(const State& state, Payload& payload) {
    const std::size_t size = state.size();
    const std::uint64_t b = payload[1].load(std::memory_order_relaxed);
    const std::size_t held = (b & kSpilled) != 0 ? capacity_of(b) : 0;
    std::size_t capacity = held;
    Interval* to = held == 0 ? nullptr : block(payload);
    std::int64_t change = 0;
    if (size > held || size * 4 <= held) {
      capacity = std::bit_ceil(size);
      const std::size_t bytes = capacity * sizeof(Interval);
      // What has room already needs no smaller block, only likes one.
      void* const fresh = size > held ? ::operator new(bytes) : ::operator new(bytes, std::nothrow);
      if (fresh == nullptr) {
        capacity = held;
      } else {
        change = heap_bytes(capacity) + dispose(payload);
        to = static_cast<Interval*>(fresh);
      }
    }
    std::memcpy(to, state.begin(), size * sizeof(Interval));
    payload[0].store(reinterpret_cast<std::uint64_t>(to), std::memory_order_relaxed);
    payload[1].store(kSpilled | static_cast<std::uint64_t>(std::countr_zero(capacity)) << 8 | size,
                     std::memory_order_relaxed);
    return change;
  }
};

static_assert(kIntervalCap <= 0xff, "a spilled state's size is kept in 8 bits");

}  // namespace weir
