// claims: hits above the share that ask the other nodes before they are admitted, and what of others' asking counts
// here meanwhile.
//
//     own      asked here; wait until each of the nodes that were asked has acknowledged, or for their deadline
//     others'  asked at another node; their hits count here as if they were admitted, until that node says that it has
//              decided, or for their time
//
//   Older claims of a key go before younger ones, at all nodes alike: by their time, then by the number of the node.
//   A node's own claims go in the order in which they were made.
//
// The numbers of own claims ascend from 1. What is said to the other nodes, and what the hits are admitted on, is the
// replica's (c_src/core/replica_claims.cpp).
//
// Sums of hits end at kAskedMost: more than any capacity, and small enough that one can be added to another.
//
// Thread safety: none. Complexity: all linear in the claims that are held (<= 5 times what the caller allows of own
// ones); `of_others` constant while there are none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

// An own one.
struct Claim {
  std::uint64_t id = 0;
  Ask asked;
  Nanos time;
  Nanos deadline;
  std::vector<NodeId> waiting;  // for these
};

// Another node's.
struct OthersClaim {
  NodeId node;
  std::uint64_t id = 0;
  LimiterId limiter;
  KeyHash key;
  Tokens hits;
  Nanos time;     // by its node's clock
  Nanos expires;  // by this node's
};

class Claims {
 public:
  // Of what is asked for a key at the same time no more is counted.
  static constexpr Tokens kAskedMost{kSpanMax.v + 1};
  // Of others' claims so many times as many are held as of own ones: they come from many nodes.
  static constexpr std::size_t kOthersTimes = 4;

  // Own ones.

  // Asks the nodes `waiting`, and returns the claim's number. None if there are `most` own claims already, or nobody to
  // ask: then the hits are to be decided at once.
  std::optional<std::uint64_t> make(const Ask& asked, Nanos now, Nanos timeout, std::vector<NodeId> waiting,
                                    std::size_t most);
  // A node has acknowledged. Returns the claim if it was the last that was waited for: it is to be decided, and is no
  // longer here.
  std::optional<Claim> acknowledged(NodeId node, std::uint64_t id);
  // Takes out the first claim that waits for nobody, or whose deadline has come.
  std::optional<Claim> take_expired(Nanos now);
  // A node that went away is not waited for. (Claims that wait for nobody then are taken out by take_expired.)
  void dont_wait_for(NodeId node) noexcept;
  bool waits() const noexcept { return !own_.empty(); }
  // The earliest of own claims; kNever if there are none.
  Nanos deadline() const noexcept;

  // Others'.

  // False if it is held already, or if there is no room beside `most` own ones.
  bool count(const OthersClaim& claim, std::size_t most);
  // What others ask of a key.
  Tokens of_others(LimiterId limiter, KeyHash key) const noexcept {
    Tokens sum;
    for (const OthersClaim& claim : others_) {
      if (claim.limiter == limiter && claim.key == key) sum = add(sum, claim.hits);
    }
    return sum;
  }
  // Those that count no longer: one that its node has decided, or all whose time is over.
  std::vector<OthersClaim> end(NodeId node, std::uint64_t id);
  std::vector<OthersClaim> end_expired(Nanos now);

  // Both.

  // What is asked of the key by claims that go before this own one, which is not among those held.
  Tokens before(const Claim& claim, NodeId self) const noexcept;
  // A node was removed: nobody waits for it, and what it asked doesn't count.
  void forget(NodeId node) noexcept;
  // A key goes by another hash from now on.
  void rename(LimiterId limiter, KeyHash before, KeyHash key) noexcept;
  std::size_t held() const noexcept {
    return own_.capacity() * sizeof(Claim) + others_.capacity() * sizeof(OthersClaim);
  }

 private:
  static Tokens add(Tokens sum, Tokens hits) noexcept { return std::min(kAskedMost, sum + hits); }
  template <class Over>
  std::vector<OthersClaim> end_if(Over over);

  std::vector<Claim> own_;  // in the order in which they were made
  std::vector<OthersClaim> others_;
  std::uint64_t made_ = 0;
};

}  // namespace weir
