// Replicas in a simulated network: the push rule, repair, absence, join, partitions, claims.
#include <set>

#include "catch.hpp"
#include "cluster.hpp"

namespace weir::test {
namespace {

constexpr KeyHash kKey{0x1234567890abcdef};

ReplicatedTerms terms(std::int64_t capacity, Nanos interval) {
  ReplicatedTerms made;
  made.policy = {{capacity}, interval};
  return made;
}

// All nodes hold the same published births of the key, and none of the nodes misses anything.
void require_alike(Cluster& cluster, KeyHash key) {
  REQUIRE(cluster.quiet());
  const Replica* first = nullptr;
  for (std::uint32_t i = 0; i < cluster.size(); ++i) {
    if (!cluster.up(i)) continue;
    if (first == nullptr) first = &cluster.at(i);
    CAPTURE(i, cluster.at(i).published(kLimiter, key).weight().v, first->published(kLimiter, key).weight().v);
    CHECK(cluster.at(i).published(kLimiter, key) == first->published(kLimiter, key));
  }
}

// Of all births admitted, those that are published or unsent somewhere.
Tokens known(Cluster& cluster, KeyHash key) {
  Tokens sum;
  bool counted = false;
  for (std::uint32_t i = 0; i < cluster.size(); ++i) {
    if (!cluster.up(i)) continue;
    if (!counted) sum = sum + cluster.at(i).published(kLimiter, key).weight();
    counted = true;
    sum = sum + cluster.at(i).unsent(kLimiter, key).weight();
  }
  return sum;
}

void fill(Cluster& cluster, KeyHash key, int requests, Nanos apart, Rng& rng) {
  for (int i = 0; i < requests; ++i) {
    std::uint32_t node = 0;
    do {
      node = static_cast<std::uint32_t>(draw(rng, 0, cluster.size() - 1));
    } while (!cluster.up(node));
    cluster.ask(node, key);
    cluster.run_for(apart);
  }
}

Tokens admitted(Cluster& cluster, KeyHash key) {
  Tokens sum;
  for (const Interval& period : cluster.admitted[key.v].busy({{1}, {1}})) sum = sum + period.count;
  return sum;
}

}  // namespace

TEST_CASE("without delay, a full bucket is admitted and no more", "[replica]") {
  Rng rng(7);
  Cluster cluster(30, terms(1000, ms(100'000)));
  cluster.network.delay = {0};
  fill(cluster, kKey, 3000, ms(25), rng);  // slow enough for every frame to leave between two requests
  CHECK(admitted(cluster, kKey) == Tokens{1000});
  cluster.run_for(ms(5000));
  require_alike(cluster, kKey);
}

TEST_CASE("loss, jitter and duplicates: everything published arrives once", "[replica]") {
  Rng rng(8);
  Cluster cluster(8, terms(200, ms(1000)));
  cluster.network = {ms(20), ms(15), 20, 10};
  fill(cluster, kKey, 800, ms(10), rng);
  cluster.run_for(ms(20'000));
  require_alike(cluster, kKey);
  CHECK(known(cluster, kKey) == admitted(cluster, kKey));
  CHECK(cluster.at(0).stats().nacks > 0);
}

TEST_CASE("a quiet cluster sends heartbeats and nothing else", "[replica]") {
  Rng rng(9);
  Cluster cluster(5, terms(100, ms(1000)));
  fill(cluster, kKey, 100, ms(5), rng);
  cluster.run_for(ms(20'000));
  cluster.sent.clear();
  cluster.run_for(ms(60'000));
  CHECK(cluster.sent[Traffic::data].frames == 0);
  CHECK(cluster.sent[Traffic::repair].frames == 0);
  CHECK(cluster.sent[Traffic::heartbeat].frames > 0);
}

TEST_CASE("after a partition both sides hold the union", "[replica]") {
  Rng rng(10);
  Cluster cluster(6, terms(500, ms(1000)));
  fill(cluster, kKey, 50, ms(10), rng);
  cluster.partition({0, 1, 2});
  fill(cluster, kKey, 2000, ms(5), rng);
  CHECK(cluster.at(0).live() == 3);
  cluster.heal();
  cluster.run_for(ms(10'000));
  CHECK(cluster.at(0).live() == 6);
  require_alike(cluster, kKey);
  CHECK(known(cluster, kKey) == admitted(cluster, kKey));
  CHECK(cluster.at(0).stats().chunks_applied > 0);
  CHECK(cluster.at(0).stats().copies == 0);
}

TEST_CASE("a chunk past its limit is made good by state copies", "[replica]") {
  Rng rng(11);
  Cluster cluster(4, terms(500, ms(1000)));
  for (std::uint32_t i = 0; i < 4; ++i) cluster.crash(i);
  cluster.configure = [](ReplicaConfig& config) {
    config.history.piece_keys = 2;
    config.joining = false;
  };
  for (std::uint32_t i = 0; i < 4; ++i) cluster.start(i);
  cluster.run_for(ms(3000));
  cluster.partition({0, 1});
  cluster.run_for(ms(3000));
  for (std::uint64_t k = 1; k <= 20; ++k) fill(cluster, {k << 55 | k}, 900, ms(1), rng);
  cluster.heal();
  cluster.run_for(ms(20'000));
  CHECK(cluster.at(0).stats().copies + cluster.at(2).stats().copies > 0);
  for (std::uint64_t k = 1; k <= 20; ++k) {
    CAPTURE(k);
    require_alike(cluster, {k << 55 | k});
    CHECK(known(cluster, {k << 55 | k}) <= admitted(cluster, {k << 55 | k}));
  }
}

TEST_CASE("a node that comes back copies the state of a peer", "[replica]") {
  Rng rng(12);
  Cluster cluster(5, terms(300, ms(1000)));
  fill(cluster, kKey, 100, ms(10), rng);
  cluster.run_for(ms(100));
  cluster.crash(3);
  fill(cluster, kKey, 100, ms(10), rng);
  cluster.start(3);
  fill(cluster, kKey, 60, ms(10), rng);
  cluster.run_for(ms(10'000));
  CHECK(cluster.at(3).stats().copies == 1);
  require_alike(cluster, kKey);
  CHECK(known(cluster, kKey) <= admitted(cluster, kKey));
  CHECK(known(cluster, kKey).v >= admitted(cluster, kKey).v - 60);  // slack / N, at most
}

TEST_CASE("a run that is over is forgotten", "[replica]") {
  Rng rng(13);
  Cluster cluster(3, terms(300, ms(1000)));
  for (int round = 0; round < 5; ++round) {
    fill(cluster, kKey, 30, ms(10), rng);
    cluster.crash(2);
    cluster.run_for(ms(500));
    cluster.start(2);
    cluster.run_for(ms(1000));
  }
  cluster.run_for(ms(60'000));
  CHECK(cluster.at(0).vector().size() == 3);
  CHECK(cluster.at(2).vector().size() == 3);
  require_alike(cluster, kKey);
}

TEST_CASE("share: the sides of a partition stay near the limit; closed: the smaller one denies", "[replica]") {
  const auto policy = GENERATE(Partition::open, Partition::share, Partition::closed);
  Rng rng(14);
  ReplicatedTerms how = terms(1000, ms(100'000));
  how.partition = policy;
  Cluster cluster(10, how);
  cluster.run_for(ms(1000));
  cluster.partition({0, 1, 2, 3, 4});
  cluster.run_for(ms(4000));
  fill(cluster, kKey, 6000, ms(2), rng);
  const Tokens sum = admitted(cluster, kKey);
  CAPTURE(sum.v);
  if (policy == Partition::open) CHECK(sum == Tokens{2000});
  if (policy == Partition::share) CHECK((sum >= Tokens{990} && sum <= Tokens{1020}));
  if (policy == Partition::closed) CHECK(sum == Tokens{0});
  cluster.heal();
  cluster.run_for(ms(10'000));
  require_alike(cluster, kKey);
  CHECK(known(cluster, kKey) == sum);
}

TEST_CASE("claims: large hits at once on all nodes stay within the bucket", "[replica]") {
  ReplicatedTerms how = terms(1000, ms(100'000));
  how.large_hits = LargeHits::claim;
  Cluster cluster(10, how);
  cluster.network.delay = ms(5);
  cluster.run_for(ms(1000));
  std::vector<std::uint64_t> tickets;
  for (std::uint32_t i = 0; i < 10; ++i) tickets.push_back(cluster.ask(i, kKey, {300}));
  cluster.run_for(ms(500));
  int allowed = 0;
  for (const std::uint64_t ticket : tickets) allowed += cluster.answers.at(ticket) ? 1 : 0;
  CHECK(allowed == 3);
  CHECK(admitted(cluster, kKey) == Tokens{900});
  require_alike(cluster, kKey);
}

TEST_CASE("births from the far future put a peer into quarantine", "[replica]") {
  Cluster cluster(3, terms(100, ms(1000)));
  cluster.run_for(ms(1000));
  cluster.skew(1, ms(60'000));
  for (int i = 0; i < 50; ++i) cluster.ask(1, kKey);
  cluster.run_for(ms(5000));
  CHECK(cluster.at(0).published(kLimiter, kKey).empty());
  CHECK(cluster.at(0).stats().refused > 0);
  CHECK(cluster.at(2).clock_of({1})->first > ms(10'000));
}

}  // namespace weir::test
