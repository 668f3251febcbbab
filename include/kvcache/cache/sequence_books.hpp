// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/audit.hpp>
#include <kvcache/cache/exact_leases.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/cache/weaver.hpp>
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

/// The live sequences of a cache, on a ring, and what happens to their pages. Pages are touched and given back tail
/// first, so that a parent is always fresher than its children.
template <class PageBooks>
class sequence_books {
public:
    /// Requires: the pages' books outlive it. It does not move.
    sequence_books(PageBooks& pages, std::size_t page_tokens, std::optional<exact_pages> coded)
        : pages_(pages), page_tokens_(page_tokens), whole_(coded.has_value()), exact_(pages, page_tokens, coded) {
        ring_.previous = ring_.next = &ring_;
    }

    sequence_books(const sequence_books&) = delete;
    sequence_books& operator=(const sequence_books&) = delete;

    /// How many sequences live.
    [[nodiscard]] std::size_t size() const noexcept {
        std::size_t n = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
            ++n;
        return n;
    }

    /// The exact rows that its sequences and leases have.
    [[nodiscard]] exact_leases<PageBooks>& exact() noexcept { return exact_; }
    [[nodiscard]] const exact_leases<PageBooks>& exact() const noexcept { return exact_; }

    /// Enters a sequence, which from now on holds the pages of its table.
    void enter(sequence_state& state) noexcept {
        for (const page_id page : state.sources)
            pages_.hold(page);
        for (const page_entry& entry : state.table)
            pages_.hold(entry.page);
        for (auto entry = state.table.rbegin(); entry != state.table.rend(); ++entry)
            pages_.touch(entry->page);
        state.previous = &ring_;
        state.next = std::exchange(ring_.next, &state);
        state.next->previous = &state;
    }

