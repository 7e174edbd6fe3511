// replica: signs of life, clocks and membership. See include/weir/replica.hpp.
#include <algorithm>
#include <cassert>

#include "weir/replica.hpp"

namespace weir {
namespace {

// Incarnations are the milliseconds of a run's start, or one more than the last.
constexpr std::uint64_t kDayMs = 86'400'000;

}  // namespace

std::optional<std::pair<Nanos, Nanos>> Replica::clock_of(NodeId node) const noexcept {
  const Peer* const peer = peers_.find(node);
  if (peer == nullptr || !peer->timed) return std::nullopt;
  return std::pair{peer->offset, peer->round_trip};
}

bool Replica::quarantined(NodeId node) const noexcept {
  const Peer* const peer = peers_.find(node);
  return peer != nullptr && peer->quarantined;
}

void Replica::introduce(const Introduced& run) noexcept {
  introduces_ = true;
  if (Peer* const peer = peers_.find(run.node)) peer->introduced = run.incarnation;
}

// Whether a run that isn't known yet may become so by what others tell of it.
bool Replica::belongs(const OriginId& id) const noexcept {
  const auto left = [&](const auto& entry) { return entry.first == id.node; };
  const bool known =
      std::binary_search(members_.begin(), members_.end(), id.node) || std::any_of(left_.begin(), left_.end(), left);
  return known && !ledger_.forgotten(id) && ledger_.runs(id.node) < Ledger::kRunsMax;
}

// The last run of a neighbour is the one that was heard from itself.
Origin& Replica::run_of(const OriginId& id, Nanos now) {
  const Peer* const peer = peers_.find(id.node);
  const bool member = std::binary_search(members_.begin(), members_.end(), id.node) && id.node != self_.node;
  return ledger_.run_of(id, member, peer == nullptr ? 0 : peer->incarnation, now);
}

// Notes the run that a frame comes from. False for runs that are over and forgotten, and for those that nobody
// introduced. Frames of the last run that come late are welcome: their births are true.
bool Replica::enroll(Peer& peer, std::uint64_t incarnation, Nanos now) {
  if (introduces_ && incarnation > peer.introduced) return false;
  if (ledger_.forgotten({peer.node, incarnation})) return false;
  if (incarnation <= peer.incarnation) return true;
  const bool restarted = peer.incarnation != 0;
  const OriginId before{peer.node, peer.incarnation};
  // It knows nothing of what its last run had, and will copy it.
  peer.begin_run(incarnation);
  ledger_.make_room_for({peer.node, incarnation});
  run_of({peer.node, incarnation}, now).dead_since = kNever;
  find_buddy(now);
  if (restarted) {
    declare_dead(before, now);
    news(now, true);
  }
  return true;
}

void Replica::tick(Nanos now, Effects& effects) {
  if (now >= heartbeat_at_) {
    check_life(now);
    peers_.find_passes(self_.node, now, config_.peer_timeout);
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
  if (copy_ && copy_->to_place() != 0) {
    place_segments(now, effects);
  } else if (copy_ && now >= copy_->deadline()) {
    ask_for_copy(now, effects);
  }
  expire_claims(now, effects);
}

// To all neighbours, those that are away too: it is how they are found again.
void Replica::heartbeats(Nanos now, Effects& effects) {
  const std::int64_t missed = std::max<std::int64_t>(0, (now - heartbeat_at_).v / config_.heartbeat_interval.v);
  heartbeat_at_ = heartbeat_at_ + Nanos{(missed + 1) * config_.heartbeat_interval.v};
  const bool lost_someone = lost_lately(now);
  const DigestItem mine = lost_someone ? ledger_.digest(now) : DigestItem{};
  UnheardItem unheard;
  for (const Peer& peer : peers_) {
    if (!peer.live && unheard.nodes.size() < kVectorMax) unheard.nodes.push_back(peer.node);
  }
  heads_ = {heads_.back(), ledger_.history().head()};
  for (const Peer& peer : peers_) {
    HeartbeatItem beat;
    beat.sent = now;
    beat.echo = peer.echo;
    beat.held = peer.echo.v == 0 ? Nanos{0} : now - peer.echo_at;
    beat.head = ledger_.history().head();
    beat.stable = peers_.stable(ledger_.history().head(), now, config_.keep_others);
    beat.receiver_incarnation = peer.incarnation;
    const Origin* const theirs = ledger_.origins().find({peer.node, peer.incarnation});
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
  if (item.receiver_incarnation == self_.incarnation) peer.spared = std::min(item.upto, ledger_.history().head());
}

void Replica::apply(Peer& peer, const HeartbeatItem& item, Nanos now) {
  if (!peer.note_beat(item, now, config_.peer_timeout)) return;
  if (item.receiver_incarnation == self_.incarnation) {
    peer.acknowledge(item.ack, ledger_.history().head());
    if (peer.measure(item, now)) {
      measure(now);
      if (peer.quarantined && peer.offset < config_.future_bound) end_quarantine(peer, now);
    }
  }
  if (Origin* const origin = ledger_.origins().find({peer.node, peer.incarnation})) {
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

void Replica::end_quarantine(Peer& peer, Nanos now) {
  const bool was_short = peer.end_quarantine(now);
  Origin* const origin = ledger_.origins().find({peer.node, peer.incarnation});
  // A peer whose clock is right again still has records of the future: those that are tried don't make the next try
  // come sooner.
  if (origin == nullptr || !origin->held_off || was_short) return;
  origin->attempts = 0;
  origin->repair_at = now;
  repair_at_ = std::min(repair_at_, now);
}

void Replica::measure(Nanos now) noexcept {
  peers_.measure();
  const std::size_t live = std::max<std::size_t>(1, members_.size() - peers_.away());
  if (live > std::exchange(live_, live)) {
    grown_at_ = now;
    grown_next_ = 0;
  }
}

void Replica::check_life(Nanos now) {
  for (const NodeId node : peers_.silent(now, config_.peer_timeout)) went_away(*peers_.find(node), now);
  for (const NodeId node : peers_.lost(now, config_.forget_after)) remove_member(node, now);
}

void Replica::went_away(Peer& peer, Nanos now) {
  ++stats_.absences;
  ledger_.history().pin(peer.served());
  ledger_.history().begin_piece();
  peer.live = false;
  peer.behind = true;
  peer.owed = 0;
  peer.away_since = now;
  for (Origin& origin : ledger_.origins()) {
    if (origin.id.node == peer.node) origin.ask_anew();  // from now on others are asked for what is missing
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
  for (Origin& origin : ledger_.origins()) {
    if (origin.id.node == peer.node) origin.ask_anew();
  }
  // Its piece ends here: what comes now it gets record by record.
  peer.caught = ledger_.history().head();
  peers_.away() != 0 ? ledger_.history().begin_piece() : ledger_.history().end_piece();
  measure(now);
  if (live_ == members_.size()) drop_shadows(now);
  send_vector(peer, true, effects);
  news(now, true);
}

void Replica::add_member(NodeId node, Nanos now) {
  if (node == self_.node || std::binary_search(members_.begin(), members_.end(), node)) return;
  members_.insert(std::lower_bound(members_.begin(), members_.end(), node), node);
  std::erase_if(left_, [&](const auto& entry) { return entry.first == node; });
  if (peers_.empty()) ledger_.history().end_piece();
  // It may copy what there was from others; else it is supplied.
  peers_.add(node, ledger_.history().head(), now);
  measure(now);
  heartbeat_at_ = std::min(heartbeat_at_, now);
}

void Replica::remove_member(NodeId node, Nanos now) {
  if (node == self_.node || std::erase(members_, node) == 0) return;
  left_.emplace_back(node, now);
  if (const Peer* const peer = peers_.find(node)) declare_dead({node, peer->incarnation}, now);
  peers_.remove(node);
  for (Origin& origin : ledger_.origins()) {
    if (origin.id.node == node) origin.dead_since = std::min(origin.dead_since, now);
  }
  claims_.forget(node);
  measure(now);
  if (live_ == members_.size()) drop_shadows(now);
  forget_history(now);
  news(now, true);  // its last records may have reached only some
}

// What everyone has, nobody asks for again.
void Replica::forget_history(Nanos now) {
  if (copy_) return;           // it may be true for less than its donor has acknowledged since
  if (peers_.empty()) return;  // nobody has anything
  const auto [all, away, any_away] = peers_.needs(ledger_.history().head());
  if (!any_away) ledger_.history().end_piece();
  // What is passed on to a peer that is away comes to it a little later than to others.
  ledger_.history().forget(
      all, away,
      any_away ? std::min(peers_.stable(ledger_.history().head(), now, config_.keep_others), heads_.front()) : all);
}

// Whether a run can be over, as a copy says. A run that is heard, or one of tomorrow, is not.
bool Replica::may_be_over(const OriginId& id, Nanos now) const noexcept {
  if (id.node == self_.node) return id.incarnation < self_.incarnation;
  const Peer* const peer = peers_.find(id.node);
  if (peer != nullptr && peer->live && peer->incarnation != 0) return id.incarnation < peer->incarnation;
  return id.incarnation <= static_cast<std::uint64_t>(now.v) / 1'000'000 + kDayMs;
}

// Whether a copy speaks of no more records than those who are heard say that they have made.
bool Replica::plausible(const CopyItem& item) const noexcept {
  return std::all_of(item.vector.begin(), item.vector.end(), [&](const VectorEntry& entry) {
    const Peer* const peer = peers_.find(entry.origin.node);
    const Origin* const origin = ledger_.origins().find(entry.origin);
    const bool heard = peer != nullptr && peer->live && peer->incarnation == entry.origin.incarnation &&
                       origin != nullptr && origin->head != 0;
    if (entry.upto == kForgotten || !heard) return true;
    return entry.upto <= origin->head + kNumbersAhead;
  });
}

// Runs that are over are forgotten, and refused from then on.
void Replica::collect(Nanos now) {
  ledger_.forget_over(now);
  std::erase_if(left_, [&](const auto& entry) { return now - entry.second > Ledger::kKeepDead; });
  ledger_.bound_forgotten([&](NodeId node) { return std::binary_search(members_.begin(), members_.end(), node); });
}

}  // namespace weir
