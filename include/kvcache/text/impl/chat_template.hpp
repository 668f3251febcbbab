// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/jinja/interpreter.hpp>
#include <kvcache/text/jinja/parser.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace text::jinja {

/// Returns a JSON value whose text is all user text. Adds to `size` what a budget counts: the bytes of the text, and
/// `per_value` for each value.
KVCACHE_LAZY [[nodiscard]] inline value from_user(const json& j, std::size_t& size) {
    size += budget::per_value;
    if (j.is_boolean())
        return j.get<bool>();
    if (j.is_number_float() || (j.is_number_unsigned() && j.get<std::uint64_t>() > std::uint64_t{INT64_MAX}))
        return j.get<double>();
    if (j.is_number())
        return j.get<std::int64_t>();
    const auto plain = [&](const std::string& s) {
        size += s.size();
        return tagged_text{s, std::string(s.size(), '\1')};
    };
    if (j.is_string())
        return plain(j.get_ref<const std::string&>());
    if (j.is_array()) {
        list items;
        for (const json& one : j)
            items.push_back(from_user(one, size));
        return items;
    }
    if (j.is_object()) {
        mapping made;
        for (const auto& item : j.get_ref<const json::object_t&>())
            made.add(plain(item.first), from_user(item.second, size));
        return made;
    }
    return value::none{};
}

} // namespace text::jinja

namespace detail {

KVCACHE_LAZY [[nodiscard]] inline chat_family family_of(std::string_view source) {
    const auto has = [&](std::string_view part) { return source.find(part) != source.npos; };
    if (!has("messages"))
        return chat_family::other;
    if (has("<|im_start|>"))
        return chat_family::chatml;
    if (has("<|start_header_id|>"))
        return chat_family::llama3;
    if (has("<start_of_turn>"))
        return chat_family::gemma;
    if (has("[INST]"))
        return has("<<SYS>>") ? chat_family::llama2 : chat_family::mistral;
    const bool bars = has("<|user|>") || has("'<|' +");
    if (bars && has("<|end|>"))
        return chat_family::phi3;
    if (bars && (has("eos_token") || has("</s>") || has("<|endoftext|>")))
        return chat_family::zephyr;
    return chat_family::other;
}

/// Returns a message. A role of the usual set is not marked plain, so that it may be part of a control token ("<|" +
/// role + "|>").
KVCACHE_LAZY [[nodiscard]] inline text::jinja::value chat_message_of(const json& m, std::size_t& size) {
    using text::jinja::value;
    value made = text::jinja::from_user(m, size);
    const auto& role = m["role"].get_ref<const std::string&>();
    constexpr std::array<std::string_view, 7> usual{"system",    "user",  "assistant", "tool",
                                                    "developer", "model", "ipython"};
    if (std::find(usual.begin(), usual.end(), role) != usual.end())
        for (auto& [name, v] : made.as_mapping()->entries)
            if (name.bytes == "role")
                v = std::string_view(role);
    return made;
}

/// `cut`: see chat_options.
KVCACHE_LAZY [[nodiscard]] inline rendered_chat segments_of(const text::tagged_text& rendered, const std::string& cut,
                                                            text::jinja::budget& spent) {
    rendered_chat out;
    bool after_cut = false;
    const auto add = [&](std::string text, bool control) {
        if (!text.empty())
            out.segments.push_back({std::move(text), control, std::exchange(after_cut, false)});
    };
    for (std::size_t i = 0, end = 0; i < rendered.bytes.size(); i = end) {
        const bool plain = rendered.marked() && rendered.plain[i] != '\0';
        end = rendered.marked() ? rendered.plain.find(plain ? '\0' : '\1', i) : std::string::npos;
        end = std::min(end, rendered.bytes.size());
        spent.text(2 * sizeof(text_segment) + end - i);
        std::size_t at = i;
        for (std::size_t next = 0; plain && !cut.empty() && (next = rendered.bytes.find(cut, at)) < end;
             at = next + cut.size()) {
            add(rendered.bytes.substr(at, next - at), false);
            after_cut = true;
        }
        add(rendered.bytes.substr(at, end - at), !plain);
    }
    return out;
}

/// Errors: mismatched, for tools that are not null and not a list of objects.
KVCACHE_LAZY [[nodiscard]] inline result<void> check_tools(const json& tools) {
    if (!tools.is_null() && !tools.is_array())
        return error{error_code::mismatched, "tools", "is not a list"};
    for (std::size_t i = 0; i < tools.size(); ++i)
        if (!tools[i].is_object())
            return error{error_code::mismatched, kvcache::detail::joined({"tools[", std::to_string(i), "]"}),
                         "is not an object"};
    return {};
}

} // namespace detail

