// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/byte_alphabet.hpp>
#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/marked_text.hpp>
#include <kvcache/text/pattern.hpp>
#include <kvcache/text/unicode.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache::inline KVCACHE_ABI::text {

/// Rewrites text before it is split: the `normalizer` of tokenizer.json, as the steps of one sequence. Marks travel
/// with their bytes; a byte made from plain and other bytes is plain.
template <class...>
class basic_normalizer {
public:
    basic_normalizer() = default;

    /// Reads a normalizer; null is none. What is unknown is refused by name.
    [[nodiscard]] static basic_normalizer open(const json_reader& at) {
        basic_normalizer made;
        made.add(at);
        return made;
    }

    [[nodiscard]] bool empty() const noexcept { return steps_.empty(); }

    /// Rewrites `text` in place. Requires: UTF-8. Returns: an error where a pattern exceeds its limits.
    [[nodiscard]] result<void> apply(marked_text& text) const {
        for (const step& one : steps_) {
            const auto done = std::visit([&](const auto& s) { return run(s, text); }, one);
            if (!done)
                return done;
        }
        return {};
    }

private:
    struct form {
        normal_form is = normal_form::nfc;
    };
    struct lower_case {};
    struct strip_accents {};
    struct to_byte_alphabet {};
    struct strip {
        bool left = true;
        bool right = true;
    };
    struct replace {
        pattern what = {};
        std::string content = {};
    };
    struct prepend {
        std::string content = {};
    };
    using step = std::variant<form, lower_case, strip_accents, to_byte_alphabet, strip, replace, prepend>;

    void add(const json_reader& at) {
        if (at.value().is_null())
            return;
        const std::string type = at.text("type");
        if (type == "Sequence")
            at.member("normalizers").each([&](const json_reader& one) { add(one); });
        else if (type == "NFC")
            steps_.emplace_back(form{normal_form::nfc});
        else if (type == "NFD")
            steps_.emplace_back(form{normal_form::nfd});
        else if (type == "NFKC")
            steps_.emplace_back(form{normal_form::nfkc});
        else if (type == "NFKD")
            steps_.emplace_back(form{normal_form::nfkd});
        else if (type == "Lowercase")
            steps_.emplace_back(lower_case{});
        else if (type == "StripAccents")
            steps_.emplace_back(strip_accents{});
        else if (type == "ByteLevel")
            steps_.emplace_back(to_byte_alphabet{});
        else if (type == "Strip")
            steps_.emplace_back(strip{at.flag_or("strip_left", true), at.flag_or("strip_right", true)});
        else if (type == "Replace")
            steps_.emplace_back(replace{pattern::open(at.member("pattern")), at.text("content")});
        else if (type == "Prepend")
            steps_.emplace_back(prepend{at.text("prepend")});
        else
            at.refuse(error_code::unsupported, "type", "the normalizer \"" + type + "\" is not known");
    }

    /// Rebuilds `text` code point by code point; `write(out, c)` appends what replaces c.
    template <class Write>
    static void map(marked_text& text, Write write) {
        marked_text out;
        out.bytes.reserve(text.bytes.size());
        for (std::size_t i = 0; i < text.bytes.size();) {
            const auto c = code_point_at(text.bytes, i);
            write(out.bytes, c.value);
            if (text.marked())
                out.plain.resize(out.bytes.size(), text.plain[i]);
            i += c.bytes;
        }
        text = std::move(out);
    }

    static result<void> run(lower_case, marked_text& text) {
        map(text, append_lower_case);
        return {};
    }
    static result<void> run(strip_accents, marked_text& text) {
        map(text, [](std::string& out, char32_t c) {
            if (!is_mark(c))
                append_utf8(out, c);
        });
        return {};
    }
    static result<void> run(to_byte_alphabet, marked_text& text) {
        map(text, [](std::string& out, char32_t c) {
            std::string bytes;
            append_utf8(bytes, c);
            append_byte_characters(out, bytes);
        });
        return {};
    }

    static result<void> run(const form& step, marked_text& text) {
        auto made = normalized(text.bytes, step.is);
        if (made == text.bytes)
            return {};
        if (!text.marked()) {
            text.bytes = std::move(made);
            return {};
        }
        // Runs of one mark each: nothing a user writes may melt into the text beside it.
        marked_text out;
        for (std::size_t i = 0, end = 0; i < text.bytes.size(); i = end) {
            end = text.plain.find(text.plain[i] == '\0' ? '\1' : '\0', i);
            end = end == std::string::npos ? text.bytes.size() : end;
            out.append(normalized(std::string_view(text.bytes).substr(i, end - i), step.is), text.plain[i] != '\0');
        }
        text = std::move(out);
        return {};
    }

    static result<void> run(const strip& step, marked_text& text) {
        std::size_t begin = 0;
        std::size_t end = text.bytes.size();
        while (step.left && begin < end) {
            const auto c = code_point_at(text.bytes, begin);
            if (!is_white_space(c.value))
                break;
            begin += c.bytes;
        }
        while (step.right && begin < end) {
            const auto c = code_point_before(text.bytes, end);
            if (!is_white_space(c.value))
                break;
            end -= c.bytes;
        }
        text = text.sub(begin, end);
        return {};
    }

    static result<void> run(const replace& step, marked_text& text) {
        marked_text out;
        out.bytes.reserve(text.bytes.size());
        std::size_t done = 0;
        const auto copy = [&](std::size_t end) {
            out.bytes.append(text.bytes, done, end - done);
            if (text.marked())
                out.plain.append(text.plain, done, end - done);
        };
        const auto searched = step.what.each_match(text.bytes, [&](std::size_t begin, std::size_t end) {
            copy(begin);
            out.bytes.append(step.content);
            if (text.marked())
                out.plain.append(step.content.size(), text.any_plain(begin, end) ? '\1' : '\0');
            done = end;
        });
        if (!searched)
            return searched;
        copy(text.bytes.size());
        text = std::move(out);
        return {};
    }

    static result<void> run(const prepend& step, marked_text& text) {
        if (text.bytes.empty())
            return {};
        if (text.marked())
            text.plain.insert(0, step.content.size(), text.plain[0]);
        text.bytes.insert(0, step.content);
        return {};
    }

    std::vector<step> steps_;
};
using normalizer = basic_normalizer<>;

} // namespace kvcache::inline KVCACHE_ABI::text
