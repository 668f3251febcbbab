// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/linear.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache {

/// Where weights come from: a tensor by its Hugging Face name, of the shape asked for, or why not.
template <class S>
concept weight_source = requires(const S s, std::string_view name, std::initializer_list<std::size_t> shape) {
    { s.tensor(name, shape) } -> std::same_as<result<tensor_view>>;
};

/// The weights of one block, packed.
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

/// The weights of a decoder, packed.
struct model_weights {
    linear embedding; // (vocabulary, hidden); empty if the head is tied to it
    std::vector<block_weights> layers;
    std::vector<float> final_norm; // (hidden)
    linear head;                   // (vocabulary, hidden)
};

namespace detail {

// Reads tensors one after the other; the first error stays, and what follows is skipped.
template <weight_source Source>
class weight_reader {
public:
    explicit weight_reader(const Source& source) : source_(source) {}

    [[nodiscard]] const result<void>& outcome() const noexcept { return outcome_; }

    [[nodiscard]] std::vector<float> vector(const std::string& name, std::size_t size) {
        std::vector<float> numbers;
        if (const auto view = tensor(name, {size}))
            numbers.resize(size), view->read(0, numbers);
        return numbers;
    }

    [[nodiscard]] linear matrix(const std::vector<std::pair<std::string, std::size_t>>& parts, std::size_t inputs,
                                bool biased) {
        std::vector<tensor_view> views;
        std::vector<float> bias;
        for (const auto& [name, outputs] : parts) {
            if (auto view = tensor(name + ".weight", {outputs, inputs}))
                views.push_back(std::move(*view));
            if (biased) {
                const auto part = vector(name + ".bias", outputs);
                bias.insert(bias.end(), part.begin(), part.end());
            }
        }
        if (!outcome_)
            return {};
        linear made = linear::pack(views);
        if (biased)
            made.set_bias(std::move(bias));
        return made;
    }

private:
    [[nodiscard]] result<tensor_view> tensor(const std::string& name, std::initializer_list<std::size_t> shape) {
        if (!outcome_)
            return outcome_.error();
        auto view = source_.tensor(name, shape);
        if (!view)
            outcome_ = view.error();
        return view;
    }

    const Source& source_;
    result<void> outcome_;
};

} // namespace detail

/// Reads and packs all weights of a checkpoint, by their Hugging Face names. `progress(done, of)` is called after each
/// layer. Errors: the source's, naming the tensor. Cost: every weight is read and written once.
template <weight_source Source, class Progress>
[[nodiscard]] result<model_weights> load_weights(const model_config& config, const Source& source, Progress progress) {
    detail::weight_reader<Source> read(source);
    const std::size_t hidden = config.hidden_size;
    const std::size_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;

    model_weights weights;
    const std::string embedding = "model.embed_tokens";
    weights.head = read.matrix({{config.tied_head ? embedding : "lm_head", config.vocabulary}}, hidden, false);
    if (!config.tied_head)
        weights.embedding = read.matrix({{embedding, config.vocabulary}}, hidden, false);
    weights.final_norm = read.vector("model.norm.weight", hidden);

    for (std::size_t i = 0; i < config.layers && read.outcome(); ++i) {
        const std::string at = "model.layers." + std::to_string(i) + ".";
        const std::string self = at + "self_attn.", mlp = at + "mlp.";
        block_weights layer;
        layer.attention_norm = read.vector(at + "input_layernorm.weight", hidden);
        layer.qkv =
            read.matrix({{self + "q_proj", q}, {self + "k_proj", kv}, {self + "v_proj", kv}}, hidden, config.qkv_bias);
        if (config.qk_norm) {
            layer.q_norm = read.vector(self + "q_norm.weight", config.head_dim);
            layer.k_norm = read.vector(self + "k_norm.weight", config.head_dim);
        }
        layer.output = read.matrix({{self + "o_proj", hidden}}, q, config.output_bias);
        layer.mlp_norm = read.vector(at + "post_attention_layernorm.weight", hidden);
        layer.gate_up =
            read.matrix({{mlp + "gate_proj", config.intermediate_size}, {mlp + "up_proj", config.intermediate_size}},
                        hidden, config.mlp_bias);
        layer.down = read.matrix({{mlp + "down_proj", hidden}}, config.intermediate_size, config.mlp_bias);
        weights.layers.push_back(std::move(layer));
        progress(i + 1, config.layers);
    }
    if (!read.outcome())
        return read.outcome().error();
    return weights;
}

} // namespace kvcache
