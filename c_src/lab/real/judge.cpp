#include "lab/real/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <numeric>
#include <ostream>

#include "lab/common/random.hpp"
#include "lab/monitor.hpp"
#include "lab/recording.hpp"

namespace weir::lab {
namespace {

constexpr Nanos kSecond{1'000'000'000};

// The requests in the order of these times.
std::vector<std::uint32_t> order_of(const std::vector<Nanos>& times) {
  std::vector<std::uint32_t> order(times.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return times[a] < times[b]; });
  return order;
}

std::vector<std::uint8_t> central(const RunConfig& config, const Workload& workload, std::string_view strategy,
                                  const std::vector<Nanos>& times) {
  const std::vector<std::uint32_t> order = order_of(times);
  std::vector<Nanos> at;
  at.reserve(order.size());
  for (const std::uint32_t index : order) at.push_back(times[index]);
  return decide_centrally(make, strategy, config.options.policy, workload, order, at);
}

std::size_t differences(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  return static_cast<std::size_t>(
      std::inner_product(a.begin(), a.end(), b.begin(), std::size_t{0}, std::plus<>(), std::not_equal_to<>()));
}

// Two central limiters, each behind a network of the delays that were measured.
double noise(const RunConfig& config, const Workload& workload, const std::vector<Nanos>& times,
             const std::vector<std::int64_t>& delays) {
  std::vector<std::uint8_t> decided[2];
  for (std::size_t which = 0; which < 2; ++which) {
    Random random = Random::stream(config.seed, 0x6e6f697365 + which);
    std::vector<Nanos> later = times;
    for (Nanos& time : later) time.v += delays[random.below(static_cast<std::uint32_t>(delays.size()))];
    decided[which] = central(config, workload, "queue", later);
  }
  return 1 - static_cast<double>(differences(decided[0], decided[1])) / static_cast<double>(times.size());
}

// The most tokens that one user asks for within `span`.
std::uint64_t most_within(const Workload& workload, const std::vector<Nanos>& times,
                          const std::vector<std::uint32_t>& order, Nanos span) {
  struct Window {
    std::deque<std::uint32_t> requests;
    std::uint64_t hits = 0;
  };
  std::vector<Window> windows(workload.users.size());
  std::uint64_t most = 0;
  for (const std::uint32_t index : order) {
    Window& window = windows[workload.requests[index].user];
    window.requests.push_back(index);
    window.hits += workload.requests[index].hits;
    while (times[index] - times[window.requests.front()] > span) {
      window.hits -= workload.requests[window.requests.front()].hits;
      window.requests.pop_front();
    }
    most = std::max(most, window.hits);
  }
  return most;
}

class Bench {
 public:
  Bench(const RunConfig& config, const Workload& workload, const Seen& seen, const Sinks& sinks, Result& result)
      : workload_(workload),
        seen_(seen),
        sinks_(sinks),
        result_(result),
        truth_(config.options.policy, workload.users.size()),
        asked_(workload.users.size(), false) {}

  void run(const std::vector<std::uint32_t>& order, const std::vector<std::uint8_t>& central) {
    if (sinks_.decisions != nullptr) *sinks_.decisions << "time_ms,user,node,admitted,central,decided_ms\n";
    if (sinks_.series != nullptr) {
      *sinks_.series << "time_s,requests,rejected,central_rejected,users,memory_bytes,memory_fixed_bytes,sent_bytes,"
                        "messages,heartbeat_bytes,heartbeat_messages\n";
    }
    for (const std::uint32_t index : order) {
      while (seen_.decisions[index].at - seen_.zero >= Tokens{seconds_ + 1} * kSecond) end_second(true);
      decide(index, central[index] != 0);
    }
    end_second(true);
    while (seconds_ < static_cast<std::int64_t>(seen_.seconds.size())) end_second(false);
    result_.requests = order.size();
    result_.curve = curve_.sum();
    result_.central_curve = central_curve_.sum();
    result_.overshoot = truth_.overshoot();
    result_.undershoot = truth_.undershoot();
  }

