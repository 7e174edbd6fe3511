// heap: counts what code under test allocates by `new`, and lets allocations fail.
//
// The program's operator new and delete (heap.cpp) put a mark before each block that is allocated while the thread has
// a CountedHeap; a marked block is counted until it is freed, by whomever. So what the tests themselves allocate, their
// framework included, is left out. Over-aligned blocks are never counted, nor do they fail.
//
// clang's ThreadSanitizer brings an operator new that can't be replaced: there kHeapWatched is false, nothing is
// counted and nothing fails.
//
// Thread safety: any thread. The objects belong to the thread that made them, and don't nest.
#pragma once

#include <cstdint>

#if defined(__clang__)
#if __has_feature(thread_sanitizer)
#define WEIR_HEAP_UNWATCHED
#endif
#endif

namespace weir::test {

#if defined(WEIR_HEAP_UNWATCHED)
inline constexpr bool kHeapWatched = false;
#else
inline constexpr bool kHeapWatched = true;
#endif

class CountedHeap {
 public:
  CountedHeap() noexcept;
  ~CountedHeap();
  CountedHeap(const CountedHeap&) = delete;
  CountedHeap& operator=(const CountedHeap&) = delete;

  // Marked blocks in use, of all threads.
  static std::int64_t blocks() noexcept;
};

// While it lives, each allocation of this thread throws bad_alloc, or returns null if asked to.
class FailingHeap {
 public:
  FailingHeap() noexcept;
  ~FailingHeap();
  FailingHeap(const FailingHeap&) = delete;
  FailingHeap& operator=(const FailingHeap&) = delete;
};

}  // namespace weir::test
