// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shared_memory.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/linear.hpp>
#include <kvcache/model/tensor_view.hpp>
#include <kvcache/model/weight_image.hpp>
#include <kvcache/model/weight_names.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Packed weights of one block. Norms that its architecture does not have are empty.
struct block_weights {
    std::vector<float> attention_norm;        // (hidden)
    linear qkv;                               // (q + k + v, hidden)
    std::vector<float> q_norm;                // (head_dim) or (q)
    std::vector<float> k_norm;                // (head_dim) or (k)
    std::vector<float> sinks;                 // (heads)
    linear output;                            // (hidden, q)
    std::vector<float> attention_output_norm; // (hidden)
    std::vector<float> mlp_norm;              // (hidden)
    linear gate_up;                           // (2 intermediate, hidden)
    linear down;                              // (hidden, intermediate)
    std::vector<float> mlp_output_norm;       // (hidden)
    linear router;                            // (experts, hidden), of a mixture of experts
    std::vector<linear> expert_gate_up;       // each (2 expert size, hidden)
    std::vector<linear> expert_down;          // each (hidden, expert size)
    linear shared_gate_up;                    // (2 shared size, hidden), of the expert that all tokens use
    linear shared_down;                       // (hidden, shared size)
    linear shared_router;                     // (1, hidden)
    linear mixer_input;                       // (mixer inputs, hidden), of a recurrent layer
    std::vector<float> convolution;           // (channels, taps), in blocks of channels: (taps, channels of the block)
    std::vector<float> convolution_bias;      // (channels)
    std::vector<float> time_bias;             // (value heads)
    std::vector<float> decay;                 // (value heads), negative
    std::vector<float> skip;                  // (value heads), of Mamba-2
    std::vector<float> mixer_norm;            // (value_dim), or of all value heads
    linear mixer_output;                      // (hidden, mixer outputs)
    linear per_layer_gate;                    // (per-layer size, hidden)
    linear per_layer_output;                  // (hidden, per-layer size)
    std::vector<float> per_layer_output_norm; // (hidden)
    std::vector<float> scale;                 // (1)

    /// Calls visit(map) for every linear map of a block, which may be const.
    template <class Block, class Visit>
    static void for_each_map(Block& of, Visit visit) {
        for (auto* each :
             {&of.qkv, &of.output, &of.gate_up, &of.down, &of.router, &of.shared_gate_up, &of.shared_down,
              &of.shared_router, &of.mixer_input, &of.mixer_output, &of.per_layer_gate, &of.per_layer_output})
            if (each->outputs() > 0)
                visit(*each);
        for (auto* experts : {&of.expert_gate_up, &of.expert_down})
            for (auto& each : *experts)
                visit(each);
    }

    /// The vector of a role. Requires: the role is a vector of a layer.
    [[nodiscard]] std::vector<float>& vector(weight_role role) {
        switch (role) {
        case weight_role::attention_norm:
            return attention_norm;
        case weight_role::query_norm:
            return q_norm;
        case weight_role::key_norm:
            return k_norm;
        case weight_role::attention_output_norm:
            return attention_output_norm;
        case weight_role::attention_sinks:
            return sinks;
        case weight_role::mlp_norm:
            return mlp_norm;
        case weight_role::mixer_convolution:
            return convolution;
        case weight_role::mixer_time_bias:
            return time_bias;
        case weight_role::mixer_decay:
            return decay;
        case weight_role::mixer_skip:
            return skip;
        case weight_role::mixer_norm:
            return mixer_norm;
        case weight_role::per_layer_output_norm:
            return per_layer_output_norm;
        case weight_role::layer_scale:
            return scale;
        default:
            return mlp_output_norm;
        }
    }
    /// The map of a role, and of an expert where the role is an expert's. Requires: the role is a product of a layer.
    [[nodiscard]] linear& product(weight_role role, std::size_t expert) {
        const auto of_expert = [&](std::vector<linear>& all) -> linear& {
            all.resize(std::max(all.size(), expert + 1));
            return all[expert];
        };
        switch (role) {
        case weight_role::router:
            return router;
        case weight_role::expert_gate_up:
            return of_expert(expert_gate_up);
        case weight_role::expert_down:
            return of_expert(expert_down);
        case weight_role::query_key_value:
            return qkv;
        case weight_role::attention_output:
            return output;
        case weight_role::gate_up:
            return gate_up;
        case weight_role::shared_gate_up:
            return shared_gate_up;
        case weight_role::shared_down:
            return shared_down;
        case weight_role::shared_router:
            return shared_router;
        case weight_role::mixer_input:
            return mixer_input;
        case weight_role::mixer_output:
            return mixer_output;
        case weight_role::per_layer_gate:
            return per_layer_gate;
        case weight_role::per_layer_output:
            return per_layer_output;
        default:
            return down;
        }
    }
};

/// Packed weights of a decoder.
struct model_weights {
    linear embedding; // (vocabulary, hidden); empty if the head is tied to it
    std::vector<block_weights> layers;
    std::vector<float> final_norm;     // (hidden)
    linear head;                       // (vocabulary, hidden)
    linear per_layer_embedding;        // (vocabulary, layers * per-layer size)
    linear per_layer_projection;       // (layers * per-layer size, hidden)
    std::vector<float> per_layer_norm; // (per-layer size)

    /// Calls visit(map) for every linear map.
    template <class Visit>
    void for_each_map(Visit visit) {
        visit(head);
        for (linear* each : {&embedding, &per_layer_embedding, &per_layer_projection})
            if (each->outputs() > 0)
                visit(*each);
        for (block_weights& layer : layers)
            block_weights::for_each_map(layer, visit);
    }

