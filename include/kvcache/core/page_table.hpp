// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// One entry of a sequence's page table: the rows [first, first + count) of a page, in the sequence's order.
struct page_entry {
    page_id page = {};
    std::int64_t base = 0; ///< RoPE offset: keys are rotated by (position - base); zero for a prefix computed in place.
    std::uint32_t first = 0; ///< First row in use.
    std::uint32_t count = 0; ///< Number of rows in use.

    friend bool operator==(const page_entry&, const page_entry&) = default;
};

/// An entry of a sequence's page table that a commit changed, because another page has the same content.
struct moved_entry {
    std::size_t entry = 0; ///< Index in the page table.
    page_id from = {};
    page_id to = {};

    friend bool operator==(const moved_entry&, const moved_entry&) = default;
};

}} // namespace kvcache
