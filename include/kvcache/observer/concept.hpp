// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The kinds of events in a cache.
enum class event_kind {
    matched,   ///< A prompt was looked up: tokens matched, tokens of the prompt, matched pages.
    spliced,   ///< Chunks computed elsewhere were placed: tokens kept, rows reserved with them, pages they lie in.
    stored,    ///< Tokens were committed.
    published, ///< A full page became findable: its tokens and its parent page.
    copied,    ///< A shared page was copied before a write (copy-on-write): from the first of the pages to the second.
    evicted,   ///< A page was evicted.
    refused,   ///< A reservation failed for lack of pages.
};

/// One event. Its spans are valid during the call only.
struct event {
    event_kind kind = event_kind::matched;
    std::size_t tokens =
        0;              ///< Tokens matched (matched), kept (spliced), committed (stored), or in the page (other kinds).
    std::size_t of = 0; ///< Tokens requested (matched, spliced, refused).
    std::size_t pages = 0; ///< Number of pages concerned.

    std::span<const page_id> which = {}; ///< The pages concerned, in order; empty for spliced, stored and refused.
    std::optional<page_id> parent = {};  ///< The parent of the page (published, evicted).
    std::span<const token_id> run = {};  ///< The tokens of the page (published, evicted).
    std::span<const digest> names = {};  ///< Page names, indexed by page; see name_of.
    std::size_t page_tokens = 0;         ///< Tokens of a full page.

    /// Returns the digest of all tokens up to the end of a page. Requires: the page is full and findable.
    [[nodiscard]] digest name_of(page_id page) const {
        expects(index_of(page) < names.size(), "an event names the pages that it is about");
        return names[index_of(page)];
    }
};

/// The working state of an observer. It receives every event, under the cache's lock. Exceptions that it throws are
/// ignored.
template <class S>
concept observer_state = requires(S s, const event& what) {
    s.on(what);
};

/// A policy that observes the events of a cache.
template <class P>
concept observer_policy = plays<P, observer_role> && requires(const P p) {
    p.open();
} && observer_state<opened_by<P>>;

}} // namespace kvcache
