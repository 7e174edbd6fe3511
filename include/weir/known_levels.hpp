// known_levels: what owners said of keys that they deny (limiters with `scope => exact`), so that a node which asks for
// one again is answered there, without a message.
//
// Births only add: a level that an owner told stays true, less what drains, until the key is reset or the limiter is
// changed. The debt of a key is its TAT less the time. An owner that found the debt d when it was asked finds at least
// d less the time since the question was *sent*, whatever its clock shows: only the rates of the two clocks matter.
//
//   asks            decides: debt d      hears            now
//   ---|--------------------|--------------|----------------|---->  the asker's clock
//     sent                               received
//      |<------------- at most so much has drained -------->|         least: denies only while even this denies
//                                          |<-- at least -->|         told: what the answer says of the level
//
// Both directions err to ask the owner: nothing is denied here that it would admit. `least` is rounded down where it
// came in milliseconds, and clocks may differ in rate by one part in kDrift: weir_clock follows a clock that was set
// by 1 % at most. kKnownFor bounds what no rule covers (a reset that a node couldn't be told of, births that an owner
// lost in a crash, a virtual machine that was paused): after so long the owner is asked again.
//
// Forgetting: a *stamp* is how many times something was forgotten so far. A level carries the stamp of the moment
// before its question was sent. Whatever is forgotten later makes it void, also when its answer arrives after that.
//
// Layout: kKeys slots of one cache line, made with the first level (4 MB); a key may be in two of them. A slot has no
// lock: its tag is the key's mixed with the words beside it (Hyatt's lockless hashing), so that a reader takes a slot
// that is being written for another key's. What gets no slot is asked of its owner.
//
// Thread safety: all members from any thread; nobody waits. Complexity: constant; forget_all() kRanges stores.
// Exceptions: none; without memory nothing is known.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

