// Shows R55 of doc/requirements.md.
// What owners told is denied without asking them, and never what they would admit: owners and a node that asks, in
// simulated time, with clocks that differ and run at different rates, answers that are slow and overtake each other.
#include "weir/known_levels.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "weir/tat.hpp"

using namespace weir;
using namespace weir::test;

namespace {

constexpr LimiterId kLimiter{7};
constexpr std::int64_t kMs = 1'000'000;
constexpr Nanos kSlow{300 * kMs};  // the most that a message takes

// A clock that is off, and faster or slower by up to 1 %.
struct Clock {
  Nanos offset;
  std::int64_t per_mille = 0;
  Nanos at(Nanos real) const { return kBase + offset + real + Nanos{real.v / 1000 * per_mille}; }
};

Clock draw_clock(Rng& rng) {
  const std::int64_t most = pick<std::int64_t>(rng, {0, 50 * kMs, 3'600'000 * kMs});
  return {{draw(rng, -most, most)}, draw(rng, -10, 10)};
}

// Such that what drains within a message's time, or the time for which a level is known, decides something.
Policy draw_terms(Rng& rng) {
  return {{pick<std::int64_t>(rng, {1, 2, 3, 10})},
          {pick<std::int64_t>(rng, {5, 99, 100, 101, 1000, 1010, 60'000}) * kMs + draw(rng, 0, 1) * draw(rng, 0, kMs)}};
}

std::int64_t ms_up(Nanos span) { return ceil_div(span.v, kMs); }

struct Question {
  KeyHash key;
  Tokens hits;
  KnownLevels::Stamp stamp;
  Nanos sent;     // by the asker's clock
  Nanos reaches;  // the owner
  Nanos returns;  // the answer
  bool decided = false;
  KnownLevels::Answer answer{};
  bool tells = false;
};

// One owner at a time, and one node that asks.
class World {
 public:
  explicit World(Rng& rng)
      : rng_(rng), policy_(draw_terms(rng)), here_(policy_), asker_(draw_clock(rng)), owner_(draw_clock(rng)) {}

  void run() {
    for (int i = 0; i < 400; ++i) {
      step();
      advance(Nanos{draw(rng_, 0, pick<std::int64_t>(rng_, {kMs, 5 * kMs, 30 * kMs, 1000 * kMs}))});
    }
  }
  int denied_here = 0, asked = 0;

 private:
  void step() {
    switch (draw(rng_, 0, 99)) {
      case 0:
        return reset();
      case 1:
        return change();
      case 2:
        return other_owner();
      case 3:
        return rotate();
      case 4: {  // others' births, which this node knows nothing of
        const KeyHash name = key();
        carry(name);
        tats_[name.v].take(policy_, hits(), owner_.at(real_));
        return;
      }
      default:
        return ask();
    }
  }

  KeyHash key() { return {epoch_ * 16 + static_cast<std::uint64_t>(draw(rng_, 1, 3))}; }
  Tokens hits() { return {draw(rng_, 1, chance(rng_, 80) ? 1 : policy_.capacity.v + 1)}; }
  Nanos delay() { return {draw(rng_, 0, chance(rng_, 80) ? kMs : kSlow.v)}; }

  void ask() {
    const KeyHash name = key();
    const Tokens n = hits();
    const Nanos now = asker_.at(real_);
    Nanos debt;
    if (known_.denies(kLimiter, name, here_, n, now, debt)) {
      ++denied_here;
      carry(name);
      const Nanos theirs = owner_.at(real_);
      const Tat tat = tats_[name.v];
      // While a reset, a change of limiter or of owner is on its way to this node, it is as it was for this node.
      if (unsettled_.contains(name.v) || !(here_ == policy_) || moving_) return;
      REQUIRE_FALSE(tat.admits(policy_, n, theirs));
      // Who comes back when it says so may be early or late by no more than this.
      const Nanos retry = Tat(now + debt).denied(here_, n, now).retry, real = tat.denied(policy_, n, theirs).retry;
      if (n <= policy_.capacity && real_ > changed_ + kSlow + KnownLevels::kKnownFor)
        REQUIRE(retry - real <= kSlow + Nanos{kMs} + Nanos{KnownLevels::kKnownFor.v / KnownLevels::kDrift});
      REQUIRE(retry.v > 0);
      return;
    }
    ++asked;
    Question question{name, n, known_.stamp(), now, real_ + delay(), {}};
    question.returns = question.reaches + delay();
    questions_.push_back(question);
  }

  // After a rotation the level is under the hash of before until somebody asks.
  void carry(KeyHash name) {
    if (name.v < 16 + epoch_ * 16) {
      const auto before = tats_.find(name.v - 16);
      if (before == tats_.end()) return;
      if (before->second.value() > tats_[name.v].value()) tats_[name.v] = before->second;
      tats_.erase(before);
    }
  }

  // The tables first, then what is known of it.
  void reset() {
    const KeyHash name = key();
    tats_[name.v].reset();
    tats_.erase(name.v - 16);
    unsettled_.insert(name.v);
    later_.push_back({real_ + delay(), [this, name] {
                        known_.forget(name);
                        unsettled_.erase(name.v);
                      }});
  }

  void change() {
    if (!(here_ == policy_)) return;
    const Policy next = draw_terms(rng_);
    const bool owner_first = chance(rng_, 50);
    const auto at_owner = [this, next] {
      for (auto& [name, tat] : tats_) tat.change(policy_, next, owner_.at(real_));
      policy_ = next;
    };
    const auto at_asker = [this, next] {
      here_ = next;
      known_.forget_all();
    };
    const Nanos second = real_ + delay();
    changed_ = real_;
    if (owner_first) {
      at_owner();
      later_.push_back({second, at_asker});
    } else {
      at_asker();
      later_.push_back({second, at_owner});
    }
  }

  // It was told the levels, by the clock of the one before.
  void other_owner() {
    owner_ = draw_clock(rng_);
    moving_ = true;
    // What the one before hasn't answered, nobody answers.
    std::erase_if(questions_, [](const Question& question) { return !question.decided; });
    later_.push_back({real_ + delay(), [this] {
                        known_.forget_all();
                        moving_ = false;
                      }});
  }

  void rotate() {
    if (++epoch_; epoch_ > 1) std::erase_if(tats_, [&](const auto& entry) { return entry.first < epoch_ * 16 - 16; });
  }

  // Everything that is due until then, in order of time.
  void advance(Nanos by) {
    const Nanos until = real_ + by;
    for (;;) {
      Nanos next = until;
      for (const auto& [at, what] : later_) next = std::min(next, at);
      for (const Question& question : questions_)
        next = std::min(next, question.decided ? question.returns : question.reaches);
      real_ = std::max(real_, next);
      bool any = false;
      for (std::size_t i = 0; i < later_.size(); ++i) {
        if (later_[i].first > real_) continue;
        const auto what = later_[i].second;
        later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(i));
        what();
        any = true;
        break;
      }
      for (std::size_t i = 0; !any && i < questions_.size(); ++i) any = deliver(i);
      if (!any && real_ >= until) return;
    }
  }

  bool deliver(std::size_t i) {
    Question& question = questions_[i];
    if (!question.decided && question.reaches <= real_) {
      carry(question.key);
      Tat& tat = tats_[question.key.v];
      const Nanos now = owner_.at(real_);
      const Decision decision = tat.decide(policy_, question.hits, now);
      question.decided = true;
      question.answer = {policy_.capacity, decision.remaining, ms_up(decision.reset)};
      question.tells = !decision.allowed || decision.remaining.v == 0;
      return true;
    }
    if (!question.decided || question.returns > real_) return false;
    if (question.tells)
      known_.learn(kLimiter, question.key, question.stamp, here_, question.answer, question.sent, asker_.at(real_));
    questions_.erase(questions_.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }

  Rng& rng_;
  Policy policy_, here_;
  Clock asker_, owner_;
  Nanos real_{0};
  std::uint64_t epoch_ = 1;
  KnownLevels known_;
  std::map<std::uint64_t, Tat> tats_;
  std::set<std::uint64_t> unsettled_;
  bool moving_ = false;
  Nanos changed_{-4'000 * kMs};  // when a debt may have been told in terms of before
  std::vector<Question> questions_;
  std::vector<std::pair<Nanos, std::function<void()>>> later_;
};

}  // namespace

TEST_CASE("known levels: nothing is denied that the owner would admit", "[known_levels]") {
  int denied = 0, asked = 0;
  for_cases([&](Rng& rng) {
    World world(rng);
    world.run();
    denied += world.denied_here;
    asked += world.asked;
  });
  // (It is not so because nothing is ever denied here.)
  INFO(denied << " denied here, " << asked << " asked");
  REQUIRE(denied > asked / 4);
}

namespace {

constexpr Policy kPolicy{{5}, {60'000 * kMs}};
constexpr KnownLevels::Answer kFull{{5}, {0}, 300'000};

bool denies(const KnownLevels& known, KeyHash key, Nanos now, Tokens hits = {1}, LimiterId limiter = kLimiter) {
  Nanos debt;
  return known.denies(limiter, key, kPolicy, hits, now, debt);
}

}  // namespace

TEST_CASE("known levels: of one key of one limiter, for two seconds", "[known_levels]") {
  KnownLevels known;
  const KeyHash key{77};
  REQUIRE_FALSE(denies(known, key, kBase));
  known.learn(kLimiter, key, known.stamp(), kPolicy, kFull, kBase, kBase + Nanos{kMs});
  REQUIRE(denies(known, key, kBase + Nanos{kMs}));
  REQUIRE_FALSE(denies(known, {78}, kBase + Nanos{kMs}));
  REQUIRE_FALSE(denies(known, key, kBase + Nanos{kMs}, {1}, {8}));
  REQUIRE(denies(known, key, kBase + KnownLevels::kKnownFor));
  REQUIRE_FALSE(denies(known, key, kBase + KnownLevels::kKnownFor + Nanos{1}));
  REQUIRE_FALSE(denies(known, key, kBase - Nanos{1}));
  // What the owner said of the time.
  Nanos debt;
  REQUIRE(known.denies(kLimiter, key, kPolicy, {2}, kBase + Nanos{501 * kMs}, debt));
  REQUIRE(debt == Nanos{299'500 * kMs});
}

TEST_CASE("known levels: more hits than are left are denied, fewer are asked for", "[known_levels]") {
  KnownLevels known;
  known.learn(kLimiter, {77}, known.stamp(), kPolicy, {{5}, {2}, 180'000}, kBase, kBase);
  REQUIRE_FALSE(denies(known, {77}, kBase, {2}));
  REQUIRE(denies(known, {77}, kBase, {4}));
  REQUIRE(denies(known, {77}, kBase, {6}));
}

TEST_CASE("known levels: a reset forgets the key, and answers that are on their way", "[known_levels]") {
  KnownLevels known;
  const KnownLevels::Stamp before = known.stamp();
  const bool all = GENERATE(false, true);
  const auto forget = [&] { all ? known.forget_all() : known.forget({77}); };
  known.learn(kLimiter, {77}, before, kPolicy, kFull, kBase, kBase);
  known.learn(kLimiter, {78}, before, kPolicy, kFull, kBase, kBase);
  forget();
  REQUIRE_FALSE(denies(known, {77}, kBase));
  REQUIRE(denies(known, {78}, kBase) != all);
  known.learn(kLimiter, {77}, before, kPolicy, kFull, kBase, kBase);
  REQUIRE_FALSE(denies(known, {77}, kBase));
  known.learn(kLimiter, {77}, known.stamp(), kPolicy, kFull, kBase, kBase);
  REQUIRE(denies(known, {77}, kBase));
}

TEST_CASE("known levels: an answer under other terms says nothing, or what its tokens are worth", "[known_levels]") {
  KnownLevels known;
  for (const KnownLevels::Answer answer : {KnownLevels::Answer{{6}, {0}, 300'000},
                                           {{5}, {-1}, 300'000},
                                           {{5}, {6}, 300'000},
                                           {{5}, {0}, -1},
                                           {{5}, {0}, INT64_MAX}})
    known.learn(kLimiter, {77}, known.stamp(), kPolicy, answer, kBase, kBase);
  REQUIRE_FALSE(denies(known, {77}, kBase));
  // Of hours a token: the last one is back here in a minute.
  known.learn(kLimiter, {77}, known.stamp(), kPolicy, {{5}, {4}, 3'600'000}, kBase, kBase);
  REQUIRE_FALSE(denies(known, {77}, kBase, {4}));
  REQUIRE(denies(known, {77}, kBase, {5}));
}

TEST_CASE("known levels: more keys than there is room for", "[known_levels]") {
  KnownLevels known;
  Rng rng(1);
  std::vector<KeyHash> keys(4 * KnownLevels::kKeys);
  for (KeyHash& key : keys) {
    key = {rng()};
    known.learn(kLimiter, key, known.stamp(), kPolicy, kFull, kBase, kBase);
  }
  const auto count = std::count_if(keys.begin(), keys.end(), [&](KeyHash key) { return denies(known, key, kBase); });
  REQUIRE(count <= static_cast<std::ptrdiff_t>(KnownLevels::kKeys));
  REQUIRE(count > static_cast<std::ptrdiff_t>(KnownLevels::kKeys / 2));
}
