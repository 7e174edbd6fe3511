// random: the machines' random numbers, the same on every platform (which the distributions of <random> are not).
//
// splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators"): 8 bytes of state, any seed.
#pragma once

#include <cstdint>

#include "lab/common/random.hpp"

namespace weir::thesis {

class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) noexcept : state_(seed) {}

  constexpr std::uint64_t next() noexcept { return lab::mix(state_ += 0x9e3779b97f4a7c15U); }

  // Uniform in 0 .. bound - 1, with a bias below bound / 2^64. REQUIRES: bound >= 1.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64U);
  }

 private:
  std::uint64_t state_;
};

}  // namespace weir::thesis
