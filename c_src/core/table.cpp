// table: questions to one key that are off the usual way: keys that aren't there yet, full lines, full tables. See
// include/weir/table.hpp.
#include "weir/table.hpp"

#include <algorithm>
#include <utility>

namespace weir {

// ---- opening and closing ----

Table::~Table() {
  if (begin_close()) {
    while (!close_some(kMaxPages)) {
    }
  }
}

auto Table::open(std::int64_t max_keys, std::uint32_t version) -> Generation {
  assert((generation_.load() & 1) == 0 && max_keys >= 1 && max_keys <= kMaxKeys);
  std::byte* const segment = arena_.acquire_segment();
  Word* words;
  try {
    words = arena_.acquire_directory(0);
  } catch (...) {
    arena_.release_segment(segment, 0);
    throw;
  }
  // Enough directory for segments that were just split (more than 1024 slots' worth of keys each), and two bits more
  // for those that are split under several bits at once.
  unsigned bits = 0;
  while ((std::int64_t{kPageSlots} * 4 << bits) < max_keys) ++bits;
  max_bits_ = bits + 2;
  static_assert(kMaxKeys / (std::int64_t{kPageSlots} * 4) <= std::int64_t{1} << (Arena::kMaxDirectoryBits - 2));
  max_keys_ = max_keys;
  // As many pages as hold max_keys when all segments were just split: then they are filled to about 0.65. While keys
  // come in the order of their hashes, there are also empty segments, one at each depth.
  max_pages_ = max_keys / (std::int64_t{kPageSlots} * 5 / 8) + 2 + max_bits_;
  pages_.store(1, std::memory_order_relaxed);
  keys_.store(0, std::memory_order_relaxed);
  evicted_keys_.store(0, std::memory_order_relaxed);
  evicted_tokens_.store(0, std::memory_order_relaxed);
  closing_ = 0;
  words->store(Segment::make(segment, 1, 0, version).word, std::memory_order_release);
  root_.store(reinterpret_cast<std::uint64_t>(words), std::memory_order_release);
  return generation_.fetch_add(1, std::memory_order_acq_rel) + 1;
}

bool Table::begin_close() noexcept {
  Generation open = generation_.load(std::memory_order_acquire);
  return (open & 1) != 0 && generation_.compare_exchange_strong(open, open + 1, std::memory_order_acq_rel);
}

// ---- one key ----

Status Table::decide(Generation generation, const Terms& terms, KeyHash key, Tokens hits, Nanos now, Ruling& out) {
  return update(generation, terms, key, now, [&](Tat& state) {
    const bool admitted = state.take(terms.policy, hits, now);
    out = {admitted ? Verdict::admitted : Verdict::denied, state.value()};
    return admitted;
  });
}

Status Table::decide(Generation generation, const Terms& terms, KeyHash key, Tokens hits, Nanos now, Decision& out) {
  Ruling ruling = try_decide(generation, terms.policy, terms.version, key, hits, now);
  if (ruling.verdict == Verdict::unsure) {
    const Status status = decide(generation, terms, key, hits, now, ruling);
    if (status != Status::ok) return status;
  }
  const Tat state(ruling.tat);
  out = ruling.verdict == Verdict::admitted ? state.allowed(terms.policy, now) : state.denied(terms.policy, hits, now);
  return Status::ok;
}

Status Table::peek(Generation generation, const Terms& terms, KeyHash key, Nanos now, Tat& out) {
  return update(generation, terms, key, now, [&](const Tat& state) {
    out = state;
    return false;
  });
}

Status Table::reset(Generation generation, const Terms& terms, KeyHash key, Nanos now) {
  Tat was;
  return take(generation, terms, key, now, was);
}

Status Table::set_level(Generation generation, const Terms& terms, KeyHash key, Nanos tat, bool exactly, Nanos now) {
  return update(generation, terms, key, now, [&](Tat& state) {
    const Tat wanted(tat > now ? tat : Nanos{0});
    if (exactly ? wanted.value() == state.value() : wanted.value() <= state.value()) return false;
    state = wanted;
    return true;
  });
}

Status Table::take(Generation generation, const Terms& terms, KeyHash key, Nanos now, Tat& out) {
  return update(generation, terms, key, now, [&](Tat& state) {
    out = std::exchange(state, Tat{});
    return out.value() != Nanos{0};
  });
}

Status Table::add(Generation generation, const Terms& terms, KeyHash key, Nanos span, Nanos now, Nanos& tat) {
  return update(generation, terms, key, now, [&](Tat& state) {
    const Nanos base = std::max(state.value(), now);
    tat = base + std::min(span, kTimeMax - base);
    state = Tat(tat);
    return true;
  });
}

// A key that is there is asked under the lock of its line alone, home or second: whoever moves it, clears it or
// rebuilds the segment needs that lock too, and an insert of the same key waits for it in `enter`.
Status Table::update_any(Generation generation, const Terms& terms, KeyHash key, Nanos now, Action action) {
  for (bool may_grow = true;;) {
    const Place place = place_of(key.v);
    if (!place) {
      if (is(generation) && place.root != root_.load(std::memory_order_acquire)) continue;  // the directory grew
      return Status::gone;
    }
    if (!place.segment.is_of(terms.version)) {
      const Status converted = convert_segment(generation, terms, place, key.v);
      if (converted != Status::ok) return converted;
      continue;
    }
    if (const Found found = find_in(place, key); found.line != nullptr) {
      const KeyLineLock lock(*found.line);
      if (stands(place, generation) && found.line->holds(found.slot, key)) {
        Tat state(found.line->tat(found.slot));
        if (action(state)) store({found.line, found.slot}, state);
        return Status::ok;
      }
    }
    if (!is(generation)) return Status::gone;
    switch (enter(place, generation, terms, key, now, action, may_grow)) {
      case Entered::done:
        return Status::ok;
      case Entered::again:
        break;
      case Entered::full:
        if (rebuild(generation, place, key, now, Goal::room) == Rebuilt::full) may_grow = false;
    }
  }
}

// A new state of a key that has a slot. REQUIRES: its line is locked.
void Table::store(Slot slot, Tat state) noexcept {
  if (state.value() == Nanos{0}) {
    slot.line->clear(slot.at);
    keys_.fetch_sub(1, std::memory_order_relaxed);
  } else {
    slot.line->set_tat(slot.at, state.value());
  }
}

// The key, which probably isn't there: in its home if it has room there and can't be elsewhere, else under the locks of
// both of its lines.
auto Table::enter(const Place& place, Generation generation, const Terms& terms, KeyHash key, Nanos now, Action action,
                  bool may_grow) -> Entered {
  KeyLine* const home = place.segment.home(key);
  KeyLine* const second = place.segment.second(key);
  {
    const KeyLineLock lock(*home);
    if (!stands(place, generation)) return Entered::again;
    if (ask_in(home, key, action)) return Entered::done;
    const Slot slot = home->overflowed() ? Slot{} : free_slot(home, now);
    if (slot) return put(slot, key, action);
  }
  const KeyLineLock lower(*std::min(home, second));
  const KeyLineLock upper(*std::max(home, second));
  if (!stands(place, generation)) return Entered::again;
  if (ask_in(home, key, action) || ask_in(second, key, action)) return Entered::done;
  // Asked for before the slot: an eviction can't be undone.
  if (Tat state; !action(state)) return Entered::done;
  const Slot slot = slot_for(place.segment, key, terms.policy, now, may_grow);
  if (!slot) return Entered::full;
  if (slot.line != home) home->set_overflowed();
  return put(slot, key, action);
}

// Whether the key is in the line: then the action is run on its state. REQUIRES: the line is locked.
bool Table::ask_in(KeyLine* line, KeyHash key, Action action) noexcept {
  const unsigned match = line->match(key);
  if (match == 0) return false;
  const Slot slot{line, static_cast<unsigned>(std::countr_zero(match))};
  Tat state(line->tat(slot.at));
  if (action(state)) store(slot, state);
  return true;
}

// A key that is nowhere yet, if the action makes something of it. REQUIRES: its home and the slot's line are locked.
auto Table::put(Slot slot, KeyHash key, Action action) noexcept -> Entered {
  Tat state;
  if (!action(state) || state.value() == Nanos{0}) return Entered::done;
  if (slot.line->empty(slot.at)) keys_.fetch_add(1, std::memory_order_relaxed);
  slot.line->set(slot.at, key, state.value());
  return Entered::done;
}

// ---- slots for new keys ----

// The slot for a new key; none if the segment should be rebuilt first. REQUIRES: both of its lines are locked.
auto Table::slot_for(Segment segment, KeyHash key, const Policy& policy, Nanos now, bool may_grow) noexcept -> Slot {
  KeyLine* const home = segment.home(key);
  KeyLine* const second = segment.second(key);
  if (const Slot slot = free_slot(home, now)) return slot;
  if (const Slot slot = free_slot(second, now)) return slot;
  if (!full()) {
    if (const Slot slot = hole(segment, home, now, kMoves)) return slot;
    if (const Slot slot = hole(segment, second, now, kMoves)) return slot;
    if (may_grow) return {};
  }
  return evict(segment, key, policy, now);
}

// An empty slot, else a dead key's: that one may be asked for again. At max_keys an empty slot is not free. REQUIRES:
// the line is locked.
auto Table::free_slot(KeyLine* line, Nanos now) const noexcept -> Slot {
  Slot dead;
  for (unsigned i = 0; i < kSlots; ++i) {
    if (!line->empty(i)) {
      if (line->tat(i) <= now) dead = {line, i};
    } else if (!full()) {
      return {line, i};
    }
  }
  return dead;
}

// Empties a slot of a full line by moving its key to the key's other line, if need be after making a hole there in the
// same way: at most `moves` keys move. Only tries for locks; a line that this insert holds already is passed over.
auto Table::hole(Segment segment, KeyLine* line, Nanos now, unsigned moves) noexcept -> Slot {
  for (unsigned last = 1; last <= moves; ++last) {  // the fewest moves first
    for (unsigned i = 0; i < kSlots; ++i) {
      if (line->empty(i)) continue;
      KeyLine* const other = segment.other(line->key(i), line);
      const KeyLineLock lock(*other, std::try_to_lock);
      if (!lock) continue;
      const Slot to = last == 1 ? free_slot(other, now) : hole(segment, other, now, last - 1);
      if (!to) continue;
      if (!to.line->empty(to.at)) keys_.fetch_sub(1, std::memory_order_relaxed);  // a dead key's
      move({line, i}, to, segment);
      return {line, i};
    }
  }
  return {};
}

// Moves a key to its other line, over what is there. The new place first: a reader may see the key twice, never lose
// it. REQUIRES: both lines are locked.
void Table::move(Slot from, Slot to, Segment segment) noexcept {
  const KeyHash key = from.line->key(from.at);
  to.line->set(to.at, key, from.line->tat(from.at));
  from.line->clear(from.at);
  if (to.line != segment.home(key)) from.line->set_overflowed();
}

// The line's key with the lowest level; none in an empty line.
auto Table::lowest(KeyLine* line) noexcept -> Slot {
  Slot least;
  for (unsigned i = 0; i < kSlots; ++i)
    if (!line->empty(i) && (!least || line->tat(i) < line->tat(least.at))) least = {line, i};
  return least;
}

// The key with the lowest level below a TAT, in the lines behind `home`; without locks.
auto Table::lowest_nearby(Segment segment, KeyLine* home, KeyLine* second, Nanos below) noexcept -> Slot {
  const unsigned count = segment.line_count();
  const auto start = static_cast<unsigned>(home - segment.lines());
  Slot least;
  for (unsigned i = 1; i <= kNeighbours && i < count; ++i) {
    KeyLine* const line = segment.lines() + (start + i) % count;
    if (line == second) continue;
    const Slot here = lowest(line);
    if (!here || here.line->tat(here.at) >= below) continue;
    least = here;
    below = here.line->tat(here.at);
  }
  return least;
}

void Table::count_evicted(Nanos tat, const Policy& policy, Nanos now) noexcept {
  evicted_keys_.fetch_add(1, std::memory_order_relaxed);
  evicted_tokens_.fetch_add(Tat(tat).level(policy, now).v, std::memory_order_relaxed);
}

// Evicts the key of the slot, if it still lies below the TAT. Only tries for the lock.
bool Table::evict_below(Slot victim, Nanos below, const Policy& policy, Nanos now) noexcept {
  const KeyLineLock lock(*victim.line, std::try_to_lock);
  if (!lock || victim.line->empty(victim.at) || victim.line->tat(victim.at) >= below) return false;
  if (victim.line->tat(victim.at) > now) count_evicted(victim.line->tat(victim.at), policy, now);
  victim.line->clear(victim.at);
  keys_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// A slot of two full lines, of a key that can take the place of one of lower level in its other line.
auto Table::push_out(Segment segment, KeyLine* home, KeyLine* second, Nanos below, const Policy& policy,
                     Nanos now) noexcept -> Slot {
  for (KeyLine* const line : {home, second})
    for (unsigned i = 0; i < kSlots; ++i) {
      KeyLine* const other = segment.other(line->key(i), line);
      if (other == home || other == second) continue;
      const KeyLineLock lock(*other, std::try_to_lock);
      const Slot to = lock ? lowest(other) : Slot{};
      if (!to || other->tat(to.at) >= below) continue;
      if (other->tat(to.at) > now) count_evicted(other->tat(to.at), policy, now);
      keys_.fetch_sub(1, std::memory_order_relaxed);
      move({line, i}, to, segment);
      return {line, i};
    }
  return {};
}

// The slot of the key with the lowest level in both lines, unless a key of even lower level is found nearby: somebody
// who mints keys would else drive exhausted keys out of lines that they have nearly to themselves.
auto Table::evict(Segment segment, KeyHash key, const Policy& policy, Nanos now) noexcept -> Slot {
  KeyLine* const home = segment.home(key);
  KeyLine* const second = segment.second(key);
  Slot least = lowest(home);
  if (const Slot there = lowest(second); there && (!least || there.line->tat(there.at) < least.line->tat(least.at)))
    least = there;
  Slot empty;  // counts as taken in a table that is full
  for (KeyLine* const line : {second, home})
    for (unsigned i = 0; i < kSlots; ++i)
      if (line->empty(i)) empty = {line, i};
  const Nanos below = least ? least.line->tat(least.at) : kNever;
  if (below > now + policy.interval) {  // nothing is lower than one token
    if (!empty) {
      if (const Slot slot = push_out(segment, home, second, below, policy, now)) return slot;
    } else if (const Slot victim = lowest_nearby(segment, home, second, below)) {
      if (evict_below(victim, below, policy, now)) return empty;
    }
  }
  if (!least) return empty;  // these lines and those nearby are empty: max_keys is passed by one key
  count_evicted(least.line->tat(least.at), policy, now);
  return least;
}

}  // namespace weir
