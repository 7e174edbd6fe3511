// table_bench: what the key table costs, without Erlang around it: memory a key, time a decision, and how long the
// slowest decisions take while the table grows and expires.
//
//   table_bench [memory|speed|latency]...        all of them without an argument; each takes less than two minutes
//
// `local` is Table<TatCell>, `interval` is Table<IntervalCell>. Times of the clock and of hashing a key are not part of
// it; `now` is a number that the benchmark advances. Linux only: resident memory is read from /proc/self/statm, each
// measurement of memory in a process of its own.
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "weir/interval.hpp"
#include "weir/table.hpp"

namespace weir {
namespace {

constexpr Nanos kBase{1'770'000'000'000'000'000};
constexpr Nanos kSecond{1'000'000'000};
constexpr std::int64_t kMaxKeys = 8'000'000;

using Clock = std::chrono::steady_clock;

std::int64_t elapsed(Clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since).count();
}

// splitmix64: different numbers, different hashes.
KeyHash key_of(std::uint64_t i) {
  std::uint64_t z = i * 0x9e3779b97f4a7c15 + 1;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return {(z ^ z >> 31) | 1};
}

// A table alone in an arena, under one policy.
template <class Cell>
struct Bench {
  Arena arena;
  Table<Cell> table{arena};
  std::uint64_t generation = table.open(kMaxKeys, 0);
  Terms terms;

  explicit Bench(Policy policy) : terms{policy, 0, policy, {}} {}

