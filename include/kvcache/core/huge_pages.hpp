// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>

namespace kvcache::inline KVCACHE_ABI {

/// The larger page that most 64-bit systems offer: one entry of the address cache in place of 512.
inline constexpr std::size_t huge_page_bytes = std::size_t{1} << 21;

/// Asks the system to put the whole huge pages inside [at, at + bytes) on huge pages, at once for memory that nobody
/// touched yet and by and by for the rest. Returns whether the system takes such wishes; where it does not, nothing
/// happens. What came of it says bytes_on_huge_pages().
inline bool want_huge_pages([[maybe_unused]] void* at, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
    const auto from = reinterpret_cast<std::uintptr_t>(at);
    const std::uintptr_t first = (from + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    const std::uintptr_t last = (from + bytes) / huge_page_bytes * huge_page_bytes;
    return first < last && ::madvise(static_cast<std::byte*>(at) + (first - from), last - first, MADV_HUGEPAGE) == 0;
#else
    return false;
#endif
}

} // namespace kvcache
