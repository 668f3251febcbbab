// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/access.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/filter.hpp>
#include <kvcache/text/jinja/format_spec.hpp>
#include <kvcache/text/jinja/item_keys.hpp>
#include <kvcache/text/jinja/methods.hpp>
#include <kvcache/text/jinja/sequence_filters.hpp>
#include <kvcache/text/jinja/text_filters.hpp>
#include <kvcache/text/jinja/text_functions.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

// Jinja's filters that return numbers.

// Jinja's filters that compare the items of a sequence.

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

namespace detail {

/// Returns the number that the whole of a text is, as Python's float() reads it.
KVCACHE_LAZY [[nodiscard]] inline std::optional<double> parsed_float(std::string_view text) {
    if (text.starts_with('+') && !text.substr(1).starts_with('-'))
        text.remove_prefix(1);
    double d = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), d);
    return problem == std::errc{} && end == text.data() + text.size() ? std::optional(d) : std::nullopt;
}

/// Returns the integer part of a number. Throws: failure if there is none.
KVCACHE_LAZY [[nodiscard]] inline std::int64_t truncated(double d) {
    if (!(std::abs(d) < 9.2e18))
        mistake("a number is too large");
    return static_cast<std::int64_t>(d);
}

KVCACHE_LAZY [[nodiscard]] inline value int_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(2, {"default", "base"});
    if (const auto n = v.as_integer())
        return *n;
    const value otherwise = args.find(0, "default") ? *args.find(0, "default") : value(std::int64_t{0});
    if (const auto d = v.as_number())
        return std::isfinite(*d) ? value(truncated(*d)) : otherwise;
    if (!v.as_text())
        return otherwise;
    const auto base = args.integer(1, "base", 10);
    if (base < 2 || base > 36)
        mistake("int() needs a base from 2 to 36");
    const std::string all = stripped(*v.as_text(), true, true, std::nullopt, spent).bytes;
    spent.work(8 * all.size());
    std::string_view text = all;
    if (text.starts_with('+') && !text.substr(1).starts_with('-'))
        text.remove_prefix(1);
    const bool prefixed = (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) ||
                          (base == 8 && (text.starts_with("0o") || text.starts_with("0O"))) ||
                          (base == 2 && (text.starts_with("0b") || text.starts_with("0B")));
    if (prefixed)
        text.remove_prefix(2);
    std::int64_t n = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n, static_cast<int>(base));
    if (problem == std::errc{} && end == text.data() + text.size())
        return n;
    const auto d = parsed_float(all);
    return d && std::isfinite(*d) ? value(truncated(*d)) : otherwise;
}

KVCACHE_LAZY [[nodiscard]] inline value float_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"default"});
    if (const auto d = v.as_number())
        return *d;
    const value otherwise = args.find(0, "default") ? *args.find(0, "default") : value(0.0);
    if (!v.as_text())
        return otherwise;
    const std::string text = stripped(*v.as_text(), true, true, std::nullopt, spent).bytes;
    spent.work(8 * text.size());
    const auto d = parsed_float(text);
    return d ? value(*d) : otherwise;
}

KVCACHE_LAZY [[nodiscard]] inline value abs_filter(const value& v, const arguments& args, budget&) {
    args.expect(0, {});
    if (const auto n = v.as_integer(); n && *n != INT64_MIN)
        return *n < 0 ? -*n : *n;
    const auto d = v.as_number();
    if (!d)
        mistake({"a value of type ", v.type_name(), " has no absolute value"});
    return std::abs(*d);
}

KVCACHE_LAZY [[nodiscard]] inline value round_filter(const value& v, const arguments& args, budget&) {
    args.expect(2, {"precision", "method"});
    const auto d = v.as_number();
    const auto precision = args.integer(0, "precision", 0);
    const std::string_view method = args.find(1, "method") ? std::string_view(args.text(1, "method").bytes) : "common";
    if (!d || precision < -300 || precision > 300)
        mistake("round() needs numbers");
    const double scale = std::pow(10.0, static_cast<double>(precision));
    if (method == "ceil" || method == "floor")
        return (method == "ceil" ? std::ceil(*d * scale) : std::floor(*d * scale)) / scale;
    if (method != "common")
        mistake({"the method \"", method, "\" of round() is not known"});
    const auto n = v.as_integer();
    if (n && precision >= 0)
        return *n;
    if (precision < 0) {
        const double made = std::nearbyint(*d * scale) / scale;
        return n ? value(truncated(made)) : value(made);
    }
    format_spec spec;
    spec.type = 'f';
    spec.precision = static_cast<std::size_t>(precision);
    const double size = parsed_float(digits_of(std::abs(*d), spec)).value_or(std::abs(*d)); // rounds exact decimals
    return std::signbit(*d) ? -size : size;
}

KVCACHE_LAZY [[nodiscard]] inline value filesize_filter(const value& v, const arguments& args, budget& spent) {
    args.expect(1, {"binary"});
    const auto bytes = float_filter(v, {"float", {}, {}}, spent).as_number();
    const value* binary = args.find(0, "binary");
    const bool of_1024 = binary && binary->truth();
    const double base = of_1024 ? 1024 : 1000;
    if (*bytes == 1)
        return "1 Byte";
    if (*bytes < base)
        return value(std::to_string(truncated(*bytes)) + " Bytes");
    constexpr std::array<std::string_view, 8> names{"k", "M", "G", "T", "P", "E", "Z", "Y"};
    double unit = base * base;
    std::size_t i = 0;
    for (; i + 1 < names.size() && *bytes >= unit; ++i)
        unit *= base;
    format_spec spec;
    spec.type = 'f';
    spec.precision = 1;
    return value(digits_of(base * *bytes / unit, spec) + " " + (of_1024 && i == 0 ? "K" : std::string(names[i])) +
                 (of_1024 ? "iB" : "B"));
}

} // namespace detail

/// Returns the filter of numbers of this name, or null.
KVCACHE_LAZY [[nodiscard]] inline const filter* find_number_filter(std::string_view name) {
    using namespace detail;
    static constexpr std::array filters{
        filter{"int", int_filter<>},
        filter{"float", float_filter<>},
        filter{"abs", abs_filter<>},
        filter{"round", round_filter<>},
        filter{"filesizeformat", filesize_filter<>},
    };
    return find_in(filters, name);
}

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

/// Returns the filter of this name, or null. Of Jinja's filters, pprint, random, striptags, urlencode, urlize, wordwrap
/// and xmlattr are not known: chat templates use none of them.
KVCACHE_LAZY [[nodiscard]] inline const filter* find_filter(std::string_view name) {
    if (const filter* found = find_sequence_filter(name))
        return found;
    if (const filter* found = find_order_filter(name))
        return found;
    if (const filter* found = find_text_filter(name))
        return found;
    return find_number_filter(name);
}

KVCACHE_LAZY [[nodiscard]] value filtered(const value& v, const arguments& args, budget& spent) {
    const filter* found = find_filter(args.of);
    if (!found)
        refuse({"the filter \"", args.of, "\" is not known"});
    spent.work(64);
    return found->run(v, args, spent);
}

}}} // namespace kvcache::text::jinja
