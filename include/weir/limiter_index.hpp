// limiter_index: limiters by name, alias and number, found without a lock.
//
//   slots   [ limiter | limiter | empty | limiter (gone) | ... ]      open addressing, linear probing
//
// One array serves all three: a slot holds an address, and the limiter itself says what it is called. A limiter that
// was removed keeps its slots, where it matches nothing any more; probing goes on past it. When half of the slots are
// used up, those that still count are laid out anew in another array, which is then published. The array of before is
// kept and taken for the next time: a reader that is still in it, and finds nothing, sees by the version that it looked
// in the wrong place, and looks again. So removing disturbs nobody, and nobody waits for a writer.
//
// INVARIANT: a slot is never emptied in the published array.
//
// Thread safety: `find` from any thread; `add` and `removed` take turns (the registry's mutex). Complexity: expected
// constant; `add` is linear in the limiters once in about as many calls. Exceptions: `add` may throw bad_alloc, and has
// changed nothing then.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "weir/key_line.hpp"

namespace weir {

class Limiter;

class LimiterIndex {
 public:
  enum class Kind : std::uint64_t { name, alias, number };

  LimiterIndex() { publish(fresh(kLeast)); }

  // The limiter for which is(limiter) holds, or null. `is` may be asked of any limiter, also of one that changes.
  template <class Is>
  Limiter* find(Kind kind, std::uint64_t key, Is is) const noexcept {
    for (;;) {
      const std::uint32_t version = version_.load(std::memory_order_acquire);
      const Slots& slots = *published_.load(std::memory_order_acquire);
      for (std::size_t i = slots.home(kind, key);; i = (i + 1) & slots.mask) {
        Limiter* const limiter = slots.at[i].load(std::memory_order_acquire);
        if (limiter == nullptr) break;
        if (is(*limiter)) return limiter;
      }
      if (version_.load(std::memory_order_seq_cst) == version) return nullptr;
      spin_pause();
    }
  }

  // `live(add)`: calls add(kind, key, limiter) for all that count, the new one left out. It's asked when there is no
  // room.
  template <class Live>
  void add(Kind kind, std::uint64_t key, Limiter* limiter, std::size_t entries, Live live) {
    Slots* slots = published_.load(std::memory_order_relaxed);
    if ((used_ + 1) * 2 > slots->mask + 1) {
      Slots* const other = fresh(std::bit_ceil((entries + 1) * 4));
      used_ = 0;
      live([&](Kind of, std::uint64_t its, Limiter* at) { put(*other, of, its, at); });
      publish(other);
      slots = other;
    }
    put(*slots, kind, key, limiter);
  }

 private:
  static constexpr std::size_t kLeast = 64;

  struct Slots {
    explicit Slots(std::size_t size) : mask(size - 1), at(new std::atomic<Limiter*>[size]()) {}
    const std::size_t mask;
    std::unique_ptr<std::atomic<Limiter*>[]> at;
    std::size_t home(Kind kind, std::uint64_t key) const noexcept {
      return static_cast<std::size_t>(((key + static_cast<std::uint64_t>(kind)) * 0x9e3779b97f4a7c15) >> 32) & mask;
    }
  };

  // An empty array that no reader begins to look in.
  Slots* fresh(std::size_t size) {
    size = size < kLeast ? kLeast : size;
    for (const auto& slots : all_) {
      if (slots->mask + 1 != size || slots.get() == published_.load(std::memory_order_relaxed)) continue;
      for (std::size_t i = 0; i < size; ++i) slots->at[i].store(nullptr, std::memory_order_release);
      return slots.get();
    }
    all_.push_back(std::make_unique<Slots>(size));
    return all_.back().get();
  }
  void publish(Slots* slots) noexcept {
    published_.store(slots, std::memory_order_seq_cst);
    version_.fetch_add(1, std::memory_order_seq_cst);
  }
  void put(Slots& slots, Kind kind, std::uint64_t key, Limiter* limiter) noexcept {
    std::size_t i = slots.home(kind, key);
    while (slots.at[i].load(std::memory_order_relaxed) != nullptr) i = (i + 1) & slots.mask;
    slots.at[i].store(limiter, std::memory_order_release);
    ++used_;
  }

  std::atomic<Slots*> published_{nullptr};
  std::atomic<std::uint32_t> version_{0};
  std::size_t used_ = 0;  // slots of the published array, those of limiters that are gone too
  std::vector<std::unique_ptr<Slots>> all_;
};

}  // namespace weir
