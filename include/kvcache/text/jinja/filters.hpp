// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/filter.hpp>
#include <kvcache/text/jinja/number_filters.hpp>
#include <kvcache/text/jinja/order_filters.hpp>
#include <kvcache/text/jinja/sequence_filters.hpp>
#include <kvcache/text/jinja/text_filters.hpp>

#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

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
