// threads: what the tests of concurrent callers have in common. WEIR_ROUNDS scales them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "cases.hpp"

namespace weir::test {

inline std::uint64_t round_count() { return environment("WEIR_ROUNDS", 1000); }

// Waits until all have come, again and again.
class Barrier {
 public:
  explicit Barrier(unsigned count) : count_(count) {}
  void wait() {
    const unsigned turn = turn_.load();
    if (arrived_.fetch_add(1) + 1 == count_) {
      arrived_.store(0);
      turn_.fetch_add(1);
    } else {
      while (turn_.load() == turn) std::this_thread::yield();
    }
  }

 private:
  const unsigned count_;
  std::atomic<unsigned> arrived_{0};
  std::atomic<unsigned> turn_{0};
};

inline void run_threads(unsigned count, const std::function<void(unsigned)>& body) {
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < count; ++id) threads.emplace_back(body, id);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace weir::test
