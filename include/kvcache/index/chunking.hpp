// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A run of consecutive tokens of a text.
struct token_run {
    std::size_t first = 0;
    std::size_t count = 0;

    friend bool operator==(const token_run&, const token_run&) = default;
};

/// The rule that splits a text into chunks: before every document marker, then after `size` tokens, or after the
/// nearest token that ends a sentence if one is within `window`.
struct chunking {
    std::size_t size = 128; ///< Tokens of a chunk; zero for whole documents.
    std::size_t least = 32; ///< Minimum tokens of a chunk that is cut at the end of a sentence.
    std::size_t window = 0; ///< Distance from `size` searched for the end of a sentence; at most half of `size`.
    std::vector<token_id> ends = {};   ///< Tokens that end a sentence: those of ". \n ; ? !". Sorted.
    std::vector<token_id> marker = {}; ///< Tokens that begin a document; empty for none.

    /// Returns the chunks, which are contiguous and cover the text. Cost: O(n log ends).
    [[nodiscard]] std::vector<token_run> split(std::span<const token_id> text) const {
        expects(ranges::is_sorted(ends), "the tokens that end a sentence are sorted");
        std::vector<token_run> chunks;
        for (std::size_t first = 0, behind; first < text.size(); first = behind) {
            behind = next_document(text, first);
            cut(text, first, behind, chunks);
        }
        return chunks;
    }

private:
    // The start of the next document, or the end of the text.
    [[nodiscard]] std::size_t next_document(std::span<const token_id> text, std::size_t first) const {
        if (marker.empty())
            return text.size();
        const auto rest = text.subspan(first + 1);
        return first + 1 +
               static_cast<std::size_t>(std::search(rest.begin(), rest.end(), marker.begin(), marker.end()) -
                                        rest.begin());
    }

    void cut(std::span<const token_id> text, std::size_t first, std::size_t last, std::vector<token_run>& to) const {
        while (size > 0 && last - first > size) {
            const std::size_t behind = sentence_end(text, first, last);
            to.push_back({first, behind - first});
            first = behind;
        }
        if (first < last) // the last cut was not the end
            to.push_back({first, last - first});
    }

    // The position after the sentence-ending token nearest to first + size, the earlier of two; first + size if none is
    // near.
    [[nodiscard]] std::size_t sentence_end(std::span<const token_id> text, std::size_t first, std::size_t last) const {
        const std::size_t target = first + size, near = std::min(window, size / 2);
        const auto ends_one = [&](std::size_t behind) {
            return behind >= first + std::max<std::size_t>(1, least) && behind <= last &&
                   ranges::binary_search(ends, text[behind - 1]);
        };
        for (std::size_t off = 0; off <= near; ++off) {
            if (ends_one(target - off))
                return target - off;
            if (ends_one(target + off))
                return target + off;
        }
        return target;
    }
};

}}} // namespace kvcache::index
