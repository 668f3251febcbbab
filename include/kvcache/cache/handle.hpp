// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/lookup_result.hpp>
#include <kvcache/cache/opaque_leases.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/cache/table_rows.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A run of tokens and the pages that hold their keys and values, shared with other sequences that have the same
/// prefix. Destruction releases its pages, tail first; indexed pages stay cached until space is needed.
/// With locking::mutex several threads may call its const members at once, fork included, while no thread changes it or
/// commits its lease. Requires: the cache outlives it; where it does not, the sequence can only be destroyed or
/// assigned to. `Core`: a cache_core.
template <class Core>
class basic_sequence {
public:
    /// The sequence of a state that `core` has among its sequences.
    basic_sequence(Core& core, std::unique_ptr<sequence_state> state) noexcept
        : core_(&core), state_(std::move(state)) {}
    basic_sequence(basic_sequence&& other) noexcept = default;
    /// Releases the pages it held before.
    basic_sequence& operator=(basic_sequence&& other) noexcept {
        basic_sequence taken(std::move(other));
        std::swap(core_, taken.core_);
        std::swap(state_, taken.state_);
        return *this;
    }
    ~basic_sequence() {
        if (state_ && !state_->orphaned)
            core_->release(std::move(state_));
    }

    /// The number of tokens whose keys and values are cached.
    [[nodiscard]] std::size_t size() const { return state().tokens.size(); }
    [[nodiscard]] std::span<const token_id> tokens() const { return state().tokens; }
    /// The number of leading tokens that are exact: bit-identical to computing every token. Later tokens were computed
    /// after a different prefix, or attended to such tokens; they are never shared with other sequences.
    [[nodiscard]] std::size_t exact() const { return std::min(state().exact, size()); }
    [[nodiscard]] std::span<const page_entry> table() const { return state().table; }

    /// The sequence's pages, reserved rows included, in the form that attention reads. Only if the codec writes row by
    /// row: a codec of whole pages keeps full-precision rows that its lease shows. Valid until the table changes.
    [[nodiscard]] sequence_pages pages() const requires Core::writes_rows {
        return {state().table, {}, state().exact != sequence_state::all};
    }

    /// Calls `f` with a row_run for each run of consecutive rows in one page, in order of position: the rows of the
    /// tokens, not reserved ones. The pointers are valid until the sequence changes or a lease of it is committed. Only
    /// with a row-major codec (codec/row_major.hpp). Cost: O(pages), besides `f`.
    template <class F>
    void for_each_run(layer_id layer, head_id head, F&& f) const {
        rows().for_each_run(layer, head, f);
    }
    /// Copies the keys and values of the tokens, widened to float32. keys, values: (size(), head_dim).
    /// Only with a codec that writes single rows. Throws: bad_alloc, unless the codec is row-major. Cost: O(numbers).
    void gather(layer_id layer, head_id head, std::span<float> keys, std::span<float> values) const {
        rows().gather(layer, head, keys, values);
    }

    /// The blocks of a layer group, by page-table entry: the number of each that the next query reads, and `null` for
    /// the others. Of a state group: the snapshots that it began with. Throws: bad_alloc. Cost: O(pages).
    [[nodiscard]] std::vector<std::int32_t> blocks(std::size_t group,
                                                   std::int32_t null = -1) const requires Core::grouped {
        return core_->groups([&](const auto& groups) { return groups.table(state(), group, null); });
    }
    /// The state of a group after the last token, where the next lease begins: what the last lease wrote into
    /// `state_after`, or a snapshot. Empty if there is none, as for a sequence without tokens, and after a commit of
    /// fewer rows than were reserved. Valid until the sequence changes. Only if the cache owns its memory.
    [[nodiscard]] std::span<const std::byte> state_of(std::size_t group) const requires Core::owns_blocks {
        return core_->groups([&](const auto& groups) { return groups.last_state(state(), group); });
    }

