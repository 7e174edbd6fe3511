// secrets: under what keys and names are hashed.
//
// Three keys of 16 bytes in words of their own, under a sequence lock: a reader copies the one that it needs. What is
// no longer needed is overwritten, not left behind.
//
// Thread safety: reads from any thread, without waiting for longer than a write takes; writes take turns on a mutex of
// the caller's. Nothing throws.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "weir/key_line.hpp"
#include "weir/siphash.hpp"

namespace weir {

class Secrets {
 public:
  enum Which : unsigned {
    kNow,     // of keys
    kBefore,  // of keys, before the last rotation, as long as some are carried over
    kNames,   // of limiters: this node's own affair, and never rotated
    kCount,
  };

  SipKey get(Which which) const noexcept {
    for (;;) {
      const std::uint32_t sequence = sequence_.load(std::memory_order_acquire);
      const std::size_t at = std::size_t{2} * which;
      const SipKey key{words_[at].load(std::memory_order_acquire), words_[at + 1].load(std::memory_order_acquire)};
      if ((sequence & 1) == 0 && sequence_.load(std::memory_order_relaxed) == sequence) [[likely]]
        return key;
      spin_pause();
    }
  }
  // All at once. REQUIRES: one writer at a time.
  void set(const SipKey& now, const SipKey& before, const SipKey& names) noexcept {
    const std::array<SipKey, kCount> keys = {now, before, names};
    const std::uint32_t sequence = sequence_.load(std::memory_order_relaxed);
    sequence_.store(sequence + 1, std::memory_order_release);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      words_[2 * i].store(keys[i].k0, std::memory_order_release);
      words_[2 * i + 1].store(keys[i].k1, std::memory_order_release);
    }
    sequence_.store(sequence + 2, std::memory_order_release);
  }

 private:
  alignas(64) std::atomic<std::uint32_t> sequence_{0};
  std::array<std::atomic<std::uint64_t>, std::size_t{2} * kCount> words_{};
};

}  // namespace weir
