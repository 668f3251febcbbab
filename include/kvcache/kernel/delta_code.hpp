// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/kernel/number_format.hpp>
#include <kvcache/kernel/prefix_code.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Options of the lossy compression of rows for a store.
struct delta_options {
    float bin = 0.5f;          ///< Bin width of a difference, in root mean squares of its channel's differences.
    std::uint32_t tokens = 10; ///< Tokens that share an anchor.

    /// Options of a layer: wider bins in deeper layers, since errors of early layers pass through all later ones.
    [[nodiscard]] static constexpr delta_options of_layer(std::size_t layer, std::size_t layers) noexcept {
        const float depth = layers > 1 ? static_cast<float>(layer) / static_cast<float>(layers - 1) : 0.0f;
        return {.bin = depth < 1.0f / 3.0f ? 0.5f : depth < 2.0f / 3.0f ? 0.75f : 1.0f};
    }
};

/// Lossy compression of one layer's keys or values for a store, to two to four bits a value. The first of every few
/// tokens is an int8 anchor. The other tokens are differences from it, quantized in bins of each channel and compressed
/// with a prefix code. (Liu et al. 2024, CacheGen)
///
///     [ "kvd1": 4 ][ rows: 4 ][ channels: 4 ][ tokens: 4 ][ bytes of the stream: 4 ][ 256 lengths, 4 bits each: 128 ]
///     [ checksum: 8 ][ bins: (channels) f16 ][ anchors' scales: (groups) f16 ][ anchors: (groups, channels) int8 ]
///     [ stream: differences row by row ]
class delta_code {
    static constexpr std::size_t lengths_at = 20, checksum_at = 148;
    static constexpr char name[] = {'k', 'v', 'd', '1'};

public:
    static constexpr std::size_t header_bytes = 156;

    /// Shape of the encoded rows.
    struct extents {
        std::size_t rows = 0;
        std::size_t channels = 0;
    };

    /// Encodes rows. numbers: (rows, channels), finite, fewer than 2^32 values.
    [[nodiscard]] static std::vector<std::byte> encode(std::span<const float> numbers, std::size_t channels,
                                                       const delta_options& options) {
        expects(channels > 0 && numbers.size() % channels == 0 && options.tokens > 0 && options.bin > 0.0f,
                "coded rows are whole, and a bin has a width");
        const std::size_t rows = numbers.size() / channels, groups = groups_of(rows, options.tokens);
        std::vector<half> bins(channels), scales(groups);
        std::vector<std::int8_t> anchors(groups * channels);
        std::vector<float> decoded(groups * channels); // anchors as the decoder reads them
        for (std::size_t g = 0; g < groups; ++g) {
            const auto row = numbers.subspan(g * options.tokens * channels, channels);
            float most = 0.0f;
            for (const float x : row)
                most = std::max(most, std::abs(x));
            scales[g] = to_half(most / 127.0f);
            for (std::size_t c = 0; c < channels; ++c) {
                anchors[g * channels + c] = static_cast<std::int8_t>(nearest(row[c], widen(scales[g])));
                decoded[g * channels + c] = static_cast<float>(anchors[g * channels + c]) * widen(scales[g]);
            }
        }
        const auto difference = [&](std::size_t r, std::size_t c) {
            return numbers[r * channels + c] - decoded[r / options.tokens * channels + c];
        };
        for (std::size_t c = 0; c < channels; ++c) {
            double squares = 0.0;
            for (std::size_t r = 0; r < rows; ++r)
                squares += r % options.tokens != 0 ? double{difference(r, c)} * double{difference(r, c)} : 0.0;
            const std::size_t count = std::max<std::size_t>(rows - groups, 1);
            bins[c] = to_half(options.bin * static_cast<float>(std::sqrt(squares / static_cast<double>(count))));
        }
        std::vector<std::uint8_t> symbols;
        std::array<std::size_t, 256> counts{};
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t c = 0; r % options.tokens != 0 && c < channels; ++c) {
                symbols.push_back(static_cast<std::uint8_t>(nearest(difference(r, c), widen(bins[c])) + 128));
                ++counts[symbols.back()];
            }
        const auto lengths = prefix_code::lengths_for(counts);
        const auto stream = prefix_code(lengths).encode(symbols);

