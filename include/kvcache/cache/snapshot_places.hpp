// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/lookup_result.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Where a prompt leaves snapshots of a recurrent state for later prompts: after how many of its tokens. All are
/// multiples of the page's tokens, and leave at least the last token of the prompt to compute.
struct snapshot_places {
    /// Where the last page ends: for the same prompt again, and for one that continues it.
    bool ends = true;
    /// Where the prompt parts from a cached one that has no snapshot there: for the next prompt that parts there.
    bool branches = true;
    /// So many tokens before the last page ends, in whole pages: for a prompt that parts from this one shortly before
    /// its end, as the turns of chats and agents do; 0 for none.
    std::size_t before_end = 512;
    /// A snapshot each so many pages; 0 for none. An edit then computes at most so many pages again before it.
    std::size_t every = 0;
    /// At the distances of 1, 2, 4, ... pages from the last one: an edit then computes at most twice the tokens from it
    /// to the end, and a page, with O(log pages) snapshots.
    bool doubling = false;
    /// A snapshot each so many pages of what follows a prompt, as an answer; 0 for none.
    std::size_t answers = 4;

    /// The places in a prompt, in ascending order, after those tokens that are known. `found`: that of acquire; lookup
    /// may know the last token too, which is computed in any case. Throws: bad_alloc. Cost: O(places).
    [[nodiscard]] std::vector<std::size_t> of(const lookup_result& found, std::size_t page_tokens) const {
        std::vector<std::size_t> made;
        if (found.prompt_tokens == 0)
            return made;
        const std::size_t last = (found.prompt_tokens - 1) / page_tokens;
        const auto add = [&](std::size_t page) {
            if (page <= last && page * page_tokens > found.cached_tokens)
                made.push_back(page * page_tokens);
        };
        if (ends)
            add(last);
        if (const std::size_t pages = before_end / page_tokens; pages > 0 && pages < last)
            add(last - pages);
        // Not other_groups_tokens: of two groups with states each limits the other.
        if (branches && found.limiting_group)
            add(found.common_prefix / page_tokens);
        for (std::size_t page = every; every > 0 && page <= last; page += every)
            add(page);
        for (std::size_t distance = 1; doubling && distance < last; distance *= 2)
            add(last - distance);
        std::sort(made.begin(), made.end());
        made.erase(std::unique(made.begin(), made.end()), made.end());
        return made;
    }

    /// Whether there is a snapshot after `at` tokens, where a page ends, among rows that follow a prompt: those of
    /// tokens [first, end) of a sequence. Several at once are the next part of a conversation, with an end as a prompt.
    [[nodiscard]] bool after_prompt(std::size_t at, std::size_t first, std::size_t end,
                                    std::size_t page_tokens) const noexcept {
        const std::size_t page = at / page_tokens;
        return (answers > 0 && page % answers == 0) || (ends && end - first > 1 && page == (end - 1) / page_tokens);
    }
};

}} // namespace kvcache
