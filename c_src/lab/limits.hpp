// limits: what the lab refuses, by name. Past them a run would not end, not fit in memory, or overflow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::lab {

inline constexpr std::uint32_t kMaxNodes = 1024;
inline constexpr std::uint32_t kMaxUsers = 10'000'000;
inline constexpr std::uint32_t kMaxRequests = 200'000'000;
inline constexpr std::int64_t kMaxCapacity = 1'000'000'000;
inline constexpr double kMinRefill = 1e-6;  // tokens per second
inline constexpr double kMaxRefill = 1e6;   // an emission interval of 1 us
inline constexpr double kMaxRetentions = 1000;
inline constexpr double kMaxDelayMs = 60'000;
inline constexpr double kMaxIntervalMs = 86'400'000;
inline constexpr std::uint32_t kMaxRuns = 10'000;
inline constexpr std::uint32_t kMaxJobs = 256;
inline constexpr double kMaxSettleSeconds = 86'400;
inline constexpr double kMaxFaultSeconds = 1e9;

// Recordings. The year 2096 is well before kTimeMax.
inline constexpr std::int64_t kMaxTimeMs = 4'000'000'000'000;
inline constexpr std::int64_t kMaxDurationMs = std::int64_t{31} * 86'400'000;
inline constexpr std::size_t kMaxRecordingBytes = std::size_t{8} << 30;
inline constexpr std::size_t kMaxUserBytes = 1024;

}  // namespace weir::lab
