// keys: see include/weir/keys.hpp.
#include "weir/keys.hpp"

#include <algorithm>
#include <cstring>

namespace weir {

std::size_t StoredSet::capacity(std::size_t size) noexcept { return size + size % 2; }

std::ptrdiff_t StoredSet::clear() noexcept {
  const auto before = static_cast<std::ptrdiff_t>(heap_bytes());
  if (count_ < 0) delete[] block();
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
  if (count_ >= 0 || capacity(size()) != capacity(set.size())) {
    auto* const room = new Interval[capacity(set.size())];
    clear();
    start_ = reinterpret_cast<std::intptr_t>(room);
  }
  std::copy(set.begin(), set.end(), block());
  count_ = -static_cast<std::int64_t>(set.size());
  return static_cast<std::ptrdiff_t>(heap_bytes()) - before;
}

Tokens StoredSet::weight() const noexcept {
  if (count_ >= 0) return {count_};
  Tokens sum;
  for (std::size_t i = 0; i < size(); ++i) sum = sum + block()[i].count;
  return sum;
}

void ArrivalRate::count(Tokens tokens, Tokens capacity, Nanos now, Nanos period) noexcept {
  const std::uint32_t at = number(now, period);
  if (at != period_) {
    previous_ = at == (period_ + 1u) % kUnits ? current_ : 0;
    current_ = 0;
    period_ = at;
  }
  const std::int64_t unit = capacity.v / kUnits + 1;
  const std::int64_t units = std::min(tokens.v, capacity.v) / unit;
  const std::int64_t rest = std::min(tokens.v, capacity.v) % unit + now.v % unit >= unit;
  current_ = std::min(kMost, current_ + static_cast<std::uint32_t>(units + rest));
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

IntervalSet KeyState::all(const Policy& policy) const noexcept {
  IntervalSet set = published.load();
  if (unsent.empty()) return set;
  [[maybe_unused]] const bool merged = set.merge(policy, unsent.load());
  return set;
}

// The lower bits of the hash, for the upper ones have chosen the segment; the limiter is mixed in, as the same key may
// be asked under several.
std::size_t Keys::home(const Segment& part, LimiterId limiter, KeyHash key) noexcept {
  const auto low = static_cast<std::uint32_t>((key.v ^ (limiter.v * 0x9e3779b97f4a7c15u)) & UINT32_MAX);
  return (std::uint64_t{low} * part.places.size()) >> 32;
}

// Where the key is, or the empty place where it would be; the number of places if there is neither.
std::size_t Keys::place_of(const Segment& part, LimiterId limiter, KeyHash key) noexcept {
  const std::size_t places = part.places.size();
  if (places == 0) return 0;
  std::size_t at = home(part, limiter, key);
  for (std::size_t i = 0; i < places; ++i) {
    const KeyState& state = part.places[at];
    if (state.key.v == 0 || (state.key == key && state.limiter == limiter)) return at;
    at = at + 1 == places ? 0 : at + 1;
  }
  return places;
}

KeyState* Keys::find(LimiterId limiter, KeyHash key) noexcept {
  Segment& part = segments_[segment_of(key)];
  const std::size_t at = place_of(part, limiter, key);
  return at < part.places.size() && part.places[at].key.v != 0 ? &part.places[at] : nullptr;
}

KeyState& Keys::find_or_insert(LimiterId limiter, KeyHash key) {
  assert(key.v != 0);
  if (KeyState* const found = find(limiter, key)) return *found;
  Segment& part = segments_[segment_of(key)];
  // Small tables may be full; large ones keep an eighth free, so that a search ends soon.
  if (part.used + part.places.size() / 8 >= part.places.size()) grow(part);
  KeyState& state = part.places[place_of(part, limiter, key)];
  state.key = key;
  state.limiter = limiter;
  ++part.used;
  ++size_;
  return state;
}

void Keys::grow(Segment& part) {
  Segment larger;
  larger.places.resize(part.places.size() + std::max<std::size_t>(1, part.places.size() / 8));
  for (KeyState& state : part.places) {
    if (state.key.v != 0) larger.places[place_of(larger, state.limiter, state.key)] = std::move(state);
  }
  part.places = std::move(larger.places);
}

void Keys::erase(LimiterId limiter, KeyHash key) noexcept {
  Segment& part = segments_[segment_of(key)];
  const std::size_t at = place_of(part, limiter, key);
  if (at < part.places.size() && part.places[at].key.v != 0) erase_at(part, at);
}

// Closes the gap: each state after it, up to the next empty place, moves back if it may lie there.
void Keys::erase_at(Segment& part, std::size_t place) noexcept {
  const std::size_t places = part.places.size();
  const KeyState& gone = part.places[place];
  heap_ -= static_cast<std::ptrdiff_t>(gone.published.heap_bytes() + gone.unsent.heap_bytes());
  part.places[place] = KeyState{};
  --part.used;
  --size_;
  std::size_t gap = place;
  std::size_t at = place;
  for (std::size_t i = 1; i < places; ++i) {
    at = at + 1 == places ? 0 : at + 1;
    KeyState& state = part.places[at];
    if (state.key.v == 0) return;
    const std::size_t wants = home(part, state.limiter, state.key);
    // How far it lies from home, and how far it would.
    const std::size_t far = at >= wants ? at - wants : at + places - wants;
    const std::size_t hop = at >= gap ? at - gap : at + places - gap;
    if (hop > far) continue;
    part.places[gap] = std::move(state);
    state = KeyState{};
    gap = at;
  }
}

std::size_t Keys::held() const noexcept {
  std::size_t bytes = static_cast<std::size_t>(heap_);
  for (const Segment& part : segments_) bytes += part.places.capacity() * sizeof(KeyState);
  return bytes;
}

}  // namespace weir
