// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Floating-point formats with 8 exponent bits.
template <class T>
concept wide_exponent = std::same_as<T, float> || std::same_as<T, bfloat16>;

namespace detail {

template <wide_exponent Number>
struct exponent_parts;

// bfloat16: the sign and 7 fraction bits, in one byte.
template <>
struct exponent_parts<bfloat16> {
    static constexpr std::size_t rest_bytes = 1;
    [[nodiscard]] static std::uint8_t exponent(bfloat16 x) noexcept { return static_cast<std::uint8_t>(x.bits >> 7); }
    static void put_rest(bfloat16 x, std::byte* to) noexcept {
        to[0] = static_cast<std::byte>((x.bits >> 8 & 0x80) | (x.bits & 0x7F));
    }
    [[nodiscard]] static bfloat16 join(std::uint8_t exponent, const std::byte* rest) noexcept {
        const auto byte = std::to_integer<unsigned>(rest[0]);
        return {static_cast<std::uint16_t>((byte & 0x80) << 8 | unsigned{exponent} << 7 | (byte & 0x7F))};
    }
};

// float32: the sign and 23 fraction bits, in three bytes, lowest first.
template <>
struct exponent_parts<float> {
    static constexpr std::size_t rest_bytes = 3;
    [[nodiscard]] static std::uint8_t exponent(float x) noexcept {
        return static_cast<std::uint8_t>(bit_cast<std::uint32_t>(x) >> 23);
    }
    static void put_rest(float x, std::byte* to) noexcept {
        const auto bits = bit_cast<std::uint32_t>(x);
        const std::uint32_t rest = (bits >> 8 & 0x800000u) | (bits & 0x7FFFFFu);
        for (std::size_t i = 0; i < 3; ++i)
            to[i] = static_cast<std::byte>(rest >> (8 * i) & 0xFF);
    }
    [[nodiscard]] static float join(std::uint8_t exponent, const std::byte* rest) noexcept {
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 3; ++i)
            bits |= std::to_integer<std::uint32_t>(rest[i]) << (8 * i);
        return bit_cast<float>((bits & 0x800000u) << 8 | std::uint32_t{exponent} << 23 | (bits & 0x7FFFFFu));
    }
};

#if defined(__AVX2__)
// Joins 16 exponents with their signs and fractions.
inline void join_sixteen(__m128i exponents, const std::byte* rest, bfloat16* to) noexcept {
    const __m256i low = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rest)));
    const __m256i exponent = _mm256_slli_epi16(_mm256_cvtepu8_epi16(exponents), 7);
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(low, _mm256_set1_epi16(0x80)), 8);
    const __m256i fraction = _mm256_and_si256(low, _mm256_set1_epi16(0x7F));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_or_si256(sign, _mm256_or_si256(exponent, fraction)));
}
inline void join_sixteen(__m128i exponents, const std::byte* rest, float* to) noexcept {
    const __m128i threes = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m128i threes_behind = _mm_setr_epi8(4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1);
    for (int four = 0; four < 4; ++four, rest += 12, to += 4) {
        // The last load begins 4 bytes earlier, so that it does not read past the end.
        const auto* const at = reinterpret_cast<const __m128i*>(four < 3 ? rest : rest - 4);
        const __m128i bits = _mm_shuffle_epi8(_mm_loadu_si128(at), four < 3 ? threes : threes_behind);
        const __m128i exponent = _mm_slli_epi32(_mm_cvtepu8_epi32(exponents), 23);
        const __m128i sign = _mm_slli_epi32(_mm_and_si128(bits, _mm_set1_epi32(0x800000)), 8);
        const __m128i fraction = _mm_and_si128(bits, _mm_set1_epi32(0x7FFFFF));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_or_si128(sign, _mm_or_si128(exponent, fraction)));
        exponents = _mm_srli_si128(exponents, 4);
    }
}
#endif

} // namespace detail

/// Lossless compression of bfloat16 or float32 values. An exponent is one of the 15 most common ones, in 4 bits, or an
/// escape code with its byte stored after all others. 12 bits for a bfloat16 and 28 for a float32, where escapes are
/// rare.
///
///     [ width: 4 ][ count: 4 ][ escapes: 4 ][ exponents: 16 ][ checksum: 8 ]
///     [ signs and fractions ][ codes, 32 values in 16 bytes, the lower nibbles first ][ escaped exponents ]
template <wide_exponent Number>
class exponent_code {
    using parts = detail::exponent_parts<Number>;

public:
    using number_type = Number;
    static constexpr std::size_t header_bytes = 36;
    static constexpr std::uint8_t escape = 15;

