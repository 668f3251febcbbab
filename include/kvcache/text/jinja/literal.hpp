// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/lexer.hpp>
#include <kvcache/text/jinja/value.hpp>

#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>

namespace kvcache::inline KVCACHE_ABI::text::jinja {

/// The value of a token that is a number, true, false or none; nullopt for another name. Throws: failure, if an integer
/// is too large.
KVCACHE_LAZY [[nodiscard]] inline std::optional<value> literal(const token& t) {
    if (t.kind == token_kind::integer) {
        std::int64_t n = 0;
        if (std::from_chars(t.text.data(), t.text.data() + t.text.size(), n).ec != std::errc{})
            refuse({"the number ", t.text, " is too large"});
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

} // namespace kvcache::text::jinja
