// estate: what a node had admitted and not sent yet when it died, as another node tells it in its place.
//
//   tell     A node tells the next live one, its *buddy*, what it hasn't sent of hot keys. A tell is a copy: the buddy
//            keeps it and does not count it.
//   estate   When a node is declared dead (or is seen in a later run), its buddy publishes what it was told last, as a
//            record of its own: everyone counts that, until the dead node's next record of the key erases it.
//
// A copy is a register of (origin, key): replaced by a later tell, never added to. It says from which of its origin's
// records on the births come (`position`): they are in the first of these that is of the key, and in none before. So
//
//   rule R   a copy goes when a record of its key with that number or a later one is applied; and once one was, a copy
//            is refused.
//
// Each birth is counted at most once then, whoever is right about who is dead (doc/replication.md, decision 0014).
//
// On the wire an estate is a record, so that it is numbered, repaired, folded into chunks and copied like births:
//
//   intervals   {m, node + 1} {m + 1, incarnation} {m + 2, position} {m + 3, tell}  births...      m = kEstateMark
//
// No policy makes that a valid set of births, so nodes that know no estates count nothing.
//
// Thread safety: none. Complexity: look-ups constant expected. Memory: some 150 bytes a copy and its births, 80 a told
// key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weir/frame.hpp"
#include "weir/keys.hpp"

namespace weir {

struct Estate {
  OriginId origin;
  std::uint64_t position = 0;  // >= 1
  std::uint64_t tell = 0;      // the number of the origin's tell; of two the later one holds
  IntervalSet births;          // of one who has more than kEstateCap intervals, some are fused
};

inline constexpr std::size_t kEstateCap = kIntervalCap - 4;

// As births of a record, and back; nothing if they are none. REQUIRES: births.size() <= kEstateCap, numbers <=
// kTimeMax.
IntervalSet estate_record(const Estate& estate) noexcept;
std::optional<Estate> estate_of(std::span<const Interval> births) noexcept;
bool is_estate(std::span<const Interval> births) noexcept;

// The copies that a node holds of others' births.
class Estates {
 public:
  struct Place {
    KeyHash key;
    LimiterId limiter;
    OriginId origin;
  };
  struct Copy {
    std::uint64_t position = 0;
    std::uint64_t tell = 0;
    std::uint64_t first = 0;  // the tell that told the whole; later ones refer to it. 0: it came as an estate
    bool counted = false;
    bool published = false;  // this node has published it as it is
    StoredSet births;
  };

  explicit Estates(std::size_t most) : most_(most) {}

  bool empty() const noexcept { return copies_.empty(); }
  Copy* find(const Place& place) noexcept;
  // The copy that the origin's tell of that number was the first for.
  std::optional<Place> find(const OriginId& origin, std::uint64_t first) const;
  // Replaces what is there. False if there is no room.
  bool put(const Place& place, Copy&& copy);
  void erase(const Place& place);
  // Other births for a copy that is there; it goes if there are none.
  void set_births(const Place& place, const IntervalSet& births);
  // Calls over(place, copy) for all; those for which it returns true are erased. It may change copies.
  template <class Over>
  void erase_if(Over over) {
    for (auto at = copies_.begin(); at != copies_.end();) {
      auto& [origin, copy] = at->second;
      heap_ -= copy.births.heap_bytes();
      const bool gone = over(Place{at->first.key, at->first.limiter, origin}, copy);
      heap_ += copy.births.heap_bytes();
      at = gone ? erase(at) : std::next(at);
    }
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& [name, entry] : copies_) visit(Place{name.key, name.limiter, entry.first}, entry.second);
  }
  // Those of one key.
  template <class Visit>
  void for_each(LimiterId limiter, KeyHash key, Visit visit) const {
    const auto [from, to] = copies_.equal_range({key, limiter});
    for (auto at = from; at != to; ++at) visit(Place{key, limiter, at->second.first}, at->second.second);
  }
  std::size_t held() const noexcept;

 private:
  struct Name {
    KeyHash key;
    LimiterId limiter;
    friend bool operator==(const Name&, const Name&) = default;
  };
  struct Hash {
    std::size_t operator()(const Name& name) const noexcept {
      return name.key.v ^ name.limiter.v * 0x9e3779b97f4a7c15u;
    }
  };
  using Copies = std::unordered_multimap<Name, std::pair<OriginId, Copy>, Hash>;

  Copies::iterator at(const Place& place);
  Copies::iterator erase(Copies::iterator at);
  void forget_first(const OriginId& origin, const Copy& copy);

  std::size_t most_;
  std::size_t heap_ = 0;
  Copies copies_;
  std::map<OriginId, std::unordered_map<std::uint64_t, Name>> first_;
};

// What a node has told its buddy of its own unsent births. A key is here from its first tell on until all that may be
// told of is sent: so long some node may hold a copy.
class Tells {
 public:
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // limiter, key
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept { return key.second ^ key.first * 0x9e3779b97f4a7c15u; }
  };
  struct Told {
    std::uint64_t first = 0;  // the number of the tell that told the whole
    Tokens weight;            // of its unsent births the oldest so many are told; 0: the whole goes with the next tell
    Nanos end;                // when these end
    bool due = false;
  };

  explicit Tells(std::size_t most) : most_(most) {}

  bool empty() const noexcept { return told_.empty(); }
  Told* find(const Key& key) noexcept;
  // Some of the key's births are to be told: false if there is no room for another key.
  bool make_due(const Key& key);
  // At most so many keys, in the order in which they became due; they may have been forgotten meanwhile.
  std::vector<Key> take_due(std::size_t most);
  bool due() const noexcept { return next_due_ < due_.size(); }
  std::uint64_t number() noexcept { return ++made_; }
  void forget(const Key& key);
  // All is to be told anew: to another buddy, or to one that may have forgotten it.
  void again();
  void again(const Key& key);
  // The same, of what these tells began, in ascending order.
  void again(std::span<const std::uint64_t> firsts);
  void forget_limiter(LimiterId limiter);
  std::size_t held() const noexcept;

 private:
  std::size_t most_;
  std::uint64_t made_ = 0;
  std::unordered_map<Key, Told, Hash> told_;
  std::vector<Key> due_;
  std::size_t next_due_ = 0;
};

}  // namespace weir
