// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <optional>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Sizes of a model's recurrent layers. recurrent_mixer.hpp has the formulas.
struct recurrence_config {
    /// Channels of a convolution whose states and weights are stored together.
    static constexpr std::size_t block_channels = 64;

    std::size_t taps = 0; ///< Tokens that a convolution reads, the newest included.
    // Of Mamba-2 key heads are groups, keys are B and C, and value heads are heads.
    std::size_t key_heads = 0, value_heads = 0;
    std::size_t key_dim = 0, value_dim = 0;
    bool biased = false;       ///< The convolution has biases.
    bool joined_heads = false; ///< Files have the rows of q, k, v and gate of each key head together.
    bool joined_rates = false; ///< And those of beta and decay.
    bool tiled = false;        ///< Value head i reads key head i % key_heads; else i / (value_heads / key_heads).

    friend bool operator==(const recurrence_config&, const recurrence_config&) = default;
};

/// What one layer does that others of its model do not.
struct layer_config {
    std::size_t window = 0; ///< Tokens that a query reads, its own included; 0: all.
    bool rotates = true;    ///< Queries and keys have RoPE.
    bool experts = false;   ///< Its MLP is a mixture of experts.
    bool recurrent = false; ///< It has model_config::mixer for attention.
    // Sizes of its own; 0: the model's.
    std::size_t head_dim = 0;
    std::size_t kv_heads = 0;
    std::size_t intermediate_size = 0;
    bool keys_are_values = false;                    ///< Values are the projected keys, before RoPE and the keys' norm.
    std::optional<std::size_t> reads = std::nullopt; ///< An earlier layer, whose keys and values it reads.

    friend bool operator==(const layer_config&, const layer_config&) = default;
};

/// A mixture of experts: MLPs of which each token uses those with the highest scores of a router.
struct expert_config {
    std::size_t count = 0;     ///< Experts of a layer; 0: no layer has any.
    std::size_t used = 0;      ///< Experts that a token uses.
    std::size_t size = 0;      ///< Intermediate size of an expert.
    std::size_t shared = 0;    ///< Intermediate size of an expert that every token uses; 0: none.
    bool scored_shared = true; ///< What that one gives is multiplied by sigmoid of a score.
    bool biased = false;       ///< Experts and their router have biases.
    bool normalized = false;   ///< The shares of a token's experts sum to 1; else they are those of all experts.

    friend bool operator==(const expert_config&, const expert_config&) = default;
};

}} // namespace kvcache
