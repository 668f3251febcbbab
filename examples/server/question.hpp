// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/text/chat_template.hpp>

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "field_reader.hpp"
#include "unsupported_fields.hpp"

namespace server {

/// A request, read from its body.
struct question {
    bool chat = true;
    std::vector<kvcache::chat_message> messages = {}; // for a chat
    std::string prompt = {};                          // for a completion
    std::vector<kvcache::token_id> prompt_ids = {};   // for a completion, instead of `prompt`
    std::string model = {};
    std::string user = {};
    kvcache::sampler draw = {}; ///< With a random seed, unless the request has one.
    std::optional<std::size_t> max_tokens = {};
    std::vector<std::string> stop = {};
    std::size_t choices = 1;
    std::optional<std::size_t> log_probabilities = {};
    bool ignore_eos = false;
    bool stream = false;
    bool include_usage = false;
    bool show_tokens = false; ///< For the web page: report which tokens were reused.
    bool token_ids = false;   ///< Return the token ids of the answer too.
};

namespace detail {

// Returns the text of a string, or of a list of parts of type text.
inline std::string content_of(field_reader& fields, const std::string& name, const sent_json& content) {
    if (content.is_string())
        return content.get<std::string>();
    std::string made;
    if (!content.is_array()) {
        fields.refuse(name, "must be a string or a list of parts");
        return made;
    }
    for (const sent_json& part : content)
        if (part.is_object() && part.value("type", sent_json()) == "text" && part.contains("text") &&
            part["text"].is_string())
            made += part["text"].get<std::string>();
        else
            fields.refuse(name, "may hold parts of type text alone");
    return made;
}

inline void read_messages(field_reader& fields, question& into) {
    const sent_json* list = fields.find("messages");
    if (list == nullptr || !list->is_array() || list->empty())
        return fields.refuse("messages", "must be a list of at least one message");
    for (const sent_json& each : *list) {
        const std::string name = "messages[" + std::to_string(into.messages.size()) + "]";
        if (!each.is_object() || !each.contains("role") || !each["role"].is_string())
            return fields.refuse(name + ".role", "is missing or not a string");
        kvcache::chat_message message{.role = each["role"].get<std::string>()};
        if (each.contains("content") && !each["content"].is_null())
            message.content = content_of(fields, name + ".content", each["content"]);
        else if (message.role != "assistant")
            return fields.refuse(name + ".content", "is missing");
        into.messages.push_back(std::move(message));
    }
}

inline void read_prompt(field_reader& fields, question& into) {
    const sent_json* prompt = fields.find("prompt");
    if (prompt != nullptr && prompt->is_array() && prompt->size() == 1 && prompt->front().is_string())
        prompt = &prompt->front();
    if (prompt != nullptr && prompt->is_string()) {
        into.prompt = prompt->get<std::string>();
        return;
    }
    if (prompt == nullptr || !prompt->is_array() || prompt->empty())
        return fields.refuse("prompt", "must be a string or a list of token ids");
    for (const sent_json& id : *prompt) {
        if (!id.is_number_integer() || id.get<double>() < 0.0 || id.get<double>() > 2147483647.0)
            return fields.refuse("prompt", "must be a string or a list of token ids");
        into.prompt_ids.push_back(kvcache::token_id{id.get<std::int32_t>()});
    }
}

inline void read_stop(field_reader& fields, question& into) {
    const sent_json* stop = fields.find("stop");
    if (stop == nullptr)
        return;
    if (stop->is_string())
        into.stop.push_back(stop->get<std::string>());
    else if (stop->is_array() && stop->size() <= 16)
        for (const sent_json& each : *stop)
            if (each.is_string())
                into.stop.push_back(each.get<std::string>());
            else
                fields.refuse("stop", "must be a string or a list of strings");
    else
        fields.refuse("stop", "must be a string or a list of at most 16 strings");
}

inline void read_bias(field_reader& fields, question& into) {
    const sent_json* bias = fields.find("logit_bias");
    if (bias == nullptr)
        return;
    if (!bias->is_object())
        return fields.refuse("logit_bias", "must be an object from token ids to numbers");
    for (const auto& [key, value] : bias->items()) {
        std::int32_t id = 0;
        const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (fault != std::errc() || end != key.data() + key.size() || !value.is_number() ||
            std::abs(value.get<double>()) > 100.0)
            return fields.refuse("logit_bias", "must be an object from token ids to numbers from -100 to 100");
        into.draw.bias.push_back({kvcache::token_id{id}, value.get<float>()});
    }
}

inline void read_log_probabilities(field_reader& fields, question& into) {
    std::size_t top = 0;
    if (!into.chat) {
        if (fields.find("logprobs") != nullptr) {
            fields.number("logprobs", top, 0, 20);
            into.log_probabilities = top;
        }
        return;
    }
    bool wanted = false;
    fields.flag("logprobs", wanted);
    fields.number("top_logprobs", top, 0, 20);
    if (wanted)
        into.log_probabilities = top;
    else if (top > 0)
        fields.refuse("top_logprobs", "needs logprobs");
}

// Returns the seed of a request, any 64-bit integer. Without one, or with -1 as for llama.cpp, it is drawn, and a
// double holds it exactly, so that every client can send it again.
inline std::uint64_t read_seed(field_reader& fields) {
    const sent_json* seed = fields.find("seed");
    if (seed == nullptr || (!seed->is_number_unsigned() && *seed == -1)) { // unsigned, 2^64 - 1 would equal -1
        std::random_device draw;
        return ((std::uint64_t{draw()} << 32) | draw()) >> 11;
    }
    if (!seed->is_number_integer())
        fields.refuse("seed", "must be an integer of 64 bits");
    return fields.problem() ? 0 : seed->get<std::uint64_t>();
}

} // namespace detail

/// Reads a body. Errors: malformed, with the invalid field.
[[nodiscard]] inline kvcache::result<question> read_question(const sent_json& body, bool chat) {
    if (!body.is_object())
        return kvcache::error{kvcache::error_code::malformed, "body", "invalid json: the body must be an object"};
    question made{.chat = chat};
    field_reader fields(body);
    chat ? detail::read_messages(fields, made) : detail::read_prompt(fields, made);
    fields.text("model", made.model);
    fields.text("user", made.user);
    made.draw.temperature = 1.0f;
    constexpr double many = 1e9;
    fields.number("temperature", made.draw.temperature, 0, 100);
    made.draw.seed = detail::read_seed(fields);
    if (const sent_json* all = fields.find("top_k"); all == nullptr || *all != -1) // -1: no limit, as for vLLM
        fields.number("top_k", made.draw.top_k, 0, many);
    fields.number("top_p", made.draw.top_p, 0, 1);
    fields.number("min_p", made.draw.min_p, 0, 1);
    fields.number("repetition_penalty", made.draw.repetition_penalty, 0, 100);
    fields.number("frequency_penalty", made.draw.frequency_penalty, -2, 2);
    fields.number("presence_penalty", made.draw.presence_penalty, -2, 2);
    for (const char* name : {"max_tokens", "max_completion_tokens"})
        if (fields.find(name) != nullptr)
            fields.number(name, made.max_tokens.emplace(), 0, many);
    if (!chat && !made.max_tokens)
        made.max_tokens = 16;
    fields.number("n", made.choices, 1, 64);
    fields.flag("ignore_eos", made.ignore_eos);
    fields.flag("stream", made.stream);
    fields.flag("kvcache_tokens", made.show_tokens);
    fields.flag("return_token_ids", made.token_ids);
    if (const sent_json* wanted = fields.find("stream_options")) {
        field_reader inner(*wanted);
        inner.flag("include_usage", made.include_usage);
        if (!wanted->is_object() || inner.problem())
            fields.refuse("stream_options", "must be an object with include_usage, true or false");
    }
    detail::read_stop(fields, made);
    detail::read_bias(fields, made);
    detail::read_log_probabilities(fields, made);
    refuse_unsupported(fields, body);
    if (fields.problem())
        return *fields.problem();
    return made;
}

} // namespace server
