// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/answering.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

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
    answering under_way(draw, until, behind.tokens(), through.max_positions());
    while (!under_way.over()) {
        const auto logits = row_of(std::as_const(next), 0);
        const auto token = under_way.next(logits);
        if (!token)
            return token.error();
        ids.push_back(*token);
        if (!say(*token, logits) || under_way.over())
            break;
        if (auto ran = through.extend(behind, {&ids.back(), 1}, logits_of::last, next); !ran)
            return ran.error();
    }
    return under_way.stopped();
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
