// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/text_methods.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

namespace detail {

/// Returns a mapping with the entries of another.
KVCACHE_LAZY [[nodiscard]] inline mapping copied(const mapping& from, budget& spent) {
    mapping made;
    for (const auto& [name, v] : from.entries) {
        spent.items(8);
        made.add(part_of(name, 0, name.bytes.size(), spent), v);
    }
    return made;
}

KVCACHE_LAZY [[nodiscard]] inline value call_mapping_method(const value& self, const arguments& args, budget& spent) {
    const mapping& map = *self.as_mapping();
    if (args.of == "get") {
        args.expect(2, {});
        const value* found = find_key(map, args.at(0, "key"), spent);
        const value* otherwise = args.find(1, "default");
        return found ? *found : otherwise ? *otherwise : value(value::none{});
    }
    args.expect(0, {});
    if (args.of == "copy")
        return copied(map, spent);
    list out;
    for (const auto& [name, v] : map.entries) {
        spent.items(1);
        if (args.of == "values") {
            out.push_back(v);
            continue;
        }
        const value key = key_value(name, spent);
        if (args.of == "items")
            spent.items(2);
        out.push_back(args.of == "items" ? value(list{key, v}, list_kind::tuple) : key);
    }
    return {std::move(out), list_kind::view};
}

KVCACHE_LAZY [[nodiscard]] inline value call_list_method(const value& self, const arguments& args, budget& spent) {
    const list& items = *self.as_list();
    if (args.of == "copy") {
        args.expect(0, {});
        spent.items(items.size());
        return items;
    }
    args.expect(1, {});
    const auto same = [&](const value& v) { return equal(v, args.at(0, "value"), spent); };
    if (args.of == "count")
        return static_cast<std::int64_t>(std::count_if(items.begin(), items.end(), same));
    const auto found = std::find_if(items.begin(), items.end(), same);
    if (found == items.end())
        mistake("index() finds no such item");
    return static_cast<std::int64_t>(found - items.begin());
}

} // namespace detail

/// Returns whether values like `self` have this method, which call_method then implements.
KVCACHE_LAZY [[nodiscard]] inline bool has_method(const value& self, std::string_view name) {
    const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (self.as_text())
        return find_text_method(name) != nullptr;
    if (const auto* map = self.as_mapping())
        return !map->is_namespace && is_one_of({"get", "items", "keys", "values", "copy"});
    return self.as_list() && (is_one_of({"index", "count"}) || (self.kind() == list_kind::ordinary && name == "copy"));
}

/// Calls a method of a Python string, list or mapping, as has_method knows it. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value call_method(const value& self, const arguments& args, budget& spent) {
    if (self.as_text())
        return find_text_method(args.of)->call(self, args, spent);
    return self.as_mapping() ? detail::call_mapping_method(self, args, spent)
                             : detail::call_list_method(self, args, spent);
}

}}} // namespace kvcache::text::jinja
