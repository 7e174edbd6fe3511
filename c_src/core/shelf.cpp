// shelf: see include/weir/shelf.hpp.
#include "weir/shelf.hpp"

#include <utility>

namespace weir {

void Shelf::put(const Subject& subject, std::span<const Interval> births) {
  Entry& entry = entries_.emplace_back();
  entry.subject = subject;
  entry.set.store(IntervalSet::from(births));
  bytes_ += entry.bytes();
  for (; bytes_ > most_; ++lost_) {
    bytes_ -= entries_.front().bytes();
    entries_.pop_front();
  }
}

void Shelf::take(LimiterId limiter, std::uint32_t version, const Visit& visit) {
  std::deque<Entry> taken;
  for (Entry& entry : std::exchange(entries_, {})) {
    const bool mine = entry.subject.limiter == limiter && entry.subject.version <= version;
    (mine ? taken : entries_).push_back(std::move(entry));
  }
  for (const Entry& entry : taken) {
    bytes_ -= entry.bytes();
    visit(entry.subject, entry.set.load().intervals());
  }
}

void Shelf::drop(LimiterId limiter) {
  take(limiter, UINT32_MAX, [](const Subject&, std::span<const Interval>) {});
}

void Shelf::for_each(std::size_t segment, const Visit& visit) const {
  for (const Entry& entry : entries_) {
    if (Keys::segment_of(entry.subject.key) == segment) visit(entry.subject, entry.set.load().intervals());
  }
}

void Shelf::clear(std::size_t segment) {
  std::erase_if(entries_, [&](const Entry& entry) {
    const bool gone = Keys::segment_of(entry.subject.key) == segment;
    if (gone) bytes_ -= entry.bytes();
    return gone;
  });
}

}  // namespace weir
