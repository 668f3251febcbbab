// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/storage/zero_on_release.hpp>

#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

TEST_CASE("wiped bytes are zero, adjacent ones are unchanged") {
    std::vector<std::byte> bytes(100, std::byte{5});
    kvcache::secure_zero(std::span(bytes).subspan(10, 80));
    CHECK(kvcache::ranges::count(bytes, std::byte{}) == 80);
    CHECK(bytes[9] == std::byte{5});
    CHECK(bytes[90] == std::byte{5});
    kvcache::secure_zero({});
}
