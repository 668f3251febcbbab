// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/exponent_code.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Canonical prefix code of bytes from their counts, with codes of at most 12 bits (Huffman 1952). Codes fill a stream
/// from its lowest bit on.
class prefix_code {
public:
    static constexpr unsigned longest = 12;
    using lengths_type = std::array<std::uint8_t, 256>; ///< Code length of each byte value; 0 if it does not occur.

    /// Returns the code lengths for bytes with these counts.
    [[nodiscard]] static lengths_type lengths_for(const std::array<std::size_t, 256>& counts) {
        struct node {
            std::size_t count;
            int left, right; // indices of nodes; a leaf stores its byte in `left`
        };
        std::vector<node> nodes;
        for (int byte = 0; byte < 256; ++byte)
            if (counts[static_cast<std::size_t>(byte)] > 0)
                nodes.push_back({counts[static_cast<std::size_t>(byte)], byte, -1});
        lengths_type lengths{};
        if (nodes.size() == 1)
            lengths[static_cast<std::size_t>(nodes.front().left)] = 1;
        if (nodes.size() < 2)
            return lengths;
        const auto more = [&](int a, int b) {
            return std::pair(nodes[static_cast<std::size_t>(a)].count, a) >
                   std::pair(nodes[static_cast<std::size_t>(b)].count, b);
        };
        std::vector<int> heap;
        for (std::size_t i = 0; i < nodes.size(); ++i)
            heap.push_back(static_cast<int>(i));
        ranges::make_heap(heap, more);
        const auto least = [&] {
            ranges::pop_heap(heap, more);
            const int i = heap.back();
            heap.pop_back();
            return i;
        };
        while (heap.size() > 1) {
            const int a = least(), b = least();
            nodes.push_back(
                {nodes[static_cast<std::size_t>(a)].count + nodes[static_cast<std::size_t>(b)].count, a, b});
            heap.push_back(static_cast<int>(nodes.size() - 1));
            ranges::push_heap(heap, more);
        }
        std::vector<unsigned> depths(nodes.size(), 0);
        for (std::size_t i = nodes.size(); i-- > 0;) {
            if (nodes[i].right < 0) {
                lengths[static_cast<std::size_t>(nodes[i].left)] =
                    static_cast<std::uint8_t>(std::min(depths[i], longest));
                continue;
            }
            depths[static_cast<std::size_t>(nodes[i].left)] = depths[i] + 1;
            depths[static_cast<std::size_t>(nodes[i].right)] = depths[i] + 1;
        }
        fit(lengths, counts);
        return lengths;
    }

    /// Returns whether code lengths are valid.
    [[nodiscard]] static bool valid(const lengths_type& lengths) noexcept {
        return ranges::all_of(lengths, [](std::uint8_t n) { return n <= longest; }) &&
               code_space(lengths) <= std::size_t{1} << longest;
    }

    /// Builds the code. Requires: valid(lengths).
    explicit prefix_code(const lengths_type& lengths) : lengths_(lengths) {
        std::uint32_t next = 0;
        for (unsigned length = 1; length <= longest; ++length, next <<= 1)
            for (std::size_t byte = 0; byte < 256; ++byte)
                if (lengths[byte] == length) {
                    const std::uint32_t code = reversed(next++, length);
                    codes_[byte] = static_cast<std::uint16_t>(code);
                    for (std::uint32_t above = code; above < table_.size(); above += 1u << length)
                        table_[above] = {static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(length)};
                }
    }

    /// Encodes a stream, followed by eight zero bytes of padding for the reader.
    [[nodiscard]] std::vector<std::byte> encode(std::span<const std::uint8_t> bytes) const {
        std::vector<std::byte> made;
        std::uint64_t held = 0;
        unsigned bits = 0;
        for (const std::uint8_t byte : bytes) {
            held |= std::uint64_t{codes_[byte]} << bits;
            bits += lengths_[byte];
            for (; bits >= 8; bits -= 8, held >>= 8)
                made.push_back(static_cast<std::byte>(held & 0xFF));
        }
        if (bits > 0)
            made.push_back(static_cast<std::byte>(held & 0xFF));
        made.resize(made.size() + 8);
        return made;
    }

    /// Position in a stream.
    struct reader {
        const std::byte* at = nullptr;
        const std::byte* end = nullptr; ///< End of the stream with its padding.
        std::uint64_t held = 0;
        unsigned bits = 0;
        bool lost = false; ///< Set after an invalid code or a read past the end.

        explicit reader(std::span<const std::byte> stream) : at(stream.data()), end(stream.data() + stream.size()) {}
    };

