// random: the lab's source of chance. The same seed gives the same run on every machine, which the distributions of the
// standard library don't promise.
//
// Each purpose (workload, network, ring, each node) draws from a stream of its own, named by `stream`, so that more
// draws for one of them do not move the others.
//
// Thread safety: values. Complexity: constant.
#pragma once

#include <cmath>
#include <cstdint>

namespace weir::lab {

// The finaliser of splitmix64 (Steele, Lea and Flood): every bit of the input moves every bit of the output.
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mix(std::uint64_t x, std::uint64_t y) noexcept {
  return mix(mix(x + 0x9e3779b97f4a7c15) + y * 0x9e3779b97f4a7c15);
}

// `x` spread over [0, n). REQUIRES: x uniform over 64 bits, n >= 1.
constexpr std::uint32_t spread(std::uint64_t x, std::uint32_t n) noexcept {
  return static_cast<std::uint32_t>(((x >> 32) * n) >> 32);
}

// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(mix(seed)) {}
  // The stream of that purpose.
  static Random stream(std::uint64_t seed, std::uint64_t purpose) noexcept { return Random(mix(seed, purpose)); }

  std::uint64_t next() noexcept { return mix(state_ += 0x9e3779b97f4a7c15); }
  // In [0, n). REQUIRES: n >= 1.
  std::uint32_t below(std::uint32_t n) noexcept { return spread(next(), n); }
  // In [0, 1).
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double between(double low, double high) noexcept { return low + unit() * (high - low); }
  // In [low, high].
  std::int64_t whole(std::int64_t low, std::int64_t high) noexcept {
    return low + static_cast<std::int64_t>(unit() * static_cast<double>(high - low + 1));
  }
  bool chance(double probability) noexcept { return probability > 0 && unit() < probability; }
  double exponential(double mean) noexcept { return -mean * std::log1p(-unit()); }
  double lognormal(double median, double sigma) noexcept {
    const double radius = std::sqrt(-2 * std::log1p(-unit()));
    return median * std::exp(sigma * radius * std::cos(6.283185307179586 * unit()));
  }

 private:
  std::uint64_t state_;
};

}  // namespace weir::lab
