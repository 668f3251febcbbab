// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/json.hpp>
#include <kvcache/text/chat_template.hpp>

#include <cstddef>
#include <string>
#include <utility>

#include "field_reader.hpp"
#include "question.hpp"

namespace server::detail {

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
        for (const char* more : {"name", "tool_calls", "tool_call_id", "reasoning_content"})
            if (each.contains(more) && !each[more].is_null())
                message.more[more] = kvcache::json(each[more]);
        if (each.contains("content") && !each["content"].is_null())
            message.content = content_of(fields, name + ".content", each["content"]);
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
    for (std::size_t i = 0; tools != nullptr && i < tools->size(); ++i)
        if (!(*tools)[i].is_object() || (*tools)[i].value("type", sent_json()) != "function")
            return fields.refuse("tools[" + std::to_string(i) + "]", "must be an object of type function");
    const sent_json* choice = fields.find("tool_choice");
    if (choice != nullptr && *choice != "none" && *choice != "auto")
        return fields.refuse("tool_choice", "must be auto or none");
    if (tools != nullptr && !tools->empty() && (choice == nullptr || *choice == "auto"))
        into.tools = kvcache::json(*tools);
    else if (choice != nullptr && *choice == "auto")
        fields.refuse("tool_choice", "needs tools");
}

} // namespace server::detail
