// nif: the library's entries, and its life in the emulator.
//
// The first instance makes the state (registry, tables, secret); an instance that is loaded as an upgrade of the module
// takes it over, and the handles and replicas with it; the last instance to be unloaded deletes it. Instances share the
// state only if they were built with the same kAbi, which weir_nif.erl passes in: raise it there and here whenever
// State, or anything in it or in a resource, changes its layout.
#include <erl_nif.h>

#include <array>

#include "clock/clock.hpp"
#include "owner_nif.hpp"
#include "queue_nif.hpp"
#include "registry_nif.hpp"
#include "replica_nif.hpp"
#include "table_nif.hpp"
#include "term.hpp"

namespace weir::nif {

namespace {

constexpr int kAbi = 7;

// What load and upgrade return to refuse; the emulator puts the number into its error.
enum Refused : int { kWrongAbi = 1, kNoMemory = 2, kNoResourceType = 3 };

// CREATE for the first instance, TAKEOVER for the next ones, whose handles then run the new library's destructor.
int start(ErlNifEnv* env, ERL_NIF_TERM load_info, void* old_state, void** new_state) noexcept {
  int abi;
  if (!enif_get_int(env, load_info, &abi) || abi != kAbi) return kWrongAbi;
  make_atoms(env);
  state = static_cast<State*>(old_state);
  // This instance's clock goes on from where the last one's stands.
  clock_start({.fallback = false, .not_before = state == nullptr ? Nanos{0} : state->now()});
  const auto flags = static_cast<ErlNifResourceFlags>(ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER);
  handle_type = enif_open_resource_type(env, nullptr, "weir_handle", drop_handle, flags, nullptr);
  if (handle_type == nullptr || !open_replica_type(env, flags) || !open_batch_type(env, flags)) return kNoResourceType;
  if (state == nullptr) {
    ErlNifSysInfo system;
    enif_system_info(&system, sizeof(system));
    try {
      state = new State(static_cast<unsigned>(system.scheduler_threads) + 1);
    } catch (...) {
      return kNoMemory;
    }
  }
  state->now = []() noexcept { return clock_now(); };
  ++state->instances;
  *new_state = state;
  return 0;
}

int load(ErlNifEnv* env, void** private_data, ERL_NIF_TERM load_info) {
  return start(env, load_info, nullptr, private_data);
}

int upgrade(ErlNifEnv* env, void** private_data, void** old_private_data, ERL_NIF_TERM load_info) {
  return start(env, load_info, *old_private_data, private_data);
}

void unload(ErlNifEnv*, void* private_data) {
  auto* shared = static_cast<State*>(private_data);
  if (--shared->instances == 0) {
    detach_replica(*shared);
    delete shared;
    // A handle can delay this until after the module was loaded again, with a state of its own.
    if (state == shared) state = nullptr;
  }
}

// ERL_NIF_INIT wants one array.
struct Functions {
  ErlNifFunc all[table_functions.size() + registry_functions.size() + queue_functions.size() +
                 replica_functions.size() + owner_functions.size()];
  Functions() noexcept {
    ErlNifFunc* const registry = std::copy(table_functions.begin(), table_functions.end(), all);
    ErlNifFunc* const queues = std::copy(registry_functions.begin(), registry_functions.end(), registry);
    ErlNifFunc* const replicas = std::copy(queue_functions.begin(), queue_functions.end(), queues);
    ErlNifFunc* const owners = std::copy(replica_functions.begin(), replica_functions.end(), replicas);
    std::copy(owner_functions.begin(), owner_functions.end(), owners);
  }
} functions;

}  // namespace

}  // namespace weir::nif

ERL_NIF_INIT(weir_nif, weir::nif::functions.all, weir::nif::load, nullptr, weir::nif::upgrade, weir::nif::unload)
