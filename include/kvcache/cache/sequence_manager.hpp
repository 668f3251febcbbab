// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/cache/invariants.hpp>
#include <kvcache/cache/opaque_leases.hpp>
#include <kvcache/cache/residual.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/observer/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What a reservation of rows takes.
struct row_demand {
    std::uint32_t used = 0;           ///< Rows of the sequence's last page that are in use.
    std::size_t in_tail = 0;          ///< Rows that go into it.
    bool copies = false;              ///< It is shared, so it is copied first.
    std::size_t fresh = 0;            ///< Pages after it.
    std::size_t max_batch_tokens = 0; ///< Rows that are written and attended at a time.
    std::size_t pages = 0;            ///< Pages in all, with those set aside for residual rows.
    bool whole = false;               ///< See reserve_options.
};

/// The blocks of layer groups that sequences use: cache/group_leases.hpp, which <kvcache/layer_groups.hpp> includes.
template <class PageManager>
class group_leases;

/// In place of group_leases, where all layers keep the same.
struct no_group_leases {
    template <class PageManager>
    no_group_leases(const PageManager&, std::size_t) {}
    static constexpr std::size_t kept(const sequence_state&, std::size_t tokens) noexcept { return tokens; }
};

/// The live sequences of a cache, in a circular list, and the references that they hold on pages. Pages are touched and
/// released tail first, so that a parent was always used more recently than its children.
template <class PageManager>
class sequence_manager {
public:
    /// Whether the codec encodes whole pages: only those are shared then, with the rows that stay in full precision.
    static constexpr bool quantized = PageManager::quantized;
    static constexpr bool grouped = PageManager::grouped;
    static constexpr bool opaque = PageManager::opaque;

    /// `window`: the rows that stay in full precision, if `quantized`. Requires: the page manager outlives it. It
    /// cannot be moved.
    sequence_manager(PageManager& pages, std::size_t page_tokens, residual_window window)
        : pages_(pages),
          page_tokens_(page_tokens),
          residual_(pages, page_tokens, window),
          groups_(pages, page_tokens),
          spare_(pages.pool().pages()) {
        ring_.previous = ring_.next = &ring_;
    }

    sequence_manager(const sequence_manager&) = delete;
    sequence_manager& operator=(const sequence_manager&) = delete;
    /// Sequences that are still alive can only be destroyed or assigned to afterwards.
    ~sequence_manager() {
        for (sequence_state* s = ring_.next; s != &ring_; s = s->next) {
            s->orphaned = true;
            s->lease.end();
        }
    }

    /// The number of live sequences.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    /// The state of a sequence without tokens and pages, with the memory of one that has ended. Throws: bad_alloc.
    [[nodiscard]] std::unique_ptr<sequence_state> fresh() {
        require(pages_.pool().pages() > 0, "a cache that was moved from is only destroyed");
        auto made = spare_.take(size_);
        if constexpr (grouped)
            groups_.prepare(*made);
        return made;
    }

    /// The exact rows that its sequences and leases have.
    [[nodiscard]] auto& residual() noexcept { return residual_; }
    [[nodiscard]] const auto& residual() const noexcept { return residual_; }

    /// The blocks of layer groups that its sequences and leases use.
    [[nodiscard]] auto& groups() noexcept { return groups_; }
    [[nodiscard]] const auto& groups() const noexcept { return groups_; }

    /// Adds a sequence, and references the pages of its table. With `touches`, this is a use of them.
    void add(sequence_state& state, bool touches = true) noexcept {
        for (const page_id page : state.pinned_sources)
            pages_.hold(page);
        for (const page_entry& entry : state.table)
            pages_.hold(entry.page);
        for (const sequence_state::duplicate& duplicate : state.duplicates)
            pages_.hold(duplicate.page);
        std::size_t left = state.duplicates.size();
        for (std::size_t entry = touches ? state.table.size() : 0; entry-- > 0;) {
            const bool has_duplicate = left > 0 && state.duplicates[left - 1].entry == entry;
            pages_.touch(has_duplicate ? state.duplicates[--left].page : state.table[entry].page);
        }
        state.previous = &ring_;
        state.next = std::exchange(ring_.next, &state);
        state.next->previous = &state;
        ++size_;
        if constexpr (grouped)
            groups_.begin(state);
    }

    /// Removes a sequence and releases its pages.
    void remove(std::unique_ptr<sequence_state> state) noexcept {
        undo(*state);
        drop_pages(*state, 0);
        forget_sources(*state);
        state->previous->next = state->next;
        state->next->previous = state->previous;
        --size_;
        spare_.keep(std::move(state));
    }

