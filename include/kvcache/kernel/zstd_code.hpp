// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/little_endian.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <zstd.h>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Lossless compression of values of any type by zstd: the generic alternative to `exponent_code` and `entropy_code`.
/// Belongs to the component zstd.
///
///     [ "kvz1": 4 ][ width: 4 ][ count: 8 ][ checksum: 8 ][ one zstd frame ]
template <class Number>
class zstd_code {
    static_assert(std::is_trivially_copyable_v<Number>, "numbers are kept as their bytes");
    static constexpr char name[] = {'k', 'v', 'z', '1'};
    static constexpr std::size_t checksum_at = 16;

public:
    using number_type = Number;
    static constexpr std::size_t header_bytes = 24;

    /// Encodes values. `level`: zstd's, from 1 (fastest) to 19 (smallest). Throws: bad_alloc.
    [[nodiscard]] static std::vector<std::byte> encode(std::span<const Number> numbers, int level = 1) {
        const auto bytes = std::as_bytes(numbers);
        std::vector<std::byte> made(header_bytes + ZSTD_compressBound(bytes.size()));
        const std::size_t taken =
            ZSTD_compress(made.data() + header_bytes, made.size() - header_bytes, bytes.data(), bytes.size(), level);
        if (ZSTD_isError(taken) != 0) // the buffer is large enough, so it is memory
            throw std::bad_alloc();
        made.resize(header_bytes + taken);
        std::memcpy(made.data(), name, 4);
        store_little(made, 4, static_cast<std::uint32_t>(sizeof(Number)));
        store_little(made, 8, static_cast<std::uint64_t>(numbers.size()));
        store_little(made, checksum_at, static_cast<std::uint64_t>(checksum(made)));
        return made;
    }

    /// Returns the number of encoded values. Errors: truncated, mismatched (not a zstd code, or another width),
    /// malformed (checksum, or a count that differs from the frame's).
    [[nodiscard]] static result<std::size_t> count(std::span<const std::byte> code) {
        if (code.size() < header_bytes)
            return error{error_code::truncated, "header",
                         std::to_string(code.size()) + " bytes, where a header has " + std::to_string(header_bytes)};
        if (std::memcmp(code.data(), name, 4) != 0)
            return error{error_code::mismatched, "name", "not numbers kept by zstd"};
        if (load_little<std::uint32_t>(code, 4) != sizeof(Number))
            return error{error_code::mismatched, "width",
                         "numbers of " + std::to_string(load_little<std::uint32_t>(code, 4)) + " bytes, where " +
                             std::to_string(sizeof(Number)) + " were asked for"};
        if (load_little<std::uint64_t>(code, checksum_at) != checksum(code))
            return error{error_code::malformed, "checksum", "the bytes are not those that were written"};
        const std::uint64_t numbers = load_little<std::uint64_t>(code, 8);
        const auto frame = code.subspan(header_bytes);
        const auto bytes = ZSTD_getFrameContentSize(frame.data(), frame.size()); // over 2^63 if unknown or damaged
        if (bytes % sizeof(Number) != 0 || bytes / sizeof(Number) != numbers)
            return error{error_code::malformed, "count",
                         "the frame does not say that it has " + std::to_string(numbers) + " numbers"};
        return static_cast<std::size_t>(numbers);
    }

    /// Decodes the values. Errors: those of `count`; out_of_range if `to` has another size; malformed if zstd rejects
    /// the frame. Only in the last case may `to` have been written.
    [[nodiscard]] static result<void> decode(std::span<const std::byte> code, std::span<Number> to) {
        const auto numbers = count(code);
        if (!numbers)
            return numbers.error();
        if (*numbers != to.size())
            return error{error_code::out_of_range, "count",
                         std::to_string(*numbers) + " numbers, where there is room for " + std::to_string(to.size())};
        const auto frame = code.subspan(header_bytes);
        const std::size_t made = ZSTD_decompress(to.data(), to.size_bytes(), frame.data(), frame.size());
        if (ZSTD_isError(made) != 0)
            return error{error_code::malformed, "frame", std::string("zstd: ") + ZSTD_getErrorName(made)};
        if (made != to.size_bytes())
            return error{error_code::malformed, "frame", "the frame ends before its numbers do"};
        return {};
    }

private:
    // Checksum of all bytes except the checksum itself.
    [[nodiscard]] static std::uint64_t checksum(std::span<const std::byte> code) {
        return seeded_hash(seeded_hash(0, code.first(checksum_at)), code.subspan(header_bytes));
    }
};

}} // namespace kvcache
