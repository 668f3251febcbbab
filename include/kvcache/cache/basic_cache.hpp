// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/lease.hpp>
#include <kvcache/cache/match.hpp>
#include <kvcache/cache/page_books.hpp>
#include <kvcache/cache/sequence.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace kvcache {

/// How full a cache is.
struct cache_stats {
    std::size_t pages = 0;      ///< That fit the budget.
    std::size_t free = 0;       ///< Never used, or given back.
    std::size_t held = 0;       ///< Held by live sequences, each counted once however many share it.
    std::size_t idle = 0;       ///< Held by nobody, kept for the next match until room is needed.
    std::size_t page_bytes = 0; ///< Bytes of a page.
    std::size_t sequences = 0;  ///< Live sequences and matches.
};

/// A KV cache: keys and values of past tokens, found by prefix, kept in coded pages, shared and copied on write.
/// Requires: it outlives its sequences, matches and leases. It does not move.
template <codec_policy Codec, storage_policy Storage, hash_policy Hash, index_policy Index, eviction_policy Eviction,
          recompute_policy Recompute, observer_policy Observer, locking_policy Locking>
class basic_cache {
public:
    using codec_type = decltype(std::declval<const Codec&>().open(page_shape{}));
    using storage_type = decltype(std::declval<const Storage&>().open(0, 0));
    using sequence = basic_sequence<basic_cache>;
    using match_type = basic_match<basic_cache>;
    using lease = basic_lease<basic_cache>;

    basic_cache(identity id, page_shape shape, budget limit, Codec codec, Storage storage, Hash hash, Index index,
                Eviction eviction, Recompute recompute, Observer observer)
        : shape_(shape),
          codec_(codec.open(shape)),
          identity_(complete(std::move(id))),
          books_(shape, pages_in(limit), codec_.page_bytes(), identity_, storage, hash, index, eviction, observer),
          recompute_(recompute.open(shape)) {
        expects(shape.valid(), "a page shape has no zero extent, and tokens is a multiple of 16");
        ring_.previous = ring_.next = &ring_;
    }

    basic_cache(const basic_cache&) = delete;
    basic_cache& operator=(const basic_cache&) = delete;

