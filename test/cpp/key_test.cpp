// Keys by the hashes that nodes of all versions give them. (The figures are those of the commit before key.hpp was.)
#include "weir/key.hpp"

#include <limits>
#include <string>

#include "cases.hpp"

namespace weir::test {
namespace {

constexpr SipKey kSecret{0x0706050403020100, 0x0f0e0d0c0b0a0908};

std::uint64_t of(KeyType type, std::string_view content) { return hash_key(kSecret, type, content).v; }

}  // namespace

TEST_CASE("keys have the hashes that they always had", "[key]") {
  CHECK(of(KeyType::binary, "alice") == 2798007998901187037U);
  CHECK(of(KeyType::atom, "alice") == 3024848950471820397U);
  CHECK(hash_key(kSecret, KeyType::integer, std::int64_t{-1}).v == 1238442218740354362U);
  CHECK(hash_key(kSecret, KeyType::unsigned_integer, std::numeric_limits<std::uint64_t>::max()).v ==
        920605736009969869U);
  CHECK(hash_key(kSecret, KeyType::floating, 3.5).v == 6764386656331273517U);
  CHECK(hash_key(kSecret, KeyType::floating, without_sign_of_zero(-0.0)).v == 13552473618225676221U);
  CHECK(of(KeyType::address, {"\x0a\0\0\x01", 4}) == 321592237092723689U);
  CHECK(of(KeyType::address, {"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01", 16}) == 9817303184621600259U);
}

TEST_CASE("tuples have the hashes that they always had", "[key]") {
  TupleKey empty;
  REQUIRE(empty.add_tuple(0));
  CHECK(empty.hash(kSecret).v == 4105274246158247145U);
  TupleKey four;  // {a, <<"b">>, 1, 2.0}
  REQUIRE(four.add_tuple(4));
  REQUIRE(four.add_bytes(KeyType::atom, "a"));
  REQUIRE(four.add_bytes(KeyType::binary, "b"));
  REQUIRE(four.add_number(KeyType::integer, std::int64_t{1}));
  REQUIRE(four.add_number(KeyType::floating, 2.0));
  CHECK(four.hash(kSecret).v == 10154696085915319861U);
  TupleKey nested;  // {{a}, {b, {c}}}
  REQUIRE(nested.add_tuple(2));
  REQUIRE(nested.add_tuple(1));
  REQUIRE(nested.add_bytes(KeyType::atom, "a"));
  REQUIRE(nested.add_tuple(2));
  REQUIRE(nested.add_bytes(KeyType::atom, "b"));
  REQUIRE(nested.add_tuple(1));
  REQUIRE(nested.add_bytes(KeyType::atom, "c"));
  CHECK(nested.hash(kSecret).v == 11435062876998499681U);
}

TEST_CASE("what doesn't fit into a tuple's bytes is refused, to the byte", "[key]") {
  const std::string content(kMaxTupleBytes, 'x');
  TupleKey tuple;
  REQUIRE(tuple.add_tuple(1));  // 5 bytes, and 5 before the content
  CHECK_FALSE(tuple.add_bytes(KeyType::binary, std::string_view(content).substr(0, kMaxTupleBytes - 9)));
  TupleKey full;
  REQUIRE(full.add_tuple(1));
  CHECK(full.add_bytes(KeyType::binary, std::string_view(content).substr(0, kMaxTupleBytes - 10)));
  CHECK_FALSE(full.add_number(KeyType::integer, std::int64_t{1}));
  CHECK_FALSE(full.add_tuple(0));
}

}  // namespace weir::test
