// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/kernel/exponent_code.hpp>
#include <kvcache/kernel/prefix_code.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Lossless compression of bfloat16 or float32 values, smaller but slower than `exponent_code`: exponents are
/// Huffman-coded in four streams that are decoded in parallel.
///
///     [ width | 128: 4 ][ count: 4 ][ bytes of the streams: 4 x 4 ][ lengths of 256 codes, 4 bits each: 128 ]
///     [ checksum: 8 ][ signs and fractions ][ stream ][ stream ][ stream ][ stream ]
///
/// (Exponents carry less than three bits: Zhang et al. 2025, DFloat11.)
template <wide_exponent Number>
class entropy_code {
    using parts = detail::exponent_parts<Number>;
    static constexpr std::size_t streams = 4, lengths_at = 24, checksum_at = 152;

public:
    using number_type = Number;
    static constexpr std::size_t header_bytes = 160;

    /// Encodes values, fewer than 2^32.
    [[nodiscard]] static std::vector<std::byte> encode(std::span<const Number> numbers) {
        std::vector<std::uint8_t> exponents(numbers.size());
        std::array<std::size_t, 256> counts{};
        for (std::size_t i = 0; i < numbers.size(); ++i)
            ++counts[exponents[i] = parts::exponent(numbers[i])];
        const auto lengths = prefix_code::lengths_for(counts);
        const prefix_code code(lengths);
        std::vector<std::byte> made(header_bytes + numbers.size() * parts::rest_bytes);
        put(made.data(), sizeof(Number) | 128);
        put(made.data() + 4, numbers.size());
        for (std::size_t i = 0; i < 256; ++i)
            made[lengths_at + i / 2] |= static_cast<std::byte>(lengths[i] << (i % 2 * 4));
        for (std::size_t i = 0; i < numbers.size(); ++i)
            parts::put_rest(numbers[i], made.data() + header_bytes + i * parts::rest_bytes);
        for (std::size_t s = 0; s < streams; ++s) {
            const auto [first, last] = part_of(s, numbers.size());
            const auto stream = code.encode(std::span(exponents).subspan(first, last - first));
            put(made.data() + 8 + 4 * s, stream.size());
            made.insert(made.end(), stream.begin(), stream.end());
        }
        const std::uint64_t sum = checksum(made);
        std::memcpy(made.data() + checksum_at, &sum, sizeof sum);
        return made;
    }

    /// Returns the number of encoded values. Errors: truncated, mismatched (another width), malformed (checksum, or
    /// invalid code lengths).
    [[nodiscard]] static result<std::size_t> count(std::span<const std::byte> code) {
        if (code.size() < header_bytes)
            return error{error_code::truncated, "header",
                         std::to_string(code.size()) + " bytes, where a header has " + std::to_string(header_bytes)};
        if (get(code.data()) != (sizeof(Number) | 128))
            return error{error_code::mismatched, "width", "not an entropy code of numbers of this width"};
        const std::size_t numbers = get(code.data() + 4);
        std::size_t bytes = header_bytes + numbers * parts::rest_bytes;
        for (std::size_t s = 0; s < streams; ++s)
            bytes += get(code.data() + 8 + 4 * s);
        if (code.size() != bytes)
            return error{error_code::truncated, "count",
                         std::to_string(code.size()) + " bytes, where the header says " + std::to_string(bytes)};
        std::uint64_t sum = 0;
        std::memcpy(&sum, code.data() + checksum_at, sizeof sum);
        if (sum != checksum(code))
            return error{error_code::malformed, "checksum", "the bytes are not those that were written"};
        if (!prefix_code::valid(lengths_of(code)))
            return error{error_code::malformed, "lengths", "the lengths are those of no code"};
        return numbers;
    }

