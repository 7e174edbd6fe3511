// Peers by themselves: life, clocks, acknowledgements, and who passes records on.
#include "weir/peers.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>

#include "cases.hpp"

namespace weir::test {
namespace {

constexpr Nanos kSecond{1'000'000'000};
constexpr Nanos kTimeout{2'000'000'000};
constexpr NodeId kSelf{5};

Nanos after(std::int64_t ms) { return kBase + Nanos{ms * 1'000'000}; }

Peers peers_of(std::initializer_list<std::uint32_t> numbers) {
  std::vector<NodeId> nodes;
  for (const std::uint32_t number : numbers) nodes.push_back({number});
  return {nodes, kBase};
}

Peer& at(Peers& peers, std::uint32_t number) { return *peers.find({number}); }

void goes_away(Peer& peer, Nanos now) {
  peer.live = false;
  peer.behind = true;
  peer.away_since = now;
}

// A heartbeat that was sent at `sent` by the peer's clock, and answers one of `echo` that it held for `held`.
HeartbeatItem beat(Nanos sent, Nanos echo = {0}, Nanos held = {0}) { return {sent, echo, held, 0, 0, 1, 0}; }

std::vector<std::uint32_t> numbers(const std::vector<NodeId>& nodes) {
  std::vector<std::uint32_t> all;
  for (const NodeId node : nodes) all.push_back(node.v);
  return all;
}

using Numbers = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("peers are found by their number, in order, whatever the order in which they came", "[peers]") {
  Peers peers = peers_of({9, 2, 7});
  peers.add({4}, 0, kBase);
  Numbers seen;
  for (const Peer& peer : peers) seen.push_back(peer.node.v);
  CHECK(seen == Numbers{2, 4, 7, 9});
  CHECK(peers.find({4})->node == NodeId{4});
  CHECK(peers.find({5}) == nullptr);
  CHECK(peers.in_turn(6).node == NodeId{7});
  peers.remove({4});
  peers.remove({5});
  CHECK(peers.find({4}) == nullptr);
  CHECK(peers.size() == 3);
}

TEST_CASE("a peer that is added later may lack what there was", "[peers]") {
  Peers peers = peers_of({});
  peers.add({1}, 0, kBase);
  peers.add({2}, 17, kBase);
  CHECK_FALSE(at(peers, 1).behind);
  CHECK(at(peers, 2).behind);
  at(peers, 2).acknowledge(16, 20);
  CHECK(at(peers, 2).behind);
  at(peers, 2).acknowledge(17, 20);
  CHECK_FALSE(at(peers, 2).behind);
}

TEST_CASE("a later run of a peer knows nothing of what the one before it had", "[peers]") {
  Peers peers = peers_of({1});
  Peer& peer = at(peers, 1);
  peer.begin_run(3);  // the first that is heard of: nothing ends
  peer.acknowledge(7, 10);
  peer.spared = 8;
  peer.owed = 1;
  peer.given = 2;
  peer.chunks.emplace_back(4, kBase);
  peer.unheard = {{2}};
  peer.begin_quarantine(kBase);
  REQUIRE(peer.note_beat(beat(after(10)), after(11), kTimeout));
  REQUIRE(peer.measure(beat(after(10), after(5)), after(11)));
  peer.begin_run(4);
  CHECK(peer.incarnation == 4);
  CHECK(peer.served() == 0);
  CHECK(peer.owed == 0);
  CHECK(peer.given == 0);
  CHECK(peer.unheard.empty());
  CHECK_FALSE(peer.quarantined);
  CHECK_FALSE(peer.timed);
  CHECK_FALSE(peer.was_given(4, kBase, kSecond));
  CHECK(peer.note_beat(beat(after(1)), after(12), kTimeout));  // its clock may have been set meanwhile
}

TEST_CASE("peers fall silent, are lost, and are live again each at its own time", "[peers]") {
  Peers peers = peers_of({1, 2, 3});
  at(peers, 2).heard = after(1500);
  CHECK(peers.silent(after(2000), kTimeout).empty());
  CHECK(numbers(peers.silent(after(2001), kTimeout)) == Numbers{1, 3});
  goes_away(at(peers, 1), after(2001));
  goes_away(at(peers, 3), after(2500));
  CHECK(peers.silent(after(2600), kTimeout).empty());
  CHECK(peers.away() == 2);
  CHECK(peers.any_live());
  CHECK(peers.lost(after(7001), {5'000'000'000}).empty());
  CHECK(numbers(peers.lost(after(7002), {5'000'000'000})) == Numbers{1});
  goes_away(at(peers, 2), after(8000));
  CHECK_FALSE(peers.any_live());
}

TEST_CASE("a run is reached if it is its node's last, and live", "[peers]") {
  Peers peers = peers_of({1, 2});
  at(peers, 1).begin_run(7);
  CHECK(peers.reaches({{1}, 7}));
  CHECK_FALSE(peers.reaches({{1}, 6}));
  CHECK_FALSE(peers.reaches({{3}, 7}));
  goes_away(at(peers, 1), kBase);
  CHECK_FALSE(peers.reaches({{1}, 7}));
}

TEST_CASE("the next live peer goes round the ring, past those that weren't heard of", "[peers]") {
  Peers peers = peers_of({1, 3, 6, 8});
  CHECK(peers.next_live(kSelf) == nullptr);
  for (const std::uint32_t number : {1u, 3u, 8u}) at(peers, number).begin_run(1);
  CHECK(peers.next_live(kSelf)->node == NodeId{8});
  CHECK(peers.next_live({8})->node == NodeId{1});
  goes_away(at(peers, 8), kBase);
  CHECK(peers.next_live(kSelf)->node == NodeId{1});
}

TEST_CASE("four time stamps give round trip and offset, smoothed but for jumps", "[peers]") {
  Peer peer;
  // Sent at 0, 30 ms there and back of which 10 it was held, by a clock that is 500 ms ahead.
  REQUIRE(peer.measure(beat(after(520), after(0), {10'000'000}), after(30)));
  CHECK(peer.round_trip == Nanos{20'000'000});
  CHECK(peer.offset == Nanos{500'000'000});
  CHECK(peer.timed);
  REQUIRE(peer.measure(beat(after(1500), after(1000), {0}), after(1180)));
  CHECK(peer.round_trip == Nanos{40'000'000});
  CHECK(peer.offset == Nanos{500'000'000 - 90'000'000 / 8});
  REQUIRE(peer.measure(beat(after(7020), after(2000), {0}), after(2040)));
  CHECK(peer.offset == Nanos{5'000'000'000});
  // Nothing heard yet; held for longer than it was away; from before one of the clocks was set.
  CHECK_FALSE(peer.measure(beat(after(1)), after(2)));
  CHECK_FALSE(peer.measure(beat(after(1), after(0), {3'000'000}), after(2)));
  CHECK_FALSE(peer.measure(beat(after(1), after(0), {0}), after(60'001)));
}

TEST_CASE("the delay is the mean of half the round trips to live peers", "[peers]") {
  Peers peers = peers_of({1, 2, 3, 4});
  peers.measure();
  CHECK(peers.delay() == Nanos{0});
  for (const std::uint32_t number : {1u, 2u, 3u}) {
    at(peers, number).timed = true;
    at(peers, number).round_trip = {20'000'000 * number};
  }
  peers.measure();
  CHECK(peers.delay() == Nanos{20'000'000});
  goes_away(at(peers, 3), kBase);
  peers.measure();
  CHECK(peers.delay() == Nanos{15'000'000});
}

TEST_CASE("a heartbeat that was overtaken says nothing, but one of a clock that was set does", "[peers]") {
  Peer peer;
  CHECK(peer.note_beat(beat(after(1000)), after(1000), kTimeout));
  CHECK_FALSE(peer.note_beat(beat(after(999)), after(1001), kTimeout));
  CHECK(peer.note_beat(beat(after(1000)), after(1002), kTimeout));
  CHECK(peer.note_beat(beat(after(-1001)), after(1003), kTimeout));  // much older
  CHECK(peer.echo == after(-1001));
  CHECK(peer.echo_at == after(1003));
  CHECK(peer.note_beat(beat(after(-1002)), after(3004), kTimeout));  // much later
}

TEST_CASE("a quarantine lasts from its first birth of the future, and says whether it was short", "[peers]") {
  Peer peer;
  peer.begin_quarantine(kBase);
  peer.begin_quarantine(after(4000));
  CHECK(peer.quarantined);
  CHECK(peer.end_quarantine(after(4999)));
  CHECK_FALSE(peer.quarantined);
  peer.begin_quarantine(after(10'000));
  CHECK_FALSE(peer.end_quarantine(after(15'000)));
}

TEST_CASE("a chunk is on its way for a while after it was given", "[peers]") {
  Peer peer;
  peer.chunks = {{4, after(0)}, {9, after(50)}};
  CHECK(peer.was_given(4, after(100), {100'000'000}));
  CHECK_FALSE(peer.was_given(5, after(100), {100'000'000}));
  CHECK_FALSE(peer.was_given(4, after(101), {100'000'000}));
  CHECK(peer.was_given(9, after(101), {100'000'000}));
  CHECK(peer.chunks.size() == 1);
}

TEST_CASE("what peers need of the records goes by what each has, or spares", "[peers]") {
  Peers peers = peers_of({1, 2, 3});
  at(peers, 1).acknowledge(90, 100);
  at(peers, 2).acknowledge(500, 100);  // not more than there are
  at(peers, 3).acknowledge(10, 100);
  auto needs = peers.needs(100);
  CHECK(needs.live == 10);
  CHECK(needs.away == UINT64_MAX);
  CHECK_FALSE(needs.any_away);
  at(peers, 3).spared = 95;
  CHECK(peers.needs(100).live == 90);
  CHECK(peers.stable(100, kBase, kSecond) == 90);
  goes_away(at(peers, 1), after(0));
  needs = peers.needs(100);
  CHECK(needs.live == 95);
  CHECK(needs.away == 90);
  CHECK(needs.any_away);
  CHECK(peers.stable(100, after(999), kSecond) == 90);  // it may be back soon
  CHECK(peers.stable(100, after(1000), kSecond) == 95);
  at(peers, 1).live = true;
  CHECK(peers.needs(100).away == 90);  // it is catching up
  CHECK_FALSE(peers.needs(100).any_away);
}

TEST_CASE("the origin is asked for its records, others when it can't be reached or doesn't answer", "[peers]") {
  Peers peers = peers_of({1, 2, 3, 4});
  at(peers, 1).begin_run(7);
  Origin origin;
  origin.id = {{1}, 7};
  origin.via = {3};
  const auto whom = [&](Nanos now) {
    const Peer* const peer = peers.whom_to_ask(origin, kSelf, now, kTimeout);
    return peer == nullptr ? 0 : peer->node.v;
  };
  CHECK(whom(kBase) == 1);
  at(peers, 1).unheard = {kSelf};  // it wouldn't hear the question
  at(peers, 1).unheard_at = kBase;
  CHECK(whom(kBase) == 3);
  at(peers, 1).unheard.clear();
  origin.attempts = 3;
  CHECK(whom(kBase) == 1);
  origin.attempts = 5;  // in vain: every other question goes elsewhere
  CHECK(whom(kBase) == 3);
  origin.attempts = 6;
  CHECK(whom(kBase) == 1);

  origin.attempts = 0;
  goes_away(at(peers, 1), kBase);
  CHECK(whom(after(1999)) == 0);  // just lost from sight
  CHECK(whom(after(2000)) == 3);
  std::set<std::uint32_t> asked;
  for (origin.attempts = 3; origin.attempts < 11; ++origin.attempts) asked.insert(whom(after(2000)));
  CHECK(asked == std::set<std::uint32_t>{2, 3, 4});
  at(peers, 2).begin_quarantine(kBase);
  asked.clear();
  for (origin.attempts = 3; origin.attempts < 11; ++origin.attempts) asked.insert(whom(after(2000)));
  CHECK(asked == std::set<std::uint32_t>{3, 4});

  // Of a run that is over others may have records, its node's later run has none.
  at(peers, 1).begin_run(8);
  at(peers, 1).live = true;
  origin.attempts = 0;
  CHECK(whom(after(2000)) == 3);
  for (const std::uint32_t number : {2u, 3u, 4u}) goes_away(at(peers, number), kBase);
  CHECK(whom(after(2000)) == 1);  // for want of others
}

TEST_CASE("what a peer doesn't hear holds until it says otherwise, or says nothing any more", "[peers]") {
  Peer peer;
  peer.unheard = {{2}};
  peer.unheard_at = kBase;
  CHECK(peer.doesnt_hear({2}, after(2000), kTimeout));
  CHECK_FALSE(peer.doesnt_hear({3}, after(2000), kTimeout));
  CHECK_FALSE(peer.doesnt_hear({2}, after(2001), kTimeout));
}

// The peers of each of the nodes 1..5, all of which know what links are cut, in which direction.
TEST_CASE("over a cut link the first of those that hear both ends passes records on, and no other", "[peers]") {
  for_cases([](Rng& rng) {
    constexpr std::uint32_t kNodes = 5;
    std::array<std::array<bool, kNodes + 1>, kNodes + 1> unheard{};  // [by][of]
    for (std::int64_t cuts = draw(rng, 0, 4); cuts > 0; --cuts) {
      unheard[static_cast<std::size_t>(draw(rng, 1, kNodes))][static_cast<std::size_t>(draw(rng, 1, kNodes))] = true;
    }
    const auto apart = [&](std::uint32_t a, std::uint32_t b) { return a != b && (unheard[a][b] || unheard[b][a]); };
    for (std::uint32_t self = 1; self <= kNodes; ++self) {
      std::vector<NodeId> others;
      for (std::uint32_t node = 1; node <= kNodes; ++node) {
        if (node != self) others.push_back({node});
      }
      Peers peers(others, kBase);
      for (Peer& peer : peers) {
        peer.unheard_at = kBase;
        peer.live = !unheard[self][peer.node.v];
        for (std::uint32_t node = 1; node <= kNodes; ++node) {
          if (node != peer.node.v && unheard[peer.node.v][node]) peer.unheard.push_back({node});
        }
      }
      peers.find_passes({self}, kBase, kTimeout);
      for (const Peer& from : peers) {
        for (const Peer& to : peers) {
          if (from.node == to.node) continue;
          const bool passes = std::find(from.passes.begin(), from.passes.end(), to.node) != from.passes.end();
          // The first that isn't apart from either end. (To node `self` one that it doesn't hear itself is no such
          // one.)
          std::uint32_t first = 0;
          for (std::uint32_t node = 1; node <= kNodes && first == 0; ++node) {
            if (node == from.node.v || node == to.node.v) continue;
            if (apart(node, from.node.v) || apart(node, to.node.v) || (node != self && unheard[self][node])) continue;
            first = node;
          }
          REQUIRE(passes == (apart(from.node.v, to.node.v) && first == self));
        }
      }
      peers.find_passes({self}, kBase + kTimeout + Nanos{1}, kTimeout);
      for (const Peer& peer : peers) REQUIRE(peer.passes.empty());
    }
  });
}

TEST_CASE("somebody is cut off while a link is, and for a while after a peer went away", "[peers]") {
  Peers peers = peers_of({1, 2});
  CHECK_FALSE(peers.any_cut_off(kBase, kSecond));
  goes_away(at(peers, 1), kBase);
  CHECK(peers.any_cut_off(after(999), kSecond));
  CHECK_FALSE(peers.any_cut_off(after(1000), kSecond));
  at(peers, 2).passes = {{1}};
  CHECK(peers.any_cut_off(after(1000), kSecond));
}

}  // namespace weir::test