    /// Returns a sequence that shares the first `tokens` tokens. The first write to a partly used shared page copies
    /// it. With a codec that quantizes whole pages, a fork inside a quantized page ends where that page begins:
    /// continue at its size(). Requires: tokens <= size(), no open lease. Cost: O(pages).
    [[nodiscard]] basic_sequence fork(std::size_t tokens) const { return core_->fork(state(), tokens); }

    /// Keeps the first `tokens` tokens, or fewer, as a fork does. Requires: tokens <= size(), no lease under way.
    void truncate(std::size_t tokens) { core_->truncate(state(), tokens); }

    /// Prevents pages after the first `tokens` tokens from being published to other sequences; forks inherit the limit.
    /// Pages that are already published stay so.
    void set_cacheable_limit(std::size_t tokens) { core_->set_cacheable_limit(state(), tokens); }
    /// The maximum number of leading tokens that can be shared.
    [[nodiscard]] std::size_t cacheable_limit() const { return std::min(state().exact, state().cacheable); }

    /// Returns a new sequence without the `count` tokens from `first` on. Later tokens move down with unchanged keys
    /// and values, in pages of their own: from `first` on the sequence is approximate (StreamingLLM, Xiao et al. 2024).
    /// Only if the codec writes row by row. Errors: out_of_memory. Requires: first + count <= size(), no open lease.
    /// Cost: O(bytes of the later tokens).
    [[nodiscard]] result<basic_sequence> erase_range(std::size_t first,
                                                     std::size_t count) const requires Core::writes_rows {
        return core_->erase_range(state(), first, count);
    }

    /// The state, for the library's own use with the cache that it is passed.
    [[nodiscard]] sequence_state& state_in(const Core& core) const {
        require(state_ == nullptr || state_->orphaned || core_ == &core, "a sequence is used with its own cache");
        return state();
    }

private:
    [[nodiscard]] sequence_state& state() const {
        require(state_ != nullptr, "a sequence that was moved from is only destroyed or assigned to");
        require(!state_->orphaned, "a cache outlives its sequences");
        return *state_;
    }
    [[nodiscard]] detail::table_rows<Core> rows() const { return {*core_, state().table, size()}; }

    Core* core_;
    std::unique_ptr<sequence_state> state_;
};

/// The location of a row of a lease: a row of a page, and the index of its page-table entry (if the lease is not
/// spliced).
struct row_slot {
    page_id page = {};
    std::uint32_t row = 0;
    std::size_t entry = 0;
};

/// What the library's own code sees of a lease: the core of its cache and the state of its sequence. It can copy whole
/// pages into the rows that the lease has added.
template <class Core>
struct open_lease {
    Core& core;
    sequence_state& state;

    [[nodiscard]] const page_shape& shape() const noexcept { return core.shape(); }

    /// The number of pages that the lease has allocated, for rows that were computed elsewhere and are copied in as
    /// whole pages, in the codec's format. Requires: the sequence ended at a page boundary.
    [[nodiscard]] std::size_t taken_pages() const {
        expects(!state.lease.tail_before && state.lease.spliced.empty(), "whole pages are put in place");
        return state.table.size() - state.lease.pages_before;
    }
    /// The bytes of one of these pages.
    [[nodiscard]] std::span<std::byte> page_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        return core.storage().bytes(state.table[state.lease.pages_before + page].page);
    }
    /// The memory for the page's residual rows, in the format of the f32 codec; empty if none are kept once all rows
    /// are committed.
    [[nodiscard]] std::span<std::byte> residual_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        auto* rows = core.sequences().residual().given(state, state.lease.pages_before + page);
        return rows != nullptr ? rows->bytes() : std::span<std::byte>();
    }
    /// Commits all rows, as commit does, for rows that were copied in: they do not count as measurements of the prefill
    /// cost.
    void commit_in_place(std::span<const token_id> tokens) const {
        require(tokens.size() == state.lease.rows, "all rows that are put in place are committed");
        core.commit_in_place(state, tokens);
    }

    /// Whether a row is kept as it was computed elsewhere.
    [[nodiscard]] bool keeps(std::size_t row) const noexcept {
        return row < state.lease.spliced.size() && state.lease.spliced[row].kept;
    }
    /// Calls `f` with the codec and the bytes of a page in the group, as basic_lease::with_source does. Requires: the
    /// group has rows of the page.
    template <class F>
    void with_page(std::size_t group, page_id page, F&& f) const requires Core::owns_blocks {
        const auto& blocks = core.pages().blocks();
        if (const std::size_t keeper = blocks.keeper_of(group); keeper != blocks.paged())
            f(blocks.memory().codec(blocks.pool_of(keeper)),
              std::span<const std::byte>(
                  blocks.memory().bytes(blocks.pool_of(keeper), blocks.block(blocks.pool_of(keeper), page))));
        else
            f(core.codec(), std::span<const std::byte>(core.storage().bytes(page)));
    }

    /// The locations of the rows of a spliced lease; empty for other leases.
    [[nodiscard]] std::span<const spliced_row> spliced() const noexcept { return state.lease.spliced; }
};

