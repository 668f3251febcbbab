// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The provenance of the cached keys and values of a span of tokens.
enum class reuse_kind {
    exact,       ///< Computed after the same prefix.
    approximate, ///< Computed after a different prefix.
    missing,     ///< Not cached.
};

/// A span of a prompt's tokens of one kind.
struct prompt_span {
    reuse_kind kind = reuse_kind::missing;
    std::size_t first = 0;
    std::size_t count = 0;

    friend bool operator==(const prompt_span&, const prompt_span&) = default;
};

/// The reusable spans of a prompt. The spans are contiguous and cover the prompt; adjacent approximate spans come from
/// different places.
struct reuse_map {
    std::vector<prompt_span> spans = {};
    std::vector<reused_span> runs = {};   ///< The approximate spans.
    std::vector<page_entry> entries = {}; ///< Where their tokens lie, in order.

    [[nodiscard]] std::size_t end() const noexcept {
        return spans.empty() ? 0 : spans.back().first + spans.back().count;
    }

    /// The number of tokens of a kind.
    [[nodiscard]] std::size_t tokens(reuse_kind kind) const noexcept {
        std::size_t all = 0;
        for (const prompt_span& one : spans)
            all += one.kind == kind ? one.count : 0;
        return all;
    }

    /// The position of the first approximate token that is not in `recomputed`, which ascend; end() if there is none.
    [[nodiscard]] std::size_t first_kept(std::span<const std::size_t> recomputed) const noexcept {
        for (const reused_span& run : runs)
            for (std::size_t at = run.first; at < run.first + run.count; ++at) {
                if (recomputed.empty() || recomputed.front() != at)
                    return at;
                recomputed = recomputed.subspan(1);
            }
        return end();
    }

    /// Appends a span that is not approximate.
    void add(reuse_kind kind, std::size_t count) {
        if (count > 0)
            spans.push_back({kind, end(), count});
    }

    /// Appends the tokens of these page-table entries, which were computed elsewhere. If `goes_on`, they continue the
    /// last span where it was computed, and extend it.
    template <class Pages>
    void add_run(const Pages& pages, bool goes_on) {
        std::size_t count = 0;
        for (const page_entry& entry : pages)
            count += entry.count;
        if (count == 0)
            return;
        if (goes_on) {
            spans.back().count += count;
            runs.back().count += count;
        } else {
            runs.push_back({end(), count, pages.front().first});
            add(reuse_kind::approximate, count);
        }
        entries.insert(entries.end(), pages.begin(), pages.end());
    }
};

/// The reusable tokens of a prompt, and the pages to pin for them: the pages of the chunks and all their ancestors.
struct chunk_search {
    reuse_map found = {};
    std::vector<page_id> sources = {};

    /// Searches for chunks after the first `known` tokens, which are exact. The last token is never reused, nor are
    /// chunks with a page for which `has(page)` is false.
    template <class Index, class Has>
    chunk_search(const Index& index, std::uint32_t tenant, std::size_t page_tokens, std::span<const token_id> tokens,
                 std::size_t known, const Has& has) {
        found.add(reuse_kind::exact, known);
        std::optional<page_entry> before; // the last entry of the previous chunk, before cut()
        for (const chunk_match& chunk : index.chunks(tenant, tokens, known)) {
            const auto path = pages_of(index, chunk.last);
            auto entries = entries_of(path, page_tokens, chunk);
            const bool goes_on = before && chunk.first == found.end() && follows(path, *before, entries.front());
            before = entries.back();
            cut(entries, chunk.first, std::max(found.end(), chunk.first), tokens.size() - 1);
            found.add(reuse_kind::missing, std::max(found.end(), chunk.first) - found.end());
            if (!ranges::all_of(entries, [&](const page_entry& one) { return has(one.page); }))
                entries.clear();
            if (entries.empty())
                continue;
            found.add_run(entries, goes_on && !found.runs.empty());
            for (const page_id page : path)
                if (std::find(sources.begin(), sources.end(), page) == sources.end())
                    sources.push_back(page);
        }
        found.add(reuse_kind::missing, tokens.size() - found.end());
    }

private:
    // The path from the root to a page.
    template <class Index>
    [[nodiscard]] static std::vector<page_id> pages_of(const Index& index, page_id last) {
        std::vector<page_id> path{last};
        while (const auto parent = index.parent(path.back()))
            path.push_back(*parent);
        std::reverse(path.begin(), path.end());
        return path;
    }

    template <class Path>
    [[nodiscard]] static std::vector<page_entry> entries_of(const Path& path, std::size_t page_tokens,
                                                            const chunk_match& chunk) {
        const std::size_t behind = (path.size() - 1) * page_tokens + chunk.end, begin = behind - chunk.count;
        const auto base = static_cast<std::int64_t>(chunk.first) - static_cast<std::int64_t>(begin);
        std::vector<page_entry> made;
        for (std::size_t at = begin; at < behind;) {
            const std::size_t row = at % page_tokens, count = std::min(page_tokens - row, behind - at);
            made.push_back(
                {path[at / page_tokens], base, static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(count)});
            at += count;
        }
        return made;
    }

    // Whether the first row of `next` directly followed the last row of `before` where both were computed.
    template <class Path>
    [[nodiscard]] static bool follows(const Path& path, const page_entry& before, const page_entry& next) {
        if (before.base != next.base)
            return false;
        if (before.page == next.page)
            return before.first + before.count == next.first;
        const auto at = std::find(path.begin(), path.end(), next.page);
        return next.first == 0 && at != path.begin() && *std::prev(at) == before.page;
    }

    // Cuts entries that start at `position` to the positions [first, last).
    template <class Entries>
    static void cut(Entries& entries, std::size_t position, std::size_t first, std::size_t last) {
        Entries kept;
        for (page_entry entry : entries) {
            const std::size_t begin = std::max(position, first), end = std::min(position + entry.count, last);
            entry.first += static_cast<std::uint32_t>(begin - position);
            position += entry.count;
            if (begin < end) {
                entry.count = static_cast<std::uint32_t>(end - begin);
                kept.push_back(entry);
            }
        }
        entries = std::move(kept);
    }
};

}} // namespace kvcache
