// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Loads a little-endian number by a single instruction where the machine has that order; GCC 12 makes none of
/// load_little without -O3.
template <class Number>
[[nodiscard]] Number load_number(const std::byte* from) noexcept {
    Number number = 0;
    if constexpr (std::endian::native == std::endian::little)
        std::memcpy(&number, from, sizeof number);
    else
        number = load_little<Number>(std::span(from, sizeof number), 0);
    return number;
}
/// Writes a number in little-endian order.
template <class Number>
void store_number(std::byte* to, Number number) noexcept {
    if constexpr (std::endian::native == std::endian::little)
        std::memcpy(to, &number, sizeof number);
    else
        store_little(std::span(to, sizeof number), 0, number);
}

/// Canonical prefix code of bytes with codes of at most 11 bits (Huffman 1952). Codes fill a stream from its lowest bit
/// on. Bytes are divided into four streams, which are decoded at the same time.
class prefix_code {
public:
    static constexpr unsigned longest = 11;
    static constexpr std::size_t streams = 4;
    using counts_type = std::array<std::uint32_t, 256>; ///< Number of times that each byte value occurs.
    using lengths_type = std::array<std::uint8_t, 256>; ///< Code length of each byte value; 0 if it does not occur.
    using sizes_type = std::array<std::size_t, streams>;

    /// Returns the code lengths for bytes with these counts.
    [[nodiscard]] static lengths_type lengths_for(const counts_type& counts) noexcept {
        std::array<std::size_t, 256> rare_first; // byte values that occur
        std::size_t used = 0;
        for (std::size_t byte = 0; byte < 256; ++byte)
            if (counts[byte] > 0)
                rare_first[used++] = byte;
        lengths_type lengths{};
        if (used == 1)
            lengths[rare_first[0]] = 1;
        if (used < 2)
            return lengths;
        std::sort(rare_first.begin(), rare_first.begin() + static_cast<std::ptrdiff_t>(used),
                  [&](std::size_t a, std::size_t b) { return std::pair(counts[a], a) < std::pair(counts[b], b); });
        const auto depths = depths_of(rare_first, used, counts);
        for (std::size_t i = 0; i < used; ++i)
            lengths[rare_first[i]] = std::min<std::uint8_t>(depths[i], longest);
        fit(lengths, std::span(rare_first).first(used));
        return lengths;
    }

    /// Returns whether these are the lengths of a code.
    [[nodiscard]] static bool valid(const lengths_type& lengths) noexcept {
        return ranges::all_of(lengths, [](std::uint8_t n) { return n <= longest; }) && space_of(lengths) <= whole;
    }

    /// Returns the first byte and the number of bytes of stream `s` of `count` bytes.
    [[nodiscard]] static std::pair<std::size_t, std::size_t> part(std::size_t s, std::size_t count) noexcept {
        const std::size_t each = (count + streams - 1) / streams, first = std::min(s * each, count);
        return {first, std::min(each, count - first)};
    }

    /// Requires: valid(lengths).
    explicit prefix_code(const lengths_type& lengths) noexcept : lengths_(lengths) {
        std::uint32_t next = 0;
        for (unsigned length = 1; length <= longest; ++length, next <<= 1)
            for (std::size_t byte = 0; byte < 256; ++byte)
                if (lengths[byte] == length)
                    codes_[byte] = static_cast<std::uint16_t>(reversed(next++, length));
    }

    /// Appends the streams of some bytes, one after the other, and returns their sizes. Requires: every byte has a
    /// code. Throws: bad_alloc.
    sizes_type encode(std::span<const std::uint8_t> bytes, std::vector<std::byte>& to) const {
        std::array<std::uint16_t, 256> words; // a code above its length: 15 bits
        for (std::size_t byte = 0; byte < 256; ++byte)
            words[byte] = static_cast<std::uint16_t>(codes_[byte] << 4 | lengths_[byte]);
        sizes_type sizes{};
        for (std::size_t s = 0; s < streams; ++s) {
            const auto [first, count] = part(s, bytes.size());
            const std::size_t before = to.size();
            to.resize(before + count * longest / 8 + 9); // 8 bytes are stored at once
            std::byte* at = to.data() + before;
            std::uint64_t held = 0;
            unsigned bits = 0;
            const auto hold = [&](std::uint8_t byte) {
                held |= static_cast<std::uint64_t>(words[byte] >> 4) << bits;
                bits += words[byte] & 15u;
            };
            const auto put = [&] {
                store_number(at, held);
                at += bits / 8;
                held >>= bits / 8 * 8;
                bits %= 8;
            };
            std::size_t i = 0;
            const std::uint8_t* const from = bytes.data() + first;
            for (; i + 4 <= count; i += 4) { // 7 bits and four codes are less than 8 bytes
                hold(from[i]), hold(from[i + 1]), hold(from[i + 2]), hold(from[i + 3]);
                put();
            }
            for (; i < count; ++i) {
                hold(from[i]);
                put();
            }
            sizes[s] = static_cast<std::size_t>(at - (to.data() + before)) + (bits > 0);
            to.resize(before + sizes[s]);
        }
        return sizes;
    }

private:
    friend class prefix_decoder;

