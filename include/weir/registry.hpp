// registry: the limiters of a node, found by name without a lock.
//
//   name -> hash -> index -> Limiter { names, terms (one line), table, counters }
//
// A name is a 64-bit keyed hash of its bytes; a limiter may have an *alias* too, a word that the caller can compare at
// once (the NIF uses the atom's term), and a number. Limiters are type-stable like the memory of their tables: once
// made, never freed before the registry, only closed and opened again. A reader takes the table's generation before
// and after it compares the name; from then on the generation tells it when the limiter has been deleted.
//
// Life: put -> (put again: changed) -> remove -> closing, in slices, by `maintain` -> free. A *transient* limiter, for
// policies that come with the call, is removed by `maintain` when no handle refers to it and its table is empty.
//
// Limits: kMaxLimiters with a name and kMaxTransient without, at a time; names of 1 to kMaxName bytes. `put` says which
// was met. Limiters that are being closed don't count; a `put` that finds many of them closes some first.
//
// Thread safety: all members from any thread; those marked (mutex) take turns, for a microsecond or so, and for up to
// 2 ms where 16384 limiters are looked through (the index is laid out anew; `replicated`). No walk over keys
// is made under the mutex. `find`, `decide`, `peek` never wait for it. Those marked (turn) take turns with each
// other alone. doc/locks.md lists the locks. Exceptions: what makes something may throw bad_alloc; nothing else throws.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/admissions.hpp"
#include "weir/arena.hpp"
#include "weir/carries.hpp"
#include "weir/interval.hpp"
#include "weir/limiter_index.hpp"
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
  // Searches for births that were lost on the way to the replica, that came to their end, and keys looked at.
  std::atomic<std::uint64_t> rescans{0}, rescanned_keys{0};
};

struct Counts {
  std::int64_t allowed = 0, denied = 0, shadow_denied = 0, failed = 0;
};

// What a limiter answers, in as few words as can be: what a caller wants to know of it besides, it asks.
struct Answered {
  enum class Reason : std::uint8_t {
    ok,
    limit,      // denied, for what the key has used
    shadow,     // the same, but let pass
    error,      // as on_error says
    partition,  // denied, on the smaller side of one
  };
  Reason reason = Reason::error;
  bool allowed = false;
  Policy policy;
  Nanos tat;  // of the key, after it if it was admitted

  // REQUIRES: the hits and the time of the question.
  Tokens remaining(Nanos now) const noexcept;
  Nanos reset(Nanos now) const noexcept;
  Nanos retry(Tokens hits, Nanos now) const noexcept;
  Decision decision(Tokens hits, Nanos now) const noexcept {
    return {allowed, remaining(now), reset(now), retry(hits, now)};
  }
};

class Limiter {
 public:
  Limiter(Arena& arena, unsigned stripes, Replication& replication);

  // The terms as of now: never torn. Spins only while a change of the limiter is being written (nanoseconds).
  Terms terms() const noexcept;
  // Of these, what a decision needs.
  struct Brief {
    Policy policy;
    std::uint32_t version;
  };
  Brief brief() const noexcept;
  bool shadow() const noexcept { return has(kShadow); }
  bool deny_on_error() const noexcept { return has(kDeny); }
  bool replicated() const noexcept { return has(kReplicated); }
  bool claims() const noexcept { return has(kClaims); }
  bool owned() const noexcept { return has(kOwned); }
  // Whether there are hits that ask other nodes first.
  bool asks() const noexcept { return has(kClaims | kOwned); }
  // Denies all that comes, as long as this side of a partition is the smaller one.
  bool halted() const noexcept { return has(kClosed) && replication_.minority.load(std::memory_order_relaxed); }
  // Until when keys are carried over from their hash of before a rotation; 0 if they aren't.
  Nanos carry_until() const noexcept { return {carry_until_.load(std::memory_order_relaxed)}; }
  // What was admitted, to the replica.
  void tell(unsigned stripe, KeyHash key, Tokens hits, Nanos now, const Policy& policy, Nanos tat) noexcept;
  LimiterId number() const noexcept { return {number_.load(std::memory_order_relaxed)}; }
  Table& table() noexcept { return table_; }
  const Table& table() const noexcept { return table_; }

