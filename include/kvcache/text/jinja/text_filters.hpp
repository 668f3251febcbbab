// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/platform/number_text.hpp>
#include <kvcache/text/jinja/formatting.hpp>
#include <kvcache/text/jinja/methods.hpp>
#include <kvcache/text/jinja/sequence.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

// Jinja's filters that return text.

namespace detail {

KVCACHE_LAZY [[nodiscard]] inline value trim_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"chars"});
    return text_like(v, stripped(text_of(v, spent), true, true, args.text_or_none(0, "chars", spent), spent));
}

/// tojson of the transformers package: json.dumps with ensure_ascii=False, which does not escape for HTML.
KVCACHE_LAZY [[nodiscard]] inline value json_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(4, {"ensure_ascii", "indent", "separators", "sort_keys"});
    json_format form;
    form.ensure_ascii = args.is_true(0, "ensure_ascii");
    form.sort_keys = args.is_true(3, "sort_keys");
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
    const value* width = args.find(0, "width");
    const tagged_text space = width && width->as_text()
                                  ? text_of(*width, spent)
                                  : tagged_text{std::string(format_width(args.integer(0, "width", 4)), ' '), {}};
    const bool indents_blank = args.is_true(2, "blank");
    tagged_text text = text_of(v, spent);
    text.append("\n", false); // Jinja's: so that lines that end the text count
    tagged_text out;
    if (args.is_true(1, "first"))
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
        return is_space(c) ||
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
    return text_like(v, centered(text_of(v, spent), {.width = format_width(args.integer(0, "width", 80))}, spent));
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
    each_code_point(t.bytes, [&](code_point c, std::size_t) {
        const bool word = is_letter(c.value) || is_number(c.value) || c.value == '_';
        n += word && !inside;
        inside = word;
    });
    return n;
}

KVCACHE_LAZY [[nodiscard]] inline value truncate_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(4, {"length", "killwords", "end", "leeway"});
    if (!v.as_text())
        mistake({"truncate() needs a string, not ", v.type_name()});
    const tagged_text t = text_of(v, spent);
    const tagged_text end = text_of(args.value_or(2, "end", "..."), spent);
    const std::int64_t length = args.integer(0, "length", 255);
    const std::int64_t ending = static_cast<std::int64_t>(character_count(end.bytes));
    const std::int64_t leeway = args.integer(3, "leeway", 5);
    if (length < ending || leeway < 0 || length > (std::int64_t{1} << 40) || leeway > (std::int64_t{1} << 40))
        mistake("truncate() is called with a number out of range");
    spent.work(8 * t.bytes.size());
    if (static_cast<std::int64_t>(character_count(t.bytes)) <= length + leeway)
        return text_like(v, t);
    tagged_text out = part_of(t, 0, offset_of(t.bytes, length - ending), spent);
    if (!args.is_true(1, "killwords"))
        if (const auto space = out.bytes.rfind(' '); space != std::string::npos)
            out = part_of(out, 0, space, spent);
    append(out, end, spent);
    return text_like(v, std::move(out));
}

// Jinja's filters that return numbers.

/// Returns the number that the whole of a text is, as Python's float() reads it.
KVCACHE_LAZY [[nodiscard]] inline std::optional<double> parsed_float(std::string_view text) {
    if (text.starts_with('+') && !text.substr(1).starts_with('-'))
        text.remove_prefix(1);
    return parse_double(text);
}

/// Returns the integer part of a number. Throws: failure if there is none.
KVCACHE_LAZY [[nodiscard]] inline std::int64_t truncated(double d) {
    if (!(std::abs(d) < 9.2e18))
        mistake("a number is too large");
    return static_cast<std::int64_t>(d);
}

