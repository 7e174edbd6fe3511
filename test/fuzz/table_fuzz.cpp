// libFuzzer: bytes are operations on a small key table, which must answer as a map does (table_model.hpp).
//
// The first bytes choose the limiter and max_keys; then each operation is three bytes: what, which key, how much. The
// keys are few and of a shape that the input chooses, so that lines fill, keys move to their other lines, segments
// are rebuilt and split, and max_keys is met.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "../cpp/table_model.hpp"

namespace weir::test {
namespace {

[[noreturn]] void trap(const char* what) {
  std::fprintf(stderr, "table_fuzz: %s\n", what);
  __builtin_trap();
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  std::uint8_t byte() { return empty() ? std::uint8_t{0} : *at_++; }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

constexpr std::int64_t kCapacities[] = {1, 2, 5, 100, 1 << 20, std::int64_t{1} << 40, std::int64_t{1} << 60, 3};
constexpr std::int64_t kIntervals[] = {1, 7, 1000, 1'000'000'000, 1 << 20, 3'600'000'000'000, 2, std::int64_t{1} << 60};
constexpr std::int64_t kLongest = std::int64_t{1} << 50;  // of the steps of time: 256 of them fit
constexpr std::int64_t kMaxKeys[] = {1, 2, 4, 7, 40, 300, 2000, 100'000};

Policy policy_of(std::uint8_t byte) {
  const Policy policy{{kCapacities[byte & 7]}, {kIntervals[byte >> 3 & 7]}};
  return policy.valid() ? policy : Policy{{1}, policy.interval};
}

// Key `n` of a family: scattered, the same home line, the same half of the table, or consecutive.
KeyHash key_of(std::uint8_t shape, std::uint32_t n) {
  const std::uint64_t scattered = (n + 1) * 0xd6e8feb86659fd93;
  switch (shape & 3) {
    case 0:
      return {scattered | 1};
    case 1:
      return {(scattered & 0xffffffff00000000) | 0x40000001};
    case 2:
      return {scattered >> 24 | 1};
    default:
      return {n + std::uint64_t{1}};
  }
}

void run(Input& input) {
  const Policy policy = policy_of(input.byte());
  const std::uint8_t shape = input.byte();
  const std::uint32_t version = (shape & 4) != 0 ? 0xfffffffe : shape;
  ModelledTable table(policy, kMaxKeys[shape >> 5], version, Nanos{1'000'000'000'000}, trap);
  while (!input.empty()) {
    const std::uint8_t what = input.byte();
    const std::uint8_t which = input.byte();
    const std::uint8_t amount = input.byte();
    const KeyHash key = key_of(shape, (what >> 6 & 3) * 256u + which);
    switch (what & 15) {
      case 0:
        table.advance({std::min(table.policy().interval.v, kLongest) / 16 * amount + amount % 16});
        break;
      case 1:
        table.reset(key);
        break;
      case 2:
        table.peek(key);
        break;
      case 3:
        table.sweep_some(amount % 4 + 1u);
        break;
      case 4:
        table.change(policy_of(amount));
        break;
      case 5:
        table.convert_some(amount % 4 + 1u);
        break;
      case 6:
        table.decide(key, {std::int64_t{1} << amount % 63});
        break;
      case 7:  // many keys at once: growth
        for (std::uint32_t i = 0; i < amount; ++i) table.decide(key_of(shape, which * 64u + i), {1});
        break;
      case 8:
        if (amount == 0) table.reopen(policy, kMaxKeys[which & 7], which, key);
        if (amount == 1) table.ask_with_wrong_terms(key);
        if (amount == 2) table.sweep_all();
        if (amount == 3) table.check_all();
        if (amount == 4) table.take(key);
        if (amount >= 8) table.walk_some();
        break;
      case 9: {
        const Policy& policy_now = table.policy();
        table.set_level(key, {std::min<std::int64_t>(amount / 2, policy_now.capacity.v)}, amount % 2 != 0);
        break;
      }
      case 10:  // many keys emptied at once, and swept: segments shrink and merge
        for (std::uint32_t i = 0; i < amount; ++i) table.take(key_of(shape, which * 64u + i));
        table.sweep_some(amount);
        break;
      default:
        table.decide(key, {amount % 8 + 1});
    }
  }
  table.check_all();
}

}  // namespace
}  // namespace weir::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weir::test::Input input(data, size);
  weir::test::run(input);
  return 0;
}
