#include "lab/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <iterator>
#include <numeric>
#include <ostream>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "lab/common/random.hpp"
#include "lab/error.hpp"
#include "lab/events.hpp"
#include "lab/limits.hpp"
#include "lab/monitor.hpp"
#include "lab/recording.hpp"

namespace weir::lab {
namespace {

constexpr std::string_view kCentral = "central-";
constexpr std::string_view kCentralJitter = "central-jitter";
constexpr Nanos kSecond{1'000'000'000};
// A machine that wants its next tick at once, time and again, gets it no sooner than this after the last one.
constexpr Nanos kTickMin{1'000};
constexpr std::size_t kFlushBytes = 1 << 16;

// When requests reach the limiter, in that order.
struct Schedule {
  std::vector<std::uint32_t> order;
  std::vector<Nanos> at;
};

Schedule as_recorded(const Workload& workload) {
  Schedule schedule;
  schedule.order.resize(workload.requests.size());
  std::iota(schedule.order.begin(), schedule.order.end(), 0U);
  schedule.at.reserve(schedule.order.size());
  for (const Request& request : workload.requests) schedule.at.push_back({request.time_ms * 1'000'000});
  return schedule;
}

// Each request later by the delay and a jitter of its own.
Schedule delayed(const Workload& workload, const NetworkConfig& network, Random random) {
  Schedule schedule = as_recorded(workload);
  std::vector<Nanos> later = std::move(schedule.at);
  for (Nanos& time : later) {
    time.v += network.delay.v + static_cast<std::int64_t>(random.unit() * static_cast<double>(network.jitter.v));
  }
  std::stable_sort(schedule.order.begin(), schedule.order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return later[a] < later[b]; });
  schedule.at.clear();
  for (const std::uint32_t index : schedule.order) schedule.at.push_back(later[index]);
  return schedule;
}

class Simulation {
 public:
  Simulation(const RunConfig& config, const Workload& workload, const Schedule& schedule,
             const std::vector<std::uint8_t>& central, const Factory& factory, const Sinks& sinks,
             const Progress& progress)
      : config_(config),
        workload_(workload),
        schedule_(schedule),
        central_(central),
        factory_(factory),
        sinks_(sinks),
        progress_(progress),
        network_(config.network, config.nodes, config.seed),
        start_{workload.requests.front().time_ms * 1'000'000},
        last_request_(schedule.at.back()),
        faults_(faults_of(config, network_, start_)),
        nodes_(config.nodes),
        asked_at_(workload.requests.size(), kNotAsked),
        seen_(workload.users.size(), false),
        truth_(config.options.policy, workload.users.size()),
        now_(start_),
        sample_at_(start_ + kSecond) {
    keys_.reserve(workload.users.size());
    for (const std::string& user : workload.users) keys_.push_back(key_of(user));
    for (std::uint32_t node = 0; node < config.nodes; ++node) {
      members_.push_back(id_of(node));
      number_of_.emplace(id_of(node).v, node);
    }
    std::sort(members_.begin(), members_.end());
  }

  Result run() {
    if (sinks_.decisions != nullptr) *sinks_.decisions << "time_ms,user,node,admitted,central\n";
    if (sinks_.series != nullptr) {
      *sinks_.series << "time_s,requests,rejected,central_rejected,users,memory_bytes,memory_fixed_bytes,sent_bytes,"
                        "messages,heartbeat_bytes,heartbeat_messages\n";
    }
    for (std::uint32_t node = 0; node < config_.nodes; ++node) boot(node);
    loop();
    finish();
    return result_;
  }

 private:
  static constexpr std::uint16_t kNotAsked = UINT16_MAX;
  static constexpr std::uint16_t kDecided = UINT16_MAX - 1;
  static_assert(kMaxNodes <= kDecided);

  struct Node {
    std::unique_ptr<Machine> machine;  // null while it is down
    std::uint32_t incarnation = 0;
    Nanos tick_at = kNever;  // of its only valid tick
    Nanos last_tick;
    bool quiet = true;
    std::vector<std::uint32_t> open;  // requests that wait for an answer
  };

  // -- the loop

  Nanos next_request() const { return next_ < schedule_.at.size() ? schedule_.at[next_] : kNever; }
  Nanos next_fault() const { return next_fault_ < faults_.size() ? faults_[next_fault_].time : kNever; }

  void loop() {
    while (!done()) {
      const Nanos fixed = std::min({sample_at_, next_fault(), next_request(), deadline_});
      // What arrives in the same instant comes first: it was sent before.
      while (!events_.empty() && events_.next().time <= fixed) {
        const Scheduled event = events_.pop();
        now_ = event.time;
        if (event.frame == Scheduled::kTick) {
          tick(event);
        } else {
          arrive(event);
        }
        if (draining_ && done()) return;
      }
      now_ = fixed;
      if (fixed == sample_at_) {
        sample();
      } else if (fixed == next_fault()) {
        fail(faults_[next_fault_++]);
      } else if (fixed == next_request()) {
        ask(next_++);
        if (next_ == schedule_.at.size()) drain();
      }
    }
  }

  // Nothing is left to come, or the time for it is over.
  bool done() {
    if (!draining_) return false;
    if (in_flight_ == 0 && restless_ == 0 && open_ == 0 && next_fault_ == faults_.size() &&
        now_ - start_ >= network_.healed()) {
      result_.convergence = now_ - last_request_;
      return true;
    }
    return now_ >= deadline_;
  }

  void drain() {
    draining_ = true;
    deadline_ = now_ + config_.settle;
    if (samples_ == 0) sample_memory();
    for (Node& node : nodes_) note_quiet(node);
  }

  void note_quiet(Node& node) {
    const bool quiet = node.machine == nullptr || node.machine->quiet();
    if (quiet == node.quiet) return;
    node.quiet = quiet;
    restless_ += quiet ? -1 : 1;
  }

  // -- nodes

  Nanos clock(std::uint32_t node) const { return now_ + network_.skew(node); }

  void boot(std::uint32_t index) {
    Node& node = nodes_[index];
    ++node.incarnation;
    std::vector<NodeId> neighbours;
    for (const NodeId other : network_.neighbours(index)) neighbours.push_back(id_of(other.v));
    std::sort(neighbours.begin(), neighbours.end());
    const Place place{id_of(index),
                      members_,
                      std::move(neighbours),
                      mix(mix(config_.seed, 0x6d616368696e6573), (std::uint64_t{node.incarnation} << 32) | index),
                      clock(index),
                      node.incarnation};
    node.machine = factory_(config_.strategy, config_.options, place);
    if (node.machine == nullptr) throw Error(fmt::format("unknown strategy \"{}\"", config_.strategy));
    schedule_tick(index);
    if (draining_) note_quiet(node);
  }

  void fail(const Fault& fault) {
    Node& node = nodes_[fault.node];
    if (fault.down == (node.machine == nullptr)) return;
    if (!fault.down) {
      boot(fault.node);
      return;
    }
    node.machine.reset();
    node.tick_at = kNever;
    if (draining_) note_quiet(node);
    for (const std::uint32_t index : std::exchange(node.open, {})) give_up(index);
  }

  void step(std::uint32_t index, const Event& event) {
    Node& node = nodes_[index];
    effects_.clear();
    node.machine->step(event, clock(index), effects_);
    for (const Answer& answer : effects_.answers) hear(node, answer);
    if (!effects_.sends.empty()) transmit(index);
    schedule_tick(index);
    if (draining_) note_quiet(node);
  }

  void schedule_tick(std::uint32_t index) {
    Node& node = nodes_[index];
    const Nanos wake = node.machine->wake();
    if (wake == kNever) return;
    const Nanos at = std::max({wake - network_.skew(index), now_, node.last_tick + kTickMin});
    // An earlier tick stays: when it comes, the machine is asked again.
    if (at >= node.tick_at) return;
    node.tick_at = at;
    events_.tick(at, index);
  }

  void tick(const Scheduled& event) {
    Node& node = nodes_[event.to];
    if (node.tick_at != event.time) return;
    node.tick_at = kNever;
    if (node.machine->wake() > clock(event.to)) {
      schedule_tick(event.to);
      return;
    }
    node.last_tick = now_;
    step(event.to, Tick{});
  }

  // -- frames

  void transmit(std::uint32_t from) {
    slots_.clear();
    for (Bytes& frame : effects_.frames) slots_.push_back(frames_.add(std::move(frame)));
    for (const Send& send : effects_.sends) {
      const auto found = number_of_.find(send.to.v);
      if (found == number_of_.end() || found->second == from || send.frame >= slots_.size()) {
        throw std::logic_error("a machine sent a frame that is not there, or to a node that is not");
      }
      const std::uint32_t to = found->second;
      const std::uint32_t frame = slots_[send.frame];
      const std::uint32_t hops = network_.hops(from, to);
      Sent& sent = send.traffic == Traffic::data     ? result_.data
                   : send.traffic == Traffic::repair ? result_.repair
                                                     : result_.heartbeat;
      sent.bytes += hops * frames_.bytes(frame).size();
      sent.messages += hops;
      const Network::Fate fate = network_.send(from, to, now_ - start_);
      if (fate.copies == 0) ++result_.lost_messages;
      for (std::uint32_t copy = 0; copy < fate.copies; ++copy) {
        events_.arrival(now_ + fate.delay[copy], frame, from, to, send.traffic);
      }
      frames_.share(frame, fate.copies);
      if (send.traffic != Traffic::heartbeat) in_flight_ += fate.copies;
    }
    for (const std::uint32_t frame : slots_) frames_.drop_unused(frame);
  }

  void arrive(const Scheduled& event) {
    if (event.traffic() != Traffic::heartbeat) --in_flight_;
    if (nodes_[event.to].machine == nullptr || network_.cut(event.from, event.to, now_ - start_)) {
      ++result_.lost_messages;
    } else {
      step(event.to, Arrival{id_of(event.from), frames_.bytes(event.frame)});
    }
    frames_.release(event.frame);
  }

  // -- requests

  void ask(std::size_t position) {
    const std::uint32_t index = schedule_.order[position];
    const Request& request = workload_.requests[index];
    ++second_.requests;
    if (!seen_[request.user]) {
      seen_[request.user] = true;
      ++users_;
    }
    const Tokens hits{request.hits};
    if (central_[index] != 0) {
      ++result_.central_admitted;
      truth_.admitted_centrally(request.user, {now_, hits});
    } else {
      ++result_.central_rejected;
      central_curve_.reject();
      ++second_.central_rejected;
    }
    const std::uint32_t first = node_of(request, keys_[request.user], config_.nodes);
    std::uint32_t node = first;
    while (nodes_[node].machine == nullptr) {
      node = (node + 1) % config_.nodes;
      if (node == first) break;
    }
    asked_at_[index] = static_cast<std::uint16_t>(node);
    ++open_;
    if (nodes_[node].machine == nullptr) {
      give_up(index);
      return;
    }
    step(node, Ask{index, {}, keys_[request.user], hits});
    if (asked_at_[index] != kDecided) nodes_[node].open.push_back(index);
  }

  void hear(Node& node, const Answer& answer) {
    if (answer.ticket >= asked_at_.size() || asked_at_[answer.ticket] >= config_.nodes ||
        &nodes_[asked_at_[answer.ticket]] != &node) {
      throw std::logic_error("a machine answered what it was not asked");
    }
    const auto index = static_cast<std::uint32_t>(answer.ticket);
    if (!node.open.empty()) std::erase(node.open, index);
    decide(index, answer.allowed);
  }

  void give_up(std::uint32_t index) {
    ++result_.unanswered;
    decide(index, false);
  }

  void decide(std::uint32_t index, bool allowed) {
    const Request& request = workload_.requests[index];
    const bool central = central_[index] != 0;
    if (allowed) {
      ++result_.admitted;
      truth_.admitted(request.user, {now_, {request.hits}});
      result_.false_admissions += central ? 0 : 1;
    } else {
      ++result_.rejected;
      ++second_.rejected;
      curve_.reject();
      result_.false_denials += central ? 1 : 0;
    }
    truth_.look(request.user, now_);
    if (sinks_.decisions != nullptr) {
      fmt::format_to(std::back_inserter(decisions_), "{},{},{},{:d},{:d}\n", request.time_ms,
                     csv_field(workload_.users[request.user]), asked_at_[index], allowed, central);
      if (decisions_.size() >= kFlushBytes) flush();
    }
    asked_at_[index] = kDecided;
    --open_;
  }

  void flush() {
    sinks_.decisions->write(decisions_.data(), static_cast<std::streamsize>(decisions_.size()));
    decisions_.clear();
  }

  // -- monitors

  struct Second {
    std::uint64_t requests = 0;
    std::uint64_t rejected = 0;
    std::uint64_t central_rejected = 0;
    Sent sent;       // so far
    Sent heartbeat;  // so far
  };
  struct Memory {
    double state = 0;
    double fixed = 0;
  };

  Memory memory() const {
    Memory sum;
    double live = 0;
    for (const Node& node : nodes_) {
      if (node.machine == nullptr) continue;
      const Held held = node.machine->held();
      sum.state += static_cast<double>(held.state);
      sum.fixed += static_cast<double>(held.fixed);
      ++live;
    }
    return live == 0 ? Memory{} : Memory{sum.state / live, sum.fixed / live};
  }

  void sample_memory() {
    const Memory held = memory();
    memory_.state += held.state;
    memory_.fixed += held.fixed;
    ++samples_;
  }

  // The end of a second.
  void sample() {
    // A curve has a point for each second of the workload, begun ones too.
    if (sample_at_ <= last_request_ + kSecond) {
      curve_.point();
      central_curve_.point();
    }
    if (sample_at_ <= last_request_) sample_memory();
    if (sinks_.series != nullptr) write_second();
    second_ = {0, 0, 0, sent(), result_.heartbeat};
    sample_at_ = sample_at_ + kSecond;
    if (progress_ && !draining_) {
      progress_(static_cast<double>((now_ - start_).v) / static_cast<double>((last_request_ - start_).v + 1));
    }
  }

  Sent sent() const {
    return {result_.data.bytes + result_.repair.bytes, result_.data.messages + result_.repair.messages};
  }

  void write_second() {
    const Memory held = memory();
    const Sent all = sent();
    *sinks_.series << fmt::format("{},{},{},{},{},{:.1f},{:.1f},{},{},{},{}\n", (sample_at_ - start_).v / kSecond.v,
                                  second_.requests, second_.rejected, second_.central_rejected, users_, held.state,
                                  held.fixed, all.bytes - second_.sent.bytes, all.messages - second_.sent.messages,
                                  result_.heartbeat.bytes - second_.heartbeat.bytes,
                                  result_.heartbeat.messages - second_.heartbeat.messages);
  }

  void finish() {
    for (Node& node : nodes_) {
      for (const std::uint32_t index : node.open) give_up(index);
    }
    // The second that the end cut short.
    sample();
    if (sinks_.decisions != nullptr) flush();
    result_.requests = workload_.requests.size();
    result_.curve = curve_.sum();
    result_.central_curve = central_curve_.sum();
    result_.overshoot = truth_.overshoot();
    result_.undershoot = truth_.undershoot();
    result_.memory_mean = memory_.state / samples_;
    result_.memory_fixed = memory_.fixed / samples_;
  }

  const RunConfig& config_;
  const Workload& workload_;
  const Schedule& schedule_;
  const std::vector<std::uint8_t>& central_;
  const Factory& factory_;
  const Sinks& sinks_;
  const Progress& progress_;

  Network network_;
  Nanos start_;
  Nanos last_request_;
  std::vector<Fault> faults_;
  std::vector<Node> nodes_;
  std::vector<NodeId> members_;
  std::unordered_map<std::uint32_t, std::uint32_t> number_of_;
  std::vector<KeyHash> keys_;
  std::vector<std::uint16_t> asked_at_;  // the node of each request, or kNotAsked, kDecided
  std::vector<bool> seen_;               // users that asked
  EventQueue events_;
  FramePool frames_;
  Effects effects_;
  std::vector<std::uint32_t> slots_;  // of effects_.frames in frames_
  fmt::memory_buffer decisions_;

  Truth truth_;
  Curve curve_;
  Curve central_curve_;
  Second second_;
  Memory memory_;  // summed over samples_
  double samples_ = 0;
  std::uint32_t users_ = 0;
  Result result_;

  Nanos now_;
  Nanos sample_at_;
  Nanos deadline_ = kNever;
  std::size_t next_ = 0;
  std::size_t next_fault_ = 0;
  std::uint64_t in_flight_ = 0;  // data and repair
  std::uint64_t open_ = 0;       // requests without an answer
  std::int64_t restless_ = 0;    // nodes that are not quiet; counted once the last request was made
  bool draining_ = false;
};

}  // namespace

double Result::agreement() const noexcept {
  return 1 - static_cast<double>(false_denials + false_admissions) / static_cast<double>(requests);
}

std::vector<StrategyHelp> strategy_help() {
  std::vector<StrategyHelp> help = {
      {"counter", "the thesis' token-bucket counter: gossip of counts (3.1-3.4)"},
      {"queue", "its queue of times of birth and death (4.1-4.4)"},
      {"queue+linf", "... the least informed neighbour first (4.6-4.8)"},
      {"queue+fa", "... births of who speeds are sent at once (4.5)"},
      {"queue+fa+linf", "... both"},
      {"queue+fa+proactive", "... and who is seen speeding is denied before he is over (3.4.2)"},
      {"sliding-log", "at most c births in the last cT (4.1.1)"},
      {"split", "the limit divided by the number of nodes"},
      {"split+rebalance", "... and shared out again by demand"},
      {"interval", "weir: busy intervals, pushed when the slack calls for it"},
      {"central-counter", "the counter on one node"},
      {"central-queue", "the queue on one node: the truth that all are held against"},
      {"central-jitter", "two central queues, each behind a network of its own: the noise floor"},
  };
  const std::vector<std::string> known = names();
  std::erase_if(help, [&](const StrategyHelp& one) {
    return !one.name.starts_with(kCentral) && std::find(known.begin(), known.end(), one.name) == known.end();
  });
  for (const std::string& name : known) {
    const bool listed =
        std::any_of(help.begin(), help.end(), [&](const StrategyHelp& one) { return one.name == name; });
    if (!listed) help.push_back({name, ""});
  }
  return help;
}

bool is_strategy(std::string_view name) {
  const std::vector<StrategyHelp> all = strategy_help();
  return std::any_of(all.begin(), all.end(), [&](const StrategyHelp& one) { return one.name == name; });
}

NodeId id_of(std::uint32_t node) noexcept {
  // Each step is one to one.
  std::uint32_t id = node + 1;
  id = (id ^ id >> 16U) * 0x85ebca6bU;
  id = (id ^ id >> 13U) * 0xc2b2ae35U;
  return {id ^ id >> 16U};
}

std::uint32_t node_of(const Request& request, KeyHash user, std::uint32_t nodes) noexcept {
  if (nodes == 1) return 0;
  if (request.node != kAnyNode) return static_cast<std::uint32_t>(request.node);
  return spread(mix(static_cast<std::uint64_t>(request.time_ms), user.v), nodes);
}

std::vector<Fault> faults_of(const RunConfig& config, const Network& network, Nanos start) {
  std::vector<Fault> faults;
  const auto add = [&](const Crash& crash, std::uint32_t node) {
    faults.push_back({start + crash.from, node, true});
    if (crash.to != kNever) faults.push_back({start + crash.to, node, false});
  };
  for (const Crash& crash : config.crashes) {
    if (crash.node >= config.nodes) {
      throw Error(fmt::format("there is no node {} to crash: {} nodes are counted from 0", crash.node, config.nodes));
    }
    add(crash, crash.node);
  }
  const Topology& topology = config.network.topology;
  for (const Crash& lost : config.lost_regions) {
    if (topology.kind != TopologyKind::regions || lost.node >= topology.k) {
      throw Error(fmt::format("there is no region {} to lose in topology {}", lost.node, topology.text()));
    }
    for (std::uint32_t node = 0; node < config.nodes; ++node) {
      if (network.region(node) == lost.node) add(lost, node);
    }
  }
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) { return a.time < b.time; });
  return faults;
}

