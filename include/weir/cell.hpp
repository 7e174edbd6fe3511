// cell: how a fold's state lies in a slot of the key table.
//
// A cell type says how many slots a 64-byte line has, how many payload words a slot has beside hash and TAT, when a
// state is dead, and how to load, store and dispose of one. The TAT is always beside the hash, because a denial reads
// nothing else; the table keeps the top bits of it (a state's times are <= kTimeMax, 62 bits).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "weir/tat.hpp"
#include "weir/units.hpp"

namespace weir {

template <class Cell>
struct alignas(64) CellLine {
  std::array<std::atomic<std::uint64_t>, Cell::kSlots> hash;
  std::array<std::atomic<std::uint64_t>, Cell::kSlots> tat;
  std::array<std::array<std::atomic<std::uint64_t>, Cell::kPayload>, Cell::kSlots> payload;
};

// A local limiter's cell: the TAT is the state.
struct TatCell {
  using State = Tat;
  static constexpr unsigned kSlots = 4;
  static constexpr unsigned kPayload = 0;

  static bool dead(const Policy&, Nanos tat, Nanos now) noexcept { return tat <= now; }
  template <class Payload>
  static State load(Nanos tat, const Payload&) noexcept {
    return State(tat);
  }
  static Nanos tat(const Policy&, const State& state) noexcept { return state.value(); }
  template <class Payload>
  static void store(const Policy&, const State&, Payload&) noexcept {}
  template <class Payload>
  static void dispose(Payload&) noexcept {}
};

// An empty array of atomics would still take a byte.
template <>
struct alignas(64) CellLine<TatCell> {
  std::array<std::atomic<std::uint64_t>, 4> hash;
  std::array<std::atomic<std::uint64_t>, 4> tat;
  static inline std::array<std::array<std::atomic<std::uint64_t>, 0>, 4> payload;
};

}  // namespace weir
