// Tables and replica as one node, beside others: what one table admits, all count, however it got lost on the way.
// Shows R23 of doc/requirements.md where births go through rings.
#include "weir/node.hpp"

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cases.hpp"

namespace weir::test {
namespace {

constexpr KeyHash kName{0x1234567};
constexpr LimiterId kLimiter{7};
constexpr Nanos kDay{86'400'000'000'000};
constexpr Nanos kMillis{1'000'000};
constexpr unsigned kStripes = 3;
// The first two members of a cluster.
constexpr std::size_t a = 0, b = 1;

KeyHash key(std::uint64_t i) { return {(i + 1) * 0x9e3779b97f4a7c15}; }

// Nodes with tables of their own, and the frames between them. Time goes on by hand.
class Cluster {
 public:
  struct Member {
    std::unique_ptr<Registry> registry = std::make_unique<Registry>(kStripes);
    std::unique_ptr<Node> node;
    Registry::Ref ref;
  };

  // So many nodes that know each other, and have met.
  explicit Cluster(const Policy& policy, std::uint32_t nodes = 0) : policy_(policy) {
    now_at() = now_;
    for (std::uint32_t i = 1; i <= nodes; ++i) {
      std::vector<NodeId> others;
      for (std::uint32_t j = 1; j <= nodes; ++j) {
        if (j != i) others.push_back({j});
      }
      add(others);
    }
    if (nodes > 1) run(Nanos{1'000'000'000});
  }

  // The clock that rescans read is the cluster's.
  static Nanos& now_at() {
    static Nanos now;
    return now;
  }
  static Nanos clock() noexcept { return now_at(); }

  // A node that knows of these others.
  void add(std::vector<NodeId> others) {
    const NodeId self{static_cast<std::uint32_t>(members_.size() + 1)};
    Member& member = members_.emplace_back();
    ReplicaConfig config;
    config.self = self;
    config.incarnation = 1;
    config.members = others;
    config.members.push_back(self);
    config.neighbours = others;
    config.start = now_;
    LimiterOptions options;
    options.number = kLimiter;
    REQUIRE(member.registry->put("limiter", kName, policy_, options, now_) == Registry::Put::created);
    member.ref = member.registry->find(kName);
    member.node = std::make_unique<Node>(config, *member.registry);
    member.node->attach(true);
    ReplicatedTerms terms;
    terms.policy = policy_;
    step(members_.size() - 1,
         [&](Replica& replica, Nanos now, Effects& effects) { replica.put_limiter(kLimiter, terms, now, effects); });
  }

  Member& at(std::size_t i) { return members_[i]; }
  Nanos now() const { return now_; }
  void pass(Nanos time) { now_at() = now_ = now_ + time; }

  bool admit(std::size_t i, KeyHash key, std::int64_t hits = 1, unsigned stripe = 0) {
    return Registry::ask(at(i).ref, key, {hits}, now_, stripe).allowed;
  }
  // Tokens in use, by the node's table.
  std::int64_t used(std::size_t i, KeyHash key) {
    Tat state;
    Terms terms;
    return Registry::peek(at(i).ref, key, now_, state, terms) ? state.level(terms.policy, now_).v : 0;
  }

  template <class Action>
  void step(std::size_t i, Action action) {
    Effects effects;
    at(i).node->step_attached(now_, clock, [&](Replica& replica, Nanos now) {
      action(replica, now, effects);
      return 0;
    });
    for (const Send& send : effects.sends) wire_.push_back({i, send.to, effects.frames[send.frame]});
  }
  void tick(std::size_t i) {
    step(i, [](Replica& replica, Nanos now, Effects& effects) { replica.step(Tick{}, now, effects); });
  }
  void deliver() {
    while (!wire_.empty()) {
      const Sent sent = std::move(wire_.front());
      wire_.pop_front();
      if (sent.to.v > members_.size()) continue;
      step(sent.to.v - 1, [&](Replica& replica, Nanos now, Effects& effects) {
        replica.step(Arrival{{static_cast<std::uint32_t>(sent.from + 1)}, sent.frame}, now, effects);
      });
    }
  }
  // All frames arrive, and timers run, for so long.
  void run(Nanos time) {
    for (const Nanos end = now_ + time; now_ < end; pass(kMillis)) {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        const bool woken = at(i).registry->replication().births.wakes();
        if (woken || at(i).node->wake() <= now_ || at(i).node->again()) tick(i);
      }
      deliver();
    }
  }
  void push_all() {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      step(i, [](Replica& replica, Nanos now, Effects& effects) { replica.push(now, effects); });
    }
    deliver();
  }

