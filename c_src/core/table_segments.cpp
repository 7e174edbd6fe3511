// table: whole segments: growing, splitting, merging, converting, sweeping, copying, and the directory over them. See
// include/weir/table.hpp.
#include <algorithm>
#include <bit>
#include <utility>

#include "weir/table.hpp"

namespace weir {

// All lines of a segment, locked from the front and released at the end of the scope.
class Table::SegmentLocks {
 public:
  explicit SegmentLocks(Segment segment) noexcept : segment_(segment) { extend(segment.line_count()); }
  SegmentLocks(const SegmentLocks&) = delete;
  SegmentLocks& operator=(const SegmentLocks&) = delete;
  ~SegmentLocks() {
    for (unsigned i = 0; i < held_; ++i) segment_.lines()[i].unlock();
  }

  const Segment& segment() const noexcept { return segment_; }
  // Locks the lines behind, up to so many.
  void extend(unsigned lines) noexcept {
    for (; held_ < lines; ++held_) segment_.lines()[held_].lock();
  }
  // The pages behind so many lines were given back, and their locks with them.
  void forget_beyond(unsigned lines) noexcept { held_ = std::min(held_, lines); }

 private:
  Segment segment_;
  unsigned held_ = 0;
};

// A plain copy in which a rebuild arranges a segment before it writes it.
struct Table::Image {
  struct PlainLine {
    std::array<KeyLine::Slot, kSlots> slots;
    bool overflowed;
  };
  unsigned pages = 0;
  PlainLine lines[kMaxPages * kPageLines];

  // Lays the segment's keys (side < 0: all; else those whose bit under the segment's depth is `side`) out in `to_pages`
  // pages; false if some key finds no place. REQUIRES: the segment's lines are locked and nothing in it is dead.
  bool arrange(Segment segment, unsigned to_pages, int side) noexcept {
    pages = to_pages;
    std::fill_n(lines, pages * kPageLines, PlainLine{});
    return add(segment, side);
  }
  bool add(Segment segment, int side) noexcept {
    for (unsigned l = 0; l < segment.line_count(); ++l)
      for (unsigned i = 0; i < kSlots; ++i) {
        const KeyLine::Slot slot = segment.lines()[l].slot(i);
        if (slot.hash == 0 || (side >= 0 && static_cast<int>(slot.hash >> (63 - segment.depth()) & 1) != side))
          continue;
        if (!place(slot)) return false;
      }
    return true;
  }
  // Makes sure that the key's next insert finds a slot.
  bool make_room(KeyHash key) noexcept {
    return hole(home_index(key, pages), kMoves) != nullptr || hole(second_index(key, pages), kMoves) != nullptr;
  }
  // REQUIRES: the lines are locked.
  void write(KeyLine* to) const noexcept {
    for (unsigned l = 0; l < pages * kPageLines; ++l) to[l].rewrite(lines[l].slots, lines[l].overflowed);
  }

