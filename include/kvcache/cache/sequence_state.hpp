// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/running_states.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tokens of a sequence. Capacity is reserved before tokens are appended, so that appending cannot fail. A span of
/// the tokens stays readable until the `reserve` after an append, even where the tokens have moved.
class token_buffer {
public:
    [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }
    [[nodiscard]] const token_id* data() const noexcept { return tokens_.data(); }
    [[nodiscard]] const token_id* begin() const noexcept { return tokens_.data(); }
    [[nodiscard]] const token_id* end() const noexcept { return tokens_.data() + tokens_.size(); }

    /// Replaces the tokens. Throws: bad_alloc.
    void assign(std::span<const token_id> tokens) { tokens_.assign(tokens.data(), tokens.data() + tokens.size()); }

    /// Keeps the first `count` tokens. Requires: count <= size().
    void truncate(std::size_t count) noexcept { tokens_.resize(count); }

    /// Makes room for `more` tokens. Throws: bad_alloc; nothing has changed then.
    void reserve(std::size_t more) {
        const std::size_t needed = tokens_.size() + more;
        const bool grows = needed > tokens_.capacity();
        if (grows && spare_.capacity() >= needed)
            return;
        spare_ = std::vector<token_id>();
        if (grows)
            spare_.reserve(std::max(needed, 2 * tokens_.capacity()));
    }

    /// Appends tokens for which there is room. They may be this buffer's own, or those of another buffer that moved
    /// them after its own `reserve`.
    void append(std::span<const token_id> more) noexcept {
        const std::size_t old = tokens_.size(), needed = old + more.size();
        if (needed > tokens_.capacity()) {
            spare_.assign(tokens_.data(), tokens_.data() + old);
            spare_.swap(tokens_);
        }
        tokens_.resize(needed);
        std::copy(more.begin(), more.end(), tokens_.data() + old);
    }

private:
    std::vector<token_id> tokens_;
    std::vector<token_id> spare_; // where the tokens move as they grow; then where they were, until the next reserve
};

/// Which rows of a lease were written, in each layer: a bit each. Threads may mark different rows at once.
class written_rows {
public:
    /// Begins with `rows` rows, none of them written. Throws: bad_alloc; nothing has changed then.
    void begin(std::size_t rows, std::size_t layers) {
        const std::size_t needed = (rows + 63) / 64 * layers;
        if (bits_.size() < needed)
            bits_.resize(needed);
        layers_ = layers;
        used_ = needed;
        set(0);
    }
    /// All rows are written.
    void fill() noexcept { set(all); }
    void mark(std::size_t layer, std::size_t row) noexcept {
        atomic_or(bits_[row / 64 * layers_ + layer], std::uint64_t{1} << row % 64);
    }

    /// Whether the first `rows` rows are written in every layer. Cost: O(rows * layers / 64).
    [[nodiscard]] bool first(std::size_t rows) const noexcept {
        const std::uint64_t* word = bits_.data();
        for (std::size_t left = rows; left > 0; left -= left < 64 ? left : 64) {
            const std::uint64_t wanted = left < 64 ? (std::uint64_t{1} << left) - 1 : all;
            std::uint64_t written = wanted;
            for (const std::uint64_t* const end = word + layers_; word != end; ++word)
                written &= *word;
            if (written != wanted)
                return false;
        }
        return true;
    }

private:
    static constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();

    void set(std::uint64_t word) noexcept {
        for (std::size_t i = 0; i < used_; ++i)
            bits_[i] = word;
    }

    std::vector<std::uint64_t> bits_; // (blocks of 64 rows, layers), and room for more
    std::size_t layers_ = 0;
    std::size_t used_ = 0;
};

/// The residual rows of the pages that a lease writes. Rows are written in ascending order, with a bounded number at
/// once, so pages that are far enough apart reuse the same buffer. Pages that keep their residual rows have buffers of
/// their own.
struct residual_ring {
    std::vector<std::shared_ptr<codec::residual_page>> places = {};
    std::size_t first = 0; ///< Page-table entry of the first buffer.
    std::size_t own = 0;   ///< Leading entries with a buffer of their own; the others share the buffers after these.

    /// The buffer index of a page-table entry, from `first` on.
    [[nodiscard]] std::size_t place_of(std::size_t entry) const noexcept {
        const std::size_t i = entry - first;
        return i < own ? i : own + (i - own) % (places.size() - own);
    }
    [[nodiscard]] codec::residual_page* at(std::size_t entry) const noexcept { return places[place_of(entry)].get(); }

