// frames: decoded frames compared, and written again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "weir/frame.hpp"

namespace weir::test {

inline bool same(std::span<const Interval> a, std::span<const Interval> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}
inline bool same(const std::vector<NackItem>& a, const std::vector<NackItem>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const NackItem& x, const NackItem& y) { return x.origin == y.origin && x.ranges == y.ranges; });
}

// Whether two decoded frames mean the same, wherever their intervals lie.
class SameItem {
 public:
  SameItem(const Frame& frame, const Frame& other) : frame_(frame), other_(other) {}

  bool operator()(const RecordItem& a, const RecordItem& b) const {
    return a.origin == b.origin && a.seq == b.seq && a.subject == b.subject && sets(a.set, b.set);
  }
  bool operator()(const HeartbeatItem& a, const HeartbeatItem& b) const {
    return std::tie(a.sent, a.echo, a.held, a.head, a.stable, a.receiver_incarnation, a.ack) ==
           std::tie(b.sent, b.echo, b.held, b.head, b.stable, b.receiver_incarnation, b.ack);
  }
  bool operator()(const NackItem& a, const NackItem& b) const { return a.origin == b.origin && a.ranges == b.ranges; }
  bool operator()(const GoneItem& a, const GoneItem& b) const { return a.origin == b.origin && a.upto == b.upto; }
  bool operator()(const VectorItem& a, const VectorItem& b) const {
    return a.answer == b.answer && a.entries == b.entries && same(a.beyond, b.beyond);
  }
  bool operator()(const DigestItem& a, const DigestItem& b) const { return a.low == b.low && a.high == b.high; }
  bool operator()(const ChunkItem& a, const ChunkItem& b) const {
    return a.from == b.from && a.to == b.to && entries(a.entries, b.entries);
  }
  bool operator()(const CopyRequestItem& a, const CopyRequestItem& b) const { return a.segments == b.segments; }
  bool operator()(const CopyItem& a, const CopyItem& b) const {
    return std::tie(a.segment, a.answer, a.part, a.last) == std::tie(b.segment, b.answer, b.part, b.last) &&
           a.vector == b.vector && same(a.beyond, b.beyond) && entries(a.entries, b.entries);
  }
  bool operator()(const ClaimItem& a, const ClaimItem& b) const {
    return a.id == b.id && a.subject == b.subject && a.hits == b.hits && a.time == b.time;
  }
  bool operator()(const ClaimAckItem& a, const ClaimAckItem& b) const { return a.id == b.id; }
  bool operator()(const ClaimDoneItem& a, const ClaimDoneItem& b) const { return a.id == b.id; }
  bool operator()(const UnheardItem& a, const UnheardItem& b) const { return a.nodes == b.nodes; }
  bool operator()(const SparedItem& a, const SparedItem& b) const {
    return a.receiver_incarnation == b.receiver_incarnation && a.upto == b.upto;
  }
  bool operator()(const TellItem& a, const TellItem& b) const {
    return a.position == b.position && a.tell == b.tell &&
           std::equal(a.keys.begin(), a.keys.end(), b.keys.begin(), b.keys.end(),
                      [&](const ToldItem& x, const ToldItem& y) {
                        return std::tie(x.since, x.subject.key, x.from, x.more, x.later) ==
                                   std::tie(y.since, y.subject.key, y.from, y.more, y.later) &&
                               sets(x.set, y.set);
                      });
  }
  bool operator()(const RetellItem& a, const RetellItem& b) const { return a.firsts == b.firsts; }
  template <class A, class B>
  bool operator()(const A&, const B&) const {
    return false;
  }

 private:
  bool sets(Slice a, Slice b) const { return same(frame_.set(a), other_.set(b)); }
  bool entries(const std::vector<EntryItem>& a, const std::vector<EntryItem>& b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const EntryItem& x, const EntryItem& y) {
      return x.subject == y.subject && sets(x.set, y.set);
    });
  }
  const Frame& frame_;
  const Frame& other_;
};

inline bool same(const Frame& a, const Frame& b) {
  return a.incarnation == b.incarnation &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [&](const Item& x, const Item& y) { return std::visit(SameItem(a, b), x, y); });
}

inline void write(FrameWriter& writer, const Frame& frame, NodeId sender, const Item& item) {
  std::visit(
      [&](const auto& what) {
        using What = std::remove_cvref_t<decltype(what)>;
        const auto write_entries = [&](const std::vector<EntryItem>& entries) {
          for (const EntryItem& entry : entries) writer.entry(entry.subject, frame.set(entry.set));
        };
        if constexpr (std::is_same_v<What, RecordItem>) {
          const bool relayed = what.origin != OriginId{sender, frame.incarnation};
          writer.record(what.origin, relayed, what.seq, what.subject, frame.set(what.set));
        } else if constexpr (std::is_same_v<What, ChunkItem>) {
          writer.chunk(what.from, what.to, what.entries.size());
          write_entries(what.entries);
        } else if constexpr (std::is_same_v<What, CopyItem>) {
          writer.copy(what, what.entries.size());
          write_entries(what.entries);
        } else if constexpr (std::is_same_v<What, TellItem>) {
          writer.put(what, frame.intervals);
        } else {
          writer.put(what);
        }
      },
      item);
}

inline Bytes encode(const Frame& frame, NodeId sender) {
  FrameWriter writer(frame.incarnation);
  for (const Item& item : frame.items) write(writer, frame, sender, item);
  return writer.take();
}

}  // namespace weir::test
