// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/chunk/chunk_records.hpp>
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

/// The provenance of the cached keys and values of a span of tokens.
enum class reuse_kind {
    exact,       ///< Computed after the same prefix.
    approximate, ///< Computed after a different prefix.
    missing,     ///< Not cached.
};

/// A span of a prompt's tokens of one kind.
struct prompt_span {
    reuse_kind kind = reuse_kind::missing;
    std::size_t first = 0;
    std::size_t count = 0;

    friend bool operator==(const prompt_span&, const prompt_span&) = default;
};

/// The reusable spans of a prompt. The spans are contiguous and cover the prompt; adjacent approximate spans come from
/// different places.
struct reuse_map {
    std::vector<prompt_span> spans = {};
    std::vector<reused_span> runs = {};   ///< The approximate spans.
    std::vector<page_entry> entries = {}; ///< Where their tokens lie, in order.

    [[nodiscard]] std::size_t end() const noexcept {
        return spans.empty() ? 0 : spans.back().first + spans.back().count;
    }

    /// The number of tokens of a kind.
    [[nodiscard]] std::size_t tokens(reuse_kind kind) const noexcept {
        std::size_t all = 0;
        for (const prompt_span& one : spans)
            all += one.kind == kind ? one.count : 0;
        return all;
    }

    /// The position of the first approximate token that is not in `recomputed`, which ascend; end() if there is none.
    [[nodiscard]] std::size_t first_kept(std::span<const std::size_t> recomputed) const noexcept {
        for (const reused_span& run : runs)
            for (std::size_t at = run.first; at < run.first + run.count; ++at) {
                if (recomputed.empty() || recomputed.front() != at)
                    return at;
                recomputed = recomputed.subspan(1);
            }
        return end();
    }

    /// Appends a span that is not approximate.
    void add(reuse_kind kind, std::size_t count) {
        if (count > 0)
            spans.push_back({kind, end(), count});
    }

    /// Appends the tokens of these page-table entries, which were computed elsewhere. If `goes_on`, they continue the
    /// last span where it was computed, and extend it.
    template <class Pages>
    void add_run(const Pages& pages, bool goes_on) {
        std::size_t count = 0;
        for (const page_entry& entry : pages)
            count += entry.count;
        if (count == 0)
            return;
        if (goes_on) {
            spans.back().count += count;
            runs.back().count += count;
        } else {
            runs.push_back({end(), count, pages.front().first});
            add(reuse_kind::approximate, count);
        }
        entries.insert(entries.end(), pages.begin(), pages.end());
    }
};

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

/// The reusable tokens of a prompt, and the pages to pin for them: the pages of the chunks and all their ancestors.
struct chunk_search {
    reuse_map found = {};
    std::vector<page_id> sources = {};

    /// Searches for chunks after the first `known` tokens, which are exact. The last token is never reused.
    template <class Index>
    chunk_search(const Index& index, std::uint32_t tenant, std::size_t page_tokens, std::span<const token_id> tokens,
                 std::size_t known) {
        found.add(reuse_kind::exact, known);
        std::optional<page_entry> before; // the last entry of the previous chunk, before cut()
        for (const chunk_match& chunk : index.chunks(tenant, tokens, known)) {
            const auto path = pages_of(index, chunk.last);
            auto entries = entries_of(path, page_tokens, chunk);
            const bool goes_on = before && chunk.first == found.end() && follows(path, *before, entries.front());
            before = entries.back();
            cut(entries, chunk.first, std::max(found.end(), chunk.first), tokens.size() - 1);
            found.add(reuse_kind::missing, std::max(found.end(), chunk.first) - found.end());
            if (entries.empty())
                continue;
            found.add_run(entries, goes_on && !found.runs.empty());
            for (const page_id page : path)
                if (std::find(sources.begin(), sources.end(), page) == sources.end())
                    sources.push_back(page);
        }
        found.add(reuse_kind::missing, tokens.size() - found.end());
    }

private:
    // The path from the root to a page.
    template <class Index>
    [[nodiscard]] static std::vector<page_id> pages_of(const Index& index, page_id last) {
        std::vector<page_id> path{last};
        while (const auto parent = index.parent(path.back()))
            path.push_back(*parent);
        std::reverse(path.begin(), path.end());
        return path;
    }

    template <class Path>
    [[nodiscard]] static std::vector<page_entry> entries_of(const Path& path, std::size_t page_tokens,
                                                            const chunk_match& chunk) {
        const std::size_t behind = (path.size() - 1) * page_tokens + chunk.end, begin = behind - chunk.count;
        const auto base = static_cast<std::int64_t>(chunk.first) - static_cast<std::int64_t>(begin);
        std::vector<page_entry> made;
        for (std::size_t at = begin; at < behind;) {
            const std::size_t row = at % page_tokens, count = std::min(page_tokens - row, behind - at);
            made.push_back(
                {path[at / page_tokens], base, static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(count)});
            at += count;
        }
        return made;
    }

