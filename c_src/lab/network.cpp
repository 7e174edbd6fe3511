#include "lab/network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "lab/error.hpp"
#include "lab/limits.hpp"

namespace weir::lab {
namespace {

constexpr double kRegionNearMs = 80;
constexpr double kRegionFarMs = 150;
constexpr std::int64_t kHeldBack = 20'000'000;
constexpr int kTopologyDraws = 100;

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Nanos seconds(std::string_view text, const std::string& whole, const char* form) {
  const auto value = number<double>(text);
  if (!value || !(*value >= 0) || *value > kMaxFaultSeconds) throw Error(fmt::format("\"{}\" is not {}", whole, form));
  return {std::llround(*value * 1e9)};
}

// "FROM-TO", TO after FROM.
std::pair<Nanos, Nanos> span(std::string_view text, const std::string& whole, const char* form) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) throw Error(fmt::format("\"{}\" is not {}", whole, form));
  const Nanos from = seconds(text.substr(0, dash), whole, form);
  const Nanos to = seconds(text.substr(dash + 1), whole, form);
  if (to <= from) throw Error(fmt::format("\"{}\" ends before it begins", whole));
  return {from, to};
}

}  // namespace

Topology Topology::parse(const std::string& text) {
  if (text == "full") return {TopologyKind::full, 0};
  if (text == "ring") return {TopologyKind::ring, 0};
  for (const auto& [prefix, kind] : {std::pair<std::string_view, TopologyKind>{"random:", TopologyKind::random},
                                     std::pair<std::string_view, TopologyKind>{"regions:", TopologyKind::regions}}) {
    if (!text.starts_with(prefix)) continue;
    const auto k = number<std::uint32_t>(std::string_view(text).substr(prefix.size()));
    if (k && *k >= 1 && *k <= kMaxNodes) return {kind, *k};
  }
  throw Error(fmt::format("\"{}\" is not a topology (full, ring, random:K, regions:K)", text));
}

std::string Topology::text() const {
  switch (kind) {
    case TopologyKind::ring:
      return "ring";
    case TopologyKind::random:
      return fmt::format("random:{}", k);
    case TopologyKind::regions:
      return fmt::format("regions:{}", k);
    case TopologyKind::full:
      break;
  }
  return "full";
}

Skew Skew::parse(const std::string& text) {
  constexpr std::string_view kAlternate = "alternate:";
  const bool alternating = text.starts_with(kAlternate);
  const auto ms = number<double>(std::string_view(text).substr(alternating ? kAlternate.size() : 0));
  if (!ms || !(*ms >= 0) || *ms > kMaxDelayMs) {
    throw Error(fmt::format("\"{}\" is not a skew (milliseconds from 0 to {}, or alternate:MS)", text, kMaxDelayMs));
  }
  return {{std::llround(*ms * 1e6)}, alternating};
}

std::string Skew::text() const {
  return fmt::format("{}{}", alternating ? "alternate:" : "", static_cast<double>(most.v) / 1e6);
}

Cut Cut::parse(const std::string& text) {
  constexpr const char* kForm = "a partition (FROM-TO or FROM-TO:M, in seconds)";
  const std::string_view view = text;
  const std::size_t colon = view.find(':');
  Cut cut;
  std::tie(cut.from, cut.to) = span(view.substr(0, colon), text, kForm);
  if (colon == std::string_view::npos) return cut;
  const auto first = number<std::uint32_t>(view.substr(colon + 1));
  if (!first || *first == 0) throw Error(fmt::format("\"{}\" is not {}", text, kForm));
  cut.first = *first;
  return cut;
}

Crash Crash::parse(const std::string& text) {
  constexpr const char* kForm = "a fault (NUMBER@FROM or NUMBER@FROM-TO, in seconds)";
  const std::string_view view = text;
  const std::size_t sign = view.find('@');
  const auto node = number<std::uint32_t>(view.substr(0, sign));
  if (sign == std::string_view::npos || !node) throw Error(fmt::format("\"{}\" is not {}", text, kForm));
  Crash crash{*node, {}, kNever};
  const std::string_view when = view.substr(sign + 1);
  if (when.find('-') == std::string_view::npos) {
    crash.from = seconds(when, text, kForm);
  } else {
    std::tie(crash.from, crash.to) = span(when, text, kForm);
  }
  return crash;
}

Network::Network(const NetworkConfig& config, std::uint32_t nodes, std::uint64_t seed)
    : config_(config),
      nodes_(nodes),
      plain_(config.jitter.v == 0 && config.loss == 0 && config.duplicate == 0 && config.reorder == 0),
      random_(Random::stream(seed, 0x6672616d6573)),
      neighbours_(nodes),
      links_(std::size_t{nodes} * nodes),
      skews_(nodes) {
  for (Cut& cut : config_.cuts) {
    if (cut.first == 0) cut.first = std::max(1U, nodes / 2);
    if (cut.first >= nodes) throw Error(fmt::format("a partition must leave nodes on both sides, of {}", nodes));
  }
  Random random = Random::stream(seed, 0x746f706f6c6f6779);
  switch (config_.topology.kind) {
    case TopologyKind::full:
      link_all();
      break;
    case TopologyKind::ring:
      link_ring();
      break;
    case TopologyKind::random:
      link_random(random);
      break;
    case TopologyKind::regions:
      link_regions(random);
      break;
  }
  Random clocks = Random::stream(seed, 0x636c6f636b73);
  const auto most = static_cast<double>(config_.skew.most.v);
  for (std::uint32_t node = 0; node < nodes; ++node) {
    const double off = config_.skew.alternating ? (node % 2 == 0 ? most : -most) : clocks.between(-most, most);
    skews_[node] = {std::llround(off)};
  }
}

