#include "term.hpp"

#include <array>
#include <cstring>

#include "clock.hpp"

namespace weir::nif {

Atoms atoms;
State* state = nullptr;
ErlNifResourceType* handle_type = nullptr;

void make_atoms(ErlNifEnv* env) noexcept {
#define X(name) atoms.name = enif_make_atom(env, #name);
  WEIR_ATOMS(X)
#undef X
  atoms.one = enif_make_int(env, 1);
  atoms.true_ = enif_make_atom(env, "true");
  atoms.false_ = enif_make_atom(env, "false");
}

unsigned stripe() noexcept {
  // The first threads get a set of their own, all later ones share the last.
  static std::atomic<unsigned> next{0};
  static thread_local unsigned mine = 0;
  if (mine == 0) mine = 1 + next.fetch_add(1, std::memory_order_relaxed);
  return std::min(mine, state->stripes) - 1;
}

void wake_reader(ErlNifEnv* env) noexcept {
  if (!state->births().wakes()) return;
  ErlNifPid reader;
  {
    const std::lock_guard lock(state->attach_mutex);
    reader = state->reader;
  }
  // If it is gone, whoever takes its place will be told.
  static_cast<void>(enif_send(env, &reader, nullptr, atoms.weir_births));
}

KeyHash hash_bytes(const SipKey& secret, KeyType type, std::string_view bytes) noexcept {
  return siphash13(secret, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()},
                   static_cast<std::uint8_t>(type));
}

bool get_bytes(ErlNifEnv* env, ERL_NIF_TERM term, std::string_view& bytes) noexcept {
  ErlNifBinary binary;
  if (!enif_inspect_binary(env, term, &binary)) return false;
  bytes = {reinterpret_cast<const char*>(binary.data), binary.size};
  return true;
}

namespace {

// The canonical bytes of one element of a tuple: type, length where it varies, content.
class TupleWriter {
 public:
  std::string_view written() const noexcept { return {bytes_, size_}; }

  bool add_scalar(KeyType type, const void* eight) noexcept { return put_type(type) && put(eight, 8); }
  bool add_bytes(KeyType type, std::string_view content) noexcept {
    const auto length = static_cast<std::uint32_t>(content.size());
    return content.size() <= kMaxTupleBytes && put_type(type) && put(&length, 4) && put(content.data(), content.size());
  }
  bool add_arity(int arity) noexcept {
    const auto length = static_cast<std::uint32_t>(arity);
    return put_type(KeyType::tuple) && put(&length, 4);
  }

 private:
  bool put_type(KeyType type) noexcept { return put(&type, 1); }
  bool put(const void* from, std::size_t n) noexcept {
    if (n > sizeof(bytes_) - size_) return false;
    std::memcpy(bytes_ + size_, from, n);
    size_ += n;
    return true;
  }

  char bytes_[kMaxTupleBytes];
  std::size_t size_ = 0;
};
static_assert(std::endian::native == std::endian::little, "encoded numbers are little-endian on every node");

// Calls scalar(type, eight bytes) or bytes(type, content) for a term that is hashed natively and isn't a tuple.
template <class Scalar, class Bytes>
bool visit_simple(ErlNifEnv* env, ERL_NIF_TERM term, Scalar scalar, Bytes bytes) noexcept {
  ErlNifBinary binary;
  if (enif_inspect_binary(env, term, &binary))
    return bytes(KeyType::binary, std::string_view(reinterpret_cast<const char*>(binary.data), binary.size));
  if (ErlNifSInt64 integer; enif_get_int64(env, term, &integer)) return scalar(KeyType::integer, &integer);
  if (enif_is_atom(env, term)) {
    // Latin-1 text is the same on every version of OTP; other atoms go by their external format.
    char text[256];
    const int size = enif_get_atom(env, term, text, sizeof(text), ERL_NIF_LATIN1);
    return size > 0 && bytes(KeyType::atom, std::string_view(text, static_cast<std::size_t>(size) - 1));
  }
  if (ErlNifUInt64 integer; enif_get_uint64(env, term, &integer)) return scalar(KeyType::unsigned_integer, &integer);
  if (double number; enif_get_double(env, term, &number)) {
    if (number == 0) number = 0;  // 0.0 and -0.0 are one key, as they are one term up to OTP 26
    return scalar(KeyType::floating, &number);
  }
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
  key = hash_bytes(secret, KeyType::address, {bytes.data(), size});
  return true;
}

bool write_tuple(ErlNifEnv* env, ERL_NIF_TERM term, TupleWriter& writer, unsigned depth) noexcept {
  int arity;
  const ERL_NIF_TERM* elements;
  if (depth == kMaxTupleDepth || !enif_get_tuple(env, term, &arity, &elements) || !writer.add_arity(arity))
    return false;
  for (int i = 0; i < arity; ++i) {
    const bool simple = visit_simple(
        env, elements[i], [&](KeyType type, const void* eight) { return writer.add_scalar(type, eight); },
        [&](KeyType type, std::string_view content) { return writer.add_bytes(type, content); });
    if (!simple && !write_tuple(env, elements[i], writer, depth + 1)) return false;
  }
  return true;
}

ERL_NIF_TERM hash_tuple(ErlNifEnv* env, ERL_NIF_TERM term, const SipKey& secret, KeyHash& key) noexcept {
  if (hash_address(env, term, secret, key)) return 0;
  TupleWriter writer;
  if (!write_tuple(env, term, writer, 0)) return atoms.other_key;
  key = hash_bytes(secret, KeyType::tuple, writer.written());
  return 0;
}

}  // namespace

