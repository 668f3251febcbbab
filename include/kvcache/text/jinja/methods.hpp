// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/text_functions.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache::inline KVCACHE_ABI::text::jinja {

/// Returns whether values like `self` have this method, which call_method then implements.
KVCACHE_LAZY [[nodiscard]] inline bool has_method(const value& self, std::string_view name) {
    constexpr std::array<std::string_view, 20> of_text{
        "strip",      "lstrip", "rstrip",       "startswith",   "endswith",   "split",   "rsplit",
        "splitlines", "lower",  "upper",        "title",        "capitalize", "replace", "find",
        "count",      "join",   "removeprefix", "removesuffix", "isdigit",    "isspace"};
    constexpr std::array<std::string_view, 4> of_mapping{"get", "items", "keys", "values"};
    constexpr std::array<std::string_view, 2> of_list{"index", "count"};
    if (self.as_text())
        return std::find(of_text.begin(), of_text.end(), name) != of_text.end();
    if (const auto* map = self.as_mapping())
        return !map->is_namespace && std::find(of_mapping.begin(), of_mapping.end(), name) != of_mapping.end();
    return self.as_list() && std::find(of_list.begin(), of_list.end(), name) != of_list.end();
}

namespace detail {

KVCACHE_LAZY [[nodiscard]] inline std::size_t limit_of(std::int64_t n) {
    return n < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(n);
}

/// Returns whether one of the given strings (one, or a list) is a prefix or suffix of the text.
KVCACHE_LAZY [[nodiscard]] inline bool affixed(const tagged_text& self, const value& affixes, bool front,
                                               budget& spent) {
    const auto one = [&](const value& v) {
        const auto* t = v.as_text();
        if (!t)
            mistake({"startswith() and endswith() need strings, not ", v.type_name()});
        spent.work(8 + std::min(self.bytes.size(), t->bytes.size()) / 8);
        return front ? self.bytes.starts_with(t->bytes) : self.bytes.ends_with(t->bytes);
    };
    if (const auto* several = affixes.as_list())
        return std::any_of(several->begin(), several->end(), one);
    return one(affixes);
}

KVCACHE_LAZY [[nodiscard]] inline value call_text_method(const tagged_text& self, const arguments& args,
                                                         budget& spent) {
    const std::string& name = args.of;
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
        args.expect(1, {});
        return stripped(self, name != "rstrip", name != "lstrip", args.text_or_none(0, "chars", spent), spent);
    }
    if (name == "startswith" || name == "endswith") {
        args.expect(1, {});
        return affixed(self, args.at(0, "prefix"), name == "startswith", spent);
    }
    if (name == "split" || name == "rsplit") {
        args.expect(2, {"sep", "maxsplit"});
        const auto separator = args.text_or_none(0, "sep", spent);
        const auto most = limit_of(args.integer(1, "maxsplit", -1));
        if (name == "split")
            return split(self, separator, most, spent);
        if (!separator)
            refuse("rsplit() at white space is not known");
        return split_right(self, *separator, most, spent);
    }
    if (name == "replace") {
        args.expect(3, {"count"});
        return replaced(self, args.text(0, "old").bytes, args.text(1, "new"), limit_of(args.integer(2, "count", -1)),
                        spent);
    }
    if (name == "removeprefix" || name == "removesuffix") {
        args.expect(1, {});
        const std::string& affix = args.text(0, "affix").bytes;
        const std::size_t size = self.bytes.size();
        if (name == "removeprefix")
            return part_of(self, self.bytes.starts_with(affix) ? affix.size() : 0, size, spent);
        return part_of(self, 0, size - (self.bytes.ends_with(affix) ? affix.size() : 0), spent);
    }
    if (name == "find") {
        args.expect(1, {});
        spent.search(self.bytes.size(), args.text(0, "sub").bytes.size());
        const auto at = self.bytes.find(args.text(0, "sub").bytes);
        return at == std::string::npos
                   ? std::int64_t{-1}
                   : static_cast<std::int64_t>(character_count(std::string_view(self.bytes).substr(0, at)));
    }
    if (name == "count") {
        args.expect(1, {});
        if (args.text(0, "sub").bytes.empty())
            refuse("count() of nothing is not known");
        return static_cast<std::int64_t>(split(self, args.text(0, "sub").bytes, limit_of(-1), spent).size()) - 1;
    }
    if (name == "join") {
        args.expect(1, {});
        const auto* items = args.at(0, "iterable").as_list();
        if (!items)
            mistake({"join() needs a list, not ", args.at(0, "iterable").type_name()});
        return joined(*items, self, spent);
    }
    args.expect(0, {});
    spent.work(self.bytes.size());
    if (name == "splitlines")
        return split_lines(self, spent);
    if (name == "isspace")
        return !self.bytes.empty() && stripped(self, true, false, std::nullopt, spent).bytes.empty();
    if (name == "isdigit")
        return !self.bytes.empty() && self.bytes.find_first_not_of("0123456789") == std::string::npos;
    return in_case(self,
                   name == "lower"   ? letter_case::lower
                   : name == "upper" ? letter_case::upper
                   : name == "title" ? letter_case::title
                                     : letter_case::capitalized,
                   spent);
}

} // namespace detail

/// Calls a method of a Python string, list or mapping. Throws: failure.
KVCACHE_LAZY [[nodiscard]] inline value call_method(const value& self, const arguments& args, budget& spent) {
    if (const auto* t = self.as_text())
        return detail::call_text_method(*t, args, spent);
    if (const auto* map = self.as_mapping()) {
        if (args.of == "get") {
            args.expect(2, {});
            const value* found = map->find(args.text(0, "key").bytes, spent);
            const value* otherwise = args.find(1, "default");
            return found ? *found : otherwise ? *otherwise : value(value::none{});
        }
        args.expect(0, {});
        list out;
        for (const auto& [name, v] : map->entries) {
            spent.items(1);
            if (args.of == "values") {
                out.push_back(v);
                continue;
            }
            const value key = item_part(name, 0, name.bytes.size(), spent);
            if (args.of == "items")
                spent.items(2);
            out.push_back(args.of == "items" ? value(list{key, v}) : key);
        }
        return out;
    }
    args.expect(1, {});
    const list& items = *self.as_list();
    const auto same = [&](const value& v) { return equal(v, args.at(0, "value"), spent); };
    if (args.of == "count")
        return static_cast<std::int64_t>(std::count_if(items.begin(), items.end(), same));
    const auto found = std::find_if(items.begin(), items.end(), same);
    if (found == items.end())
        mistake("index() finds no such item");
    return static_cast<std::int64_t>(found - items.begin());
}

} // namespace kvcache::text::jinja
