// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/tier/prefix_code.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Lossless compression of numbers of 4, 2 or 1 bytes, whichever takes the fewest bytes for the middle of a record.
/// Numbers are rotated by one bit, so that the last byte of a bfloat16 or float32 is its exponent. The bytes of each
/// place in a number are a plane. A plane is stored by a prefix code if that is smaller, and as it is otherwise.
///
///     [ "kvs1": 4 ][ bytes of a number: 4 ][ bytes of the record: 8 ][ block ]...
///     block of 128 KiB:  [ plane ]...[ the bytes that remain ]
///     plane:             [ 0: 1 ][ bytes ]
///                        [ 1: 1 ][ lengths of 256 codes, 4 bits each: 128 ][ bytes of the streams: 4 x 4 ][ stream
///                        ]...
///
/// A damaged code may decode to other bytes: readers check what they get. (Exponents of numbers carry less than three
/// bits: Zhang et al. 2025, DFloat11. Planes: Masui et al. 2015, Bitshuffle.)
struct shuffled_huffman {
    [[nodiscard]] static std::string name() { return "shuffled_huffman 1"; }

    /// Throws: bad_alloc. Cost: about 1 ns a byte.
    [[nodiscard]] static std::vector<std::byte> encode(std::span<const std::byte> bytes) {
        const std::size_t width = width_for(bytes);
        std::vector<std::byte> made(header_bytes);
        made.reserve(header_bytes + bytes.size() + bytes.size() / 16);
        std::memcpy(made.data(), magic, sizeof magic);
        store_little(made, 4, static_cast<std::uint32_t>(width));
        store_little(made, 8, static_cast<std::uint64_t>(bytes.size()));
        std::vector<std::uint8_t> planes(std::min(block_bytes, bytes.size()));
        for (std::size_t at = 0; at < bytes.size(); at += block_bytes) {
            const auto block = bytes.subspan(at, std::min(block_bytes, bytes.size() - at));
            const std::size_t numbers = block.size() / width;
            split(block, width, planes.data());
            for (std::size_t k = 0; k < width; ++k)
                put_plane(std::span(planes).subspan(k * numbers, numbers), made);
            const auto rest = block.subspan(numbers * width);
            made.insert(made.end(), rest.begin(), rest.end());
        }
        return made;
    }

    /// Decodes a record into `to`. Returns whether the code has the form of one; what `to` has otherwise is
    /// unspecified. Throws: bad_alloc. Cost: about 0.3 ns a byte of float32, 1 ns a byte of int8.
    [[nodiscard]] static bool decode(std::span<const std::byte> code, std::vector<std::byte>& to) {
        if (code.size() < header_bytes || std::memcmp(code.data(), magic, sizeof magic) != 0)
            return false;
        const std::size_t width = load_little<std::uint32_t>(code, 4);
        const std::uint64_t size = load_little<std::uint64_t>(code, 8);
        if ((width != 1 && width != 2 && width != 4) || size / 8 > code.size()) // a code has one bit or more
            return false;
        to.resize(static_cast<std::size_t>(size));
        std::vector<std::uint8_t> planes(std::min(block_bytes, to.size()));
        code = code.subspan(header_bytes);
        for (std::size_t at = 0; at < to.size(); at += block_bytes) {
            const auto block = std::span(to).subspan(at, std::min(block_bytes, to.size() - at));
            const std::size_t numbers = block.size() / width, rest = block.size() % width;
            for (std::size_t k = 0; k < width; ++k)
                if (!take_plane(code, std::span(planes).subspan(k * numbers, numbers)))
                    return false;
            join(planes.data(), width, block);
            if (code.size() < rest)
                return false;
            ranges::copy(code.first(rest), block.subspan(numbers * width).begin());
            code = code.subspan(rest);
        }
        return code.empty();
    }

private:
    static constexpr char magic[] = {'k', 'v', 's', '1'};
    static constexpr std::size_t header_bytes = 16, block_bytes = std::size_t{128} << 10;
    static constexpr std::size_t table_bytes = 1 + 128 + 4 * prefix_code::streams;

