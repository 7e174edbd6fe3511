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
  atoms.long_ = enif_make_atom(env, "long");
}

State::State(unsigned threads)
    : id(static_cast<std::uint64_t>(enif_monotonic_time(ERL_NIF_NSEC)) | 1), registry(threads), stripes(threads) {
  static char name[] = "weir_stripe";
  if (enif_tsd_key_create(name, &stripe_key) != 0) throw std::bad_alloc();
}

State::~State() { enif_tsd_key_destroy(stripe_key); }

namespace {

// The key of thread-specific data is the same for all instances of the library, what stands behind it too: a thread
// never has two stripes, nor two threads one.
[[gnu::noinline]] unsigned first_stripe() noexcept {
  const auto mine = reinterpret_cast<std::uintptr_t>(enif_tsd_get(state->stripe_key));
  if (mine != 0) return static_cast<unsigned>(mine);
  unsigned taken = state->stripes;
  if (enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER)
    taken = std::min(state->stripes, 1 + state->next_stripe.fetch_add(1, std::memory_order_relaxed));
  enif_tsd_set(state->stripe_key, reinterpret_cast<void*>(static_cast<std::uintptr_t>(taken)));
  return taken;
}

}  // namespace

unsigned stripe() noexcept {
  // Of this instance of the library, and of the state that it was taken from.
  struct Mine {
    std::uint64_t state = 0;
    unsigned stripe = 0;
  };
#ifdef __GLIBC__
  // A nanosecond less; musl refuses the model in a library that is loaded at run time.
  [[gnu::tls_model("initial-exec")]]
#endif
  static thread_local Mine mine;
  if (mine.state != state->id) [[unlikely]]
    mine = {state->id, first_stripe()};
  return mine.stripe - 1;
}

void wake_reader(ErlNifEnv* env) noexcept {
  if (state->births().wakes()) wake_again(env);
}

void wake_again(ErlNifEnv* env) noexcept {
  ErlNifPid reader;
  {
    const std::lock_guard lock(state->attach_mutex);
    reader = state->reader;
  }
  // If it is gone, whoever takes its place will be told.
  static_cast<void>(enif_send(env, &reader, nullptr, atoms.weir_births));
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
    ref = state->registry.find(hash_bytes(state->secrets.get(Secrets::kNames), KeyType::name, name));
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
      [&](KeyType type, const void* eight) {
        key = hash_bytes(secret, type, {static_cast<const char*>(eight), 8});
        return true;
      },
      [&](KeyType type, std::string_view content) {
        key = hash_bytes(secret, type, content);
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
