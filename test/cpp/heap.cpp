#include "heap.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

struct alignas(std::max_align_t) Mark {
  bool counted;
};

std::atomic<std::int64_t> blocks{0};
thread_local bool counting = false;
thread_local bool failing = false;

[[maybe_unused]] void* allocate(std::size_t bytes) noexcept {
  auto* const mark = failing ? nullptr : static_cast<Mark*>(std::malloc(sizeof(Mark) + bytes));
  if (mark == nullptr) return nullptr;
  mark->counted = counting;
  blocks.fetch_add(counting, std::memory_order_relaxed);
  return mark + 1;
}

[[maybe_unused]] void release(void* block) noexcept {
  if (block == nullptr) return;
  Mark* const mark = static_cast<Mark*>(block) - 1;
  blocks.fetch_sub(mark->counted, std::memory_order_relaxed);
  std::free(mark);
}

}  // namespace

namespace weir::test {

CountedHeap::CountedHeap() noexcept { counting = true; }
CountedHeap::~CountedHeap() { counting = false; }
std::int64_t CountedHeap::blocks() noexcept { return ::blocks.load(); }
FailingHeap::FailingHeap() noexcept { failing = true; }
FailingHeap::~FailingHeap() { failing = false; }

}  // namespace weir::test

#if !defined(WEIR_HEAP_UNWATCHED)
// The array forms are by default made of these.
void* operator new(std::size_t bytes) {
  if (void* const block = allocate(bytes)) return block;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* block) noexcept { release(block); }
void operator delete(void* block, std::size_t) noexcept { release(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { release(block); }
#endif
