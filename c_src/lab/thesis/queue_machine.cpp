// queue_machine: the thesis' queue and sliding log on many nodes (sections 4.1 and 4.2).
//
// A delta state holds, of each user, the elements that are new or changed since its neighbour was last told.
//
//   admitted request   its element goes to the local queue and to all delta states; then frequency analysis (4.5)
//   received frame     merged into the local queue; what is new or changed goes to all delta states, less, for the
//                      sender, what it sent; delta states of the users in the frame are refilled (4.4)
//   tick               the delta state of one neighbour is sent: a random one, or the one with most updates (4.6-4.8)
//
// Frequency analysis looks at each neighbour's delta state when a request is admitted, and sends the user's part of it
// at once if the last births there are close together. AnalyseAt::local looks at the local queue instead, and then
// tells all neighbours; AnalyseAt::receive looks at the delta states also when a gossip frame (not an urgent one) came.
//
// LINF's priorities are counted as the listings have it: refills don't lower them. So a priority is never below the
// number of elements that wait, and nothing waits for a neighbour whose priority is 0.
//
// Proactive limiting: where the local queue's last births are close together, a request is denied when
//
//   level + unseen + hits > c,   unseen = min(R * S, (w - 1) / 2 * N) * (N - 1) / N
//
// R, the rate of the last w (the window) known births, times S = ceil(log2 N) gossip intervals, the time that a birth
// takes to reach most nodes by gossip, is what was admitted meanwhile by all nodes together, N - 1 of which are others.
// The other bound is frequency analysis': a node that sees a user speeding has told all but the last 0 .. w - 1 of his
// births, (w - 1) / 2 on average. Both assume that a user's requests are spread over all nodes; one whose requests all
// come to this node is denied when up to (N - 1)(w - 1) / 2 tokens are left: a false positive.
//
// Memory: queues are counted as the bytes that they take packed as in a frame, a block each, the pointer to it besides.
// They lie here unpacked, so that a run takes seconds: packed and unpacked they say the same.
//
// Complexity: an admitted request and each user in a frame touch each neighbour's delta state of that user.
#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <utility>

#include "lab/thesis/gossip.hpp"
#include "lab/thesis/machines.hpp"
#include "lab/thesis/queue.hpp"
#include "lab/thesis/states.hpp"

namespace weir::thesis {
namespace {

constexpr std::size_t kQueueHead = 8 + 2;
constexpr std::size_t kElementMost = 5 + 10;

// Elements one after the other, each as steps from the last one (wire.hpp).
template <class E>
class QueueBytes {
 public:
  explicit QueueBytes(Nanos interval) noexcept : interval_(interval) {}

  void write(Writer& writer, const E& element) {
    writer.varint(zigzag((element.birth - birth_).v));
    if constexpr (kHasDeath<E>) writer.step(death_step(element));
    if constexpr (kHasIdentity<E>) writer.fixed(element.identity);
    follow(element);
  }
  std::size_t size(const E& element) noexcept {
    std::size_t bytes = varint_size(zigzag((element.birth - birth_).v));
    if constexpr (kHasDeath<E>) bytes += death_step(element).size();
    if constexpr (kHasIdentity<E>) bytes += sizeof element.identity;
    follow(element);
    return bytes;
  }
  E read(Reader& body) noexcept {
    E element{};
    element.birth = body.step(birth_);
    if constexpr (kHasDeath<E>) element.death = body.step(first_ ? element.birth : death_, interval_);
    if constexpr (kHasIdentity<E>) element.identity = body.template fixed<std::uint64_t>();
    follow(element);
    return element;
  }
  // The elements of another queue.
  void next() noexcept { first_ = true; }

 private:
  Step death_step(const E& element) const noexcept {
    return {(element.death - (first_ ? element.birth : death_)).v, interval_};
  }
  void follow(const E& element) noexcept {
    birth_ = element.birth;
    if constexpr (kHasDeath<E>) death_ = element.death;
    first_ = false;
  }

  Nanos interval_;
  Nanos birth_{0};
  Nanos death_{0};
  bool first_ = true;
};

// What a queue takes as one block of bytes: its length and its elements, as in a frame. Empty ones have no block.
template <class E>
std::size_t packed_size(std::span<const E> queue, Nanos interval) noexcept {
  if (queue.empty()) return 0;
  QueueBytes<E> bytes(interval);
  std::size_t size = sizeof(std::uint16_t);
  for (const E& element : queue) size += bytes.size(element);
  return size;
}

// A user's delta states: a queue for each neighbour. Most frames bring no news and kill nothing: then the rows, which
// lie all over the memory, need not be looked at, since it is known before when the first of their elements may die.
template <class E>
class QueueRows {
 public:
  std::size_t count() const noexcept { return rows_.size(); }
  void open(std::size_t count) { rows_.resize(count); }
  void close() noexcept {
    rows_ = std::vector<std::vector<E>>();
    first_death_ = kNever;
  }
  // Where each row's block is.
  std::size_t heap() const noexcept { return rows_.size() * sizeof(void*); }

