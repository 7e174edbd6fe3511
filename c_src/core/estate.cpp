// estate: see include/weir/estate.hpp.
#include "weir/estate.hpp"

#include <algorithm>
#include <array>
#include <cassert>

namespace weir {
namespace {

constexpr std::int64_t kEstateMark = 0x77656972;  // "weir", two seconds after the epoch
constexpr std::size_t kMarks = kIntervalCap - kEstateCap;

}  // namespace

IntervalSet estate_record(const Estate& estate) noexcept {
  assert(estate.births.size() <= kEstateCap);
  std::array<Interval, kIntervalCap> all;
  const std::array<std::uint64_t, kMarks> numbers{std::uint64_t{estate.origin.node.v} + 1, estate.origin.incarnation,
                                                  estate.position, estate.tell};
  for (std::size_t i = 0; i < kMarks; ++i) {
    all[i] = {{kEstateMark + static_cast<std::int64_t>(i)}, {static_cast<std::int64_t>(numbers[i])}};
  }
  std::copy(estate.births.begin(), estate.births.end(), all.begin() + kMarks);
  return IntervalSet::from({all.data(), kMarks + estate.births.size()});
}

bool is_estate(std::span<const Interval> births) noexcept {
  if (births.size() <= kMarks) return false;
  for (std::size_t i = 0; i < kMarks; ++i) {
    if (births[i].start.v != kEstateMark + static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

std::optional<Estate> estate_of(std::span<const Interval> births) noexcept {
  if (!is_estate(births) || births[0].count.v - 1 > std::int64_t{UINT32_MAX}) return std::nullopt;
  const auto number = [&](std::size_t i) { return static_cast<std::uint64_t>(births[i].count.v); };
  return Estate{{{static_cast<std::uint32_t>(number(0) - 1)}, number(1)},
                number(2),
                number(3),
                IntervalSet::from(births.subspan(kMarks))};
}

// Estates.

Estates::Copies::iterator Estates::at(const Place& place) {
  const auto [from, to] = copies_.equal_range({place.key, place.limiter});
  const auto found = std::find_if(from, to, [&](const auto& entry) { return entry.second.first == place.origin; });
  return found == to ? copies_.end() : found;
}

Estates::Copy* Estates::find(const Place& place) noexcept {
  const auto found = at(place);
  return found == copies_.end() ? nullptr : &found->second.second;
}

std::optional<Estates::Place> Estates::find(const OriginId& origin, std::uint64_t first) const {
  const auto its = first_.find(origin);
  if (its == first_.end()) return std::nullopt;
  const auto found = its->second.find(first);
  if (found == its->second.end()) return std::nullopt;
  return Place{found->second.key, found->second.limiter, origin};
}

bool Estates::put(const Place& place, Copy&& copy) {
  auto found = at(place);
  if (found == copies_.end() && copies_.size() >= most_) return false;
  const Name name{place.key, place.limiter};
  if (found == copies_.end()) {
    found = copies_.emplace(name, std::pair{place.origin, Copy{}});
  } else {
    forget_first(place.origin, found->second.second);
    heap_ -= found->second.second.births.heap_bytes();
  }
  if (copy.first != 0) first_[place.origin].insert_or_assign(copy.first, name);
  heap_ += copy.births.heap_bytes();
  found->second.second = std::move(copy);
  return true;
}

void Estates::erase(const Place& place) {
  if (const auto found = at(place); found != copies_.end()) erase(found);
}

void Estates::set_births(const Place& place, const IntervalSet& births) {
  const auto found = at(place);
  if (births.empty()) {
    erase(found);
    return;
  }
  StoredSet& set = found->second.second.births;
  heap_ -= set.heap_bytes();
  set.store(births);
  heap_ += set.heap_bytes();
}

Estates::Copies::iterator Estates::erase(Copies::iterator at) {
  const auto& [origin, copy] = at->second;
  forget_first(origin, copy);
  heap_ -= copy.births.heap_bytes();
  return copies_.erase(at);
}

void Estates::forget_first(const OriginId& origin, const Copy& copy) {
  const auto its = copy.first == 0 ? first_.end() : first_.find(origin);
  if (its == first_.end()) return;
  its->second.erase(copy.first);
  if (its->second.empty()) first_.erase(its);
}

std::size_t Estates::held() const noexcept {
  std::size_t sum =
      copies_.bucket_count() * sizeof(void*) + copies_.size() * (sizeof(void*) + sizeof(Copies::value_type)) + heap_;
  for (const auto& [origin, names] : first_) {
    sum += 4 * sizeof(void*) + sizeof(decltype(first_)::value_type) + names.bucket_count() * sizeof(void*) +
           names.size() * (sizeof(void*) + sizeof(std::uint64_t) + sizeof(Name));
  }
  return sum;
}

// Tells.

Tells::Told* Tells::find(const Key& key) noexcept {
  const auto at = told_.find(key);
  return at == told_.end() ? nullptr : &at->second;
}

bool Tells::make_due(const Key& key) {
  auto at = told_.find(key);
  if (at == told_.end()) {
    if (told_.size() >= most_) return false;
    at = told_.emplace(key, Told{}).first;
  }
  if (at->second.due) return true;
  if (due_.size() >= 2 * most_) return false;  // of keys that come and go
  at->second.due = true;
  due_.push_back(key);
  return true;
}

std::vector<Tells::Key> Tells::take_due(std::size_t most) {
  std::vector<Key> keys;
  for (; due() && keys.size() < most; ++next_due_) {
    Told* const told = find(due_[next_due_]);
    if (told == nullptr || !std::exchange(told->due, false)) continue;
    keys.push_back(due_[next_due_]);
  }
  if (!due()) {
    due_ = {};
    next_due_ = 0;
  } else if (next_due_ * 2 >= due_.size()) {
    due_.erase(due_.begin(), due_.begin() + static_cast<std::ptrdiff_t>(next_due_));
    next_due_ = 0;
  }
  return keys;
}

void Tells::forget(const Key& key) { told_.erase(key); }

void Tells::again() {
  for (auto& [key, told] : told_) {
    told.weight = {0};
    make_due(key);
  }
}

void Tells::again(const Key& key) {
  if (Told* const told = find(key)) told->weight = {0};
}

void Tells::again(std::span<const std::uint64_t> firsts) {
  for (auto& [key, told] : told_) {
    if (!std::binary_search(firsts.begin(), firsts.end(), told.first)) continue;
    told.weight = {0};
    make_due(key);
  }
}

void Tells::forget_limiter(LimiterId limiter) {
  std::erase_if(told_, [&](const auto& entry) { return entry.first.first == limiter.v; });
}

std::size_t Tells::held() const noexcept {
  return told_.bucket_count() * sizeof(void*) + told_.size() * (sizeof(void*) + sizeof(decltype(told_)::value_type)) +
         due_.capacity() * sizeof(Key);
}

}  // namespace weir
