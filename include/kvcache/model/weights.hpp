// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shared_memory.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/linear.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Source of weights: returns a tensor by its Hugging Face name with the required shape, or an error.
template <class S>
concept weight_source = requires(const S s, std::string_view name, std::initializer_list<std::size_t> shape) {
    { s.tensor(name, shape) } -> std::same_as<result<tensor_view>>;
};

/// Tensors that are stored as one: matrices concatenated for one GEMM, or concatenated vectors.
struct weight_group {
    std::vector<weight_name> parts = {};
    bool ends_layer = false; ///< Last group of a layer.
};

/// Location of a group in the image of a model's weights.
struct weight_place {
    matrix_format format = {};
    std::size_t outputs = 0;
    std::size_t inputs = 0; ///< 0 for a vector of `outputs` floats.
    std::size_t offset = 0; ///< In bytes, a multiple of a cache line.
    std::size_t bytes = 0;
};

/// Layout of all packed weights of a model in one block of memory or the payload of a file. It depends only on the
/// groups and their stored formats.
class weight_layout {
public:
    /// Plans the layout from the shapes and formats of all tensors, without reading their bytes. Errors: those of the
    /// source, with the tensor's name.
    template <weight_source Source>
    [[nodiscard]] static result<weight_layout> plan(std::vector<weight_group> groups, const Source& source) {
        weight_layout made;
        for (const weight_group& group : groups) {
            auto views = views_of(group, source);
            if (!views)
                return views.error();
            weight_place place{.offset = made.bytes_};
            for (const tensor_view& view : *views)
                place.outputs += view.shape[0];
            if (views->front().shape.size() == 2) {
                place.format = packed_format(*views);
                place.inputs = views->front().shape[1];
                place.bytes = packed_bytes(place.format, place.outputs, place.inputs);
            } else {
                place.bytes = place.outputs * sizeof(float);
            }
            made.bytes_ += (place.bytes + line_bytes - 1) / line_bytes * line_bytes;
            made.places_.push_back(std::move(place));
        }
        made.groups_ = std::move(groups);
        return made;
    }

    [[nodiscard]] std::span<const weight_group> groups() const noexcept { return groups_; }
    [[nodiscard]] std::span<const weight_place> places() const noexcept { return places_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    /// Digest of every group's tensors and location.
    [[nodiscard]] kvcache::digest digest() const {
        digest_builder builder;
        builder.text("kvcache weight layout 1").number(places_.size());
        for (std::size_t i = 0; i < places_.size(); ++i) {
            builder.number(groups_[i].parts.size());
            for (const weight_name& part : groups_[i].parts) {
                builder.text(part.name).number(part.shape.size());
                for (const std::size_t extent : part.shape)
                    builder.number(extent);
            }
            const weight_place& at = places_[i];
            builder.text(name_of(at.format.numbers));
            for (const block_part& part : at.format.blocks)
                builder.text(name_of(part.format)).number(part.outputs);
            builder.number(at.outputs).number(at.inputs).number(at.offset).number(at.bytes);
        }
        return builder.finish();
    }

    /// Tensors of a group. Errors: those of the source.
    template <weight_source Source>
    [[nodiscard]] static result<std::vector<tensor_view>> views_of(const weight_group& group, const Source& source) {
        std::vector<tensor_view> views;
        for (const weight_name& part : group.parts) {
            auto view = part.shape.size() == 1 ? source.tensor(part.name, {part.shape[0]})
                                               : source.tensor(part.name, {part.shape[0], part.shape[1]});
            if (!view)
                return view.error();
            views.push_back(std::move(*view));
        }
        return views;
    }

private:
    std::vector<weight_group> groups_;
    std::vector<weight_place> places_;
    std::size_t bytes_ = 0;
};

/// Packs all weights of a layout into `image`: layout.bytes() on a cache line. `packed(group, views)` is called for
/// each group and its tensors once they are packed, in order. Errors: those of the source. Cost: reads and writes every
/// weight once, with all threads.
template <weight_source Source, class Packed>
[[nodiscard]] result<void> pack_weights(const weight_layout& layout, const Source& source, std::span<std::byte> image,
                                        thread_pool& threads, Packed packed) {
    expects(image.size() == layout.bytes(), "an image is as long as its layout says");
    for (std::size_t i = 0; i < layout.places().size(); ++i) {
        const weight_place& place = layout.places()[i];
        const auto views = weight_layout::views_of(layout.groups()[i], source);
        if (!views)
            return views.error();
        std::byte* to = image.data() + place.offset;
        if (place.inputs != 0) {
            pack_rows(*views, place.format, to, threads);
        } else {
            for (const tensor_view& view : *views) {
                view.read(0, {reinterpret_cast<float*>(to), view.size()});
                to += view.size() * sizeof(float);
            }
            // Zero the padding up to the next cache line, so that equal weights give equal images.
            const std::size_t end = (place.offset + place.bytes + line_bytes - 1) / line_bytes * line_bytes;
            std::memset(to, 0, end - (place.offset + place.bytes));
        }
        packed(layout.groups()[i], std::span<const tensor_view>(*views));
    }
    return {};
}

/// The packed weights of a model in one block, in memory or in a mapped file, with its layout.
class weight_image {
public:
    weight_image(weight_layout layout, std::shared_ptr<const std::byte> memory)
        : layout_(std::move(layout)), memory_(std::move(memory)) {}

