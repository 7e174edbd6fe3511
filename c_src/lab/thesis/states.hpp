// states: a node's users, and for each neighbour what it was not told yet of them (delta states).
//
//   index_      key -> user: { key, local state, the neighbours' delta states while any holds something, their places }
//   pending_    for each neighbour: the users with something for it, in an order that depends on the events alone
//
// An update goes into the delta states of nearly all neighbours. They lie side by side in their user (`Rows`), so that
// costs one look-up, not one a neighbour. A delta state that becomes empty leaves its neighbour's list at once (its
// place there is known), and a user without any gives the rows back.
//
// Memory is counted as it is taken, so `bytes()` costs nothing: each block at its capacity, but for those whose heap()
// is 0 here, which the design adds. Local and delta states are separate copies, as in the thesis.
//
// Local:  empty(), heap().   Rows: count(), open(n), close(), for each row: size(i) (updates, 0: empty), clear(i),
// heap(i), prefetch(i); heap() is what they take besides. All noexcept but for the growth of memory.
//
// Thread safety: none. Complexity: constant but for the states' own operations; drain linear in the users.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lab/thesis/index.hpp"
#include "weir/units.hpp"

namespace weir::thesis {

template <class E>
std::size_t heap_bytes(const std::vector<E>& block) noexcept {
  return block.capacity() * sizeof(E);  // NOLINT(bugprone-sizeof-expression): of pointers too
}

template <class Local, class Rows>
class States {
 public:
  struct Entry {
    std::uint64_t key = 0;
    Local local;
    Rows rows;
    std::vector<std::uint32_t> places;  // of this user in each neighbour's list
    std::uint32_t pending = 0;          // rows that hold something
  };

  explicit States(std::size_t neighbours) : pending_(neighbours), queued_(neighbours) {}
  States(const States&) = delete;
  States& operator=(const States&) = delete;
  ~States() {
    index_.each([](Entry& entry) { std::default_delete<Entry>()(&entry); });
  }

  std::size_t neighbours() const noexcept { return pending_.size(); }
  void add_neighbour() {
    pending_.emplace_back();
    queued_.push_back(0);
  }

  // Null if the user is not known.
  Entry* find(KeyHash key) const noexcept { return index_.find(key.v); }
  Entry& make(KeyHash key) {
    if (Entry* const known = find(key)) return *known;
    auto entry = std::make_unique<Entry>();
    entry->key = key.v;
    index_.insert(key.v, entry.get());
    return *entry.release();
  }
  // All users, ordered by key.
  std::vector<const Entry*> users() const {
    std::vector<const Entry*> users;
    users.reserve(index_.size());
    index_.each([&](const Entry& entry) { users.push_back(&entry); });
    std::sort(users.begin(), users.end(), [](const Entry* a, const Entry* b) { return a->key < b->key; });
    return users;
  }

  template <class Visit>
  void each(Visit visit) const {
    index_.each([&](const Entry& entry) { visit(entry); });
  }

  template <class Change>
  void change_local(Entry& entry, Change change) {
    bytes_ -= entry.local.heap();
    change(entry.local);
    bytes_ += entry.local.heap();
  }

  // change(rows, neighbour) may change that row alone.
  template <class Change>
  void change_row(Entry& entry, std::size_t neighbour, Change change) {
    if (entry.rows.count() < neighbours()) resize(entry, neighbours());
    Rows& rows = entry.rows;
    const std::size_t size = rows.size(neighbour);
    bytes_ -= rows.heap(neighbour) + rows.heap();
    change(rows, neighbour);
    if (rows.size(neighbour) == 0) rows.clear(neighbour);
    bytes_ += rows.heap(neighbour) + rows.heap();
    queued_[neighbour] += rows.size(neighbour) - size;
    if (size == 0 && rows.size(neighbour) != 0) enter(entry, neighbour);
    if (size != 0 && rows.size(neighbour) == 0) leave(entry, neighbour);
    if (entry.pending == 0 && rows.count() != 0) resize(entry, 0);
  }
  void clear_row(Entry& entry, std::size_t neighbour) {
    change_row(entry, neighbour, [](Rows& rows, std::size_t i) { rows.clear(i); });
  }
  bool has(const Entry& entry, std::size_t neighbour) const noexcept {
    return neighbour < entry.rows.count() && entry.rows.size(neighbour) != 0;
  }

