// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/platform/number_text.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/forward_pass.hpp>
#include <kvcache/model/weights.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Returns the RoPE of a configuration, with its scaling applied to the frequencies (formulas at rope_config).
/// Requires: the configuration is checked.
[[nodiscard]] inline rope make_rope(const rope_config& config, std::size_t head_dim) {
    constexpr double two_pi = 6.283185307179586;
    std::vector<double> frequencies = rope::standard_frequencies(head_dim, config.theta);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        double& f = frequencies[i];
        switch (config.scaling) {
        case rope_config::kind::none:
            break;
        case rope_config::kind::linear:
            f /= config.factor;
            break;
        case rope_config::kind::llama3: {
            const double turns = config.original_max_positions * f / two_pi; // over the original context
            if (turns < config.low_freq_factor) {
                f /= config.factor;
            } else if (turns <= config.high_freq_factor) {
                const double span = config.high_freq_factor - config.low_freq_factor;
                const double s = (turns - config.low_freq_factor) / span;
                f = std::fma(1.0 - s, f / config.factor, s * f);
            }
            break;
        }
        case rope_config::kind::factors:
            f /= static_cast<double>(config.factors[i]);
            break;
        }
    }
    return rope(std::move(frequencies));
}

/// Reference transformer: a Llama-family decoder in which every reduction has one fixed order (the numeric contract),
/// so that a token's logits depend only on its own past. Immutable; any number of forward passes may share it.
class transformer {
public:
    transformer(model_config config, model_weights weights)
        : config_(std::move(config)), weights_(std::move(weights)), rope_(make_rope(config_.rope, config_.head_dim)) {
        for (std::size_t i = 0; i < config_.layers; ++i)
            layers_.push_back(layer_id{static_cast<std::uint32_t>(i)});
    }

    [[nodiscard]] const model_config& config() const noexcept { return config_; }
    [[nodiscard]] std::span<const layer_id> layers() const noexcept { return layers_; }
    [[nodiscard]] std::size_t vocabulary() const noexcept { return config_.vocabulary; }

    /// Context length of the training; a pipeline rejects longer contexts.
    [[nodiscard]] std::size_t max_positions() const noexcept { return config_.max_positions; }

    /// Shape of the pages of this model, `tokens` positions each.
    [[nodiscard]] page_shape shape(std::uint32_t tokens) const {
        return {static_cast<std::uint32_t>(config_.layers), static_cast<std::uint32_t>(config_.kv_heads),
                static_cast<std::uint32_t>(config_.head_dim), tokens};
    }

    /// Returns whether keys rotated for one position can be moved to another, which needs RoPE to be a pure rotation.
    /// Errors: unsupported, with the reason.
    [[nodiscard]] result<void> keys_can_move() const {
        switch (config_.rope.scaling) {
        case rope_config::kind::none:
        case rope_config::kind::linear:
        case rope_config::kind::llama3:
        case rope_config::kind::factors:
            return {};
        }
        return error{error_code::unsupported, "rope.scaling",
                     "this scaling of RoPE is not known to be a pure rotation"};
    }
    /// RoPE of its queries and keys.
    [[nodiscard]] const rope& rotation() const noexcept { return rope_; }

    /// Bytes of the weights that every token reads: all matrices but the embedding.
    [[nodiscard]] std::size_t weight_bytes() const {
        std::size_t bytes = weights_.head.bytes();
        for (const block_weights& layer : weights_.layers)
            for (const linear* map : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
                bytes += map->bytes();
        return bytes;
    }

    /// Identity of this model's pages; `weights` is the digest of its checkpoint.
    [[nodiscard]] identity id(digest weights) const {
        return {.weights = weights,
                .config = canonical_config(),
                .rope = canonical_rope(),
                .weight_format = weights_.format()};
    }

    /// Returns the model in int8 (linear::in_int8), a different and coarser model with pages of its own: numbers become
    /// Q8_0, half the size of BF16; quantised blocks stay; activations are rounded. Cost: reads every weight that is
    /// not in blocks once, with all threads.
    [[nodiscard]] transformer in_int8(thread_pool& threads) const { return {config_, weights_.in_int8(threads)}; }

    /// Returns forward passes over rows in leases of this type. Requires: this and the threads outlive it.
    template <class Lease>
    [[nodiscard]] forward_pass<Lease> make_forward_pass(thread_pool& threads) const {
        return forward_pass<Lease>({config_, weights_, attention()}, threads);
    }

    /// The same with a custom attention.
    template <class Lease, class Attention>
    [[nodiscard]] forward_pass<Lease, Attention> make_forward_pass(thread_pool& threads, Attention attended) const {
        return {{config_, weights_, attention()}, threads, std::move(attended)};
    }

private:
    [[nodiscard]] attention_shape attention() const {
        return {.heads = static_cast<std::uint32_t>(config_.heads),
                .kv_heads = static_cast<std::uint32_t>(config_.kv_heads),
                .head_dim = static_cast<std::uint32_t>(config_.head_dim),
                .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                .rotation = &rope_};
    }

    [[nodiscard]] std::string canonical_config() const {
        std::string text = config_.architecture;
        for (const std::size_t extent : {config_.hidden_size, config_.intermediate_size, config_.layers, config_.heads,
                                         config_.kv_heads, config_.head_dim, config_.vocabulary})
            text += ' ' + std::to_string(extent);
        for (const bool flag :
             {config_.tied_head, config_.qkv_bias, config_.output_bias, config_.mlp_bias, config_.qk_norm})
            text += flag ? " 1" : " 0";
        return text + ' ' + std::to_string(bit_cast<std::uint32_t>(config_.rms_norm_eps));
    }

    // The words are for people; the digest of the frequencies is decisive.
    [[nodiscard]] std::string canonical_rope() const {
        static constexpr const char* kinds[] = {"none", "linear", "llama3", "factors"};
        digest_builder numbers;
        for (const double f : rope_.frequencies())
            numbers.number(bit_cast<std::uint64_t>(f));
        return "theta " + shortest_text(config_.rope.theta) + ", scaling " +
               kinds[static_cast<std::size_t>(config_.rope.scaling)] + ", frequencies " + to_string(numbers.finish());
    }

    model_config config_;
    model_weights weights_;
    rope rope_;
    std::vector<layer_id> layers_;
};

}} // namespace kvcache
