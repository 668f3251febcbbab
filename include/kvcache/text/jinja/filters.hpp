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
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache::inline KVCACHE_ABI::text::jinja {

/// `v is name(args)`. Throws: failure if the test is unknown.
KVCACHE_LAZY [[nodiscard]] inline bool passes(const value& v, const arguments& args, budget& spent) {
    const std::string& name = args.of;
    if (name == "equalto" || name == "eq" || name == "==")
        return equal(v, args.at(0, "other"), spent);
    if (name == "ne" || name == "!=")
        return !equal(v, args.at(0, "other"), spent);
    if (name == "in")
        return contains(args.at(0, "seq"), v, spent);
    if (name == "lt" || name == "lessthan")
        return less(v, args.at(0, "other"), spent);
    if (name == "gt" || name == "greaterthan")
        return less(args.at(0, "other"), v, spent);
    if (name == "divisibleby") {
        const auto by = args.integer(0, "num", 0);
        const auto n = v.as_integer();
        if (!n || by == 0)
            mistake("divisibleby needs integers");
        return *n % by == 0;
    }
    args.expect(0, {});
    const bool number = v.is<std::int64_t>() || v.is<double>() || v.is<bool>();
    if (name == "defined")
        return !v.is_undefined();
    if (name == "undefined")
        return v.is_undefined();
    if (name == "none")
        return v.is_none();
    if (name == "string")
        return v.as_text() != nullptr;
    if (name == "mapping")
        return v.as_mapping() && !v.as_mapping()->is_namespace;
    if (name == "sequence" || name == "iterable")
        return v.as_text() || v.as_list() || v.as_mapping() || v.is_undefined();
    if (name == "number")
        return number;
    if (name == "integer")
        return v.is<std::int64_t>();
    if (name == "float")
        return v.is<double>();
    if (name == "boolean")
        return v.is<bool>();
    if (name == "true")
        return v.is<bool>() && v.truth();
    if (name == "false")
        return v.is<bool>() && !v.truth();
    if (name == "callable")
        return v.is<value::macro_pointer>() || v.is<value::function_pointer>();
    if (name == "odd" || name == "even") {
        const auto n = v.as_integer();
        if (!n)
            mistake({name, " needs an integer"});
        return (*n % 2 != 0) == (name == "odd");
    }
    if (name == "lower" || name == "upper") {
        const auto t = text_of(v, spent);
        return !t.bytes.empty() &&
               in_case(t, name == "lower" ? letter_case::lower : letter_case::upper, spent).bytes == t.bytes;
    }
    refuse({"the test \"", name, "\" is not known"});
}

KVCACHE_LAZY [[nodiscard]] value filtered(const value& v, const arguments& args, budget& spent);

namespace detail {

/// Bytes of an item of a list, while the list grows.
inline constexpr std::size_t each_item = 3 * sizeof(value);

/// v.a.b for "a.b".
KVCACHE_LAZY [[nodiscard]] inline value path_of(value v, std::string_view path, budget& spent) {
    while (true) {
        const auto dot = path.find('.');
        const std::string_view name = path.substr(0, dot);
        spent.text(name.size());
        v = item_of(v, name, spent);
        if (dot == std::string_view::npos)
            return v;
        path.remove_prefix(dot + 1);
    }
}

/// select, reject, selectattr, rejectattr.
KVCACHE_LAZY [[nodiscard]] inline value selected(const value& v, const arguments& args, budget& spent) {
    const bool by_attribute = args.of.ends_with("attr");
    const bool wanted = args.of.starts_with("select");
    const std::size_t first = by_attribute ? 1 : 0;
    arguments test;
    if (first < args.values.size()) {
        test.of = args.text(first, "test").bytes;
        test.values.assign(args.values.begin() + static_cast<std::ptrdiff_t>(first) + 1, args.values.end());
    }
    list out;
    const value items = items_of(v, spent);
    for (const value& item : *items.as_list()) {
        spent.memory(each_item);
        const value subject = by_attribute ? path_of(item, args.text(0, "attribute").bytes, spent) : item;
        if ((test.of.empty() ? subject.truth() : passes(subject, test, spent)) == wanted)
            out.push_back(item);
    }
    return out;
}

KVCACHE_LAZY [[nodiscard]] inline value mapped(const value& v, const arguments& args, budget& spent) {
    list out;
    const value items = items_of(v, spent);
    if (const value* attribute = args.find(std::numeric_limits<std::size_t>::max(), "attribute")) {
        args.expect(0, {"attribute", "default"});
        const value* otherwise = args.find(std::numeric_limits<std::size_t>::max(), "default");
        const tagged_text path = text_of(*attribute, spent);
        for (const value& item : *items.as_list()) {
            spent.memory(each_item);
            auto found = path_of(item, path.bytes, spent);
            out.push_back(found.is_undefined() && otherwise ? *otherwise : std::move(found));
        }
        return out;
    }
    arguments filter;
    filter.of = args.text(0, "filter").bytes;
    filter.values.assign(args.values.begin() + 1, args.values.end());
    filter.named = args.named;
    for (const value& item : *items.as_list()) {
        spent.memory(each_item);
        out.push_back(filtered(item, filter, spent));
    }
    return out;
}

KVCACHE_LAZY [[nodiscard]] inline value to_integer(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"default"});
    if (const auto n = v.as_number())
        return static_cast<std::int64_t>(*n);
    std::int64_t n = 0;
    const auto text = stripped(text_of(v, spent), true, true, std::nullopt, spent).bytes;
    spent.work(8 * text.size());
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
    return problem == std::errc{} && end == text.data() + text.size() ? n : args.integer(0, "default", 0);
}

