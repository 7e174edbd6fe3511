// Workloads: what each is said to be, drawn the same again, and nothing that a run could not take.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "lab/common/random.hpp"
#include "lab/error.hpp"
#include "lab/limits.hpp"
#include "lab/workload.hpp"

namespace weir::lab {
namespace {

WorkloadParams params(const std::string& name, std::int64_t capacity = 100, std::uint64_t seed = 1) {
  WorkloadParams all;
  all.name = name;
  all.seed = seed;
  all.capacity = capacity;
  all.refill = 0.001 * static_cast<double>(capacity);
  return all;
}

bool near(double value, double expected, double margin) { return std::abs(value - expected) <= margin; }

std::vector<std::vector<Request>> by_user(const Workload& workload) {
  std::vector<std::vector<Request>> all(workload.users.size());
  for (const Request& request : workload.requests) all.at(request.user).push_back(request);
  return all;
}

std::int64_t span_ms(const Workload& workload) {
  return workload.requests.back().time_ms - workload.requests.front().time_ms;
}

std::vector<std::string> small_names() {
  std::vector<std::string> names;
  for (const WorkloadHelp& help : workload_help()) {
    CHECK(!help.line.empty());
    names.push_back(help.name == "steady:SHARE" ? "steady:0.95" : help.name);
  }
  return names;
}

TEST_CASE("every workload: in order, the same again for a seed, another for another", "[lab]") {
  for (const std::string& name : small_names()) {
    INFO(name);
    WorkloadParams all = params(name, 20);
    if (name == "logins") all.users = 2000;
    const Workload one = generate(all);
    REQUIRE(!one.requests.empty());
    CHECK(one.name == name);
    CHECK(std::is_sorted(one.requests.begin(), one.requests.end(),
                         [](const Request& a, const Request& b) { return a.time_ms < b.time_ms; }));
    CHECK(std::all_of(one.requests.begin(), one.requests.end(), [&](const Request& r) {
      return r.user < one.users.size() && r.hits >= 1 && r.hits <= 20 && r.node < 30 && r.time_ms < kMaxTimeMs;
    }));
    const std::set<std::string> users(one.users.begin(), one.users.end());
    CHECK(users.size() == one.users.size());

    CHECK(generate(all).requests == one.requests);
    all.seed = 2;
    CHECK(generate(all).requests != one.requests);
  }
}

TEST_CASE("data set A: ten users of the thesis' numbers, every other one in bursts", "[lab]") {
  const Workload workload = generate(params("A"));
  const auto users = by_user(workload);
  const std::vector<std::size_t> expected = {2000, 1400, 1000, 700, 500, 400, 300, 240, 170, 120};
  REQUIRE(users.size() == expected.size());
  for (std::size_t user = 0; user < users.size(); ++user) CHECK(users[user].size() == expected[user]);
  CHECK(span_ms(workload) < 300'000);
  CHECK(span_ms(workload) > 295'000);
  // Seconds in which there is a request: nearly all of 300 for the Poisson user of 2000, at most 12 bursts of 10 s (and
  // the second that each begins in) for the next.
  const auto seconds = [](const std::vector<Request>& requests) {
    std::set<std::int64_t> all;
    for (const Request& request : requests) all.insert(request.time_ms / 1000);
    return all.size();
  };
  CHECK(seconds(users[0]) > 290);
  CHECK(seconds(users[1]) <= 12 * 11);
}

TEST_CASE("data set B: one user, a minute, the thesis' numbers", "[lab]") {
  const auto count = [](const char* name, std::int64_t capacity) {
    const Workload workload = generate(params(name, capacity));
    CHECK(workload.users.size() == 1);
    CHECK(span_ms(workload) < 60'000);
    return workload.requests.size();
  };
  CHECK(count("B-extreme", 100) == 2150);
  CHECK(count("B-substantial", 100) == 320);
  CHECK(count("B-barely", 100) == 110);
  CHECK(count("B-barely", 1000) == 1100);
  // Capacity, what 60 s refill, and 1 % of the capacity.
  CHECK(count("B-just", 100) == 100 + 6 + 1);
  CHECK(count("B-just", 1000) == 1000 + 60 + 10);
}

TEST_CASE("B-unlimited and D: a fixed period", "[lab]") {
  const auto gaps = [](const Workload& workload) {
    std::set<std::int64_t> all;
    for (std::size_t i = 1; i < workload.requests.size(); ++i) {
      all.insert(workload.requests[i].time_ms - workload.requests[i - 1].time_ms);
    }
    return all;
  };
  const Workload unlimited = generate(params("B-unlimited"));  // T = 10 s
  CHECK(unlimited.requests.size() == 12);
  CHECK(gaps(unlimited) == std::set<std::int64_t>{10'500});
  CHECK(unlimited.requests.front().time_ms % 1000 == 0);

  CHECK(default_capacity("D") == 5);
  CHECK(default_refill("D", 5) == 1);
  CHECK(default_refill("A", 500) == 0.5);
  WorkloadParams d = params("D", 5);
  d.refill = 1;
  const Workload fixed = generate(d);
  CHECK(fixed.requests.size() == 112);
  CHECK(gaps(fixed) == std::set<std::int64_t>{900});
}

TEST_CASE("data set C: 5000 users in an hour, lognormal numbers, 25 of them limited", "[lab]") {
  const Workload workload = generate(params("C", 1000));
  auto users = by_user(workload);
  REQUIRE(users.size() == 5000);
  CHECK(span_ms(workload) < 3'600'000);
  CHECK(span_ms(workload) > 3'500'000);
  std::vector<std::size_t> counts;
  for (std::size_t user = 0; user < users.size(); ++user) {
    REQUIRE(!users[user].empty());
    if (user >= 25) {
      counts.push_back(users[user].size());
      continue;
    }
    CHECK(users[user].size() >= 1500);
    CHECK(users[user].size() <= 5000);
    CHECK(users[user].back().time_ms - users[user].front().time_ms <= 600'000);
  }
  std::sort(counts.begin(), counts.end());
  const auto median = static_cast<double>(counts[counts.size() / 2]);
  CHECK(near(median, 20, 1.5));
  // sigma: 84.13 % of a lognormal lie below median * e^sigma.
  const auto upper = static_cast<double>(counts[counts.size() * 8413 / 10'000]);
  CHECK(near(std::log(upper / median), 1.2, 0.1));
}

TEST_CASE("steady users: one request in each period, for so many retentions", "[lab]") {
  WorkloadParams all = params("steady:0.5");
  all.users = 3;
  all.retentions = 2;
  const auto users = by_user(generate(all));
  REQUIRE(users.size() == 3);
  // Half of 0.1 a second for two times 2000 s: one request in each 20 s, counted from a start that is the same for all.
  std::int64_t latest = INT64_MAX;
  std::int64_t earliest = 0;
  for (const auto& user : users) {
    REQUIRE(user.size() == 200);
    for (std::int64_t i = 0; i < 200; ++i) {
      latest = std::min(latest, user[static_cast<std::size_t>(i)].time_ms - i * 20'000);
      earliest = std::max(earliest, user[static_cast<std::size_t>(i)].time_ms - (i + 1) * 20'000);
    }
  }
  CHECK(earliest < latest);
  CHECK(latest - earliest < 20'000);
  CHECK_THROWS_AS(generate(params("steady:")), Error);
  CHECK_THROWS_AS(generate(params("steady:0.5x")), Error);
  CHECK_THROWS_AS(generate(params("steady:0")), Error);
  CHECK_THROWS_AS(generate(params("steady:nan")), Error);
}

TEST_CASE("steady-lopsided: 0.9 of the rate at one node, 0.2 at the others together", "[lab]") {
  WorkloadParams all = params("steady-lopsided", 10);
  all.users = 2;
  all.retentions = 5;
  const auto users = by_user(generate(all));
  REQUIRE(users.size() == 2);
  for (std::size_t user = 0; user < users.size(); ++user) {
    // 5 * 2cT = 100 T.
    const auto at_home = std::count_if(users[user].begin(), users[user].end(),
                                       [&](const Request& r) { return r.node == static_cast<std::int32_t>(user); });
    CHECK(at_home == 5 * 20 * 9 / 10);
    CHECK(users[user].size() == static_cast<std::size_t>(at_home) + 5 * 20 * 2 / 10);
    CHECK(std::all_of(users[user].begin(), users[user].end(), [](const Request& r) { return r.node != kAnyNode; }));
  }
  all.nodes = 1;
  CHECK_THROWS_AS(generate(all), Error);
}

TEST_CASE("weighted: 8c tokens a user, weights as named", "[lab]") {
  const auto check = [](const char* name, std::uint32_t most, auto weight_is_right) {
    INFO(name);
    const Workload workload = generate(params(name));
    const auto users = by_user(workload);
    CHECK(users.size() == 50);
    for (const auto& user : users) {
      std::uint64_t sum = 0;
      for (const Request& request : user) sum += request.hits;
      CHECK(sum >= 800);
      CHECK(sum < 800 + most);
    }
    CHECK(std::all_of(workload.requests.begin(), workload.requests.end(),
                      [&](const Request& r) { return r.hits <= most && weight_is_right(r.hits); }));
    const auto heaviest = std::max_element(workload.requests.begin(), workload.requests.end(),
                                           [](const Request& a, const Request& b) { return a.hits < b.hits; });
    CHECK(heaviest->hits == most);
  };
  const auto any = [](std::uint32_t) { return true; };
  check("weighted:one", 1, any);
  check("weighted:uniform-tenth", 10, any);
  check("weighted:uniform", 100, any);
  check("weighted:bimodal", 50, [](std::uint32_t hits) { return hits == 1 || hits == 50; });
  const Workload tokens = generate(params("weighted:lognormal", 10'000));
  std::vector<std::uint32_t> hits;
  for (const Request& request : tokens.requests) hits.push_back(request.hits);
  std::sort(hits.begin(), hits.end());
  CHECK(near(static_cast<double>(hits[hits.size() / 2]), 200, 20));
}

TEST_CASE("logins and hot: so many keys as asked", "[lab]") {
  WorkloadParams logins = params("logins", 5);
  logins.users = 10'000;
  const Workload workload = generate(logins);
  const auto users = by_user(workload);
  REQUIRE(users.size() == 10'000);
  // 97 % of 1 / (1 - 1/4) attempts, 3 % of 2c + 1.
  CHECK(near(static_cast<double>(workload.requests.size()), 10'000 * (0.97 / 0.75 + 0.03 * 11), 800));
  CHECK(span_ms(workload) < 3'600'000);
  const auto guessed = std::count_if(users.begin(), users.end(), [](const auto& user) { return user.size() > 8; });
  CHECK(guessed > 100);

  WorkloadParams hot = params("hot");
  hot.users = 7;
  CHECK(generate(hot).requests.size() == 7 * 200);
  CHECK(span_ms(generate(hot)) < 60'000);
}

TEST_CASE("what is no workload, or too much of one, is refused", "[lab]") {
  CHECK_THROWS_AS(generate(params("E")), Error);
  CHECK_THROWS_AS(default_capacity(""), Error);
  CHECK_THROWS_AS(generate(params("B-extreme", 1'000'000'000)), Error);
}

TEST_CASE("random: in range, even, apart by purpose", "[lab]") {
  Random random(7);
  std::vector<int> counts(30, 0);
  for (int i = 0; i < 300'000; ++i) ++counts.at(random.below(30));
  // Five standard deviations of 10,000.
  for (const int count : counts) CHECK(std::abs(count - 10'000) < 500);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) sum += random.exponential(3);
  CHECK(near(sum / 100'000, 3, 0.06));
  std::set<std::int64_t> dice;
  for (int i = 0; i < 1000; ++i) dice.insert(random.whole(1, 6));
  CHECK(dice == std::set<std::int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(!random.chance(0));
  CHECK(random.chance(1));
  CHECK(Random::stream(1, 1).next() != Random::stream(1, 2).next());
  CHECK(Random::stream(1, 1).next() != Random::stream(2, 1).next());
}

}  // namespace
}  // namespace weir::lab
