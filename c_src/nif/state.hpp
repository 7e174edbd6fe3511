// state: what all instances of the library in this VM share, handed on at an upgrade; and which part of it a thread
// takes.
//
// Layout: an instance takes the state over only from one with the same kAbi (nif.cpp), so raise that with any change
// here.
#pragma once

#include <erl_nif.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "weir/known_levels.hpp"
#include "weir/registry.hpp"
#include "weir/secrets.hpp"
#include "weir/units.hpp"

namespace weir::nif {

struct State {
  explicit State(unsigned threads);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const std::uint64_t id;  // of this state and no other
  Registry registry;
  KnownLevels known;  // of keys that their owners deny
  Secrets secrets;
  std::mutex secrets_mutex;  // of those who write them
  unsigned instances = 0;    // libraries loaded: the last to go deletes the state
  unsigned stripes = 1;
  std::atomic<unsigned> next_stripe{0};
  ErlNifTSDKey stripe_key{};          // the thread's stripe, and one: the same in all instances
  Nanos (*now)() noexcept = nullptr;  // the clock of the newest instance
  // The replica that the tables' births go to, and who drives it.
  std::mutex attach_mutex;
  std::atomic<void*> replica{nullptr};  // a resource that is kept
  ErlNifPid reader{};

  Admissions& births() noexcept { return registry.replication().births; }
  Carries& carries() noexcept { return registry.replication().carries; }
};
extern State* state;

// The calling thread's set of counters and ring: each scheduler has its own, all other threads share the last.
unsigned stripe() noexcept;

// After births that the replica is to have: wakes the process that drives it, if need be; or in any case.
void wake_reader(ErlNifEnv* env) noexcept;
void wake_again(ErlNifEnv* env) noexcept;

}  // namespace weir::nif
