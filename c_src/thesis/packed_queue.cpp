#include "packed_queue.hpp"

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
unsigned width_of(std::int64_t offset) noexcept {
  return std::max(1U, (static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(offset))) + 7) / 8);
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

// Returns whether they ascend.
template <unsigned kWidth>
bool read_births(const std::byte* at, std::int64_t base, std::span<std::int64_t> births) noexcept {
  for (std::size_t i = 0; i < births.size(); ++i) births[i] = base + offset_at<kWidth>(at + i * kWidth);
  unsigned descents = 0;
  for (std::size_t i = 1; i < births.size(); ++i)
    descents |= offset_at<kWidth>(at + (i - 1) * kWidth) > offset_at<kWidth>(at + i * kWidth);
  return descents == 0;
}

template <unsigned kWidth>
void write_births(std::byte* at, std::int64_t base, std::span<const std::int64_t> births) noexcept {
  for (std::size_t i = 0; i < births.size(); ++i) store(at + i * kWidth, static_cast<Offset<kWidth>>(births[i] - base));
}

}  // namespace

std::optional<QueueHead> QueueHead::read(std::span<const std::byte> bytes) noexcept {
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
  const Run& run = runs_.back();
  return run.death + (size() - 1 - run.index) * interval_.v;
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
    runs_.push_back({0, death.v});
  } else {
    const std::int64_t next = last_death() + interval_.v;
    if (birth.v < births_.back() || death.v < next) return QueueError::out_of_order;
    if (birth.v - births_.front() > kMaxSpan.v) return QueueError::too_long;
    if (death.v > next) runs_.push_back({size(), death.v});
  }
  births_.push_back(birth.v);
  return QueueError::none;
}

