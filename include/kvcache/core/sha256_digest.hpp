// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <array>
#include <compare>
#include <cstddef>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A SHA-256 value, collision-resistant also against an adversary, in the byte order of FIPS 180-4.
struct sha256_digest {
    std::array<std::byte, 32> bytes = {};

    friend constexpr bool operator==(const sha256_digest&, const sha256_digest&) = default;
    friend constexpr auto operator<=>(const sha256_digest&, const sha256_digest&) = default;
};

/// Returns 64 hexadecimal digits.
[[nodiscard]] inline std::string to_string(const sha256_digest& d) {
    std::string text;
    for (const std::byte b : d.bytes)
        for (const int shift : {4, 0})
            text += "0123456789abcdef"[std::to_integer<unsigned>(b) >> shift & 15u];
    return text;
}

/// Compares two digests in constant time, which does not reveal where they differ.
[[nodiscard]] constexpr bool same_in_constant_time(const sha256_digest& a, const sha256_digest& b) noexcept {
    std::byte difference{};
    for (std::size_t i = 0; i < a.bytes.size(); ++i)
        difference |= a.bytes[i] ^ b.bytes[i];
    return difference == std::byte{};
}

}} // namespace kvcache