    /// Returns a copy with linear::in_int8() of every map, all in one block of memory. Throws: std::bad_alloc.
    [[nodiscard]] model_weights in_int8(thread_pool& threads) const {
        model_weights rounded = *this;
        std::size_t bytes = 0;
        rounded.for_each_map([&](linear& map) { bytes += map.int8_bytes(); });
        const auto memory = shared_memory(bytes, nullptr);
        std::byte* at = memory.get();
        rounded.for_each_map([&](linear& map) {
            const std::size_t taken = map.int8_bytes();
            map = map.in_int8(threads, {memory, at});
            at += taken;
        });
        return rounded;
    }

    /// Format of the products, for the identity of pages: that of the head, and whether activations are rounded.
    [[nodiscard]] std::string format() const {
        const auto rounds = [](const linear& map) { return map.has_int8_activations(); };
        bool any = rounds(head);
        for (const block_weights& layer : layers)
            block_weights::for_each_map(layer, [&](const linear& map) { any = any || rounds(map); });
        return any ? head.format() + ", int8 activations" : head.format();
    }
};

/// The weights of a convolution, (channels, taps), in the order of block_weights.
[[nodiscard]] inline std::vector<float> in_channel_blocks(std::span<const float> stored, std::size_t taps) {
    std::vector<float> made;
    made.reserve(stored.size());
    constexpr std::size_t most = recurrence_config::block_channels;
    for (std::size_t first = 0, all = stored.size() / taps; first < all; first += most)
        for (std::size_t tap = 0; tap < taps; ++tap)
            for (std::size_t channel = first; channel < std::min(first + most, all); ++channel)
                made.push_back(stored[channel * taps + tap]);
    return made;
}

/// Weights of an image of weight_groups(config): vectors are copied, matrices are viewed in place.
[[nodiscard]] inline model_weights weights_in(const model_config& config, const weight_image& image) {
    model_weights weights;
    weights.layers.resize(config.layers);
    const std::vector<weight_group> groups = weight_groups(config);
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const weight_group& group = groups[i];
        const bool is_matrix = group.parts.front().shape.size() == 2;
        switch (group.role) {
        case weight_role::final_norm:
            weights.final_norm = image.vector(i);
            break;
        case weight_role::head:
            weights.head = image.product(i);
            break;
        case weight_role::embedding:
            weights.embedding = image.product(i);
            break;
        case weight_role::per_layer_embedding:
            weights.per_layer_embedding = image.product(i);
            break;
        case weight_role::per_layer_projection:
            weights.per_layer_projection = image.product(i);
            break;
        case weight_role::per_layer_norm:
            weights.per_layer_norm = image.vector(i);
            break;
        default: {
            block_weights& layer = weights.layers[group.layer];
            if (is_matrix)
                layer.product(group.role, group.expert) = image.product(i);
            else if (group.bias && group.role != weight_role::mixer_convolution)
                layer.product(group.role, group.expert).set_bias(image.vector(i));
            else if (group.role == weight_role::mixer_convolution && group.bias)
                layer.convolution_bias = image.vector(i);
            else if (group.role == weight_role::mixer_convolution)
                layer.convolution = in_channel_blocks(image.vector(i), config.recurrence.taps);
            else
                layer.vector(group.role) = image.vector(i);
        }
        }
    }
    return weights;
}

/// Reads all weights of a checkpoint by their Hugging Face names, and packs them into one block from `memory` (null:
/// new and delete), on huge pages where the system has them. `packed(group, views)` is called for each group and its
/// tensors once they are packed, `progress(done, of)` after each layer. Errors: those of the source, with the tensor's
/// name; out_of_memory. Cost: reads and writes every weight once, with all threads; allocates one block of
/// layout().bytes(), and nothing else that grows with the model.
template <weight_source Source, class Packed, class Progress>
[[nodiscard]] result<weight_image> pack_image(const model_config& config, const Source& source,
                                              pmr::memory_resource* memory, thread_pool& threads, Packed packed,
                                              Progress progress) {
    auto layout = weight_layout::plan(weight_groups(config), source);
    if (!layout)
        return layout.error();
    std::shared_ptr<std::byte> block;
    try {
        block = shared_memory(layout->bytes(), memory);
    } catch (const std::bad_alloc&) {
        return error{error_code::out_of_memory, "weights",
                     "the packed weights take " + std::to_string(layout->bytes()) + " bytes, which are not to be had"};
    }
    std::size_t layers = 0;
    const auto done = [&](const weight_group& group, std::span<const tensor_view> views) {
        packed(group, views);
        if (group.ends_layer)
            progress(++layers, config.layers);
    };
    if (auto filled = pack_weights(*layout, source, {block.get(), layout->bytes()}, threads, done); !filled)
        return filled.error();
    return weight_image(*std::move(layout), std::move(block));
}

/// The same, ready for computation. Errors: those of pack_image.
template <weight_source Source, class Progress>
[[nodiscard]] result<model_weights> load_weights(const model_config& config, const Source& source, thread_pool& threads,
                                                 Progress progress) {
    const auto ignore = [](const weight_group&, std::span<const tensor_view>) {};
    const auto image = pack_image(config, source, nullptr, threads, ignore, progress);
    if (!image)
        return image.error();
    return weights_in(config, *image);
}

/// The same on one thread.
template <weight_source Source, class Progress>
[[nodiscard]] result<model_weights> load_weights(const model_config& config, const Source& source, Progress progress) {
    thread_pool alone;
    return load_weights(config, source, alone, progress);
}

}} // namespace kvcache
