// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/filter.hpp>
#include <kvcache/text/jinja/item_keys.hpp>
#include <kvcache/text/jinja/methods.hpp>
#include <kvcache/text/jinja/operators.hpp>
#include <kvcache/text/jinja/text_functions.hpp>
#include <kvcache/text/jinja/value_tests.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

// Jinja's filters of sequences.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

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
            out.push_back(found.is_undefined() && otherwise ? *otherwise : std::move(found));
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
    value sum = args.find(1, "start") ? *args.find(1, "start") : value(std::int64_t{0});
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
                 items.begin() + static_cast<std::ptrdiff_t>(at) + length);
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
    const value items = items_of(v, spent);
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
    const value* otherwise = args.find(0, "default_value");
    if (!v.is_undefined() && !(is_set(args, 1, "boolean") && !v.truth()))
        return v;
    return otherwise ? *otherwise : value("");
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

} // namespace detail

/// Returns the filter of sequences, or of any value, of this name, or null.
KVCACHE_LAZY [[nodiscard]] inline const filter* find_sequence_filter(std::string_view name) {
    using namespace detail;
    static constexpr std::array filters{
        filter{"select", select_filter<>},     filter{"reject", select_filter<>},
        filter{"selectattr", select_filter<>}, filter{"rejectattr", select_filter<>},
        filter{"map", map_filter<>},           filter{"join", join_filter<>},
        filter{"sum", sum_filter<>},           filter{"batch", batch_filter<>},
        filter{"slice", batch_filter<>},       filter{"length", length_filter<>},
        filter{"count", length_filter<>},      filter{"list", list_filter<>},
        filter{"first", end_filter<>},         filter{"last", end_filter<>},
        filter{"reverse", reverse_filter<>},   filter{"items", items_filter<>},
        filter{"default", default_filter<>},   filter{"d", default_filter<>},
        filter{"attr", attr_filter<>},
    };
    return find_in(filters, name);
}

}}} // namespace kvcache::text::jinja
