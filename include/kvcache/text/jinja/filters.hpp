// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/methods.hpp>
#include <kvcache/text/jinja/operators.hpp>
#include <kvcache/text/jinja/sequence.hpp>
#include <kvcache/text/jinja/text_filters.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// `v | name(args)`, for the name in the arguments; in filters.hpp. Throws: failure if the filter is unknown.
KVCACHE_LAZY [[nodiscard]] value filtered(const value& v, const arguments& args, budget& spent);

namespace detail {

// What the filters compare items by: an attribute of each, without case.

/// Bytes of an item of a list, while the list grows.
inline constexpr std::size_t each_item = 3 * sizeof(value);

/// The position of an argument that is given by name only.
inline constexpr std::size_t by_name = std::numeric_limits<std::size_t>::max();

/// v.a.b for "a.b"; a part that is a number is an index.
KVCACHE_LAZY [[nodiscard]] inline value path_of(value v, std::string_view path, budget& spent) {
    while (true) {
        const auto dot = path.find('.');
        const std::string_view name = path.substr(0, dot);
        const auto n = parsed_integer(name);
        spent.text(name.size());
        v = n ? item_of(v, *n, spent) : item_of(v, name, spent);
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

} // namespace detail

// Jinja's filters of sequences.

namespace detail {

/// select, reject, selectattr, rejectattr: the items that pass a test, or do not. Of a false value: none.
KVCACHE_LAZY [[nodiscard]] inline value select_filter(const value& v, const arguments& args, budget& spent) {
    const bool by_attribute = args.of.ends_with("attr");
    const bool wanted = args.of.starts_with("select");
    const std::size_t first = by_attribute ? 1 : 0;
    arguments test;
    if (first < args.values.size()) {
        test.of = args.text(first, "test").bytes;
        test.values.assign(args.values.begin() + static_cast<std::ptrdiff_t>(first) + 1, args.values.end());
        test.named = args.named;
    }
    const value* attribute = by_attribute ? &args.at(0, "attribute") : nullptr;
    list out;
    const value items = v.truth() ? items_of(v, spent) : value(list{});
    for (const value& item : *items.as_list()) {
        spent.memory(each_item);
        const value subject = attribute_path(item, attribute, spent);
        if ((test.of.empty() ? subject.truth() : passes(subject, test, spent)) == wanted)
            out.push_back(item);
    }
    return {std::move(out), list_kind::generator};
}

/// map: an attribute of each item, or a filter of each. Of a false value: none.
KVCACHE_LAZY [[nodiscard]] inline value map_filter(const value& v, const arguments& args, budget& spent) {
    list out;
    const value items = v.truth() ? items_of(v, spent) : value(list{});
    if (const value* attribute = args.find(by_name, "attribute"); attribute && args.values.empty()) {
        args.expect(0, {"attribute", "default"});
        const value* otherwise = args.find(by_name, "default");
        for (const value& item : *items.as_list()) {
            spent.memory(each_item);
            auto found = attribute_path(item, attribute, spent);
            out.push_back(found.is_undefined() && otherwise ? *otherwise : found);
        }
        return {std::move(out), list_kind::generator};
    }
    arguments filter;
    filter.of = args.text(0, "filter").bytes;
    filter.values.assign(args.values.begin() + 1, args.values.end());
    filter.named = args.named;
    for (const value& item : *items.as_list()) {
        spent.memory(each_item);
        out.push_back(filtered(item, filter, spent));
    }
    return {std::move(out), list_kind::generator};
}

KVCACHE_LAZY [[nodiscard]] inline value join_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(2, {"d", "attribute"});
    const value* attribute = args.find(1, "attribute");
    const value* between = args.find(0, "d");
    value items = items_of(v, spent);
    if (attribute)
        items = map_filter(items, {"map", {}, {{"attribute", *attribute}}}, spent);
    return joined(*items.as_list(), between ? text_of(*between, spent) : tagged_text{}, spent);
}

KVCACHE_LAZY [[nodiscard]] inline value sum_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(2, {"attribute", "start"});
    value sum = args.value_or(1, "start", std::int64_t{0});
    const value items = items_of(v, spent);
    for (const value& item : *items.as_list()) {
        spent.work(128);
        sum = combined("+", sum, attribute_path(item, args.find(0, "attribute"), spent), spent);
    }
    return sum;
}

/// batch: lists of so many items; slice: so many lists. Both fill the last ones with a value, if there is one.
KVCACHE_LAZY [[nodiscard]] inline value batch_filter(const value& v, const arguments& args, budget& spent) {
    const bool batch = args.of == "batch";
    args.expect(2, {batch ? "linecount" : "slices", "fill_with"});
    const value* fill = args.find(1, "fill_with");
    const auto count = args.integer(0, batch ? "linecount" : "slices", 0);
    const value held = items_of(v, spent);
    const list& items = *held.as_list();
    const auto size = static_cast<std::int64_t>(items.size());
    if (count < 1 || count > 1'000'000)
        mistake({args.of, "() needs a number of at least 1 and at most a million"});
    const std::int64_t lists = batch ? (size + count - 1) / count : count;
    list out;
    std::size_t at = 0;
    for (std::int64_t i = 0; i < lists; ++i) {
        const std::int64_t length =
            batch ? std::min(count, size - i * count) : size / count + (i < size % count ? 1 : 0);
        const std::int64_t filled = fill && !fill->is_none() ? (batch ? count - length : i >= size % count) : 0;
        spent.items(2 + static_cast<std::size_t>(length + filled));
        list one(items.begin() + static_cast<std::ptrdiff_t>(at),
                 items.begin() + static_cast<std::ptrdiff_t>(at) + static_cast<std::ptrdiff_t>(length));
        at += static_cast<std::size_t>(length);
        for (std::int64_t n = 0; n < filled; ++n)
            one.push_back(*fill);
        out.emplace_back(std::move(one));
    }
    return {std::move(out), list_kind::generator};
}

/// length, count.
KVCACHE_LAZY [[nodiscard]] inline value length_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    if (const auto* t = v.as_text()) {
        spent.work(t->bytes.size());
        return static_cast<std::int64_t>(character_count(t->bytes));
    }
    if (const auto* map = v.as_mapping())
        return static_cast<std::int64_t>(map->entries.size());
    if (v.is_none() || v.as_number() || v.kind() == list_kind::generator)
        mistake({"a value of type ", v.type_name(), " has no length"});
    return static_cast<std::int64_t>(items_of(v, spent).as_list()->size());
}

