// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/failure.hpp>
#include <kvcache/text/jinja/number_text.hpp>
#include <kvcache/text/jinja/text_functions.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
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
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
        made = 10 * made.value_or(0) + static_cast<std::size_t>(text[i] - '0');
        if (*made > widest_format)
            refuse({"a format wider than ", std::to_string(widest_format), " characters is not known"});
    }
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
        digits.push_back(all[n % radix]);
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
    const auto wrong = [&] {
        mistake({"a value of type ", v.type_name(), " has no format ", std::string(1, spec.type)});
    };
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
        wrong();
    tagged_text t = text_of(v, spent);
    if (spec.precision)
        t = part_of(t, 0, offset_of(t.bytes, static_cast<std::int64_t>(*spec.precision)), spent);
    return padded(t, {}, spec, spec.align == '\0' ? '<' : spec.align, spent);
}

}}} // namespace kvcache::text::jinja
