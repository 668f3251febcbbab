// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/formats/gguf_fields.hpp>
#include <kvcache/model/gguf/config.hpp>

#include <algorithm>
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
            read_rope();
        if (!fields_.problem())
            read_flags();
        read_ends();
        refuse_foreign_mathematics();
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
        constexpr std::string_view known[] = {"llama", "qwen2", "qwen3"};
        const std::string_view architecture = fields_.text("general.architecture");
        if (ranges::find(known, architecture) == std::end(known))
            return fields_.refuse(error_code::unsupported, "general.architecture",
                                  {"\"", shown(architecture),
                                   "\" is not supported; llama (Mistral's too), qwen2 and "
                                   "qwen3 are"});
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
        config_.intermediate_size = fields_.count(key("feed_forward_length"), std::nullopt);
        config_.heads = fields_.count(key("attention.head_count"), std::nullopt);
        config_.kv_heads = fields_.count(key("attention.head_count_kv"), config_.heads);
        config_.max_positions = fields_.count(key("context_length"), std::nullopt);
        const double eps = fields_.number(key("attention.layer_norm_rms_epsilon"), std::nullopt);
        config_.rms_norm_eps = eps > 0 && eps < 1 ? static_cast<float>(eps) : 0.0F; // check() rejects 0
        const std::size_t shared = config_.heads == 0 ? 0 : config_.hidden_size / config_.heads;
        if (file_.header().find(key("attention.key_length")) == nullptr && config_.heads != 0 &&
            config_.hidden_size % config_.heads != 0)
            fields_.refuse(error_code::mismatched, key("attention.head_count"),
                           {"embedding_length ", std::to_string(config_.hidden_size), " does not divide by ",
                            std::to_string(config_.heads), ", and attention.key_length is absent"});
        config_.head_dim = fields_.count(key("attention.key_length"), shared);
        if (const std::size_t values = fields_.count(key("attention.value_length"), config_.head_dim);
            values != config_.head_dim)
            fields_.refuse(error_code::unsupported, key("attention.value_length"),
                           {"it is ", std::to_string(values), ", but keys have ", std::to_string(config_.head_dim),
                            " dimensions"});
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

    void read_rope() {
        rope_config& rope = config_.rope;
        rope.theta = fields_.number(key("rope.freq_base"), rope.theta);
        if (const std::size_t turned = fields_.count(key("rope.dimension_count"), config_.head_dim);
            turned != config_.head_dim)
            fields_.refuse(error_code::unsupported, key("rope.dimension_count"),
                           {"it is ", std::to_string(turned), " of ", std::to_string(config_.head_dim),
                            " dimensions; rotating a part of the head is not supported"});
        // A factor without a type is linear; rope.scale_linear is its older name.
        const double older = fields_.number(key("rope.scale_linear"), 0.0);
        const double factor = fields_.number(key("rope.scaling.factor"), older);
        const std::string_view type = fields_.text(key("rope.scaling.type"));
        if (!type.empty() && type != "none" && type != "linear")
            fields_.refuse(error_code::unsupported, key("rope.scaling.type"),
                           {"\"", shown(type), "\" is not supported; none, linear and rope_freqs.weight are"});
        if (type != "none" && factor != 0.0 && factor != 1.0) {
            rope.scaling = rope_config::kind::linear;
            rope.factor = factor;
        }
        fields_.only(key("rope.scaling.attn_factor"), 1, "scaling the scores");
        // These have a meaning for YaRN only.
        for (const std::string_view name : {"original_context_length", "finetuned", "yarn_log_multiplier",
                                            "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"})
            (void)fields_.find(key(joined({"rope.scaling.", name})));
        read_rope_factors();
    }

    void read_rope_factors() {
        const std::string_view name = "rope_freqs.weight";
        const gguf_entry* entry = file_.find(name);
        if (entry == nullptr)
            return;
        if (config_.rope.scaling != rope_config::kind::none)
            return fields_.refuse(error_code::unsupported, name, {"factors together with rope.scaling.factor"});
        if (entry->format != block_format::f32 || entry->shape.size() != 1)
            return fields_.refuse(error_code::mismatched, name, {"it must be a vector in F32"});
        config_.rope.scaling = rope_config::kind::factors;
        config_.rope.factors.resize(entry->shape[0]);
        tensor_view{.shape = entry->shape, .bytes = entry->bytes}.read(0, config_.rope.factors);
    }

    void read_flags() {
        const auto has = [&](std::string_view name) { return file_.find(name) != nullptr; };
        const bool any_bias = config_.architecture == "llama"; // its conversions carry those of the checkpoint
        config_.tied_head = !has("output.weight");
        config_.qkv_bias = config_.architecture == "qwen2" || (any_bias && has("blk.0.attn_q.bias"));
        config_.output_bias = any_bias && has("blk.0.attn_output.bias");
        config_.mlp_bias = any_bias && has("blk.0.ffn_gate.bias");
        config_.qk_norm = config_.architecture == "qwen3";
    }

    void read_ends() {
        const bool sentencepiece = fields_.text("tokenizer.ggml.model") == "llama";
        const auto bos = fields_.id("tokenizer.ggml.bos_token_id");
        if (bos || sentencepiece)
            config_.bos = {bos.value_or(token_id{1})};
        const auto add = [&](std::optional<token_id> id) {
            if (id && ranges::find(config_.eos, *id) == config_.eos.end())
                config_.eos.push_back(*id);
        };
        const auto eos = fields_.id("tokenizer.ggml.eos_token_id");
        add(eos || !sentencepiece ? eos : token_id{2});
        add(fields_.id("tokenizer.ggml.eot_token_id"));
        add(fields_.id("tokenizer.ggml.eom_token_id"));
        for (const std::string_view name : {"eos_token_id", "eot_token_id", "eom_token_id", "bos_token_id"})
            if (const auto id = fields_.id(joined({"tokenizer.ggml.", name}));
                id && static_cast<std::size_t>(index_of(*id)) >= config_.vocabulary)
                fields_.refuse(error_code::out_of_range, joined({"tokenizer.ggml.", name}),
                               {"the model has no token ", std::to_string(index_of(*id))});
        // Files of before the key eot_token_id, and models that end a turn with one of several tokens.
        constexpr std::string_view turn_ends[] = {"<|im_end|>", "<|eot_id|>",    "<|eom_id|>",
                                                  "<|end|>",    "<end_of_turn>", "<|endoftext|>"};
        const gguf_value* tokens = file_.header().find("tokenizer.ggml.tokens");
        std::int32_t id = 0;
        if (tokens != nullptr)
            tokens->each([&](const gguf_value& token) {
                const auto text = token.text().value_or(std::string_view());
                if (text.starts_with('<') && ranges::find(turn_ends, text) != std::end(turn_ends))
                    add(token_id{id});
                ++id;
            });
    }

    /// Rejects every key that would make the model compute something else than the reference transformer.
    void refuse_foreign_mathematics() {
        fields_.only(key("expert_count"), 0, "a mixture of experts");
        fields_.only(key("expert_used_count"), 0, "a mixture of experts");
        fields_.only(key("attention.scale"), 0, "scaling the scores");
        fields_.only(key("attention.clamp_kqv"), 0, "clamping q, k and v");
        fields_.only(key("attention.max_alibi_bias"), 0, "ALiBi");
        fields_.only(key("attn_logit_softcapping"), 0, "soft-capping");
        fields_.only(key("final_logit_softcapping"), 0, "soft-capping");
        for (const std::string_view name : {"logit_scale", "embedding_scale", "residual_scale"})
            fields_.only(key(name), 1, "scaling the stream");
        if (!fields_.flag(key("attention.causal"), true))
            fields_.refuse(error_code::unsupported, key("attention.causal"), {"it is false; another mask"});
        const std::size_t window = fields_.count(key("attention.sliding_window"), 0);
        if (window != 0 && window < config_.max_positions)
            fields_.refuse(error_code::unsupported, key("attention.sliding_window"),
                           {"it is ", std::to_string(window), ", below context_length ",
                            std::to_string(config_.max_positions), "; a sliding window is not supported"});
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
    std::string prefix_ = "general.architecture.";
};

} // namespace detail

KVCACHE_BODY result<model_config> read_model_config(const gguf_checkpoint& file) {
    return detail::gguf_config_reader<>(file).read();
}

}} // namespace kvcache
