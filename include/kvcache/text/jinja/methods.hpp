// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/formatting.hpp>
#include <kvcache/text/jinja/sequence.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

// The methods of Python's strings.

namespace detail {

KVCACHE_LAZY [[nodiscard]] inline std::size_t limit_of(std::int64_t n) {
    return n < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(n);
}

/// strip, lstrip, rstrip.
KVCACHE_LAZY [[nodiscard]] inline value strip_method(const value& self, const arguments& args, budget& spent) {
    args.expect(1, {});
    return text_like(self, stripped(*self.as_text(), args.of != "rstrip", args.of != "lstrip",
                                    args.text_or_none(0, "chars", spent), spent));
}

/// startswith, endswith: of one string, or of one of a tuple.
KVCACHE_LAZY [[nodiscard]] inline value affix_test(const value& self, const arguments& args, budget& spent) {
    args.expect(1, {});
    const std::string& text = self.as_text()->bytes;
    const auto one = [&](const value& v) {
        const auto* t = v.as_text();
        if (!t)
            mistake({args.of, "() needs a string, not ", v.type_name()});
        spent.work(8 + std::min(text.size(), t->bytes.size()) / 8);
        return args.of == "startswith" ? text.starts_with(t->bytes) : text.ends_with(t->bytes);
    };
    const value& affixes = args.at(0, "prefix");
    if (const auto* several = affixes.as_list())
        return std::any_of(several->begin(), several->end(), one);
    return one(affixes);
}

/// Returns the list of parts; parts of markup are markup.
KVCACHE_LAZY [[nodiscard]] inline value parts_like(const value& self, list parts, list_kind kind, budget& spent) {
    if (self.is_markup())
        for (value& part : parts) {
            spent.text(part.as_text()->bytes.size());
            part = value::markup(*part.as_text());
        }
    return {std::move(parts), kind};
}

/// split, rsplit.
KVCACHE_LAZY [[nodiscard]] inline value split_method(const value& self, const arguments& args, budget& spent) {
    args.expect(2, {"sep", "maxsplit"});
    const auto separator = args.text_or_none(0, "sep", spent);
    const auto most = limit_of(args.integer(1, "maxsplit", -1));
    const tagged_text& text = *self.as_text();
    list parts = args.of == "split" || (!separator && most == limit_of(-1)) ? split(text, separator, most, spent)
                 : separator                                                ? split_right(text, *separator, most, spent)
                                                                            : split_space_right(text, most, spent);
    return parts_like(self, std::move(parts), list_kind::ordinary, spent);
}

/// partition, rpartition: the text before a separator, the separator and the text after it.
KVCACHE_LAZY [[nodiscard]] inline value partition_method(const value& self, const arguments& args, budget& spent) {
    args.expect(1, {});
    const tagged_text& t = *self.as_text();
    const std::string& separator = args.text(0, "sep").bytes;
    if (separator.empty())
        mistake({args.of, "() needs a separator that is not empty"});
    spent.search(t.bytes.size(), separator.size());
    const bool left = args.of == "partition";
    const auto at = left ? t.bytes.find(separator) : t.bytes.rfind(separator);
    const std::size_t size = t.bytes.size();
    const std::size_t begin = at != std::string::npos ? at : left ? size : 0;
    const std::size_t end = at != std::string::npos ? at + separator.size() : begin;
    list parts;
    for (const auto& [from, to] : {std::pair(std::size_t{0}, begin), std::pair(begin, end), std::pair(end, size)})
        parts.emplace_back(item_part(t, from, to, spent));
    return parts_like(self, std::move(parts), list_kind::tuple, spent);
}

KVCACHE_LAZY [[nodiscard]] inline value replace_method(const value& self, const arguments& args, budget& spent) {
    args.expect(3, {"count"});
    const value& to = args.at(1, "new");
    (void)args.text(1, "new");
    return text_like(self, replaced(*self.as_text(), args.text(0, "old").bytes,
                                    self.is_markup() ? escaped_text(to, spent) : *to.as_text(),
                                    limit_of(args.integer(2, "count", -1)), spent));
}

/// removeprefix, removesuffix.
KVCACHE_LAZY [[nodiscard]] inline value without_affix(const value& self, const arguments& args, budget& spent) {
    args.expect(1, {});
    const tagged_text& t = *self.as_text();
    const std::string& affix = args.text(0, "affix").bytes;
    const std::size_t size = t.bytes.size();
    if (args.of == "removeprefix")
        return text_like(self, part_of(t, t.bytes.starts_with(affix) ? affix.size() : 0, size, spent));
    return text_like(self, part_of(t, 0, size - (t.bytes.ends_with(affix) ? affix.size() : 0), spent));
}

/// find, rfind, index, rindex, count, each in the characters [start, end).
KVCACHE_LAZY [[nodiscard]] inline value search_method(const value& self, const arguments& args, budget& spent) {
    args.expect(3, {});
    const std::string_view all = self.as_text()->bytes;
    const std::string& part = args.text(0, "sub").bytes;
    spent.search(3 * all.size(), part.size());
    const auto size = static_cast<std::int64_t>(character_count(all));
    const auto place = [&](std::size_t position, std::int64_t otherwise) {
        const auto n = args.integer(position, "", otherwise);
        return std::clamp(n < 0 ? n + size : n, std::int64_t{0}, size);
    };
    const std::int64_t begin = place(1, 0);
    const std::size_t from = offset_of(all, begin);
    const std::string_view text = all.substr(0, std::max(from, offset_of(all, place(2, size)))).substr(from);
    if (args.of == "count") {
        if (part.empty())
            return static_cast<std::int64_t>(character_count(text)) + 1;
        std::int64_t n = 0;
        for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size()))
            ++n;
        return n;
    }
    const auto at = args.of[0] == 'r' ? text.rfind(part) : text.find(part);
    if (at == std::string_view::npos && args.of.ends_with("index"))
        mistake({args.of, "() finds no such text"});
    return at == std::string_view::npos ? std::int64_t{-1}
                                        : begin + static_cast<std::int64_t>(character_count(text.substr(0, at)));
}