  // `n` decisions more of the kind. `stripe` is the calling thread's own, or the last one, which all may share.
  enum Kind : unsigned { kAllowed, kDenied, kShadowDenied, kFailed, kKinds };
  WEIR_INLINE void count(Kind kind, unsigned stripe, std::int64_t n) noexcept {
    std::atomic<std::int64_t>& counter = counters_[stripe].of[kind];
    if (stripe + 1 != stripes_)  // nobody else writes it
      counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    else
      counter.fetch_add(n, std::memory_order_relaxed);
  }
  WEIR_INLINE static Kind kind_of(const Answered& answered) noexcept {
    switch (answered.reason) {
      case Answered::Reason::ok:
        return kAllowed;
      case Answered::Reason::shadow:
        return kShadowDenied;
      case Answered::Reason::error:
        return kFailed;
      default:
        return kDenied;
    }
  }
  Counts counts() const noexcept;

 private:
  friend class Registry;
  static constexpr std::uint32_t kShadow = 1, kDeny = 2, kReplicated = 4, kClosed = 8, kClaims = 16, kOwned = 32;
  struct alignas(64) Stripe {
    std::array<std::atomic<std::int64_t>, kKinds> of{};
  };

  bool has(std::uint32_t flags) const noexcept { return (flags_.load(std::memory_order_relaxed) & flags) != 0; }
  void set_terms(const Terms& terms) noexcept;
  void set_flags(const LimiterOptions& options) noexcept;
  // Moves on to the first range from there on in which births didn't fit; false if there is none.
  bool next_dropped(Table::Cursor& at) const noexcept;
  // Of the ranges from there on up to another place (0: the end), those that begin before it no longer are.
  void take_dropped(Table::Cursor from, Table::Cursor to) noexcept;
  // Undoes that.
  void give_dropped(Table::Cursor from, Table::Cursor to) noexcept;
  // The end of the range, or a later one of a segment (0: the end of the table).
  static Table::Cursor range_end(Table::Cursor at, Table::Cursor segment_end) noexcept {
    const Table::Cursor end = ((at >> (64 - kRangeBits)) + 1) << (64 - kRangeBits);
    return end == 0 || segment_end == 0 ? 0 : std::max(end, segment_end);
  }

  // Read by every look-up and decision: one line. An even sequence means that nobody is writing.
  alignas(64) std::atomic<std::uint64_t> alias_{0};
  std::atomic<std::uint64_t> name_hash_{0};
  std::atomic<std::uint32_t> number_{0};
  std::atomic<std::uint32_t> flags_{0};
  std::atomic<std::uint32_t> sequence_{0};
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::int64_t> capacity_{1}, interval_{1};
  std::atomic<std::int64_t> carry_until_{0};
  const unsigned stripes_;
  alignas(64) Table table_;
  Replication& replication_;
  std::unique_ptr<Stripe[]> counters_;
  std::atomic<std::int64_t> changed_at_{0};
  std::atomic<std::int64_t> before_capacity_{1}, before_interval_{1};
  // Ranges of the hash, by its upper bits, in which births didn't fit into a ring.
  static constexpr unsigned kRangeBits = 10;
  std::array<std::atomic<std::uint64_t>, (1u << kRangeBits) / 64> dropped_{};

  // Under the registry's mutex.
  std::string name_;
  LimiterOptions options_;
  std::int64_t handles_ = 0;
  bool converting_ = false;
  Table::Cursor convert_cursor_ = 0, sweep_cursor_ = 0;
  Limiter* closes_next_ = nullptr;
  enum class Phase : std::uint8_t { free, open, closing } phase_ = Phase::free;
};

