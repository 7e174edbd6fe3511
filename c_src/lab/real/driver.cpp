#include "lab/real/driver.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "lab/error.hpp"
#include "lab/limits.hpp"
#include "lab/real/beam.hpp"
#include "lab/real/clock.hpp"
#include "lab/real/judge.hpp"
#include "lab/real/node.hpp"
#include "lab/real/process.hpp"
#include "lab/real/proxy.hpp"

namespace weir::lab {
namespace {

constexpr Nanos kMs{1'000'000};
constexpr Nanos kSecond{1'000'000'000};
// A node has a request this long before it is due.
constexpr Nanos kLead{300'000'000};
constexpr Nanos kHandOutEvery{50'000'000};
// What a start may take, also of ten nodes on a machine that is busy.
constexpr Nanos kStartMost{120'000'000'000};
// From the last answer that was due to that it is late beyond hope.
constexpr Nanos kAnswerMost{30'000'000'000};
// Between two reports of a node, and a moment.
constexpr Nanos kReportGap{500'000'000};
constexpr std::size_t kBatchBytes = 65'536;
constexpr std::size_t kDelaySamplesMax = 1'000'000;
constexpr int kSocketBytes = 4 << 20;
constexpr std::string_view kOnBeam = "interval";

class Driver {
 public:
  Driver(const RunConfig& config, const RealConfig& real, const Workload& workload, const Progress& progress)
      : config_(config),
        real_(real),
        workload_(workload),
        progress_(progress),
        beam_(config.strategy == kOnBeam),
        network_(config.network, config.nodes, config.seed),
        nodes_(config.nodes),
        faults_(faults_of(config, network_, {0})) {
    seen_.decisions.resize(workload.requests.size());
    keys_.reserve(workload.users.size());
    for (const std::string& user : workload.users) keys_.push_back(key_of(user));
    if (beam_) {
      check_beam(config);
      places_ = find_beam(real);
      cookie_ = make_cookie();
      proxy_ = std::make_unique<Proxy>(network_, config.nodes);
    } else {
      open_sockets();
    }
  }

  void run(const Sinks& sinks, RealResult& result) {
    start_all();
    while (!over()) {
      hand_out();
      fail();
      serve(next_wake());
      each_second();
    }
    finish(result);
    for (Node& node : nodes_) node.process.reset();
    judge(config_, workload_, seen_, sinks, result);
  }

 private:
  enum class State : std::uint8_t { down, starting, listening, joining, up };

  struct Node {
    std::unique_ptr<Process> process;
    State state = State::down;
    std::uint32_t incarnation = 0;
    Nanos launched;
    Condition said;      // of this run of it
    Condition before;    // of those before, summed
    Nanos cpu_at_start;  // of this run of it, when it was up
    Nanos cpu;           // of those before
  };

  Nanos now() const noexcept { return clock_.now(); }
  Nanos elapsed() const noexcept { return now() - seen_.zero; }
  Nanos due(std::size_t index) const {
    return {(workload_.requests[index].time_ms - workload_.requests.front().time_ms) * 1'000'000};
  }
  std::uint32_t index_of(const Node& node) const { return static_cast<std::uint32_t>(&node - nodes_.data()); }

  // -- processes

  void open_sockets() {
    for (std::uint32_t node = 0; node < config_.nodes; ++node) {
      sockets_.push_back(bound_socket(SOCK_DGRAM));
      // As much as the system allows; the rest is loss, and counted.
      static_cast<void>(setsockopt(sockets_.back().get(), SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof kSocketBytes));
      ports_.push_back(port_of(sockets_.back()));
    }
  }

  void launch(Node& node) {
    const std::uint32_t self = index_of(node);
    ++node.incarnation;
    node.launched = now();
    node.state = State::starting;
    node.said = {};
    if (beam_) {
      std::vector<std::uint16_t> ports;
      for (std::uint32_t other = 0; other < config_.nodes; ++other) {
        ports.push_back(other == self ? std::uint16_t{0} : proxy_->port(self, other));
      }
      node.process =
          std::make_unique<Process>(Process::program(beam_command(config_, real_, places_, cookie_, self, ports)));
      return;
    }
    const NodePlace place{self, node.incarnation, sockets_[self].get(), ports_, clock_};
    const auto forget = [&] {
      nodes_.clear();
      for (std::uint32_t other = 0; other < config_.nodes; ++other) {
        if (other != self) sockets_[other].reset();
      }
    };
    node.process = std::make_unique<Process>(
        Process::forked(forget, [&](Channel channel) { run_node(config_, place, std::move(channel)); }));
  }

  void start_all() {
    for (Node& node : nodes_) launch(node);
    const auto all = [&](State state) {
      return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.state == state; });
    };
    // A node is started when it has joined: who joins before all listen would miss some.
    while (!all(State::listening)) serve(now() + kHandOutEvery);
    for (std::uint32_t node = 0; node < config_.nodes; ++node) {
      std::vector<std::uint32_t> before;
      for (std::uint32_t other = 0; other < node; ++other) before.push_back(other);
      join(nodes_[node], config_.nodes, before);
    }
    while (!all(State::up)) serve(now() + kHandOutEvery);
    seen_.zero = now() + kLead + kHandOutEvery;
    for (Node& node : nodes_) begin(node);
    if (proxy_ != nullptr) proxy_->start(seen_.zero);
    driver_cpu_ = Clock::read(CLOCK_PROCESS_CPUTIME_ID);
  }

  // It connects to those, and waits until it sees so many, itself too.
  static void join(Node& node, std::uint32_t expected, const std::vector<std::uint32_t>& others) {
    Message message(Tag::join);
    message.put(expected);
    for (const std::uint32_t other : others) message.put(other);
    node.process->channel().send(message);
    node.state = State::joining;
  }

  void begin(Node& node) {
    node.process->channel().send(Message(Tag::start).put(seen_.zero.v));
    node.cpu_at_start = node.process->cpu().value_or(Nanos{});
  }

  void fail() {
    while (next_fault_ < faults_.size() && faults_[next_fault_].time <= elapsed()) {
      const Fault& fault = faults_[next_fault_++];
      Node& node = nodes_[fault.node];
      if (fault.down && node.state != State::down) {
        crash(node);
      } else if (!fault.down && node.state == State::down) {
        launch(node);
      }
    }
  }

  void crash(Node& node) {
    Process& process = *node.process;
    const Nanos cpu = process.cpu().value_or(Nanos{});
    process.kill();
    while (!process.channel().closed()) {
      process.channel().fill();
      read(node);
    }
    if (node.state == State::up) node.cpu = node.cpu + cpu - node.cpu_at_start;
    add(node.before, node.said);
    node.said = {};
    node.process.reset();
    node.state = State::down;
    if (proxy_ != nullptr) proxy_->gone(index_of(node));
    for (std::size_t index = 0; index < next_; ++index) {
      Decision& decision = seen_.decisions[index];
      if (decision.outcome == Outcome::asked && decision.node == index_of(node)) give_up(index);
    }
  }

  static void add(Condition& sum, const Condition& part) {
    for (std::size_t kind = 0; kind < std::size(sum.bytes); ++kind) {
      sum.bytes[kind] += part.bytes[kind];
      sum.messages[kind] += part.messages[kind];
    }
    sum.received += part.received;
    sum.records += part.records;
  }

  // -- requests

  // Whether a request of that time may go to the node: it is up, and won't be down by then.
  bool takes(std::uint32_t node, Nanos time) const {
    if (nodes_[node].state != State::up) return false;
    for (std::size_t i = next_fault_; i < faults_.size() && faults_[i].time <= time; ++i) {
      if (faults_[i].node == node && faults_[i].down) return false;
    }
    return true;
  }

  void hand_out() {
    if (now() < hand_out_at_) return;
    hand_out_at_ = now() + kHandOutEvery;
    const Nanos until = elapsed() + kLead;
    std::vector<Message> batches(config_.nodes, Message(Tag::requests));
    for (; next_ < seen_.decisions.size() && due(next_) <= until; ++next_) {
      const Request& request = workload_.requests[next_];
      const std::uint32_t first = node_of(request, keys_[request.user], config_.nodes);
      std::uint32_t node = first;
      while (!takes(node, due(next_))) {
        node = (node + 1) % config_.nodes;
        if (node == first) break;
      }
      Decision& decision = seen_.decisions[next_];
      decision.node = static_cast<std::uint16_t>(node);
      if (!takes(node, due(next_))) {
        give_up(next_);
        continue;
      }
      decision.outcome = Outcome::asked;
      ++open_;
      const std::string& user = workload_.users[request.user];
      Message& batch = batches[node];
      batch.put(static_cast<std::uint32_t>(next_)).put(due(next_).v).put(request.hits);
      batch.put(static_cast<std::uint16_t>(user.size())).put(std::string_view(user));
      if (batch.bytes().size() > kBatchBytes) {
        nodes_[node].process->channel().send(batch);
        batch = Message(Tag::requests);
      }
    }
    for (std::uint32_t node = 0; node < config_.nodes; ++node) {
      if (batches[node].bytes().size() > 1) nodes_[node].process->channel().send(batches[node]);
    }
  }

  void give_up(std::size_t index) {
    Decision& decision = seen_.decisions[index];
    if (decision.outcome == Outcome::asked) --open_;
    decision.outcome = Outcome::unanswered;
    decision.at = seen_.zero + due(index);
  }

  // -- what nodes say

  void read(Node& node) {
    while (const auto message = node.process->channel().next()) {
      Unpacker body(*message);
      switch (static_cast<Tag>(body.get<std::uint8_t>())) {
        case Tag::listening:
          listening(node, body.get<std::uint16_t>());
          break;
        case Tag::ready:
          ready(node);
          break;
        case Tag::answers:
          take_answers(node, body);
          break;
        case Tag::report:
          take_report(node, body);
          break;
        default:
          throw Error(fmt::format("node {} says what can't be understood", index_of(node)));
      }
    }
  }

  void listening(Node& node, std::uint16_t port) {
    if (proxy_ != nullptr) proxy_->listens(index_of(node), port);
    node.state = State::listening;
    if (node.incarnation == 1) return;
    // One that returns meets those that are up, and waits for none.
    std::vector<std::uint32_t> others;
    for (const Node& other : nodes_) {
      if (other.state == State::up) others.push_back(index_of(other));
    }
    join(node, 1, others);
  }

  void ready(Node& node) {
    node.state = State::up;
    if (node.incarnation == 1) return;
    returned_ = std::max(returned_, now() - node.launched);
    begin(node);
  }

  void take_answers(const Node& node, Unpacker body) {
    while (body.more()) {
      const auto index = body.get<std::uint32_t>();
      const Nanos at{body.get<std::int64_t>()};
      const bool allowed = body.get<std::uint8_t>() != 0;
      // (Given up: it came too late.)
      if (body.ok() && index < next_ && seen_.decisions[index].outcome == Outcome::unanswered) continue;
      if (!body.ok() || index >= next_ || seen_.decisions[index].outcome != Outcome::asked ||
          seen_.decisions[index].node != index_of(node)) {
        throw Error(fmt::format("node {} answered what it was not asked", index_of(node)));
      }
      seen_.decisions[index].at = at;
      seen_.decisions[index].outcome = allowed ? Outcome::allowed : Outcome::denied;
      --open_;
      last_answer_ = std::max(last_answer_, at);
    }
  }

  void take_report(Node& node, Unpacker body) {
    std::optional<Condition> said = Condition::unpack(body);
    if (!said) throw Error(fmt::format("node {} says what can't be understood", index_of(node)));
    for (const std::uint32_t us : said->delays_us) {
      if (seen_.delays.size() < kDelaySamplesMax) seen_.delays.push_back(std::int64_t{us} * 1000);
    }
    said->delays_us.clear();
    node.said = std::move(*said);
  }

  // -- the loop

  Nanos next_wake() const {
    Nanos wake = std::min(hand_out_at_, second_at_ + seen_.zero);
    if (next_fault_ < faults_.size()) wake = std::min(wake, faults_[next_fault_].time + seen_.zero);
    return wake;
  }

  // Waits for something to happen until then, and sees to it.
  void serve(Nanos until) {
    fds_.clear();
    for (const Node& node : nodes_) {
      const bool there = node.process != nullptr;
      fds_.push_back({there ? node.process->channel().in() : -1, POLLIN, 0});
      fds_.push_back({there && node.process->channel().waiting() ? node.process->channel().out() : -1, POLLOUT, 0});
    }
    const std::size_t own = fds_.size();
    if (proxy_ != nullptr) {
      proxy_->watch(fds_);
      until = std::min(until, proxy_->wake());
    }
    const timespec most = wait_until(until, now());
    if (ppoll(fds_.data(), fds_.size(), &most, nullptr) < 0 && errno != EINTR) fail_with_errno("poll");
    if (proxy_ != nullptr) proxy_->serve(std::span(fds_).subspan(own), now());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.process == nullptr) continue;
      if (fds_[2 * i].revents != 0) node.process->channel().fill();
      read(node);
      node.process->channel().flush();
      if (node.process->channel().closed()) throw Error(fmt::format("node {} ended: what it said is above", i));
      if (node.state != State::up && now() - node.launched > kStartMost) {
        throw Error(fmt::format("node {} did not start within {} s", i, kStartMost.v / kSecond.v));
      }
    }
  }

