// network: what happens to a frame between two nodes of a simulation.
//
// A topology says which nodes have a link (a machine's neighbours) and how long a link takes. Frames between nodes
// without a link are passed on along a shortest path: each hop delays, may lose, and counts as a message of its own.
//
//   full       each with each, `delay`                     ring      i with i-1 and i+1
//   random:K   each with K others that it draws (links     regions:K node i in region i % K; `delay` inside, 80-150 ms
//              are of both; drawn again until connected)             between two regions, drawn for each pair
//
// To each delay a uniform `jitter` is added. A frame is lost, sent twice (each copy with a delay of its own), or held
// back by up to 2 * delay + 20 ms more, so that later ones overtake it, each with its probability. A partition loses
// what would cross it, when it is sent as when it arrives. Clocks are off by a constant for each node.
//
// A node that is down is the simulation's matter; paths through it stay (nodes are assumed to route around it).
//
// Thread safety: none (it draws). Complexity: `send` constant and without allocation; construction N^2 (N * links for
// the paths of each node).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/common/random.hpp"
#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir::lab {

enum class TopologyKind : std::uint8_t { full, ring, random, regions };

struct Topology {
  TopologyKind kind = TopologyKind::full;
  std::uint32_t k = 0;  // links a node draws, or regions

  // "full", "ring", "random:4", "regions:3". Throws Error.
  static Topology parse(const std::string& text);
  std::string text() const;
};

struct Skew {
  Nanos most;                // clocks are off by up to this, either way
  bool alternating = false;  // even nodes are ahead by all of it, odd ones behind

  // "50" or "alternate:50", in milliseconds. Throws Error.
  static Skew parse(const std::string& text);
  std::string text() const;
};

// Times of faults count from the start of the workload.
struct Cut {
  Nanos from;
  Nanos to;
  std::uint32_t first = 0;  // nodes below this on one side; 0: half of them

  // "FROM-TO" or "FROM-TO:M", in seconds. Throws Error.
  static Cut parse(const std::string& text);
};
struct Crash {
  std::uint32_t node = 0;  // or region
  Nanos from;
  Nanos to = kNever;  // kNever: it does not return

  // "NODE@FROM" or "NODE@FROM-TO". Throws Error.
  static Crash parse(const std::string& text);
};

struct NetworkConfig {
  Nanos delay{1'000'000};
  Nanos jitter;
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;
  Skew skew;
  Topology topology;
  std::vector<Cut> cuts;
};

class Network {
 public:
  // What becomes of a frame: so many copies arrive, each after its delay.
  struct Fate {
    std::uint32_t copies = 0;
    std::array<Nanos, 2> delay{};
  };

  // REQUIRES: 1 <= nodes <= kMaxNodes. Throws Error when the topology can't be had with so many nodes.
  Network(const NetworkConfig& config, std::uint32_t nodes, std::uint64_t seed);

  const std::vector<NodeId>& neighbours(std::uint32_t node) const { return neighbours_[node]; }
  Nanos skew(std::uint32_t node) const { return skews_[node]; }
  // The region of a node; nodes of one region have the same. 0 without regions.
  std::uint32_t region(std::uint32_t node) const;
  // By how many links a frame travels; REQUIRES: from != to.
  std::uint32_t hops(std::uint32_t from, std::uint32_t to) const { return links_[at(from, to)].hops; }
  // Whether a partition is between two nodes at a time since the start.
  bool cut(std::uint32_t from, std::uint32_t to, Nanos since_start) const noexcept {
    return !config_.cuts.empty() && crosses(from, to, since_start);
  }
  // When they can talk: then, or at the end of the partition that is between them.
  Nanos uncut(std::uint32_t from, std::uint32_t to, Nanos since_start) const noexcept;
  // When the last partition has healed, since the start.
  Nanos healed() const noexcept;

  // Fates are drawn from there on: for networks of one seed that are to draw apart.
  void draw_from(Random random) noexcept { random_ = random; }
  // Draws a frame's fate. REQUIRES: from != to.
  Fate send(std::uint32_t from, std::uint32_t to, Nanos since_start);

 private:
  struct Link {
    Nanos delay;
    std::uint32_t hops = 1;
  };

  std::size_t at(std::uint32_t from, std::uint32_t to) const noexcept { return std::size_t{from} * nodes_ + to; }
  bool crosses(std::uint32_t from, std::uint32_t to, Nanos since_start) const noexcept;
  Nanos draw_delay(const Link& link);
  void link_all();
  void link_ring();
  void link_random(Random& random);
  void link_regions(Random& random);
  bool find_paths();

  NetworkConfig config_;
  std::uint32_t nodes_;
  bool plain_;  // nothing is drawn
  Random random_;
  std::vector<std::vector<NodeId>> neighbours_;
  std::vector<Link> links_;
  std::vector<Nanos> skews_;
};

}  // namespace weir::lab
