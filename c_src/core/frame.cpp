// frame: encoding and decoding. See include/weir/frame.hpp.
#include "weir/frame.hpp"

#include <bit>
#include <cassert>
#include <utility>

namespace weir {
namespace {

// Tags of items. Records, the many, have the upper bit and flags below it. From kSized on the length follows, so that
// nodes that don't know the item skip it.
enum Tag : unsigned {
  kHeartbeat = 1,
  kNack = 2,
  kGone = 3,
  kVector = 4,
  kVectorAnswer = 5,  // a vector that wants an answer
  kDigest = 6,
  kChunk = 7,
  kCopyRequest = 8,
  kCopy = 9,
  kCopyLast = 10,
  kClaim = 11,
  kClaimAck = 12,
  kClaimDone = 13,
  kSized = 0x40,
  kUnheard = 0x50,
  kSpared = 0x51,
  kTell = 0x52,
  kRetell = 0x53,
  kRecord = 0x80,
};
enum RecordFlag : unsigned { kRelayed = 1, kVersioned = 2, kSeveral = 4, kRecordFlags = 7 };

// Marks of resets up to the year 2112 lie before 2006.
constexpr std::int64_t kMarksEnd = std::int64_t{1} << 60;
static_assert((std::int64_t{1} << 61) / 1000 + 1 < kMarksEnd >> 8, "the latest reset's mark is one");

std::int64_t check_bits(KeyHash key, std::int64_t micros) noexcept {
  const std::uint64_t mixed = (key.v ^ static_cast<std::uint64_t>(micros)) * 0x9e3779b97f4a7c15u;
  return static_cast<std::int64_t>(mixed >> 56);
}

constexpr std::uint64_t kTimeLimit = static_cast<std::uint64_t>(kTimeMax.v);

// Reads forward; past the end, or after a bad value, everything is 0 and `error` says so.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  FrameError error() const noexcept { return error_; }
  bool more() const noexcept { return error_ == FrameError::none && at_ < bytes_.size(); }
  std::size_t left() const noexcept { return bytes_.size() - at_; }
  void fail(FrameError error) noexcept {
    if (error_ == FrameError::none) error_ = error;
    at_ = bytes_.size();
  }

