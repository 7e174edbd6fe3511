// clock: choice and calibration of the counter, ticks, freezing. The hot path is in clock.hpp.
#include "clock/clock.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace weir {

namespace detail {
alignas(64) constinit ClockShared clock_shared;
}

namespace {

using detail::clock_shared;

// Lines are published this far ahead of their start: longer than a tick may be interrupted with any likelihood, and
// well below the interval of ticks.
constexpr std::int64_t kLead = 25'000'000;  // ns
// The first baseline. Its rate is good to the samples' errors over this: 10 ppm or so, 2.5 us at the first tick.
constexpr std::chrono::milliseconds kFirstBaseline{4};
constexpr int kBrackets = 8;  // attempts at a narrow one
constexpr int kAttempts = 4;  // at planning without being interrupted

struct ClockPrivate {
  std::mutex mutex;  // guards all below, and writing to clock_shared
  bool started = false;
  bool frozen = false;
  bool fallback = false;
  Discipline discipline;
  ClockInfo info;
};
// Made in bytes that nothing destroys: libc++'s std::mutex has a destructor, except on glibc.
alignas(ClockPrivate) std::byte clock_bytes[sizeof(ClockPrivate)];
ClockPrivate& clock_private = *::new (clock_bytes) ClockPrivate;
static_assert(std::is_trivially_destructible_v<detail::ClockShared>,
              "an unloaded library runs no destructors while schedulers still call it");

Nanos system_time(clockid_t clock) noexcept {
  timespec t{};
  clock_gettime(clock, &t);
  return {std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

Ticks fallback_counter() noexcept { return {static_cast<std::uint64_t>(system_time(CLOCK_MONOTONIC).v)}; }

Ticks counter() noexcept {
#if WEIR_CLOCK_HARDWARE
  if (!clock_private.fallback) return detail::counter_ordered();
#endif
  return fallback_counter();
}

#if defined(__x86_64__)
// Linux measures whether the cores' TSCs agree, and takes "tsc" off this list when they don't. Where there is no such
// list (another system, a container without /sys), the processor's word stands.
bool kernel_distrusts_tsc() noexcept {
  std::FILE* file = std::fopen("/sys/devices/system/clocksource/clocksource0/available_clocksource", "re");
  if (file == nullptr) return false;
  char sources[256] = {};
  const std::size_t size = std::fread(sources, 1, sizeof(sources) - 1, file);
  static_cast<void>(std::fclose(file));  // it was only read
  return size > 0 && std::strstr(sources, "tsc") == nullptr;
}
#endif

// The name of the hardware counter, or nullptr if there is none to be trusted.
const char* hardware_counter() noexcept {
#if defined(__x86_64__)
  constexpr unsigned kRdtscp = 1u << 27, kInvariant = 1u << 8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d) == 0 || (d & kRdtscp) == 0) return nullptr;
  if (__get_cpuid(0x80000007, &a, &b, &c, &d) == 0 || (d & kInvariant) == 0) return nullptr;
  return kernel_distrusts_tsc() ? nullptr : "tsc";
#elif defined(__aarch64__)
  return "cntvct";
#else
  return nullptr;
#endif
}

// The counter and the system's clocks at the same moment: the narrowest of several brackets, so that an interruption of
// one doesn't matter. The steady clock is read on both sides of the real one, for the three to have the same middle.
struct Bracket {
  Ticks counter;
  Nanos steady;
  Nanos real;
  std::int64_t error;  // ticks
};

Bracket bracket() noexcept {
  Bracket best{{}, {}, {}, INT64_MAX};
  for (int i = 0; i < kBrackets; ++i) {
    const Ticks before = counter();
    const Nanos early = system_time(CLOCK_MONOTONIC);
    const Nanos real = system_time(CLOCK_REALTIME);
    const Nanos late = system_time(CLOCK_MONOTONIC);
    const std::int64_t half = ticks_between(before, counter()) / 2;
    // A coarse counter may not have moved, and still be off by one.
    if (half + 1 >= best.error) continue;
    best = {{before.v + static_cast<std::uint64_t>(half)}, {early.v + (late - early).v / 2}, real, half + 1};
  }
  return best;
}

Sample sample_of(const Bracket& b, Slope rate) noexcept {
  return {b.counter, b.steady, b.real, {rate.span(static_cast<std::uint64_t>(b.error)) + 1}};
}

// Two samples, kFirstBaseline apart; again if a clock stood still or ran back in between.
void calibrate() noexcept {
  for (;;) {
    const Bracket first = bracket();
    std::this_thread::sleep_for(kFirstBaseline);
    const Bracket second = bracket();
    const std::int64_t ticks = ticks_between(first.counter, second.counter);
    const std::int64_t ns = (second.steady - first.steady).v;
    if (ticks <= 0 || ns <= 0) continue;
    const Slope rate{
        static_cast<std::uint64_t>((static_cast<Uint128>(ns) << Slope::kShift) / static_cast<std::uint64_t>(ticks))};
    clock_private.discipline.begin(sample_of(first, rate), sample_of(second, rate));
    return;
  }
}

// Publishes the next line. Does nothing while the last one's start hasn't passed for all readers.
void correct() noexcept {
  Timescale& scale = clock_shared.scale;
  const Line current = scale.newest();
  const Slope rate = clock_private.discipline.rate();
  const std::uint64_t lead = rate.ticks(kLead);
  for (int i = 0; i < kAttempts; ++i) {
    const Ticks now = counter();
    if (ticks_between(current.start, now) < static_cast<std::int64_t>(lead / 4)) return;
    const Line next = clock_private.discipline.plan(current, {now.v + lead});
    if (ticks_between(counter(), next.start) < static_cast<std::int64_t>(lead / 2)) continue;  // interrupted: plan anew
    scale.publish(next);
    if (ticks_between(counter(), next.start) <= 0) ++clock_private.info.late;
    return;
  }
}

void tick() noexcept {
  const Sample sample = sample_of(bracket(), clock_private.discipline.rate());
  ClockInfo& info = clock_private.info;
  ++info.ticks;
  if (!clock_private.frozen) {
    info.offset_ns = (clock_shared.scale.at(sample.counter) - sample.real).v;
    if (std::abs(info.offset_ns) > std::abs(info.worst_offset_ns)) info.worst_offset_ns = info.offset_ns;
  }
  info.error_ns = sample.error.v;
  switch (clock_private.discipline.feed(sample)) {
    case Discipline::Verdict::kSteady:
      break;
    case Discipline::Verdict::kStep:
      ++info.steps;
      break;
    case Discipline::Verdict::kSuspect:
      ++info.suspects;
      break;
    case Discipline::Verdict::kRate:
      ++info.rate_changes;
      break;
    case Discipline::Verdict::kCounterLost:
      ++info.counter_lost;
      if (!clock_private.frozen) {
        // The system's clock went on while the counter didn't, so this is ahead of all that was told; the floor is for
        // a system's clock that was set back meanwhile.
        clock_shared.scale.replace(clock_private.discipline.fresh(clock_shared.scale.newest().ns));
      }
      return;
  }
  if (!clock_private.frozen) correct();
}

void stand_still(Nanos at) noexcept {
  clock_private.frozen = true;
  clock_shared.scale.replace(Line::still(counter(), at));
}

}  // namespace

