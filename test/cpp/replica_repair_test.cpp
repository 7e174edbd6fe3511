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
    told.pass(ms(500));
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

}  // namespace weir::test
