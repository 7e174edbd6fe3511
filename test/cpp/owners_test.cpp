// Shows R37 of doc/requirements.md.
// Owners of keys: spread evenly, the same on every node, and moved only where a node came or went.
#include "weir/owners.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "catch.hpp"
#include "weir/siphash.hpp"

using namespace weir;

namespace {

constexpr int kKeys = 20000;

// As key hashes are: spread over 64 bits. The nodes' numbers may lie side by side.
KeyHash key(int n) {
  const std::uint8_t bytes[] = {static_cast<std::uint8_t>(n), static_cast<std::uint8_t>(n >> 8)};
  return siphash13(SipKey{}, bytes, 1);
}

std::vector<NodeId> some_nodes(std::uint32_t count) {
  std::vector<NodeId> nodes;
  for (std::uint32_t i = 0; i < count; ++i) nodes.push_back({i * i});
  return nodes;
}

NodeId first(const std::vector<NodeId>& nodes, KeyHash of) { return nodes[owners_of(nodes, of).first]; }
NodeId second(const std::vector<NodeId>& nodes, KeyHash of) { return nodes[owners_of(nodes, of).second]; }

}  // namespace

TEST_CASE("owners: nobody of none, nobody stands by one", "[owners]") {
  REQUIRE(owners_of({}, key(1)).first == Owners::kNobody);
  const auto one = some_nodes(1);
  REQUIRE(owners_of(one, key(1)).first == 0);
  REQUIRE(owners_of(one, key(1)).second == Owners::kNobody);
}

TEST_CASE("owners: the same whatever the order of the nodes, and two different ones", "[owners]") {
  const auto nodes = some_nodes(7);
  auto reversed = nodes;
  std::reverse(reversed.begin(), reversed.end());
  for (int i = 0; i < kKeys; ++i) {
    REQUIRE(first(nodes, key(i)) == first(reversed, key(i)));
    REQUIRE(second(nodes, key(i)) == second(reversed, key(i)));
    REQUIRE(first(nodes, key(i)) != second(nodes, key(i)));
  }
}

TEST_CASE("owners: every node owns its part of the keys, and stands by for its part", "[owners]") {
  for (const std::uint32_t count : {2u, 5u, 30u}) {
    const auto nodes = some_nodes(count);
    std::vector<int> owned(count), by(count);
    for (int i = 0; i < kKeys; ++i) {
      const Owners owners = owners_of(nodes, key(i));
      ++owned[owners.first];
      ++by[owners.second];
    }
    // Five deviations of a fair draw.
    const double expected = kKeys / static_cast<double>(count);
    for (const auto& counts : {owned, by})
      for (const int n : counts) REQUIRE(std::abs(n - expected) < 5 * std::sqrt(expected));
  }
}

TEST_CASE("owners: only the keys of a node that goes move, to the one that stood by", "[owners]") {
  const auto nodes = some_nodes(6);
  const NodeId gone = nodes[2];
  auto rest = nodes;
  rest.erase(rest.begin() + 2);
  for (int i = 0; i < kKeys; ++i) {
    const NodeId before = first(nodes, key(i));
    REQUIRE(first(rest, key(i)) == (before == gone ? second(nodes, key(i)) : before));
    // And who comes back takes what it had.
    if (before != gone && second(nodes, key(i)) != gone) REQUIRE(second(rest, key(i)) == second(nodes, key(i)));
  }
}
