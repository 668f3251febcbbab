// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/identity.hpp>

#include <string>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The name of the first field in which two identities differ; empty if they are equal.
[[nodiscard]] inline std::string first_difference(const identity& a, const identity& b) {
    std::vector<std::pair<std::string, digest>> fields;
    const auto digest_field = [](const auto& field) {
        digest_builder builder;
        detail::feed(builder, field);
        return builder.finish();
    };
    for_each_field(a, [&](const char* name, const auto& field) { fields.emplace_back(name, digest_field(field)); });
    std::string found;
    std::size_t i = 0;
    for_each_field(b, [&](const char*, const auto& field) {
        if (found.empty() && fields[i].second != digest_field(field))
            found = fields[i].first;
        ++i;
    });
    return found;
}

} // namespace kvcache
