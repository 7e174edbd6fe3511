// replica: one node's part of replicated limiters: a Machine that decides at once and keeps the others informed.
//
// The protocol, in the order of a birth's way:
//
//   decide    on the union of published and unsent births, and on what is held on behalf of others (claims, the shadow
//             of an unreachable side, for long delays the births that are probably on their way)
//   push      an admitted birth enters `unsent`. When unsent weighs >= max(1, share), share = floor(slack / N), or is
//             nearly as old as the horizon while the key has published births, the key is due: its unsent becomes one
//             record, which goes to every live peer, after a wait of at most min(20 ms, 0.03 * slack / rate) in which
//             more keys join the frame. While everyone keeps to it, all unsent births together never exceed the slack.
//   count     records are numbered per origin (node and incarnation). The version vector refuses what was seen.
//   repair    a gap in the numbers, or a heartbeat that tells of a later one, is asked for (NACK) after a moment for
//             reordering, then again at growing intervals. What is refused for now (a peer's clock is ahead) is tried
//             with one record at a time, at intervals of minutes in the end; what can't be counted yet (a limiter that
//             isn't known here) is kept on a shelf, and not asked for again. Some time after the last news, digests of
//             the vectors go to rotating peers; where they differ, vectors are exchanged.
//   detour    heartbeats say whom their sender doesn't hear. Where a link is cut, in one direction or both, one of the
//             nodes that both ends hear passes the records of each on to the other.
//   absence   a peer not heard of for peer_timeout is away: what it may lack is pinned, later own births are
//             folded into one chunk an absence. When it is back both exchange vectors at once. What is gone from the
//             logs is made good by a state copy.
//   estate    what a node hasn't sent of its hot keys it tells the next live node, which publishes it in its place if
//             it dies (estate.hpp).
//   join      a later incarnation of a node copies all segments from a peer, each with the vector it is true for.
//   forget    runs that are over, or whose node was removed, are refused once they are forgotten: a node that
//             comes back after that comes as a later incarnation, and incarnations of a node ascend.
//
// Guarantees: no birth is counted twice on a node. What a crashed node had not sent is lost: of a hot key a 256th of
// the capacity and what came in the last tell_window, of others at most slack/N tokens; and what it sent that reached
// nobody, or what it had told a node that died with it. Everything else arrives, once the nodes can reach each other,
// within the named limits; what is dropped past a limit is counted in `stats()` and made good by a copy, or counted as
// lost.
//
// Overshoot: zero at zero delay with hits of 1; about (arrival rate * delay) at a delay; hits above the share may
// exceed by (N-1)/N of the slack, once a bucket, unless LargeHits::claim asks the others first.
//
// Its parts answer for themselves, each by its header alone: which records were seen and are held (ledger.hpp), who can
// be reached and what they have (peers.hpp), what copied segments are true for (floor.hpp), whom to ask for a copy and
// which answers fit together (state_copy.hpp), hits that ask first (claims.hpp), keys (keys.hpp), estates (estate.hpp),
// births of unknown limiters (shelf.hpp). The replica hands them what happens, and turns what they answer into frames
// and levels.
//
// Thread safety: none; one step at a time. Complexity: a decision is a look-up and a few comparisons; a record from
// elsewhere one merge of interval sets; ticks are linear in the number of peers; sweeps visit one of 64 segments a
// second.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "weir/admissions.hpp"
#include "weir/carries.hpp"
#include "weir/claims.hpp"
#include "weir/estate.hpp"
#include "weir/floor.hpp"
#include "weir/frame.hpp"
#include "weir/keys.hpp"
#include "weir/ledger.hpp"
#include "weir/machine.hpp"
#include "weir/peers.hpp"
#include "weir/shelf.hpp"
#include "weir/slots.hpp"
#include "weir/state_copy.hpp"
#include "weir/units.hpp"