KVCACHE_LAZY [[nodiscard]] inline value int_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(2, {"default", "base"});
    if (const auto n = v.as_integer())
        return *n;
    value otherwise = args.value_or(0, "default", std::int64_t{0});
    if (const auto d = v.as_number())
        return std::isfinite(*d) ? value(truncated(*d)) : otherwise;
    if (!v.as_text())
        return otherwise;
    const auto base = args.integer(1, "base", 10);
    if (base < 2 || base > 36)
        mistake("int() needs a base from 2 to 36");
    const std::string all = stripped(*v.as_text(), true, true, std::nullopt, spent).bytes;
    spent.work(8 * all.size());
    std::string_view text = all;
    if (text.starts_with('+') && !text.substr(1).starts_with('-'))
        text.remove_prefix(1);
    const bool prefixed = (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) ||
                          (base == 8 && (text.starts_with("0o") || text.starts_with("0O"))) ||
                          (base == 2 && (text.starts_with("0b") || text.starts_with("0B")));
    if (prefixed)
        text.remove_prefix(2);
    if (const auto n = parsed_integer(text, static_cast<int>(base)))
        return *n;
    const auto d = parsed_float(all);
    return d && std::isfinite(*d) ? value(truncated(*d)) : otherwise;
}

KVCACHE_LAZY [[nodiscard]] inline value float_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"default"});
    if (const auto d = v.as_number())
        return *d;
    value otherwise = args.value_or(0, "default", 0.0);
    if (!v.as_text())
        return otherwise;
    const std::string text = stripped(*v.as_text(), true, true, std::nullopt, spent).bytes;
    spent.work(8 * text.size());
    const auto d = parsed_float(text);
    return d ? value(*d) : otherwise;
}

KVCACHE_LAZY [[nodiscard]] inline value abs_filter(const value& v, const arguments& args, budget&) {
    args.expect(0, {});
    if (const auto n = v.as_integer(); n && *n != INT64_MIN)
        return *n < 0 ? -*n : *n;
    const auto d = v.as_number();
    if (!d)
        mistake({"a value of type ", v.type_name(), " has no absolute value"});
    return std::abs(*d);
}

KVCACHE_LAZY [[nodiscard]] inline value round_filter(const value& v, const arguments& args, budget&) {
    args.expect(2, {"precision", "method"});
    const auto d = v.as_number();
    const auto precision = args.integer(0, "precision", 0);
    const std::string_view method = args.find(1, "method") ? std::string_view(args.text(1, "method").bytes) : "common";
    if (!d || precision < -300 || precision > 300)
        mistake("round() needs numbers");
    const double scale = std::pow(10.0, static_cast<double>(precision));
    if (method == "ceil" || method == "floor")
        return (method == "ceil" ? std::ceil(*d * scale) : std::floor(*d * scale)) / scale;
    if (method != "common")
        mistake({"the method \"", method, "\" of round() is not known"});
    const auto n = v.as_integer();
    if (n && precision >= 0)
        return *n;
    if (precision < 0) {
        const double made = std::nearbyint(*d * scale) / scale;
        return n ? value(truncated(made)) : value(made);
    }
    const format_spec spec{.type = 'f', .precision = static_cast<std::size_t>(precision)};
    const double size = parsed_float(digits_of(std::abs(*d), spec)).value_or(std::abs(*d)); // rounds exact decimals
    return std::signbit(*d) ? -size : size;
}

KVCACHE_LAZY [[nodiscard]] inline value filesize_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"binary"});
    const auto bytes = float_filter(v, {"float", {}, {}}, spent).as_number();
    const bool of_1024 = args.is_true(0, "binary");
    const double base = of_1024 ? 1024 : 1000;
    if (*bytes == 1)
        return "1 Byte";
    if (*bytes < base)
        return value(std::to_string(truncated(*bytes)) + " Bytes");
    constexpr std::array<std::string_view, 8> names{"k", "M", "G", "T", "P", "E", "Z", "Y"};
    double unit = base * base;
    std::size_t i = 0;
    for (; i + 1 < names.size() && *bytes >= unit; ++i)
        unit *= base;
    const format_spec spec{.type = 'f', .precision = 1};
    return value(digits_of(base * *bytes / unit, spec) + " " + (of_1024 && i == 0 ? "K" : std::string(names[i])) +
                 (of_1024 ? "iB" : "B"));
}

} // namespace detail

}}} // namespace kvcache::text::jinja