  std::size_t size(std::size_t i) const noexcept { return rows_[i].size(); }
  static std::size_t heap(std::size_t) noexcept { return 0; }  // see held_by_design
  void clear(std::size_t i) noexcept { rows_[i] = std::vector<E>(); }
  void prefetch(std::size_t i) const noexcept { __builtin_prefetch(&rows_[i]); }

  std::vector<E>& operator[](std::size_t i) noexcept { return rows_[i]; }
  const std::vector<E>& operator[](std::size_t i) const noexcept { return rows_[i]; }

  // No element dies before.
  Nanos first_death() const noexcept { return first_death_; }
  // To be called with what goes into rows, before it does.
  void expect(const Policy& policy, std::span<const E> updates) noexcept {
    for (const E& element : updates) first_death_ = std::min(first_death_, death_of(element, policy));
  }
  // To be called when all rows were refilled.
  void look_again(const Policy& policy) noexcept {
    first_death_ = kNever;
    for (const std::vector<E>& row : rows_) {
      if (!row.empty()) first_death_ = std::min(first_death_, death_of(row.front(), policy));
    }
  }

 private:
  std::vector<std::vector<E>> rows_;
  Nanos first_death_ = kNever;
};

template <class E>
class QueueMachine final : public Gossip {
 public:
  using Users = States<UserQueue<E>, QueueRows<E>>;
  using Entry = typename Users::Entry;

  QueueMachine(const QueueDesign& design, const lab::Options& options, const lab::Place& place)
      : Gossip(options, place),
        design_(design),
        rules_{options.margin, options.literal},
        incarnation_(place.incarnation),
        states_(neighbours().size()),
        priorities_(design.least_informed_first ? neighbours().size() : 0) {}

 protected:
  bool decide(KeyHash key, Tokens hits, Nanos now, Effects& effects) override {
    Entry& entry = states_.make(key);
    updates_.clear();
    bool admitted = false;
    states_.change_local(entry, [&](UserQueue<E>& queue) {
      queue.refill(policy(), now, rules_);
      admitted = queue.level(policy(), now, rules_) <= policy().capacity - hits &&
                 !(design_.proactive && expects_too_many(queue, hits, now));
      if (admitted) queue.add(policy(), now, hits, rules_, identity(hits), updates_);
    });
    if (admitted) {
      entry.rows.expect(policy(), updates_);
      for (std::size_t n = 0; n < neighbours().size(); ++n) tell(entry, n);
      if (design_.frequency_analysis) analyse_admitted(entry, effects);
    }
    states_.sweep(entry);
    return admitted;
  }

  bool valid(Reader body, std::vector<KeyHash>& keys) const override {
    QueueBytes<E> bytes(policy().interval);
    while (!body.done()) {
      keys.push_back({body.fixed<std::uint64_t>()});
      const std::size_t count = body.count(1);
      bytes.next();
      E last{};
      for (std::size_t n = 0; n < count; ++n) {
        const E element = bytes.read(body);
        if (!body.ok() || death_of(element, policy()) > kTimeMax) return false;
        if (n != 0 && (before(element, last) || (!rules_.literal && !before(last, element)))) return false;
        last = element;
      }
    }
    return body.ok();
  }

  void receive(FrameKind kind, std::optional<std::size_t> sender, Reader body, Nanos now, Effects& effects) override {
    QueueBytes<E> bytes(policy().interval);
    for (std::size_t i = 0; !body.done(); ++i) {
      states_.prefetch(frame_keys(), i);
      const KeyHash key{body.fixed<std::uint64_t>()};
      received_.resize(body.count(1));
      bytes.next();
      for (E& element : received_) element = bytes.read(body);
      Entry& entry = states_.make(key);
      states_.change_local(
          entry, [&](UserQueue<E>& queue) { queue.merge(policy(), now, received_, rules_, updates_, scratch_); });
      if (kind != FrameKind::copy) {
        tell_received(entry, sender, now);
        const bool look = kind == FrameKind::gossip && options().fa_at == lab::AnalyseAt::receive;
        if (design_.frequency_analysis && look) analyse_deltas(entry, effects);
      }
      states_.sweep(entry);
    }
    if (design_.least_informed_first && kind != FrameKind::copy && sender) {
      priorities_[*sender] = states_.queued(*sender);
    }
  }

