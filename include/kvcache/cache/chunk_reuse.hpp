// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/chunk_search.hpp>
#include <kvcache/cache/reuse.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/cache/splice_plan.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Chunk reuse over a cache, or over a tenant of one: finds registered chunks anywhere in a prompt, and splices their
/// rows into a sequence. A program that does not include this header compiles none of it. Requires: the cache
/// outlives it.
template <class Cache>
    requires(Cache::knows_chunks)
class chunk_reuse {
public:
    using sequence = typename Cache::sequence;
    using lease = typename Cache::lease;
    using match_type = pinned_reuse<sequence>;

    explicit chunk_reuse(Cache& cache) : cache_(cache_access::cache_of(cache)) {}

    /// Finds registered chunks anywhere in the part of a prompt that follows the tokens of `prefix`, and pins their
    /// pages. Requires: the prompt starts with the tokens of `prefix`. Cost: O(tokens).
    [[nodiscard]] match_type match(const sequence& prefix, std::span<const token_id> tokens) {
        const std::lock_guard guard(cache_access::lock(cache_));
        const std::uint32_t tenant = state_of(prefix).tenant;
        chunk_search search(pages().index(), tenant, cache_.shape().tokens, tokens, prefix.size());
        auto pins = std::make_unique<sequence_state>();
        pins->tenant = tenant;
        pins->pinned_sources = std::move(search.sources);
        return {cache_access::make_sequence(cache_, std::move(pins)), std::move(search.found)};
    }

    /// Registers the exact tokens [first, first + count) of a sequence as a chunk; it lasts as long as their pages.
    /// Returns false if the chunk is shorter than the index's minimum or its pages are not in the index.
    bool add(const sequence& of, std::size_t first, std::size_t count) {
        expects(count > 0 && first + count <= of.exact(), "a chunk is of exact tokens");
        const std::lock_guard guard(cache_access::lock(cache_));
        const std::size_t last = first + count - 1, page_tokens = cache_.shape().tokens;
        const sequence_state& state = state_of(of);
        bool known = false;
        return detail::completes<std::bad_alloc>([&] {
                   known = pages().chunks().note(state.tenant, state.table[last / page_tokens].page,
                                                 static_cast<std::uint32_t>(last % page_tokens + 1), count);
               }) &&
               known;
    }

    /// Reserves `rows` rows of which some are spliced in from cached chunks: the rows of the approximate spans of
    /// `found`, except the positions in `recomputed`, which ascend. The caller writes the other rows through the lease.
    /// Errors: as the cache's reserve. Requires: the sequence is exact, and is a prefix of the prompt given to match.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, const match_type& found,
                                        std::span<const std::size_t> recomputed) {
        const std::lock_guard guard(cache_access::lock(cache_));
        sequence_state& state = state_of(to);
        require(!state.lease.open, "a sequence has one lease at a time");
        expects(state.exact == sequence_state::all, "rows are spliced after an exact sequence");
        splice_plan spliced(state.tokens.size(), rows, found.map().runs, found.map().entries, recomputed);
        const std::size_t needed = spliced.own_pages(cache_.shape().tokens);
        if (needed <= pages().room(state.tenant) && splice(state, spliced, state_of(found.pins()).pinned_sources))
            return cache_access::make_lease(cache_, state);
        return cache_access::refuse(cache_, state, rows, needed);
    }

private:
    [[nodiscard]] auto& pages() noexcept { return cache_access::pages(cache_); }
    [[nodiscard]] static auto& state_of(const sequence& of) noexcept { return cache_access::state(of); }

    // Appends spliced rows to a sequence, as a lease, and references their source pages. Returns false if the storage
    // refuses; nothing has changed then. Throws: bad_alloc, likewise.
    [[nodiscard]] bool splice(sequence_state& state, splice_plan& spliced, std::span<const page_id> sources) {
        const std::size_t page_tokens = cache_.shape().tokens, needed = spliced.own_pages(page_tokens);
        std::vector<page_id> own;
        own.reserve(needed);
        const auto release_own = [&] {
            for (const page_id page : own)
                pages().drop(page);
        };
        detail::scope_guard undo([&] {
            state.pinned_sources.clear();
            release_own();
        });
        while (own.size() < needed) {
            const auto page = pages().allocate(state.tenant);
            if (!page)
                return false;
            own.push_back(*page);
            pages().pool().clear(*page);
        }
        spliced.take(own, page_tokens);
        const std::vector<page_entry> table = spliced.table();
        state.reserve(table.size(), spliced.rows().size());
        state.pinned_sources.assign(sources.data(), sources.data() + sources.size());
        const std::size_t before = state.table.size();
        state.table.insert(state.table.end(), table.begin(), table.end());
        undo.dismiss();
        for (const page_id page : state.pinned_sources)
            pages().hold(page);
        for (const page_entry& entry : table)
            pages().hold(entry.page);
        release_own(); // the entries reference them now
        state.lease.begin(spliced.rows().size(), std::span(state.table).first(before), false);
        state.lease.spliced = std::move(spliced.rows());
        state.exact = state.tokens.size();
        return true;
    }

    decltype(cache_access::cache_of(std::declval<Cache&>())) cache_;
};

}} // namespace kvcache
