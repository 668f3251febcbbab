// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A bijective 64-bit mixer: murmur3's finalizer (Appleby). Every input bit affects every output bit, so tables can use
/// keys that are not hashes.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

}} // namespace kvcache
