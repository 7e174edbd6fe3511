// Shows R16 of doc/requirements.md.
// Timescale and Discipline against a simulated counter and a simulated system clock: no real clock is read.
#include "weir/timescale.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "catch.hpp"

namespace {

using namespace weir;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSec = 1'000'000'000;
constexpr std::int64_t kLead = 25 * kMs;
constexpr std::int64_t kTick = 250 * kMs;
constexpr std::int64_t kEpoch = 1'800'000'000 * kSec;

// A machine: `elapsed` is true time. Its counter runs at `hertz`, its clocks at 1 + ppm/10^6; `real` is stepped.
struct Machine {
  std::uint64_t hertz = 2'600'000'000;
  std::uint64_t first_counter = 12'345'678'901'234;
  std::int64_t noise = 0;  // of samples, either way; stated as their error
  std::mt19937_64 random{42};

  std::int64_t elapsed = 0;
  std::int64_t steady = 77 * kSec;
  std::int64_t real = kEpoch;
  double ppm = 0;
  double fraction = 0;

  Ticks counter_at(std::int64_t when) const {
    return {first_counter + static_cast<std::uint64_t>(static_cast<Uint128>(when) * hertz / 1'000'000'000)};
  }
  Ticks counter() const { return counter_at(elapsed); }
  void pass(std::int64_t ns) {
    elapsed += ns;
    fraction += static_cast<double>(ns) * ppm / 1e6;
    const double whole = std::floor(fraction);
    steady += ns + static_cast<std::int64_t>(whole);
    real += ns + static_cast<std::int64_t>(whole);
    fraction -= whole;
  }
  Sample sample() {
    std::uniform_int_distribution<std::int64_t> off(-noise, noise);
    return {counter(), {steady + off(random)}, {real + off(random)}, {noise}};
  }
};

// The machine's clock as weir keeps it, and the reader that checks every step of it.
struct Clock {
  Machine machine;
  Timescale scale;
  Discipline discipline;
  Nanos last_read{0};
  std::int64_t last_read_at = 0;
  bool monotone = true;
  bool slewed_within_limit = true;
  bool agreed = true;

  explicit Clock(Machine m) : machine(m) {
    const Sample first = machine.sample();
    machine.pass(4 * kMs);
    discipline.begin(first, machine.sample());
    scale.replace(discipline.fresh());
    last_read = scale.at(machine.counter());
    last_read_at = machine.elapsed;
  }

  std::int64_t offset() const { return (scale.at(machine.counter()) - Nanos{machine.real}).v; }

  // The rate in the units of the machine's counter, as parts per million off the truth.
  double rate_error_ppm() const {
    const double exact = 1e9 / static_cast<double>(machine.hertz) * (1 + machine.ppm / 1e6) * std::exp2(Slope::kShift);
    return (static_cast<double>(discipline.rate().v) / exact - 1) * 1e6;
  }

  void read() {
    const Nanos now = scale.at(machine.counter());
    monotone = monotone && now >= last_read;
    const auto passed = static_cast<double>(machine.elapsed - last_read_at);
    const auto ours = static_cast<double>((now - last_read).v);
    // 1 % of the rate, which itself is off by the machine's ppm and the first estimate's error; rounding twice.
    if (std::abs(ours - passed) > passed * 0.0103 + 2) slewed_within_limit = false;
    last_read = now;
    last_read_at = machine.elapsed;
  }

  // Readers that hold the old line and readers that hold the new one must agree up to the switch.
  void publish(const Line& next) {
    const Ticks now = machine.counter();
    const std::uint64_t span = next.start.v - now.v;
    std::vector<Ticks> probes;
    for (std::uint64_t i = 0; i <= 16; ++i) probes.push_back({now.v + span / 16 * i});
    for (std::uint64_t i = 0; i < 4; ++i) probes.push_back({next.start.v - i});
    std::vector<Nanos> old;
    for (const Ticks probe : probes) old.push_back(scale.at(probe));
    scale.publish(next);
    for (std::size_t i = 0; i < probes.size(); ++i) agreed = agreed && scale.at(probes[i]) == old[i];
    Nanos before = scale.at({next.start.v - 4});
    for (std::uint64_t i = 0; i < 8; ++i) {
      const Nanos here = scale.at({next.start.v - 3 + i});
      monotone = monotone && here >= before;
      before = here;
    }
    before = scale.at({next.start.v + next.length - 4});
    for (std::uint64_t i = 0; i < 8; ++i) {
      const Nanos here = scale.at({next.start.v + next.length - 3 + i});
      monotone = monotone && here >= before;
      before = here;
    }
  }

  Discipline::Verdict tick() {
    const Discipline::Verdict verdict = discipline.feed(machine.sample());
    const Ticks start{machine.counter().v + discipline.rate().ticks(kLead)};
    publish(discipline.plan(scale.newest(), start));
    return verdict;
  }

  void pass(std::int64_t ns) {
    constexpr std::int64_t kStride = 997'331;  // about 1 ms, in step with nothing
    for (std::int64_t left = ns; left > 0; left -= kStride) {
      machine.pass(std::min(left, kStride));
      read();
    }
  }

  void run(std::int64_t ns) {
    for (std::int64_t left = ns; left >= kTick; left -= kTick) {
      pass(kTick);
      tick();
    }
  }

  // The largest offset at a tick or between two, over a run.
  std::int64_t worst_over(std::int64_t ns) {
    std::int64_t worst = 0;
    for (std::int64_t left = ns; left >= kTick; left -= kTick) {
      for (int part = 0; part < 4; ++part) {
        pass(kTick / 4);
        worst = std::max(worst, std::abs(offset()));
      }
      tick();
    }
    return worst;
  }

  void check() const {
    CHECK(monotone);
    CHECK(slewed_within_limit);
    CHECK(agreed);
  }
};

}  // namespace

TEST_CASE("a line is exact to the nanosecond, rounded down, and bends where it says") {
  const Slope half{std::uint64_t{1} << (Slope::kShift - 1)};
  const Slope two{std::uint64_t{2} << Slope::kShift};
  const Line line{{1000}, 7, {500}, half, two};
  CHECK(line.at({1000}) == Nanos{500});
  CHECK(line.at({1001}) == Nanos{500});
  CHECK(line.at({1002}) == Nanos{501});
  CHECK(line.at({1006}) == Nanos{503});
  CHECK(line.at({1007}) == Nanos{503});
  CHECK(line.at({1008}) == Nanos{505});
  CHECK(line.at({1107}) == Nanos{703});
}

TEST_CASE("a line holds for years, at any counter value, and across its wrap") {
  constexpr std::uint64_t kFiveGhzYear = std::uint64_t{5} * 31'536'000 * 1'000'000'000;
  const Slope fifth{(std::uint64_t{1} << Slope::kShift) / 5};
  const auto first = GENERATE(std::uint64_t{0}, std::uint64_t{1} << 63, UINT64_MAX - 12, UINT64_MAX / 3);
  const Line line{{first}, INT64_MAX, {kEpoch}, fifth, fifth};
  for (std::uint64_t years = 1; years <= 50; years += 7) {
    const std::int64_t ideal = static_cast<std::int64_t>(years) * 31'536'000 * kSec;
    const std::int64_t got = (line.at({first + years * kFiveGhzYear}) - Nanos{kEpoch}).v;
    // The slope's resolution, 2 parts in 10^14 of a fifth.
    CHECK(got <= ideal);
    CHECK(ideal - got <= ideal / 50'000'000'000'000 + 1);
  }
}

TEST_CASE("before its start a new line is the old one; a counter that ran back stops the time") {
  const Slope one{std::uint64_t{1} << Slope::kShift};
  const Slope faster{one.v + one.v / 64};
  Timescale scale;
  scale.replace({{10'000}, INT64_MAX, {kEpoch}, one, one});
  CHECK(scale.at({10'000}) == Nanos{kEpoch});
  CHECK(scale.at({9'999}) == Nanos{kEpoch});
  CHECK(scale.at({0}) == Nanos{kEpoch});
  CHECK(scale.at({10'300}) == Nanos{kEpoch + 300});

  const Line second{{11'000}, 1'000, {kEpoch + 1'000}, faster, one};
  scale.publish(second);
  CHECK(scale.newest() == second);
  CHECK(scale.at({10'300}) == Nanos{kEpoch + 300});
  CHECK(scale.at({10'999}) == Nanos{kEpoch + 999});
  CHECK(scale.at({11'000}) == Nanos{kEpoch + 1'000});
  CHECK(scale.at({11'500}) == Nanos{kEpoch + 1'507});
  CHECK(scale.at({13'000}) == Nanos{kEpoch + 3'015});  // 1000 ticks at 65/64, rounded down, then 1000 at 1
  CHECK(scale.at({9'000}) == Nanos{kEpoch});

  for (std::uint64_t i = 0; i < 9; ++i) {  // round the ring
    const Ticks start{13'000 + i * 1'000};
    scale.publish({start, 1'000, scale.at(start), i % 2 == 0 ? faster : one, one});
    CHECK(scale.at({start.v - 1}) <= scale.at(start));
    CHECK(scale.at({start.v - 999}) < scale.at({start.v - 1}));
  }
}

TEST_CASE("a reader that was preempted doesn't extend the line it had begun with") {
  const Slope one{std::uint64_t{1} << Slope::kShift};
  const Slope slower{one.v - one.v / 64};
  Timescale scale;
  scale.replace({{0}, INT64_MAX, {kEpoch}, one, one});
  int reads = 0;
  const Nanos got = scale.now([&] {
    // While this reader stands still, another line comes to hold.
    if (reads++ == 0) scale.publish({{1'000}, 1'000'000, {kEpoch + 1'000}, slower, one});
    return Ticks{101'000};
  });
  CHECK(reads == 2);
  CHECK(got == Nanos{kEpoch + 1'000 + 98'437});
}

TEST_CASE("a frozen clock stands at any counter value; a fresh line continues from real time") {
  Machine machine;
  Clock clock(machine);
  clock.run(2 * kSec);
  const Nanos at{1'234'567'890};
  clock.scale.replace(Line::still(clock.machine.counter(), at));
  CHECK(clock.scale.at(clock.machine.counter()) == at);
  CHECK(clock.scale.at({clock.machine.counter().v - 1'000'000}) == at);
  clock.machine.pass(3'600 * kSec);
  CHECK(clock.scale.at(clock.machine.counter()) == at);

  CHECK(clock.discipline.feed(clock.machine.sample()) == Discipline::Verdict::kSteady);
  clock.scale.replace(clock.discipline.fresh());
  CHECK(clock.offset() == 0);
  // A reader whose counter was read just before sees the start, not the frozen time.
  CHECK(clock.scale.at({clock.machine.counter().v - 100}) == Nanos{clock.machine.real});
  // A floor above real time holds, and the next plans slew it away.
  const Nanos floor{clock.machine.real + kMs};
  clock.scale.replace(clock.discipline.fresh(floor));
  clock.last_read = floor;
  clock.last_read_at = clock.machine.elapsed;
  CHECK(clock.scale.at(clock.machine.counter()) == floor);
  clock.run(2 * kSec);
  CHECK(std::abs(clock.offset()) <= 10);
  clock.check();
}

TEST_CASE("the clock converges on the system's, whatever the counter's rate") {
  const auto hertz = GENERATE(std::uint64_t{1'000'000}, std::uint64_t{24'000'000}, std::uint64_t{62'500'000},
                              std::uint64_t{1'000'000'000}, std::uint64_t{2'600'000'000}, std::uint64_t{5'000'000'000});
  const auto ppm = GENERATE(-200.0, -3.0, 0.0, 200.0);
  Machine machine;
  machine.hertz = hertz;
  machine.ppm = ppm;
  machine.noise = 50 + static_cast<std::int64_t>(kSec / static_cast<std::int64_t>(hertz));
  Clock clock(machine);
  clock.run(kSec);
  CAPTURE(hertz, ppm);
  CHECK(clock.worst_over(30 * kSec) <= 5 * machine.noise);
  CHECK(std::abs(clock.rate_error_ppm()) < 0.002 * static_cast<double>(machine.noise));
  clock.check();
}

TEST_CASE("counters of any uptime, and one that wraps, make no difference") {
  const auto first = GENERATE(std::uint64_t{0}, std::uint64_t{5} * 31'536'000 * 1'000'000'000,
                              (std::uint64_t{1} << 63) - 5'000'000'000, UINT64_MAX - 25'000'000'000);
  Machine machine;
  machine.hertz = 5'000'000'000;
  machine.first_counter = first;
  machine.noise = 20;
  machine.ppm = 12;
  Clock clock(machine);
  clock.run(kSec);
  CHECK(clock.worst_over(20 * kSec) <= 100);
  clock.check();
}

TEST_CASE("a step is slewed at 1 %, backwards never, and doesn't pollute the rate") {
  const auto step = GENERATE(-3'600 * kSec, -kSec, -10 * kMs, 10 * kMs, kSec, 3'600 * kSec);
  Machine machine;
  machine.ppm = 20;
  machine.noise = 30;
  Clock clock(machine);
  clock.run(5 * kSec);
  clock.pass(100 * kMs);
  clock.machine.real += step;
  clock.pass(150 * kMs);
  CHECK(clock.tick() == Discipline::Verdict::kStep);
  CAPTURE(step);
  CHECK(std::abs(clock.rate_error_ppm()) < 0.1);
  const std::int64_t needed = std::min(std::abs(step) * 100, 60 * kSec);
  clock.run(needed + kSec);
  CHECK(std::abs(clock.rate_error_ppm()) < 0.1);
  if (std::abs(step) * 100 <= needed) {
    CHECK(clock.worst_over(2 * kSec) <= 150);
  } else {
    // Still on its way: 1 % of 61 s, less what passed before the switch.
    const std::int64_t corrected = std::abs(step) - std::abs(clock.offset());
    CHECK(corrected > 600 * kMs);
    CHECK(corrected < 612 * kMs);
  }
  clock.check();
}

TEST_CASE("a step of 1 s is gone after 100 s") {
  const auto step = GENERATE(-kSec, kSec);
  Machine machine;
  machine.noise = 30;
  Clock clock(machine);
  clock.run(2 * kSec);
  clock.machine.real += step;
  clock.run(102 * kSec);
  CHECK(clock.worst_over(2 * kSec) <= 150);
  clock.check();
}

TEST_CASE("a clock set from 1970 is slewed like any other, without overflow") {
  Machine machine;
  machine.real = 0;
  Clock clock(machine);
  clock.run(kSec);
  clock.machine.real += kEpoch;
  clock.run(20 * kSec);
  const std::int64_t gained = clock.last_read.v - clock.last_read_at;
  CHECK(gained > 190 * kMs);
  CHECK(gained < 205 * kMs);
  clock.check();
}

TEST_CASE("steps again and again") {
  Machine machine;
  machine.noise = 40;
  Clock clock(machine);
  std::mt19937_64 random(7);
  std::uniform_int_distribution<std::int64_t> step(-50 * kMs, 50 * kMs);
  for (int i = 0; i < 60; ++i) {
    clock.machine.real += step(random);
    clock.run(kSec);
  }
  CHECK(std::abs(clock.rate_error_ppm()) < 1);
  clock.run(30 * kSec);
  CHECK(clock.worst_over(2 * kSec) <= 200);
  clock.check();
}

TEST_CASE("a changed rate of the system's clock is believed at the second sample") {
  const auto change = GENERATE(-80'000.0, -500.0, -40.0, 40.0, 500.0, 80'000.0);
  Machine machine;
  machine.noise = 30;
  Clock clock(machine);
  clock.run(10 * kSec);
  clock.machine.ppm += change;
  clock.pass(kTick);
  CHECK(clock.tick() == Discipline::Verdict::kSuspect);
  clock.pass(kTick);
  CHECK(clock.tick() == Discipline::Verdict::kRate);
  CHECK(std::abs(clock.rate_error_ppm()) < 1);
  // What was missed meanwhile, 20 ms at 8 %, is made up for at 1 %.
  clock.run(kSec + std::llround(std::abs(change) * 100'000));
  CHECK(clock.worst_over(5 * kSec) <= 200);
  CHECK(clock.monotone);
  CHECK(clock.agreed);
}

TEST_CASE("a slow drift of the rate is followed within microseconds") {
  Machine machine;
  machine.noise = 30;
  Clock clock(machine);
  clock.run(5 * kSec);
  std::int64_t worst = 0;
  for (int i = 0; i < 60; ++i) {
    clock.machine.ppm += 0.5;
    worst = std::max(worst, clock.worst_over(kSec));
  }
  CHECK(worst <= 2'000);
  clock.check();
}

TEST_CASE("without ticks for a minute the clock is good to its rate") {
  Machine machine;
  machine.noise = 50;
  machine.ppm = -37;
  Clock clock(machine);
  clock.run(5 * kSec);
  clock.pass(60 * kSec);
  CHECK(std::abs(clock.offset()) <= 3'000);
  CHECK(clock.tick() == Discipline::Verdict::kSteady);
  clock.run(kSec);
  CHECK(clock.worst_over(5 * kSec) <= 300);
  clock.check();
}

TEST_CASE("a correction ends by itself when the ticks stop during it") {
  Machine machine;
  machine.noise = 50;
  Clock clock(machine);
  clock.run(5 * kSec);
  clock.machine.real += 10 * kMs;  // takes 1 s
  clock.pass(kTick);
  clock.tick();
  CHECK(clock.offset() < -7 * kMs);
  clock.pass(60 * kSec);
  CHECK(std::abs(clock.offset()) <= 3'000);
  clock.check();
}

TEST_CASE("one wild sample doesn't touch the rate, nor the next one, which has no long baseline yet") {
  const auto wild = GENERATE(-300'000, 300'000);
  Machine machine;
  machine.noise = 50;
  Clock clock(machine);
  clock.run(10 * kSec);
  const Slope rate = clock.discipline.rate();
  clock.pass(kTick);
  clock.machine.steady += wild;
  CHECK(clock.tick() == Discipline::Verdict::kSuspect);
  clock.machine.steady -= wild;
  CHECK(clock.discipline.rate() == rate);
  clock.pass(kTick);
  CHECK(clock.tick() == Discipline::Verdict::kSuspect);  // off the other way: the wild one is its neighbour
  clock.pass(kTick);
  CHECK(clock.tick() == Discipline::Verdict::kSteady);
  CHECK(clock.discipline.rate() == rate);
  CHECK(clock.worst_over(3 * kSec) <= 300);
  CHECK(clock.discipline.rate() != rate);
  CHECK(std::abs(clock.rate_error_ppm()) < 0.1);
  clock.check();
}

TEST_CASE("samples with wide errors don't count as steps") {
  Machine machine;
  machine.noise = 20'000;
  Clock clock(machine);
  int steps = 0;
  for (int i = 0; i < 400; ++i) {
    clock.pass(kTick);
    if (clock.tick() != Discipline::Verdict::kSteady) ++steps;
  }
  CHECK(steps == 0);
  CHECK(clock.worst_over(5 * kSec) <= 3 * machine.noise);
  CHECK(clock.monotone);
  CHECK(clock.agreed);
}

TEST_CASE("a counter that restarts is noticed at the next sample") {
  Machine machine;
  Clock clock(machine);
  clock.run(2 * kSec);
  clock.machine.first_counter = 1'000;
  clock.machine.hertz = 2'600'000'000;
  clock.machine.elapsed = 0;
  CHECK(clock.discipline.feed(clock.machine.sample()) == Discipline::Verdict::kCounterLost);
  clock.scale.replace(clock.discipline.fresh());
  CHECK(clock.offset() == 0);
  clock.last_read = Nanos{clock.machine.real};
  clock.last_read_at = 0;
  clock.run(2 * kSec);
  CHECK(std::abs(clock.offset()) <= 10);
  clock.check();
}

TEST_CASE("readers on other threads never see time run backwards while lines change") {
  // The writer also drives the counter, so that each line is published ahead of its start however the threads are run.
  constexpr int kReaders = 3;
  constexpr std::uint64_t kReads = 20'000;
  const Slope one{std::uint64_t{1} << Slope::kShift};
  const Slope slopes[] = {{one.v - one.v / 100}, {one.v + one.v / 100}, {0}, one, {one.v * 3}};
  Timescale scale;
  scale.replace({{0}, INT64_MAX, {kEpoch}, one, one});
  std::atomic<std::uint64_t> counter{0};
  std::atomic<std::int64_t> token{kEpoch};
  std::atomic<int> reading{kReaders};
  std::atomic<std::uint64_t> backwards{0};

  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([&] {
      for (std::uint64_t n = 0; n < kReads; ++n) {
        const std::int64_t seen = token.load(std::memory_order_acquire);
        const Nanos now = scale.now([&] { return Ticks{counter.load(std::memory_order_acquire)}; });
        if (now.v < seen) backwards.fetch_add(1, std::memory_order_relaxed);
        token.store(now.v, std::memory_order_release);
      }
      reading.fetch_sub(1, std::memory_order_release);
    });
  }
  for (std::uint64_t n = 0; reading.load(std::memory_order_acquire) > 0; ++n) {
    const std::uint64_t now = counter.load(std::memory_order_relaxed);
    const Ticks start{now + 50};
    scale.publish({start, 60, scale.newest().at(start), slopes[n % 5], slopes[(n + 2) % 5]});
    for (std::uint64_t c = now; c <= start.v + 70; c += 10) counter.store(c, std::memory_order_release);
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(backwards.load() == 0);
}