  Bytes gossip_frame(std::size_t neighbour) override {
    Writer writer(FrameKind::gossip,
                  states_.pending(neighbour) * kQueueHead + states_.queued(neighbour) * kElementMost);
    QueueBytes<E> bytes(policy().interval);
    states_.drain(neighbour, [&](const Entry& entry) { write_queue(writer, bytes, entry.key, entry.rows[neighbour]); });
    return writer.take();
  }

  Bytes copy_frame() const override {
    Writer writer(FrameKind::copy);
    QueueBytes<E> bytes(policy().interval);
    for (const Entry* const user : states_.users()) write_queue(writer, bytes, user->key, user->local.elements());
    return writer.take();
  }

  // Listing 4.8's counterpart for gossip: the neighbour with the highest priority, which is then 0.
  std::size_t choose() override {
    if (!design_.least_informed_first) return Gossip::choose();
    std::size_t best = neighbours().size();
    std::uint64_t ties = 0;
    for (std::size_t n = 0; n < neighbours().size(); ++n) {
      if (neighbours()[n].gone || (best != neighbours().size() && priorities_[n] < priorities_[best])) continue;
      if (best == neighbours().size() || priorities_[n] > priorities_[best]) ties = 0;
      // Each of k equals is the one chosen with probability 1 / k.
      if (random().below(++ties) == 0) best = n;
    }
    priorities_[best] = 0;
    return best;
  }

  bool pending(std::size_t neighbour) const override { return states_.pending(neighbour) != 0; }
  bool nothing_pending() const override { return states_.quiet(); }
  void neighbour_added() override {
    states_.add_neighbour();
    if (design_.least_informed_first) priorities_.push_back(0);
  }
  void neighbour_gone(std::size_t neighbour) override {
    states_.drain(neighbour, [](const Entry&) {});
    if (design_.least_informed_first) priorities_[neighbour] = 0;
  }
  Held held_by_design() const override {
    const Nanos interval = policy().interval;
    std::size_t packed = 0;
    states_.each([&](const Entry& entry) {
      packed += packed_size(entry.local.elements(), interval);
      for (std::size_t n = 0; n < entry.rows.count(); ++n) packed += packed_size<E>(entry.rows[n], interval);
    });
    return {states_.bytes() + packed + heap_bytes(priorities_),
            states_.fixed() + heap_bytes(received_) + heap_bytes(updates_) + heap_bytes(scratch_) + heap_bytes(rest_)};
  }

 private:
  std::uint32_t window() const noexcept {
    if (options().fa_window != 0) return options().fa_window;
    const std::int64_t share = policy().capacity.v / static_cast<std::int64_t>(members().size());
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(share, 1, UINT32_MAX));
  }
  bool speeding(std::span<const E> queue) const noexcept {
    return analyse(queue, window(), options().fa_threshold, rules_.literal);
  }

  // See the top of the file.
  bool expects_too_many(const UserQueue<E>& queue, Tokens hits, Nanos now) const noexcept {
    const std::span<const E> known = queue.elements();
    if (!speeding(known)) return false;
    const double nodes = static_cast<double>(members().size());
    const double births = window();
    const double untold = (births - 1) / 2 * nodes;
    const Nanos span = now - known[known.size() - window()].birth;
    const double intervals = std::bit_width(members().size() - 1);
    const double rumour = intervals * static_cast<double>(options().gossip_interval.v);
    const double meanwhile = span.v <= 0 ? untold : births * rumour / static_cast<double>(span.v);
    const double unseen = std::min(meanwhile, untold) * (nodes - 1) / nodes;
    const Tokens level = queue.level(policy(), now, rules_);
    return static_cast<double>((level + hits).v) + unseen > static_cast<double>(policy().capacity.v);
  }

  // 16 bits of node, 8 of incarnation, 40 of sequence; the first of `hits` in a row.
  std::uint64_t identity(Tokens hits) noexcept {
    const std::uint64_t first = sequence_;
    sequence_ += static_cast<std::uint64_t>(hits.v);
    return (std::uint64_t{self().v & 0xffffU} << 48U) | (std::uint64_t{incarnation_ & 0xffU} << 40U) |
           (first & ((std::uint64_t{1} << 40U) - 1));
  }

  // Listing 4.2 for a delta state: adds `updates_`.
  void merge_updates(std::vector<E>& delta) {
    if (delta.empty() || before(delta.back(), updates_.front())) {
      delta.insert(delta.end(), updates_.begin(), updates_.end());
      return;
    }
    merge_into<E>(policy(), delta, updates_, Equals::one, scratch_, rest_);
  }

