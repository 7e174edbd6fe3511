// weir-lab: limiters of many nodes, compared in simulated or real time. `weir-lab --help` says how.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lab/calibrate.hpp"
#include "lab/error.hpp"
#include "lab/limits.hpp"
#include "lab/network.hpp"
#include "lab/progress.hpp"
#ifdef __linux__
#include "lab/real/driver.hpp"
#endif
#include "lab/command/report.hpp"
#include "lab/recording.hpp"
#include "lab/simulation.hpp"
#include "lab/strategy.hpp"
#include "lab/workload.hpp"

namespace weir::lab {
namespace {

constexpr int kMisuse = 2;

// What was asked for on the command line, as it was written there.
struct Arguments {
  std::string workload;
  std::string replay;
  std::optional<std::int64_t> capacity;
  std::optional<double> refill;
  std::optional<double> retentions;
  std::uint32_t users = 0;
  std::uint64_t seed = 1;

  RunConfig run;
  double gossip_ms = 300;
  double delay_ms = 1;
  double jitter_ms = 0;
  std::string skew = "0";
  std::string topology = "full";
  std::vector<std::string> partitions;
  std::vector<std::string> crashes;
  std::vector<std::string> regions;
  double fa_threshold_ms = 2400;
  double flush_after_ms = 0;
  double peer_timeout_ms = 2000;
  double coalesce_ms = 20;
  double heartbeat_ms = 500;
  double settle_s = 120;

  std::uint32_t runs = 1;
  std::uint32_t jobs = 1;
  bool json = false;
  bool quiet = false;
  std::string decisions;
  std::string series;
  std::string out;
  CalibrateConfig calibrate;

