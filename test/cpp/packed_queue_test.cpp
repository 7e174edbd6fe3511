// Shows R21 of doc/requirements.md.
// The packed queue against lists of {birth, death}: merge, updates, refill, append and analysis as the thesis' listings
// have them, element by element, without runs; and bytes: there and back, canonical, anything else refused.
#include "queue/packed_queue.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"

namespace weir::thesis {
namespace {

using test::chance;
using test::draw;
using test::pick;
using test::Rng;
using List = std::vector<Element>;
using Into = Merge::Into;

constexpr Millis kStart{1'770'000'000'000};
constexpr Nanos kSecond{1'000'000'000};

// ---- the listings, plainly

struct Merged {
  List merged, updates;
};

Merged merge_lists(Nanos interval, const List& local, const List& other, Into into) {
  Merged result;
  std::size_t i = 0, j = 0;
  while (i < local.size() || j < other.size()) {
    const Element* const mine = i < local.size() ? &local[i] : nullptr;
    const Element* const theirs = j < other.size() ? &other[j] : nullptr;
    const bool same = into == Into::local_state && mine != nullptr && theirs != nullptr && mine->birth == theirs->birth;
    const bool take_mine = same || theirs == nullptr || (mine != nullptr && mine->birth < theirs->birth);
    Element element = take_mine ? *mine : *theirs;
    if (same) element.death = std::max(mine->death, theirs->death);
    if (!result.merged.empty()) element.death = std::max(element.death, result.merged.back().death + interval);
    result.merged.push_back(element);
    if (!take_mine || element.death != mine->death) result.updates.push_back(element);
    i += take_mine;
    j += same || !take_mine;
  }
  return result;
}

std::size_t count_dead(const List& list, Nanos now) {
  const auto alive = std::find_if(list.begin(), list.end(), [now](const Element& e) { return e.death > now; });
  return static_cast<std::size_t>(alive - list.begin());
}

// ---- there and back

List listed(const Queue& queue) {
  List list;
  queue.each([&](const Element& element) { list.push_back(element); });
  return list;
}

Queue queue_of(Nanos interval, const List& list) {
  Queue queue(interval);
  for (const Element& element : list) REQUIRE(queue.push(element) == QueueError::none);
  return queue;
}

std::vector<std::byte> packed(const Slice& slice) {
  // A byte more, to see that it isn't written to.
  std::vector<std::byte> bytes(slice.packed_size() + 1, std::byte{0xa5});
  slice.pack(bytes.data());
  REQUIRE(bytes.back() == std::byte{0xa5});
  bytes.pop_back();
  return bytes;
}

std::vector<std::byte> packed(const Queue& queue) { return packed(queue.slice()); }

Queue unpacked(const std::vector<std::byte>& bytes) {
  Queue queue(kSecond);
  REQUIRE(queue.unpack(bytes) == QueueError::none);
  return queue;
}

struct Outcome {
  QueueError error;
  Queue merged, updates;
};

Outcome merge(const Queue& local, const Queue& other, Into into) {
  const auto a = packed(local), b = packed(other);
  Merge merge;
  const QueueError error = merge.run(a, b, into);
  if (error != QueueError::none) return {error, Queue(kSecond), Queue(kSecond)};
  return {error, unpacked(packed(merge.merged())), unpacked(packed(merge.updates()))};
}

// ---- cases

Nanos draw_interval(Rng& rng) { return {pick<std::int64_t>(rng, {1, 7, 1'000'000, 142'857'143, 1'000'000'000})}; }

// A queue as nodes have them: runs of T, and gaps where the bucket was idle; births at random, often equal ones.
List draw_list(Rng& rng, Nanos interval, int most, int equal = 20) {
  List list(static_cast<std::size_t>(draw(rng, 0, most)));
  const auto spread = pick<std::int64_t>(rng, {1, 3, 1000, 100'000, 5'000'000});
  const int gaps = pick(rng, {0, 10, 100});
  Element at{{kStart.v + draw(rng, 0, 2 * spread)}, kStart.nanos() + Tokens{draw(rng, 0, 3)} * interval};
  for (Element& element : list) {
    element = at;
    at.birth.v += chance(rng, equal) ? 0 : draw(rng, 1, spread);
    at.death = at.death + interval;
    if (chance(rng, gaps)) at.death.v += chance(rng, 50) ? interval.v : draw(rng, 1, 3 * interval.v);
  }
  return list;
}

// Some of a list's elements, with later deaths: what a neighbour may send back.
List draw_part(Rng& rng, Nanos interval, const List& of) {
  List list;
  std::int64_t later = 0;
  for (Element element : of) {
    if (chance(rng, 5)) later += chance(rng, 50) ? interval.v : draw(rng, 0, interval.v);
    element.death.v += later;
    if (chance(rng, 60)) list.push_back(element);
  }
  return list;
}

TEST_CASE("merge and updates are the listings'", "[thesis][packed]") {
  test::for_cases([](Rng& rng) {
    const Nanos interval = draw_interval(rng);
    const int most = pick(rng, {0, 1, 3, 20, 200, 600});
    const List local = draw_list(rng, interval, most);
    List other = chance(rng, 50) ? draw_part(rng, interval, local) : draw_list(rng, interval, most);
    if (chance(rng, 20)) other = merge_lists(interval, other, draw_list(rng, interval, 5), Into::local_state).merged;
    const Queue a = queue_of(interval, local), b = queue_of(interval, other);
    for (const Into into : {Into::local_state, Into::delta_state}) {
      const Merged expected = merge_lists(interval, local, other, into);
      const auto [error, merged, updates] = merge(a, b, into);
      REQUIRE(error == QueueError::none);
      REQUIRE(listed(merged) == expected.merged);
      REQUIRE(listed(updates) == expected.updates);
      // One form only: the same as if the elements had been added one by one.
      REQUIRE(merged == queue_of(interval, expected.merged));
      REQUIRE(updates == queue_of(interval, expected.updates));
    }
  });
}

TEST_CASE("however births lie, they are merged in order", "[thesis][packed]") {
  // What divides the work has its corners: many equal births, one side after the other, one much longer.
  test::for_cases([](Rng& rng) {
    const Nanos interval{1'000'000};
    const auto side = [&](std::int64_t from) {
      List list(static_cast<std::size_t>(pick<std::int64_t>(rng, {40, 95, 97, 300, 1000})));
      const int together = pick(rng, {1, 2, 50, 1000}), same = pick(rng, {0, 50, 100});
      Element at{{kStart.v + from}, kStart.nanos()};
      for (std::size_t i = 0; i < list.size(); ++i) {
        at.birth.v += static_cast<int>(i) % together != 0 || chance(rng, same) ? 0 : draw(rng, 0, 3);
        at.death = at.death + interval;
        list[i] = at;
      }
      return list;
    };
    List local = side(pick<std::int64_t>(rng, {0, 100, 10'000})), other = side(0);
    if (chance(rng, 50)) {
      // The latest births that there can be.
      const std::int64_t latest = std::min(local[0].birth.v, other[0].birth.v) + kMaxSpan.v;
      for (List* const list : {&local, &other})
        for (auto n = pick<std::size_t>(rng, {0, 1, 40}); n > 0; --n) (*list)[list->size() - n].birth.v = latest;
    }
    for (const Into into : {Into::local_state, Into::delta_state}) {
      const Merged expected = merge_lists(interval, local, other, into);
      const Outcome got = merge(queue_of(interval, local), queue_of(interval, other), into);
      REQUIRE(got.error == QueueError::none);
      REQUIRE(listed(got.merged) == expected.merged);
      REQUIRE(listed(got.updates) == expected.updates);
    }
  });
}

TEST_CASE("into the local state, merging again changes nothing", "[thesis][packed]") {
  test::for_cases([](Rng& rng) {
    const Nanos interval = draw_interval(rng);
    const Queue a = queue_of(interval, draw_list(rng, interval, 50));
    const Outcome itself = merge(a, a, Into::local_state);
    REQUIRE(itself.merged == a);
    REQUIRE(itself.updates.empty());
    // Of births that differ; equal ones of one node pair up with the other node's one by one.
    const Queue b = queue_of(interval, draw_list(rng, interval, 50, 0)),
                c = queue_of(interval, draw_list(rng, interval, 50, 0));
    const Outcome once = merge(c, b, Into::local_state);
    const Outcome again = merge(once.merged, once.updates, Into::local_state);
    REQUIRE(again.merged == once.merged);
    REQUIRE(again.updates.empty());
  });
}

TEST_CASE("the thesis' example of a merge", "[thesis][packed]") {
  const auto at = [](std::int64_t birth, std::int64_t death) { return Element{{birth}, {death}}; };
  const Nanos interval{20};
  const Queue a = queue_of(interval, {at(1, 21), at(3, 41), at(5, 61)});
  const Queue b = queue_of(interval, {at(2, 22), at(4, 42)});
  const auto [error, merged, updates] = merge(a, b, Into::local_state);
  REQUIRE(error == QueueError::none);
  REQUIRE(listed(merged) == List{at(1, 21), at(2, 41), at(3, 61), at(4, 81), at(5, 101)});
  REQUIRE(listed(updates) == List{at(2, 41), at(3, 61), at(4, 81), at(5, 101)});
}

TEST_CASE("refill drops what is dead, from the head", "[thesis][packed]") {
  test::for_cases([](Rng& rng) {
    const Nanos interval = draw_interval(rng);
    const List list = draw_list(rng, interval, 60);
    const Queue queue = queue_of(interval, list);
    std::vector<Nanos> times{{0}, kTimeMax, kStart.nanos() + Tokens{draw(rng, 0, 100)} * interval};
    for (const Element& element : list) times.insert(times.end(), {element.death - Nanos{1}, element.death});
    for (const Nanos now : times) {
      const std::size_t dead = count_dead(list, now);
      REQUIRE(queue.dead(now) == dead);
      const List alive(list.begin() + static_cast<std::ptrdiff_t>(dead), list.end());
      const auto bytes = packed(queue.slice(queue.dead(now)));
      REQUIRE(listed(unpacked(bytes)) == alive);
      REQUIRE(bytes == packed(queue_of(interval, alive)));
    }
  });
}

TEST_CASE("append: born later than the last, dying T after it or after its own birth", "[thesis][packed]") {
  test::for_cases([](Rng& rng) {
    const Nanos interval = draw_interval(rng);
    Queue queue(interval);
    List list;
    std::int64_t now = kStart.v;
    for (int i = 0; i < 50; ++i) {
      now += pick<std::int64_t>(rng, {-1, 0, 0, 1, 5, 3000});
      REQUIRE(queue.append({now}) == QueueError::none);
      Millis birth{now};
      if (!list.empty()) birth.v = std::max(now, list.back().birth.v + 1);
      const Nanos from = list.empty() ? birth.nanos() : std::max(birth.nanos(), list.back().death);
      list.push_back({birth, from + interval});
      REQUIRE(listed(queue) == list);
    }
  });
}

TEST_CASE("analysis: the window's time over the window's size", "[thesis][packed]") {
  test::for_cases([](Rng& rng) {
    const Nanos interval = draw_interval(rng);
    const List list = draw_list(rng, interval, 60);
    const auto bytes = packed(queue_of(interval, list));
    for (const std::uint32_t window : {1U, 2U, 5U, 33U, kMaxBirths, UINT32_MAX}) {
      for (const std::int64_t threshold : {std::int64_t{0}, std::int64_t{1}, draw(rng, 0, 60'000), kMaxSpan.v}) {
        const std::size_t n = list.size();
        const bool expected =
            n >= window && list[n - 1].birth.v - list[n - window].birth.v < threshold * std::int64_t{window};
        REQUIRE(frequent(bytes, window, {threshold}) == expected);
      }
    }
  });
}

TEST_CASE("a busy queue costs 2 to 4 bytes a birth, an idle one w + 12", "[thesis][packed]") {
  const auto bytes = [](std::int64_t apart, Nanos idle) {
    Queue queue(kSecond);
    Element element{kStart, kStart.nanos()};
    for (int i = 0; i < 1000; ++i) {
      REQUIRE(queue.push(element) == QueueError::none);
      element.birth.v += apart;
      element.death = element.death + kSecond + idle;
    }
    return queue.slice().packed_size();
  };
  CHECK(bytes(60, {0}) == 28 + 12 + 2 * 1000);
  CHECK(bytes(900, {0}) == 28 + 12 + 3 * 1000);
  CHECK(bytes(60'000, {0}) == 28 + 12 + 4 * 1000);
  CHECK(bytes(0, {0}) == 28 + 12 + 1000);
  CHECK(bytes(60, {1}) == 28 + (12 + 2) * 1000);
}

TEST_CASE("each limit has an error of its own", "[thesis][packed]") {
  Queue queue(kSecond);
  const Element first{kStart, kStart.nanos() + kSecond};
  CHECK(queue.push({{-1}, {0}}) == QueueError::too_late);
  CHECK(queue.push({{0}, {-1}}) == QueueError::too_late);
  CHECK(queue.push({{0}, {kTimeMax.v + 1}}) == QueueError::too_late);
  CHECK(queue.append({-1}) == QueueError::too_late);
  CHECK(queue.append(kMaxBirth) == QueueError::too_late);
  REQUIRE(queue.push(first) == QueueError::none);
  CHECK(queue.push({{kStart.v - 1}, first.death + kSecond}) == QueueError::out_of_order);
  CHECK(queue.push({kStart, first.death + kSecond - Nanos{1}}) == QueueError::out_of_order);
  CHECK(queue.append({kStart.v + kMaxSpan.v + 1}) == QueueError::too_long);
  REQUIRE(queue.append({kStart.v + kMaxSpan.v}) == QueueError::none);
  CHECK(unpacked(packed(queue)) == queue);

  CHECK(merge(queue, Queue({1}), Into::local_state).error == QueueError::unlike_interval);
  const Queue early = queue_of(kSecond, {{{kStart.v - 1}, first.death}});
  CHECK(merge(queue, early, Into::local_state).error == QueueError::too_long);
  const Queue far = queue_of(
      kSecond, {{{kStart.v + kMaxSpan.v - 5}, first.death}, {{kStart.v + kMaxSpan.v + 5}, first.death + kSecond}});
  for (const Into into : {Into::local_state, Into::delta_state}) {
    CHECK(merge(far, queue, into).error == QueueError::too_long);
    CHECK(merge(queue, far, into).error == QueueError::too_long);
  }
  const Queue last = queue_of(kSecond, {{kStart, kTimeMax}});
  CHECK(merge(last, last, Into::delta_state).error == QueueError::too_late);
  CHECK(merge(last, last, Into::local_state).error == QueueError::none);

  Queue full({1});
  for (std::uint32_t i = 0; i < kMaxBirths; ++i) REQUIRE(full.append(kStart) == QueueError::none);
  CHECK(full.append(kStart) == QueueError::too_many);
  CHECK(unpacked(packed(full)) == full);
  CHECK(merge(full, full, Into::delta_state).error == QueueError::too_many);
  CHECK(merge(full, full, Into::local_state).error == QueueError::none);
}

TEST_CASE("bytes from outside: a queue in its one form, or refused", "[thesis][packed]") {
  test::for_cases([](Rng& rng) {
    const Nanos interval = draw_interval(rng);
    auto bytes = packed(queue_of(interval, draw_list(rng, interval, 20)));
    const auto bits = draw(rng, 1, 4);
    for (int i = 0; i < bits; ++i)
      bytes[static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(bytes.size()) - 1))] ^=
          static_cast<std::byte>(1 << draw(rng, 0, 7));
    if (chance(rng, 20)) bytes.resize(static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(bytes.size()))));
    if (chance(rng, 20)) bytes.push_back(std::byte{1});
    // Exactly as long as the bytes, so that a sanitizer sees what is read behind them.
    const std::vector<std::byte> exact(bytes);
    Queue queue(kSecond);
    if (queue.unpack(exact) == QueueError::none) {
      REQUIRE(packed(queue) == exact);
      REQUIRE(queue_of(queue.interval(), listed(queue)) == queue);
    }
    static_cast<void>(frequent(exact, 5, {1000}));
  });
}

TEST_CASE("each field of the bytes is looked at", "[thesis][packed]") {
  // Two runs: {1000, 2 s}, {1000, 3 s} | {1300, 5 s}
  const auto good =
      packed(queue_of(kSecond, {{{1000}, {2'000'000'000}}, {{1000}, {3'000'000'000}}, {{1300}, {5'000'000'000}}}));
  REQUIRE(good.size() == 28 + 3 * 2 + 2 * 12);
  Queue queue(kSecond);
  const auto refused = [&](std::size_t at, std::initializer_list<int> values) {
    auto bytes = good;
    for (const int value : values) bytes[at++] = static_cast<std::byte>(value);
    return queue.unpack(bytes) == QueueError::malformed;
  };
  CHECK(refused(0, {2}));  // version
  CHECK(refused(1, {0}));  // width
  CHECK(refused(1, {5}));
  CHECK(refused(2, {1}));  // reserved
  CHECK(refused(4, {2}));  // births
  CHECK(refused(8, {3}));  // runs
  CHECK(refused(8, {0}));
  CHECK(refused(19, {0x80}));                             // base < 0
  CHECK(refused(18, {0xff}));                             // base > kMaxBirth
  CHECK(refused(27, {0x80}));                             // T < 0
  CHECK(refused(20, {0, 0, 0, 0, 0, 0, 0, 0}));           // T = 0
  CHECK(refused(27, {0x20}));                             // T > kSpanMax
  CHECK(refused(28, {1}));                                // the first birth isn't the base
  CHECK(refused(30, {0x2d, 0x01}));                       // births descend: 301, 300
  CHECK(refused(32, {0xff, 0x00}));                       // a byte would do
  CHECK(refused(34, {1}));                                // the first run begins at 1
  CHECK(refused(46, {0}));                                // the second at 0
  CHECK(refused(46, {3}));                                // and behind the end
  CHECK(refused(45, {0x40}));                             // death > kTimeMax
  CHECK(refused(45, {0x80}));                             // death < 0
  CHECK(refused(50, {0, 0x28, 0x6b, 0xee, 0, 0, 0, 0}));  // 4 s: no run of its own
  CHECK(refused(50, {0, 0x28, 0x6b, 0xed, 0, 0, 0, 0}));  // less
  CHECK(refused(57, {0x40}));
  CHECK_FALSE(refused(50, {1, 0x28, 0x6b, 0xee, 0, 0, 0, 0}));
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(queue.unpack(cut) == QueueError::malformed);
    CHECK_FALSE(frequent(cut, 1, {1}).has_value());
  }
  auto empty = packed(Queue(kSecond));
  CHECK(unpacked(empty).empty());
  empty[12] = std::byte{1};
  CHECK(queue.unpack(empty) == QueueError::malformed);
  // A run that leads beyond kTimeMax.
  auto late = packed(queue_of({1}, {{{0}, kTimeMax - Nanos{1}}, {{0}, kTimeMax}}));
  REQUIRE(queue.unpack(late) == QueueError::none);
  late[20] = std::byte{2};
  CHECK(queue.unpack(late) == QueueError::malformed);
}

}  // namespace
}  // namespace weir::thesis
