// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/core/platform/number_text.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/forward_pass.hpp>
#include <kvcache/model/make_rope.hpp>
#include <kvcache/model/model_identity.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Reference transformer: a decoder in which every reduction has one fixed order (the numeric contract),
/// so that a token's logits depend only on its own past. Immutable; any number of forward passes may share it.
class transformer {
public:
    transformer(model_config config, model_weights weights)
        : config_(std::move(config)), weights_(std::move(weights)), ropes_(ropes_of(config_)) {
        for (std::size_t i = 0; i < config_.layers; ++i) {
            layers_.push_back(layer_id{static_cast<std::uint32_t>(i)});
            places_.push_back(place_of(config_.layer(i)));
        }
        for (std::size_t group = 0, kept = groups_.size(); group < kept; ++group)
            add_alias(group);
        if (config_.sinks)
            place_sinks();
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

    /// Layout of a cache of layer groups for this model, whose pages have `tokens` positions each: layers without a
    /// window, those of each window, and those with a state.
    [[nodiscard]] cache_layout layout(std::uint32_t tokens) const { return {tokens, groups_}; }

    /// The layer group of recurrent layers; nullopt if there are none.
    [[nodiscard]] std::optional<std::size_t> state_group() const noexcept {
        for (std::size_t group = 0; group < groups_.size(); ++group)
            if (groups_[group].kind() == group_kind::state)
                return group;
        return std::nullopt;
    }

    /// Returns whether keys rotated for one position can be moved to another, which needs RoPE to be a pure rotation:
    /// all kinds here are. Errors: unsupported, for recurrent layers, whose states are of all tokens before.
    [[nodiscard]] result<void> keys_can_move() const {
        if (state_group())
            return error{error_code::unsupported, "layers", "a state cannot be moved after other tokens"};
        return {};
    }
    /// RoPE of a layer's queries and keys; null if it has none.
    [[nodiscard]] const rope* rotation(layer_id layer) const noexcept {
        if (places_[index_of(layer)].recurrent)
            return nullptr;
        return kinds_[places_[index_of(layer)].kind].shape.rotation;
    }

    /// Bytes of the weights that every token reads: all matrices but the embedding, and of experts as many as it uses.
    [[nodiscard]] std::size_t weight_bytes() const {
        const linear& inputs = weights_.per_layer_projection;
        std::size_t bytes = weights_.head.bytes() + (inputs.outputs() > 0 ? inputs.bytes() : 0);
        for (const block_weights& layer : weights_.layers) {
            for (const linear* map : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down, &layer.router,
                                      &layer.shared_gate_up, &layer.shared_down, &layer.mixer_input,
                                      &layer.mixer_output, &layer.per_layer_gate, &layer.per_layer_output})
                bytes += map->outputs() > 0 ? map->bytes() : 0;
            for (const auto* experts : {&layer.expert_gate_up, &layer.expert_down})
                if (!experts->empty()) // those that a token uses
                    bytes += config_.experts.used * experts->front().bytes();
        }
        return bytes;
    }

    /// Identity of this model's pages; `weights` is the digest of its checkpoint.
    [[nodiscard]] identity id(digest weights) const {
        return {.weights = weights,
                .config = detail::config_text(config_),
                .rope = detail::ropes_text(config_, *ropes_),
                .weight_format = weights_.format()};
    }

    /// Returns the model in int8 (linear::in_int8), a different and coarser model with pages of its own: numbers become
    /// Q8_0, half the size of BF16; quantised blocks stay; activations are rounded. Cost: reads every weight that is
    /// not in blocks once, with all threads.
    [[nodiscard]] transformer in_int8(thread_pool& threads) const { return {config_, weights_.in_int8(threads)}; }

    /// Returns forward passes over rows in leases of this type. Requires: this and the threads outlive it.
    template <class Lease>
    [[nodiscard]] forward_pass<Lease> make_forward_pass(thread_pool& threads) const {
        return forward_pass<Lease>({config_, weights_, kinds_, places_}, threads);
    }

    /// The same with a custom attention.
    template <class Lease, class Attention>
    [[nodiscard]] forward_pass<Lease, Attention> make_forward_pass(thread_pool& threads, Attention attended) const {
        return {{config_, weights_, kinds_, places_}, threads, std::move(attended)};
    }

private:
    [[nodiscard]] static std::shared_ptr<const std::vector<rope>> ropes_of(const model_config& config) {
        const auto dim = [&](bool windows) {
            return config.rotary_dim != 0 ? config.head_dim : config.rotated(windows);
        };
        std::vector<rope> all{make_rope(config.rope, dim(false), config.rotated(false))};
        if (config.window_rope)
            all.push_back(make_rope(*config.window_rope, dim(true), config.rotated(true)));
        return std::make_shared<const std::vector<rope>>(std::move(all));
    }