  bool real = false;
#ifdef __linux__
  RealConfig real_nodes;
#endif
};

// Also refuses what is no number, which CLI11's Range lets pass.
CLI::Validator from_to(double low, double high) {
  return {[low, high](std::string& text) {
            double value = 0;
            if (!CLI::detail::lexical_cast(text, value)) return fmt::format("{} is not a number", text);
            return value >= low && value <= high ? std::string()
                                                 : fmt::format("{} is not from {} to {}", text, low, high);
          },
          fmt::format("from {} to {}", low, high), "range"};
}

// An option that is one of some words.
template <class Enum>
CLI::Option* add_choice(CLI::App& app, const char* name, Enum& target,
                        const std::vector<std::pair<std::string, Enum>>& choices, const std::string& what) {
  std::string words;
  for (const auto& [word, value] : choices) words += (words.empty() ? "" : ", ") + word;
  const auto choose = [&target, choices, words, name](const std::string& text) {
    for (const auto& [word, value] : choices) {
      if (word != text) continue;
      target = value;
      return;
    }
    throw CLI::ValidationError(name, fmt::format("{} is not one of {}", text, words));
  };
  return app.add_option_function<std::string>(name, choose, fmt::format("{}{}", what, words));
}

Nanos from_ms(double ms) { return {std::llround(ms * 1e6)}; }

// -- options

void add_limiter(CLI::App& app, Arguments& args) {
  app.add_option("--capacity", args.capacity, "tokens of a bucket, c (100, or the workload's own)")
      ->check(from_to(1, static_cast<double>(kMaxCapacity)));
  app.add_option("--refill", args.refill, "tokens per second (0.001c, or the workload's own)")
      ->check(from_to(kMinRefill, kMaxRefill));
  app.add_option("--nodes", args.run.nodes, "number of nodes (30)")->check(from_to(1, kMaxNodes));
}

void add_source(CLI::App& app, Arguments& args) {
  app.add_option("--users", args.users, "users of the workload, where it takes a number")->check(from_to(1, kMaxUsers));
  app.add_option("--retentions", args.retentions, "length of steady workloads, in 2cT")
      ->check(from_to(0.01, kMaxRetentions));
  app.add_option("--seed", args.seed, "of all that is drawn (1)");
}

void add_network(CLI::App& app, Arguments& args) {
  NetworkConfig& network = args.run.network;
  const auto group = [](CLI::Option* option) { return option->group("Network and faults"); };
  group(app.add_option("--topology", args.topology, "full, ring, random:K or regions:K (1 ms in it, 80-150 between)"));
  group(app.add_option("--delay-ms", args.delay_ms, "of each link (1)")->check(from_to(0, kMaxDelayMs)));
  group(app.add_option("--jitter-ms", args.jitter_ms, "up to this is added, uniform")->check(from_to(0, kMaxDelayMs)));
  group(app.add_option("--loss", network.loss, "probability that a message is lost")->check(from_to(0, 1)));
  group(app.add_option("--duplicate", network.duplicate, "... arrives twice")->check(from_to(0, 1)));
  group(app.add_option("--reorder", network.reorder, "... is held back by up to 2 * delay + 20 ms")
            ->check(from_to(0, 1)));
  group(app.add_option("--skew-ms", args.skew, "clocks are off by up to this, either way; or alternate:MS"));
  group(app.add_option("--partition", args.partitions,
                       "FROM-TO[:M] seconds, the first M nodes (half of them) against the rest; repeatable"))
      ->allow_extra_args(false);
  group(app.add_option("--crash", args.crashes, "NODE@FROM[-TO] seconds; returns empty at TO; repeatable"))
      ->allow_extra_args(false);
  group(app.add_option("--lose-region", args.regions, "R@FROM[-TO] seconds, all nodes of a region; repeatable"))
      ->allow_extra_args(false);
}

void add_thesis(CLI::App& app, Arguments& args) {
  Options& options = args.run.options;
  const auto group = [](CLI::Option* option) { return option->group("Strategies of the thesis"); };
  group(app.add_option("--gossip-ms", args.gossip_ms, "gossip interval (300)")->check(from_to(1, kMaxIntervalMs)));
  group(app.add_option("--fa-window", options.fa_window, "births that frequency analysis looks at (max(1, c/N))")
            ->check(from_to(1, static_cast<double>(kMaxCapacity))));
  group(app.add_option("--fa-threshold-ms", args.fa_threshold_ms, "period below which it sends at once (2400)")
            ->check(from_to(0, kMaxIntervalMs)));
  group(add_choice<AnalyseAt>(
      app, "--fa-at", options.fa_at,
      {{"delta", AnalyseAt::delta}, {"local", AnalyseAt::local}, {"receive", AnalyseAt::receive}}, "where it looks: "));
  group(
      app.add_option("--margin", options.margin, "dead elements that a refill keeps")->check(from_to(0, kMaxCapacity)));
  group(app.add_flag("--guid", options.guid, "births have an identity of their own"));
  group(app.add_flag("--copy", options.copy, "a returning node copies a peer's state"));
  group(app.add_flag("--literal", options.literal, "the listings with their faults"));
}

void add_weir(CLI::App& app, Arguments& args) {
  Options& options = args.run.options;
  const auto group = [](CLI::Option* option) { return option->group("Strategies of weir"); };
  group(add_choice<Partition>(app, "--partition-policy", options.partition,
                              {{"open", Partition::open}, {"share", Partition::share}, {"closed", Partition::closed}},
                              "what a side of a partition does: "));
  group(add_choice<LargeHits>(app, "--large-hits", options.large_hits,
                              {{"admit", LargeHits::admit}, {"claim", LargeHits::claim}}, "hits above the share: "));
  group(app.add_option("--flush-after-ms", args.flush_after_ms, "unsent births older than this are sent (0: off)")
            ->check(from_to(0, kMaxIntervalMs)));
  group(app.add_option("--coalesce-ms", args.coalesce_ms, "how long a record waits for company, at most (20)")
            ->check(from_to(0, kMaxDelayMs)));
  group(app.add_option("--peer-timeout-ms", args.peer_timeout_ms, "silence after which a peer is not live (2000)")
            ->check(from_to(1, kMaxIntervalMs)));
  group(app.add_option("--heartbeat-ms", args.heartbeat_ms, "(500)")->check(from_to(1, kMaxIntervalMs)));
}

void add_real(CLI::App& app, Arguments& args) {
#ifdef __linux__
  const auto group = [](CLI::Option* option) { return option->group("Real nodes"); };
  group(app.add_flag("--real", args.real, "nodes are processes, time is real; interval runs on the BEAM"));
  group(app.add_option("--erl", args.real_nodes.erl, "Erlang's emulator, for interval (erl)"));
  group(app.add_option("--weir-app", args.real_nodes.weir_app,
                       "the folder of the compiled application (_build/*/lib/weir beside this program)"));
#else
  static_cast<void>(app);
  static_cast<void>(args);
#endif
}

void add_output(CLI::App& app, Arguments& args) {
  const auto group = [](CLI::Option* option) { return option->group("Runs and output"); };
  group(app.add_option("--runs", args.runs, "so many runs, of seeds from --seed on; JSON of each and of the mean")
            ->check(from_to(1, kMaxRuns)));
  group(app.add_option("--jobs", args.jobs, "runs at a time (1)")->check(from_to(1, kMaxJobs)));
  group(app.add_option("--settle-s", args.settle_s, "longest wait for convergence (120)")
            ->check(from_to(0, kMaxSettleSeconds)));
  group(app.add_option("--decisions", args.decisions, "CSV, a line a request: time_ms,user,node,admitted,central"));
  group(app.add_option("--series", args.series, "CSV, a line a second"));
  group(app.add_flag("--json", args.json, "JSON on standard output"));
  group(app.add_flag("--quiet", args.quiet, "no progress bar"));
}

// -- what the arguments mean

// The policy of a bucket; the refill as tokens a second beside it.
std::pair<Policy, double> limiter(const Arguments& args) {
  const bool generated = !args.workload.empty();
  const std::int64_t capacity = args.capacity.value_or(generated ? default_capacity(args.workload) : 100);
  const double refill =
      args.refill.value_or(generated ? default_refill(args.workload, capacity) : 0.001 * static_cast<double>(capacity));
  const Policy policy{{capacity}, {std::llround(1e9 / refill)}};
  if (!policy.valid()) throw Error("a bucket that takes longer than 36 years to refill");
  return {policy, refill};
}

Workload source(const Arguments& args, std::uint64_t seed) {
  if (!args.replay.empty()) {
    Recording recording = read_recording(args.replay);
    if (recording.was_unsorted) fmt::print(stderr, "weir-lab: {}: sorted by time\n", args.replay);
    return std::move(recording.workload);
  }
  const auto [policy, refill] = limiter(args);
  return generate({args.workload, seed, policy.capacity.v, refill, args.run.nodes, args.users, args.retentions});
}

RunConfig configured(const Arguments& args) {
  RunConfig config = args.run;
  config.options.policy = limiter(args).first;
  config.options.gossip_interval = from_ms(args.gossip_ms);
  config.options.fa_threshold = from_ms(args.fa_threshold_ms);
  config.options.flush_after = from_ms(args.flush_after_ms);
  config.options.peer_timeout = from_ms(args.peer_timeout_ms);
  config.options.coalesce = from_ms(args.coalesce_ms);
  config.options.heartbeat = from_ms(args.heartbeat_ms);
  config.network.delay = from_ms(args.delay_ms);
  config.network.jitter = from_ms(args.jitter_ms);
  config.network.skew = Skew::parse(args.skew);
  config.network.topology = Topology::parse(args.topology);
  for (const std::string& cut : args.partitions) config.network.cuts.push_back(Cut::parse(cut));
  for (const std::string& crash : args.crashes) config.crashes.push_back(Crash::parse(crash));
  for (const std::string& region : args.regions) config.lost_regions.push_back(Crash::parse(region));
  config.settle = from_ms(args.settle_s * 1e3);
  if (!is_strategy(config.strategy)) {
    throw Error(fmt::format("unknown strategy \"{}\" (`weir-lab list` names them)", config.strategy));
  }
  return config;
}

// An output file; none if there is no path. {seed} in it becomes the seed.
class Output {
 public:
  Output(std::string path, std::uint64_t seed) : path_(std::move(path)) {
    if (path_.empty()) return;
    const std::size_t at = path_.find(kSeed);
    if (at != std::string::npos) path_.replace(at, kSeed.size(), std::to_string(seed));
    file_.open(path_, std::ios::binary);
    if (!file_) throw Error(fmt::format("{}: cannot be written", path_));
  }
  std::ofstream* stream() { return path_.empty() ? nullptr : &file_; }
  void close() {
    if (path_.empty()) return;
    file_.close();
    if (!file_) throw Error(fmt::format("{}: could not be written whole", path_));
  }