 private:
  bool place(const KeyLine::Slot& slot) noexcept {
    const unsigned home = home_index({slot.hash}, pages);
    const unsigned second = second_index({slot.hash}, pages);
    for (const auto& [line, moves] : {std::pair{home, 0u}, {second, 0u}, {home, kMoves}, {second, kMoves}})
      if (KeyLine::Slot* const free = hole(line, moves)) {
        *free = slot;
        if (line != home) lines[home].overflowed = true;
        return true;
      }
    return false;
  }
  unsigned other(const KeyLine::Slot& slot, unsigned line) const noexcept {
    const unsigned home = home_index({slot.hash}, pages);
    return line == home ? second_index({slot.hash}, pages) : home;
  }
  // An empty slot of the line, made by moving at most `moves` keys; null if that isn't enough.
  KeyLine::Slot* hole(unsigned line, unsigned moves) noexcept {
    for (KeyLine::Slot& slot : lines[line].slots)
      if (slot.hash == 0) return &slot;
    for (unsigned last = 0; last < moves; ++last)
      for (KeyLine::Slot& slot : lines[line].slots) {
        const unsigned to = other(slot, line);
        const std::uint64_t hash = slot.hash;
        KeyLine::Slot* const free = hole(to, last);
        if (slot.hash == 0) return &slot;  // the moves came round and emptied this one
        if (free == nullptr || slot.hash != hash) continue;
        if (to != home_index({slot.hash}, pages)) lines[line].overflowed = true;
        *free = std::exchange(slot, {});
        return &slot;
      }
    return nullptr;
  }
};

// ---- the directory ----

// Names the segment in all words of its prefix. REQUIRES: the segment's lines are locked.
void Table::publish(std::uint64_t prefix, unsigned depth, Segment segment) noexcept {
  const std::lock_guard lock(directory_mutex_);
  const Directory d = directory();
  Word* const first = d.words() + d.index(prefix);
  const std::size_t count = std::size_t{1} << (d.bits() - depth);
  for (std::size_t i = 0; i < count; ++i) first[i].store(segment.word, std::memory_order_release);
}

// Doubles the directory that the caller found too small, unless somebody else has. Throws bad_alloc.
void Table::grow_directory(Generation generation, std::uint64_t root) {
  const std::lock_guard lock(directory_mutex_);
  const Directory small{root};
  if (root_.load(std::memory_order_acquire) != root || !is(generation) || small.bits() >= max_bits_) return;
  Word* const words = arena_.acquire_directory(small.bits() + 1);
  const std::size_t size = std::size_t{1} << small.bits();
  for (std::size_t i = 0; i < 2 * size; ++i)
    words[i].store(small.words()[i / 2].load(std::memory_order_relaxed), std::memory_order_release);
  root_.store(reinterpret_cast<std::uint64_t>(words) | (small.bits() + 1), std::memory_order_release);
  for (std::size_t i = 0; i < size; ++i) small.words()[i].store(0, std::memory_order_release);
  arena_.release_directory(small.words(), small.bits());
}

bool Table::close_some(unsigned segments) noexcept {
  Directory d = directory();
  if (d.words() == nullptr) return true;
  do {
    if (segments-- == 0) return false;
    const Place place = place_of(closing_);
    if (!place) return false;  // the directory has just grown
    SegmentLocks locks(place.segment);
    // A rebuild that began before the close may have just ended.
    if (place_of(closing_).segment.word != place.segment.word) return false;
    publish(prefix_of(closing_, place.segment.depth()), place.segment.depth(), {});
    closing_ = behind(closing_, place.segment);
    // Dropping the pages also drops the locks in them.
    arena_.release_segment(reinterpret_cast<std::byte*>(place.segment.lines()), place.segment.pages());
    locks.forget_beyond(0);
  } while (closing_ != 0);
  const std::lock_guard lock(directory_mutex_);
  d = directory();
  root_.store(0, std::memory_order_release);
  keys_.store(0, std::memory_order_relaxed);
  arena_.release_directory(d.words(), d.bits());
  pages_.store(0, std::memory_order_relaxed);
  return true;
}

// ---- rebuilding ----

bool Table::reserve_pages(std::int64_t pages) noexcept {
  if (pages_.fetch_add(pages, std::memory_order_relaxed) + pages <= max_pages_ || pages <= 0) return true;
  pages_.fetch_sub(pages, std::memory_order_relaxed);
  return false;
}

// Clears the dead; returns how many keys are left. REQUIRES: the segment's lines are locked.
unsigned Table::drop_dead(Segment segment, Nanos now, unsigned& dropped) noexcept {
  unsigned live = 0;
  dropped = 0;
  for (unsigned l = 0; l < segment.line_count(); ++l) {
    KeyLine& line = segment.lines()[l];
    for (unsigned i = 0; i < kSlots; ++i) {
      if (line.empty(i)) continue;
      if (line.tat(i) <= now) {
        line.clear(i);
        ++dropped;
      } else {
        ++live;
      }
    }
  }
  if (dropped != 0) keys_.fetch_sub(dropped, std::memory_order_relaxed);
  return live;
}

// Gives a segment room for `key`, or takes pages from it. `again`: nothing was done, or somebody else changed it first.
auto Table::rebuild(Generation generation, const Place& place, KeyHash key, Nanos now, Goal goal) -> Rebuilt {
  // Taken before the locks, as it may throw; given back if the segment isn't split. Below kMaxPages a split is rare,
  // but happens: now and then a segment's keys find no place in more pages either, as long as they are together.
  std::byte* spare = goal == Goal::room ? arena_.acquire_segment() : nullptr;
  Rebuilt result = Rebuilt::again;
  {
    SegmentLocks locks(place.segment);
    if (stands(place, generation)) {
      unsigned dropped;
      const unsigned live = drop_dead(place.segment, now, dropped);
      result = goal == Goal::room           ? make_room(locks, key, live, dropped, spare)
               : shrink(locks, key.v, live) ? Rebuilt::done
                                            : Rebuilt::again;
    }
  }
  if (spare != nullptr) arena_.release_segment(spare, 0);
  if (result == Rebuilt::deepen) grow_directory(generation, place.root);
  return result;
}

bool Table::shrink(SegmentLocks& locks, std::uint64_t hash, unsigned live) noexcept {
  const unsigned least = std::max(1u, (live * 20 + kPageSlots * 13 - 1) / (kPageSlots * 13));  // filled to 0.65
  for (unsigned pages = least; pages < locks.segment().pages(); ++pages)
    if (resize(locks, hash, nullptr, pages)) return true;
  return false;
}

auto Table::make_room(SegmentLocks& locks, KeyHash key, unsigned live, unsigned dropped, std::byte*& spare) noexcept
    -> Rebuilt {
  const Segment segment = locks.segment();
  if (dropped != 0 && live * 10 <= segment.pages() * kPageSlots * 7 && resize(locks, key.v, &key, segment.pages()))
    return Rebuilt::done;
  for (unsigned pages = segment.pages() + 1; pages <= kMaxPages; ++pages)
    if (resize(locks, key.v, &key, pages)) return Rebuilt::done;
  // (Looked at under the locks, without which the table may be another limiter's.)
  const unsigned bits = directory().bits();
  if (segment.depth() >= bits) return bits >= max_bits_ ? Rebuilt::full : Rebuilt::deepen;
  return split(locks, key.v, live, spare) ? Rebuilt::done : Rebuilt::full;
}

// Lays the segment out anew in `pages` pages and publishes it; false, with nothing changed, if it can't.
[[gnu::noinline]] bool Table::resize(SegmentLocks& locks, std::uint64_t hash, const KeyHash* need,
                                     unsigned pages) noexcept {
  const Segment segment = locks.segment();
  Image image;
  if (!image.arrange(segment, pages, -1) || (need != nullptr && !image.make_room(*need))) return false;
  if (!reserve_pages(static_cast<std::int64_t>(pages) - segment.pages())) return false;
  rewrite(locks, prefix_of(hash, segment.depth()), segment.depth(), image);
  return true;
}

// Writes an image over a locked segment and publishes it under `depth`.
void Table::rewrite(SegmentLocks& locks, std::uint64_t prefix, unsigned depth, const Image& image) noexcept {
  const Segment segment = locks.segment();
  auto* const memory = reinterpret_cast<std::byte*>(segment.lines());
  locks.extend(image.pages * kPageLines);
  image.write(segment.lines());
  publish(prefix, depth, Segment::make(memory, image.pages, depth, segment.version()));
  // Dropping pages also drops the locks in them; whoever then locks a line there finds another directory word.
  if (image.pages < segment.pages()) {
    arena_.release_pages(memory, image.pages, segment.pages());
    locks.forget_beyond(image.pages * kPageLines);
  }
}

// Clears the keys of one side, which were copied elsewhere; returns how many are left. REQUIRES: the lines are locked.
unsigned Table::move_out(Segment segment, unsigned side) noexcept {
  unsigned left = 0;
  for (unsigned l = 0; l < segment.line_count(); ++l)
    for (unsigned i = 0; i < kSlots; ++i) {
      KeyLine& line = segment.lines()[l];
      if (line.empty(i)) continue;
      if ((line.key(i).v >> (63 - segment.depth()) & 1) == side)
        line.clear(i);
      else
        ++left;
    }
  return left;
}

// Splits a full segment under its next bit: the smaller half moves to `spare`, which is taken. The larger one is laid
// out anew, or stays where it is if its keys don't fit into fewer lines: then the next split is under the bit behind.
// False, with nothing changed, if the pages can't be had or the smaller half can't be laid out.
[[gnu::noinline]] bool Table::split(SegmentLocks& locks, std::uint64_t hash, unsigned live,
                                    std::byte*& spare) noexcept {
  const Segment segment = locks.segment();
  const unsigned depth = segment.depth();
  unsigned ones = 0;
  for (unsigned l = 0; l < segment.line_count(); ++l)
    for (unsigned i = 0; i < kSlots; ++i)
      ones +=
          static_cast<unsigned>(!segment.lines()[l].empty(i) && (segment.lines()[l].key(i).v >> (63 - depth) & 1) != 0);
  const unsigned lesser = ones * 2 <= live ? 1 : 0;
  const unsigned moves = lesser == 1 ? ones : live - ones;
  Image moved, stays;
  const auto fit = [&](Image& image, unsigned keys, unsigned side) {
    unsigned pages = std::clamp((keys * 4 + kPageSlots * 3 - 1) / (kPageSlots * 3), 1u, kMaxPages);  // 0.75
    while (pages <= kMaxPages && !image.arrange(segment, pages, static_cast<int>(side))) ++pages;
    return pages;
  };
  const unsigned moved_pages = fit(moved, moves, lesser);
  if (moved_pages > kMaxPages) return false;
  const unsigned stays_pages = moves == 0 ? kMaxPages + 1 : fit(stays, live - moves, 1 - lesser);
  const bool anew = stays_pages <= kMaxPages;
  const std::int64_t added =
      static_cast<std::int64_t>(moved_pages) + (anew ? stays_pages : segment.pages()) - segment.pages();
  if (!reserve_pages(added)) return false;

  const std::uint64_t prefix = prefix_of(hash, depth);
  const std::uint64_t upper = std::uint64_t{1} << (63 - depth);
  // The new half is written and locked before anybody can see it; the old one stays locked until both are published.
  const Segment sibling = Segment::make(std::exchange(spare, nullptr), moved_pages, depth + 1, segment.version());
  const SegmentLocks sibling_locks(sibling);
  moved.write(sibling.lines());
  publish(lesser == 1 ? prefix | upper : prefix, depth + 1, sibling);
  const std::uint64_t other = lesser == 1 ? prefix : prefix | upper;
  if (anew) {
    rewrite(locks, other, depth + 1, stays);
  } else {
    if (moves != 0) move_out(segment, lesser);
    publish(other, depth + 1, segment.deeper());
  }
  return true;
}

// Unites a segment of one page with its neighbour under one bit less, if both are nearly empty.
[[gnu::noinline]] bool Table::merge(Generation generation, const Place& place, std::uint64_t hash, Nanos now) noexcept {
  const Segment segment = place.segment;
  const unsigned depth = segment.depth();
  if (depth == 0 || segment.pages() != 1) return false;
  const std::uint64_t upper = std::uint64_t{1} << (64 - depth);
  const std::uint64_t prefix = prefix_of(hash, depth);
  const Place beside = place_of(prefix ^ upper);
  if (!beside || beside.segment.depth() != depth || beside.segment.pages() != 1 ||
      beside.segment.version() != segment.version())
    return false;
  const bool first = segment.lines() < beside.segment.lines();
  SegmentLocks low(first ? segment : beside.segment);
  // While it may be memory that is none of the table's, a split may be about to lock it that has the high one.
  if (!stands(first ? place : beside, generation)) return false;
  SegmentLocks high(first ? beside.segment : segment);
  if (!stands(place, generation) || !stands(beside, generation)) return false;
  unsigned dropped;
  const unsigned live = drop_dead(segment, now, dropped) + drop_dead(beside.segment, now, dropped);
  Image image;
  if (live * 5 > kPageSlots * 2 || !image.arrange(low.segment(), 1, -1) || !image.add(high.segment(), -1)) return false;
  rewrite(low, prefix & ~upper, depth - 1, image);
  reserve_pages(-1);
  // Nobody finds it any more; its locks go with its page.
  arena_.release_segment(reinterpret_cast<std::byte*>(high.segment().lines()), 1);
  high.forget_beyond(0);
  return true;
}

// ---- walks ----

// Calls visit(place, hash) for up to `segments` segments from the cursor on; true at the end.
template <class Visit>
bool Table::walk(Generation generation, Cursor& cursor, unsigned segments, Visit visit) {
  for (;;) {
    if (segments-- == 0) return false;
    const Place place = place_of(cursor);
    if (!is(generation)) return true;
    if (!place) continue;  // the directory has just grown
    visit(place, cursor);
    cursor = behind(cursor, place.segment);
    if (cursor == 0) return true;
  }
}

Status Table::convert_segment(Generation generation, const Terms& terms, const Place& place,
                              std::uint64_t hash) noexcept {
  const Segment segment = place.segment;
  if (!segment.is_of(terms.version - 1)) return Status::stale;
  const SegmentLocks locks(segment);
  if (!is(generation)) return Status::gone;
  if (!stands(place, generation)) return Status::ok;  // somebody else was first: the caller looks again
  const std::uint64_t prefix = prefix_of(hash, segment.depth());
  // Before the first state changes: a denial that read a new TAT under the old terms finds another word.
  publish(prefix, segment.depth(), segment.as_converting());
  for (unsigned l = 0; l < segment.line_count(); ++l)
    for (unsigned i = 0; i < kSlots; ++i) {
      KeyLine& line = segment.lines()[l];
      if (line.empty(i)) continue;
      Tat state(line.tat(i));
      state.change(terms.before, terms.policy, terms.changed_at);
      line.set_tat(i, state.value());
    }
  publish(
      prefix, segment.depth(),
      Segment::make(reinterpret_cast<std::byte*>(segment.lines()), segment.pages(), segment.depth(), terms.version));
  return Status::ok;
}

bool Table::convert(Generation generation, const Terms& terms, Cursor& cursor, unsigned segments) {
  while (segments > 0) {
    const Place place = place_of(cursor);
    if (!is(generation)) return true;
    if (!place) continue;  // the directory has just grown
    if (place.segment.is_of(terms.version)) {
      cursor = behind(cursor, place.segment);
      if (cursor == 0) return true;
      --segments;
    } else if (convert_segment(generation, terms, place, cursor) == Status::stale) {
      return true;
    }
    // Looked at once more: it may have been split at that moment, and be of the version before still.
  }
  return false;
}

void Table::sweep_segment(Generation generation, const Place& place, std::uint64_t hash, Nanos now) {
  const Segment segment = place.segment;
  unsigned used = 0, expired = 0;
  for (unsigned l = 0; l < segment.line_count(); ++l)
    for (unsigned i = 0; i < kSlots; ++i)
      if (!segment.lines()[l].empty(i)) {
        ++used;
        expired += static_cast<unsigned>(segment.lines()[l].tat(i) <= now);
      }
  const unsigned live = used - expired;
  // A shrink is worth its copy when a quarter of the pages or more come back.
  if (expired != 0 || (segment.pages() > 1 && live * 2 < segment.pages() * kPageSlots))
    rebuild(generation, place, {hash}, now, Goal::shrink);
  if (segment.pages() == 1 && live * 5 <= kPageSlots) merge(generation, place_of(hash), hash, now);
}

bool Table::sweep(Generation generation, const Terms& terms, Nanos now, Cursor& cursor, unsigned segments) {
  return walk(generation, cursor, segments, [&](const Place& place, std::uint64_t hash) {
    if (place.segment.is_of(terms.version)) sweep_segment(generation, place, hash, now);
  });
}

Status Table::copy_segment(Generation generation, const Terms& terms, Nanos now, Cursor& cursor, Copy& room,
                           std::span<Entry>& copied) {
  for (;;) {
    const Place place = place_of(cursor);
    if (!is(generation)) return Status::gone;
    if (!place) continue;  // the directory has just grown
    const Segment segment = place.segment;
    if (!segment.is_of(terms.version)) {
      const Status converted = convert_segment(generation, terms, place, cursor);
      if (converted != Status::ok) return converted;
      continue;
    }
    const SegmentLocks locks(segment);
    if (!stands(place, generation)) continue;
    std::size_t size = 0;
    for (unsigned l = 0; l < segment.line_count(); ++l)
      for (unsigned i = 0; i < kSlots; ++i) {
        const KeyLine& line = segment.lines()[l];
        // (After a merge, a part of the segment may have been copied as another one's.)
        if (!line.empty(i) && line.tat(i) > now && line.key(i).v >= cursor) room[size++] = {line.key(i), line.tat(i)};
      }
    cursor = behind(cursor, segment);
    copied = {room.data(), size};
    return Status::ok;
  }
}

// ---- observing ----

TableStats Table::stats() const noexcept {
  const Directory d = directory();
  const std::int64_t words = d.words() == nullptr ? 0 : std::int64_t{1} << d.bits();
  return {keys_.load(std::memory_order_relaxed), max_keys_, evicted_keys_.load(std::memory_order_relaxed),
          evicted_tokens_.load(std::memory_order_relaxed), bytes() + words * static_cast<std::int64_t>(sizeof(Word))};
}

const char* Table::validate() const noexcept {
  const Directory d = directory();
  if ((generation() & 1) == 0) return nullptr;
  std::int64_t keys = 0, pages = 0;
  Cursor cursor = 0;
  do {
    const Segment segment = place_of(cursor).segment;
    if (segment.word == 0) return "an empty word in the directory";
    if (segment.converting()) return "a segment that is being converted";
    if (segment.depth() > d.bits()) return "a segment deeper than the directory";
    if (prefix_of(cursor, segment.depth()) != cursor) return "a segment that does not begin at its prefix";
    const std::size_t first = d.index(cursor);
    for (std::size_t i = 0; i < std::size_t{1} << (d.bits() - segment.depth()); ++i)
      if (d.words()[first + i].load() != segment.word) return "words of one prefix that name two segments";
    pages += segment.pages();
    for (unsigned l = 0; l < segment.line_count(); ++l) {
      KeyLine& line = segment.lines()[l];
      if (line.locked()) return "a line that is locked";
      for (unsigned i = 0; i < kSlots; ++i) {
        if (line.empty(i)) {
          if (line.tat(i) != Nanos{0}) return "an empty slot with a TAT";
          continue;
        }
        const KeyHash key = line.key(i);
        ++keys;
        if (line.tat(i) == Nanos{0}) return "a key without a TAT";
        if (prefix_of(key.v, segment.depth()) != cursor) return "a key in another prefix' segment";
        if (&line != segment.home(key) && &line != segment.second(key)) return "a key in neither of its lines";
        if (&line == segment.second(key) && !segment.home(key)->overflowed()) return "a key that no look-up finds";
        if (std::popcount(line.match(key)) + (segment.other(key, &line)->match(key) != 0) != 1) return "a key twice";
      }
    }
    cursor = behind(cursor, segment);
  } while (cursor != 0);
  if (keys != keys_.load()) return "another number of keys than is counted";
  return pages == pages_.load() ? nullptr : "another number of pages than is counted";
}

}  // namespace weir
