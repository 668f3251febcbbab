// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace text {
struct added_token;
}

/// The files next to tokenizer.json: the names of the special tokens, and the chat templates.
class tokenizer_config {
public:
    tokenizer_config() = default;

    /// Reads tokenizer_config.json, special_tokens_map.json and chat_template.jinja, each if present. Errors: a file
    /// is malformed; the error names the field.
    KVCACHE_ONCE [[nodiscard]] static result<tokenizer_config> open(const std::filesystem::path& directory);

    /// Returns the string of "bos_token", "eos_token", "unk_token", "pad_token" and so on, or null.
    [[nodiscard]] const std::string* try_special(const std::string& name) const {
        const auto found = special_.find(name);
        return found == special_.end() ? nullptr : &found->second;
    }
    /// All special tokens, by name.
    [[nodiscard]] const std::map<std::string, std::string>& special_tokens() const noexcept { return special_; }
    void set_special(std::string name, std::string token) { special_[std::move(name)] = std::move(token); }

    /// Returns the Jinja text of a chat template, or null. The usual name is "default".
    [[nodiscard]] const std::string* try_chat_template(const std::string& name) const {
        const auto found = templates_.find(name);
        return found == templates_.end() ? nullptr : &found->second;
    }

    void set_chat_template(std::string name, std::string source) { templates_[std::move(name)] = std::move(source); }

    /// Returns whether an added token controls the model, so that user text must not become it.
    KVCACHE_ONCE [[nodiscard]] bool is_control(const text::added_token& token) const;

private:
    struct reader;

    std::map<std::string, std::string> special_;
    std::map<std::string, std::string> templates_;
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/text/impl/tokenizer_config.hpp>
#endif
