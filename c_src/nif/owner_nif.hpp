#pragma once

#include <erl_nif.h>

#include <array>

namespace weir::nif {

extern const std::array<ErlNifFunc, 7> owner_functions;

}  // namespace weir::nif
