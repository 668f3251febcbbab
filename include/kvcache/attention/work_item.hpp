// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/page_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// Consecutive query rows of one sequence, as a plan needs them: its page table and the positions of the rows.
struct planned_queries {
    std::span<const page_entry> table = {};
    std::size_t position = 0; ///< Position of the first row; each row attends to [0, its position].
    std::size_t rows = 0;
    const std::size_t* positions = nullptr; ///< Of each row, ascending, where they are not consecutive.
    bool spliced = false;                   ///< As paged_rows says.

    [[nodiscard]] std::size_t position_of(std::size_t row) const noexcept {
        return positions != nullptr ? positions[row] : position + row;
    }
};

/// Consecutive rows of one part that are scheduled together, with all query heads of a KV head.
struct query_group {
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    std::uint32_t part = 0;
    std::size_t first = 0; ///< First row, within the part.
    std::size_t rows = 0;
    std::size_t end = 0;          ///< Positions that its last row sees.
    std::size_t queries = 0;      ///< Queries in all groups before it; query `queries + i` is its i-th.
    std::size_t partials = none;  ///< Index of its first softmax partial, if several work items compute its output.
    std::size_t same_entries = 0; ///< Leading page-table entries equal to those of the group before.
};

/// Page-table entries that the query groups [first_run, last_run) have in common.
struct page_range {
    std::uint32_t part = 0; ///< Part whose table holds the entries.
    std::size_t first = 0;  ///< Entries [first, last).
    std::size_t last = 0;
    std::size_t position = 0; ///< Position of the first row of the first entry.
    std::size_t first_run = 0;
    std::size_t last_run = 0;
};

/// Query groups [first_run, last_run) over the splits [first_split, last_split), range by range, for one thread.
struct work_item {
    std::size_t first_segment = 0;
    std::size_t last_segment = 0;
    std::size_t first_run = 0;
    std::size_t last_run = 0;
    std::size_t first_split = 0;
    std::size_t last_split = 0;
    std::size_t cost = 0; ///< Approximate cost, in queries times positions.
};

} // namespace kvcache
