// history: see include/weir/history.hpp.
#include "weir/history.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace weir {
namespace {

constexpr std::int64_t kTenth = 100'000'000;

std::uint16_t tenths(Nanos time) noexcept { return static_cast<std::uint16_t>(time.v / kTenth); }

}  // namespace

void Journal::append(Nanos when, std::span<const std::byte> bytes) {
  assert(bytes.size() <= UINT16_MAX);
  const std::uint16_t time = tenths(when);
  const auto length = static_cast<std::uint16_t>(bytes.size());
  const std::size_t at = bytes_.size();
  const std::size_t needed = at + kHeader + bytes.size();
  // By an eighth: a log is as long as traffic and delay make it, and its slack is memory that nobody uses.
  if (needed > bytes_.capacity()) bytes_.reserve(needed + needed / 8);
  bytes_.resize(needed);
  std::memcpy(bytes_.data() + at, &time, sizeof(time));
  std::memcpy(bytes_.data() + at + sizeof(time), &length, sizeof(length));
  if (!bytes.empty()) std::memcpy(bytes_.data() + at + kHeader, bytes.data(), bytes.size());
}

Journal::Entry Journal::at(std::size_t place) const noexcept {
  Entry entry;
  std::uint16_t length = 0;
  std::memcpy(&entry.when, bytes_.data() + place, sizeof(entry.when));
  std::memcpy(&length, bytes_.data() + place + sizeof(entry.when), sizeof(length));
  entry.bytes = std::span(bytes_).subspan(place + kHeader, length);
  return entry;
}

void Journal::pop_front() {
  head_ += kHeader + front().bytes.size();
  if (head_ * 4 < bytes_.size()) return;
  std::vector<std::byte> rest(bytes_.begin() + static_cast<std::ptrdiff_t>(head_), bytes_.end());
  bytes_ = std::move(rest);
  head_ = 0;
}

bool Journal::older(const Entry& entry, Nanos now, Nanos age) noexcept {
  return static_cast<std::uint16_t>(tenths(now) - entry.when) > age.v / kTenth;
}

std::size_t Piece::held() const noexcept {
  // A node of the map: three pointers, a colour, the pair.
  std::size_t bytes = entries.size() * (4 * sizeof(void*) + sizeof(decltype(entries)::value_type));
  for (const auto& [key, entry] : entries) bytes += entry.second.heap_bytes();
  return bytes + sizeof(Piece);
}

void History::append(Nanos now, std::span<const std::byte> record, bool keep, const Policy& policy,
                     const Subject& subject, const IntervalSet& births) {
  if (keep) {
    log_.append(now, record);
    for (; log_.bytes() > limits_.log_bytes; ++dropped_) log_.pop_front();
  }
  if (open_) fold(policy, subject, births);
}

void History::fold(const Policy& policy, const Subject& subject, const IntervalSet& births) {
  Piece& piece = pieces_.back();
  piece.to = head_;
  if (piece.lost) return;
  if (const auto reset = reset_time(subject.key, births.intervals())) {
    // Version 0: no births are of that. It comes before them, and the later one holds.
    auto& [name, mark] = piece.entries[{subject.limiter.v, subject.key.v, 0}];
    name = subject;
    if (mark.empty() || *reset_time(subject.key, mark.load().intervals()) < *reset) mark.store(births);
    return;
  }
  auto& [about, set] = piece.entries[{subject.limiter.v, subject.key.v, subject.version}];
  about = subject;
  IntervalSet sum = set.load();
  if (!sum.merge(policy, births)) piece.lost = true;
  set.store(sum);
  if (piece.entries.size() > limits_.piece_keys) piece.lost = true;
  if (piece.lost) {
    piece.entries.clear();
    ++dropped_;
  }
}

void History::pin(std::uint64_t acked) {
  log_.for_each([&](const Journal::Entry& entry) {
    const std::uint64_t seq = record_name(entry.bytes, self_).seq;
    if (seq <= acked) return;
    if (pinned_.emplace(seq, Bytes(entry.bytes.begin(), entry.bytes.end())).second) pinned_bytes_ += entry.bytes.size();
  });
  for (; pinned_bytes_ > limits_.pinned_bytes; ++dropped_) {
    pinned_bytes_ -= pinned_.begin()->second.size();
    pinned_.erase(pinned_.begin());
  }
}

void History::begin_piece() {
  open_ = true;
  if (!pieces_.empty() && pieces_.back().from == head_) return;  // nothing was emitted since: it can serve both
  Piece piece;
  piece.from = head_;
  piece.to = head_;
  pieces_.push_back(std::move(piece));
  for (; pieces_.size() > limits_.pieces; ++dropped_) pieces_.pop_front();
}

void History::forget(std::uint64_t all, std::uint64_t away) {
  while (!log_.empty() && record_name(log_.front().bytes, self_).seq <= all) log_.pop_front();
  while (!pinned_.empty() && pinned_.begin()->first <= away) {
    pinned_bytes_ -= pinned_.begin()->second.size();
    pinned_.erase(pinned_.begin());
  }
  while (!pieces_.empty() && pieces_.front().to <= away && !(open_ && pieces_.size() == 1)) pieces_.pop_front();
}

const Piece* History::piece_from(std::uint64_t upto) const noexcept {
  for (const Piece& piece : pieces_) {
    if (piece.from == upto && piece.to > upto && !piece.lost) return &piece;
  }
  return nullptr;
}

void History::for_each_record(const std::function<void(std::uint64_t, std::span<const std::byte>)>& visit) const {
  auto pin = pinned_.begin();
  log_.for_each([&](const Journal::Entry& entry) {
    const std::uint64_t seq = record_name(entry.bytes, self_).seq;
    for (; pin != pinned_.end() && pin->first < seq; ++pin) visit(pin->first, pin->second);
    if (pin != pinned_.end() && pin->first == seq) ++pin;
    visit(seq, entry.bytes);
  });
  for (; pin != pinned_.end(); ++pin) visit(pin->first, pin->second);
}

std::size_t History::held() const noexcept {
  std::size_t bytes = log_.held();
  for (const auto& pin : pinned_) bytes += pin.second.capacity() + 4 * sizeof(void*) + sizeof(pin);
  for (const Piece& piece : pieces_) bytes += piece.held();
  return bytes;
}

}  // namespace weir
