// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/value.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace kvcache::inline KVCACHE_ABI::text::jinja {

/// Limits the length of the texts that a template makes. Throws: failure.
KVCACHE_LAZY inline void check_length(std::size_t bytes) {
    constexpr std::size_t most = std::size_t{1} << 26;
    if (bytes > most)
        refuse({"it makes a text of more than ", std::to_string(most), " bytes"});
}

/// Returns the bytes [begin, end) of a text. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline tagged_text part_of(const tagged_text& t, std::size_t begin, std::size_t end,
                                                      budget& spent) {
    spent.text(end - begin);
    return t.sub(begin, end);
}

/// Appends the bytes [begin, end) of a text with their marks. Throws: failure if the result is too long.
KVCACHE_LAZY inline void append_part(tagged_text& out, const tagged_text& more, std::size_t begin, std::size_t end,
                                     budget& spent) {
    const std::size_t size = end - begin;
    check_length(out.bytes.size() + size);
    spent.work(8);
    spent.memory(2 * size);
    if (more.marked() && !out.marked()) {
        spent.memory(out.bytes.size());
        out.plain.resize(out.bytes.size(), '\0');
    }
    if (more.marked())
        out.plain.append(more.plain, begin, size);
    else if (out.marked())
        out.plain.append(size, '\0');
    out.bytes.append(more.bytes, begin, size);
}
/// Appends a text with its marks. Throws: failure if the result is too long.
KVCACHE_LAZY inline void append(tagged_text& out, const tagged_text& more, budget& spent) {
    append_part(out, more, 0, more.bytes.size(), spent);
}

namespace detail {

/// Appends a string literal of Python or JSON, marked plain if any byte of the string is.
KVCACHE_LAZY inline void append_quoted(tagged_text& out, const tagged_text& text, bool as_json, budget& spent) {
    spent.text(8 * text.bytes.size()); // an escape has up to 6 bytes
    const bool plain = text.any_plain(0, text.bytes.size());
    const bool apostrophe = text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
    const char quote = as_json || apostrophe ? '"' : '\'';
    std::string made(1, quote);
    constexpr std::string_view digits = "0123456789abcdef";
    for (const char c : text.bytes) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == quote || c == '\\')
            made.append({'\\', c});
        else if (c == '\n')
            made += "\\n";
        else if (c == '\r')
            made += "\\r";
        else if (c == '\t')
            made += "\\t";
        else if (as_json && c == '\b')
            made += "\\b";
        else if (as_json && c == '\f')
            made += "\\f";
        else if (byte < 0x20 || (byte == 0x7f && !as_json))
            made.append(as_json ? "\\u00" : "\\x").append({digits[byte >> 4], digits[byte & 15]});
        else
            made.push_back(c);
    }
    made.push_back(quote);
    out.append(made, plain);
}

} // namespace detail

/// Writes a value as text: in Python's notation, or as JSON.
template <class...>
class basic_writer {
public:
    /// `indent` has the meaning it has in json.dumps.
    basic_writer(bool as_json, std::optional<std::size_t> indent, budget& spent)
        : as_json_(as_json), indent_(indent), spent_(&spent) {}

    /// Writes a value. Throws: failure if JSON cannot represent it.
    void write(tagged_text& out, const value& v) { write(out, v, 0); }

private:
    void write(tagged_text& out, const value& v, std::size_t depth) {
        constexpr std::size_t deepest = 400;
        if (depth > deepest)
            mistake({"a value is nested more than ", std::to_string(deepest), " levels deep"});
        check_length(out.bytes.size());
        spent_->memory(32);
        if (const auto* t = v.as_text())
            return detail::append_quoted(out, *t, as_json_, *spent_);
        if (v.is_none())
            return out.append(as_json_ ? "null" : "None", false);
        if (const auto* b = std::get_if<bool>(&v.held()))
            return out.append(*b ? (as_json_ ? "true" : "True") : (as_json_ ? "false" : "False"), false);
        if (const auto n = v.as_integer())
            return out.append(std::to_string(*n), false);
        if (const auto d = v.as_number())
            return out.append(shown(*d), false);
        if (const auto* items = v.as_list()) {
            bool first = true;
            out.append("[", false);
            for (const value& item : *items) {
                separate(out, first, depth + 1);
                write(out, item, depth + 1);
            }
            close(out, first, depth);
            return out.append("]", false);
        }
        if (const auto* map = v.as_mapping()) {
            bool first = true;
            out.append("{", false);
            for (const auto& [name, item] : map->entries) {
                separate(out, first, depth + 1);
                detail::append_quoted(out, name, as_json_, *spent_);
                out.append(": ", false);
                write(out, item, depth + 1);
            }
            close(out, first, depth);
            return out.append("}", false);
        }
        if (as_json_ || !v.is_undefined())
            mistake({"a value of type ", v.type_name(), " cannot be written"});
        out.append("Undefined", false);
    }

    void separate(tagged_text& out, bool& first, std::size_t depth) const {
        if (!first)
            out.append(indent_ ? "," : ", ", false);
        first = false;
        line(out, depth);
    }
    void close(tagged_text& out, bool empty, std::size_t depth) const {
        if (!empty)
            line(out, depth);
    }
    void line(tagged_text& out, std::size_t depth) const {
        if (!indent_)
            return;
        spent_->text(*indent_ * depth);
        out.append("\n" + std::string(*indent_ * depth, ' '), false);
    }

    bool as_json_;
    std::optional<std::size_t> indent_;
    budget* spent_;
};
using writer = basic_writer<>;

/// str(v): text unchanged, nothing for an undefined value, other values in Python's notation.
KVCACHE_LAZY [[nodiscard]] inline tagged_text text_of(const value& v, budget& spent) {
    if (const auto* t = v.as_text())
        return part_of(*t, 0, t->bytes.size(), spent);
    tagged_text out;
    if (!v.is_undefined())
        writer(false, std::nullopt, spent).write(out, v);
    return out;
}

/// json.dumps(v, ensure_ascii=False, indent=indent).
KVCACHE_LAZY [[nodiscard]] inline tagged_text json_of(const value& v, std::optional<std::size_t> indent,
                                                      budget& spent) {
    tagged_text out;
    writer(true, indent, spent).write(out, v);
    return out;
}

} // namespace kvcache::text::jinja
