// Frames: what is written is what is read; nothing else is read.
#include "weir/frame.hpp"

#include <array>
#include <set>

#include "cases.hpp"
#include "frames.hpp"

namespace weir::test {
namespace {

constexpr NodeId kSender{3};
constexpr std::uint64_t kLimit = static_cast<std::uint64_t>(kTimeMax.v);

// Values of every length, the ends of the range among them.
std::uint64_t draw_upto(Rng& rng, std::uint64_t most) {
  if (chance(rng, 10)) return pick<std::uint64_t>(rng, {0, most});
  const auto bits = draw(rng, 0, 63);
  return std::uniform_int_distribution<std::uint64_t>(0, most >> bits)(rng);
}
std::uint64_t draw_word(Rng& rng) { return draw_upto(rng, UINT64_MAX); }
std::uint32_t draw_half(Rng& rng) { return static_cast<std::uint32_t>(draw_upto(rng, UINT32_MAX)); }
Nanos draw_time(Rng& rng) { return {static_cast<std::int64_t>(draw_upto(rng, kLimit))}; }
std::uint64_t draw_seq(Rng& rng) { return 1 + draw_upto(rng, kLimit - 1); }
OriginId draw_origin(Rng& rng) { return {{draw_half(rng)}, draw_word(rng)}; }
Subject draw_subject(Rng& rng) {
  Subject subject{{draw_half(rng)}, 1, {draw_word(rng)}};
  if (chance(rng, 50)) subject.version = draw_half(rng);
  return subject;
}
Slice draw_set(Rng& rng, Frame& frame) {
  std::set<std::int64_t> starts;
  const auto count = chance(rng, 60) ? 1 : draw(rng, 1, kIntervalCap);
  while (starts.size() < static_cast<std::size_t>(count)) starts.insert(draw_time(rng).v);
  const auto first = static_cast<std::uint32_t>(frame.intervals.size());
  for (const std::int64_t start : starts) {
    frame.intervals.push_back({{start}, {static_cast<std::int64_t>(draw_seq(rng))}});
  }
  return {first, static_cast<std::uint32_t>(count)};
}
NackItem draw_nack(Rng& rng) {
  NackItem item{draw_origin(rng), {}};
  std::set<std::uint64_t> ends;
  for (auto count = 2 * draw(rng, 0, kRangesMax); count > 0; --count) ends.insert(draw_seq(rng));
  for (auto end = ends.begin(); end != ends.end(); ++end) {
    const std::uint64_t first = *end;
    if (chance(rng, 70) && std::next(end) != ends.end()) ++end;
    item.ranges.push_back({first, *end});
    if (item.ranges.size() == kRangesMax) break;
  }
  return item;
}
std::vector<NackItem> draw_beyond(Rng& rng) {
  std::vector<NackItem> beyond(static_cast<std::size_t>(draw(rng, 0, 3)));
  for (NackItem& late : beyond) late = draw_nack(rng);
  return beyond;
}
std::vector<VectorEntry> draw_vector(Rng& rng) {
  std::vector<VectorEntry> entries(static_cast<std::size_t>(draw(rng, 0, 20)));
  for (VectorEntry& entry : entries) entry = {draw_origin(rng), draw_upto(rng, kLimit)};
  return entries;
}
std::vector<EntryItem> draw_entries(Rng& rng, Frame& frame) {
  std::vector<EntryItem> entries(static_cast<std::size_t>(draw(rng, 0, 20)));
  for (EntryItem& entry : entries) entry = {draw_subject(rng), draw_set(rng, frame)};
  return entries;
}
HeartbeatItem draw_heartbeat(Rng& rng) {
  HeartbeatItem item;
  item.sent = draw_time(rng);
  item.echo = draw_time(rng);
  item.held = draw_time(rng);
  item.head = draw_upto(rng, kLimit);
  item.stable = draw_upto(rng, item.head);
  item.receiver_incarnation = draw_word(rng);
  item.ack = draw_upto(rng, kLimit);
  return item;
}
CopyItem draw_copy(Rng& rng, Frame& frame) {
  CopyItem item;
  item.segment = static_cast<std::uint8_t>(draw(rng, 0, 63));
  item.answer = draw_word(rng);
  item.part = static_cast<std::uint16_t>(draw_upto(rng, UINT16_MAX));
  item.last = chance(rng, 50);
  item.vector = draw_vector(rng);
  item.beyond = draw_beyond(rng);
  item.entries = draw_entries(rng, frame);
  return item;
}

// An item of the given alternative of the variant.
Item draw_item(Rng& rng, Frame& frame, std::size_t which) {
  switch (which) {
    case 0: {
      const OriginId origin = chance(rng, 50) ? OriginId{kSender, frame.incarnation} : draw_origin(rng);
      return RecordItem{origin, draw_seq(rng), draw_subject(rng), draw_set(rng, frame)};
    }
    case 1:
      return draw_heartbeat(rng);
    case 2:
      return draw_nack(rng);
    case 3:
      return GoneItem{draw_origin(rng), draw_upto(rng, kLimit)};
    case 4:
      return VectorItem{chance(rng, 50), draw_vector(rng), draw_beyond(rng)};
    case 5:
      return DigestItem{draw_word(rng), draw_word(rng)};
    case 6: {
      const std::uint64_t from = draw_upto(rng, kLimit - 1);
      return ChunkItem{from, from + 1 + draw_upto(rng, kLimit - from - 1), draw_entries(rng, frame)};
    }
    case 7:
      return CopyRequestItem{draw_word(rng)};
    case 8:
      return draw_copy(rng, frame);
    case 9:
      return ClaimItem{draw_word(rng), draw_subject(rng), {static_cast<std::int64_t>(draw_seq(rng))}, draw_time(rng)};
    case 10:
      return ClaimAckItem{draw_word(rng)};
    case 11:
      return ClaimDoneItem{draw_word(rng)};
    case 12: {
      UnheardItem item;
      item.nodes.resize(static_cast<std::size_t>(draw(rng, 0, 20)));
      for (NodeId& node : item.nodes) node.v = static_cast<std::uint32_t>(draw_upto(rng, UINT32_MAX));
      return item;
    }
    case 13:
      return SparedItem{draw_word(rng), draw_upto(rng, kLimit)};
    case 14: {
      TellItem item;
      item.position = draw_seq(rng);
      item.tell = 1 + draw_upto(rng, kLimit - kToldMax - 1);
      item.keys.resize(static_cast<std::size_t>(draw(rng, 0, 20)));
      for (ToldItem& told : item.keys) {
        if (chance(rng, 50)) {
          told.subject = draw_subject(rng);
          told.set = draw_set(rng, frame);
          continue;
        }
        told.since = draw_seq(rng);
        told.from.v = static_cast<std::int64_t>(draw_upto(rng, kLimit));
        told.more.v = static_cast<std::int64_t>(draw_seq(rng));
        told.later.v = static_cast<std::int64_t>(draw_upto(rng, kLimit)) * (chance(rng, 50) ? -1 : 1);
      }
      return item;
    }
    default: {
      RetellItem item;
      item.firsts.resize(static_cast<std::size_t>(draw(rng, 0, 20)));
      for (std::uint64_t& first : item.firsts) first = draw_word(rng);
      return item;
    }
  }
}
constexpr std::size_t kKinds = std::variant_size_v<Item>;

FrameError error_of(std::span<const std::byte> bytes) {
  Frame frame;
  return decode(bytes, kSender, frame);
}

// A frame by hand: fields as a test wants them, right or wrong.
class Raw {
 public:
  Raw() { *this << kFrameVersion << 1; }
  Raw& operator<<(unsigned byte) {
    bytes_.push_back(static_cast<std::byte>(byte));
    return *this;
  }
  Raw& word(std::uint64_t value) {
    for (unsigned i = 0; i < 8; ++i) *this << (value >> (8 * i) & 0xff);
    return *this;
  }
  Raw& varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) *this << (0x80 | (value & 0x7f));
    return *this << static_cast<unsigned>(value);
  }
  FrameError error() const { return error_of(bytes_); }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

}  // namespace

