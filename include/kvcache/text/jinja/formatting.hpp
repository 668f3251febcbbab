// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/format_spec.hpp>
#include <kvcache/text/jinja/markup.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

// Python's str.format and the operator % of a string. Text of the arguments keeps its marks.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

namespace detail {

/// The text of a replacement field of str.format: name!conversion:spec.
struct replacement_field {
    std::string_view name = {};
    char conversion = '\0';
    std::string_view spec = {};
};

/// Splits the text between the braces. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline replacement_field replacement_field_of(std::string_view text) {
    replacement_field made;
    const auto end = std::min(text.find_first_of(":!"), text.size());
    made.name = text.substr(0, end);
    text.remove_prefix(end);
    if (text.starts_with('!')) {
        if (text.size() < 2 || (text.size() > 2 && text[2] != ':'))
            mistake("a replacement field of format() is not valid");
        made.conversion = text[1];
        text.remove_prefix(2);
    }
    if (text.starts_with(':'))
        made.spec = text.substr(1);
    return made;
}

/// Returns the argument that a field names, such as "", "0", "name", "0.key" or "name[0]". `next` counts the fields
/// without a name. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value field_value(std::string_view name, const arguments& args, std::size_t& next,
                                                    budget& spent) {
    const auto index_of = [](std::string_view text) -> std::optional<std::int64_t> {
        std::int64_t n = 0;
        const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
        return problem == std::errc{} && end == text.data() + text.size() && n >= 0 ? std::optional(n) : std::nullopt;
    };
    const auto first = name.substr(0, name.find_first_of(".["));
    const auto index = first.empty() ? std::optional(static_cast<std::int64_t>(next++)) : index_of(first);
    const value* found =
        index ? (static_cast<std::size_t>(*index) < args.values.size() ? &args.values[static_cast<std::size_t>(*index)]
                                                                       : nullptr)
              : args.find(args.values.size(), first);
    if (!found)
        mistake({"format() lacks the argument \"", name, "\""});
    value made = *found;
    for (name.remove_prefix(first.size()); !name.empty();) {
        const bool item = name[0] == '[';
        name.remove_prefix(1);
        const auto key = name.substr(0, name.find_first_of(item ? "]" : ".["));
        name.remove_prefix(std::min(name.size(), key.size() + (item ? 1 : 0)));
        spent.text(key.size());
        const auto number = item ? index_of(key) : std::nullopt;
        made = number ? item_of(made, *number, spent) : item_of(made, key, spent);
        if (made.is_undefined())
            mistake({"format() finds no \"", key, "\""});
    }
    return made;
}

} // namespace detail

/// str.format(args). Markup escapes its arguments. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value formatted(const value& form, const arguments& args, budget& spent) {
    const tagged_text& t = *form.as_text();
    spent.work(8 * t.bytes.size());
    tagged_text out;
    std::size_t next = 0;
    for (std::size_t i = 0; i < t.bytes.size();) {
        const auto brace = std::min(t.bytes.find_first_of("{}", i), t.bytes.size());
        append_part(out, t, i, brace, spent);
        if (brace == t.bytes.size())
            break;
        i = brace + 1;
        if (i < t.bytes.size() && t.bytes[i] == t.bytes[brace]) {
            append_part(out, t, i, i + 1, spent);
            ++i;
            continue;
        }
        const auto end = t.bytes.find_first_of("{}", i);
        if (t.bytes[brace] == '}' || end == std::string::npos)
            mistake("a brace of format() has no other");
        if (t.bytes[end] == '{')
            refuse("a replacement field of format() within another is not known");
        const auto field = detail::replacement_field_of(std::string_view(t.bytes).substr(i, end - i));
        value v = detail::field_value(field.name, args, next, spent);
        if (field.conversion == 'r' || field.conversion == 's')
            v = field.conversion == 'r' ? value(repr_of(v, spent)) : text_like(v, text_of(v, spent));
        else if (field.conversion != '\0')
            refuse({"the conversion !", std::string(1, field.conversion), " of format() is not known"});
        const tagged_text made = formatted_value(v, format_spec_of(field.spec), spent);
        append(out, form.is_markup() && !v.is_markup() ? escaped(made, spent) : made, spent);
        i = end + 1;
    }
    return text_like(form, std::move(out));
}

