// options: what the nodes of a run are made from, whatever their design.
#pragma once

#include <cstdint>
#include <vector>

#include "weir/replica.hpp"
#include "weir/units.hpp"

namespace weir::lab {

using weir::LargeHits;
using weir::Partition;

// Where frequency analysis looks: at each neighbour's delta state (the thesis' choice), at the local state, or at the
// delta states also when a delta state was received.
enum class AnalyseAt : std::uint8_t { delta, local, receive };

// All that the command line can set; each strategy reads its own part.
struct Options {
  Policy policy;
  Nanos gossip_interval{300'000'000};

  // the thesis' queue
  std::uint32_t fa_window = 0;  // births; 0 is max(1, capacity / nodes)
  Nanos fa_threshold{2'400'000'000};
  AnalyseAt fa_at = AnalyseAt::delta;
  std::uint32_t margin = 0;  // dead elements of a queue that a refill keeps
  bool guid = false;         // births carry an identity of their own
  bool copy = false;         // a returning node copies a peer's whole state
  bool literal = false;      // the listings with their faults

  // weir's replica
  Partition partition = Partition::open;
  LargeHits large_hits = LargeHits::admit;
  Nanos flush_after{0};  // 0: off
  Nanos peer_timeout{2'000'000'000};
  Nanos heartbeat{500'000'000};
  Nanos coalesce{20'000'000};
};

// One node's place in a run.
struct Place {
  NodeId self;
  std::vector<NodeId> members;     // all nodes, this one too, in order
  std::vector<NodeId> neighbours;  // those it has a link to
  std::uint64_t seed = 0;
  Nanos start;                    // its clock when it starts
  std::uint32_t incarnation = 1;  // raised each time that it comes back from a crash
};

}  // namespace weir::lab
