// process: nodes as processes of the operating system, with pipes to the driver.
//
// A process dies with the driver, however that ends: its pipe ends then, and on Linux the kernel kills it besides.
//
// Thread safety: none.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/real/channel.hpp"
#include "weir/units.hpp"

namespace weir::lab {

class Process {
 public:
  // Does `body` in a process of its own, which ends with it; `forget` lets go of what is the driver's there. Throws
  // Error.
  static Process forked(const std::function<void()>& forget, const std::function<void(Channel)>& body);
  // Runs a program, which reads from file descriptor 3 and writes to 4, and whose output is our errors. Throws Error.
  static Process program(const std::vector<std::string>& line);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) = delete;
  ~Process();

  Channel& channel() { return *channel_; }
  // As a power cut does it. What it said before is in the channel, up to its end.
  void kill() noexcept;
  // Processor time so far; none if it is gone.
  std::optional<Nanos> cpu() const noexcept;
  // Resident memory; 0 if that can't be had.
  std::uint64_t resident_bytes() const;

 private:
  Process(pid_t pid, Channel channel);

  pid_t pid_;    // 0: it has ended
  pid_t owner_;  // its copies in other processes that the owner forks leave it alone
  std::unique_ptr<Channel> channel_;
};

}  // namespace weir::lab
