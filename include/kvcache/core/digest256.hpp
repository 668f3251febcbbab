// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <array>
#include <compare>
#include <cstddef>
#include <string>

namespace kvcache::inline KVCACHE_ABI {

/// 256 bits that stand for some bytes, also against an adversary. In the order in which FIPS 180-4 writes them.
struct digest256 {
    std::array<std::byte, 32> bytes = {};

    friend constexpr bool operator==(const digest256&, const digest256&) = default;
    friend constexpr auto operator<=>(const digest256&, const digest256&) = default;
};

/// 64 hexadecimal letters.
[[nodiscard]] inline std::string to_string(const digest256& d) {
    std::string text;
    for (const std::byte b : d.bytes)
        for (const int shift : {4, 0})
            text += "0123456789abcdef"[std::to_integer<unsigned>(b) >> shift & 15u];
    return text;
}

/// Whether two are equal, in a time that does not tell where they differ.
[[nodiscard]] constexpr bool same_in_constant_time(const digest256& a, const digest256& b) noexcept {
    std::byte difference{};
    for (std::size_t i = 0; i < a.bytes.size(); ++i)
        difference |= a.bytes[i] ^ b.bytes[i];
    return difference == std::byte{};
}

} // namespace kvcache
