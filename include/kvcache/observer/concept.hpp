// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// What happened in a cache.
enum class event_kind {
    matched,   ///< A prompt was looked up: tokens found, of how many, in which pages.
    stored,    ///< Tokens were committed.
    published, ///< A full page can be found from now on: its run, after which page.
    copied,    ///< A shared page was copied before a write: from the first of the pages to the second.
    evicted,   ///< A page left to make room.
    refused,   ///< A reservation failed for want of pages.
};

/// One event, with its extent. What it points to is there for the call.
struct event {
    event_kind kind = event_kind::matched;
    std::size_t tokens = 0; ///< Found (matched), committed (stored), or held by the page (the others).
    std::size_t of = 0;     ///< Tokens asked for (matched, refused).
    std::size_t pages = 0;  ///< Pages concerned.

    std::span<const page_id> which = {}; ///< Those pages, in order; none with stored and refused.
    std::optional<page_id> parent = {};  ///< The page that the page continues (published, evicted).
    std::span<const token_id> run = {};  ///< The tokens of the page (published, evicted).
    std::span<const digest> names = {};  ///< By page: its name, as name_of tells it.
    std::size_t page_tokens = 0;         ///< Tokens of a full page.

    /// The digest of all tokens up to the end of a page. Requires: the page is full and can be found.
    [[nodiscard]] digest name_of(page_id page) const {
        expects(index_of(page) < names.size(), "an event names the pages that it is about");
        return names[index_of(page)];
    }
};

/// The working state of an observer: told of every event, under the cache's lock. What it throws is lost.
template <class S>
concept observer_state = requires(S s, const event& what) {
    s.on(what);
};

/// Who watches a cache.
template <class P>
concept observer_policy = plays<P, observer_role> && requires(const P p) {
    p.open();
} && observer_state<opened_by<P>>;

} // namespace kvcache
