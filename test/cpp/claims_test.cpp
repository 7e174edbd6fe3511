// Claims by themselves: who is waited for, what counts, and who goes first.
#include "weir/claims.hpp"

#include <map>

#include "cases.hpp"

namespace weir::test {
namespace {

constexpr LimiterId kOne{1};
constexpr LimiterId kTwo{2};
constexpr KeyHash kKey{77};
constexpr KeyHash kOtherKey{78};
constexpr NodeId kSelf{5};
constexpr Nanos kTimeout{100};

Ask ask(std::uint64_t ticket, Tokens hits, KeyHash key = kKey) { return {ticket, kOne, key, hits}; }

OthersClaim of(std::uint32_t node, std::uint64_t id, Tokens hits, Nanos time = kBase) {
  return {{node}, id, kOne, kKey, hits, time, time + kTimeout};
}

}  // namespace

TEST_CASE("a claim is decided when the last of those that were asked has acknowledged", "[claims]") {
  Claims claims;
  const auto id = claims.make(ask(9, {20}), kBase, kTimeout, {{1}, {2}}, 10);
  REQUIRE(id == 1);
  CHECK(claims.waits());
  CHECK_FALSE(claims.acknowledged({1}, 1));
  CHECK_FALSE(claims.acknowledged({1}, 1));  // twice is once
  CHECK_FALSE(claims.acknowledged({3}, 1));  // wasn't asked
  CHECK_FALSE(claims.acknowledged({2}, 2));  // another claim
  const auto answered = claims.acknowledged({2}, 1);
  REQUIRE(answered);
  CHECK(answered->asked.ticket == 9);
  CHECK(answered->asked.hits == Tokens{20});
  CHECK(answered->time == kBase);
  CHECK_FALSE(claims.waits());
  CHECK_FALSE(claims.acknowledged({2}, 1));  // it is no longer here
}

TEST_CASE("claims past the limit, and those that nobody can be asked for, are not made", "[claims]") {
  Claims claims;
  CHECK_FALSE(claims.make(ask(1, {20}), kBase, kTimeout, {}, 2));
  CHECK(claims.make(ask(2, {20}), kBase, kTimeout, {{1}}, 2));
  CHECK(claims.make(ask(3, {20}), kBase, kTimeout, {{1}}, 2));
  CHECK_FALSE(claims.make(ask(4, {20}), kBase, kTimeout, {{1}}, 2));
  CHECK(claims.take_expired(kBase + kTimeout));
  CHECK(claims.make(ask(5, {20}), kBase, kTimeout, {{1}}, 2));
}

TEST_CASE("claims expire at their deadline, the first one first, or when nobody is left to wait for", "[claims]") {
  Claims claims;
  CHECK(claims.deadline() == kNever);
  claims.make(ask(1, {20}), kBase, Nanos{200}, {{1}, {2}}, 10);
  claims.make(ask(2, {20}), kBase, Nanos{100}, {{1}}, 10);
  claims.make(ask(3, {20}), kBase, Nanos{300}, {{2}}, 10);
  CHECK(claims.deadline() == kBase + Nanos{100});
  CHECK_FALSE(claims.take_expired(kBase + Nanos{99}));
  claims.dont_wait_for({2});
  const auto alone = claims.take_expired(kBase + Nanos{99});
  REQUIRE(alone);
  CHECK(alone->asked.ticket == 3);
  CHECK_FALSE(claims.take_expired(kBase + Nanos{99}));
  const auto first = claims.take_expired(kBase + Nanos{200});
  const auto second = claims.take_expired(kBase + Nanos{200});
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->asked.ticket == 1);
  CHECK(second->asked.ticket == 2);
  CHECK_FALSE(claims.take_expired(kNever));
}

TEST_CASE("others' claims count for their key until their node ends them, or for their time", "[claims]") {
  Claims claims;
  CHECK(claims.of_others(kOne, kKey) == Tokens{0});
  CHECK(claims.count(of(1, 1, {20}), 10));
  CHECK(claims.count(of(2, 1, {30}, kBase + Nanos{50}), 10));
  CHECK_FALSE(claims.count(of(1, 1, {20}), 10));  // the frame came twice
  CHECK(claims.of_others(kOne, kKey) == Tokens{50});
  CHECK(claims.of_others(kOne, kOtherKey) == Tokens{0});
  CHECK(claims.of_others(kTwo, kKey) == Tokens{0});
  CHECK(claims.end({3}, 1).empty());
  CHECK(claims.end({1}, 2).empty());
  CHECK(claims.end_expired(kBase + kTimeout - Nanos{1}).empty());
  const auto expired = claims.end_expired(kBase + kTimeout);
  REQUIRE(expired.size() == 1);
  CHECK(expired.front().node == NodeId{1});
  CHECK(claims.of_others(kOne, kKey) == Tokens{30});
  const auto ended = claims.end({2}, 1);
  REQUIRE(ended.size() == 1);
  CHECK(ended.front().key == kKey);
  CHECK(claims.of_others(kOne, kKey) == Tokens{0});
}

