// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/session/sampler.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Conditions that end an answer.
struct stop_criteria {
    std::size_t max_tokens = 256;           ///< Maximum tokens; the positions of the model are a further limit.
    std::vector<token_id> stop_tokens = {}; ///< Each ends the answer, and is its last token.
};

/// Draws the tokens of an answer and detects its end. The caller runs each token but the last. Requires: `sampling` and
/// `stop` outlive it.
class decode_state {
public:
    /// Of a prompt for which the model has `positions` positions in all.
    decode_state(const sampler& sampling, const stop_criteria& stop, std::span<const token_id> prompt,
                 std::size_t positions)
        : sampling_(sampling), stop_(stop), most_(std::min(stop.max_tokens, positions - prompt.size() + 1)) {
        if (sampling.penalises())
            counts_ = token_counts(prompt);
    }
    /// Of an answer under way, of which `drawn` tokens were drawn before: the next draw is the one that would have
    /// followed. They do not count towards the maximum, and are tokens of the prompt for penalties.
    decode_state(const sampler& sampling, const stop_criteria& stop, std::span<const token_id> prompt,
                 std::size_t positions, std::uint64_t drawn)
        : decode_state(sampling, stop, prompt, positions) {
        before_ = drawn;
    }

    /// Returns whether no further token is to be drawn.
    [[nodiscard]] bool over() const noexcept { return stopped_ || drawn_ >= most_; }
    /// Returns whether a stop token ended the answer.
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }

    /// Draws the next token from the logits of the token before it, (vocabulary). Requires: !over(). Errors:
    /// malformed for a logit that is not finite. Cost: O(vocabulary).
    KVCACHE_LAZY [[nodiscard]] result<token_id> next(std::span<const float> logits) {
        if (auto finite = detail::check_finite(logits); !finite)
            return finite.error();
        const token_id token = sampling_.draw(logits, before_ + drawn_++, counts_);
        if (sampling_.penalises())
            counts_.add(token);
        stopped_ = ranges::find(stop_.stop_tokens, token) != stop_.stop_tokens.end();
        return token;
    }

private:
    const sampler& sampling_;
    const stop_criteria& stop_;
    std::size_t most_;
    std::size_t drawn_ = 0;
    std::uint64_t before_ = 0; // draws of the same answer before these
    bool stopped_ = false;
    token_counts counts_;
};

}} // namespace kvcache
