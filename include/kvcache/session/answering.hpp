// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/session/token_counts.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// When an answer ends.
struct stopping {
    std::size_t max_tokens = 256;    ///< Or as many as the model has positions for.
    std::vector<token_id> stop = {}; ///< Ends the answer, and is its last token.
};

/// Draws an answer's tokens, and knows when it ends. The caller runs each token but the last, which has no keys.
/// Requires: `draw` and `until` outlive it.
class answering {
public:
    /// Of a prompt for which the model has `positions` positions in all.
    answering(const sampler& draw, const stopping& until, std::span<const token_id> prompt, std::size_t positions)
        : draw_(draw), until_(until), most_(std::min(until.max_tokens, positions - prompt.size() + 1)) {
        if (draw.penalises())
            counts_ = token_counts(prompt);
    }

    /// Whether no further token is drawn.
    [[nodiscard]] bool over() const noexcept { return stopped_ || drawn_ >= most_; }
    /// Whether a stop token ended it.
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }

    /// The next token, from the logits of the one before it, (vocabulary). Requires: !over().
    /// Errors: malformed, for a logit that is no finite number. Cost: O(vocabulary).
    KVCACHE_LAZY [[nodiscard]] result<token_id> next(std::span<const float> logits) {
        if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }))
            return error{error_code::malformed, "logits",
                         "the model gave a logit that is no finite number; its weights are damaged"};
        const token_id token = draw_.draw(logits, drawn_++, counts_);
        if (draw_.penalises())
            counts_.say(token);
        stopped_ = std::ranges::find(until_.stop, token) != until_.stop.end();
        return token;
    }

private:
    const sampler& draw_;
    const stopping& until_;
    std::size_t most_;
    std::size_t drawn_ = 0;
    bool stopped_ = false;
    token_counts counts_;
};

} // namespace kvcache
