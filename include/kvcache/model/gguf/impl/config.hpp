// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/formats/gguf_fields.hpp>
#include <kvcache/model/architectures/all.hpp>
#include <kvcache/model/gguf/config.hpp>
#include <kvcache/model/gguf/end_tokens.hpp>
#include <kvcache/model/gguf/layer_keys.hpp>
#include <kvcache/model/gguf/mixer_keys.hpp>
#include <kvcache/model/gguf/rope_keys.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Reads the keys of one architecture.
template <class...>
class gguf_config_reader {
public:
    explicit gguf_config_reader(const gguf_checkpoint& file) : file_(file), fields_(file.header(), file.name()) {}

    [[nodiscard]] result<model_config> read() {
        read_kind();
        if (!fields_.problem())
            read_extents();
        if (!fields_.problem())
            gguf_rope_reader<>(file_, fields_, *known_, config_).read();
        if (!fields_.problem())
            read_blocks();
        if (!fields_.problem())
            read_gguf_mixers(fields_, file_, *known_, config_);
        if (!fields_.problem())
            read_windows();
        if (!fields_.problem())
            read_gguf_layer_options(fields_, file_, *known_, config_);
        if (known_ != nullptr) {
            read_gguf_ends(fields_, file_.header(), config_);
            refuse_foreign_mathematics();
        }
        fields_.refuse_unread(prefix_);
        if (fields_.problem())
            return *fields_.problem();
        if (const auto fine = config_.check(); !fine) {
            const std::string key = key_of(fine.error().field);
            return error{fine.error().code, key, joined({file_.name(), ": ", key, ": ", fine.error().message})};
        }
        return config_;
    }

private:
    [[nodiscard]] std::string key(std::string_view name) const { return joined({prefix_, name}); }

    void read_kind() {
        const std::string_view architecture = fields_.text("general.architecture");
        known_ = find_architecture(architecture);
        if (known_ == nullptr || !known_->has_gguf)
            return fields_.refuse(error_code::unsupported, "general.architecture",
                                  {"\"", shown(architecture), "\" is not supported; ",
                                   list_of_architectures(&kvcache::architecture::name),
                                   " are; files of Mistral's models name llama"});
        const std::string_view type = fields_.text("general.type");
        if (!type.empty() && type != "model")
            fields_.refuse(error_code::unsupported, "general.type", {"it is \"", shown(type), "\", not a model"});
        const std::size_t revision = fields_.count("general.quantization_version", 2);
        if (revision != 2 && quantized())
            fields_.refuse(error_code::unsupported, "general.quantization_version",
                           {"it is ", std::to_string(revision), "; blocks of version 2 are read"});
        config_.architecture = architecture;
        prefix_ = config_.architecture + ".";
    }
    [[nodiscard]] bool quantized() const {
        const gguf_entry* embedding = file_.find("token_embd.weight");
        return embedding != nullptr && is_quantized(embedding->format);
    }

    void read_extents() {
        config_.hidden_size = fields_.count(key("embedding_length"), std::nullopt);
        config_.layers = fields_.count(key("block_count"), std::nullopt);
        if (config_.layers > file_.size()) // before a list of their weights is made
            fields_.refuse(error_code::mismatched, key("block_count"),
                           {"it is ", std::to_string(config_.layers), ", but the file has ",
                            std::to_string(file_.size()), " tensors"});
        config_.intermediate_size =
            read_gguf_layer_counts(fields_,
                                   key(known_->expert_size != 0 && fields_.find(key("feed_forward_length")) == nullptr
                                           ? "expert_feed_forward_length"
                                           : "feed_forward_length"),
                                   known_->layer_options ? &layer_config::intermediate_size : nullptr, config_);
        config_.heads = fields_.count(key("attention.head_count"), std::nullopt);
        read_gguf_kv_heads(fields_, key("attention.head_count_kv"), *known_, config_);
        config_.max_positions = fields_.count(key("context_length"), std::nullopt);
        const double eps = fields_.number(key("attention.layer_norm_rms_epsilon"), std::nullopt);
        config_.rms_norm_eps = eps > 0 && eps < 1 ? static_cast<float>(eps) : 0.0F; // check() rejects 0
        const std::size_t shared = config_.heads == 0 ? 0 : config_.hidden_size / config_.heads;
        if (file_.header().find(key("attention.key_length")) == nullptr && config_.heads != 0 &&
            config_.hidden_size % config_.heads != 0)
            fields_.refuse(error_code::mismatched, key("attention.head_count"),
                           {"embedding_length ", std::to_string(config_.hidden_size), " does not divide by ",
                            std::to_string(config_.heads), ", and attention.key_length is absent"});
        for (const std::string_view of : {"", "_swa"}) {
            if (!of.empty() && !known_->layer_options)
                break;
            const std::string keys = key(joined({"attention.key_length", of}));
            const std::string stated = key(joined({"attention.value_length", of}));
            config_.head_dim = fields_.count(keys, of.empty() ? shared : config_.head_dim);
            if (const std::size_t values = fields_.count(stated, config_.head_dim); values != config_.head_dim)
                fields_.refuse(error_code::unsupported, stated,
                               {"it is ", std::to_string(values), ", but keys have ", std::to_string(config_.head_dim),
                                " dimensions"});
        }
        read_vocabulary();
    }

