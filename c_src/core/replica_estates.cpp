// replica: what a node hasn't sent of hot keys survives its crash. See include/weir/estate.hpp.
#include <algorithm>
#include <cassert>

#include "weir/replica.hpp"

namespace weir {
namespace {

// A hot key is told when a 256th of the capacity isn't: the loss that shows is absolute, not a part of the share.
constexpr std::int64_t kParts = 256;
// Hot is what would fill if all nodes were asked as much: a key of which this node's births alone, drained at an Nth of
// the rate, leave more than this part of the capacity (or more than is told at once, if that is less).
constexpr std::int64_t kHotParts = 64;
// Estates that are published in one step.
constexpr std::size_t kPublishMost = 2048;

}  // namespace

// Telling.

// The next one round the ring: who is told by whom needs no agreement. // Another buddy knows nothing yet.
void Replica::find_buddy(Nanos now) {
  const Peer* const next = peers_.next_live(self_.node);
  const OriginId buddy = next == nullptr ? OriginId{} : OriginId{next->node, next->incarnation};
  if (buddy == buddy_) return;
  buddy_ = buddy;
  tells_.again();
  if (tells_.due()) tell_at_ = std::min(tell_at_, now + config_.tell_window);
}

bool Replica::is_hot(const Limiter& limiter, const KeyState& state, std::int64_t least, Nanos now) const noexcept {
  const Policy& policy = limiter.terms.policy;
  const auto nodes = limiter.terms.partition == Partition::open ? live() : registered();
  const double interval = static_cast<double>(nodes) * static_cast<double>(policy.interval.v);
  return state.unsent_level(interval, now) > static_cast<double>(std::min(least, policy.capacity.v / kHotParts));
}

void Replica::note_untold(const Limiter& limiter, const KeyState& state, Nanos now) {
  if (buddy_.incarnation == 0 || state.due() || limiter.terms.large_hits == LargeHits::owner) return;
  const std::int64_t least = std::max<std::int64_t>(1, limiter.terms.policy.capacity.v / kParts);
  if (state.unsent_weight().v < least || !is_hot(limiter, state, least, now)) return;
  const Key key{limiter.id.v, state.key().v};
  const Tells::Told* const told = tells_.find(key);
  if (told != nullptr && (told->due || state.unsent_weight().v - told->weight.v < least)) return;
  if (tells_.make_due(key)) tell_at_ = std::min(tell_at_, now + config_.tell_window);
}

// With a frame that goes to the buddy anyway, or alone when the window is over.
void Replica::tell(Nanos now, Effects& effects) {
  const auto ride = std::find_if(effects.sends.rbegin(), effects.sends.rend(), [&](const Send& send) {
    return send.to == buddy_.node && send.traffic != Traffic::repair &&
           effects.frames[send.frame].size() < kFrameTarget;
  });
  if (tell_at_ > now && ride == effects.sends.rend()) return;
  TellItem item;
  item.position = ledger_.history().head() + 1;
  std::vector<Interval> births;
  for (const Key& key : tells_.take_due(kToldMax)) {
    const KeyState state = find({key.first}, {key.second});
    if (!state || !state.has_unsent() || state.due()) continue;
    const Limiter& its = limiter_of(state);
    Tells::Told& told = *tells_.find(key);
    const IntervalSet unsent = state.unsent();
    const Tokens weight = unsent.weight();
    // Of what is too old some is dropped: then the oldest are others.
    if (told.weight > weight) told.weight = {0};
    if (told.weight == weight) continue;
    const std::uint64_t number = tells_.number();
    if (item.keys.empty()) item.tell = number;
    const Nanos end = unsent.tat(its.terms.policy);
    ToldItem next;
    if (told.weight.v == 0) {
      told.first = number;
      next.subject = {its.id, its.terms.version, state.key()};
      next.set = {static_cast<std::uint32_t>(births.size()), static_cast<std::uint32_t>(unsent.size())};
      births.insert(births.end(), unsent.begin(), unsent.end());
    } else {
      // The rest fused, as IntervalSet does it: its births are moved later, by no more than its own weight.
      next.since = number - told.first;
      next.from = told.weight;
      next.more = weight - told.weight;
      next.later = std::max(Nanos{0}, end - next.more * its.terms.policy.interval) - told.end;
    }
    item.keys.push_back(next);
    told.weight = weight;
    told.end = end;
  }
  tell_at_ = tells_.due() ? now + config_.tell_window : kNever;
  if (item.keys.empty() || buddy_.incarnation == 0) return;
  stats_.told += item.keys.size();
  FrameWriter frame(self_.incarnation);
  const std::size_t header = frame.size();
  frame.put(item, births);
  if (ride == effects.sends.rend()) {
    send_to(buddy_.node, frame, Traffic::data, effects);
    return;
  }
  Bytes longer = effects.frames[ride->frame];
  const auto told = frame.since(header);
  longer.insert(longer.end(), told.begin(), told.end());
  ride->frame = effects.add_frame(std::move(longer));
}

void Replica::apply(const RetellItem& item, Nanos now) {
  std::vector<std::uint64_t> firsts = item.firsts;
  std::sort(firsts.begin(), firsts.end());
  tells_.again(firsts);
  if (tells_.due()) tell_at_ = std::min(tell_at_, now + config_.tell_window);
}

// Keeping what others tell.

namespace {

// Whether what was told goes on where the copy ends; `whole` is both then.
bool adds(const Estates::Copy& copy, const ToldItem& told, const Policy& policy, IntervalSet& whole) {
  if (copy.births.weight() != told.from) return false;
  const Interval rest{copy.births.tat(policy) + told.later, told.more};
  if (rest.start.v < 0 || !IntervalSet::valid(policy, {&rest, 1})) return false;
  whole = copy.births.load();
  return whole.merge(policy, IntervalSet::from({&rest, 1}));
}

}  // namespace

void Replica::apply(const Peer& peer, const Frame& frame, const TellItem& item, Nanos now, Effects& effects) {
  const OriginId origin{peer.node, frame.incarnation};
  if (peer.quarantined) return;
  RetellItem retell;
  std::uint64_t number = item.tell;
  for (const ToldItem& told : item.keys) {
    Estate estate{origin, item.position, number++, {}};
    if (told.since == 0) {
      estate.births = IntervalSet::from(frame.set(told.set));
      inherit(told.subject, estate, estate.tell, false, now);
      continue;
    }
    const std::uint64_t first = estate.tell - std::min(told.since, estate.tell);
    const std::optional<Estates::Place> place = estates_.find(origin, first);
    const Estates::Copy* const copy = place ? estates_.find(*place) : nullptr;
    if (copy != nullptr && copy->tell >= estate.tell) continue;
    if (copy == nullptr || !adds(*copy, told, limiter(place->limiter)->terms.policy, estate.births)) {
      retell.firsts.push_back(first);
      continue;
    }
    const Subject subject{place->limiter, limiter(place->limiter)->terms.version, place->key};
    inherit(subject, estate, first, false, now);
  }
  if (retell.firsts.empty()) return;
  FrameWriter answer(self_.incarnation);
  answer.put(retell);
  send_to(peer.node, answer, Traffic::repair, effects);
}

// Rule R, for a copy that comes after a record: whether a record of the key with that number or a later one was applied
// here. Where the log doesn't say, it is taken as true: the copy is refused, and its births are missing here until they
// come in a record.
bool Replica::may_have_applied(const OriginId& id, const Key& key, std::uint64_t position) {
  if (copy_ && copy_->true_for().reaches({key.second}, id, position)) return true;
  return ledger_.may_have_applied(id, key, position);
}

// A copy of another's unsent births came: by a tell, or (`counted`) by an estate.
void Replica::inherit(const Subject& subject, const Estate& estate, std::uint64_t first, bool counted, Nanos now) {
  if (ledger_.origins().find(estate.origin) == nullptr && !belongs(estate.origin)) return;
  const Key key{subject.limiter.v, subject.key.v};
  if (!may_have_applied(estate.origin, key, estate.position)) hold(subject, estate, first, counted, now);
}

void Replica::hold(const Subject& subject, const Estate& estate, std::uint64_t first, bool counted, Nanos now) {
  const Limiter* const its = limiter(subject.limiter);
  if (its == nullptr || subject.version != its->terms.version || estate.origin == self_) return;
  const Policy& policy = its->terms.policy;
  const auto births = estate.births.intervals();
  if (subject.key.v == 0 || estate.position == 0 || estate.tell == 0 || births.empty() ||
      !IntervalSet::valid(policy, births)) {
    ++stats_.malformed;
    return;
  }
  if (births.back().start > now + config_.future_bound) {
    ++stats_.refused;
    return;
  }
  const Estates::Place place{subject.key, subject.limiter, estate.origin};
  Estates::Copy* const had = estates_.find(place);
  const bool published = counted;  // by who says so
  counted = counted || (had != nullptr && had->counted);
  if (had != nullptr && had->tell >= estate.tell) {
    had->published = had->published || (published && had->tell == estate.tell);
    if (std::exchange(had->counted, counted) == counted) return;
  } else {
    const IntervalSet left = since_reset({subject.limiter.v, subject.key.v}, estate.births);
    if (left.empty() || left.tat(policy) < now - IntervalSet::horizon(policy)) return estates_.erase(place);
    Estates::Copy copy{estate.position, estate.tell, first, counted, published, {}};
    copy.births.store(left);
    if (!estates_.put(place, std::move(copy))) {
      ++stats_.lost_copies;
      return;
    }
  }
  if (!counted) return;
  if (keys_.size() >= config_.max_keys && !keys_.find(its->slot, subject.key)) {
    make_room(subject.limiter, subject.key, now);
  }
  const KeyState state = keys_.find_or_insert(its->slot, subject.key);
  settle(*its, state, now);
  push_if_due(*its, state, now);
}

// Rule R, for a record that comes after a copy: it holds the copy's births.
void Replica::end_copy_of(const OriginId& origin, std::uint64_t seq, const Subject& subject,
                          std::span<const Interval> births, Nanos now) {
  if (estates_.empty() || reset_time(subject.key, births) || is_estate(births)) return;
  const Estates::Place place{subject.key, subject.limiter, origin};
  const Estates::Copy* const copy = estates_.find(place);
  if (copy == nullptr || seq < copy->position) return;
  const bool counted = copy->counted;
  estates_.erase(place);
  const KeyState state = counted ? find(subject.limiter, subject.key) : KeyState();
  if (state) settle(limiter_of(state), state, now);
}

IntervalSet Replica::inherited(LimiterId id, KeyHash key) const {
  IntervalSet all;
  const Limiter* const its = limiter(id);
  if (its == nullptr) return all;
  estates_.for_each(id, key, [&](const Estates::Place&, const Estates::Copy& copy) {
    if (copy.counted) [[maybe_unused]]
      const bool merged = all.merge(its->terms.policy, copy.births.load());
  });
  return all;
}

bool Replica::has_estate(const KeyState& state) const {
  bool has = false;
  if (estates_.empty()) return has;
  estates_.for_each(limiter_of(state).id, state.key(),
                    [&](const Estates::Place&, const Estates::Copy& copy) { has = has || copy.counted; });
  return has;
}

// Publishing.

// What this node holds of its births is published with the next frames.
void Replica::declare_dead(const OriginId& origin, Nanos now) {
  if (estates_.empty() || origin.incarnation == 0) return;
  estates_.for_each([&](const Estates::Place& place, const Estates::Copy& copy) {
    if (place.origin != origin || copy.published) return;
    estates_due_.emplace_back(place, limiter(place.limiter)->terms.version);
    flush_at_ = now;
  });
}

void Replica::publish_estates(Nanos now, FrameWriter& frame, Effects& effects) {
  std::size_t count = 0;
  for (; !estates_due_.empty() && count < kPublishMost; estates_due_.pop_back(), ++count) {
    const auto& [place, version] = estates_due_.back();
    const Limiter* const its = limiter(place.limiter);
    Estates::Copy* const copy = estates_.find(place);
    if (its == nullptr || its->terms.version != version || copy == nullptr || copy->published) continue;
    const Origin* const origin = ledger_.origins().find(place.origin);
    // What was applied here since it was told wasn't of this key: else the copy were gone.
    if (origin != nullptr) copy->position = std::max(copy->position, origin->upto + 1);
    copy->counted = true;
    copy->published = true;
    Estate estate{place.origin, copy->position, copy->tell, copy->births.load()};
    estate.births.fuse(its->terms.policy, kEstateCap);
    number(*its, place.key, estate_record(estate), now, frame);
    ++stats_.estates;
    if (frame.size() > kFrameTarget) send_to_live(frame, Traffic::data, effects);
    const KeyState state = keys_.find_or_insert(its->slot, place.key);
    settle(*its, state, now);
    push_if_due(*its, state, now);
  }
  if (!estates_due_.empty()) flush_at_ = now;
}

// Changes.

// Those that don't count yet will be told anew: their origin sends all that is unsent when it learns of the change.
void Replica::change_estates(const Limiter& before, const ReplicatedTerms& terms, Nanos now) {
  estates_.erase_if([&](const Estates::Place& place, Estates::Copy& copy) {
    if (place.limiter != before.id) return false;
    IntervalSet births = copy.births.load();
    births.change(before.terms.policy, terms.policy, now);
    copy.births.store(births);
    return births.empty() || !copy.counted;
  });
}

void Replica::reset_estates(const Limiter& limiter, KeyHash key, Nanos time) {
  if (!tells_.empty()) tells_.again({limiter.id.v, key.v});
  if (estates_.empty()) return;
  std::vector<std::pair<Estates::Place, IntervalSet>> left;
  estates_.for_each(limiter.id, key, [&](const Estates::Place& place, const Estates::Copy& copy) {
    left.emplace_back(place, copy.births.load().since(time));
  });
  for (const auto& [place, births] : left) estates_.set_births(place, births);
}

}  // namespace weir
