// proxy: the network between real nodes on the BEAM: each connection of the distribution goes through it, and takes
// time.
//
//   node a --connects--> the port for (a, b) [proxy] --connects--> the port on which b listens
//
// Bytes are held back by the delay and jitter that the network draws for each piece, in both directions, and stay in
// order, as TCP has it; while a partition is between the two they wait for its end. Nothing is lost but by a node's
// end.
//
// Limits: kFlowMax bytes a direction; past them the sender is not read, and its socket fills, as on a slow network.
//
// Thread safety: none. Complexity: constant a piece; memory and file descriptors grow with the square of the nodes.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "lab/network.hpp"
#include "lab/real/channel.hpp"

namespace weir::lab {

inline constexpr std::size_t kFlowMax = std::size_t{16} << 20;

// A socket on loopback, bound to a port that the kernel chose. Throws Error.
Fd bound_socket(int type);
std::uint16_t port_of(const Fd& socket);

class Proxy {
 public:
  // Throws Error.
  Proxy(Network& network, std::uint32_t nodes);

  // Where `from` finds `to`.
  std::uint16_t port(std::uint32_t from, std::uint32_t to) const { return doors_[from * nodes_ + to].port; }
  // The node listens there from now on.
  void listens(std::uint32_t node, std::uint16_t port) { targets_[node] = port; }
  // Its connections end.
  void gone(std::uint32_t node);
  // Partitions count their time from there.
  void start(Nanos zero) { zero_ = zero; }

  // What is to be polled, and by when something is due. `serve` gets the same ones back, polled.
  void watch(std::vector<pollfd>& fds) const;
  Nanos wake() const;
  void serve(std::span<const pollfd> fds, Nanos now);

  // That passed, in both directions.
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Door {
    Fd socket;
    std::uint16_t port = 0;
  };
  struct Piece {
    Nanos due;
    Bytes bytes;
    std::size_t written = 0;
  };
  // From ends[i] to ends[1 - i] flows flow[i].
  struct Link {
    std::array<std::uint32_t, 2> nodes;
    std::array<Fd, 2> ends;
    struct Flow {
      std::deque<Piece> pieces;
      std::size_t held = 0;
      bool blocked = false;
    };
    std::array<Flow, 2> flow;
    bool ended = false;
  };

  void accept_from(std::uint32_t from, std::uint32_t to);
  void read_from(Link& link, std::size_t side, Nanos now);
  void pass_on(Link& link, std::size_t side, Nanos now);

  Network& network_;
  std::uint32_t nodes_;
  Nanos zero_ = kNever;
  std::vector<Door> doors_;  // of each pair
  std::vector<std::uint16_t> targets_;
  std::vector<std::unique_ptr<Link>> links_;
  std::uint64_t bytes_ = 0;
};

}  // namespace weir::lab
