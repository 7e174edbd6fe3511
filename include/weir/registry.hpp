// registry: the limiters of a node, found by name without a lock.
//
//   name -> hash -> slots -> Limiter { names, terms (one line), table, counters }
//
// A name is a 64-bit keyed hash of its bytes; a limiter may have an *alias* too, a word that the caller can compare at
// once (the NIF uses the atom's term). Limiters are type-stable like the memory of their tables: once made, never freed
// before the registry, only closed and opened again. A reader that finds one takes the table's generation first and
// compares the name afterwards; from then on the generation tells it when the limiter has been deleted.
//
// Life: put -> (put again: changed) -> remove -> closing, in slices, by `maintain` -> free. An *unnamed-when-idle*
// limiter
// (`transient`, for policies that come with the call) is removed by `maintain` when no handle refers to it and its
// table is empty.
//
// Limits: kMaxLimiters at a time, names of 1 to kMaxName bytes; `put` says which was met.
//
// Thread safety: all members from any thread; those marked (mutex) take turns and may be slow, `find`, `decide`, `peek`
// never wait. Exceptions: put may throw bad_alloc; nothing else throws.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "weir/admissions.hpp"
#include "weir/arena.hpp"
#include "weir/carries.hpp"
#include "weir/cell.hpp"
#include "weir/table.hpp"
#include "weir/units.hpp"

namespace weir {

// What a limiter does besides its policy.
struct LimiterOptions {
  std::int64_t max_keys = 1'000'000;
  bool shadow = false;         // denials are counted and answered as admissions
  bool deny_on_error = false;  // the answer when weir itself fails
  bool transient = false;
  LimiterId number;               // of a replicated limiter; 0: of this node alone
  bool deny_in_minority = false;  // Partition::closed
  bool claims = false;            // LargeHits::claim
  bool owned = false;             // LargeHits::owner: each key is decided by one node
};

// What the replicated limiters of a node have in common.
struct Replication {
  explicit Replication(unsigned stripes) : births(stripes) {}
  Admissions births;
  Carries carries;
  std::atomic<bool> minority{false};    // this side of a partition has half of the members or fewer
  std::atomic<std::uint32_t> nodes{1};  // that share a bucket's slack
};

struct Counts {
  std::int64_t allowed = 0, denied = 0, shadow_denied = 0, failed = 0;
};

class Limiter {
 public:
  using LocalTable = Table<TatCell>;

  Limiter(Arena& arena, unsigned stripes, Replication& replication);

  // The terms as of now: never torn. Spins only while a change of the limiter is being written (nanoseconds).
  Terms terms() const noexcept;
  bool shadow() const noexcept { return (flags_.load(std::memory_order_relaxed) & kShadow) != 0; }
  bool deny_on_error() const noexcept { return (flags_.load(std::memory_order_relaxed) & kDeny) != 0; }
  bool replicated() const noexcept { return (flags_.load(std::memory_order_relaxed) & kReplicated) != 0; }
  bool claims() const noexcept { return (flags_.load(std::memory_order_relaxed) & kClaims) != 0; }
  bool owned() const noexcept { return (flags_.load(std::memory_order_relaxed) & kOwned) != 0; }
  // Whether there are hits that ask other nodes first.
  bool asks() const noexcept { return (flags_.load(std::memory_order_relaxed) & (kClaims | kOwned)) != 0; }
  // Denies all that comes, as long as this side of a partition is the smaller one.
  bool halted() const noexcept {
    return (flags_.load(std::memory_order_relaxed) & kClosed) != 0 &&
           replication_.minority.load(std::memory_order_relaxed);
  }
  // What was admitted, to the replica.
  void tell(unsigned stripe, KeyHash key, Tokens hits, Nanos now, Nanos tat) {
    if (replicated()) replication_.births.push(stripe, {number(), key, hits, now, tat});
  }
  LimiterId number() const noexcept { return {number_.load(std::memory_order_relaxed)}; }
  LocalTable& table() noexcept { return table_; }
  const LocalTable& table() const noexcept { return table_; }

