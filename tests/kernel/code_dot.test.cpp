// SPDX-License-Identifier: MIT
#include <kvcache/codec/packed_quants.hpp>
#include <kvcache/kernel/code_dot.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

constexpr std::int8_t table[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};

// Codes of every value and queries up to the largest, compared with sums of int64.
template <unsigned Bits, std::size_t N>
bool dots_are_exact(std::size_t dim) {
    const kv::codec::detail::packed_quants<Bits> packed(kv::codec::kv_kind::keys, dim);
    std::vector<std::byte> codes(packed.bytes());
    const auto code_of = [&](std::size_t d, std::size_t lane) {
        return static_cast<std::uint8_t>(numbers::hashed(Bits, d * 16 + lane) & ((1u << Bits) - 1));
    };
    const auto number_of = [&](std::size_t d, std::size_t lane) -> std::int64_t {
        return Bits == 8 ? static_cast<std::int8_t>(code_of(d, lane)) : table[code_of(d, lane)];
    };
    for (std::size_t d = 0; d < dim; ++d)
        for (std::size_t lane = 0; lane < 16; ++lane)
            packed.put(codes.data(), d, lane, code_of(d, lane));
    const std::size_t sixteens = (dim + 15) / 16;
    std::vector<std::byte> asked(N * sixteens * 32);
    std::vector<std::int64_t> whole(N * sixteens * 16);
    std::int32_t own[N] = {};
    for (std::size_t d = 0; d < sixteens * 16; d += 16) {
        kv::f32x16 x[N];
        for (std::size_t i = 0; i < N; ++i) {
            alignas(64) float each[16] = {};
            for (std::size_t k = 0; k < 16 && d + k < dim; ++k) {
                const auto any = static_cast<std::int32_t>(numbers::hashed(i, d + k) % 65025) - 32512;
                whole[i * sixteens * 16 + d + k] = (d + k) % 7 == 0 ? 32512 : (d + k) % 7 == 1 ? -32512 : any;
                each[k] = static_cast<float>(whole[i * sixteens * 16 + d + k]);
            }
            x[i] = kv::f32x16::load(each);
        }
        std::int32_t sums[N];
        kv::detail::quantize_int16(x, asked.data() + d * 2 * N, kv::detail::own_by, sums);
        for (std::size_t i = 0; i < N; ++i)
            own[i] += sums[i];
    }
    kv::f32x16 dots[N];
    const auto quads = packed.view(codes.data(), table);
    kv::detail::dots_of<Bits, N>(quads, 0, (dim + 3) / 4, asked.data(), own, dots);
    bool right = true;
    for (std::size_t i = 0; i < N; ++i) {
        alignas(64) float got[16];
        dots[i].store(got);
        for (std::size_t lane = 0; lane < 16; ++lane) {
            std::int64_t want = 0;
            for (std::size_t d = 0; d < dim; ++d)
                want += number_of(d, lane) * whole[i * sixteens * 16 + d];
            right = right && numbers::same_bits(got[lane], static_cast<float>(want));
        }
    }
    for (std::size_t quad = 0; quad < (dim + 3) / 4; ++quad) {
        kv::f32x16 four[4];
        kv::detail::numbers_of(quads, quad, four);
        for (std::size_t i = 0; i < 4 && quad * 4 + i < dim; ++i) {
            alignas(64) float got[16];
            four[i].store(got);
            for (std::size_t lane = 0; lane < 16; ++lane)
                right = right && numbers::same_bits(got[lane], static_cast<float>(number_of(quad * 4 + i, lane)));
        }
    }
    return right;
}

} // namespace

TEST_CASE("products of codes and integers are exact at every length") {
    for (const std::size_t dim : {4u, 12u, 16u, 20u, 40u, 64u, 128u, 256u, 512u}) {
        CAPTURE(dim);
        CHECK(dots_are_exact<8, 1>(dim));
        CHECK(dots_are_exact<8, 4>(dim));
        CHECK(dots_are_exact<4, 1>(dim));
        CHECK(dots_are_exact<4, 2>(dim));
        CHECK(dots_are_exact<3, 2>(dim));
        CHECK(dots_are_exact<2, 4>(dim));
    }
}

TEST_CASE("sixteen numbers are rounded to the nearest whole, and to the even one between two") {
    alignas(64) const float from[16] = {0.5f, 1.5f,  -0.5f,  -1.5f,   2.49f,  -2.51f,  32512.0f, -32512.0f,
                                        0.0f, -0.0f, 128.0f, -128.0f, 127.5f, -128.5f, 255.0f,   -32511.5f};
    std::byte to[32];
    CHECK(kv::detail::quantize_int16(kv::f32x16::load(from), to) == 0 + 2 - 0 - 2 + 2 - 3 + 128 - 128 + 255 - 32512);
}
