// Which state copies are asked for, given and taken, rule by rule, by frames by hand. (Decision 0007 says why.)
#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "told.hpp"

namespace weir::test {
namespace {

constexpr Nanos kHour = ms(3'600'000);
constexpr LimiterId kOther{1};

// All segments alike, from first to last.
void hear_segments(Told& told, const std::vector<VectorEntry>& vector, std::uint32_t donor = 1, std::size_t first = 0,
                   std::size_t last = Keys::kSegments - 1, std::uint64_t answer = 0) {
  for (std::size_t segment = first; segment <= last; ++segment) {
    CopyItem head = segment_of(segment, vector);
    head.answer = answer;
    told.hear_segment(head, donor);
  }
}

// The nodes that the last step asked for segments.
std::vector<std::uint32_t> asked(const Told& told) {
  std::vector<std::uint32_t> nodes;
  Frame frame;
  for (const Send& send : told.effects.sends) {
    REQUIRE(decode(told.effects.frames[send.frame], {0}, frame) == FrameError::none);
    for (const Item& item : frame.items) {
      if (std::holds_alternative<CopyRequestItem>(item)) nodes.push_back(send.to.v);
    }
  }
  return nodes;
}

// As long as nobody answers: who is asked, one after the other. The others give signs of life.
std::vector<std::uint32_t> asked_in_turn(Told& told, Nanos span) {
  std::vector<std::uint32_t> nodes;
  for (const Nanos until = told.now + span; told.now < until; told.now = told.now + ms(50)) {
    for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
    told.step(Tick{});
    for (const std::uint32_t node : asked(told)) nodes.push_back(node);
  }
  return nodes;
}

// Every second record of node 1, so that there are so many holes.
void hear_with_holes(Told& told, std::uint32_t node, std::uint64_t first, std::size_t holes) {
  for (std::size_t i = 0; i < holes; ++i) told.hear_record(node, {{node}, 1}, first + 2 * i, kKey);
}

// A node that has heard of all others.
struct Among : Told {
  explicit Among(const std::function<void(ReplicaConfig&)>& configure = {}) : Told(terms(100, kHour), configure) {
    for (std::uint32_t node = 1; node < 4; ++node) hear_beat(node, 1);
  }
};

}  // namespace

// Whom to ask.

TEST_CASE("a donor that has acknowledged what is in no log here comes before the others", "[replica][copy]") {
  Among told([](ReplicaConfig& config) { config.history.log_bytes = 0; });
  REQUIRE(told.asks(kKey, {50}));
  told.pass(ms(100));
  REQUIRE(told.replica.dropped() == 1);
  told.hear_beat(2, 1, 0, 1);
  told.hear(1, 1, GoneItem{{{1}, 1}, 1000});
  CHECK(asked(told) == std::vector<std::uint32_t>{2});
}

TEST_CASE("who told of what is missing is asked first, then the nearest", "[replica][copy]") {
  Among told;
  for (const std::uint32_t node : {2u, 3u}) {
    HeartbeatItem beat;
    beat.sent = told.now;
    beat.echo = told.now - ms(node == 2 ? 100 : 10);
    beat.receiver_incarnation = 1;
    told.hear(node, 1, beat);
  }
  told.hear(1, 1, GoneItem{{{1}, 1}, 1000});
  CHECK(asked(told) == std::vector<std::uint32_t>{1});
  const std::vector<std::uint32_t> next = asked_in_turn(told, ms(700));
  REQUIRE_FALSE(next.empty());
  CHECK(next.front() == 3);
}

TEST_CASE("a node whose births are refused is asked for no copy", "[replica][copy]") {
  Among told;
  const Interval ahead{told.now + kHour, {1}};
  FrameWriter frame(1);
  frame.record({{2}, 1}, false, 1, {kLimiter, 1, {7}}, {&ahead, 1});
  told.hear(2, frame);
  REQUIRE(told.replica.quarantined({2}));
  told.want_copy();
  const std::vector<std::uint32_t> nodes = asked_in_turn(told, ms(8000));
  CHECK(std::count(nodes.begin(), nodes.end(), 1) > 0);
  CHECK(std::count(nodes.begin(), nodes.end(), 2) == 0);
  CHECK(std::count(nodes.begin(), nodes.end(), 3) > 0);
}

TEST_CASE("the first segment says how many are asked for at a time", "[replica][copy]") {
  Among told;
  const auto asked_for = [&]() {
    std::uint64_t segments = 0;
    for (const CopyRequestItem& item : items<CopyRequestItem>(told.effects)) segments |= item.segments;
    return std::popcount(segments);
  };
  told.want_copy();
  CHECK(asked_for() == 1);
  const Interval one{told.now, {1}};
  for (std::uint16_t part = 0; part < 4; ++part) {  // of 1024 keys each
    CopyItem head = segment_of(0, {{{{1}, 1}, 1000}});
    head.part = part;
    head.last = part == 3;
    FrameWriter frame(1);
    frame.copy(head, 1024);
    for (std::uint64_t i = 0; i < 1024; ++i) frame.entry({kLimiter, 1, {part * 1024u + i + 1}}, {&one, 1});
    told.hear(1, frame);
  }
  CHECK(asked_for() == 16);
}

// What is given.

TEST_CASE("a node with more holes than a frame may say gives no copy", "[replica][copy]") {
  Among told;
  hear_with_holes(told, 1, 2, kRangesMax);
  told.hear(2, 1, CopyRequestItem{1});
  CHECK(count_items<CopyItem>(told.effects) == 1);
  told.pass(ms(200));
  hear_with_holes(told, 1, 2 + 2 * kRangesMax, 1);
  told.hear(2, 1, CopyRequestItem{1});
  CHECK(count_items<CopyItem>(told.effects) == 0);
}

TEST_CASE("nor does it give a segment that was copied with so many, but others", "[replica][copy]") {
  Among told;
  told.want_copy();
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    CopyItem head = segment_of(segment, {{{{1}, 1}, 1000}});
    if (segment == 63) {
      NackItem late{{{2}, 1}, {}};
      for (std::uint64_t i = 0; i < kRangesMax; ++i) late.ranges.push_back({200 + 2 * i, 200 + 2 * i});
      head.beyond = {late};
    }
    told.hear_segment(head);
  }
  REQUIRE_FALSE(told.replica.copying());
  hear_with_holes(told, 2, 2, 10);
  told.hear(3, 1, CopyRequestItem{1 | std::uint64_t{1} << 63});
  const std::vector<CopyItem> given = items<CopyItem>(told.effects);
  REQUIRE(given.size() == 1);
  CHECK(given[0].segment == 0);
}

