#include "state.hpp"

#include <algorithm>
#include <new>

#include "term.hpp"

namespace weir::nif {

State* state = nullptr;

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
  // This instance's, and the state that it was taken from.
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

}  // namespace weir::nif
