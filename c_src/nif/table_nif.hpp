#pragma once

#include <erl_nif.h>

#include <array>

#include "weir/table.hpp"

namespace weir::nif {

// {Keys, MaxKeys, EvictedKeys, EvictedTokens, Bytes}
ERL_NIF_TERM make_table_stats(ErlNifEnv* env, const TableStats& stats);

extern const std::array<ErlNifFunc, 21> table_functions;

}  // namespace weir::nif
