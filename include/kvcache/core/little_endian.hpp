// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <concepts>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The little-endian unsigned integer at offset `at`. Requires: it lies inside `bytes`.
template <std::unsigned_integral N>
[[nodiscard]] constexpr N load_little(std::span<const std::byte> bytes, std::size_t at) noexcept {
    N made = 0;
    for (std::size_t i = sizeof(N); i > 0; --i)
        made = static_cast<N>(static_cast<N>(made << (sizeof(N) > 1 ? 8 : 0)) | std::to_integer<N>(bytes[at + i - 1]));
    return made;
}

/// Stores an unsigned integer at offset `at`, little-endian. Requires: it lies inside `bytes`.
template <std::unsigned_integral N>
constexpr void store_little(std::span<std::byte> bytes, std::size_t at, N number) noexcept {
    for (std::size_t i = 0; i < sizeof(N); ++i)
        bytes[at + i] = static_cast<std::byte>(number >> (8 * i) & 0xff);
}

}} // namespace kvcache