TEST_CASE("a node that is joining gives nothing", "[replica][copy]") {
  Among told([](ReplicaConfig& config) { config.joining = true; });
  told.hear(1, 1, VectorItem{false, {{{{1}, 1}, 7}}, {}});
  hear_segments(told, {{{{1}, 1}, 7}}, 1, 0, 30);
  REQUIRE(told.replica.copying());
  told.hear(2, 1, CopyRequestItem{1});
  CHECK(count_items<CopyItem>(told.effects) == 0);
  hear_segments(told, {{{{1}, 1}, 7}}, 1, 31);
  REQUIRE_FALSE(told.replica.copying());
  told.hear(2, 1, CopyRequestItem{1});
  CHECK(count_items<CopyItem>(told.effects) == 1);
}

TEST_CASE("a node that was restarted is given what its last run was given a moment ago", "[replica][copy]") {
  Among told;
  told.hear(2, 1, CopyRequestItem{3});
  REQUIRE(count_items<CopyItem>(told.effects) == 2);
  told.hear(2, 1, CopyRequestItem{3});
  REQUIRE(count_items<CopyItem>(told.effects) == 0);
  told.hear(2, 2, CopyRequestItem{3});
  CHECK(count_items<CopyItem>(told.effects) == 2);
}

// What is taken.

TEST_CASE("segments of who wasn't asked are none", "[replica][copy]") {
  Among told;
  told.want_copy();
  hear_segments(told, {{{{1}, 1}, 1000}}, 2);
  CHECK(told.replica.copying());
  CHECK(told.replica.stats().copies == 0);
}

TEST_CASE("the last part of a segment is none without those before it", "[replica][copy]") {
  Among told;
  told.want_copy();
  CopyItem head = segment_of(0, {{{{1}, 1}, 1000}});
  head.part = 1;
  told.hear_segment(head);
  hear_segments(told, head.vector, 1, 1);
  CHECK(told.replica.copying());
  head.part = 0;
  told.hear_segment(head);
  CHECK_FALSE(told.replica.copying());
}

TEST_CASE("a state that is behind is not taken, nor asked for again at once; one that is ahead is", "[replica][copy]") {
  Among told;
  for (std::uint64_t seq = 1; seq <= 5; ++seq) told.hear_record(1, {{1}, 1}, seq, kKey);
  told.pass(ms(7000), 1);  // others' records are in no log any more
  told.hear(3, 1, GoneItem{{{3}, 1}, 1000});
  REQUIRE(told.replica.copying());
  SECTION("behind") {
    hear_segments(told, {{{{1}, 1}, 4}, {{{3}, 1}, 1000}}, 3);
    CHECK_FALSE(told.replica.copying());
    CHECK(told.replica.stats().copies == 0);
    CHECK(told.published(kKey) == 5);
    told.hear(3, 1, GoneItem{{{3}, 1}, 1000});
    CHECK_FALSE(told.replica.copying());
    told.pass(ms(1100), 1);
    told.hear(3, 1, GoneItem{{{3}, 1}, 1000});
    CHECK(told.replica.copying());
  }
  SECTION("ahead") {
    hear_segments(told, {{{{1}, 1}, 5}, {{{3}, 1}, 1000}}, 3);
    CHECK_FALSE(told.replica.copying());
    CHECK(told.replica.stats().copies == 1);
  }
}