    /// Decodes four bytes from each of several streams, interleaved. to: (streams, 4)
    template <std::size_t Streams>
    void read_four(std::array<reader, Streams>& from, std::uint8_t* const (&to)[Streams]) const noexcept {
        for (reader& one : from)
            refill(one);
        for (std::size_t i = 0; i < 4; ++i)
            for (std::size_t s = 0; s < Streams; ++s)
                to[s][i] = read(from[s]);
    }

    /// Decodes one byte.
    [[nodiscard]] std::uint8_t read_one(reader& from) const noexcept {
        refill(from);
        return read(from);
    }

private:
    struct entry {
        std::uint8_t byte = 0;
        std::uint8_t length = 0;
    };

    // Refills to at least 56 bits, which is more than four codes, while the stream has any.
    static void refill(reader& from) noexcept {
        if (from.end - from.at >= 8) {
            std::uint64_t next = 0;
            for (std::size_t i = 0; i < 8; ++i) // a single load on little-endian machines
                next |= std::to_integer<std::uint64_t>(from.at[i]) << (8 * i);
            from.held |= next << from.bits;
            from.at += (63 - from.bits) / 8;
            from.bits |= 56;
            return;
        }
        for (; from.bits <= 56 && from.at < from.end; from.bits += 8)
            from.held |= std::to_integer<std::uint64_t>(*from.at++) << from.bits;
    }

    [[nodiscard]] std::uint8_t read(reader& from) const noexcept {
        const entry found = table_[from.held & (table_.size() - 1)];
        from.lost = from.lost || found.length == 0 || found.length > from.bits;
        from.held >>= found.length;
        from.bits -= std::min<unsigned>(found.length, from.bits);
        return found.byte;
    }

    [[nodiscard]] static std::size_t code_space(const lengths_type& lengths) noexcept {
        std::size_t taken = 0;
        for (const std::uint8_t length : lengths)
            taken += length > 0 ? std::size_t{1} << (longest - length) : 0;
        return taken;
    }

    // Lengthens the codes of rare bytes until the code is valid.
    static void fit(lengths_type& lengths, const std::array<std::size_t, 256>& counts) {
        while (code_space(lengths) > std::size_t{1} << longest) {
            std::size_t rarest = 256;
            for (std::size_t byte = 0; byte < 256; ++byte)
                if (lengths[byte] > 0 && lengths[byte] < longest &&
                    (rarest == 256 || lengths[byte] > lengths[rarest] ||
                     (lengths[byte] == lengths[rarest] && counts[byte] < counts[rarest])))
                    rarest = byte;
            ++lengths[rarest];
        }
    }

    [[nodiscard]] static std::uint32_t reversed(std::uint32_t code, unsigned length) noexcept {
        std::uint32_t turned = 0;
        for (unsigned bit = 0; bit < length; ++bit)
            turned |= (code >> bit & 1u) << (length - 1 - bit);
        return turned;
    }

    lengths_type lengths_;
    std::array<std::uint16_t, 256> codes_{};
    std::array<entry, std::size_t{1} << longest> table_{};
};

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
        store_little(made, 0, static_cast<std::uint32_t>(sizeof(Number) | 128));
        store_little(made, 4, static_cast<std::uint32_t>(numbers.size()));
        for (std::size_t i = 0; i < 256; ++i)
            made[lengths_at + i / 2] |= static_cast<std::byte>(lengths[i] << (i % 2 * 4));
        for (std::size_t i = 0; i < numbers.size(); ++i)
            parts::put_rest(numbers[i], made.data() + header_bytes + i * parts::rest_bytes);
        for (std::size_t s = 0; s < streams; ++s) {
            const auto [first, last] = part_of(s, numbers.size());
            const auto stream = code.encode(std::span(exponents).subspan(first, last - first));
            store_little(made, 8 + 4 * s, static_cast<std::uint32_t>(stream.size()));
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
        if (load_little<std::uint32_t>(code, 0) != (sizeof(Number) | 128))
            return error{error_code::mismatched, "width", "not an entropy code of numbers of this width"};
        const std::size_t numbers = load_little<std::uint32_t>(code, 4);
        std::size_t bytes = header_bytes + numbers * parts::rest_bytes;
        for (std::size_t s = 0; s < streams; ++s)
            bytes += load_little<std::uint32_t>(code, 8 + 4 * s);
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
            const std::size_t bytes = load_little<std::uint32_t>(code, 8 + 4 * s), from = at;
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
        if (ranges::any_of(from, [](const auto& one) { return one.lost; }))
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

    // Checksum of all bytes except the checksum itself.
    [[nodiscard]] static std::uint64_t checksum(std::span<const std::byte> code) {
        return seeded_hash(seeded_hash(0, code.first(checksum_at)), code.subspan(header_bytes));
    }
};

}} // namespace kvcache
