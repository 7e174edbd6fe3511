#include "queue/packed_queue.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <type_traits>

namespace weir::thesis {

static_assert(std::endian::native == std::endian::little, "packed queues are little-endian on every node");

namespace {

__extension__ using Int128 = __int128;

constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kHeadBytes = 28;
constexpr std::size_t kRunBytes = 12;
// Births are read and written four bytes at a time, whatever their width: the runs behind them are room enough.
static_assert(kRunBytes >= 3);

template <class T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
template <class T>
void store(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof(value));
}

// Bytes for an offset from the base, at least one.
unsigned width_of(std::uint32_t offset) noexcept {
  return std::max(1U, (static_cast<unsigned>(std::bit_width(offset)) + 7) / 8);
}
std::uint32_t mask_of(unsigned width) noexcept { return UINT32_MAX >> (32 - 8 * width); }

// visit(the width as a constant): loops that know it are several times faster.
template <class Visit>
auto with_width(unsigned width, Visit visit) {
  switch (width) {
    case 1:
      return visit(std::integral_constant<unsigned, 1>{});
    case 2:
      return visit(std::integral_constant<unsigned, 2>{});
    case 3:
      return visit(std::integral_constant<unsigned, 3>{});
    default:
      return visit(std::integral_constant<unsigned, 4>{});
  }
}

// The offset at an address: whole words where there are such, so that several are read at once.
template <unsigned kWidth>
using Offset =
    std::conditional_t<kWidth == 1, std::uint8_t, std::conditional_t<kWidth == 2, std::uint16_t, std::uint32_t>>;
template <unsigned kWidth>
std::uint32_t offset_at(const std::byte* at) noexcept {
  return load<Offset<kWidth>>(at) & mask_of(kWidth);
}

template <unsigned kWidth>
void read_births(const std::byte* at, std::uint32_t shift, std::span<std::uint32_t> births) noexcept {
  for (std::size_t i = 0; i < births.size(); ++i) births[i] = shift + offset_at<kWidth>(at + i * kWidth);
}

template <unsigned kWidth>
void write_births(std::byte* at, std::uint32_t first, Births births) noexcept {
  std::size_t i = 0;
  if constexpr (kWidth == 3) {
    // Four at once: stores that overlap wait for each other.
    for (; i + 4 <= births.size(); i += 4) {
      const auto offset = [&](std::size_t n) { return std::uint64_t{births[i + n] - first}; };
      store(at + i * kWidth, offset(0) | offset(1) << 24 | offset(2) << 48);
      store(at + i * kWidth + 8, static_cast<std::uint32_t>(offset(2) >> 16 | offset(3) << 8));
    }
  }
  for (; i < births.size(); ++i) store(at + i * kWidth, static_cast<Offset<kWidth>>(births[i] - first));
}

// Runs where they lie packed.
struct PackedRuns {
  const std::byte* at;
  std::uint32_t size;

  Run operator[](std::uint32_t run) const noexcept {
    const std::byte* const here = at + std::size_t{run} * kRunBytes;
    return {load<std::uint32_t>(here), load<std::int64_t>(here + 4)};
  }
};

bool ascend(Births births) noexcept {
  unsigned descents = 0;
  for (std::size_t i = 1; i < births.size(); ++i) descents |= births[i - 1] > births[i];
  return descents == 0;
}

}  // namespace

std::optional<QueueHead> QueueHead::read(Bytes bytes) noexcept {
  if (bytes.size() < kHeadBytes) return std::nullopt;
  const std::byte* const at = bytes.data();
  const QueueHead head{.births = load<std::uint32_t>(at + 4),
                       .runs = load<std::uint32_t>(at + 8),
                       .width = load<std::uint8_t>(at + 1),
                       .base = {load<std::int64_t>(at + 12)},
                       .interval = {load<std::int64_t>(at + 20)}};
  const bool counts = head.births <= kMaxBirths && head.runs <= head.births && (head.runs == 0) == (head.births == 0);
  const bool ranges = head.width >= 1 && head.width <= 4 && head.base.v >= 0 && head.base <= kMaxBirth &&
                      head.interval.v >= 1 && head.interval <= kSpanMax;
  const bool empty = head.births > 0 || (head.base.v == 0 && head.width == 1);
  if (load<std::uint8_t>(at) != kVersion || load<std::uint16_t>(at + 2) != 0 || !counts || !ranges || !empty)
    return std::nullopt;
  const std::size_t size = kHeadBytes + std::size_t{head.births} * head.width + std::size_t{head.runs} * kRunBytes;
  if (bytes.size() != size) return std::nullopt;
  return head;
}