TEST_CASE("every item is read as it was written", "[frame]") {
  for_cases([](Rng& rng) {
    Frame frame;
    frame.incarnation = draw_word(rng);
    for (std::size_t which = 0; which < kKinds; ++which) {
      frame.items.push_back(draw_item(rng, frame, which));
      REQUIRE(frame.items.back().index() == which);
    }
    std::shuffle(frame.items.begin(), frame.items.end(), rng);
    Frame read;
    REQUIRE(decode(encode(frame, kSender), kSender, read) == FrameError::none);
    CHECK(same(frame, read));
  });
}

TEST_CASE("a frame that was cut short is an error or some of its items", "[frame]") {
  for_cases([](Rng& rng) {
    Frame frame;
    frame.incarnation = draw_word(rng);
    const auto which = static_cast<std::size_t>(draw(rng, 0, kKinds - 1));
    frame.items.push_back(draw_item(rng, frame, which));
    const Bytes bytes = encode(frame, kSender);
    const std::size_t header = FrameWriter(frame.incarnation).size();
    Frame read;
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const FrameError error = decode(std::span(bytes).first(size), kSender, read);
      REQUIRE(read.items.empty());
      REQUIRE(error == (size == header ? FrameError::none : FrameError::truncated));
    }
  });
}

TEST_CASE("what stands before a fault has no effect", "[frame]") {
  FrameWriter writer(1);
  writer.put(ClaimAckItem{1});
  Bytes bytes = writer.take();
  bytes.push_back(std::byte{0});
  Frame frame;
  CHECK(decode(bytes, kSender, frame) == FrameError::tag);
  CHECK(frame.items.empty());
}

