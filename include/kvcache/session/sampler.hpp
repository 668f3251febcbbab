// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/math.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
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

namespace detail {

/// Checks one row of logits, (vocabulary). Errors: malformed, if one is NaN or infinite. Cost: O(vocabulary).
KVCACHE_LAZY [[nodiscard]] inline result<void> check_finite(std::span<const float> logits) {
    if (std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
        return {};
    return error{error_code::malformed, "logits", "the model gave a logit that is not finite; its weights are damaged"};
}

} // namespace detail

/// A value to add to the logit of a token.
struct token_bias {
    token_id token = {};
    float bias = 0.0f; ///< Minus infinity bans the token.
};

/// Draws tokens from logits. The random number for token i of choice c is a function of (seed, c, i) alone, so
/// neither batching nor a cancelled draft changes the result. The order is: bias, penalties, temperature, top_k,
/// top_p of the remaining tokens, min_p. A limit that removes no token changes no draw.
struct sampler {
    float temperature = 0.0f; ///< Zero or less: greedy, always the most likely token.
    std::uint64_t seed = 0;
    std::uint64_t choice = 0;        ///< Index among several answers to one prompt.
    std::size_t top_k = 0;           ///< Keeps the k most likely tokens; ties keep the lower id. Zero keeps all.
    float top_p = 1.0f;              ///< Keeps the smallest set of most likely tokens with at least this total
                                     ///< probability (Holtzman et al. 2020).
    float min_p = 0.0f;              ///< Keeps tokens with at least this fraction of the highest probability.
    float repetition_penalty = 1.0f; ///< Divides the logits of tokens of the prompt and the answer if positive, else
                                     ///< multiplies (Keskar et al. 2019).
    float frequency_penalty = 0.0f;  ///< Subtracted from a logit for each occurrence of the token in the answer.
    float presence_penalty = 0.0f;   ///< Subtracted from a logit if the token occurs in the answer.
    std::vector<token_bias> bias = {};

    /// Checks the options. Errors: out_of_range, with the option's name.
    [[nodiscard]] result<void> check(std::size_t vocabulary) const {
        const auto refuse = [](const char* field, const char* must) {
            return error{error_code::out_of_range, field, std::string(field) + " must be " + must};
        };
        if (!std::isfinite(temperature) || temperature < 0.0f)
            return refuse("temperature", "zero or more");
        if (!(top_p > 0.0f && top_p <= 1.0f))
            return refuse("top_p", "above 0 and at most 1");
        if (!(min_p >= 0.0f && min_p <= 1.0f))
            return refuse("min_p", "from 0 to 1");
        if (!std::isfinite(repetition_penalty) || !(repetition_penalty > 0.0f))
            return refuse("repetition_penalty", "above 0");
        if (!std::isfinite(frequency_penalty))
            return refuse("frequency_penalty", "a number");
        if (!std::isfinite(presence_penalty))
            return refuse("presence_penalty", "a number");
        for (const token_bias& one : bias) {
            if (index_of(one.token) < 0 || static_cast<std::size_t>(index_of(one.token)) >= vocabulary)
                return refuse("logit_bias", "for tokens of the vocabulary");
            if (!(one.bias < std::numeric_limits<float>::infinity()))
                return refuse("logit_bias", "a number, or minus infinity");
        }
        return {};
    }

    /// Returns whether a draw depends on the tokens before it.
    [[nodiscard]] bool penalises() const noexcept {
        return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
    }

    /// Returns the token at `index` of the answer. Requires: logits is not empty. Cost: O(vocabulary).
    [[nodiscard]] token_id draw(std::span<const float> logits, std::uint64_t index) const {
        return draw(logits, index, token_counts());
    }
    /// The same, with penalties for the tokens counted in `before`.
    [[nodiscard]] token_id draw(std::span<const float> logits, std::uint64_t index, const token_counts& before) const {
        expects(!logits.empty(), "a token is drawn from logits");
        if (bias.empty() && !penalises())
            return pick(logits, index);
        std::vector<float> adjusted(logits.begin(), logits.end());
        adjust(adjusted, before);
        return pick(adjusted, index);
    }