std::uint32_t Queue::run_end(std::size_t run) const noexcept {
  return run + 1 < runs_.size() ? runs_[run + 1].index : size();
}

std::int64_t Queue::last_death() const noexcept {
  return runs_.back().death + (size() - 1 - runs_.back().index) * interval_.v;
}

std::size_t Queue::first_run(std::uint32_t from) const noexcept {
  const auto after =
      std::upper_bound(runs_.begin(), runs_.end(), from, [](std::uint32_t i, const Run& run) { return i < run.index; });
  return static_cast<std::size_t>(after - runs_.begin()) - 1;
}

QueueError Queue::push(const Element& element) {
  const auto [birth, death] = element;
  if (size() == kMaxBirths) return QueueError::too_many;
  if (birth.v < 0 || birth > kMaxBirth || death.v < 0 || death > kTimeMax) return QueueError::too_late;
  if (empty()) {
    base_ = birth;
    runs_.push_back({0, death.v});
  } else {
    const std::int64_t next = last_death() + interval_.v;
    if (birth.v < base_.v + births_.back() || death.v < next) return QueueError::out_of_order;
    if (birth.v - base_.v > kMaxSpan.v) return QueueError::too_long;
    if (death.v > next) runs_.push_back({size(), death.v});
  }
  births_.push_back(static_cast<std::uint32_t>(birth.v - base_.v));
  return QueueError::none;
}

QueueError Queue::append(Millis now) {
  if (now.v < 0 || now > kMaxBirth) return QueueError::too_late;
  Element element{now, now.nanos()};
  if (!empty()) {
    element.birth.v = std::max(now.v, base_.v + births_.back() + 1);
    element.death.v = std::max(element.birth.nanos().v, last_death());
  }
  element.death.v += interval_.v;
  return push(element);
}

std::uint32_t Queue::dead(Nanos now) const noexcept {
  // Deaths ascend: the last run that has begun to die is the only one that may be alive in part.
  const auto alive = std::upper_bound(runs_.begin(), runs_.end(), now.v,
                                      [](std::int64_t time, const Run& run) { return time < run.death; });
  if (alive == runs_.begin()) return 0;
  const auto run = static_cast<std::size_t>(alive - runs_.begin()) - 1;
  const std::int64_t dead = (now.v - runs_[run].death) / interval_.v + 1;
  return runs_[run].index + static_cast<std::uint32_t>(std::min<std::int64_t>(dead, run_end(run) - runs_[run].index));
}

namespace {

// Births as they are from `base` on, which isn't after the queue's own. Returns whether they are well-formed.
bool decode_births(const QueueHead& head, Bytes bytes, Millis base, std::span<std::uint32_t> births) noexcept {
  if (births.empty()) return true;
  const auto shift = static_cast<std::uint32_t>(head.base.v - base.v);
  with_width(head.width, [&](auto width) { read_births<width()>(bytes.data() + kHeadBytes, shift, births); });
  const std::uint32_t latest = births.back() - shift;
  const bool canonical = births.front() == shift && width_of(latest) == head.width;
  return canonical && head.base.v + latest <= kMaxBirth.v && ascend(births);
}

bool check_runs(const QueueHead& head, PackedRuns runs) noexcept {
  Int128 next = -1;  // the least death that a run's first may be above
  std::uint32_t begin = 0;
  for (std::uint32_t r = 0; r < head.runs; ++r) {
    const Run run = runs[r];
    const bool begins = r == 0 ? run.index == 0 : run.index > begin && run.index < head.births;
    if (r > 0) next += Int128{run.index - begin} * head.interval.v;
    if (!begins || run.death <= next || run.death > kTimeMax.v) return false;
    next = run.death;
    begin = run.index;
  }
  return next + (Int128{head.births} - 1 - begin) * head.interval.v <= kTimeMax.v;
}

// Of the `n`th birth from the last. REQUIRES: n < head.births.
std::uint32_t offset_from_last(const QueueHead& head, Bytes bytes, std::uint32_t n) noexcept {
  const std::size_t index = head.births - 1 - n;
  return load<std::uint32_t>(bytes.data() + kHeadBytes + index * head.width) & mask_of(head.width);
}

PackedRuns runs_of(const QueueHead& head, Bytes bytes) noexcept {
  return {bytes.data() + kHeadBytes + std::size_t{head.births} * head.width, head.runs};
}

}  // namespace

