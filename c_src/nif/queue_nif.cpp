// The thesis' packed queue: made from and into lists, appended to, refilled, merged, analysed. A queue is a binary;
// what can be wrong with it or with the elements comes back as an atom.
#include "queue_nif.hpp"

#include <array>
#include <memory_resource>

#include "queue/packed_queue.hpp"
#include "term.hpp"

namespace weir::nif {

namespace {

using thesis::Bytes;
using thesis::Element;
using thesis::Merge;
using thesis::Millis;
using thesis::Queue;
using thesis::QueueError;
using thesis::QueueHead;
using thesis::Slice;

// What a call on a normal scheduler may be about; beyond it, it moves to a dirty one (and costs some 5 us more). A
// birth costs up to 3 ns (merged) and a run up to 25 ns more, so this is 100 us (doc/benchmarks.md).
constexpr std::size_t kMostWork = 32'000;
constexpr std::size_t kRunWork = 10;
// Making or reading a list costs up to 20 ns an element.
constexpr std::size_t kListWork = 8;
constexpr int kMostTimeslice = 10;  // percent of a slice (1 ms)
// More neighbours than this are refused: 17 us when their queues are in the cache.
constexpr unsigned kMostNeighbours = 1024;

// Memory beyond what fits on the stack comes from the emulator, which keeps it at hand where malloc would give it back.
class EmulatorMemory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t) override {
    void* const memory = enif_alloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  void do_deallocate(void* memory, std::size_t, std::size_t) override { enif_free(memory); }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

// Where a call's queues live: on the stack, if they have no more than some 1500 births.
class Workplace {
 public:
  std::pmr::memory_resource* memory() noexcept { return &memory_; }
  Queue queue() { return Queue({1}, &memory_); }

