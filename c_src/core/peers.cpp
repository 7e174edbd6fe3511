// peers: see include/weir/peers.hpp.
#include "weir/peers.hpp"

namespace weir {
namespace {

// As long as one that ends with the next heartbeat.
constexpr Nanos kShortQuarantine{5'000'000'000};
// A longer round trip is none: the peer's clock was set, or it says what isn't so.
constexpr Nanos kTripMax{60'000'000'000};
// An offset that changes by more at once is taken as it is, not smoothed.
constexpr Nanos kJump{1'000'000'000};
// After so many questions to a live origin every other one goes to another node.
constexpr std::uint32_t kInVain = 4;

bool before(const Peer& peer, NodeId node) noexcept { return peer.node < node; }

}  // namespace

void Peer::begin_run(std::uint64_t run) noexcept {
  const bool restarted = incarnation != 0;
  incarnation = run;
  if (!restarted) return;
  acked = 0;
  owed = 0;
  given = 0;
  chunks.clear();
  spared = 0;
  unheard.clear();
  behind = false;
  quarantined = false;
  timed = false;
  echo = {0};
}

bool Peer::note_beat(const HeartbeatItem& beat, Nanos now, Nanos peer_timeout) noexcept {
  // An older one that was overtaken. One that is much older, or comes much later, was not: its node's clock was set, or
  // what it said before isn't so.
  const bool close = echo - beat.sent <= peer_timeout && now - echo_at <= peer_timeout;
  if (beat.sent < echo && close) return false;
  echo = beat.sent;
  echo_at = now;
  return true;
}

void Peer::acknowledge(std::uint64_t upto, std::uint64_t head) noexcept {
  acked = std::min(upto, head);
  if (live && behind && served() >= caught) behind = false;
}

// The round trip is without the time the answer was held; the offset is right if both ways took the same time.
bool Peer::measure(const HeartbeatItem& beat, Nanos now) noexcept {
  const Nanos since = now - beat.echo;
  if (beat.echo.v == 0 || beat.held > since || since - beat.held > kTripMax) return false;
  const Nanos trip = now - beat.echo - beat.held;
  const auto smooth = [&](Nanos& mean, Nanos value) {
    const std::int64_t change = (value - mean).v;
    const bool jumps = change > kJump.v || change < -kJump.v;  // a clock was set: what was before counts no more
    mean = timed && !jumps ? Nanos{mean.v + change / 8} : value;
  };
  smooth(round_trip, trip);
  smooth(offset, {(beat.sent - now).v + trip.v / 2});
  timed = true;
  return true;
}

bool Peer::doesnt_hear(NodeId other, Nanos now, Nanos peer_timeout) const noexcept {
  return now - unheard_at <= peer_timeout && std::find(unheard.begin(), unheard.end(), other) != unheard.end();
}

void Peer::begin_quarantine(Nanos now) noexcept {
  if (!std::exchange(quarantined, true)) quarantined_at = now;
}

bool Peer::end_quarantine(Nanos now) noexcept {
  quarantined = false;
  return now - quarantined_at < kShortQuarantine;
}

bool Peer::was_given(std::uint64_t from, Nanos now, Nanos patience) {
  std::erase_if(chunks, [&](const auto& chunk) { return now - chunk.second > patience; });
  return std::any_of(chunks.begin(), chunks.end(), [&](const auto& chunk) { return chunk.first == from; });
}

Peers::Peers(std::span<const NodeId> nodes, Nanos now) {
  for (const NodeId node : nodes) {
    Peer peer;
    peer.node = node;
    peer.heard = now;
    peers_.push_back(peer);
  }
  std::sort(peers_.begin(), peers_.end(), [](const Peer& a, const Peer& b) { return a.node < b.node; });
}

Peer* Peers::find(NodeId node) noexcept {
  const auto at = std::lower_bound(peers_.begin(), peers_.end(), node, before);
  return at != peers_.end() && at->node == node ? &*at : nullptr;
}

void Peers::add(NodeId node, std::uint64_t head, Nanos now) {
  Peer peer;
  peer.node = node;
  peer.heard = now;
  peer.behind = head != 0;
  peer.caught = head;
  peers_.insert(std::lower_bound(peers_.begin(), peers_.end(), node, before), peer);
}

void Peers::remove(NodeId node) noexcept {
  std::erase_if(peers_, [&](const Peer& peer) { return peer.node == node; });
}

std::size_t Peers::away() const noexcept {
  return static_cast<std::size_t>(std::count_if(begin(), end(), [](const Peer& peer) { return !peer.live; }));
}

std::vector<NodeId> Peers::silent(Nanos now, Nanos peer_timeout) const {
  std::vector<NodeId> nodes;
  for (const Peer& peer : peers_) {
    if (peer.live && now - peer.heard > peer_timeout) nodes.push_back(peer.node);
  }
  return nodes;
}

std::vector<NodeId> Peers::lost(Nanos now, Nanos forget_after) const {
  std::vector<NodeId> nodes;
  for (const Peer& peer : peers_) {
    if (!peer.live && now - peer.away_since > forget_after) nodes.push_back(peer.node);
  }
  return nodes;
}

bool Peers::reaches(const OriginId& run) const noexcept {
  const Peer* const peer = find(run.node);
  return peer != nullptr && peer->live && peer->incarnation == run.incarnation;
}

const Peer* Peers::next_live(NodeId self) const noexcept {
  const Peer* first = nullptr;
  for (const Peer& peer : peers_) {
    if (!peer.live || peer.incarnation == 0) continue;
    if (peer.node > self) return &peer;
    if (first == nullptr) first = &peer;
  }
  return first;
}

void Peers::measure() noexcept {
  std::int64_t sum = 0;
  std::int64_t timed = 0;
  for (const Peer& peer : peers_) {
    if (!peer.live || !peer.timed) continue;
    sum += peer.round_trip.v / 2;
    ++timed;
  }
  delay_ = {timed == 0 ? 0 : sum / timed};
}

Peers::Needs Peers::needs(std::uint64_t head) const noexcept {
  Needs needs;
  needs.live = head;
  for (const Peer& peer : peers_) {
    if (peer.live) needs.live = std::min(needs.live, peer.served());
    if (peer.behind) needs.away = std::min(needs.away, peer.served());
    needs.any_away = needs.any_away || !peer.live;
  }
  return needs;
}

// (What comes between the last that a peer heard and the first that others pass on to it is to be found there, or here
// one by one: in the middle of a piece it would have to copy the whole state.)
std::uint64_t Peers::stable(std::uint64_t head, Nanos now, Nanos keep) const noexcept {
  std::uint64_t least = head;
  for (const Peer& peer : peers_) {
    if (peer.live || now - peer.away_since < keep) least = std::min(least, peer.served());
  }
  return least;
}

Peer* Peers::whom_to_ask(const Origin& origin, NodeId self, Nanos now, Nanos peer_timeout) {
  Peer* const itself = find(origin.id.node);
  if (itself != nullptr && itself->incarnation == origin.id.incarnation) {
    const bool in_vain = origin.attempts >= kInVain && origin.attempts % 2 != 0;
    if (itself->live && !in_vain && !itself->doesnt_hear(self, now, peer_timeout)) return itself;
    if (!itself->live && now - itself->away_since < peer_timeout) return nullptr;
  }
  Peer* const via = find(origin.via);
  if (via != nullptr && via != itself && via->live && origin.attempts < 3) return via;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = in_turn(i + origin.attempts / (itself != nullptr && itself->live ? 2 : 1));
    if (peer.live && !peer.quarantined && &peer != itself) return &peer;
  }
  return itself != nullptr && itself->live ? itself : nullptr;
}

// Whether this node passes records of one on to the other: the link between them is cut, and this node is the first of
// those that hear both and that both hear, as far as it knows. (Two that think so send a record twice, which is
// refused; if none does, digests show it.)
bool Peers::passes_on(const Peer& from, const Peer& to, NodeId self, Nanos now, Nanos peer_timeout) const noexcept {
  const auto apart = [&](const Peer& one, const Peer& other) {
    return one.doesnt_hear(other.node, now, peer_timeout) || other.doesnt_hear(one.node, now, peer_timeout);
  };
  if (!to.live || !from.live || from.node == to.node || !apart(from, to)) return false;
  if (from.doesnt_hear(self, now, peer_timeout) || to.doesnt_hear(self, now, peer_timeout)) return false;
  return std::none_of(begin(), end(), [&](const Peer& other) {
    return other.node < self && other.live && other.node != from.node && other.node != to.node && !apart(other, from) &&
           !apart(other, to);
  });
}

void Peers::find_passes(NodeId self, Nanos now, Nanos peer_timeout) {
  if (std::all_of(begin(), end(), [&](const Peer& peer) {
        return peer.passes.empty() && (peer.unheard.empty() || now - peer.unheard_at > peer_timeout);
      })) {
    return;
  }
  for (Peer& from : peers_) {
    from.passes.clear();
    for (const Peer& to : peers_) {
      if (passes_on(from, to, self, now, peer_timeout)) from.passes.push_back(to.node);
    }
  }
}

bool Peers::any_cut_off(Nanos now, Nanos lately) const noexcept {
  return std::any_of(begin(), end(), [&](const Peer& peer) {
    return !peer.passes.empty() || (!peer.live && now - peer.away_since < lately);
  });
}

}  // namespace weir
