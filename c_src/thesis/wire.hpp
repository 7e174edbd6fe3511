// wire: frames as fixed-width little-endian numbers.
//
// A frame is one byte that says what it is (high four bits: the version; low four: the kind), then for each user its
// 8-byte key hash and what the design says of it:
//
//   counter         8 limit, 8 refill time stamp, 2 n, n x (4 node, 4 count)
//   queue           4 n, n x (8 birth, 8 death [, 8 identity])
//   sliding log     4 n, n x (8 birth [, 8 identity])
//   split+rebalance 4 demand
//
// Frames that ask for a state copy are that byte alone.
//
// Thread safety: values. Complexity: linear in the bytes.
#pragma once

#include <bit>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "weir/machine.hpp"

namespace weir::thesis {

static_assert(std::endian::native == std::endian::little, "numbers are copied to and from the wire as they are");

enum class FrameKind : std::uint8_t {
  gossip = 0,  // a delta state
  urgent = 1,  // one user's part of a delta state, sent by frequency analysis
  ask_copy = 2,
  copy = 3,  // a whole local state
  demand = 4,
};

inline constexpr std::uint8_t kWireVersion = 1;
constexpr std::byte frame_head(FrameKind kind) noexcept {
  return static_cast<std::byte>((kWireVersion << 4U) | static_cast<std::uint8_t>(kind));
}
constexpr std::optional<FrameKind> frame_kind(std::byte head) noexcept {
  const auto value = static_cast<std::uint8_t>(head);
  const std::uint8_t kind = value & 0x0fU;
  if (value >> 4U != kWireVersion || kind > static_cast<std::uint8_t>(FrameKind::demand)) return std::nullopt;
  return static_cast<FrameKind>(kind);
}

// Writes a frame of a size known beforehand, or at least bounded.
class Writer {
 public:
  // `body`: the bytes behind the head, at most.
  Writer(FrameKind kind, std::size_t body) : frame_(1 + body) {
    frame_[0] = frame_head(kind);
    at_ = frame_.data() + 1;
  }
  template <std::integral T>
  void put(T value) noexcept {
    assert(at_ + sizeof value <= frame_.data() + frame_.size());
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  void put(Nanos value) noexcept { put(value.v); }
  // REQUIRES: as many were written.
  void take_back(std::size_t bytes) noexcept { at_ -= bytes; }
  Bytes take() noexcept {
    frame_.resize(static_cast<std::size_t>(at_ - frame_.data()));
    return std::move(frame_);
  }

 private:
  Bytes frame_;
  std::byte* at_ = nullptr;
};

// Reads a body. Past its end everything is 0 and `ok` is false from then on.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> body) noexcept : at_(body.data()), end_(body.data() + body.size()) {}

  bool ok() const noexcept { return ok_; }
  bool done() const noexcept { return at_ == end_ || !ok_; }
  std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }

  template <std::integral T>
  T get() noexcept {
    T value{};
    if (!has(sizeof value)) return value;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  Nanos time() noexcept { return {get<std::int64_t>()}; }
  // True, or false from now on, if fewer than `bytes` are left.
  bool has(std::size_t bytes) noexcept {
    ok_ = ok_ && left() >= bytes;
    return ok_;
  }
  bool skip(std::size_t bytes) noexcept {
    if (has(bytes)) at_ += bytes;
    return ok_;
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
  bool ok_ = true;
};

// Times and limits that a state may hold: with these no sum of two of them overflows.
constexpr bool on_time_line(Nanos time) noexcept { return time.v >= 0 && time <= kTimeMax; }

}  // namespace weir::thesis
