// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Returns a floating-point number in Python's notation: the fewest digits that tell it from others.
KVCACHE_LAZY [[nodiscard]] inline std::string shown(double d) {
    if (std::isnan(d))
        return "nan";
    if (std::isinf(d))
        return d < 0 ? "-inf" : "inf";
    std::array<char, 64> buffer{};
    const double size = d < 0 ? -d : d;
    const bool plain = d == 0 || (size >= 1e-4 && size < 1e16);
    const auto form = plain ? std::chars_format::fixed : std::chars_format::scientific;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), d, form).ptr;
    std::string out(buffer.data(), end);
    if (out.find_first_of(".e") == std::string::npos)
        out += ".0";
    return out;
}

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

// Keys of mappings that are not text: integers, floating-point numbers, booleans and none. In a mapping they are the
// byte 0xff, which no text has, the letter of a type, and a number.

/// The first byte of a key that is not text.
inline constexpr char key_mark = '\xff';

/// Returns the key in a mapping that a value stands for, or nullopt if it is not text and not a scalar.
KVCACHE_LAZY [[nodiscard]] inline std::optional<tagged_text> key_of(const value& v, budget& spent) {
    spent.text(v.as_text() ? v.as_text()->bytes.size() : 32);
    if (const auto* t = v.as_text())
        return *t;
    const auto made = [](char type, std::int64_t n) {
        return tagged_text{std::string{key_mark, type} + std::to_string(n), {}};
    };
    if (v.is_none())
        return made('n', 0);
    if (const auto* b = std::get_if<bool>(&v.held()))
        return made('b', *b ? 1 : 0);
    if (const auto n = v.as_integer())
        return made('i', *n);
    if (const auto d = v.as_number()) // 1.0 is the key 1
        return *d >= -1e15 && *d <= 1e15 && *d == static_cast<double>(static_cast<std::int64_t>(*d))
                   ? made('i', static_cast<std::int64_t>(*d))
                   : made('f', bit_cast<std::int64_t>(*d));
    return std::nullopt;
}

/// Returns the value that a key in a mapping stands for.
KVCACHE_LAZY [[nodiscard]] inline value key_value(const tagged_text& key, budget& spent) {
    spent.items(2); // the object and, while a list of keys grows, its places
    spent.text(key.bytes.size());
    if (!key.bytes.starts_with(key_mark))
        return key;
    std::int64_t n = 0;
    std::from_chars(key.bytes.data() + 2, key.bytes.data() + key.bytes.size(), n);
    switch (key.bytes[1]) {
    case 'n':
        return value::none{};
    case 'b':
        return n != 0;
    case 'f':
        return bit_cast<double>(n);
    default:
        return n;
    }
}

/// The arguments of json.dumps.
struct json_format {
    std::optional<std::string> indent = {}; ///< Of a level; without it a value is written on one line.
    bool ensure_ascii = false;
    std::string item_separator = ", ";
    std::string key_separator = ": ";
    bool sort_keys = false;
};

namespace detail {

/// Appends "\\x", "\\u" or "\\U" and the code in hexadecimal with this many digits.
KVCACHE_LAZY inline void append_hexadecimal(std::string& out, char letter, char32_t code, unsigned digits) {
    constexpr std::string_view all = "0123456789abcdef";
    out.append({'\\', letter});
    while (digits-- > 0)
        out.push_back(all[(code >> (4 * digits)) & 15]);
}

/// Returns whether Python's repr() writes a character as it is.
KVCACHE_LAZY [[nodiscard]] inline bool is_printable(char32_t c) {
    if (c < 0x7f)
        return c >= 0x20;
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c)); // the separators and others come last
    return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

