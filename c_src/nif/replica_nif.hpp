#pragma once

#include <erl_nif.h>

#include <array>

namespace weir::nif {

// Opens (or takes over) the resource type of replicas. False if the emulator refuses.
bool open_replica_type(ErlNifEnv* env, ErlNifResourceFlags flags) noexcept;

extern const std::array<ErlNifFunc, 10> replica_functions;

}  // namespace weir::nif
