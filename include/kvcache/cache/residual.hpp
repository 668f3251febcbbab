// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/shape.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The residual rows that a codec of whole pages keeps in addition to the pages: those of each page, and their total
/// size. They count toward the cache's limit: as many pages as they occupy are set aside.
class residual_pool {
public:
    /// Manages the residual rows of `pages` pages of `page_bytes` each.
    residual_pool(page_shape shape, std::size_t pages, std::size_t page_bytes)
        : shape_(shape), page_bytes_(page_bytes), of_page_(pages) {}

    /// Additional pages to set aside for `more` more residual pages.
    [[nodiscard]] std::size_t more_aside(std::size_t more) const noexcept { return weight(alive_ + more) - aside(); }
    /// Pages set aside for the residual rows.
    [[nodiscard]] std::size_t aside() const noexcept { return weight(alive_); }
    [[nodiscard]] std::size_t alive() const noexcept { return alive_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return alive_ * codec::residual_page::bytes_for(shape_); }

    /// The residual rows of a page; null if it has none.
    [[nodiscard]] codec::residual_page* of(page_id page) const noexcept { return of_page_[index_of(page)].get(); }

    /// Throws: bad_alloc.
    [[nodiscard]] std::shared_ptr<codec::residual_page> make() {
        auto made = std::make_shared<codec::residual_page>(shape_);
        ++alive_;
        return made;
    }
    /// Frees residual rows that were given to no page.
    void end(const std::shared_ptr<codec::residual_page>& rows) noexcept { alive_ -= rows != nullptr; }

    void give(page_id page, std::shared_ptr<codec::residual_page> rows) noexcept {
        end(std::exchange(of_page_[index_of(page)], std::move(rows)));
    }
    /// Frees the residual rows of a page, if it has any.
    void drop(page_id page) noexcept { give(page, nullptr); }
    /// Moves the rows of one page to another that holds the same tokens and has no residual rows.
    void pass_on(page_id from, page_id to) noexcept {
        if (of(from) != nullptr && of(to) == nullptr)
            of_page_[index_of(to)] = std::move(of_page_[index_of(from)]);
    }

    /// Returns whether the residual rows of pages and `leased` others account for all that exist.
    [[nodiscard]] bool add_up(std::size_t leased) const noexcept {
        for (const auto& rows : of_page_)
            leased += rows != nullptr;
        return leased == alive_;
    }

private:
    [[nodiscard]] std::size_t weight(std::size_t exact) const noexcept {
        return (exact * codec::residual_page::bytes_for(shape_) + page_bytes_ - 1) / page_bytes_;
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::vector<std::shared_ptr<codec::residual_page>> of_page_;
    std::size_t alive_ = 0;
};

/// The full-precision rows of sequences and leases, where the codec encodes whole pages. A sequence has rows for its
/// last page while that is not full, and for the first and the last pages that the codec keeps. A lease has rows for
/// the pages that it writes.
template <class PageManager>
class residual_leases {
public:
    /// `window`: what stays in full precision.
    residual_leases(PageManager& pages, std::size_t page_tokens, residual_window window)
        : pages_(pages), page_tokens_(page_tokens), window_(window) {}

    /// The number of the first `tokens` tokens in these pages, page-table entries or page_ids, that can be continued:
    /// up to the last token for which all residual rows that the next query reads are present.
    template <class Pages>
    [[nodiscard]] std::size_t kept(const Pages& pages, std::size_t tokens) const noexcept {
        if (tokens % page_tokens_ != 0 && !has(pages, tokens / page_tokens_))
            tokens -= tokens % page_tokens_;
        while (tokens > 0) {
            const std::size_t page = tokens / page_tokens_;
            bool all = true;
            for (std::size_t i = page - std::min(page, window_.recent); i < page; ++i)
                all = all && has(pages, i);
            if (all)
                break;
            tokens = (tokens - 1) / page_tokens_ * page_tokens_;
        }
        return tokens;
    }

    /// The same of a sequence, whose rows may lie in pages of others: what is kept from elsewhere is read quantized,
    /// and cannot be continued inside a page.
    [[nodiscard]] std::size_t kept(const sequence_state& state, std::size_t tokens) const noexcept {
        while (tokens > state.exact && !goes_on(state, tokens))
            tokens = std::max((tokens - 1) / page_tokens_ * page_tokens_, state.exact);
        return tokens > state.exact ? tokens : kept(state.table, tokens);
    }

