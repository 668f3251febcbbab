// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Codes lie in fours: 64 bytes hold four neighbours of 16 rows, row by row, or of shorter codes as many fours as fit,
/// in ascending bits. Of 3-bit codes the lower two bits lie so, and the upper ones apart.
namespace kvcache::detail {

/// Where codes of `Bits` bits lie: places in a table, or the numbers themselves in 8 bits.
template <unsigned Bits>
struct code_quads {
    static constexpr unsigned part = Bits == 3 ? 2 : Bits; ///< Bits that lie together.
    static constexpr std::size_t per = 8 / part;           ///< Fours in 64 bytes.
    const std::byte* codes;
    const std::byte* upper;   ///< Of 3 bits the upper ones.
    const std::int8_t* table; ///< (16)
};

#if defined(__AVX2__)

/// Four bytes as one number.
[[nodiscard]] KVCACHE_INLINE inline std::int32_t four_bytes(const std::byte* from) noexcept {
    std::int32_t four;
    std::memcpy(&four, from, sizeof four);
    return four;
}

/// Steps that pass through here keep their order: a compiler that loads everything first has no registers for the sums.
KVCACHE_INLINE inline void keep_order(__m256i& x) noexcept {
#if defined(__GNUC__)
    asm volatile("" : "+x"(x));
#endif
}

/// Whole numbers of two halves of 16 rows as float32.
[[nodiscard]] KVCACHE_INLINE inline f32x16 floats_of(__m256i first, __m256i last) noexcept {
#if defined(__AVX512F__)
    return {{native_floats(_mm512_cvtepi32_ps(_mm512_inserti64x4(_mm512_castsi256_si512(first), last, 1)))}};
#else
    return {{native_floats(_mm256_cvtepi32_ps(first)), native_floats(_mm256_cvtepi32_ps(last))}};
#endif
}

/// A four of eight rows: the places in a table.
template <unsigned Bits, std::size_t Place>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_places(const code_quads<Bits>& of, std::size_t quad,
                                                        std::size_t half) noexcept {
    using quads = code_quads<Bits>;
    const auto load = [](const std::byte* from)
                          KVCACHE_INLINE { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); };
    __m256i x = load(of.codes + quad / quads::per * 64 + half * 32);
    if constexpr (Place > 0)
        x = _mm256_srli_epi16(x, Place * quads::part);
    x = _mm256_and_si256(x, _mm256_set1_epi8((1 << quads::part) - 1));
    if constexpr (Bits == 3) {
        const __m128i nibble = _mm_cvtsi32_si128(static_cast<int>(quad % 8 / 4 * 4));
        __m256i above = _mm256_srl_epi32(load(of.upper + quad / 8 * 64 + half * 32), nibble);
        if constexpr (Place < 2) // the bit of each byte to where it belongs; what crosses bytes is masked away
            above = _mm256_slli_epi32(above, 2 - Place);
        else if constexpr (Place > 2)
            above = _mm256_srli_epi32(above, Place - 2);
        x = _mm256_or_si256(x, _mm256_and_si256(above, _mm256_set1_epi8(4)));
    }
    return x;
}

/// A four of eight rows: each number as the table has it; of 8 bits each number, and what the table has.
template <unsigned Bits, std::size_t Place>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_codes(const code_quads<Bits>& of, std::size_t quad, std::size_t half,
                                                       __m256i table) noexcept {
    if constexpr (Bits == 8)
        return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.codes + quad * 64 + half * 32)),
                                table);
    else
        return _mm256_shuffle_epi8(table, quad_places<Bits, Place>(of, quad, half));
}

/// The numbers of a table, and 128; of none that 128.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_table(const code_quads<Bits>& of) noexcept {
    const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
    if constexpr (Bits == 8)
        return sign;
    else
        return _mm256_xor_si256(
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of.table))), sign);
}

#if defined(__AVX512BW__)

/// A four of 16 rows: the places in a table.
template <unsigned Bits, std::size_t Place>
[[nodiscard]] KVCACHE_INLINE inline __m512i all_places(const code_quads<Bits>& of, std::size_t quad) noexcept {
    using quads = code_quads<Bits>;
    __m512i x = _mm512_loadu_si512(of.codes + quad / quads::per * 64);
    if constexpr (Place > 0)
        x = _mm512_srli_epi16(x, Place * quads::part);
    x = _mm512_and_si512(x, _mm512_set1_epi8((1 << quads::part) - 1));
    if constexpr (Bits == 3) {
        const __m128i nibble = _mm_cvtsi32_si128(static_cast<int>(quad % 8 / 4 * 4));
        __m512i above = _mm512_srl_epi32(_mm512_loadu_si512(of.upper + quad / 8 * 64), nibble);
        if constexpr (Place < 2)
            above = _mm512_slli_epi32(above, 2 - Place);
        else if constexpr (Place > 2)
            above = _mm512_srli_epi32(above, Place - 2);
        x = _mm512_ternarylogic_epi32(x, above, _mm512_set1_epi8(4), 0xf8); // x | (above & 4)
    }
    return x;
}

/// The same as `quad_codes` has it, of all 16 rows; `table` in each quarter.
template <unsigned Bits, std::size_t Place>
[[nodiscard]] KVCACHE_INLINE inline __m512i all_codes(const code_quads<Bits>& of, std::size_t quad,
                                                      __m512i table) noexcept {
    if constexpr (Bits == 8)
        return _mm512_xor_si512(_mm512_loadu_si512(of.codes + quad * 64), table);
    else
        return _mm512_shuffle_epi8(table, all_places<Bits, Place>(of, quad));
}

/// A table in both halves.
[[nodiscard]] KVCACHE_INLINE inline __m512i twice(__m256i table) noexcept {
    return _mm512_broadcast_i64x4(table);
}

#endif

#else

template <unsigned Bits>
[[nodiscard]] inline std::int32_t code_at(const code_quads<Bits>& of, std::size_t quad, std::size_t byte) noexcept {
    using quads = code_quads<Bits>;
    auto code = std::to_integer<unsigned>(of.codes[quad / quads::per * 64 + byte]);
    if constexpr (Bits == 8) {
        return static_cast<std::int8_t>(code);
    } else {
        code = code >> quad % quads::per * quads::part & ((1u << quads::part) - 1);
        if constexpr (Bits == 3)
            code |= (std::to_integer<unsigned>(of.upper[quad / 8 * 64 + byte]) >> quad % 8 & 1u) << 2;
        return of.table[code];
    }
}

#endif

/// Calls body(quad, place in its 64 bytes) for the fours [begin, end). Requires: begin is the first of 64 bytes.
template <unsigned Bits, class Body>
KVCACHE_INLINE inline void for_quads(std::size_t begin, std::size_t end, const Body& body) {
    constexpr std::size_t per = code_quads<Bits>::per;
    std::size_t quad = begin;
    for (; quad + per <= end; quad += per)
        unrolled<per>([&](auto place) KVCACHE_INLINE { body(quad + place, place); });
    if constexpr (per > 1)
        unrolled<per - 1>([&](auto place) KVCACHE_INLINE {
            if (quad + place < end)
                body(quad + place, place);
        });
}

} // namespace kvcache::detail