class KnownLevels {
 public:
  static constexpr std::size_t kKeys = std::size_t{1} << 16;
  static constexpr Nanos kKnownFor{2'000'000'000};
  static constexpr std::int64_t kDrift = 50;

  using Stamp = std::uint64_t;

  // Of one answer, by the clock of the node that asked. `least` and `told` are the debt as the owner found it: as a
  // lower bound that holds under this node's terms, and as said.
  struct Level {
    Nanos sent, received, least, told;
  };

  KnownLevels() = default;
  KnownLevels(const KnownLevels&) = delete;
  KnownLevels& operator=(const KnownLevels&) = delete;
  ~KnownLevels() { delete[] slots_.load(std::memory_order_acquire); }

  // Read before a question is sent, and given to `learn` with its answer.
  Stamp stamp() const noexcept { return forgotten_.load(std::memory_order_acquire); }

  void learn(LimiterId limiter, KeyHash key, Stamp stamp, const Level& level) noexcept {
    Slot* const slots = made();
    if (slots == nullptr) return;
    const std::uint64_t tag = tag_of(limiter, key);
    Slot& first = slots[tag % kKeys];
    Slot& second = slots[(tag % kKeys) ^ 1];
    // That of the key itself, or the one that will be of no use sooner.
    Slot& slot = first.holds(tag)                                          ? first
                 : second.holds(tag)                                       ? second
                 : first.sent.load(kRelaxed) <= second.sent.load(kRelaxed) ? first
                                                                           : second;
    slot.write(tag, stamp, level);
  }

  // What an owner's answer says of the key's level; the time until the bucket is full is rounded up.
  struct Answer {
    Tokens limit, remaining;
    std::int64_t reset_ms;
  };
  // `policy` is the limiter's on this node. If it was changed at the owner and not here yet, or the other way round, a
  // level is worth what its tokens are: that is how it will be carried over. Where not even the capacity is the same,
  // nothing is learnt.
  void learn(LimiterId limiter, KeyHash key, Stamp stamp, const Policy& policy, const Answer& answer, Nanos sent,
             Nanos received) noexcept {
    if (answer.limit != policy.capacity || answer.remaining.v < 0 || answer.remaining > answer.limit ||
        answer.reset_ms < 0 || answer.reset_ms > kTimeMax.v / kMs)
      return;
    const Nanos worth = (answer.limit - answer.remaining) * policy.interval;
    const Nanos least = std::min(Nanos{(answer.reset_ms - 1) * kMs}, worth);
    learn(limiter, key, stamp, {sent, received, least, {answer.reset_ms * kMs}});
  }

  // Whether the owner would deny these hits now, as far as is known here; `debt` is the key's then, as the owner would
  // say it. REQUIRES: hits >= 1.
  bool denies(LimiterId limiter, KeyHash key, const Policy& policy, Tokens hits, Nanos now,
              Nanos& debt) const noexcept {
    Level level;
    if (!find(limiter, key, level)) return false;
    const Nanos since = now - level.sent;
    if (since.v < 0 || since > kKnownFor) return false;
    const Nanos least = level.least - since - Nanos{since.v / kDrift + 1};
    if (hits <= policy.capacity && least <= (policy.capacity - hits) * policy.interval) return false;
    debt = {std::max<std::int64_t>({0, least.v, (level.told - std::max(Nanos{0}, now - level.received)).v})};
    return true;
  }

  // What is known of the key, and of questions about it that are under way.
  void forget(KeyHash key) noexcept { forget(range_of(key), forgotten_.fetch_add(1) + 1); }
  // ... and of all keys.
  void forget_all() noexcept {
    const Stamp stamp = forgotten_.fetch_add(1) + 1;
    for (std::size_t range = 0; range < kRanges; ++range) forget(range, stamp);
  }

 private:
  static constexpr std::size_t kRanges = 1024;
  static constexpr std::int64_t kMs = 1'000'000;
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

  struct alignas(64) Slot {
    std::atomic<std::uint64_t> mixed{0}, stamp{0};
    std::atomic<std::int64_t> sent{0}, received{0}, least{0}, told{0};

    static std::uint64_t mix(std::uint64_t tag, Stamp stamp, const Level& level) noexcept {
      const auto word = [](Nanos of, int turn) { return std::rotl(static_cast<std::uint64_t>(of.v), turn); };
      return tag ^ std::rotl(stamp, 7) ^ word(level.sent, 17) ^ word(level.received, 29) ^ word(level.least, 41) ^
             word(level.told, 53);
    }
    bool read(std::uint64_t tag, Stamp& at, Level& level) const noexcept {
      at = stamp.load(kRelaxed);
      level = {{sent.load(kRelaxed)}, {received.load(kRelaxed)}, {least.load(kRelaxed)}, {told.load(kRelaxed)}};
      return level.sent.v != 0 && mixed.load(kRelaxed) == mix(tag, at, level);
    }
    bool holds(std::uint64_t tag) const noexcept {
      Stamp at;
      Level level;
      return read(tag, at, level);
    }
    void write(std::uint64_t tag, Stamp at, const Level& level) noexcept {
      stamp.store(at, kRelaxed);
      sent.store(level.sent.v, kRelaxed);
      received.store(level.received.v, kRelaxed);
      least.store(level.least.v, kRelaxed);
      told.store(level.told.v, kRelaxed);
      mixed.store(mix(tag, at, level), kRelaxed);
    }
  };
  static_assert(sizeof(Slot) == 64, "a look-up is one line of the cache, two if the key isn't in the first");

  // Of limiters' numbers and keys' hashes, each of which is a keyed hash: as unlikely to be another's as a key is.
  static std::uint64_t tag_of(LimiterId limiter, KeyHash key) noexcept {
    return key.v ^ (std::uint64_t{limiter.v} * 0x9e3779b97f4a7c15);
  }
  static std::size_t range_of(KeyHash key) noexcept { return key.v % kRanges; }
  Stamp void_since(KeyHash key) const noexcept { return void_since_[range_of(key)].load(std::memory_order_acquire); }

  bool find(LimiterId limiter, KeyHash key, Level& level) const noexcept {
    const Slot* const slots = slots_.load(std::memory_order_acquire);
    if (slots == nullptr) return false;
    const std::uint64_t tag = tag_of(limiter, key);
    Stamp stamp;
    return (slots[tag % kKeys].read(tag, stamp, level) || slots[(tag % kKeys) ^ 1].read(tag, stamp, level)) &&
           stamp >= void_since(key);
  }

  // (Of two that forget at the same time the later one counts.)
  void forget(std::size_t range, Stamp stamp) noexcept {
    Stamp before = void_since_[range].load(kRelaxed);
    while (before < stamp && !void_since_[range].compare_exchange_weak(before, stamp, std::memory_order_acq_rel)) {
    }
  }

  Slot* made() noexcept {
    Slot* slots = slots_.load(std::memory_order_acquire);
    if (slots != nullptr) return slots;
    std::unique_ptr<Slot[]> mine(new (std::nothrow) Slot[kKeys]);
    if (mine == nullptr || !slots_.compare_exchange_strong(slots, mine.get(), std::memory_order_acq_rel)) return slots;
    return mine.release();
  }

  std::atomic<Slot*> slots_{nullptr};
  std::atomic<Stamp> forgotten_{0};
  std::array<std::atomic<Stamp>, kRanges> void_since_{};
};

}  // namespace weir
