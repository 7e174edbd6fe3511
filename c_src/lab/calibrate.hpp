// calibrate: the frequency threshold of frequency analysis, from a recording, as the thesis derives it (4.3.3).
//
// Of the users that a central limiter never denies, the `top` with most requests count. Each user's windows are all
// runs of `window` + 1 consecutive requests; a window's period is its span over `window` (the period that listing 4.5
// compares). Windows of a period above `longest` are discarded: they lie across a pause. The mean period of each user's
// windows, averaged over the users that have any, rounded to 100 ms, is the threshold.
//
// Thread safety: pure. Complexity: linear in the requests, n log n in the users.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lab/workload.hpp"
#include "weir/units.hpp"

namespace weir::lab {

struct CalibrateConfig {
  std::uint32_t window = 1;  // births, >= 1
  std::uint32_t top = 10'000;
  double longest_ms = 5000;
};

struct Calibration {
  std::optional<double> mean_ms;  // none: no user had a window
  std::optional<std::int64_t> threshold_ms;
  std::uint64_t users = 0;
  std::uint64_t limited = 0;  // left out
  std::uint64_t looked_at = 0;
  std::uint64_t without_windows = 0;  // of those looked at
  std::uint64_t windows = 0;
  std::uint64_t discarded = 0;
};

// `admitted`: what a central limiter decides of each request.
Calibration calibrate(const CalibrateConfig& config, const Workload& workload,
                      const std::vector<std::uint8_t>& admitted);

}  // namespace weir::lab