    [[nodiscard]] static prefix_code::counts_type counts_of(std::span<const std::uint8_t> plane) noexcept {
        std::array<prefix_code::counts_type, 4> counts{}; // so that equal bytes in a row do not wait for each other
        std::size_t i = 0;
        for (; i + 4 <= plane.size(); i += 4)
            ++counts[0][plane[i]], ++counts[1][plane[i + 1]], ++counts[2][plane[i + 2]], ++counts[3][plane[i + 3]];
        for (; i < plane.size(); ++i)
            ++counts[0][plane[i]];
        for (std::size_t byte = 0; byte < 256; ++byte)
            counts[0][byte] += counts[1][byte] + counts[2][byte] + counts[3][byte];
        return counts[0];
    }

    // Bytes of a plane with these counts and lengths, but for the last byte of each stream.
    [[nodiscard]] static std::size_t coded_bytes(const prefix_code::counts_type& counts,
                                                 const prefix_code::lengths_type& lengths) noexcept {
        std::size_t bits = 0;
        for (std::size_t byte = 0; byte < 256; ++byte)
            bits += std::size_t{counts[byte]} * lengths[byte];
        return table_bytes + bits / 8 + prefix_code::streams;
    }

    // The bytes of a number for which a quarter of a block in the middle of a record takes the fewest bytes.
    [[nodiscard]] static std::size_t width_for(std::span<const std::byte> bytes) {
        const std::size_t size = std::min(bytes.size(), block_bytes / 4) / 4 * 4;
        const auto sample = bytes.subspan((bytes.size() - size) / 2 / 64 * 64, size); // parts of records begin at 64s
        std::vector<std::uint8_t> planes(size);
        std::size_t best = 1, least = bytes.size() + 1;
        for (const std::size_t width : {1u, 2u, 4u}) {
            const std::size_t numbers = size / width;
            split(sample, width, planes.data());
            std::size_t taken = 0;
            for (std::size_t k = 0; k < width; ++k) {
                const auto counts = counts_of(std::span(planes).subspan(k * numbers, numbers));
                taken += std::min(coded_bytes(counts, prefix_code::lengths_for(counts)), numbers);
            }
            if (taken < least)
                best = width, least = taken;
        }
        return best;
    }

    static void put_plane(std::span<const std::uint8_t> plane, std::vector<std::byte>& to) {
        const auto counts = counts_of(plane);
        const auto lengths = prefix_code::lengths_for(counts);
        const bool coded = coded_bytes(counts, lengths) < plane.size();
        to.push_back(std::byte{coded});
        if (!coded) {
            const auto bytes = std::as_bytes(plane);
            to.insert(to.end(), bytes.begin(), bytes.end());
            return;
        }
        for (std::size_t byte = 0; byte < 256; byte += 2)
            to.push_back(static_cast<std::byte>(lengths[byte] | lengths[byte + 1] << 4));
        const std::size_t at = to.size();
        to.resize(at + 4 * prefix_code::streams);
        const auto sizes = prefix_code(lengths).encode(plane, to);
        for (std::size_t s = 0; s < sizes.size(); ++s)
            store_little(to, at + 4 * s, static_cast<std::uint32_t>(sizes[s]));
    }

    // Decodes a plane and removes it from the front of the code.
    [[nodiscard]] static bool take_plane(std::span<const std::byte>& code, std::span<std::uint8_t> to) noexcept {
        if (code.empty() || code[0] > std::byte{1})
            return false;
        const bool coded = code[0] == std::byte{1};
        code = code.subspan(1);
        if (!coded) {
            if (code.size() < to.size())
                return false;
            if (!to.empty())
                std::memcpy(to.data(), code.data(), to.size());
            code = code.subspan(to.size());
            return true;
        }
        if (code.size() < table_bytes - 1)
            return false;
        prefix_code::lengths_type lengths;
        for (std::size_t byte = 0; byte < 256; ++byte)
            lengths[byte] =
                static_cast<std::uint8_t>(std::to_integer<unsigned>(code[byte / 2]) >> (byte % 2 * 4) & 15u);
        if (!prefix_code::valid(lengths))
            return false;
        prefix_code::sizes_type sizes;
        std::size_t total = 0;
        for (std::size_t s = 0; s < sizes.size(); ++s) {
            sizes[s] = load_little<std::uint32_t>(code, 128 + 4 * s);
            if (sizes[s] > code.size()) // so that the sum cannot overflow
                return false;
            total += sizes[s];
        }
        code = code.subspan(table_bytes - 1);
        if (total > code.size() || !prefix_decoder(prefix_code(lengths)).decode(code.first(total), sizes, to))
            return false;
        code = code.subspan(total);
        return true;
    }

