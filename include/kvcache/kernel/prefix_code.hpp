// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
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
        std::ranges::make_heap(heap, more);
        const auto least = [&] {
            std::ranges::pop_heap(heap, more);
            const int i = heap.back();
            heap.pop_back();
            return i;
        };
        while (heap.size() > 1) {
            const int a = least(), b = least();
            nodes.push_back(
                {nodes[static_cast<std::size_t>(a)].count + nodes[static_cast<std::size_t>(b)].count, a, b});
            heap.push_back(static_cast<int>(nodes.size() - 1));
            std::ranges::push_heap(heap, more);
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
        return std::ranges::all_of(lengths, [](std::uint8_t n) { return n <= longest; }) &&
               room_of(lengths) <= std::size_t{1} << longest;
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

    [[nodiscard]] static std::size_t room_of(const lengths_type& lengths) noexcept {
        std::size_t room = 0;
        for (const std::uint8_t length : lengths)
            room += length > 0 ? std::size_t{1} << (longest - length) : 0;
        return room;
    }

    // Lengthens the codes of rare bytes until the code is valid.
    static void fit(lengths_type& lengths, const std::array<std::size_t, 256>& counts) {
        while (room_of(lengths) > std::size_t{1} << longest) {
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

}} // namespace kvcache