        std::vector<std::byte> made(bytes_before_stream(rows, channels, options.tokens));
        std::memcpy(made.data(), name, 4);
        put(made.data() + 4, rows);
        put(made.data() + 8, channels);
        put(made.data() + 12, options.tokens);
        put(made.data() + 16, stream.size());
        for (std::size_t i = 0; i < 256; ++i)
            made[lengths_at + i / 2] |= static_cast<std::byte>(lengths[i] << (i % 2 * 4));
        std::byte* to = made.data() + header_bytes;
        for (const auto& halves : {std::span(bins), std::span(scales)})
            for (const half h : halves) {
                *to++ = static_cast<std::byte>(h.bits & 0xFF);
                *to++ = static_cast<std::byte>(h.bits >> 8);
            }
        for (const std::int8_t a : anchors)
            *to++ = static_cast<std::byte>(a);
        made.insert(made.end(), stream.begin(), stream.end());
        const std::uint64_t sum = checksum(made);
        std::memcpy(made.data() + checksum_at, &sum, sizeof sum);
        return made;
    }

    /// Returns the shape of the encoded rows. Errors: truncated, mismatched (not a delta code), malformed (extents,
    /// checksum, or invalid code lengths).
    [[nodiscard]] static result<extents> describe(std::span<const std::byte> code) {
        if (code.size() < header_bytes)
            return error{error_code::truncated, "header",
                         std::to_string(code.size()) + " bytes, where a header has " + std::to_string(header_bytes)};
        if (std::memcmp(code.data(), name, 4) != 0)
            return error{error_code::mismatched, "name", "not rows coded by differences"};
        const std::size_t rows = get(code.data() + 4), channels = get(code.data() + 8), tokens = get(code.data() + 12);
        if (channels == 0 || tokens == 0 || rows > code.size() * tokens || channels > code.size())
            return error{error_code::malformed, "extents", "extents that these bytes cannot have"};
        const std::size_t stream = get(code.data() + 16), bytes = bytes_before_stream(rows, channels, tokens) + stream;
        if (code.size() != bytes)
            return error{error_code::truncated, "rows",
                         std::to_string(code.size()) + " bytes, where the header says " + std::to_string(bytes)};
        if ((rows - groups_of(rows, tokens)) * channels > 8 * stream)
            return error{error_code::malformed, "extents", "fewer bits than differences"};
        std::uint64_t sum = 0;
        std::memcpy(&sum, code.data() + checksum_at, sizeof sum);
        if (sum != checksum(code))
            return error{error_code::malformed, "checksum", "the bytes are not those that were written"};
        if (!prefix_code::valid(lengths_of(code)))
            return error{error_code::malformed, "lengths", "the lengths are those of no code"};
        return extents{rows, channels};
    }

    /// Decodes the rows. Errors: those of `describe`; out_of_range if `to` has another size; malformed if the stream
    /// ends early. Only in the last case may `to` have been written.
    [[nodiscard]] static result<void> decode(std::span<const std::byte> code, std::span<float> to) {
        const auto size = describe(code);
        if (!size)
            return size.error();
        const auto [rows, channels] = *size;
        if (to.size() != rows * channels)
            return error{error_code::out_of_range, "rows",
                         std::to_string(rows * channels) + " numbers, where there is room for " +
                             std::to_string(to.size())};
        const std::size_t tokens = get(code.data() + 12), groups = groups_of(rows, tokens);
        const std::byte* const bins = code.data() + header_bytes;
        const std::byte* const scales = bins + 2 * channels;
        const std::byte* const anchors = scales + 2 * groups;
        const prefix_code words(lengths_of(code));
        prefix_code::reader from(code.subspan(bytes_before_stream(rows, channels, tokens)));
        std::vector<float> each(channels), own(channels);
        for (std::size_t c = 0; c < channels; ++c)
            each[c] = half_at(bins + 2 * c);
        for (std::size_t r = 0; r < rows; ++r) {
            float* const row = to.data() + r * channels;
            if (r % tokens == 0) {
                const std::size_t g = r / tokens;
                const float scale = half_at(scales + 2 * g);
                for (std::size_t c = 0; c < channels; ++c)
                    own[c] = static_cast<float>(std::to_integer<std::int8_t>(anchors[g * channels + c])) * scale;
                std::ranges::copy(own, row);
                continue;
            }
            for (std::size_t c = 0; c < channels; ++c)
                row[c] = std::fma(static_cast<float>(int{words.read_one(from)} - 128), each[c], own[c]);
        }
        if (from.lost)
            return error{error_code::malformed, "stream", "the stream ends before its rows do"};
        return {};
    }

private:
    [[nodiscard]] static int nearest(float x, float step) noexcept {
        const float whole = step != 0.0f ? std::fma(x, 1.0f / step, 12582912.0f) - 12582912.0f : 0.0f;
        return static_cast<int>(std::min(std::max(-127.0f, whole), 127.0f)); // a NaN gives the lowest
    }
    [[nodiscard]] static constexpr std::size_t groups_of(std::size_t rows, std::size_t tokens) noexcept {
        return (rows + tokens - 1) / tokens;
    }
    [[nodiscard]] static constexpr std::size_t bytes_before_stream(std::size_t rows, std::size_t channels,
                                                                   std::size_t tokens) noexcept {
        return header_bytes + 2 * channels + groups_of(rows, tokens) * (2 + channels);
    }
    [[nodiscard]] static float half_at(const std::byte* from) noexcept {
        return widen(half{
            static_cast<std::uint16_t>(std::to_integer<unsigned>(from[0]) | std::to_integer<unsigned>(from[1]) << 8)});
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

} // namespace kvcache
