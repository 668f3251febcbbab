// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/residual_ring.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/sha256_digest.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The location of a row of a spliced lease.
struct spliced_row {
    page_id page = {};
    std::uint32_t row = 0;
    bool kept = false;     ///< Computed elsewhere, and not to be written.
    std::int64_t base = 0; ///< RoPE offset of its keys, as page_entry::base.
};

/// The state of one sequence: its tokens, their pages, and its open lease. Every live sequence is in a circular list of
/// its cache, so that `check` can recount all references.
struct sequence_state {
    static constexpr std::size_t all = static_cast<std::size_t>(-1);

    std::vector<token_id> tokens = {};
    std::vector<page_entry> table = {};
    std::size_t published_pages = 0; ///< Leading pages that are full and in the index.
    std::size_t prompt = 0;          ///< Tokens of the request that it is opened for, until it has them; 0 if unknown.
    std::uint32_t tenant = 0;        ///< Whose it is; 0 in a cache without tenants.
    std::size_t exact = all;         ///< Leading tokens that attended to nothing approximate; `all` if every one.
    std::size_t cacheable = all;     ///< Leading tokens that may become known to others.
    bool publishable = true; ///< False once the index had no memory for its pages: from there on they are its own.

    std::size_t offloaded_pages = 0; ///< Leading pages that were handed to the tier.
    sha256_digest stored_name = {};  ///< What leaves the process calls them.

    /// Where the tokens move as they grow; then where they were, until the next lease: a caller may still read there.
    std::vector<token_id> spare_tokens = {};

    /// Referenced in addition to the table: the pages that approximate rows were taken from, and what those continue,
    /// first.
    std::vector<page_id> pinned_sources = {};

    // The lease: rows after `tokens` that are already in the table, and the state to roll back to.
    bool has_lease = false;
    std::size_t leased = 0;
    std::chrono::steady_clock::time_point leased_at = {};
    std::size_t pages_before = 0;
    std::vector<spliced_row> spliced = {};      ///< By row of the lease, if it is spliced.
    std::optional<page_entry> tail_before = {}; ///< The last entry before the lease; still referenced if copied.

    residual_ring ring = {}; ///< For a codec of whole pages: the residual rows of the pages that the lease adds.
    std::vector<codec::residual_page*> residual_rows = {}; ///< By entry: the residual rows that queries may read.

    sequence_state* previous = nullptr;
    sequence_state* next = nullptr;

    /// The number of rows in use in the last page if it can take more; nullopt if the next row begins a new page.
    [[nodiscard]] std::optional<std::uint32_t> open_rows(std::size_t page_tokens) const noexcept {
        if (table.empty() || table.back().base != 0 || table.back().first + table.back().count == page_tokens)
            return std::nullopt;
        return table.back().first + table.back().count;
    }

    /// The number of leading entries that fill their pages.
    [[nodiscard]] std::size_t full_entries(std::size_t page_tokens) const noexcept {
        return table.size() - (open_rows(page_tokens) ? 1 : 0);
    }

    /// Shortens the entries to `rows` rows in total. Returns the number of entries that remain; the caller removes the
    /// others.
    [[nodiscard]] std::size_t cut(std::size_t rows) noexcept {
        std::size_t kept = 0;
        for (; kept < table.size() && rows > 0; ++kept) {
            table[kept].count = static_cast<std::uint32_t>(std::min<std::size_t>(table[kept].count, rows));
            rows -= table[kept].count;
        }
        return kept;
    }

    /// Removes all but the first `kept` entries, without releasing their pages.
    void drop_entries(std::size_t kept) noexcept {
        while (table.size() > kept)
            table.pop_back();
    }

    /// Returns whether a lease has replaced the last page by a copy.
    [[nodiscard]] bool has_copied_tail() const noexcept {
        return tail_before && tail_before->page != table[pages_before - 1].page;
    }

    /// The state of a new sequence that starts with the first `count` tokens and pages of this one.
    [[nodiscard]] std::unique_ptr<sequence_state> begin(std::size_t count, std::size_t page_tokens) const {
        auto copy = std::make_unique<sequence_state>();
        copy->tokens.assign(tokens.data(), tokens.data() + count);
        copy->table.assign(table.data(), table.data() + table.size());
        copy->drop_entries(copy->cut(count));
        copy->published_pages = std::min(published_pages, copy->full_entries(page_tokens));
        copy->tenant = tenant;
        copy->cacheable = cacheable;
        copy->publishable = publishable;
        if (count > exact) {
            copy->exact = exact;
            copy->pinned_sources.assign(pinned_sources.data(), pinned_sources.data() + pinned_sources.size());
        }
        return copy;
    }

    /// Appends the tokens of `from` after the `count` tokens that are left out. Requires: this state is the prefix of
    /// `from` up to `first`. Returns: the locations of their rows, moved down; the table has capacity for as many. From
    /// `first` on the sequence is approximate and private.
    [[nodiscard]] std::vector<page_entry> leave_out(const sequence_state& from, std::size_t first, std::size_t count) {
        std::vector<page_entry> behind;
        std::size_t row = 0;
        for (page_entry entry : from.table) {
            const std::size_t skipped = std::clamp(first + count, row, row + entry.count) - row;
            row += entry.count;
            if (skipped == entry.count)
                continue;
            entry.first += static_cast<std::uint32_t>(skipped);
            entry.count -= static_cast<std::uint32_t>(skipped);
            entry.base -= static_cast<std::int64_t>(count);
            behind.push_back(entry);
        }
        table.reserve(table.size() + behind.size());
        tokens.insert(tokens.end(), from.tokens.data() + first + count, from.tokens.data() + from.tokens.size());
        if (!behind.empty()) {
            exact = std::min(exact, first);
            publishable = false;
        }
        return behind;
    }

    /// Reserves capacity for more pages and tokens, so that adding them cannot fail. Throws: bad_alloc; the sequence is
    /// then unchanged.
    void prepare(std::size_t pages, std::size_t rows) {
        if (table.capacity() - table.size() < pages)
            table.reserve(std::max(table.size() + pages, 2 * table.capacity()));
        const std::size_t needed = tokens.size() + rows;
        const bool grows = needed > tokens.capacity();
        if (grows && spare_tokens.capacity() >= needed)
            return;
        spare_tokens = std::vector<token_id>();
        if (grows)
            spare_tokens.reserve(std::max(needed, 2 * tokens.capacity()));
    }

    /// Appends tokens for which `prepare` reserved capacity. They may be the sequence's own tokens, or those of another
    /// sequence whose tokens moved after its own lease began.
    void append(std::span<const token_id> more) noexcept {
        const std::size_t old = tokens.size(), needed = old + more.size();
        if (needed > tokens.capacity()) {
            const token_id* const own = tokens.data();
            spare_tokens.assign(own, own + old);
            spare_tokens.swap(tokens);
        }
        tokens.resize(needed);
        std::copy(more.begin(), more.end(), tokens.data() + old);
    }

    /// Clears the state of the lease.
    void end_lease() noexcept {
        has_lease = false;
        spliced.clear();
        leased = 0;
        tail_before.reset();
        residual_rows.clear();
    }
};

} // namespace kvcache
