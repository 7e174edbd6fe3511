// judge: what a real run's decisions are worth, beside a central limiter that gets them in the same order at the same
// times.
//
// Thread safety: pure functions. Complexity: n log n in the requests.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/real/driver.hpp"

namespace weir::lab {

enum class Outcome : std::uint8_t { open, asked, allowed, denied, unanswered };

struct Decision {
  Nanos at;  // when it was made; of one that wasn't, when it was due
  std::uint16_t node = 0;
  Outcome outcome = Outcome::open;
};

// What was so at the end of each second from the start on, summed over the nodes; memory is a node's mean.
struct Second {
  Sent sent;
  Sent heartbeat;
  double held_state = 0;
  double held_fixed = 0;
};

// What the driver saw. Decisions are in the order of the requests, none of them open; delays of frames in ns.
struct Seen {
  Nanos zero;
  std::vector<Decision> decisions;
  std::vector<Second> seconds;
  std::vector<std::int64_t> delays;
};

// Fills `result` but for what is the driver's to know (traffic, memory, convergence, processor time).
void judge(const RunConfig& config, const Workload& workload, Seen& seen, const Sinks& sinks, RealResult& result);

// Sorts the values.
Spread spread_of(std::vector<std::int64_t>& values, double unit);

}  // namespace weir::lab
