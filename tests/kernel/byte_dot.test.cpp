// SPDX-License-Identifier: MIT
#include <kvcache/codec/packed_quants.hpp>
#include <kvcache/kernel/byte_dot.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

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
    kv::detail::byte_dots_of<Bits, Linear, N>(packed.view(codes.data(), table), 0, (dim + 3) / 4, asked.data(), own,
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