  // `n` decisions more of the kind. `stripe` is the calling thread's own, or the last one, which all may share.
  enum Kind : unsigned { kAllowed, kDenied, kShadowDenied, kFailed, kKinds };
  void count(Kind kind, unsigned stripe, std::int64_t n) noexcept {
    std::atomic<std::int64_t>& counter = counters_[stripe].of[kind];
    if (stripe + 1 != stripes_)  // nobody else writes it
      counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    else
      counter.fetch_add(n, std::memory_order_relaxed);
  }
  Counts counts() const noexcept;

 private:
  friend class Registry;
  static constexpr std::uint32_t kShadow = 1, kDeny = 2, kReplicated = 4, kClosed = 8, kClaims = 16, kOwned = 32;
  struct alignas(64) Stripe {
    std::array<std::atomic<std::int64_t>, kKinds> of{};
  };

  void set_terms(const Terms& terms) noexcept;
  void set_flags(const LimiterOptions& options) noexcept;

  // Read by every look-up and decision. An even sequence means that nobody is writing.
  alignas(64) std::atomic<std::uint64_t> alias_{0};
  std::atomic<std::uint64_t> name_hash_{0};
  std::atomic<std::uint32_t> flags_{0};
  std::atomic<std::uint32_t> number_{0};
  std::atomic<std::uint32_t> sequence_{0};
  std::atomic<std::int64_t> capacity_{1}, interval_{1};
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::int64_t> changed_at_{0};
  std::atomic<std::int64_t> before_capacity_{1}, before_interval_{1};
  LocalTable table_;
  Replication& replication_;
  const unsigned stripes_;
  std::unique_ptr<Stripe[]> counters_;

  // Under the registry's mutex.
  std::string name_;
  LimiterOptions options_;
  std::int64_t handles_ = 0;
  bool converting_ = false;
  std::size_t convert_cursor_ = 0, sweep_cursor_ = 0;
  enum class Phase : std::uint8_t { free, open, closing } phase_ = Phase::free;
};

class Registry {
 public:
  static constexpr unsigned kMaxLimiters = 16384;
  static constexpr std::size_t kMaxName = 255;

  // A limiter as found, and the generation that it was found in.
  struct Ref {
    Limiter* limiter = nullptr;
    std::uint64_t generation = 0;
    explicit operator bool() const noexcept { return limiter != nullptr; }
    friend bool operator==(const Ref&, const Ref&) = default;
  };

  // `stripes`: sets of counters, one a thread that decides, the last shared by all others. REQUIRES: stripes >= 1.
  explicit Registry(unsigned stripes);
  ~Registry();

  Replication& replication() noexcept { return replication_; }

  Ref find(KeyHash name) const noexcept;
  Ref find_number(LimiterId number) const noexcept;
  Ref find_alias(std::uint64_t alias) const noexcept;

  enum class Put : std::uint8_t { created, changed, busy, fixed, too_many, same_number };
  // (mutex) Makes the limiter, or changes it from `now` on, carrying every key's level over. `busy`: the change before
  // is still being carried out; call `convert` until it is done. `fixed`: max_keys, the number and
  // `owned` are chosen when a limiter is made. `same_number`: another limiter has it.
  Put put(std::string_view name, KeyHash hash, const Policy& policy, const LimiterOptions& options, Nanos now);
  // (mutex) Lets `alias` stand for the name from now on. False for an unknown name.
  bool set_alias(KeyHash name, std::uint64_t alias);
  // (mutex) Converts up to `segments` segments after a change; true when the whole table is.
  bool convert(KeyHash name, unsigned segments);
  // (mutex) False for an unknown name. Callers that found it earlier get `gone` from now on.
  bool remove(KeyHash name);
  // (mutex) All of them.
  void remove_all();

  // (mutex) Handles keep a transient limiter from being removed when idle.
  bool retain(Ref ref) noexcept;  // false: it is gone
  void release(Ref ref) noexcept;

  // (mutex) Goes on where the last call stopped: sweeps, converts and closes up
  // to `segments` segments of all limiters. True when it has come round.
  bool maintain(Nanos now, unsigned segments);

