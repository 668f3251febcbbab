// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstring>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// Zeroes bytes for good: the compiler may not drop it, although nobody reads them again.
inline void wipe(std::span<std::byte> bytes) noexcept {
    if (bytes.empty())
        return;
    std::memset(bytes.data(), 0, bytes.size());
    asm volatile("" : : "r"(bytes.data()) : "memory"); // says that somebody may read them
}

} // namespace kvcache