    /// The rows of the embedding. The list of tokens and the key must say the same, where they are there.
    void read_vocabulary() {
        const gguf_entry* embedding = file_.find("token_embd.weight");
        if (embedding == nullptr || embedding->shape.size() != 2)
            return fields_.refuse(
                error_code::not_found, "token_embd.weight",
                {"the file has no such matrix: it is a vocabulary alone, or not of this architecture"});
        config_.vocabulary = embedding->shape[0];
        const std::size_t stated = fields_.count(key("vocab_size"), config_.vocabulary);
        const gguf_value* tokens =
            fields_.array("tokenizer.ggml.tokens", "strings", [](gguf_type t) { return t == gguf_type::string; });
        const auto check = [&](const std::string& field, std::size_t listed) {
            if (listed != config_.vocabulary)
                fields_.refuse(error_code::mismatched, field,
                               {"it says ", std::to_string(listed), " tokens; token_embd.weight has ",
                                std::to_string(config_.vocabulary), " rows"});
        };
        check("tokenizer.ggml.tokens", tokens != nullptr ? tokens->size() : config_.vocabulary);
        check(key("vocab_size"), stated);
    }

    void read_blocks() {
        const auto has = [&](weight_role role) {
            return file_.find(joined({"blk.0.", known_->naming(role).gguf, ".bias"})) != nullptr;
        };
        config_.tied_head = file_.find("output.weight") == nullptr;
        config_.qkv_bias = known_->qkv_bias || (known_->bias_option && has(weight_role::query));
        config_.output_bias = known_->bias_option && has(weight_role::attention_output);
        config_.mlp_bias = known_->mlp_bias_option && has(weight_role::gate);
        config_.qk_norm = known_->qk_norm;
        config_.norms = known_->norms;
        config_.gate = known_->gate;
        config_.sinks = known_->sinks;
        if (known_->scaled_embedding)
            config_.embedding_scale = std::sqrt(static_cast<float>(config_.hidden_size));
        config_.score_scale = static_cast<float>(known_->scores_times);
        if (known_->scaled_by_hidden != 0 && known_->scaled_by_hidden == config_.layers)
            config_.score_scale = scale_of(config_.hidden_size / config_.heads);
        if (known_->caps) {
            config_.score_cap = factor("attn_logit_softcapping", known_->score_cap);
            config_.logit_cap = factor("final_logit_softcapping", known_->logit_cap);
        }
        if (known_->experts && fields_.count(key("expert_count"), 0) > 0) {
            config_.experts.count = fields_.count(key("expert_count"), 0);
            config_.experts.used = fields_.count(key("expert_used_count"), std::nullopt);
            config_.experts.size = fields_.count(key("expert_feed_forward_length"), config_.intermediate_size);
            if (known_->shared_size != 0 || known_->joined_mlp)
                config_.experts.shared = fields_.count(key("expert_shared_feed_forward_length"), known_->shared_size);
            config_.experts.scored_shared = known_->scored_shared;
            config_.experts.biased = known_->biased_experts;
            config_.experts.normalized = fields_.flag(key("expert_weights_norm"), true);
        }
        if (known_->multipliers) {
            config_.embedding_scale = factor("embedding_scale", 1.0);
            config_.residual_scale = factor("residual_scale", 1.0);
            config_.score_scale = factor("attention.scale", 0.0);
            config_.logit_scale = 1.0F / factor("logit_scale", 1.0);
        }
    }
    [[nodiscard]] static float scale_of(std::size_t dimensions) noexcept {
        return 1.0F / std::sqrt(static_cast<float>(dimensions));
    }
    [[nodiscard]] float factor(std::string_view name, double fallback) {
        return static_cast<float>(fields_.number(key(name), fallback));
    }