/// Appends a character of a string literal of JSON or, if `json` is null, of Python.
KVCACHE_LAZY inline void append_character(std::string& out, char32_t c, char quote, const json_format* json) {
    constexpr std::string_view controls = "\n\r\t\b\f";
    constexpr std::string_view letters = "nrtbf";
    const auto control = c < 0x20 ? controls.find(static_cast<char>(c)) : std::string_view::npos;
    if (c == static_cast<char32_t>(quote) || c == '\\')
        out.append({'\\', static_cast<char>(c)});
    else if (control < (json ? controls.size() : 3))
        out.append({'\\', letters[control]});
    else if (json && (c < 0x20 || (json->ensure_ascii && c >= 0x7f && c < 0x10000)))
        append_hexadecimal(out, 'u', c, 4);
    else if (json && json->ensure_ascii && c >= 0x10000) {
        append_hexadecimal(out, 'u', 0xd800 + ((c - 0x10000) >> 10), 4);
        append_hexadecimal(out, 'u', 0xdc00 + ((c - 0x10000) & 0x3ff), 4);
    } else if (json || is_printable(c))
        append_utf8(out, c);
    else
        append_hexadecimal(out, c < 0x100 ? 'x' : c < 0x10000 ? 'u' : 'U', c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
}

/// Appends a string literal of JSON or, if `json` is null, of Python. It is marked plain if any byte of the string is.
KVCACHE_LAZY inline void append_quoted(tagged_text& out, const tagged_text& text, const json_format* json,
                                       budget& spent) {
    spent.text(8 * text.bytes.size()); // an escape has up to 6 bytes for one of the text
    const bool apostrophe = text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
    const char quote = json || apostrophe ? '"' : '\'';
    std::string made(1, quote);
    each_code_point(text.bytes, [&](code_point c, std::size_t) { append_character(made, c.value, quote, json); });
    made.push_back(quote);
    out.append(made, text.any_plain(0, text.bytes.size()));
}

} // namespace detail

/// Writes a value as text: as JSON in a format or, if it is null, in Python's notation.
template <class...>
class basic_writer {
public:
    basic_writer(const json_format* json, budget& spent) : json_(json), spent_(&spent) {}

    /// Writes a value. Throws: failure if JSON cannot represent it.
    void write(tagged_text& out, const value& v) { write(out, v, 0); }

private:
    void write(tagged_text& out, const value& v, std::size_t depth) {
        constexpr std::size_t deepest = 400;
        if (depth > deepest)
            mistake({"a value is nested more than ", std::to_string(deepest), " levels deep"});
        check_length(out.bytes.size());
        spent_->memory(32);
        if (const auto* t = v.as_text()) {
            const bool markup = v.is_markup() && !json_;
            out.append(markup ? "Markup(" : "", false);
            detail::append_quoted(out, *t, json_, *spent_);
            return out.append(markup ? ")" : "", false);
        }
        if (v.is_none())
            return out.append(json_ ? "null" : "None", false);
        if (const auto* b = std::get_if<bool>(&v.held()))
            return out.append(*b ? (json_ ? "true" : "True") : (json_ ? "false" : "False"), false);
        if (const auto n = v.as_integer())
            return out.append(std::to_string(*n), false);
        if (const auto d = v.as_number())
            return out.append(number(*d), false);
        if (const auto* items = v.as_list(); items && (!json_ || v.kind() < list_kind::view))
            return write_list(out, *items, !json_ && (v.kind() == list_kind::tuple || v.kind() == list_kind::group),
                              depth);
        if (const auto* map = v.as_mapping())
            return write_mapping(out, *map, depth);
        if (json_ || !v.is_undefined())
            mistake({"a value of type ", v.type_name(), " cannot be written", json_ ? " as JSON" : ""});
        out.append("Undefined", false);
    }

    [[nodiscard]] std::string number(double d) const {
        if (json_ && std::isnan(d))
            return "NaN";
        if (json_ && std::isinf(d))
            return d < 0 ? "-Infinity" : "Infinity";
        return shown(d);
    }

    void write_list(tagged_text& out, const list& items, bool tuple, std::size_t depth) {
        bool first = true;
        out.append(tuple ? "(" : "[", false);
        for (const value& item : items) {
            separate(out, first, depth + 1);
            write(out, item, depth + 1);
        }
        close(out, first, depth);
        out.append(!tuple ? "]" : items.size() == 1 ? ",)" : ")", false);
    }