namespace {

std::size_t record_size(std::uint64_t seq, const Subject& subject, std::span<const Interval> set) {
  FrameWriter writer(1);
  const std::size_t before = writer.size();
  writer.record({kSender, 1}, false, seq, subject, set);
  return writer.size() - before;
}

}  // namespace

// The price of every admitted birth of a small limiter, once for each peer: whoever makes it longer should know.
TEST_CASE("an ordinary record takes 20 to 22 bytes, the frame around it 2", "[frame]") {
  const Subject subject{{0}, 1, {UINT64_MAX}};
  const std::vector<Interval> one = {{kBase, {5}}};
  const std::vector<Interval> two = {{kBase, {5}}, {kBase + Nanos{1'000'000'000}, {1}}};
  CHECK(FrameWriter(1).size() == 2);
  CHECK(record_size(1, subject, one) == 20);
  CHECK(record_size(1'000'000, subject, one) == 22);
  CHECK(record_size(1'000'000, {{0}, 2, {UINT64_MAX}}, one) == 23);
  CHECK(record_size(1, subject, two) == 27);
}

// Journals hold records of up to 65535 bytes, and senders close a frame 60,000 bytes before it is full.
TEST_CASE("no record is longer than 700 bytes", "[frame]") {
  std::vector<Interval> most(kIntervalCap);
  for (std::size_t i = 0; i < most.size(); ++i) most[i] = {{static_cast<std::int64_t>(i) << 57}, {kTimeMax.v}};
  FrameWriter writer(1);
  const OriginId origin{{UINT32_MAX}, UINT64_MAX};
  writer.record(origin, true, kLimit, {{UINT32_MAX}, UINT32_MAX, {UINT64_MAX}}, most);
  CHECK(writer.size() <= 702);
}

TEST_CASE("ranges, vectors, entries and items have their limits", "[frame]") {
  const auto nack = [](std::size_t count) {
    Raw raw;
    raw << 2 << 1 << 1;
    raw.varint(count);
    for (std::size_t i = 1; i <= count; ++i) raw << static_cast<unsigned>(i) << 0;
    return raw.error();
  };
  CHECK(nack(kRangesMax) == FrameError::none);
  CHECK(nack(kRangesMax + 1) == FrameError::value);

  const auto vector = [](std::size_t entries, std::size_t late) {
    Raw raw;
    raw << 4;
    raw.varint(entries);
    for (std::size_t i = 0; i < entries; ++i) raw << 1 << 1 << 1;
    raw.varint(late);
    for (std::size_t i = 0; i < late; ++i) raw << 1 << 1 << 0;
    return raw.error();
  };
  CHECK(vector(kVectorMax, kVectorMax) == FrameError::none);
  CHECK(vector(kVectorMax + 1, 0) == FrameError::value);
  CHECK(vector(0, kVectorMax + 1) == FrameError::value);

  const auto items = [](std::size_t count) {
    Raw raw;
    for (std::size_t i = 0; i < count; ++i) raw << 12 << 1;
    return raw.error();
  };
  CHECK(items(kItemsMax) == FrameError::none);
  CHECK(items(kItemsMax + 1) == FrameError::too_long);
}

TEST_CASE("a frame has at most kFrameMax bytes", "[frame]") {
  FrameWriter writer(1);
  VectorItem vector;
  vector.entries.resize(kVectorMax, {{{UINT32_MAX}, UINT64_MAX}, kLimit});
  while (writer.size() + 25 * kVectorMax <= kFrameMax) writer.put(vector);
  while (kFrameMax - writer.size() >= 22) writer.put(ClaimAckItem{UINT64_MAX});
  // Two acknowledgements fill what is left: a tag, then a varint of as many bytes as it takes.
  const auto ack = [&](std::size_t bytes) { writer.put(ClaimAckItem{std::uint64_t{1} << (7 * (bytes - 2))}); };
  const std::size_t left = kFrameMax - writer.size();
  ack(left / 2);
  ack(left - left / 2);
  Bytes bytes = writer.take();
  REQUIRE(bytes.size() == kFrameMax);
  CHECK(error_of(bytes) == FrameError::none);
  bytes.push_back(std::byte{12});
  CHECK(error_of(bytes) == FrameError::too_long);
}

TEST_CASE("counts that announce more than there is are refused before room is made", "[frame]") {
  CHECK((Raw() << 2 << 1 << 1 << 3 << 1 << 0 << 1 << 0).error() == FrameError::truncated);  // 3 ranges, 2 are there
  CHECK((Raw() << 4).varint(kVectorMax).error() == FrameError::truncated);
  CHECK((Raw() << 7 << 0 << 1).varint(kEntriesMax).error() == FrameError::truncated);
  CHECK((Raw() << 7 << 0 << 1).varint(kEntriesMax + 1).error() == FrameError::value);
  CHECK((Raw() << 7 << 0 << 1).varint(UINT64_MAX).error() == FrameError::value);
}

TEST_CASE("a varint has at most 10 bytes and 64 bits", "[frame]") {
  const auto ack = [](std::size_t bytes, unsigned last) {
    Raw raw;
    raw << 12;
    for (std::size_t i = 1; i < bytes; ++i) raw << 0xff;
    return (raw << last).error();
  };
  CHECK(ack(9, 0x7f) == FrameError::none);
  CHECK(ack(10, 1) == FrameError::none);
  CHECK(ack(10, 2) == FrameError::value);
  CHECK(ack(10, 0x80) == FrameError::value);
  CHECK(ack(11, 0) == FrameError::value);
  CHECK(ack(40, 0) == FrameError::value);
}

TEST_CASE("times, weights and numbers stay below 2^62", "[frame]") {
  const auto record = [](std::uint64_t seq, std::uint64_t start, std::uint64_t weight) {
    return (Raw() << 0x80).varint(seq).varint(0).word(1).word(start).varint(weight).error();
  };
  CHECK(record(1, kLimit, kLimit) == FrameError::none);
  CHECK(record(kLimit, 0, 1) == FrameError::none);
  CHECK(record(kLimit + 1, 0, 1) == FrameError::value);
  CHECK(record(0, 0, 1) == FrameError::value);
  CHECK(record(1, kLimit + 1, 1) == FrameError::value);
  CHECK(record(1, UINT64_MAX, 1) == FrameError::value);
  CHECK(record(1, 0, kLimit + 1) == FrameError::value);
  CHECK(record(1, 0, 0) == FrameError::value);

  const auto several = [](std::uint64_t count, std::uint64_t start, std::uint64_t step) {
    Raw raw;
    (raw << 0x84 << 1 << 0).word(1).varint(count).word(start).varint(1);
    for (std::uint64_t i = 1; i < count; ++i) raw.varint(step).varint(1);
    return raw.error();
  };
  CHECK(several(kIntervalCap, kLimit - 31, 1) == FrameError::none);
  CHECK(several(kIntervalCap, kLimit - 30, 1) == FrameError::value);
  CHECK(several(kIntervalCap + 1, 0, 1) == FrameError::value);
  CHECK(several(0, 0, 1) == FrameError::value);
  CHECK(several(2, 0, 0) == FrameError::value);
  CHECK(several(2, 5, UINT64_MAX) == FrameError::value);

  const auto heartbeat = [](std::uint64_t sent, std::uint64_t held, std::uint64_t head, std::uint64_t stable) {
    return (Raw() << 1).word(sent).word(0).varint(held).varint(head).varint(stable).varint(1).varint(0).error();
  };
  CHECK(heartbeat(kLimit, kLimit, kLimit, kLimit) == FrameError::none);
  CHECK(heartbeat(kLimit + 1, 0, 0, 0) == FrameError::value);
  CHECK(heartbeat(0, kLimit + 1, 0, 0) == FrameError::value);
  CHECK(heartbeat(0, 0, kLimit + 1, 0) == FrameError::value);
  CHECK(heartbeat(0, 0, 1, 2) == FrameError::value);

  const auto range = [](std::uint64_t first, std::uint64_t more) {
    return (Raw() << 2 << 1 << 1 << 1).varint(first).varint(more).error();
  };
  CHECK(range(1, kLimit - 1) == FrameError::none);
  CHECK(range(2, kLimit - 1) == FrameError::value);
  CHECK(range(0, 1) == FrameError::value);
  CHECK(range(kLimit, kLimit) == FrameError::value);
  // Ranges that overlap would be answered twice.
  CHECK((Raw() << 2 << 1 << 1 << 2 << 5 << 2 << 8 << 0).error() == FrameError::none);
  CHECK((Raw() << 2 << 1 << 1 << 2 << 5 << 2 << 7 << 0).error() == FrameError::value);
  CHECK((Raw() << 2 << 1 << 1 << 2 << 5 << 2 << 3 << 0).error() == FrameError::value);

  CHECK((Raw() << 7).varint(kLimit - 1).varint(1).varint(0).error() == FrameError::none);
  CHECK((Raw() << 7).varint(kLimit - 1).varint(2).varint(0).error() == FrameError::value);
  CHECK((Raw() << 7).varint(5).varint(0).varint(0).error() == FrameError::value);
  CHECK((Raw() << 11 << 1 << 0 << 1 << 0).word(1).varint(0).word(1).error() == FrameError::value);  // no hits
  CHECK((Raw() << 10).varint(64).varint(0).varint(0).error() == FrameError::value);                 // segment
}

TEST_CASE("versions, tags and flags that don't exist are refused", "[frame]") {
  CHECK(error_of({}) == FrameError::truncated);
  const std::vector<std::byte> next = {static_cast<std::byte>(kFrameVersion + 1), std::byte{1}};
  CHECK(error_of(next) == FrameError::version);
  CHECK((Raw() << 0).error() == FrameError::tag);
  CHECK((Raw() << 14).error() == FrameError::tag);
  for (const unsigned flag : {8u, 16u, 32u, 64u}) {
    CHECK((Raw() << (0x80 | flag) << 1 << 0).word(1).word(1).varint(1).error() == FrameError::tag);
  }
}

TEST_CASE("an item of a later version is skipped, and what stands around it holds", "[frame]") {
  for (const unsigned tag : {0x40u, 0x5au, 0x7fu}) {
    FrameWriter writer(7);
    writer.put(GoneItem{{{1}, 2}, 3});
    const std::vector<std::byte> unknown = {std::byte(tag), std::byte{3}, std::byte{0xff}, std::byte{0},
                                            std::byte{0x80}};
    writer.raw(unknown);
    writer.put(ClaimAckItem{9});
    writer.raw(std::array{std::byte(tag), std::byte{0}});
    Frame frame;
    REQUIRE(decode(writer.take(), kSender, frame) == FrameError::none);
    REQUIRE(frame.items.size() == 2);
    CHECK(std::get<GoneItem>(frame.items[0]).upto == 3);
    CHECK(std::get<ClaimAckItem>(frame.items[1]).id == 9);
  }
  // It ends where the frame ends, and not beyond.
  CHECK((Raw() << 0x40 << 2 << 0 << 0).error() == FrameError::none);
  CHECK((Raw() << 0x40 << 3 << 0 << 0).error() == FrameError::truncated);
  CHECK((Raw() << 0x40).error() == FrameError::truncated);
  CHECK((Raw() << 0x40).varint(UINT64_MAX).error() == FrameError::value);
  CHECK((Raw() << 0x3f << 0).error() == FrameError::tag);
}

TEST_CASE("an item with a length is skipped by who doesn't know it, or not all of it", "[frame]") {
  Frame frame;
  const auto read = [&](const Raw& raw) { return decode(raw.bytes(), kSender, frame); };
  // Nothing, three bytes, then an acknowledgement.
  CHECK(read(Raw() << 0x40 << 0 << 0x7f << 3 << 1 << 2 << 3 << 12 << 5) == FrameError::none);
  REQUIRE(frame.items.size() == 1);
  CHECK(std::get<ClaimAckItem>(frame.items[0]).id == 5);
  // A later version of an item may say more.
  CHECK(read(Raw() << 0x50 << 4 << 1 << 9 << 77 << 78) == FrameError::none);
  REQUIRE(frame.items.size() == 1);
  CHECK(std::get<UnheardItem>(frame.items[0]).nodes == std::vector<NodeId>{{9}});
  CHECK(read(Raw() << 0x50 << 1 << 1) == FrameError::truncated);
  CHECK(read(Raw() << 0x41 << 4 << 1 << 2 << 3) == FrameError::truncated);
  CHECK_FALSE(is_repair((Raw() << 0x50 << 1 << 0).bytes()));
}

TEST_CASE("a logged record knows its name, a frame what it is for", "[frame]") {
  const std::vector<Interval> one = {{kBase, {5}}};
  const OriginId self{kSender, 7};
  const OriginId other{{4}, UINT64_MAX};
  for (const bool relayed : {false, true}) {
    FrameWriter writer(1);
    const std::size_t before = writer.size();
    writer.record(relayed ? other : self, relayed, 300, {{1}, 1, {9}}, one);
    const RecordName name = record_name(writer.since(before), self);
    CHECK(name.origin == (relayed ? other : self));
    CHECK(name.seq == 300);
    const Bytes frame = writer.take();
    CHECK_FALSE(is_repair(frame));
    CHECK(first_subject(frame) == Subject{{1}, 1, {9}});
    // Cut short before the key's end, it has none.
    const std::size_t births = frame.size() - 9;
    for (std::size_t size = 0; size < frame.size(); ++size)
      CHECK(first_subject(std::span(frame).first(size)).has_value() == (size >= births));
  }
  const auto repairs = [](const auto& item) {
    FrameWriter writer(1);
    writer.put(item);
    const Bytes frame = writer.take();
    CHECK_FALSE(first_subject(frame));
    return is_repair(frame);
  };
  CHECK_FALSE(repairs(HeartbeatItem{}));
  CHECK_FALSE(repairs(ClaimItem{}));
  CHECK_FALSE(repairs(ClaimAckItem{}));
  CHECK_FALSE(repairs(ClaimDoneItem{}));
  CHECK(repairs(NackItem{}));
  CHECK(repairs(GoneItem{}));
  CHECK(repairs(VectorItem{}));
  CHECK(repairs(DigestItem{}));
  CHECK(repairs(CopyRequestItem{}));
  CHECK_FALSE(is_repair({}));
}

}  // namespace weir::test
