// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

[[nodiscard]] inline error broken_page(page_id page, const std::string& how) {
    return {error_code::malformed, joined({"page ", std::to_string(index_of(page))}), joined({"the page ", how})};
}

/// Checks that every page of a page_manager is in exactly one state. `held` is the expected reference count of each
/// page. `page_tokens`: tokens a page. Errors: malformed, with the page. Cost: O(pages + tokens).
template <class Pages>
[[nodiscard]] result<void> check_pages(const Pages& pages, std::span<const std::uint32_t> held,
                                       std::size_t page_tokens) {
    std::vector<bool> free(pages.pool().pages(), false);
    for (const page_id page : pages.pool().free()) {
        if (free[index_of(page)])
            return broken_page(page, "is free twice");
        free[index_of(page)] = true;
    }
    std::size_t idle = 0;
    for (std::uint32_t i = 0; i < pages.pool().pages(); ++i) {
        const page_id page{i};
        const bool known = pages.index().contains(page);
        if (pages.pool().holders(page) != held[i])
            return broken_page(page, joined({"counts ", std::to_string(pages.pool().holders(page)), " holders and has ",
                                             std::to_string(held[i])}));
        if (free[i] && (known || pages.ranked(page) || held[i] > 0))
            return broken_page(page, "is free and in use");
        if (!free[i] && !known && held[i] == 0)
            return broken_page(page, "is lost: neither free, held nor known");
        if (pages.ranked(page) && !known)
            return broken_page(page, "is ranked for eviction and not in the index");
        if (!known)
            continue;
        idle += held[i] == 0;
        if (held[i] == 0 && !pages.ranked(page))
            return broken_page(page, "is idle and can never leave");
        if (pages.index().run(page).empty() || pages.index().run(page).size() > page_tokens)
            return broken_page(page, "has a run that is not of a page");
        if (!pages.index().leaf(page) && pages.index().run(page).size() != page_tokens)
            return broken_page(page, "has children and is not full");
        if (const auto parent = pages.index().parent(page);
            parent && (!pages.index().contains(*parent) || pages.index().leaf(*parent) ||
                       (held[i] > 0 && held[index_of(*parent)] == 0)))
            return broken_page(page, "has a parent that is gone, childless or not held with it");
    }
    if (idle != pages.idle())
        return error{error_code::malformed, "pages",
                     joined({std::to_string(idle), " pages are evictable, the page manager counts ",
                             std::to_string(pages.idle())})};
    return {};
}

}}} // namespace kvcache::detail
