// SPDX-License-Identifier: MIT
#include <kvcache/model/tensor_view.hpp>

#include <array>
#include <cstddef>
#include <span>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a view reads its numbers from bytes that are not aligned") {
    // 1.5 and -2 in each format, after one unrelated byte.
    const std::array<unsigned char, 9> f32 = {0xFF, 0x00, 0x00, 0xC0, 0x3F, 0x00, 0x00, 0x00, 0xC0};
    const std::array<unsigned char, 5> f16 = {0xFF, 0x00, 0x3E, 0x00, 0xC0};
    const std::array<unsigned char, 5> bf16 = {0xFF, 0xC0, 0x3F, 0x00, 0xC0};
    const kv::tensor_view views[] = {
        {.dtype = kv::dtype::f32, .shape = {2}, .bytes = std::as_bytes(std::span(f32)).subspan(1)},
        {.dtype = kv::dtype::f16, .shape = {2}, .bytes = std::as_bytes(std::span(f16)).subspan(1)},
        {.dtype = kv::dtype::bf16, .shape = {1, 2}, .bytes = std::as_bytes(std::span(bf16)).subspan(1)},
    };
    for (const kv::tensor_view& view : views) {
        INFO(kv::name_of(view.dtype));
        CHECK(view.size() == 2);
        CHECK(view[0] == 1.5F);
        CHECK(view[1] == -2.0F);
        std::array<float, 2> all = {};
        view.read(0, all);
        CHECK(all == std::array{1.5F, -2.0F});
        std::array<float, 1> last = {};
        view.read(1, last);
        CHECK(last[0] == -2.0F);
        CHECK_THROWS_AS(view[2], kv::contract_violation);
        CHECK_THROWS_AS(view.read(1, all), kv::contract_violation);
    }
}
