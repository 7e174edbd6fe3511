// counter: see counter.hpp.
#include "thesis/counter.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>

namespace weir::thesis {
namespace {

// tokens * each, at most kTimeMax: counts from a broken node must not overflow. REQUIRES: tokens >= 0.
Nanos at_most(Tokens tokens, Nanos each) noexcept {
  std::int64_t product = 0;
  return __builtin_mul_overflow(tokens.v, each.v, &product) ? kTimeMax : std::min(Nanos{product}, kTimeMax);
}

}  // namespace

Tokens CounterState::consumed() const noexcept {
  return {std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0})};
}

void CounterState::refill(const Policy& policy, Nanos now, Refill how) noexcept {
  if (now <= refilled_) return;
  const Nanos elapsed = now - refilled_;
  const Tokens tokens{elapsed.v / policy.interval.v};
  const Nanos whole = tokens * policy.interval;
  switch (how) {
    case Refill::whole: {
      limit_ = std::min(limit_ + whole, kTimeMax);
      refilled_ = refilled_ + whole;
      const Nanos full = at_most(consumed() + policy.capacity, policy.interval);
      if (limit_ >= full) {
        limit_ = full;
        refilled_ = now;
      }
      return;
    }
    case Refill::fractional:
      limit_ = std::min(limit_ + std::min(elapsed, policy.span()), kTimeMax);
      refilled_ = now;
      return;
    case Refill::integer:
      if (tokens.v == 0) return;
      limit_ = std::min(limit_ + std::min(whole, policy.span()), kTimeMax);
      refilled_ = now;
      return;
  }
}

bool CounterState::consume(const Policy& policy, Nanos now, Tokens hits, std::size_t node, Refill how) {
  assert(hits.v >= 1);
  if (hits > policy.capacity) return false;
  if (limit_.v == 0) {
    limit_ = policy.span();
    refilled_ = now;
  } else {
    refill(policy, now, how);
  }
  // All but the last token must fit whole, of the last one a part will do: where the limit is in whole tokens that is
  // consumed + hits <= limit, and for one token it is what the listing says.
  if (at_most(consumed() + hits - Tokens{1}, policy.interval) >= limit_) return false;
  grow(node + 1);
  const std::int64_t most = std::numeric_limits<std::uint32_t>::max();
  counts_[node] = static_cast<std::uint32_t>(std::min(counts_[node] + hits.v, most));
  return true;
}

bool CounterState::merge(const CounterState& other) {
  const std::size_t both = std::min(counts_.size(), other.counts_.size());
  const std::uint32_t* const mine = counts_.data();
  const std::uint32_t* const theirs = other.counts_.data();
  std::uint32_t news = 0;
  for (std::size_t i = 0; i < both; ++i) news |= theirs[i] > mine[i] ? 1U : 0U;
  for (std::size_t i = both; i < other.counts_.size(); ++i) news |= theirs[i];
  // Most frames bring no news: then nothing is written.
  if (news != 0) {
    grow(other.counts_.size());
    for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], theirs[i]);
  }
  if (other.limit_ > limit_) {
    limit_ = other.limit_;
    refilled_ = other.refilled_;
    news = 1;
  }
  return news != 0;
}

void CounterState::grow(std::size_t nodes) {
  if (nodes <= counts_.size()) return;
  counts_.reserve(nodes);
  counts_.resize(nodes);
}

void CounterState::reset(Nanos limit, Nanos refilled, std::size_t nodes) {
  limit_ = limit;
  refilled_ = refilled;
  counts_.assign(nodes, 0);
}

}  // namespace weir::thesis
