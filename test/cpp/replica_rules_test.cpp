// Rules of a replica one by one, by frames by hand: claims, runs, clocks, limits.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "told.hpp"

namespace weir::test {
namespace {

ReplicatedTerms claiming(std::int64_t capacity = 1000) {
  ReplicatedTerms how = terms(capacity, ms(3'600'000));
  how.large_hits = LargeHits::claim;
  return how;
}

void acknowledge(Told& told, std::uint64_t id) {
  for (std::uint32_t node = 1; node < 4; ++node) told.hear(node, 1, ClaimAckItem{id});
}

// The kinds of items in the frames for a node, frame by frame.
template <class One, class Other>
bool in_one_frame(const Effects& effects, std::uint32_t node) {
  Frame frame;
  return std::any_of(effects.sends.begin(), effects.sends.end(), [&](const Send& send) {
    REQUIRE(decode(effects.frames[send.frame], {0}, frame) == FrameError::none);
    const auto has = [&](auto is) { return std::any_of(frame.items.begin(), frame.items.end(), is); };
    return send.to.v == node && has([](const Item& item) { return std::holds_alternative<One>(item); }) &&
           has([](const Item& item) { return std::holds_alternative<Other>(item); });
  });
}

}  // namespace

TEST_CASE("a claim brings the asker's unsent births, its acknowledgement those of the asked", "[replica][claims]") {
  Told told(claiming());
  REQUIRE(told.asks(kKey, {10}));
  SECTION("asker") {
    told.step(Ask{2, kLimiter, kKey, {600}});
    CHECK(in_one_frame<RecordItem, ClaimItem>(told.effects, 1));
  }
  SECTION("asked") {
    told.hear(1, 1, ClaimItem{5, {kLimiter, 1, kKey}, {600}, told.now});
    CHECK(in_one_frame<RecordItem, ClaimAckItem>(told.effects, 1));
  }
  CHECK(told.replica.unsent(kLimiter, kKey).empty());
}

TEST_CASE("births that a table admitted before the limiter was put here are told", "[replica]") {
  Told told(terms(1000, ms(3'600'000)));
  const LimiterId late{7};
  for (int i = 0; i < 5000; ++i)
    told.replica.admitted({late, {static_cast<std::uint64_t>(i % 1024) << 50 | 1}, {3}, told.now, {0}}, told.now);
  told.pass(ms(1000));
  SECTION("the last ones, if there are many") {
    told.put(late, terms(1000, ms(3'600'000)));
    CHECK(told.replica.keys() == 1024);  // of 4096 births
    CHECK(told.replica.unsent(late, {1}).weight() == Tokens{3 * 4});
    CHECK(told.replica.stats().refused == 5000 - 4096);
  }
  SECTION("not those of one that was dropped, or of long ago") {
    GENERATE(0, 1) == 0 ? told.replica.drop_limiter(late) : told.pass(ms(12'000), 1);
    told.put(late, terms(1000, ms(3'600'000)));
    CHECK(told.replica.keys() == 0);
  }
}

TEST_CASE("how far a limit was exceeded is noted, whichever births are heard of last", "[replica]") {
  Told told(terms(10, ms(3'600'000)));
  told.hear_beat(1, 1);
  const auto here = [&] { told.replica.admitted({kLimiter, kKey, {4}, told.now, {0}}, told.now); };
  const auto there = [&] { told.hear_record(1, {{1}, 1}, 1, kKey, 9); };
  if (GENERATE(false, true)) {
    here();
    there();
  } else {
    there();
    here();
  }
  CHECK(told.replica.most_exceeded(kLimiter).exceeded == Tokens{3});
}

TEST_CASE("of two claims the older one is admitted, and the birth comes with its end", "[replica][claims]") {
  Told told(claiming());
  const bool mine_is_older = GENERATE(true, false);
  told.step(Ask{2, kLimiter, kKey, {600}});
  told.hear(1, 1, ClaimItem{9, {kLimiter, 1, kKey}, {600}, told.now + ms(mine_is_older ? 1 : -1)});
  acknowledge(told, 1);
  REQUIRE(told.effects.answers.size() == 1);
  CHECK(told.effects.answers[0].allowed == mine_is_older);
  CHECK(count_items<ClaimDoneItem>(told.effects) == 1);
  CHECK(in_one_frame<RecordItem, ClaimDoneItem>(told.effects, 2) == mine_is_older);
}

TEST_CASE("of two claims of one node the first one is admitted, whichever is answered first", "[replica][claims]") {
  Told told(claiming());
  told.step(Ask{2, kLimiter, kKey, {600}});
  told.step(Ask{3, kLimiter, kKey, {600}});
  acknowledge(told, 2);
  CHECK_FALSE(told.effects.answers.at(0).allowed);
  acknowledge(told, 1);
  CHECK(told.effects.answers.at(0).allowed);
}

TEST_CASE("the end of a claim ends no other node's claim of that number", "[replica][claims]") {
  Told told(claiming());
  for (const std::uint32_t node : {1u, 2u}) {
    told.hear(node, 1, ClaimItem{7, {kLimiter, 1, kKey}, {600}, told.now});
  }
  told.hear(2, 1, ClaimDoneItem{7});
  CHECK_FALSE(told.asks(kKey, {500}));
  told.hear(1, 1, ClaimDoneItem{7});
  told.step(Ask{2, kLimiter, kKey, {500}});
  CHECK(told.effects.answers.empty());  // it claims
}

TEST_CASE("claims have their limits: own ones, others', and of tomorrow", "[replica][claims]") {
  Told told(claiming(), [](ReplicaConfig& config) { config.max_claims = 1; });
  for (std::uint64_t id = 1; id <= 9; ++id) {
    told.hear(1, 1, ClaimItem{id, {kLimiter, 1, {id}}, {900}, told.now + ms(id == 1 ? 60'000 : 0)});
  }
  for (std::uint64_t id = 1; id <= 9; ++id) {
    told.step(Ask{id, kLimiter, {id}, {300}});
    const bool denied = !told.effects.answers.empty() && !told.effects.answers[0].allowed;
    CAPTURE(id);
    CHECK(denied == (id >= 2 && id <= 5));
    // The first one claims, the others are decided at once.
    CHECK(told.effects.answers.empty() == (id == 1));
  }
}

TEST_CASE("a peer's new run has acknowledged nothing, and is in no quarantine", "[replica][runs]") {
  Told told(terms(1000, ms(3'600'000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  REQUIRE(told.asks(kKey, {500}));
  told.pass(ms(100));
  told.hear_beat(1, 1, 0, 1);
  const Interval ahead{told.now + ms(60'000), {1}};
  FrameWriter frame(1);
  frame.record({{1}, 1}, false, 1, {kLimiter, 1, {7}}, {&ahead, 1});
  told.hear(1, frame);
  told.hear_record(1, {{1}, 1}, 2, {7});
  CHECK(told.published({7}) == 0);  // in quarantine
  told.hear_record(1, {{1}, 2}, 1, {7});
  CHECK(told.published({7}) == 1);
  for (std::uint32_t node = 2; node < 4; ++node) told.hear_beat(node, 1, 0, 1);
  told.now = told.now + ms(1000);
  told.step(Tick{});
  CHECK(told.replica.log_bytes() > 0);
}

TEST_CASE("acknowledgements for another run of this node don't count", "[replica][runs]") {
  Told told(terms(1000, ms(3'600'000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  REQUIRE(told.asks(kKey, {500}));
  told.pass(ms(100));
  HeartbeatItem beat;
  beat.sent = told.now;
  beat.receiver_incarnation = 7;
  beat.ack = 1;
  for (std::uint32_t node = 1; node < 4; ++node) told.hear(node, 1, beat);
  told.now = told.now + ms(1000);
  told.step(Tick{});
  CHECK(told.replica.log_bytes() > 0);
}

TEST_CASE("who passes on births of the future is not to blame", "[replica][clocks]") {
  Told told(terms(1000, ms(3'600'000)));
  const Interval ahead{told.now + ms(60'000), {1}};
  FrameWriter frame(1);
  frame.record({{1}, 1}, true, 1, {kLimiter, 1, kKey}, {&ahead, 1});
  told.hear(2, frame);
  CHECK(told.replica.stats().refused == 1);
  told.hear_record(2, {{2}, 1}, 1, kKey);
  CHECK(told.published(kKey) == 1);
}

TEST_CASE("births of an older version count a bucket at most", "[replica]") {
  ReplicatedTerms next = terms(10, ms(3'600'000));
  next.version = 2;
  Told told(terms(1000, ms(1000)));
  told.put(kLimiter, next);
  told.hear_record(1, {{1}, 1}, 1, kKey, 500);
  CHECK(told.published(kKey) == 10);
}

TEST_CASE("open: with the others away a node goes on with the full slack", "[replica]") {
  Told told(terms(100, ms(3'600'000)));
  told.pass(ms(5000));
  REQUIRE(told.replica.live() == 1);
  REQUIRE(told.asks(kKey, {40}));
  told.pass(ms(100));
  CHECK(told.replica.unsent(kLimiter, kKey).weight() == Tokens{40});
}

TEST_CASE("a birth at the time of a reset counts, and the reset goes along when its key is carried",
          "[replica][reset]") {
  Told told(terms(100, ms(3'600'000)));
  const KeyHash after{kKey.v ^ 0xff};
  REQUIRE(told.replica.reset(kLimiter, kKey, told.now, told.now, false));
  told.hear_record(1, {{1}, 1}, 1, kKey);
  CHECK(told.published(kKey) == 1);
  Carry carry;
  carry.limiter = kLimiter;
  carry.before = kKey;
  carry.key = after;
  told.replica.carry(carry, told.now);
  CHECK(told.published(after) == 1);
  const Interval early{told.now - ms(1), {1}};
  FrameWriter frame(1);
  frame.record({{1}, 1}, false, 2, {kLimiter, 1, after}, {&early, 1});
  told.hear(1, frame);
  CHECK(told.published(after) == 1);
}

TEST_CASE("frames that wait for a copy are bounded", "[replica]") {
  Told told(terms(100, ms(1000)), [](ReplicaConfig& config) { config.max_parked = 1000; });
  told.want_copy();
  const std::size_t before = told.replica.held().state;
  for (std::uint64_t seq = 1; seq <= 500; ++seq) told.hear_record(2, {{2}, 1}, seq, kKey);
  CHECK(told.replica.held().state <= before + 1000);
}

TEST_CASE("a vector that wants an answer gets one", "[replica]") {
  Told told(terms(100, ms(1000)));
  told.hear(1, 1, VectorItem{true, {}, {}});
  CHECK(count_items<VectorItem>(told.effects) == 1);
  told.hear(1, 1, VectorItem{false, {}, {}});
  CHECK(count_items<VectorItem>(told.effects) == 0);
}

}  // namespace weir::test
