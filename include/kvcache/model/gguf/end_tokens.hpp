// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/formats/gguf_fields.hpp>
#include <kvcache/model/config.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Reads the tokens that a text begins with, and those that end an answer.
KVCACHE_LAZY inline void read_gguf_ends(gguf_fields& fields, const gguf_header& header, model_config& config) {
    const bool sentencepiece = fields.text("tokenizer.ggml.model") == "llama";
    const auto bos = fields.id("tokenizer.ggml.bos_token_id");
    if (bos || sentencepiece)
        config.bos = {bos.value_or(token_id{1})};
    const auto add = [&](std::optional<token_id> id) {
        if (id && ranges::find(config.eos, *id) == config.eos.end())
            config.eos.push_back(*id);
    };
    const auto eos = fields.id("tokenizer.ggml.eos_token_id");
    add(eos || !sentencepiece ? eos : token_id{2});
    add(fields.id("tokenizer.ggml.eot_token_id"));
    add(fields.id("tokenizer.ggml.eom_token_id"));
    for (const std::string_view name : {"eos_token_id", "eot_token_id", "eom_token_id", "bos_token_id"})
        if (const auto id = fields.id(joined({"tokenizer.ggml.", name}));
            id && static_cast<std::size_t>(index_of(*id)) >= config.vocabulary)
            fields.refuse(error_code::out_of_range, joined({"tokenizer.ggml.", name}),
                          {"the model has no token ", std::to_string(index_of(*id))});
    // Files of before the key eot_token_id, and models that end a turn with one of several tokens.
    constexpr std::string_view turn_ends[] = {"<|im_end|>", "<|eot_id|>",    "<|eom_id|>",
                                              "<|end|>",    "<end_of_turn>", "<|endoftext|>"};
    const gguf_value* tokens = header.find("tokenizer.ggml.tokens");
    std::int32_t id = 0;
    if (tokens != nullptr)
        tokens->each([&](const gguf_value& token) {
            const auto text = token.text().value_or(std::string_view());
            if (text.starts_with('<') && ranges::find(turn_ends, text) != std::end(turn_ends))
                add(token_id{id});
            ++id;
        });
}

}}} // namespace kvcache::detail
