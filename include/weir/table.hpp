// table: from a key's hash to its TAT, for one limiter.
//
// Memory. A table is a directory of *segments* (arena.hpp); a segment is 1 to 8 pages of 64 lines (key_line.hpp) of 4
// slots:
//
//   directory   [word] [word] ...   2^bits words, by the upper bits of the hash; doubled when a split needs a bit more
//   word        segment address | version of the limiter (6 bits) | depth (5) | converting (1) | pages - 1 (3)
//   segment     holds the keys that share its prefix, the first `depth` bits of their hashes; 2^(bits - depth)
//               neighbouring words name it
//
// The hash chooses two lines of the segment (cuckoo hashing, Pagh and Rodler, with lines as buckets): the *home*, where
// a key lives unless it was full, and the *second*. A mark of the home says that it overflowed, so a look-up reads one
// line unless it did; at most two are ever read. An insert that finds both full moves another key to that key's other
// line.
//
// Growth. A segment that can't place a key is rebuilt alone: one page larger, or, if 8 pages don't do, split in two
// under the next bit of the hash (extendible hashing, Fagin et al.). Rebuilding moves <= 2048 slots under that
// segment's locks; the rest of the table goes on. Where that bit hardly divides the keys, as while they come in the
// order of their hashes, the larger half stays where it lies. Pages step by 5:6:7:8, so 0.73 to 0.87 of the slots are
// in use.
//
// Expiry. A slot whose TAT is not after now is as good as empty: any insert may take it. `sweep` clears what nobody
// took, some segments at a time, shrinks segments, and merges neighbours that are nearly empty.
//
// Eviction. At `max_keys` keys, or when no page may be added, a new key takes the place of the key with the lowest
// level among those of its two lines and of some more (`lowest_nearby`); keys and tokens lost are counted.
//
// Synchronisation. Writers hold the lock of the line that holds the key; an insert holds its home line's, and those of
// all other lines that it writes. A thread that waits for a lock waits in ascending address order (a rebuild locks its
// whole segment from the front, a merge the lower segment first) and otherwise only tries, so there is no deadlock, and
// several keys may be locked at once by taking all their lines in address order. After locking, a thread reads the
// directory's address, the word and the generation again: a rebuild or close must hold that same lock, so if they
// stand, they stand until the unlock. A denial takes no lock and writes nothing: it reads hash, TAT, hash, TAT; then
// the directory again: a conversion marks the word before it changes a TAT, so the TAT was of the caller's terms.
// Memory is type-stable (arena.hpp), so a stale address is harmless; it fails validation. doc/locks.md lists the locks.
//
// The directory. Words change under `directory_mutex_`, which is taken after lines and held for some stores, or for a
// copy of the directory when it doubles (50 us at 16M keys). A larger one is filled and published before the words of
// the old one are cleared: a thread that still reads the old one either saw a word that was true, or begins again.
//
// Changing the limiter. `Terms` carry a version, and so does each segment. A segment of the version before is converted
// as a whole (Tat::change, at the time of the change) by whoever comes first: a caller or `convert`. A table must be
// converted wholly before its limiter changes again. Versions count modulo 64: a thread that sleeps through 63 changes
// inside of one decision is not provided for.
//
// Complexity: a decision O(1), one cache line (plus the directory word, which stays cached: 8 bytes for about 1000
// keys); an insert that rebuilds, tens of microseconds, and 36 to 72 KiB of stack. Exceptions: bad_alloc from inserts,
// with no change made.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>

#include "weir/arena.hpp"
#include "weir/key_line.hpp"
#include "weir/tat.hpp"
#include "weir/units.hpp"