QueueError Queue::unpack(Bytes bytes) {
  const std::optional<QueueHead> head = QueueHead::read(bytes);
  if (!head) return QueueError::malformed;
  interval_ = head->interval;
  base_ = head->base;
  births_.resize(head->births);
  runs_.resize(head->runs);
  const PackedRuns runs = runs_of(*head, bytes);
  for (std::uint32_t r = 0; r < head->runs; ++r) runs_[r] = runs[r];
  const bool good = decode_births(*head, bytes, base_, births_) && check_runs(*head, runs);
  return good ? QueueError::none : QueueError::malformed;
}

Slice Queue::slice(std::uint32_t from) const noexcept {
  const std::size_t run = from == size() ? runs_.size() : first_run(from);
  return {interval_, base_, Births(births_).subspan(from), {}, std::span(runs_).subspan(run), from};
}

Slice::Slice(Nanos interval, Millis base, Births births, std::span<const Range> without, std::span<const Run> runs,
             std::uint32_t from) noexcept
    : interval_(interval), births_(births), without_(without), runs_(runs), from_(from) {
  std::size_t last = 0;
  each_part(births_.size(), without_, [&](std::size_t begin, std::size_t end) {
    if (count_ == 0) first_ = births_[begin];
    last = end - 1;
    count_ += static_cast<std::uint32_t>(end - begin);
  });
  if (count_ == 0) return;
  base_.v = base.v + first_;
  width_ = width_of(births_[last] - first_);
}

std::size_t Slice::packed_size() const noexcept {
  return kHeadBytes + std::size_t{count_} * width_ + runs_.size() * kRunBytes;
}

void Slice::pack(std::byte* out) const noexcept {
  store(out, kVersion);
  store(out + 1, static_cast<std::uint8_t>(width_));
  store(out + 2, std::uint16_t{0});
  store(out + 4, count_);
  store(out + 8, static_cast<std::uint32_t>(runs_.size()));
  store(out + 12, base_.v);
  store(out + 20, interval_.v);
  out += kHeadBytes;
  with_width(width_, [&](auto width) {
    each_part(births_.size(), without_, [&](std::size_t begin, std::size_t end) {
      write_births<width()>(out, first_, births_.subspan(begin, end - begin));
      out += (end - begin) * width();
    });
  });
  for (const Run& run : runs_) {
    // The first may have begun before `from_`.
    const std::uint32_t index = std::max(run.index, from_);
    store(out, index - from_);
    store(out + 4, run.death + (index - run.index) * interval_.v);
    out += kRunBytes;
  }
}

