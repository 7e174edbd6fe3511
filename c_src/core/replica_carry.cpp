// replica: keys that go by another hash after a rotation of the secret. See include/weir/replica.hpp.
//
// Every birth is under one of the two hashes, the same on all nodes: of records, in copies and chunks. So nodes needn't
// agree on when a key is carried: each unites what it has, and what comes later in its turn.
#include <algorithm>
#include <array>
#include <utility>

#include "weir/replica.hpp"
#include "weir/siphash.hpp"

namespace weir {

// What is known of a key apart from its births.
void Replica::rename(const Key& before, const Key& key) {
  claims_.rename({before.first}, {before.second}, {key.second});
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

// Its births are those of `key` from now on.
KeyState Replica::take_over(const Limiter& limiter, const KeyState& was, KeyHash key, Nanos now) {
  const Policy& policy = limiter.terms.policy;
  const IntervalSet published = was.published();
  const IntervalSet unsent = was.unsent();
  const KeyState::Rates rates = was.rates(policy);
  keys_.erase(limiter.slot, was.key());
  const bool fresh = !keys_.find(limiter.slot, key);
  KeyState state = keys_.find_or_insert(limiter.slot, key);
  if (fresh) state.set_rates(policy, rates, now);
  state.publish(policy, published, now);
  IntervalSet own = state.unsent();
  if (own.size() + unsent.size() > kIntervalCap) own.compact(policy, now);
  [[maybe_unused]] const bool merged = own.merge(policy, unsent);
  state.set_unsent(policy, own);
  if (!unsent.empty() && limiter.terms.flush_after.v > 0) {
    aging_.emplace(unsent.begin()->start + limiter.terms.flush_after, Key{limiter.id.v, key.v});
  }
  return state;
}

void Replica::carry(const Carry& carry, Nanos now) {
  const Limiter* const its = limiter(carry.limiter);
  if (its == nullptr || carry.before == carry.key) return;
  // The key leaves one segment for another: a copy that has brought only one of them begins anew.
  if (copy_ && copy_->begun()) copy_->again(now);
  const Policy& policy = its->terms.policy;
  const Key key{carry.limiter.v, carry.key.v};
  ++carried_;
  carried_at_ = now;
  rename({carry.limiter.v, carry.before.v}, key);
  const KeyState was = keys_.find(its->slot, carry.before);
  KeyState state = keys_.find(its->slot, carry.key);
  // Its births are still on their way from the table, or went with a key that was evicted.
  if (!was && !state) return;
  if (was) {
    // What is held of it elsewhere goes by the hash of before: the record that erases it has to.
    if (was.has_unsent() && tells_.find({carry.limiter.v, carry.before.v}) != nullptr) {
      emit(*its, was, now, numbered_);
      flush_at_ = now;
      if (numbered_.size() > kFrameTarget) numbered_ = FrameWriter(self_.incarnation);  // these will be asked for
    }
    state = take_over(*its, was, carry.key, now);
  }
  state.set_published(policy, since_reset(key, state.published()));
  state.set_unsent(policy, since_reset(key, state.unsent()));
  // The table may have carried the same births twice: when the replica told it of them in between.
  settle(*its, state, now, union_tat(*its, state) < carry.tat);
  push_if_due(*its, state, now);
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
