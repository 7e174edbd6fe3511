// A state copy as it comes, by itself: whom it asks, for what, which answers fit together, and what may be placed.
#include "weir/state_copy.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "cases.hpp"

namespace weir::test {
namespace {

constexpr NodeId kNear{1};
constexpr NodeId kFar{2};
constexpr NodeId kThird{3};
constexpr OriginId kRun{{9}, 4};
constexpr VectorEntry kNothing{};
constexpr Nanos kPatience{100};
constexpr Nanos kMillis{1'000'000};
constexpr std::size_t kMany = 1'000'000;

using Attempt = StateCopy::Attempt;
using Donors = std::vector<StateCopy::Donor>;

const Donors kThree{{kThird, kMillis, false}, {kFar, Nanos{9'000'000}, false}, {kNear, Nanos{500'000}, false}};

bool none_is_over(const OriginId&) { return false; }

// A part with `entries` keys, each with a birth that names the part and the key: so it can be told what was placed.
struct Sent {
  Frame frame;
  CopyItem item;
};
Sent part_of(std::uint8_t segment, std::uint64_t answer, std::uint16_t part, bool last, std::size_t entries,
             std::int64_t mark = 0) {
  Sent sent;
  sent.item.segment = segment;
  sent.item.answer = answer;
  sent.item.part = part;
  sent.item.last = last;
  sent.item.vector = {{kRun, answer}};
  for (std::size_t i = 0; i < entries; ++i) {
    const auto first = static_cast<std::uint32_t>(sent.frame.intervals.size());
    sent.frame.intervals.push_back({kBase + Nanos{mark + static_cast<std::int64_t>(i)}, {1}});
    sent.item.entries.push_back({{{1}, 1, KeyHash{std::uint64_t{segment} << 58 | i}}, {first, 1}});
  }
  return sent;
}

bool take(StateCopy& copy, const Sent& sent, Nanos now = kBase, std::size_t most = kMany) {
  return copy.take(sent.frame, sent.item, now, kPatience, most, none_is_over);
}

// Brings all segments whole, with so many keys each, by answers that ascend from `answer`.
void bring_all(StateCopy& copy, std::uint64_t answer, std::size_t entries = 1) {
  for (std::uint8_t segment = 0; segment < Keys::kSegments; ++segment) {
    if (copy.expects(copy.donor(), segment)) take(copy, part_of(segment, answer + segment, 0, true, entries));
  }
}

NodeId asked_of(StateCopy& copy, const Donors& donors) {
  REQUIRE(copy.attempt(kBase, kPatience, donors) == Attempt::ask);
  return copy.donor();
}

}  // namespace

TEST_CASE("the named donor is asked first, then the others from near to far, and all once more", "[state_copy]") {
  StateCopy copy(kFar, kNothing);
  for (int round = 0; round < 2; ++round) {
    CHECK(asked_of(copy, kThree) == kFar);
    CHECK(asked_of(copy, kThree) == kNear);
    CHECK(asked_of(copy, kThree) == kThird);
  }
}

TEST_CASE("donors that are equally near are asked in the order they are given in", "[state_copy]") {
  StateCopy copy({7}, kNothing);
  const Donors alike{{kThird, kMillis, false}, {kNear, kMillis, false}, {kFar, kMillis, false}};
  CHECK(asked_of(copy, alike) == kThird);
  CHECK(asked_of(copy, alike) == kNear);
  CHECK(asked_of(copy, alike) == kFar);
}

TEST_CASE("a donor that costs own births is asked only where there is no other", "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  Donors donors{{kNear, kMillis, true}, {kFar, Nanos{9'000'000}, false}, {kThird, kMillis, true}};
  for (int i = 0; i < 3; ++i) CHECK(asked_of(copy, donors) == kFar);
  donors[1].costly = true;
  std::set<std::uint32_t> asked;
  for (int i = 0; i < 3; ++i) asked.insert(asked_of(copy, donors).v);
  CHECK(asked == std::set<std::uint32_t>{1, 2, 3});
}

TEST_CASE("a refused donor is asked no more, and all it brought is to come anew", "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  asked_of(copy, kThree);
  take(copy, part_of(5, 1, 0, true, 3));
  copy.refuse_donor(kBase + kMillis);
  CHECK(copy.deadline() == kBase + kMillis);
  CHECK_FALSE(copy.begun());
  CHECK(copy.expects(copy.donor(), 5));
  for (int i = 0; i < 4; ++i) CHECK(asked_of(copy, kThree) != kNear);
  copy.refuse_donor(kBase);
  copy.attempt(kBase, kPatience, kThree);
  copy.refuse_donor(kBase);
  CHECK(copy.attempt(kBase, kPatience, kThree) == Attempt::nobody);
}

TEST_CASE("after so many attempts without progress it is given up; each waits longer than the last, up to eightfold",
          "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  for (std::uint32_t i = 0; i < StateCopy::kAttempts; ++i) {
    CHECK(copy.attempt(kBase, kPatience, {}) == Attempt::nobody);
    CHECK(copy.deadline() == kBase + Nanos{kPatience.v << std::min(i, 3u)});
  }
  CHECK(copy.attempt(kBase, kPatience, kThree) == Attempt::give_up);
}

TEST_CASE("any part that fits is progress: attempts count anew, and the deadline moves", "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  const Donors only{{kNear, kMillis, false}};
  for (std::uint32_t i = 0; i < StateCopy::kAttempts; ++i) asked_of(copy, only);
  REQUIRE(take(copy, part_of(0, 1, 0, false, 1), kBase + kMillis));
  CHECK(copy.deadline() == kBase + kMillis + kPatience);
  asked_of(copy, only);
  // One that doesn't fit is none.
  for (std::uint32_t i = 1; i < StateCopy::kAttempts; ++i) asked_of(copy, only);
  CHECK_FALSE(take(copy, part_of(0, 1, 7, false, 1), kBase + kMillis));
  CHECK(copy.attempt(kBase, kPatience, only) == Attempt::give_up);
}

TEST_CASE("a node that joins asks all, and then who answered first; later answers change nothing", "[state_copy]") {
  StateCopy copy = StateCopy::to_join(kBase);
  CHECK(copy.deadline() == kBase);
  REQUIRE(copy.attempt(kBase, kPatience, kThree) == Attempt::seek);
  CHECK(copy.found(kFar));
  CHECK_FALSE(copy.found(kThird));
  CHECK(asked_of(copy, kThree) == kFar);
}

TEST_CASE("a node that joins and hears no answer asks the nearest", "[state_copy]") {
  StateCopy copy = StateCopy::to_join(kBase);
  REQUIRE(copy.attempt(kBase, kPatience, kThree) == Attempt::seek);
  std::set<std::uint32_t> asked;
  for (int i = 0; i < 3; ++i) asked.insert(asked_of(copy, kThree).v);
  CHECK(asked.size() == 3);
  CHECK_FALSE(copy.found(kFar));  // it is no longer sought
}

TEST_CASE("one segment is asked for, and after it as many as are some 65536 keys", "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  asked_of(copy, kThree);
  CHECK(copy.more() == 1);
  CHECK(copy.more() == 0);  // it is on its way
  SECTION("small ones: all at once") {
    take(copy, part_of(0, 1, 0, true, 10));
    CHECK(copy.more() == ~std::uint64_t{1});
    CHECK(copy.more() == 0);
  }
  SECTION("large ones: some, and more when half of them have come") {
    const std::size_t large = StateCopy::kAskKeys / 4;
    take(copy, part_of(0, 1, 0, true, large));
    CHECK(copy.more() == 0b11110);
    take(copy, part_of(1, 2, 0, true, large));
    CHECK(copy.more() == 0);
    take(copy, part_of(2, 3, 0, true, large));
    CHECK(copy.more() == 0b1100000);
  }
  SECTION("larger than that: one by one") {
    take(copy, part_of(0, 1, 0, true, StateCopy::kAskKeys + 1));
    CHECK(copy.more() == 0b10);
    CHECK(copy.more() == 0);
  }
  SECTION("what was asked for in vain is asked for again") {
    take(copy, part_of(0, 1, 0, true, 10));
    copy.more();
    take(copy, part_of(1, 2, 0, true, 10));
    asked_of(copy, kThree);
    CHECK(copy.more() == ~std::uint64_t{3});
  }
}

TEST_CASE("parts are taken in turn, and those of one answer only", "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  REQUIRE(take(copy, part_of(0, 1, 0, false, 5)));
  CHECK_FALSE(take(copy, part_of(0, 1, 2, true, 5)));   // one is missing
  CHECK_FALSE(take(copy, part_of(0, 1, 3, false, 5)));  // two are
  CHECK_FALSE(take(copy, part_of(0, 2, 1, true, 5)));   // another answer
  CHECK_FALSE(copy.begun());
  CHECK(copy.keys_of(0) == 5);
  REQUIRE(take(copy, part_of(0, 1, 1, true, 7)));
  CHECK(copy.begun());
  CHECK(copy.keys_of(0) == 12);
  CHECK_FALSE(copy.expects(kNear, 0));
  CHECK(copy.expects(kNear, 1));
  CHECK_FALSE(copy.expects(kFar, 1));
}

TEST_CASE("a segment that begins anew replaces what had come of it", "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  REQUIRE(take(copy, part_of(0, 1, 0, false, 5)));
  REQUIRE(take(copy, part_of(0, 2, 0, false, 3)));
  CHECK(copy.keys_of(0) == 3);
  REQUIRE(take(copy, part_of(0, 2, 1, true, 3)));
  // (Of 11 that may be held, the 5 of before don't count.)
  CHECK(take(copy, part_of(1, 3, 0, true, 5), kBase, 11));
}

TEST_CASE("no more keys are held than may be, and what was placed makes room", "[state_copy]") {
  StateCopy copy = StateCopy::to_join(kBase);
  copy.found(kNear);
  asked_of(copy, kThree);
  REQUIRE(take(copy, part_of(0, 1, 0, true, 6), kBase, 10));
  CHECK_FALSE(take(copy, part_of(1, 2, 0, true, 5), kBase, 10));
  CHECK(take(copy, part_of(1, 2, 0, false, 4), kBase, 10));
  CHECK_FALSE(take(copy, part_of(1, 2, 1, true, 1), kBase, 10));
  const std::size_t held = copy.held();
  CHECK(held > 10 * (sizeof(Interval) + sizeof(EntryItem)));
  REQUIRE(copy.to_place() == 1);
  copy.place(0);
  CHECK(copy.held() < held);
  CHECK(take(copy, part_of(1, 2, 1, true, 6), kBase, 10));
}

TEST_CASE("with another donor unfinished segments begin anew, and those that came whole stay", "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  asked_of(copy, kThree);
  take(copy, part_of(0, 1, 0, true, 2));
  take(copy, part_of(1, 2, 0, false, 2));
  CHECK(asked_of(copy, kThree) == kNear);  // the same once more: what came stays
  CHECK(copy.keys_of(1) == 2);
  CHECK(asked_of(copy, kThree) == kThird);
  CHECK(copy.keys_of(0) == 2);
  CHECK(copy.keys_of(1) == 0);
  CHECK_FALSE(copy.expects(kThird, 0));
  CHECK_FALSE(copy.expects(kNear, 1));
  CHECK(take(copy, part_of(1, 8, 0, true, 2), kBase, 4));
}

TEST_CASE("answers of before and after a carry don't fit together: all begins anew", "[state_copy]") {
  const std::uint64_t era = std::uint64_t{77} << 32;
  StateCopy copy(kNear, kNothing);
  take(copy, part_of(0, 1, 0, true, 2));
  REQUIRE(take(copy, part_of(1, era | 2, 0, true, 2), kBase + kMillis));
  CHECK_FALSE(copy.begun());
  CHECK(copy.expects(kNear, 0));
  CHECK(copy.deadline() == kBase + kMillis);
  take(copy, part_of(0, era | 3, 0, true, 2));
  take(copy, part_of(1, era | 4, 0, true, 2));
  CHECK(copy.begun());
  CHECK_FALSE(copy.expects(kNear, 0));
}

TEST_CASE("a forgotten run is in a floor only if it is over", "[state_copy]") {
  for (const bool is_over : {true, false}) {
    StateCopy copy(kNear, kNothing);
    Sent sent = part_of(3, 1, 0, true, 1);
    sent.item.vector.push_back({{{10}, 2}, kForgotten});
    copy.take(sent.frame, sent.item, kBase, kPatience, kMany, [&](const OriginId& run) {
      CHECK(run == OriginId{{10}, 2});  // of others nobody asks
      return is_over;
    });
    REQUIRE(copy.floors().find(3) != nullptr);
    CHECK(copy.floors().find(3)->upto_of({{10}, 2}) == (is_over ? kForgotten : 0));
    CHECK(copy.floors().find(3)->upto_of(kRun) == 1);
  }
}

TEST_CASE("a copy from another than the named donor must bring what was missed", "[state_copy]") {
  StateCopy copy(kNear, {kRun, 80});
  asked_of(copy, kThree);
  bring_all(copy, 1);  // segment s is true for the records up to 1 + s
  REQUIRE(copy.complete());
  CHECK(copy.brings_missed());  // it told of more than this node has
  copy.again(kBase);
  asked_of(copy, kThree);
  CHECK(asked_of(copy, kThree) == kThird);
  bring_all(copy, 1);
  REQUIRE(copy.complete());
  CHECK_FALSE(copy.brings_missed());
  copy.again(kBase);
  bring_all(copy, 17);
  CHECK(copy.brings_missed());
  StateCopy any(kNear, kNothing);
  asked_of(any, kThree);
  asked_of(any, kThree);
  bring_all(any, 1);
  CHECK(any.brings_missed());
}

TEST_CASE("segments are placed once the copy is taken; those of a node that joins as they come", "[state_copy]") {
  StateCopy copy(kNear, kNothing);
  take(copy, part_of(0, 1, 0, true, 1));
  CHECK(copy.to_place() == 0);
  CHECK_FALSE(copy.moves());
  bring_all(copy, 1);
  CHECK(copy.to_place() == 0);
  copy.be_taken();
  CHECK(copy.to_place() == ~std::uint64_t{0});
  CHECK(copy.moves());

  StateCopy joins = StateCopy::to_join(kBase);
  joins.found(kNear);
  asked_of(joins, kThree);
  take(joins, part_of(2, 1, 0, false, 1));
  CHECK(joins.to_place() == 0);
  take(joins, part_of(2, 1, 1, true, 1));
  CHECK(joins.to_place() == 4);
  const StateCopy::Segment placed = joins.place(2);
  CHECK(placed.parts.size() == 2);
  CHECK(placed.floor.upto_of(kRun) == 1);
  CHECK(joins.to_place() == 0);
  CHECK(joins.moves());
  CHECK(joins.true_for().find(2) != nullptr);
  CHECK_FALSE(joins.placed());
  // All anew: what is in place stays, with what it is true for.
  joins.again(kBase);
  CHECK_FALSE(joins.moves());
  CHECK(joins.floors().empty());
  CHECK(joins.true_for().find(2) != nullptr);
}

TEST_CASE("whatever is lost, doubled, late or from whomever: a segment is placed whole, as one donor gave it",
          "[state_copy]") {
  constexpr std::int64_t kPartEntries = 4;
  std::size_t finished = 0;
  for_cases([&](Rng& rng) {
    StateCopy copy = chance(rng, 50) ? StateCopy::to_join(kBase) : StateCopy(kNear, kNothing);
    std::vector<std::pair<NodeId, Sent>> on_the_way;
    std::uint64_t answers = 0;
    // Of each answer and segment, how many keys: as placed they have to be so many, all of that answer's.
    std::map<std::pair<std::uint64_t, std::uint8_t>, std::size_t> given;
    Nanos now = kBase;
    for (int step = 0; step < 4000 && !copy.placed(); ++step) {
      now = now + Nanos{10};
      if (now >= copy.deadline() || on_the_way.empty()) {
        const Attempt attempt = copy.attempt(now, kPatience, kThree);
        if (attempt == Attempt::give_up) break;
        if (attempt == Attempt::seek) copy.found(pick(rng, {kNear, kFar, kThird}));
      }
      if (draw(rng, 1, 400) == 1) copy.again(now);
      if (draw(rng, 1, 900) == 1) copy.refuse_donor(now);
      ++answers;
      for (std::uint64_t left = copy.more(); left != 0; left &= left - 1) {
        const auto segment = static_cast<std::uint8_t>(std::countr_zero(left));
        const auto parts = static_cast<std::uint16_t>(draw(rng, 1, 3));
        given[{answers, segment}] = parts * kPartEntries;
        for (std::uint16_t part = 0; part < parts; ++part) {
          if (chance(rng, 5)) continue;  // lost
          const auto mark = static_cast<std::int64_t>(answers * 1000 + part * kPartEntries);
          on_the_way.push_back({copy.donor(), part_of(segment, answers, part, part + 1 == parts, kPartEntries, mark)});
          if (chance(rng, 5)) on_the_way.push_back(on_the_way.back());
        }
      }
      for (std::size_t i = 0; i < 8 && !on_the_way.empty(); ++i) {
        const auto last = static_cast<std::int64_t>(on_the_way.size()) - 1;
        const auto at = static_cast<std::size_t>(chance(rng, 10) ? draw(rng, 0, last) : 0);
        const auto [from, sent] = on_the_way[at];
        on_the_way.erase(on_the_way.begin() + static_cast<std::ptrdiff_t>(at));
        if (copy.expects(from, sent.item.segment)) take(copy, sent, now);
      }
      if (copy.undecided()) copy.be_taken();
      for (std::uint64_t left = copy.to_place(); left != 0; left &= left - 1) {
        const auto segment = static_cast<std::uint8_t>(std::countr_zero(left));
        const std::size_t keys = copy.keys_of(segment);
        const StateCopy::Segment placed = copy.place(segment);
        const std::uint64_t answer = placed.parts.front().item.answer;
        std::set<std::int64_t> marks;
        for (const StateCopy::Part& part : placed.parts) {
          REQUIRE(part.item.answer == answer);
          for (const EntryItem& entry : part.item.entries) marks.insert(part.set(entry.set).front().start.v - kBase.v);
        }
        REQUIRE(marks.size() == given[std::pair(answer, segment)]);
        REQUIRE(marks.size() == keys);
        REQUIRE(*marks.begin() == static_cast<std::int64_t>(answer * 1000));
        REQUIRE(*marks.rbegin() == static_cast<std::int64_t>(answer * 1000 + keys - 1));
        REQUIRE(placed.floor.upto_of(kRun) == answer);
        REQUIRE(*copy.true_for().find(segment) == placed.floor);
      }
    }
    finished += copy.placed() ? 1 : 0;
    if (copy.placed()) CHECK(copy.held() == 0);
  });
  CHECK(finished > case_count() / 2);
}

}  // namespace weir::test
