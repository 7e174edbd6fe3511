// replica: signs of life, clocks and membership. See include/weir/replica.hpp.
#include <algorithm>
#include <cassert>

#include "weir/replica.hpp"

namespace weir {
namespace {

// How long the records of a run that ended may still come from others' logs, before the run is forgotten and refused.
constexpr Nanos kKeepDead{60'000'000'000};
// Runs of one node that are known at a time: of one that restarts more often than that, the oldest are forgotten early.
constexpr std::size_t kRunsMax = 16;
// Nodes of which forgotten runs are refused, though they are no members any more: they may be registered again.
constexpr std::size_t kCollectedMax = std::size_t{1} << 16;
// As long as one that ends with the next heartbeat: what was told belongs to the time before the clock was set.
constexpr Nanos kShortQuarantine{5'000'000'000};
// A longer round trip is none: the peer's clock was set, or it says what isn't so.
constexpr Nanos kTripMax{60'000'000'000};
// An offset that changes by more at once is taken as it is, not smoothed.
constexpr Nanos kJump{1'000'000'000};
// Incarnations are the milliseconds of a run's start, or one more than the last.
constexpr std::uint64_t kDayMs = 86'400'000;

}  // namespace

Replica::Peer* Replica::find(NodeId node) noexcept {
  const auto at = std::lower_bound(peers_.begin(), peers_.end(), node,
                                   [](const Peer& peer, NodeId wanted) { return peer.node < wanted; });
  return at != peers_.end() && at->node == node ? &*at : nullptr;
}

const Replica::Peer* Replica::find(NodeId node) const noexcept { return const_cast<Replica*>(this)->find(node); }

std::optional<std::pair<Nanos, Nanos>> Replica::clock_of(NodeId node) const noexcept {
  const Peer* const peer = find(node);
  if (peer == nullptr || !peer->timed) return std::nullopt;
  return std::pair{peer->offset, peer->round_trip};
}

bool Replica::quarantined(NodeId node) const noexcept {
  const Peer* const peer = find(node);
  return peer != nullptr && peer->quarantined;
}

void Replica::introduce(const Introduced& run) noexcept {
  introduces_ = true;
  if (Peer* const peer = find(run.node)) peer->introduced = run.incarnation;
}

bool Replica::forgotten(const OriginId& id) const noexcept {
  const auto last = collected_.find(id.node.v);
  return last != collected_.end() && id.incarnation <= last->second;
}

// Whether a run that isn't known yet may become so by what others tell of it.
bool Replica::belongs(const OriginId& id) const noexcept {
  const auto left = [&](const auto& entry) { return entry.first == id.node; };
  const bool known =
      std::binary_search(members_.begin(), members_.end(), id.node) || std::any_of(left_.begin(), left_.end(), left);
  return known && !forgotten(id) && runs(id.node) < kRunsMax;
}

std::size_t Replica::runs(NodeId node) const noexcept {
  return static_cast<std::size_t>(
      std::count_if(origins_.begin(), origins_.end(), [&](const Origin& origin) { return origin.id.node == node; }));
}

// The entry of a run, made if there is none. All runs of a node but its last are over: the last that was heard from
// itself, if it is a neighbour. What others say of later ones can't end it.
Origin& Replica::run_of(const OriginId& id, Nanos now) {
  origins_.add(id);
  const Peer* const peer = find(id.node);
  const bool member = std::binary_search(members_.begin(), members_.end(), id.node) && id.node != self_.node;
  for (auto at = origins_.begin(); at != origins_.end(); ++at) {
    const auto next = std::next(at);
    const bool later = next != origins_.end() && next->id.node == at->id.node;
    const bool heard = peer != nullptr && peer->incarnation != 0;
    const bool over = !member || (heard ? at->id.incarnation < peer->incarnation : later);
    if (at->id.node != id.node || !over) continue;
    if (at->dead_since == kNever) at->attempts = 0;  // as in went_away
    at->dead_since = std::min(at->dead_since, now);
  }
  return *origins_.find(id);
}

// Notes the run that a frame comes from. False for runs that are over and forgotten, and for those that nobody
// introduced. Frames of the last run that come late are welcome: their births are true.
bool Replica::enroll(Peer& peer, std::uint64_t incarnation, Nanos now) {
  if (introduces_ && incarnation > peer.introduced) return false;
  if (forgotten({peer.node, incarnation})) return false;
  if (incarnation <= peer.incarnation) return true;
  const bool restarted = peer.incarnation != 0;
  const OriginId before{peer.node, peer.incarnation};
  peer.incarnation = incarnation;
  if (origins_.find({peer.node, incarnation}) == nullptr && runs(peer.node) >= kRunsMax) {
    const auto oldest = std::find_if(origins_.begin(), origins_.end(),
                                     [&](const Origin& origin) { return origin.id.node == peer.node; });
    // Those that are later than what the node itself says were made up.
    oldest->id.incarnation < incarnation ? forget_run(oldest->id) : origins_.erase(OriginId(oldest->id));
  }
  run_of({peer.node, incarnation}, now).dead_since = kNever;
  find_buddy(now);
  if (restarted) {
    declare_dead(before, now);
    // It knows nothing of what its last run had, and will copy it.
    peer.acked = 0;
    peer.owed = 0;
    peer.given = 0;
    peer.chunks.clear();
    peer.spared = 0;
    peer.unheard.clear();
    peer.behind = false;
    peer.quarantined = false;
    peer.timed = false;
    peer.echo = {0};
    news(now, true);
  }
  return true;
}

void Replica::tick(Nanos now, Effects& effects) {
  if (now >= heartbeat_at_) {
    check_life(now);
    find_passes(now);
    heartbeats(now, effects);
    forget_history(now);
    collect(now);
    find_buddy(now);
    tell_estimates(now);
  }
  if (now >= sweep_at_) sweep(now);
  if (now >= grown_at_) push_grown(now);
  for (; !aging_.empty() && aging_.top().first <= now; aging_.pop()) {
    const auto [id, hash] = aging_.top().second;
    const KeyState state = find({id}, {hash});
    if (state && state.has_unsent()) make_due(state, now);
  }
  if (now >= repair_at_) repair(now, effects);
  if (now >= digest_at_) send_digest(now, effects);
  if (gives()) give(now, effects);
  if (to_place() != 0) {
    place_segments(now, effects);
  } else if (copy_ && now >= copy_->deadline) {
    ask_for_copy(now, effects);
  }
  expire_claims(now, effects);
}

// To all neighbours, those that are away too: it is how they are found again.
void Replica::heartbeats(Nanos now, Effects& effects) {
  const std::int64_t missed = std::max<std::int64_t>(0, (now - heartbeat_at_).v / config_.heartbeat_interval.v);
  heartbeat_at_ = heartbeat_at_ + Nanos{(missed + 1) * config_.heartbeat_interval.v};
  const bool lost_someone = lost_lately(now);
  const DigestItem mine = lost_someone ? digest(now) : DigestItem{};
  UnheardItem unheard;
  for (const Peer& peer : peers_) {
    if (!peer.live && unheard.nodes.size() < kVectorMax) unheard.nodes.push_back(peer.node);
  }
  heads_ = {heads_.back(), history_.head()};
  for (const Peer& peer : peers_) {
    HeartbeatItem beat;
    beat.sent = now;
    beat.echo = peer.echo;
    beat.held = peer.echo.v == 0 ? Nanos{0} : now - peer.echo_at;
    beat.head = history_.head();
    beat.stable = stable(now);
    beat.receiver_incarnation = peer.incarnation;
    const Origin* const theirs = origins_.find({peer.node, peer.incarnation});
    beat.ack = theirs == nullptr ? 0 : theirs->upto;
    FrameWriter frame(self_.incarnation);
    frame.put(beat);
    if (lost_someone) frame.put(mine);
    send_to(peer.node, frame, Traffic::heartbeat, effects);
    // In a frame of their own: nodes of before these items refuse the whole frame.
    if (theirs != nullptr && theirs->held_off) frame.put(SparedItem{peer.incarnation, theirs->known});
    if (!unheard.nodes.empty()) frame.put(unheard);
    send_to(peer.node, frame, Traffic::heartbeat, effects);
  }
}

void Replica::apply(Peer& peer, const SparedItem& item) noexcept {
  if (item.receiver_incarnation == self_.incarnation) peer.spared = std::min(item.upto, history_.head());
}

void Replica::apply(Peer& peer, const HeartbeatItem& item, Nanos now) {
  // An older one that was overtaken. One that is much older, or comes much later, was not: its node's clock was set, or
  // what it said before isn't so.
  const bool close = peer.echo - item.sent <= config_.peer_timeout && now - peer.echo_at <= config_.peer_timeout;
  if (item.sent < peer.echo && close) return;
  peer.echo = item.sent;
  peer.echo_at = now;
  if (item.receiver_incarnation == self_.incarnation) {
    peer.acked = std::min(item.ack, history_.head());
    if (peer.live && peer.behind && peer.served() >= peer.caught) peer.behind = false;
    const Nanos away = now - item.echo;
    if (item.echo.v != 0 && item.held <= away && away - item.held <= kTripMax) {
      // Four time stamps, as in NTP (RFC 5905): the round trip less the time it was held, the offset if both ways took
      // the same time.
      const Nanos trip = now - item.echo - item.held;
      const Nanos offset{(item.sent - now).v + trip.v / 2};
      const auto smooth = [&](Nanos& mean, Nanos value) {
        const std::int64_t change = (value - mean).v;
        const bool jumps = change > kJump.v || change < -kJump.v;  // a clock was set: what was before counts no more
        mean = peer.timed && !jumps ? Nanos{mean.v + change / 8} : value;
      };
      smooth(peer.round_trip, trip);
      smooth(peer.offset, offset);
      peer.timed = true;
      measure(now);
      if (peer.quarantined && peer.offset < config_.future_bound) end_quarantine(peer, now);
    }
  }
  if (Origin* const origin = origins_.find({peer.node, peer.incarnation})) {
    const Nanos patience{std::clamp<std::int64_t>(peer.round_trip.v / 2, 1'000'000, config_.coalesce_most.v)};
    // What others told of it beyond its own word does not exist.
    origin->forget_beyond(item.head + kNumbersAhead);
    origin->head = item.head;
    const std::uint64_t seen = origin->beyond.empty() ? origin->upto : origin->beyond.back().last;
    origin->known = std::min(origin->known, std::max(seen, item.head));
    note(*origin, item.head, peer.node, now, patience);
    origin->stable = item.stable;
    trim_others(now);
  }
}

// Of a node that hears all again nothing comes any more.
bool Replica::doesnt_hear(const Peer& peer, NodeId node, Nanos now) const noexcept {
  return now - peer.unheard_at <= config_.peer_timeout &&
         std::find(peer.unheard.begin(), peer.unheard.end(), node) != peer.unheard.end();
}

// Whether this node passes records of one on to the other: the link between them is cut, and this node is the first of
// those that hear both and that both hear, as far as it knows. (Two that think so send a record twice, which is
// refused; if none does, digests show it.)
bool Replica::passes_on(const Peer& from, const Peer& to, Nanos now) const noexcept {
  const auto apart = [&](const Peer& one, const Peer& other) {
    return doesnt_hear(one, other.node, now) || doesnt_hear(other, one.node, now);
  };
  if (!to.live || !from.live || from.node == to.node || !apart(from, to)) return false;
  if (doesnt_hear(from, self_.node, now) || doesnt_hear(to, self_.node, now)) return false;
  return std::none_of(peers_.begin(), peers_.end(), [&](const Peer& other) {
    return other.node < self_.node && other.live && other.node != from.node && other.node != to.node &&
           !apart(other, from) && !apart(other, to);
  });
}

void Replica::find_passes(Nanos now) {
  if (std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
        return peer.passes.empty() && (peer.unheard.empty() || now - peer.unheard_at > config_.peer_timeout);
      })) {
    return;
  }
  for (Peer& from : peers_) {
    from.passes.clear();
    for (const Peer& to : peers_) {
      if (passes_on(from, to, now)) from.passes.push_back(to.node);
    }
  }
}

void Replica::begin_quarantine(Peer& peer, Nanos now) noexcept {
  if (!std::exchange(peer.quarantined, true)) peer.quarantined_at = now;
}

void Replica::end_quarantine(Peer& peer, Nanos now) {
  peer.quarantined = false;
  Origin* const origin = origins_.find({peer.node, peer.incarnation});
  // A peer whose clock is right again still has records of the future: those that are tried don't make the next try
  // come sooner.
  if (origin == nullptr || !origin->held_off || now - peer.quarantined_at < kShortQuarantine) return;
  origin->attempts = 0;
  origin->repair_at = now;
  repair_at_ = std::min(repair_at_, now);
}

void Replica::measure(Nanos now) noexcept {
  std::int64_t sum = 0;
  std::int64_t timed = 0;
  std::size_t away = 0;
  for (const Peer& peer : peers_) {
    if (!peer.live) ++away;
    if (!peer.live || !peer.timed) continue;
    sum += peer.round_trip.v / 2;
    ++timed;
  }
  delay_ = {timed == 0 ? 0 : sum / timed};
  const std::size_t live = std::max<std::size_t>(1, members_.size() - away);
  if (live > std::exchange(live_, live)) {
    grown_at_ = now;
    grown_next_ = 0;
  }
}

void Replica::check_life(Nanos now) {
  for (Peer& peer : peers_) {
    if (peer.live && now - peer.heard > config_.peer_timeout) went_away(peer, now);
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].live && now - peers_[i].away_since > config_.forget_after) {
      remove_member(peers_[i].node, now);
      --i;
    }
  }
}

void Replica::went_away(Peer& peer, Nanos now) {
  ++stats_.absences;
  history_.pin(peer.served());
  history_.begin_piece();
  peer.live = false;
  peer.behind = true;
  peer.owed = 0;
  peer.away_since = now;
  for (Origin& origin : origins_) {
    if (origin.id.node == peer.node) origin.attempts = 0;  // from now on others are asked for what is missing
  }
  measure(now);
  declare_dead({peer.node, peer.incarnation}, now);
  find_buddy(now);
  claims_.dont_wait_for(peer.node);
  news(now, true);
}

void Replica::came_back(Peer& peer, Nanos now, Effects& effects) {
  peer.live = true;
  peer.away_since = kNever;
  // Its piece ends here: what comes now it gets record by record.
  peer.caught = history_.head();
  const bool others_away = std::any_of(peers_.begin(), peers_.end(), [](const Peer& other) { return !other.live; });
  others_away ? history_.begin_piece() : history_.end_piece();
  measure(now);
  if (live_ == members_.size()) drop_shadows(now);
  send_vector(peer, true, effects);
  news(now, true);
}

void Replica::add_member(NodeId node, Nanos now) {
  if (node == self_.node || std::binary_search(members_.begin(), members_.end(), node)) return;
  members_.insert(std::lower_bound(members_.begin(), members_.end(), node), node);
  std::erase_if(left_, [&](const auto& entry) { return entry.first == node; });
  Peer peer;
  peer.node = node;
  peer.heard = now;
  // It may copy what there was from others; else it is supplied.
  peer.behind = history_.head() != 0;
  peer.caught = history_.head();
  if (peers_.empty()) history_.end_piece();
  peers_.insert(std::lower_bound(peers_.begin(), peers_.end(), node,
                                 [](const Peer& has, NodeId wanted) { return has.node < wanted; }),
                peer);
  measure(now);
  heartbeat_at_ = std::min(heartbeat_at_, now);
}

void Replica::remove_member(NodeId node, Nanos now) {
  if (node == self_.node || std::erase(members_, node) == 0) return;
  left_.emplace_back(node, now);
  if (const Peer* const peer = find(node)) declare_dead({node, peer->incarnation}, now);
  std::erase_if(peers_, [&](const Peer& peer) { return peer.node == node; });
  for (Origin& origin : origins_) {
    if (origin.id.node == node) origin.dead_since = std::min(origin.dead_since, now);
  }
  claims_.forget(node);
  measure(now);
  if (live_ == members_.size()) drop_shadows(now);
  forget_history(now);
  news(now, true);  // its last records may have reached only some
}

// Up to where all have this node's records whose absence, if there is one, is a short one as yet. (What comes between
// the last that a peer heard and the first that others pass on to it is to be found there, or here one by one: in the
// middle of a piece it would have to copy the whole state.)
std::uint64_t Replica::stable(Nanos now) const noexcept {
  std::uint64_t least = history_.head();
  for (const Peer& peer : peers_) {
    if (peer.live || now - peer.away_since < config_.keep_others) least = std::min(least, peer.served());
  }
  return least;
}

// What everyone has, nobody asks for again.
void Replica::forget_history(Nanos now) {
  if (copy_) return;           // it may be true for less than its donor has acknowledged since
  if (peers_.empty()) return;  // nobody has anything
  std::uint64_t all = history_.head();
  std::uint64_t away = UINT64_MAX;
  bool any_away = false;
  for (const Peer& peer : peers_) {
    if (peer.live) all = std::min(all, peer.served());
    if (peer.behind) away = std::min(away, peer.served());
    any_away = any_away || !peer.live;
  }
  if (!any_away) history_.end_piece();
  // What is passed on to a peer that is away comes to it a little later than to others.
  history_.forget(all, away, any_away ? std::min(stable(now), heads_.front()) : all);
}

// Whether a run can be over, as a copy says. A run that is heard, or one of tomorrow, is not.
bool Replica::may_be_over(const OriginId& id, Nanos now) const noexcept {
  if (id.node == self_.node) return id.incarnation < self_.incarnation;
  const Peer* const peer = find(id.node);
  if (peer != nullptr && peer->live && peer->incarnation != 0) return id.incarnation < peer->incarnation;
  return id.incarnation <= static_cast<std::uint64_t>(now.v) / 1'000'000 + kDayMs;
}

// Whether a copy speaks of no more records than those who are heard say that they have made.
bool Replica::plausible(const CopyItem& item) const noexcept {
  return std::all_of(item.vector.begin(), item.vector.end(), [&](const VectorEntry& entry) {
    const Peer* const peer = find(entry.origin.node);
    const Origin* const origin = origins_.find(entry.origin);
    const bool heard = peer != nullptr && peer->live && peer->incarnation == entry.origin.incarnation &&
                       origin != nullptr && origin->head != 0;
    if (entry.upto == kForgotten || !heard) return true;
    return entry.upto <= origin->head + kNumbersAhead;
  });
}

void Replica::forget_run(const OriginId id) {
  auto& upto = collected_[id.node.v];
  upto = std::max(upto, id.incarnation);
  origins_.erase(id);
}

// Runs that are over are forgotten, and refused from then on.
void Replica::collect(Nanos now) {
  std::vector<OriginId> over;
  for (const Origin& origin : origins_) {
    if (origin.dead_since != kNever && now - origin.dead_since > kKeepDead) over.push_back(origin.id);
  }
  for (const OriginId& id : over) forget_run(id);
  std::erase_if(left_, [&](const auto& entry) { return now - entry.second > kKeepDead; });
  floors_.drop(origins_, self_);
  if (collected_.size() <= kCollectedMax) return;
  std::erase_if(collected_, [&](const auto& entry) {
    return !std::binary_search(members_.begin(), members_.end(), NodeId{entry.first});
  });
}

}  // namespace weir
