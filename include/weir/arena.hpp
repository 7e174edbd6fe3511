// arena: the memory under all key tables of a node.
//
// Two kinds of blocks, both *type-stable*: once handed out, a block is for ever memory of that kind. It may be released
// and handed out again, to another table, but it is never unmapped or used for anything else before the arena goes. A
// reader that still holds the address of a released block therefore reads words of the right kind, at worst somebody
// else's, and finds out when it validates (table.hpp). That is what lets a look-up take no lock and no reference count.
//
//   segment     32 KiB of address space, aligned to its size, of which the table uses 1 to 8 pages of 4 KiB from the
//               front; pages that were never written cost no memory, and `release_pages` gives used ones back
//   directory   2^bits words, cache-line aligned
//
//   chunk (64 MiB, mapped when the ones before are used up, at most kMaxChunks)
//   +---------+---------+---------+----
//   | segment | segment | segment | ...      fresh and released segments read as zero
//   +---------+---------+---------+----
//
// Limits: kMaxChunks * 64 MiB = 1 TiB of address space, some 4e10 keys. Beyond, `acquire_segment` throws bad_alloc.
//
// Thread safety: all members may be called from any thread; a mutex guards the free lists (segments are acquired once
// in about a thousand inserts). Exceptions: `acquire_*` throw std::bad_alloc and change nothing; `release_*` don't
// throw.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace weir {

class Arena {
 public:
  static constexpr std::size_t kPageBytes = 4096;
  static constexpr std::size_t kSegmentPages = 8;
  static constexpr std::size_t kSegmentBytes = kPageBytes * kSegmentPages;
  static constexpr std::size_t kChunkSegments = 2048;
  static constexpr std::size_t kMaxChunks = 16384;
  static constexpr unsigned kMaxDirectoryBits = 24;

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // REQUIRES: nobody uses a block any more.
  ~Arena();

  std::byte* acquire_segment();
  // REQUIRES: the segment's first `pages` pages are zeroed or may be; its owner holds its locks until this returns.
  void release_segment(std::byte* segment, std::size_t pages) noexcept;
  // Gives the memory of pages [from, to) of a segment back to the system. They read as zero afterwards.
  void release_pages(std::byte* segment, std::size_t from, std::size_t to) noexcept;

  using Word = std::atomic<std::uint64_t>;
  // 2^bits words, all zero. REQUIRES: bits <= kMaxDirectoryBits.
  Word* acquire_directory(unsigned bits);
  // REQUIRES: all words are zero.
  void release_directory(Word* directory, unsigned bits) noexcept;

 private:
  void map_chunk();

  std::mutex mutex_;
  std::vector<std::byte*> chunks_;
  std::vector<std::byte*> free_segments_;  // capacity for every segment ever mapped, so that releasing can't fail
  std::size_t unused_in_last_ = 0;         // segments of the last chunk that were never handed out
  struct Directories {
    std::vector<Word*> all, free;  // `free` has capacity for all
  } directories_[kMaxDirectoryBits + 1];
};

}  // namespace weir
