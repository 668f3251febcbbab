// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/failure.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

namespace detail {

/// Reads an escape whose letter is at `i`, as Python does. Effects: `i` is at its last character afterwards. Throws:
/// failure, if it is no character.
KVCACHE_LAZY inline void append_escape(std::string& out, std::string_view raw, std::size_t& i) {
    constexpr std::string_view letters = "nrtabfv\\'\"";
    constexpr std::string_view meanings = "\n\r\t\a\b\f\v\\'\"";
    const char c = raw[i];
    if (const auto n = letters.find(c); n != std::string_view::npos) {
        out.push_back(meanings[n]);
        return;
    }
    if (c == '\n')
        return;
    const bool octal = c >= '0' && c <= '7';
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0 && !octal) {
        out.push_back('\\');
        out.push_back(c);
        return;
    }
    const auto number = octal ? raw.substr(i, std::min<std::size_t>(3, raw.find_first_not_of("01234567", i) - i))
                              : raw.substr(i + 1, digits);
    std::uint32_t code = 0;
    const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), code, octal ? 8 : 16);
    if (problem != std::errc{} || end != number.data() + (octal ? number.size() : digits) || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000))
        refuse({"the escape \\", raw.substr(i, digits + 1), " is no character"});
    append_utf8(out, code);
    i += octal ? number.size() - 1 : digits;
}

} // namespace detail

/// Returns the text that a string literal stands for: `raw` is what is between its quotes. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline std::string unescaped(std::string_view raw) {
    std::string made;
    for (std::size_t i = 0; i < raw.size(); ++i) {
        if (raw[i] != '\\' || i + 1 == raw.size())
            made.push_back(raw[i]);
        else
            detail::append_escape(made, raw, ++i);
    }
    return made;
}

}}} // namespace kvcache::text::jinja
