// ledger: which records a node has, of all nodes, and what it still holds of them.
//
//   seen    origins   the version vector, and what came beyond it       any number of a run is counted once
//           floors    what copied segments are true for beyond that
//           forgotten runs that are over: all that is told of them is refused
//   held    history   own records and chunks, for those that lack them
//           others    others' last records, for the sake of those that their origin can't reach any more
//
//   A run (a node and its incarnation) is added when it is heard of, is over when a later one of its node is heard, or
//   its node leaves, and is forgotten kKeepDead after the last that came of it. Of one node no more than kRunsMax are
//   known at a time.
//
// What the ledger says of itself, in vectors, digests and floors, is what all nodes compare. What is asked for and
// when, and what births do to keys, is the replica's (c_src/core/replica_repair.cpp).
//
// Thread safety: none. Complexity: `keep` is constant but for a search among some runs; the rest is linear in the runs,
// or in what is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weir/estate.hpp"
#include "weir/floor.hpp"
#include "weir/frame.hpp"
#include "weir/history.hpp"
#include "weir/origins.hpp"
#include "weir/units.hpp"

namespace weir {

class Ledger {
 public:
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // limiter, key
  // Own records that are held one by one, in order. Valid until the history changes.
  using Records = std::vector<std::pair<std::uint64_t, std::span<const std::byte>>>;

