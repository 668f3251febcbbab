// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/lru.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/index/chunking.hpp>
#include <kvcache/recompute/all_or_nothing.hpp>
#include <kvcache/recompute/blend.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/recompute/head.hpp>
#include <kvcache/recompute/none.hpp>
#include <kvcache/recompute/seam.hpp>
#include <kvcache/session/chunk_pipeline.hpp>

#include <string_view>

namespace kvcache::inline KVCACHE_ABI {

/// How a published system reuses what it has computed, as policies of a cache and options of a `chunk_pipeline`: to
/// compare systems in one program, on one model. Numbers stay exact where theirs are coded.
template <class Recompute>
struct preset {
    std::string_view name;
    std::string_view differs; ///< In what it is not theirs.
    Recompute recompute = {};
    chunk index = {};
    lru eviction = {};
    chunking split = {};
    warming warm = {};
    reuse_mode mode = reuse_mode::chunks;
};

namespace presets {

/// KVBoost with recompute off: chunks of 128, each read alone, placed as they are.
[[nodiscard]] inline preset<none> kvboost_none() {
    return {.name = "KVBoost none",
            .differs = "it repairs every prompt that has an approximate chunk",
            .index = {.least = 32}};
}

/// KVBoost's standard, selective: the last 16 tokens before every seam run again.
[[nodiscard]] inline preset<seam> kvboost_selective() {
    return {.name = "KVBoost selective",
            .differs = "it encodes those tokens without the chunks before the one they end",
            .recompute = {.rows = 16},
            .index = {.least = 32}};
}

/// KVBoost's cacheblend: the 15 % of tokens whose keys are furthest off.
[[nodiscard]] inline preset<blend> kvboost_cacheblend() {
    return {.name = "KVBoost cacheblend",
            .differs = "it runs every token in every layer to find them, and compares by cosine",
            .recompute = {.fraction = 0.15, .compares = deviation_of::keys},
            .index = {.least = 32}};
}

/// CacheBlend (Yao et al. 2025): whole documents, 15 % of their tokens by the second layer's values.
[[nodiscard]] inline preset<blend> cacheblend() {
    return {.name = "CacheBlend",
            .differs = "its kernel lets tokens that run again see later ones; see chunk_pipeline's bottom_right",
            .recompute = {.fraction = 0.15, .compares = deviation_of::values},
            .split = {.size = 0}};
}

/// EPIC's LegoLink (Hu et al. 2025): the first tokens of every document, however they lie in pages.
[[nodiscard]] inline preset<head> epic() {
    return {.name = "EPIC",
            .differs = "its link tokens are 2 to 32; here 32",
            .recompute = {.rows = 32, .page_aligned = false},
            .split = {.size = 0}};
}

/// MEPIC (2025): the first page of every document, so that all the others stay shared.
[[nodiscard]] inline preset<head> mepic() {
    return {.name = "MEPIC",
            .differs = "its pages are of 16 and 32 tokens",
            .recompute = {.rows = 16},
            .split = {.size = 0}};
}

/// quant.cpp's sessions: what a conversation's last request began with, and no more.
[[nodiscard]] inline preset<exact_prefix> quant_cpp() {
    return {.name = "quant.cpp",
            .differs = "it keeps 16 histories, one a user, and shares none; here prefixes are shared",
            .mode = reuse_mode::prefix};
}

/// DarkHal's chat sessions: all of the last prompt if the next one goes on behind it, else nothing.
[[nodiscard]] inline preset<all_or_nothing> darkhal() {
    return {.name = "DarkHal",
            .differs = "it compares words, runs the last token of an answer never, and drops what ends badly",
            .mode = reuse_mode::prefix};
}

/// llm-rag-ds-optimizer's map of prefixes.
[[nodiscard]] inline preset<exact_prefix> llmds() {
    return {.name = "llmds",
            .differs = "it knows a prefix by its first 100 tokens, and takes others with the same for it",
            .mode = reuse_mode::prefix};
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
    ask(presets::darkhal());
    ask(presets::llmds());
}

} // namespace kvcache
