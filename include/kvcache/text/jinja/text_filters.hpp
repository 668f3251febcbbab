// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/filter.hpp>
#include <kvcache/text/jinja/formatting.hpp>
#include <kvcache/text/jinja/markup.hpp>
#include <kvcache/text/jinja/text_functions.hpp>
#include <kvcache/text/jinja/text_methods.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

// Jinja's filters that return text.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

namespace detail {

KVCACHE_LAZY [[nodiscard]] inline value trim_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"chars"});
    return text_like(v, stripped(text_of(v, spent), true, true, args.text_or_none(0, "chars", spent), spent));
}

/// tojson of the transformers package: json.dumps with ensure_ascii=False, which does not escape for HTML.
KVCACHE_LAZY [[nodiscard]] inline value json_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(4, {"ensure_ascii", "indent", "separators", "sort_keys"});
    json_format form;
    const auto is_true = [&](std::size_t position, std::string_view name) {
        const value* given = args.find(position, name);
        return given && given->truth();
    };
    form.ensure_ascii = is_true(0, "ensure_ascii");
    form.sort_keys = is_true(3, "sort_keys");
    if (const value* indent = args.find(1, "indent"); indent && !indent->is_none()) {
        form.item_separator = ",";
        spent.text(widest_format);
        form.indent =
            indent->as_text() ? indent->as_text()->bytes : std::string(format_width(args.integer(1, "indent", 0)), ' ');
    }
    if (const value* separators = args.find(2, "separators"); separators && !separators->is_none()) {
        const auto* two = separators->as_list();
        if (!two || two->size() != 2 || !(*two)[0].as_text() || !(*two)[1].as_text())
            mistake("tojson() needs two strings as separators");
        form.item_separator = (*two)[0].as_text()->bytes;
        form.key_separator = (*two)[1].as_text()->bytes;
    }
    return json_of(v, form, spent);
}

KVCACHE_LAZY [[nodiscard]] inline value replace_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(3, {"old", "new", "count"});
    const tagged_text from = text_of(args.at(0, "old"), spent);
    const tagged_text to = text_of(args.at(1, "new"), spent);
    return replaced(text_of(v, spent), from.bytes, to, limit_of(args.integer(2, "count", -1)), spent);
}

/// Jinja's indent: by default neither the first line nor empty lines are indented.
KVCACHE_LAZY [[nodiscard]] inline value indent_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(3, {"width", "first", "blank"});
    const value* first = args.find(1, "first");
    const value* blank = args.find(2, "blank");
    const value* width = args.find(0, "width");
    const tagged_text space = width && width->as_text()
                                  ? text_of(*width, spent)
                                  : tagged_text{std::string(format_width(args.integer(0, "width", 4)), ' '), {}};
    const bool indents_blank = blank && blank->truth();
    tagged_text text = text_of(v, spent);
    text.append("\n", false); // Jinja's: so that lines that end the text count
    tagged_text out;
    if (first && first->truth())
        append(out, space, spent);
    bool is_first = true;
    for (const value& line : split_lines(text, false, spent)) {
        const tagged_text& one = *line.as_text();
        spent.text(1);
        if (!is_first)
            out.append("\n", false);
        if (!is_first && (indents_blank || !one.bytes.empty()))
            append(out, space, spent);
        append(out, one, spent);
        is_first = false;
    }
    return text_like(v, std::move(out));
}

/// lower, upper, capitalize.
KVCACHE_LAZY [[nodiscard]] inline value case_filter(const value& v, const arguments& args, budget& spent) {
    const value text = v.as_text() ? v : value(text_of(v, spent));
    return case_method(text, args, spent);
}

/// Jinja's title: the first character of each word is in upper case, the others in lower case.
KVCACHE_LAZY [[nodiscard]] inline value title_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    const tagged_text t = text_of(v, spent);
    const auto separates = [&](std::size_t i) {
        const char32_t c = code_point_at(t.bytes, i).value;
        return strips(c, std::nullopt) ||
               (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
    };
    const auto next_of = [&](std::size_t i) { return i + code_point_at(t.bytes, i).bytes; };
    tagged_text out;
    for (std::size_t i = 0; i < t.bytes.size();) {
        const bool between = separates(i);
        std::size_t end = next_of(i);
        while (end < t.bytes.size() && separates(end) == between)
            end = next_of(end);
        const std::size_t second = next_of(i);
        append(out, in_case(part_of(t, i, second, spent), letter_case::upper, spent), spent);
        append(out, in_case(part_of(t, second, end, spent), letter_case::lower, spent), spent);
        i = end;
    }
    return out;
}

