// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Codes lie in fours: 64 bytes hold four neighbours of 16 rows, row by row, or of shorter codes as many fours as fit,
/// in ascending bits. Of 3-bit codes the lower two bits lie so, and the upper ones apart.
namespace kvcache::inline KVCACHE_ABI::detail {

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
/// Of an array pass a copy and write it back: an element itself would go to memory each time.
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
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_places(const code_quads<Bits>& of, std::size_t quad, std::size_t place,
                                                        std::size_t half) noexcept {
    using quads = code_quads<Bits>;
    const auto load = [](const std::byte* from)
                          KVCACHE_INLINE { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); };
    __m256i x = load(of.codes + quad / quads::per * 64 + half * 32);
    x = _mm256_srli_epi16(x, static_cast<int>(place * quads::part));
    x = _mm256_and_si256(x, _mm256_set1_epi8((1 << quads::part) - 1));
    if constexpr (Bits == 3) {
        const __m128i nibble = _mm_cvtsi32_si128(static_cast<int>(quad % 8 / 4 * 4));
        __m256i above = _mm256_srl_epi32(load(of.upper + quad / 8 * 64 + half * 32), nibble);
        // The bit of each byte to where it belongs; what crosses bytes is masked away.
        above = place < 2 ? _mm256_slli_epi32(above, static_cast<int>(2 - place))
                          : _mm256_srli_epi32(above, static_cast<int>(place - 2));
        x = _mm256_or_si256(x, _mm256_and_si256(above, _mm256_set1_epi8(4)));
    }
    return x;
}

/// A four of eight rows: each number as the table has it; of 8 bits each number, and what the table has.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_codes(const code_quads<Bits>& of, std::size_t quad, std::size_t place,
                                                       std::size_t half, __m256i table) noexcept {
    if constexpr (Bits == 8)
        return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.codes + quad * 64 + half * 32)),
                                table);
    else
        return _mm256_shuffle_epi8(table, quad_places(of, quad, place, half));
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

/// A four of 16 rows: the places in a table. `line`: its 64 bytes; of 3 bits also those of the upper bits, and which
/// half of each byte it is of.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline __m512i all_places(const std::byte* line, const std::byte* upper, __m128i nibble,
                                                       std::size_t place) noexcept {
    using quads = code_quads<Bits>;
    __m512i x = _mm512_loadu_si512(line);
    x = _mm512_srli_epi16(x, static_cast<unsigned>(place * quads::part));
    x = _mm512_and_si512(x, _mm512_set1_epi8((1 << quads::part) - 1));
    if constexpr (Bits == 3) {
        __m512i above = _mm512_srl_epi32(_mm512_loadu_si512(upper), nibble);
        above = place < 2 ? _mm512_slli_epi32(above, static_cast<unsigned>(2 - place))
                          : _mm512_srli_epi32(above, static_cast<unsigned>(place - 2));
        x = _mm512_ternarylogic_epi32(x, above, _mm512_set1_epi8(4), 0xf8); // x | (above & 4)
    }
    return x;
}

/// Calls body(number of a four behind the others, of 4 at most, its codes) for `count` fours from `begin` on, and
/// next() behind each 4 of them. The codes are places in a table, or if not Linear what `table`, in each quarter, has
/// there; of 8 bits each number, and what the table has. Requires: begin is the first of 64 bytes.
template <unsigned Bits, bool Linear, class Body, class Next>
KVCACHE_INLINE inline void for_codes(const code_quads<Bits>& of, std::size_t begin, std::size_t count, __m512i table,
                                     const Body& body, const Next& next) noexcept {
    using quads = code_quads<Bits>;
    const std::byte* line = of.codes + begin / quads::per * 64; // one pointer: all else is a constant
    const auto take = [&](std::size_t quad, std::size_t place) KVCACHE_INLINE {
        const std::byte* const from = line + place / quads::per * 64;
        if constexpr (Bits == 8) {
            body(place, _mm512_xor_si512(_mm512_loadu_si512(from), table));
        } else {
            const std::byte* upper = nullptr;
            __m128i nibble = _mm_setzero_si128();
            if constexpr (Bits == 3) {
                upper = of.upper + quad / 8 * 64;
                nibble = _mm_cvtsi32_si128(static_cast<int>(quad % 8 / 4 * 4));
            }
            const __m512i x = all_places<Bits>(from, upper, nibble, place % quads::per);
            body(place, Linear ? x : _mm512_shuffle_epi8(table, x));
        }
    };
    std::size_t done = 0;
    for (; done + 4 <= count; done += 4, line += 4 / quads::per * 64) {
        KVCACHE_UNROLL for (std::size_t place = 0; place < 4; ++place) take(begin + done, place);
        next();
    }
    if (done < count)
        KVCACHE_UNROLL for (std::size_t place = 0; place < 3; ++place) if (done + place < count)
            take(begin + done, place);
}

/// A table in both halves.
[[nodiscard]] KVCACHE_INLINE inline __m512i twice(__m256i table) noexcept {
    return _mm512_broadcast_i64x4(table);
}

#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/// Sums of 16 rows. GCC 12 copies a running __m512i, which is of int64.
using quad_sums = std::int32_t __attribute__((vector_size(64)));

/// One number as the sum of each row.
[[nodiscard]] KVCACHE_INLINE inline quad_sums quad_sums_of(std::int32_t x) noexcept {
    return reinterpret_cast<quad_sums>(_mm512_set1_epi32(x));
}

/// sums += unsigned bytes times four signed ones, four by four.
KVCACHE_INLINE inline void add_products(quad_sums& sums, __m512i x, const std::byte* four) noexcept {
#if defined(__GNUC__) && !defined(__clang__) // GCC 12 loads and broadcasts in instructions of their own
    quad_sums own = sums;                    // a sum of an array would go to memory each time
    asm("vpdpbusd\t{%2%{1to16%}, %1, %0|%0, %1, %2%{1to16%}}"
        : "+v"(own)
        : "v"(x), "m"(*reinterpret_cast<const std::int32_t*>(four)));
    sums = own;
#else
    sums = reinterpret_cast<quad_sums>(
        _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), x, _mm512_set1_epi32(four_bytes(four))));
#endif
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

/// Numbers made in registers lie in memory from here on, where vectors are broadcast from.
template <class T>
KVCACHE_INLINE inline void to_memory([[maybe_unused]] T& x) noexcept {
#if defined(__GNUC__)
    asm("" : "+m"(x));
#endif
}

/// What N queries have for sixteen codes each, four by four and query by query in each four.
/// from: (N, 4, bytes), to: (4, N, bytes)
template <std::size_t Bytes, std::size_t N>
inline void weave(const std::byte* const (&from)[N], std::byte* to) noexcept {
    for (std::size_t quad = 0; quad < 4; ++quad)
        for (std::size_t i = 0; i < N; ++i, to += Bytes)
            std::memcpy(to, from[i] + quad * Bytes, Bytes);
}

/// Calls body(quad, place in its 64 bytes) for the fours [begin, end). Requires: begin is the first of 64 bytes.
template <unsigned Bits, class Body>
KVCACHE_INLINE inline void for_quads(std::size_t begin, std::size_t end, const Body& body) {
    constexpr std::size_t per = code_quads<Bits>::per;
    std::size_t quad = begin;
    for (; quad + per <= end; quad += per)
        KVCACHE_UNROLL for (std::size_t place = 0; place < per; ++place) body(quad + place, place);
    KVCACHE_UNROLL for (std::size_t place = 0; place + 1 < per; ++place) if (quad + place < end)
        body(quad + place, place);
}

} // namespace kvcache::detail
