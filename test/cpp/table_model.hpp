// table_model: a Table and a map that is asked the same questions, in one object.
//
// Each call goes to both and compares every field of the answers. What the table evicts can't be foreseen without
// knowing its lines, so the model follows the counters: after each call that raised `evicted_keys` exactly one live key
// must have gone, at exactly the level by which `evicted_tokens` rose. Everything else must be there, unchanged.
//
// A difference is reported by `fail`, which must not return (a test fails by an exception, a fuzzer traps).
//
// Thread safety: none. Complexity: constant a call; linear in the table for a call that evicts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "weir/table.hpp"

namespace weir::test {

class ModelledTable {
 public:
  using Fail = void (*)(const char* what);

  ModelledTable(Policy policy, std::int64_t max_keys, std::uint32_t version, Nanos now, Fail fail)
      : terms_{policy, version, policy, now}, now_(now), fail_(fail), max_keys_(max_keys) {
    generation_ = table_.open(max_keys, version);
  }

  const Policy& policy() const { return terms_.policy; }
  Nanos now() const { return now_; }
  TableStats stats() const { return table_.stats(); }

  // Time only goes forward, up to the latest time that a decision may have.
  void advance(Nanos by) {
    constexpr std::int64_t kLatest = (std::int64_t{1} << 61) - 1;
    now_ = by.v > kLatest - now_.v ? Nanos{kLatest} : now_ + by;
  }

  void decide(KeyHash key, Tokens hits) {
    const auto known = model_.find(key.v);
    Tat state = known == model_.end() ? Tat{} : known->second;
    const Decision expected = state.decide(terms_.policy, hits, now_);
    Decision answer;
    expect(table_.decide(generation_, terms_, key, hits, now_, answer) == Status::ok, "decide: status");
    expect(answer.allowed == expected.allowed, "decide: allowed");
    expect(answer.remaining == expected.remaining, "decide: remaining");
    expect(answer.reset == expected.reset, "decide: reset");
    expect(answer.retry == expected.retry, "decide: retry");
    const bool insert = known == model_.end() || known->second.value() <= now_;
    if (expected.allowed) model_[key.v] = state;
    follow_evictions(key, expected.allowed && insert);
  }

  void peek(KeyHash key) {
    Tat state;
    expect(table_.peek(generation_, terms_, key, now_, state) == Status::ok, "peek: status");
    expect(std::max(state.value(), now_) == std::max(expected_tat(key), now_), "peek: state");
    follow_evictions(key, false);
  }

  void reset(KeyHash key) {
    expect(table_.reset(generation_, terms_, key, now_) == Status::ok, "reset: status");
    model_.erase(key.v);
    follow_evictions(key, false);
    peek(key);
  }

  void take(KeyHash key) {
    Tat state;
    expect(table_.take(generation_, terms_, key, now_, state) == Status::ok, "take: status");
    expect(std::max(state.value(), now_) == std::max(expected_tat(key), now_), "take: state");
    model_.erase(key.v);
    follow_evictions(key, false);
  }

  // To so many tokens above what is drained.
  void set_level(KeyHash key, Tokens level, bool exactly) {
    const Nanos tat = now_ + level * terms_.policy.interval;
    const Nanos had = expected_tat(key);
    expect(table_.set_level(generation_, terms_, key, tat, exactly, now_) == Status::ok, "set_level: status");
    const bool sets = exactly || tat > had;
    if (sets && tat > now_)
      model_[key.v] = Tat(tat);
    else if (sets)
      model_.erase(key.v);
    follow_evictions(key, sets && tat > now_ && had <= now_);
    peek(key);
  }

