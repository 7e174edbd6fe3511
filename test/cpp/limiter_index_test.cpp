// Shows R12, R45 of doc/requirements.md.
// The index of the limiters against a map, while it is laid out anew again and again, alone and under readers. It never
// looks into a limiter itself: here any address stands for one.
#include "weir/limiter_index.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "threads.hpp"

namespace weir::test {
namespace {

using Kind = LimiterIndex::Kind;
using Name = std::pair<Kind, std::uint64_t>;

// What stands for limiters: each has a place, and in it its name, or none.
class Limiters {
 public:
  explicit Limiters(std::size_t count) : names_(count) {}
  Limiter* at(std::size_t i) { return reinterpret_cast<Limiter*>(&names_[i]); }
  std::size_t of(const Limiter& limiter) const {
    return static_cast<std::size_t>(reinterpret_cast<const std::atomic<std::uint64_t>*>(&limiter) - names_.data());
  }
  std::atomic<std::uint64_t>& name(std::size_t i) { return names_[i]; }
  const std::atomic<std::uint64_t>& name(std::size_t i) const { return names_[i]; }
  bool is(const Limiter& limiter, std::uint64_t name_of) const {
    return names_[of(limiter)].load(std::memory_order_acquire) == name_of;
  }

 private:
  std::vector<std::atomic<std::uint64_t>> names_;
};

}  // namespace

TEST_CASE("index: what is found is what a map would find, through all its layouts", "[registry][index]") {
  for_cases([](Rng& rng) {
    Limiters limiters(64);
    LimiterIndex index;
    std::map<std::uint64_t, std::size_t> model;
    std::map<std::size_t, Kind> kinds;
    const auto live = [&](auto put) {
      for (const auto& [name, at] : model) put(kinds[at], name, limiters.at(at));
    };
    const bool clustered = chance(rng, 30);  // names that are neighbours, as atoms are
    const auto name_at = [&](std::size_t at, std::int64_t n) {
      return clustered ? at * 16 + static_cast<std::uint64_t>(n) + 1
                       : (at * 16 + static_cast<std::uint64_t>(n) + 1) << 33;
    };
    for (int step = 0; step < 500; ++step) {
      const auto at = static_cast<std::size_t>(draw(rng, 0, 63));
      const std::uint64_t had = limiters.name(at).load();
      if (had != 0) {  // goes, and its slots stay
        model.erase(had);
        limiters.name(at).store(0);
      } else {
        const std::uint64_t name = name_at(at, draw(rng, 0, 15));
        kinds[at] = pick(rng, {Kind::name, Kind::alias, Kind::number});
        limiters.name(at).store(name);
        index.add(kinds[at], name, limiters.at(at), model.size(), live);
        model[name] = at;
      }
      for (std::size_t each = 0; each < 64; each += 7)
        for (const std::uint64_t name : {limiters.name(each).load(), name_at(each, 3)}) {
          if (name == 0) continue;
          const auto known = model.find(name);
          const Limiter* const found = index.find(known == model.end() ? Kind::name : kinds[known->second], name,
                                                  [&](const Limiter& limiter) { return limiters.is(limiter, name); });
          REQUIRE(found == (known == model.end() ? nullptr : limiters.at(known->second)));
        }
    }
  });
}

TEST_CASE("index: a layout for which there is no memory changes nothing", "[registry][index]") {
  Limiters limiters(1000);
  LimiterIndex index;
  struct NoMemory {};
  std::size_t count = 0;
  const auto found = [&](std::size_t i) {
    return index.find(Kind::name, i + 1, [&](const Limiter& limiter) { return limiters.is(limiter, i + 1); });
  };
  for (; count < 32; ++count) {
    limiters.name(count).store(count + 1);
    index.add(Kind::name, count + 1, limiters.at(count), count, [](auto) { FAIL("there is room"); });
  }
  const auto live = [&](auto put) {
    for (std::size_t i = 0; i < count; ++i) put(Kind::name, i + 1, limiters.at(i));
  };
  const std::size_t absurd = std::size_t{1} << 58;
  CHECK_THROWS_AS(index.add(Kind::name, count + 1, limiters.at(count), absurd, live), std::bad_alloc);
  for (std::size_t i = 0; i < count; ++i) CHECK(found(i) == limiters.at(i));
  limiters.name(count).store(count + 1);
  index.add(Kind::name, count + 1, limiters.at(count), count, live);
  ++count;
  for (std::size_t i = 0; i < count; ++i) CHECK(found(i) == limiters.at(i));
}

// Readers look for names that stay, while others come and go so fast that the index is laid out anew every few names,
// in two arrays by turns. A name that stays is always found; one that never was is not.
TEST_CASE("index: names that stay are found while it is laid out anew", "[registry][index][threads]") {
  constexpr std::size_t kStay = 10;
  constexpr std::size_t kAll = 24;
  Limiters limiters(kAll);
  LimiterIndex index;
  const auto live = [&](auto put) {
    for (std::size_t i = 0; i < kAll; ++i)
      if (const std::uint64_t name = limiters.name(i).load(); name != 0) put(Kind::alias, name, limiters.at(i));
  };
  for (std::size_t i = 0; i < kStay; ++i) {
    index.add(Kind::alias, i + 1, limiters.at(i), kAll, live);
    limiters.name(i).store(i + 1);
  }
  std::atomic<bool> ended{false};
  std::atomic<std::int64_t> missed{0}, wrong{0}, looked{0};
  run_threads(3, [&](unsigned id) {
    const auto find = [&](std::uint64_t name) {
      return index.find(Kind::alias, name, [&](const Limiter& limiter) { return limiters.is(limiter, name); });
    };
    if (id != 0) {
      for (std::uint64_t i = 0; !ended; ++i, ++looked) {
        missed += find(i % kStay + 1) != limiters.at(i % kStay);
        wrong += find((std::uint64_t{1} << 60) + i) != nullptr;
        if (const Limiter* const other = find(1000 + i % 97)) wrong += limiters.of(*other) < kStay;
      }
      return;
    }
    for (std::uint64_t i = 0; i < round_count() * 200 || looked < 1000; ++i) {
      const std::size_t at = kStay + i % (kAll - kStay);
      limiters.name(at).store(0);
      index.add(Kind::alias, 1000 + i % 97, limiters.at(at), kAll, live);
      limiters.name(at).store(1000 + i % 97);
    }
    ended = true;
  });
  CHECK(missed == 0);
  CHECK(wrong == 0);
}

}  // namespace weir::test
