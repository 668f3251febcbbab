// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/formatting.hpp>
#include <kvcache/text/jinja/markup.hpp>
#include <kvcache/text/jinja/text_functions.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

// The methods of Python's strings.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// A method of text: `self` is text.
struct text_method {
    std::string_view name;
    value (*call)(const value& self, const arguments& args, budget& spent);
};

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
    const value* keep = args.find(0, "keepends");
    return parts_like(self, split_lines(*self.as_text(), keep && keep->truth(), spent), list_kind::ordinary, spent);
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
KVCACHE_LAZY [[nodiscard]] inline const text_method* find_text_method(std::string_view name) {
    using namespace detail;
    static constexpr std::array methods{
        text_method{"strip", strip_method<>},         text_method{"lstrip", strip_method<>},
        text_method{"rstrip", strip_method<>},        text_method{"startswith", affix_test<>},
        text_method{"endswith", affix_test<>},        text_method{"split", split_method<>},
        text_method{"rsplit", split_method<>},        text_method{"splitlines", splitlines_method<>},
        text_method{"partition", partition_method<>}, text_method{"rpartition", partition_method<>},
        text_method{"replace", replace_method<>},     text_method{"removeprefix", without_affix<>},
        text_method{"removesuffix", without_affix<>}, text_method{"find", search_method<>},
        text_method{"rfind", search_method<>},        text_method{"index", search_method<>},
        text_method{"rindex", search_method<>},       text_method{"count", search_method<>},
        text_method{"join", join_method<>},           text_method{"lower", case_method<>},
        text_method{"upper", case_method<>},          text_method{"title", case_method<>},
        text_method{"capitalize", case_method<>},     text_method{"casefold", case_method<>},
        text_method{"swapcase", case_method<>},       text_method{"isdigit", class_test<>},
        text_method{"isspace", class_test<>},         text_method{"isalpha", class_test<>},
        text_method{"isalnum", class_test<>},         text_method{"isdecimal", class_test<>},
        text_method{"isnumeric", class_test<>},       text_method{"isupper", class_test<>},
        text_method{"islower", class_test<>},         text_method{"isascii", class_test<>},
        text_method{"center", pad_method<>},          text_method{"ljust", pad_method<>},
        text_method{"rjust", pad_method<>},           text_method{"zfill", pad_method<>},
        text_method{"format", format_method<>},       text_method{"format_map", format_method<>},
    };
    const auto found = std::find_if(methods.begin(), methods.end(), [&](const auto& m) { return m.name == name; });
    return found == methods.end() ? nullptr : &*found;
}

}}} // namespace kvcache::text::jinja
