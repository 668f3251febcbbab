// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Formats a name from a file for an error: at most 80 bytes, control characters as '?', never empty.
KVCACHE_LAZY [[nodiscard]] inline std::string shown(std::string_view name) {
    if (name.empty())
        return "\"\"";
    constexpr std::size_t most = 80;
    std::size_t length = std::min(name.size(), most);
    while (length < name.size() && length != 0 && (static_cast<unsigned char>(name[length]) & 0xC0) == 0x80)
        --length; // never inside a UTF-8 sequence
    std::string text(name.substr(0, length));
    for (char& c : text)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
            c = '?';
    return length < name.size() ? text + "..." : text;
}

}}} // namespace kvcache::detail
