// clock: what time it is, for births: Unix nanoseconds that never run backwards, in a few nanoseconds.
//
// A hardware counter (x86-64: the TSC where it is invariant and the kernel trusts it; aarch64: cntvct_el0), else
// CLOCK_MONOTONIC, put through a Timescale that a Discipline keeps on CLOCK_REALTIME (the rate taken from
// CLOCK_MONOTONIC). Someone calls `clock_tick` a few times a second; should that stop, the clock runs on at its
// estimated rate. doc/clock.md says more and gives figures.
//
// Guarantees, between `clock_start` and the first `clock_thaw`, while the counter itself doesn't restart:
//   - clock_now(): a call that happens after another (same thread, or by any synchronisation between threads) returns
//     no earlier time.
//   - clock_now_overlapped(): the same within a thread. Across threads the processor may have read the counter before
//     the load that synchronised them, as far back as its reorder window reaches: seen only where the read was the
//     very next instruction after that load (1 in 250 to 5 million of those, by up to 0.2 us, once by 1.5 us). It
//     costs 2 ns beside work that it can overlap with, such as a hash, where clock_now() costs 21.
//   - Both are within 10 us of CLOCK_REALTIME while that isn't stepped; after a step they follow at no more than 1 %.
//
// The counter's assumption: the kernel and the processor keep the cores' counters synchronous (Linux checks it and
// drops the TSC otherwise; the architecture demands it of cntvct_el0).
//
// Thread safety: all of it, from any thread. The readers never wait; the others take turns on a mutex, except
// clock_tick, which leaves when it is taken. Nothing throws. State: one constant-initialised object without a
// destructor.
//
// Complexity: constant. clock_start takes some 5 ms; clock_tick about 2 us; freeze, advance, thaw, info about 1 us.
#pragma once

#include <atomic>
#include <cstdint>

#include "weir/timescale.hpp"
#include "weir/units.hpp"

namespace weir {

struct ClockOptions {
  bool fallback = false;  // don't use the hardware counter. So does WEIR_CLOCK_SOURCE=fallback in the environment
  // Don't begin before this: the time of a clock to be continued (another generation of the library).
  Nanos not_before{0};
};

struct ClockInfo {
  const char* source = "none";       // "tsc", "cntvct", "monotonic"
  double hertz = 0;                  // the counter's estimated rate, against CLOCK_REALTIME
  double slew_ppm = 0;               // how much faster than that the clock runs now, to correct its offset
  std::int64_t offset_ns = 0;        // ours - CLOCK_REALTIME at the last tick
  std::int64_t worst_offset_ns = 0;  // the largest of these, by magnitude, since the start
  std::int64_t error_ns = 0;         // of the last measurement, either way
  std::uint64_t ticks = 0;
  std::uint64_t steps = 0;         // of the system's clock
  std::uint64_t suspects = 0;      // samples out of line; two in a row at one pace make a rate change
  std::uint64_t rate_changes = 0;  // of the system's clock against the counter
  std::uint64_t counter_lost = 0;  // the counter ran back, and the clock was set anew
  std::uint64_t late = 0;          // lines published after their start: the writer stood still for 25 ms between two
                                   // instructions; readers may have differed by the correction made in that time
  bool started = false;
  bool frozen = false;
};

// Calibrates and starts the clock. Later calls do nothing. REQUIRED before any other.
void clock_start(ClockOptions options = {}) noexcept;

// Compares with CLOCK_REALTIME and corrects. To be called every 100-250 ms.
void clock_tick() noexcept;

// For tests: time stands still at `at`; moves on by `by` >= 0 (a running clock is frozen first); continues with real
// time.
void clock_freeze(Nanos at) noexcept;
void clock_advance(Nanos by) noexcept;
void clock_thaw() noexcept;

ClockInfo clock_info() noexcept;

namespace detail {

// What readers touch; the rest of the state is in clock.cpp.
struct ClockShared {
  std::atomic<bool> hardware{false};
  Timescale scale;
};
alignas(64) extern constinit ClockShared clock_shared;

Nanos clock_now_fallback() noexcept;

#if defined(__x86_64__)
#define WEIR_CLOCK_HARDWARE 1
// Waits for no one: may be executed before older loads and after younger ones. Not before an older read of the TSC.
inline Ticks counter_overlapped() noexcept {
  std::uint32_t low, high;
  asm volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
  return {std::uint64_t{high} << 32 | low};
}
// Executed when all older instructions are and all older loads have their values. What is stored later becomes visible
// later. (lfence; rdtsc costs the same, and on AMD depends on how the kernel has set the processor up.)
inline Ticks counter_ordered() noexcept {
  std::uint32_t low, high, core;
  asm volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(core) : : "memory");
  return {std::uint64_t{high} << 32 | low};
}
#elif defined(__aarch64__)
#define WEIR_CLOCK_HARDWARE 1
inline Ticks counter_overlapped() noexcept {
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks) : : "memory");
  return {ticks};
}
// The architecture lets the counter be read speculatively; isb makes older instructions complete first.
inline Ticks counter_ordered() noexcept {
  std::uint64_t ticks;
  asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(ticks) : : "memory");
  return {ticks};
}
#else
#define WEIR_CLOCK_HARDWARE 0
#endif

}  // namespace detail

// The time. REQUIRES: clock_start has returned.
inline Nanos clock_now() noexcept {
#if WEIR_CLOCK_HARDWARE
  if (detail::clock_shared.hardware.load(std::memory_order_relaxed)) [[likely]] {
    return detail::clock_shared.scale.now(detail::counter_ordered);
  }
#endif
  return detail::clock_now_fallback();
}

// The time, not ordered with what other threads did just before: see the guarantees above.
inline Nanos clock_now_overlapped() noexcept {
#if WEIR_CLOCK_HARDWARE
  if (detail::clock_shared.hardware.load(std::memory_order_relaxed)) [[likely]] {
    return detail::clock_shared.scale.now(detail::counter_overlapped);
  }
#endif
  return detail::clock_now_fallback();
}

}  // namespace weir
