// SPDX-License-Identifier: MIT
#pragma once

// Longer than 300 lines: the composition, of short functions that each join several books.

#include <kvcache/cache/chunk_search.hpp>
#include <kvcache/cache/lease.hpp>
#include <kvcache/cache/match.hpp>
#include <kvcache/cache/no_tier_books.hpp>
#include <kvcache/cache/page_books.hpp>
#include <kvcache/cache/reuse.hpp>
#include <kvcache/cache/sequence.hpp>
#include <kvcache/cache/sequence_books.hpp>
#include <kvcache/cache/stats.hpp>
#include <kvcache/cache/weaver.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/tier/concept.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// A KV cache: keys and values of past tokens, found by prefix, kept in coded pages, shared and copied on write.
/// Requires: it outlives its sequences, matches and leases. It does not move.
template <codec_policy Codec, storage_policy Storage, hash_policy Hash, index_policy Index, eviction_policy Eviction,
          recompute_policy Recompute, tier_policy Tier, observer_policy Observer, locking_policy Locking>
class basic_cache {
public:
    using codec_type = decltype(std::declval<const Codec&>().open(page_shape{}));
    using storage_type = decltype(std::declval<const Storage&>().open(0, 0));
    using sequence = basic_sequence<basic_cache>;
    using match_type = basic_match<basic_cache>;
    using lease = basic_lease<basic_cache>;
    using reuse_type = basic_reuse<basic_cache>;
    using locking_type = typename Locking::state;
    using tier_type = decltype(std::declval<const Tier&>().open());

    /// Whether pages stay in a tier when they leave memory.
    static constexpr bool has_tier = !std::same_as<tier_type, no_tier::state>;
    static_assert(
        requires { sizeof(tier_books<tier_type>); }, "a cache with a tier needs <kvcache/tier.hpp>");
    static_assert(far_codec_state<codec_type> == far_storage_state<storage_type>,
                  "pages that the host cannot read have a storage and a codec of one kind (docs/cuda.md)");
    static_assert(host_storage_state<storage_type> || !has_tier, "a tier keeps pages that the host can read");

    /// Whether the codec keeps row by row.
    static constexpr bool writes_rows = row_writer<codec_type> || far_codec_state<codec_type>;
    /// Whether the index finds chunks by their content, and the codec keeps row by row.
    static constexpr bool knows_chunks =
        row_writer<codec_type> && chunk_index_state<decltype(std::declval<const Index&>().open(page_shape{}, 0))>;

    /// `tenants` is how many there may be; zero for a cache that its user alone has.
    basic_cache(std::size_t tenants, identity id, page_shape shape, budget limit, Codec codec, Storage storage,
                Hash hash, Index index, Eviction eviction, Recompute recompute, Tier tier, Observer observer)
        : shape_(checked(shape)),
          codec_(codec.open(shape)),
          identity_(complete(std::move(id))),
          books_(shape, pages_in(limit), codec_.page_bytes(), tenants, identity_, storage, hash, index, eviction,
                 observer),
          hash_(std::move(hash)),
          sequences_(books_, shape.tokens, coded()),
          recompute_(recompute.open(shape)),
          tier_(tier.open(), identity_, secret_of(hash_)) {}

    basic_cache(const basic_cache&) = delete;
    basic_cache& operator=(const basic_cache&) = delete;

    /// The longest known run of `tokens` that can be continued, pinned: whole pages where the codec codes whole pages.
    /// Behind it, whole pages that the tier has are loaded, checked and known from then on.
    /// Cost: O(tokens), and what the tier takes.
    [[nodiscard]] match_type match(std::span<const token_id> tokens) { return match_as(0, tokens); }
    [[nodiscard]] match_type match_as(std::uint32_t tenant, std::span<const token_id> tokens) {
        return tier_.match(*this, tenant, tokens);
    }

    /// As match, of what memory knows: nothing is asked of the tier. Cost: O(tokens).
    [[nodiscard]] match_type match_in_memory(std::span<const token_id> tokens) { return look_up(0, tokens, true, 0); }

