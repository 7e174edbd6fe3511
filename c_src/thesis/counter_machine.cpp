// counter_machine: the thesis' counter on many nodes (section 3.1, listing 3.3).
//
// A delta state holds the whole bucket of each user who consumed tokens, here or elsewhere, since its neighbour was
// last told. A node's own bucket is never behind what it has for a neighbour, so merging it into a delta state is a
// copy.
//
// Complexity: an admitted request, and each user in a frame that brings news, copies a bucket for each neighbour.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "thesis/counter.hpp"
#include "thesis/gossip.hpp"
#include "thesis/machines.hpp"
#include "thesis/states.hpp"

namespace weir::thesis {
namespace {

constexpr std::size_t kBucketHead = 8 + 8 + 8 + 2;
constexpr std::size_t kBucketEntry = 4 + 4;

// A bucket in a row: as CounterState, without a block of its own.
struct Bucket {
  Nanos limit;
  Nanos refilled;
  std::span<const std::uint32_t> counts;
};
Bucket bucket_of(const CounterState& state) noexcept { return {state.limit(), state.refilled(), state.counts()}; }

// A user's delta states: a bucket for each neighbour, all in one block, since they are mostly written together.
//
//   row   limit (2 words), refilled (2), number of counts (1; 0: an empty row), counts (stride - 5)
//
// Counted as memory are the rows in use, each as long as its bucket: what they would take in blocks of their own.
class CounterRows {
 public:
  std::size_t count() const noexcept { return count_; }
  void open(std::size_t count) { restride(count, stride_); }
  void close() noexcept {
    words_ = std::vector<std::uint32_t>();
    count_ = stride_ = 0;
  }
  static std::size_t heap() noexcept { return 0; }

  std::size_t size(std::size_t i) const noexcept { return stride_ == 0 ? 0 : words_[i * stride_ + kSize]; }
  std::size_t heap(std::size_t i) const noexcept {
    return size(i) == 0 ? 0 : (kCounts + size(i)) * sizeof(std::uint32_t);
  }
  void clear(std::size_t i) noexcept {
    if (stride_ != 0) words_[i * stride_ + kSize] = 0;
  }
  void prefetch(std::size_t i) const noexcept {
    __builtin_prefetch(&words_[i * stride_]);
    __builtin_prefetch(&words_[(i + 1) * stride_ - 1]);
  }
  void set(std::size_t i, const CounterState& state) {
    const auto counts = state.counts();
    // Room for a while: buckets grow as nodes are heard of.
    if (kCounts + counts.size() > stride_) restride(count_, kCounts + counts.size() + counts.size() / 2);
    std::uint32_t* const row = &words_[i * stride_];
    const std::array<std::int64_t, 2> times{state.limit().v, state.refilled().v};
    std::memcpy(row, times.data(), sizeof times);
    row[kSize] = static_cast<std::uint32_t>(counts.size());
    std::copy(counts.begin(), counts.end(), row + kCounts);
  }
  // REQUIRES: the row is not empty. Valid until the next change.
  Bucket operator[](std::size_t i) const noexcept {
    const std::uint32_t* const row = &words_[i * stride_];
    std::array<std::int64_t, 2> times{};
    std::memcpy(times.data(), row, sizeof times);
    return {{times[0]}, {times[1]}, {row + kCounts, row[kSize]}};
  }

 private:
  static constexpr std::size_t kSize = 4;
  static constexpr std::size_t kCounts = 5;

  void restride(std::size_t count, std::size_t stride) {
    std::vector<std::uint32_t> words(count * stride);
    for (std::size_t i = 0; i < count_ && stride_ != 0; ++i) {
      std::copy_n(words_.begin() + static_cast<std::ptrdiff_t>(i * stride_), stride_,
                  words.begin() + static_cast<std::ptrdiff_t>(i * stride));
    }
    words_ = std::move(words);
    count_ = count;
    stride_ = stride;
  }

  std::vector<std::uint32_t> words_;
  std::size_t count_ = 0;
  std::size_t stride_ = 0;
};

class CounterMachine final : public Gossip {
 public:
  using Users = States<CounterState, CounterRows>;
  using Entry = Users::Entry;

  CounterMachine(const lab::Options& options, const lab::Place& place)
      : Gossip(options, place), states_(neighbours().size()) {}

