// replica: decisions, the push rule and records. See include/weir/replica.hpp.
#include "weir/replica.hpp"

#include <algorithm>
#include <array>
#include <cassert>

#include "weir/siphash.hpp"

namespace weir {
namespace {

// Keys that wait for one frame; more go at once.
constexpr std::size_t kDueMax = 4096;
// A full table makes room by evicting the best of so many.
constexpr std::size_t kEvictAmong = 32;
// Of a frame's records, so many are fetched ahead.
constexpr std::size_t kAhead = 16;
constexpr std::size_t kAgingMax = std::size_t{1} << 22;
constexpr Nanos kSecond{1'000'000'000};
// Births of limiters that aren't known yet: so many, for so long. After that they were of one that was deleted.
constexpr std::size_t kEarlyMost = 4096;
constexpr Nanos kEarlyAge{10'000'000'000};
// A part of the share.
constexpr double kFar = 8;

// Whether the answer may be much longer than the item, or the work.
bool is_question(const Item& item) noexcept {
  return std::holds_alternative<NackItem>(item) || std::holds_alternative<VectorItem>(item) ||
         std::holds_alternative<DigestItem>(item) || std::holds_alternative<CopyRequestItem>(item) ||
         std::holds_alternative<TellItem>(item) || std::holds_alternative<RetellItem>(item);
}

// No two nodes, nor two runs of one, may have their keys in the same order (see keys.hpp).
std::uint64_t salt_of(const ReplicaConfig& config) noexcept {
  std::array<std::uint8_t, 8> seed{};
  for (unsigned i = 0; i < 8; ++i) seed[i] = static_cast<std::uint8_t>(config.seed >> (8 * i));
  return siphash13(SipKey{config.self.v, config.incarnation}, seed, 0).v;
}

}  // namespace

Replica::Replica(const ReplicaConfig& config)
    : config_(config),
      self_{config.self, config.incarnation},
      members_(config.members),
      peers_(config.neighbours, config.start),
      keys_(salt_of(config)),
      ledger_(self_, config.history),
      shelf_(config.max_shelved),
      estates_(config.max_estates),
      tells_(config.max_tells),
      numbered_(config.incarnation) {
  std::sort(members_.begin(), members_.end());
  relays_ = peers_.size() + 1 < members_.size();
  digest_peer_ = static_cast<std::size_t>(config.seed);
  measure(config.start);
  grown_at_ = kNever;
  if (peers_.empty()) ledger_.history().begin_piece();  // those that come later will want to know
  // Timers of nodes that start together are spread over the interval.
  const auto spread = static_cast<std::int64_t>(config.seed % 1000);
  heartbeat_at_ = config.start + Nanos{config.heartbeat_interval.v / 1000 * spread};
  sweep_at_ = config.start + kSecond;
  if (config.joining && !peers_.empty()) {
    heartbeat_at_ = config.start;
    copy_ = StateCopy::to_join(config.start);
  }
}

KeyState Replica::find(LimiterId id, KeyHash key) const noexcept {
  const Limiter* const its = limiter(id);
  return its == nullptr ? KeyState() : const_cast<Keys&>(keys_).find(its->slot, key);
}

void Replica::prefetch(LimiterId id, KeyHash key) const noexcept {
  if (const Limiter* const its = limiter(id)) keys_.prefetch(its->slot, key);
}

void Replica::put_limiter(LimiterId id, const ReplicatedTerms& terms, Nanos now, Effects& effects) {
  assert(terms.policy.valid());
  const Limiter* const had = limiter(id);
  if (had == nullptr) {
    if (limiters_.full()) {
      ++stats_.refused;
      return;
    }
    limiters_.add(id.v, [&](std::uint16_t slot) { return Limiter{id, {slot}, terms}; });
    unshelve(id, now);
    count_early(id, now);
    return;
  }
  if (terms.version <= had->terms.version) return;
  const Limiter before = *had;
  FrameWriter frame(self_.incarnation);
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    keys_.sweep(segment, [&](KeyState state) {
      if (state.limiter() != before.slot) return true;
      if (state.has_unsent()) emit(before, state, now, frame);
      if (frame.size() > kFrameTarget) send_to_live(frame, Traffic::data, effects);
      state.rest(before.terms.policy, now);
      IntervalSet set = state.published();
      set.change(before.terms.policy, terms.policy, now);
      state.set_published(before.terms.policy, set);
      state.set_tat(terms.policy, set.tat(terms.policy));
      return true;
    });
  }
  send_to_live(frame, Traffic::data, effects);
  for (auto shadow = shadows_.begin(); shadow != shadows_.end();) {
    shadow = shadow->first.first == id.v ? shadows_.erase(shadow) : std::next(shadow);
  }
  exceeded_.erase(id.v);
  change_estates(before, terms, now);
  Limiter& its = *limiters_.find(id.v);
  its.terms = terms;
  estates_.for_each([&](const Estates::Place& place, const Estates::Copy&) {
    if (place.limiter == id) settle(its, keys_.find_or_insert(its.slot, place.key), now);
  });
  unshelve(id, now);
}

void Replica::push(Nanos now, Effects& effects) {
  FrameWriter frame(self_.incarnation);
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    keys_.sweep(segment, [&](KeyState state) {
      if (!state.has_unsent()) return true;
      emit(limiter_of(state), state, now, frame);
      if (frame.size() > kFrameTarget) send_to_live(frame, Traffic::data, effects);
      return true;
    });
  }
  send_to_live(frame, Traffic::data, effects);
}

void Replica::drop_limiter(LimiterId id) {
  shelf_.drop(id);
  std::erase_if(early_, [&](const Admission& birth) { return birth.limiter == id; });
  tells_.forget_limiter(id);
  estates_.erase_if([&](const Estates::Place& place, const Estates::Copy&) { return place.limiter == id; });
  const Limiter* const its = limiter(id);
  if (its == nullptr) return;
  exceeded_.erase(id.v);
  std::erase_if(shadows_, [&](const auto& entry) { return entry.first.first == id.v; });
  std::erase_if(resets_, [&](const auto& entry) { return entry.first.first == id.v; });
  erase_keys(its->slot);
  limiters_.erase(id.v);
}

// All of them, before the slot is another limiter's.
void Replica::erase_keys(LimiterSlot limiter) {
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    keys_.sweep(segment, [&](const KeyState& state) { return state.limiter() != limiter; });
    keys_.fit(segment);
  }
}

