// table: from a key's hash to its state, for one limiter.
//
// Memory. A table is a directory of *segments* (arena.hpp); a segment is 1 to 8 pages of 64 lines; a line is one cache
// line of slots, and a slot is (hash, TAT, payload):
//
//   directory word   segment address | version of the limiter (6 bits) | depth (5) | converting (1) | pages - 1 (3)
//   line, tat        tat0 tat1 tat2 tat3 | hash0 hash1 hash2 hash3       4 slots of 16 bytes
//   line, interval   tat0 tat1 | hash0 hash1 | payload0 | payload1       2 slots of 32 bytes (cell.hpp)
//
// The hash chooses two lines of the segment (cuckoo hashing, Pagh and Rodler, with lines as buckets): the *home*, where
// a key lives unless it was full, and the *second*. A spare bit of tat1 says that the home overflowed, so a look-up
// reads one line unless it did; at most two are ever read. An insert that finds both full moves another key to that
// key's other line. A spare bit of tat0 is the line's lock.
//
// Growth. A segment that can't place a key is rebuilt alone: one page larger, or, if 8 pages don't do, split in two
// under the next bit of the hash (extendible hashing). Rebuilding moves <= 2048 slots under that segment's locks; the
// rest of the table goes on. Pages step by 5:6:7:8, so 0.73 to 0.87 of the slots are in use.
//
// Expiry. A slot whose state is dead (cell.hpp; TAT <= now for `tat`) is as good as empty: any insert may take it.
// `sweep` clears what nobody took, some segments at a time, shrinks segments and gives pages back.
//
// Eviction. At `max_keys` keys, or when no page may be added, a new key takes the place of the key with the lowest
// level in its line (in the next line that has one, if both of its own are empty); keys and tokens lost are counted.
//
// Synchronisation. Writers hold the lock of the key's home line and of every line that they write. Who waits for a lock
// waits in ascending address order (a rebuild locks its whole segment from the front) and otherwise only tries, so
// there is no deadlock, and several keys may be locked at once by taking all their lines in address order. Who has
// locked a line reads the directory word and the generation again: a rebuild or close must hold that same lock, so if
// they stand, they stand until the unlock. A denial takes no lock and writes nothing: it reads hash, TAT, hash, TAT;
// the slot's writer clears the hash before it changes the owner, so if both stand the TAT was that key's. Then it reads
// the directory word again: a conversion marks the word before it changes a TAT, so the TAT was of the caller's terms.
// Memory is type-stable (arena.hpp), so a stale address is harmless; it fails validation.
//
// Changing the limiter. `Terms` carry a version, and so does each segment. A segment of the version before is converted
// as a whole (fold's `change`, at the time of the change) by whoever comes first: a caller or `convert`. A table must
// be converted wholly before its limiter changes again. Versions count modulo 64: who would sleep through 63 changes
// inside of one decision is not provided for.
//
// Complexity: decide O(1), one cache line (plus the directory word, which stays cached: 8 bytes for about 1000 keys);
// an insert that rebuilds, tens of microseconds. Exceptions: bad_alloc from inserts, with no change made.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>

#include "weir/arena.hpp"
#include "weir/cell.hpp"
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

struct TableStats {
  std::int64_t keys;  // slots in use, expired ones included until they are swept or taken
  std::int64_t max_keys;
  std::int64_t evicted_keys;
  std::int64_t evicted_tokens;
  std::int64_t memory_bytes;
};

template <class Cell>
class Table {
 public:
  using State = typename Cell::State;
  using Generation = std::uint64_t;
  static constexpr unsigned kSlots = Cell::kSlots;
  static constexpr unsigned kPageLines = Arena::kPageBytes / 64;
  static constexpr unsigned kPageSlots = kPageLines * kSlots;
  static constexpr unsigned kMaxPages = Arena::kSegmentPages;
  static constexpr unsigned kMoves = Cell::kMoves;  // the most keys that one insert moves to their other lines
  static constexpr std::int64_t kMaxKeys = std::int64_t{1} << 28;
  static constexpr unsigned kVersions = 64;

