// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Tokens of one tile, which is one SIMD vector of scores.
inline constexpr std::uint32_t tile_tokens = 16;

/// The extents of one page of keys and values.
struct page_shape {
    std::uint32_t layers = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    /// Tokens per page. A multiple of 16, unless the codec takes any number: rows in row-major order, and external
    /// memory.
    std::uint32_t tokens = 64;

    friend constexpr bool operator==(const page_shape&, const page_shape&) = default;

    /// The largest extents of a valid shape, far beyond any model, and the most numbers in the keys of a page. They
    /// keep the bytes of a page of any codec below 2^56, and below 2^31 where addresses have 32 bits.
    static constexpr std::uint32_t most_layers = 1u << 16;
    static constexpr std::uint32_t most_kv_heads = 1u << 16;
    static constexpr std::uint32_t most_head_dim = 1u << 14;
    static constexpr std::uint32_t most_tokens = 1u << 16;
    static constexpr std::uint64_t most_numbers = std::uint64_t{1} << (sizeof(std::size_t) > 4 ? 37 : 24);

    /// Whether the shape is valid: no extent is zero or too large.
    [[nodiscard]] constexpr bool valid() const noexcept {
        return layers > 0 && kv_heads > 0 && head_dim > 0 && tokens > 0 && layers <= most_layers &&
               kv_heads <= most_kv_heads && head_dim <= most_head_dim && tokens <= most_tokens &&
               std::uint64_t{layers} * kv_heads * head_dim * tokens <= most_numbers;
    }
    /// Whether a page is whole tiles.
    [[nodiscard]] constexpr bool whole_tiles() const noexcept { return tokens % tile_tokens == 0; }
};

/// The memory limit of a cache's pages, in bytes or in pages; the smaller one, if both are given.
struct cache_limits {
    std::size_t bytes = 0; ///< 0: not given.
    std::size_t pages = 0; ///< 0: not given.

    /// The number of pages. Requires: page_bytes > 0.
    [[nodiscard]] constexpr std::size_t pages_of(std::size_t page_bytes) const noexcept {
        constexpr std::size_t most = std::size_t{1} << 31;
        const std::size_t fit = bytes > 0 || pages == 0 ? bytes / page_bytes : most;
        return std::min({fit, pages > 0 ? pages : most, most});
    }
};

namespace detail {

void these_bytes_are_past_the_addresses_of_this_system(); // a name for the compiler's message

[[nodiscard]] consteval std::size_t shifted(unsigned long long n, unsigned bits) {
    if (n > std::numeric_limits<std::size_t>::max() >> bits)
        these_bytes_are_past_the_addresses_of_this_system();
    return static_cast<std::size_t>(n) << bits;
}

} // namespace detail

inline namespace literals {
/// n * 1024 bytes.
[[nodiscard]] consteval std::size_t operator""_KiB(unsigned long long n) {
    return detail::shifted(n, 10);
}
/// n * 1024^2 bytes.
[[nodiscard]] consteval std::size_t operator""_MiB(unsigned long long n) {
    return detail::shifted(n, 20);
}
/// n * 1024^3 bytes.
[[nodiscard]] consteval std::size_t operator""_GiB(unsigned long long n) {
    return detail::shifted(n, 30);
}
} // namespace literals

}} // namespace kvcache