KVCACHE_LAZY [[nodiscard]] inline value list_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    value items = items_of(v, spent);
    if (!v.as_list() || v.kind() == list_kind::ordinary)
        return items;
    spent.items(items.as_list()->size());
    return *items.as_list();
}

/// first, last.
KVCACHE_LAZY [[nodiscard]] inline value end_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    const value held = items_of(v, spent);
    const list& items = *held.as_list();
    if (args.of == "last" && v.kind() == list_kind::generator)
        mistake("a generator has no last item");
    return items.empty() ? value(value::undefined{args.of}) : args.of == "first" ? items.front() : items.back();
}

KVCACHE_LAZY [[nodiscard]] inline value reverse_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    const value held = items_of(v, spent);
    spent.items(held.as_list()->size());
    list items(held.as_list()->rbegin(), held.as_list()->rend());
    return v.as_text() ? text_like(v, joined(items, {}, spent)) : value(std::move(items), list_kind::generator);
}

KVCACHE_LAZY [[nodiscard]] inline value items_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(0, {});
    if (!v.is_undefined() && !v.as_mapping())
        mistake({"items needs a mapping, not ", v.type_name()});
    if (v.is_undefined())
        return {list{}, list_kind::generator};
    const value items = call_method(v, {"items", {}, {}}, spent);
    return {*items.as_list(), list_kind::generator};
}

KVCACHE_LAZY [[nodiscard]] inline value default_filter(const value& v, const arguments& args, budget&) {
    args.expect(2, {"default_value", "boolean"});
    if (!v.is_undefined() && !(args.is_true(1, "boolean") && !v.truth()))
        return v;
    return args.value_or(0, "default_value", "");
}

