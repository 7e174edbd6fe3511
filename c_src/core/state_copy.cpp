// state_copy: see include/weir/state_copy.hpp.
#include "weir/state_copy.hpp"

#include <algorithm>
#include <bit>

namespace weir {

StateCopy StateCopy::to_join(Nanos now) {
  StateCopy copy({}, {});
  copy.joins_ = copy.seeks_ = true;
  copy.deadline_ = now;
  return copy;
}

// Asking.

StateCopy::Attempt StateCopy::attempt(Nanos now, Nanos patience, std::span<const Donor> donors) {
  if (attempts_ >= kAttempts) return Attempt::give_up;
  deadline_ = now + Nanos{patience.v << std::min(attempts_, 3u)};
  if (seeks_ && attempts_ == 0) {
    ++attempts_;
    return Attempt::seek;
  }
  seeks_ = false;
  std::vector<Donor> candidates(donors.begin(), donors.end());
  const Donor* const chosen = choose(candidates);
  ++attempts_;
  if (chosen == nullptr) return Attempt::nobody;
  set_donor(chosen->node);
  asked_ = 0;
  return Attempt::ask;
}

const StateCopy::Donor* StateCopy::choose(std::vector<Donor>& donors) const {
  std::erase_if(
      donors, [&](const Donor& donor) { return std::find(unfit_.begin(), unfit_.end(), donor.node) != unfit_.end(); });
  const auto costly = [](const Donor& donor) { return donor.costly; };
  if (!std::all_of(donors.begin(), donors.end(), costly)) std::erase_if(donors, costly);
  if (donors.empty()) return nullptr;
  const auto distance = [&](const Donor& donor) { return donor.node == named_ ? Nanos{-1} : donor.round_trip; };
  std::stable_sort(donors.begin(), donors.end(),
                   [&](const Donor& x, const Donor& y) { return distance(x) < distance(y); });
  return &donors[attempts_ % donors.size()];
}

// Parts of several donors don't fit together; segments that came whole do.
void StateCopy::set_donor(NodeId node) {
  if (node == donor_) return;
  donor_ = node;
  std::erase_if(parts_, [&](const auto& entry) { return (wanted_ >> entry.first & 1) != 0; });
  keys_ = 0;
  for (const auto& [segment, parts] : parts_) keys_ += keys_of(parts);
}

std::uint64_t StateCopy::more() {
  const bool first = wanted_ == ~std::uint64_t{0};
  const std::size_t most =
      first ? 1 : std::clamp<std::size_t>(kAskKeys / std::max<std::size_t>(1, largest_), 1, Keys::kSegments);
  auto waiting = static_cast<std::size_t>(std::popcount(asked_ & wanted_));
  if (waiting > most / 2) return 0;
  std::uint64_t more = 0;
  for (std::uint64_t left = wanted_ & ~asked_; left != 0 && waiting < most; left &= left - 1, ++waiting) {
    more |= left & -left;
  }
  asked_ |= more;
  return more;
}

bool StateCopy::found(NodeId node) noexcept {
  if (!std::exchange(seeks_, false)) return false;
  named_ = node;
  attempts_ = 0;
  return true;
}

void StateCopy::refuse_donor(Nanos now) {
  unfit_.push_back(donor_);
  again(now);
}

void StateCopy::again(Nanos at) {
  wanted_ = ~std::uint64_t{0};
  asked_ = 0;
  placed_ = 0;
  largest_ = 0;
  taken_ = false;
  era_.reset();
  parts_.clear();
  floors_.clear();
  keys_ = 0;
  attempts_ = 0;
  deadline_ = at;
}

// Coming.

bool StateCopy::take(const Frame& frame, const CopyItem& item, Nanos now, Nanos patience, std::size_t most,
                     const std::function<bool(const OriginId&)>& over) {
  std::vector<Part>& parts = parts_[item.segment];
  if (item.part == 0) {
    keys_ -= keys_of(parts);
    parts.clear();
  }
  const bool fits = item.part == parts.size() && (parts.empty() || parts.front().item.answer == item.answer);
  if (!fits || keys_ + item.entries.size() > most) return false;
  Part part{item, {}};
  for (EntryItem& entry : part.item.entries) {
    const auto births = frame.set(entry.set);
    entry.set.first = static_cast<std::uint32_t>(part.intervals.size());
    part.intervals.insert(part.intervals.end(), births.begin(), births.end());
  }
  keys_ += item.entries.size();
  parts.push_back(std::move(part));
  // As long as there is progress nobody is asked again.
  attempts_ = 0;
  deadline_ = now + patience;
  if (item.last) finish_segment(parts, now, over);
  return true;
}

void StateCopy::finish_segment(const std::vector<Part>& parts, Nanos now,
                               const std::function<bool(const OriginId&)>& over) {
  const CopyItem& item = parts.front().item;
  if (era_.value_or(item.answer >> 32) != item.answer >> 32) return again(now);
  era_ = item.answer >> 32;
  wanted_ &= ~(std::uint64_t{1} << item.segment);
  largest_ = std::max(largest_, keys_of(parts));
  Floor floor{item.vector, item.beyond};
  std::erase_if(floor.upto, [&](const VectorEntry& entry) { return entry.upto == kForgotten && !over(entry.origin); });
  floors_.set(item.segment, std::move(floor));
}

bool StateCopy::brings_missed() const {
  return missed_.upto == 0 || donor_ == named_ || floors_.any_covers(missed_.origin, missed_.upto);
}

// Putting in place.

std::size_t StateCopy::keys_of(const std::vector<Part>& parts) noexcept {
  std::size_t keys = 0;
  for (const Part& part : parts) keys += part.item.entries.size();
  return keys;
}

std::size_t StateCopy::keys_of(std::uint8_t segment) const {
  const auto at = parts_.find(segment);
  return at == parts_.end() ? 0 : keys_of(at->second);
}

StateCopy::Segment StateCopy::place(std::uint8_t segment) {
  const auto parts = parts_.extract(segment);
  Segment placed{std::move(parts.mapped()), *floors_.find(segment)};
  placed_ |= std::uint64_t{1} << segment;
  keys_ -= keys_of(placed.parts);
  true_for_.set(segment, placed.floor);
  return placed;
}

std::size_t StateCopy::held() const noexcept {
  std::size_t bytes = 0;
  for (const auto& [segment, parts] : parts_) {
    for (const Part& part : parts) {
      bytes += sizeof(part) + part.item.entries.capacity() * sizeof(EntryItem) +
               part.intervals.capacity() * sizeof(Interval);
    }
  }
  return bytes;
}

}  // namespace weir