    /// Returns the random number in [0, 1) for `index` of the answer.
    [[nodiscard]] double uniform(std::uint64_t index) const noexcept {
        const std::uint64_t bits = mix(mix(mix(seed) ^ choice) ^ index);
        return static_cast<double>(bits >> 11) * 0x1p-53;
    }

private:
    // The finalizer of splitmix64 (Steele, Lea & Flood 2014).
    [[nodiscard]] static std::uint64_t mix(std::uint64_t x) noexcept {
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    // Explicit fma: the bits do not depend on the compiler's -ffp-contract.
    void adjust(std::span<float> logits, const token_counts& before) const {
        for (const token_bias& one : bias)
            if (static_cast<std::size_t>(index_of(one.token)) < logits.size())
                logits[static_cast<std::size_t>(index_of(one.token))] += one.bias;
        if (!penalises())
            return;
        for (const auto& seen : before.all()) {
            if (static_cast<std::size_t>(index_of(seen.token)) >= logits.size())
                continue;
            float& logit = logits[static_cast<std::size_t>(index_of(seen.token))];
            logit = logit > 0.0f ? logit / repetition_penalty : logit * repetition_penalty;
            if (seen.in_answer > 0)
                logit = std::fma(-frequency_penalty, static_cast<float>(seen.in_answer), logit - presence_penalty);
        }
    }

    [[nodiscard]] token_id pick(std::span<const float> logits, std::uint64_t index) const {
        const auto top = std::max_element(logits.begin(), logits.end());
        const auto best = static_cast<std::int32_t>(top - logits.begin());
        if (!(temperature > 0.0f) || !std::isfinite(*top))
            return token_id{best};

        std::vector<float> weights(logits.size());
        const f32x16 scale = f32x16::broadcast(1.0f / temperature), largest = f32x16::broadcast(*top);
        detail::by_sixteen(logits.size(), [&](std::size_t i, std::size_t n) {
            const f32x16 x = f32x16::load_up_to(logits.data() + i, n);
            exp((x - largest) * scale).store_up_to(weights.data() + i, n);
        });
        if ((top_k > 0 && top_k < logits.size()) || top_p < 1.0f || min_p > 0.0f)
            limit(logits, weights);
        double total = 0.0;
        for (const float w : weights)
            total += static_cast<double>(w);
        const double target = uniform(index) * total;
        double below = 0.0; // compared with the target, not subtracted from it: nothing to contract
        for (std::size_t i = 0; i < weights.size(); ++i) {
            below += static_cast<double>(weights[i]);
            if (target < below)
                return token_id{static_cast<std::int32_t>(i)};
        }
        return token_id{best};
    }

    // Sets the weights of the tokens that the limits remove to zero. The most likely token always stays.
    void limit(std::span<const float> logits, std::span<float> weights) const {
        std::vector<std::uint32_t> kept(logits.size());
        std::iota(kept.begin(), kept.end(), 0u);
        const auto likelier = [&](std::uint32_t a, std::uint32_t b) {
            return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
        };
        if (top_k > 0 && top_k < kept.size()) {
            std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(top_k) - 1, kept.end(), likelier);
            kept.resize(top_k);
            ranges::sort(kept);
        }
        if (top_p < 1.0f) {
            double total = 0.0;
            for (const std::uint32_t i : kept)
                total += static_cast<double>(weights[i]);
            const double enough = static_cast<double>(top_p) * total;
            const auto later = [&](std::uint32_t a, std::uint32_t b) { return likelier(b, a); };
            ranges::make_heap(kept, later);
            auto end = kept.end();
            for (double share = 0.0; end != kept.begin() && share < enough;) {
                std::pop_heap(kept.begin(), end--, later);
                share += static_cast<double>(weights[*end]);
            }
            kept.erase(kept.begin(), end);
        }
        std::vector<float> cut(weights.size(), 0.0f);
        for (const std::uint32_t i : kept)
            if (weights[i] >= min_p) // the most likely token has weight 1
                cut[i] = weights[i];
        ranges::copy(cut, weights.begin());
    }
};

}} // namespace kvcache
