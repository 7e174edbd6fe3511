// replica: state copies, for what is in no log any more. See include/weir/replica.hpp.
#include <algorithm>
#include <bit>
#include <cassert>

#include "weir/replica.hpp"

namespace weir {
namespace {

// Own births that a copy would cost may be on their way to its donor, or another donor may turn out to have them: the
// copy is asked for again, for so long.
constexpr Nanos kOnTheWay{5'000'000'000};
constexpr Nanos kCopyAgain{1'000'000'000};
// A copy that was not taken is not asked for again for so long, then for twice as long, up to 2^kRefusalsMost.
constexpr Nanos kAfterRefusal{1'000'000'000};
constexpr std::uint32_t kRefusalsMost = 5;
constexpr std::size_t kPartEntries = 1000;  // <= 700 KB, below kFrameMax
// A segment isn't given twice to the same peer in this time: a peer that waits in vain asks again after 300 ms.
constexpr Nanos kCopiesApart{100'000'000};
// So many keys are given, or put in place, in one step (or one segment, if that is more): some 10 ms.
constexpr std::size_t kStepKeys = 16384;

}  // namespace

// Asking.

void Replica::start_copy(NodeId donor, const Origin& missed, Nanos now, Effects& effects) {
  if (copy_ || now < no_copy_before_) return;
  copy_.emplace(donor, VectorEntry{missed.id, missed.upto + 1});
  ask_for_copy(now, effects);
}

// Each node begins with another of the peers. Costly are those that haven't acknowledged all that isn't in the logs
// here any more.
std::vector<StateCopy::Donor> Replica::donors() const {
  std::vector<StateCopy::Donor> donors;
  const Records records = ledger_.own_records();
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_.in_turn(i + static_cast<std::size_t>(config_.seed));
    if (!peer.live || peer.quarantined) continue;
    const bool costly = ledger_.lost_beyond({{{self_, peer.acked}}, {}}, records) > 0;
    donors.push_back({peer.node, peer.timed ? peer.round_trip : kTimeMax, costly});
  }
  return donors;
}

void Replica::ask_for_copy(Nanos now, Effects& effects) {
  switch (copy_->attempt(now, copy_patience(), donors())) {
    case StateCopy::Attempt::give_up:
      // Nobody can give one: the node goes on with what it has; gaps will show again.
      ++stats_.copies_abandoned;
      return end_copy(now, effects);
    case StateCopy::Attempt::seek:
      for (const Peer& peer : peers_) {
        if (peer.live) send_vector(peer, true, effects);
      }
      return;
    case StateCopy::Attempt::nobody:
      return;
    case StateCopy::Attempt::ask:
      return ask_for_more(effects);
  }
}

Nanos Replica::copy_patience() const noexcept {
  return Nanos{std::max<std::int64_t>(300'000'000, 8 * peers_.delay().v)};
}

void Replica::ask_for_more(Effects& effects) {
  const std::uint64_t more = copy_->more();
  if (more == 0) return;
  FrameWriter frame(self_.incarnation);
  frame.put(CopyRequestItem{more});
  send_to(copy_->donor(), frame, Traffic::repair, effects);
}

// A joining node has asked all for their vectors: who answers first is near, and has something to give.
void Replica::offer_itself(const Peer& peer, const VectorItem& item, Nanos now, Effects& effects) {
  if (!copy_ || peer.quarantined) return;
  const auto has = [&](const VectorEntry& entry) { return entry.upto != 0; };
  if (std::none_of(item.entries.begin(), item.entries.end(), has)) return;
  if (copy_->found(peer.node)) ask_for_copy(now, effects);
}

// Giving. A step gives a few segments; what it is true for stands with each.

// A node that has nothing yet is no donor; it will be asked again, or another. One that waits for a copy itself is: its
// own state still is what its vector says. (Else two that lack each other's births would wait for each other.)
bool Replica::can_give() const noexcept { return !copy_ || (!copy_->joins() && copy_->true_for().empty()); }

bool Replica::gives() const noexcept {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.owed != 0; });
}

void Replica::apply(Peer& peer, const CopyRequestItem& item, Nanos now, Effects& effects) {
  if (!can_give()) return;
  if (now - peer.copied >= kCopiesApart) peer.given = 0;
  peer.owed |= item.segments & ~peer.given;
  give(now, effects);
}

void Replica::give(Nanos now, Effects& effects) {
  // A vector's ranges are bounded like a request's: with more holes than that, the asker has to come back.
  const auto has_too_many = [](const auto& ranges) { return ranges.size() > kRangesMax; };
  const bool too_many_holes = std::any_of(ledger_.origins().begin(), ledger_.origins().end(),
                                          [&](const Origin& origin) { return has_too_many(origin.beyond); });
  std::size_t given = 0;
  for (Peer& peer : peers_) {
    if (!can_give() || too_many_holes || !peer.live) peer.owed = 0;
    if (peer.owed == 0) continue;
    CopyItem head;
    head.answer = next_answer();
    FrameWriter frame(self_.incarnation);
    for (; peer.owed != 0; peer.owed &= peer.owed - 1) {
      const auto segment = static_cast<std::uint8_t>(std::countr_zero(peer.owed));
      const std::size_t keys = keys_.size(segment);
      if (given != 0 && given + keys > kStepKeys) break;
      if (head.vector.empty() || !ledger_.floors().empty()) {
        Floor floor = ledger_.floor_of(segment);
        head.vector = std::move(floor.upto);
        head.beyond = std::move(floor.beyond);
      }
      peer.given |= std::uint64_t{1} << segment;
      if (std::any_of(head.beyond.begin(), head.beyond.end(),
                      [&](const NackItem& late) { return has_too_many(late.ranges); })) {
        continue;
      }
      given += std::max<std::size_t>(1, keys);
      head.segment = segment;
      give_segment(peer, head, now, frame, effects);
      peer.copied = now;
    }
    send_to(peer.node, frame, Traffic::repair, effects);
    if (peer.owed != 0) return;
  }
}

void Replica::give_segment(Peer& peer, CopyItem& head, Nanos now, FrameWriter& frame, Effects& effects) {
  FrameWriter entries(self_.incarnation);
  const std::size_t header = entries.size();
  std::size_t count = 0;
  head.part = 0;
  const auto finish_part = [&](bool last) {
    FrameWriter part(self_.incarnation);
    head.last = last;
    part.copy(head, count);
    part.raw(entries.since(header));
    if (frame.size() + part.size() > kFrameTarget) send_to(peer.node, frame, Traffic::repair, effects);
    frame.raw(part.since(header));
    entries = FrameWriter(self_.incarnation);
    count = 0;
    ++head.part;
  };
  const auto put = [&](const Subject& subject, std::span<const Interval> births) {
    if (count == kPartEntries) finish_part(false);
    entries.entry(subject, births);
    ++count;
  };
  for (const auto& [key, time] : resets_) {
    const Subject subject{{key.first}, limiter({key.first})->terms.version, {key.second}};
    const Interval mark = reset_mark(subject.key, time);
    if (Keys::segment_of(subject.key) == head.segment) put(subject, {&mark, 1});
  }
  keys_.for_each(head.segment, [&](const KeyState& state) {
    if (!state.has_published()) return;
    const Limiter& its = limiter_of(state);
    IntervalSet set = state.published();
    set.compact(its.terms.policy, now);
    if (!set.empty()) put({its.id, its.terms.version, state.key()}, set.intervals());
  });
  shelf_.for_each(head.segment, put);
  estates_.for_each([&](const Estates::Place& place, const Estates::Copy& copy) {
    if (!copy.counted || Keys::segment_of(place.key) != head.segment) return;
    const ReplicatedTerms& terms = limiter(place.limiter)->terms;
    Estate estate{place.origin, copy.position, copy.tell, copy.births.load()};
    estate.births.fuse(terms.policy, kEstateCap);
    put({place.limiter, terms.version, place.key}, estate_record(estate).intervals());
  });
  finish_part(true);
}

// Receiving.

void Replica::apply(Peer& peer, const Frame& frame, const CopyItem& item, Nanos now, Effects& effects) {
  if (!copy_ || !copy_->expects(peer.node, item.segment)) return;
  if (!plausible(item)) {
    ++stats_.malformed;
    return;
  }
  const auto ahead = [&](const EntryItem& entry) {
    return last_of(entry.subject.key, frame.set(entry.set)) > now + config_.future_bound;
  };
  if (std::any_of(item.entries.begin(), item.entries.end(), ahead)) {
    // Taken, they would be no better than records from there; and who copies from this node would have them too.
    ++stats_.refused;
    peer.begin_quarantine(now);
    copy_->refuse_donor(now);
    return;
  }
  const auto over = [&](const OriginId& origin) { return may_be_over(origin, now); };
  if (!copy_->take(frame, item, now, copy_patience(), 2 * config_.max_keys + kPartEntries, over)) return;
  if (!copy_->complete()) ask_for_more(effects);
  if (copy_->undecided()) {
    if (!copy_->brings_missed()) return copy_->refuse_donor(now);
    if (!takes_copy(copy_->floors(), now, effects)) return;
    copy_->be_taken();
  }
  place_segments(now, effects);
}

// Putting in place.

void Replica::place_segments(Nanos now, Effects& effects) {
  std::size_t keys = 0;
  const Records own = ledger_.own_records();
  for (std::uint64_t left = copy_->to_place(); left != 0; left &= left - 1) {
    const auto segment = static_cast<std::uint8_t>(std::countr_zero(left));
    const std::size_t its = std::max<std::size_t>(1, keys_.size(segment)) + copy_->keys_of(segment);
    if (keys != 0 && keys + its > kStepKeys) return;
    keys += its;
    place_segment(segment, own, now);
  }
  if (copy_->placed()) finish_copy(now, effects);
}

// What is published here goes, the copy and own births that the donor had not seen come.
void Replica::place_segment(std::uint8_t segment, const Records& own, Nanos now) {
  const StateCopy::Segment copied = copy_->place(segment);
  const Floor& floor = copied.floor;
  keys_.sweep(segment, [&](KeyState state) {
    const Policy& policy = limiter_of(state).terms.policy;
    state.rest(policy, now);
    state.set_published(policy, {});
    return true;
  });
  shelf_.clear(segment);
  estates_.erase_if([&](const Estates::Place& place, const Estates::Copy& copy) {
    return Keys::segment_of(place.key) == segment && (copy.counted || floor.reaches(place.origin, copy.position));
  });
  for (const StateCopy::Part& part : copied.parts) {
    for (const EntryItem& entry : part.item.entries) {
      if (Keys::segment_of(entry.subject.key) != segment) {
        ++stats_.malformed;
      } else if (const auto estate = estate_of(part.set(entry.set))) {
        hold(entry.subject, *estate, 0, true, now);  // the donor has looked whether it may
      } else {
        take_in(entry.subject, part.set(entry.set), now, Receipt::copy);
      }
    }
  }
  add_own_births(floor, segment, own, now);
  keys_.sweep(segment, [&](KeyState key) {
    settle(limiter_of(key), key, now);
    push_if_due(limiter_of(key), key, now);
    return keep_key(key, now);
  });
  keys_.fit(segment);
}

// (Rule R goes by the copy: it is what is published here now.)
void Replica::put_own(const Floor& floor, const Subject& subject, std::span<const Interval> births, Nanos now) {
  const std::optional<Estate> estate = estate_of(births);
  if (!estate) return put_back(subject, births, now, Receipt::copy);
  if (!floor.reaches(estate->origin, estate->position)) hold(subject, *estate, 0, true, now);
}

void Replica::add_own_births(const Floor& floor, std::uint8_t segment, const Records& records, Nanos now) {
  ledger_.own_births_beyond(
      floor, records,
      [&](std::span<const std::byte> record) {
        if (Keys::segment_of(record_name(record, self_).key) != segment) return;
        const Frame own = ledger_.framed(record);
        const auto& item = std::get<RecordItem>(own.items.front());
        put_own(floor, item.subject, own.set(item.set), now);
      },
      [&](const Piece& piece) {
        const KeyHash first{std::uint64_t{segment} << 58};
        for (auto at = piece.entries.lower_bound({{0}, 0, first}); at != piece.entries.end(); ++at) {
          if (Keys::segment_of(at->first.key) != segment) break;
          put_own(floor, at->first, at->second.load().intervals(), now);
        }
        for (const auto& [name, estate] : piece.estates) {
          const Subject& subject = name.first;
          if (Keys::segment_of(subject.key) == segment) put_own(floor, subject, estate.load().intervals(), now);
        }
      });
}

// Judging.

// Whether the copy that has come makes the state a better one. Else it is dropped: the donor will want ours.
bool Replica::takes_copy(const Floors& floors, Nanos now, Effects& effects) {
  const Records records = ledger_.own_records();
  const std::vector<const Floor*> apart = floors.unlike();
  const bool loses = std::any_of(apart.begin(), apart.end(),
                                 [&](const Floor* floor) { return ledger_.lost_beyond(*floor, records) > 0; });
  if (loses) {
    losing_since_ = std::min(losing_since_, now);
    if (now - losing_since_ < kOnTheWay) {
      copy_->again(now + kCopyAgain);
      return false;
    }
  }
  losing_since_ = kNever;
  if (copy_->joins() || ledger_.is_better(floors.common(), loses)) {
    copies_refused_ = 0;
    return true;
  }
  no_copy_before_ = now + Nanos{kAfterRefusal.v << std::min(copies_refused_++, kRefusalsMost)};
  end_copy(now, effects);
  return false;
}

void Replica::end_copy(Nanos now, Effects& effects) {
  ledger_.floors().replace(copy_->true_for());
  copy_.reset();
  unpark(now, effects);
}

// From now on the vector says what the copy is true for.
void Replica::stand_at(const Floor& floor, Nanos now) {
  for (Origin& origin : ledger_.origins()) {
    origin.upto = 0;
    origin.beyond.clear();
  }
  for (const VectorEntry& entry : floor.upto) {
    if (entry.upto != kForgotten || !may_be_over(entry.origin, now)) continue;
    ledger_.forget_upto(entry.origin);
  }
  for (const VectorEntry& entry : floor.upto) {
    if (entry.origin == self_ || entry.upto == kForgotten) continue;
    if (ledger_.forgotten(entry.origin)) continue;
    run_of(entry.origin, now).advance(entry.upto);
  }
  for (const NackItem& late : floor.beyond) {
    Origin* const origin = ledger_.origins().find(late.origin);
    if (origin == nullptr) continue;
    for (const Range& range : late.ranges) origin->mark(range);
  }
}

// Others' records that the copy lacks: the donor may never get them, if their origin is dead.
void Replica::add_others(Peer& donor, Nanos now) {
  ledger_.take_unseen(now, [&](std::span<const std::byte> record) {
    const Frame frame = ledger_.framed(record);
    apply(donor, frame, std::get<RecordItem>(frame.items.front()), now);
  });
}

// All segments are in place.
void Replica::finish_copy(Nanos now, Effects& effects) {
  if (copy_->joins() && !takes_copy(copy_->true_for(), now, effects)) return;
  const StateCopy copy = std::move(*copy_);
  copy_.reset();
  const Floor common = copy.true_for().common();
  stats_.lost_own_records += ledger_.lost_beyond(common, ledger_.own_records());
  stand_at(common, now);
  ledger_.floors() = copy.true_for();
  if (Peer* const donor = peers_.find(copy.donor())) add_others(*donor, now);
  for (Origin& origin : ledger_.origins()) {
    origin.ask_anew();
    note(origin, origin.known, origin.via, now, {0});
  }
  ++stats_.copies;
  ledger_.floors().drop(ledger_.origins(), self_);
  unpark(now, effects);
  news(now, true);
}

// Records and chunks that came while a copy was under way.
void Replica::unpark(Nanos now, Effects& effects) {
  const auto parked = std::exchange(parked_, {});
  parked_bytes_ = 0;
  Frame frame;
  for (const auto& [node, bytes] : parked) {
    Peer* const peer = peers_.find(node);
    if (peer == nullptr || decode(bytes, node, frame) != FrameError::none) continue;
    for (const Item& item : frame.items) {
      if (copy_) break;  // a chunk that doesn't fit began another one; what is left will be asked for
      if (const auto* const record = std::get_if<RecordItem>(&item)) apply(*peer, frame, *record, now);
      if (const auto* const chunk = std::get_if<ChunkItem>(&item)) apply(*peer, frame, *chunk, now, effects);
    }
  }
}

}  // namespace weir
