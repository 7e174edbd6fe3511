#include "weir/registry.hpp"

#include <algorithm>
#include <new>

namespace weir {

// ---- Limiter ----

Limiter::Limiter(Arena& arena, unsigned stripes, Replication& replication)
    : table_(arena), replication_(replication), stripes_(stripes), counters_(new Stripe[stripes]) {}

// A sequence lock without fences: loads that acquire stay before the second look at the sequence, and stores that
// release stay behind the odd one.
Terms Limiter::terms() const noexcept {
  const auto read = [](const auto& word) { return word.load(std::memory_order_acquire); };
  for (;;) {
    const std::uint32_t sequence = read(sequence_);
    Terms terms;
    terms.policy = {{read(capacity_)}, {read(interval_)}};
    terms.version = read(version_);
    terms.before = {{read(before_capacity_)}, {read(before_interval_)}};
    terms.changed_at = {read(changed_at_)};
    if ((sequence & 1) == 0 && sequence_.load(std::memory_order_relaxed) == sequence) return terms;
    spin_pause();
  }
}

void Limiter::set_terms(const Terms& terms) noexcept {
  const auto write = [](auto& word, auto value) { word.store(value, std::memory_order_release); };
  const std::uint32_t sequence = sequence_.load(std::memory_order_relaxed);
  write(sequence_, sequence + 1);
  write(capacity_, terms.policy.capacity.v);
  write(interval_, terms.policy.interval.v);
  write(version_, terms.version);
  write(before_capacity_, terms.before.capacity.v);
  write(before_interval_, terms.before.interval.v);
  write(changed_at_, terms.changed_at.v);
  write(sequence_, sequence + 2);
}

void Limiter::set_flags(const LimiterOptions& options) noexcept {
  flags_.store((options.shadow ? kShadow : 0) | (options.deny_on_error ? kDeny : 0) |
                   (options.number.v != 0 ? kReplicated : 0) | (options.deny_in_minority ? kClosed : 0) |
                   (options.claims ? kClaims : 0) | (options.owned ? kOwned : 0),
               std::memory_order_relaxed);
}

Counts Limiter::counts() const noexcept {
  std::array<std::int64_t, 4> sum{};
  for (unsigned s = 0; s < stripes_; ++s)
    for (unsigned k = 0; k < sum.size(); ++k) sum[k] += counters_[s].of[k].load(std::memory_order_relaxed);
  return {sum[0], sum[1], sum[2], sum[3]};
}

// ---- finding ----

Registry::Registry(unsigned stripes)
    : replication_(stripes),
      stripes_(stripes),
      names_(std::make_unique<Slots>()),
      aliases_(std::make_unique<Slots>()),
      numbers_(std::make_unique<Slots>()) {}

Registry::~Registry() = default;

// A probe that ends at an empty slot while the slots are being rebuilt proves nothing and is repeated.
template <class Is>
Registry::Ref Registry::probe(const Slots& slots, std::uint64_t hash, Is is) const noexcept {
  for (;;) {
    const std::uint32_t version = slots_version_.load(std::memory_order_acquire);
    for (std::size_t i = slot_of(hash);; i = (i + 1) % slots.size()) {
      Limiter* limiter = slots[i].load(std::memory_order_acquire);
      if (limiter == nullptr) break;
      // The generation before the name: if the name is still this one, so was the generation.
      const std::uint64_t generation = limiter->table_.generation();
      if (is(*limiter)) return {limiter, generation};
    }
    if ((version & 1) == 0 && slots_version_.load(std::memory_order_relaxed) == version) return {};
    spin_pause();
  }
}

Registry::Ref Registry::find(KeyHash name) const noexcept {
  return probe(*names_, name.v,
               [&](const Limiter& limiter) { return limiter.name_hash_.load(std::memory_order_acquire) == name.v; });
}

Registry::Ref Registry::find_alias(std::uint64_t alias) const noexcept {
  return probe(*aliases_, alias,
               [&](const Limiter& limiter) { return limiter.alias_.load(std::memory_order_acquire) == alias; });
}

Registry::Ref Registry::find_number(LimiterId number) const noexcept {
  return probe(*numbers_, number.v,
               [&](const Limiter& limiter) { return limiter.number_.load(std::memory_order_acquire) == number.v; });
}

void Registry::add(Slots& slots, std::uint64_t hash, Limiter* limiter) noexcept {
  std::size_t i = slot_of(hash);
  while (slots[i].load(std::memory_order_relaxed) != nullptr) i = (i + 1) % slots.size();
  slots[i].store(limiter, std::memory_order_release);
}

// Deleting from linear probing would leave holes; limiters are deleted seldom, so all is laid out anew.
void Registry::rebuild_slots() noexcept {
  slots_version_.fetch_add(1, std::memory_order_acq_rel);
  for (Slots* slots : {names_.get(), aliases_.get(), numbers_.get()})
    for (auto& slot : *slots) slot.store(nullptr, std::memory_order_release);
  for (const auto& limiter : limiters_) {
    if (limiter->phase_ != Limiter::Phase::open) continue;
    add(*names_, limiter->name_hash_.load(std::memory_order_relaxed), limiter.get());
    if (const std::uint64_t alias = limiter->alias_.load(std::memory_order_relaxed); alias != 0)
      add(*aliases_, alias, limiter.get());
    if (const std::uint32_t number = limiter->number_.load(std::memory_order_relaxed); number != 0)
      add(*numbers_, number, limiter.get());
  }
  slots_version_.fetch_add(1, std::memory_order_acq_rel);
}

// ---- changing ----

Limiter* Registry::take_free() {
  for (const auto& limiter : limiters_)
    if (limiter->phase_ == Limiter::Phase::free) return limiter.get();
  if (limiters_.size() == kMaxLimiters) return nullptr;
  limiters_.push_back(std::make_unique<Limiter>(arena_, stripes_, replication_));
  return limiters_.back().get();
}

Registry::Put Registry::put(std::string_view name, KeyHash hash, const Policy& policy, const LimiterOptions& options,
                            Nanos now) {
  const std::lock_guard lock(mutex_);
  if (const Ref found = find(hash)) {
    Limiter& limiter = *found.limiter;
    const LimiterOptions& before = limiter.options_;
    if (options.max_keys != before.max_keys || options.number != before.number || options.owned != before.owned)
      return Put::fixed;
    if (limiter.converting_) return Put::busy;
    const Terms terms = limiter.terms();
    limiter.options_ = options;
    limiter.set_flags(options);
    if (policy == terms.policy) return Put::changed;
    limiter.converting_ = true;
    limiter.convert_cursor_ = 0;
    limiter.set_terms({policy, terms.version + 1, terms.policy, now});
    return Put::changed;
  }
  if (options.number.v != 0 && find_number(options.number)) return Put::same_number;
  Limiter* limiter = take_free();
  if (limiter == nullptr) return Put::too_many;
  limiter->name_ = name;
  limiter->options_ = options;
  limiter->handles_ = 0;
  limiter->converting_ = false;
  limiter->sweep_cursor_ = 0;
  for (unsigned s = 0; s < stripes_; ++s)
    for (auto& counter : limiter->counters_[s].of) counter.store(0, std::memory_order_relaxed);
  limiter->set_flags(options);
  limiter->set_terms({policy, limiter->terms().version, policy, now});
  limiter->table_.open(options.max_keys, limiter->terms().version);
  limiter->name_hash_.store(hash.v, std::memory_order_release);
  limiter->number_.store(options.number.v, std::memory_order_release);
  limiter->phase_ = Limiter::Phase::open;
  add(*names_, hash.v, limiter);
  if (options.number.v != 0) add(*numbers_, options.number.v, limiter);
  return Put::created;
}

bool Registry::set_alias(KeyHash name, std::uint64_t alias) {
  const std::lock_guard lock(mutex_);
  const Ref found = find(name);
  if (!found || alias == 0) return false;
  if (found.limiter->alias_.exchange(alias, std::memory_order_acq_rel) != alias) add(*aliases_, alias, found.limiter);
  return true;
}

bool Registry::convert(KeyHash name, unsigned segments) {
  const std::lock_guard lock(mutex_);
  const Ref found = find(name);
  if (!found || !found.limiter->converting_) return true;
  Limiter& limiter = *found.limiter;
  if (!limiter.table_.convert(found.generation, limiter.terms(), limiter.convert_cursor_, segments)) return false;
  limiter.converting_ = false;
  return true;
}

// Names first, then the table: who still finds a name finds a generation that the table no longer has.
void Registry::begin_remove(Limiter& limiter) noexcept {
  limiter.phase_ = Limiter::Phase::closing;
  limiter.name_hash_.store(0, std::memory_order_release);
  limiter.alias_.store(0, std::memory_order_release);
  limiter.number_.store(0, std::memory_order_release);
  limiter.table_.begin_close();
}

bool Registry::remove(KeyHash name) {
  const std::lock_guard lock(mutex_);
  const Ref found = find(name);
  if (!found) return false;
  begin_remove(*found.limiter);
  rebuild_slots();
  return true;
}

void Registry::remove_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& limiter : limiters_)
    if (limiter->phase_ == Limiter::Phase::open) begin_remove(*limiter);
  rebuild_slots();
}

