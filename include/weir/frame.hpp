// frame: what replicas say to each other, as bytes.
//
//     frame   = version:u8  incarnation:varint  item*           the sender's incarnation; at most kFrameMax bytes
//     item    = tag:u8  fields                                  see `Item` below; a record's tag has its flags in it
//             | tag:u8  length:varint  bytes                    tags from 0x40 to 0x7f: skipped where unknown
//     varint  = LEB128, at most 10 bytes                        fixed-width fields are little-endian
//     set     = start:u64 count:varint (step:varint count:varint)*     intervals in time order, a step from start to
//     start
//
// A record of one interval of a limiter at its first version takes 1 + 8 + 8 bytes and three varints: about 21, and the
// frame around it two more.
//
// Everything that comes in is checked: lengths, limits, the invariant of interval sets as far as it can be checked
// without a policy (starts ascend, counts >= 1); the replica checks the rest. A malformed frame is an error value, and
// what stood before the fault has no effect either: a frame is decoded whole before any of it is applied.
//
// Thread safety: values. Complexity: linear in the bytes. Errors: none up to the limits; `Writer` never writes more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "weir/interval.hpp"
#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

inline constexpr std::uint8_t kFrameVersion = 1;
// The most bytes and items of a frame, and of ranges and entries in one item.
inline constexpr std::size_t kFrameMax = std::size_t{1} << 20;
// Frames of many records are closed at this size, well below kFrameMax: a record has at most 700 bytes.
inline constexpr std::size_t kFrameTarget = 60'000;
inline constexpr std::size_t kItemsMax = std::size_t{1} << 14;
inline constexpr std::size_t kRangesMax = 64;
inline constexpr std::size_t kVectorMax = 4096;
inline constexpr std::size_t kEntriesMax = std::size_t{1} << 16;
inline constexpr std::size_t kToldMax = 1000;

// A run of a node: its records are numbered from 1 within it.
struct OriginId {
  NodeId node;
  std::uint64_t incarnation = 0;
  friend constexpr auto operator<=>(const OriginId&, const OriginId&) = default;
};

// What a key's births mean: under which limiter, and in which version of it.
struct Subject {
  LimiterId limiter;
  std::uint32_t version = 1;
  KeyHash key;
  friend constexpr bool operator==(const Subject&, const Subject&) = default;
};

// A reset is a record too, of one birth that lies decades back: those who don't know resets number it and pass it on,
// and count nothing. Its start holds the time of the reset in microseconds, rounded up, and eight bits that tell it
// from a birth of a node whose clock is that wrong.
Nanos rounded_for_mark(Nanos time) noexcept;
Interval reset_mark(KeyHash key, Nanos time) noexcept;  // REQUIRES: 0 <= time < 2^61
std::optional<Nanos> reset_time(KeyHash key, std::span<const Interval> births) noexcept;
// The time of the last birth, or of the reset. REQUIRES: !births.empty().
Nanos last_of(KeyHash key, std::span<const Interval> births) noexcept;

// The intervals of a decoded set lie one after the other in Frame::intervals.
struct Slice {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct RecordItem {
  OriginId origin;
  std::uint64_t seq = 0;
  Subject subject;
  Slice set;
};
// Signs of life: when it was sent, what of the receiver's was heard last and how long ago (0: nothing yet), the number
// of the sender's last record and up to which all live peers have them, and up to which of the receiver's it has all.
struct HeartbeatItem {
  Nanos sent;
  Nanos echo;
  Nanos held;
  std::uint64_t head = 0;
  std::uint64_t stable = 0;  // <= head
  std::uint64_t receiver_incarnation = 0;
  std::uint64_t ack = 0;
};
// With the heartbeats of a node that doesn't hear all members: those that it doesn't.
struct UnheardItem {
  std::vector<NodeId> nodes;
};
// "I refuse your records up to that one for now: you needn't keep them for my sake."
struct SparedItem {
  std::uint64_t receiver_incarnation = 0;
  std::uint64_t upto = 0;
};
// "Of these keys I have admitted so much more that I haven't sent: tell of it should I die." (estate.hpp)
struct ToldItem {
  std::uint64_t since = 0;  // so many tells before this one the whole was told, and this goes on; 0: this is the whole
  // The whole:
  Subject subject;
  Slice set;
  // What goes on: known by its first tell, and by the weight that was told before.
  Tokens from;
  Tokens more;
  Nanos later;  // from the end of what was told on, to the start of the rest, which is one interval; may be negative
};
struct TellItem {
  std::uint64_t position = 0;  // the number of the sender's next record
  std::uint64_t tell = 0;      // the number of the first of these tells; the others follow
  std::vector<ToldItem> keys;
};
// "I can't make anything of what you told after these tells: tell me the whole."
struct RetellItem {
  std::vector<std::uint64_t> firsts;
};
struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  friend constexpr bool operator==(const Range&, const Range&) = default;
};
// "Send me these records of that origin." The ranges ascend.
struct NackItem {
  OriginId origin;
  std::vector<Range> ranges;
};
// "Of that origin I have nothing that would bring you past `upto`": a copy of the state is needed.
struct GoneItem {
  OriginId origin;
  std::uint64_t upto = 0;
};
// Of a run that is over and forgotten a copy says that all of it is there, and so of all earlier ones of its node.
inline constexpr std::uint64_t kForgotten = static_cast<std::uint64_t>(kTimeMax.v);
struct VectorEntry {
  OriginId origin;
  std::uint64_t upto = 0;
  friend constexpr bool operator==(const VectorEntry&, const VectorEntry&) = default;
};
struct VectorItem {
  bool answer = false;  // the sender wants the receiver's vector
  std::vector<VectorEntry> entries;
  std::vector<NackItem> beyond;  // what came out of order, as in a copy
};
struct DigestItem {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};
struct EntryItem {
  Subject subject;
  Slice set;
};
// The sender's own births of records (from, to], folded by key.
struct ChunkItem {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::vector<EntryItem> entries;
};
// "Send me these segments of your published sets": a bit a segment.
struct CopyRequestItem {
  std::uint64_t segments = 0;
};
// One segment, or (`last` false) a part of one, with what it is true for: of each origin the records up to a number,
// and those beyond it that came out of order.
struct CopyItem {
  std::uint8_t segment = 0;
  std::uint64_t answer = 0;  // the parts of one answer fit together, those of several don't
  std::uint16_t part = 0;
  bool last = true;
  std::vector<VectorEntry> vector;
  std::vector<NackItem> beyond;
  std::vector<EntryItem> entries;
};
// "I was asked for so many hits at that time: count them until I am done."
struct ClaimItem {
  std::uint64_t id = 0;
  Subject subject;
  Tokens hits;
  Nanos time;
};
struct ClaimAckItem {
  std::uint64_t id = 0;
};
struct ClaimDoneItem {
  std::uint64_t id = 0;
};

