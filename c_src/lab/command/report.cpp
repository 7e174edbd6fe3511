#include "lab/command/report.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <numeric>

namespace weir::lab {
namespace {

constexpr double kHeaderBytes = 28;  // IPv4 and UDP, a message

double ms(Nanos time) { return static_cast<double>(time.v) / 1e6; }
double seconds(Nanos time) { return static_cast<double>(time.v) / 1e9; }

Report ratio(std::uint64_t of, std::uint64_t to) {
  return to == 0 ? Report() : Report(static_cast<double>(of) / static_cast<double>(to));
}

Report crashes(const std::vector<Crash>& all) {
  Report list = Report::array();
  for (const Crash& crash : all) {
    list.push_back(crash.to == kNever ? fmt::format("{}@{}", crash.node, seconds(crash.from))
                                      : fmt::format("{}@{}-{}", crash.node, seconds(crash.from), seconds(crash.to)));
  }
  return list;
}

Report cuts(const std::vector<Cut>& all) {
  Report list = Report::array();
  for (const Cut& cut : all) {
    const std::string first = cut.first == 0 ? "" : fmt::format(":{}", cut.first);
    list.push_back(fmt::format("{}-{}{}", seconds(cut.from), seconds(cut.to), first));
  }
  return list;
}

template <class Enum, std::size_t N>
const char* name(Enum value, const char* const (&names)[N]) {
  return names[static_cast<std::size_t>(value)];
}

Report echo(const RunConfig& config, double refill, const std::string& workload) {
  const Options& options = config.options;
  const NetworkConfig& network = config.network;
  return {
      {"workload", workload},
      {"strategy", config.strategy},
      {"nodes", config.nodes},
      {"capacity", options.policy.capacity.v},
      {"refill", refill},
      {"gossip_ms", ms(options.gossip_interval)},
      {"topology", network.topology.text()},
      {"delay_ms", ms(network.delay)},
      {"jitter_ms", ms(network.jitter)},
      {"loss", network.loss},
      {"duplicate", network.duplicate},
      {"reorder", network.reorder},
      {"skew_ms", network.skew.text()},
      {"partitions", cuts(network.cuts)},
      {"crashes", crashes(config.crashes)},
      {"lost_regions", crashes(config.lost_regions)},
      {"fa_window", options.fa_window},
      {"fa_threshold_ms", ms(options.fa_threshold)},
      {"fa_at", name(options.fa_at, {"delta", "local", "receive"})},
      {"margin", options.margin},
      {"guid", options.guid},
      {"copy", options.copy},
      {"literal", options.literal},
      {"partition_policy", name(options.partition, {"open", "share", "closed"})},
      {"large_hits", name(options.large_hits, {"admit", "claim"})},
      {"flush_after_ms", ms(options.flush_after)},
      {"peer_timeout_ms", ms(options.peer_timeout)},
      {"coalesce_ms", ms(options.coalesce)},
      {"heartbeat_ms", ms(options.heartbeat)},
      {"settle_s", seconds(config.settle)},
      {"seed", config.seed},
  };
}

}  // namespace

Report report(const RunConfig& config, double refill, const std::string& workload, const Result& result) {
  const std::uint64_t messages = result.data.messages + result.repair.messages;
  return {
      {"requests", result.requests},
      {"admitted", result.admitted},
      {"rejected", result.rejected},
      {"central_admitted", result.central_admitted},
      {"central_rejected", result.central_rejected},
      // Central counter and central queue.
      {"central_disagreements", result.central_disagreements},
      // Share of requests decided as the central queue decides.
      {"agreement", result.agreement()},
      {"false_denials", result.false_denials},
      {"false_admissions", result.false_admissions},
      // Rejected because no answer came: a node crashed, or all were down.
      {"unanswered", result.unanswered},
      {"rejection_ratio", ratio(result.rejected, result.central_rejected)},
      // Rejections so far, each second, summed; over the same of the central queue (thesis, 5.1.1).
      {"rejection_curve_ratio", ratio(result.curve, result.central_curve)},
      {"overshoot_max", result.overshoot.v},
      {"undershoot_max", result.undershoot.v},
      // A node's mean, of each second of the workload.
      {"memory_mean_bytes", result.memory_mean},
      {"memory_fixed_bytes", result.memory_fixed},
      // Data and repair, of all nodes.
      {"sent_bytes", result.data.bytes + result.repair.bytes},
      {"messages", messages},
      {"repair_bytes", result.repair.bytes},
      {"repair_messages", result.repair.messages},
      {"header_bytes", kHeaderBytes * static_cast<double>(messages)},
      {"heartbeat_bytes", result.heartbeat.bytes},
      {"heartbeat_messages", result.heartbeat.messages},
      {"lost_messages", result.lost_messages},
      // From the last request on.
      {"convergence_ms", result.convergence ? Report(ms(*result.convergence)) : Report()},
      {"wall_ms", result.wall_ms},
      {"requests_per_wall_s", static_cast<double>(result.requests) / (result.wall_ms / 1e3)},
      {"config", echo(config, refill, workload)},
  };
}

#ifdef __linux__
Report report(const RunConfig& config, double refill, const std::string& workload, const RealResult& result) {
  const auto sum = std::accumulate(result.cpu_seconds.begin(), result.cpu_seconds.end(), 0.0);
  const auto optional = [](const auto& value) { return value ? Report(*value) : Report(); };
  const auto delay = [&](double Spread::*part) {
    return result.delay_ms ? Report((*result.delay_ms).*part) : Report();
  };
  Report all = report(config, refill, workload, result.judged);
  all.erase("config");
  all.update(Report{
      // Of two central limiters, each request of which comes by two of the delays that were measured.
      {"noise_agreement", optional(result.noise_agreement)},
      // Tokens that one user asked for within delay_p99_ms, at most.
      {"arrivals_in_delay_max", result.arrivals_in_delay},
      // Of frames (interval: of messages between nodes), from sender to receiver.
      {"delay_p50_ms", delay(&Spread::p50)},
      {"delay_p99_ms", delay(&Spread::p99)},
      {"delay_max_ms", delay(&Spread::max)},
      // From when a request was due to when it was decided.
      {"late_p50_ms", result.late_ms.p50},
      {"late_p99_ms", result.late_ms.p99},
      {"late_max_ms", result.late_ms.max},
      // From the start to the last request; a node's mean, and each node's.
      {"cpu_seconds", sum / static_cast<double>(result.cpu_seconds.size())},
      {"cpu_ms_per_1000_requests", 1e6 * sum / static_cast<double>(result.judged.requests)},
      {"cpu_seconds_nodes", result.cpu_seconds},
      {"driver_cpu_seconds", result.driver_cpu_seconds},
      {"resident_bytes", result.resident_bytes},
      // interval: records made, and bytes of the distribution's connections, all that it says on them.
      {"records", optional(result.records)},
      {"wire_bytes", optional(result.wire_bytes)},
      // The longest time from the launch of a node that returns to its first request.
      {"returned_ms", result.returned_ms},
      {"real", true},
  });
  all["config"] = echo(config, refill, workload);
  return all;
}
#endif

Report report_runs(const std::vector<Report>& runs) {
  Report mean;
  for (const auto& [field, value] : runs.front().items()) {
    if (value.is_object()) continue;
    double sum = 0;
    double count = 0;
    for (const Report& run : runs) {
      if (!run.at(field).is_number()) continue;
      sum += run.at(field).get<double>();
      ++count;
    }
    mean[field] = count == 0 ? Report() : Report(sum / count);
  }
  return {{"runs", runs}, {"mean", mean}};
}

std::string as_text(const Report& report) {
  std::string text;
  for (const auto& [field, value] : report.items()) {
    if (value.is_structured()) continue;
    text += fmt::format("{:<22} {}\n", field, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

}  // namespace weir::lab