  // The next `length` bytes, to be read on their own.
  Reader part(std::size_t length) noexcept {
    const Reader part(bytes_.subspan(at_, length));
    at_ += length;
    return part;
  }
  unsigned byte() noexcept {
    if (at_ >= bytes_.size()) {
      fail(FrameError::truncated);
      return 0;
    }
    return std::to_integer<unsigned>(bytes_[at_++]);
  }
  std::uint64_t word() noexcept {
    if (left() < 8) {
      fail(FrameError::truncated);
      return 0;
    }
    std::uint64_t value = 0;
    for (unsigned i = 0; i < 8; ++i) value |= std::to_integer<std::uint64_t>(bytes_[at_ + i]) << (8 * i);
    at_ += 8;
    return value;
  }
  std::uint64_t varint() noexcept {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const unsigned next = byte();
      value |= std::uint64_t{next & 0x7f} << shift;
      if (next < 0x80) {
        if (shift == 63 && next > 1) fail(FrameError::value);
        return value;
      }
    }
    fail(FrameError::value);
    return 0;
  }
  // A varint of at most `most`.
  std::uint64_t upto(std::uint64_t most) noexcept {
    const std::uint64_t value = varint();
    if (value <= most) return value;
    fail(FrameError::value);
    return 0;
  }
  // The number of parts that follow, each of at least `least` bytes: what can't be there isn't made room for.
  std::size_t count(std::size_t most, std::size_t least) noexcept {
    const std::uint64_t value = upto(most);
    if (value * least <= left()) return static_cast<std::size_t>(value);
    fail(FrameError::truncated);
    return 0;
  }
  Nanos time() noexcept {
    const std::uint64_t value = word();
    if (value > kTimeLimit) fail(FrameError::value);
    return {static_cast<std::int64_t>(value & kTimeLimit)};
  }
  OriginId origin() noexcept {
    const auto node = static_cast<std::uint32_t>(upto(UINT32_MAX));
    return {{node}, varint()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  FrameError error_ = FrameError::none;
};

// A flag says whether the limiter's version is on the wire.
Subject read_subject(Reader& in, bool versioned) {
  Subject subject;
  subject.limiter.v = static_cast<std::uint32_t>(in.upto(UINT32_MAX));
  if (versioned) subject.version = static_cast<std::uint32_t>(in.upto(UINT32_MAX));
  subject.key.v = in.word();
  return subject;
}

Slice read_set(Reader& in, std::size_t count, Frame& frame) {
  Slice slice{static_cast<std::uint32_t>(frame.intervals.size()), static_cast<std::uint32_t>(count)};
  Nanos start{0};
  for (std::size_t i = 0; i < count; ++i) {
    if (i == 0) {
      start = in.time();
    } else {
      const std::uint64_t step = in.upto(kTimeLimit - static_cast<std::uint64_t>(start.v));
      if (step == 0) in.fail(FrameError::value);
      start.v += static_cast<std::int64_t>(step);
    }
    const std::uint64_t weight = in.upto(kTimeLimit);
    if (weight == 0) in.fail(FrameError::value);
    frame.intervals.push_back({start, {static_cast<std::int64_t>(weight)}});
  }
  return slice;
}

RecordItem read_record(Reader& in, unsigned tag, OriginId sender, Frame& frame) {
  if ((tag & ~(unsigned{kRecord} | kRecordFlags)) != 0) in.fail(FrameError::tag);
  RecordItem item;
  item.origin = (tag & kRelayed) != 0 ? in.origin() : sender;
  item.seq = in.varint();
  if (item.seq == 0 || item.seq > kTimeLimit) in.fail(FrameError::value);
  item.subject = read_subject(in, (tag & kVersioned) != 0);
  const std::size_t count = (tag & kSeveral) != 0 ? in.count(kIntervalCap, 2) : 1;
  if (count == 0) in.fail(FrameError::value);
  item.set = read_set(in, count, frame);
  return item;
}

HeartbeatItem read_heartbeat(Reader& in) {
  HeartbeatItem item;
  item.sent = in.time();
  item.echo = in.time();
  item.held.v = static_cast<std::int64_t>(in.upto(kTimeLimit));
  item.head = in.upto(kTimeLimit);
  item.stable = item.head - in.upto(item.head);
  item.receiver_incarnation = in.varint();
  item.ack = in.upto(kTimeLimit);
  return item;
}

NackItem read_nack(Reader& in) {
  NackItem item;
  item.origin = in.origin();
  const std::size_t count = in.count(kRangesMax, 2);
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t first = in.upto(kTimeLimit);
    const std::uint64_t more = in.upto(kTimeLimit);
    // Ascending, so that nothing is asked for twice.
    if (first <= last || first + more > kTimeLimit) in.fail(FrameError::value);
    last = first + more;
    item.ranges.push_back({first, last});
  }
  return item;
}

std::vector<VectorEntry> read_vector(Reader& in) {
  std::vector<VectorEntry> entries(in.count(kVectorMax, 3));
  for (VectorEntry& entry : entries) {
    entry.origin = in.origin();
    entry.upto = in.upto(kTimeLimit);
  }
  return entries;
}

std::vector<NackItem> read_beyond(Reader& in) {
  std::vector<NackItem> beyond;
  const std::size_t late = in.count(kVectorMax, 3);
  for (std::size_t i = 0; i < late && in.error() == FrameError::none; ++i) beyond.push_back(read_nack(in));
  return beyond;
}

std::vector<EntryItem> read_entries(Reader& in, Frame& frame) {
  std::vector<EntryItem> entries(in.count(kEntriesMax, 20));
  for (EntryItem& entry : entries) {
    entry.subject = read_subject(in, true);
    const std::size_t count = in.count(kIntervalCap, 2);
    if (count == 0) in.fail(FrameError::value);
    entry.set = read_set(in, count, frame);
    if (in.error() != FrameError::none) break;
  }
  return entries;
}

ChunkItem read_chunk(Reader& in, Frame& frame) {
  ChunkItem item;
  item.from = in.upto(kTimeLimit - 1);
  item.to = item.from + in.upto(kTimeLimit - item.from);
  if (item.to == item.from) in.fail(FrameError::value);
  item.entries = read_entries(in, frame);
  return item;
}

CopyItem read_copy(Reader& in, bool last, Frame& frame) {
  CopyItem item;
  item.segment = static_cast<std::uint8_t>(in.upto(63));
  item.answer = in.varint();
  item.part = static_cast<std::uint16_t>(in.upto(UINT16_MAX));
  item.last = last;
  item.vector = read_vector(in);
  item.beyond = read_beyond(in);
  item.entries = read_entries(in, frame);
  return item;
}

ClaimItem read_claim(Reader& in) {
  ClaimItem item;
  item.id = in.varint();
  item.subject = read_subject(in, true);
  item.hits.v = static_cast<std::int64_t>(in.upto(kTimeLimit));
  if (item.hits.v == 0) in.fail(FrameError::value);
  item.time = in.time();
  return item;
}

UnheardItem read_unheard(Reader& in) {
  UnheardItem item;
  item.nodes.resize(in.count(kVectorMax, 1));
  for (NodeId& node : item.nodes) node.v = static_cast<std::uint32_t>(in.upto(UINT32_MAX));
  return item;
}

TellItem read_tell(Reader& in, Frame& frame) {
  TellItem item;
  item.position = in.upto(kTimeLimit);
  item.tell = in.upto(kTimeLimit - kToldMax);
  if (item.position == 0 || item.tell == 0) in.fail(FrameError::value);
  item.keys.resize(in.count(kToldMax, 4));
  for (ToldItem& told : item.keys) {
    told.since = in.upto(kTimeLimit);
    if (told.since == 0) {
      told.subject = read_subject(in, true);
      const std::size_t count = in.count(kIntervalCap, 2);
      if (count == 0) in.fail(FrameError::value);
      told.set = read_set(in, count, frame);
    } else {
      told.from.v = static_cast<std::int64_t>(in.upto(kTimeLimit));
      told.more.v = static_cast<std::int64_t>(in.upto(kTimeLimit));
      const std::uint64_t later = in.upto(2 * kTimeLimit + 1);
      told.later.v = static_cast<std::int64_t>(later >> 1) * ((later & 1) != 0 ? -1 : 1);
      if (told.more.v == 0) in.fail(FrameError::value);
    }
    if (in.error() != FrameError::none) break;
  }
  return item;
}

RetellItem read_retell(Reader& in) {
  RetellItem item;
  item.firsts.resize(in.count(kToldMax, 1));
  for (std::uint64_t& first : item.firsts) first = in.varint();
  return item;
}

// Bytes after what is known of such an item are of a later version of it.
void read_sized(Reader& all, unsigned tag, Frame& frame) {
  Reader in = all.part(all.count(kFrameMax, 1));
  if (tag == kUnheard) {
    frame.items.emplace_back(read_unheard(in));
  } else if (tag == kSpared) {
    const std::uint64_t incarnation = in.varint();
    frame.items.emplace_back(SparedItem{incarnation, in.upto(kTimeLimit)});
  } else if (tag == kTell) {
    frame.items.emplace_back(read_tell(in, frame));
  } else if (tag == kRetell) {
    frame.items.emplace_back(read_retell(in));
  }
  if (in.error() != FrameError::none) all.fail(in.error());
}

void read_item(Reader& in, OriginId sender, Frame& frame) {
  const unsigned tag = in.byte();
  if (tag >= kRecord) {
    frame.items.emplace_back(read_record(in, tag, sender, frame));
    return;
  }
  if (tag >= kSized) {
    read_sized(in, tag, frame);
    return;
  }
  switch (tag) {
    case kHeartbeat:
      frame.items.emplace_back(read_heartbeat(in));
      break;
    case kNack:
      frame.items.emplace_back(read_nack(in));
      break;
    case kGone: {
      const OriginId origin = in.origin();
      frame.items.emplace_back(GoneItem{origin, in.upto(kTimeLimit)});
      break;
    }
    case kVector:
    case kVectorAnswer: {
      std::vector<VectorEntry> entries = read_vector(in);
      frame.items.emplace_back(VectorItem{tag == kVectorAnswer, std::move(entries), read_beyond(in)});
      break;
    }
    case kDigest: {
      const std::uint64_t low = in.word();
      frame.items.emplace_back(DigestItem{low, in.word()});
      break;
    }
    case kChunk:
      frame.items.emplace_back(read_chunk(in, frame));
      break;
    case kCopyRequest:
      frame.items.emplace_back(CopyRequestItem{in.word()});
      break;
    case kCopy:
    case kCopyLast:
      frame.items.emplace_back(read_copy(in, tag == kCopyLast, frame));
      break;
    case kClaim:
      frame.items.emplace_back(read_claim(in));
      break;
    case kClaimAck:
      frame.items.emplace_back(ClaimAckItem{in.varint()});
      break;
    case kClaimDone:
      frame.items.emplace_back(ClaimDoneItem{in.varint()});
      break;
    default:
      in.fail(FrameError::tag);
  }
}

}  // namespace

