// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstring>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Zeroes bytes that are not read again; the compiler cannot optimize the stores away.
inline void secure_zero(std::span<std::byte> bytes) noexcept {
    if (bytes.empty())
        return;
    std::memset(bytes.data(), 0, bytes.size());
    asm volatile("" : : "r"(bytes.data()) : "memory"); // a possible read of the memory
}

}} // namespace kvcache
