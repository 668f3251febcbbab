// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/lease_state.hpp>
#include <kvcache/cache/token_buffer.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/sha256_digest.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The state of one sequence: its tokens, their pages, and its lease. Every live sequence is in a circular list of its
/// cache, so that `check` can recount all references.
struct sequence_state {
    static constexpr std::size_t all = static_cast<std::size_t>(-1);

    token_buffer tokens = {};
    std::vector<page_entry> table = {};
    std::size_t published_pages = 0; ///< Leading pages that are full and in the index.
    std::size_t prompt = 0;          ///< Tokens of the request it was opened for, while it has fewer; 0 if unknown.
    std::uint32_t tenant = 0;        ///< Number of the tenant that owns it; 0 in a cache without tenants.
    std::size_t exact = all;         ///< Leading tokens that attended to nothing approximate; `all` if every one.
    std::size_t cacheable = all;     ///< Leading tokens that may be published.
    bool publishable = true;         ///< False after the index ran out of memory for a page: later pages stay private.

    lease_state lease = {};

    /// Another page of the index with the content of a page of the table.
    struct twin {
        std::size_t entry = 0;
        page_id page = {};
    };
    /// Where pages stay in the table although the index has their content in another page: later pages continue that
    /// page in the index. Referenced in addition to the table; entries ascend.
    std::vector<twin> twins = {};

    // For tiers.
    struct {
        std::size_t pages = 0;     ///< Leading pages that were handed to the tier.
        sha256_digest record = {}; ///< The record name of the last of them.
    } offloaded = {};

    // For chunk reuse: pages referenced in addition to the table, namely those that approximate rows were taken from
    // and their ancestors.
    std::vector<page_id> pinned_sources = {};

    bool orphaned = false; ///< Its cache was destroyed first.
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

    /// The number of leading tokens of a prompt that equal its own and those that its lease computes, if these can be
    /// published.
    [[nodiscard]] std::size_t pending(std::span<const token_id> query) const noexcept {
        const std::size_t own = std::min(tokens.size(), query.size());
        if (lease.prompt.empty() || !publishable || exact != all ||
            !std::equal(tokens.data(), tokens.data() + own, query.data()))
            return 0;
        const auto rest = query.subspan(own);
        const auto end = std::ranges::mismatch(lease.prompt, rest).in2;
        return std::min(own + static_cast<std::size_t>(end - rest.begin()), cacheable);
    }

    /// The page by which the index knows the content of an entry: its own, or its twin. Cost: O(twins).
    [[nodiscard]] page_id indexed(std::size_t entry) const noexcept {
        const auto found = std::find_if(twins.rbegin(), twins.rend(), [&](const twin& t) { return t.entry <= entry; });
        return found != twins.rend() && found->entry == entry ? found->page : table[entry].page;
    }

    /// Begins with the first `count` tokens and pages of another sequence. Requires: this one is empty.
    void share(const sequence_state& from, std::size_t count, std::size_t page_tokens) {
        tokens.assign({from.tokens.data(), count});
        table.assign(from.table.data(), from.table.data() + from.table.size());
        drop_entries(cut(count));
        published_pages = std::min(from.published_pages, full_entries(page_tokens));
        for (const twin& one : from.twins)
            if (one.entry < published_pages)
                twins.push_back(one);
        tenant = from.tenant;
        cacheable = from.cacheable;
        publishable = from.publishable;
        if (count > from.exact) {
            exact = from.exact;
            pinned_sources = from.pinned_sources;
        }
    }

    /// Makes it the state of a sequence without tokens and pages. Its vectors keep their memory.
    void clear() noexcept {
        tokens.truncate(0);
        table.clear();
        twins.clear();
        published_pages = prompt = 0;
        tenant = 0;
        exact = cacheable = all;
        publishable = true;
        lease.end();
        offloaded = {};
        pinned_sources.clear();
    }

    /// Appends the tokens of `from` after the `count` tokens that are left out. Requires: this state is the prefix of
    /// `from` up to `first`. Returns: the locations of their rows, moved down; the table has capacity for as many. From
    /// `first` on the sequence is approximate and private.
    [[nodiscard]] std::vector<page_entry> leave_out(const sequence_state& from, std::size_t first, std::size_t count) {
        std::vector<page_entry> after;
        std::size_t row = 0;
        for (page_entry entry : from.table) {
            const std::size_t skipped = std::clamp(first + count, row, row + entry.count) - row;
            row += entry.count;
            if (skipped == entry.count)
                continue;
            entry.first += static_cast<std::uint32_t>(skipped);
            entry.count -= static_cast<std::uint32_t>(skipped);
            entry.base -= static_cast<std::int64_t>(count);
            after.push_back(entry);
        }
        const auto kept = std::span<const token_id>(from.tokens).subspan(first + count);
        reserve(after.size(), kept.size());
        tokens.append(kept);
        if (!after.empty()) {
            exact = std::min(exact, first);
            publishable = false;
        }
        return after;
    }

    /// Reserves capacity for more pages and tokens, so that adding them cannot fail; with `keeps_twins` for a twin of
    /// each page too. Throws: bad_alloc; the sequence is then unchanged.
    void reserve(std::size_t pages, std::size_t rows, bool keeps_twins = false) {
        if (table.capacity() - table.size() < pages)
            table.reserve(std::max(table.size() + pages, 2 * table.capacity()));
        if (keeps_twins)
            twins.reserve(table.capacity());
        tokens.reserve(rows);
    }
};

}} // namespace kvcache
