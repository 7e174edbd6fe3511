// A node's own records against a list of them.
#include "weir/history.hpp"

#include <deque>
#include <map>
#include <string>

#include "births.hpp"
#include "cases.hpp"

namespace weir::test {
namespace {

constexpr OriginId kSelf{{1}, 1};
constexpr Policy kPolicy{{100}, {1'000'000}};

Bytes record_bytes(std::uint64_t seq, const Subject& subject, std::span<const Interval> births) {
  FrameWriter writer(kSelf.incarnation);
  const std::size_t before = writer.size();
  writer.record(kSelf, false, seq, subject, births);
  const auto bytes = writer.since(before);
  return {bytes.begin(), bytes.end()};
}

// A history, and all that it was given.
class Logged {
 public:
  explicit Logged(const HistoryLimits& limits = {}) : history(kSelf, limits) {}

  History history;
  std::map<std::uint64_t, Bytes> records;
  std::map<std::uint64_t, std::pair<Subject, Birth>> births;

  void emit(Nanos now, std::uint64_t key = 1, std::uint32_t version = 1, bool keep = true, Policy policy = kPolicy) {
    const std::uint64_t seq = history.next();
    const Subject subject{{0}, version, {key}};
    IntervalSet set;
    REQUIRE(set.insert(policy, {now, {1}}));
    records[seq] = record_bytes(seq, subject, set.intervals());
    births[seq] = {subject, {now, {1}}};
    history.append(now, records[seq], keep, policy, subject, set);
  }
  // The numbers of the records that are there one by one; their bytes must be those that were logged.
  std::vector<std::uint64_t> singles() const {
    std::vector<std::uint64_t> found;
    history.for_each_record([&](std::uint64_t seq, std::span<const std::byte> bytes) {
      REQUIRE(std::equal(bytes.begin(), bytes.end(), records.at(seq).begin(), records.at(seq).end()));
      found.push_back(seq);
    });
    return found;
  }
  // The piece holds the births of its records and no others.
  void check(const Piece& piece) const {
    std::map<std::pair<std::uint64_t, std::uint32_t>, Births> sums;  // by key and version
    for (std::uint64_t seq = piece.from + 1; seq <= piece.to; ++seq) {
      const auto& [subject, birth] = births.at(seq);
      sums[{subject.key.v, subject.version}].add(birth);
    }
    REQUIRE(piece.entries.size() == sums.size());
    for (const auto& [subject, set] : piece.entries) {
      const Births& sum = sums.at({subject.key.v, subject.version});
      REQUIRE(set.load().tat(kPolicy).v == sum.tat(kPolicy));
      Tokens weight;
      for (const Interval& period : sum.busy(kPolicy)) weight = weight + period.count;
      REQUIRE(set.weight() == weight);
    }
  }
};

std::vector<std::uint64_t> numbers(std::uint64_t first, std::uint64_t last) {
  std::vector<std::uint64_t> list;
  for (std::uint64_t seq = first; seq <= last; ++seq) list.push_back(seq);
  return list;
}

}  // namespace

TEST_CASE("a journal is a queue of byte strings", "[history]") {
  for_cases([](Rng& rng) {
    Journal journal;
    std::deque<Bytes> truth;
    for (int i = 0; i < 200; ++i) {
      if (chance(rng, 55)) {
        const Bytes bytes(static_cast<std::size_t>(draw(rng, 0, 60)), static_cast<std::byte>(i));
        journal.append(kBase, bytes);
        truth.push_back(bytes);
      } else if (!truth.empty()) {
        journal.pop_front();
        truth.pop_front();
      }
      std::size_t bytes = 0;
      auto expected = truth.begin();
      journal.for_each([&](const Journal::Entry& entry) {
        REQUIRE(std::equal(entry.bytes.begin(), entry.bytes.end(), expected->begin(), expected->end()));
        bytes += entry.bytes.size() + 4;
        ++expected;
      });
      REQUIRE(expected == truth.end());
      REQUIRE(journal.bytes() == bytes);
      REQUIRE(journal.empty() == truth.empty());
      REQUIRE(journal.held() >= bytes);
      // Slack: an eighth, and what was popped of a quarter.
      REQUIRE(journal.held() <= 2 * bytes + 128);
    }
  });
}

TEST_CASE("the age of a journal's entries, whenever they were made", "[history]") {
  for_cases([](Rng& rng) {
    const Nanos when{draw(rng, 0, kTimeMax.v / 2)};
    Journal journal;
    journal.append(when, {});
    const Nanos age{draw(rng, 1, 1000) * 100'000'000};
    CHECK_FALSE(Journal::older(journal.front(), when, age));
    CHECK_FALSE(Journal::older(journal.front(), when + age, age));
    CHECK(Journal::older(journal.front(), when + age + Nanos{200'000'000}, age));
  });
}

TEST_CASE("records stay until all live peers have them", "[history]") {
  Logged log;
  for (int i = 0; i < 100; ++i) log.emit(kBase);
  CHECK(log.history.head() == 100);
  CHECK(log.singles() == numbers(1, 100));
  log.history.forget(40, UINT64_MAX);
  CHECK(log.singles() == numbers(41, 100));
  log.history.forget(10, UINT64_MAX);
  CHECK(log.singles() == numbers(41, 100));
  log.history.forget(100, UINT64_MAX);
  CHECK(log.singles().empty());
  CHECK(log.history.log_bytes() == 0);
  CHECK(log.history.dropped() == 0);
}

TEST_CASE("what isn't to be kept goes into the piece alone", "[history]") {
  Logged log;
  log.emit(kBase, 1, 1, false);
  log.history.begin_piece();
  log.emit(kBase, 1, 1, false);
  CHECK(log.singles().empty());
  REQUIRE(log.history.piece_from(1) != nullptr);
  log.check(*log.history.piece_from(1));
  CHECK(log.history.piece_from(0) == nullptr);
}

TEST_CASE("an absence: what was in the log is pinned, what comes is folded by key", "[history]") {
  Logged log;
  for (int i = 0; i < 10; ++i) log.emit(kBase);
  log.history.pin(6);
  log.history.begin_piece();
  for (std::uint64_t i = 0; i < 50; ++i) log.emit(kBase, i % 7);
  log.history.forget(60, 6);
  CHECK(log.singles() == numbers(7, 10));
  const Piece* const piece = log.history.piece_from(10);
  REQUIRE(piece != nullptr);
  CHECK(piece->to == 60);
  log.check(*piece);
  log.history.end_piece();
  log.emit(kBase);
  CHECK(log.history.piece_from(10)->to == 60);

  // The peer came back and takes them in their turn.
  log.history.forget(61, 9);
  CHECK(log.singles() == numbers(10, 10));
  log.history.forget(61, 60);
  CHECK(log.singles().empty());
  CHECK(log.history.pieces().empty());
  CHECK(log.history.dropped() == 0);
}

TEST_CASE("a second absence begins a piece of its own, unless nothing came between", "[history]") {
  Logged log;
  log.history.begin_piece();
  for (int i = 0; i < 5; ++i) log.emit(kBase);
  log.history.begin_piece();
  log.history.begin_piece();
  for (int i = 0; i < 5; ++i) log.emit(kBase);
  REQUIRE(log.history.pieces().size() == 2);
  for (const Piece& piece : log.history.pieces()) log.check(piece);
  CHECK(log.history.piece_from(0)->to == 5);
  CHECK(log.history.piece_from(5)->to == 10);
  CHECK(log.history.piece_from(10) == nullptr);
  log.history.forget(10, 5);
  CHECK(log.history.piece_from(0) == nullptr);
  CHECK(log.history.piece_from(5) != nullptr);
}

TEST_CASE("births of several versions of a limiter are not mixed in a piece", "[history]") {
  // Ten of a bucket whose tokens come back after a microsecond, then one that takes an hour: folded under either
  // interval the others would mean something else, and their product with it would overflow.
  constexpr Policy kFine{{1'000'000'000}, {1000}};
  constexpr Policy kCoarse{{10}, {3'600'000'000'000}};
  Logged log;
  log.history.begin_piece();
  log.emit(kBase, 1, 1, true, kFine);
  const std::uint64_t seq = log.history.next();
  IntervalSet many;
  REQUIRE(many.insert(kFine, {kBase, {900'000'000}}));
  const Subject old{{0}, 1, {1}};
  log.history.append(kBase, record_bytes(seq, old, many.intervals()), true, kFine, old, many);
  log.emit(kBase, 1, 2, true, kCoarse);
  const Piece* const piece = log.history.piece_from(0);
  REQUIRE(piece != nullptr);
  std::map<std::uint32_t, std::int64_t> weights;
  for (const auto& [subject, set] : piece->entries) weights[subject.version] += set.weight().v;
  CHECK(weights == std::map<std::uint32_t, std::int64_t>{{1, 900'000'001}, {2, 1}});
}

// More keys than a frame holds, each emitted many times while a peer is away, some of them past the horizon.
TEST_CASE("an absence of many keys is kept in pieces that fit into frames", "[history]") {
  Logged log;
  log.history.begin_piece();
  constexpr std::uint64_t kKeys = 60'000;
  for (std::uint64_t i = 0; i < 2 * kKeys; ++i) log.emit(kBase, 1 + i * 0x9e3779b97f4a7c15u % kKeys, 1, false);
  CHECK(log.history.pieces().size() > 2);
  CHECK(log.history.dropped() == 0);
  std::uint64_t at = 0;
  for (const Piece& piece : log.history.pieces()) {
    REQUIRE(piece.from == at);
    at = piece.to;
    log.check(piece);
    FrameWriter chunk(1);
    chunk.chunk(piece.from, piece.to, piece.entries.size());
    for (const auto& [subject, set] : piece.entries) chunk.entry(subject, set.load().intervals());
    CHECK(chunk.size() <= piece.bytes + 40);
    CHECK(chunk.size() <= kFrameMax);
  }
  CHECK(at == 2 * kKeys);
  const std::size_t before = log.history.pieces().size();
  const std::size_t held = log.history.held();
  const auto policy_of = [](const Subject&) { return &kPolicy; };
  const auto tidy = [&](Nanos now) {
    for (std::size_t i = 0; i < 3 * before; ++i) log.history.tidy(policy_of, now);
  };
  SECTION("nothing is over yet") {
    tidy(kBase);
    CHECK(log.history.pieces().size() <= before);
    at = 0;
    for (const Piece& piece : log.history.pieces()) {
      REQUIRE(piece.from == at);
      at = piece.to;
      log.check(piece);
    }
  }
  SECTION("all is over: one piece is left, which says so much") {
    tidy(kBase + Nanos{3'600'000'000'000});
    CHECK(log.history.held() < held / 100 + 8'000'000);
    std::size_t keys = 0;
    for (const Piece& piece : log.history.pieces()) keys += piece.entries.size();
    CHECK(keys == 0);
    CHECK(log.history.pieces().size() <= 2);
    CHECK(log.history.pieces().front().from == 0);
    CHECK(log.history.pieces().back().to == 2 * kKeys);
  }
  SECTION("a peer may stand between two that it was given") {
    for (const Piece& piece : log.history.pieces()) piece.supplied = true;
    tidy(kBase + Nanos{3'600'000'000'000});
    CHECK(log.history.pieces().size() == before);
  }
}

TEST_CASE("what is over makes room for other keys", "[history]") {
  HistoryLimits limits;
  limits.piece_keys = 10;
  Logged log(limits);
  log.history.begin_piece();
  const Nanos later = kBase + Nanos{3'600'000'000'000};
  for (std::uint64_t key = 1; key <= 10; ++key) log.emit(kBase, key, 1, false);
  log.history.tidy([](const Subject&) { return &kPolicy; }, later);
  for (std::uint64_t key = 11; key <= 20; ++key) log.emit(later, key, 1, false);
  CHECK(log.history.dropped() == 0);
  CHECK(log.history.pieces().back().entries.size() == 10);
}

TEST_CASE("of two resets of a key in a piece the later one holds, whichever came first", "[history]") {
  History history(kSelf, {});
  history.begin_piece();
  const Subject subject{{0}, 1, {5}};
  const Nanos late = rounded_for_mark(kBase + Nanos{60'000'000'000});
  for (const Nanos time : {kBase, kBase + Nanos{60'000'000'000}, kBase + Nanos{30'000'000'000}}) {
    history.next();
    const Interval mark = reset_mark(subject.key, rounded_for_mark(time));
    const IntervalSet set = IntervalSet::from({&mark, 1});
    history.append(kBase, {}, false, kPolicy, subject, set);
  }
  REQUIRE(history.pieces().size() == 1);
  const auto& resets = history.pieces().front().resets;
  REQUIRE(resets.size() == 1);
  CHECK(reset_time(subject.key, {&resets.begin()->second, 1}) == late);
}

TEST_CASE("past its limits a history drops the oldest and counts it", "[history]") {
  SECTION("log") {
    HistoryLimits limits;
    limits.log_bytes = 1000;
    Logged log(limits);
    for (int i = 0; i < 200; ++i) log.emit(kBase);
    CHECK(log.history.log_bytes() <= 1000);
    CHECK(log.history.dropped() + log.singles().size() == 200);
    CHECK(log.singles().back() == 200);
  }
  SECTION("pinned") {
    HistoryLimits limits;
    limits.pinned_bytes = 1000;
    Logged log(limits);
    for (int i = 0; i < 200; ++i) log.emit(kBase);
    log.history.pin(0);
    log.history.pin(50);  // again: nothing is counted twice
    log.history.forget(200, 0);
    std::size_t bytes = 0;
    for (const std::uint64_t seq : log.singles()) bytes += log.records.at(seq).size();
    CHECK(bytes <= 1000);
    CHECK(bytes > 1000 - 2 * log.records.at(200).size());
    CHECK(log.singles().back() == 200);
    CHECK(log.history.dropped() >= 200 - log.singles().size());
    log.history.forget(200, 200);
    CHECK(log.singles().empty());
    log.history.pin(0);
    CHECK(log.history.held() < 200);
  }
  SECTION("keys in pieces") {
    HistoryLimits limits;
    limits.piece_keys = 5;
    Logged log(limits);
    log.history.begin_piece();
    for (std::uint64_t key = 1; key <= 6; ++key) log.emit(kBase, key);
    // What came before stays.
    REQUIRE(log.history.piece_from(0) != nullptr);
    CHECK(log.history.piece_from(0)->to == 5);
    log.check(*log.history.piece_from(0));
    CHECK(log.history.dropped() == 1);
    // So does what comes once there is room again.
    log.emit(kBase, 1);
    CHECK(log.history.dropped() == 2);
    CHECK(log.history.piece_from(5) == nullptr);
    log.history.forget(7, 5);
    log.emit(kBase, 1);
    REQUIRE(log.history.piece_from(7) != nullptr);
    log.check(*log.history.piece_from(7));
    CHECK(log.history.dropped() == 2);
  }
  SECTION("pieces") {
    HistoryLimits limits;
    limits.pieces = 3;
    Logged log(limits);
    for (int i = 0; i < 10; ++i) {
      log.history.begin_piece();
      log.emit(kBase);
    }
    CHECK(log.history.pieces().size() == 3);
    CHECK(log.history.dropped() == 7);
    CHECK(log.history.piece_from(6) == nullptr);
    CHECK(log.history.piece_from(7) != nullptr);
  }
}

// Peers that come, go and acknowledge: whatever is not acknowledged by all can be handed out, one by one or in pieces.
TEST_CASE("a history hands out whatever somebody may lack", "[history]") {
  for_cases([](Rng& rng) {
    Logged log;
    struct Peer {
      std::uint64_t acked = 0;
      std::uint64_t cut = 0;
      bool live = true;
    };
    std::vector<Peer> peers(3);
    for (int i = 0; i < 120; ++i) {
      Peer& peer = peers[static_cast<std::size_t>(draw(rng, 0, 2))];
      const std::int64_t what = draw(rng, 1, 100);
      if (what <= 60) {
        const bool any = std::any_of(peers.begin(), peers.end(), [](const Peer& each) { return each.live; });
        log.emit(kBase + Nanos{i}, static_cast<std::uint64_t>(draw(rng, 1, 3)), 1, any);
      } else if (what <= 80) {
        if (peer.live)
          peer.acked = static_cast<std::uint64_t>(
              draw(rng, static_cast<std::int64_t>(peer.acked), static_cast<std::int64_t>(log.history.head())));
      } else if (what <= 90 && peer.live) {
        log.history.pin(peer.acked);
        log.history.begin_piece();
        peer.live = false;
        peer.cut = log.history.head();
      } else if (!peer.live) {
        // It comes back, and takes in turn what it lacks.
        peer.live = true;
        const bool away = std::any_of(peers.begin(), peers.end(), [](const Peer& each) { return !each.live; });
        away ? log.history.begin_piece() : log.history.end_piece();
        const std::vector<std::uint64_t> singles = log.singles();
        while (peer.acked < log.history.head()) {
          if (std::binary_search(singles.begin(), singles.end(), peer.acked + 1)) {
            ++peer.acked;
            continue;
          }
          const Piece* const piece = log.history.piece_from(peer.acked);
          REQUIRE(piece != nullptr);
          log.check(*piece);
          peer.acked = piece->to;
        }
      }
      std::uint64_t live = log.history.head();
      std::uint64_t away = UINT64_MAX;
      for (const Peer& each : peers) (each.live ? live : away) = std::min(each.live ? live : away, each.acked);
      log.history.forget(live, away);
    }
  });
}

}  // namespace weir::test
