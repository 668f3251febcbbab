// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/decode_state.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/sampler.hpp>

#include <chrono>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// An answer with its counts and times. The clock starts with the request and includes look-up and recomputation.
struct timed_answer {
    std::vector<token_id> ids = {};
    bool stopped = false;     ///< Ended by a stop token, not by the length limit or the caller.
    reuse_counts counts = {}; ///< Reuse of the prompt.
    double first_token = 0.0; ///< Seconds until the first token was drawn.
    double total = 0.0;       ///< Seconds until the last token was drawn.
};

/// An answer to a prompt with reused chunks, which can be continued.
template <class Cache>
struct spliced_answer : timed_answer {
    explicit spliced_answer(spliced_prompt<Cache> filled) : prompt(std::move(filled)) { counts = prompt.counts; }

    spliced_prompt<Cache> prompt;
};

/// Like `generate` of a pipeline, with the reuse that `mode` allows.
template <class Cache, class Model, class Say>
[[nodiscard]] result<spliced_answer<Cache>> generate(chunk_pipeline<Cache, Model>& pipeline,
                                                     std::span<const token_id> prompt, reuse_mode mode,
                                                     const sampler& sampling, const stop_criteria& stop, Say say) {
    const auto began = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    auto filled = pipeline.prefill(prompt, mode);
    if (!filled)
        return filled.error();
    spliced_answer<Cache> made{std::move(*filled)};
    const auto timed = [&](token_id token, std::span<const float> logits) {
        made.total = seconds();
        if (made.ids.size() == 1)
            made.first_token = made.total;
        return static_cast<bool>(say(token, logits));
    };
    const auto stopped = decode_loop(
        pipeline.exact(), made.prompt.sequence, made.prompt.logits,
        decode_state(sampling, stop, made.prompt.sequence.tokens(), pipeline.exact().max_positions()), made.ids, timed);
    if (!stopped)
        return stopped.error();
    made.stopped = *stopped;
    return made;
}

}} // namespace kvcache