    /// Keeps the first `tokens` tokens. With layer groups: which every group can continue.
    void truncate(sequence_state& state, std::size_t tokens) noexcept {
        const std::size_t before = state.tokens.size();
        cut(state, tokens);
        if constexpr (grouped)
            if (tokens < before)
                groups_.begin_again(state);
    }

private:
    void cut(sequence_state& state, std::size_t tokens) noexcept {
        state.tokens.truncate(tokens);
        drop_pages(state, state.cut(tokens));
        if (!state.duplicates.empty() && state.duplicates.back().entry >= state.full_entries(page_tokens_))
            drop_duplicate(state); // its page is not full any more
        state.published_pages = std::min(state.published_pages, state.full_entries(page_tokens_));
        if (state.offloaded.pages > state.published_pages)
            state.offloaded.pages = 0; // pages after the cut get other names
        if (tokens <= state.exact && !state.lease.open) {
            state.exact = sequence_state::all; // all approximate rows are gone
            forget_sources(state);
        }
    }

public:
    /// Reserves rows after the tokens of a sequence, as its lease. Errors: out_of_memory, with the pages needed and
    /// available; nothing has changed then. Throws: bad_alloc, likewise. Requires: it has no lease.
    template <class Codec>
    [[nodiscard]] result<void> reserve(sequence_state& state, const Codec& codec, std::size_t rows,
                                       reserve_options options) {
        require(!state.lease.open, "a sequence has one lease at a time");
        const row_demand wanted = demand(state, rows, options);
        if (wanted.pages > pages_.available(state.tenant))
            return refuse(state, rows, wanted.pages, codec.page_bytes());
        if constexpr (grouped)
            if (auto room = groups_.check(state, wanted, state.tokens.size() + rows, codec.page_bytes()); !room) {
                pages_.emit({event_kind::refused, 0, rows, wanted.pages});
                return room;
            }
        state.reserve(wanted.fresh, rows, pages_.keeps_duplicates());
        if constexpr (row_writer<Codec> || page_writer<Codec>)
            state.lease.written.begin(rows, written_layers());
        state.lease.begin(rows, state.table, state.open_rows(page_tokens_).has_value());
        state.lease.whole = options.whole;
        detail::scope_guard undone([&] { undo(state); });
        if (!take(state, codec, wanted, rows) || !residual_.open(state, wanted.used, wanted.max_batch_tokens)) {
            undo(state);
            return refuse_storage(state, rows, wanted.pages, codec.page_bytes());
        }
        undone.dismiss();
        return {};
    }

    /// The number of leases that have ended whose rows were of a prompt.
    [[nodiscard]] std::uint64_t prompts_ended() const noexcept { return prompts_ended_; }

    /// The number of leading tokens of a prompt that will be known, in whole pages, once the open leases of a tenant
    /// are committed that compute prompts. Cost: O(sequences + such leases * tokens).
    [[nodiscard]] std::size_t pending(std::uint32_t tenant, std::span<const token_id> prompt) const noexcept {
        std::size_t most = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
            if (s->lease.open && s->tenant == tenant)
                most = std::max(most, s->pending(prompt));
        return most / page_tokens_ * page_tokens_;
    }

