// slots: small numbers for ids of 32 bits, and what belongs to each.
//
//   by_id    an open-addressing table of numbers + 1 (0: empty), at most half full, found by the id's hash
//   items    {id, value}, by number: a number stays that of its id until the id is erased, then the next id gets it
//
// The numbers depend on nothing but the order of calls. Thread safety: none. Complexity: `find` and `add` constant,
// `erase` linear. Memory: 4 bytes per id besides the item.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weir {

template <class Value>
class Slots {
 public:
  static constexpr std::size_t kMost = std::size_t{1} << 16;

  // Null if there is none. Pointers are valid until the next `add`.
  const Value* find(std::uint32_t id) const noexcept {
    if (by_id_.empty()) return nullptr;
    for (std::size_t at = home(id);; at = (at + 1) & (by_id_.size() - 1)) {
      if (by_id_[at] == 0) return nullptr;
      const Item& item = items_[by_id_[at] - 1u];
      if (item.id == id) return &item.value;
    }
  }
  Value* find(std::uint32_t id) noexcept { return const_cast<Value*>(std::as_const(*this).find(id)); }
  const Value& operator[](std::uint16_t number) const noexcept { return items_[number].value; }
  bool full() const noexcept { return used_ == kMost - 1; }

  // Adds make(number). REQUIRES: the id isn't there, !full().
  template <class Make>
  void add(std::uint32_t id, Make make) {
    assert(find(id) == nullptr && !full());
    if ((used_ + 1) * 2 > by_id_.size()) index(std::bit_ceil((used_ + 1) * 2));
    const auto number = static_cast<std::uint16_t>(free_.empty() ? items_.size() : free_.back());
    if (free_.empty()) {
      items_.push_back({id, true, make(number)});
    } else {
      items_[number] = {id, true, make(number)};
      free_.pop_back();
    }
    ++used_;
    enter(number);
  }
  void erase(std::uint32_t id) {
    const Value* const gone = find(id);
    if (gone == nullptr) return;
    std::size_t number = 0;
    while (&items_[number].value != gone) ++number;
    free_.push_back(static_cast<std::uint16_t>(number));
    items_[number] = {};
    --used_;
    index(by_id_.size());
  }
  std::size_t held() const noexcept {
    return items_.capacity() * sizeof(Item) + (by_id_.capacity() + free_.capacity()) * sizeof(std::uint16_t);
  }

 private:
  struct Item {
    std::uint32_t id = 0;
    bool used = false;
    Value value{};
  };

  std::size_t home(std::uint32_t id) const noexcept {
    return (id * std::uint64_t{0x9e3779b97f4a7c15u} >> 32) & (by_id_.size() - 1);
  }
  void enter(std::size_t number) noexcept {
    std::size_t at = home(items_[number].id);
    while (by_id_[at] != 0) at = (at + 1) & (by_id_.size() - 1);
    by_id_[at] = static_cast<std::uint16_t>(number + 1);
  }
  void index(std::size_t places) {
    by_id_.assign(places, 0);
    for (std::size_t number = 0; number < items_.size(); ++number) {
      if (items_[number].used) enter(number);
    }
  }

  std::vector<Item> items_;
  std::vector<std::uint16_t> by_id_;
  std::vector<std::uint16_t> free_;
  std::size_t used_ = 0;
};

}  // namespace weir
