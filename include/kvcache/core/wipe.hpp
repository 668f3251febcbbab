// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace kvcache {

/// Zeroes bytes for good: the compiler may not drop it, although nobody reads them again.
inline void wipe(std::span<std::byte> bytes) noexcept {
    if (bytes.empty())
        return;
    std::memset(bytes.data(), 0, bytes.size());
    asm volatile("" : : "r"(bytes.data()) : "memory"); // says that somebody may read them
}

} // namespace kvcache