  struct Listed {
    std::string name;
    Policy policy;
    LimiterOptions options;
    Counts counts;
    TableStats table;
  };
  // (mutex) Every open limiter.
  std::vector<Listed> list() const;

  // Decides as the limiter says, shadow and on_error included, and counts the decision.
  static Decision decide(Ref ref, KeyHash key, Tokens hits, Nanos now, unsigned stripe) noexcept;
  // The decision on one hit, without counting; `state` is the key's. False if the limiter is gone.
  static bool peek(Ref ref, KeyHash key, Nanos now, Tat& state, Terms& terms) noexcept;
  static bool reset(Ref ref, KeyHash key, Nanos now) noexcept;
  // Whether these hits are to ask the other nodes: more than this node's share of the slack.
  static bool claims(Ref ref, KeyHash key, Tokens hits, Nanos now) noexcept;
  // Brings a key's TAT up to `tat`, or to exactly that.
  static bool set_level(Ref ref, KeyHash key, Nanos tat, bool exactly, Nanos now) noexcept;
  // After a rotation of the secret: what the level is under the key's hash of before is added to that under its hash
  // of now, once, whoever of many callers comes first; of a replicated limiter the replica is told.
  // Where keys have owners, the level under the hash of now is brought up to it instead.
  // True if it is.
  static bool carry(Ref ref, KeyHash before, KeyHash key, Nanos now) noexcept;
  // (mutex) For how long births matter, of all limiters.
  Nanos longest_horizon() const noexcept;
  // (mutex) Calls visit(number, key, tat) for every key of the replicated limiters, either of those whose keys have
  // owners or of all others. About 15 us for 1000 keys.
  template <class Visit>
  void for_each_replicated(bool owned, Nanos now, Visit visit) {
    const std::lock_guard lock(mutex_);
    for (const auto& limiter : limiters_) {
      if (limiter->phase_ != Limiter::Phase::open || !limiter->replicated() || limiter->owned() != owned) continue;
      limiter->table_.for_each(limiter->terms(), now,
                               [&](KeyHash key, const Tat& state) { visit(limiter->number(), key, state.value()); });
    }
  }

 private:
  static constexpr unsigned kSlotBits = 15;  // twice as many as limiters
  using Slots = std::array<std::atomic<Limiter*>, 1u << kSlotBits>;

  template <class Is>
  Ref probe(const Slots& slots, std::uint64_t hash, Is is) const noexcept;
  static std::size_t slot_of(std::uint64_t hash) noexcept { return hash * 0x9e3779b97f4a7c15 >> (64 - kSlotBits); }
  static void add(Slots& slots, std::uint64_t hash, Limiter* limiter) noexcept;
  void rebuild_slots() noexcept;
  void begin_remove(Limiter& limiter) noexcept;
  Limiter* take_free();

  Arena arena_;
  Replication replication_;
  const unsigned stripes_;
  mutable std::mutex mutex_;
  std::atomic<std::uint32_t> slots_version_{0};  // odd while the slots are being rebuilt
  std::unique_ptr<Slots> names_, aliases_, numbers_;
  std::vector<std::unique_ptr<Limiter>> limiters_;
  std::size_t maintain_next_ = 0;
};

// Questions to one limiter, one after the other: what they have in common is read and counted once.
class Asker {
 public:
  Asker(Registry::Ref ref, unsigned stripe) noexcept : ref_(ref), stripe_(stripe), terms_(ref.limiter->terms()) {}
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;
  ~Asker() {
    for (unsigned kind = 0; kind < Limiter::kKinds; ++kind)
      if (counts_[kind] != 0) ref_.limiter->count(static_cast<Limiter::Kind>(kind), stripe_, counts_[kind]);
  }

  const Registry::Ref& ref() const noexcept { return ref_; }
  Tokens capacity() const noexcept { return terms_.policy.capacity; }
  // As Registry::decide.
  Decision decide(KeyHash key, Tokens hits, Nanos now) noexcept;

 private:
  Registry::Ref ref_;
  unsigned stripe_;
  Terms terms_;
  std::array<std::int64_t, Limiter::kKinds> counts_{};
};

}  // namespace weir
