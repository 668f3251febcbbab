// SPDX-License-Identifier: MIT
// Replaces operator new by one that counts, and fails when asked to: for a program of one thread, in one of its files.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace counted_new {

inline std::size_t allocations = 0;
inline std::size_t allocated = 0; // bytes
inline std::size_t fails_at = 0;  // the number of the allocation from now on that fails; 0 for none

inline void* counted(std::size_t bytes) {
    ++allocations;
    allocated += bytes;
    if (fails_at > 0 && --fails_at == 0)
        throw std::bad_alloc();
    if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes))
        return memory;
    throw std::bad_alloc();
}

// Not inline, or GCC 12 takes new and free for a mismatched pair.
[[gnu::noinline]] inline void release(void* memory) noexcept {
    std::free(memory);
}

} // namespace counted_new

void* operator new(std::size_t bytes) {
    return counted_new::counted(bytes);
}
void* operator new[](std::size_t bytes) {
    return counted_new::counted(bytes);
}
void operator delete(void* memory) noexcept {
    counted_new::release(memory);
}
void operator delete[](void* memory) noexcept {
    counted_new::release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    counted_new::release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
    counted_new::release(memory);
}
