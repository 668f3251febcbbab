// SPDX-License-Identifier: MIT
#pragma once

// A cache without a model: its rows are a function of all tokens before them, so that every wrong row is detected.
#include <kvcache/cache/compose.hpp>
#include <kvcache/core/digest.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/matching.hpp"
#include <catch2/catch.hpp>

namespace testing_rows {

using tokens = std::vector<kvcache::token_id>;

inline constexpr kvcache::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 4, .tokens = 16};

[[nodiscard]] inline kvcache::cache_limits pages(std::size_t n) {
    return {n * kvcache::codec::f32{}.open(shape).page_bytes()};
}

inline tokens some(std::size_t count, unsigned seed) {
    std::mt19937 dice(seed);
    tokens made;
    for (; count > 0; --count)
        made.push_back(kvcache::token_id{static_cast<std::int32_t>(dice() % 50)});
    return made;
}

inline std::uint64_t past_of(std::uint64_t past, kvcache::token_id token) {
    return kvcache::mix64(past * 31 + static_cast<std::uint64_t>(kvcache::index_of(token)) + 1);
}

inline float number(std::uint64_t past, std::uint32_t layer, std::uint32_t head, std::size_t d) {
    return static_cast<float>(kvcache::mix64(past + layer * 1000 + head * 100 + d) % 4096);
}

// Whether every row of a sequence matches its prefix.
template <class Cache>
bool right(const Cache& cache, const typename Cache::sequence& of) {
    std::uint64_t past = 7;
    for (std::size_t i = 0; i < of.size(); ++i) {
        past = past_of(past, of.tokens()[i]);
        const kvcache::page_entry& entry = of.table()[i / shape.tokens];
        const auto row = static_cast<std::uint32_t>(i % shape.tokens);
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
                const kvcache::page_tile tile{kvcache::layer_id{layer}, kvcache::head_id{head},
                                              row / kvcache::tile_tokens};
                const float* keys = cache.codec().keys(cache.storage().bytes(entry.page), tile, {});
                const float* values = cache.codec().values(cache.storage().bytes(entry.page), tile, {});
                for (std::size_t d = 0; d < shape.head_dim; ++d)
                    if (keys[d * kvcache::tile_tokens + row % kvcache::tile_tokens] != number(past, layer, head, d) ||
                        values[row % kvcache::tile_tokens * kvcache::padded_head_dim(shape.head_dim) + d] !=
                            number(past, layer, head, d + 50))
                        return false;
            }
    }
    return true;
}

// Computes the tokens after the end of a sequence.
template <class Cache, class Sequence>
bool extend(Cache& cache, Sequence& sequence, std::span<const kvcache::token_id> more) {
    auto lease = cache.reserve(sequence, more.size());
    if (!lease)
        return false;
    std::uint64_t past = 7;
    for (const kvcache::token_id token : sequence.tokens())
        past = past_of(past, token);
    for (std::size_t i = 0; i < more.size(); ++i) {
        past = past_of(past, more[i]);
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
            std::vector<float> keys, values;
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                for (std::size_t d = 0; d < shape.head_dim; ++d) {
                    keys.push_back(number(past, layer, head, d));
                    values.push_back(number(past, layer, head, d + 50));
                }
            lease->write(kvcache::layer_id{layer}, i, keys, values);
        }
    }
    lease->commit(more);
    return true;
}

struct answer {
    std::size_t known = 0, loaded = 0;
    std::string words = {};
};

template <class Cache>
answer prefill(Cache& cache, const tokens& prompt) {
    auto found = kvcache_test::match_in(cache, prompt);
    const auto plan = kvcache_test::plan_of(cache, found);
    answer made{found.tokens(), found.found.loaded_tokens, found.found.explain()};
    auto sequence = kvcache_test::open_at(cache, std::move(found), plan);
    if constexpr (requires { cache.check(); })
        REQUIRE(right(cache, sequence));
    REQUIRE(extend(cache, sequence, std::span(prompt).subspan(sequence.size())));
    return made;
}

template <class... Policies>
auto made(std::size_t n, Policies... policies) {
    return kvcache::make_cache({shape, pages(n), kvcache::identity{.weights = {1, 2}}}, std::move(policies)...);
}

} // namespace testing_rows
