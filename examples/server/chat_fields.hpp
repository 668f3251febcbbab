// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/json.hpp>
#include <kvcache/text/chat_template.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "field_reader.hpp"
#include "question.hpp"

namespace server::detail {

// Returns the text of a string, or of a list of parts of type text. Adds the parts that are marked as chunks.
inline std::string content_of(field_reader& fields, const std::string& name, const sent_json& content,
                              std::size_t message, std::vector<support::marked_part>& marked) {
    if (content.is_string())
        return content.get<std::string>();
    std::string made;
    if (!content.is_array()) {
        fields.refuse(name, "must be a string or a list of parts");
        return made;
    }
    for (const sent_json& part : content)
        if (part.is_object() && part.value("type", sent_json()) == "text" && part.contains("text") &&
            part["text"].is_string()) {
            const auto& text = part["text"].get_ref<const std::string&>();
            if (part.value("cache", sent_json()) == "chunk" && !text.empty())
                marked.push_back({message, made.size(), text.size()});
            else if (part.contains("cache") && part["cache"] != "chunk" && !part["cache"].is_null())
                fields.refuse(name, "has a part whose cache is not chunk");
            made += text;
        } else
            fields.refuse(name, "may hold parts of type text alone");
    return made;
}

// Checks the calls of an assistant's message: their arguments are an object, as JSON text or as such.
inline void check_calls(field_reader& fields, const std::string& name, const sent_json& calls) {
    if (!calls.is_array())
        return fields.refuse(name, "must be a list");
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const std::string call = name + "[" + std::to_string(i) + "]";
        if (!calls[i].is_object() || calls[i].value("type", sent_json("function")) != "function")
            return fields.refuse(call, "must be an object of type function");
        if (!calls[i].contains("function") || !calls[i]["function"].is_object())
            return fields.refuse(call + ".function", "is missing or not an object");
        const sent_json& function = calls[i]["function"];
        if (!function.contains("name") || !function["name"].is_string())
            return fields.refuse(call + ".function.name", "is missing or not a string");
        const sent_json arguments = function.value("arguments", sent_json::object());
        if (arguments.is_object() || arguments.is_null() || arguments == "")
            continue;
        const auto parsed = arguments.is_string() ? read_body(arguments.get_ref<const std::string&>())
                                                  : kvcache::result<sent_json>(sent_json());
        if (!parsed || !parsed->is_object())
            return fields.refuse(call + ".function.arguments", "must be a JSON object");
    }
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
        for (const char* more : {"name", "tool_call_id", "reasoning_content"})
            if (each.contains(more) && !each[more].is_null()) {
                if (!each[more].is_string())
                    return fields.refuse(name + "." + more, "must be a string");
                message.more[more] = kvcache::json(each[more]);
            }
        if (each.contains("tool_calls") && !each["tool_calls"].is_null()) {
            check_calls(fields, name + ".tool_calls", each["tool_calls"]);
            message.more["tool_calls"] = kvcache::json(each["tool_calls"]);
        }
        if (each.contains("content") && !each["content"].is_null())
            message.content = content_of(fields, name + ".content", each["content"], into.messages.size(), into.marked);
        else if (message.role != "assistant")
            return fields.refuse(name + ".content", "is missing");
        into.messages.push_back(std::move(message));
    }
}

// Tools are for the template, which writes them into the prompt; the model decides whether it calls one.
inline void read_tools(field_reader& fields, question& into) {
    const sent_json* tools = fields.find("tools");
    if (tools != nullptr && !tools->is_array())
        return fields.refuse("tools", "must be a list");
    for (std::size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
        const std::string name = "tools[" + std::to_string(i) + "]";
        const sent_json& tool = (*tools)[i];
        if (!tool.is_object() || tool.value("type", sent_json()) != "function")
            return fields.refuse(name, "must be an object of type function");
        if (!tool.contains("function") || !tool["function"].is_object())
            return fields.refuse(name + ".function", "is missing or not an object");
        const sent_json& function = tool["function"];
        if (!function.contains("name") || !function["name"].is_string())
            return fields.refuse(name + ".function.name", "is missing or not a string");
        if (function.contains("parameters") && !function["parameters"].is_null() && !function["parameters"].is_object())
            return fields.refuse(name + ".function.parameters", "must be an object");
    }
    const sent_json* choice = fields.find("tool_choice");
    if (choice != nullptr && *choice != "none" && *choice != "auto")
        return fields.refuse("tool_choice", "must be auto or none");
    if (tools != nullptr && !tools->empty() && (choice == nullptr || *choice == "auto"))
        into.tools = kvcache::json(*tools);
    else if (choice != nullptr && *choice == "auto")
        fields.refuse("tool_choice", "needs tools");
}

// Further variables of the template, as vLLM has them: "enable_thinking".
inline void read_variables(field_reader& fields, question& into) {
    if (const sent_json* variables = fields.find("chat_template_kwargs")) {
        if (!variables->is_object())
            return fields.refuse("chat_template_kwargs", "must be an object");
        for (const auto& [name, value] : variables->items())
            if (name == "messages" || name == "tools" || name == "add_generation_prompt" || name.ends_with("_token"))
                return fields.refuse("chat_template_kwargs." + name.substr(0, 64), "is set by the server");
        into.variables = kvcache::json(*variables);
    }
}

// Takes what the template writes as JSON from the body's text again: with the keys in the order that the client sent.
// The body has been read without an error.
inline void keep_order(const std::string& text, question& into) {
    const auto calls = [](const kvcache::chat_message& m) { return m.more.contains("tool_calls"); };
    if (into.tools.is_null() && into.variables.empty() && std::ranges::none_of(into.messages, calls))
        return;
    const auto body = kvcache::parse_json(text, "invalid json");
    if (!body)
        return;
    if (!into.tools.is_null())
        into.tools = (*body)["tools"];
    if (!into.variables.empty())
        into.variables = (*body)["chat_template_kwargs"];
    const kvcache::json& messages = (*body)["messages"];
    for (std::size_t i = 0; i < into.messages.size(); ++i)
        if (calls(into.messages[i]))
            into.messages[i].more["tool_calls"] = messages[i]["tool_calls"];
}

// Gives calls the form that the template takes their arguments in: objects, or their JSON text.
inline void convert_arguments(std::vector<kvcache::chat_message>& messages, bool parsed) {
    for (kvcache::chat_message& message : messages)
        if (message.more.contains("tool_calls"))
            for (kvcache::json& call : message.more["tool_calls"]) {
                kvcache::json& arguments = call["function"]["arguments"];
                if (arguments.is_null() || arguments == "")
                    arguments = kvcache::json::object();
                if (arguments.is_string() && parsed) {
                    if (auto object = kvcache::parse_json(arguments.get_ref<const std::string&>(), "arguments"))
                        arguments = std::move(*object);
                } else if (arguments.is_object() && !parsed) {
                    arguments = arguments.dump();
                }
            }
}

} // namespace server::detail