  // A table is made closed: `open` gives it memory and a generation, `close` takes them back.
  explicit Table(Arena& arena) noexcept : arena_(arena) {}
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  // REQUIRES: no other thread uses the table.
  ~Table() {
    if (begin_close()) {
      while (!close_some(kMaxPages)) {
      }
    }
  }

  // REQUIRES: closed (close_some has returned true), 1 <= max_keys <= kMaxKeys. Throws bad_alloc.
  Generation open(std::int64_t max_keys, std::uint32_t version);
  // From here on every operation with the table's generation answers `gone`. False if it was not open.
  bool begin_close() noexcept;
  // Releases up to `segments` segments; true when all are. About 10 us each.
  bool close_some(unsigned segments) noexcept;

  // Decides `hits` at `now` and counts what is admitted. REQUIRES: hits >= 1, terms.policy valid.
  Status decide(Generation generation, const Terms& terms, KeyHash key, Tokens hits, Nanos now, Decision& out);
  // A copy of the key's state, empty if there is none.
  Status peek(Generation generation, const Terms& terms, KeyHash key, Nanos now, State& out);
  Status reset(Generation generation, const Terms& terms, KeyHash key, Nanos now);
  // Brings the key's TAT up to `tat`, or to exactly that.
  Status set_level(Generation generation, const Terms& terms, KeyHash key, Nanos tat, bool exactly,
                   Nanos now) requires(Cell::kPayload == 0);
  // Takes the key out of the table; `out` is what it was, empty if there was none.
  Status take(Generation generation, const Terms& terms, KeyHash key, Nanos now, State& out);
  // Adds to the key's level what takes `span` to drain, and says what its TAT is then.
  Status add(Generation generation, const Terms& terms, KeyHash key, Nanos span, Nanos now,
             Nanos& tat) requires(Cell::kPayload == 0);

  // Brings the lines that `decide` will read into the cache. Never writes.
  void prefetch(KeyHash key) const noexcept;

  // Converts up to `segments` segments from `cursor` on; true at the end of the table. The cursor starts at 0.
  bool convert(Generation generation, const Terms& terms, std::size_t& cursor, unsigned segments);
  // Clears what is dead in up to `segments` segments from `cursor` on; true at the end of the table. About 15 us each.
  bool sweep(Generation generation, const Terms& terms, Nanos now, std::size_t& cursor, unsigned segments);

  // Calls visit(KeyHash, const State&) for every key that isn't dead, a segment at a time, under its locks.
  template <class Visit>
  void for_each(const Terms& terms, Nanos now, Visit visit);

  TableStats stats() const noexcept;
  // Odd while the table is open; what the operations above are given to know that it's still the same.
  Generation generation() const noexcept { return generation_.load(std::memory_order_acquire); }
  // The table's size in bytes; cheap: a batch asks it to choose whether to prefetch.
  std::int64_t bytes() const noexcept {
    return pages_.load(std::memory_order_relaxed) * static_cast<std::int64_t>(Arena::kPageBytes);
  }

 private:
  using Word = Arena::Word;
  using Line = CellLine<Cell>;
  using Payload = std::array<std::atomic<std::uint64_t>, Cell::kPayload>;
  static_assert(sizeof(Line) == 64, "a look-up is one cache line");
  static_assert(offsetof(Line, tat) == 0, "the lock is where any cell type has it: tables share an arena");

  // Of tat[0]. Not the sign bit: gcc 12 would make a loop of compare-and-exchange of what is one `lock bts` here.
  static constexpr std::uint64_t kLock = std::uint64_t{1} << 62;
  static constexpr std::uint64_t kTimeBits = (std::uint64_t{1} << 62) - 1;
  static constexpr std::uint64_t kOverflowed = std::uint64_t{1} << 63;  // of tat[1]: a key of this home is elsewhere

