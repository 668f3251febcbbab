// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/standard.hpp>
#include <kvcache/text/json_reader.hpp>
#include <kvcache/text/steps.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// Rewrites text before it is split: the `normalizer` of tokenizer.json, as one sequence of steps. Marks move with
/// their bytes; a byte made from both plain and other bytes is plain.
template <class...>
class basic_normalizer {
public:
    basic_normalizer() = default;

    /// Reads a normalizer; null is none. An unknown type is an error that names it.
    [[nodiscard]] static basic_normalizer open(const json_reader& at) {
        basic_normalizer made;
        each_step(at, "normalizers", made.steps_,
                  [&](const json_reader& one, const std::string& type) { made.add(one, type); });
        return made;
    }

    [[nodiscard]] bool empty() const noexcept { return steps_.empty(); }

    /// Rewrites `text` in place. Requires: text is UTF-8. Errors: a pattern exceeds its limits, or the text becomes
    /// longer than `longest_from`; the error names the step.
    [[nodiscard]] result<void> apply(tagged_text& text) const {
        const std::size_t bytes = text.bytes.size();
        for (const step& one : steps_) {
            if (auto done = run(one, text, longest_from(bytes)); !done)
                return done;
            if (text.bytes.size() > longest_from(bytes))
                return too_long(one.field, bytes);
        }
        return {};
    }

private:
    enum class kind { form, lower_case, strip_accents, to_byte_alphabet, strip, replace, prepend };
    struct step {
        kind is = kind::form;
        normal_form form = normal_form::nfc;
        bool left = true; // strip: the sides to strip
        bool right = true;
        pattern what = {}; // replace: the pattern to replace by the content
        std::string content = {};
        std::string field = {};
    };

    void add(const json_reader& at, const std::string& type) {
        constexpr std::string_view forms[] = {"NFC", "NFD", "NFKC", "NFKD"}; // as in normal_form
        if (const auto* form = ranges::find(forms, type); form != std::end(forms))
            steps_.push_back({.form = static_cast<normal_form>(form - forms)});
        else if (type == "Lowercase")
            steps_.push_back({.is = kind::lower_case});
        else if (type == "StripAccents")
            steps_.push_back({.is = kind::strip_accents});
        else if (type == "ByteLevel")
            steps_.push_back({.is = kind::to_byte_alphabet});
        else if (type == "Strip")
            steps_.push_back(
                {.is = kind::strip, .left = at.flag_or("strip_left", true), .right = at.flag_or("strip_right", true)});
        else if (type == "Replace")
            steps_.push_back(
                {.is = kind::replace, .what = pattern::open(at.member("pattern")), .content = at.text("content")});
        else if (type == "Prepend")
            steps_.push_back({.is = kind::prepend, .content = at.text("prepend")});
        else
            return at.refuse(error_code::unsupported, "type", {"the normalizer \"", type, "\" is not known"});
        steps_.back().field = at.path();
    }

    /// Rebuilds `text` code point by code point; `write(out, c)` appends the replacement of c.
    template <class Write>
    static void map(tagged_text& text, Write write) {
        tagged_text out;
        out.bytes.reserve(text.bytes.size());
        each_code_point(text.bytes, [&](code_point c, std::size_t at) {
            write(out.bytes, c.value);
            if (text.marked())
                out.plain.resize(out.bytes.size(), text.plain[at]);
        });
        text = std::move(out);
    }

    /// Runs a step. The text may be longer than `longest` afterwards, by a factor.
    static result<void> run(const step& one, tagged_text& text, std::size_t longest) {
        switch (one.is) {
        case kind::form:
            apply_form(one.form, text, longest);
            break;
        case kind::lower_case:
            map(text, append_lower_case);
            break;
        case kind::strip_accents:
            map(text, [](std::string& out, char32_t c) {
                if (!is_mark(c))
                    append_utf8(out, c);
            });
            break;
        case kind::to_byte_alphabet:
            map(text, [](std::string& out, char32_t c) {
                std::string bytes;
                append_utf8(bytes, c);
                append_byte_characters(out, bytes);
            });
            break;
        case kind::strip:
            strip(one, text);
            break;
        case kind::replace:
            return replace(one, text, longest);
        case kind::prepend:
            if (text.bytes.size() + one.content.size() > longest)
                return too_long(one.field, text.bytes.size());
            prepend(one.content, text);
            break;
        }
        return {};
    }

    static void apply_form(normal_form form, tagged_text& text, std::size_t longest) {
        auto made = normalized(text.bytes, form, longest);
        if (made == text.bytes)
            return;
        if (!text.marked()) {
            text.bytes = std::move(made);
            return;
        }
        // Each run of equal marks is normalized by itself, so that user text never composes with the text next to it.
        tagged_text out;
        for (std::size_t i = 0, end = 0; i < text.bytes.size(); i = end) {
            end = text.plain.find(text.plain[i] == '\0' ? '\1' : '\0', i);
            end = end == std::string::npos ? text.bytes.size() : end;
            out.append(normalized(std::string_view(text.bytes).substr(i, end - i), form, longest),
                       text.plain[i] != '\0');
        }
        text = std::move(out);
    }

    static void strip(const step& one, tagged_text& text) {
        std::size_t begin = 0;
        std::size_t end = text.bytes.size();
        while (one.left && begin < end) {
            const auto c = code_point_at(text.bytes, begin);
            if (!is_white_space(c.value))
                break;
            begin += c.bytes;
        }
        while (one.right && begin < end) {
            const auto c = code_point_before(text.bytes, end);
            if (!is_white_space(c.value))
                break;
            end -= c.bytes;
        }
        text = text.sub(begin, end);
    }

    static result<void> replace(const step& one, tagged_text& text, std::size_t longest) {
        tagged_text out;
        out.bytes.reserve(text.bytes.size());
        std::size_t done = 0;
        const auto copy = [&](std::size_t end) {
            out.bytes.append(text.bytes, done, end - done);
            if (text.marked())
                out.plain.append(text.plain, done, end - done);
        };
        const auto searched = one.what.each_match(text.bytes, [&](std::size_t begin, std::size_t end) {
            if (out.bytes.size() > longest)
                return;
            copy(begin);
            out.bytes.append(one.content);
            if (text.marked())
                out.plain.append(one.content.size(), text.any_plain(begin, end) ? '\1' : '\0');
            done = end;
        });
        if (!searched)
            return searched;
        copy(text.bytes.size());
        text = std::move(out);
        return {};
    }

    static void prepend(const std::string& content, tagged_text& text) {
        if (text.bytes.empty())
            return;
        if (text.marked())
            text.plain.insert(0, content.size(), text.plain[0]);
        text.bytes.insert(0, content);
    }

    std::vector<step> steps_;
};
using normalizer = basic_normalizer<>;

}}} // namespace kvcache::text
