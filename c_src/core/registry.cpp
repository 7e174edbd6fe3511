#include "weir/registry.hpp"

#include <algorithm>
#include <bit>
#include <new>

namespace weir {

// ---- Limiter ----

Limiter::Limiter(Arena& arena, unsigned stripes, Replication& replication)
    : stripes_(stripes), table_(arena), replication_(replication), counters_(new Stripe[stripes]) {}

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

bool Limiter::next_dropped(Table::Cursor& at) const noexcept {
  constexpr unsigned kShift = 64 - kRangeBits;
  for (std::uint64_t range = at >> kShift; range < std::uint64_t{1} << kRangeBits; range = (range / 64 + 1) * 64) {
    const std::uint64_t bits = dropped_[range / 64].load(std::memory_order_relaxed) >> range % 64;
    if (bits == 0) continue;
    range += static_cast<unsigned>(std::countr_zero(bits));
    at = std::max(at, range << kShift);
    return true;
  }
  return false;
}

namespace {

// The last range that begins before a place among the hashes (0: the end).
std::uint64_t last_range(Table::Cursor to, unsigned bits) noexcept {
  return to == 0 ? (std::uint64_t{1} << bits) - 1 : (to - 1) >> (64 - bits);
}

}  // namespace

void Limiter::take_dropped(Table::Cursor from, Table::Cursor to) noexcept {
  const std::uint64_t last = last_range(to, kRangeBits);
  for (std::uint64_t range = from >> (64 - kRangeBits); range <= last; ++range) {
    const std::uint64_t bit = std::uint64_t{1} << range % 64;
    auto& word = dropped_[range / 64];
    if ((word.load(std::memory_order_relaxed) & bit) != 0) word.fetch_and(~bit, std::memory_order_acq_rel);
  }
}

void Limiter::give_dropped(Table::Cursor from, Table::Cursor to) noexcept {
  const std::uint64_t last = last_range(to, kRangeBits);
  for (std::uint64_t range = from >> (64 - kRangeBits); range <= last; ++range)
    dropped_[range / 64].fetch_or(std::uint64_t{1} << range % 64, std::memory_order_acq_rel);
}

Counts Limiter::counts() const noexcept {
  std::array<std::int64_t, 4> sum{};
  for (unsigned s = 0; s < stripes_; ++s)
    for (unsigned k = 0; k < sum.size(); ++k) sum[k] += counters_[s].of[k].load(std::memory_order_relaxed);
  return {sum[0], sum[1], sum[2], sum[3]};
}

// ---- finding ----

Registry::Registry(unsigned stripes) : replication_(stripes), stripes_(stripes) {}

Registry::~Registry() = default;

Registry::Ref Registry::find(KeyHash name) const noexcept {
  return found(LimiterIndex::Kind::name, name.v, &Limiter::name_hash_);
}

Registry::Ref Registry::find_number(LimiterId number) const noexcept {
  return found(LimiterIndex::Kind::number, number.v, &Limiter::number_);
}

// REQUIRES: the mutex.
void Registry::add(LimiterIndex::Kind kind, std::uint64_t key, Limiter* limiter) {
  using Kind = LimiterIndex::Kind;
  const std::size_t entries = named_ + transient_ + aliases_ + numbers_;
  index_.add(kind, key, limiter, entries, [&](auto put) {
    for (const auto& each : limiters_) {
      if (each->phase_ != Limiter::Phase::open) continue;
      const auto put_if = [&](Kind of, std::uint64_t name) {
        if (name != 0 && !(of == kind && each.get() == limiter)) put(of, name, each.get());
      };
      put_if(Kind::name, each->name_hash_.load(std::memory_order_relaxed));
      put_if(Kind::alias, each->alias_.load(std::memory_order_relaxed));
      put_if(Kind::number, each->number_.load(std::memory_order_relaxed));
    }
  });
}

// ---- changing ----

Limiter* Registry::take_free() {
  if (free_.empty()) {
    // Room for all of them, so that giving one back can't fail.
    free_.reserve(limiters_.size() + 1);
    limiters_.push_back(std::make_unique<Limiter>(arena_, stripes_, replication_));
    free_.push_back(limiters_.back().get());
  }
  return free_.back();
}

Registry::Put Registry::put(std::string_view name, KeyHash hash, const Policy& policy, const LimiterOptions& options,
                            Nanos now) {
  // Somebody who makes and deletes limiters faster than they are swept pays for it.
  if (closing_count_.load(std::memory_order_relaxed) > kClosingMost) {
    if (const std::unique_lock turn(turn_, std::try_to_lock); turn) {
      unsigned segments = 4;
      close_some(segments);
    }
  }
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
    carry(limiter, policy, now);  // births may matter for longer now
    return Put::changed;
  }
  if (options.number.v != 0 && find_number(options.number)) return Put::same_number;
  unsigned& open = options.transient ? transient_ : named_;
  if (open == (options.transient ? kMaxTransient : kMaxLimiters)) return Put::too_many;
  Limiter* const limiter = take_free();
  limiter->name_ = name;
  limiter->options_ = options;
  limiter->handles_ = 0;
  limiter->converting_ = false;
  limiter->sweep_cursor_ = 0;
  // Other nodes may have it already, and tell what they know of keys under their hash of before.
  limiter->carry_until_.store(0, std::memory_order_relaxed);
  carry(*limiter, policy, now);
  for (auto& range : limiter->dropped_) range.store(0, std::memory_order_relaxed);
  for (unsigned s = 0; s < stripes_; ++s)
    for (auto& counter : limiter->counters_[s].of) counter.store(0, std::memory_order_relaxed);
  limiter->set_flags(options);
  limiter->set_terms({policy, limiter->terms().version, policy, now});
  limiter->table_.open(options.max_keys, limiter->terms().version);
  free_.pop_back();
  ++open;
  numbers_ += options.number.v != 0 ? 1 : 0;
  limiter->phase_ = Limiter::Phase::open;
  // Nobody finds it by these until it is in the index.
  limiter->number_.store(options.number.v, std::memory_order_release);
  limiter->name_hash_.store(hash.v, std::memory_order_release);
  try {
    add(LimiterIndex::Kind::name, hash.v, limiter);
    if (options.number.v != 0) add(LimiterIndex::Kind::number, options.number.v, limiter);
  } catch (...) {
    begin_remove(*limiter);
    throw;
  }
  return Put::created;
}