  void tell(Entry& entry, std::size_t neighbour) {
    if (neighbours()[neighbour].gone) return;
    const std::size_t queued = states_.queued(neighbour);
    states_.change_row(entry, neighbour, [&](QueueRows<E>& rows, std::size_t i) { merge_updates(rows[i]); });
    raise_priority(neighbour, queued);
  }

  void tell_received(Entry& entry, std::optional<std::size_t> sender, Nanos now) {
    if (updates_.empty() && !rules_.literal && now < entry.rows.first_death()) {
      // Nothing to add, nothing to refill.
      if (sender && states_.has(entry, *sender)) tell_received(entry, *sender, true, now);
      return;
    }
    entry.rows.expect(policy(), updates_);
    for (std::size_t n = 0; n < neighbours().size(); ++n) {
      if (neighbours()[n].gone || (updates_.empty() && !states_.has(entry, n))) continue;
      tell_received(entry, n, n == sender, now);
    }
    entry.rows.look_again(policy());
  }

  void tell_received(Entry& entry, std::size_t neighbour, bool is_sender, Nanos now) {
    const std::size_t queued = states_.queued(neighbour);
    states_.change_row(entry, neighbour, [&](QueueRows<E>& rows, std::size_t i) {
      if (!updates_.empty()) merge_updates(rows[i]);
      if (is_sender) remove_duplicates<E>(rows[i], received_);
      refill(policy(), rows[i], now, rules_);
    });
    raise_priority(neighbour, queued);
  }

  // Listings 4.6 and 4.7: by as many elements as the delta state grew by.
  void raise_priority(std::size_t neighbour, std::size_t queued_before) {
    const std::size_t queued = states_.queued(neighbour);
    if (design_.least_informed_first && queued > queued_before) priorities_[neighbour] += queued - queued_before;
  }

  void analyse_admitted(Entry& entry, Effects& effects) {
    if (options().fa_at != lab::AnalyseAt::local) return analyse_deltas(entry, effects);
    if (!speeding(entry.local.elements())) return;
    for (std::size_t n = 0; n < neighbours().size(); ++n) send_urgent(entry, n, effects);
  }

  void analyse_deltas(Entry& entry, Effects& effects) {
    for (std::size_t n = 0; n < neighbours().size(); ++n) {
      if (states_.has(entry, n) && speeding(entry.rows[n])) send_urgent(entry, n, effects);
    }
  }

  void send_urgent(Entry& entry, std::size_t neighbour, Effects& effects) {
    if (!states_.has(entry, neighbour)) return;
    const std::vector<E>& delta = entry.rows[neighbour];
    Writer writer(FrameKind::urgent, kQueueHead + delta.size() * kElementMost);
    QueueBytes<E> bytes(policy().interval);
    write_queue(writer, bytes, entry.key, delta);
    if (design_.least_informed_first) {
      priorities_[neighbour] -= std::min<std::uint64_t>(priorities_[neighbour], delta.size());
    }
    states_.clear_row(entry, neighbour);
    // Most neighbours are told the same: one frame will do.
    Bytes frame = writer.take();
    const std::uint32_t last = static_cast<std::uint32_t>(effects.frames.size());
    const bool same = last != 0 && effects.frames[last - 1] == frame;
    const std::uint32_t index = same ? last - 1 : effects.add_frame(std::move(frame));
    effects.sends.push_back({neighbours()[neighbour].id, index, Traffic::data});
  }

  static void write_queue(Writer& writer, QueueBytes<E>& bytes, std::uint64_t key, std::span<const E> queue) {
    writer.fixed(key);
    writer.varint(queue.size());
    bytes.next();
    for (const E& element : queue) bytes.write(writer, element);
  }

  QueueDesign design_;
  QueueRules rules_;
  std::uint32_t incarnation_;
  std::uint64_t sequence_ = 0;
  Users states_;
  std::vector<std::uint64_t> priorities_;
  // Of one step, kept for their memory.
  std::vector<E> received_;
  std::vector<E> updates_;
  std::vector<E> scratch_;
  std::vector<E> rest_;
};

}  // namespace

std::unique_ptr<Machine> make_queue(const QueueDesign& design, const lab::Options& options, const lab::Place& place) {
  if (options.guid) return std::make_unique<QueueMachine<MarkedQueueElement>>(design, options, place);
  return std::make_unique<QueueMachine<QueueElement>>(design, options, place);
}

std::unique_ptr<Machine> make_sliding_log(const lab::Options& options, const lab::Place& place) {
  if (options.guid) return std::make_unique<QueueMachine<MarkedLogElement>>(QueueDesign{}, options, place);
  return std::make_unique<QueueMachine<LogElement>>(QueueDesign{}, options, place);
}

}  // namespace weir::thesis
