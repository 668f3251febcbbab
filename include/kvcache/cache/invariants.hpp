// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Recomputes the reference count of every page from the sequences, and compares each sequence with the index.
template <class Index>
class invariant_checker {
public:
    invariant_checker(const Index& index, std::size_t page_tokens, std::size_t pages)
        : index_(index), page_tokens_(page_tokens), held_(pages, 0) {}

    /// By page: the number of references from sequences.
    [[nodiscard]] std::span<const std::uint32_t> held() const noexcept { return held_; }

    /// Counts the references of one sequence. Errors: malformed, with what is wrong with it.
    [[nodiscard]] result<void> count(const sequence_state& state) {
        std::size_t rows = 0;
        for (std::size_t i = 0; i < state.table.size(); ++i) {
            const page_entry& entry = state.table[i];
            ++held_[index_of(entry.page)];
            const bool plain = rows < state.exact; // spliced entries after the exact rows may use any rows of a page
            if (plain && i + 1 < state.table.size() && rows + page_tokens_ <= state.exact &&
                entry.count != page_tokens_)
                return broken("has a page in its middle that is not full");
            if (plain && (entry.base != 0 || entry.first != 0))
                return broken("counts a page as exact that was computed elsewhere");
            if (i < state.published_pages && rows + entry.count > state.exact)
                return broken("has made an approximate page known");
            if (i < state.published_pages && index_.run(state.indexed(i)).size() != page_tokens_)
                return broken("counts on a page in the index that is not there");
            if (!agree(entry, state, rows))
                return broken(detail::joined(
                    {"and the index disagree about the tokens of page ", std::to_string(index_of(entry.page))}));
            rows += entry.count;
        }
        for (const sequence_state::duplicate& duplicate : state.duplicates) {
            ++held_[index_of(duplicate.page)];
            if (duplicate.entry >= state.published_pages || duplicate.page == state.table[duplicate.entry].page ||
                !agree({.page = duplicate.page, .count = static_cast<std::uint32_t>(page_tokens_)}, state,
                       duplicate.entry * page_tokens_))
                return broken("has a duplicate of a page that is not one");
        }
        for (const page_id page : state.pinned_sources)
            ++held_[index_of(page)];
        if (state.lease.has_copied_tail(state.table))
            ++held_[index_of(state.lease.tail_before->page)];
        if (rows != state.tokens.size() + state.lease.rows)
            return broken(
                detail::joined({"has ", std::to_string(rows), " rows for ", std::to_string(state.tokens.size()),
                                " tokens and ", std::to_string(state.lease.rows), " reserved ones"}));
        return {};
    }

private:
    // Whether the sequence and the index agree about the tokens of a page's rows, where both know them.
    [[nodiscard]] bool agree(const page_entry& entry, const sequence_state& state, std::size_t rows) const {
        if (rows >= state.tokens.size())
            return true;
        const auto run = index_.run(entry.page);
        const auto known = run.subspan(std::min<std::size_t>(entry.first, run.size()));
        const auto own = std::span<const token_id>(state.tokens).subspan(rows);
        const std::size_t both = std::min<std::size_t>({known.size(), entry.count, own.size()});
        return std::equal(known.data(), known.data() + both, own.data());
    }

    [[nodiscard]] static error broken(const std::string& how) {
        return {error_code::malformed, "sequence", detail::joined({"a sequence ", how})};
    }

    const Index& index_;
    std::size_t page_tokens_;
    std::vector<std::uint32_t> held_;
};

namespace detail {

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
    std::size_t evictable = 0;
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
        evictable += held[i] == 0;
        if (held[i] == 0 && !pages.ranked(page))
            return broken_page(page, "is evictable and can never be evicted");
        if (pages.evictable(page) != (held[i] == 0 && pages.index().leaf(page)))
            return broken_page(page, "is noted as evictable and is not, or the reverse");
        if (pages.index().run(page).empty() || pages.index().run(page).size() > page_tokens)
            return broken_page(page, "has a run that is not of a page");
        if (!pages.index().leaf(page) && pages.index().run(page).size() != page_tokens)
            return broken_page(page, "has children and is not full");
        if (const auto parent = pages.index().parent(page);
            parent && (!pages.index().contains(*parent) || pages.index().leaf(*parent) ||
                       (held[i] > 0 && held[index_of(*parent)] == 0)))
            return broken_page(page, "has a parent that is gone, childless or not held with it");
    }
    if (evictable != pages.evictable())
        return error{error_code::malformed, "pages",
                     joined({std::to_string(evictable), " pages are evictable, the page manager counts ",
                             std::to_string(pages.evictable())})};
    return {};
}

} // namespace detail

}} // namespace kvcache
