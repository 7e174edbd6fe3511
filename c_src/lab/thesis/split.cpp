// split: the baselines that divide the limit by the number of nodes (the thesis, chapter 6).
//
// `split`: each node admits by a token bucket of its own, of c/N tokens (the first c mod N nodes have one more; each at
// least one) and 1/N of the rate. Nothing is sent. Users are never forgotten.
//
// `split+rebalance`: capacity and rate are shared out again by demand, after the messaging platform limiter of Li et
// al.
// ("Impact of distributed rate limiting on load distribution in a latency-sensitive messaging service", 2021):
//
//   - A node's demand for a user is what is asked of it (denied requests too), in hits a gossip interval, smoothed:
//     each interval a quarter of the new replaces a quarter of the old; below 1/16 of a hit it is nothing.
//   - Each gossip interval it tells all neighbours its demand for each user for whom it has any. What a neighbour said
//     counts until it says something else, or for three intervals.
//   - Its share of a user's capacity and rate is own demand / (own + what the neighbours said); 1/N where there is no
//     demand at all. Where the hits of the running interval alone make a higher demand (a new user), it is that one.
//   - The level (tokens taken) stays where it is when the share changes, and drains at share / T. Admitted is while
//   level +
//     hits <= max(1, share * c): a share of less than one token would let nobody in.
//
// So a user who stays with the same nodes gets the whole limit, whichever nodes they are; one who goes to others as the
// demand moves on finds their levels at 0, and can have up to c from each.
//
// A user is forgotten when nobody has demand for him and his level is 0; that is looked at every 64 intervals.
//
//   User   level (times T), when it was settled, demand, hits of this interval, for each neighbour {demand, interval}
//
// Nodes that join or leave don't change N. Complexity: a decision constant, with rebalancing linear in the neighbours;
// a tick linear in the users with demand here.
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lab/thesis/machines.hpp"
#include "lab/thesis/random.hpp"
#include "lab/thesis/states.hpp"
#include "lab/thesis/wire.hpp"
#include "weir/tat.hpp"

namespace weir::thesis {
namespace {

template <class User>
std::size_t map_bytes(const std::unordered_map<std::uint64_t, User>& users) noexcept {
  // A node of the map: the entry and the pointer to the next one.
  return users.size() * (sizeof(std::pair<const std::uint64_t, User>) + sizeof(void*)) +
         users.bucket_count() * sizeof(void*);
}

Policy nth_part(const Policy& policy, const lab::Place& place) noexcept {
  const auto nodes = static_cast<std::int64_t>(std::max<std::size_t>(1, place.members.size()));
  const auto position = std::find(place.members.begin(), place.members.end(), place.self) - place.members.begin();
  const std::int64_t extra = position < policy.capacity.v % nodes ? 1 : 0;
  const std::int64_t capacity = std::max<std::int64_t>(1, policy.capacity.v / nodes + extra);
  // Where that would be a longer span than a policy may have, the rate is a little higher.
  const std::int64_t longest = kSpanMax.v / capacity;
  const std::int64_t interval = policy.interval.v > longest / nodes ? longest : policy.interval.v * nodes;
  return {{capacity}, {interval}};
}

class Split final : public Machine {
 public:
  Split(const lab::Options& options, const lab::Place& place) : policy_(nth_part(options.policy, place)) {}

  void step(const Event& event, Nanos now, Effects& effects) override {
    const auto* const ask = std::get_if<Ask>(&event);
    if (ask == nullptr) return;
    const bool allowed = users_[ask->key.v].decide(policy_, ask->hits, now).allowed;
    effects.answers.push_back({ask->ticket, allowed});
  }
  Nanos wake() const noexcept override { return kNever; }
  bool quiet() const noexcept override { return true; }
  Held held() const override { return {map_bytes(users_), sizeof(Split)}; }

 private:
  Policy policy_;
  std::unordered_map<std::uint64_t, Tat> users_;
};

// Demands are in parts of a hit.
constexpr std::uint32_t kHit = 256;
constexpr std::uint32_t kLeastDemand = kHit / 16;
constexpr std::uint32_t kMostHits = UINT32_MAX / kHit;
constexpr std::uint32_t kBelievedFor = 3;
constexpr std::uint32_t kSweepEvery = 64;
constexpr std::size_t kDemandMost = 8 + 5;

class Rebalance final : public Machine {
 public:
  Rebalance(const lab::Options& options, const lab::Place& place)
      : policy_(options.policy),
        interval_(options.gossip_interval),
        nodes_(static_cast<std::int64_t>(std::max<std::size_t>(1, place.members.size()))),
        neighbours_(place.neighbours) {
    Random random(place.seed ^ (std::uint64_t{place.self.v} << 32U) ^ place.incarnation);
    const auto span = static_cast<std::uint64_t>(interval_.v);
    wake_ = place.start + Nanos{static_cast<std::int64_t>(random.below(span))};
  }

  void step(const Event& event, Nanos now, Effects& effects) override {
    if (const auto* const ask = std::get_if<Ask>(&event)) {
      effects.answers.push_back({ask->ticket, decide(*ask, now)});
    } else if (const auto* const arrival = std::get_if<Arrival>(&event)) {
      arrived(*arrival, now);
    } else if (std::holds_alternative<Tick>(event)) {
      tick(now, effects);
    }
  }
  Nanos wake() const noexcept override { return wake_; }
  bool quiet() const noexcept override { return active_.empty(); }
  Held held() const override {
    return {map_bytes(users_) + heap_bytes(active_) + told_bytes_, sizeof(Rebalance) + heap_bytes(neighbours_)};
  }