    /// Decodes the values. Errors: those of `count`; out_of_range if `to` has another size; malformed if a stream ends
    /// early. Only in the last case may `to` have been written.
    [[nodiscard]] static result<void> decode(std::span<const std::byte> code, std::span<Number> to) {
        const auto numbers = count(code);
        if (!numbers)
            return numbers.error();
        if (*numbers != to.size())
            return error{error_code::out_of_range, "count",
                         std::to_string(*numbers) + " numbers, where there is room for " + std::to_string(to.size())};
        const prefix_code words(lengths_of(code));
        const std::byte* const rest = code.data() + header_bytes;
        std::size_t at = header_bytes + to.size() * parts::rest_bytes;
        const auto stream = [&](std::size_t s) {
            const std::size_t bytes = get(code.data() + 8 + 4 * s), from = at;
            at += bytes;
            return prefix_code::reader(code.subspan(from, bytes));
        };
        std::array<prefix_code::reader, streams> from{stream(0), stream(1), stream(2), stream(3)};
        std::array<std::size_t, streams> next{}, ends{};
        for (std::size_t s = 0; s < streams; ++s) {
            const auto [first, last] = part_of(s, to.size());
            next[s] = first;
            ends[s] = last;
        }
        // The last part is the shortest: while it has 16 left, all have.
        for (; next[streams - 1] + 16 <= ends[streams - 1];) {
            alignas(16) std::uint8_t exponents[streams][16];
            for (std::size_t i = 0; i < 16; i += 4) {
                std::uint8_t* const fours[streams] = {exponents[0] + i, exponents[1] + i, exponents[2] + i,
                                                      exponents[3] + i};
                words.read_four(from, fours);
            }
            for (std::size_t s = 0; s < streams; ++s) {
                join(exponents[s], rest + next[s] * parts::rest_bytes, to.data() + next[s]);
                next[s] += 16;
            }
        }
        for (std::size_t s = 0; s < streams; ++s)
            for (; next[s] < ends[s]; ++next[s])
                to[next[s]] = parts::join(words.read_one(from[s]), rest + next[s] * parts::rest_bytes);
        if (std::ranges::any_of(from, [](const auto& one) { return one.lost; }))
            return error{error_code::malformed, "streams", "a stream ends before its numbers do"};
        return {};
    }

private:
    struct range {
        std::size_t first, last;
    };
    // Parts of whole groups of 16 values, the last part the shortest.
    [[nodiscard]] static range part_of(std::size_t s, std::size_t numbers) noexcept {
        const std::size_t each = (numbers + 16 * streams - 1) / (16 * streams) * 16;
        return {std::min(s * each, numbers), std::min((s + 1) * each, numbers)};
    }

    static void join(const std::uint8_t* exponents, const std::byte* rest, Number* to) noexcept {
#if defined(__AVX2__)
        detail::join_sixteen(_mm_load_si128(reinterpret_cast<const __m128i*>(exponents)), rest, to);
#else
        for (std::size_t i = 0; i < 16; ++i)
            to[i] = parts::join(exponents[i], rest + i * parts::rest_bytes);
#endif
    }

    [[nodiscard]] static prefix_code::lengths_type lengths_of(std::span<const std::byte> code) noexcept {
        prefix_code::lengths_type lengths{};
        for (std::size_t i = 0; i < 256; ++i)
            lengths[i] =
                static_cast<std::uint8_t>(std::to_integer<unsigned>(code[lengths_at + i / 2]) >> (i % 2 * 4) & 15u);
        return lengths;
    }
    static void put(std::byte* to, std::size_t number) noexcept {
        for (std::size_t i = 0; i < 4; ++i)
            to[i] = static_cast<std::byte>(number >> (8 * i) & 0xFF);
    }
    [[nodiscard]] static std::size_t get(const std::byte* from) noexcept {
        std::size_t number = 0;
        for (std::size_t i = 0; i < 4; ++i)
            number |= std::to_integer<std::size_t>(from[i]) << (8 * i);
        return number;
    }

    // Checksum of all bytes except the checksum itself.
    [[nodiscard]] static std::uint64_t checksum(std::span<const std::byte> code) {
        return seeded_hash(seeded_hash(0, code.first(checksum_at)), code.subspan(header_bytes));
    }
};

}} // namespace kvcache
