// ledger: see include/weir/ledger.hpp.
#include "weir/ledger.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <variant>

#include "weir/siphash.hpp"

namespace weir {

// Runs.

bool Ledger::forgotten(const OriginId& run) const noexcept {
  const auto last = forgotten_.find(run.node.v);
  return last != forgotten_.end() && run.incarnation <= last->second;
}

std::size_t Ledger::runs(NodeId node) const noexcept {
  return static_cast<std::size_t>(
      std::count_if(origins_.begin(), origins_.end(), [&](const Origin& origin) { return origin.id.node == node; }));
}

Origin& Ledger::run_of(const OriginId& run, bool member, std::uint64_t heard, Nanos now) {
  origins_.add(run);
  for (auto at = origins_.begin(); at != origins_.end(); ++at) {
    const auto next = std::next(at);
    const bool later = next != origins_.end() && next->id.node == at->id.node;
    const bool over = !member || (heard != 0 ? at->id.incarnation < heard : later);
    if (at->id.node != run.node || !over) continue;
    if (at->dead_since == kNever) at->ask_anew();  // others are asked for what is missing now
    at->dead_since = std::min(at->dead_since, now);
  }
  return *origins_.find(run);
}

void Ledger::make_room_for(const OriginId& run) {
  if (origins_.find(run) != nullptr || runs(run.node) < kRunsMax) return;
  const auto oldest =
      std::find_if(origins_.begin(), origins_.end(), [&](const Origin& origin) { return origin.id.node == run.node; });
  oldest->id.incarnation < run.incarnation ? forget_run(oldest->id) : origins_.erase(OriginId(oldest->id));
}

void Ledger::refuse_upto(const OriginId& run) {
  auto& upto = forgotten_[run.node.v];
  upto = std::max(upto, run.incarnation);
}

void Ledger::forget_run(const OriginId run) {
  refuse_upto(run);
  origins_.erase(run);
}

void Ledger::forget_upto(const OriginId& run) {
  refuse_upto(run);
  origins_.forget(run);
}

void Ledger::forget_over(Nanos now) {
  std::vector<OriginId> over;
  for (const Origin& origin : origins_) {
    if (origin.dead_since != kNever && now - origin.dead_since > kKeepDead) over.push_back(origin.id);
  }
  for (const OriginId& run : over) forget_run(run);
  floors_.drop(origins_, self());
}

bool Ledger::any_over_lately(Nanos now) const noexcept {
  return std::any_of(origins_.begin(), origins_.end(), [&](const Origin& origin) {
    return origin.dead_since != kNever && now - origin.dead_since < kDeadInDigests;
  });
}

// What it says.

std::vector<VectorEntry> Ledger::vector() const {
  std::vector<VectorEntry> entries;
  entries.reserve(origins_.size() + 1);
  for (const Origin& origin : origins_) entries.push_back({origin.id, origin.upto});
  entries.insert(std::lower_bound(entries.begin(), entries.end(), self(),
                                  [](const VectorEntry& entry, const OriginId& id) { return entry.origin < id; }),
                 {self(), history_.head()});
  return entries;
}

std::vector<NackItem> Ledger::beyond() const {
  std::vector<NackItem> late;
  for (const Origin& origin : origins_) {
    if (origin.beyond.empty()) continue;
    const auto count = static_cast<std::ptrdiff_t>(std::min(origin.beyond.size(), kRangesMax));
    late.push_back({origin.id, {origin.beyond.begin(), origin.beyond.begin() + count}});
  }
  return late;
}

DigestItem Ledger::digest(Nanos now) const {
  std::vector<std::uint8_t> bytes;
  bytes.reserve((origins_.size() + 1) * 24);
  const auto add = [&](std::uint64_t value) {
    for (unsigned i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  for (const VectorEntry& entry : vector()) {
    const auto& id = entry.origin;
    const Origin* const origin = origins_.find(id);
    const bool nothing = entry.upto == 0 && (origin == nullptr || origin->beyond.empty());
    if (nothing || (origin != nullptr && origin->dead_since < now - kDeadInDigests)) continue;
    add(id.node.v);
    add(id.incarnation);
    add(entry.upto);
    if (origin == nullptr) continue;
    for (const Range& range : origin->beyond) {
      add(range.first);
      add(range.last);
    }
  }
  // Two keys make 16 bytes of it; they are no secret.
  return {siphash13(SipKey{1, 2}, bytes, 0).v, siphash13(SipKey{3, 4}, bytes, 0).v};
}

Floor Ledger::floor_of(std::uint8_t segment) const {
  Floor floor{vector(), beyond()};
  for (const auto& [node, incarnation] : forgotten_) floor.upto.push_back({{{node}, incarnation}, kForgotten});
  const Floor* const copied = floors_.find(segment);
  return copied == nullptr ? floor : floor.joined(*copied);
}

std::vector<Range> Ledger::lacks(const VectorEntry& has, const VectorItem& vector, std::uint64_t last) {
  Origin there;
  there.advance(has.upto);
  for (const NackItem& late : vector.beyond) {
    if (late.origin != has.origin) continue;
    for (const Range& range : late.ranges) there.mark(range);
  }
  there.known = last;
  std::vector<Range> ranges = there.missing();
  std::erase_if(ranges, [&](const Range& range) { return range.first > last; });
  return ranges;
}

bool Ledger::is_better(const Floor& floor, bool loses) const {
  Origins kept;
  for_each_of_others([&](const RecordName& name, std::span<const std::byte>) { kept.add(name.origin).mark(name.seq); });
  return is_ahead(floor, std::move(kept), origins_, self(), loses, [&](const OriginId& id) { return forgotten(id); });
}

// Others' records.

void Ledger::keep(Nanos now, std::span<const std::byte> record, const RecordItem& item,
                  std::span<const Interval> births) {
  others_.append(now, record);
  if (const auto at = recent_.find(item.origin); at != recent_.end()) {
    const bool is_births = !reset_time(item.subject.key, births) && !is_estate(births);
    at->second.add(item.seq, {item.subject.limiter.v, item.subject.key.v}, is_births);
  }
}

void Ledger::take_unseen(Nanos now, const std::function<void(std::span<const std::byte>)>& visit) {
  const Journal kept = std::exchange(others_, Journal{});
  recent_.clear();
  kept.for_each([&](const Journal::Entry& entry) {
    const RecordName name = record_name(entry.bytes, self());
    const Origin* const origin = origins_.find(name.origin);
    origin != nullptr && origin->seen(name.seq) ? others_.append(now, entry.bytes) : visit(entry.bytes);
  });
}

bool Ledger::may_have_applied(const OriginId& run, const Key& key, std::uint64_t position) {
  if (forgotten(run)) return true;
  if (floors_.reaches({key.second}, run, position)) return true;
  const Origin* const origin = origins_.find(run);
  if (origin == nullptr) return false;
  std::uint64_t seen = origin->upto < position ? 0 : origin->upto - position + 1;
  for (const Range& range : origin->beyond) {
    if (range.last >= position) seen += range.last - std::max(range.first, position) + 1;
  }
  if (seen == 0) return false;
  const Recent& log = recent(run);
  const auto logged = log.seqs.end() - std::lower_bound(log.seqs.begin(), log.seqs.end(), position);
  if (static_cast<std::uint64_t>(logged) < seen) return true;
  const auto last = log.last.find(key);
  return last != log.last.end() && last->second >= position;
}

Ledger::Recent& Ledger::recent(const OriginId& run) {
  const auto [at, fresh] = recent_.try_emplace(run);
  Recent& recent = at->second;
  if (!fresh) return recent;
  for_each_of_others([&](const RecordName& name, std::span<const std::byte> record) {
    if (name.origin != run) return;
    const Frame frame = framed(record);
    const auto births = frame.set(std::get<RecordItem>(frame.items.front()).set);
    recent.add(name.seq, {name.limiter.v, name.key.v}, !reset_time(name.key, births) && !is_estate(births));
  });
  return recent;
}

void Ledger::Recent::add(std::uint64_t seq, const Key& key, bool births) {
  seqs.insert(std::upper_bound(seqs.begin(), seqs.end(), seq), seq);
  if (births) last[key] = std::max(last[key], seq);
}

void Ledger::Recent::remove(std::uint64_t seq, const Key& key) {
  const auto at = std::lower_bound(seqs.begin(), seqs.end(), seq);
  if (at != seqs.end() && *at == seq) seqs.erase(at);
  if (const auto of = last.find(key); of != last.end() && of->second == seq) last.erase(of);
}

// Own records.

Ledger::Records Ledger::own_records() const {
  Records records;
  history_.for_each_record(
      [&](std::uint64_t seq, std::span<const std::byte> record) { records.emplace_back(seq, record); });
  return records;
}

std::uint64_t Ledger::own_births_beyond(const Floor& floor, const Records& records,
                                        const std::function<void(std::span<const std::byte>)>& record,
                                        const std::function<void(const Piece&)>& piece) const {
  std::uint64_t lost = 0;
  auto next = records.begin();
  for (std::uint64_t at = floor.upto_of(self()); at < history_.head();) {
    // A piece of which the floor covers a part can't be told from that part.
    if (const Piece* const whole = history_.piece_from(at);
        whole != nullptr && floor.late(self(), at, whole->to) == 0) {
      piece(*whole);
      at = whole->to;
      continue;
    }
    while (next != records.end() && next->first <= at) ++next;
    if (next != records.end() && next->first == at + 1) {
      if (floor.late(self(), at, at + 1) == 0) record(next->second);
      ++at;
      continue;
    }
    std::uint64_t to = next == records.end() ? history_.head() : next->first - 1;
    for (const Piece& later : history_.pieces()) {
      if (later.from > at) to = std::min(to, later.from);
    }
    lost += to - at - floor.late(self(), at, to);
    at = to;
  }
  return lost;
}

std::uint64_t Ledger::lost_beyond(const Floor& floor, const Records& records) const {
  return own_births_beyond(
      floor, records, [](std::span<const std::byte>) {}, [](const Piece&) {});
}

Frame Ledger::framed(std::span<const std::byte> record) const {
  FrameWriter writer(self().incarnation);
  writer.raw(record);
  Frame frame;
  [[maybe_unused]] const FrameError error = decode(writer.take(), self().node, frame);
  assert(error == FrameError::none);
  return frame;
}

}  // namespace weir
