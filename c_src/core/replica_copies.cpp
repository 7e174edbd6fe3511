// replica: state copies, for what is in no log any more. See include/weir/replica.hpp.
#include <algorithm>
#include <array>
#include <cassert>

#include "weir/replica.hpp"

namespace weir {
namespace {

constexpr std::uint32_t kCopyAttempts = 12;
// Own births that a copy would cost may be on their way to its donor, or another donor may turn out to have them: the
// copy is asked for again, for so long.
constexpr Nanos kOnTheWay{5'000'000'000};
constexpr Nanos kCopyAgain{1'000'000'000};
// A copy that was not taken is not asked for again for so long, then for twice as long, up to 2^kRefusalsMost.
constexpr Nanos kAfterRefusal{1'000'000'000};
constexpr std::uint32_t kRefusalsMost = 5;
constexpr std::size_t kPartEntries = 1000;  // <= 700 KB, below kFrameMax
// Between two copies for the same peer, who asks again after 300 ms at the earliest.
constexpr Nanos kCopiesApart{100'000'000};

}  // namespace

std::uint64_t Replica::Floor::upto_of(const OriginId& origin) const noexcept {
  std::uint64_t most = 0;
  for (const VectorEntry& entry : upto) {
    const bool forgotten =
        entry.upto == kForgotten && entry.origin.node == origin.node && entry.origin.incarnation >= origin.incarnation;
    if (entry.origin == origin || forgotten) most = std::max(most, entry.upto);
  }
  return most;
}

bool Replica::Floor::covers(const OriginId& origin, std::uint64_t seq) const noexcept {
  return seq <= upto_of(origin) || std::any_of(beyond.begin(), beyond.end(), [&](const NackItem& late) {
           return late.origin == origin && contains(late.ranges, seq);
         });
}

bool Replica::Floor::operator==(const Floor& other) const noexcept {
  return upto == other.upto &&
         std::equal(beyond.begin(), beyond.end(), other.beyond.begin(), other.beyond.end(),
                    [](const NackItem& x, const NackItem& y) { return x.origin == y.origin && x.ranges == y.ranges; });
}

// State copies. All segments are collected, then they replace what is published here, and own births that the donor had
// not seen are added again.

void Replica::start_copy(NodeId donor, const Origin& missed, Nanos now, Effects& effects) {
  if (copy_ || now < no_copy_before_) return;
  copy_ = Copying{};
  copy_->donor = copy_->named = donor;
  copy_->missed = {missed.id, missed.upto + 1};
  ask_for_copy(now, effects);
}

// Donors in turn: those that have acknowledged all that is not in the logs here any more, as far as there are such, the
// named one first.
const Replica::Peer* Replica::choose_donor() const {
  std::vector<const Peer*> donors;
  std::vector<const Peer*> costly;
  for (const Peer& peer : peers_) {
    if (!peer.live || std::find(copy_->unfit.begin(), copy_->unfit.end(), peer.node) != copy_->unfit.end()) continue;
    auto& fits = loses_births({{{self_, peer.acked}}, {}}) ? costly : donors;
    fits.insert(peer.node == copy_->named ? fits.begin() : fits.end(), &peer);
  }
  if (donors.empty()) donors = std::move(costly);
  if (donors.empty()) return nullptr;
  const std::size_t first = donors.front()->node == copy_->named ? 0 : static_cast<std::size_t>(config_.seed);
  return donors[(first + copy_->attempts) % donors.size()];
}

void Replica::ask_for_copy(Nanos now, Effects& effects) {
  Copying& copy = *copy_;
  if (copy.attempts >= kCopyAttempts) {
    // Nobody can give one: the node goes on with what it has; gaps will show again.
    end_copy(now, effects);
    return;
  }
  const Peer* const chosen = choose_donor();
  const std::int64_t wait = std::max<std::int64_t>(300'000'000, 8 * delay_.v) << std::min(copy.attempts, 3u);
  copy.deadline = now + Nanos{wait};
  ++copy.attempts;
  if (chosen == nullptr) return;
  // Answers of several donors have nothing in common.
  if (chosen->node != copy.donor) {
    std::erase_if(copy.parts, [&](const auto& entry) { return (copy.wanted >> entry.first & 1) != 0; });
    copy.keys = 0;
    for (const auto& [segment, parts] : copy.parts) {
      for (const CopyPart& part : parts) copy.keys += part.item.entries.size();
    }
  }
  copy.donor = chosen->node;
  FrameWriter frame(self_.incarnation);
  frame.put(CopyRequestItem{copy.wanted});
  send_to(chosen->node, frame, Traffic::repair, effects);
}

void Replica::apply(Peer& peer, const CopyRequestItem& item, Nanos now, Effects& effects) {
  // A node that has nothing yet, or stands between vectors, is no donor; it will be asked again, or another. One that
  // waits for a copy itself is: its own state still is what its vector says. (Else two that lack each other's births
  // would wait for each other.)
  if ((copy_ && config_.joining) || !floors_.empty()) return;
  if (now - peer.copied < kCopiesApart) return;  // asked twice
  CopyItem head;
  head.answer = next_answer();
  head.vector = vector();
  for (const auto& [node, incarnation] : collected_) head.vector.push_back({{{node}, incarnation}, kForgotten});
  for (const Origin& origin : origins_) {
    if (!origin.beyond.empty()) head.beyond.push_back({origin.id, origin.beyond});
  }
  // A vector's ranges are bounded like a request's: with more holes than that, the asker has to come back.
  if (std::any_of(head.beyond.begin(), head.beyond.end(),
                  [](const NackItem& late) { return late.ranges.size() > kRangesMax; })) {
    return;
  }
  peer.copied = now;
  std::array<std::vector<std::pair<Subject, Interval>>, Keys::kSegments> resets;
  for (const auto& [key, time] : resets_) {
    const Subject subject{{key.first}, limiter({key.first})->terms.version, {key.second}};
    resets[Keys::segment_of(subject.key)].emplace_back(subject, reset_mark(subject.key, time));
  }
  FrameWriter frame(self_.incarnation);
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    if ((item.segments >> segment & 1) == 0) continue;
    std::vector<std::pair<Subject, IntervalSet>> entries;
    keys_.for_each(segment, [&](const KeyState& state) {
      if (!state.has_published()) return;
      const Limiter& its = limiter_of(state);
      IntervalSet set = state.published();
      set.compact(its.terms.policy, now);
      if (!set.empty()) entries.emplace_back(Subject{its.id, its.terms.version, state.key()}, set);
    });
    for (const auto& [subject, mark] : resets[segment]) entries.emplace_back(subject, IntervalSet::from({&mark, 1}));
    shelf_.for_each(segment, [&](const Subject& subject, std::span<const Interval> births) {
      entries.emplace_back(subject, IntervalSet::from(births));
    });
    std::size_t at = 0;
    head.segment = static_cast<std::uint8_t>(segment);
    for (head.part = 0; head.part == 0 || at < entries.size(); ++head.part) {
      const std::size_t count = std::min(kPartEntries, entries.size() - at);
      FrameWriter one(self_.incarnation);
      const std::size_t header = one.size();
      head.last = at + count == entries.size();
      one.copy(head, count);
      for (std::size_t i = at; i < at + count; ++i) one.entry(entries[i].first, entries[i].second.intervals());
      at += count;
      if (frame.size() + one.size() > kFrameTarget) send_to(peer.node, frame, Traffic::repair, effects);
      frame.raw(one.since(header));
    }
  }
  send_to(peer.node, frame, Traffic::repair, effects);
}

void Replica::apply(Peer& peer, const Frame& frame, const CopyItem& item, Nanos now, Effects& effects) {
  const std::uint64_t bit = std::uint64_t{1} << item.segment;
  if (!copy_ || peer.node != copy_->donor || (copy_->wanted & bit) == 0) return;
  if (!plausible(item)) {
    ++stats_.malformed;
    return;
  }
  auto& parts = copy_->parts[item.segment];
  if (item.part == 0) {
    for (const CopyPart& part : parts) copy_->keys -= part.item.entries.size();
    parts.clear();
  }
  // Out of turn, of another answer, or more than there can be: the segment will be asked for again.
  if (item.part != parts.size() || (!parts.empty() && parts.front().item.answer != item.answer) ||
      copy_->keys + item.entries.size() > 2 * config_.max_keys + kPartEntries) {
    return;
  }
  copy_->keys += item.entries.size();
  CopyPart part{item, {}};
  for (EntryItem& entry : part.item.entries) {
    const auto births = frame.set(entry.set);
    entry.set.first = static_cast<std::uint32_t>(part.intervals.size());
    part.intervals.insert(part.intervals.end(), births.begin(), births.end());
  }
  parts.push_back(std::move(part));
  if (!item.last) return;
  copy_->wanted &= ~bit;
  if (copy_->wanted == 0) finish_copy(now, effects);
}

void Replica::replace_segment(std::uint8_t segment, const std::vector<CopyPart>& parts, Nanos now) {
  keys_.sweep(segment, [&](KeyState state) {
    const Policy& policy = limiter_of(state).terms.policy;
    state.rest(policy, now);
    state.set_published(policy, {});
    return true;
  });
  shelf_.clear(segment);
  for (const CopyPart& part : parts) {
    for (const EntryItem& entry : part.item.entries) {
      const bool fits = Keys::segment_of(entry.subject.key) == segment;
      fits ? take_in(entry.subject, part.set(entry.set), now, false) : void(++stats_.malformed);
    }
  }
}

// A record of one of the logs, decoded.
Frame Replica::framed(std::span<const std::byte> record) const {
  FrameWriter writer(self_.incarnation);
  writer.raw(record);
  Frame frame;
  [[maybe_unused]] const FrameError error = decode(writer.take(), self_.node, frame);
  assert(error == FrameError::none);
  return frame;
}

// Calls visit(subject, births) for the own published births that a floor doesn't cover. Returns how many records of
// these are not in the history any more.
std::uint64_t Replica::own_births_beyond(
    const Floor& floor, const std::function<void(const Subject&, std::span<const Interval>)>& visit) const {
  std::map<std::uint64_t, std::span<const std::byte>> records;
  history_.for_each_record([&](std::uint64_t seq, std::span<const std::byte> record) { records.emplace(seq, record); });
  const auto covered_in = [&](std::uint64_t from, std::uint64_t to) {
    return std::any_of(floor.beyond.begin(), floor.beyond.end(), [&](const NackItem& late) {
      return late.origin == self_ && std::any_of(late.ranges.begin(), late.ranges.end(), [&](const Range& range) {
               return range.first <= to && range.last > from;
             });
    });
  };
  std::uint64_t lost = 0;
  for (std::uint64_t at = floor.upto_of(self_); at < history_.head();) {
    if (covered_in(at, at + 1)) {
      ++at;
      continue;
    }
    // A piece of which the floor covers a part can't be told from that part.
    const Piece* const piece = history_.piece_from(at);
    if (piece != nullptr && !covered_in(at, piece->to)) {
      for (const auto& [key, entry] : piece->entries) visit(entry.first, entry.second.load().intervals());
      at = piece->to;
      continue;
    }
    ++at;
    const auto record = records.find(at);
    if (record == records.end()) {
      ++lost;
      continue;
    }
    const Frame own = framed(record->second);
    const auto& item = std::get<RecordItem>(own.items.front());
    visit(item.subject, own.set(item.set));
  }
  return lost;
}

// Of one segment or of all.
void Replica::add_own_births(const Floor& floor, std::optional<std::uint8_t> segment, Nanos now) {
  stats_.lost_own_records += own_births_beyond(floor, [&](const Subject& subject, std::span<const Interval> births) {
    if (!segment || Keys::segment_of(subject.key) == *segment) put_back(subject, births, now, false);
  });
}

bool Replica::loses_births(const Floor& floor) const {
  return own_births_beyond(floor, [](const Subject&, std::span<const Interval>) {}) > 0;
}

void Replica::copy_again(Nanos at) {
  copy_->wanted = ~std::uint64_t{0};
  copy_->parts.clear();
  copy_->keys = 0;
  copy_->attempts = 0;
  copy_->deadline = at;
}

// Whether the copy that came brings nothing of what was missed, so that another donor is to be asked.
bool Replica::donor_is_unfit(Nanos now) {
  const auto brings = [&](const auto& entry) {
    const CopyItem& item = entry.second.front().item;
    return Floor{item.vector, item.beyond}.covers(copy_->missed.origin, copy_->missed.upto);
  };
  if (copy_->missed.upto == 0 || copy_->donor == copy_->named) return false;
  if (std::any_of(copy_->parts.begin(), copy_->parts.end(), brings)) return false;
  copy_->unfit.push_back(copy_->donor);
  copy_again(now);
  return true;
}

// What is gone from all logs can't be had beside what the donor lacks: two nodes that lack each other's births would
// change places for ever, or until all had lost something. So all nodes judge states alike, by their vectors, compared
// from the first origin on: who is behind takes the state of who is ahead, never the other way round.
bool Replica::is_ahead(const Floor& floor, bool loses) {
  std::map<OriginId, std::uint64_t> mine;
  for (const VectorEntry& entry : vector()) mine[entry.origin] = entry.upto;
  for (const VectorEntry& entry : floor.upto) mine.try_emplace(entry.origin, 0);
  std::map<OriginId, Origin> kept;  // would be added to the copy
  others_.for_each([&](const Journal::Entry& entry) {
    const RecordName name = record_name(entry.bytes, self_);
    kept[name.origin].mark(name.seq);
  });
  for (const NackItem& late : floor.beyond) {
    for (const Range& range : late.ranges) kept[late.origin].mark(range);
  }
  const auto beyond = [](const Origin& origin) {
    std::uint64_t count = 0;
    for (const Range& range : origin.beyond) count += range.last - range.first + 1;
    return count;
  };
  for (const auto& [id, upto] : mine) {
    if (id == self_) {
      if (loses) return false;
      continue;
    }
    const std::uint64_t theirs = floor.upto_of(id);
    if (theirs == kForgotten || forgotten(id)) continue;  // nodes forget runs that are over at different times
    Origin& then = kept[id];
    then.advance(theirs);
    const Origin* const origin = origins_.find(id);
    const std::pair has{upto, origin == nullptr ? 0 : beyond(*origin)};
    const std::pair would_have{then.upto, beyond(then)};
    if (would_have != has) return would_have > has;
  }
  return false;
}

// Whether the copy that has come makes the state a better one. Else it is dropped: the donor will want ours.
bool Replica::takes_copy(const Floors& floors, const Floor& all, Nanos now, Effects& effects) {
  // Segments of one answer are true for the same records.
  const Floor* looked_at = nullptr;
  const bool loses = std::any_of(floors.begin(), floors.end(), [&](const auto& entry) {
    const Floor* const before = std::exchange(looked_at, &entry.second);
    return (before == nullptr || !(*before == entry.second)) && loses_births(entry.second);
  });
  if (loses) {
    losing_since_ = std::min(losing_since_, now);
    if (now - losing_since_ < kOnTheWay) {
      copy_again(now + kCopyAgain);
      return false;
    }
  }
  losing_since_ = kNever;
  if (config_.joining || is_ahead(all, loses)) {
    copies_refused_ = 0;
    return true;
  }
  no_copy_before_ = now + Nanos{kAfterRefusal.v << std::min(copies_refused_++, kRefusalsMost)};
  end_copy(now, effects);
  return false;
}

void Replica::end_copy(Nanos now, Effects& effects) {
  copy_.reset();
  config_.joining = false;
  unpark(now, effects);
}

// From now on the vector says what the copy is true for.
void Replica::stand_at(const Floor& floor, Nanos now) {
  for (Origin& origin : origins_) {
    origin.upto = 0;
    origin.beyond.clear();
  }
  for (const VectorEntry& entry : floor.upto) {
    if (entry.upto != kForgotten || !may_be_over(entry.origin, now)) continue;
    auto& last = collected_[entry.origin.node.v];
    last = std::max(last, entry.origin.incarnation);
    origins_.forget(entry.origin);
  }
  for (const VectorEntry& entry : floor.upto) {
    if (entry.origin == self_ || entry.upto == kForgotten) continue;
    if (forgotten(entry.origin)) continue;
    run_of(entry.origin, now).advance(entry.upto);
  }
  for (const NackItem& late : floor.beyond) {
    Origin* const origin = origins_.find(late.origin);
    if (origin == nullptr) continue;
    for (const Range& range : late.ranges) origin->mark(range);
  }
}

// Others' records that the copy lacks: the donor may never get them, if their origin is dead.
void Replica::add_others(Peer& donor, Nanos now) {
  const Journal kept = std::exchange(others_, Journal{});
  kept.for_each([&](const Journal::Entry& entry) {
    const RecordName name = record_name(entry.bytes, self_);
    const Origin* const origin = origins_.find(name.origin);
    if (origin != nullptr && origin->seen(name.seq)) {
      others_.append(now, entry.bytes);
      return;
    }
    const Frame frame = framed(entry.bytes);
    apply(donor, frame, std::get<RecordItem>(frame.items.front()), now);
  });
}

void Replica::finish_copy(Nanos now, Effects& effects) {
  if (donor_is_unfit(now)) return;
  const auto answer = [](const auto& entry) { return entry.second.front().item.answer; };
  const std::uint64_t first = answer(*copy_->parts.begin());
  if (std::any_of(copy_->parts.begin(), copy_->parts.end(),
                  [&](const auto& entry) { return answer(entry) >> 32 != first >> 32; })) {
    copy_again(now);
    return;
  }
  Floors floors;
  for (const auto& [segment, parts] : copy_->parts) {
    floors[segment] = {parts.front().item.vector, parts.front().item.beyond};
  }
  const bool alike = std::all_of(floors.begin(), floors.end(),
                                 [&](const auto& entry) { return entry.second == floors.begin()->second; });
  // The vector stands where all segments do; what single segments have beyond that is kept as their floor.
  Floor all = floors.begin()->second;
  if (!alike) {
    // An origin that one donor didn't know yet stands at 0, so that the floors of the others are kept.
    std::map<OriginId, std::uint64_t> stands;
    for (const auto& [segment, floor] : floors) {
      for (const VectorEntry& entry : floor.upto) stands.emplace(entry.origin, kForgotten);
    }
    all = {};
    for (auto& [origin, upto] : stands) {
      for (const auto& [segment, floor] : floors) upto = std::min(upto, floor.upto_of(origin));
      all.upto.push_back({origin, upto});
    }
  }
  if (!takes_copy(floors, all, now, effects)) return;
  const Copying copy = std::move(*copy_);
  copy_.reset();
  config_.joining = false;
  for (const auto& [segment, parts] : copy.parts) replace_segment(segment, parts, now);
  if (alike) {
    add_own_births(all, std::nullopt, now);
    floors.clear();
  } else {
    for (const auto& [segment, floor] : floors) add_own_births(floor, segment, now);
  }
  stand_at(all, now);
  floors_ = std::move(floors);
  if (Peer* const donor = find(copy.donor)) add_others(*donor, now);
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    keys_.sweep(segment, [&](KeyState state) {
      settle(limiter_of(state), state, now);
      return keep_key(state, now);
    });
    keys_.fit(segment);
  }
  for (Origin& origin : origins_) note(origin, origin.known, origin.via, now, {0});
  ++stats_.copies;
  drop_floors();
  unpark(now, effects);
  news(now, true);
}

void Replica::drop_floors() {
  std::erase_if(floors_, [&](const auto& entry) {
    const Floor& floor = entry.second;
    const auto reached = [&](const OriginId& id, std::uint64_t upto) {
      const Origin* const origin = origins_.find(id);
      return id == self_ || origin == nullptr || origin->upto >= upto;
    };
    return std::all_of(floor.upto.begin(), floor.upto.end(),
                       [&](const VectorEntry& says) { return reached(says.origin, says.upto); }) &&
           std::all_of(floor.beyond.begin(), floor.beyond.end(), [&](const NackItem& late) {
             return late.ranges.empty() || reached(late.origin, late.ranges.back().last);
           });
  });
}

// Records and chunks that came while a copy was under way.
void Replica::unpark(Nanos now, Effects& effects) {
  const auto parked = std::exchange(parked_, {});
  parked_bytes_ = 0;
  Frame frame;
  for (const auto& [node, bytes] : parked) {
    Peer* const peer = find(node);
    if (peer == nullptr || decode(bytes, node, frame) != FrameError::none) continue;
    for (const Item& item : frame.items) {
      if (copy_) break;  // a chunk that doesn't fit began another one; what is left will be asked for
      if (const auto* const record = std::get_if<RecordItem>(&item)) apply(*peer, frame, *record, now);
      if (const auto* const chunk = std::get_if<ChunkItem>(&item)) apply(*peer, frame, *chunk, now, effects);
    }
  }
}

}  // namespace weir
