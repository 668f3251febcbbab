// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>

#include <cstddef>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// A number in a template: its length in bytes, and whether it is a floating-point number.
struct numeral {
    std::size_t bytes = 0;
    bool fraction = false;
};

/// Returns the number that a text begins with, in one of Python's notations. Its digits may be separated by "_".
/// Requires: the text begins with a digit.
KVCACHE_LAZY [[nodiscard]] inline numeral numeral_at(std::string_view text) {
    const auto is_digit = [&](std::size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
    const auto is = [&](std::size_t i, std::string_view any) {
        return i < text.size() && any.find(text[i]) != std::string_view::npos;
    };
    const auto after_digits = [&](std::size_t i) {
        while (is_digit(i) || is(i, "_"))
            ++i;
        return i;
    };
    numeral made;
    if (text[0] == '0' && is(1, "xXoObB")) {
        made.bytes = 2;
        while (is_digit(made.bytes) || is(made.bytes, "abcdefABCDEF_"))
            ++made.bytes;
        return made;
    }
    made.bytes = after_digits(0);
    if (is(made.bytes, ".") && is_digit(made.bytes + 1)) {
        made.fraction = true;
        made.bytes = after_digits(made.bytes + 1);
    }
    const std::size_t exponent = made.bytes + (is(made.bytes + 1, "+-") ? 2 : 1);
    if (is(made.bytes, "eE") && is_digit(exponent)) {
        made.fraction = true;
        made.bytes = after_digits(exponent);
    }
    return made;
}

}}} // namespace kvcache::text::jinja
