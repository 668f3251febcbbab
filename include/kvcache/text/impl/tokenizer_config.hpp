// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/text/added_tokens.hpp>
#include <kvcache/text/tokenizer_config.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

KVCACHE_LAZY [[nodiscard]] inline bool is_sign(char c) noexcept {
    return text::is_punctuation(static_cast<unsigned char>(c) < 0x80 ? static_cast<char32_t>(c) : U'a');
}
KVCACHE_LAZY [[nodiscard]] inline bool looks_like_markup(std::string_view content) {
    if (content == "<s>" || content == "</s>")
        return true;
    if (content.size() > 4 && content.starts_with("<|") && content.ends_with("|>"))
        return true;
    return content.size() > 2 && content.starts_with('[') && content.ends_with(']') &&
           content.substr(1, content.size() - 2).find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_/") ==
               std::string_view::npos;
}

} // namespace detail

/// Reads the parts of tokenizer_config.json.
struct tokenizer_config::reader {
    tokenizer_config& to;

    KVCACHE_LAZY [[nodiscard]] result<void> read(const json& document, const std::string& file) {
        if (!document.is_object())
            return error{error_code::mismatched, file, "is not an object"};
        for (const char* name :
             {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
            const auto found = document.find(name);
            if (found == document.end() || found->is_null() || to.special_.contains(name))
                continue;
            const json* content = &*found;
            if (content->is_object() && content->contains("content"))
                content = &(*content)["content"];
            if (!content->is_string())
                return error{error_code::mismatched, std::string(name), file + " gives neither a string nor a token"};
            to.special_[name] = content->get<std::string>();
        }
        const auto chat = document.find("chat_template");
        return chat == document.end() || chat->is_null() ? result<void>{} : read_templates(*chat);
    }

    /// Reads one template, or a list of {"name", "template"}.
    KVCACHE_LAZY [[nodiscard]] result<void> read_templates(const json& chat) {
        if (chat.is_string()) {
            to.templates_["default"] = chat.get<std::string>();
            return {};
        }
        const error wrong{error_code::mismatched, "chat_template",
                          "is neither a string nor a list of objects with name and template"};
        if (!chat.is_array())
            return wrong;
        for (const json& one : chat) {
            if (!one.is_object() || !one.contains("name") || !one.contains("template") || !one["name"].is_string() ||
                !one["template"].is_string())
                return wrong;
            to.templates_[one["name"].get<std::string>()] = one["template"].get<std::string>();
        }
        return {};
    }
};

KVCACHE_BODY result<tokenizer_config> tokenizer_config::open(const std::filesystem::path& directory) {
    tokenizer_config made;
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
        std::error_code failed;
        if (!std::filesystem::exists(directory / name, failed))
            continue;
        const auto document = read_json(directory / name);
        if (!document)
            return document.error();
        if (auto read = reader{made}.read(*document, name); !read)
            return read.error();
    }
    std::error_code failed;
    if (const auto file = directory / "chat_template.jinja"; std::filesystem::exists(file, failed)) {
        constexpr std::size_t largest = 1u << 20;
        auto source = read_file(file, largest);
        if (!source)
            return source.error();
        made.templates_["default"] = std::move(*source);
    }
    return made;
}

KVCACHE_BODY bool tokenizer_config::is_control(const text::added_token& token) const {
    const std::string_view content = token.content;
    const auto named = [&](const auto& entry) { return entry.second == content; };
    if (token.special || std::ranges::any_of(special_, named) || detail::looks_like_markup(content))
        return true;
    const auto writes = [&](const auto& entry) { return entry.second.find(content) != std::string::npos; };
    return content.size() > 2 && detail::is_sign(content.front()) && detail::is_sign(content.back()) &&
           std::ranges::any_of(templates_, writes);
}

}} // namespace kvcache