/// Jinja's indent: by default neither the first line nor empty lines are indented.
KVCACHE_LAZY [[nodiscard]] inline value indented(const value& v, const arguments& args, budget& spent) {
    args.expect(3, {"width", "first", "blank"});
    const value* first = args.find(1, "first");
    const value* blank = args.find(2, "blank");
    const auto width = args.integer(0, "width", 4);
    constexpr std::int64_t widest = 1024;
    if (width < 0 || width > widest)
        mistake({"indent() by ", std::to_string(width), " is not known"});
    const std::string space(static_cast<std::size_t>(width), ' ');
    tagged_text out;
    bool is_first = true;
    for (const value& line : split(text_of(v, spent), "\n", std::numeric_limits<std::size_t>::max(), spent)) {
        spent.text(1 + space.size());
        if (!is_first)
            out.append("\n", false);
        const bool indents =
            is_first ? first && first->truth() : !line.as_text()->bytes.empty() || (blank && blank->truth());
        if (indents)
            out.append(space, false);
        append(out, *line.as_text(), spent);
        is_first = false;
    }
    return out;
}

KVCACHE_LAZY [[nodiscard]] inline value length_of(const value& v, budget& spent) {
    if (const auto* t = v.as_text()) {
        spent.work(t->bytes.size());
        return static_cast<std::int64_t>(character_count(t->bytes));
    }
    if (const auto* map = v.as_mapping())
        return static_cast<std::int64_t>(map->entries.size());
    if (v.is_none() || v.as_number())
        mistake({"a value of type ", v.type_name(), " has no length"});
    return static_cast<std::int64_t>(items_of(v, spent).as_list()->size());
}

} // namespace detail

/// `v | name(args)`. Throws: failure if the filter is unknown.
KVCACHE_LAZY [[nodiscard]] inline value filtered(const value& v, const arguments& args, budget& spent) {
    const std::string& name = args.of;
    if (name == "trim") {
        args.expect(1, {"chars"});
        return stripped(text_of(v, spent), true, true, args.text_or_none(0, "chars", spent), spent);
    }
    if (name == "tojson") {
        args.expect(4, {"indent", "ensure_ascii", "separators", "sort_keys"});
        const value* indent = args.find(1, "indent"); // position 0 is ensure_ascii
        if (args.values.size() > 0 || args.named.size() > (indent ? 1u : 0u))
            refuse("tojson() with other arguments than indent is not known");
        return json_of(
            v,
            indent && !indent->is_none()
                ? std::optional(static_cast<std::size_t>(std::clamp<std::int64_t>(args.integer(1, "indent", 0), 0, 64)))
                : std::nullopt,
            spent);
    }
    if (name == "default" || name == "d") {
        args.expect(2, {"default_value", "boolean"});
        const value* boolean = args.find(1, "boolean");
        const bool replaces = v.is_undefined() || (boolean && boolean->truth() && !v.truth());
        const value* otherwise = args.find(0, "default_value");
        return replaces ? (otherwise ? *otherwise : value("")) : v;
    }
    if (name == "join") {
        args.expect(2, {"d", "attribute"});
        const value* attribute = args.find(1, "attribute");
        const value* between = args.find(0, "d");
        value items = items_of(v, spent);
        if (attribute)
            items = detail::mapped(items, {"map", {}, {{"attribute", *attribute}}}, spent);
        return joined(*items.as_list(), between ? text_of(*between, spent) : tagged_text{}, spent);
    }
    if (name == "replace") {
        args.expect(3, {"count"});
        return replaced(text_of(v, spent), args.text(0, "old").bytes, args.text(1, "new"),
                        detail::limit_of(args.integer(2, "count", -1)), spent);
    }
    if (name == "map")
        return detail::mapped(v, args, spent);
    if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
        return detail::selected(v, args, spent);
    if (name == "int")
        return detail::to_integer(v, args, spent);
    if (name == "indent")
        return detail::indented(v, args, spent);
    args.expect(0, {});
    if (name == "length" || name == "count")
        return detail::length_of(v, spent);
    if (name == "string")
        return text_of(v, spent);
    if (name == "safe")
        return v;
    if (name == "lower")
        return in_case(text_of(v, spent), letter_case::lower, spent);
    if (name == "upper")
        return in_case(text_of(v, spent), letter_case::upper, spent);
    if (name == "title")
        return in_case(text_of(v, spent), letter_case::title, spent);
    if (name == "capitalize")
        return in_case(text_of(v, spent), letter_case::capitalized, spent);
    if (name == "list")
        return items_of(v, spent);
    if (name == "first" || name == "last") {
        const value held = items_of(v, spent);
        const list& items = *held.as_list();
        return items.empty() ? value(value::undefined{name}) : name == "first" ? items.front() : items.back();
    }
    if (name == "reverse") {
        const value held = items_of(v, spent);
        spent.items(held.as_list()->size());
        list items(held.as_list()->rbegin(), held.as_list()->rend());
        return v.as_text() ? value(joined(items, {}, spent)) : value(std::move(items));
    }
    if (name == "items") {
        if (v.is_undefined())
            return list{};
        if (!v.as_mapping())
            mistake({"items needs a mapping, not ", v.type_name()});
        return call_method(v, {"items", {}, {}}, spent);
    }
    if (name == "unique") {
        list out;
        const value items = items_of(v, spent);
        for (const value& item : *items.as_list()) {
            spent.memory(detail::each_item);
            if (std::none_of(out.begin(), out.end(), [&](const value& seen) { return equal(seen, item, spent); }))
                out.push_back(item);
        }
        return out;
    }
    refuse({"the filter \"", name, "\" is not known"});
}

} // namespace kvcache::text::jinja