KVCACHE_LAZY [[nodiscard]] inline value join_method(const value& self, const arguments& args, budget& spent) {
    args.expect(1, {});
    const value items = items_of(args.at(0, "iterable"), spent);
    for (const value& item : *items.as_list())
        if (!item.as_text())
            mistake({"join() needs strings, not ", item.type_name()});
    if (!self.is_markup())
        return joined(*items.as_list(), *self.as_text(), spent);
    list made;
    for (const value& item : *items.as_list()) {
        spent.items(2);
        made.emplace_back(escaped_text(item, spent));
    }
    return value::markup(joined(made, *self.as_text(), spent));
}

KVCACHE_LAZY [[nodiscard]] inline value splitlines_method(const value& self, const arguments& args, budget& spent) {
    args.expect(1, {"keepends"});
    return parts_like(self, split_lines(*self.as_text(), args.is_true(0, "keepends"), spent), list_kind::ordinary,
                      spent);
}

/// lower, upper, title, capitalize, casefold, swapcase.
KVCACHE_LAZY [[nodiscard]] inline value case_method(const value& self, const arguments& args, budget& spent) {
    args.expect(0, {});
    const letter_case wanted = args.of == "upper"        ? letter_case::upper
                               : args.of == "title"      ? letter_case::title
                               : args.of == "capitalize" ? letter_case::capitalized
                               : args.of == "swapcase"   ? letter_case::swapped
                                                         : letter_case::lower;
    return text_like(self, in_case(*self.as_text(), wanted, spent));
}

/// isdigit and the like.
KVCACHE_LAZY [[nodiscard]] inline value class_test(const value& self, const arguments& args, budget& spent) {
    args.expect(0, {});
    spent.work(16 * self.as_text()->bytes.size());
    return is_of_class(self.as_text()->bytes, args.of);
}

/// center, ljust, rjust, zfill.
KVCACHE_LAZY [[nodiscard]] inline value pad_method(const value& self, const arguments& args, budget& spent) {
    args.expect(args.of == "zfill" ? 1 : 2, {});
    const tagged_text& t = *self.as_text();
    format_spec spec;
    spec.width = format_width(args.integer(0, "width", 0));
    if (const value* fill = args.find(1, ""))
        spec.fill = fill->as_text() ? fill->as_text()->bytes : std::string{};
    if (character_count(spec.fill) != 1)
        mistake({args.of, "() needs one character to fill with"});
    if (args.of == "zfill") {
        spec.fill = "0";
        const bool sign = t.bytes.starts_with('-') || t.bytes.starts_with('+');
        return text_like(self, padded(part_of(t, sign ? 1 : 0, t.bytes.size(), spent),
                                      sign ? t.bytes.substr(0, 1) : std::string{}, spec, '=', spent));
    }
    if (args.of == "center")
        return text_like(self, centered(t, spec, spent));
    return text_like(self, padded(t, {}, spec, args.of == "ljust" ? '<' : '>', spent));
}

KVCACHE_LAZY [[nodiscard]] inline value format_method(const value& self, const arguments& args, budget& spent) {
    if (args.of == "format")
        return formatted(self, args, spent);
    args.expect(1, {});
    const auto* map = args.at(0, "mapping").as_mapping();
    if (!map)
        mistake("format_map() needs a mapping");
    arguments named{"format", {}, {}};
    for (const auto& [name, v] : map->entries) {
        spent.text(64 + name.bytes.size());
        named.named.emplace_back(name.bytes, v);
    }
    return formatted(self, named, spent);
}

} // namespace detail

