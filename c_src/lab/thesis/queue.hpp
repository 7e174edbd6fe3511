// queue: a user's recently admitted requests as the thesis' queue (sections 4.1 and 4.2, listings 4.1-4.5).
//
//   QueueElement       {time of birth, time of death}: the token bucket queue (4.1.2)
//   LogElement         {time of birth}, dead a fixed time c * T later: the sliding log (4.1.1)
//   Marked*       with an identity {node, incarnation, sequence} besides
//
//     birth  1    3    5        merge with     2    4        1    2    3    4    5
//     death  21   41   61                      22   42   ->  21   41   61   81   101      (T = 20)
//
// A queue is sorted by birth. An element is alive at `now` while its death > now; a user is admitted while fewer than c
// are alive. Elements with equal births (and identities, where they have one) are one request (4.2.2).
//
// INVARIANT of a local queue: births ascend, and each death is at least T after the one before it. So the dead ones are
// at the head.
//
// Merging is what the thesis has of a CRDT: two queues' union, each element with the greatest death known of it, then
// each death raised to at least T after its predecessor's. Dead elements are dropped, and the deaths of those that
// followed them keep what they added; a birth that arrives after those around it died is lost (the thesis' data set D).
//
// Faults of the listings, repaired unless `QueueRules::literal`:
//   - 4.1 removes the living from the head and keeps the dead: users are not limited until one has died unseen, after c
//     more they are denied for ever. An element is dead when death <= now.
//   - Births in one millisecond at one node are taken for one request, or, where one of them is known without the
//   other,
//     pair up wrongly and add T at each exchange, for ever. A node moves a birth to the next free millisecond (its
//     death is that of the request's own time, so that a single node decides as a token bucket does).
//   - 4.5's inequality is of a period, not of a frequency: as written it tells the neighbours at once of slow users.
// Repaired always, because with it the nodes don't come to rest:
//   - 4.2 keeps equal births apart in a delta state (`into_local_state` false; here Equals::both), as if all updates
//   were
//     new there. One whose death has changed while it waited is not: there are then two of it, 4.3 puts T between them,
//     the receiver takes it for news, and so on without end. Here the later death replaces the earlier.
//
// Thread safety: values and pure functions. Complexity: each function linear in the elements.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weir/units.hpp"

