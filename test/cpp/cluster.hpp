// cluster: replicas with a network between them, in simulated time.
//
// Deterministic by seed. Frames take `delay` plus up to `jitter`, may be lost or doubled, and don't cross a partition.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "births.hpp"
#include "cases.hpp"
#include "weir/replica.hpp"

namespace weir::test {

inline constexpr Nanos kMs{1'000'000};
inline constexpr Nanos ms(std::int64_t n) { return {n * 1'000'000}; }
inline constexpr LimiterId kLimiter{0};

struct Network {
  Nanos delay = ms(1);
  Nanos jitter{0};
  int loss = 0;       // percent
  int duplicate = 0;  // percent
};

class Cluster {
 public:
  struct Node {
    std::unique_ptr<Replica> replica;
    std::uint32_t incarnation = 0;
    Nanos skew;
  };
  struct Counted {
    std::uint64_t frames = 0;
    std::uint64_t bytes = 0;
  };

  Cluster(std::uint32_t nodes, const ReplicatedTerms& terms, std::uint64_t seed = 1)
      : terms_(terms), rng_(seed), nodes_(nodes) {
    for (std::uint32_t i = 0; i < nodes; ++i) start(i);
  }

  Network network;
  std::function<void(ReplicaConfig&)> configure = [](ReplicaConfig&) {};
  std::map<Traffic, Counted> sent;

  Nanos now() const { return now_; }
  Replica& at(std::uint32_t node) { return *nodes_[node].replica; }
  bool up(std::uint32_t node) const { return nodes_[node].replica != nullptr; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(nodes_.size()); }

  void crash(std::uint32_t node) { nodes_[node].replica.reset(); }
  void start(std::uint32_t node) {
    ReplicaConfig config;
    config.self = {node};
    config.incarnation = ++nodes_[node].incarnation;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      config.members.push_back({i});
      if (i != node) config.neighbours.push_back({i});
    }
    config.joining = config.incarnation > 1;
    config.seed = node * 37 + 5;
    config.start = clock(node);
    configure(config);
    nodes_[node].replica = std::make_unique<Replica>(config);
    Effects effects;
    nodes_[node].replica->put_limiter(kLimiter, terms_, clock(node), effects);
  }
  void skew(std::uint32_t node, Nanos by) { nodes_[node].skew = by; }
  // Frames between `side` and the others are lost until `heal`.
  void partition(std::set<std::uint32_t> side) { side_ = std::move(side); }
  void heal() {
    side_.clear();
    cut_.clear();
  }
  // Frames from one node to the other are lost until `heal`; those of the other direction are not.
  void cut(std::uint32_t from, std::uint32_t to) { cut_.insert({from, to}); }
  void put(std::uint32_t node, LimiterId limiter, const ReplicatedTerms& terms) {
    Effects effects;
    at(node).put_limiter(limiter, terms, clock(node), effects);
    carry_out(node, effects);
  }
  void registered(std::uint32_t node, std::uint32_t joins) { step(node, Registered{{joins}}); }
  // The node sends all that it hasn't.
  void push(std::uint32_t node) {
    Effects effects;
    at(node).push(clock(node), effects);
    carry_out(node, effects);
  }
  bool reset(std::uint32_t node, KeyHash key) {
    const bool done = at(node).reset(kLimiter, key, clock(node), clock(node), true);
    step(node, Tick{});
    return done;
  }

  // Asks now; the answers of all asks so far are in `answers`, by ticket.
  std::uint64_t ask(std::uint32_t node, KeyHash key, Tokens hits = {1}, LimiterId limiter = kLimiter) {
    const std::uint64_t ticket = ++tickets_;
    asked_[ticket] = {node, key, hits, limiter};
    step(node, Ask{ticket, limiter, key, hits});
    return ticket;
  }
  bool admits(std::uint32_t node, KeyHash key, Tokens hits = {1}) { return answers.at(ask(node, key, hits)); }
  std::map<std::uint64_t, bool> answers;
  std::map<std::uint64_t, Births> admitted;  // of kLimiter: by key, at the true time

