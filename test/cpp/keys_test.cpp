// Shows R40, R42 of doc/requirements.md.
// Stored sets against IntervalSet, keys against states kept in full, arrival rates against the arrivals.
#include "weir/keys.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "births.hpp"
#include "cases.hpp"

namespace weir::test {
namespace {

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

// A key's state as it was before there were small ones: both sets, the TAT and both rates, each for itself.
struct Plain {
  Nanos tat;
  IntervalSet published;
  IntervalSet unsent;
  ArrivalRate own_rate;
  ArrivalRate remote_rate;
  bool due = false;

  IntervalSet all(const Policy& policy) const {
    IntervalSet set = published;
    REQUIRE(set.merge(policy, unsent));
    return set;
  }
  void admit(const Policy& policy, Tokens hits, Nanos now) {
    if (unsent.size() == kIntervalCap) unsent.compact(policy, now);
    REQUIRE(unsent.insert(policy, {now, hits}));
    tat = std::max(tat, now) + hits * policy.interval;
    own_rate.count(hits, policy.capacity, now, kOwnPeriod);
  }
  void publish(const Policy& policy, const IntervalSet& births, Nanos now) {
    if (published.size() + births.size() > kIntervalCap) published.compact(policy, now);
    REQUIRE(published.merge(policy, births));
  }
};

constexpr LimiterSlot kSlow{7};
constexpr LimiterSlot kHuge{9};
// One of which a token takes a while, one that counts more births than a small key can hold.
Policy policy_of(LimiterSlot limiter) {
  return limiter == kSlow ? Policy{{100}, {10'000'000}} : Policy{{std::int64_t{1} << 40}, {1}};
}
using Named = std::pair<LimiterSlot, KeyHash>;

// A table of keys and what should be in it.
class Model {
 public:
  explicit Model(std::uint64_t salt = 0) : keys_(salt) {}

  Keys& keys() { return keys_; }
  Nanos now{kBase};

