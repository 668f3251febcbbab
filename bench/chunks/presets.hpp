// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/lru.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/index/chunking.hpp>
#include <kvcache/recompute/blend.hpp>
#include <kvcache/recompute/chunk_boundary.hpp>
#include <kvcache/recompute/chunk_head.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/recompute/none.hpp>
#include <kvcache/session/chunk_pipeline.hpp>

#include <string_view>

namespace bench {

/// A published system's way of reuse, as cache policies and `chunk_pipeline` options, to compare systems in one program
/// on one model. Values stay in full precision where the published system quantizes them.
template <class Recompute>
struct preset {
    std::string_view name;
    std::string_view differs; ///< How the published system differs from the preset.
    Recompute recompute = {};
    kvcache::index::chunk index = {};
    kvcache::eviction::lru eviction = {};
    kvcache::index::chunking split = {};
    kvcache::warmup_options warm = {};
    kvcache::reuse_mode mode = kvcache::reuse_mode::chunks;
};

namespace presets {

/// KVBoost with recompute off: chunks of 128 tokens, each computed alone and reused unchanged.
[[nodiscard]] inline preset<kvcache::recompute::none> kvboost_none() {
    return {.name = "KVBoost none",
            .differs = "it repairs every prompt that has an approximate chunk",
            .index = {.least = 32}};
}

/// KVBoost's default, selective: recomputes the last 16 tokens before every chunk boundary.
[[nodiscard]] inline preset<kvcache::recompute::chunk_boundary> kvboost_selective() {
    return {.name = "KVBoost selective",
            .differs = "it encodes those tokens without the chunks before the one they end",
            .recompute = {.rows = 16},
            .index = {.least = 32}};
}

/// KVBoost's cacheblend: recomputes the 15 % of tokens whose keys deviate most.
[[nodiscard]] inline preset<kvcache::recompute::blend> kvboost_cacheblend() {
    return {.name = "KVBoost cacheblend",
            .differs = "it runs every token in every layer to find them, and compares by cosine",
            .recompute = {.fraction = 0.15, .compares = kvcache::deviation_metric::keys},
            .index = {.least = 32}};
}

/// CacheBlend (Yao et al. 2025): whole documents; recomputes the 15 % of tokens whose second-layer values deviate most.
[[nodiscard]] inline preset<kvcache::recompute::blend> cacheblend() {
    return {.name = "CacheBlend",
            .differs = "its kernel lets tokens that run again see later ones; see chunk_pipeline's bottom_right",
            .recompute = {.fraction = 0.15, .compares = kvcache::deviation_metric::values},
            .split = {.size = 0}};
}

/// EPIC's LegoLink (Hu et al. 2025): recomputes the first tokens of every document, whether or not they are
/// page-aligned.
[[nodiscard]] inline preset<kvcache::recompute::chunk_head> epic() {
    return {.name = "EPIC",
            .differs = "its link tokens are 2 to 32; here 32",
            .recompute = {.rows = 32, .page_aligned = false},
            .split = {.size = 0}};
}

/// MEPIC (2025): recomputes the first page of every document, so that all other pages stay shared.
[[nodiscard]] inline preset<kvcache::recompute::chunk_head> mepic() {
    return {.name = "MEPIC",
            .differs = "its pages are of 16 and 32 tokens",
            .recompute = {.rows = 16},
            .split = {.size = 0}};
}

/// quant.cpp's sessions: reuses only an exact prefix of the conversation's last request.
[[nodiscard]] inline preset<kvcache::recompute::exact_prefix> quant_cpp() {
    return {.name = "quant.cpp",
            .differs = "it keeps 16 histories, one a user, and shares none; here prefixes are shared",
            .mode = kvcache::reuse_mode::prefix};
}

/// llm-rag-ds-optimizer's map of prefixes.
[[nodiscard]] inline preset<kvcache::recompute::exact_prefix> llmds() {
    return {.name = "llmds",
            .differs = "it knows a prefix by its first 100 tokens, and takes others with the same for it",
            .mode = kvcache::reuse_mode::prefix};
}

} // namespace presets

/// Calls `ask(preset)` for each preset.
template <class Ask>
void for_presets(Ask ask) {
    ask(presets::kvboost_none());
    ask(presets::kvboost_selective());
    ask(presets::kvboost_cacheblend());
    ask(presets::cacheblend());
    ask(presets::epic());
    ask(presets::mepic());
    ask(presets::quant_cpp());
    ask(presets::llmds());
}

} // namespace bench
