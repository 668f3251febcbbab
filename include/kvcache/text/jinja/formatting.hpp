// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/sequence.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// How Python formats a value: [[fill]align][sign][#][0][width][grouping][.precision][type].
struct format_spec {
    std::string fill = " ";
    char align = '\0';      ///< One of "<>=^", or 0 for that of the type.
    char sign = '-';        ///< One of "+- ".
    bool alternate = false; ///< A prefix such as "0x".
    char grouping = '\0';   ///< ',' or '_' between every three digits, or 0.
    char type = '\0';       ///< Such as 'd' or 'f', or 0 for that of the value.
    std::size_t width = 0;  ///< In characters.
    std::optional<std::size_t> precision = {};
};

/// Largest width and precision, so that a format makes no more than a short text.
inline constexpr std::size_t widest_format = 4096;

/// Returns a width that a template asks for. Throws: failure if it is larger than widest_format.
KVCACHE_LAZY [[nodiscard]] inline std::size_t format_width(std::int64_t n) {
    if (n > static_cast<std::int64_t>(widest_format))
        refuse({"a format wider than ", std::to_string(widest_format), " characters is not known"});
    return n < 0 ? 0 : static_cast<std::size_t>(n);
}

/// Reads the decimal number at `i` and moves past it. Throws: failure if it is larger than widest_format.
KVCACHE_LAZY [[nodiscard]] inline std::optional<std::size_t> format_number(std::string_view text, std::size_t& i) {
    std::optional<std::size_t> made;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
        made = format_width(static_cast<std::int64_t>(10 * made.value_or(0)) + (text[i] - '0'));
    return made;
}

/// Reads a format specification. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline format_spec format_spec_of(std::string_view text) {
    constexpr std::string_view aligns = "<>=^";
    format_spec made;
    std::size_t i = 0;
    const auto is = [&](std::size_t at, std::string_view any) {
        return at < text.size() && any.find(text[at]) != std::string_view::npos;
    };
    const std::size_t first = text.empty() ? 0 : code_point_at(text, 0).bytes;
    if (is(first, aligns) && first > 0) {
        made.fill = text.substr(0, first);
        made.align = text[first];
        i = first + 1;
    } else if (is(0, aligns)) {
        made.align = text[i++];
    }
    if (is(i, "+- "))
        made.sign = text[i++];
    if (is(i, "#")) {
        made.alternate = true;
        ++i;
    }
    if (is(i, "0")) {
        if (made.align == '\0') {
            made.fill = "0";
            made.align = '=';
        }
        ++i;
    }
    made.width = format_number(text, i).value_or(0);
    if (is(i, ",_"))
        made.grouping = text[i++];
    if (is(i, ".")) {
        made.precision = format_number(text, ++i);
        if (!made.precision)
            mistake("a format lacks its precision");
    }
    if (i < text.size())
        made.type = text[i++];
    if (i < text.size())
        mistake({"the format \"", text, "\" is not valid"});
    return made;
}

namespace detail {

/// Puts a separator between every `size` digits from the right.
KVCACHE_LAZY [[nodiscard]] inline std::string grouped_digits(const std::string& digits, char separator,
                                                             std::size_t size) {
    std::string made;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % size == 0)
            made.push_back(separator);
        made.push_back(digits[i]);
    }
    return made;
}

/// Returns the digits of a number that is not negative, with its prefix apart.
KVCACHE_LAZY [[nodiscard]] inline std::pair<std::string, std::string> digits_of(std::uint64_t n,
                                                                                const format_spec& spec) {
    const unsigned radix = spec.type == 'x' || spec.type == 'X' ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
    const std::string_view all = spec.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    std::string digits;
    do
        digits.push_back(all[static_cast<std::size_t>(n % radix)]);
    while ((n /= radix) != 0);
    std::reverse(digits.begin(), digits.end());
    if (spec.grouping != '\0')
        digits = grouped_digits(digits, spec.grouping, radix == 10 ? 3 : 4);
    return {spec.alternate && radix != 10 ? std::string{'0', spec.type} : std::string{}, digits};
}

