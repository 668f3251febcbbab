// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The reason why a match ended.
enum class match_end {
    complete,  ///< Every token was found.
    unknown,   ///< Nothing is stored after the last token found.
    different, ///< A different token is stored there.
};

/// The longest known prefix and its pages, in order. Only the last page may be matched in part.
struct index_match {
    std::vector<page_id> pages = {};
    std::size_t tokens = 0;
    match_end end = match_end::unknown;
    std::optional<token_id> stored = {}; ///< For `different`: the token stored where the match ended.
};

/// The outcome of an insertion.
struct insertion {
    enum class outcome {
        inserted, ///< The page is new in the index.
        extended, ///< The page was in the index with fewer rows.
        covered,  ///< `other` already holds the run, or a longer run that starts with it; nothing changed.
    };
    outcome what = outcome::inserted;
    std::optional<page_id> other = {}; ///< covered: the page with the run; otherwise: the page that was replaced.
};

/// The working state of an index: the tokens of each page and the page that precedes it. A page's run continues its
/// parent's run; a page with children is full and cannot be erased. `insert` may throw bad_alloc and has then changed
/// nothing; `erase` does not throw. A state with `match(tokens, found)` too uses the memory of an earlier match.
template <class S>
concept index_state = requires(S s, const S c, std::span<const token_id> tokens, page_id page,
                               std::optional<page_id> parent) {
    { c.match(tokens) } -> std::same_as<index_match>;
    { s.insert(parent, tokens, page) } -> std::same_as<insertion>;
    s.erase(page);
    { c.contains(page) } -> std::same_as<bool>;
    { c.leaf(page) } -> std::same_as<bool>;
    { c.parent(page) } -> std::same_as<std::optional<page_id>>;
    { c.run(page) } -> std::same_as<std::span<const token_id>>;
};

/// A run of a prompt's tokens that is stored after any prefix.
struct chunk_match {
    std::size_t first = 0; ///< Position in the prompt.
    std::size_t count = 0; ///< Number of tokens.
    page_id last = {};     ///< The page of the last token; the tokens before it are in the page's ancestors.
    std::uint32_t end = 0; ///< Rows of that page up to the end of the chunk.

    friend bool operator==(const chunk_match&, const chunk_match&) = default;
};

/// An index that also finds tokens by content alone, in chunks of `least()` tokens or more. Lookups with one salt do
/// not find chunks of another.
template <class S>
concept chunk_index_state = index_state<S> &&
    requires(S s, const S c, std::span<const token_id> tokens, std::uint64_t salt, page_id page, std::uint32_t end,
             std::size_t count) {
    { s.note(salt, page, end, count) } -> std::same_as<bool>;
    { c.chunks(salt, tokens, count) } -> std::same_as<std::vector<chunk_match>>;
    { c.least() } -> std::same_as<std::size_t>;
};

/// A policy that finds cached tokens.
template <class P>
concept index_policy = plays<P, index_role> && requires(const P p, page_shape shape, std::size_t pages) {
    p.open(shape, pages);
} && index_state<opened_by<P, page_shape, std::size_t>>;

}} // namespace kvcache
