// gossip: see gossip.hpp.
#include "lab/thesis/gossip.hpp"

#include <algorithm>
#include <utility>

namespace weir::thesis {
namespace {

// Nodes that were given the same seed must still not gossip in step.
std::uint64_t seed_of(const lab::Place& place) noexcept {
  Random mixed(place.seed ^ (std::uint64_t{place.self.v} << 32U) ^ place.incarnation);
  return mixed.next();
}

}  // namespace

Gossip::Gossip(const lab::Options& options, const lab::Place& place)
    : options_(options), self_(place.self), members_(place.members), random_(seed_of(place)) {
  const auto self = std::find(members_.begin(), members_.end(), self_);
  position_ = static_cast<std::size_t>(self - members_.begin());
  if (self == members_.end()) members_.push_back(self_);
  for (const NodeId node : place.neighbours) neighbours_.push_back({node});
  full_mesh_ = neighbours_.size() + 1 == members_.size();
  const auto interval = static_cast<std::uint64_t>(options_.gossip_interval.v);
  const Nanos phase{static_cast<std::int64_t>(random_.below(interval))};
  awaits_copy_ = options_.copy && place.incarnation > 1 && !neighbours_.empty();
  if (!neighbours_.empty() || full_mesh_) wake_ = awaits_copy_ ? place.start : place.start + phase;
}

void Gossip::step(const Event& event, Nanos now, Effects& effects) {
  if (const auto* const ask = std::get_if<Ask>(&event)) {
    effects.answers.push_back({ask->ticket, decide(ask->key, ask->hits, now, effects)});
  } else if (const auto* const arrival = std::get_if<Arrival>(&event)) {
    arrived(*arrival, now, effects);
  } else if (std::holds_alternative<Tick>(event)) {
    tick(now, effects);
  } else if (const auto* const joined = std::get_if<Registered>(&event)) {
    registered(joined->node);
  } else {
    unregistered(std::get<Unregistered>(event).node);
  }
}

Held Gossip::held() const {
  Held held = held_by_design();
  held.fixed += sizeof(Gossip) + members_.capacity() * sizeof(NodeId) + neighbours_.capacity() * sizeof(Neighbour) +
                frame_keys_.capacity() * sizeof(KeyHash);
  return held;
}

void Gossip::tick(Nanos now, Effects& effects) {
  if (now < wake_) return;
  const std::int64_t late = (now - wake_).v / options_.gossip_interval.v;
  wake_ = wake_ + Tokens{late + 1} * options_.gossip_interval;
  if (live_neighbours() == 0) return;
  if (awaits_copy_) {
    send(effects, neighbours_[random_neighbour()].id, Traffic::repair, {frame_head(FrameKind::ask_copy)});
  }
  const std::size_t chosen = choose();
  if (pending(chosen)) send(effects, neighbours_[chosen].id, Traffic::data, gossip_frame(chosen));
}

void Gossip::arrived(const Arrival& arrival, Nanos now, Effects& effects) {
  if (arrival.frame.empty()) return;
  const std::optional<FrameKind> kind = frame_kind(arrival.frame[0]);
  const Reader body(arrival.frame.subspan(1));
  if (!kind || *kind == FrameKind::demand) return;
  if (*kind == FrameKind::ask_copy) {
    if (body.done()) send(effects, arrival.from, Traffic::repair, copy_frame());
    return;
  }
  frame_keys_.clear();
  if (!valid(body, frame_keys_)) return;
  if (*kind == FrameKind::copy) {
    // A second answer, to a retry, is merged too; it does no harm.
    awaits_copy_ = false;
  }
  receive(*kind, index_of(arrival.from), body, now, effects);
}

void Gossip::registered(NodeId node) {
  if (node == self_) return;
  if (const std::optional<std::size_t> known = index_of(node)) {
    neighbours_[*known].gone = false;
    return;
  }
  if (std::find(members_.begin(), members_.end(), node) == members_.end()) members_.push_back(node);
  if (!full_mesh_) return;
  neighbours_.push_back({node});
  neighbour_added();
}

void Gossip::unregistered(NodeId node) {
  const std::optional<std::size_t> known = index_of(node);
  if (!known || neighbours_[*known].gone) return;
  neighbours_[*known].gone = true;
  neighbour_gone(*known);
}

std::optional<std::size_t> Gossip::index_of(NodeId node) const noexcept {
  const auto at =
      std::find_if(neighbours_.begin(), neighbours_.end(), [&](const Neighbour& n) { return n.id == node; });
  if (at == neighbours_.end()) return std::nullopt;
  return static_cast<std::size_t>(at - neighbours_.begin());
}

std::size_t Gossip::live_neighbours() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(neighbours_.begin(), neighbours_.end(), [](const Neighbour& n) { return !n.gone; }));
}

std::size_t Gossip::random_neighbour() noexcept {
  std::uint64_t skip = random_.below(live_neighbours());
  std::size_t at = 0;
  while (neighbours_[at].gone || skip != 0) {
    if (!neighbours_[at].gone) --skip;
    ++at;
  }
  return at;
}

std::size_t Gossip::choose() { return random_neighbour(); }

}  // namespace weir::thesis
