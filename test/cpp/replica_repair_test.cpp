// What a replica refuses, lacks or can't hear, and what is done about it.
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cluster.hpp"
#include "told.hpp"

namespace weir::test {
namespace {

constexpr LimiterId kOther{1};

KeyHash key_of(std::uint64_t i) { return {i * 0x9e3779b97f4a7c15u | 1}; }

// Each admit is a record of its own: fresh keys, and a share of 1.
ReplicatedTerms told_at_once() { return terms(5, ms(3'600'000)); }

// So many asks of fresh keys, 10 ms apart, of the nodes in turn.
void ask_in_turn(Cluster& cluster, std::vector<std::uint32_t> nodes, LimiterId limiter, std::uint64_t from,
                 std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    cluster.ask(nodes[i % nodes.size()], key_of(from + i), {1}, limiter);
    cluster.run_for(ms(10));
  }
}

std::int64_t weight(Cluster& cluster, std::uint32_t node, LimiterId limiter, std::uint64_t from, std::uint64_t count) {
  std::int64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) sum += cluster.at(node).published(limiter, key_of(from + i)).weight().v;
  return sum;
}

}  // namespace

TEST_CASE("records of a limiter that a node doesn't know are not asked for again", "[repair]") {
  Cluster cluster(5, told_at_once());
  for (std::uint32_t node = 1; node < 5; ++node) cluster.put(node, kOther, told_at_once());
  cluster.run_for(ms(2000));
  cluster.sent.clear();
  ask_in_turn(cluster, {1, 2, 3, 4}, kOther, 1, 7600);
  CAPTURE(cluster.sent[Traffic::data].bytes, cluster.sent[Traffic::repair].bytes, cluster.at(0).stats().refused);
  CHECK(cluster.repair_is_small());
  CHECK(cluster.sent[Traffic::repair].frames < 100);
  // Nothing is kept for its sake.
  for (std::uint32_t node = 1; node < 5; ++node) CHECK(cluster.at(node).log_bytes() < 3000);
  CHECK(weight(cluster, 0, kOther, 1, 7600) == 0);
  // When it learns of the limiter it counts all of them.
  cluster.put(0, kOther, told_at_once());
  CHECK(weight(cluster, 0, kOther, 1, 7600) == 7600);
}

