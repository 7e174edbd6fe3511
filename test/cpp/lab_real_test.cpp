// Real nodes: what can be seen without starting any. How they run is shown by weir_lab_SUITE.
#ifdef __linux__
#include <unistd.h>

#include <sstream>
#include <string>

#include "catch.hpp"
#include "lab/error.hpp"
#include "lab/real/channel.hpp"
#include "lab/real/judge.hpp"

using namespace weir;
using namespace weir::lab;

namespace {

struct Pair {
  Channel here;
  Channel there;
};

Pair joined() {
  int down[2];
  int up[2];
  REQUIRE(pipe(down) == 0);
  REQUIRE(pipe(up) == 0);
  return {Channel(Fd(up[0]), Fd(down[1])), Channel(Fd(down[0]), Fd(up[1]))};
}

Workload workload_of(std::initializer_list<std::int64_t> times_ms) {
  Workload workload{"by hand", {"a"}, {}};
  for (const std::int64_t time : times_ms) workload.requests.push_back({time, 0, 1, kAnyNode});
  return workload;
}

RunConfig config_of(std::int64_t capacity, std::int64_t interval_ms) {
  RunConfig config;
  config.strategy = "interval";
  config.nodes = 2;
  config.options.policy = {{capacity}, {interval_ms * 1'000'000}};
  return config;
}

Nanos at_ms(std::int64_t ms) { return {1'700'000'000'000'000'000 + ms * 1'000'000}; }

}  // namespace

TEST_CASE("messages arrive whole, however the pipe cuts them", "[lab]") {
  Pair pair = joined();
  const std::string user(60'000, 'u');
  for (std::uint32_t i = 0; i < 10; ++i) {
    pair.here.send(Message(Tag::requests).put(i).put(std::int64_t{-1}).put(std::string_view(user)));
  }
  std::uint32_t got = 0;
  while (got < 10) {
    pair.here.flush();
    pair.there.fill();
    while (const auto message = pair.there.next()) {
      Unpacker body(*message);
      REQUIRE(body.get<std::uint8_t>() == static_cast<std::uint8_t>(Tag::requests));
      REQUIRE(body.get<std::uint32_t>() == got++);
      REQUIRE(body.get<std::int64_t>() == -1);
      REQUIRE(body.text(user.size()) == user);
      REQUIRE(body.ok());
      REQUIRE_FALSE(body.more());
      REQUIRE(body.get<std::uint16_t>() == 0);
      REQUIRE_FALSE(body.ok());
    }
  }
  REQUIRE_FALSE(pair.here.waiting());
  REQUIRE_FALSE(pair.there.closed());
}

TEST_CASE("a channel has its limits, and an end", "[lab]") {
  Pair pair = joined();
  REQUIRE_THROWS_AS(pair.here.send(Message(Tag::requests).put(std::string_view(std::string(kMessageMax, 'x')))), Error);
  const Message large = Message(Tag::requests).put(std::string_view(std::string(kMessageMax - 1, 'x')));
  for (std::size_t sent = 0; sent + kMessageMax < kOutboxMax; sent += kMessageMax) pair.here.send(large);
  REQUIRE_THROWS_AS(pair.here.send(large), Error);
  { const Channel gone = std::move(pair.there); }
  pair.here.fill();
  REQUIRE(pair.here.closed());
  REQUIRE_FALSE(pair.here.next());
}

TEST_CASE("a message that is too long is refused", "[lab]") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const unsigned char length[4] = {0xff, 0, 0, 0};
  REQUIRE(write(ends[1], length, sizeof length) == sizeof length);
  Channel channel((Fd(ends[0])), Fd(dup(ends[1])));
  REQUIRE(close(ends[1]) == 0);
  channel.fill();
  REQUIRE_THROWS_AS(channel.next(), Error);
}

TEST_CASE("a node's condition is what it was, or nothing", "[lab]") {
  Condition said;
  said.at = 5;
  said.quiet = true;
  said.bytes[1] = 7;
  said.records = 9;
  said.delays_us = {1, 2};
  const Message message = said.pack();
  const auto body = message.bytes().subspan(1);
  const auto read = Condition::unpack(Unpacker(body));
  REQUIRE(read);
  REQUIRE(read->at == 5);
  REQUIRE(read->quiet);
  REQUIRE(read->bytes[1] == 7);
  REQUIRE(read->records == 9);
  REQUIRE(read->delays_us == said.delays_us);
  for (std::size_t cut = 1; cut < body.size(); ++cut) {
    // Whole delays may be missing.
    if (cut % 4 == 0 && cut <= 8) continue;
    REQUIRE_FALSE(Condition::unpack(Unpacker(body.first(body.size() - cut))));
  }
}

