// keys: see include/weir/keys.hpp.
#include "weir/keys.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace weir {
namespace {

// After this nothing comes any more that was admitted here before.
constexpr Nanos kToldLate{2'000'000'000};

}  // namespace

// Intervals in bytes.

namespace {

std::byte* put_varint(std::byte* at, std::uint64_t value) noexcept {
  for (; value >= 0x80; value >>= 7) *at++ = static_cast<std::byte>(value | 0x80);
  *at++ = static_cast<std::byte>(value);
  return at;
}
std::size_t varint_size(std::uint64_t value) noexcept {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}
std::int64_t get_varint(const std::byte*& at) noexcept {
  std::uint64_t value = 0;
  unsigned shift = 0;
  while (std::to_integer<unsigned>(*at) >= 0x80) {
    value |= (std::to_integer<std::uint64_t>(*at++) & 0x7f) << shift;
    shift += 7;
  }
  return static_cast<std::int64_t>(value | std::to_integer<std::uint64_t>(*at++) << shift);
}

}  // namespace

template <class Visit>
void PackedIntervals::each(Visit visit) const noexcept {
  Interval interval{oldest(), {0}};
  const std::byte* at = block_ + sizeof interval.start.v;
  for (std::size_t i = 0; i < size(); ++i) {
    if (i != 0) interval.start.v += get_varint(at);
    interval.count.v = get_varint(at);
    visit(i, interval);
  }
}

std::size_t PackedIntervals::write(const IntervalSet& set, std::byte* to) noexcept {
  std::size_t bytes = sizeof(std::int64_t);
  if (to != nullptr) to = static_cast<std::byte*>(std::memcpy(to, &set.begin()->start.v, bytes)) + bytes;
  for (const Interval* it = set.begin(); it != set.end(); ++it) {
    const auto count = static_cast<std::uint64_t>(it->count.v);
    const auto step = it == set.begin() ? 0 : static_cast<std::uint64_t>((it->start - (it - 1)->start).v);
    bytes += varint_size(count) + (step == 0 ? 0 : varint_size(step));
    if (to == nullptr) continue;
    if (step != 0) to = put_varint(to, step);
    to = put_varint(to, count);
  }
  return bytes;
}

PackedIntervals PackedIntervals::make(const IntervalSet& set) {
  assert(set.size() >= 2);
  const std::size_t bytes = write(set, nullptr);
  PackedIntervals made;
  made.block_ = new std::byte[capacity(bytes)];
  made.sizes_ = static_cast<std::uint32_t>(bytes << 8 | set.size());
  write(set, made.block_);
  return made;
}

bool PackedIntervals::overwrite(const IntervalSet& set) noexcept {
  const std::size_t bytes = write(set, nullptr);
  if (capacity(bytes) != capacity()) return false;
  sizes_ = static_cast<std::uint32_t>(bytes << 8 | set.size());
  write(set, block_);
  return true;
}

IntervalSet PackedIntervals::load() const noexcept {
  std::array<Interval, kIntervalCap> intervals;
  each([&](std::size_t i, const Interval& interval) { intervals[i] = interval; });
  return IntervalSet::from({intervals.data(), size()});
}

Tokens PackedIntervals::weight() const noexcept {
  Tokens sum;
  each([&](std::size_t, const Interval& interval) { sum = sum + interval.count; });
  return sum;
}

Interval PackedIntervals::last() const noexcept {
  Interval last;
  each([&](std::size_t, const Interval& interval) { last = interval; });
  return last;
}

std::ptrdiff_t StoredSet::clear() noexcept {
  const auto before = static_cast<std::ptrdiff_t>(heap_bytes());
  if (count_ < 0) packed().free();
  start_ = 0;
  count_ = 0;
  return -before;
}

std::ptrdiff_t StoredSet::store(const IntervalSet& set) {
  const auto before = static_cast<std::ptrdiff_t>(heap_bytes());
  if (set.size() <= 1) {
    clear();
    if (!set.empty()) {
      start_ = set.begin()->start.v;
      count_ = set.begin()->count.v;
    }
    return -before;
  }
  PackedIntervals block = count_ < 0 ? packed() : PackedIntervals();
  if (count_ >= 0 || !block.overwrite(set)) {
    block = PackedIntervals::make(set);
    clear();
  }
  adopt(block);
  return static_cast<std::ptrdiff_t>(heap_bytes()) - before;
}

std::uint32_t ArrivalRate::units(Tokens tokens, Tokens capacity, Nanos at) noexcept {
  const std::int64_t unit = capacity.v / kUnits + 1;
  const std::int64_t whole = std::min(tokens.v, capacity.v) / unit;
  const std::int64_t rest = std::min(tokens.v, capacity.v) % unit + at.v % unit >= unit;
  return static_cast<std::uint32_t>(whole + rest);
}

void ArrivalRate::count(Tokens tokens, Tokens capacity, Nanos now, Nanos period) noexcept {
  const std::uint32_t at = number(now, period);
  if (at != period_) {
    previous_ = at == (period_ + 1u) % kUnits ? current_ : 0;
    current_ = 0;
    period_ = at;
  }
  current_ = std::min(kMost, current_ + units(tokens, capacity, now));
}

Tokens ArrivalRate::per_second(Tokens capacity, Nanos now, Nanos period) const noexcept {
  const std::uint32_t age = (number(now, period) - period_) % kUnits;
  if (age > 1) return {0};
  const std::int64_t previous = age == 0 ? previous_ : current_;
  const std::int64_t current = age == 0 ? current_ : 0;
  // The part of the earlier period that is less than a period ago; in thousandths, so that the products fit.
  const std::int64_t left = (period.v - now.v % period.v) * 1000 / period.v;
  const std::int64_t units = (previous * left / 1000 + current) * (1'000'000'000 / period.v);
  const std::int64_t unit = capacity.v / kUnits + 1;
  // At most so much that callers may multiply by the number of nodes.
  return {unit > INT64_MAX / kUnits / kUnits / 64 ? INT64_MAX / 4096 : std::min(units * unit, INT64_MAX / 4096)};
}

// The states of keys.

std::uint32_t KeyState::Segment::take() {
  ++large;
  if (free != kNone) {
    const std::uint32_t block = free;
    free = std::bit_cast<std::uint32_t>(blocks[block].own_rate);
    blocks[block] = {};
    return block;
  }
  if (blocks.size() == blocks.capacity()) blocks.reserve(blocks.size() + blocks.size() / 4 + 1);
  blocks.emplace_back();
  return static_cast<std::uint32_t>(blocks.size() - 1);
}

void KeyState::Segment::give_back(std::uint32_t block) noexcept {
  --large;
  heap += blocks[block].published.clear() + blocks[block].unsent.clear();
  blocks[block].own_rate = std::bit_cast<ArrivalRate>(free);
  free = block;
}

IntervalSet KeyState::all(const Policy& policy) const noexcept {
  IntervalSet set = published();
  if (!has_unsent()) return set;
  [[maybe_unused]] const bool merged = set.merge(policy, unsent());
  return set;
}

Nanos KeyState::union_tat(const Policy& policy) const noexcept {
  if (!slot_->large) return small_tat(policy);
  const Large& sets = block();
  if (sets.unsent.empty()) return sets.published.tat(policy);
  if (sets.published.empty()) return sets.unsent.tat(policy);
  return all(policy).tat(policy);
}

double KeyState::unsent_level(double interval, Nanos now) const noexcept {
  const bool one = slot_->large ? block().unsent.intervals() == 1 : !slot_->packed;
  if (one) {
    const double age = static_cast<double>((now - oldest_unsent()).v);
    return static_cast<double>(unsent_weight().v) - age / interval;
  }
  double level = 0;
  Nanos at{0};
  for (const Interval& births : unsent()) {
    level = std::max(0.0, level - static_cast<double>((births.start - at).v) / interval);
    level += static_cast<double>(births.count.v);
    at = births.start;
  }
  return level - static_cast<double>((now - at).v) / interval;
}

// Makes it large, if it isn't yet.
KeyState::Large& KeyState::enlarge(const Policy& policy) {
  if (slot_->large) return block();
  const std::uint32_t index = part_->take();
  Large& made = part_->blocks[index];
  const Nanos tat = small_tat(policy);
  if (slot_->packed) {
    (slot_->published ? made.published : made.unsent).adopt(packed());
    slot_->packed = 0;
  } else {
    made.published.store(small_set(true));
    made.unsent.store(small_set(false));
    made.own_rate = own_rate(policy.capacity);
    made.remote_rate = remote_rate(policy.capacity);
  }
  slot_->time = tat.v;
  slot_->count = index;
  slot_->counts = kNoCounts;
  slot_->large = 1;
  return made;
}

// Puts a set into a small key; false if it can't hold it.
bool KeyState::store_small(bool published, const IntervalSet& set) noexcept {
  const bool other = small_in(!published);
  if (set.empty() && other) return true;
  const std::int64_t start = set.empty() ? 0 : set.begin()->start.v;
  const std::int64_t count = set.empty() ? 0 : set.begin()->count.v;
  if (other || set.size() > 1 || count > UINT32_MAX) return false;
  if (slot_->time == start && slot_->count == count) return true;
  // What came in one touch would no longer be all there is.
  if (slot_->counts != kNoCounts) return false;
  slot_->time = start;
  slot_->count = static_cast<std::uint32_t>(count);
  slot_->published = published ? 1 : 0;
  return true;
}

// The same for a packed key, which is small afterwards if that is enough.
bool KeyState::store_packed(bool published, const IntervalSet& set) {
  if (small_in(!published)) return set.empty();
  PackedIntervals block = packed();
  part_->heap -= static_cast<std::ptrdiff_t>(block.capacity());
  if (set.size() > 1) {
    if (!block.overwrite(set)) {
      const PackedIntervals made = PackedIntervals::make(set);
      std::exchange(block, made).free();
    }
    slot_->time = block.pointer();
    slot_->count = block.sizes();
    part_->heap += static_cast<std::ptrdiff_t>(block.capacity());
    return true;
  }
  block.free();
  slot_->packed = 0;
  slot_->time = slot_->count = 0;
  return store_small(published, set);
}

void KeyState::set(const Policy& policy, bool published, const IntervalSet& set) {
  if (slot_->packed ? store_packed(published, set) : !slot_->large && store_small(published, set)) return;
  Large& sets = enlarge(policy);
  part_->heap += published ? sets.published.store(set) : sets.unsent.store(set);
}

void KeyState::set_published(const Policy& policy, const IntervalSet& set) { this->set(policy, true, set); }

void KeyState::set_unsent(const Policy& policy, const IntervalSet& set) { this->set(policy, false, set); }

void KeyState::publish(const Policy& policy, const IntervalSet& births, Nanos now) {
  IntervalSet set = published();
  if (set.size() + births.size() > kIntervalCap) set.compact(policy, now);
  [[maybe_unused]] const bool merged = set.merge(policy, births);
  set_published(policy, set);
}

void KeyState::publish_unsent(const Policy& policy, Nanos now) {
  if (!slot_->large) {
    slot_->published = 1;
    return;
  }
  publish(policy, unsent(), now);
  part_->heap += block().unsent.clear();
}

void KeyState::set_tat(const Policy& policy, Nanos tat) {
  if (!slot_->large && small_tat(policy) == tat) return;
  enlarge(policy);
  slot_->time = tat.v;
}

// Notes the tokens as what made a small key; false if it can't.
bool KeyState::count_small(Counts which, Tokens tokens, std::uint32_t number) noexcept {
  if (slot_->packed || slot_->counts != kNoCounts || slot_->count == 0 || tokens.v != slot_->count) return false;
  slot_->counts = which;
  slot_->period = number;
  return true;
}

void KeyState::admit(const Policy& policy, Tokens hits, Nanos now) {
  const Birth birth{now, hits};
  if (!slot_->large && slot_->count == 0 && hits.v <= UINT32_MAX) {
    slot_->time = now.v;
    slot_->count = static_cast<std::uint32_t>(hits.v);
    slot_->published = 0;
    [[maybe_unused]] const bool counted = count_small(kOwn, hits, ArrivalRate::number(now, kOwnPeriod));
    assert(counted);
    return;
  }
  Large& sets = enlarge(policy);
  if (!sets.unsent.append(policy, birth)) {
    IntervalSet set = sets.unsent.load();
    if (set.size() == kIntervalCap) set.compact(policy, now);
    [[maybe_unused]] const bool inserted = set.insert(policy, birth);  // the TAT was within a bucket of now
    part_->heap += sets.unsent.store(set);
  }
  slot_->time = (std::max(Nanos{slot_->time}, now) + hits * policy.interval).v;
  sets.own_rate.count(hits, policy.capacity, now, kOwnPeriod);
}

void KeyState::count_remote(const Policy& policy, Tokens tokens, Nanos now) {
  if (!slot_->large && count_small(kRemote, tokens, ArrivalRate::number(now, kRemotePeriod))) return;
  enlarge(policy).remote_rate.count(tokens, policy.capacity, now, kRemotePeriod);
}

void KeyState::set_rates(const Policy& policy, const Rates& rates, Nanos now) {
  if (!slot_->large && rates.own.stale(now, kOwnPeriod) && rates.remote.stale(now, kRemotePeriod)) return;
  Large& sets = enlarge(policy);
  sets.own_rate = rates.own;
  sets.remote_rate = rates.remote;
}

void KeyState::rest(const Policy& policy, Nanos now) noexcept {
  const bool stale =
      own_rate(policy.capacity).stale(now, kOwnPeriod) && remote_rate(policy.capacity).stale(now, kRemotePeriod);
  if (!stale) return;
  slot_->counts = kNoCounts;
  if (!slot_->large) return;
  Large& sets = block();
  if (!sets.published.empty() && !sets.unsent.empty()) return;
  const bool published = !sets.published.empty();
  StoredSet& only = published ? sets.published : sets.unsent;
  const Nanos end = only.tat(policy);
  // All TATs that have passed say the same, even for births that were admitted a moment ago and are told late.
  const bool passed = std::max(end, Nanos{slot_->time}) <= now - kToldLate;
  const bool packed = only.intervals() > 1;
  if ((!packed && only.weight().v > UINT32_MAX) || (end.v != slot_->time && !passed)) return;
  const std::uint32_t gone = slot_->count;
  if (packed) {
    const PackedIntervals block = only.release();
    slot_->time = block.pointer();
    slot_->count = block.sizes();
  } else {
    slot_->time = only.oldest().v;
    slot_->count = static_cast<std::uint32_t>(only.weight().v);
  }
  slot_->published = published ? 1 : 0;
  slot_->packed = packed ? 1 : 0;
  slot_->large = 0;
  part_->give_back(gone);
}

// The table.

KeyState Keys::find_or_insert(LimiterSlot limiter, KeyHash key) {
  assert(key.v != 0);
  Segment& part = segments_[segment_of(key)];
  std::size_t at = place_of(part, limiter, key);
  assert(part.places.empty() || part.used < part.places.size() || part.places.size() <= kFullMost);
  if (at == part.places.size() || part.places[at].key.v == 0) {
    const std::size_t places = part.places.size();
    const std::size_t least = least_places(part.used + 1);
    if (least > places) {
      resize(part, std::max(least, places + places / 16));
      at = place_of(part, limiter, key);
    }
    part.places[at].key = key;
    part.places[at].limiter = limiter.v;
    if (limiter.v >= of_.size()) of_.resize(limiter.v + std::size_t{1});
    ++of_[limiter.v];
    ++part.used;
    ++size_;
  }
  return {part, part.places[at]};
}

void Keys::resize(Segment& part, std::size_t places) {
  decltype(part.places) before(places);
  part.places.swap(before);
  Slot* const to = part.places.data();
  for (const Slot& slot : before) {
    if (slot.key.v == 0) continue;
    // In the order of before, which is nearly that of their homes: each finds its place soon.
    std::size_t at = home(part, {static_cast<std::uint16_t>(slot.limiter)}, slot.key);
    while (to[at].key.v != 0) at = at + 1 == places ? 0 : at + 1;
    to[at] = slot;
  }
}

void Keys::fit(std::size_t segment) {
  Segment& part = segments_[segment];
  if (part.used * 2 < part.places.size()) resize(part, least_places(part.used));
  if (part.large * 2 >= part.blocks.size()) return;
  decltype(part.blocks) blocks;
  blocks.reserve(part.large);
  for (Slot& slot : part.places) {
    if (slot.key.v == 0 || slot.large == 0) continue;
    blocks.push_back(std::move(part.blocks[slot.count]));
    slot.count = static_cast<std::uint32_t>(blocks.size() - 1);
  }
  part.blocks = std::move(blocks);
  part.free = Segment::kNone;
}

void Keys::erase(LimiterSlot limiter, KeyHash key) noexcept {
  Segment& part = segments_[segment_of(key)];
  const std::size_t at = place_of(part, limiter, key);
  if (at < part.places.size() && part.places[at].key.v != 0) erase_at(part, at);
}

// Closes the gap: each slot after it, up to the next empty place, moves back if it may lie there.
void Keys::erase_at(Segment& part, std::size_t place) noexcept {
  const std::size_t places = part.places.size();
  if (part.places[place].large) part.give_back(part.places[place].count);
  if (part.places[place].packed) {
    const PackedIntervals block(part.places[place].time, part.places[place].count);
    part.heap -= static_cast<std::ptrdiff_t>(block.capacity());
    block.free();
  }
  --of_[part.places[place].limiter];
  part.places[place] = Slot{};
  --part.used;
  --size_;
  std::size_t gap = place;
  std::size_t at = place;
  for (std::size_t i = 1; i < places; ++i) {
    at = at + 1 == places ? 0 : at + 1;
    Slot& slot = part.places[at];
    if (slot.key.v == 0) return;
    const std::size_t wants = home(part, {static_cast<std::uint16_t>(slot.limiter)}, slot.key);
    // How far it lies from home, and how far it would.
    const std::size_t far = at >= wants ? at - wants : at + places - wants;
    const std::size_t hop = at >= gap ? at - gap : at + places - gap;
    if (hop > far) continue;
    part.places[gap] = std::exchange(slot, Slot{});
    gap = at;
  }
}

std::size_t Keys::held() const noexcept {
  std::size_t bytes = 0;
  for (const Segment& part : segments_) {
    bytes += PageAllocator<Slot>::held(part.places.capacity()) +
             PageAllocator<KeyState::Large>::held(part.blocks.capacity()) + static_cast<std::size_t>(part.heap);
  }
  return bytes;
}

std::size_t Keys::distance(std::size_t segment) const noexcept {
  const Segment& part = segments_[segment];
  const std::size_t places = part.places.size();
  std::size_t sum = 0;
  for (std::size_t at = 0; at < places; ++at) {
    const Slot& slot = part.places[at];
    if (slot.key.v == 0) continue;
    const std::size_t wants = home(part, {static_cast<std::uint16_t>(slot.limiter)}, slot.key);
    sum += at >= wants ? at - wants : at + places - wants;
  }
  return sum;
}

}  // namespace weir