  // A directory word, taken apart.
  struct Entry {
    std::uint64_t word;
    Line* lines() const noexcept { return reinterpret_cast<Line*>(word & ~std::uint64_t{Arena::kSegmentBytes - 1}); }
    unsigned pages() const noexcept { return (word & 7) + 1; }
    bool converting() const noexcept { return (word & 8) != 0; }
    Entry as_converting() const noexcept { return {word | 8}; }
    unsigned depth() const noexcept { return word >> 4 & 31; }
    unsigned version() const noexcept { return word >> 9 & 63; }
    unsigned line_count() const noexcept { return pages() * kPageLines; }
    Line* home(KeyHash key) const noexcept { return lines() + home_index(key, pages()); }
    Line* second(KeyHash key) const noexcept { return lines() + second_index(key, pages()); }
    // The line where a key that is in `line` could also be.
    Line* other(KeyHash key, const Line* line) const noexcept { return line == home(key) ? second(key) : home(key); }
    static Entry make(std::byte* segment, unsigned pages, unsigned depth, std::uint32_t version) noexcept {
      return {reinterpret_cast<std::uint64_t>(segment) | (pages - 1) | depth << 4 | (version % kVersions) << 9};
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

  struct Directory {
    Word* words;
    unsigned bits;
    std::size_t index(KeyHash key) const noexcept { return bits == 0 ? 0 : key.v >> (64 - bits); }
    // The first word behind those of the segment that word `at` names.
    std::size_t behind(std::size_t at, Entry entry) const noexcept {
      return (at | ((std::size_t{1} << (bits - entry.depth())) - 1)) + 1;
    }
  };

  // Plain copies of slots and lines, in which a rebuild arranges a segment before it writes it.
  struct Slot {
    std::uint64_t hash = 0;
    std::uint64_t tat = 0;
    [[no_unique_address]] std::array<std::uint64_t, Cell::kPayload> payload{};
  };
  struct Image {
    struct PlainLine {
      Slot slots[kSlots];
      bool overflowed;
    };
    unsigned pages;
    PlainLine lines[kMaxPages * kPageLines];

    void clear(unsigned to_pages) noexcept;
    bool make_room(KeyHash key) noexcept;
    bool place(const Slot& slot) noexcept;

   private:
    unsigned other(const Slot& slot, unsigned line) const noexcept;
    Slot* hole(unsigned line, unsigned moves) noexcept;
  };

  // The locks of one or two lines, released at the end of the scope.
  class Locks {
   public:
    Locks() = default;
    Locks(const Locks&) = delete;
    Locks& operator=(const Locks&) = delete;
    ~Locks() { release(); }
    void take(Line* a) noexcept {
      lock(*a);
      lines_[held_++] = a;
    }
    void take(Line* a, Line* b) noexcept {
      take(std::min(a, b));
      take(std::max(a, b));
    }
    bool attempt(Line* a) noexcept {
      if (!try_lock(*a)) return false;
      lines_[held_++] = a;
      return true;
    }
    void release() noexcept {
      while (held_ > 0) unlock(*lines_[--held_]);
    }

   private:
    std::array<Line*, 2> lines_{};
    unsigned held_ = 0;
  };

  struct Found {
    Line* line = nullptr;
    unsigned slot = 0;
    explicit operator bool() const noexcept { return line != nullptr; }
  };

  enum class Rebuilt : std::uint8_t { done, again, full };
  enum class Goal : std::uint8_t { room, shrink };

  static void lock(Line& line) noexcept;
  static bool try_lock(Line& line) noexcept {
    return (line.tat[0].fetch_or(kLock, std::memory_order_acquire) & kLock) == 0;
  }
  static void unlock(Line& line) noexcept;
  static Nanos tat_of(const Line& line, unsigned slot) noexcept {
    return {static_cast<std::int64_t>(line.tat[slot].load(std::memory_order_acquire) & kTimeBits)};
  }
  static bool overflowed(const Line& line) noexcept {
    return (line.tat[1].load(std::memory_order_relaxed) & kOverflowed) != 0;
  }
  static Found find(Line* line, KeyHash key) noexcept;

  Directory directory() const noexcept {
    const std::uint64_t root = root_.load(std::memory_order_acquire);
    return {reinterpret_cast<Word*>(root & ~std::uint64_t{63}), static_cast<unsigned>(root & 63)};
  }
  bool is(Generation generation) const noexcept { return generation_.load(std::memory_order_acquire) == generation; }

  // Runs action(State&, stored) -> changed on the key's state under its locks and stores it if changed.
  template <class Action>
  Status with(Generation generation, const Terms& terms, KeyHash key, Nanos now, Action action);
  // The slot for a new key; none if the segment should be rebuilt first. REQUIRES: both of its lines are locked.
  Found slot_for(Entry entry, KeyHash key, const Policy& policy, Nanos now, bool may_grow) noexcept;
  Found free_slot(Line* line, const Policy& policy, Nanos now) const noexcept;
  Found hole(Entry entry, Line* line, const Policy& policy, Nanos now, unsigned moves) noexcept;
  Found evict(Line* line, const Policy& policy, Nanos now) noexcept;
  void evict_elsewhere(Entry entry, Line* home, const Policy& policy, Nanos now) noexcept;

  static State load(const Line& line, unsigned slot) noexcept;
  void store(Line& line, unsigned slot, KeyHash key, const State& state, const Policy& policy);
  static void set_key(Line& line, unsigned slot, KeyHash key, Nanos tat) noexcept;
  void clear(Line& line, unsigned slot) noexcept;
  void count_heap(std::int64_t change) noexcept {
    if (change != 0) heap_bytes_.fetch_add(change, std::memory_order_relaxed);
  }
  static void move(Line& from, unsigned slot, Line& to, unsigned to_slot) noexcept;
  static void set_overflowed(Line& home) noexcept {
    home.tat[1].store(home.tat[1].load(std::memory_order_relaxed) | kOverflowed, std::memory_order_release);
  }
  static Slot read(const Line& line, unsigned slot) noexcept;
  static void write(Line& line, const typename Image::PlainLine& plain) noexcept;
  static bool dead(const Line& line, unsigned slot, const Policy& policy, Nanos now) noexcept {
    return Cell::dead(policy, tat_of(line, slot), now);
  }

  Rebuilt rebuild(Generation generation, const Terms& terms, std::size_t index, Entry entry, KeyHash need, Nanos now,
                  Goal goal);
  Rebuilt shrink(const Directory& d, std::size_t index, Entry entry, unsigned live) noexcept;
  Rebuilt make_room(const Directory& d, std::size_t index, Entry entry, KeyHash need, unsigned live, unsigned dropped,
                    std::byte*& spare) noexcept;
  bool resize(const Directory& d, std::size_t index, Entry entry, const KeyHash* need, unsigned pages) noexcept;
  bool split(const Directory& d, std::size_t index, Entry entry, unsigned live, std::byte*& spare) noexcept;
  void rewrite(const Directory& d, std::size_t index, Entry entry, unsigned depth, const Image& image) noexcept;
  static bool arrange(Image& image, Entry entry, unsigned pages, int side, unsigned depth) noexcept;
  unsigned drop_dead(Entry entry, const Policy& policy, Nanos now, unsigned& dropped) noexcept;
  static void publish(const Directory& directory, std::size_t index, unsigned depth, Entry entry) noexcept;
  Status convert_segment(Generation generation, const Terms& terms, std::size_t index, Entry entry);
  void sweep_segment(Generation generation, const Terms& terms, std::size_t index, Entry entry, Nanos now);
  bool reserve_pages(std::int64_t pages) noexcept;
  static void lock_lines(Entry entry, unsigned from, unsigned to) noexcept;
  static void unlock_lines(Entry entry, unsigned from, unsigned to) noexcept;

  Arena& arena_;
  std::atomic<Generation> generation_{0};  // odd: open
  std::atomic<std::uint64_t> root_{0};     // directory address | bits
  std::atomic<std::int64_t> pages_{0};
  std::int64_t max_pages_ = 0;
  std::int64_t max_keys_ = 0;
  std::size_t closing_ = 0;  // directory words already released by close_some
  // Written by inserts of new keys: kept off the line that every decision reads.
  alignas(64) std::atomic<std::int64_t> keys_{0};
  std::atomic<std::int64_t> evicted_keys_{0};
  std::atomic<std::int64_t> evicted_tokens_{0};
  std::atomic<std::int64_t> heap_bytes_{0};  // of states that are larger than their slots
};

}  // namespace weir

#include "weir/table_impl.hpp"
