// key: what a key is hashed as, the same on all nodes and for all callers, whether they are Erlang or a protocol.
//
//   A key's hash is SipHash-1-3 under the cluster's secret of its content, with its type for a prefix: so `1`, `1.0`,
//   `<<"1">>` and `'1'` are four keys, and `<<"1">>` is the same key however it came.
//
//     type               content that is hashed
//     binary             its bytes
//     atom               its text, Latin-1
//     integer            int64, 8 bytes; unsigned_integer: uint64, for those that don't fit
//     floating           IEEE 754, 8 bytes; -0.0 goes as 0.0
//     address            an IP address: 4 or 16 bytes, as on the wire. In Erlang the tuple {1,2,3,4}, or eight words
//     tuple              TupleKey: for each element its type, its length if that varies, its content
//     external           Erlang's external format of any other term
//     name               of limiters, under a secret of their own
//
//   Numbers are little-endian. All of this, and the two limits of tuples, decide which hash a key gets: they can't be
//   changed without all nodes changing at once.
//
// Thread safety: values. Complexity: linear in the bytes, some 1 us for 2 KB. Nothing throws or allocates.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "weir/siphash.hpp"
#include "weir/units.hpp"

namespace weir {

static_assert(std::endian::native == std::endian::little, "encoded numbers are little-endian on every node");

// Longer keys are refused: a call may not take more than 100 us.
inline constexpr std::size_t kMaxKeyBytes = 65536;
// Tuples whose encoding is longer, or that nest deeper, go by their external format.
inline constexpr std::size_t kMaxTupleBytes = 512;
inline constexpr unsigned kMaxTupleDepth = 3;

enum class KeyType : std::uint8_t { name, binary, atom, integer, unsigned_integer, floating, tuple, address, external };

// REQUIRES: the content that the type says.
inline KeyHash hash_key(const SipKey& secret, KeyType type, std::string_view content) noexcept {
  return siphash13(secret, {reinterpret_cast<const std::uint8_t*>(content.data()), content.size()},
                   static_cast<std::uint8_t>(type));
}
template <class Number>
KeyHash hash_key(const SipKey& secret, KeyType type, Number number) noexcept {
  static_assert(sizeof(Number) == 8);
  const auto bytes = std::bit_cast<std::array<char, 8>>(number);
  return hash_key(secret, type, {bytes.data(), bytes.size()});
}
// 0.0 and -0.0 are one key, as they are one term up to OTP 26.
inline double without_sign_of_zero(double number) noexcept { return number == 0 ? 0 : number; }

// The canonical bytes of a tuple. A member returns false when there is no room: then the key is another's external
// format.
class TupleKey {
 public:
  bool add_tuple(std::uint32_t arity) noexcept { return add_type(KeyType::tuple) && add(&arity, sizeof(arity)); }
  bool add_bytes(KeyType type, std::string_view content) noexcept {
    const auto length = static_cast<std::uint32_t>(content.size());
    return content.size() <= kMaxTupleBytes && add_type(type) && add(&length, sizeof(length)) &&
           add(content.data(), content.size());
  }
  template <class Number>
  bool add_number(KeyType type, Number number) noexcept {
    static_assert(sizeof(Number) == 8);
    return add_type(type) && add(&number, sizeof(number));
  }
  KeyHash hash(const SipKey& secret) const noexcept { return hash_key(secret, KeyType::tuple, {bytes_.data(), size_}); }

 private:
  bool add_type(KeyType type) noexcept { return add(&type, 1); }
  bool add(const void* from, std::size_t size) noexcept {
    if (size > bytes_.size() - size_) return false;
    std::memcpy(bytes_.data() + size_, from, size);
    size_ += size;
    return true;
  }

  std::array<char, kMaxTupleBytes> bytes_;
  std::size_t size_ = 0;
};

}  // namespace weir
