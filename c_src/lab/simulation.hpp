// simulation: a strategy's machines under a workload, in simulated time.
//
//   requests --(consistent hashing of millisecond and user)--> machine --Answer--> judged against the central limiter
//                                                               |   ^
//                                                             Send  Arrival      frames, through the Network
//
// What happens, happens in order of simulated nanoseconds; at the same one first frames and ticks, which were scheduled
// before, in that order, then the monitors' second, then crashes and returns, then requests in their order. Each
// machine sees the simulated time plus its node's skew, and knows all members from the start. Users and the command
// line count nodes from 0; machines call them by ids that are hashes.
//
// Ground truth: before the nodes run, a central counter and a central queue (the same strategies on one node) decide
// the same stream. The queue's decisions are the truth; where the counter decides otherwise is counted.
//
// A request whose node is down goes to the next live one. A machine that crashes is destroyed with all it held; frames
// that arrive while it is down are lost, and so are its unanswered questions. It returns empty, its incarnation raised.
//
// After the last request the run goes on until all live machines are quiet, no data or repair is in flight, no question
// is open and all faults are over, or until `settle` has passed.
//
// Strategies of their own here: `central-NAME` is NAME on one node, which gets all requests. `central-jitter` is the
// noise floor: two central queues, each gets every request later by the network's delay and jitter as drawn for it
// alone.
//
// Thread safety: a run is one thread's; runs share nothing but a const workload. Complexity: log(frames in flight) for
// each frame and tick, besides what the machines cost. Memory: 32 bytes a request, and each frame once for all
// of its receivers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/network.hpp"
#include "lab/strategy.hpp"
#include "lab/workload.hpp"
#include "weir/machine.hpp"

namespace weir::lab {

struct RunConfig {
  std::string strategy;
  Options options;
  std::uint32_t nodes = 30;
  NetworkConfig network;
  std::vector<Crash> crashes;
  std::vector<Crash> lost_regions;
  std::uint64_t seed = 1;
  Nanos settle{120'000'000'000};
};

// Bytes of the frames as encoded, and messages, by what they are for.
struct Sent {
  std::uint64_t bytes = 0;
  std::uint64_t messages = 0;
};

struct Result {
  std::uint64_t requests = 0;
  std::uint64_t admitted = 0;
  std::uint64_t rejected = 0;  // unanswered ones too
  std::uint64_t unanswered = 0;
  std::uint64_t central_admitted = 0;
  std::uint64_t central_rejected = 0;
  std::uint64_t central_disagreements = 0;  // counter and queue
  std::uint64_t false_denials = 0;
  std::uint64_t false_admissions = 0;
  std::uint64_t curve = 0;
  std::uint64_t central_curve = 0;
  Tokens overshoot;
  Tokens undershoot;
  double memory_mean = 0;
  double memory_fixed = 0;
  Sent data;
  Sent repair;
  Sent heartbeat;
  std::uint64_t lost_messages = 0;  // by the network, a partition, or a node that was down
  std::optional<Nanos> convergence;
  double wall_ms = 0;

  double agreement() const noexcept;
};

// Where single decisions and seconds go, as CSV; null: nowhere.
struct Sinks {
  std::ostream* decisions = nullptr;
  std::ostream* series = nullptr;
};

using Factory = std::function<std::unique_ptr<Machine>(std::string_view, const Options&, const Place&)>;
// Told now and then how much of the workload's time has passed, 0 to 1.
using Progress = std::function<void(double)>;

struct StrategyHelp {
  std::string name;
  std::string line;
};
// The names that `run` takes: those that `make` knows, and the central ones.
std::vector<StrategyHelp> strategy_help();
bool is_strategy(std::string_view name);

// What a node is called among machines: a hash, as on real nodes, where nothing may depend on who has the least. Two
// nodes have two of them.
NodeId id_of(std::uint32_t node) noexcept;

// The node of a request, of `nodes`.
std::uint32_t node_of(const Request& request, KeyHash user, std::uint32_t nodes) noexcept;

// A node that goes down or comes back.
struct Fault {
  Nanos time;
  std::uint32_t node = 0;
  bool down = false;
};
// The crashes of a run that starts then, in order. Throws Error: nodes or regions that are not there.
std::vector<Fault> faults_of(const RunConfig& config, const Network& network, Nanos start);

// The decisions of a limiter on one node that gets the requests in `order`, each at its time of `at`; 1 is admitted.
std::vector<std::uint8_t> decide_centrally(const Factory& factory, std::string_view strategy, const Policy& policy,
                                           const Workload& workload, const std::vector<std::uint32_t>& order,
                                           const std::vector<Nanos>& at);

// Throws Error: no requests, nodes that don't fit the configuration.
void check_run(const RunConfig& config, const Workload& workload);

// REQUIRES: config.options.policy.valid(), requests in order. Throws Error: no such strategy, no requests, nodes or
// faults that don't fit the configuration.
Result run(const RunConfig& config, const Workload& workload, const Factory& factory, const Sinks& sinks = {},
           const Progress& progress = {});

}  // namespace weir::lab
