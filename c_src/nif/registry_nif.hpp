#pragma once

#include <erl_nif.h>

#include <array>

namespace weir::nif {

// The destructor of a handle.
void drop_handle(ErlNifEnv* env, void* object) noexcept;

extern const std::array<ErlNifFunc, 17> registry_functions;

}  // namespace weir::nif
