// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>

namespace kvcache {

/// What happened in a cache.
enum class event_kind {
    matched, ///< A prompt was looked up: tokens found, of how many.
    stored,  ///< Tokens were committed.
    copied,  ///< A shared page was copied before a write.
    evicted, ///< A page left to make room.
    refused, ///< A reservation failed for want of pages.
};

/// One event, with its extent.
struct event {
    event_kind kind = event_kind::matched;
    std::size_t tokens = 0; ///< Found (matched), committed (stored), or held by the page (copied, evicted).
    std::size_t of = 0;     ///< Tokens asked for (matched, refused).
    std::size_t pages = 0;  ///< Pages concerned.
};

/// The working state of an observer: told of every event, under the cache's lock. What it throws is lost.
template <class S>
concept observer_state = requires(S s, const event& what) {
    s.on(what);
};

/// Who watches a cache.
template <class P>
concept observer_policy = plays<P, observer_role> && requires(const P p) {
    { p.open() } -> observer_state;
};

} // namespace kvcache