 protected:
  bool decide(KeyHash key, Tokens hits, Nanos now, Effects&) override {
    const Refill how = options().literal ? Refill::fractional : Refill::whole;
    Entry& entry = states_.make(key);
    bool admitted = false;
    states_.change_local(
        entry, [&](CounterState& bucket) { admitted = bucket.consume(policy(), now, hits, position(), how); });
    if (admitted) {
      tell(entry, std::nullopt);
    } else {
      states_.sweep(entry);
    }
    return admitted;
  }

  bool valid(Reader body, std::vector<KeyHash>& keys) const override {
    while (!body.done()) {
      keys.push_back({body.get<std::uint64_t>()});
      const Nanos limit = body.time();
      const Nanos refilled = body.time();
      const auto entries = body.get<std::uint16_t>();
      if (!on_time_line(limit) || !on_time_line(refilled) || !body.skip(entries * kBucketEntry)) return false;
    }
    return body.ok();
  }

  void receive(FrameKind kind, std::optional<std::size_t> sender, Reader body, Nanos, Effects&) override {
    for (std::size_t i = 0; !body.done(); ++i) {
      states_.prefetch(frame_keys(), i);
      const KeyHash key{body.get<std::uint64_t>()};
      read_bucket(body);
      Entry& entry = states_.make(key);
      bool news = false;
      states_.change_local(entry, [&](CounterState& bucket) { news = bucket.merge(received_); });
      if (news && kind != FrameKind::copy) tell(entry, sender);
      states_.sweep(entry);
    }
  }

  Bytes gossip_frame(std::size_t neighbour) override {
    Writer writer(FrameKind::gossip,
                  states_.pending(neighbour) * kBucketHead + states_.queued(neighbour) * kBucketEntry);
    states_.drain(neighbour, [&](const Entry& entry) { write_bucket(writer, entry.key, entry.rows[neighbour]); });
    return writer.take();
  }

  Bytes copy_frame() const override {
    const std::vector<const Entry*> users = states_.users();
    Writer writer(FrameKind::copy, users.size() * (kBucketHead + members().size() * kBucketEntry));
    for (const Entry* const user : users) write_bucket(writer, user->key, bucket_of(user->local));
    return writer.take();
  }

  bool pending(std::size_t neighbour) const override { return states_.pending(neighbour) != 0; }
  bool nothing_pending() const override { return states_.quiet(); }
  void neighbour_added() override { states_.add_neighbour(); }
  void neighbour_gone(std::size_t neighbour) override {
    states_.drain(neighbour, [](const Entry&) {});
  }
  Held held_by_design() const override { return {states_.bytes(), states_.fixed() + received_.heap()}; }

 private:
  void tell(Entry& entry, std::optional<std::size_t> sender) {
    for (std::size_t n = 0; n < neighbours().size(); ++n) {
      if (n == sender || neighbours()[n].gone) continue;
      states_.change_row(entry, n, [&](CounterRows& rows, std::size_t i) { rows.set(i, entry.local); });
    }
  }

  void write_bucket(Writer& writer, std::uint64_t key, const Bucket& bucket) const {
    const std::span<const std::uint32_t> counts = bucket.counts;
    const auto zeros = static_cast<std::size_t>(std::count(counts.begin(), counts.end(), 0U));
    writer.put(key);
    writer.put(bucket.limit);
    writer.put(bucket.refilled);
    writer.put(static_cast<std::uint16_t>(counts.size() - zeros));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      // Zeros are written and then written over: whether one is there can't be foretold, and to guess wrong costs more.
      writer.put(members()[i].v);
      writer.put(counts[i]);
      if (counts[i] == 0) writer.take_back(kBucketEntry);
    }
  }

  // Counts of nodes that are not members are left out.
  void read_bucket(Reader& body) {
    const Nanos limit = body.time();
    const Nanos refilled = body.time();
    received_.reset(limit, refilled, members().size());
    std::size_t at = 0;
    for (auto entries = body.get<std::uint16_t>(); entries != 0; --entries) {
      const NodeId node{body.get<std::uint32_t>()};
      const auto count = body.get<std::uint32_t>();
      // Nodes mostly have the same members in the same order: the place is the next one, or a little further on.
      while (at < members().size() && members()[at] < node) ++at;
      if (at == members().size() || members()[at] != node) {
        const auto found = std::find(members().begin(), members().end(), node);
        if (found == members().end()) continue;
        at = static_cast<std::size_t>(found - members().begin());
      }
      received_.set(at, count);
    }
  }

  Users states_;
  CounterState received_;
};

}  // namespace

std::unique_ptr<Machine> make_counter(const lab::Options& options, const lab::Place& place) {
  return std::make_unique<CounterMachine>(options, place);
}

}  // namespace weir::thesis
