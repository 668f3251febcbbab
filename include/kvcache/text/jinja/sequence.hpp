// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Whether a character has a case, and which; a title-case letter has none of the two.
enum class cased { none, lower, upper, title };

/// Returns the case of a character.
KVCACHE_LAZY [[nodiscard]] inline cased case_of(char32_t c) {
    const auto code = static_cast<utf8proc_int32_t>(c);
    return utf8proc_category(code) == UTF8PROC_CATEGORY_LT ? cased::title
           : utf8proc_islower(code) != 0                   ? cased::lower
           : utf8proc_isupper(code) != 0                   ? cased::upper
                                                           : cased::none;
}

/// Returns whether a character is a letter (general category L*).
KVCACHE_LAZY [[nodiscard]] inline bool is_letter(char32_t c) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

/// Returns whether Python's isspace() holds.
KVCACHE_LAZY [[nodiscard]] inline bool is_space(char32_t c) {
    return is_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

/// Returns the answer of Python's string method of this name: isdigit, isspace, isalpha, isalnum, isdecimal, isnumeric,
/// isupper, islower or isascii. Cost: O(bytes).
KVCACHE_LAZY [[nodiscard]] inline bool is_of_class(std::string_view text, std::string_view method) {
    bool has_case = false;
    for (std::size_t i = 0; i < text.size();) {
        const auto c = code_point_at(text, i);
        const bool decimal = utf8proc_category(static_cast<utf8proc_int32_t>(c.value)) == UTF8PROC_CATEGORY_ND;
        const cased its_case = case_of(c.value);
        const bool belongs = method == "isspace"     ? is_space(c.value)
                             : method == "isalpha"   ? is_letter(c.value)
                             : method == "isalnum"   ? is_letter(c.value) || is_number(c.value)
                             : method == "isnumeric" ? is_number(c.value)
                             : method == "isascii"   ? c.value < 0x80
                             : method == "isupper"   ? its_case == cased::upper || its_case == cased::none
                             : method == "islower"   ? its_case == cased::lower || its_case == cased::none
                             : method == "isdigit"
                                 ? decimal || (c.value >= 0x2070 && c.value < 0x208a && is_number(c.value)) ||
                                       c.value == 0xb2 || c.value == 0xb3 || c.value == 0xb9
                                 : decimal;
        if (!belongs)
            return false;
        has_case = has_case || its_case != cased::none;
        i += c.bytes;
    }
    if (method == "isupper" || method == "islower")
        return has_case;
    return !text.empty() || method == "isascii";
}

// Python's string methods, on text with marks.

/// Returns whether a character is stripped: white space, or a character of `set` if it is given.
KVCACHE_LAZY [[nodiscard]] inline bool strips(char32_t c, const std::optional<std::string>& set) {
    if (!set)
        return is_space(c);
    for (std::size_t i = 0; i < set->size();) {
        const auto one = code_point_at(*set, i);
        if (one.value == c)
            return true;
        i += one.bytes;
    }
    return false;
}

/// Removes the characters of `set`, or white space, from the left end, the right end or both.
KVCACHE_LAZY [[nodiscard]] inline tagged_text stripped(const tagged_text& t, bool left, bool right,
                                                       const std::optional<std::string>& set, budget& spent) {
    const std::size_t each = 8 + (set ? 8 * set->size() : 0);
    std::size_t begin = 0;
    std::size_t end = t.bytes.size();
    for (; left && begin < end && strips(code_point_at(t.bytes, begin).value, set); spent.work(each))
        begin += code_point_at(t.bytes, begin).bytes;
    for (; right && end > begin && strips(code_point_before(t.bytes, end).value, set); spent.work(each))
        end -= code_point_before(t.bytes, end).bytes;
    return part_of(t, begin, end, spent);
}

/// Limits the number of parts of a split text. Throws: failure.
KVCACHE_LAZY inline void check_count(std::size_t parts) {
    constexpr std::size_t most = 1'000'000;
    if (parts > most)
        refuse({"it cuts a text into more than ", std::to_string(most), " parts"});
}

/// Returns the bytes [begin, end) of a text, for a list. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline tagged_text item_part(const tagged_text& t, std::size_t begin, std::size_t end,
                                                        budget& spent) {
    spent.items(2); // the object and, while the list grows, its places
    return part_of(t, begin, end, spent);
}

