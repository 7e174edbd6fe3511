// The thesis' queue as values: its own examples, merges against a list model, and what the listings' faults do.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "lab/thesis/queue.hpp"

namespace weir {
namespace {

using namespace thesis;
using test::chance;
using test::draw;
using test::for_cases;
using test::kBase;
using test::Rng;

using Elements = std::vector<QueueElement>;

// T = 20, as in the thesis' examples.
constexpr Policy kTwenty{{100}, {20}};
constexpr Policy kSeconds{{3}, {1'000'000'000}};
constexpr Nanos kMilli{1'000'000};
constexpr QueueRules kLiteral{0, true};

Elements elements(std::initializer_list<std::pair<std::int64_t, std::int64_t>> from) {
  Elements result;
  for (const auto& [birth, death] : from) result.push_back({{birth}, {death}});
  return result;
}
struct Merged {
  Elements result;
  Elements updates;
};
Merged merged(const Policy& policy, const Elements& local, const Elements& other, Equals equals = Equals::one) {
  Merged merged;
  merge<QueueElement>(policy, local, other, equals, merged.result, merged.updates);
  return merged;
}
Elements refilled(Elements queue, std::int64_t now, const QueueRules& rules) {
  refill(kTwenty, queue, {now}, rules);
  return queue;
}
Elements copy(std::span<const QueueElement> queue) { return {queue.begin(), queue.end()}; }

TEST_CASE("the thesis' example of a merge (4.1.2)", "[thesis]") {
  const Merged m = merged(kTwenty, elements({{1, 21}, {3, 41}, {5, 61}}), elements({{2, 22}, {4, 42}}));
  REQUIRE(m.result == elements({{1, 21}, {2, 41}, {3, 61}, {4, 81}, {5, 101}}));
  REQUIRE(m.updates == elements({{2, 41}, {3, 61}, {4, 81}, {5, 101}}));
}

TEST_CASE("the death that remembers a removed element wins (figure 4.5)", "[thesis]") {
  QueueState a;
  for (const std::int64_t birth : {1, 5, 10}) REQUIRE(a.accept(kTwenty, {birth}));
  REQUIRE(copy(a.elements()) == elements({{1, 21}, {5, 41}, {10, 61}}));
  a.refill(kTwenty, {30}, {});
  const Elements at_a = copy(a.elements());
  REQUIRE(at_a == elements({{5, 41}, {10, 61}}));
  const Merged m = merged(kTwenty, elements({{5, 25}}), at_a);
  REQUIRE(m.result == elements({{5, 41}, {10, 61}}));
  REQUIRE(m.updates == m.result);
  // What is dead already is not brought forward: it keeps its death.
  REQUIRE(merged(kTwenty, elements({{1, 21}}), elements({{100, 120}})).result == elements({{1, 21}, {100, 120}}));
}

// A sorted list of all births, each with its greatest death; then deaths at least T apart.
Merged specified(const Policy& policy, const Elements& local, const Elements& other) {
  std::map<Nanos, Nanos> known;
  std::map<Nanos, Nanos> all;
  for (const QueueElement& e : local) known[e.birth] = all[e.birth] = e.death;
  for (const QueueElement& e : other) all[e.birth] = std::max(all[e.birth], e.death);
  Merged m;
  Nanos earliest{0};
  for (const auto& [birth, death] : all) {
    const QueueElement e{birth, std::max(death, earliest)};
    m.result.push_back(e);
    if (!known.contains(birth) || known[birth] != e.death) m.updates.push_back(e);
    earliest = e.death + policy.interval;
  }
  return m;
}

Elements draw_queue(Rng& rng, const Policy& policy) {
  QueueState queue;
  Nanos now{draw(rng, 1, 20)};
  for (std::int64_t n = draw(rng, 0, 8); n > 0; --n) {
    std::vector<QueueElement> updates;
    queue.add(policy, now, {1}, {}, 0, updates);
    now = now + Nanos{draw(rng, 1, 3 * policy.interval.v)};
  }
  Elements drawn = copy(queue.elements());
  std::erase_if(drawn, [&](const QueueElement&) { return chance(rng, 20); });
  return drawn;
}

TEST_CASE("merges against a list model", "[thesis]") {
  for_cases([](Rng& rng) {
    const Policy policy{{100}, {draw(rng, 1, 20)}};
    const Elements local = draw_queue(rng, policy);
    const Elements other = draw_queue(rng, policy);
    const Merged expected = specified(policy, local, other);
    const Merged m = merged(policy, local, other);
    REQUIRE(m.result == expected.result);
    REQUIRE(m.updates == expected.updates);
    if (other.empty()) return;
    Elements in_place = local;
    Elements scratch;
    Elements updates;
    merge_into<QueueElement>(policy, in_place, other, Equals::one, scratch, updates);
    REQUIRE(updates == expected.updates);
    REQUIRE(in_place == expected.result);
  });
}

TEST_CASE("a local merge refills, and passes on only what is left", "[thesis]") {
  for_cases([](Rng& rng) {
    const Policy policy{{100}, {draw(rng, 1, 20)}};
    const QueueRules rules{static_cast<std::uint32_t>(draw(rng, 0, 3)), false};
    UserQueue<QueueElement> queue;
    Elements updates;
    Elements scratch;
    Elements expected;
    Nanos now{0};
    for (int i = 0; i < 4; ++i) {
      now = now + Nanos{draw(rng, 0, 40)};
      const Elements received = draw_queue(rng, policy);
      Merged m = specified(policy, expected, received);
      queue.merge(policy, now, received, rules, updates, scratch);
      const auto dead = std::count_if(m.result.begin(), m.result.end(), [&](const auto& e) { return e.death <= now; });
      const auto dropped = std::max<std::int64_t>(0, dead - rules.margin);
      m.result.erase(m.result.begin(), m.result.begin() + dropped);
      std::erase_if(m.updates, [&](const QueueElement& e) {
        return std::find(m.result.begin(), m.result.end(), e) == m.result.end();
      });
      REQUIRE(copy(queue.elements()) == m.result);
      REQUIRE(updates == m.updates);
      REQUIRE(queue.level(policy, now).v ==
              std::count_if(m.result.begin(), m.result.end(), [&](const auto& e) { return e.death > now; }));
      expected = m.result;
    }
  });
}

TEST_CASE("elements with identities stay apart when born together", "[thesis]") {
  using Marked = MarkedQueueElement;
  const std::vector<Marked> a{{{5}, {25}, 1}};
  const std::vector<Marked> b{{{5}, {25}, 2}};
  std::vector<Marked> result;
  std::vector<Marked> updates;
  merge<Marked>(kTwenty, a, b, Equals::one, result, updates);
  REQUIRE(result == std::vector<Marked>{{{5}, {25}, 1}, {{5}, {45}, 2}});
  merge<Marked>(kTwenty, std::vector<Marked>(result), b, Equals::one, result, updates);
  REQUIRE(updates.empty());
  // Without, the two requests are one.
  REQUIRE(merged(kTwenty, elements({{5, 25}}), elements({{5, 25}})).result.size() == 1);
}

TEST_CASE("sliding logs merge as sets", "[thesis]") {
  const std::vector<LogElement> a{{{1}}, {{3}}, {{5}}};
  const std::vector<LogElement> b{{{2}}, {{3}}, {{4}}};
  std::vector<LogElement> result;
  std::vector<LogElement> updates;
  merge<LogElement>(kTwenty, a, b, Equals::one, result, updates);
  REQUIRE(result == std::vector<LogElement>{{{1}}, {{2}}, {{3}}, {{4}}, {{5}}});
  REQUIRE(updates == std::vector<LogElement>{{{2}}, {{4}}});
}

TEST_CASE("a sliding log rejects what a token bucket admits (figure 4.2)", "[thesis]") {
  const Policy policy{{4}, {1'000'000'000}};
  SlidingLogState log;
  QueueState queue;
  const auto at = [](std::int64_t tenths) { return kBase + Nanos{tenths * 100'000'000}; };
  for (const std::int64_t tenths : {0, 10, 20, 30}) {
    REQUIRE(log.accept(policy, at(tenths)));
    REQUIRE(queue.accept(policy, at(tenths)));
  }
  REQUIRE_FALSE(log.accept(policy, at(39)));
  REQUIRE(queue.accept(policy, at(39)));
  REQUIRE(log.accept(policy, at(40)));
}

TEST_CASE("refill drops the dead but for a margin (4.1)", "[thesis]") {
  const Elements queue = elements({{1, 21}, {2, 41}, {3, 61}});
  REQUIRE(refilled(queue, 20, {}) == queue);
  REQUIRE(refilled(queue, 21, {}) == elements({{2, 41}, {3, 61}}));
  REQUIRE(refilled(queue, 100, {}) == Elements{});
  REQUIRE(refilled(queue, 100, {2, false}) == elements({{2, 41}, {3, 61}}));
  REQUIRE(refilled(queue, 21, {2, false}) == queue);
}

TEST_CASE("a margin is not counted against the limit", "[thesis]") {
  const QueueRules margin{10, false};
  QueueState queue;
  for (int i = 0; i < 20; ++i) {
    const Nanos now = kBase + Tokens{5 * i} * kSeconds.interval;
    for (int request = 0; request < 4; ++request) REQUIRE(queue.accept(kSeconds, now, {1}, margin) == (request < 3));
  }
  REQUIRE(queue.elements().size() == 13);
}

TEST_CASE("listing 4.1 as written removes the living and keeps the dead", "[thesis]") {
  REQUIRE(refilled(elements({{1, 21}, {2, 41}}), 20, kLiteral) == Elements{});
  REQUIRE(refilled(elements({{1, 21}, {2, 41}}), 21, kLiteral) == elements({{1, 21}, {2, 41}}));
  QueueState literal;
  QueueState repaired;
  int admitted = 0;
  for (int i = 0; i < 50; ++i) {
    const Nanos now = kBase + Tokens{i} * kMilli;
    REQUIRE(literal.accept(kSeconds, now, {1}, kLiteral));
    admitted += repaired.accept(kSeconds, now) ? 1 : 0;
  }
  REQUIRE(admitted == 3);
  // The last one dies in the queue, and what follows is never removed.
  for (int i = 1; i <= 50; ++i) {
    const Nanos now = kBase + Tokens{100 * i} * kSeconds.interval;
    REQUIRE(literal.accept(kSeconds, now, {1}, kLiteral) == (i <= 2));
    REQUIRE(repaired.accept(kSeconds, now));
  }
}

TEST_CASE("two births in one millisecond add T at each exchange unless one is moved", "[thesis]") {
  const Policy policy{{10}, {20'000'000}};
  const auto run = [&](const QueueRules& rules) {
    QueueState queue;
    Elements updates;
    queue.add(policy, kBase, {2}, rules, 0, updates);
    // Another node has heard of the second only.
    Elements other{queue.elements().back()};
    Elements scratch;
    for (int i = 0; i < 10; ++i) {
      queue.merge(policy, kBase, other, {}, updates, scratch);
      other = {queue.elements().back()};
    }
    REQUIRE(queue.elements().size() == 2);
    return queue.elements().back().death - kBase;
  };
  REQUIRE(run({}) == Tokens{2} * policy.interval);
  REQUIRE(run(kLiteral) == Tokens{12} * policy.interval);
}

TEST_CASE("births move to the first free millisecond", "[thesis]") {
  const Policy policy{{10}, {20'000'000}};
  QueueState queue;
  REQUIRE(queue.accept(policy, kBase + kMilli));
  REQUIRE(queue.accept(policy, kBase + Tokens{3} * kMilli));
  // Another node's clock is ahead: these come before what is there.
  REQUIRE(queue.accept(policy, kBase, {3}));
  REQUIRE(queue.elements().size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    const QueueElement& element = queue.elements()[i];
    REQUIRE(element.birth == kBase + Tokens{static_cast<std::int64_t>(i)} * kMilli);
    if (i != 0) REQUIRE(element.death >= queue.elements()[i - 1].death + policy.interval);
  }
}

TEST_CASE("listing 4.2 as written makes two of an element that changes while it waits", "[thesis]") {
  const Elements waiting = elements({{5, 61}});
  const Elements update = elements({{5, 81}});
  REQUIRE(merged(kTwenty, waiting, update, Equals::both).result == elements({{5, 81}, {5, 101}}));
  REQUIRE(merged(kTwenty, waiting, update, Equals::one).result == update);
}

TEST_CASE("frequency analysis looks at the last births (4.5)", "[thesis]") {
  const Elements queue = elements({{0, 20}, {100, 120}, {104, 140}, {108, 160}});
  REQUIRE_FALSE(analyse<QueueElement>(queue, 5, {1'000}));
  REQUIRE_FALSE(analyse<QueueElement>(Elements{}, 1, {1}));
  REQUIRE(analyse<QueueElement>(queue, 1, {1}));
  // (108 - 100) / 3 = 2, (108 - 0) / 4 = 27.
  REQUIRE(analyse<QueueElement>(queue, 3, {3}));
  REQUIRE_FALSE(analyse<QueueElement>(queue, 3, {2}));
  REQUIRE(analyse<QueueElement>(queue, 4, {28}));
  REQUIRE_FALSE(analyse<QueueElement>(queue, 4, {27}));
  // As written: the slow are noticed, the fast are not.
  REQUIRE(analyse<QueueElement>(queue, 4, {26}, true));
  REQUIRE_FALSE(analyse<QueueElement>(queue, 3, {3}, true));
}

TEST_CASE("duplicates are those with the same death", "[thesis]") {
  Elements queue = elements({{1, 21}, {2, 41}, {3, 61}, {4, 81}});
  remove_duplicates<QueueElement>(queue, elements({{0, 20}, {2, 41}, {3, 60}, {4, 81}, {9, 99}}));
  REQUIRE(queue == elements({{1, 21}, {3, 61}}));
}

}  // namespace
}  // namespace weir
