// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/huge_pages.hpp>
#include <kvcache/core/zeroed_memory.hpp>

#include <cstddef>
#include <memory>
#include <memory_resource>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Reference-counted, uninitialized memory of `bytes`, aligned as alignment_for(bytes). A null `resource` means new and
/// delete. Throws: what the resource throws.
[[nodiscard]] inline std::shared_ptr<std::byte> shared_memory(std::size_t bytes, std::pmr::memory_resource* resource) {
    std::pmr::memory_resource* const from = resource != nullptr ? resource : std::pmr::new_delete_resource();
    const std::size_t alignment = alignment_for(bytes);
    auto* const at = static_cast<std::byte*>(from->allocate(bytes, alignment));
    if (alignment == huge_page_bytes)
        want_huge_pages(at, bytes);
    return {at, [=](std::byte* mine) { from->deallocate(mine, bytes, alignment); }};
}

}} // namespace kvcache