    /// Returns whether no later entry of the table has reused the buffer of this one.
    [[nodiscard]] bool keeps(std::size_t entry, std::size_t entries) const noexcept {
        const std::size_t i = entry - first;
        return i < own || i + (places.size() - own) >= entries - first;
    }

    [[nodiscard]] std::shared_ptr<codec::residual_page> take(std::size_t entry) noexcept {
        return std::move(places[place_of(entry)]);
    }

    /// The number of buffers for `pages` new pages, of which the first `own` have their own, if the pages of
    /// `max_batch_tokens` consecutive rows and `recent` pages before them are needed together.
    [[nodiscard]] static std::size_t places_for(std::size_t pages, std::size_t own, std::size_t max_batch_tokens,
                                                std::size_t page_tokens, std::size_t recent) noexcept {
        const std::size_t touched = max_batch_tokens == 0 ? 0 : (max_batch_tokens - 1) / page_tokens + 2;
        return std::min(pages, own + touched + recent);
    }
};

struct sequence_state;

/// The location of a row of a spliced lease.
struct spliced_row {
    page_id page = {};
    std::uint32_t row = 0;
    bool kept = false;     ///< Computed elsewhere, and not to be written.
    std::int64_t base = 0; ///< RoPE offset of its keys, as page_entry::base.
};

/// The lease of a sequence: rows after its tokens that are already in its page table, and the state to roll back to.
struct lease_state {
    bool open = false;
    bool whole = false;                ///< See reserve_options.
    sequence_state** holder = nullptr; ///< Where the lease keeps its pointer to this; null once it has ended.
    std::size_t rows = 0;
    std::int64_t began = 0; ///< By monotonic_nanoseconds.
    std::size_t pages_before = 0;
    std::optional<page_entry> tail_before = {}; ///< The last entry before the lease; still referenced if copied.

    std::vector<token_id> prompt = {}; ///< The tokens of its rows, where a prompt was acquired.
    written_rows written = {};         ///< If the cache owns the memory of its pages.

    // For codecs that encode whole pages.
    residual_ring ring = {};                          ///< The residual rows of the pages that the lease adds.
    std::vector<codec::residual_page*> residual = {}; ///< By entry: the residual rows that queries may read.

    // For chunk reuse.
    std::vector<spliced_row> spliced = {}; ///< By row of the lease, if it is spliced.

    /// Returns whether the lease has replaced the last page of its table by a copy.
    [[nodiscard]] bool has_copied_tail(std::span<const page_entry> table) const noexcept {
        return tail_before && tail_before->page != table[pages_before - 1].page;
    }

    /// Begins a lease after the pages of a table. `open_tail`: whether its last page can take more rows.
    void begin(std::size_t row_count, std::span<const page_entry> table, bool open_tail) noexcept {
        open = true;
        rows = row_count;
        began = monotonic_nanoseconds();
        pages_before = table.size();
        tail_before = open_tail ? std::optional(table.back()) : std::nullopt;
    }

    /// Notes where the lease keeps its pointer to this. Out of line: GCC 12 takes the note of a lease that is returned
    /// for a dangling pointer.
    KVCACHE_NOINLINE void hold(sequence_state** place) noexcept { holder = place; }

    /// Ends the lease, which has no state any more; the vectors keep their memory.
    void end() noexcept {
        if (holder != nullptr)
            *std::exchange(holder, nullptr) = nullptr;
        open = false;
        rows = 0;
        tail_before.reset();
        prompt.clear();
        residual.clear();
        spliced.clear();
    }
};

/// The state of one sequence: its tokens, their pages, and its lease. Every live sequence is in a circular list of its
/// cache, so that `check` can recount all references.
struct sequence_state {
    static constexpr std::size_t all = static_cast<std::size_t>(-1);

    token_buffer tokens = {};
    std::vector<page_entry> table = {};
    std::size_t published_pages = 0; ///< Leading pages that are full and in the index.
    std::size_t prompt = 0;          ///< Tokens of the request it was opened for, while it has fewer; 0 if unknown.
    std::uint32_t tenant = 0;        ///< Number of the tenant that owns it; 0 in a cache without tenants.
    std::size_t exact = all;         ///< Leading tokens that attended to nothing approximate; `all` if every one.
    std::size_t cacheable = all;     ///< Leading tokens that may be published.
    bool publishable = true;         ///< False after the index ran out of memory for a page: later pages stay private.

