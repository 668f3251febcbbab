// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/residual_ring.hpp>
#include <kvcache/cache/written_rows.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/page_table.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

struct sequence_state;

/// The location of a row of a spliced lease.
struct spliced_row {
    page_id page = {};
    std::uint32_t row = 0;
    bool kept = false;     ///< Computed elsewhere, and not to be written.
    std::int64_t base = 0; ///< RoPE offset of its keys, as page_entry::base.
};

/// The lease of a sequence: rows after its tokens that are already in its page table, and the state to roll back to.
struct lease_state {
    bool open = false;
    sequence_state** holder = nullptr; ///< Where the lease keeps its pointer to this; null once it has ended.
    std::size_t rows = 0;
    std::chrono::steady_clock::time_point began = {};
    std::size_t pages_before = 0;
    std::optional<page_entry> tail_before = {}; ///< The last entry before the lease; still referenced if copied.

    std::vector<token_id> prompt = {}; ///< The tokens of its rows, where a prompt was acquired.
    written_rows written = {};         ///< If the cache owns the memory of its pages.

    // For codecs that encode whole pages.
    residual_ring ring = {};                          ///< The residual rows of the pages that the lease adds.
    std::vector<codec::residual_page*> residual = {}; ///< By entry: the residual rows that queries may read.

    // For chunk reuse.
    std::vector<spliced_row> spliced = {}; ///< By row of the lease, if it is spliced.

    /// Returns whether the lease has replaced the last page of its table by a copy.
    [[nodiscard]] bool has_copied_tail(std::span<const page_entry> table) const noexcept {
        return tail_before && tail_before->page != table[pages_before - 1].page;
    }

    /// Begins a lease after the pages of a table. `open_tail`: whether its last page can take more rows.
    void begin(std::size_t row_count, std::span<const page_entry> table, bool open_tail) noexcept {
        open = true;
        rows = row_count;
        began = std::chrono::steady_clock::now();
        pages_before = table.size();
        tail_before = open_tail ? std::optional(table.back()) : std::nullopt;
    }

    /// Notes where the lease keeps its pointer to this. Out of line: GCC 12 takes the note of a lease that is returned
    /// for a dangling pointer.
#if defined(__GNUC__)
    [[gnu::noinline]]
#endif
    void
    hold(sequence_state** place) noexcept {
        holder = place;
    }

    /// Ends the lease, which has no state any more; the vectors keep their memory.
    void end() noexcept {
        if (holder != nullptr)
            *std::exchange(holder, nullptr) = nullptr;
        open = false;
        rows = 0;
        tail_before.reset();
        prompt.clear();
        residual.clear();
        spliced.clear();
    }
};

}} // namespace kvcache
