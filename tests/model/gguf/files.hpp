// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/block_format.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/huggingface/checkpoint.hpp>
#include <kvcache/model/huggingface/config.hpp>
#include <kvcache/model/transformer.hpp>
#include <kvcache/model/weight_image.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/folders.hpp"
#include <support/gguf_builder.hpp>

namespace testing_files {

inline const std::filesystem::path golden_checkpoints = test_folders::project() / "tests" / "data" / "checkpoints";

/// Type number and bytes of a stored tensor.
using gguf_data = std::pair<std::uint32_t, std::string>;

/// A tensor's bytes as a checkpoint has them.
[[nodiscard]] inline gguf_data as_it_is(const kvcache::tensor_view& view) {
    constexpr kvcache::block_format formats[] = {kvcache::block_format::f32, kvcache::block_format::f16,
                                                 kvcache::block_format::bf16};
    return {static_cast<std::uint32_t>(formats[static_cast<std::size_t>(view.dtype)]),
            {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}};
}

/// The rows of heads in the order in which the llama architecture stores q and k: pairs (i, i + head / 2) adjacent.
[[nodiscard]] inline std::string interleaved(const std::string& bytes, std::size_t rows, std::size_t head) {
    const std::size_t width = bytes.size() / rows;
    std::string made;
    for (std::size_t begin = 0; begin < rows; begin += head)
        for (std::size_t i = 0; i < head; ++i)
            made += bytes.substr((begin + i / 2 + i % 2 * (head / 2)) * width, width);
    return made;
}

/// The number of the first layer that attends, from 1.
[[nodiscard]] inline std::size_t attention_period(const kvcache::model_config& config) {
    std::size_t first = 0;
    while (first < config.layers && config.layer(first).recurrent)
        ++first;
    return first + 1;
}

/// The keys of a configuration whose layers have sizes of their own: lists where they differ, and of windows "_swa".
inline void describe_layers(gguf_builder& to, const std::string& prefix, const kvcache::model_config& config) {
    const auto number = [&](const char* key, std::size_t value) {
        to.number(prefix + key, static_cast<std::uint32_t>(value));
    };
    const auto listed = [&](const char* key, std::size_t kvcache::layer_config::*size) {
        std::vector<std::int32_t> all;
        for (std::size_t i = 0; i < config.layers; ++i)
            all.push_back(static_cast<std::int32_t>(config.layer(i).*size));
        if (std::equal(all.begin() + 1, all.end(), all.begin()))
            number(key, static_cast<std::size_t>(all.front()));
        else
            to.numbers(prefix + key, all);
    };
    listed("feed_forward_length", &kvcache::layer_config::intermediate_size);
    listed("attention.head_count_kv", &kvcache::layer_config::kv_heads);
    std::size_t whole = config.head_dim, reads = 0;
    for (std::size_t i = 0; i < config.layers; ++i) {
        whole = config.layer(i).window == 0 ? config.layer(i).head_dim : whole;
        reads += config.layer(i).reads ? 1 : 0;
    }
    for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
        number(key, whole);
    for (const char* key : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
        number(key, config.head_dim);
    number("attention.shared_kv_layers", reads);
    number("embedding_length_per_layer_input", config.per_layer_size);
    std::string factors;
    for (std::size_t i = 0; i < whole / 2; ++i)
        factors += gguf_builder::encoded(config.rope.turning == 0 || i < config.rope.turning ? 1.0F : 1e30F);
    to.tensor("rope_freqs.weight", {whole / 2}, 0, factors);
}

/// The keys of a configuration, as converters write them.
inline void describe(gguf_builder& to, const kvcache::model_config& config) {
    const std::string architecture = kvcache::architecture_of(config).has_gguf ? config.architecture : "llama";
    const auto number = [&](const std::string& key, std::size_t value) {
        to.number(architecture + "." + key, static_cast<std::uint32_t>(value));
    };
    to.text("general.architecture", architecture).text("general.type", "model");
    number("block_count", config.layers);
    number("context_length", config.max_positions);
    number("embedding_length", config.hidden_size);
    number("attention.head_count", config.heads);
    if (kvcache::architecture_of(config).layer_options)
        describe_layers(to, architecture + ".", config);
    else
        number("feed_forward_length", config.intermediate_size);
    const bool delta = config.mixer == kvcache::layer_mixer::gated_delta;
    if (config.mixer != kvcache::layer_mixer::attention && !delta) {
        std::vector<std::int32_t> heads;
        for (std::size_t i = 0; i < config.layers; ++i)
            heads.push_back(config.layer(i).recurrent ? 0 : static_cast<std::int32_t>(config.kv_heads));
        to.numbers(architecture + ".attention.head_count_kv", heads);
        if (config.mixer == kvcache::layer_mixer::short_convolution)
            number("shortconv.l_cache", config.recurrence.taps);
    } else if (!kvcache::architecture_of(config).layer_options) {
        number("attention.head_count_kv", config.kv_heads);
    }
    if (config.mixer == kvcache::layer_mixer::mamba2) {
        to.number(architecture + ".rope.scaling.finetuned", config.layer(0).rotates);
        if (config.experts.count == 0)
            for (const char* key : {"expert_count", "expert_used_count"})
                number(key, 0);
        if (config.experts.count == 0)
            number("expert_shared_feed_forward_length", config.intermediate_size);
    }
    if (delta || config.mixer == kvcache::layer_mixer::mamba2) {
        number("ssm.conv_kernel", config.recurrence.taps);
        number("ssm.group_count", config.recurrence.key_heads);
        number("ssm.time_step_rank", config.recurrence.value_heads);
        number("ssm.state_size", config.recurrence.key_dim);
        number("ssm.inner_size", config.recurrence.value_heads * config.recurrence.value_dim);
        if (delta) { // older converters wrote the interval alone
            std::vector<bool> recurrent;
            bool regular = true;
            for (std::size_t i = 0; i < config.layers; ++i) {
                recurrent.push_back(config.layer(i).recurrent);
                regular = regular && recurrent.back() == ((i + 1) % attention_period(config) != 0);
            }
            number("full_attention_interval", regular ? attention_period(config) : 4);
            if (!regular)
                to.flags(architecture + ".attention.recurrent_layers", recurrent);
        }
    }
    if (!kvcache::architecture_of(config).layer_options) {
        number("attention.key_length", config.head_dim);
        number("attention.value_length", config.head_dim);
        number("rope.dimension_count", config.rotated());
    }
    number("vocab_size", config.vocabulary);
    to.number(architecture + ".rope.freq_base", static_cast<float>(config.rope.theta));
    to.number(architecture + ".attention.layer_norm_rms_epsilon", config.rms_norm_eps);
    if (config.rope.scaling == kvcache::rope_config::kind::linear) {
        to.text(architecture + ".rope.scaling.type", "linear");
        to.number(architecture + ".rope.scaling.factor", static_cast<float>(config.rope.factor));
    }
    if (config.rope.scaling == kvcache::rope_config::kind::yarn) {
        to.text(architecture + ".rope.scaling.type", "yarn");
        to.number(architecture + ".rope.scaling.factor", static_cast<float>(config.rope.factor));
        number("rope.scaling.original_context_length", static_cast<std::size_t>(config.rope.original_max_positions));
        to.number(architecture + ".rope.scaling.yarn_beta_fast", static_cast<float>(config.rope.beta_fast));
        to.number(architecture + ".rope.scaling.yarn_beta_slow", static_cast<float>(config.rope.beta_slow));
    }
    const auto real = [&](const std::string& key, float value) { to.number(architecture + "." + key, value); };
    const kvcache::architecture& kind = kvcache::architecture_of(config);
    if (config.experts.count != 0) {
        number("expert_count", config.experts.count);
        number("expert_used_count", config.experts.used);
        number("expert_feed_forward_length", config.experts.size);
        if (config.experts.shared != 0)
            number("expert_shared_feed_forward_length", config.experts.shared);
        to.number(architecture + ".expert_weights_norm", config.experts.normalized);
    }
    if (kind.caps) {
        real("attn_logit_softcapping", config.score_cap);
        real("final_logit_softcapping", config.logit_cap);
    }
    if (kind.multipliers) {
        real("embedding_scale", config.embedding_scale);
        real("residual_scale", config.residual_scale);
        real("attention.scale", config.score_scale);
        real("logit_scale", 1.0F / config.logit_scale);
    }
    if (!config.each_layer.empty() && kind.window_period != 0) {
        std::vector<bool> windowed;
        std::size_t window = 0;
        for (const kvcache::layer_config& layer : config.each_layer) {
            windowed.push_back(layer.window != 0);
            window = std::max(window, layer.window);
        }
        number("attention.sliding_window", window);
        if (kind.window_period > 1)
            to.flags(architecture + ".attention.sliding_window_pattern", windowed);
    } else if (kind.window_period != 0) {
        number("attention.sliding_window", 0);
    }
    if (config.window_rope)
        real("rope.freq_base_swa", static_cast<float>(config.window_rope->theta));
    if (!config.bos.empty())
        to.number("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(index_of(config.bos[0])));
    for (std::size_t i = 0; i < config.eos.size() && i < 2; ++i)
        to.number(i == 0 ? "tokenizer.ggml.eos_token_id" : "tokenizer.ggml.eot_token_id",
                  static_cast<std::uint32_t>(index_of(config.eos[i])));
}

/// Whether GGUF has keys for all of a configuration. It has none for Gemma's factor of scores, for windows of Mistral
/// and Qwen, nor for lists of layers without RoPE.
[[nodiscard]] inline bool has_gguf_form(const kvcache::model_config& config) {
    const kvcache::architecture& kind = kvcache::architecture_of(config);
    if (config.score_scale != static_cast<float>(kind.scores_times) && !kind.multipliers)
        return false;
    if (config.rope.scaling == kvcache::rope_config::kind::yarn && config.rope.truncate != kind.yarn_truncates)
        return false;
    if (config.gate_alpha != 1.702F || config.gate_limit != 7.0F)
        return false;
    for (std::size_t i = 0; i < config.each_layer.size(); ++i)
        if ((config.layer(i).window != 0 && (kind.window_period == 0 || !kind.has_gguf)) ||
            (!kind.rope_option &&
             config.layer(i).rotates != (kind.unrotated_period == 0 || (i + 1) % kind.unrotated_period != 0)))
            return false;
    return true;
}

/// A vector as converters write it, in F32: without the form that checkpoints have it in.
[[nodiscard]] inline gguf_data without_form(const kvcache::tensor_view& view, kvcache::stored_form form) {
    std::vector<float> numbers(view.size());
    view.read(0, numbers);
    kvcache::undo_form(form, numbers);
    std::string bytes;
    for (const float number : numbers)
        bytes += gguf_builder::encoded(number);
    return {0, bytes};
}

/// Value heads in the order in which files have them: the i-th of every key head, for i ascending. `bytes` has `rows`
/// rows, of which those from `first` on are `heads` heads, or, with `rows` 1, columns.
[[nodiscard]] inline std::string tiled(const std::string& bytes, std::size_t rows, std::size_t first,
                                       const kvcache::recurrence_config& of, std::size_t of_head) {
    const std::size_t width = bytes.size() / rows, each = of.value_heads / of.key_heads;
    std::string made = bytes.substr(0, first * width);
    for (std::size_t i = 0; i < each; ++i)
        for (std::size_t key = 0; key < of.key_heads; ++key)
            made += bytes.substr((first + (key * each + i) * of_head) * width, of_head * width);
    return made;
}

/// A tensor of a recurrent layer with its value heads in that order.
[[nodiscard]] inline std::string tiled(const std::string& bytes, kvcache::weight_role role, const std::string& name,
                                       std::size_t rows, const kvcache::model_config& config) {
    using kvcache::weight_role;
    const kvcache::recurrence_config& of = config.recurrence;
    if (!kvcache::architecture_of(config).tiled_values)
        return bytes;
    const auto has = [&](const char* part) { return name.find(part) != name.npos; };
    if (role == weight_role::mixer_output) {
        std::string made;
        for (std::size_t row = 0; row < rows; ++row)
            made += tiled(bytes.substr(row * (bytes.size() / rows), bytes.size() / rows), of.value_heads * of.value_dim,
                          0, of, of.value_dim);
        return made;
    }
    if (has("attn_qkv") || has("ssm_conv1d"))
        return tiled(bytes, rows, 2 * of.key_heads * of.key_dim, of, of.value_dim);
    if (has("attn_gate"))
        return tiled(bytes, rows, 0, of, of.value_dim);
    return has("ssm_alpha") || has("ssm_beta") || has("ssm_dt") || has("ssm_a") ? tiled(bytes, rows, 0, of, 1) : bytes;
}

/// How a GGUF file is written.
struct gguf_form {
    bool split = false; ///< As later converters store what is convolved, and the gate.
    bool wide = false;  ///< Vectors and convolutions in float32, which llama.cpp needs.
};

/// The same numbers in float32.
[[nodiscard]] inline gguf_data widened(gguf_data data) {
    if (data.first != 30) // BF16
        return data;
    std::string wide;
    for (std::size_t i = 0; i < data.second.size(); i += 2)
        wide += std::string(2, '\0') + data.second.substr(i, 2);
    return {0, wide};
}

/// The GGUF file of a golden checkpoint. `store(name, view)` gives the data of each matrix; the rest is stored as it
/// is.
template <class Store>
[[nodiscard]] gguf_builder gguf_of(const std::filesystem::path& directory, Store store, gguf_form form = {}) {
    const auto config = kvcache::read_model_config(directory);
    const auto weights = kvcache::checkpoint::open(directory);
    if (!config || !weights)
        throw std::runtime_error("no golden checkpoint");
    gguf_builder made;
    describe(made, *config);
    const kvcache::architecture& kind = kvcache::architecture_of(*config);
    std::map<std::string, gguf_data> experts;
    for (const kvcache::weight_group& group : kvcache::weight_groups(*config))
        for (const auto& [name, shape, heads] : group.parts) {
            auto view = *weights->tensor(name, shape);
            if (name.ends_with("shared_mlp.input_linear.weight")) {
                const std::string all = as_it_is(view).second, at = "blk." + std::to_string(group.layer);
                const std::vector<std::size_t> half{shape[0] / 2, shape[1]};
                const std::string kept = config->experts.count != 0 ? "_shexp.weight" : ".weight";
                made.tensor(at + ".ffn_gate" + kept, half, as_it_is(view).first, all.substr(0, all.size() / 2));
                made.tensor(at + ".ffn_up" + kept, half, as_it_is(view).first, all.substr(all.size() / 2));
                continue;
            }
            if (form.split && name.ends_with("in_proj_qkvz.weight")) {
                view.heads = heads;
                std::string rows[2];
                for (std::size_t row = 0; row < shape[0]; ++row) {
                    const auto bytes = view.row(row);
                    rows[row < config->convolved() ? 0 : 1].append(reinterpret_cast<const char*>(bytes.data()),
                                                                   bytes.size());
                }
                const std::string at = "blk." + std::to_string(group.layer);
                made.tensor(at + ".attn_qkv.weight", {config->convolved(), shape[1]}, as_it_is(view).first, rows[0]);
                made.tensor(at + ".attn_gate.weight", {config->mixer_outputs(), shape[1]}, as_it_is(view).first,
                            rows[1]);
                continue;
            }
            std::string stored = kvcache::gguf_name(kind, name);
            if (config->experts.count != 0 && name.ends_with("shared_mlp.output_linear.weight"))
                stored.replace(stored.find("ffn_down"), 8, "ffn_down_shexp");
            auto [type, bytes] = shape.size() == 2                           ? store(stored, view)
                                 : group.form != kvcache::stored_form::plain ? without_form(view, group.form)
                                                                             : as_it_is(view);
            if (form.wide && shape.size() != 2)
                std::tie(type, bytes) = widened({type, bytes});
            bytes = tiled(bytes, group.role, stored, shape[0], *config);
            if ((kind.interleaved || !kind.has_gguf) &&
                (stored.find(".attn_q.") != stored.npos || stored.find(".attn_k.") != stored.npos))
                bytes = interleaved(bytes, shape[0], config->head_dim);
            if (kvcache::gguf_weight_of(kind, name).expert) {
                gguf_data& all = experts[stored]; // in one tensor, in order
                all.first = type;
                all.second += bytes;
                if (group.expert + 1 < config->experts.count)
                    continue;
                std::vector<std::size_t> stacked = shape;
                stacked.insert(stacked.begin(), config->experts.count);
                made.tensor(stored, stacked, type, all.second);
                continue;
            }
            made.tensor(stored, shape.size() == 3 ? std::vector{shape[0], shape[2]} : shape, type, bytes);
        }
    if (kind.long_rope && !config->rope.factors.empty()) {
        made.number(config->architecture + ".rope.scaling.original_context_length",
                    static_cast<std::uint32_t>(config->rope.original_max_positions));
        made.number(config->architecture + ".rope.scaling.attn_factor",
                    static_cast<float>(config->rope.attention_factor));
        std::string factors;
        for (const float one : config->rope.factors)
            factors += gguf_builder::encoded(one);
        for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
            made.tensor(name, {config->rope.factors.size()}, 0, factors);
    }
    if (config->rope.scaling == kvcache::rope_config::kind::llama3) {
        const auto plain = kvcache::rope::standard_frequencies(config->head_dim, config->rope.theta);
        const auto scaled = kvcache::make_rope(config->rope, config->head_dim);
        std::string factors;
        for (std::size_t i = 0; i < plain.size(); ++i)
            factors += gguf_builder::encoded(static_cast<float>(plain[i] / scaled.frequencies()[i]));
        made.tensor("rope_freqs.weight", {plain.size()}, 0, factors);
    }
    return made;
}
[[nodiscard]] inline gguf_builder gguf_of(const std::filesystem::path& directory, gguf_form form = {}) {
    return gguf_of(
        directory, [](const std::string&, const kvcache::tensor_view& view) { return as_it_is(view); }, form);
}

} // namespace testing_files
