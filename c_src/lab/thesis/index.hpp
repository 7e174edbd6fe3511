// index: from a key's hash to where the key's entry is.
//
//   slots_   a power of two of { key, entry }, open addressing with linear probing, at most 3/4 full
//
// Keys are hashes under a secret, so their low bits are the place to look at first. Removing moves later ones back, so
// there are no tombstones. A look-up costs one cache miss where a std::unordered_map costs three: the designs spend
// most of their time looking up the users of a frame.
//
// Thread safety: none. Complexity: constant on average; growth linear.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weir::thesis {

template <class Entry>
class Index {
 public:
  std::size_t size() const noexcept { return size_; }
  std::size_t heap() const noexcept { return slots_.capacity() * sizeof(Slot); }

  Entry* find(std::uint64_t key) const noexcept { return slots_.empty() ? nullptr : slots_[place(key)].entry; }
  void prefetch(std::uint64_t key) const noexcept {
    if (!slots_.empty()) __builtin_prefetch(&slots_[key & mask()]);
  }
  // REQUIRES: the key is not there; entry is not null.
  void insert(std::uint64_t key, Entry* entry) {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow();
    slots_[place(key)] = {key, entry};
    ++size_;
  }
  // REQUIRES: the key is there.
  void erase(std::uint64_t key) noexcept {
    std::size_t hole = place(key);
    for (std::size_t at = next(hole); slots_[at].entry != nullptr; at = next(at)) {
      // It may move back to the hole if its first place is not between the two.
      if (distance(slots_[at].key, at) < ((at - hole) & mask())) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = {};
    --size_;
  }
  template <class Visit>
  void each(Visit visit) const {
    for (const Slot& slot : slots_) {
      if (slot.entry != nullptr) visit(*slot.entry);
    }
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Entry* entry = nullptr;
  };

  std::size_t mask() const noexcept { return slots_.size() - 1; }
  std::size_t next(std::size_t at) const noexcept { return (at + 1) & mask(); }
  std::size_t distance(std::uint64_t key, std::size_t at) const noexcept { return (at - key) & mask(); }
  // Where the key is, or the empty slot where it would go.
  std::size_t place(std::uint64_t key) const noexcept {
    std::size_t at = key & mask();
    while (slots_[at].entry != nullptr && slots_[at].key != key) at = next(at);
    return at;
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.entry != nullptr) slots_[place(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace weir::thesis
