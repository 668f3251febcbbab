// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/page_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// What a plan knows of consecutive rows that ask: their sequence's pages, and where they stand.
struct planned_rows {
    std::span<const page_entry> table = {};
    std::size_t position = 0; ///< Of the first row; each row attends to [0, its position].
    std::size_t rows = 0;
    const std::size_t* positions = nullptr; ///< Of each row, ascending, where they are not consecutive.
    bool woven = false;                     ///< As paged_rows says.

    [[nodiscard]] std::size_t position_of(std::size_t row) const noexcept {
        return positions != nullptr ? positions[row] : position + row;
    }
};

/// Consecutive rows of one part that stay together, with all query heads of a key and value head.
struct attention_run {
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    std::uint32_t part = 0;
    std::size_t first = 0; ///< Row of the part.
    std::size_t rows = 0;
    std::size_t end = 0;          ///< Positions that its last row sees.
    std::size_t queries = 0;      ///< Of all runs before it; query `queries + i` is this run's i-th.
    std::size_t partials = none;  ///< The first of its softmax partials among all, if several jobs make its output.
    std::size_t same_entries = 0; ///< Leading page-table entries that equal those of the run before.
};

/// Page-table entries that the runs [first_run, last_run) have in common.
struct attention_segment {
    std::uint32_t part = 0; ///< Whose table says what the entries are.
    std::size_t first = 0;  ///< Entries [first, last).
    std::size_t last = 0;
    std::size_t position = 0; ///< Of the first row of the first entry.
    std::size_t first_run = 0;
    std::size_t last_run = 0;
};

/// The runs [first_run, last_run) over the splits [first_split, last_split), segment by segment, for one thread.
struct attention_job {
    std::size_t first_segment = 0;
    std::size_t last_segment = 0;
    std::size_t first_run = 0;
    std::size_t last_run = 0;
    std::size_t first_split = 0;
    std::size_t last_split = 0;
    std::size_t cost = 0; ///< About, in queries times positions.
};

} // namespace kvcache
