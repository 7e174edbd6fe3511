// What a replica guesses of others, what it keeps for how long, and what it takes of chunks: by frames by hand.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "told.hpp"

namespace weir::test {
namespace {

constexpr Nanos kHour = ms(3'600'000);

// The other nodes answer what this one sent that long ago: so long is the round trip to each of them.
void hear_echoes(Told& told, Nanos trip) {
  for (std::uint32_t node = 1; node < 4; ++node) {
    HeartbeatItem beat;
    beat.sent = told.now;
    beat.echo = told.now - trip;
    beat.receiver_incarnation = 1;
    told.hear(node, 1, beat);
  }
}

// Some of the nodes give signs of life each half second, the others are away after a while. What is sent to whom
// meanwhile.
std::vector<std::pair<std::uint32_t, Item>> pass_with(Told& told, Nanos span, const std::vector<std::uint32_t>& nodes) {
  std::vector<std::pair<std::uint32_t, Item>> sent;
  Frame frame;
  for (const Nanos until = told.now + span; told.now < until; told.now = told.now + ms(50)) {
    for (const std::uint32_t node : nodes) told.hear_beat(node, 1);
    told.step(Tick{});
    for (const Send& send : told.effects.sends) {
      REQUIRE(decode(told.effects.frames[send.frame], {0}, frame) == FrameError::none);
      for (const Item& item : frame.items) sent.emplace_back(send.to.v, item);
    }
  }
  return sent;
}

void hear_chunk(Told& told, std::uint32_t node, std::uint64_t from, std::uint64_t to,
                const std::vector<KeyHash>& keys) {
  const Interval one{told.now, {1}};
  FrameWriter chunk(1);
  chunk.chunk(from, to, keys.size());
  for (const KeyHash key : keys) chunk.entry({kLimiter, 1, key}, {&one, 1});
  told.hear(node, chunk);
}

constexpr KeyHash kFirst{1};
constexpr KeyHash kLast{63ULL << 58 | 1};

// After a copy whose last segment alone has the first two records of node 3.
void copy_unlike_segments(Told& told) {
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  told.want_copy();
  const std::vector<VectorEntry> before = {{{{1}, 1}, 1000}};
  std::vector<VectorEntry> after = before;
  after.push_back({{{3}, 1}, 2});
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    told.hear_segment(segment_of(segment, segment == 63 ? after : before));
  }
  REQUIRE_FALSE(told.replica.copying());
}

}  // namespace

// Deciding and pushing.

TEST_CASE("what others admit and haven't pushed yet is taken to be as much as this node admits", "[replica][limits]") {
  // 50 tokens of 100 in an eighth of a second, on each of four nodes: 1600 a second. 3 % of the 50 that are left take
  // 0.9 ms, where this node's own 400 a second would take 3.75 ms.
  Told told(terms(100, kHour));
  told.pass(ms(1), 1);
  REQUIRE(told.asks(kKey, {50}));
  CHECK(told.replica.wake() - told.now > ms(0));
  CHECK(told.replica.wake() - told.now <= ms(1));
}

TEST_CASE("at long delays half of what others admit in one delay is taken to be on its way", "[replica][limits]") {
  // 50 ms there; 400 tokens a second are 20 in that time.
  Told told(terms(1000, kHour));
  told.now = told.now + ms(100);
  hear_echoes(told, ms(100));
  told.hear_record(1, {{1}, 1}, 1, kKey, 400);
  CHECK_FALSE(told.asks(kKey, {591}));
  CHECK(told.asks(kKey, {590}));
}

