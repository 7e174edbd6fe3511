// counter: see counter.hpp.
#include "thesis/counter.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>
#include <numeric>
#include <utility>

namespace weir::thesis {
namespace {

// tokens * each, at most kTimeMax: counts from a broken node must not overflow. REQUIRES: tokens >= 0.
Nanos at_most(Tokens tokens, Nanos each) noexcept {
  std::int64_t product = 0;
  return __builtin_mul_overflow(tokens.v, each.v, &product) ? kTimeMax : std::min(Nanos{product}, kTimeMax);
}

}  // namespace

static_assert(std::endian::native == std::endian::little, "a number's first bytes are its low ones");

void Counts::widen(std::uint32_t value) {
  const std::uint32_t width = value <= UINT8_MAX ? 1 : value <= UINT16_MAX ? 2 : 4;
  if (width <= width_) return;
  std::vector<std::byte> wide(size() * width);
  for (std::size_t i = 0; i < size(); ++i) {
    const std::uint32_t count = (*this)[i];
    std::memcpy(&wide[i * width], &count, width);
  }
  bytes_ = std::move(wide);
  width_ = width;
}

void Counts::grow(std::size_t size) {
  if (size * width_ <= bytes_.size()) return;
  bytes_.reserve(size * width_);
  bytes_.resize(size * width_);
}

bool operator==(const Counts& a, const Counts& b) noexcept {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

Tokens CounterState::consumed() const noexcept {
  return {counts_.visit([&](auto* first) { return std::accumulate(first, first + counts_.size(), std::int64_t{0}); })};
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
  counts_.grow(node + 1);
  const std::int64_t most = std::numeric_limits<std::uint32_t>::max();
  counts_.set(node, static_cast<std::uint32_t>(std::min(counts_[node] + hits.v, most)));
  return true;
}

bool CounterState::merge(const CounterState& other) {
  const std::size_t both = std::min(counts_.size(), other.counts_.size());
  const std::size_t theirs = other.counts_.size();
  bool news = counts_.visit([&](auto* mine) {
    return other.counts_.visit([&](auto* of) {
      std::uint32_t found = 0;
      for (std::size_t i = 0; i < both; ++i) found |= of[i] > mine[i] ? 1U : 0U;
      for (std::size_t i = both; i < theirs; ++i) found |= of[i];
      return found != 0;
    });
  });
  // Most frames bring no news: then nothing is written.
  if (news) {
    counts_.grow(theirs);
    for (std::size_t i = 0; i < theirs; ++i) {
      const std::uint32_t count = other.counts_[i];
      if (count > counts_[i]) counts_.set(i, count);
    }
  }
  if (other.limit_ > limit_) {
    limit_ = other.limit_;
    refilled_ = other.refilled_;
    news = true;
  }
  return news;
}

void CounterState::reset(Nanos limit, Nanos refilled, std::size_t nodes) {
  limit_ = limit;
  refilled_ = refilled;
  counts_.clear(nodes);
}

}  // namespace weir::thesis
