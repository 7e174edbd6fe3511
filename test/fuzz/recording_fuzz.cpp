// Bytes as a recording: it is refused with an error, or it is a workload that keeps its invariants, and that is the
// same when it has been written and read again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "lab/error.hpp"
#include "lab/limits.hpp"
#include "lab/recording.hpp"

namespace weir::lab {
namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

void check(const Workload& workload) {
  require(!workload.requests.empty());
  require(std::is_sorted(workload.requests.begin(), workload.requests.end(),
                         [](const Request& a, const Request& b) { return a.time_ms < b.time_ms; }));
  for (const Request& request : workload.requests) {
    require(request.time_ms >= 0 && request.time_ms <= kMaxTimeMs);
    require(request.user < workload.users.size());
    require(request.hits >= 1 && request.hits <= kMaxCapacity);
    require(request.node >= kAnyNode && request.node < static_cast<std::int32_t>(kMaxNodes));
  }
}

// Throws Error where what was written is refused.
void check_round_trip(const Workload& workload) {
  const auto users_have = [&](auto property) {
    return std::any_of(workload.users.begin(), workload.users.end(), property);
  };
  // A line of CSV can't hold a line break. JSON writes each byte that is not UTF-8 as the three of U+FFFD, which may
  // make a user's name too long, or two users one.
  const bool has_break =
      users_have([](const std::string& user) { return user.find_first_of("\r\n") != std::string::npos; });
  const bool may_grow = users_have([](const std::string& user) { return user.size() > kMaxUserBytes / 3; });
  for (const RecordingFormat format : {RecordingFormat::array, RecordingFormat::lines, RecordingFormat::csv}) {
    if (format == RecordingFormat::csv ? has_break : may_grow) continue;
    std::ostringstream out;
    write_recording(workload, format, out);
    const Workload again = parse_recording(out.str(), workload.name).workload;
    // (Users are numbered as they come in a file, and writing put the requests in order.)
    const auto same = [&](const Request& one, const Request& other) {
      return one.time_ms == other.time_ms && one.hits == other.hits && one.node == other.node &&
             (format != RecordingFormat::csv || workload.users[one.user] == again.users[other.user]);
    };
    require(std::equal(workload.requests.begin(), workload.requests.end(), again.requests.begin(), again.requests.end(),
                       same));
  }
}

}  // namespace
}  // namespace weir::lab

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weir::lab;
  Workload workload;
  try {
    workload = parse_recording({reinterpret_cast<const char*>(data), size}, "fuzz").workload;
  } catch (const Error&) {
    return 0;
  }
  check(workload);
  check_round_trip(workload);
  return 0;
}
