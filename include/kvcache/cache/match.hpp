// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/index/concept.hpp>

#include <optional>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The longest cached prefix of a prompt, pinned, and the reason why it ends there. A miss is an empty match. Its pages
/// stay pinned until it is destroyed or passed to `open`. Several threads may read it at once. Requires: the cache
/// outlives it.
template <class Cache>
class basic_match {
public:
    /// The number of leading tokens that are cached and can be continued.
    [[nodiscard]] std::size_t tokens() const { return known_.size(); }
    /// The number of tokens that were looked up.
    [[nodiscard]] std::size_t of() const noexcept { return of_; }
    [[nodiscard]] match_end end() const noexcept { return end_; }
    /// For `match_end::different`: the token stored at position compared().
    [[nodiscard]] std::optional<token_id> stored() const noexcept { return stored_; }

    /// The number of leading tokens that equal the stored ones; more than tokens() inside a page that a codec encodes
    /// as a whole.
    [[nodiscard]] std::size_t compared() const noexcept { return compared_; }

    /// The number of cached tokens that this match loaded from the tier.
    [[nodiscard]] std::size_t loaded() const noexcept { return loaded_; }

    /// Explains the match in one sentence: "37 of 52 tokens known; token 37 differs from the one stored (1189)".
    [[nodiscard]] std::string explain() const {
        std::string words = detail::joined({std::to_string(tokens()), " of ", std::to_string(of_), " tokens known"});
        if (loaded_ > 0)
            words += detail::joined({", ", std::to_string(loaded_), " of them from the tier"});
        switch (end_) {
        case match_end::complete:
            break;
        case match_end::unknown:
            words += "; nothing is stored after them";
            break;
        case match_end::different:
            words += detail::joined({"; token ", std::to_string(compared()), " differs from the one stored (",
                                     std::to_string(index_of(*stored_)), ")"});
            break;
        }
        return words;
    }

private:
    friend Cache;
    friend class cache_access;
    basic_match(basic_sequence<Cache> known, std::size_t of, const index_match& found)
        : known_(std::move(known)), of_(of), compared_(found.tokens), end_(found.end), stored_(found.stored) {}

    basic_sequence<Cache> known_;
    std::size_t of_;
    std::size_t compared_;
    std::size_t loaded_ = 0;
    match_end end_;
    std::optional<token_id> stored_;
};

}} // namespace kvcache
