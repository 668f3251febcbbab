// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// UTF-8 text with a mark per byte that tells whether it may be parsed as control tokens. User text is marked plain.
struct tagged_text {
    std::string bytes = {};
    std::string plain = {}; ///< 0 or 1 per byte, or empty if no byte is plain.

    [[nodiscard]] bool marked() const noexcept { return !plain.empty(); }

    /// Returns whether any byte of [begin, end) is plain.
    KVCACHE_LAZY [[nodiscard]] bool any_plain(std::size_t begin, std::size_t end) const {
        return marked() && std::string_view(plain).substr(begin, end - begin).find('\1') != std::string_view::npos;
    }

    KVCACHE_LAZY void append(std::string_view more, bool is_plain) {
        if (is_plain || marked()) {
            plain.resize(bytes.size(), '\0');
            plain.append(more.size(), is_plain ? '\1' : '\0');
        }
        bytes.append(more);
    }

    KVCACHE_LAZY [[nodiscard]] tagged_text sub(std::size_t begin, std::size_t end) const {
        return {bytes.substr(begin, end - begin), marked() ? plain.substr(begin, end - begin) : std::string{}};
    }
};

}}} // namespace kvcache::text
