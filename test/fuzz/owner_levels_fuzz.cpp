// Bytes as levels that owners tell each other. A trap: levels that were accepted don't come out as they went in, or
// more of them than may be.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "weir/owner_levels.hpp"

namespace {

constexpr std::size_t kMost = 64;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::string again;
  std::size_t count = 0;
  const weir::Policy policy{{10}, {1'000'000'000}};
  const bool levels = weir::for_each_level(bytes, kMost, [&](const weir::OwnerLevel& level) {
    ++count;
    require(level.valid());
    weir::append_level(again, level);
    static_cast<void>(level.plausible(policy, {1'800'000'000'000'000'000}));
  });
  require(levels || count == 0);
  require(count <= kMost);
  std::size_t twice = 0;
  require(weir::for_each_level(again, kMost, [&](const weir::OwnerLevel&) { ++twice; }) && twice == count);
  return 0;
}