struct chat_template::state {
    chat_family family = chat_family::other;
    std::map<std::string, std::string> special_tokens = {};
    text::jinja::block body = {};

    KVCACHE_LAZY [[nodiscard]] result<rendered_chat> rendered(const json& messages, const chat_options& options) const {
        using namespace text::jinja;
        if (!messages.is_array())
            return error{error_code::mismatched, "messages", "is not a list"};
        list made;
        std::size_t size = 0;
        for (const json& m : messages) {
            if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
                return error{error_code::mismatched,
                             kvcache::detail::joined({"messages[", std::to_string(made.size()), "].role"}),
                             "is missing or not a string"};
            made.push_back(kvcache::detail::chat_message_of(m, size));
        }
        std::map<std::string, value, std::less<>> names;
        for (const auto& [name, token] : special_tokens)
            names[name] = std::string_view(token);
        for (const char* name : {"tools", "documents"})
            names[name] = value::none{};
        if (auto sound = kvcache::detail::check_tools(options.tools); !sound)
            return sound.error();
        if (const auto* more = options.variables.get_ptr<const json::object_t*>())
            for (const auto& item : *more)
                names[item.first] = from_user(item.second, size);
        if (!options.tools.is_null())
            names["tools"] = from_user(options.tools, size);
        names["messages"] = std::move(made);
        names["add_generation_prompt"] = options.add_generation_prompt;
        try {
            budget spent(size, options.stop);
            return kvcache::detail::segments_of(interpreter(std::move(names), options.now, spent).run(body),
                                                options.cut, spent);
        } catch (const failure& f) {
            return f.reason;
        }
    }
};

KVCACHE_BODY result<chat_template> chat_template::open(const tokenizer& words, const std::string& name) {
    const std::string* source = words.config().try_chat_template(name);
    if (!source)
        return error{error_code::not_found, "chat_template",
                     detail::joined(
                         {"there is no chat template \"", name, "\" in tokenizer_config.json or chat_template.jinja"})};
    return parse(*source, words.config().special_tokens());
}

KVCACHE_BODY result<chat_template> chat_template::parse(std::string_view source,
                                                        const std::map<std::string, std::string>& special_tokens) {
    constexpr std::size_t longest = 1u << 20;
    if (source.size() > longest)
        return error{error_code::unsupported, "chat_template", "the template is longer than a mebibyte"};
    if (const auto bad = text::first_invalid_utf8(source))
        return error{error_code::malformed, "chat_template",
                     detail::joined({"byte ", std::to_string(*bad), " is not UTF-8"})};
    auto made = std::make_shared<state>();
    made->family = detail::family_of(source);
    made->special_tokens = special_tokens;
    try {
        made->body = text::jinja::parser(source).run();
    } catch (const text::jinja::failure& f) {
        return f.reason;
    }
    return chat_template(std::move(made));
}

KVCACHE_BODY result<rendered_chat> chat_template::render(std::span<const chat_message> messages,
                                                         const chat_options& options) const {
    json list = json::array();
    for (const chat_message& m : messages) {
        json one = m.more;
        one["role"] = m.role;
        one["content"] = m.content;
        list.push_back(std::move(one));
    }
    return state_->rendered(list, options);
}

KVCACHE_BODY result<rendered_chat> chat_template::render(const json& messages, const chat_options& options) const {
    return state_->rendered(messages, options);
}

KVCACHE_BODY bool chat_template::takes_parsed_arguments() const {
    const json function = {
        {"name", "lookup"}, {"description", ""}, {"parameters", {{"type", "object"}, {"properties", json::object()}}}};
    const json call = {
        {"id", "call00001"}, {"type", "function"}, {"function", {{"name", "lookup"}, {"arguments", {{"needle", 1}}}}}};
    json messages = json::array({json{{"role", "user"}, {"content", "x"}},
                                 json{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}}});
    std::tm now{};
    now.tm_mday = 1;
    chat_options options{.add_generation_prompt = false, .now = now};
    options.tools = json::array({json{{"type", "function"}, {"function", function}}});
    for (const char* content : {"", "x"}) {
        const auto made = state_->rendered(messages, options);
        const std::string text = made ? made->text() : std::string();
        if (text.find("needle") != std::string::npos)
            return text.find("'needle'") == std::string::npos; // Python's notation, by a template that wants text
        messages[1]["content"] = content;
    }
    return false;
}

KVCACHE_BODY chat_family chat_template::family() const noexcept {
    return state_->family;
}

}} // namespace kvcache
