// SPDX-License-Identifier: MIT
//
// tokenize --model DIR|FILE.gguf [--chat]
//
// Reads JSON lines and writes one line for each.
//   {"text", "add_special_tokens"}        ->  {"ids", "decoded"}    "clean_up_tokenization_spaces": true is honored
//   {"messages", "add_generation_prompt"} ->  {"text", "ids"}       with --chat
// A line that fails is answered by {"error": {"field", "message"}}; the exit status is then 1.
#include <kvcache/formats/json.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <ctime>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/guarded.hpp"

namespace {

using kvcache::json;
using kvcache::result;

json numbers(const std::vector<kvcache::token_id>& tokens) {
    json out = json::array();
    for (const auto t : tokens)
        out.push_back(kvcache::index_of(t));
    return out;
}

kvcache::error wrong(const char* field, const char* what) {
    return {kvcache::error_code::mismatched, field, what};
}

/// Returns a boolean member, or `otherwise` if it is missing.
result<bool> flag(const json& line, const char* name, bool otherwise) {
    const auto found = line.find(name);
    if (found == line.end() || found->is_null())
        return otherwise;
    if (!found->is_boolean())
        return wrong(name, "is not true or false");
    return found->get<bool>();
}

result<json> answer_text(const kvcache::tokenizer& words, const json& line) {
    const auto text = line.find("text");
    if (text == line.end() || !text->is_string())
        return wrong("text", "is missing or not a string");
    const auto add = flag(line, "add_special_tokens", true);
    if (!add)
        return add.error();
    const auto tidy = flag(line, "clean_up_tokenization_spaces", false);
    if (!tidy)
        return tidy.error();
    const auto tokens = words.encode(text->get_ref<const std::string&>(), {.add_special_tokens = *add});
    if (!tokens)
        return tokens.error();
    return json{{"ids", numbers(*tokens)}, {"decoded", words.decode(*tokens, {.clean_up_spaces = *tidy})}};
}

result<json> answer_chat(const kvcache::tokenizer& words, const kvcache::chat_template& chat, const json& line) {
    const auto messages = line.find("messages");
    if (messages == line.end())
        return wrong("messages", "is missing");
    const auto add = flag(line, "add_generation_prompt", false);
    if (!add)
        return add.error();
    const std::time_t now = std::time(nullptr);
    kvcache::chat_options options{.add_generation_prompt = *add, .now = *std::localtime(&now)};
    for (const auto& [name, value] : line.items())
        if (name != "messages" && name != "add_generation_prompt")
            options.variables[name] = value;
    const auto rendered = chat.render(*messages, options);
    if (!rendered)
        return rendered.error();
    const auto tokens = words.encode(rendered->segments, false); // the template writes <s> itself
    if (!tokens)
        return tokens.error();
    return json{{"text", rendered->text()}, {"ids", numbers(*tokens)}};
}

int fail(const kvcache::error& e) {
    std::cerr << "tokenize: " << e.field << ": " << e.message << "\n";
    return 1;
}

int program(int argc, char** argv) {
    std::filesystem::path model;
    bool chats = false;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        if (argument == "--chat") {
            chats = true;
        } else if (argument == "--model" && i + 1 < argc) {
            model = argv[++i];
        } else {
            std::cerr << "usage: tokenize --model DIR|FILE.gguf [--chat] < LINES\n";
            return 1;
        }
    }
    if (model.empty()) {
        std::cerr << "tokenize: --model DIR or FILE.gguf is missing\n";
        return 1;
    }
    const auto words = kvcache::tokenizer::open(model);
    if (!words)
        return fail(words.error());
    std::optional<kvcache::chat_template> chat;
    if (chats) {
        auto opened = kvcache::chat_template::open(*words, "default");
        if (!opened)
            return fail(opened.error());
        chat = *opened;
    }

    bool failed = false;
    for (std::string line; std::getline(std::cin, line);) {
        if (line.find_first_not_of(" \t\r") == std::string::npos)
            continue;
        const auto answer = [&]() -> result<json> {
            const auto asked = kvcache::parse_json(line, "the line");
            if (!asked)
                return asked.error();
            if (!asked->is_object())
                return wrong("the line", "is not an object");
            return chat ? answer_chat(*words, *chat, *asked) : answer_text(*words, *asked);
        }();
        if (answer) {
            std::cout << answer->dump() << "\n";
        } else {
            failed = true;
            const json reason{{"field", answer.error().field}, {"message", answer.error().message}};
            std::cout << json{{"error", reason}}.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
        }
    }
    return failed ? 1 : 0;
}

} // namespace

int main(int argc, char** argv) {
    return support::guarded("tokenize", [&] { return program(argc, argv); });
}
