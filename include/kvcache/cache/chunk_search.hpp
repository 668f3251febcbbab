// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/reuse.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The reusable tokens of a prompt, and the pages to pin for them: the pages of the chunks and all their ancestors.
struct chunk_search {
    reuse_map found = {};
    std::vector<page_id> sources = {};

    /// Searches for chunks after the first `known` tokens, which are exact. The last token is never reused.
    template <class Index>
    chunk_search(const Index& index, std::uint32_t tenant, std::size_t page_tokens, std::span<const token_id> tokens,
                 std::size_t known) {
        found.add(reuse_kind::exact, known);
        std::optional<page_entry> before; // the last entry of the previous chunk, before cut()
        for (const chunk_match& chunk : index.chunks(tenant, tokens, known)) {
            const auto path = pages_of(index, chunk.last);
            auto entries = entries_of(path, page_tokens, chunk);
            const bool goes_on = before && chunk.first == found.end() && follows(path, *before, entries.front());
            before = entries.back();
            cut(entries, chunk.first, std::max(found.end(), chunk.first), tokens.size() - 1);
            found.add(reuse_kind::missing, std::max(found.end(), chunk.first) - found.end());
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
