// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>

#include <cstdint>
#include <optional>

namespace kvcache::inline KVCACHE_ABI {

/// What a cache has asked of its tier and got.
struct tier_stats {
    std::uint64_t asked = 0;         ///< Prompts with whole pages that memory did not have.
    std::uint64_t hits = 0;          ///< Of those, prompts of which the tier had some.
    std::uint64_t loaded_tokens = 0; ///< Checked and published.
    std::uint64_t refused = 0;       ///< Records that were damaged or not what was asked for; they are erased.
    std::uint64_t failed = 0;        ///< Reads and writes that the tier refused.
    std::uint64_t no_room = 0;       ///< Prompts whose records found no pages.
    std::uint64_t slower = 0;        ///< Prompts of which the tier had some that are quicker computed.
    std::uint64_t handed_over = 0;   ///< Records.
    std::optional<error> last = {};  ///< Why the last one was refused or failed.
};

} // namespace kvcache