namespace weir {

// What a side of a partition does: goes on with the full slack; counts its births as if the others did the same;
// denies unless it is the larger half.
enum class Partition : std::uint8_t { open, share, closed };
// Hits above the share: admitted at once, or after asking the others. Or all hits are decided by their key's owner
// (owners.hpp), whose table is told nothing that might be wrong.
enum class LargeHits : std::uint8_t { admit, claim, owner };

struct ReplicatedTerms {
  Policy policy;
  std::uint32_t version = 1;
  Partition partition = Partition::open;
  LargeHits large_hits = LargeHits::admit;
  Nanos flush_after{0};              // unsent births older than this are sent anyway; 0: never
  Nanos claim_timeout{100'000'000};  // a claim that isn't answered by all is decided on what is known
};

struct ReplicaConfig {
  NodeId self;
  std::uint64_t incarnation = 1;
  std::vector<NodeId> members;     // this node too
  std::vector<NodeId> neighbours;  // those it can talk to; records are passed on where these are not all
  bool joining = false;            // copies the state of a peer before it takes part in repair
  std::uint64_t seed = 0;          // spreads the nodes' timers
  Nanos start;

  Nanos gossip_interval{300'000'000};
  Nanos heartbeat_interval{500'000'000};
  Nanos peer_timeout{2'000'000'000};
  Nanos forget_after{3'600'000'000'000};
  // Others' records, until their origin says that all have them, longer never; own ones for who was just lost from
  // sight.
  Nanos keep_others{5'000'000'000};
  Nanos future_bound{10'000'000'000};  // births further ahead put their origin into quarantine
  Nanos coalesce_most{20'000'000};
  Nanos long_delay{20'000'000};  // from here on, what is on its way is estimated
  std::size_t max_keys = std::size_t{1} << 22;
  std::size_t max_parked = std::size_t{1} << 20;   // bytes of frames that wait for a state copy
  std::size_t max_shelved = std::size_t{1} << 20;  // bytes of births whose limiter isn't known yet (shelf.hpp)
  std::size_t max_claims = 1024;
  std::size_t max_resets = std::size_t{1} << 16;
  Nanos tell_window{100'000'000};                  // unsent births of hot keys wait so long for one frame to the buddy
  std::size_t max_tells = std::size_t{1} << 16;    // own keys that are told; 0: none
  std::size_t max_estates = std::size_t{1} << 16;  // copies of others' unsent births
  HistoryLimits history;
};

struct ReplicaStats {
  std::uint64_t records_sent = 0;     // once, whatever the number of peers
  std::uint64_t records_applied = 0;  // of others
  std::uint64_t duplicates = 0;
  std::uint64_t nacks = 0;
  std::uint64_t repaired = 0;  // records and chunks sent again on demand
  std::uint64_t chunks_applied = 0;
  std::uint64_t copies = 0;            // state copies taken
  std::uint64_t copies_abandoned = 0;  // nobody gave one: the node went on with what it had
  std::uint64_t lost_own_records = 0;  // own records that were gone when a copy would have needed them
  std::uint64_t malformed = 0;
  std::uint64_t refused = 0;  // from nodes or runs that don't belong here, or in quarantine
  std::uint64_t evicted_keys = 0;
  std::uint64_t forgotten_births = 0;  // unsent tokens older than the horizon that nobody else knew the key of
  std::uint64_t absences = 0;
  std::uint64_t shelved = 0;       // records and entries of limiters, or versions, that weren't known when they came
  std::uint64_t lost_shelved = 0;  // of these, those that were dropped because they were too many
  std::uint64_t told = 0;          // keys, each time that some of their unsent births were told
  std::uint64_t estates = 0;       // published by this node
  std::uint64_t lost_copies = 0;   // others' unsent births that there was no room for
};

// How far a key may be admitted beyond its capacity, in tokens: because others' births are on their way, whatever their
// number; and how far it was. What crashes and partitions add is not in it (doc/cluster.md).
struct Overshoot {
  // What arrives within one delay, twice: at the arrivals of the last second so much is on its way when the bucket is
  // full, and about as much again was below the shares one delay ago. At least 2 where there are others.
  Tokens expected;
  Tokens worst;     // if each node were asked for all that is left within one delay
  Tokens exceeded;  // the level is beyond the capacity by so much
};

// What a key's TAT is to be in a node's table that decides by itself: raised to this, or exactly this.
struct Level {
  LimiterId limiter;
  KeyHash key;
  Nanos tat;
  bool exactly = false;
};

class Replica final : public Machine {
 public:
  explicit Replica(const ReplicaConfig& config);

  // Makes a limiter, or changes it: what is unsent under the old terms is pushed, levels are carried over once. There
  // are at most Slots::kMost - 1 limiters; one more is not made, and counted as refused.
  void put_limiter(LimiterId limiter, const ReplicatedTerms& terms, Nanos now, Effects& effects);
  // Sends what is unsent of all keys.
  void push(Nanos now, Effects& effects);
  // Forgets a limiter and its keys.
  void drop_limiter(LimiterId limiter);
  // Births of the key before `time` count no more, whoever tells of them; of two resets the later one holds. With `own`
  // the other nodes learn of it with the next step, as of births; who was away then learns of it later. False for one
  // from the far future or of an unknown limiter, or if there are more than max_resets of the last horizon: then an own
  // one has no effect.
  bool reset(LimiterId limiter, KeyHash key, Nanos time, Nanos now, bool own);
  bool knows(LimiterId id) const noexcept { return limiter(id) != nullptr; }

  // A node whose threads decide in a table of their own (admissions.hpp) tells what they admitted, then makes a step,
  // and brings the levels that others' births have raised into that table. What is claimed by others, or probably on
  // its way, counts in these levels; lowered, they may miss births that were admitted in the moment before, until the
  // key's next birth.
  // Of a limiter that isn't known yet (tables know it a moment before) they wait for it, some of them.
  void admitted(const Admission& admission, Nanos now);
  // Brings into the cache what `admitted` of this key will look at, and changes nothing: for a batch of births, before
  // the first is told.
  void prefetch(LimiterId limiter, KeyHash key) const noexcept;
  // When births went lost on the way here: what the table counts of a key more than this replica does, was admitted.
  void catch_up(LimiterId limiter, KeyHash key, Nanos tat, Nanos now);
  // A key goes by another hash from now on: its births under both are united. What comes later under the hash of before
  // makes a key of its own, whose level the table is told, and carries in its turn.
  void carry(const Carry& carry, Nanos now);
  void tell_levels() noexcept { tells_levels_ = true; }
  std::vector<Level> take_levels() noexcept { return std::exchange(levels_, {}); }
  // Whether this side of a partition has half of the members or fewer: it denies under Partition::closed.
  bool minority() const noexcept { return 2 * live() <= registered(); }

  void step(const Event& event, Nanos now, Effects& effects) override;
  // A step of many frames, in its parts: each is taken, then what has become due is sent. A malformed one is counted,
  // and does nothing.
  void take(const Arrival& arrival, Nanos now, Effects& effects);
  void send_due(Nanos now, Effects& effects);
  Nanos wake() const noexcept override;
  bool quiet() const noexcept override;
  Held held() const override;
  // Of the keys' bytes, the limiter's part by their number.
  std::size_t held(LimiterId limiter) const;

  // For observation and tests.
  ReplicaStats stats() const noexcept {
    ReplicaStats stats = stats_;
    stats.lost_shelved = shelf_.lost();
    return stats;
  }
  IntervalSet published(LimiterId limiter, KeyHash key) const;
  IntervalSet unsent(LimiterId limiter, KeyHash key) const;
  // Births of nodes that died, which count here by their estates.
  IntervalSet inherited(LimiterId limiter, KeyHash key) const;
  std::vector<VectorEntry> vector() const { return ledger_.vector(); }
  // Nodes that take part now, this one too; those that it can't hear itself are taken to live.
  std::size_t live() const noexcept { return live_; }
  std::size_t registered() const noexcept { return members_.size(); }
  bool copying() const noexcept { return copy_.has_value(); }
  // Segments of a copy are put in place, or of this node's are given: the next steps take long. Keys are not to be
  // carried meanwhile.
  bool moves_segments() const noexcept { return (copy_ && copy_->moves()) || gives(); }
  std::uint64_t dropped() const noexcept { return ledger_.history().dropped(); }
  std::size_t keys() const noexcept { return keys_.size(); }
  std::size_t log_bytes() const noexcept { return ledger_.history().log_bytes(); }
  Overshoot overshoot(LimiterId limiter, KeyHash key, Nanos now) const;
  // The most that any key of the limiter has exceeded its capacity by when births of others became known, since the
  // limiter was made or changed, with what was expected then.
  Overshoot most_exceeded(LimiterId limiter) const;
  // The estimated offset of a peer's clock from this one's, and the round trip; nothing before the first echo.
  std::optional<std::pair<Nanos, Nanos>> clock_of(NodeId peer) const noexcept;
  // Whether the peer's births are refused, as they lay further ahead than future_bound.
  bool quarantined(NodeId peer) const noexcept;

 private:
  struct Limiter {
    LimiterId id;
    LimiterSlot slot;
    ReplicatedTerms terms;
    // Whether these births, said to be of `subject`, can be counted.
    bool takes(const Subject& subject, std::span<const Interval> births) const noexcept {
      return subject.key.v != 0 && (subject.version != terms.version || IntervalSet::valid(terms.policy, births));
    }
  };
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // limiter, key
  // Under Partition::share: tokens admitted by this side since the cut, and the births held on behalf of the other.
  struct Shadow {
    Tokens admitted;
    StoredSet set;
  };
  using Records = Ledger::Records;
  // How births came: as news, some time late, or in a copy.
  enum class Receipt : std::uint8_t { news, repair, copy };

  // replica.cpp: decisions and records
  void ask(const Ask& ask, Nanos now, Effects& effects);
  bool admits(const Limiter& limiter, const KeyState& state, KeyHash key, Tokens hits, Nanos now) const;
  Tokens on_the_way(Tokens capacity, const KeyState& state, Nanos now) const noexcept;
  KeyState admit(const Limiter& limiter, KeyHash key, Tokens hits, Nanos now);
  void count_for_other_side(const Limiter& limiter, KeyHash key, std::span<const Interval> births, Nanos now);
  void drop_shadows(Nanos now);
  Nanos union_tat(const Limiter& limiter, const KeyState& state) const;
  void settle(const Limiter& limiter, KeyState state, Nanos now, bool exactly = false);
  void tell_level(const Limiter& limiter, KeyHash key, Nanos now, bool exactly = false);
  void tell_level(const Limiter& limiter, KeyHash key, const KeyState& state, Nanos now, bool exactly);
  void tell_estimates(Nanos now);
  IntervalSet since_reset(const Key& key, const IntervalSet& births) const;
  bool take_reset(const Limiter& limiter, KeyHash key, Nanos time, Nanos now);
  void emit_reset(const Key& key, Nanos now, FrameWriter& frame);
  Nanos tat_of(const Limiter& limiter, const KeyState& state) const noexcept;
  std::int64_t share(const Limiter& limiter, const KeyState& state, Nanos now) const noexcept;
  bool is_far(const Limiter& limiter, const KeyState& state, Tokens hits, Nanos now) const noexcept;
  void push_if_due(const Limiter& limiter, KeyState state, Nanos now);
  void make_due(KeyState state, Nanos at);
  void flush(Nanos now, Effects& effects, const Peer* acked_peer = nullptr, std::uint64_t claim = 0);
  void emit(const Limiter& limiter, KeyState state, Nanos now, FrameWriter& frame);
  void number(const Limiter& limiter, KeyHash key, const IntervalSet& births, Nanos now, FrameWriter& frame);
  void push_grown(Nanos now);
  void make_room(LimiterId id, KeyHash key, Nanos now);
  void sweep(Nanos now);
  bool keep_key(KeyState state, Nanos now);
  Overshoot overshoot(const Limiter& limiter, const KeyState& state, Nanos now) const;
  void note_overshoot(const Limiter& limiter, const KeyState& state, Nanos now);

  void apply_items(Peer& peer, const Frame& frame, std::span<const std::byte> bytes, Nanos now, Effects& effects);
  void apply(Peer& peer, const Frame& frame, const RecordItem& item, Nanos now);
  bool is_early(Peer& peer, Origin& origin, Nanos last_birth, Nanos now);
  void take_in(const Subject& subject, std::span<const Interval> births, Nanos now, Receipt receipt);
  void put_back(const Subject& subject, std::span<const Interval> births, Nanos now, Receipt receipt);
  void unshelve(LimiterId id, Nanos now);
  void count_early(LimiterId id, Nanos now);
  void keep_for_others(const Peer& peer, const RecordItem& item, std::span<const Interval> births, Nanos now);
  void trim_others(Nanos now);

  // replica_peers.cpp: signs of life, membership
  bool belongs(const OriginId& id) const noexcept;
  Origin& run_of(const OriginId& id, Nanos now);
  bool enroll(Peer& peer, std::uint64_t incarnation, Nanos now);
  void introduce(const Introduced& run) noexcept;
  void tick(Nanos now, Effects& effects);
  void heartbeats(Nanos now, Effects& effects);
  void apply(Peer& peer, const HeartbeatItem& item, Nanos now);
  void apply(Peer& peer, const SparedItem& item) noexcept;
  void check_life(Nanos now);
  void went_away(Peer& peer, Nanos now);
  void came_back(Peer& peer, Nanos now, Effects& effects);
  void add_member(NodeId node, Nanos now);
  void remove_member(NodeId node, Nanos now);
  void forget_history(Nanos now);
  void collect(Nanos now);
  void end_quarantine(Peer& peer, Nanos now);
  void measure(Nanos now) noexcept;
  bool may_be_over(const OriginId& id, Nanos now) const noexcept;
  bool plausible(const CopyItem& item) const noexcept;

  // replica_repair.cpp: gaps, vectors, chunks
  void note(Origin& origin, std::uint64_t known, NodeId via, Nanos now, Nanos patience);
  void repair(Nanos now, Effects& effects);
  void try_again(Origin& origin, Nanos now) noexcept;
  void apply(Peer& peer, const NackItem& item, Nanos now, Effects& effects);
  void supply(Peer& peer, std::span<const Range> ranges, Nanos now, FrameWriter& frame, Effects& effects);
  void apply(Peer& peer, const GoneItem& item, Nanos now, Effects& effects);
  void send_vector(const Peer& peer, bool answer, Effects& effects);
  void apply(Peer& peer, const VectorItem& item, Nanos now, Effects& effects);
  bool lost_lately(Nanos now) const noexcept;
  void send_digest(Nanos now, Effects& effects);
  void news(Nanos now, bool of_members = false) noexcept;
  void apply(Peer& peer, const Frame& frame, const ChunkItem& item, Nanos now, Effects& effects);

  // replica_copies.cpp: what is in no log any more
  void start_copy(NodeId donor, const Origin& missed, Nanos now, Effects& effects);
  std::vector<StateCopy::Donor> donors() const;
  void ask_for_copy(Nanos now, Effects& effects);
  Nanos copy_patience() const noexcept;
  void ask_for_more(Effects& effects);
  void offer_itself(const Peer& peer, const VectorItem& item, Nanos now, Effects& effects);
  void apply(Peer& peer, const CopyRequestItem& item, Nanos now, Effects& effects);
  bool can_give() const noexcept;
  bool gives() const noexcept;
  void give(Nanos now, Effects& effects);
  void give_segment(Peer& peer, CopyItem& head, Nanos now, FrameWriter& frame, Effects& effects);
  void apply(Peer& peer, const Frame& frame, const CopyItem& item, Nanos now, Effects& effects);
  void place_segments(Nanos now, Effects& effects);
  void place_segment(std::uint8_t segment, const Records& own, Nanos now);
  void put_own(const Floor& floor, const Subject& subject, std::span<const Interval> births, Nanos now);
  void add_own_births(const Floor& floor, std::uint8_t segment, const Records& records, Nanos now);
  bool takes_copy(const Floors& floors, Nanos now, Effects& effects);
  void end_copy(Nanos now, Effects& effects);
  void stand_at(const Floor& floor, Nanos now);
  void add_others(Peer& donor, Nanos now);
  void finish_copy(Nanos now, Effects& effects);
  void unpark(Nanos now, Effects& effects);

  // replica_estates.cpp: what is unsent survives a crash
  void find_buddy(Nanos now);
  bool is_hot(const Limiter& limiter, const KeyState& state, std::int64_t least, Nanos now) const noexcept;
  void note_untold(const Limiter& limiter, const KeyState& state, Nanos now);
  void tell(Nanos now, Effects& effects);
  void apply(const Peer& peer, const Frame& frame, const TellItem& item, Nanos now, Effects& effects);
  void apply(const RetellItem& item, Nanos now);
  bool may_have_applied(const OriginId& origin, const Key& key, std::uint64_t position);
  void inherit(const Subject& subject, const Estate& estate, std::uint64_t first, bool counted, Nanos now);
  void hold(const Subject& subject, const Estate& estate, std::uint64_t first, bool counted, Nanos now);
  void end_copy_of(const OriginId& origin, std::uint64_t seq, const Subject& subject, std::span<const Interval> births,
                   Nanos now);
  void declare_dead(const OriginId& origin, Nanos now);
  void publish_estates(Nanos now, FrameWriter& frame, Effects& effects);
  void change_estates(const Limiter& before, const ReplicatedTerms& terms, Nanos now);
  void reset_estates(const Limiter& limiter, KeyHash key, Nanos time);
  bool has_estate(const KeyState& state) const;

  // replica_claims.cpp: hits above the share that ask first
  bool claim(const Limiter& limiter, const Ask& ask, Nanos now, Effects& effects);
  void apply(Peer& peer, const ClaimItem& item, Nanos now, Effects& effects);
  void acknowledged(const Peer& peer, std::uint64_t id, Nanos now, Effects& effects);
  void release(const std::vector<OthersClaim>& ended, Nanos now);
  void decide(const Claim& claim, Nanos now, Effects& effects);
  void expire_claims(Nanos now, Effects& effects);

  // replica_carry.cpp: keys that go by another hash
  void rename(const Key& before, const Key& key);
  KeyState take_over(const Limiter& limiter, const KeyState& was, KeyHash key, Nanos now);
  std::uint64_t next_answer() noexcept;

  const Limiter* limiter(LimiterId id) const noexcept { return limiters_.find(id.v); }
  const Limiter& limiter_of(const KeyState& state) const noexcept { return limiters_[state.limiter().v]; }
  // None if there is no such key, or no such limiter. (A key's state is like a pointer: those who only look pass it on
  // as const.)
  KeyState find(LimiterId id, KeyHash key) const noexcept;
  void erase_keys(LimiterSlot limiter);
  void send_to(NodeId node, FrameWriter& frame, Traffic traffic, Effects& effects);
  void send_to_live(FrameWriter& frame, Traffic traffic, Effects& effects);

  ReplicaConfig config_;
  OriginId self_;
  bool relays_ = false;      // there are members that this node can't talk to
  bool introduces_ = false;  // runs count only once they are introduced
  std::vector<NodeId> members_;
  std::vector<std::pair<NodeId, Nanos>> left_;  // and when: others may still hand on their last records
  Peers peers_;                                 // neighbours
  Slots<Limiter> limiters_;

  std::size_t live_ = 1;  // see live()
  // There are more nodes than at that time, so shares are smaller: segments of keys that weren't looked at since.
  Nanos grown_at_ = kNever;
  std::size_t grown_next_ = 0;

  Keys keys_;
  Ledger ledger_;
  Shelf shelf_;

  std::deque<Admission> early_;  // of limiters that aren't known yet, at most kEarlyMost
  std::vector<Key> due_;         // keys whose unsent goes with the next frame
  Nanos flush_at_ = kNever;
  // When to look at a key for flush_after, the earliest first.
  std::priority_queue<std::pair<Nanos, Key>, std::vector<std::pair<Nanos, Key>>, std::greater<>> aging_;
  std::map<Key, Shadow> shadows_;
  std::map<Key, Nanos> resets_;                  // kept for a horizon
  std::vector<Key> resets_due_;                  // own ones, which go with the next frame
  std::map<std::uint32_t, Overshoot> exceeded_;  // see most_exceeded
  bool tells_levels_ = false;
  std::vector<Level> levels_;
  std::vector<Key> estimated_;  // keys in whose told level an estimate of what is on its way counts
  Claims claims_;
  std::uint64_t copies_given_ = 0;
  std::uint64_t carried_ = 0;  // keys, by `carry`
  Nanos carried_at_;           // when the last one was

  std::optional<StateCopy> copy_;
  Nanos losing_since_ = kNever;  // a copy would cost own births since then
  Nanos no_copy_before_;         // after some that were not taken
  std::uint32_t copies_refused_ = 0;
  std::vector<std::pair<NodeId, Bytes>> parked_;
  std::size_t parked_bytes_ = 0;

  Estates estates_;
  std::vector<std::pair<Estates::Place, std::uint32_t>> estates_due_;  // to be published, with the limiter's version
  Tells tells_;
  OriginId buddy_;  // who is told; of incarnation 0: nobody
  Nanos tell_at_ = kNever;
  FrameWriter numbered_;  // records that were numbered outside of a step

  Nanos heartbeat_at_;
  std::array<std::uint64_t, 2> heads_{};  // of this node's records, at the last heartbeats
  Nanos sweep_at_;
  std::size_t sweep_next_ = 0;
  Nanos repair_at_ = kNever;
  Nanos digest_at_ = kNever;
  Nanos lost_news_;  // when a record was applied whose origin can't be reached
  std::uint32_t digests_left_ = 0;
  bool digest_urgent_ = false;  // further news don't put it off
  std::size_t digest_peer_ = 0;

  Frame frame_;                         // what arrived, decoded
  std::optional<FrameWriter> relayed_;  // what is to be passed on
  FrameWriter relay_{0};                // scratch: one record as others would be sent it
  ReplicaStats stats_;
};

}  // namespace weir
