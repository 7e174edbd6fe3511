// replica: what is said and done for hits above the share that ask the other nodes first. See include/weir/claims.hpp.
//
//     asked     claim (key, hits, time) to all live peers, own unsent births of the key pushed
//     peers     count the hits as if they were admitted, push their unsent births of the key, and acknowledge
//     answered  when all have, or after claim_timeout: decide on what is known, older claims before younger ones
//               (ties by node); the birth, or that there is none, goes to all, who count no longer
#include <algorithm>

#include "weir/replica.hpp"

namespace weir {
namespace {

// How long another node's claim counts if nothing more is heard of it.
constexpr Nanos kClaimExpires{1'000'000'000};

}  // namespace

// False if the hits must be decided at once: nobody to ask, or too many claims.
bool Replica::claim(const Limiter& limiter, const Ask& ask, Nanos now, Effects& effects) {
  std::vector<NodeId> live;
  for (const Peer& peer : peers_) {
    if (peer.live) live.push_back(peer.node);
  }
  const auto id = claims_.make(ask, now, limiter.terms.claim_timeout, std::move(live), config_.max_claims);
  if (!id) return false;
  FrameWriter frame(self_.incarnation);
  const KeyState state = keys_.find(limiter.slot, ask.key);
  if (state && state.has_unsent()) emit(limiter, state, now, frame);
  const Subject subject{ask.limiter, limiter.terms.version, ask.key};
  frame.put(ClaimItem{*id, subject, ask.hits, now});
  send_to_live(frame, Traffic::data, effects);
  return true;
}

void Replica::apply(Peer& peer, const ClaimItem& item, Nanos now, Effects& effects) {
  const Limiter* const its = limiter(item.subject.limiter);
  if (its == nullptr || item.hits > its->terms.policy.capacity || item.time > now + config_.future_bound) {
    ++stats_.refused;
    return;
  }
  const Nanos expires = now + std::max(kClaimExpires, Nanos{8 * peers_.delay().v});
  const OthersClaim claim{peer.node, item.id, item.subject.limiter, item.subject.key, item.hits, item.time, expires};
  if (claims_.count(claim, config_.max_claims)) tell_level(*its, item.subject.key, now);
  const KeyState state = keys_.find(its->slot, item.subject.key);
  if (state && state.has_unsent()) make_due(state, now);
  flush(now, effects, &peer, item.id);
}

void Replica::acknowledged(const Peer& peer, std::uint64_t id, Nanos now, Effects& effects) {
  if (const auto answered = claims_.acknowledged(peer.node, id)) decide(*answered, now, effects);
}

// These count no longer.
void Replica::release(const std::vector<OthersClaim>& ended, Nanos now) {
  for (const OthersClaim& claim : ended) {
    if (const Limiter* const its = limiter(claim.limiter)) tell_level(*its, claim.key, now, true);
  }
}

void Replica::decide(const Claim& claim, Nanos now, Effects& effects) {
  const auto& [ticket, id, key, hits] = claim.asked;
  const Limiter* const its = limiter(id);
  const Tokens asked = hits + claims_.before(claim, self_.node);
  const bool allowed = its != nullptr && asked <= its->terms.policy.capacity &&
                       Tat(tat_of(*its, find(id, key))).admits(its->terms.policy, asked, now);
  FrameWriter frame(self_.incarnation);
  if (allowed) {
    const KeyState state = admit(*its, key, hits, now);
    tell_level(*its, key, state, now, false);
    emit(*its, state, now, frame);
  }
  frame.put(ClaimDoneItem{claim.id});
  send_to_live(frame, Traffic::data, effects);
  effects.answers.push_back({ticket, allowed});
}

void Replica::expire_claims(Nanos now, Effects& effects) {
  release(claims_.end_expired(now), now);
  while (const auto expired = claims_.take_expired(now)) decide(*expired, now, effects);
}

}  // namespace weir
