// Births of limiters that aren't known yet.
#include "weir/shelf.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"

namespace weir::test {
namespace {

using Seen = std::vector<std::pair<std::uint32_t, std::uint64_t>>;  // version, key

Seen taken(Shelf& shelf, std::uint32_t limiter, std::uint32_t version) {
  Seen seen;
  shelf.take({limiter}, version, [&](const Subject& subject, std::span<const Interval> births) {
    REQUIRE(births.size() == 1);
    seen.emplace_back(subject.version, subject.key.v);
  });
  return seen;
}

void put(Shelf& shelf, std::uint32_t limiter, std::uint32_t version, std::uint64_t key) {
  const Interval one{kBase, {1}};
  shelf.put({{limiter}, version, {key}}, {&one, 1});
}

}  // namespace

TEST_CASE("a shelf gives back what is of a limiter, up to a version, in its order", "[shelf]") {
  Shelf shelf(1000);
  put(shelf, 1, 1, 10);
  put(shelf, 2, 1, 20);
  put(shelf, 1, 3, 11);
  put(shelf, 1, 2, 12);
  CHECK(taken(shelf, 1, 2) == Seen{{1, 10}, {2, 12}});
  CHECK(taken(shelf, 1, 3) == Seen{{3, 11}});
  shelf.drop({2});
  CHECK(taken(shelf, 2, 9).empty());
  CHECK(shelf.held() == 0);
  CHECK(shelf.lost() == 0);
}

TEST_CASE("a full shelf loses the oldest, and counts them", "[shelf]") {
  Shelf shelf(320);
  for (std::uint64_t key = 1; key <= 25; ++key) put(shelf, 1, 1, key);
  CHECK(shelf.held() <= 320);
  CHECK(shelf.lost() == 15);
  const Seen left = taken(shelf, 1, 1);
  REQUIRE(left.size() == 10);
  CHECK(left.front().second == 16);
  const std::vector<Interval> several = {{kBase, {1}}, {kBase + Nanos{1000}, {1}}};
  for (int i = 0; i < 100; ++i) shelf.put({{1}, 1, {1}}, several);
  CHECK(shelf.held() <= 320);
}

TEST_CASE("a shelf is visited and cleared by segment", "[shelf]") {
  Shelf shelf(1000);
  put(shelf, 1, 1, std::uint64_t{5} << 58 | 1);
  put(shelf, 1, 1, std::uint64_t{6} << 58 | 1);
  int visited = 0;
  shelf.for_each(5, [&](const Subject&, std::span<const Interval>) { ++visited; });
  CHECK(visited == 1);
  shelf.clear(5);
  CHECK(taken(shelf, 1, 1) == Seen{{1, std::uint64_t{6} << 58 | 1}});
  CHECK(shelf.held() == 0);
}

}  // namespace weir::test