    void write_mapping(tagged_text& out, const mapping& map, std::size_t depth) {
        std::vector<const std::pair<tagged_text, value>*> entries;
        spent_->items(map.entries.size());
        for (const auto& entry : map.entries)
            entries.push_back(&entry);
        if (json_ && json_->sort_keys)
            std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
                spent_->work(8 + std::min(a->first.bytes.size(), b->first.bytes.size()) / 8);
                return a->first.bytes < b->first.bytes;
            });
        bool first = true;
        out.append("{", false);
        for (const auto* entry : entries) {
            separate(out, first, depth + 1);
            write_key(out, entry->first, depth);
            put(out, json_ ? std::string_view(json_->key_separator) : ": ");
            write(out, entry->second, depth + 1);
        }
        close(out, first, depth);
        out.append("}", false);
    }

    void write_key(tagged_text& out, const tagged_text& name, std::size_t depth) {
        if (!name.bytes.starts_with(key_mark))
            return detail::append_quoted(out, name, json_, *spent_);
        out.append(json_ ? "\"" : "", false);
        write(out, key_value(name, *spent_), depth);
        out.append(json_ ? "\"" : "", false);
    }

    void put(tagged_text& out, std::string_view what) const {
        spent_->text(what.size());
        out.append(what, false);
    }
    void separate(tagged_text& out, bool& first, std::size_t depth) const {
        if (!first)
            put(out, json_ ? std::string_view(json_->item_separator) : ", ");
        first = false;
        line(out, depth);
    }
    void close(tagged_text& out, bool empty, std::size_t depth) const {
        if (!empty)
            line(out, depth);
    }
    void line(tagged_text& out, std::size_t depth) const {
        if (!json_ || !json_->indent)
            return;
        out.append("\n", false);
        for (; depth > 0; --depth)
            put(out, *json_->indent);
    }

    const json_format* json_;
    budget* spent_;
};
using writer = basic_writer<>;

/// str(v): text unchanged, nothing for an undefined value, other values in Python's notation.
KVCACHE_LAZY [[nodiscard]] inline tagged_text text_of(const value& v, budget& spent) {
    if (const auto* t = v.as_text())
        return part_of(*t, 0, t->bytes.size(), spent);
    tagged_text out;
    if (!v.is_undefined())
        writer(nullptr, spent).write(out, v);
    return out;
}

/// repr(v).
KVCACHE_LAZY [[nodiscard]] inline tagged_text repr_of(const value& v, budget& spent) {
    tagged_text out;
    writer(nullptr, spent).write(out, v);
    return out;
}

/// json.dumps(v) in a format. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline tagged_text json_of(const value& v, const json_format& form, budget& spent) {
    tagged_text out;
    writer(&form, spent).write(out, v);
    return out;
}

// Jinja's markup: what the filters `safe` and `escape` return. Added to other text, it escapes that for HTML.

/// Replaces the characters & < > ' " by HTML's names for them.
KVCACHE_LAZY [[nodiscard]] inline tagged_text escaped(const tagged_text& t, budget& spent) {
    tagged_text out;
    spent.text(t.bytes.size());
    for (std::size_t i = 0; i < t.bytes.size(); ++i) {
        const char c = t.bytes[i];
        const std::string_view name = c == '&'    ? "&amp;"
                                      : c == '<'  ? "&lt;"
                                      : c == '>'  ? "&gt;"
                                      : c == '\'' ? "&#39;"
                                      : c == '"'  ? "&#34;"
                                                  : std::string_view(t.bytes).substr(i, 1);
        spent.memory(2 * name.size());
        check_length(out.bytes.size() + name.size());
        out.append(name, t.any_plain(i, i + 1));
    }
    return out;
}

/// Returns the text of a value, escaped unless it is markup.
KVCACHE_LAZY [[nodiscard]] inline tagged_text escaped_text(const value& v, budget& spent) {
    return v.is_markup() ? text_of(v, spent) : escaped(text_of(v, spent), spent);
}

/// Returns a text as markup if it is made from markup.
KVCACHE_LAZY [[nodiscard]] inline value text_like(const value& from, tagged_text made) {
    return from.is_markup() ? value::markup(std::move(made)) : value(std::move(made));
}

}}} // namespace kvcache::text::jinja
