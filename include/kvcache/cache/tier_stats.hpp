// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>

#include <cstdint>
#include <optional>

namespace kvcache { inline namespace KVCACHE_ABI {

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

}} // namespace kvcache