/// Returns a method of text, or null if it has none of this name.
KVCACHE_LAZY [[nodiscard]] inline auto find_text_method(std::string_view name) {
    using namespace detail;
    static constexpr named_function<value> methods[] = {
        {"strip lstrip rstrip", strip_method<>},
        {"startswith endswith", affix_test<>},
        {"split rsplit", split_method<>},
        {"splitlines", splitlines_method<>},
        {"partition rpartition", partition_method<>},
        {"replace", replace_method<>},
        {"removeprefix removesuffix", without_affix<>},
        {"find rfind index rindex count", search_method<>},
        {"join", join_method<>},
        {"lower upper title capitalize casefold swapcase", case_method<>},
        {"isdigit isspace isalpha isalnum isdecimal isnumeric isupper islower isascii", class_test<>},
        {"center ljust rjust zfill", pad_method<>},
        {"format format_map", format_method<>},
    };
    return find_named(methods, name);
}

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
        return found ? *found : args.value_or(1, "default", value::none{});
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
        return find_text_method(args.of)(self, args, spent);
    return self.as_mapping() ? detail::call_mapping_method(self, args, spent)
                             : detail::call_list_method(self, args, spent);
}

/// Returns the value of `loop` for item `i`. `last` is what `loop.changed` was last called with. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value loop_state(const list& items, std::size_t i, const value& last, budget& spent) {
    spent.memory(4096); // 13 entries, and their places while the mapping grows
    const auto n = static_cast<std::int64_t>(items.size());
    const auto at = static_cast<std::int64_t>(i);
    mapping made;
    const auto add = [&](const char* name, value v) { made.add({name, {}}, std::move(v)); };
    add("index", at + 1);
    add("index0", at);
    add("first", i == 0);
    add("last", at + 1 == n);
    add("length", n);
    add("revindex", n - at);
    add("revindex0", n - at - 1);
    add("depth", std::int64_t{1}); // of recursion, which this interpreter lacks
    add("depth0", std::int64_t{0});
    add("cycle", bound_function{"loop.cycle", std::make_shared<const value>(at)});
    add("changed", bound_function{"loop.changed", std::make_shared<const value>(last)});
    add("previtem", i == 0 ? value(value::undefined{"previtem"}) : items[i - 1]);
    add("nextitem", at + 1 == n ? value(value::undefined{"nextitem"}) : items[i + 1]);
    return made;
}

/// loop.cycle(...): the next of its arguments for each item; loop.changed(...): whether it is called with other
/// arguments than before. `self` is the index of the item, or the memory of the loop. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value call_loop_function(const value& self, const arguments& args, budget& spent) {
    args.expect(args.values.size(), {});
    if (args.of == "loop.cycle") {
        if (args.values.empty())
            mistake("loop.cycle() needs arguments");
        return args.values[static_cast<std::size_t>(*self.as_integer()) % args.values.size()];
    }
    spent.items(args.values.size());
    // Kept as text: the values may contain the loop, which contains this memory.
    value now = repr_of(value(args.values, list_kind::tuple), spent);
    mapping& memory = *self.as_mapping();
    const value* before = memory.find("last", spent);
    if (before && equal(*before, now, spent))
        return false;
    memory.set({"last", {}}, std::move(now), spent);
    return true;
}

/// dict(...) or namespace(...): the entries of a first mapping or list of pairs, and the named arguments.
KVCACHE_LAZY [[nodiscard]] inline value dict(const arguments& args, budget& spent) {
    mapping made;
    const value none = mapping{};
    const value& from = args.values.empty() ? none : args.values[0];
    if (const auto* map = from.as_mapping()) {
        made = detail::copied(*map, spent);
    } else {
        const value pairs = items_of(from, spent);
        for (const value& pair : *pairs.as_list()) {
            const value held = items_of(pair, spent);
            const auto key = held.as_list()->size() == 2 ? key_of((*held.as_list())[0], spent) : std::nullopt;
            if (!key)
                mistake("dict() needs pairs");
            spent.items(8);
            made.set(*key, (*held.as_list())[1], spent);
        }
    }
    made.is_namespace = args.of == "namespace";
    for (const auto& [name, v] : args.named)
        made.set({name, {}}, v, spent);
    return made;
}

/// strftime_now(format). Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value date_text(const arguments& args, const std::tm& now, budget& spent) {
    std::array<char, 256> buffer{};
    const std::string& format = args.text(0, "format").bytes;
    spent.work(8 * format.size());
    const auto size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &now);
    return std::string_view(buffer.data(), size);
}

/// range(stop) or range(start, stop, step). Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value range(const arguments& args, budget& spent) {
    args.expect(3, {});
    const bool one = args.values.size() == 1;
    const std::int64_t begin = one ? 0 : args.integer(0, "start", 0);
    const std::int64_t end = one ? args.integer(0, "stop", 0) : args.integer(1, "stop", 0);
    const std::int64_t by = args.integer(2, "step", 1);
    constexpr std::int64_t most = 100'000; // the limit of Jinja's sandbox
    constexpr std::int64_t far = std::int64_t{1} << 40;
    if (by == 0 || begin > far || begin < -far || end > far || end < -far || by > far || by < -far)
        mistake("range() is called with a number out of range");
    list out;
    for (std::int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
        if (static_cast<std::int64_t>(out.size()) == most)
            mistake({"range() has more than ", std::to_string(most), " items"});
        spent.memory(3 * sizeof(value));
        out.emplace_back(i);
    }
    return out;
}

}}} // namespace kvcache::text::jinja
