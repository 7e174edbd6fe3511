// channel: messages between the driver of a real run and one of its nodes, over a pair of pipes.
//
//   4 bytes length, big-endian (Erlang's {packet, 4}) | message: a tag byte, then little-endian numbers
//
// Neither side ever waits for the other: what a pipe doesn't take stays in an outbox. When one side dies the other
// reads the end of its pipe.
//
// Limits: a message of kMessageMax bytes; kOutboxMax bytes that the other side doesn't read. Past them, Error.
//
// Thread safety: none. Complexity: linear in the bytes.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "weir/machine.hpp"

namespace weir::lab {

static_assert(std::endian::native == std::endian::little, "numbers are copied to and from messages as they are");

inline constexpr std::size_t kMessageMax = std::size_t{1} << 20;
inline constexpr std::size_t kOutboxMax = std::size_t{64} << 20;

// The first byte of a message. `bench/lab/weir_lab_node.erl` speaks the same language.
enum class Tag : std::uint8_t {
  listening = 'L',  // node: its process is there; u16 port on which the others reach it (0: known to all)
  join = 'J',       // driver: u32 number of nodes that are up, then their u32 numbers, this one too
  ready = 'R',      // node: it has joined them
  start = 'S',      // driver: i64 Unix ns from which requests count their times
  requests = 'Q',   // driver: {u32 request, i64 ns due, u32 hits, u16 length, user}, in order of their times
  answers = 'A',    // node: {u32 request, i64 Unix ns, u8 allowed}
  report = 'W',     // node: see Condition
};

// A file descriptor with an owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  bool open() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// Throws Error, as do all functions here that say so, with `what` and the reason of the system.
[[noreturn]] void fail_with_errno(std::string_view what);
// Reads and writes of it don't wait.
void set_nonblocking(int fd);

class Message {
 public:
  explicit Message(Tag tag) { put(static_cast<std::uint8_t>(tag)); }
  template <std::integral T>
  Message& put(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  Message& put(std::string_view text);
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  Bytes bytes_;
};

// Reads a message. Past its end everything is 0 or empty, and `ok` is false from then on.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> message) noexcept : left_(message) {}

  bool ok() const noexcept { return ok_; }
  bool more() const noexcept { return ok_ && !left_.empty(); }
  template <std::integral T>
  T get() noexcept {
    T value{};
    if (const auto bytes = take(sizeof value); ok_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string_view text(std::size_t length) noexcept;

 private:
  std::span<const std::byte> take(std::size_t bytes) noexcept;

  std::span<const std::byte> left_;
  bool ok_ = true;
};

// What a node says of itself, several times a second; counts are of all the time that its process lives.
struct Condition {
  std::int64_t at = 0;           // Unix ns
  std::int64_t restless_at = 0;  // when it was last not quiet, or sent or got data or repair
  bool quiet = false;
  std::uint64_t bytes[3] = {};  // sent, by Traffic
  std::uint64_t messages[3] = {};
  std::uint64_t received = 0;  // messages that got here
  std::uint64_t held_state = 0;
  std::uint64_t held_fixed = 0;
  std::uint64_t records = 0;             // made by weir's machine; 0 of others
  std::vector<std::uint32_t> delays_us;  // of some frames since the last report, from sending to stepping

  Message pack() const;
  static std::optional<Condition> unpack(Unpacker body);
};
inline constexpr std::size_t kDelaysMax = 64;

class Channel {
 public:
  Channel(Fd in, Fd out);

  int in() const noexcept { return in_.get(); }
  int out() const noexcept { return out_.get(); }
  bool waiting() const noexcept { return !outbox_.empty(); }
  // The other side is gone, and all it said was read.
  bool closed() const noexcept { return ended_; }

  // Throws Error when the other side reads nothing any more.
  void send(const Message& message);
  void flush();
  // Reads what is there.
  void fill();
  // The next whole message, valid until `fill`. Throws Error when one is too long.
  std::optional<std::span<const std::byte>> next();

 private:
  Fd in_;
  Fd out_;
  bool ended_ = false;
  Bytes inbox_;
  std::size_t read_ = 0;
  Bytes outbox_;
  std::size_t written_ = 0;
};

}  // namespace weir::lab
