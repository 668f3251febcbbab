// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/model/config.hpp>

#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The heads in a row of what a block projects: queries, gates of the output if there are any, keys, and values.
struct projected_heads {
    std::size_t dim = 0;  ///< Numbers of a head.
    std::size_t q = 0;    ///< Of all queries.
    std::size_t kv = 0;   ///< Of all keys, and of all values.
    std::size_t keys = 0; ///< Where the keys begin.

    [[nodiscard]] static projected_heads of(const model_config& model, std::size_t dim, std::size_t kv_heads) {
        return {dim, model.heads * dim, kv_heads * dim, (model.gated_attention ? 2 : 1) * model.heads * dim};
    }
    /// Room for the heads of any layer.
    [[nodiscard]] static projected_heads widest(const model_config& model) {
        return of(model, model.largest(&layer_config::head_dim), model.largest(&layer_config::kv_heads));
    }
};

/// RMS-normalizes heads in place, each over its own numbers. (heads, weight.size())
inline void norm_heads(std::span<float> heads, std::span<const float> weight, float eps) {
    for (std::size_t at = 0; at < heads.size(); at += weight.size()) {
        const auto head = heads.subspan(at, weight.size());
        rms_norm(head, weight, eps, head);
    }
}

}} // namespace kvcache
