// thesis: the designs of "Trading performance for precision in a CRDT-based rate-limiting system" (Henriksson and
// Bennhage 2021; "the thesis" from here on) and the baselines that it cites, as machines for the lab.
//
//   counter              a token bucket as limit, refill time stamp and one count a node (listings 3.1-3.4)
//   queue                a queue of {time of birth, time of death} for each user (4.1-4.4)
//   queue+linf           ... that gossips to the least informed neighbour first (4.6-4.8)
//   queue+fa             ... that tells a speeding user's births at once (4.5)
//   queue+fa+linf        ... both
//   queue+fa+proactive   ... that denies a speeding user by an estimate of what was not heard of yet (3.4.2)
//   sliding-log          a queue of time stamps that all live as long (4.1.1)
//   split                the limit divided by the number of nodes (chapter 6)
//   split+rebalance      ... and shared out again by demand (after Li et al., cited there)
//   central-counter      the counter, the queue, on a single node: the decisions that the others are compared with
//   central-queue
//
// Map:  counter.hpp, queue.hpp  user states as values and pure functions: decide, refill, merge, analyse
//       states.hpp              users and, for each neighbour, what it was not told yet (delta states)
//       gossip.hpp              the gossip clock, neighbours, state copies of returning nodes
//       *_machine.cpp           the designs as machines; split.cpp the baselines
//       wire.hpp, random.hpp    bytes of frames; random numbers
//
// All nodes of a cluster must run the same strategy with the same options: frames say what they are for, not for which
// strategy. A machine is one limiter (Options::policy); the limiter's number in an Ask is not looked at.
//
// Where the thesis' listings are wrong they are repaired; Options::literal brings the faults back. They are listed in
// counter.hpp and queue.hpp, each with what it does.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/common/options.hpp"
#include "weir/machine.hpp"

namespace weir::thesis {

// The strategies above, in that order.
std::vector<std::string> names();
// Null if there is no strategy of that name. REQUIRES: options.policy.valid(), options.gossip_interval > 0.
std::unique_ptr<Machine> make(std::string_view strategy, const lab::Options& options, const lab::Place& place);

}  // namespace weir::thesis