class Registry {
 public:
  static constexpr unsigned kMaxLimiters = 16384;
  static constexpr unsigned kMaxTransient = 16384;
  static constexpr std::size_t kMaxName = 255;
  // Keys are carried after a rotation for as long as their limiter's births matter, and for this long at least.
  static constexpr Nanos kCarriedLeast{60'000'000'000};

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

  // (turn) Goes on where the last call stopped: closes what was removed, then sweeps and converts up to `segments`
  // segments of all limiters. True when it has come round.
  bool maintain(Nanos now, unsigned segments);

  // (mutex) From now on keys are known by other hashes; each limiter carries its keys' levels over for as long as its
  // births matter, but not longer than `most`.
  void begin_carrying(Nanos now, Nanos most);
  // (mutex) No key is carried any more.
  void end_carrying();
  // Until when keys of some limiter are carried; 0 if none are. Falls behind by a pass of `maintain`.
  Nanos carried_until() const noexcept { return {carried_until_.load(std::memory_order_relaxed)}; }

  struct Listed {
    std::string name;
    Policy policy;
    LimiterOptions options;
    Counts counts;
    TableStats table;
  };
  // (mutex, in parts) Every open limiter.
  std::vector<Listed> list() const;
  // (mutex) Whether there are none.
  bool empty() const;

  // Decides as the limiter says, shadow and on_error included, and counts the decision.
  static Answered ask(Ref ref, KeyHash key, Tokens hits, Nanos now, unsigned stripe) noexcept;
  static Decision decide(Ref ref, KeyHash key, Tokens hits, Nanos now, unsigned stripe) noexcept {
    return ask(ref, key, hits, now, stripe).decision(hits, now);
  }
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

  // Calls visit(number, entries) for the keys of the replicated limiters, either of those whose keys have owners or of
  // all others, some hundreds of them at a time. No lock is held meanwhile. About 15 us per 1000 keys.
  template <class Visit>
  void for_each_replicated(bool owned, Nanos now, Visit visit) {
    for (const Ref& ref : replicated(owned)) {
      const LimiterId number = ref.limiter->number();  // before the keys: these are of the generation, so it is too
      visit_keys(ref, now, 0, 0, [&](std::span<Table::Entry> entries) { visit(number, entries); });
    }
  }
  // The same for keys in whose neighbourhood births didn't fit into a ring (not of limiters whose keys have owners),
  // each neighbourhood once, until about `most` keys were seen. Others may be among them. False if there are more.
  template <class Visit>
  bool for_each_dropped(Nanos now, std::size_t most, Visit visit) {
    std::size_t seen = 0;
    bool all = true;
    for (const Ref& ref : replicated(false)) {
      Limiter& limiter = *ref.limiter;
      const LimiterId number = limiter.number();
      for (Table::Cursor at = 0; limiter.next_dropped(at);) {
        if (seen >= most) return false;
        // All ranges that the segment covers at once, a small table has one for all; or all segments of the range.
        const Table::Cursor end = Limiter::range_end(at, limiter.table_.segment_end(at));
        limiter.take_dropped(at, end);
        if (!visit_keys(ref, now, at, end, [&](std::span<Table::Entry> entries) {
              seen += entries.size();
              visit(number, entries);
            })) {
          // It's gone. What was taken may be another limiter's by now.
          limiter.give_dropped(at, end);
          all = false;
          break;
        }
        if (end == 0) break;
        at = end;
      }
    }
    return all;
  }
  // As if none of the births of the replicated limiters' keys had fitted.
  void drop_all() noexcept;

 private:
  static constexpr std::size_t kListedAtOnce = 64;
  static constexpr std::size_t kClosingMost = 256;  // beyond these, whoever makes a limiter closes some

  // The open replicated limiters. (mutex)
  std::vector<Ref> replicated(bool owned) const;
  // Of one limiter, from one place in the order of the hashes up to another (0: the end). False if it is gone.
  template <class Visit>
  static bool visit_keys(Ref ref, Nanos now, Table::Cursor from, Table::Cursor to, Visit visit) {
    Table::Copy room;
    std::span<Table::Entry> copied;
    Table::Cursor at = from;
    do {
      const Status status =
          ref.limiter->table_.copy_segment(ref.generation, ref.limiter->terms(), now, at, room, copied);
      if (status == Status::gone) return false;
      if (status == Status::stale) continue;  // the limiter has changed since its terms were read
      const auto beyond = [&](const Table::Entry& entry) { return to != 0 && entry.key.v >= to; };
      visit(copied.first(
          static_cast<std::size_t>(std::remove_if(copied.begin(), copied.end(), beyond) - copied.begin())));
      if (at == 0) return true;
    } while (to == 0 || at < to);
    return true;
  }

  void carry(Limiter& limiter, const Policy& policy, Nanos now) noexcept;
  template <class Name>
  Ref found(LimiterIndex::Kind kind, std::uint64_t key, std::atomic<Name> Limiter::*name) const noexcept;
  void add(LimiterIndex::Kind kind, std::uint64_t key, Limiter* limiter);
  void begin_remove(Limiter& limiter) noexcept;
  Limiter* take_free();
  bool close_some(unsigned& segments);
  bool maintain_one(Limiter& limiter, Nanos now, unsigned& segments);

  Arena arena_;
  Replication replication_;
  const unsigned stripes_;
  std::mutex turn_;  // of maintain; taken before the next one
  mutable std::mutex mutex_;
  LimiterIndex index_;
  std::vector<std::unique_ptr<Limiter>> limiters_;
  std::vector<Limiter*> free_;
  Limiter* closing_ = nullptr;  // the oldest of them, and the youngest
  Limiter* closing_last_ = nullptr;
  unsigned named_ = 0, transient_ = 0;  // open ones
  std::size_t aliases_ = 0, numbers_ = 0;
  std::size_t maintain_next_ = 0;
  Nanos carrying_since_;  // 0: keys are not carried
  Nanos carrying_most_;
  Nanos carried_seen_;  // of the limiters that this pass has come by
  std::atomic<std::int64_t> carried_until_{0};
  std::atomic<std::size_t> closing_count_{0};
};

// Questions to one limiter, one after the other: what they have in common is read and counted once.
class Asker {
 public:
  Asker(Registry::Ref ref, unsigned stripe) noexcept : ref_(ref), stripe_(stripe), brief_(ref.limiter->brief()) {}
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;
  ~Asker() {
    for (unsigned kind = 0; kind < Limiter::kKinds; ++kind)
      if (counts_[kind] != 0) ref_.limiter->count(static_cast<Limiter::Kind>(kind), stripe_, counts_[kind]);
  }

