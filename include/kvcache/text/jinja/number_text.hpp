// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Returns a floating-point number in Python's notation: the fewest digits that tell it from others.
KVCACHE_LAZY [[nodiscard]] inline std::string shown(double d) {
    if (std::isnan(d))
        return "nan";
    if (std::isinf(d))
        return d < 0 ? "-inf" : "inf";
    std::array<char, 64> buffer{};
    const double size = d < 0 ? -d : d;
    const bool plain = d == 0 || (size >= 1e-4 && size < 1e16);
    const auto form = plain ? std::chars_format::fixed : std::chars_format::scientific;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), d, form).ptr;
    std::string out(buffer.data(), end);
    if (out.find_first_of(".e") == std::string::npos)
        out += ".0";
    return out;
}

}}} // namespace kvcache::text::jinja