namespace {

// The first place from `at` on whose birth isn't below `key`: found soon if it is near. REQUIRES: those before are
// below.
std::size_t seek(Births births, std::size_t at, std::uint64_t key) noexcept {
  // Without a jump that depends on the births, where it is likely to be.
  constexpr std::size_t kNear = 4;
  if (at + kNear <= births.size()) {
    std::size_t below = 0;
    for (std::size_t i = 0; i < kNear; ++i) below += births[at + i] < key;
    at += below;
    if (below < kNear) return at;
  }
  std::size_t step = 1;
  for (; at + step <= births.size() && births[at + step - 1] < key; step *= 2) at += step;
  const auto* const end = births.data() + std::min(births.size(), at + step - 1);
  return static_cast<std::size_t>(std::lower_bound(births.data() + at, end, key) - births.data());
}

// Each step waits for the outcome of the one before; lanes, each with a part of the births, wait at the same time.
constexpr std::size_t kLanes = 4;
// Below this many births, dividing the work costs more than it saves.
constexpr std::size_t kFewBirths = 96;
// So many more than its share a lane may have.
constexpr std::size_t kSlack = 4;

// What follows the births of both sides, so that a step needs not ask whether there is one left. Births that are as
// late are left out of the lanes.
constexpr std::uint32_t kNoBirth = UINT32_MAX;
static_assert(kMaxSpan.v <= kNoBirth);
// Steps that may go beyond the end: half of a lane's births, if they come in pairs (of all, if they are few), and what
// the last lane has less than the longest.
constexpr std::size_t padding(std::size_t births) noexcept { return births / kLanes / 2 + kFewBirths / 2; }
static_assert(padding(0) > kLanes * kSlack + 2 * kLanes && padding(kFewBirths - 1) > (kFewBirths - 1) / 2);

struct Split {
  std::size_t i, j;
};
// Where the births after the first `count` of both begin, or some earlier: equal ones stay together.
Split split(Births a, Births b, std::size_t count) noexcept {
  std::size_t low = count - std::min(count, b.size()), high = std::min(count, a.size());
  while (low < high) {
    const std::size_t i = (low + high) / 2;
    if (a[i] < b[count - i - 1]) {
      low = i + 1;
    } else {
      high = i;
    }
  }
  const std::uint32_t birth = std::min(a.data()[low], b.data()[count - low]);
  const auto below = [birth](const std::uint32_t* begin, std::size_t end) {
    return static_cast<std::size_t>(std::lower_bound(begin, begin + end, birth) - begin);
  };
  return {below(a.data(), low), below(b.data(), count - low)};
}

// `steps` births into each of the lanes, which begin `steps` apart. No jump depends on the births, which nobody could
// predict. (By itself, or the registers don't suffice.)
template <bool kOnce, std::size_t kCount>
[[gnu::noinline]] void run_lanes(const std::uint32_t* a, const std::uint32_t* b, std::array<Split, kCount> at,
                                 std::uint32_t* out, std::size_t steps) noexcept {
  for (std::size_t n = 0; n < steps; ++n) {
    for (std::size_t k = 0; k < kCount; ++k) {
      const std::uint32_t x = a[at[k].i], y = b[at[k].j];
      out[k * steps + n] = x < y ? x : y;
      at[k].i += kOnce ? x <= y : x < y;
      at[k].j += y <= x;
    }
  }
}

// The births of both in order, for sides of very different length, as a state and a delta state are.
template <bool kOnce>
std::uint32_t* insert_births(Births many, Births few, std::uint32_t* out) noexcept {
  std::size_t at = 0;
  for (const std::uint32_t birth : few) {
    const std::size_t to = seek(many, at, birth);
    out = std::copy(many.data() + at, many.data() + to, out);
    *out++ = birth;
    at = to + (kOnce && to < many.size() && many[to] == birth);
  }
  return std::copy(many.data() + at, many.data() + many.size(), out);
}

// The same for sides of alike length.
template <bool kOnce>
std::uint32_t* mix_births(Births a, Births b, std::uint32_t* out) noexcept {
  const std::size_t size = a.size() + b.size();
  if (size < kFewBirths) {
    run_lanes<kOnce, 1>(a.data(), b.data(), {}, out, size);
    return std::lower_bound(out, out + size, kNoBirth);
  }
  std::array<Split, kLanes + 1> at{};
  std::size_t steps = 0;
  for (std::size_t k = 1; k <= kLanes; ++k) {
    at[k] = k < kLanes ? split(a, b, size * k / kLanes) : Split{a.size(), b.size()};
    steps = std::max(steps, at[k].i + at[k].j - at[k - 1].i - at[k - 1].j);
  }
  if (steps > size / kLanes + kSlack) return insert_births<kOnce>(a, b, out);  // many are equal
  run_lanes<kOnce, kLanes>(a.data(), b.data(), {at[0], at[1], at[2], at[3]}, out, steps);
  // Births taken once, and lanes of unlike length, went on with births of the next lane.
  std::uint32_t* end = out;
  for (std::size_t k = 0; k < kLanes; ++k) {
    std::uint32_t* const begin = out + k * steps;
    const std::uint32_t next = std::min(a.data()[at[k + 1].i], b.data()[at[k + 1].j]);
    std::uint32_t* const stop = std::lower_bound(begin, begin + steps, next);
    end = end == begin ? stop : std::copy(begin, stop, end);
  }
  return end;
}

constexpr std::size_t kUnlike = 8;  // times as long

template <bool kOnce>
std::uint32_t* merge_births(Births a, Births b, std::uint32_t* out) noexcept {
  if (a.size() < b.size()) std::swap(a, b);
  const auto cut_last = [](Births& births) {
    std::size_t count = 0;
    for (; !births.empty() && births.back() == kNoBirth; ++count) births = births.first(births.size() - 1);
    return count;
  };
  const std::size_t m = cut_last(a), n = cut_last(b);
  out = a.size() > kUnlike * b.size() ? insert_births<kOnce>(a, b, out) : mix_births<kOnce>(a, b, out);
  return std::fill_n(out, kOnce ? std::max(m, n) : m + n, kNoBirth);
}

// The deaths of merged births, and which elements are new. Deaths are looked at where a run of an input begins, only
// there: inside it, an element asks for no more than T after the one before it in its own queue, and in the merged
// queue that one lies at the same place or further back, with a death at least as late.
//
//   local   1---------------- 2-----      runs
//   other         1---                    its elements go between those of local
//   merged  1---------------  2-----      a run begins where an input's run begins, if its own death is later than
//   updates      -----------              what the element before it gives; and an element of local keeps its death
//                                         until something new comes before it in its run
class Merger {
 public:
  // Goes through the runs of an input. Of equal births, the other's come first, or both start together if they are
  // taken once; so an element's place is as far from the first (or the last) of its equals as in its own queue.
  struct Side {
    Births births;
    PackedRuns runs;
    bool from_last = false;
    std::uint32_t run = 0;
    std::size_t own = 0, all = 0;  // where the equals begin (end), in its queue and in the merged one
    std::size_t place = 0;         // of the run's first element in the merged queue, whose size it is at the end
    Run now{};