    /// Whether match would ask the tier for more of a prompt than memory knows. Cost: O(tokens).
    [[nodiscard]] bool tier_may_know(std::span<const token_id> tokens) { return tier_.may_know(*this, 0, tokens); }

    /// Loads what the tier has of a prompt behind what memory knows, for a match to come; nobody holds it then. Returns
    /// how many tokens. Cost: as match.
    std::size_t prefetch(std::span<const token_id> tokens) { return tier_.prefetch(*this, 0, tokens); }

    /// Which of the matched prompt's tokens run.
    [[nodiscard]] rerun plan(const match_type& found) const {
        std::size_t first = recompute_.first_rerun(found.tokens(), found.of());
        if constexpr (page_writer<codec_type>) {
            const std::lock_guard guard(lock_);
            first = sequences_.exact().kept(*found.known_.state_, first);
        }
        return {first, found.of() - first};
    }

    /// An empty sequence.
    [[nodiscard]] sequence open() { return open_as(0); }

    /// A sequence of the reused tokens of a match.
    [[nodiscard]] sequence open(match_type found, const rerun& plan) {
        found.known_.truncate(plan.first);
        return std::move(found.known_);
    }

    /// Room for `rows` rows behind a sequence, and the memory to commit them. Evicts idle pages where none is free.
    /// Errors: out_of_memory, with the pages needed and had; the sequence and all that others hold is as before.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows) { return reserve(to, rows, rows); }

    /// The same for rows that are written and attended at most `at_once` at a time, in ascending order: where the codec
    /// codes whole pages, no more of them need their exact rows.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, std::size_t at_once) {
        const std::lock_guard guard(lock_);
        sequence_state& state = *to.state_;
        expects(!state.has_lease, "a sequence has one lease at a time");
        const auto open_rows = state.open_rows(shape_.tokens);
        const std::uint32_t used = open_rows.value_or(shape_.tokens);
        const bool copies = open_rows && rows > 0 && !books_.writable(state.table.back().page, used);
        const std::size_t in_tail = std::min<std::size_t>(rows, shape_.tokens - used);
        const std::size_t behind = rows - in_tail;
        const std::size_t fresh = behind / shape_.tokens + (behind % shape_.tokens > 0 ? 1 : 0);
        at_once = std::min(std::max<std::size_t>(at_once, 1), rows);
        const std::size_t exact = sequences_.exact().needed(copies, state.table.size(), fresh, at_once);
        const std::size_t needed = fresh + (copies ? 1 : 0) + books_.exact().more_aside(exact);
        if (needed > books_.room(state.tenant))
            return sequences_.refuse(state, rows, needed, codec_.page_bytes());