  // Nothing is left to come, or the time for it is over.
  bool over() {
    if (next_ < seen_.decisions.size()) return false;
    const Nanos last = seen_.zero + due(seen_.decisions.size() - 1);
    if (open_ > 0) {
      if (now() < last + kAnswerMost) return false;
      for (std::size_t index = 0; index < next_; ++index) {
        if (seen_.decisions[index].outcome == Outcome::asked) give_up(index);
      }
    }
    if (!drained_at_) drain(std::max(last, last_answer_));
    if (now() > *drained_at_ + config_.settle) return true;
    if (next_fault_ < faults_.size() || elapsed() < network_.healed()) return false;
    Nanos restless = last_answer_;
    const Nanos gap = config_.network.delay + config_.network.jitter + kReportGap;
    for (const Node& node : nodes_) {
      if (node.state == State::down) continue;
      if (node.state != State::up || !node.said.quiet || node.said.at < node.said.restless_at + gap.v ||
          node.said.at < drained_at_->v + gap.v) {
        return false;
      }
      restless = std::max(restless, Nanos{node.said.restless_at});
    }
    convergence_ = std::max(Nanos{}, restless - *drained_at_);
    return true;
  }

  // The last request was answered: what the work of the nodes was, they have done.
  void drain(Nanos last) {
    drained_at_ = last;
    driver_cpu_ = Clock::read(CLOCK_PROCESS_CPUTIME_ID) - driver_cpu_;
    double live = 0;
    for (Node& node : nodes_) {
      if (node.state != State::up) continue;
      node.cpu = node.cpu + node.process->cpu().value_or(node.cpu_at_start) - node.cpu_at_start;
      resident_ += static_cast<double>(node.process->resident_bytes());
      ++live;
    }
    if (live > 0) resident_ /= live;
    at_drain_ = second();
  }

