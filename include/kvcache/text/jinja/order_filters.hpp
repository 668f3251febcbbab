// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/filter.hpp>
#include <kvcache/text/jinja/item_keys.hpp>
#include <kvcache/text/jinja/methods.hpp>
#include <kvcache/text/jinja/text_functions.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

// Jinja's filters that compare the items of a sequence.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

namespace detail {

KVCACHE_LAZY [[nodiscard]] inline value sort_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(3, {"reverse", "case_sensitive", "attribute"});
    const bool case_sensitive = is_set(args, 1, "case_sensitive");
    const value* attribute = args.find(2, "attribute");
    const value items = items_of(v, spent);
    list names; // "a,b" sorts by a and then by b
    if (attribute && attribute->as_text())
        names = split(*attribute->as_text(), ",", limit_of(-1), spent);
    list keys;
    for (const value& item : *items.as_list()) {
        spent.memory(each_item);
        list key;
        for (const value& name : names)
            key.push_back(comparable(attribute_path(item, &name, spent), case_sensitive, spent));
        if (names.empty())
            key.push_back(comparable(attribute_path(item, attribute, spent), case_sensitive, spent));
        spent.items(2 * key.size());
        keys.emplace_back(std::move(key));
    }
    return sorted(*items.as_list(), keys, is_set(args, 0, "reverse"), spent);
}

KVCACHE_LAZY [[nodiscard]] inline value dictsort_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(3, {"case_sensitive", "by", "reverse"});
    const bool case_sensitive = is_set(args, 0, "case_sensitive");
    const std::string_view by = args.find(1, "by") ? std::string_view(args.text(1, "by").bytes) : "key";
    if (!v.as_mapping())
        mistake({"dictsort needs a mapping, not ", v.type_name()});
    if (by != "key" && by != "value")
        mistake("dictsort sorts by \"key\" or \"value\"");
    const value items = call_method(v, {"items", {}, {}}, spent);
    list keys;
    for (const value& item : *items.as_list()) {
        spent.memory(each_item);
        keys.push_back(comparable((*item.as_list())[by == "key" ? 0 : 1], case_sensitive, spent));
    }
    return sorted(*items.as_list(), keys, is_set(args, 2, "reverse"), spent);
}

/// min, max.
KVCACHE_LAZY [[nodiscard]] inline value extreme_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(2, {"case_sensitive", "attribute"});
    const bool case_sensitive = is_set(args, 0, "case_sensitive");
    const value* attribute = args.find(1, "attribute");
    const value items = items_of(v, spent);
    if (items.as_list()->empty())
        return value::undefined{"the item of an empty sequence"};
    const value* best = nullptr;
    value best_key;
    for (const value& item : *items.as_list()) {
        spent.work(64);
        value key = comparable(attribute_path(item, attribute, spent), case_sensitive, spent);
        if (best && !(args.of == "min" ? less(key, best_key, spent) : less(best_key, key, spent)))
            continue;
        best = &item;
        best_key = std::move(key);
    }
    return *best;
}

KVCACHE_LAZY [[nodiscard]] inline value unique_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(2, {"case_sensitive", "attribute"});
    const bool case_sensitive = is_set(args, 0, "case_sensitive");
    list out;
    list keys;
    const value items = items_of(v, spent);
    for (const value& item : *items.as_list()) {
        spent.memory(2 * each_item);
        value key = comparable(attribute_path(item, args.find(1, "attribute"), spent), case_sensitive, spent);
        if (std::any_of(keys.begin(), keys.end(), [&](const value& seen) { return equal(seen, key, spent); }))
            continue;
        keys.push_back(std::move(key));
        out.push_back(item);
    }
    return {std::move(out), list_kind::generator};
}

/// groupby: pairs of an attribute's value and the list of its items, sorted by it.
KVCACHE_LAZY [[nodiscard]] inline value groupby_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(3, {"attribute", "default", "case_sensitive"});
    const bool case_sensitive = is_set(args, 2, "case_sensitive");
    const value* otherwise = args.find(1, "default");
    const value items = items_of(v, spent);
    list names;
    list keys;
    for (const value& item : *items.as_list()) {
        spent.memory(2 * each_item);
        value name = attribute_path(item, &args.at(0, "attribute"), spent);
        names.push_back(name.is_undefined() && otherwise ? *otherwise : std::move(name));
        keys.push_back(comparable(names.back(), case_sensitive, spent));
    }
    const auto order = order_of(keys, false, spent);
    list groups;
    for (std::size_t i = 0; i < order.size();) {
        const std::size_t first = i;
        list group;
        for (; i < order.size() && equal(keys[order[i]], keys[order[first]], spent); ++i) {
            spent.memory(each_item);
            group.push_back((*items.as_list())[order[i]]);
        }
        if (i == first) // a key that is not equal to itself
            group.push_back((*items.as_list())[order[i++]]);
        spent.items(4);
        groups.emplace_back(list{names[order[first]], std::move(group)}, list_kind::group);
    }
    return groups;
}

} // namespace detail

/// Returns the filter of this name that compares items, or null.
KVCACHE_LAZY [[nodiscard]] inline const filter* find_order_filter(std::string_view name) {
    using namespace detail;
    static constexpr std::array filters{
        filter{"sort", sort_filter<>},   filter{"dictsort", dictsort_filter<>}, filter{"min", extreme_filter<>},
        filter{"max", extreme_filter<>}, filter{"unique", unique_filter<>},     filter{"groupby", groupby_filter<>},
    };
    return find_in(filters, name);
}

}}} // namespace kvcache::text::jinja
