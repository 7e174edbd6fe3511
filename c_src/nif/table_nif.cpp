// The questions: check, decide, peek, reset, explain, alone and in batches.
//
// A list of questions that one call can't take (too many, or too many bytes of keys) is decoded into a Batch first,
// call by call, and then answered, call by call: each key is hashed once, and nothing is counted unless all are well
// formed.
#include "table_nif.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "clock/clock.hpp"
#include "term.hpp"

namespace weir::nif {

namespace {

// What one call decides at most: about 50 us of work. weir_nif.erl says so too.
constexpr unsigned kItems = 512;
constexpr std::size_t kBytes = 65536;
// The share of a scheduler's time slice (1 ms) that so many items are accounted as, in percent.
constexpr int kItemsTimeslice = 5;
// From this size on a table isn't in the cache, and fetching a batch's lines ahead pays (doc/benchmarks.md).
constexpr std::int64_t kPrefetchBytes = 1 << 20;

// How a question is put: bits of a small integer.
struct How {
  Form form = Form::native;
  bool here = false;  // decided at once, also what other nodes are asked first
};

bool get_how(ErlNifEnv* env, ERL_NIF_TERM term, How& how) noexcept {
  unsigned bits;
  if (!enif_get_uint(env, term, &bits) || bits > 3) return false;
  how = {(bits & 1) != 0 ? Form::external : Form::native, (bits & 2) != 0};
  return true;
}

// {owner | claim, Number, KeyHash} for a question that goes to other nodes first; 0 if it doesn't. For an owner KeyHash
// may be {KeyHash, Before}: it carries the key, too.
// Not inlined: most limiters ask nobody.
[[gnu::noinline]] ERL_NIF_TERM make_ask(ErlNifEnv* env, const Question& question, Nanos now) noexcept {
  const Limiter& limiter = *question.ref.limiter;
  if (!limiter.owned() && !Registry::claims(question.ref, question.key, question.hits, now)) return 0;
  ERL_NIF_TERM key = enif_make_uint64(env, question.key.v);
  if (limiter.owned() && question.before.v != 0)
    key = enif_make_tuple2(env, key, enif_make_uint64(env, question.before.v));
  return enif_make_tuple3(env, limiter.owned() ? atoms.owner : atoms.claim, enif_make_uint(env, limiter.number().v),
                          key);
}

// Whether the owner of the key is known to deny the hits, so that it needn't be asked. (Not in shadow, or on the
// smaller side of a partition: those have other answers.)
[[gnu::noinline]] bool known_to_deny(const Question& question, Nanos now, Answered& answered) noexcept {
  Limiter& limiter = *question.ref.limiter;
  if (!limiter.owned() || limiter.shadow() || limiter.halted()) return false;
  const Policy policy = limiter.brief().policy;
  Nanos debt;
  if (!state->known.denies(limiter.number(), question.key, policy, question.hits, now, debt)) return false;
  limiter.count(Limiter::kDenied, stripe(), 1);
  answered = {Answered::Reason::limit, false, policy, now + debt};
  return true;
}

// The clock first: the counter's latency overlaps with the hash.
[[gnu::always_inline]] inline ERL_NIF_TERM check(ErlNifEnv* env, const ERL_NIF_TERM argv[], How how) noexcept {
  const Nanos now = clock_now_overlapped();
  Question question;
  std::size_t bytes = 0;
  if (const ERL_NIF_TERM wrong = get_question(env, argv, how.form, now, question, bytes)) return wrong;
  account_bytes(env, bytes);
  if (question.ref.limiter->asks() && !how.here) [[unlikely]] {
    if (Answered known; known_to_deny(question, now, known)) return make_answer(env, known, question.hits, now);
    if (const ERL_NIF_TERM ask = make_ask(env, question, now)) return ask;
  }
  const Answered answered = Registry::ask(question.ref, question.key, question.hits, now, stripe());
  if (answered.allowed && question.ref.limiter->replicated()) wake_reader(env);
  return make_answer(env, answered, question.hits, now);
}

// check(Limiter, Key, Hits) -> Answer | Ask | Wrong
ERL_NIF_TERM check_native(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) { return check(env, argv, {}); }

// check(Limiter, Key, Hits, How)
ERL_NIF_TERM check_how(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  How how;
  return get_how(env, argv[3], how) ? check(env, argv, how) : enif_make_badarg(env);
}

// decide(Limiter, Key, Hits, How) -> Decision | Ask | Wrong
ERL_NIF_TERM decide(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  How how;
  if (!get_how(env, argv[3], how)) return enif_make_badarg(env);
  const Nanos now = clock_now_overlapped();
  Question question;
  std::size_t bytes = 0;
  if (const ERL_NIF_TERM wrong = get_question(env, argv, how.form, now, question, bytes)) return wrong;
  account_bytes(env, bytes);
  if (question.ref.limiter->asks() && !how.here) [[unlikely]] {
    if (Answered known; known_to_deny(question, now, known)) return make_map(env, known, question.hits, now);
    if (const ERL_NIF_TERM ask = make_ask(env, question, now)) return ask;
  }
  const Answered answered = Registry::ask(question.ref, question.key, question.hits, now, stripe());
  if (answered.allowed && question.ref.limiter->replicated()) wake_reader(env);
  return make_map(env, answered, question.hits, now);
}

// ---- batches ----

// The questions beyond `size` are left as they are: clearing all would cost more than a small batch.
struct Decoded {
  union {
    std::array<Question, kItems> questions;
  };
  unsigned size = 0;
  std::size_t bytes = 0;  // of the keys
  Decoded() noexcept {}
};
static_assert(std::is_trivially_destructible_v<Question>);

// Items are {Limiter, Key, Hits}, and if `mixed` also {Limiter, External, Hits, external}. Decodes as many as one call
// takes and advances `list`; 0 or the atom that says what is wrong with item decoded.size.
ERL_NIF_TERM get_items(ErlNifEnv* env, ERL_NIF_TERM& list, bool mixed, Decoded& decoded) noexcept {
  ERL_NIF_TERM limiter = 0;  // no term
  Registry::Ref ref;
  const Table* cold = nullptr;  // the limiter's table, if its lines should be fetched ahead
  bool carries = false;
  const Nanos now = clock_now_overlapped();
  const SipKey secret = state->secrets.get(Secrets::kNow);
  for (ERL_NIF_TERM head, tail;
       decoded.size < kItems && decoded.bytes < kBytes && enif_get_list_cell(env, list, &head, &tail); list = tail) {
    int arity;
    const ERL_NIF_TERM* item;
    if (!enif_get_tuple(env, head, &arity, &item) || (arity != 3 && !(mixed && arity == 4))) return atoms.bad_item;
    Question& question = decoded.questions[decoded.size];
    // Most batches ask one limiter: its name needn't be looked up again.
    if (item[0] != limiter) {
      if (const ERL_NIF_TERM wrong = get_limiter(env, item[0], ref)) return wrong;
      limiter = item[0];
      const Table& table = ref.limiter->table();
      cold = table.bytes() > kPrefetchBytes ? &table : nullptr;
      carries = now < ref.limiter->carry_until();
    }
    question.ref = ref;
    question.before = {};
    const Form form = arity == 3 ? Form::native : Form::external;
    if (const ERL_NIF_TERM wrong = hash_key(env, item[1], form, secret, question.key, decoded.bytes)) return wrong;
    if (carries) [[unlikely]]
      question.before = carry(env, item[1], form, ref, question.key, now);
    if (const ERL_NIF_TERM wrong = get_hits(env, item[2], question.hits)) return wrong;
    if (cold != nullptr) cold->prefetch(question.key);
    ++decoded.size;
  }
  return 0;
}

void account(ErlNifEnv* env, std::size_t items, std::size_t bytes) noexcept {
  const auto share = static_cast<int>(items * kItemsTimeslice / kItems + bytes / kBytesPerPercent);
  enif_consume_timeslice(env, std::clamp(share, 1, 100));
}

// [Answer] or, where other nodes are still to be asked for some, {asks, [Answer | Ask]}.
template <class Make>
ERL_NIF_TERM make_answers(ErlNifEnv* env, const Question* questions, unsigned size, Make make) {
  std::array<ERL_NIF_TERM, kItems> answers;
  bool births = false;
  bool asks = false;
  const unsigned mine = stripe();
  const Nanos now = clock_now_overlapped();
  for (unsigned i = 0; i < size;) {
    // As many as ask the same limiter.
    const Registry::Ref ref = questions[i].ref;
    const bool asking = ref.limiter->asks();
    bool admits = false;
    Asker asker(ref, mine);
    for (; i < size && questions[i].ref == ref; ++i) {
      const Question& question = questions[i];
      if (asking) [[unlikely]] {
        if (Answered known; known_to_deny(question, now, known)) {
          answers[i] = make(known, question.hits, now);
          continue;
        }
        answers[i] = make_ask(env, question, now);
        asks = asks || answers[i] != 0;
        if (answers[i] != 0) continue;
      }
      const Answered answered = asker.ask(question.key, question.hits, now);
      answers[i] = make(answered, question.hits, now);
      admits = admits || answered.allowed;
    }
    births = births || (admits && ref.limiter->replicated());
  }
  if (births) wake_reader(env);
  const ERL_NIF_TERM made = enif_make_list_from_array(env, answers.data(), size);
  return asks ? enif_make_tuple2(env, atoms.asks, made) : made;
}

// Neighbours often get the same answer, of keys that are seldom seen for example: then they share one term.
ERL_NIF_TERM make_checks(ErlNifEnv* env, const Question* questions, unsigned size) {
  ERL_NIF_TERM made = 0;
  bool allowed = false;
  std::int64_t of = 0;
  return make_answers(env, questions, size, [&](const Answered& answered, Tokens hits, Nanos now) {
    const std::int64_t says = answered.allowed ? answered.remaining(now).v : answered.retry(hits, now).v;
    if (made == 0 || allowed != answered.allowed || of != says) {
      allowed = answered.allowed;
      of = says;
      made = allowed ? enif_make_tuple2(env, atoms.allow, enif_make_int64(env, says))
                     : enif_make_tuple2(env, atoms.deny, make_ms(env, {says}));
    }
    return made;
  });
}

ERL_NIF_TERM make_decisions(ErlNifEnv* env, const Question* questions, unsigned size) {
  return make_answers(env, questions, size, [env](const Answered& answered, Tokens hits, Nanos now) {
    return make_map(env, answered, hits, now);
  });
}

using Answers = ERL_NIF_TERM(ErlNifEnv*, const Question*, unsigned);

// A resource: a long list of questions, as far as it is decoded.
struct Batch {
  std::vector<std::vector<Question>> parts;  // of what one call decoded
  std::size_t size = 0;
};

ErlNifResourceType* batch_type = nullptr;

void drop_batch(ErlNifEnv*, void* object) noexcept { static_cast<Batch*>(object)->~Batch(); }

void append(Batch& batch, const Decoded& decoded) {
  batch.parts.emplace_back(decoded.questions.begin(), decoded.questions.begin() + decoded.size);
  batch.size += decoded.size;
}

ERL_NIF_TERM make_batch(ErlNifEnv* env, const Decoded& decoded) {
  void* const object = enif_alloc_resource(batch_type, sizeof(Batch));
  if (object == nullptr) throw std::bad_alloc();
  auto* const batch = new (object) Batch;
  const ERL_NIF_TERM term = enif_make_resource(env, batch);
  enif_release_resource(batch);
  append(*batch, decoded);
  return term;
}

// check_many([Item], Mixed) -> Answers, if one call takes the whole list; else {long, Batch, Rest}, with nothing
// counted. {error, Index, Reason} with nothing counted.
template <Answers* F>
ERL_NIF_TERM answer_list(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Decoded decoded;
  ERL_NIF_TERM list = argv[0];
  const ERL_NIF_TERM wrong = get_items(env, list, argv[1] == atoms.true_, decoded);
  account(env, decoded.size, decoded.bytes);
  if (wrong != 0) return enif_make_tuple3(env, atoms.error, enif_make_uint(env, decoded.size), wrong);
  if (enif_is_empty_list(env, list)) return F(env, decoded.questions.data(), decoded.size);
  if (!enif_is_list(env, list)) return atoms.bad_list;
  return enif_make_tuple3(env, atoms.long_, make_batch(env, decoded), list);
}

// batch_add(Batch, [Item], Mixed) -> {long, Batch, Rest} | done | {error, Index, Reason} | bad_list
ERL_NIF_TERM batch_add(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  void* object;
  if (!enif_get_resource(env, argv[0], batch_type, &object)) return enif_make_badarg(env);
  auto& batch = *static_cast<Batch*>(object);
  Decoded decoded;
  ERL_NIF_TERM list = argv[1];
  const ERL_NIF_TERM wrong = get_items(env, list, argv[2] == atoms.true_, decoded);
  account(env, decoded.size, decoded.bytes);
  if (wrong != 0) {
    return enif_make_tuple3(env, atoms.error, enif_make_uint64(env, batch.size + decoded.size), wrong);
  }
  append(batch, decoded);
  if (enif_is_empty_list(env, list)) return atoms.done;
  if (!enif_is_list(env, list)) return atoms.bad_list;
  return enif_make_tuple3(env, atoms.long_, argv[0], list);
}

// batch_check(Batch, Part) -> Answers of the part, counted from 0 | done
template <Answers* F>
ERL_NIF_TERM answer_part(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  void* object;
  ErlNifUInt64 part;
  if (!enif_get_resource(env, argv[0], batch_type, &object) || !enif_get_uint64(env, argv[1], &part))
    return enif_make_badarg(env);
  const Batch& batch = *static_cast<const Batch*>(object);
  if (part >= batch.parts.size()) return atoms.done;
  const std::vector<Question>& questions = batch.parts[part];
  account(env, questions.size(), 0);
  return F(env, questions.data(), static_cast<unsigned>(questions.size()));
}

// The key's state and what goes with it; `gone` has been turned into an empty state.
struct Seen {
  Nanos now;
  Tat state;
  Terms terms;
};

// argv is (Limiter, Key, How).
ERL_NIF_TERM get_asked(ErlNifEnv* env, const ERL_NIF_TERM argv[], Nanos now, Question& question) noexcept {
  How how;
  std::size_t bytes = 0;
  if (!get_how(env, argv[2], how)) return enif_make_badarg(env);
  if (const ERL_NIF_TERM wrong = get_limiter(env, argv[0], question.ref)) return wrong;
  const ERL_NIF_TERM wrong = get_key(env, argv[1], how.form, now, question, bytes);
  account_bytes(env, bytes);
  return wrong;
}

ERL_NIF_TERM get_seen(ErlNifEnv* env, const ERL_NIF_TERM argv[], Registry::Ref& ref, Seen& seen) noexcept {
  seen.now = clock_now_overlapped();
  Question question;
  if (const ERL_NIF_TERM wrong = get_asked(env, argv, seen.now, question)) return wrong;
  ref = question.ref;
  return Registry::peek(ref, question.key, seen.now, seen.state, seen.terms) ? 0 : atoms.unknown_limiter;
}

ERL_NIF_TERM peek(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Registry::Ref ref;
  Seen seen;
  if (const ERL_NIF_TERM wrong = get_seen(env, argv, ref, seen)) return wrong;
  return make_map(env, seen.state.peek(seen.terms.policy, {1}, seen.now), seen.terms.policy.capacity);
}

// {Decision, Level, TatNs, NowNs, IntervalNs, Shadow, DenyOnError, {Keys, MaxKeys, EvictedKeys, EvictedTokens, Bytes}}
ERL_NIF_TERM explain(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Registry::Ref ref;
  Seen seen;
  if (const ERL_NIF_TERM wrong = get_seen(env, argv, ref, seen)) return wrong;
  const Policy& policy = seen.terms.policy;
  return enif_make_tuple8(env, make_map(env, seen.state.peek(policy, {1}, seen.now), policy.capacity),
                          enif_make_int64(env, seen.state.level(policy, seen.now).v),
                          enif_make_int64(env, seen.state.value().v), enif_make_int64(env, seen.now.v),
                          enif_make_int64(env, policy.interval.v), ref.limiter->shadow() ? atoms.true_ : atoms.false_,
                          ref.limiter->deny_on_error() ? atoms.deny : atoms.allow,
                          make_table_stats(env, ref.limiter->table().stats()));
}

// ok | {replicated, Number, [KeyHash], NowNs}: then the replica, and the other nodes, are to be told. While keys are
// carried over, others may know it by its hash of before.
ERL_NIF_TERM reset(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  const Nanos now = clock_now_overlapped();
  Question question;
  if (const ERL_NIF_TERM wrong = get_asked(env, argv, now, question)) return wrong;
  if (!question.ref) return atoms.unknown_limiter;
  Registry::reset(question.ref, question.key, now);
  if (!question.ref.limiter->replicated()) return atoms.ok;
  ERL_NIF_TERM hashes = enif_make_list1(env, enif_make_uint64(env, question.key.v));
  if (question.before.v != 0) hashes = enif_make_list_cell(env, enif_make_uint64(env, question.before.v), hashes);
  return enif_make_tuple4(env, atoms.replicated, enif_make_uint(env, question.ref.limiter->number().v), hashes,
                          enif_make_int64(env, now.v));
}

// key_hash(Key, How) -> KeyHash | Wrong
ERL_NIF_TERM key_hash(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  How how;
  KeyHash key;
  std::size_t bytes = 0;
  if (!get_how(env, argv[1], how)) return enif_make_badarg(env);
  const SipKey secret = state->secrets.get(Secrets::kNow);
  if (const ERL_NIF_TERM wrong = hash_key(env, argv[0], how.form, secret, key, bytes)) return wrong;
  account_bytes(env, bytes);
  return enif_make_uint64(env, key.v);
}

ERL_NIF_TERM nothing(ErlNifEnv*, int, const ERL_NIF_TERM[]) { return atoms.ok; }

}  // namespace

ERL_NIF_TERM make_table_stats(ErlNifEnv* env, const TableStats& stats) {
  return enif_make_tuple5(env, enif_make_int64(env, stats.keys), enif_make_int64(env, stats.max_keys),
                          enif_make_int64(env, stats.evicted_keys), enif_make_int64(env, stats.evicted_tokens),
                          enif_make_int64(env, stats.memory_bytes));
}

bool open_batch_type(ErlNifEnv* env, ErlNifResourceFlags flags) noexcept {
  batch_type = enif_open_resource_type(env, nullptr, "weir_batch", drop_batch, flags, nullptr);
  return batch_type != nullptr;
}

const std::array<ErlNifFunc, 14> table_functions = {{
    {"check", 3, guarded<check_native>, 0},
    {"check", 4, guarded<check_how>, 0},
    {"decide", 4, guarded<decide>, 0},
    {"check_many", 2, guarded<answer_list<make_checks>>, 0},
    {"decide_many", 2, guarded<answer_list<make_decisions>>, 0},
    {"batch_add", 3, guarded<batch_add>, 0},
    {"batch_check", 2, guarded<answer_part<make_checks>>, 0},
    {"batch_decide", 2, guarded<answer_part<make_decisions>>, 0},
    {"peek", 3, guarded<peek>, 0},
    {"explain", 3, guarded<explain>, 0},
    {"reset", 3, guarded<reset>, 0},
    {"key_hash", 2, guarded<key_hash>, 0},
    {"nothing", 0, guarded<nothing>, 0},
    {"nothing", 3, guarded<nothing>, 0},
}};

}  // namespace weir::nif