  KeyState state(const Named& name) {
    truth_[name];
    const KeyState state = keys_.find_or_insert(name.first, name.second);
    REQUIRE(state.key() == name.second);
    REQUIRE(state.limiter() == name.first);
    return state;
  }
  void admit(const Named& name, Tokens hits, Nanos at) {
    state(name).admit(policy_of(name.first), hits, at);
    truth_[name].admit(policy_of(name.first), hits, at);
  }
  void receive(const Named& name, const IntervalSet& births, bool news) {
    const Policy policy = policy_of(name.first);
    KeyState has = state(name);
    Plain& plain = truth_[name];
    has.publish(policy, births, now);
    plain.publish(policy, births, now);
    if (news) {
      has.count_remote(policy, births.weight(), now);
      plain.remote_rate.count(births.weight(), policy.capacity, now, kRemotePeriod);
    }
    settle(name, {0});
  }
  // `least`: what else the replica holds.
  void settle(const Named& name, Nanos least) {
    const Policy policy = policy_of(name.first);
    KeyState has = state(name);
    has.set_tat(policy, std::max(least, has.union_tat(policy)));
    truth_[name].tat = std::max(least, truth_[name].all(policy).tat(policy));
  }
  void push(const Named& name) {
    const Policy policy = policy_of(name.first);
    KeyState has = state(name);
    if (!has.has_unsent()) return;
    has.publish_unsent(policy, now);
    truth_[name].publish(policy, truth_[name].unsent, now);
    truth_[name].unsent = {};
  }
  void set_due(const Named& name, bool due) {
    state(name).set_due(due);
    truth_[name].due = due;
  }
  // Drops what begins before `at`, of both sets.
  void forget(const Named& name, Nanos at) {
    const Policy policy = policy_of(name.first);
    KeyState has = state(name);
    Plain& plain = truth_[name];
    plain.published.reset_before(at);
    plain.unsent.reset_before(at);
    has.set_published(policy, plain.published);
    has.set_unsent(policy, plain.unsent);
    settle(name, {0});
  }
  void erase(const Named& name) {
    keys_.erase(name.first, name.second);
    truth_.erase(name);
  }
  void move(const Named& from, const Named& to) {
    const Policy policy = policy_of(from.first);
    if (!truth_.contains(from) || truth_.contains(to) || from.first != to.first) return;
    const KeyState::Rates rates = state(from).rates(policy);
    const Plain plain = truth_[from];
    erase(from);
    KeyState has = state(to);
    has.set_rates(policy, rates, now);
    has.set_published(policy, plain.published);
    has.set_unsent(policy, plain.unsent);
    truth_[to] = plain;
    truth_[to].due = false;
    settle(to, {0});
  }
  // Every key is visited, whether others are erased or not.
  void sweep(Rng& rng, std::size_t segment, int keep) {
    std::set<Named> visited;
    const std::size_t before = keys_.size(segment);
    keys_.sweep(segment, [&](KeyState state) {
      const Named name{state.limiter(), state.key()};
      REQUIRE(visited.insert(name).second);
      if (chance(rng, keep)) {
        state.rest(policy_of(name.first), now);
        return true;
      }
      truth_.erase(name);
      return false;
    });
    REQUIRE(visited.size() == before);
    keys_.fit(segment);
  }
  void check(const Named& name) {
    const auto wanted = truth_.find(name);
    const KeyState has = keys_.find(name.first, name.second);
    REQUIRE(static_cast<bool>(has) == (wanted != truth_.end()));
    if (!has) return;
    const Policy policy = policy_of(name.first);
    const Plain& plain = wanted->second;
    REQUIRE(has.published() == plain.published);
    REQUIRE(has.unsent() == plain.unsent);
    REQUIRE(has.has_published() == !plain.published.empty());
    REQUIRE(has.has_unsent() == !plain.unsent.empty());
    REQUIRE(has.unsent_weight() == plain.unsent.weight());
    if (has.has_unsent()) REQUIRE(has.oldest_unsent() == plain.unsent.begin()->start);
    REQUIRE(has.all(policy) == plain.all(policy));
    REQUIRE(has.union_tat(policy) == plain.all(policy).tat(policy));
    REQUIRE(has.due() == plain.due);
    const Nanos tat = has.tat(policy);
    if (std::max(tat, plain.tat) > now) REQUIRE(tat == plain.tat);
    // (A rate that is 1024 periods old and taken for a new one may be forgotten.)
    const Tokens own = plain.own_rate.per_second(policy.capacity, now, kOwnPeriod);
    REQUIRE(has.own_per_second(policy.capacity, now) == own);
    // Parts of a unit are counted by the time of the birth, not that of its receipt.
    const Tokens remote = plain.remote_rate.per_second(policy.capacity, now, kRemotePeriod);
    const std::int64_t apart = std::abs((has.remote_per_second(policy.capacity, now) - remote).v);
    REQUIRE(apart <= (name.first == kSlow ? 0 : policy.capacity.v / 1024 + 1));
  }
  void check() {
    REQUIRE(keys_.size() == truth_.size());
    std::map<std::size_t, std::size_t> sizes;
    std::size_t heap = 0;
    for (const auto& [name, plain] : truth_) {
      check(name);
      heap += keys_.find(name.first, name.second).heap_bytes();
      ++sizes[Keys::segment_of(name.second)];
    }
    for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
      REQUIRE(keys_.size(segment) == sizes[segment]);
      std::size_t seen = 0;
      keys_.for_each(segment, [&](const KeyState& state) {
        REQUIRE(Keys::segment_of(state.key()) == segment);
        ++seen;
      });
      REQUIRE(seen == sizes[segment]);
    }
    REQUIRE(keys_.held() >= heap + truth_.size() * 24);
  }
  void clear() {
    while (!truth_.empty()) erase(Named(truth_.begin()->first));
    for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) keys_.fit(segment);
    REQUIRE(keys_.size() == 0);
    REQUIRE(keys_.held() == 0);
  }

 private:
  Keys keys_;
  std::map<Named, Plain> truth_;
};

