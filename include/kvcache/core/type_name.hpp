// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>

#include <cxxabi.h>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

// Removes the type suffix of integer template arguments: "codebook<4u>" becomes "codebook<4>".
inline void drop_number_suffixes(std::string& name) {
    for (std::size_t at = name.find_first_of("0123456789"); at != name.npos;
         at = name.find_first_of("0123456789", at)) {
        const bool begins = at > 0 && (name[at - 1] == '<' || name[at - 1] == ' ' || name[at - 1] == '-');
        at = std::min(name.find_first_not_of("0123456789", at), name.size());
        const std::size_t behind = std::min(name.find_first_not_of("ul", at), name.size());
        if (begins && behind < name.size() && (name[behind] == ',' || name[behind] == '>'))
            name.erase(at, behind - at);
    }
}

// Length of a role's namespace at the start of a name, including the colons; 0 if there is none.
[[nodiscard]] inline std::size_t role_length(std::string_view name) {
    for (const std::string_view role : {"codec::", "storage::", "hash::", "index::", "eviction::", "recompute::",
                                        "tier::", "observer::", "locking::"})
        if (name.starts_with(role))
            return role.size();
    return 0;
}

} // namespace detail

/// The name of a type as written in source, without the namespaces of this library and its roles: "lru",
/// "zero_on_release<heap>", "mine::policy".
/// Every template argument is included, defaults too, and the name is the same for every compiler of the Itanium ABI (a
/// compiler's own `__PRETTY_FUNCTION__` may omit or keep defaults). Requires RTTI; allocates.
template <class T>
[[nodiscard]] std::string type_name() {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> whole(
        abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status), &std::free);
    std::string name = status == 0 ? whole.get() : typeid(T).name();
    constexpr std::string_view own = "kvcache::" KVCACHE_ABI_TEXT "::";
    for (std::size_t at = name.find(own); at != name.npos; at = name.find(own, at))
        if (at == 0 || name[at - 1] == '<' || name[at - 1] == ' ' || name[at - 1] == ',')
            name.erase(at, own.size() + detail::role_length(std::string_view(name).substr(at + own.size())));
        else
            ++at;
    detail::drop_number_suffixes(name);
    return name;
}

}} // namespace kvcache