bool Replica::reset(LimiterId id, KeyHash key, Nanos time, Nanos now, bool own) {
  const Limiter* const its = limiter(id);
  const Key name{id.v, key.v};
  if (its == nullptr || time > now + config_.future_bound) return false;
  if (!own) return take_reset(*its, key, time, now);
  if (!resets_.contains(name) && resets_.size() >= config_.max_resets) return false;
  take_reset(*its, key, rounded_for_mark(time), now);
  resets_due_.push_back(name);
  flush_at_ = std::min(flush_at_, now);
  return true;
}

// One that there is no room to remember counts for what is known now.
bool Replica::take_reset(const Limiter& limiter, KeyHash key, Nanos time, Nanos now) {
  const Key name{limiter.id.v, key.v};
  const bool remembered = resets_.contains(name) || resets_.size() < config_.max_resets;
  if (remembered) {
    Nanos& at = resets_[name];
    if (time <= at) return true;
    at = time;
  } else {
    ++stats_.refused;
  }
  shadows_.erase(name);
  reset_estates(limiter, key, time);
  KeyState state = keys_.find(limiter.slot, key);
  if (!state) {
    tell_level(limiter, key, now, true);  // the table may know the key from its owner
    return remembered;
  }
  state.set_published(limiter.terms.policy, state.published().since(time));
  state.set_unsent(limiter.terms.policy, state.unsent().since(time));
  settle(limiter, state, now, true);
  return remembered;
}

IntervalSet Replica::since_reset(const Key& key, const IntervalSet& births) const {
  const auto reset = resets_.empty() ? resets_.end() : resets_.find(key);
  return reset == resets_.end() ? births : births.since(reset->second);
}

void Replica::step(const Event& event, Nanos now, Effects& effects) {
  if (const auto* const request = std::get_if<Ask>(&event)) {
    ask(*request, now, effects);
  } else if (const auto* const frame = std::get_if<Arrival>(&event)) {
    take(*frame, now, effects);
  } else if (const auto* const joined = std::get_if<Registered>(&event)) {
    add_member(joined->node, now);
  } else if (const auto* const left = std::get_if<Unregistered>(&event)) {
    remove_member(left->node, now);
  } else if (const auto* const run = std::get_if<Introduced>(&event)) {
    introduce(*run);
  } else {
    tick(now, effects);
  }
  send_due(now, effects);
}

void Replica::send_due(Nanos now, Effects& effects) {
  if (flush_at_ <= now || due_.size() >= kDueMax) flush(now, effects);
  if (tells_.due()) tell(now, effects);
}

Nanos Replica::wake() const noexcept {
  Nanos next = std::min({heartbeat_at_, sweep_at_, flush_at_, tell_at_, repair_at_, digest_at_, grown_at_});
  if (copy_) next = std::min(next, copy_->deadline());
  if ((copy_ && copy_->to_place() != 0) || gives()) next = {0};
  if (!aging_.empty()) next = std::min(next, aging_.top().first);
  return std::min(next, claims_.deadline());
}

bool Replica::quiet() const noexcept {
  const bool complete = std::all_of(ledger_.origins().begin(), ledger_.origins().end(), [](const Origin& origin) {
    return origin.complete() || origin.given_up || origin.held_off;
  });
  return due_.empty() && !copy_ && !claims_.waits() && complete;
}

Held Replica::held() const {
  Held held;
  held.state = keys_.held() + ledger_.held() + due_.capacity() * sizeof(Key) + aging_.size() * sizeof(aging_.top()) +
               parked_bytes_ + shelf_.held() + estates_.held() + tells_.held() + claims_.held();
  for (const auto& [key, shadow] : shadows_) {
    held.state += 4 * sizeof(void*) + sizeof(key) + sizeof(shadow) + shadow.set.heap_bytes();
  }
  if (copy_) held.state += copy_->held();
  held.state +=
      resets_due_.capacity() * sizeof(Key) + resets_.size() * (4 * sizeof(void*) + sizeof(Key) + sizeof(Nanos));
  held.fixed = sizeof(Replica) + members_.capacity() * sizeof(NodeId) + peers_.held() + limiters_.held() +
               ledger_.origins().held();
  return held;
}

