#include "lab/calibrate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace weir::lab {

Calibration calibrate(const CalibrateConfig& config, const Workload& workload,
                      const std::vector<std::uint8_t>& admitted) {
  const std::size_t users = workload.users.size();
  std::vector<std::vector<std::int64_t>> times(users);
  std::vector<bool> limited(users, false);
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    times[request.user].push_back(request.time_ms);
    if (admitted[i] == 0) limited[request.user] = true;
  }
  std::vector<std::uint32_t> order(users);
  std::iota(order.begin(), order.end(), 0U);
  std::erase_if(order, [&](std::uint32_t user) { return limited[user]; });

  Calibration result;
  result.users = users;
  result.limited = users - order.size();
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return times[a].size() > times[b].size(); });
  if (order.size() > config.top) order.resize(config.top);
  result.looked_at = order.size();

  double sum_of_means = 0;
  for (const std::uint32_t user : order) {
    const std::vector<std::int64_t>& of = times[user];
    double sum = 0;
    std::uint64_t kept = 0;
    for (std::size_t last = config.window; last < of.size(); ++last) {
      const double period = static_cast<double>(of[last] - of[last - config.window]) / config.window;
      ++result.windows;
      if (period > config.longest_ms) {
        ++result.discarded;
        continue;
      }
      sum += period;
      ++kept;
    }
    if (kept == 0) {
      ++result.without_windows;
    } else {
      sum_of_means += sum / static_cast<double>(kept);
    }
  }
  const std::uint64_t counted = result.looked_at - result.without_windows;
  if (counted == 0) return result;
  result.mean_ms = sum_of_means / static_cast<double>(counted);
  result.threshold_ms = 100 * std::llround(*result.mean_ms / 100);
  return result;
}

}  // namespace weir::lab
