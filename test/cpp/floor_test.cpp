// Floors against sets of records, and the order of states.
#include "weir/floor.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "cases.hpp"

namespace weir::test {
namespace {

constexpr OriginId kSelf{{2}, 1};
constexpr OriginId kFirst{{1}, 1};
constexpr OriginId kSecond{{1}, 2};
constexpr OriginId kThird{{3}, 1};
constexpr std::uint64_t kMost = 12;

using Records = std::set<std::pair<OriginId, std::uint64_t>>;

bool never_forgotten(const OriginId&) { return false; }

// Some records of each run: some from the first on, some beyond.
Records draw_records(Rng& rng) {
  Records records;
  for (const OriginId& id : {kFirst, kSecond, kThird}) {
    const std::int64_t upto = draw(rng, 0, 6);
    const int percent = static_cast<int>(draw(rng, 0, 1)) * 40;
    for (std::int64_t seq = 1; seq <= static_cast<std::int64_t>(kMost); ++seq) {
      if (seq <= upto || chance(rng, percent)) records.emplace(id, static_cast<std::uint64_t>(seq));
    }
  }
  return records;
}

Origins origins_of(const Records& records) {
  Origins origins;
  for (const auto& [id, seq] : records) origins.add(id).mark(seq);
  return origins;
}

Floor floor_of(const Records& records) {
  Floor floor;
  for (const Origin& origin : origins_of(records)) {
    floor.upto.push_back({origin.id, origin.upto});
    if (!origin.beyond.empty()) floor.beyond.push_back({origin.id, origin.beyond});
  }
  return floor;
}

Records covered_by(const Floor& floor) {
  Records records;
  for (const OriginId& id : {kFirst, kSecond, kThird}) {
    for (std::uint64_t seq = 1; seq <= kMost; ++seq) {
      if (floor.covers(id, seq)) records.emplace(id, seq);
    }
  }
  return records;
}

std::uint64_t count(const Records& records, const OriginId& id, std::uint64_t from, std::uint64_t to) {
  std::uint64_t number = 0;
  for (std::uint64_t seq = from + 1; seq <= to; ++seq) number += records.contains({id, seq}) ? 1u : 0u;
  return number;
}

}  // namespace

TEST_CASE("a floor covers, reaches and divides what its records do", "[floor]") {
  for_cases([](Rng& rng) {
    const Records records = draw_records(rng);
    const Floor floor = floor_of(records);
    REQUIRE(covered_by(floor) == records);
    for (const OriginId& id : {kFirst, kSecond, kThird}) {
      for (std::uint64_t from = 0; from < kMost; ++from) {
        REQUIRE(floor.reaches(id, from + 1) == (count(records, id, from, kMost) > 0));
        for (std::uint64_t to = from + 1; to <= kMost; ++to) {
          const std::uint64_t covered = count(records, id, from, to);
          REQUIRE(floor.divides(id, from, to) == (covered != 0 && covered != to - from));
          REQUIRE(floor.late(id, std::max(from, floor.upto_of(id)), to) ==
                  (to > floor.upto_of(id) ? count(records, id, std::max(from, floor.upto_of(id)), to) : 0));
        }
      }
    }
  });
}

TEST_CASE("two floors joined cover what one or the other does, all of a copy what each does", "[floor]") {
  for_cases([](Rng& rng) {
    Floors floors;
    Records any;
    Records every;
    Floor joined;
    for (std::uint8_t segment = 0; segment < 3; ++segment) {
      const Records records = draw_records(rng);
      Records both;
      std::set_intersection(records.begin(), records.end(), every.begin(), every.end(),
                            std::inserter(both, both.end()));
      every = segment == 0 ? records : both;
      any.insert(records.begin(), records.end());
      joined = joined.joined(floor_of(records));
      floors.set(segment, floor_of(records));
    }
    REQUIRE(covered_by(joined) == any);
    REQUIRE(covered_by(floors.common()) == every);
  });
}

TEST_CASE("a floor that has forgotten a run covers all of it, and of all runs before it", "[floor]") {
  const Floor floor{{{kSecond, kForgotten}}, {}};
  CHECK(floor.covers(kFirst, 1'000'000));
  CHECK(floor.covers(kSecond, 1'000'000));
  CHECK_FALSE(floor.covers({{1}, 3}, 1));
  CHECK_FALSE(floor.covers(kThird, 1));
  CHECK_FALSE(floor.divides(kFirst, 3, 9));
  Floors floors;
  floors.set(0, floor);
  floors.set(1, {{{kFirst, 4}}, {}});
  CHECK(floors.common().upto_of(kFirst) == 4);
  CHECK(floors.common().upto_of(kSecond) == 0);
}

TEST_CASE("floors are looked at by the segment of a key", "[floor]") {
  const KeyHash five{std::uint64_t{5} << 58 | 1};
  const KeyHash six{std::uint64_t{6} << 58 | 1};
  Floors floors;
  CHECK(floors.empty());
  CHECK_FALSE(floors.covers(five, kFirst, 1));
  floors.set(5, {{{kFirst, 4}}, {{kFirst, {{8, 9}}}}});
  CHECK(floors.covers(five, kFirst, 4));
  CHECK_FALSE(floors.covers(five, kFirst, 5));
  CHECK(floors.reaches(five, kFirst, 5));
  CHECK_FALSE(floors.reaches(five, kFirst, 10));
  CHECK_FALSE(floors.covers(six, kFirst, 4));
  CHECK_FALSE(floors.reaches(six, kFirst, 4));
  CHECK(floors.any_covers(kFirst, 9));
  CHECK_FALSE(floors.any_covers(kFirst, 7));
  CHECK(floors.any_divides(kFirst, 3, 5));
  CHECK_FALSE(floors.any_divides(kFirst, 2, 4));
  Floors later;
  later.set(5, {{{kFirst, 7}}, {}});
  later.set(6, {{{kFirst, 7}}, {}});
  floors.replace(later);
  CHECK_FALSE(floors.covers(five, kFirst, 8));
  CHECK(floors.covers(six, kFirst, 7));
}

TEST_CASE("neighbours that are alike are looked at once", "[floor]") {
  const Floor one{{{kFirst, 4}}, {{kFirst, {{8, 9}}}}};
  const Floor other{{{kFirst, 4}}, {{kFirst, {{8, 10}}}}};
  Floors floors;
  for (std::uint8_t segment = 0; segment < 10; ++segment) floors.set(segment, segment < 6 ? one : other);
  const auto unlike = floors.unlike();
  REQUIRE(unlike.size() == 2);
  CHECK(*unlike.front() == one);
  CHECK(*unlike.back() == other);
}

TEST_CASE("floors go when the vector says as much", "[floor]") {
  Origins origins;
  Origin& origin = origins.add(kFirst);
  Floors floors;
  floors.set(1, {{{kSelf, 99}, {kThird, 5}, {kFirst, 4}}, {}});  // runs that aren't known any more don't count
  floors.set(2, {{{kFirst, 1}}, {{kFirst, {{3, 3}, {6, 6}}}}});
  origin.advance(3);
  floors.drop(origins, kSelf);
  CHECK(floors.find(1) != nullptr);
  CHECK(floors.find(2) != nullptr);
  origin.advance(4);
  floors.drop(origins, kSelf);
  CHECK(floors.find(1) == nullptr);
  CHECK(floors.find(2) != nullptr);
  origin.advance(6);
  floors.drop(origins, kSelf);
  CHECK(floors.empty());
}

TEST_CASE("of two states at most one is better than the other, and none is better than itself", "[floor]") {
  for_cases([](Rng& rng) {
    const Records mine = draw_records(rng);
    const Records others = chance(rng, 20) ? mine : draw_records(rng);
    // As each of the two sees it: its own run is looked at for what it loses only.
    const bool here = is_ahead(floor_of(others), {}, origins_of(mine), kSelf, false, never_forgotten);
    const bool there = is_ahead(floor_of(mine), {}, origins_of(others), {{4}, 1}, false, never_forgotten);
    REQUIRE_FALSE((here && there));
    REQUIRE((here || there) == (mine != others && [&] {
              const auto totals = [](const Records& records) {
                std::map<OriginId, std::pair<std::uint64_t, std::uint64_t>> all;
                for (const OriginId& id : {kFirst, kSecond, kThird}) {
                  const std::uint64_t upto = floor_of(records).upto_of(id);
                  all[id] = {upto, count(records, id, upto, kMost)};
                }
                return all;
              };
              return totals(mine) != totals(others);
            }()));
  });
}

TEST_CASE("states are compared from the first run on that tells them apart", "[floor]") {
  const Records mine{{kFirst, 1}, {kFirst, 2}, {kThird, 1}};
  const auto better = [&](const Floor& theirs, bool loses = false) {
    return is_ahead(theirs, {}, origins_of(mine), kSelf, loses, never_forgotten);
  };
  CHECK(better({{{kFirst, 3}}, {}}));
  CHECK_FALSE(better({{{kFirst, 1}, {kThird, 9}}, {}}));
  CHECK(better({{{kFirst, 2}, {kThird, 2}}, {}}));
  CHECK(better({{{kFirst, 2}, {kThird, 1}}, {{kThird, {{5, 5}}}}}));
  CHECK_FALSE(better({{{kFirst, 2}, {kThird, 1}}, {}}));
  // Own births that would be lost count where the own run stands: before node 3's, after node 1's.
  CHECK(better({{{kFirst, 3}}, {}}, true));
  CHECK_FALSE(better({{{kFirst, 2}, {kThird, 2}}, {}}, true));
}

TEST_CASE("what would be added to a copy counts for it, and forgotten runs don't count", "[floor]") {
  const Records mine{{kFirst, 1}, {kFirst, 2}, {kThird, 1}};
  const Floor behind{{{kFirst, 1}, {kThird, 2}}, {}};
  CHECK_FALSE(is_ahead(behind, {}, origins_of(mine), kSelf, false, never_forgotten));
  CHECK(is_ahead(behind, origins_of({{kFirst, 2}}), origins_of(mine), kSelf, false, never_forgotten));
  CHECK(is_ahead(behind, {}, origins_of(mine), kSelf, false, [](const OriginId& id) { return id == kFirst; }));
  CHECK(is_ahead({{{kSecond, kForgotten}, {kThird, 2}}, {}}, {}, origins_of(mine), kSelf, false, never_forgotten));
}

}  // namespace weir::test
