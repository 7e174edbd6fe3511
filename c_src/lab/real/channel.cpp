#include "lab/real/channel.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "lab/error.hpp"

namespace weir::lab {

void fail_with_errno(std::string_view what) {
  throw Error(fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

void set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) fail_with_errno("a file descriptor that must not block");
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Fd::release() noexcept { return std::exchange(fd_, -1); }

void Fd::reset() noexcept {
  if (fd_ >= 0) close(release());
}

Message& Message::put(std::string_view text) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
  bytes_.insert(bytes_.end(), bytes, bytes + text.size());
  return *this;
}

std::span<const std::byte> Unpacker::take(std::size_t bytes) noexcept {
  ok_ = ok_ && left_.size() >= bytes;
  if (!ok_) return {};
  const auto taken = left_.first(bytes);
  left_ = left_.subspan(bytes);
  return taken;
}

std::string_view Unpacker::text(std::size_t length) noexcept {
  const auto bytes = take(length);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Message Condition::pack() const {
  Message message(Tag::report);
  message.put(at).put(restless_at).put(static_cast<std::uint8_t>(quiet));
  for (std::size_t kind = 0; kind < std::size(bytes); ++kind) message.put(bytes[kind]).put(messages[kind]);
  message.put(received).put(held_state).put(held_fixed).put(records);
  for (const std::uint32_t delay : delays_us) message.put(delay);
  return message;
}

std::optional<Condition> Condition::unpack(Unpacker body) {
  Condition said;
  said.at = body.get<std::int64_t>();
  said.restless_at = body.get<std::int64_t>();
  said.quiet = body.get<std::uint8_t>() != 0;
  for (std::size_t kind = 0; kind < std::size(said.bytes); ++kind) {
    said.bytes[kind] = body.get<std::uint64_t>();
    said.messages[kind] = body.get<std::uint64_t>();
  }
  said.received = body.get<std::uint64_t>();
  said.held_state = body.get<std::uint64_t>();
  said.held_fixed = body.get<std::uint64_t>();
  said.records = body.get<std::uint64_t>();
  while (body.more()) said.delays_us.push_back(body.get<std::uint32_t>());
  if (!body.ok()) return std::nullopt;
  return said;
}

Channel::Channel(Fd in, Fd out) : in_(std::move(in)), out_(std::move(out)) {
  set_nonblocking(in_.get());
  set_nonblocking(out_.get());
}

void Channel::send(const Message& message) {
  const auto bytes = message.bytes();
  if (bytes.size() > kMessageMax) throw Error("a message to or from a node is too long");
  if (outbox_.size() - written_ + bytes.size() > kOutboxMax)
    throw Error("a node doesn't read what it is asked any more");
  const auto length = static_cast<std::uint32_t>(bytes.size());
  for (unsigned shift = 32; shift > 0; shift -= 8) outbox_.push_back(static_cast<std::byte>(length >> (shift - 8)));
  outbox_.insert(outbox_.end(), bytes.begin(), bytes.end());
}

// A pipe that is broken is noticed where it is read.
void Channel::flush() {
  while (written_ < outbox_.size()) {
    const ssize_t wrote = write(out_.get(), outbox_.data() + written_, outbox_.size() - written_);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) {
      outbox_.erase(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(std::exchange(written_, 0)));
      return;
    }
    if (wrote < 0) break;
    written_ += static_cast<std::size_t>(wrote);
  }
  outbox_.clear();
  written_ = 0;
}

void Channel::fill() {
  inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(read_));
  read_ = 0;
  std::array<std::byte, 65'536> piece{};
  while (inbox_.size() <= kMessageMax) {
    const ssize_t got = read(in_.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      ended_ = true;
      return;
    }
    inbox_.insert(inbox_.end(), piece.begin(), piece.begin() + got);
  }
}

std::optional<std::span<const std::byte>> Channel::next() {
  const std::size_t left = inbox_.size() - read_;
  if (left < 4) return std::nullopt;
  std::size_t length = 0;
  for (std::size_t i = 0; i < 4; ++i) length = length << 8U | std::to_integer<std::size_t>(inbox_[read_ + i]);
  if (length == 0 || length > kMessageMax) throw Error("a node says what can't be understood");
  if (left < 4 + length) return std::nullopt;
  const std::span<const std::byte> message(inbox_.data() + read_ + 4, length);
  read_ += 4 + length;
  return message;
}

}  // namespace weir::lab