std::vector<std::uint8_t> decide_centrally(const Factory& factory, std::string_view strategy, const Policy& policy,
                                           const Workload& workload, const std::vector<std::uint32_t>& order,
                                           const std::vector<Nanos>& at) {
  Options options;
  options.policy = policy;
  const std::unique_ptr<Machine> machine = factory(strategy, options, {id_of(0), {id_of(0)}, {}, 0, at.front(), 1});
  if (machine == nullptr) throw Error(fmt::format("unknown strategy \"{}\"", strategy));
  std::vector<KeyHash> keys;
  keys.reserve(workload.users.size());
  for (const std::string& user : workload.users) keys.push_back(key_of(user));
  std::vector<std::uint8_t> decisions(workload.requests.size(), 0);
  Effects effects;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Request& request = workload.requests[order[i]];
    effects.clear();
    if (machine->wake() <= at[i]) machine->step(Tick{}, at[i], effects);
    machine->step(Ask{order[i], {}, keys[request.user], {request.hits}}, at[i], effects);
    for (const Answer& answer : effects.answers) decisions.at(answer.ticket) = answer.allowed ? 1 : 0;
  }
  return decisions;
}

void check_run(const RunConfig& config, const Workload& workload) {
  if (workload.requests.empty()) throw Error("the workload holds no requests");
  if (config.nodes < 1 || config.nodes > kMaxNodes) {
    throw Error(fmt::format("the number of nodes must be from 1 to {}", kMaxNodes));
  }
  for (const Request& request : workload.requests) {
    if (request.node >= static_cast<std::int32_t>(config.nodes) && !config.strategy.starts_with(kCentral)) {
      throw Error(
          fmt::format("the workload names node {}, but {} nodes are counted from 0", request.node, config.nodes));
    }
  }
}

