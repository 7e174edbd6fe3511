// peers: the nodes that a replica talks to, and what is decided from what it knows of them alone: who is live, how far
// away they are, whose clock is wrong, what they have acknowledged, and who passes records on where a link is cut.
//
//   A peer is      live      a frame of it came within peer_timeout                  its share of the slack is its own
//                  away      none did; since `away_since`                            what it lacks is kept
//                  behind    away, or back and not yet where the head was then       a part of its absence is still
//                  kept in quarantine     its births lie too far in the future           they are refused for now
//
//   A run of it    introduced <= by membership, where that is asked; `incarnation` is the one it was heard of last.
//                  What a run acknowledged, was given or said ends with it (begin_run).
//
//   Times of a peer are of its own clock where they say `echo`, of this node's otherwise. Its clock's offset and the
//   round trip come from four time stamps, as in NTP (RFC 5905), smoothed but for jumps.
//
//   A cut link, in one direction or both, is known by what both ends say (`unheard`):
//
//                 A --x-- B       A says that it doesn't hear B, or B that it doesn't hear A: of those that hear both,
//                  \     /        and that both hear, the first by number passes the records of each on to the other
//                   first         (find_passes)
//
// What follows from all this for records and copies is the replica's (c_src/core/replica_peers.cpp).
//
// Thread safety: none. Complexity: `find` is a binary search; find_passes is cubic in the peers while one of them says
// that it doesn't hear somebody, else linear, as all others are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "weir/frame.hpp"
#include "weir/machine.hpp"
#include "weir/origins.hpp"
#include "weir/units.hpp"

namespace weir {

struct Peer {
  NodeId node;
  std::uint64_t incarnation = 0;  // 0: not heard of yet
  std::uint64_t introduced = 0;   // the last run that membership accepted
  bool live = true;
  bool behind = false;       // away, or back and catching up
  bool quarantined = false;  // its births lie in the future
  Nanos quarantined_at;
  Nanos heard;
  Nanos away_since = kNever;
  std::uint64_t acked = 0;   // it has all of this node's records up to here
  std::uint64_t spared = 0;  // it refuses those up to here for now: they aren't kept for its sake
  std::uint64_t caught = 0;  // the head when it came back
  Nanos echo;                // the time it last sent, by its clock,
  Nanos echo_at;             // and when that came, by this one
  bool timed = false;
  Nanos offset;
  Nanos round_trip;
  Nanos copied;                                         // when it last was given segments of a copy,
  std::uint64_t given = 0;                              // which (those of a moment ago aren't given twice),
  std::uint64_t owed = 0;                               // and which it waits for
  std::vector<std::pair<std::uint64_t, Nanos>> chunks;  // it was given lately, by what they follow, and when
  std::vector<NodeId> unheard;                          // of the members: those that it doesn't hear, it said
  Nanos unheard_at;
  std::vector<NodeId> passes;  // live peers that its records reach through this node only

  std::uint64_t served() const noexcept { return std::max(acked, spared); }
  // A later run of it, which knows nothing of what its last one had.
  void begin_run(std::uint64_t run) noexcept;

  // Signs of life. False if the heartbeat was overtaken by a later one.
  bool note_beat(const HeartbeatItem& beat, Nanos now, Nanos peer_timeout) noexcept;
  // It has this node's records up to `upto`, as a heartbeat says.
  void acknowledge(std::uint64_t upto, std::uint64_t head) noexcept;
  // Reckons round trip and offset. False if the heartbeat answers none, or one of another time.
  bool measure(const HeartbeatItem& beat, Nanos now) noexcept;
  // Whether it said lately that it doesn't hear that node. (Of a node that hears all again nothing comes any more.)
  bool doesnt_hear(NodeId other, Nanos now, Nanos peer_timeout) const noexcept;

  void begin_quarantine(Nanos now) noexcept;
  // Whether it ends so soon that what was told belongs to the time before the clock was set.
  bool end_quarantine(Nanos now) noexcept;

  // Whether it was given the chunk that follows that record less than `patience` ago: that is on its way.
  bool was_given(std::uint64_t from, Nanos now, Nanos patience);
};

class Peers {
 public:
  Peers(std::span<const NodeId> nodes, Nanos now);

  auto begin() noexcept { return peers_.begin(); }
  auto end() noexcept { return peers_.end(); }
  auto begin() const noexcept { return peers_.begin(); }
  auto end() const noexcept { return peers_.end(); }
  bool empty() const noexcept { return peers_.empty(); }
  std::size_t size() const noexcept { return peers_.size(); }
  // Round and round, by number. REQUIRES: !empty().
  Peer& in_turn(std::size_t i) noexcept { return peers_[i % peers_.size()]; }
  const Peer& in_turn(std::size_t i) const noexcept { return peers_[i % peers_.size()]; }
  Peer* find(NodeId node) noexcept;
  const Peer* find(NodeId node) const noexcept { return const_cast<Peers*>(this)->find(node); }
  std::size_t held() const noexcept { return peers_.capacity() * sizeof(Peer); }

  // REQUIRES: it isn't there. It is taken to live; what was before it, up to `head`, it may have from others.
  void add(NodeId node, std::uint64_t head, Nanos now);
  void remove(NodeId node) noexcept;

  // Life.

  bool any_live() const noexcept {
    return std::any_of(begin(), end(), [](const Peer& peer) { return peer.live; });
  }
  std::size_t away() const noexcept;
  // Live ones of which nothing was heard for so long.
  std::vector<NodeId> silent(Nanos now, Nanos peer_timeout) const;
  // Those that have been away for so long.
  std::vector<NodeId> lost(Nanos now, Nanos forget_after) const;
  // Whether that run is its node's last, and live.
  bool reaches(const OriginId& run) const noexcept;
  // The live one that follows `self` by number, round the ring, and has been heard of. Null if there is none.
  const Peer* next_live(NodeId self) const noexcept;

  // Distance.

  // The mean of half the round trips to live peers, as of the last `measure`; 0 if none is known.
  Nanos delay() const noexcept { return delay_; }
  void measure() noexcept;

  // Records.

  struct Needs {
    std::uint64_t live = 0;           // all live peers have this node's records up to here
    std::uint64_t away = UINT64_MAX;  // those that are away or catching up have them up to here; UINT64_MAX: none is
    bool any_away = false;
  };
  // REQUIRES: nobody has acknowledged more than `head`.
  Needs needs(std::uint64_t head) const noexcept;
  // Up to where all have this node's records whose absence, if there is one, is shorter than `keep`.
  std::uint64_t stable(std::uint64_t head, Nanos now, Nanos keep) const noexcept;
  // Whom to ask for what is missing of an origin: the origin itself, if it can be reached. One that was just lost from
  // sight may come back with all it has: nobody. After that who told of the records, then everyone in turn. So also if
  // the origin was asked in vain: perhaps it hears nothing. Null if there is nobody.
  Peer* whom_to_ask(const Origin& origin, NodeId self, Nanos now, Nanos peer_timeout);

  // Detours.

  // Sets `passes` of all peers.
  void find_passes(NodeId self, Nanos now, Nanos peer_timeout);
  // Whether the last records of somebody may have reached only some: a link is cut, or a peer went away so lately.
  bool any_cut_off(Nanos now, Nanos lately) const noexcept;

 private:
  bool passes_on(const Peer& from, const Peer& to, NodeId self, Nanos now, Nanos peer_timeout) const noexcept;

  std::vector<Peer> peers_;  // by node
  Nanos delay_;
};

}  // namespace weir