namespace weir {

// What a limiter asks for, as of `version`; `before` and `changed_at` say how to carry older states over.
struct Terms {
  Policy policy;
  std::uint32_t version = 0;
  Policy before;
  Nanos changed_at;
};

enum class Status : std::uint8_t {
  ok,
  gone,   // the limiter was deleted
  stale,  // the limiter has changed since the terms were read: read them again
};

// What a question comes to. `tat` is the key's after it if the hits were admitted, else as it stands; it says all that
// a caller may want to know (Tat::allowed, Tat::denied).
enum class Verdict : std::uint8_t { admitted, denied, unsure };
struct Ruling {
  Verdict verdict;
  Nanos tat;
};

struct TableStats {
  std::int64_t keys;  // slots in use, expired ones included until they are swept or taken
  std::int64_t max_keys;
  std::int64_t evicted_keys;
  std::int64_t evicted_tokens;
  std::int64_t memory_bytes;
};

class Table {
 public:
  using Generation = std::uint64_t;
  // A place among the hashes, from 0 on. Walks that go on at one meet every key that stays, also past a split.
  using Cursor = std::uint64_t;
  static constexpr unsigned kSlots = KeyLine::kSlots;
  static constexpr unsigned kPageLines = Arena::kPageBytes / sizeof(KeyLine);
  static constexpr unsigned kPageSlots = kPageLines * kSlots;
  static constexpr unsigned kMaxPages = Arena::kSegmentPages;
  static constexpr unsigned kMaxSlots = kMaxPages * kPageSlots;  // of a segment
  static constexpr unsigned kMoves = 2;        // the most keys that one insert moves to their other lines
  static constexpr unsigned kNeighbours = 16;  // lines that a full table looks at for a lower level than it would evict
  static constexpr std::int64_t kMaxKeys = std::int64_t{1} << 28;
  static constexpr unsigned kVersions = 64;

  // A table is made closed: `open` gives it memory and a generation, `close` takes them back.
  explicit Table(Arena& arena) noexcept : arena_(arena) {}
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  // REQUIRES: no other thread uses the table.
  ~Table();

  // REQUIRES: closed (close_some has returned true), 1 <= max_keys <= kMaxKeys. Throws bad_alloc.
  Generation open(std::int64_t max_keys, std::uint32_t version);
  // From here on every operation with the table's generation answers `gone`. False if it was not open.
  bool begin_close() noexcept;
  // Releases up to `segments` segments; true when all are. About 10 us each.
  bool close_some(unsigned segments) noexcept;

  // Decides `hits` at `now` and counts what is admitted, if that takes no more than the line where the key is: never
  // inserts, converts or fails. `unsure`: ask `decide`. REQUIRES: hits >= 1, policy valid, of the version.
  Ruling try_decide(Generation generation, const Policy& policy, std::uint32_t version, KeyHash key, Tokens hits,
                    Nanos now) noexcept;
  // What `try_decide` doesn't settle. `out.verdict` is never `unsure` when it returns ok.
  Status decide(Generation generation, const Terms& terms, KeyHash key, Tokens hits, Nanos now, Ruling& out);
  // Both, with all that can be said of it.
  Status decide(Generation generation, const Terms& terms, KeyHash key, Tokens hits, Nanos now, Decision& out);
  // A copy of the key's state, empty if there is none.
  Status peek(Generation generation, const Terms& terms, KeyHash key, Nanos now, Tat& out);
  Status reset(Generation generation, const Terms& terms, KeyHash key, Nanos now);
  // Brings the key's TAT up to `tat`, or to exactly that.
  Status set_level(Generation generation, const Terms& terms, KeyHash key, Nanos tat, bool exactly, Nanos now);
  // Takes the key out of the table; `out` is what it was, empty if there was none.
  Status take(Generation generation, const Terms& terms, KeyHash key, Nanos now, Tat& out);
  // Adds to the key's level what takes `span` to drain, and says what its TAT is then.
  Status add(Generation generation, const Terms& terms, KeyHash key, Nanos span, Nanos now, Nanos& tat);

  // Brings the line that `try_decide` reads first into the cache. Never writes.
  void prefetch(KeyHash key) const noexcept;
  // Later: the second line, if it will be needed.
  void prefetch_second(KeyHash key) const noexcept;

  // Converts up to `segments` segments from `cursor` on; true at the end of the table. The cursor starts at 0.
  bool convert(Generation generation, const Terms& terms, Cursor& cursor, unsigned segments);
  // Clears what is dead in up to `segments` segments from `cursor` on; true at the end of the table. About 15 us each.
  bool sweep(Generation generation, const Terms& terms, Nanos now, Cursor& cursor, unsigned segments);

  struct Entry {
    KeyHash key;
    Nanos tat;
  };
  using Copy = std::array<Entry, kMaxSlots>;
  // Copies the keys of one segment that aren't dead, as of the terms; the locks are held for the copy alone, about
  // 10 us. Moves the cursor past the segment, to 0 at the end of the table.
  Status copy_segment(Generation generation, const Terms& terms, Nanos now, Cursor& cursor, Copy& room,
                      std::span<Entry>& copied);
  // Calls visit(KeyHash, const Tat&) for every key that isn't dead, a segment at a time, with no lock held. Ends early
  // if the terms are out of date.
  template <class Visit>
  void for_each(const Terms& terms, Nanos now, Visit visit) {
    Copy room;
    std::span<Entry> copied;
    Cursor cursor = 0;
    do {
      if (copy_segment(generation(), terms, now, cursor, room, copied) != Status::ok) return;
      for (const Entry& entry : copied) visit(entry.key, Tat(entry.tat));
    } while (cursor != 0);
  }

