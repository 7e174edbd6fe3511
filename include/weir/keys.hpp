// keys: the replicated keys of a node: their states in few bytes, and a map of them in segments.
//
// A key's state holds two interval sets: `published`, what the other nodes know or have been sent, and `unsent`, own
// births that they don't know yet; the TAT of their union, on which the node decides; and how fast births came lately,
// here and elsewhere. Most keys were touched once, or some time ago: they have births in one of the sets only, whose
// end is the TAT, and rates that are one touch or nothing. Such a key is *small* if that set has one interval, *packed*
// if it has several. Whatever else it is makes a key *large*, and `rest` takes that back when it has passed. Nobody
// outside can tell the three apart.
//
//   Keys: 64 segments by the upper bits of the key's hash, each an open-addressing table of slots and its large blocks
//   (linear probing, erased by shifting back; at most nine tenths full, grown by a sixteenth)
//
//   slot, 24 bytes    key 8    time 8    count 4   limiter 2, and 16 bits: period, counts, due, published, large,
//   packed
//
//     empty place     0
//     small           hash     start     births    no birth at all: count = 0
//     packed          hash     pointer   sizes --> | intervals in bytes |
//     large           hash     TAT       block     .--------------------------------------------.
//                                          '-----> | published 16 | unsent 16 | own 4 | remote 4 |  40 bytes
//                                                  '--------------------------------------------'
//   StoredSet, 16 bytes:   count > 0   {start, count}         one interval
//                          count = 0   empty
//                          count < 0   {pointer, -sizes}      several intervals in bytes, on the heap
//
//   intervals in bytes     start 8, count (, step from the start before, count)*      8, LEB128; room up to a multiple
//   sizes                  their number in the low 8 bits, their bytes above          of 8
//
// INVARIANTS. A small or packed key has births in `published` or in `unsent` alone (the bit says which); a small one's
// are fewer than 2^32. Its TAT is the end of its last interval. If `counts` says so, all births of a small key came in
// one touch, in the period of that number: its rates are computed from that, so that the first touch is not lost when a
// second one makes the key large. Each block belongs to one large key of its segment, or to the segment's list of free
// ones. A key's limiter is in use as long as the key is there.
//
// Order: each table has a salt of its own. What comes in the order in which one node's table was walked (a copy of its
// state) would else fill the front of another's, with searches as long as what is there. Beyond the salt the order
// depends on nothing but the keys and the order of insertion, so all that walks over them is deterministic; segments
// are the unit of state copies, the same on all nodes.
//
// Thread safety: none (a replica's own). Complexity: constant expected; a growth is linear in its segment.
// Memory: 26.7 to 28.3 bytes per small key in large tables (on average 27.5), 40 to 50 more per large one, and per set
// of several intervals a heap block of 9 to 16 bytes and some 7 per further one. `fit` gives back what was needed once.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "weir/interval.hpp"
#include "weir/machine.hpp"
#include "weir/pages.hpp"
#include "weir/units.hpp"

namespace weir {

// Several intervals in bytes, on the heap: see the top of the file. Whoever holds one frees it.
class PackedIntervals {
 public:
  PackedIntervals() noexcept = default;
  PackedIntervals(std::int64_t pointer, std::uint32_t sizes) noexcept
      : block_(reinterpret_cast<std::byte*>(pointer)), sizes_(sizes) {}
  // REQUIRES: two intervals or more.
  static PackedIntervals make(const IntervalSet& set);
  void free() const noexcept { delete[] block_; }
  // Overwrites it with another set, if that takes as much room; false if it doesn't.
  bool overwrite(const IntervalSet& set) noexcept;

  std::int64_t pointer() const noexcept { return reinterpret_cast<std::intptr_t>(block_); }
  std::uint32_t sizes() const noexcept { return sizes_; }
  std::size_t size() const noexcept { return sizes_ & 0xffU; }
  std::size_t capacity() const noexcept { return capacity(sizes_ >> 8U); }

