// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Name in a GGUF file of the weight with this Hugging Face name: "blk.3.attn_q.weight" for
/// "model.layers.3.self_attn.q_proj.weight". Empty for a name that weight_names.hpp does not give.
KVCACHE_LAZY [[nodiscard]] inline std::string gguf_name(std::string_view name) {
    constexpr std::pair<std::string_view, std::string_view> whole[] = {
        {"model.embed_tokens.", "token_embd."}, {"model.norm.", "output_norm."}, {"lm_head.", "output."}};
    constexpr std::pair<std::string_view, std::string_view> parts[] = {
        {"input_layernorm.", "attn_norm."},    {"self_attn.q_proj.", "attn_q."},
        {"self_attn.k_proj.", "attn_k."},      {"self_attn.v_proj.", "attn_v."},
        {"self_attn.o_proj.", "attn_output."}, {"self_attn.q_norm.", "attn_q_norm."},
        {"self_attn.k_norm.", "attn_k_norm."}, {"post_attention_layernorm.", "ffn_norm."},
        {"mlp.gate_proj.", "ffn_gate."},       {"mlp.up_proj.", "ffn_up."},
        {"mlp.down_proj.", "ffn_down."}};
    for (const auto& [theirs, ours] : whole)
        if (name.starts_with(theirs))
            return std::string(ours).append(name.substr(theirs.size()));
    constexpr std::string_view layers = "model.layers.";
    const std::size_t dot = name.starts_with(layers) ? name.find('.', layers.size()) : name.npos;
    if (dot == name.npos)
        return {};
    const std::string_view number = name.substr(layers.size(), dot - layers.size()), part = name.substr(dot + 1);
    for (const auto& [theirs, ours] : parts)
        if (part.starts_with(theirs))
            return std::string("blk.").append(number).append(".").append(ours).append(part.substr(theirs.size()));
    return {};
}

}} // namespace kvcache
