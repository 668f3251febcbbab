// SPDX-License-Identifier: MIT
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/kernel/weighted_codes.hpp>

#include <cstdint>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

constexpr std::int8_t places[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::int8_t upward[16] = {-15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1, 0};
constexpr std::int8_t widest[16] = {-63, -46, -36, -28, -21, -15, -9, -3, 3, 9, 15, 21, 28, 36, 46, 63};

enum class sort { any, not_negative, largest, least };

// Codes of every value, or alternately the last and the first, and several kinds of weights, compared with sums of
// int64.
template <unsigned Bits, bool Linear, std::size_t N>
bool sums_are_exact(const std::int8_t* table, sort of) {
    constexpr std::size_t dim = 48;
    const kv::codec::detail::packed_quants<Bits> packed(kv::codec::kv_kind::values, dim);
    std::vector<std::byte> codes(packed.bytes());
    const auto code_of = [&](std::size_t d, std::size_t lane) {
        const auto any = of == sort::any || of == sort::not_negative ? numbers::hashed(Bits, d * 16 + lane)
                         : Bits == 8                                 ? (d % 2 == 0 ? 127u : 129u)
                                                                     : (d % 2 == 0 ? 255u : 0u);
        return static_cast<std::uint8_t>(any & ((1u << Bits) - 1));
    };
    for (std::size_t d = 0; d < dim; ++d)
        for (std::size_t lane = 0; lane < 16; ++lane)
            packed.put(codes.data(), d, lane, code_of(d, lane));
    constexpr std::int32_t limit = kv::detail::operand_for<Bits>::largest;
    std::int64_t whole[N][16];
    kv::f32x16 weights[N];
    for (std::size_t i = 0; i < N; ++i) {
        alignas(64) float each[16];
        for (std::size_t lane = 0; lane < 16; ++lane) {
            const auto size = static_cast<std::int32_t>(numbers::hashed(i + 7, lane) % (limit + 1));
            whole[i][lane] = of == sort::largest        ? limit
                             : of == sort::least        ? -limit
                             : of == sort::not_negative ? size
                                                        : (lane % 2 == 0 ? size : -size);
            each[lane] = static_cast<float>(whole[i][lane]);
        }
        weights[i] = kv::f32x16::load(each);
    }
    const auto quads = packed.view(codes.data(), table);
    kv::detail::column_weights<Bits, Linear, N> of_column;
    of_column.put(quads, weights);
    bool right = true;
    for (std::size_t column = 0; column < dim / 16; ++column) {
        kv::f32x16 dots[N];
        of_column.dots(quads, column, dots);
        for (std::size_t i = 0; i < N; ++i) {
            alignas(64) float got[16];
            dots[i].store(got);
            for (std::size_t row = 0; row < 16; ++row) {
                std::int64_t want = 0;
                for (std::size_t lane = 0; lane < 16; ++lane) {
                    const auto code = code_of(column * 16 + row, lane);
                    want += (Bits == 8 ? std::int64_t{static_cast<std::int8_t>(code)} : table[code]) * whole[i][lane];
                }
                right = right && numbers::same_bits(got[row], static_cast<float>(want));
            }
        }
    }
    return right;
}

} // namespace

TEST_CASE("sums of codes over the tokens of a tile are exact for weights of both signs, up to the largest") {
    for (const auto of : {sort::any, sort::not_negative, sort::largest, sort::least}) {
        CAPTURE(static_cast<int>(of));
        CHECK(sums_are_exact<8, false, 1>(nullptr, of));
        CHECK(sums_are_exact<8, false, 4>(nullptr, of));
        CHECK(sums_are_exact<4, true, 1>(places, of));
        CHECK(sums_are_exact<4, true, 4>(places, of));
        CHECK(sums_are_exact<4, true, 3>(upward, of));
        CHECK(sums_are_exact<4, false, 2>(places, of));
        CHECK(sums_are_exact<4, false, 4>(widest, of));
        CHECK(sums_are_exact<3, false, 2>(widest, of));
        CHECK(sums_are_exact<2, false, 4>(widest, of));
    }
}
