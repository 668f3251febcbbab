// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/compose.hpp>
#include <kvcache/session/engine.hpp>
#include <kvcache/session/pipeline.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace bench {

/// The effect on a running generation of a second request whose prompt is in the tier.
struct pauses {
    double longest_ms = 0.0;     ///< Longest gap between its tokens, from the request to the prompt's first token.
    double first_token_ms = 0.0; ///< Time to the first token of the prompt.
    std::size_t loaded = 0;      ///< Tokens of the prompt loaded from the tier.
};

/// Runs an engine that generates an answer, receives a request for `prompt` partway, and continues until that request
/// has its first token. With the single-threaded locking policy the tier is read within a step. Throws: runtime_error.
template <class Policy, class Locking, class Model>
pauses pauses_of(const Policy& policy, const Locking& locking, const Model& model, kvcache::thread_pool& pool,
                 std::span<const kvcache::token_id> prompt) {
    namespace kv = kvcache;
    using clock = std::chrono::steady_clock;
    const auto page = model.shape(64);
    auto cache =
        kv::make_cache({.shape = page,
                        .limit = {.bytes = (prompt.size() / 64 + 16) * kv::codec::f32{}.open(page).page_bytes()},
                        .id = model.id({1, 2})},
                       policy, locking);
    kv::pipeline pipeline(cache, model, pool, 256);
    kv::engine runs(cache, model, pipeline);
    std::vector<clock::time_point> said;
    const auto ask = [&](std::vector<kv::token_id> tokens, std::size_t most, auto hear) {
        if (!runs.submit({.prompt = std::move(tokens), .stop = {.max_tokens = most}, .on_token = hear}))
            throw std::runtime_error("a request is refused");
    };
    ask({kv::token_id{1}, kv::token_id{2}}, 1000, [&](const kv::generated_token&) {
        said.push_back(clock::now());
        return kv::token_action::go_on;
    });
    while (said.size() < 8)
        static_cast<void>(runs.step(clock::now()));
    const std::size_t before = said.size() - 1;
    const auto asked = clock::now();
    clock::time_point first = {};
    ask({prompt.begin(), prompt.end()}, 1, [&](const kv::generated_token&) {
        first = clock::now();
        return kv::token_action::go_on;
    });
    while (first == clock::time_point() || said.back() < first)
        static_cast<void>(runs.step(clock::now()));
    pauses made{.first_token_ms = std::chrono::duration<double, std::milli>(first - asked).count(),
                .loaded = kv::tier_stats_of(cache).loaded_tokens};
    for (std::size_t i = before + 1; i < said.size(); ++i)
        made.longest_ms =
            std::max(made.longest_ms, std::chrono::duration<double, std::milli>(said[i] - said[i - 1]).count());
    runs.close();
    return made;
}

} // namespace bench