    static constexpr std::size_t whole = std::size_t{1} << longest; // the space that all codes share

    [[nodiscard]] static std::size_t space_of(const lengths_type& lengths) noexcept {
        std::size_t taken = 0;
        for (const std::uint8_t length : lengths)
            taken += length > 0 ? whole >> length : 0;
        return taken;
    }

    // Depths of the leaves of Huffman's tree, by two queues: leaves, and inner nodes in the order they are made.
    [[nodiscard]] static std::array<std::uint8_t, 256> depths_of(const std::array<std::size_t, 256>& rare_first,
                                                                 std::size_t used, const counts_type& counts) noexcept {
        struct node {
            std::uint64_t count;
            std::size_t left, right;
        };
        std::array<node, 256> inner;
        const auto count = [&](std::size_t i) { return i < used ? counts[rare_first[i]] : inner[i - used].count; };
        std::size_t next_leaf = 0, next_inner = 0, made = 0;
        const auto least = [&] {
            const bool leaf = next_leaf < used && (next_inner == made || count(next_leaf) <= inner[next_inner].count);
            return leaf ? next_leaf++ : used + next_inner++;
        };
        while (made + 1 < used) {
            const std::size_t a = least(), b = least();
            inner[made++] = {count(a) + count(b), a, b};
        }
        std::array<std::uint8_t, 256> leaves{}, depths{};
        for (std::size_t i = made; i-- > 0;)
            for (const std::size_t child : {inner[i].left, inner[i].right})
                (child < used ? leaves[child] : depths[child - used]) = static_cast<std::uint8_t>(depths[i] + 1);
        return leaves;
    }

    // Lengthens codes until all fit, the rarest first, then shortens those for which there is space, the commonest
    // first.
    static void fit(lengths_type& lengths, std::span<const std::size_t> rare_first) noexcept {
        std::size_t space = space_of(lengths);
        for (std::size_t i = 0; space > whole; i = (i + 1) % rare_first.size())
            if (std::uint8_t& length = lengths[rare_first[i]]; length < longest)
                space -= whole >> ++length;
        for (std::size_t i = rare_first.size(); i-- > 0;)
            for (std::uint8_t& length = lengths[rare_first[i]]; length > 1 && space + (whole >> length) <= whole;)
                space += whole >> length--;
    }

    [[nodiscard]] static std::uint32_t reversed(std::uint32_t code, unsigned length) noexcept {
        std::uint32_t turned = 0;
        for (unsigned bit = 0; bit < length; ++bit)
            turned |= (code >> bit & 1u) << (length - 1 - bit);
        return turned;
    }

    lengths_type lengths_;
    std::array<std::uint16_t, 256> codes_{};
};

/// Decodes the streams of a prefix code. A table has, for the next 11 bits of a stream, up to three bytes and the bits
/// that they take.
class prefix_decoder {
public:
    /// Cost: about 5 us.
    explicit prefix_decoder(const prefix_code& code) noexcept : lengths_(code.lengths_) {
        // What is no code takes one bit, so that every round ends, also where the bytes are damaged.
        std::array<std::uint16_t, prefix_code::whole> ones; // the next byte, and the length of its code
        ones.fill(1u << 8);
        for (std::size_t byte = 0; byte < 256; ++byte)
            if (const unsigned length = lengths_[byte]; length > 0)
                for (std::size_t at = code.codes_[byte]; at < ones.size(); at += std::size_t{1} << length)
                    ones[at] = static_cast<std::uint16_t>(byte | length << 8);
        for (std::size_t at = 0; at < ones.size(); ++at) {
            std::uint32_t bytes = ones[at] & 0xFFu, bits = ones[at] >> 8, count = 1;
            for (; count < 3; ++count) {
                const std::uint32_t next = ones[at >> bits];
                if (bits + (next >> 8) > prefix_code::longest)
                    break;
                bytes |= (next & 0xFFu) << (8 * count);
                bits += next >> 8;
            }
            table_[at] = bytes | (count | bits << 2) << 24;
        }
    }

