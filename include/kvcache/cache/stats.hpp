// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace kvcache {

/// How full a cache is. Every page is free, held or idle.
struct cache_stats {
    std::size_t pages = 0;      ///< That fit the budget.
    std::size_t free = 0;       ///< Never used, or given back.
    std::size_t held = 0;       ///< Held by live sequences, each counted once however many share it.
    std::size_t idle = 0;       ///< Held by nobody, kept for the next match until room is needed.
    std::size_t page_bytes = 0; ///< Bytes of a page.
    std::size_t sequences = 0;  ///< Live sequences and matches.

    std::size_t exact = 0;       ///< Pages whose exact rows are kept beside them, for a codec of whole pages.
    std::size_t exact_bytes = 0; ///< What those take of the budget.

    friend constexpr bool operator==(const cache_stats&, const cache_stats&) = default;
};

} // namespace kvcache
