// driver: a run of real nodes: processes of the operating system, in real time.
//
//   driver --(requests, before they are due)--> node, a process --(decisions and their times)--> driver
//                                                |        ^
//                                                +--------+  frames: UDP on loopback (the thesis' designs), Erlang's
//                                                            distribution through `Proxy` (interval, on the BEAM)
//
// The designs of the thesis are C++ processes (node.hpp); `interval` is weir itself on the BEAM, with
// `bench/lab/weir_lab_node.erl` beside it in the driver's service.
//
// Requests are open loop: each is asked when it is due, whatever came of those before; how late each was, is reported.
// They reach the nodes a moment before (kLead). The node is that of the simulation; one whose node is down goes to the
// next one that is up. A crash is a SIGKILL; what it had not answered is unanswered. A node that returns is a new
// process, and takes requests when it has joined the others, which takes it a while.
//
// Truth: a central limiter that gets the requests in the order and at the times at which the nodes decided them. The
// noise floor are two central limiters that get them later, each request by two of the delays that frames really had.
//
// Linux only. Thread safety: none; forks. Memory: as a simulation's, and 24 bytes a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/simulation.hpp"

namespace weir::lab {

struct RealConfig {
  std::string erl = "erl";
  std::string weir_app;  // the folder of the compiled application; empty: looked for beside this program
};

// Of some values: the median, of a hundred the greatest but one, the greatest.
struct Spread {
  double p50 = 0;
  double p99 = 0;
  double max = 0;
};

struct RealResult {
  Result judged;
  std::optional<double> noise_agreement;  // of the two delayed central limiters
  std::uint64_t arrivals_in_delay = 0;    // the most that one user asked for within `delay_ms.p99`
  std::optional<Spread> delay_ms;         // of frames, or messages of the distribution, as it was
  Spread late_ms;                         // of requests, behind their time
  std::vector<double> cpu_seconds;        // of each node, first request to last
  double driver_cpu_seconds = 0;
  double resident_bytes = 0;                // a node's mean, at the last request
  std::optional<std::uint64_t> records;     // interval: records made
  std::optional<std::uint64_t> wire_bytes;  // interval: all that passed over the distribution's connections
  double returned_ms = 0;                   // the longest that a node took to come back
};

// Throws Error: what `run` throws it for, options that only simulated nodes have, a node that doesn't start or dies.
RealResult run_real(const RunConfig& config, const RealConfig& real, const Workload& workload, const Sinks& sinks = {},
                    const Progress& progress = {});

}  // namespace weir::lab