    lease_state lease = {};

    /// Another page of the index with the content of a page of the table.
    struct duplicate {
        std::size_t entry = 0;
        page_id page = {};
    };
    /// Where pages stay in the table although the index has their content in another page: later pages continue that
    /// page in the index. Referenced in addition to the table; entries ascend.
    std::vector<duplicate> duplicates = {};

    // For tiers.
    struct {
        std::size_t pages = 0;     ///< Leading pages that were handed to the tier.
        sha256_digest record = {}; ///< The record name of the last of them.
    } offloaded = {};

    // For chunk reuse: pages referenced in addition to the table, namely those that approximate rows were taken from
    // and their ancestors.
    std::vector<page_id> pinned_sources = {};

    // For layer groups.
    /// The block of a group with rows that approximate rows are to be taken from.
    struct pinned_block {
        std::size_t pool = 0;
        page_id page = {};
    };
    std::vector<pinned_block> pinned_blocks = {}; ///< Used in addition to those of the table.
    /// The state of a group after the last token of an entry.
    struct snapshot {
        std::size_t pool = 0;
        std::size_t entry = 0;
    };
    std::vector<std::size_t> group_first = {}; ///< By group with blocks: the first entry whose block it uses.
    std::vector<snapshot> snapshots = {};      ///< Those that it uses.
    running_states running = {};               ///< Of state groups.

    bool orphaned = false; ///< Its cache was destroyed first.
    sequence_state* previous = nullptr;
    sequence_state* next = nullptr;

    /// The number of rows in use in the last page if it can take more; nullopt if the next row begins a new page.
    [[nodiscard]] std::optional<std::uint32_t> open_rows(std::size_t page_tokens) const noexcept {
        if (table.empty() || table.back().base != 0 || table.back().first + table.back().count == page_tokens)
            return std::nullopt;
        return table.back().first + table.back().count;
    }

    /// The number of leading entries that fill their pages.
    [[nodiscard]] std::size_t full_entries(std::size_t page_tokens) const noexcept {
        return table.size() - (open_rows(page_tokens) ? 1 : 0);
    }

    /// Appends pages with `rows` rows in total, of which all but the last are full.
    void add_pages(std::span<const page_id> pages, std::size_t rows, std::size_t page_tokens) {
        table.reserve(table.size() + pages.size());
        for (const page_id page : pages) {
            const std::size_t count = std::min(rows, page_tokens);
            table.push_back({.page = page, .count = static_cast<std::uint32_t>(count)});
            rows -= count;
        }
    }

    /// The number of leading entries of which each has the tokens of one page; those of a spliced lease follow.
    [[nodiscard]] std::size_t whole_entries(std::size_t page_tokens) const noexcept {
        return exact == all ? all : (exact + page_tokens - 1) / page_tokens;
    }

    /// Shortens the entries to `rows` rows in total. Returns the number of entries that remain; the caller removes the
    /// others.
    [[nodiscard]] std::size_t cut(std::size_t rows) noexcept {
        std::size_t kept = 0;
        for (; kept < table.size() && rows > 0; ++kept) {
            table[kept].count = static_cast<std::uint32_t>(std::min<std::size_t>(table[kept].count, rows));
            rows -= table[kept].count;
        }
        return kept;
    }

    /// Removes all but the first `kept` entries, without releasing their pages.
    void drop_entries(std::size_t kept) noexcept {
        while (table.size() > kept)
            table.pop_back();
    }

    /// The number of leading tokens of a prompt that equal its own and those that its lease computes, if these can be
    /// published.
    [[nodiscard]] std::size_t pending(std::span<const token_id> query) const noexcept {
        const std::size_t own = std::min(tokens.size(), query.size());
        if (lease.prompt.empty() || !publishable || exact != all ||
            !std::equal(tokens.data(), tokens.data() + own, query.data()))
            return 0;
        const auto rest = query.subspan(own);
        const auto end = ranges::mismatch(lease.prompt, rest).in2;
        return std::min(own + static_cast<std::size_t>(end - rest.begin()), cacheable);
    }

