// Stored sets against IntervalSet, keys against std::map, arrival rates against the arrivals.
#include "weir/keys.hpp"

#include <map>
#include <set>
#include <utility>

#include "births.hpp"
#include "cases.hpp"

namespace weir::test {
namespace {

using Name = std::pair<std::uint32_t, std::uint64_t>;  // limiter, key

constexpr Policy kPolicy{{100}, {1000}};

// A set of `size` intervals apart from each other, the first at `start`.
IntervalSet apart(std::size_t size, std::int64_t start) {
  IntervalSet set;
  for (std::size_t i = 0; i < size; ++i) {
    REQUIRE(
        set.insert(kPolicy, {{start + static_cast<std::int64_t>(i) * 100'000}, {static_cast<std::int64_t>(i) + 1}}));
  }
  REQUIRE(set.size() == size);
  return set;
}

// A key of the table: few segments, few homes, so that keys meet.
KeyHash draw_key(Rng& rng) {
  const auto segment = static_cast<std::uint64_t>(pick<int>(rng, {0, 1, 63}));
  return {segment << 58 | static_cast<std::uint64_t>(draw(rng, 1, 40)) << pick<int>(rng, {0, 26, 30})};
}

// The table, and what should be in it: of each key the weight of its published set.
class Model {
 public:
  void insert(LimiterId limiter, KeyHash key, std::size_t size) {
    KeyState& state = keys_.find_or_insert(limiter, key);
    REQUIRE(state.key == key);
    REQUIRE(state.limiter == limiter);
    const IntervalSet set = apart(size, static_cast<std::int64_t>(key.v % 1000));
    heap_ += keys_account(state.published.store(set));
    truth_[{limiter.v, key.v}] = set;
  }
  void erase(LimiterId limiter, KeyHash key) {
    keys_.erase(limiter, key);
    truth_.erase({limiter.v, key.v});
  }
  // Erases what `gone` names, of one segment. What is left by a sweep (see Keys::sweep) stays in the model.
  void sweep(Rng& rng, std::size_t segment) {
    std::set<Name> visited;
    keys_.sweep(segment, [&](const KeyState& state) {
      REQUIRE(visited.insert({state.limiter.v, state.key.v}).second);
      if (chance(rng, 60)) return true;
      truth_.erase({state.limiter.v, state.key.v});
      return false;
    });
  }
  // A sweep that erases nothing visits every key.
  void visit_all() {
    std::set<Name> visited;
    std::set<Name> wanted;
    for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
      keys_.sweep(segment, [&](const KeyState& state) {
        REQUIRE(visited.insert({state.limiter.v, state.key.v}).second);
        return true;
      });
    }
    for (const auto& [name, set] : truth_) wanted.insert(name);
    REQUIRE(visited == wanted);
  }
  void check() {
    REQUIRE(keys_.size() == truth_.size());
    std::map<std::size_t, std::size_t> sizes;
    std::size_t heap = 0;
    for (const auto& [name, set] : truth_) {
      KeyState* const state = keys_.find({name.first}, {name.second});
      REQUIRE(state != nullptr);
      REQUIRE(state->published.load() == set);
      heap += state->published.heap_bytes();
      ++sizes[Keys::segment_of({name.second})];
    }
    for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
      REQUIRE(keys_.size(segment) == sizes[segment]);
      std::size_t seen = 0;
      keys_.for_each(segment, [&](const KeyState& state) {
        REQUIRE(Keys::segment_of(state.key) == segment);
        ++seen;
      });
      REQUIRE(seen == sizes[segment]);
    }
    REQUIRE(keys_.held() >= heap + truth_.size() * sizeof(KeyState));
    if (truth_.empty()) REQUIRE(keys_.held() % sizeof(KeyState) == 0);  // no blocks are left
  }

  Keys& keys() { return keys_; }

 private:
  std::ptrdiff_t keys_account(std::ptrdiff_t grown) {
    keys_.account(grown);
    return grown;
  }

  Keys keys_;
  std::ptrdiff_t heap_ = 0;
  std::map<Name, IntervalSet> truth_;
};

}  // namespace

TEST_CASE("a stored set is the set that was stored", "[keys]") {
  for_cases([](Rng& rng) {
    StoredSet stored;
    std::ptrdiff_t heap = 0;
    for (int i = 0; i < 40; ++i) {
      const IntervalSet set = apart(static_cast<std::size_t>(draw(rng, 0, kIntervalCap)), draw(rng, 0, 1'000'000));
      heap += chance(rng, 10) ? stored.clear() : 0;
      heap += stored.store(set);
      REQUIRE(stored.load() == set);
      REQUIRE(stored.empty() == set.empty());
      REQUIRE(stored.weight() == set.weight());
      REQUIRE(stored.tat(kPolicy) == set.tat(kPolicy));
      REQUIRE(stored.oldest() == (set.empty() ? Nanos{0} : set.begin()->start));
      REQUIRE(heap == static_cast<std::ptrdiff_t>(stored.heap_bytes()));
      REQUIRE(stored.heap_bytes() <= (set.size() < 2 ? 0 : (set.size() + 1) * sizeof(Interval)));
      StoredSet moved = std::move(stored);
      REQUIRE(moved.load() == set);
      stored = std::move(moved);
    }
  });
}

TEST_CASE("a birth is appended to a stored set as to a set, or refused", "[keys]") {
  for_cases([](Rng& rng) {
    StoredSet stored;
    IntervalSet set;
    Nanos now{draw(rng, 0, 100'000)};
    for (int i = 0; i < 60; ++i) {
      now = now + draw_span(rng, kPolicy, chance(rng, 20) ? 30 : 2);
      const Birth birth{chance(rng, 10) ? Nanos{draw(rng, 0, now.v)} : now, {draw(rng, 1, 20)}};
      REQUIRE(set.insert(kPolicy, birth));
      if (!stored.append(kPolicy, birth)) {
        IntervalSet loaded = stored.load();
        REQUIRE(loaded.insert(kPolicy, birth));
        stored.store(loaded);
      }
      REQUIRE(stored.load() == set);
      if (chance(rng, 5)) {
        stored.clear();
        set = {};
      }
    }
  });
}

TEST_CASE("a table of keys is a map", "[keys]") {
  for_cases([](Rng& rng) {
    Model model;
    for (int i = 0; i < 200; ++i) {
      const LimiterId limiter{static_cast<std::uint32_t>(draw(rng, 0, 1))};
      const KeyHash key = draw_key(rng);
      const std::int64_t what = draw(rng, 1, 100);
      if (what <= 65) {
        model.insert(limiter, key, static_cast<std::size_t>(draw(rng, 0, 5)));
      } else if (what <= 97) {
        model.erase(limiter, key);
      } else {
        model.sweep(rng, Keys::segment_of(key));
      }
      if (i % 10 == 0) model.check();
    }
    model.visit_all();
    model.check();
  });
}

TEST_CASE("many keys in one segment, all of them erased again", "[keys]") {
  Rng rng(1);
  Model model;
  std::vector<KeyHash> keys;
  for (int i = 0; i < 3000; ++i) keys.push_back({std::uint64_t{5} << 58 | (rng() >> 6)});
  for (const KeyHash key : keys) model.insert({1}, key, 1 + key.v % 3);
  model.check();
  CHECK(model.keys().size(5) == keys.size());
  model.visit_all();
  std::shuffle(keys.begin(), keys.end(), rng);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    model.erase({1}, keys[i]);
    if (i % 500 == 0) model.check();
  }
  model.check();
  CHECK(model.keys().find({1}, keys[0]) == nullptr);
}

TEST_CASE("keys that differ in the limiter only are different keys", "[keys]") {
  Keys keys;
  for (std::uint32_t i = 0; i < 100; ++i) keys.find_or_insert({i}, {42}).tat = {i};
  CHECK(keys.size() == 100);
  for (std::uint32_t i = 0; i < 100; ++i) CHECK(keys.find({i}, {42})->tat == Nanos{i});
  CHECK(keys.find({100}, {42}) == nullptr);
}

TEST_CASE("what a key's sets hold on the heap goes with the key", "[keys]") {
  Keys keys;
  KeyState& state = keys.find_or_insert({0}, {1});
  const std::size_t before = keys.held();
  keys.account(state.published.store(apart(10, 0)));
  keys.account(state.unsent.store(apart(5, 0)));
  CHECK(keys.held() == before + state.published.heap_bytes() + state.unsent.heap_bytes());
  keys.erase({0}, {1});
  CHECK(keys.held() == before);
  keys.find_or_insert({0}, {2}).published.store(apart(1, 0));
  CHECK(keys.held() == before);
}

TEST_CASE("the union of both sets of a key", "[keys]") {
  Keys keys;
  KeyState& state = keys.find_or_insert({0}, {1});
  CHECK(state.all(kPolicy).empty());
  state.published.store(apart(3, 0));
  CHECK(state.all(kPolicy) == apart(3, 0));
  state.unsent.store(apart(2, 5000));
  Births births;
  births.add(apart(3, 0).intervals());
  births.add(apart(2, 5000).intervals());
  CHECK(state.all(kPolicy).tat(kPolicy).v == births.tat(kPolicy));
  CHECK(state.all(kPolicy).weight() == Tokens{6 + 3});
}

TEST_CASE("arrival rates: a steady rate is seen within a tenth, and forgotten after two periods", "[keys]") {
  const Nanos period = GENERATE(Nanos{125'000'000}, Nanos{1'000'000'000});
  const Tokens capacity = GENERATE(Tokens{5}, Tokens{1000}, Tokens{1'000'000'000'000});
  // The bucket fills in ten periods.
  const std::int64_t arrivals = std::min<std::int64_t>(capacity.v, 100);
  const Tokens each{std::max<std::int64_t>(1, capacity.v / 1000)};
  const Nanos apart{period.v * 10 / (capacity.v / each.v)};
  ArrivalRate rate;
  Nanos now = kBase;
  for (std::int64_t i = 0; i < 50 * arrivals; ++i) {
    now = now + apart;
    rate.count(each, capacity, now, period);
  }
  const double per_second = static_cast<double>(each.v) * 1e9 / static_cast<double>(apart.v);
  const double seen = static_cast<double>(rate.per_second(capacity, now, period).v);
  CAPTURE(period.v, capacity.v, per_second, seen);
  // A small bucket's tokens are few in a period: one of them is a large part.
  const double one = static_cast<double>(each.v) * 1e9 / static_cast<double>(period.v);
  CHECK(seen >= 0.9 * per_second - one);
  CHECK(seen <= 1.1 * per_second + one);
  CHECK(rate.per_second(capacity, now + period + period, period) == Tokens{0});
}

TEST_CASE("arrival rates don't overflow", "[keys]") {
  const Tokens capacity = GENERATE(Tokens{1}, Tokens{1000}, Tokens{kSpanMax.v});
  ArrivalRate rate;
  for (int i = 0; i < 5000; ++i) rate.count(capacity, capacity, kBase, {125'000'000});
  const Tokens seen = rate.per_second(capacity, kBase, {125'000'000});
  CHECK(seen.v >= std::min(capacity.v, INT64_MAX / 4096));
  CHECK(seen.v <= INT64_MAX / 4096);  // so that it can be multiplied by a number of nodes
}

}  // namespace weir::test
