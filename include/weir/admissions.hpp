// admissions: the births that a node's threads admit, on their way to the replica.
//
//   thread 0   push -->  [ring 0]  --+
//   thread 1   push -->  [ring 1]  --+-->  drain, by the one reader
//   others     push -->  [last  ]  --+
//
// Each thread that decides has a ring of its own, which it alone writes; all others share the last one, under a lock.
// The reader sleeps while the rings are empty: who pushes and finds it asleep (`wakes`) must wake it, once.
//
// Limit: kRing births a ring. What doesn't fit is not kept; `overflowed` says so, and the reader compares the tables'
// levels with what it knows instead (Registry::visit). No thread ever waits for the reader.
//
// Thread safety: push and wakes from any thread, each with its stripe; the rest from one thread at a time.
// Complexity: a push is some stores and one full barrier, 5 to 10 ns. Exceptions: the constructor may throw bad_alloc.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>

#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

// Births of one key at one time, and what the key's TAT was after them in the node's table.
struct Admission {
  LimiterId limiter;
  KeyHash key;
  Tokens hits;
  Nanos time;
  Nanos tat;
};

class Admissions {
 public:
  static constexpr std::size_t kRing = 4096;

  // `stripes`: as many rings, the last one for all threads that have none. REQUIRES: stripes >= 1.
  explicit Admissions(unsigned stripes) : stripes_(stripes), rings_(std::make_unique<Ring[]>(stripes)) {}

  // False while nobody reads: then nothing is pushed.
  bool open() const noexcept { return open_.load(std::memory_order_relaxed); }
  void open(bool to) noexcept { open_.store(to, std::memory_order_relaxed); }

  void push(unsigned stripe, const Admission& admission) {
    if (!open()) return;
    Ring& ring = rings_[stripe];
    const bool shared = stripe + 1 == stripes_;
    if (shared) lock_shared();
    put(ring, admission);
    if (shared) shared_lock_.store(false, std::memory_order_release);
  }

  // Whether the caller, having pushed, must wake the reader: of many callers, one.
  bool wakes() noexcept {
    return open() && !awake_.load(std::memory_order_seq_cst) && !awake_.exchange(true, std::memory_order_seq_cst);
  }

  // The reader is about to drain, or has been drained and sleeps from now on. What was pushed before `awake(false)` may
  // still be there after it: drain once more.
  void awake(bool to) noexcept { awake_.store(to, std::memory_order_seq_cst); }

  // Calls visit(admission) for births that are there, at most about `most`, those of one thread in their order.
  template <class Visit>
  void drain(std::size_t most, Visit visit) {
    for (unsigned s = 0; s < stripes_ && most > 0; ++s) {
      Ring& ring = rings_[s];
      std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
      const std::uint64_t head = ring.head.load(std::memory_order_seq_cst);
      for (; tail != head && most > 0; ++tail, --most) {
        visit(static_cast<const Admission&>((*ring.entries)[tail % kRing]));
      }
      ring.tail.store(tail, std::memory_order_release);
    }
  }
  bool empty() const noexcept {
    for (unsigned s = 0; s < stripes_; ++s) {
      if (rings_[s].tail.load(std::memory_order_relaxed) != rings_[s].head.load(std::memory_order_seq_cst))
        return false;
    }
    return true;
  }

  // Whether births didn't fit since the last call.
  bool overflowed() noexcept { return overflowed_.exchange(false, std::memory_order_acq_rel); }
  std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Ring {
    alignas(64) std::atomic<std::uint64_t> head{0};  // written by who pushes
    std::uint64_t tail_seen = 0;                     // by who pushes
    std::unique_ptr<std::array<Admission, kRing>> entries;
    alignas(64) std::atomic<std::uint64_t> tail{0};  // written by the reader
  };

  void put(Ring& ring, const Admission& admission) {
    const std::uint64_t head = ring.head.load(std::memory_order_relaxed);
    if (!ring.entries) {
      // Made by the first birth: most programs have fewer threads that decide than threads. Without memory it is as
      // full.
      ring.entries.reset(new (std::nothrow) std::array<Admission, kRing>);
    }
    if (!ring.entries || (head - ring.tail_seen == kRing &&
                          head - (ring.tail_seen = ring.tail.load(std::memory_order_acquire)) == kRing)) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      overflowed_.store(true, std::memory_order_release);
      return;
    }
    (*ring.entries)[head % kRing] = admission;
    // Before the look at `awake_`, which the reader clears before its last look at the head.
    ring.head.store(head + 1, std::memory_order_seq_cst);
  }

  void lock_shared() noexcept {
    while (shared_lock_.exchange(true, std::memory_order_acquire)) {
      while (shared_lock_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
  }

  const unsigned stripes_;
  std::unique_ptr<Ring[]> rings_;
  std::atomic<bool> open_{false};
  alignas(64) std::atomic<bool> awake_{true};
  std::atomic<bool> overflowed_{false};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> shared_lock_{false};
};

}  // namespace weir
