// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/inline.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// Where number `offset` from `base` on would lie: an address to ask for, which may lie outside of any array, where a
/// pointer must not lead.
template <class T>
[[nodiscard]] inline const void* address(const T* base, std::size_t offset) noexcept {
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(base) + offset * sizeof(T));
}

/// Asks for the cache line of number `offset` from `base` on, which is soon read. Any may be asked for.
template <class T>
KVCACHE_INLINE inline void prefetch([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 3);
#endif
}

/// The same for a line that is read somewhat later, in the second cache.
template <class T>
KVCACHE_INLINE inline void prefetch_soon([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 2);
#endif
}

/// The same for a line that is soon written.
template <class T>
KVCACHE_INLINE inline void prefetch_to_write([[maybe_unused]] const T* base,
                                             [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 1, 3);
#endif
}

} // namespace kvcache