bool Registry::retain(Ref ref) noexcept {
  const std::lock_guard lock(mutex_);
  if (ref.limiter->table_.generation() != ref.generation) return false;
  ++ref.limiter->handles_;
  return true;
}

void Registry::release(Ref ref) noexcept {
  const std::lock_guard lock(mutex_);
  if (ref.limiter->table_.generation() == ref.generation) --ref.limiter->handles_;
}

bool Registry::maintain(Nanos now, unsigned segments) {
  const std::lock_guard lock(mutex_);
  for (; maintain_next_ < limiters_.size(); ++maintain_next_) {
    Limiter& limiter = *limiters_[maintain_next_];
    if (segments == 0) return false;
    if (limiter.phase_ == Limiter::Phase::closing) {
      if (!limiter.table_.close_some(segments)) return false;
      limiter.phase_ = Limiter::Phase::free;
      --segments;
    } else if (limiter.phase_ == Limiter::Phase::open) {
      const Terms terms = limiter.terms();
      const std::uint64_t generation = limiter.table_.generation();
      if (limiter.converting_) {
        if (!limiter.table_.convert(generation, terms, limiter.convert_cursor_, segments)) return false;
        limiter.converting_ = false;
      }
      if (!limiter.table_.sweep(generation, terms, now, limiter.sweep_cursor_, segments)) return false;
      limiter.sweep_cursor_ = 0;
      --segments;
      if (limiter.options_.transient && limiter.handles_ == 0 && limiter.table_.stats().keys == 0) {
        begin_remove(limiter);
        rebuild_slots();
      }
    }
  }
  maintain_next_ = 0;
  return true;
}

