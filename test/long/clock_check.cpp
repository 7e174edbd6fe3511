// clock_check [seconds] [--fallback]: is weir's clock within 10 us of CLOCK_REALTIME on every core, and does it never
// run backwards? Prints figures; exit code 1 when it isn't or doesn't.
//
// One reader is pinned to each core. It compares the clock with CLOCK_REALTIME read before and after (a pair that took
// long, as when the thread was interrupted, says nothing and isn't used), and passes a token: it loads the time that
// some reader stored last, reads the clock, which must not be earlier, and stores what it read. Readers work at the
// same moments, a fifth of the time, so that the check can run beside other work. A ticker calls clock_tick each 250
// ms. The first second is not counted as deviation: the clock is then at its first estimate.
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "clock/clock.hpp"

namespace {

using namespace weir;
using namespace weir;

constexpr std::int64_t kLimit = 10'000;  // ns from CLOCK_REALTIME
constexpr std::int64_t kSec = 1'000'000'000;
constexpr std::int64_t kPeriod = 50'000'000;  // ns; all readers work in the first fifth of each

std::int64_t system_time(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::int64_t{t.tv_sec} * kSec + t.tv_nsec;
}

struct Result {
  int core = 0;
  bool pinned = false;
  std::uint64_t compared = 0;
  std::uint64_t unused = 0;
  std::int64_t worst = 0;  // signed: ours - CLOCK_REALTIME
  double sum = 0;
  std::uint64_t passed = 0;                // tokens
  std::uint64_t backwards = 0;             // within the thread, either kind of read
  std::uint64_t backwards_token = 0;       // clock_now against the token
  std::uint64_t backwards_overlapped = 0;  // clock_now_overlapped against the token: counted, allowed
  std::int64_t worst_overlapped = 0;
};

alignas(64) std::atomic<std::int64_t> token{0};
alignas(64) std::atomic<bool> done{false};

// Compares once. The clock must lie between the two readings, give or take.
void compare(Result& r, std::int64_t& narrowest, bool counted) {
  const std::int64_t before = system_time(CLOCK_REALTIME);
  const std::int64_t ours = clock_now().v;
  const std::int64_t after = system_time(CLOCK_REALTIME);
  const std::int64_t width = after - before;
  if (width >= 0) narrowest = std::min(narrowest, width);
  if (width < 0 || width > 2 * narrowest + 50 || !counted) {
    ++r.unused;
    return;
  }
  const std::int64_t off = ours - (before + width / 2);
  if (std::abs(off) > std::abs(r.worst)) r.worst = off;
  r.sum += static_cast<double>(off);
  ++r.compared;
}

void pass_token(Result& r, std::int64_t& last) {
  std::int64_t seen = token.load(std::memory_order_acquire);
  std::int64_t now = clock_now().v;
  r.backwards_token += now < seen;
  r.backwards += now < last;
  token.store(now, std::memory_order_release);
  last = now;

  seen = token.load(std::memory_order_acquire);
  now = clock_now_overlapped().v;
  if (now < seen) {
    ++r.backwards_overlapped;
    r.worst_overlapped = std::max(r.worst_overlapped, seen - now);
  }
  r.backwards += now < last;
  last = now;
  r.passed += 2;
}

void reader(Result& r, std::int64_t started) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(r.core), &cores);
  r.pinned = pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) == 0;
  std::int64_t narrowest = INT64_MAX;
  std::int64_t last = 0;
  while (!done.load(std::memory_order_relaxed)) {
    const std::int64_t now = system_time(CLOCK_MONOTONIC);
    const std::int64_t phase = now % kPeriod;
    if (phase >= kPeriod / 5) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kPeriod - phase));
      continue;
    }
    for (int i = 0; i < 200; ++i) compare(r, narrowest, now - started > kSec);
    for (int i = 0; i < 2000; ++i) pass_token(r, last);
  }
}

void print_costs() {
  constexpr int kReads = 200'000;
  const auto cost = [](auto read) {
    std::int64_t best = INT64_MAX;
    for (int round = 0; round < 9; ++round) {
      const std::int64_t before = system_time(CLOCK_MONOTONIC);
      for (int i = 0; i < kReads; ++i) {
        const std::int64_t value = read();
        asm volatile("" : : "r"(value) : "memory");
      }
      best = std::min(best, system_time(CLOCK_MONOTONIC) - before);
    }
    return static_cast<double>(best) / kReads;
  };
  std::printf("cost in ns: clock_now %.1f, clock_now_overlapped %.1f", cost([] { return clock_now().v; }),
              cost([] { return clock_now_overlapped().v; }));
#if WEIR_CLOCK_HARDWARE
  std::printf(", bare counter %.1f (ordered), %.1f (overlapped)",
              cost([] { return static_cast<std::int64_t>(detail::counter_ordered().v); }),
              cost([] { return static_cast<std::int64_t>(detail::counter_overlapped().v); }));
#endif
  std::printf(", clock_gettime %.1f\n", cost([] { return system_time(CLOCK_REALTIME); }));
}

