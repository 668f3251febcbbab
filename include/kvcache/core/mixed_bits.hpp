// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// The number with every bit of it in every bit of the result, for tables whose keys need not be hashes: murmur3's
/// finaliser (Appleby), which no two numbers share.
[[nodiscard]] constexpr std::uint64_t mixed_bits(std::uint64_t x) noexcept {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

} // namespace kvcache