  // Copies the segment at which the last walk stopped, whatever was split or merged since: all keys from there up to
  // the new place, and no others.
  void walk_some() {
    const Table::Cursor from = walk_cursor_;
    Table::Copy room;
    std::span<Table::Entry> copied;
    expect(table_.copy_segment(generation_, terms_, now_, walk_cursor_, room, copied) == Status::ok, "copy: status");
    const auto within = [&](std::uint64_t key) { return key >= from && (walk_cursor_ == 0 || key < walk_cursor_); };
    std::unordered_set<std::uint64_t> seen;
    for (const Table::Entry& entry : copied) {
      expect(within(entry.key.v), "copy: a key of elsewhere");
      expect(seen.insert(entry.key.v).second, "copy: a key twice");
      expect(expected_tat(entry.key) == entry.tat, "copy: state");
    }
    std::size_t live = 0;
    for (const auto& [key, state] : model_) live += within(key) && state.value() > now_ ? 1 : 0;
    expect(live == seen.size(), "copy: a live key is missing");
  }

  // Sweeps some segments, from where the last sweep stopped.
  void sweep_some(unsigned segments) {
    if (table_.sweep(generation_, terms_, now_, sweep_cursor_, segments)) sweep_cursor_ = 0;
    follow_evictions({}, false);
  }
  // Sweeps everything: what is left are the live keys.
  void sweep_all() {
    convert_all();
    sweep_cursor_ = 0;
    while (!table_.sweep(generation_, terms_, now_, sweep_cursor_, 1)) {
    }
    sweep_cursor_ = 0;
    check_all();
    expect(table_.stats().keys == static_cast<std::int64_t>(model_.size()), "sweep: keys are the live ones");
  }

  // Changes the limiter; segments are converted when they are next asked, or by `convert_some`.
  void change(Policy policy) {
    convert_all();
    const Terms old = terms_;
    terms_ = {policy, old.version + 1, old.policy, now_};
    for (auto& entry : model_) entry.second.change(terms_.before, terms_.policy, now_);
    convert_cursor_ = 0;
    old_ = old;
    changed_ = true;
  }
  void convert_some(unsigned segments) { table_.convert(generation_, terms_, convert_cursor_, segments); }
  void convert_all() {
    Table::Cursor cursor = 0;
    while (!table_.convert(generation_, terms_, cursor, 1)) {
    }
  }

  // Terms that are out of date, or that the table can't know yet, are refused and change nothing.
  void ask_with_wrong_terms(KeyHash key) {
    convert_all();
    Terms future = terms_;
    future.version += 2;
    expect_refused(generation_, future, key, Status::stale);
    if (changed_) expect_refused(generation_, old_, key, Status::stale);
    check_all();
  }

  // Closes the table and opens it again, empty, as the same or another limiter's.
  void reopen(Policy policy, std::int64_t max_keys, std::uint32_t version, KeyHash key) {
    expect(table_.begin_close(), "close: was open");
    expect(!table_.begin_close(), "close: only once");
    expect_refused(generation_, terms_, key, Status::gone);
    Table::Cursor cursor = 0;
    expect(table_.sweep(generation_, terms_, now_, cursor, 1), "sweep: ends at a closed table");
    cursor = 0;
    expect(table_.convert(generation_, terms_, cursor, 1), "convert: ends at a closed table");
    while (!table_.close_some(1)) {
    }
    expect(table_.bytes() == 0 && table_.stats().memory_bytes == 0, "close: all memory is back");
    expect_refused(generation_, terms_, key, Status::gone);
    const auto before = generation_;
    model_.clear();
    terms_ = {policy, version, policy, now_};
    changed_ = false;
    generation_ = table_.open(max_keys, version);
    max_keys_ = max_keys;
    evicted_keys_ = evicted_tokens_ = most_lines_ = 0;
    sweep_cursor_ = convert_cursor_ = walk_cursor_ = 0;
    expect(generation_ != before, "open: a new generation");
    expect_refused(before, terms_, key, Status::gone);
    check_all();
  }

  // Every live key is visited exactly once, in the state that the model has, and no other.
  void check_all() {
    convert_all();
    std::unordered_set<std::uint64_t> seen;
    table_.for_each(terms_, now_, [&](KeyHash key, const Tat& state) {
      expect(seen.insert(key.v).second, "for_each: a key twice");
      const auto known = model_.find(key.v);
      expect(known != model_.end(), "for_each: a key that nobody inserted");
      expect(known->second.value() == state.value(), "for_each: state");
    });
    std::erase_if(model_, [&](const auto& entry) { return entry.second.value() <= now_; });
    expect(seen.size() == model_.size(), "for_each: a live key is missing");
    const char* const wrong = table_.validate();
    expect(wrong == nullptr, wrong);
    check_counts();
  }

