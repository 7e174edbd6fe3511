// clock: Unix time that runs on evenly while a real run lasts, the same in all processes that were forked with it.
//
// Thread safety: values. Complexity: a call of the system.
#pragma once

#include <ctime>

#include "weir/units.hpp"

namespace weir::lab {

class Clock {
 public:
  Clock() noexcept : offset_(read(CLOCK_REALTIME) - read(CLOCK_MONOTONIC)) {}
  Nanos now() const noexcept { return read(CLOCK_MONOTONIC) + offset_; }

  static Nanos read(clockid_t id) noexcept {
    timespec time{};
    clock_gettime(id, &time);
    return {static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec};
  }

 private:
  Nanos offset_;
};

// How long a poll may wait: until then, and not at all when that has passed.
inline timespec wait_until(Nanos then, Nanos now) noexcept {
  const std::int64_t left = then > now ? (then - now).v : 0;
  return {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
}

}  // namespace weir::lab