  // Empties all that waits for a neighbour, after visit(entry) of each user.
  template <class Visit>
  void drain(std::size_t neighbour, Visit visit) {
    bytes_ -= heap_bytes(pending_[neighbour]);
    const std::vector<Entry*> list = std::exchange(pending_[neighbour], std::vector<Entry*>());
    for (std::size_t i = 0; i < list.size(); ++i) {
      Entry* const entry = list[i];
      if (i + 2 * kAhead < list.size()) __builtin_prefetch(list[i + 2 * kAhead]);
      if (i + kAhead < list.size()) list[i + kAhead]->rows.prefetch(neighbour);
      visit(std::as_const(*entry));
      bytes_ -= entry->rows.heap(neighbour);
      entry->rows.clear(neighbour);
      if (--entry->pending == 0) resize(*entry, 0);
      sweep(*entry);
    }
    queued_[neighbour] = 0;
  }

  // Asks memory for users that come soon after the i-th in a frame. Users are all over the memory, and each step from
  // an index to a state waits for it: asked in time, a large frame is merged in half the time.
  void prefetch(std::span<const KeyHash> keys, std::size_t i) const noexcept {
    if (i + 3 * kAhead < keys.size()) index_.prefetch(keys[i + 3 * kAhead].v);
    if (i + 2 * kAhead < keys.size()) __builtin_prefetch(find(keys[i + 2 * kAhead]));
    if (i + kAhead >= keys.size()) return;
    if (const Entry* const soon = find(keys[i + kAhead])) soon->local.prefetch();
  }

  // Forgets a user of whom nothing is left.
  void sweep(Entry& entry) {
    if (!entry.local.empty() || entry.pending != 0) return;
    if (entry.rows.count() != 0) resize(entry, 0);
    bytes_ -= entry.local.heap();
    index_.erase(entry.key);
    std::default_delete<Entry>()(&entry);
  }

  std::size_t pending(std::size_t neighbour) const noexcept { return pending_[neighbour].size(); }
  // Updates that wait for a neighbour.
  std::size_t queued(std::size_t neighbour) const noexcept { return queued_[neighbour]; }
  bool quiet() const noexcept {
    return std::all_of(pending_.begin(), pending_.end(), [](const auto& list) { return list.empty(); });
  }

  // Bytes of users, states and lists.
  std::size_t bytes() const noexcept { return bytes_ + index_.size() * sizeof(Entry) + index_.heap(); }
  // Bytes that each neighbour takes, whatever the traffic.
  std::size_t fixed() const noexcept { return heap_bytes(pending_) + heap_bytes(queued_); }

 private:
  static constexpr std::size_t kAhead = 4;

  void resize(Entry& entry, std::size_t count) {
    bytes_ -= entry.rows.heap() + heap_bytes(entry.places);
    if (count == 0) {
      entry.rows.close();
      entry.places = std::vector<std::uint32_t>();
    } else {
      entry.rows.open(count);
      entry.places.resize(count);
    }
    bytes_ += entry.rows.heap() + heap_bytes(entry.places);
  }
  void enter(Entry& entry, std::size_t neighbour) {
    std::vector<Entry*>& list = pending_[neighbour];
    entry.places[neighbour] = static_cast<std::uint32_t>(list.size());
    bytes_ -= heap_bytes(list);
    list.push_back(&entry);
    bytes_ += heap_bytes(list);
    ++entry.pending;
  }
  void leave(Entry& entry, std::size_t neighbour) {
    std::vector<Entry*>& list = pending_[neighbour];
    const std::uint32_t place = entry.places[neighbour];
    assert(list[place] == &entry);
    list[place] = list.back();
    list[place]->places[neighbour] = place;
    list.pop_back();
    if (list.empty()) {
      bytes_ -= heap_bytes(list);
      list = std::vector<Entry*>();
    }
    --entry.pending;
  }

  Index<Entry> index_;
  std::vector<std::vector<Entry*>> pending_;
  std::vector<std::size_t> queued_;
  std::size_t bytes_ = 0;
};

}  // namespace weir::thesis
