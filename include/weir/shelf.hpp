// shelf: births that can't be counted yet, because this node doesn't know their limiter, or not in that version.
//
//   oldest  [subject set] [subject set] ...  newest        32 bytes each, and a block for a set of several intervals
//
// Their records were noted as seen: nobody asks for them again. When the limiter is put, its births are taken from here
// and counted. State copies carry what lies here, as entries of its segment, so that a node's vector stays true for the
// state that it hands on.
//
// Past its limit the oldest births are dropped and counted as lost. (A copy would not bring them: a node that learns of
// a limiter late has restarted, as a rule, and took a copy of all then. And the oldest births expire first.)
//
// Thread safety: none. Complexity: `put` constant; the others linear in what lies here (at most some 30,000 sets).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>

#include "weir/frame.hpp"
#include "weir/keys.hpp"

namespace weir {

class Shelf {
 public:
  using Visit = std::function<void(const Subject&, std::span<const Interval>)>;

  explicit Shelf(std::size_t most_bytes) : most_(most_bytes) {}

  // REQUIRES: births.size() <= kIntervalCap.
  void put(const Subject& subject, std::span<const Interval> births);
  // Takes out what is there of the limiter's versions up to this one, the oldest first.
  void take(LimiterId limiter, std::uint32_t version, const Visit& visit);
  void drop(LimiterId limiter);
  void for_each(std::size_t segment, const Visit& visit) const;
  void clear(std::size_t segment);

  std::size_t held() const noexcept { return bytes_; }
  std::uint64_t lost() const noexcept { return lost_; }

 private:
  struct Entry {
    Subject subject;
    StoredSet set;
    std::size_t bytes() const noexcept { return sizeof(Entry) + set.heap_bytes(); }
  };

  std::size_t most_;
  std::size_t bytes_ = 0;
  std::uint64_t lost_ = 0;
  std::deque<Entry> entries_;
};

}  // namespace weir
