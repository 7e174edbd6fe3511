// counter_machine: the thesis' counter on many nodes (section 3.1, listing 3.3).
//
// A delta state holds the whole bucket of each user who consumed tokens, here or elsewhere, since its neighbour was
// last told. A node's own bucket is never behind what it has for a neighbour, so merging it into a delta state is a
// copy.
//
// Complexity: an admitted request, and each user in a frame that brings news, copies a bucket for each neighbour.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "lab/thesis/counter.hpp"
#include "lab/thesis/gossip.hpp"
#include "lab/thesis/machines.hpp"
#include "lab/thesis/states.hpp"

namespace weir::thesis {
namespace {

// A set of members by position, a bit each: the number of its bytes, its bytes. The last one is not 0.
bool in_set(std::span<const std::byte> set, std::size_t i) noexcept {
  return (std::to_integer<unsigned>(set[i / 8]) >> (i % 8) & 1U) != 0;
}
std::span<const std::byte> read_set(Reader& body) noexcept { return body.raw(body.count(1)); }

// A bucket in bytes, as it lies in a delta state and goes into frames:
//
//   limit (a step from 0), 8 refilled, the set of the nodes that count, their counts
//
void write_bucket(Writer& writer, const CounterState& bucket, Nanos interval) {
  writer.step({bucket.limit().v, interval});
  writer.fixed(bucket.refilled().v);
  bucket.counts().visit([&](auto* counts) {
    std::size_t nodes = bucket.counts().size();
    while (nodes != 0 && counts[nodes - 1] == 0) --nodes;
    writer.varint((nodes + 7) / 8);
    for (std::size_t at = 0; at < nodes; at += 8) {
      unsigned bits = 0;
      for (std::size_t i = at; i < std::min(at + 8, nodes); ++i) bits |= (counts[i] != 0 ? 1U : 0U) << (i - at);
      writer.byte(static_cast<std::uint8_t>(bits));
    }
    for (std::size_t i = 0; i < nodes; ++i) {
      if (counts[i] != 0) writer.varint(counts[i]);
    }
  });
}

struct BucketHead {
  Nanos limit;
  Nanos refilled;
  std::span<const std::byte> nodes;
};
BucketHead read_head(Reader& body, Nanos interval) noexcept {
  BucketHead head;
  head.limit = body.step({0}, interval);
  head.refilled = body.time();
  head.nodes = read_set(body);
  return head;
}
// What follows the head: visit(position, count) of each node that counts.
template <class Visit>
void read_counts(Reader& body, const BucketHead& head, Visit visit) {
  for (std::size_t at = 0; at < head.nodes.size(); ++at) {
    for (auto bits = std::to_integer<unsigned>(head.nodes[at]); bits != 0; bits &= bits - 1) {
      visit(8 * at + static_cast<std::size_t>(std::countr_zero(bits)), body.varint());
    }
  }
}

// A user's delta states: a bucket in bytes for each neighbour, all in one block, since they are mostly written
// together.
//
//   row   4 its length (0: an empty row), its bytes, room up to the stride
//
// Counted as memory are the rows in use, each as long as its bucket: what they would take in blocks of their own.
class CounterRows {
 public:
  std::size_t count() const noexcept { return count_; }
  void open(std::size_t count) { restride(count, stride_); }
  void close() noexcept {
    bytes_ = Bytes();
    count_ = stride_ = 0;
  }
  static std::size_t heap() noexcept { return 0; }

  std::size_t size(std::size_t i) const noexcept {
    std::uint32_t size = 0;
    if (stride_ != 0) std::memcpy(&size, &bytes_[i * stride_], sizeof size);
    return size;
  }
  std::size_t heap(std::size_t i) const noexcept { return size(i) == 0 ? 0 : kLength + size(i); }
  void clear(std::size_t i) noexcept { set_size(i, 0); }
  void prefetch(std::size_t i) const noexcept { __builtin_prefetch(&bytes_[i * stride_]); }
  void set(std::size_t i, std::span<const std::byte> bucket) {
    // Room for a while: buckets grow as nodes are heard of.
    if (kLength + bucket.size() > stride_) restride(count_, kLength + bucket.size() + bucket.size() / 4);
    set_size(i, bucket.size());
    std::copy(bucket.begin(), bucket.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(i * stride_ + kLength));
  }
  // Valid until the next change.
  std::span<const std::byte> operator[](std::size_t i) const noexcept {
    return std::span<const std::byte>(bytes_).subspan(i * stride_ + kLength, size(i));
  }

 private:
  static constexpr std::size_t kLength = sizeof(std::uint32_t);

  void set_size(std::size_t i, std::size_t length) noexcept {
    const auto size = static_cast<std::uint32_t>(length);
    if (stride_ != 0) std::memcpy(&bytes_[i * stride_], &size, sizeof size);
  }
  void restride(std::size_t count, std::size_t stride) {
    Bytes bytes(count * stride);
    for (std::size_t i = 0; i < count_ && stride_ != 0; ++i) {
      std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(i * stride_), stride_,
                  bytes.begin() + static_cast<std::ptrdiff_t>(i * stride));
    }
    bytes_ = std::move(bytes);
    count_ = count;
    stride_ = stride;
  }