  // The end of the segment that a cursor is in, as of now; 0 at the end of the table.
  Cursor segment_end(Cursor at) const noexcept {
    const Place place = place_of(at);
    return place ? behind(at, place.segment) : 0;
  }

  TableStats stats() const noexcept;
  // Odd while the table is open; what the operations above are given to know that it's still the same.
  Generation generation() const noexcept { return generation_.load(std::memory_order_acquire); }
  // The pages' size in bytes; cheap: a batch asks it to choose whether to prefetch.
  std::int64_t bytes() const noexcept {
    return pages_.load(std::memory_order_relaxed) * static_cast<std::int64_t>(Arena::kPageBytes);
  }
  // What is wrong with the table's memory, or null: for tests. REQUIRES: no other thread uses the table.
  const char* validate() const noexcept;

 private:
  using Word = Arena::Word;

  // A directory word, taken apart.
  struct Segment {
    std::uint64_t word = 0;
    KeyLine* lines() const noexcept {
      return reinterpret_cast<KeyLine*>(word & ~std::uint64_t{Arena::kSegmentBytes - 1});
    }
    unsigned pages() const noexcept { return (word & 7) + 1; }
    bool converting() const noexcept { return (word & 8) != 0; }
    Segment as_converting() const noexcept { return {word | 8}; }
    unsigned depth() const noexcept { return word >> 4 & 31; }
    unsigned version() const noexcept { return word >> 9 & 63; }
    bool is_of(std::uint32_t of) const noexcept { return version() == of % kVersions; }
    // Of the version, and not being converted.
    bool settled(std::uint32_t of) const noexcept {
      return (word & (63 << 9 | 8)) == static_cast<std::uint64_t>(of % kVersions) << 9;
    }
    unsigned line_count() const noexcept { return pages() * kPageLines; }
    WEIR_INLINE KeyLine* home(KeyHash key) const noexcept { return lines() + home_index(key, pages()); }
    WEIR_INLINE KeyLine* second(KeyHash key) const noexcept { return lines() + second_index(key, pages()); }
    // The line where a key that is in `line` could also be.
    KeyLine* other(KeyHash key, const KeyLine* line) const noexcept {
      return line == home(key) ? second(key) : home(key);
    }
    Segment deeper() const noexcept { return {word + (1 << 4)}; }
    static Segment make(std::byte* memory, unsigned pages, unsigned depth, unsigned version) noexcept {
      return {reinterpret_cast<std::uint64_t>(memory) | (pages - 1) | depth << 4 |
              static_cast<std::uint64_t>(version % kVersions) << 9};
    }
  };
  static_assert(Arena::kSegmentBytes == 1 << 15, "a directory word keeps 15 bits beside the address");

  static unsigned home_index(KeyHash key, unsigned pages) noexcept {
    return static_cast<unsigned>((key.v & 0xffffffff) * (std::uint64_t{pages} * kPageLines) >> 32);
  }
  // Another line than the home, from other bits of the hash.
  static unsigned second_index(KeyHash key, unsigned pages) noexcept {
    const unsigned lines = pages * kPageLines;
    const std::uint64_t mixed = (key.v * 0x9e3779b97f4a7c15) >> 32;
    const auto index = home_index(key, pages) + 1 + static_cast<unsigned>(mixed * (lines - 1) >> 32);
    return index < lines ? index : index - lines;
  }
  // The first `depth` bits of a hash.
  static std::uint64_t prefix_of(std::uint64_t hash, unsigned depth) noexcept {
    return depth == 0 ? 0 : hash >> (64 - depth) << (64 - depth);
  }

  struct Directory {
    std::uint64_t root = 0;  // address | bits
    Word* words() const noexcept { return reinterpret_cast<Word*>(root & ~std::uint64_t{63}); }
    unsigned bits() const noexcept { return root & 63; }
    std::size_t index(std::uint64_t hash) const noexcept { return bits() == 0 ? 0 : hash >> (64 - bits()); }
  };