  IntervalSet load() const noexcept;
  Tokens weight() const noexcept;
  Interval last() const noexcept;
  Nanos oldest() const noexcept {
    std::int64_t start = 0;
    std::memcpy(&start, block_, sizeof start);
    return {start};
  }

 private:
  static std::size_t capacity(std::size_t bytes) noexcept { return (bytes + 7) / 8 * 8; }
  template <class Visit>
  void each(Visit visit) const noexcept;
  // Writes it to a block; or only says how many bytes it takes, if there is none.
  static std::size_t write(const IntervalSet& set, std::byte* to) noexcept;

  std::byte* block_ = nullptr;
  std::uint32_t sizes_ = 0;
};

class StoredSet {
 public:
  StoredSet() noexcept = default;
  StoredSet(StoredSet&& other) noexcept
      : start_(std::exchange(other.start_, 0)), count_(std::exchange(other.count_, 0)) {}
  StoredSet& operator=(StoredSet&& other) noexcept {
    std::swap(start_, other.start_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~StoredSet() { clear(); }

  bool empty() const noexcept { return count_ == 0; }
  // The set of a key that has one interval lies here; others are read from their block.
  IntervalSet load() const noexcept {
    if (count_ < 0) return packed().load();
    IntervalSet set;
    const Interval one{{start_}, {count_}};
    return count_ > 0 ? IntervalSet::from({&one, 1}) : set;
  }
  // Both return by how many bytes the heap block grew.
  std::ptrdiff_t store(const IntervalSet& set);
  std::ptrdiff_t clear() noexcept;
  // Takes a block over, or gives its own away. REQUIRES: it is empty; it holds several intervals.
  void adopt(PackedIntervals block) noexcept {
    start_ = block.pointer();
    count_ = -static_cast<std::int64_t>(block.sizes());
  }
  PackedIntervals release() noexcept {
    const PackedIntervals block = packed();
    start_ = count_ = 0;
    return block;
  }

  Tokens weight() const noexcept { return count_ < 0 ? packed().weight() : Tokens{count_}; }
  // The time at which its last busy interval ends; 0 if empty.
  Nanos tat(const Policy& policy) const noexcept {
    if (count_ == 0) return {0};
    return (count_ > 0 ? Interval{{start_}, {count_}} : packed().last()).end(policy);
  }
  Nanos oldest() const noexcept { return count_ < 0 ? packed().oldest() : Nanos{start_}; }
  // Adds a birth that is not older than any interval's start; false if there is no room here: use load and store.
  bool append(const Policy& policy, Birth birth) noexcept {
    if (count_ == 0) {
      start_ = birth.time.v;
      count_ = birth.weight.v;
      return true;
    }
    if (count_ < 0 || birth.time.v < start_ || birth.time > tat(policy)) return false;
    count_ += birth.weight.v;
    return true;
  }

  std::size_t intervals() const noexcept { return count_ < 0 ? packed().size() : count_ == 0 ? 0 : 1; }
  std::size_t heap_bytes() const noexcept { return count_ < 0 ? packed().capacity() : 0; }

 private:
  PackedIntervals packed() const noexcept { return {start_, static_cast<std::uint32_t>(-count_)}; }

  std::int64_t start_ = 0;
  std::int64_t count_ = 0;
};

static_assert(sizeof(StoredSet) == 16);

// How many tokens arrived lately, as a sliding window of two counted periods.
//
// Tokens are counted in units of a 1024th of the capacity, so that a bucket that fills within a period fits into 11
// bits; what is less than a unit counts as one as often as it is large (the time decides, so that it is the same in
// each run). A count that is 1024 periods old is taken for a new one: that errs to a higher rate, for one period.
class ArrivalRate {
 public:
  static constexpr std::int64_t kUnits = 1024;

  ArrivalRate() noexcept = default;
  // Nothing but these tokens, at a time in the period of that number. (`at` decides about less than a unit.)
  ArrivalRate(std::uint32_t number, Tokens tokens, Tokens capacity, Nanos at) noexcept
      : period_(number % kUnits), current_(std::min(kMost, units(tokens, capacity, at))) {}

  // `period` and `capacity` are the same in all calls.
  void count(Tokens tokens, Tokens capacity, Nanos now, Nanos period) noexcept;
  Tokens per_second(Tokens capacity, Nanos now, Nanos period) const noexcept;
  // Whether nothing that was counted matters any more.
  bool stale(Nanos now, Nanos period) const noexcept {
    const std::uint32_t age = (number(now, period) - period_) % kUnits;
    return age > 1 || (current_ == 0 && (age == 1 || previous_ == 0));
  }

  static std::uint32_t number(Nanos now, Nanos period) noexcept {
    return static_cast<std::uint32_t>(now.v / period.v) % kUnits;
  }

 private:
  static constexpr std::uint32_t kMost = 2 * kUnits - 1;
  static std::uint32_t units(Tokens tokens, Tokens capacity, Nanos at) noexcept;

  std::uint32_t period_ : 10 = 0;
  std::uint32_t previous_ : 11 = 0;
  std::uint32_t current_ : 11 = 0;
};

static_assert(sizeof(ArrivalRate) == 4);

// Over which arrivals are averaged: short where a burst must be noticed while it fills the bucket, long where records
// come in lumps.
inline constexpr Nanos kOwnPeriod{125'000'000};
inline constexpr Nanos kRemotePeriod{1'000'000'000};

// A limiter, by a small number of the replica's own.
struct LimiterSlot {
  std::uint16_t v = 0;
  friend constexpr auto operator<=>(const LimiterSlot&, const LimiterSlot&) = default;
};

// One key of a `Keys`, or none: a pointer to it. Valid until the next insertion or erasure in the key's segment.
// The policy is the one that the key's sets were made under, the same in all calls (but after `change`).
class KeyState {
 public:
  KeyState() noexcept = default;
  explicit operator bool() const noexcept { return slot_ != nullptr; }

  KeyHash key() const noexcept { return slot_->key; }
  LimiterSlot limiter() const noexcept { return {static_cast<std::uint16_t>(slot_->limiter)}; }
  // Its unsent waits in the next frame.
  bool due() const noexcept { return slot_->due != 0; }
  void set_due(bool due) noexcept { slot_->due = due ? 1 : 0; }

  bool has_published() const noexcept { return slot_->large ? !block().published.empty() : small_in(true); }
  bool has_unsent() const noexcept { return slot_->large ? !block().unsent.empty() : small_in(false); }
  IntervalSet published() const noexcept { return slot_->large ? block().published.load() : small_set(true); }
  IntervalSet unsent() const noexcept { return slot_->large ? block().unsent.load() : small_set(false); }
  IntervalSet all(const Policy& policy) const noexcept;
  Tokens unsent_weight() const noexcept {
    if (slot_->large) return block().unsent.weight();
    if (!small_in(false)) return {0};
    return slot_->packed ? packed().weight() : Tokens{slot_->count};
  }
  // When the oldest unsent birth was. REQUIRES: has_unsent().
  Nanos oldest_unsent() const noexcept {
    if (slot_->large) return block().unsent.oldest();
    return slot_->packed ? packed().oldest() : Nanos{slot_->time};
  }

  // How many of its unsent births a bucket of their own would still hold, if it gave one back each `interval` ns.
  double unsent_level(double interval, Nanos now) const noexcept;

  // What the node decides on: the TAT of both sets, and of what else the replica counts. A TAT in the past may be
  // another one in the past.
  Nanos tat(const Policy& policy) const noexcept { return slot_->large ? Nanos{slot_->time} : small_tat(policy); }
  // That of both sets alone.
  Nanos union_tat(const Policy& policy) const noexcept;

  // Admitted here, and received.
  Tokens own_per_second(Tokens capacity, Nanos now) const noexcept {
    return own_rate(capacity).per_second(capacity, now, kOwnPeriod);
  }
  Tokens remote_per_second(Tokens capacity, Nanos now) const noexcept {
    return remote_rate(capacity).per_second(capacity, now, kRemotePeriod);
  }

  // The sets change, the TAT may not yet: call `set_tat`, unless it stays.
  void set_published(const Policy& policy, const IntervalSet& set);
  void set_unsent(const Policy& policy, const IntervalSet& set);
  // Adds births to what is published, within the cap.
  void publish(const Policy& policy, const IntervalSet& births, Nanos now);
  // What is unsent is published from now on; the TAT stays.
  void publish_unsent(const Policy& policy, Nanos now);
  // Adds an own birth that was admitted at `now`, to the TAT and the rate too.
  void admit(const Policy& policy, Tokens hits, Nanos now);
  // The same without the rate, for a small key whose only interval is unsent and goes on; false if it is another.
  bool admit_small(const Policy& policy, Tokens hits, Nanos now) noexcept {
    if (slot_->large || slot_->packed || !small_in(false) || now.v < slot_->time || now > small_tat(policy) ||
        hits.v > UINT32_MAX - slot_->count)
      return false;
    slot_->count += static_cast<std::uint32_t>(hits.v);
    slot_->counts = kNoCounts;
    return true;
  }
  void set_tat(const Policy& policy, Nanos tat);
  // Counts tokens that were received.
  void count_remote(const Policy& policy, Tokens tokens, Nanos now);
  // For a key that takes the place of another.
  struct Rates {
    ArrivalRate own;
    ArrivalRate remote;
  };
  Rates rates(const Policy& policy) const noexcept { return {own_rate(policy.capacity), remote_rate(policy.capacity)}; }
  void set_rates(const Policy& policy, const Rates& rates, Nanos now);

  // Forgets rates that are stale, and makes the key small if nothing speaks against it.
  void rest(const Policy& policy, Nanos now) noexcept;

  // For observation and tests.
  bool large() const noexcept { return slot_->large != 0; }
  std::size_t heap_bytes() const noexcept {
    if (slot_->packed) return packed().capacity();
    return slot_->large ? block().published.heap_bytes() + block().unsent.heap_bytes() : 0;
  }

 private:
  friend class Keys;

  enum Counts : std::uint32_t { kNoCounts, kOwn, kRemote };

  struct Slot {
    KeyHash key;
    std::int64_t time;
    std::uint32_t count;
    std::uint32_t limiter : 16;
    std::uint32_t period : 10;
    std::uint32_t counts : 2;
    std::uint32_t due : 1;
    std::uint32_t published : 1;
    std::uint32_t large : 1;
    std::uint32_t packed : 1;
  };
  static_assert(sizeof(Slot) == 24, "keys that are touched once should cost little");

  struct Large {
    StoredSet published;
    StoredSet unsent;
    ArrivalRate own_rate;  // of a free block: the index of the next one
    ArrivalRate remote_rate;
  };
  static_assert(sizeof(Large) == 40);

  struct Segment {
    static constexpr std::uint32_t kNone = UINT32_MAX;

    Segment() = default;
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    ~Segment() {
      for (const Slot& slot : places) {
        if (slot.packed) PackedIntervals(slot.time, slot.count).free();
      }
    }

    std::vector<Slot, PageAllocator<Slot>> places;
    std::vector<Large, PageAllocator<Large>> blocks;
    std::size_t used = 0;
    std::size_t large = 0;  // blocks in use
    std::uint32_t free = kNone;
    std::ptrdiff_t heap = 0;  // bytes of the sets' blocks

    std::uint32_t take();
    void give_back(std::uint32_t block) noexcept;
  };

  KeyState(Segment& part, Slot& slot) noexcept : part_(&part), slot_(&slot) {}

  Large& block() const noexcept { return part_->blocks[slot_->count]; }
  PackedIntervals packed() const noexcept { return {slot_->time, slot_->count}; }
  // Of keys that aren't large.
  bool small_in(bool published) const noexcept { return slot_->count != 0 && (slot_->published != 0) == published; }
  IntervalSet small_set(bool published) const noexcept {
    if (!small_in(published)) return {};
    if (slot_->packed) return packed().load();
    const Interval one{{slot_->time}, {slot_->count}};
    return IntervalSet::from({&one, 1});
  }
  Nanos small_tat(const Policy& policy) const noexcept {
    if (slot_->packed) return packed().last().end(policy);
    return slot_->count == 0 ? Nanos{0} : Interval{{slot_->time}, {slot_->count}}.end(policy);
  }
  ArrivalRate small_rate(Counts which, Tokens capacity) const noexcept {
    if (slot_->counts != which) return {};
    return {slot_->period, {slot_->count}, capacity, {slot_->time}};
  }
  ArrivalRate own_rate(Tokens capacity) const noexcept {
    return slot_->large ? block().own_rate : small_rate(kOwn, capacity);
  }
  ArrivalRate remote_rate(Tokens capacity) const noexcept {
    return slot_->large ? block().remote_rate : small_rate(kRemote, capacity);
  }
  bool store_small(bool published, const IntervalSet& set) noexcept;
  bool store_packed(bool published, const IntervalSet& set);
  bool count_small(Counts which, Tokens tokens, std::uint32_t number) noexcept;
  void set(const Policy& policy, bool published, const IntervalSet& set);
  Large& enlarge(const Policy& policy);

  Segment* part_ = nullptr;
  Slot* slot_ = nullptr;
};

class Keys {
 public:
  static constexpr std::size_t kSegments = 64;
  static std::size_t segment_of(KeyHash key) noexcept { return key.v >> 58; }

  explicit Keys(std::uint64_t salt = 0) noexcept : salt_(salt | 1) {}

  // None if there is none.
  KeyState find(LimiterSlot limiter, KeyHash key) noexcept {
    Segment& part = segments_[segment_of(key)];
    const std::size_t at = place_of(part, limiter, key);
    return at < part.places.size() && part.places[at].key.v != 0 ? KeyState(part, part.places[at]) : KeyState();
  }
  KeyState find_or_insert(LimiterSlot limiter, KeyHash key);
  void erase(LimiterSlot limiter, KeyHash key) noexcept;
  // Brings what `find` will look at into the cache.
  void prefetch(LimiterSlot limiter, KeyHash key) const noexcept {
    const Segment& part = segments_[segment_of(key)];
    if (part.places.empty()) return;
    const Slot* const at = part.places.data() + home(part, limiter, key);
    asm volatile("");  // else g++ takes this for a function without effects, and drops it
    __builtin_prefetch(at);
    // A search looks at six places on average.
    __builtin_prefetch(reinterpret_cast<const char*>(at) + 64);
    __builtin_prefetch(reinterpret_cast<const char*>(at) + 128);
  }

  std::size_t size() const noexcept { return size_; }
  std::size_t size(std::size_t segment) const noexcept { return segments_[segment].used; }
  // Of one limiter.
  std::size_t size(LimiterSlot limiter) const noexcept { return limiter.v < of_.size() ? of_[limiter.v] : 0; }
  // Bytes on the heap, blocks at their capacity.
  std::size_t held() const noexcept;
  // Gives memory of the segment back if it is more than twice what its keys need.
  void fit(std::size_t segment);

  // Calls `visit(state)` for each key of a segment; those for which it returns false are erased. `visit` may change
  // states, and neither insert nor erase.
  template <class Visit>
  void sweep(std::size_t segment, Visit visit) {
    Segment& part = segments_[segment];
    const std::size_t places = part.places.size();
    if (part.used == places) {
      sweep_full(part, visit);
      return;
    }
    // Backwards from an empty place, so that what an erasure shifts back has been visited.
    std::size_t empty = 0;
    while (part.places[empty].key.v != 0) ++empty;
    std::size_t at = empty;
    for (std::size_t i = 1; i < places; ++i) {
      at = at == 0 ? places - 1 : at - 1;
      if (part.places[at].key.v != 0 && !visit(KeyState(part, part.places[at]))) erase_at(part, at);
    }
  }
  // Calls `visit(state)` for keys of the segment that `key` belongs to, from where it would lie on, at most `most`.
  template <class Visit>
  void for_some(LimiterSlot limiter, KeyHash key, std::size_t most, Visit visit) {
    Segment& part = segments_[segment_of(key)];
    const std::size_t places = part.places.size();
    std::size_t at = places == 0 ? 0 : home(part, limiter, key);
    for (std::size_t i = 0; i < places && most > 0; ++i) {
      if (part.places[at].key.v != 0) {
        visit(KeyState(part, part.places[at]));
        --most;
      }
      at = at + 1 == places ? 0 : at + 1;
    }
  }
  template <class Visit>
  void for_each(std::size_t segment, Visit visit) const {
    auto& part = const_cast<Segment&>(segments_[segment]);
    for (Slot& slot : part.places) {
      if (slot.key.v != 0) visit(static_cast<const KeyState&>(KeyState(part, slot)));
    }
  }

  // For tests: how far all keys of a segment lie from where a search for them begins, in sum.
  std::size_t distance(std::size_t segment) const noexcept;

 private:
  // Tables of so many places may be full; larger ones keep a tenth free, so that a search ends soon.
  static constexpr std::size_t kFullMost = 9;
  static constexpr std::size_t least_places(std::size_t keys) noexcept {
    return keys <= kFullMost ? keys : keys + keys / kFullMost;
  }

  using Slot = KeyState::Slot;
  using Segment = KeyState::Segment;

  // The upper bits have chosen the segment, and are alike in it; the limiter is mixed in, as the same key may be asked
  // under several. (Murmur3's finalizer, shortened: two salts give orders that have nothing to do with each other.)
  std::size_t home(const Segment& part, LimiterSlot limiter, KeyHash key) const noexcept {
    std::uint64_t mixed = (key.v ^ (limiter.v * 0x9e3779b97f4a7c15u)) * salt_;
    mixed = (mixed ^ mixed >> 32) * 0xff51afd7ed558ccdu;
    return ((mixed >> 32) * part.places.size()) >> 32;
  }
  // Where the key is, or the empty place where it would be; the number of places if there is neither.
  std::size_t place_of(const Segment& part, LimiterSlot limiter, KeyHash key) const noexcept {
    const std::size_t places = part.places.size();
    if (places == 0) return 0;
    std::size_t at = home(part, limiter, key);
    for (std::size_t i = 0; i < places; ++i) {
      const Slot& slot = part.places[at];
      if (slot.key.v == 0 || (slot.key == key && slot.limiter == limiter.v)) return at;
      at = at + 1 == places ? 0 : at + 1;
    }
    return places;
  }
  // Only small tables are full.
  template <class Visit>
  void sweep_full(Segment& part, Visit visit) {
    std::array<std::pair<LimiterSlot, KeyHash>, kFullMost> gone;
    std::size_t count = 0;
    for (Slot& slot : part.places) {
      const KeyState state(part, slot);
      if (!visit(state)) gone[count++] = {state.limiter(), state.key()};
    }
    for (std::size_t i = 0; i < count; ++i) erase(gone[i].first, gone[i].second);
  }
  void erase_at(Segment& part, std::size_t place) noexcept;
  void resize(Segment& part, std::size_t places);

  std::uint64_t salt_;
  std::array<Segment, kSegments> segments_;
  std::size_t size_ = 0;
  std::vector<std::uint32_t> of_;  // keys per limiter
};

}  // namespace weir
