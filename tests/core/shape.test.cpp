// SPDX-License-Identifier: MIT
#include <kvcache/core/shape.hpp>

#include <bit>
#include <cstdint>

#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kv::literals;

TEST_CASE("a shape is valid if it has extents and whole tiles") {
    CHECK(kv::page_shape{}.valid());
    CHECK(kv::page_shape{1, 1, 1, 16}.valid());
    CHECK_FALSE(kv::page_shape{0, 1, 1, 16}.valid());
    CHECK_FALSE(kv::page_shape{1, 0, 1, 16}.valid());
    CHECK_FALSE(kv::page_shape{1, 1, 0, 16}.valid());
    CHECK_FALSE(kv::page_shape{1, 1, 1, 0}.valid());
    CHECK(kv::page_shape{1, 1, 1, 17}.valid());
    CHECK_FALSE(kv::page_shape{1, 1, 1, 17}.whole_tiles());
    CHECK(kv::page_shape{1, 1, 1, 48}.whole_tiles());
    STATIC_REQUIRE(1_KiB == 1024);
    STATIC_REQUIRE(3_MiB == 3 * 1024 * 1024);
    STATIC_REQUIRE(2_GiB == 2ull << 30);
}

TEST_CASE("a shape has extents that a model may have") {
    using shape = kv::page_shape;
    constexpr std::uint32_t layers = shape::most_layers, heads = shape::most_kv_heads, dim = shape::most_head_dim,
                            tokens = shape::most_tokens;
    STATIC_REQUIRE(shape{layers, 1, 1, 16}.valid());
    STATIC_REQUIRE_FALSE(shape{layers + 1, 1, 1, 16}.valid());
    STATIC_REQUIRE(shape{1, heads, 1, 16}.valid());
    STATIC_REQUIRE_FALSE(shape{1, heads + 1, 1, 16}.valid());
    STATIC_REQUIRE(shape{1, 1, dim, 16}.valid());
    STATIC_REQUIRE_FALSE(shape{1, 1, dim + 1, 16}.valid());
    STATIC_REQUIRE(shape{1, 1, 1, tokens}.valid());
    STATIC_REQUIRE_FALSE(shape{1, 1, 1, tokens + 16}.valid());
    constexpr std::uint32_t most = std::countr_zero(shape::most_numbers), rest = 1u << (most - 21);
    STATIC_REQUIRE(shape{rest, 1u << 5, 1u << 10, 64}.valid());
    STATIC_REQUIRE_FALSE(shape{rest, (1u << 5) + 1, 1u << 10, 64}.valid());
    STATIC_REQUIRE_FALSE(shape{rest, 1u << 5, 1u << 10, 80}.valid());
    STATIC_REQUIRE_FALSE(shape{layers, heads, dim, tokens}.valid());
    // Every product of powers of two: valid if and only if its logarithms are within the bounds.
    for (std::uint32_t l = 0; l < 32; ++l)
        for (std::uint32_t h = 0; h < 32; ++h)
            for (std::uint32_t d = 0; d < 32; ++d)
                for (std::uint32_t t = 0; t < 32; ++t) {
                    const bool valid = l <= 16 && h <= 16 && d <= 14 && t <= 16 && l + h + d + t <= most;
                    if (shape{1u << l, 1u << h, 1u << d, 1u << t}.valid() != valid)
                        FAIL(l << " " << h << " " << d << " " << t);
                }
}
