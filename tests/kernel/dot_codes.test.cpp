// SPDX-License-Identifier: MIT
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/kernel/dot_codes.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

constexpr std::int8_t wide_table[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};

// Codes of every value and queries up to the largest, compared with sums of int64.
template <unsigned Bits, std::size_t N>
bool dots_are_exact(std::size_t dim) {
    const kv::codec::detail::packed_quants<Bits> packed(kv::codec::kv_kind::keys, dim);
    std::vector<std::byte> codes(packed.bytes());
    const auto code_of = [&](std::size_t d, std::size_t lane) {
        return static_cast<std::uint8_t>(numbers::hashed(Bits, d * 16 + lane) & ((1u << Bits) - 1));
    };
    const auto number_of = [&](std::size_t d, std::size_t lane) -> std::int64_t {
        return Bits == 8 ? static_cast<std::int8_t>(code_of(d, lane)) : wide_table[code_of(d, lane)];
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
    const auto quads = packed.view(codes.data(), wide_table);
    kv::detail::dot_codes_int16<Bits, N>(quads, 0, (dim + 3) / 4, asked.data(), own, dots);
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

namespace {

constexpr std::int8_t places[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::int8_t widest[16] = {-63, -46, -36, -28, -21, -15, -9, -3, 3, 9, 15, 21, 28, 36, 46, 63};
constexpr std::int8_t apart[16] = {-120, -7, -1, 6};

// Codes of every value, or the last alone, and queries up to the largest, compared with sums of int64.
template <unsigned Bits, bool Linear, std::size_t N>
bool products_are_exact(std::size_t dim, const std::int8_t* table, bool extreme) {
    const kv::codec::detail::packed_quants<Bits> packed(kv::codec::kv_kind::keys, dim);
    std::vector<std::byte> codes(packed.bytes());
    const auto code_of = [&](std::size_t d, std::size_t lane) {
        const auto any = extreme ? (lane % 2 == 0 ? 255u : 0u) : numbers::hashed(Bits, d * 16 + lane);
        return static_cast<std::uint8_t>(any & ((1u << Bits) - 1));
    };
    for (std::size_t d = 0; d < dim; ++d)
        for (std::size_t lane = 0; lane < 16; ++lane)
            packed.put(codes.data(), d, lane, code_of(d, lane));
    const std::size_t sixteens = (dim + 15) / 16;
    std::vector<std::byte> asked(N * sixteens * 16);
    std::vector<std::int64_t> whole(N * sixteens * 16);
    std::int32_t own[N] = {};
    for (std::size_t d = 0; d < sixteens * 16; d += 16) {
        kv::f32x16 x[N];
        for (std::size_t i = 0; i < N; ++i) {
            alignas(64) float each[16] = {};
            for (std::size_t k = 0; k < 16 && d + k < dim; ++k) {
                const auto any = static_cast<std::int32_t>(numbers::hashed(i, d + k) % 255) - 127;
                whole[i * sixteens * 16 + d + k] = extreme ? (i % 2 == 0 ? 127 : -127) : any;
                each[k] = static_cast<float>(whole[i * sixteens * 16 + d + k]);
            }
            x[i] = kv::f32x16::load(each);
        }
        std::int32_t sums[N];
        kv::detail::quantize_int8(x, asked.data() + d * N, table[0], sums);
        for (std::size_t i = 0; i < N; ++i)
            own[i] += sums[i];
    }
    kv::f32x16 dots[N];
    kv::detail::dot_codes_int8<Bits, Linear, N>(packed.view(codes.data(), table), 0, (dim + 3) / 4, asked.data(), own,
                                                dots);
    bool right = true;
    for (std::size_t i = 0; i < N; ++i) {
        alignas(64) float got[16];
        dots[i].store(got);
        for (std::size_t lane = 0; lane < 16; ++lane) {
            std::int64_t want = 0;
            for (std::size_t d = 0; d < dim; ++d)
                want += table[code_of(d, lane)] * whole[i * sixteens * 16 + d];
            right = right && numbers::same_bits(got[lane], static_cast<float>(want));
        }
    }
    return right;
}

} // namespace

TEST_CASE("products of short codes and 8-bit integers are exact at every length") {
    for (const std::size_t dim : {4u, 12u, 16u, 20u, 32u, 36u, 40u, 64u, 128u, 256u, 512u})
        for (const bool extreme : {false, true}) {
            CAPTURE(dim, extreme);
            CHECK(products_are_exact<4, true, 1>(dim, places, extreme));
            CHECK(products_are_exact<4, true, 4>(dim, places, extreme));
            CHECK(products_are_exact<4, false, 2>(dim, places, extreme));
            CHECK(products_are_exact<4, false, 2>(dim, widest, extreme));
            CHECK(products_are_exact<3, false, 2>(dim, widest, extreme));
            CHECK(products_are_exact<2, false, 4>(dim, apart, extreme));
        }
}

TEST_CASE("a table is linear if its places are its numbers") {
    CHECK(kv::detail::is_linear<4>(places));
    CHECK_FALSE(kv::detail::is_linear<4>(widest));
    CHECK_FALSE(kv::detail::is_linear<2>(places));
}

TEST_CASE("sixteen numbers become bytes, rounded to the nearest, and to the even one between two") {
    alignas(64) const float from[16] = {0.5f,    1.5f, -0.5f, -1.5f, 2.49f, -2.51f, 127.0f, -127.0f,
                                        126.49f, 0.0f, -0.0f, 3.5f,  -4.5f, 1e-30f, 100.0f, -64.5f};
    const int want[16] = {0, 2, 0, -2, 2, -3, 127, -127, 126, 0, 0, 4, -4, 0, 100, -64};
    std::byte to[16];
    int all = 0;
    const std::int32_t sum = kv::detail::quantize_int8(kv::f32x16::load(from), to);
    for (std::size_t i = 0; i < 16; ++i) {
        CHECK(static_cast<std::int8_t>(std::to_integer<unsigned>(to[i])) == want[i]);
        all += want[i];
    }
    CHECK(sum == all);
}