  Second second() const {
    Second sum;
    double live = 0;
    for (const Node& node : nodes_) {
      Condition all = node.before;
      add(all, node.said);
      sum.sent.bytes += all.bytes[0] + all.bytes[1];
      sum.sent.messages += all.messages[0] + all.messages[1];
      sum.heartbeat.bytes += all.bytes[2];
      sum.heartbeat.messages += all.messages[2];
      if (node.state != State::up) continue;
      sum.held_state += static_cast<double>(node.said.held_state);
      sum.held_fixed += static_cast<double>(node.said.held_fixed);
      ++live;
    }
    if (live > 0) {
      sum.held_state /= live;
      sum.held_fixed /= live;
    }
    return sum;
  }

  void each_second() {
    if (elapsed() < second_at_) return;
    second_at_ = second_at_ + kSecond;
    seen_.seconds.push_back(second());
    if (progress_ && !drained_at_) {
      progress_(static_cast<double>(elapsed().v) / static_cast<double>((due(seen_.decisions.size() - 1) + kSecond).v));
    }
  }

  void finish(RealResult& result) {
    Result& judged = result.judged;
    Condition all;
    for (const Node& node : nodes_) {
      add(all, node.before);
      add(all, node.said);
      result.cpu_seconds.push_back(static_cast<double>(node.cpu.v) / 1e9);
    }
    judged.data = {all.bytes[0], all.messages[0]};
    judged.repair = {all.bytes[1], all.messages[1]};
    judged.heartbeat = {all.bytes[2], all.messages[2]};
    const std::uint64_t sent = all.messages[0] + all.messages[1] + all.messages[2];
    judged.lost_messages = sent > all.received ? sent - all.received : 0;
    judged.convergence = convergence_;
    const auto seconds =
        std::max<std::size_t>(1, static_cast<std::size_t>(due(seen_.decisions.size() - 1).v / kSecond.v));
    const std::size_t looks = std::min(seconds, seen_.seconds.size());
    for (std::size_t i = 0; i < looks; ++i) {
      judged.memory_mean += seen_.seconds[i].held_state / static_cast<double>(looks);
      judged.memory_fixed += seen_.seconds[i].held_fixed / static_cast<double>(looks);
    }
    if (looks == 0) {
      judged.memory_mean = at_drain_.held_state;
      judged.memory_fixed = at_drain_.held_fixed;
    }
    result.driver_cpu_seconds = static_cast<double>(driver_cpu_.v) / 1e9;
    result.resident_bytes = resident_;
    result.returned_ms = static_cast<double>(returned_.v) / static_cast<double>(kMs.v);
    if (!beam_) return;
    result.records = all.records;
    result.wire_bytes = proxy_->bytes();
  }