    /// What a reservation of `rows` rows would take now. Cost: O(1).
    [[nodiscard]] row_demand demand(const sequence_state& state, std::size_t rows, reserve_options options) const {
        row_demand made{.whole = options.whole};
        const auto open_rows = state.open_rows(page_tokens_);
        made.used = open_rows.value_or(static_cast<std::uint32_t>(page_tokens_));
        made.copies = // a blob is written anew, and the old one stays until then
            open_rows && rows > 0 && (opaque || !pages_.writable(state.table.back().page, made.used));
        made.in_tail = std::min<std::size_t>(rows, page_tokens_ - made.used);
        const std::size_t in_new = rows - made.in_tail;
        made.fresh = in_new / page_tokens_ + (in_new % page_tokens_ > 0 ? 1 : 0);
        made.max_batch_tokens = std::min(std::max<std::size_t>(options.max_batch_tokens, 1), rows);
        const std::size_t before = (state.tokens.size() + page_tokens_ - 1) / page_tokens_;
        const std::size_t exact = residual_.needed(made.copies, before, made.fresh, made.max_batch_tokens);
        made.pages = made.fresh + (made.copies ? 1 : 0) + pages_.residual().more_aside(exact);
        return made;
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
            pages_.emit({event_kind::copied, entry.count, 0, 1, pair});
            state.table.push_back({*own, entry.base, entry.first, entry.count});
        }
        return true;
    }

    /// Reports rows for which there are no pages. Returns the error.
    [[nodiscard]] error refuse(const sequence_state& state, std::size_t rows, std::size_t pages,
                               std::size_t page_bytes) {
        pages_.emit({event_kind::refused, 0, rows, pages});
        const tenant_usage& own = pages_.tenants().usage(state.tenant);
        const std::size_t had = pages_.available(state.tenant);
        const bool short_of_own = had < pages_.available();
        const bool over_quota = short_of_own && had == own.quota - std::min(own.quota, own.pages - own.evictable);
        const std::size_t all = over_quota ? own.quota : pages_.pool().pages();
        return {error_code::out_of_memory,
                over_quota     ? "quota"
                : short_of_own ? "share"
                               : "pages",
                detail::joined({std::to_string(rows), " tokens need ", std::to_string(pages), " pages of ",
                                std::to_string(page_bytes), " bytes; ", std::to_string(had), " of ",
                                std::to_string(all), " can be had"})};
    }

    /// The same where there was room for them, and the storage refused. If it says why, that is the error.
    [[nodiscard]] error refuse_storage(const sequence_state& state, std::size_t rows, std::size_t pages,
                                       std::size_t page_bytes) {
        error full = refuse(state, rows, pages, page_bytes);
        if constexpr (requires { pages_.pool().storage().status(); })
            if (const result<void> stored = pages_.pool().storage().status(); !stored)
                return stored.error();
        return full;
    }

    /// Commits a lease: its first rows are these tokens, the others are released. If the codec encodes whole pages,
    /// rows of a page whose residual buffer was reused are released too. It cannot fail: all necessary memory was
    /// allocated with the lease.
    void commit(sequence_state& state, std::span<const token_id> tokens) {
        const double took = 1e-9 * static_cast<double>(monotonic_nanoseconds() - state.lease.began);
        if (state.lease.spliced.empty()) // otherwise some of the rows were not computed
            pages_.measure(state.tokens.size(), tokens.size(), took);
        commit_unmeasured(state, tokens);
    }

    /// The same for rows that were not computed here.
    void commit_unmeasured(sequence_state& state, std::span<const token_id> tokens) {
        state.tokens.append(tokens);
        if constexpr (grouped) {
            state.running.commit(tokens.size(), state.lease.rows);
            groups_.drop_snapshots(state, state.tokens.size());
            if (state.lease.whole) // before pages without blocks become those of others, which have some
                groups_.follow(state);
        }
        if (state.lease.has_copied_tail(state.table)) {
            if (tokens.empty())
                std::swap(state.lease.tail_before->page, state.table[state.lease.pages_before - 1].page);
            drop_tail(state.lease.tail_before->page);
        }
        const std::size_t kept = residual_.finalize(state);
        if constexpr (grouped)
            if (kept < state.tokens.size())
                state.running.forget();
        end_lease(state);
        cut(state, kept);
        publish(state);
        if constexpr (grouped) {
            if (!tokens.empty())
                groups_.end_snapshots(state, 0);
            groups_.follow(state);
        }
    }

    /// Rolls back an open lease: the sequence is as it was before.
    void undo(sequence_state& state) noexcept {
        if (!state.lease.open)
            return;
        if constexpr (grouped) {
            groups_.drop_snapshots(state, state.tokens.size());
            state.running.rollback();
        }
        drop_pages(state, state.lease.pages_before);
        if (state.lease.has_copied_tail(state.table))
            drop_tail(state.table.back().page);
        if (state.lease.tail_before)
            state.table.back() = *state.lease.tail_before;
        residual_.end(state.lease.ring);
        end_lease(state);
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
        if constexpr (grouped) {
            auto users = groups_.no_users();
            for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
                groups_.count(*s, users);
            if (auto sound = groups_.check(users); !sound)
                return sound;
        }
        if (!pages_.residual().add_up(leased))
            return error{error_code::malformed, "exact rows", "exact rows are kept that no page and no lease has"};
        return detail::check_pages(pages_, holders.held(), page_tokens_);
    }

    /// The first layer of the cache's pages, among the layers whose rows are written.
    [[nodiscard]] std::size_t first_layer() const noexcept {
        if constexpr (grouped)
            return pages_.blocks().first_layer(pages_.blocks().paged().value_or(0));
        else
            return 0;
    }

