// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// Tokens of one tile, which is one SIMD vector of scores.
inline constexpr std::uint32_t tile_tokens = 16;

/// The extents of one page of keys and values.
struct page_shape {
    std::uint32_t layers = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    std::uint32_t tokens = 64; ///< Tokens per page; a multiple of 16.

    friend constexpr bool operator==(const page_shape&, const page_shape&) = default;

    /// Whether the shape is valid.
    [[nodiscard]] constexpr bool valid() const noexcept {
        return layers > 0 && kv_heads > 0 && head_dim > 0 && tokens > 0 && tokens % tile_tokens == 0;
    }
};

/// The memory limit of a cache's pages.
struct cache_limits {
    std::size_t bytes = 0;
};

inline namespace literals {
/// n * 1024 bytes.
[[nodiscard]] constexpr std::size_t operator""_KiB(unsigned long long n) {
    return std::size_t{n} << 10;
}
/// n * 1024^2 bytes.
[[nodiscard]] constexpr std::size_t operator""_MiB(unsigned long long n) {
    return std::size_t{n} << 20;
}
/// n * 1024^3 bytes.
[[nodiscard]] constexpr std::size_t operator""_GiB(unsigned long long n) {
    return std::size_t{n} << 30;
}
} // namespace literals

} // namespace kvcache
