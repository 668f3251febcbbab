// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/invariant_checker.hpp>
#include <kvcache/cache/page_check.hpp>
#include <kvcache/cache/residual_leases.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/observer/concept.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The live sequences of a cache, in a circular list, and the references that they hold on pages. Pages are touched and
/// released tail first, so that a parent was always used more recently than its children.
template <class PageManager>
class sequence_manager {
public:
    /// Requires: the page manager outlives it. It cannot be moved.
    sequence_manager(PageManager& pages, std::size_t page_tokens, std::optional<residual_window> quantized)
        : pages_(pages),
          page_tokens_(page_tokens),
          whole_(quantized.has_value()),
          residual_(pages, page_tokens, quantized) {
        ring_.previous = ring_.next = &ring_;
    }

    sequence_manager(const sequence_manager&) = delete;
    sequence_manager& operator=(const sequence_manager&) = delete;

    /// The number of live sequences.
    [[nodiscard]] std::size_t size() const noexcept {
        std::size_t n = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
            ++n;
        return n;
    }

    /// The exact rows that its sequences and leases have.
    [[nodiscard]] residual_leases<PageManager>& residual() noexcept { return residual_; }
    [[nodiscard]] const residual_leases<PageManager>& residual() const noexcept { return residual_; }

    /// Adds a sequence, and references the pages of its table.
    void enter(sequence_state& state) noexcept {
        for (const page_id page : state.pinned_sources)
            pages_.hold(page);
        for (const page_entry& entry : state.table)
            pages_.hold(entry.page);
        for (auto entry = state.table.rbegin(); entry != state.table.rend(); ++entry)
            pages_.touch(entry->page);
        state.previous = &ring_;
        state.next = std::exchange(ring_.next, &state);
        state.next->previous = &state;
    }

    /// Removes a sequence and releases its pages.
    void leave(sequence_state& state) noexcept {
        undo(state);
        for (; !state.table.empty(); state.table.pop_back())
            pages_.drop(state.table.back().page);
        forget_sources(state);
        state.previous->next = state.next;
        state.next->previous = state.previous;
    }

    /// Keeps the first `tokens` tokens.
    void truncate(sequence_state& state, std::size_t tokens) noexcept {
        state.tokens.truncate(tokens);
        const std::size_t kept = state.cut(tokens);
        for (; state.table.size() > kept; state.table.pop_back())
            pages_.drop(state.table.back().page);
        state.published_pages = std::min(state.published_pages, state.full_entries(page_tokens_));
        if (state.offloaded.pages > state.published_pages)
            state.offloaded.pages = 0; // pages after the cut get other names
        if (tokens <= state.exact && !state.lease.open) {
            state.exact = sequence_state::all; // all approximate rows are gone
            forget_sources(state);
        }
    }

    /// Appends `in_tail` rows in the last page and `after` rows in new pages. If `copied` is not zero, the last page
    /// is copied first, because its first `copied` rows are shared. Returns false if the storage refuses.
    template <class Codec>
    [[nodiscard]] bool take_rows(sequence_state& state, const Codec& codec, std::size_t in_tail, std::size_t after,
                                 std::size_t copied) {
        if (copied > 0) {
            const auto own = pages_.allocate(state.tenant);
            if (!own)
                return false;
            const page_id shared = std::exchange(state.table.back().page, *own);
            if (!pages_.pool().copy(codec, shared, *own, copied))
                return false;
            const page_id pair[] = {shared, *own};
            pages_.tell({event_kind::copied, copied, 0, 1, pair});
        }
        if (in_tail > 0)
            state.table.back().count += static_cast<std::uint32_t>(in_tail);
        while (after > 0) {
            const auto page = pages_.allocate(state.tenant);
            if (!page)
                return false;
            const std::size_t count = std::min<std::size_t>(after, page_tokens_);
            state.table.push_back({.page = *page, .count = static_cast<std::uint32_t>(count)});
            after -= count;
        }
        return true;
    }

    /// Appends copies of rows to a sequence. `entries` are the rows' current locations, and give the rows and RoPE
    /// offsets of the copies. Returns false if the storage refuses, with some rows appended. Requires: the table has
    /// spare capacity for them.
    template <class Codec>
    [[nodiscard]] bool copy_rows(sequence_state& state, const Codec& codec, std::span<const page_entry> entries) {
        for (const page_entry& entry : entries) {
            const auto own = pages_.allocate(state.tenant);
            if (!own)
                return false;
            pages_.pool().clear(*own);
            if (!pages_.pool().copy(codec, entry.page, *own, entry.first + entry.count)) {
                pages_.drop(*own);
                return false;
            }
            const page_id pair[] = {entry.page, *own};
            pages_.tell({event_kind::copied, entry.count, 0, 1, pair});
            state.table.push_back({*own, entry.base, entry.first, entry.count});
        }
        return true;
    }

