// replica: hits above the share that ask the other nodes before they are admitted. See include/weir/replica.hpp.
//
//     asked     claim (key, hits, time) to all live peers, own unsent births of the key pushed
//     peers     count the hits as if they were admitted, push their unsent births of the key, and acknowledge
//     answered  when all have, or after claim_timeout: decide on what is known, older claims before younger ones
//               (ties by node); the birth, or that there is none, goes to all, who count no longer
#include <algorithm>

#include "weir/replica.hpp"

namespace weir {
namespace {

// Of what is asked for a key at the same time no more than this is counted: more than any capacity, and twice fits.
constexpr Tokens kAskedMost{kSpanMax.v + 1};

// How long another node's claim counts if nothing more is heard of it.
constexpr Nanos kClaimExpires{1'000'000'000};

Tokens add(Tokens sum, Tokens hits) noexcept { return std::min(kAskedMost, sum + hits); }

}  // namespace

// False if the hits must be decided at once: nobody to ask, or too many claims.
bool Replica::claim(const Limiter& limiter, const Ask& ask, Nanos now, Effects& effects) {
  if (claims_.size() >= config_.max_claims) return false;
  Claim made;
  made.id = ++claims_made_;
  made.ticket = ask.ticket;
  made.limiter = ask.limiter;
  made.key = ask.key;
  made.hits = ask.hits;
  made.time = now;
  made.deadline = now + limiter.terms.claim_timeout;
  for (const Peer& peer : peers_) {
    if (peer.live) made.waiting.push_back(peer.node);
  }
  if (made.waiting.empty()) return false;
  FrameWriter frame(self_.incarnation);
  const KeyState state = keys_.find(limiter.slot, ask.key);
  if (state && state.has_unsent()) emit(limiter, state, now, frame);
  const Subject subject{ask.limiter, limiter.terms.version, ask.key};
  frame.put(ClaimItem{made.id, subject, ask.hits, now});
  send_to_live(frame, Traffic::data, effects);
  claims_.push_back(std::move(made));
  return true;
}

Tokens Replica::claimed_by_others(LimiterId limiter, KeyHash key) const noexcept {
  Tokens sum;
  for (const Tentative& claim : tentative_) {
    if (claim.limiter == limiter && claim.key == key) sum = add(sum, claim.hits);
  }
  return sum;
}

void Replica::apply(Peer& peer, const ClaimItem& item, Nanos now, Effects& effects) {
  const Limiter* const its = limiter(item.subject.limiter);
  if (its == nullptr || item.hits > its->terms.policy.capacity || item.time > now + config_.future_bound) {
    ++stats_.refused;
    return;
  }
  const auto same = [&](const Tentative& claim) { return claim.node == peer.node && claim.id == item.id; };
  if (std::none_of(tentative_.begin(), tentative_.end(), same) && tentative_.size() < config_.max_claims * 4) {
    tentative_.push_back({peer.node, item.id, item.subject.limiter, item.subject.key, item.hits, item.time,
                          now + std::max(kClaimExpires, Nanos{8 * delay_.v})});
    tell_level(*its, item.subject.key, now);
  }
  const KeyState state = keys_.find(its->slot, item.subject.key);
  if (state && state.has_unsent()) make_due(state, now);
  flush(now, effects, &peer, item.id);
}

void Replica::acknowledged(Peer& peer, std::uint64_t id, Nanos now, Effects& effects) {
  const auto at = std::find_if(claims_.begin(), claims_.end(), [&](const Claim& claim) { return claim.id == id; });
  if (at == claims_.end()) return;
  std::erase(at->waiting, peer.node);
  if (!at->waiting.empty()) return;
  const Claim answered = std::move(*at);
  claims_.erase(at);
  decide(answered, now, effects);
}

void Replica::done(const Peer& peer, std::uint64_t id, Nanos now) {
  release(now, [&](const Tentative& claim) { return claim.node == peer.node && claim.id == id; });
}

// Claims that count no longer.
void Replica::release(Nanos now, const std::function<bool(const Tentative&)>& over) {
  const auto kept =
      std::stable_partition(tentative_.begin(), tentative_.end(), [&](const Tentative& c) { return !over(c); });
  const std::vector<Tentative> released(kept, tentative_.end());
  tentative_.erase(kept, tentative_.end());
  for (const Tentative& claim : released) {
    if (const Limiter* const its = limiter(claim.limiter)) tell_level(*its, claim.key, now, true);
  }
}

void Replica::decide(const Claim& claim, Nanos now, Effects& effects) {
  const Limiter* const its = limiter(claim.limiter);
  Tokens older;
  for (const Tentative& other : tentative_) {
    const bool before = std::pair(other.time, other.node) < std::pair(claim.time, self_.node);
    if (other.limiter == claim.limiter && other.key == claim.key && before) older = add(older, other.hits);
  }
  for (const Claim& own : claims_) {
    if (own.limiter == claim.limiter && own.key == claim.key && own.id < claim.id) older = add(older, own.hits);
  }
  const Tokens asked = claim.hits + older;
  const bool allowed = its != nullptr && asked <= its->terms.policy.capacity &&
                       Tat(tat_of(*its, find(claim.limiter, claim.key))).admits(its->terms.policy, asked, now);
  FrameWriter frame(self_.incarnation);
  if (allowed) {
    const KeyState state = admit(*its, claim.key, claim.hits, now);
    tell_level(*its, claim.key, state, now, false);
    emit(*its, state, now, frame);
  }
  frame.put(ClaimDoneItem{claim.id});
  send_to_live(frame, Traffic::data, effects);
  effects.answers.push_back({claim.ticket, allowed});
}

void Replica::expire_claims(Nanos now, Effects& effects) {
  release(now, [&](const Tentative& claim) { return claim.expires <= now; });
  while (true) {
    // A peer that went away meanwhile is not waited for.
    const auto at = std::find_if(claims_.begin(), claims_.end(),
                                 [&](const Claim& claim) { return claim.waiting.empty() || claim.deadline <= now; });
    if (at == claims_.end()) return;
    const Claim expired = std::move(*at);
    claims_.erase(at);
    decide(expired, now, effects);
  }
}

}  // namespace weir