Result run(const RunConfig& config, const Workload& workload, const Factory& factory, const Sinks& sinks,
           const Progress& progress) {
  check_run(config, workload);
  const auto began = std::chrono::steady_clock::now();
  const bool jitter = config.strategy == kCentralJitter;
  RunConfig own = config;
  if (config.strategy.starts_with(kCentral)) {
    own.strategy = jitter ? "queue" : config.strategy.substr(kCentral.size());
    own.nodes = 1;
    own.network.topology = {};
    own.network.cuts.clear();
  }
  const auto stream = [&](std::uint64_t draw) {
    return jitter ? delayed(workload, config.network, Random::stream(config.seed, draw)) : as_recorded(workload);
  };
  const Schedule central = stream(1);
  const Policy& policy = config.options.policy;
  const auto queue = decide_centrally(factory, "queue", policy, workload, central.order, central.at);
  const auto counter = decide_centrally(factory, "counter", policy, workload, central.order, central.at);
  const Schedule schedule = stream(2);
  Result result = Simulation(own, workload, schedule, queue, factory, sinks, progress).run();
  for (std::size_t i = 0; i < queue.size(); ++i) result.central_disagreements += queue[i] != counter[i] ? 1 : 0;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  result.wall_ms = took.count();
  return result;
}

}  // namespace weir::lab
