// timescale: Unix time from a free-running counter, for many readers and one writer, never backwards.
//
// A clock here is a chain of straight lines, counter -> Unix nanoseconds. Each has a bend, for a correction that ends
// by itself even if no one comes to end it:
//
//     ns                         , slope_after
//      |            ____________/            a line: {start, length, ns, slope, slope_after}
//      |      _____/ slope     :             before its start the line that came before it holds
//      |     /     :           :
//      |    /      start       start + length
//      +-----------------------------------------> counter
//
// Three parts: `Line` (one of them), `Timescale` (publishes them; what readers call), `Discipline` (chooses the next
// one from samples of the system's clock). None of them reads a clock.
//
// Why time can't run backwards. A line is published *before* its start ("the switch"), and it begins where its
// predecessor is at that point. Up to the switch, readers that have seen the new line compute with the predecessor, as
// those do that haven't: they agree to the nanosecond; after it everyone has seen it. Slopes are >= 0. A reader checks
// after reading the counter that the line it used is still the newest, so one that was preempted in between starts over
// instead of extending a dead line. The writer's duties: `publish` needs the switch ahead and the previous switch
// passed.
//
// Layout of a Timescale: the number of the newest line, then a ring of four slots of five words; line p lives in slot
// p % 4. Written a few times a second, read always: it needs no padding, and the newest line and its number mostly
// share one or two cache lines.
//
// Thread safety: Timescale: any number of readers, one writer at a time; a reader never waits for a writer, however
// long that is preempted: the newest complete line stays readable, and a reader starts over only if a publication was
// completed meanwhile. Slots are atomics (no fences: ThreadSanitizer understands all of it). Line: a value. Discipline:
// guarded by its owner.
//
// Error bounds: a line is evaluated exactly and rounded down once (twice after the bend); a slope is a multiple of
// 2^-48 ns, 2 * 10^-14 of a 5 GHz counter's. Counter differences are taken modulo 2^64 and must be < 2^63: 58 years at
// 5 GHz from a line's start; the counter's own value may be anything and may wrap.
//
// Complexity: reading: two loads of the number, four of the line, a multiplication (one line more before the switch);
// all else constant.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "weir/units.hpp"

namespace weir {

__extension__ typedef unsigned __int128 Uint128;
__extension__ typedef __int128 Int128;

// A reading of the counter. Differences are modulo 2^64.
struct Ticks {
  std::uint64_t v = 0;
  friend constexpr bool operator==(const Ticks&, const Ticks&) = default;
};

// Ticks from `from` to `to`; negative if `to` came first.
constexpr std::int64_t ticks_between(Ticks from, Ticks to) noexcept { return static_cast<std::int64_t>(to.v - from.v); }

// Nanoseconds a tick, times 2^48. 5 GHz is 0.2 ns, a 1 MHz counter 1000 ns; INVARIANT: < 2^62 (counters >= 62 kHz).
struct Slope {
  static constexpr int kShift = 48;
  std::uint64_t v = 0;
  friend constexpr auto operator<=>(const Slope&, const Slope&) = default;

  // Nanoseconds in `ticks`, rounded down.
  [[nodiscard]] constexpr std::int64_t span(std::uint64_t ticks) const noexcept {
    return static_cast<std::int64_t>((static_cast<Uint128>(ticks) * v) >> kShift);
  }
  // Ticks in `ns`, rounded down. REQUIRES: ns >= 0, v > 0, and a result < 2^63.
  [[nodiscard]] constexpr std::uint64_t ticks(std::int64_t ns) const noexcept {
    return static_cast<std::uint64_t>((static_cast<Uint128>(ns) << kShift) / v);
  }
};

// One line with its bend. INVARIANT: length < 2^63.
struct Line {
  Ticks start;
  std::uint64_t length = 0;  // ticks from start to the bend
  Nanos ns;                  // the time at start
  Slope slope;
  Slope slope_after;
  friend constexpr bool operator==(const Line&, const Line&) = default;

  // The time at `counter`. REQUIRES: counter at or after start.
  [[nodiscard]] constexpr Nanos at(Ticks counter) const noexcept {
    const std::uint64_t passed = counter.v - start.v;
    if (passed < length) return {ns.v + slope.span(passed)};
    return {ns.v + slope.span(length) + slope_after.span(passed - length)};
  }

  // A clock that stands still.
  static constexpr Line still(Ticks start, Nanos ns) noexcept { return {start, INT64_MAX, ns, {0}, {0}}; }
};

class Timescale {
 public:
  constexpr Timescale() noexcept = default;
  Timescale(const Timescale&) = delete;
  Timescale& operator=(const Timescale&) = delete;

  // The time now; `read` returns the counter. It is called between the two looks at the newest line's number, again if
  // that changed; by how much a processor moves the reading in relation to them doesn't matter while it is less than
  // the time by which lines are published ahead.
  template <class Read>
  Nanos now(Read&& read) const noexcept {
    for (;;) {
      const std::uint64_t newest = newest_.load(std::memory_order_acquire);
      const Slot& slot = slots_[newest % kSlots];
      const std::uint64_t start = slot.start.load(std::memory_order_acquire);
      const std::uint64_t length = slot.length.load(std::memory_order_acquire);
      const std::int64_t ns = slot.ns.load(std::memory_order_acquire);
      const Slope slope{slot.slope.load(std::memory_order_acquire)};
      const Ticks counter = read();
      // Before the start this difference is huge, so that one comparison finds both ends.
      const std::uint64_t passed = counter.v - start;
      const Nanos time = passed < length ? Nanos{ns + slope.span(passed)} : outside(newest, counter);
      if (newest_.load(std::memory_order_relaxed) == newest) return time;
    }
  }

