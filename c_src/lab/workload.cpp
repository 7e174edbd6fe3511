#include "lab/workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <span>

#include "lab/common/random.hpp"
#include "lab/error.hpp"
#include "lab/limits.hpp"
#include "weir/siphash.hpp"

namespace weir::lab {
namespace {

constexpr std::int64_t kEpochMs = 1'577'836'800'000;                 // 2020-01-01
constexpr std::int64_t kEpochDraw = std::int64_t{2} * 365 * 86'400;  // seconds
constexpr double kMinute = 60;
constexpr double kHour = 3600;

// What a generator draws from and fills.
struct Draft {
  const WorkloadParams& params;
  Random random;
  std::int64_t start_ms;
  double c;
  double share = 0;  // of the rate, for steady users
  std::vector<Request> requests;
  std::uint32_t users = 0;

  std::uint32_t users_or(std::uint32_t own) const { return params.users == 0 ? own : params.users; }
  // A number of requests that may be made.
  std::uint32_t count(double wanted) const {
    if (wanted + static_cast<double>(requests.size()) > kMaxRequests) {
      throw Error(fmt::format("workload {} would have more than {} requests", params.name, kMaxRequests));
    }
    return std::max(1U, static_cast<std::uint32_t>(std::lround(wanted)));
  }
  void add(std::uint32_t user, double second, std::uint32_t hits = 1, std::int32_t node = kAnyNode) {
    requests.push_back({start_ms + static_cast<std::int64_t>(second * 1000), user, hits, node});
    users = std::max(users, user + 1);
  }
  // A Poisson process of which the number of requests is known: each is anywhere, as likely as elsewhere.
  void poisson(std::uint32_t user, std::uint32_t n, double from, double span) {
    for (std::uint32_t i = 0; i < n; ++i) add(user, from + random.unit() * span);
  }
  // Bursts that start anywhere and last one to ten seconds; each request is in one of them, in any as likely.
  void bursts(std::uint32_t user, std::uint32_t n, double span) {
    struct Burst {
      double start;
      double length;
    };
    std::array<Burst, 12> all{};
    for (Burst& burst : all) {
      burst.length = random.between(1, 10);
      burst.start = random.between(0, span - burst.length);
    }
    for (std::uint32_t i = 0; i < n; ++i) {
      const Burst& burst = all[random.below(all.size())];
      add(user, burst.start + random.unit() * burst.length);
    }
  }
};

void make_a(Draft& draft) {
  constexpr std::array kTimesC = {20.0, 14.0, 10.0, 7.0, 5.0, 4.0, 3.0, 2.4, 1.7, 1.2};
  constexpr double kSpan = 300;
  for (std::uint32_t user = 0; user < kTimesC.size(); ++user) {
    const std::uint32_t n = draft.count(kTimesC[user] * draft.c);
    if (user % 2 == 0) {
      draft.poisson(user, n, 0, kSpan);
    } else {
      draft.bursts(user, n, kSpan);
    }
  }
}

void make_b(Draft& draft, double requests) { draft.poisson(0, draft.count(requests), 0, kMinute); }
void make_b_extreme(Draft& draft) { make_b(draft, 21.5 * draft.c); }
void make_b_substantial(Draft& draft) { make_b(draft, 3.2 * draft.c); }
void make_b_barely(Draft& draft) { make_b(draft, 1.1 * draft.c); }
void make_b_just(Draft& draft) { make_b(draft, std::ceil(draft.c + kMinute * draft.params.refill + 0.01 * draft.c)); }

// One user, a request each `period` seconds, from 0 on and before `span`.
void make_regular(Draft& draft, double period, double span) {
  const std::uint32_t n = draft.count(std::ceil(span / period - 1e-9));
  for (std::uint32_t i = 0; i < n; ++i) draft.add(0, i * period + 1e-7);
}
void make_b_unlimited(Draft& draft) { make_regular(draft, 1.05 / draft.params.refill, 120); }
void make_d(Draft& draft) { make_regular(draft, 0.9, 100); }

// A user of 1 to 3 sessions, of a lognormal number of requests in all; or one that is limited.
void make_c(Draft& draft) {
  constexpr double kLimited = 0.005;
  Random& random = draft.random;
  const std::uint32_t users = draft.users_or(5000);
  const auto limited = static_cast<std::uint32_t>(std::lround(kLimited * users));
  for (std::uint32_t user = 0; user < users; ++user) {
    if (user < limited) {
      const double span = random.between(1, 10) * kMinute;
      draft.poisson(user, draft.count(random.between(1.5, 5) * draft.c), random.between(0, kHour - span), span);
      continue;
    }
    struct Session {
      double start;
      double length;
    };
    std::array<Session, 3> all{};
    const std::uint32_t sessions = 1 + random.below(3);
    for (Session& session : std::span(all).first(sessions)) {
      session.length = std::min(30 + random.exponential(300), kHour);
      session.start = random.between(0, kHour - session.length);
    }
    const std::uint32_t n = draft.count(random.lognormal(20 * std::sqrt(draft.c / 1000), 1.2));
    for (std::uint32_t i = 0; i < n; ++i) {
      const Session& session = all[random.below(sessions)];
      draft.add(user, session.start + random.unit() * session.length);
    }
  }
}

// Requests at `rate` a second for `span` seconds: one in each period, anywhere in it.
void steady(Draft& draft, std::uint32_t user, double rate, double span, std::int32_t node) {
  const std::uint32_t n = draft.count(rate * span);
  for (std::uint32_t i = 0; i < n; ++i) draft.add(user, (i + draft.random.unit()) / rate, 1, node);
}
double retention_seconds(const Draft& draft) { return 2 * draft.c / draft.params.refill; }

void make_steady(Draft& draft) {
  const double span = draft.params.retentions.value_or(3) * retention_seconds(draft);
  for (std::uint32_t user = 0; user < draft.users_or(10); ++user) {
    steady(draft, user, draft.share * draft.params.refill, span, kAnyNode);
  }
}

void make_steady_lopsided(Draft& draft) {
  const std::uint32_t nodes = draft.params.nodes;
  if (nodes < 2) throw Error("workload steady-lopsided needs at least 2 nodes");
  const double span = draft.params.retentions.value_or(30) * retention_seconds(draft);
  for (std::uint32_t user = 0; user < draft.users_or(10); ++user) {
    const std::uint32_t favourite = user % nodes;
    steady(draft, user, 0.9 * draft.params.refill, span, static_cast<std::int32_t>(favourite));
    const std::size_t first = draft.requests.size();
    steady(draft, user, 0.2 * draft.params.refill, span, kAnyNode);
    for (std::size_t i = first; i < draft.requests.size(); ++i) {
      const std::uint32_t other = draft.random.below(nodes - 1);
      draft.requests[i].node = static_cast<std::int32_t>(other + (other >= favourite ? 1 : 0));
    }
  }
}

// Users that ask for 8c tokens within an hour, in requests of the weights that `draw` gives.
template <class Weight>
void make_weighted(Draft& draft, Weight draw) {
  const double most = draft.c;
  for (std::uint32_t user = 0; user < draft.users_or(50); ++user) {
    for (double asked = 0; asked < 8 * draft.c;) {
      const double hits = std::clamp(std::round(draw(draft)), 1.0, most);
      static_cast<void>(draft.count(1));
      draft.add(user, draft.random.unit() * kHour, static_cast<std::uint32_t>(hits));
      asked += hits;
    }
  }
}
void make_weighted_one(Draft& draft) {
  make_weighted(draft, [](Draft&) { return 1.0; });
}
void make_weighted_tenth(Draft& draft) {
  make_weighted(draft, [](Draft& d) { return static_cast<double>(d.random.whole(1, std::lround(d.c / 10))); });
}
void make_weighted_uniform(Draft& draft) {
  make_weighted(draft, [](Draft& d) { return static_cast<double>(d.random.whole(1, std::lround(d.c))); });
}
void make_weighted_bimodal(Draft& draft) {
  make_weighted(draft, [](Draft& d) { return d.random.chance(0.1) ? d.c / 2 : 1; });
}
void make_weighted_lognormal(Draft& draft) {
  make_weighted(draft, [](Draft& d) { return d.random.lognormal(d.c / 50, 1.2); });
}

// People who mistype now and then, and 3 of 100 keys that are being guessed at.
void make_logins(Draft& draft) {
  Random& random = draft.random;
  for (std::uint32_t user = 0; user < draft.users_or(1'000'000); ++user) {
    if (random.chance(0.03)) {
      const double span = random.between(1, 10) * kMinute;
      draft.poisson(user, draft.count(random.between(1, 3) * draft.c + 1), random.between(0, kHour - span), span);
      continue;
    }
    double at = random.between(0, kHour - kMinute);
    do {
      static_cast<void>(draft.count(1));
      draft.add(user, at);
      at += random.between(2, 10);
    } while (random.chance(0.25) && at < kHour);
  }
}

void make_hot(Draft& draft) {
  for (std::uint32_t user = 0; user < draft.users_or(1000); ++user) {
    draft.poisson(user, draft.count(2 * draft.c), 0, kMinute);
  }
}

// The user of rank k asks 1/k as often as the first.
void make_zipf(Draft& draft) {
  const std::uint32_t users = draft.users_or(100'000);
  std::vector<double> upto(users);
  double sum = 0;
  for (std::uint32_t user = 0; user < users; ++user) upto[user] = sum += 1.0 / (user + 1);
  const std::uint32_t n = draft.count(2.0 * users);
  draft.users = users;
  for (std::uint32_t i = 0; i < n; ++i) {
    const auto user = std::upper_bound(upto.begin(), upto.end(), draft.random.unit() * sum) - upto.begin();
    draft.add(static_cast<std::uint32_t>(std::min<std::ptrdiff_t>(user, users - 1)), draft.random.unit() * kMinute);
  }
}

struct Kind {
  std::string_view name;
  std::string_view line;
  void (*make)(Draft&);
  std::int64_t capacity = 100;
  double refill = 0;  // 0: 0.001 of the capacity
};

constexpr std::string_view kSteady = "steady:";

constexpr std::array kKinds = {
    Kind{"A", "ten users, 20 14 10 7 5 4 3 2.4 1.7 1.2 x c in five minutes, alternately Poisson and bursty", make_a},
    Kind{"B-extreme", "one user, 21.5c requests in 60 s", make_b_extreme},
    Kind{"B-substantial", "one user, 3.2c requests in 60 s", make_b_substantial},
    Kind{"B-barely", "one user, 1.1c requests in 60 s", make_b_barely},
    Kind{"B-just", "one user, 1 % of c more than the capacity and the refill of 60 s", make_b_just},
    Kind{"B-unlimited", "one user, a request each 1.05 T for 120 s", make_b_unlimited},
    Kind{"C", "5000 users over an hour, 0.5 % of them limited", make_c},
    Kind{"D", "one user, a request each 0.9 s for 100 s (capacity 5, refill 1 unless given)", make_d, 5, 1},
    Kind{kSteady, "10 users at that share of the rate (e.g. steady:0.95) for 3 retentions of 2cT", make_steady},
    Kind{"steady-lopsided", "10 users for 30 retentions, each 0.9 of the rate at one node and 0.2 at the others",
         make_steady_lopsided},
    Kind{"weighted:one", "50 users ask for 8c tokens in an hour, in requests of 1", make_weighted_one},
    Kind{"weighted:uniform-tenth", "the same in requests of 1 to c/10", make_weighted_tenth},
    Kind{"weighted:uniform", "the same in requests of 1 to c", make_weighted_uniform},
    Kind{"weighted:bimodal", "the same in requests of 1, and one of ten of c/2", make_weighted_bimodal},
    Kind{"weighted:lognormal", "the same, lognormal as the tokens of language models (median c/50, sigma 1.2)",
         make_weighted_lognormal},
    Kind{"logins",
         "a million keys over an hour: 1.3 attempts each, 3 % guessed at 1-3 c times (capacity 5 unless given)",
         make_logins, 5},
    Kind{"hot", "a thousand users at once, 2c requests each in 60 s", make_hot},
    Kind{"zipf", "100,000 users in 60 s, two requests each on average, by Zipf's law of exponent 1", make_zipf},
};

const Kind& find(std::string_view name) {
  const bool is_steady = name.starts_with(kSteady) && name.size() > kSteady.size();
  for (const Kind& kind : kKinds) {
    if (kind.name == kSteady ? is_steady : kind.name == name) return kind;
  }
  throw Error(fmt::format("unknown workload \"{}\" (`weir-lab list` names them)", name));
}

double steady_share(const std::string& name) {
  const char* const text = name.c_str() + kSteady.size();
  char* end = nullptr;
  const double share = std::strtod(text, &end);
  if (*end != '\0' || !(share >= 0.01) || share > 100) {
    throw Error(fmt::format("workload {}: the share of the rate must be a number from 0.01 to 100", name));
  }
  return share;
}

}  // namespace

bool Workload::has_nodes() const noexcept {
  return std::any_of(requests.begin(), requests.end(), [](const Request& r) { return r.node != kAnyNode; });
}
bool Workload::has_hits() const noexcept {
  return std::any_of(requests.begin(), requests.end(), [](const Request& r) { return r.hits != 1; });
}

bool sort_by_time(std::vector<Request>& requests) {
  const auto earlier = [](const Request& a, const Request& b) { return a.time_ms < b.time_ms; };
  if (std::is_sorted(requests.begin(), requests.end(), earlier)) return false;
  std::stable_sort(requests.begin(), requests.end(), earlier);
  return true;
}

KeyHash key_of(std::string_view user) noexcept {
  return siphash13({}, {reinterpret_cast<const std::uint8_t*>(user.data()), user.size()}, 0);
}

std::vector<WorkloadHelp> workload_help() {
  std::vector<WorkloadHelp> help;
  help.reserve(kKinds.size());
  for (const Kind& kind : kKinds) {
    help.push_back({kind.name == kSteady ? "steady:SHARE" : std::string(kind.name), std::string(kind.line)});
  }
  return help;
}

std::int64_t default_capacity(std::string_view name) { return find(name).capacity; }
double default_refill(std::string_view name, std::int64_t capacity) {
  const Kind& kind = find(name);
  return kind.refill > 0 ? kind.refill : 0.001 * static_cast<double>(capacity);
}

Workload generate(const WorkloadParams& params) {
  const Kind& kind = find(params.name);
  Random random = Random::stream(params.seed, 0x776f726b6c6f6164);
  const std::int64_t start = kEpochMs + 1000 * random.whole(0, kEpochDraw);
  Draft draft{params, random, start, static_cast<double>(params.capacity), 0, {}, 0};
  if (kind.name == kSteady) draft.share = steady_share(params.name);
  kind.make(draft);
  sort_by_time(draft.requests);
  Workload workload{params.name, {}, std::move(draft.requests)};
  workload.users.reserve(draft.users);
  for (std::uint32_t user = 0; user < draft.users; ++user) workload.users.push_back(fmt::format("user-{}", user + 1));
  return workload;
}

}  // namespace weir::lab