bool Registry::set_alias(KeyHash name, std::uint64_t alias) {
  const std::lock_guard lock(mutex_);
  const Ref found = find(name);
  if (!found || alias == 0) return false;
  const std::uint64_t had = found.limiter->alias_.load(std::memory_order_relaxed);
  if (had == alias) return true;
  add(LimiterIndex::Kind::alias, alias, found.limiter);
  found.limiter->alias_.store(alias, std::memory_order_release);
  aliases_ += had == 0 ? 1 : 0;
  return true;
}

bool Registry::convert(KeyHash name, unsigned segments) {
  Ref found;
  Terms terms;
  Table::Cursor cursor;
  {
    const std::lock_guard lock(mutex_);
    found = find(name);
    if (!found || !found.limiter->converting_) return true;
    terms = found.limiter->terms();
    cursor = found.limiter->convert_cursor_;
  }
  const bool done = found.limiter->table_.convert(found.generation, terms, cursor, segments);
  const std::lock_guard lock(mutex_);
  Limiter& limiter = *found.limiter;
  // Somebody else may have come further, or the limiter is another one by now.
  if (limiter.table_.generation() != found.generation || limiter.terms().version != terms.version) return true;
  limiter.convert_cursor_ = std::max(limiter.convert_cursor_, cursor);
  if (done) limiter.converting_ = false;
  return !limiter.converting_;
}

// Names first, then the table: a thread that still finds a name finds a generation that the table no longer has.
void Registry::begin_remove(Limiter& limiter) noexcept {
  (limiter.options_.transient ? transient_ : named_) -= 1;
  aliases_ -= limiter.alias_.load(std::memory_order_relaxed) != 0 ? 1 : 0;
  numbers_ -= limiter.number_.load(std::memory_order_relaxed) != 0 ? 1 : 0;
  limiter.phase_ = Limiter::Phase::closing;
  limiter.name_hash_.store(0, std::memory_order_release);
  limiter.alias_.store(0, std::memory_order_release);
  limiter.number_.store(0, std::memory_order_release);
  limiter.table_.begin_close();
  limiter.closes_next_ = nullptr;
  (closing_ == nullptr ? closing_ : closing_last_->closes_next_) = &limiter;
  closing_last_ = &limiter;
  closing_count_.fetch_add(1, std::memory_order_relaxed);
}

bool Registry::remove(KeyHash name) {
  const std::lock_guard lock(mutex_);
  const Ref found = find(name);
  if (found) begin_remove(*found.limiter);
  return static_cast<bool>(found);
}

