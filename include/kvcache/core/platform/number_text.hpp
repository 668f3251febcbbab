// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <version>

#if !defined(__cpp_lib_to_chars)
#include <cstdio>
#include <locale>
#include <sstream>
#endif

namespace kvcache { inline namespace KVCACHE_ABI {

/// The number that the whole of a text is, in the format of std::from_chars, or nullopt. libc++ parses floating-point
/// numbers by std::from_chars since version 20.
KVCACHE_LAZY [[nodiscard]] inline std::optional<double> parse_double(std::string_view text) {
    double number = 0;
#if defined(__cpp_lib_to_chars)
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    return problem == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
#else
    if (text.empty() || text.find_first_not_of("0123456789.eE+-") != text.npos || text.front() == '+')
        return std::nullopt;
    std::istringstream from{std::string(text)};
    from.imbue(std::locale::classic());
    from >> number;
    return !from.fail() && from.peek() == std::istringstream::traits_type::eof() ? std::optional(number) : std::nullopt;
#endif
}

/// The shortest text that std::from_chars reads as this finite number, in any locale. libc++ has it since version 14.
KVCACHE_LAZY [[nodiscard]] inline std::string shortest_text(double number) {
    char digits[40];
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 14000
    for (int precision = 1; precision <= 17; ++precision) {
        const int size = std::snprintf(digits, sizeof digits, "%.*g", precision, number);
        std::string text(digits, static_cast<std::size_t>(size));
        for (char& c : text)
            c = c == ',' ? '.' : c; // of the locale
        if (precision == 17 || parse_double(text) == number)
            return text;
    }
    return {};
#else
    return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
#endif
}

}} // namespace kvcache