/// str.split: at white space if `separator` is not given; at most `most` cuts.
KVCACHE_LAZY [[nodiscard]] inline list split(const tagged_text& t, const std::optional<std::string>& separator,
                                             std::size_t most, budget& spent) {
    list parts;
    if (separator) {
        spent.search(t.bytes.size(), separator->size());
        if (separator->empty())
            mistake("split() needs a separator that is not empty");
        std::size_t done = 0;
        for (auto at = t.bytes.find(*separator); at != std::string::npos && parts.size() < most;
             at = t.bytes.find(*separator, done)) {
            parts.emplace_back(item_part(t, done, at, spent));
            check_count(parts.size());
            done = at + separator->size();
        }
        parts.emplace_back(item_part(t, done, t.bytes.size(), spent));
        return parts;
    }
    spent.work(16 * t.bytes.size());
    for (std::size_t i = 0; i < t.bytes.size();) {
        const auto c = code_point_at(t.bytes, i);
        if (is_space(c.value)) {
            i += c.bytes;
            continue;
        }
        check_count(parts.size());
        std::size_t end = i;
        if (parts.size() == most)
            end = t.bytes.size();
        while (end < t.bytes.size() && !is_space(code_point_at(t.bytes, end).value))
            end += code_point_at(t.bytes, end).bytes;
        parts.emplace_back(item_part(t, i, end, spent));
        i = end;
    }
    return parts;
}

/// str.rsplit with a separator: the cuts start from the right.
KVCACHE_LAZY [[nodiscard]] inline list split_right(const tagged_text& t, const std::string& separator, std::size_t most,
                                                   budget& spent) {
    if (separator.empty())
        mistake("rsplit() needs a separator that is not empty");
    spent.search(t.bytes.size(), separator.size());
    list parts;
    std::size_t end = t.bytes.size();
    while (parts.size() < most && end >= separator.size()) {
        const auto at = t.bytes.rfind(separator, end - separator.size());
        if (at == std::string::npos)
            break;
        parts.emplace_back(item_part(t, at + separator.size(), end, spent));
        check_count(parts.size());
        end = at;
    }
    parts.emplace_back(item_part(t, 0, end, spent));
    std::reverse(parts.begin(), parts.end());
    return parts;
}

