// claims: see include/weir/claims.hpp.
#include "weir/claims.hpp"

#include <utility>

namespace weir {

std::optional<std::uint64_t> Claims::make(const Ask& asked, Nanos now, Nanos timeout, std::vector<NodeId> waiting,
                                          std::size_t most) {
  if (own_.size() >= most) return std::nullopt;
  const std::uint64_t id = ++made_;
  if (waiting.empty()) return std::nullopt;
  own_.push_back({id, asked, now, now + timeout, std::move(waiting)});
  return id;
}

std::optional<Claim> Claims::acknowledged(NodeId node, std::uint64_t id) {
  const auto at = std::find_if(own_.begin(), own_.end(), [&](const Claim& claim) { return claim.id == id; });
  if (at == own_.end()) return std::nullopt;
  std::erase(at->waiting, node);
  if (!at->waiting.empty()) return std::nullopt;
  const Claim answered = std::move(*at);
  own_.erase(at);
  return answered;
}

std::optional<Claim> Claims::take_expired(Nanos now) {
  const auto at = std::find_if(own_.begin(), own_.end(),
                               [&](const Claim& claim) { return claim.waiting.empty() || claim.deadline <= now; });
  if (at == own_.end()) return std::nullopt;
  const Claim expired = std::move(*at);
  own_.erase(at);
  return expired;
}

void Claims::dont_wait_for(NodeId node) noexcept {
  for (Claim& claim : own_) std::erase(claim.waiting, node);
}

Nanos Claims::deadline() const noexcept {
  Nanos earliest = kNever;
  for (const Claim& claim : own_) earliest = std::min(earliest, claim.deadline);
  return earliest;
}

bool Claims::count(const OthersClaim& claim, std::size_t most) {
  const auto same = [&](const OthersClaim& has) { return has.node == claim.node && has.id == claim.id; };
  if (others_.size() >= most * kOthersTimes || std::any_of(others_.begin(), others_.end(), same)) return false;
  others_.push_back(claim);
  return true;
}

template <class Over>
std::vector<OthersClaim> Claims::end_if(Over over) {
  const auto kept =
      std::stable_partition(others_.begin(), others_.end(), [&](const OthersClaim& claim) { return !over(claim); });
  std::vector<OthersClaim> ended(kept, others_.end());
  others_.erase(kept, others_.end());
  return ended;
}

std::vector<OthersClaim> Claims::end(NodeId node, std::uint64_t id) {
  return end_if([&](const OthersClaim& claim) { return claim.node == node && claim.id == id; });
}

std::vector<OthersClaim> Claims::end_expired(Nanos now) {
  return end_if([&](const OthersClaim& claim) { return claim.expires <= now; });
}

Tokens Claims::before(const Claim& claim, NodeId self) const noexcept {
  const auto of_its_key = [&](LimiterId limiter, KeyHash key) {
    return limiter == claim.asked.limiter && key == claim.asked.key;
  };
  Tokens older;
  for (const OthersClaim& other : others_) {
    const bool before = std::pair(other.time, other.node) < std::pair(claim.time, self);
    if (of_its_key(other.limiter, other.key) && before) older = add(older, other.hits);
  }
  for (const Claim& own : own_) {
    if (of_its_key(own.asked.limiter, own.asked.key) && own.id < claim.id) older = add(older, own.asked.hits);
  }
  return older;
}

void Claims::forget(NodeId node) noexcept {
  dont_wait_for(node);
  std::erase_if(others_, [&](const OthersClaim& claim) { return claim.node == node; });
}

void Claims::rename(LimiterId limiter, KeyHash before, KeyHash key) noexcept {
  for (Claim& own : own_) {
    if (own.asked.limiter == limiter && own.asked.key == before) own.asked.key = key;
  }
  for (OthersClaim& other : others_) {
    if (other.limiter == limiter && other.key == before) other.key = key;
  }
}

}  // namespace weir