    // Divides a block into planes. to: (width, numbers)
    static void split(std::span<const std::byte> block, std::size_t width, std::uint8_t* to) noexcept {
        if (width == 4)
            split<std::uint32_t>(block, to);
        else if (width == 2)
            split<std::uint16_t>(block, to);
        else if (!block.empty())
            std::memcpy(to, block.data(), block.size());
    }
    template <class Number>
    static void split(std::span<const std::byte> block, std::uint8_t* to) noexcept {
        const std::size_t numbers = block.size() / sizeof(Number);
        for (std::size_t i = 0; i < numbers; ++i) {
            const auto number = std::rotl(load_number<Number>(block.data() + i * sizeof(Number)), 1);
            for (std::size_t k = 0; k < sizeof(Number); ++k)
                to[k * numbers + i] = static_cast<std::uint8_t>(number >> (8 * k) & 0xFF);
        }
    }

    // The inverse of split. from: (width, numbers)
    static void join(const std::uint8_t* from, std::size_t width, std::span<std::byte> block) noexcept {
        const std::size_t numbers = block.size() / width;
        if (width == 1) {
            if (!block.empty())
                std::memcpy(block.data(), from, block.size());
            return;
        }
        std::size_t i = join_sixteens(from, width, block);
        for (; i < numbers; ++i) {
            std::uint32_t number = 0;
            for (std::size_t k = 0; k < width; ++k)
                number |= std::uint32_t{from[k * numbers + i]} << (8 * k);
            if (width == 2)
                store_little(block, 2 * i, std::rotr(static_cast<std::uint16_t>(number), 1));
            else
                store_little(block, 4 * i, std::rotr(number, 1));
        }
    }

    // Joins as many numbers as fill vectors, and returns how many that are.
    [[nodiscard]] static std::size_t join_sixteens([[maybe_unused]] const std::uint8_t* from,
                                                   [[maybe_unused]] std::size_t width,
                                                   [[maybe_unused]] std::span<std::byte> block) noexcept {
        std::size_t i = 0;
#if defined(__SSE2__)
        const std::size_t numbers = block.size() / width;
        const auto plane = [&](std::size_t k) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * numbers + i));
        };
        for (; i + 16 <= numbers; i += 16) {
            auto* const to = reinterpret_cast<__m128i*>(block.data() + i * width);
            const __m128i a = plane(0), b = plane(1);
            const __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
            if (width == 2) {
                const auto turned = [](__m128i x) { return _mm_or_si128(_mm_srli_epi16(x, 1), _mm_slli_epi16(x, 15)); };
                _mm_storeu_si128(to, turned(low));
                _mm_storeu_si128(to + 1, turned(high));
                continue;
            }
            const __m128i c = plane(2), d = plane(3);
            const __m128i upper_low = _mm_unpacklo_epi8(c, d), upper_high = _mm_unpackhi_epi8(c, d);
            const auto turned = [](__m128i x) { return _mm_or_si128(_mm_srli_epi32(x, 1), _mm_slli_epi32(x, 31)); };
            _mm_storeu_si128(to, turned(_mm_unpacklo_epi16(low, upper_low)));
            _mm_storeu_si128(to + 1, turned(_mm_unpackhi_epi16(low, upper_low)));
            _mm_storeu_si128(to + 2, turned(_mm_unpacklo_epi16(high, upper_high)));
            _mm_storeu_si128(to + 3, turned(_mm_unpackhi_epi16(high, upper_high)));
        }
#endif
        return i;
    }
};

}}} // namespace kvcache::tier