    // Whether the first row of `next` directly followed the last row of `before` where both were computed.
    template <class Path>
    [[nodiscard]] static bool follows(const Path& path, const page_entry& before, const page_entry& next) {
        if (before.base != next.base)
            return false;
        if (before.page == next.page)
            return before.first + before.count == next.first;
        const auto at = std::find(path.begin(), path.end(), next.page);
        return next.first == 0 && at != path.begin() && *std::prev(at) == before.page;
    }

    // Cuts entries that start at `position` to the positions [first, last).
    template <class Entries>
    static void cut(Entries& entries, std::size_t position, std::size_t first, std::size_t last) {
        Entries kept;
        for (page_entry entry : entries) {
            const std::size_t begin = std::max(position, first), end = std::min(position + entry.count, last);
            entry.first += static_cast<std::uint32_t>(begin - position);
            position += entry.count;
            if (begin < end) {
                entry.count = static_cast<std::uint32_t>(end - begin);
                kept.push_back(entry);
            }
        }
        entries = std::move(kept);
    }
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
/// program that does not include this header compiles none of it. Requires: the cache outlives it.
template <knows_chunks Cache>
class chunk_reuse {
    using core_type = typename Cache::core_type;

public:
    using sequence = typename Cache::sequence;
    using lease = typename Cache::lease;
    using match_type = pinned_reuse<sequence>;

    explicit chunk_reuse(Cache& cache) : core_(cache.core()) {}

    /// Finds registered chunks anywhere in the part of a prompt that follows the tokens of `prefix`, and pins their
    /// pages; chunks that only the tier has are loaded first. Requires: the prompt starts with the tokens of `prefix`.
    /// Cost: O(tokens), plus the tier's reads.
    [[nodiscard]] match_type match(const sequence& prefix, std::span<const token_id> tokens) {
        std::vector<sequence> loaded; // which hold their pages until they are pinned
        if constexpr (Cache::has_tier)
            load(prefix.state_in(core_).tenant, tokens, prefix.size(), loaded);
        const std::lock_guard guard(core_.lock());
        const std::uint32_t tenant = prefix.state_in(core_).tenant;
        chunk_search search(core_.pages().index(), tenant, core_.shape().tokens, tokens, prefix.size());
        auto pins = std::make_unique<sequence_state>();
        pins->tenant = tenant;
        pins->pinned_sources = std::move(search.sources);
        core_.sequences().add(*pins);
        return {sequence(core_, std::move(pins)), std::move(search.found)};
    }

    /// Registers the exact tokens [first, first + count) of a sequence as a chunk; it lasts as long as their pages, and
    /// in a tier as long as its records there (chunk/chunk_records.hpp). If the codec encodes whole pages, the tokens
    /// of a last page that is not full are left out. Returns the number of tokens registered: none if they are fewer
    /// than the index's minimum or their pages are not in the index.
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
            const bool done = detail::completes<std::bad_alloc>([&] {
                known = in_memory(state.tenant, of.tokens().subspan(first, count));
                noted = core_.pages().index().note(state.tenant, state.table[last / page_tokens].page,
                                                   static_cast<std::uint32_t>(last % page_tokens + 1), count);
            });
            noted = noted && done;
        }
        if constexpr (Cache::has_tier)
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
        if constexpr (Cache::has_tier)
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
            spans = chunk_search(core_.pages().index(), tenant, core_.shape().tokens, tokens, known).found.spans;
        }
        chunk_records<core_type> records(core_);
        for (const prompt_span& one : spans)
            if (one.kind == reuse_kind::missing)
                records.load(tenant, tokens, one.first, one.first + one.count, held);
    }

    static constexpr bool encodes_pages = page_writer<typename Cache::codec_type>;

    [[nodiscard]] auto& pages() noexcept { return core_.pages(); }

    // Appends spliced rows to a sequence, as a lease, and references their source pages. Returns false if the storage
    // refuses; nothing has changed then. Throws: bad_alloc, likewise.
    [[nodiscard]] bool splice(sequence_state& state, splice_plan& spliced, std::span<const page_id> sources) {
        const std::size_t page_tokens = core_.shape().tokens, needed = spliced.own_pages(page_tokens);
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
        if (core_.sequences().residual().open_spliced(state))
            return true;
        core_.sequences().undo(state);
        return false;
    }

    core_type& core_;
};

}} // namespace kvcache
