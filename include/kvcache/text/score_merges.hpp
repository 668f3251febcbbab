// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/merge_table.hpp>
#include <kvcache/text/unicode.hpp>
#include <kvcache/text/vocabulary.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// The merges of a SentencePiece BPE model, which stores scores: two adjacent tokens merge if their text together is a
/// token, and the highest score comes first, the leftmost of equals.
template <class...>
class basic_score_merges {
public:
    /// `scores`: of each token, none of them NaN. `of_text`: whether a token may be made of text; control and byte
    /// tokens are not.
    basic_score_merges(std::span<const double> scores, std::vector<bool> of_text) : of_text_(std::move(of_text)) {
        std::vector<double> order(scores.begin(), scores.end());
        std::ranges::sort(order, std::greater<>());
        order.erase(std::unique(order.begin(), order.end()), order.end());
        ranks_.reserve(scores.size());
        for (const double score : scores) // equal scores have equal ranks
            ranks_.push_back(static_cast<std::uint32_t>(
                std::lower_bound(order.begin(), order.end(), score, std::greater<>()) - order.begin()));
    }

    /// Calls set(left, right, merge) for each way in which a token is two tokens. Requires: the tokens are UTF-8, one
    /// for each score. Cost: O(bytes of the token) for each of its characters.
    template <class Set>
    void each(const vocabulary& tokens, Set set) const {
        // SentencePiece's own limit is 16 characters; the bound keeps the cost linear in the vocabulary's bytes.
        constexpr std::size_t longest = 512;
        for (std::size_t id = 0; id < ranks_.size(); ++id) {
            const std::string_view text = *tokens.try_token(static_cast<std::int32_t>(id));
            if (!of_text_[id] || text.empty() || text.size() > longest)
                continue;
            for (std::size_t i = code_point_at(text, 0).bytes; i < text.size(); i += code_point_at(text, i).bytes) {
                const auto left = tokens.try_id(text.substr(0, i)), right = tokens.try_id(text.substr(i));
                if (left && right && of_text_[static_cast<std::size_t>(*left)] &&
                    of_text_[static_cast<std::size_t>(*right)])
                    set(*left, *right, merge{ranks_[id], static_cast<std::int32_t>(id)});
            }
        }
    }

    /// Number of merges.
    [[nodiscard]] std::size_t count(const vocabulary& tokens) const {
        std::size_t n = 0;
        each(tokens, [&](std::int32_t, std::int32_t, merge) { ++n; });
        return n;
    }

private:
    std::vector<std::uint32_t> ranks_;
    std::vector<bool> of_text_;
};
using score_merges = basic_score_merges<>;

}}} // namespace kvcache::text
