// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Codes are stored in quads: four adjacent codes of 16 rows, row by row, in 64 bytes. With shorter codes, as many
/// quads as fit share the 64 bytes, in ascending bits. With 3 bits the lower two bits are stored this way, with 5 bits
/// the lower four, and the upper bits separately.
namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// View of codes of `Bits` bits: indices into a table, or int8 values with 8 bits. With 5 bits the lower four are the
/// index of a magnitude, and the upper one is its sign.
template <unsigned Bits>
struct code_quads {
    static constexpr unsigned part = Bits == 3 || Bits == 5 ? Bits - 1 : Bits; ///< Bits stored together.
    static constexpr std::size_t per = 8 / part;                               ///< Quads in 64 bytes.
    const std::byte* codes;
    const std::byte* upper;   ///< The upper bits, with 3 or 5 bits.
    const std::int8_t* table; ///< (16)
};

#if defined(__AVX2__)

/// Reads four bytes as one int32.
[[nodiscard]] KVCACHE_INLINE inline std::int32_t four_bytes(const std::byte* from) noexcept {
    std::int32_t four;
    std::memcpy(&four, from, sizeof four);
    return four;
}

/// Keeps steps in order: a compiler that loads everything first runs out of registers for the sums. For an array
/// element, pass a copy and write it back: the element itself would go through memory each time.
KVCACHE_INLINE inline void keep_order(__m256i& x) noexcept {
#if defined(__GNUC__)
    asm volatile("" : "+x"(x));
#endif
}

/// Converts the int32 of two halves of 16 rows to float32.
[[nodiscard]] KVCACHE_INLINE inline f32x16 floats_of(__m256i first, __m256i last) noexcept {
#if defined(__AVX512F__)
    return {{native_floats(_mm512_cvtepi32_ps(_mm512_inserti64x4(_mm512_castsi256_si512(first), last, 1)))}};
#else
    return {{native_floats(_mm256_cvtepi32_ps(first)), native_floats(_mm256_cvtepi32_ps(last))}};
#endif
}

/// The table indices of a quad, for eight rows.
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
        // Moves each bit to its place in the byte; bits that cross bytes are masked off.
        above = place < 2 ? _mm256_slli_epi32(above, static_cast<int>(2 - place))
                          : _mm256_srli_epi32(above, static_cast<int>(place - 2));
        x = _mm256_or_si256(x, _mm256_and_si256(above, _mm256_set1_epi8(4)));
    }
    return x;
}

/// A quad of eight rows: table values at the indices; with 8 bits the codes XOR the table.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_codes(const code_quads<Bits>& of, std::size_t quad, std::size_t place,
                                                       std::size_t half, __m256i table) noexcept {
    if constexpr (Bits == 8) {
        return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.codes + quad * 64 + half * 32)),
                                table);
    } else if constexpr (Bits == 5) { // 128 + v becomes 128 - v where the upper bit is set
        const __m256i x = _mm256_shuffle_epi8(table, quad_places(of, quad, place, half));
        const __m256i bit = _mm256_set1_epi8(static_cast<char>(1u << quad % 8));
        const __m256i upper =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.upper + quad / 8 * 64 + half * 32));
        const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(upper, bit), bit);
        return _mm256_sub_epi8(_mm256_xor_si256(x, negative), negative);
    } else {
        return _mm256_shuffle_epi8(table, quad_places(of, quad, place, half));
    }
}

/// The table values plus 128; with 8 bits the constant 128.
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

/// The table indices of a quad, for 16 rows. `line`: its 64 bytes. With 3 bits, `upper` is the 64 bytes of the upper
/// bits, and `nibble` the shift to the half of each byte.
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

/// Calls body(index of a quad within a block of 4, its codes) for `count` quads from `begin` on, and next() after each
/// full block of 4. The codes are table indices if Linear, else the values that `table` (repeated in each quarter) has
/// at these indices; with 8 bits the codes XOR the table. Requires: `begin` is the first quad of its 64 bytes.
template <unsigned Bits, bool Linear, class Body, class Next>
KVCACHE_INLINE inline void for_codes(const code_quads<Bits>& of, std::size_t begin, std::size_t count, __m512i table,
                                     const Body& body, const Next& next) noexcept {
    using quads = code_quads<Bits>;
    const std::byte* line = of.codes + begin / quads::per * 64; // one pointer: all other offsets are constants
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

/// Repeats a table in both halves.
[[nodiscard]] KVCACHE_INLINE inline __m512i twice(__m256i table) noexcept {
    return _mm512_broadcast_i64x4(table);
}

#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/// Sums of 16 rows, as int32: GCC 12 copies a running __m512i, which has int64 lanes.
using quad_sums = std::int32_t __attribute__((vector_size(64)));

/// Sets the sum of every row to one value.
[[nodiscard]] KVCACHE_INLINE inline quad_sums quad_sums_of(std::int32_t x) noexcept {
    return reinterpret_cast<quad_sums>(_mm512_set1_epi32(x));
}

/// sums += four unsigned bytes of each row times four signed bytes.
KVCACHE_INLINE inline void add_products(quad_sums& sums, __m512i x, const std::byte* four) noexcept {
#if defined(__GNUC__) && !defined(__clang__) // GCC 12 would use separate load and broadcast instructions
    quad_sums own = sums;                    // an array element would go through memory each time
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
        if constexpr (Bits == 5)
            if ((std::to_integer<unsigned>(of.upper[quad / 8 * 64 + byte]) >> quad % 8 & 1u) != 0)
                return -of.table[code];
        return of.table[code];
    }
}

#endif

/// Forces values made in registers into memory, from which vectors are then broadcast.
template <class T>
KVCACHE_INLINE inline void to_memory([[maybe_unused]] T& x) noexcept {
#if defined(__GNUC__)
    asm("" : "+m"(x));
#endif
}

/// Interleaves the operands of N queries for 16 codes: quad by quad, and query by query in each quad. from: (N, 4,
/// bytes), to: (4, N, bytes)
template <std::size_t Bytes, std::size_t N>
inline void interleave(const std::byte* const (&from)[N], std::byte* to) noexcept {
    for (std::size_t quad = 0; quad < 4; ++quad)
        for (std::size_t i = 0; i < N; ++i, to += Bytes)
            std::memcpy(to, from[i] + quad * Bytes, Bytes);
}

/// Calls body(quad, index within its 64 bytes) for the quads [begin, end). Requires: `begin` is the first quad of its
/// 64 bytes.
template <unsigned Bits, class Body>
KVCACHE_INLINE inline void for_quads(std::size_t begin, std::size_t end, const Body& body) {
    constexpr std::size_t per = code_quads<Bits>::per;
    std::size_t quad = begin;
    for (; quad + per <= end; quad += per)
        KVCACHE_UNROLL for (std::size_t place = 0; place < per; ++place) body(quad + place, place);
    KVCACHE_UNROLL for (std::size_t place = 0; place + 1 < per; ++place) if (quad + place < end)
        body(quad + place, place);
}

}}} // namespace kvcache::detail
