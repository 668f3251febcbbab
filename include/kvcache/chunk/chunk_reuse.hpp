// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/chunk/chunk_records.hpp>
#include <kvcache/chunk/chunk_search.hpp>
#include <kvcache/chunk/group_chunks.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/observer/concept.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A reuse map whose pages are pinned.
template <class Sequence>
class pinned_reuse {
public:
    /// `pins`: an empty sequence that references the pages of the map and their ancestors.
    pinned_reuse(Sequence pins, reuse_map map) : pins_(std::move(pins)), map_(std::move(map)) {}

    [[nodiscard]] const reuse_map& map() const noexcept { return map_; }
    [[nodiscard]] const Sequence& pins() const noexcept { return pins_; }
    [[nodiscard]] Sequence take_pins() && noexcept { return std::move(pins_); }

private:
    Sequence pins_;
    reuse_map map_;
};

/// A plan that appends rows of a prompt to a sequence. Rows of reused spans stay in their pages, which are shared, not
/// copied. The other rows get new pages, at the row in the page that their position has in any sequence.
///
///     span      [c0 c1 c2 c3 c4 c5 c6 c7]  in pages A B of 4, from position 40 on; c0 and c5 are recomputed
///     table     P[0,1) A[1,4) B[0,1) Q[1,2) B[2,4)             P, Q: own pages
template <class Row>
class basic_splice_plan {
public:
    /// Plans rows [0, rows) of a lease whose first row has position `first`. Rows of `recomputed` positions, and those
    /// of no span, get new pages. Requires: spans and positions ascend; `entries` are the spans' pages in order.
    basic_splice_plan(std::size_t first, std::size_t rows, std::span<const reused_span> runs,
                      std::span<const page_entry> entries, std::span<const std::size_t> recomputed)
        : first_(first), rows_(rows) {
        std::size_t of_entry = 0;
        for (const reused_span& run : runs)
            for (std::size_t i = 0; i < run.count; ++i) {
                expects(!entries.empty(), "every reused token lies in a page");
                const page_entry& entry = entries.front();
                if (run.first + i >= first && run.first + i < first + rows)
                    rows_[run.first + i - first] = {entry.page, static_cast<std::uint32_t>(entry.first + of_entry),
                                                    true, entry.base};
                if (++of_entry == entry.count) {
                    entries = entries.subspan(1);
                    of_entry = 0;
                }
            }
        for (const std::size_t position : recomputed)
            if (position >= first && position < first + rows)
                rows_[position - first] = {};
    }

    /// The position of the first row that is kept; the position after the last row if none is.
    [[nodiscard]] std::size_t first_kept() const {
        return first_ +
               static_cast<std::size_t>(
                   std::find_if(rows_.begin(), rows_.end(), [](const Row& one) { return one.kept; }) - rows_.begin());
    }

    /// The number of new pages for the other rows.
    [[nodiscard]] std::size_t own_pages(std::size_t page_tokens) const {
        std::size_t pages = 0, block = 0;
        for (std::size_t row = 0; row < rows_.size(); ++row)
            if (!rows_[row].kept && (pages == 0 || (first_ + row) / page_tokens != block)) {
                block = (first_ + row) / page_tokens;
                ++pages;
            }
        return pages;
    }

    /// Assigns the new pages to rows, one page for each block of positions that has such rows.
    void take(std::span<const page_id> pages, std::size_t page_tokens) {
        std::size_t block = 0;
        const page_id* own = nullptr;
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            if (rows_[row].kept)
                continue;
            const std::size_t position = first_ + row;
            if (own == nullptr || position / page_tokens != block) {
                block = position / page_tokens;
                own = own == nullptr ? pages.data() : own + 1;
            }
            rows_[row] = {*own, static_cast<std::uint32_t>(position % page_tokens), false, 0};
        }
    }

    /// The page table of the rows. (entries)
    [[nodiscard]] std::vector<page_entry> table() const {
        std::vector<page_entry> made;
        for (const Row& one : rows_)
            if (!made.empty() && made.back().page == one.page && made.back().base == one.base &&
                made.back().first + made.back().count == one.row)
                ++made.back().count;
            else
                made.push_back({one.page, one.base, one.row, 1});
        return made;
    }

    [[nodiscard]] std::vector<Row>& rows() noexcept { return rows_; }

private:
    std::size_t first_;
    std::vector<Row> rows_;
};

using splice_plan = basic_splice_plan<spliced_row>;

/// Whether chunk reuse works on a cache: the index finds chunks by content, and the cache owns the rows.
template <class Cache>
concept knows_chunks =
    (row_writer<typename Cache::codec_type> ||
     page_writer<typename Cache::codec_type>)&&chunk_index_state<typename Cache::core_type::index_type>;

