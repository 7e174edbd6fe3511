// Shows R08 of doc/requirements.md.
// siphash13 against values computed by others, against the definition written down a second time, and for what a key
// table needs of it: never 0, every bit of input moves every bit of output.
#include "weir/siphash.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"

namespace weir {
namespace {

using test::draw;
using test::Rng;

using Bytes = std::vector<std::uint8_t>;

// SipHash-1-3 of the n bytes 0, 1, .. n - 1 under the key 0, for n = 1 to 64. These are CPython 3.11's: bytes hash by
// SipHash-1-3, under the key 0 when randomisation is off:
//   PYTHONHASHSEED=0 python3 -c 'print([hex(hash(bytes(range(n))) % 2**64) for n in range(1, 65)])'
constexpr std::array<std::uint64_t, 64> kByPython{
    0x68a914128e01e473, 0x010bac45c41e3669, 0x4d4c9a4a8ef6e0ad, 0x7cc43f98813e4dbd, 0x5abe2169dff36275,
    0xe3c25f87624f1cdb, 0x2f098ab0c751325a, 0xead411e67ebe2eea, 0x75927f9d95124362, 0xaf9f77a65ab51a1d,
    0xfe64ce8b6617fcff, 0xa6baf4fb0f9fe1c2, 0xa0cf3211850f8e0d, 0x7f86049379fbfe67, 0xf30eb725bb91c9ea,
    0x8972188433a5c5b7, 0x4883c49a2c009c1d, 0xadc2c0b63044067d, 0x091f4a3329f87d19, 0x639e355ae68c0100,
    0xb17bef2cb5213239, 0xf8aeb1066236ccfe, 0x37332b1389daa4ff, 0x31185a47af932f3a, 0xebf352e82ae23e2f,
    0xed36ff242fe478b2, 0x2454d97d299299df, 0x8cd57fe8130d0ac7, 0xbe98eb2faf0a0e85, 0xd427c34ee09470c6,
    0x169739443111d49b, 0x31ef8061c910629b, 0x7fb71d24dfa4c9f6, 0x92771f49e836d389, 0x3c393cf6f0853bc3,
    0xac77921fcc642bd3, 0x422a9751192ff266, 0xc680ae8a8c584ddf, 0x6c76b6d34bb6d26b, 0x95bc321ab41d8206,
    0x908a3a97a6d37669, 0xfcaf3c64874dd0b4, 0xf689479b32b84a44, 0xd857641079efd1fd, 0x8b581578722633f7,
    0x83cb09d35ea7bcd4, 0x8485f7f5ae725a0d, 0xfe1f2445ba50237f, 0x23cece041d7866b0, 0x416687480b336c09,
    0xf15960da7e7f3892, 0xded6177b9826835a, 0xf80dae51668be6be, 0x17ecc6ee6647df18, 0x5220d642b4a52110,
    0xa4f0cf4ba4adc016, 0xe5125bb26d1f2976, 0x851b0e75f580d256, 0x12605250a37e39ac, 0xd95a713568daebf1,
    0xcdcf4a42ec0dd605, 0xa5c708712b617164, 0x385d3e39e5f37359, 0x75e05fd5bbc870c6};

// The definition, a byte at a time, with nothing taken from the header.
std::uint64_t specified(std::uint64_t k0, std::uint64_t k1, const Bytes& message) {
  std::array<std::uint64_t, 4> v{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261,
                                 k1 ^ 0x7465646279746573};
  const auto mix = [&v](int a, int b, int bits_b, bool swap_a) {
    v[a] += v[b];
    v[b] = (v[b] << bits_b | v[b] >> (64 - bits_b)) ^ v[a];
    if (swap_a) v[a] = v[a] << 32 | v[a] >> 32;
  };
  const auto round = [&mix] {
    mix(0, 1, 13, true);
    mix(2, 3, 16, false);
    mix(0, 3, 21, false);
    mix(2, 1, 17, true);
  };
  Bytes padded = message;
  while (padded.size() % 8 != 7) padded.push_back(0);
  padded.push_back(static_cast<std::uint8_t>(message.size()));
  for (std::size_t at = 0; at < padded.size(); at += 8) {
    std::uint64_t word = 0;
    for (int i = 7; i >= 0; --i) word = word << 8 | padded[at + static_cast<std::size_t>(i)];
    v[3] ^= word;
    round();
    v[0] ^= word;
  }
  v[2] ^= 0xff;
  for (int i = 0; i < 3; ++i) round();
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

// 0, 1, .. n - 1 (mod 256).
Bytes counting(std::size_t n) {
  Bytes bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  return bytes;
}

// What a message of at least one byte hashes to when its last byte is the type.
std::uint64_t hash_of(const SipKey& key, const Bytes& message) {
  return siphash13(key, std::span(message).first(message.size() - 1), message.back()).v;
}

TEST_CASE("siphash: equals what CPython computes, for each length of 1 to 64 bytes", "[siphash]") {
  for (std::size_t n = 1; n <= kByPython.size(); ++n) {
    INFO(n << " bytes");
    CHECK(hash_of(SipKey{}, counting(n)) == kByPython[n - 1]);
    CHECK(specified(0, 0, counting(n)) == kByPython[n - 1]);
  }
}

TEST_CASE("siphash: the key 00 01 .. 0f of the published vectors", "[siphash]") {
  const Bytes secret = counting(16);
  const SipKey key = SipKey::from_bytes(std::span<const std::uint8_t, 16>(secret));
  CHECK(key.k0 == 0x0706050403020100);
  CHECK(key.k1 == 0x0f0e0d0c0b0a0908);
  CHECK(specified(key.k0, key.k1, {}) == 0xabac0158050fc4dc);
  CHECK(hash_of(key, counting(1)) == 0xc9f49bf37d57ca93);
  CHECK(hash_of(key, counting(8)) == 0x369095118d299a8e);
  CHECK(hash_of(key, counting(15)) == 0xd320d86d2a519956);
  CHECK(hash_of(key, counting(16)) == 0xcc4fdd1a7d908b66);
  CHECK(hash_of(key, counting(63)) == 0x9d199062b7bbb3a8);
}

TEST_CASE("siphash: equals the definition for any key, bytes and type", "[siphash]") {
  test::for_cases([](Rng& rng) {
    const SipKey key{rng(), rng()};
    for (std::int64_t length = 0; length <= 64; ++length) {
      Bytes message(static_cast<std::size_t>(length + 1));
      for (std::uint8_t& byte : message) byte = static_cast<std::uint8_t>(rng());
      if (hash_of(key, message) != specified(key.k0, key.k1, message)) FAIL("differs at " << length << " bytes");
    }
    // Lengths beyond 255: the last byte of the padding is the length modulo 256.
    Bytes message(static_cast<std::size_t>(draw(rng, 200, 2000)));
    for (std::uint8_t& byte : message) byte = static_cast<std::uint8_t>(rng());
    REQUIRE(hash_of(key, message) == specified(key.k0, key.k1, message));
  });
}

TEST_CASE("siphash: bytes are read where they lie, aligned or not", "[siphash]") {
  const SipKey key{1, 2};
  const Bytes bytes = counting(40);
  for (std::size_t offset = 0; offset < 8; ++offset) {
    Bytes moved(offset, 0xee);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    moved.insert(moved.end(), 8, 0xee);
    CHECK(siphash13(key, std::span(moved).subspan(offset, bytes.size()), 7) == siphash13(key, bytes, 7));
  }
}

TEST_CASE("siphash: the type, the length and the secret each make another key", "[siphash]") {
  const SipKey key{0x0123456789abcdef, 0xfedcba9876543210};
  std::set<std::uint64_t> seen;
  std::size_t count = 0;
  for (std::size_t length = 0; length <= 32; ++length)
    for (int type = 0; type < 256; ++type, ++count)
      seen.insert(siphash13(key, Bytes(length, 0), static_cast<std::uint8_t>(type)).v);
  for (int bit = 0; bit < 64; ++bit, count += 2) {
    const std::uint64_t flip = std::uint64_t{1} << bit;
    seen.insert(siphash13({key.k0 ^ flip, key.k1}, counting(5), 1).v);
    seen.insert(siphash13({key.k0, key.k1 ^ flip}, counting(5), 1).v);
  }
  CHECK(seen.size() == count);  // 8576 of 2^64: two alike would be a fault, not bad luck
  CHECK(seen.count(0) == 0);
}

// Each output bit must change for about half of the single-bit changes of the input; a bit of the hash that some bit
// of the input does not reach would make lines or segments fill unevenly.
TEST_CASE("siphash: any bit of the input changes about half of the output", "[siphash]") {
  constexpr int kTrials = 400;
  Rng rng(42);
  for (std::size_t length : {std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{20}}) {
    for (std::size_t bit = 0; bit < length * 8; bit += 3) {
      int changed = 0;
      std::array<int, 64> by_bit{};
      for (int trial = 0; trial < kTrials; ++trial) {
        Bytes message(length + 1);
        for (std::uint8_t& byte : message) byte = static_cast<std::uint8_t>(rng());
        const SipKey key{rng(), rng()};
        const std::uint64_t before = hash_of(key, message);
        message[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
        const std::uint64_t difference = before ^ hash_of(key, message);
        changed += std::popcount(difference);
        for (std::size_t out = 0; out < 64; ++out) by_bit[out] += static_cast<int>(difference >> out & 1);
      }
      INFO("bit " << bit << " of " << length << " bytes");
      // 25600 fair coins: 50 % +- 2 % is more than 6 standard deviations; 400 of them: 50 % +- 16 % likewise.
      CHECK(changed > kTrials * 64 * 48 / 100);
      CHECK(changed < kTrials * 64 * 52 / 100);
      for (const int flips : by_bit) {
        CHECK(flips > kTrials * 34 / 100);
        CHECK(flips < kTrials * 66 / 100);
      }
    }
  }
}

}  // namespace
}  // namespace weir
