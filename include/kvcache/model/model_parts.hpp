// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/host_attention.hpp>
#include <kvcache/model/weights.hpp>

#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Parts of a model that a forward pass reads.
struct model_parts {
    const model_config& config;
    const model_weights& weights;
    std::span<const attention_kind> kinds;  ///< Of layers that attend alike; without rows.
    std::span<const attended_layer> layers; ///< By layer: its place in a cache of layer groups.
};

}} // namespace kvcache