/// Returns the digits of a floating-point number that is not negative.
KVCACHE_LAZY [[nodiscard]] inline std::string digits_of(double d, const format_spec& spec) {
    const char type = spec.type == '\0' || spec.type == 'n' ? 'g' : spec.type == '%' ? 'f' : spec.type;
    if (std::isnan(d) || std::isinf(d))
        return std::isnan(d) ? (type < 'a' ? "NAN" : "nan") : (type < 'a' ? "INF" : "inf");
    if (spec.type == '\0' && !spec.precision)
        return shown(d);
    const std::string form = std::string(spec.alternate ? "%#.*" : "%.*") + type;
    const int precision = static_cast<int>(spec.precision.value_or(6));
    const double scaled = spec.type == '%' ? d * 100 : d;
    std::string made(static_cast<std::size_t>(std::snprintf(nullptr, 0, form.c_str(), precision, scaled)) + 1, '\0');
    (void)std::snprintf(made.data(), made.size(), form.c_str(), precision, scaled);
    made.pop_back();
    if (spec.type == '\0' && made.find_first_of(".e") == std::string::npos)
        made += ".0";
    if (spec.grouping != '\0') {
        const auto whole = std::min(made.find_first_not_of("0123456789"), made.size());
        made = grouped_digits(made.substr(0, whole), spec.grouping, 3) + made.substr(whole);
    }
    return spec.type == '%' ? made + "%" : made;
}

} // namespace detail

/// Pads a text to the width of a format. `sign` stays before the padding if the format aligns with "=".
KVCACHE_LAZY [[nodiscard]] inline tagged_text padded(const tagged_text& t, const std::string& sign,
                                                     const format_spec& spec, char align, budget& spent) {
    spent.work(t.bytes.size());
    const std::size_t size = character_count(t.bytes) + sign.size();
    const std::size_t missing = spec.width - std::min(spec.width, size);
    const std::size_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
    spent.text(missing * spec.fill.size() + sign.size());
    const auto fill = [&](tagged_text& out, std::size_t n) {
        for (; n > 0; --n)
            out.append(spec.fill, false);
    };
    tagged_text out;
    if (align == '=')
        out.append(sign, false);
    fill(out, before);
    if (align != '=')
        out.append(sign, false);
    append(out, t, spent);
    fill(out, missing - before);
    return out;
}

/// str.center: the text in the middle of the width, one more character before it if both widths are odd.
KVCACHE_LAZY [[nodiscard]] inline tagged_text centered(const tagged_text& t, format_spec spec, budget& spent) {
    const std::size_t size = character_count(t.bytes);
    const std::size_t missing = spec.width - std::min(spec.width, size);
    const std::size_t width = std::exchange(spec.width, size + missing / 2 + (missing & spec.width & 1));
    const tagged_text right = padded(t, {}, spec, '>', spent);
    spec.width = width;
    return padded(right, {}, spec, '<', spent);
}

/// format(v, spec). Throws: failure, if the type of the value has no such format.
KVCACHE_LAZY [[nodiscard]] inline tagged_text formatted_value(const value& v, const format_spec& spec, budget& spent) {
    const bool formats_bool = v.is<bool>() && (spec.width > 0 || spec.align != '\0'); // as a number
    const bool of_integer = spec.type == '\0' ? v.is<std::int64_t>() || formats_bool
                                              : std::string_view("bdoxXcn").find(spec.type) != std::string_view::npos;
    const bool of_float = std::string_view("eEfFgGn%").find(spec.type) != std::string_view::npos && spec.type != '\0';
    const auto n = v.as_integer();
    if (of_integer && n && spec.type == 'c') {
        if (*n < 0 || *n > 0x10ffff || (*n >= 0xd800 && *n < 0xe000))
            mistake("a number is no character");
        tagged_text one;
        append_utf8(one.bytes, static_cast<char32_t>(*n));
        return padded(one, {}, spec, spec.align == '\0' ? '<' : spec.align, spent);
    }
    const auto d = v.as_number();
    if ((of_integer && n) || (d && (of_float || (spec.type == '\0' && v.is<double>())))) {
        const bool negative = of_integer && n ? *n < 0 : std::signbit(*d);
        std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
        tagged_text digits;
        if (of_integer && n) {
            const auto size = negative ? 0 - static_cast<std::uint64_t>(*n) : static_cast<std::uint64_t>(*n);
            auto [prefix, made] = detail::digits_of(size, spec);
            sign += prefix;
            digits.bytes = std::move(made);
        } else {
            digits.bytes = detail::digits_of(std::abs(*d), spec);
        }
        spent.text(digits.bytes.size());
        return padded(digits, sign, spec, spec.align == '\0' ? '>' : spec.align, spent);
    }
    if ((spec.type != '\0' && spec.type != 's') || spec.align == '=')
        mistake({"a value of type ", v.type_name(), " has no format ", std::string(1, spec.type)});
    tagged_text t = text_of(v, spent);
    if (spec.precision)
        t = part_of(t, 0, offset_of(t.bytes, static_cast<std::int64_t>(*spec.precision)), spent);
    return padded(t, {}, spec, spec.align == '\0' ? '<' : spec.align, spent);
}

// Python's str.format and the operator % of a string. Text of the arguments keeps its marks.

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
        const auto n = parsed_integer(text);
        return n && *n >= 0 ? n : std::nullopt;
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
