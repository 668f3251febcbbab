// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/any_codec.hpp>
#include <kvcache/kvcache.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>

#include "../../examples/support/perplexity.hpp"

namespace bench {

using support::quality_sum; // over windows that each start with an empty cache

/// The logits of a window, computed with a new cache. (tokens, vocabulary)
template <class Codec>
[[nodiscard]] kvcache::matrix logits_of_window(const kvcache::transformer& model, kvcache::thread_pool& threads,
                                               const Codec& codec, std::span<const kvcache::token_id> window,
                                               std::uint32_t page_tokens) {
    const kvcache::page_shape shape = model.shape(page_tokens);
    const std::size_t pages = 2 * (window.size() / page_tokens + 2);
    const std::size_t exact =
        8 * kvcache::codec::residual_page::bytes_for(shape) + 64 * 4 * kvcache::codec::residual_page::bytes_for(shape);
    auto store = kvcache::make_cache(
        {.shape = shape, .limit = {.bytes = pages * codec.open(shape).page_bytes() + exact}}, codec);
    kvcache::pipeline<decltype(store), kvcache::transformer> pipeline(store, model, threads);
    auto filled = pipeline.prefill(window, kvcache::logits_mode::all);
    if (!filled)
        throw std::runtime_error(filled.error().message);
    return std::move(filled->logits);
}

} // namespace bench
