// Simulations of toy machines on schedules small enough to be worked out by hand.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "lab/command/report.hpp"
#include "lab/error.hpp"
#include "lab/monitor.hpp"
#include "lab/recording.hpp"
#include "lab/simulation.hpp"
#include "weir/tat.hpp"

namespace weir::lab {
namespace {

constexpr std::int64_t kMs = 1'000'000;
// c = 2, a token each 10 s.
constexpr Policy kPolicy{{2}, {10'000 * kMs}};
constexpr std::int64_t kStart = 1'700'000'000'000;

// What the toys saw, in order.
using Arrivals = std::vector<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>>;

struct Log {
  struct Boot {
    std::uint32_t node;
    std::uint32_t incarnation;
    std::int64_t start_ms;
    std::uint64_t seed;
  };
  std::vector<Boot> boots;
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>>
      arrivals;  // from, to, ms since kStart by its clock
  std::vector<std::pair<std::uint32_t, std::int64_t>> ticks;
};

// Decides by what it admitted itself, and by what others told it:
//   local   tells nobody                         shout    tells all others of each birth, in 16 bytes
//   never   answers nothing                      later    answers 10 ms later
//   beat    beats each second, 4 bytes, to its neighbours       restless  is quiet only 5 s after its last birth
std::uint32_t number_of(NodeId id) {
  std::uint32_t node = 0;
  while (id_of(node) != id) ++node;
  return node;
}

class Toy : public Machine {
 public:
  Toy(std::string_view kind, const Policy& policy, const Place& place, Log& log)
      : kind_(kind), policy_(policy), place_(place), log_(log) {
    log_.boots.push_back({number_of(place.self), place.incarnation, place.start.v / kMs - kStart, place.seed});
    if (kind_ == "beat") wake_ = place.start + Nanos{1000 * kMs};
  }

  void step(const Event& event, Nanos now, Effects& effects) override {
    if (const auto* ask = std::get_if<Ask>(&event)) {
      decide(*ask, now, effects);
    } else if (const auto* arrival = std::get_if<Arrival>(&event)) {
      log_.arrivals.emplace_back(number_of(arrival->from), number_of(place_.self), now.v / kMs - kStart);
      if (arrival->frame.size() == 16) {
        static_cast<void>(keys_[word(arrival->frame)].insert(
            policy_, {{static_cast<std::int64_t>(word(arrival->frame.subspan(8)))}}));
      }
    } else if (now >= wake_) {
      log_.ticks.emplace_back(number_of(place_.self), now.v / kMs - kStart);
      wake_ = kNever;
      if (kind_ == "later") effects.answers = std::exchange(answers_, {});
      if (kind_ == "beat") {
        wake_ = now + Nanos{1000 * kMs};
        const std::uint32_t frame = effects.add_frame(Bytes(4));
        for (const NodeId other : place_.neighbours) effects.sends.push_back({other, frame, Traffic::heartbeat});
      }
    }
  }
  Nanos wake() const noexcept override { return wake_; }
  bool quiet() const noexcept override { return kind_ != "restless" || wake_ == kNever; }
  Held held() const override { return {keys_.size() * 100, 7}; }

 private:
  static std::uint64_t word(std::span<const std::byte> bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data(), 8);
    return value;
  }

  void decide(const Ask& ask, Nanos now, Effects& effects) {
    const Answer answer{ask.ticket, keys_[ask.key.v].decide(policy_, ask.hits, now).allowed};
    if (kind_ == "never") return;
    if (kind_ == "later") {
      answers_.push_back(answer);
      wake_ = now + Nanos{10 * kMs};
      return;
    }
    effects.answers.push_back(answer);
    if (kind_ == "restless") wake_ = now + Nanos{5000 * kMs};
    if (kind_ != "shout" || !answer.allowed) return;
    Bytes bytes(16);
    std::memcpy(bytes.data(), &ask.key.v, 8);
    std::memcpy(bytes.data() + 8, &now.v, 8);
    const std::uint32_t frame = effects.add_frame(std::move(bytes));
    for (const NodeId other : place_.members) {
      if (other != place_.self) effects.sends.push_back({other, frame, Traffic::data});
    }
  }

  std::string kind_;
  Policy policy_;
  Place place_;
  Log& log_;
  Nanos wake_ = kNever;
  std::unordered_map<std::uint64_t, Tat> keys_;
  std::vector<Answer> answers_;
};

// A run of toys, with what came of it.
struct Trial {
  RunConfig config;
  Workload workload;
  Log log;
  Result result;
  std::string decisions;
  std::string series;
  Tokens counter_capacity = kPolicy.capacity;  // of the central counter

  Trial(const char* kind, std::uint32_t nodes) {
    config.strategy = kind;
    config.nodes = nodes;
    config.options.policy = kPolicy;
    workload.name = "toy";
    workload.users = {"a"};
  }
  Trial& request(std::int64_t ms, std::int32_t node, std::uint32_t user = 0, std::uint32_t hits = 1) {
    while (workload.users.size() <= user)
      workload.users.push_back(std::string(1, static_cast<char>('a' + workload.users.size())));
    workload.requests.push_back({kStart + ms, user, hits, node});
    return *this;
  }
  Trial& run() {
    std::ostringstream decision_lines;
    std::ostringstream second_lines;
    Log central;
    const Factory factory = [&](std::string_view kind, const Options& options, const Place& place) {
      const bool is_central = kind == "queue" || kind == "counter";
      // As `make` does, it knows no other names.
      for (const char* const known : {"queue", "counter", "local", "shout", "never", "later", "beat", "restless"}) {
        Policy policy = options.policy;
        if (kind == "counter") policy.capacity = counter_capacity;
        if (kind == known) return std::make_unique<Toy>(kind, policy, place, is_central ? central : log);
      }
      return std::unique_ptr<Toy>();
    };
    result = lab::run(config, workload, factory, {&decision_lines, &second_lines});
    decisions = decision_lines.str();
    series = second_lines.str();
    return *this;
  }
  // Sorted by sender and receiver: who is told first depends on ids.
  Arrivals arrivals() const {
    Arrivals sorted = log.arrivals;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
  // admitted (0 or 1) of each line, in order of decision.
  std::string admitted() const {
    std::string all;
    std::istringstream lines(decisions);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) all += line[line.size() - 3];
    return all;
  }
};

TEST_CASE("truth: overshoot and undershoot, worked out by hand", "[lab]") {
  const Policy policy{{3}, {1000}};
  Truth truth(policy, 2);
  // Admitted: 5 births of user 0 at 0; centrally 3. TATs 5000 and 3000.
  truth.admitted(0, {{0}, {5}});
  truth.admitted_centrally(0, {{0}, {3}});
  truth.look(0, {0});
  CHECK(truth.overshoot().v == 2);
  CHECK(truth.undershoot().v == 0);
  // At 1500 levels are ceil(3.5) = 4 and ceil(1.5) = 2.
  truth.look(0, {1500});
  CHECK(truth.overshoot().v == 2);
  // User 1: the nodes gave 1 where the centre gave 3.
  truth.admitted(1, {{0}, {1}});
  truth.admitted_centrally(1, {{0}, {3}});
  truth.look(1, {500});
  CHECK(truth.overshoot().v == 2);
  CHECK(truth.undershoot().v == 2);
}

TEST_CASE("nodes that don't talk: every number of the result", "[lab]") {
  Trial trial("local", 2);
  // Node 0 admits two, node 1 two more; the centre admits the first two.
  trial.request(0, 0).request(0, 0).request(100, 1).request(1500, 1).request(1500, 1).request(2500, 0).run();
  const Result& result = trial.result;
  CHECK(trial.admitted() == "111100");
  CHECK(trial.decisions ==
        "time_ms,user,node,admitted,central\n"
        "1700000000000,a,0,1,1\n"
        "1700000000000,a,0,1,1\n"
        "1700000000100,a,1,1,0\n"
        "1700000001500,a,1,1,0\n"
        "1700000001500,a,1,0,0\n"
        "1700000002500,a,0,0,0\n");
  CHECK(result.requests == 6);
  CHECK(result.admitted == 4);
  CHECK(result.rejected == 2);
  CHECK(result.central_admitted == 2);
  CHECK(result.central_rejected == 4);
  CHECK(result.central_disagreements == 0);
  CHECK(result.false_admissions == 2);
  CHECK(result.false_denials == 0);
  CHECK(result.agreement() == 1.0 - 2.0 / 6);
  CHECK(result.overshoot.v == 2);
  CHECK(result.undershoot.v == 0);
  // Rejections so far at 1, 2, 3 s: 0, 1, 2 of the nodes; 1, 3, 4 of the centre.
  CHECK(result.curve == 3);
  CHECK(result.central_curve == 8);
  // At 1 and 2 s both nodes hold one key.
  CHECK(result.memory_mean == 100);
  CHECK(result.memory_fixed == 7);
  CHECK(result.convergence == Nanos{0});
  CHECK(result.data.messages == 0);
  CHECK(trial.series ==
        "time_s,requests,rejected,central_rejected,users,memory_bytes,memory_fixed_bytes,sent_bytes,messages,"
        "heartbeat_bytes,heartbeat_messages\n"
        "1,3,0,1,1,100.0,7.0,0,0,0,0\n"
        "2,2,1,2,1,100.0,7.0,0,0,0,0\n"
        "3,1,1,1,1,100.0,7.0,0,0,0,0\n");
  const Report json = report(trial.config, 0.1, "toy", result);
  CHECK(json.at("rejection_ratio") == 0.5);
  CHECK(json.at("rejection_curve_ratio") == 3.0 / 8);
}

TEST_CASE("nothing rejected centrally: there are no ratios, and denials are undershoot", "[lab]") {
  Trial trial("never", 2);
  trial.config.settle = {100 * kMs};
  trial.request(0, 0).request(1000, 1).run();
  CHECK(trial.result.unanswered == 2);
  CHECK(trial.result.rejected == 2);
  CHECK(trial.result.false_denials == 2);
  CHECK(trial.result.undershoot.v == 2);
  CHECK(!trial.result.convergence.has_value());
  const Report json = report(trial.config, 0.1, "toy", trial.result);
  CHECK(json.at("rejection_ratio").is_null());
  CHECK(json.at("rejection_curve_ratio").is_null());
  CHECK(json.at("convergence_ms").is_null());
}

TEST_CASE("where central counter and queue differ is counted, and the queue is the truth", "[lab]") {
  Trial trial("local", 1);
  trial.counter_capacity = {1};
  trial.request(0, 0).request(0, 0).request(0, 0).run();
  CHECK(trial.admitted() == "110");
  CHECK(trial.result.central_admitted == 2);
  CHECK(trial.result.central_disagreements == 1);
  CHECK(trial.result.agreement() == 1.0);
}

TEST_CASE("machines know each other by ids that are hashes, and no two have one", "[lab]") {
  std::set<std::uint32_t> ids;
  for (std::uint32_t node = 0; node < 10'000; ++node) ids.insert(id_of(node).v);
  CHECK(ids.size() == 10'000);
  CHECK(*ids.begin() > 1000);
  // Which node has the least id, and is thus the first in every list, is no longer node 0.
  std::uint32_t least = 0;
  for (std::uint32_t node = 0; node < 30; ++node) least = id_of(node) < id_of(least) ? node : least;
  CHECK(least != 0);
}

TEST_CASE("weights count as tokens", "[lab]") {
  Trial trial("local", 2);
  trial.request(0, 0, 0, 2).request(10, 1, 0, 2).request(20, 1, 0, 1).run();
  CHECK(trial.admitted() == "110");
  CHECK(trial.result.overshoot.v == 2);
}

TEST_CASE("frames: bytes, messages, delay, and convergence when the last has arrived", "[lab]") {
  Trial trial("shout", 3);
  trial.config.network.delay = {50 * kMs};
  trial.request(0, 0).request(49, 1).request(51, 2).request(60, 1).run();
  // Node 1 has not heard of the first birth when it admits the second.
  CHECK(trial.admitted() == "1110");
  CHECK(trial.result.data.messages == 6);
  CHECK(trial.result.data.bytes == 6 * 16);
  CHECK(trial.result.heartbeat.messages == 0);
  CHECK(trial.arrivals() == Arrivals{{0, 1, 50}, {0, 2, 50}, {1, 0, 99}, {1, 2, 99}, {2, 0, 101}, {2, 1, 101}});
  CHECK(trial.result.convergence == Nanos{41 * kMs});
  const Report json = report(trial.config, 0.1, "toy", trial.result);
  CHECK(json.at("header_bytes") == 6 * 28);
  CHECK(json.at("sent_bytes") == 96);
}

TEST_CASE("a frame that arrives in the instant of a request was there before it", "[lab]") {
  Trial trial("shout", 2);
  trial.request(0, 0).request(0, 0).request(1, 1).run();
  CHECK(trial.admitted() == "110");
}

TEST_CASE("heartbeats are counted apart, and nobody waits for them", "[lab]") {
  Trial trial("beat", 4);
  trial.config.network.topology = Topology::parse("ring");
  trial.request(0, 0).request(3500, 1).run();
  CHECK(trial.result.heartbeat.messages == 3 * 4 * 2);
  CHECK(trial.result.heartbeat.bytes == 3 * 4 * 2 * 4);
  CHECK(trial.result.data.messages == 0);
  CHECK(trial.result.convergence == Nanos{0});
  CHECK(trial.log.ticks.size() == 12);
  CHECK(trial.log.ticks[4] == std::pair<std::uint32_t, std::int64_t>{0, 2000});
}

TEST_CASE("each machine sees its own clock", "[lab]") {
  Trial trial("beat", 2);
  trial.config.network.skew = Skew::parse("alternate:300");
  trial.request(0, 0).request(1500, 1).run();
  CHECK(trial.log.boots.at(0).start_ms == 300);
  CHECK(trial.log.boots.at(1).start_ms == -300);
  // Both tick when a second has passed, and hear of it 1 ms later.
  CHECK(trial.log.ticks == decltype(trial.log.ticks){{0, 1300}, {1, 700}});
  CHECK(trial.log.arrivals == decltype(trial.log.arrivals){{0, 1, 701}, {1, 0, 1301}});
}

TEST_CASE("on a ring a frame to the other side counts at every hop", "[lab]") {
  Trial trial("shout", 4);
  trial.config.network.topology = Topology::parse("ring");
  trial.request(0, 0).run();
  CHECK(trial.result.data.messages == 1 + 2 + 1);
  CHECK(trial.result.data.bytes == 4 * 16);
  CHECK(trial.arrivals() == Arrivals{{0, 1, 1}, {0, 2, 2}, {0, 3, 1}});
}

TEST_CASE("a crash: requests go to the next node, frames are lost, it returns with nothing", "[lab]") {
  Trial trial("shout", 3);
  trial.config.crashes = {Crash::parse("1@1-3")};
  trial.request(0, 1);     // admitted, all know
  trial.request(2000, 1);  // node 2 decides: the second of two
  trial.request(2500, 0);  // denied
  trial.request(4000, 1);  // knows nothing of them: admitted
  trial.request(5000, 0);  // denied
  trial.run();
  CHECK(trial.admitted() == "11010");
  CHECK(trial.decisions.find("1700000002000,a,2,1,1\n") != std::string::npos);
  CHECK(trial.decisions.find("1700000004000,a,1,1,0\n") != std::string::npos);
  CHECK(trial.result.lost_messages == 1);
  REQUIRE(trial.log.boots.size() == 4);
  CHECK(trial.log.boots[3].node == 1);
  CHECK(trial.log.boots[3].incarnation == 2);
  CHECK(trial.log.boots[3].start_ms == 3000);
  CHECK(trial.log.boots[3].seed != trial.log.boots[1].seed);
  CHECK(trial.result.overshoot.v == 1);
}

TEST_CASE("a crash without return, and one of all nodes", "[lab]") {
  Trial trial("local", 2);
  trial.config.crashes = {Crash::parse("0@1"), Crash::parse("1@2")};
  trial.request(0, 0).request(1500, 0).request(2500, 1).run();
  CHECK(trial.admitted() == "110");
  CHECK(trial.result.unanswered == 1);
  CHECK(trial.log.boots.size() == 2);
  CHECK(trial.result.convergence == Nanos{0});
}

TEST_CASE("a lost region crashes and returns as one", "[lab]") {
  Trial trial("local", 4);
  trial.config.network.topology = Topology::parse("regions:2");
  trial.config.lost_regions = {Crash::parse("1@1-2")};
  trial.request(0, 1).request(1500, 1).request(1600, 3).request(3000, 3).run();
  CHECK(trial.decisions ==
        "time_ms,user,node,admitted,central\n"
        "1700000000000,a,1,1,1\n"
        "1700000001500,a,2,1,1\n"
        "1700000001600,a,0,1,0\n"
        "1700000003000,a,3,1,0\n");
  CHECK(trial.log.boots.size() == 6);
}

TEST_CASE("answers that come later count when they come; those of a crashed node never do", "[lab]") {
  Trial trial("later", 2);
  trial.config.crashes = {Crash::parse("1@0.105-1")};
  trial.request(0, 0).request(5, 1).request(100, 1).run();
  // Node 0 answers at 10, node 1 at 15; its second answer was due at 110, it crashed at 105.
  CHECK(trial.admitted() == "110");
  CHECK(trial.result.unanswered == 1);
  CHECK(trial.decisions.find("1700000000100,a,1,0,0\n") != std::string::npos);

  Trial last("later", 1);
  last.request(0, 0).run();
  CHECK(last.admitted() == "1");
  CHECK(last.result.convergence == Nanos{10 * kMs});
}

TEST_CASE("convergence waits for restless machines and for faults to be over", "[lab]") {
  Trial trial("restless", 2);
  trial.request(0, 0).run();
  CHECK(trial.result.convergence == Nanos{5000 * kMs});

  Trial cut_short("restless", 2);
  cut_short.config.settle = {4000 * kMs};
  cut_short.request(0, 0).run();
  CHECK(!cut_short.result.convergence.has_value());

  Trial partition("beat", 2);
  partition.config.network.cuts = {Cut::parse("0-9.5")};
  partition.request(0, 0).run();
  CHECK(partition.result.convergence == Nanos{10'000 * kMs});
  CHECK(partition.result.lost_messages == 9 * 2);
}

TEST_CASE("consistent hashing: one node for a user's millisecond, all nodes alike", "[lab]") {
  std::vector<int> load(30, 0);
  for (std::int64_t ms = 0; ms < 30'000; ++ms) {
    const Request request{kStart + ms, 0, 1, kAnyNode};
    const std::uint32_t node = node_of(request, {99}, 30);
    CHECK(node == node_of(request, {99}, 30));
    ++load.at(node);
  }
  for (const int count : load) CHECK(std::abs(count - 1000) < 160);
  CHECK(node_of({kStart, 0, 1, 7}, {99}, 30) == 7);
  CHECK(node_of({kStart, 0, 1, 7}, {99}, 1) == 0);
}

TEST_CASE("central strategies decide as the truth; under jitter they have a noise floor", "[lab]") {
  for (const char* const strategy : {"central-queue", "central-counter", "central-jitter"}) {
    Trial trial(strategy, 5);
    for (std::int64_t i = 0; i < 50; ++i)
      trial.request(i * 700, static_cast<std::int32_t>(i % 5), static_cast<std::uint32_t>(i % 3));
    trial.run();
    CHECK(trial.result.agreement() == 1);
    CHECK(trial.result.overshoot.v == 0);
    CHECK(trial.result.central_rejected > 0);
  }
  Trial jitter("central-jitter", 5);
  jitter.config.network.jitter = {500 * kMs};
  for (std::int64_t i = 0; i < 500; ++i) jitter.request(i * 700, 0, static_cast<std::uint32_t>(i % 3));
  jitter.run();
  CHECK(jitter.result.agreement() < 1);
  CHECK(jitter.result.agreement() > 0.9);
}

TEST_CASE("under all faults at once: sums hold, and a seed is a run", "[lab]") {
  test::for_cases([](test::Rng& rng) {
    const auto nodes = static_cast<std::uint32_t>(test::draw(rng, 2, 8));
    Trial trial(test::pick<const char*>(rng, {"shout", "later", "local", "beat", "restless"}), nodes);
    trial.config.seed = rng();
    NetworkConfig& network = trial.config.network;
    network.delay = {test::draw(rng, 0, 100) * kMs};
    network.jitter = {test::draw(rng, 0, 50) * kMs};
    network.loss = network.duplicate = network.reorder = 0.2;
    network.skew = Skew::parse("20");
    if (test::chance(rng, 50)) network.cuts = {Cut::parse("1-2")};
    if (test::chance(rng, 50))
      trial.config.crashes = {Crash::parse("0@0.5-1.5"), Crash::parse("1@1"), Crash::parse("0@1-4")};
    std::int64_t at = 0;
    for (int i = 0; i < 40; ++i) {
      at += test::draw(rng, 0, 200);
      trial.request(at, kAnyNode, static_cast<std::uint32_t>(test::draw(rng, 0, 3)));
    }
    Trial again = trial;
    trial.run();
    again.run();
    CHECK(trial.decisions == again.decisions);
    CHECK(trial.series == again.series);

    const Result& result = trial.result;
    CHECK(result.requests == 40);
    CHECK(result.admitted + result.rejected == 40);
    CHECK(result.central_admitted + result.central_rejected == 40);
    CHECK(result.admitted + result.false_denials == result.central_admitted + result.false_admissions);
    const std::string admitted = trial.admitted();
    CHECK(admitted.size() == 40);
    CHECK(static_cast<std::uint64_t>(std::count(admitted.begin(), admitted.end(), '1')) == result.admitted);
    std::uint64_t requests = 0, rejected = 0, messages = 0;
    std::istringstream lines(trial.series);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::vector<double> values;
      for (std::string field; std::getline(fields, field, ',');) values.push_back(std::stod(field));
      REQUIRE(values.size() == 11);
      requests += static_cast<std::uint64_t>(values[1]);
      rejected += static_cast<std::uint64_t>(values[2]);
      messages += static_cast<std::uint64_t>(values[8]);
    }
    CHECK(requests == 40);
    CHECK(rejected == result.rejected);
    CHECK(messages == result.data.messages);
  });
}

TEST_CASE("what can't be run is refused", "[lab]") {
  const auto refused = [](auto change) {
    Trial trial("local", 3);
    trial.request(0, 2);
    change(trial);
    CHECK_THROWS_AS(trial.run(), Error);
  };
  refused([](Trial& trial) { trial.config.strategy = "unknown"; });
  refused([](Trial& trial) { trial.config.nodes = 0; });
  refused([](Trial& trial) { trial.config.nodes = 2; });
  refused([](Trial& trial) { trial.config.nodes = 5000; });
  refused([](Trial& trial) { trial.workload.requests.clear(); });
  refused([](Trial& trial) { trial.config.crashes = {Crash::parse("3@1")}; });
  refused([](Trial& trial) { trial.config.lost_regions = {Crash::parse("0@1")}; });
  refused([](Trial& trial) { trial.config.network.cuts = {Cut::parse("0-1:3")}; });
}

TEST_CASE("the mean of runs: of what is there", "[lab]") {
  const Report both = report_runs({{{"a", 1}, {"b", nullptr}, {"c", nullptr}, {"config", Report::object()}},
                                   {{"a", 2}, {"b", 5}, {"c", nullptr}, {"config", Report::object()}}});
  CHECK(both.at("runs").size() == 2);
  CHECK(both.at("mean") == Report{{"a", 1.5}, {"b", 5.0}, {"c", nullptr}});
}

}  // namespace
}  // namespace weir::lab
