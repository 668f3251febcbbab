// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/index/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// How many tokens of a prompt every layer group can continue.
struct group_limit {
    std::size_t tokens = 0;
    std::size_t others = 0;                  ///< How many the groups without the limiting one could continue.
    std::optional<std::uint32_t> group = {}; ///< The group of the layout that limits them, if one does.
};

/// What a cache knows of a prompt, and where and why that ends. A plain value: it pins no page.
struct lookup_result {
    std::size_t prompt_tokens = 0; ///< Tokens that were looked up.
    std::size_t cached_tokens = 0; ///< Leading tokens that are cached and can be continued.
    std::size_t common_prefix = 0; ///< Leading tokens that equal the stored ones; more than cached_tokens inside a page
                                   ///< that a codec encodes as a whole.
    match_end end = match_end::unknown;
    std::optional<token_id> differing_token = {}; ///< For `different`: the token stored at position common_prefix.
    std::size_t loaded_tokens = 0;                ///< Cached tokens that came from the tier just now.
    std::size_t pending_tokens = 0; ///< By `lookup` alone: leading tokens that will be cached, in whole pages, once the
                                    ///< leases are committed that acquire has given out.
    std::optional<std::uint32_t> limiting_group = {}; ///< With layer groups: the group that can continue no more.
    std::size_t other_groups_tokens = 0;              ///< Tokens that the other groups could continue.

    /// Shortens what is cached to what every layer group can continue. Returns the number of tokens.
    std::size_t limit(const group_limit& of) noexcept {
        limiting_group = of.group;
        other_groups_tokens = of.others;
        return cached_tokens = of.tokens;
    }

    /// Explains the result in one sentence: "37 of 52 tokens known; token 37 differs from the one stored (1189)".
    [[nodiscard]] std::string explain() const {
        std::string words =
            detail::joined({std::to_string(cached_tokens), " of ", std::to_string(prompt_tokens), " tokens known"});
        if (loaded_tokens > 0)
            words += detail::joined({", ", std::to_string(loaded_tokens), " of them from the tier"});
        if (limiting_group)
            words += detail::joined({"; layer group ", std::to_string(*limiting_group),
                                     " can continue no more, the others ", std::to_string(other_groups_tokens)});
        if (end == match_end::unknown)
            words += "; nothing is stored after them";
        if (end == match_end::different)
            words += detail::joined({"; token ", std::to_string(common_prefix), " differs from the one stored (",
                                     std::to_string(index_of(*differing_token)), ")"});
        return words;
    }
};

}} // namespace kvcache
