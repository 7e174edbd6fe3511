// The members of Table (table.hpp says what they do and how they synchronise).
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weir {

// ---- lines ----

// An inline asm-free pause: tells the core that this is a spin.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Cell>
void Table<Cell>::lock(Line& line) noexcept {
  // Held for tens of nanoseconds (a rebuild: tens of microseconds), so spin; but the holder's thread may have been
  // preempted, so let it run after a while.
  for (unsigned spins = 0; (line.tat[0].fetch_or(kLock, std::memory_order_acquire) & kLock) != 0;) {
    while ((line.tat[0].load(std::memory_order_relaxed) & kLock) != 0) {
      if (++spins % 128 == 0)
        std::this_thread::yield();
      else
        spin_pause();
    }
  }
}

template <class Cell>
void Table<Cell>::unlock(Line& line) noexcept {
  line.tat[0].store(line.tat[0].load(std::memory_order_relaxed) & ~kLock, std::memory_order_release);
}

template <class Cell>
void Table<Cell>::lock_lines(Entry entry, unsigned from, unsigned to) noexcept {
  for (unsigned i = from; i < to; ++i) lock(entry.lines()[i]);
}

template <class Cell>
void Table<Cell>::unlock_lines(Entry entry, unsigned from, unsigned to) noexcept {
  for (unsigned i = from; i < to; ++i) unlock(entry.lines()[i]);
}

template <class Cell>
auto Table<Cell>::find(Line* line, KeyHash key) noexcept -> Found {
  for (unsigned i = 0; i < kSlots; ++i)
    if (line->hash[i].load(std::memory_order_acquire) == key.v) return {line, i};
  return {};
}

template <class Cell>
auto Table<Cell>::load(const Line& line, unsigned slot) noexcept -> State {
  return Cell::load(tat_of(line, slot), line.payload[slot]);
}

template <class Cell>
void Table<Cell>::store(Line& line, unsigned slot, KeyHash key, const State& state, const Policy& policy) {
  count_heap(Cell::store(state, line.payload[slot]));
  set_key(line, slot, key, Cell::tat(policy, state));
}

// Hash first to 0, then TAT, then the new hash: a reader that sees the same hash before and after saw that key's TAT.
template <class Cell>
void Table<Cell>::set_key(Line& line, unsigned slot, KeyHash key, Nanos tat) noexcept {
  const std::uint64_t marks = line.tat[slot].load(std::memory_order_relaxed) & ~kTimeBits;
  const bool same = line.hash[slot].load(std::memory_order_relaxed) == key.v;
  if (!same) line.hash[slot].store(0, std::memory_order_relaxed);
  line.tat[slot].store(static_cast<std::uint64_t>(tat.v) | marks, std::memory_order_release);
  if (!same) line.hash[slot].store(key.v, std::memory_order_release);
}

// Moves a key, new place first: a reader may see it twice, never lose it. REQUIRES: both lines are locked, `to` is
// empty.
template <class Cell>
void Table<Cell>::move(Line& from, unsigned slot, Line& to, unsigned to_slot) noexcept {
  const std::uint64_t marks = to.tat[to_slot].load(std::memory_order_relaxed) & ~kTimeBits;
  const Slot plain = read(from, slot);
  to.tat[to_slot].store(plain.tat | marks, std::memory_order_release);
  for (unsigned i = 0; i < Cell::kPayload; ++i) {
    to.payload[to_slot][i].store(plain.payload[i], std::memory_order_relaxed);
    from.payload[slot][i].store(0, std::memory_order_relaxed);
  }
  to.hash[to_slot].store(plain.hash, std::memory_order_release);
  from.hash[slot].store(0, std::memory_order_relaxed);
  from.tat[slot].store(from.tat[slot].load(std::memory_order_relaxed) & ~kTimeBits, std::memory_order_release);
}

template <class Cell>
void Table<Cell>::clear(Line& line, unsigned slot) noexcept {
  line.hash[slot].store(0, std::memory_order_relaxed);
  count_heap(Cell::dispose(line.payload[slot]));
  line.tat[slot].store(line.tat[slot].load(std::memory_order_relaxed) & ~kTimeBits, std::memory_order_release);
}

template <class Cell>
auto Table<Cell>::read(const Line& line, unsigned slot) noexcept -> Slot {
  Slot plain;
  plain.hash = line.hash[slot].load(std::memory_order_relaxed);
  plain.tat = line.tat[slot].load(std::memory_order_relaxed) & kTimeBits;
  for (unsigned i = 0; i < Cell::kPayload; ++i)
    plain.payload[i] = line.payload[slot][i].load(std::memory_order_relaxed);
  return plain;
}

template <class Cell>
void Table<Cell>::write(Line& line, const typename Image::PlainLine& plain) noexcept {
  for (unsigned i = 0; i < kSlots; ++i) line.hash[i].store(0, std::memory_order_relaxed);
  for (unsigned i = 0; i < kSlots; ++i) {
    std::uint64_t tat = plain.slots[i].tat;
    if (i == 0) tat |= kLock;
    if (i == 1 && plain.overflowed) tat |= kOverflowed;
    line.tat[i].store(tat, std::memory_order_release);
    for (unsigned p = 0; p < Cell::kPayload; ++p)
      line.payload[i][p].store(plain.slots[i].payload[p], std::memory_order_relaxed);
    line.hash[i].store(plain.slots[i].hash, std::memory_order_release);
  }
}

// ---- opening and closing ----

template <class Cell>
auto Table<Cell>::open(std::int64_t max_keys, std::uint32_t version) -> Generation {
  assert((generation_.load() & 1) == 0 && max_keys >= 1 && max_keys <= kMaxKeys);
  // Enough directory for segments that were just split (more than 1024 slots' worth of keys each).
  unsigned bits = 0;
  while ((std::int64_t{kPageSlots} * 4 << bits) < max_keys) ++bits;
  std::byte* segment = arena_.acquire_segment();
  Word* words;
  try {
    words = arena_.acquire_directory(bits);
  } catch (...) {
    arena_.release_segment(segment, 0);
    throw;
  }
  max_keys_ = max_keys;
  // As many pages as hold max_keys when all segments were just split: then they are filled to about 0.65.
  max_pages_ = max_keys / (kPageSlots * 5 / 8) + 2;
  pages_.store(1, std::memory_order_relaxed);
  keys_.store(0, std::memory_order_relaxed);
  evicted_keys_.store(0, std::memory_order_relaxed);
  evicted_tokens_.store(0, std::memory_order_relaxed);
  closing_ = 0;
  publish({words, bits}, 0, 0, Entry::make(segment, 1, 0, version));
  root_.store(reinterpret_cast<std::uint64_t>(words) | bits, std::memory_order_release);
  return generation_.fetch_add(1, std::memory_order_acq_rel) + 1;
}

template <class Cell>
bool Table<Cell>::begin_close() noexcept {
  Generation open = generation_.load(std::memory_order_acquire);
  return (open & 1) != 0 && generation_.compare_exchange_strong(open, open + 1, std::memory_order_acq_rel);
}

template <class Cell>
bool Table<Cell>::close_some(unsigned segments) noexcept {
  const Directory d = directory();
  if (d.words == nullptr) return true;
  while (closing_ < std::size_t{1} << d.bits) {
    if (segments-- == 0) return false;
    Entry entry{d.words[closing_].load(std::memory_order_acquire)};
    lock_lines(entry, 0, entry.line_count());
    const std::uint64_t now = d.words[closing_].load(std::memory_order_acquire);
    if (now != entry.word) {  // a rebuild that began before the close has just ended
      unlock_lines(entry, 0, entry.line_count());
      continue;
    }
    for (unsigned l = 0; l < entry.line_count(); ++l)
      for (unsigned i = 0; i < kSlots; ++i)
        if (entry.lines()[l].hash[i].load(std::memory_order_relaxed) != 0) clear(entry.lines()[l], i);
    publish(d, closing_, entry.depth(), Entry{0});
    closing_ += std::size_t{1} << (d.bits - entry.depth());
    // Dropping the pages also drops the locks in them.
    arena_.release_segment(reinterpret_cast<std::byte*>(entry.lines()), entry.pages());
  }
  root_.store(0, std::memory_order_release);
  keys_.store(0, std::memory_order_relaxed);
  arena_.release_directory(d.words, d.bits);
  pages_.store(0, std::memory_order_relaxed);
  return true;
}

// ---- deciding ----

// Field by field: as a whole the decision would be read back from the stack in other units than it was just written in,
// which stalls the processor for 5 ns.
inline void assign(Decision& to, const Decision& from) noexcept {
  to.allowed = from.allowed;
  to.remaining = from.remaining;
  to.reset = from.reset;
  to.retry = from.retry;
}

template <class Cell>
Status Table<Cell>::decide(Generation generation, const Terms& terms, KeyHash key, Tokens hits, Nanos now,
                           Decision& out) {
  const Directory d = directory();
  if (d.words == nullptr) return Status::gone;
  const std::size_t index = d.index(key);
  const Entry entry{d.words[index].load(std::memory_order_acquire)};
  if (entry.word != 0 && !entry.converting() && entry.version() == terms.version % kVersions) {
    Line* home = entry.home(key);
    Found found = find(home, key);
    if (!found && overflowed(*home)) found = find(entry.second(key), key);
    const Tat tat(found ? tat_of(*found.line, found.slot) : Nanos{0});
    if (tat.admits(terms.policy, hits, now)) {
      // What `with` does, for the usual case of a key that is there, in its home, and stays there.
      if (found.line == home && Cell::kPayload == 0) {
        Locks locks;
        locks.take(home);
        if (is(generation) && d.words[index].load(std::memory_order_acquire) == entry.word &&
            home->hash[found.slot].load(std::memory_order_relaxed) == key.v) {
          State state = load(*home, found.slot);
          assign(out, state.decide(terms.policy, hits, now));
          if (out.allowed) store(*home, found.slot, key, state, terms.policy);
          return Status::ok;
        }
      }
    } else if (found || hits > terms.policy.capacity) {
      // A denial locks nothing and writes nothing. The TAT was this key's if hash and TAT stand (a slot that went to
      // another key and came back in between has another TAT), and of these terms if the directory word stands.
      const bool same = !found || (found.line->hash[found.slot].load(std::memory_order_acquire) == key.v &&
                                   tat_of(*found.line, found.slot) == tat.value());
      if (same && d.words[index].load(std::memory_order_acquire) == entry.word && is(generation)) {
        assign(out, tat.peek(terms.policy, hits, now));
        return Status::ok;
      }
    }
  }
  return with(generation, terms, key, now, [&](State& state) {
    const Decision decision = state.decide(terms.policy, hits, now);
    assign(out, decision);
    if (decision.allowed) state.compact(terms.policy, now);
    return decision.allowed;
  });
}

template <class Cell>
Status Table<Cell>::peek(Generation generation, const Terms& terms, KeyHash key, Nanos now, State& out) {
  return with(generation, terms, key, now, [&](State& state) {
    out = state;
    return false;
  });
}

template <class Cell>
Status Table<Cell>::reset(Generation generation, const Terms& terms, KeyHash key, Nanos now) {
  return with(generation, terms, key, now, [&](State& state) {
    const bool was = Cell::tat(terms.policy, state) != Nanos{0};
    state.reset();
    return was;
  });
}

template <class Cell>
Status Table<Cell>::set_level(Generation generation, const Terms& terms, KeyHash key, Nanos tat, bool exactly,
                              Nanos now) requires(Cell::kPayload == 0) {
  return with(generation, terms, key, now, [&](State& state) {
    const State wanted(tat > now ? tat : Nanos{0});
    if (exactly ? wanted.value() == state.value() : wanted.value() <= state.value()) return false;
    state = wanted;
    return true;
  });
}

template <class Cell>
Status Table<Cell>::take(Generation generation, const Terms& terms, KeyHash key, Nanos now, State& out) {
  return with(generation, terms, key, now, [&](State& state) {
    out = state;
    const bool was = Cell::tat(terms.policy, state) != Nanos{0};
    state.reset();
    return was;
  });
}

template <class Cell>
Status Table<Cell>::add(Generation generation, const Terms& terms, KeyHash key, Nanos span, Nanos now,
                        Nanos& tat) requires(Cell::kPayload == 0) {
  return with(generation, terms, key, now, [&](State& state) {
    const Nanos base = std::max(state.value(), now);
    tat = base + std::min(span, kTimeMax - base);
    state = State(tat);
    return true;
  });
}

template <class Cell>
void Table<Cell>::prefetch(KeyHash key) const noexcept {
  const Directory d = directory();
  if (d.words == nullptr) return;
  const Entry entry{d.words[d.index(key)].load(std::memory_order_relaxed)};
  if (entry.word != 0) __builtin_prefetch(entry.home(key), 1);
}

template <class Cell>
template <class Action>
Status Table<Cell>::with(Generation generation, const Terms& terms, KeyHash key, Nanos now, Action action) {
  for (bool may_grow = true, both = false;;) {
    const Directory d = directory();
    if (d.words == nullptr) return Status::gone;
    const std::size_t index = d.index(key);
    const Entry entry{d.words[index].load(std::memory_order_acquire)};
    if (entry.word == 0) return Status::gone;
    if (entry.version() != terms.version % kVersions) {
      const Status converted = convert_segment(generation, terms, index, entry);
      if (converted != Status::ok) return converted;
      continue;
    }
    Line* home = entry.home(key);
    {
      Locks locks;
      both ? locks.take(home, entry.second(key)) : locks.take(home);
      if (!is(generation)) return Status::gone;
      if (d.words[index].load(std::memory_order_acquire) != entry.word) continue;
      Found found = find(home, key);
      Found slot;  // for a new key; asked once, since whether an empty slot is free depends on others' inserts
      if (!found && !both) {
        if (!overflowed(*home)) slot = free_slot(home, terms.policy, now);
        if (!slot) {
          both = true;
          if (!locks.attempt(entry.second(key))) continue;  // once more, in order
        }
      }
      if (!found && both) found = find(entry.second(key), key);
      State state = found ? load(*found.line, found.slot) : State{};
      if (!action(state)) return Status::ok;
      if (found) {
        if (Cell::tat(terms.policy, state) == Nanos{0}) {
          clear(*found.line, found.slot);
          keys_.fetch_sub(1, std::memory_order_relaxed);
        } else {
          store(*found.line, found.slot, key, state, terms.policy);
        }
        return Status::ok;
      }
      // First what may throw, then what can't be undone, like an eviction.
      Payload fresh{};
      count_heap(Cell::store(state, fresh));
      if (!slot) slot = slot_for(entry, key, terms.policy, now, may_grow);
      if (slot) {
        if (slot.line->hash[slot.slot].load(std::memory_order_relaxed) != 0)
          clear(*slot.line, slot.slot);
        else
          keys_.fetch_add(1, std::memory_order_relaxed);
        for (unsigned i = 0; i < Cell::kPayload; ++i)
          slot.line->payload[slot.slot][i].store(fresh[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
        set_key(*slot.line, slot.slot, key, Cell::tat(terms.policy, state));
        if (slot.line != home) set_overflowed(*home);
        return Status::ok;
      }
      count_heap(Cell::dispose(fresh));
    }
    if (rebuild(generation, terms, index, entry, key, now, Goal::room) == Rebuilt::full) may_grow = false;
  }
}

template <class Cell>
auto Table<Cell>::slot_for(Entry entry, KeyHash key, const Policy& policy, Nanos now, bool may_grow) noexcept -> Found {
  Line* home = entry.home(key);
  if (const Found slot = free_slot(home, policy, now)) return slot;
  Line* second = entry.second(key);
  if (const Found slot = free_slot(second, policy, now)) return slot;
  if (keys_.load(std::memory_order_relaxed) < max_keys_) {
    if (const Found slot = hole(entry, home, policy, now, kMoves)) return slot;
    if (const Found slot = hole(entry, second, policy, now, kMoves)) return slot;
    if (may_grow) return {};
  }
  if (const Found slot = evict(home, policy, now)) return slot;
  if (const Found slot = evict(second, policy, now)) return slot;
  // Both lines are empty in a table that is full: a key of another line makes way.
  evict_elsewhere(entry, home, policy, now);
  return {home, 0};
}

// Takes the lowest key out of the first line behind `home` that has one and isn't locked. If there is none in the
// segment, max_keys is passed by one key.
template <class Cell>
void Table<Cell>::evict_elsewhere(Entry entry, Line* home, const Policy& policy, Nanos now) noexcept {
  const unsigned count = entry.line_count();
  const auto start = static_cast<unsigned>(home - entry.lines());
  for (unsigned i = 1; i < count; ++i) {
    Line* line = entry.lines() + (start + i) % count;
    Locks locks;
    if (!locks.attempt(line)) continue;
    // At max_keys an empty slot isn't free, so what is free here is a dead key's.
    Found victim = free_slot(line, policy, now);
    if (!victim) victim = evict(line, policy, now);
    if (victim && line->hash[victim.slot].load(std::memory_order_relaxed) != 0) {
      clear(*victim.line, victim.slot);
      keys_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
  }
}

// An empty slot or a dead key's. At max_keys an empty slot is not free. REQUIRES: the line is locked.
template <class Cell>
auto Table<Cell>::free_slot(Line* line, const Policy& policy, Nanos now) const noexcept -> Found {
  for (unsigned i = 0; i < kSlots; ++i) {
    const bool empty = line->hash[i].load(std::memory_order_relaxed) == 0;
    if (empty ? keys_.load(std::memory_order_relaxed) < max_keys_ : dead(*line, i, policy, now)) return {line, i};
  }
  return {};
}

// Empties a slot of a full line by moving its key to the key's other line, if need be after making a hole there in the
// same way: at most `moves` keys move. Only tries for locks; a line that this insert holds already is passed over.
template <class Cell>
auto Table<Cell>::hole(Entry entry, Line* line, const Policy& policy, Nanos now, unsigned moves) noexcept -> Found {
  for (unsigned last = 1; last <= moves; ++last) {  // the fewest moves first
    for (unsigned i = 0; i < kSlots; ++i) {
      const KeyHash key{line->hash[i].load(std::memory_order_relaxed)};
      if (key.v == 0) continue;
      Line* other = entry.other(key, line);
      Locks locks;
      if (!locks.attempt(other)) continue;
      const Found to = last == 1 ? free_slot(other, policy, now) : hole(entry, other, policy, now, last - 1);
      if (!to) continue;
      if (to.line->hash[to.slot].load(std::memory_order_relaxed) != 0) {
        clear(*to.line, to.slot);
        keys_.fetch_sub(1, std::memory_order_relaxed);
      }
      move(*line, i, *to.line, to.slot);
      if (other != entry.home(key)) set_overflowed(*line);
      return {line, i};
    }
  }
  return {};
}

// The line's key with the lowest level, counted as lost; none in an empty line. REQUIRES: the line is locked.
template <class Cell>
auto Table<Cell>::evict(Line* line, const Policy& policy, Nanos now) noexcept -> Found {
  Found lowest;
  for (unsigned i = 0; i < kSlots; ++i)
    if (line->hash[i].load(std::memory_order_relaxed) != 0 &&
        (!lowest || tat_of(*line, i) < tat_of(*line, lowest.slot)))
      lowest = {line, i};
  if (lowest) {
    evicted_keys_.fetch_add(1, std::memory_order_relaxed);
    evicted_tokens_.fetch_add(Tat(tat_of(*line, lowest.slot)).level(policy, now).v, std::memory_order_relaxed);
  }
  return lowest;
}

// ---- rebuilding ----

template <class Cell>
void Table<Cell>::Image::clear(unsigned to_pages) noexcept {
  pages = to_pages;
  std::fill_n(lines, pages * kPageLines, PlainLine{});
}

// Makes sure that the key's next insert finds a slot.
template <class Cell>
bool Table<Cell>::Image::make_room(KeyHash key) noexcept {
  return hole(home_index(key, pages), kMoves) != nullptr || hole(second_index(key, pages), kMoves) != nullptr;
}

template <class Cell>
unsigned Table<Cell>::Image::other(const Slot& slot, unsigned line) const noexcept {
  const unsigned home = home_index(KeyHash{slot.hash}, pages);
  return line == home ? second_index(KeyHash{slot.hash}, pages) : home;
}

// An empty slot of the line, made by moving at most `moves` keys; null if that isn't enough.
template <class Cell>
auto Table<Cell>::Image::hole(unsigned line, unsigned moves) noexcept -> Slot* {
  for (Slot& slot : lines[line].slots)
    if (slot.hash == 0) return &slot;
  for (unsigned last = 0; last < moves; ++last)
    for (Slot& slot : lines[line].slots) {
      const unsigned to = other(slot, line);
      const std::uint64_t hash = slot.hash;
      Slot* free = hole(to, last);
      if (slot.hash == 0) return &slot;  // the moves came round and emptied this one
      if (free == nullptr || slot.hash != hash) continue;
      if (to != home_index(KeyHash{slot.hash}, pages)) lines[line].overflowed = true;
      *free = slot;
      slot = Slot{};
      return &slot;
    }
  return nullptr;
}

template <class Cell>
bool Table<Cell>::Image::place(const Slot& slot) noexcept {
  const unsigned home = home_index(KeyHash{slot.hash}, pages);
  const unsigned second = second_index(KeyHash{slot.hash}, pages);
  for (const auto& [line, moves] : {std::pair{home, 0u}, {second, 0u}, {home, kMoves}, {second, kMoves}})
    if (Slot* free = hole(line, moves)) {
      *free = slot;
      if (line != home) lines[home].overflowed = true;
      return true;
    }
  return false;
}

// Lays the segment's keys (side < 0: all; else those whose bit under `depth` is `side`) out in `pages` pages; false if
// some key finds no place. REQUIRES: the segment's lines are locked and nothing in it is dead.
template <class Cell>
bool Table<Cell>::arrange(Image& image, Entry entry, unsigned pages, int side, unsigned depth) noexcept {
  image.clear(pages);
  for (unsigned l = 0; l < entry.line_count(); ++l)
    for (unsigned i = 0; i < kSlots; ++i) {
      const Slot slot = read(entry.lines()[l], i);
      if (slot.hash == 0 || (side >= 0 && static_cast<int>(slot.hash >> (63 - depth) & 1) != side)) continue;
      if (!image.place(slot)) return false;
    }
  return true;
}

template <class Cell>
void Table<Cell>::publish(const Directory& directory, std::size_t index, unsigned depth, Entry entry) noexcept {
  const std::size_t count = std::size_t{1} << (directory.bits - depth);
  Word* first = directory.words + (index & ~(count - 1));
  for (std::size_t i = 0; i < count; ++i) first[i].store(entry.word, std::memory_order_release);
}

template <class Cell>
bool Table<Cell>::reserve_pages(std::int64_t pages) noexcept {
  if (pages_.fetch_add(pages, std::memory_order_relaxed) + pages <= max_pages_ || pages <= 0) return true;
  pages_.fetch_sub(pages, std::memory_order_relaxed);
  return false;
}

// Clears the dead; returns how many keys are left. REQUIRES: the segment's lines are locked.
template <class Cell>
unsigned Table<Cell>::drop_dead(Entry entry, const Policy& policy, Nanos now, unsigned& dropped) noexcept {
  unsigned live = 0;
  dropped = 0;
  for (unsigned l = 0; l < entry.line_count(); ++l) {
    Line& line = entry.lines()[l];
    for (unsigned i = 0; i < kSlots; ++i) {
      if (line.hash[i].load(std::memory_order_relaxed) == 0) continue;
      if (dead(line, i, policy, now)) {
        clear(line, i);
        ++dropped;
      } else {
        ++live;
      }
    }
  }
  if (dropped != 0) keys_.fetch_sub(dropped, std::memory_order_relaxed);
  return live;
}

// Gives a segment room for `need`, or takes pages from it. `again`: somebody else changed it first.
template <class Cell>
auto Table<Cell>::rebuild(Generation generation, const Terms& terms, std::size_t index, Entry entry, KeyHash need,
                          Nanos now, Goal goal) -> Rebuilt {
  const Directory d = directory();
  if (d.words == nullptr) return Rebuilt::again;
  // Taken before the locks, as it may throw; given back if the segment isn't split. Below kMaxPages a split is rare,
  // but happens: now and then a segment's keys find no place in more pages either, as long as they are together.
  std::byte* spare = goal == Goal::room && entry.depth() < d.bits ? arena_.acquire_segment() : nullptr;
  lock_lines(entry, 0, entry.line_count());
  Rebuilt result = Rebuilt::again;
  if (is(generation) && d.words[index].load(std::memory_order_acquire) == entry.word) {
    unsigned dropped;
    const unsigned live = drop_dead(entry, terms.policy, now, dropped);
    result =
        goal == Goal::shrink ? shrink(d, index, entry, live) : make_room(d, index, entry, need, live, dropped, spare);
  }
  if (result != Rebuilt::done) unlock_lines(entry, 0, entry.line_count());  // else rewrite has
  if (spare != nullptr) arena_.release_segment(spare, 0);
  return result;
}

template <class Cell>
auto Table<Cell>::shrink(const Directory& d, std::size_t index, Entry entry, unsigned live) noexcept -> Rebuilt {
  const unsigned least = std::max(1u, (live * 20 + kPageSlots * 13 - 1) / (kPageSlots * 13));  // filled to 0.65
  for (unsigned pages = least; pages < entry.pages(); ++pages)
    if (resize(d, index, entry, nullptr, pages)) return Rebuilt::done;
  return Rebuilt::again;
}

template <class Cell>
auto Table<Cell>::make_room(const Directory& d, std::size_t index, Entry entry, KeyHash need, unsigned live,
                            unsigned dropped, std::byte*& spare) noexcept -> Rebuilt {
  if (dropped != 0 && live * 10 <= entry.pages() * kPageSlots * 7 && resize(d, index, entry, &need, entry.pages()))
    return Rebuilt::done;
  for (unsigned pages = entry.pages() + 1; pages <= kMaxPages; ++pages)
    if (resize(d, index, entry, &need, pages)) return Rebuilt::done;
  return spare != nullptr && split(d, index, entry, live, spare) ? Rebuilt::done : Rebuilt::full;
}

// Lays the segment out anew in `pages` pages, publishes it and unlocks it; false, with nothing changed, if it can't.
template <class Cell>
bool Table<Cell>::resize(const Directory& d, std::size_t index, Entry entry, const KeyHash* need,
                         unsigned pages) noexcept {
  Image image;
  if (!arrange(image, entry, pages, -1, 0) || (need != nullptr && !image.make_room(*need))) return false;
  const auto added = static_cast<std::int64_t>(pages) - entry.pages();
  if (!reserve_pages(added)) return false;
  rewrite(d, index, entry, entry.depth(), image);
  return true;
}

// Writes an image over a locked segment, publishes it under `depth` and unlocks.
template <class Cell>
void Table<Cell>::rewrite(const Directory& d, std::size_t index, Entry entry, unsigned depth,
                          const Image& image) noexcept {
  const unsigned pages = image.pages;
  auto* segment = reinterpret_cast<std::byte*>(entry.lines());
  const unsigned lines = pages * kPageLines;
  if (lines > entry.line_count()) lock_lines(entry, entry.line_count(), lines);
  for (unsigned l = 0; l < lines; ++l) write(entry.lines()[l], image.lines[l]);
  publish(d, index, depth, Entry::make(segment, pages, depth, entry.version()));
  // Dropping pages also drops the locks in them; whoever then locks a line there finds another directory word.
  arena_.release_pages(segment, pages, entry.pages());
  unlock_lines(entry, 0, lines);
}

// Splits a full segment under its next bit: the ones move to `spare`, which is taken. False, with nothing changed, if
// the pages can't be had or a half can't be laid out.
template <class Cell>
bool Table<Cell>::split(const Directory& d, std::size_t index, Entry entry, unsigned live, std::byte*& spare) noexcept {
  const unsigned depth = entry.depth();
  Image zeros, ones;
  const auto fit = [&](Image& image, int side) {
    unsigned pages = std::clamp((live / 2 * 4 + kPageSlots * 3 - 1) / (kPageSlots * 3), 1u, kMaxPages);  // 0.75
    while (pages <= kMaxPages && !arrange(image, entry, pages, side, depth)) ++pages;
    return pages;
  };
  const unsigned zeros_pages = fit(zeros, 0);
  const unsigned ones_pages = fit(ones, 1);
  if (zeros_pages > kMaxPages || ones_pages > kMaxPages) return false;
  if (!reserve_pages(static_cast<std::int64_t>(zeros_pages) + ones_pages - entry.pages())) return false;

  const std::size_t half = std::size_t{1} << (d.bits - depth - 1);
  const std::size_t first = index & ~(2 * half - 1);
  // The new half is written and locked before anybody can see it; the old one stays locked until both are published.
  const Entry sibling = Entry::make(spare, ones_pages, depth + 1, entry.version());
  spare = nullptr;
  lock_lines(sibling, 0, sibling.line_count());
  for (unsigned l = 0; l < sibling.line_count(); ++l) write(sibling.lines()[l], ones.lines[l]);
  publish(d, first + half, depth + 1, sibling);
  rewrite(d, first, entry, depth + 1, zeros);
  unlock_lines(sibling, 0, sibling.line_count());
  return true;
}

// ---- converting and sweeping ----

template <class Cell>
Status Table<Cell>::convert_segment(Generation generation, const Terms& terms, std::size_t index, Entry entry) {
  if (entry.version() != (terms.version - 1) % kVersions) return Status::stale;
  const Directory d = directory();
  if (d.words == nullptr) return Status::gone;
  lock_lines(entry, 0, entry.line_count());
  Status status = Status::gone;
  if (is(generation)) {
    status = Status::ok;  // also when somebody else was first: the caller looks again
    if (d.words[index].load(std::memory_order_acquire) == entry.word) {
      // Before the first state changes: a denial that read a new TAT under the old terms finds another word.
      publish(d, index, entry.depth(), entry.as_converting());
      for (unsigned l = 0; l < entry.line_count(); ++l)
        for (unsigned i = 0; i < kSlots; ++i) {
          Line& line = entry.lines()[l];
          const KeyHash key{line.hash[i].load(std::memory_order_relaxed)};
          if (key.v == 0) continue;
          State state = load(line, i);
          state.change(terms.before, terms.policy, terms.changed_at);
          store(line, i, key, state, terms.policy);
        }
      publish(d, index, entry.depth(),
              Entry::make(reinterpret_cast<std::byte*>(entry.lines()), entry.pages(), entry.depth(), terms.version));
    }
  }
  unlock_lines(entry, 0, entry.line_count());
  return status;
}

template <class Cell>
bool Table<Cell>::convert(Generation generation, const Terms& terms, std::size_t& cursor, unsigned segments) {
  const Directory d = directory();
  if (d.words == nullptr) return true;
  while (cursor < std::size_t{1} << d.bits) {
    if (segments-- == 0) return false;
    const Entry entry{d.words[cursor].load(std::memory_order_acquire)};
    if (entry.word == 0 || !is(generation)) return true;
    if (entry.version() == terms.version % kVersions) {
      cursor = d.behind(cursor, entry);
    } else if (convert_segment(generation, terms, cursor, entry) == Status::stale) {
      return true;
    }
  }
  return true;
}

template <class Cell>
void Table<Cell>::sweep_segment(Generation generation, const Terms& terms, std::size_t index, Entry entry, Nanos now) {
  unsigned used = 0, expired = 0;
  for (unsigned l = 0; l < entry.line_count(); ++l)
    for (unsigned i = 0; i < kSlots; ++i)
      if (entry.lines()[l].hash[i].load(std::memory_order_relaxed) != 0) {
        ++used;
        expired += dead(entry.lines()[l], i, terms.policy, now);
      }
  const unsigned live = used - expired;
  // A shrink is worth its copy when a quarter of the pages or more come back.
  if (expired != 0 || (entry.pages() > 1 && live * 2 < entry.pages() * kPageSlots))
    rebuild(generation, terms, index, entry, KeyHash{0}, now, Goal::shrink);
}

template <class Cell>
bool Table<Cell>::sweep(Generation generation, const Terms& terms, Nanos now, std::size_t& cursor, unsigned segments) {
  const Directory d = directory();
  if (d.words == nullptr) return true;
  while (cursor < std::size_t{1} << d.bits) {
    if (segments-- == 0) return false;
    const Entry entry{d.words[cursor].load(std::memory_order_acquire)};
    if (entry.word == 0 || !is(generation)) return true;
    if (entry.version() == terms.version % kVersions) sweep_segment(generation, terms, cursor, entry, now);
    cursor = d.behind(cursor, entry);
  }
  return true;
}

template <class Cell>
template <class Visit>
void Table<Cell>::for_each(const Terms& terms, Nanos now, Visit visit) {
  const Directory d = directory();
  if (d.words == nullptr) return;
  for (std::size_t index = 0; index < std::size_t{1} << d.bits;) {
    const Entry entry{d.words[index].load(std::memory_order_acquire)};
    if (entry.word == 0) return;
    lock_lines(entry, 0, entry.line_count());
    if (d.words[index].load(std::memory_order_acquire) == entry.word) {
      for (unsigned l = 0; l < entry.line_count(); ++l)
        for (unsigned i = 0; i < kSlots; ++i) {
          const Line& line = entry.lines()[l];
          const KeyHash key{line.hash[i].load(std::memory_order_relaxed)};
          if (key.v != 0 && !dead(line, i, terms.policy, now)) visit(key, load(line, i));
        }
      index = d.behind(index, entry);
    }
    unlock_lines(entry, 0, entry.line_count());
  }
}

template <class Cell>
TableStats Table<Cell>::stats() const noexcept {
  const Directory d = directory();
  const std::int64_t words = d.words == nullptr ? 0 : std::int64_t{1} << d.bits;
  return {keys_.load(std::memory_order_relaxed), max_keys_, evicted_keys_.load(std::memory_order_relaxed),
          evicted_tokens_.load(std::memory_order_relaxed),
          bytes() + words * 8 + heap_bytes_.load(std::memory_order_relaxed)};
}

}  // namespace weir
