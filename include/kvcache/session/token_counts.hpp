// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// How often tokens were said in an answer, and which stood in its prompt: what the penalties of a sampler go by.
class token_counts {
public:
    struct count {
        token_id token = {};
        bool in_prompt = false;
        std::uint32_t said = 0; ///< Times in the answer.
    };

    /// Nothing was said yet.
    token_counts() = default;
    explicit token_counts(std::span<const token_id> prompt) {
        for (const token_id token : prompt)
            of(token).in_prompt = true;
    }

    /// The answer goes on with `token`. Cost: O(1).
    void say(token_id token) { ++of(token).said; }

    /// Every token that occurs, once, in the order of its first place.
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

} // namespace kvcache
