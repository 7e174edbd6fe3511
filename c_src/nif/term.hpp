// term: Erlang terms in and out, and the wrapper around every entry of the NIF.
//
// Rules of the boundary: a glue function decodes all its arguments, then calls the core once, then encodes; expected
// outcomes are values made of atoms interned at load; no exception leaves C++.
#pragma once

#include <erl_nif.h>

#include <cstdint>
#include <new>
#include <optional>
#include <string_view>

#include "state.hpp"
#include "weir/key.hpp"
#include "weir/registry.hpp"
#include "weir/units.hpp"

namespace weir::nif {

// Keys from this size on are accounted to the caller's time slice of a millisecond: hashing takes 1 us for 2 KB.
inline constexpr std::size_t kLongKey = 2048;
inline constexpr std::size_t kBytesPerPercent = 20'000;

// clang-format off
#define WEIR_ATOMS(X) \
  X(allow) X(deny) X(infinity) X(ok) X(more) X(done) X(error) X(created) X(changed) X(busy) \
  X(fixed) X(too_many) X(unknown_limiter) X(other_key) X(long_key) X(bad_hits) X(bad_item) \
  X(allowed) X(limit) X(remaining) X(reset_ms) X(retry_ms) X(system_limit) X(weir_internal_error) \
  X(malformed) X(unlike_interval) X(too_long) X(too_late) X(out_of_order) X(bad_list) X(bad_interval) X(bad_window) \
  X(bad_threshold) \
  X(ask) X(arrival) X(tick) X(registered) X(unregistered) X(incarnation) X(answer) X(send) X(data) X(repair) X(heartbeat) \
  X(open) X(share) X(closed) X(admit) X(claim) X(published) X(unsent) X(inherited) X(unknown) \
  X(local) X(births) X(weir_births) X(none) X(same_number) X(replicated) \
  X(owner) X(joined) X(left) X(asks) X(reason) X(shadow) X(partition) X(limited) X(all)
// clang-format on

struct Atoms {
#define X(name) ERL_NIF_TERM name;
  WEIR_ATOMS(X)
#undef X
  ERL_NIF_TERM true_, false_, long_;
  ERL_NIF_TERM one;  // the integer: small ones are immediate, the same word everywhere
};
extern Atoms atoms;

extern ErlNifResourceType* handle_type;

// A resource: a limiter that a caller holds on to.
struct Handle {
  Registry::Ref ref;
};

void make_atoms(ErlNifEnv* env) noexcept;

// What a key's term is hashed as. `external` says that the term is a binary which is another key's external format.
enum class Form : std::uint8_t { native, external };

struct Question {
  Registry::Ref ref;
  KeyHash key;
  Tokens hits;
  KeyHash before;  // of a key whose level may still be under its hash of before a rotation; else 0
};

// Decoders return 0 when all is well, else the atom that says what isn't.
ERL_NIF_TERM get_limiter(ErlNifEnv* env, ERL_NIF_TERM term, Registry::Ref& ref) noexcept;
// Of a key that isn't a binary.
ERL_NIF_TERM hash_term(ErlNifEnv* env, ERL_NIF_TERM term, const SipKey& secret, KeyHash& key) noexcept;
// The key's hash under a secret. `bytes` grows by what was hashed.
inline ERL_NIF_TERM hash_key(ErlNifEnv* env, ERL_NIF_TERM term, Form form, const SipKey& secret, KeyHash& key,
                             std::size_t& bytes) noexcept {
  // First what most keys are.
  if (ErlNifBinary binary; enif_inspect_binary(env, term, &binary)) [[likely]] {
    if (binary.size > kMaxKeyBytes) [[unlikely]]
      return atoms.long_key;
    bytes += binary.size;
    key = weir::hash_key(secret, form == Form::external ? KeyType::external : KeyType::binary,
                         {reinterpret_cast<const char*>(binary.data), binary.size});
    return 0;
  }
  return form == Form::external ? atoms.other_key : hash_term(env, term, secret, key);
}
// While the limiter's keys are carried over: brings what it knows of the key under the hash of before to that of now,
// and returns that hash. Not inlined: a limiter has a rotation behind it for nearly all of its life.
[[gnu::noinline]] KeyHash carry(ErlNifEnv* env, ERL_NIF_TERM term, Form form, Registry::Ref ref, KeyHash key,
                                Nanos now) noexcept;
// The key's hash as of now, in `question`, whose `ref` is given.
inline ERL_NIF_TERM get_key(ErlNifEnv* env, ERL_NIF_TERM term, Form form, Nanos now, Question& question,
                            std::size_t& bytes) noexcept {
  // The secret before carry_until: a rotation sets them the other way round.
  const ERL_NIF_TERM wrong = hash_key(env, term, form, state->secrets.get(Secrets::kNow), question.key, bytes);
  if (wrong == 0 && now < question.ref.limiter->carry_until()) [[unlikely]]
    question.before = carry(env, term, form, question.ref, question.key, now);
  return wrong;
}
ERL_NIF_TERM get_other_hits(ErlNifEnv* env, ERL_NIF_TERM term, Tokens& hits) noexcept;
inline ERL_NIF_TERM get_hits(ErlNifEnv* env, ERL_NIF_TERM term, Tokens& hits) noexcept {
  hits = {1};
  return term == atoms.one ? 0 : get_other_hits(env, term, hits);
}
inline ERL_NIF_TERM get_question(ErlNifEnv* env, const ERL_NIF_TERM* terms, Form form, Nanos now, Question& question,
                                 std::size_t& bytes) noexcept {
  if (const ERL_NIF_TERM wrong = get_limiter(env, terms[0], question.ref)) return wrong;
  if (const ERL_NIF_TERM wrong = get_key(env, terms[1], form, now, question, bytes)) return wrong;
  return get_hits(env, terms[2], question.hits);
}
// A long key takes more of a scheduler's time than a call of a NIF is taken for.
inline void account_bytes(ErlNifEnv* env, std::size_t bytes) noexcept {
  if (bytes >= kLongKey) [[unlikely]]
    enif_consume_timeslice(env, static_cast<int>(1 + bytes / kBytesPerPercent));
}

bool get_bytes(ErlNifEnv* env, ERL_NIF_TERM term, std::string_view& bytes) noexcept;

ERL_NIF_TERM make_ms(ErlNifEnv* env, Nanos duration) noexcept;  // rounded up; kNever is `infinity`
// {allow, N} | {deny, Ms}
inline ERL_NIF_TERM make_answer(ErlNifEnv* env, const Answered& answered, Tokens hits, Nanos now) noexcept {
  if (answered.allowed) [[likely]]
    return enif_make_tuple2(env, atoms.allow, enif_make_int64(env, answered.remaining(now).v));
  return enif_make_tuple2(env, atoms.deny, make_ms(env, answered.retry(hits, now)));
}
ERL_NIF_TERM make_reason(Answered::Reason reason) noexcept;
// What a caller may want to know of a decision; without a reason if it is a mere look.
ERL_NIF_TERM make_map(ErlNifEnv* env, const Answered& answered, Tokens hits, Nanos now);
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
