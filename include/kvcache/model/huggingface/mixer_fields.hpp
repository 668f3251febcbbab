// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/json.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// What "layer_types" calls the recurrent layers of an architecture.
[[nodiscard]] constexpr std::string_view recurrent_type(layer_mixer mixer) noexcept {
    return mixer == layer_mixer::short_convolution ? "conv" : mixer == layer_mixer::attention ? "" : "linear_attention";
}

/// Reads the sizes of Mamba-2 layers.
KVCACHE_LAZY inline void read_mamba2(json_fields& fields, model_config& config) {
    recurrence_config& of = config.recurrence;
    const std::size_t width = fields.count("mamba_expand", 2) * config.hidden_size;
    of = {.taps = fields.count("mamba_d_conv", 4),
          .key_heads = fields.count("mamba_n_groups", 1),
          .value_heads = fields.count("mamba_n_heads", 128),
          .key_dim = fields.count("mamba_d_state", 256),
          .biased = fields.flag("mamba_conv_bias", true)};
    const json* stated = fields.find("mamba_d_head");
    const bool automatic = stated == nullptr || json_fields::says(*stated, "auto");
    of.value_dim = !automatic            ? fields.count("mamba_d_head", std::nullopt)
                   : of.value_heads == 0 ? 0
                                         : width / of.value_heads;
    if (of.value_heads > 4096 || of.value_dim > 4096 || of.value_heads * of.value_dim != width)
        fields.refuse(error_code::mismatched, "mamba_n_heads",
                      {std::to_string(of.value_heads), " heads of ", std::to_string(of.value_dim),
                       " are not mamba_expand times ", std::to_string(config.hidden_size)});
    fields.only("mamba_proj_bias", false, "a projection with biases");
    const json* limits = fields.find("time_step_limit"); // 0 and infinity, for which JSON has no number
    if (limits != nullptr &&
        !(limits->is_array() && limits->size() == 2 && same_json((*limits)[0], 0) && !(*limits)[1].is_number()))
        fields.refuse(error_code::unsupported, "time_step_limit",
                      {"limits of the time step are not supported; it is ", json_fields::as_text(*limits)});
}

/// Reads the sizes of recurrent layers.
KVCACHE_LAZY inline void read_recurrence(json_fields& fields, const architecture& known, model_config& config) {
    config.gated_attention = known.gated_attention;
    config.mixer = known.mixer;
    config.joined_mlp = known.joined_mlp;
    if (known.mixer == layer_mixer::mamba2)
        read_mamba2(fields, config);
    if (known.mixer == layer_mixer::short_convolution) {
        config.recurrence.taps = fields.count("conv_L_cache", 3);
        fields.only("conv_bias", false, "a convolution with biases");
    } else if (known.mixer == layer_mixer::gated_delta) {
        config.recurrence = {.taps = fields.count("linear_conv_kernel_dim", 4),
                             .key_heads = fields.count("linear_num_key_heads", 16),
                             .value_heads = fields.count("linear_num_value_heads", 32),
                             .key_dim = fields.count("linear_key_head_dim", 128),
                             .value_dim = fields.count("linear_value_head_dim", 128),
                             .joined_heads = known.joined_heads,
                             .joined_rates = known.joined_heads};
    }
}

/// Which layers are recurrent where "layer_types" is absent: all but each n-th, or all but those of a list.
KVCACHE_LAZY [[nodiscard]] inline std::vector<bool>
read_recurrent_layers(json_fields& fields, const architecture& known, std::size_t layers) {
    std::vector<bool> all(layers, false);
    if (known.mixer == layer_mixer::attention)
        return all;
    if (known.attention_period != 0) {
        const std::size_t period = fields.count("full_attention_interval", known.attention_period);
        for (std::size_t i = 0; i < layers; ++i)
            all[i] = period == 0 || (i + 1) % period != 0;
        return all;
    }
    const json* attending = fields.find("full_attn_idxs"); // without it all layers attend
    if (attending == nullptr)
        return all;
    all.assign(layers, true);
    for (const json& layer : *attending) {
        if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= layers) {
            fields.refuse(error_code::malformed, "full_attn_idxs", "it must be a list of layers");
            return all;
        }
        all[layer.get<std::size_t>()] = false;
    }
    return all;
}

/// Reads the size of the MLP, which files of LFM2 may say before it is adjusted to a multiple.
KVCACHE_LAZY [[nodiscard]] inline std::size_t read_intermediate_size(json_fields& fields, const architecture& known) {
    if (known.joined_mlp) // the MLP that all tokens use
        return fields.count("shared_intermediate_size", 1024);
    if (known.expert_size != 0 && !fields.present("intermediate_size")) // no layer has a dense MLP
        return fields.count("moe_intermediate_size", known.expert_size);
    if (known.mixer != layer_mixer::short_convolution)
        return fields.count("intermediate_size", std::nullopt);
    std::size_t size = fields.present("block_ff_dim") ? fields.count("block_ff_dim", std::nullopt)
                                                      : fields.count("intermediate_size", std::nullopt);
    const std::size_t multiple = fields.count("block_multiple_of", 256);
    const double factor = fields.number("block_ffn_dim_multiplier", 1.0);
    if (!fields.flag("block_auto_adjust_ff_dim", true) || size > (std::size_t{1} << 30) || multiple == 0 ||
        !(factor > 0.0 && factor < 1e6))
        return size;
    size = 2 * size / 3;
    size = static_cast<std::size_t>(factor * static_cast<double>(size));
    return (size + multiple - 1) / multiple * multiple;
}

}}} // namespace kvcache::detail