    void find(Births merged) noexcept {
      place = merged.size();
      if (run == runs.size) return;
      now = runs[run++];
      const std::uint64_t key = std::uint64_t{births[now.index]} + from_last;
      own = seek(births, own, key);
      all = seek(merged, all, key);
      place = all + now.index - own;
    }
  };

  Merger(Births births, std::int64_t interval, bool once) : births_(births), interval_(interval), once_(once) {}

  void settle(Side local, Side other, RawVector<Run>& runs, std::pmr::vector<Range>& kept);
  void begin_updates(std::span<const Run> runs, std::span<const Range> kept, RawVector<Run>& updates) const;

 private:
  Int128 death(const Run& run, std::size_t index) const noexcept {
    return run.death + Int128{index - run.index} * interval_;
  }
  std::size_t first_new(std::size_t place, Births local) const noexcept;

  const Births births_;
  const std::int64_t interval_;
  const bool once_;
};

// Where the merged queue is other than the local one; from `place` on, before it, they are alike.
std::size_t Merger::first_new(std::size_t place, Births local) const noexcept {
  const std::uint32_t *const from = births_.data() + place, *const end = births_.data() + births_.size();
  const auto* const at = std::mismatch(from, end, local.begin(), local.end()).first;
  return static_cast<std::size_t>((once_ || at == end ? at : std::lower_bound(from, at, *at)) - births_.data());
}

void Merger::settle(Side local, Side other, RawVector<Run>& runs, std::pmr::vector<Range>& kept) {
  std::size_t fresh = 0;  // the first new element at or after those that are kept
  bool keeps = false;     // the elements that come have the deaths that they had
  local.find(births_);
  other.find(births_);
  while (true) {
    const std::size_t place = std::min(local.place, other.place);
    const bool mine = local.place == place, theirs = other.place == place;
    if (place == births_.size()) break;
    const std::int64_t own = mine ? local.now.death : -1, others = theirs ? other.now.death : -1;
    const std::int64_t later = std::max(own, others);
    const Int128 follows = runs.empty() ? Int128{-1} : death(runs.back(), place);
    if (later > follows) runs.push_back({static_cast<std::uint32_t>(place), later});
    // Has the element the death that it had?
    const bool same = mine ? own == later && own >= follows : later <= follows;
    if (keeps && (place >= fresh || !same)) {
      kept.back().end = std::min(place, fresh);
      keeps = false;
    }
    if (mine && same && !keeps) {
      kept.push_back({place, place});
      keeps = true;
      if (place >= fresh) fresh = first_new(place, local.births.subspan(local.now.index));
    }
    if (mine) local.find(births_);
    if (theirs) other.find(births_);
  }
  if (keeps) kept.back().end = fresh;
}

// The runs of what is not kept. An element that follows a gap begins one, unless its death happens to be T after the
// last.
void Merger::begin_updates(std::span<const Run> runs, std::span<const Range> kept, RawVector<Run>& updates) const {
  std::size_t run = 0, size = 0;
  each_part(births_.size(), kept, [&](std::size_t begin, std::size_t end) {
    while (run + 1 < runs.size() && runs[run + 1].index <= begin) ++run;
    const auto first = static_cast<std::int64_t>(death(runs[run], begin));
    if (size == 0 || first != death(updates.back(), size)) updates.push_back({static_cast<std::uint32_t>(size), first});
    for (; run + 1 < runs.size() && runs[run + 1].index < end; ++run)
      updates.push_back({static_cast<std::uint32_t>(runs[run + 1].index - begin + size), runs[run + 1].death});
    size += end - begin;
  });
}

}  // namespace