    /// Takes a sequence out, and back what it holds.
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
        state.tokens.erase(state.tokens.begin() + static_cast<std::ptrdiff_t>(tokens), state.tokens.end());
        const std::size_t kept = state.cut(tokens);
        for (; state.table.size() > kept; state.table.pop_back())
            pages_.drop(state.table.back().page);
        state.sealed = std::min(state.sealed, state.full_entries(page_tokens_));
        if (state.stored > state.sealed)
            state.stored = 0; // what comes behind the cut has other names
        if (tokens <= state.exact && !state.has_lease) {
            state.exact = sequence_state::all; // what was approximate is gone
            forget_sources(state);
        }
    }

    /// Gives the table `in_tail` rows of the last page, copied if its first `copied` rows are not to be written over,
    /// and `behind` rows of new pages. False if the storage refuses.
    template <class Codec>
    [[nodiscard]] bool take_rows(sequence_state& state, const Codec& codec, std::size_t in_tail, std::size_t behind,
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
        while (behind > 0) {
            const auto page = pages_.allocate(state.tenant);
            if (!page)
                return false;
            const std::size_t count = std::min<std::size_t>(behind, page_tokens_);
            state.table.push_back({.page = *page, .count = static_cast<std::uint32_t>(count)});
            behind -= count;
        }
        return true;
    }

    /// Puts copies of rows behind a sequence: `entries` are where they lie, and what the copies' will be. False, and
    /// some are there, if the storage refuses. Requires: the table has room for them.
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

    /// Puts woven rows behind a sequence, as a lease, and holds what they were taken from. False, and nothing has
    /// changed, if the storage refuses. Throws: bad_alloc, likewise.
    [[nodiscard]] bool weave(sequence_state& state, weaver& woven, std::span<const page_id> sources) {
        std::vector<page_id> own;
        const std::size_t needed = woven.own_pages(page_tokens_);
        own.reserve(needed);
        const auto give_back = [&] {
            for (const page_id page : own)
                pages_.drop(page);
        };
        while (own.size() < needed) {
            const auto page = pages_.allocate(state.tenant);
            if (!page) {
                give_back();
                return false;
            }
            own.push_back(*page);
            pages_.pool().clear(*page);
        }
        detail::scope_guard undo([&] {
            state.sources.clear();
            give_back();
        });
        woven.take(own, page_tokens_);
        const std::vector<page_entry> table = woven.table();
        state.prepare(table.size(), woven.rows().size());
        state.sources.assign(sources.data(), sources.data() + sources.size());
        state.pages_before = state.table.size();
        state.table.insert(state.table.end(), table.begin(), table.end());
        undo.dismiss();
        for (const page_id page : state.sources)
            pages_.hold(page);
        for (std::size_t i = state.pages_before; i < state.table.size(); ++i)
            pages_.hold(state.table[i].page);
        give_back(); // the entries hold them now
        state.tail_before.reset();
        state.woven = std::move(woven.rows());
        state.leased = state.woven.size();
        state.exact = state.tokens.size();
        state.has_lease = true;
        return true;
    }

    /// Tells of rows that find no pages, and why.
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

    /// Makes tokens of a sequence known as a chunk. False if they lie in no known page, or the index has no memory.
    bool note(const sequence_state& state, std::size_t first, std::size_t count) {
        const std::size_t last = first + count - 1;
        bool known = false;
        return detail::completes<std::bad_alloc>([&] {
                   known = pages_.chunks().note(state.tenant, state.table[last / page_tokens_].page,
                                                static_cast<std::uint32_t>(last % page_tokens_ + 1), count);
               }) &&
               known;
    }

    /// Ends a lease: its first rows are these tokens, the others are given back. Of a codec of whole pages, rows of a
    /// page whose exact rows have made room for others are given back too. It cannot fail: all memory that it
    /// must have was taken with the lease.
    void commit(sequence_state& state, std::span<const token_id> tokens) {
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - state.leased_at;
        pages_.measure(state.tokens.size(), tokens.size(), took.count());
        commit_unmeasured(state, tokens);
    }

    /// As above, for rows that nobody computed.
    void commit_unmeasured(sequence_state& state, std::span<const token_id> tokens) {
        state.append(tokens);
        if (state.has_copied_tail()) {
            if (tokens.empty())
                std::swap(state.tail_before->page, state.table[state.pages_before - 1].page);
            pages_.drop(state.tail_before->page);
        }
        const std::size_t kept = exact_.settle(state);
        state.end_lease();
        truncate(state, kept);
        publish(state);
    }

    /// Takes a lease back, if there is one: the sequence is as it was before.
    void undo(sequence_state& state) noexcept {
        if (!state.has_lease)
            return;
        for (; state.table.size() > state.pages_before; state.table.pop_back())
            pages_.drop(state.table.back().page);
        if (state.has_copied_tail())
            pages_.drop(state.table.back().page);
        if (state.tail_before)
            state.table.back() = *state.tail_before;
        exact_.end(state.ring);
        state.end_lease();
        truncate(state, state.tokens.size());
    }

    /// Proves the books of sequences and pages.
    [[nodiscard]] result<void> check() const {
        audit holders(pages_.index(), page_tokens_, pages_.pool().pages());
        std::size_t leased = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next) {
            if (auto sound = holders.count(*s); !sound)
                return sound;
            leased += s->ring.places.size();
        }
        if (!pages_.exact().add_up(leased))
            return error{error_code::malformed, "exact rows", "exact rows are kept that no page and no lease has"};
        return pages_.check(holders.held());
    }

private:
    // Makes all pages of a sequence known that are not yet. Where the index has no memory left, the sequence keeps its
    // pages to itself from there on: a later match finds less.
    void publish(sequence_state& state) {
        if (state.tokens.size() >= state.prompt)
            state.prompt = 0;
        const std::size_t length = std::max(state.full_entries(page_tokens_), state.prompt / page_tokens_);
        for (std::size_t i = state.sealed; state.shares && i < state.table.size(); ++i) {
            page_entry& entry = state.table[i];
            if (whole_ && entry.count < page_tokens_)
                break;
            if (i * page_tokens_ + entry.count > std::min(state.exact, state.cacheable)) // approximate: never known
                return;
            const auto run = std::span<const token_id>(state.tokens).subspan(i * page_tokens_, entry.count);
            const auto parent = i > 0 ? std::optional(state.table[i - 1].page) : pages_.index().root_of(state.tenant);
            state.shares = detail::completes<std::bad_alloc>(
                [&] { entry.page = pages_.publish(parent, run, entry.page, length); });
            if (state.shares && entry.count == page_tokens_)
                state.sealed = i + 1;
        }
    }

    void forget_sources(sequence_state& state) noexcept {
        for (; !state.sources.empty(); state.sources.pop_back())
            pages_.drop(state.sources.back());
    }

    PageBooks& pages_;
    std::size_t page_tokens_;
    bool whole_; // whether the codec codes whole pages: only those are shared
    exact_leases<PageBooks> exact_;
    sequence_state ring_;
};

} // namespace kvcache
