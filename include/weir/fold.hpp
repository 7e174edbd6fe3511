// The concept of a fold over births (DESIGN: "a limiter is a fold over births").
//
// A fold is the state of one key. It is a function of the births that were inserted, never of who inserted them or, up
// to each fold's stated bound, of the order in which they came:
//
//   insert(policy, birth)   add a birth; false (and no change) if the state would leave the representable range
//   level(policy, now)      whole tokens in use at `now`, >= 0; may exceed the capacity (a debt)
//   slack(policy, now)      capacity - level; negative in debt
//   horizon(policy)         births that died longer ago than this can't matter to any later question
//   compact(policy, now)    forget what is beyond the horizon
//
// `now` is always an argument: no fold reads a clock.
#pragma once

#include <concepts>

#include "weir/units.hpp"

namespace weir {

template <class F>
concept Fold = requires(F fold, const F& state, const Policy& policy, Birth birth, Nanos now) {
  { fold.insert(policy, birth) } -> std::same_as<bool>;
  { state.level(policy, now) } -> std::same_as<Tokens>;
  { state.slack(policy, now) } -> std::same_as<Tokens>;
  { F::horizon(policy) } -> std::same_as<Nanos>;
  { fold.compact(policy, now) } -> std::same_as<void>;
};

}  // namespace weir
