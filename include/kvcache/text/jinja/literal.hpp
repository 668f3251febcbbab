// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/lexer.hpp>
#include <kvcache/text/jinja/value.hpp>

#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// The value of a token that is a number, true, false or none; nullopt for another name. Throws: failure, if an integer
/// is too large.
KVCACHE_LAZY [[nodiscard]] inline std::optional<value> literal(const token& t) {
    if (t.kind == token_kind::integer) {
        constexpr std::string_view letters = "xXoObB";
        const auto base = t.text.size() > 2 ? letters.find(t.text[1]) : std::string_view::npos;
        const std::size_t from = base == std::string_view::npos ? 0 : 2;
        const int radix = from == 0 ? 10 : base < 2 ? 16 : base < 4 ? 8 : 2;
        const char* const end = t.text.data() + t.text.size();
        std::int64_t n = 0;
        if (const auto read = std::from_chars(t.text.data() + from, end, n, radix);
            read.ec != std::errc{} || read.ptr != end)
            refuse({"line ", std::to_string(t.line), ": the number ", t.text, " is too large, or none"});
        return value(n);
    }
    if (t.kind == token_kind::number) {
        double d = 0;
        std::from_chars(t.text.data(), t.text.data() + t.text.size(), d);
        return value(d);
    }
    if (t.text == "true" || t.text == "True")
        return value(true);
    if (t.text == "false" || t.text == "False")
        return value(false);
    if (t.text == "none" || t.text == "None")
        return value(value::none{});
    return std::nullopt;
}

}}} // namespace kvcache::text::jinja
