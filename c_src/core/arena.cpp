#include "weir/arena.hpp"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace weir {

namespace {

constexpr std::size_t kChunkBytes = Arena::kChunkSegments * Arena::kSegmentBytes;

#ifdef MAP_NORESERVE
constexpr int kMapFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
constexpr int kMapFlags = MAP_PRIVATE | MAP_ANONYMOUS;
#endif

}  // namespace

Arena::~Arena() {
  for (std::byte* chunk : chunks_) ::munmap(chunk, kChunkBytes);
  for (unsigned bits = 0; bits <= kMaxDirectoryBits; ++bits)
    for (Word* directory : directories_[bits].all) ::operator delete (directory, std::align_val_t{64});
}

// Maps twice the segment's size more than needed at the ends and cuts it, so that segments are aligned to their size.
void Arena::map_chunk() {
  if (chunks_.size() == kMaxChunks) throw std::bad_alloc();
  free_segments_.reserve((chunks_.size() + 1) * kChunkSegments);
  chunks_.reserve(chunks_.size() + 1);
  void* mapped = ::mmap(nullptr, kChunkBytes + kSegmentBytes, PROT_READ | PROT_WRITE, kMapFlags, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(mapped);
  const std::size_t skip = (kSegmentBytes - reinterpret_cast<std::uintptr_t>(begin) % kSegmentBytes) % kSegmentBytes;
  if (skip != 0) ::munmap(begin, skip);
  std::byte* chunk = begin + skip;
  if (skip != kSegmentBytes) ::munmap(chunk + kChunkBytes, kSegmentBytes - skip);
#ifdef MADV_NOHUGEPAGE
  // A huge page would make every segment's unused tail resident.
  ::madvise(chunk, kChunkBytes, MADV_NOHUGEPAGE);
#endif
  chunks_.push_back(chunk);
  unused_in_last_ = kChunkSegments;
}

std::byte* Arena::acquire_segment() {
  const std::lock_guard lock(mutex_);
  if (!free_segments_.empty()) {
    std::byte* segment = free_segments_.back();
    free_segments_.pop_back();
    return segment;
  }
  if (unused_in_last_ == 0) map_chunk();
  return chunks_.back() + (kChunkSegments - unused_in_last_--) * kSegmentBytes;
}

void Arena::release_segment(std::byte* segment, std::size_t pages) noexcept {
  release_pages(segment, 0, pages);
  const std::lock_guard lock(mutex_);
  free_segments_.push_back(segment);
}

void Arena::release_pages(std::byte* segment, std::size_t from, std::size_t to) noexcept {
  if (from >= to) return;
#ifdef __linux__
  if (::madvise(segment + from * kPageBytes, (to - from) * kPageBytes, MADV_DONTNEED) == 0) return;
#endif
  // Elsewhere the pages stay resident: they are reused, not returned.
  auto* words = reinterpret_cast<Word*>(segment + from * kPageBytes);
  for (std::size_t i = 0; i < (to - from) * kPageBytes / sizeof(Word); ++i)
    words[i].store(0, std::memory_order_relaxed);
}

Arena::Word* Arena::acquire_directory(unsigned bits) {
  const std::lock_guard lock(mutex_);
  Directories& pool = directories_[bits];
  if (!pool.free.empty()) {
    Word* directory = pool.free.back();
    pool.free.pop_back();
    return directory;
  }
  const std::size_t words = std::size_t{1} << bits;
  pool.all.reserve(pool.all.size() + 1);
  pool.free.reserve(pool.all.size() + 1);
  auto* directory = static_cast<Word*>(::operator new (words * sizeof(Word), std::align_val_t{64}));
  for (std::size_t i = 0; i < words; ++i) new (&directory[i]) Word(0);
  pool.all.push_back(directory);
  return directory;
}

void Arena::release_directory(Word* directory, unsigned bits) noexcept {
  const std::lock_guard lock(mutex_);
  directories_[bits].free.push_back(directory);
}

}  // namespace weir
