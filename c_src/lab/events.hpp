// events: what a simulation has scheduled, and the frames that are on their way.
//
// EventQueue is a binary heap of 24-byte events, the earliest first; events of one time come in the order in which they
// were pushed. FramePool holds each frame once, however many receive it, and counts those who still shall; slots are
// used again, so a steady run allocates nothing here.
//
// Thread safety: none. Complexity: push constant on average when events come about in order, pop log n; the pool's
// operations constant.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir::lab {

// A frame that arrives, or (frame = kTick) a node's tick.
struct Scheduled {
  static constexpr std::uint32_t kTick = UINT32_MAX;

  Nanos time;
  std::uint64_t order = 0;  // sequence number << 2 | traffic
  std::uint32_t frame = kTick;
  std::uint16_t from = 0;
  std::uint16_t to = 0;

  Traffic traffic() const noexcept { return static_cast<Traffic>(order & 3); }
  friend bool operator>(const Scheduled& a, const Scheduled& b) noexcept {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
};

static_assert(sizeof(Scheduled) == 24, "a heap of thousands of events stays in the first levels of cache");

class EventQueue {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  // REQUIRES: not empty.
  const Scheduled& next() const noexcept { return heap_.top(); }
  Scheduled pop() {
    const Scheduled event = heap_.top();
    heap_.pop();
    return event;
  }
  void tick(Nanos time, std::uint32_t node) {
    heap_.push({time, ++sequence_ << 2, Scheduled::kTick, 0, static_cast<std::uint16_t>(node)});
  }
  void arrival(Nanos time, std::uint32_t frame, std::uint32_t from, std::uint32_t to, Traffic traffic) {
    heap_.push({time, ++sequence_ << 2 | static_cast<std::uint64_t>(traffic), frame, static_cast<std::uint16_t>(from),
                static_cast<std::uint16_t>(to)});
  }

 private:
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> heap_;
  std::uint64_t sequence_ = 0;
};

class FramePool {
 public:
  // Takes a frame that nobody receives yet.
  std::uint32_t add(Bytes bytes) {
    if (free_.empty()) {
      slots_.push_back({std::move(bytes), 0});
      return static_cast<std::uint32_t>(slots_.size() - 1);
    }
    const std::uint32_t frame = free_.back();
    free_.pop_back();
    slots_[frame] = {std::move(bytes), 0};
    return frame;
  }
  void share(std::uint32_t frame, std::uint32_t receivers) noexcept { slots_[frame].receivers += receivers; }
  // One receiver fewer. REQUIRES: there is one.
  void release(std::uint32_t frame) {
    assert(slots_[frame].receivers > 0);
    if (--slots_[frame].receivers == 0) drop(frame);
  }
  // A frame that nobody receives.
  void drop_unused(std::uint32_t frame) {
    if (slots_[frame].receivers == 0) drop(frame);
  }
  // Valid until the frame is released, also when others are added.
  std::span<const std::byte> bytes(std::uint32_t frame) const noexcept { return slots_[frame].bytes; }
  std::size_t in_use() const noexcept { return slots_.size() - free_.size(); }

 private:
  struct Slot {
    Bytes bytes;
    std::uint32_t receivers = 0;
  };

  void drop(std::uint32_t frame) {
    slots_[frame].bytes = Bytes();
    free_.push_back(frame);
  }

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace weir::lab
