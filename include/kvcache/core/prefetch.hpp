// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/inline.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The address of element `offset` of `base`. For prefetches only: unlike a pointer, it may lie outside any array.
template <class T>
[[nodiscard]] inline const void* address(const T* base, std::size_t offset) noexcept {
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(base) + offset * sizeof(T));
}

/// Prefetches the cache line of element `offset` of `base` for a read soon. Any offset is allowed.
template <class T>
KVCACHE_INLINE inline void prefetch([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 3);
#endif
}

/// Prefetches into the second-level cache, for a line that is read somewhat later.
template <class T>
KVCACHE_INLINE inline void prefetch_soon([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 2);
#endif
}

/// Prefetches a line for a write soon.
template <class T>
KVCACHE_INLINE inline void prefetch_to_write([[maybe_unused]] const T* base,
                                             [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 1, 3);
#endif
}

}} // namespace kvcache