std::size_t Replica::held(LimiterId id) const {
  const Limiter* const its = limiter(id);
  if (its == nullptr || keys_.size() == 0) return 0;
  return keys_.size(its->slot) * keys_.held() / keys_.size();
}

IntervalSet Replica::published(LimiterId id, KeyHash key) const {
  const KeyState state = find(id, key);
  return state ? state.published() : IntervalSet{};
}

IntervalSet Replica::unsent(LimiterId id, KeyHash key) const {
  const KeyState state = find(id, key);
  return state ? state.unsent() : IntervalSet{};
}

// Deciding.

Nanos Replica::tat_of(const Limiter& limiter, const KeyState& state) const noexcept {
  return state ? state.tat(limiter.terms.policy) : Nanos{0};
}

std::int64_t Replica::share(const Limiter& limiter, const KeyState& state, Nanos now) const noexcept {
  const Tokens slack = Tat(tat_of(limiter, state)).slack(limiter.terms.policy, now);
  const auto nodes = limiter.terms.partition == Partition::open ? live() : registered();
  return std::max<std::int64_t>(1, slack.v / static_cast<std::int64_t>(nodes));
}

// Births that other nodes have probably admitted and that are not here yet. Whole tokens only: a fraction, rounded up,
// would deny one token of a small limiter for ever.
Tokens Replica::on_the_way(Tokens capacity, const KeyState& state, Nanos now) const noexcept {
  if (!state || peers_.delay() < config_.long_delay) return {0};
  const std::int64_t rate = std::min<std::int64_t>(state.remote_per_second(capacity, now).v, 1'000'000'000);
  return {rate * (peers_.delay().v / 1000) / 2 / 1'000'000};
}

bool Replica::admits(const Limiter& limiter, const KeyState& state, KeyHash key, Tokens hits, Nanos now) const {
  const ReplicatedTerms& terms = limiter.terms;
  if (terms.partition == Partition::closed && minority()) return false;
  if (hits > terms.policy.capacity) return false;
  Tokens asked = hits + claims_.of_others(limiter.id, key);
  asked = asked + on_the_way(terms.policy.capacity, state, now);
  return asked <= terms.policy.capacity && Tat(tat_of(limiter, state)).admits(terms.policy, asked, now);
}

void Replica::ask(const Ask& request, Nanos now, Effects& effects) {
  const Limiter* const asked = limiter(request.limiter);
  if (asked == nullptr) {
    ++stats_.refused;
    effects.answers.push_back({request.ticket, false});
    return;
  }
  const KeyState state = keys_.find(asked->slot, request.key);
  if (!admits(*asked, state, request.key, request.hits, now)) {
    effects.answers.push_back({request.ticket, false});
    return;
  }
  const bool large = asked->terms.large_hits == LargeHits::claim && request.hits.v > share(*asked, state, now);
  if (large && claim(*asked, request, now, effects)) return;
  admit(*asked, request.key, request.hits, now);
  tell_level(*asked, request.key, now);
  effects.answers.push_back({request.ticket, true});
}

KeyState Replica::admit(const Limiter& limiter, KeyHash key, Tokens hits, Nanos now) {
  if (keys_.size() >= config_.max_keys && !keys_.find(limiter.slot, key)) make_room(limiter.id, key, now);
  KeyState state = keys_.find_or_insert(limiter.slot, key);
  if (is_far(limiter, state, hits, now) && state.admit_small(limiter.terms.policy, hits, now)) {
    note_untold(limiter, state, now);
    return state;
  }
  const bool first = !state.has_unsent();
  state.admit(limiter.terms.policy, hits, now);
  if (limiter.terms.partition == Partition::share) {
    const Interval own{now, hits};
    count_for_other_side(limiter, key, {&own, 1}, now);
  }
  if (first && limiter.terms.flush_after.v > 0 && aging_.size() < kAgingMax) {
    aging_.emplace(now + limiter.terms.flush_after, Key{limiter.id.v, key.v});
  }
  push_if_due(limiter, state, now);
  note_untold(limiter, state, now);
  return state;
}

// Whether a key's unsent stays below an eighth of its share with these hits: then nobody asks yet how fast it grows,
// and it may stay small. (In doubles: no division, and nothing hangs on the last bit.)
bool Replica::is_far(const Limiter& limiter, const KeyState& state, Tokens hits, Nanos now) const noexcept {
  if (limiter.terms.partition == Partition::share) return false;
  const Policy& policy = limiter.terms.policy;
  const auto nodes = limiter.terms.partition == Partition::open ? live() : registered();
  const double weight = static_cast<double>(state.unsent_weight().v) + static_cast<double>(hits.v);
  const double used = static_cast<double>((std::max(state.tat(policy), now) - now).v);
  const double interval = static_cast<double>(policy.interval.v);
  return kFar * weight * static_cast<double>(nodes) * interval <
         static_cast<double>(policy.span().v) - used - static_cast<double>(hits.v) * interval;
}

void Replica::admitted(const Admission& admission, Nanos now) {
  const Limiter* const its = limiter(admission.limiter);
  if (its == nullptr) {
    if (early_.size() == kEarlyMost) {
      early_.pop_front();
      ++stats_.refused;
    }
    early_.push_back(admission);
    return;
  }
  const KeyState state = admit(*its, admission.key, admission.hits, std::min(admission.time, now));
  // The table didn't know all that is known here: it was evicted there, or others' births came at that moment.
  // While keys are carried it may also have known more: then the birth came under a hash that was carried before it, or
  // a level was corrected without it.
  const bool carrying = carried_at_.v != 0 && now - carried_at_ < IntervalSet::horizon(its->terms.policy);
  note_overshoot(*its, state, now);  // others' births may have come before those of a ring
  const Nanos tat = state.tat(its->terms.policy);
  if (tat > admission.tat || (carrying && tat != admission.tat)) tell_level(*its, admission.key, state, now, false);
}

void Replica::count_early(LimiterId id, Nanos now) {
  for (const Admission& birth : std::exchange(early_, {})) {
    birth.limiter == id ? admitted(birth, now) : early_.push_back(birth);
  }
}

void Replica::catch_up(LimiterId id, KeyHash key, Nanos tat, Nanos now) {
  const Limiter* const its = limiter(id);
  if (its == nullptr) return;
  const Policy& policy = its->terms.policy;
  const KeyState state = keys_.find(its->slot, key);
  if (tat_of(*its, state) >= tat) return;
  const Tokens known = Tat(tat_of(*its, state)).level(policy, now);
  const Tokens more = Tat(tat).level(policy, now) - known - claims_.of_others(id, key);
  const Tokens estimate = on_the_way(policy.capacity, state, now);
  if (more > estimate) admit(*its, key, more - estimate, now);
}

// Evicts one of the keys that lie near: that of lowest level loses the least, nothing if it is expired.
void Replica::make_room(LimiterId id, KeyHash key, Nanos now) {
  KeyState least;
  Nanos least_tat;
  keys_.for_some(limiter(id)->slot, key, kEvictAmong, [&](const KeyState& state) {
    const Nanos tat = tat_of(limiter_of(state), state);
    if (least && tat >= least_tat) return;
    least = state;
    least_tat = tat;
  });
  if (!least) return;  // other segments hold them all
  if (keep_key(least, now)) ++stats_.evicted_keys;
  const Key name{limiter_of(least).id.v, least.key().v};
  shadows_.erase(name);
  tells_.forget(name);
  keys_.erase(least.limiter(), least.key());
}

// Partition::share. After k tokens admitted by this side of m of N nodes, the others are taken to have admitted
// ceil(k * N / m) - k at the same times.
void Replica::count_for_other_side(const Limiter& limiter, KeyHash key, std::span<const Interval> births, Nanos now) {
  const auto members = static_cast<std::int64_t>(registered());
  const auto here = static_cast<std::int64_t>(live());
  if (here >= members) return;
  const Policy& policy = limiter.terms.policy;
  // More fills the bucket for good; as it is, the products below fit.
  const std::int64_t most = kTimeMax.v / members / policy.interval.v;
  Shadow& shadow = shadows_[{limiter.id.v, key.v}];
  IntervalSet set = shadow.set.load();
  Tokens held{ceil_div(shadow.admitted.v * members, here) - shadow.admitted.v};
  for (const Interval& birth : births) {
    shadow.admitted = {std::min(most, shadow.admitted.v + std::min(most, birth.count.v))};
    const Tokens wanted{ceil_div(shadow.admitted.v * members, here) - shadow.admitted.v};
    if (wanted <= held) continue;
    if (set.size() == kIntervalCap) set.compact(policy, now);
    [[maybe_unused]] const bool inserted = set.insert(policy, {birth.start, wanted - held});
    held = wanted;
  }
  shadow.set.store(set);
  if (const KeyState state = keys_.find(limiter.slot, key)) settle(limiter, state, now);
}

void Replica::drop_shadows(Nanos now) {
  const auto shadows = std::exchange(shadows_, {});
  for (const auto& [key, shadow] : shadows) {
    const Limiter* const its = limiter({key.first});
    const KeyState state = find({key.first}, {key.second});
    // (Tables know more of keys with owners than is here: levels that were told.)
    if (state) settle(*its, state, now, its->terms.large_hits != LargeHits::owner);
  }
}

// What the sets of a key make of its level.
void Replica::settle(const Limiter& limiter, KeyState state, Nanos now, bool exactly) {
  state.set_tat(limiter.terms.policy, union_tat(limiter, state));
  tell_level(limiter, state.key(), state, now, exactly);
}

void Replica::tell_level(const Limiter& limiter, KeyHash key, Nanos now, bool exactly) {
  if (tells_levels_) tell_level(limiter, key, keys_.find(limiter.slot, key), now, exactly);
}

void Replica::tell_level(const Limiter& limiter, KeyHash key, const KeyState& state, Nanos now, bool exactly) {
  if (!tells_levels_) return;
  const Policy& policy = limiter.terms.policy;
  const Nanos tat = tat_of(limiter, state);
  const Tokens estimate = on_the_way(policy.capacity, state, now);
  const bool sure = limiter.terms.large_hits == LargeHits::owner;
  const Tokens more = sure ? Tokens{0} : std::min(policy.capacity, claims_.of_others(limiter.id, key) + estimate);
  const Key name{limiter.id.v, key.v};
  if (more.v > 0 && estimate.v > 0 && (estimated_.empty() || estimated_.back() != name)) estimated_.push_back(name);
  const Nanos told = more.v == 0 ? tat : std::max(tat, now) + more * policy.interval;
  if (told > now || exactly) levels_.push_back({limiter.id, key, told, exactly});
}

// Estimates of what is on its way fall when nothing comes any more.
void Replica::tell_estimates(Nanos now) {
  auto estimated = std::exchange(estimated_, {});
  std::sort(estimated.begin(), estimated.end());
  estimated.erase(std::unique(estimated.begin(), estimated.end()), estimated.end());
  for (const auto& [id, key] : estimated) {
    if (const Limiter* const its = limiter({id})) tell_level(*its, {key}, now, true);
  }
}

Nanos Replica::union_tat(const Limiter& limiter, const KeyState& state) const {
  const Policy& policy = limiter.terms.policy;
  const auto shadow = shadows_.empty() ? shadows_.end() : shadows_.find({limiter.id.v, state.key().v});
  const IntervalSet others = estates_.empty() ? IntervalSet{} : inherited(limiter.id, state.key());
  if (shadow == shadows_.end() && others.empty()) return state.union_tat(policy);
  IntervalSet set = state.all(policy);
  [[maybe_unused]] bool merged = set.merge(policy, others);
  if (shadow != shadows_.end()) merged = set.merge(policy, shadow->second.set.load());
  return set.tat(policy);
}

// Pushing.

void Replica::push_if_due(const Limiter& limiter, KeyState state, Nanos now) {
  if (!state.has_unsent()) return;
  // Births that come after the horizon find nothing left to fuse with, and are lost: they go before it. Sweeps come too
  // seldom for that where the horizon is short.
  const Nanos horizon = IntervalSet::horizon(limiter.terms.policy);
  const bool fading = state.has_published() && state.oldest_unsent() < now - Nanos{horizon.v - horizon.v / 8};
  if (!fading && state.unsent_weight().v < share(limiter, state, now)) return;
  // 3 % of the slack may fill while the key waits for company. What others admit shows only when they push: until then
  // they are taken to admit as much as this node does.
  const Policy& policy = limiter.terms.policy;
  const std::int64_t slack = Tat(state.tat(policy)).slack(policy, now).v;
  const std::int64_t own = state.own_per_second(policy.capacity, now).v;
  const std::int64_t seen = own + state.remote_per_second(policy.capacity, now).v;
  const std::int64_t rate = std::max({std::int64_t{1}, seen, own * static_cast<std::int64_t>(live())});
  const std::int64_t wait = std::clamp<std::int64_t>(slack, 0, 1'000'000'000) * 30'000'000 / rate;
  make_due(state, now + Nanos{std::min(wait, config_.coalesce_most.v)});
}

// A segment a step, that no step is long.
void Replica::push_grown(Nanos now) {
  keys_.sweep(grown_next_, [&](const KeyState& state) {
    push_if_due(limiter_of(state), state, now);
    return true;
  });
  if (++grown_next_ == Keys::kSegments) grown_at_ = kNever;
}

void Replica::make_due(KeyState state, Nanos at) {
  flush_at_ = std::min(flush_at_, at);
  if (state.due()) return;
  state.set_due(true);
  due_.emplace_back(limiter_of(state).id.v, state.key().v);
}

// `acked_peer` gets an acknowledgement of its claim in the same frame, so that it can't come before the births.
void Replica::flush(Nanos now, Effects& effects, const Peer* acked_peer, std::uint64_t claim) {
  FrameWriter frame = std::exchange(numbered_, FrameWriter(self_.incarnation));
  const auto due = std::exchange(due_, {});
  flush_at_ = kNever;
  for (const Key& key : std::exchange(resets_due_, {})) {
    emit_reset(key, now, frame);
    if (frame.size() > kFrameTarget) send_to_live(frame, Traffic::data, effects);
  }
  publish_estates(now, frame, effects);
  for (const auto& [id, hash] : due) {
    KeyState state = find({id}, {hash});
    if (!state) continue;
    state.set_due(false);
    if (!state.has_unsent()) continue;
    emit(limiter_of(state), state, now, frame);
    if (frame.size() > kFrameTarget) send_to_live(frame, Traffic::data, effects);
  }
  if (acked_peer != nullptr) {
    FrameWriter with_ack = frame;
    with_ack.put(ClaimAckItem{claim});
    send_to(acked_peer->node, with_ack, Traffic::data, effects);
  }
  if (frame.empty()) return;
  const std::uint32_t index = effects.add_frame(frame.take());
  for (const Peer& peer : peers_) {
    if (peer.live && &peer != acked_peer) effects.sends.push_back({peer.node, index, Traffic::data});
  }
}

// Numbers the unsent births of a key as one record, which is published from now on.
void Replica::emit(const Limiter& limiter, KeyState state, Nanos now, FrameWriter& frame) {
  number(limiter, state.key(), state.unsent(), now, frame);
  state.publish_unsent(limiter.terms.policy, now);
  tells_.forget({limiter.id.v, state.key().v});
}

void Replica::emit_reset(const Key& key, Nanos now, FrameWriter& frame) {
  const Limiter* const its = limiter({key.first});
  const auto reset = resets_.find(key);
  if (its == nullptr || reset == resets_.end()) return;
  const Interval mark = reset_mark({key.second}, reset->second);
  number(*its, {key.second}, IntervalSet::from({&mark, 1}), now, frame);
}

void Replica::number(const Limiter& limiter, KeyHash key, const IntervalSet& births, Nanos now, FrameWriter& frame) {
  const Subject subject{limiter.id, limiter.terms.version, key};
  const std::uint64_t seq = ledger_.history().next();
  const std::size_t before = frame.size();
  frame.record(self_, false, seq, subject, births.intervals());
  ledger_.history().append(now, frame.since(before), peers_.any_live(), limiter.terms.policy, subject, births);
  ++stats_.records_sent;
  news(now);
}

// Overshoot.

Overshoot Replica::overshoot(const Limiter& limiter, const KeyState& state, Nanos now) const {
  const Policy& policy = limiter.terms.policy;
  const std::int64_t beyond = Tat(tat_of(limiter, state)).level(policy, now).v - policy.capacity.v;
  Overshoot seen;
  seen.exceeded = {std::max<std::int64_t>(0, beyond)};
  const auto others = static_cast<std::int64_t>(live()) - 1;
  if (others == 0) return seen;
  seen.worst = {std::min(std::max<std::int64_t>(0, -beyond), kTimeMax.v / others) * others};
  const std::int64_t rate =
      state ? state.own_per_second(policy.capacity, now).v + state.remote_per_second(policy.capacity, now).v : 0;
  // So bounded, the product fits.
  constexpr std::int64_t most = 1'000'000'000;
  const std::int64_t within = ceil_div(std::min(rate, most) * std::min(peers_.delay().v / 1000, most), 1'000'000);
  seen.expected = {std::max<std::int64_t>(2, 2 * within)};
  return seen;
}

Overshoot Replica::overshoot(LimiterId id, KeyHash key, Nanos now) const {
  const Limiter* const its = limiter(id);
  return its == nullptr ? Overshoot{} : overshoot(*its, find(id, key), now);
}

Overshoot Replica::most_exceeded(LimiterId id) const {
  const auto most = exceeded_.find(id.v);
  return most == exceeded_.end() ? Overshoot{} : most->second;
}

// (What is held on behalf of an unreachable side was admitted by nobody yet.)
void Replica::note_overshoot(const Limiter& limiter, const KeyState& state, Nanos now) {
  if (state.tat(limiter.terms.policy) - now <= limiter.terms.policy.span()) return;
  if (shadows_.contains({limiter.id.v, state.key().v})) return;
  const Overshoot seen = overshoot(limiter, state, now);
  Overshoot& most = exceeded_[limiter.id.v];
  if (seen.exceeded > most.exceeded) most = seen;
}

// Forgetting.

// False if nothing of the key can matter any more.
bool Replica::keep_key(KeyState state, Nanos now) {
  const Limiter& its = limiter_of(state);
  const Policy& policy = its.terms.policy;
  state.rest(policy, now);
  IntervalSet published = state.published();
  published.compact(policy, now);
  state.set_published(policy, published);
  if (state.has_unsent() && state.oldest_unsent() < now - IntervalSet::horizon(policy)) {
    // Forgetting it plainly would never limit who sits a little above the rate.
    if (!published.empty()) {
      make_due(state, now);
    } else {
      IntervalSet unsent = state.unsent();
      const Tokens weight = unsent.weight();
      unsent.compact(policy, now);
      stats_.forgotten_births += static_cast<std::uint64_t>((weight - unsent.weight()).v);
      state.set_unsent(policy, unsent);
    }
  }
  const bool unsent = state.has_unsent();
  const bool keep = !published.empty() || unsent || has_estate(state);
  // What is held of it elsewhere has expired too.
  if (!unsent && !tells_.empty()) tells_.forget({its.id.v, state.key().v});
  // What is held on behalf of an unreachable side is of the same times, and expired too.
  if (!keep) shadows_.erase({its.id.v, state.key().v});
  state.rest(policy, now);
  return keep;
}

void Replica::sweep(Nanos now) {
  sweep_at_ = now + kSecond;
  ledger_.forget_look_ups();
  keys_.sweep(sweep_next_, [&](KeyState state) { return keep_key(state, now); });
  keys_.fit(sweep_next_);
  sweep_next_ = (sweep_next_ + 1) % Keys::kSegments;
  if (sweep_next_ == 0) {
    estates_.erase_if([&](const Estates::Place& place, const Estates::Copy& copy) {
      const Policy& policy = limiter(place.limiter)->terms.policy;
      return copy.births.tat(policy) < now - IntervalSet::horizon(policy);
    });
    std::erase_if(resets_, [&](const auto& entry) {
      const Limiter* const its = limiter({entry.first.first});
      return its == nullptr || entry.second < now - IntervalSet::horizon(its->terms.policy);
    });
  }
  stats_.refused += std::erase_if(early_, [&](const Admission& birth) { return birth.time < now - kEarlyAge; });
  trim_others(now);
  const auto policy_of = [&](const Subject& subject) {
    const Limiter* const its = limiter(subject.limiter);
    return its != nullptr && its->terms.version == subject.version ? &its->terms.policy : nullptr;
  };
  ledger_.history().tidy(policy_of, now);
}

// Others' records that all have, or that are too old or too many.
void Replica::trim_others(Nanos now) {
  ledger_.trim(now, config_.history.others_bytes, config_.keep_others, [&](NodeId node) {
    const Peer* const peer = peers_.find(node);
    return peer != nullptr && !peer->passes.empty();  // by who can't be heard there
  });
}

// Receiving.

void Replica::take(const Arrival& arrival, Nanos now, Effects& effects) {
  Peer* const peer = peers_.find(arrival.from);
  if (peer == nullptr) {
    ++stats_.refused;
    return;
  }
  Frame frame = std::exchange(frame_, {});
  if (decode(arrival.frame, arrival.from, frame) != FrameError::none) {
    ++stats_.malformed;
  } else if (enroll(*peer, frame.incarnation, now)) {
    peer->heard = now;
    if (!peer->live) came_back(*peer, now, effects);
    apply_items(*peer, frame, arrival.frame, now, effects);
  } else {
    ++stats_.refused;
  }
  frame_ = std::move(frame);
}

void Replica::apply_items(Peer& peer, const Frame& frame, std::span<const std::byte> bytes, Nanos now,
                          Effects& effects) {
  bool parks = false;
  // Births of its last run are true, but what that run asked for or said of itself has no meaning for this one.
  const bool current = frame.incarnation == peer.incarnation;
  std::array<bool, std::variant_size_v<Item>> answered{};
  if (relays_ || !peer.passes.empty()) relayed_.emplace(self_.incarnation);
  for (std::size_t i = 0; i < frame.items.size(); ++i) {
    if (i + kAhead < frame.items.size()) {
      if (const auto* const next = std::get_if<RecordItem>(&frame.items[i + kAhead]))
        prefetch(next->subject.limiter, next->subject.key);
    }
    const Item& item = frame.items[i];
    const bool births = std::holds_alternative<RecordItem>(item) || std::holds_alternative<ChunkItem>(item);
    if (!births && !current) continue;
    // Nobody asks twice in one frame: who does could have a little frame answered with many large ones.
    if (is_question(item) && std::exchange(answered[item.index()], true)) continue;
    if (const auto* const record = std::get_if<RecordItem>(&item)) {
      copy_ ? void(parks = true) : apply(peer, frame, *record, now);
    } else if (const auto* const chunk = std::get_if<ChunkItem>(&item)) {
      copy_ ? void(parks = true) : apply(peer, frame, *chunk, now, effects);
    } else if (const auto* const beat = std::get_if<HeartbeatItem>(&item)) {
      apply(peer, *beat, now);
    } else if (const auto* const nack = std::get_if<NackItem>(&item)) {
      apply(peer, *nack, now, effects);
    } else if (const auto* const gone = std::get_if<GoneItem>(&item)) {
      apply(peer, *gone, now, effects);
    } else if (const auto* const vector = std::get_if<VectorItem>(&item)) {
      apply(peer, *vector, now, effects);
    } else if (const auto* const theirs = std::get_if<DigestItem>(&item)) {
      const DigestItem mine = ledger_.digest(now);
      if (theirs->low != mine.low || theirs->high != mine.high) send_vector(peer, true, effects);
    } else if (const auto* const request = std::get_if<CopyRequestItem>(&item)) {
      apply(peer, *request, now, effects);
    } else if (const auto* const copy = std::get_if<CopyItem>(&item)) {
      apply(peer, frame, *copy, now, effects);
    } else if (const auto* const claim = std::get_if<ClaimItem>(&item)) {
      apply(peer, *claim, now, effects);
    } else if (const auto* const ack = std::get_if<ClaimAckItem>(&item)) {
      acknowledged(peer, ack->id, now, effects);
    } else if (const auto* const finished = std::get_if<ClaimDoneItem>(&item)) {
      release(claims_.end(peer.node, finished->id), now);
    } else if (const auto* const spared = std::get_if<SparedItem>(&item)) {
      apply(peer, *spared);
    } else if (const auto* const unheard = std::get_if<UnheardItem>(&item)) {
      peer.unheard = unheard->nodes;
      peer.unheard_at = now;
    } else if (const auto* const told = std::get_if<TellItem>(&item)) {
      apply(peer, frame, *told, now, effects);
    } else if (const auto* const retell = std::get_if<RetellItem>(&item)) {
      apply(*retell, now);
    }
  }
  if (parks && parked_bytes_ + bytes.size() <= config_.max_parked) {
    // What doesn't fit is not noted as seen, and so asked for again.
    parked_.emplace_back(peer.node, Bytes(bytes.begin(), bytes.end()));
    parked_bytes_ += bytes.size();
  }
  if (relayed_ && !relayed_->empty()) {
    const std::uint32_t index = effects.add_frame(relayed_->take());
    for (const Peer& other : peers_) {
      const bool passed = relays_ || std::find(peer.passes.begin(), peer.passes.end(), other.node) != peer.passes.end();
      if (passed && other.live && other.node != peer.node) effects.sends.push_back({other.node, index, Traffic::data});
    }
  }
  relayed_.reset();
}

// Whether births are refused for now: they lie in the future, or their node's clock isn't to be trusted. They are not
// noted as seen, and tried again.
bool Replica::is_early(Peer& peer, Origin& origin, Nanos last_birth, Nanos now) {
  // Who only passes it on is not to blame.
  const bool own = origin.id.node == peer.node;
  const bool early = last_birth > now + config_.future_bound;
  if (early && own) peer.begin_quarantine(now);
  if (!early && !(own && peer.quarantined)) return false;
  ++stats_.refused;
  if (!origin.held_off) {
    origin.held_off = true;
    origin.attempts = 0;
    origin.repair_at = kNever;
    try_again(origin, now);
  }
  return true;
}

// Notes a record as seen unless it is refused for now: also one that can't be counted, for then nobody could fill its
// place, and it would be asked for for ever.
void Replica::apply(Peer& peer, const Frame& frame, const RecordItem& item, Nanos now) {
  if (item.origin == self_) return;
  Origin* origin = ledger_.origins().find(item.origin);
  if (origin == nullptr) {
    if (!belongs(item.origin)) {
      ++stats_.refused;
      return;
    }
    origin = &run_of(item.origin, now);
  }
  if (origin->seen(item.seq)) {
    ++stats_.duplicates;
    return;
  }
  const auto births = frame.set(item.set);
  if (is_early(peer, *origin, last_of(item.subject.key, births), now)) return;
  const std::uint64_t upto = origin->upto;
  if (!origin->mark(item.seq)) return;
  if (origin->upto != upto) origin->held_off = false;
  // Of an origin that can't be reached others may not have it yet, and hear of it by digests only.
  if (!peers_.reaches(item.origin)) lost_news_ = now;
  if (origin->dead_since != kNever) origin->dead_since = now;
  note(*origin, item.seq, peer.node, now, {0});

  keep_for_others(peer, item, births, now);
  end_copy_of(item.origin, item.seq, item.subject, births, now);
  if (ledger_.floors().covers(item.subject.key, item.origin, item.seq)) return;
  take_in(item.subject, births, now, Receipt::news);
  ++stats_.records_applied;
  news(now);
}

// Births of others that were noted as seen: they are counted, or wait on the shelf for their limiter, or can never be
// counted.
void Replica::take_in(const Subject& subject, std::span<const Interval> births, Nanos now, Receipt receipt) {
  const Limiter* const its = limiter(subject.limiter);
  if (is_estate(births)) {
    // (Of an unknown limiter none waits on the shelf: it couldn't be told there from records that came later.)
    const std::optional<Estate> estate = estate_of(births);
    estate ? inherit(subject, *estate, 0, true, now) : void(++stats_.malformed);
  } else if (its == nullptr || subject.version > its->terms.version) {
    shelf_.put(subject, births);
    ++stats_.shelved;
  } else if (its->takes(subject, births)) {
    put_back(subject, births, now, receipt);
  } else {
    ++stats_.malformed;
  }
}

void Replica::unshelve(LimiterId id, Nanos now) {
  shelf_.take(id, limiter(id)->terms.version, [&](const Subject& subject, std::span<const Interval> births) {
    take_in(subject, births, now, Receipt::repair);
  });
}

// Puts births of others (or, after a copy, own ones) among what is published. Births of a copy are settled when all of
// their segment are there.
void Replica::put_back(const Subject& subject, std::span<const Interval> births, Nanos now, Receipt receipt) {
  const Limiter* const its = limiter(subject.limiter);
  if (its == nullptr) return;
  if (const auto reset = reset_time(subject.key, births)) {
    take_reset(*its, subject.key, *reset, now);
    return;
  }
  const Policy& policy = its->terms.policy;
  IntervalSet counted;
  if (subject.version == its->terms.version) {
    counted = since_reset({subject.limiter.v, subject.key.v}, IntervalSet::from(births));
    if (counted.empty() || counted.tat(policy) < now - IntervalSet::horizon(policy)) return;
  } else {
    // Births of an older version count at their receipt, at most a full bucket of them.
    Tokens weight;
    for (const Interval& interval : births) weight = {std::min(policy.capacity.v, weight.v + interval.count.v)};
    if (!counted.insert(policy, {now, weight})) return;
  }
  if (keys_.size() >= config_.max_keys && !keys_.find(its->slot, subject.key)) {
    make_room(subject.limiter, subject.key, now);
  }
  KeyState state = keys_.find_or_insert(its->slot, subject.key);
  state.publish(policy, counted, now);
  if (receipt == Receipt::copy) return;
  const bool news = receipt == Receipt::news;
  if (news) state.count_remote(policy, counted.weight(), now);
  settle(*its, state, now);
  if (news) note_overshoot(*its, state, now);
  if (news && its->terms.partition == Partition::share) {
    count_for_other_side(*its, subject.key, counted.intervals(), now);
  }
  push_if_due(*its, state, now);
}

void Replica::keep_for_others(const Peer& peer, const RecordItem& item, std::span<const Interval> births, Nanos now) {
  relay_.clear();
  const std::size_t before = relay_.size();
  relay_.record(item.origin, true, item.seq, item.subject, births);
  ledger_.keep(now, relay_.since(before), item, births);
  trim_others(now);
  // What doesn't fit will be asked for.
  if (relayed_ && (relays_ || item.origin.node == peer.node) && relayed_->size() + relay_.size() <= kFrameMax)
    relayed_->raw(relay_.since(before));
}

// Sending.

void Replica::send_to(NodeId node, FrameWriter& frame, Traffic traffic, Effects& effects) {
  if (frame.empty()) return;
  effects.sends.push_back({node, effects.add_frame(frame.take()), traffic});
  frame = FrameWriter(self_.incarnation);
}

void Replica::send_to_live(FrameWriter& frame, Traffic traffic, Effects& effects) {
  if (frame.empty()) return;
  const std::uint32_t index = effects.add_frame(frame.take());
  frame = FrameWriter(self_.incarnation);
  for (const Peer& peer : peers_) {
    if (peer.live) effects.sends.push_back({peer.node, index, traffic});
  }
}

}  // namespace weir