  static constexpr std::string_view kSeed = "{seed}";

 private:
  std::string path_;
  std::ofstream file_;
};

// -- commands

Report run_once(const Arguments& args, const RunConfig& base, const Workload* replayed, std::uint32_t index,
                ProgressBar& progress) {
  RunConfig config = base;
  config.seed = args.seed + index;
  const Workload generated = replayed == nullptr ? source(args, config.seed) : Workload{};
  const Workload& workload = replayed == nullptr ? generated : *replayed;
  Output decisions(args.decisions, config.seed);
  Output series(args.series, config.seed);
#ifdef __linux__
  if (args.real) {
    const RealResult result = run_real(config, args.real_nodes, workload, {decisions.stream(), series.stream()},
                                       [&](double part) { progress.tell(index, part); });
    decisions.close();
    series.close();
    return report(config, limiter(args).second, workload.name, result);
  }
#endif
  const Result result = run(config, workload, make, {decisions.stream(), series.stream()},
                            [&](double part) { progress.tell(index, part); });
  decisions.close();
  series.close();
  progress.tell(index, 1);
  return report(config, limiter(args).second, workload.name, result);
}

std::vector<Report> run_all(const Arguments& args) {
  const RunConfig config = configured(args);
  const std::optional<Workload> replayed =
      args.replay.empty() ? std::nullopt : std::optional<Workload>(source(args, args.seed));
  std::vector<Report> reports(args.runs);
  ProgressBar progress(args.runs, args.quiet);
  std::atomic<std::uint32_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::uint32_t index = next++; index < args.runs; index = next++) {
      try {
        reports[index] = run_once(args, config, replayed ? &*replayed : nullptr, index, progress);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        next = args.runs;
      }
    }
  };
  std::vector<std::jthread> threads;
  for (std::uint32_t job = 1; job < std::min(args.jobs, args.runs); ++job) threads.emplace_back(work);
  work();
  threads.clear();
  if (failure != nullptr) std::rethrow_exception(failure);
  return reports;
}

