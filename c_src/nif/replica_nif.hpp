#pragma once

#include <erl_nif.h>

#include <array>

namespace weir::nif {

struct State;

// Opens (or takes over) the resource type of replicas. False if the emulator refuses.
bool open_replica_type(ErlNifEnv* env, ErlNifResourceFlags flags) noexcept;

extern const std::array<ErlNifFunc, 22> replica_functions;

// Births are told to no replica any more.
void detach_replica(State& state) noexcept;

}  // namespace weir::nif