namespace weir::thesis {

struct QueueElement {
  Nanos birth;
  Nanos death;
  friend constexpr bool operator==(const QueueElement&, const QueueElement&) = default;
};
struct MarkedQueueElement {
  Nanos birth;
  Nanos death;
  std::uint64_t identity = 0;
  friend constexpr bool operator==(const MarkedQueueElement&, const MarkedQueueElement&) = default;
};
struct LogElement {
  Nanos birth;
  friend constexpr bool operator==(const LogElement&, const LogElement&) = default;
};
struct MarkedLogElement {
  Nanos birth;
  std::uint64_t identity = 0;
  friend constexpr bool operator==(const MarkedLogElement&, const MarkedLogElement&) = default;
};

template <class E>
inline constexpr bool kHasDeath = requires(E e) {
  e.death;
};
template <class E>
inline constexpr bool kHasIdentity = requires(E e) {
  e.identity;
};

template <class E>
constexpr bool before(const E& a, const E& b) noexcept {
  if constexpr (kHasIdentity<E>) {
    return a.birth != b.birth ? a.birth < b.birth : a.identity < b.identity;
  } else {
    return a.birth < b.birth;
  }
}

template <class E>
constexpr Nanos death_of(const E& element, const Policy& policy) noexcept {
  if constexpr (kHasDeath<E>) {
    return element.death;
  } else {
    return element.birth + policy.span();
  }
}

// One emission interval after `death`.
constexpr Nanos next_death(const Policy& policy, Nanos death) noexcept {
  return std::min(death + policy.interval, kTimeMax);
}

struct QueueRules {
  std::uint32_t margin = 0;  // dead elements that a refill keeps
  bool literal = false;      // with the listings' faults
};

// Of elements that are known on both sides: one, with the greater death; or, as listing 4.2 does for delta states,
// both.
enum class Equals : std::uint8_t { one, both };

// Listings 4.2 and 4.3. `result` becomes the merged queue, `updates` what it has that `local` has not: new elements and
// changed deaths. Both are overwritten. `last`, if any, is what comes before both queues.
// REQUIRES: both queues sorted; neither lies in `result` or `updates`.
template <class E>
void merge(const Policy& policy, std::span<const E> local, std::span<const E> other, Equals equals,
           std::vector<E>& result, std::vector<E>& updates, const E* last = nullptr) {
  result.clear();
  updates.clear();
  result.reserve(local.size() + other.size());
  const auto append = [&](E element, const E* known) {
    if constexpr (kHasDeath<E>) {
      const E* const previous = result.empty() ? last : &result.back();
      if (previous != nullptr) element.death = std::max(element.death, next_death(policy, previous->death));
    }
    if (known == nullptr || !(*known == element)) updates.push_back(element);
    result.push_back(element);
  };
  const E* mine = local.data();
  const E* const mine_end = mine + local.size();
  const E* theirs = other.data();
  const E* const theirs_end = theirs + other.size();
  while (mine != mine_end && theirs != theirs_end) {
    if (before(*mine, *theirs)) {
      append(*mine, mine);
      ++mine;
    } else if (equals == Equals::both || before(*theirs, *mine)) {
      append(*theirs, nullptr);
      ++theirs;
    } else {
      append(death_of(*mine, policy) < death_of(*theirs, policy) ? *theirs : *mine, mine);
      ++mine;
      ++theirs;
    }
  }
  for (; mine != mine_end; ++mine) append(*mine, mine);
  for (; theirs != theirs_end; ++theirs) append(*theirs, nullptr);
}

// The same for a queue that is changed in place: what is older than all of `other` is not touched.
// REQUIRES: `other` not empty; none of them lies in another.
template <class E>
void merge_into(const Policy& policy, std::vector<E>& queue, std::span<const E> other, Equals equals,
                std::vector<E>& scratch, std::vector<E>& updates) {
  const auto from = std::lower_bound(queue.begin(), queue.end(), other.front(), before<E>);
  const auto kept = static_cast<std::size_t>(from - queue.begin());
  const E* const last = kept == 0 ? nullptr : &queue[kept - 1];
  merge<E>(policy, std::span<const E>(queue).subspan(kept), other, equals, scratch, updates, last);
  if (updates.empty()) return;
  queue.resize(kept);
  queue.insert(queue.end(), scratch.begin(), scratch.end());
}

// How many elements at the head are dead.
template <class E>
std::size_t count_dead(const Policy& policy, std::span<const E> queue, Nanos now) noexcept {
  const auto alive = std::find_if(queue.begin(), queue.end(), [&](const E& e) { return death_of(e, policy) > now; });
  return static_cast<std::size_t>(alive - queue.begin());
}

// Listing 4.1: how many elements a refill removes from the head.
template <class E>
std::size_t count_refill(const Policy& policy, std::span<const E> queue, Nanos now, const QueueRules& rules) noexcept {
  if (rules.literal && kHasDeath<E>) {
    const auto dead = std::find_if(queue.begin(), queue.end(), [&](const E& e) { return death_of(e, policy) <= now; });
    return static_cast<std::size_t>(dead - queue.begin());
  }
  const std::size_t dead = count_dead(policy, queue, now);
  return dead - std::min<std::size_t>(dead, rules.margin);
}

// Gives memory back once three quarters of it are empty.
template <class E>
void trim(std::vector<E>& queue) {
  if (queue.capacity() >= 16 && queue.size() < queue.capacity() / 4) queue.shrink_to_fit();
}

template <class E>
void refill(const Policy& policy, std::vector<E>& queue, Nanos now, const QueueRules& rules) {
  const std::size_t count = count_refill<E>(policy, queue, now, rules);
  queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
  trim(queue);
}

// Removes from `queue` what is in `other`, deaths included ("duplicates ... are removed", section 4.2.1).
// REQUIRES: both sorted.
template <class E>
void remove_duplicates(std::vector<E>& queue, std::span<const E> other) {
  auto theirs = other.begin();
  const auto known = [&](const E& element) {
    while (theirs != other.end() && before(*theirs, element)) ++theirs;
    auto same = theirs;
    while (same != other.end() && !before(element, *same) && !(*same == element)) ++same;
    return same != other.end() && *same == element;
  };
  // `remove_if` with a stateful predicate: the standard does not promise the order, a loop does.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    if (!known(queue[i])) queue[kept++] = queue[i];
  }
  queue.resize(kept);
}

// Listing 4.5: whether the last `window` births are closer to each other than `threshold` on average.
// REQUIRES: window >= 1, 0 <= threshold.
template <class E>
bool analyse(std::span<const E> queue, std::uint32_t window, Nanos threshold, bool literal = false) noexcept {
  if (queue.size() < window) return false;
  const Nanos period{(queue.back().birth - queue[queue.size() - window].birth).v / window};
  return literal ? period > threshold : period < threshold;
}

