// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/prioritised.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Limits of a session table.
struct session_limits {
    std::size_t sessions = 64;
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); ///< Total bytes, as set by the holders.
};

/// A session in a listing.
struct session_entry {
    std::string key = {};
    std::size_t uses = 0; ///< Number of requests so far.
    std::size_t bytes = 0;
    bool in_use = false;
};

/// LRU with two priority levels: sessions used once are evicted before sessions used again, so a one-off request
/// evicts no conversation.
using default_session_eviction = eviction::prioritised<eviction::lru>;
/// Returns the default eviction of sessions: the first use has level 0, later uses level 1.
[[nodiscard]] inline default_session_eviction conversations_stay() {
    return {.rule = {{{{.first = 1, .count = std::numeric_limits<std::uint32_t>::max() - 1, .level = 1}}}}};
}

}} // namespace kvcache