 private:
  struct Sent {
    std::size_t from;
    NodeId to;
    Bytes frame;
  };
  Policy policy_;
  Nanos now_ = kBase;
  std::deque<Member> members_;
  std::deque<Sent> wire_;
};

}  // namespace

TEST_CASE("what one node's table admits, the other's counts", "[node]") {
  Cluster cluster({{5}, kDay}, 2);
  for (int i = 0; i < 4; ++i) CHECK(cluster.admit(a, key(1)));
  cluster.run(Nanos{100'000'000});
  CHECK(cluster.used(b, key(1)) == 4);
  CHECK(cluster.admit(b, key(1)));
  CHECK_FALSE(cluster.admit(b, key(1)));
  cluster.run(Nanos{100'000'000});
  CHECK_FALSE(cluster.admit(a, key(1)));
}

TEST_CASE("births that a full ring had no room for are found again, and told once", "[node]") {
  Cluster cluster({{3}, kDay}, 2);
  const std::uint64_t keys = 3 * Admissions::kRing;
  for (std::uint64_t i = 0; i < keys; ++i) REQUIRE(cluster.admit(a, key(i), 2));
  cluster.run(Nanos{3'000'000'000});
  cluster.push_all();
  CHECK(cluster.at(a).registry->replication().rescans > 0);
  CHECK(cluster.at(a).registry->replication().rescanned_keys > 0);
  std::size_t wrong = 0;
  for (std::uint64_t i = 0; i < keys; ++i) wrong += cluster.used(b, key(i)) == 2 ? 0 : 1;
  CHECK(wrong == 0);
  CHECK_FALSE(cluster.at(a).node->rescans());
}

TEST_CASE("a node without others keeps births in its tables alone; who comes is told of all", "[node]") {
  Cluster cluster({{5}, kDay});
  cluster.add({});
  CHECK_FALSE(cluster.at(a).registry->replication().births.open());
  for (std::uint64_t i = 0; i < 3000; ++i) REQUIRE(cluster.admit(a, key(i), 3));
  cluster.run(Nanos{100'000'000});
  CHECK(cluster.at(a).node->replica().keys() == 0);
  cluster.step(a, [](Replica& replica, Nanos now, Effects& effects) { replica.step(Registered{{2}}, now, effects); });
  CHECK(cluster.at(a).registry->replication().births.open());
  cluster.add({{1}});
  cluster.run(Nanos{5'000'000'000});
  cluster.push_all();
  std::size_t wrong = 0;
  for (std::uint64_t i = 0; i < 3000; ++i) wrong += cluster.used(b, key(i)) == 3 ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("a key that got another hash counts under it on all nodes", "[node]") {
  Cluster cluster({{10}, kDay}, 2);
  for (int i = 0; i < 6; ++i) REQUIRE(cluster.admit(a, key(1)));
  cluster.run(Nanos{100'000'000});
  REQUIRE(cluster.used(b, key(1)) == 6);
  for (const std::size_t i : {a, b}) Registry::carry(cluster.at(i).ref, key(1), key(2), cluster.now());
  cluster.run(Nanos{200'000'000});
  REQUIRE(cluster.admit(a, key(2)));
  cluster.run(Nanos{100'000'000});
  cluster.push_all();
  CHECK(cluster.used(a, key(2)) == 7);
  CHECK(cluster.used(b, key(2)) == 7);
}

TEST_CASE("while births come they are looked for without being told of; then the node rests", "[node]") {
  Cluster cluster({{1000}, kDay});
  cluster.add({{2}});
  cluster.run(Nanos{10'000'000});
  Node& node = *cluster.at(a).node;
  CHECK(node.wake() > cluster.now() + Node::kPoll);
  REQUIRE(cluster.admit(a, key(1)));
  CHECK(cluster.at(a).registry->replication().births.wakes());  // who drives the node is to be told
  cluster.tick(a);
  CHECK(node.wake() <= cluster.now() + Node::kPoll);
  cluster.pass(Node::kPoll);
  cluster.tick(a);  // none came
  CHECK_FALSE(node.again());
  CHECK(node.wake() > cluster.now() + Node::kPoll);
}

TEST_CASE("a step alone brings nothing and takes nothing", "[node]") {
  Cluster cluster({{5}, kDay});
  cluster.add({{2}});
  REQUIRE(cluster.admit(a, key(1)));
  Effects effects;
  cluster.at(a).node->step_alone(cluster.now(), [&](Replica& replica, Nanos now) {
    replica.step(Tick{}, now, effects);
    return 0;
  });
  CHECK(cluster.at(a).node->replica().keys() == 0);
  cluster.tick(a);
  CHECK(cluster.at(a).node->replica().keys() == 1);
}

TEST_CASE("time doesn't run back between steps", "[node]") {
  Cluster cluster({{5}, kDay});
  cluster.add({{2}});
  Node& node = *cluster.at(a).node;
  node.begin(cluster.now() + kMillis);
  node.step_alone(cluster.now(), [&](Replica&, Nanos now) {
    CHECK(now == cluster.now() + kMillis);
    return 0;
  });
  CHECK(node.last() == cluster.now() + kMillis);
}

TEST_CASE("whatever is admitted where, through rings or found again: in the end all tables count all of it", "[node]") {
  for_cases([](Rng& rng) {
    const auto count = static_cast<std::size_t>(draw(rng, 2, 3));
    Cluster cluster({{1000}, kDay}, static_cast<std::uint32_t>(count));
    std::map<std::uint64_t, std::int64_t> admitted;
    for (int round = 0; round < 8; ++round) {
      // Sometimes more than a ring holds.
      const bool flood = chance(rng, 10);
      const std::int64_t asks = flood ? 10'000 : draw(rng, 0, 40);
      const auto i = static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(count) - 1));
      for (std::int64_t n = 0; n < asks; ++n) {
        const auto which = static_cast<std::uint64_t>(flood ? n % 5000 : draw(rng, 0, 9));
        const auto stripe = static_cast<unsigned>(draw(rng, 0, kStripes - 1));
        if (cluster.admit(i, key(which), 1, stripe)) ++admitted[which];
      }
      cluster.run(Nanos{draw(rng, 0, 20) * kMillis.v});
    }
    cluster.run(Nanos{4'000'000'000});
    cluster.push_all();
    cluster.run(Nanos{1'000'000'000});
    for (std::size_t i = 0; i < count; ++i) {
      for (const auto& [which, tokens] : admitted) REQUIRE(cluster.used(i, key(which)) == tokens);
    }
  });
}

}  // namespace weir::test
