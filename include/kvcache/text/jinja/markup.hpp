// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/value.hpp>
#include <kvcache/text/jinja/writing.hpp>

#include <cstddef>
#include <string_view>
#include <utility>

// Jinja's markup: what the filters `safe` and `escape` return. Added to other text, it escapes that for HTML.
namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Replaces the characters & < > ' " by HTML's names for them.
KVCACHE_LAZY [[nodiscard]] inline tagged_text escaped(const tagged_text& t, budget& spent) {
    tagged_text out;
    spent.text(t.bytes.size());
    for (std::size_t i = 0; i < t.bytes.size(); ++i) {
        const char c = t.bytes[i];
        const std::string_view name = c == '&'    ? "&amp;"
                                      : c == '<'  ? "&lt;"
                                      : c == '>'  ? "&gt;"
                                      : c == '\'' ? "&#39;"
                                      : c == '"'  ? "&#34;"
                                                  : std::string_view(t.bytes).substr(i, 1);
        spent.memory(2 * name.size());
        check_length(out.bytes.size() + name.size());
        out.append(name, t.any_plain(i, i + 1));
    }
    return out;
}

/// Returns the text of a value, escaped unless it is markup.
KVCACHE_LAZY [[nodiscard]] inline tagged_text escaped_text(const value& v, budget& spent) {
    return v.is_markup() ? text_of(v, spent) : escaped(text_of(v, spent), spent);
}

/// Returns a text as markup if it is made from markup.
KVCACHE_LAZY [[nodiscard]] inline value text_like(const value& from, tagged_text made) {
    return from.is_markup() ? value::markup(std::move(made)) : value(std::move(made));
}

}}} // namespace kvcache::text::jinja