KVCACHE_LAZY [[nodiscard]] inline value string_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    return v.as_text() ? v : value(text_of(v, spent));
}

/// safe, escape, forceescape.
KVCACHE_LAZY [[nodiscard]] inline value markup_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    tagged_text t = text_of(v, spent);
    const bool escapes = args.of == "forceescape" || (args.of != "safe" && !v.is_markup());
    return value::markup(escapes ? escaped(t, spent) : std::move(t));
}

KVCACHE_LAZY [[nodiscard]] inline value center_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"width"});
    format_spec spec;
    spec.width = format_width(args.integer(0, "width", 80));
    return text_like(v, centered(text_of(v, spent), spec, spent));
}

KVCACHE_LAZY [[nodiscard]] inline value format_filter(const value& v, const arguments& args, budget& spent) {
    const value form = string_filter(v, {"string", {}, {}}, spent);
    if (args.named.empty()) {
        spent.items(args.values.size());
        return percent_formatted(form, {args.values, list_kind::tuple}, spent);
    }
    if (!args.values.empty())
        mistake("format() takes values or names, not both");
    mapping named;
    for (const auto& [name, one] : args.named)
        named.set({name, {}}, one, spent);
    return percent_formatted(form, named, spent);
}

KVCACHE_LAZY [[nodiscard]] inline value wordcount_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    const tagged_text t = text_of(v, spent);
    spent.work(16 * t.bytes.size());
    std::int64_t n = 0;
    bool inside = false;
    for (std::size_t i = 0; i < t.bytes.size();) {
        const auto c = code_point_at(t.bytes, i);
        const bool word = is_letter(c.value) || is_number(c.value) || c.value == '_';
        n += word && !inside;
        inside = word;
        i += c.bytes;
    }
    return n;
}

KVCACHE_LAZY [[nodiscard]] inline value truncate_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(4, {"length", "killwords", "end", "leeway"});
    if (!v.as_text())
        mistake({"truncate() needs a string, not ", v.type_name()});
    const tagged_text t = text_of(v, spent);
    const value* killwords = args.find(1, "killwords");
    const tagged_text end = args.find(2, "end") ? text_of(*args.find(2, "end"), spent) : tagged_text{"...", {}};
    const std::int64_t length = args.integer(0, "length", 255);
    const std::int64_t ending = static_cast<std::int64_t>(character_count(end.bytes));
    const std::int64_t leeway = args.integer(3, "leeway", 5);
    if (length < ending || leeway < 0 || length > (std::int64_t{1} << 40) || leeway > (std::int64_t{1} << 40))
        mistake("truncate() is called with a number out of range");
    spent.work(8 * t.bytes.size());
    if (static_cast<std::int64_t>(character_count(t.bytes)) <= length + leeway)
        return text_like(v, t);
    tagged_text out = part_of(t, 0, offset_of(t.bytes, length - ending), spent);
    if (!killwords || !killwords->truth())
        if (const auto space = out.bytes.rfind(' '); space != std::string::npos)
            out = part_of(out, 0, space, spent);
    append(out, end, spent);
    return text_like(v, std::move(out));
}

} // namespace detail

/// Returns the filter of text of this name, or null.
KVCACHE_LAZY [[nodiscard]] inline const filter* find_text_filter(std::string_view name) {
    using namespace detail;
    static constexpr std::array filters{
        filter{"trim", trim_filter<>},          filter{"tojson", json_filter<>},
        filter{"replace", replace_filter<>},    filter{"indent", indent_filter<>},
        filter{"lower", case_filter<>},         filter{"upper", case_filter<>},
        filter{"capitalize", case_filter<>},    filter{"title", title_filter<>},
        filter{"string", string_filter<>},      filter{"safe", markup_filter<>},
        filter{"escape", markup_filter<>},      filter{"e", markup_filter<>},
        filter{"forceescape", markup_filter<>}, filter{"center", center_filter<>},
        filter{"format", format_filter<>},      filter{"wordcount", wordcount_filter<>},
        filter{"truncate", truncate_filter<>},
    };
    return find_in(filters, name);
}

}}} // namespace kvcache::text::jinja