using Item =
    std::variant<RecordItem, HeartbeatItem, NackItem, GoneItem, VectorItem, DigestItem, ChunkItem, CopyRequestItem,
                 CopyItem, ClaimItem, ClaimAckItem, ClaimDoneItem, UnheardItem, SparedItem, TellItem, RetellItem>;

// A frame decoded. Reused from one frame to the next, so that decoding need not allocate.
struct Frame {
  std::uint64_t incarnation = 0;
  std::vector<Item> items;
  std::vector<Interval> intervals;

  std::span<const Interval> set(Slice slice) const noexcept { return {intervals.data() + slice.first, slice.count}; }
};

// The origin, number and key of an encoded record that `FrameWriter::record` wrote; `sender` is the origin unless it
// was relayed.
struct RecordName {
  OriginId origin;
  std::uint64_t seq = 0;
  LimiterId limiter;
  KeyHash key;
};
RecordName record_name(std::span<const std::byte> record, const OriginId& sender);

enum class FrameError : std::uint8_t { none, too_long, truncated, version, tag, value };

// Decodes `bytes` that `sender` sent. On an error `frame` holds nothing that may be used.
FrameError decode(std::span<const std::byte> bytes, NodeId sender, Frame& frame);

// Whether a frame repairs or asks for repair: neither records nor signs of life nor claims, going by its first item. To
// such a frame the answer may be long.
bool is_repair(std::span<const std::byte> frame) noexcept;

// Whom a frame's first item is of, if that is a record: to fetch the key ahead. The frame may be malformed.
std::optional<Subject> first_subject(std::span<const std::byte> frame) noexcept;

// Encodes a frame, item by item.
class FrameWriter {
 public:
  explicit FrameWriter(std::uint64_t incarnation);

  // `origin` is the node the frame goes out from unless `relayed`.
  void record(const OriginId& origin, bool relayed, std::uint64_t seq, const Subject& subject,
              std::span<const Interval> set);
  void put(const HeartbeatItem& item);
  void put(const NackItem& item);
  void put(const GoneItem& item);
  void put(const VectorItem& item);
  void put(const DigestItem& item);
  void put(const CopyRequestItem& item);
  void put(const ClaimItem& item);
  void put(const ClaimAckItem& item);
  void put(const ClaimDoneItem& item);
  void put(const UnheardItem& item);
  void put(const SparedItem& item);
  void put(const TellItem& item, std::span<const Interval> intervals);  // in which the sets lie
  void put(const RetellItem& item);
  void chunk(std::uint64_t from, std::uint64_t to, std::size_t entries);
  void copy(const CopyItem& head, std::size_t entries);               // the entries of `head` itself are not written
  void entry(const Subject& subject, std::span<const Interval> set);  // as many as were announced

  // Appends a whole item, as `since` returned it.
  void raw(std::span<const std::byte> item) { bytes_.insert(bytes_.end(), item.begin(), item.end()); }
  // What was written after the first `size` bytes.
  std::span<const std::byte> since(std::size_t size) const noexcept { return std::span(bytes_).subspan(size); }

  bool empty() const noexcept { return bytes_.size() == header_; }
  std::size_t size() const noexcept { return bytes_.size(); }
  Bytes take();
  // Begins again, in the same memory. REQUIRES: nothing was taken.
  void clear() noexcept { bytes_.resize(header_); }

 private:
  void byte(unsigned value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void word(std::uint64_t value);
  void varint(std::uint64_t value);
  void origin(const OriginId& id);
  void vector(std::span<const VectorEntry> entries, std::span<const NackItem> beyond);
  void ranges(const NackItem& item);
  void subject(const Subject& subject);
  void set(std::span<const Interval> intervals);
  // An item that says how long it is: what was written since `size`.
  void sized(unsigned tag, std::size_t size);

  std::size_t header_ = 0;
  Bytes bytes_;
};

}  // namespace weir