 private:
  void decide(std::uint32_t index, bool central) {
    const Request& request = workload_.requests[index];
    const Decision& decision = seen_.decisions[index];
    const Birth birth{decision.at, {request.hits}};
    const bool allowed = decision.outcome == Outcome::allowed;
    ++requests_;
    if (!asked_[request.user]) {
      asked_[request.user] = true;
      ++users_;
    }
    if (central) {
      ++result_.central_admitted;
      truth_.admitted_centrally(request.user, birth);
    } else {
      ++result_.central_rejected;
      central_curve_.reject();
    }
    if (allowed) {
      ++result_.admitted;
      truth_.admitted(request.user, birth);
      result_.false_admissions += central ? 0 : 1;
    } else {
      ++result_.rejected;
      curve_.reject();
      result_.false_denials += central ? 1 : 0;
      result_.unanswered += decision.outcome == Outcome::unanswered ? 1 : 0;
    }
    truth_.look(request.user, decision.at);
    if (sinks_.decisions == nullptr) return;
    *sinks_.decisions << fmt::format("{},{},{},{:d},{:d},{:.3f}\n", request.time_ms,
                                     csv_field(workload_.users[request.user]), decision.node, allowed, central,
                                     static_cast<double>((decision.at - seen_.zero).v) / 1e6);
  }

  // A curve has a point for each second of the workload, begun ones too.
  void end_second(bool of_workload) {
    if (of_workload) {
      curve_.point();
      central_curve_.point();
    }
    const auto index = static_cast<std::size_t>(seconds_++);
    if (sinks_.series == nullptr) return;
    const Second now = index < seen_.seconds.size() ? seen_.seconds[index] : last_;
    *sinks_.series << fmt::format("{},{},{},{},{},{:.1f},{:.1f},{},{},{},{}\n", seconds_, requests_,
                                  curve_.rejected() - rejected_, central_curve_.rejected() - central_rejected_, users_,
                                  now.held_state, now.held_fixed, now.sent.bytes - last_.sent.bytes,
                                  now.sent.messages - last_.sent.messages, now.heartbeat.bytes - last_.heartbeat.bytes,
                                  now.heartbeat.messages - last_.heartbeat.messages);
    last_ = now;
    requests_ = 0;
    rejected_ = curve_.rejected();
    central_rejected_ = central_curve_.rejected();
  }

  const Workload& workload_;
  const Seen& seen_;
  const Sinks& sinks_;
  Result& result_;
  Truth truth_;
  Curve curve_;
  Curve central_curve_;
  std::vector<bool> asked_;
  std::uint64_t users_ = 0;
  std::int64_t seconds_ = 0;  // that are over
  Second last_;               // as at the end of the last one
  std::uint64_t requests_ = 0;
  std::uint64_t rejected_ = 0;
  std::uint64_t central_rejected_ = 0;
};

}  // namespace

Spread spread_of(std::vector<std::int64_t>& values, double unit) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](std::size_t part) {
    return static_cast<double>(values[(values.size() - 1) * part / 100]) / unit;
  };
  return {at(50), at(99), at(100)};
}

void judge(const RunConfig& config, const Workload& workload, Seen& seen, const Sinks& sinks, RealResult& result) {
  std::vector<Nanos> times;
  std::vector<std::int64_t> late;
  times.reserve(seen.decisions.size());
  const std::int64_t first = workload.requests.front().time_ms;
  for (std::size_t index = 0; index < seen.decisions.size(); ++index) {
    const Decision& decision = seen.decisions[index];
    times.push_back(decision.at);
    if (decision.outcome == Outcome::unanswered) continue;
    late.push_back((decision.at - seen.zero).v - (workload.requests[index].time_ms - first) * 1'000'000);
  }
  result.late_ms = spread_of(late, 1e6);
  Nanos delay = config.network.delay;
  if (!seen.delays.empty()) {
    result.noise_agreement = noise(config, workload, times, seen.delays);
    result.delay_ms = spread_of(seen.delays, 1e6);
    delay = {seen.delays[(seen.delays.size() - 1) * 99 / 100]};
  }
  const std::vector<std::uint32_t> order = order_of(times);
  result.arrivals_in_delay = most_within(workload, times, order, delay);
  const auto queue = central(config, workload, "queue", times);
  const auto counter = central(config, workload, "counter", times);
  Result& judged = result.judged;
  judged.central_disagreements = differences(queue, counter);
  Bench(config, workload, seen, sinks, judged).run(order, queue);
}

}  // namespace weir::lab
