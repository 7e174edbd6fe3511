// owner_levels: levels of keys that nodes tell each other under `scope => exact`: to the backup owner of a key, and to
// the new owners when a node joins or leaves.
//
//     on the wire   20 bytes each: limiter's number (32 bits), key's hash (64), TAT (64), little-endian
//
//   A level that comes raises the key's here, never lowers it. One that can't be is left out: of no limiter, of key 0,
//   or so high that no clock explains it.
//
// Thread safety: values. Complexity: `for_each_heir` linear in the nodes; the rest constant. Nothing throws but for
// want of memory.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir/machine.hpp"
#include "weir/owners.hpp"
#include "weir/units.hpp"

namespace weir {

struct OwnerLevel {
  static constexpr std::size_t kBytes = 20;
  // Levels above so many buckets, each filled by a clock so far ahead, are none: they would deny for as long.
  static constexpr std::int64_t kDebts = 16;
  static constexpr Nanos kAhead{10'000'000'000};

  LimiterId limiter;
  KeyHash key;
  Nanos tat;

  bool valid() const noexcept { return limiter.v != 0 && key.v != 0 && tat.v > 0 && tat <= kTimeMax; }
  bool plausible(const Policy& policy, Nanos now) const noexcept {
    const Nanos full = policy.capacity * policy.interval;
    return (tat.v - now.v) / kDebts <= full.v + kAhead.v;
  }
  friend bool operator==(const OwnerLevel&, const OwnerLevel&) = default;
};

inline void append_level(std::string& bytes, const OwnerLevel& level) {
  static_assert(std::endian::native == std::endian::little, "levels are little-endian on the wire");
  std::array<char, OwnerLevel::kBytes> wire;
  std::memcpy(wire.data(), &level.limiter.v, 4);
  std::memcpy(wire.data() + 4, &level.key.v, 8);
  std::memcpy(wire.data() + 12, &level.tat.v, 8);
  bytes.append(wire.data(), wire.size());
}

// Calls visit(level) for each valid level. False, without a call, if these are no levels, or more than `most`.
template <class Visit>
bool for_each_level(std::string_view bytes, std::size_t most, Visit visit) {
  if (bytes.size() % OwnerLevel::kBytes != 0 || bytes.size() > most * OwnerLevel::kBytes) return false;
  for (std::size_t at = 0; at < bytes.size(); at += OwnerLevel::kBytes) {
    OwnerLevel level;
    std::memcpy(&level.limiter.v, bytes.data() + at, 4);
    std::memcpy(&level.key.v, bytes.data() + at + 4, 8);
    std::memcpy(&level.tat.v, bytes.data() + at + 12, 8);
    if (level.valid()) visit(level);
  }
  return true;
}

// Who is to be told of a key's level when the node `changed` has joined the others or left them.
struct OwnersChange {
  std::vector<NodeId> nodes;  // after it
  NodeId self, changed;
  bool joined = false;

  // Calls tell(place among the nodes).
  template <class Tell>
  void for_each_heir(KeyHash key, Tell tell) const {
    const Owners owners = owners_of(nodes, key);
    if (joined) {
      for (const std::size_t place : {owners.first, owners.second})
        if (place != Owners::kNobody && nodes[place] == changed) tell(place);
      return;
    }
    // Only keys that it owned, or was the backup of, have a new owner or backup. What the node had that left itself, it
    // tells to both.
    if (owners.first == Owners::kNobody || !held_by_changed(owners, key)) return;
    const bool was_own = self == changed && weight(changed, key) > weight(nodes[owners.first], key);
    if (was_own) tell(owners.first);
    if (owners.second != Owners::kNobody && (was_own || nodes[owners.first] == self)) tell(owners.second);
  }

 private:
  using Weight = std::pair<std::uint64_t, NodeId>;
  static Weight weight(NodeId node, KeyHash key) noexcept { return {rendezvous_weight(node, key), node}; }
  bool held_by_changed(const Owners& owners, KeyHash key) const noexcept {
    return owners.second == Owners::kNobody || weight(changed, key) > weight(nodes[owners.second], key);
  }
};

}  // namespace weir
