// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Drafts the continuation of a text by prompt lookup (Saxena 2023, prompt lookup decoding). Finds the latest earlier
/// occurrence of the last three tokens, else of the last two, else of the last one. Returns: the tokens after that
/// occurrence, at most `most`, as a view of the text. Cost: O(tokens).
[[nodiscard]] inline std::span<const token_id> prompt_lookup(std::span<const token_id> text, std::size_t most) {
    for (std::size_t n = std::min<std::size_t>(3, text.size()); n > 0; --n) {
        const auto tail = text.last(n);
        const auto before = text.first(text.size() - 1); // an earlier occurrence ends before the text does
        const auto found = std::find_end(before.begin(), before.end(), tail.begin(), tail.end());
        if (found != before.end()) {
            const auto at = static_cast<std::size_t>(found - before.begin()) + n;
            return text.subspan(at, std::min(most, text.size() - at));
        }
    }
    return {};
}

}} // namespace kvcache