    /// The number of residual pages that a lease allocates: for a copied last page, and for `fresh` new ones after
    /// the first `before` pages' worth of tokens.
    [[nodiscard]] std::size_t needed(bool copies, std::size_t before, std::size_t fresh,
                                     std::size_t max_batch_tokens) const {
        return (copies ? 1 : 0) + places(before, fresh, max_batch_tokens);
    }

    /// Allocates the residual rows of a lease whose pages are already in the table. `used` is the number of rows in use
    /// in the last page before the lease. Returns false if there is no memory: allocated rows then belong to the lease
    /// and end with it.
    [[nodiscard]] bool open(sequence_state& state, std::uint32_t used, std::size_t max_batch_tokens) {
        const bool made = detail::completes<std::bad_alloc>([&] {
            if (state.lease.has_copied_tail(state.table)) {
                const page_id own = state.table[state.lease.pages_before - 1].page;
                pages_.residual().give(own, pages_.residual().make());
                pages_.residual().of(own)->take(*pages_.residual().of(state.lease.tail_before->page), used);
            }
            residual_ring& ring = state.lease.ring;
            const std::size_t fresh = state.table.size() - state.lease.pages_before;
            const std::size_t before = (state.tokens.size() + page_tokens_ - 1) / page_tokens_;
            ring.first = state.lease.pages_before;
            ring.own = own_places(before, fresh);
            for (std::size_t n = places(before, fresh, max_batch_tokens); n > 0; --n) {
                ring.places.emplace_back();
                ring.places.back() = pages_.residual().make();
                ring.places.back()->begin(0);
            }
            show(state);
        });
        if (!made) {
            std::erase(state.lease.ring.places, nullptr);
            return false;
        }
        for (std::size_t i = state.lease.pages_before; i < state.table.size(); ++i)
            state.lease.residual[i] = state.lease.ring.at(i);
        if (state.lease.tail_before)
            state.lease.residual[state.lease.pages_before - 1]->begin(used);
        return pages_.keep_free(pages_.residual().aside());
    }

    /// The same for a spliced lease. Each page that it writes has residual rows of its own from the start, in which the
    /// rows that are kept from elsewhere are zero. Returns false if there is no memory; the caller undoes the lease.
    /// Requires: the lease begins at a page boundary.
    [[nodiscard]] bool open_spliced(sequence_state& state) {
        const std::size_t first = state.tokens.size();
        expects(first % page_tokens_ == 0, "rows of codecs of whole pages are spliced at a page boundary");
        return detail::completes<std::bad_alloc>([&] {
                   for_each_entry(state, state.lease.pages_before, [&](std::size_t i, std::size_t block) {
                       const page_id page = state.table[i].page;
                       if (pages_.residual().of(page) != nullptr || !own(state, i, block))
                           return;
                       pages_.residual().give(page, pages_.residual().make());
                       std::uint32_t elsewhere = 0;
                       for (std::size_t row = block * page_tokens_ - first;
                            row < std::min((block + 1) * page_tokens_ - first, state.lease.rows); ++row)
                           elsewhere += state.lease.spliced[row].kept ? 1 : 0;
                       pages_.residual().of(page)->begin(elsewhere);
                   });
                   show(state);
               }) &&
               pages_.keep_free(pages_.residual().aside());
    }

    /// The residual rows that a lease passes to a page when all its rows are committed; null if it passes none.
    [[nodiscard]] codec::residual_page* given(const sequence_state& state, std::size_t entry) const noexcept {
        const std::size_t tokens = state.tokens.size() + state.lease.rows, last = tokens / page_tokens_;
        const bool gives = window_.covers(entry, last) && (entry < last || tokens % page_tokens_ != 0) &&
                           state.lease.ring.keeps(entry, state.table.size());
        return gives ? state.lease.ring.at(entry) : nullptr;
    }