/// Rows reserved after the end of a sequence, to be written layer by layer and then committed. Destruction without a
/// commit rolls the sequence back. At most one lease a sequence; it ends when its sequence is destroyed. Several
/// threads may write different rows and call const members that read; one thread, after them, ends or moves it.
/// Requires: the cache outlives it. `Core`: a cache_core.
template <class Core>
class basic_lease {
    static constexpr bool whole_pages = page_writer<typename Core::codec_type>;
    // Whether the cache owns the memory of the rows.
    static constexpr bool owns_rows = whole_pages || row_writer<typename Core::codec_type>;

public:
    /// The lease of a state whose rows are reserved.
    basic_lease(Core& core, sequence_state& state) : core_(&core), state_(&state), first_(state.tokens.size()) {
        hold();
    }
    basic_lease(basic_lease&& other) noexcept
        : core_(other.core_),
          state_(std::exchange(other.state_, nullptr)),
          first_(other.first_),
          committed_(other.committed_) {
        hold();
    }
    /// Rolls back the lease that it held before.
    basic_lease& operator=(basic_lease&& other) noexcept {
        basic_lease taken(std::move(other));
        std::swap(core_, taken.core_);
        std::swap(state_, taken.state_);
        std::swap(first_, taken.first_);
        std::swap(committed_, taken.committed_);
        hold();
        taken.hold();
        return *this;
    }
    ~basic_lease() { rollback(); }

    /// The position of the first reserved row.
    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    /// The number of reserved rows; zero once the lease has ended.
    [[nodiscard]] std::size_t rows() const noexcept { return open() ? state_->lease.rows : 0; }

    /// The location of a reserved row.
    [[nodiscard]] row_slot slot_of(std::size_t row) const {
        require(row < rows(), "a row that has a slot was reserved");
        const lease_state& lease = state_->lease;
        if (!lease.spliced.empty())
            return {lease.spliced[row].page, lease.spliced[row].row, 0};
        const std::size_t tokens = core_->shape().tokens;
        const std::size_t tail = lease.pages_before - (lease.tail_before ? 1 : 0);
        const std::size_t used = lease.tail_before ? lease.tail_before->first + lease.tail_before->count : 0;
        const std::size_t entry = tail + (used + row) / tokens;
        return {state_->table[entry].page, static_cast<std::uint32_t>((used + row) % tokens), entry};
    }

