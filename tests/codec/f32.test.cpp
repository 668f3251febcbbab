// SPDX-License-Identifier: MIT
#include <kvcache/codec/f32.hpp>
#include <kvcache/core/memory.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a plain page is key tiles, then padded value rows, for each layer and head") {
    constexpr kv::page_shape shape{.layers = 2, .kv_heads = 3, .head_dim = 20, .tokens = 32};
    const auto state = kv::codec::f32{}.open(shape);
    constexpr std::size_t keys = 32 * 20, values = 32 * 32;
    REQUIRE(state.page_bytes() == 2 * 3 * (keys + values) * sizeof(float));
    CHECK(state.name() == "float32");

    kv::aligned_vector<float> page(state.page_bytes() / sizeof(float));
    const auto bytes = std::as_writable_bytes(std::span(page));
    float number = 0;
    for (std::uint32_t layer = 0; layer < 2; ++layer)
        for (std::uint32_t head = 0; head < 3; ++head)
            for (std::uint32_t row = 0; row < 32; ++row) {
                std::vector<float> key(20), value(20);
                for (std::size_t d = 0; d < 20; ++d) {
                    key[d] = ++number;
                    value[d] = -number;
                }
                state.encode(bytes, {kv::layer_id{layer}, kv::head_id{head}, row}, key, value);
            }
    number = 0;
    bool right = true;
    for (std::size_t part = 0; part < 6; ++part)
        for (std::size_t row = 0; row < 32; ++row) {
            const float* at = page.data() + part * (keys + values);
            for (std::size_t d = 0; d < 20; ++d) {
                right = right && at[row / 16 * 20 * 16 + d * 16 + row % 16] == ++number;
                right = right && at[keys + row * 32 + d] == -number;
            }
            for (std::size_t d = 20; d < 32; ++d)
                right = right && at[keys + row * 32 + d] == 0;
        }
    CHECK(right);
    const kv::page_tile tile{kv::layer_id{1}, kv::head_id{2}, 1};
    CHECK(state.keys(bytes, tile, {}) == page.data() + 5 * (keys + values) + 20 * 16);
    CHECK(state.values(bytes, tile, {}) == page.data() + 5 * (keys + values) + keys + 16 * 32);
}