    /// Encodes values, fewer than 2^32.
    [[nodiscard]] static std::vector<std::byte> encode(std::span<const Number> numbers) {
        std::array<std::size_t, 256> counts{};
        for (const Number x : numbers)
            ++counts[parts::exponent(x)];
        std::array<std::uint8_t, 256> order;
        for (std::size_t i = 0; i < 256; ++i)
            order[i] = static_cast<std::uint8_t>(i);
        ranges::stable_sort(order, [&](std::uint8_t a, std::uint8_t b) { return counts[a] > counts[b]; });
        std::array<std::uint8_t, 256> codes;
        codes.fill(escape);
        std::size_t escapes = numbers.size();
        for (std::uint8_t code = 0; code < escape; ++code) {
            codes[order[code]] = code;
            escapes -= counts[order[code]];
        }

        std::vector<std::byte> made(bytes_for(numbers.size(), escapes));
        store_little(made, 0, static_cast<std::uint32_t>(sizeof(Number)));
        store_little(made, 4, static_cast<std::uint32_t>(numbers.size()));
        store_little(made, 8, static_cast<std::uint32_t>(escapes));
        for (std::size_t i = 0; i < escape; ++i)
            made[12 + i] = std::byte{order[i]};
        std::byte* const rest = made.data() + header_bytes;
        std::byte* const fours = rest + numbers.size() * parts::rest_bytes;
        std::byte* escaped = fours + code_bytes_of(numbers.size());
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            const std::uint8_t exponent = parts::exponent(numbers[i]);
            parts::put_rest(numbers[i], rest + i * parts::rest_bytes);
            fours[i / 32 * 16 + i % 16] |= static_cast<std::byte>(codes[exponent] << (i % 32 / 16 * 4));
            if (codes[exponent] == escape)
                *escaped++ = std::byte{exponent};
        }
        const std::uint64_t sum = checksum(made);
        std::memcpy(made.data() + 28, &sum, sizeof sum);
        return made;
    }

    /// Returns the number of encoded values. Errors: truncated, mismatched (another width), malformed (checksum).
    [[nodiscard]] static result<std::size_t> count(std::span<const std::byte> code) {
        if (code.size() < header_bytes)
            return error{error_code::truncated, "header",
                         std::to_string(code.size()) + " bytes, where a header has " + std::to_string(header_bytes)};
        if (load_little<std::uint32_t>(code, 0) != sizeof(Number))
            return error{error_code::mismatched, "width",
                         "numbers of " + std::to_string(load_little<std::uint32_t>(code, 0)) + " bytes, where " +
                             std::to_string(sizeof(Number)) + " were asked for"};
        const std::size_t numbers = load_little<std::uint32_t>(code, 4), escapes = load_little<std::uint32_t>(code, 8);
        if (escapes > numbers || code.size() != bytes_for(numbers, escapes))
            return error{error_code::truncated, "count",
                         std::to_string(code.size()) + " bytes, where " + std::to_string(numbers) + " numbers take " +
                             std::to_string(bytes_for(numbers, escapes))};
        std::uint64_t sum = 0;
        std::memcpy(&sum, code.data() + 28, sizeof sum);
        if (sum != checksum(code))
            return error{error_code::malformed, "checksum", "the bytes are not those that were written"};
        return numbers;
    }

    /// Decodes the values. Errors: those of `count`; out_of_range if `to` has another size; malformed if the number of
    /// escapes does not match. Only in the last case may `to` have been written.
    [[nodiscard]] static result<void> decode(std::span<const std::byte> code, std::span<Number> to) {
        const auto numbers = count(code);
        if (!numbers)
            return numbers.error();
        if (*numbers != to.size())
            return error{error_code::out_of_range, "count",
                         std::to_string(*numbers) + " numbers, where there is room for " + std::to_string(to.size())};
        const std::byte* const rest = code.data() + header_bytes;
        const std::byte* const fours = rest + to.size() * parts::rest_bytes;
        const std::byte* escaped = fours + code_bytes_of(to.size());
        const std::byte* const end = code.data() + code.size();
        std::size_t i = 0;
#if defined(__AVX2__)
        const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(code.data() + 12));
        for (; i + 16 <= to.size(); i += 16) {
            const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(fours + i / 32 * 16));
            const __m128i codes = _mm_and_si128(i % 32 == 0 ? both : _mm_srli_epi16(both, 4), _mm_set1_epi8(escape));
            __m128i exponents = _mm_shuffle_epi8(table, codes);
            const int escapes = _mm_movemask_epi8(_mm_cmpeq_epi8(codes, _mm_set1_epi8(escape)));
            if (escapes != 0) {
                if (end - escaped < std::popcount(static_cast<unsigned>(escapes)))
                    return lost_escapes();
                alignas(16) std::uint8_t each[16];
                _mm_store_si128(reinterpret_cast<__m128i*>(each), exponents);
                for (std::size_t lane = 0; lane < 16; ++lane)
                    if ((escapes >> lane & 1) != 0)
                        each[lane] = std::to_integer<std::uint8_t>(*escaped++);
                exponents = _mm_load_si128(reinterpret_cast<const __m128i*>(each));
            }
            detail::join_sixteen(exponents, rest + i * parts::rest_bytes, to.data() + i);
        }
#endif
        for (; i < to.size(); ++i) {
            const auto both = std::to_integer<unsigned>(fours[i / 32 * 16 + i % 16]);
            const unsigned own = both >> (i % 32 / 16 * 4) & 15u;
            if (own == escape && escaped == end)
                return lost_escapes();
            const std::byte exponent = own == escape ? *escaped++ : code[12 + own];
            to[i] = parts::join(std::to_integer<std::uint8_t>(exponent), rest + i * parts::rest_bytes);
        }
        return escaped == end ? result<void>() : lost_escapes();
    }

private:
    [[nodiscard]] static result<void> lost_escapes() {
        return error{error_code::malformed, "escapes", "there are not as many escaped exponents as escapes"};
    }

    [[nodiscard]] static constexpr std::size_t code_bytes_of(std::size_t numbers) noexcept {
        return (numbers + 31) / 32 * 16;
    }
    [[nodiscard]] static constexpr std::size_t bytes_for(std::size_t numbers, std::size_t escapes) noexcept {
        return header_bytes + numbers * parts::rest_bytes + code_bytes_of(numbers) + escapes;
    }

    // Checksum of all bytes except the checksum itself.
    [[nodiscard]] static std::uint64_t checksum(std::span<const std::byte> code) {
        return seeded_hash(seeded_hash(0, code.first(28)), code.subspan(header_bytes));
    }
};

}} // namespace kvcache