  // A segment as it was found, and where.
  struct Place {
    std::uint64_t root;
    const Word* word;
    Segment segment;
    explicit operator bool() const noexcept { return segment.word != 0; }
  };
  // A key's slot as it was found, without a lock.
  struct Found {
    Place place;
    KeyLine* line = nullptr;  // null: it isn't there
    unsigned slot = 0;
  };
  struct Slot {
    KeyLine* line = nullptr;
    unsigned at = 0;
    explicit operator bool() const noexcept { return line != nullptr; }
  };

  class SegmentLocks;
  struct Image;
  // changes(Tat&): whether it has changed the state, which is then stored.
  struct Action {
    void* context;
    bool (*run)(void* context, Tat& state);
    bool operator()(Tat& state) const { return run(context, state); }
  };

  Directory directory() const noexcept { return {root_.load(std::memory_order_acquire)}; }
  bool is(Generation generation) const noexcept { return generation_.load(std::memory_order_acquire) == generation; }
  WEIR_INLINE Place place_of(std::uint64_t hash) const noexcept {
    const Directory d = directory();
    if (d.words() == nullptr) return {d.root, nullptr, {}};
    const Word* const word = d.words() + d.index(hash);
    return {d.root, word, {word->load(std::memory_order_acquire)}};
  }
  // Whether the place is still as it was found. REQUIRES, for it to stay so: one of its lines is locked.
  WEIR_INLINE bool stands(const Place& place, Generation generation) const noexcept {
    return place.word->load(std::memory_order_acquire) == place.segment.word &&
           root_.load(std::memory_order_acquire) == place.root && is(generation);
  }
  WEIR_INLINE static Found find_in(const Place& place, KeyHash key) noexcept {
    KeyLine* line = place.segment.home(key);
    unsigned match = line->match(key);
    if (match == 0) [[unlikely]] {
      if (!line->overflowed()) return {place, nullptr, 0};
      line = place.segment.second(key);
      match = line->match(key);
      if (match == 0) return {place, nullptr, 0};
    }
    return {place, line, static_cast<unsigned>(std::countr_zero(match))};
  }

  // Runs the action on the key's state under its lock. The whole of it; `update` is the usual case.
  Status update_any(Generation generation, const Terms& terms, KeyHash key, Nanos now, Action action);
  template <class F>
  Status update(Generation generation, const Terms& terms, KeyHash key, Nanos now, F changes) {
    return update_any(generation, terms, key, now,
                      {&changes, [](void* context, Tat& state) { return (*static_cast<F*>(context))(state); }});
  }
  enum class Entered : std::uint8_t { done, again, full };
  Entered enter(const Place& place, Generation generation, const Terms& terms, KeyHash key, Nanos now, Action action,
                bool may_grow);
  void store(Slot slot, Tat state) noexcept;
  bool ask_in(KeyLine* line, KeyHash key, Action action) noexcept;
  Entered put(Slot slot, KeyHash key, Action action) noexcept;
  Slot slot_for(Segment segment, KeyHash key, const Policy& policy, Nanos now, bool may_grow) noexcept;
  Slot free_slot(KeyLine* line, Nanos now) const noexcept;
  Slot hole(Segment segment, KeyLine* line, Nanos now, unsigned moves) noexcept;
  Slot evict(Segment segment, KeyHash key, const Policy& policy, Nanos now) noexcept;
  static void move(Slot from, Slot to, Segment segment) noexcept;
  bool evict_below(Slot victim, Nanos below, const Policy& policy, Nanos now) noexcept;
  Slot push_out(Segment segment, KeyLine* home, KeyLine* second, Nanos below, const Policy& policy, Nanos now) noexcept;
  static Slot lowest(KeyLine* line) noexcept;
  static Slot lowest_nearby(Segment segment, KeyLine* home, KeyLine* second, Nanos below) noexcept;
  void count_evicted(Nanos tat, const Policy& policy, Nanos now) noexcept;
  bool full() const noexcept { return keys_.load(std::memory_order_relaxed) >= max_keys_; }