bool report(const std::vector<Result>& results) {
  bool good = true;
  for (const Result& r : results) {
    const double mean = r.compared == 0 ? 0 : r.sum / static_cast<double>(r.compared);
    std::printf("core %d%s: worst %+lld ns, mean %+.0f ns of %llu compared (%llu not usable)\n", r.core,
                r.pinned ? "" : " (not pinned)", static_cast<long long>(r.worst), mean,
                static_cast<unsigned long long>(r.compared), static_cast<unsigned long long>(r.unused));
    std::printf(
        "        backwards: %llu in the thread, %llu behind the token, of %llu reads;"
        " overlapped reads behind it: %llu, by %lld ns at most (allowed)\n",
        static_cast<unsigned long long>(r.backwards), static_cast<unsigned long long>(r.backwards_token),
        static_cast<unsigned long long>(r.passed), static_cast<unsigned long long>(r.backwards_overlapped),
        static_cast<long long>(r.worst_overlapped));
    good = good && r.compared > 0 && std::abs(r.worst) <= kLimit && r.backwards == 0 && r.backwards_token == 0;
  }
  const ClockInfo info = clock_info();
  std::printf("%llu ticks, worst offset at one %+lld ns, last %+lld +- %lld ns, %.0f Hz, slewing %+.3f ppm\n",
              static_cast<unsigned long long>(info.ticks), static_cast<long long>(info.worst_offset_ns),
              static_cast<long long>(info.offset_ns), static_cast<long long>(info.error_ns), info.hertz, info.slew_ppm);
  std::printf("steps seen %llu, suspect samples %llu, rate changes %llu, counter lost %llu, late lines %llu\n",
              static_cast<unsigned long long>(info.steps), static_cast<unsigned long long>(info.suspects),
              static_cast<unsigned long long>(info.rate_changes), static_cast<unsigned long long>(info.counter_lost),
              static_cast<unsigned long long>(info.late));
  return good;
}

// Freezing, advancing and thawing, once nobody else reads.
bool stands_still_as_told() {
  constexpr Nanos kThen{1'000'000'007};
  clock_freeze(kThen);
  clock_tick();
  bool good = clock_info().frozen && clock_now() == kThen && clock_now_overlapped() == kThen;
  clock_advance({250});
  good = good && clock_now() == kThen + Nanos{250};
  clock_thaw();
  const std::int64_t before = system_time(CLOCK_REALTIME);
  const std::int64_t ours = clock_now().v;
  const std::int64_t after = system_time(CLOCK_REALTIME);
  good = good && !clock_info().frozen && ours >= before - kLimit && ours <= after + kLimit;
  std::printf("freeze, advance, thaw: %s\n", good ? "as told" : "WRONG");
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  long seconds = 60;
  ClockOptions options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--fallback") == 0) {
      options.fallback = true;
    } else {
      seconds = std::strtol(argv[i], nullptr, 10);
    }
  }
  if (seconds < 2) {
    std::fprintf(stderr, "usage: clock_check [seconds >= 2] [--fallback]\n");
    return 2;
  }
  const std::int64_t begun = system_time(CLOCK_MONOTONIC);
  clock_start(options);
  const std::int64_t started = system_time(CLOCK_MONOTONIC);
  std::printf("source %s, started in %.1f ms\n", clock_info().source, static_cast<double>(started - begun) / 1e6);

  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<Result> results;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(static_cast<std::size_t>(core), &allowed)) continue;
    results.emplace_back();
    results.back().core = core;
  }
  std::vector<std::thread> readers;
  for (Result& result : results) readers.emplace_back([&result, started] { reader(result, started); });
  while (system_time(CLOCK_MONOTONIC) - started < seconds * kSec) {
    clock_tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  done = true;
  for (std::thread& thread : readers) thread.join();
  bool good = report(results);
  good = stands_still_as_told() && good;
  print_costs();
  std::printf(good ? "good: within 10 us on every core, never backwards\n" : "BAD\n");
  return good ? 0 : 1;
}