std::vector<Registry::Listed> Registry::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<Listed> listed;
  for (const auto& limiter : limiters_)
    if (limiter->phase_ == Limiter::Phase::open)
      listed.push_back(
          {limiter->name_, limiter->terms().policy, limiter->options_, limiter->counts(), limiter->table_.stats()});
  return listed;
}

// ---- deciding ----

namespace {

// In how long who is denied by the smaller side of a partition may ask again.
constexpr Nanos kHalted{1'000'000'000};

// The decision, and of which kind it is. `terms` are read again when they turn out to be stale.
Limiter::Kind decide_as(Registry::Ref ref, Terms& terms, KeyHash key, Tokens hits, Nanos now, Decision& decision,
                        unsigned stripe) noexcept {
  Limiter& limiter = *ref.limiter;
  Status status = Status::stale;
  if (limiter.halted()) [[unlikely]] {
    status = Status::ok;
    decision = {false, {0}, {0}, kHalted};
  }
  try {
    while (status == Status::stale) {
      status = limiter.table().decide(ref.generation, terms, key, hits, now, decision);
      if (status == Status::stale) terms = limiter.terms();
    }
    if (status == Status::ok && decision.allowed) limiter.tell(stripe, key, hits, now, now + decision.reset);
  } catch (const std::bad_alloc&) {
    status = Status::gone;
  }
  if (status != Status::ok) {
    decision = {!limiter.deny_on_error(), {0}, {0}, {limiter.deny_on_error() ? 1 : 0}};
    return Limiter::kFailed;
  }
  if (decision.allowed) return Limiter::kAllowed;
  if (!limiter.shadow()) return Limiter::kDenied;
  decision.allowed = true;
  decision.retry = {0};
  return Limiter::kShadowDenied;
}

}  // namespace

Decision Registry::decide(Ref ref, KeyHash key, Tokens hits, Nanos now, unsigned stripe) noexcept {
  Decision decision;
  Terms terms = ref.limiter->terms();
  ref.limiter->count(decide_as(ref, terms, key, hits, now, decision, stripe), stripe, 1);
  return decision;
}

Decision Asker::decide(KeyHash key, Tokens hits, Nanos now) noexcept {
  Decision decision;
  ++counts_[decide_as(ref_, terms_, key, hits, now, decision, stripe_)];
  return decision;
}

bool Registry::claims(Ref ref, KeyHash key, Tokens hits, Nanos now) noexcept {
  Tat state;
  Terms terms;
  if (!ref.limiter->claims() || hits.v <= 1 || !peek(ref, key, now, state, terms)) return false;
  const std::int64_t nodes = ref.limiter->replication_.nodes.load(std::memory_order_relaxed);
  return nodes > 1 && state.admits(terms.policy, hits, now) &&
         hits.v > std::max<std::int64_t>(1, state.slack(terms.policy, now).v / nodes);
}

bool Registry::set_level(Ref ref, KeyHash key, Nanos tat, bool exactly, Nanos now) noexcept {
  Status status = Status::stale;
  try {
    while (status == Status::stale)
      status = ref.limiter->table_.set_level(ref.generation, ref.limiter->terms(), key, tat, exactly, now);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return status == Status::ok;
}

bool Registry::carry(Ref ref, KeyHash before, KeyHash key, Nanos now) noexcept {
  Limiter& limiter = *ref.limiter;
  if (before == key) return false;
  Carries& carries = limiter.replication_.carries;
  const std::lock_guard turn(carries.turn(key));
  Terms terms;
  Tat level;
  Status status = Status::stale;
  while (status == Status::stale) {
    terms = limiter.terms();
    status = limiter.table_.take(ref.generation, terms, before, now, level);
  }
  if (status != Status::ok || level.value() <= now) return false;
  if (limiter.owned()) {
    // Many nodes know the owner's level. Added up, and told as births, it would count once for each of them.
    set_level(ref, key, level.value(), false, now);
    return false;
  }
  Nanos tat;
  try {
    while ((status = limiter.table_.add(ref.generation, terms, key, level.value() - now, now, tat)) == Status::stale) {
      const Terms changed = limiter.terms();
      level.change(terms.policy, changed.policy, now);
      terms = changed;
    }
  } catch (const std::bad_alloc&) {
    set_level(ref, before, level.value(), false, now);  // for the next one who comes
    return false;
  }
  const bool tells = status == Status::ok && limiter.replicated() && limiter.replication_.births.open();
  if (tells) carries.push({limiter.number(), before, key, tat});
  return tells;
}

Nanos Registry::longest_horizon() const noexcept {
  const std::lock_guard lock(mutex_);
  Nanos longest{0};
  for (const auto& limiter : limiters_)
    if (limiter->phase_ == Limiter::Phase::open)
      longest = std::max(longest, IntervalSet::horizon(limiter->terms().policy));
  return longest;
}

bool Registry::peek(Ref ref, KeyHash key, Nanos now, Tat& state, Terms& terms) noexcept {
  Status status = Status::stale;
  while (status == Status::stale) {
    terms = ref.limiter->terms();
    status = ref.limiter->table_.peek(ref.generation, terms, key, now, state);
  }
  return status == Status::ok;
}

bool Registry::reset(Ref ref, KeyHash key, Nanos now) noexcept {
  Status status = Status::stale;
  while (status == Status::stale) status = ref.limiter->table_.reset(ref.generation, ref.limiter->terms(), key, now);
  return status == Status::ok;
}

}  // namespace weir