    /// Passes to the pages the residual rows that they keep, and frees the others. Returns the number of tokens that
    /// remain.
    [[nodiscard]] std::size_t finalize(sequence_state& state) noexcept {
        const std::size_t entries = state.table.size(), tokens = state.tokens.size();
        const std::size_t last = tokens / page_tokens_; // the partial page, or the one that would come next
        const bool spliced = !state.lease.spliced.empty();
        const std::size_t before = std::min(state.lease.pages_before, entries);
        if (!spliced)
            for_each_entry(state, before, [&](std::size_t i, std::size_t block) {
                if (window_.covers(block, last) && (block < last || tokens % page_tokens_ != 0) &&
                    state.lease.ring.keeps(i, entries))
                    pages_.residual().give(state.table[i].page, state.lease.ring.take(i));
            });
        end(state.lease.ring);
        const std::size_t stay = kept(state, tokens);
        // Pages that left the residual window. A page that other sequences reference may be in theirs.
        const std::size_t left = state.exact == sequence_state::all ? before - std::min(before, window_.recent + 1) : 0;
        for_each_entry(state, left, [&](std::size_t i, std::size_t block) {
            const page_id page = state.table[i].page;
            if ((spliced || i < before) && block < stay / page_tokens_ && !window_.covers(block, stay / page_tokens_) &&
                pages_.residual().of(page) != nullptr && pages_.pool().holders(page) == 1 && own(state, i, block))
                pages_.residual().drop(page);
        });
        return stay;
    }

    /// Frees the residual rows that belong to a lease and to no page.
    void end(residual_ring& ring) noexcept {
        for (auto& place : ring.places)
            pages_.residual().end(std::move(place));
        ring.places.clear();
    }

private:
    // Calls f(entry, page of the sequence in which its first row is) for the entries from `from` on.
    template <class F>
    void for_each_entry(const sequence_state& state, std::size_t from, const F& f) const {
        std::size_t row = state.exact == sequence_state::all ? from * page_tokens_ : 0;
        for (std::size_t i = 0; state.exact != sequence_state::all && i < from; ++i)
            row += state.table[i].count;
        for (std::size_t i = from; i < state.table.size(); row += state.table[i++].count)
            f(i, row / page_tokens_);
    }

    // Whether a sequence has computed the rows of an entry itself, or shares them as a prefix.
    [[nodiscard]] bool own(const sequence_state& state, std::size_t entry, std::size_t block) const noexcept {
        return block * page_tokens_ < state.exact ||
               ranges::find(state.pinned_sources, state.table[entry].page) == state.pinned_sources.end();
    }

    // Whether all residual rows are there that the query of the next token reads, of those that the sequence computed.
    [[nodiscard]] bool goes_on(const sequence_state& state, std::size_t tokens) const noexcept {
        const std::size_t page = tokens / page_tokens_;
        bool all = true;
        std::size_t row = 0;
        for (std::size_t i = 0; i < state.table.size() && row < tokens; row += state.table[i++].count) {
            const std::size_t block = row / page_tokens_;
            const bool last = row + state.table[i].count >= tokens && tokens % page_tokens_ != 0;
            if (!last && (block == page || block + window_.recent < page))
                continue;
            const bool computed = own(state, i, block);
            all = all && (computed ? has(state.table, i) : !last);
        }
        return all;
    }

    // Sets the residual rows that the queries of a lease may read, by entry.
    void show(sequence_state& state) const {
        state.lease.residual.assign(state.table.size(), nullptr);
        for_each_entry(state, 0, [&](std::size_t i, std::size_t block) {
            codec::residual_page* const rows = pages_.residual().of(state.table[i].page);
            state.lease.residual[i] = rows != nullptr && own(state, i, block) ? rows : nullptr;
        });
    }

    template <class Pages>
    [[nodiscard]] bool has(const Pages& pages, std::size_t i) const noexcept {
        return i < pages.size() && pages_.residual().of(page_of(pages[i])) != nullptr;
    }
    [[nodiscard]] static page_id page_of(page_id page) noexcept { return page; }
    [[nodiscard]] static page_id page_of(const page_entry& entry) noexcept { return entry.page; }

    [[nodiscard]] std::size_t own_places(std::size_t before, std::size_t fresh) const noexcept {
        return std::min(fresh, window_.first - std::min(window_.first, before));
    }
    [[nodiscard]] std::size_t places(std::size_t before, std::size_t fresh,
                                     std::size_t max_batch_tokens) const noexcept {
        return residual_ring::places_for(fresh, own_places(before, fresh), max_batch_tokens, page_tokens_,
                                         window_.recent);
    }

    PageManager& pages_;
    std::size_t page_tokens_;
    residual_window window_;
};

}} // namespace kvcache
