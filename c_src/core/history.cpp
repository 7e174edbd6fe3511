// history: see include/weir/history.hpp.
#include "weir/history.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace weir {
namespace {

constexpr std::int64_t kTenth = 100'000'000;
// A piece of more bytes is continued by another; with one more entry it still fits into a frame.
constexpr std::size_t kPieceBytes = 900'000;

// A reset in a chunk.
constexpr std::size_t kMarkBytes = 5 + 5 + 8 + 1 + 8 + 1;
// What an entry of a chunk takes at most: two varints of 32 bits, the key, a count, the first interval, and two varints
// for each other one.
std::size_t encoded_bytes(const StoredSet& set) noexcept { return 5 + 5 + 8 + 1 + 8 + 9 + 18 * (set.intervals() - 1); }

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
  // In place while it is as full as before: under steady traffic a megabyte would be allocated and filled again and
  // again.
  const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(head_);
  if (bytes_.capacity() <= bytes() + bytes() / 2) {
    bytes_.erase(bytes_.begin(), first);
  } else {
    bytes_ = std::vector<std::byte>(first, bytes_.end());
  }
  head_ = 0;
}

bool Journal::older(const Entry& entry, Nanos now, Nanos age) noexcept {
  return static_cast<std::uint16_t>(tenths(now) - entry.when) > age.v / kTenth;
}

std::size_t Piece::held() const noexcept {
  // A node of the map: three pointers, a colour, the pair.
  std::size_t sum = entries.size() * (4 * sizeof(void*) + sizeof(decltype(entries)::value_type));
  sum += resets.size() * (4 * sizeof(void*) + sizeof(decltype(resets)::value_type));
  sum += estates.size() * (4 * sizeof(void*) + sizeof(decltype(estates)::value_type));
  for (const auto& [subject, set] : entries) sum += set.heap_bytes();
  for (const auto& [name, estate] : estates) sum += estate.heap_bytes();
  return sum + sizeof(Piece);
}

void History::append(Nanos now, std::span<const std::byte> record, bool keep, const Policy& policy,
                     const Subject& subject, const IntervalSet& births) {
  if (keep) {
    log_.append(now, record);
    for (; log_.bytes() > limits_.log_bytes; log_.pop_front()) {
      if (record_name(log_.front().bytes, self_).seq > all_) ++dropped_;
    }
  }
  if (open_) fold(policy, subject, births);
}

// Of two resets the later one holds.
void History::put_reset(Piece& piece, const Subject& subject, const Interval& mark) {
  const auto [at, fresh] = piece.resets.try_emplace(subject, mark);
  if (fresh) {
    piece.bytes += kMarkBytes;
    ++keys_;
  } else if (last_of(subject.key, {&at->second, 1}) < last_of(subject.key, {&mark, 1})) {
    at->second = mark;
  }
}

// Of two the later tell holds.
void History::put_estate(Piece& piece, const Subject& subject, const IntervalSet& record) {
  const std::optional<Estate> estate = estate_of(record.intervals());
  StoredSet& set = piece.estates[{subject, estate->origin}];
  if (set.empty()) {
    ++keys_;
  } else if (estate_of(set.load().intervals())->tell >= estate->tell) {
    return;
  } else {
    piece.bytes -= encoded_bytes(set);
  }
  set.store(record);
  piece.bytes += encoded_bytes(set);
}

// False if there is no room for one key more, or the births don't fit into time.
bool History::put(Piece& piece, const Policy& policy, const Subject& subject, const IntervalSet& births) {
  if (reset_time(subject.key, births.intervals())) {
    if (keys_ >= limits_.piece_keys) return false;
    put_reset(piece, subject, *births.begin());
    return true;
  }
  if (is_estate(births.intervals())) {
    if (keys_ >= limits_.piece_keys) return false;
    put_estate(piece, subject, births);
    return true;
  }
  const auto at = piece.entries.find(subject);
  const bool fresh = at == piece.entries.end();
  if (fresh && keys_ >= limits_.piece_keys) return false;
  IntervalSet sum = fresh ? IntervalSet{} : at->second.load();
  if (!sum.merge(policy, births)) return false;
  StoredSet& set = fresh ? piece.entries[subject] : at->second;
  keys_ += fresh ? 1 : 0;
  piece.bytes -= fresh ? 0 : encoded_bytes(set);
  set.store(sum);
  piece.bytes += encoded_bytes(set);
  return true;
}

