// timescale: publication of lines, and the discipline that chooses them.
#include "weir/timescale.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdlib>

namespace weir {

// Relaxed would do for the writer's own look; acquire keeps a reader's check of `newest_` behind these loads.
Line Timescale::load(std::uint64_t number) const noexcept {
  const Slot& slot = slots_[number % kSlots];
  return {{slot.start.load(std::memory_order_acquire)},
          slot.length.load(std::memory_order_acquire),
          {slot.ns.load(std::memory_order_acquire)},
          {slot.slope.load(std::memory_order_acquire)},
          {slot.slope_after.load(std::memory_order_acquire)}};
}

// A reading before the newest line's start or behind its bend. The fields may be torn: then `now` starts over.
Nanos Timescale::outside(std::uint64_t newest, Ticks counter) const noexcept {
  const Line line = load(newest);
  if (ticks_between(line.start, counter) >= 0) return line.at(counter);
  const Line previous = load(newest - 1);
  // A counter that ran back makes time stand still, until the discipline notices.
  return ticks_between(previous.start, counter) >= 0 ? previous.at(counter) : previous.ns;
}

void Timescale::publish(const Line& line) noexcept {
  assert(line.length <= INT64_MAX);
  const std::uint64_t number = newest_.load(std::memory_order_relaxed) + 1;
  Slot& slot = slots_[number % kSlots];
  slot.start.store(line.start.v, std::memory_order_release);
  slot.length.store(line.length, std::memory_order_release);
  slot.ns.store(line.ns.v, std::memory_order_release);
  slot.slope.store(line.slope.v, std::memory_order_release);
  slot.slope_after.store(line.slope_after.v, std::memory_order_release);
  newest_.store(number, std::memory_order_release);
}

// As its own predecessor a line stands still before its start.
void Timescale::replace(const Line& line) noexcept {
  publish(line);
  publish(line);
}

namespace {

// REQUIRES: b after a, by the counter and by the steady clock.
Slope rate_between(const Sample& a, const Sample& b) noexcept {
  const auto ns = static_cast<Uint128>((b.steady - a.steady).v) << Slope::kShift;
  return {static_cast<std::uint64_t>(ns / (b.counter.v - a.counter.v))};
}

double rate_error_between(const Sample& a, const Sample& b) noexcept {
  return static_cast<double>((a.error + b.error).v) / static_cast<double>((b.steady - a.steady).v);
}

}  // namespace

void Discipline::push(const Sample& sample) noexcept {
  samples_[next_] = sample;
  next_ = (next_ + 1) % kSamples;
  count_ = std::min(count_ + 1, kSamples);
}

void Discipline::begin(const Sample& first, const Sample& second) noexcept {
  assert(ticks_between(first.counter, second.counter) > 0 && second.steady > first.steady);
  count_ = 0;
  suspect_ = 0;
  push(first);
  push(second);
  rate_ = rate_between(first, second);
  rate_error_ = rate_error_between(first, second);
}

// The rate over the longest baseline that isn't too old. A short one doesn't replace a better estimate that stood
// before a suspect sample.
void Discipline::estimate() noexcept {
  const Sample& last = back(0);
  std::size_t age = 1;
  while (age + 1 < count_ && (last.steady - back(age + 1).steady).v <= kBaselineMax) ++age;
  const Sample& first = back(age);
  if (last.steady <= first.steady) return;  // samples closer together than their noise tell no rate
  const double error = rate_error_between(first, last);
  if (error > 2 * rate_error_ && (last.steady - first.steady).v < kBaselineGood) return;
  rate_ = rate_between(first, last);
  rate_error_ = error;
}

// A sample off by `drift` (relative), where `explained` would be no surprise.
Discipline::Verdict Discipline::suspect(const Sample& last, const Sample& sample, double drift,
                                        double explained) noexcept {
  const bool same_pace = suspect_ != 0 && std::abs(drift - suspect_) <= std::abs(suspect_) / 4 + explained;
  count_ = 0;
  if (same_pace && sample.steady > last.steady) {
    suspect_ = 0;
    push(last);
    push(sample);
    rate_ = rate_between(last, sample);
    rate_error_ = rate_error_between(last, sample);
    return Verdict::kRate;
  }
  suspect_ = drift;
  push(sample);
  return Verdict::kSuspect;
}

Discipline::Verdict Discipline::feed(const Sample& sample) noexcept {
  assert(count_ > 0);
  const Sample last = back(0);
  const std::int64_t ticks = ticks_between(last.counter, sample.counter);
  if (ticks == 0) return Verdict::kSteady;
  if (ticks < 0) {
    count_ = 0;
    suspect_ = 0;
    push(sample);
    return Verdict::kCounterLost;
  }
  const std::int64_t expected = std::max<std::int64_t>(1, rate_.span(static_cast<std::uint64_t>(ticks)));
  const auto passed = static_cast<double>(expected);
  const auto off = static_cast<double>((sample.steady - last.steady).v - expected);
  const std::int64_t noise = 2 * (last.error + sample.error).v + kJitter;
  const double explained = static_cast<double>(noise) / passed + rate_error_ + kWander;
  if (std::abs(off) > explained * passed) return suspect(last, sample, off / passed, explained);
  suspect_ = 0;
  push(sample);
  if (count_ > 1) estimate();
  const std::int64_t stepped = ((sample.real - sample.steady) - (last.real - last.steady)).v;
  return std::abs(stepped) > noise ? Verdict::kStep : Verdict::kSteady;
}

Line Discipline::plan(const Line& current, Ticks start) const noexcept {
  const Sample& last = back(0);
  assert(ticks_between(current.start, start) >= 0 && ticks_between(last.counter, start) >= 0);
  const Nanos ours = current.at(start);
  const Nanos real{last.real.v + rate_.span(start.v - last.counter.v)};
  const std::int64_t ahead = std::clamp((ours - real).v, -kPlannedMax.v, kPlannedMax.v);
  const std::int64_t within = std::max(kHorizon.v, std::abs(ahead) * kMaxSlew);
  const auto change = static_cast<std::int64_t>(static_cast<Int128>(rate_.v) * ahead / within);
  return {start, rate_.ticks(within), ours, {rate_.v - static_cast<std::uint64_t>(change)}, rate_};
}

Line Discipline::fresh(Nanos not_before) const noexcept {
  const Sample& last = back(0);
  return {last.counter, INT64_MAX, std::max(last.real, not_before), rate_, rate_};
}

}  // namespace weir