        state.prepare(fresh, rows);
        state.pages_before = state.table.size();
        state.tail_before = open_rows ? std::optional(state.table.back()) : std::nullopt;
        state.leased = rows;
        state.has_lease = true;
        state.leased_at = std::chrono::steady_clock::now();
        const bool taken = [&] {
            detail::scope_guard undo([&] { sequences_.undo(state); });
            if (!sequences_.take_rows(state, codec_, in_tail, behind, copies ? used : 0) ||
                !sequences_.exact().open(state, used, at_once))
                return false;
            undo.dismiss();
            return true;
        }();
        if (taken)
            return lease(*this, state);
        return storage_says(sequences_.refuse(state, rows, needed, codec_.page_bytes()));
    }

    /// What is known of a prompt behind the tokens of a sequence, which begins it: chunks that `note` was told of,
    /// anywhere in it. Pinned. Cost: O(tokens).
    [[nodiscard]] reuse_type find(const sequence& behind, std::span<const token_id> tokens) requires knows_chunks {
        const std::lock_guard guard(lock_);
        chunk_search search(books_.index(), behind.state_->tenant, shape_.tokens, tokens, behind.size());
        auto pins = std::make_unique<sequence_state>();
        pins->tenant = behind.state_->tenant;
        pins->sources = std::move(search.sources);
        return {adopt(std::move(pins)), std::move(search.found)};
    }

    /// Remembers the exact tokens [first, first + count) of a sequence as a chunk, for as long as their pages stay.
    /// Returns whether it is known now: not one that is shorter than the index wants, or whose pages are not known.
    bool note(const sequence& of, std::size_t first, std::size_t count) requires knows_chunks {
        expects(count > 0 && first + count <= of.exact(), "a chunk is of exact tokens");
        const std::lock_guard guard(lock_);
        return sequences_.note(*of.state_, first, count);
    }

    /// As above for `rows` rows of which some are kept as they were found: those of its approximate spans that are not
    /// among the positions of `rerun`, which ascend. The lease writes the others. Requires: the sequence is exact, and
    /// begins the prompt that was looked for.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, const reuse_type& found,
                                        std::span<const std::size_t> rerun) {
        const std::lock_guard guard(lock_);
        sequence_state& state = *to.state_;
        expects(!state.has_lease && state.exact == sequence_state::all, "rows are woven behind an exact sequence");
        weaver woven(state.tokens.size(), rows, found.map().runs, found.map().entries, rerun);
        const std::size_t needed = woven.own_pages(shape_.tokens);
        if (needed > books_.room(state.tenant))
            return sequences_.refuse(state, rows, needed, codec_.page_bytes());
        if (sequences_.weave(state, woven, found.pins_.state_->sources))
            return lease(*this, state);
        return sequences_.refuse(state, rows, needed, codec_.page_bytes());
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }
    /// What the recompute policy has opened.
    [[nodiscard]] const auto& recompute() const noexcept { return recompute_; }
    [[nodiscard]] const identity& id() const noexcept { return identity_; }
    [[nodiscard]] const codec_type& codec() const noexcept { return codec_; }
    /// What the tier policy has opened: its status, its counts, its flush.
    [[nodiscard]] tier_type& tier() noexcept { return tier_.tier(); }
    [[nodiscard]] const tier_type& tier() const noexcept { return tier_.tier(); }
    /// What was asked of it, and what came.
    [[nodiscard]] kvcache::tier_stats tier_stats() const { return tier_.stats(); }
    [[nodiscard]] const storage_type& storage() const noexcept { return books_.pool().storage(); }
    [[nodiscard]] const auto& observer() const noexcept { return books_.observer(); }

    /// Calls `ask` with the observer, while nothing happens that it could be told of.
    template <class Ask>
    void ask_observer(Ask&& ask) const {
        const std::lock_guard guard(lock_);
        ask(books_.observer());
    }

    [[nodiscard]] cache_stats stats() const {
        const std::lock_guard guard(lock_);
        const auto& pool = books_.pool();
        const std::size_t free = pool.free().size(), idle = books_.idle();
        return {pool.pages(),
                free,
                pool.pages() - free - idle,
                idle,
                codec_.page_bytes(),
                sequences_.size(),
                books_.exact().alive(),
                books_.exact().bytes()};
    }

    /// A paragraph for people: shape, codec, how full, identity.
    [[nodiscard]] std::string describe() const {
        return detail::joined({"kvcache: ", describe_pages(shape_, codec_.name(), stats()), "; identity ",
                               to_string(digest_of(identity_))});
    }

    /// Proves the books: every page is free, held or idle, every holder is counted, every run is what its holders say.
    /// Cost: O(pages + tokens). For tests and for suspicion.
    [[nodiscard]] result<void> check() const {
        const std::lock_guard guard(lock_);
        return sequences_.check();
    }

    // For the tier.

    /// What memory knows of a prompt, of which `loaded` tokens came from the tier just now; the observer is told of it
    /// now, or by tell_of.
    [[nodiscard]] match_type look_up(std::uint32_t tenant, std::span<const token_id> tokens, bool tells,
                                     std::size_t loaded) {
        const std::lock_guard guard(lock_);
        const index_match found = books_.index().match(tenant, tokens);
        auto known = std::make_unique<sequence_state>();
        known->tenant = tenant;
        known->prompt = tokens.size();
        known->tokens.assign(tokens.data(), tokens.data() + found.tokens);
        std::size_t left = found.tokens;
        for (const page_id page : found.pages) {
            const std::size_t rows = std::min<std::size_t>(left, shape_.tokens);
            known->table.push_back({.page = page, .count = static_cast<std::uint32_t>(rows)});
            left -= rows;
        }
        const std::size_t kept = sequences_.exact().kept(*known, found.tokens);
        known->tokens.erase(known->tokens.begin() + static_cast<std::ptrdiff_t>(kept), known->tokens.end());
        known->drop_entries(known->cut(kept));
        const auto pages = std::span(found.pages).first(known->table.size());
        if (tells)
            books_.tell({event_kind::matched, kept, tokens.size(), pages.size(), pages});
        match_type made{adopt(std::move(known)), tokens.size(), found};
        made.loaded_ = std::min(loaded, kept);
        return made;
    }

    [[nodiscard]] match_type tell_of(match_type found) {
        std::vector<page_id> pages;
        for (const page_entry& entry : found.known_.table())
            pages.push_back(entry.page);
        const std::lock_guard guard(lock_);
        books_.tell({event_kind::matched, found.tokens(), found.of(), pages.size(), pages});
        return found;
    }

    // For tenants.

    std::uint32_t add_tenant(const std::string& salt, std::size_t quota) {
        const std::lock_guard guard(lock_);
        identity own = identity_;
        own.tenant = salt;
        salts_.reserve(salts_.size() + 1);
        std::string kept = salt;
        tier_.set(books_.tenants().size() + 1, own);
        const std::uint32_t number = books_.add_tenant(hash_.open(own).root(), quota);
        salts_.push_back(std::move(kept));
        return number;
    }

    /// The identity of what a tenant stores; of the cache itself for 0.
    [[nodiscard]] identity id_as(std::uint32_t tenant) const {
        const std::lock_guard guard(lock_);
        identity own = identity_;
        if (tenant > 0)
            own.tenant = salts_[tenant - 1];
        return own;
    }

    void set_quota(std::uint32_t tenant, std::size_t quota) {
        const std::lock_guard guard(lock_);
        books_.set_quota(tenant, quota);
    }

    [[nodiscard]] tenant_usage usage(std::uint32_t tenant) const {
        const std::lock_guard guard(lock_);
        return books_.tenants().usage(tenant);
    }

    [[nodiscard]] sequence open_as(std::uint32_t tenant) {
        const std::lock_guard guard(lock_);
        auto state = std::make_unique<sequence_state>();
        state->tenant = tenant;
        return adopt(std::move(state));
    }

    // For sequences and leases.

    void release(sequence_state& state) noexcept {
        const std::lock_guard guard(lock_);
        sequences_.leave(state);
    }

    [[nodiscard]] sequence fork(const sequence_state& from, std::size_t tokens) {
        expects(tokens <= from.tokens.size() && !from.has_lease, "a fork lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        return adopt(from.begin(sequences_.exact().kept(from, tokens), shape_.tokens));
    }

    [[nodiscard]] result<sequence> without(const sequence_state& from, std::size_t first, std::size_t count) {
        expects(first <= from.tokens.size() && count <= from.tokens.size() - first && !from.has_lease,
                "what is left out lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        auto kept = from.begin(first, shape_.tokens);
        const auto behind = kept->leave_out(from, first, count);
        sequences_.enter(*kept);
        if (behind.size() > books_.room(from.tenant) || !sequences_.copy_rows(*kept, codec_, behind)) {
            sequences_.leave(*kept);
            return sequences_.refuse(from, from.tokens.size() - first - count, behind.size(), codec_.page_bytes());
        }
        sequence made{*this, std::move(kept)};
        return made;
    }

    void truncate(sequence_state& state, std::size_t tokens) {
        expects(tokens <= state.tokens.size() && !state.has_lease,
                "a truncation lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        sequences_.truncate(state, sequences_.exact().kept(state, tokens));
    }

    void commit(sequence_state& state, std::span<const token_id> tokens) {
        {
            const std::lock_guard guard(lock_);
            sequences_.commit(state, tokens);
            books_.tell({event_kind::stored, tokens.size(), 0, 0});
        }
        tier_.store(*this, state);
    }

    void commit_in_place(sequence_state& state, std::span<const token_id> tokens) {
        const std::lock_guard guard(lock_);
        sequences_.commit_unmeasured(state, tokens);
        books_.tell({event_kind::stored, tokens.size(), 0, 0});
    }

    void rollback(sequence_state& state) noexcept {
        const std::lock_guard guard(lock_);
        sequences_.undo(state);
    }

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const requires host_storage_state<storage_type> {
        return books_.pool().bytes(page);
    }

    /// The exact rows that are kept beside a page that a sequence holds; empty if there are none.
    [[nodiscard]] std::span<const std::byte> exact_bytes(page_id page) const {
        const std::lock_guard guard(lock_);
        const exact_page* rows = books_.exact().of(page);
        return rows != nullptr ? rows->bytes() : std::span<const std::byte>();
    }
    /// Those that a lease will give a page.
    [[nodiscard]] std::span<std::byte> exact_bytes(const sequence_state& state, std::size_t entry) const {
        exact_page* rows = sequences_.exact().given(state, entry);
        return rows != nullptr ? rows->bytes() : std::span<std::byte>();
    }

    /// What computing rows is known to take, for the tier.
    [[nodiscard]] double prefill_seconds(std::size_t first, std::size_t rows) const {
        const std::lock_guard guard(lock_);
        return books_.seconds(first, rows);
    }

private:
    // Where there was room and the storage refused: a far one says why.
    [[nodiscard]] error storage_says(error full) const {
        if constexpr (far_storage_state<storage_type>)
            if (const auto well = storage().status(); !well)
                return well.error();
        return full;
    }

    // Records leave the process under the key of the names that do.
    [[nodiscard]] static std::string secret_of(const Hash& hash) {
        if constexpr (requires { std::string(hash.key); })
            return hash.key;
        else
            return {};
    }

    using books = page_books<storage_type, decltype(std::declval<const Hash&>().open(identity{})),
                             decltype(std::declval<const Index&>().open(page_shape{}, 0)),
                             decltype(std::declval<const Eviction&>().open(eviction_room{})),
                             decltype(std::declval<const Observer&>().open()), page_writer<codec_type>>;

    [[nodiscard]] static const page_shape& checked(const page_shape& shape) {
        expects(shape.valid(), "a page shape has no zero extent, and tokens is a multiple of 16");
        return shape;
    }

    // What stays exact, where the codec codes whole pages.
    [[nodiscard]] std::optional<exact_pages> coded() const {
        if constexpr (page_writer<codec_type>)
            return codec_.exact();
        else
            return std::nullopt;
    }

    [[nodiscard]] std::size_t pages_in(budget limit) const {
        return std::min<std::size_t>(limit.bytes / codec_.page_bytes(), std::size_t{1} << 31);
    }

    [[nodiscard]] identity complete(identity id) const {
        id.codec = codec_.name();
        id.layout = detail::joined({"key tiles of 16, value rows; ", std::to_string(shape_.layers), " layers, ",
                                    std::to_string(shape_.kv_heads), " KV heads of ", std::to_string(shape_.head_dim)});
        if constexpr (far_codec_state<codec_type>) {
            id.layout = codec_.layout_name();
            id.backend = codec_.backend();
        }
        id.page_tokens = shape_.tokens;
        return id;
    }

    [[nodiscard]] sequence adopt(std::unique_ptr<sequence_state> state) noexcept {
        sequences_.enter(*state);
        return {*this, std::move(state)};
    }

    page_shape shape_;
    codec_type codec_;
    identity identity_;
    std::vector<std::string> salts_; // by tenant, from 1
    books books_;
    Hash hash_;
    sequence_books<books> sequences_;
    decltype(std::declval<const Recompute&>().open(page_shape{})) recompute_;
    tier_books<tier_type> tier_;
    mutable typename Locking::state lock_;
};

} // namespace kvcache
