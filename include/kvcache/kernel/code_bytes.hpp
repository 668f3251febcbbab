// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvcache {

/// Sixteen small codes, a byte each, on their way to sixteen numbers.
struct code_bytes {
#if defined(__SSE2__)
    __m128i bytes;
#else
    std::uint8_t bytes[16];
#endif

    /// Reads 16 bytes at any alignment.
    [[nodiscard]] static code_bytes load(const std::byte* from) noexcept {
#if defined(__SSE2__)
        return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))};
#else
        code_bytes all;
        std::memcpy(all.bytes, from, sizeof all.bytes);
        return all;
#endif
    }

    /// Of each byte the `Bits` bits from bit `shift` on.
    template <unsigned Bits>
    [[nodiscard]] code_bytes field(unsigned shift) const noexcept {
#if defined(__SSE2__)
        const __m128i moved = _mm_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(shift)));
        return {_mm_and_si128(moved, _mm_set1_epi8(static_cast<char>((1u << Bits) - 1)))};
#else
        code_bytes some;
        for (std::size_t i = 0; i < 16; ++i)
            some.bytes[i] = static_cast<std::uint8_t>(bytes[i] >> shift & ((1u << Bits) - 1));
        return some;
#endif
    }

    /// Each byte with the bits of `upper` above its own `shift` bits.
    [[nodiscard]] code_bytes below(const code_bytes& upper, unsigned shift) const noexcept {
#if defined(__SSE2__)
        return {_mm_or_si128(bytes, _mm_sll_epi16(upper.bytes, _mm_cvtsi32_si128(static_cast<int>(shift))))};
#else
        code_bytes all;
        for (std::size_t i = 0; i < 16; ++i)
            all.bytes[i] = static_cast<std::uint8_t>(bytes[i] | upper.bytes[i] << shift);
        return all;
#endif
    }

    /// The bytes as numbers from 0 to 255.
    [[nodiscard]] f32x16 numbers() const noexcept {
#if defined(__AVX512F__)
        return {{detail::native_floats(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)))}};
#elif defined(__AVX2__)
        return {{detail::native_floats(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))),
                 detail::native_floats(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))))}};
#else
        return each([](std::uint8_t byte) { return static_cast<float>(byte); });
#endif
    }

    /// The bytes as numbers from -128 to 127.
    [[nodiscard]] f32x16 signed_numbers() const noexcept {
#if defined(__AVX512F__)
        return {{detail::native_floats(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))}};
#elif defined(__AVX2__)
        return {{detail::native_floats(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))),
                 detail::native_floats(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))))}};
#else
        return each([](std::uint8_t byte) { return static_cast<float>(static_cast<std::int8_t>(byte)); });
#endif
    }

    /// The numbers of a table that the bytes, all below 16, are places in. (16)
    [[nodiscard]] f32x16 looked_up(const float* table) const noexcept {
#if defined(__AVX512F__)
        return {{detail::native_floats(_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(bytes), _mm512_loadu_ps(table)))}};
#elif defined(__AVX2__)
        const __m256 lower = _mm256_loadu_ps(table), upper = _mm256_loadu_ps(table + 8);
        const auto eight = [&](__m128i places) {
            const __m256i wide = _mm256_cvtepu8_epi32(places);
            return detail::native_floats(_mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, wide),
                                                          _mm256_permutevar8x32_ps(upper, wide),
                                                          _mm256_castsi256_ps(_mm256_slli_epi32(wide, 28))));
        };
        return {{eight(bytes), eight(_mm_unpackhi_epi64(bytes, bytes))}};
#else
        return each([table](std::uint8_t byte) { return table[byte % 16]; });
#endif
    }

private:
    template <class Number>
    [[nodiscard]] f32x16 each(Number number) const noexcept {
        std::uint8_t from[16];
        std::memcpy(from, &bytes, sizeof from);
        alignas(64) float to[16];
        for (std::size_t i = 0; i < 16; ++i)
            to[i] = number(from[i]);
        return f32x16::load(to);
    }
};

} // namespace kvcache