  const RunConfig& config_;
  const RealConfig& real_;
  const Workload& workload_;
  const Progress& progress_;
  const bool beam_;
  Clock clock_;
  Network network_;
  std::vector<Fd> sockets_;  // of the nodes that are C++
  std::vector<std::uint16_t> ports_;
  BeamPlaces places_;
  std::string cookie_;
  std::unique_ptr<Proxy> proxy_;  // of those that are not
  std::vector<Node> nodes_;
  std::vector<Fault> faults_;
  std::size_t next_fault_ = 0;
  std::vector<KeyHash> keys_;
  std::vector<pollfd> fds_;

  Seen seen_;
  std::size_t next_ = 0;
  std::size_t open_ = 0;
  Nanos hand_out_at_;
  Nanos second_at_ = kSecond;
  Nanos last_answer_;
  std::optional<Nanos> drained_at_;
  std::optional<Nanos> convergence_;
  Second at_drain_;
  Nanos driver_cpu_;
  Nanos returned_;
  double resident_ = 0;
};

}  // namespace

RealResult run_real(const RunConfig& config, const RealConfig& real, const Workload& workload, const Sinks& sinks,
                    const Progress& progress) {
  check_run(config, workload);
  if (config.strategy.starts_with("central-")) {
    throw Error(fmt::format("{} is one limiter, which nothing real is needed for: leave --real out", config.strategy));
  }
  static_cast<void>(signal(SIGPIPE, SIG_IGN));
  const Clock clock;
  const Nanos began = clock.now();
  RealResult result;
  Driver(config, real, workload, progress).run(sinks, result);
  result.judged.wall_ms = static_cast<double>((clock.now() - began).v) / 1e6;
  return result;
}

}  // namespace weir::lab
