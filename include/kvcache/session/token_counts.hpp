// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Counts of the tokens of an answer, and the set of tokens of its prompt: the input of a sampler's penalties.
class token_counts {
public:
    /// A token, and its occurrences in the prompt and in the answer.
    struct count {
        token_id token = {};
        bool in_prompt = false;
        std::uint32_t in_answer = 0; ///< Occurrences in the answer.
    };

    /// No tokens.
    token_counts() = default;
    explicit token_counts(std::span<const token_id> prompt) {
        for (const token_id token : prompt)
            of(token).in_prompt = true;
    }

    /// Counts the next token of the answer. Cost: O(1).
    void add(token_id token) { ++of(token).in_answer; }

    /// Returns every token that occurs, once, in order of first occurrence.
    [[nodiscard]] std::span<const count> all() const noexcept { return counts_; }

private:
    [[nodiscard]] count& of(token_id token) {
        const auto [at, is_new] = places_.try_emplace(index_of(token), counts_.size());
        if (is_new)
            counts_.push_back({.token = token});
        return counts_[at->second];
    }

    std::vector<count> counts_;
    std::unordered_map<std::int32_t, std::size_t> places_;
};

}} // namespace kvcache