TEST_CASE("when a limiter changes, a level keeps its tokens", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  told.hear_record(1, {{1}, 1}, 1, kKey, 50);
  told.now = told.now + ms(20'000);
  ReplicatedTerms slower = terms(100, ms(2000));
  slower.version = 2;
  told.put(kLimiter, slower);
  CHECK_FALSE(told.asks(kKey, {71}));
  CHECK(told.asks(kKey, {70}));
}

TEST_CASE("while keys are carried, a table that knew more of a key is told its level", "[replica][limits][carry]") {
  Told told(terms(100, ms(1000)));
  told.replica.tell_levels();
  const auto levels_after = [&](KeyHash key, Nanos tat) {
    told.replica.admitted({kLimiter, key, {1}, told.now, tat}, told.now);
    return told.replica.take_levels().size();
  };
  CHECK(levels_after({7}, told.now + ms(9000)) == 0);
  Carry carry;
  carry.limiter = kLimiter;
  carry.before = {8};
  carry.key = {9};
  told.replica.carry(carry, told.now);
  CHECK(levels_after({10}, told.now + ms(1000)) == 0);
  CHECK(levels_after({11}, told.now + ms(9000)) == 1);
  told.now = told.now + ms(200'001);
  CHECK(levels_after({12}, told.now + ms(9000)) == 0);
}

TEST_CASE("what others claim is not caught up as if it were admitted", "[replica][limits][claims]") {
  ReplicatedTerms how = terms(1000, kHour);
  how.large_hits = LargeHits::claim;
  Told told(how);
  told.hear(1, 1, ClaimItem{5, {kLimiter, 1, kKey}, {600}, told.now});
  told.replica.catch_up(kLimiter, kKey, told.now + Tokens{600} * kHour, told.now);
  CHECK(told.replica.unsent(kLimiter, kKey).empty());
  told.replica.catch_up(kLimiter, kKey, told.now + Tokens{630} * kHour, told.now);
  CHECK(told.replica.unsent(kLimiter, kKey).weight() == Tokens{30});
}

TEST_CASE("after a partition nothing is held for the other side any more", "[replica][limits]") {
  ReplicatedTerms how = terms(100, kHour);
  how.partition = Partition::share;
  Told told(how);
  told.replica.tell_levels();
  pass_with(told, ms(4000), {1});
  REQUIRE(told.replica.live() == 2);
  REQUIRE(told.asks(kKey, {20}));
  REQUIRE_FALSE(told.asks(kKey, {61}));  // as if the other two had admitted 20
  told.replica.take_levels();
  for (std::uint32_t node = 2; node < 4; ++node) told.hear_beat(node, 1);
  REQUIRE(told.replica.live() == 4);
  const std::vector<Level> levels = told.replica.take_levels();
  REQUIRE(levels.size() == 1);
  CHECK(levels[0].exactly);
  CHECK(Tat(levels[0].tat).level(how.policy, told.now) == Tokens{20});
  CHECK(told.asks(kKey, {80}));
}

// What goes along when a key is carried.

TEST_CASE("a key that is carried keeps its rates, and when it is to be flushed", "[replica][limits][carry]") {
  ReplicatedTerms how = terms(1000, ms(100'000));
  how.flush_after = ms(60'000);
  Told told(how);
  told.now = told.now + ms(100);
  hear_echoes(told, ms(100));
  told.hear_record(1, {{1}, 1}, 1, kKey, 100);
  REQUIRE(told.asks(kKey));
  const Overshoot before = told.replica.overshoot(kLimiter, kKey, told.now);
  REQUIRE(before.expected > Tokens{2});
  Carry carry;
  carry.limiter = kLimiter;
  carry.before = kKey;
  carry.key = {kKey.v ^ 0xff};
  told.replica.carry(carry, told.now);
  CHECK(told.replica.overshoot(kLimiter, carry.key, told.now).expected == before.expected);
  REQUIRE_FALSE(told.replica.unsent(kLimiter, carry.key).empty());
  told.pass(ms(61'000), 1);
  CHECK(told.replica.unsent(kLimiter, carry.key).empty());
}

TEST_CASE("claims of a key that is carried go along, own ones and others'", "[replica][limits][carry][claims]") {
  ReplicatedTerms how = terms(1000, kHour);
  how.large_hits = LargeHits::claim;
  Told told(how);
  Carry carry;
  carry.limiter = kLimiter;
  carry.before = kKey;
  carry.key = {kKey.v ^ 0xff};
  SECTION("own") {
    told.step(Ask{2, kLimiter, kKey, {600}});
    REQUIRE(count_items<ClaimItem>(told.effects) == 1);
    told.replica.carry(carry, told.now);
    for (std::uint32_t node = 1; node < 4; ++node) told.hear(node, 1, ClaimAckItem{1});
    REQUIRE(told.effects.answers.at(0).allowed);
    CHECK(told.published(carry.key) == 600);
    CHECK(told.published(kKey) == 0);
  }
  SECTION("others'") {
    told.hear(1, 1, ClaimItem{5, {kLimiter, 1, kKey}, {600}, told.now});
    told.replica.carry(carry, told.now);
    CHECK_FALSE(told.asks(carry.key, {401}));
    told.step(Ask{2, kLimiter, carry.key, {400}});
    CHECK(told.effects.answers.empty());  // it claims
  }
}

TEST_CASE("what is held for the other side of a partition goes along with its key", "[replica][limits][carry]") {
  ReplicatedTerms how = terms(100, kHour);
  how.partition = Partition::share;
  Told told(how);
  pass_with(told, ms(4000), {1});
  REQUIRE(told.replica.live() == 2);
  REQUIRE(told.asks(kKey, {20}));
  Carry carry;
  carry.limiter = kLimiter;
  carry.before = kKey;
  carry.key = {kKey.v ^ 0xff};
  told.replica.carry(carry, told.now);
  CHECK_FALSE(told.asks(carry.key, {61}));
  CHECK(told.asks(carry.key, {60}));
}

// What is kept, and for how long.

TEST_CASE("births that this node alone knows are forgotten after a horizon", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  REQUIRE(told.asks(kKey));
  told.pass(ms(190'000), 1);
  CHECK_FALSE(told.replica.unsent(kLimiter, kKey).empty());
  told.pass(ms(80'000), 1);
  CHECK(told.replica.unsent(kLimiter, kKey).empty());
  CHECK(told.replica.keys() == 0);
  CHECK(told.replica.stats().forgotten_births == 1);
  CHECK(told.replica.stats().records_sent == 0);
}

TEST_CASE("births of a key that others know are pushed before they are forgotten", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  REQUIRE(told.asks(kKey));
  told.hear_record(1, {{1}, 1}, 1, kKey, 80);
  told.pass(ms(190'000), 1);
  CHECK(told.replica.unsent(kLimiter, kKey).weight() == Tokens{1});
  told.pass(ms(80'000), 1);
  CHECK(told.replica.unsent(kLimiter, kKey).empty());
  CHECK(told.replica.stats().records_sent == 1);
  CHECK(told.replica.stats().forgotten_births == 0);
}

TEST_CASE("others' resets that there is no room for are not remembered", "[replica][limits][reset]") {
  Told told(terms(100, kHour), [](ReplicaConfig& config) { config.max_resets = 5; });
  for (std::uint64_t seq = 1; seq <= 8; ++seq) {
    const Interval mark = reset_mark({seq}, rounded_for_mark(told.now));
    FrameWriter frame(1);
    frame.record({{1}, 1}, false, seq, {kLimiter, 1, {seq}}, {&mark, 1});
    told.hear(1, frame);
  }
  CHECK(told.replica.stats().refused == 3);
  const Interval early{told.now - ms(60'000), {1}};
  for (std::uint64_t seq = 1; seq <= 8; ++seq) {
    FrameWriter frame(1);
    frame.record({{2}, 1}, false, seq, {kLimiter, 1, {seq}}, {&early, 1});
    told.hear(2, frame);
    CHECK(told.published({seq}) == (seq <= 5 ? 0 : 1));
  }
}

TEST_CASE("others' records are kept for a while, and so many bytes of them", "[replica][limits]") {
  Told told(terms(1'000'000, ms(1000)), [](ReplicaConfig& config) { config.history.others_bytes = 2000; });
  for (std::uint64_t seq = 1; seq <= 500; ++seq) told.hear_record(1, {{1}, 1}, seq, {seq});
  told.hear(2, 1, NackItem{{{1}, 1}, {{1, 500}}});
  const std::vector<RecordItem> kept = items<RecordItem>(told.effects);
  CHECK(kept.size() > 20);
  CHECK(kept.size() < 100);
  CHECK(kept.back().seq == 500);
  told.pass(ms(4000), 1);
  told.hear(2, 1, NackItem{{{1}, 1}, {{1, 500}}});
  CHECK(count_items<RecordItem>(told.effects) == kept.size());
  told.pass(ms(2000), 1);
  told.hear(2, 1, NackItem{{{1}, 1}, {{1, 500}}});
  CHECK(count_items<RecordItem>(told.effects) == 0);
  CHECK(count_items<GoneItem>(told.effects) == 1);
}

TEST_CASE("of a limiter that is dropped nothing waits for the next one of its number", "[replica][limits]") {
  ReplicatedTerms next = terms(100, kHour);
  next.version = 2;
  Told told(terms(100, kHour));
  const Interval three{told.now, {3}};
  FrameWriter frame(1);
  frame.record({{1}, 1}, false, 1, {kLimiter, 2, kKey}, {&three, 1});
  told.hear(1, frame);
  REQUIRE(told.replica.stats().shelved == 1);
  told.replica.drop_limiter(kLimiter);
  told.put(kLimiter, next);
  CHECK(told.published(kKey) == 0);
}

// What is asked of whom.

TEST_CASE("records of a lost node are asked of others than who told of them", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  told.hear_beat(3, 1);
  pass_with(told, ms(5000), {1, 2});
  told.hear(1, 1, VectorItem{false, {{{{3}, 1}, 5}}, {}});
  const auto sent = pass_with(told, ms(10'000), {1, 2});
  const auto asked = [&](std::uint32_t node) {
    return std::count_if(sent.begin(), sent.end(), [&](const auto& each) {
      return each.first == node && std::holds_alternative<NackItem>(each.second);
    });
  };
  CHECK(asked(1) >= 3);
  CHECK(asked(2) >= 1);
  CHECK(asked(3) == 0);
}

TEST_CASE("a late record of a node that is out of reach is told of by digests to all", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  told.hear_beat(3, 1);
  pass_with(told, ms(60'000), {1, 2});
  const auto digests = [](const std::vector<std::pair<std::uint32_t, Item>>& sent, std::uint32_t node) {
    return std::count_if(sent.begin(), sent.end(), [&](const auto& each) {
      return each.first == node && std::holds_alternative<DigestItem>(each.second);
    });
  };
  const auto before = pass_with(told, ms(5000), {1, 2});
  CHECK(digests(before, 1) + digests(before, 2) == 0);
  told.hear_record(1, {{3}, 1}, 1, kKey);
  const auto after = pass_with(told, ms(5000), {1, 2});
  CHECK(digests(after, 1) >= 5);
  CHECK(digests(after, 2) >= 5);
}

TEST_CASE("records of a node that doesn't answer are asked of others", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  std::vector<std::uint32_t> asked;
  Frame frame;
  for (int i = 0; i < 400; ++i, told.now = told.now + ms(50)) {
    for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1, node == 1 ? 5 : 0);
    told.step(Tick{});
    for (const Send& send : told.effects.sends) {
      REQUIRE(decode(told.effects.frames[send.frame], {0}, frame) == FrameError::none);
      for (const Item& item : frame.items) {
        if (std::holds_alternative<NackItem>(item)) asked.push_back(send.to.v);
      }
    }
  }
  CHECK(std::count(asked.begin(), asked.end(), 1) >= 5);
  CHECK(std::count(asked.begin(), asked.end(), 2) >= 1);
  CHECK(std::count(asked.begin(), asked.end(), 3) >= 1);
}

TEST_CASE("a vector says what came beyond it", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  told.hear_record(1, {{1}, 1}, 1, kKey);
  told.hear_record(1, {{1}, 1}, 5, kKey);
  told.hear(2, 1, VectorItem{true, {}, {}});
  const std::vector<VectorItem> vectors = items<VectorItem>(told.effects);
  REQUIRE(vectors.size() == 1);
  REQUIRE(vectors[0].beyond.size() == 1);
  CHECK(vectors[0].beyond[0].origin == OriginId{{1}, 1});
  CHECK(vectors[0].beyond[0].ranges == std::vector<Range>{{5, 5}});
}

TEST_CASE("what a peer refuses for now is not kept for its sake, and nothing else", "[replica][limits]") {
  Told told(terms(1000, kHour));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  REQUIRE(told.asks(kKey, {300}));
  told.pass(ms(100));
  REQUIRE(told.replica.log_bytes() > 0);
  const auto spared = [&](std::uint64_t run, std::uint64_t upto) {
    for (std::uint32_t node = 1; node < 4; ++node) told.hear(node, 1, SparedItem{run, upto});
    told.now = told.now + ms(500);
    for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
    told.step(Tick{});
    return told.replica.log_bytes();
  };
  CHECK(spared(7, 1) > 0);  // it was another run of this node that it spoke to
  CHECK(spared(1, 1000) == 0);
  // There was one record then.
  REQUIRE(told.asks(kKey, {300}));
  told.pass(ms(100));
  told.now = told.now + ms(500);
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  told.step(Tick{});
  CHECK(told.replica.log_bytes() > 0);
}

TEST_CASE("an offset that jumps is taken as it is", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  const auto hear = [&](Nanos ahead) {
    told.now = told.now + ms(500);
    HeartbeatItem beat;
    beat.sent = told.now + ahead;
    beat.echo = told.now;
    beat.receiver_incarnation = 1;
    told.hear(1, 1, beat);
    return told.replica.clock_of({1})->first;
  };
  CHECK(hear(ms(0)) == ms(0));
  CHECK(hear(ms(800)) == ms(100));  // an eighth of the way
  CHECK(hear(ms(9000)) == ms(9000));
}

// Five nodes; 0 doesn't hear 1. Three others hear both.
TEST_CASE("of those that could pass records on one does, as long as the link is cut", "[replica][limits]") {
  Cluster cluster(5, terms(5, kHour));  // each admit is a record
  cluster.run_for(ms(2000));
  cluster.cut(1, 0);
  cluster.run_for(ms(5000));
  const auto duplicates_of = [&](std::uint64_t first) {
    const std::uint64_t before = cluster.at(0).stats().duplicates;
    for (std::uint64_t i = first; i < first + 100; ++i) {
      cluster.ask(1, {i << 40 | 1});
      cluster.run_for(ms(10));
    }
    cluster.run_for(ms(10));
    for (std::uint64_t i = first; i < first + 100; ++i) {
      CHECK(cluster.at(0).published(kLimiter, {i << 40 | 1}).weight() == Tokens{1});
    }
    cluster.run_for(ms(1000));
    return cluster.at(0).stats().duplicates - before;
  };
  CHECK(duplicates_of(1) < 10);
  cluster.heal();
  cluster.run_for(ms(5000));
  CHECK(duplicates_of(1000) == 0);
}

// Its clock is right by now, its records of before are not.
TEST_CASE("records of the future that a node still has are tried ever more seldom", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  const Interval ahead{told.now + kHour, {1}};
  const auto hear_it = [&]() {
    FrameWriter frame(1);
    frame.record({{1}, 1}, false, 1, {kLimiter, 1, kKey}, {&ahead, 1});
    told.hear(1, frame);
  };
  std::size_t tried = 0;
  hear_it();
  for (int i = 0; i < 1200; ++i, told.now = told.now + ms(50)) {
    if (i % 10 == 0) {
      HeartbeatItem beat;
      beat.sent = beat.echo = told.now;
      beat.head = 1;
      beat.receiver_incarnation = 1;
      told.hear(1, 1, beat);
      REQUIRE_FALSE(told.replica.quarantined({1}));
    }
    told.step(Tick{});
    const std::size_t asked = count_items<NackItem>(told.effects);
    tried += asked;
    if (asked != 0) hear_it();
  }
  CHECK(tried >= 3);
  CHECK(tried <= 7);
}

TEST_CASE("the state of a node whose births are refused is not asked for", "[replica][limits]") {
  Told told(terms(100, ms(1000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  const Interval ahead{told.now + kHour, {1}};
  FrameWriter frame(1);
  frame.record({{1}, 1}, false, 1, {kLimiter, 1, kKey}, {&ahead, 1});
  told.hear(1, frame);
  told.hear(1, 1, GoneItem{{{1}, 1}, 1000});
  CHECK_FALSE(told.replica.copying());
}

TEST_CASE("what another node has dropped is not copied while its origin may still have it", "[replica][limits][copy]") {
  Told told(terms(100, ms(1000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  const auto begins_copy = [&] {
    told.hear(2, 1, GoneItem{{{1}, 1}, 1000});
    return told.replica.copying();
  };
  CHECK_FALSE(begins_copy());
  pass_with(told, ms(4000), {2, 3});
  REQUIRE(told.replica.live() == 3);
  CHECK_FALSE(begins_copy());  // just lost from sight: it may be back
  pass_with(told, ms(6000), {2, 3});
  CHECK(begins_copy());
}

// What is told, and taken, of absences.

TEST_CASE("who lacks a single record is given that, not the chunk that it is in", "[replica][limits]") {
  Told told(terms(100, kHour), [](ReplicaConfig& config) { config.coalesce_most = {0}; });
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  pass_with(told, ms(4000), {1, 2});
  for (std::uint64_t key = 1; key <= 3; ++key) REQUIRE(told.asks({key}, {50}));
  REQUIRE(told.replica.vector().front() == VectorEntry{{{0}, 1}, 3});
  told.hear(2, 1, NackItem{{{0}, 1}, {{1, 1}}});
  CHECK(count_items<ChunkItem>(told.effects) == 0);
  REQUIRE(count_items<RecordItem>(told.effects) == 1);
  CHECK(items<RecordItem>(told.effects)[0].seq == 1);
  told.hear(2, 1, NackItem{{{0}, 1}, {{1, 3}}});
  CHECK(count_items<ChunkItem>(told.effects) == 1);
}

TEST_CASE("a chunk whose births a segment has already counts in the others only", "[replica][limits][copy]") {
  Told told(terms(100, ms(1000)));
  copy_unlike_segments(told);
  hear_chunk(told, 3, 0, 2, {kFirst, kLast});
  CHECK(told.published(kFirst) == 1);
  CHECK(told.published(kLast) == 0);
  CHECK(told.replica.stats().chunks_applied == 1);
}

TEST_CASE("a chunk of which a segment has a part is not taken: its records are asked for, then a copy",
          "[replica][limits][copy]") {
  Told told(terms(100, ms(1000)));
  copy_unlike_segments(told);
  told.pass(ms(2000), 1);  // one follows another at a distance
  hear_chunk(told, 3, 0, 4, {kFirst, kLast});
  CHECK(told.published(kFirst) == 0);
  CHECK(told.published(kLast) == 0);
  CHECK_FALSE(told.replica.copying());
  // There by themselves they fit.
  const auto asks = [&] { return count_items<NackItem>(told.effects) != 0; };
  for (int i = 0; i < 20 && !asks(); ++i) told.pass(ms(1));
  CHECK(asks());
  SECTION("one that comes at once was on its way") {
    hear_chunk(told, 3, 0, 4, {kFirst, kLast});
    CHECK_FALSE(told.replica.copying());
  }
  SECTION("one that comes instead of them says that there is nothing else") {
    told.pass(ms(300), 1);
    hear_chunk(told, 3, 0, 4, {kFirst, kLast});
    CHECK(told.replica.copying());
  }
}

TEST_CASE("one question is answered with so many chunks, and the next one with the rest", "[replica][limits]") {
  constexpr std::uint64_t kKeys = 200'000;
  Told told(terms(100, kHour), [](ReplicaConfig& config) { config.coalesce_most = {0}; });
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  told.pass(ms(3000));
  REQUIRE(told.replica.live() == 1);
  for (std::uint64_t key = 1; key <= kKeys; ++key) {
    told.asks({key * 0x9e3779b97f4a7c15u}, {100});
  }
  REQUIRE(told.replica.vector().front().upto == kKeys);
  std::uint64_t at = 0;
  int questions = 0;
  for (; at < kKeys; ++questions) {
    REQUIRE(questions < 10);
    told.hear(3, 1, NackItem{{{0}, 1}, {{at + 1, kKeys}}});
    CHECK(told.sent_bytes() < 3'000'000);
    const std::vector<ChunkItem> chunks = items<ChunkItem>(told.effects);
    REQUIRE_FALSE(chunks.empty());
    for (const ChunkItem& chunk : chunks) {
      REQUIRE(chunk.from == at);
      at = chunk.to;
    }
  }
  CHECK(questions > 1);
}

TEST_CASE("a peer that was given a piece finds the next one where it ended", "[replica][limits]") {
  constexpr std::uint64_t kKeys = 60'000;
  Told told(terms(100, ms(1000)), [](ReplicaConfig& config) { config.coalesce_most = {0}; });
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  told.pass(ms(3000));
  for (std::uint64_t key = 1; key <= kKeys; ++key) told.asks({key * 0x9e3779b97f4a7c15u}, {100});
  told.hear(3, 1, NackItem{{{0}, 1}, {{1, kKeys}}});
  const std::vector<ChunkItem> given = items<ChunkItem>(told.effects);
  REQUIRE(given.size() >= 2);
  told.pass(ms(400'000));  // nothing of it counts any more
  told.hear(3, 1, NackItem{{{0}, 1}, {{given[0].to + 1, kKeys}}});
  const std::vector<ChunkItem> rest = items<ChunkItem>(told.effects);
  REQUIRE(rest.size() == given.size() - 1);
  CHECK(rest[0].from == given[0].to);
  CHECK(rest[0].entries.empty());
  CHECK(count_items<GoneItem>(told.effects) == 0);
}

}  // namespace weir::test