TEST_CASE("a copy from a node that doesn't know a limiter brings what it was told of it", "[repair]") {
  Cluster cluster(3, told_at_once());
  cluster.put(2, kOther, told_at_once());
  cluster.run_for(ms(2000));
  ask_in_turn(cluster, {2}, kOther, 1, 100);
  cluster.run_for(ms(1000));
  cluster.crash(2);
  cluster.crash(1);
  cluster.start(1);
  cluster.put(1, kOther, told_at_once());
  cluster.run_for(ms(10'000));
  REQUIRE(cluster.at(1).stats().copies == 1);
  CHECK(weight(cluster, 1, kOther, 1, 100) == 100);
}

TEST_CASE("births of a version that isn't known yet, or of no limiter, are counted when it is put", "[repair]") {
  Told told(terms(100, ms(1000)));
  const auto later = GENERATE(true, false);
  const Subject subject{later ? kLimiter : kOther, 2, kKey};
  const Interval three{told.now, {3}};
  SECTION("record") {
    FrameWriter frame(1);
    frame.record({{1}, 1}, false, 1, subject, {&three, 1});
    told.hear(1, frame);
  }
  SECTION("chunk") {
    FrameWriter frame(1);
    frame.chunk(0, 1, 2);
    frame.entry(subject, {&three, 1});
    frame.entry({kLimiter, 1, {7}}, {&three, 1});
    told.hear(1, frame);
    CHECK(told.published({7}) == 3);
  }
  CHECK(told.published(kKey) == 0);
  CHECK(told.replica.stats().shelved == 1);
  CHECK(told.replica.quiet());
  told.hear_record(1, {{1}, 1}, 1, kKey);
  CHECK(told.replica.stats().duplicates == 1);
  ReplicatedTerms next = terms(100, ms(1000));
  told.put(subject.limiter, next);  // the first version
  CHECK(told.replica.published(subject.limiter, kKey).empty());
  next.version = 2;
  told.put(subject.limiter, next);
  CHECK(told.replica.published(subject.limiter, kKey).weight() == Tokens{3});
}

TEST_CASE("births that no one could count are noted as seen", "[repair]") {
  Told told(terms(100, ms(1000)));
  const std::vector<Interval> overlap = {{told.now, {3}}, {told.now + ms(10), {1}}};
  FrameWriter frame(1);
  frame.record({{1}, 1}, false, 1, {kLimiter, 1, kKey}, overlap);
  told.hear(1, frame);
  CHECK(told.replica.stats().malformed == 1);
  CHECK(told.published(kKey) == 0);
  told.hear_record(1, {{1}, 1}, 2, kKey);
  told.pass(ms(10'000), 1);
  CHECK(told.replica.stats().nacks == 0);
  CHECK(told.published(kKey) == 1);
}

TEST_CASE("what was dropped from a full shelf is counted", "[repair]") {
  Told told(terms(100, ms(1000)), [](ReplicaConfig& config) { config.max_shelved = 1000; });
  const Interval one{told.now, {1}};
  for (std::uint64_t seq = 1; seq <= 100; ++seq) {
    FrameWriter frame(1);
    frame.record({{1}, 1}, false, seq, {kOther, 1, key_of(seq)}, {&one, 1});
    told.hear(1, frame);
  }
  CHECK(told.replica.stats().shelved == 100);
  CHECK(told.replica.stats().lost_shelved > 60);
  CHECK(told.replica.held().state < 30'000);
}

TEST_CASE("what is refused for now is tried with one record, at growing intervals, and not kept for its sake",
          "[repair]") {
  Told told(terms(1000, ms(1000)));
  told.hear_beat(1, 1);
  const Interval ahead{told.now + ms(60'000), {1}};
  for (std::uint64_t seq = 1; seq <= 50; ++seq) {
    FrameWriter frame(1);
    frame.record({{1}, 1}, false, seq, {kLimiter, 1, kKey}, {&ahead, 1});
    told.hear(1, frame);
  }
  CHECK(told.replica.stats().refused == 50);
  CHECK(told.replica.quiet());
  for (int i = 0; i < 60; ++i) {
    told.hear_beat(1, 1, 50);
    told.now = told.now + ms(500);
    told.step(Tick{});
    Frame frame;
    for (const Bytes& bytes : told.effects.frames) {
      REQUIRE(decode(bytes, {0}, frame) == FrameError::none);
      for (const Item& item : frame.items) {
        const auto* const nack = std::get_if<NackItem>(&item);
        if (nack != nullptr) CHECK(nack->ranges == std::vector<Range>{{1, 1}});
      }
    }
  }
  const std::uint64_t nacks = told.replica.stats().nacks;
  CHECK(nacks >= 3);
  CHECK(nacks <= 6);
  // By now its clock is right, and so are its births.
  told.now = told.now + ms(30'000);
  HeartbeatItem beat;
  beat.sent = beat.echo = told.now;
  beat.head = 50;
  beat.receiver_incarnation = 1;
  told.hear(1, 1, beat);
  for (std::uint64_t seq = 1; seq <= 50; ++seq) told.hear_record(1, {{1}, 1}, seq, kKey);
  CHECK(told.published(kKey) == 50);
}

TEST_CASE("a node an hour ahead costs the others no repair", "[repair]") {
  Cluster cluster(10, terms(15, ms(3'600'000)));
  cluster.skew(9, ms(3'600'000));
  cluster.run_for(ms(3000));
  cluster.sent.clear();
  std::vector<std::uint32_t> all;
  for (std::uint32_t node = 0; node < 10; ++node) all.push_back(node);
  ask_in_turn(cluster, all, kLimiter, 1, 30'000);
  CAPTURE(cluster.sent[Traffic::data].bytes, cluster.sent[Traffic::repair].bytes, cluster.at(0).stats().refused);
  CHECK(cluster.repair_is_small());
  CHECK(cluster.at(9).log_bytes() < 10'000);
  CHECK(cluster.quiet());
  // Its clock is set right: nothing of the time before keeps the others from hearing it.
  cluster.run_for(ms(4'000'000));
  cluster.sent.clear();
  ask_in_turn(cluster, all, kLimiter, 100'001, 1000);
  CHECK(cluster.repair_is_small());
}

TEST_CASE("a link that is cut in one direction: others pass on what goes over it", "[repair]") {
  Cluster cluster(3, terms(100, ms(3'600'000)));
  cluster.run_for(ms(2000));
  cluster.cut(1, 0);
  cluster.run_for(ms(5000));
  cluster.sent.clear();
  for (int i = 0; i < 100; ++i) {
    cluster.ask(0, kKey);
    cluster.run_for(ms(10));
  }
  cluster.run_for(ms(5000));
  for (std::uint32_t node = 0; node < 3; ++node) {
    CAPTURE(node);
    CHECK(cluster.at(node).published(kLimiter, kKey).weight() >= Tokens{94});
  }
  CHECK_FALSE(cluster.admits(1, kKey, {10}));
  CAPTURE(cluster.sent[Traffic::data].bytes, cluster.sent[Traffic::repair].bytes);
  CHECK(cluster.repair_is_small());
}

// Resets.

TEST_CASE("a reset on one node holds on all, also when its frame is lost", "[repair][reset]") {
  Cluster cluster(3, terms(10, ms(3'600'000)));
  cluster.network.loss = GENERATE(0, 40);
  cluster.run_for(ms(2000));
  for (std::uint32_t i = 0; i < 9; ++i) {
    cluster.ask(i % 3, kKey);
    cluster.run_for(ms(10));
  }
  cluster.run_for(ms(5000));
  REQUIRE(cluster.reset(0, kKey));
  cluster.run_for(ms(5000));
  for (std::uint32_t node = 0; node < 3; ++node) {
    CHECK(cluster.at(node).published(kLimiter, kKey).empty());
    CHECK(cluster.at(node).unsent(kLimiter, kKey).empty());
  }
  CHECK(cluster.quiet());
  CHECK(cluster.repair_is_small());
}

TEST_CASE("a reset reaches a node that was away, by a chunk or by a copy", "[repair][reset]") {
  const bool by_copy = GENERATE(false, true);
  Cluster cluster(4, terms(10, ms(3'600'000)));
  for (std::uint32_t i = 0; i < 4; ++i) cluster.crash(i);
  cluster.configure = [=](ReplicaConfig& config) {
    config.joining = false;
    if (by_copy) config.history.piece_keys = 2;
  };
  for (std::uint32_t i = 0; i < 4; ++i) cluster.start(i);
  cluster.run_for(ms(2000));
  for (std::uint32_t i = 0; i < 9; ++i) {
    cluster.ask(i % 4, kKey);
    cluster.run_for(ms(10));
  }
  cluster.run_for(ms(2000));
  cluster.partition({3});
  cluster.run_for(ms(4000));
  REQUIRE(cluster.reset(0, kKey));
  cluster.run_for(ms(100));
  REQUIRE(cluster.reset(0, kKey));  // the later one holds
  for (std::uint64_t i = 0; i < 20; ++i) cluster.ask(0, key_of(i), {10});
  cluster.run_for(ms(100));
  REQUIRE(cluster.admits(1, kKey, {5}));
  cluster.run_for(ms(8000));  // until the records are there no more one by one
  cluster.heal();
  cluster.run_for(ms(30'000));
  CHECK((cluster.at(3).stats().copies > 0) == by_copy);
  for (std::uint32_t node = 0; node < 4; ++node) {
    CAPTURE(node);
    CHECK(cluster.at(node).published(kLimiter, kKey).weight() == Tokens{5});
  }
}

TEST_CASE("a node that joins learns of resets with its copy", "[repair][reset]") {
  Cluster cluster(3, terms(10, ms(3'600'000)));
  cluster.run_for(ms(2000));
  cluster.partition({2});
  for (std::uint32_t i = 0; i < 9; ++i) cluster.ask(2, kKey);  // births that come after the reset was copied
  const Nanos at = cluster.now();
  cluster.run_for(ms(100));
  REQUIRE(cluster.reset(0, kKey));
  cluster.crash(1);
  cluster.start(1);
  cluster.run_for(ms(5000));
  REQUIRE_FALSE(cluster.at(1).copying());
  cluster.heal();
  cluster.run_for(ms(20'000));
  CHECK(cluster.at(1).published(kLimiter, kKey).empty());
  CHECK(cluster.now() > at);
}

TEST_CASE("more resets than there is room for are refused, and those of others count for what is known",
          "[repair][reset]") {
  Told told(terms(10, ms(3'600'000)), [](ReplicaConfig& config) { config.max_resets = 5; });
  for (std::uint64_t i = 1; i <= 5; ++i) CHECK(told.replica.reset(kLimiter, key_of(i), told.now, told.now, true));
  REQUIRE(told.asks(kKey, {9}));
  CHECK_FALSE(told.replica.reset(kLimiter, kKey, told.now + ms(1), told.now, true));
  CHECK(told.replica.unsent(kLimiter, kKey).weight() + told.replica.published(kLimiter, kKey).weight() == Tokens{9});
  CHECK(told.replica.reset(kLimiter, key_of(1), told.now + ms(1), told.now, true));  // it is remembered already
  told.now = told.now + ms(10);
  const Interval mark = reset_mark(kKey, told.now);
  FrameWriter frame(1);
  frame.record({{1}, 1}, false, 1, {kLimiter, 1, kKey}, {&mark, 1});
  told.hear(1, frame);
  CHECK(told.asks(kKey, {9}));
  // After a horizon they are forgotten.
  told.now = told.now + ms(20 * 3'600'000 + 1);
  told.pass(ms(70'000), 1);
  CHECK(told.replica.reset(kLimiter, kKey, told.now, told.now, true));
}

TEST_CASE("nodes that know no resets take them for births that don't count any more", "[frame][reset]") {
  for_cases([](Rng& rng) {
    const KeyHash key{rng()};
    const Nanos time{draw(rng, 0, std::int64_t{1} << 61)};
    const Interval mark = reset_mark(key, time);
    REQUIRE(reset_time(key, {&mark, 1}) == rounded_for_mark(time));
    REQUIRE(rounded_for_mark(time) >= time);
    const Policy policy{{1}, {draw(rng, 1, std::int64_t{1} << 57)}};  // four years
    REQUIRE(IntervalSet::valid(policy, {&mark, 1}));
    REQUIRE(mark.end(policy) < kBase - IntervalSet::horizon(policy));
    const Interval birth{kBase, {1}};
    REQUIRE_FALSE(reset_time(key, {&birth, 1}));
  });
}

// Members that don't speak the truth.

TEST_CASE("attack: times of a heartbeat", "[repair][attack]") {
  Told told(terms(100, ms(1000)));
  HeartbeatItem beat;
  const auto hear = [&](Nanos sent, std::uint64_t ack) {
    beat.sent = sent;
    beat.echo = told.now;
    beat.receiver_incarnation = 1;
    beat.ack = ack;
    told.hear(1, 1, beat);
  };
  hear(told.now, 0);
  hear(kTimeMax, 0);
  told.now = told.now + ms(500);
  hear(told.now, 0);
  CHECK(told.replica.clock_of({1})->first < ms(1000));
  // One that was overtaken by half a second is of no interest.
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  REQUIRE(told.asks(kKey, {50}));
  told.pass(ms(100));
  told.now = told.now + ms(500);
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1, 0, 1);
  hear(told.now - ms(400), 0);
  told.step(Tick{});
  CHECK(told.replica.log_bytes() == 0);
}

TEST_CASE("attack: numbers that don't exist", "[repair][attack]") {
  Told told(terms(100, ms(1000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  SECTION("head") { told.hear_beat(1, 1, kLimit); }
  SECTION("a record, by another or by itself") { told.hear_record(GENERATE(1u, 2u), {{1}, 1}, kLimit - 1, kKey); }
  SECTION("a vector") { told.hear(2, 1, VectorItem{false, {{{{1}, 1}, kLimit}}, {}}); }
  SECTION("gone") {
    told.hear(2, 1, GoneItem{{{1}, 1}, kLimit});
    for (int i = 0; i < 40; ++i) told.pass(ms(1000), 1);
  }
  SECTION("a chunk") {
    const Interval one{told.now, {1}};
    FrameWriter frame(1);
    frame.chunk(0, kLimit, 1);
    frame.entry({kLimiter, 1, {7}}, {&one, 1});
    told.hear(1, frame);
    CHECK(told.published({7}) == 0);
  }
  told.now = told.now + ms(500);
  told.hear_beat(1, 1);
  CHECK(told.replica.quiet());
  const std::int64_t before = told.published(kKey);
  told.hear_record(1, {{1}, 1}, 1, kKey);
  CHECK(told.published(kKey) == before + 1);
}

TEST_CASE("attack: stable beyond what is so", "[repair][attack]") {
  Told told(terms(100, ms(1000)));
  HeartbeatItem beat;
  beat.sent = told.now;
  beat.head = beat.stable = kLimit;
  told.hear(1, 1, beat);
  told.now = told.now + ms(500);
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  told.hear_record(1, {{1}, 1}, 1, kKey);
  told.hear(2, 1, NackItem{{{1}, 1}, {{1, 1}}});
  CHECK(count_items<RecordItem>(told.effects) == 1);
}

TEST_CASE("attack: a copy that says of runs that they are over", "[repair][attack]") {
  Told told(terms(100, ms(1000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 5);
  std::vector<VectorEntry> vector = {{{{1}, 5}, 1000}};
  const std::uint32_t node = GENERATE(0u, 2u, 3u);
  if (node == 3) told.step(Unregistered{{3}});
  if (node == 3) told.step(Registered{{3}});
  vector.push_back({{{node}, node == 2 ? 5 : std::uint64_t{1} << 62}, kForgotten});
  told.hear(1, 5, GoneItem{{{1}, 5}, 1000});
  REQUIRE(told.replica.copying());
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    FrameWriter frame(5);
    frame.copy(segment_of(segment, vector), 0);
    told.hear(1, frame);
  }
  REQUIRE_FALSE(told.replica.copying());
  if (node != 0) {
    told.hear_record(node, {{node}, 5}, 1, kKey);
    CHECK(told.published(kKey) == 1);
  }
}

TEST_CASE("attack: a copy that speaks of records that don't exist", "[repair][attack]") {
  Told told(terms(100, ms(1000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1, 10);
  told.want_copy();
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    told.hear_segment(segment_of(segment, {{{{1}, 1}, 1000}, {{{2}, 1}, kLimit - 1}}));
  }
  CHECK(told.replica.stats().malformed == Keys::kSegments);
  told.hear_record(2, {{2}, 1}, 11, kKey);
  CHECK(told.replica.copying());
}

// More nodes than there were.

TEST_CASE("when more nodes take part, what weighs a smaller share is pushed", "[repair][grow]") {
  const auto nodes = GENERATE(5u, 10u, 30u);
  constexpr std::int64_t kCapacity = 100;
  Cluster cluster(nodes, terms(kCapacity, ms(100'000'000)));
  cluster.network.delay = {100'000};
  for (std::uint32_t i = 0; i < nodes; ++i) cluster.crash(i);
  cluster.configure = [](ReplicaConfig& config) {
    if (config.self.v >= 2) return;
    config.members = {{0}, {1}};
    config.neighbours = {{1 - config.self.v}};
    config.joining = false;
  };
  cluster.start(0);
  cluster.start(1);
  cluster.run_for(ms(1000));
  for (int i = 0; i < 32; ++i) {
    REQUIRE(cluster.admits(0, kKey));
    REQUIRE(cluster.admits(1, kKey));
  }
  REQUIRE(cluster.at(0).unsent(kLimiter, kKey).weight() == Tokens{32});
  for (std::uint32_t i = 2; i < nodes; ++i) {
    for (std::uint32_t told = 0; told < 2; ++told) cluster.registered(told, i);
    cluster.start(i);
    cluster.run_for(ms(50));
  }
  cluster.run_for(ms(10'000));
  // Of those that came later; nobody else pushes anything for their sake.
  for (std::uint32_t i = 0; i < 300; ++i) {
    cluster.ask(2 + i % (nodes - 2), kKey);
    cluster.run_for(ms(60));
  }
  std::int64_t sum = 0;
  for (const Interval& period : cluster.admitted[kKey.v].busy({{1}, {1}})) sum += period.count.v;
  CAPTURE(nodes, sum);
  CHECK(sum == kCapacity);
}

// A gap stays open for a round trip, in which more records come: each of them told of it again, and was asked about.
TEST_CASE("what was asked for is not asked for again with each record that comes meanwhile", "[repair]") {
  for (const std::int64_t delay : {1, 20, 100}) {
    CAPTURE(delay);
    ReplicatedTerms how = terms(1000, ms(86'400));
    how.flush_after = ms(50);
    Cluster cluster(2, how);
    cluster.network.delay = ms(delay);
    cluster.run_for(ms(3000));
    cluster.network.loss = 2;
    cluster.sent.clear();
    const std::uint64_t before = cluster.at(1).stats().nacks;
    std::uint64_t key = 0;
    for (int i = 0; i < 10'000; ++i) {
      REQUIRE(cluster.admits(0, key_of(++key)));
      cluster.run_for(ms(2));
    }
    cluster.network.loss = 0;
    cluster.run_for(ms(5000));
    CHECK(cluster.quiet());
    // Some 200 frames were lost.
    CHECK(cluster.at(1).stats().nacks - before < 400);
    CHECK(cluster.at(1).stats().duplicates < 20);
    CHECK(cluster.sent[Traffic::repair].bytes < cluster.sent[Traffic::data].bytes / 20);
  }
}

}  // namespace weir::test
