// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// A number of bytes, at least one, within 1 % in two bytes: the upper half of a float.
class rounded_bytes {
public:
    rounded_bytes() = default;
    explicit rounded_bytes(std::size_t bytes) noexcept
        : upper_(static_cast<std::uint16_t>(
              std::bit_cast<std::uint32_t>(static_cast<float>(std::max<std::size_t>(bytes, 1))) >> 16)) {}

    /// A whole number.
    [[nodiscard]] double count() const noexcept {
        return static_cast<double>(std::bit_cast<float>(std::uint32_t{upper_} << 16));
    }

private:
    std::uint16_t upper_ = 0;
};

} // namespace kvcache
