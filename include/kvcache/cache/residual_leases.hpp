// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/residual_ring.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/exceptions.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What sequences and leases do with exact rows, where the codec codes whole pages: a sequence has those of its last
/// page while it is not full, of its first pages and of the pages before its end where the codec keeps those; a lease
/// has those of the pages it writes.
template <class PageManager>
class residual_leases {
public:
    /// `quantized`: what stays exact; none for a codec that writes row by row, and then nothing here does anything.
    residual_leases(PageManager& pages, std::size_t page_tokens, std::optional<residual_window> quantized)
        : pages_(pages), page_tokens_(page_tokens), quantized_(quantized) {}

    /// The number of a sequence's first `tokens` tokens that can be continued: up to the last token for which all
    /// residual rows that the next query reads are present.
    [[nodiscard]] std::size_t kept([[maybe_unused]] const sequence_state& state, std::size_t tokens) const noexcept {
        if constexpr (!PageManager::quantized)
            return tokens;
        else
            return kept_residual(state, tokens);
    }

    /// The number of residual pages that a lease allocates: for a copied last page, and for `fresh` new ones after
    /// `before`.
    [[nodiscard]] std::size_t needed(bool copies, std::size_t before, std::size_t fresh, std::size_t at_once) const {
        return PageManager::quantized ? (copies ? 1 : 0) + places(before, fresh, at_once) : 0;
    }

    /// Allocates the residual rows of a lease whose pages are already in the table. `used` is the number of rows in use
    /// in the last page before the lease. Returns false if there is no memory: allocated rows then belong to the lease
    /// and end with it.
    [[nodiscard]] bool open([[maybe_unused]] sequence_state& state, [[maybe_unused]] std::uint32_t used,
                            [[maybe_unused]] std::size_t at_once) {
        if constexpr (!PageManager::quantized)
            return true;
        else
            return open_residual(state, used, at_once);
    }

    /// The residual rows that a lease passes to a page when all its rows are committed; null if it passes none.
    [[nodiscard]] codec::residual_page* given([[maybe_unused]] const sequence_state& state,
                                              [[maybe_unused]] std::size_t entry) const noexcept {
        if constexpr (!PageManager::quantized)
            return nullptr;
        else
            return given_residual(state, entry);
    }

    /// Passes to the pages the residual rows that they keep, and frees the others. Returns the number of tokens that
    /// remain.
    [[nodiscard]] std::size_t finalize(sequence_state& state) noexcept {
        if constexpr (!PageManager::quantized)
            return state.tokens.size();
        else
            return finalize_residual(state);
    }

    /// Frees the residual rows that belong to a lease and to no page.
    void end([[maybe_unused]] residual_ring& ring) noexcept {
        if constexpr (PageManager::quantized)
            end_residual(ring);
    }

private:
    [[nodiscard]] std::size_t kept_residual(const sequence_state& state, std::size_t tokens) const noexcept {
        if (tokens % page_tokens_ != 0 && !has(state, tokens / page_tokens_))
            tokens -= tokens % page_tokens_;
        while (tokens > 0) {
            const std::size_t page = tokens / page_tokens_;
            bool all = true;
            for (std::size_t i = page - std::min(page, quantized_->recent); i < page; ++i)
                all = all && has(state, i);
            if (all)
                break;
            tokens = (tokens - 1) / page_tokens_ * page_tokens_;
        }
        return tokens;
    }

    [[nodiscard]] bool open_residual(sequence_state& state, std::uint32_t used, std::size_t at_once) {
        const bool made = detail::completes<std::bad_alloc>([&] {
            if (state.lease.has_copied_tail(state.table)) {
                const page_id own = state.table[state.lease.pages_before - 1].page;
                pages_.residual().give(own, pages_.residual().make());
                pages_.residual().of(own)->take(*pages_.residual().of(state.lease.tail_before->page), used);
            }
            residual_ring& ring = state.lease.ring;
            const std::size_t fresh = state.table.size() - state.lease.pages_before;
            ring.first = state.lease.pages_before;
            ring.own = own_places(state.lease.pages_before, fresh);
            for (std::size_t n = places(state.lease.pages_before, fresh, at_once); n > 0; --n) {
                ring.places.emplace_back();
                ring.places.back() = pages_.residual().make();
                ring.places.back()->begin(0);
            }
            state.lease.residual.resize(state.table.size());
        });
        if (!made) {
            std::erase(state.lease.ring.places, nullptr);
            return false;
        }
        for (std::size_t i = 0; i < state.table.size(); ++i)
            state.lease.residual[i] =
                i < state.lease.pages_before ? pages_.residual().of(state.table[i].page) : state.lease.ring.at(i);
        if (state.lease.tail_before)
            state.lease.residual[state.lease.pages_before - 1]->begin(used);
        return pages_.keep_free(pages_.residual().aside());
    }

    [[nodiscard]] codec::residual_page* given_residual(const sequence_state& state, std::size_t entry) const noexcept {
        const std::size_t tokens = state.tokens.size() + state.lease.rows, last = tokens / page_tokens_;
        const bool gives = stays(entry, last) && (entry < last || tokens % page_tokens_ != 0) &&
                           state.lease.ring.keeps(entry, state.table.size());
        return gives ? state.lease.ring.at(entry) : nullptr;
    }

    [[nodiscard]] std::size_t finalize_residual(sequence_state& state) noexcept {
        const std::size_t entries = state.table.size(), tokens = state.tokens.size();
        const std::size_t last = tokens / page_tokens_; // the partial page, or the one that would come next
        const std::size_t before = std::min(state.lease.pages_before, entries);
        for (std::size_t i = before; i < entries && i <= last; ++i)
            if (stays(i, last) && (i < last || tokens % page_tokens_ != 0) && state.lease.ring.keeps(i, entries))
                pages_.residual().give(state.table[i].page, state.lease.ring.take(i));
        end(state.lease.ring);
        const std::size_t stay = kept(state, tokens);
        // Pages that left the residual window. A page that other sequences reference may be in theirs.
        const std::size_t first = before - std::min(before, quantized_->recent + 1);
        for (std::size_t i = first; i < before && i < stay / page_tokens_; ++i)
            if (!stays(i, stay / page_tokens_) && pages_.pool().holders(state.table[i].page) == 1)
                pages_.residual().drop(state.table[i].page);
        return stay;
    }

    void end_residual(residual_ring& ring) noexcept {
        for (auto& place : ring.places)
            pages_.residual().end(std::move(place));
        ring.places.clear();
    }

    [[nodiscard]] bool has(const sequence_state& state, std::size_t entry) const noexcept {
        return entry < state.table.size() && pages_.residual().of(state.table[entry].page) != nullptr;
    }

    // Whether page `i` keeps residual rows for a sequence that ends in page `last`.
    [[nodiscard]] bool stays(std::size_t i, std::size_t last) const noexcept { return quantized_->covers(i, last); }

    [[nodiscard]] std::size_t own_places(std::size_t before, std::size_t fresh) const noexcept {
        return std::min(fresh, quantized_->first - std::min(quantized_->first, before));
    }
    [[nodiscard]] std::size_t places(std::size_t before, std::size_t fresh, std::size_t at_once) const noexcept {
        return residual_ring::places_for(fresh, own_places(before, fresh), at_once, page_tokens_, quantized_->recent);
    }

    PageManager& pages_;
    std::size_t page_tokens_;
    std::optional<residual_window> quantized_;
};

}} // namespace kvcache
