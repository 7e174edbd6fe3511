// workload: who asks when. Data sets A to D of Henriksson and Bennhage ("Trading performance for precision in a
// CRDT-based rate-limiting system", 2021) as far as the thesis describes them, and more; each drawn from a seed and
// scaled by the capacity c of the bucket and its refill r (tokens a second).
//
// Times are whole Unix milliseconds, as in the thesis' recordings. A generated workload begins at a whole second in
// 2020 or 2021 that the seed chooses, so that users of a fixed rate meet other nodes with another seed.
//
// Thread safety: values and pure functions. Complexity: n log n in the requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/units.hpp"

namespace weir::lab {

inline constexpr std::int32_t kAnyNode = -1;

struct Request {
  std::int64_t time_ms = 0;
  std::uint32_t user = 0;        // an index into Workload::users
  std::uint32_t hits = 1;        // >= 1
  std::int32_t node = kAnyNode;  // the node that it reaches; kAnyNode: by consistent hashing

  friend bool operator==(const Request&, const Request&) = default;
};

// INVARIANT: requests are in the order of their times; each user index is < users.size(); no request is missing.
struct Workload {
  std::string name;
  std::vector<std::string> users;
  std::vector<Request> requests;

  bool has_nodes() const noexcept;
  bool has_hits() const noexcept;
};

// Puts the requests in the order of their times; equal times stay in their order. False if they already were.
bool sort_by_time(std::vector<Request>& requests);

// By what a limiter knows a user: the same for a user of that name in every workload.
KeyHash key_of(std::string_view user) noexcept;

struct WorkloadParams {
  std::string name;
  std::uint64_t seed = 1;
  std::int64_t capacity = 100;
  double refill = 0.1;               // tokens per second
  std::uint32_t nodes = 30;          // for workloads that choose the nodes
  std::uint32_t users = 0;           // 0: the workload's own number
  std::optional<double> retentions;  // for steady users: how long, in 2cT
};

struct WorkloadHelp {
  std::string name;
  std::string line;
};
// All workloads, in the order in which help lists them.
std::vector<WorkloadHelp> workload_help();

// What a workload takes for the capacity and the refill that it was not given (refill: 0.001 of the capacity).
// Throws Error if there is no such workload.
std::int64_t default_capacity(std::string_view name);
double default_refill(std::string_view name, std::int64_t capacity);

// Throws Error: no such workload, or one of more than kMaxRequests requests.
Workload generate(const WorkloadParams& params);

}  // namespace weir::lab
