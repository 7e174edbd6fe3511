// replica: keys that go by another hash after a rotation of the secret. See include/weir/replica.hpp.
//
// Every birth is under one of the two hashes, the same on all nodes: of records, in copies and chunks. So nodes needn't
// agree on when a key is carried: each unites what it has, and what comes later in its turn.
#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "weir/replica.hpp"
#include "weir/siphash.hpp"

namespace weir {

// What is known of a key apart from its births.
void Replica::rename(const Key& before, const Key& key) {
  const auto is = [&](const auto& claim) { return claim.limiter.v == before.first && claim.key.v == before.second; };
  for (Claim& claim : claims_)
    if (is(claim)) claim.key.v = key.second;
  for (Tentative& claim : tentative_)
    if (is(claim)) claim.key.v = key.second;
  // It stays for births that come under the hash of before.
  if (const auto reset = resets_.find(before); reset != resets_.end()) {
    Nanos& at = resets_[key];
    at = std::max(at, reset->second);
  }
  if (auto moved = shadows_.extract(before); !moved.empty()) {
    Shadow& shadow = shadows_[key];
    const Policy& policy = limiter({key.first})->terms.policy;
    IntervalSet set = shadow.set.load();
    [[maybe_unused]] const bool merged = set.merge(policy, moved.mapped().set.load());
    shadow.set.store(set);
    shadow.admitted = {std::min(kTimeMax.v, shadow.admitted.v + moved.mapped().admitted.v)};
  }
}

void Replica::carry(const Carry& carry, Nanos now) {
  const Limiter* const its = limiter(carry.limiter);
  if (its == nullptr || carry.before == carry.key) return;
  const Policy& policy = its->terms.policy;
  const Key key{carry.limiter.v, carry.key.v};
  ++carried_;
  carried_at_ = now;
  rename({carry.limiter.v, carry.before.v}, key);
  const KeyState* const was = keys_.find(carry.limiter, carry.before);
  KeyState* state = keys_.find(carry.limiter, carry.key);
  // Its births are still on their way from the table, or went with a key that was evicted.
  if (was == nullptr && state == nullptr) return;
  if (was != nullptr) {
    const IntervalSet published = was->published.load();
    const IntervalSet unsent = was->unsent.load();
    const std::pair rates{was->own_rate, was->remote_rate};
    keys_.erase(carry.limiter, carry.before);
    const bool fresh = keys_.find(carry.limiter, carry.key) == nullptr;
    state = &keys_.find_or_insert(carry.limiter, carry.key);
    if (fresh) std::tie(state->own_rate, state->remote_rate) = rates;
    publish(*its, *state, published, now);
    IntervalSet own = state->unsent.load();
    if (own.size() + unsent.size() > kIntervalCap) own.compact(policy, now);
    [[maybe_unused]] const bool merged = own.merge(policy, unsent);
    keys_.account(state->unsent.store(own));
    if (!unsent.empty() && its->terms.flush_after.v > 0) {
      aging_.emplace(unsent.begin()->start + its->terms.flush_after, key);
    }
  }
  keys_.account(state->published.store(since_reset(key, state->published.load())));
  keys_.account(state->unsent.store(since_reset(key, state->unsent.load())));
  // The table may have carried the same births twice: when the replica told it of them in between.
  settle(*its, *state, now, union_tat(*its, *state) < carry.tat);
  push_if_due(*its, *state, now);
}

// The number of an answer to who asks for a copy. A key that is carried leaves one segment for another, so segments
// that were copied before and after it don't fit together, nor those of two nodes of which one has carried it: the
// upper half tells such answers apart.
std::uint64_t Replica::next_answer() noexcept {
  const std::uint64_t low = ++copies_given_ & UINT32_MAX;
  if (carried_ == 0) return low;
  std::array<std::uint8_t, 16> bytes{};
  for (unsigned i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::uint8_t>(self_.incarnation >> (8 * i));
    bytes[8 + i] = static_cast<std::uint8_t>(carried_ >> (8 * i));
  }
  return siphash13(SipKey{self_.node.v, 0}, bytes, 0).v << 32 | low;
}

}  // namespace weir
