// carries: keys whose level was brought from their hash of before a rotation of the secret to their hash of now, on
// their way to the replica.
//
// Keys are known by their hash alone, so a table can't be hashed anew: each key is carried when it is asked for next.
// Between taking the level from the one cell and adding it to the other, the key has none: who asks for it meanwhile
// waits for its turn (`turn`), of which there are kLanes.
//
// Limit: kMost carries a lane. What doesn't fit is not told, and `overflowed` says so; the reader then compares the
// tables' levels with what it knows, and takes the level for births of this node: that errs to deny.
//
// Thread safety: all members from any thread. Complexity: a turn is a mutex, some 20 ns. Exceptions: none.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <new>
#include <vector>

#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

// `tat` is the key's in the node's table, with what was carried.
struct Carry {
  LimiterId limiter;
  KeyHash before;
  KeyHash key;
  Nanos tat;
};

class Carries {
 public:
  static constexpr std::size_t kLanes = 64;
  static constexpr std::size_t kMost = 16384;

  std::mutex& turn(KeyHash key) noexcept { return lane(key).mutex; }

  // REQUIRES: it is the caller's turn for carry.key.
  void push(const Carry& carry) noexcept {
    std::vector<Carry>& told = lane(carry.key).told;
    bool fits = told.size() < kMost;
    try {
      if (fits) told.push_back(carry);
    } catch (const std::bad_alloc&) {
      fits = false;
    }
    if (!fits) overflowed_.store(true, std::memory_order_release);
    if (fits) waiting_.fetch_add(1, std::memory_order_seq_cst);
  }

  // At most about `most` of those that are there.
  std::vector<Carry> take(std::size_t most) {
    std::vector<Carry> taken;
    for (std::size_t i = 0; i < kLanes && taken.size() < most && !empty(); ++i) {
      const std::lock_guard lock(lanes_[i].mutex);
      std::vector<Carry>& told = lanes_[i].told;
      const auto from = told.end() - static_cast<std::ptrdiff_t>(std::min(told.size(), most - taken.size()));
      taken.insert(taken.end(), from, told.end());
      waiting_.fetch_sub(static_cast<std::size_t>(told.end() - from), std::memory_order_seq_cst);
      told.erase(from, told.end());
      if (told.empty()) std::vector<Carry>().swap(told);
    }
    return taken;
  }
  void clear() noexcept {
    for (Lane& each : lanes_) {
      const std::lock_guard lock(each.mutex);
      waiting_.fetch_sub(each.told.size(), std::memory_order_seq_cst);
      std::vector<Carry>().swap(each.told);
    }
  }
  bool empty() const noexcept { return waiting_.load(std::memory_order_seq_cst) == 0; }

  // Whether carries didn't fit since the last call.
  bool overflowed() noexcept { return overflowed_.exchange(false, std::memory_order_acq_rel); }

 private:
  struct alignas(64) Lane {
    std::mutex mutex;
    std::vector<Carry> told;
  };

  Lane& lane(KeyHash key) noexcept { return lanes_[key.v % kLanes]; }

  std::array<Lane, kLanes> lanes_;
  std::atomic<std::size_t> waiting_{0};
  std::atomic<bool> overflowed_{false};
};

}  // namespace weir
