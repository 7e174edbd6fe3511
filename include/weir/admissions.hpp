// admissions: the births that a node's threads admit, on their way to the replica.
//
//   thread 0   push -->  [ring 0]  --+
//   thread 1   push -->  [ring 1]  --+-->  drain, by the one reader
//   others     push -->  [last  ]  --+
//
// Each thread that decides has a ring of its own, which it alone writes; all others share the last one, under a lock.
//
// Joining. A birth joins the last entry of its key in the ring, if the reader has not taken that yet and the birth
// falls into the time that the entry's births keep the bucket busy: where in it each of them began makes no difference
// (interval.hpp). So a key under load costs an entry per drain, not one per request. The entry's `hits` is what both
// sides meet on: the reader swaps in kTaken, and then no birth can join any more.
//
// Waking. The reader is awake, or polled (it looks again within a millisecond or so), or asleep. A push that finds it
// asleep wakes it, once. While it is polled only an urgent push does: one of a key near its share, or into a ring that
// is half full. The reader goes to sleep when a poll finds nothing.
//
// Limit: kRing entries per ring. What doesn't fit is not kept; `push` and `overflowed` say so, and the reader compares
// the levels of the tables' ranges in question with what it knows instead (Registry::for_each_dropped). No thread waits
// for the reader.
//
// Thread safety: push and wakes from any thread, each with its stripe; the rest takes turns on a mutex, held for one
// drain. Complexity: a push is some stores and one full barrier or compare-and-exchange, 5 to 10 ns. Exceptions: the
// constructor may throw bad_alloc.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

// Births of one key from one time on, and what the key's TAT was after them in the node's table.
struct Admission {
  LimiterId limiter;
  KeyHash key;
  Tokens hits;
  Nanos time;
  Nanos tat;
};

class Admissions {
 public:
  static constexpr std::size_t kRing = 8192;
  // What the reader fetches ahead.
  static constexpr std::size_t kAhead = 32;

  // `stripes`: as many rings, the last one for all threads that have none. REQUIRES: stripes >= 1.
  explicit Admissions(unsigned stripes) : stripes_(stripes), rings_(std::make_unique<Ring[]>(stripes)) {}

  // False while nobody reads: then nothing is pushed.
  bool open() const noexcept { return open_.load(std::memory_order_relaxed); }
  void open(bool to) noexcept { open_.store(to, std::memory_order_relaxed); }

  // False if it didn't fit. `interval` is the limiter's; `urgent` says that a millisecond would be late.
  bool push(unsigned stripe, const Admission& admission, Nanos interval, bool urgent) {
    if (!open()) return true;
    Ring& ring = rings_[stripe];
    const bool shared = stripe + 1 == stripes_;
    if (shared) lock_shared();
    const bool fits = put(ring, admission, interval, urgent);
    if (shared) shared_lock_.store(false, std::memory_order_release);
    if (urgent && !urgent_.load(std::memory_order_seq_cst)) urgent_.store(true, std::memory_order_seq_cst);
    return fits;
  }

  // Whether the caller, having pushed, must wake the reader: of many callers, one.
  bool wakes() noexcept {
    if (!open()) return false;
    const Reader reader = reader_.load(std::memory_order_seq_cst);
    if (reader == Reader::awake || (reader == Reader::polled && !urgent_.load(std::memory_order_seq_cst))) return false;
    return reader_.exchange(Reader::awake, std::memory_order_seq_cst) != Reader::awake;
  }

  // The reader is about to drain: from here on nobody wakes it.
  void awake() noexcept {
    reader_.store(Reader::awake, std::memory_order_seq_cst);
    urgent_.store(false, std::memory_order_seq_cst);
  }
  // The reader has drained, and will look again by itself, or won't. False if it should go on at once: something that
  // nobody will wake it for came in the meantime.
  bool rests(bool polled) noexcept {
    reader_.store(polled ? Reader::polled : Reader::asleep, std::memory_order_seq_cst);
    const bool missed = polled ? urgent_.load(std::memory_order_seq_cst) : !empty();
    return !missed || reader_.exchange(Reader::awake, std::memory_order_seq_cst) == Reader::awake;
  }