    /// Reports rows for which there are no pages. Returns the error.
    [[nodiscard]] error refuse(const sequence_state& state, std::size_t rows, std::size_t pages,
                               std::size_t page_bytes) {
        pages_.tell({event_kind::refused, 0, rows, pages});
        const bool over_quota = pages_.room(state.tenant) < pages_.available();
        const std::size_t all = over_quota ? pages_.tenants().usage(state.tenant).quota : pages_.pool().pages();
        return {error_code::out_of_memory, over_quota ? "quota" : "pages",
                detail::joined({std::to_string(rows), " tokens need ", std::to_string(pages), " pages of ",
                                std::to_string(page_bytes), " bytes; ", std::to_string(pages_.room(state.tenant)),
                                " of ", std::to_string(all), " can be had"})};
    }

    /// Commits a lease: its first rows are these tokens, the others are released. If the codec encodes whole pages,
    /// rows of a page whose residual buffer was reused are released too. It cannot fail: all necessary memory was
    /// allocated with the lease.
    void commit(sequence_state& state, std::span<const token_id> tokens) {
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - state.lease.began;
        pages_.measure(state.tokens.size(), tokens.size(), took.count());
        commit_unmeasured(state, tokens);
    }

    /// The same for rows that were not computed here.
    void commit_unmeasured(sequence_state& state, std::span<const token_id> tokens) {
        state.tokens.append(tokens);
        if (state.lease.has_copied_tail(state.table)) {
            if (tokens.empty())
                std::swap(state.lease.tail_before->page, state.table[state.lease.pages_before - 1].page);
            pages_.drop(state.lease.tail_before->page);
        }
        const std::size_t kept = residual_.finalize(state);
        state.lease.end();
        truncate(state, kept);
        publish(state);
    }

    /// Rolls back an open lease: the sequence is as it was before.
    void undo(sequence_state& state) noexcept {
        if (!state.lease.open)
            return;
        for (; state.table.size() > state.lease.pages_before; state.table.pop_back())
            pages_.drop(state.table.back().page);
        if (state.lease.has_copied_tail(state.table))
            pages_.drop(state.table.back().page);
        if (state.lease.tail_before)
            state.table.back() = *state.lease.tail_before;
        residual_.end(state.lease.ring);
        state.lease.end();
        truncate(state, state.tokens.size());
    }

    /// Checks the consistency of sequences and pages.
    [[nodiscard]] result<void> check() const {
        invariant_checker holders(pages_.index(), page_tokens_, pages_.pool().pages());
        std::size_t leased = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next) {
            if (auto sound = holders.count(*s); !sound)
                return sound;
            leased += s->lease.ring.places.size();
        }
        if (!pages_.residual().add_up(leased))
            return error{error_code::malformed, "exact rows", "exact rows are kept that no page and no lease has"};
        return detail::check_pages(pages_, holders.held(), page_tokens_);
    }

private:
    // Publishes the pages of a sequence that are not in the index yet. If the index has no memory left, later pages of
    // the sequence stay private, and a later match finds less.
    void publish(sequence_state& state) {
        if (state.tokens.size() >= state.prompt)
            state.prompt = 0;
        const std::size_t length = std::max(state.full_entries(page_tokens_), state.prompt / page_tokens_);
        for (std::size_t i = state.published_pages; state.publishable && i < state.table.size(); ++i) {
            page_entry& entry = state.table[i];
            if (whole_ && entry.count < page_tokens_)
                break;
            if (i * page_tokens_ + entry.count > std::min(state.exact, state.cacheable)) // approximate: never published
                return;
            const auto run = std::span<const token_id>(state.tokens).subspan(i * page_tokens_, entry.count);
            const auto parent = i > 0 ? std::optional(state.table[i - 1].page) : pages_.index().root_of(state.tenant);
            state.publishable = detail::completes<std::bad_alloc>(
                [&] { entry.page = pages_.publish(parent, run, entry.page, length); });
            if (state.publishable && entry.count == page_tokens_)
                state.published_pages = i + 1;
        }
    }

    void forget_sources(sequence_state& state) noexcept {
        for (; !state.pinned_sources.empty(); state.pinned_sources.pop_back())
            pages_.drop(state.pinned_sources.back());
    }

    PageManager& pages_;
    std::size_t page_tokens_;
    bool whole_; // whether the codec codes whole pages: only those are shared
    residual_leases<PageManager> residual_;
    sequence_state ring_;
};

} // namespace kvcache
