// key_line: four keys of the key table in one cache line, and the lock over them.
//
//   tat0 tat1 tat2 tat3 | hash0 hash1 hash2 hash3
//
// A slot is (hash, TAT): the hash of 0 says that the slot is empty, the TAT is a `local` limiter's whole state of a key
// (tat.hpp). TATs need 62 bits. The two bits above them are marks:
//
//   bit 62 of tat0   the line is locked
//   bit 63 of tat1   it has overflowed: a key that belongs here may be in its second line (table.hpp)
//
// INVARIANT: marks belong to the line, not to the keys: a slot that changes its key keeps them.
//
// Thread safety: `lock` and `try_lock` from any thread; what writes needs the lock. Reads need none: a writer clears
// the hash before it changes what the TAT stands for, so if a reader finds the same hash before and after a TAT, the
// TAT was that key's. Complexity: constant. Nothing throws.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "weir/tat.hpp"
#include "weir/units.hpp"

// On the way of every decision: inlined also where g++ would rather not, in a library linked as a whole.
#define WEIR_INLINE [[gnu::always_inline]] inline

namespace weir {

// Tells the core that this is a spin.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class alignas(64) KeyLine {
 public:
  static constexpr unsigned kSlots = 4;

  // What a slot holds, without the marks.
  struct Slot {
    std::uint64_t hash = 0;
    std::uint64_t tat = 0;
  };

  // A bit for each slot that holds the key. Without a branch: on real traffic the slot is a coin toss.
  WEIR_INLINE unsigned match(KeyHash key) const noexcept {
    static_assert(kSlots == 4);  // written out: g++ 12 makes a loop of a loop
    const auto is = [&](unsigned i) {
      return static_cast<unsigned>(hash_[i].load(std::memory_order_acquire) == key.v);
    };
    return (is(0) | is(1) << 1) | (is(2) << 2 | is(3) << 3);
  }
  WEIR_INLINE bool holds(unsigned slot, KeyHash key) const noexcept {
    return hash_[slot].load(std::memory_order_acquire) == key.v;
  }
  bool empty(unsigned slot) const noexcept { return hash_[slot].load(std::memory_order_relaxed) == 0; }
  KeyHash key(unsigned slot) const noexcept { return {hash_[slot].load(std::memory_order_acquire)}; }
  WEIR_INLINE Nanos tat(unsigned slot) const noexcept {
    return {static_cast<std::int64_t>(tat_[slot].load(std::memory_order_acquire) & kTimeBits)};
  }
  Slot slot(unsigned at) const noexcept {
    return {hash_[at].load(std::memory_order_relaxed), tat_[at].load(std::memory_order_relaxed) & kTimeBits};
  }
  WEIR_INLINE bool overflowed() const noexcept { return (tat_[1].load(std::memory_order_relaxed) & kOverflowed) != 0; }

  // Held for tens of nanoseconds; by a rebuild of the segment, tens of microseconds.
  WEIR_INLINE void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  WEIR_INLINE bool try_lock() noexcept { return (tat_[0].fetch_or(kLock, std::memory_order_acquire) & kLock) == 0; }
  WEIR_INLINE void unlock() noexcept {
    tat_[0].store(tat_[0].load(std::memory_order_relaxed) & ~kLock, std::memory_order_release);
  }
  bool locked() const noexcept { return (tat_[0].load(std::memory_order_relaxed) & kLock) != 0; }

  // The rest REQUIRES: the caller holds the lock, or nobody else can see the line.

  // The slot's key stays the same.
  WEIR_INLINE void set_tat(unsigned slot, Nanos tat) noexcept {
    tat_[slot].store(static_cast<std::uint64_t>(tat.v) | marks(slot), std::memory_order_release);
  }
  // Hash first to 0, then the TAT, then the new hash (see above).
  void set(unsigned slot, KeyHash key, Nanos tat) noexcept {
    hash_[slot].store(0, std::memory_order_relaxed);
    set_tat(slot, tat);
    hash_[slot].store(key.v, std::memory_order_release);
  }
  void clear(unsigned slot) noexcept {
    hash_[slot].store(0, std::memory_order_relaxed);
    set_tat(slot, {0});
  }
  void set_overflowed() noexcept {
    tat_[1].store(tat_[1].load(std::memory_order_relaxed) | kOverflowed, std::memory_order_release);
  }
  // All four at once. The line stays locked.
  void rewrite(const std::array<Slot, kSlots>& slots, bool overflowed) noexcept {
    for (auto& hash : hash_) hash.store(0, std::memory_order_relaxed);
    for (unsigned i = 0; i < kSlots; ++i) {
      const std::uint64_t marks = (i == 0 ? kLock : 0) | (i == 1 && overflowed ? kOverflowed : 0);
      tat_[i].store(slots[i].tat | marks, std::memory_order_release);
      hash_[i].store(slots[i].hash, std::memory_order_release);
    }
  }

 private:
  // Not the sign bit: gcc 12 would make a loop of compare-and-exchange of what is one `lock bts` here.
  static constexpr std::uint64_t kLock = std::uint64_t{1} << 62;
  static constexpr std::uint64_t kOverflowed = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kTimeBits = kLock - 1;

  std::uint64_t marks(unsigned slot) const noexcept { return tat_[slot].load(std::memory_order_relaxed) & ~kTimeBits; }
  // The holder's thread may have been preempted: it gets a turn after a while.
  [[gnu::noinline]] void wait() noexcept {
    unsigned spins = 0;
    do {
      while (locked()) {
        if (++spins % 128 == 0)
          std::this_thread::yield();
        else
          spin_pause();
      }
    } while (!try_lock());
  }

  std::array<std::atomic<std::uint64_t>, kSlots> tat_;
  std::array<std::atomic<std::uint64_t>, kSlots> hash_;
};

static_assert(sizeof(KeyLine) == 64, "a look-up is one cache line");
static_assert(kTimeMax.v < std::int64_t{1} << 62, "a TAT leaves two bits to the marks");

// Held to the end of the scope.
class KeyLineLock {
 public:
  WEIR_INLINE explicit KeyLineLock(KeyLine& line) noexcept : line_(&line) { line.lock(); }
  KeyLineLock(KeyLine& line, std::try_to_lock_t) noexcept : line_(line.try_lock() ? &line : nullptr) {}
  KeyLineLock(const KeyLineLock&) = delete;
  KeyLineLock& operator=(const KeyLineLock&) = delete;
  WEIR_INLINE ~KeyLineLock() {
    if (line_ != nullptr) line_->unlock();
  }
  explicit operator bool() const noexcept { return line_ != nullptr; }

 private:
  KeyLine* line_;
};

}  // namespace weir
