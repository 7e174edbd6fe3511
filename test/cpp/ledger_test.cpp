// Ledgers by themselves: what was seen, what is said of it, what is held.
#include "weir/ledger.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "cases.hpp"

namespace weir::test {
namespace {

constexpr OriginId kSelf{{5}, 1};
constexpr OriginId kOne{{1}, 1};
constexpr OriginId kOneLater{{1}, 2};
constexpr OriginId kNine{{9}, 4};
constexpr Policy kPolicy{{100}, {1'000'000'000}};
constexpr HistoryLimits kLimits;

Nanos after(std::int64_t ms) { return kBase + Nanos{ms * 1'000'000}; }

Subject of(std::uint64_t key) { return {{7}, 1, {key}}; }
Ledger::Key name_of(std::uint64_t key) { return {7, key}; }

// Another's record of one birth (or of what is given) arrives, and is kept.
void keep(Ledger& ledger, const OriginId& run, std::uint64_t seq, std::uint64_t key, Nanos now = kBase,
          const Interval& birth = {kBase, {1}}) {
  ledger.origins().add(run).mark(seq);
  FrameWriter writer(kSelf.incarnation);
  const std::size_t before = writer.size();
  writer.record(run, true, seq, of(key), {&birth, 1});
  ledger.keep(now, writer.since(before), {run, seq, of(key), {}}, {&birth, 1});
}

// A record of its own.
void emit(Ledger& ledger, std::uint64_t key, bool log = true) {
  const Interval birth{kBase, {1}};
  FrameWriter writer(kSelf.incarnation);
  const std::size_t before = writer.size();
  writer.record(kSelf, false, ledger.history().next(), of(key), {&birth, 1});
  ledger.history().append(kBase, writer.since(before), log, kPolicy, of(key), IntervalSet::from({&birth, 1}));
}

using Seqs = std::vector<std::uint64_t>;

Seqs held(const Ledger& ledger) {
  Seqs seqs;
  ledger.for_each_of_others([&](const RecordName& name, std::span<const std::byte>) { seqs.push_back(name.seq); });
  return seqs;
}

bool never(NodeId) { return false; }

bool same(const DigestItem& x, const DigestItem& y) { return x.low == y.low && x.high == y.high; }

}  // namespace

TEST_CASE("a ledger's vector has its own head among the others", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  CHECK(ledger.vector() == std::vector<VectorEntry>{{kSelf, 0}});
  emit(ledger, 1);
  emit(ledger, 2);
  ledger.origins().add(kNine).advance(3);
  ledger.origins().add(kOne).advance(4);
  ledger.origins().find(kOne)->mark(9);
  CHECK(ledger.vector() == std::vector<VectorEntry>{{kOne, 4}, {kSelf, 2}, {kNine, 3}});
  const auto beyond = ledger.beyond();
  REQUIRE(beyond.size() == 1);
  CHECK(beyond.front().origin == kOne);
  CHECK(beyond.front().ranges == std::vector<Range>{{9, 9}});
}

TEST_CASE("of what came beyond the vector no more is told than a frame may say", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  for (std::uint64_t i = 1; i <= kRangesMax + 5; ++i) ledger.origins().add(kOne).mark(3 * i);
  const auto beyond = ledger.beyond();
  REQUIRE(beyond.size() == 1);
  REQUIRE(beyond.front().ranges.size() == kRangesMax);
  CHECK(beyond.front().ranges.front() == Range{3, 3});  // the oldest
}

TEST_CASE("digests are equal when the same was seen, in whatever order, and else differ", "[ledger]") {
  for_cases([](Rng& rng) {
    Ledger mine(kSelf, kLimits);
    Ledger theirs({{6}, 1}, kLimits);
    theirs.origins().add(kSelf);
    std::vector<std::pair<OriginId, std::uint64_t>> records;
    for (std::int64_t i = draw(rng, 1, 30); i > 0; --i) {
      records.emplace_back(pick<OriginId>(rng, {kOne, kOneLater, kNine}), static_cast<std::uint64_t>(draw(rng, 1, 12)));
    }
    for (const auto& [run, seq] : records) mine.origins().add(run).mark(seq);
    std::shuffle(records.begin(), records.end(), rng);
    for (const auto& [run, seq] : records) theirs.origins().add(run).mark(seq);
    REQUIRE(same(mine.digest(kBase), theirs.digest(kBase)));
    theirs.origins().add(kOne).mark(14);
    REQUIRE_FALSE(same(mine.digest(kBase), theirs.digest(kBase)));
    mine.origins().add(kOne).mark(14);
    emit(mine, 1);
    REQUIRE_FALSE(same(mine.digest(kBase), theirs.digest(kBase)));
    theirs.origins().find(kSelf)->mark(1);
    REQUIRE(same(mine.digest(kBase), theirs.digest(kBase)));
  });
}

TEST_CASE("runs that have been over for long are in no digest", "[ledger]") {
  Ledger mine(kSelf, kLimits);
  Ledger theirs(kSelf, kLimits);
  Origin& over = mine.origins().add(kOne);
  over.advance(3);
  over.dead_since = kBase;
  CHECK_FALSE(same(mine.digest(kBase + Ledger::kDeadInDigests), theirs.digest(kBase)));
  CHECK(mine.any_over_lately(kBase + Ledger::kDeadInDigests - Nanos{1}));
  CHECK(same(mine.digest(kBase + Ledger::kDeadInDigests + Nanos{1}), theirs.digest(kBase)));
  CHECK_FALSE(mine.any_over_lately(kBase + Ledger::kDeadInDigests));
}

TEST_CASE("a run is over when a later one is heard, or is known of a node that wasn't heard, or its node has left",
          "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  const auto over = [&](const OriginId& run) { return ledger.origins().find(run)->dead_since; };
  ledger.run_of(kOne, true, 1, after(0));
  ledger.run_of(kOneLater, true, 1, after(1));  // somebody tells of a later run: it doesn't end the one that is heard
  CHECK(over(kOne) == kNever);
  CHECK(over(kOneLater) == kNever);
  ledger.origins().find(kOne)->attempts = 7;
  ledger.run_of(kOneLater, true, 2, after(2));
  CHECK(over(kOne) == after(2));
  CHECK(ledger.origins().find(kOne)->attempts == 0);
  CHECK(over(kOneLater) == kNever);
  ledger.run_of(kOneLater, true, 2, after(3));
  CHECK(over(kOne) == after(2));
  // Of a node that isn't heard itself the last that is known goes on.
  ledger.run_of(kNine, true, 0, after(4));
  ledger.run_of({{9}, 3}, true, 0, after(5));
  CHECK(over({{9}, 3}) == after(5));
  CHECK(over(kNine) == kNever);
  ledger.run_of(kNine, false, 0, after(6));
  CHECK(over(kNine) == after(6));
  CHECK(over(kOneLater) == kNever);
}

TEST_CASE("what is missing of a run that is found to be over is asked for anew, once", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  Origin& origin = ledger.run_of(kOne, true, 1, after(0));
  origin.asked = 7;
  origin.attempts = 3;
  ledger.run_of(kOne, true, 1, after(1));
  CHECK(origin.asked == 7);  // it goes on: the answer is on its way
  CHECK(origin.attempts == 3);
  ledger.run_of(kOneLater, true, 2, after(2));
  Origin& over = *ledger.origins().find(kOne);
  CHECK(over.asked == 0);
  CHECK(over.attempts == 0);
  over.asked = 9;
  over.attempts = 2;
  ledger.run_of(kOneLater, true, 2, after(3));
  CHECK(over.asked == 9);
  CHECK(over.attempts == 2);
}

TEST_CASE("runs that are over are forgotten, and refused from then on", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  ledger.run_of(kOne, true, 2, kBase);
  ledger.run_of(kOneLater, true, 2, kBase);
  ledger.forget_over(kBase + Ledger::kKeepDead);
  CHECK_FALSE(ledger.forgotten(kOne));
  ledger.forget_over(kBase + Ledger::kKeepDead + Nanos{1});
  CHECK(ledger.forgotten(kOne));
  CHECK(ledger.origins().find(kOne) == nullptr);
  CHECK_FALSE(ledger.forgotten(kOneLater));
  CHECK_FALSE(ledger.forgotten(kNine));
  ledger.forget_upto(kOneLater);
  CHECK(ledger.forgotten(kOneLater));
  CHECK(ledger.origins().find(kOneLater) == nullptr);
  CHECK(ledger.floor_of(0).upto_of(kOne) == kForgotten);
  ledger.bound_forgotten(never);  // there are few
  CHECK(ledger.forgotten(kOne));
}

TEST_CASE("past its limit of nodes a ledger refuses the forgotten runs of members only", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  for (std::uint32_t node = 1; node <= Ledger::kForgottenMax + 1; ++node) ledger.forget_upto({{node}, 3});
  ledger.bound_forgotten([](NodeId node) { return node.v == 17; });
  CHECK(ledger.forgotten({{17}, 3}));
  CHECK_FALSE(ledger.forgotten({{18}, 3}));
}

TEST_CASE("of a node with too many runs the oldest is forgotten, or one that was made up", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  for (std::uint64_t i = 0; i < Ledger::kRunsMax; ++i) ledger.origins().add({{1}, 10 + i});
  ledger.make_room_for({{1}, 12});  // it is known
  CHECK(ledger.runs({1}) == Ledger::kRunsMax);
  ledger.make_room_for({{1}, 5});
  CHECK(ledger.runs({1}) == Ledger::kRunsMax - 1);
  CHECK_FALSE(ledger.forgotten({{1}, 10}));
  ledger.origins().add({{1}, 5});
  ledger.make_room_for({{1}, 50});
  CHECK(ledger.forgotten({{1}, 5}));
  CHECK_FALSE(ledger.forgotten({{1}, 11}));
  CHECK(ledger.runs({9}) == 0);
}

TEST_CASE("what another lacks of a run is what its vector doesn't say", "[ledger]") {
  for_cases([](Rng& rng) {
    constexpr std::uint64_t kMost = 20;
    Origin there;
    std::set<std::uint64_t> has;
    for (std::uint64_t seq = 1; seq <= kMost; ++seq) {
      if (chance(rng, 50) && there.mark(seq)) has.insert(seq);
    }
    const auto last = static_cast<std::uint64_t>(draw(rng, 1, kMost));
    std::set<std::uint64_t> lacks;
    const VectorItem vector{false, {{kSelf, there.upto}}, {{kOne, {{1, kMost}}}, {kSelf, there.beyond}}};
    for (const Range& range : Ledger::lacks({kSelf, there.upto}, vector, last)) {
      for (std::uint64_t seq = range.first; seq <= range.last; ++seq) REQUIRE(lacks.insert(seq).second);
    }
    for (std::uint64_t seq = 1; seq <= last; ++seq) REQUIRE(lacks.contains(seq) == !has.contains(seq));
  });
}

TEST_CASE("a segment is true for what was seen and for what it was copied with", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  emit(ledger, 1);
  ledger.origins().add(kOne).advance(4);
  ledger.origins().add(kNine).advance(4);
  ledger.floors().set(3, {{{kOne, 7}, {kNine, 2}}, {}});
  CHECK(ledger.floor_of(2).upto_of(kOne) == 4);
  CHECK(ledger.floor_of(3).upto_of(kOne) == 7);
  CHECK(ledger.floor_of(3).upto_of(kNine) == 4);
  CHECK(ledger.floor_of(3).upto_of(kSelf) == 1);
  ledger.origins().find(kOne)->advance(7);
  ledger.forget_over(kBase);
  CHECK(ledger.floors().empty());
}

TEST_CASE("others' records are held until all have them, and longer if somebody waits for them", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  for (std::uint64_t seq = 1; seq <= 4; ++seq) keep(ledger, kOne, seq, seq);
  const auto trim = [&](bool awaited) {
    ledger.trim(kBase, 10'000, Nanos{5'000'000'000}, [&](NodeId node) { return awaited && node == kOne.node; });
    return held(ledger);
  };
  CHECK(trim(false) == Seqs{1, 2, 3, 4});
  ledger.origins().find(kOne)->stable = 2;
  CHECK(trim(true) == Seqs{1, 2, 3, 4});
  CHECK(trim(false) == Seqs{3, 4});
  ledger.origins().erase(kOne);  // nobody asks for those of a run that is forgotten
  CHECK(trim(true).empty());
}

TEST_CASE("others' records that are too old or too many go, whoever waits for them", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  for (std::uint64_t seq = 1; seq <= 10; ++seq) keep(ledger, kOne, seq, seq, after(seq <= 4 ? 0 : 3000));
  const auto always = [](NodeId) { return true; };
  ledger.trim(after(4000), 10'000, Nanos{5'000'000'000}, always);
  CHECK(held(ledger).size() == 10);
  ledger.trim(after(5200), 10'000, Nanos{5'000'000'000}, always);
  CHECK(held(ledger) == Seqs{5, 6, 7, 8, 9, 10});
  ledger.trim(after(5200), 70, Nanos{5'000'000'000}, always);
  CHECK_FALSE(held(ledger).empty());
  CHECK(held(ledger).size() < 4);
  CHECK(held(ledger).back() == 10);
}

TEST_CASE("after a copy those of others' records that weren't seen are handed out", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  for (std::uint64_t seq = 1; seq <= 4; ++seq) keep(ledger, kOne, seq, seq);
  keep(ledger, kNine, 9, 9);
  Origin& origin = *ledger.origins().find(kOne);
  origin = {};
  origin.id = kOne;
  origin.advance(2);
  ledger.origins().erase(kNine);
  Seqs out;
  ledger.take_unseen(kBase, [&](std::span<const std::byte> record) {
    const Frame frame = ledger.framed(record);
    REQUIRE(frame.items.size() == 1);
    out.push_back(std::get<RecordItem>(frame.items.front()).seq);
  });
  CHECK(out == Seqs{3, 4, 9});
  CHECK(held(ledger) == Seqs{1, 2});
}

TEST_CASE("rule R: a copy is refused if a record of its births may have been applied", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  CHECK_FALSE(ledger.may_have_applied(kOne, name_of(1), 1));  // nothing of that run was
  keep(ledger, kOne, 1, 1);
  keep(ledger, kOne, 2, 2);
  keep(ledger, kOne, 5, 3);
  CHECK(ledger.may_have_applied(kOne, name_of(1), 1));
  CHECK_FALSE(ledger.may_have_applied(kOne, name_of(1), 2));
  CHECK(ledger.may_have_applied(kOne, name_of(2), 2));
  CHECK(ledger.may_have_applied(kOne, name_of(3), 4));
  CHECK_FALSE(ledger.may_have_applied(kOne, name_of(3), 6));
  CHECK_FALSE(ledger.may_have_applied(kOne, name_of(9), 1));
  CHECK_FALSE(ledger.may_have_applied(kNine, name_of(1), 1));
  // Look-ups are in step with what comes and goes.
  keep(ledger, kOne, 6, 1);
  CHECK(ledger.may_have_applied(kOne, name_of(1), 6));
  ledger.origins().find(kOne)->stable = 2;
  ledger.trim(kBase, 10'000, Nanos{5'000'000'000}, never);
  CHECK(held(ledger) == Seqs{5, 6});
  CHECK(ledger.may_have_applied(kOne, name_of(9), 2));  // the log doesn't reach back to it
  CHECK_FALSE(ledger.may_have_applied(kOne, name_of(9), 3));
  ledger.forget_look_ups();
  CHECK(ledger.may_have_applied(kOne, name_of(9), 2));
  CHECK_FALSE(ledger.may_have_applied(kOne, name_of(9), 3));
  // A reset isn't of its births.
  keep(ledger, kOne, 7, 8, kBase, reset_mark({8}, kBase));
  CHECK_FALSE(ledger.may_have_applied(kOne, name_of(8), 3));
  // What a segment was copied with, and runs that are forgotten.
  ledger.floors().set(0, {{{kNine, 4}}, {}});
  CHECK(ledger.may_have_applied(kNine, name_of(1), 4));
  CHECK_FALSE(ledger.may_have_applied(kNine, name_of(1), 5));
  CHECK_FALSE(ledger.may_have_applied(kNine, name_of(std::uint64_t{1} << 58), 4));
  ledger.forget_upto(kOneLater);
  CHECK(ledger.may_have_applied(kOne, name_of(9), 100));
}

// What may_have_applied may be wrong in: it may refuse what was never applied, when the log was cut short.
TEST_CASE("rule R holds whatever was kept, trimmed and looked up", "[ledger]") {
  for_cases([](Rng& rng) {
    Ledger ledger(kSelf, kLimits);
    std::map<std::uint64_t, std::uint64_t> applied;  // by number: the key
    bool trimmed = false;
    for (int i = 0; i < 60; ++i) {
      const auto key = static_cast<std::uint64_t>(draw(rng, 1, 4));
      const auto seq = static_cast<std::uint64_t>(draw(rng, 1, 30));
      const std::int64_t what = draw(rng, 1, 100);
      if (what <= 55) {
        if (applied.emplace(seq, key).second) keep(ledger, kOne, seq, key);
      } else if (what <= 58) {
        const auto most = static_cast<std::size_t>(draw(rng, 0, 400));
        const std::size_t before = held(ledger).size();
        ledger.trim(kBase, most, Nanos{5'000'000'000}, never);
        trimmed = trimmed || held(ledger).size() != before;
      } else if (what <= 62) {
        ledger.forget_look_ups();
      } else {
        bool was = false;
        for (auto at = applied.lower_bound(seq); at != applied.end(); ++at) was = was || at->second == key;
        const bool says = ledger.may_have_applied(kOne, name_of(key), seq);
        REQUIRE((says || !was));
        if (!trimmed) REQUIRE(says == was);
      }
    }
  });
}

TEST_CASE("own births beyond a floor come from the log and from pieces, or are lost", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  for (std::uint64_t key = 1; key <= 3; ++key) emit(ledger, key);
  ledger.history().begin_piece();
  for (std::uint64_t key = 4; key <= 6; ++key) emit(ledger, key, false);
  ledger.history().end_piece();
  for (std::uint64_t key = 7; key <= 8; ++key) emit(ledger, key);
  emit(ledger, 9, false);  // nowhere
  const auto records = ledger.own_records();
  const auto beyond = [&](const Floor& floor) {
    std::set<std::uint64_t> keys;
    const std::uint64_t lost = ledger.own_births_beyond(
        floor, records,
        [&](std::span<const std::byte> record) { REQUIRE(keys.insert(record_name(record, kSelf).key.v).second); },
        [&](const Piece& piece) {
          for (const auto& [subject, set] : piece.entries) REQUIRE(keys.insert(subject.key.v).second);
        });
    REQUIRE(ledger.lost_beyond(floor, records) == lost);
    return std::pair{keys, lost};
  };
  using Keys = std::set<std::uint64_t>;
  CHECK(beyond({}) == std::pair{Keys{1, 2, 3, 4, 5, 6, 7, 8}, std::uint64_t{1}});
  CHECK(beyond({{{kSelf, 9}}, {}}) == std::pair{Keys{}, std::uint64_t{0}});
  CHECK(beyond({{{kSelf, 2}}, {{kSelf, {{7, 7}, {9, 9}}}}}) == std::pair{Keys{3, 4, 5, 6, 8}, std::uint64_t{0}});
  // Of a piece that is covered in part nothing can be told from that part.
  CHECK(beyond({{{kSelf, 4}}, {}}) == std::pair{Keys{7, 8}, std::uint64_t{3}});
  CHECK(beyond({{{kSelf, 3}}, {{kSelf, {{5, 5}}}}}) == std::pair{Keys{7, 8}, std::uint64_t{3}});
}

TEST_CASE("a copied state is better if it is ahead with what would be added to it", "[ledger]") {
  Ledger ledger(kSelf, kLimits);
  keep(ledger, kOne, 1, 1);
  keep(ledger, kOne, 2, 2);
  CHECK_FALSE(ledger.is_better({{{kOne, 1}}, {}}, false));
  CHECK_FALSE(ledger.is_better({{{kOne, 2}}, {}}, false));
  CHECK(ledger.is_better({{{kOne, 1}, {kNine, 1}}, {}}, false));  // the second record is held here
  CHECK_FALSE(ledger.is_better({{{kOne, 1}, {kNine, 1}}, {}}, true));
  CHECK(ledger.is_better({{{kOne, 3}}, {}}, true));
  ledger.forget_upto(kOne);
  CHECK(ledger.is_better({{{kNine, 1}}, {}}, false));
}

}  // namespace weir::test
