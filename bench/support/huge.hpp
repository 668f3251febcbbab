// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include <sys/mman.h>

namespace bench {

struct free_memory {
    void operator()(void* memory) const noexcept { std::free(memory); }
};
using huge_memory = std::unique_ptr<float, free_memory>;

/// An uninitialized buffer of `count` floats, in huge pages where the system provides them. Throws: bad_alloc.
[[nodiscard]] inline huge_memory huge_floats(std::size_t count) {
    constexpr std::size_t page = std::size_t{2} << 20;
    const std::size_t bytes = (count * sizeof(float) + page - 1) / page * page;
    huge_memory memory(static_cast<float*>(std::aligned_alloc(page, bytes)));
    if (!memory)
        throw std::bad_alloc();
    madvise(memory.get(), bytes, MADV_HUGEPAGE);
    return memory;
}

} // namespace bench