// A user's local queue: decides, merges.
template <class E>
class UserQueue {
 public:
  std::span<const E> elements() const noexcept { return elements_; }
  bool empty() const noexcept { return elements_.empty(); }
  static std::size_t heap() noexcept { return 0; }  // the machine counts it, packed
  // The tail is where merges happen.
  void prefetch() const noexcept {
    if (!elements_.empty()) __builtin_prefetch(&elements_.back());
  }

  // Elements that take a token at `now`. With listing 4.1's fault: all.
  Tokens level(const Policy& policy, Nanos now, const QueueRules& rules = {}) const noexcept {
    const std::size_t dead = rules.literal && kHasDeath<E> ? 0 : count_dead<E>(policy, elements_, now);
    return {static_cast<std::int64_t>(elements_.size() - dead)};
  }

  void refill(const Policy& policy, Nanos now, const QueueRules& rules) {
    thesis::refill(policy, elements_, now, rules);
  }

  // Refills; whether `hits` are admitted at `now`, and if so adds them. REQUIRES: hits >= 1, 0 <= now < 2^61.
  bool accept(const Policy& policy, Nanos now, Tokens hits = {1}, const QueueRules& rules = {}) {
    refill(policy, now, rules);
    if (level(policy, now, rules) > policy.capacity - hits) return false;
    std::vector<E> updates;
    add(policy, now, hits, rules, 0, updates);
    return true;
  }

  // Adds `hits` births at `now`, numbered from `identity` on, and appends to `updates` what is new or changed.
  void add(const Policy& policy, Nanos now, Tokens hits, const QueueRules& rules, std::uint64_t identity,
           std::vector<E>& updates) {
    for (std::int64_t i = 0; i < hits.v; ++i) {
      E element{};
      element.birth = kHasIdentity<E> || rules.literal ? now : free_birth(now);
      if constexpr (kHasIdentity<E>) element.identity = identity + static_cast<std::uint64_t>(i);
      insert(policy, now, element, updates);
    }
  }

  // Merges what another node sent, and refills. `updates` (overwritten) is what is new or changed here and was not
  // removed by the refill; `scratch` is overwritten.
  void merge(const Policy& policy, Nanos now, std::span<const E> received, const QueueRules& rules,
             std::vector<E>& updates, std::vector<E>& scratch) {
    updates.clear();
    if (!received.empty()) merge_into<E>(policy, elements_, received, Equals::one, scratch, updates);
    const std::size_t all = elements_.size();
    refill(policy, now, rules);
    // What a refill removes here it would remove from the delta states; with a margin it must not travel on from node
    // to node, each of which would drop it again.
    if (elements_.size() == all) return;
    const auto kept = std::find_if(updates.begin(), updates.end(),
                                   [&](const E& e) { return !elements_.empty() && !before(e, elements_.front()); });
    updates.erase(updates.begin(), kept);
  }

 private:
  static constexpr Nanos kMillisecond{1'000'000};

  // The first millisecond from `now` on at which nothing is born.
  Nanos free_birth(Nanos now) const noexcept {
    Nanos birth = now;
    auto at = std::lower_bound(elements_.begin(), elements_.end(), now,
                               [](const E& e, Nanos time) { return e.birth < time; });
    for (; at != elements_.end() && at->birth <= birth; ++at) {
      if (at->birth == birth) birth = birth + kMillisecond;
    }
    return birth;
  }

  // Equation 4.2 for an element at the tail; where another node's clock runs ahead the place is further up, and the
  // deaths behind it move on, as in a merge.
  void insert(const Policy& policy, Nanos now, E element, std::vector<E>& updates) {
    auto at = std::upper_bound(elements_.begin(), elements_.end(), element, before<E>);
    if constexpr (kHasDeath<E>) {
      const Nanos from = at == elements_.begin() ? now : std::max(now, std::prev(at)->death);
      element.death = next_death(policy, from);
    }
    at = elements_.insert(at, element);
    updates.push_back(element);
    if constexpr (kHasDeath<E>) {
      for (auto later = at + 1; later != elements_.end(); ++later) {
        const Nanos earliest = next_death(policy, std::prev(later)->death);
        if (later->death >= earliest) break;
        later->death = earliest;
        updates.push_back(*later);
      }
    }
  }

  std::vector<E> elements_;
};

using QueueState = UserQueue<QueueElement>;
using SlidingLogState = UserQueue<LogElement>;

}  // namespace weir::thesis