  // Runs of one node that are known at a time: of one that restarts more often than that, the oldest are forgotten
  // early.
  static constexpr std::size_t kRunsMax = 16;
  // How long the records of a run that ended may still come from others' logs, before the run is forgotten and refused.
  static constexpr Nanos kKeepDead{60'000'000'000};
  // The last records of a run that ended may have reached only some; after this they are left at that. Well below
  // kKeepDead.
  static constexpr Nanos kDeadInDigests{45'000'000'000};
  // Nodes of which forgotten runs are refused, though they are no members any more: they may be registered again.
  static constexpr std::size_t kForgottenMax = std::size_t{1} << 16;

  Ledger(const OriginId& self, const HistoryLimits& limits) : history_(self, limits) {}

  const OriginId& self() const noexcept { return history_.self(); }
  Origins& origins() noexcept { return origins_; }
  const Origins& origins() const noexcept { return origins_; }
  History& history() noexcept { return history_; }
  const History& history() const noexcept { return history_; }
  Floors& floors() noexcept { return floors_; }
  const Floors& floors() const noexcept { return floors_; }
  std::size_t held() const noexcept { return history_.held() + others_.held(); }

  // Runs.

  bool forgotten(const OriginId& run) const noexcept;
  std::size_t runs(NodeId node) const noexcept;
  // The entry of a run, made if there is none. All runs of a node but its last are over, and so is that if the node is
  // no member: the last is `heard`, the incarnation that was heard from the node itself (0: none was), else the last
  // that is known. What others say of later ones can't end it.
  Origin& run_of(const OriginId& run, bool member, std::uint64_t heard, Nanos now);
  // Before a run is added that its node itself speaks of: if its node has too many, the first one goes. Those that are
  // later than what the node itself says were made up.
  void make_room_for(const OriginId& run);
  // All runs of a node up to this one.
  void forget_upto(const OriginId& run);
  // Runs that have been over for kKeepDead are forgotten, and floors that say nothing any more.
  void forget_over(Nanos now);
  // Past kForgottenMax nodes those that are no members may speak of their old runs again.
  template <class Member>
  void bound_forgotten(Member is_member) {
    if (forgotten_.size() <= kForgottenMax) return;
    std::erase_if(forgotten_, [&](const auto& entry) { return !is_member(NodeId{entry.first}); });
  }
  // Whether a run ended, or a record of one came that had, so lately that others may lack its last ones.
  bool any_over_lately(Nanos now) const noexcept;

  // What it says.

  std::vector<VectorEntry> vector() const;
  // What came beyond the vector, of each origin the oldest ranges.
  std::vector<NackItem> beyond() const;
  // A hash of both, without the runs that have been over for kDeadInDigests: nodes forget these at different times.
  DigestItem digest(Nanos now) const;
  // What a segment is true for: what this node has seen, and what the segment was copied with.
  Floor floor_of(std::uint8_t segment) const;
  // What who sent this vector lacks of a run up to `last`.
  static std::vector<Range> lacks(const VectorEntry& has, const VectorItem& vector, std::uint64_t last);
  // Whether a copied state that is true for `floor` is better than this one. Others' records that are held here would
  // be added to it. `loses`: own births are in no log, and not in the copy.
  bool is_better(const Floor& floor, bool loses) const;

  // Others' records.

  // REQUIRES: `record` is the item as it would be relayed, with these births.
  void keep(Nanos now, std::span<const std::byte> record, const RecordItem& item, std::span<const Interval> births);
  // Those go that all have, unless awaited(node) says that somebody waits for that node's records here; and those that
  // are older than `age`, or more than `most` bytes.
  template <class Awaited>
  void trim(Nanos now, std::size_t most, Nanos age, Awaited awaited) {
    for (; !others_.empty(); others_.pop_front()) {
      const bool past = others_.bytes() > most || Journal::older(others_.front(), now, age);
      const RecordName name = record_name(others_.front().bytes, self());
      const Origin* const origin = origins_.find(name.origin);
      if (!past && origin != nullptr && (awaited(name.origin.node) || name.seq > origin->stable)) return;
      if (const auto at = recent_.find(name.origin); at != recent_.end()) {
        at->second.remove(name.seq, {name.limiter.v, name.key.v});
      }
    }
  }
  // Calls visit(name, record) for each, the oldest first.
  template <class Visit>
  void for_each_of_others(Visit visit) const {
    others_.for_each([&](const Journal::Entry& entry) { visit(record_name(entry.bytes, self()), entry.bytes); });
  }
  // Of the records of others those go that were not seen, as after a copy; visit(record) for each of them.
  void take_unseen(Nanos now, const std::function<void(std::span<const std::byte>)>& visit);
  // Rule R of estate.hpp: whether births of the key in a record of that number or a later one of the run were applied
  // here. Where the log doesn't say, it is taken as true.
  bool may_have_applied(const OriginId& run, const Key& key, std::uint64_t position);
  // Look-ups of may_have_applied are kept until then.
  void forget_look_ups() noexcept { recent_.clear(); }

  // Own records.

  Records own_records() const;
  // Calls record(bytes) and piece(its births) for the own published births that a floor doesn't cover. Returns how many
  // records of these are not in the history any more. REQUIRES: `records` are own_records().
  std::uint64_t own_births_beyond(const Floor& floor, const Records& records,
                                  const std::function<void(std::span<const std::byte>)>& record,
                                  const std::function<void(const Piece&)>& piece) const;
  // How many records are in no log, and not in a state that is true for this floor.
  std::uint64_t lost_beyond(const Floor& floor, const Records& records) const;

  // A record of one of the logs, decoded.
  Frame framed(std::span<const std::byte> record) const;

 private:
  // The records of an origin that are in `others_`.
  struct Recent {
    std::vector<std::uint64_t> seqs;                           // ascending
    std::unordered_map<Key, std::uint64_t, Tells::Hash> last;  // of each key the last record of its births
    void add(std::uint64_t seq, const Key& key, bool births);
    void remove(std::uint64_t seq, const Key& key);
  };

  Recent& recent(const OriginId& run);
  void refuse_upto(const OriginId& run);
  void forget_run(OriginId run);

  Origins origins_;
  History history_;
  Journal others_;
  Floors floors_;
  std::map<std::uint32_t, std::uint64_t> forgotten_;  // of a node: incarnations up to this are refused
  std::map<OriginId, Recent> recent_;                 // of those that were asked for since forget_look_ups
};

}  // namespace weir
