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
#include <vector>

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
        // 32 heads of 128 x 128 numbers of 32 bits, and 3 columns of 8,192 numbers for the convolution, in each layer.
        {"qwen3.5-9b",
         {16,
          {{.layers = 8, .kv_heads = 4, .head_dim = 256},
           {.layers = 24, .state_bytes = 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)}}}},
        // Gemma 3 270M in a cache without groups: every layer keeps all tokens of a page, or the page is dropped.
        {"gemma-3-270m uniform", {16, {{.layers = 18, .kv_heads = 1, .head_dim = 256}}}},
    };
    return all;
}

/// Sends requests through a cache of layer groups as an engine would, without a model: a prompt is opened, and its
/// other tokens are reserved and committed in batches, which end where a recurrent state is to be kept. Eviction is
/// least recently used. If a request or a state does not fit, the oldest request in flight is released first.
class group_replay {
public:
    struct options {
        std::size_t bytes = 0;     ///< Of pages and blocks.
        std::size_t in_flight = 1; ///< Requests that hold their blocks at a time; the oldest is released first.
        std::size_t batch = 2048;  ///< Tokens that are computed at a time.
        bool keep_released = true; ///< As layers::grouped has it.
        kvcache::snapshot_places snapshots = {}; ///< Where prompts leave snapshots of recurrent states.
        bool merge_equal_pages = true;           ///< As cache_config has it.
    };
    group_replay(const kvcache::cache_layout& layout, const options& of)
        : options_(of),
          cache_(kvcache::make_cache(
              {.limit = {.bytes = of.bytes}, .merge_equal_pages = of.merge_equal_pages},
              kvcache::storage::external{.copy = [](kvcache::page_id, kvcache::page_id) { return true; },
                                         .on_move = [](const kvcache::moved_entry&) {}},
              kvcache::layers::grouped{
                  .layout = layout,
                  .keep_released = of.keep_released,
                  .copy = [](std::size_t, std::uint32_t, std::uint32_t, std::size_t) { return true; }},
              kvcache::eviction::lru{})) {
        for (std::size_t group = 0; group < layout.groups.size(); ++group)
            if (layout.groups[group].kind() == kvcache::group_kind::state)
                states_.push_back(group);
        page_tokens_ = layout.tokens;
    }

    /// Returns the number of prompt tokens that were reused. Throws: runtime_error if the request alone does not fit.
    std::size_t run(const block_request& request) {
        const std::span<const kvcache::token_id> tokens = request.tokens, prompt = tokens.first(request.prompt);
        if (flying_.size() == options_.in_flight)
            flying_.pop_front();
        const auto places =
            states_.empty() ? std::vector<std::size_t>() : options_.snapshots.of(cache_.lookup(prompt), page_tokens_);
        auto to = cache_.open(prompt);
        const std::size_t reused = to.size();
        auto place = places.begin();
        for (std::size_t at = reused; at < prompt.size();) {
            const bool kept = place != places.end() && *place - at <= options_.batch;
            const std::size_t count = kept ? *place++ - at : std::min(options_.batch, prompt.size() - at);
            append(to, prompt.subspan(at, count), kept);
            at += count;
        }
        for (std::size_t i = prompt.size(); i < tokens.size(); ++i)
            append(to, tokens.subspan(i, 1), false);
        flying_.push_back(std::move(to));
        return reused;
    }

    /// What each group of the layout holds.
    [[nodiscard]] std::vector<kvcache::layer_group_stats> groups() const { return cache_.group_stats(); }
    /// Snapshots for which there was no room.
    [[nodiscard]] std::size_t refused() const { return refused_; }

    [[nodiscard]] kvcache::result<void> check() const { return cache_.check(); }

private:
    using cache = kvcache::cache<kvcache::eviction::lru, kvcache::storage::external, kvcache::layers::grouped>;

    // `keep`: leaves snapshots after the last token.
    void append(cache::sequence& to, std::span<const kvcache::token_id> tokens, bool keep) {
        const std::size_t end = to.size() + tokens.size();
        auto rows = cache_.reserve(to, tokens.size());
        for (; !rows && !flying_.empty(); rows = cache_.reserve(to, tokens.size()))
            flying_.pop_front();
        if (!rows)
            throw std::runtime_error(rows.error().message);
        for (std::size_t i = 0; keep && i < states_.size(); ++i) {
            bool taken = rows->snapshot(states_[i], end).has_value();
            for (; !taken && !flying_.empty(); taken = rows->snapshot(states_[i], end).has_value())
                flying_.pop_front();
            refused_ += taken ? 0 : 1;
        }
        rows->commit(tokens);
    }

    options options_;
    cache cache_;
    std::size_t page_tokens_ = 0;
    std::vector<std::size_t> states_;
    std::size_t refused_ = 0;
    std::deque<cache::sequence> flying_;
};

} // namespace bench