IntervalSet draw_births(Rng& rng, const Policy& policy, Nanos now) {
  IntervalSet births;
  for (std::int64_t i = draw(rng, 1, chance(rng, 80) ? 1 : 5); i > 0; --i) {
    const std::int64_t most = std::min<std::int64_t>(policy.capacity.v, chance(rng, 80) ? 3 : INT64_MAX);
    const Nanos late{pick<std::int64_t>(rng, {0, 1, 1'000'000, 300'000'000, 3'000'000'000})};
    REQUIRE(births.insert(policy, {now - Nanos{draw(rng, 0, late.v)}, {draw(rng, 1, most)}}));
  }
  return births;
}

void act(Rng& rng, Model& model, const Named& name) {
  const Policy policy = policy_of(name.first);
  const std::int64_t what = draw(rng, 1, 100);
  if (what <= 35) {
    const Nanos late{chance(rng, 10) ? draw(rng, 0, 50'000'000) : 0};
    model.admit(name, {draw(rng, 1, chance(rng, 90) ? 3 : policy.capacity.v)}, model.now - late);
  } else if (what <= 55) {
    model.receive(name, draw_births(rng, policy, model.now), chance(rng, 80));
  } else if (what <= 70) {
    model.push(name);
  } else if (what <= 75) {
    model.set_due(name, chance(rng, 50));
  } else if (what <= 79) {
    model.forget(name, model.now - Nanos{draw(rng, 0, 2'000'000'000)});
  } else if (what <= 82) {
    model.settle(name, model.now + Nanos{draw(rng, -1'000'000'000, 1'000'000'000)});
  } else if (what <= 87) {
    model.erase(name);
  } else if (what <= 90) {
    model.move(name, {name.first, draw_key(rng)});
  } else {
    model.sweep(rng, Keys::segment_of(name.second), pick<int>(rng, {100, 100, 100, 60}));
  }
}

void insert_plainly(Keys& keys, const std::vector<KeyHash>& order, std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < to; ++i) keys.find_or_insert({1}, order[i]);
}

double bytes_per_key(const Keys& keys) { return static_cast<double>(keys.held()) / static_cast<double>(keys.size()); }

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
      REQUIRE(stored.intervals() == set.size());
      // A block of one interval more than there are, and what malloc takes beside it.
      REQUIRE(stored.heap_bytes() <= (set.size() < 2 ? 0 : (set.size() + 2) * sizeof(Interval)));
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

TEST_CASE("keys hold what they would if each were kept in full, whatever is done in whatever order", "[keys]") {
  for_cases([](Rng& rng) {
    Model model(rng());
    const int keys = pick<int>(rng, {1, 4, 40});
    std::vector<Named> names;
    for (int i = 0; i < keys; ++i) names.emplace_back(pick<LimiterSlot>(rng, {kSlow, kSlow, kHuge}), draw_key(rng));
    for (int i = 0; i < 250; ++i) {
      // 80 s at most: rates that are 128 s old would be taken for new ones by the plain state.
      model.now = model.now + Nanos{draw(rng, 0, pick<std::int64_t>(rng, {0, 1000, 20'000'000, 600'000'000}))};
      const Named name = names[static_cast<std::size_t>(draw(rng, 0, keys - 1))];
      act(rng, model, name);
      model.check(name);
      if (i % 25 == 0) model.check();
    }
    model.check();
    model.clear();
  });
}

TEST_CASE("many keys in one segment, all of them erased again", "[keys]") {
  Rng rng(1);
  Model model;
  std::vector<Named> names;
  for (int i = 0; i < 3000; ++i) names.push_back({kSlow, {std::uint64_t{5} << 58 | (rng() >> 6)}});
  for (const Named& name : names) {
    for (std::uint64_t i = 0; i <= name.second.v % 3; ++i) model.admit(name, {1}, model.now);
  }
  model.check();
  CHECK(model.keys().size(5) == names.size());
  std::shuffle(names.begin(), names.end(), rng);
  for (std::size_t i = 0; i < names.size(); ++i) {
    model.erase(names[i]);
    if (i % 500 == 0) model.check();
  }
  CHECK_FALSE(model.keys().find(names[0].first, names[0].second));
  model.clear();
}

TEST_CASE("keys that differ in the limiter only are different keys", "[keys]") {
  Keys keys;
  for (std::uint16_t i = 0; i < 100; ++i) keys.find_or_insert({i}, {42}).set_tat(kPolicy, {i + 1});
  CHECK(keys.size() == 100);
  for (std::uint16_t i = 0; i < 100; ++i) CHECK(keys.find({i}, {42}).tat(kPolicy) == Nanos{i + 1});
  CHECK_FALSE(keys.find({100}, {42}));
}

TEST_CASE("a key is large while it must be, and small again when it rests", "[keys]") {
  const Policy policy = policy_of(kSlow);
  const Nanos later = kBase + Nanos{5'000'000'000};
  Keys keys;
  KeyState state = keys.find_or_insert(kSlow, {1});
  CHECK_FALSE(state.large());
  SECTION("admitted once, and pushed") {
    state.admit(policy, {3}, kBase);
    CHECK_FALSE(state.large());
    state.publish_unsent(policy, kBase);
    CHECK_FALSE(state.large());
    CHECK(state.own_per_second(policy.capacity, kBase) == Tokens{24});
  }
  SECTION("received once") {
    state.publish(policy, apart(1, kBase.v), kBase);
    state.count_remote(policy, {1}, kBase);
    state.set_tat(policy, state.union_tat(policy));
    CHECK_FALSE(state.large());
    CHECK(state.remote_per_second(policy.capacity, kBase) == Tokens{1});
  }
  SECTION("a second touch counts the first one too") {
    state.admit(policy, {3}, kBase);
    state.admit(policy, {1}, kBase + Nanos{1});
    CHECK(state.large());
    CHECK(state.own_per_second(policy.capacity, kBase) == Tokens{32});
    state.rest(policy, kBase + Nanos{2});
    CHECK(state.large());
    state.rest(policy, later);
    CHECK_FALSE(state.large());
    CHECK(state.unsent_weight() == Tokens{4});
  }
  SECTION("both sets") {
    state.admit(policy, {1}, kBase);
    state.publish(policy, apart(1, kBase.v), kBase);
    state.rest(policy, later);
    CHECK(state.large());
    state.set_published(policy, {});
    state.rest(policy, later);
    CHECK_FALSE(state.large());
  }
  SECTION("a TAT of its own, until it has passed") {
    state.admit(policy, {1}, kBase);
    state.set_tat(policy, later);
    // Births of a moment ago may still be told.
    state.rest(policy, later + Nanos{1'000'000'000});
    CHECK(state.large());
    state.rest(policy, later + Nanos{2'000'000'000});
    CHECK_FALSE(state.large());
  }
  SECTION("more births than are counted in 32 bits") {
    const Policy huge = policy_of(kHuge);
    state.admit(huge, {std::int64_t{1} << 32}, kBase);
    state.rest(huge, later);
    CHECK(state.large());
    CHECK(state.unsent_weight() == Tokens{std::int64_t{1} << 32});
  }
}

TEST_CASE("what a key's sets hold on the heap goes with the key", "[keys]") {
  Keys keys;
  KeyState state = keys.find_or_insert({0}, {1});
  state.set_tat(kPolicy, {1});  // large
  const std::size_t before = keys.held();
  state.set_published(kPolicy, apart(10, 0));
  state.set_unsent(kPolicy, apart(5, 0));
  // 8 bytes for the first start, a byte for each count, three for each step; in eights.
  CHECK(keys.held() == before + 48 + 32);
  CHECK(state.heap_bytes() == 48 + 32);
  keys.erase({0}, {1});
  CHECK(keys.held() == before);
  keys.find_or_insert({0}, {2}).set_published(kPolicy, apart(1, 0));
  CHECK(keys.held() == before);
}

TEST_CASE("a key whose births lie in several intervals of one set needs no large block once it rests", "[keys]") {
  const Policy policy{{1000}, {1'000'000'000}};
  const Nanos later = kBase + Nanos{10'000'000'000'000};
  for (const bool published : {false, true}) {
    Keys keys;
    KeyState state = keys.find_or_insert({0}, {1});
    const auto interval = [&](int i) { return kBase + Tokens{300 * i} * policy.interval; };
    for (int i = 0; i < 4; ++i) state.admit(policy, {1}, interval(i));
    CHECK(state.large());
    if (published) state.publish_unsent(policy, interval(4));
    const IntervalSet births = state.all(policy);
    REQUIRE(births.size() == 4);
    state.rest(policy, later);
    keys.fit(Keys::segment_of({1}));
    CHECK_FALSE(state.large());
    CHECK(keys.held() == 24 + 8 + 4 + 3 * 6 + 2);
    const auto same = [&](const IntervalSet& set) {
      CHECK(state.has_published() == published);
      CHECK(state.has_unsent() != published);
      CHECK((published ? state.published() : state.unsent()) == set);
      CHECK((published ? state.unsent() : state.published()).empty());
      CHECK(state.unsent_weight() == Tokens{published ? 0 : set.weight().v});
      CHECK(state.tat(policy) == set.tat(policy));
      CHECK(state.union_tat(policy) == set.tat(policy));
      CHECK(state.own_per_second(policy.capacity, later) == Tokens{0});
    };
    same(births);
    if (!published) CHECK(state.oldest_unsent() == kBase);

    SECTION("its set shrinks where it lies") {
      IntervalSet fewer = births;
      fewer.compact(policy, interval(1) + policy.interval + IntervalSet::horizon(policy) + Nanos{1});
      REQUIRE(fewer.size() == 2);
      published ? state.set_published(policy, fewer) : state.set_unsent(policy, fewer);
      CHECK_FALSE(state.large());
      same(fewer);
      CHECK(keys.held() == 24 + 8 + 2 + 6);
      fewer = IntervalSet::from({fewer.end() - 1, 1});
      published ? state.set_published(policy, fewer) : state.set_unsent(policy, fewer);
      same(fewer);
      CHECK(keys.held() == 24);
    }
    SECTION("it takes part again") {
      const Nanos now = interval(10);
      IntervalSet more = births;
      CHECK_FALSE(state.admit_small(policy, {1}, births.tat(policy)));
      state.admit(policy, {2}, now);
      REQUIRE(more.insert(policy, {now, {2}}));
      CHECK(state.large());
      CHECK(state.all(policy) == more);
      CHECK(state.tat(policy) == more.tat(policy));
      CHECK(state.own_per_second(policy.capacity, now) > Tokens{0});
    }
    SECTION("others' births, where its own wait") {
      IntervalSet one;
      REQUIRE(one.insert(policy, {interval(2) + Nanos{5}, {1}}));
      state.publish(policy, one, later);
      state.count_remote(policy, {1}, later);
      IntervalSet all = births;
      REQUIRE(all.merge(policy, one));
      CHECK(state.all(policy) == all);
    }
    SECTION("its births are not taken for those of one touch, however many come") {
      // 32 bytes less two, four intervals: what the slot has where a small key has its births.
      state.count_remote(policy, {30 << 8 | 4}, later);
      CHECK(state.large());
      CHECK(state.remote_per_second(policy.capacity, later) > Tokens{0});
    }
    SECTION("it goes with all it held") {
      keys.erase({0}, {1});
      keys.fit(Keys::segment_of({1}));
      CHECK(keys.held() == 0);
    }
  }
}

TEST_CASE("bytes per key: small, large, and small again", "[keys]") {
  Rng rng(2);
  const Policy policy = policy_of(kSlow);
  Keys keys(rng());
  std::vector<KeyHash> all;
  const auto touch = [&](Nanos now) {
    for (const KeyHash key : all) keys.find_or_insert(kSlow, key).admit(policy, {1}, now);
  };
  for (int i = 0; i < 500'000; ++i) all.push_back({rng() | 1});
  // Tables are of whole pages.
  constexpr double kSmall = 28.4 + 0.3;
  touch(kBase);
  CHECK(bytes_per_key(keys) <= kSmall);
  touch(kBase);
  CHECK(bytes_per_key(keys) <= kSmall + 50.1 + 0.3);
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) {
    keys.sweep(segment, [&](KeyState state) {
      state.rest(policy, kBase + Nanos{5'000'000'000});
      return true;
    });
    keys.fit(segment);
  }
  CHECK(bytes_per_key(keys) <= kSmall);
  // Four of five go.
  for (const KeyHash key : all) {
    if (key.v % 5 != 0) keys.erase(kSlow, key);
  }
  for (std::size_t segment = 0; segment < Keys::kSegments; ++segment) keys.fit(segment);
  CHECK(bytes_per_key(keys) <= kSmall);
}

TEST_CASE("keys that come in the order of another table lie as near to home as others", "[keys]") {
  Rng rng(3);
  constexpr std::size_t kSegment = 5;
  constexpr std::size_t kMany = 16'000;
  std::vector<KeyHash> random;
  for (std::size_t i = 0; i < kMany; ++i) random.push_back({std::uint64_t{kSegment} << 58 | (rng() >> 6)});
  Keys other(rng());
  insert_plainly(other, random, 0, kMany);
  std::vector<KeyHash> walked;
  other.for_each(kSegment, [&](const KeyState& state) { walked.push_back(state.key()); });
  const std::uint64_t salt = rng();
  Keys by_chance(salt);
  Keys in_order(salt);
  // On the way, too: the search for a place costs as much as the keys that are there lie apart from theirs.
  for (std::size_t at = 0; at < kMany; at += 1000) {
    insert_plainly(by_chance, random, at, at + 1000);
    insert_plainly(in_order, walked, at, at + 1000);
    const auto usual = static_cast<double>(by_chance.distance(kSegment) + 1000);
    CHECK(static_cast<double>(in_order.distance(kSegment)) <= 1.5 * usual);
  }
}

TEST_CASE("to prefetch a key changes nothing", "[keys]") {
  Keys keys;
  keys.prefetch({1}, {42});
  CHECK(keys.size() == 0);
  CHECK(keys.held() == 0);
  keys.find_or_insert({1}, {42});
  const std::size_t held = keys.held();
  for (std::uint64_t key = 1; key < 100; ++key) keys.prefetch({1}, {key});
  CHECK(keys.size() == 1);
  CHECK(keys.held() == held);
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
