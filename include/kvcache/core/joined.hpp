// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <initializer_list>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Concatenates strings. A chain of string additions takes several times as long to compile.
[[nodiscard]] inline std::string joined(std::initializer_list<std::string_view> pieces) {
    std::string whole;
    for (const std::string_view piece : pieces)
        whole += piece;
    return whole;
}

}}} // namespace kvcache::detail
