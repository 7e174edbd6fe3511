// monitor: what a run is judged by, from outside the machines.
//
// Truth holds two token buckets for each user, as one number each (weir::Tat): of the births that the central limiter
// admitted, and of those that the nodes admitted together, at the times at which they did. Its level is what a limiter
// would see that knows everything at once:
//
//   overshoot   tokens above the capacity of all that was admitted        max(0, level(nodes) - c)
//   undershoot  tokens that the central limiter gave and the nodes withhold max(0, level(central) - level(nodes))
//
// of the worst user at any of the looks. Levels are whole tokens, rounded up: exact to one token.
//
// Curve is the thesis' measure (5.1.1): a curve of rejections so far, a point each second, its points summed.
//
// Thread safety: values. Complexity: constant a call; 16 bytes a user.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weir/tat.hpp"
#include "weir/units.hpp"

namespace weir::lab {

class Truth {
 public:
  Truth(const Policy& policy, std::size_t users) : policy_(policy), nodes_(users), central_(users) {}

  // Births that would pass kTimeMax are not counted. REQUIRES: time <= kTimeMax, user < users.
  void admitted(std::uint32_t user, Birth birth) { static_cast<void>(nodes_[user].insert(policy_, birth)); }
  void admitted_centrally(std::uint32_t user, Birth birth) { static_cast<void>(central_[user].insert(policy_, birth)); }
  void look(std::uint32_t user, Nanos now) {
    const Tokens level = nodes_[user].level(policy_, now);
    overshoot_ = std::max(overshoot_, level - policy_.capacity);
    undershoot_ = std::max(undershoot_, central_[user].level(policy_, now) - level);
  }

  Tokens overshoot() const noexcept { return overshoot_; }
  Tokens undershoot() const noexcept { return undershoot_; }

 private:
  Policy policy_;
  std::vector<Tat> nodes_;
  std::vector<Tat> central_;
  Tokens overshoot_;
  Tokens undershoot_;
};

class Curve {
 public:
  void reject() noexcept { ++rejected_; }
  void point() noexcept { sum_ += rejected_; }

  std::uint64_t rejected() const noexcept { return rejected_; }
  std::uint64_t sum() const noexcept { return sum_; }

 private:
  std::uint64_t rejected_ = 0;
  std::uint64_t sum_ = 0;
};

}  // namespace weir::lab
