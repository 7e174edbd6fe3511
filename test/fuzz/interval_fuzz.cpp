// Bytes as a history of operations on IntervalSets, each held against the fold over single births. A trap is a
// mismatch: a broken invariant, an inexact answer while the cap was never reached, or, once it was, a TAT that is too
// early or later than the header's bound.
//
// Input: one byte for the limiter, then operations of four bytes {what, when, fraction of T, weight}.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "../cpp/births.hpp"
#include "weir/interval.hpp"
#include "weir/units.hpp"

namespace weir {
namespace {

using test::Births;
using test::Int128;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

constexpr std::array kPolicies = {
    Policy{{1}, {1}},
    Policy{{5}, {1'000'000'000}},
    Policy{{100}, {7}},
    Policy{{1000}, {60'000}},
    Policy{{kSpanMax.v}, {1}},
    Policy{{1}, kSpanMax},
    Policy{{3}, {std::int64_t{1} << 58}},
    Policy{{20}, {1'000'000'000}},
};

// A set, the truth about it, and by how many tokens its TAT may be late.
struct Key {
  IntervalSet set;
  Births truth;
  Int128 late = 0;
  bool exact = true;  // the cap was never reached

  void check(const Policy& policy, Nanos now) {
    require(IntervalSet::valid(policy, set.intervals()));
    const auto busy = truth.busy(policy);
    exact = exact && busy.size() <= kIntervalCap;
    const Int128 tat = truth.tat(policy);
    const Int128 seen = set.tat(policy).v - tat;
    if (exact) {
      require(std::equal(set.begin(), set.end(), busy.begin(), busy.end()));
      require(seen == 0);
      require(set.level(policy, now).v == truth.level(policy, now));
    } else {
      require(seen >= 0);
      require(seen <= late * policy.interval.v);
    }
  }
  // Makes the set's own view the truth, where the two may part for good.
  void accept() {
    if (exact) return;
    truth.reset();
    truth.add(set.intervals());
    late = 0;
    exact = true;
  }
  void count(const Policy& policy, Birth birth, bool newest) {
    if (!newest && birth.time < truth.newest()) {
      late += birth.weight.v;
    } else if (set.tat(policy) <= birth.time) {
      late = 0;
    }
    truth.add(birth);
  }
};

struct Operation {
  std::uint8_t what;
  std::uint8_t when;
  std::uint8_t fraction;
  std::uint8_t weight;
};

class History {
 public:
  explicit History(const Policy& policy) : policy_(policy) {}

  // The truth costs the square of its length; this many births reach every case.
  bool long_enough() const { return key_.truth.size() + other_.truth.size() > 300; }

  void step(const Operation& op) {
    const Nanos time = when(op);
    const Tokens weight = op.weight < 250 ? Tokens{op.weight % 16 + 1} : Tokens{INT64_MAX >> (4 * (op.weight - 250))};
    switch (op.what % 12) {
      case 0:
      case 1:
        insert(key_, {time, weight});
        break;
      case 2:
        insert(other_, {time, weight});
        break;
      case 3:
        merge();
        break;
      case 4:
      case 5:
        now_ = std::min(std::max(now_, time), Nanos{(std::int64_t{1} << 61) - 1});
        decide(weight);
        break;
      case 6:
        compact();
        break;
      case 7:
        key_.set.reset_before(time);
        if (key_.exact) key_.truth.reset_before(policy_, time);
        key_.accept();
        break;
      case 8:
        change(kPolicies[op.fraction % kPolicies.size()]);
        break;
      case 9:
      case 10:  // a run of births a little more than T apart reaches the cap quickly
        for (std::int64_t i = 0; i < op.weight % 40; ++i) {
          const Int128 next = time.v + Int128{i} * (policy_.interval.v + 1 + policy_.interval.v * (op.fraction % 4));
          if (next > kTimeMax.v) break;
          Key& key = op.what % 12 == 9 ? key_ : other_;
          insert(key, {{static_cast<std::int64_t>(next)}, {1}});
          key.check(policy_, now_);
        }
        break;
      default:
        change({{std::min<std::int64_t>(op.weight + 1, kSpanMax.v / policy_.interval.v)}, policy_.interval});
        break;
    }
    key_.check(policy_, now_);
    other_.check(policy_, now_);
  }

 private:
  // Mostly within some T of now, to fuse, touch and leave gaps; at times far away.
  Nanos when(const Operation& op) const {
    if (op.when >= 252) return {(kTimeMax.v >> (op.when - 252)) - op.fraction};
    const Int128 time =
        now_.v + Int128{op.when - 100} * policy_.interval.v + Int128{policy_.interval.v} * op.fraction / 8;
    return {static_cast<std::int64_t>(std::clamp<Int128>(time, 0, kTimeMax.v))};
  }

  void insert(Key& key, Birth birth) {
    Births with = key.truth;
    with.add(birth);
    const bool fits = with.tat(policy_) <= kTimeMax.v;
    const IntervalSet before = key.set;
    Key after = key;
    after.count(policy_, birth, false);
    if (key.set.insert(policy_, birth)) {
      require(fits);
      after.set = key.set;
      key = after;
    } else {
      require(!fits || !key.exact);
      require(key.set == before);
    }
  }

  void merge() {
    Births with = key_.truth;
    with.add(other_.truth);
    const bool fits = with.tat(policy_) <= kTimeMax.v;
    const IntervalSet before = key_.set;
    IntervalSet swapped = other_.set;
    const bool swapped_fits = swapped.merge(policy_, key_.set);
    const Int128 lighter = std::min(weight(key_.set), weight(other_.set));
    if (key_.set.merge(policy_, other_.set)) {
      require(fits && swapped_fits);
      require(swapped == key_.set);
      key_.truth = with;
      key_.late = std::max(key_.late, other_.late) + lighter;
      key_.exact = key_.exact && other_.exact;
    } else {
      require(!swapped_fits);
      require(!fits || !key_.exact || !other_.exact);
      require(key_.set == before);
    }
  }

  void decide(Tokens hits) {
    const bool right = key_.truth.admits(policy_, hits, now_);
    const IntervalSet before = key_.set;
    const bool admits = key_.set.admits(policy_, hits, now_);
    Key after = key_;
    const Decision decision = key_.set.decide(policy_, hits, now_);
    require(decision.allowed == admits);
    require(right || !decision.allowed);
    require(!key_.exact || right == decision.allowed);
    if (decision.allowed) {
      require(decision.retry.v == 0);
      // A full set drops what is beyond the horizon first.
      const bool full = before.size() == kIntervalCap && now_ > before.tat(policy_);
      if (full && after.exact) after.truth.compact(policy_, now_);
      // An own birth is the newest.
      after.count(policy_, {std::max(now_, after.truth.newest()), hits}, true);
      after.set = key_.set;
      key_ = after;
      if (full) key_.accept();
    } else {
      require(key_.set == before);
      require((decision.retry == kNever) == (hits > policy_.capacity));
      if (decision.retry != kNever) {
        require(!key_.set.admits(policy_, hits, now_ + decision.retry - Nanos{1}));
        require(key_.set.admits(policy_, hits, now_ + decision.retry));
      }
    }
  }

  void compact() {
    for (Key* key : {&key_, &other_}) {
      const Tokens level = key->set.level(policy_, now_);
      key->set.compact(policy_, now_);
      require(key->set.level(policy_, now_) == level);
      if (key->exact) key->truth.compact(policy_, now_);
      key->accept();
    }
  }

  void change(const Policy& to) {
    for (Key* key : {&key_, &other_}) {
      key->accept();
      key->set.change(policy_, to, now_);
      key->truth.change(policy_, to, now_);
    }
    policy_ = to;
  }

  static Int128 weight(const IntervalSet& set) {
    Int128 sum = 0;
    for (const Interval& interval : set) sum += interval.count.v;
    return sum;
  }

  Policy policy_;
  Key key_;
  Key other_;
  Nanos now_{1'770'000'000'000'000'000};
};

}  // namespace
}  // namespace weir

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  weir::History history(weir::kPolicies[data[0] % weir::kPolicies.size()]);
  for (std::size_t at = 1; at + 4 <= size && !history.long_enough(); at += 4) {
    history.step({data[at], data[at + 1], data[at + 2], data[at + 3]});
  }
  return 0;
}