    /// The longest known run of `tokens`, pinned. Cost: O(tokens).
    [[nodiscard]] match_type match(std::span<const token_id> tokens) {
        const std::lock_guard guard(lock_);
        const index_match found = books_.index().match(tokens);
        auto known = std::make_unique<sequence_state>();
        known->tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(found.tokens));
        std::size_t left = found.tokens;
        for (const page_id page : found.pages) {
            const std::size_t rows = std::min<std::size_t>(left, shape_.tokens);
            known->table.push_back({.page = page, .count = static_cast<std::uint32_t>(rows)});
            left -= rows;
        }
        hold_all(*known);
        books_.observer().on({event_kind::matched, found.tokens, tokens.size(), found.pages.size()});
        return {adopt(std::move(known)), tokens.size(), found};
    }

    /// Which of the matched prompt's tokens run.
    [[nodiscard]] rerun plan(const match_type& found) const {
        const std::size_t first = recompute_.first_rerun(found.tokens(), found.of());
        return {first, found.of() - first};
    }

    /// An empty sequence.
    [[nodiscard]] sequence open() {
        const std::lock_guard guard(lock_);
        return adopt(std::make_unique<sequence_state>());
    }

    /// A sequence of the reused tokens of a match.
    [[nodiscard]] sequence open(match_type found, const rerun& plan) {
        found.known_.truncate(plan.first);
        return std::move(found.known_);
    }

    /// Room for `rows` rows behind a sequence. Evicts idle pages where none is free.
    /// Errors: out_of_memory, with the pages needed and had; the sequence and all that others hold is as before.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows) {
        const std::lock_guard guard(lock_);
        sequence_state& state = *to.state_;
        expects(state.leased == 0, "a sequence has one lease at a time");
        const bool open_tail =
            !state.table.empty() && state.table.back().first + state.table.back().count < shape_.tokens;
        const std::uint32_t used = open_tail ? state.table.back().first + state.table.back().count : shape_.tokens;
        const bool copies = open_tail && rows > 0 && !books_.writable(state.table.back().page, used);
        const std::size_t in_tail = std::min<std::size_t>(rows, shape_.tokens - used);
        const std::size_t fresh = (rows - in_tail + shape_.tokens - 1) / shape_.tokens;
        if (fresh + (copies ? 1 : 0) > books_.available())
            return refuse(rows, fresh + (copies ? 1 : 0));

        state.table.reserve(state.table.size() + fresh);
        state.pages_before = state.table.size();
        state.tail_before = open_tail ? std::optional(state.table.back()) : std::nullopt;
        state.leased = rows;
        bool enough = true;
        if (copies) {
            const auto copy = books_.copy(state.table.back().page, used);
            enough = copy.has_value();
            if (copy)
                state.table.back().page = *copy;
        }
        if (open_tail && enough)
            state.table.back().count += static_cast<std::uint32_t>(in_tail);
        for (std::size_t left = rows - in_tail; enough && left > 0;) {
            const auto page = books_.allocate();
            enough = page.has_value();
            const std::size_t count = std::min<std::size_t>(left, shape_.tokens);
            if (page)
                state.table.push_back({.page = *page, .count = static_cast<std::uint32_t>(count)});
            left -= count;
        }
        if (!enough) {
            undo(state);
            return refuse(rows, fresh + (copies ? 1 : 0));
        }
        return lease(*this, state);
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }
    [[nodiscard]] const identity& id() const noexcept { return identity_; }
    [[nodiscard]] const codec_type& codec() const noexcept { return codec_; }
    [[nodiscard]] const storage_type& storage() const noexcept { return books_.pool().storage(); }
    [[nodiscard]] const auto& observer() const noexcept { return books_.observer(); }

    [[nodiscard]] cache_stats stats() {
        const std::lock_guard guard(lock_);
        const auto& pool = books_.pool();
        const std::size_t free = pool.free().size(), idle = books_.idle();
        std::size_t sequences = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
            ++sequences;
        return {pool.pages(), free, pool.pages() - free - idle, idle, codec_.page_bytes(), sequences};
    }

    /// A paragraph for people: shape, policies, how full.
    [[nodiscard]] std::string describe() {
        const cache_stats now = stats();
        const auto number = [](std::size_t n) { return std::to_string(n); };
        return "kvcache: " + number(shape_.layers) + " layers, " + number(shape_.kv_heads) + " KV heads of " +
               number(shape_.head_dim) + ", pages of " + number(shape_.tokens) + " tokens and " +
               number(now.page_bytes) + " bytes (" + codec_.name() + "); " + number(now.pages) +
               " pages: " + number(now.held) + " held by " + number(now.sequences) + " sequences, " + number(now.idle) +
               " idle, " + number(now.free) + " free; identity " + to_string(digest_of(identity_));
    }

    /// Proves the books: every page is free, held or idle, every holder is counted, every run is what its holders say.
    /// Cost: O(pages + tokens). For tests and for suspicion.
    [[nodiscard]] result<void> check() {
        const std::lock_guard guard(lock_);
        std::vector<std::uint32_t> held(books_.pool().pages(), 0);
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
            if (auto sound = count_holders(*s, held); !sound)
                return sound;
        return books_.check(held);
    }

    // For sequences and leases.

    void release(sequence_state& state) noexcept {
        const std::lock_guard guard(lock_);
        if (state.leased > 0)
            undo(state);
        for (auto entry = state.table.rbegin(); entry != state.table.rend(); ++entry)
            books_.drop(entry->page);
        state.previous->next = state.next;
        state.next->previous = state.previous;
    }

    [[nodiscard]] sequence fork(const sequence_state& from, std::size_t tokens) {
        expects(tokens <= from.tokens.size() && from.leased == 0, "a fork lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        auto copy = std::make_unique<sequence_state>();
        copy->tokens.assign(from.tokens.begin(), from.tokens.begin() + static_cast<std::ptrdiff_t>(tokens));
        copy->table = from.table;
        copy->table.resize(cut(copy->table, tokens));
        copy->sealed = std::min(from.sealed, full_entries(*copy));
        hold_all(*copy);
        return adopt(std::move(copy));
    }

    void truncate(sequence_state& state, std::size_t tokens) {
        expects(tokens <= state.tokens.size() && state.leased == 0,
                "a truncation lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        state.tokens.resize(tokens);
        shorten(state);
        state.sealed = std::min(state.sealed, full_entries(state));
    }

    void commit(sequence_state& state, std::span<const token_id> tokens) {
        const std::lock_guard guard(lock_);
        state.tokens.insert(state.tokens.end(), tokens.begin(), tokens.end());
        if (state.tail_before && state.tail_before->page != state.table[state.pages_before - 1].page) {
            if (tokens.empty())
                std::swap(state.tail_before->page, state.table[state.pages_before - 1].page);
            books_.drop(state.tail_before->page);
        }
        shorten(state);
        state.leased = 0;
        state.tail_before.reset();
        publish(state);
        books_.observer().on({event_kind::stored, tokens.size(), 0, 0});
    }

    void rollback(sequence_state& state) noexcept {
        const std::lock_guard guard(lock_);
        undo(state);
    }

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return books_.pool().bytes(page); }

private:
    using books =
        page_books<storage_type, decltype(std::declval<const Hash&>().open(identity{})),
                   decltype(std::declval<const Index&>().open(page_shape{}, 0)),
                   decltype(std::declval<const Eviction&>().open(0)), decltype(std::declval<const Observer&>().open())>;

    [[nodiscard]] std::size_t pages_in(budget limit) const {
        return std::min<std::size_t>(limit.bytes / codec_.page_bytes(), std::size_t{1} << 31);
    }

    [[nodiscard]] identity complete(identity id) const {
        id.codec = codec_.name();
        id.layout = "key tiles of 16, value rows";
        id.page_tokens = shape_.tokens;
        return id;
    }

    [[nodiscard]] sequence adopt(std::unique_ptr<sequence_state> state) {
        state->previous = &ring_;
        state->next = ring_.next;
        ring_.next->previous = state.get();
        ring_.next = state.get();
        return {*this, std::move(state)};
    }

    void hold_all(const sequence_state& state) {
        for (const page_entry& entry : state.table)
            books_.hold(entry.page);
        for (auto entry = state.table.rbegin(); entry != state.table.rend(); ++entry) // parents are the fresher ones
            books_.touch(entry->page);
    }

    // Shortens the entries to `tokens` tokens; returns how many entries stay.
    [[nodiscard]] static std::size_t cut(std::vector<page_entry>& table, std::size_t tokens) {
        std::size_t kept = 0;
        for (; kept < table.size() && tokens > 0; ++kept) {
            table[kept].count = static_cast<std::uint32_t>(std::min<std::size_t>(table[kept].count, tokens));
            tokens -= table[kept].count;
        }
        return kept;
    }

    // Gives back the pages behind a sequence's tokens, tail first.
    void shorten(sequence_state& state) {
        const std::size_t kept = cut(state.table, state.tokens.size());
        for (; state.table.size() > kept; state.table.pop_back())
            books_.drop(state.table.back().page);
    }

    [[nodiscard]] std::size_t full_entries(const sequence_state& state) const {
        const bool whole = state.table.empty() || state.table.back().count == shape_.tokens;
        return state.table.size() - (whole ? 0 : 1);
    }

    // Makes all pages of a sequence known that are not yet.
    void publish(sequence_state& state) {
        for (std::size_t i = state.sealed; i < state.table.size(); ++i) {
            page_entry& entry = state.table[i];
            const auto run = std::span<const token_id>(state.tokens).subspan(i * shape_.tokens, entry.count);
            entry.page = books_.publish(i > 0 ? std::optional(state.table[i - 1].page) : std::nullopt, run, entry.page);
            if (entry.count == shape_.tokens)
                state.sealed = i + 1;
        }
    }

    void undo(sequence_state& state) noexcept {
        while (state.table.size() > state.pages_before) {
            books_.drop(state.table.back().page);
            state.table.pop_back();
        }
        if (state.tail_before) {
            if (state.table.back().page != state.tail_before->page)
                books_.drop(state.table.back().page);
            state.table.back() = *state.tail_before;
        }
        state.leased = 0;
        state.tail_before.reset();
    }

    [[nodiscard]] error refuse(std::size_t rows, std::size_t pages) {
        books_.observer().on({event_kind::refused, 0, rows, pages});
        return {error_code::out_of_memory, "pages",
                std::to_string(rows) + " tokens need " + std::to_string(pages) + " pages of " +
                    std::to_string(codec_.page_bytes()) + " bytes; " + std::to_string(books_.available()) + " of " +
                    std::to_string(books_.pool().pages()) + " can be had"};
    }

    [[nodiscard]] result<void> count_holders(const sequence_state& state, std::vector<std::uint32_t>& held) const {
        std::size_t rows = 0;
        for (const page_entry& entry : state.table) {
            ++held[index_of(entry.page)];
            if (rows < state.tokens.size()) {
                const auto known = books_.index().run(entry.page);
                const std::size_t common =
                    std::min<std::size_t>({known.size(), entry.count, state.tokens.size() - rows});
                if (!std::equal(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(common),
                                state.tokens.begin() + static_cast<std::ptrdiff_t>(rows)) &&
                    common == std::min<std::size_t>(known.size(), entry.count))
                    return error{error_code::malformed, "page " + std::to_string(index_of(entry.page)),
                                 "the index and a sequence disagree about the page's tokens"};
            }
            rows += entry.count;
        }
        if (state.tail_before && state.tail_before->page != state.table[state.pages_before - 1].page)
            ++held[index_of(state.tail_before->page)];
        if (rows != state.tokens.size() + state.leased)
            return error{error_code::malformed, "sequence",
                         std::to_string(rows) + " rows hold " + std::to_string(state.tokens.size()) + " tokens and " +
                             std::to_string(state.leased) + " reserved ones"};
        return {};
    }

    page_shape shape_;
    codec_type codec_;
    identity identity_;
    books books_;
    decltype(std::declval<const Recompute&>().open(page_shape{})) recompute_;
    mutable typename Locking::state lock_;
    sequence_state ring_; // of live sequences
};

} // namespace kvcache
