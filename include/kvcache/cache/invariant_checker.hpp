// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Recomputes the reference count of every page from the sequences, and compares each sequence with the index.
template <index_state Index>
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
        for (const sequence_state::twin& twin : state.twins) {
            ++held_[index_of(twin.page)];
            if (twin.entry >= state.published_pages || twin.page == state.table[twin.entry].page ||
                !agree({.page = twin.page, .count = static_cast<std::uint32_t>(page_tokens_)}, state,
                       twin.entry * page_tokens_))
                return broken("has a twin of a page that is not one");
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

}} // namespace kvcache