  Decision decide(KeyHash key, Nanos now) {
    Decision decision;
    if (table.decide(generation, terms, key, {1}, now, decision) != Status::ok) std::abort();
    return decision;
  }
  bool sweep(Nanos now, std::size_t& cursor, unsigned segments) {
    return table.sweep(generation, terms, now, cursor, segments);
  }
};

// ---- memory ----

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

struct Cost {
  double resident = 0;   // bytes a key, by the growth of the process
  double accounted = 0;  // bytes a key, by the table's own count
  double intervals = 0;  // a key
};

// What a measurement in a child process writes and its parent reads.
struct Results {
  std::array<Cost, 32> cost;
};

// Runs `measure` in a process of its own, so that its memory is its own too.
Results apart(const std::function<void(Results&)>& measure) {
  void* const shared = ::mmap(nullptr, sizeof(Results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) std::abort();
  auto* const results = new (shared) Results;
  std::fflush(stdout);
  const ::pid_t child = ::fork();
  if (child < 0) std::abort();
  if (child == 0) {
    measure(*results);
    ::_exit(0);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) {
    fmt::print(stderr, "table_bench: a measurement failed\n");
    std::exit(1);
  }
  const Results copy = *results;
  ::munmap(shared, sizeof(Results));
  return copy;
}

template <class Cell>
Cost cost_of(const Bench<Cell>& bench, std::int64_t resident_before) {
  const auto keys = static_cast<double>(bench.table.stats().keys);
  return {static_cast<double>(resident_bytes() - resident_before) / keys,
          static_cast<double>(bench.table.stats().memory_bytes) / keys, 0};
}

// 1M keys, 10 % more, ..., 4M keys.
std::vector<std::uint64_t> sizes() {
  std::vector<std::uint64_t> all;
  for (double size = 1e6; size < 4e6; size *= 1.1) all.push_back(static_cast<std::uint64_t>(size));
  all.push_back(4'000'000);
  return all;
}

// Grows from empty, each key asked `asks` times at once; the last result is after a sweep.
template <class Cell>
Results grow(int asks) {
  return apart([asks](Results& results) {
    const std::int64_t before = resident_bytes();
    Bench<Cell> bench({{5}, {3600 * kSecond.v}});
    std::uint64_t key = 0;
    std::size_t row = 0;
    for (const std::uint64_t size : sizes()) {
      for (; key < size; ++key)
        for (int ask = 0; ask < asks; ++ask) bench.decide(key_of(key), kBase);
      results.cost[row++] = cost_of(bench, before);
    }
    std::size_t cursor = 0;
    while (!bench.sweep(kBase, cursor, 64)) {
    }
    results.cost[row] = cost_of(bench, before);
  });
}

// Keys at half the rate for one retention: a birth each 2T, for 2cT.
Cost half_rate(std::int64_t capacity, std::uint64_t keys) {
  return apart([=](Results& results) {
           const std::int64_t before = resident_bytes();
           const Policy policy{{capacity}, kSecond};
           Bench<IntervalCell> bench(policy);
           const Nanos step{2 * kSecond.v / static_cast<std::int64_t>(keys)};
           Nanos now = kBase;
           for (std::int64_t birth = 0; birth <= capacity; ++birth)
             for (std::uint64_t key = 0; key < keys; ++key, now = now + step) bench.decide(key_of(key), now);
           results.cost[0] = cost_of(bench, before);
           std::size_t intervals = 0;
           bench.table.for_each(bench.terms, now, [&](KeyHash, const IntervalSet& set) { intervals += set.size(); });
           results.cost[0].intervals = static_cast<double>(intervals) / static_cast<double>(keys);
         })
      .cost[0];
}

void memory() {
  fmt::print("\nBytes a key, grown from empty (RSS: of the process; own: as the table counts)\n\n");
  const std::array<Results, 3> grown{grow<TatCell>(1), grow<IntervalCell>(1), grow<IntervalCell>(8)};
  fmt::print("{:>10} | {:^15} | {:^15} | {:^15}\n", "", "local", "interval, once", "interval, busy");
  fmt::print("{:>10} | {:>7} {:>7} | {:>7} {:>7} | {:>7} {:>7}\n", "keys", "RSS", "own", "RSS", "own", "RSS", "own");
  const auto print = [](const std::string& name, const Cost& a, const Cost& b, const Cost& c) {
    fmt::print("{:>10} | {:7.1f} {:7.1f} | {:7.1f} {:7.1f} | {:7.1f} {:7.1f}\n", name, a.resident, a.accounted,
               b.resident, b.accounted, c.resident, c.accounted);
  };
  std::array<Cost, 3> mean, worst;
  const auto rows = sizes();
  for (std::size_t row = 0; row <= rows.size(); ++row) {
    std::array<Cost, 3> cost;
    for (std::size_t i = 0; i < 3; ++i) {
      cost[i] = grown[i].cost[row];
      if (row == rows.size()) continue;
      mean[i].resident += cost[i].resident / static_cast<double>(rows.size());
      mean[i].accounted += cost[i].accounted / static_cast<double>(rows.size());
      worst[i].resident = std::max(worst[i].resident, cost[i].resident);
      worst[i].accounted = std::max(worst[i].accounted, cost[i].accounted);
    }
    print(row < rows.size() ? fmt::format("{}", rows[row]) : "swept", cost[0], cost[1], cost[2]);
  }
  print("mean", mean[0], mean[1], mean[2]);
  print("worst", worst[0], worst[1], worst[2]);

  fmt::print("\nBytes a key, interval, at half the rate for a whole retention\n\n");
  fmt::print("{:>10} | {:>10} {:>13} {:>7} {:>7}\n", "capacity", "keys", "intervals/key", "RSS", "own");
  for (const auto& [capacity, keys] : {std::pair{10, 200'000}, {100, 100'000}, {1000, 30'000}}) {
    const Cost cost = half_rate(capacity, static_cast<std::uint64_t>(keys));
    fmt::print("{:>10} | {:>10} {:>13.1f} {:>7.1f} {:>7.1f}\n", capacity, keys, cost.intervals, cost.resident,
               cost.accounted);
  }
}

// ---- speed ----

constexpr std::size_t kAsked = 1 << 20;

// Which keys are asked, one after the other: uniform over `keys`.
std::vector<KeyHash> uniform(std::uint64_t keys) {
  std::mt19937_64 rng(1);
  std::vector<KeyHash> asked(kAsked);
  for (KeyHash& key : asked) key = key_of(rng() % keys);
  return asked;
}

// The nanoseconds of one decision, over all of `asked`; with `ahead`, the line of a key is fetched so many keys before.
template <class Cell>
double time_decisions(Bench<Cell>& bench, const std::vector<KeyHash>& asked, bool admitted, std::size_t ahead,
                      Nanos& now, Nanos step) {
  std::size_t unexpected = 0;
  const auto start = Clock::now();
  for (std::size_t i = 0; i < asked.size(); ++i, now = now + step) {
    if (ahead != 0) bench.table.prefetch(asked[(i + ahead) % kAsked]);
    unexpected += bench.decide(asked[i], now).allowed != admitted;
  }
  const double ns = static_cast<double>(elapsed(start)) / static_cast<double>(asked.size());
  if (unexpected != 0) std::abort();
  return ns;
}

constexpr std::array<std::uint64_t, 3> kKeyCounts{1, 1000, 1'000'000};
constexpr std::size_t kColumns = kKeyCounts.size() + 1;  // the last again, with prefetching
constexpr int kRounds = 7;

// A row of the table: a cell asked about 1, 1000 and a million keys.
class Row {
 public:
  explicit Row(std::string name) : name_(std::move(name)) {}
  virtual ~Row() = default;
  virtual void measure() = 0;
  void print() {
    fmt::print("{:<34}", name_);
    for (auto& runs : ns_) {
      std::sort(runs.begin(), runs.end());
      runs.empty() ? fmt::print(" {:>14}", "-") : fmt::print(" {:>14.1f}", runs[runs.size() / 2]);
    }
    fmt::print("\n");
  }

 protected:
  std::array<std::vector<double>, kColumns> ns_;

 private:
  std::string name_;
};

template <class Cell>
class Decisions : public Row {
 public:
  Decisions(const std::string& name, bool admitted)
      : Row(fmt::format("{}, {}", name, admitted ? "admitted" : "denied")), admitted_(admitted) {
    for (std::size_t i = 0; i < kKeyCounts.size(); ++i)
      for (std::uint64_t key = 0; key < kKeyCounts[i]; ++key) bench_[i].decide(key_of(key), kBase);
  }
  void measure() override {
    for (std::size_t i = 0; i < kColumns; ++i) {
      const std::size_t of = std::min(i, kKeyCounts.size() - 1);
      Nanos now = kBase;
      ns_[i].push_back(time_decisions(bench_[of], uniform(kKeyCounts[of]), admitted_, i == of ? 0 : 16, now, {0}));
    }
  }

 private:
  // Never full, or full after the first.
  static Policy policy(bool admitted) {
    return admitted ? Policy{{std::int64_t{1} << 40}, {1000}} : Policy{{1}, {3600 * kSecond.v}};
  }
  const bool admitted_;
  std::array<Bench<Cell>, 3> bench_{Bench<Cell>(policy(admitted_)), Bench<Cell>(policy(admitted_)),
                                    Bench<Cell>(policy(admitted_))};
};

// Sets at their cap of 32 intervals, one more with each birth.
class ManyIntervals : public Row {
 public:
  ManyIntervals() : Row("interval, admitted at half the rate") {}
  void measure() override {
    for (std::size_t i = 0; i < bench_.size(); ++i) {
      std::vector<KeyHash> asked(kAsked / 4);
      for (std::size_t n = 0; n < asked.size(); ++n) asked[n] = key_of(n % kKeyCounts[i]);
      const Nanos step{2 * kSecond.v / static_cast<std::int64_t>(kKeyCounts[i])};
      ns_[i].push_back(time_decisions(bench_[i], asked, true, 0, now_[i], step));
    }
  }

 private:
  std::array<Bench<IntervalCell>, 2> bench_{Bench<IntervalCell>({{1000}, kSecond}),
                                            Bench<IntervalCell>({{1000}, kSecond})};
  std::array<Nanos, 2> now_{kBase, kBase};
};

void speed() {
  fmt::print("\nNanoseconds a decision, one thread, median of {} interleaved runs of {} decisions\n\n", kRounds,
             kAsked);
  std::vector<std::unique_ptr<Row>> rows;
  rows.push_back(std::make_unique<Decisions<TatCell>>("local", true));
  rows.push_back(std::make_unique<Decisions<TatCell>>("local", false));
  rows.push_back(std::make_unique<Decisions<IntervalCell>>("interval", true));
  rows.push_back(std::make_unique<Decisions<IntervalCell>>("interval", false));
  rows.push_back(std::make_unique<ManyIntervals>());
  for (int round = 0; round < kRounds; ++round)
    for (const auto& row : rows) row->measure();
  fmt::print("{:<34} {:>14} {:>14} {:>14} {:>14}\n", "", "one key", "1k keys", "1M keys", "1M, prefetched");
  for (const auto& row : rows) row->print();
}

// ---- latency ----

// Counts in buckets that are 1/64 wide of the value.
class Histogram {
 public:
  void add(std::int64_t ns) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(0, ns));
    ++counts_[bucket(value)];
    ++total_;
    max_ = std::max(max_, value);
  }
  std::int64_t total() const { return total_; }
  std::uint64_t max() const { return max_; }
  std::uint64_t at(double share) const {
    auto left = static_cast<std::int64_t>(share * static_cast<double>(total_));
    std::size_t i = 0;
    while (left >= counts_[i]) left -= counts_[i++];
    return lowest(i);
  }

 private:
  static constexpr unsigned kFine = 6;
  static std::size_t bucket(std::uint64_t value) {
    if (value < 1 << kFine) return value;
    const auto shift = static_cast<unsigned>(std::bit_width(value)) - kFine - 1;
    return (static_cast<std::size_t>(shift) << kFine) + (value >> shift);
  }
  static std::uint64_t lowest(std::size_t i) {
    if (i < 2 << kFine) return i;
    const std::size_t shift = (i >> kFine) - 1;
    return (i - (shift << kFine)) << shift;
  }
  std::array<std::int64_t, 64 << kFine> counts_{};
  std::int64_t total_ = 0;
  std::uint64_t max_ = 0;
};

constexpr std::uint64_t kGrown = 5'000'000;
constexpr std::uint64_t kExpiring = 1'000'000;

std::int64_t read_clock(::clockid_t clock) {
  ::timespec time{};
  ::clock_gettime(clock, &time);
  return time.tv_sec * kSecond.v + time.tv_nsec;
}

// Times single pieces of work on one clock: the wall's, or that of the thread's own time on the processor, which stands
// still while the thread waits for its turn.
struct Timer {
  ::clockid_t clock;
  Histogram histogram;

  template <class Work>
  void operator()(Work work) {
    const std::int64_t start = read_clock(clock);
    work();
    histogram.add(read_clock(clock) - start);
  }
};

template <class Cell>
void growing(Timer& timer) {
  Bench<Cell> bench({{5}, {3600 * kSecond.v}});
  for (std::uint64_t key = 0; key < kGrown; ++key) timer([&] { bench.decide(key_of(key), kBase); });
  if (bench.table.stats().keys != static_cast<std::int64_t>(kGrown)) std::abort();
}

// Every key is dead at once. One thread sweeps as weir's sweeper does, 4 segments a millisecond, until it has come
// round; this one decides meanwhile, half of it on keys that return and half on new ones.
template <class Cell, int kBirths>
void expiring(Timer& timer) {
  const Policy policy{{5}, kSecond};
  Bench<Cell> bench(policy);
  Nanos now = kBase;
  for (int birth = 0; birth < kBirths; ++birth, now = now + kSecond + kSecond)
    for (std::uint64_t key = 0; key < kExpiring; ++key) bench.decide(key_of(key), now);
  now = now + Tokens{4} * policy.span();
  std::atomic<bool> swept{false};
  std::thread sweeper([&] {
    std::size_t cursor = 0;
    while (!bench.sweep(now, cursor, 4)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    swept = true;
  });
  std::mt19937_64 rng(2);
  while (!swept) {
    const KeyHash key = key_of(rng() % (2 * kExpiring));
    timer([&] { bench.decide(key, now); });
  }
  sweeper.join();
}

template <class Cell>
void quiet(Timer& timer) {
  Bench<Cell> bench({{std::int64_t{1} << 40}, {1000}});
  for (std::uint64_t key = 0; key < kExpiring; ++key) bench.decide(key_of(key), kBase);
  std::mt19937_64 rng(3);
  for (std::uint64_t i = 0; i < kGrown; ++i) {
    const KeyHash key = key_of(rng() % kExpiring);
    timer([&] { bench.decide(key, kBase); });
  }
}

// What the machine itself does to a thread.
void nothing(Timer& timer) {
  for (std::uint64_t i = 0; i < kGrown; ++i) timer([] {});
}

void latency() {
  fmt::print(
      "\nNanoseconds of single decisions, the timer's own (see `nothing`) included. The last column is from a\n");
  fmt::print("second run on the thread's processor clock: without the times when the thread had to wait its turn.\n\n");
  fmt::print("{:<38} {:>9} {:>8} {:>8} {:>8} {:>10} {:>10}\n", "", "decisions", "p50", "p99", "p99.9", "max",
             "max CPU");
  const std::array<std::pair<const char*, void (*)(Timer&)>, 8> scenes{
      {{"nothing", nothing},
       {"local, 1M keys, quiet", quiet<TatCell>},
       {"interval, 1M keys, quiet", quiet<IntervalCell>},
       {"local, growing from 0 to 5M keys", growing<TatCell>},
       {"interval, growing from 0 to 5M keys", growing<IntervalCell>},
       {"local, a million expire", expiring<TatCell, 1>},
       {"interval of 1, a million expire", expiring<IntervalCell, 1>},
       {"interval of 4, a million expire", expiring<IntervalCell, 4>}}};
  for (const auto& [name, scene] : scenes) {
    Timer wall{CLOCK_MONOTONIC, {}}, cpu{CLOCK_THREAD_CPUTIME_ID, {}};
    scene(wall);
    scene(cpu);
    const Histogram& h = wall.histogram;
    fmt::print("{:<38} {:>9} {:>8} {:>8} {:>8} {:>10} {:>10}\n", name, h.total(), h.at(0.5), h.at(0.99), h.at(0.999),
               h.max(), cpu.histogram.max());
    std::fflush(stdout);
  }
}

// ---- which machine, which part ----

void print_machine(int argc, char** argv) {
  std::string line, model = "unknown processor";
  std::ifstream cpus("/proc/cpuinfo");
  while (std::getline(cpus, line))
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  ::utsname system{};
  ::uname(&system);
  fmt::print("machine   {}, {} cores, {} {} {}\n", model, std::thread::hardware_concurrency(), system.sysname,
             system.release, system.machine);
#if defined(__clang__)
  fmt::print("compiler  {}", __VERSION__);
#else
  fmt::print("compiler  g++ {}", __VERSION__);
#endif
#if defined(NDEBUG)
  fmt::print("\n");
#else
  fmt::print(", with assertions: not for comparison\n");
#endif
  fmt::print("command   table_bench");
  for (int i = 1; i < argc; ++i) fmt::print(" {}", argv[i]);
  fmt::print("\n");
}

int run(int argc, char** argv) {
  const std::array<std::pair<std::string_view, void (*)()>, 3> parts{
      {{"memory", memory}, {"speed", speed}, {"latency", latency}}};
  for (int i = 1; i < argc; ++i)
    if (std::none_of(parts.begin(), parts.end(), [&](const auto& part) { return part.first == argv[i]; })) {
      fmt::print(stderr, "usage: table_bench [memory|speed|latency]...\n");
      return 2;
    }
  print_machine(argc, argv);
  for (const auto& [name, part] : parts)
    if (argc == 1 || std::find(argv + 1, argv + argc, name) != argv + argc) part();
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::run(argc, argv); }
