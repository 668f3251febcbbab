// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/json.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The common ways to write a chat, by the marks that a template writes around a message.
enum class chat_family {
    chatml,  ///< <|im_start|>role ... <|im_end|>: Qwen, SmolLM, many others.
    llama2,  ///< [INST] <<SYS>> ... <</SYS>> ... [/INST]
    llama3,  ///< <|start_header_id|>role<|end_header_id|> ... <|eot_id|>
    zephyr,  ///< <|user|> ... </s>: Zephyr, TinyLlama.
    mistral, ///< [INST] ... [/INST] without <<SYS>>
    phi3,    ///< <|user|> ... <|end|>
    gemma,   ///< <start_of_turn>role ... <end_of_turn>
    other,
};

/// A message of a chat.
struct chat_message {
    std::string role = "user";
    std::string content = {};
};

/// How a chat is rendered.
struct chat_options {
    bool add_generation_prompt = true;
    std::optional<std::tm> now = {}; ///< The date that some templates write; without it they take their fixed one.
    json variables = json::object(); ///< More names for the template: "tools", "enable_thinking".
};

/// A chat as text, in parts that know who wrote them.
struct rendered_chat {
    std::vector<text_segment> segments = {};

    /// All parts in one.
    KVCACHE_LAZY [[nodiscard]] std::string text() const {
        std::string out;
        for (const text_segment& s : segments)
            out += s.text;
        return out;
    }
};

/// Writes chats as a model expects them, by carrying out its own template (the part of Jinja that chat templates use).
/// What the messages hold stays marked as theirs through every operation, so that tokenizer::encode never reads control
/// tokens from it. A cheap copy of one immutable state.
class chat_template {
public:
    /// Takes the template that stands in the tokenizer's directory. `name` is "default" for the usual one.
    KVCACHE_ONCE [[nodiscard]] static result<chat_template> open(const tokenizer& words, const std::string& name);

    /// Takes the text of a template. `special_tokens` gives "bos_token", "eos_token" and their like.
    /// Returns: an error where the template is of no known family, or uses what this library does not run.
    KVCACHE_ONCE [[nodiscard]] static result<chat_template>
    parse(std::string_view source, const std::map<std::string, std::string>& special_tokens);

    /// As parse, for a template of any family.
    KVCACHE_ONCE [[nodiscard]] static result<chat_template>
    parse_any(std::string_view source, const std::map<std::string, std::string>& special_tokens);

    KVCACHE_ONCE [[nodiscard]] chat_family family() const noexcept;

    /// Renders messages. Returns: an error where the template refuses them (a role, an order), or cannot be carried
    /// out.
    KVCACHE_ONCE [[nodiscard]] result<rendered_chat> render(std::span<const chat_message> messages,
                                                            const chat_options& options) const;

    /// Renders an array of messages with any fields ("tool_calls", "reasoning_content").
    KVCACHE_ONCE [[nodiscard]] result<rendered_chat> render(const json& messages, const chat_options& options) const;

private:
    struct state;

    explicit chat_template(std::shared_ptr<const state> s) : state_(std::move(s)) {}

    std::shared_ptr<const state> state_;
};

} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/text/impl/chat_template.hpp>
#endif
