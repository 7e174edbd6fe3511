// node: see include/weir/node.hpp.
#include "weir/node.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>

namespace weir {
namespace {

// Levels that are fetched ahead of being set.
constexpr std::size_t kLevelsAhead = 8;

}  // namespace

void Node::attach(bool in_place_of_another) {
  replica_.tell_levels();
  Admissions& births = registry_->replication().births;
  if (in_place_of_another) births.drain(SIZE_MAX, [](const Admission&) {});
  births.open(has_listeners());
  births.awake();
}

void Node::carry_taken() {
  for (const Carry& carry : carries_) replica_.carry(carry, last_);
  carries_.clear();
}

void Node::rescan(Clock clock) {
  Replication& replication = registry_->replication();
  std::set<std::pair<LimiterId, KeyHash>> carried;
  const bool all =
      registry_->for_each_dropped(last_, kRescanned, [&](LimiterId limiter, std::span<const Table::Entry> seen) {
        // Births before the look at the tables are not lost: they come before the comparison.
        replication.births.drain(SIZE_MAX, [&](const Admission& birth) { replica_.admitted(birth, last_); });
        // Nor are keys that were carried since: what was seen of them under the hash of before isn't more than is
        // known.
        const std::vector<Carry> late = replication.carries.take(SIZE_MAX);
        carries_.insert(carries_.end(), late.begin(), late.end());
        for (const Carry& carry : carries_) carried.emplace(carry.limiter, carry.before);
        carry_taken();
        // By a clock that is not behind any birth that was seen: a level before the birth itself would be a token more.
        const Nanos later = std::max(last_, clock());
        for (std::size_t i = 0; i < seen.size(); ++i) {
          if (i + Admissions::kAhead < seen.size()) replica_.prefetch(limiter, seen[i + Admissions::kAhead].key);
          const Table::Entry& entry = seen[i];
          if (!carried.contains({limiter, entry.key})) replica_.catch_up(limiter, entry.key, entry.tat, later);
        }
        replication.rescanned_keys.fetch_add(seen.size(), std::memory_order_relaxed);
      });
  if (all) replication.rescans.fetch_add(1, std::memory_order_relaxed);
  rescans_ = !all;
}

// The births of the tables; whether there were any.
bool Node::take_births(Clock clock) {
  Replication& replication = registry_->replication();
  replication.births.awake();
  const bool carries = !replica_.moves_segments();  // else a copy would begin anew
  if (rescans_ && carries) rescan(clock);
  // Births that count in a carried level, and were told, come before it.
  if (carries && carries_.empty() && !replication.carries.empty()) carries_ = replication.carries.take(kCarries);
  const std::size_t taken = replication.births.drain(
      kBirths, [&](const Admission& birth) { replica_.admitted(birth, last_); },
      [&](LimiterId limiter, KeyHash key) { replica_.prefetch(limiter, key); });
  if (taken == kBirths) return true;
  carry_taken();
  return taken != 0;
}

void Node::bring_levels(bool births) {
  const std::vector<Level> levels = replica_.take_levels();
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const Level& level = levels[i];
    const Registry::Ref ref = registry_->find_number(level.limiter);
    if (!ref) continue;
    // (Most are of one limiter.)
    if (i + kLevelsAhead < levels.size()) std::as_const(*ref.limiter).table().prefetch(levels[i + kLevelsAhead].key);
    Registry::set_level(ref, level.key, level.tat, level.exactly, last_);
  }
  Replication& replication = registry_->replication();
  replication.minority.store(replica_.minority(), std::memory_order_relaxed);
  replication.nodes.store(static_cast<std::uint32_t>(replica_.live()), std::memory_order_relaxed);
  // The tables have all that was admitted before the first other node came.
  if (has_listeners() && !replication.births.open()) registry_->drop_all();
  replication.births.open(has_listeners());
  rescans_ = replication.births.overflowed() || rescans_;
  rescans_ = replication.carries.overflowed() || rescans_;
  const bool moves = replica_.moves_segments();
  const bool carries = !moves && (!carries_.empty() || !replication.carries.empty());
  // As long as births come, they are looked for again in a moment, and so is what was lost of them: else the search for
  // that would lose more. Then it's up to whoever wakes the reader.
  polls_ = births;
  again_ = !replication.births.rests(births) || (rescans_ && !births && !moves) || carries;
}

}  // namespace weir
