// The network: rates of its faults, who is linked to whom, and the order in which events come.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "lab/error.hpp"
#include "lab/events.hpp"
#include "lab/network.hpp"

namespace weir::lab {
namespace {

constexpr std::int64_t kMs = 1'000'000;

std::set<std::uint32_t> linked(const Network& network, std::uint32_t node) {
  std::set<std::uint32_t> all;
  for (const NodeId other : network.neighbours(node)) all.insert(other.v);
  CHECK(all.size() == network.neighbours(node).size());
  CHECK(!all.contains(node));
  return all;
}

TEST_CASE("a plain network delays, and does nothing else", "[lab]") {
  Network network({}, 4, 1);
  for (int i = 0; i < 100; ++i) {
    const Network::Fate fate = network.send(0, 3, {0});
    CHECK(fate.copies == 1);
    CHECK(fate.delay[0].v == kMs);
  }
  CHECK(linked(network, 1) == std::set<std::uint32_t>{0, 2, 3});
  CHECK(network.hops(0, 3) == 1);
  CHECK(network.skew(2).v == 0);
  CHECK(network.healed().v == 0);
}

TEST_CASE("loss, duplication and reordering come as often as asked", "[lab]") {
  NetworkConfig config;
  config.delay = {5 * kMs};
  config.jitter = {2 * kMs};
  config.loss = 0.1;
  config.duplicate = 0.05;
  config.reorder = 0.2;
  Network network(config, 2, 3);
  int lost = 0, twice = 0, held_back = 0;
  constexpr int kSent = 100'000;
  std::int64_t longest = 0;
  for (int i = 0; i < kSent; ++i) {
    const Network::Fate fate = network.send(0, 1, {0});
    lost += fate.copies == 0 ? 1 : 0;
    twice += fate.copies == 2 ? 1 : 0;
    for (std::uint32_t copy = 0; copy < fate.copies; ++copy) {
      CHECK(fate.delay[copy].v >= 5 * kMs);
      longest = std::max(longest, fate.delay[copy].v);
      held_back += copy == 0 && fate.delay[copy].v > 7 * kMs ? 1 : 0;
    }
  }
  // Five standard deviations of each.
  CHECK(std::abs(lost - 10'000) < 480);
  CHECK(std::abs(twice - 4'500) < 330);
  // Held back by 0 to 30 ms, of which up to 2 ms may hide in the jitter.
  CHECK(held_back > 0.9 * 0.2 * 29 / 30 * kSent * 0.97);
  CHECK(held_back < 0.9 * 0.2 * kSent * 1.03);
  CHECK(longest <= (5 + 2 + 2 * 5 + 20) * kMs);
  CHECK(longest > 30 * kMs);
}

TEST_CASE("a partition loses what crosses it, while it lasts", "[lab]") {
  NetworkConfig config;
  config.cuts = {Cut::parse("2-5"), Cut::parse("10-11:1")};
  Network network(config, 6, 1);
  const auto arrives = [&](std::uint32_t from, std::uint32_t to, double second) {
    return network.send(from, to, {static_cast<std::int64_t>(second * 1e9)}).copies == 1;
  };
  for (const double second : {0.0, 1.999, 5.0, 9.0, 11.0}) CHECK(arrives(0, 5, second));
  for (const double second : {2.0, 4.999}) {
    CHECK(!arrives(0, 5, second));
    CHECK(!arrives(5, 0, second));
    CHECK(!arrives(2, 3, second));
    CHECK(arrives(0, 2, second));
    CHECK(arrives(3, 5, second));
  }
  CHECK(!arrives(0, 1, 10.5));
  CHECK(arrives(1, 5, 10.5));
  CHECK(network.healed().v == 11'000 * kMs);
  CHECK_THROWS_AS(Network(config, 1, 1), Error);
}

TEST_CASE("a ring passes frames on, the shorter way", "[lab]") {
  NetworkConfig config;
  config.topology = Topology::parse("ring");
  Network network(config, 7, 1);
  CHECK(linked(network, 0) == std::set<std::uint32_t>{1, 6});
  CHECK(linked(network, 3) == std::set<std::uint32_t>{2, 4});
  CHECK(network.hops(0, 3) == 3);
  CHECK(network.hops(0, 4) == 3);
  CHECK(network.hops(6, 0) == 1);
  CHECK(network.send(1, 4, {0}).delay[0].v == 3 * kMs);
  CHECK(linked(Network(config, 2, 1), 0) == std::set<std::uint32_t>{1});
  CHECK(linked(Network(config, 1, 1), 0).empty());
}

TEST_CASE("a lost hop loses the frame", "[lab]") {
  NetworkConfig config;
  config.topology = Topology::parse("ring");
  config.loss = 0.1;
  Network network(config, 9, 5);
  int arrived = 0;
  for (int i = 0; i < 100'000; ++i) arrived += static_cast<int>(network.send(0, 4, {0}).copies);
  CHECK(std::abs(arrived - 65'610) < 760);
}

TEST_CASE("random topologies are connected, links are of both sides", "[lab]") {
  test::for_cases([](test::Rng& rng) {
    const auto nodes = static_cast<std::uint32_t>(test::draw(rng, 3, 40));
    const auto k = static_cast<std::uint32_t>(test::draw(rng, 2, std::min<std::int64_t>(5, nodes - 1)));
    NetworkConfig config;
    config.topology = {TopologyKind::random, k};
    const Network network(config, nodes, rng());
    for (std::uint32_t node = 0; node < nodes; ++node) {
      const auto links = linked(network, node);
      CHECK(links.size() >= k);
      for (const std::uint32_t other : links) {
        CHECK(linked(network, other).contains(node));
        CHECK(network.hops(node, other) == 1);
      }
      for (std::uint32_t other = 0; other < nodes; ++other) {
        if (other != node) CHECK(network.hops(node, other) == network.hops(other, node));
      }
    }
  });
  NetworkConfig config;
  config.topology = {TopologyKind::random, 4};
  CHECK_THROWS_AS(Network(config, 4, 1), Error);
}

TEST_CASE("regions: near inside, 80 to 150 ms between, the same for each pair", "[lab]") {
  NetworkConfig config;
  config.topology = Topology::parse("regions:3");
  Network network(config, 9, 4);
  std::set<std::int64_t> between;
  for (std::uint32_t a = 0; a < 9; ++a) {
    CHECK(network.region(a) == a % 3);
    CHECK(linked(network, a).size() == 8);
    for (std::uint32_t b = 0; b < 9; ++b) {
      if (a == b) continue;
      const std::int64_t delay = network.send(a, b, {0}).delay[0].v;
      if (network.region(a) == network.region(b)) {
        CHECK(delay == kMs);
      } else {
        CHECK(delay >= 80 * kMs);
        CHECK(delay <= 150 * kMs);
        between.insert(delay);
      }
    }
  }
  CHECK(between.size() == 3);
  CHECK_THROWS_AS(Network(config, 2, 1), Error);
}

TEST_CASE("clocks are off by no more than asked", "[lab]") {
  NetworkConfig config;
  config.skew = Skew::parse("50");
  const Network drawn(config, 100, 1);
  bool ahead = false, behind = false;
  for (std::uint32_t node = 0; node < 100; ++node) {
    CHECK(std::abs(drawn.skew(node).v) <= 50 * kMs);
    ahead = ahead || drawn.skew(node).v > 25 * kMs;
    behind = behind || drawn.skew(node).v < -25 * kMs;
  }
  CHECK(ahead);
  CHECK(behind);
  config.skew = Skew::parse("alternate:50");
  const Network alternating(config, 4, 1);
  CHECK(alternating.skew(0).v == 50 * kMs);
  CHECK(alternating.skew(3).v == -50 * kMs);
}

TEST_CASE("what is written on a command line, and what is refused", "[lab]") {
  for (const char* const text : {"full", "ring", "random:4", "regions:3"}) CHECK(Topology::parse(text).text() == text);
  for (const char* const text : {"", "mesh", "random", "random:", "random:0", "random:x", "regions:-1", "regions:3x"}) {
    CHECK_THROWS_AS(Topology::parse(text), Error);
  }
  CHECK(Skew::parse("alternate:2.5").text() == "alternate:2.5");
  for (const char* const text : {"", "x", "-1", "nan", "inf", "alternate:", "1e9"})
    CHECK_THROWS_AS(Skew::parse(text), Error);
  const Cut cut = Cut::parse("1.5-3:7");
  CHECK(cut.from.v == 1500 * kMs);
  CHECK(cut.to.v == 3000 * kMs);
  CHECK(cut.first == 7);
  for (const char* const text : {"", "1", "1-", "-1", "3-1", "1-1", "1-2:", "1-2:0", "1-2:x", "nan-2", "1-1e300"}) {
    CHECK_THROWS_AS(Cut::parse(text), Error);
  }
  CHECK(Crash::parse("3@5").to == kNever);
  CHECK(Crash::parse("3@5-6").to.v == 6000 * kMs);
  for (const char* const text : {"", "3", "@", "3@", "@5", "x@5", "-3@5", "3@6-5", "3@5-", "3@-5"}) {
    CHECK_THROWS_AS(Crash::parse(text), Error);
  }
}

TEST_CASE("events come by time, at one time as they were scheduled", "[lab]") {
  test::for_cases([](test::Rng& rng) {
    EventQueue queue;
    std::vector<std::pair<std::int64_t, std::uint32_t>> expected;
    std::uint32_t number = 0;
    std::int64_t now = 0;
    while (number < 200 || !queue.empty()) {
      if (number < 200 && (queue.empty() || test::chance(rng, 60))) {
        const std::int64_t time = now + test::draw(rng, 0, 5);
        queue.arrival({time}, number, 1, 2, Traffic::repair);
        expected.emplace_back(time, number++);
        continue;
      }
      const auto next = std::min_element(expected.begin(), expected.end());
      const Scheduled event = queue.pop();
      REQUIRE(event.time.v == next->first);
      REQUIRE(event.frame == next->second);
      REQUIRE(event.traffic() == Traffic::repair);
      now = event.time.v;
      expected.erase(next);
    }
  });
}

TEST_CASE("a frame is held until its last receiver has had it", "[lab]") {
  FramePool pool;
  const std::uint32_t a = pool.add(Bytes(3, std::byte{7}));
  const std::span<const std::byte> bytes = pool.bytes(a);
  pool.share(a, 2);
  const std::uint32_t unused = pool.add(Bytes(1));
  pool.drop_unused(unused);
  pool.drop_unused(a);
  CHECK(pool.in_use() == 1);
  pool.release(a);
  for (int i = 0; i < 100; ++i) pool.share(pool.add(Bytes(10)), 1);
  CHECK(bytes.size() == 3);
  CHECK(bytes[2] == std::byte{7});
  pool.release(a);
  CHECK(pool.in_use() == 100);
}

TEST_CASE("who is cut off can talk at the end of the last partition that follows without a gap", "[lab]") {
  NetworkConfig config;
  for (const char* const cut : {"10-20", "20-30:1", "50-60"}) config.cuts.push_back(Cut::parse(cut));
  const Network network(config, 4, 1);
  const auto uncut = [&](std::uint32_t from, std::uint32_t to, std::int64_t second) {
    return network.uncut(from, to, {second * 1'000'000'000}).v / 1'000'000'000;
  };
  REQUIRE(uncut(0, 2, 5) == 5);
  REQUIRE(uncut(0, 2, 15) == 30);
  REQUIRE(uncut(1, 2, 15) == 20);
  REQUIRE(uncut(0, 1, 15) == 15);
  REQUIRE(uncut(3, 0, 55) == 60);
  REQUIRE(uncut(0, 2, 60) == 60);
}

}  // namespace
}  // namespace weir::lab