 private:
  struct Told {
    std::uint32_t demand = 0;
    std::uint32_t interval = 0;
  };
  struct User {
    Nanos level{0};
    Nanos settled{0};
    std::uint32_t demand = 0;
    std::uint32_t hits = 0;
    std::vector<Told> told;
  };
  struct Share {
    std::uint64_t own = 0;
    std::uint64_t all = 1;
    // This part of `whole`.
    Nanos of(Nanos whole) const noexcept {
      __extension__ using Wide = unsigned __int128;
      return {static_cast<std::int64_t>(static_cast<Wide>(whole.v) * own / all)};
    }
  };
  using Entry = std::pair<const std::uint64_t, User>;

  static std::uint64_t own_demand(const User& user) noexcept {
    return std::max<std::uint64_t>(user.demand, std::uint64_t{user.hits} * (kHit / 4));
  }
  bool believed(const Told& told) const noexcept {
    return told.demand != 0 && interval_now_ - told.interval <= kBelievedFor;
  }

  Share share(const User& user) const noexcept {
    const std::uint64_t own = own_demand(user);
    std::uint64_t all = own;
    for (const Told& told : user.told) all += believed(told) ? told.demand : 0;
    if (all == 0) return {1, static_cast<std::uint64_t>(nodes_)};
    return {own, all};
  }

  void settle(User& user, Nanos now) const noexcept {
    if (now <= user.settled) return;
    user.level = std::max(Nanos{0}, user.level - share(user).of(now - user.settled));
    user.settled = now;
  }

  bool decide(const Ask& ask, Nanos now) {
    Entry& entry = *users_.try_emplace(ask.key.v).first;
    User& user = entry.second;
    settle(user, now);
    if (user.demand == 0 && user.hits == 0) active_.push_back(&entry);
    const auto hits = static_cast<std::uint32_t>(std::min<std::int64_t>(ask.hits.v, kMostHits));
    user.hits = std::min(user.hits, kMostHits - hits) + hits;
    if (ask.hits > policy_.capacity) return false;
    const Nanos room = std::max(policy_.interval, share(user).of(policy_.span()));
    const Nanos cost = ask.hits * policy_.interval;
    if (user.level > room - cost) return false;
    user.level = user.level + cost;
    return true;
  }

  void tick(Nanos now, Effects& effects) {
    if (now < wake_) return;
    wake_ = wake_ + Tokens{(now - wake_).v / interval_.v + 1} * interval_;
    ++interval_now_;
    for (Entry* const entry : active_) {
      User& user = entry->second;
      settle(user, now);
      const std::uint64_t demand = std::uint64_t{user.demand} * 3 / 4 + std::uint64_t{user.hits} * (kHit / 4);
      user.demand = demand < kLeastDemand ? 0 : static_cast<std::uint32_t>(demand);
      user.hits = 0;
    }
    std::erase_if(active_, [](const Entry* entry) { return entry->second.demand == 0; });
    if (interval_now_ % kSweepEvery == 0) sweep(now);
    if (active_.empty() || neighbours_.empty()) return;
    Writer writer(FrameKind::demand, active_.size() * kDemandMost);
    for (const Entry* const entry : active_) {
      writer.fixed(entry->first);
      writer.varint(entry->second.demand);
    }
    const std::uint32_t frame = effects.add_frame(writer.take());
    for (const NodeId to : neighbours_) effects.sends.push_back({to, frame, Traffic::data});
  }

  static bool valid(Reader body) noexcept {
    while (!body.done()) {
      body.fixed<std::uint64_t>();
      if (body.varint() > UINT32_MAX) return false;
    }
    return body.ok();
  }

  void arrived(const Arrival& arrival, Nanos now) {
    const auto from = std::find(neighbours_.begin(), neighbours_.end(), arrival.from);
    if (from == neighbours_.end() || arrival.frame.empty()) return;
    if (arrival.frame[0] != frame_head(FrameKind::demand) || !valid(Reader(arrival.frame.subspan(1)))) return;
    const auto index = static_cast<std::size_t>(from - neighbours_.begin());
    for (Reader body(arrival.frame.subspan(1)); !body.done();) {
      User& user = users_[body.fixed<std::uint64_t>()];
      settle(user, now);
      if (user.told.empty()) {
        user.told.resize(neighbours_.size());
        told_bytes_ += heap_bytes(user.told);
      }
      user.told[index] = {static_cast<std::uint32_t>(body.varint()), interval_now_};
    }
  }

  void sweep(Nanos now) {
    // What is done to one user does not depend on the others, so neither does the result on their order.
    for (auto at = users_.begin(); at != users_.end();) {
      User& user = at->second;
      settle(user, now);
      if (std::none_of(user.told.begin(), user.told.end(), [&](const Told& told) { return believed(told); })) {
        told_bytes_ -= heap_bytes(user.told);
        user.told = std::vector<Told>();
      }
      const bool idle = user.level.v == 0 && user.demand == 0 && user.hits == 0 && user.told.empty();
      at = idle ? users_.erase(at) : std::next(at);
    }
  }

  Policy policy_;
  Nanos interval_;
  std::int64_t nodes_;
  std::vector<NodeId> neighbours_;
  Nanos wake_{kNever};
  std::uint32_t interval_now_ = 0;
  std::unordered_map<std::uint64_t, User> users_;
  std::vector<Entry*> active_;  // users with demand here
  std::size_t told_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Machine> make_split(const lab::Options& options, const lab::Place& place) {
  return std::make_unique<Split>(options, place);
}
std::unique_ptr<Machine> make_rebalance(const lab::Options& options, const lab::Place& place) {
  return std::make_unique<Rebalance>(options, place);
}

}  // namespace weir::thesis