  const Registry::Ref& ref() const noexcept { return ref_; }
  // As Registry::ask.
  Answered ask(KeyHash key, Tokens hits, Nanos now) noexcept;

 private:
  Registry::Ref ref_;
  unsigned stripe_;
  Limiter::Brief brief_;
  std::array<std::int64_t, Limiter::kKinds> counts_{};
};

// ---- the way of a decision, inlined into its callers ----

inline Tokens Answered::remaining(Nanos now) const noexcept {
  if (reason == Reason::error || reason == Reason::partition) return {0};
  return {std::max<std::int64_t>(0, Tat(tat).slack(policy, now).v)};
}
inline Nanos Answered::reset(Nanos now) const noexcept {
  if (reason == Reason::error || reason == Reason::partition) return {0};
  return {std::max<std::int64_t>(0, (tat - now).v)};
}

WEIR_INLINE Limiter::Brief Limiter::brief() const noexcept {
  for (;;) {
    const std::uint32_t sequence = sequence_.load(std::memory_order_acquire);
    const Brief brief{{{capacity_.load(std::memory_order_acquire)}, {interval_.load(std::memory_order_acquire)}},
                      version_.load(std::memory_order_acquire)};
    if ((sequence & 1) == 0 && sequence_.load(std::memory_order_relaxed) == sequence) [[likely]]
      return brief;
    spin_pause();
  }
}

namespace detail {

// What the usual way doesn't settle.
Answered ask_any(Registry::Ref ref, Limiter::Brief& brief, KeyHash key, Tokens hits, Nanos now,
                 unsigned stripe) noexcept;

WEIR_INLINE Answered ask(Registry::Ref ref, Limiter::Brief& brief, KeyHash key, Tokens hits, Nanos now,
                         unsigned stripe) noexcept {
  Limiter& limiter = *ref.limiter;
  if (!limiter.halted()) [[likely]] {
    const Ruling ruling = limiter.table().try_decide(ref.generation, brief.policy, brief.version, key, hits, now);
    if (ruling.verdict == Verdict::admitted) [[likely]] {
      if (limiter.replicated()) limiter.tell(stripe, key, hits, now, brief.policy, ruling.tat);
      return {Answered::Reason::ok, true, brief.policy, ruling.tat};
    }
    if (ruling.verdict == Verdict::denied) {
      if (limiter.shadow()) return {Answered::Reason::shadow, true, brief.policy, ruling.tat};
      return {Answered::Reason::limit, false, brief.policy, ruling.tat};
    }
  }
  return ask_any(ref, brief, key, hits, now, stripe);
}

}  // namespace detail

WEIR_INLINE Answered Registry::ask(Ref ref, KeyHash key, Tokens hits, Nanos now, unsigned stripe) noexcept {
  Limiter::Brief brief = ref.limiter->brief();
  const Answered answered = detail::ask(ref, brief, key, hits, now, stripe);
  ref.limiter->count(Limiter::kind_of(answered), stripe, 1);
  return answered;
}

WEIR_INLINE Answered Asker::ask(KeyHash key, Tokens hits, Nanos now) noexcept {
  const Answered answered = detail::ask(ref_, brief_, key, hits, now, stripe_);
  ++counts_[Limiter::kind_of(answered)];
  return answered;
}

WEIR_INLINE Registry::Ref Registry::find_alias(std::uint64_t alias) const noexcept {
  return found(LimiterIndex::Kind::alias, alias, &Limiter::alias_);
}

template <class Name>
WEIR_INLINE Registry::Ref Registry::found(LimiterIndex::Kind kind, std::uint64_t key,
                                          std::atomic<Name> Limiter::*name) const noexcept {
  std::uint64_t generation = 0;
  // The generation before the name and after: if it is the same, the limiter had the name in it.
  Limiter* const limiter = index_.find(kind, key, [&](const Limiter& is) {
    generation = is.table_.generation();
    return (is.*name).load(std::memory_order_acquire) == key && is.table_.generation() == generation;
  });
  return {limiter, generation};
}

}  // namespace weir
