// SPDX-License-Identifier: MIT
#include <kvcache/core/xxhash.hpp>

#include <set>
#include <span>
#include <string>
#include <string_view>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

template <class... Parts>
std::string hex(Parts... parts) {
    kv::xxh3_stream stream;
    (stream.part(std::as_bytes(std::span(std::string_view(parts)))), ...);
    return kv::to_hex(stream.finish());
}

} // namespace

TEST_CASE("the digest of nothing is XXH3-128's own") {
    CHECK(kv::to_hex(kv::xxh3_stream{}.finish()) == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("parts that join to the same bytes give different digests") {
    CHECK(hex("ab", "c") == hex("ab", "c"));
    const std::set<std::string> distinct = {hex("abc"),     hex("ab", "c"), hex("a", "bc"),
                                            hex("abc", ""), hex("", "abc"), hex("")};
    CHECK(distinct.size() == 6);
}

TEST_CASE("a digest is written as 32 hexadecimal digits, the highest first") {
    CHECK(kv::to_hex({.low = 0xFEDCBA9876543210u, .high = 0x0123456789ABCDEFu}) == "0123456789abcdeffedcba9876543210");
    CHECK(kv::to_hex({}) == std::string(32, '0'));
}