    /// The page by which the index knows the content of an entry: its own, or its duplicate. Cost: O(duplicates).
    [[nodiscard]] page_id indexed(std::size_t entry) const noexcept {
        for (std::size_t i = duplicates.size(); i-- > 0 && duplicates[i].entry >= entry;)
            if (duplicates[i].entry == entry)
                return duplicates[i].page;
        return table[entry].page;
    }

    /// Begins with the first `count` tokens and pages of another sequence. Requires: this one is empty.
    void share(const sequence_state& from, std::size_t count, std::size_t page_tokens) {
        tokens.assign({from.tokens.data(), count});
        table.assign(from.table.data(), from.table.data() + from.table.size());
        drop_entries(cut(count));
        published_pages = std::min(from.published_pages, full_entries(page_tokens));
        for (const duplicate& one : from.duplicates)
            if (one.entry < published_pages)
                duplicates.push_back(one);
        tenant = from.tenant;
        cacheable = from.cacheable;
        publishable = from.publishable;
        if (count == from.tokens.size())
            running.share(from.running);
        if (count > from.exact) {
            exact = from.exact;
            pinned_sources = from.pinned_sources;
        }
    }

    /// Makes it the state of a sequence without tokens and pages. Its vectors keep their memory, running states do not.
    void clear() noexcept {
        tokens.truncate(0);
        table.clear();
        duplicates.clear();
        published_pages = prompt = 0;
        tenant = 0;
        exact = cacheable = all;
        publishable = true;
        lease.end();
        offloaded = {};
        pinned_sources.clear();
        snapshots.clear();
        running.end();
    }

    /// Appends the tokens of `from` after the `count` tokens that are left out. Requires: this state is the prefix of
    /// `from` up to `first`. Returns: the locations of their rows, moved down; the table has capacity for as many. From
    /// `first` on the sequence is approximate and private.
    [[nodiscard]] std::vector<page_entry> leave_out(const sequence_state& from, std::size_t first, std::size_t count) {
        std::vector<page_entry> after;
        std::size_t row = 0;
        for (page_entry entry : from.table) {
            const std::size_t skipped = std::clamp(first + count, row, row + entry.count) - row;
            row += entry.count;
            if (skipped == entry.count)
                continue;
            entry.first += static_cast<std::uint32_t>(skipped);
            entry.count -= static_cast<std::uint32_t>(skipped);
            entry.base -= static_cast<std::int64_t>(count);
            after.push_back(entry);
        }
        const auto kept = std::span<const token_id>(from.tokens).subspan(first + count);
        reserve(after.size(), kept.size());
        tokens.append(kept);
        if (!after.empty()) {
            exact = std::min(exact, first);
            publishable = false;
        }
        return after;
    }

    /// Reserves capacity for more pages and tokens, so that adding them cannot fail; with `keeps_duplicates` for a
    /// duplicate of each page too. Throws: bad_alloc; the sequence is then unchanged.
    void reserve(std::size_t pages, std::size_t rows, bool keeps_duplicates = false) {
        if (table.capacity() - table.size() < pages)
            table.reserve(std::max(table.size() + pages, 2 * table.capacity()));
        if (keeps_duplicates)
            duplicates.reserve(table.capacity());
        tokens.reserve(rows);
    }
};

/// States of sequences that have ended, whose memory new sequences use. Together they keep no more page-table entries
/// than the cache has pages.
class spare_sequences {
public:
    explicit spare_sequences(std::size_t pages) : most_(pages) {}

    /// The state of a sequence without tokens and pages. `live`: the sequences that may be kept later. Throws:
    /// bad_alloc.
    [[nodiscard]] std::unique_ptr<sequence_state> take(std::size_t live) {
        if (const std::size_t all = spare_.size() + live + 1; spare_.capacity() < all)
            spare_.reserve(2 * all);
        if (spare_.empty())
            return std::make_unique<sequence_state>();
        auto made = std::move(spare_.back());
        spare_.pop_back();
        entries_ -= made->table.capacity();
        return made;
    }

    /// Keeps or frees a state. Requires: it was taken here.
    void keep(std::unique_ptr<sequence_state> state) noexcept {
        state->clear();
        if (entries_ + state->table.capacity() <= most_) {
            entries_ += state->table.capacity();
            spare_.push_back(std::move(state));
        }
    }

private:
    std::size_t most_;
    std::size_t entries_ = 0;
    std::vector<std::unique_ptr<sequence_state>> spare_;
};

}} // namespace kvcache
