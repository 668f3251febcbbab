// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/exact_ring.hpp>
#include <kvcache/core/digest256.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/page_table.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Where a row of a woven lease lies.
struct woven_row {
    page_id page = {};
    std::uint32_t row = 0;
    bool kept = false;     ///< Computed elsewhere, and not to be written.
    std::int64_t base = 0; ///< The position its keys are rotated from.
};

/// The books of one sequence: its tokens, the pages that hold them, and what a lease has under way. Every live one is
/// on a ring of its cache, so that `check` can count every holder.
struct sequence_state {
    static constexpr std::size_t all = static_cast<std::size_t>(-1);

    std::vector<token_id> tokens = {};
    std::vector<page_entry> table = {};
    std::size_t sealed = 0;      ///< Leading pages that are full and in the index.
    std::size_t prompt = 0;      ///< Tokens of the request that it is opened for, until it has them; 0 if unknown.
    std::uint32_t tenant = 0;    ///< Whose it is; 0 in a cache without tenants.
    std::size_t exact = all;     ///< Leading tokens that attended to nothing approximate; `all` if every one.
    std::size_t cacheable = all; ///< Leading tokens that may become known to others.
    bool shares = true;          ///< False once the index had no memory for its pages: from there on they are its own.

    std::size_t stored = 0;     ///< Leading pages that were handed to the tier.
    digest256 stored_name = {}; ///< What leaves the process calls them.

    /// Where the tokens move as they grow; then where they were, until the next lease: somebody may still look there.
    std::vector<token_id> room = {};

    /// Held beside the table: the pages that approximate rows were taken from, and what those continue, first.
    std::vector<page_id> sources = {};

    // A lease: rows behind `tokens` that the table has already, and how to take them back.
    bool has_lease = false;
    std::size_t leased = 0;
    std::chrono::steady_clock::time_point leased_at = {};
    std::size_t pages_before = 0;
    std::vector<woven_row> woven = {};          ///< By row of the lease, where some are kept from elsewhere.
    std::optional<page_entry> tail_before = {}; ///< The last entry as it was; if its page differs, it is still held.

    exact_ring ring = {};                     ///< For a codec of whole pages: the exact rows of the pages it adds.
    std::vector<exact_page*> exact_rows = {}; ///< By entry: what queries may read exactly.

    sequence_state* previous = nullptr;
    sequence_state* next = nullptr;

    /// The rows in use of the last page if it has room for more; none if a next row begins a page.
    [[nodiscard]] std::optional<std::uint32_t> open_rows(std::size_t page_tokens) const noexcept {
        if (table.empty() || table.back().base != 0 || table.back().first + table.back().count == page_tokens)
            return std::nullopt;
        return table.back().first + table.back().count;
    }

    /// How many leading entries fill their pages.
    [[nodiscard]] std::size_t full_entries(std::size_t page_tokens) const noexcept {
        return table.size() - (open_rows(page_tokens) ? 1 : 0);
    }

    /// Shortens the entries to `rows` rows; returns how many entries stay, and leaves the others to the caller.
    [[nodiscard]] std::size_t cut(std::size_t rows) noexcept {
        std::size_t kept = 0;
        for (; kept < table.size() && rows > 0; ++kept) {
            table[kept].count = static_cast<std::uint32_t>(std::min<std::size_t>(table[kept].count, rows));
            rows -= table[kept].count;
        }
        return kept;
    }

    /// Keeps the first `kept` entries and leaves their pages to the caller.
    void drop_entries(std::size_t kept) noexcept {
        while (table.size() > kept)
            table.pop_back();
    }

    /// Whether a lease has put a copy in the place of the last page.
    [[nodiscard]] bool has_copied_tail() const noexcept {
        return tail_before && tail_before->page != table[pages_before - 1].page;
    }

    /// The books of a sequence that begins with the first `count` tokens and pages of this one.
    [[nodiscard]] std::unique_ptr<sequence_state> begin(std::size_t count, std::size_t page_tokens) const {
        auto copy = std::make_unique<sequence_state>();
        copy->tokens.assign(tokens.data(), tokens.data() + count);
        copy->table.assign(table.data(), table.data() + table.size());
        copy->drop_entries(copy->cut(count));
        copy->sealed = std::min(sealed, copy->full_entries(page_tokens));
        copy->tenant = tenant;
        copy->cacheable = cacheable;
        copy->shares = shares;
        if (count > exact) {
            copy->exact = exact;
            copy->sources.assign(sources.data(), sources.data() + sources.size());
        }
        return copy;
    }

    /// For the begin of `from` up to `first`: adds the tokens behind the `count` that are left out. Returns: where
    /// their rows lie, moved down; the table has room for as many. From `first` on it is approximate, and its own.
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
            shares = false;
        }
        return behind;
    }

    /// Takes room for more pages and tokens, so that adding them cannot fail. Throws: bad_alloc, and the sequence is as
    /// before then.
    void prepare(std::size_t pages, std::size_t rows) {
        if (table.capacity() - table.size() < pages)
            table.reserve(std::max(table.size() + pages, 2 * table.capacity()));
        const std::size_t needed = tokens.size() + rows;
        const bool grows = needed > tokens.capacity();
        if (grows && room.capacity() >= needed)
            return;
        room = std::vector<token_id>();
        if (grows)
            room.reserve(std::max(needed, 2 * tokens.capacity()));
    }

    /// Adds tokens that room was taken for; they may be some of its own, or of another sequence that has moved its
    /// tokens since its own lease began.
    void append(std::span<const token_id> more) noexcept {
        const std::size_t old = tokens.size(), needed = old + more.size();
        if (needed > tokens.capacity()) {
            const token_id* const own = tokens.data();
            room.assign(own, own + old);
            room.swap(tokens);
        }
        tokens.resize(needed);
        std::copy(more.begin(), more.end(), tokens.data() + old);
    }

    /// Ends a lease and forgets what it had under way.
    void end_lease() noexcept {
        has_lease = false;
        woven.clear();
        leased = 0;
        tail_before.reset();
        exact_rows.clear();
    }
};

} // namespace kvcache
