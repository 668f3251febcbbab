// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/decode_state.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// An answer and the sequence that holds it. The last token of `ids` was drawn but never run, so it has no keys and
/// values.
template <class Cache>
struct answer {
    prefill_result<Cache> prompt;
    std::vector<token_id> ids = {};
    bool stopped = false; ///< Ended by a stop token, not by the length limit or the caller.
};

/// Decodes an answer token by token after a sequence whose last logits are `next`, (1, vocabulary). Each token is
/// drawn, added to `ids`, passed to `say`, and run, unless it is the last. `under_way` is the state after the prompt.
/// Returns whether a stop token ended the answer. Errors: those of generate. Requires: `ids` is empty.
template <class Cache, class Model, class Say>
[[nodiscard]] result<bool> decode_loop(pipeline<Cache, Model>& pipeline, typename Cache::sequence& behind, matrix next,
                                       decode_state under_way, std::vector<token_id>& ids, Say say) {
    while (!under_way.over()) {
        const auto logits = row_of(std::as_const(next), 0);
        const auto token = under_way.next(logits);
        if (!token)
            return token.error();
        ids.push_back(*token);
        if (!say(*token, logits) || under_way.over())
            break;
        const batch_entry<Cache> one{&behind, {&ids.back(), 1}, logits_mode::last};
        if (auto ran = pipeline.extend(std::span(&one, 1), next); !ran)
            return ran.error();
    }
    return under_way.stopped();
}

/// Decodes an answer token by token after a prompt that has run. Each token is drawn, passed to `say`, and run,
/// unless it is the last. `say(token, logits)` receives the logits the token was drawn from, (vocabulary), and
/// returns whether to continue. Errors: those of pipeline::extend, also after some tokens were drawn (no free page).
/// Requires: the sequence holds the whole prompt, and the last row of its logits is that of the last prompt token.
template <class Cache, class Model, class Say>
[[nodiscard]] result<answer<Cache>> generate(pipeline<Cache, Model>& pipeline, prefill_result<Cache> begun,
                                             const sampler& sampling, const stop_criteria& stop, Say say) {
    answer<Cache> made{std::move(begun)};
    auto& prompt = made.prompt;
    const auto stopped = decode_loop(pipeline, prompt.sequence, prompt.logits.bottomRows(1),
                                     decode_state(sampling, stop, prompt.sequence.tokens(), pipeline.max_positions()),
                                     made.ids, std::move(say));
    if (!stopped)
        return stopped.error();
    made.stopped = *stopped;
    return made;
}

/// Runs a prompt on top of its cached prefix, and decodes an answer as above. Errors: also those of
/// pipeline::prefill.
template <class Cache, class Model, class Say>
[[nodiscard]] result<answer<Cache>> generate(pipeline<Cache, Model>& pipeline, std::span<const token_id> prompt,
                                             const sampler& sampling, const stop_criteria& stop, Say say,
                                             logits_mode wanted = logits_mode::last) {
    auto begun = pipeline.prefill(prompt, wanted == logits_mode::none ? logits_mode::last : wanted);
    if (!begun)
        return begun.error();
    return generate(pipeline, std::move(*begun), sampling, stop, std::move(say));
}

}} // namespace kvcache
