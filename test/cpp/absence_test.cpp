// What nodes keep for those that are out of reach, or not there yet.
// Shows R63 of doc/requirements.md.
#include <vector>

#include "births.hpp"
#include "catch.hpp"
#include "cluster.hpp"
#include "told.hpp"
#include "weir/replica.hpp"

namespace weir::test {
namespace {

constexpr Nanos kDay{86'400'000'000'000};

KeyHash nth(std::uint64_t i) { return {(i + 1) * 0x9e3779b97f4a7c15u}; }

// How many of the keys have less than `weight` tokens published, over all nodes.
std::uint64_t lacking(Cluster& cluster, std::uint64_t keys, Tokens weight) {
  std::uint64_t count = 0;
  for (std::uint32_t node = 0; node < cluster.size(); ++node) {
    for (std::uint64_t i = 0; i < keys; ++i) {
      const Tokens known = cluster.at(node).published(kLimiter, nth(i)).weight();
      REQUIRE(known <= weight);  // no birth counts twice
      count += known < weight ? 1 : 0;
    }
  }
  return count;
}

std::uint64_t dropped(Cluster& cluster) {
  std::uint64_t sum = 0;
  for (std::uint32_t node = 0; node < cluster.size(); ++node) sum += cluster.at(node).dropped();
  return sum;
}

// Two halves of four nodes admit 2 * 70 tokens of each key on each side of a cut, each of them more than its share.
void admit_on_both_sides(Cluster& cluster, std::uint64_t keys) {
  cluster.run_for(ms(3'000));
  cluster.partition({0, 1});
  cluster.run_for(ms(3'000));
  for (std::uint32_t turn = 0; turn < 2; ++turn) {
    for (std::uint64_t i = 0; i < keys; ++i) {
      if (i % 1000 == 0) cluster.run_for(ms(50));
      REQUIRE(cluster.admits(turn, nth(i), {70}));
      REQUIRE(cluster.admits(2 + turn, nth(i), {70}));
    }
  }
  cluster.run_for(ms(500));
  cluster.heal();
  cluster.sent.clear();
  cluster.run_for(ms(60'000));
}

}  // namespace

// S4 of the independent reading: past 16384 keys half of all births were lost.
TEST_CASE("both sides of a long partition with many keys know all births afterwards", "[replica][absence]") {
  constexpr std::uint64_t kKeys = 40'000;
  Cluster cluster(4, {Policy{{200}, {kDay.v / 200}}});
  admit_on_both_sides(cluster, kKeys);
  CHECK(lacking(cluster, kKeys, {280}) == 0);
  CHECK(dropped(cluster) == 0);
  for (std::uint32_t node = 0; node < 4; ++node) {
    CHECK(cluster.at(node).stats().lost_own_records == 0);
    CHECK(cluster.at(node).stats().chunks_applied > 2);
  }
}

TEST_CASE("a chunk that is on its way is not sent again", "[replica][absence]") {
  constexpr std::uint64_t kKeys = 40'000;
  constexpr std::uint64_t kEntry = 21;  // bytes
  Cluster cluster(4, {Policy{{200}, {kDay.v / 200}}});
  cluster.network.delay = ms(GENERATE(1, 100));
  admit_on_both_sides(cluster, kKeys);
  CHECK(lacking(cluster, kKeys, {280}) == 0);
  // Each node has told two others of all keys. (The margin is for vectors and digests.)
  const std::uint64_t told = 4 * 2 * kKeys * kEntry;
  CAPTURE(static_cast<double>(cluster.sent[Traffic::repair].bytes) / static_cast<double>(told));
  CHECK(cluster.sent[Traffic::repair].bytes < told + told / 5);
}

TEST_CASE("a question is answered with two megabytes at most while chunks are on their way", "[replica][absence]") {
  ReplicatedTerms how = terms(200, {kDay.v / 200});
  how.flush_after = ms(1);
  Told told(how);
  told.pass(ms(5000));  // nobody is heard
  REQUIRE(told.replica.live() == 1);
  for (std::uint64_t i = 0; i < 150'000; ++i) told.asks(nth(i));
  told.pass(ms(100));
  told.hear_beat(1, 1);
  const auto ask = [&] {
    told.hear(1, 1, NackItem{{{0}, 1}, {{1, 150'000}}});
    return told.sent_bytes();
  };
  std::size_t sent = 0;
  for (int i = 0; i < 5; ++i) sent += ask();
  CHECK(sent > 2'000'000);
  CHECK(sent < 3'000'000);  // one chunk more at most
  told.pass(ms(1500), 1);
  CHECK(ask() > 2'000'000);  // they may be lost
}

TEST_CASE("past the limit of keys the births of those beyond it are lost, and counted, and no others",
          "[replica][absence]") {
  constexpr std::uint64_t kKeys = 4'000;
  constexpr std::uint64_t kKept = 3'000;
  Cluster cluster(4, {Policy{{200}, {kDay.v / 200}}});
  for (std::uint32_t node = 0; node < 4; ++node) cluster.crash(node);
  cluster.configure = [](ReplicaConfig& config) {
    config.history.piece_keys = kKept;
    config.history.log_bytes = 4096;
    config.joining = false;
  };
  for (std::uint32_t node = 0; node < 4; ++node) cluster.start(node);
  admit_on_both_sides(cluster, kKeys);
  CHECK(dropped(cluster) > 0);
  // On each side of the cut two of four nodes were told by each other; what was kept reaches the other side too.
  CHECK(lacking(cluster, kKept, {280}) == 0);
  CHECK(lacking(cluster, kKeys, {280}) > 0);
}

// S5: nodes that started alone and met later knew one node's births only.
TEST_CASE("nodes that admitted before they met know all births afterwards", "[replica][absence]") {
  constexpr std::uint32_t kNodes = 5;
  Cluster cluster(kNodes, {Policy{{100}, {kDay.v / 100}}});
  for (std::uint32_t node = 0; node < kNodes; ++node) cluster.crash(node);
  cluster.configure = [](ReplicaConfig& config) {
    config.members = {config.self};
    config.neighbours.clear();
    config.joining = false;
  };
  for (std::uint32_t node = 0; node < kNodes; ++node) cluster.start(node);
  for (std::uint64_t i = 0; i < 100; ++i) {
    for (std::uint32_t node = 0; node < kNodes; ++node) REQUIRE(cluster.admits(node, nth(i), {60}));
    cluster.run_for(ms(30));
  }
  for (std::uint32_t node = 0; node < kNodes; ++node) {
    for (std::uint32_t other = 0; other < kNodes; ++other) {
      if (other != node) cluster.registers(node, other);
    }
  }
  cluster.run_for(ms(90'000));
  for (std::uint32_t node = 0; node < kNodes; ++node) {
    for (std::uint64_t i = 0; i < 100; ++i) {
      Tokens here = cluster.at(node).published(kLimiter, nth(i)).weight();
      CHECK(here <= Tokens{300});
      here = here + cluster.at(node).unsent(kLimiter, nth(i)).weight();
      CHECK(here == Tokens{300});
    }
    CHECK(cluster.at(node).stats().lost_own_records == 0);
  }
}

// The soak of five real nodes found that each longer cut of one link cost copies of the whole state: the nodes between
// had dropped what the cut one lacked, as the origin said that all whom it still held for live had it.
TEST_CASE("a link that flaps costs no copy of the state while others hear both ends", "[replica][absence]") {
  constexpr std::uint64_t kKeys = 5'000;
  for (std::uint64_t seed = 1; seed <= case_count(300) / 10; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    ReplicatedTerms how = terms(1000, {kDay.v / 1000});
    how.flush_after = ms(100);
    Cluster cluster(pick<std::uint32_t>(rng, {3, 5}), how, rng());
    cluster.network.delay = ms(pick(rng, {1, 5, 50}));
    cluster.network.jitter = ms(pick(rng, {0, 1, 20}));
    std::vector<Tokens> total(kKeys);
    const auto load = [&](Nanos until) {
      while (cluster.now() < until) {
        const auto key = static_cast<std::uint64_t>(draw(rng, 0, kKeys - 1));
        REQUIRE(cluster.admits(static_cast<std::uint32_t>(draw(rng, 0, cluster.size() - 1)), nth(key)));
        total[key] = total[key] + Tokens{1};
        cluster.run_for(ms(2));
      }
    };
    const bool one_way = chance(rng, 30);
    load(cluster.now() + ms(3000));
    for (int i = 0; i < 6; ++i) {
      cluster.cut(0, 1);
      if (!one_way) cluster.cut(1, 0);
      load(cluster.now() + ms(draw(rng, 200, 8000)));
      cluster.heal();
      load(cluster.now() + ms(draw(rng, 200, 6000)));
    }
    cluster.run_for(ms(10'000));
    std::uint64_t copies = 0;
    for (std::uint32_t node = 0; node < cluster.size(); ++node) {
      copies += cluster.at(node).stats().copies;
      CHECK(cluster.at(node).stats().lost_own_records == 0);
      std::uint64_t unlike = 0;
      for (std::uint64_t i = 0; i < kKeys; ++i) {
        unlike += cluster.at(node).published(kLimiter, nth(i)).weight() == total[i] ? 0 : 1;
      }
      CHECK(unlike == 0);
    }
    CHECK(copies == 0);
    CHECK(cluster.repair_is_small());
  }
}

}  // namespace weir::test