    /// Writes the keys (rotated by the position if the model uses RoPE) and values of one row.
    /// keys, values: (kv_heads, head_dim). Several threads may write rows of one lease. If the codec encodes whole
    /// pages, each row is written once per layer, in ascending order except among the rows that run at once.
    void write(layer_id layer, std::size_t row, std::span<const float> keys, std::span<const float> values) const {
        static_assert(owns_rows, "the host writes rows that are in its own memory: slot_of says where");
        const page_shape& shape = core_->shape();
        require(row < rows(), "a written row was reserved");
        require(index_of(layer) < shape.layers, "a written layer is one of the page shape's");
        require(keys.size() == std::size_t{shape.kv_heads} * shape.head_dim && values.size() == keys.size(),
                "a row of keys or values has head_dim numbers for each KV head");
        lease_state& lease = state_->lease;
        expects(lease.spliced.empty() || !lease.spliced[row].kept, "a row that is kept from elsewhere is not written");
        if (lease.spliced.empty())
            lease.written.mark(core_->sequences().first_layer() + index_of(layer), row);
        const row_slot to = slot_of(row);
        if constexpr (whole_pages) {
            auto* const rows = lease.spliced.empty() ? lease.residual[to.entry] : core_->pages().residual().of(to.page);
            rows->write(core_->codec(), core_->storage().bytes(to.page), layer, to.row, keys, values);
        }
        if constexpr (owns_rows && !whole_pages)
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                core_->codec().encode(core_->storage().bytes(to.page), {layer, head_id{head}, to.row},
                                      keys.subspan(std::size_t{head} * shape.head_dim, shape.head_dim),
                                      values.subspan(std::size_t{head} * shape.head_dim, shape.head_dim));
    }

    /// Writes one row of a layer of a group, as above. `layer`: counted within the group. keys, values: (the group's
    /// kv_heads, head_dim). Only if the cache owns its memory.
    void write(std::size_t group, layer_id layer, std::size_t row, std::span<const float> keys,
               std::span<const float> values) const requires Core::owns_blocks {
        const auto& blocks = core_->pages().blocks();
        if (group == blocks.paged())
            return write(layer, row, keys, values);
        require(row < rows(), "a written row was reserved");
        const std::size_t pool = blocks.pool_of(group);
        const auto& of = blocks.layout().groups[group];
        require(of.has_rows() && index_of(layer) < of.layers, "a written layer is one of its group's");
        require(keys.size() == std::size_t{of.kv_heads} * of.head_dim && values.size() == keys.size(),
                "a row of keys or values has head_dim numbers for each KV head");
        const row_slot to = slot_of(row);
        require(blocks.has(pool, to.page), "a whole lease has blocks only for rows that the next query reads");
        if (state_->lease.spliced.empty())
            state_->lease.written.mark(blocks.first_layer(group) + index_of(layer), row);
        const auto bytes = blocks.memory().bytes(pool, blocks.block(pool, to.page));
        for (std::uint32_t head = 0; head < of.kv_heads; ++head)
            blocks.memory().codec(pool).encode(bytes, {layer, head_id{head}, to.row},
                                               keys.subspan(std::size_t{head} * of.head_dim, of.head_dim),
                                               values.subspan(std::size_t{head} * of.head_dim, of.head_dim));
    }

    /// Declares all rows written, by code that writes the pages itself. Not needed where the cache does not own their
    /// memory.
    void declare_written() const {
        require(open(), "a lease has rows until it ends");
        state_->lease.written.fill();
    }

    [[nodiscard]] const page_shape& shape() const { return core("a lease shows its cache until it ends").shape(); }
    /// The codec and the storage of the cache, to read the pages with.
    [[nodiscard]] const auto& codec() const { return core("a lease shows its cache until it ends").codec(); }
    [[nodiscard]] const auto& storage() const { return core("a lease shows its cache until it ends").storage(); }

    /// The sequence's pages, reserved rows included, in the form that attention reads.
    [[nodiscard]] sequence_pages pages() const {
        require(open(), "a lease shows its pages until it ends");
        return {state_->table, state_->lease.residual, state_->exact != sequence_state::all};
    }
    /// Calls `f` with a row_run for each run of consecutive rows in one page, in order of position: the sequence's
    /// rows, then the reserved ones. The pointers are valid until the lease ends. Only with a row-major codec
    /// (codec/row_major.hpp). Cost: O(pages), besides `f`.
    template <class F>
    void for_each_run(layer_id layer, head_id head, F&& f) const {
        all_rows().for_each_run(layer, head, f);
    }
    /// Copies the keys and values of these rows, widened to float32. keys, values: (first() + rows(), head_dim).
    /// Only with a codec that writes single rows. Throws: bad_alloc, unless the codec is row-major. Cost: O(numbers).
    void gather(layer_id layer, head_id head, std::span<float> keys, std::span<float> values) const {
        all_rows().gather(layer, head, keys, values);
    }

