// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/exact_ring.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/exceptions.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>

namespace kvcache::inline KVCACHE_ABI {

/// What sequences and leases do with exact rows, where the codec codes whole pages: a sequence has those of its last
/// page while it is not full, of its first pages and of the pages before its end where the codec keeps those; a lease
/// has those of the pages it writes.
template <class PageBooks>
class exact_leases {
public:
    /// `coded`: what stays exact; none for a codec that writes row by row, and then nothing here does anything.
    exact_leases(PageBooks& pages, std::size_t page_tokens, std::optional<exact_pages> coded)
        : pages_(pages), page_tokens_(page_tokens), coded_(coded) {}

    /// How many of a sequence's first `tokens` tokens can be continued: to the last token before which all is there
    /// that the next query reads exactly.
    [[nodiscard]] std::size_t kept([[maybe_unused]] const sequence_state& state, std::size_t tokens) const noexcept {
        if constexpr (!PageBooks::coded)
            return tokens;
        else
            return kept_exactly(state, tokens);
    }

    /// Exact pages that a lease makes: for a copied last page, and for `fresh` new ones behind `before`.
    [[nodiscard]] std::size_t needed(bool copies, std::size_t before, std::size_t fresh, std::size_t at_once) const {
        return PageBooks::coded ? (copies ? 1 : 0) + places(before, fresh, at_once) : 0;
    }

    /// Makes the exact rows of a lease whose pages the table has already. `used` rows of the last page before are in
    /// use, or all. False if there is no memory: what was made is the lease's, and ends with it.
    [[nodiscard]] bool open([[maybe_unused]] sequence_state& state, [[maybe_unused]] std::uint32_t used,
                            [[maybe_unused]] std::size_t at_once) {
        if constexpr (!PageBooks::coded)
            return true;
        else
            return open_exactly(state, used, at_once);
    }

    /// The exact rows that a lease gives a page of its own when all its rows are committed; null if it gives none.
    [[nodiscard]] exact_page* given([[maybe_unused]] const sequence_state& state,
                                    [[maybe_unused]] std::size_t entry) const noexcept {
        if constexpr (!PageBooks::coded)
            return nullptr;
        else
            return given_exactly(state, entry);
    }

    /// Gives the pages what they keep of a lease's exact rows, and ends the others. Returns how many of the tokens
    /// stay.
    [[nodiscard]] std::size_t settle(sequence_state& state) noexcept {
        if constexpr (!PageBooks::coded)
            return state.tokens.size();
        else
            return settle_exactly(state);
    }

    /// Ends the exact rows that a lease has and no page.
    void end([[maybe_unused]] exact_ring& ring) noexcept {
        if constexpr (PageBooks::coded)
            end_exactly(ring);
    }

private:
    [[nodiscard]] std::size_t kept_exactly(const sequence_state& state, std::size_t tokens) const noexcept {
        if (tokens % page_tokens_ != 0 && !has(state, tokens / page_tokens_))
            tokens -= tokens % page_tokens_;
        while (tokens > 0) {
            const std::size_t page = tokens / page_tokens_;
            bool all = true;
            for (std::size_t i = page - std::min(page, coded_->recent); i < page; ++i)
                all = all && has(state, i);
            if (all)
                break;
            tokens = (tokens - 1) / page_tokens_ * page_tokens_;
        }
        return tokens;
    }

    [[nodiscard]] bool open_exactly(sequence_state& state, std::uint32_t used, std::size_t at_once) {
        const bool made = detail::completes<std::bad_alloc>([&] {
            if (state.has_copied_tail()) {
                const page_id own = state.table[state.pages_before - 1].page;
                pages_.exact().give(own, pages_.exact().make());
                pages_.exact().of(own)->take(*pages_.exact().of(state.tail_before->page), used);
            }
            exact_ring& ring = state.ring;
            const std::size_t fresh = state.table.size() - state.pages_before;
            ring.first = state.pages_before;
            ring.own = own_places(state.pages_before, fresh);
            for (std::size_t n = places(state.pages_before, fresh, at_once); n > 0; --n) {
                ring.places.emplace_back();
                ring.places.back() = pages_.exact().make();
                ring.places.back()->begin(0);
            }
            state.exact_rows.resize(state.table.size());
        });
        if (!made) {
            std::erase(state.ring.places, nullptr);
            return false;
        }
        for (std::size_t i = 0; i < state.table.size(); ++i)
            state.exact_rows[i] = i < state.pages_before ? pages_.exact().of(state.table[i].page) : state.ring.at(i);
        if (state.tail_before)
            state.exact_rows[state.pages_before - 1]->begin(used);
        return pages_.keep_free(pages_.exact().aside());
    }

    [[nodiscard]] exact_page* given_exactly(const sequence_state& state, std::size_t entry) const noexcept {
        const std::size_t tokens = state.tokens.size() + state.leased, last = tokens / page_tokens_;
        const bool gives = stays(entry, last) && (entry < last || tokens % page_tokens_ != 0) &&
                           state.ring.keeps(entry, state.table.size());
        return gives ? state.ring.at(entry) : nullptr;
    }

    [[nodiscard]] std::size_t settle_exactly(sequence_state& state) noexcept {
        const std::size_t entries = state.table.size(), tokens = state.tokens.size();
        const std::size_t last = tokens / page_tokens_; // the page that is not full, or would be next
        const std::size_t before = std::min(state.pages_before, entries);
        for (std::size_t i = before; i < entries && i <= last; ++i)
            if (stays(i, last) && (i < last || tokens % page_tokens_ != 0) && state.ring.keeps(i, entries))
                pages_.exact().give(state.table[i].page, state.ring.take(i));
        end(state.ring);
        const std::size_t stay = kept(state, tokens);
        // Pages that the end has passed; where another sequence holds one, it may be the end of that.
        const std::size_t first = before - std::min(before, coded_->recent + 1);
        for (std::size_t i = first; i < before && i < stay / page_tokens_; ++i)
            if (!stays(i, stay / page_tokens_) && pages_.pool().holders(state.table[i].page) == 1)
                pages_.exact().drop(state.table[i].page);
        return stay;
    }

    void end_exactly(exact_ring& ring) noexcept {
        for (auto& place : ring.places)
            pages_.exact().end(std::move(place));
        ring.places.clear();
    }

    [[nodiscard]] bool has(const sequence_state& state, std::size_t entry) const noexcept {
        return entry < state.table.size() && pages_.exact().of(state.table[entry].page) != nullptr;
    }

    // Whether page `i` stays exact for a sequence that ends in page `last`.
    [[nodiscard]] bool stays(std::size_t i, std::size_t last) const noexcept { return coded_->covers(i, last); }

    [[nodiscard]] std::size_t own_places(std::size_t before, std::size_t fresh) const noexcept {
        return std::min(fresh, coded_->first - std::min(coded_->first, before));
    }
    [[nodiscard]] std::size_t places(std::size_t before, std::size_t fresh, std::size_t at_once) const noexcept {
        return exact_ring::places_for(fresh, own_places(before, fresh), at_once, page_tokens_, coded_->recent);
    }

    PageBooks& pages_;
    std::size_t page_tokens_;
    std::optional<exact_pages> coded_;
};

} // namespace kvcache
