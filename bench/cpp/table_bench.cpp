// table_bench: what the key table costs, without Erlang around it: memory a key, time a decision, and how long the
// slowest decisions take while the table grows and expires.
//
//   table_bench [memory|speed|orders|latency]...  all of them without an argument; each takes less than two minutes
//
// Times of the clock and of hashing a key are not part of it; `now` is a number that the benchmark advances. `registry`
// is what a protocol in C++ calls: a batch of questions with their keys' hashes at hand, counted and all. Linux only:
// resident memory is read from /proc/self/statm, each measurement of memory in a process of its own.
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

#include "weir/registry.hpp"
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
struct Bench {
  Arena arena;
  Table table{arena};
  std::uint64_t generation = table.open(kMaxKeys, 0);
  Terms terms;

  explicit Bench(Policy policy) : terms{policy, 0, policy, {}} {}

  Decision decide(KeyHash key, Nanos now) {
    Decision decision;
    if (table.decide(generation, terms, key, {1}, now, decision) != Status::ok) std::abort();
    return decision;
  }
  bool sweep(Nanos now, Table::Cursor& cursor, unsigned segments) {
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

Cost cost_of(const Bench& bench, std::int64_t resident_before) {
  const auto keys = static_cast<double>(bench.table.stats().keys);
  return {static_cast<double>(resident_bytes() - resident_before) / keys,
          static_cast<double>(bench.table.stats().memory_bytes) / keys};
}

// 1M keys, 10 % more, ..., 4M keys.
std::vector<std::uint64_t> sizes() {
  std::vector<std::uint64_t> all;
  for (double size = 1e6; size < 4e6; size *= 1.1) all.push_back(static_cast<std::uint64_t>(size));
  all.push_back(4'000'000);
  return all;
}

// Grows from empty; the last result is after a sweep.
Results grow() {
  return apart([](Results& results) {
    const std::int64_t before = resident_bytes();
    Bench bench({{5}, {3600 * kSecond.v}});
    std::uint64_t key = 0;
    std::size_t row = 0;
    for (const std::uint64_t size : sizes()) {
      for (; key < size; ++key) bench.decide(key_of(key), kBase);
      results.cost[row++] = cost_of(bench, before);
    }
    Table::Cursor cursor = 0;
    while (!bench.sweep(kBase, cursor, 64)) {
    }
    results.cost[row] = cost_of(bench, before);
  });
}

void memory() {
  fmt::print("\nBytes per key, grown from empty (RSS: of the process; own: as the table counts)\n\n");
  const Results grown = grow();
  fmt::print("{:>10} | {:>7} {:>7}\n", "keys", "RSS", "own");
  const auto print = [](const std::string& name, const Cost& cost) {
    fmt::print("{:>10} | {:7.1f} {:7.1f}\n", name, cost.resident, cost.accounted);
  };
  Cost mean, worst;
  const auto rows = sizes();
  for (std::size_t row = 0; row <= rows.size(); ++row) {
    const Cost cost = grown.cost[row];
    print(row < rows.size() ? fmt::format("{}", rows[row]) : "swept", cost);
    if (row == rows.size()) continue;
    mean.resident += cost.resident / static_cast<double>(rows.size());
    mean.accounted += cost.accounted / static_cast<double>(rows.size());
    worst.resident = std::max(worst.resident, cost.resident);
    worst.accounted = std::max(worst.accounted, cost.accounted);
  }
  print("mean", mean);
  print("worst", worst);
}

// ---- keys in the order of their hashes ----

// What copies and handovers bring: nanoseconds per key, and what is evicted in a table that has room for all.
void orders() {
  constexpr std::uint64_t kCount = 1'000'000;
  const std::array<std::pair<const char*, std::uint64_t (*)(std::uint64_t)>, 6> by{
      {{"random", [](std::uint64_t) { return std::uint64_t{0}; }},
       {"ascending", [](std::uint64_t hash) { return hash; }},
       {"descending", [](std::uint64_t hash) { return ~hash; }},
       {"by the 64 segments of a replica", [](std::uint64_t hash) { return hash >> 58; }},
       {"as a replica's sweep tells them", [](std::uint64_t hash) { return hash >> 58 << 32 | (~hash & 0xffffffff); }},
       {"as another table's walk tells them",
        [](std::uint64_t hash) { return hash >> 54 << 32 | (hash & 0xffffffff); }}}};
  fmt::print("\nA million keys into an empty table with room for 2 % more, median of 5 interleaved runs\n\n");
  fmt::print("{:<36} {:>8} {:>8} {:>8}\n", "order", "ns/key", "evicted", "bytes");
  std::array<std::vector<KeyHash>, 6> keys;
  for (std::size_t i = 0; i < by.size(); ++i) {
    for (std::uint64_t key = 0; key < kCount; ++key) keys[i].push_back(key_of(key));
    std::stable_sort(keys[i].begin(), keys[i].end(),
                     [&](KeyHash a, KeyHash b) { return by[i].second(a.v) < by[i].second(b.v); });
  }
  std::array<std::vector<double>, 6> ns;
  std::array<TableStats, 6> stats{};
  for (int round = 0; round < 5; ++round)
    for (std::size_t i = 0; i < by.size(); ++i) {
      Arena arena;
      Table table(arena);
      const auto generation = table.open(static_cast<std::int64_t>(kCount) / 50 * 51, 0);
      const Terms terms{{{5}, {3600 * kSecond.v}}, 0, {}, {}};
      const auto start = Clock::now();
      for (const KeyHash key : keys[i]) table.set_level(generation, terms, key, kBase + kSecond, false, kBase);
      ns[i].push_back(static_cast<double>(elapsed(start)) / static_cast<double>(kCount));
      stats[i] = table.stats();
    }
  for (std::size_t i = 0; i < by.size(); ++i) {
    std::sort(ns[i].begin(), ns[i].end());
    fmt::print("{:<36} {:>8.0f} {:>8} {:>8.1f}\n", by[i].first, ns[i][2], stats[i].evicted_keys,
               static_cast<double>(stats[i].memory_bytes) / static_cast<double>(stats[i].keys));
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
double time_decisions(Bench& bench, const std::vector<KeyHash>& asked, bool admitted, std::size_t ahead, Nanos& now,
                      Nanos step) {
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
  std::array<Bench, 3> bench_{Bench(policy(admitted_)), Bench(policy(admitted_)), Bench(policy(admitted_))};
};

// Batches of 100 questions to one limiter, as a protocol in C++ puts them: found by name, decided, counted, and what
// remains computed.
class Batches : public Row {
 public:
  Batches() : Row("registry, batches of 100, admitted") {
    LimiterOptions options;
    options.max_keys = kMaxKeys;
    for (std::size_t i = 0; i < kKeyCounts.size(); ++i) {
      registry_.put(fmt::format("limiter {}", i), {i + 1}, {{std::int64_t{1} << 40}, {1000}}, options, kBase);
      const Registry::Ref ref = registry_.find({i + 1});
      for (std::uint64_t key = 0; key < kKeyCounts[i]; ++key) Registry::decide(ref, key_of(key), {1}, kBase, 0);
    }
  }
  void measure() override {
    for (std::size_t i = 0; i < kColumns; ++i) {
      const std::size_t of = std::min(i, kKeyCounts.size() - 1);
      const std::vector<KeyHash> asked = uniform(kKeyCounts[of]);
      std::int64_t remaining = 0;
      const auto start = Clock::now();
      for (std::size_t at = 0; at + 100 <= kAsked; at += 100) {
        const Registry::Ref ref = registry_.find({of + 1});
        if (i != of)
          for (std::size_t n = 0; n < 100; ++n) ref.limiter->table().prefetch(asked[at + n]);
        Asker asker(ref, 0);
        for (std::size_t n = 0; n < 100; ++n) {
          const Answered answered = asker.ask(asked[at + n], {1}, kBase);
          if (!answered.allowed) std::abort();
          remaining += answered.remaining(kBase).v;
        }
      }
      ns_[i].push_back(static_cast<double>(elapsed(start)) / static_cast<double>(kAsked / 100 * 100));
      if (remaining == 0) std::abort();
    }
  }

 private:
  Registry registry_{2};
};

void speed() {
  fmt::print("\nNanoseconds a decision, one thread, median of {} interleaved runs of {} decisions\n\n", kRounds,
             kAsked);
  std::vector<std::unique_ptr<Row>> rows;
  rows.push_back(std::make_unique<Decisions>("table", true));
  rows.push_back(std::make_unique<Decisions>("table", false));
  rows.push_back(std::make_unique<Batches>());
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

void growing(Timer& timer) {
  Bench bench({{5}, {3600 * kSecond.v}});
  for (std::uint64_t key = 0; key < kGrown; ++key) timer([&] { bench.decide(key_of(key), kBase); });
  if (bench.table.stats().keys != static_cast<std::int64_t>(kGrown)) std::abort();
}

// Every key is dead at once. One thread sweeps as weir's sweeper does, 4 segments a millisecond, until it has come
// round; this one decides meanwhile, half of it on keys that return and half on new ones.
void expiring(Timer& timer) {
  const Policy policy{{5}, kSecond};
  Bench bench(policy);
  for (std::uint64_t key = 0; key < kExpiring; ++key) bench.decide(key_of(key), kBase);
  const Nanos now = kBase + Tokens{4} * policy.span();
  std::atomic<bool> swept{false};
  std::thread sweeper([&] {
    Table::Cursor cursor = 0;
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

void quiet(Timer& timer) {
  Bench bench({{std::int64_t{1} << 40}, {1000}});
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
  const std::array<std::pair<const char*, void (*)(Timer&)>, 4> scenes{{{"nothing", nothing},
                                                                        {"1M keys, quiet", quiet},
                                                                        {"growing from 0 to 5M keys", growing},
                                                                        {"a million expire", expiring}}};
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
  const std::array<std::pair<std::string_view, void (*)()>, 4> parts{
      {{"memory", memory}, {"speed", speed}, {"orders", orders}, {"latency", latency}}};
  for (int i = 1; i < argc; ++i)
    if (std::none_of(parts.begin(), parts.end(), [&](const auto& part) { return part.first == argv[i]; })) {
      fmt::print(stderr, "usage: table_bench [memory|speed|orders|latency]...\n");
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
