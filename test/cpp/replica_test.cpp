// Replicas in a simulated network: the push rule, repair, absence, join, partitions, claims.
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cluster.hpp"
#include "told.hpp"

namespace weir::test {
namespace {

// All nodes hold the same published births of the key, none of the nodes misses anything, and repair was small. (A
// state copy has 64 vectors: that is more than a little data.)
void require_alike(Cluster& cluster, KeyHash key, bool copied = false) {
  REQUIRE(cluster.quiet());
  CAPTURE(cluster.sent[Traffic::repair].bytes, cluster.sent[Traffic::data].bytes);
  CHECK((copied || cluster.repair_is_small()));
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

TEST_CASE("who is a tenth above the rate is limited, though most nodes never reach their share", "[replica]") {
  // 0.9 of the rate at one node, 0.2 at the others together (decision 0006), for 15 retentions of a horizon (20 s) that
  // sweeps are too slow for.
  Cluster cluster(10, terms(1000, ms(10)));
  constexpr std::uint32_t kTenths = 15 * 20 * 10;
  for (std::uint32_t tenth = 0; tenth < kTenths; ++tenth) {
    for (std::uint32_t i = 0; i < 11; ++i) {
      cluster.ask(i < 9 ? 0 : 1 + (tenth * 2 + i) % 9, kKey);
      cluster.run_for(ms(9));
    }
    cluster.run_for(ms(1));
  }
  CHECK(cluster.level(kKey) <= 1000 + 4);
  CHECK(admitted(cluster, kKey) >= Tokens{kTenths * 10});
}

TEST_CASE("births before a reset count on no node that was told, later ones on all", "[replica]") {
  Cluster cluster(3, terms(10, ms(3'600'000)));
  Rng rng(5);
  fill(cluster, kKey, 8, ms(10), rng);
  const Nanos at = cluster.now();
  for (std::uint32_t i = 0; i < 3; ++i) REQUIRE(cluster.at(i).reset(kLimiter, kKey, at, at, false));
  cluster.run_for(ms(1));
  CHECK(cluster.at(1).published(kLimiter, kKey).empty());
  cluster.run_for(ms(50));
  int allowed = 0;
  for (int i = 0; i < 15; ++i) {
    allowed += cluster.admits(static_cast<std::uint32_t>(i % 3), kKey) ? 1 : 0;
    cluster.run_for(ms(10));
  }
  CHECK(allowed == 10);
  // An older reset changes nothing, one of the far future is refused.
  CHECK(cluster.at(0).reset(kLimiter, kKey, at - ms(5), cluster.now(), false));
  CHECK_FALSE(cluster.at(0).reset(kLimiter, kKey, cluster.now() + ms(60'000), cluster.now(), false));
  CHECK_FALSE(cluster.admits(0, kKey));
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

TEST_CASE("how far a key may exceed its capacity is stated, and how far it did is seen", "[replica]") {
  Cluster cluster(3, terms(100, ms(100'000)));
  cluster.network.delay = ms(50);
  cluster.run_for(ms(3000));  // the delay is measured
  const auto at = [&](std::uint32_t node) { return cluster.at(node).overshoot(kLimiter, kKey, cluster.now()); };
  CHECK(at(0).expected == Tokens{2});
  CHECK(at(0).worst == Tokens{200});
  CHECK(at(0).exceeded == Tokens{0});
  // Within one delay, each is asked for all.
  for (std::uint32_t i = 0; i < 3; ++i) REQUIRE(cluster.admits(i, kKey, {100}));
  CHECK(at(0).worst == Tokens{0});
  CHECK(at(0).exceeded == Tokens{0});
  cluster.run_for(ms(200));
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(at(i).exceeded == Tokens{200});
    CHECK(cluster.at(i).most_exceeded(kLimiter).exceeded == Tokens{200});
  }
  // It comes back; the most is kept, until the limiter changes.
  cluster.run_for(ms(10'000'000));
  CHECK(at(0).exceeded == Tokens{100});
  CHECK(cluster.at(0).most_exceeded(kLimiter).exceeded == Tokens{200});
  ReplicatedTerms changed = terms(200, ms(100'000));
  changed.version = 2;
  Effects effects;
  cluster.at(0).put_limiter(kLimiter, changed, cluster.now(), effects);
  CHECK(cluster.at(0).most_exceeded(kLimiter).exceeded == Tokens{0});
  CHECK(Cluster(1, terms(100, ms(1000))).at(0).overshoot(kLimiter, kKey, cluster.now()).worst == Tokens{0});
}

TEST_CASE("at steady arrivals, what exceeds the capacity is within what is expected", "[replica]") {
  // 1000 tokens a second over 5 nodes, 30 ms apart: 30 come within one delay.
  Cluster cluster(5, terms(1000, ms(100'000)));
  cluster.network.delay = ms(30);
  cluster.run_for(ms(3000));
  for (std::uint32_t i = 0; i < 2000; ++i) {
    cluster.ask(i * 7 % 5, kKey);
    cluster.run_for(ms(1));
  }
  cluster.run_for(ms(1000));
  const std::int64_t exceeded = admitted(cluster, kKey).v - 1000;
  CHECK(exceeded > 2);
  for (std::uint32_t i = 0; i < 5; ++i) {
    const Overshoot most = cluster.at(i).most_exceeded(kLimiter);
    CAPTURE(i, exceeded, most.exceeded.v, most.expected.v);
    CHECK(most.exceeded == Tokens{exceeded});
    CHECK(most.exceeded <= most.expected);
    CHECK(most.expected <= Tokens{90});  // 60, and what the rate's window adds
  }
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
  cluster.run_for(ms(60'000));
  CHECK(cluster.at(0).stats().copies + cluster.at(2).stats().copies > 0);
  for (std::uint64_t k = 1; k <= 20; ++k) {
    CAPTURE(k);
    require_alike(cluster, {k << 55 | k}, true);
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
  require_alike(cluster, kKey, true);
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
  CHECK(cluster.at(0).quarantined({1}));
  CHECK_FALSE(cluster.at(0).quarantined({2}));
  CHECK_FALSE(cluster.at(0).quarantined({9}));
}

TEST_CASE("a round trip of years is none", "[replica]") {
  Told told(terms(100, ms(1000)));
  HeartbeatItem beat;
  beat.sent = kBase;
  beat.echo = {1};
  beat.receiver_incarnation = 1;
  beat.head = 5;
  for (std::uint32_t node = 1; node < 4; ++node) told.hear(node, 1, beat);
  CHECK_FALSE(told.replica.clock_of({1}));
  // What is missing is asked for again and again, each time later.
  told.pass(ms(20'000));
  CHECK(told.replica.stats().nacks > 3);
}

TEST_CASE("a copy may say of huge ranges that they are there", "[replica]") {
  Told told(terms(100, ms(1000)));
  told.hear_record(2, {{2}, 1}, 1, kKey);
  told.want_copy();
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    CopyItem head = segment_of(segment, {{{{1}, 1}, 1000}, {{{2}, 1}, 1}});
    head.beyond = {{{{2}, 1}, {{3, 3}, {5, kLimit}}}};
    told.hear_segment(head);
  }
  REQUIRE_FALSE(told.replica.copying());
  told.hear_record(2, {{2}, 1}, 1'000'000, kKey);
  CHECK(told.replica.stats().duplicates == 1);
  told.hear_record(2, {{2}, 1}, 2, kKey);
  CHECK(told.published(kKey) == 1);
}

TEST_CASE("a side's tokens are multiplied for the other side without overflow", "[replica]") {
  ReplicatedTerms how = terms(kSpanMax.v, {1});
  how.partition = Partition::share;
  Told told(how);
  told.pass(ms(5000));
  REQUIRE(told.replica.live() == 1);
  told.hear_beat(1, 1);
  for (std::uint64_t seq = 1; seq <= 20; ++seq) told.hear_record(1, {{1}, 1}, seq, kKey, std::int64_t{1} << 61);
  CHECK(told.replica.live() == 2);
  CHECK_FALSE(told.asks(kKey));
}

TEST_CASE("what is held for the other side goes with its keys", "[replica]") {
  ReplicatedTerms how = terms(10, ms(1));
  how.partition = Partition::share;
  how.flush_after = ms(100);
  Told told(how, [](ReplicaConfig& config) { config.history.piece_keys = 1; });
  told.pass(ms(5000));
  REQUIRE(told.replica.live() == 1);
  const auto round = [&] {
    for (std::uint64_t i = 1; i <= 2000; ++i) told.asks({i << 52 | i});
    told.pass(ms(140'000));  // two sweeps of all segments
    CHECK(told.replica.keys() == 0);
    return told.replica.held().state;
  };
  const std::size_t once = round();
  // The keys' table is gone; what is left of them is the list of those that were due.
  CHECK(once < 2000 * 20);
  for (int i = 0; i < 3; ++i) CHECK(round() <= once + 1200);
}

TEST_CASE("many claims at once don't overflow", "[replica]") {
  ReplicatedTerms how = terms(kSpanMax.v, {1});
  how.large_hits = LargeHits::claim;
  Told told(how);
  for (std::uint64_t id = 1; id <= 40; ++id) {
    told.hear(1, 1, ClaimItem{id, {kLimiter, 1, kKey}, {kSpanMax.v}, told.now});
  }
  CHECK_FALSE(told.asks(kKey));
  for (std::uint64_t id = 1; id <= 40; ++id) told.hear(1, 1, ClaimDoneItem{id});
  CHECK(told.asks(kKey));
}

TEST_CASE("no node is told that it has left itself", "[replica]") {
  ReplicatedTerms how = terms(100, ms(1000));
  how.partition = Partition::share;
  Told told(how);
  for (std::uint32_t node = 0; node < 4; ++node) told.step(Unregistered{{node}});
  CHECK(told.replica.registered() == 1);
  CHECK(told.replica.live() == 1);
  CHECK(told.asks(kKey));
}

TEST_CASE("after a copy every key decides on what it holds", "[replica]") {
  // Small tables that are nearly full: keys that go shift others from the start of a segment's table to its end.
  for_cases([](Rng& rng) {
    Told told(terms(1000, ms(3'600'000)));
    std::vector<KeyHash> own;
    std::uint64_t seq = 0;
    for (std::uint64_t i = 0; i < 24; ++i) {
      const KeyHash key{(i % 4) << 58 | (rng() >> 6 | 1)};
      if (chance(rng, 40)) {
        REQUIRE(told.asks(key, {40}));
        own.push_back(key);
      }
      told.hear_record(1, {{1}, 1}, ++seq, key, 500);
    }
    told.want_copy();
    for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
      told.hear_segment(segment_of(segment, {{{{1}, 1}, 1000}}));
    }
    REQUIRE_FALSE(told.replica.copying());
    for (const KeyHash key : own) {
      REQUIRE(told.published(key) == 0);
      CHECK(told.asks(key, {960}));
    }
  });
}

TEST_CASE("a chunk that waited for a copy is not of a run that the copy knows to be over", "[replica]") {
  Told told(terms(100, ms(1000)));
  told.hear_beat(2, 1);
  told.want_copy();
  FrameWriter chunk(1);
  const Interval births{told.now, {7}};
  const Subject subject{kLimiter, 1, kKey};
  chunk.chunk(0, 3, 1);
  chunk.entry(subject, {&births, 1});
  told.hear(2, chunk);
  told.hear_beat(2, 2);
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    // The chunk's births are in the copy.
    const bool here = segment == Keys::segment_of(kKey);
    const auto entry = here ? std::optional(std::pair(subject, births)) : std::nullopt;
    told.hear_segment(segment_of(segment, {{{{1}, 1}, 1000}, {{{2}, 1}, kForgotten}}), 1, entry);
  }
  REQUIRE_FALSE(told.replica.copying());
  CHECK(told.published(kKey) == 7);
}

TEST_CASE("births of an older version of a limiter count in chunks and copies as in records", "[replica]") {
  // Apart under the old interval, overlapping under the new one.
  const std::vector<Interval> births = {{kBase, {2}}, {kBase + ms(10), {3}}};
  const Subject old{kLimiter, 1, kKey};
  ReplicatedTerms next = terms(100, ms(3'600'000));
  next.version = 2;
  Told told(terms(100, ms(1)));
  told.put(kLimiter, next);
  SECTION("chunk") {
    FrameWriter chunk(1);
    chunk.chunk(0, 2, 1);
    chunk.entry(old, births);
    told.hear(1, chunk);
  }
  SECTION("copy") {
    told.want_copy();
    for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
      const bool here = segment == Keys::segment_of(kKey);
      FrameWriter frame(1);
      frame.copy(segment_of(segment, {{{{1}, 1}, 1000}}), here ? 1 : 0);
      if (here) frame.entry(old, births);
      told.hear(1, frame);
    }
  }
  CHECK(told.replica.stats().malformed == 0);
  CHECK(told.published(kKey) == 5);
}

TEST_CASE("flush_after holds for each limiter", "[replica]") {
  ReplicatedTerms slow = terms(1000, ms(100'000));
  slow.flush_after = ms(60'000);
  ReplicatedTerms quick = slow;
  quick.flush_after = ms(1000);
  Told told(slow);
  told.put({1}, quick);
  REQUIRE(told.asks(kKey));
  REQUIRE(told.asks(kKey, {1}, {1}));
  told.pass(ms(1500), 1);
  CHECK(told.replica.unsent({1}, kKey).empty());
  CHECK_FALSE(told.replica.unsent(kLimiter, kKey).empty());
  told.pass(ms(60'000), 1);
  CHECK(told.replica.unsent(kLimiter, kKey).empty());
}

// A copy in two answers: between them the donor heard of node 3 and, out of order, of a later record of node 2.
TEST_CASE("segments copied at different times count every record once", "[replica]") {
  const KeyHash first{1};
  const KeyHash last{63ULL << 58 | 1};
  Told told(terms(100, ms(1000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  told.want_copy();
  const std::vector<VectorEntry> before = {{{{1}, 1}, 1000}, {{{2}, 1}, 5}};
  std::vector<VectorEntry> after = before;
  after.push_back({{{3}, 1}, 2});
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    CopyItem head = segment_of(segment, segment == 63 ? after : before);
    if (segment == 63) head.beyond = {{{{2}, 1}, {{7, 7}}}};
    const std::pair entry{Subject{kLimiter, 1, last}, Interval{told.now, {3}}};  // 1 and 2 of node 3, 7 of node 2
    told.hear_segment(head, 1, segment == 63 ? std::optional(entry) : std::nullopt);
  }
  REQUIRE_FALSE(told.replica.copying());
  // It stands between two vectors, and gives each segment with its own.
  told.hear(2, 1, CopyRequestItem{1 | std::uint64_t{1} << 63});
  const std::vector<CopyItem> given = items<CopyItem>(told.effects);
  REQUIRE(given.size() == 2);
  const auto upto = [](const CopyItem& item, NodeId node) {
    for (const VectorEntry& entry : item.vector)
      if (entry.origin == OriginId{node, 1}) return entry.upto;
    return std::uint64_t{0};
  };
  CHECK((upto(given[0], {2}) == 5 && upto(given[0], {3}) == 0 && given[0].beyond.empty()));
  CHECK((upto(given[1], {2}) == 5 && upto(given[1], {3}) == 2));
  REQUIRE(given[1].beyond.size() == 1);
  CHECK(given[1].beyond[0].ranges == std::vector<Range>{{7, 7}});
  told.hear_record(3, {{3}, 1}, 1, last);
  told.hear_record(3, {{3}, 1}, 2, last);
  told.hear_record(2, {{2}, 1}, 7, last);
  CHECK(told.published(last) == 3);
  told.hear_record(3, {{3}, 1}, 3, last);
  told.hear_record(2, {{2}, 1}, 6, first);
  CHECK(told.published(last) == 4);
  CHECK(told.published(first) == 1);
  // All segments stand alike now.
  told.pass(ms(1000), 1);
  told.hear(2, 1, CopyRequestItem{2 | std::uint64_t{1} << 62});
  const std::vector<CopyItem> later = items<CopyItem>(told.effects);
  REQUIRE(later.size() == 2);
  CHECK(later[0].vector == later[1].vector);
  CHECK(upto(later[0], {2}) == 7);
}

TEST_CASE("a little frame is not answered with many large ones", "[replica]") {
  Told told(terms(1'000'000, ms(1000)), [](ReplicaConfig& config) { config.coalesce_most = {0}; });
  for (std::uint64_t i = 0; i < 2000; ++i) told.asks({i << 52 | 1}, {500'000});
  REQUIRE(told.replica.log_bytes() > 40'000);
  const std::size_t once = 200'000;  // more than the log, or the state, has
  const auto heard = [&](const auto& item) {
    told.now = told.now + ms(1000);
    FrameWriter frame(1);
    for (int i = 0; i < 300; ++i) frame.put(item);
    told.hear(1, frame);
    return told.sent_bytes();
  };
  const std::size_t records = heard(NackItem{{{0}, 1}, {{1, 2000}}});
  CHECK(records > 40'000);
  CHECK(records < once);
  const std::size_t copy = heard(CopyRequestItem{~std::uint64_t{0}});
  CHECK(copy > 40'000);
  CHECK(copy < once);
  CHECK(heard(DigestItem{1, 2}) < 100);
  CHECK(heard(VectorItem{true, {}, {}}) < 100);

  // Nor is one that came twice.
  for (int i = 0; i < 2; ++i) told.hear(2, 1, CopyRequestItem{~std::uint64_t{0}});
  CHECK(told.sent_bytes() == 0);

  // A peer that was away is supplied once.
  told.pass(ms(3000));
  REQUIRE(told.replica.live() == 1);
  FrameWriter frame(1);
  VectorItem vector;
  vector.entries.resize(300, {{{0}, 1}, 0});
  frame.put(vector);
  told.hear(1, frame);
  CHECK(told.sent_bytes() > 40'000);
  CHECK(told.sent_bytes() < once);
}

TEST_CASE("what a peer lacks comes in the order in which it can be taken", "[replica]") {
  Told told(terms(1000, ms(3'600'000)));
  told.asks(kKey, {500});
  told.pass(ms(100));  // record 1
  told.pass(ms(5000));
  REQUIRE(told.replica.live() == 1);
  told.asks(kKey, {400});
  told.pass(ms(100));  // record 2, in the chunk of the absence
  told.hear(1, 1, VectorItem{false, {{{{0}, 1}, 0}}, {}});
  std::vector<std::size_t> kinds;
  Frame frame;
  for (const Send& send : told.effects.sends) {
    REQUIRE(decode(told.effects.frames[send.frame], {0}, frame) == FrameError::none);
    if (send.to == NodeId{1} && !frame.items.empty()) kinds.push_back(frame.items.front().index());
  }
  const std::size_t record = Item(RecordItem{}).index();
  const std::size_t chunk = Item(ChunkItem{}).index();
  CHECK(std::vector<std::size_t>(kinds.end() - 2, kinds.end()) == std::vector<std::size_t>{record, chunk});
}

TEST_CASE("runs that were made up are few, and don't end the run that is heard", "[replica]") {
  Told told(terms(1000, ms(3'600'000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 5);
  told.hear_record(3, {{3}, 5}, 1, kKey);
  SECTION("by another node") {
    for (std::uint64_t i = 0; i < 1000; ++i) told.hear_record(1, {{3}, (std::uint64_t{1} << 63) + i}, 2, kKey);
    VectorItem vector;
    for (std::uint64_t i = 0; i < 1000; ++i) vector.entries.push_back({{{3}, (std::uint64_t{1} << 62) + i}, 7});
    told.hear(1, 5, vector);
  }
  SECTION("before the node was heard") {
    told.step(Unregistered{{3}});
    told.step(Registered{{3}});
    for (std::uint64_t i = 0; i < 100; ++i) told.hear_record(1, {{3}, (std::uint64_t{1} << 63) + i}, 2, kKey);
    for (int i = 0; i < 2; ++i) told.hear_beat(3, 6);
    const std::uint64_t refused = told.replica.stats().refused;
    told.hear_record(3, {{3}, 6}, 1, kKey);
    CHECK(told.replica.stats().refused == refused);
    return;
  }
  SECTION("by itself, all of them over") {
    for (std::uint64_t i = 6; i < 1000; ++i) told.hear_beat(3, i);
    CHECK(told.replica.vector().size() <= 20);
    told.pass(ms(120'000), 1000);
    CHECK(told.replica.vector().size() == 4);
    told.hear_record(3, {{3}, 1000}, 1, kKey);
    CHECK(told.published(kKey) == 2);
    return;
  }
  CHECK(told.replica.vector().size() <= 20);
  const std::int64_t before = told.published(kKey);
  told.pass(ms(120'000), 5);
  told.hear_record(3, {{3}, 5}, 2, kKey);
  CHECK(told.published(kKey) == before + 1);
}

TEST_CASE("one frame of a made-up run doesn't cut its node off, where membership introduces runs", "[replica]") {
  constexpr std::uint64_t kMadeUp = std::uint64_t{1} << 63;
  Told told(terms(1000, ms(3'600'000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.step(Introduced{{node}, 5});
  told.hear_record(1, {{1}, 5}, 1, kKey);
  told.hear_beat(1, kMadeUp);
  told.hear_record(1, {{1}, kMadeUp}, 1, kKey);
  CHECK(told.replica.stats().refused == 2);
  told.pass(ms(120'000), 5);
  told.hear_record(1, {{1}, 5}, 2, kKey);
  CHECK(told.published(kKey) == 2);
  // Nor does it count before its time; the run before may still be on its way.
  told.hear_record(1, {{1}, 6}, 1, kKey);
  CHECK(told.published(kKey) == 2);
  told.step(Introduced{{1}, 6});
  told.hear_record(1, {{1}, 6}, 1, kKey);
  told.hear_record(1, {{1}, 5}, 3, kKey);
  CHECK(told.published(kKey) == 4);
  // A new member says nothing before it is introduced, and no other node can be.
  told.step(Registered{{7}});
  told.hear_record(7, {{7}, 1}, 1, kKey);
  CHECK(told.published(kKey) == 4);
  told.step(Introduced{{8}, 1});
  told.step(Introduced{{7}, 1});
  told.hear_record(7, {{7}, 1}, 1, kKey);
  told.hear_record(8, {{8}, 1}, 1, kKey);
  CHECK(told.published(kKey) == 5);
}

TEST_CASE("a run that was forgotten is refused, though its node was registered again", "[replica]") {
  Told told(terms(1000, ms(3'600'000)));
  told.hear_beat(3, 5);
  told.hear_record(3, {{3}, 5}, 1, kKey);
  told.step(Unregistered{{3}});
  told.pass(ms(120'000), 5);
  CHECK(told.replica.vector().size() == 3);
  told.step(Registered{{3}});
  told.hear_record(3, {{3}, 5}, 1, kKey);
  CHECK(told.published(kKey) == 1);
  told.hear_record(3, {{3}, 6}, 1, kKey);
  CHECK(told.published(kKey) == 2);
}

TEST_CASE("what the donor didn't have of a node's own births is still in its log when the copy comes", "[replica]") {
  Told told(terms(1000, ms(3'600'000)), [](ReplicaConfig& config) { config.heartbeat_interval = ms(50); });
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  told.want_copy();
  REQUIRE(told.asks(kKey, {500}));
  told.pass(ms(100));
  REQUIRE(told.published(kKey) == 500);
  // The first answer was made before the record came there, the second, of the last segment, after it.
  for (std::size_t segment = 0; segment < 63; ++segment) {
    told.hear_segment(segment_of(segment, {{{{0}, 1}, 0}, {{{1}, 1}, 1000}}));
  }
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1, 0, 1);
  told.pass(ms(100));
  told.hear_segment(segment_of(63, {{{{0}, 1}, 1}, {{{1}, 1}, 1000}}));
  REQUIRE_FALSE(told.replica.copying());
  CHECK(told.published(kKey) == 500);
  CHECK(told.replica.stats().lost_own_records == 0);
}

TEST_CASE("parts of a segment are taken together if they are of one answer", "[replica]") {
  Told told(terms(1000, ms(1000)), [](ReplicaConfig& config) { config.max_keys = 100; });
  told.want_copy();
  CopyItem head = segment_of(0, {{{{1}, 1}, 1000}});
  const std::pair entry{Subject{kLimiter, 1, {1}}, Interval{told.now, {3}}};
  const auto hear = [&](std::uint64_t answer, std::uint16_t part, bool last) {
    head.answer = answer;
    head.part = part;
    head.last = last;
    told.hear_segment(head, 1, entry);
  };
  SECTION("two answers with the same vector") {
    hear(1, 0, false);
    hear(2, 1, true);
    for (std::size_t segment = 1; segment < Keys::kSegments; ++segment)
      told.hear_segment(segment_of(segment, head.vector));
    CHECK(told.replica.copying());
    hear(2, 0, false);
    hear(2, 1, true);
    CHECK_FALSE(told.replica.copying());
  }
  SECTION("endless parts") {
    const std::size_t before = told.replica.held().state;
    hear(1, 0, false);
    CHECK(told.replica.held().state > before);
    for (std::uint16_t part = 1; part < 20'000; ++part) hear(1, part, false);
    CHECK(told.replica.held().state < before + 1200 * (sizeof(Interval) + 300));
  }
}

TEST_CASE("what a run said doesn't count for the next", "[replica]") {
  Told told(terms(1000, ms(3'600'000)));
  for (std::uint32_t node = 1; node < 4; ++node) told.hear_beat(node, 1);
  REQUIRE(told.asks(kKey, {500}));
  told.pass(ms(100));
  REQUIRE(told.replica.log_bytes() > 0);
  told.hear_beat(1, 2);
  for (std::uint32_t node = 2; node < 4; ++node) told.hear_beat(node, 1, 0, 1);
  told.hear(1, 1, VectorItem{false, {{{{0}, 1}, 1}}, {}});
  told.now = told.now + ms(1000);
  told.step(Tick{});
  CHECK(told.replica.log_bytes() > 0);
  told.hear_beat(1, 2, 0, 1);
  told.now = told.now + ms(1000);
  told.step(Tick{});
  CHECK(told.replica.log_bytes() == 0);
}

TEST_CASE("what is passed on fits into a frame", "[replica]") {
  Told told(terms(1000, ms(1)), [](ReplicaConfig& config) { config.neighbours = {{1}, {2}}; });
  std::vector<Interval> most;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(kIntervalCap); ++i) {
    most.push_back({told.now + ms(100 * i), {1}});
  }
  FrameWriter frame(UINT64_MAX);
  for (std::uint64_t seq = 1; frame.size() < kFrameMax - 200; ++seq) {
    frame.record({{1}, UINT64_MAX}, false, seq, {kLimiter, 1, {seq << 40}}, most);
  }
  told.hear(1, frame);
  REQUIRE(told.replica.stats().records_applied > 5000);
  CHECK(count_items<RecordItem>(told.effects) > 5000);
}

TEST_CASE("a full table evicts keys of low level", "[replica]") {
  Rng rng(15);
  ReplicatedTerms how = terms(1000, ms(3'600'000));
  Told told(how, [](ReplicaConfig& config) { config.max_keys = 2000; });
  std::vector<KeyHash> heavy;
  for (int i = 0; i < 200; ++i) {
    heavy.push_back({rng() | 1});
    REQUIRE(told.asks(heavy.back(), {900}));
  }
  for (int i = 0; i < 10'000; ++i) {
    const KeyHash key{rng() | 1};
    REQUIRE(told.asks(key));
    REQUIRE_FALSE(told.asks(key, {1000}));  // it was counted
    REQUIRE(told.replica.keys() <= 2000 + Keys::kSegments);
  }
  for (const KeyHash key : heavy) CHECK_FALSE(told.asks(key, {200}));
  CHECK(told.replica.stats().evicted_keys >= 10'200 - 2064);
}

TEST_CASE("a limiter that takes the place of a dropped one has none of its keys", "[replica]") {
  Told told(terms(10, ms(3'600'000)));
  for (std::uint32_t round = 0; round < 5; ++round) {
    const LimiterId id{1000 + round};
    told.replica.put_limiter(id, terms(10, ms(3'600'000)), told.now, told.effects);
    for (std::uint64_t key = 1; key <= 200; ++key) {
      REQUIRE(told.replica.published(id, {key << 52 | key}).empty());
      REQUIRE(told.replica.unsent(id, {key << 52 | key}).empty());
      for (int i = 0; i < 10; ++i) told.replica.admitted({id, {key << 52 | key}, {1}, told.now, {0}}, told.now);
    }
    REQUIRE(told.replica.keys() == 200);
    told.replica.drop_limiter(id);
    REQUIRE(told.replica.keys() == 0);
  }
  CHECK(told.asks(kKey));
}

TEST_CASE("bytes per key that was admitted once, on the node and on those that hear of it", "[replica]") {
  constexpr std::uint64_t kMany = 200'000;
  // Below its share nothing is sent; with little capacity all is, and waits in a log for those who may lack it.
  const auto key = [](std::uint64_t i) { return KeyHash{i * 0x9e3779b97f4a7c15u | 1}; };
  Told told(terms(1000, ms(100)));
  const std::size_t nothing = told.replica.held().state;
  SECTION("here") {
    for (std::uint64_t i = 1; i <= kMany; ++i) {
      told.replica.prefetch(kLimiter, key(i));
      told.replica.admitted({kLimiter, key(i), {1}, told.now, {0}}, told.now);
    }
  }
  SECTION("there") {
    for (std::uint64_t i = 1; i <= kMany; ++i) told.hear_record(1, {{1}, 1}, i, key(i));
    told.pass(ms(10'000));
  }
  REQUIRE(told.replica.keys() == kMany);
  // The log of others' records is at most 1 MiB, and an eighth.
  CHECK(told.replica.held().state - nothing <= kMany * 290 / 10 + (std::size_t{9} << 17));
}

TEST_CASE("of many frames each is taken as if alone, and what they make due is sent together", "[replica]") {
  const auto frames_of = [](Told& told) {
    // Five own births of each key are less than a share, until others have admitted 80 of 100.
    for (const KeyHash key : {KeyHash{7}, KeyHash{8}}) {
      REQUIRE(told.asks(key, {5}));
      REQUIRE(told.effects.sends.empty());
    }
    std::vector<Bytes> frames;
    for (std::uint64_t seq = 1; seq <= 2; ++seq) {
      FrameWriter writer(1);
      const Interval births{told.now, {80}};
      writer.record({{1}, 1}, false, seq, {kLimiter, 1, {6 + seq}}, {&births, 1});
      frames.push_back(writer.take());
    }
    frames.insert(frames.begin() + 1, Bytes(3, std::byte{0xff}));
    frames.push_back(frames.front());
    return frames;
  };
  const auto at_once = [](ReplicaConfig& config) { config.coalesce_most = {0}; };
  Told one(terms(100, ms(1'000'000)), at_once);
  std::size_t sent = 0;
  for (const Bytes& frame : frames_of(one)) {
    one.step(Arrival{{1}, frame});
    sent += one.effects.frames.size();
  }
  CHECK(sent == 2);
  Told many(terms(100, ms(1'000'000)), at_once);
  const std::vector<Bytes> frames = frames_of(many);
  many.effects.clear();
  for (const Bytes& frame : frames) many.replica.take({{1}, frame}, many.now, many.effects);
  CHECK(many.effects.sends.empty());
  many.replica.send_due(many.now, many.effects);
  CHECK(many.effects.frames.size() == 1);
  CHECK(many.effects.sends.size() == 3);
  for (const Told* const told : {&one, &many}) {
    CHECK(told->published({7}) == 85);
    CHECK(told->published({8}) == 85);
    const ReplicaStats stats = told->replica.stats();
    CHECK(stats.records_applied == 2);
    CHECK(stats.duplicates == 1);
    CHECK(stats.malformed == 1);
  }
}

}  // namespace weir::test
