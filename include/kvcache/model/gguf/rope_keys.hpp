// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/formats/gguf_fields.hpp>
#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Reads the keys and tensors of a GGUF file that say how its model rotates queries and keys.
template <class...>
class gguf_rope_reader {
public:
    /// Requires: all outlive it, and the extents of `config` are known.
    gguf_rope_reader(const gguf_checkpoint& file, gguf_fields& fields, const architecture& known, model_config& config)
        : file_(file), fields_(fields), known_(known), config_(config) {}

    void read() {
        rope_config& rope = config_.rope;
        rope.theta = fields_.number(key("rope.freq_base"), known_.theta);
        const std::size_t dim =
            known_.layer_options ? fields_.count(key("attention.key_length"), config_.head_dim) : config_.head_dim;
        const std::size_t turned = fields_.count(key("rope.dimension_count"), dim);
        if (known_.partial_rope && turned < dim)
            config_.rotary_dim = turned;
        else if (turned != dim)
            fields_.refuse(error_code::unsupported, key("rope.dimension_count"),
                           {"it is ", std::to_string(turned), " of ", std::to_string(dim),
                            " dimensions; rotating a part of the head is not supported"});
        // A factor without a type is linear; rope.scale_linear is its older name.
        const double older = fields_.number(key("rope.scale_linear"), 0.0);
        const double factor = fields_.number(key("rope.scaling.factor"), older);
        const std::string_view type = fields_.text(key("rope.scaling.type"));
        if (!type.empty() && type != "none" && type != "linear" && type != "yarn")
            fields_.refuse(error_code::unsupported, key("rope.scaling.type"),
                           {"\"", shown(type), "\" is not supported; none, linear, yarn and rope_freqs.weight are"});
        if (type == "yarn" && factor == 0.0)
            fields_.refuse(error_code::not_found, key("rope.scaling.factor"), {"YaRN needs it"});
        if (type != "none" && factor != 0.0 && factor != 1.0) {
            rope.scaling = type == "yarn" ? rope_config::kind::yarn : rope_config::kind::linear;
            rope.factor = factor;
        }
        if (known_.long_rope)
            read_long_rope();
        else
            fields_.only(key("rope.scaling.attn_factor"), 1, "scaling the scores");
        (void)fields_.find(key("rope.scaling.finetuned"));
        if (rope.scaling == rope_config::kind::yarn)
            read_yarn();
        else // these have a meaning for YaRN only
            for (const std::string_view name : {"original_context_length", "yarn_log_multiplier", "yarn_ext_factor",
                                                "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"})
                (void)fields_.find(key(joined({"rope.scaling.", name})));
        read_rope_factors();
    }

private:
    /// LongRoPE: the factors of the context that the model is for, as for Hugging Face's form.
    void read_long_rope() {
        const std::size_t original = fields_.count(key("rope.scaling.original_context_length"), config_.max_positions);
        config_.rope.original_max_positions = static_cast<double>(original);
        read_factors(config_.max_positions > original ? "rope_factors_long.weight" : "rope_factors_short.weight");
        const double attention = fields_.number(key("rope.scaling.attn_factor"), 1.0);
        if (config_.rope.scaling == rope_config::kind::factors)
            config_.rope.attention_factor = attention;
    }

    void read_yarn() {
        rope_config& rope = config_.rope;
        rope.original_max_positions =
            static_cast<double>(fields_.count(key("rope.scaling.original_context_length"), config_.max_positions));
        rope.beta_fast = fields_.number(key("rope.scaling.yarn_beta_fast"), rope.beta_fast);
        rope.beta_slow = fields_.number(key("rope.scaling.yarn_beta_slow"), rope.beta_slow);
        rope.attention_factor = yarn_attention_factor(rope.factor);
        rope.truncate = known_.yarn_truncates;
        for (const std::string_view name : {"yarn_ext_factor", "yarn_attn_factor"})
            if (const std::string at = key(joined({"rope.scaling.", name})); fields_.number(at, 1.0) != 1.0)
                fields_.refuse(error_code::unsupported, at, {"another mixture of YaRN than 1 is not supported"});
        fields_.only(key("rope.scaling.yarn_log_multiplier"), 0, "another factor of YaRN");
    }

    void read_rope_factors() { read_factors("rope_freqs.weight"); }
    void read_factors(std::string_view name) {
        const gguf_entry* entry = file_.find(name);
        if (entry == nullptr)
            return;
        if (config_.rope.scaling != rope_config::kind::none)
            return fields_.refuse(error_code::unsupported, name, {"factors together with rope.scaling.factor"});
        if (entry->format != block_format::f32 || entry->shape.size() != 1)
            return fields_.refuse(error_code::mismatched, name, {"it must be a vector in F32"});
        config_.rope.factors.resize(entry->shape[0]);
        tensor_view{.shape = entry->shape, .bytes = entry->bytes}.read(0, config_.rope.factors);
        if (known_.layer_options)
            return read_turning(name);
        config_.rope.scaling = rope_config::kind::factors;
    }
    /// The first pairs turn, with the factor 1; the others have a factor so large that they do not.
    void read_turning(std::string_view name) {
        const std::vector<float> factors = std::exchange(config_.rope.factors, {});
        const auto still = std::find_if(factors.begin(), factors.end(), [](float one) { return one >= 1e20F; });
        config_.rope.turning = static_cast<std::size_t>(still - factors.begin());
        if (config_.rope.turning == 0 || std::any_of(factors.begin(), still, [](float one) { return one != 1.0F; }) ||
            std::any_of(still, factors.end(), [](float one) { return one < 1e20F; }))
            fields_.refuse(error_code::unsupported, name, {"its factors are not 1, and then those that stop a pair"});
    }

    [[nodiscard]] std::string key(std::string_view name) const { return joined({known_.name, ".", name}); }

    const gguf_checkpoint& file_;
    gguf_fields& fields_;
    const architecture& known_;
    model_config& config_;
};

}}} // namespace kvcache::detail