    /// Which layers have a window, and their rotation.
    void read_windows() {
        const bool two_ropes = known_->window_theta != 0.0; // which layers have the other is not known without a window
        const std::size_t window =
            fields_.count(key("attention.sliding_window"), two_ropes ? std::nullopt : std::optional(known_->window));
        if (config_.experts.count > 0) {
            config_.each_layer.resize(config_.layers);
            for (std::size_t i = 0; i < config_.layers; ++i)
                config_.each_layer[i].experts =
                    file_.find(joined({"blk.", std::to_string(i), ".ffn_gate_inp.weight"})) != nullptr;
        }
        if (known_->unrotated_period != 0) {
            config_.each_layer.resize(config_.layers);
            for (std::size_t i = 0; i < config_.layers; ++i)
                config_.each_layer[i].rotates = (i + 1) % known_->unrotated_period != 0;
        }
        if (window == 0 || (window >= config_.max_positions && !two_ropes))
            return;
        if (known_->window_period == 0)
            return fields_.refuse(error_code::unsupported, key("attention.sliding_window"),
                                  {"it is ", std::to_string(window), ", below context_length ",
                                   std::to_string(config_.max_positions), "; this architecture has no sliding window"});
        const std::size_t period = known_->window_period;
        config_.each_layer.resize(config_.layers);
        for (std::size_t i = 0; i < config_.layers; ++i)
            config_.each_layer[i].window = period == 1 || (i + 1) % period != 0 ? window : 0;
        const std::string stated = key("attention.sliding_window_pattern");
        if (const auto* list = fields_.array(stated, "flags", [](gguf_type t) { return t == gguf_type::boolean; })) {
            if (list->size() != config_.layers)
                return fields_.refuse(
                    error_code::mismatched, stated,
                    {"it describes ", std::to_string(list->size()), " layers of ", std::to_string(config_.layers)});
            std::size_t i = 0;
            list->each([&](const gguf_value& on) { config_.each_layer[i++].window = on.flag() == true ? window : 0; });
        }
        if (known_->window_theta != 0.0)
            config_.window_rope = rope_config{.theta = fields_.number(key("rope.freq_base_swa"), known_->window_theta)};
    }

    /// Rejects every key that would make the model compute something else than the reference transformer.
    void refuse_foreign_mathematics() {
        for (const std::string_view name : {"expert_count", "expert_used_count"})
            if (!known_->experts)
                fields_.only(key(name), 0, "a mixture of experts");
        if (config_.experts.count == 0)
            (void)fields_.find(key("expert_used_count"));
        if (config_.experts.count == 0) // dense models of a family that has experts say how wide one would be
            fields_.only(key("expert_shared_feed_forward_length"), static_cast<double>(config_.intermediate_size),
                         "a shared expert");
        fields_.only(key("expert_weights_scale"), 0, "scaling the shares of experts");
        if (!known_->multipliers)
            fields_.only(key("attention.scale"), 0, "scaling the scores");
        fields_.only(key("attention.clamp_kqv"), 0, "clamping q, k and v");
        fields_.only(key("attention.max_alibi_bias"), 0, "ALiBi");
        if (!known_->caps)
            for (const std::string_view name : {"attn_logit_softcapping", "final_logit_softcapping"})
                fields_.only(key(name), 0, "soft-capping");
        if (!known_->multipliers)
            for (const std::string_view name : {"logit_scale", "embedding_scale", "residual_scale"})
                fields_.only(key(name), 1, "scaling the stream");
        if (!fields_.flag(key("attention.causal"), true))
            fields_.refuse(error_code::unsupported, key("attention.causal"), {"it is false; another mask"});
        // Of the order in which an older converter stored tensors, and of embeddings: neither changes the logits.
        (void)fields_.find(key("tensor_data_layout"));
        (void)fields_.find(key("pooling_type"));
    }

    /// The key of a field of model_config::check().
    [[nodiscard]] std::string key_of(const std::string& field) const {
        constexpr std::pair<std::string_view, std::string_view> names[] = {
            {"hidden_size", "embedding_length"},
            {"intermediate_size", "feed_forward_length"},
            {"layers", "block_count"},
            {"heads", "attention.head_count"},
            {"kv_heads", "attention.head_count_kv"},
            {"head_dim", "attention.key_length"},
            {"max_positions", "context_length"},
            {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
            {"rope.theta", "rope.freq_base"},
            {"rope.factor", "rope.scaling.factor"},
        };
        for (const auto& [ours, theirs] : names)
            if (field == ours)
                return key(theirs);
        if (field == "vocabulary")
            return "token_embd.weight";
        return field == "rope.factors" ? "rope_freqs.weight" : field;
    }

    const gguf_checkpoint& file_;
    gguf_fields fields_;
    model_config config_;
    const kvcache::architecture* known_ = nullptr;
    std::string prefix_ = "general.architecture.";
};

} // namespace detail

KVCACHE_BODY result<model_config> read_model_config(const gguf_checkpoint& file) {
    return detail::gguf_config_reader<>(file).read();
}

}} // namespace kvcache