namespace detail {

/// A conversion of the operator %: the key of a mapping, flags, width, precision and type. `*` is not known.
struct percent_field {
    std::optional<std::string_view> key = {};
    format_spec spec = {};
    bool left = false;
};

/// Reads the conversion after a % at `i` and moves past it. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline percent_field percent_field_of(std::string_view text, std::size_t& i) {
    percent_field made;
    if (text.substr(i).starts_with('(')) {
        const auto close = text.find(')', i);
        if (close == std::string_view::npos)
            mistake("a key of the operator % does not end");
        made.key = text.substr(i + 1, close - i - 1);
        i = close + 1;
    }
    for (; i < text.size() && std::string_view("-+ 0#").find(text[i]) != std::string_view::npos; ++i) {
        made.left = made.left || text[i] == '-';
        made.spec.alternate = made.spec.alternate || text[i] == '#';
        if (text[i] == '0')
            made.spec.fill = "0";
        if (text[i] == '+' || (text[i] == ' ' && made.spec.sign == '-'))
            made.spec.sign = text[i];
    }
    made.spec.width = format_number(text, i).value_or(0);
    if (text.substr(i).starts_with('.'))
        made.spec.precision = format_number(text, ++i).value_or(0);
    if (i == text.size())
        mistake("a conversion of the operator % does not end");
    made.spec.type = text[i++];
    return made;
}

/// Converts a value. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline tagged_text percent_value(const value& v, percent_field field, budget& spent) {
    format_spec& spec = field.spec;
    const bool text = spec.type == 's' || spec.type == 'r' || spec.type == 'a' || spec.type == 'c';
    if (!text && std::string_view("diuxXofFeEgG").find(spec.type) == std::string_view::npos)
        mistake({"the conversion %", std::string(1, spec.type), " is not known"});
    if (text || field.left)
        spec.fill = " ";
    spec.align = field.left ? '<' : spec.fill == "0" ? '=' : '>';
    if (spec.type == 'c' && v.as_text())
        spec.type = 's';
    if (spec.type == 'r' || spec.type == 'a') {
        spec.type = 's';
        return formatted_value(repr_of(v, spent), spec, spent);
    }
    if (spec.type == 's')
        return formatted_value(text_of(v, spent), spec, spent);
    if (spec.type == 'i' || spec.type == 'u')
        spec.type = 'd';
    const auto d = v.as_number();
    if (std::string_view("dxXo").find(spec.type) == std::string_view::npos)
        return formatted_value(v, spec, spent);
    spec.precision.reset();
    if (spec.type == 'd' && d && !v.as_integer() && std::abs(*d) < 9e18)
        return formatted_value(static_cast<std::int64_t>(*d), spec, spent);
    return formatted_value(v, spec, spent);
}

} // namespace detail

/// form % of: `of` is a tuple of values, a mapping or one value. Markup escapes what it takes. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value percent_formatted(const value& form, const value& of, budget& spent) {
    const tagged_text& t = *form.as_text();
    spent.work(8 * t.bytes.size());
    const list one{of};
    const list& values = of.kind() == list_kind::tuple ? *of.as_list() : one;
    tagged_text out;
    std::size_t next = 0;
    for (std::size_t i = 0; i < t.bytes.size();) {
        const auto sign = std::min(t.bytes.find('%', i), t.bytes.size());
        append_part(out, t, i, sign, spent);
        if (sign == t.bytes.size())
            break;
        i = sign + 1;
        if (i < t.bytes.size() && t.bytes[i] == '%') {
            append_part(out, t, i, i + 1, spent);
            ++i;
            continue;
        }
        const auto field = detail::percent_field_of(t.bytes, i);
        if (field.key && !of.as_mapping())
            mistake("the operator % needs a mapping");
        if (!field.key && next == values.size())
            mistake("the operator % has too few values");
        const value* found = field.key ? of.as_mapping()->find(*field.key, spent) : &values[next++];
        if (!found)
            mistake({"the operator % finds no \"", *field.key, "\""});
        const tagged_text made = detail::percent_value(*found, field, spent);
        append(out, form.is_markup() && !found->is_markup() ? escaped(made, spent) : made, spent);
    }
    if (next < values.size() && !of.as_mapping() && !of.is_undefined() &&
        !(next == 0 && of.as_list() && of.kind() != list_kind::tuple))
        mistake("the operator % has too many values");
    return text_like(form, std::move(out));
}

}}} // namespace kvcache::text::jinja
