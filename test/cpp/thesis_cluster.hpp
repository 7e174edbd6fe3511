// thesis_cluster: a few machines and the messages between them, each frame delivered a fixed delay after it was sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cases.hpp"
#include "lab/thesis/thesis.hpp"
#include "weir/machine.hpp"

namespace weir::test {

inline constexpr Nanos kMilli{1'000'000};
inline constexpr Nanos kSecond{1'000'000'000};

class ThesisCluster {
 public:
  struct Totals {
    std::size_t messages = 0;
    std::size_t bytes = 0;
    std::size_t repair = 0;  // messages
  };

  ThesisCluster(std::string_view strategy, const lab::Options& options, std::uint32_t nodes, std::uint64_t seed = 1)
      : strategy_(strategy), options_(options), nodes_(nodes), seed_(seed) {
    for (std::uint32_t i = 0; i < nodes; ++i) machines_.push_back(thesis::make(strategy, options, place(i, 1)));
  }

  Nanos now() const { return now_; }
  std::size_t size() const { return machines_.size(); }
  Machine& machine(std::size_t node) { return *machines_[node]; }
  const Totals& totals() const { return totals_; }
  void set_delay(Nanos delay) { delay_ = delay; }
  // Frames for which this is true are lost.
  void set_loss(std::function<bool()> lost) { lost_ = std::move(lost); }

  bool ask(std::uint32_t node, std::uint64_t key, std::int64_t hits = 1) {
    const std::uint64_t ticket = ++tickets_;
    Effects effects;
    machines_[node]->step(Ask{ticket, {}, {key}, {hits}}, now_, effects);
    REQUIRE(effects.answers.size() == 1);
    REQUIRE(effects.answers[0].ticket == ticket);
    const bool allowed = effects.answers[0].allowed;
    execute(node, effects);
    return allowed;
  }

  // Ticks and deliveries up to `time`, which becomes now.
  void run_until(Nanos time) {
    while (step_before(time)) {
    }
    now_ = time;
  }
  void run_for(Nanos span) { run_until(now_ + span); }

  // Runs until nothing waits anywhere; false if that takes longer than `most`.
  bool drain(Nanos most) {
    for (const Nanos end = now_ + most; !quiet();) {
      if (!step_before(end)) return false;
    }
    return true;
  }
  bool quiet() const {
    for (const auto& machine : machines_) {
      if (!machine->quiet()) return false;
    }
    return flying_.empty();
  }

  // The node loses all that it knew and comes back.
  void restart(std::uint32_t node) { machines_[node] = thesis::make(strategy_, options_, place(node, 2)); }
  void inject(std::uint32_t to, std::uint32_t from, std::span<const std::byte> frame) {
    Effects effects;
    machines_[to]->step(Arrival{{from}, frame}, now_, effects);
    execute(to, effects);
  }

 private:
  struct Flight {
    std::uint32_t from;
    std::uint32_t to;
    std::shared_ptr<const Bytes> frame;
  };

  lab::Place place(std::uint32_t node, std::uint32_t incarnation) const {
    lab::Place place;
    place.self = {node};
    for (std::uint32_t i = 0; i < nodes_; ++i) {
      place.members.push_back({i});
      if (i != node) place.neighbours.push_back({i});
    }
    place.seed = seed_ + node;
    place.start = now_;
    place.incarnation = incarnation;
    return place;
  }

  bool step_before(Nanos time) {
    Nanos next = flying_.empty() ? kNever : flying_.begin()->first;
    std::size_t ticking = machines_.size();
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      if (machines_[i]->wake() >= next) continue;
      next = machines_[i]->wake();
      ticking = i;
    }
    if (next > time) return false;
    now_ = std::max(now_, next);
    Effects effects;
    if (ticking != machines_.size()) {
      machines_[ticking]->step(Tick{}, now_, effects);
      execute(static_cast<std::uint32_t>(ticking), effects);
    } else {
      const Flight flight = flying_.begin()->second;
      flying_.erase(flying_.begin());
      machines_[flight.to]->step(Arrival{{flight.from}, *flight.frame}, now_, effects);
      execute(flight.to, effects);
    }
    return true;
  }

  void execute(std::uint32_t from, const Effects& effects) {
    std::vector<std::shared_ptr<const Bytes>> frames;
    for (const Bytes& frame : effects.frames) frames.push_back(std::make_shared<const Bytes>(frame));
    for (const Send& send : effects.sends) {
      ++totals_.messages;
      totals_.bytes += frames[send.frame]->size();
      totals_.repair += send.traffic == Traffic::repair ? 1 : 0;
      if (send.to.v >= machines_.size() || (lost_ && lost_())) continue;
      flying_.emplace(now_ + delay_, Flight{from, send.to.v, frames[send.frame]});
    }
  }

  std::string_view strategy_;
  lab::Options options_;
  std::uint32_t nodes_;
  std::uint64_t seed_;
  Nanos now_ = kBase;
  Nanos delay_ = kMilli;
  std::function<bool()> lost_;
  std::uint64_t tickets_ = 0;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::multimap<Nanos, Flight> flying_;
  Totals totals_;
};

}  // namespace weir::test
