// replica: gaps, vectors, digests and chunks. See include/weir/replica.hpp.
#include <algorithm>

#include "weir/replica.hpp"

namespace weir {
namespace {

// A quiet of so many gossip intervals after the last news, then digests: while news comes, gaps show by themselves.
constexpr std::int64_t kQuietIntervals = 4;
constexpr std::uint32_t kDigests = 1;
constexpr std::uint32_t kUrgentDigests = 3;  // after a member came or went: its last records may have reached only some
constexpr std::int64_t kAskAgain = 50'000'000;
constexpr std::int64_t kAskAgainMost = 2'000'000'000;
// Records of a run that is out of reach are asked for so often; if nobody has them, they went with it.
constexpr std::uint32_t kAskMost = 16;
// Bytes of chunks that one question is answered with, at most one chunk more: the rest is asked for when these came.
constexpr std::size_t kSupplyMost = 2'000'000;
// A chunk that was given is not given again for so long and a round trip: twice what who lacks it waits at first.
constexpr Nanos kChunkAgain{100'000'000};
// What was refused is tried after a second, then after twice as long each time, up to 2^8 seconds.
constexpr Nanos kTryAgain{1'000'000'000};
constexpr std::uint32_t kTryDoublings = 8;

}  // namespace

// Records up to `known` exist; `via` has them. Asked for after a moment, as they may only have been overtaken.
void Replica::note(Origin& origin, std::uint64_t known, NodeId via, Nanos now, Nanos patience) {
  if (known >= origin.known) {
    origin.known = known;
    origin.via = via;
  }
  if (origin.complete()) {
    origin.repair_at = kNever;
    origin.attempts = 0;
    origin.held_off = false;
    return;
  }
  origin.given_up = false;
  if (origin.held_off) return try_again(origin, now);
  if (origin.upto < origin.asked && origin.repair_at != kNever) return;  // the answer is on its way: see repair
  const Nanos moment{std::clamp<std::int64_t>(peers_.delay().v / 2, 500'000, 10'000'000)};
  origin.repair_at = std::min(origin.repair_at, now + std::max(patience, moment));
  repair_at_ = std::min(repair_at_, origin.repair_at);
}

// The next try of what was refused, unless one is due already.
void Replica::try_again(Origin& origin, Nanos now) noexcept {
  if (origin.repair_at == kNever) {
    origin.repair_at = now + Nanos{kTryAgain.v << std::min(origin.attempts, kTryDoublings)};
  }
  repair_at_ = std::min(repair_at_, origin.repair_at);
}

void Replica::repair(Nanos now, Effects& effects) {
  repair_at_ = kNever;
  for (Origin& origin : ledger_.origins()) {
    if (origin.complete()) origin.repair_at = kNever;
    if (origin.asked != 0 && origin.upto >= origin.asked) origin.ask_anew();
    if (origin.repair_at <= now && origin.attempts >= kAskMost && !peers_.reaches(origin.id)) {
      origin.given_up = true;
      origin.attempts = 0;  // what is heard of it later begins anew
      origin.repair_at = kNever;
    }
    if (origin.repair_at <= now) {
      const Peer* const peer = copy_ ? nullptr : peers_.whom_to_ask(origin, self_.node, now, config_.peer_timeout);
      if (peer != nullptr) {
        FrameWriter frame(self_.incarnation);
        std::vector<Range> missing = origin.missing();
        if (origin.held_off) missing = {{missing.front().first, missing.front().first}};
        origin.asked = missing.back().last;
        frame.put(NackItem{origin.id, std::move(missing)});
        send_to(peer->node, frame, Traffic::repair, effects);
        ++stats_.nacks;
      }
      ++origin.attempts;
      if (origin.held_off) {
        origin.repair_at = kNever;
        try_again(origin, now);
        continue;
      }
      const std::int64_t again = std::max(kAskAgain, 4 * peers_.delay().v) << std::min(origin.attempts - 1, 5u);
      origin.repair_at = now + Nanos{std::min(again, std::max(kAskAgainMost, 4 * peers_.delay().v))};
    }
    repair_at_ = std::min(repair_at_, origin.repair_at);
  }
}

void Replica::apply(Peer& peer, const NackItem& item, Nanos now, Effects& effects) {
  FrameWriter frame(self_.incarnation);
  if (item.origin == self_) {
    supply(peer, item.ranges, now, frame, effects);
    send_to(peer.node, frame, Traffic::repair, effects);
    return;
  }
  const Origin* const origin = ledger_.origins().find(item.origin);
  if (origin == nullptr || item.ranges.empty()) return;
  bool found = false;
  ledger_.for_each_of_others([&](const RecordName& name, std::span<const std::byte> record) {
    if (name.origin != item.origin || !contains(item.ranges, name.seq)) return;
    found = true;
    frame.raw(record);
    ++stats_.repaired;
    if (frame.size() > kFrameTarget) send_to(peer.node, frame, Traffic::repair, effects);
  });
  // What is here, but in no log any more, can be had by a copy.
  const auto has = [&](const Range& late) {
    return std::any_of(item.ranges.begin(), item.ranges.end(),
                       [&](const Range& asked) { return asked.first <= late.last && late.first <= asked.last; });
  };
  if (!found && origin->upto >= item.ranges.front().first) {
    frame.put(GoneItem{item.origin, std::min(origin->upto, item.ranges.back().last)});
  } else if (!found && std::any_of(origin->beyond.begin(), origin->beyond.end(), has)) {
    frame.put(GoneItem{item.origin, std::min(origin->beyond.back().last, item.ranges.back().last)});
  }
  send_to(peer.node, frame, Traffic::repair, effects);
}

// Own records of these ranges, the last of them perhaps a little further: one by one, or as the chunk that starts where
// they end.
void Replica::supply(Peer& peer, std::span<const Range> ranges, Nanos now, FrameWriter& frame, Effects& effects) {
  std::vector<std::pair<std::uint64_t, std::span<const std::byte>>> records;
  ledger_.history().for_each_record([&](std::uint64_t seq, std::span<const std::byte> record) {
    if (contains(ranges, seq)) records.emplace_back(seq, record);
  });
  auto next = records.begin();
  std::uint64_t at = 0;
  std::size_t supplied = 0;
  for (const Range& range : ranges) {
    const std::uint64_t to = std::min(range.last, ledger_.history().head());
    for (at = std::max(at, range.first - 1); at < to;) {
      if (frame.size() > kFrameTarget) send_to(peer.node, frame, Traffic::repair, effects);
      while (next != records.end() && next->first <= at) ++next;
      // Who lacks a part of a chunk only can't take the whole.
      const bool single = next != records.end() && next->first == at + 1;
      if (const Piece* const piece = ledger_.history().piece_from(at);
          piece != nullptr && (piece->to <= to || !single)) {
        // Chunks are long: vectors and heartbeats that cross them ask for them again, and so does who waits.
        if (peer.was_given(piece->from, now, {kChunkAgain.v + 2 * peers_.delay().v})) {
          at = piece->to;
          if ((supplied += piece->bytes) > kSupplyMost) return;
          continue;
        }
        FrameWriter chunk(self_.incarnation);
        chunk.chunk(piece->from, piece->to, piece->size());
        for (const auto& [subject, mark] : piece->resets) chunk.entry(subject, {&mark, 1});
        for (const auto& [subject, set] : piece->entries) chunk.entry(subject, set.load().intervals());
        for (const auto& [name, estate] : piece->estates) chunk.entry(name.first, estate.load().intervals());
        if (chunk.size() <= kFrameMax) {
          // What leads up to the chunk goes first: else it would be refused.
          send_to(peer.node, frame, Traffic::repair, effects);
          supplied += chunk.size();
          send_to(peer.node, chunk, Traffic::repair, effects);
          piece->supplied = true;
          peer.chunks.emplace_back(piece->from, now);
          ++stats_.repaired;
          at = piece->to;
          if (supplied > kSupplyMost) return;
          continue;
        }
      }
      if (!single) {
        frame.put(GoneItem{self_, to});  // (not more: who has them by now doesn't need any)
        return;
      }
      frame.raw(next->second);
      ++stats_.repaired;
      at = next->first;
    }
  }
}

void Replica::apply(Peer& peer, const GoneItem& item, Nanos now, Effects& effects) {
  Origin* const origin = ledger_.origins().find(item.origin);
  if (origin == nullptr || origin->upto >= item.upto) return;
  if (origin->held_off && peer.quarantined) return;  // its state is of the same clock
  const Peer* const itself = peers_.find(item.origin.node);
  if (itself != nullptr && itself != &peer && itself->incarnation == item.origin.incarnation &&
      (itself->live || now - itself->away_since < config_.keep_others)) {
    return;  // it may have them one by one
  }
  note(*origin, item.upto, peer.node, now, {0});
  start_copy(peer.node, *origin, now, effects);
}

// Vectors and digests.

void Replica::send_vector(const Peer& peer, bool answer, Effects& effects) {
  FrameWriter frame(self_.incarnation);
  frame.put(VectorItem{answer, ledger_.vector(), ledger_.beyond()});
  send_to(peer.node, frame, Traffic::repair, effects);
}

void Replica::apply(Peer& peer, const VectorItem& item, Nanos now, Effects& effects) {
  bool supplied = false;
  for (const VectorEntry& entry : item.entries) {
    if (entry.origin == self_) {
      peer.acked = std::min(entry.upto, ledger_.history().head());
      if (!peer.behind || entry.upto >= peer.caught || std::exchange(supplied, true)) continue;
      FrameWriter frame(self_.incarnation);
      supply(peer, Ledger::lacks(entry, item, peer.caught), now, frame, effects);
      send_to(peer.node, frame, Traffic::repair, effects);
      continue;
    }
    Origin* origin = ledger_.origins().find(entry.origin);
    if (origin == nullptr) {
      if (!belongs(entry.origin)) continue;
      origin = &run_of(entry.origin, now);
    }
    // What is ahead may be on its way here too.
    if (entry.upto > origin->upto)
      note(*origin, entry.upto, peer.node, now, {2 * peers_.delay().v + config_.coalesce_most.v});
  }
  for (const NackItem& late : item.beyond) {
    Origin* const origin = ledger_.origins().find(late.origin);
    if (origin == nullptr || late.ranges.empty()) continue;
    const bool news = std::any_of(late.ranges.begin(), late.ranges.end(), [&](const Range& range) {
      return !origin->seen(range.first) || !origin->seen(range.last);
    });
    const Nanos patience{2 * peers_.delay().v + config_.coalesce_most.v};
    if (news) note(*origin, std::max(origin->known, late.ranges.back().last), peer.node, now, patience);
  }
  if (item.answer) send_vector(peer, false, effects);
  offer_itself(peer, item, now, effects);
}

// Whether a run ended, a peer went away, or a record of such a one came, lately. Of a living origin's records everyone
// learns from its heartbeats; the last ones of a lost origin may have reached only some, so that all heartbeats carry a
// digest for a while.
bool Replica::lost_lately(Nanos now) const noexcept {
  return now - lost_news_ < Ledger::kDeadInDigests || ledger_.any_over_lately(now) ||
         peers_.any_cut_off(now, Ledger::kDeadInDigests);
}

void Replica::news(Nanos now, bool of_members) noexcept {
  if (of_members) {
    digest_at_ = now + config_.gossip_interval;
    digests_left_ = kUrgentDigests;
    digest_urgent_ = true;
  } else if (!digest_urgent_) {
    digest_at_ = now + Nanos{config_.gossip_interval.v * kQuietIntervals};
    digests_left_ = kDigests;
  }
}

void Replica::send_digest(Nanos now, Effects& effects) {
  --digests_left_;
  digest_at_ = digests_left_ == 0 ? kNever : now + config_.gossip_interval;
  digest_urgent_ = digest_urgent_ && digests_left_ != 0;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_.in_turn(++digest_peer_);
    if (!peer.live) continue;
    FrameWriter frame(self_.incarnation);
    frame.put(ledger_.digest(now));
    send_to(peer.node, frame, Traffic::repair, effects);
    return;
  }
}

// Chunks: applied whole, and only where the vector stands exactly at the start.

void Replica::apply(Peer& peer, const Frame& frame, const ChunkItem& item, Nanos now, Effects& effects) {
  const OriginId id{peer.node, frame.incarnation};
  if (ledger_.origins().find(id) == nullptr && !belongs(id)) {
    ++stats_.refused;  // it waited for a copy that knows of its run's end
    return;
  }
  Origin& origin = run_of(id, now);
  if (origin.upto >= item.to) {
    ++stats_.duplicates;
    return;
  }
  if (item.to > origin.head && item.to - origin.head > kNumbersAhead) {
    ++stats_.malformed;  // it said itself that there are not so many
    return;
  }
  if (origin.upto < item.from) {
    note(origin, item.to, peer.node, now, {0});
    return;
  }
  const auto inside = [&](const Range& range) { return range.first <= item.to; };
  if (origin.upto > item.from || std::any_of(origin.beyond.begin(), origin.beyond.end(), inside) ||
      ledger_.floors().any_divides(id, item.from, item.to)) {
    // A part of it is here, or on its way by another node. What is missing may be there one by one: it is asked for
    // before the whole state is.
    if (std::exchange(origin.unfit, item.from) != item.from) origin.unfit_at = now;
    if (now - origin.unfit_at > kChunkAgain + Nanos{2 * peers_.delay().v})
      return start_copy(peer.node, origin, now, effects);
    note(origin, item.to, peer.node, now, {0});
    return;
  }
  Nanos last;
  for (const EntryItem& entry : item.entries) {
    last = std::max(last, last_of(entry.subject.key, frame.set(entry.set)));
  }
  if (is_early(peer, origin, last, now)) return;
  for (const EntryItem& entry : item.entries) {
    end_copy_of(id, item.to, entry.subject, frame.set(entry.set), now);
    if (ledger_.floors().covers(entry.subject.key, id, item.to)) continue;
    take_in(entry.subject, frame.set(entry.set), now, Receipt::repair);
  }
  origin.held_off = false;
  origin.advance(item.to);
  note(origin, item.to, peer.node, now, {0});
  if (!origin.complete()) {
    // The next one may be on its way.
    origin.attempts = 0;
    origin.repair_at = now + Nanos{std::max(2 * kAskAgain, 4 * peers_.delay().v)};
    repair_at_ = std::min(repair_at_, origin.repair_at);
  }
  ++stats_.chunks_applied;
  news(now);
}

}  // namespace weir
