#include "term.hpp"

#include <array>

namespace weir::nif {

Atoms atoms;
ErlNifResourceType* handle_type = nullptr;

void make_atoms(ErlNifEnv* env) noexcept {
#define X(name) atoms.name = enif_make_atom(env, #name);
  WEIR_ATOMS(X)
#undef X
  atoms.one = enif_make_int(env, 1);
  atoms.true_ = enif_make_atom(env, "true");
  atoms.false_ = enif_make_atom(env, "false");
  atoms.long_ = enif_make_atom(env, "long");
}

bool get_bytes(ErlNifEnv* env, ERL_NIF_TERM term, std::string_view& bytes) noexcept {
  ErlNifBinary binary;
  if (!enif_inspect_binary(env, term, &binary)) return false;
  bytes = {reinterpret_cast<const char*>(binary.data), binary.size};
  return true;
}

namespace {

// Calls number(type, number) or bytes(type, content) for a term that is hashed natively and isn't a tuple.
template <class Numbers, class Bytes>
bool visit_simple(ErlNifEnv* env, ERL_NIF_TERM term, Numbers number, Bytes bytes) noexcept {
  ErlNifBinary binary;
  if (enif_inspect_binary(env, term, &binary))
    return bytes(KeyType::binary, std::string_view(reinterpret_cast<const char*>(binary.data), binary.size));
  if (ErlNifSInt64 integer; enif_get_int64(env, term, &integer)) return number(KeyType::integer, integer);
  if (enif_is_atom(env, term)) {
    // Latin-1 text is the same on every version of OTP; other atoms go by their external format.
    char text[256];
    const int size = enif_get_atom(env, term, text, sizeof(text), ERL_NIF_LATIN1);
    return size > 0 && bytes(KeyType::atom, std::string_view(text, static_cast<std::size_t>(size) - 1));
  }
  if (ErlNifUInt64 integer; enif_get_uint64(env, term, &integer)) return number(KeyType::unsigned_integer, integer);
  if (double real; enif_get_double(env, term, &real)) return number(KeyType::floating, without_sign_of_zero(real));
  return false;
}

// A tuple that inet would call an address, {1,2,3,4} or eight words, is hashed as its 4 or 16 bytes: half the time of a
// tuple. Any tuple of such numbers is, so what it means doesn't matter. False for all others.
bool hash_address(ErlNifEnv* env, ERL_NIF_TERM term, const SipKey& secret, KeyHash& key) noexcept {
  int arity;
  const ERL_NIF_TERM* elements;
  if (!enif_get_tuple(env, term, &arity, &elements) || (arity != 4 && arity != 8)) return false;
  const unsigned most = arity == 4 ? 0xff : 0xffff;
  std::array<char, 16> bytes;
  std::size_t size = 0;
  for (int i = 0; i < arity; ++i) {
    unsigned value;
    if (!enif_get_uint(env, elements[i], &value) || value > most) return false;
    if (arity == 8) bytes[size++] = static_cast<char>(value >> 8);
    bytes[size++] = static_cast<char>(value & 0xff);
  }
  key = weir::hash_key(secret, KeyType::address, {bytes.data(), size});
  return true;
}

bool add_tuple(ErlNifEnv* env, ERL_NIF_TERM term, TupleKey& tuple, unsigned depth) noexcept {
  int arity;
  const ERL_NIF_TERM* elements;
  if (depth == kMaxTupleDepth || !enif_get_tuple(env, term, &arity, &elements) ||
      !tuple.add_tuple(static_cast<std::uint32_t>(arity)))
    return false;
  for (int i = 0; i < arity; ++i) {
    const bool simple = visit_simple(
        env, elements[i], [&](KeyType type, auto number) { return tuple.add_number(type, number); },
        [&](KeyType type, std::string_view content) { return tuple.add_bytes(type, content); });
    if (!simple && !add_tuple(env, elements[i], tuple, depth + 1)) return false;
  }
  return true;
}

ERL_NIF_TERM hash_tuple(ErlNifEnv* env, ERL_NIF_TERM term, const SipKey& secret, KeyHash& key) noexcept {
  if (hash_address(env, term, secret, key)) return 0;
  TupleKey tuple;
  if (!add_tuple(env, term, tuple, 0)) return atoms.other_key;
  key = tuple.hash(secret);
  return 0;
}

}  // namespace

ERL_NIF_TERM get_limiter(ErlNifEnv* env, ERL_NIF_TERM term, Registry::Ref& ref) noexcept {
  // An alias is an atom's term, and no other term is the same word.
  ref = state->registry.find_alias(term);
  if (ref) return 0;
  void* object;
  if (std::string_view name; get_bytes(env, term, name)) {
    ref = state->registry.find(weir::hash_key(state->secrets.get(Secrets::kNames), KeyType::name, name));
  } else if (enif_get_resource(env, term, handle_type, &object)) {
    // A handle keeps its limiter, but not beyond the application's stop.
    ref = static_cast<const Handle*>(object)->ref;
    if (ref.limiter->table().generation() != ref.generation) return atoms.unknown_limiter;
  }
  return ref ? 0 : atoms.unknown_limiter;
}

ERL_NIF_TERM hash_term(ErlNifEnv* env, ERL_NIF_TERM term, const SipKey& secret, KeyHash& key) noexcept {
  if (enif_is_tuple(env, term)) return hash_tuple(env, term, secret, key);
  const bool simple = visit_simple(
      env, term,
      [&](KeyType type, auto number) {
        key = weir::hash_key(secret, type, number);
        return true;
      },
      [&](KeyType type, std::string_view content) {
        key = weir::hash_key(secret, type, content);
        return true;
      });
  return simple ? 0 : atoms.other_key;
}

KeyHash carry(ErlNifEnv* env, ERL_NIF_TERM term, Form form, Registry::Ref ref, KeyHash key, Nanos now) noexcept {
  KeyHash before;
  std::size_t bytes = 0;
  if (hash_key(env, term, form, state->secrets.get(Secrets::kBefore), before, bytes) != 0) return {};
  if (Registry::carry(ref, before, key, now)) wake_reader(env);
  return before;
}

ERL_NIF_TERM get_other_hits(ErlNifEnv* env, ERL_NIF_TERM term, Tokens& hits) noexcept {
  ErlNifSInt64 value;
  if (!enif_get_int64(env, term, &value) || value < 1) return atoms.bad_hits;
  hits = {value};
  return 0;
}

ERL_NIF_TERM make_ms(ErlNifEnv* env, Nanos duration) noexcept {
  if (duration == kNever) return atoms.infinity;
  return enif_make_int64(env, ceil_div(duration.v, 1'000'000));
}

ERL_NIF_TERM make_reason(Answered::Reason reason) noexcept {
  switch (reason) {
    case Answered::Reason::ok:
      return atoms.ok;
    case Answered::Reason::limit:
      return atoms.limited;
    case Answered::Reason::shadow:
      return atoms.shadow;
    case Answered::Reason::partition:
      return atoms.partition;
    default:
      return atoms.error;
  }
}

namespace {

ERL_NIF_TERM make_decision(ErlNifEnv* env, const Decision& decision, Tokens capacity, ERL_NIF_TERM reason) {
  ERL_NIF_TERM keys[] = {atoms.allowed, atoms.limit, atoms.remaining, atoms.reset_ms, atoms.retry_ms, atoms.reason};
  ERL_NIF_TERM values[] = {decision.allowed ? atoms.true_ : atoms.false_,
                           enif_make_int64(env, capacity.v),
                           enif_make_int64(env, decision.remaining.v),
                           make_ms(env, decision.reset),
                           make_ms(env, decision.retry),
                           reason};
  ERL_NIF_TERM map;
  if (!enif_make_map_from_arrays(env, keys, values, reason == 0 ? 5 : 6, &map)) throw std::bad_alloc();
  return map;
}

}  // namespace

ERL_NIF_TERM make_map(ErlNifEnv* env, const Answered& answered, Tokens hits, Nanos now) {
  return make_decision(env, answered.decision(hits, now), answered.policy.capacity, make_reason(answered.reason));
}

ERL_NIF_TERM make_map(ErlNifEnv* env, const Decision& decision, Tokens capacity) {
  return make_decision(env, decision, capacity, 0);
}

}  // namespace weir::nif
