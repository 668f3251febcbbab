// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/arguments.hpp>
#include <kvcache/text/jinja/budget.hpp>
#include <kvcache/text/jinja/value.hpp>

#include <algorithm>
#include <span>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// A filter: `v | name(arguments)`.
struct filter {
    std::string_view name;
    value (*run)(const value& v, const arguments& args, budget& spent);
};

/// Returns the filter of this name, or null.
KVCACHE_LAZY [[nodiscard]] inline const filter* find_in(std::span<const filter> filters, std::string_view name) {
    const auto found = std::find_if(filters.begin(), filters.end(), [&](const filter& f) { return f.name == name; });
    return found == filters.end() ? nullptr : &*found;
}

/// `v | name(args)`, for the name in the arguments; in filters.hpp. Throws: failure if the filter is unknown.
KVCACHE_LAZY [[nodiscard]] value filtered(const value& v, const arguments& args, budget& spent);

}}} // namespace kvcache::text::jinja
