#pragma once

#include <erl_nif.h>

#include <array>

namespace weir::nif {

extern const std::array<ErlNifFunc, 8> queue_functions;

}  // namespace weir::nif
