// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace kvcache {

namespace detail {

template <class T>
[[nodiscard]] constexpr std::string_view signature() {
    return __PRETTY_FUNCTION__; // "... [with T = kvcache::lru; ...]" by GCC, "... [T = kvcache::lru]" by Clang
}

} // namespace detail

/// The name of a type as it is written, without this library's namespace: "lru", "zeroising<heap>", "mine::policy".
template <class T>
[[nodiscard]] std::string type_name() {
    const std::string_view whole = detail::signature<T>();
    const std::size_t from = whole.find("T = ") + 4;
    std::string name(whole.substr(from, whole.find_first_of(";]", from) - from));
    constexpr std::string_view own = "kvcache::";
    for (std::size_t at = name.find(own); at != name.npos; at = name.find(own, at))
        if (at == 0 || name[at - 1] == '<' || name[at - 1] == ' ' || name[at - 1] == ',')
            name.erase(at, own.size());
        else
            ++at;
    return name;
}

} // namespace kvcache
