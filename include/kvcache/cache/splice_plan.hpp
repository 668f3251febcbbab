// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A plan that appends rows of a prompt to a sequence. Rows of reused spans stay in their pages, which are shared, not
/// copied. The other rows get new pages, at the row in the page that their position has in any sequence.
///
///     span      [c0 c1 c2 c3 c4 c5 c6 c7]  in pages A B of 4, from position 40 on; c0 and c5 are recomputed
///     table     P[0,1) A[1,4) B[0,1) Q[1,2) B[2,4)             P, Q: own pages
template <class Row>
class basic_splice_plan {
public:
    /// Plans rows [0, rows) of a lease whose first row has position `first`. Rows of `recomputed` positions, and those
    /// of no span, get new pages. Requires: spans and positions ascend; `entries` are the spans' pages in order.
    basic_splice_plan(std::size_t first, std::size_t rows, std::span<const reused_span> runs,
                      std::span<const page_entry> entries, std::span<const std::size_t> recomputed)
        : first_(first), rows_(rows) {
        std::size_t of_entry = 0;
        for (const reused_span& run : runs)
            for (std::size_t i = 0; i < run.count; ++i) {
                expects(!entries.empty(), "every reused token lies in a page");
                const page_entry& entry = entries.front();
                if (run.first + i >= first && run.first + i < first + rows)
                    rows_[run.first + i - first] = {entry.page, static_cast<std::uint32_t>(entry.first + of_entry),
                                                    true, entry.base};
                if (++of_entry == entry.count) {
                    entries = entries.subspan(1);
                    of_entry = 0;
                }
            }
        for (const std::size_t position : recomputed)
            if (position >= first && position < first + rows)
                rows_[position - first] = {};
    }

    /// The position of the first row that is kept; the position after the last row if none is.
    [[nodiscard]] std::size_t first_kept() const {
        return first_ +
               static_cast<std::size_t>(
                   std::find_if(rows_.begin(), rows_.end(), [](const Row& one) { return one.kept; }) - rows_.begin());
    }

    /// The number of new pages for the other rows.
    [[nodiscard]] std::size_t own_pages(std::size_t page_tokens) const {
        std::size_t pages = 0, block = 0;
        for (std::size_t row = 0; row < rows_.size(); ++row)
            if (!rows_[row].kept && (pages == 0 || (first_ + row) / page_tokens != block)) {
                block = (first_ + row) / page_tokens;
                ++pages;
            }
        return pages;
    }

    /// Assigns the new pages to rows, one page for each block of positions that has such rows.
    void take(std::span<const page_id> pages, std::size_t page_tokens) {
        std::size_t block = 0;
        const page_id* own = nullptr;
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            if (rows_[row].kept)
                continue;
            const std::size_t position = first_ + row;
            if (own == nullptr || position / page_tokens != block) {
                block = position / page_tokens;
                own = own == nullptr ? pages.data() : own + 1;
            }
            rows_[row] = {*own, static_cast<std::uint32_t>(position % page_tokens), false, 0};
        }
    }

    /// The page table of the rows. (entries)
    [[nodiscard]] std::vector<page_entry> table() const {
        std::vector<page_entry> made;
        for (const Row& one : rows_)
            if (!made.empty() && made.back().page == one.page && made.back().base == one.base &&
                made.back().first + made.back().count == one.row)
                ++made.back().count;
            else
                made.push_back({one.page, one.base, one.row, 1});
        return made;
    }

    [[nodiscard]] std::vector<Row>& rows() noexcept { return rows_; }

private:
    std::size_t first_;
    std::vector<Row> rows_;
};

using splice_plan = basic_splice_plan<spliced_row>;

}} // namespace kvcache