void Network::link_all() {
  for (Link& link : links_) link.delay = config_.delay;
  for (std::uint32_t node = 0; node < nodes_; ++node) {
    for (std::uint32_t other = 0; other < nodes_; ++other) {
      if (other != node) neighbours_[node].push_back({other});
    }
  }
}

void Network::link_ring() {
  for (std::uint32_t node = 0; node < nodes_ && nodes_ > 1; ++node) {
    const std::uint32_t before = (node + nodes_ - 1) % nodes_;
    const std::uint32_t after = (node + 1) % nodes_;
    neighbours_[node].push_back({std::min(before, after)});
    if (before != after) neighbours_[node].push_back({std::max(before, after)});
  }
  find_paths();
}

void Network::link_random(Random& random) {
  const std::uint32_t k = config_.topology.k;
  if (k >= nodes_) throw Error(fmt::format("topology random:{} needs more than {} nodes", k, k));
  for (int draw = 0; draw < kTopologyDraws; ++draw) {
    std::vector<bool> linked(links_.size(), false);
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      std::vector<bool> drawn(nodes_, false);
      for (std::uint32_t links = 0; links < k;) {
        const std::uint32_t other = random.below(nodes_);
        if (other == node || drawn[other]) continue;
        drawn[other] = linked[at(node, other)] = linked[at(other, node)] = true;
        ++links;
      }
    }
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      neighbours_[node].clear();
      for (std::uint32_t other = 0; other < nodes_; ++other) {
        if (linked[at(node, other)]) neighbours_[node].push_back({other});
      }
    }
    if (find_paths()) return;
  }
  throw Error(fmt::format("no connected topology random:{} of {} nodes was found", k, nodes_));
}

void Network::link_regions(Random& random) {
  const std::uint32_t regions = config_.topology.k;
  if (regions > nodes_) throw Error(fmt::format("topology regions:{} needs at least {} nodes", regions, regions));
  link_all();
  for (std::uint32_t a = 0; a < regions; ++a) {
    for (std::uint32_t b = a + 1; b < regions; ++b) {
      const Nanos delay{std::llround(random.between(kRegionNearMs, kRegionFarMs) * 1e6)};
      for (std::uint32_t i = a; i < nodes_; i += regions) {
        for (std::uint32_t j = b; j < nodes_; j += regions) links_[at(i, j)].delay = links_[at(j, i)].delay = delay;
      }
    }
  }
}

// Breadth first from each node. False if some node is out of reach.
bool Network::find_paths() {
  std::vector<std::uint32_t> queue;
  for (std::uint32_t from = 0; from < nodes_; ++from) {
    std::vector<std::uint32_t> hops(nodes_, 0);
    queue.assign(1, from);
    for (std::size_t next = 0; next < queue.size(); ++next) {
      const std::uint32_t node = queue[next];
      for (const NodeId other : neighbours_[node]) {
        if (other.v == from || hops[other.v] != 0) continue;
        hops[other.v] = hops[node] + 1;
        queue.push_back(other.v);
      }
    }
    if (queue.size() != nodes_) return false;
    for (std::uint32_t to = 0; to < nodes_; ++to) {
      links_[at(from, to)] = {Tokens{hops[to]} * config_.delay, std::max(1U, hops[to])};
    }
  }
  return true;
}

std::uint32_t Network::region(std::uint32_t node) const {
  return config_.topology.kind == TopologyKind::regions ? node % config_.topology.k : 0;
}

bool Network::crosses(std::uint32_t from, std::uint32_t to, Nanos since_start) const noexcept {
  return std::any_of(config_.cuts.begin(), config_.cuts.end(), [&](const Cut& cut) {
    return since_start >= cut.from && since_start < cut.to && (from < cut.first) != (to < cut.first);
  });
}

Nanos Network::uncut(std::uint32_t from, std::uint32_t to, Nanos since_start) const noexcept {
  Nanos then = since_start;
  for (bool moved = true; moved;) {
    moved = false;
    for (const Cut& cut : config_.cuts) {
      if (then < cut.from || then >= cut.to || (from < cut.first) == (to < cut.first)) continue;
      then = cut.to;
      moved = true;
    }
  }
  return then;
}

Nanos Network::healed() const noexcept {
  Nanos last;
  for (const Cut& cut : config_.cuts) last = std::max(last, cut.to);
  return last;
}

Nanos Network::draw_delay(const Link& link) {
  Nanos delay = link.delay;
  const auto jitter = static_cast<double>(config_.jitter.v);
  for (std::uint32_t hop = 0; hop < link.hops && jitter > 0; ++hop) delay.v += std::llround(random_.unit() * jitter);
  if (random_.chance(config_.reorder)) {
    delay.v += std::llround(random_.unit() * static_cast<double>(2 * link.delay.v + kHeldBack));
  }
  return delay;
}

Network::Fate Network::send(std::uint32_t from, std::uint32_t to, Nanos since_start) {
  const Link& link = links_[at(from, to)];
  if (cut(from, to, since_start)) return {};
  if (plain_) return {1, {link.delay}};
  for (std::uint32_t hop = 0; hop < link.hops; ++hop) {
    if (random_.chance(config_.loss)) return {};
  }
  Fate fate{1, {draw_delay(link)}};
  if (random_.chance(config_.duplicate)) {
    fate.delay[1] = draw_delay(link);
    fate.copies = 2;
  }
  return fate;
}

}  // namespace weir::lab
