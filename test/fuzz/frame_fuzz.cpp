// Bytes as frames, and as what a replica may be told by its peers.
//
// The first byte says which:
//   even   The rest is decoded as a frame. What decodes, encoded again, decodes to the same meaning.
//   odd    The rest is a configuration and steps for one replica of four: asks, ticks, members that come and go,
//   changed
//          limiters, frames of raw bytes, and frames of items whose fields are small, at the ends of their range, or
//          anything. A trap: a published or unsent set that is not valid, a frame sent that its receiver would refuse,
//          a Tick after which the next is due at once, an effect or a state beyond what the limits allow.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../cpp/frames.hpp"
#include "weir/replica.hpp"

namespace weir {
namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

constexpr NodeId kSender{1};

void check_decoding(std::span<const std::byte> bytes) {
  Frame frame;
  if (decode(bytes, kSender, frame) != FrameError::none) {
    require(frame.items.empty());
    return;
  }
  require(frame.items.size() <= kItemsMax);
  FrameWriter writer(frame.incarnation);
  for (const Item& item : frame.items) test::write(writer, frame, kSender, item);
  // Numbers may come in more bytes than they need, never in fewer.
  require(writer.size() <= bytes.size());
  Frame again;
  require(decode(writer.take(), kSender, again) == FrameError::none);
  require(test::same(frame, again));
  is_repair(bytes);
  first_subject(bytes);
}

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return at_ >= bytes_.size(); }
  unsigned byte() { return empty() ? 0 : bytes_[at_++]; }
  std::uint64_t below(std::uint64_t limit) { return byte() % limit; }
  std::uint64_t word() {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < 8; ++i) value |= std::uint64_t{byte()} << (8 * i);
    return value;
  }
  // Small, near a power of two, or anything.
  std::uint64_t number() {
    const unsigned how = byte();
    if (how < 160) return how % 20;
    if (how < 180) return std::uint64_t{how - 159} * 50;
    if (how < 250) return (std::uint64_t{1} << (how - 180 < 64 ? how - 180 : 62)) - (byte() % 3) + 1;
    return how < 253 ? static_cast<std::uint64_t>(kTimeMax.v) : word();
  }
  std::uint32_t half() { return static_cast<std::uint32_t>(std::min<std::uint64_t>(number(), UINT32_MAX)); }
  Bytes bytes(std::size_t count) {
    Bytes taken;
    for (; count > 0 && !empty(); --count) taken.push_back(static_cast<std::byte>(byte()));
    return taken;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

constexpr Nanos kStart{1'770'000'000'000'000'000};
constexpr std::array kPolicies = {
    Policy{{5}, {1'000'000'000}}, Policy{{1000}, {1'000'000}}, Policy{{kSpanMax.v}, {1}},
    Policy{{1}, kSpanMax},        Policy{{100}, {1}},
};
constexpr std::array<std::uint64_t, 6> kKeys = {1, 2, 3, std::uint64_t{1} << 58, std::uint64_t{63} << 58, UINT64_MAX};
constexpr std::uint32_t kMembers = 4;
// What one step may send, with the limits of `config`; what a replica may hold.
constexpr std::size_t kSentMost = std::size_t{4} << 20;
constexpr std::size_t kHeldMost = std::size_t{1} << 20;
constexpr std::size_t kRunsHeldMost = 256;

ReplicaConfig config(Input& in) {
  ReplicaConfig made;
  const unsigned flags = in.byte();
  made.self = {0};
  made.incarnation = 1 + (flags & 1);
  for (std::uint32_t node = 0; node < kMembers; ++node) made.members.push_back({node});
  made.neighbours = {{1}, {2}};
  if ((flags & 2) == 0) made.neighbours.push_back({3});  // else it relays
  made.joining = (flags & 4) != 0;
  made.seed = in.byte();
  made.start = kStart;
  made.forget_after = {8'000'000'000};
  made.max_keys = 16;
  made.max_parked = 2000;
  made.max_claims = 4;
  made.history = {2000, 2000, 1000, 4, 3};
  return made;
}

class Scene {
 public:
  explicit Scene(Input& in) : in_(in), replica_(config(in)) {
    put(0);
    put(1);
  }

  void step() {
    const unsigned what = in_.byte();
    switch (what % 16) {
      case 0:
      case 1:
        run(Ask{++tickets_, limiter(), key(), {static_cast<std::int64_t>(1 + (in_.number() & (INT64_MAX >> 2)))}});
        break;
      case 2:
      case 3:
        pass({static_cast<std::int64_t>(in_.below(64)) * 20'000'000});
        break;
      case 4:
        run_ticks(8);
        break;
      case 5:
        put(static_cast<std::uint32_t>(in_.below(2)));
        break;
      case 6:
        run(Registered{node()});
        break;
      case 7:
        run(Unregistered{node()});
        break;
      case 9:
        run(Introduced{node(), in_.number()});
        break;
      case 8: {
        Bytes bytes = in_.bytes(in_.byte());
        run(Arrival{node(), bytes});
        break;
      }
      default:
        run_frame(what / 16);
    }
  }

 private:
  NodeId node() { return {static_cast<std::uint32_t>(in_.below(kMembers + 2))}; }
  LimiterId limiter() { return {static_cast<std::uint32_t>(in_.below(3))}; }
  KeyHash key() { return {kKeys[in_.below(kKeys.size())]}; }
  OriginId origin() {
    const NodeId whose = node();
    return {whose, in_.number()};
  }
  Subject subject() {
    Subject made{limiter(), 1, key()};
    const unsigned what = in_.byte();
    if (what < 60) made.version = what % 8;
    if (what == 254) made.key.v = 0;
    return made;
  }
  // Mostly about now, so that births matter.
  Nanos time() {
    const unsigned what = in_.byte();
    if (what < 200) return now_ + Nanos{(static_cast<std::int64_t>(what) - 120) * 50'000'000};
    return {static_cast<std::int64_t>(in_.number() & static_cast<std::uint64_t>(kTimeMax.v))};
  }
  std::vector<Interval> set() {
    std::vector<Interval> made(1 + in_.below(3));
    Nanos start = time();
    for (Interval& interval : made) {
      interval = {start, {static_cast<std::int64_t>(std::max<std::uint64_t>(1, in_.number()) & INT64_MAX)}};
      start = start + Nanos{static_cast<std::int64_t>(in_.number() & (INT64_MAX >> 8))};
    }
    return made;
  }
  std::vector<NackItem> late() {
    std::vector<NackItem> made(in_.below(3));
    for (NackItem& item : made) item = nack();
    return made;
  }
  NackItem nack() {
    NackItem made{origin(), {}};
    for (std::uint64_t i = in_.below(4); i > 0; --i) {
      const std::uint64_t first = in_.number();
      made.ranges.push_back({first, first + in_.number()});
    }
    return made;
  }
  std::vector<VectorEntry> vector() {
    std::vector<VectorEntry> made(in_.below(6));
    for (VectorEntry& entry : made) entry = {origin(), in_.number()};
    return made;
  }
  void entries(FrameWriter& frame, std::uint64_t count) {
    for (; count > 0; --count) {
      const Subject about = subject();
      frame.entry(about, set());
    }
  }
  HeartbeatItem heartbeat() {
    HeartbeatItem made;
    made.sent = time();
    made.echo = time();
    made.held = {static_cast<std::int64_t>(in_.number() & static_cast<std::uint64_t>(kTimeMax.v))};
    made.head = in_.number();
    made.stable = made.head - std::min(made.head, in_.number());
    made.receiver_incarnation = in_.number();
    made.ack = in_.number();
    return made;
  }
  // All segments of a copy, so that it is taken; the vectors of some differ.
  void copy(FrameWriter& frame) {
    CopyItem head;
    head.answer = in_.below(2);
    head.vector = vector();
    head.beyond = late();
    const std::uint64_t odd = in_.below(128);
    for (std::uint8_t segment = 0; segment < 64; ++segment) {
      head.segment = segment;
      if (segment == odd) head.vector = vector();
      const std::uint64_t count = segment == 0 || segment == 63 ? in_.below(3) : 0;
      frame.copy(head, count);
      entries(frame, count);
    }
  }
  void item(FrameWriter& frame, unsigned what) {
    switch (what % 14) {
      case 0:
      case 1: {
        const bool relayed = what % 14 == 1;
        const OriginId id = origin();
        const std::uint64_t seq = in_.number();
        const Subject about = subject();
        return frame.record(id, relayed, seq, about, set());
      }
      case 2:
        return frame.put(heartbeat());
      case 3:
        return frame.put(nack());
      case 4:
        return frame.put(GoneItem{origin(), in_.number()});
      case 5:
        return frame.put(VectorItem{in_.below(2) == 1, vector(), late()});
      case 6:
        return frame.put(DigestItem{in_.word(), 0});
      case 7: {
        const std::uint64_t from = in_.number();
        const std::uint64_t count = in_.below(4);
        frame.chunk(from, from + in_.number(), count);
        return entries(frame, count);
      }
      case 8:
        return frame.put(CopyRequestItem{in_.below(2) == 1 ? ~std::uint64_t{0} : in_.word()});
      case 9:
      case 10:
        return copy(frame);
      case 11: {
        const std::uint64_t id = in_.number();
        const Subject about = subject();
        const auto hits = static_cast<std::int64_t>(in_.number() & (INT64_MAX >> 1));
        return frame.put(ClaimItem{id, about, {hits}, time()});
      }
      case 12:
        return frame.put(ClaimAckItem{in_.number()});
      default:
        return frame.put(ClaimDoneItem{in_.number()});
    }
  }
  void run_frame(unsigned items) {
    const NodeId from = node();
    FrameWriter frame(in_.number());
    const unsigned first = in_.byte();
    const bool same = first >= 128;  // many of a kind: what each of them may cause adds up
    for (unsigned i = 0; i <= items; ++i) item(frame, i == 0 || same ? first : in_.byte());
    const Bytes bytes = frame.take();
    check_decoding(bytes);
    run(Arrival{from, bytes});
  }

  void put(std::uint32_t id) {
    ReplicatedTerms terms;
    const unsigned what = in_.byte();
    terms.policy = kPolicies[what % kPolicies.size()];
    terms.version = ++version_;
    terms.partition = static_cast<Partition>(in_.below(3));
    terms.large_hits = static_cast<LargeHits>(in_.below(2));
    if (in_.below(2) == 1) terms.flush_after = {static_cast<std::int64_t>(1 + in_.below(8)) * 300'000'000};
    terms_[id] = terms;
    Effects effects;
    replica_.put_limiter({id}, terms, now_, effects);
    check(effects);
  }

  // Lets time pass as a runner does: with a Tick whenever one is due.
  void pass(Nanos span) {
    const Nanos until = now_ + span;
    for (int i = 0; i < 64 && replica_.wake() <= until; ++i) {
      now_ = std::max(now_, replica_.wake());
      run_ticks(1);
    }
    now_ = until;
  }
  void run_ticks(int count) {
    for (int i = 0; i < count; ++i) {
      now_ = std::max(now_, std::min(replica_.wake(), now_ + Nanos{10'000'000'000}));
      run(Tick{});
      require(replica_.wake() > now_);
    }
  }

  void run(const Event& event) {
    Effects effects;
    replica_.step(event, now_, effects);
    check(effects);
  }
  void check(const Effects& effects) {
    std::size_t bytes = 0;
    Frame frame;
    for (const Bytes& sent : effects.frames) {
      bytes += sent.size();
      require(decode(sent, {0}, frame) == FrameError::none);
    }
    require(bytes <= kSentMost);
    for (const Send& send : effects.sends) require(send.frame < effects.frames.size() && send.to != NodeId{0});
    for (std::uint32_t id = 0; id < terms_.size(); ++id) {
      const Policy& policy = terms_[id].policy;
      for (const std::uint64_t hash : kKeys) {
        require(IntervalSet::valid(policy, replica_.published({id}, {hash}).intervals()));
        require(IntervalSet::valid(policy, replica_.unsent({id}, {hash}).intervals()));
      }
    }
    const Held held = replica_.held();
    require(held.state <= kHeldMost && held.fixed <= kHeldMost);
    require(replica_.vector().size() <= kRunsHeldMost);
    require(replica_.live() >= 1 && replica_.registered() >= 1);
  }

  Input& in_;
  Replica replica_;
  std::array<ReplicatedTerms, 2> terms_;
  std::uint32_t version_ = 0;
  std::uint64_t tickets_ = 0;
  Nanos now_ = kStart;
};

}  // namespace
}  // namespace weir

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::uint8_t> rest(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    weir::check_decoding(std::as_bytes(rest));
    return 0;
  }
  weir::Input in(rest);
  weir::Scene scene(in);
  for (int steps = 0; steps < 400 && !in.empty(); ++steps) scene.step();
  return 0;
}
