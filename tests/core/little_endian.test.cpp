// SPDX-License-Identifier: MIT
#include <kvcache/core/little_endian.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("numbers lie with their lowest byte first and come back") {
    std::array<std::byte, 12> bytes = {};
    kv::store_little<std::uint64_t>(bytes, 3, 0x8877665544332211);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        CHECK(std::to_integer<unsigned>(bytes[i]) == (i < 3 || i > 10 ? 0 : 0x11 * (i - 2)));
    CHECK(kv::load_little<std::uint64_t>(bytes, 3) == 0x8877665544332211);
    CHECK(kv::load_little<std::uint32_t>(bytes, 4) == 0x55443322);
    CHECK(kv::load_little<std::uint16_t>(bytes, 9) == 0x8877);
    CHECK(kv::load_little<std::uint8_t>(bytes, 10) == 0x88);
}
