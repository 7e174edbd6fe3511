#pragma once

#include <erl_nif.h>

#include <array>

#include "weir/table.hpp"

namespace weir::nif {

// {Keys, MaxKeys, EvictedKeys, EvictedTokens, Bytes}
ERL_NIF_TERM make_table_stats(ErlNifEnv* env, const TableStats& stats);

bool open_batch_type(ErlNifEnv* env, ErlNifResourceFlags flags) noexcept;

extern const std::array<ErlNifFunc, 14> table_functions;

}  // namespace weir::nif