    // Adds a layer to its group, which is added if it is the first.
    [[nodiscard]] attended_layer place_of(const layer_config& layer) {
        std::size_t group = 0;
        if (layer.recurrent) {
            group = state_group().value_or(groups_.size());
            if (group == groups_.size())
                groups_.push_back({});
            groups_[group].state_bytes += config_.state_floats() * sizeof(float);
            return {.layer = layer_id{groups_[group].layers++}, .group = group, .recurrent = true};
        }
        if (layer.reads) {
            attended_layer place = places_[*layer.reads];
            place.writes = false;
            return place;
        }
        const layer_group own{.kv_heads = static_cast<std::uint32_t>(layer.kv_heads),
                              .head_dim = static_cast<std::uint32_t>(layer.head_dim),
                              .window = static_cast<std::uint32_t>(layer.window)};
        while (group < groups_.size() &&
               (groups_[group].window != own.window || groups_[group].kv_heads != own.kv_heads ||
                groups_[group].head_dim != own.head_dim || groups_[group].kind() == group_kind::state))
            ++group;
        if (group == groups_.size())
            groups_.push_back(own);
        return {.layer = layer_id{groups_[group].layers++}, .kind = kind_of(layer, group), .group = group};
    }

    // Adds the group of layers that read the keys and values of another one, if there are any.
    void add_alias(std::size_t of) {
        layer_group made{.alias_of = static_cast<std::uint32_t>(of)};
        for (const attended_layer& one : places_)
            made.layers += !one.writes && one.group == of ? 1 : 0;
        if (made.layers > 0)
            groups_.push_back(made);
    }

    // The kind of layers that attend like this one, likewise.
    [[nodiscard]] std::size_t kind_of(const layer_config& layer, std::size_t group) {
        const bool local = layer.window > 0 && config_.window_rope;
        const float scale =
            config_.score_scale != 0.0F ? config_.score_scale : 1.0F / std::sqrt(static_cast<float>(layer.head_dim));
        const rope* rotation = layer.rotates ? &(*ropes_)[local ? 1 : 0] : nullptr;
        for (std::size_t kind = 0; kind < kinds_.size(); ++kind)
            if (kinds_[kind].shape.window == layer.window && kinds_[kind].shape.rotation == rotation &&
                kinds_[kind].group == group)
                return kind;
        // A factor of the rotated dimensions is one of the scores where all are rotated.
        const float factor = detail::rotation_scale(local ? *config_.window_rope : config_.rope);
        const bool part = config_.rotated() < config_.head_dim;
        kinds_.push_back({.shape = {.heads = static_cast<std::uint32_t>(config_.heads),
                                    .kv_heads = static_cast<std::uint32_t>(layer.kv_heads),
                                    .head_dim = static_cast<std::uint32_t>(layer.head_dim),
                                    .scale = (part ? 1.0F : factor * factor) * scale,
                                    .rotation = rotation,
                                    .window = static_cast<std::uint32_t>(layer.window),
                                    .soft_cap = config_.score_cap},
                          .rotation_scale = part ? factor : 1.0F,
                          .group = group});
        return kinds_.size() - 1;
    }

    // The sinks of all layers, and of those of each group, in the order in which attention counts them.
    void place_sinks() {
        std::vector<std::vector<float>> all(1 + groups_.size());
        for (std::size_t i = 0; i < config_.layers; ++i)
            for (std::vector<float>* to : {&all[0], &all[1 + places_[i].group]}) {
                to->insert(to->end(), weights_.layers[i].sinks.begin(), weights_.layers[i].sinks.end());
                if (places_[i].recurrent && to == &all[0])
                    to->resize(to->size() + config_.heads);
            }
        sinks_ = std::make_shared<const std::vector<std::vector<float>>>(std::move(all));
        for (attention_kind& kind : kinds_) {
            kind.shape.sinks = sinks_->front().data();
            kind.group_sinks = (*sinks_)[1 + kind.group].data();
        }
    }

    model_config config_;
    model_weights weights_;
    std::shared_ptr<const std::vector<rope>> ropes_; // of all layers, and of those with a window if it is another
    std::shared_ptr<const std::vector<std::vector<float>>> sinks_; // of all layers, and of each group's
    std::vector<layer_id> layers_;
    std::vector<attention_kind> kinds_;  // of layers that attend alike
    std::vector<layer_group> groups_;    // of layers that keep equally many tokens
    std::vector<attended_layer> places_; // by layer
};

}} // namespace kvcache
