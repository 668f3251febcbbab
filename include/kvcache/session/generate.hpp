// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache {

/// When an answer ends.
struct stopping {
    std::size_t max_tokens = 256;    ///< Or as many as the model has positions for.
    std::vector<token_id> stop = {}; ///< Ends the answer, and is its last token.
};

/// An answer and what it took. The last token of `ids` has no keys yet: it was said, and never run.
template <class Cache>
struct answer {
    fed<Cache> prompt;
    std::vector<token_id> ids = {};
    bool stopped = false; ///< By a stop token, not by the length or the caller.
};

/// Says tokens one by one behind a sequence whose last logits are `next`, (1, vocabulary), and adds them to `ids`,
/// which is empty: each is drawn, handed to `say`, and run, unless it is the last. Returns whether a stop token ended
/// them. Errors: as generate.
template <class Cache, class Model, class Say>
[[nodiscard]] result<bool> say_on(pipeline<Cache, Model>& through, typename Cache::sequence& behind, matrix next,
                                  const sampler& draw, const stopping& until, std::vector<token_id>& ids, Say say) {
    // The last token is said and not run, so it needs no position.
    const std::size_t most = std::min(until.max_tokens, through.max_positions() - behind.size() + 1);
    token_counts counts;
    if (draw.penalises())
        counts = token_counts(behind.tokens());
    bool stopped = false;
    while (ids.size() < most) {
        const auto logits = row_of(std::as_const(next), 0);
        if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }))
            return error{error_code::malformed, "logits",
                         "the model gave a logit that is no finite number; its weights are damaged"};
        const token_id token = draw.draw(logits, ids.size(), counts);
        if (draw.penalises())
            counts.say(token);
        ids.push_back(token);
        const bool go_on = say(token, logits);
        stopped = std::ranges::find(until.stop, token) != until.stop.end();
        if (stopped || !go_on || ids.size() == most)
            break;
        if (auto ran = through.extend(behind, {&ids.back(), 1}, logits_of::last, next); !ran)
            return ran.error();
    }
    return stopped;
}

/// Says tokens one by one behind a prompt that has run: each is drawn, handed to `say`, and run, unless it is the last.
/// `say(token, logits)` is given the logits it was drawn from, (vocabulary), and returns whether to go on. Errors:
/// those of pipeline::extend; an error after some tokens were said (no page left) is returned too.
/// Requires: the sequence holds the whole prompt, and the last row of its logits is the one behind it.
template <class Cache, class Model, class Say>
[[nodiscard]] result<answer<Cache>> generate(pipeline<Cache, Model>& through, fed<Cache> begun, const sampler& draw,
                                             const stopping& until, Say say) {
    answer<Cache> made{std::move(begun)};
    const auto said =
        say_on(through, made.prompt.sequence, made.prompt.logits.bottomRows(1), draw, until, made.ids, std::move(say));
    if (!said)
        return said.error();
    made.stopped = *said;
    return made;
}

/// Runs a prompt on top of what the cache knows of it, and answers it as above. Errors: also those of pipeline::feed.
template <class Cache, class Model, class Say>
[[nodiscard]] result<answer<Cache>> generate(pipeline<Cache, Model>& through, std::span<const token_id> prompt,
                                             const sampler& draw, const stopping& until, Say say,
                                             logits_of wanted = logits_of::last) {
    auto begun = through.feed(prompt, wanted == logits_of::none ? logits_of::last : wanted);
    if (!begun)
        return begun.error();
    return generate(through, std::move(*begun), draw, until, std::move(say));
}

} // namespace kvcache