TEST_CASE("requests are judged in the order and at the times at which they were decided", "[lab]") {
  // One token, and a new one after 100 ms. The second request was decided first: for the central limiter too it is the
  // one that passes; and the third, recorded 10 ms after the others, was decided when a token was there again.
  const Workload workload = workload_of({0, 0, 10, 20});
  Seen seen;
  seen.zero = at_ms(0);
  seen.decisions = {{at_ms(2), 0, Outcome::denied},
                    {at_ms(1), 1, Outcome::allowed},
                    {at_ms(150), 0, Outcome::allowed},
                    {at_ms(20), 1, Outcome::unanswered}};
  seen.delays = {1'000'000};
  RealResult result;
  judge(config_of(1, 100), workload, seen, {}, result);
  REQUIRE(result.judged.requests == 4);
  REQUIRE(result.judged.admitted == 2);
  REQUIRE(result.judged.unanswered == 1);
  REQUIRE(result.judged.agreement() == 1.0);
  REQUIRE(result.judged.overshoot.v == 0);
  REQUIRE(result.noise_agreement == 1.0);
  REQUIRE(result.delay_ms->p99 == 1.0);
  REQUIRE(result.late_ms.max == 140.0);
  REQUIRE(result.arrivals_in_delay == 2);
}

TEST_CASE("what was admitted too much is seen", "[lab]") {
  const Workload workload = workload_of({0, 1, 2});
  Seen seen;
  seen.zero = at_ms(0);
  for (std::int64_t ms = 0; ms < 3; ++ms) seen.decisions.push_back({at_ms(ms), 0, Outcome::allowed});
  RealResult result;
  judge(config_of(1, 1000), workload, seen, {}, result);
  REQUIRE(result.judged.overshoot.v == 2);
  REQUIRE(result.judged.false_admissions == 2);
  REQUIRE_FALSE(result.noise_agreement);
  REQUIRE_FALSE(result.delay_ms);
}

TEST_CASE("what was denied too early is seen", "[lab]") {
  const Workload workload = workload_of({0, 1, 2});
  Seen seen;
  seen.zero = at_ms(0);
  seen.decisions = {{at_ms(0), 0, Outcome::denied}, {at_ms(1), 0, Outcome::unanswered}, {at_ms(2), 0, Outcome::denied}};
  RealResult result;
  judge(config_of(2, 1000), workload, seen, {}, result);
  REQUIRE(result.judged.false_denials == 2);
  REQUIRE(result.judged.rejected == 3);
  REQUIRE(result.judged.unanswered == 1);
  REQUIRE(result.judged.undershoot.v == 2);
}

TEST_CASE("a series says what was sent in each second", "[lab]") {
  const Workload workload = workload_of({0, 1500, 2500});
  Seen seen;
  seen.zero = at_ms(0);
  for (const std::int64_t ms : {0, 1500, 2500}) seen.decisions.push_back({at_ms(ms), 0, Outcome::allowed});
  seen.seconds = {{{100, 2}, {10, 1}, 7, 8}, {{150, 3}, {30, 3}, 9, 8}, {{150, 3}, {40, 4}, 9, 8}};
  std::ostringstream series;
  RealResult result;
  judge(config_of(1, 1000), workload, seen, {nullptr, &series}, result);
  std::istringstream lines(series.str());
  std::string line;
  std::getline(lines, line);
  for (const char* const said :
       {"1,1,0,0,1,7.0,8.0,100,2,10,1", "2,1,0,0,1,9.0,8.0,50,1,20,2", "3,1,0,0,1,9.0,8.0,0,0,10,1"}) {
    REQUIRE(std::getline(lines, line));
    CHECK(line == said);
  }
}

TEST_CASE("a spread is of the sorted values", "[lab]") {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 100; i >= 0; --i) values.push_back(i);
  const Spread spread = spread_of(values, 10);
  REQUIRE(spread.p50 == 5.0);
  REQUIRE(spread.p99 == 9.9);
  REQUIRE(spread.max == 10.0);
  values.clear();
  REQUIRE(spread_of(values, 1).max == 0);
}
#endif
