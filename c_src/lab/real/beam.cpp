#include "lab/real/beam.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <random>

#include "lab/error.hpp"

namespace weir::lab {
namespace {

namespace fs = std::filesystem;

// The folder above that of this program: the project's.
fs::path home() {
  std::error_code none;
  const fs::path self = fs::read_symlink("/proc/self/exe", none);
  return self.parent_path().parent_path();
}

bool is_app(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / "ebin" / "weir.app", none);
}

std::string found_app(const RealConfig& real) {
  if (!real.weir_app.empty()) {
    if (is_app(real.weir_app)) return fs::absolute(real.weir_app).string();
    throw Error(
        fmt::format("{} has no ebin/weir.app: --weir-app names the folder of the compiled application", real.weir_app));
  }
  for (const char* profile : {"default", "server", "test", "prod"}) {
    const fs::path folder = home() / "_build" / profile / "lib" / "weir";
    if (is_app(folder)) return folder.string();
  }
  throw Error(fmt::format("no compiled weir in {}: `make build` compiles it, or --weir-app names its folder",
                          (home() / "_build").string()));
}

}  // namespace

BeamPlaces find_beam(const RealConfig& real) {
  const fs::path injector = home() / "_build" / "lab" / "ebin";
  std::error_code none;
  if (!fs::exists(injector / "weir_lab_node.beam", none)) {
    throw Error(fmt::format("{} is missing: `make build` compiles it", (injector / "weir_lab_node.beam").string()));
  }
  return {found_app(real), injector.string()};
}

void check_beam(const RunConfig& config) {
  const NetworkConfig& network = config.network;
  const auto refuse = [](const char* option, const char* why) {
    throw Error(fmt::format("{} is for simulated nodes of interval: {}", option, why));
  };
  if (network.loss > 0 || network.duplicate > 0 || network.reorder > 0) {
    refuse("--loss, --duplicate or --reorder", "real ones talk over TCP, which neither loses nor reorders");
  }
  if (network.skew.most.v != 0) refuse("--skew-ms", "real ones have the clock of this machine");
  if (network.topology.kind == TopologyKind::ring || network.topology.kind == TopologyKind::random) {
    refuse("--topology", "real ones are connected each with each (full or regions:K)");
  }
  const Options& options = config.options;
  const Options defaults;
  if (options.coalesce != defaults.coalesce || options.heartbeat != defaults.heartbeat ||
      options.gossip_interval != defaults.gossip_interval) {
    refuse("--coalesce-ms, --heartbeat-ms or --gossip-ms", "weir itself has no such option");
  }
}

std::vector<std::string> beam_command(const RunConfig& config, const RealConfig& real, const BeamPlaces& places,
                                      const std::string& cookie, std::uint32_t self,
                                      const std::vector<std::uint16_t>& ports) {
  const Options& options = config.options;
  std::vector<std::string> line = {
      real.erl, "-noinput", "-boot", "no_dot_erlang", "-name", fmt::format("lab{}@127.0.0.1", self), "-setcookie",
      cookie,
      // No port mapper: nodes find each other at the ports of the proxy.
      "-start_epmd", "false", "-epmd_module", "weir_lab_epmd", "-kernel", "inet_dist_use_interface", "{127,0,0,1}",
      "-kernel", "dist_auto_connect", "never", "-kernel", "prevent_overlapping_partitions", "false", "-connect_all",
      "false", "-kernel", "logger_level", "critical",
      // Schedulers that spin while they wait would be counted as weir's, and there are more nodes than cores.
      "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none", "+S", "2:2", "+Bd", "-pa", places.app + "/ebin",
      places.injector, "-s", "weir_lab_node", "-weir_lab_limiter", fmt::to_string(options.policy.capacity.v),
      fmt::to_string(options.policy.interval.v), fmt::to_string(static_cast<int>(options.partition)),
      fmt::to_string(static_cast<int>(options.large_hits)), fmt::to_string(options.flush_after.v / 1'000'000),
      fmt::to_string(options.peer_timeout.v / 1'000'000), "-weir_lab_ports"};
  for (const std::uint16_t port : ports) line.push_back(fmt::to_string(port));
  return line;
}

std::string make_cookie() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

}  // namespace weir::lab