  void deliver(std::uint32_t to, NodeId from, const Bytes& frame) { step(to, Arrival{from, frame}); }
  void registers(std::uint32_t node, std::uint32_t other) { step(node, Registered{{other}}); }

  // Lets time pass until `until`.
  void run(Nanos until) {
    while (true) {
      Nanos next = in_flight_.empty() ? kNever : in_flight_.begin()->first.first;
      std::uint32_t ticks = size();
      for (std::uint32_t i = 0; i < size(); ++i) {
        if (!up(i)) continue;
        const Nanos wake = at(i).wake() == kNever ? kNever : std::max(now_, at(i).wake() - nodes_[i].skew);
        if (wake < next) {
          next = wake;
          ticks = i;
        }
      }
      if (next > until) break;
      now_ = std::max(now_, next);
      if (ticks < size()) {
        step(ticks, Tick{});
        continue;
      }
      const Flight flight = std::move(in_flight_.begin()->second);
      in_flight_.erase(in_flight_.begin());
      if (up(flight.to)) step(flight.to, Arrival{flight.from, flight.frame});
    }
    now_ = until;
  }
  void run_for(Nanos span) { run(now_ + span); }

  // Whether repair stayed below twice the data, but for a little: vectors and digests after each change of membership.
  bool repair_is_small() {
    return sent[Traffic::repair].bytes <= 2 * sent[Traffic::data].bytes + std::size_t{1000} * size() * size();
  }
  bool quiet() {
    for (std::uint32_t i = 0; i < size(); ++i) {
      if (up(i) && !at(i).quiet()) return false;
    }
    return true;
  }
  // Of what all nodes admitted.
  Int128 level(KeyHash key) { return admitted[key.v].level(terms_.policy, now_); }

 private:
  struct Flight {
    std::uint32_t to;
    NodeId from;
    Bytes frame;
  };
  struct Asked {
    std::uint32_t node;
    KeyHash key;
    Tokens hits;
    LimiterId limiter;
  };

  Nanos clock(std::uint32_t node) const { return now_ + nodes_[node].skew; }

  void step(std::uint32_t node, const Event& event) {
    Effects effects;
    at(node).step(event, clock(node), effects);
    carry_out(node, effects);
  }

  void carry_out(std::uint32_t node, const Effects& effects) {
    for (const Answer& answer : effects.answers) {
      answers[answer.ticket] = answer.allowed;
      const Asked& asked = asked_.at(answer.ticket);
      if (answer.allowed && asked.limiter == kLimiter) admitted[asked.key.v].add({now_, asked.hits});
    }
    for (const Send& send : effects.sends) {
      const Bytes& frame = effects.frames[send.frame];
      ++sent[send.traffic].frames;
      sent[send.traffic].bytes += frame.size();
      if (side_.contains(node) != side_.contains(send.to.v) && !side_.empty()) continue;
      if (cut_.contains({node, send.to.v})) continue;
      if (chance(rng_, network.loss)) continue;
      const int copies = chance(rng_, network.duplicate) ? 2 : 1;
      for (int i = 0; i < copies; ++i) {
        const Nanos arrives = now_ + network.delay + Nanos{draw(rng_, 0, network.jitter.v)};
        in_flight_.emplace(std::pair{arrives, ++flights_}, Flight{send.to.v, {node}, frame});
      }
    }
  }

  ReplicatedTerms terms_;
  Rng rng_;
  std::vector<Node> nodes_;
  Nanos now_ = kBase;
  std::uint64_t tickets_ = 0;
  std::uint64_t flights_ = 0;
  std::map<std::uint64_t, Asked> asked_;
  std::map<std::pair<Nanos, std::uint64_t>, Flight> in_flight_;
  std::set<std::uint32_t> side_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> cut_;
};

}  // namespace weir::test