    /// The blocks of a layer group, by page-table entry, those of reserved rows included: the number of each that is
    /// read or written, and `null` for the others. Of a state group: the snapshot that the sequence began with, and
    /// those that the lease has made. Throws: bad_alloc. Cost: O(pages).
    [[nodiscard]] std::vector<std::int32_t> blocks(std::size_t group,
                                                   std::int32_t null = -1) const requires Core::grouped {
        return core("a lease shows its blocks until it ends").groups([&](const auto& groups) {
            return groups.table(*state_, group, null);
        });
    }
    /// The sequence's blocks of a layer group, those of reserved rows included, in the form that attention reads:
    /// `entries` becomes their table, and is valid as long as the pages. Entries before the window of the first
    /// reserved row have no block. Only if the cache owns its memory. Throws: bad_alloc. Cost: O(pages).
    [[nodiscard]] sequence_pages pages(std::size_t group,
                                       std::vector<page_entry>& entries) const requires Core::owns_blocks {
        const bool paged = core("a lease shows its blocks until it ends").groups([&](const auto& groups) {
            return groups.entries(*state_, group, entries);
        });
        sequence_pages made{.table = entries, .residual = {}, .spliced = state_->exact != sequence_state::all};
        if (paged)
            made.residual = state_->lease.residual;
        return made;
    }
    /// Calls `f` with the codec and the storage of a layer group's blocks, which have the types of the cache's pages
    /// for the group that has them. Only if the cache owns its memory.
    template <class F>
    void with_source(std::size_t group, F&& f) const requires Core::owns_blocks {
        const Core& of = core("a lease shows its cache until it ends");
        const auto& blocks = of.pages().blocks();
        const std::size_t keeper = blocks.keeper_of(group);
        if (keeper == blocks.paged())
            f(of.codec(), of.storage());
        else
            f(blocks.memory().codec(blocks.pool_of(keeper)), blocks.memory().storage(blocks.pool_of(keeper)));
    }
    /// The memory of the blocks of all groups without pages: owned_blocks, whose types say what reads them.
    [[nodiscard]] const auto& block_memory() const requires Core::owns_blocks {
        return core("a lease shows its cache until it ends").pages().blocks().memory();
    }
    /// A block for the state of a group after the first `tokens` tokens of the sequence, which the lease computes. The
    /// host writes it before it commits; a commit of fewer tokens drops it. `bytes`: of an opaque state, and of no
    /// other. Returns the block's number. Errors: out_of_memory. Throws: bad_alloc. Requires: the group has a state;
    /// the tokens fill their pages and end in the lease.
    [[nodiscard]] result<std::uint32_t> snapshot(std::size_t group, std::size_t tokens,
                                                 std::size_t bytes = 0) const requires Core::grouped {
        Core& of = core("a lease has rows until it ends");
        require(tokens % of.shape().tokens == 0 && tokens > first_ && tokens <= first_ + rows(),
                "a snapshot is taken where a page of the lease ends");
        return of.groups([&](auto& groups) { return groups.snapshot(*state_, group, tokens, bytes); });
    }
    /// The bytes of such a block. Only if the cache owns its memory. Requires: a snapshot that the lease made.
    [[nodiscard]] std::span<std::byte> state_of(std::size_t group,
                                                std::uint32_t block) const requires Core::owns_blocks {
        return core("a lease has rows until it ends").groups([&](const auto& groups) {
            return groups.state_bytes(group, block);
        });
    }

    /// The state of a group before the first row; empty as for the sequence. Valid until the lease ends.
    [[nodiscard]] std::span<const std::byte> state_before(std::size_t group) const requires Core::owns_blocks {
        return core("a lease has rows until it ends").groups([&](const auto& groups) {
            return groups.last_state(*state_, group);
        });
    }
    /// Memory for the state of a group after the last row, which the sequence has once all rows are committed. Further
    /// calls return the same memory. It does not count against the cache's limit: there are two for each live sequence.
    /// Throws: bad_alloc. Requires: the state is not opaque; if one group's state is written, all groups' are.
    [[nodiscard]] std::span<std::byte> state_after(std::size_t group) const requires Core::owns_blocks {
        return core("a lease has rows until it ends").groups([&](const auto& groups) {
            return groups.next_state(*state_, group);
        });
    }