Nanos rounded_for_mark(Nanos time) noexcept { return {ceil_div(time.v, 1000) * 1000}; }

Interval reset_mark(KeyHash key, Nanos time) noexcept {
  const std::int64_t micros = ceil_div(time.v, 1000);
  return {{micros << 8 | check_bits(key, micros)}, {1}};
}

std::optional<Nanos> reset_time(KeyHash key, std::span<const Interval> births) noexcept {
  if (births.size() != 1 || births[0].count.v != 1 || births[0].start.v >= kMarksEnd) return std::nullopt;
  const std::int64_t micros = births[0].start.v >> 8;
  if ((births[0].start.v & 0xff) != check_bits(key, micros)) return std::nullopt;
  return Nanos{micros * 1000};
}

Nanos last_of(KeyHash key, std::span<const Interval> births) noexcept {
  return reset_time(key, births).value_or(births.back().start);
}

FrameError decode(std::span<const std::byte> bytes, NodeId sender, Frame& frame) {
  frame.items.clear();
  frame.intervals.clear();
  if (bytes.size() > kFrameMax) return FrameError::too_long;
  Reader in(bytes);
  const unsigned version = in.byte();
  if (version != kFrameVersion) return in.error() != FrameError::none ? in.error() : FrameError::version;
  frame.incarnation = in.varint();
  const OriginId origin{sender, frame.incarnation};
  while (in.more()) {
    if (frame.items.size() == kItemsMax) in.fail(FrameError::too_long);
    read_item(in, origin, frame);
  }
  if (in.error() != FrameError::none) frame.items.clear();
  return in.error();
}

