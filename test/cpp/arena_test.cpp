// The arena: blocks are aligned, zeroed, nobody else's while they are held, and of one kind for ever; pages that are
// given back leave memory.
#include "weir/arena.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace weir {
namespace {

using test::draw;
using test::Rng;

Arena::Word* words_of(std::byte* segment) { return reinterpret_cast<Arena::Word*>(segment); }
constexpr std::size_t kPageWords = Arena::kPageBytes / sizeof(Arena::Word);

bool all_zero(std::byte* segment, std::size_t from_page, std::size_t to_page) {
  for (std::size_t i = from_page * kPageWords; i < to_page * kPageWords; ++i)
    if (words_of(segment)[i].load(std::memory_order_relaxed) != 0) return false;
  return true;
}
void fill(std::byte* segment, std::size_t pages, std::uint64_t value) {
  for (std::size_t i = 0; i < pages * kPageWords; ++i) words_of(segment)[i].store(value, std::memory_order_relaxed);
}
bool filled(std::byte* segment, std::size_t pages, std::uint64_t value) {
  for (std::size_t i = 0; i < pages * kPageWords; ++i)
    if (words_of(segment)[i].load(std::memory_order_relaxed) != value) return false;
  return true;
}

#ifdef __linux__
// Pages of the segment that are in memory. REQUIRES: the system's pages are as large as the arena's.
std::size_t resident_pages(std::byte* segment) {
  unsigned char in_memory[Arena::kSegmentPages];
  REQUIRE(::mincore(segment, Arena::kSegmentBytes, in_memory) == 0);
  return static_cast<std::size_t>(
      std::count_if(std::begin(in_memory), std::end(in_memory), [](unsigned char page) { return (page & 1) != 0; }));
}
#endif

TEST_CASE("arena: segments are aligned to their size, zeroed and apart, over more than one chunk", "[arena]") {
  Arena arena;
  std::set<std::byte*> seen;
  for (std::size_t i = 0; i < Arena::kChunkSegments + 10; ++i) {
    std::byte* segment = arena.acquire_segment();
    REQUIRE(reinterpret_cast<std::uintptr_t>(segment) % Arena::kSegmentBytes == 0);
    REQUIRE(seen.insert(segment).second);
    if (i % 97 == 0) REQUIRE(all_zero(segment, 0, Arena::kSegmentPages));
    words_of(segment)[kPageWords * Arena::kSegmentPages - 1].store(i + 1, std::memory_order_relaxed);
    words_of(segment)[0].store(i + 1, std::memory_order_relaxed);
  }
  // Nobody wrote into another's.
  std::set<std::uint64_t> marks;
  for (std::byte* segment : seen) {
    const std::uint64_t mark = words_of(segment)[0].load(std::memory_order_relaxed);
    REQUIRE(words_of(segment)[kPageWords * Arena::kSegmentPages - 1].load(std::memory_order_relaxed) == mark);
    REQUIRE(marks.insert(mark).second);
  }
}

TEST_CASE("arena: a released segment is handed out again, and reads as zero", "[arena]") {
  Arena arena;
  std::vector<std::byte*> segments;
  for (int i = 0; i < 20; ++i) {
    segments.push_back(arena.acquire_segment());
    fill(segments.back(), static_cast<std::size_t>(i) % 9, 0xabababababababab);
  }
  for (int i = 0; i < 20; ++i) arena.release_segment(segments[static_cast<std::size_t>(i)], i % 9);
  std::set<std::byte*> again;
  for (int i = 0; i < 20; ++i) {
    std::byte* segment = arena.acquire_segment();
    CHECK(all_zero(segment, 0, Arena::kSegmentPages));
    CHECK(again.insert(segment).second);
  }
  CHECK(again == std::set<std::byte*>(segments.begin(), segments.end()));
}

TEST_CASE("arena: released pages read as zero, and only they", "[arena]") {
  Arena arena;
  std::byte* segment = arena.acquire_segment();
  for (std::size_t from = 0; from <= Arena::kSegmentPages; ++from)
    for (std::size_t to = from; to <= Arena::kSegmentPages; ++to) {
      fill(segment, Arena::kSegmentPages, 7);
      arena.release_pages(segment, from, to);
      CHECK(all_zero(segment, from, to));
      CHECK(filled(segment, from, 7));
      for (std::size_t page = to; page < Arena::kSegmentPages; ++page)
        CHECK(words_of(segment)[page * kPageWords].load(std::memory_order_relaxed) == 7);
    }
  arena.release_pages(segment, 3, 2);  // nothing
  CHECK(filled(segment, Arena::kSegmentPages, 7));
}

#ifdef __linux__
TEST_CASE("arena: pages cost memory from the first write until they are given back", "[arena]") {
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(Arena::kPageBytes)) return;
  Arena arena;
  std::byte* segment = arena.acquire_segment();
  CHECK(resident_pages(segment) == 0);
  fill(segment, 5, 1);
  CHECK(resident_pages(segment) == 5);
  arena.release_pages(segment, 2, 5);
  CHECK(resident_pages(segment) == 2);
  arena.release_segment(segment, 2);
  CHECK(resident_pages(segment) == 0);
}
#endif