/// str.rsplit at white space: the cuts start from the right, and the rest keeps its white space on the left.
KVCACHE_LAZY [[nodiscard]] inline list split_space_right(const tagged_text& t, std::size_t most, budget& spent) {
    spent.work(16 * t.bytes.size());
    list parts;
    const auto is_space_before = [&](std::size_t end) { return is_space(code_point_before(t.bytes, end).value); };
    for (std::size_t end = t.bytes.size(); end > 0;) {
        if (is_space_before(end)) {
            end -= code_point_before(t.bytes, end).bytes;
            continue;
        }
        check_count(parts.size());
        std::size_t begin = end;
        while (begin > 0 && (parts.size() == most || !is_space_before(begin)))
            begin -= code_point_before(t.bytes, begin).bytes;
        parts.emplace_back(item_part(t, begin, end, spent));
        end = begin;
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
}

/// str.splitlines: cut at LF, CR, CR LF and the other ends of lines in Unicode.
KVCACHE_LAZY [[nodiscard]] inline list split_lines(const tagged_text& t, bool keep_ends, budget& spent) {
    spent.work(16 * t.bytes.size());
    const auto ends_line = [](char32_t c) {
        return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    };
    list parts;
    for (std::size_t i = 0; i < t.bytes.size();) {
        check_count(parts.size());
        std::size_t end = i;
        while (end < t.bytes.size() && !ends_line(code_point_at(t.bytes, end).value))
            end += code_point_at(t.bytes, end).bytes;
        std::size_t next = end;
        if (end < t.bytes.size())
            next += t.bytes.compare(end, 2, "\r\n") == 0 ? 2 : code_point_at(t.bytes, end).bytes;
        parts.emplace_back(item_part(t, i, keep_ends ? next : end, spent));
        i = next;
    }
    return parts;
}

/// Replaces the first `most` occurrences of `from`, as Python's replace().
KVCACHE_LAZY [[nodiscard]] inline tagged_text replaced(const tagged_text& t, std::string_view from,
                                                       const tagged_text& to, std::size_t most, budget& spent) {
    tagged_text out;
    if (from.empty()) { // Python's: before every character, and at the end
        std::size_t i = 0;
        for (; i < t.bytes.size() && most > 0; --most) {
            append(out, to, spent);
            const std::size_t size = code_point_at(t.bytes, i).bytes;
            append_part(out, t, i, i + size, spent);
            i += size;
        }
        append_part(out, t, i, t.bytes.size(), spent);
        if (most > 0)
            append(out, to, spent);
        return out;
    }
    spent.search(t.bytes.size(), from.size());
    std::size_t done = 0;
    for (auto at = t.bytes.find(from); at != std::string::npos && most > 0; at = t.bytes.find(from, done), --most) {
        append_part(out, t, done, at, spent);
        append(out, to, spent);
        done = at + from.size();
    }
    append_part(out, t, done, t.bytes.size(), spent);
    return out;
}

/// Conversions of case.
enum class letter_case { lower, upper, title, capitalized, swapped };

/// Converts the case of a text, as Python's lower(), upper(), title(), capitalize() and swapcase().
KVCACHE_LAZY [[nodiscard]] inline tagged_text in_case(const tagged_text& t, letter_case wanted, budget& spent) {
    spent.work(16 * t.bytes.size());
    spent.text(2 * t.bytes.size()); // a few letters have longer ones of the other case
    tagged_text out;
    bool inside_word = false;
    each_code_point(t.bytes, [&](code_point c, std::size_t at) {
        const auto code = static_cast<utf8proc_int32_t>(c.value);
        const cased its_case = case_of(c.value);
        const bool upper = wanted == letter_case::upper || (wanted == letter_case::swapped && its_case == cased::lower);
        if (wanted == letter_case::swapped && its_case == cased::none)
            append_utf8(out.bytes, c.value);
        else if (wanted == letter_case::lower || (wanted == letter_case::swapped && !upper) || (!upper && inside_word))
            append_lower_case(out.bytes, c.value);
        else if (c.value == 0xdf) // the letter whose upper case has two letters
            out.bytes += upper ? "SS" : "Ss";
        else
            append_utf8(out.bytes, static_cast<char32_t>(upper ? utf8proc_toupper(code) : utf8proc_totitle(code)));
        inside_word = wanted == letter_case::capitalized || its_case != cased::none;
        if (t.marked())
            out.plain.resize(out.bytes.size(), t.plain[at]);
    });
    return out;
}

/// Returns the offset of character `n` of a text, or its length if it has fewer.
KVCACHE_LAZY [[nodiscard]] inline std::size_t offset_of(std::string_view bytes, std::int64_t n) {
    std::size_t at = 0;
    for (; n > 0 && at < bytes.size(); --n)
        at += code_point_at(bytes, at).bytes;
    return at;
}

/// Returns the characters of a text, each as a text.
KVCACHE_LAZY [[nodiscard]] inline list characters(const tagged_text& t, budget& spent) {
    list out;
    each_code_point(t.bytes, [&](code_point c, std::size_t at) {
        check_count(out.size());
        out.emplace_back(item_part(t, at, at + c.bytes, spent));
    });
    return out;
}

/// The number of code points in UTF-8.
KVCACHE_LAZY [[nodiscard]] inline std::size_t character_count(std::string_view bytes) {
    return static_cast<std::size_t>(std::count_if(
        bytes.begin(), bytes.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

/// Joins the items of a list as text.
KVCACHE_LAZY [[nodiscard]] inline tagged_text joined(const list& items, const tagged_text& between, budget& spent) {
    tagged_text out;
    bool first = true;
    for (const value& item : items) {
        if (!std::exchange(first, false))
            append(out, between, spent);
        append(out, text_of(item, spent), spent);
    }
    return out;
}

/// Returns the value of a key in a mapping, or null.
KVCACHE_LAZY [[nodiscard]] inline const value* find_key(const mapping& map, const value& key, budget& spent) {
    if (const auto* text = key.as_text())
        return map.find(text->bytes, spent);
    const auto made = key_of(key, spent);
    return made ? map.find(made->bytes, spent) : nullptr;
}

KVCACHE_LAZY [[nodiscard]] bool has_method(const value& self, std::string_view name); // in methods.hpp

/// of[key] in Jinja's semantics: undefined if there is no such item.
KVCACHE_LAZY [[nodiscard]] inline value item_of(const value& of, const value& key, budget& spent) {
    if (of.is_undefined())
        mistake({"\"", std::get<value::undefined>(of.held()).name(), "\" is undefined"});
    if (const auto* map = of.as_mapping()) {
        if (const value* found = find_key(*map, key, spent))
            return *found;
    }
    if (const auto n = key.as_integer()) {
        const auto* items = of.kind() < list_kind::view ? of.as_list() : nullptr;
        const auto* text = of.as_text();
        if (text)
            spent.work(8 * text->bytes.size()); // characters are counted from the start
        const auto size = static_cast<std::int64_t>(items ? items->size() : text ? character_count(text->bytes) : 0);
        const auto at = *n < 0 ? *n + size : *n;
        if (at >= 0 && at < size)
            return items ? (*items)[static_cast<std::size_t>(at)]
                         : text_like(of,
                                     part_of(*text, offset_of(text->bytes, at), offset_of(text->bytes, at + 1), spent));
    }
    const auto* name = key.as_text();
    if (name && of.kind() == list_kind::group && (name->bytes == "grouper" || name->bytes == "list"))
        return (*of.as_list())[name->bytes == "list" ? 1 : 0];
    if (name && has_method(of, name->bytes))
        return bound_function{name->bytes, std::make_shared<const value>(of)};
    spent.text(name ? name->bytes.size() : 0);
    return value::undefined{name ? name->bytes : "item"};
}

/// of.name in Jinja's semantics: a method takes precedence over an item.
KVCACHE_LAZY [[nodiscard]] inline value attribute_of(const value& of, const std::string& name, budget& spent) {
    if (has_method(of, name))
        return bound_function{name, std::make_shared<const value>(of)};
    spent.text(name.size());
    return item_of(of, std::string_view(name), spent);
}

/// Returns the list of items that a loop iterates over: a list itself, the keys of a mapping, the characters of a text;
/// none for an undefined value. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value items_of(const value& of, budget& spent) {
    if (of.as_list())
        return of;
    if (const auto* text = of.as_text())
        return characters(*text, spent);
    list out;
    if (const auto* map = of.as_mapping())
        for (const auto& [name, v] : map->entries)
            out.push_back(key_value(name, spent));
    else if (!of.is_undefined())
        mistake({"a value of type ", of.type_name(), " is not a list"});
    return out;
}

/// of[begin:end:step] of a list or a text.
KVCACHE_LAZY [[nodiscard]] inline value slice_of(const value& of, const std::array<value, 3>& bounds, budget& spent) {
    const auto bound = [&](std::size_t i) -> std::optional<std::int64_t> {
        if (bounds[i].is_none())
            return std::nullopt;
        const auto n = bounds[i].as_integer();
        if (!n)
            mistake({"a slice needs integers, not ", bounds[i].type_name()});
        constexpr std::int64_t far = std::int64_t{1} << 40;
        return std::clamp(*n, -far, far);
    };
    const auto* text = of.as_text();
    if (text)
        spent.work(8 * text->bytes.size());
    if (of.is_undefined())
        mistake({"\"", std::get<value::undefined>(of.held()).name(), "\" is undefined"});
    if (!text && (!of.as_list() || of.kind() >= list_kind::view))
        return value::undefined{"slice"};
    const auto size = static_cast<std::int64_t>(text ? character_count(text->bytes) : of.as_list()->size());
    const std::int64_t step = bound(2).value_or(1);
    if (step == 0)
        mistake("a slice's step is not zero");
    const std::int64_t low = step > 0 ? 0 : -1;
    const std::int64_t high = step > 0 ? size : size - 1;
    const auto place = [&](std::optional<std::int64_t> n, std::int64_t otherwise) {
        return n ? std::clamp(*n < 0 ? *n + size : *n, low, high) : otherwise;
    };
    const std::int64_t begin = place(bound(0), step > 0 ? low : high);
    const std::int64_t end = place(bound(1), step > 0 ? high : low);
    if (text && step == 1)
        return text_like(of, begin < end
                                 ? part_of(*text, offset_of(text->bytes, begin), offset_of(text->bytes, end), spent)
                                 : tagged_text{});
    const value items = items_of(of, spent);
    list out;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        spent.items(1);
        out.push_back((*items.as_list())[static_cast<std::size_t>(i)]);
    }
    return text ? text_like(of, joined(out, {}, spent)) : value(std::move(out), of.kind());
}

/// Returns whether `item` is in a list, the keys of a mapping, or a text.
KVCACHE_LAZY [[nodiscard]] inline bool contains(const value& in, const value& item, budget& spent) {
    const auto* text = in.as_text();
    const auto* part = item.as_text();
    if (text) {
        if (!part)
            mistake({"only a text is in a text, not ", item.type_name()});
        spent.search(text->bytes.size(), part->bytes.size());
        return text->bytes.find(part->bytes) != std::string::npos;
    }
    if (const auto* map = in.as_mapping())
        return find_key(*map, item, spent) != nullptr;
    const value held = items_of(in, spent);
    const list& items = *held.as_list();
    return std::any_of(items.begin(), items.end(), [&](const value& v) { return equal(v, item, spent); });
}

/// Compares with < as Python does: numbers with numbers, texts with texts, lists with lists.
KVCACHE_LAZY [[nodiscard]] inline bool less(const value& a, const value& b, budget& spent) {
    const auto x = a.as_number();
    const auto y = b.as_number();
    spent.work(8);
    if (x && y)
        return a.as_integer() && b.as_integer() ? *a.as_integer() < *b.as_integer() : *x < *y;
    if (a.as_text() && b.as_text()) {
        spent.work(std::min(a.as_text()->bytes.size(), b.as_text()->bytes.size()) / 8);
        return a.as_text()->bytes < b.as_text()->bytes;
    }
    if (const auto* p = a.as_list(), *q = b.as_list(); p && q && a.kind() == b.kind() && a.kind() < list_kind::view) {
        for (std::size_t i = 0; i < std::min(p->size(), q->size()); ++i)
            if (!equal((*p)[i], (*q)[i], spent))
                return less((*p)[i], (*q)[i], spent);
        return p->size() < q->size();
    }
    mistake({"values of the types ", a.type_name(), " and ", b.type_name(), " have no order"});
}

}}} // namespace kvcache::text::jinja