bool is_repair(std::span<const std::byte> frame) noexcept {
  Reader in(frame);
  in.byte();
  in.varint();
  const unsigned tag = in.more() ? in.byte() : unsigned{kHeartbeat};
  return tag < kSized && tag != kHeartbeat && tag != kClaim && tag != kClaimAck && tag != kClaimDone;
}

std::optional<Subject> first_subject(std::span<const std::byte> frame) noexcept {
  Reader in(frame);
  in.byte();
  in.varint();
  const unsigned tag = in.more() ? in.byte() : 0;
  if (tag < kRecord) return std::nullopt;
  if ((tag & kRelayed) != 0) in.origin();
  in.varint();
  const Subject subject = read_subject(in, (tag & kVersioned) != 0);
  if (in.error() != FrameError::none) return std::nullopt;
  return subject;
}

RecordName record_name(std::span<const std::byte> record, const OriginId& sender) {
  Reader in(record);
  const unsigned tag = in.byte();
  const OriginId origin = (tag & kRelayed) != 0 ? in.origin() : sender;
  const std::uint64_t seq = in.varint();
  const Subject subject = read_subject(in, (tag & kVersioned) != 0);
  return {origin, seq, subject.limiter, subject.key};
}

FrameWriter::FrameWriter(std::uint64_t incarnation) {
  byte(kFrameVersion);
  varint(incarnation);
  header_ = bytes_.size();
}

Bytes FrameWriter::take() {
  assert(bytes_.size() <= kFrameMax);
  return std::exchange(bytes_, {});
}

void FrameWriter::word(std::uint64_t value) {
  for (unsigned i = 0; i < 8; ++i) byte(static_cast<unsigned>(value >> (8 * i)) & 0xff);
}

void FrameWriter::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) byte(0x80 | static_cast<unsigned>(value & 0x7f));
  byte(static_cast<unsigned>(value));
}

void FrameWriter::origin(const OriginId& id) {
  varint(id.node.v);
  varint(id.incarnation);
}

void FrameWriter::subject(const Subject& subject) {
  varint(subject.limiter.v);
  varint(subject.version);
  word(subject.key.v);
}

void FrameWriter::set(std::span<const Interval> intervals) {
  Nanos last{0};
  for (const Interval& interval : intervals) {
    if (&interval == intervals.data()) {
      word(static_cast<std::uint64_t>(interval.start.v));
    } else {
      varint(static_cast<std::uint64_t>((interval.start - last).v));
    }
    varint(static_cast<std::uint64_t>(interval.count.v));
    last = interval.start;
  }
}

void FrameWriter::record(const OriginId& id, bool relayed, std::uint64_t seq, const Subject& about,
                         std::span<const Interval> births) {
  assert(!births.empty() && births.size() <= kIntervalCap);
  const bool versioned = about.version != 1;
  const bool several = births.size() != 1;
  byte(kRecord | (relayed ? kRelayed : 0u) | (versioned ? kVersioned : 0u) | (several ? kSeveral : 0u));
  if (relayed) origin(id);
  varint(seq);
  varint(about.limiter.v);
  if (versioned) varint(about.version);
  word(about.key.v);
  if (several) varint(births.size());
  set(births);
}

