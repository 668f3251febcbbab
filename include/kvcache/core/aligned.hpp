// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace kvcache {

/// One cache line, and one AVX-512 vector.
inline constexpr std::size_t line_bytes = 64;

/// Allocates on cache-line boundaries.
template <class T>
struct line_allocator {
    using value_type = T;

    line_allocator() = default;
    template <class U>
    line_allocator(const line_allocator<U>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t n) {
        return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{line_bytes}));
    }
    void deallocate(T* at, std::size_t) noexcept { ::operator delete (at, std::align_val_t{line_bytes}); }

    friend bool operator==(const line_allocator&, const line_allocator&) { return true; }
};

/// A vector that begins on a cache line.
template <class T>
using aligned_vector = std::vector<T, line_allocator<T>>;

} // namespace kvcache
