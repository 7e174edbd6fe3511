// pages: an allocator for tables that grow again and again: large ones get pages of their own.
//
// A table that grows leaves a hole that is too small for itself. With malloc, such holes stay with the process: a
// million keys, grown in steps of a sixteenth, took 2 to 8 bytes each beyond what their tables hold. Pages go back.
//
// Thread safety: that of malloc and mmap. Complexity: a system call for each large block.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

namespace weir {

template <class T>
struct PageAllocator {
  using value_type = T;
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kLarge = 16 * kPage;

  PageAllocator() noexcept = default;
  template <class U>
  explicit PageAllocator(const PageAllocator<U>& /*other*/) noexcept {}

  static constexpr std::size_t held(std::size_t count) noexcept {
    const std::size_t bytes = count * sizeof(T);
    return bytes < kLarge ? bytes : (bytes + kPage - 1) / kPage * kPage;
  }
  T* allocate(std::size_t count) {
    if (count * sizeof(T) < kLarge) return std::allocator<T>().allocate(count);
#ifdef MAP_POPULATE
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;  // all of it is written soon, fault by fault
#else
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#endif
    void* const block = mmap(nullptr, held(count), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    return static_cast<T*>(block);
  }
  void deallocate(T* block, std::size_t count) noexcept {
    if (count * sizeof(T) < kLarge) {
      std::allocator<T>().deallocate(block, count);
    } else {
      munmap(block, held(count));
    }
  }
  friend bool operator==(const PageAllocator&, const PageAllocator&) noexcept { return true; }
};

}  // namespace weir