private:
    [[nodiscard]] std::size_t written_layers() const noexcept {
        if constexpr (grouped)
            return pages_.blocks().first_layer(pages_.blocks().layout().groups.size());
        else
            return pages_.shape().layers;
    }

    // Appends `rows` rows, in the last page and in new ones. If the last page is shared it is copied first. Returns
    // false if the storage refuses, with some pages appended. Requires: the table has capacity for them.
    template <class Codec>
    [[nodiscard]] bool take(sequence_state& state, const Codec& codec, const row_demand& wanted, std::size_t rows) {
        if (wanted.copies && !copy_tail(state, codec, wanted.used))
            return false;
        if (wanted.in_tail > 0)
            state.table.back().count += static_cast<std::uint32_t>(wanted.in_tail);
        for (std::size_t after = rows - wanted.in_tail; after > 0;) {
            const auto page = pages_.allocate(state.tenant);
            if (!page)
                return false;
            const std::size_t count = std::min<std::size_t>(after, page_tokens_);
            state.table.push_back({.page = *page, .count = static_cast<std::uint32_t>(count)});
            after -= count;
            if constexpr (opaque)
                codec.clear(pages_.pool().bytes(*page));
            if constexpr (grouped)
                if (!groups_.extend(state, *page))
                    return false;
        }
        return true;
    }

    template <class Codec>
    [[nodiscard]] bool copy_tail(sequence_state& state, const Codec& codec, std::size_t rows) {
        const auto own = pages_.allocate(state.tenant);
        if (!own)
            return false;
        const page_id shared = std::exchange(state.table.back().page, *own);
        if (!pages_.pool().copy(codec, shared, *own, rows))
            return false;
        if constexpr (opaque)
            codec.clear(pages_.pool().bytes(*own));
        if constexpr (grouped)
            if (!groups_.copy_tail(state, shared, *own, rows))
                return false;
        const page_id pair[] = {shared, *own};
        pages_.emit({event_kind::copied, rows, 0, 1, pair});
        return true;
    }
    // Drops a page that takes no more part in the last entry of a table.
    void drop_tail(page_id page) noexcept {
        if constexpr (grouped)
            groups_.leave_page(page);
        pages_.drop(page);
    }

    // Publishes the pages of a sequence that are not in the index yet. If the index has no memory left, later pages of
    // the sequence stay private, and a later match finds less.
    void publish(sequence_state& state) {
        if (state.tokens.size() >= state.prompt)
            state.prompt = 0;
        const std::size_t length = std::max(state.full_entries(page_tokens_), state.prompt / page_tokens_);
        for (std::size_t i = state.published_pages; state.publishable && i < state.table.size(); ++i) {
            page_entry& entry = state.table[i];
            if (quantized && entry.count < page_tokens_)
                break;
            if (i * page_tokens_ + entry.count > std::min(state.exact, state.cacheable)) // approximate: never published
                return;
            const auto run = std::span<const token_id>(state.tokens).subspan(i * page_tokens_, entry.count);
            const auto parent = i > 0 ? std::optional(state.indexed(i - 1)) : pages_.index().root_of(state.tenant);
            page_id known = entry.page;
            std::uint64_t groups = 0;
            if constexpr (grouped)
                groups = groups_.used(state, i);
            state.publishable = detail::completes<std::bad_alloc>(
                [&] { known = pages_.publish(parent, run, entry.page, length, groups); });
            if (known != entry.page && pages_.keeps_duplicates())
                state.duplicates.push_back({i, known});
            else if (const page_id before = std::exchange(entry.page, known); before != known)
                pages_.report_move({i, before, known});
            if (state.publishable && entry.count == page_tokens_)
                state.published_pages = i + 1;
        }
    }

    // Releases the pages after the first `kept` ones, last first.
    void drop_pages(sequence_state& state, std::size_t kept) noexcept {
        while (state.table.size() > kept) {
            if constexpr (grouped)
                groups_.leave_last(state);
            pages_.drop(state.table.back().page);
            state.table.pop_back();
            if (!state.duplicates.empty() && state.duplicates.back().entry == state.table.size())
                drop_duplicate(state);
        }
    }
    void end_lease(sequence_state& state) noexcept {
        prompts_ended_ += !state.lease.prompt.empty();
        state.lease.end();
    }
    void drop_duplicate(sequence_state& state) noexcept {
        pages_.drop(state.duplicates.back().page);
        state.duplicates.pop_back();
    }

    void forget_sources(sequence_state& state) noexcept {
        if constexpr (grouped)
            groups_.unpin(state);
        for (; !state.pinned_sources.empty(); state.pinned_sources.pop_back())
            pages_.drop(state.pinned_sources.back());
    }

    PageManager& pages_;
    std::size_t page_tokens_;
    std::conditional_t<quantized, residual_leases<PageManager>,
                       std::conditional_t<opaque, opaque_leases<PageManager>, no_residual_leases>>
        residual_;
    std::conditional_t<grouped, group_leases<PageManager>, no_group_leases> groups_;
    sequence_state ring_;
    std::size_t size_ = 0;
    std::uint64_t prompts_ended_ = 0;
    spare_sequences spare_;
};

}} // namespace kvcache
