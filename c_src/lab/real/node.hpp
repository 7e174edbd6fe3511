// node: one node of a real run as a process: a machine, a UDP socket on loopback, the pipes to the driver.
//
// The machine steps in real time. A frame travels as one or more datagrams, each with a header:
//
//   u32 sender | u32 frame | i64 Unix ns when it was sent | u32 its length | u32 where this piece begins | u8 traffic |
//   ...
//
// The receiving node draws what becomes of it (see network.hpp: delay, jitter, loss, partitions), and holds it back
// until its time has come. Timers of the kernel do that to a fraction of a millisecond; nothing spins.
//
// Requests come from the driver before they are due and are asked when they are, from the machine; decisions go back
// with the time at which they were made. The process ends when the driver's pipe does.
//
// Limits: kHeldMax frames that are held back, kFrameBytesMax for one frame; what is more is lost, as by a full buffer.
//
// Thread safety: a process of one thread. Complexity: log(frames held back) a frame, besides the machine's.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/real/channel.hpp"
#include "lab/real/clock.hpp"
#include "lab/simulation.hpp"

namespace weir::lab {

inline constexpr std::size_t kHeldMax = std::size_t{1} << 18;
inline constexpr std::size_t kFrameBytesMax = std::size_t{64} << 20;

struct NodePlace {
  std::uint32_t self = 0;
  std::uint32_t incarnation = 1;
  int socket = -1;                   // bound, of this node alone
  std::vector<std::uint16_t> ports;  // of all nodes
  Clock clock;
};

// Returns when the driver is gone. Throws Error.
void run_node(const RunConfig& config, const NodePlace& place, Channel channel);

// The seed of a node's machine, as in simulated runs.
std::uint64_t machine_seed(std::uint64_t seed, std::uint32_t node, std::uint32_t incarnation) noexcept;

}  // namespace weir::lab
