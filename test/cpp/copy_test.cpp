// State copies: how they are asked for, given and put in place. (What they are worth is in replica_test.cpp and in the
// laws.)
// Shows R62 of doc/requirements.md.
#include <map>
#include <set>
#include <vector>

#include "births.hpp"
#include "catch.hpp"
#include "cluster.hpp"
#include "weir/replica.hpp"

namespace weir::test {
namespace {

constexpr Policy kPolicy{{100}, {1'000'000'000}};
constexpr Nanos kHour{3'600'000'000'000};

ReplicaConfig member(std::uint32_t self, std::uint32_t nodes, bool joining, Nanos start = kBase) {
  ReplicaConfig config;
  config.self = {self};
  config.joining = joining;
  config.start = start;
  config.seed = self;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    config.members.push_back({node});
    if (node != self) config.neighbours.push_back({node});
  }
  return config;
}

// One node of a cluster whose frames are carried by hand.
struct Node {
  Node(const ReplicaConfig& config, Nanos now) : replica(config), id(config.self) {
    replica.put_limiter(kLimiter, {kPolicy}, now, effects);
    effects.clear();
  }
  void step(const Event& event, Nanos now) {
    effects.clear();
    replica.step(event, now, effects);
  }
  template <class What>
  void hear(std::uint32_t node, std::uint64_t incarnation, const What& item, Nanos now) {
    FrameWriter frame(incarnation);
    frame.put(item);
    const Bytes bytes = frame.take();
    step(Arrival{{node}, bytes}, now);
  }
  // Of the last step's frames to that node.
  template <class What>
  std::vector<What> sent(std::uint32_t to) const {
    std::vector<What> found;
    Frame frame;
    for (const Send& send : effects.sends) {
      if (send.to != NodeId{to}) continue;
      REQUIRE(decode(effects.frames[send.frame], id, frame) == FrameError::none);
      for (const Item& item : frame.items)
        if (const auto* const what = std::get_if<What>(&item)) found.push_back(*what);
    }
    return found;
  }

  Replica replica;
  NodeId id;
  Effects effects;
};

KeyHash nth(std::uint64_t i) { return {(i + 1) * 0x9e3779b97f4a7c15u}; }

void hear_births(Node& node, std::uint32_t from, std::uint64_t keys, Nanos now) {
  const Interval one{now, {60}};
  for (std::uint64_t i = 0; i < keys; ++i) {
    FrameWriter frame(1);
    frame.record({{from}, 1}, false, i + 1, {kLimiter, 1, nth(i)}, {&one, 1});
    const Bytes bytes = frame.take();
    node.step(Arrival{{from}, bytes}, now);
  }
}

CopyItem part(std::size_t segment, bool last = true, std::uint16_t number = 0) {
  CopyItem head;
  head.segment = static_cast<std::uint8_t>(segment);
  head.vector = {{{{1}, 1}, 7}};
  head.part = number;
  head.last = last;
  return head;
}

void hear_part(Node& node, std::uint32_t donor, const CopyItem& head, Nanos now,
               const std::vector<std::pair<KeyHash, Interval>>& entries = {}) {
  FrameWriter frame(1);
  frame.copy(head, entries.size());
  for (const auto& [key, births] : entries) frame.entry({kLimiter, 1, key}, {&births, 1});
  const Bytes bytes = frame.take();
  node.step(Arrival{{donor}, bytes}, now);
}

const VectorItem kNews{false, {{{{1}, 1}, 7}}, {}};

}  // namespace

TEST_CASE("a large state is given and put in place a few segments a step, each level once", "[replica][copy]") {
  constexpr std::uint64_t kKeys = 200'000;
  constexpr std::size_t kMost = 20'000;  // keys per step; a step takes some microseconds of each
  Nanos now = kBase;
  Node donor(member(0, 3, false), now);
  hear_births(donor, 2, kKeys, now);
  Node joiner(member(1, 3, true), now);
  joiner.replica.tell_levels();
  std::map<std::uint64_t, int> told;
  std::size_t most_told = 0;
  std::size_t most_given = 0;
  std::size_t most_on_the_way = 0;
  std::vector<Bytes> to_joiner, to_donor;
  const auto carried_out = [&](Node& node, std::uint32_t to, std::vector<Bytes>& outbox) {
    std::size_t keys = 0;
    for (const CopyItem& item : node.sent<CopyItem>(to)) keys += item.entries.size();
    most_given = std::max(most_given, keys);
    for (const Send& send : node.effects.sends)
      if (send.to == NodeId{to}) outbox.push_back(node.effects.frames[send.frame]);
    const std::vector<Level> levels = node.replica.take_levels();
    most_told = std::max(most_told, levels.size());
    for (const Level& level : levels) ++told[level.key.v];
  };
  for (int turns = 0; joiner.replica.copying() || joiner.replica.wake() <= now; ++turns) {
    REQUIRE(turns < 10'000);
    now = now + Nanos{1'000'000};
    if (joiner.replica.wake() <= now) {
      joiner.step(Tick{}, now);
      carried_out(joiner, 0, to_donor);
    }
    for (const Bytes& frame : std::exchange(to_donor, {})) {
      donor.step(Arrival{{1}, frame}, now);
      carried_out(donor, 1, to_joiner);
    }
    if (donor.replica.wake() <= now) {
      donor.step(Tick{}, now);
      carried_out(donor, 1, to_joiner);
    }
    std::size_t bytes = 0;
    for (const Bytes& frame : to_joiner) bytes += frame.size();
    most_on_the_way = std::max(most_on_the_way, bytes);
    for (const Bytes& frame : std::exchange(to_joiner, {})) {
      joiner.step(Arrival{{0}, frame}, now);
      carried_out(joiner, 0, to_donor);
    }
  }
  CHECK(joiner.replica.stats().copies == 1);
  CHECK(joiner.replica.keys() == kKeys);
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    if (joiner.replica.published(kLimiter, nth(i)).weight() != Tokens{60}) FAIL("key " << i << " was not copied");
  }
  CHECK(told.size() == kKeys);
  CHECK(std::all_of(told.begin(), told.end(), [](const auto& entry) { return entry.second == 1; }));
  CHECK(most_told > 0);
  CHECK(most_told <= kMost);
  CHECK(most_given > 0);
  CHECK(most_given <= kMost);
  CHECK(most_on_the_way < 3'000'000);  // of 5 MB; outboxes hold 16 MB
}

TEST_CASE("births that come while a copy is put in place count once", "[replica][copy]") {
  constexpr std::uint64_t kKeys = 100'000;
  Nanos now = kBase;
  Node donor(member(0, 3, false), now);
  hear_births(donor, 2, kKeys, now);
  Node joiner(member(1, 3, true), now);
  joiner.step(Tick{}, now);
  joiner.hear(0, 1, VectorItem{false, donor.replica.vector(), {}}, now);
  std::uint64_t asked = 0;
  std::vector<Bytes> to_joiner;
  const auto ask_donor = [&] {
    for (const CopyRequestItem& item : joiner.sent<CopyRequestItem>(0)) {
      donor.hear(1, 1, item, now);
      for (bool more = true; more; donor.step(Tick{}, now)) {
        for (const Send& send : donor.effects.sends)
          if (send.to == NodeId{1} && send.traffic == Traffic::repair)
            to_joiner.push_back(donor.effects.frames[send.frame]);
        more = donor.replica.moves_segments();
        if (!more) break;
      }
    }
  };
  ask_donor();
  // Between any two frames of the copy the joiner admits 30 of a key, so that it is pushed while segments move, and
  // node 2 tells of 5 more of another, of which the donor hears a moment later.
  std::uint64_t record = kKeys;
  const Interval five{now, {5}};
  std::vector<std::pair<KeyHash, std::int64_t>> expected;
  while (joiner.replica.copying()) {
    std::vector<Bytes> frames = std::exchange(to_joiner, {});
    REQUIRE((!frames.empty() || joiner.replica.wake() <= now));
    for (const Bytes& frame : frames) {
      const KeyHash own = nth(asked * 3 % kKeys);
      const KeyHash others = nth((asked * 3 + 1) % kKeys);
      joiner.step(Ask{++asked, kLimiter, own, {30}}, now);
      REQUIRE(joiner.effects.answers.at(0).allowed);
      const auto told = [&](Node& node) {
        FrameWriter writer(1);
        writer.record({{2}, 1}, false, record, {kLimiter, 1, others}, {&five, 1});
        const Bytes bytes = writer.take();
        node.step(Arrival{{2}, bytes}, now);
      };
      ++record;
      told(joiner);
      joiner.step(Arrival{{0}, frame}, now);
      ask_donor();
      told(donor);
      expected.emplace_back(own, 90);
      expected.emplace_back(others, 65);
      now = now + Nanos{1000};
    }
    if (frames.empty()) {
      joiner.step(Tick{}, now);
      ask_donor();
    }
  }
  REQUIRE(asked > 20);
  now = now + kMs;
  for (int i = 0; i < 200; ++i, now = now + kMs) joiner.step(Tick{}, now);
  for (const auto& [key, weight] : expected) {
    const Tokens all = joiner.replica.published(kLimiter, key).weight() + joiner.replica.unsent(kLimiter, key).weight();
    CHECK(all.v == weight);
  }
  CHECK(joiner.replica.stats().lost_own_records == 0);
}

TEST_CASE("a node that joins copies from the peer that answers first", "[replica][copy]") {
  Node joiner(member(0, 4, true), kBase);
  joiner.step(Tick{}, kBase);
  for (std::uint32_t node = 1; node < 4; ++node) {
    CHECK(joiner.sent<VectorItem>(node).size() == 1);
    CHECK(joiner.sent<CopyRequestItem>(node).empty());
  }
  SECTION("and has something to give") {
    joiner.hear(3, 1, VectorItem{false, {{{{3}, 1}, 0}, {{{0}, 1}, 0}}, {}}, kBase + kMs);
    CHECK(joiner.sent<CopyRequestItem>(3).empty());
    joiner.hear(2, 1, kNews, kBase + kMs);
    CHECK(joiner.sent<CopyRequestItem>(2).size() == 1);
    joiner.hear(1, 1, kNews, kBase + kMs);
    CHECK(joiner.sent<CopyRequestItem>(1).empty());
  }
  SECTION("or from any, if none does") {
    joiner.step(Tick{}, kBase + ms(400));
    std::size_t asked = 0;
    for (std::uint32_t node = 1; node < 4; ++node) asked += joiner.sent<CopyRequestItem>(node).size();
    CHECK(asked == 1);
  }
}

TEST_CASE("a copy that is on its way is not asked for again, another is when nothing comes", "[replica][copy]") {
  Node joiner(member(0, 3, true), kBase);
  joiner.step(Tick{}, kBase);
  Nanos now = kBase + kMs;
  joiner.hear(1, 1, kNews, now);
  std::map<std::uint64_t, int> asked;
  const auto note = [&](std::uint32_t donor) {
    for (const CopyRequestItem& item : joiner.sent<CopyRequestItem>(donor))
      for (std::size_t i = 0; i < 64; ++i) asked[i] += static_cast<int>(item.segments >> i & 1);
  };
  note(1);
  // A slow donor: a part each 200 ms, two parts per segment.
  for (std::size_t segment = 0; segment < 40; ++segment) {
    for (std::uint16_t number = 0; number < 2; ++number) {
      for (int i = 0; i < 20; ++i, now = now + ms(10)) {
        joiner.step(Tick{}, now);
        note(1);
        note(2);
      }
      hear_part(joiner, 1, part(segment, number == 1, number), now);
      note(1);
    }
  }
  REQUIRE(asked.size() == 64);
  CHECK(std::all_of(asked.begin(), asked.end(), [](const auto& entry) { return entry.second == 1; }));
  // Now it stops: what is left is asked of the other, who gives it. (Node 1 is silent, and taken to be away.)
  std::uint64_t left = 0;
  for (int i = 0; i < 400 && left == 0; ++i, now = now + ms(10)) {
    HeartbeatItem beat;
    beat.sent = now;
    beat.receiver_incarnation = 1;
    joiner.hear(2, 1, beat, now);
    joiner.step(Tick{}, now);
    for (const CopyRequestItem& item : joiner.sent<CopyRequestItem>(2)) left |= item.segments;
  }
  CHECK(left == ~std::uint64_t{0} << 40);
  for (std::size_t segment = 40; segment < 64; ++segment) hear_part(joiner, 2, part(segment), now);
  CHECK_FALSE(joiner.replica.copying());
  CHECK(joiner.replica.stats().copies == 1);
}

TEST_CASE("a node to which nobody gives a copy goes on without, and says so", "[replica][copy]") {
  Node joiner(member(0, 3, true), kBase);
  Nanos now = kBase;
  for (; joiner.replica.copying() && now < kBase + ms(120'000); now = now + ms(50)) {
    HeartbeatItem beat;
    beat.sent = now;
    for (std::uint32_t node = 1; node < 3; ++node) joiner.hear(node, 1, beat, now);
    joiner.step(Tick{}, now);
  }
  CHECK_FALSE(joiner.replica.copying());
  CHECK(joiner.replica.stats().copies == 0);
  CHECK(joiner.replica.stats().copies_abandoned == 1);
}

TEST_CASE("a copy with births from the future is refused, and its donor put into quarantine", "[replica][copy]") {
  Node joiner(member(0, 3, true), kBase);
  joiner.step(Tick{}, kBase);
  const Nanos now = kBase + kMs;
  joiner.hear(1, 1, kNews, now);
  REQUIRE(joiner.sent<CopyRequestItem>(1).size() == 1);
  hear_part(joiner, 1, part(0), now, {{{1}, {now + kHour, {60}}}});
  CHECK(joiner.replica.published(kLimiter, {1}).empty());
  CHECK(joiner.replica.copying());
  CHECK(joiner.replica.stats().refused == 1);
  CHECK(joiner.replica.quarantined({1}));
  joiner.step(Tick{}, now + kMs);
  CHECK(joiner.sent<CopyRequestItem>(1).empty());
  REQUIRE(joiner.sent<CopyRequestItem>(2).size() == 1);
  for (std::size_t segment = 0; segment < 64; ++segment) hear_part(joiner, 2, part(segment), now + kMs);
  CHECK(joiner.replica.stats().copies == 1);
}

TEST_CASE("a node that was to join when there were no others yet takes a copy when there are", "[replica][copy]") {
  Cluster cluster(2, {Policy{{100}, {60'000'000'000}}});
  cluster.configure = [](ReplicaConfig& config) {
    config.history = {0, 0, 0, 1, 1};  // whatever the other lacks, a copy has to bring
    if (config.self == NodeId{1}) {
      config.members = {{1}};
      config.neighbours.clear();
    }
  };
  for (std::uint32_t node = 0; node < 2; ++node) cluster.crash(node);
  for (std::uint32_t node = 0; node < 2; ++node) cluster.start(node);
  cluster.run_for(ms(40'000));
  for (std::uint64_t i = 0; i < 50; ++i) cluster.ask(0, nth(i), {90});
  cluster.run_for(ms(10'000));
  cluster.registers(1, 0);
  cluster.run_for(ms(60'000));
  CHECK(cluster.at(1).stats().copies_abandoned == 0);
  for (std::uint64_t i = 0; i < 50; ++i) CHECK_FALSE(cluster.at(1).published(kLimiter, nth(i)).empty());
}

// S2 of the independent reading: what the node with the wrong clock admitted reached the others by copies, when its log
// was full, and from the nodes that had copied it.
TEST_CASE("births of a node an hour ahead come neither by its copies nor by those of others", "[replica][copy]") {
  Cluster cluster(3, {Policy{{100}, {60'000'000'000}}});
  cluster.configure = [](ReplicaConfig& config) { config.history.log_bytes = 4096; };
  for (std::uint32_t node = 0; node < 3; ++node) cluster.crash(node);
  cluster.skew(1, kHour);
  for (std::uint32_t node = 0; node < 3; ++node) cluster.start(node);
  cluster.run_for(ms(40'000));
  for (std::uint64_t i = 0; i < 500; ++i) cluster.ask(1, nth(i), {90});
  for (std::uint64_t i = 500; i < 600; ++i) cluster.ask(2, nth(i), {90});
  const auto known = [&](std::uint32_t node, std::uint64_t first, std::uint64_t last) {
    std::size_t count = 0;
    for (std::uint64_t i = first; i < last; ++i) count += cluster.at(node).published(kLimiter, nth(i)).empty() ? 0 : 1;
    return count;
  };
  cluster.run_for(ms(60'000));
  CHECK(known(0, 0, 500) == 0);
  CHECK(known(2, 0, 500) == 0);
  CHECK(known(0, 500, 600) == 100);
  // A node that joins has two donors, one of them with births of the future; many times, as it may choose either.
  for (int i = 0; i < 10; ++i) {
    cluster.crash(0);
    cluster.run_for(ms(5'000));
    cluster.start(0);
    cluster.run_for(ms(20'000));
    CHECK(known(0, 0, 500) == 0);
    CHECK(known(0, 500, 600) == 100);
  }
  // The remedy must not spread it.
  cluster.crash(1);
  cluster.skew(1, {0});
  cluster.start(1);
  cluster.run_for(ms(60'000));
  for (std::uint32_t node = 0; node < 3; ++node) {
    CHECK(known(node, 0, 500) == 0);
    CHECK(known(node, 500, 600) == 100);
  }
}

}  // namespace weir::test