TEST_CASE("arena: directories are zeroed, aligned and kept apart by size", "[arena]") {
  Arena arena;
  std::vector<std::pair<Arena::Word*, unsigned>> held;
  for (unsigned bits = 0; bits <= 12; ++bits)
    for (int i = 0; i < 3; ++i) {
      Arena::Word* directory = arena.acquire_directory(bits);
      REQUIRE(reinterpret_cast<std::uintptr_t>(directory) % 64 == 0);
      for (std::size_t w = 0; w < std::size_t{1} << bits; ++w) {
        REQUIRE(directory[w].load() == 0);
        directory[w].store(bits + 1);
      }
      held.emplace_back(directory, bits);
    }
  for (const auto& [directory, bits] : held)
    for (std::size_t w = 0; w < std::size_t{1} << bits; ++w) {
      REQUIRE(directory[w].load() == bits + 1);
      directory[w].store(0);
    }
  for (const auto& [directory, bits] : held) arena.release_directory(directory, bits);
  // Each comes back, for the same size only.
  for (unsigned bits = 0; bits <= 12; ++bits)
    for (int i = 0; i < 3; ++i) {
      const auto mine = std::pair{arena.acquire_directory(bits), bits};
      const auto found = std::find(held.begin(), held.end(), mine);
      REQUIRE(found != held.end());
      held.erase(found);
    }
  CHECK(held.empty());
}

TEST_CASE("arena: any order of acquiring and releasing", "[arena]") {
  test::for_cases([](Rng& rng) {
    Arena arena;
    struct Held {
      std::byte* segment;
      std::size_t pages;
      std::uint64_t mark;
    };
    std::vector<Held> held;
    std::uint64_t marks = 0;
    for (int step = 0; step < 60; ++step) {
      if (held.empty() || test::chance(rng, 60)) {
        std::byte* segment = arena.acquire_segment();
        const auto pages = static_cast<std::size_t>(draw(rng, 0, Arena::kSegmentPages));
        if (!all_zero(segment, 0, Arena::kSegmentPages)) FAIL("a segment that was handed out is not zeroed");
        fill(segment, pages, ++marks);
        held.push_back({segment, pages, marks});
      } else {
        const auto at = static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(held.size()) - 1));
        if (!filled(held[at].segment, held[at].pages, held[at].mark)) FAIL("somebody wrote into a held segment");
        arena.release_segment(held[at].segment, held[at].pages);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
  });
}

TEST_CASE("arena: threads that acquire and release never hold the same block", "[arena][threads]") {
  Arena arena;
  std::atomic<int> faults{0};
  std::vector<std::thread> threads;
  const auto rounds = static_cast<int>(test::environment("WEIR_ROUNDS", 1000));
  for (std::uint64_t id = 1; id <= 4; ++id)
    threads.emplace_back([&, id] {
      Rng rng(id);
      for (int i = 0; i < rounds; ++i) {
        std::byte* segment = arena.acquire_segment();
        const auto bits = static_cast<unsigned>(draw(rng, 0, 3));
        Arena::Word* directory = arena.acquire_directory(bits);
        const auto pages = static_cast<std::size_t>(draw(rng, 1, 2));
        faults += !all_zero(segment, 0, 2) || directory[0].load() != 0;
        fill(segment, pages, id);
        directory[0].store(id);
        faults += !filled(segment, pages, id) || directory[0].load() != id;
        directory[0].store(0);
        arena.release_directory(directory, bits);
        arena.release_segment(segment, pages);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(faults == 0);
}

}  // namespace
}  // namespace weir
