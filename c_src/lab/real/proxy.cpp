#include "lab/real/proxy.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <span>

namespace weir::lab {
namespace {

constexpr std::size_t kReadBytes = 65'536;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void hasten(int fd) {
  const int on = 1;
  static_cast<void>(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
}

}  // namespace

Fd bound_socket(int type) {
  Fd socket(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
  if (!socket.open()) fail_with_errno("a socket");
  const sockaddr_in any = loopback(0);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0)
    fail_with_errno("a port on 127.0.0.1");
  return socket;
}

std::uint16_t port_of(const Fd& socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) fail_with_errno("a socket's port");
  return ntohs(address.sin_port);
}

Proxy::Proxy(Network& network, std::uint32_t nodes)
    : network_(network), nodes_(nodes), doors_(std::size_t{nodes} * nodes), targets_(nodes, 0) {
  for (std::uint32_t from = 0; from < nodes; ++from) {
    for (std::uint32_t to = 0; to < nodes; ++to) {
      if (from == to) continue;
      Door& door = doors_[std::size_t{from} * nodes + to];
      door.socket = bound_socket(SOCK_STREAM);
      if (listen(door.socket.get(), 16) != 0) fail_with_errno("a port to listen on");
      set_nonblocking(door.socket.get());
      door.port = port_of(door.socket);
    }
  }
}

void Proxy::gone(std::uint32_t node) {
  targets_[node] = 0;
  std::erase_if(links_, [&](const auto& link) { return link->nodes[0] == node || link->nodes[1] == node; });
}

void Proxy::watch(std::vector<pollfd>& fds) const {
  for (const Door& door : doors_) fds.push_back({door.socket.get(), POLLIN, 0});
  for (const auto& link : links_) {
    for (std::size_t side = 0; side < 2; ++side) {
      short wanted = 0;
      if (link->flow[side].held < kFlowMax) wanted |= POLLIN;
      if (link->flow[1 - side].blocked) wanted |= POLLOUT;
      fds.push_back({link->ends[side].get(), wanted, 0});
    }
  }
}

Nanos Proxy::wake() const {
  Nanos soonest = kNever;
  for (const auto& link : links_) {
    for (const Link::Flow& flow : link->flow) {
      if (!flow.pieces.empty() && !flow.blocked) soonest = std::min(soonest, flow.pieces.front().due);
    }
  }
  return soonest;
}

void Proxy::serve(std::span<const pollfd> fds, Nanos now) {
  std::size_t next = doors_.size();
  for (const auto& link : links_) {
    for (std::size_t side = 0; side < 2; ++side) {
      const short events = fds[next++].revents;
      if ((events & POLLOUT) != 0) link->flow[1 - side].blocked = false;
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(*link, side, now);
    }
    for (std::size_t side = 0; side < 2; ++side) pass_on(*link, side, now);
  }
  std::erase_if(links_, [](const auto& link) { return link->ended; });
  for (std::uint32_t from = 0; from < nodes_; ++from) {
    for (std::uint32_t to = 0; to < nodes_; ++to) {
      if (fds[std::size_t{from} * nodes_ + to].revents != 0) accept_from(from, to);
    }
  }
}

// Who connects to a node that isn't there is told so by the end of the connection.
void Proxy::accept_from(std::uint32_t from, std::uint32_t to) {
  Fd near(
      accept4(doors_[std::size_t{from} * nodes_ + to].socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!near.open() || targets_[to] == 0) return;
  Fd far(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!far.open()) fail_with_errno("a socket");
  const sockaddr_in address = loopback(targets_[to]);
  // To loopback: it is there at once, or it isn't.
  if (connect(far.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
  set_nonblocking(far.get());
  hasten(near.get());
  hasten(far.get());
  auto link = std::make_unique<Link>();
  link->nodes = {from, to};
  link->ends = {std::move(near), std::move(far)};
  links_.push_back(std::move(link));
}

void Proxy::read_from(Link& link, std::size_t side, Nanos now) {
  Link::Flow& flow = link.flow[side];
  Bytes bytes(kReadBytes);
  const ssize_t got = recv(link.ends[side].get(), bytes.data(), bytes.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    link.ended = true;
    return;
  }
  bytes.resize(static_cast<std::size_t>(got));
  bytes.shrink_to_fit();
  const std::uint32_t from = link.nodes[side];
  const std::uint32_t to = link.nodes[1 - side];
  // Before the start the nodes meet without delay.
  Nanos due = now;
  if (zero_ != kNever) {
    due = zero_ + network_.uncut(from, to, now - zero_);
    const Network::Fate fate = network_.send(from, to, due - zero_);
    due = due + fate.delay[0];
  }
  if (!flow.pieces.empty()) due = std::max(due, flow.pieces.back().due);
  flow.held += bytes.size();
  flow.pieces.push_back({due, std::move(bytes)});
}

void Proxy::pass_on(Link& link, std::size_t side, Nanos now) {
  Link::Flow& flow = link.flow[side];
  while (!flow.pieces.empty() && !flow.blocked && !link.ended && flow.pieces.front().due <= now) {
    Piece& piece = flow.pieces.front();
    const ssize_t wrote = send(link.ends[1 - side].get(), piece.bytes.data() + piece.written,
                               piece.bytes.size() - piece.written, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      flow.blocked = errno == EAGAIN;
      link.ended = !flow.blocked;
      return;
    }
    piece.written += static_cast<std::size_t>(wrote);
    bytes_ += static_cast<std::size_t>(wrote);
    if (piece.written < piece.bytes.size()) continue;
    flow.held -= piece.bytes.size();
    flow.pieces.pop_front();
  }
}

}  // namespace weir::lab
