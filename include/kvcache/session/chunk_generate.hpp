// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/sampler.hpp>

#include <chrono>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// An answer and what it took: one clock, from the request in, look-up and repair included.
struct timed_answer {
    std::vector<token_id> ids = {};
    bool stopped = false;     ///< By a stop token, not by the length or the caller.
    reuse_counts counts = {}; ///< Of the prompt.
    double first_token = 0.0; ///< Seconds until the first token was drawn.
    double total = 0.0;       ///< Seconds until the last was.
};

/// An answer to a prompt that reused chunks, to be continued.
template <class Cache>
struct woven_answer : timed_answer {
    explicit woven_answer(woven_prompt<Cache> fed) : prompt(std::move(fed)) { counts = prompt.counts; }

    woven_prompt<Cache> prompt;
};

/// As the other `generate`, with what `mode` lets the prompt reuse.
template <class Cache, class Model, class Say>
[[nodiscard]] result<woven_answer<Cache>> generate(chunk_pipeline<Cache, Model>& through,
                                                   std::span<const token_id> prompt, reuse_mode mode,
                                                   const sampler& draw, const stopping& until, Say say) {
    const auto began = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    auto fed = through.feed(prompt, mode);
    if (!fed)
        return fed.error();
    woven_answer<Cache> made{std::move(*fed)};
    const auto timed = [&](token_id token, std::span<const float> logits) {
        made.total = seconds();
        if (made.ids.size() == 1)
            made.first_token = made.total;
        return static_cast<bool>(say(token, logits));
    };
    const auto said = say_on(through.exact(), made.prompt.sequence, made.prompt.logits, draw, until, made.ids, timed);
    if (!said)
        return said.error();
    made.stopped = *said;
    return made;
}

} // namespace kvcache
