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

namespace kvcache::inline KVCACHE_ABI {

/// Why a match went no further.
enum class match_end {
    complete,  ///< Every token was found.
    unknown,   ///< Nothing is stored behind the last token found.
    different, ///< Something is stored there, with another token.
};

/// The longest known run of tokens, and the pages that hold it in order; only the last page may be used in part.
struct index_match {
    std::vector<page_id> pages = {};
    std::size_t tokens = 0;
    match_end end = match_end::unknown;
    std::optional<token_id> stored = {}; ///< With `different`: the token stored where the match ended.
};

/// What became of an insertion.
struct insertion {
    enum class outcome {
        inserted, ///< The page is new in the index.
        extended, ///< The page was there with fewer of its rows.
        covered,  ///< `other` already holds the run, alone or at the start of a longer one; nothing changed.
    };
    outcome what = outcome::inserted;
    std::optional<page_id> other = {}; ///< covered: who holds it. Else: a page whose run this one continues; it left.
};

/// The working state of an index: which pages hold which tokens after which past. A page's run continues its parent's,
/// and a page with children is full and cannot leave. `insert` may throw bad_alloc and has changed nothing then;
/// `erase` does not throw.
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

/// A run of a prompt's tokens that is stored somewhere, behind whatever past.
struct chunk_match {
    std::size_t first = 0; ///< In the prompt.
    std::size_t count = 0; ///< Tokens.
    page_id last = {};     ///< The page of its last token; those before it are the page's ancestors.
    std::uint32_t end = 0; ///< Rows of that page up to its end.

    friend bool operator==(const chunk_match&, const chunk_match&) = default;
};

/// An index that also finds tokens by their content alone. Salts keep those apart who must not find each other's.
template <class S>
concept chunk_index_state = index_state<S> &&
    requires(S s, const S c, std::span<const token_id> tokens, std::uint64_t salt, page_id page, std::uint32_t end,
             std::size_t count) {
    { s.note(salt, page, end, count) } -> std::same_as<bool>;
    { c.chunks(salt, tokens, count) } -> std::same_as<std::vector<chunk_match>>;
};

/// How known tokens are found.
template <class P>
concept index_policy = plays<P, index_role> && requires(const P p, page_shape shape, std::size_t pages) {
    p.open(shape, pages);
} && index_state<opened_by<P, page_shape, std::size_t>>;

} // namespace kvcache
