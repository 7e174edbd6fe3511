// counter: see counter.hpp.
#include "lab/thesis/counter.hpp"

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

bool CounterState::merge(Nanos limit, Nanos refilled, std::span<const std::uint32_t> counts) {
  const std::size_t both = std::min(counts_.size(), counts.size());
  std::uint32_t found = counts_.visit([&](auto* mine) {
    std::uint32_t more = 0;
    for (std::size_t i = 0; i < both; ++i) more |= counts[i] > mine[i] ? 1U : 0U;
    return more;
  });
  for (std::size_t i = both; i < counts.size(); ++i) found |= counts[i];
  // Most frames bring no news: then nothing is written.
  if (found != 0) {
    counts_.grow(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > counts_[i]) counts_.set(i, counts[i]);
    }
  }
  if (limit <= limit_) return found != 0;
  limit_ = limit;
  refilled_ = refilled;
  return true;
}

}  // namespace weir::thesis
