// Levels that owners tell each other: their bytes, which are believed, and who has to hear them.
// Shows R37, R56 of doc/requirements.md.
#include "weir/owner_levels.hpp"

#include <algorithm>
#include <set>

#include "cases.hpp"

namespace weir::test {
namespace {

std::vector<OwnerLevel> read(std::string_view bytes, std::size_t most = 100) {
  std::vector<OwnerLevel> levels;
  REQUIRE(for_each_level(bytes, most, [&](const OwnerLevel& level) { levels.push_back(level); }));
  return levels;
}

bool refused(std::string_view bytes, std::size_t most) {
  bool visited = false;
  return !for_each_level(bytes, most, [&](const OwnerLevel&) { visited = true; }) && !visited;
}

std::set<std::size_t> heirs(const OwnersChange& change, KeyHash key) {
  std::set<std::size_t> places;
  change.for_each_heir(key, [&](std::size_t place) { REQUIRE(places.insert(place).second); });
  return places;
}

}  // namespace

TEST_CASE("levels come out as they went in", "[owner_levels]") {
  for_cases([](Rng& rng) {
    std::vector<OwnerLevel> levels;
    std::string bytes;
    for (std::int64_t i = draw(rng, 0, 20); i > 0; --i) {
      levels.push_back(
          {{static_cast<std::uint32_t>(draw(rng, 1, UINT32_MAX))}, {rng() | 1}, {draw(rng, 1, kTimeMax.v)}});
      append_level(bytes, levels.back());
    }
    CHECK(bytes.size() == levels.size() * OwnerLevel::kBytes);
    CHECK(read(bytes) == levels);
  });
}

TEST_CASE("their bytes are the same on all machines", "[owner_levels]") {
  std::string bytes;
  append_level(bytes, {{0x04030201}, {0x0c0b0a0908070605}, {0x14131211100f0e0d}});
  for (std::size_t i = 0; i < bytes.size(); ++i) CHECK(static_cast<std::size_t>(bytes[i]) == i + 1);
}

TEST_CASE("too many of them, or part of one, are none", "[owner_levels]") {
  std::string bytes;
  for (int i = 0; i < 3; ++i) append_level(bytes, {{1}, {2}, {3}});
  CHECK(read(bytes, 3).size() == 3);
  CHECK(refused(bytes, 2));
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    if (size % OwnerLevel::kBytes != 0) CHECK(refused(std::string_view(bytes).substr(0, size), 3));
  }
  CHECK(read("").empty());
}

TEST_CASE("levels of no limiter, no key or no time are left out, the others are not", "[owner_levels]") {
  std::string bytes;
  const OwnerLevel good{{1}, {2}, {3}};
  for (const OwnerLevel& level : {OwnerLevel{{0}, {2}, {3}}, OwnerLevel{{1}, {0}, {3}}, OwnerLevel{{1}, {2}, {0}},
                                  OwnerLevel{{1}, {2}, {-1}}, OwnerLevel{{1}, {2}, kTimeMax + Nanos{1}}, good}) {
    append_level(bytes, level);
  }
  CHECK(read(bytes) == std::vector<OwnerLevel>{good});
}

TEST_CASE("a level that no clock explains is not believed", "[owner_levels]") {
  const Policy policy{{10}, {1'000'000'000}};  // full: 10 s
  const auto at = [&](std::int64_t seconds) {
    return OwnerLevel{{1}, {2}, kBase + Nanos{seconds * 1'000'000'000}}.plausible(policy, kBase);
  };
  CHECK(at(-1'000'000));
  CHECK(at(10));
  CHECK(at(20 * OwnerLevel::kDebts));
  CHECK_FALSE(at(20 * OwnerLevel::kDebts + 1));
}

TEST_CASE("when a node joins it hears of each key that it owns now, or is the backup of, and of no other",
          "[owner_levels]") {
  for_cases([](Rng& rng) {
    OwnersChange change;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(draw(rng, 1, 7)); ++i) change.nodes.push_back({i * 7 + 1});
    change.joined = true;
    change.changed =
        change.nodes[static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(change.nodes.size()) - 1))];
    const KeyHash key{rng()};
    const Owners owners = owners_of(change.nodes, key);
    std::set<std::size_t> due;
    for (const std::size_t place : {owners.first, owners.second}) {
      if (place != Owners::kNobody && change.nodes[place] == change.changed) due.insert(place);
    }
    CHECK(heirs(change, key) == due);
  });
}

TEST_CASE("when a node leaves or dies, a key's next owner and backup know its level", "[owner_levels]") {
  for_cases([](Rng& rng) {
    std::vector<NodeId> before;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(draw(rng, 2, 7)); ++i) before.push_back({i * 7 + 1});
    OwnersChange change;
    change.changed = before[static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(before.size()) - 1))];
    for (const NodeId node : before) {
      if (node != change.changed) change.nodes.push_back(node);
    }
    const KeyHash key{rng()};
    const Owners had = owners_of(before, key);
    const Owners has = owners_of(change.nodes, key);
    for (const bool in_order : {true, false}) {
      // A node that dies tells nobody.
      std::set<NodeId> know, told;
      for (const std::size_t place : {had.first, had.second}) {
        if (place != Owners::kNobody && before[place] != change.changed) know.insert(before[place]);
      }
      const bool held = before[had.first] == change.changed ||
                        (had.second != Owners::kNobody && before[had.second] == change.changed);
      for (const NodeId self : before) {
        if (self == change.changed && !in_order) continue;
        if (self != change.changed && !know.contains(self)) continue;  // it has nothing to tell
        OwnersChange its = change;
        its.self = self;
        for (const std::size_t place : heirs(its, key)) told.insert(change.nodes[place]);
      }
      if (!held) CHECK(told.empty());
      know.insert(told.begin(), told.end());
      for (const std::size_t place : {has.first, has.second}) {
        if (place != Owners::kNobody) CHECK(know.contains(change.nodes[place]));
      }
    }
  });
}

}  // namespace weir::test