TEST_CASE("others' claims have a limit of their own, and their sum does not overflow", "[claims]") {
  Claims claims;
  for (std::uint64_t id = 1; id <= 3 * Claims::kOthersTimes; ++id) CHECK(claims.count(of(1, id, {kSpanMax.v}), 3));
  CHECK_FALSE(claims.count(of(2, 1, {1}), 3));
  CHECK(claims.of_others(kOne, kKey) == Claims::kAskedMost);
  CHECK(claims.end_expired(kNever).size() == 3 * Claims::kOthersTimes);
  CHECK(claims.count(of(2, 1, {1}), 3));
}

TEST_CASE("a node that was removed is not waited for, and what it asked counts no more", "[claims]") {
  Claims claims;
  claims.make(ask(1, {20}), kBase, kTimeout, {{1}}, 10);
  claims.count(of(1, 1, {20}), 10);
  claims.count(of(2, 1, {30}), 10);
  claims.forget({1});
  CHECK(claims.of_others(kOne, kKey) == Tokens{30});
  CHECK(claims.take_expired(kBase));
}

TEST_CASE("all claims of a key that gets another hash go along, and no others", "[claims]") {
  Claims claims;
  claims.make(ask(1, {20}), kBase, kTimeout, {{1}}, 10);
  claims.make(ask(2, {7}, kOtherKey), kBase, kTimeout, {{1}}, 10);
  claims.count(of(1, 1, {30}), 10);
  claims.rename(kTwo, kKey, {99});
  CHECK(claims.of_others(kOne, kKey) == Tokens{30});
  claims.rename(kOne, kKey, {99});
  CHECK(claims.of_others(kOne, kKey) == Tokens{0});
  CHECK(claims.of_others(kOne, {99}) == Tokens{30});
  CHECK(claims.acknowledged({1}, 1)->asked.key == KeyHash{99});
  CHECK(claims.acknowledged({1}, 2)->asked.key == kOtherKey);
}

// Of all claims of a key, held at several nodes, each node lets the same ones go first.
TEST_CASE("older claims go before younger ones, by time, then by node, then as they were made", "[claims]") {
  for_cases([](Rng& rng) {
    Claims claims;
    std::map<std::uint64_t, Claim> own;  // by number
    std::vector<OthersClaim> others;
    for (int i = 0; i < 20; ++i) {
      const KeyHash key = chance(rng, 70) ? kKey : kOtherKey;
      const Tokens hits{draw(rng, 1, 1000)};
      const Nanos time = kBase + Nanos{draw(rng, 0, 5)};
      if (chance(rng, 50)) {
        const auto id = claims.make(ask(1, hits, key), time, kTimeout, {{1}}, 100);
        REQUIRE(id);
        own[*id] = {*id, ask(1, hits, key), time, time + kTimeout, {}};
      } else {
        const NodeId node{static_cast<std::uint32_t>(pick<int>(rng, {1, 4, 6, 9}))};
        others.push_back({node, static_cast<std::uint64_t>(i), kOne, key, hits, time, time + kTimeout});
        REQUIRE(claims.count(others.back(), 100));
      }
    }
    while (!own.empty()) {
      const auto next = std::next(own.begin(), draw(rng, 0, static_cast<std::int64_t>(own.size()) - 1));
      const auto claim = claims.acknowledged({1}, next->first);
      REQUIRE(claim);
      own.erase(next);
      Tokens before;
      for (const auto& [id, other] : own) {
        if (other.asked.key == claim->asked.key && id < claim->id) before = before + other.asked.hits;
      }
      for (const OthersClaim& other : others) {
        const bool older = other.time < claim->time || (other.time == claim->time && other.node < kSelf);
        if (other.key == claim->asked.key && older) before = before + other.hits;
      }
      REQUIRE(claims.before(*claim, kSelf) == before);
    }
  });
}

}  // namespace weir::test