  // table_segments.cpp: whole segments, and the directory
  enum class Rebuilt : std::uint8_t { done, again, deepen, full };
  enum class Goal : std::uint8_t { room, shrink };
  Rebuilt rebuild(Generation generation, const Place& place, KeyHash key, Nanos now, Goal goal);
  Rebuilt make_room(SegmentLocks& locks, KeyHash key, unsigned live, unsigned dropped, std::byte*& spare) noexcept;
  bool shrink(SegmentLocks& locks, std::uint64_t hash, unsigned live) noexcept;
  bool resize(SegmentLocks& locks, std::uint64_t hash, const KeyHash* need, unsigned pages) noexcept;
  bool split(SegmentLocks& locks, std::uint64_t hash, unsigned live, std::byte*& spare) noexcept;
  void rewrite(SegmentLocks& locks, std::uint64_t prefix, unsigned depth, const Image& image) noexcept;
  static unsigned move_out(Segment segment, unsigned side) noexcept;
  bool merge(Generation generation, const Place& place, std::uint64_t hash, Nanos now) noexcept;
  unsigned drop_dead(Segment segment, Nanos now, unsigned& dropped) noexcept;
  Status convert_segment(Generation generation, const Terms& terms, const Place& place, std::uint64_t hash) noexcept;
  void sweep_segment(Generation generation, const Place& place, std::uint64_t hash, Nanos now);
  void publish(std::uint64_t prefix, unsigned depth, Segment segment) noexcept;
  void grow_directory(Generation generation, std::uint64_t root);
  bool reserve_pages(std::int64_t pages) noexcept;
  // The beginning of the segment behind; 0 behind the last.
  static Cursor behind(Cursor at, Segment segment) noexcept {
    return segment.depth() == 0 ? 0 : prefix_of(at, segment.depth()) + (std::uint64_t{1} << (64 - segment.depth()));
  }
  template <class Visit>
  bool walk(Generation generation, Cursor& cursor, unsigned segments, Visit visit);

  Arena& arena_;
  std::atomic<Generation> generation_{0};  // odd: open
  std::atomic<std::uint64_t> root_{0};     // directory address | bits
  std::atomic<std::int64_t> pages_{0};
  std::int64_t max_pages_ = 0;
  std::int64_t max_keys_ = 0;
  unsigned max_bits_ = 0;  // of the directory
  Cursor closing_ = 0;     // up to here close_some has come
  // Written by inserts of new keys: kept off the line that every decision reads.
  alignas(64) std::atomic<std::int64_t> keys_{0};
  std::atomic<std::int64_t> evicted_keys_{0};
  std::atomic<std::int64_t> evicted_tokens_{0};
  std::mutex directory_mutex_;
};

WEIR_INLINE Ruling Table::try_decide(Generation generation, const Policy& policy, std::uint32_t version, KeyHash key,
                                     Tokens hits, Nanos now) noexcept {
  const Place place = place_of(key.v);
  if (!place || !place.segment.settled(version)) [[unlikely]]
    return {Verdict::unsure, {}};
  const Found found = find_in(place, key);
  if (found.line == nullptr) return {Verdict::unsure, {}};
  const Tat seen(found.line->tat(found.slot));
  if (!seen.admits(policy, hits, now)) {
    // The TAT was this key's if hash and TAT stand (a slot that went to another key and came back in between has
    // another TAT), and of these terms if the directory word stands.
    const bool same = found.line->holds(found.slot, key) && found.line->tat(found.slot) == seen.value();
    return same && stands(place, generation) ? Ruling{Verdict::denied, seen.value()} : Ruling{Verdict::unsure, {}};
  }
  // Computed ahead: behind the lock the processor waits for whatever comes.
  const Tat taken(std::max(seen.value(), now) + hits * policy.interval);
  const KeyLineLock lock(*found.line);
  if (!stands(place, generation) || !found.line->holds(found.slot, key)) [[unlikely]]
    return {Verdict::unsure, {}};
  Tat state = taken;
  if (found.line->tat(found.slot) != seen.value()) [[unlikely]] {
    state = Tat(found.line->tat(found.slot));
    if (!state.take(policy, hits, now)) return {Verdict::denied, state.value()};
  }
  found.line->set_tat(found.slot, state.value());
  return {Verdict::admitted, state.value()};
}

inline void Table::prefetch(KeyHash key) const noexcept {
  const Place place = place_of(key.v);
  if (place) __builtin_prefetch(place.segment.home(key), 1);
}

inline void Table::prefetch_second(KeyHash key) const noexcept {
  const Place place = place_of(key.v);
  if (!place) return;
  const KeyLine* const home = place.segment.home(key);
  if (home->overflowed() && home->match(key) == 0) __builtin_prefetch(place.segment.second(key), 1);
}

}  // namespace weir