 private:
  void expect(bool holds, const char* what) const {
    if (!holds) fail_(what);
  }

  Nanos expected_tat(KeyHash key) const {
    const auto known = model_.find(key.v);
    return known == model_.end() ? Nanos{0} : known->second.value();
  }

  void expect_refused(Table::Generation generation, const Terms& terms, KeyHash key, Status status) {
    Decision answer;
    Tat state;
    expect(table_.decide(generation, terms, key, {1}, now_, answer) == status, "refused: decide");
    expect(table_.decide(generation, terms, key, terms.policy.capacity, now_, answer) == status, "refused: decide all");
    expect(table_.peek(generation, terms, key, now_, state) == status, "refused: peek");
    expect(table_.reset(generation, terms, key, now_) == status, "refused: reset");
  }

  void check_counts() {
    const TableStats stats = table_.stats();
    most_lines_ = std::max(most_lines_, table_.bytes() / 64);
    expect(stats.max_keys == max_keys_, "stats: max_keys");
    expect(stats.memory_bytes >= table_.bytes() && table_.bytes() > 0, "stats: memory");
    // A new key whose lines are both empty has nobody to evict: each line can be the cause of that once.
    expect(stats.keys <= max_keys_ + most_lines_, "stats: more keys than max_keys allows");
    expect(stats.evicted_keys == evicted_keys_ && stats.evicted_tokens == evicted_tokens_, "stats: evictions");
  }

  void follow_evictions(KeyHash key, bool inserted) {
    const TableStats stats = table_.stats();
    const std::int64_t keys = stats.evicted_keys - evicted_keys_;
    // The counter wraps: eight evicted buckets of 2^60 tokens are more than it holds.
    const auto tokens = static_cast<std::int64_t>(static_cast<std::uint64_t>(stats.evicted_tokens) -
                                                  static_cast<std::uint64_t>(evicted_tokens_));
    evicted_keys_ = stats.evicted_keys;
    evicted_tokens_ = stats.evicted_tokens;
    most_lines_ = std::max(most_lines_, table_.bytes() / 64);
    if (keys == 0) return expect(tokens == 0, "evict: tokens without a key");
    expect(inserted && keys == 1, "evict: at most one, and only for a new key");
    expect(tokens >= 1, "evict: a dead key is taken, not evicted");
    std::unordered_set<std::uint64_t> kept;
    convert_all();
    table_.for_each(terms_, now_, [&](KeyHash visited, const Tat&) { kept.insert(visited.v); });
    expect(kept.contains(key.v), "evict: the new key is there");
    KeyHash lost{};
    for (const auto& [known, state] : model_)
      if (state.value() > now_ && !kept.contains(known)) {
        expect(lost.v == 0, "evict: a second key is missing");
        lost = {known};
      }
    expect(lost.v != 0, "evict: counted, but nobody is missing");
    expect(model_.at(lost.v).level(terms_.policy, now_).v == tokens, "evict: tokens");
    model_.erase(lost.v);
    check_all();
  }

  Arena arena_;
  Table table_{arena_};
  std::unordered_map<std::uint64_t, Tat> model_;
  Table::Generation generation_ = 0;
  Terms terms_;
  Terms old_{};
  bool changed_ = false;
  Nanos now_;
  Fail fail_;
  std::int64_t max_keys_;
  std::int64_t evicted_keys_ = 0;
  std::int64_t evicted_tokens_ = 0;
  std::int64_t most_lines_ = 0;
  Table::Cursor sweep_cursor_ = 0;
  Table::Cursor convert_cursor_ = 0;
  Table::Cursor walk_cursor_ = 0;
};

}  // namespace weir::test
