// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/text_functions.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

// What the filters compare items by: an attribute of each, without case.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja::detail {

/// Bytes of an item of a list, while the list grows.
inline constexpr std::size_t each_item = 3 * sizeof(value);

/// The position of an argument that is given by name only.
inline constexpr std::size_t by_name = std::numeric_limits<std::size_t>::max();

/// v.a.b for "a.b"; a part that is a number is an index.
KVCACHE_LAZY [[nodiscard]] inline value path_of(value v, std::string_view path, budget& spent) {
    while (true) {
        const auto dot = path.find('.');
        const std::string_view name = path.substr(0, dot);
        std::int64_t n = 0;
        const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), n);
        spent.text(name.size());
        v = problem == std::errc{} && end == name.data() + name.size() ? item_of(v, n, spent) : item_of(v, name, spent);
        if (dot == std::string_view::npos)
            return v;
        path.remove_prefix(dot + 1);
    }
}

/// v.a.b for the value "a.b", or v[n] for a number; v itself without an attribute.
KVCACHE_LAZY [[nodiscard]] inline value attribute_path(const value& v, const value* attribute, budget& spent) {
    if (!attribute || attribute->is_none())
        return v;
    if (const auto n = attribute->as_integer())
        return item_of(v, *n, spent);
    if (!attribute->as_text())
        mistake({"an attribute is a name or a number, not ", attribute->type_name()});
    return path_of(v, attribute->as_text()->bytes, spent);
}

/// Returns whether an argument is given and true.
KVCACHE_LAZY [[nodiscard]] inline bool is_set(const arguments& args, std::size_t position, std::string_view name) {
    const value* given = args.find(position, name);
    return given && given->truth();
}

/// Returns the value that an item is compared by: in lower case if it is text and case does not matter.
KVCACHE_LAZY [[nodiscard]] inline value comparable(value v, bool case_sensitive, budget& spent) {
    if (case_sensitive || !v.as_text())
        return v;
    return in_case(*v.as_text(), letter_case::lower, spent);
}

/// Returns the order of the keys of items: stable, also if it is reversed. Throws: failure, if two have no order.
KVCACHE_LAZY [[nodiscard]] inline std::vector<std::size_t> order_of(const list& keys, bool reverse, budget& spent) {
    spent.items(2 * keys.size());
    std::vector<std::size_t> order(keys.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return reverse ? less(keys[b], keys[a], spent) : less(keys[a], keys[b], spent);
    });
    return order;
}

/// Returns the items of a value in the order of their keys.
KVCACHE_LAZY [[nodiscard]] inline list sorted(const list& items, const list& keys, bool reverse, budget& spent) {
    list out;
    spent.items(items.size());
    for (const std::size_t i : order_of(keys, reverse, spent))
        out.push_back(items[i]);
    return out;
}

}}} // namespace kvcache::text::jinja::detail