void command_run(const Arguments& args) {
  if (args.workload.empty() == args.replay.empty()) throw Error("run needs one of --workload and --replay");
  for (const std::string& path : {args.decisions, args.series}) {
    if (args.runs > 1 && !path.empty() && path.find(Output::kSeed) == std::string::npos) {
      throw Error(fmt::format("{}: with several runs the name must have {} in it", path, Output::kSeed));
    }
  }
  if (args.real && args.jobs > 1) throw Error("--jobs: runs of real nodes are made one after the other");
  const std::vector<Report> reports = run_all(args);
  if (args.json) {
    std::cout << (args.runs == 1 ? reports.front() : report_runs(reports)).dump(2) << '\n';
  } else {
    std::cout << as_text(args.runs == 1 ? reports.front() : report_runs(reports).at("mean"));
  }
}

void command_workload(const Arguments& args) {
  const Workload workload = source(args, args.seed);
  Output out(args.out, args.seed);
  write_recording(workload, format_of(args.out), *out.stream());
  out.close();
  if (!args.quiet)
    fmt::print(stderr, "{}: {} requests of {} users\n", args.out, workload.requests.size(), workload.users.size());
}

void command_calibrate(const Arguments& args) {
  const Workload workload = source(args, args.seed);
  const Policy policy = limiter(args).first;
  std::vector<std::uint32_t> order;
  std::vector<Nanos> at;
  for (std::uint32_t i = 0; i < workload.requests.size(); ++i) {
    order.push_back(i);
    at.push_back({workload.requests[i].time_ms * 1'000'000});
  }
  CalibrateConfig config = args.calibrate;
  config.window = args.run.options.fa_window;
  if (config.window == 0) {
    config.window = static_cast<std::uint32_t>(std::max<std::int64_t>(1, policy.capacity.v / args.run.nodes));
  }
  const Calibration found = calibrate(config, workload, decide_centrally(make, "queue", policy, workload, order, at));
  const Report report = {
      {"fa_threshold_ms", found.threshold_ms ? Report(*found.threshold_ms) : Report()},
      {"mean_ms", found.mean_ms ? Report(*found.mean_ms) : Report()},
      {"window", config.window},
      {"requests", workload.requests.size()},
      {"users", found.users},
      {"users_limited", found.limited},
      {"users_counted", found.looked_at - found.without_windows},
      {"users_without_windows", found.without_windows},
      {"windows", found.windows},
      {"windows_discarded", found.discarded},
  };
  std::cout << (args.json ? report.dump(2) + "\n" : as_text(report));
}

