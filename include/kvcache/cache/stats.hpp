// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/joined.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>
#include <string>

namespace kvcache::inline KVCACHE_ABI {

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

/// How full a cache of these pages is, for people.
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
                           number(now.held),
                           " held by ",
                           number(now.sequences),
                           " sequences, ",
                           number(now.idle),
                           " idle, ",
                           number(now.free),
                           " free"});
}

} // namespace kvcache
