// progress: a bar on stderr, when that is a terminal, for one or more runs at once.
//
// Thread safety: any thread. Complexity: constant in the runs; the terminal is written to ten times a second at most.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

namespace weir::lab {

class ProgressBar {
 public:
  ProgressBar(std::size_t runs, bool quiet) : done_(runs, 0), shown_(!quiet && isatty(STDERR_FILENO) != 0) {}
  ~ProgressBar() {
    if (shown_) static_cast<void>(std::fputs("\r\x1b[K", stderr));
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // So much of that run is over, 0 to 1.
  void tell(std::size_t run, double part) {
    if (!shown_) return;
    const std::lock_guard lock(mutex_);
    sum_ += part - done_[run];
    done_[run] = part;
    const auto now = std::chrono::steady_clock::now();
    if (now - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = now;
    constexpr double kWidth = 40;
    const double all = sum_ / static_cast<double>(done_.size());
    const auto filled = static_cast<std::size_t>(all * kWidth);
    const std::string bar = std::string(filled, '#') + std::string(static_cast<std::size_t>(kWidth) - filled, '.');
    static_cast<void>(std::fprintf(stderr, "\r[%s] %3.0f %%", bar.c_str(), all * 100));
  }

 private:
  std::mutex mutex_;
  std::vector<double> done_;
  double sum_ = 0;
  bool shown_;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace weir::lab