/// attr: an attribute, never an item.
KVCACHE_LAZY [[nodiscard]] inline value attr_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"name"});
    const std::string& name = args.text(0, "name").bytes;
    if (has_method(v, name) || (v.as_mapping() && v.as_mapping()->is_namespace))
        return attribute_of(v, name, spent);
    spent.text(name.size());
    return value::undefined{name};
}

// Jinja's filters that compare the items of a sequence.

KVCACHE_LAZY [[nodiscard]] inline value sort_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(3, {"reverse", "case_sensitive", "attribute"});
    const bool case_sensitive = args.is_true(1, "case_sensitive");
    const value* attribute = args.find(2, "attribute");
    const value items = items_of(v, spent);
    list names{attribute ? *attribute : value(value::none{})}; // "a,b" sorts by a and then by b
    if (attribute && attribute->as_text())
        names = split(*attribute->as_text(), ",", limit_of(-1), spent);
    list keys;
    for (const value& item : *items.as_list()) {
        spent.memory(each_item);
        list key;
        for (const value& name : names)
            key.push_back(comparable(attribute_path(item, &name, spent), case_sensitive, spent));
        spent.items(2 * key.size());
        keys.emplace_back(std::move(key));
    }
    return sorted(*items.as_list(), keys, args.is_true(0, "reverse"), spent);
}

KVCACHE_LAZY [[nodiscard]] inline value dictsort_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(3, {"case_sensitive", "by", "reverse"});
    const bool case_sensitive = args.is_true(0, "case_sensitive");
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
    return sorted(*items.as_list(), keys, args.is_true(2, "reverse"), spent);
}

/// min, max.
KVCACHE_LAZY [[nodiscard]] inline value extreme_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(2, {"case_sensitive", "attribute"});
    const bool case_sensitive = args.is_true(0, "case_sensitive");
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
    const bool case_sensitive = args.is_true(0, "case_sensitive");
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
    const bool case_sensitive = args.is_true(2, "case_sensitive");
    const value* otherwise = args.find(1, "default");
    const value items = items_of(v, spent);
    list names;
    list keys;
    for (const value& item : *items.as_list()) {
        spent.memory(2 * each_item);
        value name = attribute_path(item, &args.at(0, "attribute"), spent);
        names.push_back(name.is_undefined() && otherwise ? *otherwise : name);
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

/// Returns the filter of this name, or null. Of Jinja's filters, pprint, random, striptags, urlencode, urlize, wordwrap
/// and xmlattr are not known: chat templates use none of them.
KVCACHE_LAZY [[nodiscard]] inline auto find_filter(std::string_view name) {
    using namespace detail;
    static constexpr named_function<value> filters[] = {
        {"select reject selectattr rejectattr", select_filter<>},
        {"map", map_filter<>},
        {"join", join_filter<>},
        {"sum", sum_filter<>},
        {"batch slice", batch_filter<>},
        {"length count", length_filter<>},
        {"list", list_filter<>},
        {"first last", end_filter<>},
        {"reverse", reverse_filter<>},
        {"items", items_filter<>},
        {"default d", default_filter<>},
        {"attr", attr_filter<>},
        {"sort", sort_filter<>},
        {"dictsort", dictsort_filter<>},
        {"min max", extreme_filter<>},
        {"unique", unique_filter<>},
        {"groupby", groupby_filter<>},
        {"trim", trim_filter<>},
        {"tojson", json_filter<>},
        {"replace", replace_filter<>},
        {"indent", indent_filter<>},
        {"lower upper capitalize", case_filter<>},
        {"title", title_filter<>},
        {"string", string_filter<>},
        {"safe escape e forceescape", markup_filter<>},
        {"center", center_filter<>},
        {"format", format_filter<>},
        {"wordcount", wordcount_filter<>},
        {"truncate", truncate_filter<>},
        {"int", int_filter<>},
        {"float", float_filter<>},
        {"abs", abs_filter<>},
        {"round", round_filter<>},
        {"filesizeformat", filesize_filter<>},
    };
    return find_named(filters, name);
}

KVCACHE_LAZY [[nodiscard]] value filtered(const value& v, const arguments& args, budget& spent) {
    const auto found = find_filter(args.of);
    if (!found)
        refuse({"the filter \"", args.of, "\" is not known"});
    spent.work(64);
    return found(v, args, spent);
}

}}} // namespace kvcache::text::jinja
