// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/stop_token.hpp>
#include <kvcache/formats/json.hpp>
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

namespace kvcache { inline namespace KVCACHE_ABI {

/// The common chat formats, by the marks that a template writes around a message.
enum class chat_family {
    chatml,  ///< `<|im_start|>role ... <|im_end|>`: Qwen, SmolLM, many others.
    llama2,  ///< `[INST] <<SYS>> ... <</SYS>> ... [/INST]`
    llama3,  ///< `<|start_header_id|>role<|end_header_id|> ... <|eot_id|>`
    zephyr,  ///< `<|user|> ... </s>`: Zephyr, TinyLlama.
    mistral, ///< `[INST] ... [/INST]` without `<<SYS>>`
    phi3,    ///< `<|user|> ... <|end|>`
    gemma,   ///< `<start_of_turn>role ... <end_of_turn>`
    other,
};

/// A message of a chat.
struct chat_message {
    std::string role = "user";
    std::string content = {};
    json more = json::object(); ///< Further fields for the template: "tool_calls", "reasoning_content".
};

/// Options of rendering.
struct chat_options {
    bool add_generation_prompt = true;
    std::optional<std::tm> now = {}; ///< The date for templates that write one; without it they use their fixed date.
    json tools = nullptr;            ///< Tool definitions, a list of objects; null: none.
    json variables = json::object(); ///< Further variables of the template: "enable_thinking", "documents".
    stop_token stop = {};            ///< Ends the rendering early, with error_code::cancelled.
    /// A text at which messages are cut (text_segment::after_cut); it is left out. Empty: they are not cut.
    std::string cut = {};
};

/// A rendered chat, in segments by origin.
struct rendered_chat {
    std::vector<text_segment> segments = {};

    /// Returns the concatenated text.
    KVCACHE_LAZY [[nodiscard]] std::string text() const {
        std::string out;
        for (const text_segment& s : segments)
            out += s.text;
        return out;
    }
};

/// Renders chats in the format a model expects, by interpreting its own template (the subset of Jinja that chat
/// templates use). Message contents stay marked as user text through every operation, so tokenizer::encode never
/// reads control tokens from them. A cheap copy of one immutable state.
class chat_template {
public:
    /// Returns the template in the tokenizer's directory. The usual `name` is "default".
    KVCACHE_ONCE [[nodiscard]] static result<chat_template> open(const tokenizer& words, const std::string& name);

    /// Parses a template of any family. `special_tokens` defines "bos_token", "eos_token" and so on. Errors: malformed
    /// for bytes that are not UTF-8; unsupported for syntax, a filter or a test that the interpreter lacks, with its
    /// line and name.
    KVCACHE_ONCE [[nodiscard]] static result<chat_template>
    parse(std::string_view source, const std::map<std::string, std::string>& special_tokens);

    KVCACHE_ONCE [[nodiscard]] chat_family family() const noexcept;

    /// Returns whether the template takes the arguments of "tool_calls" as objects, not only as the JSON text that
    /// OpenAI's API has. Cost: up to two renderings of two messages.
    KVCACHE_ONCE [[nodiscard]] bool takes_parsed_arguments() const;

    /// Renders messages. Errors: the template rejects them (a role, an order) or fails; mismatched, for tools that are
    /// not a list of objects.
    KVCACHE_ONCE [[nodiscard]] result<rendered_chat> render(std::span<const chat_message> messages,
                                                            const chat_options& options) const;

    /// Renders an array of messages with any fields ("tool_calls", "reasoning_content").
    KVCACHE_ONCE [[nodiscard]] result<rendered_chat> render(const json& messages, const chat_options& options) const;

private:
    struct state;

    explicit chat_template(std::shared_ptr<const state> s) : state_(std::move(s)) {}

    std::shared_ptr<const state> state_;
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/text/impl/chat_template.hpp>
#endif
