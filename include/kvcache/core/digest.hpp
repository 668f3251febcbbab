// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace kvcache {

/// A 128-bit digest of content, for identity; not a defence against forgery.
struct digest {
    std::uint64_t low = 0;
    std::uint64_t high = 0;

    friend constexpr bool operator==(const digest&, const digest&) = default;
};

/// 32 lower-case hexadecimal digits, the most significant first.
[[nodiscard]] inline std::string to_hex(const digest& value) {
    std::string text(32, '0');
    for (std::size_t i = 0; i != 16; ++i) {
        text[15 - i] = "0123456789abcdef"[(value.high >> (4 * i)) & 15];
        text[31 - i] = "0123456789abcdef"[(value.low >> (4 * i)) & 15];
    }
    return text;
}

} // namespace kvcache
