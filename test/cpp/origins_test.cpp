// The vector against a set of numbers.
#include "weir/origins.hpp"

#include <map>
#include <set>

#include "cases.hpp"

namespace weir::test {
namespace {

constexpr OriginId kId{{1}, 1};

// What an origin should be: the numbers seen, and the greatest that was told of.
struct Model {
  std::set<std::uint64_t> seen;
  std::uint64_t known = 0;

  std::uint64_t upto() const {
    std::uint64_t upto = 0;
    while (seen.contains(upto + 1)) ++upto;
    return upto;
  }
  void check(const Origin& origin, std::uint64_t most) const {
    REQUIRE(origin.upto == upto());
    REQUIRE(origin.known == known);
    REQUIRE(origin.complete() == (upto() >= known));
    std::set<std::uint64_t> missing;
    for (const Range& range : origin.missing()) {
      REQUIRE(range.first <= range.last);
      for (std::uint64_t seq = range.first; seq <= range.last; ++seq) REQUIRE(missing.insert(seq).second);
    }
    for (std::uint64_t seq = 1; seq <= most; ++seq) {
      REQUIRE(origin.seen(seq) == seen.contains(seq));
      REQUIRE(missing.contains(seq) == (seq <= known && !seen.contains(seq)));
    }
    // Ascending, apart by more than 1, beyond the next number.
    std::uint64_t edge = origin.upto;
    for (const Range& range : origin.beyond) {
      REQUIRE(range.first > edge + 1);
      REQUIRE(range.last >= range.first);
      edge = range.last;
    }
  }
};

}  // namespace

TEST_CASE("an origin knows what was seen and what is missing", "[origins]") {
  for_cases([](Rng& rng) {
    constexpr std::uint64_t kMost = 60;
    Origin origin;
    Model model;
    for (int i = 0; i < 80; ++i) {
      const auto seq = static_cast<std::uint64_t>(draw(rng, 1, kMost));
      const std::int64_t what = draw(rng, 1, 100);
      if (what <= 85) {
        REQUIRE(origin.mark(seq) == model.seen.insert(seq).second);
        model.known = std::max(model.known, seq);
      } else if (what <= 90) {
        const Range range{seq, std::min(kMost, seq + static_cast<std::uint64_t>(draw(rng, 0, 8)))};
        REQUIRE(origin.mark(range));
        for (std::uint64_t each = range.first; each <= range.last; ++each) model.seen.insert(each);
        model.known = std::max(model.known, range.last);
      } else if (what <= 93) {
        origin.advance(seq / 4);
        for (std::uint64_t each = 1; each <= seq / 4; ++each) model.seen.insert(each);
        model.known = std::max(model.known, seq / 4);
      } else {
        origin.known = model.known = std::max(model.known, seq);
      }
      model.check(origin, kMost);
    }
  });
}

TEST_CASE("ranges beyond the edge are limited; what fills a gap is still taken", "[origins]") {
  Origin origin;
  for (std::uint64_t i = 1; i <= kBeyondMax; ++i) REQUIRE(origin.mark(i * 10));
  CHECK_FALSE(origin.mark(kBeyondMax * 10 + 10));
  CHECK_FALSE(origin.seen(kBeyondMax * 10 + 10));
  CHECK_FALSE(origin.mark(Range{kBeyondMax * 10 + 10, kBeyondMax * 10 + 20}));
  CHECK(origin.known == kBeyondMax * 10);
  CHECK(origin.mark(11));
  CHECK(origin.mark(1));
  CHECK(origin.mark(Range{95, 105}));
  CHECK(origin.upto == 1);
  CHECK(origin.missing().size() == kRangesMax);
  CHECK(origin.missing().front() == Range{2, 9});
  origin.advance(kBeyondMax * 10);
  CHECK(origin.complete());
  CHECK(origin.beyond.capacity() == 0);
}

TEST_CASE("a range as long as numbers go is noted at once", "[origins]") {
  constexpr auto kMost = static_cast<std::uint64_t>(kTimeMax.v);
  Origin origin;
  CHECK(origin.mark(Range{5, kMost}));
  CHECK(origin.seen(kMost));
  CHECK_FALSE(origin.seen(4));
  CHECK(origin.missing() == std::vector<Range>{{1, 4}});
  CHECK(origin.mark(Range{1, 4}));
  CHECK(origin.upto == kMost);
  CHECK(origin.beyond.empty());
}

TEST_CASE("origins are a map, in the order of their names", "[origins]") {
  for_cases([](Rng& rng) {
    Origins origins;
    std::map<OriginId, std::uint64_t> truth;
    for (int i = 0; i < 60; ++i) {
      const OriginId id{{static_cast<std::uint32_t>(draw(rng, 0, 4))}, static_cast<std::uint64_t>(draw(rng, 0, 4))};
      const std::int64_t what = draw(rng, 1, 100);
      if (what <= 60) {
        Origin& origin = origins.add(id);
        REQUIRE(origin.id == id);
        REQUIRE(origin.via == id.node);
        REQUIRE(origin.upto == truth[id]);
        origin.upto = truth[id] = static_cast<std::uint64_t>(i);
      } else if (what <= 90) {
        origins.erase(id);
        truth.erase(id);
      } else {
        origins.forget(id);
        std::erase_if(truth, [&](const auto& entry) {
          return entry.first.node == id.node && entry.first.incarnation <= id.incarnation;
        });
      }
      REQUIRE(origins.size() == truth.size());
      REQUIRE((origins.find(id) != nullptr) == truth.contains(id));
      auto expected = truth.begin();
      for (const Origin& origin : origins) {
        REQUIRE(origin.id == expected->first);
        REQUIRE(origin.upto == expected->second);
        ++expected;
      }
      REQUIRE(origins.held() >= origins.size() * sizeof(Origin));
    }
  });
}

}  // namespace weir::test
