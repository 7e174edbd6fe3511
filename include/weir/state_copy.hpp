// state_copy: a copy of another node's state, as it comes: whom to ask for which segments, and which answers fit
// together.
//
//     asked for    a few segments at a time, so that neither the donor's outbox nor the network between holds the
//                  whole; the first one says how large they are
//     comes        each segment in parts. Parts of one answer fit together, segments of all answers that have the
//                  upper half of their number in common (Replica::next_answer); else all begin anew
//     is placed    those of a joining node as they come; others when all are there and the copy was taken
//
//   Donors go in turn: the named one first, then the nearest by round trip. Those that would cost births of this node
//   come only where there is no other, unfit ones never. A node that joins names nobody: it asks all, and takes who
//   answers first.
//
// What is said to donors, and what is done with what comes, is the replica's (c_src/core/replica_copies.cpp).
//
// Thread safety: none. Complexity: a part is linear in its entries, an attempt n log n in the donors. What is held is
// bounded by `most` keys of `take`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "weir/floor.hpp"
#include "weir/frame.hpp"
#include "weir/keys.hpp"
#include "weir/units.hpp"

namespace weir {

class StateCopy {
 public:
  // So often it is asked for without any progress.
  static constexpr std::uint32_t kAttempts = 12;
  // Keys that are asked for before the last ones came (or one segment, if that is more).
  static constexpr std::size_t kAskKeys = 65536;

  struct Donor {
    NodeId node;
    Nanos round_trip;
    bool costly = false;  // its state lacks births of this node that are in no log any more
  };
  struct Part {
    CopyItem item;  // its entries' sets lie in `intervals`
    std::vector<Interval> intervals;
    std::span<const Interval> set(Slice slice) const noexcept { return {intervals.data() + slice.first, slice.count}; }
  };
  struct Segment {
    std::vector<Part> parts;
    Floor floor;
  };
  enum class Attempt : std::uint8_t {
    give_up,  // there were as many as there may be
    seek,     // all nodes are to be asked what they have (`found`)
    nobody,   // no donor; to be tried again
    ask,      // the donor, for `more`
  };

  // One from `donor`, which must bring the record `missed` (of sequence 0: none).
  StateCopy(NodeId donor, const VectorEntry& missed) : donor_(donor), named_(donor), missed_(missed) {}
  // One for a node that has nothing yet; the first attempt is due `now`.
  static StateCopy to_join(Nanos now);
  bool joins() const noexcept { return joins_; }

  // Asking.

  // When it is to be tried again.
  Nanos deadline() const noexcept { return deadline_; }
  // Waits for `patience` from now on, longer with each attempt in vain, and chooses whom to ask among `donors`: the
  // nodes that can be reached, in the order of which the nearest are preferred, if they are equally near.
  Attempt attempt(Nanos now, Nanos patience, std::span<const Donor> donors);
  NodeId donor() const noexcept { return donor_; }
  // The segments to ask the donor for now, a bit each; they are on their way from then on.
  std::uint64_t more();
  // A node has told what it has. True if one was sought: it is named now, and to be asked.
  bool found(NodeId node) noexcept;
  // Neither it nor what came from it is any good: another donor is to be asked.
  void refuse_donor(Nanos now);
  // All segments are to come anew, asked for at `at`. Those in place stay, with what they are true for.
  void again(Nanos at);

  // Coming.

  // Whether that segment of that node's would be taken.
  bool expects(NodeId node, std::uint8_t segment) const noexcept {
    return node == donor_ && (wanted_ >> segment & 1) != 0;
  }
  // A part of an expected segment, out of `frame`. One that comes out of turn, belongs to another answer or would make
  // more than `most` keys is left: the segment is asked for again. A forgotten run is no part of what the segment is
  // true for unless it is over (`over(run)`): taken for true, it would cover the records of a run that goes on.
  // False if the part was left.
  bool take(const Frame& frame, const CopyItem& item, Nanos now, Nanos patience, std::size_t most,
            const std::function<bool(const OriginId&)>& over);
  // All segments have come.
  bool complete() const noexcept { return wanted_ == 0; }
  // All have, and whether the copy is to be taken is still open. (A node that joins has placed them by then.)
  bool undecided() const noexcept { return complete() && !joins_ && !taken_; }
  // Whether some have.
  bool begun() const noexcept { return !floors_.empty(); }
  // What those that came, and aren't replaced by another round, are true for.
  const Floors& floors() const noexcept { return floors_; }
  // Whether it brings what was missed. (From the named donor all is welcome: it has told of more than this node has.)
  bool brings_missed() const;

  // Putting in place.

  // It is the better state: its segments may be placed.
  void be_taken() noexcept { taken_ = true; }
  // Segments that can be put in place now.
  std::uint64_t to_place() const noexcept { return taken_ || joins_ ? ~wanted_ & ~placed_ : 0; }
  // Whether some are, or can be.
  bool moves() const noexcept { return (placed_ | to_place()) != 0; }
  // Keys of a segment that has come, with resets and estates.
  std::size_t keys_of(std::uint8_t segment) const;
  // Hands over a segment of `to_place`: it is in place from now on.
  Segment place(std::uint8_t segment);
  bool placed() const noexcept { return placed_ == ~std::uint64_t{0}; }
  // What the segments in place are true for, of all rounds.
  const Floors& true_for() const noexcept { return true_for_; }

  // Bytes.
  std::size_t held() const noexcept;

 private:
  const Donor* choose(std::vector<Donor>& donors) const;
  void set_donor(NodeId node);
  void finish_segment(const std::vector<Part>& parts, Nanos now, const std::function<bool(const OriginId&)>& over);
  static std::size_t keys_of(const std::vector<Part>& parts) noexcept;

  NodeId donor_;
  NodeId named_;  // the donor to begin with
  VectorEntry missed_;
  std::vector<NodeId> unfit_;  // donors that were refused
  bool joins_ = false;
  bool seeks_ = false;
  bool taken_ = false;
  Nanos deadline_;
  std::uint32_t attempts_ = 0;  // since there was progress
  // Of this round; after a carry, or from another donor of another time, all begins anew.
  std::uint64_t wanted_ = ~std::uint64_t{0};  // segments that are still to come
  std::uint64_t asked_ = 0;                   // those of them that are on their way
  std::uint64_t placed_ = 0;
  std::size_t largest_ = 0;           // keys of the largest one that came
  std::optional<std::uint64_t> era_;  // what all answers have in their upper half
  std::map<std::uint8_t, std::vector<Part>> parts_;
  std::size_t keys_ = 0;  // in `parts_`
  Floors floors_;
  Floors true_for_;  // of all rounds
};

}  // namespace weir