void command_list() {
  fmt::print("workloads (c: capacity, T: 1 / refill)\n");
  for (const WorkloadHelp& help : workload_help()) fmt::print("  {:<24}{}\n", help.name, help.line);
  fmt::print("\nstrategies\n");
  for (const StrategyHelp& help : strategy_help()) fmt::print("  {:<24}{}\n", help.name, help.line);
}

int command(int argc, char** argv) {
  Arguments args;
  CLI::App app(
      "Limiters of many nodes, compared in simulated or (--real) real time.\n"
      "  weir-lab run --workload B-extreme --strategy queue+fa --seed 7 --json");
  app.name("weir-lab");
  app.require_subcommand(1);

  CLI::App* const run = app.add_subcommand("run", "run a strategy under a workload or a recording");
  run->add_option("--strategy", args.run.strategy, "a name that `list` gives")->required();
  run->add_option("--workload", args.workload, "a name that `list` gives");
  run->add_option("--replay", args.replay, "a recording: JSON (array or lines) or CSV");
  add_limiter(*run, args);
  add_source(*run, args);
  add_network(*run, args);
  add_thesis(*run, args);
  add_weir(*run, args);
  add_real(*run, args);
  add_output(*run, args);

  CLI::App* const workload = app.add_subcommand("workload", "write a workload as a recording");
  workload->add_option("NAME", args.workload, "a name that `list` gives")->required();
  workload->add_option("--out", args.out, "the file: .csv, .jsonl (lines), else a JSON array")->required();
  workload->add_flag("--quiet", args.quiet, "no line about what was written");
  add_limiter(*workload, args);
  add_source(*workload, args);

  CLI::App* const calibration = app.add_subcommand("calibrate", "the frequency threshold that a recording suggests");
  calibration->add_option("REC", args.replay, "a recording: JSON (array or lines) or CSV")->required();
  calibration->add_option("--fa-window", args.run.options.fa_window, "births in a window (max(1, c/N))")
      ->check(from_to(1, kMaxRequests));
  calibration->add_option("--top", args.calibrate.top, "users that count, those with most requests first (10000)")
      ->check(from_to(1, kMaxUsers));
  calibration->add_option("--longest-ms", args.calibrate.longest_ms, "windows of a longer period are discarded (5000)")
      ->check(from_to(1, kMaxIntervalMs));
  calibration->add_flag("--json", args.json, "JSON on standard output");
  add_limiter(*calibration, args);

  CLI::App* const list = app.add_subcommand("list", "the workloads and strategies, a line each");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    throw Error(error.what());
  }
  if (*run) command_run(args);
  if (*workload) command_workload(args);
  if (*calibration) command_calibrate(args);
  if (*list) command_list();
  return 0;
}

}  // namespace
}  // namespace weir::lab

int main(int argc, char** argv) {
  try {
    return weir::lab::command(argc, argv);
  } catch (const weir::lab::Error& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    static_cast<void>(std::fprintf(stderr, "weir-lab: %s\n", line.c_str()));
    return weir::lab::kMisuse;
  } catch (const std::bad_alloc&) {
    static_cast<void>(std::fprintf(stderr, "weir-lab: out of memory\n"));
  } catch (const std::exception& error) {
    static_cast<void>(std::fprintf(stderr, "weir-lab: %s\n", error.what()));
  }
  return 1;
}