void Registry::remove_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& limiter : limiters_)
    if (limiter->phase_ == Limiter::Phase::open) begin_remove(*limiter);
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

// ---- maintaining ----

// Closes tables that were removed, the oldest first; true when all are. REQUIRES: the turn.
bool Registry::close_some(unsigned& segments) {
  for (;;) {
    Limiter* limiter;
    {
      const std::lock_guard lock(mutex_);
      if (closing_ == nullptr) return true;
      limiter = closing_;
    }
    if (segments == 0 || !limiter->table_.close_some(segments)) return false;
    --segments;
    const std::lock_guard lock(mutex_);
    closing_ = limiter->closes_next_;
    closing_count_.fetch_sub(1, std::memory_order_relaxed);
    limiter->phase_ = Limiter::Phase::free;
    free_.push_back(limiter);
  }
}

// False when it is to be gone on with. REQUIRES: the turn.
bool Registry::maintain_one(Limiter& limiter, Nanos now, unsigned& segments) {
  Ref ref{&limiter, 0};
  Terms terms;
  bool converting;
  Table::Cursor convert_cursor, sweep_cursor;
  {
    const std::lock_guard lock(mutex_);
    if (limiter.phase_ != Limiter::Phase::open) return true;
    ref.generation = limiter.table_.generation();
    terms = limiter.terms();
    converting = limiter.converting_;
    convert_cursor = limiter.convert_cursor_;
    sweep_cursor = limiter.sweep_cursor_;
    carried_seen_ = std::max(carried_seen_, limiter.carry_until());
  }
  if (segments == 0) return false;
  bool converted = !converting || limiter.table_.convert(ref.generation, terms, convert_cursor, segments);
  const bool swept = converted && limiter.table_.sweep(ref.generation, terms, now, sweep_cursor, segments);
  const std::lock_guard lock(mutex_);
  if (limiter.phase_ != Limiter::Phase::open || limiter.table_.generation() != ref.generation) return true;
  if (limiter.terms().version == terms.version) {
    limiter.convert_cursor_ = std::max(limiter.convert_cursor_, convert_cursor);
    if (converting && converted) limiter.converting_ = false;
  }
  limiter.sweep_cursor_ = swept ? 0 : sweep_cursor;
  if (!swept) return false;
  --segments;
  if (limiter.options_.transient && limiter.handles_ == 0 && limiter.table_.stats().keys == 0) begin_remove(limiter);
  return true;
}

bool Registry::maintain(Nanos now, unsigned segments) {
  const std::lock_guard turn(turn_);
  if (!close_some(segments)) return false;
  for (;; ++maintain_next_) {
    Limiter* limiter = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (maintain_next_ == 0) carried_seen_ = carrying_since_ + std::min(carrying_most_, kCarriedLeast);
      if (maintain_next_ < limiters_.size()) limiter = limiters_[maintain_next_].get();
      if (limiter == nullptr) {
        if (carried_seen_ <= now) {
          carrying_since_ = {0};
          carried_until_.store(0, std::memory_order_relaxed);
        }
        maintain_next_ = 0;
        return closing_ == nullptr;
      }
    }
    if (!maintain_one(*limiter, now, segments)) return false;
  }
}

std::vector<Registry::Listed> Registry::list() const {
  std::vector<Listed> listed;
  for (std::size_t next = 0;;) {
    const std::lock_guard lock(mutex_);
    const std::size_t end = std::min(limiters_.size(), next + kListedAtOnce);
    for (; next < end; ++next) {
      const Limiter& limiter = *limiters_[next];
      if (limiter.phase_ == Limiter::Phase::open)
        listed.push_back(
            {limiter.name_, limiter.terms().policy, limiter.options_, limiter.counts(), limiter.table_.stats()});
    }
    if (next == limiters_.size()) return listed;
  }
}

bool Registry::empty() const {
  const std::lock_guard lock(mutex_);
  return named_ + transient_ == 0;
}

std::vector<Registry::Ref> Registry::replicated(bool owned) const {
  std::vector<Ref> refs;
  const std::lock_guard lock(mutex_);
  for (const auto& limiter : limiters_)
    if (limiter->phase_ == Limiter::Phase::open && limiter->replicated() && limiter->owned() == owned)
      refs.push_back({limiter.get(), limiter->table_.generation()});
  return refs;
}

void Registry::drop_all() noexcept {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& limiter : limiters_)
      if (limiter->phase_ == Limiter::Phase::open && limiter->replicated())
        for (auto& range : limiter->dropped_) range.store(UINT64_MAX, std::memory_order_relaxed);
  }
  replication_.births.overflow();
}