void FrameWriter::put(const HeartbeatItem& item) {
  byte(kHeartbeat);
  word(static_cast<std::uint64_t>(item.sent.v));
  word(static_cast<std::uint64_t>(item.echo.v));
  varint(static_cast<std::uint64_t>(item.held.v));
  varint(item.head);
  varint(item.head - item.stable);
  varint(item.receiver_incarnation);
  varint(item.ack);
}

void FrameWriter::ranges(const NackItem& item) {
  origin(item.origin);
  varint(item.ranges.size());
  for (const Range& range : item.ranges) {
    varint(range.first);
    varint(range.last - range.first);
  }
}

void FrameWriter::put(const NackItem& item) {
  byte(kNack);
  ranges(item);
}

void FrameWriter::put(const GoneItem& item) {
  byte(kGone);
  origin(item.origin);
  varint(item.upto);
}

void FrameWriter::vector(std::span<const VectorEntry> entries, std::span<const NackItem> beyond) {
  varint(entries.size());
  for (const VectorEntry& entry : entries) {
    origin(entry.origin);
    varint(entry.upto);
  }
  varint(beyond.size());
  for (const NackItem& late : beyond) ranges(late);
}

void FrameWriter::put(const VectorItem& item) {
  byte(item.answer ? kVectorAnswer : kVector);
  vector(item.entries, item.beyond);
}

void FrameWriter::put(const DigestItem& item) {
  byte(kDigest);
  word(item.low);
  word(item.high);
}

void FrameWriter::put(const CopyRequestItem& item) {
  byte(kCopyRequest);
  word(item.segments);
}

void FrameWriter::put(const ClaimItem& item) {
  byte(kClaim);
  varint(item.id);
  subject(item.subject);
  varint(static_cast<std::uint64_t>(item.hits.v));
  word(static_cast<std::uint64_t>(item.time.v));
}

void FrameWriter::put(const ClaimAckItem& item) {
  byte(kClaimAck);
  varint(item.id);
}

void FrameWriter::put(const ClaimDoneItem& item) {
  byte(kClaimDone);
  varint(item.id);
}

void FrameWriter::sized(unsigned tag, std::size_t size) {
  const Bytes body(bytes_.begin() + static_cast<std::ptrdiff_t>(size), bytes_.end());
  bytes_.resize(size);
  byte(tag);
  varint(body.size());
  raw(body);
}

void FrameWriter::put(const UnheardItem& item) {
  const std::size_t before = size();
  varint(item.nodes.size());
  for (const NodeId node : item.nodes) varint(node.v);
  sized(kUnheard, before);
}

void FrameWriter::put(const SparedItem& item) {
  const std::size_t before = size();
  varint(item.receiver_incarnation);
  varint(item.upto);
  sized(kSpared, before);
}

void FrameWriter::put(const TellItem& item, std::span<const Interval> intervals) {
  const std::size_t before = size();
  varint(item.position);
  varint(item.tell);
  varint(item.keys.size());
  for (const ToldItem& told : item.keys) {
    varint(told.since);
    if (told.since == 0) {
      entry(told.subject, intervals.subspan(told.set.first, told.set.count));
      continue;
    }
    varint(static_cast<std::uint64_t>(told.from.v));
    varint(static_cast<std::uint64_t>(told.more.v));
    // The sign is the lowest bit, so that what is near takes few bytes either way.
    const bool earlier = told.later.v < 0;
    varint(static_cast<std::uint64_t>(earlier ? -told.later.v : told.later.v) << 1 | (earlier ? 1 : 0));
  }
  sized(kTell, before);
}

void FrameWriter::put(const RetellItem& item) {
  const std::size_t before = size();
  varint(item.firsts.size());
  for (const std::uint64_t first : item.firsts) varint(first);
  sized(kRetell, before);
}

void FrameWriter::chunk(std::uint64_t from, std::uint64_t to, std::size_t entries) {
  byte(kChunk);
  varint(from);
  varint(to - from);
  varint(entries);
}

void FrameWriter::copy(const CopyItem& head, std::size_t entries) {
  byte(head.last ? kCopyLast : kCopy);
  varint(head.segment);
  varint(head.answer);
  varint(head.part);
  vector(head.vector, head.beyond);
  varint(entries);
}

void FrameWriter::entry(const Subject& about, std::span<const Interval> births) {
  subject(about);
  varint(births.size());
  set(births);
}

}  // namespace weir
