// node: how tables that decide at once and the replica that keeps other nodes informed are coupled.
//
//     tables  -- births (admissions.hpp), keys that got another hash (carries.hpp) -->  replica
//             <-- levels that others' births have raised; the side of a partition, the number of nodes --
//
//   A step of the replica is framed: first it hears what its tables admitted, then it does what the step is, then the
//   tables are brought what became of it. What the rings between them had no room for is looked for in the tables
//   where it was lost, a little in each step (`rescans`). (Not where keys have owners: their cells also hold levels
//   that other nodes told, and these would be counted as births of this node.)
//
//   A node without others keeps its births in its tables alone: the rings are closed, and when the first other node
//   comes all is looked for once.
//
// Guarantee: each birth is told once, however full the rings were; a level here is never below what the replica knows.
//
// Thread safety: one step at a time; tables may be asked by any thread meanwhile. Complexity of a step beside the
// replica's own: about 50 ns for each of at most kBirths births; rescans about 1.5 us for each of kRescanned keys (or a
// segment of a table, if that is more).
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "weir/carries.hpp"
#include "weir/registry.hpp"
#include "weir/replica.hpp"
#include "weir/units.hpp"

namespace weir {

class Node {
 public:
  // Births that one step takes from the tables.
  static constexpr std::size_t kBirths = 2048;
  // Keys that one step looks at again after births were lost.
  static constexpr std::size_t kRescanned = 1024;
  static constexpr std::size_t kCarries = 256;
  // In what time births are looked for again while they come.
  static constexpr Nanos kPoll{2'000'000};
  // The time, by a clock that is behind no birth that another thread has put into a table.
  using Clock = Nanos (*)() noexcept;

  Node(const ReplicaConfig& config, Registry& registry) : registry_(&registry), replica_(config), last_(config.start) {}

  Replica& replica() noexcept { return replica_; }
  const Replica& replica() const noexcept { return replica_; }
  // The time of the last step.
  Nanos last() const noexcept { return last_; }

  // From now on the tables' births come here. Those that wait for another replica are of another life, and dropped.
  void attach(bool in_place_of_another);

  // action(the replica, the time), beside tables or without any; returns what it returns.
  template <class Action>
  auto step_attached(Nanos now, Clock clock, Action action) {
    begin(now);
    const bool births = take_births(clock);
    auto result = action(replica_, last_);
    bring_levels(births);
    return result;
  }
  template <class Action>
  auto step_alone(Nanos now, Action action) {
    begin(now);
    return action(replica_, last_);
  }
  void begin(Nanos now) noexcept { last_ = std::max(last_, now); }

  // After a step: whether another is wanted at once, whatever time it is.
  bool again() const noexcept { return again_; }
  // When the next step is due: kNever if nothing is.
  Nanos wake() const noexcept { return polls_ ? std::min(replica_.wake(), last_ + kPoll) : replica_.wake(); }
  // Whether keys are looked at again for what was lost: the next step takes long.
  bool rescans() const noexcept { return rescans_; }

 private:
  bool has_listeners() const noexcept { return replica_.registered() > 1; }
  bool take_births(Clock clock);
  void rescan(Clock clock);
  void carry_taken();
  void bring_levels(bool births);

  Registry* registry_;
  Replica replica_;
  Nanos last_;
  std::vector<Carry> carries_;  // taken from the tables, but not yet carried
  bool rescans_ = false;
  bool polls_ = false;  // births may wait that nobody tells of: to be looked for in a moment
  bool again_ = false;
};

}  // namespace weir
