// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/reserve_options.hpp>
#include <kvcache/cache/row_demand.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/observer/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Allocates the pages of rows that are appended to sequences.
template <class PageManager>
class row_allocator {
public:
    /// Requires: the page manager outlives it.
    row_allocator(PageManager& pages, std::size_t page_tokens) : pages_(pages), page_tokens_(page_tokens) {}

    /// What a reservation of `rows` rows takes. Cost: O(1).
    template <class Residual>
    [[nodiscard]] row_demand demand(const sequence_state& state, const Residual& residual, std::size_t rows,
                                    reserve_options options) const {
        row_demand made;
        const auto open_rows = state.open_rows(page_tokens_);
        made.used = open_rows.value_or(static_cast<std::uint32_t>(page_tokens_));
        made.copies = open_rows && rows > 0 && !pages_.writable(state.table.back().page, made.used);
        made.in_tail = std::min<std::size_t>(rows, page_tokens_ - made.used);
        const std::size_t in_new = rows - made.in_tail;
        made.fresh = in_new / page_tokens_ + (in_new % page_tokens_ > 0 ? 1 : 0);
        made.at_once = std::min(std::max<std::size_t>(options.at_once, 1), rows);
        const std::size_t exact = residual.needed(made.copies, state.table.size(), made.fresh, made.at_once);
        made.pages = made.fresh + (made.copies ? 1 : 0) + pages_.residual().more_aside(exact);
        return made;
    }

    /// Appends `rows` rows, in the last page and in new ones. If the last page is shared it is copied first. Returns
    /// false if the storage refuses, with some pages appended. Requires: the table has capacity for them.
    template <class Codec>
    [[nodiscard]] bool take(sequence_state& state, const Codec& codec, const row_demand& wanted, std::size_t rows) {
        if (wanted.copies && !copy_tail(state, codec, wanted.used))
            return false;
        if (wanted.in_tail > 0)
            state.table.back().count += static_cast<std::uint32_t>(wanted.in_tail);
        for (std::size_t after = rows - wanted.in_tail; after > 0;) {
            const auto page = pages_.allocate(state.tenant);
            if (!page)
                return false;
            const std::size_t count = std::min<std::size_t>(after, page_tokens_);
            state.table.push_back({.page = *page, .count = static_cast<std::uint32_t>(count)});
            after -= count;
        }
        return true;
    }

    /// Appends copies of rows to a sequence. `entries` are the rows' current locations, and give the rows and RoPE
    /// offsets of the copies. Returns false if the storage refuses, with some rows appended. Requires: the table has
    /// spare capacity for them.
    template <class Codec>
    [[nodiscard]] bool copy(sequence_state& state, const Codec& codec, std::span<const page_entry> entries) {
        for (const page_entry& entry : entries) {
            const auto own = pages_.allocate(state.tenant);
            if (!own)
                return false;
            pages_.pool().clear(*own);
            if (!pages_.pool().copy(codec, entry.page, *own, entry.first + entry.count)) {
                pages_.drop(*own);
                return false;
            }
            const page_id pair[] = {entry.page, *own};
            pages_.tell({event_kind::copied, entry.count, 0, 1, pair});
            state.table.push_back({*own, entry.base, entry.first, entry.count});
        }
        return true;
    }

    /// Reports rows for which there are no pages. Returns the error.
    [[nodiscard]] error refuse(const sequence_state& state, std::size_t rows, std::size_t pages,
                               std::size_t page_bytes) {
        pages_.tell({event_kind::refused, 0, rows, pages});
        const bool over_quota = pages_.room(state.tenant) < pages_.available();
        const std::size_t all = over_quota ? pages_.tenants().usage(state.tenant).quota : pages_.pool().pages();
        return {error_code::out_of_memory, over_quota ? "quota" : "pages",
                detail::joined({std::to_string(rows), " tokens need ", std::to_string(pages), " pages of ",
                                std::to_string(page_bytes), " bytes; ", std::to_string(pages_.room(state.tenant)),
                                " of ", std::to_string(all), " can be had"})};
    }

private:
    template <class Codec>
    [[nodiscard]] bool copy_tail(sequence_state& state, const Codec& codec, std::size_t rows) {
        const auto own = pages_.allocate(state.tenant);
        if (!own)
            return false;
        const page_id shared = std::exchange(state.table.back().page, *own);
        if (!pages_.pool().copy(codec, shared, *own, rows))
            return false;
        const page_id pair[] = {shared, *own};
        pages_.tell({event_kind::copied, rows, 0, 1, pair});
        return true;
    }

    PageManager& pages_;
    std::size_t page_tokens_;
};

}} // namespace kvcache
