// history: the records that a node can still hand out: logs in encoded form, and chunks for peers that are away.
//
//   Journal   encoded records one after the other, oldest first: [when:u16 length:u16 bytes]*, in one block.
//
//   History   a node's own records:
//
//             log      the last ones, one by one, until all live peers have them and, of    <= log_bytes
//                      those just lost from sight, perhaps a moment longer
//             pinned   those in the log when a peer went away, of which it may lack some    <= pinned_bytes
//             pieces   births emitted while any peer was away, folded by key; a new piece   <= piece_keys keys in all,
//                      begins when another peer goes, or one comes back, or the last one       pieces
//                      is as long as a frame may be
//
//     seq  ....|...pinned...|...........piece 1...........|......piece 2......|  head
//              acked by A    A goes away                   B goes away
//
//   A piece is one *chunk*: applied whole, and only by a receiver whose vector stands exactly at its start. Past
//   piece_keys, births of further keys are lost: a *lost* piece says that its records are gone. A peer that needs them
//   takes a copy of the state. What was folded before and after it remains.
//
// Thread safety: none. Complexity: appending logarithmic in the piece's keys; look-ups linear in the journal (repair
// only). Memory: some 80 bytes per key in a piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "weir/estate.hpp"
#include "weir/frame.hpp"
#include "weir/keys.hpp"
#include "weir/machine.hpp"
#include "weir/units.hpp"

namespace weir {

struct HistoryLimits {
  std::size_t log_bytes = std::size_t{1} << 20;
  std::size_t others_bytes = std::size_t{1} << 20;
  std::size_t pinned_bytes = std::size_t{1} << 20;
  std::size_t piece_keys = std::size_t{1} << 20;
  std::size_t pieces = 256;
};

class Journal {
 public:
  struct Entry {
    std::uint16_t when = 0;  // tenths of a second, wraps after 109 minutes
    std::span<const std::byte> bytes;
  };

  // REQUIRES: bytes.size() < 65536.
  void append(Nanos when, std::span<const std::byte> bytes);
  bool empty() const noexcept { return head_ == bytes_.size(); }
  std::size_t bytes() const noexcept { return bytes_.size() - head_; }
  Entry front() const noexcept { return at(head_); }
  void pop_front();
  // REQUIRES: age < 100 minutes; entries are taken out within that time after they grew so old.
  static bool older(const Entry& entry, Nanos now, Nanos age) noexcept;
  std::size_t held() const noexcept { return bytes_.capacity(); }

  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = head_; i < bytes_.size();) {
      const Entry entry = at(i);
      visit(entry);
      i += kHeader + entry.bytes.size();
    }
  }

 private:
  static constexpr std::size_t kHeader = 4;
  Entry at(std::size_t place) const noexcept;

  std::vector<std::byte> bytes_;
  std::size_t head_ = 0;
};

// Segment by segment, as copies go.
struct BySubject {
  bool operator()(const Subject& x, const Subject& y) const noexcept {
    return std::tuple(x.key, x.limiter, x.version) < std::tuple(y.key, y.limiter, y.version);
  }
};

struct ByEstate {
  using Estate = std::pair<Subject, OriginId>;
  bool operator()(const Estate& x, const Estate& y) const noexcept {
    if (BySubject{}(x.first, y.first) || BySubject{}(y.first, x.first)) return BySubject{}(x.first, y.first);
    return x.second < y.second;
  }
};

// Own births of records (from, to], folded by key: under each version of its limiter for itself, as the births of one
// mean nothing under another.
struct Piece {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  bool lost = false;              // its births are not here
  bool continues = false;         // the piece before it was full
  mutable bool supplied = false;  // a peer may stand at its end
  std::size_t bytes = 0;          // as a chunk, at most
  std::map<Subject, StoredSet, BySubject> entries;
  std::map<Subject, Interval, BySubject> resets;                        // as records tell them (frame.hpp)
  std::map<std::pair<Subject, OriginId>, StoredSet, ByEstate> estates;  // likewise (estate.hpp)

  std::size_t size() const noexcept { return entries.size() + resets.size() + estates.size(); }
  std::size_t held() const noexcept;
};

class History {
 public:
  History(OriginId self, const HistoryLimits& limits) : self_(self), limits_(limits) {}

  const OriginId& self() const noexcept { return self_; }
  std::uint64_t head() const noexcept { return head_; }
  std::uint64_t next() noexcept { return ++head_; }
  // The record numbered head(): into the log if `keep`, into the open piece if there is one.
  void append(Nanos now, std::span<const std::byte> record, bool keep, const Policy& policy, const Subject& subject,
              const IntervalSet& births);

  // A peer that has acknowledged `acked` goes away (or comes back): what it may lack is pinned, a new piece begins (or
  // ends) at the head.
  void pin(std::uint64_t acked);
  void begin_piece();
  void end_piece() noexcept { open_ = false; }
  // Looks at one piece: births that are over go, and it is united with the one before it if both fit into one frame.
  // `policy_of` a subject is null if nothing is known of that limiter, or of that version of it.
  void tidy(const std::function<const Policy*(const Subject&)>& policy_of, Nanos now);
  // All live peers have what is up to `all`; those that are away or catching up have what is up to `away` (no one away:
  // UINT64_MAX). What is past `log` stays in the log while there is room.
  void forget(std::uint64_t all, std::uint64_t away, std::uint64_t log);
  void forget(std::uint64_t all, std::uint64_t away) { forget(all, away, all); }

  // The piece that starts after record `upto`; null if there is none, or no more.
  const Piece* piece_from(std::uint64_t upto) const noexcept;
  // All pieces, oldest first.
  const std::deque<Piece>& pieces() const noexcept { return pieces_; }
  // Calls visit(seq, record) for each record that is there by itself, in order.
  void for_each_record(const std::function<void(std::uint64_t, std::span<const std::byte>)>& visit) const;

  std::uint64_t dropped() const noexcept { return dropped_; }
  std::size_t log_bytes() const noexcept { return log_.bytes(); }
  std::size_t held() const noexcept;

 private:
  void fold(const Policy& policy, const Subject& subject, const IntervalSet& births);
  void put_reset(Piece& piece, const Subject& subject, const Interval& mark);
  void put_estate(Piece& piece, const Subject& subject, const IntervalSet& record);
  bool put(Piece& piece, const Policy& policy, const Subject& subject, const IntervalSet& births);
  bool unite(Piece& piece, Piece& next, const std::function<const Policy*(const Subject&)>& policy_of);
  Piece& add_piece(std::uint64_t from);
  void drop_first();

  OriginId self_;
  HistoryLimits limits_;
  std::uint64_t head_ = 0;
  std::uint64_t all_ = 0;      // as forget() was told
  std::uint64_t dropped_ = 0;  // records and pieces that went because of a limit
  std::size_t keys_ = 0;       // in the pieces
  std::size_t next_tidied_ = 0;
  Journal log_;
  std::map<std::uint64_t, Bytes> pinned_;
  std::size_t pinned_bytes_ = 0;
  std::deque<Piece> pieces_;
  bool open_ = false;
};

}  // namespace weir
