// owners: which node decides a key of a limiter with `scope => exact`, and which one stands by.
//
// Rendezvous hashing (Thaler and Ravishankar): every node has a weight for every key, a hash of both. Of the nodes that
// are there the heaviest owns the key, the next one stands by. Each node finds the same without asking. When a node
// goes, its keys alone move, each to the one that stood by; when one comes, those alone that it now owns.
//
// Of two equal weights, one in 2^64 pairs, the greater number counts: the order is total, so two nodes that know of
// each other never both own a key.
//
// Thread safety: pure functions. Complexity: linear in the nodes, about 2 ns each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

// The finaliser of splitmix64 over both: every bit of either moves every bit of the weight.
constexpr std::uint64_t rendezvous_weight(NodeId node, KeyHash key) noexcept {
  std::uint64_t x = key.v ^ ((std::uint64_t{node.v} + 1) * 0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Their places among the nodes; kNobody where there are too few.
struct Owners {
  static constexpr std::size_t kNobody = SIZE_MAX;
  std::size_t first = kNobody;
  std::size_t second = kNobody;
};

// REQUIRES: no node is there twice.
constexpr Owners owners_of(std::span<const NodeId> nodes, KeyHash key) noexcept {
  using Weight = std::pair<std::uint64_t, NodeId>;
  Owners owners;
  Weight most, next;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Weight weight{rendezvous_weight(nodes[i], key), nodes[i]};
    if (owners.first == Owners::kNobody || weight > most) {
      owners.second = owners.first;
      next = most;
      owners.first = i;
      most = weight;
    } else if (owners.second == Owners::kNobody || weight > next) {
      owners.second = i;
      next = weight;
    }
  }
  return owners;
}

}  // namespace weir
