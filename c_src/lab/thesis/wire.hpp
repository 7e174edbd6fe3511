// wire: frames in as few bytes as `interval` takes care to use in its own: LEB128 for what is mostly small.
//
// A frame is one byte that says what it is (high four bits: the version; low four: the kind), then what the design says
// of each user. A key hash is 8 bytes. T is the emission interval, which all nodes know.
//
//   counter         the nodes that count in this frame (a set, and 4 bytes for each), then for each user
//                   8 key, limit, 8 refill time stamp, a set of nodes, a count for each of them
//   queue           8 key, n, n x (birth, death [, 8 identity])
//   sliding log     8 key, n, n x (birth [, 8 identity])
//   split+rebalance 8 key, demand
//
//   time      a birth as the step from the birth before it in the frame; a death as the step from the one before it in
//             its queue, of the first from its birth. Births of a user who speeds are near each other, and deaths T
//             apart: 5 bytes and 1.
//   steps     of limits and deaths: 2 x the step in T where it is whole, else 1 and the step in nanoseconds
//   set       of the sender's members by position, a bit each. Nodes are named once in a frame, not with each user
//
// Frames that ask for a state copy are the first byte alone.
//
// Thread safety: values. Complexity: linear in the bytes.
#pragma once

#include <bit>
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

inline constexpr std::uint8_t kWireVersion = 2;
constexpr std::byte frame_head(FrameKind kind) noexcept {
  return static_cast<std::byte>((kWireVersion << 4U) | static_cast<std::uint8_t>(kind));
}
constexpr std::optional<FrameKind> frame_kind(std::byte head) noexcept {
  const auto value = static_cast<std::uint8_t>(head);
  const std::uint8_t kind = value & 0x0fU;
  if (value >> 4U != kWireVersion || kind > static_cast<std::uint8_t>(FrameKind::demand)) return std::nullopt;
  return static_cast<FrameKind>(kind);
}

constexpr std::uint64_t zigzag(std::int64_t value) noexcept {
  return (static_cast<std::uint64_t>(value) << 1U) ^ static_cast<std::uint64_t>(value >> 63U);
}
constexpr std::int64_t unzigzag(std::uint64_t value) noexcept {
  return static_cast<std::int64_t>(value >> 1U) ^ -static_cast<std::int64_t>(value & 1U);
}
constexpr std::size_t varint_size(std::uint64_t value) noexcept {
  return (static_cast<std::size_t>(std::bit_width(value | 1U)) + 6) / 7;
}

// A difference of times, in whole intervals if it is that. REQUIRES: interval > 0.
struct Step {
  std::uint64_t first = 1;
  std::uint64_t rest = 0;  // follows if `first` is 1

  constexpr Step(std::int64_t step, Nanos interval) noexcept {
    const std::uint64_t whole = zigzag(step / interval.v);
    if (step % interval.v == 0 && whole <= UINT64_MAX / 2) {
      first = whole << 1U;
    } else {
      rest = zigzag(step);
    }
  }
  constexpr std::size_t size() const noexcept { return varint_size(first) + (first == 1 ? varint_size(rest) : 0); }
};

// Appends to a frame, or to any bytes.
class Writer {
 public:
  Writer() = default;
  // `body`: the bytes behind the head, about.
  explicit Writer(FrameKind kind, std::size_t body = 0) {
    bytes_.reserve(1 + body);
    bytes_.push_back(frame_head(kind));
  }
  void byte(std::uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  template <std::integral T>
  void fixed(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(&bytes_[at], &value, sizeof value);
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7U) byte(static_cast<std::uint8_t>(value | 0x80U));
    byte(static_cast<std::uint8_t>(value));
  }
  void step(const Step& step) {
    varint(step.first);
    if (step.first == 1) varint(step.rest);
  }
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::size_t capacity() const noexcept { return bytes_.capacity(); }
  void clear() noexcept { bytes_.clear(); }
  Bytes take() noexcept { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// Reads a body. Past its end, and after a number that can't be, everything is 0 and `ok` is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> body) noexcept : at_(body.data()), end_(body.data() + body.size()) {}

  bool ok() const noexcept { return ok_; }
  bool done() const noexcept { return at_ == end_ || !ok_; }
  std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }
  void fail() noexcept { ok_ = false; }

  template <std::integral T>
  T fixed() noexcept {
    T value{};
    if (!has(sizeof value)) return value;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::uint64_t varint() noexcept {
    if (at_ != end_ && std::to_integer<unsigned>(*at_) < 0x80) return std::to_integer<std::uint64_t>(*at_++);
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto next = fixed<std::uint8_t>();
      value |= std::uint64_t{next & 0x7fU} << shift;
      if (next < 0x80) {
        if (shift == 63 && next > 1) break;
        return value;
      }
    }
    fail();
    return 0;
  }
  // A number of parts that follow, each of at least `least` bytes: what can't be there isn't made room for.
  std::size_t count(std::size_t least) noexcept {
    const std::uint64_t value = varint();
    if (value > left() / least) fail();
    return ok_ ? static_cast<std::size_t>(value) : 0;
  }
  Nanos time() noexcept { return on_line(fixed<std::int64_t>()); }
  // The time that lies a Step after `base`. REQUIRES: `base` on the time line.
  Nanos step(Nanos base, Nanos interval) noexcept {
    const std::uint64_t first = varint();
    if (first == 1) return step(base);
    std::int64_t step = unzigzag(first >> 1U);
    if ((first & 1U) != 0 || __builtin_mul_overflow(step, interval.v, &step)) fail();
    return from(base, step);
  }
  Nanos step(Nanos base) noexcept { return from(base, unzigzag(varint())); }
  std::span<const std::byte> raw(std::size_t bytes) noexcept {
    if (!has(bytes)) return {};
    at_ += bytes;
    return {at_ - bytes, bytes};
  }

 private:
  // True, or false from now on, if fewer than `bytes` are left.
  bool has(std::size_t bytes) noexcept {
    ok_ = ok_ && left() >= bytes;
    return ok_;
  }
  Nanos from(Nanos base, std::int64_t step) noexcept {
    if (__builtin_add_overflow(base.v, step, &step)) fail();
    return on_line(step);
  }
  // Times and limits that a state may hold: with these no sum of two of them overflows.
  Nanos on_line(std::int64_t time) noexcept {
    ok_ = ok_ && time >= 0 && time <= kTimeMax.v;
    return {ok_ ? time : 0};
  }

  const std::byte* at_;
  const std::byte* end_;
  bool ok_ = true;
};

}  // namespace weir::thesis
