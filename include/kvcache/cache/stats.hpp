// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The occupancy of a cache. Every page is free, in use or evictable.
struct cache_stats {
    std::size_t pages = 0;      ///< Number of pages within the cache's limit.
    std::size_t free = 0;       ///< Pages that hold nothing: never used, or freed.
    std::size_t in_use = 0;     ///< Pages referenced by live sequences, each counted once however many share it.
    std::size_t evictable = 0;  ///< Pages without references, cached for the next match until space is needed.
    std::size_t page_bytes = 0; ///< Bytes of a page.
    std::size_t sequences = 0;  ///< Live sequences and matches.

    std::size_t exact = 0;          ///< Pages with attached full-precision rows, for a codec of whole pages.
    std::size_t residual_bytes = 0; ///< What those take of the budget.

    friend constexpr bool operator==(const cache_stats&, const cache_stats&) = default;
};

/// Counters of a cache's use of its tier.
struct tier_stats {
    std::uint64_t asked = 0;          ///< Prompts with whole pages that were not in memory.
    std::uint64_t hits = 0;           ///< Of these, prompts of which the tier had pages.
    std::uint64_t loaded_tokens = 0;  ///< Tokens loaded, verified and published.
    std::uint64_t refused = 0;        ///< Records that were damaged or not the requested ones; see tier_client.
    std::uint64_t failed = 0;         ///< Tier calls that failed, and loads and hand-overs that ran out of memory.
    std::uint64_t no_room = 0;        ///< Failed attempts to allocate pages for records; one prompt can have several.
    std::uint64_t slower = 0;         ///< Prompts with pages in the tier that are faster to compute.
    std::uint64_t handed_over = 0;    ///< Records given to the tier, which may write them later, or drop them.
    std::uint64_t stored = 0;         ///< Records that the tier has written.
    std::uint64_t store_failures = 0; ///< Failures that the tier counted, those of its later writes included.
    std::optional<error> last = {};   ///< The error of the last refusal or failure.
};

/// Describes the occupancy of a cache in one line.
[[nodiscard]] inline std::string describe_pages(const page_shape& shape, const std::string& codec,
                                                const cache_stats& now) {
    const auto number = [](std::size_t n) { return std::to_string(n); };
    return detail::joined({number(shape.layers),
                           " layers, ",
                           number(shape.kv_heads),
                           " KV heads of ",
                           number(shape.head_dim),
                           ", pages of ",
                           number(shape.tokens),
                           " tokens and ",
                           number(now.page_bytes),
                           " bytes (",
                           codec,
                           "); ",
                           number(now.pages),
                           " pages: ",
                           number(now.in_use),
                           " in use by ",
                           number(now.sequences),
                           " sequences, ",
                           number(now.evictable),
                           " evictable, ",
                           number(now.free),
                           " free"});
}

}} // namespace kvcache