  // The time at a given reading; before the previous line's start, the time of that start.
  [[nodiscard]] Nanos at(Ticks counter) const noexcept {
    return now([counter] { return counter; });
  }

  // The newest line. For the writer.
  [[nodiscard]] Line newest() const noexcept { return load(newest_.load(std::memory_order_acquire)); }

  // Makes `line` the newest. REQUIRES: one writer; the newest line's start has passed; line.start is ahead, further
  // than a reader's reordering (microseconds); line.ns == newest().at(line.start).
  void publish(const Line& line) noexcept;

  // Makes `line` hold at once, and stand still before its start: the first line, or one that need not continue the
  // previous (time may jump, either way). REQUIRES: one writer.
  void replace(const Line& line) noexcept;

 private:
  static constexpr std::size_t kSlots = 4;  // newest, its predecessor, the one being written; a power of two

  // The fields are stored with release and loaded with acquire: whoever sees a field of a later line also sees that
  // `newest_` has moved, and starts over.
  struct Slot {
    std::atomic<std::uint64_t> start{0};
    std::atomic<std::uint64_t> length{0};
    std::atomic<std::int64_t> ns{0};
    std::atomic<std::uint64_t> slope{0};
    std::atomic<std::uint64_t> slope_after{0};
  };

  [[nodiscard]] Line load(std::uint64_t number) const noexcept;
  [[nodiscard]] Nanos outside(std::uint64_t newest, Ticks counter) const noexcept;

  std::atomic<std::uint64_t> newest_{0};
  std::array<Slot, kSlots> slots_{};
};

// The counter and the system's two clocks, read together. `steady` runs as fast as `real` but is never stepped
// (CLOCK_MONOTONIC). `error`: the three belong together up to this, either way.
struct Sample {
  Ticks counter;
  Nanos steady;
  Nanos real;
  Nanos error;
};

// Follows the system's clock: estimates the counter's rate and plans the lines.
//
// The rate is that of the steady clock, which steps can't touch, between the newest sample and the oldest of the last
// 16 (at most 8 s back). A sample that lies further from where the rate puts it than errors and 2 ppm of wander explain
// is suspect: the baseline starts anew behind it, and the rate is kept. When the next one deviates at the same pace,
// the rate has changed (someone slews the system's clock). So one wild sample can't spoil the rate; a changed rate is
// believed one sample late.
//
// The offset from the real clock is planned away within kHorizon after the switch, at no more than kMaxSlew of the
// rate: small ones vanish before the next sample, a step of 1 s takes 100 s. The bend ends the correction, so that a
// clock whose samples stop runs on at the estimated rate.
class Discipline {
 public:
  static constexpr Nanos kHorizon{250'000'000};
  static constexpr std::int64_t kMaxSlew = 100;  // at most 1/100 of the rate
  // The most that one line takes away; 116 days, so that its length (31 years) is < 2^63 ticks up to 9 GHz.
  static constexpr Nanos kPlannedMax{10'000'000'000'000'000};

  enum class Verdict {
    kSteady,      // as expected
    kStep,        // the real clock was stepped
    kSuspect,     // one sample out of line: a wild one, or the rate begins to change
    kRate,        // the rate changed
    kCounterLost  // the counter ran back (it restarted over a suspension): the lines must be replaced
  };

  constexpr Discipline() noexcept = default;

  // The first estimate. REQUIRES: second.counter after first.counter, second.steady after first.steady.
  void begin(const Sample& first, const Sample& second) noexcept;

  // REQUIRES: begun.
  Verdict feed(const Sample& sample) noexcept;

  // The line to publish: continues `current` at `start` and heads for the system's clock. REQUIRES: begun; `start` not
  // before current.start nor the last sample.
  [[nodiscard]] Line plan(const Line& current, Ticks start) const noexcept;

  // A line from the last sample on, at the estimated rate: for the beginning, and wherever time may jump. It starts no
  // earlier than `not_before`; the next plans slew what that adds.
  [[nodiscard]] Line fresh(Nanos not_before = {0}) const noexcept;

  [[nodiscard]] constexpr Slope rate() const noexcept { return rate_; }

 private:
  static constexpr std::size_t kSamples = 16;
  static constexpr std::int64_t kBaselineMax = 8'000'000'000;   // ns
  static constexpr std::int64_t kBaselineGood = 1'000'000'000;  // ns: long enough to replace any earlier estimate
  static constexpr std::int64_t kJitter = 1'000;                // ns that a sample may be off beyond its stated error
  static constexpr double kWander = 2e-6;                       // change of rate between samples that is no surprise

  [[nodiscard]] const Sample& back(std::size_t age) const noexcept {
    return samples_[(next_ + kSamples - 1 - age) % kSamples];
  }
  void push(const Sample& sample) noexcept;
  void estimate() noexcept;
  Verdict suspect(const Sample& last, const Sample& sample, double drift, double explained) noexcept;

  std::array<Sample, kSamples> samples_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
  Slope rate_;
  double rate_error_ = 0;  // relative
  double suspect_ = 0;     // the relative drift of the last sample, if it was suspect; else 0
};

}  // namespace weir