// The births of record head().
void History::fold(const Policy& policy, const Subject& subject, const IntervalSet& births) {
  Piece* piece = &pieces_.back();
  if (piece->lost ? keys_ < limits_.piece_keys : piece->bytes > kPieceBytes) {
    piece = &add_piece(head_ - 1);
    piece->continues = true;
  }
  if (piece->lost || !put(*piece, policy, subject, births)) {
    ++dropped_;
    if (!piece->lost && piece->to > piece->from) piece = &add_piece(head_ - 1);
    piece->lost = true;
  }
  piece->to = head_;
}

Piece& History::add_piece(std::uint64_t from) {
  Piece piece;
  piece.from = from;
  piece.to = from;
  pieces_.push_back(std::move(piece));
  for (; pieces_.size() > std::max<std::size_t>(1, limits_.pieces); ++dropped_) drop_first();
  return pieces_.back();
}

void History::drop_first() {
  keys_ -= pieces_.front().size();
  pieces_.pop_front();
}

void History::tidy(const std::function<const Policy*(const Subject&)>& policy_of, Nanos now) {
  if (pieces_.empty()) return;
  next_tidied_ = next_tidied_ + 1 < pieces_.size() ? next_tidied_ + 1 : 0;
  Piece& piece = pieces_[next_tidied_];
  const auto is_over = [&](const Subject& subject, const auto& end) {
    const Policy* const policy = policy_of(subject);
    return policy != nullptr && end(*policy) < now - IntervalSet::horizon(*policy);
  };
  keys_ -= std::erase_if(piece.entries, [&](const auto& entry) {
    const bool over = is_over(entry.first, [&](const Policy& policy) { return entry.second.tat(policy); });
    if (over) piece.bytes -= encoded_bytes(entry.second);
    return over;
  });
  const std::size_t marks = std::erase_if(piece.resets, [&](const auto& entry) {
    return is_over(entry.first, [&](const Policy&) { return last_of(entry.first.key, {&entry.second, 1}); });
  });
  keys_ -= marks;
  piece.bytes -= marks * kMarkBytes;
  keys_ -= std::erase_if(piece.estates, [&](const auto& entry) {
    const StoredSet& set = entry.second;
    const bool over = is_over(entry.first.first, [&](const Policy& policy) { return set.tat(policy); });
    if (over) piece.bytes -= encoded_bytes(set);
    return over;
  });
  if (next_tidied_ == 0 || !piece.continues || (open_ && &piece == &pieces_.back())) return;
  if (!unite(pieces_[next_tidied_ - 1], piece, policy_of)) return;
  pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(next_tidied_));
  --next_tidied_;
}

// Whether `next` went into the piece before it. (No peer stands between them: nobody was given the first.)
bool History::unite(Piece& piece, Piece& next, const std::function<const Policy*(const Subject&)>& policy_of) {
  if (piece.lost || next.lost || piece.supplied || piece.bytes + next.bytes > kPieceBytes) return false;
  const auto in_both = [&](const auto& entry) { return piece.entries.contains(entry.first); };
  const auto unfit = [&](const auto& entry) {
    if (!in_both(entry)) return false;
    const Policy* const policy = policy_of(entry.first);
    if (policy == nullptr) return true;
    IntervalSet sum = piece.entries.find(entry.first)->second.load();
    return !sum.merge(*policy, entry.second.load());
  };
  if (std::any_of(next.entries.begin(), next.entries.end(), unfit)) return false;
  keys_ -= next.size();
  for (const auto& [subject, mark] : next.resets) put_reset(piece, subject, mark);
  for (const auto& [name, estate] : next.estates) put_estate(piece, name.first, estate.load());
  for (auto& [subject, set] : next.entries) {
    if (StoredSet& sum = piece.entries[subject]; sum.empty()) {
      sum = std::move(set);
      piece.bytes += encoded_bytes(sum);
      ++keys_;
    } else {
      piece.bytes -= encoded_bytes(sum);
      IntervalSet all = sum.load();
      [[maybe_unused]] const bool merged = all.merge(*policy_of(subject), set.load());
      sum.store(all);
      piece.bytes += encoded_bytes(sum);
    }
  }
  piece.to = next.to;
  return true;
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
  if (!pieces_.empty() && pieces_.back().from == head_) {
    pieces_.back().continues = false;  // nothing was emitted since: it can serve both
    return;
  }
  add_piece(head_);
}

void History::forget(std::uint64_t all, std::uint64_t away, std::uint64_t log) {
  all_ = all;
  while (!log_.empty() && record_name(log_.front().bytes, self_).seq <= log) log_.pop_front();
  while (!pinned_.empty() && pinned_.begin()->first <= away) {
    pinned_bytes_ -= pinned_.begin()->second.size();
    pinned_.erase(pinned_.begin());
  }
  while (!pieces_.empty() && pieces_.front().to <= away && !(open_ && pieces_.size() == 1)) drop_first();
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