TEST_CASE("a state that lacks own births that are in no log is waited for, as they may be on their way",
          "[replica][copy]") {
  Among told([](ReplicaConfig& config) { config.history.log_bytes = 0; });
  REQUIRE(told.asks(kKey, {50}));
  told.pass(ms(100));
  REQUIRE(told.published(kKey) == 50);
  told.want_copy();
  for (int second = 0; second < 4; ++second) {
    hear_segments(told, {{{{1}, 1}, 1000}});
    REQUIRE(told.replica.copying());
    CHECK(told.published(kKey) == 50);
    told.pass(ms(1050), 1);
  }
  hear_segments(told, {{{{0}, 1}, 1}, {{{1}, 1}, 1000}});
  CHECK_FALSE(told.replica.copying());
  CHECK(told.replica.stats().copies == 1);
  CHECK(told.replica.stats().lost_own_records == 0);
}

TEST_CASE("others' records that a copy lacks are added to it", "[replica][copy]") {
  Among told;
  told.hear_record(2, {{2}, 1}, 1, kKey, 3);
  told.want_copy();
  hear_segments(told, {{{{1}, 1}, 1000}});
  REQUIRE(told.replica.stats().copies == 1);
  CHECK(told.published(kKey) == 3);
  told.hear_record(2, {{2}, 1}, 1, kKey, 3);
  CHECK(told.published(kKey) == 3);
}

TEST_CASE("segments of answers before and after a key was carried don't fit together", "[replica][copy][carry]") {
  const std::uint64_t era = std::uint64_t{1} << 32;
  Among told;
  told.want_copy();
  SECTION("by the donor") {
    hear_segments(told, {{{{1}, 1}, 1000}}, 1, 0, 62);
    hear_segments(told, {{{{1}, 1}, 1000}}, 1, 63, 63, era);
    CHECK(told.replica.copying());
    hear_segments(told, {{{{1}, 1}, 1000}}, 1, 0, 63, era);
    CHECK_FALSE(told.replica.copying());
  }
  SECTION("here") {
    hear_segments(told, {{{{1}, 1}, 1000}}, 1, 0, 62);
    Carry carry;
    carry.limiter = kLimiter;
    carry.before = kKey;
    carry.key = {~kKey.v};
    told.replica.carry(carry, told.now);
    hear_segments(told, {{{{1}, 1}, 1000}}, 1, 63, 63);
    CHECK(told.replica.copying());
    hear_segments(told, {{{{1}, 1}, 1000}}, 1, 0, 62);
    CHECK_FALSE(told.replica.copying());
  }
}

TEST_CASE("a large state is put in place a few segments a step, also beside one's own", "[replica][copy]") {
  Among told;
  told.want_copy();
  const Interval one{told.now, {1}};
  for (std::uint64_t segment = 0; segment < Keys::kSegments; ++segment) {
    FrameWriter frame(1);
    frame.copy(segment_of(segment, {{{{1}, 1}, 1000}}), 1000);
    for (std::uint64_t i = 1; i <= 1000; ++i) frame.entry({kLimiter, 1, {segment << 58 | i}}, {&one, 1});
    told.hear(1, frame);
  }
  int steps = 1;
  std::size_t before = 0;
  for (; told.replica.copying(); ++steps) {
    REQUIRE(steps < 64);
    CHECK(told.replica.moves_segments());
    CHECK(told.replica.keys() - before <= 20'000);
    before = told.replica.keys();
    told.step(Tick{});
  }
  CHECK(steps >= 4);
  CHECK(told.replica.keys() == 64'000);
  CHECK(told.replica.stats().copies == 1);
}

TEST_CASE("births on the shelf count once when a copy brings them too", "[replica][copy]") {
  Among told;
  const Subject subject{kOther, 1, kKey};
  const Interval three{told.now, {3}};
  FrameWriter frame(1);
  frame.record({{2}, 1}, false, 1, subject, {&three, 1});
  told.hear(2, frame);
  REQUIRE(told.replica.stats().shelved == 1);
  told.want_copy();
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    const bool here = segment == Keys::segment_of(kKey);
    told.hear_segment(segment_of(segment, {{{{1}, 1}, 1000}, {{{2}, 1}, 1}}), 1,
                      here ? std::optional(std::pair{subject, three}) : std::nullopt);
  }
  REQUIRE(told.replica.stats().copies == 1);
  told.put(kOther, terms(100, kHour));
  CHECK(told.replica.published(kOther, kKey).weight() == Tokens{3});
}

TEST_CASE("a copy's births of a version that isn't known yet are counted when it is put", "[replica][copy]") {
  Among told;
  told.want_copy();
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    const bool here = segment == Keys::segment_of(kKey);
    const std::pair entry{Subject{kLimiter, 2, kKey}, Interval{told.now, {3}}};
    told.hear_segment(segment_of(segment, {{{{1}, 1}, 1000}}), 1, here ? std::optional(entry) : std::nullopt);
  }
  REQUIRE(told.replica.stats().copies == 1);
  CHECK(told.published(kKey) == 0);
  ReplicatedTerms next = terms(100, kHour);
  next.version = 2;
  told.put(kLimiter, next);
  CHECK(told.published(kKey) == 3);
}

}  // namespace weir::test
