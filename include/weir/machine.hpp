// machine: what a replicated limiter looks like from outside: step(event, now) -> effects.
//
// A machine is one node's part of a limiter that many nodes hold together. It has no clock, no socket, no thread and no
// source of randomness: time comes with each step, frames come as events and leave as effects, a seed comes at
// construction. Whoever runs it (a simulation in the lab, a supervised process on a real node) delivers frames, in any
// order, late, twice or never, and calls it again at `wake()`.
//
//     Ask ------>  +---------+  ------> Answer
//     Arrival -->  | machine |  ------> Send (a frame for a peer)
//     Tick ----->  +---------+  ------> wake(): when it wants the next Tick
//
// Thread safety: none; one step at a time. Complexity: each machine says what a step costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "weir/units.hpp"

namespace weir {

// A node, numbered by whoever runs the machines; the same number on all nodes.
struct NodeId {
  std::uint32_t v = 0;
  friend constexpr auto operator<=>(const NodeId&, const NodeId&) = default;
};

// A limiter, numbered likewise.
struct LimiterId {
  std::uint32_t v = 0;
  friend constexpr auto operator<=>(const LimiterId&, const LimiterId&) = default;
};

using Bytes = std::vector<std::byte>;

// May `hits` of `key` pass? Answered by an Answer with the same ticket, in this step or (large hits that ask the other
// nodes first) in a later one. REQUIRES: hits >= 1.
struct Ask {
  std::uint64_t ticket = 0;
  LimiterId limiter;
  KeyHash key;
  Tokens hits{1};
};
// A frame that another machine sent. Any bytes may come: what is malformed is dropped and counted.
struct Arrival {
  NodeId from;
  std::span<const std::byte> frame;
};
// The time that `wake()` named has come. Early and late ticks do no harm.
struct Tick {};
// A node belongs to the cluster from now on, or has left it for good.
struct Registered {
  NodeId node;
};
struct Unregistered {
  NodeId node;
};

// Membership has accepted this run of a node: frames of later ones are refused until it accepts them, too. Once a
// machine was told of any, nodes that it was told nothing of are refused. (Where nobody introduces, a frame's word is
// taken.)
struct Introduced {
  NodeId node;
  std::uint64_t incarnation = 0;
};

using Event = std::variant<Ask, Arrival, Tick, Registered, Unregistered, Introduced>;

// What a frame is for: the births themselves, the repair of what was lost, or signs of life.
enum class Traffic : std::uint8_t { data, repair, heartbeat };

struct Answer {
  std::uint64_t ticket = 0;
  bool allowed = false;
};
struct Send {
  NodeId to;
  std::uint32_t frame = 0;  // an index into Effects::frames: one frame may go to many
  Traffic traffic = Traffic::data;
};

// Filled by steps, emptied by who executes them.
struct Effects {
  std::vector<Answer> answers;
  std::vector<Send> sends;
  std::vector<Bytes> frames;

  void clear() noexcept {
    answers.clear();
    sends.clear();
    frames.clear();
  }
  std::uint32_t add_frame(Bytes frame) {
    frames.push_back(std::move(frame));
    return static_cast<std::uint32_t>(frames.size() - 1);
  }
};

// Bytes that a machine holds: `state` is what grows with keys and traffic (states, delta states, logs, queues), `fixed`
// what it holds for each node of the cluster whatever the traffic (vectors, tables of peers). Heap blocks are counted
// at their capacity, maps with their nodes and buckets.
struct Held {
  std::size_t state = 0;
  std::size_t fixed = 0;
};

class Machine {
 public:
  Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  virtual ~Machine() = default;

  // `now` is this node's clock; it never runs backwards between two steps.
  virtual void step(const Event& event, Nanos now, Effects& effects) = 0;
  // When the next Tick is due; kNever if nothing is.
  virtual Nanos wake() const noexcept = 0;
  // Nothing is waiting to be sent to anyone, and nothing is known to be missing.
  virtual bool quiet() const noexcept = 0;
  virtual Held held() const = 0;
};

}  // namespace weir
