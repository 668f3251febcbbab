// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "../support/reuse_flags.hpp"
#include "chat_fields.hpp"
#include "field_reader.hpp"
#include "question.hpp"
#include "unsupported_fields.hpp"

namespace server {

namespace detail {

// Returns token ids; none if the list has anything else.
inline std::optional<std::vector<kvcache::token_id>> ids_of(const sent_json& list) {
    std::vector<kvcache::token_id> made;
    for (const sent_json& id : list) {
        if (!id.is_number_integer() || id.get<double>() < 0.0 || id.get<double>() > 2147483647.0)
            return std::nullopt;
        made.push_back(kvcache::token_id{id.get<std::int32_t>()});
    }
    return made;
}

// A string, a list of token ids, or a list of either: one prompt each.
inline void read_prompts(field_reader& fields, question& into) {
    constexpr std::size_t most = 128;
    constexpr const char* wanted = "must be a string, a list of token ids, or a list of at most 128 of these";
    const auto read = [&](const sent_json& one) {
        if (one.is_string()) {
            into.prompts.push_back({.text = one.get<std::string>()});
            return true;
        }
        auto ids = one.is_array() && !one.empty() ? ids_of(one) : std::nullopt;
        if (ids)
            into.prompts.push_back({.ids = std::move(*ids)});
        return ids.has_value();
    };
    const sent_json* prompt = fields.find("prompt");
    if (prompt == nullptr)
        return fields.refuse("prompt", wanted);
    if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
        bool good = prompt->size() <= most;
        for (std::size_t i = 0; good && i < prompt->size(); ++i)
            good = read((*prompt)[i]);
        if (!good)
            fields.refuse("prompt", wanted);
    } else if (!read(*prompt)) {
        fields.refuse("prompt", wanted);
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
    if (std::ranges::any_of(into.stop, [](const std::string& each) { return each.size() > 1024; }))
        fields.refuse("stop", "may have strings of at most 1024 bytes");
}

inline void read_bias(field_reader& fields, question& into) {
    const sent_json* bias = fields.find("logit_bias");
    if (bias == nullptr)
        return;
    if (!bias->is_object() || bias->size() > 4096)
        return fields.refuse("logit_bias", "must be an object from at most 4096 token ids to numbers");
    for (const auto& [key, value] : bias->items()) {
        std::int32_t id = 0;
        const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (fault != std::errc() || end != key.data() + key.size() || !value.is_number() ||
            std::abs(value.get<double>()) > 100.0)
            return fields.refuse("logit_bias", "must be an object from token ids to numbers from -100 to 100");
        into.sampling.bias.push_back({kvcache::token_id{id}, value.get<float>()});
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

// What a request reuses: {"mode": "chunks", "recompute": "head", "rows": 16}, or "recompute": "head:16"; for blend and
// gradual it has "percent" and no "rows".
inline void read_cache(field_reader& fields, question& into) {
    const sent_json* asked = fields.find("cache");
    if (asked == nullptr)
        return;
    if (!asked->is_object())
        return fields.refuse("cache", "must be an object with mode, recompute, rows and percent");
    field_reader inner(*asked);
    std::string mode, recompute;
    std::size_t rows = 0, percent = 0;
    inner.text("mode", mode);
    inner.text("recompute", recompute);
    inner.number("rows", rows, 1, 65536);
    inner.number("percent", percent, 1, 100);
    if (inner.problem())
        return fields.refuse("cache." + inner.problem()->field,
                             inner.problem()->message.substr(inner.problem()->field.size() + 1));
    for (const auto& [name, value] : asked->items())
        if (name != "mode" && name != "recompute" && name != "rows" && name != "percent")
            return fields.refuse("cache." + name.substr(0, 64), "is not supported");
    if (asked->contains("mode") && !(into.mode = support::read_mode(mode)))
        return fields.refuse("cache.mode", "is baseline, prefix or chunks");
    if (rows > 0 && recompute != "head" && recompute != "boundary")
        return fields.refuse("cache.rows", "is for recompute head or boundary");
    if (percent > 0 && recompute != "blend" && recompute != "gradual")
        return fields.refuse("cache.percent", "is for recompute blend or gradual");
    if (asked->contains("recompute")) {
        if (const std::size_t number = rows + percent; number > 0)
            recompute += ":" + std::to_string(number);
        auto read = kvcache::any_recompute::named(recompute);
        if (!read)
            return fields.refuse("cache.recompute", "is none, head, boundary, blend, gradual or full");
        into.recompute = *read;
    }
}

// Returns the seed of a request, any 64-bit integer. Without one, or with -1 as for llama.cpp, it is drawn, and a
// double holds it exactly, so that every client can send it again.
inline std::uint64_t read_seed(field_reader& fields) {
    const sent_json* seed = fields.find("seed");
    if (seed == nullptr || (!seed->is_number_unsigned() && *seed == -1)) { // unsigned, 2^64 - 1 would equal -1
        std::random_device device;
        return ((std::uint64_t{device()} << 32) | device()) >> 11;
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
    if (chat) {
        detail::read_messages(fields, made);
        detail::read_tools(fields, made);
        detail::read_variables(fields, made);
    } else {
        detail::read_prompts(fields, made);
        fields.flag("echo", made.echo);
    }
    fields.text("model", made.model);
    fields.text("user", made.user);
    fields.text("cache_salt", made.cache_salt);
    if (made.cache_salt.size() > 256 || (made.cache_salt.empty() && fields.find("cache_salt") != nullptr))
        fields.refuse("cache_salt", "must have from 1 to 256 bytes");
    made.sampling.temperature = 1.0f;
    constexpr double many = 1e9;
    fields.number("temperature", made.sampling.temperature, 0, 100);
    made.sampling.seed = detail::read_seed(fields);
    if (const sent_json* all = fields.find("top_k"); all == nullptr || *all != -1) // -1: no limit, as for vLLM
        fields.number("top_k", made.sampling.top_k, 0, many);
    fields.number("top_p", made.sampling.top_p, 0, 1);
    fields.number("min_p", made.sampling.min_p, 0, 1);
    fields.number("repetition_penalty", made.sampling.repetition_penalty, 0, 100);
    fields.number("frequency_penalty", made.sampling.frequency_penalty, -2, 2);
    fields.number("presence_penalty", made.sampling.presence_penalty, -2, 2);
    for (const char* name : {"max_tokens", "max_completion_tokens"})
        if (fields.find(name) != nullptr)
            fields.number(name, made.max_tokens.emplace(), 0, many);
    if (!chat && !made.max_tokens)
        made.max_tokens = 16;
    fields.number("n", made.choices, 1, 64);
    fields.number("priority", made.priority, -1e9, 1e9);
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
    detail::read_cache(fields, made);
    detail::read_stop(fields, made);
    detail::read_bias(fields, made);
    detail::read_log_probabilities(fields, made);
    if (made.echo && made.stream && made.log_probabilities)
        fields.refuse("echo", "with logprobs cannot be streamed");
    refuse_unsupported(fields, body, chat);
    if (fields.problem())
        return *fields.problem();
    return made;
}
/// Reads a body's text. Errors: malformed.
[[nodiscard]] inline kvcache::result<question> read_question(const std::string& text, bool chat) {
    const auto body = read_body(text);
    if (!body)
        return body.error();
    auto made = read_question(*body, chat);
    if (made)
        detail::keep_order(text, *made);
    return made;
}

} // namespace server
