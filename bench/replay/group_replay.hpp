// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "requests.hpp"

namespace bench {

/// Layouts of models, with pages of 16 tokens and numbers of 16 bits, by name.
[[nodiscard]] inline const std::map<std::string, kvcache::cache_layout>& model_layouts() {
    static const std::map<std::string, kvcache::cache_layout> all{
        {"gemma-3-270m",
         {16,
          {{.layers = 3, .kv_heads = 1, .head_dim = 256},
           {.layers = 15, .kv_heads = 1, .head_dim = 256, .window = 512}}}},
        {"gpt-oss-20b",
         {16,
          {{.layers = 12, .kv_heads = 8, .head_dim = 64},
           {.layers = 12, .kv_heads = 8, .head_dim = 64, .window = 128}}}},
    };
    return all;
}

/// Sends requests through a cache of layer groups as an engine would, without a model: a prompt is opened, and its
/// other tokens are reserved and committed in batches. Eviction is least recently used. If a request does not fit, the
/// oldest one in flight is released first.
class group_replay {
public:
    struct options {
        std::size_t bytes = 0;     ///< Of pages and blocks.
        std::size_t in_flight = 1; ///< Requests that hold their blocks at a time; the oldest is released first.
        std::size_t batch = 2048;  ///< Tokens that are computed at a time.
    };
    group_replay(const kvcache::cache_layout& layout, const options& of)
        : options_(of),
          cache_(kvcache::make_cache(
              {.limit = {.bytes = of.bytes}, .merge_equal_pages = false},
              kvcache::storage::external{.copy = [](kvcache::page_id, kvcache::page_id) { return true; }},
              kvcache::layers::grouped{
                  .layout = layout,
                  .copy = [](std::size_t, std::uint32_t, std::uint32_t, std::size_t) { return true; }},
              kvcache::eviction::lru{})) {}

    /// Returns the number of prompt tokens that were reused. Throws: runtime_error if the request alone does not fit.
    std::size_t run(const block_request& request) {
        const std::span<const kvcache::token_id> tokens = request.tokens, prompt = tokens.first(request.prompt);
        if (flying_.size() == options_.in_flight)
            flying_.pop_front();
        auto to = cache_.open(prompt);
        const std::size_t reused = to.size();
        for (std::size_t at = reused; at < prompt.size();) {
            const std::size_t count = std::min(options_.batch, prompt.size() - at);
            append(to, prompt.subspan(at, count));
            at += count;
        }
        for (std::size_t i = prompt.size(); i < tokens.size(); ++i)
            append(to, tokens.subspan(i, 1));
        flying_.push_back(std::move(to));
        return reused;
    }

    [[nodiscard]] kvcache::result<void> check() const { return cache_.check(); }

private:
    using cache = kvcache::cache<kvcache::eviction::lru, kvcache::storage::external, kvcache::layers::grouped>;

    void append(cache::sequence& to, std::span<const kvcache::token_id> tokens) {
        auto rows = cache_.reserve(to, tokens.size());
        for (; !rows && !flying_.empty(); rows = cache_.reserve(to, tokens.size()))
            flying_.pop_front();
        if (!rows)
            throw std::runtime_error(rows.error().message);
        rows->commit(tokens);
    }

    options options_;
    cache cache_;
    std::deque<cache::sequence> flying_;
};

} // namespace bench