QueueError Merge::run(Bytes local, Bytes other, Into into) {
  const auto ours = QueueHead::read(local), theirs = QueueHead::read(other);
  if (!ours || !theirs) return QueueError::malformed;
  interval_ = ours->interval;
  base_ = ours->births == 0 || (theirs->births > 0 && theirs->base < ours->base) ? theirs->base : ours->base;
  const auto after_base = [&](const QueueHead& head, Bytes bytes) {
    return head.births == 0 ? 0 : head.base.v - base_.v + offset_from_last(head, bytes, 0);
  };
  const bool too_long = std::max(after_base(*ours, local), after_base(*theirs, other)) > kMaxSpan.v;
  // Births as they are from the common base, if they can be, and padding.
  const std::size_t most = std::size_t{ours->births} + theirs->births, pad = padding(most);
  inputs_.resize(most + 2 * pad);
  const std::span<std::uint32_t> a(inputs_.data(), ours->births), b(a.data() + a.size() + pad, theirs->births);
  std::fill_n(a.data() + a.size(), pad, kNoBirth);
  std::fill_n(b.data() + b.size(), pad, kNoBirth);
  const PackedRuns our_runs = runs_of(*ours, local), their_runs = runs_of(*theirs, other);
  if (!decode_births(*ours, local, too_long ? ours->base : base_, a) ||
      !decode_births(*theirs, other, too_long ? theirs->base : base_, b) || !check_runs(*ours, our_runs) ||
      !check_runs(*theirs, their_runs))
    return QueueError::malformed;
  if (ours->interval != theirs->interval) return QueueError::unlike_interval;
  if (too_long) return QueueError::too_long;

  const bool once = into == Into::local_state;
  births_.resize(most + kLanes * kSlack);
  std::uint32_t* const out = births_.data();
  births_.resize(static_cast<std::size_t>((once ? merge_births<true> : merge_births<false>)(a, b, out) - out));
  if (births_.size() > kMaxBirths) return QueueError::too_many;
  if (births_.empty()) return QueueError::none;
  runs_.reserve(std::size_t{ours->runs} + theirs->runs);
  Merger merger(births_, interval_.v, once);
  merger.settle({a, our_runs, !once}, {b, their_runs}, runs_, kept_);
  if (runs_.back().death + Int128{births_.size() - 1 - runs_.back().index} * interval_.v > kTimeMax.v)
    return QueueError::too_late;
  merger.begin_updates(runs_, kept_, update_runs_);
  return QueueError::none;
}

std::optional<bool> frequent(Bytes packed, std::uint32_t window, Millis threshold) noexcept {
  assert(window >= 1 && threshold.v >= 0 && threshold <= kMaxSpan);
  const std::optional<QueueHead> head = QueueHead::read(packed);
  if (!head) return std::nullopt;
  if (head->births < window) return false;
  const std::int64_t latest = offset_from_last(*head, packed, 0);
  const std::int64_t earliest = offset_from_last(*head, packed, window - 1);
  return latest - earliest < threshold.v * window;
}

}  // namespace weir::thesis
