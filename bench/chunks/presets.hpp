// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/lru.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/index/chunking.hpp>
#include <kvcache/recompute/blend.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/recompute/head.hpp>
#include <kvcache/recompute/none.hpp>
#include <kvcache/recompute/seam.hpp>
#include <kvcache/session/chunk_pipeline.hpp>

#include <string_view>

namespace bench {

/// How a published system reuses what it has computed, as policies of a cache and options of a `chunk_pipeline`: to
/// compare systems in one program, on one model. Numbers stay exact where theirs are coded.
template <class Recompute>
struct preset {
    std::string_view name;
    std::string_view differs; ///< In what it is not theirs.
    Recompute recompute = {};
    kvcache::chunk index = {};
    kvcache::lru eviction = {};
    kvcache::chunking split = {};
    kvcache::warming warm = {};
    kvcache::reuse_mode mode = kvcache::reuse_mode::chunks;
};

namespace presets {

/// KVBoost with recompute off: chunks of 128, each read alone, placed as they are.
[[nodiscard]] inline preset<kvcache::none> kvboost_none() {
    return {.name = "KVBoost none",
            .differs = "it repairs every prompt that has an approximate chunk",
            .index = {.least = 32}};
}

/// KVBoost's standard, selective: the last 16 tokens before every seam run again.
[[nodiscard]] inline preset<kvcache::seam> kvboost_selective() {
    return {.name = "KVBoost selective",
            .differs = "it encodes those tokens without the chunks before the one they end",
            .recompute = {.rows = 16},
            .index = {.least = 32}};
}

/// KVBoost's cacheblend: the 15 % of tokens whose keys are furthest off.
[[nodiscard]] inline preset<kvcache::blend> kvboost_cacheblend() {
    return {.name = "KVBoost cacheblend",
            .differs = "it runs every token in every layer to find them, and compares by cosine",
            .recompute = {.fraction = 0.15, .compares = kvcache::deviation_of::keys},
            .index = {.least = 32}};
}

/// CacheBlend (Yao et al. 2025): whole documents, 15 % of their tokens by the second layer's values.
[[nodiscard]] inline preset<kvcache::blend> cacheblend() {
    return {.name = "CacheBlend",
            .differs = "its kernel lets tokens that run again see later ones; see chunk_pipeline's bottom_right",
            .recompute = {.fraction = 0.15, .compares = kvcache::deviation_of::values},
            .split = {.size = 0}};
}

/// EPIC's LegoLink (Hu et al. 2025): the first tokens of every document, however they lie in pages.
[[nodiscard]] inline preset<kvcache::head> epic() {
    return {.name = "EPIC",
            .differs = "its link tokens are 2 to 32; here 32",
            .recompute = {.rows = 32, .page_aligned = false},
            .split = {.size = 0}};
}

/// MEPIC (2025): the first page of every document, so that all the others stay shared.
[[nodiscard]] inline preset<kvcache::head> mepic() {
    return {.name = "MEPIC",
            .differs = "its pages are of 16 and 32 tokens",
            .recompute = {.rows = 16},
            .split = {.size = 0}};
}

/// quant.cpp's sessions: what a conversation's last request began with, and no more.
[[nodiscard]] inline preset<kvcache::exact_prefix> quant_cpp() {
    return {.name = "quant.cpp",
            .differs = "it keeps 16 histories, one a user, and shares none; here prefixes are shared",
            .mode = kvcache::reuse_mode::prefix};
}

/// llm-rag-ds-optimizer's map of prefixes.
[[nodiscard]] inline preset<kvcache::exact_prefix> llmds() {
    return {.name = "llmds",
            .differs = "it knows a prefix by its first 100 tokens, and takes others with the same for it",
            .mode = kvcache::reuse_mode::prefix};
}

} // namespace presets

/// Calls `ask(preset)` for each of them.
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
