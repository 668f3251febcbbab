// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The larger page size of most 64-bit systems (2 MiB): one TLB entry instead of 512.
inline constexpr std::size_t huge_page_bytes = std::size_t{1} << 21;

/// Advises the system to back the whole huge pages inside [at, at + bytes) with huge pages: at once for memory not
/// touched yet, gradually for the rest. Returns whether the system accepts the advice; where it does not, nothing
/// happens. bytes_on_huge_pages() reports the outcome.
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

}} // namespace kvcache
