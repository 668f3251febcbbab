// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Where a block normalizes: what enters attention and MLP, what they give, or both.
enum class norm_placement { before, after, both };

/// The function of an MLP's gate.
enum class gate_function {
    silu,         ///< x / (1 + e^-x)
    gelu,         ///< GELU by tanh (Hendrycks & Gimpel 2016): x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
    clamped_silu, ///< g / (1 + e^(-alpha g)), g = min(x, limit); times 1 + the other half, within +-limit (gpt-oss)
};

/// What is RMS-normalized of q and k before RoPE.
enum class head_norm {
    none,
    each, ///< Each head, over head_dim.
    all,  ///< All heads together.
};

/// What a weight of a model is for.
enum class weight_role {
    embedding,
    final_norm,
    head,
    attention_norm,
    query,
    key,
    value,
    query_key_value, ///< The three in one matrix, where an architecture stores them so.
    query_norm,
    key_norm,
    attention_sinks, ///< A logit of each head that takes part in the softmax and has no value.
    attention_output,
    attention_output_norm,
    mlp_norm,
    gate,
    up,
    gate_up, ///< The two in one matrix, likewise.
    down,
    mlp_output_norm,
    router, ///< Of a mixture of experts.
    expert_gate,
    expert_up,
    expert_gate_up, ///< The two of one expert.
    expert_down,
    shared_gate, ///< Of the expert that all tokens use.
    shared_up,
    shared_gate_up,
    shared_down,
    shared_router,     ///< How much of it a token uses.
    mixer_input,       ///< Of a recurrent layer: all that it reads, or
    mixer_convolved,   ///< what is convolved,
    mixer_gate,        ///< the gate of its output,
    mixer_rate,        ///< how much it learns,
    mixer_decay_input, ///< and how much it forgets; or
    mixer_heads,       ///< the first two by key head,
    mixer_rates,       ///< and the last two.
    mixer_convolution,
    mixer_time_bias,
    mixer_decay, ///< Checkpoints of Hugging Face store log(-x).
    mixer_skip,
    mixer_norm,
    mixer_output,
    layer_scale,           ///< Factor of the stream after a layer.
    per_layer_embedding,   ///< What a token gives to each layer,
    per_layer_projection,  ///< what its embedding gives,
    per_layer_norm,        ///< and the norm of that, for each layer;
    per_layer_gate,        ///< in a layer: the gate of its own input,
    per_layer_output,      ///< what that gives to the stream,
    per_layer_output_norm, ///< and its norm.
};

/// What mixes the tokens of a layer.
enum class layer_mixer {
    attention,
    short_convolution, ///< A convolution over a few tokens between two gates (LFM2).
    gated_delta,       ///< A linear recurrence by the gated delta rule (Qwen3.5).
    mamba2,            ///< A selective state space (Dao & Gu 2024), as in Granite 4.
};

/// Names of a weight, without ".weight" unless they are whole. Those of a layer follow "model.layers.3." and "blk.3.".
/// The number of an expert takes the place of "*"; a GGUF file has all experts in one tensor.
struct weight_naming {
    weight_role role = {};
    std::string_view huggingface = {};
    std::string_view gguf = {};
    bool whole = false;
};