namespace detail {

/// Whether keys of one position can serve at another. Errors: unsupported, where the model says no or nothing.
template <class Model>
[[nodiscard]] result<void> keys_can_move(const Model& model) {
    if constexpr (requires { model.keys_can_move(); })
        return model.keys_can_move();
    else
        return error{error_code::unsupported, "rope",
                     "the model does not say whether keys of one position can serve at another (keys_can_move)"};
}

} // namespace detail

/// Chunk reuse over a cache: finds registered chunks anywhere in a prompt, and splices their rows into a sequence. A
/// program that does not include this header compiles none of it. In a cache of layer groups a chunk moves in all of
/// them: it is found while every window group has its rows, it stays in memory only, and a sequence with spliced rows
/// releases none of their blocks. Requires: the cache outlives it.
template <knows_chunks Cache>
class chunk_reuse {
    using core_type = typename Cache::core_type;

public:
    using sequence = typename Cache::sequence;
    using lease = typename Cache::lease;
    using match_type = pinned_reuse<sequence>;

    explicit chunk_reuse(Cache& cache) : core_(cache.core()), groups_(core_.pages()) {}

    /// Whether chunks can be reused in the layers that the cache keeps. Errors: unsupported, where one is recurrent:
    /// then none is registered or found.
    [[nodiscard]] result<void> supported() const {
        const std::lock_guard guard(core_.lock());
        return groups_.can_move();
    }

    /// Finds registered chunks anywhere in the part of a prompt that follows the tokens of `prefix`, and pins their
    /// pages; chunks that only the tier has are loaded first. Requires: the prompt starts with the tokens of `prefix`.
    /// Cost: O(tokens), plus the tier's reads.
    [[nodiscard]] match_type match(const sequence& prefix, std::span<const token_id> tokens) {
        std::vector<sequence> loaded; // which hold their pages until they are pinned
        if constexpr (in_tier)
            load(prefix.state_in(core_).tenant, tokens, prefix.size(), loaded);
        const std::lock_guard guard(core_.lock());
        const std::uint32_t tenant = prefix.state_in(core_).tenant;
        chunk_search search = searched(tenant, tokens, prefix.size());
        auto pins = core_.sequences().fresh();
        pins->tenant = tenant;
        for (const page_entry& entry : search.found.entries)
            groups_.pin(*pins, entry.page);
        pins->pinned_sources = std::move(search.sources);
        core_.sequences().add(*pins);
        return {sequence(core_, std::move(pins)), std::move(search.found)};
    }

    /// Registers the exact tokens [first, first + count) of a sequence as a chunk; it lasts as long as their pages, and
    /// in a tier as long as its records there (chunk/chunk_records.hpp). If the codec encodes whole pages, the tokens
    /// of a last page that is not full are left out. Returns the number of tokens registered: none if they are fewer
    /// than the index's minimum, their pages are not in the index, or a window group has released their rows.
    std::size_t add(const sequence& of, std::size_t first, std::size_t count) {
        expects(count > 0 && first + count <= of.exact(), "a chunk is of exact tokens");
        if (encodes_pages)
            count = std::max(splice_position(first + count), first) - first;
        if (count == 0)
            return 0;
        bool known = false, noted = false;
        {
            const std::lock_guard guard(core_.lock());
            const std::size_t page_tokens = core_.shape().tokens, last = first + count - 1;
            const sequence_state& state = of.state_in(core_);
            const auto pages =
                std::span(state.table).subspan(first / page_tokens, last / page_tokens - first / page_tokens + 1);
            if (!groups_.can_move() ||
                !ranges::all_of(pages, [&](const page_entry& one) { return groups_.has(one.page); }))
                return 0;
            const bool done = detail::completes<std::bad_alloc>([&] {
                known = in_memory(state.tenant, of.tokens().subspan(first, count));
                noted = core_.pages().index().note(state.tenant, state.table[last / page_tokens].page,
                                                   static_cast<std::uint32_t>(last % page_tokens + 1), count);
            });
            noted = noted && done;
            for (std::size_t i = 0; noted && i < pages.size(); ++i)
                groups_.keep(pages[i].page);
        }
        if constexpr (in_tier)
            if (noted)
                chunk_records<core_type>(core_).store(of, first, count, known);
        return noted ? count : 0;
    }

    /// Whether memory or the tier has a chunk of these tokens, or of their whole pages if the codec encodes whole
    /// pages. What the tier has is loaded. Cost: as match.
    [[nodiscard]] bool contains(std::span<const token_id> tokens, const tenant& of = {}) {
        const std::uint32_t tenant = core_.number_of(of);
        const auto whole = tokens.first(splice_position(tokens.size()));
        std::vector<sequence> loaded;
        if constexpr (in_tier)
            load(tenant, whole, 0, loaded);
        const std::lock_guard guard(core_.lock());
        return in_memory(tenant, whole);
    }