  Bytes bytes_;
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
    const std::span<const std::byte> named = read_set(body);
    for (std::size_t i = 0; i < 8 * named.size(); ++i) {
      if (in_set(named, i)) body.fixed<std::uint32_t>();
    }
    while (!body.done()) {
      keys.push_back({body.fixed<std::uint64_t>()});
      const BucketHead head = read_head(body, policy().interval);
      if (head.nodes.size() > named.size()) return false;
      for (std::size_t i = 0; i < head.nodes.size(); ++i) {
        if ((head.nodes[i] & ~named[i]) != std::byte{0}) return false;
      }
      bool fits = true;
      read_counts(body, head, [&](std::size_t, std::uint64_t count) { fits = fits && count <= UINT32_MAX; });
      if (!fits) return false;
    }
    return body.ok();
  }

  void receive(FrameKind kind, std::optional<std::size_t> sender, Reader body, Nanos, Effects&) override {
    read_nodes(body);
    for (std::size_t i = 0; !body.done(); ++i) {
      states_.prefetch(frame_keys(), i);
      const KeyHash key{body.fixed<std::uint64_t>()};
      const BucketHead head = read_head(body, policy().interval);
      received_.assign(members().size(), 0);
      read_counts(body, head, [&](std::size_t node, std::uint64_t count) {
        if (places_[node] != kNoMember) received_[places_[node]] = static_cast<std::uint32_t>(count);
      });
      Entry& entry = states_.make(key);
      bool news = false;
      states_.change_local(entry,
                           [&](CounterState& bucket) { news = bucket.merge(head.limit, head.refilled, received_); });
      if (news && kind != FrameKind::copy) tell(entry, sender);
      states_.sweep(entry);
    }
  }

  Bytes gossip_frame(std::size_t neighbour) override {
    users_.clear();
    named_.clear();
    states_.drain(neighbour, [&](const Entry& entry) { write_user(entry.key, entry.rows[neighbour], named_, users_); });
    return framed(FrameKind::gossip, named_, users_);
  }

  Bytes copy_frame() const override {
    Writer users;
    Writer bucket;
    Bytes named;
    for (const Entry* const user : states_.users()) {
      bucket.clear();
      write_bucket(bucket, user->local, policy().interval);
      write_user(user->key, bucket.bytes(), named, users);
    }
    return framed(FrameKind::copy, named, users);
  }

  bool pending(std::size_t neighbour) const override { return states_.pending(neighbour) != 0; }
  bool nothing_pending() const override { return states_.quiet(); }
  void neighbour_added() override { states_.add_neighbour(); }
  void neighbour_gone(std::size_t neighbour) override {
    states_.drain(neighbour, [](const Entry&) {});
  }
  Held held_by_design() const override {
    return {states_.bytes(), states_.fixed() + heap_bytes(received_) + heap_bytes(places_) + heap_bytes(named_) +
                                 bucket_.capacity() + users_.capacity()};
  }

 private:
  static constexpr std::uint32_t kNoMember = UINT32_MAX;

  void tell(Entry& entry, std::optional<std::size_t> sender) {
    bucket_.clear();
    write_bucket(bucket_, entry.local, policy().interval);
    for (std::size_t n = 0; n < neighbours().size(); ++n) {
      if (n == sender || neighbours()[n].gone) continue;
      states_.change_row(entry, n, [&](CounterRows& rows, std::size_t i) { rows.set(i, bucket_.bytes()); });
    }
  }

  // Appends a bucket in bytes, and its nodes to the frame's.
  void write_user(std::uint64_t key, std::span<const std::byte> bucket, Bytes& named, Writer& users) const {
    Reader body(bucket);
    const std::span<const std::byte> nodes = read_head(body, policy().interval).nodes;
    if (named.size() < nodes.size()) named.resize(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) named[i] |= nodes[i];
    users.fixed(key);
    users.raw(bucket);
  }

  Bytes framed(FrameKind kind, const Bytes& named, const Writer& users) const {
    Writer frame(kind, 2 + named.size() + 4 * members().size() + users.bytes().size());
    frame.varint(named.size());
    frame.raw(named);
    for (std::size_t i = 0; i < 8 * named.size(); ++i) {
      if (in_set(named, i)) frame.fixed(members()[i].v);
    }
    frame.raw(users.bytes());
    return frame.take();
  }

  // Where the nodes that a frame names are among the members here.
  void read_nodes(Reader& body) {
    const std::span<const std::byte> named = read_set(body);
    places_.assign(8 * named.size(), kNoMember);
    std::size_t at = 0;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (!in_set(named, i)) continue;
      const NodeId node{body.fixed<std::uint32_t>()};
      // Nodes mostly have the same members in the same order: the place is the next one, or a little further on.
      while (at < members().size() && members()[at] < node) ++at;
      if (at == members().size() || members()[at] != node) {
        const auto found = std::find(members().begin(), members().end(), node);
        // Counts of nodes that are not members are left out.
        if (found == members().end()) continue;
        at = static_cast<std::size_t>(found - members().begin());
      }
      places_[i] = static_cast<std::uint32_t>(at);
    }
  }

  Users states_;
  // Of one step, kept for their memory.
  std::vector<std::uint32_t> received_;
  std::vector<std::uint32_t> places_;
  Bytes named_;
  Writer bucket_;
  Writer users_;
};

}  // namespace

std::unique_ptr<Machine> make_counter(const lab::Options& options, const lab::Place& place) {
  return std::make_unique<CounterMachine>(options, place);
}

}  // namespace weir::thesis
