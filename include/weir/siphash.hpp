// siphash: the keyed hash by which the key table knows a key.
//
// SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", with one compression and three finalisation
// rounds) under the cluster's 128-bit secret: without the secret, names and numbers can't be recovered from memory,
// wire or disk, and nobody outside can choose keys that collide.
//
// A key is its bytes and one byte for its type, so that the binary <<"1">> and the integer 1 are different keys. What
// is hashed is bytes followed by the type: SipHash-1-3(bytes || type), the published function on n + 1 bytes.
//
// Thread safety: pure functions. Complexity: about one cycle a byte, some 10 ns for 20 bytes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "weir/units.hpp"

namespace weir {

struct SipKey {
  std::uint64_t k0 = 0;
  std::uint64_t k1 = 0;

  static SipKey from_bytes(std::span<const std::uint8_t, 16> bytes) noexcept;
};

namespace sip {

inline std::uint64_t load64(const std::uint8_t* p) noexcept {
  std::uint64_t v;
  std::memcpy(&v, p, 8);

  return v;
}

// The `n` < 4 bytes at `p`, little-endian.
inline std::uint64_t load_tail(const std::uint8_t* p, std::size_t n) noexcept {
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < n; ++i) v |= std::uint64_t{p[i]} << (8 * i);
  return v;
}

static_assert(std::endian::native == std::endian::little, "words are read from keys as they lie in memory");

// The last `tail` < 8 of n bytes. Without a jump by length where it can be: keys of one limiter differ in length.
inline std::uint64_t load_rest(const std::uint8_t* p, std::size_t tail, std::size_t n) noexcept {
  if (n >= 8) return load64(p + tail - 8) >> 1 >> (63 - 8 * tail);
  if (n >= 4) {
    std::uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + n - 4, 4);
    return low | std::uint64_t{high} << (8 * (n - 4));
  }
  return load_tail(p, tail);
}

struct State {
  std::uint64_t v0, v1, v2, v3;

  explicit State(const SipKey& key) noexcept
      : v0(key.k0 ^ 0x736f6d6570736575),
        v1(key.k1 ^ 0x646f72616e646f6d),
        v2(key.k0 ^ 0x6c7967656e657261),
        v3(key.k1 ^ 0x7465646279746573) {}

  void round() noexcept {
    v0 += v1;
    v1 = std::rotl(v1, 13);
    v1 ^= v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16);
    v3 ^= v2;
    v0 += v3;
    v3 = std::rotl(v3, 21);
    v3 ^= v0;
    v2 += v1;
    v1 = std::rotl(v1, 17);
    v1 ^= v2;
    v2 = std::rotl(v2, 32);
  }
  void block(std::uint64_t m) noexcept {
    v3 ^= m;
    round();
    v0 ^= m;
  }
  std::uint64_t finish() noexcept {
    v2 ^= 0xff;
    round();
    round();
    round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

}  // namespace sip

// The hash of `bytes` of type `type`. Never 0, which the table keeps for "no key" (0 becomes 1).
inline KeyHash siphash13(const SipKey& key, std::span<const std::uint8_t> bytes, std::uint8_t type) noexcept {
  sip::State s(key);
  const std::uint8_t* p = bytes.data();
  const std::size_t n = bytes.size();
  const std::size_t tail = n % 8;
  for (const std::uint8_t* end = p + (n - tail); p != end; p += 8) s.block(sip::load64(p));
  std::uint64_t last = sip::load_rest(p, tail, n) | std::uint64_t{type} << (8 * tail);
  if (tail == 7) {  // the type fills the block: the length gets one of its own
    s.block(last);
    last = 0;
  }
  s.block(last | std::uint64_t{(n + 1) & 0xff} << 56);
  const std::uint64_t h = s.finish();
  return {h == 0 ? 1 : h};
}

inline SipKey SipKey::from_bytes(std::span<const std::uint8_t, 16> bytes) noexcept {
  return {sip::load64(bytes.data()), sip::load64(bytes.data() + 8)};
}

}  // namespace weir