    /// Decodes bytes from the streams at the beginning of `from`, of these sizes. Returns whether each stream had all
    /// of its bytes; what is written otherwise is unspecified. Requires: `from` has as many bytes as `sizes` say.
    [[nodiscard]] bool decode(std::span<const std::byte> from, const prefix_code::sizes_type& sizes,
                              std::span<std::uint8_t> to) const noexcept {
        std::array<position, prefix_code::streams> at;
        for (std::size_t s = 0, begin = 0; s < at.size(); begin += sizes[s++]) {
            const auto [first, count] = prefix_code::part(s, to.size());
            at[s] = {8 * begin, 8 * (begin + sizes[s]), to.data() + first, to.data() + first + count};
        }
        decode_together(from.data(), at[0], at[1], at[2], at[3]);
        return ranges::all_of(at, [&](position& one) { return decode_rest(from.data(), one); });
    }

private:
    static constexpr std::size_t lookups = 5; // that 8 bytes suffice for, from any bit of the first
    static constexpr std::size_t mask = prefix_code::whole - 1;

    // A place in a stream, in bits after the first stream's beginning, and where its bytes go.
    struct position {
        std::size_t bit, end;
        std::uint8_t *to, *stop;

        // Rounds of lookups that end before the stream and its bytes. A lookup of up to three bytes writes four.
        [[nodiscard]] std::size_t rounds() const noexcept {
            if (bit + 64 > end || to == stop)
                return 0;
            const auto room = static_cast<std::size_t>(stop - to - 1);
            return std::min((end - bit - 64) / (lookups * prefix_code::longest) + 1, room / (3 * lookups));
        }
    };

    [[nodiscard]] static std::uint64_t eight_at(const std::byte* from, std::size_t bit) noexcept {
        return load_number<std::uint64_t>(from + bit / 8) >> bit % 8;
    }

    void look_up(std::uint64_t& held, std::size_t& bit, std::uint8_t*& to) const noexcept {
        const std::uint32_t found = table_[held & mask];
        if constexpr (std::endian::native == std::endian::little) {
            std::memcpy(to, &found, 4);
        } else {
            for (unsigned i = 0; i < 3; ++i)
                to[i] = static_cast<std::uint8_t>(found >> (8 * i) & 0xFF);
        }
        const std::uint32_t bits = found >> 26;
        to += found >> 24 & 3u;
        held >>= bits;
        bit += bits;
    }

    // The variables of each stream are its own, so that they stay in registers.
    void decode_together(const std::byte* from, position& a, position& b, position& c, position& d) const noexcept {
        for (;;) {
            std::size_t rounds = std::min({a.rounds(), b.rounds(), c.rounds(), d.rounds()});
            if (rounds == 0)
                return;
            std::size_t bit_a = a.bit, bit_b = b.bit, bit_c = c.bit, bit_d = d.bit;
            std::uint8_t *to_a = a.to, *to_b = b.to, *to_c = c.to, *to_d = d.to;
            for (; rounds > 0; --rounds) {
                std::uint64_t held_a = eight_at(from, bit_a), held_b = eight_at(from, bit_b);
                std::uint64_t held_c = eight_at(from, bit_c), held_d = eight_at(from, bit_d);
                for (std::size_t i = 0; i < lookups; ++i) {
                    look_up(held_a, bit_a, to_a);
                    look_up(held_b, bit_b, to_b);
                    look_up(held_c, bit_c, to_c);
                    look_up(held_d, bit_d, to_d);
                }
            }
            a.bit = bit_a, b.bit = bit_b, c.bit = bit_c, d.bit = bit_d;
            a.to = to_a, b.to = to_b, c.to = to_c, d.to = to_d;
        }
    }

    // Decodes one byte at a time.
    [[nodiscard]] bool decode_rest(const std::byte* from, position& at) const noexcept {
        for (; at.to < at.stop; ++at.to) {
            std::uint32_t held = 0;
            for (std::size_t i = 0; i < 3 && (at.bit / 8 + i) * 8 < at.end; ++i)
                held |= std::to_integer<std::uint32_t>(from[at.bit / 8 + i]) << (8 * i);
            *at.to = static_cast<std::uint8_t>(table_[held >> at.bit % 8 & mask] & 0xFF);
            if (lengths_[*at.to] == 0)
                return false;
            at.bit += lengths_[*at.to];
        }
        return at.bit <= at.end;
    }

    prefix_code::lengths_type lengths_;
    std::array<std::uint32_t, prefix_code::whole> table_; // three bytes, then their count and the bits above it
};

}}} // namespace kvcache::tier
