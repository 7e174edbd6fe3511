// Slots against a map of ids.
#include "weir/slots.hpp"

#include <map>
#include <set>

#include "cases.hpp"

namespace weir::test {

TEST_CASE("an id keeps its number until it is erased, and no two have one", "[slots]") {
  for_cases([](Rng& rng) {
    Slots<std::uint64_t> slots;
    std::map<std::uint32_t, std::uint16_t> numbers;
    for (int i = 0; i < 300; ++i) {
      const auto id = static_cast<std::uint32_t>(draw(rng, 0, 30) * pick<std::int64_t>(rng, {1, 1 << 16, 1 << 27}));
      if (chance(rng, 60) && slots.find(id) == nullptr) {
        slots.add(id, [&](std::uint16_t number) {
          numbers[id] = number;
          return std::uint64_t{id} + 1000;
        });
      } else if (chance(rng, 50)) {
        slots.erase(id);
        numbers.erase(id);
      }
      REQUIRE((slots.find(id) != nullptr) == numbers.contains(id));
    }
    std::set<std::uint16_t> used;
    for (const auto& [id, number] : numbers) {
      REQUIRE(used.insert(number).second);
      REQUIRE(slots.find(id) == &slots[number]);
      REQUIRE(*slots.find(id) == id + 1000u);
    }
  });
}

TEST_CASE("as many ids as there are numbers", "[slots]") {
  Slots<std::uint32_t> slots;
  for (std::uint32_t id = 0; !slots.full(); ++id) {
    slots.add(id << 15 | id, [&](std::uint16_t) { return id; });
  }
  for (std::uint32_t id = 0; id < Slots<std::uint32_t>::kMost - 1; ++id) REQUIRE(*slots.find(id << 15 | id) == id);
  slots.erase(5u << 15 | 5u);
  CHECK_FALSE(slots.full());
  slots.add(UINT32_MAX, [](std::uint16_t number) { return number; });
  CHECK(*slots.find(UINT32_MAX) == 5);
}

}  // namespace weir::test
