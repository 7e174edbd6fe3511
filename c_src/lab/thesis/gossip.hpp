// gossip: what counter, queue and sliding log have in common: a gossip clock, neighbours, state copies.
//
// Each gossip interval (its phase is drawn from the seed) a node picks one neighbour and sends it its delta state,
// which is then empty; an empty one sends nothing. A returning node (incarnation > 1, Options::copy) asks a random
// neighbour for its whole state, and another one each gossip interval until one has answered; it merges what comes. It
// tells no one of what it copied, since the one who sent it has it in its own delta states for those who lack it.
//
// Nodes that register later get delta states where all nodes are each other's neighbours; those that left are not
// gossiped to any more.
//
// Thread safety: none. Complexity: a step costs what the design says; a tick is linear in what is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lab/common/options.hpp"
#include "lab/thesis/random.hpp"
#include "lab/thesis/wire.hpp"
#include "weir/machine.hpp"

namespace weir::thesis {

class Gossip : public Machine {
 public:
  void step(const Event& event, Nanos now, Effects& effects) final;
  Nanos wake() const noexcept final { return wake_; }
  bool quiet() const noexcept final { return !awaits_copy_ && nothing_pending(); }
  Held held() const final;

 protected:
  struct Neighbour {
    NodeId id;
    bool gone = false;
  };

  Gossip(const lab::Options& options, const lab::Place& place);

  // What a design does.
  virtual bool decide(KeyHash key, Tokens hits, Nanos now, Effects& effects) = 0;
  // Whether the body of a gossip, urgent or copy frame is well formed; appends its users to `keys`.
  virtual bool valid(Reader body, std::vector<KeyHash>& keys) const = 0;
  // Merges a valid body, whose users are `frame_keys()`. `sender`: the neighbour that it came from, if it is one.
  virtual void receive(FrameKind kind, std::optional<std::size_t> sender, Reader body, Nanos now, Effects& effects) = 0;
  // The delta state for a neighbour as a frame, which empties it. REQUIRES: something waits for it.
  virtual Bytes gossip_frame(std::size_t neighbour) = 0;
  virtual Bytes copy_frame() const = 0;
  virtual bool pending(std::size_t neighbour) const = 0;
  virtual bool nothing_pending() const = 0;
  virtual void neighbour_added() = 0;
  virtual void neighbour_gone(std::size_t neighbour) = 0;
  virtual std::size_t choose();
  virtual Held held_by_design() const = 0;

  const lab::Options& options() const noexcept { return options_; }
  const Policy& policy() const noexcept { return options_.policy; }
  NodeId self() const noexcept { return self_; }
  const std::vector<Neighbour>& neighbours() const noexcept { return neighbours_; }
  const std::vector<NodeId>& members() const noexcept { return members_; }
  std::size_t position() const noexcept { return position_; }
  Random& random() noexcept { return random_; }
  std::span<const KeyHash> frame_keys() const noexcept { return frame_keys_; }

  static void send(Effects& effects, NodeId to, Traffic traffic, Bytes frame) {
    effects.sends.push_back({to, effects.add_frame(std::move(frame)), traffic});
  }

 private:
  void tick(Nanos now, Effects& effects);
  void arrived(const Arrival& arrival, Nanos now, Effects& effects);
  void registered(NodeId node);
  void unregistered(NodeId node);
  std::optional<std::size_t> index_of(NodeId node) const noexcept;
  std::size_t random_neighbour() noexcept;
  std::size_t live_neighbours() const noexcept;

  lab::Options options_;
  NodeId self_;
  std::vector<NodeId> members_;
  std::size_t position_ = 0;
  std::vector<Neighbour> neighbours_;
  bool full_mesh_ = false;
  bool awaits_copy_ = false;
  Random random_;
  Nanos wake_{kNever};
  std::vector<KeyHash> frame_keys_;
};

}  // namespace weir::thesis
