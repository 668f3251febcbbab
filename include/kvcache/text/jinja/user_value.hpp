// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/value.hpp>

#include <cstdint>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Returns a JSON value whose text is all user text. Adds to `size` what a budget counts: the bytes of the text, and
/// `per_value` for each value.
KVCACHE_LAZY [[nodiscard]] inline value from_user(const json& j, std::size_t& size) {
    size += budget::per_value;
    if (j.is_boolean())
        return j.get<bool>();
    if (j.is_number_float() || (j.is_number_unsigned() && j.get<std::uint64_t>() > std::uint64_t{INT64_MAX}))
        return j.get<double>();
    if (j.is_number())
        return j.get<std::int64_t>();
    const auto plain = [&](const std::string& s) {
        size += s.size();
        return tagged_text{s, std::string(s.size(), '\1')};
    };
    if (j.is_string())
        return plain(j.get_ref<const std::string&>());
    if (j.is_array()) {
        list items;
        for (const json& one : j)
            items.push_back(from_user(one, size));
        return items;
    }
    if (j.is_object()) {
        mapping made;
        for (const auto& item : j.get_ref<const json::object_t&>())
            made.add(plain(item.first), from_user(item.second, size));
        return made;
    }
    return value::none{};
}

}}} // namespace kvcache::text::jinja
