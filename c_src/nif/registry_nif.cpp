// Limiters and time: put, alias, delete, handles, maintenance, statistics, the clock.
#include "registry_nif.hpp"

#include "clock/clock.hpp"
#include "table_nif.hpp"
#include "term.hpp"

namespace weir::nif {

namespace {

// Segments that one call works on: about 15 us each (table.hpp).
constexpr unsigned kSegments = 4;
constexpr int kSegmentsTimeslice = 6;  // percent of a slice

bool get_name(ErlNifEnv* env, ERL_NIF_TERM term, std::string_view& name) noexcept {
  return get_bytes(env, term, name) && !name.empty() && name.size() <= Registry::kMaxName;
}

KeyHash name_hash(std::string_view name) noexcept {
  return hash_key(state->secrets.get(Secrets::kNames), KeyType::name, name);
}

ERL_NIF_TERM make_bool(bool value) noexcept { return value ? atoms.true_ : atoms.false_; }

bool get_bool(ERL_NIF_TERM term, bool& value) noexcept {
  value = term == atoms.true_;
  return value || term == atoms.false_;
}

// local | {Number, open | share | closed, admit | claim | owner}
bool get_replicated(ErlNifEnv* env, ERL_NIF_TERM term, LimiterOptions& options) noexcept {
  if (term == atoms.local) return true;
  int arity;
  const ERL_NIF_TERM* parts;
  if (!enif_get_tuple(env, term, &arity, &parts) || arity != 3 || !enif_get_uint(env, parts[0], &options.number.v) ||
      options.number.v == 0)
    return false;
  options.deny_in_minority = parts[1] == atoms.closed;
  options.claims = parts[2] == atoms.claim;
  options.owned = parts[2] == atoms.owner;
  return (options.deny_in_minority || parts[1] == atoms.open || parts[1] == atoms.share) &&
         (options.claims || options.owned || parts[2] == atoms.admit);
}

// put(Name, Capacity, IntervalNs, MaxKeys, Shadow, DenyOnError, Transient, Replicated) -> created | changed | busy |
// fixed | too_many | same_number
ERL_NIF_TERM put(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  std::string_view name;
  ErlNifSInt64 capacity, interval, max_keys;
  LimiterOptions options;
  if (!get_name(env, argv[0], name) || !enif_get_int64(env, argv[1], &capacity) ||
      !enif_get_int64(env, argv[2], &interval) || !enif_get_int64(env, argv[3], &max_keys) ||
      !get_bool(argv[4], options.shadow) || !get_bool(argv[5], options.deny_on_error) ||
      !get_bool(argv[6], options.transient) || !get_replicated(env, argv[7], options))
    return enif_make_badarg(env);
  const Policy policy{{capacity}, {interval}};
  options.max_keys = max_keys;
  if (!policy.valid() || max_keys < 1 || max_keys > Table::kMaxKeys) return enif_make_badarg(env);
  const Registry::Put put = state->registry.put(name, name_hash(name), policy, options, clock_now());
  // What owners told is in terms of before.
  if (options.owned) state->known.forget_all();
  switch (put) {
    case Registry::Put::created:
      return atoms.created;
    case Registry::Put::changed:
      return atoms.changed;
    case Registry::Put::busy:
      return atoms.busy;
    case Registry::Put::fixed:
      return atoms.fixed;
    case Registry::Put::too_many:
      return atoms.too_many;
    case Registry::Put::same_number:
      return atoms.same_number;
  }
  return enif_make_badarg(env);
}

// alias(Atom, Name) -> true | false: whether the limiter exists
ERL_NIF_TERM alias(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  std::string_view name;
  if (!enif_is_atom(env, argv[0]) || !get_name(env, argv[1], name)) return enif_make_badarg(env);
  return make_bool(state->registry.set_alias(name_hash(name), argv[0]));
}

// convert(Name) -> done | more
ERL_NIF_TERM convert(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  std::string_view name;
  if (!get_name(env, argv[0], name)) return enif_make_badarg(env);
  const bool done = state->registry.convert(name_hash(name), kSegments);
  enif_consume_timeslice(env, kSegmentsTimeslice);
  return done ? atoms.done : atoms.more;
}

// delete(Name) -> true | false: whether it existed
ERL_NIF_TERM remove(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  std::string_view name;
  if (!get_name(env, argv[0], name)) return enif_make_badarg(env);
  return make_bool(state->registry.remove(name_hash(name)));
}

ERL_NIF_TERM remove_all(ErlNifEnv*, int, const ERL_NIF_TERM[]) {
  state->registry.remove_all();
  return atoms.ok;
}

// For how long keys of some limiter are still carried over.
Nanos rotation_left() noexcept {
  const Nanos until = state->registry.carried_until();
  return until.v == 0 ? Nanos{0} : std::max(Nanos{0}, until - clock_now());
}

// What the last rotation left behind is wiped when no limiter needs it any more.
void end_rotation() {
  if (state->registry.carried_until().v != 0) return;
  const SipKey before = state->secrets.get(Secrets::kBefore);
  if (before.k0 == 0 && before.k1 == 0) return;
  const std::lock_guard lock(state->secrets_mutex);
  if (state->registry.carried_until().v != 0) return;
  state->secrets.set(state->secrets.get(Secrets::kNow), {}, state->secrets.get(Secrets::kNames));
}

// maintain() -> done | more
ERL_NIF_TERM maintain(ErlNifEnv* env, int, const ERL_NIF_TERM[]) {
  const bool done = state->registry.maintain(clock_now(), kSegments);
  if (done) end_rotation();
  enif_consume_timeslice(env, kSegmentsTimeslice);
  return done ? atoms.done : atoms.more;
}

// handle(Name) -> Resource | unknown_limiter
ERL_NIF_TERM handle(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Registry::Ref ref;
  if (const ERL_NIF_TERM wrong = get_limiter(env, argv[0], ref)) return wrong;
  void* object = enif_alloc_resource(handle_type, sizeof(Handle));
  if (object == nullptr) throw std::bad_alloc();
  new (object) Handle{state->registry.retain(ref) ? ref : Registry::Ref{}};
  const bool retained = static_cast<bool>(static_cast<Handle*>(object)->ref);
  const ERL_NIF_TERM term = enif_make_resource(env, object);
  enif_release_resource(object);
  return retained ? term : atoms.unknown_limiter;
}

// stats() -> [{Name, Allowed, Denied, ShadowDenied, Failed, TableStats}]
ERL_NIF_TERM stats(ErlNifEnv* env, int, const ERL_NIF_TERM[]) {
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (const Registry::Listed& limiter : state->registry.list()) {
    ERL_NIF_TERM name;
    unsigned char* bytes = enif_make_new_binary(env, limiter.name.size(), &name);
    std::copy(limiter.name.begin(), limiter.name.end(), bytes);
    const Counts& counts = limiter.counts;
    const ERL_NIF_TERM row =
        enif_make_tuple6(env, name, enif_make_int64(env, counts.allowed), enif_make_int64(env, counts.denied),
                         enif_make_int64(env, counts.shadow_denied), enif_make_int64(env, counts.failed),
                         make_table_stats(env, limiter.table));
    list = enif_make_list_cell(env, row, list);
  }
  return list;
}

bool get_secret(ErlNifEnv* env, ERL_NIF_TERM term, SipKey& secret) noexcept {
  std::string_view bytes;
  if (!get_bytes(env, term, bytes) || bytes.size() != 16) return false;
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  secret = SipKey::from_bytes(std::span<const std::uint8_t, 16>(data, 16));
  return true;
}

// set_secret(<<16 bytes>>) -> ok | busy: the secret is chosen while there are no limiters
ERL_NIF_TERM set_secret(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  SipKey secret;
  if (!get_secret(env, argv[0], secret)) return enif_make_badarg(env);
  const std::lock_guard lock(state->secrets_mutex);
  if (!state->registry.empty()) return atoms.busy;
  state->registry.end_carrying();
  state->secrets.set(secret, {}, secret);
  return atoms.ok;
}

// rotate_secret(<<16 bytes>>, MostNs, Force) -> ok | {busy, LeftMs}: levels are carried over for MostNs at most. One
// rotation at a time, unless it is forced: then what was not carried over yet is forgotten.
ERL_NIF_TERM rotate_secret(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  SipKey secret;
  ErlNifSInt64 most;
  bool force;
  if (!get_secret(env, argv[0], secret) || !enif_get_int64(env, argv[1], &most) || most < 0 || most > kSpanMax.v ||
      !get_bool(argv[2], force))
    return enif_make_badarg(env);
  const std::lock_guard lock(state->secrets_mutex);
  if (const Nanos left = rotation_left(); left.v > 0 && !force)
    return enif_make_tuple2(env, atoms.busy, make_ms(env, left));
  // Before the secrets: whoever hashes under the new one carries. (Until then there is nothing to carry.)
  state->registry.begin_carrying(clock_now(), {most});
  state->secrets.set(secret, state->secrets.get(Secrets::kNow), state->secrets.get(Secrets::kNames));
  return atoms.ok;
}

// rotation_left() -> milliseconds
ERL_NIF_TERM rotation_left_ms(ErlNifEnv* env, int, const ERL_NIF_TERM[]) { return make_ms(env, rotation_left()); }

ERL_NIF_TERM clock_read(ErlNifEnv* env, int, const ERL_NIF_TERM[]) { return enif_make_int64(env, clock_now().v); }

ERL_NIF_TERM clock_discipline(ErlNifEnv*, int, const ERL_NIF_TERM[]) {
  clock_tick();
  return atoms.ok;
}

bool get_time(ErlNifEnv* env, ERL_NIF_TERM term, Nanos& time) noexcept {
  ErlNifSInt64 value;
  if (!enif_get_int64(env, term, &value) || value < 0 || value > kTimeMax.v / 2) return false;
  time = {value};
  return true;
}

ERL_NIF_TERM freeze(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Nanos at;
  if (!get_time(env, argv[0], at)) return enif_make_badarg(env);
  clock_freeze(at);
  return atoms.ok;
}

ERL_NIF_TERM advance(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Nanos by;
  if (!get_time(env, argv[0], by)) return enif_make_badarg(env);
  clock_advance(by);
  return atoms.ok;
}

ERL_NIF_TERM thaw(ErlNifEnv*, int, const ERL_NIF_TERM[]) {
  clock_thaw();
  return atoms.ok;
}

// {Source, Hertz, OffsetNs, WorstOffsetNs, ErrorNs, Ticks, Steps, Frozen}
ERL_NIF_TERM clock_state(ErlNifEnv* env, int, const ERL_NIF_TERM[]) {
  const ClockInfo info = clock_info();
  return enif_make_tuple8(env, enif_make_atom(env, info.source), enif_make_double(env, info.hertz),
                          enif_make_int64(env, info.offset_ns), enif_make_int64(env, info.worst_offset_ns),
                          enif_make_int64(env, info.error_ns), enif_make_uint64(env, info.ticks),
                          enif_make_uint64(env, info.steps), make_bool(info.frozen));
}

}  // namespace

void drop_handle(ErlNifEnv*, void* object) noexcept {
  if (const auto* handle = static_cast<const Handle*>(object); handle->ref && state != nullptr)
    state->registry.release(handle->ref);
}

const std::array<ErlNifFunc, 17> registry_functions = {{
    {"put", 8, guarded<put>, 0},
    {"alias", 2, guarded<alias>, 0},
    {"convert", 1, guarded<convert>, 0},
    {"delete", 1, guarded<remove>, 0},
    {"delete_all", 0, guarded<remove_all>, 0},
    {"maintain", 0, guarded<maintain>, 0},
    {"handle", 1, guarded<handle>, 0},
    {"stats", 0, guarded<stats>, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"set_secret", 1, guarded<set_secret>, 0},
    {"rotate_secret", 3, guarded<rotate_secret>, 0},
    {"rotation_left", 0, guarded<rotation_left_ms>, 0},
    {"clock_now", 0, guarded<clock_read>, 0},
    {"clock_tick", 0, guarded<clock_discipline>, 0},
    {"clock_freeze", 1, guarded<freeze>, 0},
    {"clock_advance", 1, guarded<advance>, 0},
    {"clock_thaw", 0, guarded<thaw>, 0},
    {"clock_info", 0, guarded<clock_state>, 0},
}};

}  // namespace weir::nif
