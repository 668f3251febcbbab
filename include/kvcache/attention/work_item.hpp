// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Consecutive rows of one part that are scheduled together, with all query heads of a KV head.
struct query_tile {
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    std::uint32_t part = 0;
    std::size_t first = 0; ///< First row, within the part.
    std::size_t rows = 0;
    std::size_t end = 0;          ///< Positions that its last row sees.
    std::size_t queries = 0;      ///< Queries in all groups before it; query `queries + i` is its i-th.
    std::size_t partials = none;  ///< Index of its first softmax partial, if several work items compute its output.
    std::size_t same_entries = 0; ///< Leading page-table entries equal to those of the group before.
};

/// Page-table entries that the query tiles [first_query_tile, last_query_tile) have in common.
struct page_range {
    std::uint32_t part = 0; ///< Part whose table holds the entries.
    std::size_t first = 0;  ///< Entries [first, last).
    std::size_t last = 0;
    std::size_t position = 0; ///< Position of the first row of the first entry.
    std::size_t first_query_tile = 0;
    std::size_t last_query_tile = 0;
};

/// Query tiles [first_query_tile, last_query_tile) over the splits [first_split, last_split), range by range, for one
/// thread.
struct work_item {
    std::size_t first_range = 0;
    std::size_t last_range = 0;
    std::size_t first_query_tile = 0;
    std::size_t last_query_tile = 0;
    std::size_t first_split = 0;
    std::size_t last_split = 0;
    std::size_t cost = 0; ///< Approximate cost, in queries times positions.
};

}} // namespace kvcache