    [[nodiscard]] const weight_layout& layout() const noexcept { return layout_; }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_.get(), layout_.bytes()}; }

    /// Copy of group `index`. Requires: it is a group of vectors.
    [[nodiscard]] std::vector<float> vector(std::size_t index) const {
        const weight_place& place = layout_.places()[index];
        expects(place.inputs == 0, "a vector is read from a group of vectors");
        std::vector<float> numbers(place.outputs);
        std::memcpy(numbers.data(), memory_.get() + place.offset, place.bytes);
        return numbers;
    }

    /// Linear map of group `index`, which keeps the block alive. Requires: it is a group of matrices.
    [[nodiscard]] linear product(std::size_t index) const {
        const weight_place& place = layout_.places()[index];
        expects(place.inputs != 0, "a product is made from a group of matrices");
        return linear::packed(place.format, place.outputs, place.inputs,
                              std::shared_ptr<const std::byte>(memory_, memory_.get() + place.offset));
    }

private:
    weight_layout layout_;
    std::shared_ptr<const std::byte> memory_;
};

/// Packed weights of one block.
struct block_weights {
    std::vector<float> attention_norm; // (hidden)
    linear qkv;                        // (q + k + v, hidden)
    std::vector<float> q_norm;         // (head_dim), empty without QK norm
    std::vector<float> k_norm;         // (head_dim)
    linear output;                     // (hidden, q)
    std::vector<float> mlp_norm;       // (hidden)
    linear gate_up;                    // (2 intermediate, hidden)
    linear down;                       // (hidden, intermediate)
};

/// Packed weights of a decoder.
struct model_weights {
    linear embedding; // (vocabulary, hidden); empty if the head is tied to it
    std::vector<block_weights> layers;
    std::vector<float> final_norm; // (hidden)
    linear head;                   // (vocabulary, hidden)