    /// Publishes the first tokens.size() rows as these tokens, releases the others, and ends the lease.
    /// It cannot fail: the lease has already allocated all necessary memory. After a rollback there are no rows, and
    /// committing none has no effect.
    /// Requires: tokens.size() <= rows(), the lease was not committed before, and the rows of these tokens are written
    /// in every layer, if the cache owns the memory of its pages.
    void commit(std::span<const token_id> tokens) {
        require(!committed_, "a lease is committed once");
        require(tokens.size() <= rows(), "no more tokens are committed than rows were reserved");
        if (!open())
            return;
        const lease_state& lease = state_->lease;
        require(!lease.whole || tokens.size() == rows(), "a whole lease is committed with all its rows");
        if constexpr (owns_rows)
            require(!lease.spliced.empty() || lease.written.first(tokens.size()),
                    "rows are written in every layer before they are committed");
        if constexpr (opaque_codec_state<typename Core::codec_type>)
            require(has_blobs(tokens.size()),
                    "opaque pages are committed with a blob each, which holds all rows that were reserved of a page");
        expects(lease.spliced.empty() || tokens.size() == rows(), "a spliced lease is committed whole");
        core_->commit(*state_, tokens);
        committed_ = true;
    }

    /// Cancels the reservation: the sequence is as it was before. No effect if the lease has ended.
    void rollback() noexcept {
        if (open())
            core_->rollback(*state_);
    }

    /// What the library's own code sees of the lease. Requires: it has not ended.
    [[nodiscard]] open_lease<Core> opened() const { return {core("a lease has rows until it ends"), *state_}; }

private:
    // The core, which a lease that has ended may have outlived.
    [[nodiscard]] Core& core(const char* rule) const {
        require(open(), rule);
        return *core_;
    }

    // Whether the pages of the first rows have blobs, which end there.
    [[nodiscard]] bool has_blobs(std::size_t count) const {
        const std::size_t tokens = core_->shape().tokens;
        bool all = count == rows() || (first_ + count) % tokens == 0;
        for (std::size_t row = 0; all && row < count; row += tokens - (first_ + row) % tokens)
            all = detail::has_blobs(*core_, slot_of(row).page);
        return all;
    }

    // Whether it has not ended; it ends with its sequence and with its cache too.
    [[nodiscard]] bool open() const noexcept { return state_ != nullptr; }
    void hold() noexcept {
        if (state_ != nullptr)
            state_->lease.hold(&state_);
    }

    [[nodiscard]] detail::table_rows<Core> all_rows() const {
        return {core("a lease shows its rows until it ends"), state_->table, first_ + state_->lease.rows};
    }

    Core* core_;
    sequence_state* state_; // null once the lease has ended
    std::size_t first_;
    bool committed_ = false;
};

/// A sequence for a prompt, and a lease over the rows of the prompt that have to be computed. The first lease.first()
/// tokens are cached. After the lease is committed the sequence is continued with reserve. For threads it counts as one
/// object with its sequence and its lease. Requires: the cache outlives it.
template <class Core>
struct acquired {
    basic_sequence<Core> sequence;
    basic_lease<Core> lease; ///< Destroyed before the sequence.
    lookup_result found;     ///< What was cached of the prompt.

    acquired(basic_sequence<Core> of, basic_lease<Core> rows, lookup_result known)
        : sequence(std::move(of)), lease(std::move(rows)), found(known) {}
    acquired(acquired&&) noexcept = default;
    acquired& operator=(acquired&& other) noexcept {
        lease = std::move(other.lease); // it rolls back the sequence that is replaced next
        sequence = std::move(other.sequence);
        found = other.found;
        return *this;
    }
    ~acquired() = default;
};

}} // namespace kvcache
