// told: one replica, and frames by hand.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "cluster.hpp"

namespace weir::test {

inline constexpr KeyHash kKey{0x1234567890abcdef};

inline ReplicatedTerms terms(std::int64_t capacity, Nanos interval) {
  ReplicatedTerms made;
  made.policy = {{capacity}, interval};
  return made;
}

inline constexpr std::uint64_t kLimit = static_cast<std::uint64_t>(kTimeMax.v);

// Node 0 of four, told things by the others, who needn't be honest.
class Told {
 public:
  explicit Told(const ReplicatedTerms& how, const std::function<void(ReplicaConfig&)>& configure = {})
      : replica(config(configure)) {
    put({0}, how);
  }

  Replica replica;
  Effects effects;  // of the last step
  Nanos now = kBase;

  void put(LimiterId limiter, const ReplicatedTerms& how) { replica.put_limiter(limiter, how, now, effects); }
  void step(const Event& event) {
    effects.clear();
    replica.step(event, now, effects);
  }
  void hear(std::uint32_t node, FrameWriter& frame) {
    const Bytes bytes = frame.take();
    step(Arrival{{node}, bytes});
  }
  template <class What>
  void hear(std::uint32_t node, std::uint64_t incarnation, const What& item) {
    FrameWriter frame(incarnation);
    frame.put(item);
    hear(node, frame);
  }
  void hear_record(std::uint32_t node, const OriginId& origin, std::uint64_t seq, KeyHash key,
                   std::int64_t weight = 1) {
    FrameWriter frame(origin.node.v == node ? origin.incarnation : 1);
    const Interval one{now, {weight}};
    frame.record(origin, origin.node.v != node, seq, {kLimiter, 1, key}, {&one, 1});
    hear(node, frame);
  }
  void hear_beat(std::uint32_t node, std::uint64_t incarnation, std::uint64_t head = 0, std::uint64_t ack = 0) {
    HeartbeatItem beat;
    beat.sent = now;
    beat.head = head;
    beat.receiver_incarnation = 1;
    beat.ack = ack;
    hear(node, incarnation, beat);
  }
  bool asks(KeyHash key, Tokens hits = {1}, LimiterId limiter = kLimiter) {
    step(Ask{1, limiter, key, hits});
    return effects.answers.at(0).allowed;
  }
  // Lets time pass; the others give signs of life each half second, if `incarnation` isn't 0.
  void pass(Nanos span, std::uint64_t incarnation = 0) {
    const Nanos until = now + span;
    Nanos beat = now;
    while (now < until) {
      for (int ticks = 0; replica.wake() <= now; ++ticks) {
        REQUIRE(ticks < 100);
        step(Tick{});
      }
      if (beat <= now && incarnation != 0) {
        for (std::uint32_t node = 1; node < 4; ++node) hear_beat(node, incarnation);
        beat = now + ms(500);
      }
      now = std::min({until, std::max(now + Nanos{1}, replica.wake()), incarnation == 0 ? until : beat});
    }
  }
  // Asks for a copy, by saying that a record of node 1 is gone; returns who is asked.
  void want_copy() {
    hear(1, 1, GoneItem{{{1}, 1}, 1000});
    REQUIRE(replica.copying());
  }
  // One segment of the copy, with at most one entry.
  void hear_segment(CopyItem head, std::uint32_t donor = 1, std::optional<std::pair<Subject, Interval>> entry = {}) {
    FrameWriter frame(1);
    frame.copy(head, entry ? 1 : 0);
    if (entry) frame.entry(entry->first, {&entry->second, 1});
    hear(donor, frame);
  }
  std::int64_t published(KeyHash key) const { return replica.published(kLimiter, key).weight().v; }
  std::size_t sent_bytes() const {
    std::size_t sum = 0;
    for (const Send& send : effects.sends) sum += effects.frames[send.frame].size();
    return sum;
  }

 private:
  static ReplicaConfig config(const std::function<void(ReplicaConfig&)>& configure) {
    ReplicaConfig made;
    made.self = {0};
    for (std::uint32_t node = 0; node < 4; ++node) made.members.push_back({node});
    made.neighbours = {{1}, {2}, {3}};
    made.start = kBase;
    if (configure) configure(made);
    return made;
  }
};

inline CopyItem segment_of(std::size_t segment, std::vector<VectorEntry> vector) {
  CopyItem head;
  head.segment = static_cast<std::uint8_t>(segment);
  head.vector = std::move(vector);
  return head;
}

// Of the frames that a replica sent.
template <class What>
std::vector<What> items(const Effects& effects) {
  std::vector<What> found;
  Frame frame;
  for (const Bytes& bytes : effects.frames) {
    REQUIRE(decode(bytes, {0}, frame) == FrameError::none);
    for (const Item& item : frame.items)
      if (const auto* const what = std::get_if<What>(&item)) found.push_back(*what);
  }
  return found;
}
template <class What>
std::size_t count_items(const Effects& effects) {
  return items<What>(effects).size();
}

}  // namespace weir::test