  // Calls visit(admission) for births that are there, at most `most` entries, those of one thread in their order; and
  // ahead(limiter, key) some entries before that. Returns the number of entries.
  template <class Visit, class Ahead>
  std::size_t drain(std::size_t most, Visit visit, Ahead ahead) {
    const std::lock_guard lock(drain_mutex_);
    std::size_t taken = 0;
    for (unsigned s = 0; s < stripes_ && taken < most; ++s) {
      Ring& ring = rings_[s];
      std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
      const std::uint64_t there = ring.head.load(std::memory_order_seq_cst) - tail;
      const std::uint64_t head = tail + std::min<std::uint64_t>(there, most - taken);
      taken += head - tail;
      while (tail != head) {
        const std::uint64_t end = std::min<std::uint64_t>(head, tail + kAhead);
        for (std::uint64_t at = tail; at != end; ++at) {
          const Entry& entry = (*ring.entries)[at % kRing];
          ahead(entry.limiter, entry.key);
        }
        for (; tail != end; ++tail) {
          Entry& entry = (*ring.entries)[tail % kRing];
          const Tokens hits{entry.hits.exchange(kTaken, std::memory_order_acq_rel)};
          visit(Admission{entry.limiter, entry.key, hits, entry.time, {entry.tat.load(std::memory_order_relaxed)}});
        }
        ring.tail.store(tail, std::memory_order_release);
      }
    }
    return taken;
  }
  template <class Visit>
  std::size_t drain(std::size_t most, Visit visit) {
    return drain(most, visit, [](LimiterId, KeyHash) {});
  }
  bool empty() const noexcept {
    for (unsigned s = 0; s < stripes_; ++s) {
      if (rings_[s].tail.load(std::memory_order_relaxed) != rings_[s].head.load(std::memory_order_seq_cst))
        return false;
    }
    return true;
  }

  // Whether births didn't fit since the last call.
  bool overflowed() noexcept { return overflowed_.exchange(false, std::memory_order_acq_rel); }
  // As if: the reader is to compare levels.
  void overflow() noexcept { overflowed_.store(true, std::memory_order_release); }
  std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  enum class Reader : std::uint8_t { asleep, polled, awake };
  static constexpr std::int64_t kTaken = -1;
  static constexpr std::size_t kLast = kRing;  // of as many keys per ring it is known where their last entry is

  struct Entry {
    KeyHash key;
    Nanos time;
    std::atomic<std::int64_t> hits{kTaken};
    std::atomic<std::int64_t> tat{0};
    LimiterId limiter;
  };
  struct Room {
    std::array<Entry, kRing> entries;
    std::array<std::uint32_t, kLast> last{};  // of a key: where its entry was put
    Entry& operator[](std::uint64_t at) noexcept { return entries[at]; }
  };
  struct Ring {
    alignas(64) std::atomic<std::uint64_t> head{0};  // written by whoever pushes, like the next two
    std::uint64_t tail_seen = 0;
    std::unique_ptr<Room> entries;
    alignas(64) std::atomic<std::uint64_t> tail{0};  // written by the reader
  };

  bool put(Ring& ring, const Admission& admission, Nanos interval, bool& urgent) {
    // Made by the first birth: most programs have fewer threads that decide than threads.
    if (!ring.entries) ring.entries.reset(new (std::nothrow) Room);
    if (!ring.entries) return drop();  // without memory it is as full
    std::uint32_t& last = ring.entries->last[(admission.key.v ^ admission.limiter.v) % kLast];
    if (join((*ring.entries)[last], admission, interval)) return true;
    const std::uint64_t head = ring.head.load(std::memory_order_relaxed);
    if (head - ring.tail_seen >= kRing / 2) {
      ring.tail_seen = ring.tail.load(std::memory_order_acquire);
      if (head - ring.tail_seen == kRing) return drop();
      urgent = urgent || head - ring.tail_seen >= kRing / 2;
    }
    Entry& entry = (*ring.entries)[head % kRing];
    entry.key = admission.key;
    entry.limiter = admission.limiter;
    entry.time = admission.time;
    entry.tat.store(admission.tat.v, std::memory_order_relaxed);
    entry.hits.store(admission.hits.v, std::memory_order_relaxed);
    last = static_cast<std::uint32_t>(head % kRing);
    // Before the look at `reader_`, which the reader changes before its last look at the head.
    ring.head.store(head + 1, std::memory_order_seq_cst);
    return true;
  }

  // Whether the birth could be added to an entry that may be its key's, and may have been taken. (Entries are written
  // by the thread that pushes alone; the reader takes them.)
  static bool join(Entry& entry, const Admission& admission, Nanos interval) noexcept {
    if (entry.key != admission.key || entry.limiter != admission.limiter) return false;
    std::int64_t hits = entry.hits.load(std::memory_order_acquire);
    std::int64_t busy, sum;
    if (hits == kTaken || __builtin_mul_overflow(hits, interval.v, &busy) || admission.time < entry.time ||
        (admission.time - entry.time).v > busy || __builtin_add_overflow(hits, admission.hits.v, &sum))
      return false;
    if (!entry.hits.compare_exchange_strong(hits, sum, std::memory_order_acq_rel)) return false;
    // After it: the reader may see a TAT that is too early, and then tells the table a level that it has.
    entry.tat.store(admission.tat.v, std::memory_order_relaxed);
    return true;
  }

  bool drop() noexcept {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }

  void lock_shared() noexcept {
    while (shared_lock_.exchange(true, std::memory_order_acquire)) {
      while (shared_lock_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
  }

  const unsigned stripes_;
  std::unique_ptr<Ring[]> rings_;
  std::atomic<bool> open_{false};
  alignas(64) std::atomic<Reader> reader_{Reader::awake};
  std::atomic<bool> urgent_{false};
  std::atomic<bool> overflowed_{false};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> shared_lock_{false};
  std::mutex drain_mutex_;
};

}  // namespace weir