 private:
  EmulatorMemory emulator_;
  alignas(std::max_align_t) std::array<std::byte, 32768> first_;
  std::pmr::monotonic_buffer_resource memory_{first_.data(), first_.size(), &emulator_};
};

ERL_NIF_TERM make_error(QueueError error) noexcept {
  switch (error) {
    case QueueError::none:
      return atoms.ok;
    case QueueError::malformed:
      return atoms.malformed;
    case QueueError::unlike_interval:
      return atoms.unlike_interval;
    case QueueError::too_many:
      return atoms.too_many;
    case QueueError::too_long:
      return atoms.too_long;
    case QueueError::too_late:
      return atoms.too_late;
    case QueueError::out_of_order:
      return atoms.out_of_order;
  }
  return atoms.weir_internal_error;
}

bool get_packed(ErlNifEnv* env, ERL_NIF_TERM term, Bytes& bytes) noexcept {
  std::string_view view;
  if (!get_bytes(env, term, view)) return false;
  bytes = std::as_bytes(std::span(view));
  return true;
}

QueueError get_queue(ErlNifEnv* env, ERL_NIF_TERM term, Queue& queue) {
  Bytes bytes;
  return get_packed(env, term, bytes) ? queue.unpack(bytes) : QueueError::malformed;
}

ERL_NIF_TERM make_queue(ErlNifEnv* env, const Slice& slice) {
  ERL_NIF_TERM term;
  unsigned char* const bytes = enif_make_new_binary(env, slice.packed_size(), &term);
  slice.pack(reinterpret_cast<std::byte*>(bytes));
  return term;
}

// What it takes to work on the queue; nothing if it isn't one, for then it is refused at once.
std::size_t work(ErlNifEnv* env, ERL_NIF_TERM term) noexcept {
  Bytes bytes;
  if (!get_packed(env, term, bytes)) return 0;
  const auto head = QueueHead::read(bytes);
  return head ? head->births + kRunWork * head->runs : 0;
}

// Does F here, or on a dirty scheduler if it is too much.
template <Entry* F>
ERL_NIF_TERM schedule(ErlNifEnv* env, const char* name, std::size_t work, int argc, const ERL_NIF_TERM argv[]) {
  if (work > kMostWork) return enif_schedule_nif(env, name, ERL_NIF_DIRTY_JOB_CPU_BOUND, guarded<F>, argc, argv);
  enif_consume_timeslice(env, std::max(1, static_cast<int>(work * kMostTimeslice / kMostWork)));
  return F(env, argc, argv);
}

// queue_new(IntervalNs) -> Queue | bad_interval
ERL_NIF_TERM queue_new(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  ErlNifSInt64 interval;
  if (!enif_get_int64(env, argv[0], &interval) || interval < 1 || interval > kSpanMax.v) return atoms.bad_interval;
  return make_queue(env, Queue({interval}).slice());
}

// queue_from_list(Empty, [{BirthMs, DeathNs}], Length) -> Queue | Wrong
ERL_NIF_TERM from_list(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Workplace workplace;
  Queue queue = workplace.queue();
  QueueError error = get_queue(env, argv[0], queue);
  ERL_NIF_TERM list = argv[1];
  for (ERL_NIF_TERM head, tail; error == QueueError::none && enif_get_list_cell(env, list, &head, &tail); list = tail) {
    int arity;
    const ERL_NIF_TERM* pair;
    ErlNifSInt64 birth, death;
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2 || !enif_get_int64(env, pair[0], &birth) ||
        !enif_get_int64(env, pair[1], &death))
      return atoms.bad_item;
    error = queue.push({{birth}, {death}});
  }
  return error == QueueError::none ? make_queue(env, queue.slice()) : make_error(error);
}

ERL_NIF_TERM queue_from_list(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 length;
  if (!enif_get_uint64(env, argv[2], &length)) return enif_make_badarg(env);
  if (length > thesis::kMaxBirths) return atoms.too_many;
  return schedule<from_list>(env, "queue_from_list", kListWork * length, argc, argv);
}

// queue_to_list(Queue) -> [{BirthMs, DeathNs}] | Wrong
ERL_NIF_TERM to_list(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Workplace workplace;
  Queue queue = workplace.queue();
  if (const QueueError error = get_queue(env, argv[0], queue); error != QueueError::none) return make_error(error);
  std::vector<ERL_NIF_TERM> pairs;
  pairs.reserve(queue.size());
  queue.each([&](const Element& element) {
    pairs.push_back(
        enif_make_tuple2(env, enif_make_int64(env, element.birth.v), enif_make_int64(env, element.death.v)));
  });
  return enif_make_list_from_array(env, pairs.data(), queue.size());
}

ERL_NIF_TERM queue_to_list(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  return schedule<to_list>(env, "queue_to_list", kListWork * work(env, argv[0]), argc, argv);
}

// queue_append(Queue, NowMs) -> Queue | Wrong
ERL_NIF_TERM append(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  ErlNifSInt64 now;
  if (!enif_get_int64(env, argv[1], &now)) return atoms.too_late;
  Workplace workplace;
  Queue queue = workplace.queue();
  QueueError error = get_queue(env, argv[0], queue);
  if (error == QueueError::none) error = queue.append(Millis{now});
  return error == QueueError::none ? make_queue(env, queue.slice()) : make_error(error);
}

ERL_NIF_TERM queue_append(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  return schedule<append>(env, "queue_append", work(env, argv[0]), argc, argv);
}

// queue_refill(Queue, NowNs) -> Queue | Wrong: the same term if nothing has died
ERL_NIF_TERM refill(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  ErlNifSInt64 now;
  if (!enif_get_int64(env, argv[1], &now)) return atoms.too_late;
  Workplace workplace;
  Queue queue = workplace.queue();
  if (const QueueError error = get_queue(env, argv[0], queue); error != QueueError::none) return make_error(error);
  const std::uint32_t dead = queue.dead({now});
  return dead == 0 ? argv[0] : make_queue(env, queue.slice(dead));
}

ERL_NIF_TERM queue_refill(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  return schedule<refill>(env, "queue_refill", work(env, argv[0]), argc, argv);
}

// queue_merge(Local, Other, IntoLocalState) -> {Merged, Updates} | Wrong
ERL_NIF_TERM do_merge(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  if (argv[2] != atoms.true_ && argv[2] != atoms.false_) return enif_make_badarg(env);
  const auto into = argv[2] == atoms.true_ ? Merge::Into::local_state : Merge::Into::delta_state;
  Bytes local, other;
  if (!get_packed(env, argv[0], local) || !get_packed(env, argv[1], other)) return atoms.malformed;
  Workplace workplace;
  Merge merge(workplace.memory());
  if (const QueueError error = merge.run(local, other, into); error != QueueError::none) return make_error(error);
  // Nothing new: the local queue as it is.
  const Slice updates = merge.updates();
  const ERL_NIF_TERM merged = updates.empty() ? argv[0] : make_queue(env, merge.merged());
  return enif_make_tuple2(env, merged, make_queue(env, updates));
}

ERL_NIF_TERM queue_merge(ErlNifEnv* env, int argc, const ERL_NIF_TERM argv[]) {
  return schedule<do_merge>(env, "queue_merge", work(env, argv[0]) + work(env, argv[1]), argc, argv);
}

// Trivial: an array of it costs nothing to make.
struct Delta {
  ERL_NIF_TERM neighbour;
  const std::byte* bytes;
  std::size_t size;
};

// queue_analyse([{Neighbour, Queue}], Window, ThresholdMs) -> [Neighbour] | Wrong
ERL_NIF_TERM queue_analyse(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  unsigned window;
  ErlNifSInt64 threshold;
  if (!enif_get_uint(env, argv[1], &window) || window < 1) return atoms.bad_window;
  if (!enif_get_int64(env, argv[2], &threshold) || threshold < 0 || threshold > thesis::kMaxSpan.v)
    return atoms.bad_threshold;
  // Read first and looked at afterwards: so the queues' bytes, each somewhere else, come from memory side by side.
  std::array<Delta, kMostNeighbours> deltas;
  unsigned size = 0;
  ERL_NIF_TERM list = argv[0];
  for (ERL_NIF_TERM head, tail; enif_get_list_cell(env, list, &head, &tail); list = tail) {
    int arity;
    const ERL_NIF_TERM* delta;
    if (size == kMostNeighbours) return atoms.too_many;
    if (!enif_get_tuple(env, head, &arity, &delta) || arity != 2) return atoms.bad_item;
    Bytes packed;
    if (!get_packed(env, delta[1], packed)) return atoms.malformed;
    __builtin_prefetch(packed.data());
    deltas[size++] = {delta[0], packed.data(), packed.size()};
  }
  if (!enif_is_empty_list(env, list)) return atoms.bad_list;
  std::array<ERL_NIF_TERM, kMostNeighbours> due;
  unsigned dues = 0;
  for (unsigned i = 0; i < size; ++i) {
    const auto quick = thesis::frequent({deltas[i].bytes, deltas[i].size}, window, {threshold});
    if (!quick) return atoms.malformed;
    due[dues] = deltas[i].neighbour;
    dues += *quick;
  }
  return enif_make_list_from_array(env, due.data(), dues);
}

// queue_size(Queue) -> Births | Wrong
ERL_NIF_TERM queue_size(ErlNifEnv* env, int, const ERL_NIF_TERM argv[]) {
  Bytes bytes;
  if (!get_packed(env, argv[0], bytes)) return atoms.malformed;
  const auto head = QueueHead::read(bytes);
  return head ? enif_make_uint(env, head->births) : atoms.malformed;
}

}  // namespace

const std::array<ErlNifFunc, 8> queue_functions = {{
    {"queue_new", 1, guarded<queue_new>, 0},
    {"queue_from_list", 3, guarded<queue_from_list>, 0},
    {"queue_to_list", 1, guarded<queue_to_list>, 0},
    {"queue_append", 2, guarded<queue_append>, 0},
    {"queue_refill", 2, guarded<queue_refill>, 0},
    {"queue_merge", 3, guarded<queue_merge>, 0},
    {"queue_analyse", 3, guarded<queue_analyse>, 0},
    {"queue_size", 1, guarded<queue_size>, 0},
}};

}  // namespace weir::nif
