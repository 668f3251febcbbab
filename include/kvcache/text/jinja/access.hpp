// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/mapping_key.hpp>
#include <kvcache/text/jinja/markup.hpp>
#include <kvcache/text/jinja/text_functions.hpp>
#include <kvcache/text/jinja/value.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Returns the value of a key in a mapping, or null.
KVCACHE_LAZY [[nodiscard]] inline const value* find_key(const mapping& map, const value& key, budget& spent) {
    if (const auto* text = key.as_text())
        return map.find(text->bytes, spent);
    const auto made = key_of(key, spent);
    return made ? map.find(made->bytes, spent) : nullptr;
}

KVCACHE_LAZY [[nodiscard]] bool has_method(const value& self, std::string_view name); // in methods.hpp

/// of[key] in Jinja's semantics: undefined if there is no such item.
KVCACHE_LAZY [[nodiscard]] inline value item_of(const value& of, const value& key, budget& spent) {
    if (of.is_undefined())
        mistake({"\"", std::get<value::undefined>(of.held()).name(), "\" is undefined"});
    if (const auto* map = of.as_mapping()) {
        if (const value* found = find_key(*map, key, spent))
            return *found;
    }
    if (const auto n = key.as_integer()) {
        const auto* items = of.kind() < list_kind::view ? of.as_list() : nullptr;
        const auto* text = of.as_text();
        if (text)
            spent.work(8 * text->bytes.size()); // characters are counted from the start
        const auto size = static_cast<std::int64_t>(items ? items->size() : text ? character_count(text->bytes) : 0);
        const auto at = *n < 0 ? *n + size : *n;
        if (at >= 0 && at < size)
            return items ? (*items)[static_cast<std::size_t>(at)]
                         : text_like(of,
                                     part_of(*text, offset_of(text->bytes, at), offset_of(text->bytes, at + 1), spent));
    }
    const auto* name = key.as_text();
    if (name && of.kind() == list_kind::group && (name->bytes == "grouper" || name->bytes == "list"))
        return (*of.as_list())[name->bytes == "list" ? 1 : 0];
    if (name && has_method(of, name->bytes))
        return bound_function{name->bytes, std::make_shared<const value>(of)};
    spent.text(name ? name->bytes.size() : 0);
    return value::undefined{name ? name->bytes : "item"};
}

/// of.name in Jinja's semantics: a method takes precedence over an item.
KVCACHE_LAZY [[nodiscard]] inline value attribute_of(const value& of, const std::string& name, budget& spent) {
    if (has_method(of, name))
        return bound_function{name, std::make_shared<const value>(of)};
    spent.text(name.size());
    return item_of(of, std::string_view(name), spent);
}

/// Returns the list of items that a loop iterates over: a list itself, the keys of a mapping, the characters of a text;
/// none for an undefined value. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value items_of(const value& of, budget& spent) {
    if (of.as_list())
        return of;
    if (const auto* text = of.as_text())
        return characters(*text, spent);
    list out;
    if (const auto* map = of.as_mapping())
        for (const auto& [name, v] : map->entries)
            out.push_back(key_value(name, spent));
    else if (!of.is_undefined())
        mistake({"a value of type ", of.type_name(), " is not a list"});
    return out;
}

/// of[begin:end:step] of a list or a text.
KVCACHE_LAZY [[nodiscard]] inline value slice_of(const value& of, const std::array<value, 3>& bounds, budget& spent) {
    const auto bound = [&](std::size_t i) -> std::optional<std::int64_t> {
        if (bounds[i].is_none())
            return std::nullopt;
        const auto n = bounds[i].as_integer();
        if (!n)
            mistake({"a slice needs integers, not ", bounds[i].type_name()});
        constexpr std::int64_t far = std::int64_t{1} << 40;
        return std::clamp(*n, -far, far);
    };
    const auto* text = of.as_text();
    if (text)
        spent.work(8 * text->bytes.size());
    if (of.is_undefined())
        mistake({"\"", std::get<value::undefined>(of.held()).name(), "\" is undefined"});
    if (!text && (!of.as_list() || of.kind() >= list_kind::view))
        return value::undefined{"slice"};
    const auto size = static_cast<std::int64_t>(text ? character_count(text->bytes) : of.as_list()->size());
    const std::int64_t step = bound(2).value_or(1);
    if (step == 0)
        mistake("a slice's step is not zero");
    const std::int64_t low = step > 0 ? 0 : -1;
    const std::int64_t high = step > 0 ? size : size - 1;
    const auto place = [&](std::optional<std::int64_t> n, std::int64_t otherwise) {
        return n ? std::clamp(*n < 0 ? *n + size : *n, low, high) : otherwise;
    };
    const std::int64_t begin = place(bound(0), step > 0 ? low : high);
    const std::int64_t end = place(bound(1), step > 0 ? high : low);
    if (text && step == 1)
        return text_like(of, begin < end
                                 ? part_of(*text, offset_of(text->bytes, begin), offset_of(text->bytes, end), spent)
                                 : tagged_text{});
    const value items = items_of(of, spent);
    list out;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        spent.items(1);
        out.push_back((*items.as_list())[static_cast<std::size_t>(i)]);
    }
    return text ? text_like(of, joined(out, {}, spent)) : value(std::move(out), of.kind());
}

/// Returns whether `item` is in a list, the keys of a mapping, or a text.
KVCACHE_LAZY [[nodiscard]] inline bool contains(const value& in, const value& item, budget& spent) {
    const auto* text = in.as_text();
    const auto* part = item.as_text();
    if (text) {
        if (!part)
            mistake({"only a text is in a text, not ", item.type_name()});
        spent.search(text->bytes.size(), part->bytes.size());
        return text->bytes.find(part->bytes) != std::string::npos;
    }
    if (const auto* map = in.as_mapping())
        return find_key(*map, item, spent) != nullptr;
    const value held = items_of(in, spent);
    const list& items = *held.as_list();
    return std::any_of(items.begin(), items.end(), [&](const value& v) { return equal(v, item, spent); });
}

/// Compares with < as Python does: numbers with numbers, texts with texts, lists with lists.
KVCACHE_LAZY [[nodiscard]] inline bool less(const value& a, const value& b, budget& spent) {
    const auto x = a.as_number();
    const auto y = b.as_number();
    spent.work(8);
    if (x && y)
        return a.as_integer() && b.as_integer() ? *a.as_integer() < *b.as_integer() : *x < *y;
    if (a.as_text() && b.as_text()) {
        spent.work(std::min(a.as_text()->bytes.size(), b.as_text()->bytes.size()) / 8);
        return a.as_text()->bytes < b.as_text()->bytes;
    }
    if (const auto* p = a.as_list(), *q = b.as_list(); p && q && a.kind() == b.kind() && a.kind() < list_kind::view) {
        for (std::size_t i = 0; i < std::min(p->size(), q->size()); ++i)
            if (!equal((*p)[i], (*q)[i], spent))
                return less((*p)[i], (*q)[i], spent);
        return p->size() < q->size();
    }
    mistake({"values of the types ", a.type_name(), " and ", b.type_name(), " have no order"});
}

}}} // namespace kvcache::text::jinja
