// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/huge_pages.hpp>

#include <cstddef>
#include <new>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Bytes of a cache line, and of an AVX-512 vector.
inline constexpr std::size_t line_bytes = 64;

/// The alignment of an allocation of `bytes`: a huge page if it spans at least two of them, a cache line otherwise.
[[nodiscard]] constexpr std::size_t alignment_for(std::size_t bytes) noexcept {
    return bytes >= 2 * huge_page_bytes ? huge_page_bytes : line_bytes;
}

/// An allocator that aligns to cache lines, and puts large allocations on huge pages where the system has them.
template <class T>
struct line_allocator {
    using value_type = T;

    line_allocator() = default;
    template <class U>
    line_allocator(const line_allocator<U>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t n) {
        const std::size_t bytes = n * sizeof(T), alignment = alignment_for(bytes);
        void* const at = ::operator new (bytes, std::align_val_t{alignment});
        if (alignment == huge_page_bytes)
            want_huge_pages(at, bytes);
        return static_cast<T*>(at);
    }
    void deallocate(T* at, std::size_t n) noexcept {
        ::operator delete (at, std::align_val_t{alignment_for(n * sizeof(T))});
    }

    friend bool operator==(const line_allocator&, const line_allocator&) { return true; }
};

/// A vector whose data begins on a cache line.
template <class T>
using aligned_vector = std::vector<T, line_allocator<T>>;

}} // namespace kvcache