namespace detail {
Nanos clock_now_fallback() noexcept { return clock_shared.scale.now(fallback_counter); }
}  // namespace detail

void clock_start(ClockOptions options) noexcept {
  const std::lock_guard lock(clock_private.mutex);
  if (clock_private.started) return;
  // Erlang keeps its own environment: nobody calls setenv.
  const char* wish = std::getenv("WEIR_CLOCK_SOURCE");  // NOLINT(concurrency-mt-unsafe)
  const bool forced = options.fallback || (wish != nullptr && std::strcmp(wish, "fallback") == 0);
  const char* hardware = forced ? nullptr : hardware_counter();
  clock_private.fallback = hardware == nullptr;
  clock_private.info.source = hardware == nullptr ? "monotonic" : hardware;
  calibrate();
  clock_shared.scale.replace(clock_private.discipline.fresh(options.not_before));
  clock_shared.hardware.store(hardware != nullptr, std::memory_order_release);
  clock_private.started = true;
}

void clock_tick() noexcept {
  const std::unique_lock lock(clock_private.mutex, std::try_to_lock);
  if (lock.owns_lock() && clock_private.started) tick();
}

void clock_freeze(Nanos at) noexcept {
  const std::lock_guard lock(clock_private.mutex);
  stand_still(at);
}

void clock_advance(Nanos by) noexcept {
  const std::lock_guard lock(clock_private.mutex);
  // The sum of steps stays a time, too.
  constexpr Nanos kLatest{kTimeMax.v / 2};
  stand_still({std::min(kLatest.v, (clock_shared.scale.at(counter()) + by).v)});
}

void clock_thaw() noexcept {
  const std::lock_guard lock(clock_private.mutex);
  if (!clock_private.frozen) return;
  clock_private.frozen = false;
  clock_private.discipline.feed(sample_of(bracket(), clock_private.discipline.rate()));
  clock_shared.scale.replace(clock_private.discipline.fresh());
}

ClockInfo clock_info() noexcept {
  const std::lock_guard lock(clock_private.mutex);
  ClockInfo info = clock_private.info;
  info.started = clock_private.started;
  info.frozen = clock_private.frozen;
  if (!info.started) return info;
  const Slope rate = clock_private.discipline.rate();
  info.hertz = 1e9 * static_cast<double>(std::uint64_t{1} << Slope::kShift) / static_cast<double>(rate.v);
  if (!info.frozen) {
    const Line line = clock_shared.scale.newest();
    const std::int64_t passed = ticks_between(line.start, counter());
    const bool correcting = passed < 0 || static_cast<std::uint64_t>(passed) < line.length;
    const double slope = static_cast<double>((correcting ? line.slope : line.slope_after).v);
    info.slew_ppm = 1e6 * (slope / static_cast<double>(rate.v) - 1);
  }
  return info;
}

}  // namespace weir
