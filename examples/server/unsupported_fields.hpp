// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "field_reader.hpp"

namespace server {

/// Fields of a chat or a completion that the server reads.
inline constexpr std::array<std::string_view, 25> common_fields{"model",
                                                                "user",
                                                                "cache_salt",
                                                                "cache",
                                                                "temperature",
                                                                "seed",
                                                                "top_k",
                                                                "top_p",
                                                                "min_p",
                                                                "logprobs",
                                                                "repetition_penalty",
                                                                "stop",
                                                                "logit_bias",
                                                                "frequency_penalty",
                                                                "presence_penalty",
                                                                "max_tokens",
                                                                "n",
                                                                "ignore_eos",
                                                                "priority",
                                                                "stream",
                                                                "stream_options",
                                                                "max_completion_tokens",
                                                                "top_logprobs",
                                                                "kvcache_tokens",
                                                                "return_token_ids"};
inline constexpr std::array<std::string_view, 4> chat_fields{"messages", "tools", "tool_choice",
                                                             "chat_template_kwargs"};
inline constexpr std::array<std::string_view, 2> completion_fields{"prompt", "echo"};

/// Fields of OpenAI's and vLLM's APIs that cannot change an answer: accounting, routing and caching.
inline constexpr std::array<std::string_view, 8> inert_fields{
    "metadata",         "store",      "service_tier",        "safety_identifier",
    "prompt_cache_key", "request_id", "parallel_tool_calls", "prompt_cache_retention"};

/// The default of an unsupported field, as JSON text. A request may contain the field with this value.
struct neutral_value {
    std::string_view field, value;
};
inline constexpr std::array neutral_values{
    neutral_value{"add_generation_prompt", "true"},
    neutral_value{"best_of", "1"},
    neutral_value{"chat_template_kwargs", "{}"},
    neutral_value{"continue_final_message", "false"},
    neutral_value{"echo", "false"},
    neutral_value{"function_call", R"("none")"},
    neutral_value{"functions", "[]"},
    neutral_value{"include_stop_str_in_output", "false"},
    neutral_value{"min_tokens", "0"},
    neutral_value{"response_format", R"({"type":"text"})"},
    neutral_value{"stop_token_ids", "[]"},
    neutral_value{"suffix", R"("")"},
    neutral_value{"tool_choice", R"("none")"},
    neutral_value{"tools", "[]"},
    neutral_value{"typical_p", "1"},
    neutral_value{"use_beam_search", "false"},
};

/// Returns whether the field has no effect with its value. Null is no value.
[[nodiscard]] inline bool is_neutral(const std::string& name, const sent_json& value) {
    return value.is_null() || std::ranges::any_of(neutral_values, [&](const neutral_value& each) {
               return each.field == name && sent_json::parse(each.value) == value;
           });
}

/// Refuses the first field that the server does not read for a chat or a completion, because it might change the
/// answer.
inline void refuse_unsupported(field_reader& fields, const sent_json& body, bool chat) {
    const auto among = [](const auto& list, const std::string& name) {
        return std::ranges::find(list, name) != list.end();
    };
    for (const auto& [name, value] : body.items())
        if (!among(common_fields, name) && !(chat ? among(chat_fields, name) : among(completion_fields, name)) &&
            !among(inert_fields, name) && !is_neutral(name, value))
            return fields.refuse(name.empty() ? "\"\"" : name.substr(0, 64), "is not supported");
}

} // namespace server