/// The names of most architectures.
inline constexpr weight_naming common_names[] = {
    {weight_role::embedding, "model.embed_tokens", "token_embd"},
    {weight_role::final_norm, "model.norm", "output_norm"},
    {weight_role::head, "lm_head", "output"},
    {weight_role::attention_norm, "input_layernorm", "attn_norm"},
    {weight_role::query, "self_attn.q_proj", "attn_q"},
    {weight_role::key, "self_attn.k_proj", "attn_k"},
    {weight_role::value, "self_attn.v_proj", "attn_v"},
    {weight_role::query_norm, "self_attn.q_norm", "attn_q_norm"},
    {weight_role::key_norm, "self_attn.k_norm", "attn_k_norm"},
    {weight_role::attention_sinks, "self_attn.sinks", "attn_sinks.weight", true},
    {weight_role::attention_output, "self_attn.o_proj", "attn_output"},
    {weight_role::mlp_norm, "post_attention_layernorm", "ffn_norm"},
    {weight_role::gate, "mlp.gate_proj", "ffn_gate"},
    {weight_role::up, "mlp.up_proj", "ffn_up"},
    {weight_role::down, "mlp.down_proj", "ffn_down"},
    {weight_role::router, "mlp.gate", "ffn_gate_inp"},
    {weight_role::expert_gate, "mlp.experts.*.gate_proj", "ffn_gate_exps"},
    {weight_role::expert_up, "mlp.experts.*.up_proj", "ffn_up_exps"},
    {weight_role::expert_down, "mlp.experts.*.down_proj", "ffn_down_exps"},
    {weight_role::shared_gate, "mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {weight_role::shared_up, "mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {weight_role::shared_down, "mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {weight_role::shared_router, "mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {weight_role::mixer_heads, "linear_attn.in_proj_qkvz", "ssm_in"},
    {weight_role::mixer_rates, "linear_attn.in_proj_ba", "ssm_ba"},
    {weight_role::mixer_convolved, "linear_attn.in_proj_qkv", "attn_qkv"},
    {weight_role::mixer_gate, "linear_attn.in_proj_z", "attn_gate"},
    {weight_role::mixer_rate, "linear_attn.in_proj_b", "ssm_beta"},
    {weight_role::mixer_decay_input, "linear_attn.in_proj_a", "ssm_alpha"},
    {weight_role::mixer_convolution, "linear_attn.conv1d", "ssm_conv1d"},
    {weight_role::mixer_time_bias, "linear_attn.dt_bias", "ssm_dt.bias", true},
    {weight_role::mixer_decay, "linear_attn.A_log", "ssm_a", true},
    {weight_role::mixer_norm, "linear_attn.norm", "ssm_norm"},
    {weight_role::mixer_output, "linear_attn.out_proj", "ssm_out"},
    {weight_role::layer_scale, "layer_scalar", "layer_output_scale.weight", true},
    {weight_role::per_layer_embedding, "model.embed_tokens_per_layer", "per_layer_token_embd"},
    {weight_role::per_layer_projection, "model.per_layer_model_projection", "per_layer_model_proj"},
    {weight_role::per_layer_norm, "model.per_layer_projection_norm", "per_layer_proj_norm"},
    {weight_role::per_layer_gate, "per_layer_input_gate", "inp_gate"},
    {weight_role::per_layer_output, "per_layer_projection", "proj"},
    {weight_role::per_layer_output_norm, "post_per_layer_input_norm", "post_norm"},
};

/// A family of models: what its blocks do, the names of its weights, and what its files mean by what they do not say.
/// Each is a table in a file of its own; a reader takes from a file what the table says that the family has, and
/// refuses everything else.
struct architecture {
    std::string_view name = {};       ///< model_config::architecture, and general.architecture of a GGUF file.
    std::string_view model_type = {}; ///< Of config.json.
    std::string_view class_name = {}; ///< In "architectures" of config.json.

    // Blocks.
    norm_placement norms = norm_placement::before;
    gate_function gate = gate_function::silu;
    bool gelu_is_tanh = false; ///< "gelu" in a file of Hugging Face means GELU by tanh.
    head_norm qk_norm = head_norm::none;
    bool qkv_bias = false;         ///< q, k and v always have a bias.
    bool bias_option = false;      ///< attention_bias applies to q, k, v and o.
    bool bias_default = false;     ///< Default of attention_bias.
    bool mlp_bias_option = false;  ///< mlp_bias applies.
    bool sinks = false;            ///< Each head has a learned attention sink.
    bool scaled_embedding = false; ///< The embedding is multiplied by sqrt(hidden_size).
    bool score_scale = false;      ///< query_pre_attn_scalar^-0.5 is the factor of scores.
    double scores_times = 0.0;     ///< Factor of scores; 0: head_dim^-0.5.
    bool value_norm = false;       ///< v is normalized, without a weight.
    bool caps = false;             ///< Scores and logits may be soft-capped.
    bool multipliers = false;      ///< Factors of embedding, residual stream, scores and logits (Granite).
    bool fused = false;            ///< q, k and v are stored as one matrix, and so are gate and up.
    bool joined_mlp = false;       ///< Hugging Face stores gate and up as one matrix.
    bool norm_offset = false;      ///< Checkpoints of Hugging Face store the weights of norms less 1.

    /// Layers may have sizes and inputs of their own, and read the keys and values of others, as in Gemma 4.
    bool layer_options = false;

    layer_mixer mixer = layer_mixer::attention; ///< Of layers that are recurrent, if there are any.
    std::size_t attention_period = 0; ///< n: all layers but each n-th are recurrent. A list in the file comes first.
    bool joined_heads = false;        ///< Hugging Face stores q, k, v and gate by key head, and both forms the rates.
    bool tiled_values = false;        ///< GGUF files have the i-th value head of every key head, for i ascending.
    bool gated_attention = false;     ///< q's projection gives a gate of the output too.

    bool experts = false;            ///< MLPs may be mixtures of experts.
    bool biased_experts = false;     ///< Experts and their router have biases.
    bool mxfp4_experts = false;      ///< Directories of Hugging Face may have them in MXFP4.
    bool normalized_experts = false; ///< The shares of a token's experts always sum to 1; else norm_topk_prob says so.
    bool partial_rope = false;       ///< RoPE may rotate a part of each head.
    double rotary_part = 1.0;        ///< Default of partial_rotary_factor.
    bool long_rope = false;          ///< RoPE may have factors for short and for long contexts.

    // Windows.
    /// Which layers have a window: 0: none; 1: all; n: all but each n-th. A list in the file comes first.
    std::size_t window_period = 0;
    bool window_switch = false; ///< There is a window only with use_sliding_window.
    std::size_t window = 0;     ///< Default of sliding_window; 0: none.
    double window_theta = 0.0;  ///< RoPE base of layers with a window, without scaling; 0: that of all layers.
    std::string_view window_theta_field = {}; ///< Its field of config.json.

    std::size_t unrotated_period = 0; ///< n: every n-th layer has no RoPE; 0: all have.

    bool rope_option = false; ///< There is RoPE only with position_embedding_type rope; rope.scaling.finetuned in GGUF.
    bool rope_sections = false; ///< Positions have sections, which are alike in a text.
    bool rope_required = false; ///< The default of RoPE's parameters is not the usual one: files say them.
    bool yarn_truncates = true; ///< Default of "truncate", and what GGUF files mean, which have no key for it.

    // Defaults of config.json; 0: derived from other fields, or required.
    std::size_t kv_heads = 0; ///< num_key_value_heads; 0: the number of heads.
    std::size_t head_dim = 0; ///< 0: hidden_size / heads.
    std::size_t max_positions = 0;
    double eps = 1e-6;
    std::string_view eps_field = "rms_norm_eps";
    double theta = 10000.0;
    std::int32_t bos = -1, eos = -1; ///< Where the fields are absent; -1: none.
    bool tied_head = false;
    double score_cap = 0.0; ///< attn_logit_softcapping, where there are caps.
    double logit_cap = 0.0; ///< final_logit_softcapping.

    std::size_t expert_count = 0; ///< num_local_experts.
    std::size_t experts_used = 0; ///< num_experts_per_tok.
    std::size_t expert_size = 0;  ///< moe_intermediate_size; 0: intermediate_size.
    std::size_t shared_size = 0;  ///< shared_expert_intermediate_size; 0: there is no shared expert.
    bool scored_shared = true;    ///< What the shared expert gives has a factor of its own.

    // GGUF.
    bool has_gguf = true;     ///< False: files of these models name another architecture.
    bool interleaved = false; ///< Rows of q and k are stored interleaved.
    /// Scores of the model with so many layers are scaled by (hidden_size / heads)^-0.5, which no key says.
    std::size_t scaled_by_hidden = 0;

    /// Names that differ from common_names.
    std::span<const weight_naming> names = {};

    /// The names of a weight.
    [[nodiscard]] constexpr weight_naming naming(weight_role role) const noexcept {
        for (const weight_naming& one : names)
            if (one.role == role)
                return one;
        for (const weight_naming& one : common_names)
            if (one.role == role)
                return one;
        return {};
    }
};

}} // namespace kvcache