// ---- deciding ----

namespace {

// In how long a caller that is denied by the smaller side of a partition may ask again.
constexpr Nanos kHalted{1'000'000'000};
// As long as so many tokens per node are left, it is soon enough if the replica hears of a birth in a millisecond: a
// node can't admit as many in that time.
constexpr double kFar = 1024;

}  // namespace

Nanos Answered::retry(Tokens hits, Nanos now) const noexcept {
  if (allowed) return {0};
  if (reason == Reason::error) return {1};
  if (reason == Reason::partition) return kHalted;
  return Tat(tat).denied(policy, hits, now).retry;
}

void Limiter::tell(unsigned stripe, KeyHash key, Tokens hits, Nanos now, const Policy& policy, Nanos tat) noexcept {
  if (!replication_.births.open()) return;
  const double left = static_cast<double>((policy.span() - (tat - now)).v);
  const double far = kFar * static_cast<double>(replication_.nodes.load(std::memory_order_relaxed)) *
                     static_cast<double>(hits.v) * static_cast<double>(policy.interval.v);
  if (replication_.births.push(stripe, {number(), key, hits, now, tat}, policy.interval, left < far)) return;
  const std::uint64_t range = key.v >> (64 - kRangeBits);
  dropped_[range / 64].fetch_or(std::uint64_t{1} << range % 64, std::memory_order_acq_rel);
  replication_.births.overflow();
}

// The decision under terms that are read again when they turn out to be stale.
Answered detail::ask_any(Registry::Ref ref, Limiter::Brief& brief, KeyHash key, Tokens hits, Nanos now,
                         unsigned stripe) noexcept {
  Limiter& limiter = *ref.limiter;
  if (limiter.halted()) {
    if (limiter.shadow()) return {Answered::Reason::shadow, true, brief.policy, now + brief.policy.span()};
    return {Answered::Reason::partition, false, brief.policy, {0}};
  }
  Ruling ruling{Verdict::unsure, {}};
  Status status;
  try {
    do {
      const Terms terms = limiter.terms();
      brief = {terms.policy, terms.version};
      status = limiter.table().decide(ref.generation, terms, key, hits, now, ruling);
    } while (status == Status::stale);
  } catch (const std::bad_alloc&) {
    status = Status::gone;
  }
  if (status != Status::ok) return {Answered::Reason::error, !limiter.deny_on_error(), brief.policy, {0}};
  if (ruling.verdict == Verdict::admitted) {
    if (limiter.replicated()) limiter.tell(stripe, key, hits, now, brief.policy, ruling.tat);
    return {Answered::Reason::ok, true, brief.policy, ruling.tat};
  }
  if (limiter.shadow()) return {Answered::Reason::shadow, true, brief.policy, ruling.tat};
  return {Answered::Reason::limit, false, brief.policy, ruling.tat};
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
    if (!set_level(ref, key, level.value(), false, now)) set_level(ref, before, level.value(), false, now);
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

// While keys are carried at all, the limiter's are for as long as its births matter. REQUIRES: the mutex.
void Registry::carry(Limiter& limiter, const Policy& policy, Nanos now) noexcept {
  if (carrying_since_.v == 0) return;
  const Nanos until = carrying_since_ + std::min(carrying_most_, std::max(kCarriedLeast, IntervalSet::horizon(policy)));
  limiter.carry_until_.store(until > now ? until.v : 0, std::memory_order_relaxed);
  carried_seen_ = std::max(carried_seen_, until);  // a pass of `maintain` may be under way
  if (until > carried_until() && until > now) carried_until_.store(until.v, std::memory_order_relaxed);
}

void Registry::begin_carrying(Nanos now, Nanos most) {
  const std::lock_guard lock(mutex_);
  carrying_since_ = now;
  carrying_most_ = most;
  // Limiters may be made in a moment, from what other nodes tell.
  carried_seen_ = now + std::min(most, kCarriedLeast);
  carried_until_.store(carried_seen_.v, std::memory_order_relaxed);
  for (const auto& limiter : limiters_)
    if (limiter->phase_ == Limiter::Phase::open) carry(*limiter, limiter->terms().policy, now);
}

void Registry::end_carrying() {
  const std::lock_guard lock(mutex_);
  carrying_since_ = {0};
  for (const auto& limiter : limiters_) limiter->carry_until_.store(0, std::memory_order_relaxed);
  carried_until_.store(0, std::memory_order_relaxed);
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