    /// The last position up to `position` at which a spliced lease can begin: itself, or the beginning of its page if
    /// the codec encodes whole pages.
    [[nodiscard]] std::size_t splice_position(std::size_t position) const noexcept {
        return encodes_pages ? position - position % core_.shape().tokens : position;
    }

    /// Reserves `rows` rows of which some are spliced in from cached chunks: the rows of the approximate spans of
    /// `found`, except the positions in `recomputed`, which ascend. The caller writes the other rows through the lease.
    /// `counts`: whether the observer is told; not of a lease that is only looked at.
    /// Errors: as the cache's reserve. Requires: the sequence is exact, is a prefix of the prompt given to match, and
    /// ends at a splice_position.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, const match_type& found,
                                        std::span<const std::size_t> recomputed, bool counts = true) {
        const std::lock_guard guard(core_.lock());
        sequence_state& state = to.state_in(core_);
        require(!state.lease.open, "a sequence has one lease at a time");
        expects(state.exact == sequence_state::all, "rows are spliced after an exact sequence");
        splice_plan spliced(state.tokens.size(), rows, found.map().runs, found.map().entries, recomputed);
        const std::size_t own = spliced.own_pages(core_.shape().tokens);
        const std::size_t needed = own + pages().residual().more_aside(own);
        if constexpr (core_type::grouped)
            if (auto room = core_.sequences().groups().check(state, {.fresh = own, .pages = needed},
                                                             state.tokens.size(), core_.codec().page_bytes());
                !room) {
                pages().emit({event_kind::refused, 0, rows, needed});
                return room.error();
            }
        if (needed <= pages().available(state.tenant) &&
            splice(state, spliced, found.pins().state_in(core_).pinned_sources)) {
            const auto kept = static_cast<std::size_t>(
                ranges::count_if(state.lease.spliced, [](const spliced_row& one) { return one.kept; }));
            if (counts)
                pages().emit({event_kind::spliced, kept, rows, state.pinned_sources.size()});
            return lease(core_, state);
        }
        return core_.sequences().refuse(state, rows, needed, core_.codec().page_bytes());
    }

private:
    // Whether a chunk of exactly these tokens is in memory. Requires: the lock is held.
    [[nodiscard]] bool in_memory(std::uint32_t tenant, std::span<const token_id> tokens) {
        const auto found = core_.pages().index().chunks(tenant, tokens, 0);
        return !found.empty() && found.front().count == tokens.size();
    }

    // Loads from the tier the chunks that memory lacks, after the first `known` tokens.
    void load(std::uint32_t tenant, std::span<const token_id> tokens, std::size_t known, std::vector<sequence>& held) {
        std::vector<prompt_span> spans;
        {
            const std::lock_guard guard(core_.lock());
            spans = searched(tenant, tokens, known).found.spans;
        }
        chunk_records<core_type> records(core_);
        for (const prompt_span& one : spans)
            if (one.kind == reuse_kind::missing)
                records.load(tenant, tokens, one.first, one.first + one.count, held);
    }

    // What is found of a prompt. Requires: the lock is held.
    [[nodiscard]] chunk_search searched(std::uint32_t tenant, std::span<const token_id> tokens, std::size_t known) {
        return {core_.pages().index(),
                tenant,
                core_.shape().tokens,
                tokens,
                known,
                [&](page_id page) { return groups_.has(page); }};
    }

    static constexpr bool encodes_pages = page_writer<typename Cache::codec_type>;
    static constexpr bool in_tier = Cache::has_tier && !core_type::grouped;

    [[nodiscard]] auto& pages() noexcept { return core_.pages(); }

    // Appends spliced rows to a sequence, as a lease, and references their source pages. Returns false if the storage
    // refuses; nothing has changed then. Throws: bad_alloc, likewise.
    [[nodiscard]] bool splice(sequence_state& state, splice_plan& spliced, std::span<const page_id> sources) {
        const std::size_t page_tokens = core_.shape().tokens, needed = spliced.own_pages(page_tokens);
        std::vector<page_id> own;
        own.reserve(needed);
        const auto release_own = [&] {
            for (const page_id page : own) {
                if constexpr (core_type::grouped)
                    core_.sequences().groups().leave_page(page);
                pages().drop(page);
            }
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
            if constexpr (core_type::grouped)
                if (!core_.sequences().groups().extend(state, *page))
                    return false;
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
        groups_.use(state, before);
        release_own(); // the entries reference them now
        state.lease.begin(spliced.rows().size(), std::span(state.table).first(before), false);
        state.lease.spliced = std::move(spliced.rows());
        state.exact = state.tokens.size();
        if (core_.sequences().residual().open_spliced(state))
            return true;
        core_.sequences().undo(state);
        return false;
    }

    core_type& core_;
    group_chunks<typename core_type::page_manager_type> groups_;
};

}} // namespace kvcache
