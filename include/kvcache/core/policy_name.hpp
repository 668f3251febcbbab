// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace kvcache {

namespace detail {

// The compiler's own words for a function of T.
template <class T>
[[nodiscard]] constexpr std::string_view function_of() noexcept {
    return __PRETTY_FUNCTION__;
}

// T alone, from between those words that every type has around it.
template <class T>
[[nodiscard]] constexpr std::string_view spelled() noexcept {
    constexpr std::string_view probe = function_of<int>(), words = function_of<T>();
    // From the end: what comes before may say "int" too.
    constexpr std::size_t before = probe.rfind("int"), after = probe.size() - before - 3;
    return words.substr(before, words.size() - before - after);
}

template <class T>
struct spelled_short {
    // Without the namespace of the library, which every name would open with.
    static constexpr auto made = [] {
        std::array<char, spelled<T>().size() + 1> text = {};
        constexpr std::string_view own = "kvcache::";
        std::size_t size = 0;
        for (std::string_view rest = spelled<T>(); !rest.empty();)
            if (rest.substr(0, own.size()) == own) {
                rest.remove_prefix(own.size());
            } else {
                text[size++] = rest.front();
                rest.remove_prefix(1);
            }
        return text;
    }();
};

} // namespace detail

/// The name of a policy as code writes it: "lru" for kvcache::lru, "prioritised<lru>" for a wrapper of it. A policy
/// outside the library keeps its namespace.
template <class P>
[[nodiscard]] constexpr std::string_view policy_name() noexcept {
    return detail::spelled_short<P>::made.data();
}

} // namespace kvcache
