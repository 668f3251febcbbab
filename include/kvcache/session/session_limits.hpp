// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/prioritised.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace kvcache::inline KVCACHE_ABI {

/// Bounds of a session table.
struct session_limits {
    std::size_t sessions = 64;
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); ///< Of idle sessions, as their holders told.
};

/// A session as a list shows it.
struct session_entry {
    std::string key = {};
    std::size_t uses = 0; ///< Requests so far.
    std::size_t bytes = 0;
    bool in_use = false;
};

/// Least recently used, and sessions that were used once before those that were used again: a stray request evicts no
/// conversation.
using conversations_last = prioritised<lru>;
[[nodiscard]] inline conversations_last conversations_stay() {
    return {.rule = {{{{.first = 1, .count = std::numeric_limits<std::uint32_t>::max() - 1, .level = 1}}}}};
}

} // namespace kvcache
