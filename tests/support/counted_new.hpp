// SPDX-License-Identifier: MIT
// Replaces operator new by one that counts: for a program of one thread, in one of its files.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace counted_new {

inline std::size_t allocations = 0;
inline std::size_t allocated = 0; // bytes

inline void* counted(std::size_t bytes) {
    ++allocations;
    allocated += bytes;
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
