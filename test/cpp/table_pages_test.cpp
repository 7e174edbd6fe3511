// However keys come, a table takes no more memory than it was opened with.
// Shows R05 of doc/requirements.md.
#include <cstdint>

#include "cases.hpp"
#include "catch.hpp"
#include "weir/table.hpp"

namespace weir::test {

// Keys that have both of their lines in common with all others of their part of the table: some dozens make a segment
// as large as it gets, though it is nearly empty, and then split.
TEST_CASE("table: keys that lie close together take no more pages than others", "[table]") {
  constexpr std::int64_t kMaxKeys = 10'000;
  constexpr std::uint64_t kParts = 32;
  constexpr std::uint64_t kKeys = 70;
  Arena arena;
  Table table(arena);
  const auto generation = table.open(kMaxKeys, 0);
  const Terms terms{{{5}, {3'600'000'000'000}}, 0, {}, {}};
  Rng rng(1);
  Decision decision;
  for (std::uint64_t part = 0; part < kParts; ++part) {
    for (std::uint64_t found = 0; found < kKeys;) {
      // See Table::home_index and second_index: in the first line and the one behind it if there are 64, in the first
      // 16 if there are 512.
      const std::uint64_t key = part << 59 | (rng() >> 37) << 32 | (rng() >> 38) | 1;
      if (key * 0x9e3779b97f4a7c15u >> 58 != 0) continue;
      REQUIRE(table.decide(generation, terms, {key}, {1}, kBase, decision) == Status::ok);
      ++found;
    }
  }
  // All keys fit at 0.625; and there may be an empty page at each depth.
  const std::int64_t pages = kMaxKeys * 8 / 5 / Table::kPageSlots + 20;
  CAPTURE(table.bytes(), pages);
  CHECK(table.bytes() <= pages * static_cast<std::int64_t>(Arena::kPageBytes));
  CHECK(table.validate() == nullptr);
}

}  // namespace weir::test
