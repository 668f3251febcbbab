// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/filter.hpp>
#include <kvcache/text/jinja/format_spec.hpp>
#include <kvcache/text/jinja/text_functions.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

// Jinja's filters that return numbers.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

namespace detail {

/// Returns the number that the whole of a text is, as Python's float() reads it.
KVCACHE_LAZY [[nodiscard]] inline std::optional<double> parsed_float(std::string_view text) {
    if (text.starts_with('+') && !text.substr(1).starts_with('-'))
        text.remove_prefix(1);
    double d = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), d);
    return problem == std::errc{} && end == text.data() + text.size() ? std::optional(d) : std::nullopt;
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
    const value otherwise = args.find(0, "default") ? *args.find(0, "default") : value(std::int64_t{0});
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
    std::int64_t n = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n, static_cast<int>(base));
    if (problem == std::errc{} && end == text.data() + text.size())
        return n;
    const auto d = parsed_float(all);
    return d && std::isfinite(*d) ? value(truncated(*d)) : otherwise;
}

KVCACHE_LAZY [[nodiscard]] inline value float_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"default"});
    if (const auto d = v.as_number())
        return *d;
    const value otherwise = args.find(0, "default") ? *args.find(0, "default") : value(0.0);
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
    format_spec spec;
    spec.type = 'f';
    spec.precision = static_cast<std::size_t>(precision);
    const double size = parsed_float(digits_of(std::abs(*d), spec)).value_or(std::abs(*d)); // rounds exact decimals
    return std::signbit(*d) ? -size : size;
}

KVCACHE_LAZY [[nodiscard]] inline value filesize_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"binary"});
    const auto bytes = float_filter(v, {"float", {}, {}}, spent).as_number();
    const value* binary = args.find(0, "binary");
    const bool of_1024 = binary && binary->truth();
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
    format_spec spec;
    spec.type = 'f';
    spec.precision = 1;
    return value(digits_of(base * *bytes / unit, spec) + " " + (of_1024 && i == 0 ? "K" : std::string(names[i])) +
                 (of_1024 ? "iB" : "B"));
}

} // namespace detail

/// Returns the filter of numbers of this name, or null.
KVCACHE_LAZY [[nodiscard]] inline const filter* find_number_filter(std::string_view name) {
    using namespace detail;
    static constexpr std::array filters{
        filter{"int", int_filter<>},
        filter{"float", float_filter<>},
        filter{"abs", abs_filter<>},
        filter{"round", round_filter<>},
        filter{"filesizeformat", filesize_filter<>},
    };
    return find_in(filters, name);
}

}}} // namespace kvcache::text::jinja
