// term: Erlang terms in and out, and the wrapper around every entry of the NIF.
//
// Rules of the boundary: a glue function decodes all its arguments, then calls the core once, then encodes; expected
// outcomes are values made of atoms interned at load; no exception leaves C++.
#pragma once

#include <erl_nif.h>

#include <atomic>
#include <cstdint>
#include <forward_list>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>

#include "weir/registry.hpp"
#include "weir/siphash.hpp"
#include "weir/units.hpp"

namespace weir::nif {

// Binaries and other terms longer than this are refused as keys: hashing takes about 1 us for 2 KB, and a NIF call may
// not take more than 100 us.
inline constexpr std::size_t kMaxKeyBytes = 65536;
// Tuples are hashed natively while their encoding fits here and they nest no deeper than this; others go by their
// external format. Both numbers decide which hash a key gets: they must be the same on all nodes.
inline constexpr std::size_t kMaxTupleBytes = 512;
inline constexpr unsigned kMaxTupleDepth = 3;

// clang-format off
#define WEIR_ATOMS(X) \
  X(allow) X(deny) X(infinity) X(ok) X(more) X(done) X(error) X(created) X(changed) X(busy) \
  X(fixed) X(too_many) X(unknown_limiter) X(other_key) X(long_key) X(bad_hits) X(bad_item) \
  X(allowed) X(limit) X(remaining) X(reset_ms) X(retry_ms) X(system_limit) X(weir_internal_error) \
  X(malformed) X(unlike_interval) X(too_long) X(too_late) X(out_of_order) X(bad_list) X(bad_interval) X(bad_window) \
  X(bad_threshold) \
  X(ask) X(arrival) X(tick) X(registered) X(unregistered) X(answer) X(send) X(data) X(repair) X(heartbeat) \
  X(open) X(share) X(closed) X(admit) X(claim) X(published) X(unsent) X(unknown) \
  X(local) X(births) X(weir_births) X(none) X(same_number) X(replicated) \
  X(owner) X(joined) X(left)
// clang-format on

struct Atoms {
#define X(name) ERL_NIF_TERM name;
  WEIR_ATOMS(X)
#undef X
  ERL_NIF_TERM true_, false_;
  ERL_NIF_TERM one;  // the integer: small ones are immediate, the same word everywhere
};
extern Atoms atoms;

// Under what keys are hashed. For a while after a rotation, keys are carried over from the secret before.
struct Secrets {
  SipKey now;
  SipKey before;
  Nanos since{0};  // the rotation; 0: nothing is carried
};
// A key is carried for as long as its limiter's births matter, and for this long at least.
inline constexpr Nanos kCarriedLeast{60'000'000'000};

// What all instances of the library in this VM share: it is handed on at an upgrade.
struct State {
  explicit State(unsigned threads) : registry(threads), stripes(threads) { set_secrets({}); }
  Registry registry;
  // Each stays where it is, as threads may be reading it: 48 bytes, twice a rotation.
  std::forward_list<Secrets> all_secrets;
  std::atomic<const Secrets*> secrets{nullptr};
  SipKey names;  // under which names of limiters are hashed; it is this node's own affair, and never rotated
  std::mutex secrets_mutex;
  unsigned instances = 0;  // libraries loaded: the last to go deletes the state
  unsigned stripes = 1;
  Nanos (*now)() noexcept = nullptr;  // the clock of the newest instance
  // The replica that the tables' births go to, and who drives it.
  std::mutex attach_mutex;
  std::atomic<void*> replica{nullptr};  // a resource that is kept
  ErlNifPid reader{};

  // REQUIRES: secrets_mutex, or no other thread.
  void set_secrets(const Secrets& to) { secrets.store(&all_secrets.emplace_front(to), std::memory_order_release); }
  Admissions& births() noexcept { return registry.replication().births; }
  Carries& carries() noexcept { return registry.replication().carries; }
};
extern State* state;
extern ErlNifResourceType* handle_type;

// A resource: a limiter that a caller holds on to.
struct Handle {
  Registry::Ref ref;
};

// The calling thread's set of counters.
unsigned stripe() noexcept;

// After births that the replica is to have: wakes who drives it, if need be.
void wake_reader(ErlNifEnv* env) noexcept;

void make_atoms(ErlNifEnv* env) noexcept;

// The hash of a name or key of bytes of `type`.
enum class KeyType : std::uint8_t { name, binary, atom, integer, unsigned_integer, floating, tuple, address, external };
KeyHash hash_bytes(const SipKey& secret, KeyType type, std::string_view bytes) noexcept;

// What a key's term is hashed as. `external` says that the term is a binary which is another key's external format.
enum class Form : std::uint8_t { native, external };

struct Question {
  Registry::Ref ref;
  KeyHash key;
  Tokens hits;
};

// Decoders return 0 when all is well, else the atom that says what isn't.
ERL_NIF_TERM get_limiter(ErlNifEnv* env, ERL_NIF_TERM term, Registry::Ref& ref) noexcept;
// The key's hash under a secret.
ERL_NIF_TERM hash_key(ErlNifEnv* env, ERL_NIF_TERM term, Form form, const SipKey& secret, KeyHash& key) noexcept;
// As long as the limiter's keys are carried: the key's hash under the secret before; else 0.
KeyHash hash_before(ErlNifEnv* env, ERL_NIF_TERM term, Form form, Registry::Ref ref) noexcept;
// Not inlined: a check has a rotation behind it for nearly all of its life.
[[gnu::noinline]] void carry(ErlNifEnv* env, ERL_NIF_TERM term, Form form, Registry::Ref ref, KeyHash key) noexcept;
// The key's hash as of now. After a rotation, what the limiter knows of it under the one before is carried over first.
inline ERL_NIF_TERM get_key(ErlNifEnv* env, ERL_NIF_TERM term, Form form, Registry::Ref ref, KeyHash& key) noexcept {
  const Secrets& secrets = *state->secrets.load(std::memory_order_acquire);
  const ERL_NIF_TERM wrong = hash_key(env, term, form, secrets.now, key);
  if (wrong == 0 && secrets.since.v != 0) [[unlikely]]
    carry(env, term, form, ref, key);
  return wrong;
}
ERL_NIF_TERM get_hits(ErlNifEnv* env, ERL_NIF_TERM term, Tokens& hits) noexcept;
inline ERL_NIF_TERM get_question(ErlNifEnv* env, const ERL_NIF_TERM* terms, Form form, Question& question) noexcept {
  if (const ERL_NIF_TERM wrong = get_limiter(env, terms[0], question.ref)) return wrong;
  if (const ERL_NIF_TERM wrong = get_key(env, terms[1], form, question.ref, question.key)) return wrong;
  return get_hits(env, terms[2], question.hits);
}

bool get_bytes(ErlNifEnv* env, ERL_NIF_TERM term, std::string_view& bytes) noexcept;

ERL_NIF_TERM make_ms(ErlNifEnv* env, Nanos duration) noexcept;  // rounded up; kNever is `infinity`
// Remaining >= 0 | -RetryMs < 0 | infinity: what costs least to return.
ERL_NIF_TERM make_verdict(ErlNifEnv* env, const Decision& decision) noexcept;
ERL_NIF_TERM make_answer(ErlNifEnv* env, const Decision& decision) noexcept;  // {allow, N} | {deny, Ms}
ERL_NIF_TERM make_map(ErlNifEnv* env, const Decision& decision, Tokens capacity);

using Entry = ERL_NIF_TERM(ErlNifEnv*, int, const ERL_NIF_TERM[]);

// The entry as Erlang sees it.
template <Entry* F>
ERL_NIF_TERM guarded(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) noexcept {
  try {
    return F(env, argc, argv);
  } catch (const std::bad_alloc&) {
    return enif_raise_exception(env, atoms.system_limit);
  } catch (...) {
    return enif_raise_exception(env, atoms.weir_internal_error);
  }
}

}  // namespace weir::nif