    /// Calls visit(map) for every linear map.
    template <class Visit>
    void for_each_map(Visit visit) {
        visit(head);
        if (embedding.outputs() > 0)
            visit(embedding);
        for (block_weights& layer : layers)
            for (linear* each : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
                visit(*each);
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
        const bool any =
            rounds(head) || ranges::any_of(layers, [&](const block_weights& layer) {
                return rounds(layer.qkv) || rounds(layer.output) || rounds(layer.gate_up) || rounds(layer.down);
            });
        return any ? head.format() + ", int8 activations" : head.format();
    }
};

namespace detail {

/// Calls visit.product(to, names, inputs, biased) and visit.vector(to, name, size) for every member of `weights`, in
/// the order of an image, and visit.layer_done() after each layer. The names of a product are those of its matrices,
/// without ".weight".
template <class Visit>
void for_each_weight(const model_config& config, model_weights& weights, Visit visit) {
    const std::size_t hidden = config.hidden_size, inner = config.intermediate_size;
    const std::size_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
    const std::string embedding = "model.embed_tokens";

    visit.product(weights.head, {{config.tied_head ? embedding : "lm_head", config.vocabulary}}, hidden, false);
    if (!config.tied_head)
        visit.product(weights.embedding, {{embedding, config.vocabulary}}, hidden, false);
    visit.vector(weights.final_norm, std::string(final_norm_name), hidden);

    weights.layers.resize(config.layers);
    for (std::size_t i = 0; i < config.layers; ++i) {
        block_weights& layer = weights.layers[i];
        const auto name = [&](std::string_view part) { return layer_weight_name(i, part); };
        visit.vector(layer.attention_norm, name("input_layernorm.weight"), hidden);
        visit.product(layer.qkv,
                      {{name("self_attn.q_proj"), q}, {name("self_attn.k_proj"), kv}, {name("self_attn.v_proj"), kv}},
                      hidden, config.qkv_bias);
        if (config.qk_norm) {
            visit.vector(layer.q_norm, name("self_attn.q_norm.weight"), config.head_dim);
            visit.vector(layer.k_norm, name("self_attn.k_norm.weight"), config.head_dim);
        }
        visit.product(layer.output, {{name("self_attn.o_proj"), hidden}}, q, config.output_bias);
        visit.vector(layer.mlp_norm, name("post_attention_layernorm.weight"), hidden);
        visit.product(layer.gate_up, {{name("mlp.gate_proj"), inner}, {name("mlp.up_proj"), inner}}, hidden,
                      config.mlp_bias);
        visit.product(layer.down, {{name("mlp.down_proj"), hidden}}, inner, config.mlp_bias);
        visit.layer_done();
    }
}

using product_names = std::vector<std::pair<std::string, std::size_t>>; // name of a matrix, and its outputs

struct group_lister {
    std::vector<weight_group>& groups;

    void product(linear&, const product_names& names, std::size_t inputs, bool biased) {
        weight_group matrices, biases;
        for (const auto& [name, outputs] : names) {
            matrices.parts.push_back({name + ".weight", {outputs, inputs}});
            biases.parts.push_back({name + ".bias", {outputs}});
        }
        groups.push_back(std::move(matrices));
        if (biased)
            groups.push_back(std::move(biases));
    }
    void vector(std::vector<float>&, std::string name, std::size_t size) {
        weight_group one;
        one.parts.push_back({std::move(name), {size}});
        groups.push_back(std::move(one));
    }
    void layer_done() { groups.back().ends_layer = true; }
};

struct image_reader {
    const weight_image& image;
    std::size_t next = 0;

    void product(linear& to, const product_names&, std::size_t, bool biased) {
        to = image.product(next++);
        if (biased)
            to.set_bias(image.vector(next++));
    }
    void vector(std::vector<float>& to, const std::string&, std::size_t) { to = image.vector(next++); }
    void layer_done() {}
};

} // namespace detail

/// Groups of a model's weights, in the order of its image.
[[nodiscard]] inline std::vector<weight_group> weight_groups(const model_config& config) {
    std::vector<weight_group> groups;
    model_weights unused;
    detail::for_each_weight(config, unused, detail::group_lister{groups});
    return groups;
}

/// Weights of an image of weight_groups(config): vectors are copied, matrices are viewed in place.
[[nodiscard]] inline model_weights weights_in(const model_config& config, const weight_image& image) {
    model_weights weights;
    detail::for_each_weight(config, weights, detail::image_reader{image});
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
