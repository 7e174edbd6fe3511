// The questions: check, decide, peek, reset, explain, alone and in batches.
#include "table_nif.hpp"

#include <array>
#include <optional>

#include "clock.hpp"
#include "term.hpp"

namespace weir::nif {

namespace {

// Items of a batch decided in one call; a longer list comes back with the rest. About 50 us of work. weir_table.erl
// knows it as ONE_CALL.
constexpr unsigned kBatch = 512;
// From this size on a table isn't in the cache, and fetching a batch's lines ahead pays (doc/benchmarks.md).
constexpr std::int64_t kPrefetchBytes = 1 << 20;
// The share of a scheduler's time slice (1 ms) that a whole batch is accounted as.
constexpr int kBatchTimeslice = 5;

// Whether hits that are above the share ask the other nodes first, or are decided here at once.
enum class Large : std::uint8_t { ask, decide };

// {owner | claim, Number, KeyHash} for a question that goes to other nodes first; 0 if it doesn't. For an owner KeyHash
// may be {KeyHash, Before}: it carries the key, too.
// Not inlined: most limiters ask nobody.
[[gnu::noinline]] ERL_NIF_TERM make_ask(ErlNifEnv* env, const Question& question, ERL_NIF_TERM term, Form form,
                                        Nanos now) noexcept {
  const Limiter& limiter = *question.ref.limiter;
  if (!limiter.owned() && !Registry::claims(question.ref, question.key, question.hits, now)) return 0;
  ERL_NIF_TERM key = enif_make_uint64(env, question.key.v);
  const KeyHash before = limiter.owned() ? hash_before(env, term, form, question.ref) : KeyHash{};
  if (before.v != 0) key = enif_make_tuple2(env, key, enif_make_uint64(env, before.v));
  return enif_make_tuple3(env, limiter.owned() ? atoms.owner : atoms.claim, enif_make_uint(env, limiter.number().v),
                          key);
}

template <Form form, Large large>
ERL_NIF_TERM check(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  const Nanos now = clock_now_overlapped();  // first: the counter's latency overlaps with the hash
  Question question;
  if (const ERL_NIF_TERM wrong = get_question(env, argv, form, question)) return wrong;
  if (large == Large::ask && question.ref.limiter->asks()) [[unlikely]] {
    if (const ERL_NIF_TERM ask = make_ask(env, question, argv[1], form, now)) return ask;
  }
  const Decision decision = Registry::decide(question.ref, question.key, question.hits, now, stripe());
  if (decision.allowed && question.ref.limiter->replicated()) wake_reader(env);
  return make_verdict(env, decision);
}

template <Form form, Large large>
ERL_NIF_TERM decide(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Question question;
  if (const ERL_NIF_TERM wrong = get_question(env, argv, form, question)) return wrong;
  const Nanos now = clock_now_overlapped();
  if (large == Large::ask && question.ref.limiter->asks()) [[unlikely]] {
    if (const ERL_NIF_TERM ask = make_ask(env, question, argv[1], form, now)) return ask;
  }
  Asker asker(question.ref, stripe());
  const Decision decision = asker.decide(question.key, question.hits, now);
  if (decision.allowed && question.ref.limiter->replicated()) wake_reader(env);
  return make_map(env, decision, asker.capacity());
}

// The questions beyond `size` are left as they are: clearing all would cost more than a small batch.
struct Batch {
  union {
    std::array<Question, kBatch> questions;
  };
  unsigned size = 0;
  Batch() noexcept {}
};
static_assert(std::is_trivially_destructible_v<Question>);

// argv is (Items, Mixed): items are {Limiter, Key, Hits}, and if Mixed is true also {Limiter, External, Hits,
// external}. Decodes up to kBatch of them and advances `list`; 0 or the atom that says what is wrong with item
// batch.size.
ERL_NIF_TERM get_batch(ErlNifEnv* env, ERL_NIF_TERM& list, bool mixed, Batch& batch) noexcept {
  ERL_NIF_TERM limiter = 0;  // no term
  Registry::Ref ref;
  const Limiter::LocalTable* cold = nullptr;  // the limiter's table, if its lines should be fetched ahead
  for (ERL_NIF_TERM head, tail; batch.size < kBatch && enif_get_list_cell(env, list, &head, &tail); list = tail) {
    int arity;
    const ERL_NIF_TERM* item;
    if (!enif_get_tuple(env, head, &arity, &item) || (arity != 3 && !(mixed && arity == 4))) return atoms.bad_item;
    Question& question = *new (&batch.questions[batch.size]) Question;
    // Most batches ask one limiter: its name needn't be looked up again.
    if (item[0] != limiter) {
      if (const ERL_NIF_TERM wrong = get_limiter(env, item[0], ref)) return wrong;
      limiter = item[0];
      const auto& table = ref.limiter->table();
      cold = table.bytes() > kPrefetchBytes ? &table : nullptr;
    }
    question.ref = ref;
    if (const ERL_NIF_TERM wrong = get_key(env, item[1], arity == 3 ? Form::native : Form::external, ref, question.key))
      return wrong;
    if (const ERL_NIF_TERM wrong = get_hits(env, item[2], question.hits)) return wrong;
    if (cold != nullptr) cold->prefetch(question.key);
    ++batch.size;
  }
  return 0;
}

// [Answer] when the whole list is answered, else {more, [Answer], Rest}; {error, Index, Reason} with nothing counted.
// Where {owner | claim, Number, KeyHash} stands among the answers, other nodes are still to be asked; then it is
// {owner, [Answer]} instead of [Answer].
template <class Answer>
ERL_NIF_TERM answer_batch(ErlNifEnv* env, const ERL_NIF_TERM argv[], Answer answer) {
  Batch batch;
  ERL_NIF_TERM list = argv[0];
  if (const ERL_NIF_TERM wrong = get_batch(env, list, argv[1] == atoms.true_, batch))
    return enif_make_tuple3(env, atoms.error, enif_make_uint(env, batch.size), wrong);
  const bool rest = !enif_is_empty_list(env, list);
  if (rest && !enif_is_list(env, list)) return enif_make_badarg(env);
  const Nanos now = clock_now_overlapped();
  std::array<ERL_NIF_TERM, kBatch> answers;
  std::optional<Asker> asker;
  bool births = false;
  bool asked = false;
  ERL_NIF_TERM items = argv[0], head = 0;
  unsigned decoded = 0;  // of the items, up to `head`
  for (unsigned i = 0; i < batch.size; ++i) {
    const Question& question = batch.questions[i];
    if (question.ref.limiter->asks()) [[unlikely]] {
      for (; decoded <= i; ++decoded) enif_get_list_cell(env, items, &head, &items);
      int arity;
      const ERL_NIF_TERM* item;
      enif_get_tuple(env, head, &arity, &item);
      answers[i] = make_ask(env, question, item[1], arity == 3 ? Form::native : Form::external, now);
      if (answers[i] != 0) {
        asked = true;
        continue;
      }
    }
    if (!asker || asker->ref() != question.ref) asker.emplace(question.ref, stripe());
    const Decision decision = asker->decide(question.key, question.hits, now);
    answers[i] = answer(decision, *asker);
    births = births || (decision.allowed && question.ref.limiter->replicated());
  }
  if (births) wake_reader(env);
  enif_consume_timeslice(env, std::max(1, static_cast<int>(batch.size * kBatchTimeslice / kBatch)));
  ERL_NIF_TERM made = enif_make_list_from_array(env, answers.data(), batch.size);
  if (asked) made = enif_make_tuple2(env, atoms.owner, made);
  return rest ? enif_make_tuple3(env, atoms.more, made, list) : made;
}

ERL_NIF_TERM check_many(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  // Neighbours often get the same answer, of keys that are seldom seen for example: then they share one term.
  ERL_NIF_TERM made = 0;
  Decision of;
  return answer_batch(env, argv, [&](const Decision& decision, const Asker&) {
    const bool same =
        decision.allowed == of.allowed && decision.remaining == of.remaining && decision.retry == of.retry;
    if (made == 0 || !same) {
      made = make_answer(env, decision);
      of = decision;
    }
    return made;
  });
}

ERL_NIF_TERM decide_many(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  return answer_batch(env, argv, [env](const Decision& decision, const Asker& asker) {
    return make_map(env, decision, asker.capacity());
  });
}

ERL_NIF_TERM validate_many(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Batch batch;
  ERL_NIF_TERM list = argv[0];
  if (const ERL_NIF_TERM wrong = get_batch(env, list, argv[1] == atoms.true_, batch))
    return enif_make_tuple3(env, atoms.error, enif_make_uint(env, batch.size), wrong);
  return enif_is_empty_list(env, list) ? atoms.ok : enif_make_tuple2(env, atoms.more, list);
}

// The key's state and what goes with it; `gone` has been turned into an empty state.
struct Seen {
  Nanos now;
  Tat state;
  Terms terms;
};

template <Form form>
ERL_NIF_TERM get_seen(ErlNifEnv* env, const ERL_NIF_TERM argv[], Registry::Ref& ref, Seen& seen) noexcept {
  KeyHash key;
  if (const ERL_NIF_TERM wrong = get_limiter(env, argv[0], ref)) return wrong;
  if (const ERL_NIF_TERM wrong = get_key(env, argv[1], form, ref, key)) return wrong;
  seen.now = clock_now_overlapped();
  return Registry::peek(ref, key, seen.now, seen.state, seen.terms) ? 0 : atoms.unknown_limiter;
}

template <Form form>
ERL_NIF_TERM peek(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Registry::Ref ref;
  Seen seen;
  if (const ERL_NIF_TERM wrong = get_seen<form>(env, argv, ref, seen)) return wrong;
  return make_map(env, seen.state.peek(seen.terms.policy, {1}, seen.now), seen.terms.policy.capacity);
}

// {Decision, Level, TatNs, NowNs, IntervalNs, Shadow, DenyOnError, {Keys, MaxKeys, EvictedKeys, EvictedTokens, Bytes}}
template <Form form>
ERL_NIF_TERM explain(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Registry::Ref ref;
  Seen seen;
  if (const ERL_NIF_TERM wrong = get_seen<form>(env, argv, ref, seen)) return wrong;
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
template <Form form>
ERL_NIF_TERM reset(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Registry::Ref ref;
  KeyHash key;
  if (const ERL_NIF_TERM wrong = get_limiter(env, argv[0], ref)) return wrong;
  if (const ERL_NIF_TERM wrong = get_key(env, argv[1], form, ref, key)) return wrong;
  const Nanos now = clock_now_overlapped();
  Registry::reset(ref, key, now);
  if (!ref.limiter->replicated()) return atoms.ok;
  ERL_NIF_TERM hashes = enif_make_list1(env, enif_make_uint64(env, key.v));
  const KeyHash before = hash_before(env, argv[1], form, ref);
  if (before.v != 0) hashes = enif_make_list_cell(env, enif_make_uint64(env, before.v), hashes);
  return enif_make_tuple4(env, atoms.replicated, enif_make_uint(env, ref.limiter->number().v), hashes,
                          enif_make_int64(env, now.v));
}

template <Form form>
ERL_NIF_TERM key_hash(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  KeyHash key;
  const SipKey& secret = state->secrets.load(std::memory_order_acquire)->now;
  if (const ERL_NIF_TERM wrong = hash_key(env, argv[0], form, secret, key)) return wrong;
  return enif_make_uint64(env, key.v);
}

ERL_NIF_TERM nothing(ErlNifEnv*, int, const ERL_NIF_TERM[]) { return atoms.ok; }

}  // namespace

ERL_NIF_TERM make_table_stats(ErlNifEnv* env, const TableStats& stats) {
  return enif_make_tuple5(env, enif_make_int64(env, stats.keys), enif_make_int64(env, stats.max_keys),
                          enif_make_int64(env, stats.evicted_keys), enif_make_int64(env, stats.evicted_tokens),
                          enif_make_int64(env, stats.memory_bytes));
}

const std::array<ErlNifFunc, 21> table_functions = {{
    {"check", 3, guarded<check<Form::native, Large::ask>>, 0},
    {"check_external", 3, guarded<check<Form::external, Large::ask>>, 0},
    {"check_here", 3, guarded<check<Form::native, Large::decide>>, 0},
    {"check_here_external", 3, guarded<check<Form::external, Large::decide>>, 0},
    {"decide", 3, guarded<decide<Form::native, Large::ask>>, 0},
    {"decide_external", 3, guarded<decide<Form::external, Large::ask>>, 0},
    {"decide_here", 3, guarded<decide<Form::native, Large::decide>>, 0},
    {"decide_here_external", 3, guarded<decide<Form::external, Large::decide>>, 0},
    {"check_many", 2, guarded<check_many>, 0},
    {"decide_many", 2, guarded<decide_many>, 0},
    {"validate_many", 2, guarded<validate_many>, 0},
    {"peek", 2, guarded<peek<Form::native>>, 0},
    {"peek_external", 2, guarded<peek<Form::external>>, 0},
    {"explain", 2, guarded<explain<Form::native>>, 0},
    {"explain_external", 2, guarded<explain<Form::external>>, 0},
    {"reset", 2, guarded<reset<Form::native>>, 0},
    {"reset_external", 2, guarded<reset<Form::external>>, 0},
    {"key_hash", 1, guarded<key_hash<Form::native>>, 0},
    {"key_hash_external", 1, guarded<key_hash<Form::external>>, 0},
    {"nothing", 0, guarded<nothing>, 0},
    {"nothing", 3, guarded<nothing>, 0},
}};

}  // namespace weir::nif