ERL_NIF_TERM get_limiter(ErlNifEnv* env, ERL_NIF_TERM term, Registry::Ref& ref) noexcept {
  // An alias is an atom's term, and no other term is the same word.
  ref = state->registry.find_alias(term);
  if (ref) return 0;
  void* object;
  if (std::string_view name; get_bytes(env, term, name)) {
    ref = state->registry.find(hash_bytes(state->names, KeyType::name, name));
  } else if (enif_get_resource(env, term, handle_type, &object)) {
    // A handle keeps its limiter, but not beyond the application's stop.
    ref = static_cast<const Handle*>(object)->ref;
    if (ref.limiter->table().generation() != ref.generation) return atoms.unknown_limiter;
  }
  return ref ? 0 : atoms.unknown_limiter;
}

ERL_NIF_TERM hash_key(ErlNifEnv* env, ERL_NIF_TERM term, Form form, const SipKey& secret, KeyHash& key) noexcept {
  if (form == Form::external) {
    std::string_view bytes;
    if (!get_bytes(env, term, bytes)) return atoms.other_key;
    if (bytes.size() > kMaxKeyBytes) return atoms.long_key;
    key = hash_bytes(secret, KeyType::external, bytes);
    return 0;
  }
  if (enif_is_tuple(env, term)) return hash_tuple(env, term, secret, key);
  bool too_long = false;
  const bool simple = visit_simple(
      env, term,
      [&](KeyType type, const void* eight) {
        key = hash_bytes(secret, type, {static_cast<const char*>(eight), 8});
        return true;
      },
      [&](KeyType type, std::string_view content) {
        too_long = content.size() > kMaxKeyBytes;
        if (!too_long) key = hash_bytes(secret, type, content);
        return true;
      });
  if (too_long) return atoms.long_key;
  return simple ? 0 : atoms.other_key;
}

KeyHash hash_before(ErlNifEnv* env, ERL_NIF_TERM term, Form form, Registry::Ref ref) noexcept {
  const Secrets& secrets = *state->secrets.load(std::memory_order_acquire);
  const Nanos lasts = std::max(kCarriedLeast, IntervalSet::horizon(ref.limiter->terms().policy));
  KeyHash before;
  if (secrets.since.v == 0 || clock_now() - secrets.since > lasts) return {};
  return hash_key(env, term, form, secrets.before, before) == 0 ? before : KeyHash{};
}

void carry(ErlNifEnv* env, ERL_NIF_TERM term, Form form, Registry::Ref ref, KeyHash key) noexcept {
  const KeyHash before = hash_before(env, term, form, ref);
  if (before.v != 0 && Registry::carry(ref, before, key, clock_now())) wake_reader(env);
}

ERL_NIF_TERM get_hits(ErlNifEnv* env, ERL_NIF_TERM term, Tokens& hits) noexcept {
  hits = {1};
  if (term == atoms.one) return 0;
  ErlNifSInt64 value;
  if (!enif_get_int64(env, term, &value) || value < 1) return atoms.bad_hits;
  hits = {value};
  return 0;
}

ERL_NIF_TERM make_ms(ErlNifEnv* env, Nanos duration) noexcept {
  if (duration == kNever) return atoms.infinity;
  return enif_make_int64(env, ceil_div(duration.v, 1'000'000));
}

ERL_NIF_TERM make_verdict(ErlNifEnv* env, const Decision& decision) noexcept {
  if (decision.allowed) return enif_make_int64(env, decision.remaining.v);
  if (decision.retry == kNever) return atoms.infinity;
  return enif_make_int64(env, -ceil_div(decision.retry.v, 1'000'000));
}

ERL_NIF_TERM make_answer(ErlNifEnv* env, const Decision& decision) noexcept {
  if (decision.allowed) return enif_make_tuple2(env, atoms.allow, enif_make_int64(env, decision.remaining.v));
  return enif_make_tuple2(env, atoms.deny, make_ms(env, decision.retry));
}

ERL_NIF_TERM make_map(ErlNifEnv* env, const Decision& decision, Tokens capacity) {
  ERL_NIF_TERM keys[] = {atoms.allowed, atoms.limit, atoms.remaining, atoms.reset_ms, atoms.retry_ms};
  ERL_NIF_TERM values[] = {decision.allowed ? atoms.true_ : atoms.false_, enif_make_int64(env, capacity.v),
                           enif_make_int64(env, decision.remaining.v), make_ms(env, decision.reset),
                           make_ms(env, decision.retry)};
  ERL_NIF_TERM map;
  if (!enif_make_map_from_arrays(env, keys, values, 5, &map)) throw std::bad_alloc();
  return map;
}

}  // namespace weir::nif