QueueError Queue::append(Millis now) {
  if (now.v < 0 || now > kMaxBirth) return QueueError::too_late;
  Element element{now, now.nanos()};
  if (!empty()) {
    element.birth.v = std::max(now.v, births_.back() + 1);
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

QueueError Queue::unpack(std::span<const std::byte> bytes) {
  const std::optional<QueueHead> head = QueueHead::read(bytes);
  if (!head) return QueueError::malformed;
  interval_ = head->interval;
  births_.clear();
  runs_.clear();
  if (head->births == 0) return QueueError::none;
  const std::byte* const births = bytes.data() + kHeadBytes;
  if (const QueueError error = decode_births(*head, births); error != QueueError::none) return error;
  return decode_runs(*head, births + std::size_t{head->births} * head->width);
}

QueueError Queue::decode_births(const QueueHead& head, const std::byte* at) {
  births_.resize(head.births);
  const bool ascending =
      with_width(head.width, [&](auto width) { return read_births<width()>(at, head.base.v, births_); });
  const bool canonical = births_.front() == head.base.v && width_of(births_.back() - head.base.v) == head.width;
  return ascending && canonical && births_.back() <= kMaxBirth.v ? QueueError::none : QueueError::malformed;
}

QueueError Queue::decode_runs(const QueueHead& head, const std::byte* at) {
  runs_.resize(head.runs);
  Int128 next = -1;  // the least death that a run's first may be above
  std::uint32_t begin = 0;
  for (std::size_t r = 0; r < runs_.size(); ++r, at += kRunBytes) {
    const Run run{load<std::uint32_t>(at), load<std::int64_t>(at + 4)};
    const bool begins = r == 0 ? run.index == 0 : run.index > begin && run.index < head.births;
    if (r > 0) next += Int128{run.index - begin} * interval_.v;
    if (!begins || run.death <= next || run.death > kTimeMax.v) return QueueError::malformed;
    next = run.death;
    begin = run.index;
    runs_[r] = run;
  }
  const Int128 last = next + Int128{head.births - 1 - begin} * interval_.v;
  return last <= kTimeMax.v ? QueueError::none : QueueError::malformed;
}

std::size_t Queue::packed_size(std::uint32_t from) const noexcept {
  if (from == size()) return kHeadBytes;
  const std::size_t runs = runs_.size() - first_run(from);
  return kHeadBytes + (size() - from) * width_of(births_.back() - births_[from]) + runs * kRunBytes;
}

void Queue::pack(std::byte* out, std::uint32_t from) const noexcept {
  const std::uint32_t count = size() - from;
  const std::int64_t base = count == 0 ? 0 : births_[from];
  const std::size_t run = count == 0 ? runs_.size() : first_run(from);
  const unsigned width = count == 0 ? 1 : width_of(births_.back() - base);
  store(out, kVersion);
  store(out + 1, static_cast<std::uint8_t>(width));
  store(out + 2, std::uint16_t{0});
  store(out + 4, count);
  store(out + 8, static_cast<std::uint32_t>(runs_.size() - run));
  store(out + 12, base);
  store(out + 20, interval_.v);
  out += kHeadBytes;
  with_width(width, [&](auto bytes) { write_births<bytes()>(out, base, std::span(births_).subspan(from)); });
  out += std::size_t{count} * width;
  for (std::size_t r = run; r < runs_.size(); ++r, out += kRunBytes) {
    // The first run may have begun before `from`.
    const std::uint32_t index = std::max(runs_[r].index, from);
    store(out, index - from);
    store(out + 4, runs_[r].death + (index - runs_[r].index) * interval_.v);
  }
}

// A merge of two ascending ranges, without a jump that depends on the births, which nobody could predict. What remains
// is to wait for each step's outcome, and several lanes, each with its part of the ranges, wait at the same time.
template <bool kOnce>
struct Lane {
  const std::int64_t *a, *a_stop, *b, *b_stop;
  std::int64_t* out;

  // Steps that are possible for sure.
  std::ptrdiff_t room() const noexcept { return std::min(a_stop - a, b_stop - b); }
  void step() noexcept {
    const std::int64_t x = *a, y = *b;
    *out++ = x < y ? x : y;
    // The sign of a difference is ready sooner than a comparison's outcome; births fit into 53 bits.
    a += kOnce ? 1 + ((y - x) >> 63) : -((x - y) >> 63);
    b += 1 + ((x - y) >> 63);
  }
  void to_a_stop() noexcept {
    while (a != a_stop && b != b_stop) step();
  }
  void to_the_end() noexcept {
    to_a_stop();
    out = std::copy(b, b_stop, std::copy(a, a_stop, out));
  }
};

// The same for sides of very different length, as a state and a delta state are: then jumps are foreseen, mostly.
template <bool kOnce>
Lane<kOnce> insert_births(Lane<kOnce> all) noexcept {
  while (all.a != all.a_stop && all.b != all.b_stop) {
    const std::int64_t x = *all.a, y = *all.b;
    if (x < y) {
      *all.out++ = x;
      ++all.a;
    } else {
      *all.out++ = y;
      ++all.b;
      if (kOnce && x == y) ++all.a;
    }
  }
  return all;
}
constexpr std::ptrdiff_t kUnlike = 8;  // times as long

// More lanes than three have not enough registers.
constexpr int kLanes = 3;
// Below this many births a lane, dividing the work costs more than it saves.
constexpr std::ptrdiff_t kLaneBirths = 32;

// Merges until one side is at its stop. (By itself, or the registers don't suffice.)
template <bool kOnce>
[[gnu::noinline]] Lane<kOnce> mix_births(Lane<kOnce> all) noexcept {
  if (std::max(all.a_stop - all.a, all.b_stop - all.b) > kUnlike * all.room()) return insert_births(all);
  if (all.room() < kLanes * kLaneBirths) {
    all.to_a_stop();
    return all;
  }
  std::array<Lane<kOnce>, kLanes> lanes;
  std::array<std::int64_t*, kLanes> begin;
  for (int i = 0; i < kLanes; ++i) {
    Lane<kOnce>& lane = lanes[i] = all;
    if (i + 1 < kLanes) {
      // Equal births stay together.
      const std::int64_t middle = all.a[(all.a_stop - all.a) / (kLanes - i)];
      lane.a_stop = all.a = std::lower_bound(all.a, all.a_stop, middle);
      lane.b_stop = all.b = std::lower_bound(all.b, all.b_stop, middle);
      all.out += (lane.a_stop - lane.a) + (lane.b_stop - lane.b);
    }
    begin[i] = lane.out;
  }
  const auto room = [](const Lane<kOnce>& a, const Lane<kOnce>& b) { return a.room() < b.room(); };
  while (const std::ptrdiff_t steps = std::min_element(lanes.begin(), lanes.end(), room)->room()) {
    for (std::ptrdiff_t i = 0; i < steps; ++i)
      for (Lane<kOnce>& lane : lanes) lane.step();
  }
  std::int64_t* end = begin[0];
  for (int i = 0; i < kLanes; ++i) {
    Lane<kOnce>& lane = lanes[i];
    if (i + 1 < kLanes) {
      lane.to_the_end();
    } else {
      lane.to_a_stop();
    }
    // Births of both, taken once, left gaps.
    end = end == begin[i] ? lane.out : std::copy(begin[i], lane.out, end);
  }
  lanes.back().out = end;
  return lanes.back();
}

// The merge of two queues, in one pass over the births. Deaths are looked at where a run of an input begins, only
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
  Merger(const Queue& local, const Queue& other, Queue& merged)
      : local_{local.births_, local.runs_},
        other_{other.births_, other.runs_},
        interval_(local.interval_.v),
        births_(merged.births_.data()),
        merged_(merged),
        kept_(merged.births_.get_allocator().resource()) {}

  // Returns the number of births.
  template <bool kOnce>
  std::size_t run() {
    while (!local_.done() && !other_.done()) {
      if (keeps_) {
        keep<kOnce>();
      } else {
        mix<kOnce>();
      }
      look();
    }
    if (!other_.done()) stop_keeping(size_);
    copy_rest(local_);
    copy_rest(other_);
    stop_keeping(size_);
    return size_;
  }

  void fill_updates(Queue& updates) const;

 private:
  // A range of merged elements that are as they were in the local queue.
  struct Range {
    std::size_t begin, end;
  };
  struct Side {
    std::span<const std::int64_t> births;
    std::span<const Queue::Run> runs;
    std::size_t at = 0;
    std::size_t run = 0;  // the next to begin

    bool done() const { return at == births.size(); }
    const std::int64_t* next() const { return births.data() + at; }
    // Where to halt: behind the element that begins the next run.
    const std::int64_t* stop() const {
      return births.data() + (run < runs.size() ? runs[run].index + 1 : births.size());
    }
    // Was the last element that was taken the beginning of a run?
    bool began() const { return run < runs.size() && at == runs[run].index + std::size_t{1}; }
  };

  // To the next beginning of a run.
  template <bool kOnce>
  void mix() {
    const auto end = mix_births<kOnce>({local_.next(), local_.stop(), other_.next(), other_.stop(), births_ + size_});
    moved_to(end.a, end.b, end.out);
  }

  // The same as long as local elements keep their deaths: ends with the first new element.
  template <bool kOnce>
  void keep() {
    const std::int64_t *a = local_.next(), *b = other_.next();
    const std::int64_t *const a_stop = local_.stop(), *const b_stop = other_.stop();
    std::int64_t* out = births_ + size_;
    bool kept = true;
    while (kept && a != a_stop && b != b_stop) {
      const std::int64_t x = *a, y = *b;
      kept = kOnce ? x <= y : x < y;
      if (x < y) {
        *out++ = x;
        ++a;
      } else {
        *out++ = y;
        ++b;
        if (kept) ++a;
      }
    }
    moved_to(a, b, out);
    if (!kept) stop_keeping(size_ - 1);
  }

  void moved_to(const std::int64_t* a, const std::int64_t* b, const std::int64_t* out) {
    local_.at = static_cast<std::size_t>(a - local_.births.data());
    other_.at = static_cast<std::size_t>(b - other_.births.data());
    size_ = static_cast<std::size_t>(out - births_);
  }

  // If the last merged element began a run of either side: its death.
  void look() {
    const bool mine = local_.began(), theirs = other_.began();
    if (!mine && !theirs) return;
    const std::int64_t own = mine ? local_.runs[local_.run].death : -1;
    const std::int64_t others = theirs ? other_.runs[other_.run].death : -1;
    local_.run += mine;
    other_.run += theirs;
    settle(size_ - 1, std::max(own, others));
    if (mine && death_ == own) {
      if (!keeps_) kept_.push_back({size_ - 1, size_ - 1});
      keeps_ = true;
    } else if (mine || raised_) {
      stop_keeping(size_ - 1);
    }
  }

  // The death of the element at `place`, whose own is `own`.
  void settle(std::size_t place, std::int64_t own) {
    auto& runs = merged_.runs_;
    const Int128 follows =
        runs.empty() ? Int128{-1} : runs.back().death + Int128{place - runs.back().index} * interval_;
    raised_ = own > follows;
    if (raised_) runs.push_back({static_cast<std::uint32_t>(place), own});
    death_ = raised_ ? Int128{own} : follows;
  }

  void stop_keeping(std::size_t place) {
    if (keeps_) kept_.back().end = place;
    keeps_ = false;
  }

  // One side is done: what is left of the other.
  void copy_rest(Side& side) {
    const std::size_t from = side.at, place = size_;
    std::copy(side.births.begin() + static_cast<std::ptrdiff_t>(from), side.births.end(), births_ + place);
    while (side.run < side.runs.size()) {
      side.at = side.runs[side.run].index + std::size_t{1};
      size_ = place + side.at - from;
      look();
    }
    side.at = side.births.size();
    size_ = place + side.at - from;
  }

  Side local_, other_;
  const std::int64_t interval_;
  std::int64_t* const births_;
  std::size_t size_ = 0;  // merged so far
  Queue& merged_;
  Int128 death_ = -1;    // of the last element that `look` looked at
  bool raised_ = false;  // it began a run of the merged queue
  bool keeps_ = false;   // the elements that come have the deaths that they had
  std::pmr::vector<Range> kept_;
};

// What is not in kept_. An element that follows a gap begins a run, unless its death happens to be T after the last.
void Merger::fill_updates(Queue& updates) const {
  const auto& runs = merged_.runs_;
  std::size_t run = 0;
  const auto add = [&](std::size_t begin, std::size_t end) {
    if (begin == end) return;
    while (run + 1 < runs.size() && runs[run + 1].index <= begin) ++run;
    const auto shift = static_cast<std::uint32_t>(begin - updates.births_.size());
    const std::int64_t death = runs[run].death + static_cast<std::int64_t>(begin - runs[run].index) * interval_;
    if (updates.empty() || death != updates.last_death() + interval_) updates.runs_.push_back({updates.size(), death});
    const std::size_t before = updates.births_.size();
    updates.births_.resize(before + end - begin);
    std::copy(births_ + begin, births_ + end, updates.births_.data() + before);
    for (; run + 1 < runs.size() && runs[run + 1].index < end; ++run)
      updates.runs_.push_back({runs[run + 1].index - shift, runs[run + 1].death});
  };
  updates.births_.reserve(size_);
  std::size_t at = 0;
  for (const Range& range : kept_) {
    add(at, range.begin);
    at = range.end;
  }
  add(at, size_);
}

QueueError Queue::merge(const Queue& local, const Queue& other, Into into, Queue& merged, Queue& updates) {
  assert(&merged != &local && &merged != &other && &updates != &local && &updates != &other && &merged != &updates);
  if (local.interval_ != other.interval_) return QueueError::unlike_interval;
  merged.interval_ = updates.interval_ = local.interval_;
  merged.births_.resize(local.births_.size() + other.births_.size());
  for (Queue* queue : {&merged, &updates}) {
    queue->runs_.clear();
    queue->runs_.reserve(local.runs_.size() + other.runs_.size());
  }
  updates.births_.clear();
  Merger merger(local, other, merged);
  const std::size_t size = into == Into::local_state ? merger.run<true>() : merger.run<false>();
  merged.births_.resize(size);
  if (size > kMaxBirths) return QueueError::too_many;
  if (size == 0) return QueueError::none;
  if (merged.births_.back() - merged.births_.front() > kMaxSpan.v) return QueueError::too_long;
  const Queue::Run& last = merged.runs_.back();
  if (last.death + Int128{size - 1 - last.index} * merged.interval_.v > kTimeMax.v) return QueueError::too_late;
  merger.fill_updates(updates);
  return QueueError::none;
}

std::optional<bool> frequent(std::span<const std::byte> packed, std::uint32_t window, Millis threshold) noexcept {
  assert(window >= 1 && threshold.v >= 0 && threshold <= kMaxSpan);
  const std::optional<QueueHead> head = QueueHead::read(packed);
  if (!head) return std::nullopt;
  if (head->births < window) return false;
  const std::byte* const last = packed.data() + kHeadBytes + std::size_t{head->births - 1} * head->width;
  const std::uint32_t mask = mask_of(head->width);
  const std::uint32_t latest = load<std::uint32_t>(last) & mask;
  const std::uint32_t earliest = load<std::uint32_t>(last - std::size_t{window - 1} * head->width) & mask;
  return std::int64_t{latest} - earliest < threshold.v * window;
}

}  // namespace weir::thesis
